//! Better schedules by trying: a beam over lists of options, each timed by the caller.
//!
//! In: a kernel, the target's capabilities, and a callback that measures one schedule (none if it does not compile or
//! run). Out: the fastest schedule seen. A step changes one option ([`neighbours`]); whatever [`moves`] can lead to must compute
//! the right result, which the tests check on random walks ([`random`]).

use super::{Action, Opt, Role, Scheduled, mma};
use crate::codegen::Caps;
use crate::graph::{Ex, Kind, Op, topo};
use crate::hash::IdMap;
use crate::rng::Rng;
use crate::schedule::{Kernel, Stage};
use std::collections::HashSet;
use std::ops::ControlFlow;

/// Most copies of one expression: a kernel that has more is longer than a processor keeps instructions, and takes seconds to
/// compile.
const COPIES: i64 = 256;

/// Options that apply to this schedule.
pub fn moves(s: &Scheduled, caps: &Caps) -> Vec<Opt> {
    let mut out = offers(s);
    out.retain(|&o| after(s, o, caps).is_some());
    out
}

/// The schedule with one option more, if it applies.
fn after<'g>(s: &Scheduled<'g>, o: Opt, caps: &Caps) -> Option<Scheduled<'g>> {
    let mut s = s.clone();
    s.apply(o, caps).ok()?;
    fits(&s, caps).then_some(s)
}

/// Do blocks stay within their threads and code within reason?
fn fits(s: &Scheduled, caps: &Caps) -> bool {
    let threads = |i| s.threads(i) <= caps.max_threads as i64;
    (0..s.kernel.stages.len()).all(threads) && copies(s) <= COPIES
}

/// How often the innermost expression of the kernel stands in its code: what is made of each store and, in it, of nested
/// folds. Each lane of an output whose sum goes along lanes too has a body of its own. What a warp's product takes in, four
/// bodies of a sum among it, is no copy.
pub fn copies(s: &Scheduled) -> i64 {
    let product: Vec<Ex> = s.warps.iter().flat_map(|w| [w.half, w.side, w.part]).collect();
    let copied = |r: &Ex| matches!(r.op(), Op::Range(_, Kind::Upcast | Kind::Unroll)) && !product.contains(r);
    let times = |ranges: &[Ex]| -> i64 {
        ranges.iter().filter(|r| copied(r)).map(|r| r.arg(0).as_int().unwrap_or(1)).product()
    };
    let lanes = |r: &&Ex| matches!(r.op(), Op::Range(_, Kind::Vector));
    let of_stage = |(i, stage): (usize, &Stage)| {
        let outs = s.kernel.rows.iter().chain(&stage.outs);
        let beside: i64 = outs.filter(lanes).map(|r| r.arg(0).as_int().unwrap_or(1)).product();
        let mut below: IdMap<i64> = IdMap::default();
        for e in topo(&[stage.store]) {
            let args = e.args();
            let most = args.iter().map(|a| below[&a.id]).fold(1, i64::max);
            let own = if let Op::Fold(_, n) = e.op() {
                let over = &args[n as usize..];
                times(over) * if over.iter().any(|r| lanes(&r) && !s.fours.contains(r)) { beside } else { 1 }
            } else {
                1
            };
            below.insert(e.id, own * most);
        }
        let all = times(&s.kernel.rows) * times(&stage.outs) * below[&stage.store.id];
        if s.warp(i).is_some() { all / mma::PARTS } else { all }
    };
    s.kernel.stages.iter().enumerate().map(of_stage).max().unwrap_or(1)
}

/// Options that may apply to this schedule.
fn offers(s: &Scheduled) -> Vec<Opt> {
    let mut out = vec![];
    for (i, a) in s.axes.iter().enumerate().filter(|(_, a)| a.kind() == Kind::Serial) {
        let extent = a.extent();
        let fits = |n: usize| extent.is_none_or(|e| e >= n as i64);
        let mut offer = |action: Action, sizes: &[usize]| {
            out.extend(sizes.iter().filter(|&&n| n == 0 || fits(n)).map(|&n| action.on(i, n)));
        };
        let small = extent.is_some_and(|e| e <= 32);
        match a.role {
            Role::Reduce(_) => {
                offer(Action::Unroll, if small { &[0, 2, 4] } else { &[2, 4] });
                offer(Action::Lane, &[4, 8, 16, 32]);
                offer(Action::Group, &[2, 4, 8]);
                offer(Action::GroupTop, &[2, 4, 8]);
                offer(Action::Dot4, &[0]);
                offer(Action::Split, &[2, 4, 8]);
            }
            _ => {
                offer(Action::Upcast, if small { &[0, 2, 3, 4] } else { &[2, 3, 4, 8] });
                offer(Action::Local, &[2, 4, 8, 16, 32, 64]);
                offer(Action::Grid, &[0]);
                offer(Action::Tile, &[16]);
                offer(Action::Keep, &[0]);
                offer(Action::Segment, &[0]);
            }
        }
        offer(Action::Vector, &[4, 8, 16]);
        for j in i + 1..s.axes.len() {
            out.push(Action::Swap.on(i, j));
        }
        let summed = |j: &usize| matches!(s.axes[*j].role, Role::Reduce(_));
        if !summed(&i) {
            out.extend((0..s.axes.len()).filter(summed).map(|j| Action::Mma.on(i, j)));
        }
    }
    out.extend(
        [0, 8, 16, 32, 64, 128]
            .map(|n| Action::Prefetch.on(0, n))
            .into_iter()
            .filter(|o| o.n as i64 * 64 != s.prefetch),
    );
    out
}

