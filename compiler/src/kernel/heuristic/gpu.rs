//! Schedules for a GPU.
//!
//! In: a stage of a kernel. Out: options that give it threads whose neighbours read neighbouring memory, and enough loads
//! on their way at a time. Sums of what lies side by side are shared by the lanes of a warp; where instead the outputs
//! lie side by side, each thread has an output of its own and the sum is cut into pieces that meet in local memory.

use super::{Proposal, divisor, reads, shared, summed, work};
use crate::dtype::DType;
use crate::graph::{Ex, Id, Kind, Op, topo};
use crate::kernel::tiles::{multiple, products};
use crate::kernel::{Action, Axis, Role, consumers, step};
use std::collections::HashSet;

/// Threads of a block where blocks are many.
const BLOCK: i64 = 128;

/// The same where a kernel has several stages, which meet often.
const STAGED: i64 = 256;

/// The same where only a few blocks have all of the work.
const LARGEST: i64 = 512;

/// Rows from which on the machine is full with half as many threads.
const MANY_ROWS: i64 = 8192;

/// Threads that keep a large GPU's memory busy, and its processors.
const FULL: i64 = 1 << 17;
const PROCESSORS: i64 = 128;

/// Groups of lanes that share a sum, at most.
const GROUPS: i64 = 8;

/// Tokens, and rows, of a product's register tile in several stages.
const STAGED_TILE: i64 = 4;

/// Outputs of a register tile in several stages: heads, and positions or columns.
const HEADS: i64 = 8;
const TILE: i64 = 4;

/// Tokens of a warp's product, and products whose sums a thread has registers for, four each.
const WARP_TOKENS: i64 = 8;
const WARP_TILES: i64 = 16;

/// Tiles of tokens of a warp that are few.
const FEW_TILES: i64 = 2;

/// Warps of a processor that hide from each other how long memory takes.
const WARPS: i64 = 8;

/// Bytes of activations that all warps together read without waiting for each other: so much that more of them, each with
/// fewer rows of weights to use them for, are still quicker than processors without work.
const ACTIVATIONS: i64 = 32 << 20;

/// Rounds of a sum that are worth sharing.
const ROUNDS: i64 = 8;

/// Rounds of a product between stages that are unrolled: code that runs once seems to be fetched for longer than a loop takes.
const UNROLLED: i64 = 2;

/// A sum of unknown length that may have more terms than this is loaded four columns at a time, so that most of its terms are
/// on their way at once; where it may have more than the second, by twice as many threads with twice as many each.
const LONG: i64 = 32;
const LONGER: i64 = 128;

