//! Sums of products of bf16 or f16 by the 32 threads of a warp.
//!
//! In: a kernel with a stage whose sums are of such products. Out: the same with 16 rows of weights, eight tokens and
//! four inputs spread over threads as [`Inst::Mma`](crate::linear::Inst::Mma) wants the sums. What a thread computes for
//! the product is found when inputs are unrolled ([`fragments`]): the ordinary expression of each number that it holds, so
//! that weights are unpacked in registers. Which inputs stand side by side does not matter while both factors agree.

use super::tiles::{Product, multiple, products};
use super::{Axis, Illegal, Role, Scheduled, share, step};
use crate::dtype::{DType, Scalar};
use crate::graph::{Ex, Graph, Id, Kind, Op, rebuild, topo};
use crate::rewrite::substitute;
use crate::rules::{simplify, simplify1};
use crate::scalar::Fold;
use crate::schedule::half_factors;
use std::collections::HashMap;

/// Threads, rows of weights, tokens and parts of the inputs of one product.
pub const THREADS: i64 = 32;
const ROWS: i64 = 16;
const TOKENS: i64 = 8;
pub(super) const PARTS: i64 = 4;

/// Rows that a thread has side by side.
const BESIDE: i64 = 4;

/// The ranges of a stage's product: row `8·half + thread/4` of 16, the eight in any order, or `thread/4` of two blocks `half`;
/// token `2·(thread%4) + side` of eight; part `part` of the inputs.
#[derive(Clone, Copy)]
pub struct Warp<'g> {
    pub stage: usize,
    pub thread: Ex<'g>,
    pub half: Ex<'g>,
    pub side: Ex<'g>,
    pub part: Ex<'g>,
}

impl<'g> Warp<'g> {
    pub(super) fn each(&self, f: impl Fn(Ex<'g>) -> Ex<'g>) -> Warp<'g> {
        let Warp { stage, thread, half, side, part } = *self;
        Warp { stage, thread: f(thread), half: f(half), side: f(side), part: f(part) }
    }
}

macro_rules! refuse { ($($t:tt)*) => { return Err(Illegal(format!($($t)*))) } }

