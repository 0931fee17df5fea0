//! From expressions over ranges to a list of instructions with loops.
//!
//! In: the stores of each stage, vectorised. Out: a [`Linear`] program. Every value is computed in the outermost loop
//! that fixes all ranges it depends on, so loop-invariant code leaves the loops by construction; folds over the same
//! ranges at the same place share one loop.

use super::ahead::{LINE, Stretch, stretches};
use crate::dtype::{Bits, DType, Scalar};
use crate::graph::{Ex, Id, Kind, Op, topo};
use crate::hash::{FastSet, IdMap};
use crate::kernel::{Axis, Scheduled, mma};
use crate::linear::{self, Count, Inst, Linear, Local, Mem, Reg};
use crate::rewrite::Ranges;
use crate::scalar::{Binary, Fold};
use std::collections::{HashMap, HashSet};

pub fn linearize<'g>(s: &Scheduled<'g>, stages: &[Vec<Ex<'g>>]) -> Linear {
    let all: Vec<Ex> = stages.concat();
    let grid: Vec<Ex> = s.axes.iter().filter(|a| a.kind() == Kind::Grid).map(|a| a.range).collect();
    let mut symbols: Vec<Ex> = topo(&[all.clone(), grid.clone()].concat())
        .into_iter()
        .filter(|e| matches!(e.op(), Op::Symbol(_)))
        .collect();
    symbols.sort_by_key(|e| e.op());
    let args = &s.args;
    let mut memory: HashMap<Id, Mem> =
        args.iter().enumerate().map(|(i, (b, _))| (b.id, Mem::Global(i as u32))).collect();
    let mut locals = vec![];
    for e in topo(&all).into_iter().filter(|e| matches!(e.op(), Op::Local(_))) {
        memory.insert(e.id, Mem::Local(locals.len() as u32));
        let len = e.arg(0).as_int().expect("local memory has a constant size") as usize;
        locals.push(Local { dtype: e.dtype(), len });
    }
    let names = s.kernel.g.symbols();
    let name = |e: &Ex| match e.op() {
        Op::Symbol(i) => names[i as usize].name.clone(),
        _ => unreachable!("collected above"),
    };
    let grid_order: Vec<Ex> = {
        // Rows and outputs as nested: the first is outermost.
        let mut order: Vec<Ex> = s.kernel.rows.clone();
        order.extend(s.kernel.stages.iter().flat_map(|st| st.outs.iter().copied()));
        order.retain(|r| grid.contains(r));
        order
    };
    let count = grid_order
        .iter()
        .map(|r| count(r.arg(0), &symbols))
        .reduce(|a, b| Count::Binary(Binary::Mul, Box::new((a, b))))
        .unwrap_or(Count::Const(1));
    let mut l = Linearizer {
        out: Linear {
            name: s.kernel.name.clone(),
            grid: fold_count(count),
            buffers: args.iter().map(|(b, w)| (b.dtype(), *w)).collect(),
            symbols: symbols.iter().map(name).collect(),
            locals,
            threads: 1,
            code: vec![],
            regs: vec![],
        },
        scopes: vec![Scope::default()],
        ranges: Ranges::default(),
        memory,
        symbols,
        folds: vec![],
        inside: IdMap::default(),
        outermost: 0,
        threads: vec![],
        prefetch: s.prefetch,
    };
    // Threads that exchange registers come in full groups.
    let lanes = s.axes.iter().filter(|a| a.kind() == Kind::Lane).filter_map(|a| a.extent());
    let group = lanes.chain(s.warps.iter().map(|_| mma::THREADS)).max().unwrap_or(1);
    let threads = (0..stages.len()).map(|i| s.threads(i)).max().unwrap_or(1);
    l.out.threads = (threads as u32).next_multiple_of(group as u32);
    l.grid(&grid_order);
    if l.out.threads > 1 {
        stretches(s).iter().for_each(|stretch| l.fetch(stretch));
    }
    let gates: Vec<Option<Reg>> = (0..stages.len()).map(|i| l.threads(s.thread_axes(i))).collect();
    let rows: Vec<Ex> = s.kernel.rows.iter().copied().filter(|r| is_loop(*r)).collect();
    for r in &rows {
        l.open(*r, vec![]);
    }
    // What one stage keeps in memory for another is of one row.
    l.outermost = if stages.len() > 1 { rows.len() } else { 0 };
    for (i, (stores, only)) in stages.iter().zip(gates).enumerate() {
        if i > 0 && l.out.threads > 1 {
            l.push(Inst::Barrier { width: None });
        }
        l.stage(s, i, stores, only);
    }
    // The next row overwrites what this one keeps in local memory.
    if !rows.is_empty() && stages.len() > 1 && l.out.threads > 1 {
        l.push(Inst::Barrier { width: None });
    }
    for _ in &rows {
        l.close(vec![]);
    }
    let root = l.scopes.pop().expect("the root scope stays open");
    l.out.code = root.code;
    l.out
}

