//! Which tensor expressions are legal: roots in, the first [`Violation`] out.
//!
//! Shapes, element types and argument counts agree at every node that passes, dimensions are index expressions, and an
//! assignment writes through a view of a buffer. Whether a symbolic slice fits its tensor is known only when it runs.

use super::linear::{Check, ensure};
use super::{Violation, elementwise, is_index};
use crate::dtype::{DType, Scalar};
use crate::graph::{Ex, Op, Perm, topo};
use crate::linear;
use crate::scalar::Fold;
use crate::shape::same_size;
use crate::text;
use std::collections::HashSet;

/// Panics with the expressions and the offending node unless they are legal.
pub fn verify(roots: &[Ex]) {
    if let Err(v) = check(roots) {
        panic!("{}", v.report(&text::graph::print(roots)));
    }
}

pub fn check(roots: &[Ex]) -> Result<(), Violation> {
    let mut dims_seen = HashSet::new();
    for e in topo(roots) {
        let fail = |why| Violation { at: e.id, why };
        for d in e.dims().into_iter().filter(|d| dims_seen.insert(d.id)) {
            dimension(d).map_err(fail)?;
        }
        node(e).map_err(fail)?;
    }
    Ok(())
}

/// A dimension is arithmetic on constants and symbols, and never negative.
fn dimension(d: Ex) -> Check {
    for e in d.topo() {
        ensure(is_index(e), || format!("a dimension with {}", e.dtype()))?;
        let plain = matches!(e.op(), Op::Const(_) | Op::Symbol(_) | Op::Unary(_) | Op::Binary(_));
        ensure(plain, || format!("{:?} in a dimension", e.op()))?;
        node(e)?;
    }
    ensure(d.bounds().0 >= 0, || format!("a dimension may be {}", d.bounds().0))
}

fn node(e: Ex) -> Check {
    let (n, args, dims) = (e.node(), e.args(), e.dims());
    ensure(n.dtype.lanes == 1, || format!("{} at the tensor level", n.dtype))?;
    let arity = match n.op {
        Op::Const(_) | Op::Symbol(_) | Op::Buffer(_) | Op::Iota => 0,
        Op::Unary(_) | Op::Cast | Op::Bitcast | Op::Lookup(_) => 1,
        Op::Reshape | Op::Expand | Op::Permute(_) | Op::Reduce(..) | Op::Contiguous => 1,
        Op::Binary(_) | Op::Gather | Op::Segment | Op::Assign => 2,
        Op::Where => 3,
        Op::Shrink | Op::Pad => 1 + dims.len(),
        op => return Err(format!("{op:?} at the tensor level")),
    };
    ensure(args.len() == arity, || format!("takes {arity} arguments, not {}", args.len()))?;
    if let Some(op) = linear::Op::of(n.op) {
        return elementwise(e, &op);
    }
    let leaf = |t: DType, rank: usize| {
        ensure(n.dtype == t && dims.len() == rank, || format!("is {t} with {rank} axes"))
    };
    match n.op {
        Op::Symbol(i) => {
            ensure((i as usize) < e.g.symbols().len(), || format!("no symbol {i}"))?;
            leaf(DType::INDEX, 0)
        }
        Op::Buffer(i) => ensure(e.g.has_buffer(i), || format!("no buffer {i}")),
        Op::Iota => leaf(DType::I32, 1),
        Op::Gather => gather(e, args[0], args[1]),
        Op::Segment => {
            let ints = n.dtype == DType::I32 && args.iter().all(|a| a.dtype() == DType::I32);
            let rows = args.iter().all(|a| a.dims().len() == 1) && dims == args[0].dims();
            ensure(ints && rows, || "segments and their starts are rows of i32".into())
        }
        Op::Assign => assign(e, args[0], args[1]),
        _ => {
            ensure(n.dtype == args[0].dtype(), || format!("{} from {}", n.dtype, args[0].dtype()))?;
            movement(e, &args[0].dims(), &dims)
        }
    }
}

/// Ops of one tensor that keep its element type: from its dimensions to those of the node.
fn movement<'g>(e: Ex<'g>, from: &[Ex<'g>], to: &[Ex<'g>]) -> Check {
    let one = |d: &Ex| d.as_int() == Some(1);
    if e.op() == Op::Reshape {
        return ensure(same_size(from, to), || "another number of elements".into());
    }
    ensure(from.len() == to.len(), || format!("{} axes from {}", to.len(), from.len()))?;
    let axes = || from.iter().zip(to);
    match e.op() {
        Op::Expand => ensure(axes().all(|(f, t)| f == t || one(f)), || "only axes of size 1 grow".into()),
        Op::Permute(p) => permute(p, from, to),
        Op::Shrink => window(&e.args()[1..], to, from),
        Op::Pad => window(&e.args()[1..], from, to),
        Op::Reduce(fold, mask) => reduce(e, fold, mask, from, to),
        _ => ensure(from == to, || "another shape".into()),
    }
}

fn permute(p: Perm, from: &[Ex], to: &[Ex]) -> Check {
    ensure(from.len() <= 16, || "more than 16 axes".into())?;
    let order: HashSet<usize> = (0..to.len()).map(|i| p.get(i)).collect();
    ensure(order.len() == to.len() && order.iter().all(|a| *a < from.len()), || "no permutation".into())?;
    ensure(to.iter().enumerate().all(|(i, t)| *t == from[p.get(i)]), || "another order of the axes".into())
}

