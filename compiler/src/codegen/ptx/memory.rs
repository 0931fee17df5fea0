//! Loads, stores, gathers and prefetches: element indices in, vectorised memory instructions out.
//!
//! Invariant: an access of n bytes is emitted only where the address is provably a multiple of n. What the facts about
//! the index do not prove aligned is read in smaller parts, down to elements.

use super::asm::{Address, Piece};
use super::{Emitter, Fact, pieces};
use crate::dtype::{DType, Scalar};
use crate::linear::{Mem, Reg};

/// Offsets up to here, and some vectors on, fit the 32 bits that an address operand has for them.
const LARGEST_OFFSET: u64 = 1 << 30;

/// Cuts `bytes` bytes from an address aligned to `align` into accesses of at most 16: (position, size).
fn cut(bytes: usize, align: usize) -> Vec<(usize, usize)> {
    let mut at = 0;
    let mut parts = vec![];
    while at < bytes {
        let size = 1 << (bytes - at).min(align).min(16).ilog2();
        parts.push((at, size));
        at += size;
    }
    parts
}

/// Type suffix that reads one element into a register as scalars are kept.
fn element(s: Scalar) -> &'static str {
    match s {
        Scalar::Bool | Scalar::U8 => "u8",
        Scalar::I8 => "s8",
        Scalar::I16 => "s16",
        Scalar::U16 | Scalar::F16 | Scalar::BF16 => "u16",
        Scalar::I32 | Scalar::U32 | Scalar::F32 => "b32",
        Scalar::I64 => "b64",
    }
}

