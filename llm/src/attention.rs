//! Attention over a cache: grouped heads with keys and values, or one latent row for all heads (MLA).
//!
//! In: normed activations `[T, dim]` and the [`Place`] of these tokens. Out: what is added to the residual stream, and the
//! cache with the tokens' rows written. Both kinds end in [`attend`]. A sequence's rows lie in order, or in pages that a
//! table names.

#[cfg(test)]
mod tests;

use crate::config::{self, Config};
use crate::weights::{Error, Inputs, Matrix, Numbers};
use compiler::dtype::{DType, Scalar};
use compiler::graph::{Ex, Graph};
use compiler::ops::{self, Rope, Unit};
use compiler::rules::simplify1;
use compiler::tensor::{IntoTensor, Tensor};

/// Positions of the cache are attended to in whole blocks of this many; so many rows are a page.
pub const KV_BLOCK: i64 = 32;

/// The same where each block is a piece of the work: so many are worth the sums of values that a piece leaves in memory.
const PIECE: i64 = 64;

/// Where there may be more positions, a matrix unit has twice as many a piece: fewer pieces are added up at the end.
pub const DEEP: i64 = 8192;

/// Where there may be no more, it has this many: what one processor would wait for, more of them wait for side by side.
pub const SHALLOW: i64 = 512;
const LITTLE: i64 = 16;

/// The same where a matrix unit takes four blocks at once.
const LONG_BLOCK: i64 = 128;

/// Most heads that share what a piece reads of the cache.
const SHARING: i64 = 5;

/// The same on a matrix unit; where pieces may be fewer than processors, so that there are more of them; and as many heads as
/// are worth it.
const SHARING_BY_WARPS: i64 = 32;
const SHARING_A_FEW: i64 = 16;
const HEADS: i64 = 8;

/// Columns of values that are added up over the pieces together at least, and the rows of them that are enough work.
const COLUMNS: i64 = 32;
const ROWS: i64 = 256;

/// So many tokens of a prompt attend together to what was there before the last of them: on a GPU as many as memory has
/// room for, as its launches are many and short.
fn part(unit: Option<Unit>, heads: i64, positions: i64) -> i64 {
    let fits = |n: &i64| n * heads * positions * 4 <= SCORES;
    match unit {
        None | Some(Unit::Tile) => 128,
        Some(Unit::Warp) => [512, 256, 128, 64].into_iter().find(fits).unwrap_or(32),
    }
}

/// Bytes that the scores of a part may take on a GPU.
const SCORES: i64 = 1 << 30;

/// Whose tokens a step holds, and where their rows of the cache lie.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reach {
    /// Those of one sequence that follow each other; row i of the cache is position i.
    Whole,
    /// Those of a few sequences, whose pages are one table.
    Paged,
    /// Each has a position and pages of its own.
    Apart,
}

/// Positions of each block of so many tokens, in a plan for so many positions.
pub fn block(c: &Config, tokens: i64, numbers: Numbers, reach: Reach, positions: i64) -> i64 {
    match numbers.halves(tokens) {
        _ if in_pieces(tokens, numbers, reach) => match by_warps(c, numbers) {
            true if positions > DEEP => 2 * PIECE,
            true if positions <= SHALLOW && reach == Reach::Whole => LITTLE,
            // A piece is not less than a page.
            true if positions <= SHALLOW => KV_BLOCK,
            _ => PIECE,
        },
        Some(unit) if reach == Reach::Whole && (unit == Unit::Warp || tokens >= LONG_BLOCK) => LONG_BLOCK,
        _ => KV_BLOCK,
    }
}

/// Is each block a piece of the work: has every token positions of its own?
fn in_pieces(tokens: i64, numbers: Numbers, reach: Reach) -> bool {
    numbers.spread && (tokens == 1 && reach == Reach::Whole || reach == Reach::Apart)
}

