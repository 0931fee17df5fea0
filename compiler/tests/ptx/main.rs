//! What the PTX target emits, without a GPU: through NVIDIA's assembler, and run by an emulator against the interpreter.

mod emulator;

use compiler::bundle::Bundle;
use compiler::codegen::ptx::{Ptx, dynamic_shared};
use compiler::codegen::{Code, Target};
use compiler::dtype::{Bits, DType, Scalar};
use compiler::graph::{Ex, Graph};
use compiler::interp::{self, tensor::Array};
use compiler::kernel::{Action, Opt, heuristic, show};
use compiler::linear::{Inst, Linear};
use compiler::ops::{self, Unit};
use compiler::pipeline;
use compiler::quant::{Format, Layout};
use compiler::rng::Rng;
use compiler::schedule::{Grain, buffer_bytes};
use compiler::table::{Case, Fill, Form, fill};
use compiler::tensor::Tensor;
use compiler::testing::{self, cases};
use std::collections::HashSet;
use std::process::{Command, Stdio};

fn emit(sm: u32, program: &Linear) -> String {
    match Ptx::new(sm).emit(program) {
        Code::Text(text) => text,
        Code::Machine(_) => panic!("PTX is text"),
    }
}

fn shared_bytes(p: &Linear) -> usize {
    p.locals.iter().map(|l| (l.dtype.bytes() * l.len).next_multiple_of(16)).sum()
}

/// The buffers as the emulator leaves them.
fn emulate(p: &Linear, buffers: &[Vec<u8>], symbols: &[i64]) -> Vec<Vec<u8>> {
    let mut buffers = buffers.to_vec();
    emulator::run(&emit(80, p), p.grid.eval(symbols), p.threads, shared_bytes(p), &mut buffers, symbols);
    buffers
}

