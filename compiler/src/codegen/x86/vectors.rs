//! Arithmetic on vectors, and the dispatch over all operations.

use super::lower::{Cached, Lower, lane_mask, splat};
use super::mach::{Address, Arg, Size};
use crate::dtype::{Bits, DType, Scalar};
use crate::linear::{Op, Reg};
use crate::scalar::{Binary, Unary};
use iced_x86::Mnemonic as M;
use regalloc2::VReg;

/// Picks by element size: 1, 2, 4 or 8 bytes.
fn by_size(s: Scalar, of: [M; 4]) -> M {
    of[s.bytes().ilog2() as usize]
}

impl Lower<'_> {
    /// `at` is the instruction's place in the program.
    pub fn operation(&mut self, at: usize, dst: Reg, op: Op, args: &[Reg]) -> VReg {
        let t = self.p.dtype(dst);
        if let Some(first) = self.plan.joined[at] {
            let a = self.address(&self.p.code[first], t.bytes());
            return self.load_scalar(t.scalar, a);
        }
        match op {
            Op::Unary(u) if t.scalar == Scalar::Bool && t.lanes > 1 => {
                debug_assert_eq!(u, Unary::Not);
                let x = self.reg(args[0]);
                self.mask_binary(Binary::Xor, x, Arg::Imm(lane_mask(t.lanes)), t.lanes)
            }
            Op::Unary(u @ (Unary::Exp2 | Unary::Log2 | Unary::Sin)) => {
                panic!("{u:?} is no x86 instruction and must be expanded before")
            }
            Op::Unary(u) => {
                let x = self.reg(args[0]);
                match t.lanes {
                    1 => self.scalar_unary(u, t.scalar, x),
                    _ => self.vector_unary(u, t.scalar, Size::vector(t.bytes()), x),
                }
            }
            Op::Binary(b) => self.binary(at, b, dst, args),
            Op::Fma => self.fma(at, t, args),
            Op::Where => self.select(t, args),
            Op::Cast => self.cast(at, t, args[0]),
            Op::Bitcast => self.bitcast(t, args[0]),
            Op::Spread => self.spread(at, t, args[0]),
            Op::Repeat => self.repeat(at, t, args[0]),
            Op::Extract(lane) => self.extract(self.p.dtype(args[0]), args[0], lane as usize),
            Op::Slice(first) => self.slice(t, args[0], first as usize),
            Op::Stack => self.stack(t, args),
            Op::Fold(f) => self.folds(f, t, args),
            Op::Dot4 => self.dot4(at, t, args),
            Op::Lookup(table) => self.lookup(t, table, args[0]),
            Op::Pairs => self.pairs(args),
            Op::Iota => {
                let lanes: Vec<u8> = (0..t.lanes as i32).flat_map(i32::to_le_bytes).collect();
                if t.lanes == 1 {
                    return self.imm(0);
                }
                let a = self.constant_at(&lanes);
                self.load_vector(lanes.len(), a)
            }
            Op::Const(_) | Op::Symbol(_) | Op::Grid | Op::Thread => {
                unreachable!("{op:?} is set where the program starts or made where it is read")
            }
        }
    }

    /// Both arguments for an instruction whose last operand may be memory or a constant; its embedded broadcast (if
    /// any) has `element` bytes.
    pub fn operands(
        &mut self,
        args: &[Reg],
        t: DType,
        element: usize,
        commutes: bool,
        memory: Option<(usize, Address)>,
    ) -> (VReg, Arg) {
        let size = Size::vector(t.bytes());
        if let Some((arg, a)) = memory {
            return (self.reg(args[1 - arg]), Arg::Mem(a));
        }
        let swap = commutes && self.plan.constant(args[0]).is_some();
        let (a, b) = if swap { (args[1], args[0]) } else { (args[0], args[1]) };
        let a = self.reg(a);
        let b = match self.plan.constant(b) {
            Some(c) if t.lanes > 1 => self.vector_arg(splat(t.scalar, c), size, element),
            Some(c) if t == DType::F32 && c.0 != 0 => Arg::Mem(self.constant_at(&(c.0 as u32).to_le_bytes())),
            _ => Arg::Use(self.reg(b), size),
        };
        (a, b)
    }

    /// A last operand where a register is needed.
    pub fn in_register(&mut self, a: Arg, size: Size) -> VReg {
        match a {
            Arg::Use(r, _) => r,
            Arg::Mem(m) if m.broadcast && m.bytes == 4 => {
                self.vec_def(M::Vpbroadcastd, size, &[unbroadcast(m)])
            }
            Arg::Mem(m) if m.broadcast => self.vec_def(M::Vpbroadcastq, size, &[unbroadcast(m)]),
            a => self.vec_def(M::Vmovups, size, &[a]),
        }
    }

    /// An argument for an instruction that reads registers only.
    fn last(&mut self, r: Reg, t: DType) -> Arg {
        Arg::Use(self.reg(r), Size::vector(t.bytes()))
    }

    fn binary(&mut self, at: usize, op: Binary, dst: Reg, args: &[Reg]) -> VReg {
        let t = self.p.dtype(args[0]);
        let memory = self.folded_address(at);
        if t.lanes == 1 {
            return self.scalar_binary(op, dst, args, memory);
        }
        if t.scalar == Scalar::Bool {
            let a = self.reg(args[0]);
            let b = Arg::Use(self.reg(args[1]), Size::B8);
            return self.mask_binary(op, a, b, t.lanes);
        }
        if op.is_compare() {
            let (a, b) = self.operands(args, t, t.scalar.bytes(), false, None);
            return self.compare(op, t.scalar, t.lanes, a, b);
        }
        let size = Size::vector(t.bytes());
        if matches!(op, Binary::Shl | Binary::Shr) {
            let a = self.reg(args[0]);
            if let Some(by) = self.plan.constant(args[1]) {
                return self.shift_constant(op, t.scalar, size, a, by.0 as u32 & (t.scalar.bits() - 1));
            }
            return match self.plan.uniform_count(op, args) {
                Some(by) => self.shift_uniform(op, t, a, by),
                None => self.shift_variable(op, t, a, args[1]),
            };
        }
        if op == Binary::And && self.is_absorbed(args[0]) {
            let (x, keep) = self.field(t, args);
            let keep = self.vector_arg(keep, size, 4);
            return self.vec_def(self.bitwise(Binary::And), size, &[Arg::Use(x, size), keep]);
        }
        if op == Binary::Or
            && let Some(i) = (0..2).find(|&i| self.is_absorbed(args[i]))
            && let Some((_, and)) = self.plan.op_of(args[i])
        {
            const A_AND_C_OR_B: Arg = Arg::Imm(0xec);
            let ((x, keep), y) = (self.field(t, and), self.reg(args[1 - i]));
            let (keep, d) = (self.vector_arg(keep, size, 4), self.vec());
            self.op(M::Vpternlogd, &[Arg::Tied(d, x, size), Arg::Use(y, size), keep, A_AND_C_OR_B]);
            return d;
        }
        if matches!(op, Binary::Div | Binary::Mod) && t.scalar != Scalar::F32 {
            let (a, b) = (self.reg(args[0]), self.reg(args[1]));
            return self.per_lane(t, &[(a, t), (b, t)], |l, x| {
                let d = l.divide_registers(op, x[0], x[1], false);
                l.wrap(t.scalar, d)
            });
        }
        // Bitwise instructions come with 4-byte elements.
        let element = if matches!(op, Binary::And | Binary::Or | Binary::Xor) { 4 } else { t.scalar.bytes() };
        let (a, b) = self.operands(args, t, element, op.commutes(), memory);
        self.vector_binary(op, t, a, b)
    }

    /// Bitwise operations and comparisons of bool vectors.
    fn mask_binary(&mut self, op: Binary, a: VReg, b: Arg, lanes: u16) -> VReg {
        let m = match op {
            Binary::And => M::And,
            Binary::Or => M::Or,
            _ => M::Xor,
        };
        let b = match b {
            Arg::Imm(v) if i32::try_from(v).is_err() => Arg::Use(self.imm(v), Size::B8),
            b => b,
        };
        let d = self.int_tied(m, Size::B8, a, b);
        match op {
            Binary::Eq => self.mask_binary(Binary::Xor, d, Arg::Imm(lane_mask(lanes)), lanes),
            _ => d,
        }
    }

    pub fn vector_unary(&mut self, op: Unary, s: Scalar, size: Size, x: VReg) -> VReg {
        let x = Arg::Use(x, size);
        let rounding = match op {
            Unary::Neg if s == Scalar::F32 => {
                let sign = self.vector_arg(splat(s, Bits::float(-0.0)), size, 4);
                return self.vec_def(M::Vxorps, size, &[x, sign]);
            }
            Unary::Neg => {
                let zero = self.zero();
                let m = by_size(s, [M::Vpsubb, M::Vpsubw, M::Vpsubd, M::Vpsubq]);
                return self.vec_def(m, size, &[Arg::Use(zero, size), x]);
            }
            Unary::Not => {
                let ones = self.vector_arg(u64::MAX, size, 4);
                return self.vec_def(self.bitwise(Binary::Xor), size, &[x, ones]);
            }
            Unary::Sqrt => return self.vec_def(M::Vsqrtps, size, &[x]),
            Unary::Recip => {
                let one = self.make_vector(splat(s, Bits::float(1.0)), size);
                return self.vec_def(M::Vdivps, size, &[Arg::Use(one, size), x]);
            }
            Unary::Round => 0,
            Unary::Floor => 1,
            Unary::Ceil => 2,
            Unary::Trunc => 3,
            Unary::Exp2 | Unary::Log2 | Unary::Sin => unreachable!("refused before"),
        };
        // Bit 3: no precision exception.
        let m = if self.features.avx512 { M::Vrndscaleps } else { M::Vroundps };
        self.vec_def(m, size, &[x, Arg::Imm(8 | rounding)])
    }

    pub fn bitwise(&self, op: Binary) -> M {
        match (op, self.features.avx512) {
            (Binary::And, true) => M::Vpandd,
            (Binary::And, false) => M::Vpand,
            (Binary::Or, true) => M::Vpord,
            (Binary::Or, false) => M::Vpor,
            (_, true) => M::Vpxord,
            (_, false) => M::Vpxor,
        }
    }

    /// Element-wise operation other than shifts, comparisons and integer division.
    pub fn vector_binary(&mut self, op: Binary, t: DType, a: VReg, b: Arg) -> VReg {
        use Binary::*;
        let (s, size) = (t.scalar, Size::vector(t.bytes()));
        let wide = self.features.avx512;
        let m = match (op, s) {
            (And | Or | Xor, _) => self.bitwise(op),
            (Add, Scalar::F32) => M::Vaddps,
            (Sub, Scalar::F32) => M::Vsubps,
            (Mul, Scalar::F32) => M::Vmulps,
            (Div, Scalar::F32) => M::Vdivps,
            (Max, Scalar::F32) => M::Vmaxps,
            (Min, Scalar::F32) => M::Vminps,
            (Add, _) => by_size(s, [M::Vpaddb, M::Vpaddw, M::Vpaddd, M::Vpaddq]),
            (Sub, _) => by_size(s, [M::Vpsubb, M::Vpsubw, M::Vpsubd, M::Vpsubq]),
            (Mul, Scalar::I64) if wide => M::Vpmullq,
            (Mul, Scalar::I64) => {
                let b = self.in_register(b, size);
                return self.per_lane(t, &[(a, t), (b, t)], |l, x| {
                    l.int_tied(M::Imul, Size::B8, x[0], Arg::Use(x[1], Size::B8))
                });
            }
            (Mul, _) => M::Vpmulld,
            (Max | Min, Scalar::I64) if !wide => {
                let b = self.in_register(b, size);
                let greater = self.vec_def(M::Vpcmpgtq, size, &[Arg::Use(a, size), Arg::Use(b, size)]);
                let (a, b) = if op == Max { (a, b) } else { (b, a) };
                return self.blend_elements(size, greater, a, b);
            }
            (Max, _) if s.is_signed() => by_size(s, [M::Vpmaxsb, M::Vpmaxsw, M::Vpmaxsd, M::Vpmaxsq]),
            (Max, _) => by_size(s, [M::Vpmaxub, M::Vpmaxuw, M::Vpmaxud, M::Vpmaxuq]),
            (Min, _) if s.is_signed() => by_size(s, [M::Vpminsb, M::Vpminsw, M::Vpminsd, M::Vpminsq]),
            (Min, _) => by_size(s, [M::Vpminub, M::Vpminuw, M::Vpminud, M::Vpminuq]),
            _ => panic!("{op:?} of {t}"),
        };
        self.vec_def(m, size, &[Arg::Use(a, size), b])
    }

    fn shift_mnemonic(op: Binary, s: Scalar) -> M {
        match (op, s.is_signed()) {
            (Binary::Shl, _) => by_size(s, [M::Vpsllw, M::Vpsllw, M::Vpslld, M::Vpsllq]),
            (_, true) if s != Scalar::I8 => by_size(s, [M::Vpsrlw, M::Vpsraw, M::Vpsrad, M::Vpsraq]),
            _ => by_size(s, [M::Vpsrlw, M::Vpsrlw, M::Vpsrld, M::Vpsrlq]),
        }
    }

    fn shift_constant(&mut self, op: Binary, s: Scalar, size: Size, a: VReg, by: u32) -> VReg {
        let (x, count) = (Arg::Use(a, size), Arg::Imm(by as i64));
        if by == 0 {
            return a;
        }
        if s.bytes() == 1 {
            let keep = if op == Binary::Shl { 0xffu8 << by } else { 0xff >> by };
            let d = self.shift_words(op, size, a, by);
            let keep = self.vector_arg(splat(Scalar::U8, Bits(keep as u64)), size, 4);
            let d = self.vec_def(self.bitwise(Binary::And), size, &[Arg::Use(d, size), keep]);
            if op == Binary::Shl || s == Scalar::U8 {
                return d;
            }
            // Sign extension from bit 7-by: (d ^ sign) - sign.
            let sign = self.make_vector(splat(Scalar::U8, Bits(0x80 >> by)), size);
            let flipped =
                self.vec_def(self.bitwise(Binary::Xor), size, &[Arg::Use(d, size), Arg::Use(sign, size)]);
            return self.vec_def(M::Vpsubb, size, &[Arg::Use(flipped, size), Arg::Use(sign, size)]);
        }
        if op == Binary::Shr && s == Scalar::I64 && !self.features.avx512 {
            let t = s.vec((size.bytes() / 8) as u16);
            return self.per_lane(t, &[(a, t)], |l, x| l.int_tied(M::Sar, Size::B8, x[0], count));
        }
        self.vec_def(Self::shift_mnemonic(op, s), size, &[x, count])
    }

    /// Sign extension in every byte from the bit that `sign` has: `(d ^ sign) - sign`.
    fn extend_bytes(&mut self, size: Size, d: VReg, sign: VReg) -> VReg {
        let sign = Arg::Use(sign, size);
        let flipped = self.vec_def(self.bitwise(Binary::Xor), size, &[Arg::Use(d, size), sign]);
        self.vec_def(M::Vpsubb, size, &[Arg::Use(flipped, size), sign])
    }

    /// All lanes by the same scalar.
    fn shift_uniform(&mut self, op: Binary, t: DType, a: VReg, by: Reg) -> VReg {
        let (s, size) = (t.scalar, Size::vector(t.bytes()));
        let (by, bits) = (self.reg(by), s.bits());
        let count = self
            .cached(Cached::Count(by, bits), |l| l.int_tied(M::And, Size::B4, by, Arg::Imm(bits as i64 - 1)));
        let low = self.cached(Cached::CountVector(by, bits), |l| l.first_lane(Scalar::U32, count));
        let d = self.vec_def(Self::shift_mnemonic(op, s), size, &[Arg::Use(a, size), Arg::Use(low, Size::X)]);
        if s.bytes() > 1 {
            return d;
        }
        let byte = |l: &mut Self, v: i64| {
            let from = l.imm(v);
            l.cached(Cached::Shifted(v, op, by, size), |l| {
                let m = if op == Binary::Shl { M::Shlx } else { M::Shrx };
                let v = l.int_def(m, Size::B4, &[Arg::Use(from, Size::B4), Arg::Use(count, Size::B4)]);
                l.splat_int(1, size, v)
            })
        };
        let keep = byte(self, 0xff);
        let d = self.vec_def(self.bitwise(Binary::And), size, &[Arg::Use(d, size), Arg::Use(keep, size)]);
        if op == Binary::Shl || s == Scalar::U8 {
            return d;
        }
        let sign = byte(self, 0x80);
        self.extend_bytes(size, d, sign)
    }

    /// Every byte by its own count: even and odd ones apart, each in the upper half of a 16-bit lane (AVX-512).
    fn shift_bytes(&mut self, op: Binary, s: Scalar, size: Size, a: VReg, by: VReg) -> VReg {
        let m = match op {
            Binary::Shl => M::Vpsllvw,
            _ if s.is_signed() => M::Vpsravw,
            _ => M::Vpsrlvw,
        };
        let v = |r| Arg::Use(r, size);
        let eight = Arg::Imm(8);
        let and = self.bitwise(Binary::And);
        let seven = self.make_vector(splat(Scalar::U16, Bits(7)), size);
        let upper = self.make_vector(splat(Scalar::U16, Bits(0xff00)), size);
        let even_by = self.vec_def(and, size, &[v(by), v(seven)]);
        let odd_by = self.vec_def(M::Vpsrlw, size, &[v(by), eight]);
        let odd_by = self.vec_def(and, size, &[v(odd_by), v(seven)]);
        let even = self.vec_def(M::Vpsllw, size, &[v(a), eight]);
        let even = self.vec_def(m, size, &[v(even), v(even_by)]);
        let even = self.vec_def(M::Vpsrlw, size, &[v(even), eight]);
        let odd = self.vec_def(and, size, &[v(a), v(upper)]);
        let odd = self.vec_def(m, size, &[v(odd), v(odd_by)]);
        let odd = self.vec_def(and, size, &[v(odd), v(upper)]);
        self.vec_def(self.bitwise(Binary::Or), size, &[v(even), v(odd)])
    }

    fn shift_words(&mut self, op: Binary, size: Size, a: VReg, by: u32) -> VReg {
        let m = if op == Binary::Shl { M::Vpsllw } else { M::Vpsrlw };
        self.vec_def(m, size, &[Arg::Use(a, size), Arg::Imm(by as i64)])
    }

    /// What an `And` with a constant masks, and the mask in every 64 bits; bytes are shifted as words if their shift is a
    /// part of it.
    fn field(&mut self, t: DType, and: &[Reg]) -> (VReg, u64) {
        let constant = |l: &Self, r: Reg| l.plan.constant(r).expect("the plan saw a constant");
        let mask = constant(self, and[1]);
        let shift = self.plan.op_of(and[0]).filter(|_| self.is_absorbed(and[0]));
        let Some((Op::Binary(op), shift)) = shift else { return (self.reg(and[0]), splat(t.scalar, mask)) };
        let (a, by) = (self.reg(shift[0]), constant(self, shift[1]).0 as u32 & 7);
        let whole = if op == Binary::Shl { 0xffu8 << by } else { 0xff >> by };
        let keep = splat(Scalar::U8, Bits((mask.0 as u8 & whole) as u64));
        let x = if by == 0 { a } else { self.shift_words(op, Size::vector(t.bytes()), a, by) };
        (x, keep)
    }

    fn shift_variable(&mut self, op: Binary, t: DType, a: VReg, by: Reg) -> VReg {
        let (s, size) = (t.scalar, Size::vector(t.bytes()));
        let by = self.reg(by);
        let wide = self.features.avx512;
        let signed = s.is_signed() && op == Binary::Shr;
        let native = match s.bytes() {
            1 if wide => return self.shift_bytes(op, s, size, a, by),
            1 => false,
            2 => wide,
            4 => true,
            _ => wide || !signed,
        };
        if !native {
            return self.per_lane(t, &[(a, t), (by, t)], |l, x| {
                let count = l.int_tied(M::And, Size::B4, x[1], Arg::Imm(s.bits() as i64 - 1));
                let m = match op {
                    Binary::Shl => M::Shlx,
                    _ if s.is_signed() => M::Sarx,
                    _ => M::Shrx,
                };
                l.int_def(m, Size::B8, &[Arg::Use(x[0], Size::B8), Arg::Use(count, Size::B8)])
            });
        }
        let modulo =
            self.vector_arg(splat(s, Bits(s.bits() as u64 - 1)), size, if s.bytes() == 8 { 0 } else { 4 });
        let count = self.vec_def(self.bitwise(Binary::And), size, &[Arg::Use(by, size), modulo]);
        let m = match (op, signed) {
            (Binary::Shl, _) => by_size(s, [M::INVALID, M::Vpsllvw, M::Vpsllvd, M::Vpsllvq]),
            (_, false) => by_size(s, [M::INVALID, M::Vpsrlvw, M::Vpsrlvd, M::Vpsrlvq]),
            (_, true) => by_size(s, [M::INVALID, M::Vpsravw, M::Vpsravd, M::Vpsravq]),
        };
        self.vec_def(m, size, &[Arg::Use(a, size), Arg::Use(count, size)])
    }

    fn fma(&mut self, at: usize, t: DType, args: &[Reg]) -> VReg {
        let size = Size::vector(t.bytes());
        let (add, into_product) = match t.lanes {
            1 => (M::Vfmadd231ss, M::Vfmadd213ss),
            _ => (M::Vfmadd231ps, M::Vfmadd213ps),
        };
        let d = self.vec();
        let constant = |l: &Self, i: usize| l.plan.constant(args[i]).is_some();
        // The last operand is memory or a constant if one is; else the sum is written over.
        let (last, arg) = match self.folded_address(at) {
            Some((i, a)) => (i, Some(Arg::Mem(a))),
            None if constant(self, 2) => (2, None),
            None if constant(self, 0) => (0, None),
            None => (1, None),
        };
        let arg = arg.unwrap_or_else(|| match self.plan.constant(args[last]) {
            Some(c) if t.lanes > 1 => self.vector_arg(splat(Scalar::F32, c), size, 4),
            _ => self.last(args[last], t),
        });
        if last == 2 {
            let (tied, other) = if constant(self, 0) { (args[1], args[0]) } else { (args[0], args[1]) };
            let (tied, other) = (self.reg(tied), self.reg(other));
            self.op(into_product, &[Arg::Tied(d, tied, size), Arg::Use(other, size), arg]);
        } else {
            let (other, sum) = (self.reg(args[1 - last]), self.reg(args[2]));
            self.op(add, &[Arg::Tied(d, sum, size), Arg::Use(other, size), arg]);
        }
        d
    }

    fn select(&mut self, t: DType, args: &[Reg]) -> VReg {
        if t.lanes == 1 {
            return self.scalar_where(t, args[0], args[1], args[2]);
        }
        let (a, b) = (self.reg(args[1]), self.reg(args[2]));
        if t.scalar == Scalar::Bool {
            let c = self.reg(args[0]);
            let b8 = |v| Arg::Use(v, Size::B8);
            let (yes, no) =
                (self.int_tied(M::And, Size::B8, a, b8(c)), self.int_def(M::Andn, Size::B8, &[b8(c), b8(b)]));
            return self.int_tied(M::Or, Size::B8, yes, b8(no));
        }
        let size = Size::vector(t.bytes());
        let compare = self.absorbed_compare(args[0]);
        if self.features.avx512 {
            match compare {
                Some((op, args)) => {
                    let ct = self.p.dtype(args[0]);
                    let (x, y) = self.operands(args, ct, ct.scalar.bytes(), false, None);
                    self.compare_k(op, ct.scalar, Size::vector(ct.bytes()), x, y);
                }
                None => {
                    let c = self.reg(args[0]);
                    self.mask_to_k(c, t.lanes);
                }
            }
            return self.blend_k(t.scalar, size, a, b);
        }
        match compare {
            Some((op, args)) => {
                let ct = self.p.dtype(args[0]);
                let (x, y) = self.operands(args, ct, ct.scalar.bytes(), false, None);
                let (mask, inverted) = self.compare_elements(op, ct.scalar, size, x, y);
                let (a, b) = if inverted { (b, a) } else { (a, b) };
                self.blend_elements(size, mask, a, b)
            }
            None => {
                let c = self.reg(args[0]);
                let mask = self.expand_mask(c, t.scalar.bytes(), size);
                self.blend_elements(size, mask, a, b)
            }
        }
    }

    /// Of a product that the plan calls paired the sums of pairs, for the next of its chain.
    fn dot4(&mut self, at: usize, t: DType, args: &[Reg]) -> VReg {
        let size = Size::vector(t.bytes());
        let memory = self.folded_address(at).map(|(_, a)| Arg::Mem(a));
        let a = Arg::Use(self.reg(args[1]), size);
        let b = memory.unwrap_or_else(|| Arg::Use(self.reg(args[2]), size));
        let both = |x: VReg, y: VReg| [x, y].map(|v| Arg::Use(v, size));
        let start = self.plan.chain_start(args[0]);
        let sum = |l: &mut Self| match t.lanes {
            1 => {
                let sum = Arg::Use(l.reg(start), Size::B4);
                l.vec_def(M::Vmovd, Size::X, &[sum])
            }
            _ => l.reg(start),
        };
        let d = if self.features.dot4() {
            let (d, sum) = (self.vec(), sum(self));
            self.op(M::Vpdpbusd, &[Arg::Tied(d, sum, size), a, b]);
            d
        } else {
            // The saturating instruction is exact: weights are below 128.
            let mut pairs = self.vec_def(M::Vpmaddubsw, size, &[a, b]);
            if start != args[0] {
                let before = self.reg(args[0]);
                pairs = self.vec_def(M::Vpaddw, size, &both(before, pairs));
            }
            if self.plan.paired[at] {
                return pairs;
            }
            let ones = self.vector_arg(splat(Scalar::I16, Bits(1)), size, 0);
            let products = self.vec_def(M::Vpmaddwd, size, &[Arg::Use(pairs, size), ones]);
            match self.plan.constant(start) {
                Some(Bits(0)) => products,
                _ => {
                    let sum = sum(self);
                    self.vec_def(M::Vpaddd, size, &both(products, sum))
                }
            }
        };
        if t.lanes > 1 {
            return d;
        }
        let low = self.int_def(M::Vmovd, Size::B4, &[Arg::Use(d, Size::X)]);
        self.wrap(Scalar::I32, low)
    }

    /// Runs `f` on the lanes of `args` one by one, through the stack.
    pub fn per_lane(
        &mut self,
        t: DType,
        args: &[(VReg, DType)],
        mut f: impl FnMut(&mut Self, &[VReg]) -> VReg,
    ) -> VReg {
        let mut cells = Vec::new();
        for (n, (v, at)) in args.iter().enumerate() {
            let size = Size::vector(at.bytes());
            let cell = self.cell(n, size.bytes());
            self.op(M::Vmovups, &[Arg::Mem(cell), Arg::Use(*v, size)]);
            cells.push((cell, at.scalar));
        }
        self.build_vector(t, |l, lane| {
            let mut x = Vec::new();
            for (cell, s) in &cells {
                x.push(l.load_scalar(*s, cell.plus((lane * s.bytes()) as i32)));
            }
            f(l, &x)
        })
    }
}

impl<'a> Lower<'a> {
    /// Is the definition of `r` a part of the instruction that reads it?
    fn is_absorbed(&self, r: Reg) -> bool {
        self.plan.absorbed[self.plan.def[r.0 as usize]]
    }

    pub fn absorbed_compare(&self, cond: Reg) -> Option<(Binary, &'a [Reg])> {
        match self.plan.op_of(cond) {
            Some((Op::Binary(b), args)) if self.is_absorbed(cond) => Some((b, args)),
            _ => None,
        }
    }
}

fn unbroadcast(m: Address) -> Arg {
    Arg::Mem(Address { broadcast: false, ..m })
}
