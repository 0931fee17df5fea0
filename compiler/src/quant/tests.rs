//! Every row of the table against the values, and the products, of `fixtures/quant`.

use super::*;
use crate::graph::{Ex, Op};
use crate::interp::tensor::{Env, eval, eval1};
use crate::scalar::{Binary, Fold};
use serde_json::Value;
use std::path::PathBuf;

const ROWS: i64 = 8;
const COLS: i64 = 512;

/// The folder of fixtures beside the checkout, which a lone clone does not have.
fn fixtures() -> Option<PathBuf> {
    let dir = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/fixtures/quant"));
    if !dir.is_dir() {
        println!("skipped: no fixtures beside the checkout");
        return None;
    }
    Some(dir)
}

fn floats(file: PathBuf) -> Vec<f32> {
    let bytes = std::fs::read(file).unwrap();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// A format's 8 rows of 512 elements, and what they stand for.
struct Case {
    format: &'static Format,
    blocks: Vec<u8>,
    values: Vec<f32>,
}

fn cases(dir: &std::path::Path) -> Vec<Case> {
    let case = |format: &'static Format| {
        let values = if format.name == "F32" { "F16" } else { format.name };
        let values = floats(dir.join(format!("{values}.f32.bin")));
        let blocks = match format.name {
            "F32" => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            name => std::fs::read(dir.join(format!("{name}.blocks.bin"))).unwrap(),
        };
        Case { format, blocks, values }
    };
    FORMATS.iter().map(case).collect()
}

impl Case {
    fn raw<'g>(&self, g: &'g Graph, leading: &[i64], rows: i64, env: &mut Env) -> Tensor<'g> {
        let f = self.format;
        let raw = g.input("raw", DType::U8, [leading, &[rows, COLS / f.block, f.bytes]].concat());
        let n = leading.iter().product::<i64>() * rows * f.row_bytes(COLS);
        env.set(raw, self.blocks.iter().copied().cycle().take(n as usize).collect());
        raw
    }
}

/// Buffers filled by [`Format::load`], and the planes they show.
fn loaded<'g>(
    g: &'g Graph,
    case: &Case,
    leading: &[i64],
    rows: i64,
    layout: Layout,
    env: &mut Env,
) -> Planes<'g> {
    let raw = case.raw(g, leading, rows, env);
    let stored = eval(&case.format.load(raw, layout), env);
    let (buffers, planes) = case.format.inputs(g, case.format.name, leading, rows, COLS, layout);
    let memory = case.format.stored(leading, rows, COLS, layout);
    for ((b, a), s) in buffers.iter().zip(stored).zip(&memory) {
        assert!(
            a.dims.iter().map(|&d| d as i64).eq(s.dims.iter().copied()),
            "{} {s:?}: {:?}",
            case.format.name,
            a.dims
        );
        assert_eq!((a.scalar, a.to_bytes().len()), (s.dtype.scalar, s.bytes()));
        env.set(*b, a.to_bytes());
    }
    planes
}

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn values_are_exact_in_every_layout() {
    let Some(dir) = fixtures() else { return };
    for case in cases(&dir) {
        let (g, mut env) = (Graph::new(), Env::default());
        let raw = case.raw(&g, &[], ROWS, &mut env);
        let got = eval1(case.format.planes(raw).dequant(), &env).floats();
        let wrong = got.iter().zip(&case.values).position(|(a, b)| a.to_bits() != b.to_bits());
        if let Some(i) = wrong {
            panic!("{} row {} col {}: {} for {}", case.format.name, i / 512, i % 512, got[i], case.values[i]);
        }
        for layout in [Layout::Rows, Layout::Interleaved16] {
            for rows in [1, 5, 8, 16, 37] {
                let planes = loaded(&g, &case, &[], rows, layout, &mut env);
                let want: Vec<f32> =
                    case.values.iter().copied().cycle().take((rows * COLS) as usize).collect();
                let got = eval1(planes.dequant(), &env).floats();
                assert_eq!(bits(&got), bits(&want), "{} {layout:?} {rows} rows", case.format.name);
            }
        }
    }
}

#[test]
fn products_stay_within_their_bounds() {
    let Some(dir) = fixtures() else { return };
    let index: Value = serde_json::from_slice(&std::fs::read(dir.join("index.json")).unwrap()).unwrap();
    let activations = floats(dir.join("activations.f32.bin"));
    for case in cases(&dir).iter().filter(|c| c.format.name != "F32") {
        let info = &index["types"][case.format.name];
        assert_eq!(info["ggml_type"], case.format.id);
        assert_eq!(info["block_elems"], case.format.block);
        assert_eq!(info["block_bytes"], case.format.bytes);
        for layout in [Layout::Rows, Layout::Interleaved16] {
            let (g, mut env) = (Graph::new(), Env::default());
            let planes = loaded(&g, case, &[], ROWS, layout, &mut env);
            let x = g.input("x", DType::F32, [g.symbol("tokens", (1, 8)), g.int(COLS)]);
            env.symbols.insert("tokens".into(), 4);
            env.set_floats(x, &activations);
            let check = |y: Tensor, bound: f64| {
                let y = eval1(y, &env).floats();
                for (i, row) in info["dot_rows"].as_array().unwrap().iter().enumerate() {
                    for m in 0..4 {
                        let want = info["dots"][i][m].as_f64().unwrap();
                        let norms =
                            info["row_norms"][i].as_f64().unwrap() * index["act_norms"][m].as_f64().unwrap();
                        let got = y[m * ROWS as usize + row.as_u64().unwrap() as usize] as f64;
                        let error = (got - want).abs();
                        assert!(
                            error <= bound * norms + f32::MIN_POSITIVE as f64,
                            "{} row {row}, x {m}: {got} for {want}",
                            case.format.name
                        );
                    }
                }
            };
            check(planes.linear(x), 3e-6);
            if case.format.is_quantised() {
                check(planes.linear_q8(&ops::quantize_i8(x)), 5e-3);
            }
        }
    }
}

