//! Algebra of i64 index expressions, scalars and vectors: sums, floor division by what is positive, comparisons.
//!
//! Every rule is exact. Those that fail when arithmetic wraps fire only where the bounds rule that out.

use super::sum::{Product, Sum, exact, gcd, rank};
use crate::dtype::Scalar;
use crate::graph::{Ex, Op};
use crate::rewrite::rules;
use crate::scalar::Binary;

const INDEX: &[Scalar] = &[Scalar::I64];

rules! { pub INDEX_ALGEBRA for INDEX:
    sum:          [n @ (Add _ _)]                       => canonical_sum(n);
    difference:   [n @ (Sub _ _)]                       => canonical_sum(n);
    product:      [n @ (Mul _ _)]                       => canonical_sum(n);
    negative:     [n @ (Neg _)]                         => canonical_sum(n);

    div_one:      (Div x 1)                             => x;
    div_div:      (Div (Div x (int a)) (int b)) if a > 0 && b > 0 && a.checked_mul(b).is_some() => x / (a * b);
    div_mod:      (Div (Mod x (int a)) (int b)) if a > 0 && b > 0 && a % b == 0 => (x / b) % (a / b);
    mod_mod:      (Mod (Mod x (int a)) (int b)) if a > 0 && b > 0 && a % b == 0 => x % b;
    div_sum:      (Div x (int c)) if c > 1              => divide(x, c, Part::Quotient);
    mod_sum:      (Mod x (int c)) if c > 0              => divide(x, c, Part::Remainder);
    div_symbol:   (Div x n) if n.as_int().is_none()     => divide_symbolic(x, n, Part::Quotient);
    mod_symbol:   (Mod x n) if n.as_int().is_none()     => divide_symbolic(x, n, Part::Remainder);

    le:           (Le x y) if y.bounds().1 < i64::MAX && exact(y) => x.lt(y + 1);
    lt:           (Lt x y)                              => less(x, y);
    eq:           (Eq x y)                              => equal(x, y, Binary::Eq);
    ne:           (Ne x y)                              => equal(x, y, Binary::Ne);

    min_left:     (Min x y) if at_most(x, y)            => x;
    min_right:    (Min x y) if at_most(y, x)            => y;
    max_left:     (Max x y) if at_most(y, x)            => x;
    max_right:    (Max x y) if at_most(x, y)            => y;
    min_min:      (Min (Min x (int a)) (int b))         => x.min(a.min(b));
    max_max:      (Max (Max x (int a)) (int b))         => x.max(a.max(b));
    min_order:    (Min x y) if out_of_order(x, y)       => y.min(x);
    max_order:    (Max x y) if out_of_order(x, y)       => y.max(x);
}

const ALL: &[Scalar] = &Scalar::ALL;

rules! { pub INDEX_CASTS for ALL:
    widen:        [n @ (Cast x)]                        => widen(n, x);
}

/// Constants stand on the right, outer loops before inner.
fn out_of_order(x: Ex, y: Ex) -> bool {
    y.as_int().is_none() && (x.as_int().is_some() || rank(y) < rank(x))
}

fn canonical_sum(n: Ex) -> Option<Ex> {
    let mut sum = Sum::of(n);
    sum.rejoin();
    Some(sum.build(n))
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Quotient,
    Remainder,
}

/// `x / c` or `x % c` of a sum: with x = g·q + r, 0 ≤ r < g and g·d = c, they are q / d and g·(q % d) + r.
fn divide(x: Ex, c: i64, part: Part) -> Option<Ex> {
    if !exact(x) {
        return None;
    }
    let sum = Sum::of(x);
    let mut divisors: Vec<i64> =
        sum.terms.iter().map(|t| gcd(t.1, c)).chain([c]).filter(|&g| g > 1).collect();
    divisors.sort_by(|a, b| b.cmp(a));
    divisors.dedup();
    for g in divisors {
        let Some((quotient, rest)) = sum.split(g).filter(|(q, _)| g == c || !q.terms.is_empty()) else {
            continue;
        };
        let q = quotient.build(x);
        return Some(match part {
            Part::Quotient if g == c => q,
            Part::Quotient => q / (c / g),
            Part::Remainder if g == c => rest.build(x),
            Part::Remainder => rest.plus((q % (c / g)) * g, 1).build(x),
        });
    }
    drop_multiples(x, sum, c, part)
}

