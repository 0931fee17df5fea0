//! Random tensor programs on devices against the tensor interpreter, under the heuristic's and under random schedules.
//!
//! A failure names its seed; `SEED=n` repeats that program alone, and shows it as small as it still fails.

use compiler::codegen::Caps;
use compiler::graph::{Ex, Graph, Op, topo};
use compiler::interp::tensor::Array;
use compiler::kernel::{Opt, heuristic, search, show};
use compiler::pipeline;
use compiler::rng::Rng;
use compiler::schedule::{Kernel, buffer_bytes};
use compiler::tensor::Tensor;
use compiler::testing::graphs::{Sample, expected, random_graph, shrink_outputs};
use compiler::text;
use runtime::cpu::{CpuDevice, Options};
use runtime::device::Device;
use runtime::interp::InterpDevice;
use runtime::step::Step;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What is wrong with a program on a device, if anything is: `random` schedules are tried besides the heuristic's.
fn fault<'g>(
    device: &dyn Device,
    g: &'g Graph,
    outputs: &[Tensor<'g>],
    sample: &Sample,
    random: usize,
) -> Option<String> {
    let want = expected(outputs, &sample.env)?;
    let caps = device.target().caps();
    let mut rng = Rng::new(7);
    (0..=random).find_map(|n| {
        let mut chosen = vec![];
        let choose = |kernel: &Kernel| {
            let opts = match n {
                0 => heuristic::propose(kernel, &caps),
                _ => search::random(kernel, &caps, &mut rng, 4, |o| pipeline::compiles(kernel, o, &caps)),
            };
            chosen.push(opts.clone());
            opts
        };
        let got = run(device, g, outputs, sample, choose);
        let why = match got {
            Err(why) => Some(why),
            Ok(got) => want.iter().zip(&got).find_map(|(w, bytes)| {
                w.difference(&Array::from_bytes(w.value.scalar, &w.value.dims, bytes))
            }),
        };
        why.map(|why| {
            format!(
                "{why}\nschedules: {}",
                chosen.iter().map(|c: &Vec<Opt>| show(c)).collect::<Vec<_>>().join(" | ")
            )
        })
    })
}

/// The bytes of each output.
fn run<'g>(
    device: &dyn Device,
    g: &'g Graph,
    outputs: &[Tensor<'g>],
    sample: &Sample,
    choose: impl FnMut(&Kernel) -> Vec<Opt>,
) -> Result<Vec<Vec<u8>>, String> {
    let roots: Vec<Ex> = outputs.iter().map(|t| t.0).collect();
    let mut inputs = HashMap::new();
    for b in topo(&roots) {
        let Op::Buffer(slot) = b.op() else { continue };
        let slice = device.alloc(buffer_bytes(b)).unwrap().whole();
        device.write(&slice, 0, &sample.env.buffers[&slot]).unwrap();
        inputs.insert(slot, slice);
    }
    let go = || -> Result<Vec<Vec<u8>>, String> {
        let mut step = Step::new(device, g, outputs, &inputs, choose).map_err(|e| e.to_string())?;
        let symbols: Vec<i64> = g.symbols().iter().map(|s| sample.env.symbols[&s.name]).collect();
        step.run(device, &symbols).map_err(|e| e.to_string())?;
        let read = |slice: &runtime::buffer::Slice| {
            let mut bytes = vec![0; slice.len()];
            device.read(slice, 0, &mut bytes).unwrap();
            bytes
        };
        Ok(step.outputs().iter().map(read).collect())
    };
    catch_unwind(AssertUnwindSafe(go)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.unwrap_or_else(|| panic.downcast_ref::<&str>().unwrap_or(&"a panic").to_string()))
    })
}

fn check(device: &dyn Device, seeds: std::ops::Range<u64>, random: usize) {
    let one = std::env::var("SEED").ok().map(|s| s.parse().expect("a seed is a number"));
    let (seeds, count) = one.map_or((seeds.clone(), seeds.end - seeds.start), |s: u64| (s..s + 1, 1));
    let mut failed = vec![];
    for seed in seeds {
        let g = Graph::new();
        let mut rng = Rng::new(seed);
        let steps = 2 + rng.below(12);
        let sample = random_graph(&g, &mut rng, steps);
        if let Some(why) = fault(device, &g, &sample.outputs, &sample, random) {
            let small = shrink_outputs(&sample.outputs, |o| fault(device, &g, o, &sample, random).is_some());
            let why = fault(device, &g, &small, &sample, random).unwrap_or(why);
            let roots: Vec<Ex> = small.iter().map(|t| t.0).collect();
            failed.push(seed);
            println!(
                "{}: seed {seed}, {:?}: {why}\n{}",
                device.name(),
                sample.env.symbols,
                text::graph::print(&roots)
            );
            assert!(failed.len() < 4, "{}: seeds {failed:?} fail", device.name());
        }
    }
    assert!(failed.is_empty(), "{}: seeds {failed:?} of {count} fail", device.name());
}

#[test]
fn interpreted() {
    check(&InterpDevice::default(), 0..150, 1);
}

#[test]
fn interpreted_as_a_gpu() {
    let caps = Caps {
        vector_bytes: 16,
        lanes: 32,
        max_threads: 1024,
        local_bytes: 48 << 10,
        dot4: true,
        tile: false,
        mma: true,
        transcendental: true,
    };
    check(&InterpDevice::like(caps), 1000..1100, 1);
}

#[test]
fn cpu() {
    match CpuDevice::new(Options { threads: Some(2), tier: None }) {
        Ok(device) => check(&device, 2000..4000, 1),
        Err(e) => println!("skipped: {e}"),
    }
}
