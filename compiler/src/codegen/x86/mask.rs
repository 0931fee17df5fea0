//! Bool vectors: bit masks in general registers, and their way to opmasks, to element masks and to bytes.

use super::lower::{Lower, lane_mask};
use super::mach::{Arg, Size};
use crate::dtype::Scalar;
use crate::scalar::Binary;
use iced_x86::Mnemonic as M;
use regalloc2::VReg;

/// The opmask every selection sequence uses; nothing lives in it between two linear instructions.
pub(super) const K: Arg = Arg::K(1);

impl Lower<'_> {
    pub fn mask_to_k(&mut self, mask: VReg, lanes: u16) {
        match lanes {
            64 => self.op(M::Kmovq, &[K, Arg::Use(mask, Size::B8)]),
            _ => self.op(M::Kmovd, &[K, Arg::Use(mask, Size::B4)]),
        }
    }

    fn k_to_mask(&mut self, lanes: u16, natural: usize) -> VReg {
        let mask = match lanes {
            64 => self.int_def(M::Kmovq, Size::B8, &[K]),
            _ => self.int_def(M::Kmovd, Size::B4, &[K]),
        };
        if (lanes as usize) < natural { self.keep_lanes(mask, lanes) } else { mask }
    }

    /// Clears the bits that belong to no lane.
    fn keep_lanes(&mut self, mask: VReg, lanes: u16) -> VReg {
        match lanes {
            64 => mask,
            32 => self.int_def(M::Mov, Size::B4, &[Arg::Use(mask, Size::B4)]),
            _ => self.int_tied(M::And, Size::B4, mask, Arg::Imm(lane_mask(lanes))),
        }
    }

    /// One lane as 0 or 1.
    pub fn mask_bit(&mut self, mask: VReg, lane: usize) -> VReg {
        let bit = match lane {
            0 => mask,
            _ => self.int_tied(M::Shr, Size::B8, mask, Arg::Imm(lane as i64)),
        };
        self.int_tied(M::And, Size::B4, bit, Arg::Imm(1))
    }

    /// Elements of `element` bytes, all ones where the mask has a bit (AVX2).
    pub fn expand_mask(&mut self, mask: VReg, element: usize, size: Size) -> VReg {
        let n = size.bytes() / element;
        let low = self.vec_def(M::Vmovd, Size::X, &[Arg::Use(mask, Size::B4)]);
        let bits: Vec<u8> =
            (0..n).flat_map(|l| (1u64 << (l % 32)).to_le_bytes()[..element].to_vec()).collect();
        let (spread, bits) = match element {
            1 => {
                // Byte l looks at bit l%8 of mask byte l/8.
                let all = self.vec_def(M::Vpbroadcastd, size, &[Arg::Use(low, Size::X)]);
                let which: Vec<u8> = (0..n as u8).map(|l| l / 8).collect();
                let which = self.constant_at(&which);
                let bytes = self.vec_def(M::Vpshufb, size, &[Arg::Use(all, size), Arg::Mem(which)]);
                (bytes, (0..n).map(|l| 1 << (l % 8)).collect())
            }
            2 => (self.vec_def(M::Vpbroadcastw, size, &[Arg::Use(low, Size::X)]), bits),
            4 => (self.vec_def(M::Vpbroadcastd, size, &[Arg::Use(low, Size::X)]), bits),
            _ => (self.vec_def(M::Vpbroadcastq, size, &[Arg::Use(low, Size::X)]), bits),
        };
        let at = self.constant_at(&bits);
        let bits = self.vec_def(M::Vmovups, size, &[Arg::Mem(at)]);
        let hit = self.vec_def(M::Vpand, size, &[Arg::Use(spread, size), Arg::Use(bits, size)]);
        let m = [M::Vpcmpeqb, M::Vpcmpeqw, M::Vpcmpeqd, M::Vpcmpeqq][element.ilog2() as usize];
        self.vec_def(m, size, &[Arg::Use(hit, size), Arg::Use(bits, size)])
    }

    /// The sign bits of elements as a mask (AVX2).
    fn collect_mask(&mut self, v: VReg, element: usize, size: Size, lanes: u16, inverted: bool) -> VReg {
        let v = Arg::Use(v, size);
        let mut mask = match element {
            1 => self.int_def(M::Vpmovmskb, Size::B4, &[v]),
            2 => {
                let bytes = self.int_def(M::Vpmovmskb, Size::B4, &[v]);
                let odd = self.imm(0xaaaa_aaaa);
                self.int_def(M::Pext, Size::B4, &[Arg::Use(bytes, Size::B4), Arg::Use(odd, Size::B4)])
            }
            4 => self.int_def(M::Vmovmskps, Size::B4, &[v]),
            _ => self.int_def(M::Vmovmskpd, Size::B4, &[v]),
        };
        if inverted {
            mask = self.int_tied(M::Xor, Size::B4, mask, Arg::Imm(-1));
        }
        if inverted || (lanes as usize) < size.bytes() / element {
            self.keep_lanes(mask, lanes)
        } else {
            mask
        }
    }

    /// Which bytes are not 0.
    pub fn bytes_to_mask(&mut self, v: VReg, lanes: u16) -> VReg {
        let zero = self.zero();
        let size = Size::vector(lanes as usize);
        self.compare(Binary::Ne, Scalar::U8, lanes, v, Arg::Use(zero, size))
    }

    /// 0 or 1 in every byte.
    pub fn mask_to_bytes(&mut self, mask: VReg, lanes: u16) -> VReg {
        self.mask_and(mask, lanes, 1, 0x0101_0101_0101_0101)
    }

    /// `pattern` where the mask has a bit, else 0, in elements of `element` bytes.
    pub fn mask_and(&mut self, mask: VReg, lanes: u16, element: usize, pattern: u64) -> VReg {
        let size = Size::vector(lanes as usize * element);
        if !self.features.avx512 {
            let m = self.expand_mask(mask, element, size);
            let c = self.vector_arg(pattern, size, 0);
            return self.vec_def(M::Vpand, size, &[Arg::Use(m, size), c]);
        }
        let c = self.make_vector(pattern, size);
        self.mask_to_k(mask, lanes);
        let d = self.vec();
        let m = [M::Vmovdqu8, M::Vmovdqu16, M::Vmovdqu32, M::Vmovdqu64][element.ilog2() as usize];
        self.masked(m, &[Arg::Def(d, size), Arg::Use(c, size)], true);
        d
    }

    /// Compares vectors; gives a bit mask.
    pub fn compare(&mut self, op: Binary, s: Scalar, lanes: u16, a: VReg, b: Arg) -> VReg {
        let size = Size::vector(lanes as usize * s.bytes());
        if self.features.avx512 {
            self.compare_k(op, s, size, a, b);
            return self.k_to_mask(lanes, size.bytes() / s.bytes());
        }
        let (v, inverted) = self.compare_elements(op, s, size, a, b);
        self.collect_mask(v, s.bytes(), size, lanes, inverted)
    }

    /// Compares into the opmask (AVX-512).
    pub fn compare_k(&mut self, op: Binary, s: Scalar, size: Size, a: VReg, b: Arg) {
        let m = match s {
            Scalar::F32 => M::Vcmpps,
            Scalar::I8 => M::Vpcmpb,
            Scalar::U8 => M::Vpcmpub,
            Scalar::I16 => M::Vpcmpw,
            Scalar::U16 => M::Vpcmpuw,
            Scalar::I32 => M::Vpcmpd,
            Scalar::U32 => M::Vpcmpud,
            _ => M::Vpcmpq,
        };
        let how = if s == Scalar::F32 { float_predicate(op) } else { int_predicate(op) };
        self.op(m, &[K, Arg::Use(a, size), b, Arg::Imm(how)]);
    }

    /// Compares into all-ones elements (AVX2); the flag says that ones stand for false.
    pub fn compare_elements(&mut self, op: Binary, s: Scalar, size: Size, a: VReg, b: Arg) -> (VReg, bool) {
        let use_a = Arg::Use(a, size);
        if s == Scalar::F32 {
            return (self.vec_def(M::Vcmpps, size, &[use_a, b, Arg::Imm(float_predicate(op))]), false);
        }
        let n = s.bytes().ilog2() as usize;
        let equal = [M::Vpcmpeqb, M::Vpcmpeqw, M::Vpcmpeqd, M::Vpcmpeqq][n];
        let greater = [M::Vpcmpgtb, M::Vpcmpgtw, M::Vpcmpgtd, M::Vpcmpgtq][n];
        match (op, s.is_signed()) {
            (Binary::Eq, _) => (self.vec_def(equal, size, &[use_a, b]), false),
            (Binary::Ne, _) => (self.vec_def(equal, size, &[use_a, b]), true),
            (Binary::Le, true) => (self.vec_def(greater, size, &[use_a, b]), true),
            (_, true) => {
                let b = self.in_register(b, size);
                (self.vec_def(greater, size, &[Arg::Use(b, size), use_a]), false)
            }
            // a <= b is min(a, b) = a; a < b is not b <= a.
            (Binary::Le, false) => {
                let least = self.vec_def([M::Vpminub, M::Vpminuw, M::Vpminud][n], size, &[use_a, b]);
                (self.vec_def(equal, size, &[Arg::Use(least, size), use_a]), false)
            }
            (_, false) => {
                let most = self.vec_def([M::Vpmaxub, M::Vpmaxuw, M::Vpmaxud][n], size, &[use_a, b]);
                (self.vec_def(equal, size, &[Arg::Use(most, size), use_a]), true)
            }
        }
    }

    /// `mask ? a : b` for vectors whose mask is in the opmask.
    pub fn blend_k(&mut self, s: Scalar, size: Size, a: VReg, b: VReg) -> VReg {
        let m = [M::Vpblendmb, M::Vpblendmw, M::Vpblendmd, M::Vpblendmq][s.bytes().ilog2() as usize];
        let d = self.vec();
        self.masked(m, &[Arg::Def(d, size), Arg::Use(b, size), Arg::Use(a, size)], false);
        d
    }

    /// `mask ? a : b` with an all-ones element mask (AVX2).
    pub fn blend_elements(&mut self, size: Size, mask: VReg, a: VReg, b: VReg) -> VReg {
        let [a, b, mask] = [a, b, mask].map(|v| Arg::Use(v, size));
        self.vec_def(M::Vpblendvb, size, &[b, a, mask])
    }
}

/// Ordered and quiet, except that `Ne` also holds for NaN.
pub(super) fn float_predicate(op: Binary) -> i64 {
    match op {
        Binary::Lt => 0x11,
        Binary::Le => 0x12,
        Binary::Eq => 0x00,
        _ => 0x04,
    }
}

fn int_predicate(op: Binary) -> i64 {
    match op {
        Binary::Eq => 0,
        Binary::Lt => 1,
        Binary::Le => 2,
        _ => 4,
    }
}
