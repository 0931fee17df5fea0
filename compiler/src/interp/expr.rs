//! Expressions of the kernel level: a node, values for its free ranges and symbols, and memory in; its lanes out.
//!
//! A `Fold` runs its bodies for every round of its ranges, in order. Within one call every node is computed once for
//! each value of the ranges it depends on, and nodes that no round reaches are never computed.

use super::mma;
use crate::dtype::{Bits, Scalar};
use crate::graph::{Ex, Id, Op};
use crate::hash::IdMap;
use crate::rewrite::Ranges;
use crate::scalar::{self, Fold};
use std::collections::HashMap;
use std::rc::Rc;

/// Values for everything an expression leaves open.
pub struct Env<'a> {
    /// By the range's node.
    pub ranges: HashMap<Id, i64>,
    pub symbols: HashMap<String, i64>,
    /// Reads one element: the memory's node and the element's number.
    pub load: &'a mut dyn FnMut(Ex, i64) -> Bits,
}

/// The lanes of an expression.
pub fn eval(e: Ex, env: &mut Env) -> Vec<Bits> {
    eval_all(&[e], env, &mut Ranges::new())[0].to_vec()
}

/// The only lane of an expression.
pub fn eval1(e: Ex, env: &mut Env) -> Bits {
    Evaluation::new(env, &mut Ranges::new()).scalar(e)
}

/// The lanes of several expressions, which share what they have in common. `ranges` is kept from call to call.
pub fn eval_all(es: &[Ex], env: &mut Env, ranges: &mut Ranges) -> Vec<Value> {
    let mut evaluation = Evaluation::new(env, ranges);
    es.iter().map(|&e| evaluation.eval(e)).collect()
}

pub type Value = Rc<[Bits]>;

/// Several expressions in one environment. The environment may only change between evaluations.
struct Evaluation<'a, 'e> {
    env: &'a mut Env<'e>,
    ranges: &'a mut Ranges,
    values: IdMap<Value>,
    /// What `values` holds, oldest first.
    log: Vec<Id>,
}

impl<'a, 'e> Evaluation<'a, 'e> {
    fn new(env: &'a mut Env<'e>, ranges: &'a mut Ranges) -> Self {
        Evaluation { env, ranges, values: IdMap::default(), log: vec![] }
    }

    fn scalar(&mut self, e: Ex) -> Bits {
        let v = self.eval(e);
        assert_eq!(v.len(), 1, "{} is no scalar", e.dtype());
        v[0]
    }

    fn eval(&mut self, e: Ex) -> Value {
        let mut stack = vec![e];
        while let Some(&e) = stack.last() {
            if self.values.contains_key(&e.id) {
                stack.pop();
                continue;
            }
            let here = stack.len();
            // A fold computes its bodies itself, a load its index only if the gate is open, and a tile is never
            // computed as a whole. What other threads hold is computed in their place.
            let own = matches!(
                e.op(),
                Op::Fold(..) | Op::Load | Op::LoadLanes | Op::Range(..) | Op::TileRow | Op::Mma
            );
            if !own {
                stack.extend(e.args().into_iter().filter(|a| !self.values.contains_key(&a.id)));
            }
            if stack.len() == here {
                let v = self.node(e);
                assert_eq!(v.len(), e.dtype().lanes as usize, "lanes of {:?}", e.op());
                self.values.insert(e.id, v.into());
                self.log.push(e.id);
            }
        }
        self.values[&e.id].clone()
    }

