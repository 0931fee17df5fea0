//! How far a float may be off: a tensor in, an expression of the same shape out that bounds its error.
//!
//! The error of each operation is that of its arguments, carried through its derivative, and a few roundings of its own;
//! evaluated beside the values it is a running error analysis. Whole numbers that stay small have none in any order of
//! summation, so what is decided by comparing them is the same everywhere.

use crate::dtype::{Bits, DType, Scalar};
use crate::graph::{Ex, Id, Op, topo};
use crate::interp::tensor::{Array, Env, eval};
use crate::scalar::{Binary, Fold, Unary};
use crate::tensor::Tensor;
use std::collections::HashMap;

/// A few units in the last place of an f32: fused multiplications and polynomials are within.
const EPS: f32 = 1.0 / (1 << 21) as f32;

/// The bounds are first order; this covers the rest.
const SLACK: f32 = 4.0;

/// Sums of whole numbers below this are exact.
const WHOLE: f64 = (1 << 24) as f64;

#[derive(Clone, Copy)]
enum Error<'g> {
    Exact,
    Bounded(Tensor<'g>),
    /// An integer or a choice that a small error may change.
    Unknown,
}

#[derive(Default)]
pub struct Errors<'g> {
    errors: HashMap<Id, Error<'g>>,
    wholes: HashMap<Id, Option<f64>>,
}

impl<'g> Errors<'g> {
    pub fn is_exact(&mut self, e: Ex<'g>) -> bool {
        matches!(self.of(e), Error::Exact)
    }

    pub fn is_known(&mut self, e: Ex<'g>) -> bool {
        !matches!(self.of(e), Error::Unknown)
    }

    fn of(&mut self, root: Ex<'g>) -> Error<'g> {
        for e in topo(&[root]) {
            if !self.errors.contains_key(&e.id) {
                let whole = self.whole(e);
                self.wholes.insert(e.id, whole);
                let error = self.node(e);
                self.errors.insert(e.id, error);
            }
        }
        self.errors[&root.id]
    }

    /// If all elements are whole numbers, a bound on their magnitude.
    fn whole(&self, e: Ex) -> Option<f64> {
        let arg = |i: usize| self.wholes[&e.arg(i).id];
        let bound = match e.op() {
            Op::Const(v) if e.dtype().is_float() => {
                Some(v.as_float().abs() as f64).filter(|_| v.as_float().fract() == 0.0)
            }
            Op::Cast if e.dtype() == DType::F32 && !e.arg(0).dtype().is_float() => {
                let (lo, hi) = e.arg(0).dtype().scalar.int_range();
                Some((lo as f64).abs().max(hi as f64))
            }
            Op::Unary(Unary::Neg | Unary::Floor | Unary::Ceil | Unary::Trunc | Unary::Round) => arg(0),
            Op::Binary(Binary::Add | Binary::Sub) => Some(arg(0)? + arg(1)?),
            Op::Binary(Binary::Mul) => Some(arg(0)? * arg(1)?),
            Op::Binary(Binary::Max | Binary::Min) => Some(arg(0)?.max(arg(1)?)),
            Op::Where => Some(arg(1)?.max(arg(2)?)),
            Op::Reduce(Fold::Sum, _) => Some(arg(0)? * reduced(e) as f64),
            Op::Reduce(..) | Op::Contiguous | Op::Gather => arg(0),
            Op::Reshape | Op::Expand | Op::Permute(_) | Op::Shrink | Op::Pad => arg(0),
            _ => None,
        };
        bound.filter(|b| *b < WHOLE && e.dtype() == DType::F32)
    }

    fn node(&self, e: Ex<'g>) -> Error<'g> {
        let (n, args) = (e.node(), e.args());
        let errors: Vec<Error> = args.iter().map(|a| self.errors[&a.id]).collect();
        if errors.iter().any(|x| matches!(x, Error::Unknown)) {
            return Error::Unknown;
        }
        let exact = errors.iter().all(|x| matches!(x, Error::Exact));
        let rounds = matches!(
            n.op,
            Op::Unary(Unary::Exp2 | Unary::Log2 | Unary::Sin | Unary::Sqrt | Unary::Recip)
                | Op::Binary(Binary::Add | Binary::Sub | Binary::Mul | Binary::Div)
                | Op::Reduce(Fold::Sum, _)
        );
        let float = n.dtype == DType::F32;
        if exact && !(float && rounds && self.wholes[&e.id].is_none()) {
            return Error::Exact;
        }
        // The error of an argument as a tensor of its shape.
        let zero = |i: usize| Tensor(e.g.float(0.0)).expand(args[i].dims());
        let err = |i: usize| match errors[i] {
            Error::Bounded(t) => t,
            _ => zero(i),
        };
        let value = Tensor(e);
        let arg = |i: usize| Tensor(args[i]).widen();
        let own = |by: f32| value.widen().abs() * by;
        let view = |t: Tensor<'g>| {
            let mut new = e.args();
            new[0] = t.0;
            Tensor(e.g.shaped(n.op, DType::F32, n.shape, &new))
        };
        Error::Bounded(match n.op {
            Op::Unary(Unary::Neg) => err(0),
            Op::Unary(Unary::Exp2) => own(1.0) * err(0) + own(EPS),
            Op::Unary(Unary::Log2) => err(0) * arg(0).recip() * 1.5 + own(EPS) + EPS,
            Op::Unary(Unary::Sin) => err(0) + EPS * 4.0,
            Op::Unary(Unary::Sqrt) => err(0) * value.recip() * 0.5 + own(EPS),
            Op::Unary(Unary::Recip) => err(0) * value.square() + own(EPS),
            Op::Binary(Binary::Add | Binary::Sub) => err(0) + err(1) + own(EPS),
            Op::Binary(Binary::Mul) => err(0) * arg(1).abs() + err(1) * arg(0).abs() + own(EPS),
            Op::Binary(Binary::Div) => (err(0) + own(1.0) * err(1)) * arg(1).abs().recip() + own(EPS),
            Op::Binary(Binary::Max | Binary::Min) => err(0).maximum(err(1)),
            Op::Where if matches!(errors[0], Error::Exact) => Tensor(args[0]).select(err(1), err(2)),
            Op::Cast if n.dtype.is_float() => {
                let step = match n.dtype.scalar {
                    Scalar::F16 => 1.0 / 1024.0,
                    Scalar::BF16 => 1.0 / 128.0,
                    _ => 0.0,
                };
                // Subnormal halves are further apart than their size tells.
                err(0) + own(step) + 1e-7
            }
            Op::Reduce(Fold::Sum, axes) => {
                let sum = |t: Tensor<'g>| {
                    Tensor(e.g.shaped(Op::Reduce(Fold::Sum, axes), DType::F32, n.shape, &[t.0]))
                };
                sum(err(0)) + sum(arg(0).abs()) * (EPS * reduced(e) as f32)
            }
            Op::Reduce(_, axes) => {
                Tensor(e.g.shaped(Op::Reduce(Fold::Max, axes), DType::F32, n.shape, &[err(0).0]))
            }
            Op::Gather if !matches!(errors[1], Error::Exact) => return Error::Unknown,
            Op::Reshape
            | Op::Expand
            | Op::Permute(_)
            | Op::Shrink
            | Op::Pad
            | Op::Gather
            | Op::Contiguous => view(err(0)),
            // Somewhere in the buffer: everywhere.
            Op::Assign => {
                let most = (0..err(1).rank()).fold(err(1), |t, axis| t.max(axis as isize));
                let most = most.reshape(Vec::<i64>::new());
                let before = match errors[0] {
                    Error::Bounded(_) => return Error::Unknown,
                    _ => most,
                };
                before.expand(e.dims())
            }
            _ => return Error::Unknown,
        })
    }
}

