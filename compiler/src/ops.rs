//! Operations composed from the tensor language: in, tensors; out, larger expressions that read like the maths.
//!
//! Nothing here adds an op: whatever the scheduler and the interpreter know about the language holds for all of it.
//! "Row" means the last axis; every other axis is carried along.

use crate::dtype::Scalar;
use crate::graph::{Ex, Op};
use crate::rules::simplify1;
use crate::scalar::Binary;
use crate::tensor::{IntoTensor, Tensor};
use std::f32::consts::{LN_2, LOG2_E};

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
    pub fn ln(self) -> Tensor<'g> {
        self.log2() * LN_2
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

/// As [`linear`], x being bf16 or f16 and w rounded to it: what matrix units multiply.
pub fn linear_half<'g>(x: Tensor<'g>, w: Tensor<'g>) -> Tensor<'g> {
    linear(x.cast(Scalar::F32), w.cast(x.dtype().scalar).cast(Scalar::F32))
}

pub fn rms_norm<'g>(x: Tensor<'g>, w: Tensor<'g>, eps: f32) -> Tensor<'g> {
    x * (x.square().mean(-1) + eps).rsqrt() * w
}

/// x `[.., K]` as a product of what its rows' elements do not have in common and of what they do, `[.., 1]`: the factor
/// can wait until after a sum over K.
pub fn common_factor(x: Tensor) -> (Tensor, Option<Tensor>) {
    match parted(x) {
        (Some(rest), factor) => (rest, factor),
        (None, _) => (x, None),
    }
}

/// Neither part where it is 1.
fn parted<'g>(x: Tensor<'g>) -> (Option<Tensor<'g>>, Option<Tensor<'g>>) {
    let dims = x.dims();
    let (Some(k), Some(&of)) = (dims.last(), x.0.args().first()) else { return (Some(x), None) };
    let of = Tensor(of);
    let row = [&dims[..dims.len() - 1], &[k.like(1)]].concat();
    let both = |a: Option<Tensor<'g>>, b: Option<Tensor<'g>>| a.zip(b).map(|(a, b)| a * b).or(a).or(b);
    match x.0.op() {
        Op::Binary(Binary::Mul) => {
            let [a, b] = [0, 1].map(|i| parted(Tensor(x.0.arg(i))));
            (both(a.0, b.0), both(a.1, b.1))
        }
        Op::Reshape if of.dims().last() == Some(k) => {
            let (rest, factor) = parted(of);
            (rest.map(|t| t.reshape(dims)), factor.map(|t| t.reshape(row)))
        }
        Op::Expand if of.size(-1) == 1 => (None, Some(of.expand(row))),
        _ => (Some(x), None),
    }
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

/// How many elements of its row stand before each in falling order, i32 `[.., n]`; equals rank by position. O(n²): for a
/// router's few experts.
fn rank(x: Tensor) -> Tensor {
    let (i, j) = (x.unsqueeze(-1), x.unsqueeze(-2));
    let before = j.positions(-1).lt(i.positions(-2));
    (j.gt(i) | (j.eq(i) & before)).cast(Scalar::I32).sum(-1).squeeze(-1)
}

/// `[.., n, k]`: is element i of the row the r-th largest?
fn has_rank(x: Tensor, k: i64) -> Tensor {
    rank(x).unsqueeze(-1).eq(x.graph().iota(k))
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
    /// Experts come in this many groups, and a token chooses from the best `groups_used` of them.
    pub groups: i64,
    pub groups_used: i64,
}

/// The scores with those of all but the best groups out of reach. A group is as good as its best expert under softmax
/// (DeepSeek-V2), as its best two together under sigmoid (DeepSeek-V3).
fn best_groups(scores: Tensor, r: Router) -> Tensor {
    let n = scores.size(-1);
    let grouped = scores.reshape_last(1, &[r.groups, n / r.groups]);
    let group = match r.gate {
        Gate::Sigmoid => top_k(grouped, 2.min(n / r.groups)).0.sum(-1),
        Gate::Softmax => grouped.max(-1),
    };
    let kept = rank(group.squeeze(-1)).lt(r.groups_used).unsqueeze(-1);
    kept.select(grouped, f32::MIN.tensor(grouped)).reshape_last(2, &[n])
}

/// Experts (i32) and their weights, both `[.., k]`. The bias takes part in the choice only, never in the weights.
pub fn router<'g>(logits: Tensor<'g>, bias: Option<Tensor<'g>>, r: Router) -> (Tensor<'g>, Tensor<'g>) {
    let scores = match r.gate {
        Gate::Sigmoid => logits.sigmoid(),
        Gate::Softmax => logits.softmax(-1),
    };
    let choice = bias.map_or(scores, |b| scores + b);
    let choice = if r.groups > 1 { best_groups(choice, r) } else { choice };
    let chosen = has_rank(choice, r.k);
    let mut weights = pick(chosen, scores);
    if r.normalise {
        // The epsilon of the published models: keeps scores that all underflow from dividing by zero.
        weights = weights / (weights.sum(-1) + 1e-20);
    }
    (pick(chosen, scores.positions(-1)), weights * r.scale)
}

