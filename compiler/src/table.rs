//! The kernels that models are made of, as a table: each row builds its expression, says how to fill its inputs and how
//! exact the result must be. The same rows are the list of tests, of benchmarks and of what a search tunes.

use crate::dtype::{DType, Scalar};
use crate::graph::Graph;
use crate::interp::tensor::Env;
use crate::ops::{self, Gate, QuantX, Rope, Router, TILE, Unit};
use crate::quant::{FORMATS, Format, Layout};
use crate::rng::Rng;
use crate::shape::Dims;
use crate::tensor::Tensor;
use half::{bf16, f16};
use std::collections::HashSet;

/// What a kernel computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// A file's blocks as planes in memory.
    Load,
    /// `residual + x·wᵀ` for `batch` independent matrices.
    Linear {
        batch: i64,
    },
    /// `residual + x·wᵀ`, both factors rounded to bf16.
    Half,
    /// `Σ_e weight_e·(x·w_eᵀ)` over the experts that each token chose, tokens grouped by expert, in bf16.
    Grouped {
        experts: i64,
        used: i64,
    },
    /// `silu(x·gᵀ)·(x·uᵀ)` for the chosen of a stack of experts.
    GateUp {
        experts: i64,
        used: i64,
    },
    /// `residual + Σ_e weight_e·(x_e·w_eᵀ)` over the chosen experts.
    Down {
        experts: i64,
        used: i64,
    },
    /// `rms_norm`, then int8 with block sums.
    NormQuant,
    Softmax,
    Rope(Rope),
    TopK(i64),
    /// Scores of `rows` experts from `cols` inputs, bias, choice and weights.
    Router(i64),
}

#[derive(Clone)]
pub struct Case {
    pub form: Form,
    pub format: &'static Format,
    pub rows: i64,
    pub cols: i64,
    pub tokens: i64,
}

/// How to fill an input.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Fill {
    /// Normal, with this deviation.
    Normal(f32),
    /// Uniform in a range, never zero on average: scales.
    Between(f32, f32),
    /// Any bits.
    Bits,
    /// Integers from lo to hi.
    Ints(i64, i64),
}

pub struct Built<'g> {
    pub outputs: Vec<Tensor<'g>>,
    pub inputs: Vec<(Tensor<'g>, Fill)>,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Case { form, format, rows, cols, tokens } = self;
        let form = match form {
            Form::Load => "load".into(),
            Form::Linear { batch: 1 } => "linear".into(),
            Form::Linear { batch } => format!("linear*{batch}"),
            Form::Half => "half".into(),
            Form::Grouped { experts, used } => format!("grouped({used}/{experts})"),
            Form::GateUp { experts, used } => format!("gate_up({used}/{experts})"),
            Form::Down { experts, used } => format!("down({used}/{experts})"),
            Form::NormQuant => "norm_quant".into(),
            Form::Softmax => "softmax".into(),
            Form::Rope(Rope::Interleaved) => "rope".into(),
            Form::Rope(Rope::HalfSplit) => "rope_half".into(),
            Form::TopK(k) => format!("top_{k}"),
            Form::Router(k) => format!("router_{k}"),
        };
        write!(f, "{form} {} {rows}x{cols} m{tokens}", format.name)
    }
}

impl Case {
    pub fn linear(format: &'static Format, rows: i64, cols: i64, tokens: i64) -> Case {
        Case { form: Form::Linear { batch: 1 }, format, rows, cols, tokens }
    }

    /// Bytes of weights that one run reads, as the file counts them.
    pub fn weight_bytes(&self) -> i64 {
        let one = self.rows * self.format.row_bytes(self.cols);
        match self.form {
            Form::Linear { batch } => batch * one,
            Form::GateUp { used, .. } => 2 * used * one,
            Form::Down { used, .. } => used * one,
            Form::Load | Form::Half => one,
            Form::Grouped { experts, .. } => experts * one,
            Form::Router(_) => 4 * self.rows * self.cols,
            _ => 0,
        }
    }

    /// Multiplications and additions of the products.
    pub fn operations(&self) -> i64 {
        let one = 2 * self.rows * self.cols * self.tokens;
        match self.form {
            Form::Linear { batch } => batch * one,
            Form::GateUp { used, .. } => 2 * used * one,
            Form::Down { used, .. } | Form::Grouped { used, .. } => used * one,
            Form::Router(_) | Form::Half => one,
            _ => 0,
        }
    }

