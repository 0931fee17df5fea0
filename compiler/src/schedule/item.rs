//! A kept tensor and what its rows have to do with each other: what a kernel of several stages is judged by.

use super::half_factors;
use super::lower::{Lower, at_parts, reads};
use crate::graph::{Ex, Graph, Id, Op, topo};
use crate::rules::simplify1;
use std::collections::HashSet;

/// Elements that are quickly read again.
pub const LITTLE: i64 = 1 << 10;

/// How often a row uses what it reads again for this to be worth it.
const REUSED: i64 = 3;

/// Rows from which on a matrix is worth it.
const SIDE: i64 = 8;

/// A kept tensor and how one element of it is computed.
pub struct Item<'g> {
    pub tensor: Ex<'g>,
    /// What it is computed along, outermost first, and how far each goes.
    pub axes: Vec<Ex<'g>>,
    pub dims: Vec<Ex<'g>>,
    /// The same in the order of the tensor, for an assignment of the part that it writes.
    pub index: Vec<Ex<'g>>,
    pub body: Ex<'g>,
    /// For an assignment the place of the element.
    pub place: Option<Ex<'g>>,
}

impl<'g> Item<'g> {
    pub fn new(g: &'g Graph, tensor: Ex<'g>, kept: &HashSet<Id>) -> Item<'g> {
        let mut lower = Lower::new(g, kept);
        if tensor.op() == Op::Assign {
            let dims = tensor.arg(0).dims();
            let axes = lower.axes(&dims);
            // The place is in the buffer, even where a view on the way there is kept for somebody else.
            let (mut kept, mut view) = (kept.clone(), tensor.arg(0));
            while !matches!(view.op(), Op::Buffer(_) | Op::Assign) {
                kept.remove(&view.id);
                view = view.arg(0);
            }
            let place = Lower::new(g, &kept).place(tensor.arg(0), &axes);
            // The value may itself be kept.
            let body = lower.element(tensor.arg(1), &axes, None, 0);
            let (index, place) = (axes.clone(), Some(simplify1(place)));
            return Item { tensor, axes, dims, index, body: simplify1(body), place };
        }
        let dims = tensor.dims();
        let axes = lower.axes(&dims);
        let body = lower.body(tensor, &axes);
        Item { tensor, index: axes.clone(), axes, dims, body: simplify1(body), place: None }
    }

    /// What only brings another tensor into another order, along that one's first axes: its rows can be those of the kernel
    /// that computes it.
    pub fn along_source(mut self) -> Item<'g> {
        if self.tensor.op() != Op::Contiguous || !matches!(self.body.op(), Op::At(_)) {
            return self;
        }
        let first: Vec<Ex> =
            at_parts(self.body).1.into_iter().take_while(|i| self.axes.contains(i)).collect();
        if first.first() != self.axes.first() {
            let mut order: Vec<usize> = (0..self.axes.len()).collect();
            order.sort_by_key(|&k| first.iter().position(|a| *a == self.axes[k]).unwrap_or(first.len()));
            self.axes = order.iter().map(|&k| self.index[k]).collect();
            self.dims = order.iter().map(|&k| self.dims[k]).collect();
        }
        self
    }

    pub fn roots(&self) -> Vec<Ex<'g>> {
        std::iter::once(self.body).chain(self.place).collect()
    }

    /// The tensors that it reads.
    pub fn reads(&self) -> impl Iterator<Item = Id> + use<'g> {
        reads(&self.roots()).into_iter().map(|at| at_parts(at).0.id)
    }

    /// The factors of its sums of products of 16 bits, which a matrix unit takes for many rows at a time.
    fn factors(&self) -> impl Iterator<Item = (Ex<'g>, Ex<'g>)> + use<'g> {
        let folds = topo(&[self.body]).into_iter().filter(|e| matches!(e.op(), Op::Fold(..)));
        folds.filter_map(|e| half_factors(e.arg(0)))
    }

    /// Is it such a sum?
    pub fn halves(&self) -> bool {
        self.factors().next().is_some()
    }

    /// The same, of which every row has two matrices?
    pub fn multiplies(&self, rows: usize) -> bool {
        let own = |e: Ex<'g>, other: Ex<'g>| {
            let [e, other] = [e, other].map(|x| topo(&[x]));
            let alone = |a: &Ex<'g>| extent(*a) >= SIDE && e.contains(a) && !other.contains(a);
            self.axes[rows..].iter().any(alone)
        };
        self.factors().any(|(a, b)| own(a, b) && own(b, a))
    }

    /// Do rows read the same elements of a larger tensor: all of them, or those along one axis more than each has of its own?
    pub fn shares(&self, rows: usize) -> bool {
        let own = |idx: &[Ex]| topo(idx).iter().any(|e| self.axes[..rows].contains(e));
        let count = |idx: &[Ex]| topo(idx).into_iter().filter(|e| matches!(e.op(), Op::Range(..))).count();
        let all =
            reads(&[self.body]).into_iter().map(at_parts).any(|(_, idx, _)| !own(&idx) && count(&idx) > 1);
        all || self.common(rows).next().is_some()
    }

    /// Does one of the first axes read more that it has in common with its other rows than of its own, and this to use
    /// it once?
    pub fn crowds(&self, rows: usize) -> bool {
        self.common(rows).any(|common| self.work(rows) < REUSED * common)
    }

    /// Elements that the rows along one of the first axes read in common, for each where these are more than a row's own.
    fn common(&self, rows: usize) -> impl Iterator<Item = i64> + use<'g, '_> {
        let reads: Vec<_> = reads(&[self.body]).into_iter().map(|at| at_parts(at).1).collect();
        self.axes[..rows].iter().filter(|a| extent(**a) > 1).filter_map(move |a| {
            let within = |e: &Ex<'g>| matches!(e.op(), Op::Range(..)) && !self.axes[..rows].contains(e);
            let size = |idx: &[Ex<'g>]| -> i64 { topo(idx).into_iter().filter(within).map(extent).product() };
            let (own, common): (Vec<_>, Vec<_>) = reads.iter().partition(|idx| topo(idx).contains(a));
            let total = |part: Vec<&Vec<Ex<'g>>>| part.into_iter().map(|idx| size(idx)).sum::<i64>();
            let common = total(common);
            (common > total(own).max(LITTLE)).then_some(common)
        })
    }

    /// Element operations in all, or in one row when `rows` axes are taken away.
    pub fn work(&self, rows: usize) -> i64 {
        let outs: i64 = self.axes[rows..].iter().map(|a| extent(*a)).product();
        outs.saturating_mul(self.roots().into_iter().map(rounds).fold(1, i64::saturating_add))
    }
}

/// Element operations of the reductions in one element: what stands inside another runs in each of its rounds.
fn rounds(e: Ex) -> i64 {
    let (mut stack, mut seen, mut sum) = (vec![e], HashSet::new(), 0i64);
    while let Some(e) = stack.pop() {
        if !seen.insert(e.id) {
            continue;
        }
        match e.op() {
            Op::Fold(_, n) => {
                let args = e.args();
                let (bodies, over) = args.split_at(n as usize);
                let times: i64 = over.iter().map(|r| extent(*r)).product();
                let inside = bodies.iter().map(|b| rounds(*b)).fold(1, i64::saturating_add);
                sum = sum.saturating_add(times.saturating_mul(inside));
            }
            _ => stack.extend(e.args()),
        }
    }
    sum
}

/// Rounds of a range; an axis of one element has the index 0 instead.
pub fn extent(axis: Ex) -> i64 {
    match axis.op() {
        Op::Range(..) => axis.arg(0).bounds().1,
        _ => 1,
    }
}