/// Are pieces for a matrix unit that takes what the cache holds, with heads enough that share it?
fn by_warps(c: &Config, numbers: Numbers) -> bool {
    let sharing = match c.attention {
        config::Attention::Gqa { kv_heads, .. } => c.heads / kv_heads,
        config::Attention::Mla { .. } => c.heads,
    };
    numbers.unit == Some(Unit::Warp) && numbers.cache() == DType::F16 && sharing >= HEADS
}

/// What a step in pages is told in memory, i32.
pub struct Paging<'g> {
    /// The row of the cache that each token writes, `[T]`.
    pub slots: Tensor<'g>,
    /// Each token's position, `[T]`.
    pub positions: Tensor<'g>,
    /// Where its sequence begins in a table of several, `[T]`.
    pub starts: Tensor<'g>,
    /// The pages that hold the positions in order, `[pages]` of one sequence after the other or `[T, pages]`.
    pub table: Tensor<'g>,
}

/// Where the tokens of a step stand.
pub struct Place<'g> {
    /// Number of tokens.
    pub tokens: i64,
    /// Position of the first; in a table of several sequences token i sees nothing behind `pos + i`.
    pub pos: Ex<'g>,
    /// Blocks of the cache that hold all positions up to the last, and the positions of one.
    pub blocks: Ex<'g>,
    block: i64,
    /// Cosine and sine of each position of the cache, f32 `[capacity, n/2]`.
    pub cos: Tensor<'g>,
    pub sin: Tensor<'g>,
    /// What computes scores and values in bf16, if anything.
    halves: Option<Unit>,
    in_pieces: bool,
    by_warps: bool,
    reach: Reach,
    pub paging: Option<Paging<'g>>,
}

