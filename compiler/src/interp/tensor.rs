//! The tensor level, evaluated node by node into dense arrays.
//!
//! In: expressions, the bytes of the input buffers, the symbols' values. Out: arrays. An `Assign` changes the buffer it
//! writes, so later reads through its node see the new contents and reads of the bare buffer the old.

use crate::dtype::{Bits, Scalar};
use crate::graph::{Ex, Id, Op, topo};
use crate::scalar;
use crate::tensor::Tensor;
use std::collections::HashMap;
use std::rc::Rc;

#[derive(Clone, PartialEq, Debug)]
pub struct Array {
    pub scalar: Scalar,
    pub dims: Vec<usize>,
    pub data: Vec<Bits>,
}

impl Array {
    pub fn from_bytes(scalar: Scalar, dims: &[usize], bytes: &[u8]) -> Array {
        let n = dims.iter().product();
        assert!(bytes.len() >= n * scalar.bytes(), "{} bytes for {dims:?} of {scalar}", bytes.len());
        let data = bytes.chunks_exact(scalar.bytes()).take(n).map(|b| Bits::read(scalar, b)).collect();
        Array { scalar, dims: dims.to_vec(), data }
    }
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![0; self.data.len() * self.scalar.bytes()];
        for (v, b) in self.data.iter().zip(out.chunks_exact_mut(self.scalar.bytes())) {
            v.write(self.scalar, b);
        }
        out
    }
    pub fn floats(&self) -> Vec<f32> {
        assert!(self.scalar.is_float(), "{} are no floats", self.scalar);
        self.data.iter().map(|v| v.as_float()).collect()
    }
}

/// Values for everything an expression leaves open.
#[derive(Default, Clone)]
pub struct Env {
    /// Bytes of each buffer by slot.
    pub buffers: HashMap<u32, Vec<u8>>,
    /// Values of the symbols by name.
    pub symbols: HashMap<String, i64>,
}

impl Env {
    pub fn set(&mut self, t: Tensor, bytes: Vec<u8>) {
        let Op::Buffer(slot) = t.0.op() else { panic!("only buffers hold bytes") };
        self.buffers.insert(slot, bytes);
    }
    pub fn set_floats(&mut self, t: Tensor, v: &[f32]) {
        self.set(t, v.iter().flat_map(|x| x.to_le_bytes()).collect());
    }
}

/// A dimension or any other index expression.
pub fn index(e: Ex, env: &Env) -> i64 {
    let arg = |i| Bits::int(index(e.arg(i), env));
    match e.op() {
        Op::Const(v) => v.as_int(),
        Op::Symbol(i) => {
            let s = &e.g.symbols()[i as usize];
            let v = *env.symbols.get(&s.name).unwrap_or_else(|| panic!("symbol {} has no value", s.name));
            assert!(s.bounds.0 <= v && v <= s.bounds.1, "{} = {v} is outside {:?}", s.name, s.bounds);
            v
        }
        Op::Unary(op) => scalar::unary(op, Scalar::I64, arg(0)).as_int(),
        Op::Binary(op) => scalar::binary(op, Scalar::I64, arg(0), arg(1)).as_int(),
        op => panic!("{op:?} in an index"),
    }
}

pub fn eval(outputs: &[Tensor], env: &Env) -> Vec<Array> {
    let roots: Vec<Ex> = outputs.iter().map(|t| t.0).collect();
    let order = topo(&roots);
    let mut uses: HashMap<Id, usize> = HashMap::new();
    for e in order.iter().flat_map(|e| e.args()).chain(roots.iter().copied()) {
        *uses.entry(e.id).or_default() += 1;
    }
    // An assignment looks through its view at the buffer and at indices: they must outlive their other uses.
    for e in order.iter().filter(|e| e.op() == Op::Assign).flat_map(|e| e.arg(0).topo()) {
        *uses.get_mut(&e.id).unwrap() += 1;
    }
    let mut values: HashMap<Id, Rc<Array>> = HashMap::new();
    for &e in &order {
        let v = node(e, env, &values);
        values.insert(e.id, Rc::new(v));
        for a in e.args() {
            let left = uses.get_mut(&a.id).unwrap();
            *left -= 1;
            if *left == 0 {
                values.remove(&a.id);
            }
        }
    }
    roots.iter().map(|r| (*values[&r.id]).clone()).collect()
}

/// One output.
pub fn eval1(t: Tensor, env: &Env) -> Array {
    eval(&[t], env).pop().unwrap()
}

fn strides(dims: &[usize]) -> Vec<usize> {
    (0..dims.len()).map(|i| dims[i + 1..].iter().product()).collect()
}

