//! Arithmetic of every [`Op`]: values in, values out. What each operation means is stated in `scalar`.
//!
//! Packed 8- and 16-bit vectors are worked on as whole registers where the operation allows it, otherwise lane by lane.

use super::asm::Piece;
use super::{Emitter, lane_mask, packed, pieces};
use crate::dtype::{Bits, DType, Scalar};
use crate::linear::{Op, Reg};
use crate::scalar::{Binary, Unary};
use half::{bf16, f16};

/// Type suffix of arithmetic on one unpacked lane.
fn suffix(s: Scalar) -> &'static str {
    use Scalar::*;
    match s {
        I8 | I16 | I32 => "s32",
        U8 | U16 | U32 => "u32",
        I64 => "s64",
        Bool => "pred",
        _ => "f32",
    }
}

/// A lane of `bits` bits in every lane of a word.
fn repeat(s: Scalar, bits: u32) -> u32 {
    match s.bytes() {
        1 => (bits & 0xff) * 0x0101_0101,
        2 => (bits & 0xffff) * 0x0001_0001,
        _ => bits,
    }
}

fn constant(t: DType, b: Bits) -> Vec<Piece> {
    let raw = match t.scalar {
        Scalar::F16 => f16::from_f32(b.as_float()).to_bits() as u64,
        Scalar::BF16 => bf16::from_f32(b.as_float()).to_bits() as u64,
        _ => b.0,
    };
    let word = if packed(t) { repeat(t.scalar, raw as u32) as u64 } else { raw };
    vec![Piece::Imm(word); pieces(t)]
}

/// An index that 32-bit instructions can take as it is.
pub(super) fn narrow(p: Piece) -> bool {
    match p {
        Piece::R(_) => true,
        Piece::Imm(v) => i32::try_from(v as i64).is_ok(),
        _ => false,
    }
}