impl<'g> Place<'g> {
    /// Of so many tokens in a cache of such a capacity, of which so many positions may be filled after them.
    pub fn new(
        g: &'g Graph,
        c: &Config,
        tokens: i64,
        (capacity, positions): (i64, i64),
        numbers: Numbers,
        reach: Reach,
    ) -> Place<'g> {
        let table = |name| g.input(name, DType::F32, [capacity, c.rotary.dims / 2]);
        let block = block(c, tokens, numbers, reach, positions);
        let blocks = g.symbol("blocks", (1, positions / block));
        let pages = blocks * (block / KV_BLOCK);
        let paging = (reach != Reach::Whole).then(|| Paging {
            slots: g.input("slots", DType::I32, [tokens]),
            positions: g.input("positions", DType::I32, [tokens]),
            starts: g.input("starts", DType::I32, [tokens]),
            table: match reach {
                Reach::Apart => g.input("table", DType::I32, [g.int(tokens), pages]),
                _ => g.input("table", DType::I32, [pages]),
            },
        });
        Place {
            tokens,
            halves: numbers.halves(tokens).filter(|_| !in_pieces(tokens, numbers, reach)),
            in_pieces: in_pieces(tokens, numbers, reach),
            by_warps: by_warps(c, numbers),
            pos: g.symbol("pos", (0, positions - tokens)),
            blocks,
            block,
            cos: table("cos"),
            sin: table("sin"),
            reach,
            paging,
        }
    }

    /// Turns the first elements of each head of x `[T, heads, n]`.
    fn turn(&self, x: Tensor<'g>, style: Rope) -> Tensor<'g> {
        let n = x.size(-1);
        let turning = 2 * self.cos.size(-1);
        let here = |t: Tensor<'g>| match &self.paging {
            Some(p) => t.gather(p.positions).unsqueeze(1),
            None => t.slice_dim(0, self.pos, x.dims()[0]).unsqueeze(1),
        };
        let turned = ops::rope(x.slice(-1, 0..turning), here(self.cos), here(self.sin), style);
        if turning == n { turned } else { Tensor::concat(&[turned, x.slice(-1, turning..n)], -1) }
    }

    /// The cache after these tokens' rows `[T, ..]` are written.
    fn write(&self, cache: Tensor<'g>, rows: Tensor<'g>) -> Tensor<'g> {
        let view = match &self.paging {
            Some(p) => cache.gather(p.slots),
            None => cache.slice_dim(0, self.pos, rows.dims()[0]),
        };
        view.assign(rows.cast(cache.dtype().scalar))
    }

    /// Positions of all blocks.
    fn length(&self) -> Ex<'g> {
        self.blocks * self.block
    }

    /// Scores `[T, .., L]`, or with the tokens on another axis, of the positions `key` that each token may see; they are
    /// those of the tokens from `first` on.
    fn masked(&self, scores: Tensor<'g>, key: Tensor<'g>, axis: usize, first: i64) -> Tensor<'g> {
        let (g, tokens) = (scores.graph(), scores.size(axis as isize));
        let along = |t: Tensor<'g>| (axis + 1..scores.rank()).fold(t, |t, _| t.unsqueeze(-1));
        let own = |t: Tensor<'g>| along(t.slice(0, first..first + tokens));
        let visible = match &self.paging {
            Some(p) if self.reach == Reach::Apart => key.le(along(p.positions)),
            Some(p) => own(p.starts).le(key) & key.le(own(p.starts + p.positions)),
            None => key.le(along(g.iota(tokens) + g.scalar(self.pos + first).cast(Scalar::I32))),
        };
        // Far below any score; minus infinity would make a row of nothing else undefined.
        visible.select(scores, (-1e30).tensor(scores))
    }

    /// The softmax of such scores over all positions: what is in proportion to it, and the factor that is missing.
    fn weights(&self, scores: Tensor<'g>, axis: usize, first: i64) -> [Tensor<'g>; 2] {
        let key = scores.graph().iota_dim(*scores.dims().last().expect("scores have positions"));
        let scores = self.masked(scores, key, axis, first);
        let e = (scores - scores.max(-1)).exp();
        [e, e.sum(-1).recip()]
    }

    /// The softmax by itself, read from the scores twice and never stored in f32.
    fn shares(&self, scores: Tensor<'g>, axis: usize, first: i64) -> Tensor<'g> {
        let key = scores.graph().iota_dim(*scores.dims().last().expect("scores have positions"));
        let scores = self.masked(scores, key, axis, first);
        let top = scores.max(-1);
        (scores - (top + (scores - top).exp().sum(-1).ln()).contiguous()).exp()
    }

    /// Rows that are keys, as scores read them.
    fn keys(&self, rows: Tensor<'g>) -> Tensor<'g> {
        if self.halves == Some(Unit::Tile) { in_columns(rows) } else { rows }
    }

    /// The rows that any of the tokens may see, `[L, ..]`; for each token by itself `[T, L, ..]` where they are apart.
    fn seen(&self, cache: Tensor<'g>) -> Tensor<'g> {
        let (g, length) = (cache.graph(), self.length());
        let Some(p) = &self.paging else { return cache.slice_dim(0, g.int(0), length) };
        let row = &cache.dims()[1..];
        let page = [&[g.int(cache.size(0) / KV_BLOCK), g.int(KV_BLOCK)], row].concat();
        let rows = cache.reshape(page).gather(p.table);
        match self.reach {
            Reach::Apart => rows.reshape([&[g.int(self.tokens), length], row].concat()),
            _ => rows.reshape([&[length], row].concat()).contiguous(),
        }
    }
}

/// Rows `[L, G, k]` in bf16, kept as `[G, k, L]`: a tile of them takes elements of a row two by two, of neighbouring rows.
fn in_columns(rows: Tensor) -> Tensor {
    half(rows.move_axis(0, -1)).move_axis(-1, 0)
}

/// Kept in bf16.
fn half(x: Tensor) -> Tensor {
    x.cast(Scalar::BF16).contiguous()
}

/// Softmax of q·k over the positions up to each token's own, times the values.
///
/// q `[T, G, R, k]` (R heads share each of G keys), keys `[L, G, k]`, values `[L, G, v]`, or `[T, L, ..]` of each token's
/// own: `[T, G, R, v]`.
fn attend<'g>(q: Tensor<'g>, keys: Tensor<'g>, values: Tensor<'g>, scale: f32, at: &Place<'g>) -> Tensor<'g> {
    if at.in_pieces {
        attend_in_pieces(q, keys, values, scale, at)
    } else {
        attend_at_once(q, keys, values, scale, at)
    }
}

fn attend_at_once<'g>(
    q: Tensor<'g>,
    keys: Tensor<'g>,
    values: Tensor<'g>,
    scale: f32,
    at: &Place<'g>,
) -> Tensor<'g> {
    let (keys, values) = (keys.move_axis(-3, -2).widen(), values.move_axis(-3, -1).widen());
    if at.reach == Reach::Apart {
        // By themselves the products let heads share what they read.
        let scores = (ops::linear(q.contiguous(), keys) * scale).contiguous();
        let [e, factor] = at.weights(scores, 0, 0);
        return ops::linear(e.contiguous(), values) * factor;
    }
    // What comes after the last token of a part is no part's concern.
    let [t, g, r] = [q.size(0), q.size(1), q.size(2)];
    let n = Some(part(at.halves, g * r, at.cos.size(0))).filter(|n| t % n == 0).unwrap_or(t);
    let parts = (0..t / n).map(|i| {
        let needed = (at.pos + ((i + 1) * n + at.block - 1)) / at.block;
        (i * n, simplify1(if n == t { at.blocks } else { needed.min(at.blocks) } * at.block))
    });
    let seen = |x: Tensor<'g>, axis, length| x.slice_dim(axis, q.graph().int(0), length);
    let Some(unit) = at.halves else {
        let q = q.contiguous();
        let parts = parts.map(|(first, length)| {
            let scores = ops::linear(q.slice(0, first..first + n), seen(keys, -2, length)) * scale;
            let [e, factor] = at.weights(scores, 0, first);
            let y = ops::linear(e, seen(values, -1, length)) * factor;
            if n == t { y } else { y.contiguous() }
        });
        return Tensor::concat(&parts.collect::<Vec<_>>(), 0);
    };
    // Tokens and heads are the rows of one matrix.
    let rows = ops::halved(q.move_axis(1, 0).reshape_last(3, &[t * r, q.size(3)]), unit);
    let parts = parts.map(|(first, length)| {
        let rows = rows.slice(-2, first * r..(first + n) * r);
        let scores = (ops::linear_half(rows, seen(keys, -2, length)) * scale).contiguous();
        let int = |n: i64| q.graph().int(n);
        let scores = scores.reshape([int(g), int(n), int(r), length]);
        let factor_of = |e: Tensor<'g>| ops::halved(e.reshape([int(g), int(n * r), length]), unit);
        let y = match unit {
            Unit::Tile => {
                let [e, factor] = at.weights(scores, 1, first);
                ops::linear_half(factor_of(e), seen(values, -1, length)) * factor.reshape([g, n * r, 1])
            }
            Unit::Warp => ops::linear_half(factor_of(at.shares(scores, 1, first)), seen(values, -1, length)),
        };
        let y = half(y);
        y.reshape([g, n, r, y.size(-1)]).move_axis(0, 1)
    });
    Tensor::concat(&parts.collect::<Vec<_>>(), 0).cast(Scalar::F32)
}

