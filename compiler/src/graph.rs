//! The hash-consed arena that holds every level of the IR: equal nodes are one node, so sharing and common
//! subexpressions are free and comparing two expressions is comparing two numbers.
//!
//! A [`Node`] is `Copy`: an op, an element type, a shape and arguments, the last two as handles of interned lists.
//! [`Ex`] is a node together with its graph; arithmetic on it builds new nodes. Nodes are never changed or freed.

use crate::dtype::{Bits, DType, Scalar};
use crate::hash::{FastMap, FastSet, IdMap};
use crate::scalar::{Binary, Fold, Unary};
use std::cell::RefCell;
use std::ops;
use std::rc::Rc;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Id(pub u32);

/// An interned list of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct List(pub u32);

impl List {
    pub const EMPTY: List = List(0);
}

/// How a range's rounds are carried out. Everything starts as `Serial`; a schedule retags.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A loop.
    Serial,
    /// One grid index each: CPU chunks, GPU blocks.
    Grid,
    /// One thread of the block each.
    Local,
    /// A reduction over neighbouring threads that exchange registers.
    Lane,
    /// A reduction over threads that meet in local memory.
    Group,
    /// Copies of the output that share the reduction loops: a register tile.
    Upcast,
    /// Copies of the body.
    Unroll,
    /// Lanes of a vector register.
    Vector,
}

impl Kind {
    pub const ALL: [Kind; 8] = {
        use Kind::*;
        [Serial, Grid, Local, Lane, Group, Upcast, Unroll, Vector]
    };
}

/// Up to 16 axis numbers, four bits each, the first in the low bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Perm(u64);

