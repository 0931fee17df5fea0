//! Schedules as data: what a list of [`Opt`]s makes of a kernel's ranges.
//!
//! In: a kernel whose ranges are all loops. Out: the same stores over split and retagged ranges, numbered by loop
//! depth. An option that does not fit is refused with a reason; one that is accepted never changes the result beyond
//! the order of a sum.

pub mod heuristic;
mod keep;
pub mod mma;
pub mod search;
mod share;
pub mod split;
mod tiles;

use crate::codegen::Caps;
use crate::dtype::Scalar;
use crate::graph::{Ex, Id, Kind, Op, rebuild, topo};
use crate::rewrite::substitute;
use crate::rules::sum::affine;
use crate::rules::{simplify, simplify1};
use crate::scalar::{Binary, Fold};
use crate::schedule::{Kernel, Stage, length};
use std::collections::{HashMap, HashSet};
use std::fmt;

/// What to do with an axis. `n` is the size of the inner part; 0 means the whole axis.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Opt {
    pub action: Action,
    pub axis: u8,
    pub n: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Action {
    /// The axis becomes part of the grid.
    Grid,
    /// The inner part of an output axis: one thread each.
    Local,
    /// The inner part of a reduction: threads that meet in local memory.
    Group,
    /// The outer part of a reduction (`n` threads, each a contiguous piece).
    GroupTop,
    /// The inner part of a reduction: neighbouring threads that exchange registers.
    Lane,
    /// The inner part of an output axis: a register tile.
    Upcast,
    /// The inner part of any axis: copies of the body.
    Unroll,
    /// The inner part of any axis: lanes of a vector.
    Vector,
    /// The inner four of a reduction of u8·i8 products: one instruction.
    Dot4,
    /// An output axis by 16 and the reduction below it: AMX. Goes with `Dot4` and `Vector(16)` on the columns.
    Tile,
    /// A sum in `n` pieces over the grid and, in a second kernel, their sum ([`split::phases`]). Comes first; the pieces are
    /// the first axis then.
    Split,
    /// Weights that this output axis shares are unpacked once, into local memory; where products are of bf16, the axis
    /// goes through a tile unit. On a GPU, for the rows of a kernel of several stages: matrices that their products read
    /// are copied to local memory. Comes first; the axes are numbered anew.
    Keep,
    /// Tokens along an output axis go through a warp's matrix unit, the inputs along the reduction `n` being divided among
    /// threads.
    Mma,
    /// An output axis that chooses by segments: the segments outside, the elements of one inside.
    Segment,
    /// Exchanges the axis with axis `n` of the same kind: loop order.
    Swap,
    /// Fetches what the inner loop reads `n`·64 bytes ahead; `axis` is not used.
    Prefetch,
}

impl Action {
    pub const ALL: [Action; 16] = {
        use Action::*;
        [
            Grid, Local, Group, GroupTop, Lane, Upcast, Unroll, Vector, Dot4, Tile, Split, Keep, Mma,
            Segment, Swap, Prefetch,
        ]
    };
    pub fn on(self, axis: usize, n: usize) -> Opt {
        Opt { action: self, axis: axis as u8, n: n as u16 }
    }
}

impl fmt::Display for Opt {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}({},{})", format!("{:?}", self.action).to_lowercase(), self.axis, self.n)
    }
}

/// A schedule as text: `grid(0,0) vector(1,16)`.
pub fn show(opts: &[Opt]) -> String {
    opts.iter().map(|o| o.to_string()).collect::<Vec<_>>().join(" ")
}

/// What [`show`] printed.
pub fn parse(s: &str) -> Option<Vec<Opt>> {
    s.split_whitespace()
        .map(|word| {
            let (name, args) = word.strip_suffix(')')?.split_once('(')?;
            let (axis, n) = args.split_once(',')?;
            let action = Action::ALL.into_iter().find(|a| format!("{a:?}").to_lowercase() == name)?;
            Some(Opt { action, axis: axis.parse().ok()?, n: n.parse().ok()? })
        })
        .collect()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// An output axis that all stages share.
    Row,
    /// An output axis of this stage.
    Out(usize),
    /// A reduction of this stage.
    Reduce(usize),
}