/// A random walk of at most `steps` moves, each of those that apply being as likely. Some do not compile.
pub fn walk(kernel: &Kernel, caps: &Caps, rng: &mut Rng, steps: usize) -> Vec<Opt> {
    let mut s = Scheduled::new(kernel.clone());
    let mut opts = vec![];
    for _ in 0..rng.below(steps + 1) {
        let mut choices = offers(&s);
        let next = std::iter::from_fn(|| {
            (!choices.is_empty()).then(|| choices.swap_remove(rng.below(choices.len())))
        });
        let Some((o, next)) = next.into_iter().find_map(|o| Some((o, after(&s, o, caps)?))) else { break };
        opts.push(o);
        s = next;
    }
    opts
}

/// As [`walk`], cut back to what compiles, as judged by `legal`.
pub fn random(
    kernel: &Kernel,
    caps: &Caps,
    rng: &mut Rng,
    steps: usize,
    legal: impl Fn(&[Opt]) -> bool,
) -> Vec<Opt> {
    cut_back(walk(kernel, caps, rng, steps), legal)
}

/// As many of the first options as `legal` takes.
pub fn cut_back(mut opts: Vec<Opt>, legal: impl Fn(&[Opt]) -> bool) -> Vec<Opt> {
    while !opts.is_empty() && !legal(&opts) {
        opts.pop();
    }
    opts
}

/// Schedules one change away: another option on the same axis, one less, or one more; what is left of the outputs goes to
/// the grid. What takes long to check is checked when it is asked for.
pub fn neighbours(kernel: &Kernel, caps: &Caps, opts: &[Opt]) -> impl Iterator<Item = Vec<Opt>> {
    let grid = |o: &Opt| o.action == Action::Grid;
    let body: Vec<Opt> = opts.iter().copied().filter(|o| !grid(o)).collect();
    let mut out = vec![];
    let mut s = Scheduled::new(kernel.clone());
    for (i, old) in body.iter().enumerate() {
        let (before, after) = (&body[..i], &body[i + 1..]);
        let prefetch = |o: &Opt| o.action == Action::Prefetch;
        let same = |o: &Opt| o.axis == old.axis && prefetch(o) == prefetch(old) && o != old;
        out.extend(
            offers(&s).into_iter().filter(|o| same(o) && !grid(o)).map(|o| [before, &[o], after].concat()),
        );
        out.push([before, after].concat());
        if s.apply(*old, caps).is_err() {
            break;
        }
    }
    // The same behind a split, whose pieces are one axis more.
    let behind = |o: &Opt| match o.action {
        Action::Prefetch => *o,
        Action::Swap => Action::Swap.on(o.axis as usize + 1, o.n as usize + 1),
        action => action.on(o.axis as usize + 1, o.n as usize),
    };
    let splits = offers(&Scheduled::new(kernel.clone())).into_iter().filter(|o| o.action == Action::Split);
    out.extend(splits.map(|o| [o].into_iter().chain(body.iter().map(behind)).collect()));
    let mut more = offers(&s);
    // There are many, and few matter.
    more.sort_by_key(|o| o.action == Action::Swap);
    out.extend(more.into_iter().filter(|o| !grid(o)).map(|o| [body.as_slice(), &[o]].concat()));
    out.into_iter().filter_map(|body| spread(kernel, caps, body))
}

/// With the output axes that are still loops on the grid; none if the options do not apply.
fn spread(kernel: &Kernel, caps: &Caps, mut opts: Vec<Opt>) -> Option<Vec<Opt>> {
    let mut s = Scheduled::new(kernel.clone()).apply_all(&opts, caps).ok()?;
    let fits = fits(&s, caps);
    for i in 0..s.axes.len() {
        let output = !matches!(s.axes[i].role, Role::Reduce(_));
        let o = Action::Grid.on(i, 0);
        if output && s.axes[i].kind() == Kind::Serial && s.apply(o, caps).is_ok() {
            opts.push(o);
        }
    }
    fits.then_some(opts)
}

