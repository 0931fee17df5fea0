//! The lazy tensor language: every method adds a node and computes nothing.
//!
//! Shapes are checked here, at the call that is wrong; a mistake panics with both shapes. Binary operations broadcast:
//! missing leading axes and axes of size 1 grow to the other side's. f16 and bf16 widen to f32 before arithmetic.

use crate::dtype::{Bits, DType, Scalar};
use crate::graph::{Ex, Graph, Op, Perm};
use crate::scalar::{Binary, Fold, Unary};
use crate::shape::{self, Dims};
use std::ops;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tensor<'g>(pub Ex<'g>);

impl Graph {
    /// Memory that the caller gives when the program runs.
    pub fn input<'g>(&'g self, name: &str, dtype: DType, dims: impl Dims<'g>) -> Tensor<'g> {
        Tensor(self.new_buffer(name, dtype, &dims.dims(self)))
    }
    /// 0, 1, .. n-1 as i32.
    pub fn iota(&self, n: i64) -> Tensor<'_> {
        self.iota_dim(self.int(n))
    }
    pub fn iota_dim<'g>(&'g self, n: Ex<'g>) -> Tensor<'g> {
        Tensor(self.shaped(Op::Iota, DType::I32, self.list(&[n.id]), &[]))
    }
    /// An index expression (a symbol, say) as a tensor without axes.
    pub fn scalar<'g>(&'g self, e: Ex<'g>) -> Tensor<'g> {
        Tensor(e)
    }
}

