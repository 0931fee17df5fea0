//! Bytes on their way to floats: a program in, for each i32 vector which bytes plus which constant it is, and which of
//! them are never needed as integers.
//!
//! A byte is the low end of the float 2^23 + b, so that one permutation and one addition, which takes the constant along,
//! convert it; through integers it is taken out, added to and converted by the slower units.

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

#[derive(Default)]
pub(super) struct Bytes {
    /// The bytes behind a vector, and what is added to each.
    of: HashMap<Reg, (Reg, i64)>,
    unneeded: HashSet<Reg>,
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
        found
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

impl Emitter<'_> {
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
