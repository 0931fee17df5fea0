//! Rules for every element type: constants, casts, selects, logic, and integers that wrap.
//!
//! All are exact bit for bit. Integer rules hold modulo the width of the type or follow from bounds, which count wrapping.

use crate::dtype::{Bits, Scalar};
use crate::graph::{Ex, Graph, Op};
use crate::rewrite::{Rule, rules};
use crate::rng::Rng;
use crate::scalar::{self, Binary, Unary};

const ALL: &[Scalar] = &Scalar::ALL;
const BOOL: &[Scalar] = &[Scalar::Bool];
const INTEGERS: &[Scalar] = {
    use Scalar::*;
    &[I8, U8, I16, U16, I32, U32, I64]
};
/// Sums of i64 have a form of their own: see [`super::index`].
const NARROW: &[Scalar] = {
    use Scalar::*;
    &[I8, U8, I16, U16, I32, U32]
};

/// Operations whose value is known, one rule for each op.
pub const UNARY_CONSTANTS: &[Rule] = &{
    let mut rules = [Rule {
        name: "unary_constant",
        head: Op::Unary(Unary::Neg),
        apply: unary_constant,
        sample: |g, rng| {
            let op = *rng.choose(&Unary::ALL);
            sample_constant(g, rng, |s| op.takes(s)).unary(op)
        },
    }; Unary::ALL.len()];
    let mut i = 0;
    while i < rules.len() {
        rules[i].head = Op::Unary(Unary::ALL[i]);
        i += 1;
    }
    rules
};

pub const BINARY_CONSTANTS: &[Rule] = &{
    let mut rules = [Rule {
        name: "binary_constant",
        head: Op::Binary(Binary::Add),
        apply: binary_constant,
        sample: |g, rng| {
            let op = *rng.choose(&Binary::ALL);
            let a = sample_constant(g, rng, |s| op.takes(s));
            a.binary(op, super::sample::constant(g, rng, a.dtype()))
        },
    }; Binary::ALL.len()];
    let mut i = 0;
    while i < rules.len() {
        rules[i].head = Op::Binary(Binary::ALL[i]);
        i += 1;
    }
    rules
};

fn sample_constant<'g>(g: &'g Graph, rng: &mut Rng, takes: impl Fn(Scalar) -> bool) -> Ex<'g> {
    let types: Vec<Scalar> = Scalar::ALL.into_iter().filter(|&s| takes(s)).collect();
    let t = super::sample::dtype(&types, rng);
    super::sample::constant(g, rng, t)
}

/// Only what every target rounds alike: the transcendental functions are not.
fn unary_constant(n: Ex) -> Option<Ex> {
    let Op::Unary(op) = n.op() else { return None };
    let a = n.arg(0);
    let exact = !matches!(op, Unary::Exp2 | Unary::Log2 | Unary::Sin);
    a.as_bits().filter(|_| exact).map(|v| n.g.constant(n.dtype(), scalar::unary(op, a.dtype().scalar, v)))
}

fn binary_constant(n: Ex) -> Option<Ex> {
    let Op::Binary(op) = n.op() else { return None };
    let (a, b) = (n.arg(0), n.arg(1));
    if let (Some(x), Some(y)) = (a.as_bits(), b.as_bits()) {
        return Some(n.g.constant(n.dtype(), scalar::binary(op, a.dtype().scalar, x, y)));
    }
    bounded_constant(n)
}

fn bounded_constant(n: Ex) -> Option<Ex> {
    let (lo, hi) = n.bounds();
    (!n.dtype().is_float() && lo == hi).then(|| n.g.constant(n.dtype(), Bits::int(lo)))
}

rules! { pub CASTS for ALL:
    constant:     [n @ (Cast x)]                    => x.as_bits().map(|v| cast_bits(n, x, v));
    bounded:      [n @ (Cast _)]                    => bounded_constant(n);
    cast_same:    [n @ (Cast x)] if x.dtype() == n.dtype() => x;
    cast_cast:    [n @ (Cast (Cast x))]             => cast_cast(n, x);
}

