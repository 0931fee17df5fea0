//! What every scalar operation means. The interpreters, constant folding and the tests all evaluate through here.
//!
//! Integers wrap to their type. `Div` and `Mod` of integers round towards negative infinity; dividing by zero gives 0.
//! Shift amounts count modulo the width. `Round` is half-to-even. A float outside an integer's range casts to an
//! unspecified value (never a trap); so does `Max`/`Min` with a NaN. f16 and bf16 are storage types: only casts,
//! bitcasts, loads, stores and selects touch them.

use crate::dtype::{Bits, Scalar};

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Unary {
    Neg,
    Not,
    Exp2,
    Log2,
    Sin,
    Sqrt,
    Recip,
    Floor,
    Ceil,
    Trunc,
    Round,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Max,
    Min,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    Lt,
    Le,
    Eq,
    Ne,
}

impl Unary {
    pub const ALL: [Unary; 11] = {
        use Unary::*;
        [Neg, Not, Exp2, Log2, Sin, Sqrt, Recip, Floor, Ceil, Trunc, Round]
    };
    /// `Neg` works on numbers, `Not` on integers (bitwise) and bools, all others on f32.
    pub fn takes(self, s: Scalar) -> bool {
        match self {
            Unary::Neg => s.is_int() || s == Scalar::F32,
            Unary::Not => s.is_int() || s == Scalar::Bool,
            _ => s == Scalar::F32,
        }
    }
}

impl Binary {
    pub const ALL: [Binary; 16] = {
        use Binary::*;
        [Add, Sub, Mul, Div, Mod, Max, Min, And, Or, Xor, Shl, Shr, Lt, Le, Eq, Ne]
    };
    pub fn is_compare(self) -> bool {
        matches!(self, Binary::Lt | Binary::Le | Binary::Eq | Binary::Ne)
    }
    pub fn commutes(self) -> bool {
        use Binary::*;
        matches!(self, Add | Mul | Max | Min | And | Or | Xor | Eq | Ne)
    }
    /// 8- and 16-bit integers do not multiply or divide: widen first.
    pub fn takes(self, s: Scalar) -> bool {
        use Binary::*;
        match self {
            Mul | Div | Mod => s.bytes() >= 4 && (self != Mod || s.is_int()),
            Add | Sub | Max | Min | Lt | Le => s.is_int() || s == Scalar::F32,
            And | Or | Xor => s.is_int() || s == Scalar::Bool,
            Shl | Shr => s.is_int(),
            Eq | Ne => s.is_int() || s == Scalar::F32 || s == Scalar::Bool,
        }
    }
}

/// How a reduction combines its elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Fold {
    Sum,
    Max,
    Min,
}

impl Fold {
    pub const ALL: [Fold; 3] = [Fold::Sum, Fold::Max, Fold::Min];
    pub fn binary(self) -> Binary {
        match self {
            Fold::Sum => Binary::Add,
            Fold::Max => Binary::Max,
            Fold::Min => Binary::Min,
        }
    }
    /// The element that changes nothing.
    pub fn identity(self, s: Scalar) -> Bits {
        let (lo, hi) = s.int_range();
        match (self, s.is_float()) {
            (Fold::Sum, true) => Bits::float(0.0),
            (Fold::Sum, false) => Bits::int(0),
            (Fold::Max, true) => Bits::float(f32::NEG_INFINITY),
            (Fold::Max, false) => Bits::int(lo),
            (Fold::Min, true) => Bits::float(f32::INFINITY),
            (Fold::Min, false) => Bits::int(hi),
        }
    }
}

pub fn unary(op: Unary, s: Scalar, a: Bits) -> Bits {
    use Unary::*;
    if s == Scalar::Bool {
        return Bits::bool(!a.as_bool());
    }
    if !s.is_float() {
        let v = a.as_int();
        return Bits::int(s.wrap(match op {
            Neg => v.wrapping_neg(),
            Not => !v,
            _ => panic!("{op:?} of {s}"),
        }));
    }
    let v = a.as_float();
    Bits::float(match op {
        Neg => -v,
        Exp2 => v.exp2(),
        Log2 => v.log2(),
        Sin => v.sin(),
        Sqrt => v.sqrt(),
        Recip => 1.0 / v,
        Floor => v.floor(),
        Ceil => v.ceil(),
        Trunc => v.trunc(),
        Round => v.round_ties_even(),
        Not => panic!("{op:?} of {s}"),
    })
}

