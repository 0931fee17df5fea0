//! Which kernels are legal, from the scheduler to the last pass before linearisation: stores in, the first [`Violation`]
//! out.
//!
//! Every store depends only on its kernel's rows and its stage's output ranges, memory is touched only by loads and
//! stores, and the kinds of ranges and the widths of values are those that the [`Level`] allows.

use super::linear::{Check, ensure};
use super::{Violation, elementwise, is_index};
use crate::dtype::{DType, Scalar};
use crate::graph::{Ex, Id, Kind, List, Op, topo};
use crate::linear;
use crate::rewrite::Ranges;
use crate::schedule::Kernel;
use crate::text;

/// How far a kernel has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// One store a stage, any kind of range.
    Kernel,
    /// Copies have taken the place of `Upcast` and `Unroll` ranges.
    Expanded,
    /// Lanes have taken the place of `Vector` ranges.
    Vectorised,
}

/// Panics with the kernel and the offending node unless it is legal.
pub fn verify(kernel: &Kernel) {
    let stages: Vec<Vec<Ex>> = kernel.stages.iter().map(|s| vec![s.store]).collect();
    verify_stages(kernel, &stages, Level::Kernel);
}

/// As [`verify`], for the stores that a pass has made of each stage.
pub fn verify_stages(kernel: &Kernel, stages: &[Vec<Ex>], level: Level) {
    if let Err(v) = check(kernel, stages, level) {
        let stores = stages.concat();
        panic!("{}", v.report(&format!("{}\n{}", text::stages(kernel, stages), text::graph::print(&stores))));
    }
}

pub fn check(kernel: &Kernel, stages: &[Vec<Ex>], level: Level) -> Result<(), Violation> {
    let mut ranges = Ranges::new();
    for e in topo(&stages.concat()) {
        node(e, level).map_err(|why| Violation { at: e.id, why })?;
    }
    for (stage, stores) in kernel.stages.iter().zip(stages) {
        let given: Vec<Id> = kernel.rows.iter().chain(&stage.outs).map(|r| r.id).collect();
        for &s in stores {
            let fail = |why: &str| Violation { at: s.id, why: why.into() };
            if !matches!(s.op(), Op::Store | Op::TileProduct) {
                return Err(fail("a stage ends in stores"));
            }
            if ranges.of(s).iter().any(|r| !given.contains(r)) {
                return Err(fail("depends on a range that is neither row nor output"));
            }
        }
    }
    Ok(())
}

