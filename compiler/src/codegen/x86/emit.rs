//! Register allocation and the final walk: a [`Func`] and its constants in, bytes out.
//!
//! The frame, from `rsp` (a multiple of 64) upwards: selection's scratch area, spill slots, the caller's `rsp`.

use super::asm::{Assembler, Cond, Label, Mask, Memory, Operand, Pool};
use super::mach::{Arg, Base, Func, MachInst, Opcode, Size, gpr};
use iced_x86::{Mnemonic, Register};
use regalloc2::{
    Allocation, Block, Edit, InstOrEdit, MachineEnv, Output, PReg, PRegSet, RegClass, RegallocOptions,
};

const CALLEE_SAVED: [usize; 6] = [3, 5, 12, 13, 14, 15];
const RSP: usize = 4;

fn env(vectors: usize) -> MachineEnv {
    let set = |class, numbers: &mut dyn Iterator<Item = usize>| -> PRegSet {
        numbers.map(|n| PReg::new(n, class)).collect()
    };
    let free = |n: &usize| *n != RSP && !CALLEE_SAVED.contains(n);
    MachineEnv {
        preferred_regs_by_class: [
            set(RegClass::Int, &mut (0..16).filter(free)),
            set(RegClass::Float, &mut (0..vectors)),
            PRegSet::empty(),
        ],
        non_preferred_regs_by_class: [
            set(RegClass::Int, &mut CALLEE_SAVED.into_iter()),
            PRegSet::empty(),
            PRegSet::empty(),
        ],
        scratch_by_class: [None; 3],
        fixed_stack_slots: vec![],
    }
}

fn register(p: PReg, size: Size) -> Register {
    let base = match size {
        Size::B1 => {
            // iced numbers ah..bh between bl and spl.
            return match p.hw_enc() {
                n @ 0..4 => Register::AL + n as u32,
                n => Register::SPL + (n as u32 - 4),
            };
        }
        Size::B2 => Register::AX,
        Size::B4 => Register::EAX,
        Size::B8 => Register::RAX,
        Size::X => Register::XMM0,
        Size::Y => Register::YMM0,
        Size::Z => Register::ZMM0,
    };
    base + p.hw_enc() as u32
}

fn direct(base: Register, disp: i64, bytes: usize) -> Operand {
    let index = Register::None;
    Operand::Mem(Memory { base, index, scale: 1, disp, bytes: bytes as u16, broadcast: false, pool: None })
}

struct Emitter<'a> {
    f: &'a Func,
    out: &'a Output,
    asm: Assembler,
    /// Bytes of selection's scratch area.
    scratch: usize,
    frame: usize,
    saved: Vec<usize>,
    /// For blocks that are only a jump: where it goes.
    forward: Vec<Option<Block>>,
    label_block: Vec<usize>,
}

/// `vectors` is how many vector registers there are.
pub fn emit(f: &Func, pool: &Pool, scratch: usize, vectors: usize, avx_vnni: bool) -> Vec<u8> {
    let env = env(vectors);
    let options = RegallocOptions { validate_ssa: cfg!(debug_assertions), ..Default::default() };
    let out =
        regalloc2::run(f, &env, &options).unwrap_or_else(|e| panic!("register allocation: {e}\n{f:#?}"));
    if cfg!(debug_assertions) {
        let mut checker = regalloc2::checker::Checker::new(f, &env);
        checker.prepare(&out);
        checker.run().unwrap_or_else(|e| panic!("register allocation is wrong: {e:?}"));
    }
    let mut used = PRegSet::empty();
    let moved = out.edits.iter().flat_map(|(_, Edit::Move { from, to })| [from, to]);
    out.allocs.iter().chain(moved).filter_map(|a| a.as_reg()).for_each(|r| used.add(r));
    let saved = CALLEE_SAVED.into_iter().filter(|n| used.contains(gpr(*n))).collect();
    let frame = match scratch + 8 * out.num_spillslots {
        0 => 0,
        n => (n + 8).next_multiple_of(64),
    };
    let mut label_block = vec![0; f.labels()];
    for (i, b) in f.blocks.iter().enumerate() {
        label_block[b.label.expect("every block has a label").0 as usize] = i;
    }
    let asm = Assembler::new(f.labels(), avx_vnni);
    let mut e = Emitter { f, out: &out, asm, scratch, frame, saved, forward: vec![], label_block };
    e.forward = (0..f.blocks.len()).map(|b| e.only_jump(Block::new(b))).collect();
    (0..f.blocks.len()).for_each(|b| e.block(b));
    e.asm.finish(pool)
}