impl Perm {
    pub fn new(axes: &[usize]) -> Perm {
        assert!(axes.len() <= 16, "more than 16 axes");
        Perm(axes.iter().enumerate().fold(0, |p, (i, &a)| p | (a as u64) << (4 * i)))
    }
    /// Where axis `i` of the result comes from.
    pub fn get(self, i: usize) -> usize {
        (self.0 >> (4 * i) & 15) as usize
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Op {
    // leaves
    Const(Bits),
    /// A symbolic integer: index into [`Graph::symbol`].
    Symbol(u32),
    /// Memory given from outside: index into [`Graph::buffer`].
    Buffer(u32),
    /// `[n]` of i32: 0, 1, 2, ...
    Iota,

    // elementwise, at every level
    Unary(Unary),
    Binary(Binary),
    /// `[cond, a, b]`
    Where,
    Cast,
    Bitcast,
    /// 16-entry byte table, the argument's low four bits choose.
    Lookup(u128),

    // tensor: movement and the rest
    Reshape,
    /// Axes of size 1 grow to the node's shape.
    Expand,
    Permute(Perm),
    /// `[src, offset..]`: the part of the node's shape that starts at the offsets.
    Shrink,
    /// `[src, before..]`: zeros around `src` up to the node's shape.
    Pad,
    /// `[src]` folded over the axes in the bit mask, which stay with size 1.
    Reduce(Fold, u16),
    /// `[table, index]`: `index`'s shape followed by the table's without its first axis. Indices are clamped.
    Gather,
    /// `[view, value]`: writes `value` through a view of a buffer; the node is that whole buffer afterwards.
    Assign,
    /// Same values, but computed once and kept in memory.
    Contiguous,
    /// `[segment, starts]`, i32: `segment` again, which does not fall along its only axis; `starts` `[n + 1]` says where
    /// each of n segments begins and where the last one ends. What is computed for elements behind that is undefined.
    /// Below the tensor level `[segment, start, end]` of the element's own segment.
    Segment,

    // kernel
    /// `[extent]`: the loop index with this number.
    Range(u32, Kind),
    /// `[body.., range..]`: this many bodies folded over the ranges.
    Fold(Fold, u32),
    /// `[index.., gate?]`: one element of this tensor, which is kept in memory.
    At(Id),
    /// `[memory, index, gate?]`: consecutive elements; 0 where the gate is false.
    Load,
    /// `[memory, index, value, gate?]`
    Store,
    /// Memory that the stages of one kernel share; `[length]`.
    Local(u32),

    // scheduled: vectors and tensor instructions, as in `linear::Op`
    /// 0, 1, 2, .. in the lanes.
    Lanes,
    Spread,
    Repeat,
    Extract(u16),
    Slice(u16),
    Stack,
    /// Vectors, each folded to one lane.
    LaneFold(Fold),
    Fma,
    Dot4,
    Pairs,
    /// `[acc, a, a, b, thread]`: [`crate::linear::Inst::Mma`] of the 32 threads along a range.
    Mma,
    /// Like `Load`, but lane l comes from element `index[l]`.
    LoadLanes,
    /// `[memory, index, b..]`: all rows of [`crate::linear::Inst::TileDot`] with this stride.
    TileDot(i64),
    /// `[tile, m]`: row m.
    TileRow,
    /// `[c, a, b, at c, at a, at b, stride, step, steps]`: in place of a store, 16×16 sums of products as
    /// [`crate::linear::Inst::TileMul`] reads them, for so many steps: `step` elements of `a` and 512 of `b` further each.
    TileProduct,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    pub op: Op,
    pub dtype: DType,
    /// Dimensions (index expressions); empty for scalars and below the tensor level.
    pub shape: List,
    pub args: List,
}

/// A symbolic dimension or position, given anew at every step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Symbol {
    pub name: String,
    /// Smallest and largest value.
    pub bounds: (i64, i64),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BufferInfo {
    pub name: String,
    /// Does nothing write it from the first step on?
    pub constant: bool,
}

#[derive(Default)]
struct Lists {
    items: Vec<Rc<[Id]>>,
    ids: FastMap<Rc<[Id]>, List>,
}

pub struct Graph {
    nodes: RefCell<Vec<Node>>,
    ids: RefCell<FastMap<Node, Id>>,
    lists: RefCell<Lists>,
    symbols: RefCell<Vec<Symbol>>,
    buffers: RefCell<Vec<BufferInfo>>,
    bounds: RefCell<IdMap<(i64, i64)>>,
    deepest: RefCell<IdMap<i64>>,
    ranges: RefCell<u32>,
}

impl Default for Graph {
    fn default() -> Graph {
        let empty: Rc<[Id]> = Rc::new([]);
        let lists = Lists { items: vec![empty.clone()], ids: FastMap::from_iter([(empty, List::EMPTY)]) };
        Graph {
            nodes: RefCell::default(),
            ids: RefCell::default(),
            lists: RefCell::new(lists),
            symbols: RefCell::default(),
            buffers: RefCell::default(),
            bounds: RefCell::default(),
            deepest: RefCell::default(),
            ranges: RefCell::default(),
        }
    }
}

impl Graph {
    pub fn new() -> Graph {
        Graph::default()
    }

    pub fn add(&self, node: Node) -> Ex<'_> {
        let id = *self.ids.borrow_mut().entry(node).or_insert_with(|| {
            let mut nodes = self.nodes.borrow_mut();
            nodes.push(node);
            Id(nodes.len() as u32 - 1)
        });
        Ex { g: self, id }
    }

    pub fn list(&self, ids: &[Id]) -> List {
        let mut lists = self.lists.borrow_mut();
        if let Some(&l) = lists.ids.get(ids) {
            return l;
        }
        let (list, items): (_, Rc<[Id]>) = (List(lists.items.len() as u32), ids.into());
        lists.items.push(items.clone());
        lists.ids.insert(items, list);
        list
    }

    pub fn items(&self, l: List) -> Rc<[Id]> {
        self.lists.borrow().items[l.0 as usize].clone()
    }

    pub fn ex(&self, id: Id) -> Ex<'_> {
        Ex { g: self, id }
    }

    pub fn node(&self, id: Id) -> Node {
        self.nodes.borrow()[id.0 as usize]
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.borrow().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A node without a shape.
    pub fn make<'g>(&'g self, op: Op, dtype: DType, args: &[Ex<'g>]) -> Ex<'g> {
        self.shaped(op, dtype, List::EMPTY, args)
    }

    pub fn shaped<'g>(&'g self, op: Op, dtype: DType, shape: List, args: &[Ex<'g>]) -> Ex<'g> {
        let ids: Vec<Id> = args.iter().map(|a| a.id).collect();
        self.add(Node { op, dtype, shape, args: self.list(&ids) })
    }

    pub fn constant(&self, dtype: DType, v: Bits) -> Ex<'_> {
        self.make(Op::Const(v), dtype, &[])
    }

    /// An index constant.
    pub fn int(&self, v: i64) -> Ex<'_> {
        self.constant(DType::INDEX, Bits::int(v))
    }

    pub fn float(&self, v: f32) -> Ex<'_> {
        self.constant(DType::F32, Bits::float(v))
    }