fn cast_bits<'g>(n: Ex<'g>, x: Ex<'g>, v: Bits) -> Ex<'g> {
    n.g.constant(n.dtype(), scalar::cast(x.dtype().scalar, n.dtype().scalar, v))
}

/// A cast on the way that loses nothing of what the last one keeps.
fn cast_cast<'g>(n: Ex<'g>, x: Ex<'g>) -> Option<Ex<'g>> {
    let (from, via, to) = (x.dtype().scalar, n.arg(0).dtype().scalar, n.dtype().scalar);
    let number = |s: Scalar| s.is_int() || s == Scalar::Bool;
    let lossless = match (number(from), via.is_float()) {
        (true, false) => {
            let (lo, hi) = via.int_range();
            x.bounds().0 >= lo && x.bounds().1 <= hi || via.is_int() && to.is_int() && via.bits() >= to.bits()
        }
        (false, true) => via == Scalar::F32,
        _ => false,
    };
    lossless.then(|| x.cast(to))
}

rules! { pub SELECTS for ALL:
    where_true:   (Where 1 a _)                             => a;
    where_false:  (Where 0 _ b)                             => b;
    where_same:   (Where _ a b) if a == b                   => a;
    where_not:    (Where (Not c) a b)                       => c.select(b, a);
    where_then:   (Where c (Where d a _) b) if c == d       => c.select(a, b);
    where_else:   (Where c a (Where d _ b)) if c == d       => c.select(a, b);
    where_both:   (Where c (Where d a b) e) if b == e       => (c & d).select(a, b);
    load_open:    [n @ (Load m i 1)]                        => n.with_args(&[m, i]);
    load_closed:  [n @ (Load _ _ 0)]                        => n.g.constant(n.dtype(), Bits(0));
}

rules! { pub LOGIC for BOOL:
    where_bool:   (Where c 1 0)                             => c;
    where_flip:   (Where c 0 1)                             => c.unary(Unary::Not);
    where_and:    (Where c x 0)                             => c & x;
    where_or:     (Where c 1 x)                             => c | x;
    and_true:     (And x 1)                                 => x;
    and_false:    (And _ 0)                                 => 0;
    and_same:     (And x y) if x == y                       => x;
    and_again:    (And (And x y) z) if z == x || z == y     => x & y;
    or_true:      (Or _ 1)                                  => 1;
    or_false:     (Or x 0)                                  => x;
    or_same:      (Or x y) if x == y                        => x;
    or_again:     (Or (Or x y) z) if z == x || z == y       => x | y;
    xor_true:     (Xor x 1)                                 => x.unary(Unary::Not);
    xor_false:    (Xor x 0)                                 => x;
    eq_true:      (Eq x 1)                                  => x;
    eq_false:     (Eq x 0)                                  => x.unary(Unary::Not);
    ne_true:      (Ne x 1)                                  => x.unary(Unary::Not);
    ne_false:     (Ne x 0)                                  => x;
    and_const:    (And (int a) x) if x.as_int().is_none()   => x & a;
    or_const:     (Or (int a) x) if x.as_int().is_none()    => x | a;
    xor_const:    (Xor (int a) x) if x.as_int().is_none()   => x.binary(Binary::Xor, x.like(a));
    not_not:      (Not (Not x))                             => x;
    not_eq:       (Not (Eq x y))                            => x.binary(Binary::Ne, y);
    not_ne:       (Not (Ne x y))                            => x.binary(Binary::Eq, y);
    not_lt:       (Not (Lt x y)) if !x.dtype().is_float()   => y.binary(Binary::Le, x);
    not_le:       (Not (Le x y)) if !x.dtype().is_float()   => y.lt(x);
}

