//! Random tensor programs, to compare whole compilations with the tensor interpreter: a seed in, outputs and inputs out.
//!
//! Every result is determined: integers bit by bit, floats up to a bound that [`expected`] computes along with them. What
//! is discontinuous (comparing, rounding, casting to an integer) happens to floats without error only, and arguments of
//! partial functions are brought into their domain first, so that no infinity or NaN comes up.

mod error;
mod shrink;

pub use error::{Expected, expected};
pub use shrink::shrink_outputs;

use crate::dtype::{Bits, DType, Scalar};
use crate::graph::{Ex, Graph, Op};
use crate::interp::tensor::{Env, index};
use crate::ops::{self, QuantX};
use crate::quant::{FORMATS, Layout};
use crate::rng::Rng;
use crate::scalar::{Binary, Fold, Unary};
use crate::shape::product;
use crate::table::{Fill, fill};
use crate::tensor::Tensor;
use error::Errors;

/// Most elements of a tensor.
const MOST: i64 = 4096;

/// The symbols that shapes may hold: sizes up to 6, and a position that leaves room for as much.
const SIZE: (&str, (i64, i64)) = ("n", (1, 6));
const POSITION: (&str, (i64, i64)) = ("pos", (0, 10));

/// A program and everything it needs to run.
pub struct Sample<'g> {
    pub outputs: Vec<Tensor<'g>>,
    pub env: Env,
}

/// A legal tensor program of about this many steps.
pub fn random_graph<'g>(g: &'g Graph, rng: &mut Rng, steps: usize) -> Sample<'g> {
    let mut env = Env::default();
    for (name, bounds) in [SIZE, POSITION] {
        g.symbol(name, bounds);
        env.symbols.insert(name.into(), rng.range(bounds.0, bounds.1));
    }
    let mut b = Builder { g, rng, env, pool: vec![], outputs: vec![], errors: Errors::default() };
    let first = b.input();
    b.pool.push(first);
    let mut made = 0;
    while made < steps {
        if let Some(t) = b.step().filter(|t| b.fits(*t)) {
            b.pool.push(t);
            made += 1;
        }
    }
    let outputs = 1 + b.rng.below(3);
    for _ in 0..outputs {
        // The latest are the deepest.
        let back = b.rng.below(b.pool.len().min(4));
        b.outputs.push(b.pool[b.pool.len() - 1 - back]);
    }
    b.outputs.retain(|t| !matches!(t.0.op(), Op::Buffer(_)));
    if b.outputs.is_empty() {
        let last = *b.pool.last().unwrap();
        b.outputs.push(last.contiguous());
    }
    let mut seen = std::collections::HashSet::new();
    b.outputs.retain(|t| seen.insert(t.0.id));
    Sample { outputs: b.outputs, env: b.env }
}

struct Builder<'g, 'r> {
    g: &'g Graph,
    rng: &'r mut Rng,
    env: Env,
    /// What further steps may use.
    pool: Vec<Tensor<'g>>,
    outputs: Vec<Tensor<'g>>,
    errors: Errors<'g>,
}