    /// The symbol of this name; declaring it twice must give the same bounds.
    pub fn symbol(&self, name: &str, bounds: (i64, i64)) -> Ex<'_> {
        let mut symbols = self.symbols.borrow_mut();
        let i = symbols.iter().position(|s| s.name == name).unwrap_or_else(|| {
            symbols.push(Symbol { name: name.into(), bounds });
            symbols.len() - 1
        });
        assert_eq!(symbols[i].bounds, bounds, "symbol {name} declared twice with different bounds");
        drop(symbols);
        self.make(Op::Symbol(i as u32), DType::INDEX, &[])
    }

    pub fn symbols(&self) -> Vec<Symbol> {
        self.symbols.borrow().clone()
    }

    pub fn new_buffer(&self, name: &str, dtype: DType, shape: &[Ex<'_>]) -> Ex<'_> {
        let mut buffers = self.buffers.borrow_mut();
        buffers.push(BufferInfo { name: name.into(), constant: false });
        let slot = buffers.len() as u32 - 1;
        drop(buffers);
        let shape: Vec<Id> = shape.iter().map(|d| d.id).collect();
        self.shaped(Op::Buffer(slot), dtype, self.list(&shape), &[])
    }

    pub fn buffer(&self, slot: u32) -> BufferInfo {
        self.buffers.borrow()[slot as usize].clone()
    }

    /// Says that a buffer holds the same in every step, as weights do.
    pub fn set_constant(&self, slot: u32) {
        self.buffers.borrow_mut()[slot as usize].constant = true;
    }

    pub fn has_buffer(&self, slot: u32) -> bool {
        (slot as usize) < self.buffers.borrow().len()
    }

    /// A range that no other expression uses yet.
    pub fn new_range<'g>(&'g self, extent: Ex<'g>, kind: Kind) -> Ex<'g> {
        let number = *self.ranges.borrow();
        self.range(number, extent, kind)
    }

    /// The range with this number.
    pub fn range<'g>(&'g self, number: u32, extent: Ex<'g>, kind: Kind) -> Ex<'g> {
        let mut next = self.ranges.borrow_mut();
        *next = (*next).max(number + 1);
        self.make(Op::Range(number, kind), DType::INDEX, &[extent])
    }
}

/// A node in its graph.
#[derive(Clone, Copy)]
pub struct Ex<'g> {
    pub g: &'g Graph,
    pub id: Id,
}

impl PartialEq for Ex<'_> {
    fn eq(&self, o: &Self) -> bool {
        self.id == o.id
    }
}
impl Eq for Ex<'_> {}
impl std::hash::Hash for Ex<'_> {
    fn hash<H: std::hash::Hasher>(&self, h: &mut H) {
        self.id.hash(h)
    }
}
impl std::fmt::Debug for Ex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{:?}", self.id)
    }
}