/// As [`attend`]: every block of positions under its own largest score, then all of them under the largest of these.
fn attend_in_pieces<'g>(
    q: Tensor<'g>,
    keys: Tensor<'g>,
    values: Tensor<'g>,
    scale: f32,
    at: &Place<'g>,
) -> Tensor<'g> {
    let (g, [t, groups, heads, width]) = (q.graph(), [0, 1, 2, 3].map(|i| q.size(i)));
    let by_warps = at.by_warps;
    let most = match by_warps {
        true if at.block > PIECE => SHARING_BY_WARPS,
        true => SHARING_A_FEW,
        false => SHARING,
    };
    let sharing = (2..=most).rev().find(|n| heads % n == 0).unwrap_or(heads);
    let narrow = |x: Tensor<'g>| if by_warps { x.cast(Scalar::F16) } else { x };
    let product = if by_warps { ops::linear_half } else { ops::linear };
    // All are [T, blocks, G, R / sharing, sharing, ..]: what comes before the last heads is one piece of work.
    let pieces = |x: Tensor<'g>| {
        let own = if x.rank() == 4 { t } else { 1 };
        let row = [groups, x.size(-1)].map(|n| g.int(n));
        let x = if by_warps { x } else { x.widen() };
        let x = x.reshape([&[g.int(own), at.blocks, g.int(at.block)], &row[..]].concat());
        x.move_axis(2, 3).unsqueeze(3)
    };
    let q = narrow(q).contiguous().reshape([t, 1, groups, heads / sharing, sharing, width]);
    // Read once by each piece, where its threads do not share what they read.
    let q = if t == 1 && !by_warps { q.contiguous() } else { q };
    let key = g.iota_dim(at.length()).reshape([at.blocks, g.int(1), g.int(1), g.int(1), g.int(at.block)]);
    let scores = at.masked(product(q, pieces(keys)) * scale, key, 0, 0);
    let most = scores.max(-1);
    let e = narrow((scores - most).exp());
    // Means over a piece's positions are no larger than its values: what holds these holds them, and there are many.
    let y = narrow(product(e, pieces(values).transpose(-1, -2)) * (1.0 / at.block as f32));
    let [most, sum, y] = [most, e.widen().mean(-1), y].map(|x| x.contiguous());
    // The pieces last. Where rows are few, some columns have their own sums of them: more to do, but for more processors.
    // The rows are those of the product behind: heads by themselves where each has a matrix of its own.
    let (all, v) = (groups * heads, y.size(-1));
    let mut cut = std::iter::successors(Some(v), |c| Some(c / 2)).take_while(|c| c % COLUMNS == 0);
    let columns = cut.find(|c| t * all * (v / c) >= ROWS || *c < 2 * COLUMNS).unwrap_or(v);
    let tokens = if t == 1 { vec![] } else { vec![t] };
    let rows = [tokens, if groups == 1 { vec![all, v / columns] } else { vec![all * v / columns] }].concat();
    let last = |x: Tensor<'g>, n: i64, row: &[i64]| {
        let x = x.reshape([g.int(t), at.blocks, g.int(all), g.int(n)]).move_axis(1, -1);
        let x = x.expand([g.int(t), g.int(all), g.int(n.max(v / columns)), at.blocks]);
        let dims = rows.iter().chain(row).map(|&n| g.int(n)).chain([at.blocks]);
        x.reshape(dims.collect::<Vec<_>>())
    };
    let (most, sum, y) = (last(most, 1, &[]), last(sum, 1, &[]), last(y.widen(), v, &[columns]));
    let each = |x: Tensor<'g>| x.unsqueeze(-2).expand(y.dims());
    // Computed for every column: quicker than to be stored and read again. So are the sums where columns are few.
    let top = most.max(-1);
    let share = (each(most) - top.unsqueeze(-2)).exp();
    let sum = if columns < v {
        (each(sum) * share).sum(-1)
    } else {
        (sum * (most - top).exp()).sum(-1).unsqueeze(-2)
    };
    ((y * share).sum(-1) * sum.recip()).reshape([t, groups, heads, v])
}