impl<'g> Scheduled<'g> {
    /// Products of the tokens along one axis with weights, the inputs along another by four.
    pub(super) fn mma(&mut self, tokens: usize, inputs: usize) -> Result<(), Illegal> {
        let single = self.kernel.stages.len() == 1;
        let stage = match self.axes[tokens].role {
            Role::Out(s) => s,
            _ if single => 0,
            _ => refuse!("mma: the stages share their rows"),
        };
        let taken = |(_, a): (usize, &Axis<'g>)| matches!(a.kind(), Kind::Vector | Kind::Lane);
        if self.warp(stage).is_some() || self.of_stage(stage).any(taken) {
            refuse!("mma: is alone to spread the stage over lanes");
        }
        let serial = |a: &&Axis<'g>| a.kind() == Kind::Serial;
        let by_parts = |a: &&Axis<'g>| a.role == Role::Reduce(stage) && multiple(a.range.arg(0), PARTS);
        let Some(over) = self.axes.get(inputs).filter(serial).filter(by_parts).map(|a| a.range) else {
            refuse!("mma: the inputs are no loop by {PARTS}")
        };
        let across = self.axes[tokens].range;
        let Some(found) = products(self.kernel.stages[stage].store, across) else {
            refuse!("mma: other sums than of such products")
        };
        if found.iter().any(|p| !p.over.contains(&over)) {
            refuse!("mma: a sum of other inputs");
        }
        let own = |(_, a): &(usize, &Axis<'g>)| {
            let alone = |p: &Product<'g>| depends(p.weights, a.range) && !depends(p.tokens, a.range);
            let out = a.role == Role::Out(stage) || a.role == Role::Row && single;
            serial(a) && out && found.iter().all(alone)
        };
        let rows: Vec<(usize, Ex)> =
            self.axes.iter().enumerate().filter(own).map(|(i, a)| (i, a.range.arg(0))).collect();
        // Rows that lie side by side: a thread reads some at once.
        let beside = |r: &&(usize, Ex<'g>)| {
            let range = self.axes[r.0].range;
            let near = |p: &Product<'g>| p.weights.op() == Op::Load && step(p.weights, range) == Some(1);
            multiple(r.1, BESIDE * ROWS / 2) && found.iter().all(near)
        };
        let beside = rows.iter().find(beside).map(|r| r.0);
        let by = |n: i64| rows.iter().filter(move |r| multiple(r.1, n)).max_by_key(|r| r.1.bounds().1);
        let Some(&(longest, _)) = by(1) else { refuse!("mma: the weights have no rows") };
        // Rows may lie in blocks of eight: two of them, then.
        let exact = rows.iter().rfind(|r| r.1.as_int() == Some(ROWS / 2));
        let eight = exact.or(by(ROWS / 2).filter(|_| by(ROWS).is_none())).map(|r| r.0);
        let two = rows.iter().rfind(|r| Some(r.0) != eight && multiple(r.1, 2)).map(|r| r.0);
        let blocks = beside.map(|axis| (axis, self.inner(axis, BESIDE, Kind::Serial))).or(eight.zip(two));
        let (thread, side) = (self.range(THREADS, Kind::Local), self.range(2, Kind::Upcast));
        let (row, half) = match blocks {
            Some((eight, two)) => {
                let half = self.inner(two, 2, Kind::Upcast);
                if beside.is_some() {
                    self.retag(two, Kind::Upcast);
                }
                let row = self.inner(eight, ROWS / 2, Kind::Serial);
                self.replace(self.axes[row].range, thread / PARTS, &[thread], None);
                (row, self.axes[half].range)
            }
            None => {
                let rows = by(ROWS).map_or(longest, |r| r.0);
                let over_banks = found.iter().all(|p| over_banks(p.weights, self.axes[rows].range));
                let row = self.inner(rows, ROWS, Kind::Serial);
                let half = self.range(2, Kind::Upcast);
                // Threads that read at the same time have rows whose banks are not the same.
                let eighth = match over_banks {
                    true => thread / PARTS % 2 * (ROWS / 4) + thread / (2 * PARTS),
                    false => thread / PARTS,
                };
                self.replace(self.axes[row].range, half * (ROWS / 2) + eighth, &[half, thread], None);
                self.axes.push(Axis { range: half, role: self.axes[row].role });
                (row, half)
            }
        };
        self.axes[row].range = thread;
        let column = self.inner(tokens, TOKENS, Kind::Serial);
        self.replace(self.axes[column].range, thread % PARTS * 2 + side, &[side], None);
        self.axes[column].range = side;
        let part = self.inner(inputs, PARTS, Kind::Unroll);
        self.warps.push(Warp { stage, thread, half, side, part: self.axes[part].range });
        let loops = |a: &Axis<'g>| serial(&a) && found[0].over.contains(&a.range);
        if let Some(axis) = self.axes.iter().position(loops) {
            self.within_segments(axis);
        }
        Ok(())
    }

    /// Nothing is summed behind the last segment, where results are undefined.
    fn within_segments(&mut self, axis: usize) {
        let (g, old) = (self.kernel.g, self.axes[axis].range);
        let found: Vec<Ex> =
            topo(&self.kernel.stores()).into_iter().filter(|e| e.op() == Op::Segment).collect();
        let [chosen] = found[..] else { return };
        let Some(segments) = self.segments(chosen) else { return };
        let any = (g.int(segments) - chosen.arg(0).cast(Scalar::I64)).max(0).min(1);
        let rounds = g.new_range(simplify1(old.arg(0) * any), Kind::Serial);
        self.replace(old, rounds, &[rounds], None);
        self.axes[axis].range = rounds;
    }

    /// The product of a stage, if it is one.
    pub fn warp(&self, stage: usize) -> Option<Warp<'g>> {
        self.warps.iter().copied().find(|w| w.stage == stage)
    }

    fn range(&self, n: i64, kind: Kind) -> Ex<'g> {
        self.kernel.g.new_range(self.kernel.g.int(n), kind)
    }

    /// Splits an axis; the number of the inner part's.
    fn inner(&mut self, axis: usize, n: i64, kind: Kind) -> usize {
        let whole = self.axes[axis].extent() == Some(n);
        self.split(axis, n, kind, false);
        if whole { axis } else { self.axes.len() - 1 }
    }
}

/// Does a weight lie in local memory whose rows begin 16 bytes further in the banks, one after the other?
fn over_banks<'g>(weight: Ex<'g>, row: Ex<'g>) -> bool {
    let local = weight.op() == Op::Load && matches!(weight.arg(0).op(), Op::Local(_));
    let bytes = weight.dtype().bytes() as i64;
    local && step(weight, row).is_some_and(|by| by * bytes % share::BANKS == share::ACROSS)
}

fn depends(e: Ex, on: Ex) -> bool {
    topo(&[e]).contains(&on)
}