/// (c·A + B) / c = A + B / c, and (c·A + B) % c = B % c.
fn drop_multiples<'g>(x: Ex<'g>, sum: Sum<'g>, c: i64, part: Part) -> Option<Ex<'g>> {
    let (mut multiples, mut rest) = (Sum::ZERO, Sum::ZERO);
    multiples.constant = sum.constant.div_euclid(c);
    rest.constant = sum.constant.rem_euclid(c);
    for (t, k) in sum.terms {
        if k % c == 0 {
            multiples.terms.push((t, k / c));
        } else if part == Part::Remainder {
            let inner = periodic(t, k, c).unwrap_or(t);
            rest = rest.plus(inner, k % c);
        } else {
            rest.terms.push((t, k));
        }
    }
    let b = rest.build(x);
    (b != x && exact(b)).then(|| match part {
        Part::Quotient => multiples.plus(b / c, 1).build(x),
        Part::Remainder => b % c,
    })
}

/// The `y` of a term `y % m` that comes back to the same remainder: k·(y % m) = k·y modulo c if c divides k·m.
fn periodic(t: Ex, k: i64, c: i64) -> Option<Ex> {
    let m = (t.op() == Op::Binary(Binary::Mod)).then(|| t.arg(1).as_int()).flatten()?;
    (m > 0 && k.checked_mul(m)? % c == 0 && exact(t.arg(0))).then(|| t.arg(0))
}

/// (n·A + B) / n = A + B / n and (n·A + B) % n = B % n, where B / n is 0 if 0 ≤ B < n.
fn divide_symbolic<'g>(x: Ex<'g>, n: Ex<'g>, part: Part) -> Option<Ex<'g>> {
    if n.bounds().0 <= 0 || !exact(x) || !exact(n) {
        return None;
    }
    let divisor = Product::primitive(n);
    let (mut multiples, mut rest) = (Sum::ZERO, Sum::ZERO);
    let sum = Sum::of(x);
    rest.constant = sum.constant;
    for (t, k) in sum.terms {
        let term = Product { coefficient: k, factors: Product::of(t).factors };
        match term.without(&divisor) {
            Some(q) => multiples = multiples.plus(q.monomial(x), q.coefficient),
            None => rest.terms.push((t, k)),
        }
    }
    let b = rest.build(x);
    let below = rest.is_nonnegative() && Sum::of(n).minus(&rest).offset(-1).is_nonnegative();
    if !exact(b) || b == x && !below {
        return None;
    }
    Some(match part {
        Part::Quotient if below => multiples.build(x),
        Part::Quotient => multiples.plus(b / n, 1).build(x),
        Part::Remainder if below => b,
        Part::Remainder => b % n,
    })
}

/// Whether x ≤ y always holds.
fn at_most(x: Ex, y: Ex) -> bool {
    exact(x) && exact(y) && Sum::of(y).minus(&Sum::of(x)).is_nonnegative()
}

/// `x < y`, decided or with each term on the side where it is positive and the constant on the right.
fn less<'g>(x: Ex<'g>, y: Ex<'g>) -> Option<Ex<'g>> {
    if !exact(x) || !exact(y) {
        return None;
    }
    let mut difference = Sum::of(x).minus(&Sum::of(y));
    let truth = |v: bool| x.lt(y).like(v as i64);
    if difference.is_nonnegative() {
        return Some(truth(false));
    }
    if difference.clone().negated().offset(-1).is_nonnegative() {
        return Some(truth(true));
    }
    // g·q + r < 0 with 0 ≤ r < g is q < 0.
    let mut steps: Vec<i64> = difference.terms.iter().map(|t| gcd(t.1, 0)).filter(|&g| g > 1).collect();
    steps.sort_by(|a, b| b.cmp(a));
    if let Some((q, _)) = steps.iter().find_map(|&g| difference.split(g).filter(|(q, _)| !q.terms.is_empty()))
    {
        difference = q;
    }
    let (left, right) = sides(&difference, x)?;
    Some(left.lt(right))
}

/// `x == y` or `x != y`, decided or with the terms sorted out like those of [`less`].
fn equal<'g>(x: Ex<'g>, y: Ex<'g>, op: Binary) -> Option<Ex<'g>> {
    if !exact(x) || !exact(y) {
        return None;
    }
    let mut difference = Sum::of(x).minus(&Sum::of(y));
    let truth = |equal: bool| x.lt(y).like((equal == (op == Binary::Eq)) as i64);
    let g = difference.terms.iter().fold(0, |g, t| gcd(g, t.1));
    if g == 0 {
        return Some(truth(difference.constant == 0));
    }
    let apart = |d: Sum| d.offset(-1).is_nonnegative();
    if difference.constant % g != 0 || apart(difference.clone()) || apart(difference.clone().negated()) {
        return Some(truth(false));
    }
    difference.terms.iter_mut().for_each(|t| t.1 /= g);
    difference.constant /= g;
    if difference.terms[0].1 < 0 {
        difference = difference.negated();
    }
    let (left, right) = sides(&difference, x)?;
    Some(left.binary(op, right))
}