/// Calls `f` with every multi-index of `dims` in row-major order.
fn for_each(dims: &[usize], mut f: impl FnMut(&[usize])) {
    let mut at = vec![0; dims.len()];
    for _ in 0..dims.iter().product::<usize>() {
        f(&at);
        for d in (0..dims.len()).rev() {
            at[d] += 1;
            if at[d] < dims[d] {
                break;
            }
            at[d] = 0;
        }
    }
}

fn dot(at: &[usize], strides: &[usize]) -> usize {
    at.iter().zip(strides).map(|(a, s)| a * s).sum()
}

/// A movement: where each axis of the view begins in the viewed tensor, how many elements it has there, and how far apart
/// they lie.
struct View(Vec<(i64, i64, usize)>);

impl View {
    fn new(e: Ex, env: &Env, from: &[usize]) -> View {
        let st = strides(from);
        let axis = |i: usize, start: i64| (start, from[i] as i64, st[i]);
        let start = |i: usize| index(e.arg(1 + i), env);
        View(match e.op() {
            Op::Permute(p) => (0..from.len()).map(|i| axis(p.get(i), 0)).collect(),
            Op::Expand => {
                (0..from.len()).map(|i| if from[i] == 1 { (0, i64::MAX, 0) } else { axis(i, 0) }).collect()
            }
            Op::Shrink => (0..from.len()).map(|i| axis(i, start(i))).collect(),
            Op::Pad => (0..from.len()).map(|i| axis(i, -start(i))).collect(),
            op => unreachable!("{op:?} is no movement"),
        })
    }

    /// Which element of the viewed tensor stands at `at`; `None` where padding does.
    fn source(&self, at: &[usize]) -> Option<usize> {
        at.iter().zip(&self.0).try_fold(0, |sum, (&a, &(start, size, stride))| {
            let a = a as i64 + start;
            (0 <= a && a < size).then(|| sum + a as usize * stride)
        })
    }
}

fn node(e: Ex, env: &Env, values: &HashMap<Id, Rc<Array>>) -> Array {
    let n = e.node();
    let scalar = n.dtype.scalar;
    let dims: Vec<usize> = e.dims().iter().map(|&d| index(d, env) as usize).collect();
    let arg = |i: usize| values[&e.arg(i).id].clone();
    let array = |data: Vec<Bits>| Array { scalar, dims: dims.clone(), data };
    match n.op {
        Op::Const(v) => array(vec![v]),
        Op::Symbol(_) => array(vec![Bits::int(index(e, env))]),
        Op::Iota => array((0..dims[0] as i64).map(Bits::int).collect()),
        Op::Buffer(slot) => {
            let info = e.g.buffer(slot);
            let bytes = env.buffers.get(&slot).unwrap_or_else(|| panic!("buffer {} has no bytes", info.name));
            Array::from_bytes(scalar, &dims, bytes)
        }
        Op::Unary(op) => {
            let a = arg(0);
            array(a.data.iter().map(|&x| scalar::unary(op, a.scalar, x)).collect())
        }
        Op::Binary(op) => {
            let (a, b) = (arg(0), arg(1));
            array(a.data.iter().zip(&b.data).map(|(&x, &y)| scalar::binary(op, a.scalar, x, y)).collect())
        }
        Op::Where => {
            let (c, a, b) = (arg(0), arg(1), arg(2));
            let pick = c.data.iter().zip(a.data.iter().zip(&b.data));
            array(pick.map(|(c, (&x, &y))| if c.as_bool() { x } else { y }).collect())
        }
        Op::Cast => {
            let a = arg(0);
            array(a.data.iter().map(|&x| scalar::cast(a.scalar, scalar, x)).collect())
        }
        Op::Bitcast => {
            let a = arg(0);
            array(a.data.iter().map(|&x| scalar::bitcast(a.scalar, scalar, x)).collect())
        }
        Op::Lookup(table) => {
            let entry = |i: i64| scalar.wrap((table >> (8 * (i & 15))) as u8 as i64);
            array(arg(0).data.iter().map(|x| Bits::int(entry(x.as_int()))).collect())
        }
        Op::Reshape | Op::Contiguous => array(arg(0).data.clone()),
        Op::Permute(_) | Op::Expand | Op::Shrink | Op::Pad => {
            let a = arg(0);
            let view = View::new(e, env, &a.dims);
            let mut data = Vec::with_capacity(dims.iter().product());
            for_each(&dims, |at| data.push(view.source(at).map_or(Bits(0), |i| a.data[i])));
            array(data)
        }
        Op::Reduce(fold, axes) => {
            let a = arg(0);
            let st: Vec<usize> = strides(&dims)
                .iter()
                .enumerate()
                .map(|(i, &s)| if axes >> i & 1 == 1 { 0 } else { s })
                .collect();
            let mut data = vec![fold.identity(scalar); dims.iter().product()];
            let mut from = a.data.iter();
            for_each(&a.dims, |at| {
                let to = &mut data[dot(at, &st)];
                *to = scalar::binary(fold.binary(), scalar, *to, *from.next().unwrap());
            });
            array(data)
        }
        Op::Gather => {
            let (table, idx) = (arg(0), arg(1));
            let row: usize = table.dims[1..].iter().product();
            let rows = idx.data.iter().flat_map(|i| {
                let r = i.as_int().clamp(0, table.dims[0] as i64 - 1) as usize;
                table.data[r * row..(r + 1) * row].iter().copied()
            });
            array(rows.collect())
        }
        Op::Segment => {
            let (segment, starts) = (arg(0), arg(1));
            for (i, pair) in starts.data.windows(2).enumerate() {
                let own = segment.data.get(pair[0].as_int() as usize..pair[1].as_int() as usize);
                let same = own.is_some_and(|s| s.iter().all(|v| v.as_int() == i as i64));
                assert!(same, "segment {i} is not from {} to {}", pair[0].as_int(), pair[1].as_int());
            }
            array(segment.data.clone())
        }
        Op::Assign => {
            let value = arg(1);
            // The view applied to the numbers of the buffer's elements says where each value goes.
            let mut data = values[&root(e.arg(0)).id].data.clone();
            let places = places(e.arg(0), env, data.len(), values);
            for (&p, &v) in places.iter().zip(&value.data) {
                data[p] = v;
            }
            array(data)
        }
        op => panic!("{op:?} at the tensor level"),
    }
}