/// Tokens' choices sorted by what they chose, in tiles that share one expert each.
pub struct Groups<'g> {
    /// Which expert each tile has, i32 `[tiles]`, in segments.
    pub expert: Tensor<'g>,
    /// Which of the `[T·k]` choices stands in each row of the tiles, i32 `[tiles·tile]`; any where none does.
    pub choice: Tensor<'g>,
    /// In which row of the tiles each choice stands, i32 `[T, k]`.
    pub row: Tensor<'g>,
}

/// Groups the experts (i32 `[T, k]`) that tokens chose, `tile` choices a tile. Ranks are counted, O((T·k)²): little beside
/// the experts.
pub fn group(chosen: Tensor, experts: i64, tile: i64) -> Groups {
    let g = chosen.graph();
    let (t, k) = (chosen.size(0), chosen.size(1));
    let n = t * k;
    let chosen = chosen.reshape([n]).contiguous();
    fn count(these: Tensor) -> Tensor {
        these.cast(Scalar::I32).sum(-1).squeeze(-1)
    }
    let earlier = g.iota(n).lt(g.iota(n).unsqueeze(1));
    let rank = count(chosen.eq(chosen.unsqueeze(1)) & earlier);
    let shift = tile.ilog2() as i64;
    assert_eq!(1 << shift, tile, "tiles of a power of two");
    let tiles = ((count(chosen.eq(g.iota(experts).unsqueeze(1))) + (tile - 1)) >> shift).contiguous();
    let before = g.iota(experts).lt(g.iota(experts + 1).unsqueeze(1));
    let starts = before.select(tiles, 0.tensor(tiles)).sum(-1).squeeze(-1).contiguous();
    let row = ((starts.gather(chosen) << shift) + rank).contiguous();
    let most = (n + tile - 1) / tile + experts;
    let ended = starts.slice(0, 1..experts + 1).le(g.iota(most).unsqueeze(1));
    let expert = count(ended).contiguous();
    let here = row.eq(g.iota(most * tile).unsqueeze(1));
    let choice = here.select(g.iota(n), 0.tensor(row)).max(-1).squeeze(-1);
    Groups { expert: expert.segments(starts), choice: choice.contiguous(), row: row.reshape([t, k]) }
}

/// Rows in int8: `x[k] ≈ d[k/32] · q[k/32, k%32]`.
#[derive(Clone, Copy)]
pub struct QuantX<'g> {
    /// i8 `[.., K/32, 32]`, -127..=127.
    pub q: Tensor<'g>,
    /// f32 `[.., K/32]`.
    pub d: Tensor<'g>,
    /// Sums of 16 neighbours of `d·q`: f32 `[.., K/16]`.
    pub s16: Tensor<'g>,
    /// Sums of 32: f32 `[.., K/32]`.
    pub s32: Tensor<'g>,
}

impl<'g> QuantX<'g> {
    /// The same numbers, kept in memory as products of many tokens read them: for each 16 of the M tokens of
    /// `[.., M, K]` a block of one after the other, then the next block. M is a multiple of 16.
    pub fn in_tiles(self) -> QuantX<'g> {
        self.each(|t, row| from_tiles(to_tiles(t, row).contiguous(), row))
    }

    fn each(self, f: impl Fn(Tensor<'g>, usize) -> Tensor<'g>) -> QuantX<'g> {
        QuantX { q: f(self.q, 2), d: f(self.d, 1), s16: f(self.s16, 1), s32: f(self.s32, 1) }
    }
}