/// A dimension as a number that depends on symbols, and their names in the order in which it wants their values.
pub fn dimension(e: Ex) -> (Count, Vec<String>) {
    let symbols: Vec<Ex> = topo(&[e]).into_iter().filter(|s| matches!(s.op(), Op::Symbol(_))).collect();
    let names = e.g.symbols();
    let name = |s: &Ex| match s.op() {
        Op::Symbol(i) => names[i as usize].name.clone(),
        _ => unreachable!("collected above"),
    };
    (fold_count(count(e, &symbols)), symbols.iter().map(name).collect())
}

fn count(e: Ex, symbols: &[Ex]) -> Count {
    match e.op() {
        Op::Const(v) => Count::Const(v.as_int()),
        Op::Symbol(_) => {
            let at =
                symbols.iter().position(|s| *s == e).expect("every symbol below the stores is an argument");
            Count::Symbol(at as u32)
        }
        Op::Binary(op) => Count::Binary(op, Box::new((count(e.arg(0), symbols), count(e.arg(1), symbols)))),
        op => panic!("{op:?} in a dimension"),
    }
}

fn fold_count(c: Count) -> Count {
    match c {
        Count::Binary(op, ab) => {
            let (a, b) = (fold_count(ab.0), fold_count(ab.1));
            let both = Count::Binary(op, Box::new((a.clone(), b.clone())));
            match (a, b) {
                (Count::Const(_), Count::Const(_)) => Count::Const(both.eval(&[])),
                _ => both,
            }
        }
        c => c,
    }
}

/// Vector registers that a round of a loop wants besides its sums: weights, scales, masks.
const OTHERS: usize = 6;

/// Words of a thread's sums that are much to store and to read again.
const MUCH: u16 = 8;

#[derive(Default)]
struct Scope {
    /// The range whose loop this is; none at the root.
    range: Option<Id>,
    code: Vec<Inst>,
    values: IdMap<Reg>,
}

struct Linearizer<'g> {
    out: Linear,
    scopes: Vec<Scope>,
    ranges: Ranges,
    memory: HashMap<Id, Mem>,
    symbols: Vec<Ex<'g>>,
    /// Folds of the current stage that still loop.
    folds: Vec<Ex<'g>>,
    /// The folds within a fold of the current stage, as far as they were asked for.
    inside: IdMap<FastSet<Id>>,
    /// Depth of the outermost scope into which values may be moved.
    outermost: usize,
    /// Thread ranges of the current stage, the fastest first.
    threads: Vec<Axis<'g>>,
    prefetch: i64,
}

impl<'g> Linearizer<'g> {
    fn push(&mut self, i: Inst) {
        self.scopes.last_mut().expect("the root scope stays open").code.push(i);
    }

    fn op(&mut self, t: DType, op: linear::Op, args: &[Reg]) -> Reg {
        let dst = self.out.reg(t);
        self.push(Inst::Op { dst, op, args: args.to_vec() });
        dst
    }

    fn int(&mut self, v: i64) -> Reg {
        self.op(DType::INDEX, linear::Op::Const(Bits::int(v)), &[])
    }

    fn binary(&mut self, op: Binary, a: Reg, b: Reg) -> Reg {
        let t = self.out.dtype(a);
        let t = if op.is_compare() { Scalar::Bool.vec(t.lanes) } else { t };
        self.op(t, linear::Op::Binary(op), &[a, b])
    }

