//! Movement becomes index arithmetic: one element of a tensor expression as a scalar expression over ranges.
//!
//! In: a tensor node and an index for each of its axes. Out: a scalar expression whose leaves are constants, symbols,
//! ranges and `At` nodes (elements of tensors kept in memory). A reduction becomes a `Fold` over ranges of its own;
//! reductions side by side over equal extents share their ranges, so that they will share their loops.

use crate::dtype::{Bits, Scalar};
use crate::graph::{Ex, Graph, Id, Kind, Op};
use crate::rules::simplify1;
use crate::scalar::Binary;
use crate::shape;
use std::collections::{HashMap, HashSet};

type Key = (Id, Vec<Id>, Option<Id>, usize);

pub struct Lower<'g, 'a> {
    g: &'g Graph,
    /// Tensors that are kept in memory: reading one is an `At`.
    kept: &'a HashSet<Id>,
    memo: HashMap<Key, Ex<'g>>,
    /// Ranges of reductions by how deep they are nested, their place among the reduction's axes, and extent.
    ranges: HashMap<(usize, usize, Id), Ex<'g>>,
}

impl<'g, 'a> Lower<'g, 'a> {
    pub fn new(g: &'g Graph, kept: &'a HashSet<Id>) -> Lower<'g, 'a> {
        Lower { g, kept, memo: HashMap::new(), ranges: HashMap::new() }
    }