/// Tokens that lie side by side where products of many read them.
pub const TILE: i64 = 16;

/// Tokens of a product that a warp computes together.
pub const WARP_TOKENS: i64 = 8;

/// `[.., M, B, ..]` with `row` axes a token to `[.., M/16, B, 16, ..]`.
fn to_tiles(t: Tensor, row: usize) -> Tensor {
    let dims: Vec<i64> = (0..=row).rev().map(|i| t.size(-1 - i as isize)).collect();
    let apart = [&[dims[0] / TILE, TILE], &dims[1..]].concat();
    t.reshape_last(row + 1, &apart).move_axis(-1 - row as isize, -(row as isize))
}

/// The rows of what [`to_tiles`] made.
pub fn from_tiles(t: Tensor, row: usize) -> Tensor {
    let apart = t.move_axis(-(row as isize), -1 - row as isize);
    let dims: Vec<i64> = (0..row + 2).rev().map(|i| apart.size(-1 - i as isize)).collect();
    apart.reshape_last(row + 2, &[&[dims[0] * dims[1]], &dims[2..]].concat())
}

/// What multiplies many tokens at a time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unit {
    /// A tile of 16 tokens by 32 inputs is a kilobyte in a row.
    Tile,
    /// The threads of a warp take eight inputs each: of eight tokens, one of four blocks of 32.
    Warp,
}

impl Unit {
    /// Tokens of an expert that go together where each has so many: enough that unpacking its weights is not most of the work,
    /// but where they are few, not tiles that are empty for the most part.
    pub fn together(self, tokens: i64) -> i64 {
        const FEW: i64 = 4;
        match self {
            Unit::Warp if tokens > FEW => 2 * TILE,
            _ => TILE,
        }
    }
}

/// x `[.., M, K]` in bf16, kept in memory as [`linear_half`] reads it best: in tiles where M and K are whole ones.
pub fn halved(x: Tensor, unit: Unit) -> Tensor {
    let (x, dims) = (x.cast(Scalar::BF16), x.dims());
    let [leading @ .., m, k] = &dims[..] else { panic!("{} is no matrix", x.show_shape()) };
    let g = x.graph();
    let whole = |d: &Ex, n: i64| simplify1(*d % n).as_int() == Some(0);
    fn parts<'g>(d: &Ex<'g>, n: i64) -> Ex<'g> {
        simplify1(*d / n)
    }
    if unit == Unit::Warp && whole(m, WARP_TOKENS) && whole(k, 128) {
        let own = [parts(m, WARP_TOKENS), g.int(WARP_TOKENS), parts(k, 128), g.int(4), g.int(4), g.int(8)];
        return from_warps(to_warps(x.reshape([leading, &own].concat())).contiguous()).reshape(dims);
    }
    if !whole(m, TILE) || !whole(k, 32) {
        return x.contiguous();
    }
    let apart = [leading, &[parts(m, TILE), g.int(TILE), parts(k, 32), g.int(32)]].concat();
    x.reshape(apart).move_axis(-3, -2).contiguous().move_axis(-2, -3).reshape(dims)
}

/// `[.., M/8, 8, K/128, 4, 4, 8]` to `[.., M/8, K/128, 4, 8, 4, 8]`: what the threads of a warp read at once is in a row.
fn to_warps(x: Tensor) -> Tensor {
    x.move_axis(-2, -3).move_axis(-5, -3)
}

/// What [`to_warps`] was given.
pub fn from_warps(x: Tensor) -> Tensor {
    x.move_axis(-3, -5).move_axis(-3, -2)
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
        s16: (wide.reshape_last(1, &[2, 16]).sum(-1).squeeze(-1).cast(Scalar::F32) * d)
            .reshape_last(2, &[2 * blocks]),
        s32: wide.sum(-1).squeeze(-1).cast(Scalar::F32) * d.squeeze(-1),
    }
}