#[derive(Clone, Copy, Debug)]
pub struct Axis<'g> {
    pub range: Ex<'g>,
    pub role: Role,
}

impl Axis<'_> {
    pub fn kind(&self) -> Kind {
        let Op::Range(_, kind) = self.range.op() else { unreachable!("axes are ranges") };
        kind
    }
    /// Rounds, if constant.
    pub fn extent(&self) -> Option<i64> {
        self.range.arg(0).as_int()
    }
}

/// A kernel under a schedule.
#[derive(Clone)]
pub struct Scheduled<'g> {
    pub kernel: Kernel<'g>,
    /// The buffers of the kernel as it was given, and whether it writes them: simplified, it may no longer read all.
    pub args: Vec<(Ex<'g>, bool)>,
    /// Rows first, then each stage's outputs and reductions, then the inner parts of splits in the order they were made.
    pub axes: Vec<Axis<'g>>,
    /// Bytes to fetch ahead; 0 for none.
    pub prefetch: i64,
    /// The 16-wide output range that a tile instruction covers.
    pub tile: Option<Ex<'g>>,
    /// The ranges of the stages' products by warps.
    pub warps: Vec<mma::Warp<'g>>,
    /// The inner ranges of dot products: lanes, but consumed by the instruction.
    fours: Vec<Ex<'g>>,
    /// What loads are gated by since an axis of an extent that symbols decide was split: how often it is split after that
    /// makes no difference to them.
    guards: Vec<Ex<'g>>,
    /// What runs behind it where a sum is split, and the memory between the two.
    then: Option<(Kernel<'g>, Ex<'g>)>,
}

/// Why an option cannot be applied.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Illegal(pub String);

macro_rules! refuse { ($($t:tt)*) => { return Err(Illegal(format!($($t)*))) } }