/// A projection with an optional bias.
struct Projection<'g> {
    weight: Matrix<'g>,
    bias: Option<Tensor<'g>>,
}

impl<'g> Projection<'g> {
    fn declare(i: &Inputs<'g, '_>, name: &str, rows: i64, cols: i64) -> Result<Self, Error> {
        Ok(Projection {
            weight: i.matrix(&format!("{name}.weight"), &[rows, cols])?,
            bias: i.opt_vector(&format!("{name}.bias"), rows)?,
        })
    }
    /// x `[T, K]` as `[T, heads, R/heads]`.
    fn heads(&self, x: Tensor<'g>, heads: i64) -> Tensor<'g> {
        let y = self.weight.of_normed(x);
        let y = self.bias.map_or(y, |b| y + b);
        y.reshape_last(1, &[heads, y.size(-1) / heads])
    }
}

/// Rows `[T, dim]`, and the caches after the step.
pub type WithCaches<'g> = (Tensor<'g>, Vec<Tensor<'g>>);

pub enum Attention<'g> {
    Gqa(Gqa<'g>),
    Mla(Mla<'g>),
}

impl<'g> Attention<'g> {
    pub fn declare(i: &Inputs<'g, '_>, c: &Config) -> Result<Self, Error> {
        Ok(match c.attention {
            config::Attention::Gqa { .. } => Attention::Gqa(Gqa::declare(i, c)?),
            config::Attention::Mla { .. } => Attention::Mla(Mla::declare(i, c)?),
        })
    }

    /// What a position takes in each of a layer's caches.
    pub fn cache_rows(c: &Config) -> Vec<Vec<i64>> {
        match c.attention {
            config::Attention::Gqa { kv_heads, key, value } => {
                vec![vec![kv_heads, key], vec![kv_heads, value]]
            }
            config::Attention::Mla { rank, rope, .. } => vec![vec![1, rank + rope]],
        }
    }

    /// x `[T, dim]`; `caches` as [`Attention::cache_rows`] says. The output, and the caches after this step.
    pub fn of(&self, x: Tensor<'g>, caches: &[Tensor<'g>], c: &Config, at: &Place<'g>) -> WithCaches<'g> {
        match self {
            Attention::Gqa(a) => a.of(x, caches, c, at),
            Attention::Mla(a) => a.of(x, caches, c, at),
        }
    }
}

pub struct Gqa<'g> {
    q: Projection<'g>,
    k: Projection<'g>,
    v: Projection<'g>,
    /// Norms of each head, where the model has them.
    q_norm: Option<Tensor<'g>>,
    k_norm: Option<Tensor<'g>>,
    out: Matrix<'g>,
    kv_heads: i64,
}

impl<'g> Gqa<'g> {
    fn declare(i: &Inputs<'g, '_>, c: &Config) -> Result<Self, Error> {
        let config::Attention::Gqa { kv_heads, key, value } = c.attention else { unreachable!() };
        Ok(Gqa {
            q: Projection::declare(i, "attn_q", c.heads * key, c.dim)?,
            k: Projection::declare(i, "attn_k", kv_heads * key, c.dim)?,
            v: Projection::declare(i, "attn_v", kv_heads * value, c.dim)?,
            q_norm: i.opt_vector("attn_q_norm.weight", key)?,
            k_norm: i.opt_vector("attn_k_norm.weight", key)?,
            out: i.matrix("attn_output.weight", &[c.dim, c.heads * value])?,
            kv_heads,
        })
    }