/// As [`quantize_i8`], kept in memory token after token. Views of one tensor that differ in axes of one element share it.
/// `apart`: the first halves of a token's blocks come before the second ones, so that threads with a block each read 16
/// bytes beside their neighbours'.
pub fn kept_i8(x: Tensor, apart: bool) -> QuantX {
    let dims = x.dims();
    let (leading, columns) = dims.split_at(dims.len() - 1);
    let longer = leading.iter().copied().filter(|d| d.as_int() != Some(1));
    let q = quantize_i8(x.reshape(longer.chain(columns.iter().copied()).collect::<Vec<_>>()));
    q.each(|t, row| {
        let own = t.dims().split_off(t.rank() - row);
        // As it was computed: sums of two halves lie beside each other in the rows of their block.
        let kept = match row {
            2 if apart => halves_together(halves_apart(t).contiguous()),
            _ => t.unshaped().contiguous(),
        };
        kept.reshape([leading, &own].concat())
    })
}

/// As [`kept_i8`] of rows `[M, B·32]` that are computed block by block, x `[.., M, 32]`: the kernel that computes a block of all
/// rows makes its bytes too.
pub fn kept_blocks<'g>(x: Tensor<'g>, apart: bool) -> QuantX<'g> {
    let (rank, tokens) = (x.rank() as isize, x.size(-2));
    let blocks: i64 = (0..rank - 2).map(|i| x.size(i)).product();
    let first = |t: Tensor<'g>| t.move_axis(rank - 2, 0);
    quantize_i8(x).each(|t, row| match row {
        2 if apart => {
            let halves = first(t.reshape_last(1, &[2, 16])).move_axis(-2, 1).contiguous();
            halves_together(halves.reshape([tokens, 2, blocks, 16]))
        }
        2 => first(t).contiguous().reshape([tokens, blocks, 32]),
        // A block's scales of all rows beside each other.
        _ => first(t.unshaped().contiguous().reshape(t.dims())).reshape([tokens, blocks * t.size(-1)]),
    })
}

/// `[.., B, 32]` to `[.., 2, B, 16]`.
fn halves_apart(t: Tensor) -> Tensor {
    t.reshape_last(1, &[2, 16]).move_axis(-2, -3)
}