impl Emitter<'_> {
    pub(super) fn op(&mut self, dst: Reg, op: Op, args: &[Reg]) -> Vec<Piece> {
        let t = self.dtype(dst);
        let from = args.first().map_or(t, |a| self.dtype(*a));
        let v: Vec<Vec<Piece>> = args.iter().map(|a| self.value(*a)).collect();
        let lanes = t.lanes as usize;
        match op {
            Op::Const(b) => constant(t, b),
            Op::Symbol(n) => vec![self.symbols[&n]],
            Op::Grid => vec![self.seat.block.unwrap_or_else(|| self.special("%ctaid.x"))],
            Op::Thread => vec![self.special("%tid.x")],
            Op::Iota => (0..lanes as i64).map(Piece::int).collect(),
            Op::Unary(u) => self.unary(u, dst, &v[0]),
            Op::Binary(b) if from == DType::I64 => vec![self.index_binary(b, dst, args)],
            Op::Binary(b) => match self.bytes.scaled([args[0], args[1]]).filter(|_| b == Binary::Mul) {
                Some((bytes, factor)) => self.scaled_bytes(bytes, factor),
                None => self.binary(b, dst, args),
            },
            Op::Fma => (0..lanes).map(|l| self.asm.r("fma.rn.f32", &[v[0][l], v[1][l], v[2][l]])).collect(),
            Op::Where => self.choose(t, &v[0], &v[1], &v[2]),
            Op::Cast => match (from, t) {
                // A 32-bit register may hold an index.
                (_, DType::I64) if from.scalar.is_int() && self.fact(dst).fits_i32() => v[0].clone(),
                _ => match self.bytes.behind(args[0], from).filter(|_| t.scalar == Scalar::F32) {
                    Some(bytes) => self.floats_of_bytes(bytes),
                    None => self.cast(from, t, &v[0]),
                },
            },
            Op::Bitcast => self.bitcast(t, &v[0]),
            Op::Spread => {
                let times = lanes / from.lanes as usize;
                self.select(&v[0], from, &(0..lanes).map(|l| l / times).collect::<Vec<_>>())
            }
            Op::Repeat => {
                self.select(&v[0], from, &(0..lanes).map(|l| l % from.lanes as usize).collect::<Vec<_>>())
            }
            Op::Extract(at) => self.select(&v[0], from, &[at as usize]),
            Op::Slice(at) => {
                self.select(&v[0], from, &(0..lanes).map(|l| at as usize + l).collect::<Vec<_>>())
            }
            Op::Stack => self.stack(v.concat(), t),
            Op::Fold(f) => {
                let all: Vec<_> = v.iter().flat_map(|v| self.fold(f, v, from)).collect();
                if lanes == 1 { all } else { self.stack(all, t) }
            }
            Op::Dot4 => {
                (0..lanes).map(|l| self.asm.r("dp4a.u32.s32", &[v[1][l], v[2][l], v[0][l]])).collect()
            }
            Op::Lookup(table) => self.lookup(table, &v[0], from, t),
            Op::Pairs => panic!("pairs of bf16 are for tile products, which are not for PTX"),
        }
    }

    fn unary(&mut self, op: Unary, dst: Reg, v: &[Piece]) -> Vec<Piece> {
        let t = self.dtype(dst);
        let fits = t == DType::I64 && self.fact(dst).fits_i32();
        let zero = vec![Piece::Imm(0); v.len()];
        match op {
            Unary::Neg if packed(t) => self.swar_sub(t.scalar, &zero, v),
            Unary::Not if packed(t) => v.iter().map(|p| self.asm.r("not.b32", &[*p])).collect(),
            _ => v.iter().map(|p| self.unary_lane(op, t.scalar, fits, *p)).collect(),
        }
    }

    /// `fits`: the result is a scalar i64 of at most 32 bits.
    fn unary_lane(&mut self, op: Unary, s: Scalar, fits: bool, p: Piece) -> Piece {
        if s == Scalar::I64 {
            let name = if op == Unary::Neg { "neg.s" } else { "not.b" };
            let wide = !(fits && narrow(p));
            let p = if wide { self.asm.wide(p) } else { p };
            return self.asm.rd(wide, &format!("{name}{}", if wide { 64 } else { 32 }), &[p]);
        }
        match op {
            Unary::Neg if s == Scalar::F32 => self.asm.r("neg.f32", &[p]),
            Unary::Neg => {
                let r = self.asm.r("neg.s32", &[p]);
                self.normalise(s, r)
            }
            Unary::Not if s == Scalar::Bool => {
                let p = self.asm.pred(p);
                self.asm.p("not.pred", &[p])
            }
            Unary::Not => {
                let r = self.asm.r("not.b32", &[p]);
                self.normalise(s, r)
            }
            Unary::Exp2 => self.asm.r("ex2.approx.f32", &[p]),
            Unary::Log2 => self.asm.r("lg2.approx.f32", &[p]),
            Unary::Sin => self.sin(p),
            Unary::Sqrt => self.asm.r("sqrt.rn.f32", &[p]),
            Unary::Recip => self.asm.r("rcp.rn.f32", &[p]),
            Unary::Floor => self.asm.r("cvt.rmi.f32.f32", &[p]),
            Unary::Ceil => self.asm.r("cvt.rpi.f32.f32", &[p]),
            Unary::Trunc => self.asm.r("cvt.rzi.f32.f32", &[p]),
            Unary::Round => self.asm.r("cvt.rni.f32.f32", &[p]),
        }
    }

    /// `sin.approx` is good within one period only. 2π in three parts (Cody and Waite), the upper two with so few bits
    /// that the multiples of the first thousands of periods are exact.
    fn sin(&mut self, x: Piece) -> Piece {
        const TWO_PI: [f32; 3] = [6.28125, 0.001_935_243_6, 6.381_569e-8];
        let turns = self.asm.r("mul.rn.f32", &[x, Piece::float(std::f32::consts::TAU.recip())]);
        let turns = self.asm.r("cvt.rni.f32.f32", &[turns]);
        let mut rest = x;
        for part in TWO_PI {
            rest = self.asm.r("fma.rn.f32", &[turns, Piece::float(-part), rest]);
        }
        self.asm.r("sin.approx.f32", &[rest])
    }

    fn choose(&mut self, t: DType, cond: &[Piece], a: &[Piece], b: &[Piece]) -> Vec<Piece> {
        let (a, b) = (self.unpack(a, t), self.unpack(b, t));
        let mut lanes = vec![];
        for (c, (x, y)) in cond.iter().zip(a.into_iter().zip(b)) {
            let c = self.asm.pred(*c);
            lanes.push(match t.scalar {
                Scalar::Bool => {
                    let [x, y] = [x, y].map(|p| self.asm.pred(p));
                    let yes = self.asm.p("and.pred", &[c, x]);
                    let not = self.asm.p("not.pred", &[c]);
                    let no = self.asm.p("and.pred", &[not, y]);
                    self.asm.p("or.pred", &[yes, no])
                }
                Scalar::I64 if !(narrow(x) && narrow(y)) => {
                    let [x, y] = [x, y].map(|p| self.asm.wide(p));
                    self.asm.d("selp.b64", &[x, y, c])
                }
                _ => self.asm.r("selp.b32", &[x, y, c]),
            });
        }
        if t.scalar == Scalar::I64 && t.lanes > 1 {
            lanes = lanes.into_iter().map(|p| self.asm.wide(p)).collect();
        }
        self.pack(&lanes, t)
    }

    /// A scalar i64 operation, in 32 bits where the ranges allow.
    fn index_binary(&mut self, op: Binary, dst: Reg, args: &[Reg]) -> Piece {
        use Binary::*;
        let [mut a, mut b] = [self.scalar(args[0]), self.scalar(args[1])];
        let constant = self.fact(args[1]).constant();
        if let Some(c) = constant {
            b = Piece::int(c);
        }
        let positive = self.fact(args[0]).lo >= 0;
        let small = narrow(a) && narrow(b);
        let fits = self.fact(dst).fits_i32();
        match op {
            // The low bits of the result need only the low bits of the operands.
            Add | Sub | Mul | And | Or | Xor | Shl if fits => {
                a = self.asm.low(a);
                b = self.asm.low(b);
                self.binary_lane(op, Scalar::I32, a, b, positive)
            }
            Mul if small => {
                let a = self.asm.reg(a);
                self.asm.d("mul.wide.s32", &[a, b])
            }
            Div | Mod | Max | Min if small && fits => self.binary_lane(op, Scalar::I32, a, b, positive),
            Shr if narrow(a) && constant.is_some_and(|n| (n & 63) < 32) => {
                self.binary_lane(op, Scalar::I32, a, b, positive)
            }
            _ if op.is_compare() && small => self.binary_lane(op, Scalar::I32, a, b, positive),
            _ => {
                let [a, b] = [a, b].map(|p| self.asm.wide(p));
                let result = self.binary_lane(op, Scalar::I64, a, b, positive);
                if fits && !op.is_compare() { self.asm.low(result) } else { result }
            }
        }
    }

    fn binary(&mut self, op: Binary, dst: Reg, args: &[Reg]) -> Vec<Piece> {
        use Binary::*;
        let t = self.dtype(args[0]);
        let s = t.scalar;
        let [a, b] = [self.value(args[0]), self.value(args[1])];
        let constant = self.fact(args[1]).constant();
        if packed(t) {
            match (op, constant) {
                (And, _) => return self.swar_and(s, args),
                (Or, _) => return self.each("or.b32", &a, &b),
                (Xor, _) => return self.each("xor.b32", &a, &b),
                (Add, _) => return self.swar_add(s, &a, &b),
                (Sub, _) => return self.swar_sub(s, &a, &b),
                (Shl, Some(n)) => return self.swar_shift(op, dst, &a, n),
                (Shr, Some(n)) if !s.is_signed() => return self.swar_shift(op, dst, &a, n),
                _ => {}
            }
        }
        let positive = self.fact(args[0]).lo >= 0;
        let (a, mut b) = (self.unpack(&a, t), self.unpack(&b, t));
        if let Some(c) = constant {
            b.fill(Piece::int(c));
        }
        let lanes: Vec<_> =
            a.into_iter().zip(b).map(|(x, y)| self.binary_lane(op, s, x, y, positive)).collect();
        if op.is_compare() { lanes } else { self.pack(&lanes, t) }
    }

    fn each(&mut self, op: &str, a: &[Piece], b: &[Piece]) -> Vec<Piece> {
        a.iter().zip(b).map(|(x, y)| self.asm.r(op, &[*x, *y])).collect()
    }
    fn each_with(&mut self, op: &str, a: &[Piece], word: u32) -> Vec<Piece> {
        a.iter().map(|x| self.asm.r(op, &[*x, Piece::word(word)])).collect()
    }

    fn swar_and(&mut self, s: Scalar, args: &[Reg]) -> Vec<Piece> {
        for (shifted, mask) in [(args[0], args[1]), (args[1], args[0])] {
            if let (Some(lane), Some(c)) = (self.unmasked.get(&shifted), self.fact(mask).constant()) {
                let word = repeat(s, lane & c as u32);
                return self.each_with("and.b32", &self.value(shifted), word);
            }
        }
        self.each("and.b32", &self.value(args[0]), &self.value(args[1]))
    }

    fn swar_shift(&mut self, op: Binary, dst: Reg, v: &[Piece], n: i64) -> Vec<Piece> {
        let s = self.dtype(dst).scalar;
        let n = n as u32 & (s.bits() - 1);
        let moved = self.each_with(if op == Binary::Shl { "shl.b32" } else { "shr.u32" }, v, n);
        if self.unmasked.contains_key(&dst) {
            return moved;
        }
        self.each_with("and.b32", &moved, repeat(s, lane_mask(op, s, n)))
    }

    /// Adds all but the top bits, so that no carry leaves its lane, and the top bits without carry.
    fn swar_add(&mut self, s: Scalar, a: &[Piece], b: &[Piece]) -> Vec<Piece> {
        let top = repeat(s, 1 << (s.bits() - 1));
        let [low_a, low_b] = [a, b].map(|v| self.each_with("and.b32", v, !top));
        let sum = self.each("add.u32", &low_a, &low_b);
        let tops = self.each("xor.b32", a, b);
        let tops = self.each_with("and.b32", &tops, top);
        self.each("xor.b32", &sum, &tops)
    }

    /// As `swar_add`, with a top bit set in every lane of `a` for the lane below to borrow from.
    fn swar_sub(&mut self, s: Scalar, a: &[Piece], b: &[Piece]) -> Vec<Piece> {
        let top = repeat(s, 1 << (s.bits() - 1));
        let lender = self.each_with("or.b32", a, top);
        let low = self.each_with("and.b32", b, !top);
        let difference = self.each("sub.u32", &lender, &low);
        let tops = self.each("xor.b32", a, b);
        let tops = self.each_with("and.b32", &tops, top);
        let tops = self.each_with("xor.b32", &tops, top);
        self.each("xor.b32", &difference, &tops)
    }

    /// One lane; `positive`: `a` is not negative.
    pub(super) fn binary_lane(&mut self, op: Binary, s: Scalar, a: Piece, b: Piece, positive: bool) -> Piece {
        use Binary::*;
        if s == Scalar::Bool {
            let [a, b] = [a, b].map(|p| self.asm.pred(p));
            return match op {
                And => self.asm.p("and.pred", &[a, b]),
                Or => self.asm.p("or.pred", &[a, b]),
                Xor | Ne => self.asm.p("xor.pred", &[a, b]),
                Eq => {
                    let differ = self.asm.p("xor.pred", &[a, b]);
                    self.asm.p("not.pred", &[differ])
                }
                _ => panic!("{op:?} of bools"),
            };
        }
        let (ty, wide, float) = (suffix(s), s == Scalar::I64, s == Scalar::F32);
        let bits = if wide { "b64" } else { "b32" };
        let name = match op {
            // A named rounding keeps the driver from fusing products and sums.
            Add | Sub | Mul | Div if float => format!("{}.rn.f32", format!("{op:?}").to_lowercase()),
            Div | Mod => return self.divide(op, s, a, b, positive),
            Add | Sub | Max | Min => format!("{}.{ty}", format!("{op:?}").to_lowercase()),
            Mul => format!("mul.lo.{ty}"),
            And | Or | Xor => format!("{}.{bits}", format!("{op:?}").to_lowercase()),
            Shl => format!("shl.{bits}"),
            Shr => format!("shr.{ty}"),
            // Unordered: a NaN differs from everything.
            Ne if float => "setp.neu.f32".into(),
            Lt | Le | Eq | Ne => format!("setp.{}.{ty}", format!("{op:?}").to_lowercase()),
        };
        if op.is_compare() {
            return self.asm.p(&name, &[a, b]);
        }
        let b = if matches!(op, Shl | Shr) { self.shift_count(s, b) } else { b };
        let result = self.asm.rd(wide, &name, &[a, b]);
        if matches!(op, Add | Sub | Shl) { self.normalise(s, result) } else { result }
    }

    /// A shift count modulo the width, in 32 bits.
    fn shift_count(&mut self, s: Scalar, count: Piece) -> Piece {
        let last = s.bits() - 1;
        match self.asm.low(count) {
            Piece::Imm(n) => Piece::word(n as u32 & last),
            count => self.asm.r("and.b32", &[count, Piece::word(last)]),
        }
    }

    /// Floor division and its remainder; dividing by 0 gives 0 and leaves all as remainder.
    fn divide(&mut self, op: Binary, s: Scalar, a: Piece, b: Piece, positive: bool) -> Piece {
        let wide = s == Scalar::I64;
        let width = if wide { 64 } else { 32 };
        let (ty, signed) = (suffix(s), s.is_signed());
        let quotient_wanted = op == Binary::Div;
        let divisor = if let Piece::Imm(c) = b { Some(s.wrap(c as i64)) } else { None };
        match divisor {
            Some(0) => return if quotient_wanted { Piece::Imm(0) } else { a },
            // An arithmetic shift and a mask floor negative numbers too.
            Some(c) if c > 0 && c.count_ones() == 1 && quotient_wanted => {
                return self.asm.rd(wide, &format!("shr.{ty}"), &[a, Piece::int(c.trailing_zeros() as i64)]);
            }
            Some(c) if c > 0 && c.count_ones() == 1 => {
                return self.asm.rd(wide, &format!("and.b{width}"), &[a, Piece::int(c - 1)]);
            }
            Some(c) if c > 0 && positive && signed => {
                let quotient = self.divide_by_product(wide, a, c);
                if quotient_wanted {
                    return quotient;
                }
                let product = self.asm.rd(wide, &format!("mul.lo.{ty}"), &[quotient, b]);
                return self.asm.rd(wide, &format!("sub.{ty}"), &[a, product]);
            }
            _ => {}
        }
        let quotient = self.asm.rd(wide, &format!("div.{ty}"), &[a, b]);
        let product = self.asm.rd(wide, &format!("mul.lo.{ty}"), &[quotient, b]);
        let rest = self.asm.rd(wide, &format!("sub.{ty}"), &[a, product]);
        let mut result = if quotient_wanted { quotient } else { rest };
        if signed {
            // The quotient was rounded towards zero: one too many where a rest has the other sign than the divisor.
            let inexact = self.asm.p(&format!("setp.ne.{ty}"), &[rest, Piece::Imm(0)]);
            let signs = self.asm.rd(wide, &format!("xor.b{width}"), &[rest, b]);
            let opposite = self.asm.p(&format!("setp.lt.{ty}"), &[signs, Piece::Imm(0)]);
            let fix = self.asm.p("and.pred", &[inexact, opposite]);
            let fixed = match quotient_wanted {
                true => self.asm.rd(wide, &format!("sub.{ty}"), &[quotient, Piece::Imm(1)]),
                false => self.asm.rd(wide, &format!("add.{ty}"), &[rest, b]),
            };
            result = self.asm.rd(wide, &format!("selp.b{width}"), &[fixed, result, fix]);
        }
        if quotient_wanted && divisor.is_none() {
            let by_zero = self.asm.p(&format!("setp.eq.{ty}"), &[b, Piece::Imm(0)]);
            result = self.asm.rd(wide, &format!("selp.b{width}"), &[Piece::Imm(0), result, by_zero]);
        }
        result
    }

    /// `a / c` for `a` ≥ 0 and `c` no power of two. With k = ⌈log2 c⌉ - 1 and m = ⌈2^(w+k) / c⌉, a w-bit number, the
    /// error of a·m / 2^(w+k) is less than 1/c for all a < 2^(w-1). The driver's compiler does not do this itself.
    fn divide_by_product(&mut self, wide: bool, a: Piece, c: i64) -> Piece {
        let width = if wide { 64 } else { 32 };
        let k = (c - 1).ilog2();
        let m = (1u128 << (width + k)).div_ceil(c as u128);
        let high = self.asm.rd(wide, &format!("mul.hi.u{width}"), &[a, Piece::Imm(m as u64)]);
        self.asm.rd(wide, &format!("shr.u{width}"), &[high, Piece::int(k as i64)])
    }
}
