//! Operations composed from the tensor language: in, tensors; out, larger expressions that read like the maths.
//!
//! Nothing here adds an op: whatever the scheduler and the interpreter know about the language holds for all of it.
//! "Row" means the last axis; every other axis is carried along.

use crate::dtype::Scalar;
use crate::tensor::{IntoTensor, Tensor};
use std::f32::consts::LOG2_E;

impl<'g> Tensor<'g> {
    pub fn square(self) -> Tensor<'g> {
        self * self
    }
    pub fn abs(self) -> Tensor<'g> {
        self.maximum(-self)
    }
    pub fn mean(self, axis: isize) -> Tensor<'g> {
        self.sum(axis) * (1.0 / self.size(axis) as f32)
    }
    pub fn exp(self) -> Tensor<'g> {
        (self * LOG2_E).exp2()
    }
    pub fn rsqrt(self) -> Tensor<'g> {
        self.sqrt().recip()
    }
    /// `1 − 2·sin²(x/2)`: halving is exact, where `sin(x + π/2)` would round a large angle once more.
    pub fn cos(self) -> Tensor<'g> {
        -((self * 0.5).sin().square() * 2.0) + 1.0
    }
    pub fn sigmoid(self) -> Tensor<'g> {
        ((-self).exp() + 1.0).recip()
    }
    pub fn silu(self) -> Tensor<'g> {
        self * self.sigmoid()
    }
    pub fn softmax(self, axis: isize) -> Tensor<'g> {
        let e = (self - self.max(axis)).exp();
        e * e.sum(axis).recip()
    }
    /// Where the largest element stands, the first of equals; i32, the axis stays with size 1.
    pub fn argmax(self, axis: isize) -> Tensor<'g> {
        let at = self.positions(axis);
        self.eq(self.max(axis)).select(at, (self.size(axis) - 1).tensor(at)).min(axis)
    }
    /// 0, 1, .. along one axis, of size 1 along those after it.
    fn positions(self, axis: isize) -> Tensor<'g> {
        let after = if axis < 0 { -axis - 1 } else { self.rank() as isize - axis - 1 };
        (0..after).fold(self.graph().iota(self.size(axis)), |i, _| i.unsqueeze(-1))
    }
}

/// `x · wᵀ`: x `[.., M, K]`, w `[.., R, K]`, result `[.., M, R]` in f32; leading axes broadcast.
pub fn linear<'g>(x: Tensor<'g>, w: Tensor<'g>) -> Tensor<'g> {
    (x.unsqueeze(-2) * w.unsqueeze(-3)).sum(-1).squeeze(-1)
}

pub fn rms_norm<'g>(x: Tensor<'g>, w: Tensor<'g>, eps: f32) -> Tensor<'g> {
    x * (x.square().mean(-1) + eps).rsqrt() * w
}

/// Which elements of a row turn together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rope {
    /// 2i and 2i + 1.
    Interleaved,
    /// i and i + n/2, as in NeoX.
    HalfSplit,
}

/// Cosine and sine of `positions[..] · inv_freq[n/2]`, each `[.., n/2]`.
pub fn rope_tables<'g>(positions: Tensor<'g>, inv_freq: Tensor<'g>) -> (Tensor<'g>, Tensor<'g>) {
    let angle = positions.cast(Scalar::F32).unsqueeze(-1) * inv_freq;
    (angle.cos(), angle.sin())
}

/// Turns the pairs of each row of x `[.., n]` by angles whose cosine and sine broadcast to `[.., n/2]`.
pub fn rope<'g>(x: Tensor<'g>, cos: Tensor<'g>, sin: Tensor<'g>, style: Rope) -> Tensor<'g> {
    let n = x.size(-1);
    let (pair, sizes) = match style {
        Rope::Interleaved => (-1, [n / 2, 2]),
        Rope::HalfSplit => (-2, [2, n / 2]),
    };
    let p = x.reshape_last(1, &sizes);
    let (a, b) = (p.slice(pair, 0..1), p.slice(pair, 1..2));
    let quarter = p.positions(pair).eq(0).select(-b, a);
    (p * cos.unsqueeze(pair) + quarter * sin.unsqueeze(pair)).reshape_last(2, &[n])
}