#[test]
fn every_case_runs_as_interpreted() {
    let mut wrong = vec![];
    for case in cases::all(32) {
        let mut want = case.buffers.clone();
        interp::linear::run(&case.program, &mut want, &case.symbols);
        let got = emulate(&case.program, &case.buffers, &case.symbols);
        if let Err(why) = case.compare(&want, &got) {
            wrong.push(format!("{}: {why}", case.program.name));
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn random_programs_run_as_interpreted() {
    for seed in 0..500 {
        let (program, buffers, symbols) = testing::random_program(&mut Rng::new(seed), &testing::GPU, 30);
        let differs = |p: &Linear| {
            let want = testing::expected(p, &buffers, &symbols)?;
            testing::difference(p, &want, &emulate(p, &buffers, &symbols))
        };
        if differs(&program).is_some() {
            let small = testing::shrink(&program, |p| differs(p).is_some());
            panic!("seed {seed}: {}\n{small}\n{}", differs(&small).unwrap(), emit(80, &small));
        }
    }
}

fn emit_bundle(sm: u32, bundle: &Bundle) -> String {
    match Ptx::new(sm).emit_bundle(bundle) {
        Code::Text(text) => text,
        Code::Machine(_) => panic!("PTX is text"),
    }
}

fn random_bundle(seed: u64) -> (Bundle, Vec<Vec<u8>>, Vec<i64>) {
    testing::random_bundle(&mut Rng::new(seed), &testing::GPU, 20)
}

#[test]
fn bundles_run_as_their_parts_one_by_one() {
    let mut idle = HashSet::new();
    for seed in 0..150 {
        let (bundle, buffers, symbols) = random_bundle(seed);
        let (text, mut got) = (emit_bundle(90, &bundle), buffers.clone());
        let shared = bundle.parts().iter().map(shared_bytes).max().unwrap();
        let grid = bundle.grid(&symbols) as i64;
        emulator::run(&text, grid, bundle.threads(), shared, &mut got, &symbols);
        let differs = testing::bundle_difference(&bundle, &buffers, &symbols, &got);
        assert_eq!(differs, None, "seed {seed}\n{text}");
        idle.extend(bundle.parts().iter().map(|p| p.threads < bundle.threads()));
    }
    assert_eq!(idle.len(), 2, "parts that use all threads of their blocks and parts that do not");
}

/// Scores, softmax and values of 32 pieces of a cache in f16: register tiles, wide loads and stores, stages.
#[test]
fn a_kernel_of_stages_runs_as_interpreted() {
    let g = Graph::new();
    let cache = g.input("cache", DType::F16, [32, 64, 32]);
    let q = g.input("q", DType::F32, [1, 4, 32]);
    let scores = ops::linear(q, cache.widen());
    let most = scores.max(-1);
    let e = (scores - most).exp();
    let values = ops::linear(e, cache.slice(-1, 0..16).widen().transpose(-1, -2));
    let opts = runs_in_stages(&g, &[values, most, e.sum(-1)], 1e-5);
    assert!(opts.iter().any(|o| o.action == Action::Upcast), "{}", show(&opts));
}

/// The same on the matrix unit, whose tokens are 12 heads: values lie side by side, four for a thread. Weights on the
/// border between two numbers of 16 bits may be either.
#[test]
fn stages_on_the_matrix_unit_run_as_interpreted() {
    let g = Graph::new();
    let cache = g.input("cache", DType::F16, [32, 64, 192]);
    let q = g.input("q", DType::F16, [1, 12, 192]);
    let scores = ops::linear_half(q, cache) * 0.1;
    let most = scores.max(-1);
    let e = (scores - most).exp().cast(Scalar::F16);
    let values = ops::linear_half(e, cache.slice(-1, 0..128).transpose(-1, -2));
    let opts = runs_in_stages(&g, &[values, most, e.widen().sum(-1)], 2e-3);
    assert_eq!(opts.iter().filter(|o| o.action == Action::Mma).count(), 2, "{}", show(&opts));
}

/// Runs what is one kernel of six stages, whose results are so near; its schedule.
fn runs_in_stages(g: &Graph, outputs: &[Tensor], bound: f32) -> Vec<Opt> {
    let caps = Ptx::new(80).caps();
    let program = pipeline::schedule(g, outputs, Grain::of(&caps));
    let [kernel] = &program.kernels[..] else { panic!("{} kernels", program.kernels.len()) };
    let opts = heuristic::propose(kernel, &caps);
    assert_eq!(kernel.stages.len(), 6, "{kernel}");
    let linear = pipeline::compile(kernel, &opts, &caps).unwrap();
    let mut rng = Rng::new(1);
    let buffers = kernel.buffers().into_iter().map(|(b, _)| {
        let n = buffer_bytes(b) / b.dtype().bytes();
        fill(b.dtype(), n, Fill::Normal(1.0), &mut rng)
    });
    let mut want: Vec<Vec<u8>> = buffers.collect();
    let got = emulate(&linear, &want, &[]);
    interp::linear::run(&linear, &mut want, &[]);
    for ((got, want), (b, _)) in got.iter().zip(&want).zip(kernel.buffers()).filter(|(_, (_, w))| *w) {
        let n = want.len() / 4;
        let [got, want] = [got, want].map(|bytes| Array::from_bytes(b.dtype().scalar, &[n], bytes).floats());
        let far = got.iter().zip(&want).find(|(g, w)| (*g - *w).abs() > bound * w.abs().max(1.0));
        assert_eq!(far, None);
    }
    opts
}

/// Kernels of many tokens, which go through the matrix unit, with what they read.
fn products() -> Vec<(Linear, Vec<Vec<u8>>)> {
    let caps = Ptx::new(80).caps();
    let case = |form, format, rows, cols, tokens| {
        let format = Format::by_name(format).unwrap();
        let (g, mut rng) = (Graph::new(), Rng::new(7));
        let mut built = Case { form, format, rows, cols, tokens }.build(&g, Layout::Rows);
        if rows % 128 == 0 {
            // The next product's activations: rows that lie apart by eight.
            built.outputs[0] = ops::halved(built.outputs[0], Unit::Warp);
        }
        let program = pipeline::schedule(&g, &built.outputs, Grain::of(&caps));
        let compiled = program.kernels.iter().map(|k| {
            let linear = pipeline::compile(k, &heuristic::propose(k, &caps), &caps).unwrap();
            let contents = |(b, _): &(Ex, bool)| {
                let input = built.inputs.iter().find(|(t, _)| t.0 == *b);
                let n: i64 = b.dims().iter().map(|d| d.as_int().unwrap()).product();
                fill(b.dtype(), n as usize, input.map_or(Fill::Between(0.0, 0.5), |i| i.1), &mut rng)
            };
            let buffers = k.buffers().iter().map(contents).collect();
            (linear, buffers)
        });
        compiled.filter(|(l, _)| l.code.iter().any(|i| matches!(i, Inst::Mma { .. }))).collect::<Vec<_>>()
    };
    let grouped = Form::Grouped { experts: 3, used: 2 };
    let all = [
        case(Form::Half, "Q4_0", 64, 256, 64),
        case(Form::Half, "Q4_0", 40, 96, 33),
        case(Form::Half, "Q4_0", 128, 64, 16),
        case(Form::Half, "Q6_K", 32, 256, 16),
        case(Form::Half, "Q4_K", 19, 256, 48),
        case(Form::Half, "F16", 16, 64, 24),
        case(grouped, "Q4_0", 48, 128, 20),
    ];
    assert!(all.iter().all(|kernels| kernels.len() == 1), "one kernel of each case is a product");
    all.into_iter().flatten().collect()
}

#[test]
fn products_run_as_interpreted() {
    for (program, buffers) in products() {
        let mut want = buffers.clone();
        interp::linear::run(&program, &mut want, &[]);
        let got = emulate(&program, &buffers, &[]);
        let written = program.buffers.iter().position(|b| b.1).unwrap();
        let t = program.buffers[written].0;
        let floats =
            |b: &[u8]| b.chunks_exact(t.bytes()).map(|c| Bits::read(t.scalar, c).as_float()).collect();
        let [got, want]: [Vec<f32>; 2] = [floats(&got[written]), floats(&want[written])];
        let bound = if t == DType::BF16 { 1e-2 } else { 1e-5 };
        let most = want.iter().fold(0f32, |m, v| m.max(v.abs()));
        let far = got.iter().zip(&want).position(|(g, w)| (g - w).abs() > bound * most || g.is_nan());
        assert_eq!(far, None, "{program}\n{}", emit(80, &program));
        assert!(most > 0.0);
    }
}

/// Kernels in one call of the assembler, which takes most of its time to start.
const BATCH: usize = 200;

fn assemble(sm: u32, name: &str, text: &str) {
    let file = std::env::temp_dir().join(format!("glimmer-{}-{sm}-{name}.ptx", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let mut ptxas = Command::new("ptxas");
    ptxas.arg(format!("-arch=sm_{sm}")).args(["-O1", "-o", "/dev/null"]).arg(&file);
    let output = ptxas.output().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn everything_assembles() {
    if Command::new("ptxas").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: no ptxas on PATH");
        return;
    }
    for sm in [80, 90] {
        let (mut batch, mut count) = (String::new(), 0);
        let random = (0..300).map(|seed| testing::random_program(&mut Rng::new(seed), &testing::GPU, 30).0);
        let products = products().into_iter().map(|p| p.0);
        let all = cases::all(128).into_iter().map(|c| c.program).chain(random).chain(products);
        let bundles = (0..60).map(|seed| random_bundle(seed).0);
        for (i, bundle) in all.map(Bundle::from).chain(bundles).enumerate() {
            let mut parts = bundle.parts().to_vec();
            parts.iter_mut().for_each(|p| p.name = format!("{}_{i}", p.name));
            let bundle = Bundle::new(parts);
            let text = emit_bundle(sm, &bundle);
            if bundle.parts().iter().any(|p| dynamic_shared(p) > 0) {
                assemble(sm, bundle.name(), &text);
                continue;
            }
            let (header, entry) = text.split_at(text.find(".visible").unwrap());
            if batch.is_empty() {
                batch = header.into();
            }
            batch += entry;
            count += 1;
            if count % BATCH == 0 {
                assemble(sm, &count.to_string(), &std::mem::take(&mut batch));
            }
        }
        if !batch.is_empty() {
            assemble(sm, "rest", &batch);
        }
        eprintln!("sm_{sm}: {count} kernels assembled");
    }
}