/// What is on each side of `difference ? 0` if nothing is subtracted there.
fn sides<'g>(difference: &Sum<'g>, like: Ex<'g>) -> Option<(Ex<'g>, Ex<'g>)> {
    let (left, right): (Vec<_>, Vec<_>) = difference.terms.iter().partition(|t| t.1 > 0);
    let mut left = Sum { terms: left, constant: 0 };
    let mut right = Sum { terms: right, constant: 0 }.negated();
    if left.terms.is_empty() {
        left.constant = difference.constant;
    } else {
        right.constant = difference.constant.checked_neg()?;
    }
    let (left, right) = (left.build(like), right.build(like));
    (exact(left) && exact(right)).then_some((left, right))
}

/// An index computed in a narrower type, computed as an index where the narrower type does not wrap.
fn widen<'g>(n: Ex<'g>, x: Ex<'g>) -> Option<Ex<'g>> {
    let (to, from) = (n.dtype().scalar, x.dtype().scalar);
    if to != Scalar::I64 || !from.is_int() || x.bounds() == from.int_range() {
        return None;
    }
    let wide = |i: usize| x.arg(i).cast(to);
    match x.op() {
        Op::Binary(op @ (Binary::Add | Binary::Sub | Binary::Mul | Binary::Min | Binary::Max)) => {
            Some(wide(0).binary(op, wide(1)))
        }
        Op::Binary(op @ (Binary::Div | Binary::Mod)) if x.arg(1).bounds().0 > 0 => {
            Some(wide(0).binary(op, wide(1)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{check, simplify1};
    use super::*;
    use crate::graph::{Graph, Kind};
    use crate::text;

    #[test]
    fn rules_are_sound_and_alive() {
        check::sound_and_alive(INDEX_ALGEBRA);
        check::sound_and_alive(INDEX_CASTS);
    }

    #[test]
    fn random_indices_are_stable() {
        check::stable(simplify1, 4000);
    }

    #[test]
    fn what_indices_become() {
        let g = Graph::new();
        let range = |n| g.new_range(n, Kind::Serial);
        let n = g.symbol("n", (1, 512));
        let p = g.symbol("p", (0, 512));
        let (i, j, k) = (range(g.int(32)), range(g.int(16)), range(g.int(4)));
        let (q, kv) = (range(n), range(p + 1));
        let check = |e: Ex, expect: &str| assert_eq!(text::expr(simplify1(e)), expect, "{}", text::expr(e));
        check((j + i * 16 + 3) - (j - 5), "((serial0 * 16) + 8)");
        check((i * 64 + j * 4 + k) / 16, "((serial0 * 4) + (serial1 / 4))");
        check((i * 64 + j * 4 + k) % 16, "(((serial1 % 4) * 4) + serial2)");
        check(((i * 16 + j) / 8) * 8 + (i * 16 + j) % 8, "((serial0 * 16) + serial1)");
        check((i / 8) * 2 + (i / 4) % 2, "(serial0 / 4)");
        check((i * 16 + j) / 16 * 16 + (j + i * 16) % 16, "((serial0 * 16) + serial1)");
        check((q * 64 + i * 2) / 64, "serial3");
        check((i * n + q) / n, "serial0");
        check((i * n + q) % n, "serial3");
        check((i * n * 8 + q * 8 + k) / (n * 8), "serial0");
        check((i * n * (p + 1) + q * (p + 1) + kv) / (n * (p + 1)), "serial0");
        check((i * n * (p + 1) + q * (p + 1) + kv) % (n * (p + 1)) / (p + 1), "serial3");
        check((i * (p + 1) * 8 + kv * 8 + k) / ((p + 1) * 8), "serial0");
        check(q.lt(n), "true");
        check((q * 16 + j).lt(n * 16), "true");
        check((i * 4 + k + 9).lt(p + i * 3 + 8), "((serial0 + serial2) < (p + -1))");
        check((i * 4 + k).lt(j * 4), "(serial0 < serial1)");
        check((i * 4 + k).lt(g.int(30)), "(((serial0 * 4) + serial2) < 30)");
        check((i * 4 + k).lt(g.int(32)), "(serial0 < 8)");
        check((i + 3).binary(Binary::Eq, g.int(5)), "(serial0 == 2)");
        check((i * 2).binary(Binary::Eq, g.int(5)), "false");
        check(kv.min(p), "serial4");
        let narrow = (i.cast(Scalar::I32) * 4 + k.cast(Scalar::I32)).cast(Scalar::I64);
        check(narrow / 4, "serial0");
    }
}