impl<'g> Tensor<'g> {
    pub fn graph(self) -> &'g Graph {
        self.0.g
    }
    pub fn dtype(self) -> DType {
        self.0.dtype()
    }
    pub fn dims(self) -> Vec<Ex<'g>> {
        self.0.dims()
    }
    pub fn rank(self) -> usize {
        self.dims().len()
    }
    /// The size of an axis (negative: from the end) that must be a constant.
    pub fn size(self, axis: isize) -> i64 {
        let d = self.dims()[self.axis(axis)];
        d.as_int().unwrap_or_else(|| panic!("axis {axis} of {} is symbolic", self.show_shape()))
    }
    pub fn show_shape(self) -> String {
        let dims: Vec<_> = self.dims().iter().map(|d| crate::text::expr(*d)).collect();
        format!("{}[{}]", self.dtype(), dims.join(","))
    }
    fn axis(self, axis: isize) -> usize {
        let n = self.rank() as isize;
        assert!((-n..n).contains(&axis), "axis {axis} of {}", self.show_shape());
        axis.rem_euclid(n) as usize
    }
    fn shaped(self, op: Op, dtype: DType, dims: &[Ex<'g>], args: &[Ex<'g>]) -> Tensor<'g> {
        let ids: Vec<_> = dims.iter().map(|d| d.id).collect();
        Tensor(self.graph().shaped(op, dtype, self.graph().list(&ids), args))
    }

    // ---- movement

    pub fn reshape(self, dims: impl Dims<'g>) -> Tensor<'g> {
        let (from, to) = (self.dims(), dims.dims(self.graph()));
        if from == to {
            return self;
        }
        assert!(shape::same_size(&from, &to), "reshape {} to {:?} elements", self.show_shape(), show(&to));
        if self.0.op() == Op::Reshape {
            return Tensor(self.0.arg(0)).reshape(to);
        }
        self.shaped(Op::Reshape, self.dtype(), &to, &[self.0])
    }
    /// The tensor before it was reshaped.
    pub fn unshaped(self) -> Tensor<'g> {
        if self.0.op() == Op::Reshape { Tensor(self.0.arg(0)) } else { self }
    }
    /// The last `n` axes, in row-major order, as axes of the given sizes.
    pub fn reshape_last(self, n: usize, sizes: &[i64]) -> Tensor<'g> {
        let mut dims = self.dims();
        assert!(n <= dims.len(), "last {n} axes of {}", self.show_shape());
        dims.truncate(dims.len() - n);
        dims.extend(sizes.iter().map(|&d| self.graph().int(d)));
        self.reshape(dims)
    }
    /// Axes of size 1 grow; missing leading axes are added.
    pub fn expand(self, dims: impl Dims<'g>) -> Tensor<'g> {
        let to = dims.dims(self.graph());
        let mut from = self.dims();
        assert!(from.len() <= to.len(), "expand {} to {:?}", self.show_shape(), show(&to));
        let missing = to.len() - from.len();
        from.splice(0..0, std::iter::repeat_n(self.graph().int(1), missing));
        let ok = from.iter().zip(&to).all(|(f, t)| f == t || f.as_int() == Some(1));
        assert!(ok, "expand {} to {:?}", self.show_shape(), show(&to));
        let x = self.reshape(from.clone());
        if from == to { x } else { x.shaped(Op::Expand, x.dtype(), &to, &[x.0]) }
    }
    pub fn permute(self, axes: &[usize]) -> Tensor<'g> {
        let from = self.dims();
        let mut sorted = axes.to_vec();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..from.len()), "permute {} by {axes:?}", self.show_shape());
        if axes.is_sorted() {
            return self;
        }
        let to: Vec<_> = axes.iter().map(|&a| from[a]).collect();
        if axes.iter().filter(|&&a| from[a].as_int() != Some(1)).is_sorted() {
            return self.reshape(to);
        }
        self.shaped(Op::Permute(Perm::new(axes)), self.dtype(), &to, &[self.0])
    }
    /// Swaps two axes.
    pub fn transpose(self, a: isize, b: isize) -> Tensor<'g> {
        let mut axes: Vec<_> = (0..self.rank()).collect();
        axes.swap(self.axis(a), self.axis(b));
        self.permute(&axes)
    }
    /// Takes one axis out and puts it back at another place.
    pub fn move_axis(self, from: isize, to: isize) -> Tensor<'g> {
        let mut axes: Vec<_> = (0..self.rank()).collect();
        let axis = axes.remove(self.axis(from));
        axes.insert(self.axis(to), axis);
        self.permute(&axes)
    }
    /// `len` elements of one axis from `start` on; both may be symbolic.
    pub fn slice_dim(self, axis: isize, start: Ex<'g>, len: Ex<'g>) -> Tensor<'g> {
        let (axis, mut dims) = (self.axis(axis), self.dims());
        if start.as_int() == Some(0) && len == dims[axis] {
            return self;
        }
        if let (Some(s), Some(l), Some(d)) = (start.as_int(), len.as_int(), dims[axis].as_int()) {
            let fits = s >= 0 && l >= 0 && s + l <= d;
            assert!(fits, "slice {s}..{} of axis {axis} of {}", s + l, self.show_shape());
        }
        dims[axis] = len;
        let mut args = vec![self.0];
        args.extend((0..dims.len()).map(|i| if i == axis { start } else { self.graph().int(0) }));
        self.shaped(Op::Shrink, self.dtype(), &dims, &args)
    }
    pub fn slice(self, axis: isize, r: ops::Range<i64>) -> Tensor<'g> {
        let g = self.graph();
        self.slice_dim(axis, g.int(r.start), g.int(r.end - r.start))
    }
    /// Zeros before and after along one axis.
    pub fn pad(self, axis: isize, before: i64, after: i64) -> Tensor<'g> {
        let (axis, mut dims) = (self.axis(axis), self.dims());
        if before == 0 && after == 0 {
            return self;
        }
        let g = self.graph();
        dims[axis] = match dims[axis].as_int() {
            Some(d) => g.int(d + before + after),
            None => dims[axis] + (before + after),
        };
        let mut args = vec![self.0];
        args.extend((0..dims.len()).map(|i| g.int(if i == axis { before } else { 0 })));
        self.shaped(Op::Pad, self.dtype(), &dims, &args)
    }
    /// Parts of the given sizes along an axis.
    pub fn split(self, axis: isize, sizes: &[i64]) -> Vec<Tensor<'g>> {
        let mut at = 0;
        let parts = sizes.iter().map(|&n| {
            at += n;
            self.slice(axis, at - n..at)
        });
        parts.collect()
    }
    pub fn concat(parts: &[Tensor<'g>], axis: isize) -> Tensor<'g> {
        let (first, rest) = parts.split_first().expect("nothing to concatenate");
        rest.iter().fold(*first, |a, &b| {
            let (at, na, nb) = (a.axis(axis), a.size(axis), b.size(axis));
            let mut dims = vec![1; a.rank()];
            dims[at] = na + nb;
            let first = a.graph().iota(na + nb).reshape(dims).lt(na);
            first.select(a.pad(axis, 0, nb), b.pad(axis, na, 0))
        })
    }
    /// Adds an axis of size 1.
    pub fn unsqueeze(self, axis: isize) -> Tensor<'g> {
        let mut dims = self.dims();
        let at = axis.rem_euclid(dims.len() as isize + 1) as usize;
        dims.insert(at, self.graph().int(1));
        self.reshape(dims)
    }
    /// Drops an axis of size 1.
    pub fn squeeze(self, axis: isize) -> Tensor<'g> {
        let mut dims = self.dims();
        dims.remove(self.axis(axis));
        self.reshape(dims)
    }

    // ---- elementwise

    /// f16 and bf16 as f32, anything else unchanged.
    pub fn widen(self) -> Tensor<'g> {
        if self.dtype().is_float() { self.cast(Scalar::F32) } else { self }
    }
    pub fn unary(self, op: Unary) -> Tensor<'g> {
        let x = self.widen();
        assert!(op.takes(x.dtype().scalar), "{op:?} of {}", x.dtype());
        x.shaped(Op::Unary(op), x.dtype(), &x.dims(), &[x.0])
    }
    pub fn binary(self, op: Binary, other: Tensor<'g>) -> Tensor<'g> {
        let (a, b) = broadcast(self.widen(), other.widen());
        assert_eq!(a.dtype(), b.dtype(), "{op:?} of {} and {}", a.show_shape(), b.show_shape());
        assert!(op.takes(a.dtype().scalar), "{op:?} of {}", a.dtype());
        let t = if op.is_compare() { DType::BOOL } else { a.dtype() };
        a.shaped(Op::Binary(op), t, &a.dims(), &[a.0, b.0])
    }
    pub fn cast(self, to: Scalar) -> Tensor<'g> {
        if self.dtype().scalar == to {
            return self;
        }
        self.shaped(Op::Cast, to.into(), &self.dims(), &[self.0])
    }
    /// The same bytes as another type. With another width the last axis shrinks or grows.
    pub fn bitcast(self, to: Scalar) -> Tensor<'g> {
        let (from, g) = (self.dtype().scalar, self.graph());
        if from == to {
            return self;
        }
        if from.bytes() == to.bytes() {
            return self.shaped(Op::Bitcast, to.into(), &self.dims(), &[self.0]);
        }
        assert_eq!(from, Scalar::U8, "only bytes widen");
        let n = self.size(-1);
        assert_eq!(n % to.bytes() as i64, 0, "{} as {to}", self.show_shape());
        let wide = match to.bytes() {
            2 => Scalar::U16,
            _ => Scalar::U32,
        };
        let mut dims = self.dims();
        *dims.last_mut().unwrap() = g.int(n / to.bytes() as i64);
        let mut split = dims.clone();
        split.push(g.int(to.bytes() as i64));
        let bytes = self.reshape(split).cast(wide);
        let whole = (0..to.bytes() as i64)
            .map(|i| {
                let b = bytes.slice(-1, i..i + 1).squeeze(-1);
                if i == 0 { b } else { b << (8 * i) }
            })
            .reduce(|a, b| a | b)
            .unwrap();
        whole.bitcast(to)
    }
    /// `self ? a : b`
    pub fn select(self, a: Tensor<'g>, b: Tensor<'g>) -> Tensor<'g> {
        let (a, b) = broadcast(a, b);
        let (c, a) = broadcast(self, a);
        let (a, b) = broadcast(a, b);
        assert_eq!(a.dtype(), b.dtype(), "select between {} and {}", a.show_shape(), b.show_shape());
        a.shaped(Op::Where, a.dtype(), &a.dims(), &[c.0, a.0, b.0])
    }
    /// Entry `self & 15` of a table of 16 bytes.
    pub fn lookup(self, table: [i8; 16], to: Scalar) -> Tensor<'g> {
        assert_eq!(self.dtype(), DType::U8, "a table is indexed by bytes");
        assert_eq!(to.bytes(), 1, "a table holds bytes");
        let table = u128::from_le_bytes(table.map(|b| b as u8));
        self.shaped(Op::Lookup(table), to.into(), &self.dims(), &[self.0])
    }
    pub fn lt(self, o: impl IntoTensor<'g>) -> Tensor<'g> {
        self.binary(Binary::Lt, o.tensor(self))
    }
    pub fn le(self, o: impl IntoTensor<'g>) -> Tensor<'g> {
        self.binary(Binary::Le, o.tensor(self))
    }
    pub fn gt(self, o: impl IntoTensor<'g>) -> Tensor<'g> {
        o.tensor(self).binary(Binary::Lt, self)
    }
    pub fn eq(self, o: impl IntoTensor<'g>) -> Tensor<'g> {
        self.binary(Binary::Eq, o.tensor(self))
    }
    pub fn ne(self, o: impl IntoTensor<'g>) -> Tensor<'g> {
        self.binary(Binary::Ne, o.tensor(self))
    }
    pub fn maximum(self, o: impl IntoTensor<'g>) -> Tensor<'g> {
        self.binary(Binary::Max, o.tensor(self))
    }
    pub fn minimum(self, o: impl IntoTensor<'g>) -> Tensor<'g> {
        self.binary(Binary::Min, o.tensor(self))
    }
    pub fn exp2(self) -> Tensor<'g> {
        self.unary(Unary::Exp2)
    }
    pub fn log2(self) -> Tensor<'g> {
        self.unary(Unary::Log2)
    }
    pub fn sin(self) -> Tensor<'g> {
        self.unary(Unary::Sin)
    }
    pub fn sqrt(self) -> Tensor<'g> {
        self.unary(Unary::Sqrt)
    }
    pub fn recip(self) -> Tensor<'g> {
        self.unary(Unary::Recip)
    }
    pub fn round(self) -> Tensor<'g> {
        self.unary(Unary::Round)
    }

    // ---- reduction: the axis stays, with size 1

    pub fn reduce(self, fold: Fold, axis: isize) -> Tensor<'g> {
        let (x, at) = (self.widen(), self.axis(axis));
        let mut dims = x.dims();
        dims[at] = x.graph().int(1);
        x.shaped(Op::Reduce(fold, 1 << at), x.dtype(), &dims, &[x.0])
    }
    pub fn sum(self, axis: isize) -> Tensor<'g> {
        self.reduce(Fold::Sum, axis)
    }
    pub fn max(self, axis: isize) -> Tensor<'g> {
        self.reduce(Fold::Max, axis)
    }
    pub fn min(self, axis: isize) -> Tensor<'g> {
        self.reduce(Fold::Min, axis)
    }

    // ---- memory

    /// Rows of this table by an index tensor (i32): the index's shape, then the table's without its first axis.
    pub fn gather(self, index: Tensor<'g>) -> Tensor<'g> {
        assert_eq!(index.dtype(), DType::I32, "indices are i32");
        let mut dims = index.dims();
        dims.extend(self.dims().into_iter().skip(1));
        self.shaped(Op::Gather, self.dtype(), &dims, &[self.0, index.0])
    }
    /// The same indices (i32 `[n]`, not falling) with the promise that segment i is `starts[i]..starts[i + 1]`, so that
    /// what they choose can be shared by a segment. What is computed for elements behind the last segment is undefined.
    pub fn segments(self, starts: Tensor<'g>) -> Tensor<'g> {
        assert_eq!((self.dtype(), starts.dtype()), (DType::I32, DType::I32), "segments are i32");
        self.shaped(Op::Segment, self.dtype(), &self.dims(), &[self.0, starts.0])
    }
    /// Writes through this view of a buffer (slices, permutations, a gather for a scatter) and gives the buffer after
    /// that.
    pub fn assign(self, value: Tensor<'g>) -> Tensor<'g> {
        assert_eq!(self.dims(), value.dims(), "store {} into {}", value.show_shape(), self.show_shape());
        assert_eq!(self.dtype(), value.dtype(), "store {} into {}", value.show_shape(), self.show_shape());
        let root = self.root();
        root.shaped(Op::Assign, root.dtype(), &root.dims(), &[self.0, value.0])
    }
    /// The buffer that this view shows.
    fn root(self) -> Tensor<'g> {
        match self.0.op() {
            Op::Buffer(_) | Op::Assign => self,
            Op::Reshape | Op::Permute(_) | Op::Shrink | Op::Gather => Tensor(self.0.arg(0)).root(),
            op => panic!("{op:?} is no view of a buffer"),
        }
    }
    /// Computed once and kept, where the scheduler would recompute.
    pub fn contiguous(self) -> Tensor<'g> {
        self.shaped(Op::Contiguous, self.dtype(), &self.dims(), &[self.0])
    }
}