    fn node(&mut self, e: Ex) -> Vec<Bits> {
        let n = e.node();
        let (args, lanes) = (e.args(), n.dtype.lanes as usize);
        match n.op {
            Op::Load | Op::LoadLanes => return self.load(e, &args),
            Op::Fold(fold, bodies) => {
                return self.fold(e, fold, &args[..bodies as usize], &args[bodies as usize..]);
            }
            Op::TileRow => return self.tile_row(args[0], args[1], lanes),
            Op::Mma => return self.mma(&args),
            Op::Range(i, _) => {
                let v = self.env.ranges.get(&e.id).unwrap_or_else(|| panic!("range {i} has no value"));
                return vec![Bits::int(*v)];
            }
            _ => {}
        }
        let from = args.first().map_or(n.dtype, |a| a.dtype()).scalar;
        let arg = |i: usize| &self.values[&args[i].id];
        let each = |f: &dyn Fn(usize) -> Bits| (0..lanes).map(f).collect::<Vec<_>>();
        match n.op {
            Op::Const(v) => vec![v; lanes],
            Op::Symbol(i) => {
                let s = &e.g.symbols()[i as usize];
                let v = *self
                    .env
                    .symbols
                    .get(&s.name)
                    .unwrap_or_else(|| panic!("symbol {} has no value", s.name));
                assert!(s.bounds.0 <= v && v <= s.bounds.1, "{} = {v} is outside {:?}", s.name, s.bounds);
                vec![Bits::int(v)]
            }
            Op::Unary(op) => each(&|l| scalar::unary(op, from, arg(0)[l])),
            Op::Binary(op) => each(&|l| scalar::binary(op, from, arg(0)[l], arg(1)[l])),
            Op::Fma => each(&|l| scalar::fma(arg(0)[l], arg(1)[l], arg(2)[l])),
            Op::Where => each(&|l| if arg(0)[l].as_bool() { arg(1)[l] } else { arg(2)[l] }),
            Op::Cast => each(&|l| scalar::cast(from, n.dtype.scalar, arg(0)[l])),
            Op::Bitcast => each(&|l| scalar::bitcast(from, n.dtype.scalar, arg(0)[l])),
            Op::Lookup(table) => {
                let table = table.to_le_bytes();
                each(&|l| Bits::read(n.dtype.scalar, &[table[arg(0)[l].0 as usize & 15]]))
            }
            Op::Lanes => each(&|l| Bits::int(l as i64)),
            Op::Spread => each(&|l| arg(0)[l / (lanes / arg(0).len())]),
            Op::Repeat => each(&|l| arg(0)[l % arg(0).len()]),
            Op::Extract(lane) => vec![arg(0)[lane as usize]],
            Op::Slice(first) => arg(0)[first as usize..][..lanes].to_vec(),
            Op::Stack => each(&|l| arg(l)[0]),
            Op::LaneFold(f) => {
                let folded =
                    |v: &[Bits]| v.iter().copied().reduce(|a, b| scalar::binary(f.binary(), from, a, b));
                each(&|l| folded(arg(l)).expect("a vector has lanes"))
            }
            Op::Dot4 => each(&|l| dot(arg(0)[l], &arg(1)[4 * l..4 * l + 4], &arg(2)[4 * l..4 * l + 4])),
            Op::Pairs => each(&|l| scalar::pair(from, arg(l % 2)[l / 2])),
            Op::Segment => arg(0).to_vec(),
            op => panic!("{op:?} in an expression"),
        }
    }

    /// Row `m` of a tile product: of 16 columns by 4 inputs, or of a single input before that.
    fn tile_row(&mut self, tile: Ex, m: Ex, lanes: usize) -> Vec<Bits> {
        let Op::TileDot(stride) = tile.op() else { panic!("a row of {:?}", tile.op()) };
        let args = tile.args();
        let row = self.scalar(args[1]).as_int() + self.scalar(m).as_int() * stride;
        let mut out = vec![Bits::int(0); lanes];
        for (j, &b) in args[2..].iter().enumerate() {
            let b = self.eval(b);
            let inputs = b.len() / lanes;
            let start = row + 4 * j as i64;
            let a: Vec<Bits> = (0..inputs as i64).map(|i| (self.env.load)(args[0], start + i)).collect();
            out.iter_mut().zip(b.chunks(inputs)).for_each(|(acc, b)| *acc = dot(*acc, b, &a));
        }
        out
    }

    /// What the thread that the last argument names gets of a product with 31 others.
    fn mma(&mut self, args: &[Ex]) -> Vec<Bits> {
        let &[acc, first, second, b, thread] = args else { panic!("a product of {} parts", args.len()) };
        let own = self.scalar(thread).as_int();
        let acc = self.eval(acc);
        let sums = mma(own as usize, args[3].dtype().scalar, &acc, |part, t| {
            self.env.ranges.insert(thread.id, t as i64);
            Evaluation::new(self.env, self.ranges).eval([first, second, b][part]).to_vec()
        });
        self.env.ranges.insert(thread.id, own);
        sums
    }

    /// Lanes whose gate is false read nothing; a scalar gate covers all lanes.
    fn load(&mut self, e: Ex, args: &[Ex]) -> Vec<Bits> {
        let lanes = e.dtype().lanes as usize;
        let gate = args.get(2).map(|&g| self.eval(g));
        let open = |l: usize| gate.as_ref().is_none_or(|g| g[l % g.len()].as_bool());
        if !(0..lanes).any(open) {
            return vec![Bits(0); lanes];
        }
        let index = self.eval(args[1]);
        let element = |l: usize| match e.op() {
            Op::Load => index[0].as_int() + l as i64,
            _ => index[l].as_int(),
        };
        let load = &mut *self.env.load;
        (0..lanes).map(|l| if open(l) { load(args[0], element(l)) } else { Bits(0) }).collect()
    }

