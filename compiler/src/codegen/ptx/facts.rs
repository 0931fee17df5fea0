//! What is known of every integer register before any code is emitted: its range and how many low bits are zero.
//!
//! In: a linear program. Out: one [`Fact`] a register, true in every lane, thread and loop round. The ranges decide
//! which 64-bit indices fit 32-bit registers, the zero bits how wide a load may be.

use crate::dtype::{DType, Scalar};
use crate::linear::{Count, Inst, Linear, Op, Reg};
use crate::scalar::{Binary, Unary};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fact {
    pub lo: i64,
    pub hi: i64,
    /// The value is a multiple of 2^zeros.
    pub zeros: u32,
}

impl Fact {
    fn of(t: DType) -> Fact {
        let (lo, hi) = t.scalar.int_range();
        Fact { lo, hi, zeros: 0 }
    }
    fn between(lo: i64, hi: i64) -> Fact {
        Fact { lo, hi, zeros: 0 }
    }
    fn exactly(v: i64) -> Fact {
        Fact { lo: v, hi: v, zeros: v.trailing_zeros() }
    }
    fn either(self, o: Fact) -> Fact {
        Fact { lo: self.lo.min(o.lo), hi: self.hi.max(o.hi), zeros: self.zeros.min(o.zeros) }
    }

    pub fn constant(self) -> Option<i64> {
        (self.lo == self.hi).then_some(self.lo)
    }
    pub fn fits_i32(self) -> bool {
        i32::try_from(self.lo).is_ok() && i32::try_from(self.hi).is_ok()
    }
}

pub(super) fn facts(program: &Linear) -> Vec<Fact> {
    let mut known: Vec<Fact> = program.regs.iter().map(|t| Fact::of(*t)).collect();
    for inst in &program.code {
        match inst {
            Inst::Op { dst, op, args } if !program.dtype(*dst).is_float() => {
                let get = |i: usize| known[args[i].0 as usize];
                known[dst.0 as usize] = of_op(program, *dst, *op, args, get);
            }
            Inst::Loop { var, extent, .. } => {
                let rounds = known[extent.0 as usize].hi;
                known[var.0 as usize] = Fact::between(0, rounds.saturating_sub(1).max(0));
            }
            _ => {}
        }
    }
    known
}

fn of_op(program: &Linear, dst: Reg, op: Op, args: &[Reg], get: impl Fn(usize) -> Fact) -> Fact {
    let t = program.dtype(dst);
    let unknown = Fact::of(t);
    let from = args.first().map(|a| program.dtype(*a).scalar);
    match op {
        Op::Const(b) => Fact::exactly(b.as_int()),
        Op::Grid => match program.grid {
            Count::Const(n) => Fact::between(0, (n - 1).max(0)),
            _ => Fact::between(0, i32::MAX as i64 - 1),
        },
        Op::Thread => Fact::between(0, program.threads as i64 - 1),
        Op::Iota => Fact::between(0, t.lanes as i64 - 1),
        Op::Where => get(1).either(get(2)),
        Op::Spread | Op::Repeat | Op::Extract(_) | Op::Slice(_) => get(0),
        Op::Stack => (0..args.len()).map(get).reduce(Fact::either).unwrap_or(unknown),
        Op::Cast if from.is_some_and(|s| !s.is_float()) => fit(t.scalar, get(0)),
        Op::Unary(Unary::Neg) => {
            let a = get(0);
            fit(t.scalar, corners(a, Fact::exactly(-1), Binary::Mul).with_zeros(a.zeros))
        }
        Op::Binary(b) if !b.is_compare() && t.scalar != Scalar::Bool => {
            of_binary(b, t.scalar, get(0), get(1))
        }
        _ => unknown,
    }
}

impl Fact {
    fn with_zeros(self, zeros: u32) -> Fact {
        Fact { zeros, ..self }
    }
}

/// What survives of `f` when the value is wrapped to `s`. Zero low bits survive any wrapping.
fn fit(s: Scalar, f: Fact) -> Fact {
    let (lo, hi) = s.int_range();
    if f.lo >= lo && f.hi <= hi { f } else { Fact { lo, hi, zeros: f.zeros } }
}

/// The range of an operation that is monotone in each argument; everything if it may leave i64.
fn corners(a: Fact, b: Fact, op: Binary) -> Fact {
    let eval = |x: i64, y: i64| -> i128 {
        let (x, y) = (x as i128, y as i128);
        match op {
            Binary::Add => x + y,
            Binary::Sub => x - y,
            Binary::Mul => x * y,
            _ => x.div_euclid(y),
        }
    };
    let all = [eval(a.lo, b.lo), eval(a.lo, b.hi), eval(a.hi, b.lo), eval(a.hi, b.hi)];
    let (lo, hi) = (all.into_iter().min().unwrap(), all.into_iter().max().unwrap());
    match (i64::try_from(lo), i64::try_from(hi)) {
        (Ok(lo), Ok(hi)) => Fact::between(lo, hi),
        _ => Fact::of(DType::I64),
    }
}

fn of_binary(op: Binary, s: Scalar, a: Fact, b: Fact) -> Fact {
    use Binary::*;
    let unknown = Fact::of(s.into());
    let shift = b.constant().map(|n| (n as u32) & (s.bits() - 1));
    let below_both = |a: Fact, b: Fact| Fact::between(0, (a.hi | b.hi).checked_ilog2().map_or(0, mask_of));
    let range = match (op, shift) {
        (Add | Sub | Mul, _) => corners(a, b, op),
        // Floor and Euclidean division agree on positive divisors.
        (Div, _) if b.lo > 0 => corners(a, b, op),
        (Mod, _) if b.lo > 0 && a.lo >= 0 && a.hi < b.lo => a,
        (Mod, _) if b.lo > 0 => Fact::between(0, b.hi - 1),
        (Max, _) => Fact::between(a.lo.max(b.lo), a.hi.max(b.hi)),
        (Min, _) => Fact::between(a.lo.min(b.lo), a.hi.min(b.hi)),
        (And, _) if a.lo >= 0 && b.lo >= 0 => Fact::between(0, a.hi.min(b.hi)),
        (And, _) if a.lo >= 0 => Fact::between(0, a.hi),
        (And, _) if b.lo >= 0 => Fact::between(0, b.hi),
        (Or | Xor, _) if a.lo >= 0 && b.lo >= 0 => below_both(a, b),
        (Shl, Some(n)) if n < 63 => corners(a, Fact::exactly(1 << n), Mul),
        (Shr, Some(n)) => Fact::between(a.lo >> n, a.hi >> n),
        _ => unknown,
    };
    let zeros = match (op, shift) {
        (Add | Sub | Or | Xor | Max | Min | Mod, _) => a.zeros.min(b.zeros),
        (Mul, _) => a.zeros + b.zeros,
        (And, _) => a.zeros.max(b.zeros),
        (Shl, Some(n)) => a.zeros + n,
        (Shr, Some(n)) => a.zeros.saturating_sub(n),
        (Div, _) => match b.constant() {
            Some(d) if d > 0 && d.count_ones() == 1 => a.zeros.saturating_sub(d.trailing_zeros()),
            _ => 0,
        },
        _ => 0,
    };
    fit(s, range.with_zeros(zeros.min(64)))
}

/// All bits up to and including bit `top`.
fn mask_of(top: u32) -> i64 {
    ((1u64 << top << 1) - 1) as i64
}