    /// Splits the grid index into the grid's ranges, the last of which is fastest.
    fn grid(&mut self, grid: &[Ex<'g>]) {
        if grid.is_empty() {
            return;
        }
        let mut rest = self.op(DType::INDEX, linear::Op::Grid, &[]);
        for (i, r) in grid.iter().enumerate().rev() {
            let at = if i == 0 {
                rest
            } else {
                let extent = self.value(r.arg(0));
                let at = self.binary(Binary::Mod, rest, extent);
                rest = self.binary(Binary::Div, rest, extent);
                at
            };
            self.scopes[0].values.insert(r.id, at);
        }
    }

    /// All threads together ask for the lines of a stretch, each line once.
    fn fetch(&mut self, stretch: &Stretch<'g>) {
        let (mem, start) = (self.memory[&stretch.buffer.id], self.value(stretch.start));
        let threads = self.out.threads as i64;
        let tid = self.op(DType::INDEX, linear::Op::Thread, &[]);
        let line = self.int(LINE);
        let at = self.binary(Binary::Mul, tid, line);
        let index = self.binary(Binary::Add, start, at);
        for done in (0..stretch.bytes).step_by((threads * LINE) as usize) {
            let left = self.int(stretch.bytes - done);
            let gate =
                Some(self.binary(Binary::Lt, at, left)).filter(|_| stretch.bytes - done < threads * LINE);
            self.push(Inst::Prefetch { mem, index, offset: done, gate });
        }
    }

    /// Splits the thread index into a stage's thread ranges, the first of which is fastest; gives the condition under
    /// which a thread stores: one of each group that computed the same.
    fn threads(&mut self, axes: Vec<Axis<'g>>) -> Option<Reg> {
        if self.out.threads == 1 {
            return None;
        }
        let used: i64 = axes.iter().map(|a| a.extent().expect("thread axes are constant")).product();
        let idle = used < self.out.threads as i64;
        let tid = self.op(DType::INDEX, linear::Op::Thread, &[]);
        let (mut rest, mut gates) = (tid, vec![]);
        for (i, a) in axes.iter().enumerate() {
            let size = self.int(a.extent().expect("thread axes are constant"));
            let last = i + 1 == axes.len() && !idle;
            let at = if last { rest } else { self.binary(Binary::Mod, rest, size) };
            if i + 1 < axes.len() {
                rest = self.binary(Binary::Div, rest, size);
            }
            self.scopes[0].values.insert(a.range.id, at);
            if a.kind() != Kind::Local {
                let zero = self.int(0);
                gates.push(self.binary(Binary::Eq, at, zero));
            }
        }
        if idle {
            let limit = self.int(used);
            gates.push(self.binary(Binary::Lt, tid, limit));
        }
        gates.into_iter().reduce(|a, b| self.binary(Binary::And, a, b))
    }

    fn stage(&mut self, s: &Scheduled<'g>, number: usize, stores: &[Ex<'g>], only: Option<Reg>) {
        self.threads = s.thread_axes(number);
        self.folds = folds(stores);
        self.inside.clear();
        let loops: Vec<Ex> = s.kernel.stages[number].outs.iter().copied().filter(|r| is_loop(*r)).collect();
        for r in &loops {
            self.open(*r, vec![]);
        }
        if stores[0].op() == Op::TileProduct {
            self.tile_products(stores);
        }
        let mut ready = vec![];
        for st in stores.iter().filter(|s| s.op() == Op::Store) {
            let args = st.args();
            let value = self.value(args[2]);
            let (index, offset) = self.index(args[1]);
            let gate = args.get(3).map(|&c| self.value(c));
            ready.push((args[0], index, offset, value, gate));
        }
        for (mem, index, offset, value, gate) in ready {
            let gate = match (gate, only) {
                (Some(a), Some(b)) => {
                    let lanes = self.out.dtype(a).lanes;
                    let b = match lanes {
                        1 => b,
                        n => self.op(Scalar::Bool.vec(n), linear::Op::Spread, &[b]),
                    };
                    Some(self.binary(Binary::And, a, b))
                }
                (a, b) => a.or(b),
            };
            let mem = self.memory[&mem.id];
            self.push(Inst::Store { mem, index, offset, value, gate });
        }
        for _ in &loops {
            self.close(vec![]);
        }
    }

