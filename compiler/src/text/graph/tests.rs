//! What is printed parses to the same graph; what is not never panics.

use super::*;
use crate::dtype::Scalar;
use crate::interp::tensor::{Env, eval};
use crate::ops;
use crate::pipeline;
use crate::quant::{FORMATS, Layout};
use crate::rng::Rng;
use crate::spec;
use crate::table::{Case, environment};
use crate::tensor::Tensor;

/// Prints, parses in a new graph and prints again.
fn round_trip(roots: &[Ex]) {
    let text = print(roots);
    let g = Graph::new();
    let parsed = parse(&text, &g).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(print(&parsed), text);
}

#[test]
fn tensor_programs_and_kernels_round_trip() {
    for format in FORMATS.iter().filter(|f| f.is_quantised()) {
        let g = Graph::new();
        let outputs = Case::linear(format, 16, 256, 2).build(&g, Layout::Interleaved16).outputs;
        round_trip(&outputs.iter().map(|t| t.0).collect::<Vec<_>>());
        for k in &pipeline::schedule(&g, &outputs, crate::schedule::Grain::CPU).kernels {
            round_trip(&k.stores());
        }
    }
}

#[test]
fn a_parsed_program_computes_the_same() {
    let case = Case::linear(&FORMATS[12], 16, 256, 2);
    let (g, h) = (Graph::new(), Graph::new());
    let built = case.build(&g, Layout::Interleaved16);
    let env = environment(&built, &mut Rng::new(1));
    let parsed = parse(&print(&built.outputs.iter().map(|t| t.0).collect::<Vec<_>>()), &h).unwrap();
    let parsed: Vec<Tensor> = parsed.into_iter().map(Tensor).collect();
    // The buffers keep their order, but only those that are used are printed.
    let mut used: Vec<u32> = crate::graph::topo(&[built.outputs[0].0])
        .iter()
        .filter_map(|e| if let Op::Buffer(slot) = e.op() { Some(slot) } else { None })
        .collect();
    used.sort();
    let buffers = used.iter().enumerate().map(|(i, slot)| (i as u32, env.buffers[slot].clone())).collect();
    let again = Env { buffers, symbols: env.symbols.clone() };
    assert_eq!(eval(&built.outputs, &env), eval(&parsed, &again));
}

#[test]
fn symbols_ranges_and_odd_values_round_trip() {
    let g = Graph::new();
    let (n, pos) = (g.symbol("n", (1, 8)), g.symbol("pos", (0, 4095)));
    let x = g.input("a name (with) signs", DType::F32, [n * 2, pos + 1, g.int(3)]);
    let bits = |v: u32| g.constant(DType::F32, Bits(v as u64));
    let values = [-0.0f32, 1e-45, f32::INFINITY, 0.1].map(|v| g.float(v));
    let r = g.range(7, pos + 1, Kind::Lane);
    let local = g.make(Op::Local(2), DType::I64, &[g.int(64)]);
    let load = g.make(Op::Load, Scalar::I64.vec(4), &[local, r]);
    let tile = g.make(Op::TileDot(-64), Scalar::I32.vec(16), &[local, r, load]);
    let roots = [
        x.permute(&[2, 0, 1]).reduce(Fold::Max, 1).0,
        g.shaped(Op::Reduce(Fold::Min, 0b1010), DType::F32, x.0.node().shape, &[x.0]),
        g.make(
            Op::Lookup(u128::MAX),
            DType::U8,
            &[bits(0x7fc0_0001), g.constant(DType::BOOL, Bits::bool(true))],
        ),
        g.make(Op::Fold(Fold::Sum, 1), Scalar::I64.vec(4), &[load, r]),
        g.make(Op::LaneFold(Fold::Max), DType::I64, &[g.make(Op::Extract(3), DType::I64, &[load])]),
        g.make(Op::TileRow, Scalar::I32.vec(16), &[tile, g.int(i64::MIN)]),
        values.into_iter().reduce(|a, b| a + b).unwrap(),
        x.0,
    ];
    round_trip(&roots);
    let h = Graph::new();
    parse(&print(&roots), &h).unwrap();
    assert!(matches!(h.new_range(h.int(1), Kind::Serial).op(), Op::Range(8, _)), "a new range is new");
}

#[test]
fn errors_name_the_line_and_what_was_expected() {
    let cases = [
        ("", "line 1: expected the roots"),
        ("%0: f32 = Frob\nroots %0", "line 1: expected an operation or a value, found \"Frob\""),
        ("%0: f32 = 1.0\n%1: f32 = Neg %1\nroots", "line 2: expected a node from above, found \"%1\""),
        ("%0: f33 = 1.0", "line 1: expected a type"),
        ("%1: f32 = 1.0", "line 1: expected `%0:`"),
        ("%0: f32[m] = Buffer(x)", "line 1: expected a dimension"),
        ("symbol n 4..1", "line 1: expected bounds"),
        ("symbol n 1..4\nsymbol n 1..5", "line 2: expected the bounds"),
        ("%0: i64 = 4\n%1: i64 = Range(99999999999,Serial) %0", "line 2: expected a range"),
        ("%0: i64 = 4\nroots %0\n%1: i64 = 5", "line 3: expected nothing after the roots"),
    ];
    for (text, want) in cases {
        let error = parse(text, &Graph::new()).expect_err(text).to_string();
        assert!(error.starts_with(want), "{error}");
    }
}

#[test]
fn mutated_text_never_panics() {
    let g = Graph::new();
    let n = g.symbol("n", (1, 8));
    let x = g.input("x", DType::F32, [n, g.int(64)]);
    let tensors = [ops::quantize_i8(x.softmax(-1)).q.0, x.slice_dim(0, n, g.int(1)).0, x.permute(&[1, 0]).0];
    let stores: Vec<Ex> = pipeline::schedule(&g, &[x.softmax(-1)], crate::schedule::Grain::CPU)
        .kernels
        .iter()
        .flat_map(|k| k.stores())
        .collect();
    let texts = [print(&tensors), print(&stores)];
    let (mut accepted, mut rejected) = (0, 0);
    for seed in 0..2000 {
        let mut rng = Rng::new(seed);
        let mut text: Vec<char> = texts[seed as usize % 2].chars().collect();
        for _ in 0..1 + rng.below(3) {
            let at = rng.below(text.len());
            match rng.below(4) {
                0 => drop(text.remove(at)),
                1 => {
                    text[at] =
                        *rng.choose(&['0', '9', '%', '[', ']', ' ', 'x', '-', 'é', '\n', ':', '(', ','])
                }
                2 => text.insert(at, *rng.choose(&['0', '9', '%', ',', 's', 'R', '\u{1F600}'])),
                _ => text.truncate(at.max(1)),
            }
        }
        let h = Graph::new();
        match parse(&text.into_iter().collect::<String>(), &h) {
            Ok(roots) => {
                let _ = (print(&roots), spec::tensor::check(&roots));
                accepted += 1;
            }
            Err(e) => {
                assert!(e.line > 0 && !e.expected.is_empty());
                rejected += 1;
            }
        }
    }
    assert!(accepted > 30 && rejected > 500, "{accepted} accepted, {rejected} rejected");
}
