//! What a block reads and is known before it starts: weights, which can be fetched while the kernel before still runs.
//!
//! In: a scheduled kernel. Out: stretches of buffers, each with a start that depends on the grid alone. Only what lies
//! densely counts, so fetching whole lines fetches little that is not read.

use crate::graph::{Ex, Kind, Op, topo};
use crate::kernel::Scheduled;
use crate::rules::simplify1;
use crate::rules::sum::Sum;

/// Bytes that are fetched at a time.
pub const LINE: i64 = 128;

/// Most bytes of one stretch: a block that reads more is at it long enough.
const MOST: i64 = 160 << 10;

/// Blocks that run at a time: later ones start too late to fetch anything ahead.
const BLOCKS: i64 = 2048;

/// Blocks that may all ask for the same, and its most bytes: the weights of a norm.
const FEW: i64 = 256;
const SHARED: i64 = 16 << 10;

pub struct Stretch<'g> {
    pub buffer: Ex<'g>,
    /// Its first byte.
    pub start: Ex<'g>,
    pub bytes: i64,
}

pub fn stretches<'g>(s: &Scheduled<'g>) -> Vec<Stretch<'g>> {
    let (grid, inner): (Vec<_>, Vec<_>) =
        s.axes.iter().map(|a| a.range).partition(|r| matches!(r.op(), Op::Range(_, Kind::Grid)));
    let blocks = grid.iter().map(|r| r.arg(0).bounds().1).fold(1, i64::saturating_mul);
    let mut found: Vec<Stretch> = vec![];
    if blocks > BLOCKS {
        return found;
    }
    let shared = if blocks <= FEW { SHARED } else { 0 };
    for load in topo(&s.kernel.stores()).into_iter().filter(|e| e.op() == Op::Load) {
        let (buffer, bytes) = (load.arg(0), load.dtype().bytes() as i64);
        if !s.args.iter().any(|(b, written)| *b == buffer && !written) {
            continue;
        }
        let mut start = Sum::of(load.arg(1));
        let (own, fixed): (Vec<_>, Vec<_>) =
            start.terms.into_iter().partition(|(t, _)| topo(&[*t]).iter().any(|e| inner.contains(e)));
        start.terms = fixed;
        let start = start.build(load.arg(1));
        let below = topo(&[start]);
        let known = below.iter().all(|e| !matches!(e.op(), Op::Load | Op::Fold(..)));
        let apart = grid.iter().all(|r| r.arg(0).as_int() == Some(1) || below.contains(r));
        let most = if apart { MOST } else { shared };
        // Terms count from 0 on, each with every value up to its last.
        let last = |(t, k): &(Ex<'g>, i64)| {
            let (lo, hi) = t.bounds();
            let free =
                topo(&[*t]).iter().all(|e| !matches!(e.op(), Op::Load | Op::Symbol(_)) && !grid.contains(e));
            (free && lo == 0 && hi < MOST && *k > 0).then_some((hi, *k))
        };
        let Some(own) = own.iter().map(last).collect::<Option<Vec<_>>>().filter(|_| known) else {
            continue;
        };
        let length = 1 + own.iter().map(|(hi, k)| hi * k).sum::<i64>();
        let read = own.iter().map(|(hi, _)| hi + 1).fold(1, i64::saturating_mul);
        let start = simplify1(start * bytes);
        let near = |f: &Stretch<'g>| {
            f.buffer == buffer && simplify1(f.start - start).as_int().is_some_and(|a| a.abs() < LINE)
        };
        if 2 * read >= length && bytes * length <= most && !found.iter().any(near) {
            found.push(Stretch { buffer, start, bytes: bytes * length });
        }
    }
    found
}
