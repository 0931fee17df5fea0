//! Index expressions as sums: an i64 expression in, its terms with constant coefficients out, and back again.
//!
//! In canonical form the terms stand in the order of the loops they depend on, so that what an outer loop knows is
//! computed there, and the constant last: `((t0·a + t1·b) - t2) + c`. The same sum always becomes the same node.
//!
//! Sums are exact modulo 2^64. What reasons about size (division, comparison) must ask [`exact`] first.

use crate::graph::{Ex, Op};
use crate::scalar::{Binary, Unary};

#[derive(Clone)]
pub struct Sum<'g> {
    /// Canonical order, no duplicates, no zero coefficients. No term is itself a sum or a multiple of something.
    pub terms: Vec<(Ex<'g>, i64)>,
    pub constant: i64,
}

/// Whether an expression's value is that of its sum in unbounded integers: nothing wraps on the way.
pub fn exact(e: Ex) -> bool {
    let arithmetic =
        matches!(e.op(), Op::Binary(Binary::Add | Binary::Sub | Binary::Mul) | Op::Unary(Unary::Neg));
    !arithmetic || e.bounds() != (i64::MIN, i64::MAX)
}

/// Where an operand stands among others: outer loops first.
pub fn rank(e: Ex) -> (i64, crate::graph::Id) {
    (e.deepest(), e.id)
}

impl<'g> Sum<'g> {
    pub const ZERO: Sum<'g> = Sum { terms: vec![], constant: 0 };

