//! Small expressions of every kind that models are made of, with inputs.
//!
//! What decides an integer (a rounded quotient, a rank) is computed from small whole numbers, whose float sums are exact
//! in any order.

use compiler::dtype::{DType, Scalar};
use compiler::graph::{Graph, Op};
use compiler::interp::tensor::Env;
use compiler::ops::{self, Gate, Rope, Router, Unit};
use compiler::quant::{Format, Layout};
use compiler::rng::Rng;
use compiler::table::{Built, Case, Fill, Form, fill};
use compiler::tensor::Tensor;
use std::collections::HashMap;

pub struct Example {
    pub name: &'static str,
    pub build: for<'g> fn(&'g Graph) -> Built<'g>,
    pub symbols: &'static [(&'static str, i64)],
}

const WHOLE: Fill = Fill::Ints(-6, 6);

pub const EXAMPLES: &[Example] = &[
    Example {
        name: "softmax",
        build: |g| built(g, |b| vec![b.f32("x", &[3, 77]).softmax(-1)]),
        symbols: &[],
    },
    Example { name: "norm and quantise", build: norm_quant, symbols: &[] },
    Example { name: "Q4_0 linear", build: |g| linear(g, "Q4_0", 32, 2), symbols: &[] },
    Example { name: "Q4_K linear", build: |g| linear(g, "Q4_K", 16, 1), symbols: &[] },
    Example { name: "Q6_K linear", build: |g| linear(g, "Q6_K", 19, 1), symbols: &[] },
    Example { name: "F16 linear", build: |g| linear(g, "F16", 16, 3), symbols: &[] },
    Example { name: "Q4_0 half", build: |g| half(g, "Q4_0", 16, 128, 8), symbols: &[] },
    Example { name: "Q5_0 half", build: |g| half(g, "Q5_0", 19, 32, 17), symbols: &[] },
    Example { name: "F16 half", build: |g| half(g, "F16", 16, 64, 24), symbols: &[] },
    Example { name: "scores", build: scores, symbols: &[("blocks", 1)] },
    Example { name: "values", build: values, symbols: &[("blocks", 1)] },
    Example { name: "gate and up of tiles", build: gated, symbols: &[] },
    Example {
        name: "gate and up",
        build: |g| experts(g, Form::GateUp { experts: 4, used: 2 }),
        symbols: &[],
    },
    Example { name: "down", build: |g| experts(g, Form::Down { experts: 4, used: 2 }), symbols: &[] },
    Example { name: "router", build: router, symbols: &[] },
    Example { name: "rope", build: rope, symbols: &[("tokens", 3)] },
    Example { name: "assign to a slice", build: assign, symbols: &[("pos", 4), ("tokens", 3)] },
    Example { name: "gather and scatter", build: gather, symbols: &[] },
    Example { name: "planes of a file's blocks", build: planes, symbols: &[("tiles", 5)] },
    Example { name: "a pad of what a row keeps", build: kept_pad, symbols: &[("n", 4)] },
    Example { name: "a buffer that nothing needs", build: unneeded, symbols: &[] },
    Example { name: "64-bit numbers", build: wide, symbols: &[] },
];

pub struct Inputs<'g> {
    g: &'g Graph,
    inputs: Vec<(Tensor<'g>, Fill)>,
}

impl<'g> Inputs<'g> {
    pub fn add(&mut self, x: Tensor<'g>, fill: Fill) -> Tensor<'g> {
        self.inputs.push((x, fill));
        x
    }
    pub fn f32(&mut self, name: &str, dims: &[i64]) -> Tensor<'g> {
        self.add(self.g.input(name, DType::F32, dims.to_vec()), Fill::Normal(1.0))
    }
    fn whole(&mut self, name: &str, dims: &[i64]) -> Tensor<'g> {
        self.add(self.g.input(name, DType::I32, dims.to_vec()), WHOLE).cast(Scalar::F32)
    }
}

