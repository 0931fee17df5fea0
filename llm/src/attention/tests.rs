//! Attention in pieces on the interpreter, scheduled as for a GPU, against the plain expression.

use super::*;
use crate::synth::{self, Changes};
use crate::weights::Activations;
use compiler::codegen::Target;
use compiler::codegen::ptx::Ptx;
use compiler::interp::tensor::{Env, eval};
use compiler::rng::Rng;
use compiler::table::{Fill, fill};
use runtime::device::Device;
use runtime::interp::InterpDevice;
use runtime::step::{Step, by_heuristic};

/// Rows of the cache, of which pages are shuffled where there are any: of few positions, of more, and of so many that their
/// pieces are added up in another way, or are larger.
const ROWS: [i64; 4] = [256, 1024, 8192, 20480];

struct Shape {
    groups: i64,
    heads: i64,
    key: i64,
    value: i64,
    /// Are the values the beginning of the keys?
    latent: bool,
}

/// What is attended to at these positions in pieces and at once, with the inputs.
fn build<'g>(
    g: &'g Graph,
    s: &Shape,
    numbers: Numbers,
    reach: Reach,
    (rows, positions): (i64, &[i64]),
) -> ([Tensor<'g>; 2], Env) {
    let mut c = Config::read(&synth::open("llama-3.2-1b:q4_0", Changes::default()).unwrap()).unwrap();
    c.heads = s.groups * s.heads;
    c.attention = config::Attention::Gqa { kv_heads: s.groups, key: s.key, value: s.value };
    let (t, mut rng, mut env) = (positions.len() as i64, Rng::new(7), Env::default());
    let at = Place::new(g, &c, t, (rows, rows), numbers, reach);
    let mut input = |name: &str, dims: &[i64], like: DType| {
        let x = g.input(name, like, dims.to_vec());
        let bytes = fill(like, dims.iter().product::<i64>() as usize, Fill::Normal(1.0), &mut rng);
        env.set(x, bytes);
        x
    };
    let q = input("q", &[t, s.groups, s.heads, s.key], DType::F32);
    let keys = input("keys", &[rows, s.groups, s.key], numbers.cache());
    let own = (!s.latent).then(|| input("values", &[rows, s.groups, s.value], numbers.cache()));
    let blocks = positions.iter().max().unwrap() / at.block + 1;
    env.symbols.extend([("blocks".into(), blocks), ("pos".into(), positions[0])]);
    if let Some(p) = &at.paging {
        let words = |of: Vec<i64>| of.iter().flat_map(|&w| (w as i32).to_le_bytes()).collect::<Vec<u8>>();
        let pages = blocks * at.block / KV_BLOCK;
        env.set(p.positions, words(positions.to_vec()));
        env.set(p.table, words((0..t * pages).map(|i| (i * 5 + 3) % (rows / KV_BLOCK)).collect()));
    }
    let keys = at.seen(keys);
    let values = own.map_or_else(|| keys.slice(-1, 0..s.value), |v| at.seen(v));
    let wanted = match reach {
        _ if at.by_warps && rows > DEEP => 2 * PIECE,
        _ if !at.by_warps || rows > SHALLOW => PIECE,
        Reach::Whole => LITTLE,
        _ => KV_BLOCK,
    };
    assert_eq!(at.block, wanted);
    ([attend(q, keys, values, 0.2, &at), attend_at_once(q, keys, values, 0.2, &at)], env)
}

#[test]
fn pieces_say_what_the_whole_says() {
    let device = InterpDevice::like(Ptx::new(90).caps());
    for (groups, heads, key, value, latent) in [
        (1, 10, 72, 64, true),
        (1, 12, 96, 64, true),
        (2, 4, 16, 16, false),
        (3, 1, 8, 24, false),
        (1, 7, 12, 20, false),
    ] {
        let s = Shape { groups, heads, key, value, latent };
        for (reach, positions) in [
            (Reach::Whole, &[0][..]),
            (Reach::Whole, &[150]),
            (Reach::Apart, &[64]),
            // The first has pieces of which it sees nothing.
            (Reach::Apart, &[1, 200, 127]),
        ] {
            for (activations, unit, rows) in [
                (Activations::F32, None, ROWS[0]),
                (Activations::Int8, None, ROWS[0]),
                (Activations::Int8, Some(Unit::Warp), ROWS[0]),
                (Activations::Int8, Some(Unit::Warp), ROWS[1]),
            ] {
                let numbers = Numbers { activations, unit, spread: true, several: false };
                compare(&device, &s, numbers, reach, (rows, positions));
            }
        }
    }
}

/// 66 pieces, which take a second round of loads, and 33 larger ones.
#[test]
fn many_pieces_say_what_the_whole_says() {
    let device = InterpDevice::like(Ptx::new(90).caps());
    let s = Shape { groups: 1, heads: 16, key: 72, value: 64, latent: true };
    let numbers =
        Numbers { activations: Activations::Int8, unit: Some(Unit::Warp), spread: true, several: false };
    for rows in &ROWS[2..] {
        compare(&device, &s, numbers, Reach::Whole, (*rows, &[4200]));
    }
}

/// Queries that a block's local memory holds with the cache's rows and the scores, that leave no room for these, and more.
#[test]
fn more_heads_than_local_memory_holds() {
    let device = InterpDevice::like(Ptx::new(86).caps());
    let numbers =
        Numbers { activations: Activations::Int8, unit: Some(Unit::Warp), spread: true, several: false };
    for heads in [24, 80, 160, 400] {
        let s = Shape { groups: 1, heads, key: 96, value: 64, latent: true };
        compare(&device, &s, numbers, Reach::Whole, (ROWS[1], &[3]));
    }
}

fn compare(
    device: &InterpDevice,
    s: &Shape,
    numbers: Numbers,
    reach: Reach,
    (rows, positions): (i64, &[i64]),
) {
    let g = Graph::new();
    let ([y, whole], env) = build(&g, s, numbers, reach, (rows, positions));
    // Queries and shares are rounded for a matrix unit.
    let bound = if numbers.unit.is_some() && s.heads >= HEADS { 2e-3 } else { 1e-5 };
    let inputs = env.buffers.iter().map(|(slot, bytes)| {
        let slice = device.alloc(bytes.len()).unwrap().whole();
        device.write(&slice, 0, bytes).unwrap();
        (*slot, slice)
    });
    let mut step = Step::new(device, &g, &[y], &inputs.collect(), by_heuristic(device)).unwrap();
    let symbols: Vec<i64> = g.symbols().iter().map(|s| env.symbols[&s.name]).collect();
    step.run(device, &symbols).unwrap();
    let mut got = vec![0; step.outputs()[0].len()];
    device.read(&step.outputs()[0], 0, &mut got).unwrap();
    let got = got.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let want = eval(&[whole], &env).swap_remove(0).floats();
    for (i, (got, want)) in got.zip(want).enumerate() {
        let near = (got - want).abs() < bound;
        let Shape { groups, heads, .. } = s;
        assert!(near, "{rows} rows, {reach:?} {positions:?} {groups}x{heads}: {i} is {got}, not {want}");
    }
}

/// The second of two parts of a prompt sees what the first does not.
#[test]
fn parts_of_a_prompt_say_what_the_whole_says() {
    let device = InterpDevice::like(Ptx::new(90).caps());
    let c = Config::read(&synth::open("llama-3.2-1b:q4_0", Changes::default()).unwrap()).unwrap();
    let numbers =
        Numbers { activations: Activations::Int8, unit: Some(Unit::Warp), spread: true, several: false };
    let (g, mut rng, mut env) = (Graph::new(), Rng::new(7), Env::default());
    let (t, rows, width) = (1024, 1280, 16);
    let at = Place::new(&g, &c, t, (rows, rows), numbers, Reach::Whole);
    let mut input = |name: &str, n: i64, like: DType| {
        let x = g.input(name, like, [n, 1, width]);
        env.set(x, fill(like, (n * width) as usize, Fill::Normal(1.0), &mut rng));
        x
    };
    let q = input("q", t, DType::F32).unsqueeze(2);
    let [keys, values] = ["keys", "values"].map(|name| at.seen(input(name, rows, numbers.cache())));
    let pos = 70;
    env.symbols.extend([("blocks".into(), (pos + t + at.block - 1) / at.block), ("pos".into(), pos)]);
    assert_eq!((at.block, part(Some(Unit::Warp), 1, rows)), (LONG_BLOCK, 512));
    let y = attend(q, keys, values, 0.2, &at);
    let whole = attend_at_once(q, keys, values, 0.2, &Place { halves: None, ..at });
    let inputs = env.buffers.iter().map(|(slot, bytes)| {
        let slice = device.alloc(bytes.len()).unwrap().whole();
        device.write(&slice, 0, bytes).unwrap();
        (*slot, slice)
    });
    let mut step = Step::new(&device, &g, &[y], &inputs.collect(), by_heuristic(&device)).unwrap();
    let symbols: Vec<i64> = g.symbols().iter().map(|s| env.symbols[&s.name]).collect();
    step.run(&device, &symbols).unwrap();
    let mut got = vec![0; step.outputs()[0].len()];
    device.read(&step.outputs()[0], 0, &mut got).unwrap();
    let got = got.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    for (i, (got, want)) in got.zip(eval(&[whole], &env).swap_remove(0).floats()).enumerate() {
        assert!((got - want).abs() < 2e-2, "{i} is {got}, not {want}");
    }
}