/// What [`halves_apart`] was given.
fn halves_together(t: Tensor) -> Tensor {
    t.move_axis(-3, -2).reshape_last(2, &[32])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::graph::Graph;
    use crate::interp::tensor::{Array, Env, eval, eval1};

    /// Uniform in -scale..scale, the same at every run.
    fn random(n: usize, scale: f32, seed: u64) -> Vec<f32> {
        let mut s = seed;
        let next = || {
            s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((s >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
        };
        std::iter::repeat_with(next).take(n).collect()
    }

    fn ints(a: &Array) -> Vec<i64> {
        a.data.iter().map(|v| v.as_int()).collect()
    }

    fn close(got: &[f32], want: &[f64], bound: f64) {
        assert_eq!(got.len(), want.len());
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            assert!((*g as f64 - w).abs() <= bound * w.abs().max(1.0), "element {i}: {g} for {w}");
        }
    }

    /// Applies `op` to random rows `[rows, n]`; the rows and what came out.
    fn on_rows(
        rows: i64,
        n: i64,
        scale: f32,
        op: impl for<'g> Fn(Tensor<'g>) -> Tensor<'g>,
    ) -> (Vec<f32>, Array) {
        let (g, mut env) = (Graph::new(), Env::default());
        let x = g.input("x", DType::F32, [rows, n]);
        let v = random((rows * n) as usize, scale, 7);
        env.set_floats(x, &v);
        (v, eval1(op(x), &env))
    }

    fn softmax(row: &[f32]) -> Vec<f64> {
        let max = row.iter().fold(f64::MIN, |m, &x| m.max(x as f64));
        let e: Vec<f64> = row.iter().map(|&x| (x as f64 - max).exp()).collect();
        e.iter().map(|v| v / e.iter().sum::<f64>()).collect()
    }

    fn sigmoid(x: f32) -> f64 {
        1.0 / (1.0 + (-x as f64).exp())
    }

    #[test]
    fn activations_and_softmax() {
        let (x, y) = on_rows(3, 50, 20.0, |x| x.silu());
        close(&y.floats(), &x.iter().map(|&x| x as f64 * sigmoid(x)).collect::<Vec<_>>(), 2e-6);
        let (x, y) = on_rows(3, 50, 200.0, |x| x.softmax(-1));
        close(&y.floats(), &x.chunks(50).flat_map(softmax).collect::<Vec<_>>(), 2e-6);
        let (x, y) = on_rows(50, 3, 5.0, |x| x.softmax(0).permute(&[1, 0]));
        let columns = (0..3).flat_map(|c| softmax(&x.iter().copied().skip(c).step_by(3).collect::<Vec<_>>()));
        close(&y.floats(), &columns.collect::<Vec<_>>(), 2e-6);
    }

    #[test]
    fn norm_of_rows() {
        let (g, mut env) = (Graph::new(), Env::default());
        let tokens = g.symbol("tokens", (1, 8));
        let (x, w) = (g.input("x", DType::F32, [tokens, g.int(96)]), g.input("w", DType::F32, [96]));
        let (xs, ws) = (random(5 * 96, 3.0, 1), random(96, 1.0, 2));
        env.symbols.insert("tokens".into(), 5);
        env.set_floats(x, &xs);
        env.set_floats(w, &ws);
        let want = xs.chunks(96).flat_map(|row| {
            let mean = row.iter().map(|&v| (v as f64).powi(2)).sum::<f64>() / 96.0;
            row.iter().zip(&ws).map(move |(&v, &w)| v as f64 / (mean + 1e-5).sqrt() * w as f64)
        });
        close(&eval1(rms_norm(x, w, 1e-5), &env).floats(), &want.collect::<Vec<_>>(), 1e-6);
    }

    #[test]
    fn rope_turns_pairs_by_the_position() {
        let (n, heads) = (8, 2);
        // The frequencies are powers of two, so the angles are exact and large positions test the cosine alone.
        let (positions, inv_freq) = ([0, 3, 100_003, 131_071], [1.0, 0.5, 0.25, 0.125f32]);
        let xs = random(positions.len() * heads * n, 2.0, 3);
        for (style, pair) in [
            (Rope::Interleaved, (|i| (2 * i, 2 * i + 1)) as fn(usize) -> (usize, usize)),
            (Rope::HalfSplit, |i| (i, i + 4)),
        ] {
            let (g, mut env) = (Graph::new(), Env::default());
            let x = g.input("x", DType::F32, [4, heads as i64, n as i64]);
            let (p, f) = (g.input("pos", DType::I32, [4]), g.input("inv_freq", DType::F32, [4]));
            env.set_floats(x, &xs);
            env.set_floats(f, &inv_freq);
            env.set(p, positions.iter().flat_map(|i: &i32| i.to_le_bytes()).collect());
            let (cos, sin) = rope_tables(p, f);
            let y = eval1(rope(x, cos.unsqueeze(1), sin.unsqueeze(1), style), &env).floats();
            let mut want = vec![0.0; xs.len()];
            for (row, at) in (0..xs.len()).step_by(n).enumerate() {
                for (i, &f) in inv_freq.iter().enumerate() {
                    let (s, c) = (positions[row / heads] as f64 * f as f64).sin_cos();
                    let (a, b) = (at + pair(i).0, at + pair(i).1);
                    want[a] = xs[a] as f64 * c - xs[b] as f64 * s;
                    want[b] = xs[b] as f64 * c + xs[a] as f64 * s;
                }
            }
            close(&y, &want, 1e-6);
        }
    }

    #[test]
    fn largest_elements_and_where_they_stand() {
        let (g, mut env) = (Graph::new(), Env::default());
        let x = g.input("x", DType::F32, [2, 6]);
        env.set_floats(x, &[1.0, 5.0, 5.0, -2.0, 5.0, 0.0, -1.0, f32::NEG_INFINITY, -7.0, -3.0, -3.0, -1.0]);
        let (values, at) = top_k(x, 4);
        assert_eq!(eval1(values, &env).floats(), [5.0, 5.0, 5.0, 1.0, -1.0, -1.0, -3.0, -3.0]);
        assert_eq!(ints(&eval1(at, &env)), [1, 2, 4, 0, 0, 5, 3, 4]);
        assert_eq!(ints(&eval1(x.argmax(-1), &env)), [1, 0]);
        assert_eq!(ints(&eval1(x.argmax(0), &env)), [0, 0, 0, 0, 0, 0]);

        let (v, y) = on_rows(4, 40, 1.0, |x| top_k(x, 40).1);
        for (row, got) in v.chunks(40).zip(ints(&y).chunks(40)) {
            let mut order: Vec<i64> = (0..40).collect();
            order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]));
            assert_eq!(got, order);
        }
    }

    #[test]
    fn groups_and_bias_choose_experts_but_do_not_weigh_them() {
        let (n, k) = (16, 4);
        for (gate, normalise, biased, groups) in [
            (Gate::Sigmoid, true, true, 1),
            (Gate::Softmax, false, false, 1),
            (Gate::Softmax, true, true, 1),
            (Gate::Sigmoid, true, true, 4),
            (Gate::Softmax, false, false, 4),
        ] {
            let (g, mut env) = (Graph::new(), Env::default());
            let (x, b) = (g.input("logits", DType::F32, [3, n]), g.input("bias", DType::F32, [n]));
            let (logits, bias) = (random(48, 3.0, 4), random(16, 0.5, 5));
            env.set_floats(x, &logits);
            env.set_floats(b, &bias);
            let r = Router { gate, k, normalise, scale: 1.8, groups, groups_used: 2.min(groups) };
            let (experts, weights) = router(x, biased.then_some(b), r);
            let out = eval(&[experts, weights], &env);
            for (t, row) in logits.chunks(n as usize).enumerate() {
                let scores = match gate {
                    Gate::Sigmoid => row.iter().map(|&x| sigmoid(x)).collect(),
                    Gate::Softmax => softmax(row),
                };
                let key = |i: &usize| scores[*i] + if biased { bias[*i] as f64 } else { 0.0 };
                let falling = |a: &f64, b: &f64| b.total_cmp(a);
                let mut by_group: Vec<(f64, usize)> = (0..groups as usize)
                    .map(|g| {
                        let size = (n / groups) as usize;
                        let mut keys: Vec<f64> = (g * size..(g + 1) * size).map(|i| key(&i)).collect();
                        keys.sort_by(falling);
                        (if gate == Gate::Sigmoid { keys[0] + keys[1] } else { keys[0] }, g)
                    })
                    .collect();
                by_group.sort_by(|a, b| falling(&a.0, &b.0));
                let open = |i: &usize| {
                    by_group[..r.groups_used as usize].iter().any(|g| g.1 == *i / (n / groups) as usize)
                };
                let mut order: Vec<usize> = (0..n as usize).filter(open).collect();
                order.sort_by(|a, b| falling(&key(a), &key(b)));
                let chosen: Vec<f64> = order[..4].iter().map(|&i| scores[i]).collect();
                let norm = if normalise { chosen.iter().sum() } else { 1.0 };
                let experts: Vec<usize> = ints(&out[0])[4 * t..][..4].iter().map(|&i| i as usize).collect();
                assert_eq!(experts, order[..4]);
                let want: Vec<f64> = chosen.iter().map(|w| 1.8 * w / norm).collect();
                close(&out[1].floats()[4 * t..][..4], &want, 1e-6);
            }
        }
    }

    #[test]
    fn what_a_row_has_in_common_is_taken_out() {
        let (g, mut env) = (Graph::new(), Env::default());
        let (x, w) = (g.input("x", DType::F32, [3, 8]), g.input("w", DType::F32, [8]));
        env.set_floats(x, &random(24, 2.0, 8));
        env.set_floats(w, &random(8, 1.0, 9));
        let normed = rms_norm(x, w, 1e-5);
        let (rest, factor) = common_factor(normed.unsqueeze(1));
        let factor = factor.expect("the norm's");
        let out = eval(&[normed, rest, factor, x * w], &env);
        assert_eq!((&out[1].dims[..], &out[2].dims[..]), (&[3, 1, 8][..], &[3, 1, 1][..]));
        let [normed, rest, factor, plain] = [0, 1, 2, 3].map(|i| out[i].floats());
        assert_eq!(rest, plain);
        for (i, (n, r)) in normed.iter().zip(&rest).enumerate() {
            assert!((n - r * factor[i / 8]).abs() <= 1e-6 * n.abs(), "{n} is not {r}·{}", factor[i / 8]);
        }
        assert!(common_factor(x).1.is_none() && common_factor(x * w).1.is_none());
    }

    #[test]
    fn int8_rows_are_within_half_a_step() {
        // 70 columns: the last block is mostly padding. The second row's first block is zero, its second too small.
        let (g, mut env) = (Graph::new(), Env::default());
        let x = g.input("x", DType::F32, [2, 70]);
        let mut v = random(140, 4.0, 6);
        v[70..102].fill(0.0);
        v[102..134].fill(1e-40);
        env.set_floats(x, &v);
        let QuantX { q, d, s16, s32 } = quantize_i8(x);
        let out = eval(&[q, d, s16, s32], &env);
        let q = ints(&out[0]);
        let [d, s16, s32] = [1, 2, 3].map(|i| out[i].floats());
        assert_eq!(
            out.iter().map(|a| a.dims.clone()).collect::<Vec<_>>(),
            [vec![2, 3, 32], vec![2, 3], vec![2, 6], vec![2, 3]]
        );
        for (b, block) in q.chunks(32).enumerate() {
            for (i, &q) in block.iter().enumerate() {
                let (row, col) = (b / 3, b % 3 * 32 + i);
                let x = if col < 70 { v[70 * row + col] } else { 0.0 };
                assert!((x - d[b] * q as f32).abs() <= d[b].max(1e-30) * 0.50001, "{x} as {q}·{}", d[b]);
            }
            let largest = block.iter().map(|q| q.abs()).max().unwrap();
            assert_eq!(largest, if matches!(b, 3 | 4) { 0 } else { 127 });
            let sum = |part: &[i64]| part.iter().sum::<i64>() as f32 * d[b];
            assert_eq!(s32[b], sum(block));
            assert_eq!(s16[2 * b..][..2], [sum(&block[..16]), sum(&block[16..])]);
        }
    }

    #[test]
    fn tiles_of_tokens_hold_the_same_numbers() {
        let (g, mut env) = (Graph::new(), Env::default());
        let x = g.input("x", DType::F32, [32, 96]);
        env.set_floats(x, &random(32 * 96, 3.0, 5));
        let (plain, tiled) = (quantize_i8(x), quantize_i8(x).in_tiles());
        let parts =
            |x: QuantX<'_>| [x.q, x.d, x.s16, x.s32].map(|t| eval1(t, &env)).map(|a| (a.dims, a.data));
        assert_eq!(parts(plain), parts(tiled));
        assert_eq!(parts(plain), parts(kept_i8(x, true)));
        let blocks = x.reshape([32, 3, 1, 32]).move_axis(0, 2);
        for apart in [true, false] {
            assert_eq!(parts(plain), parts(kept_blocks(blocks, apart)));
        }
        let stored = eval1(to_tiles(plain.q, 2), &env);
        assert_eq!(stored.dims, [2, 3, 16, 32]);
        // Token 17 is the second of the second tile; its block 2 lies behind two blocks of 16 tokens.
        let at = ((3 + 2) * 16 + 1) * 32;
        let row = eval1(plain.q, &env).data[(17 * 3 + 2) * 32..][..32].to_vec();
        assert_eq!(stored.data[at..][..32], row);
        // The second half of its block lies behind the first halves of all three.
        assert_eq!(eval1(halves_apart(plain.q), &env).data[((17 * 2 + 1) * 3 + 2) * 16..][..16], row[16..]);
    }

    #[test]
    fn linear_is_a_product_with_the_transpose() {
        let (g, mut env) = (Graph::new(), Env::default());
        let (x, w) = (g.input("x", DType::F32, [2, 3]), g.input("w", DType::F32, [2, 3]));
        env.set_floats(x, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        env.set_floats(w, &[1.0, 0.0, -1.0, 2.0, 2.0, 2.0]);
        assert_eq!(eval1(linear(x, w), &env).floats(), [-2.0, 12.0, -2.0, 30.0]);
    }
}
