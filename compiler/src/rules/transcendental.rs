//! exp2, log2 and sin of f32 in terms of arithmetic, for targets without instructions for them.
//!
//! The polynomials are minimax fits of the functions named beside them; the tests measure what remains of their
//! accuracy after rounding. They rely on `Fma` rounding once.

use super::float::{fma, real};
use crate::dtype::Scalar;
use crate::graph::{Ex, Op};
use crate::rewrite::rules;
use crate::scalar::{Binary, Unary};

const F32: &[Scalar] = &[Scalar::F32];

rules! { pub EXPONENTIALS for F32:
    exp2:         (Exp2 x)                                  => exp2(x);
    log2:         (Log2 x)                                  => log2(x);
}

rules! {
    /// For every target: a GPU's instruction is off by 4e-6 at the angles of a long context.
    pub SINE for F32:
    sin:          (Sin x)                                   => sin(x);
}

/// (2^f - 1) / f on 0..1
const EXP2: [f32; 6] =
    [0.693_147_06, 0.240_229_14, 0.055_485_71, 0.009_675_035, 0.001_246_844, 0.000_216_229_94];

/// log2(1 + t) / t on √½-1 .. √2-1
const LOG2: [f32; 9] = [
    std::f32::consts::LOG2_E,
    -0.721_347_4,
    0.480_907_26,
    -0.360_699_1,
    0.287_991_82,
    -0.239_061_89,
    0.215_220_85,
    -0.206_413_92,
    0.126_017_18,
];

/// (sin r - r) / r³ of r² on 0..(π/2)²
const SIN: [f32; 4] = [-0.166_666_57, 0.008_333_009, -0.000_198_060_5, 2.599_045_7e-6];

/// Within 2 ulp. Results below the smallest normal number are 0; NaN gives an unspecified number.
pub fn exp2(x: Ex) -> Ex {
    // The ends make the scale 0 and infinity.
    let x = x.max(real(x, -127.0)).min(real(x, 128.0));
    let whole = x.unary(Unary::Floor);
    let f = x - whole;
    let scale = bitcast((whole.cast(Scalar::I32) + 127) << 23, Scalar::F32);
    fma(polynomial(f, &EXP2), f, real(x, 1.0)) * scale
}

/// Within 4 ulp for every positive number; -infinity of 0, NaN of what is negative.
pub fn log2(x: Ex) -> Ex {
    let tiny = x.lt(real(x, f32::MIN_POSITIVE));
    let normal = tiny.select(x * real(x, (1 << 23) as f32), x);
    // x = m·2^e with √½ ≤ m < √2: subtracting √½ borrows from the exponent exactly if the mantissa is below it.
    let bits = bitcast(normal, Scalar::I32);
    let e = (bits - std::f32::consts::FRAC_1_SQRT_2.to_bits() as i64) >> 23;
    let t = bitcast(bits - (e << 23), Scalar::F32) - real(x, 1.0);
    let e = (e - tiny.select(e.like(23), e.like(0))).cast(Scalar::F32);
    let finite = fma(polynomial(t, &LOG2), t, e);
    let (zero, infinity) = (real(x, 0.0), real(x, f32::INFINITY));
    let at_most_zero = x.binary(Binary::Eq, zero).select(real(x, f32::NEG_INFINITY), real(x, f32::NAN));
    zero.lt(x).select(x.lt(infinity).select(finite, x), at_most_zero)
}

/// Within 2e-7 absolute up to |x| = 1e5.
pub fn sin(x: Ex) -> Ex {
    // π = PI + REST + 4e-15. k·PI has at most 15 + 24 bits and x - k·PI less than 24: the first step is exact.
    const PI: f32 = std::f32::consts::PI;
    const REST: f32 = -8.742_278e-8;
    let k = (x * real(x, std::f32::consts::FRAC_1_PI)).unary(Unary::Round);
    let r = fma(k, real(x, -REST), fma(k, real(x, -PI), x));
    // sin(r + k·π) = (-1)^k · sin r
    let sign = k.cast(Scalar::I32) << 31;
    let r = bitcast(bitcast(r, Scalar::I32).binary(Binary::Xor, sign), Scalar::F32);
    let square = r * r;
    fma(polynomial(square, &SIN) * square, r, r)
}

/// Σ cᵢ·xⁱ
fn polynomial<'g>(x: Ex<'g>, coefficients: &[f32]) -> Ex<'g> {
    let mut terms = coefficients.iter().rev().map(|&c| real(x, c));
    let highest = terms.next().expect("a polynomial has coefficients");
    terms.fold(highest, |sum, c| fma(sum, x, c))
}