fn show(dims: &[Ex]) -> Vec<String> {
    dims.iter().map(|&d| crate::text::expr(d)).collect()
}

/// Both sides with the same axes.
fn broadcast<'g>(a: Tensor<'g>, b: Tensor<'g>) -> (Tensor<'g>, Tensor<'g>) {
    let (mut x, mut y) = (a.dims(), b.dims());
    if x == y {
        return (a, b);
    }
    let (n, one) = (x.len().max(y.len()), a.graph().int(1));
    x.splice(0..0, std::iter::repeat_n(one, n - a.rank()));
    y.splice(0..0, std::iter::repeat_n(one, n - b.rank()));
    let to: Vec<_> = x.iter().zip(&y).map(|(&p, &q)| if p == one { q } else { p }).collect();
    let fits = y.iter().zip(&to).all(|(&q, &t)| q == t || q == one);
    assert!(fits, "{} and {} do not broadcast", a.show_shape(), b.show_shape());
    (a.expand(to.clone()), b.expand(to))
}

/// What may stand beside a tensor: another one, or a constant of its type.
pub trait IntoTensor<'g> {
    fn tensor(self, like: Tensor<'g>) -> Tensor<'g>;
}
impl<'g> IntoTensor<'g> for Tensor<'g> {
    fn tensor(self, _: Tensor<'g>) -> Tensor<'g> {
        self
    }
}
impl<'g> IntoTensor<'g> for i64 {
    fn tensor(self, like: Tensor<'g>) -> Tensor<'g> {
        let t = like.widen().dtype();
        let v = if t.is_float() { Bits::float(self as f32) } else { Bits::int(t.scalar.wrap(self)) };
        Tensor(like.graph().constant(t, v))
    }
}
impl<'g> IntoTensor<'g> for f32 {
    fn tensor(self, like: Tensor<'g>) -> Tensor<'g> {
        Tensor(like.graph().float(self))
    }
}

macro_rules! arithmetic { ($($t:ident $f:ident $op:ident),*) => { $(
    impl<'g, R: IntoTensor<'g>> ops::$t<R> for Tensor<'g> {
        type Output = Tensor<'g>;
        fn $f(self, r: R) -> Tensor<'g> {
            self.binary(Binary::$op, r.tensor(self))
        }
    }
)* } }
arithmetic!(Add add Add, Sub sub Sub, Mul mul Mul, Div div Div, Rem rem Mod, BitAnd bitand And, BitOr bitor Or,
    BitXor bitxor Xor, Shl shl Shl, Shr shr Shr);

impl<'g> ops::Not for Tensor<'g> {
    type Output = Tensor<'g>;
    fn not(self) -> Tensor<'g> {
        self.unary(Unary::Not)
    }
}

impl<'g> ops::Neg for Tensor<'g> {
    type Output = Tensor<'g>;
    fn neg(self) -> Tensor<'g> {
        self.unary(Unary::Neg)
    }
}