    /// A range for each axis; the index 0 where there is only one element.
    pub fn axes(&self, dims: &[Ex<'g>]) -> Vec<Ex<'g>> {
        let axis = |&d: &Ex<'g>| match d.as_int() {
            Some(1) => self.g.int(0),
            _ => self.g.new_range(d, Kind::Serial),
        };
        dims.iter().map(axis).collect()
    }

    /// The element of `t` at `idx`, computed, even if `t` is kept in memory.
    pub fn body(&mut self, t: Ex<'g>, idx: &[Ex<'g>]) -> Ex<'g> {
        self.compute(t, idx, None, 0)
    }

    /// Where the view shows its buffer's elements: the buffer and an index for each of its axes.
    pub fn place(&mut self, view: Ex<'g>, idx: &[Ex<'g>]) -> Ex<'g> {
        let at = self.element(view, idx, None, 0);
        assert!(matches!(at.op(), Op::At(_)), "a view must lead to a buffer");
        at
    }

    pub fn element(&mut self, t: Ex<'g>, idx: &[Ex<'g>], gate: Option<Ex<'g>>, depth: usize) -> Ex<'g> {
        if self.kept.contains(&t.id) || matches!(t.op(), Op::Buffer(_) | Op::Assign) {
            let args: Vec<_> = idx.iter().copied().chain(gate).collect();
            return self.g.make(Op::At(t.id), t.dtype(), &args);
        }
        let key = (t.id, idx.iter().map(|i| i.id).collect(), gate.map(|g| g.id), depth);
        if let Some(&e) = self.memo.get(&key) {
            return e;
        }
        let e = self.compute(t, idx, gate, depth);
        self.memo.insert(key, e);
        e
    }

    fn compute(&mut self, t: Ex<'g>, idx: &[Ex<'g>], gate: Option<Ex<'g>>, depth: usize) -> Ex<'g> {
        let (g, n) = (self.g, t.node());
        let zero = || g.int(0);
        match n.op {
            Op::Const(_) | Op::Symbol(_) => t,
            Op::Iota => idx[0].cast(Scalar::I32),
            Op::Unary(_) | Op::Binary(_) | Op::Where | Op::Cast | Op::Bitcast | Op::Lookup(_) => {
                let args: Vec<_> = t.args().into_iter().map(|a| self.element(a, idx, gate, depth)).collect();
                g.make(n.op, n.dtype, &args)
            }
            Op::Contiguous => self.element(t.arg(0), idx, gate, depth),
            Op::Reshape => {
                let (from, to) = (t.arg(0).dims(), t.dims());
                let idx = self.reshape(&from, &to, idx);
                self.element(t.arg(0), &idx, gate, depth)
            }
            Op::Expand => {
                let from = t.arg(0).dims();
                let idx: Vec<_> = idx
                    .iter()
                    .zip(&from)
                    .map(|(&i, d)| if d.as_int() == Some(1) { zero() } else { i })
                    .collect();
                self.element(t.arg(0), &idx, gate, depth)
            }
            Op::Permute(p) => {
                let mut from = vec![zero(); idx.len()];
                for (i, &x) in idx.iter().enumerate() {
                    from[p.get(i)] = x;
                }
                self.element(t.arg(0), &from, gate, depth)
            }
            Op::Shrink => {
                let idx: Vec<_> = idx.iter().zip(&t.args()[1..]).map(|(&i, &o)| simplify1(i + o)).collect();
                self.element(t.arg(0), &idx, gate, depth)
            }
            Op::Pad => {
                let from = t.arg(0).dims();
                let mut inside = gate;
                let mut both = |c: Ex<'g>| {
                    let c = simplify1(c);
                    if c.as_int() != Some(1) {
                        inside = Some(inside.map_or(c, |g| if g == c { g } else { g & c }));
                    }
                };
                let idx: Vec<_> = idx
                    .iter()
                    .zip(&t.args()[1..])
                    .zip(&from)
                    .map(|((&i, &o), &d)| {
                        let i = simplify1(i - o);
                        both(zero().binary(Binary::Le, i));
                        both(i.lt(d));
                        i
                    })
                    .collect();
                let x = self.element(t.arg(0), &idx, inside, depth);
                match inside {
                    None => x,
                    Some(c) => c.select(x, g.constant(n.dtype, Bits(0))),
                }
            }
            Op::Reduce(fold, axes) => {
                let dims = t.arg(0).dims();
                let mut idx = idx.to_vec();
                let mut ranges = vec![];
                for (i, &d) in dims.iter().enumerate().filter(|(i, _)| axes >> i & 1 == 1) {
                    if d.as_int() == Some(1) {
                        continue;
                    }
                    let key = (depth, ranges.len(), d.id);
                    idx[i] = *self.ranges.entry(key).or_insert_with(|| g.new_range(d, Kind::Serial));
                    ranges.push(idx[i]);
                }
                let body = self.element(t.arg(0), &idx, gate, depth + 1);
                if ranges.is_empty() {
                    return body;
                }
                let mut args = vec![body];
                args.extend(ranges);
                g.make(Op::Fold(fold, 1), n.dtype, &args)
            }
            Op::Segment => {
                let (segment, starts) = (self.element(t.arg(0), idx, gate, depth), t.arg(1));
                let last = simplify1(starts.dims()[0] - 1);
                let at = segment.cast(Scalar::I64).max(0);
                let [start, end] = [at, at + 1].map(|i| self.element(starts, &[i.min(last)], gate, depth));
                g.make(Op::Segment, n.dtype, &[segment, start, end])
            }
            Op::Gather => {
                let (table, index) = (t.arg(0), t.arg(1));
                let (at, rest) = idx.split_at(index.dims().len());
                let row = self.element(index, at, gate, depth).cast(Scalar::I64);
                let last = simplify1(table.dims()[0] - 1);
                let mut idx = vec![simplify1(row.max(0).min(last))];
                idx.extend_from_slice(rest);
                self.element(table, &idx, gate, depth)
            }
            op => panic!("{op:?} cannot be computed element by element"),
        }
    }

    /// The index into `from` of what stands at `idx` of `to`.
    fn reshape(&self, from: &[Ex<'g>], to: &[Ex<'g>], idx: &[Ex<'g>]) -> Vec<Ex<'g>> {
        let mut out = Vec::with_capacity(from.len());
        for (f, t) in shape::pair_axes(from, to) {
            if (f.len(), t.len()) == (1, 1) {
                out.push(idx[t.start]);
                continue;
            }
            let flat = flatten(self.g, &to[t.clone()], &idx[t]);
            let strides = shape::strides(self.g, &from[f.clone()]);
            for (k, i) in f.clone().enumerate() {
                let mut x = flat / strides[k];
                if k > 0 {
                    x = x % from[i];
                }
                out.push(simplify1(x));
            }
        }
        out
    }
}

/// The row-major position of `idx` in a tensor of these dimensions.
pub fn flatten<'g>(g: &'g Graph, dims: &[Ex<'g>], idx: &[Ex<'g>]) -> Ex<'g> {
    let terms = idx.iter().zip(shape::strides(g, dims)).map(|(&i, s)| i * s);
    simplify1(terms.reduce(|a, b| a + b).unwrap_or(g.int(0)))
}

/// `At` nodes below the roots, each once.
pub fn reads<'g>(roots: &[Ex<'g>]) -> Vec<Ex<'g>> {
    crate::graph::topo(roots).into_iter().filter(|e| matches!(e.op(), Op::At(_))).collect()
}

/// The tensor an `At` reads, its index, and the condition under which it may be read.
pub fn at_parts<'g>(at: Ex<'g>) -> (Ex<'g>, Vec<Ex<'g>>, Option<Ex<'g>>) {
    let Op::At(t) = at.op() else { panic!("{:?} reads no tensor", at.op()) };
    let (t, mut idx) = (at.g.ex(t), at.args());
    let gate = idx.get(t.dims().len()).copied();
    idx.truncate(t.dims().len());
    (t, idx, gate)
}