    /// Largest error, as a share of the largest result: sums are added up in another order.
    pub fn tolerance(&self) -> f32 {
        match self.form {
            Form::Load => 0.0,
            Form::Rope(_) | Form::TopK(_) => 1e-6,
            // A weight a hair from the middle rounds either way.
            Form::Half | Form::Grouped { .. } => 5e-4,
            // Two sums multiplied: the errors of both, and of the exponential between them.
            Form::GateUp { .. } => 5e-5,
            _ => 2e-5,
        }
    }

    /// The least that counts as the largest result: far out on its tail silu(x) is all rounding of x.
    pub fn scale(&self) -> f32 {
        match self.form {
            Form::GateUp { .. } => 1e-3,
            _ => 0.0,
        }
    }

    /// How far an integer result may be off: a float a hair from the middle rounds either way.
    pub fn slack(&self) -> i64 {
        match self.form {
            Form::NormQuant => 1,
            _ => 0,
        }
    }

    pub fn build<'g>(&self, g: &'g Graph, layout: Layout) -> Built<'g> {
        let Case { form, format, rows, cols, tokens } = *self;
        let mut b = Inputs { g, inputs: vec![] };
        let unit = if layout == Layout::Rows { Unit::Warp } else { Unit::Tile };
        let outputs = match form {
            Form::Load => {
                let raw = [rows, cols / format.block, format.bytes];
                format.load(b.add("raw", DType::U8, raw, Fill::Bits), layout)
            }
            Form::Linear { batch } => {
                let leading: &[i64] = if batch > 1 { &[batch] } else { &[] };
                let dims = |n: i64| [leading, &[tokens, n]].concat();
                let w = b.weights("w", format, leading, rows, cols, layout);
                let residual = b.f32("residual", dims(rows));
                let y = if format.is_quantised() {
                    w.linear_q8(&b.quantised("x", &dims(cols)))
                } else {
                    w.linear(b.f32("x", dims(cols)))
                };
                vec![residual + y]
            }
            Form::Half => {
                let w = b.weights("w", format, &[], rows, cols, layout);
                let x = match tokens % TILE {
                    0 if layout == Layout::Rows && cols % 128 == 0 => {
                        let dims = [tokens / 8, cols / 128, 4, 8, 4, 8];
                        ops::from_warps(b.add("x", DType::BF16, dims, Fill::Normal(1.0)))
                            .reshape([tokens, cols])
                    }
                    0 => {
                        let dims = [tokens / TILE, cols / 32, TILE, 32];
                        ops::from_tiles(b.add("x", DType::BF16, dims, Fill::Normal(1.0)), 2)
                            .reshape([tokens, cols])
                    }
                    _ => b.add("x", DType::BF16, [tokens, cols], Fill::Normal(1.0)),
                };
                vec![b.f32("residual", [tokens, rows]) + w.linear_half(x, unit)]
            }
            Form::Grouped { experts, used } => {
                let w = b.weights("w", format, &[experts], rows, cols, layout);
                let chosen = b.add("sel", DType::I32, [tokens, used], Fill::Ints(0, experts - 1));
                let weight = b.add("weight", DType::F32, [tokens, used, 1], Fill::Between(0.1, 1.0));
                let x = b.f32("x", [tokens, cols]);
                let together = unit.together(tokens * used / experts);
                let groups = ops::group(chosen, experts, together);
                let x =
                    x.gather(groups.choice / used).reshape_last(2, &[groups.expert.size(0), together, cols]);
                let y = w.gather(groups.expert).linear_half(ops::halved(x, unit), unit).contiguous();
                let y = y.reshape([groups.expert.size(0) * together, rows]);
                vec![(y.gather(groups.row) * weight).sum(1).squeeze(1)]
            }
            Form::GateUp { experts, used } => {
                let (gate, up) = (
                    b.weights("gate", format, &[experts], rows, cols, layout),
                    b.weights("up", format, &[experts], rows, cols, layout),
                );
                let sel = b.add("sel", DType::I32, [used], Fill::Ints(0, experts - 1));
                let (gate, up) = (gate.gather(sel), up.gather(sel));
                let (p, q) = if format.is_quantised() {
                    let x = b.quantised("x", &[1, tokens, cols]);
                    (gate.linear_q8(&x), up.linear_q8(&x))
                } else {
                    let x = b.f32("x", [1, tokens, cols]);
                    (gate.linear(x), up.linear(x))
                };
                vec![p.silu() * q]
            }
            Form::Down { experts, used } => {
                let w = b.weights("w", format, &[experts], rows, cols, layout);
                let sel = b.add("sel", DType::I32, [used], Fill::Ints(0, experts - 1));
                let weight = b.add("weight", DType::F32, [used, 1, 1], Fill::Between(0.1, 1.0));
                let residual = b.f32("residual", [tokens, rows]);
                let w = w.gather(sel);
                let y = if format.is_quantised() {
                    w.linear_q8(&b.quantised("x", &[used, tokens, cols]))
                } else {
                    w.linear(b.f32("x", [used, tokens, cols]))
                };
                vec![residual + (y * weight).sum(0).squeeze(0)]
            }
            Form::NormQuant => {
                let (x, w) = (b.f32("x", [tokens, cols]), b.f32("w", [cols]));
                let q = ops::quantize_i8(ops::rms_norm(x, w, 1e-5));
                vec![q.q, q.d, q.s32]
            }
            Form::Softmax => vec![b.f32("x", [rows, cols]).softmax(-1)],
            Form::Rope(style) => {
                let x = b.f32("x", [tokens, rows, cols]);
                let positions = b.add("pos", DType::I32, [tokens], Fill::Ints(0, 100_000));
                let freq = b.add("inv_freq", DType::F32, [cols / 2], Fill::Between(1e-4, 1.0));
                let (cos, sin) = ops::rope_tables(positions, freq);
                vec![ops::rope(x, cos.unsqueeze(1), sin.unsqueeze(1), style)]
            }
            Form::TopK(k) => {
                let (values, at) = ops::top_k(b.f32("x", [tokens, cols]), k);
                vec![values, at]
            }
            Form::Router(k) => {
                let (x, w) =
                    (b.f32("x", [tokens, cols]), b.add("w", DType::F32, [rows, cols], Fill::Normal(0.05)));
                let bias = b.f32("bias", [rows]);
                let r =
                    Router { gate: Gate::Sigmoid, k, normalise: true, scale: 1.8, groups: 1, groups_used: 1 };
                let (experts, weights) = ops::router(ops::linear(x, w), Some(bias), r);
                vec![experts, weights]
            }
        };
        Built { outputs, inputs: b.inputs }
    }
}