impl<'g> Scheduled<'g> {
    /// The kernel as loops. Ranges that are read through `/ c` and `% c` are split there, so that a layout's tiles and
    /// a format's blocks are axes of their own.
    pub fn new(kernel: Kernel<'g>) -> Scheduled<'g> {
        let mut s = Scheduled::plain(kernel);
        let mut i = 0;
        while i < s.axes.len() {
            match s.natural_split(s.axes[i].range) {
                Some(c) => s.split(i, c, Kind::Serial, false),
                None => i += 1,
            }
        }
        s
    }

    /// The largest constant by which a range is divided; the bits of a block of 32 are for unrolling.
    fn natural_split(&self, r: Ex<'g>) -> Option<i64> {
        let most = r.arg(0).bounds().1;
        let by = topo(&self.kernel.stores()).into_iter().filter_map(|e| match e.op() {
            Op::Binary(Binary::Div | Binary::Mod) if e.arg(0) == r => e.arg(1).as_int(),
            _ => None,
        });
        let reduced = self.kernel.stages.iter().any(|s| reductions(s.store).contains(&r));
        by.filter(|&c| c > 1 && c < most).max().filter(|_| most > 32 || most == 32 && !reduced)
    }

    fn plain(kernel: Kernel<'g>) -> Scheduled<'g> {
        Scheduled {
            args: kernel.buffers(),
            axes: keep::axes(&kernel),
            kernel,
            prefetch: 0,
            tile: None,
            warps: vec![],
            fours: vec![],
            guards: vec![],
            then: None,
        }
    }

    pub fn apply_all(mut self, opts: &[Opt], caps: &Caps) -> Result<Scheduled<'g>, Illegal> {
        for &o in opts {
            self.apply(o, caps)?;
        }
        Ok(self)
    }

    pub fn apply(&mut self, opt: Opt, caps: &Caps) -> Result<(), Illegal> {
        if opt.action == Action::Prefetch {
            self.prefetch = opt.n as i64 * 64;
            return Ok(());
        }
        let Some(&axis) = self.axes.get(opt.axis as usize) else { refuse!("{opt}: no such axis") };
        if axis.kind() != Kind::Serial {
            refuse!("{opt}: the axis is {:?} already", axis.kind());
        }
        let reduce = matches!(axis.role, Role::Reduce(_));
        let single = self.kernel.stages.len() == 1;
        let n = match (opt.n as i64, axis.extent()) {
            (0, Some(e)) => e,
            (0, None) if matches!(opt.action, Action::Grid | Action::Keep) => 0,
            (0, None) => refuse!("{opt}: the axis has no constant size"),
            (n, _) => n,
        };
        let threads = caps.lanes > 1;
        if let Role::Out(s) = axis.role
            && self.kernel.stages[s].store.op() == Op::TileProduct
        {
            refuse!("{opt}: the tile unit takes the stage as it is");
        }
        if axis.role == Role::Row
            && !single
            && !matches!(opt.action, Action::Grid | Action::Swap | Action::Keep)
        {
            refuse!("{opt}: the stages share local memory, which holds one row");
        }
        let lanes = matches!(opt.action, Action::Lane | Action::Vector | Action::Dot4);
        if lanes && self.warps.iter().any(|w| overlap(axis.role, Role::Out(w.stage))) {
            refuse!("{opt}: a warp's products have the lanes");
        }
        if opt.action != Action::Grid && self.bounds_another(axis.range) {
            refuse!("{opt}: another loop's rounds depend on this one");
        }
        match opt.action {
            Action::Grid if reduce => refuse!("{opt}: a reduction cannot be spread over the grid"),
            Action::Grid if axis.role != Role::Row && !single => {
                refuse!("{opt}: the stages of a kernel meet within one grid index")
            }
            Action::Grid if reads(axis.range.arg(0)) => {
                refuse!("{opt}: only the kernel knows how many there are")
            }
            Action::Grid => self.retag(opt.axis as usize, Kind::Grid),
            Action::Local if reduce || !threads => refuse!("{opt}: wants an output axis and threads"),
            Action::Local => self.split(opt.axis as usize, n, Kind::Local, false),
            Action::Group | Action::GroupTop | Action::Lane if !reduce || !threads => {
                refuse!("{opt}: wants a reduction and threads")
            }
            Action::Lane if !(n as u64).is_power_of_two() || n > caps.lanes as i64 => {
                refuse!("{opt}: {} threads exchange registers", caps.lanes)
            }
            Action::Lane => self.split_shared(opt.axis as usize, n, Kind::Lane),
            Action::Group => self.split_shared(opt.axis as usize, n, Kind::Group),
            Action::GroupTop => self.split(opt.axis as usize, n, Kind::Group, true),
            Action::Upcast if reduce || n > 16 => refuse!("{opt}: wants an output axis and at most 16"),
            Action::Upcast => self.split(opt.axis as usize, n, Kind::Upcast, false),
            Action::Unroll if n > 64 => refuse!("{opt}: too many copies"),
            Action::Unroll => self.split(opt.axis as usize, n, Kind::Unroll, false),
            Action::Vector if !(n as u64).is_power_of_two() || n > 64 => refuse!("{opt}: not a vector width"),
            Action::Vector if self.lanes(axis.role) * n > 64 => {
                refuse!("{opt}: more lanes than any vector has")
            }
            Action::Vector => self.split(opt.axis as usize, n, Kind::Vector, false),
            Action::Dot4 => {
                if !caps.dot4 || !reduce || axis.extent().is_none_or(|e| e % 4 != 0) {
                    refuse!("{opt}: wants a reduction by fours and the instruction");
                }
                let stores = self.kernel.stores();
                if !consumers(&stores, axis.range).iter().all(|f| is_byte_product(*f)) {
                    refuse!("{opt}: the reduction is no sum of u8·i8 products");
                }
                self.split(opt.axis as usize, 4, Kind::Vector, false);
                let whole = self.axes[opt.axis as usize];
                let inner = if whole.kind() == Kind::Vector { whole } else { *self.axes.last().unwrap() };
                self.fours.push(inner.range);
            }
            Action::Tile => {
                if !caps.tile || reduce || n != 16 || self.tile.is_some() {
                    refuse!("{opt}: wants an output axis by 16 and a tile unit");
                }
                self.split(opt.axis as usize, 16, Kind::Upcast, false);
                self.tile = Some(self.axes.last().unwrap().range);
                if self.axes[opt.axis as usize].kind() == Kind::Upcast {
                    self.tile = Some(self.axes[opt.axis as usize].range);
                }
            }
            Action::Split if !reduce => refuse!("{opt}: wants a reduction"),
            Action::Split => self.split_sum(opt.axis as usize, n)?,
            Action::Keep if threads && axis.role == Role::Row && !single => self.share()?,
            Action::Keep if reduce || threads => refuse!("{opt}: wants an output axis, and a CPU"),
            Action::Keep if tiles::sums_tiles(self.kernel.stages[0].store, axis.range) => match caps.tile {
                true => self.keep_tiles(opt.axis as usize)?,
                false => refuse!("{opt}: wants a tile unit"),
            },
            Action::Keep => self.keep(opt.axis as usize)?,
            Action::Mma if reduce || !caps.mma => refuse!("{opt}: wants an output axis and the unit"),
            Action::Mma => self.mma(opt.axis as usize, opt.n as usize)?,
            Action::Segment if reduce || threads || !single => {
                refuse!("{opt}: wants an output axis of one stage, and a CPU")
            }
            Action::Segment => self.segment(opt.axis as usize)?,
            Action::Swap => {
                let (a, b) = (opt.axis as usize, opt.n as usize);
                let Some(other) = self.axes.get(b) else { refuse!("{opt}: no such axis") };
                if other.role != axis.role || a == b {
                    refuse!("{opt}: not two axes of one kind");
                }
                let bounded =
                    |a: &Axis| topo(&[a.range.arg(0)]).iter().any(|e| matches!(e.op(), Op::Range(..)));
                if bounded(&axis) || bounded(other) || self.bounds_another(other.range) {
                    refuse!("{opt}: the rounds of one loop depend on another");
                }
                self.swap(a, b)
            }
            Action::Prefetch => unreachable!("handled above"),
        }
        Ok(())
    }

    fn bounds_another(&self, range: Ex<'g>) -> bool {
        self.axes.iter().any(|a| topo(&[a.range.arg(0)]).contains(&range))
    }

    /// Axes of a stage: the rows, its outputs and its reductions.
    pub fn of_stage(&self, s: usize) -> impl Iterator<Item = (usize, &Axis<'g>)> {
        self.axes.iter().enumerate().filter(move |(_, a)| overlap(a.role, Role::Out(s)))
    }

    /// Lanes that the vector axes have which are outputs, or reductions, of the same stage.
    fn lanes(&self, role: Role) -> i64 {
        let own =
            |a: &&Axis| a.kind() == Kind::Vector && !self.fours.contains(&a.range) && alike(a.role, role);
        self.axes.iter().filter(own).map(|a| a.extent().unwrap_or(1)).product()
    }

    /// Threads that a stage uses.
    pub fn threads(&self, s: usize) -> i64 {
        self.thread_axes(s).iter().map(|a| a.extent().unwrap_or(1)).product()
    }

    /// Axes of a stage that are spread over threads, each once, the fastest first: lanes must be neighbours.
    pub fn thread_axes(&self, s: usize) -> Vec<Axis<'g>> {
        let of =
            |k: Kind| self.of_stage(s).map(|(_, a)| *a).filter(move |a| a.kind() == k).collect::<Vec<_>>();
        let mut axes = of(Kind::Lane);
        let nest: Vec<Ex> = self.kernel.rows.iter().chain(&self.kernel.stages[s].outs).copied().collect();
        let mut outs = of(Kind::Local);
        let warp = self.warp(s).map(|w| w.thread);
        outs.sort_by_key(|a| (Some(a.range) != warp, std::cmp::Reverse(position(&nest, a.range))));
        axes.extend(outs);
        axes.extend(of(Kind::Group));
        let mut seen = HashSet::new();
        axes.retain(|a| seen.insert(a.range.id));
        axes
    }

