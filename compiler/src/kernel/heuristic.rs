//! A schedule that is good without measuring.
//!
//! In: a kernel and what the target can do. Out: options that apply to it. On a CPU: rows of weights in the lanes, dot
//! products by four, the rest of the rows over the grid. On a GPU: a warp shares the blocks of a few rows.

mod gpu;

use super::keep::interleaved;
use super::tiles::{multiple, sums_tiles};
use super::{Action, Axis, Opt, Role, Scheduled, byte_factors, reductions};
use crate::codegen::Caps;
use crate::dtype::DType;
use crate::graph::{Ex, Id, Kind, Op, topo};
use crate::pipeline;
use crate::rewrite::substitute;
use crate::rules::simplify1;
use crate::rules::sum::affine;
use crate::schedule::Kernel;
use std::collections::{HashMap, HashSet};

/// Bytes to fetch ahead of a stream of weights; with huge pages this reaches the speed of a bare read loop.
const PREFETCH: usize = 4096;

/// The same where streams hop from expert to expert: what is fetched past the end of a hop may not be read.
const HOPPING: usize = 1024;

/// Places of memory that are read at a time, each a stream of weights: a core has more of it on their way than of one.
const STREAMS: usize = 4;

/// Blocks of inputs in rows that are long enough for it.
const LONG: i64 = 16;

/// Outputs of the longer side of a register tile.
const SIDE: i64 = 4;

/// Tokens of which a few may share what they read without leaving workers idle.
const MANY: i64 = 64;

/// Indices of a grid that are enough for all cores.
const INDICES: i64 = 512;

/// Indices of which a few cores have a like share each.
const SEVERAL: i64 = 8;

/// Indices of which each of many cores has one.
const PARTS: i64 = 16;

pub fn propose(kernel: &Kernel, caps: &Caps) -> Vec<Opt> {
    let opts = proposed(kernel, caps, true);
    let keeps = caps.lanes > 1 && opts.first().is_some_and(|o| o.action == Action::Keep);
    // A GPU's local memory may not hold matrices and what else the stages put there.
    match keeps && !pipeline::compiles(kernel, &opts, caps) {
        true => proposed(kernel, caps, false),
        false => opts,
    }
}

fn proposed<'g>(kernel: &Kernel<'g>, caps: &Caps, matrices: bool) -> Vec<Opt> {
    let mut p = Proposal { s: Scheduled::new(kernel.clone()), opts: vec![], folded: None, caps };
    p.by_segments();
    if caps.lanes > 1 {
        let copies = if matrices { p.keep_matrices() } else { 0 };
        p.gpu_stages(copies);
    } else {
        let kept = if p.keep_tiles() { p.s.kernel.stages.len() - 1 } else { p.keep_weights() };
        (kept..p.s.kernel.stages.len()).for_each(|stage| p.cpu_stage(stage));
    }
    p.spread();
    p.opts
}

/// The axis of which four neighbours are the bytes of a lane, and that of a byte's halves.
#[derive(Clone, Copy)]
struct Quads {
    fours: usize,
    halves: Option<usize>,
}

struct Proposal<'g, 'a> {
    s: Scheduled<'g>,
    opts: Vec<Opt>,
    /// Outputs along which sums are folded a few at a time.
    folded: Option<usize>,
    caps: &'a Caps,
}