    /// Products of up to two A tiles with up to two B tiles, A's the slower.
    fn tile_products(&mut self, stores: &[Ex<'g>]) {
        let distinct = |i: usize| {
            let mut all: Vec<Ex> = stores.iter().map(|s| s.arg(i)).collect();
            let mut seen = HashSet::new();
            all.retain(|e| seen.insert(e.id));
            all
        };
        let (a, b) = (distinct(4), distinct(5));
        assert_eq!(a.len() * b.len(), stores.len(), "every A tile meets every B tile");
        let [_, a_mem, b_mem, _, _, _, stride, apart, steps] = stores[0].args()[..] else {
            unreachable!("verified: nine arguments")
        };
        let stride = stride.as_int().expect("verified: known");
        self.push(Inst::TileZero { n: stores.len() });
        let step = a[0].g.new_range(steps, Kind::Serial);
        self.open(step, vec![]);
        let a = a.into_iter().map(|at| self.value(at + step * apart)).collect();
        let b = b.into_iter().map(|at| self.value(at + step * 512)).collect();
        let [a_mem, b_mem] = [a_mem, b_mem].map(|m| self.memory[&m.id]);
        self.push(Inst::TileMul { a_mem, a, stride, b_mem, b });
        self.close(vec![]);
        let index = stores.iter().map(|s| self.value(s.arg(3))).collect();
        let mem = self.memory[&stores[0].arg(0).id];
        self.push(Inst::TileStore { mem, index });
    }

    /// Starts a loop; gives the registers of the carried values in it.
    fn open(&mut self, range: Ex<'g>, init: Vec<Reg>) -> Vec<Reg> {
        let extent = self.value(range.arg(0));
        let var = self.out.reg(DType::INDEX);
        let carried: Vec<(Reg, Reg)> = init.iter().map(|&i| (self.out.reg(self.out.dtype(i)), i)).collect();
        let phis = carried.iter().map(|c| c.0).collect();
        let mut scope = Scope { range: Some(range.id), ..Scope::default() };
        scope.values.insert(range.id, var);
        scope.code.push(Inst::Loop { var, extent, carried });
        self.scopes.push(scope);
        phis
    }

    /// Ends the innermost loop; gives the carried values after it.
    fn close(&mut self, next: Vec<Reg>) -> Vec<Reg> {
        let out: Vec<Reg> = next.iter().map(|&n| self.out.reg(self.out.dtype(n))).collect();
        let mut scope = self.scopes.pop().expect("a loop is open");
        scope.code.push(Inst::End { next, out: out.clone() });
        self.scopes.last_mut().expect("the root scope stays open").code.append(&mut scope.code);
        out
    }

    /// The depth of the outermost scope in which the expression can be computed.
    fn depth(&mut self, e: Ex<'g>) -> usize {
        let free = self.ranges.of(e);
        let deepest = (self.outermost + 1..self.scopes.len())
            .rev()
            .find(|&d| self.scopes[d].range.is_some_and(|r| free.contains(&r)));
        deepest.unwrap_or(self.outermost)
    }

    fn value(&mut self, e: Ex<'g>) -> Reg {
        if let Some(&r) = self.scopes.iter().rev().find_map(|s| s.values.get(&e.id)) {
            return r;
        }
        let depth = self.depth(e);
        let inner = self.scopes.split_off(depth + 1);
        let reg = self.compute(e);
        self.scopes.last_mut().expect("the root scope stays open").values.insert(e.id, reg);
        self.scopes.extend(inner);
        reg
    }

    /// The register of an index and the constant to add to it.
    fn index(&mut self, e: Ex<'g>) -> (Reg, i64) {
        match e.op() {
            Op::Binary(Binary::Add) if e.arg(1).as_int().is_some() => {
                (self.value(e.arg(0)), e.arg(1).as_int().unwrap())
            }
            Op::Const(v) => (self.value(e.like(0)), v.as_int()),
            _ => (self.value(e), 0),
        }
    }

    fn compute(&mut self, e: Ex<'g>) -> Reg {
        let n = e.node();
        let op = match n.op {
            Op::Fold(..) => {
                self.fold(e);
                return self.scopes.last().unwrap().values[&e.id];
            }
            Op::Load => {
                let (index, offset) = self.index(e.arg(1));
                let gate = e.args().get(2).map(|&c| self.value(c));
                let (dst, mem) = (self.out.reg(n.dtype), self.memory[&e.arg(0).id]);
                self.push(Inst::Load { dst, mem, index, offset, gate });
                if self.prefetch > 0
                    && matches!(mem, Mem::Global(_))
                    && n.dtype.scalar.bytes() == 1
                    && n.dtype.lanes >= 32
                    && self.scopes.len() > 1
                {
                    let offset = offset + self.prefetch;
                    self.push(Inst::Prefetch { mem, index, offset, gate: None });
                }
                return dst;
            }
            Op::LoadLanes => {
                let index = self.value(e.arg(1));
                let gate = e.args().get(2).map(|&c| self.value(c));
                let (dst, mem) = (self.out.reg(n.dtype), self.memory[&e.arg(0).id]);
                self.push(Inst::Gather { dst, mem, index, gate });
                return dst;
            }
            Op::Mma => {
                let acc = self.value(e.arg(0));
                return self.mma(acc, e);
            }
            Op::TileDot(stride) => {
                let (index, offset) = self.index(e.arg(1));
                let b: Vec<Reg> = e.args()[2..].iter().map(|&b| self.value(b)).collect();
                let dst: Vec<Reg> = (0..16).map(|_| self.out.reg(n.dtype)).collect();
                let mem = self.memory[&e.arg(0).id];
                let first = dst[0];
                self.push(Inst::TileDot { dst, mem, index, offset, stride, b });
                return first;
            }
            Op::TileRow => {
                let first = self.value(e.arg(0));
                return Reg(first.0 + e.arg(1).as_int().expect("tile rows are unrolled") as u32);
            }
            Op::Symbol(_) => {
                linear::Op::Symbol(self.symbols.iter().position(|s| *s == e).expect("collected before") as u32)
            }
            op => linear::Op::of(op)
                .unwrap_or_else(|| panic!("{op:?} at the linear level: {}", crate::text::expr(e))),
        };
        let args: Vec<Reg> = e.args().iter().map(|&a| self.value(a)).collect();
        self.op(n.dtype, op, &args)
    }

    /// Ranges of a fold: the loops, and those that threads share.
    fn split_ranges(&self, e: Ex<'g>) -> (Vec<Ex<'g>>, Vec<Ex<'g>>) {
        let Op::Fold(_, n) = e.op() else { unreachable!("only folds have ranges") };
        e.args()[n as usize..].iter().partition(|r| is_loop(**r))
    }

    /// Is one fold of the stage a part of another?
    fn within(&mut self, inner: Ex<'g>, outer: Ex<'g>) -> bool {
        let inside = || folds(&[outer]).into_iter().map(|f| f.id).collect();
        self.inside.entry(outer.id).or_insert_with(inside).contains(&inner.id)
    }

    /// Computes a fold, and with it the others that can share its loop.
    fn fold(&mut self, e: Ex<'g>) {
        let depth = self.scopes.len() - 1;
        let (loops, _) = self.split_ranges(e);
        let mut together = vec![e];
        for f in self.folds.clone() {
            let open = f != e
                && self.split_ranges(f).0 == loops
                && !self.scopes.iter().any(|s| s.values.contains_key(&f.id))
                && self.depth(f) == depth
                && self.fixed(f);
            if open && !together.iter().any(|t| self.within(f, *t) || self.within(*t, f)) {
                together.push(f);
            }
        }
        let kind = |f: &Ex<'g>| match f.op() {
            Op::Fold(fold, _) => fold,
            _ => unreachable!("collected as folds"),
        };
        let init: Vec<Reg> = together
            .iter()
            .map(|f| self.op(f.dtype(), linear::Op::Const(kind(f).identity(f.dtype().scalar)), &[]))
            .collect();
        let mut acc = init;
        for r in &loops {
            acc = self.open(*r, acc);
        }
        self.chains(&together);
        for (f, a) in together.iter().zip(&mut acc) {
            let Op::Fold(fold, n) = f.op() else { unreachable!("collected as folds") };
            for body in &f.args()[..n as usize] {
                *a = self.accumulate(fold, *a, *body);
            }
        }
        for _ in &loops {
            acc = self.close(acc);
        }
        let mut shared: Vec<Ex> = vec![];
        for f in &together {
            shared.extend(
                self.split_ranges(*f).1.into_iter().filter(|r| !shared.contains(r)).collect::<Vec<_>>(),
            );
        }
        // Of what is much only those get the sums that go on with them: not where other sums are made of these.
        let words: u16 = together.iter().map(|f| f.dtype().lanes).sum();
        let mut everybody = words < MUCH;
        for other in self.folds.clone() {
            everybody |= together.iter().any(|f| *f != other && self.within(*f, other));
        }
        // Registers before memory: fewer threads meet there.
        shared.sort_by_key(|r| !matches!(r.op(), Op::Range(_, Kind::Lane)));
        for r in shared {
            let over: Vec<usize> =
                (0..together.len()).filter(|&i| self.split_ranges(together[i]).1.contains(&r)).collect();
            let parts: Vec<(Fold, Reg)> = over.iter().map(|&i| (kind(&together[i]), acc[i])).collect();
            for (i, sum) in over.into_iter().zip(self.across_threads(&parts, r, everybody)) {
                acc[i] = sum;
            }
        }
        let values = together.into_iter().map(|f| f.id).zip(acc);
        self.scopes.last_mut().expect("the root scope stays open").values.extend(values);
    }

