//! Bytes on their way to floats: a program in, for each i32 vector which bytes plus which constant it is, and which of
//! them are never needed as integers.
//!
//! A byte is the low end of the float 2^23 + b, so that one permutation and one addition, which takes the constant along,
//! convert it; through integers it is taken out, added to and converted by the slower units. It is also the middle of
//! 2^7 + b, which has so few bits that a factor can be taken along in one operation: `(2^7 + b)·d + (c − 2^7)·d`. This is
//! for what is rounded and multiplied by a warp: it has another zero than `(b + c)·d` where d is negative, and the last
//! bits of a factor of more than 16.

use super::asm::Piece;
use super::facts::Fact;
use super::{Emitter, packed};
use crate::dtype::{DType, Scalar};
use crate::linear::{Inst, Linear, Op, Reg};
use crate::scalar::Binary;
use std::collections::{HashMap, HashSet};

/// 2^23, whose last bit is worth one, and its bits.
const BASE: i64 = 1 << 23;
const BASE_BITS: u32 = 0x4b00_0000;

/// 2^7, whose bytes hold seven bits of the number in the middle.
const SMALL: i64 = 1 << 7;
const SMALL_BITS: u32 = 0x4300_0000;

#[derive(Default)]
pub(super) struct Bytes {
    /// The bytes behind a vector, and what is added to each.
    of: HashMap<Reg, (Reg, i64)>,
    unneeded: HashSet<Reg>,
    /// Floats of such vectors that are only multiplied.
    factors: HashMap<Reg, (Reg, i64)>,
}

impl Bytes {
    pub fn new(program: &Linear, facts: &[Fact]) -> Bytes {
        let mut found = Bytes::default();
        let mut users: HashMap<Reg, Vec<&Inst>> = HashMap::new();
        for inst in &program.code {
            inst.uses().into_iter().for_each(|r| users.entry(r).or_default().push(inst));
            let Inst::Op { dst, op, args } = inst else { continue };
            let of = match op {
                Op::Cast if program.dtype(*dst).scalar == Scalar::I32 => {
                    let from = program.dtype(args[0]);
                    (from.scalar == Scalar::U8 && packed(from)).then_some((args[0], 0))
                }
                Op::Binary(Binary::Add) => {
                    let sum = |a: Reg, b: Reg| {
                        let (bytes, c) = *found.of.get(&a)?;
                        let c = c + facts[b.0 as usize].constant()?;
                        (c.abs() < BASE / 2).then_some((bytes, c))
                    };
                    sum(args[0], args[1]).or_else(|| sum(args[1], args[0]))
                }
                _ => None,
            };
            found.of.extend(of.map(|of| (*dst, of)));
        }
        for inst in program.code.iter().rev() {
            let Inst::Op { dst, .. } = inst else { continue };
            let spared = |user: &&Inst| match user {
                Inst::Op { dst, op: Op::Cast, .. } => program.dtype(*dst).scalar == Scalar::F32,
                Inst::Op { dst, .. } => found.unneeded.contains(dst),
                _ => false,
            };
            if found.of.contains_key(dst) && users.get(dst).is_some_and(|all| all.iter().all(spared)) {
                found.unneeded.insert(*dst);
            }
        }
        let rounded = rounded(program, &users);
        for inst in &program.code {
            let Inst::Op { dst, op: Op::Cast, args } = inst else { continue };
            let bytes = found.behind(args[0], program.dtype(args[0]));
            let small = |(bytes, _): &(Reg, i64)| facts[bytes.0 as usize].hi < SMALL;
            let multiplied = |user: &&Inst| match user {
                Inst::Op { dst: product, op: Op::Binary(Binary::Mul), args } => {
                    let other = if args[0] == *dst { args[1] } else { args[0] };
                    rounded.contains(product) && other != *dst && !found.factors.contains_key(&other)
                }
                _ => false,
            };
            if let Some(bytes) = bytes.filter(small)
                && program.dtype(*dst).scalar == Scalar::F32
                && users.get(dst).is_some_and(|all| all.iter().all(multiplied))
            {
                found.factors.insert(*dst, bytes);
                found.unneeded.insert(*dst);
            }
        }
        found
    }

    /// Of a product the bytes, what is added to each, and the other factor.
    pub fn scaled(&self, [a, b]: [Reg; 2]) -> Option<((Reg, i64), Reg)> {
        let own = |x: Reg, other: Reg| Some((*self.factors.get(&x)?, other));
        own(a, b).or_else(|| own(b, a))
    }

    pub fn unneeded(&self, r: Reg) -> bool {
        self.unneeded.contains(&r)
    }

    /// The bytes that a value is made of, and what is added to each.
    pub fn behind(&self, r: Reg, t: DType) -> Option<(Reg, i64)> {
        let itself = (t.scalar == Scalar::U8 && packed(t)).then_some((r, 0));
        self.of.get(&r).copied().or(itself)
    }
}

/// Floats that reach nothing but a warp's products, where they are rounded to bf16.
fn rounded(program: &Linear, users: &HashMap<Reg, Vec<&Inst>>) -> HashSet<Reg> {
    let mut found: HashSet<Reg> = HashSet::new();
    for inst in program.code.iter().rev() {
        let Inst::Op { dst, .. } = inst else { continue };
        let ends = |user: &&Inst| match user {
            Inst::Mma { a, b, .. } => a.contains(dst) || b == dst,
            Inst::Op { dst, op: Op::Cast, .. } => {
                program.dtype(*dst).scalar == Scalar::BF16 && found.contains(dst)
            }
            Inst::Op { dst, op: Op::Binary(Binary::Add | Binary::Sub), .. } => found.contains(dst),
            _ => false,
        };
        let t = program.dtype(*dst).scalar;
        if matches!(t, Scalar::F32 | Scalar::BF16) && users.get(dst).is_some_and(|all| all.iter().all(ends)) {
            found.insert(*dst);
        }
    }
    found
}

impl Emitter<'_> {
    /// Each byte plus a constant, times a factor.
    pub(super) fn scaled_bytes(&mut self, (bytes, plus): (Reg, i64), factor: Reg) -> Vec<Piece> {
        let lanes = self.dtype(bytes).lanes as usize;
        let (words, factors) = (self.value(bytes), self.value(factor));
        let base = self.asm.reg(Piece::word(SMALL_BITS));
        let float = |l: usize| {
            let word = self.asm.reg(words[l / 4]);
            // Bytes 0 and 0 of the base, byte l, byte 3 of the base.
            let raw = self.asm.r("prmt.b32", &[word, base, Piece::int(0x7044 + ((l as i64 % 4) << 8))]);
            let rest = self.asm.r("mul.rn.f32", &[factors[l], Piece::float((plus - SMALL) as f32)]);
            self.asm.r("fma.rn.f32", &[raw, factors[l], rest])
        };
        (0..lanes).map(float).collect()
    }

    /// Each byte of a value plus a constant, as f32.
    pub(super) fn floats_of_bytes(&mut self, (bytes, plus): (Reg, i64)) -> Vec<Piece> {
        let lanes = self.dtype(bytes).lanes as usize;
        let words = self.value(bytes);
        let base = self.asm.reg(Piece::word(BASE_BITS));
        let float = |l: usize| {
            let word = self.asm.reg(words[l / 4]);
            // Byte l, then bytes 0, 0 and 3 of the base.
            let raw = self.asm.r("prmt.b32", &[word, base, Piece::int(0x7440 + l as i64 % 4)]);
            self.asm.r("add.rn.f32", &[raw, Piece::float((plus - BASE) as f32)])
        };
        (0..lanes).map(float).collect()
    }
}
