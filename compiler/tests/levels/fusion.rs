//! What shares a kernel, and what does not.

use crate::cases::{Inputs, built};
use compiler::dtype::{DType, Scalar};
use compiler::graph::{Ex, Graph, Op};
use compiler::ops;
use compiler::pipeline;
use compiler::quant::{Format, Layout};
use compiler::schedule::{Grain, Program, buffer_bytes, plan_memory};
use compiler::table::{Case, Fill, Form};
use compiler::tensor::Tensor;

fn schedule<'g>(g: &'g Graph, f: impl FnOnce(&mut Inputs<'g>) -> Vec<Tensor<'g>>) -> Program<'g> {
    pipeline::schedule(g, &built(g, f).outputs, Grain::CPU)
}

fn case(g: &Graph, form: Form, rows: i64, cols: i64) -> Program<'_> {
    let case = Case { form, format: Format::by_name("Q4_0").unwrap(), rows, cols, tokens: 1 };
    pipeline::schedule(g, &case.build(g, Layout::Interleaved16).outputs, Grain::CPU)
}

fn count(p: &Program) -> usize {
    p.kernels.len()
}

#[test]
fn rows_of_little_work_are_one_kernel() {
    let g = Graph::new();
    assert_eq!(count(&schedule(&g, |b| vec![b.f32("x", &[20, 4096]).softmax(-1)])), 1, "softmax");
    let norm = schedule(&g, |b| {
        let q = ops::quantize_i8(ops::rms_norm(b.f32("x", &[4, 2048]), b.f32("w", &[2048]), 1e-5));
        vec![q.q, q.d, q.s16, q.s32]
    });
    assert_eq!(count(&norm), 1, "norm and quantise");
    assert_eq!(count(&case(&g, Form::Router(4), 16, 256)), 1, "scores, bias, choice and weights");
}

#[test]
fn the_product_of_one_row_is_for_all_workers() {
    let g = Graph::new();
    let router = case(&g, Form::Router(4), 64, 2048);
    let rows =
        |k: &compiler::schedule::Kernel| k.rows.iter().filter_map(|r| r.arg(0).as_int()).product::<i64>();
    assert_eq!(router.kernels.iter().map(rows).collect::<Vec<_>>(), [64, 1], "scores, then the choice");
}

#[test]
fn products_take_their_neighbours_along() {
    let g = Graph::new();
    assert_eq!(count(&case(&g, Form::Linear { batch: 1 }, 2048, 5120)), 1, "residual");
    let both = schedule(&g, |b| {
        let q4 = Format::by_name("Q4_0").unwrap();
        let (_, gate) = q4.inputs(&g, "gate", &[], 1536, 2048, Layout::Interleaved16);
        let (_, up) = q4.inputs(&g, "up", &[], 1536, 2048, Layout::Interleaved16);
        let mut part = |name, t, dims: &[i64]| b.add(g.input(name, t, dims.to_vec()), Fill::Bits);
        let x = ops::QuantX {
            q: part("x.q", DType::I8, &[1, 64, 32]),
            d: part("x.d", DType::F32, &[1, 64]),
            s16: part("x.s16", DType::F32, &[1, 128]),
            s32: part("x.s32", DType::F32, &[1, 64]),
        };
        vec![gate.linear_q8(&x).silu() * up.linear_q8(&x)]
    });
    assert_eq!(count(&both), 1, "silu of one product times another");
    assert!(both.temps.is_empty());
}

#[test]
fn experts_are_read_where_they_lie() {
    let g = Graph::new();
    for form in [Form::GateUp { experts: 64, used: 4 }, Form::Down { experts: 64, used: 4 }] {
        let p = case(&g, form, 1536, 2048);
        assert_eq!(count(&p), 1, "{form:?}");
        assert!(p.temps.is_empty(), "{form:?}: no gathered copy");
    }
}

#[test]
fn a_large_product_keeps_its_parallelism() {
    let g = Graph::new();
    let p = schedule(&g, |b| {
        let x = ops::quantize_i8(ops::rms_norm(b.f32("x", &[1, 2048]), b.f32("w", &[2048]), 1e-5));
        let (_, w) = Format::by_name("Q4_0").unwrap().inputs(&g, "m", &[], 5120, 2048, Layout::Interleaved16);
        vec![w.linear_q8(&x)]
    });
    assert_eq!(count(&p), 2);
    let outputs = |k: usize| {
        let axes = |of: &[Ex]| of.iter().map(|r| r.arg(0).as_int().unwrap()).product::<i64>();
        let kernel = &p.kernels[k];
        axes(&kernel.rows) * kernel.stages.iter().map(|s| axes(&s.outs)).max().unwrap()
    };
    assert_eq!(outputs(1), 5120, "every row of the matrix is an output of its own kernel");
}

#[test]
#[expect(clippy::erasing_op)]
fn what_nobody_reads_is_not_computed() {
    let g = Graph::new();
    let p = schedule(&g, |b| {
        let x = b.f32("x", &[16, 16]).contiguous();
        let zero = x.cast(Scalar::I32) & 0;
        vec![zero + 1]
    });
    assert_eq!(count(&p), 1);
}

#[test]
fn temporaries_share_memory() {
    let g = Graph::new();
    let (rows, cols) = (512, 512);
    let p = schedule(&g, |b| {
        let mut x = b.f32("x", &[rows, cols]);
        for i in 0..6 {
            // Every row needs all rows of the step before.
            let column = x.max(0);
            x = ((x - column) * (i + 2) as f32).exp2().contiguous();
        }
        vec![x]
    });
    assert!(count(&p) >= 6);
    let large: Vec<Ex> = p.temps.iter().copied().filter(|t| buffer_bytes(*t) >= 1 << 20).collect();
    assert_eq!(large.len(), 5, "the last one is the output");
    let arena = plan_memory(&p, &(0..p.kernels.len()).collect::<Vec<_>>());
    let one = (rows * cols * 4) as usize;
    assert!(arena.bytes <= 2 * one + 16 * 1024, "{} bytes for chains of {one}", arena.bytes);
    let disjoint = |a: &Ex, b: &Ex| {
        let at = |t: &Ex| (arena.offsets[&t.id], arena.offsets[&t.id] + buffer_bytes(*t));
        at(a).1 <= at(b).0 || at(b).1 <= at(a).0
    };
    for kernel in &p.kernels {
        let live: Vec<Ex> =
            kernel.buffers().into_iter().map(|b| b.0).filter(|b| p.temps.contains(b)).collect();
        for (i, a) in live.iter().enumerate() {
            assert!(live[i + 1..].iter().all(|b| disjoint(a, b)), "{}: two buffers at once", kernel.name);
        }
    }
    assert!(p.temps.iter().all(|t| matches!(t.op(), Op::Buffer(_))));
}