impl Emitter<'_> {
    fn base(&self, mem: Mem) -> Piece {
        match mem {
            Mem::Global(n) => self.globals[n as usize],
            Mem::Local(n) => self.locals[n as usize],
        }
    }

    /// Address of the element `index + offset`, `unit` bytes each.
    fn address(&mut self, mem: Mem, index: Reg, offset: i64, unit: usize) -> Address {
        let i = self.scalar(index);
        let base = self.base(mem);
        let bytes = |elements: i64| elements.wrapping_mul(unit as i64);
        let at = match i {
            Piece::Imm(v) => Address { base, offset: bytes((v as i64).wrapping_add(offset)) },
            _ => Address { base: self.scaled(mem, index, i, base, unit), offset: bytes(offset) },
        };
        if at.offset.unsigned_abs() < LARGEST_OFFSET {
            return at;
        }
        let wide = matches!(at.base, Piece::D(_));
        let add = if wide { "add.s64" } else { "add.s32" };
        Address { base: self.asm.rd(wide, add, &[at.base, Piece::int(at.offset)]), offset: 0 }
    }

    fn scaled(&mut self, mem: Mem, index: Reg, i: Piece, base: Piece, unit: usize) -> Piece {
        let key = (mem, index, unit);
        if let Some((_, found)) = self.addresses.iter().find(|(k, _)| *k == key) {
            return *found;
        }
        let at = self.element_address(i, base, unit);
        self.addresses.push((key, at));
        at
    }

    /// `base + i · unit`, in 64 bits for a global base and 32 for a local one.
    fn element_address(&mut self, i: Piece, base: Piece, unit: usize) -> Piece {
        let size = Piece::int(unit as i64);
        match (base, i) {
            (Piece::D(_), Piece::D(_)) if unit == 1 => self.asm.d("add.s64", &[i, base]),
            (Piece::D(_), Piece::D(_)) => {
                let bytes = self.asm.d("shl.b64", &[i, Piece::int(unit.ilog2() as i64)]);
                self.asm.d("add.s64", &[bytes, base])
            }
            (Piece::D(_), _) => {
                let i = self.asm.reg(i);
                self.asm.d("mad.wide.s32", &[i, size, base])
            }
            _ => {
                let i = self.asm.low(i);
                self.asm.r("mad.lo.s32", &[i, size, base])
            }
        }
    }

    fn alignment(&self, index: Reg, offset: i64, unit: usize) -> usize {
        alignment(self.fact(index), offset, unit)
    }

    fn load_op(&self, mem: Mem) -> &'static str {
        match mem {
            Mem::Global(n) if self.program.buffers[n as usize].1 => "ld.global",
            Mem::Global(_) if self.early => "ld.global",
            Mem::Global(_) => "ld.global.nc",
            Mem::Local(_) => "ld.shared",
        }
    }
    /// The predicate of lane `l`; a scalar gate covers all lanes.
    pub(super) fn gate(&mut self, gate: Option<Reg>, l: usize) -> Option<Piece> {
        let all = &self.values[gate?.0 as usize];
        let p = *all.get(l).unwrap_or(&all[0]);
        Some(self.asm.pred(p))
    }
    fn by_lane(&self, t: DType, gate: Option<Reg>) -> bool {
        t.lanes == 1 || gate.is_some_and(|g| self.dtype(g).lanes > 1)
    }

    pub(super) fn load(&mut self, dst: Reg, mem: Mem, index: Reg, offset: i64, gate: Option<Reg>) {
        let t = self.dtype(dst);
        let raw = memory_type(t);
        let unit = t.scalar.bytes();
        let at = self.address(mem, index, offset, unit);
        if self.copied_from(dst, at) {
            return;
        }
        let op = self.load_op(mem);
        let words = if self.by_lane(t, gate) {
            let mut lanes = vec![];
            for l in 0..t.lanes as usize {
                let gate = self.gate(gate, l);
                lanes.push(self.load_element(op, raw.scalar, at.plus(l * unit), gate));
            }
            self.pack(&lanes, raw)
        } else {
            let align = self.alignment(index, offset, unit);
            let gate = self.gate(gate, 0);
            self.load_vector(op, raw, at, align, gate)
        };
        let value = self.cast(raw, t, &words);
        self.set(dst, value);
    }

    fn load_element(&mut self, op: &str, s: Scalar, at: Address, gate: Option<Piece>) -> Piece {
        let dst = self.destination(s, gate);
        self.asm.load(gate, &format!("{op}.{}", element(s)), &[dst], at);
        dst
    }

    fn load_vector(
        &mut self,
        op: &str,
        t: DType,
        at: Address,
        align: usize,
        gate: Option<Piece>,
    ) -> Vec<Piece> {
        let register = register_bytes(t.scalar);
        let mut parts = vec![];
        for (pos, size) in cut(t.bytes(), align) {
            let dst: Vec<_> =
                (0..size.div_ceil(register)).map(|_| self.destination(t.scalar, gate)).collect();
            self.asm.load(gate, &format!("{op}.{}", access(size, register)), &dst, at.plus(pos));
            parts.extend(dst.into_iter().enumerate().map(|(i, p)| (pos + i * register, p)));
        }
        if parts.len() == pieces(t) {
            return parts.into_iter().map(|p| p.1).collect();
        }
        // The part that byte `b` lies in is the last that does not start after it.
        let byte = |b: usize| parts.iter().rev().find(|p| p.0 <= b && b < t.bytes()).map(|p| (p.1, b - p.0));
        let words: Vec<_> = (0..pieces(t)).map(|w| [0, 1, 2, 3].map(|i| byte(4 * w + i))).collect();
        words.into_iter().map(|w| self.permute(w)).collect()
    }

    /// A register to load into; 0 where a gated load does not happen.
    fn destination(&mut self, s: Scalar, gate: Option<Piece>) -> Piece {
        let dst = if s == Scalar::I64 { self.asm.fresh_d() } else { self.asm.fresh_r() };
        if gate.is_some() {
            self.asm.copy(dst, Piece::Imm(0));
        }
        dst
    }

    pub(super) fn gather(&mut self, dst: Reg, mem: Mem, index: Reg, gate: Option<Reg>) {
        let t = self.dtype(dst);
        let raw = memory_type(t);
        let op = self.load_op(mem);
        let base = self.base(mem);
        let mut lanes = vec![];
        for (l, i) in self.value(index).into_iter().enumerate() {
            let gate = self.gate(gate, l);
            let at = Address { base: self.element_address(i, base, t.scalar.bytes()), offset: 0 };
            lanes.push(self.load_element(op, raw.scalar, at, gate));
        }
        let words = self.pack(&lanes, raw);
        let value = self.cast(raw, t, &words);
        self.set(dst, value);
    }

    pub(super) fn store(&mut self, mem: Mem, index: Reg, offset: i64, value: Reg, gate: Option<Reg>) {
        let t = self.dtype(value);
        let raw = memory_type(t);
        let unit = t.scalar.bytes();
        let at = self.address(mem, index, offset, unit);
        if self.copied_to(mem, at, value, gate) {
            return;
        }
        let op = match mem {
            Mem::Global(_) => "st.global",
            Mem::Local(_) => "st.shared",
        };
        let value = self.value(value);
        let words = self.cast(t, raw, &value);
        if self.by_lane(t, gate) {
            for (l, lane) in self.unpack(&words, raw).into_iter().enumerate() {
                let gate = self.gate(gate, l);
                self.store_part(op, raw.scalar, at.plus(l * unit), unit, &[lane], gate);
            }
            return;
        }
        let gate = self.gate(gate, 0);
        let register = register_bytes(t.scalar);
        for (pos, size) in cut(t.bytes(), self.alignment(index, offset, unit)) {
            let first = pos / register;
            let mut src = words[first..first + size.div_ceil(register)].to_vec();
            if pos % register != 0 {
                src = vec![self.asm.r("shr.u32", &[src[0], Piece::int(8 * (pos % register) as i64)])];
            }
            self.store_part(op, raw.scalar, at.plus(pos), size, &src, gate);
        }
    }

    fn store_part(
        &mut self,
        op: &str,
        s: Scalar,
        at: Address,
        size: usize,
        src: &[Piece],
        gate: Option<Piece>,
    ) {
        let wide = s == Scalar::I64;
        let held = |p: &Piece| if wide { self.asm.wide_reg(*p) } else { self.asm.reg(*p) };
        let src: Vec<_> = src.iter().map(held).collect();
        self.asm.store(gate, &format!("{op}.{}", access(size, register_bytes(s))), at, &src);
    }

    pub(super) fn prefetch(&mut self, mem: Mem, index: Reg, offset: i64, gate: Option<Reg>) {
        // Shared memory has no cache to fill.
        if let Mem::Global(_) = mem {
            let at = self.address(mem, index, offset, 1);
            self.asm.prefetch(gate.map(|g| self.scalar(g)), at);
        }
    }
}

/// Bytes that the element `index + offset` is known to be aligned to, at most 16.
pub(super) fn alignment(index: Fact, offset: i64, unit: usize) -> usize {
    let zeros = index.zeros.min(offset.trailing_zeros());
    unit << zeros.min((16 / unit).ilog2())
}

/// How a type lies in memory: a bool as a byte.
fn memory_type(t: DType) -> DType {
    if t.scalar == Scalar::Bool { Scalar::U8.vec(t.lanes) } else { t }
}

fn register_bytes(s: Scalar) -> usize {
    if s == Scalar::I64 { 8 } else { 4 }
}

/// Type suffix of an access of `size` bytes through registers of `register` bytes.
fn access(size: usize, register: usize) -> &'static str {
    match (size, register) {
        (16, 8) => "v2.b64",
        (8, 8) => "b64",
        (16, _) => "v4.b32",
        (8, _) => "v2.b32",
        (4, _) => "b32",
        (2, _) => "u16",
        _ => "u8",
    }
}