fn node(e: Ex, level: Level) -> Check {
    let (n, args) = (e.node(), e.args());
    ensure(n.dtype.lanes == 1 || level > Level::Kernel, || format!("{} before vectors", n.dtype))?;
    ensure(n.dtype.lanes > 0, || "no lanes".into())?;
    if let Some(op) = linear::Op::of(n.op) {
        return elementwise(e, &op);
    }
    ensure(n.shape == List::EMPTY || matches!(n.op, Op::Buffer(_)), || "has a shape".into())?;
    match n.op {
        Op::Symbol(_) => ensure(args.is_empty() && is_index(e), || "a symbol is an index".into()),
        Op::Buffer(i) => {
            ensure(e.g.has_buffer(i) && n.dtype.lanes == 1, || "elements of memory are scalars".into())
        }
        Op::Local(_) => {
            let constant = matches!(args[..], [len] if len.as_int().is_some_and(|n| n > 0));
            ensure(constant && n.dtype.lanes == 1, || "local memory has a constant size".into())
        }
        Op::Range(_, kind) => range(e, kind, level),
        Op::Fold(fold, bodies) => {
            let k = bodies as usize;
            ensure(k >= 1 && args.len() >= k, || format!("{k} bodies in {} arguments", args.len()))?;
            let (bodies, over) = args.split_at(k);
            ensure(bodies.iter().all(|b| b.dtype() == n.dtype), || "a body of another type".into())?;
            ensure(fold.binary().takes(n.dtype.scalar), || format!("does not take {}", n.dtype))?;
            let distinct = over.iter().enumerate().all(|(i, r)| !over[..i].contains(r));
            let ranges = over.iter().all(|r| matches!(r.op(), Op::Range(..)));
            ensure(ranges && distinct, || "a fold is over different ranges".into())
        }
        Op::Load | Op::LoadLanes => {
            ensure((2..=3).contains(&args.len()), || format!("{} arguments", args.len()))?;
            access(e, args[0], n.dtype, args.get(2))?;
            let index = if n.op == Op::Load { DType::INDEX } else { DType::I32.with_lanes(n.dtype.lanes) };
            ensure(args[1].dtype() == index, || format!("index is {}, not {index}", args[1].dtype()))
        }
        Op::Store => {
            ensure((3..=4).contains(&args.len()), || format!("{} arguments", args.len()))?;
            access(e, args[0], args[2].dtype(), args.get(3))?;
            ensure(is_index(args[1]), || format!("index is {}", args[1].dtype()))
        }
        Op::TileDot(_) => tile(e, &args, level),
        Op::Mma => {
            let [acc, first, second, b, thread] = args[..] else { return Err("five arguments".into()) };
            let threads =
                matches!(thread.op(), Op::Range(_, Kind::Local)) && thread.arg(0).as_int() == Some(32);
            ensure(threads, || "a product of 32 threads".into())?;
            let sums = Scalar::F32.vec(4);
            ensure(n.dtype == sums && acc.dtype() == sums, || format!("sums are {sums}"))?;
            let inputs = [Scalar::BF16, Scalar::F16].map(|s| s.vec(4));
            let held = [first, second, b].iter().all(|e| e.dtype() == b.dtype());
            let right = held && inputs.contains(&b.dtype());
            ensure(right && level > Level::Kernel, || "each thread holds four of 16 bits".into())
        }
        Op::Segment => {
            let ints = args.len() == 3 && args.iter().all(|a| a.dtype() == DType::I32);
            ensure(ints && level == Level::Kernel, || "a segment and its place, before expansion".into())
        }
        Op::TileProduct => {
            let [c, a, b, at @ ..] = &args[..] else { return Err("too few arguments".into()) };
            ensure(at.len() == 6 && at.iter().all(|i| is_index(*i)), || "six indices".into())?;
            let known = at[3].as_int().is_some() && at[4].as_int().is_some();
            ensure(known, || "rows and steps are a known number of elements apart".into())?;
            access(e, *c, DType::F32, None)?;
            let half = |m: &Ex| matches!(m.op(), Op::Buffer(_) | Op::Local(_)) && m.dtype() == DType::BF16;
            ensure(half(a) && half(b), || "products are of bf16".into())
        }
        Op::TileRow => {
            let of_tile = matches!(args[..], [t, m] if matches!(t.op(), Op::TileDot(_)) && is_index(m));
            ensure(of_tile, || "a row is of a tile".into())?;
            ensure(n.dtype == args[0].dtype(), || format!("{} of {}", n.dtype, args[0].dtype()))?;
            let known = args[1].as_int().is_some_and(|m| (0..16).contains(&m));
            ensure(known || level == Level::Kernel, || "rows of a tile are known".into())
        }
        op => Err(format!("{op:?} at the level {level:?}")),
    }
}

fn range(e: Ex, kind: Kind, level: Level) -> Check {
    ensure(matches!(e.args()[..], [n] if is_index(n)) && is_index(e), || {
        "a range is an index below an index".into()
    })?;
    let gone = match kind {
        Kind::Upcast | Kind::Unroll => Level::Expanded,
        Kind::Vector => Level::Vectorised,
        _ => return Ok(()),
    };
    ensure(level < gone, || format!("{kind:?} at the level {level:?}"))?;
    ensure(e.arg(0).as_int().is_some(), || format!("{kind:?} without a constant size"))
}

/// A value of type `t` in memory, behind a gate.
fn access(e: Ex, mem: Ex, t: DType, gate: Option<&Ex>) -> Check {
    ensure(matches!(mem.op(), Op::Buffer(_) | Op::Local(_)), || format!("{:?} is no memory", mem.op()))?;
    let element = mem.dtype().scalar;
    ensure(t.scalar == element && e.dtype().scalar == element, || format!("{t} in a memory of {element}"))?;
    let Some(g) = gate.map(|g| g.dtype()) else { return Ok(()) };
    ensure(g == DType::BOOL || g == DType::BOOL.with_lanes(t.lanes), || format!("a gate of {g} for {t}"))
}