impl<'g> Builder<'g, '_> {
    fn fits(&mut self, t: Tensor<'g>) -> bool {
        t.rank() <= 6 && product(self.g, &t.dims()).bounds().1 <= MOST && self.errors.is_known(t.0)
    }

    fn any(&mut self) -> Tensor<'g> {
        // Long chains come from using what was made last.
        let n = self.pool.len();
        let back = if self.rng.one_in(2) { self.rng.below(n.min(3)) } else { self.rng.below(n) };
        self.pool[n - 1 - back]
    }

    fn any_of(&mut self, fits: impl Fn(&Tensor<'g>) -> bool) -> Option<Tensor<'g>> {
        let all: Vec<Tensor> = self.pool.iter().copied().filter(fits).collect();
        (!all.is_empty()).then(|| all[all.len() - 1 - self.rng.below(all.len().min(4))])
    }

    fn float(&mut self) -> Option<Tensor<'g>> {
        self.any_of(|t| t.dtype() == DType::F32)
    }

    fn symbol(&self, (name, bounds): (&str, (i64, i64))) -> Ex<'g> {
        self.g.symbol(name, bounds)
    }

    fn step(&mut self) -> Option<Tensor<'g>> {
        match self.rng.below(32) {
            0..3 => Some(self.input()),
            3..9 => self.movement(),
            9..13 => self.unary(),
            13..19 => self.binary(),
            19..21 => self.cast(),
            21 => self.select(),
            22..26 => self.reduce(),
            26 => self.gather(),
            27 => self.join(),
            28 => self.assign(),
            29 => self.composed(),
            30 => self.linear(),
            _ => Some(self.any().contiguous()),
        }
    }

    fn filled(&mut self, name: &str, t: DType, dims: &[Ex<'g>], how: Fill) -> Tensor<'g> {
        let x = Tensor(self.g.new_buffer(name, t, dims));
        let n: i64 = dims.iter().map(|&d| index(d, &self.env)).product();
        let bytes = match (t.scalar, how) {
            (Scalar::F32, Fill::Ints(lo, hi)) => {
                (0..n).flat_map(|_| (self.rng.range(lo, hi) as f32).to_le_bytes()).collect()
            }
            (Scalar::Bool, _) => (0..n).map(|_| self.rng.below(2) as u8).collect(),
            _ => fill(t, n as usize, how, self.rng),
        };
        self.env.set(x, bytes);
        x
    }

    fn input(&mut self) -> Tensor<'g> {
        let sizes = [1, 2, 3, 4, 5, 7, 8, 16, 17, 32, 33, 64];
        let mut dims: Vec<Ex> =
            (0..1 + self.rng.below(3)).map(|_| self.g.int(*self.rng.choose(&sizes))).collect();
        if self.rng.one_in(4) {
            dims[0] = self.symbol(SIZE);
        }
        while product(self.g, &dims).bounds().1 > MOST / 2 {
            dims.pop();
        }
        let (t, how) = *self.rng.choose(&[
            (DType::F32, Fill::Normal(1.0)),
            (DType::F32, Fill::Normal(1.0)),
            (DType::F32, Fill::Ints(-6, 6)),
            (DType::F16, Fill::Normal(2.0)),
            (DType::BF16, Fill::Normal(2.0)),
            (DType::I32, Fill::Ints(-20, 20)),
            (DType::I32, Fill::Bits),
            (DType::U8, Fill::Bits),
            (DType::I8, Fill::Bits),
            (DType::I64, Fill::Ints(-9, 9)),
            (DType::BOOL, Fill::Bits),
        ]);
        let name = format!("in{}", self.pool.len());
        self.filled(&name, t, &dims, how)
    }

    /// An axis whose size is a constant.
    fn fixed_axis(&mut self, t: Tensor<'g>) -> Option<(usize, i64)> {
        let all: Vec<(usize, i64)> =
            t.dims().iter().enumerate().filter_map(|(i, d)| Some((i, d.as_int()?))).collect();
        (!all.is_empty()).then(|| *self.rng.choose(&all))
    }

    fn movement(&mut self) -> Option<Tensor<'g>> {
        let x = self.any();
        let mut dims = x.dims();
        match self.rng.below(7) {
            0 => {
                let mut axes: Vec<usize> = (0..x.rank()).collect();
                (1..axes.len()).for_each(|i| axes.swap(i, self.rng.below(i + 1)));
                Some(x.permute(&axes))
            }
            1 => {
                let (axis, n) = self.fixed_axis(x)?;
                let by: Vec<i64> = (2..n).filter(|d| n % d == 0).collect();
                let by = if by.is_empty() { 1 } else { *self.rng.choose(&by) };
                dims.splice(axis..=axis, [self.g.int(n / by), self.g.int(by)]);
                Some(x.reshape(dims))
            }
            2 if x.rank() >= 2 => {
                let axis = self.rng.below(x.rank() - 1);
                let both = product(self.g, &dims[axis..axis + 2]);
                dims.splice(axis..axis + 2, [both]);
                Some(x.reshape(dims))
            }
            3 => {
                let (axis, n) = self.fixed_axis(x)?;
                let start = self.rng.range(0, n - 1);
                Some(x.slice(axis as isize, start..self.rng.range(start + 1, n)))
            }
            4 => {
                let (axis, n) = self.fixed_axis(x)?;
                let (n_, at) = (self.symbol(SIZE), self.symbol(POSITION));
                // At most pos + n elements are there whatever the symbols are.
                (n >= 16).then(|| x.slice_dim(axis as isize, at, n_))
            }
            5 => {
                let (axis, _) = self.fixed_axis(x)?;
                Some(x.pad(axis as isize, self.rng.range(0, 3), self.rng.range(0, 3)))
            }
            _ => {
                let at = self.rng.below(x.rank() + 1);
                dims.insert(at, self.g.int(self.rng.range(1, 4)));
                Some(x.unsqueeze(at as isize).expand(dims))
            }
        }
    }

    fn unary(&mut self) -> Option<Tensor<'g>> {
        let x = self.any();
        let s = x.widen().dtype().scalar;
        let exact = self.errors.is_exact(x.0);
        let op = *self.rng.choose(&Unary::ALL);
        if !op.takes(s) {
            return None;
        }
        Some(match op {
            Unary::Exp2 => x.widen().maximum(-8.0).minimum(6.0).exp2(),
            Unary::Log2 | Unary::Recip | Unary::Sqrt => (x.widen().abs() + 0.5).unary(op),
            Unary::Sin => x.widen().maximum(-50.0).minimum(50.0).sin(),
            Unary::Floor | Unary::Ceil | Unary::Trunc | Unary::Round if !exact => return None,
            _ => x.unary(op),
        })
    }

    /// Something to stand beside `x`: of its shape, a part of it that broadcasts, or a constant.
    fn partner(&mut self, x: Tensor<'g>) -> Tensor<'g> {
        let t = x.widen().dtype();
        let same = |p: &Tensor| p.widen().dtype() == t && p.dims() == x.dims();
        match self.rng.below(4) {
            0 => self.constant(t),
            1 if t != DType::BOOL && x.rank() > 0 => x.widen().reduce(Fold::Max, -1),
            _ => self.any_of(same).unwrap_or(x),
        }
    }

    fn constant(&mut self, t: DType) -> Tensor<'g> {
        let v = match t.scalar {
            Scalar::Bool => Bits::bool(self.rng.one_in(2)),
            s if s.is_float() => Bits::float(*self.rng.choose(&[0.0, 1.0, -1.0, 0.5, 3.0, -2.25])),
            s => Bits::int(s.wrap(*self.rng.choose(&[0, 1, -1, 2, 3, 5, 8, 100, 1 << 20]))),
        };
        Tensor(self.g.constant(t, v))
    }

    fn binary(&mut self) -> Option<Tensor<'g>> {
        let a = self.any();
        let b = self.partner(a);
        let op = *self.rng.choose(&Binary::ALL);
        if !op.takes(a.widen().dtype().scalar) {
            return None;
        }
        let exact = self.errors.is_exact(a.0) && self.errors.is_exact(b.0);
        let float = a.widen().dtype() == DType::F32;
        Some(match op {
            Binary::Div if float => a.widen() / (b.widen().abs() + 0.5),
            _ if op.is_compare() && !exact => return None,
            // Products of products would leave the range.
            Binary::Mul if float => a.binary(op, b).maximum(-1e3).minimum(1e3),
            Binary::Add | Binary::Sub if float => a.binary(op, b).maximum(-1e4).minimum(1e4),
            _ => a.binary(op, b),
        })
    }

    fn cast(&mut self) -> Option<Tensor<'g>> {
        let x = self.any();
        let (from, to) = (x.dtype().scalar, *self.rng.choose(&Scalar::ALL));
        let same_width = from.bytes() == to.bytes() && from != Scalar::Bool && to != Scalar::Bool;
        if same_width && from.is_int() && to.is_int() && self.rng.one_in(2) {
            return Some(x.bitcast(to));
        }
        if from == Scalar::U8 && to.bytes() == 1 && to != Scalar::Bool && self.rng.one_in(2) {
            let table: [i8; 16] = std::array::from_fn(|_| self.rng.bits() as i8);
            return Some(x.lookup(table, to));
        }
        match (from.is_float(), to.is_float()) {
            (true, false) if !self.errors.is_exact(x.0) => None,
            (true, false) if to != Scalar::Bool => {
                let low = if to.is_signed() { -100.0 } else { 0.0 };
                Some(x.widen().maximum(low).minimum(100.0).cast(to))
            }
            // A float of many bits leaves the range of f16.
            (false, true) => Some(x.cast(Scalar::I8).cast(Scalar::F32).cast(to)),
            (true, true) => Some(x.widen().maximum(-1e3).minimum(1e3).cast(to)),
            _ => Some(x.cast(to)),
        }
    }

    fn select(&mut self) -> Option<Tensor<'g>> {
        let a = self.any();
        let same = |p: &Tensor| p.dtype() == a.dtype() && p.dims() == a.dims();
        let b = self.any_of(same)?;
        let c = match self.any_of(|p| p.dtype() == DType::BOOL && p.dims() == a.dims()) {
            Some(c) => c,
            None => self.g.iota_dim(*a.dims().last()?).lt(3),
        };
        Some(c.select(a, b))
    }

    fn reduce(&mut self) -> Option<Tensor<'g>> {
        let x = self.any();
        let fold = *self.rng.choose(&Fold::ALL);
        if x.rank() == 0 || !fold.binary().takes(x.widen().dtype().scalar) {
            return None;
        }
        let axis = self.rng.below(x.rank()) as isize;
        let y = x.reduce(fold, axis);
        Some(if self.rng.one_in(2) { y } else { y.squeeze(axis) })
    }

    fn gather(&mut self) -> Option<Tensor<'g>> {
        let index = self.any_of(|t| t.dtype() == DType::I32 && t.rank() <= 2)?;
        let table = self.any_of(|t| t.rank() >= 1)?;
        Some(table.gather(index))
    }

    fn join(&mut self) -> Option<Tensor<'g>> {
        let a = self.any();
        let (axis, _) = self.fixed_axis(a)?;
        let same = |b: &Tensor| {
            let (mut x, mut y) = (a.dims(), b.dims());
            let alike = b.dtype() == a.dtype() && x.len() == y.len() && y[axis].as_int().is_some();
            alike && {
                x.remove(axis);
                y.remove(axis);
                x == y
            }
        };
        let b = self.any_of(same)?;
        Some(Tensor::concat(&[a, b], axis as isize))
    }

    /// A value of the pool's into a part of new memory.
    fn assign(&mut self) -> Option<Tensor<'g>> {
        let value = self.any();
        let (axis, n) = self.fixed_axis(value)?;
        let mut dims = value.dims();
        let (room, at) = match self.rng.below(3) {
            0 => (n + 10, self.symbol(POSITION)),
            1 => (n + 3, self.g.int(self.rng.range(0, 3))),
            _ => (n, self.g.int(0)),
        };
        dims[axis] = self.g.int(room);
        if product(self.g, &dims).bounds().1 > MOST {
            return None;
        }
        let how = if value.dtype().is_float() { Fill::Normal(1.0) } else { Fill::Bits };
        let memory = self.filled(&format!("memory{}", self.pool.len()), value.dtype(), &dims, how);
        Some(memory.slice_dim(axis as isize, at, self.g.int(n)).assign(value))
    }

    /// Chains as models have them.
    fn composed(&mut self) -> Option<Tensor<'g>> {
        let x = self.float().filter(|x| x.rank() > 0)?.maximum(-8.0).minimum(8.0);
        let last = x.dims().pop()?.as_int()?;
        Some(match self.rng.below(4) {
            0 => x.softmax(-1),
            1 => x.silu(),
            2 => {
                let w = self.filled("w", DType::F32, &[self.g.int(last)], Fill::Normal(1.0));
                ops::rms_norm(x, w, 1e-2)
            }
            _ => {
                let rows = self.rng.range(1, 9);
                if product(self.g, &x.dims()).bounds().1 * rows > MOST || x.rank() < 2 {
                    return None;
                }
                let w =
                    self.filled("w", DType::F32, &[self.g.int(rows), self.g.int(last)], Fill::Normal(0.3));
                ops::linear(x, w)
            }
        })
    }

    /// A product with a quantised matrix.
    fn linear(&mut self) -> Option<Tensor<'g>> {
        let formats: Vec<_> = FORMATS.iter().filter(|f| f.is_quantised() && f.name != "MXFP4").collect();
        let format = *self.rng.choose(&formats);
        let (rows, cols) = (self.rng.range(1, 12), format.block.max(32));
        let layout = *self.rng.choose(&[Layout::Rows, Layout::Interleaved16]);
        let (buffers, planes) = format.inputs(self.g, "w", &[], rows, cols, layout);
        for b in buffers {
            let how = if b.dtype().is_float() { Fill::Between(0.001, 0.01) } else { Fill::Bits };
            let n: i64 = b.dims().iter().map(|&d| index(d, &self.env)).product();
            let bytes = fill(b.dtype(), n as usize, how, self.rng);
            self.env.set(b, bytes);
        }
        let tokens = if self.rng.one_in(3) { self.symbol(SIZE) } else { self.g.int(self.rng.range(1, 3)) };
        let mut part = |name: &str, t, more: &[i64], how| {
            let dims: Vec<Ex> = std::iter::once(tokens).chain(more.iter().map(|&d| self.g.int(d))).collect();
            self.filled(name, t, &dims, how)
        };
        let x = QuantX {
            q: part("q", DType::I8, &[cols / 32, 32], Fill::Ints(-127, 127)),
            d: part("d", DType::F32, &[cols / 32], Fill::Between(0.001, 0.02)),
            s16: part("s16", DType::F32, &[cols / 16], Fill::Normal(10.0)),
            s32: part("s32", DType::F32, &[cols / 32], Fill::Normal(10.0)),
        };
        Some(planes.linear_q8(&x))
    }
}

#[cfg(test)]
mod tests;