    fn of(&self, x: Tensor<'g>, caches: &[Tensor<'g>], c: &Config, at: &Place<'g>) -> WithCaches<'g> {
        let normed = |y: Tensor<'g>, w: Option<Tensor<'g>>| w.map_or(y, |w| ops::rms_norm(y, w, c.eps));
        let q = at.turn(normed(self.q.heads(x, c.heads), self.q_norm), c.rotary.style);
        let k = at.turn(normed(self.k.heads(x, self.kv_heads), self.k_norm), c.rotary.style);
        let v = self.v.heads(x, self.kv_heads);
        let (keys, values) = (at.write(caches[0], k), at.write(caches[1], v));
        let q = q.reshape([at.tokens, self.kv_heads, c.heads / self.kv_heads, q.size(-1)]);
        let y = attend(q, at.keys(at.seen(keys)), at.seen(values), c.score_scale(), at);
        (self.out.of(y.reshape_last(3, &[c.heads * v.size(-1)])), vec![keys, values])
    }
}

/// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434).
pub struct Mla<'g> {
    q: Query<'g>,
    kv_a: Matrix<'g>,
    kv_norm: Tensor<'g>,
    up: Up<'g>,
    out: Matrix<'g>,
    rank: i64,
    nope: i64,
    rope: i64,
    value: i64,
}

