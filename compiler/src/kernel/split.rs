//! A long sum in two phases: pieces of it over the grid, whose sums meet in memory.
//!
//! In: a kernel of one stage with one sum outside of all others, as loops. Out: a kernel with the pieces as one more row,
//! which stores their sums, and one that adds these up and does what stood around the sum. Together they compute what the
//! kernel does.

use super::{Action, Illegal, Opt, Scheduled, consumers, heuristic};
use crate::codegen::Caps;
use crate::graph::{Ex, Kind, Op, topo};
use crate::rewrite::substitute;
use crate::rules::simplify;
use crate::scalar::Fold;
use crate::schedule::lower::flatten;
use crate::schedule::{Kernel, Stage};
use std::collections::HashMap;

macro_rules! refuse { ($($t:tt)*) => { return Err(Illegal(format!($($t)*))) } }

/// A kernel that is run with others in the place of one.
pub struct Phase<'g> {
    pub kernel: Kernel<'g>,
    pub opts: Vec<Opt>,
    /// Memory that this phase leaves for the next.
    pub between: Option<Ex<'g>>,
}

/// What a kernel under a schedule is run as. The options behind a split are those of its first phase; what the second
/// does is little, and its schedule the heuristic's.
pub fn phases<'g>(kernel: &Kernel<'g>, opts: &[Opt], caps: &Caps) -> Result<Vec<Phase<'g>>, Illegal> {
    let Some((first, rest)) = opts.split_first().filter(|(o, _)| o.action == Action::Split) else {
        return Ok(vec![Phase { kernel: kernel.clone(), opts: opts.to_vec(), between: None }]);
    };
    let mut s = Scheduled::new(kernel.clone());
    s.apply(*first, caps)?;
    let (sums, between) = s.then.expect("a split has a second phase");
    let second = heuristic::propose(&sums, caps);
    Ok(vec![
        Phase { kernel: s.kernel, opts: rest.to_vec(), between: Some(between) },
        Phase { kernel: sums, opts: second, between: None },
    ])
}

impl<'g> Scheduled<'g> {
    /// Becomes the first phase, whose axes are the pieces and then those that there were.
    pub(super) fn split_sum(&mut self, axis: usize, n: i64) -> Result<(), Illegal> {
        let (g, range) = (self.kernel.g, self.axes[axis].range);
        let [stage] = &self.kernel.stages[..] else { refuse!("split: the kernel has stages") };
        if self.axes.iter().any(|a| a.kind() != Kind::Serial) || self.prefetch > 0 || self.then.is_some() {
            refuse!("split comes before other options");
        }
        let Some(rounds) = self.axes[axis].extent().filter(|e| n > 1 && *e > n && e % n == 0) else {
            refuse!("split: the sum is not {n} pieces of a constant size");
        };
        let [sum] = consumers(&[stage.store], range)[..] else {
            refuse!("split: several sums have the axis")
        };
        let folds = topo(&[stage.store]).into_iter().filter(|e| matches!(e.op(), Op::Fold(..)));
        if sum.op() != Op::Fold(Fold::Sum, 1) || folds.into_iter().any(|f| !topo(&[sum]).contains(&f)) {
            refuse!("split: wants one sum outside of all others");
        }
        let rows: Vec<Ex> = self.kernel.rows.iter().chain(&stage.outs).copied().collect();
        if rows.iter().any(|r| topo(&[r.arg(0)]).iter().any(|e| e.op() == Op::Load)) {
            refuse!("split: only the kernel knows how many results there are");
        }
        let own = |n: i64| g.new_range(g.int(n), Kind::Serial);
        let (piece, inner, part) = (own(n), own(rounds / n), own(n));
        let sizes: Vec<Ex> = [g.int(n)].into_iter().chain(rows.iter().map(|r| r.arg(0))).collect();
        let between = g.new_buffer("pieces", sum.dtype(), &sizes);
        let place = |piece: Ex<'g>| flatten(g, &sizes, &[&[piece], &rows[..]].concat());

        let index = HashMap::from([(range.id, piece * (rounds / n) + inner)]);
        let over = sum.args().into_iter().skip(1).map(|r| if r == range { inner } else { r });
        let args: Vec<Ex> = substitute(&[sum.arg(0)], &index).into_iter().chain(over).collect();
        let store = g.make(Op::Store, sum.dtype(), &[between, place(piece), sum.with_args(&args)]);
        let load = g.make(Op::Load, sum.dtype(), &[between, place(part)]);
        let whole = HashMap::from([(sum.id, g.make(Op::Fold(Fold::Sum, 1), sum.dtype(), &[load, part]))]);
        let stores = simplify(&[store, substitute(&[stage.store], &whole)[0]]);

        let kernel = |suffix: &str, rows: Vec<Ex<'g>>, store: Ex<'g>| Kernel {
            g,
            name: format!("{}_{suffix}", self.kernel.name),
            rows,
            stages: vec![Stage { outs: vec![], store }],
        };
        let sums = kernel("sum", rows.clone(), stores[1]);
        let first = kernel("pieces", [vec![piece], rows.clone()].concat(), stores[0]);
        *self = Scheduled { then: Some((sums, between)), ..Scheduled::new(first) };
        Ok(())
    }
}