    /// Threads that folds of the same stage share already, none of them inside one over `axis` nor around it.
    fn beside(&self, axis: Axis<'g>, n: i64, kind: Kind) -> Option<Ex<'g>> {
        let stores = self.kernel.stores();
        let own = consumers(&stores, axis.range);
        let beside = |shared: &Ex<'g>| {
            let others = consumers(&stores, *shared);
            let nested = |a: &Ex<'g>, b: &Ex<'g>| topo(&[*a]).contains(b);
            !own.iter().any(|a| others.iter().any(|b| nested(a, b) || nested(b, a)))
        };
        let shared = self.axes.iter().filter(|a| a.kind() == kind && overlap(a.role, axis.role));
        shared.filter(|a| a.extent() == Some(n)).map(|a| a.range).find(beside)
    }

    fn retag(&mut self, axis: usize, kind: Kind) {
        let old = self.axes[axis].range;
        let new = self.kernel.g.new_range(old.arg(0), kind);
        self.replace(old, new, &[new], None);
        self.axes[axis].range = new;
    }

    /// `r` becomes `outer·n + inner`, or `inner·size + outer` when the split takes the top.
    fn split(&mut self, axis: usize, n: i64, kind: Kind, top: bool) {
        let old = self.axes[axis];
        if old.extent() == Some(n) {
            return self.retag(axis, kind);
        }
        let inner = self.split_at(axis, None, n, kind, top);
        self.axes.push(Axis { range: inner, role: old.role });
    }