rules! { pub WRAPPING for NARROW:
    add_const:    (Add (int a) x) if x.as_int().is_none()   => x + a;
    add_zero:     (Add x 0)                                 => x;
    add_add:      (Add (Add x (int a)) (int b))             => x + a.wrapping_add(b);
    add_neg:      (Add x (Neg y))                           => x - y;
    neg_neg:      (Neg (Neg x))                             => x;
    neg_sub:      (Neg (Sub x y))                           => y - x;
    sub_const:    (Sub x (int a)) if x.as_int().is_none()   => x + a.wrapping_neg();
    sub_neg:      (Sub x (Neg y))                           => x + y;
    sub_self:     (Sub x y) if x == y                       => 0;
    zero_sub:     (Sub 0 x)                                 => x.unary(Unary::Neg);
    mul_const:    (Mul (int a) x) if x.as_int().is_none()   => x * a;
    mul_zero:     (Mul _ 0)                                 => 0;
    mul_one:      (Mul x 1)                                 => x;
    mul_mul:      (Mul (Mul x (int a)) (int b))             => x * a.wrapping_mul(b);
    div_one:      (Div x 1)                                 => x;
    mod_small:    (Mod x (int c)) if x.bounds().0 >= 0 && x.bounds().1 < c => x;
    lt_self:      (Lt x y) if x == y                        => 0;
    le_self:      (Le x y) if x == y                        => 1;
    eq_self:      (Eq x y) if x == y                        => 1;
    ne_self:      (Ne x y) if x == y                        => 0;
    eq_const:     (Eq (int a) x) if x.as_int().is_none()    => x.binary(Binary::Eq, x.like(a));
    ne_const:     (Ne (int a) x) if x.as_int().is_none()    => x.binary(Binary::Ne, x.like(a));
    eq_apart:     (Eq x y) if apart(x, y)                   => 0;
    ne_apart:     (Ne x y) if apart(x, y)                   => 1;
    min_const:    (Min (int a) x) if x.as_int().is_none()   => x.min(a);
    max_const:    (Max (int a) x) if x.as_int().is_none()   => x.max(a);
    min_left:     (Min x y) if x == y || x.bounds().1 <= y.bounds().0 => x;
    min_right:    (Min x y) if y.bounds().1 <= x.bounds().0 => y;
    max_left:     (Max x y) if x == y || x.bounds().0 >= y.bounds().1 => x;
    max_right:    (Max x y) if y.bounds().0 >= x.bounds().1 => y;
    min_min:      (Min (Min x (int a)) (int b))             => x.min(a.min(b));
    max_max:      (Max (Max x (int a)) (int b))             => x.max(a.max(b));
}

rules! { pub BITS for INTEGERS:
    and_const:    (And (int a) x) if x.as_int().is_none()   => x & a;
    or_const:     (Or (int a) x) if x.as_int().is_none()    => x | a;
    xor_const:    (Xor (int a) x) if x.as_int().is_none()   => x.binary(Binary::Xor, x.like(a));
    and_zero:     (And _ 0)                                 => 0;
    and_same:     (And x y) if x == y                       => x;
    and_and:      (And (And x (int a)) (int b))             => x & (a & b);
    and_mask:     (And x (int m)) if is_mask(m) && x.bounds().0 >= 0 && x.bounds().1 <= m => x;
    and_ones:     (And x (int m)) if m == x.like(-1).as_int().unwrap() => x;
    or_zero:      (Or x 0)                                  => x;
    or_same:      (Or x y) if x == y                        => x;
    xor_zero:     (Xor x 0)                                 => x;
    xor_self:     (Xor x y) if x == y                       => 0;
    shl_zero:     (Shl x 0)                                 => x;
    shr_zero:     (Shr x 0)                                 => x;
    not_not:      (Not (Not x))                             => x;
}

fn is_mask(m: i64) -> bool {
    m > 0 && m & m.wrapping_add(1) == 0
}

fn apart(x: Ex, y: Ex) -> bool {
    x.bounds().1 < y.bounds().0 || y.bounds().1 < x.bounds().0
}

#[cfg(test)]
mod tests {
    use super::super::check::sound_and_alive;
    use super::*;

    #[test]
    fn rules_are_sound_and_alive() {
        for table in [UNARY_CONSTANTS, BINARY_CONSTANTS, CASTS, SELECTS, LOGIC, WRAPPING, BITS] {
            let known = |r: &&Rule| !matches!(r.head, Op::Unary(Unary::Exp2 | Unary::Log2 | Unary::Sin));
            sound_and_alive(&table.iter().filter(known).copied().collect::<Vec<_>>());
        }
    }
}
