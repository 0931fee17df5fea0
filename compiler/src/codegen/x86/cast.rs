//! Conversions between element types. Chains go through i32 and f32: what has no direct instruction is made of two.

use super::lower::{Cached, Lower, splat};
use super::mach::{Address, Arg, Size};
use crate::dtype::{Bits, DType, Scalar};
use crate::linear::Reg;
use crate::scalar::{self, Binary};
use iced_x86::Mnemonic as M;
use regalloc2::VReg;

fn widen(signed: bool, from: usize, to: usize) -> M {
    match (from, to, signed) {
        (1, 2, true) => M::Vpmovsxbw,
        (1, 2, false) => M::Vpmovzxbw,
        (1, 4, true) => M::Vpmovsxbd,
        (1, 4, false) => M::Vpmovzxbd,
        (1, _, true) => M::Vpmovsxbq,
        (1, _, false) => M::Vpmovzxbq,
        (2, 4, true) => M::Vpmovsxwd,
        (2, 4, false) => M::Vpmovzxwd,
        (2, _, true) => M::Vpmovsxwq,
        (2, _, false) => M::Vpmovzxwq,
        (_, _, true) => M::Vpmovsxdq,
        (_, _, false) => M::Vpmovzxdq,
    }
}

fn narrow(from: usize, to: usize) -> M {
    match (from, to) {
        (2, _) => M::Vpmovwb,
        (4, 1) => M::Vpmovdb,
        (4, _) => M::Vpmovdw,
        (_, 1) => M::Vpmovqb,
        (_, 2) => M::Vpmovqw,
        _ => M::Vpmovqd,
    }
}

