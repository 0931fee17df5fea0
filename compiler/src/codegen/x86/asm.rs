//! A table-driven assembler: a mnemonic and physical operands in, bytes out.
//!
//! The encoding is picked by matching the operands against iced's opcode table; among those that fit, VEX comes before
//! EVEX and short immediates before long ones. Constants live in a [`Pool`] behind the code, reached relative to `rip`;
//! every entry is aligned to its own size.

use iced_x86::{
    Code, Encoder, EncodingKind, Instruction, MemorySize, Mnemonic, OpCodeOperandKind as Kind, OpKind,
    Register,
};
use std::collections::HashMap;
use std::sync::OnceLock;

#[derive(Clone, Copy, Debug)]
pub enum Operand {
    Reg(Register),
    Mem(Memory),
    Imm(i64),
}

#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub base: Register,
    pub index: Register,
    pub scale: u8,
    pub disp: i64,
    /// Bytes accessed; 0 when the address is only computed.
    pub bytes: u16,
    /// One element, repeated to all lanes (EVEX).
    pub broadcast: bool,
    /// The address is this pool entry plus `disp`.
    pub pool: Option<u32>,
}

/// An opmask register and whether unselected lanes become 0.
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    pub k: Register,
    pub zeroing: bool,
}

#[derive(Default)]
pub struct Pool {
    entries: HashMap<Vec<u8>, u32>,
    bytes: Vec<u8>,
}

impl Pool {
    /// Offset of these bytes in the pool.
    pub fn add(&mut self, data: &[u8]) -> u32 {
        if let Some(&at) = self.entries.get(data) {
            return at;
        }
        let at = self.bytes.len().next_multiple_of(data.len().next_power_of_two().min(64));
        self.bytes.resize(at, 0);
        self.bytes.extend_from_slice(data);
        self.entries.insert(data.to_vec(), at as u32);
        at as u32
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Label(pub u32);

struct Form {
    code: Code,
    kinds: Vec<Kind>,
    evex: bool,
    bytes: usize,
    broadcast_bytes: usize,
}

/// All 64-bit encodings of a mnemonic, best first.
fn forms(m: Mnemonic) -> &'static [Form] {
    static FORMS: OnceLock<Vec<Vec<Form>>> = OnceLock::new();
    let all = FORMS.get_or_init(|| {
        let mut all: Vec<Vec<Form>> = Vec::new();
        all.resize_with(Mnemonic::values().len(), Vec::new);
        for code in Code::values() {
            let info = code.op_code();
            let evex = info.encoding() == EncodingKind::EVEX;
            let known = evex || matches!(info.encoding(), EncodingKind::Legacy | EncodingKind::VEX);
            if !known || !info.is_available_in_mode(64) || !info.is_instruction() {
                continue;
            }
            let size = |s: MemorySize| s.size();
            all[code.mnemonic() as usize].push(Form {
                code,
                kinds: info.op_kinds().to_vec(),
                evex,
                bytes: size(info.memory_size()),
                broadcast_bytes: size(info.broadcast_memory_size()),
            });
        }
        let long = |k: &Kind| matches!(k, Kind::imm16 | Kind::imm32 | Kind::imm32sex64 | Kind::imm64);
        for forms in &mut all {
            forms.sort_by_key(|f| (f.evex, f.kinds.iter().any(long), f.kinds.contains(&Kind::imm64)));
        }
        all
    });
    &all[m as usize]
}

fn is_wide_only(r: Register) -> bool {
    r.is_zmm() || (r.is_vector_register() && r.number() >= 16)
}

fn accepts(form: &Form, kind: Kind, op: &Operand) -> bool {
    use Kind::*;
    match op {
        Operand::Reg(r) if r.is_gpr8() => matches!(kind, r8_or_mem | r8_reg | r8_opcode),
        Operand::Reg(r) if r.is_gpr16() => matches!(kind, r16_or_mem | r16_reg | r16_rm | r16_opcode),
        Operand::Reg(r) if r.is_gpr32() => {
            matches!(kind, r32_or_mem | r32_reg | r32_rm | r32_opcode | r32_vvvv)
        }
        Operand::Reg(r) if r.is_gpr64() => {
            matches!(kind, r64_or_mem | r64_reg | r64_rm | r64_opcode | r64_vvvv)
        }
        Operand::Reg(r) if r.is_k() => matches!(kind, k_or_mem | k_reg | k_rm | k_vvvv),
        Operand::Reg(r) if r.is_tmm() => matches!(kind, tmm_reg | tmm_rm | tmm_vvvv),
        Operand::Reg(r) if is_wide_only(*r) && !form.evex => false,
        Operand::Reg(r) if r.is_xmm() => matches!(kind, xmm_or_mem | xmm_reg | xmm_rm | xmm_vvvv | xmm_is4),
        Operand::Reg(r) if r.is_ymm() => matches!(kind, ymm_or_mem | ymm_reg | ymm_rm | ymm_vvvv | ymm_is4),
        Operand::Reg(r) if r.is_zmm() => matches!(kind, zmm_or_mem | zmm_reg | zmm_rm | zmm_vvvv),
        Operand::Reg(_) => false,
        Operand::Mem(m) => match kind {
            mem_vsib32x => m.index.is_xmm(),
            mem_vsib32y => m.index.is_ymm(),
            mem_vsib32z => m.index.is_zmm(),
            mem | sibmem | r8_or_mem | r16_or_mem | r32_or_mem | r64_or_mem | xmm_or_mem | ymm_or_mem
            | zmm_or_mem | k_or_mem => match m.broadcast {
                true => form.evex && form.broadcast_bytes == m.bytes as usize,
                false => m.bytes == 0 || form.bytes == m.bytes as usize,
            },
            _ => false,
        },
        Operand::Imm(v) => match kind {
            imm8 => (-128..256).contains(v),
            imm8sex16 | imm8sex32 | imm8sex64 => i8::try_from(*v).is_ok(),
            imm32 => i32::try_from(*v).is_ok() || u32::try_from(*v).is_ok(),
            imm32sex64 => i32::try_from(*v).is_ok(),
            imm64 => true,
            _ => false,
        },
    }
}

fn immediate(kind: Kind) -> OpKind {
    match kind {
        Kind::imm8 => OpKind::Immediate8,
        Kind::imm8sex16 => OpKind::Immediate8to16,
        Kind::imm8sex32 => OpKind::Immediate8to32,
        Kind::imm8sex64 => OpKind::Immediate8to64,
        Kind::imm32 => OpKind::Immediate32,
        Kind::imm32sex64 => OpKind::Immediate32to64,
        _ => OpKind::Immediate64,
    }
}

/// Condition codes, numbered as in `jcc`, `setcc` and `cmovcc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cond {
    AboveEqual = 3,
    Equal = 4,
    NotEqual = 5,
    Less = 12,
    LessEqual = 14,
    Greater = 15,
}