/// `[.., n, k]`: is element i of the row the r-th largest? Equals rank by position. O(n²): for a router's few experts.
fn has_rank(x: Tensor, k: i64) -> Tensor {
    let (i, j) = (x.unsqueeze(-1), x.unsqueeze(-2));
    let before = j.positions(-1).lt(i.positions(-2));
    let rank = (j.gt(i) | (j.eq(i) & before)).cast(Scalar::I32).sum(-1);
    rank.eq(x.graph().iota(k))
}

/// The elements of x `[.., n]` that `chosen` `[.., n, k]` (one of each column) picks: `[.., k]`.
fn pick<'g>(chosen: Tensor<'g>, x: Tensor<'g>) -> Tensor<'g> {
    let x = x.unsqueeze(-1);
    chosen.select(x, 0.tensor(x)).sum(-2).squeeze(-2)
}

/// The k largest of each row in falling order and where they stand (i32); O(n²).
pub fn top_k(x: Tensor, k: i64) -> (Tensor, Tensor) {
    let chosen = has_rank(x, k);
    (pick(chosen, x), pick(chosen, x.positions(-1)))
}

/// How logits become scores.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Gate {
    Sigmoid,
    Softmax,
}

/// How a token chooses its experts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Router {
    pub gate: Gate,
    /// Experts a token.
    pub k: i64,
    /// Do the weights of a token sum to `scale`?
    pub normalise: bool,
    pub scale: f32,
}

/// Experts (i32) and their weights, both `[.., k]`. The bias takes part in the choice only, never in the weights.
pub fn router<'g>(logits: Tensor<'g>, bias: Option<Tensor<'g>>, r: Router) -> (Tensor<'g>, Tensor<'g>) {
    let scores = match r.gate {
        Gate::Sigmoid => logits.sigmoid(),
        Gate::Softmax => logits.softmax(-1),
    };
    let chosen = has_rank(bias.map_or(scores, |b| scores + b), r.k);
    let mut weights = pick(chosen, scores);
    if r.normalise {
        // The epsilon of the published models: keeps scores that all underflow from dividing by zero.
        weights = weights / (weights.sum(-1) + 1e-20);
    }
    (pick(chosen, scores.positions(-1)), weights * r.scale)
}

/// Rows in int8: `x[k] ≈ d[k/32] · q[k/32, k%32]`.
#[derive(Clone, Copy)]
pub struct QuantX<'g> {
    /// i8 `[.., K/32, 32]`, -127..=127.
    pub q: Tensor<'g>,
    /// f32 `[.., K/32]`.
    pub d: Tensor<'g>,
    /// Sums of 16 neighbours of `q`: i32 `[.., K/16]`.
    pub s16: Tensor<'g>,
    /// Sums of 32: i32 `[.., K/32]`.
    pub s32: Tensor<'g>,
}

/// x `[.., K]` in int8, a scale for every 32; zeros fill the last block up.
pub fn quantize_i8(x: Tensor) -> QuantX {
    let k = x.size(-1);
    let blocks = (k + 31) / 32;
    let x = x.pad(-1, 0, 32 * blocks - k).reshape_last(1, &[blocks, 32]);
    let d = x.abs().max(-1) * (1.0 / 127.0);
    // A subnormal scale has no finite reciprocal: such a block is zero.
    let inverse = d.gt(f32::MIN_POSITIVE).select(d.recip(), 0.tensor(d));
    let q = (x * inverse).round().cast(Scalar::I8);
    let wide = q.cast(Scalar::I32);
    QuantX {
        q,
        d: d.squeeze(-1),
        s16: wide.reshape_last(2, &[2 * blocks, 16]).sum(-1).squeeze(-1),
        s32: wide.sum(-1).squeeze(-1),
    }
}