    fn fold(&mut self, e: Ex, fold: Fold, bodies: &[Ex], ranges: &[Ex]) -> Vec<Bits> {
        let t = e.dtype();
        let mut acc = vec![fold.identity(t.scalar); t.lanes as usize];
        self.rounds(fold, t.scalar, bodies, ranges, &mut acc);
        acc
    }

    fn rounds(&mut self, fold: Fold, s: Scalar, bodies: &[Ex], ranges: &[Ex], acc: &mut [Bits]) {
        let Some((&range, inner)) = ranges.split_first() else {
            for &body in bodies {
                let v = self.eval(body);
                acc.iter_mut().zip(v.iter()).for_each(|(a, &b)| *a = scalar::binary(fold.binary(), s, *a, b));
            }
            return;
        };
        let extent = self.scalar(range.arg(0)).as_int();
        for i in 0..extent {
            self.env.ranges.insert(range.id, i);
            let mark = self.log.len();
            self.rounds(fold, s, bodies, inner, acc);
            self.forget(range, mark);
        }
        self.env.ranges.remove(&range.id);
    }

    /// Drops what was computed since `mark` and depends on `range`.
    fn forget(&mut self, range: Ex, mark: usize) {
        let mut kept = mark;
        for i in mark..self.log.len() {
            let id = self.log[i];
            if self.ranges.depends(range.g.ex(id), &[range.id]) {
                self.values.remove(&id);
            } else {
                self.log[kept] = id;
                kept += 1;
            }
        }
        self.log.truncate(kept);
    }
}

/// `acc + Σ a·b` in i32.
fn dot(acc: Bits, a: &[Bits], b: &[Bits]) -> Bits {
    let sum = a.iter().zip(b).fold(acc.as_int(), |s, (x, y)| s + x.as_int() * y.as_int());
    Bits::int(Scalar::I32.wrap(sum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::graph::{Graph, Kind};

    #[test]
    fn matrix_product_with_a_padded_edge() {
        let g = Graph::new();
        let (a, x) = (g.new_buffer("a", DType::F32, &[g.int(6)]), g.new_buffer("x", DType::F32, &[g.int(3)]));
        let (i, j) = (g.new_range(g.int(2), Kind::Serial), g.new_range(g.int(4), Kind::Serial));
        let n = g.symbol("n", (1, 3));
        let load = |m, index| g.make(Op::Load, DType::F32, &[m, index, j.lt(n)]);
        let body = load(a, i * 3 + j) * load(x, j);
        let dot = g.make(Op::Fold(Fold::Sum, 1), DType::F32, &[body, j]);
        let mut loads = 0;
        let mut read = |m: Ex, i: i64| {
            loads += 1;
            Bits::float(if m.op() == a.op() { i as f32 } else { 10.0 })
        };
        let symbols = HashMap::from([("n".into(), 3)]);
        let mut env = Env { ranges: HashMap::from([(i.id, 1)]), symbols, load: &mut read };
        assert_eq!(eval1(dot, &mut env).as_float(), 120.0);
        assert_eq!(loads, 6, "closed gates read nothing");
    }

    #[test]
    fn vectors() {
        let g = Graph::new();
        let m = g.new_buffer("m", DType::I32, &[g.int(8)]);
        let v = g.make(Op::Load, Scalar::I32.vec(4), &[m, g.int(2)]);
        let mut read = |_: Ex, i: i64| Bits::int(i * i);
        let mut env = Env { ranges: HashMap::new(), symbols: HashMap::new(), load: &mut read };
        let ints = |e, env: &mut Env| eval(e, env).iter().map(|b| b.as_int()).collect::<Vec<_>>();
        assert_eq!(ints(v + 1, &mut env), [5, 10, 17, 26]);
        assert_eq!(ints(g.make(Op::LaneFold(Fold::Max), DType::I32, &[v]), &mut env), [25]);
        assert_eq!(
            ints(g.make(Op::Spread, Scalar::I32.vec(8), &[v]), &mut env),
            [4, 4, 9, 9, 16, 16, 25, 25]
        );
    }
}