pub fn built<'g>(g: &'g Graph, f: impl FnOnce(&mut Inputs<'g>) -> Vec<Tensor<'g>>) -> Built<'g> {
    let mut b = Inputs { g, inputs: vec![] };
    Built { outputs: f(&mut b), inputs: b.inputs }
}

fn norm_quant(g: &Graph) -> Built<'_> {
    built(g, |b| {
        let (x, w) = (b.whole("x", &[2, 96]), b.whole("w", &[96]));
        let q = ops::quantize_i8(ops::rms_norm(x, w, 1e-5));
        vec![q.q, q.d, q.s32]
    })
}

fn linear<'g>(g: &'g Graph, format: &str, rows: i64, tokens: i64) -> Built<'g> {
    Case::linear(Format::by_name(format).unwrap(), rows, 256, tokens).build(g, Layout::Interleaved16)
}

fn half<'g>(g: &'g Graph, format: &str, rows: i64, cols: i64, tokens: i64) -> Built<'g> {
    let format = Format::by_name(format).unwrap();
    Case { form: Form::Half, format, rows, cols, tokens }.build(g, Layout::Rows)
}

/// Two products of the same 16 tokens with weights that each tile chooses.
fn gated(g: &Graph) -> Built<'_> {
    built(g, |b| {
        let mut weights = |name: &str| {
            let stored = Format::by_name("Q4_0").unwrap().inputs(g, name, &[3], 16, 32, Layout::Rows);
            for (x, fill) in stored.0.into_iter().zip([Fill::Bits, Fill::Between(0.1, 1.0)]) {
                b.add(x, fill);
            }
            stored.1
        };
        let (gate, up) = (weights("gate"), weights("up"));
        let expert = b.add(g.input("expert", DType::I32, [1]), Fill::Ints(0, 2));
        let x = ops::halved(b.f32("x", &[1, 16, 32]) * 0.1, Unit::Warp);
        let [gate, up] = [gate, up].map(|w| w.gather(expert).linear_half(x, Unit::Warp));
        vec![gate.silu() * up]
    })
}

/// Scores of two heads against as many rows of a cache as there are.
fn scores(g: &Graph) -> Built<'_> {
    built(g, |b| {
        let length = g.symbol("blocks", (1, 3)) * 32;
        let cache = b.add(g.input("cache", DType::F16, [96, 2, 32]), Fill::Normal(1.0));
        let keys = cache.slice_dim(0, g.int(0), length).move_axis(-3, -2).cast(Scalar::F32);
        vec![ops::linear_half(ops::halved(b.f32("q", &[2, 16, 32]), Unit::Warp), keys) * 0.125]
    })
}

/// Sums of the rows of a cache by weights.
fn values(g: &Graph) -> Built<'_> {
    built(g, |b| {
        let length = g.symbol("blocks", (1, 3)) * 32;
        let cache = b.add(g.input("cache", DType::F16, [96, 1, 32]), Fill::Normal(1.0));
        let values = cache.slice_dim(0, g.int(0), length).move_axis(-3, -1).cast(Scalar::F32);
        let weights = b.add(g.input("weights", DType::F32, [g.int(1), g.int(16), length]), Fill::Normal(1.0));
        vec![ops::linear_half(ops::halved(weights, Unit::Warp), values)]
    })
}

fn experts(g: &Graph, form: Form) -> Built<'_> {
    let format = Format::by_name("Q4_0").unwrap();
    Case { form, format, rows: 32, cols: 64, tokens: 1 }.build(g, Layout::Interleaved16)
}

fn router(g: &Graph) -> Built<'_> {
    built(g, |b| {
        let (x, w, bias) = (b.whole("x", &[2, 40]), b.whole("w", &[16, 40]), b.f32("bias", &[16]));
        let r = Router { gate: Gate::Sigmoid, k: 4, normalise: true, scale: 1.8, groups: 1, groups_used: 1 };
        let (experts, weights) = ops::router(ops::linear(x, w) * 0.01, Some(bias), r);
        vec![experts, weights]
    })
}