    pub fn of(e: Ex<'g>) -> Sum<'g> {
        let mut sum = Sum::ZERO;
        sum.collect(e, 1);
        sum.normalise();
        sum
    }

    /// `self + e·k`
    pub fn plus(mut self, e: Ex<'g>, k: i64) -> Sum<'g> {
        self.collect(e, k);
        self.normalise();
        self
    }

    pub fn minus(mut self, other: &Sum<'g>) -> Sum<'g> {
        self.terms.extend(other.terms.iter().map(|&(t, k)| (t, k.wrapping_neg())));
        self.constant = self.constant.wrapping_sub(other.constant);
        self.normalise();
        self
    }

    pub fn offset(mut self, c: i64) -> Sum<'g> {
        self.constant = self.constant.wrapping_add(c);
        self
    }

    pub fn negated(self) -> Sum<'g> {
        Sum::ZERO.minus(&self)
    }

    /// Adds `e·k` as terms, without order.
    fn collect(&mut self, e: Ex<'g>, k: i64) {
        let mut todo = vec![(e, k)];
        while let Some((e, k)) = todo.pop() {
            match e.op() {
                _ if k == 0 => {}
                Op::Binary(Binary::Add) => todo.extend([(e.arg(0), k), (e.arg(1), k)]),
                Op::Binary(Binary::Sub) => todo.extend([(e.arg(0), k), (e.arg(1), k.wrapping_neg())]),
                Op::Unary(Unary::Neg) => todo.push((e.arg(0), k.wrapping_neg())),
                Op::Binary(Binary::Mul) => {
                    let product = Product::of(e);
                    let k = k.wrapping_mul(product.coefficient);
                    match product.factors[..] {
                        [] => self.constant = self.constant.wrapping_add(k),
                        [factor] => todo.push((factor, k)),
                        _ => self.terms.push((product.monomial(e), k)),
                    }
                }
                _ => match e.bounds() {
                    (lo, hi) if lo == hi => self.constant = self.constant.wrapping_add(lo.wrapping_mul(k)),
                    _ => self.terms.push((e, k)),
                },
            }
        }
    }

    fn normalise(&mut self) {
        self.terms.sort_by_key(|&(t, _)| rank(t));
        self.terms.dedup_by(|b, a| {
            let same = a.0 == b.0;
            if same {
                a.1 = a.1.wrapping_add(b.1);
            }
            same
        });
        self.terms.retain(|t| t.1 != 0);
    }

    /// The expression, of `like`'s type.
    pub fn build(&self, like: Ex<'g>) -> Ex<'g> {
        let scaled = |t: Ex<'g>, k: i64| if k == 1 { t } else { t * k };
        let mut sum: Option<Ex> = None;
        for &(t, k) in &self.terms {
            sum = Some(match sum {
                None => scaled(t, k),
                Some(s) if k < 0 && k != i64::MIN => s - scaled(t, -k),
                Some(s) => s + scaled(t, k),
            });
        }
        match sum {
            None => like.g.constant(like.dtype(), crate::dtype::Bits::int(self.constant)),
            Some(s) if self.constant == 0 => s,
            Some(s) => s + self.constant,
        }
    }

    /// Smallest and largest value of the sum in unbounded integers.
    pub fn bounds(&self) -> (i128, i128) {
        self.terms.iter().fold((self.constant as i128, self.constant as i128), |(lo, hi), &(t, k)| {
            let (a, b) = (t.bounds().0 as i128 * k as i128, t.bounds().1 as i128 * k as i128);
            (lo.saturating_add(a.min(b)), hi.saturating_add(a.max(b)))
        })
    }

    /// Whether the sum in unbounded integers is never negative. A range with a symbolic extent is below that extent.
    pub fn is_nonnegative(&self) -> bool {
        let mut sum = self.clone();
        // Each round removes one use of a range; more of them than this is not worth the search.
        for _ in 0..8 {
            if sum.bounds().0 >= 0 {
                return true;
            }
            let widest = sum.terms.iter().rev().find_map(|&(t, k)| {
                let (range, others) = Product::of(t).split_range().filter(|_| k < 0)?;
                Some((t, k, range, others))
            });
            let Some((term, k, range, others)) = widest else { return false };
            // k < 0 and range ≤ extent - 1, so k·range·others ≥ k·(extent - 1)·others.
            sum = sum.plus(term, k.wrapping_neg());
            let extent = Sum::of(range.arg(0)).offset(-1);
            for (t, a) in extent.terms {
                sum = sum.plus(others.times(t), k.wrapping_mul(a));
            }
            sum = sum.plus(others.monomial(range), k.wrapping_mul(extent.constant));
        }
        false
    }

    /// Splits the sum into `g·quotient + rest` with a rest that is provably within 0..g.
    pub fn split(&self, g: i64) -> Option<(Sum<'g>, Sum<'g>)> {
        let (multiples, others): (Vec<_>, Vec<_>) = self.terms.iter().partition(|t| t.1 % g == 0);
        let mut rest = Sum { terms: others, constant: self.constant.rem_euclid(g) };
        let (lo, hi) = rest.bounds();
        let block = lo.div_euclid(g as i128);
        if block != hi.div_euclid(g as i128) {
            return None;
        }
        rest.constant = rest.constant.checked_sub(i64::try_from(block).ok()?.checked_mul(g)?)?;
        let constant = self.constant.div_euclid(g).checked_add(block as i64)?;
        let terms = multiples.into_iter().map(|(t, k)| (t, k / g)).collect();
        Some((Sum { terms, constant }, rest))
    }

    /// Puts `x` for every `(x / c)·c + x % c`.
    pub fn rejoin(&mut self) {
        while let Some((quotient, remainder)) = self.find_pair() {
            let (_, k) = self.terms[remainder];
            let x = self.terms[remainder].0.arg(0);
            let gone = [self.terms[quotient].0, self.terms[remainder].0];
            self.terms.retain(|t| !gone.contains(&t.0));
            self.collect(x, k);
            self.normalise();
        }
    }

    fn find_pair(&self) -> Option<(usize, usize)> {
        self.terms.iter().enumerate().find_map(|(i, &(t, k))| {
            if t.op() != Op::Binary(Binary::Mod) {
                return None;
            }
            let (x, c) = (t.arg(0), t.arg(1));
            let (quotient, k) = match c.as_int() {
                None => (Product::of(c).times(x / c), k),
                Some(c) => (flat_quotient(x, c), k.checked_mul(c)?),
            };
            self.terms.iter().position(|&t| t == (quotient, k)).map(|j| (j, i))
        })
    }
}

/// `x / c`, with one division if `x` is a quotient itself.
fn flat_quotient(x: Ex, c: i64) -> Ex {
    let inner =
        (x.op() == Op::Binary(Binary::Div)).then(|| x.arg(1).as_int().filter(|&a| a > 0 && c > 0)).flatten();
    match inner.and_then(|a| a.checked_mul(c)) {
        Some(both) => x.arg(0) / both,
        None => x / c,
    }
}

/// A product in canonical form.
pub struct Product<'g> {
    pub coefficient: i64,
    /// In canonical order; no factor is a product or a constant, and sums among several factors have no common divisor.
    pub factors: Vec<Ex<'g>>,
}

impl<'g> Product<'g> {
    pub fn of(e: Ex<'g>) -> Product<'g> {
        let mut product = Product { coefficient: 1, factors: vec![] };
        let mut todo = vec![e];
        while let Some(e) = todo.pop() {
            match (e.op(), e.as_int()) {
                (_, Some(c)) => product.coefficient = product.coefficient.wrapping_mul(c),
                (Op::Binary(Binary::Mul), _) => todo.extend([e.arg(0), e.arg(1)]),
                _ => product.factors.push(e),
            }
        }
        if product.factors.len() > 1 {
            product.extract_content();
        }
        product.factors.sort_by_key(|&f| rank(f));
        product
    }

    /// Like [`Product::of`], but even a lone sum gives up its common divisor.
    pub fn primitive(e: Ex<'g>) -> Product<'g> {
        let mut product = Product::of(e);
        product.extract_content();
        product
    }

    fn extract_content(&mut self) {
        for factor in &mut self.factors {
            let content = content(*factor);
            if content > 1 && exact(*factor) {
                let sum = Sum::of(*factor);
                let terms = sum.terms.iter().map(|&(t, k)| (t, k / content)).collect();
                *factor = Sum { terms, constant: sum.constant / content }.build(*factor);
                self.coefficient = self.coefficient.wrapping_mul(content);
            }
        }
    }

    /// The product without its coefficient, of `like`'s type.
    pub fn monomial(&self, like: Ex<'g>) -> Ex<'g> {
        self.factors.iter().copied().reduce(|a, b| a * b).unwrap_or_else(|| like.like(1))
    }

    /// The product with one more factor.
    pub fn times(&self, e: Ex<'g>) -> Ex<'g> {
        let mut factors = self.factors.clone();
        factors.push(e);
        factors.sort_by_key(|&f| rank(f));
        let all = Product { coefficient: self.coefficient, factors };
        let m = all.monomial(e);
        if all.coefficient == 1 { m } else { m * all.coefficient }
    }

    /// The product without the factors of `other`, if it has them all.
    pub fn without(&self, other: &Product<'g>) -> Option<Product<'g>> {
        let mut factors = self.factors.clone();
        for f in &other.factors {
            factors.remove(factors.iter().position(|g| g == f)?);
        }
        (self.coefficient % other.coefficient == 0)
            .then(|| Product { coefficient: self.coefficient / other.coefficient, factors })
    }

    /// A range of symbolic extent among the factors, and the others if none of them can be negative.
    fn split_range(mut self) -> Option<(Ex<'g>, Product<'g>)> {
        let symbolic = |f: &Ex| matches!(f.op(), Op::Range(..)) && f.arg(0).as_int().is_none();
        let range = self.factors.remove(self.factors.iter().rposition(symbolic)?);
        let positive = self.coefficient > 0 && self.factors.iter().all(|f| f.bounds().0 >= 0);
        positive.then_some((range, self))
    }
}

/// The greatest common divisor of a sum's coefficients and constant.
fn content(e: Ex) -> i64 {
    match e.op() {
        Op::Binary(Binary::Add | Binary::Sub) => {
            let sum = Sum::of(e);
            sum.terms.iter().fold(gcd(sum.constant, 0), |g, t| gcd(g, t.1))
        }
        _ => 1,
    }
}

/// Never negative; 1 where it does not fit.
pub fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    i64::try_from(a).unwrap_or(1)
}
/// `index = base + Σ strides[i]·ranges[i]`, if it is of this form with constant strides.
pub fn affine<'g>(index: Ex<'g>, ranges: &[Ex<'g>]) -> Option<(Ex<'g>, Vec<i64>)> {
    let mut base = Sum::of(index);
    let mut strides = vec![0; ranges.len()];
    let mut fixed = vec![];
    for (t, k) in std::mem::take(&mut base.terms) {
        match ranges.iter().position(|r| *r == t) {
            Some(i) => strides[i] += k,
            None if crate::graph::topo(&[t]).iter().any(|e| ranges.contains(e)) => return None,
            None => fixed.push((t, k)),
        }
    }
    base.terms = fixed;
    Some((base.build(index), strides))
}