    /// As [`Scheduled::split`] for threads: folds side by side have the same ones.
    fn split_shared(&mut self, axis: usize, n: i64, kind: Kind) {
        let old = self.axes[axis];
        match self.beside(old, n, kind) {
            None => self.split(axis, n, kind, false),
            Some(inner) if old.extent() == Some(n) => {
                self.replace(old.range, inner, &[inner], None);
                self.axes[axis].range = inner;
            }
            inner => {
                self.split_at(axis, inner, n, kind, false);
            }
        }
    }

    /// The inner part is `inner` or a new range.
    fn split_at(&mut self, axis: usize, inner: Option<Ex<'g>>, n: i64, kind: Kind, top: bool) -> Ex<'g> {
        let (g, old) = (self.kernel.g, self.axes[axis]);
        let extent = old.range.arg(0);
        let outer = g.new_range(simplify1((extent + (n - 1)) / n), Kind::Serial);
        let inner = inner.unwrap_or_else(|| g.new_range(g.int(n), kind));
        let index = if top { inner * outer.arg(0) + outer } else { outer * n + inner };
        let guard = match old.extent() {
            Some(e) if e % n == 0 => None,
            None if simplify1(extent % n).as_int() == Some(0) => None,
            _ => Some(index.lt(extent)),
        };
        let order = if top { [inner, outer] } else { [outer, inner] };
        self.replace(old.range, index, &order, guard);
        self.axes[axis].range = outer;
        inner
    }

    /// Puts `index` for `old` everywhere; folds over `old` go over `ranges` instead. Where `guard` is false there is
    /// no element: nothing is stored, folded, or read past the end of a buffer or from what another row writes. Threads
    /// of a number that is not known until a step runs read nothing then: it would come from far.
    fn replace(&mut self, old: Ex<'g>, index: Ex<'g>, ranges: &[Ex<'g>], guard: Option<Ex<'g>>) {
        let g = self.kernel.g;
        let stores = self.kernel.stores();
        let before: Vec<bool> = stores.iter().map(|s| free(*s, old)).collect();
        // How far a range goes that a symbol or memory bounds is not known: the bounds of an index say nothing of its last round.
        let known = old.arg(0).as_int().is_some();
        let thread = |r: &Ex| matches!(r.op(), Op::Range(_, Kind::Lane | Kind::Group));
        let idle = !known && ranges.iter().any(thread);
        // The number of rounds of one range may depend on another.
        let inner: Vec<Ex> =
            self.axes.iter().map(|a| a.range).filter(|r| *r != old && topo(&[*r]).contains(&old)).collect();
        let guards: Vec<Ex> = self.guards.iter().copied().filter(|g| topo(&[*g]).contains(&old)).collect();
        let gated_already =
            |e: Ex<'g>| e.args().get(2).is_some_and(|g| conjuncts(*g).iter().any(|c| guards.contains(c)));
        let roots = [stores.clone(), inner.clone(), self.guards.clone()].concat();
        let mut new = rebuild(&roots, |e, args| match e.op() {
            _ if e == old => index,
            Op::Fold(fold, n) => {
                let (bodies, over) = args.split_at(n as usize);
                if !e.args()[n as usize..].contains(&old) {
                    return e.with_args(&args);
                }
                let identity = g.constant(e.dtype(), fold.identity(e.dtype().scalar));
                let mut args: Vec<Ex> =
                    bodies.iter().map(|&b| guard.map_or(b, |c| c.select(b, identity))).collect();
                for &r in over {
                    if r == index { args.extend(ranges) } else { args.push(r) }
                }
                e.with_args(&args)
            }
            Op::Load if guard.is_some() => {
                // What another row writes to this memory is not there to be read.
                let shared =
                    matches!(args[0].op(), Op::Buffer(_)) && stores.iter().any(|s| s.arg(0) == args[0]);
                let moved = args[1] != e.arg(1);
                let (was, now) = (e.arg(1).bounds().1, args[1].bounds().1);
                let there = known && now <= was || now < length(args[0]).bounds().0;
                if !moved || gated_already(e) || !shared && !idle && there {
                    return e.with_args(&args);
                }
                gated(e, args, 2, guard.unwrap())
            }
            _ => e.with_args(&args),
        });
        let guards = new.split_off(stores.len() + inner.len());
        for (was, now) in inner.into_iter().zip(new.split_off(stores.len())) {
            self.axes.iter_mut().filter(|a| a.range == was).for_each(|a| a.range = now);
            let lists = self.kernel.stages.iter_mut().map(|s| &mut s.outs).chain([&mut self.kernel.rows]);
            lists.for_each(|list| replace_in(list, was, &[now]));
        }
        if let Some(guard) = guard {
            for (s, depends) in new.iter_mut().zip(before) {
                if depends {
                    *s = gated(*s, s.args(), 3, guard);
                }
            }
        }
        // What memory bounds may be bounded by what another axis chooses, which is no bound of that one.
        let own = guard.filter(|g| !known && !reads(*g));
        let mut new = simplify(&[new, guards, own.into_iter().collect()].concat());
        self.guards = new.split_off(stores.len());
        for (stage, store) in self.kernel.stages.iter_mut().zip(new) {
            stage.store = store;
            replace_in(&mut stage.outs, old, ranges);
        }
        replace_in(&mut self.kernel.rows, old, ranges);
    }

    /// Element s of the axis becomes element j of segment i.
    fn segment(&mut self, axis: usize) -> Result<(), Illegal> {
        let (g, old) = (self.kernel.g, self.axes[axis]);
        let stores = self.kernel.stores();
        let found: Vec<Ex> =
            topo(&stores).into_iter().filter(|e| e.op() == Op::Segment && free(*e, old.range)).collect();
        let ([chosen], Some(most)) = (&found[..], old.extent()) else {
            refuse!("segment: the axis chooses no segments, or several")
        };
        let element = chosen.arg(0);
        if element.op() != Op::Load || element.arg(1) != old.range {
            refuse!("segment: the axis is only a part of what the segments divide");
        }
        let Some(n) = self.segments(*chosen) else { refuse!("segment: the starts are not in memory") };
        let i = g.new_range(g.int(n), Kind::Serial);
        let own = HashMap::from([(chosen.arg(0).id, i.cast(Scalar::I32))]);
        let place = simplify(&substitute(&[chosen.arg(1), chosen.arg(2)], &own));
        let [start, end] = [place[0], place[1]].map(|e| e.cast(Scalar::I64));
        let j = g.new_range(simplify1((end - start).max(0).min(most)), Kind::Serial);
        let chosen = HashMap::from([(chosen.id, i.cast(Scalar::I32))]);
        for stage in &mut self.kernel.stages {
            stage.store = substitute(&[stage.store], &chosen)[0];
        }
        self.replace(old.range, simplify1(start + j), &[i, j], None);
        self.axes[axis].range = i;
        self.axes.push(Axis { range: j, role: old.role });
        Ok(())
    }

    /// How many segments an index chooses from, if their starts are in memory.
    fn segments(&self, chosen: Ex<'g>) -> Option<i64> {
        let starts = topo(&[chosen.arg(1)]).into_iter().rfind(|e| e.op() == Op::Load)?;
        Some(length(starts.arg(0)).as_int()? - 1)
    }

    fn swap(&mut self, a: usize, b: usize) {
        let (ra, rb) = (self.axes[a].range, self.axes[b].range);
        let exchange = |list: &mut Vec<Ex<'g>>| {
            if let (Some(i), Some(j)) = (position(list, ra), position(list, rb)) {
                list.swap(i, j);
            }
        };
        exchange(&mut self.kernel.rows);
        for stage in &mut self.kernel.stages {
            exchange(&mut stage.outs);
        }
        let stores = rebuild(&self.kernel.stores(), |e, args| match e.op() {
            Op::Fold(_, n) => {
                let mut over = args[n as usize..].to_vec();
                exchange(&mut over);
                e.with_args(&[&args[..n as usize], &over].concat())
            }
            _ => e.with_args(&args),
        });
        for (stage, store) in self.kernel.stages.iter_mut().zip(stores) {
            stage.store = store;
        }
    }

    /// Ranges numbered by depth: rows, outputs, then reductions, outermost first. Sums order their terms by these
    /// numbers, so what an outer loop fixes is added up outside the inner one.
    pub fn numbered(&self) -> Scheduled<'g> {
        let g = self.kernel.g;
        let mut order = self.kernel.rows.clone();
        order.extend(self.kernel.stages.iter().flat_map(|s| s.outs.iter().copied()));
        order.extend(self.kernel.stages.iter().flat_map(|s| reductions(s.store)));
        order.sort_by_key(|r| matches!(r.op(), Op::Range(_, Kind::Upcast | Kind::Unroll | Kind::Vector)));
        let mut map: HashMap<Id, Ex> = HashMap::new();
        for (i, r) in order.iter().enumerate() {
            let Op::Range(_, kind) = r.op() else { unreachable!("axes are ranges") };
            let rounds = substitute(&r.args(), &map);
            map.insert(r.id, g.make(Op::Range(i as u32, kind), r.dtype(), &rounds));
        }
        let new = |e: Ex<'g>| map.get(&e.id).copied().unwrap_or(e);
        let stores = rebuild(&self.kernel.stores(), |e, args| match e.op() {
            Op::Range(..) => new(e),
            Op::Segment => args[0],
            _ => e.with_args(&args),
        });
        let stages = self
            .kernel
            .stages
            .iter()
            .zip(simplify(&stores))
            .map(|(s, store)| Stage { outs: s.outs.iter().map(|&r| new(r)).collect(), store });
        Scheduled {
            kernel: Kernel {
                g,
                name: self.kernel.name.clone(),
                rows: self.kernel.rows.iter().map(|&r| new(r)).collect(),
                stages: stages.collect(),
            },
            args: self.args.clone(),
            axes: self.axes.iter().map(|a| Axis { range: new(a.range), role: a.role }).collect(),
            prefetch: self.prefetch,
            tile: self.tile.map(new),
            warps: self.warps.iter().map(|w| w.each(new)).collect(),
            fours: self.fours.iter().map(|&r| new(r)).collect(),
            guards: vec![],
            then: self.then.clone(),
        }
    }
}