/// Elements that go into one of a reduction.
fn reduced(e: Ex) -> i64 {
    let Op::Reduce(_, axes) = e.op() else { return 1 };
    let dims = e.arg(0).dims();
    (0..dims.len()).filter(|i| axes >> i & 1 == 1).map(|i| dims[i].bounds().1).product()
}

/// What a correct device may give.
#[derive(Clone, Debug)]
pub struct Expected {
    pub value: Array,
    /// Largest error of each element; none if there is no error at all.
    error: Option<Vec<f32>>,
}

/// What the interpreter gives for each output, with the errors of other orders and roundings. None if an output's error
/// cannot be bounded.
pub fn expected<'g>(outputs: &[Tensor<'g>], env: &Env) -> Option<Vec<Expected>> {
    let mut errors = Errors::default();
    let mut all = outputs.to_vec();
    let mut bounds = vec![];
    for t in outputs {
        bounds.push(match errors.of(t.0) {
            Error::Exact => None,
            Error::Bounded(e) => {
                all.push(e);
                Some(all.len() - 1)
            }
            Error::Unknown => return None,
        });
    }
    let arrays = eval(&all, env);
    let expected = bounds
        .iter()
        .zip(&arrays)
        .map(|(bound, value)| Expected { value: value.clone(), error: bound.map(|i| arrays[i].floats()) });
    Some(expected.collect())
}

impl Expected {
    /// May this be element `i`?
    pub fn allows(&self, i: usize, got: Bits) -> bool {
        let want = self.value.data[i];
        match &self.error {
            _ if want == got => true,
            None if !self.value.scalar.is_float() => false,
            // Zeros of either sign are equal.
            None => want.as_float() == got.as_float(),
            Some(error) => (want.as_float() - got.as_float()).abs() <= SLACK * error[i],
        }
    }

    /// The first element that is off by more than it may be.
    pub fn difference(&self, got: &Array) -> Option<String> {
        let s = self.value.scalar;
        let wrong = (0..got.data.len()).find(|&i| !self.allows(i, got.data[i]))?;
        let bound = self.error.as_ref().map_or(0.0, |e| SLACK * e[wrong]);
        Some(format!(
            "element {wrong} of {:?} is {}, not {} ± {bound:e}",
            self.value.dims,
            got.data[wrong].show(s),
            self.value.data[wrong].show(s)
        ))
    }
}
