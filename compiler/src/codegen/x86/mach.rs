//! Machine instructions over virtual registers, in basic blocks: what selection writes and the register allocator reads.
//!
//! A vector register is of class `Float` whatever its width; the width belongs to each use. No edge leads from a block
//! with two successors to a block with two predecessors, so moves always have a place.

use super::asm::{Cond, Label};
use iced_x86::Mnemonic;
use regalloc2::{Block, Inst, InstRange, Operand, PReg, PRegSet, RegClass, VReg};

/// How much of a register an operand names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Size {
    B1,
    B2,
    B4,
    B8,
    X,
    Y,
    Z,
}

impl Size {
    /// The vector register that holds so many bytes.
    pub fn vector(bytes: usize) -> Size {
        match bytes {
            0..=16 => Size::X,
            17..=32 => Size::Y,
            33..=64 => Size::Z,
            _ => panic!("a vector of {bytes} bytes"),
        }
    }
    pub fn int(bytes: usize) -> Size {
        match bytes {
            1 => Size::B1,
            2 => Size::B2,
            4 => Size::B4,
            _ => Size::B8,
        }
    }
    pub fn bytes(self) -> usize {
        [1, 2, 4, 8, 16, 32, 64][self as usize]
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Base {
    Reg(VReg),
    /// The scratch area at the bottom of the stack frame.
    Frame,
    Pool(u32),
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Address {
    pub base: Base,
    pub index: Option<(VReg, u8)>,
    /// The index is a vector of this size (gathers).
    pub vsib: Option<Size>,
    pub disp: i32,
    /// Bytes accessed; 0 when the address is only computed.
    pub bytes: u16,
    pub broadcast: bool,
}

impl Address {
    pub fn new(base: Base, disp: i32, bytes: usize) -> Address {
        Address { base, index: None, vsib: None, disp, bytes: bytes as u16, broadcast: false }
    }
    pub fn with_bytes(self, bytes: usize) -> Address {
        Address { bytes: bytes as u16, ..self }
    }
    pub fn plus(self, disp: i32) -> Address {
        Address { disp: self.disp + disp, ..self }
    }
    fn regs(&self) -> impl Iterator<Item = VReg> + use<> {
        let base = match self.base {
            Base::Reg(r) => Some(r),
            _ => None,
        };
        base.into_iter().chain(self.index.map(|i| i.0))
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Arg {
    Use(VReg, Size),
    Def(VReg, Size),
    /// The first register is written where the second was read.
    Tied(VReg, VReg, Size),
    /// The first operand's register once more; for `x ^ x`, which reads nothing.
    Same(Size),
    K(u8),
    Tile(u8),
    Mem(Address),
    Imm(i64),
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Opcode {
    Op(Mnemonic),
    /// The same unless the last argument, which the instruction itself does not have, is 0.
    Unless0(Mnemonic),
    /// Defines the four parameters of the function.
    Entry,
    Jump(Label),
    /// To the first label when the condition holds, else to the second.
    Branch(Cond, Label, Label),
    Return,
}

#[derive(Debug)]
pub struct MachInst {
    pub op: Opcode,
    pub args: Vec<Arg>,
    /// Opmask register and zeroing.
    pub mask: Option<(u8, bool)>,
    operands: (u32, u32),
}

#[derive(Default, Debug)]
pub struct BlockData {
    first: u32,
    end: u32,
    params: Vec<VReg>,
    succs: Vec<Block>,
    preds: Vec<Block>,
    /// What a final jump hands to its target's parameters.
    args: Vec<VReg>,
    pub label: Option<Label>,
    pub loop_head: bool,
}

#[derive(Default, Debug)]
pub struct Func {
    pub insts: Vec<MachInst>,
    pub blocks: Vec<BlockData>,
    operands: Vec<Operand>,
    vregs: usize,
    labels: u32,
    /// Bytes of the largest vector in use.
    pub widest: usize,
}

impl Func {
    pub fn vreg(&mut self, class: RegClass) -> VReg {
        self.vregs += 1;
        VReg::new(self.vregs - 1, class)
    }
    pub fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels - 1)
    }
    pub fn labels(&self) -> usize {
        self.labels as usize
    }

    /// Starts a block; the previous one has ended with a jump, branch or return.
    pub fn block(&mut self, label: Label, params: Vec<VReg>) {
        let first = self.insts.len() as u32;
        self.blocks.push(BlockData { first, end: first, params, label: Some(label), ..Default::default() });
    }
    pub fn mark_loop_head(&mut self) {
        self.blocks.last_mut().expect("a block is open").loop_head = true;
    }

    /// Appends an instruction; `implicit` are operands in fixed registers that do not appear in `args`.
    pub fn push(&mut self, op: Opcode, args: Vec<Arg>, mask: Option<(u8, bool)>, implicit: &[Operand]) {
        let first = self.operands.len();
        let mut tied = Vec::new();
        for a in &args {
            match *a {
                Arg::Use(r, _) => self.operands.push(Operand::reg_use(r)),
                Arg::Def(r, _) => self.operands.push(Operand::reg_def(r)),
                Arg::Tied(r, src, _) => {
                    tied.push((self.operands.len(), src));
                    self.operands.push(Operand::reg_def(r));
                }
                Arg::Mem(m) => self.operands.extend(m.regs().map(Operand::reg_use)),
                Arg::Same(_) | Arg::K(_) | Arg::Tile(_) | Arg::Imm(_) => {}
            }
            if let Arg::Use(_, s) | Arg::Def(_, s) | Arg::Tied(_, _, s) = a
                && *s >= Size::X
            {
                self.widest = self.widest.max(s.bytes());
            }
        }
        for (at, src) in tied {
            let dst = self.operands[at].vreg();
            self.operands[at] = Operand::reg_reuse_def(dst, self.operands.len() - first);
            self.operands.push(Operand::reg_use(src));
        }
        self.operands.extend_from_slice(implicit);
        let operands = (first as u32, self.operands.len() as u32);
        self.insts.push(MachInst { op, args, mask, operands });
        self.blocks.last_mut().expect("a block is open").end = self.insts.len() as u32;
    }

    pub fn jump(&mut self, to: Label, args: Vec<VReg>) {
        self.push(Opcode::Jump(to), vec![], None, &[]);
        self.blocks.last_mut().expect("a block is open").args = args;
    }
    pub fn branch(&mut self, cond: Cond, then: Label, or: Label) {
        self.push(Opcode::Branch(cond, then, or), vec![], None, &[]);
    }

    /// Connects the blocks; called once, after the last instruction.
    pub fn seal(&mut self) {
        let mut at = vec![None; self.labels as usize];
        for (i, b) in self.blocks.iter().enumerate() {
            at[b.label.expect("every block has a label").0 as usize] = Some(Block::new(i));
        }
        let find = |l: Label| at[l.0 as usize].expect("every label has a block");
        for i in 0..self.blocks.len() {
            let succs = match self.insts[self.blocks[i].end as usize - 1].op {
                Opcode::Jump(l) => vec![find(l)],
                Opcode::Branch(_, a, b) => vec![find(a), find(b)],
                _ => vec![],
            };
            for s in &succs {
                self.blocks[s.index()].preds.push(Block::new(i));
            }
            self.blocks[i].succs = succs;
        }
    }
}

pub fn gpr(number: usize) -> PReg {
    PReg::new(number, RegClass::Int)
}

impl regalloc2::Function for Func {
    fn num_insts(&self) -> usize {
        self.insts.len()
    }
    fn num_blocks(&self) -> usize {
        self.blocks.len()
    }
    fn entry_block(&self) -> Block {
        Block::new(0)
    }
    fn block_insns(&self, b: Block) -> InstRange {
        let b = &self.blocks[b.index()];
        InstRange::new(Inst::new(b.first as usize), Inst::new(b.end as usize))
    }
    fn block_succs(&self, b: Block) -> &[Block] {
        &self.blocks[b.index()].succs
    }
    fn block_preds(&self, b: Block) -> &[Block] {
        &self.blocks[b.index()].preds
    }
    fn block_params(&self, b: Block) -> &[VReg] {
        &self.blocks[b.index()].params
    }
    fn is_ret(&self, i: Inst) -> bool {
        self.insts[i.index()].op == Opcode::Return
    }
    fn is_branch(&self, i: Inst) -> bool {
        matches!(self.insts[i.index()].op, Opcode::Jump(_) | Opcode::Branch(..))
    }
    fn branch_blockparams(&self, b: Block, _: Inst, _: usize) -> &[VReg] {
        &self.blocks[b.index()].args
    }
    fn inst_operands(&self, i: Inst) -> &[Operand] {
        let (first, end) = self.insts[i.index()].operands;
        &self.operands[first as usize..end as usize]
    }
    fn inst_clobbers(&self, _: Inst) -> PRegSet {
        PRegSet::empty()
    }
    fn num_vregs(&self) -> usize {
        self.vregs
    }
    /// In units of 8 bytes.
    fn spillslot_size(&self, class: RegClass) -> usize {
        match class {
            RegClass::Int => 1,
            _ => (self.widest / 8).max(2),
        }
    }
}