struct Inputs<'g> {
    g: &'g Graph,
    inputs: Vec<(Tensor<'g>, Fill)>,
}

impl<'g> Inputs<'g> {
    fn add(&mut self, name: &str, t: DType, dims: impl Dims<'g>, fill: Fill) -> Tensor<'g> {
        let x = self.g.input(name, t, dims);
        self.inputs.push((x, fill));
        x
    }
    fn f32(&mut self, name: &str, dims: impl Dims<'g>) -> Tensor<'g> {
        self.add(name, DType::F32, dims, Fill::Normal(1.0))
    }
    fn quantised(&mut self, name: &str, dims: &[i64]) -> QuantX<'g> {
        let (leading, k) = (&dims[..dims.len() - 1], dims[dims.len() - 1]);
        // As `QuantX::in_tiles` leaves them where there are whole tiles of tokens.
        let tokens = leading.last().copied().filter(|m| m % TILE == 0);
        let mut part = |part: &str, t, more: &[i64], fill| {
            let name = format!("{name}.{part}");
            let Some(m) = tokens else { return self.add(&name, t, [leading, more].concat(), fill) };
            let outer = &leading[..leading.len() - 1];
            let tiles = [outer, &[m / TILE, more[0], TILE], &more[1..]].concat();
            ops::from_tiles(self.add(&name, t, tiles, fill), more.len())
        };
        QuantX {
            q: part("q", DType::I8, &[k / 32, 32], Fill::Ints(-127, 127)),
            d: part("d", DType::F32, &[k / 32], Fill::Between(0.001, 0.02)),
            s16: part("s16", DType::F32, &[k / 16], Fill::Normal(10.0)),
            s32: part("s32", DType::F32, &[k / 32], Fill::Normal(10.0)),
        }
    }
    fn weights(
        &mut self,
        name: &str,
        format: &'static Format,
        leading: &[i64],
        rows: i64,
        cols: i64,
        layout: Layout,
    ) -> crate::quant::Planes<'g> {
        let (buffers, planes) = format.inputs(self.g, name, leading, rows, cols, layout);
        for b in buffers {
            let fill = match b.dtype().scalar {
                Scalar::F16 if format.is_quantised() => Fill::Between(0.001, 0.01),
                Scalar::F16 | Scalar::BF16 | Scalar::F32 => Fill::Normal(0.05),
                // A power of two: 2^-12 to 2^-4.
                Scalar::U8 if format.name == "MXFP4" && b.rank() < leading.len() + 4 => Fill::Ints(115, 123),
                _ => Fill::Bits,
            };
            self.inputs.push((b, fill));
        }
        planes
    }
}