/// `s` is the type of the operands; comparisons give a bool.
pub fn binary(op: Binary, s: Scalar, a: Bits, b: Bits) -> Bits {
    use Binary::*;
    if s.is_float() {
        let (x, y) = (a.as_float(), b.as_float());
        return match op {
            Add => Bits::float(x + y),
            Sub => Bits::float(x - y),
            Mul => Bits::float(x * y),
            Div => Bits::float(x / y),
            Max => Bits::float(x.max(y)),
            Min => Bits::float(x.min(y)),
            Lt => Bits::bool(x < y),
            Le => Bits::bool(x <= y),
            Eq => Bits::bool(x == y),
            Ne => Bits::bool(x != y),
            _ => panic!("{op:?} of {s}"),
        };
    }
    let (x, y) = (a.as_int(), b.as_int());
    let shift = (y as u32) & (s.bits() - 1);
    let v = match op {
        Lt => return Bits::bool(x < y),
        Le => return Bits::bool(x <= y),
        Eq => return Bits::bool(x == y),
        Ne => return Bits::bool(x != y),
        Add => x.wrapping_add(y),
        Sub => x.wrapping_sub(y),
        Mul => x.wrapping_mul(y),
        Div => floor_div(x, y),
        Mod => x.wrapping_sub(floor_div(x, y).wrapping_mul(y)),
        Max => x.max(y),
        Min => x.min(y),
        And => x & y,
        Or => x | y,
        Xor => x ^ y,
        Shl => x.wrapping_shl(shift),
        Shr => x >> shift,
    };
    Bits::int(s.wrap(v))
}

/// `a·b + c` of f32, rounded once.
pub fn fma(a: Bits, b: Bits, c: Bits) -> Bits {
    Bits::float(a.as_float().mul_add(b.as_float(), c.as_float()))
}

fn floor_div(x: i64, y: i64) -> i64 {
    match y {
        0 => 0,
        _ => {
            let q = x.wrapping_div(y);
            if x.wrapping_rem(y) != 0 && (x < 0) != (y < 0) { q - 1 } else { q }
        }
    }
}

pub fn cast(from: Scalar, to: Scalar, a: Bits) -> Bits {
    match (from.is_float(), to) {
        (true, Scalar::Bool) => Bits::bool(a.as_float() != 0.0),
        (true, _) if to.is_float() => Bits::float(to.round(a.as_float())),
        (true, _) => Bits::int(to.wrap(a.as_float() as i64)),
        (false, _) if to.is_float() => Bits::float(to.round(a.as_int() as f32)),
        (false, _) => Bits::int(to.wrap(a.as_int())),
    }
}

/// Reinterprets the bytes of one element; both types have the same width.
pub fn bitcast(from: Scalar, to: Scalar, a: Bits) -> Bits {
    let mut raw = [0u8; 8];
    a.write(from, &mut raw);
    Bits::read(to, &raw)
}

/// One of a pair of bf16: itself, the upper half of a u32, or an f32 rounded as vector instructions do: subnormals
/// become 0.
pub fn pair(from: Scalar, v: Bits) -> Bits {
    match from {
        Scalar::BF16 => v,
        Scalar::U32 => bitcast(Scalar::U16, Scalar::BF16, Bits::int(v.as_int() >> 16)),
        _ => {
            let f = v.as_float();
            let flushed = if f.is_subnormal() { 0f32.copysign(f) } else { f };
            cast(Scalar::F32, Scalar::BF16, Bits::float(flushed))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integer_division_floors_and_never_traps() {
        let div = |x, y| binary(Binary::Div, Scalar::I32, Bits::int(x), Bits::int(y)).as_int();
        let rem = |x, y| binary(Binary::Mod, Scalar::I32, Bits::int(x), Bits::int(y)).as_int();
        assert_eq!((div(-7, 4), rem(-7, 4)), (-2, 1));
        assert_eq!((div(7, -4), rem(7, -4)), (-2, -1));
        assert_eq!((div(5, 0), rem(5, 0)), (0, 5));
        assert_eq!(div(i32::MIN as i64, -1), i32::MIN as i64);
    }

    #[test]
    fn narrow_integers_wrap() {
        assert_eq!(binary(Binary::Add, Scalar::U8, Bits::int(250), Bits::int(10)).as_int(), 4);
        assert_eq!(cast(Scalar::I32, Scalar::I8, Bits::int(200)).as_int(), -56);
        assert_eq!(bitcast(Scalar::I8, Scalar::U8, Bits::int(-1)).as_int(), 255);
        assert_eq!(bitcast(Scalar::U16, Scalar::F16, Bits::int(0x3c00)).as_float(), 1.0);
    }
}