/// Sums over the parts of a warp's inputs become products of what its threads hold. Four bodies of a sum are one product.
pub fn fragments<'g>(g: &'g Graph, store: Ex<'g>, w: Warp<'g>) -> Result<Ex<'g>, Illegal> {
    let mut error = None;
    let new = rebuild(&[store], |e, args| {
        let e = e.with_args(&args);
        let Op::Fold(fold, n) = e.op() else { return e };
        let (bodies, over) = args.split_at(n as usize);
        if !over.contains(&w.part) {
            return e;
        }
        let factors = bodies.iter().map(|b| sides(*b, w)).collect::<Option<Vec<_>>>();
        let Some(factors) = factors.filter(|f| fold == Fold::Sum && f.len() % 4 == 0) else {
            error = Some(Illegal("mma: the inputs are not unrolled by four, or cut off".into()));
            return e;
        };
        let zero = g.constant(Scalar::F32.vec(4), fold.identity(Scalar::F32));
        let rest: Vec<Ex> = over.iter().copied().filter(|r| *r != w.part).collect();
        let step = |acc: Ex<'g>, four: &[(Ex<'g>, Ex<'g>)]| product(g, acc, four, w);
        let sums = match rest.is_empty() {
            true => factors.chunks(4).fold(zero, step),
            false => {
                let bodies: Vec<Ex> = factors.chunks(4).map(|four| step(zero, four)).collect();
                let n = bodies.len() as u32;
                g.make(Op::Fold(fold, n), zero.dtype(), &[bodies, rest].concat())
            }
        };
        let own = |i: u16| g.make(Op::Extract(i), DType::F32, &[sums]);
        let of_row = |i: u16| w.side.lt(1).select(own(i), own(i + 1));
        w.half.lt(1).select(of_row(0), of_row(2))
    });
    error.map_or(Ok(new[0]), Err)
}

/// The factors of a product, weights first.
fn sides<'g>(body: Ex<'g>, w: Warp<'g>) -> Option<(Ex<'g>, Ex<'g>)> {
    let (a, b) = half_factors(body)?;
    let (weights, tokens) = if depends(a, w.half) { (a, b) } else { (b, a) };
    (!depends(weights, w.side) && !depends(tokens, w.half)).then_some((weights, tokens))
}

/// One product more: what each thread holds of four inputs.
fn product<'g>(g: &'g Graph, acc: Ex<'g>, four: &[(Ex<'g>, Ex<'g>)], w: Warp<'g>) -> Ex<'g> {
    let part = w.thread % PARTS;
    let rows = [0, 1].map(|half| {
        let own = HashMap::from([(w.part.id, part), (w.half.id, g.int(half))]);
        held(g, four.iter().map(|f| f.0), &own)
    });
    // The thread that holds a token's inputs is another than the one that gets its sums.
    let token = w.thread / PARTS;
    let own = [(w.part.id, part), (w.thread.id, w.thread / (2 * PARTS)), (w.side.id, token % 2)];
    let column = held(g, four.iter().map(|f| f.1), &HashMap::from(own));
    g.make(Op::Mma, acc.dtype(), &[acc, rows[0], rows[1], column, w.thread])
}

fn held<'g>(g: &'g Graph, four: impl Iterator<Item = Ex<'g>>, own: &HashMap<Id, Ex<'g>>) -> Ex<'g> {
    joined(g, &simplify(&substitute(&four.collect::<Vec<_>>(), own)))
}

/// Numbers as the lanes of a vector: what is done to each is done once, and what lies side by side is one load.
fn joined<'g>(g: &'g Graph, all: &[Ex<'g>]) -> Ex<'g> {
    let first = all[0];
    let t = first.dtype().with_lanes(all.len() as u16);
    if all.iter().all(|e| *e == first) {
        return first.as_bits().map_or_else(|| g.make(Op::Spread, t, &[first]), |v| g.constant(t, v));
    }
    let args = first.args();
    let types = |e: Ex<'g>| e.args().into_iter().map(|a| a.dtype()).collect::<Vec<_>>();
    let alike = all.iter().all(|e| e.op() == first.op() && types(*e) == types(first));
    let each = matches!(
        first.op(),
        Op::Unary(_) | Op::Binary(_) | Op::Where | Op::Cast | Op::Bitcast | Op::Lookup(_)
    );
    if alike && each && !types(first).contains(&DType::INDEX) {
        let parts = |i: usize| joined(g, &all.iter().map(|e| e.arg(i)).collect::<Vec<_>>());
        return g.make(first.op(), t, &(0..args.len()).map(parts).collect::<Vec<_>>());
    }
    let beside = |(i, e): (usize, &Ex<'g>)| {
        let (own, at) = (e.args(), simplify1(args[1] + i as i64));
        own[0] == args[0] && own[1] == at && own.get(2) == args.get(2)
    };
    if alike && first.op() == Op::Load && all.iter().enumerate().all(beside) {
        return g.make(Op::Load, t, &args);
    }
    g.make(Op::Stack, t, all)
}