fn overlap(a: Role, b: Role) -> bool {
    match (a, b) {
        (Role::Row, _) | (_, Role::Row) => true,
        (Role::Out(x) | Role::Reduce(x), Role::Out(y) | Role::Reduce(y)) => x == y,
    }
}

/// Are both outputs of a stage, or both reductions?
fn alike(a: Role, b: Role) -> bool {
    let reduces = |r: Role| matches!(r, Role::Reduce(_));
    overlap(a, b) && reduces(a) == reduces(b)
}

fn position(list: &[Ex], e: Ex) -> Option<usize> {
    list.iter().position(|x| *x == e)
}

fn replace_in<'g>(list: &mut Vec<Ex<'g>>, old: Ex<'g>, new: &[Ex<'g>]) {
    if let Some(i) = position(list, old) {
        list.splice(i..=i, new.iter().copied());
    }
}

/// What a condition is the conjunction of.
fn conjuncts(e: Ex) -> Vec<Ex> {
    match e.op() {
        Op::Binary(Binary::And) => [conjuncts(e.arg(0)), conjuncts(e.arg(1))].concat(),
        _ => vec![e],
    }
}

/// The node with a condition added at argument `at`.
fn gated<'g>(e: Ex<'g>, mut args: Vec<Ex<'g>>, at: usize, gate: Ex<'g>) -> Ex<'g> {
    match args.get(at).copied() {
        Some(g) => args[at] = if g == gate { g } else { g & gate },
        None => args.push(gate),
    }
    e.with_args(&args)
}

