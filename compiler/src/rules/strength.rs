//! Cheaper integer instructions for the same values, run after the last [`super::simplify`] because its sums do not see
//! through shifts: multiplications, divisions and remainders in; shifts and masks out.
//!
//! Division rounds down, so an arithmetic shift is exact for negative numbers too.

use crate::dtype::Scalar;
use crate::rewrite::rules;
use crate::scalar::Unary;

const WIDE: &[Scalar] = &[Scalar::I32, Scalar::U32, Scalar::I64];
const INTEGERS: &[Scalar] = {
    use Scalar::*;
    &[I8, U8, I16, U16, I32, U32, I64]
};
const BYTES: &[Scalar] = &[Scalar::U8];

rules! { pub STRENGTH for WIDE:
    mul_minus:    (Mul x (int c)) if x.like(-1).as_int() == Some(c) => x.unary(Unary::Neg);
    mul_power:    (Mul x (int c)) if is_power(c)            => x << log2(c);
    div_power:    (Div x (int c)) if is_power(c)            => x >> log2(c);
    mod_power:    (Mod x (int c)) if is_power(c)            => x & (c - 1);
}

rules! { pub SHIFTS for INTEGERS:
    shl_shl:      (Shl (Shl x (int a)) (int b)) if a >= 0 && b >= 0 && fits(x.dtype().scalar, a, b) => x << (a + b);
    shr_shr:      (Shr (Shr x (int a)) (int b)) if a >= 0 && b >= 0 && fits(x.dtype().scalar, a, b) => x >> (a + b);
    shr_and:      (Shr (And x (int m)) (int a)) if a >= 0 && fits(x.dtype().scalar, a, 0) => (x >> a) & (m >> a);
}

// A field of a byte is moved once and masked where it arrives.
rules! { pub FIELDS for BYTES:
    shl_and:      (Shl (And x (int m)) (int a)) if a >= 0 && fits(x.dtype().scalar, a, 0) => (x << a) & (m << a);
    further_up:   (Shl (Shr x (int a)) (int b)) if a >= 0 && b >= a && fits(x.dtype().scalar, b, 0) => (x << (b - a)) & (0xff >> a << b);
    less_down:    (Shl (Shr x (int a)) (int b)) if b >= 0 && a > b && fits(x.dtype().scalar, a, 0) => (x >> (a - b)) & (0xff >> a << b);
}

fn is_power(c: i64) -> bool {
    c > 0 && c & (c - 1) == 0
}

fn log2(c: i64) -> i64 {
    c.trailing_zeros() as i64
}

/// Whether shifting by `a` and `b` together is still a shift.
fn fits(s: Scalar, a: i64, b: i64) -> bool {
    let bits = s.bits() as i64;
    a < bits && b < bits && a + b < bits
}

#[cfg(test)]
mod tests {
    use super::super::{REDUCE_CPU, check, simplify1};
    use super::*;
    use crate::dtype::DType;
    use crate::graph::{Ex, Graph, Kind, Op};
    use crate::rewrite::rewrite;
    use crate::text;

    fn reduced(e: Ex) -> Ex {
        rewrite(REDUCE_CPU, &[simplify1(e)])[0]
    }

    #[test]
    fn rules_are_sound_and_alive() {
        check::sound_and_alive(STRENGTH);
        check::sound_and_alive(SHIFTS);
        check::sound_and_alive(FIELDS);
    }

    #[test]
    fn reduced_indices_keep_their_values() {
        check::keeps_values(reduced, 1000);
    }

    #[test]
    fn shifts_and_masks() {
        let g = Graph::new();
        let i = g.new_range(g.int(100), Kind::Serial);
        let m = g.new_buffer("m", DType::U8, &[g.int(9)]);
        let byte = g.make(Op::Load, DType::U8, &[m, g.int(0)]);
        let show = |e| text::expr(reduced(e));
        assert_eq!(show(i / 8 * 32 + i % 8), "(((serial0 >> 3) << 5) + (serial0 & 7))");
        assert_eq!(show((byte & 0xf0) >> 4), "(m[0] >> 4)");
        assert_eq!(show((byte >> 2 >> 4) & 3), "(m[0] >> 6)");
        assert_eq!(show((byte & 3) << 4), "((m[0] << 4) & 48)");
        assert_eq!(show(((byte >> 2) & 3) << 4), "((m[0] << 2) & 48)");
        assert_eq!(show(((byte >> 4) & 3) << 4), "(m[0] & 48)");
        assert_eq!(show(((byte >> 6) & 3) << 4), "((m[0] >> 2) & 48)");
    }
}