fn bitcast(x: Ex<'_>, to: Scalar) -> Ex<'_> {
    x.g.make(Op::Bitcast, to.vec(x.dtype().lanes), &[x])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Bits;
    use crate::graph::Graph;
    use crate::interp::expr::{Env, eval};
    use crate::rewrite::rewrite;
    use std::collections::HashMap;

    const LANES: u16 = 4096;

    /// The expansion of `op` at each of the points.
    fn values(op: Unary, points: &[f32]) -> Vec<f32> {
        let g = Graph::new();
        let m = g.new_buffer("x", Scalar::F32.vec(1), &[g.int(points.len() as i64)]);
        let mut out = vec![];
        for first in (0..points.len()).step_by(LANES as usize) {
            let x = g.make(Op::Load, Scalar::F32.vec(LANES), &[m, g.int(first as i64)]);
            let e = rewrite(&[EXPONENTIALS, SINE], &[x.unary(op)])[0];
            assert!(e.topo().iter().all(|n| n.op() != Op::Unary(op)));
            let mut load = |_: Ex, i: i64| Bits::float(points.get(i as usize).copied().unwrap_or(1.0));
            let mut env = Env { ranges: HashMap::new(), symbols: HashMap::new(), load: &mut load };
            out.extend(eval(e, &mut env).iter().map(|v| v.as_float()));
        }
        out.truncate(points.len());
        out
    }

    fn sweep(lo: f32, hi: f32, count: usize) -> Vec<f32> {
        (0..=count).map(|i| lo + (hi - lo) * (i as f64 / count as f64) as f32).collect()
    }

    /// The largest error in units of the last place of the true value.
    fn worst_ulp(op: Unary, points: &[f32], truth: impl Fn(f64) -> f64) -> f64 {
        let error = |(&x, v): (&f32, f32)| {
            let t = truth(x as f64);
            let ulp = (t.abs() as f32).max(f32::MIN_POSITIVE);
            (v as f64 - t).abs() / (f32::from_bits(ulp.to_bits() + 1) - ulp) as f64
        };
        points.iter().zip(values(op, points)).map(error).fold(0.0, f64::max)
    }

    #[test]
    fn exp2_is_within_2_ulp() {
        for (lo, hi) in [(-126.0, 127.999), (-2.0, 2.0), (-1e-3, 1e-3)] {
            let worst = worst_ulp(Unary::Exp2, &sweep(lo, hi, 200_000), f64::exp2);
            assert!(worst <= 2.0, "{worst} ulp in {lo}..{hi}");
        }
        let ends =
            [f32::NEG_INFINITY, -1e9, -127.0, -126.0, 0.0, -0.0, 10.0, 127.0, 128.0, 1e9, f32::INFINITY];
        let inf = f32::INFINITY;
        let expect = [0.0, 0.0, 0.0, f32::MIN_POSITIVE, 1.0, 1.0, 1024.0, 127f32.exp2(), inf, inf, inf];
        assert_eq!(values(Unary::Exp2, &ends), expect);
        assert!(values(Unary::Exp2, &sweep(-127.0, -126.0, 1000)).iter().all(|v| (0.0..2e-38).contains(v)));
    }

    #[test]
    fn log2_is_within_4_ulp() {
        let tiny = sweep(0.0, 1.0, 1000).into_iter().map(|v| v * f32::MIN_POSITIVE).skip(1).collect();
        let every = (1..0x7f80).map(|i| f32::from_bits(i << 16)).collect();
        for points in
            [sweep(0.5, 2.0, 400_000), sweep(0.999, 1.001, 100_000), sweep(1e-3, 1e4, 100_000), every, tiny]
        {
            let worst = worst_ulp(Unary::Log2, &points, f64::log2);
            assert!(worst <= 4.0, "{worst} ulp in {}..{}", points[0], points[points.len() - 1]);
        }
        let ends = values(
            Unary::Log2,
            &[0.0, -0.0, 1.0, 8.0, 0.25, f32::INFINITY, -1.0, f32::NEG_INFINITY, f32::NAN],
        );
        assert_eq!(ends[..6], [f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0, 3.0, -2.0, f32::INFINITY]);
        assert!(ends[6..].iter().all(|v| v.is_nan()));
    }

    #[test]
    fn sin_is_within_2e_7() {
        for limit in [1.0, 7.0, 1e3, 1e5] {
            let points = sweep(-limit, limit, 400_000);
            let error = |(&x, v): (&f32, f32)| (v as f64 - (x as f64).sin()).abs();
            let worst = points.iter().zip(values(Unary::Sin, &points)).map(error).fold(0.0, f64::max);
            assert!(worst <= 2e-7, "{worst} up to {limit}");
        }
        assert!(values(Unary::Sin, &[f32::INFINITY, f32::NAN]).iter().all(|v| v.is_nan()));
    }
}