/// How far apart in memory a load or store has neighbours along the range.
fn step(access: Ex, range: Ex) -> Option<i64> {
    affine(access.arg(1), &[range]).map(|(_, s)| s[0])
}

/// Does the expression depend on what memory holds?
fn reads(e: Ex) -> bool {
    topo(&[e]).iter().any(|e| e.op() == Op::Load)
}

/// Does the expression depend on the range outside of folds over it?
fn free(e: Ex, range: Ex) -> bool {
    let mut found: HashMap<Id, bool> = HashMap::new();
    for n in topo(&[e]) {
        let args = n.args();
        let f = match n.op() {
            Op::Range(..) => n == range,
            Op::Fold(_, k) if args[k as usize..].contains(&range) => false,
            _ => args.iter().any(|a| found[&a.id]),
        };
        found.insert(n.id, f);
    }
    found[&e.id]
}

/// Ranges that folds below the store consume, outer folds first.
pub fn reductions<'g>(store: Ex<'g>) -> Vec<Ex<'g>> {
    let mut out: Vec<Ex> = vec![];
    for e in topo(&[store]).into_iter().rev() {
        if let Op::Fold(_, n) = e.op() {
            out.extend(
                e.args()[n as usize..].iter().copied().filter(|r| !out.contains(r)).collect::<Vec<_>>(),
            );
        }
    }
    out
}

