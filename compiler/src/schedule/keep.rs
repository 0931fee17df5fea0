//! Decides which tensors are kept in memory.
//!
//! Kept are the requested tensors and whatever would otherwise be computed again and again: a reduction or a costly
//! operation that several others read, or that is broadcast. Everything else is computed where it is read, so a
//! reduction takes its prologue and epilogue along, and a reduction read once inside another (the block sums of a
//! quantised product, the experts of a weighted sum) runs in its loop. A reduction is never recomputed.

use crate::graph::{Ex, Id, Op, topo};
use crate::scalar::{Binary, Unary};
use std::collections::{HashMap, HashSet};

fn is_movement(op: Op) -> bool {
    matches!(op, Op::Reshape | Op::Expand | Op::Permute(_) | Op::Shrink | Op::Pad)
}

/// The tensor that a chain of views shows.
fn behind(mut t: Ex) -> Ex {
    while is_movement(t.op()) {
        t = t.arg(0);
    }
    t
}

/// Does it only give numbers more bits? It is kept as what it is made of.
fn widens(e: &Ex) -> bool {
    let wider = || {
        e.dtype().is_float() && e.arg(0).dtype().is_float() && e.dtype().bytes() > e.arg(0).dtype().bytes()
    };
    e.op() == Op::Cast && wider()
}

/// With `blocks`, many threads would wait for one that divides.
fn costly(op: Op, float: bool, blocks: bool) -> bool {
    match op {
        Op::Reduce(..) => true,
        Op::Unary(Unary::Recip) if blocks => false,
        Op::Unary(u) => !matches!(u, Unary::Neg | Unary::Not | Unary::Floor | Unary::Ceil | Unary::Trunc),
        Op::Binary(b) => b == Binary::Div && float,
        _ => false,
    }
}

/// Tensors that are kept in memory. With `blocks`, one that is only read as rows of blocks is kept as these.
pub fn keep<'g>(roots: &[Ex<'g>], blocks: bool) -> HashSet<Id> {
    let order = topo(roots);
    let mut users: HashMap<Id, Vec<Id>> = HashMap::new();
    for e in &order {
        e.args().iter().for_each(|a| users.entry(a.id).or_default().push(e.id));
    }
    let view = |e: &Ex| {
        let alone = e.op() == Op::Reshape && users[&e.arg(0).id] == [e.id];
        blocks && alone && !is_movement(e.arg(0).op())
    };
    let own = |e: &Ex| matches!(e.op(), Op::Assign | Op::Contiguous) || roots.contains(e);
    let asked: HashSet<Id> =
        order.iter().filter(|e| own(e) && !matches!(e.op(), Op::Buffer(_))).map(|e| e.id).collect();
    let mut kept = asked.clone();
    // Whether reading a node means work that is not to be done twice.
    let weigh = |e: &Ex, heavy: &mut HashMap<Id, bool>, kept: &HashSet<Id>| {
        let below = e.args().iter().any(|a| heavy[&a.id] && !kept.contains(&a.id));
        heavy.insert(e.id, below || costly(e.op(), e.dtype().is_float(), blocks));
    };
    let mut heavy: HashMap<Id, bool> = HashMap::new();
    for e in &order {
        weigh(e, &mut heavy, &kept);
        let again = match e.op() {
            Op::Expand => vec![e.arg(0)],
            Op::Gather | Op::Segment => e.args(),
            _ => vec![],
        };
        let narrow = |s: Ex<'g>| if widens(&s) { behind(s.arg(0)) } else { s };
        for s in again.into_iter().map(behind).map(narrow) {
            if heavy[&s.id] && kept.insert(s.id) {
                // The views between `s` and here were weighed before `s` was kept.
                e.topo().iter().for_each(|n| weigh(n, &mut heavy, &kept));
            }
        }
    }
    order.iter().for_each(|e| weigh(e, &mut heavy, &kept));
    let mut readers: HashMap<Id, HashSet<Id>> = HashMap::new();
    for e in order.iter().rev() {
        let by = readers.entry(e.id).or_default();
        if by.len() > 1 && heavy[&e.id] && (!is_movement(e.op()) || view(e)) && !widens(e) {
            kept.insert(e.id);
        }
        let by = if kept.contains(&e.id) { HashSet::from([e.id]) } else { by.clone() };
        for a in e.args() {
            readers.entry(a.id).or_default().extend(&by);
        }
    }
    order.iter().for_each(|e| weigh(e, &mut heavy, &kept));
    kept.retain(|id| asked.contains(id) || heavy[id]);
    kept
}