impl Lower<'_> {
    pub fn cast(&mut self, at: usize, t: DType, from: Reg) -> VReg {
        let source = self.p.dtype(from);
        let memory = self.folded_address(at).map(|(_, a)| a);
        if t.lanes == 1 {
            return self.scalar_cast(source.scalar, t.scalar, from, memory);
        }
        let x = match memory {
            Some(a) => Arg::Mem(a),
            None if source.scalar == Scalar::Bool => Arg::Use(self.reg(from), Size::B8),
            None => Arg::Use(self.reg(from), Size::vector(source.bytes())),
        };
        self.vector_cast(source.scalar, t.scalar, t.lanes, x)
    }

    fn scalar_cast(&mut self, from: Scalar, to: Scalar, x: Reg, memory: Option<Address>) -> VReg {
        use Scalar::*;
        match (from, to) {
            _ if from == to => self.reg(x),
            (F32, Bool) => {
                let (v, zero) = (self.reg(x), self.zero());
                self.scalar_nonzero(v, zero)
            }
            (F16 | BF16, F32) => {
                let low = match memory {
                    Some(a) => self.load_vector(2, a),
                    None => {
                        let v = self.reg(x);
                        self.first_lane(from, v)
                    }
                };
                self.vector_cast(from, F32, 4, Arg::Use(low, Size::X))
            }
            (F16 | BF16, _) => {
                let v = self.reg(x);
                let low = self.first_lane(from, v);
                let wide = self.vector_cast(from, F32, 4, Arg::Use(low, Size::X));
                self.float_to(to, wide)
            }
            (F32, _) => {
                let v = self.reg(x);
                self.float_to(to, v)
            }
            (_, F32 | F16 | BF16) => {
                let (v, zero) = (self.reg(x), self.zero());
                let args = [Arg::Use(zero, Size::X), Arg::Use(v, Size::B8)];
                let f = self.vec_def(M::Vcvtsi2ss, Size::X, &args);
                if to == F32 { f } else { self.float_to(to, f) }
            }
            _ => {
                let ((lo, hi), (from_lo, from_hi)) = (to.int_range(), from.int_range());
                let v = self.reg(x);
                if lo <= from_lo && from_hi <= hi { v } else { self.wrap(to, v) }
            }
        }
    }

    fn scalar_nonzero(&mut self, v: VReg, zero: VReg) -> VReg {
        let mask = self.compare(Binary::Ne, Scalar::F32, 2, v, Arg::Use(zero, Size::X));
        self.mask_bit(mask, 0)
    }

    /// An f32 scalar as another type's scalar.
    fn float_to(&mut self, to: Scalar, v: VReg) -> VReg {
        match to {
            Scalar::Bool => {
                let zero = self.zero();
                self.scalar_nonzero(v, zero)
            }
            Scalar::F16 | Scalar::BF16 => {
                let low = self.vector_cast(Scalar::F32, to, 4, Arg::Use(v, Size::X));
                self.int_def(M::Vpextrw, Size::B4, &[Arg::Use(low, Size::X), Arg::Imm(0)])
            }
            _ => {
                let wide = self.int_def(M::Vcvttss2si, Size::B8, &[Arg::Use(v, Size::X)]);
                self.wrap(to, wide)
            }
        }
    }

    /// `x` is memory only where the first step of the conversion reads it as it stands.
    fn vector_cast(&mut self, from: Scalar, to: Scalar, lanes: u16, x: Arg) -> VReg {
        use Scalar::*;
        let sized = |s: Scalar| Size::vector(lanes as usize * s.bytes());
        let (size, source) = (sized(to), sized(from));
        if from == to {
            return match x {
                Arg::Use(v, _) => v,
                x => self.in_register(x, size),
            };
        }
        let half_width = |s: Scalar| matches!(s, F16 | BF16);
        let through_f32 = (half_width(from) && to != F32) || (half_width(to) && !matches!(from, Bool | F32));
        if through_f32 && lanes as usize * 4 > self.features.vector_bytes() {
            return self.cast_halves(from, to, lanes, x);
        }
        match (from, to) {
            (Bool, _) => {
                let Arg::Use(mask, _) = x else { unreachable!("masks are in registers") };
                let one = scalar::cast(Bool, to, Bits::bool(true));
                self.mask_and(mask, lanes, to.bytes(), splat(to, one))
            }
            (F16 | BF16, Bool) => {
                let f = self.vector_cast(from, F32, lanes, x);
                self.vector_cast(F32, Bool, lanes, Arg::Use(f, sized(F32)))
            }
            (_, Bool) => {
                let v = self.in_register(x, source);
                let zero = self.zero();
                self.compare(Binary::Ne, from, lanes, v, Arg::Use(zero, source))
            }
            (F16, F32) => {
                // The register form names the source by the destination's half.
                let x = resize(x, Size::vector(size.bytes() / 2));
                self.vec_def(M::Vcvtph2ps, size, &[x])
            }
            (BF16, F32) => {
                let x = resize(x, Size::vector(size.bytes() / 2));
                let wide = self.vec_def(M::Vpmovzxwd, size, &[x]);
                self.vec_def(M::Vpslld, size, &[Arg::Use(wide, size), Arg::Imm(16)])
            }
            (F32, F16) => {
                let d = self.vec();
                let to = Size::vector(source.bytes() / 2);
                self.op(M::Vcvtps2ph, &[Arg::Def(d, to), x, Arg::Imm(0)]);
                d
            }
            (F32, BF16) => self.round_to_bf16(source, x),
            (F16 | BF16, _) => {
                let f = self.vector_cast(from, F32, lanes, x);
                self.vector_cast(F32, to, lanes, Arg::Use(f, sized(F32)))
            }
            (_, F16 | BF16) => {
                let f = self.vector_cast(from, F32, lanes, x);
                self.vector_cast(F32, to, lanes, Arg::Use(f, sized(F32)))
            }
            (I32, F32) => self.vec_def(M::Vcvtdq2ps, size, &[x]),
            (F32, I32) => self.vec_def(M::Vcvttps2dq, size, &[x]),
            (U32, F32) => self.u32_to_float(size, x),
            (F32, U32) if self.features.avx512 => self.vec_def(M::Vcvttps2udq, size, &[x]),
            (I64, F32) if self.features.avx512 => self.vec_def(M::Vcvtqq2ps, size, &[x]),
            (F32, I64) if self.features.avx512 => {
                let x = resize(x, Size::vector(size.bytes() / 2));
                self.vec_def(M::Vcvttps2qq, size, &[x])
            }
            (I64, F32) => {
                let v = self.in_register(x, source);
                self.per_lane(F32.vec(lanes), &[(v, from.vec(lanes))], |l, x| {
                    let zero = l.zero();
                    l.vec_def(M::Vcvtsi2ss, Size::X, &[Arg::Use(zero, Size::X), Arg::Use(x[0], Size::B8)])
                })
            }
            (F32, U32 | I64) => {
                let v = self.in_register(x, source);
                self.per_lane(to.vec(lanes), &[(v, from.vec(lanes))], |l, x| {
                    l.int_def(M::Vcvttss2si, Size::B8, &[Arg::Use(x[0], Size::X)])
                })
            }
            (_, F32) => {
                let i = self.vector_cast(from, I32, lanes, x);
                self.vector_cast(I32, F32, lanes, Arg::Use(i, sized(I32)))
            }
            (F32, _) => {
                let i = self.vector_cast(F32, I32, lanes, x);
                self.vector_cast(I32, to, lanes, Arg::Use(i, sized(I32)))
            }
            _ if from.bytes() == to.bytes() => self.in_register(x, size),
            _ if from.bytes() < to.bytes() => {
                let x = resize(x, Size::vector(size.bytes() * from.bytes() / to.bytes()));
                self.vec_def(widen(from.is_signed(), from.bytes(), to.bytes()), size, &[x])
            }
            _ => {
                let v = self.in_register(x, source);
                self.narrow(from.bytes(), to.bytes(), source, v)
            }
        }
    }

    /// For vectors that do not fit when they are widened on the way.
    fn cast_halves(&mut self, from: Scalar, to: Scalar, lanes: u16, x: Arg) -> VReg {
        let source = Size::vector(lanes as usize * from.bytes());
        let half = Size::vector(lanes as usize / 2 * from.bytes());
        let x = self.in_register(x, source);
        let high = self.high_half(x, lanes as usize * from.bytes());
        let [low, high] = [x, high].map(|v| self.vector_cast(from, to, lanes / 2, Arg::Use(v, half)));
        if to == Scalar::Bool {
            let up = self.int_tied(M::Shl, Size::B8, high, Arg::Imm(lanes as i64 / 2));
            return self.int_tied(M::Or, Size::B8, low, Arg::Use(up, Size::B8));
        }
        let (a, b) = (Arg::Use(low, Size::X), Arg::Use(high, Size::X));
        match lanes as usize / 2 * to.bytes() {
            32 => {
                let args = [Arg::Use(low, Size::Z), Arg::Use(high, Size::Y), Arg::Imm(1)];
                self.vec_def(M::Vinserti64x4, Size::Z, &args)
            }
            16 => self.join(low, high, 1, Size::Y),
            8 => self.vec_def(M::Vpunpcklqdq, Size::X, &[a, b]),
            n => panic!("half a vector of {n} bytes fits when widened"),
        }
    }

    /// Keeps the low bytes of every element.
    fn narrow(&mut self, from: usize, to: usize, size: Size, v: VReg) -> VReg {
        let ratio = from / to;
        if self.features.avx512 {
            let d = self.vec();
            let half = Size::vector(size.bytes() / ratio);
            self.op(narrow(from, to), &[Arg::Def(d, half), Arg::Use(v, size)]);
            return d;
        }
        let part = 16 / ratio;
        let order: Vec<u8> = (0..size.bytes())
            .map(|b| if b % 16 < part { (b % 16 / to * from + b % to) as u8 } else { 0x80 })
            .collect();
        let order = self.constant_at(&order);
        let low = self.vec_def(M::Vpshufb, size, &[Arg::Use(v, size), Arg::Mem(order)]);
        if size == Size::X {
            return low;
        }
        let high = self.vec_def(M::Vextracti128, Size::X, &[Arg::Use(low, size), Arg::Imm(1)]);
        let m = match part {
            8 => M::Vpunpcklqdq,
            4 => M::Vpunpckldq,
            _ => M::Vpunpcklwd,
        };
        self.vec_def(m, Size::X, &[Arg::Use(low, Size::X), Arg::Use(high, Size::X)])
    }

    fn u32_to_float(&mut self, size: Size, x: Arg) -> VReg {
        if self.features.avx512 {
            return self.vec_def(M::Vcvtudq2ps, size, &[x]);
        }
        // Halves convert exactly; the sum rounds once.
        let v = Arg::Use(self.in_register(x, size), size);
        let low_mask = self.vector_arg(splat(Scalar::U32, Bits(0xffff)), size, 4);
        let low = self.vec_def(M::Vpand, size, &[v, low_mask]);
        let low = self.vec_def(M::Vcvtdq2ps, size, &[Arg::Use(low, size)]);
        let high = self.vec_def(M::Vpsrld, size, &[v, Arg::Imm(16)]);
        let high = self.vec_def(M::Vcvtdq2ps, size, &[Arg::Use(high, size)]);
        let scale = self.vector_arg(splat(Scalar::F32, Bits::float(65536.0)), size, 4);
        let d = self.vec();
        self.op(M::Vfmadd231ps, &[Arg::Tied(d, low, size), Arg::Use(high, size), scale]);
        d
    }

    /// To nearest, ties to even, in integer arithmetic (the instruction flushes denormals); NaNs stay NaNs.
    fn round_to_bf16(&mut self, size: Size, x: Arg) -> VReg {
        let v = self.in_register(x, size);
        let x = Arg::Use(v, size);
        let upper = self.vec_def(M::Vpsrld, size, &[x, Arg::Imm(16)]);
        let one = self.vector_arg(splat(Scalar::U32, Bits(1)), size, 4);
        let odd = self.vec_def(self.bitwise(Binary::And), size, &[Arg::Use(upper, size), one]);
        let bias = self.vector_arg(splat(Scalar::U32, Bits(0x7fff)), size, 4);
        let bias = self.vec_def(M::Vpaddd, size, &[Arg::Use(odd, size), bias]);
        let sum = self.vec_def(M::Vpaddd, size, &[Arg::Use(bias, size), x]);
        let rounded = self.vec_def(M::Vpsrld, size, &[Arg::Use(sum, size), Arg::Imm(16)]);
        let quiet = self.vector_arg(splat(Scalar::U32, Bits(0x40)), size, 4);
        let nan = self.vec_def(self.bitwise(Binary::Or), size, &[Arg::Use(upper, size), quiet]);
        const UNORDERED: Arg = Arg::Imm(3);
        let bits = if self.features.avx512 {
            self.op(M::Vcmpps, &[super::mask::K, x, x, UNORDERED]);
            self.blend_k(Scalar::U32, size, nan, rounded)
        } else {
            let is_nan = self.vec_def(M::Vcmpps, size, &[x, x, UNORDERED]);
            self.blend_elements(size, is_nan, nan, rounded)
        };
        self.narrow(4, 2, size, bits)
    }

    /// Two f32x16 or bf16x16, or the upper halves of two u32x16, as one bf16x32, lane by lane side by side.
    pub fn pairs(&mut self, args: &[Reg]) -> VReg {
        assert!(self.features.amx, "{} has pairs of bf16, which come with AMX", self.p.name);
        let [low, high] = [args[0], args[1]].map(|r| Arg::Use(self.reg(r), Size::Z));
        if self.p.dtype(args[0]).scalar == Scalar::U32 {
            const A_OR_BOTH_B_AND_C: Arg = Arg::Imm(0xf8);
            let low = self.vec_def(M::Vpsrld, Size::Z, &[low, Arg::Imm(16)]);
            let upper = self.vector_arg(splat(Scalar::U32, Bits(0xffff_0000)), Size::Z, 4);
            let d = self.vec();
            self.op(M::Vpternlogd, &[Arg::Tied(d, low, Size::Z), high, upper, A_OR_BOTH_B_AND_C]);
            return d;
        }
        let halves = match self.p.dtype(args[0]).scalar {
            Scalar::BF16 => {
                self.vec_def(M::Vinserti64x4, Size::Z, &[low, resize(high, Size::Y), Arg::Imm(1)])
            }
            _ => self.vec_def(M::Vcvtne2ps2bf16, Size::Z, &[high, low]),
        };
        let order: Vec<u8> = (0..32u16).flat_map(|l| (l / 2 + l % 2 * 16).to_le_bytes()).collect();
        let order = self.constant_at(&order);
        let order = self.cached(Cached::Interleave, |l| l.load_vector(64, order));
        self.vec_def(M::Vpermw, Size::Z, &[Arg::Use(order, Size::Z), Arg::Use(halves, Size::Z)])
    }

    pub fn bitcast(&mut self, t: DType, from: Reg) -> VReg {
        let source = self.p.dtype(from);
        let v = self.reg(from);
        match (source.scalar, t.scalar) {
            (a, b) if a == b => v,
            (Scalar::Bool, _) if t.lanes > 1 => self.mask_to_bytes(v, t.lanes),
            (_, Scalar::Bool) if t.lanes > 1 => self.bytes_to_mask(v, t.lanes),
            _ if t.lanes > 1 => v,
            (Scalar::F32, to) => {
                let raw = self.int_def(M::Vmovd, Size::B4, &[Arg::Use(v, Size::X)]);
                if to == Scalar::I32 { self.wrap(to, raw) } else { raw }
            }
            (from, Scalar::F32) => self.first_lane(from, v),
            (_, to) => self.wrap(to, v),
        }
    }
}

/// The same operand, named by another width.
fn resize(x: Arg, size: Size) -> Arg {
    match x {
        Arg::Use(v, _) => Arg::Use(v, size),
        x => x,
    }
}