/// Folds that consume the range.
pub fn consumers<'g>(stores: &[Ex<'g>], range: Ex<'g>) -> Vec<Ex<'g>> {
    let over = |e: &Ex<'g>| matches!(e.op(), Op::Fold(_, n) if e.args()[n as usize..].contains(&range));
    topo(stores).into_iter().filter(over).collect()
}

/// Is this a sum of u8·i8 products, each widened to i32? The factors, the unsigned one first.
pub fn byte_factors<'g>(body: Ex<'g>) -> Option<(Ex<'g>, Ex<'g>)> {
    use crate::dtype::Scalar::{I8, I32, U8};
    let narrow = |e: Ex<'g>| (e.op() == Op::Cast && e.dtype().scalar == I32).then(|| e.arg(0));
    if body.op() != Op::Binary(Binary::Mul) {
        return None;
    }
    let (a, b) = (narrow(body.arg(0))?, narrow(body.arg(1))?);
    match (a.dtype().scalar, b.dtype().scalar) {
        (U8, I8) => Some((a, b)),
        (I8, U8) => Some((b, a)),
        _ => None,
    }
}

pub fn is_byte_product(fold: Ex) -> bool {
    matches!(fold.op(), Op::Fold(Fold::Sum, 1)) && byte_factors(fold.arg(0)).is_some()
}
