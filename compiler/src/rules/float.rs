//! f32 identities. [`FLOAT`] is exact bit for bit, signs of zero included (the payload of a NaN is not a value);
//! [`FUSE_FMA`] rounds once where the original rounds twice, and belongs to code generation alone.

use crate::dtype::{Bits, Scalar};
use crate::graph::{Ex, Op};
use crate::rewrite::rules;
use crate::scalar::{Binary, Unary};

const F32: &[Scalar] = &[Scalar::F32];

rules! { pub FLOAT for F32:
    add_const:    (Add (flt a) x) if x.as_bits().is_none()  => x + real(x, a);
    mul_const:    (Mul (flt a) x) if x.as_bits().is_none()  => x * real(x, a);
    add_zero:     (Add x (flt a)) if a.to_bits() == (-0f32).to_bits() => x;
    sub_zero:     (Sub x 0.0)                               => x;
    add_neg:      (Add x (Neg y))                           => x - y;
    neg_add:      (Add (Neg x) y)                           => y - x;
    sub_neg:      (Sub x (Neg y))                           => x + y;
    neg_neg:      (Neg (Neg x))                             => x;
    mul_one:      (Mul x 1.0)                               => x;
    mul_minus:    (Mul x (flt a)) if a == -1.0              => x.unary(Unary::Neg);
    mul_negs:     (Mul (Neg x) (Neg y))                     => x * y;
    mul_neg:      (Mul (Neg x) (flt a))                     => x * real(x, -a);
    div_power:    (Div x (flt c)) if has_exact_reciprocal(c) => x * real(x, 1.0 / c);
    div_negs:     (Div (Neg x) (Neg y))                     => x / y;
    max_same:     (Max x y) if x == y                       => x;
    min_same:     (Min x y) if x == y                       => x;
    floor_floor:  (Floor [y @ (Floor _)])                   => y;
    round_round:  (Round [y @ (Round _)])                   => y;
}

rules! { pub FUSE_FMA for F32:
    muls_sub:     (Sub [x @ (Mul a b)] [y @ (Mul _ _)]) if factors(x) > factors(y) => fma(a, b, y.unary(Unary::Neg));
    mul_add:      (Add (Mul a b) c)                         => fma(a, b, c);
    add_mul:      (Add c (Mul a b))                         => fma(a, b, c);
    sub_mul:      (Sub c (Mul a b))                         => minus(a, b, c);
    mul_sub:      (Sub (Mul a b) c)                         => fma(a, b, c.unary(Unary::Neg));
}

/// A constant of `x`'s type.
pub fn real(x: Ex<'_>, v: f32) -> Ex<'_> {
    x.g.constant(x.dtype(), Bits::float(v))
}

/// `a·b + c`, rounded once.
pub fn fma<'g>(a: Ex<'g>, b: Ex<'g>, c: Ex<'g>) -> Ex<'g> {
    a.g.make(Op::Fma, a.dtype(), &[a, b, c])
}

/// `c - a·b`, rounded once. The factor that is not the same number in all lanes is negated: the other may come straight
/// from memory.
fn minus<'g>(a: Ex<'g>, b: Ex<'g>, c: Ex<'g>) -> Ex<'g> {
    let (a, b) = if a.op() == Op::Spread { (b, a) } else { (a, b) };
    fma(a.unary(Unary::Neg), b, c)
}

/// How many numbers a product is made of. Of two products the one of fewer is likelier to be the same for many sums, as a
/// block's minimum is, and then multiplied once.
fn factors(e: Ex) -> usize {
    if e.op() == Op::Binary(Binary::Mul) { factors(e.arg(0)) + factors(e.arg(1)) } else { 1 }
}

/// Powers of two whose reciprocal is a normal number.
fn has_exact_reciprocal(c: f32) -> bool {
    c.to_bits() & 0x7f_ffff == 0 && c.is_normal() && (1.0 / c).is_normal()
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;
    use crate::graph::Graph;
    use crate::rewrite::rewrite;

    #[test]
    fn rules_are_sound_and_alive() {
        check::sound_and_alive(FLOAT);
    }

    #[test]
    fn products_fuse_into_sums() {
        let g = Graph::new();
        let [a, b, c] = [0, 1, 2].map(|i| g.make(Op::Load, crate::dtype::DType::F32, &[g.int(i), g.int(0)]));
        let fuse = |e| rewrite(&[FUSE_FMA], &[e])[0];
        assert_eq!(fuse(a * b + c), fma(a, b, c));
        assert_eq!(fuse(c + a * b), fma(a, b, c));
        assert_eq!(fuse(a * b + c * a), fma(a, b, c * a));
        assert_eq!(fuse((a + b) * c), (a + b) * c);
        let minus = |x: Ex<'_>| g.ex(x.id).unary(Unary::Neg);
        assert_eq!(fuse(a * b - c), fma(a, b, minus(c)));
        assert_eq!(fuse(a * b - c * a), fma(minus(c), a, a * b));
        assert_eq!(fuse(a * (b * c) - c * b), fma(a, b * c, minus(c * b)));
    }
}
