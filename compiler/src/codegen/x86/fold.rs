//! Vectors folded to single lanes.
//!
//! In: vectors of one type. Out: a vector with a lane for each, its fold. Every step halves what is left of a vector by
//! folding one half into the other. Where there are several, two share a step: the first halves of both side by side, and
//! the second ones, so that 16 sums of 16 lanes take 47 instructions; one by one it is 128 and putting them together.

use super::lower::Lower;
use super::mach::{Arg, Size};
use crate::dtype::{DType, Scalar};
use crate::linear::Reg;
use crate::scalar::Fold;
use iced_x86::Mnemonic as M;
use regalloc2::VReg;

/// A vector on the way, and for each of its words whose fold it is part of.
type Part = (VReg, Vec<usize>);

impl Lower<'_> {
    pub fn folds(&mut self, f: Fold, t: DType, args: &[Reg]) -> VReg {
        let from = self.p.dtype(args[0]);
        let (n, words) = (args.len(), from.lanes as usize);
        if n == 1 {
            return self.fold(f, args[0]);
        }
        if t.scalar.bytes() != 4 || words < 4.max(n) || !n.is_power_of_two() {
            return self.build_vector(t, |l, lane| l.fold(f, args[lane]));
        }
        let whole = |(i, r): (usize, &Reg)| (self.reg(*r), vec![i; words]);
        let mut parts: Vec<Part> = args.iter().enumerate().map(whole).collect();
        let mut half = words / 2;
        while half > 0 {
            let pairs = parts.chunks(2).map(|pair| match pair {
                [a, b] => self.two_halved(f, from, half, a, b),
                alone => self.one_halved(f, from, half, &alone[0]),
            });
            parts = pairs.collect();
            half /= 2;
        }
        let (v, owners) = &parts[0];
        let place = |i: usize| owners.iter().position(|o| *o == i).expect("every fold has a word");
        let order: Vec<usize> = (0..words).map(|w| place(w % n)).collect();
        let size = Size::vector(from.bytes());
        match size {
            _ if order[..n].iter().enumerate().all(|(i, w)| i == *w) => *v,
            Size::X => {
                let order = order.iter().rev().fold(0, |all, w| all << 2 | *w as i64);
                self.vec_def(M::Vpshufd, size, &[Arg::Use(*v, size), Arg::Imm(order)])
            }
            _ => self.words(*v, size, |w| order[w]),
        }
    }

    /// Groups of two halves in both vectors become groups of one half, side by side in one vector.
    fn two_halved(&mut self, f: Fold, t: DType, half: usize, a: &Part, b: &Part) -> Part {
        let (size, words) = (Size::vector(t.bytes()), t.lanes as usize);
        let (m, [low, high]) = match (half, size) {
            (8, _) => (M::Vshufi64x2, [0x44, 0xee]),
            (4, Size::Z) => (M::Vshufi32x4, [0x88, 0xdd]),
            (4, _) if self.features.avx512 => (M::Vshufi32x4, [0, 3]),
            (4, _) => (M::Vperm2i128, [0x20, 0x31]),
            (2, _) => (M::Vshufps, [0x44, 0xee]),
            _ => (M::Vshufps, [0x88, 0xdd]),
        };
        let both = [Arg::Use(a.0, size), Arg::Use(b.0, size)];
        let [low, high] =
            [low, high].map(|which| self.vec_def(m, size, &[&both[..], &[Arg::Imm(which)]].concat()));
        let v = self.vector_binary(f.binary(), t, low, Arg::Use(high, size));
        // Halves of 16 bytes and more move through the whole vector, others within 16 bytes.
        let span = if half >= 4 { words } else { 4 };
        let owner = |w: usize| {
            let (start, at) = (w / span * span, w % (span / 2));
            let from = if w % span < span / 2 { a } else { b };
            from.1[start + at / half * 2 * half + at % half]
        };
        (v, (0..words).map(owner).collect())
    }

    /// Every half folded with the other one of its group: of vectors that two at least have been folded into before.
    fn one_halved(&mut self, f: Fold, t: DType, half: usize, a: &Part) -> Part {
        let size = Size::vector(t.bytes());
        let v = Arg::Use(a.0, size);
        let other = match half {
            4 => self.vec_def(M::Vshufi32x4, size, &[v, v, Arg::Imm(0xb1)]),
            2 => self.vec_def(M::Vpshufd, size, &[v, Arg::Imm(0x4e)]),
            1 => self.vec_def(M::Vpshufd, size, &[v, Arg::Imm(0xb1)]),
            n => unreachable!("halves of {n} words have come in pairs"),
        };
        (self.vector_binary(f.binary(), t, a.0, Arg::Use(other, size)), a.1.clone())
    }

    fn fold(&mut self, f: Fold, from: Reg) -> VReg {
        let t = self.p.dtype(from);
        let mut v = self.reg(from);
        let mut lanes = t.lanes;
        if lanes == 1 {
            return v;
        }
        assert!(t.scalar != Scalar::Bool, "bools do not fold");
        while lanes > 1 {
            lanes /= 2;
            let half = t.with_lanes(lanes);
            let high = self.high_half(v, 2 * half.bytes());
            let high = Arg::Use(high, Size::vector(half.bytes()));
            v = self.vector_binary(f.binary(), half, v, high);
        }
        self.extract_lane(t.scalar, Size::X, v, 0)
    }
}