/// One input and one column until there are vectors; then four and sixteen.
fn tile(e: Ex, args: &[Ex], level: Level) -> Check {
    ensure((3..=18).contains(&args.len()), || format!("{} arguments", args.len()))?;
    ensure(is_index(args[1]), || format!("index is {}", args[1].dtype()))?;
    let (a, inputs, lanes) = match level {
        Level::Vectorised => (args[0].dtype(), Scalar::U8.vec(64), 16),
        _ => (args[0].dtype(), DType::U8, 1),
    };
    ensure(a == DType::I8 && e.dtype() == Scalar::I32.vec(lanes), || {
        format!("{} from rows of {a}", e.dtype())
    })?;
    ensure(args[2..].iter().all(|b| b.dtype() == inputs), || format!("columns are {inputs}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Bits;
    use crate::graph::Graph;
    use crate::pipeline;
    use crate::scalar::Fold;
    use crate::schedule::Stage;

    fn kernel<'g>(g: &'g Graph, rows: &[Ex<'g>], store: Ex<'g>) -> Kernel<'g> {
        Kernel { g, name: "k".into(), rows: rows.to_vec(), stages: vec![Stage { outs: vec![], store }] }
    }

    #[test]
    fn what_the_scheduler_makes_is_legal() {
        let g = Graph::new();
        let x = g.input("x", DType::F32, [8, 64]);
        for k in &pipeline::schedule(&g, &[x.softmax(-1), x.gather(x.argmax(1))], crate::schedule::Grain::CPU)
            .kernels
        {
            verify(k);
        }
    }

    #[test]
    fn violations_are_named() {
        let g = Graph::new();
        let x = g.input("x", DType::F32, [8]).0;
        let r = g.new_range(g.int(8), Kind::Serial);
        let load = |i| g.make(Op::Load, DType::F32, &[x, i]);
        let store = |v: Ex<'_>| g.make(Op::Store, DType::F32, &[x, r, g.ex(v.id)]);
        let why_at = |level: Level, rows: &[Ex], store: Ex| {
            let (rows, store): (Vec<Ex>, _) = (rows.iter().map(|r| g.ex(r.id)).collect(), g.ex(store.id));
            check(&kernel(&g, &rows, store), &[vec![store]], level).expect_err("illegal").why
        };
        let why = |rows: &[Ex], store: Ex| why_at(Level::Expanded, rows, store);
        assert_eq!(why(&[], store(load(r))), "depends on a range that is neither row nor output");
        assert_eq!(why(&[r], load(r)), "a stage ends in stores");
        let at = g.make(Op::At(x.id), DType::F32, &[r]);
        assert!(why(&[r], store(at)).starts_with("At(Id("));
        let tensor = g.shaped(Op::Contiguous, DType::F32, x.node().shape, &[x]);
        assert_eq!(why(&[r], store(tensor)), "has a shape");
        let up = g.new_range(g.int(8), Kind::Upcast);
        assert_eq!(why(&[r, up], store(load(up))), "Upcast at the level Expanded");
        let fold = g.make(Op::Fold(Fold::Sum, 1), DType::F32, &[load(r), r + 1]);
        assert_eq!(why(&[r], store(fold)), "a fold is over different ranges");
        assert_eq!(why(&[r], store(load(r.cast(Scalar::I32)))), "index is i32, not i64");
        let gated = g.make(Op::Load, DType::F32, &[x, r, r]);
        assert_eq!(why(&[r], store(gated)), "a gate of i64 for f32");
        let wide = g.make(Op::Load, Scalar::F32.vec(4), &[x, r]);
        assert_eq!(why_at(Level::Kernel, &[r], store(wide)), "f32x4 before vectors");
        let (sums, held) =
            (g.constant(Scalar::F32.vec(4), Bits(0)), g.constant(Scalar::BF16.vec(4), Bits(0)));
        let mma = |thread: Ex<'_>| g.make(Op::Mma, sums.dtype(), &[sums, held, held, held, g.ex(thread.id)]);
        let first = |e: Ex<'_>| store(g.make(Op::Extract(0), DType::F32, &[g.ex(e.id)]));
        assert_eq!(why(&[r], first(mma(r))), "a product of 32 threads");
    }
}