#[test]
fn a_gathered_expert_is_that_expert() {
    let Some(dir) = fixtures() else { return };
    let activations = floats(dir.join("activations.f32.bin"));
    for case in cases(&dir) {
        let (g, mut env) = (Graph::new(), Env::default());
        // Four experts of two rows; two tokens choose two each.
        let planes = loaded(&g, &case, &[4], 2, Layout::Interleaved16, &mut env);
        let chosen = [3, 0, 1, 3];
        let sel = g.input("sel", DType::I32, [2, 2]);
        env.set(sel, chosen.iter().flat_map(|i: &i32| i.to_le_bytes()).collect());
        let x = g.input("x", DType::F32, [2, 1, 1, COLS]);
        env.set_floats(x, &activations[..2 * COLS as usize]);
        let all = loaded(&g, &case, &[], ROWS, Layout::Rows, &mut env);
        let token = x.reshape([2, COLS]);
        let (some, all) = if case.format.is_quantised() {
            (planes.gather(sel).linear_q8(&ops::quantize_i8(x)), all.linear_q8(&ops::quantize_i8(token)))
        } else {
            (planes.gather(sel).linear(x), all.linear(token))
        };
        let (some, all) = (eval1(some, &env), eval1(all, &env).floats());
        assert_eq!(some.dims, [2, 2, 1, 2]);
        for (i, y) in some.floats().iter().enumerate() {
            let (token, expert, row) = (i / 4, chosen[i / 2] as usize, i % 2);
            assert_eq!(*y, all[8 * token + 2 * expert + row], "{} {i}", case.format.name);
        }
    }
}

#[test]
fn embedding_rows_are_gathered_by_token() {
    let Some(dir) = fixtures() else { return };
    for case in cases(&dir) {
        let (g, mut env) = (Graph::new(), Env::default());
        let planes = loaded(&g, &case, &[], ROWS, Layout::Interleaved16, &mut env);
        let ids = g.input("ids", DType::I32, [2]);
        env.set(ids, [6i32, 1].iter().flat_map(|i| i.to_le_bytes()).collect());
        let got = eval1(planes.gather(ids).dequant(), &env).floats();
        let want = [&case.values[6 * 512..7 * 512], &case.values[512..2 * 512]].concat();
        assert_eq!(bits(&got), bits(&want), "{}", case.format.name);
    }
}

/// Below the views: what a movement shows.
fn shown(e: Ex) -> Ex {
    match e.op() {
        Op::Reshape | Op::Expand | Op::Permute(_) => shown(e.arg(0)),
        _ => e,
    }
}

/// The length of a sum of u8 times i8 in i32, if this is one: what the dot-4 instructions compute.
fn byte_dot(e: Ex) -> Option<i64> {
    let Op::Reduce(Fold::Sum, _) = e.op() else { return None };
    let Op::Binary(Binary::Mul) = e.arg(0).op() else { return None };
    let [a, b] = [0, 1].map(|i| shown(e.arg(0).arg(i)));
    let casts = a.op() == Op::Cast && b.op() == Op::Cast && e.dtype() == DType::I32;
    (casts && [a, b].map(|c| c.arg(0).dtype()) == [DType::U8, DType::I8]).then(|| Tensor(e.arg(0)).size(-1))
}

#[test]
fn the_inner_sum_is_a_dot_product_of_bytes() {
    for f in FORMATS.iter().filter(|f| f.is_quantised()) {
        let g = Graph::new();
        let (_, planes) = f.inputs(&g, "w", &[], 8, COLS, Layout::Rows);
        let x = ops::quantize_i8(g.input("x", DType::F32, [2, COLS]));
        let nodes = planes.linear_q8(&x).0.topo();
        assert_eq!(nodes.into_iter().filter_map(byte_dot).collect::<Vec<_>>(), [f.group], "{}", f.name);
    }
}

/// The values of 64 rows of Q8_0 that share a scale, each exact and cut off.
fn exact_and_cut(scale: f32) -> Vec<(f32, f32)> {
    let (g, mut env) = (Graph::new(), Env::default());
    let (buffers, planes) = Format::by_name("Q8_0").unwrap().inputs(&g, "w", &[], 64, 32, Layout::Rows);
    for b in buffers {
        let n = b.dims().iter().map(|d| d.as_int().unwrap()).product::<i64>() as usize;
        env.set(
            b,
            match b.dtype() {
                DType::F16 => half::f16::from_f32(scale).to_le_bytes().repeat(n),
                _ => (0..n).map(|i| i as u8).collect(),
            },
        );
    }
    let [exact, cut] = [planes.dequant(), planes.cut().cast(F32)].map(|w| eval1(w, &env).floats());
    exact.into_iter().zip(cut).collect()
}

#[test]
fn cutting_off_keeps_what_bf16_holds_and_is_right_on_average() {
    assert!(exact_and_cut(0.125).into_iter().all(|(w, cut)| w == cut));
    let scales = (0..64).map(|i| 0.01 * 2f32.powf(i as f32 / 64.0));
    let off: Vec<f32> =
        scales.flat_map(exact_and_cut).filter(|(w, _)| *w != 0.0).map(|(w, cut)| cut / w - 1.0).collect();
    assert!(off.iter().all(|e| e.abs() < 0.006), "at most three quarters of a step");
    let mean = off.iter().sum::<f32>() / off.len() as f32;
    assert!(mean.abs() < 1e-4, "{mean}");
}