impl<'g> Proposal<'g, '_> {
    /// Copies matrices that stages share to local memory; gives the number of stages that do.
    pub(super) fn keep_matrices(&mut self) -> usize {
        let stages = self.s.kernel.stages.len();
        self.put(Action::Keep, 0, 0);
        self.s.kernel.stages.len() - stages
    }

    /// All stages, of which the first copy.
    pub(super) fn gpu_stages(&mut self, copies: usize) {
        (copies..self.s.kernel.stages.len()).for_each(|stage| self.gpu_stage(stage));
        (0..copies).for_each(|stage| self.copy(stage));
    }

    /// A stage that copies rows: eight threads a row, so that they write to all banks.
    fn copy(&mut self, stage: usize) {
        let threads = (0..self.s.kernel.stages.len()).map(|s| self.s.threads(s)).max().unwrap_or(1);
        let held = self.caps.vector_bytes as usize / self.s.kernel.stages[stage].store.dtype().bytes();
        let [(row, _), (column, _)] = self.outs(stage)[..] else { return };
        let even = |p: &Self, axis: usize, most: i64| divisor(p.s.axes[axis].extent().unwrap_or(1), most);
        self.put(Action::Vector, column, held);
        let beside = even(self, column, 8);
        self.put(Action::Local, column, beside as usize);
        let rows = even(self, row, threads / beside);
        self.put(Action::Local, row, rows as usize);
        self.put(Action::Unroll, column, 0);
        self.put(Action::Unroll, row, 0);
    }

    fn gpu_stage(&mut self, stage: usize) {
        if self.by_warps(stage) {
            return;
        }
        let store = self.s.kernel.stages[stage].store;
        let bytes: Vec<(usize, Ex)> = self.byte_axes(stage);
        for (k, _) in &bytes {
            self.put(Action::Dot4, *k, 0);
            self.put(Action::Unroll, *k, 0);
        }
        self.unroll_small(stage, 2);
        let products = self.s.warps.iter().map(|w| self.s.threads(w.stage)).max();
        let block = self.block().max(products.unwrap_or(0));
        let sums = self.sums(stage);
        if sums.is_empty() {
            self.side_by_side(stage, block);
            self.fill(stage, block);
        } else if bytes.is_empty() && self.tiled(stage) {
            return self.by_tiles(stage, &sums, block);
        } else if let Some((column, _)) = self.columns(stage, &sums).filter(|_| bytes.is_empty()) {
            self.by_columns(stage, store, column, &sums, block);
        } else if self.by_lanes(stage, &sums, bytes.is_empty(), block) {
            return;
        }
        self.unroll_small(stage, 8);
    }

    /// Sums of products of 16 bits on the matrix unit: a warp unpacks weights once for as many tokens as it has registers
    /// for. Between stages the tokens are heads, which share the positions of a cache.
    fn by_warps(&mut self, stage: usize) -> bool {
        let store = self.s.kernel.stages[stage].store;
        let single = self.s.kernel.stages.len() == 1;
        // Activations are stored as they are multiplied, weights are made of what is read.
        let stored = |a: &Axis<'g>| {
            let found = products(store, a.range).unwrap_or_default();
            work(a.range) >= WARP_TOKENS && found.iter().any(|p| p.tokens.op() == Op::Load)
        };
        let mut tokens: Vec<_> = self.outs(stage).into_iter().filter(|(_, a)| stored(a)).collect();
        if single {
            tokens.reverse();
            tokens.sort_by_key(|(_, a)| a.extent().is_none_or(|e| e % WARP_TOKENS != 0));
        }
        let Some(&(m, a)) = tokens.first() else { return false };
        let over = &products(store, a.range).expect("just found")[0].over;
        let inputs: Vec<_> =
            self.reduces(stage).into_iter().filter(|(_, a)| over.contains(&a.range)).collect();
        let [around @ .., (last, k)] = &inputs[..] else { return false };
        // A thread takes neighbouring inputs, four threads all of a product's: a block of them, or eight or four.
        let by_four = |(_, a): &&(usize, Axis<'g>)| a.extent().is_some_and(|e| e % 4 == 0);
        let whole = k.extent().is_some_and(|e| e <= 32 && e % 4 == 0);
        let before = (self.s.clone(), self.opts.clone());
        let weights = products(store, a.range).expect("just found")[0].weights;
        let near = weights.op() == Op::Load && matches!(weights.arg(0).op(), Op::Local(_));
        let along = near && step(weights, k.range) == Some(1);
        let (inputs, unrolled) = match around.iter().rfind(by_four).filter(|_| whole) {
            Some((outer, _)) => (*outer, 0),
            // Threads that read every other row of local memory read from all banks.
            None if near && !along && k.extent().is_some_and(|e| e % 16 == 0) => (*last, 2),
            None => (*last, if k.extent().is_none_or(|e| e % 32 == 0) { 8 } else { 4 }),
        };
        let put = self.put(Action::Unroll, *last, unrolled)
            && self.put(Action::Mma, m, inputs)
            && (unrolled != 2 || self.put(Action::Unroll, *last, 2));
        if !put {
            (self.s, self.opts) = before;
            return false;
        }
        let side = self.s.warp(stage).expect("just put").side;
        let found = products(self.s.kernel.stages[stage].store, side).expect("splitting keeps products");
        let of_tokens =
            |a: &Axis<'g>| found.iter().all(|p| reads(p.tokens, a.range) && !reads(p.weights, a.range));
        let of_weights =
            |a: &Axis<'g>| found.iter().all(|p| reads(p.weights, a.range) && !reads(p.tokens, a.range));
        let whole = |e: Ex<'g>, most: i64| (1..=most).rev().find(|n| multiple(e, *n)).unwrap_or(1);
        let mut tiles = found.len() as i64;
        for (i, a) in self.outs(stage).into_iter().rev().filter(|(_, a)| of_tokens(a)) {
            let n = whole(a.range.arg(0), (WARP_TILES / 2 / tiles).max(1));
            if n > 1 && self.put(Action::Upcast, i, n as usize) {
                tiles *= n;
            }
        }
        // Work is not put together where that leaves processors without any.
        let most = |p: &Self, n: i64| if single { n.min(p.warps_left(stage) / PROCESSORS).max(1) } else { n };
        // For few tokens more warps are worth more than what is unpacked once for two tiles of rows.
        let few = tiles / found.len() as i64 <= FEW_TILES;
        let mut rows = if single && !few { (WARP_TILES / tiles).clamp(1, 2) } else { 1 };
        let inputs: i64 = found[0].over.iter().map(|r| work(*r)).product();
        let read = 2 * inputs * WARP_TOKENS * (tiles / found.len() as i64) * self.warps_left(stage);
        let mine: Vec<_> = self.outs(stage).into_iter().rev().filter(|(_, a)| of_weights(a)).collect();
        for (i, a) in &mine {
            let n = whole(a.range.arg(0), if read > ACTIVATIONS { rows } else { most(self, rows) });
            if n > 1 && self.put(Action::Upcast, *i, n as usize) {
                rows /= n;
            }
        }
        // The products of a kernel have the same threads, those behind the first a power of two, as their rows divide.
        let lanes = self.caps.lanes as i64;
        let before = self.s.warps.iter().filter(|w| w.stage != stage).map(|w| self.s.threads(w.stage)).max();
        let shared = before.map_or(LARGEST, |threads| (threads as u64).next_power_of_two() as i64);
        let all = if single { WARPS * PROCESSORS } else { shared / lanes };
        // A warp with one tile of tokens reads so little at a time that four share even what is enough for all.
        let least = if single && tiles == found.len() as i64 { 4 } else { 1 };
        let groups = self.warps_of_a_sum(stage, &found[0].over, all, least);
        let block = match groups {
            _ if !single => shared,
            _ if groups == 1 || least > 1 => BLOCK,
            _ => STAGED,
        };
        let mut warps = block / lanes / groups;
        for (i, _) in mine {
            let n = whole(self.s.axes[i].range.arg(0), most(self, warps));
            if n > 1 && self.put(Action::Local, i, n as usize) {
                warps /= n;
            }
            // Without rounds all that is read is on its way at once. A warp may have two tiles of rows.
            let rounds = work(self.s.axes[i].range);
            if !single && rounds > 1 && 2 * tiles * rounds <= WARP_TILES {
                self.put(Action::Upcast, i, rounds as usize);
            }
        }
        let sums = products(self.s.kernel.stages[stage].store, side).expect("splitting keeps products");
        let rounds = self.reduces(stage).into_iter().find(|(_, a)| sums[0].over.contains(&a.range));
        if let Some((i, a)) = rounds.filter(|_| !single) {
            self.put(Action::Unroll, i, a.extent().map_or(1, |e| divisor(e, UNROLLED)) as usize);
        }
        true
    }

    /// Where warps with sums of their own are too few to wait for memory in turns, several share one.
    fn warps_of_a_sum(&mut self, stage: usize, over: &[Ex<'g>], all: i64, least: i64) -> i64 {
        let wanted = (all / self.warps_left(stage).max(1)).max(least);
        let rounds = self.reduces(stage).into_iter().find(|(_, a)| over.contains(&a.range));
        let Some((i, Some(rounds))) = rounds.map(|(i, a)| (i, a.extent())) else { return 1 };
        let n = [8, 6, 4, 3, 2].into_iter().find(|n| *n <= wanted && rounds % n == 0).unwrap_or(1);
        if n > 1 && self.put(Action::Group, i, n as usize) { n } else { 1 }
    }

    /// Outputs of a stage that are not put together yet: of products by warps so many warps.
    fn warps_left(&self, stage: usize) -> i64 {
        self.outs(stage).iter().map(|(_, a)| work(a.range)).product()
    }

    /// Threads of a block: many where only a few rows share the work of several stages.
    fn block(&self) -> i64 {
        let stages = self.s.kernel.stages.len();
        if stages == 1 {
            return BLOCK;
        }
        let rows: i64 = self.s.kernel.rows.iter().map(|r| work(*r)).product();
        let many = rows > 2 * PROCESSORS;
        let wanted = |s: usize| {
            let stage = &self.s.kernel.stages[s];
            let outs: i64 = stage.outs.iter().map(|r| work(*r)).product();
            let sums = self.reduces(s).into_iter().map(|(_, a)| work(a.range)).filter(|w| *w >= ROUNDS);
            let rounds: i64 = sums.product();
            let threads = outs.saturating_mul(rounds.min(self.caps.lanes as i64));
            let threads = threads.max(STAGED.min(outs.saturating_mul(rounds / 4)));
            // Threads do not make little work quicker, and what every block computes for itself is done by all of them.
            let own = self.s.kernel.rows.iter().any(|r| topo(&[stage.store]).contains(r));
            if !own || many { threads.min(STAGED) } else { threads }
        };
        if (0..stages).any(|s| self.tiled(s)) {
            return STAGED;
        }
        let most = (0..stages).map(wanted).max().unwrap_or(1).max(self.caps.lanes as i64);
        LARGEST.min(1 << (63 - most.leading_zeros()))
    }

    /// For each sum of the stage that is in no other, its innermost axis that is worth sharing.
    fn sums(&self, stage: usize) -> Vec<(usize, Axis<'g>)> {
        let store = self.s.kernel.stages[stage].store;
        let all = self.reduces(stage);
        let mut below: HashSet<Id> = HashSet::new();
        let mut found: Vec<(usize, Axis<'g>)> = vec![];
        for e in topo(&[store]).into_iter().rev() {
            if !matches!(e.op(), Op::Fold(..)) || below.contains(&e.id) {
                continue;
            }
            let inside = topo(&[e]);
            below.extend(inside.iter().filter(|i| matches!(i.op(), Op::Fold(..))).map(|i| i.id));
            let own = |(_, a): &&(usize, Axis<'g>)| work(a.range) >= ROUNDS && inside.contains(&a.range);
            if let Some(axis) = all.iter().rfind(own).filter(|a| found.iter().all(|f| f.0 != a.0)) {
                found.push(*axis);
            }
        }
        found
    }

    /// An output axis along which memory is read in a row, where along the sum it is not.
    fn columns(&self, stage: usize, sums: &[(usize, Axis<'g>)]) -> Option<(usize, Axis<'g>)> {
        let [(_, k)] = sums else { return None };
        let loads = summed(self.s.kernel.stages[stage].store);
        let apart = |l: &&Ex<'g>| reads(l.arg(1), k.range) && step(**l, k.range) != Some(1);
        let far: Vec<Ex> = loads.iter().filter(apart).copied().collect();
        let along = |a: &Axis<'g>| far.iter().any(|l| step(*l, a.range) == Some(1));
        self.outs(stage).into_iter().rfind(|(_, a)| work(a.range) >= ROUNDS && along(a))
    }

    fn by_columns(
        &mut self,
        stage: usize,
        store: Ex<'g>,
        column: usize,
        sums: &[(usize, Axis<'g>)],
        block: i64,
    ) {
        let (lanes, k) = (self.caps.lanes as i64, sums[0]);
        let single = self.s.kernel.stages.len() == 1;
        let all: i64 = self.outs(stage).iter().map(|(_, a)| work(a.range)).product();
        let terms = work(k.1.range);
        if !single && k.1.extent().is_none() && terms > LONG && all <= lanes {
            let four = TILE as usize;
            let each = if terms <= LONGER { four } else { 2 * four };
            self.put(Action::Vector, column, four);
            self.put(Action::Lane, k.0, four);
            self.fill(stage, lanes);
            self.put(Action::Group, k.0, each);
            self.put(Action::Unroll, k.0, each);
            return;
        }
        // As many pieces as it takes to have threads enough.
        let most = if single { 2 * STAGED } else { block } / lanes;
        let pieces = if single { (FULL / all).clamp(1, most) } else { most };
        let beside = work(self.s.axes[column].range).min(lanes);
        self.put(Action::Local, column, beside as usize);
        if pieces > 1 {
            self.put(Action::Group, k.0, pieces.min(work(k.1.range)) as usize);
        } else {
            self.fill(stage, BLOCK / beside);
        }
        let loads = summed(store);
        let outs = self.outs(stage);
        let heads = outs.iter().find(|(i, a)| *i != column && shared(&loads, a) && a.extent() > Some(1));
        if let Some((i, a)) = heads {
            let blocks: i64 = outs.iter().map(|(_, a)| work(a.range)).product();
            let few = |tile: &i64| blocks / tile >= PROCESSORS;
            let heads = a.extent().unwrap_or(1);
            let tile = (2..=5).rev().filter(|t| heads % t == 0).find(few);
            self.put(Action::Upcast, *i, tile.unwrap_or(1) as usize);
        }
        self.put(Action::Unroll, k.0, 4);
    }

    /// Is the stage, of several, a product of matrices: outputs along two axes that share what they read?
    fn tiled(&self, stage: usize) -> bool {
        let loads = summed(self.s.kernel.stages[stage].store);
        let outs = self.s.of_stage(stage).filter(|(_, a)| a.role == Role::Out(stage));
        let sharing = outs.filter(|(_, a)| a.extent() > Some(1) && shared(&loads, a));
        self.s.kernel.stages.len() > 1 && sharing.count() > 1
    }

    /// A register tile of the first outputs, as heads are, by some of the last, so that what both read is loaded for many
    /// products.
    fn by_tiles(&mut self, stage: usize, sums: &[(usize, Axis<'g>)], block: i64) {
        let store = self.s.kernel.stages[stage].store;
        let [(k, sum)] = *sums else {
            self.by_lanes(stage, sums, true, block);
            return;
        };
        let outs = self.outs(stage);
        let (Some(&(first, heads)), Some(&(last, row))) = (outs.first(), outs.last()) else { return };
        let column = self.columns(stage, sums).is_some_and(|(c, _)| c == last);
        let even = |e: Option<i64>, most: i64| e.map_or(1, |e| divisor(e, most));
        self.put(Action::Upcast, first, even(heads.extent(), HEADS) as usize);
        // What lies side by side is stored at once too.
        let tile = if column { Action::Vector } else { Action::Upcast };
        // The widest elements fill a load: with two loads of them for one of the others, lanes would lie two loads apart,
        // and in local memory those meet in the same banks.
        let bytes = summed(store).iter().map(|l| l.dtype().bytes()).max().unwrap_or(4) as i64;
        let side = even(sum.extent(), self.caps.vector_bytes as i64 / bytes);
        let lanes = [8, 4, 2].into_iter().find(|n| work(sum.range) / side % n == 0).unwrap_or(1);
        // Rather fewer rows a thread than threads without any.
        let most = if column { TILE } else { TILE.min((work(row.range) * lanes / block).max(1)) };
        self.put(tile, last, even(row.extent(), most) as usize);
        let mut left = block;
        if !column {
            self.put(Action::Unroll, k, side as usize);
            if lanes > 1 && self.put(Action::Lane, k, lanes as usize) {
                left /= lanes;
            }
        }
        left = self.fill(stage, left);
        let rounds = self.s.axes[k].extent();
        if column && left > 1 {
            self.put(Action::Group, k, even(rounds, left) as usize);
        }
        self.put(Action::Unroll, k, even(self.s.axes[k].extent(), if column { 8 } else { 4 }) as usize);
    }

    /// Says if a thread has so many sums that their rounds are better left a loop.
    fn by_lanes(&mut self, stage: usize, sums: &[(usize, Axis<'g>)], floats: bool, block: i64) -> bool {
        let single = self.s.kernel.stages.len() == 1;
        let store = self.s.kernel.stages[stage].store;
        let lanes = self.caps.lanes as i64;
        // Lanes are the same threads for all sums, and no longer tell them apart.
        let around = self.around(stage, sums);
        if floats {
            // Four floats are one load; where a sum has few lanes, each has a whole piece of it.
            let rows: i64 = self.outs(stage).iter().map(|(_, a)| work(a.range)).product();
            let own = (block / rows.max(1)).clamp(1, 8);
            let even = |e: i64, s: i64| {
                e % (s * lanes) == 0 || !single && e < 4 * lanes && e % s == 0 && e / s >= own
            };
            // Of attention's scores in local memory one load: with two of them lanes would meet in the same banks.
            let loads = summed(store);
            let near = |l: &Ex<'g>| matches!(l.arg(0).op(), Op::Local(_));
            let bytes = loads.iter().map(|l| l.dtype().bytes()).max().unwrap_or(4);
            let one = (self.caps.vector_bytes as usize / bytes) as i64;
            let most = if !self.s.warps.is_empty() && loads.iter().all(near) { one } else { 8 };
            let sides: &[i64] = if single { &[4, 2] } else { &[8, 4, 2] };
            let fits = |e: i64| sides.iter().copied().find(|s| *s <= most && even(e, *s));
            for (k, a) in sums {
                if let Some(side) = a.extent().and_then(fits) {
                    self.put(Action::Unroll, *k, side as usize);
                }
            }
        }
        let even = |e: i64| (3..=5).rev().map(|p| 1 << p).find(|n| e % n == 0 && *n <= lanes);
        let own = |(k, a): &(usize, Axis<'g>)| {
            let e = work(self.s.axes[*k].range);
            let most = lanes.min(1 << e.max(1).ilog2());
            match a.extent() {
                Some(_) => even(e).unwrap_or(most),
                None => lanes.min((e as u64).next_power_of_two() as i64),
            }
        };
        let mut n = sums.iter().map(own).min().unwrap_or(1);
        let nested = around.iter().zip(sums).any(|(outer, (k, _))| outer != k);
        let plain = !nested && self.byte_axes(stage).len() == 1;
        let (tile, wide) = self.register_tile(stage, store, floats, plain);
        let many = single && tile > 1 && !floats && !plain;
        let rows: i64 = self.outs(stage).iter().map(|(_, a)| work(a.range)).product();
        while !single && n > 4 && rows * n > block {
            n /= 2;
        }
        for (k, _) in sums {
            self.put(Action::Lane, *k, n as usize);
        }
        // Rows that cannot fill the machine with their lanes alone have several groups of them.
        let groups = match single {
            true if !wide => {
                let most = (FULL / (rows * n).max(1)).clamp(1, GROUPS);
                let whole = |k: &usize| self.s.axes[*k].extent().map_or(most, |e| e & e.wrapping_neg());
                let whole = around.iter().map(whole).min().unwrap_or(most);
                self.group(&around, if many { most.min(whole) } else { most })
            }
            _ => 1,
        };
        let left = self.fill(stage, (block / (n * groups)).max(1));
        if left > 1 && !single {
            self.group(&around, left);
        }
        for (k, _) in sums.iter().filter(|_| !many) {
            let rounds = work(self.s.axes[*k].range);
            self.put(Action::Unroll, *k, if rounds <= 8 { 0 } else { 4 });
        }
        many
    }

    /// For each sum the axis that it is cut along: outside where sums are nested.
    fn around(&self, stage: usize, sums: &[(usize, Axis<'g>)]) -> Vec<usize> {
        let all = self.reduces(stage);
        let stores = self.s.kernel.stores();
        let around = |(k, own): &(usize, Axis<'g>)| {
            let own = consumers(&stores, own.range);
            let holds = |(_, a): &&(usize, Axis<'g>)| {
                let outer = consumers(&stores, a.range);
                outer.iter().any(|o| own.iter().any(|f| o != f && reads(*o, *f)))
            };
            all.iter().find(holds).map_or(*k, |(i, _)| *i)
        };
        sums.iter().map(around).collect()
    }

    /// Cuts every sum into at most so many pieces; gives their number.
    fn group(&mut self, axes: &[usize], most: i64) -> i64 {
        let rounds = |k: &usize| {
            let (axis, n) = (self.s.axes[*k], work(self.s.axes[*k].range));
            // Where the number may be any up to this one, none has two rounds.
            if axis.extent().is_some() { n } else { (n as u64).next_power_of_two() as i64 }
        };
        let rounds = axes.iter().map(rounds).min().unwrap_or(1);
        let n = 1 << most.min(rounds).max(1).ilog2();
        if n == 1 || axes.iter().any(|k| self.s.axes[*k].kind() != Kind::Serial) {
            return 1;
        }
        for &k in axes {
            self.put(Action::Group, k, n as usize);
        }
        n
    }

    /// Outputs that read some of the same: a few tokens or heads, and a few rows where there are more than enough, or where
    /// reading the tokens again for each would take longest and a thread has one sum for each. How many tokens, and if it is
    /// so wide. Not those of a router, which are so few that each can have all the threads that a sum is worth.
    fn register_tile(&mut self, stage: usize, store: Ex<'g>, floats: bool, plain: bool) -> (i64, bool) {
        let single = self.s.kernel.stages.len() == 1;
        let loads = summed(store);
        let outs: Vec<_> = self.outs(stage).into_iter().filter(|(_, a)| shared(&loads, a)).collect();
        let Some((row, r)) = outs.last().copied().filter(|_| single || !floats) else { return (1, false) };
        let bytes = self.byte_axes(stage);
        let own = |a: &Axis<'g>| bytes.iter().any(|(_, w)| reads(*w, a.range));
        let all: i64 = self.outs(stage).iter().map(|(_, a)| work(a.range)).product();
        if floats && all * self.caps.lanes as i64 * GROUPS <= FULL {
            return (1, false);
        }
        let several = outs.iter().rev().skip(1).filter(|(_, a)| a.extent() > Some(1));
        let tokens = several.clone().find(|(_, a)| !own(a));
        let tokens = tokens.or(several.clone().next().filter(|_| single && all >= FULL)).copied();
        let most = match single {
            true if floats => 5,
            true => 8,
            false => STAGED_TILE,
        };
        let tile = tokens.map_or(1, |(m, a)| {
            let n = divisor(a.extent().unwrap_or(1), most);
            self.put(Action::Upcast, m, n as usize);
            n
        });
        let summed_over = |a: &Axis<'g>| matches!(a.role, Role::Reduce(_));
        let inputs: i64 =
            self.s.of_stage(stage).filter(|(_, a)| summed_over(a)).map(|(_, a)| work(a.range)).product();
        let again = single && tile > 1 && !floats && plain && all * inputs > ACTIVATIONS;
        let rows = match tile {
            2.. if !single => STAGED_TILE,
            1 if single && all >= MANY_ROWS => 2,
            2.. if floats => 4,
            _ if again => 2,
            _ => 1,
        };
        let wide = rows > 1
            && r.extent().is_none_or(|e| e % rows == 0)
            && self.put(Action::Upcast, row, rows as usize);
        (tile, wide && again)
    }

    /// Where elements are more than threads: as many for each thread as one store holds.
    fn side_by_side(&mut self, stage: usize, block: i64) {
        let (outs, store) = (self.outs(stage), self.s.kernel.stages[stage].store);
        let all: i64 = outs.iter().map(|(_, a)| work(a.range)).product();
        let single = self.s.kernel.stages.len() == 1;
        let held = self.caps.vector_bytes as i64 / store.dtype().bytes() as i64;
        // Among stages so many that threads have no second round.
        let round = (all + block - 1) / block;
        let most = if single { held } else { held.min((round as u64).next_power_of_two() as i64) };
        let enough = if single { FULL } else { 2 * block };
        let beside = |a: &Axis<'g>| step(store, a.range) == Some(1);
        let Some(&(i, a)) = outs.iter().find(|(_, a)| beside(a)).filter(|_| all >= enough) else { return };
        let n = 1 << a.extent().map_or(0, |e| e.trailing_zeros().min(most.max(1).ilog2()));
        if n > 1 && in_lanes(store, a.range) {
            self.put(Action::Vector, i, n as usize);
        }
    }

    /// Spreads outputs over threads, the innermost first; what is left of the threads.
    fn fill(&mut self, stage: usize, threads: i64) -> i64 {
        let mut left = threads;
        for (i, a) in self.outs(stage).into_iter().rev() {
            let even = a.extent().map_or(1, |e| divisor(e, left));
            let n = if 2 * even > left.min(work(a.range)) { even } else { left.min(work(a.range)) };
            if n > 1 && self.put(Action::Local, i, n as usize) {
                left /= n;
            }
        }
        left
    }
}

/// Can what depends on the range be computed in lanes: is every index of 32 bits that is no plain row of elements?
fn in_lanes(store: Ex, range: Ex) -> bool {
    let (mut stack, mut seen) = (store.args().split_off(2), HashSet::new());
    while let Some(e) = stack.pop() {
        if !seen.insert(e.id) || !reads(e, range) {
            continue;
        }
        let (least, most) = e.bounds();
        let wide = e.dtype() == DType::INDEX && (least < i32::MIN as i64 || most > i32::MAX as i64);
        if wide || matches!(e.op(), Op::Fold(..)) || e.op() == Op::Load && e.dtype() == DType::INDEX {
            return false;
        }
        let row = e.op() == Op::Load && step(e, range) == Some(1);
        stack.extend(e.args().into_iter().skip(if row { 2 } else { 0 }));
    }
    true
}