/// Beam search from some schedules, each tried once. `measure` gives none for what does not run, and breaks off when it is
/// time to stop.
pub fn search(
    kernel: &Kernel,
    caps: &Caps,
    starts: &[Vec<Opt>],
    width: usize,
    mut measure: impl FnMut(&[Opt]) -> ControlFlow<(), Option<f64>>,
) -> Option<(Vec<Opt>, f64)> {
    let (mut tried, mut stopped) = (HashSet::new(), false);
    let mut timed = |all: &mut dyn Iterator<Item = Vec<Opt>>, times: &mut Vec<(Vec<Opt>, f64)>| {
        for opts in all.filter(|opts| tried.insert(opts.clone())) {
            match measure(&opts) {
                ControlFlow::Continue(time) => times.extend(time.map(|t| (opts, t))),
                ControlFlow::Break(()) => return ControlFlow::Break(()),
            }
        }
        ControlFlow::Continue(())
    };
    let mut beam = vec![];
    let _ = timed(&mut starts.iter().cloned(), &mut beam);
    beam.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut best = beam.first()?.clone();
    while !stopped {
        let mut next = vec![];
        stopped =
            beam.iter().any(|(opts, _)| timed(&mut neighbours(kernel, caps, opts), &mut next).is_break());
        next.sort_by(|a, b| a.1.total_cmp(&b.1));
        next.truncate(width);
        match next.first() {
            Some(first) if first.1 < best.1 => best = first.clone(),
            _ => break,
        }
        beam = next;
    }
    Some(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codegen::Target;
    use crate::codegen::x86::{Features, X86};
    use crate::graph::Graph;
    use crate::kernel::heuristic;
    use crate::pipeline;
    use crate::quant::{Format, Layout};
    use crate::schedule::Grain;
    use crate::table::Case;
    use std::slice::from_ref;

    /// The first kernel of a product, with the heuristic's schedule.
    fn with_product(go: impl FnOnce(&Kernel, &Caps, Vec<Opt>)) {
        let caps = X86::new(Features { avx512: true, vnni: true, ..Features::default() }).caps();
        let case = Case::linear(Format::by_name("Q4_0").unwrap(), 64, 128, 1);
        let g = Graph::new();
        let program = pipeline::schedule(&g, &case.build(&g, Layout::Interleaved16).outputs, Grain::CPU);
        let start = heuristic::propose(&program.kernels[0], &caps);
        go(&program.kernels[0], &caps, start);
    }

    #[test]
    fn neighbours_apply_and_differ() {
        with_product(|kernel, caps, start| {
            let all: Vec<Vec<Opt>> = neighbours(kernel, caps, &start).collect();
            assert!(all.len() > 10, "{}", all.len());
            for opts in &all {
                Scheduled::new(kernel.clone()).apply_all(opts, caps).unwrap();
            }
            let shorter = all.iter().any(|o| o.len() < start.len());
            let longer = all.iter().any(|o| o.len() > start.len());
            let resized = all.iter().any(|o| o.len() == start.len() && *o != start);
            assert!(shorter && longer && resized);
        });
    }

    #[test]
    fn copies_are_counted_through_stores_and_folds_and_limited() {
        with_product(|kernel, caps, start| {
            let of = |opts: &str| {
                let opts = crate::kernel::parse(opts).unwrap();
                copies(&Scheduled::new(kernel.clone()).apply_all(&opts, caps).unwrap())
            };
            assert_eq!(of(""), 1);
            // Four rows, by four blocks of eight fours each.
            assert_eq!(of("upcast(0,0) dot4(2,0) unroll(2,0) unroll(1,0)"), 4 * 4 * 8);
            let all = neighbours(kernel, caps, &start)
                .map(|o| copies(&Scheduled::new(kernel.clone()).apply_all(&o, caps).unwrap()));
            assert!(all.max() <= Some(COPIES));
            let mut rng = Rng::new(1);
            for _ in 0..50 {
                let opts = walk(kernel, caps, &mut rng, 12);
                assert!(copies(&Scheduled::new(kernel.clone()).apply_all(&opts, caps).unwrap()) <= COPIES);
            }
        });
    }

    #[test]
    fn a_search_goes_downhill_and_stops_when_told() {
        with_product(|kernel, caps, start| {
            let far = |opts: &[Opt]| opts.iter().find(|o| o.action == Action::Prefetch).map_or(0, |o| o.n);
            let cost = |opts: &[Opt]| 1000.0 - far(opts) as f64 + opts.len() as f64;
            let mut tried = HashSet::new();
            let (best, _) = search(kernel, caps, from_ref(&start), 2, |opts| {
                assert!(tried.insert(opts.to_vec()), "twice: {opts:?}");
                ControlFlow::Continue(Some(cost(opts)))
            })
            .unwrap();
            assert_eq!(far(&best), 128);
            let mut left = 5;
            let found = search(kernel, caps, from_ref(&start), 2, |opts| {
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(Some(cost(opts))) }
            });
            assert!(left == 0 && found.is_some());
            assert_eq!(search(kernel, caps, &[start], 2, |_| ControlFlow::Continue(None)), None);
        });
    }
}