/// A part of size `inner` at the offsets of something of size `outer`.
fn window(offsets: &[Ex], inner: &[Ex], outer: &[Ex]) -> Check {
    for ((o, i), w) in offsets.iter().zip(inner).zip(outer) {
        ensure(is_index(*o), || format!("an offset is {}", o.dtype()))?;
        ensure(o.bounds().1 >= 0, || "an offset is negative".into())?;
        let least = o.bounds().0.max(0).saturating_add(i.bounds().0);
        ensure(least <= w.bounds().1, || format!("{least} elements of {}", w.bounds().1))?;
    }
    Ok(())
}

fn reduce(e: Ex, fold: Fold, mask: u16, from: &[Ex], to: &[Ex]) -> Check {
    let s = e.dtype().scalar;
    ensure(fold.binary().takes(s), || format!("does not take {s}"))?;
    ensure(mask != 0 && (mask as u32) < 1 << from.len().min(16), || format!("axes {mask:#b}"))?;
    let kept = |(i, (f, t)): (usize, (&Ex, &Ex))| match mask >> i & 1 {
        1 => t.as_int() == Some(1),
        _ => f == t,
    };
    ensure(from.iter().zip(to).enumerate().all(kept), || {
        "reduced axes stay with size 1, others as they are".into()
    })
}

fn gather(e: Ex, table: Ex, index: Ex) -> Check {
    ensure(index.dtype().scalar == Scalar::I32, || format!("indices are {}", index.dtype()))?;
    ensure(e.dtype() == table.dtype(), || format!("{} from {}", e.dtype(), table.dtype()))?;
    ensure(!table.dims().is_empty(), || "a table without axes".into())?;
    let want = [&index.dims(), &table.dims()[1..]].concat();
    ensure(e.dims() == want, || "the index's shape, then a row's".into())
}

fn assign(e: Ex, view: Ex, value: Ex) -> Check {
    let (v, w) = (view.node(), value.node());
    ensure((v.dtype, v.shape) == (w.dtype, w.shape), || {
        "the value has another shape or type than the view".into()
    })?;
    let mut root = view;
    while !matches!(root.op(), Op::Buffer(_) | Op::Assign) {
        let is_view = matches!(root.op(), Op::Reshape | Op::Permute(_) | Op::Shrink | Op::Gather);
        ensure(is_view, || format!("{:?} is no view of a buffer", root.op()))?;
        root = root.arg(0);
    }
    let (n, r) = (e.node(), root.node());
    ensure((n.dtype, n.shape) == (r.dtype, r.shape), || "is the whole buffer afterwards".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, List};
    use crate::ops;
    use crate::scalar::Binary;
    use crate::tensor::Tensor;

    fn why(e: Ex) -> String {
        check(&[e]).expect_err("illegal").why
    }

    #[test]
    fn what_the_tensor_language_builds_is_legal() {
        let g = Graph::new();
        let n = g.symbol("n", (0, 9));
        let x = g.input("x", DType::F32, [n + 1, g.int(64)]);
        let cache = g.input("cache", DType::F32, [16, 64]);
        let q = ops::quantize_i8(ops::rms_norm(x, g.input("w", DType::F32, [64]), 1e-5));
        let (v, at) = ops::top_k(x, 3);
        let stored = cache.slice_dim(0, n, n + 1).assign(x);
        let outputs = [q.q, q.d, q.s16, v, at, stored, Tensor::concat(&[x, v], 1), cache.gather(at)];
        verify(&outputs.map(|t| t.0));
    }

    #[test]
    fn violations_are_named() {
        let g = Graph::new();
        let x = g.input("x", DType::F32, [4, 6]).0;
        let i = g.input("i", DType::I32, [4, 6]).0;
        let shape = |dims: &[i64]| g.list(&dims.iter().map(|&d| g.int(d).id).collect::<Vec<_>>());
        let (same, f32_) = (x.node().shape, DType::F32);
        let add = Op::Binary(Binary::Add);
        assert_eq!(why(g.shaped(add, f32_, same, &[x])), "takes 2 arguments, not 1");
        assert_eq!(why(g.shaped(add, f32_, same, &[x, i])), "takes f32");
        assert_eq!(why(g.shaped(add, f32_, List::EMPTY, &[x, x])), "the shapes of the arguments differ");
        assert_eq!(why(g.shaped(Op::Reshape, f32_, shape(&[5, 5]), &[x])), "another number of elements");
        assert_eq!(why(g.shaped(Op::Expand, f32_, shape(&[8, 6]), &[x])), "only axes of size 1 grow");
        let swap = Op::Permute(Perm::new(&[1, 0]));
        assert_eq!(why(g.shaped(swap, f32_, same, &[x])), "another order of the axes");
        assert_eq!(why(g.shaped(Op::Permute(Perm::new(&[1, 1])), f32_, same, &[x])), "no permutation");
        let offsets = [x, g.int(2), g.int(0)];
        assert_eq!(why(g.shaped(Op::Shrink, f32_, shape(&[3, 6]), &offsets)), "5 elements of 4");
        assert_eq!(why(g.shaped(Op::Reduce(Fold::Sum, 4), f32_, same, &[x])), "axes 0b100");
        assert_eq!(why(g.shaped(Op::Gather, f32_, shape(&[4, 6, 6]), &[x, x])), "indices are f32");
        let view = Tensor(x).pad(0, 1, 0).0;
        assert_eq!(why(g.shaped(Op::Assign, f32_, same, &[view, view])), "Pad is no view of a buffer");
        assert_eq!(why(g.shaped(Op::Contiguous, DType::I32, same, &[x])), "i32 from f32");
        assert_eq!(why(g.make(Op::Lanes, DType::I32, &[])), "Lanes at the tensor level");
        let negative = g.shaped(Op::Iota, DType::I32, shape(&[-1]), &[]);
        assert_eq!(why(negative), "a dimension may be -1");
    }
}
