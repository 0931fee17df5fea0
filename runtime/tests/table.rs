//! Every row of the kernel table on a device against the tensor interpreter.

use compiler::codegen::Caps;
use compiler::graph::{Graph, Op};
use compiler::interp::tensor::{Array, eval};
use compiler::kernel::{Opt, heuristic, search, show};
use compiler::pipeline;
use compiler::quant::Layout;
use compiler::rng::Rng;
use compiler::table::{Case, cases, environment};
use runtime::cpu::{CpuDevice, Options, Tier};
use runtime::device::Device;
use runtime::interp::InterpDevice;
use runtime::step::Step;
use std::collections::HashMap;

/// Runs a case under the heuristic's schedule and under `random` others.
fn check(device: &dyn Device, case: &Case, layout: Layout, random: usize, seed: u64) {
    let g = Graph::new();
    let built = case.build(&g, layout);
    let mut rng = Rng::new(seed);
    let env = environment(&built, &mut rng);
    let want = eval(&built.outputs, &env);
    let mut inputs = HashMap::new();
    for (t, _) in &built.inputs {
        let Op::Buffer(slot) = t.0.op() else { unreachable!() };
        let bytes = &env.buffers[&slot];
        let slice = device.alloc(bytes.len()).unwrap().whole();
        device.write(&slice, 0, bytes).unwrap();
        inputs.insert(slot, slice);
    }
    let caps = device.target().caps();
    for n in 0..=random {
        let mut chosen: Vec<Vec<Opt>> = vec![];
        let choose = |kernel: &compiler::schedule::Kernel| {
            let opts = match n {
                0 => heuristic::propose(kernel, &caps),
                _ => search::random(kernel, &caps, &mut rng, 8, |o| pipeline::compile(kernel, o, &caps).is_ok()),
            };
            chosen.push(opts.clone());
            opts
        };
        let built_step = Step::new(device, &g, &built.outputs, &inputs, choose);
        let what = || format!("{case}, seed {seed}: {}", chosen.iter().map(|c| show(c)).collect::<Vec<_>>().join(" | "));
        let mut step = built_step.unwrap_or_else(|e| panic!("{}: {e}", what()));
        step.run(device, &[]).unwrap();
        for (out, want) in step.outputs().iter().zip(&want) {
            let mut bytes = vec![0; want.data.len() * want.scalar.bytes()];
            device.read(out, 0, &mut bytes).unwrap();
            let got = Array::from_bytes(want.scalar, &want.dims, &bytes);
            compare(&what(), case, &got, want);
        }
    }
}

fn compare(what: &str, case: &Case, got: &Array, want: &Array) {
    if !want.scalar.is_float() {
        let off = got.data.iter().zip(&want.data).filter(|(a, b)| (a.as_int() - b.as_int()).abs() > case.slack()).count();
        assert_eq!(off, 0, "{what}: {off} integers differ");
        return;
    }
    let (got, want) = (got.floats(), want.floats());
    let most = want.iter().fold(0f32, |m, v| m.max(v.abs()));
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        assert!((g - w).abs() <= case.tolerance() * most, "{what}: element {i} is {g}, not {w} (largest {most})");
    }
}

#[test]
fn interpreted_as_a_gpu() {
    let caps = Caps { vector_bytes: 16, lanes: 32, max_threads: 1024, local_bytes: 48 << 10, dot4: true, tile: false, transcendental: true };
    let device = InterpDevice::like(caps);
    for case in cases(4).iter().filter(|c| c.cols <= 768 && c.tokens <= 2) {
        println!("{case}");
        check(&device, case, Layout::Rows, 0, 1);
    }
}

#[test]
fn cpu() {
    for tier in [Tier::Avx2, Tier::Avx512, Tier::Avx512Vnni, Tier::Amx] {
        let device = match CpuDevice::new(Options { threads: None, tier: Some(tier) }) {
            Ok(d) => d,
            Err(e) => {
                println!("skipped: {e}");
                continue;
            }
        };
        for (i, case) in cases(19).iter().enumerate() {
            let t = std::time::Instant::now();
            check(&device, case, Layout::Interleaved16, 3, i as u64);
            println!("{case} {:?}", t.elapsed());
        }
    }
}
