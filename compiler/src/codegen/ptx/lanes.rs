//! Moving lanes about: packing, unpacking, permuting, casting, table lookup, folding across lanes and threads.
//!
//! Invariant: what `unpack` gives is one register a lane, integers extended to 32 bits, and `pack` is its inverse.

use super::arith::narrow;
use super::asm::Piece;
use super::{Emitter, packed, per_register};
use crate::dtype::{DType, Scalar};
use crate::linear::Reg;
use crate::scalar::Fold;

/// The bytes of a word to build: which byte of which register, or none that matters.
pub(super) type Bytes = [Option<(Piece, usize)>; 4];

impl Emitter<'_> {
    /// Extends the low bits of a word to what a scalar of type `s` is kept as.
    pub(super) fn normalise(&mut self, s: Scalar, p: Piece) -> Piece {
        match s {
            Scalar::I8 => self.asm.r("cvt.s32.s8", &[p]),
            Scalar::I16 => self.asm.r("cvt.s32.s16", &[p]),
            Scalar::U8 => self.asm.r("and.b32", &[p, Piece::word(0xff)]),
            Scalar::U16 => self.asm.r("and.b32", &[p, Piece::word(0xffff)]),
            _ => p,
        }
    }

    /// Lane `l` of a value.
    pub(super) fn lane(&mut self, v: &[Piece], t: DType, l: usize) -> Piece {
        let (per, bits) = (per_register(t.scalar), t.scalar.bits() as usize);
        let p = v[l / per];
        let at = Piece::int((l % per * bits) as i64);
        match t.scalar {
            _ if !packed(t) => p,
            Scalar::F16 | Scalar::BF16 if l.is_multiple_of(per) => p,
            Scalar::F16 | Scalar::BF16 => {
                let half = self.asm.r("shr.u32", &[p, at]);
                self.upper.insert(half, p);
                half
            }
            s if s.is_signed() => self.asm.r("bfe.s32", &[p, at, Piece::int(bits as i64)]),
            _ => self.asm.r("bfe.u32", &[p, at, Piece::int(bits as i64)]),
        }
    }

    pub(super) fn unpack(&mut self, v: &[Piece], t: DType) -> Vec<Piece> {
        (0..t.lanes as usize).map(|l| self.lane(v, t, l)).collect()
    }

    /// Lanes in registers of their own become a value of type `t`; only their low bits count.
    pub(super) fn pack(&mut self, lanes: &[Piece], t: DType) -> Vec<Piece> {
        if !packed(t) {
            return lanes.to_vec();
        }
        let size = t.scalar.bytes();
        let word = |c: &[Piece]| {
            let byte = |b: usize| {
                let p = c.get(b / size)?;
                // An upper half is taken from where it was.
                let whole = self.upper.get(p).filter(|_| size == 2);
                Some(whole.map_or((*p, b % size), |w| (*w, 2 + b % size)))
            };
            self.permute([0, 1, 2, 3].map(byte))
        };
        lanes.chunks(per_register(t.scalar)).map(word).collect()
    }

    /// Builds a word byte by byte.
    pub(super) fn permute(&mut self, bytes: Bytes) -> Piece {
        let mut sources: Vec<Piece> = vec![];
        for (p, _) in bytes.into_iter().flatten() {
            if !sources.contains(&p) {
                sources.push(p);
            }
        }
        let in_place = bytes.iter().enumerate().all(|(i, b)| b.is_none_or(|b| b.1 == i));
        if in_place && sources.len() == 1 {
            return sources[0];
        }
        let mut word = sources[0];
        for (n, source) in sources.iter().enumerate().filter(|(n, _)| *n > 0 || sources.len() == 1) {
            // Nibble i of the selector names the byte that goes to i: 0-3 of the word so far, 4-7 of the new source.
            let mut selector = 0;
            for (i, byte) in bytes.iter().enumerate() {
                let from = match byte {
                    Some((p, b)) if p == source && n > 0 => b + 4,
                    Some((p, b)) if *p == sources[0] && n <= 1 => *b,
                    _ => i,
                };
                selector |= from << (4 * i);
            }
            word = self.asm.r("prmt.b32", &[word, *source, Piece::int(selector as i64)]);
        }
        word
    }

    /// Lane i of the result is lane `from[i]` of the value.
    pub(super) fn select(&mut self, v: &[Piece], t: DType, from: &[usize]) -> Vec<Piece> {
        if let [one] = from {
            return vec![self.lane(v, t, *one)];
        }
        let per = per_register(t.scalar);
        if per == 1 {
            let wide = t.scalar == Scalar::I64;
            let pick = |l: &usize| if wide { self.asm.wide(v[*l]) } else { v[*l] };
            return from.iter().map(pick).collect();
        }
        let size = t.scalar.bytes();
        let byte =
            |lanes: &[usize], b: usize| lanes.get(b / size).map(|l| (v[l / per], l % per * size + b % size));
        let words: Vec<Bytes> = from.chunks(per).map(|c| [0, 1, 2, 3].map(|b| byte(c, b))).collect();
        words.into_iter().map(|w| self.permute(w)).collect()
    }

    pub(super) fn cast(&mut self, from: DType, to: DType, v: &[Piece]) -> Vec<Piece> {
        use Scalar::*;
        match (from.scalar, to.scalar) {
            (a, b) if a == b => v.to_vec(),
            (I32, U32) | (U32, I32) => v.to_vec(),
            (I8, U8) | (U8, I8) | (I16, U16) | (U16, I16) if packed(to) => v.to_vec(),
            (F16 | BF16, F32) => self.widen_floats(v, from),
            (F32, F16 | BF16) => self.narrow_floats(v, to),
            (F16 | BF16, _) => {
                let single = self.widen_floats(v, from);
                self.cast(F32.vec(from.lanes), to, &single)
            }
            (_, F16 | BF16) => {
                let single = self.cast(from, F32.vec(from.lanes), v);
                self.narrow_floats(&single, to)
            }
            (a, b) => {
                let lanes = self.unpack(v, from);
                let lanes: Vec<_> = lanes.into_iter().map(|p| self.cast_lane(a, b, packed(to), p)).collect();
                self.pack(&lanes, to)
            }
        }
    }

    fn widen_floats(&mut self, v: &[Piece], t: DType) -> Vec<Piece> {
        let mut lanes = vec![];
        for (i, p) in v.iter().enumerate() {
            let both = 2 * i + 1 < t.lanes as usize;
            if t.scalar == Scalar::BF16 {
                lanes.push(self.asm.r("shl.b32", &[*p, Piece::int(16)]));
                if both {
                    lanes.push(self.asm.r("and.b32", &[*p, Piece::word(0xffff_0000)]));
                }
            } else {
                let halves = self.asm.halves(*p);
                let used = &halves[..1 + both as usize];
                lanes.extend(used.iter().map(|h| self.asm.r("cvt.f32.f16", &[*h])));
            }
        }
        lanes
    }

    fn narrow_floats(&mut self, v: &[Piece], to: DType) -> Vec<Piece> {
        let op = if to.scalar == Scalar::F16 { "cvt.rn.f16x2.f32" } else { "cvt.rn.bf16x2.f32" };
        let pair = |c: &[Piece]| {
            let [lo, hi] = [c[0], *c.get(1).unwrap_or(&c[0])];
            self.asm.r(op, &[hi, lo])
        };
        v.chunks(2).map(pair).collect()
    }

    /// One lane between bool, integers and f32. With `low` only the result's low bits matter.
    fn cast_lane(&mut self, from: Scalar, to: Scalar, low: bool, p: Piece) -> Piece {
        use Scalar::*;
        let (zero, one) = (Piece::Imm(0), Piece::Imm(1));
        match (from, to) {
            (Bool, F32) => {
                let p = self.asm.pred(p);
                self.asm.r("selp.b32", &[Piece::float(1.0), zero, p])
            }
            (Bool, I64) => {
                let p = self.asm.pred(p);
                self.asm.d("selp.b64", &[one, zero, p])
            }
            (Bool, _) => {
                let p = self.asm.pred(p);
                self.asm.r("selp.b32", &[one, zero, p])
            }
            (F32, Bool) => self.asm.p("setp.neu.f32", &[p, zero]),
            (I64, Bool) => {
                let p = self.asm.wide(p);
                self.asm.p("setp.ne.s64", &[p, zero])
            }
            (_, Bool) => self.asm.p("setp.ne.s32", &[p, zero]),
            (F32, I64) => self.asm.d("cvt.rzi.s64.f32", &[p]),
            (F32, U32) => self.asm.r("cvt.rzi.u32.f32", &[p]),
            (F32, _) => {
                let i = self.asm.r("cvt.rzi.s32.f32", &[p]);
                if low { i } else { self.normalise(to, i) }
            }
            (I64, F32) if !narrow(p) => self.asm.r("cvt.rn.f32.s64", &[p]),
            (U32 | U16 | U8, F32) => self.asm.r("cvt.rn.f32.u32", &[p]),
            (_, F32) => self.asm.r("cvt.rn.f32.s32", &[p]),
            (U32, I64) => self.asm.d("cvt.u64.u32", &[p]),
            (_, I64) => self.asm.d("cvt.s64.s32", &[p]),
            _ => {
                let word = self.asm.low(p);
                if low || to.bytes() == 4 { word } else { self.normalise(to, word) }
            }
        }
    }

    pub(super) fn bitcast(&mut self, to: DType, v: &[Piece]) -> Vec<Piece> {
        if to.lanes > 1 { v.to_vec() } else { vec![self.normalise(to.scalar, v[0])] }
    }

    /// `table[x & 15]` in every byte. A permute looks up eight entries; bit 3 chooses between two of them.
    pub(super) fn lookup(&mut self, table: u128, v: &[Piece], from: DType, to: DType) -> Vec<Piece> {
        let entries = [0, 32, 64, 96].map(|at| Piece::word((table >> at) as u32));
        let entries = entries.map(|e| self.asm.reg(e));
        let mut words = vec![];
        for x in v {
            // Three bits a byte at 0, 8, 16, 24 become a selector with three bits at 0, 4, 8, 12.
            let low = self.asm.r("and.b32", &[*x, Piece::word(0x0707_0707)]);
            let pairs = self.asm.r("shr.u32", &[low, Piece::int(4)]);
            let pairs = self.asm.r("or.b32", &[low, pairs]);
            let selector = self.asm.r("prmt.b32", &[pairs, pairs, Piece::word(0x20)]);
            let first = self.asm.r("prmt.b32", &[entries[0], entries[1], selector]);
            let second = self.asm.r("prmt.b32", &[entries[2], entries[3], selector]);
            // Bit 3 moved to the byte's sign, which selectors 8 and up spread over the byte.
            let sign = self.asm.r("shl.b32", &[*x, Piece::int(4)]);
            let upper = self.asm.r("prmt.b32", &[sign, sign, Piece::word(0xba98)]);
            // a ? b : c by bits.
            words.push(self.asm.r("lop3.b32", &[upper, second, first, Piece::word(0xca)]));
        }
        if from.lanes == 1 { vec![self.normalise(to.scalar, words[0])] } else { words }
    }

    /// A vector of these lanes.
    pub(super) fn stack(&mut self, lanes: Vec<Piece>, t: DType) -> Vec<Piece> {
        let wide = t.scalar == Scalar::I64 && t.lanes > 1;
        let all: Vec<_> = lanes.into_iter().map(|p| if wide { self.asm.wide(p) } else { p }).collect();
        self.pack(&all, t)
    }

    pub(super) fn fold(&mut self, fold: Fold, v: &[Piece], t: DType) -> Vec<Piece> {
        let mut lanes = self.unpack(v, t);
        while lanes.len() > 1 {
            // Halves against halves: the tree is shallow and each step's operations are independent.
            let half = lanes.len().div_ceil(2);
            let upper = lanes.split_off(half);
            for (a, b) in lanes.iter_mut().zip(upper) {
                *a = self.binary_lane(fold.binary(), t.scalar, *a, b, true);
            }
        }
        lanes
    }

    pub(super) fn lane_reduce(&mut self, src: Reg, fold: Fold, width: u32) -> Vec<Piece> {
        let t = self.dtype(src);
        assert!(width.is_power_of_two() && width <= 32, "lane groups of {width}");
        let v = self.value(src);
        let mut lanes = self.unpack(&v, t);
        if t.scalar == Scalar::I64 {
            lanes = lanes.into_iter().map(|p| self.asm.wide_reg(p)).collect();
        }
        let mut distance = width / 2;
        while distance > 0 {
            for lane in &mut lanes {
                let other = self.shuffle(t.scalar, *lane, distance);
                *lane = self.binary_lane(fold.binary(), t.scalar, *lane, other, true);
            }
            distance /= 2;
        }
        self.pack(&lanes, t)
    }

    /// The unit wants the first two inputs of both rows, then the others.
    pub(super) fn mma(&mut self, acc: Reg, [first, second]: [Reg; 2], b: Reg) -> Vec<Piece> {
        let half = self.dtype(b).scalar;
        let [first, second, b] = [first, second, b].map(|r| self.registers(r));
        let acc = self.registers(acc);
        let a = [first[0], second[0], first[1], second[1]];
        let dst: Vec<Piece> = (0..4).map(|_| self.asm.fresh_r()).collect();
        let op = match half {
            Scalar::F16 => "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
            _ => "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        };
        self.asm.tuples(op, &[&dst, &a, &b, &acc]);
        dst
    }

    /// The value without constants among its registers.
    fn registers(&mut self, r: Reg) -> Vec<Piece> {
        self.value(r).into_iter().map(|p| self.asm.reg(p)).collect()
    }

    /// The value in the thread whose number differs in the bits of `distance`.
    fn shuffle(&mut self, s: Scalar, p: Piece, distance: u32) -> Piece {
        if s == Scalar::I64 {
            let halves = self.asm.split(p).map(|h| self.shuffle(Scalar::I32, h, distance));
            return self.asm.join(halves);
        }
        let p = self.asm.reg(p);
        let all = Piece::word(u32::MAX);
        self.asm.r("shfl.sync.bfly.b32", &[p, Piece::int(distance as i64), Piece::word(31), all])
    }
}
