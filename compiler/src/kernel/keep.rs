//! Weights that many tokens read: unpacked once, kept in local memory.
//!
//! In: a kernel of one stage with sums of byte products, as loops. Out: the same with a stage before it for each kind of
//! weights, which writes them as bytes in the order in which dot products and tiles read them: the inner four of the
//! reduction fastest, then the 16 rows of the layout, then the rest of the reduction.

use super::{Axis, Illegal, Role, Scheduled, byte_factors, reductions};
use crate::graph::{Ex, Id, Kind, Op, topo};
use crate::rewrite::substitute;
use crate::rules::simplify;
use crate::rules::sum::affine;
use crate::scalar::Fold;
use crate::schedule::{Kernel, Stage};
use std::collections::HashMap;

/// Rows of weights that lie next to each other.
const LANES: i64 = 16;

macro_rules! refuse { ($($t:tt)*) => { return Err(Illegal(format!($($t)*))) } }

impl<'g> Scheduled<'g> {
    /// Keeps the weights that do not depend on the axis. What they do depend on besides the reduction and the layout's
    /// 16 rows becomes the kernel's rows.
    pub(super) fn keep(&mut self, axis: usize) -> Result<(), Illegal> {
        let (g, across) = (self.kernel.g, self.axes[axis].range);
        let [stage] = &self.kernel.stages[..] else { refuse!("keep: the kernel has stages already") };
        if self.axes.iter().any(|a| a.kind() != Kind::Serial) {
            refuse!("keep comes before other options");
        }
        let mut products: Vec<(Ex, Ex)> = vec![];
        for e in topo(&[stage.store]) {
            if let (Op::Fold(Fold::Sum, 1), [body, over]) = (e.op(), &e.args()[..])
                && let Some((weights, _)) = byte_factors(*body)
                && !products.iter().any(|p| p.0 == weights)
            {
                products.push((weights, *over));
            }
        }
        let outs: Vec<Ex> = self.kernel.rows.iter().chain(&stage.outs).copied().collect();
        let read: Vec<Vec<Ex>> = products.iter().map(|p| topo(&[p.0])).collect();
        let all = |r: &Ex<'g>| !products.is_empty() && products.iter().all(|p| interleaved(p.0, *r));
        let lanes = outs.iter().copied().find(all);
        let Some(lanes) = lanes else {
            refuse!("keep: no byte products with {LANES} rows of weights side by side");
        };
        if read.iter().any(|e| e.contains(&across)) {
            refuse!("keep: the weights depend on the axis");
        }
        let mut stages = vec![];
        let mut loads: HashMap<Id, Ex> = HashMap::new();
        for (i, (&(weights, over), read)) in products.iter().zip(&read).enumerate() {
            let around: Vec<Ex> =
                reductions(stage.store).into_iter().filter(|r| *r != over && read.contains(r)).collect();
            let sizes = around.iter().chain([&over]).map(|r| r.arg(0).as_int());
            let Some(sizes) = sizes.collect::<Option<Vec<i64>>>().filter(|s| s.last().unwrap() % 4 == 0)
            else {
                refuse!("keep: the reduction has no constant size, or is not by fours");
            };
            let fours = sizes.last().unwrap() / 4;
            let own = |n: i64| g.new_range(g.int(n), Kind::Serial);
            let copies: Vec<Ex> = around.iter().zip(&sizes).map(|(_, &n)| own(n)).collect();
            let (four, side) = (own(fours), own(4 * LANES));
            let place = |around: &[Ex<'g>], four: Ex<'g>, side: Ex<'g>| {
                let outer = around.iter().zip(&sizes).fold(g.int(0), |at, (&r, &n)| at * n + r);
                (outer * fours + four) * (4 * LANES) + side
            };
            let length: i64 = sizes.iter().product::<i64>() * LANES;
            let local = g.make(Op::Local(i as u32), weights.dtype(), &[g.int(length)]);
            let mut map: HashMap<Id, Ex> = around.iter().map(|r| r.id).zip(copies.clone()).collect();
            map.extend([(over.id, four * 4 + side % 4), (lanes.id, side / 4)]);
            let value = substitute(&[weights], &map)[0];
            let store = g.make(Op::Store, weights.dtype(), &[local, place(&copies, four, side), value]);
            stages.push(Stage { outs: [copies, vec![four, side]].concat(), store });
            let index = place(&around, over / 4, lanes * 4 + over % 4);
            loads.insert(weights.id, g.make(Op::Load, weights.dtype(), &[local, index]));
        }
        let shared = |r: &Ex<'g>| *r != lanes && read.iter().any(|e| e.contains(r));
        let (rows, inner): (Vec<Ex>, Vec<Ex>) = outs.iter().partition(|r| shared(r));
        stages.push(Stage { outs: inner, store: substitute(&[stage.store], &loads)[0] });
        self.restage(rows, stages);
        Ok(())
    }

    /// Takes these rows and stages for the kernel's; the axes are theirs.
    pub(super) fn restage(&mut self, rows: Vec<Ex<'g>>, mut stages: Vec<Stage<'g>>) {
        let stores = simplify(&stages.iter().map(|s| s.store).collect::<Vec<_>>());
        stages.iter_mut().zip(stores).for_each(|(s, store)| s.store = store);
        self.kernel = Kernel { g: self.kernel.g, name: self.kernel.name.clone(), rows, stages };
        self.axes = axes(&self.kernel);
    }
}

/// Are 16 rows of bytes interleaved by fours along this range?
pub(super) fn interleaved<'g>(weights: Ex<'g>, range: Ex<'g>) -> bool {
    let bytes = |e: &Ex| e.op() == Op::Load && e.dtype().bytes() == 1;
    let by_four = |e: &Ex| affine(e.arg(1), &[range]).is_some_and(|(_, s)| s[0] == 4);
    range.arg(0).as_int() == Some(LANES) && topo(&[weights]).iter().any(|e| bytes(e) && by_four(e))
}

/// The axes of a kernel: rows first, then each stage's outputs and reductions.
pub(super) fn axes<'g>(kernel: &Kernel<'g>) -> Vec<Axis<'g>> {
    let mut axes: Vec<Axis> = kernel.rows.iter().map(|&range| Axis { range, role: Role::Row }).collect();
    for (s, stage) in kernel.stages.iter().enumerate() {
        axes.extend(stage.outs.iter().map(|&range| Axis { range, role: Role::Out(s) }));
        axes.extend(reductions(stage.store).into_iter().map(|range| Axis { range, role: Role::Reduce(s) }));
    }
    axes
}