enum Query<'g> {
    Whole(Matrix<'g>),
    LowRank { a: Matrix<'g>, norm: Tensor<'g>, b: Matrix<'g> },
}

/// From a latent row to each head's key and value.
enum Up<'g> {
    /// Keys `[H, rank, nope]`, values `[H, value, rank]`.
    Split { k: Matrix<'g>, v: Matrix<'g> },
    /// Older files: `[H·(nope + value), rank]`.
    Joint(Matrix<'g>),
}

impl<'g> Mla<'g> {
    fn declare(i: &Inputs<'g, '_>, c: &Config) -> Result<Self, Error> {
        let config::Attention::Mla { rank, nope, rope, value } = c.attention else { unreachable!() };
        let (h, head) = (c.heads, nope + rope);
        let q = match i.rows("attn_q_a.weight") {
            Some(low) => Query::LowRank {
                a: i.matrix("attn_q_a.weight", &[low, c.dim])?,
                norm: i.vector("attn_q_a_norm.weight", low)?,
                b: i.matrix("attn_q_b.weight", &[h * head, low])?,
            },
            None => Query::Whole(i.matrix("attn_q.weight", &[h * head, c.dim])?),
        };
        let up = match i.opt_matrix("attn_kv_b.weight", &[h * (nope + value), rank])? {
            Some(joint) => Up::Joint(joint),
            None => Up::Split {
                k: i.matrix("attn_k_b.weight", &[h, rank, nope])?,
                v: i.matrix("attn_v_b.weight", &[h, value, rank])?,
            },
        };
        Ok(Mla {
            q,
            kv_a: i.matrix("attn_kv_a_mqa.weight", &[rank + rope, c.dim])?,
            kv_norm: i.vector("attn_kv_a_norm.weight", rank)?,
            up,
            out: i.matrix("attn_output.weight", &[c.dim, h * value])?,
            rank,
            nope,
            rope,
            value,
        })
    }

    fn of(&self, x: Tensor<'g>, caches: &[Tensor<'g>], c: &Config, at: &Place<'g>) -> WithCaches<'g> {
        let Mla { rank, nope, rope, value, .. } = *self;
        let (t, h) = (at.tokens, c.heads);
        let q = match &self.q {
            Query::Whole(w) => w.of_normed(x),
            Query::LowRank { a, norm, b } => {
                b.of_normed(ops::rms_norm(a.of_normed(x).contiguous(), *norm, c.eps))
            }
        };
        let q = if at.halves.is_some() { half(q).cast(Scalar::F32) } else { q };
        let q = q.reshape([t, h, nope + rope]);
        let (q_nope, q_rope) =
            (q.slice(-1, 0..nope), at.turn(q.slice(-1, nope..nope + rope), c.rotary.style));

        let kv = self.kv_a.of_normed(x);
        let latent = ops::rms_norm(kv.slice(-1, 0..rank), self.kv_norm, c.eps);
        let k_rope = at.turn(kv.slice(-1, rank..rank + rope).reshape([t, 1, rope]), c.rotary.style);
        let row = Tensor::concat(&[latent.reshape([t, 1, rank]), k_rope], -1);
        let cache = at.write(caches[0], row);

        let seen = at.seen(cache);
        // By itself the rotation lets what is beside it be moved whole.
        let y = if let Some(unit) = at.halves.filter(|_| at.reach == Reach::Whole && self.decompresses(t)) {
            let latent = ops::halved(seen.slice(-1, 0..rank).transpose(0, 1), unit);
            let keys = self.keys(seen, latent, unit);
            let q = Tensor::concat(&[q_nope.cast(Scalar::BF16), half(q_rope)], -1).unsqueeze(2);
            attend(q, keys, self.values(latent, unit), c.score_scale(), at)
        } else {
            let absorbed = self.absorb_keys(q_nope);
            // Beside the rotation the product would not fill its tiles.
            let parts = [absorbed, q_rope].map(|x| if at.halves.is_some() { half(x) } else { x });
            let q = Tensor::concat(&parts, -1).unsqueeze(1);
            let y = attend(q, at.keys(seen), seen.slice(-1, 0..rank), c.score_scale(), at);
            let y = y.reshape([t, h, rank]);
            match &self.up {
                Up::Split { v, .. } if value % 32 == 0 && v.in_blocks(t) && self.out.in_blocks(t) => {
                    let blocks = v.blocks().of(y.transpose(0, 1).unsqueeze(1));
                    return (self.out.of_blocks(blocks), vec![cache]);
                }
                _ => self.absorb_values(y),
            }
        };
        (self.out.of(y.reshape([t, h * value])), vec![cache])
    }

    /// Is it cheaper to compute every position's keys and values than to attend in the latent space, on a unit for which
    /// only the number of multiplications counts?
    fn decompresses(&self, tokens: i64) -> bool {
        let saved = (2 * self.rank + self.rope) - (self.nope + self.rope + self.value);
        tokens * saved > self.rank * (self.nope + self.value)
    }

    /// The keys' matrices, `[H, nope, rank]`, and the values', `[H, value, rank]`, of a joint one.
    fn parts(&self, joint: &Matrix<'g>) -> (Tensor<'g>, Tensor<'g>) {
        let (nope, both) = (self.nope, self.nope + self.value);
        let w = joint.values();
        let w = w.reshape([w.size(0) / both, both, self.rank]);
        (w.slice(1, 0..nope), w.slice(1, nope..both))
    }

    /// `[T, H, nope]` to `[T, H, rank]`: a query against latent rows scores as the query against their keys.
    fn absorb_keys(&self, q: Tensor<'g>) -> Tensor<'g> {
        let q = q.transpose(0, 1);
        let y = match &self.up {
            Up::Split { k, .. } => k.of(q),
            Up::Joint(w) => ops::linear(q, self.parts(w).0.transpose(-1, -2)),
        };
        y.transpose(0, 1)
    }

    /// `[T, H, rank]` to `[T, H, value]`.
    fn absorb_values(&self, y: Tensor<'g>) -> Tensor<'g> {
        let y = y.transpose(0, 1);
        let y = match &self.up {
            Up::Split { v, .. } => v.of(y),
            Up::Joint(w) => ops::linear(y, self.parts(w).1),
        };
        y.transpose(0, 1)
    }

    /// Rows of the cache `[L, 1, rank + rope]`, their first elements `latent` in bf16 `[1, L, rank]`, to keys
    /// `[L, H, nope + rope]`.
    fn keys(&self, seen: Tensor<'g>, latent: Tensor<'g>, unit: Unit) -> Tensor<'g> {
        let w = match &self.up {
            Up::Split { k, .. } => k.values().transpose(-1, -2),
            Up::Joint(w) => self.parts(w).0,
        };
        let (g, rank, both) = (seen.graph(), self.rank, self.rank + self.rope);
        let heads = [seen.dims()[0], g.int(w.size(0)), g.int(self.rope)];
        let with_turned = |keys: Tensor<'g>, turned: Tensor<'g>| {
            Tensor::concat(&[keys, turned.expand(heads).cast(Scalar::BF16)], -1)
        };
        match unit {
            Unit::Tile => {
                let rows = in_columns(seen);
                let first = rows.slice(-1, 0..rank).transpose(0, 1);
                let keys = half(ops::linear_half(ops::halved(w, unit), first)).move_axis(-1, 0);
                in_columns(with_turned(keys, rows.slice(-1, rank..both)))
            }
            Unit::Warp => {
                let keys = half(ops::linear_half(latent, half(w))).transpose(0, 1);
                ops::halved(with_turned(keys, seen.slice(-1, rank..both)).transpose(0, 1), unit)
                    .transpose(0, 1)
            }
        }
    }

    /// The same to values `[L, H, value]`.
    fn values(&self, latent: Tensor<'g>, unit: Unit) -> Tensor<'g> {
        let w = match &self.up {
            Up::Split { v, .. } => v.values(),
            Up::Joint(w) => self.parts(w).1,
        };
        let y = ops::linear_half(latent, w);
        match unit {
            Unit::Tile => half(y).transpose(0, 1),
            // Sums go over positions.
            Unit::Warp => ops::halved(y.transpose(-1, -2), unit).move_axis(-1, 0),
        }
    }
}