impl<'g> Ex<'g> {
    pub fn node(self) -> Node {
        self.g.node(self.id)
    }
    pub fn op(self) -> Op {
        self.node().op
    }
    pub fn dtype(self) -> DType {
        self.node().dtype
    }
    pub fn args(self) -> Vec<Ex<'g>> {
        self.g.items(self.node().args).iter().map(|&id| self.g.ex(id)).collect()
    }
    pub fn arg(self, i: usize) -> Ex<'g> {
        self.g.ex(self.g.items(self.node().args)[i])
    }
    pub fn dims(self) -> Vec<Ex<'g>> {
        self.g.items(self.node().shape).iter().map(|&id| self.g.ex(id)).collect()
    }
    /// The same node over other arguments.
    pub fn with_args(self, args: &[Ex<'g>]) -> Ex<'g> {
        let n = self.node();
        self.g.shaped(n.op, n.dtype, n.shape, args)
    }

    /// The value of an integer or bool constant.
    pub fn as_int(self) -> Option<i64> {
        let n = self.node();
        match n.op {
            Op::Const(v) if !n.dtype.is_float() => Some(v.as_int()),
            _ => None,
        }
    }
    pub fn as_bits(self) -> Option<Bits> {
        match self.op() {
            Op::Const(v) => Some(v),
            _ => None,
        }
    }
    /// A constant of this node's type.
    pub fn like(self, v: i64) -> Ex<'g> {
        let t = self.dtype();
        self.g.constant(t, if t.is_float() { Bits::float(v as f32) } else { Bits::int(t.scalar.wrap(v)) })
    }

    pub fn unary(self, op: Unary) -> Ex<'g> {
        self.g.make(Op::Unary(op), self.dtype(), &[self])
    }
    pub fn binary(self, op: Binary, b: Ex<'g>) -> Ex<'g> {
        let t = self.dtype();
        debug_assert_eq!(t, b.dtype(), "{op:?} of {t} and {}", b.dtype());
        let t = if op.is_compare() { Scalar::Bool.vec(t.lanes) } else { t };
        self.g.make(Op::Binary(op), t, &[self, b])
    }
    pub fn cast(self, to: Scalar) -> Ex<'g> {
        let t = self.dtype();
        if t.scalar == to { self } else { self.g.make(Op::Cast, to.vec(t.lanes), &[self]) }
    }
    /// `self ? a : b`
    pub fn select(self, a: Ex<'g>, b: Ex<'g>) -> Ex<'g> {
        self.g.make(Op::Where, a.dtype(), &[self, a, b])
    }
    pub fn lt(self, b: impl IntoEx<'g>) -> Ex<'g> {
        self.binary(Binary::Lt, b.ex(self))
    }
    pub fn min(self, b: impl IntoEx<'g>) -> Ex<'g> {
        self.binary(Binary::Min, b.ex(self))
    }
    pub fn max(self, b: impl IntoEx<'g>) -> Ex<'g> {
        self.binary(Binary::Max, b.ex(self))
    }

    /// Smallest and largest value an integer expression can take, from the bounds of its ranges and symbols.
    pub fn bounds(self) -> (i64, i64) {
        if let Some(&b) = self.g.bounds.borrow().get(&self.id) {
            return b;
        }
        let b = self.compute_bounds();
        self.g.bounds.borrow_mut().insert(self.id, b);
        b
    }

    fn compute_bounds(self) -> (i64, i64) {
        let n = self.node();
        let whole = if n.dtype.is_float() { (i64::MIN, i64::MAX) } else { n.dtype.scalar.int_range() };
        // i128 keeps products of 64-bit bounds exact; a result that leaves the type may wrap, so it tells nothing.
        let corners = |f: &dyn Fn(i128, i128) -> i128| {
            let ((a, b), (c, d)) = (self.arg(0).bounds(), self.arg(1).bounds());
            let v = [f(a as _, c as _), f(a as _, d as _), f(b as _, c as _), f(b as _, d as _)];
            let (lo, hi) = (*v.iter().min().unwrap(), *v.iter().max().unwrap());
            if lo < whole.0 as i128 || hi > whole.1 as i128 { whole } else { (lo as i64, hi as i64) }
        };
        let in_width = |k: Ex| k.bounds().0 >= 0 && k.bounds().1 < n.dtype.scalar.bits() as i64;
        match n.op {
            Op::Const(v) if !n.dtype.is_float() => (v.as_int(), v.as_int()),
            Op::Symbol(i) => self.g.symbols.borrow()[i as usize].bounds,
            Op::Range(..) => (0, (self.arg(0).bounds().1 - 1).max(0)),
            Op::Cast if !self.arg(0).dtype().is_float() => {
                let b = self.arg(0).bounds();
                if b.0 >= whole.0 && b.1 <= whole.1 { b } else { whole }
            }
            Op::Where => {
                let (a, b) = (self.arg(1).bounds(), self.arg(2).bounds());
                (a.0.min(b.0), a.1.max(b.1))
            }
            Op::Binary(op) if !self.arg(0).dtype().is_float() => match op {
                Binary::Add => corners(&|a, b| a + b),
                Binary::Sub => corners(&|a, b| a - b),
                Binary::Mul => corners(&|a, b| a * b),
                Binary::Min => corners(&|a, b| a.min(b)),
                Binary::Max => corners(&|a, b| a.max(b)),
                Binary::Div if self.arg(1).bounds().0 > 0 => corners(&|a, b| a.div_euclid(b)),
                Binary::Mod if self.arg(1).bounds().0 > 0 => {
                    let ((lo, hi), (dl, dh)) = (self.arg(0).bounds(), self.arg(1).bounds());
                    if lo >= 0 && hi < dl { (lo, hi) } else { (0, dh - 1) }
                }
                Binary::And => {
                    let (a, b) = (self.arg(0).bounds(), self.arg(1).bounds());
                    if a.0 >= 0 && b.0 >= 0 {
                        (0, a.1.min(b.1))
                    } else if b.0 >= 0 {
                        (0, b.1)
                    } else {
                        whole
                    }
                }
                Binary::Or | Binary::Xor if self.arg(0).bounds().0 >= 0 && self.arg(1).bounds().0 >= 0 => {
                    let top = self.arg(0).bounds().1 | self.arg(1).bounds().1;
                    (0, ((top as u64 + 1).next_power_of_two() - 1) as i64)
                }
                Binary::Shl if in_width(self.arg(1)) => corners(&|a, k| a << k),
                Binary::Shr if in_width(self.arg(1)) => corners(&|a, k| a >> k),
                Binary::Shr if self.arg(0).bounds().0 >= 0 => (0, self.arg(0).bounds().1),
                Binary::Lt => match (self.arg(0).bounds(), self.arg(1).bounds()) {
                    (a, b) if a.1 < b.0 => (1, 1),
                    (a, b) if a.0 >= b.1 => (0, 0),
                    _ => (0, 1),
                },
                Binary::Le => match (self.arg(0).bounds(), self.arg(1).bounds()) {
                    (a, b) if a.1 <= b.0 => (1, 1),
                    (a, b) if a.0 > b.1 => (0, 0),
                    _ => (0, 1),
                },
                _ => whole,
            },
            _ => whole,
        }
    }

    /// The largest number of a range in this expression, -1 without any: ranges are numbered from the outside in.
    pub fn deepest(self) -> i64 {
        if let Some(&d) = self.g.deepest.borrow().get(&self.id) {
            return d;
        }
        let own = if let Op::Range(n, _) = self.op() { n as i64 } else { -1 };
        let d = self.args().iter().map(|a| a.deepest()).fold(own, i64::max);
        self.g.deepest.borrow_mut().insert(self.id, d);
        d
    }

    /// Every node below this one, arguments first, each once.
    pub fn topo(self) -> Vec<Ex<'g>> {
        topo(&[self])
    }
}

/// Every node below the roots, arguments first, each once.
pub fn topo<'g>(roots: &[Ex<'g>]) -> Vec<Ex<'g>> {
    let mut seen = FastSet::default();
    let mut out = vec![];
    let mut stack: Vec<(Ex, bool)> = roots.iter().rev().map(|&r| (r, false)).collect();
    while let Some((e, done)) = stack.pop() {
        if done {
            out.push(e);
        } else if seen.insert(e.id) {
            stack.push((e, true));
            stack.extend(e.args().into_iter().rev().map(|a| (a, false)));
        }
    }
    out
}

