//! Matrices that the products of a row read, in local memory.
//!
//! In: a kernel of several stages with sums of products of 16 bits, as loops, two of which read the same matrix. Out: the
//! same with a stage before them for each matrix, which copies it. Stages that read the same one have one copy. Rows of
//! local memory are a little longer than what they hold: what threads read of several rows at a time would come from the
//! same banks.

use super::{Illegal, Scheduled, reductions};
use crate::graph::{Ex, Graph, Id, Kind, Op, rebuild, topo};
use crate::rewrite::substitute;
use crate::rules::sum::{Sum, affine};
use crate::schedule::{Stage, half_factors};
use std::collections::HashMap;

/// Bytes of local memory that can be read at a time, and by how many a row is longer where threads read from neighbouring
/// rows, or from every other row as they do where the sum is over rows.
pub(super) const BANKS: i64 = 128;
const ALONG: i64 = 64;
pub(super) const ACROSS: i64 = 16;

macro_rules! refuse { ($($t:tt)*) => { return Err(Illegal(format!($($t)*))) } }

impl<'g> Scheduled<'g> {
    pub(super) fn share(&mut self) -> Result<(), Illegal> {
        let g = self.kernel.g;
        if self.axes.iter().any(|a| a.kind() != Kind::Serial) {
            refuse!("keep comes before other options");
        }
        let fixed = |e: Ex<'g>| self.args.iter().any(|(b, written)| *b == e && !written);
        let mut found: Vec<Vec<Part>> = vec![];
        for stage in &self.kernel.stages {
            let folds = topo(&[stage.store]).into_iter().filter(|e| matches!(e.op(), Op::Fold(..)));
            let factors = folds.filter_map(|e| half_factors(e.arg(0))).flat_map(|(a, b)| [a, b]);
            for load in factors.filter(|e| e.op() == Op::Load && fixed(e.arg(0))) {
                let Some(part) = Part::of(load, stage) else { continue };
                match found.iter_mut().find(|f| f[0].matrix() == part.matrix()) {
                    Some(same) => same.push(part),
                    None => found.push(vec![part]),
                }
            }
        }
        if found.iter().all(|parts| parts.len() == 1) {
            refuse!("keep: no matrix that two products read");
        }
        // The longest first: it is on its way while the others wait for what was just written.
        found.sort_by_key(|parts| std::cmp::Reverse(parts[0].rows));
        let taken = |e: Ex<'g>| if let Op::Local(n) = e.op() { n + 1 } else { 0 };
        let free = topo(&self.kernel.stores()).into_iter().map(taken).max().unwrap_or(0);
        let stores = pitched(g, &self.kernel.stores());
        let mut stages = vec![];
        let mut loads: HashMap<Id, Ex> = HashMap::new();
        for (number, parts) in (free..).zip(&found) {
            let (first, t) = (&parts[0], parts[0].load.dtype());
            let (bytes, width) = (t.bytes() as i64, parts.iter().map(|p| p.width).max().unwrap_or(0));
            let apart = if parts.iter().any(|p| p.across) { ACROSS } else { ALONG };
            let pitch = ((width * bytes + BANKS - 1) / BANKS * BANKS + apart) / bytes;
            let local = g.make(Op::Local(number), t, &[g.int(first.rows * pitch)]);
            let range = |n: i64| g.new_range(g.int(n), Kind::Serial);
            let (row, column) = (range(first.rows), range(width));
            let from = first.base + row * first.stride + column;
            let value = g.make(Op::Load, t, &[first.load.arg(0), from]);
            let store = g.make(Op::Store, t, &[local, row * pitch + column, value]);
            stages.push(Stage { outs: vec![row, column], store });
            let near = |p: &Part<'g>| g.make(Op::Load, t, &[local, p.row * pitch + p.column]);
            loads.extend(parts.iter().map(|p| (p.load.id, near(p))));
        }
        let readers = self.kernel.stages.iter().zip(substitute(&stores, &loads));
        stages.extend(readers.map(|(s, store)| Stage { outs: s.outs.clone(), store }));
        self.restage(self.kernel.rows.clone(), stages);
        Ok(())
    }
}