    /// Dot products of several sums in turns: each waits for the one before it in its sum, not for those of the others.
    fn chains(&mut self, folds: &[Ex<'g>]) {
        let bodies: Vec<Ex> =
            folds.iter().flat_map(|f| f.args().into_iter().take(1)).filter(|b| b.op() != Op::Dot4).collect();
        let mut depths: HashMap<Id, usize> = HashMap::new();
        let mut dots = vec![];
        for e in topo(&bodies) {
            if e.op() == Op::Dot4 && e.dtype().lanes > 1 && self.fixed(e) {
                let depth = depths.get(&e.arg(0).id).map_or(0, |d| d + 1);
                depths.insert(e.id, depth);
                dots.push((depth, e));
            }
        }
        // All sums and all chains stay in registers meanwhile.
        let registers = dots.first().map_or(0, |(_, e)| if e.dtype().bytes() == 64 { 32 } else { 16 });
        let chains = dots.iter().filter(|(depth, _)| *depth == 0).count();
        if chains > 1 && chains + folds.len() + OTHERS <= registers {
            dots.sort_by_key(|(depth, _)| *depth);
            dots.into_iter().for_each(|(_, e)| {
                self.value(e);
            });
        }
    }

    /// Are all ranges that the fold depends on open or given?
    fn fixed(&mut self, f: Ex<'g>) -> bool {
        let free = self.ranges.of(f);
        free.iter().all(|r| self.scopes.iter().any(|s| s.values.contains_key(r)))
    }

    /// `acc ⊕ body`, with the multiplication or dot product of the body taken into the same instruction; the terms of a
    /// sum of floats one after the other, so that each of them can be.
    fn accumulate(&mut self, fold: Fold, acc: Reg, body: Ex<'g>) -> Reg {
        let t = self.out.dtype(acc);
        let seen = self.scopes.iter().any(|s| s.values.contains_key(&body.id));
        let floats = fold == Fold::Sum && t.scalar == Scalar::F32 && !seen;
        match body.op() {
            Op::Binary(Binary::Mul) if floats => {
                let (a, b) = (self.value(body.arg(0)), self.value(body.arg(1)));
                self.op(t, linear::Op::Fma, &[a, b, acc])
            }
            Op::Fma if floats => {
                let acc = self.accumulate(fold, acc, body.arg(2));
                let (a, b) = (self.value(body.arg(0)), self.value(body.arg(1)));
                self.op(t, linear::Op::Fma, &[a, b, acc])
            }
            Op::Dot4 if fold == Fold::Sum && !seen && body.arg(0).as_int() == Some(0) => {
                let (a, b) = (self.value(body.arg(1)), self.value(body.arg(2)));
                self.op(t, linear::Op::Dot4, &[acc, a, b])
            }
            Op::Mma if fold == Fold::Sum && !seen && is_zero(body.arg(0)) => self.mma(acc, body),
            _ => {
                let b = self.value(body);
                self.binary(fold.binary(), acc, b)
            }
        }
    }

    /// The product of a node added to `acc`.
    fn mma(&mut self, acc: Reg, e: Ex<'g>) -> Reg {
        let [first, second, b] = [1, 2, 3].map(|i| self.value(e.arg(i)));
        let dst = self.out.reg(e.dtype());
        self.push(Inst::Mma { dst, acc, a: [first, second], b });
        dst
    }

    /// Folds over the threads of one range. The first thread along it gets the results, or everybody.
    fn across_threads(&mut self, parts: &[(Fold, Reg)], range: Ex<'g>, everybody: bool) -> Vec<Reg> {
        let size = |a: &Axis| a.extent().expect("thread axes are constant");
        let at = self.threads.iter().position(|a| a.range == range).expect("a thread range of this stage");
        let n = size(&self.threads[at]);
        let stride: i64 = self.threads[..at].iter().map(size).product();
        if self.threads[at].kind() == Kind::Lane && stride == 1 {
            let reduce = |&(fold, src): &(Fold, Reg)| {
                let dst = self.out.reg(self.out.dtype(src));
                self.push(Inst::LaneReduce { dst, fold, src, width: n as u32 });
                dst
            };
            return parts.iter().map(reduce).collect();
        }
        // Threads that this stage has no work for do as others do, in a group that may lack members.
        let used: i64 = self.threads.iter().map(size).product();
        let threads = (self.out.threads as usize).next_multiple_of(used as usize);
        let tid = self.op(DType::INDEX, linear::Op::Thread, &[]);
        let place = self.value(range);
        // Who alone goes on with the results keeps its own part.
        let (first, other) = if everybody {
            (None, None)
        } else {
            let zero = self.int(0);
            (Some(self.binary(Binary::Eq, place, zero)), Some(self.binary(Binary::Lt, zero, place)))
        };
        let mut met = vec![];
        for &(fold, acc) in parts {
            let (t, mem) = (self.out.dtype(acc), Mem::Local(self.out.locals.len() as u32));
            self.out.locals.push(Local { dtype: t.with_lanes(1), len: threads * t.lanes as usize });
            let lanes = self.int(t.lanes as i64);
            let own = self.binary(Binary::Mul, tid, lanes);
            self.push(Inst::Store { mem, index: own, offset: 0, value: acc, gate: other });
            met.push((fold, t, mem, own, acc));
        }
        self.push(Inst::Barrier { width: None });
        let mut sums = vec![];
        for (fold, t, mem, own, acc) in met {
            // The first thread of the group: this one's number less its own place along the range.
            let step = self.int(stride * t.lanes as i64);
            let back = self.binary(Binary::Mul, place, step);
            let start = self.binary(Binary::Sub, own, back);
            let mut sum = Some(acc).filter(|_| !everybody);
            for i in !everybody as i64..n {
                let dst = self.out.reg(t);
                let offset = i * stride * t.lanes as i64;
                self.push(Inst::Load { dst, mem, index: start, offset, gate: first });
                sum = Some(sum.map_or(dst, |s| self.binary(fold.binary(), s, dst)));
            }
            sums.push(sum.expect("a group has threads"));
        }
        if self.scopes.len() > 1 {
            self.push(Inst::Barrier { width: None });
        }
        sums
    }
}

fn folds<'g>(roots: &[Ex<'g>]) -> Vec<Ex<'g>> {
    topo(roots).into_iter().filter(|e| matches!(e.op(), Op::Fold(..))).collect()
}

fn is_zero(e: Ex) -> bool {
    e.as_bits() == Some(Bits::float(0.0))
}

fn is_loop(range: Ex) -> bool {
    matches!(range.op(), Op::Range(_, Kind::Serial))
}