/// Rebuilds what is below the roots, arguments first: `f` gets each old node and its new arguments.
pub fn rebuild<'g>(roots: &[Ex<'g>], mut f: impl FnMut(Ex<'g>, Vec<Ex<'g>>) -> Ex<'g>) -> Vec<Ex<'g>> {
    let mut new: IdMap<Ex<'g>> = IdMap::default();
    for e in topo(roots) {
        let args = e.args().iter().map(|a| new[&a.id]).collect();
        new.insert(e.id, f(e, args));
    }
    roots.iter().map(|r| new[&r.id]).collect()
}

/// What may stand beside an [`Ex`] in arithmetic: another one, or a constant of its type.
pub trait IntoEx<'g> {
    fn ex(self, like: Ex<'g>) -> Ex<'g>;
}
impl<'g> IntoEx<'g> for Ex<'g> {
    fn ex(self, _: Ex<'g>) -> Ex<'g> {
        self
    }
}
impl<'g> IntoEx<'g> for i64 {
    fn ex(self, like: Ex<'g>) -> Ex<'g> {
        like.like(self)
    }
}

macro_rules! arithmetic { ($($t:ident $f:ident $op:ident),*) => { $(
    impl<'g, R: IntoEx<'g>> ops::$t<R> for Ex<'g> {
        type Output = Ex<'g>;
        fn $f(self, r: R) -> Ex<'g> {
            self.binary(Binary::$op, r.ex(self))
        }
    }
)* } }
arithmetic!(Add add Add, Sub sub Sub, Mul mul Mul, Div div Div, Rem rem Mod, BitAnd bitand And, BitOr bitor Or,
    Shl shl Shl, Shr shr Shr);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_nodes_are_one_node() {
        let g = Graph::new();
        let x = g.symbol("x", (0, 10));
        assert_eq!(x + 1, x + 1);
        assert_ne!(x + 1, x + 2);
    }

    #[test]
    fn bounds_follow_the_arithmetic() {
        let g = Graph::new();
        let (x, r) = (g.symbol("x", (1, 10)), g.new_range(g.int(16), Kind::Serial));
        assert_eq!((x * 16 + r).bounds(), (16, 175));
        assert_eq!(((x * 16 + r) % 16).bounds(), (0, 15));
        assert_eq!((r / 4).bounds(), (0, 3));
        assert_eq!((r - x).bounds(), (-10, 14));
        assert_eq!(r.lt(16).bounds(), (1, 1));
        assert_eq!((x * i64::MAX).bounds(), (i64::MIN, i64::MAX));
    }
}