fn rope(g: &Graph) -> Built<'_> {
    built(g, |b| {
        let tokens = g.symbol("tokens", (1, 8));
        let x = b.add(g.input("x", DType::F32, [tokens, g.int(2), g.int(24)]), Fill::Normal(1.0));
        let positions = b.add(g.input("pos", DType::I32, [tokens]), Fill::Ints(0, 100));
        let freq = b.add(g.input("freq", DType::F32, [12]), Fill::Between(0.01, 1.0));
        let (cos, sin) = ops::rope_tables(positions, freq);
        vec![ops::rope(x, cos.unsqueeze(1), sin.unsqueeze(1), Rope::HalfSplit)]
    })
}

fn assign(g: &Graph) -> Built<'_> {
    built(g, |b| {
        let (pos, tokens) = (g.symbol("pos", (0, 13)), g.symbol("tokens", (1, 4)));
        let cache = b.f32("cache", &[17, 20]);
        let x = b.add(g.input("x", DType::F32, [tokens, g.int(20)]), Fill::Normal(1.0));
        let view = cache.slice_dim(0, pos, tokens);
        let after = view.assign(x * 2.0);
        let seen = after.slice_dim(0, g.int(0), pos + 1);
        vec![after, seen.sum(0), seen.max(-1), view]
    })
}

fn gather(g: &Graph) -> Built<'_> {
    built(g, |b| {
        let (table, cache) = (b.f32("table", &[10, 24]), b.f32("cache", &[6, 24]));
        let at = b.add(g.input("at", DType::I32, [3]), Fill::Ints(-2, 12));
        let to = g.iota(3) * 2;
        let rows = table.gather(at);
        vec![rows.sum(-1), cache.gather(to).assign(rows * 0.5)]
    })
}

/// Of as many tiles of rows as a piece of the file has, where memory ends with the last of them.
fn planes(g: &Graph) -> Built<'_> {
    built(g, |b| {
        let format = Format::by_name("Q4_K").unwrap();
        let tiles = g.symbol("tiles", (1, 16));
        let dims = [tiles, g.int(16), g.int(1), g.int(format.bytes)];
        format.load(b.add(g.input("raw", DType::U8, dims), Fill::Bits), Layout::Rows)
    })
}

fn kept_pad(g: &Graph) -> Built<'_> {
    built(g, |b| {
        let n = g.symbol("n", (1, 6));
        let x = b.add(g.input("x", DType::F16, [n, g.int(1), g.int(4)]), Fill::Normal(1.0));
        vec![x.expand([g.int(3), n, g.int(1), g.int(4)]).contiguous().pad(-1, 0, 4)]
    })
}

/// Unrolled, both sides of the comparison are equal.
fn unneeded(g: &Graph) -> Built<'_> {
    built(g, |b| {
        let x = b.add(g.input("x", DType::I8, [16, 3]), Fill::Bits).cast(Scalar::U32);
        let most = x.max(1);
        vec![most.le(most.max(1))]
    })
}

fn wide(g: &Graph) -> Built<'_> {
    built(g, |b| {
        let x = b.add(g.input("x", DType::I32, [3, 40]), Fill::Bits);
        let y = b.add(g.input("y", DType::I64, [3, 40]), Fill::Ints(-9, 9));
        let squares = x.cast(Scalar::I64) * x.cast(Scalar::I64) + y;
        vec![squares, squares.max(1), (squares >> 33).cast(Scalar::I32)]
    })
}

/// The symbols' values and random inputs.
pub fn environment(built: &Built, symbols: &[(&str, i64)], rng: &mut Rng) -> Env {
    let mut env = Env { buffers: HashMap::new(), symbols: HashMap::new() };
    env.symbols.extend(symbols.iter().map(|(name, v)| (name.to_string(), *v)));
    for &(t, how) in &built.inputs {
        let n: i64 = t.dims().iter().map(|&d| compiler::interp::tensor::index(d, &env)).product();
        let Op::Buffer(slot) = t.0.op() else { panic!("inputs are buffers") };
        env.buffers.insert(slot, fill(t.dtype(), n as usize, how, rng));
    }
    env
}