impl Cond {
    pub fn set(self) -> Mnemonic {
        use Mnemonic::*;
        match self {
            Cond::AboveEqual => Setae,
            Cond::Equal => Sete,
            Cond::NotEqual => Setne,
            Cond::Less => Setl,
            Cond::LessEqual => Setle,
            Cond::Greater => Setg,
        }
    }
    pub fn cmov(self) -> Mnemonic {
        use Mnemonic::*;
        match self {
            Cond::AboveEqual => Cmovae,
            Cond::Equal => Cmove,
            Cond::NotEqual => Cmovne,
            Cond::Less => Cmovl,
            Cond::LessEqual => Cmovle,
            Cond::Greater => Cmovg,
        }
    }
}

pub struct Assembler {
    encoder: Encoder,
    /// Bytes written so far.
    len: usize,
    labels: Vec<Option<usize>>,
    /// Where a 32-bit distance to a label stands.
    jumps: Vec<(usize, Label)>,
    /// Where a 32-bit distance to a pool entry stands, the end of that instruction, and the entry's offset.
    constants: Vec<(usize, usize, i64)>,
    /// Without AVX-VNNI the dot product has only its EVEX encoding.
    avx_vnni: bool,
}

impl Assembler {
    pub fn new(labels: usize, avx_vnni: bool) -> Assembler {
        Assembler {
            encoder: Encoder::new(64),
            len: 0,
            labels: vec![None; labels],
            jumps: Vec::new(),
            constants: Vec::new(),
            avx_vnni,
        }
    }

    pub fn bind(&mut self, l: Label) {
        self.labels[l.0 as usize] = Some(self.len);
    }