impl<'g> Proposal<'g, '_> {
    /// Applies an option; one that does not fit is left out.
    fn put(&mut self, action: Action, axis: usize, n: usize) -> bool {
        let opt = action.on(axis, n);
        let mut next = self.s.clone();
        let stages = self.s.kernel.stages.len();
        let fits = next.apply(opt, self.caps).is_ok()
            && (0..stages).all(|i| next.threads(i) <= self.caps.max_threads as i64);
        if fits {
            self.s = next;
            self.opts.push(opt);
        }
        fits
    }

    fn serial(&self, stage: usize, want: impl Fn(Role) -> bool) -> Vec<(usize, Axis<'g>)> {
        let of = self.s.of_stage(stage).filter(|(_, a)| a.kind() == Kind::Serial && want(a.role));
        of.map(|(i, a)| (i, *a)).collect()
    }

    /// Output axes that the stage may use as it likes: rows only where there is no other stage.
    fn outs(&self, stage: usize) -> Vec<(usize, Axis<'g>)> {
        let single = self.s.kernel.stages.len() == 1;
        self.serial(stage, |r| matches!(r, Role::Out(_)) || r == Role::Row && single)
    }

    fn reduces(&self, stage: usize) -> Vec<(usize, Axis<'g>)> {
        self.serial(stage, |r| matches!(r, Role::Reduce(_)))
    }

    /// The axis of each byte product's reduction, and its weights.
    fn byte_axes(&self, stage: usize) -> Vec<(usize, Ex<'g>)> {
        let store = self.s.kernel.stages[stage].store;
        let products = topo(&[store]).into_iter().filter_map(|e| {
            let Op::Fold(_, 1) = e.op() else { return None };
            let (weights, range) = (byte_factors(e.arg(0))?.0, *e.args().last()?);
            Some((self.s.axes.iter().position(|a| a.range == range)?, weights))
        });
        products.collect()
    }

    /// What is chosen by segments is shared by a segment's elements.
    fn by_segments(&mut self) {
        for (i, _) in self.outs(0) {
            if self.put(Action::Segment, i, 0) {
                return;
            }
        }
    }

    /// Sends the longest axis of tokens through a tile unit, where there is one. The weights' rows are the lanes in which
    /// they are unpacked, and in which the sums are finished.
    fn keep_tiles(&mut self) -> bool {
        if !self.caps.tile || self.s.kernel.stages.len() > 1 {
            return false;
        }
        let store = self.s.kernel.stages[0].store;
        let mut tokens: Vec<_> =
            self.outs(0).into_iter().filter(|(_, a)| sums_tiles(store, a.range)).collect();
        tokens.sort_by_key(|(_, a)| std::cmp::Reverse(work(a.range)));
        if !tokens.into_iter().any(|(m, _)| self.put(Action::Keep, m, 0)) {
            return false;
        }
        let stages = self.s.kernel.stages.len();
        for stage in 0..stages - 2 {
            if let [.., (two, _), (lane, _), (side, _)] = self.serial(stage, |r| r == Role::Out(stage))[..] {
                self.put(Action::Upcast, side, 0);
                self.put(Action::Vector, lane, 0);
                self.put(Action::Upcast, two, 0);
            }
        }
        self.put(Action::Prefetch, 0, PREFETCH / 64);
        true
    }

    /// Unpacks weights once for all tiles of tokens, and long before a tile loads them: bytes that are still on their way
    /// to memory would hold it up. Gives the number of stages that this takes.
    fn keep_weights(&mut self) -> usize {
        let single = self.s.kernel.stages.len() == 1;
        let [(_, weights)] = self.byte_axes(0)[..] else { return 0 };
        let tokens = self.token_axis(0, &[weights]).filter(|(_, a)| single && self.caps.tile && by_tiles(a));
        let Some((m, _)) = tokens else { return 0 };
        if !self.put(Action::Keep, m, 0) {
            return 0;
        }
        let kept = self.s.kernel.stages.len() - 1;
        for stage in 0..kept {
            if let [.., (fours, _), (side, _)] = self.serial(stage, |r| r == Role::Out(stage))[..] {
                self.put(Action::Unroll, fours, 0);
                self.put(Action::Vector, side, self.caps.vector_bytes as usize);
                self.put(Action::Unroll, side, 0);
            }
        }
        kept
    }

    fn cpu_stage(&mut self, stage: usize) {
        let wide = (self.caps.vector_bytes / 4) as usize;
        let products = if self.caps.dot4 { self.byte_axes(stage) } else { vec![] };
        let all_interleaved =
            |a: &Axis| !products.is_empty() && products.iter().all(|(_, w)| interleaved(*w, a.range));
        if let Some((r, _)) = self.outs(stage).into_iter().find(|(_, a)| all_interleaved(a)) {
            let weights: Vec<Ex> = products.iter().map(|(_, w)| *w).collect();
            for (k, _) in products {
                self.put(Action::Dot4, k, 0);
                self.put(Action::Unroll, k, 0);
            }
            self.put(Action::Vector, r, wide);
            self.put(Action::Upcast, r, 0);
            self.unroll_small(stage, 2);
            let several = |(_, a): &(usize, Axis)| a.extent() != Some(1);
            let alone = self.token_axis(stage, &weights).filter(several).is_none();
            self.tokens(stage, &weights);
            self.streams(stage, &weights, alone);
            return;
        }
        let store = self.s.kernel.stages[stage].store;
        if self.float_rows(stage, store) {
            return;
        }
        let mut best: Option<(i64, usize, Option<Quads>)> = None;
        for (i, a) in self.outs(stage).into_iter().chain(self.reduces(stage)) {
            if work(a.range) < wide as i64 || wide_numbers(store) {
                continue;
            }
            let quads = self.quads(stage, store, i);
            let score = lane_score(store, &a, quads.is_some());
            if score > 0 && best.is_none_or(|b| score > b.0) {
                best = Some((score, i, quads));
            }
        }
        match best {
            Some((_, i, quads)) => {
                self.put(Action::Vector, i, wide);
                let few = matches!(self.s.axes[i].extent(), Some(2..=4));
                if few && self.s.kernel.stages.len() > 1 && reductions(store).is_empty() {
                    self.put(Action::Upcast, i, 0);
                }
                if let Some(Quads { fours, halves }) = quads {
                    self.put(Action::Upcast, fours, 4);
                    if let Some(two) = halves {
                        self.put(Action::Upcast, two, 0);
                    }
                }
                self.folded = self.fold_side_by_side(stage, store, i);
                self.share(stage, i, self.folded);
            }
            None if wide_numbers(store) => {}
            None if store.dtype().bytes() == 1 => self.move_bytes(stage, store),
            None if self.together(stage, store, wide as i64) || self.short(stage, store) => {}
            None => self.transposed(stage, store, wide as i64),
        }
        self.unroll_small(stage, 8);
    }

    /// Reads several streams of weights at a time: those of the experts of a sum, else tiles of rows where a token is
    /// `alone`. Gate and up are such streams already.
    fn streams(&mut self, stage: usize, weights: &[Ex<'g>], alone: bool) {
        let reduces = self.reduces(stage);
        let chosen = |a: &Axis<'g>| weights.iter().any(|w| chosen_by(*w, a.range));
        let experts = reduces.iter().find(|(_, a)| chosen(a));
        if let Some((i, a)) = experts {
            let n = a.extent().map_or(1, |e| divisor(e, STREAMS as i64));
            self.put(Action::Unroll, *i, n as usize);
        }
        // Tokens that choose the same experts: who has some of the rows has them of all experts, and reads none twice.
        let rows: Vec<_> = self.serial(stage, |r| matches!(r, Role::Row | Role::Out(_)));
        let choices: Vec<_> = rows.iter().filter(|(_, a)| a.extent() != Some(1) && chosen(a)).collect();
        let several = choices.len() + experts.is_some() as usize > 1;
        let place = rows.iter().rfind(|(_, a)| weights.iter().any(|w| reads(*w, a.range)) && !chosen(a));
        if let (Some((first, _)), Some((place, _)), true) = (choices.first(), place, several) {
            self.put(Action::Swap, *first, *place);
        }
        if experts.is_some() || several {
            self.put(Action::Prefetch, 0, HOPPING / 64);
            return;
        }
        let blocks: i64 = reduces.iter().map(|(_, a)| work(a.range)).product();
        let planes: HashSet<Id> =
            topo(weights).into_iter().filter(|e| e.op() == Op::Load).map(|e| e.arg(0).id).collect();
        let tiles = place.filter(|_| alone && weights.len() == 1 && blocks >= LONG);
        let fits = |n: &usize, rows: i64| rows % *n as i64 == 0 && rows / *n as i64 >= PARTS;
        let n = tiles.and_then(|(_, a)| {
            let rows = a.extent()?;
            [STREAMS / planes.len(), 2].into_iter().find(|n| *n > 1 && fits(n, rows))
        });
        let four = match (tiles, n) {
            (Some((i, _)), Some(n)) => self.put(Action::Upcast, *i, n) && n == STREAMS,
            _ => false,
        };
        self.put(Action::Prefetch, 0, if four { PREFETCH / 2 } else { PREFETCH } / 64);
    }

    /// What else belongs to a load where lanes are rows of interleaved weights.
    fn quads(&self, stage: usize, store: Ex<'g>, lanes: usize) -> Option<Quads> {
        if !self.caps.dot4 || !reductions(store).is_empty() {
            return None;
        }
        let along = |e: &Ex<'g>| affine(e.arg(1), &[self.s.axes[lanes].range]).filter(|(_, s)| s[0] == 4);
        let bytes = |e: &Ex<'g>| e.op() == Op::Load && e.dtype() == DType::U8;
        let (base, _) = topo(&[store]).into_iter().filter(bytes).find_map(|e| along(&e))?;
        let others: Vec<_> = self.outs(stage).into_iter().filter(|(i, _)| *i != lanes).collect();
        let known = |a: &Axis<'g>| {
            let first = HashMap::from([(a.range.id, a.range * 4 + 1)]);
            a.extent().is_some_and(|n| n % 4 == 0)
                && simplify1(substitute(&[base], &first)[0] % 4).as_int().is_some()
        };
        let fours = others.iter().find(|(_, a)| known(a))?.0;
        let halves = others.iter().find(|(_, a)| a.extent() == Some(2) && !reads(base, a.range));
        Some(Quads { fours, halves: halves.map(|(i, _)| *i) })
    }

    /// A short axis in lanes with part of the one around it, as the halves of pairs that turn together.
    fn together(&mut self, stage: usize, store: Ex<'g>, wide: i64) -> bool {
        let along = |a: &Axis| affine(store.arg(1), &[a.range]).map_or(0, |(_, s)| s[0]);
        let outs = self.outs(stage);
        let Some((short, n)) =
            outs.iter().find(|(_, a)| along(a) == 1).and_then(|(i, a)| Some((*i, a.extent()?)))
        else {
            return false;
        };
        let around =
            outs.iter().find(|(_, a)| along(a) == n && a.extent().is_some_and(|e| e * n % wide == 0));
        let Some(&(i, _)) = around.filter(|_| n > 1 && n < wide && wide % n == 0) else { return false };
        self.put(Action::Vector, i, (wide / n) as usize) && self.put(Action::Vector, short, 0)
    }

    /// A short axis alone, as a row's few scales.
    fn short(&mut self, stage: usize, store: Ex<'g>) -> bool {
        let outs = self.outs(stage).into_iter().filter(|_| reductions(store).is_empty());
        let few = |a: &Axis| a.extent().filter(|n| matches!(n, 4 | 8) && lane_score(store, a, false) > 0);
        let found = outs.rev().find_map(|(i, a)| Some((i, few(&a)?)));
        found.is_some_and(|(i, n)| self.put(Action::Vector, i, n as usize))
    }

    /// Numbers that lie side by side where they are read, in lanes that are stored one by one.
    fn transposed(&mut self, stage: usize, store: Ex<'g>, wide: i64) {
        let loads: Vec<Ex> = topo(&[store]).into_iter().filter(|e| e.op() == Op::Load).collect();
        let beside = |a: &Axis<'g>| {
            let one = |l: &Ex<'g>| affine(l.arg(1), &[a.range]).is_some_and(|(_, s)| s[0] == 1);
            multiple(a.range.arg(0), wide) && loads.iter().all(one)
        };
        if let Some((i, _)) = self.outs(stage).into_iter().find(|(_, a)| !loads.is_empty() && beside(a)) {
            self.put(Action::Vector, i, wide as usize);
        }
    }

    /// Sums along lanes are folded a few at a time, where their results lie side by side; gives the axis along which.
    fn fold_side_by_side(&mut self, stage: usize, store: Ex<'g>, lanes: usize) -> Option<usize> {
        let beside = |a: &Axis<'g>| affine(store.arg(1), &[a.range]).is_some_and(|(_, s)| s[0] == 1);
        let reduces = matches!(self.s.axes[lanes].role, Role::Reduce(_));
        let (row, a) = self.outs(stage).into_iter().find(|(_, a)| reduces && beside(a))?;
        let n = [SIDE, 2].into_iter().find(|n| multiple(a.range.arg(0), *n))?;
        self.put(Action::Vector, row, n as usize).then_some(row)
    }

    /// A few outputs whose sums read the same numbers, as heads do that share a row of the cache: a register tile. Where
    /// the outputs in `lanes` share the rest, as columns share the heads' weights, the tile has both, and heads that found
    /// no room in it follow while what they share is cached. Along `row` each head has several sums already.
    fn share(&mut self, stage: usize, lanes: usize, row: Option<usize>) {
        let stages = &self.s.kernel.stages;
        let (single, loads) = (stages.len() == 1, summed(stages[stage].store));
        let wide = self.caps.vector_bytes == 64;
        let few = |a: &Axis| a.extent().filter(|e| (2..=32).contains(e));
        let outs: Vec<_> =
            self.outs(stage).into_iter().filter(|(_, a)| single && shared(&loads, a)).collect();
        let first = outs.iter().find_map(|(i, a)| Some((*i, few(a)?)));
        let vectors = outs.iter().any(|(o, a)| *o == lanes && a.extent().is_some_and(|e| e % SIDE == 0));
        if let Some((i, n)) = first.filter(|(i, _)| vectors && lanes != *i) {
            let tile = divisor(n, if wide { 5 } else { 2 });
            if tile > 1 && self.put(Action::Upcast, lanes, SIDE as usize) {
                self.put(Action::Upcast, i, tile as usize);
                if i < lanes {
                    self.put(Action::Swap, i, lanes);
                }
                return;
            }
        }
        let most = if wide { 24 } else { 8 } / if row.is_some() { SIDE } else { 1 };
        let tile = first.map_or(1, |(_, n)| divisor(n, most.min(16)));
        // As a router's scores of one token: what they share is little, and so would be the workers that have some of them.
        let indices: i64 = self.outs(stage).iter().map(|(_, a)| work(a.range)).product();
        if indices / tile < SEVERAL {
            return;
        }
        if let Some((i, n)) = first.filter(|(i, _)| tile > 1 && self.put(Action::Upcast, *i, tile as usize)) {
            if n <= most {
                self.put(Action::Upcast, i, 0);
            } else if let Some(row) = row.filter(|r| i < *r) {
                self.put(Action::Swap, i, row);
            }
        }
        // Of many tokens a few share what the heads do.
        let many = |(i, a): &(usize, Axis)| {
            let n = a.extent().filter(|n| *n >= MANY && Some(*i) != row && *i != lanes)?;
            Some((*i, divisor(n, (most / tile).min(SIDE))))
        };
        if let Some((i, n)) = outs.iter().find_map(many).filter(|_| row.is_some()) {
            self.put(Action::Upcast, i, n as usize);
        }
    }

    /// Sums of numbers made of interleaved bytes: the rows in the lanes, whole blocks of bytes as copies, and a few tokens
    /// that share them.
    fn float_rows(&mut self, stage: usize, store: Ex<'g>) -> bool {
        let wide = (self.caps.vector_bytes / 4) as usize;
        let rows = self.outs(stage).into_iter().find(|(_, a)| interleaved(store, a.range));
        let Some((r, _)) = rows.filter(|_| self.caps.dot4) else { return false };
        let block = self.reduces(stage).pop().filter(|(_, a)| a.extent().is_some_and(|e| e <= 32));
        let Some((k, _)) = block else { return false };
        if !self.put(Action::Vector, r, wide) {
            return false;
        }
        self.put(Action::Upcast, r, 0);
        self.put(Action::Unroll, k, 0);
        let made = |e: &Ex<'g>| e.op() == Op::Load && e.dtype() == DType::U8;
        let weights: Vec<Ex> = topo(&[store]).into_iter().filter(made).collect();
        if let Some((m, a)) = self.token_axis(stage, &weights) {
            self.put(Action::Upcast, m, a.extent().map_or(4, |e| e.min(4)) as usize);
        }
        self.put(Action::Prefetch, 0, PREFETCH / 64);
        true
    }

    /// Bytes that change places, as when weights are laid out: a few neighbours at a time, with those that are their neighbours
    /// where they are read, and several of those.
    fn move_bytes(&mut self, stage: usize, store: Ex<'g>) {
        let few = |a: &Axis| matches!(a.extent(), Some(4 | 8));
        let outs = self.outs(stage);
        let Some(&(i, a)) = outs.iter().rfind(|(_, a)| few(a) && lane_score(store, a, false) > 0) else {
            return;
        };
        let n = a.extent().unwrap_or(4);
        let wide = self.caps.vector_bytes as i64;
        let loads: Vec<Ex> = topo(&[store]).into_iter().filter(|e| e.op() == Op::Load).collect();
        let goes_on = |(_, b): &&(usize, Axis<'g>)| {
            let along = |l: &Ex<'g>| affine(l.arg(1), &[b.range, a.range]).is_some_and(|(_, s)| s == [n, 1]);
            let narrow = |e: &Ex<'g>| e.dtype() == DType::INDEX || e.dtype().bytes() == 1;
            let bytes =
                || topo(&[store]).iter().filter(|e| reads(**e, a.range) || reads(**e, b.range)).all(narrow);
            b.extent().is_some_and(|e| e * n <= wide) && loads.iter().all(along) && bytes()
        };
        let around = outs.iter().find(goes_on).filter(|_| store.arg(2).op() != Op::Load);
        if !self.put(Action::Vector, i, n as usize) {
            return;
        }
        let more = around.filter(|(more, _)| self.put(Action::Vector, *more, 0));
        // As many as are stored at a time fit the registers.
        let pieces = more.and_then(|(_, b)| b.extent()).unwrap_or(1);
        if let Some(&(rows, _)) = outs.iter().rfind(|(_, a)| a.extent() == Some(16)) {
            self.put(Action::Upcast, rows, (16 / pieces) as usize);
        }
    }

    /// Tokens share the weights that one reads: in tiles where there is a unit for them, in registers otherwise. What is
    /// left of them runs inside the rows, so that the rows' weights are still cached.
    fn tokens(&mut self, stage: usize, weights: &[Ex<'g>]) {
        let Some((m, a)) = self.token_axis(stage, weights) else { return };
        if by_tiles(&a) && self.put(Action::Tile, m, 16) {
            // Two products at a time: one is scaled while the other is on its way.
            if let Some((k, _)) =
                self.reduces(stage).pop().filter(|(_, a)| a.extent().is_some_and(|e| e % 2 == 0))
            {
                self.put(Action::Unroll, k, 2);
            }
        } else {
            let most = self.register_tokens(stage);
            self.put(Action::Upcast, m, a.extent().map_or(most, |e| e.min(most)) as usize);
        }
        let (rows, rest): (Vec<_>, Vec<_>) =
            self.outs(stage).into_iter().partition(|(_, a)| weights.iter().any(|w| reads(*w, a.range)));
        if let (Some((first, _)), Some((row, _))) = (rest.first(), rows.last()) {
            self.put(Action::Swap, *first, *row);
        }
    }

    /// Tokens whose sums stay in registers beside a block of unpacked weights: a processor with wide vectors has 32 of
    /// them, and formats with minima take two for each token.
    fn register_tokens(&self, stage: usize) -> i64 {
        let float_sum = |e: &Ex| matches!(e.op(), Op::Fold(..)) && e.dtype() == DType::F32;
        let sums: Vec<Ex> =
            topo(&[self.s.kernel.stages[stage].store]).into_iter().filter(float_sum).collect();
        // What is summed within another sum is added to it at once.
        let outer = sums.iter().filter(|s| !sums.iter().any(|other| other != *s && reads(*other, **s)));
        if self.caps.vector_bytes == 64 && outer.count() == 1 { 8 } else { 4 }
    }

    /// An output axis that the weights do not depend on, by preference one of whole tiles: the inner one, whose tokens are
    /// neighbours in memory.
    fn token_axis(&self, stage: usize, weights: &[Ex<'g>]) -> Option<(usize, Axis<'g>)> {
        let mut tokens = self.outs(stage);
        tokens.retain(|(_, a)| !weights.iter().any(|w| reads(*w, a.range)));
        tokens.iter().rfind(|(_, a)| by_tiles(a)).or(tokens.first()).copied()
    }

    fn unroll_small(&mut self, stage: usize, most: i64) {
        for (i, a) in self.reduces(stage) {
            if a.extent().is_some_and(|e| e <= most) {
                self.put(Action::Unroll, i, 0);
            }
        }
    }

    /// What is left of the outputs goes to the grid. A CPU works out its place in the grid for every index, so there the
    /// last axes of what has no sum stay loops while indices are many; and so does the last of scalars, which share theirs.
    /// A place among as many blocks of positions as there are takes two divisions: where each block is still several
    /// indices, its positions stay a loop.
    fn spread(&mut self) {
        let outs = self.outs(0);
        let mut kept = vec![];
        if self.caps.lanes == 1 {
            let scalar = !self.s.axes.iter().any(|a| a.kind() == Kind::Vector);
            let short = |(_, a): &&(usize, Axis<'g>)| a.extent().is_some_and(|e| e <= 1024);
            kept.extend(outs.last().filter(|_| scalar && outs.len() > 1).filter(short).map(|(i, _)| *i));
            let counted = outs.iter().any(|(_, a)| a.extent().is_none());
            let others = outs.iter().filter(|(i, _)| Some(*i) != self.folded).filter_map(|(_, a)| a.extent());
            kept.extend(self.folded.filter(|_| counted && others.product::<i64>() >= SEVERAL));
            let plain = self.s.kernel.stages.len() == 1 && self.reduces(0).is_empty();
            let mut indices: i64 = outs.iter().map(|(_, a)| work(a.range)).product();
            for (i, a) in outs.iter().rev().filter(|_| plain && !scalar) {
                indices /= work(a.range).max(1);
                if indices < INDICES {
                    break;
                }
                kept.push(*i);
            }
        }
        for i in (0..self.s.axes.len()).filter(|i| !kept.contains(i)) {
            if self.s.axes[i].kind() == Kind::Serial && !matches!(self.s.axes[i].role, Role::Reduce(_)) {
                self.put(Action::Grid, i, 0);
            }
        }
    }
}

/// Most rounds of a range.
fn work(range: Ex) -> i64 {
    range.arg(0).bounds().1
}

/// Does the axis divide into the rows of tiles?
fn by_tiles(a: &Axis) -> bool {
    a.extent().is_some_and(|e| e % 16 == 0)
}

/// Loads that a sum adds up, without those that only say where others are.
fn summed<'g>(store: Ex<'g>) -> Vec<Ex<'g>> {
    let reduced = reductions(store);
    let loads: Vec<Ex> = topo(&[store]).into_iter().filter(|e| e.op() == Op::Load).collect();
    let places = topo(&loads.iter().map(|l| l.arg(1)).collect::<Vec<_>>());
    let adds = |e: &Ex<'g>| !places.contains(e) && reduced.iter().any(|r| reads(e.arg(1), *r));
    loads.iter().copied().filter(adds).collect()
}