/// A load of some rows of a matrix.
struct Part<'g> {
    load: Ex<'g>,
    /// Where the first of them begins.
    base: Ex<'g>,
    row: Ex<'g>,
    rows: i64,
    stride: i64,
    column: Ex<'g>,
    width: i64,
    /// Is the sum over the rows?
    across: bool,
}

impl<'g> Part<'g> {
    fn of(load: Ex<'g>, stage: &Stage<'g>) -> Option<Part<'g>> {
        let summed = reductions(stage.store);
        let inner = [&stage.outs[..], &summed].concat();
        let (base, strides) = affine(load.arg(1), &inner).filter(|_| load.args().len() == 2)?;
        let mut used: Vec<(Ex, i64)> = inner.into_iter().zip(strides).filter(|(_, by)| *by != 0).collect();
        used.sort_by_key(|(_, by)| std::cmp::Reverse(*by));
        let [(row, stride), (column, 1)] = used[..] else { return None };
        let (rows, width) = (row.arg(0).as_int()?, column.arg(0).as_int()?);
        let across = summed.contains(&row);
        (width <= stride).then_some(Part { load, base, row, rows, stride, column, width, across })
    }

    /// What the same matrix has in common.
    fn matrix(&self) -> (Ex<'g>, Ex<'g>, i64, i64) {
        (self.load.arg(0), self.base, self.rows, self.stride)
    }
}

/// The stores with longer rows of the local memory between them, where those fill all banks.
fn pitched<'g>(g: &'g Graph, stores: &[Ex<'g>]) -> Vec<Ex<'g>> {
    let all = topo(stores);
    let place = |e: &Ex<'g>, mem: Ex<'g>| {
        (matches!(e.op(), Op::Load | Op::Store) && e.arg(0) == mem).then(|| Sum::of(e.arg(1)))
    };
    let longer = |mem: Ex<'g>| {
        let places: Vec<Sum> = all.iter().filter_map(|e| place(e, mem)).collect();
        let n = places.iter().flat_map(|p| &p.terms).map(|(_, k)| *k).filter(|k| *k > 1).min()?;
        let row = |p: &Sum<'g>| {
            let (within, rows): (Vec<_>, Vec<_>) = p.terms.iter().partition(|(_, k)| *k == 1);
            let last: i64 = within.iter().map(|(t, _)| t.bounds().1).fold(0, i64::saturating_add);
            let first: i64 = within.iter().map(|(t, _)| t.bounds().0).min().unwrap_or(0);
            p.constant == 0 && first >= 0 && last < n && rows.iter().all(|(_, k)| k % n == 0)
        };
        let bytes = mem.dtype().bytes() as i64;
        let pitch = n + ACROSS / bytes;
        let rows = mem.arg(0).as_int()?.checked_div(n)?;
        let same = places.iter().all(row) && n * bytes % BANKS == 0;
        same.then(|| (n, pitch, g.make(mem.op(), mem.dtype(), &[g.int(rows * pitch)])))
    };
    let locals = all.iter().filter(|e| matches!(e.op(), Op::Local(_)));
    let longer: HashMap<Id, _> = locals.filter_map(|&l| Some((l.id, longer(l)?))).collect();
    rebuild(stores, |e, mut args| {
        if let Op::Load | Op::Store = e.op()
            && let Some(&(n, pitch, mem)) = longer.get(&e.arg(0).id)
        {
            let mut at = Sum::of(e.arg(1));
            at.terms.iter_mut().filter(|(_, k)| *k > 1).for_each(|(_, k)| *k = *k / n * pitch);
            (args[0], args[1]) = (mem, at.build(e.arg(1)));
        }
        e.with_args(&args)
    })
}