fn root(view: Ex) -> Ex {
    match view.op() {
        Op::Buffer(_) | Op::Assign => view,
        _ => root(view.arg(0)),
    }
}

fn places(view: Ex, env: &Env, len: usize, values: &HashMap<Id, Rc<Array>>) -> Vec<usize> {
    let dims: Vec<usize> = view.dims().iter().map(|&d| index(d, env) as usize).collect();
    if matches!(view.op(), Op::Buffer(_) | Op::Assign) {
        return (0..len).collect();
    }
    let inner = places(view.arg(0), env, len, values);
    let from: Vec<usize> = view.arg(0).dims().iter().map(|&d| index(d, env) as usize).collect();
    let mut out = vec![];
    match view.op() {
        Op::Reshape => return inner,
        Op::Gather => {
            let row: usize = from[1..].iter().product();
            for i in &values[&view.arg(1).id].data {
                let r = i.as_int().clamp(0, from[0] as i64 - 1) as usize;
                out.extend_from_slice(&inner[r * row..(r + 1) * row]);
            }
        }
        _ => {
            let view = View::new(view, env, &from);
            for_each(&dims, |at| out.push(inner[view.source(at).expect("a view has no padding")]));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::graph::Graph;

    #[test]
    fn movement_and_reduction() {
        let g = Graph::new();
        let x = g.input("x", DType::F32, [2, 3]);
        let mut env = Env::default();
        env.set_floats(x, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(eval1(x.permute(&[1, 0]), &env).floats(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        assert_eq!(eval1(x.sum(-1), &env).floats(), [6.0, 15.0]);
        assert_eq!(eval1(x.slice(1, 1..3).pad(1, 1, 0), &env).floats(), [0.0, 2.0, 3.0, 0.0, 5.0, 6.0]);
        let joined = Tensor::concat(&[x, x.slice(1, 0..1)], 1);
        assert_eq!(eval1(joined, &env).floats(), [1.0, 2.0, 3.0, 1.0, 4.0, 5.0, 6.0, 4.0]);
        assert_eq!(eval1((x - x.max(-1)).exp2(), &env).floats(), [0.25, 0.5, 1.0, 0.25, 0.5, 1.0]);
    }

    #[test]
    fn assignment_and_symbols() {
        let g = Graph::new();
        let pos = g.symbol("pos", (0, 3));
        let cache = g.input("cache", DType::F32, [4, 2]);
        let row = g.input("row", DType::F32, [1, 2]);
        let mut env = Env::default();
        env.set_floats(cache, &[0.0; 8]);
        env.set_floats(row, &[7.0, 8.0]);
        env.symbols.insert("pos".into(), 2);
        let after = cache.slice_dim(0, pos, g.int(1)).assign(row);
        assert_eq!(eval1(after, &env).floats(), [0.0, 0.0, 0.0, 0.0, 7.0, 8.0, 0.0, 0.0]);
        let seen = after.slice_dim(0, g.int(0), pos + 1);
        assert_eq!(eval1(seen, &env).dims, [3, 2]);
        let idx = g.input("idx", DType::I32, [2]);
        env.set(idx, [3i32, 0].iter().flat_map(|i| i.to_le_bytes()).collect());
        let both = g.input("both", DType::F32, [2, 2]);
        env.set_floats(both, &[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(
            eval1(cache.gather(idx).assign(both), &env).floats(),
            [3.0, 4.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0]
        );
    }
}