/// Do elements along the axis read some of the same and some of their own?
fn shared(loads: &[Ex], axis: &Axis) -> bool {
    let own = loads.iter().filter(|l| reads(l.arg(1), axis.range)).count();
    0 < own && own < loads.len()
}

/// The largest divisor of n that is at most `most`.
fn divisor(n: i64, most: i64) -> i64 {
    (1..=most.min(n)).rev().find(|d| n % d == 0).unwrap_or(1)
}

fn reads(e: Ex, range: Ex) -> bool {
    topo(&[e]).contains(&range)
}

/// Are there 64-bit numbers besides the indices of loads and stores? Lanes have 32 bits.
fn wide_numbers(store: Ex) -> bool {
    let (mut stack, mut seen) = (store.args().split_off(2), HashSet::new());
    while let Some(e) = stack.pop() {
        if e.dtype() == DType::INDEX && (e.op() == Op::Load || e.bounds().1 > i32::MAX as i64) {
            return true;
        }
        if seen.insert(e.id) {
            stack.extend(e.args().into_iter().skip(if e.op() == Op::Load { 2 } else { 0 }));
        }
    }
    store.dtype() == DType::INDEX
}

/// Do the weights lie where a table says, by this range?
fn chosen_by(weights: Ex, range: Ex) -> bool {
    let index = |e: &Ex| topo(&[e.arg(1)]).iter().any(|i| i.op() == Op::Load && reads(*i, range));
    topo(&[weights]).iter().any(|e| e.op() == Op::Load && index(e))
}