impl Emitter<'_> {
    fn only_jump(&self, b: Block) -> Option<Block> {
        let mut items = self.out.block_insts_and_edits(self.f, b);
        match (items.next(), items.next()) {
            (Some(InstOrEdit::Inst(i)), None) => match self.f.insts[i.index()].op {
                Opcode::Jump(to) => Some(Block::new(self.label_block[to.0 as usize])),
                _ => None,
            },
            _ => None,
        }
    }

    /// The first block with code on the way from `l`.
    fn target(&self, l: Label) -> usize {
        let mut b = self.label_block[l.0 as usize];
        while let Some(next) = self.forward[b] {
            b = next.index();
        }
        b
    }

    fn block(&mut self, b: usize) {
        if self.forward[b].is_some() {
            return;
        }
        if self.f.blocks[b].loop_head {
            self.asm.align(32);
        }
        self.asm.bind(self.label_of(b));
        let out = self.out;
        for item in out.block_insts_and_edits(self.f, Block::new(b)) {
            match item {
                InstOrEdit::Edit(Edit::Move { from, to }) => self.copy(*from, *to),
                InstOrEdit::Inst(i) => {
                    let allocs = out.inst_allocs(i);
                    self.inst(b, &self.f.insts[i.index()], allocs);
                }
            }
        }
    }

    fn label_of(&self, b: usize) -> Label {
        self.f.blocks[b].label.expect("every block has a label")
    }

    fn goes_to(&mut self, from: usize, to: usize) {
        let next = (from + 1..self.f.blocks.len()).find(|b| self.forward[*b].is_none());
        if next != Some(to) {
            let l = self.label_of(to);
            self.asm.jump(None, l);
        }
    }

    fn inst(&mut self, b: usize, i: &MachInst, allocs: &[Allocation]) {
        match i.op {
            Opcode::Entry => self.prologue(),
            Opcode::Return => self.epilogue(),
            Opcode::Jump(to) => self.goes_to(b, self.target(to)),
            Opcode::Branch(cond, then, or) => {
                let (then, or) = (self.target(then), self.target(or));
                let next = (b + 1..self.f.blocks.len()).find(|b| self.forward[*b].is_none());
                if next == Some(then) {
                    let l = self.label_of(or);
                    self.asm.jump(Some((cond, true)), l);
                } else {
                    let l = self.label_of(then);
                    self.asm.jump(Some((cond, false)), l);
                    self.goes_to(b, or);
                }
            }
            Opcode::Op(m) | Opcode::Unless0(m) => {
                let mut regs = allocs.iter().map(|a| a.as_reg().expect("operands are in registers"));
                let mut next = || regs.next().expect("one allocation an operand");
                let first = allocs.first().and_then(|a| a.as_reg());
                let mut ops: Vec<Operand> = i
                    .args
                    .iter()
                    .map(|a| match *a {
                        Arg::Use(_, s) | Arg::Def(_, s) | Arg::Tied(_, _, s) => {
                            Operand::Reg(register(next(), s))
                        }
                        Arg::Same(s) => Operand::Reg(register(first.expect("a first operand"), s)),
                        Arg::K(n) => Operand::Reg(Register::K0 + n as u32),
                        Arg::Tile(n) => Operand::Reg(Register::TMM0 + n as u32),
                        Arg::Imm(v) => Operand::Imm(v),
                        Arg::Mem(m) => {
                            let (base, pool) = match m.base {
                                Base::Reg(_) => (register(next(), Size::B8), None),
                                Base::Frame => (Register::RSP, None),
                                Base::Pool(at) => (Register::RIP, Some(at)),
                            };
                            let (index, scale) = match m.index {
                                Some((_, scale)) => (register(next(), m.vsib.unwrap_or(Size::B8)), scale),
                                None => (Register::None, 1),
                            };
                            let (disp, bytes) = (m.disp as i64, m.bytes);
                            Operand::Mem(Memory {
                                base,
                                index,
                                scale,
                                disp,
                                bytes,
                                broadcast: m.broadcast,
                                pool,
                            })
                        }
                    })
                    .collect();
                let mask = i.mask.map(|(k, zeroing)| Mask { k: Register::K0 + k as u32, zeroing });
                let skip = matches!(i.op, Opcode::Unless0(_)).then(|| {
                    let gate = ops.pop().expect("a last argument");
                    self.asm.emit(Mnemonic::Test, &[gate, gate], None);
                    self.asm.jump_ahead(Cond::Equal)
                });
                self.asm.emit(m, &ops, mask);
                skip.into_iter().for_each(|l| self.asm.bind(l));
            }
        }
    }

    fn prologue(&mut self) {
        for &n in &self.saved {
            self.asm.emit(Mnemonic::Push, &[Operand::Reg(register(gpr(n), Size::B8))], None);
        }
        if self.frame > 0 {
            let (rax, rsp) = (Operand::Reg(Register::RAX), Operand::Reg(Register::RSP));
            self.asm.emit(Mnemonic::Mov, &[rax, rsp], None);
            self.asm.emit(Mnemonic::Sub, &[rsp, Operand::Imm(self.frame as i64)], None);
            self.asm.emit(Mnemonic::And, &[rsp, Operand::Imm(-64)], None);
            self.asm.emit(Mnemonic::Mov, &[direct(Register::RSP, self.frame as i64 - 8, 8), rax], None);
        }
    }

    fn epilogue(&mut self) {
        if self.f.widest > 0 {
            self.asm.emit(Mnemonic::Vzeroupper, &[], None);
        }
        if self.frame > 0 {
            let home = direct(Register::RSP, self.frame as i64 - 8, 8);
            self.asm.emit(Mnemonic::Mov, &[Operand::Reg(Register::RSP), home], None);
        }
        for &n in self.saved.iter().rev() {
            self.asm.emit(Mnemonic::Pop, &[Operand::Reg(register(gpr(n), Size::B8))], None);
        }
        self.asm.emit(Mnemonic::Ret, &[], None);
    }

    /// Moves the allocator asks for; flags stay as they are.
    fn copy(&mut self, from: Allocation, to: Allocation) {
        let class = from.as_reg().or(to.as_reg()).expect("no move from stack to stack").class();
        let (mnemonic, size) = match class {
            RegClass::Int => (Mnemonic::Mov, Size::B8),
            _ => (Mnemonic::Vmovaps, Size::vector(self.f.widest)),
        };
        let place = |a: Allocation| match a.as_reg() {
            Some(r) => Operand::Reg(register(r, size)),
            None => {
                let slot = a.as_stack().expect("a register or a slot").index();
                direct(Register::RSP, (self.scratch + 8 * slot) as i64, size.bytes())
            }
        };
        self.asm.emit(mnemonic, &[place(to), place(from)], None);
    }
}