    pub fn emit(&mut self, m: Mnemonic, ops: &[Operand], mask: Option<Mask>) {
        let evex = mask.is_some()
            || ops.iter().any(|o| matches!(o, Operand::Mem(m) if m.broadcast))
            || (m == Mnemonic::Vpdpbusd && !self.avx_vnni);
        let form = forms(m)
            .iter()
            .find(|f| {
                f.kinds.len() == ops.len()
                    && (f.evex || !evex)
                    && f.kinds.iter().zip(ops).all(|(k, o)| accepts(f, *k, o))
            })
            .unwrap_or_else(|| panic!("no encoding of {m:?} {ops:?} {mask:?}"));
        let mut i = Instruction::new();
        i.set_code(form.code);
        if let Some(mask) = mask {
            i.set_op_mask(mask.k);
            i.set_zeroing_masking(mask.zeroing);
        }
        let mut pool = None;
        for (n, (op, kind)) in (0..).zip(ops.iter().zip(&form.kinds)) {
            match op {
                Operand::Reg(r) => {
                    i.set_op_kind(n, OpKind::Register);
                    i.set_op_register(n, *r);
                }
                Operand::Mem(m) => {
                    i.set_op_kind(n, OpKind::Memory);
                    i.set_is_broadcast(m.broadcast);
                    if let Some(entry) = m.pool {
                        pool = Some(entry as i64 + m.disp);
                        i.set_memory_base(Register::RIP);
                        i.set_memory_displ_size(8);
                    } else {
                        i.set_memory_base(m.base);
                        i.set_memory_index(m.index);
                        i.set_memory_index_scale(m.scale as u32);
                        i.set_memory_displacement64(m.disp as u64);
                        i.set_memory_displ_size((m.disp != 0) as u32);
                    }
                }
                Operand::Imm(v) => {
                    i.set_op_kind(n, immediate(*kind));
                    i.set_immediate_i64(n, *v);
                }
            }
        }
        let n = self.encoder.encode(&i, self.len as u64).unwrap_or_else(|e| panic!("{m:?} {ops:?}: {e}"));
        if let Some(entry) = pool {
            let field = self.len + self.encoder.get_constant_offsets().displacement_offset();
            self.constants.push((field, self.len + n, entry));
        }
        self.len += n;
    }

    fn raw(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.encoder.write_u8(*b));
        self.len += bytes.len();
    }

    /// Jumps to `to`, always or when `cond` (inverted if `unless`) holds.
    pub fn jump(&mut self, cond: Option<(Cond, bool)>, to: Label) {
        let nibble = cond.map(|(c, unless)| c as u8 ^ unless as u8);
        if let Some(at) = self.labels[to.0 as usize]
            && let Ok(near) = i8::try_from(at as i64 - (self.len as i64 + 2))
        {
            return self.raw(&[nibble.map_or(0xeb, |n| 0x70 | n), near as u8]);
        }
        match nibble {
            Some(n) => self.raw(&[0x0f, 0x80 | n]),
            None => self.raw(&[0xe9]),
        }
        self.jumps.push((self.len, to));
        self.raw(&[0; 4]);
    }

    /// Jumps when `cond` holds to where the label that it gives will be bound.
    pub fn jump_ahead(&mut self, cond: Cond) -> Label {
        let to = Label(self.labels.len() as u32);
        self.labels.push(None);
        self.jump(Some((cond, false)), to);
        to
    }

    /// Fills up with long no-ops to a multiple of `to` bytes.
    pub fn align(&mut self, to: usize) {
        const NOPS: [&[u8]; 9] = [
            &[0x90],
            &[0x66, 0x90],
            &[0x0f, 0x1f, 0x00],
            &[0x0f, 0x1f, 0x40, 0x00],
            &[0x0f, 0x1f, 0x44, 0x00, 0x00],
            &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
            &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
            &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
            &[0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
        ];
        let mut gap = self.len.next_multiple_of(to) - self.len;
        while gap > 0 {
            let n = gap.min(9);
            self.raw(NOPS[n - 1]);
            gap -= n;
        }
    }

    /// Code, then the pool from the next multiple of 64 on, then the code's length as four bytes.
    pub fn finish(mut self, pool: &Pool) -> Vec<u8> {
        let mut out = self.encoder.take_buffer();
        let code_len = out.len();
        if !pool.bytes.is_empty() {
            out.resize(code_len.next_multiple_of(64), 0xcc);
        }
        let pool_at = out.len() as i64;
        out.extend_from_slice(&pool.bytes);
        let mut patch = |at: usize, v: i64| {
            let v = i32::try_from(v).expect("code beyond 2 GiB");
            out[at..at + 4].copy_from_slice(&v.to_le_bytes());
        };
        for (at, to) in self.jumps {
            let target = self.labels[to.0 as usize].expect("every label is bound");
            patch(at, target as i64 - (at as i64 + 4));
        }
        for (at, end, entry) in self.constants {
            patch(at, pool_at + entry - end as i64);
        }
        out.extend_from_slice(&(code_len as u32).to_le_bytes());
        out
    }
}