/// Random bytes for an input of `n` elements.
pub fn fill(t: DType, n: usize, fill: Fill, rng: &mut Rng) -> Vec<u8> {
    let mut out = vec![0; n * t.bytes()];
    if fill == Fill::Bits {
        out.chunks_mut(8).for_each(|c| c.copy_from_slice(&rng.bits().to_le_bytes()[..c.len()]));
        return out;
    }
    for b in out.chunks_exact_mut(t.bytes()) {
        let v = match fill {
            Fill::Normal(s) => rng.normal() * s,
            Fill::Between(lo, hi) => lo + (hi - lo) * (rng.f32() + 1.0) / 2.0,
            Fill::Ints(lo, hi) => {
                b.copy_from_slice(&rng.range(lo, hi).to_le_bytes()[..t.bytes()]);
                continue;
            }
            Fill::Bits => unreachable!("filled above"),
        };
        match t.scalar {
            Scalar::F16 => b.copy_from_slice(&f16::from_f32(v).to_le_bytes()),
            Scalar::BF16 => b.copy_from_slice(&bf16::from_f32(v).to_le_bytes()),
            _ => b.copy_from_slice(&v.to_le_bytes()),
        }
    }
    out
}

/// Random inputs for the interpreter and for a device: the same bytes.
pub fn environment(built: &Built, rng: &mut Rng) -> Env {
    let mut env = Env::default();
    for &(t, how) in &built.inputs {
        let n: i64 = t.dims().iter().map(|d| d.as_int().expect("cases have constant shapes")).product();
        env.set(t, fill(t.dtype(), n as usize, how, rng));
    }
    env
}

/// Matrix shapes of GLM-4.7-Flash and its relatives (rows × columns).
pub const SHAPES: [(i64, i64); 8] = [
    (2048, 5120),
    (5120, 768),
    (768, 2048),
    (576, 2048),
    (3072, 2048),
    (2048, 1536),
    (10240, 2048),
    (2048, 10240),
];

/// Rows that are no multiple of the tile, and as many tiles as a tile has rows; columns are whole blocks, as files have
/// them.
pub const ODD: [(i64, i64); 4] = [(1, 256), (19, 768), (35, 1280), (256, 256)];

/// Every row. `most_rows` cuts the large matrices short: columns, blocks and odd edges stay.
pub fn cases(most_rows: i64) -> Vec<Case> {
    let f32_ = Format::by_name("F32").expect("a row of the table");
    let mut out = vec![];
    for format in &FORMATS {
        for (rows, cols) in SHAPES.map(|(r, c)| (r.min(most_rows), c)).into_iter().chain(ODD) {
            for tokens in [1, 2, 5, 8, 33] {
                out.push(Case::linear(format, rows, cols, tokens));
            }
        }
        // Edges, and as many tiles as it takes for one kernel to write all planes.
        for (rows, cols) in [(19, 768), (35, 1280), (512, 256)] {
            out.push(Case { form: Form::Load, format, rows, cols, tokens: 1 });
        }
        // Tiles of tokens.
        for (rows, cols) in ODD {
            out.push(Case::linear(format, rows, cols, 16));
            for tokens in [16, 33, 48] {
                out.push(Case { form: Form::Half, format, rows, cols, tokens });
            }
        }
        let experts =
            |form, rows: i64, cols| Case { form, format, rows: rows.min(most_rows), cols, tokens: 1 };
        out.push(experts(Form::GateUp { experts: 64, used: 4 }, 1536, 2048));
        out.push(experts(Form::Down { experts: 64, used: 4 }, 2048, 1536));
        for (rows, cols, tokens) in [(64, 256, 33), (19, 512, 5)] {
            out.push(Case { form: Form::Grouped { experts: 7, used: 2 }, format, rows, cols, tokens });
        }
    }
    let plain = |form, rows, cols, tokens| Case { form, format: f32_, rows, cols, tokens };
    for tokens in [1, 7] {
        out.push(plain(Form::NormQuant, 1, 2048, tokens));
        out.push(plain(Form::NormQuant, 1, 96, tokens));
        out.push(plain(Form::Rope(Rope::Interleaved), 20, 64, tokens));
        out.push(plain(Form::Rope(Rope::HalfSplit), 3, 24, tokens));
        out.push(plain(Form::TopK(4), 1, 64, tokens));
        out.push(plain(Form::TopK(3), 1, 10, tokens));
        out.push(plain(Form::Router(4), 64, 2048, tokens));
    }
    out.push(plain(Form::Softmax, 20, 4096, 1));
    out.push(plain(Form::Softmax, 3, 77, 1));
    // Cut short, some are alike.
    let mut seen = HashSet::new();
    out.retain(|case| seen.insert(case.to_string()));
    out
}