/// How well the loads and the store take to this axis in lanes: consecutive is good, strided bad, unless bytes are parts of
/// whole `quads`.
fn lane_score(store: Ex, axis: &Axis, quads: bool) -> i64 {
    let stride = |index: Ex| affine(index, &[axis.range]).map(|(_, s)| s[0]);
    let mut score = 0;
    for e in topo(&[store]) {
        score += match e.op() {
            Op::Load if reads(e.arg(1), axis.range) => match stride(e.arg(1)) {
                Some(1) => 2,
                Some(4) if quads && e.dtype().bytes() == 1 => 0,
                // Nothing gathers bytes.
                _ if e.dtype().bytes() == 1 => -8,
                _ => -3,
            },
            _ => 0,
        };
    }
    match axis.role {
        Role::Reduce(_) => score - 1,
        _ if stride(store.arg(1)) == Some(1) => score + 2,
        _ if reductions(store).is_empty() => score - 3,
        _ => score - 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codegen::Target;
    use crate::codegen::ptx::Ptx;
    use crate::codegen::x86::{Features, X86};
    use crate::dtype::Scalar;
    use crate::graph::Graph;
    use crate::ops::{self, Unit};
    use crate::pipeline;
    use crate::quant::{Format, Layout};
    use crate::schedule::Grain;

    #[test]
    fn the_grid_of_what_has_no_sum_is_no_larger_than_needed() {
        let caps = X86::new(Features { avx512: true, ..Features::default() }).caps();
        let grid = |dims: [i64; 3]| {
            let g = Graph::new();
            let x = g.input("x", DType::F32, dims);
            let program = pipeline::schedule(&g, &[x + x], Grain::CPU);
            let [kernel] = &program.kernels[..] else { panic!("{} kernels", program.kernels.len()) };
            let linear = pipeline::compile(kernel, &propose(kernel, &caps), &caps).unwrap();
            linear.grid.eval(&[])
        };
        assert_eq!(grid([32, 16, 64]), 32 * 16, "the last axis is a loop over vectors");
        assert_eq!(grid([1024, 16, 64]), 1024, "and so is the one before");
        assert_eq!(grid([8, 16, 64]), 8 * 16 * 4, "few indices all go to the grid");
    }

    #[test]
    fn small_matrices_of_one_token_are_for_all_workers() {
        let caps = X86::new(Features { avx512: true, vnni: true, ..Features::default() }).caps();
        let grid = |format: &str, rows: i64| {
            let g = Graph::new();
            let format = Format::by_name(format).unwrap();
            let (_, w) = format.inputs(&g, "w", &[], rows, 2048, Layout::Interleaved16);
            let x = g.input("x", DType::F32, [1, 2048]);
            let y = if format.is_quantised() { w.linear_q8(&ops::quantize_i8(x)) } else { w.linear(x) };
            let program = pipeline::schedule(&g, &[y], Grain::CPU);
            let kernel = program.kernels.last().unwrap();
            let linear = pipeline::compile(kernel, &propose(kernel, &caps), &caps).unwrap();
            linear.grid.eval(&[])
        };
        assert_eq!(grid("F32", 64), 4, "a router's tiles of rows, one each");
        assert_eq!(grid("Q4_0", 576), 18, "two tiles at a time");
        assert_eq!(grid("Q4_0", 2048), 32, "four");
    }

    #[test]
    fn tokens_that_share_weights_in_registers_are_neighbours_in_memory() {
        let caps = X86::new(Features { avx512: true, vnni: true, ..Features::default() }).caps();
        let opts = |tokens: i64| {
            let (g, q4) = (Graph::new(), Format::by_name("Q4_0").unwrap());
            let (_, w) = q4.inputs(&g, "w", &[], 768, 2048, Layout::Interleaved16);
            let x = ops::quantize_i8(g.input("x", DType::F32, [tokens, 2048])).in_tiles();
            let program = pipeline::schedule(&g, &[w.linear_q8(&x)], Grain::CPU);
            propose(program.kernels.last().unwrap(), &caps)
        };
        assert!(opts(128).iter().any(|o| o.action == Action::Upcast && o.n == 8));
        assert_eq!(opts(128), opts(512), "as many tiles as a tile has tokens, or twice as many");
    }

    #[test]
    fn tokens_of_a_prompt_share_keys_and_positions_are_no_places_of_a_grid() {
        let caps = X86::new(Features { avx512: true, ..Features::default() }).caps();
        let compiled = |tokens: i64| {
            let g = Graph::new();
            let q = g.input("q", DType::F32, [tokens, 3, 64]);
            let positions = g.symbol("blocks", (1, 64)) * 32;
            let keys = g.input("cache", DType::F16, [2048, 64]).slice_dim(0, g.int(0), positions).widen();
            let program = pipeline::schedule(&g, &[ops::linear(q, keys)], Grain::CPU);
            let [kernel] = &program.kernels[..] else { panic!("{} kernels", program.kernels.len()) };
            let opts = propose(kernel, &caps);
            let linear = pipeline::compile(kernel, &opts, &caps).unwrap();
            (opts, linear.grid.eval(&[1]), linear.grid.eval(&[64]))
        };
        let (opts, short, long) = compiled(128);
        assert!(opts.contains(&Action::Upcast.on(0, 2)), "two tokens: {opts:?}");
        assert_eq!((short, long), (64, 64));
        let (opts, short, long) = compiled(1);
        assert!(!opts.contains(&Action::Upcast.on(0, 2)));
        assert!(short < long, "the positions of one token are for all workers");
    }

    #[test]
    fn what_changes_places_is_read_in_lanes() {
        let caps = X86::new(Features { avx512: true, ..Features::default() }).caps();
        let g = Graph::new();
        let rows = g.input("rows", DType::F16, [96, 64]);
        let program = pipeline::schedule(&g, &[rows.transpose(0, 1).cast(Scalar::BF16)], Grain::CPU);
        let kernel = &program.kernels[0];
        assert_eq!(propose(kernel, &caps)[0], Opt { action: Action::Vector, axis: 0, n: 16 });
    }

    /// Options of a tall product by warps of so many tokens.
    fn tall(tokens: i64) -> Vec<Opt> {
        let (g, q6) = (Graph::new(), Format::by_name("Q6_K").unwrap());
        let (_, w) = q6.inputs(&g, "w", &[], 64 << 10, 2048, Layout::Rows);
        let x = ops::halved(g.input("x", DType::F32, [tokens, 2048]), Unit::Warp);
        let program = pipeline::schedule(&g, &[w.linear_half(x, Unit::Warp)], Grain::GPU);
        propose(program.kernels.last().unwrap(), &Ptx::new(90).caps())
    }

    #[test]
    fn warps_share_the_sums_of_one_tile_of_tokens() {
        let shared = |tokens: i64| tall(tokens).iter().any(|o| o.action == Action::Group && o.n == 4);
        assert!(tall(8).iter().any(|o| o.action == Action::Mma));
        assert!(shared(8) && !shared(16));
    }

    /// Eight threads read 16 bytes of keys each at a time, sixteen 8 bytes of values.
    #[test]
    fn keys_and_values_come_from_all_banks_at_a_time() {
        let caps = Ptx::new(90).caps();
        for positions in [16, 32, 64] {
            let g = Graph::new();
            let cache = g.input("cache", DType::F16, [4, positions, 192]);
            let q = g.input("q", DType::F16, [1, 16, 192]);
            let scores = ops::linear_half(q, cache);
            let shares = (scores - scores.max(-1)).exp().cast(Scalar::F16);
            let values = cache.slice(-1, 0..128).transpose(1, 2);
            let program = pipeline::schedule(&g, &[ops::linear_half(shares, values)], Grain::GPU);
            let kernel = program.kernels.last().unwrap();
            let opts = propose(kernel, &caps);
            assert_eq!(opts[0].action, Action::Keep);
            let s = Scheduled::new(kernel.clone()).apply_all(&opts, &caps).unwrap();
            let mut warps = s.warps.clone();
            warps.sort_by_key(|w| w.stage);
            for (w, (threads, bytes)) in warps.iter().zip([(8, 16), (16, 8)]) {
                let near =
                    |e: &Ex| e.op() == Op::Load && matches!(e.arg(0).op(), Op::Local(_)) && reads(*e, w.half);
                let all = topo(&[s.kernel.stages[w.stage].store]);
                let at = all.into_iter().find(near).expect("keys or values").arg(1);
                let place = |thread: i64| {
                    let own =
                        |r: Ex| if r == w.thread { thread } else { (r == w.part) as i64 * (thread % 4) };
                    let ranges = topo(&[at]).into_iter().filter(|e| matches!(e.op(), Op::Range(..)));
                    let known: HashMap<Id, Ex> = ranges.map(|r| (r.id, g.int(own(r)))).collect();
                    simplify1(substitute(&[at], &known)[0]).as_int().expect("all is known") * 2
                };
                for first in (0..32).step_by(threads) {
                    let at_a_time = first as i64..(first + threads) as i64;
                    let banks: HashSet<i64> = at_a_time.map(|t| place(t) / bytes % (128 / bytes)).collect();
                    assert_eq!(banks.len(), threads, "{positions} positions, stage {}: {banks:?}", w.stage);
                }
            }
        }
    }
}
