//! Tests every table has to pass: its rules keep values and can fire, and its normal forms are stable.

use crate::dtype::{Bits, Scalar};
use crate::graph::{Ex, Graph, Op, topo};
use crate::interp::expr::{Env, eval};
use crate::rewrite::Rule;
use crate::rng::Rng;
use crate::text;
use std::collections::HashMap;

/// Each rule keeps the value of what it rewrites, and rewrites something.
pub fn sound_and_alive(table: &[Rule]) {
    for rule in table {
        let mut fired = 0;
        for seed in 0..800 {
            let (g, mut rng) = (Graph::new(), Rng::new(seed));
            let before = (rule.sample)(&g, &mut rng);
            if before.op() != rule.head {
                continue;
            }
            let Some(after) = (rule.apply)(before).filter(|&after| after != before) else { continue };
            fired += 1;
            assert_eq!(before.dtype(), after.dtype(), "rule {} changes the type, {rng}", rule.name);
            same(before, after, &mut rng, rule.name);
        }
        assert!(fired > 0, "rule {} never fires", rule.name);
    }
}

/// Both have the same lanes wherever they are evaluated.
pub fn same(a: Ex, b: Ex, rng: &mut Rng, what: &str) {
    for _ in 0..4 {
        let (x, y) = evaluate(a, b, rng);
        if !a.dtype().is_float() {
            within_bounds(a, &x, rng);
            within_bounds(b, &y, rng);
        }
        let equal = |x: &Bits, y: &Bits| {
            x == y || a.dtype().is_float() && x.as_float().is_nan() && y.as_float().is_nan()
        };
        let show = |v: &[Bits]| v.iter().map(|v| v.show(a.dtype().scalar)).collect::<Vec<_>>().join(" ");
        assert!(
            x.iter().zip(&y).all(|(x, y)| equal(x, y)),
            "{what}, {rng}:\n  {} = {}\n  {} = {}",
            text::expr(a),
            show(&x),
            text::expr(b),
            show(&y)
        );
    }
}

fn within_bounds(e: Ex, lanes: &[Bits], rng: &Rng) {
    let (lo, hi) = e.bounds();
    let inside = lanes.iter().all(|v| lo <= v.as_int() && v.as_int() <= hi);
    assert!(inside, "{} = {lanes:?} is outside {lo}..={hi}, {rng}", text::expr(e));
}

/// Both in one random environment that keeps to the bounds of ranges and symbols.
fn evaluate(a: Ex, b: Ex, rng: &mut Rng) -> (Vec<Bits>, Vec<Bits>) {
    let symbols: HashMap<String, i64> =
        a.g.symbols().into_iter().map(|s| (s.name, rng.range(s.bounds.0, s.bounds.1))).collect();
    let seed = rng.bits();
    let mut load = |m: Ex, i: i64| {
        let s = m.dtype().scalar;
        let mut rng = Rng::new(seed ^ (s as u64) << 32 ^ i as u64);
        value(s, &mut rng)
    };
    let mut env = Env { ranges: HashMap::new(), symbols, load: &mut load };
    for r in topo(&[a, b]).into_iter().filter(|e| matches!(e.op(), Op::Range(..))) {
        let extent = eval(r.arg(0), &mut env)[0].as_int();
        env.ranges.insert(r.id, rng.range(0, extent - 1));
    }
    (eval(a, &mut env), eval(b, &mut env))
}

fn value(s: Scalar, rng: &mut Rng) -> Bits {
    match (s.is_float(), rng.below(4)) {
        (true, 0) => {
            let special = [0.0, -0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX];
            Bits::float(s.round(*rng.choose(&special)))
        }
        (true, _) => Bits::float(s.round(rng.normal() * 100.0)),
        (false, 0) => Bits::int(s.wrap(*rng.choose(&[i64::MIN, i64::MAX, s.int_range().0, s.int_range().1]))),
        (false, 1) => Bits::int(s.wrap(rng.bits() as i64)),
        (false, _) => Bits::int(s.wrap(rng.range(-8, 20))),
    }
}

/// What `simplify` gives stays as it is, and has the same value.
pub fn stable(simplify: impl for<'g> Fn(Ex<'g>) -> Ex<'g>, count: u64) {
    keeps_values(
        |before| {
            let after = simplify(before);
            let (again, show) = (simplify(after), text::expr);
            assert!(after == again, "{} becomes {}, then {}", show(before), show(after), show(again));
            after
        },
        count,
    );
}

/// `pass` keeps the values of random index expressions.
pub fn keeps_values(pass: impl for<'g> Fn(Ex<'g>) -> Ex<'g>, count: u64) {
    for seed in 0..count {
        let (g, mut rng) = (Graph::new(), Rng::new(seed));
        let depth = 1 + rng.below(5);
        let before = super::sample::index(&g, &mut rng, depth);
        same(before, pass(before), &mut rng, "not the same value");
    }
}
