//! Rows of the kernel table on a device, held against the tensor interpreter.
//!
//! In: a device, a case, how many random schedules to try. Out: nothing, or what differs and under which schedule. Every
//! schedule that the search may choose must pass.

use crate::buffer::Slice;
use crate::device::{Device, Error};
use crate::step::{Choose, Step};
use compiler::codegen::Caps;
use compiler::graph::{Graph, Op};
use compiler::interp::tensor::{Array, eval};
use compiler::kernel::{Opt, heuristic, search, show};
use compiler::pipeline;
use compiler::quant::Layout;
use compiler::rng::Rng;
use compiler::schedule::Kernel;
use compiler::table::{Case, environment};
use compiler::tensor::Tensor;
use std::collections::HashMap;

/// Most options of a random schedule.
const OPTIONS: usize = 8;

/// The layout that a device's kernels read best.
pub fn layout(device: &dyn Device) -> Layout {
    if device.target().caps().lanes > 1 { Layout::Rows } else { Layout::Interleaved16 }
}

/// The slot of an input.
pub fn slot(t: Tensor) -> u32 {
    match t.0.op() {
        Op::Buffer(slot) => slot,
        op => panic!("{op:?} is no input"),
    }
}

/// Runs a case on each device under the heuristic's schedule, and on the last one under `random` others.
pub fn check(
    devices: &[&dyn Device],
    layout: Layout,
    case: &Case,
    random: usize,
    seed: u64,
) -> Result<(), String> {
    let g = Graph::new();
    let built = case.build(&g, layout);
    let mut rng = Rng::new(seed);
    let env = environment(&built, &mut rng);
    let want = eval(&built.outputs, &env);
    for (i, &device) in devices.iter().enumerate() {
        let random = if i + 1 == devices.len() { random } else { 0 };
        let caps = device.target().caps();
        let failed =
            |what: &str, why: String| format!("{case} on {}, seed {seed}, {what}: {why}", device.name());
        let inputs: HashMap<u32, Slice> = built
            .inputs
            .iter()
            .map(|(t, _)| Ok((slot(*t), upload(device, &env.buffers[&slot(*t)])?)))
            .collect::<Result<_, Error>>()
            .map_err(|e| failed("inputs", e.to_string()))?;
        for n in 0..=random {
            let mut chance = Chance { caps, rng: (n > 0).then_some(&mut rng), chosen: vec![] };
            let step = Step::by(device, &g, &built.outputs, &inputs, &mut chance);
            let what = chance.chosen.iter().map(|o| show(o)).collect::<Vec<_>>().join(" | ");
            let run = || -> Result<Vec<Array>, Error> {
                let mut step = step?;
                step.run(device, &[])?;
                step.outputs().iter().zip(&want).map(|(out, want)| download(device, out, want)).collect()
            };
            let got = run().map_err(|e| failed(&what, e.to_string()))?;
            for (got, want) in got.iter().zip(&want) {
                compare(case, got, want).map_err(|e| failed(&what, e))?;
            }
        }
    }
    Ok(())
}

/// Random schedules, or the heuristic's.
struct Chance<'r> {
    caps: Caps,
    rng: Option<&'r mut Rng>,
    chosen: Vec<Vec<Opt>>,
}

impl Choose for Chance<'_> {
    fn choose(&mut self, kernel: &Kernel) -> Vec<Opt> {
        let opts = match &mut self.rng {
            None => heuristic::propose(kernel, &self.caps),
            Some(rng) => search::walk(kernel, &self.caps, rng, OPTIONS),
        };
        self.chosen.push(opts.clone());
        opts
    }

    /// What compiles of a walk that does not; the heuristic's schedules do.
    fn instead(&mut self, kernel: &Kernel, _: &Error) -> Option<Vec<Opt>> {
        self.rng.as_ref()?;
        let walk = self.chosen.pop()?;
        let opts = search::cut_back(walk, |o| pipeline::compiles(kernel, o, &self.caps));
        self.chosen.push(opts.clone());
        Some(opts)
    }
}

fn upload(device: &dyn Device, bytes: &[u8]) -> Result<Slice, Error> {
    let slice = device.alloc(bytes.len())?.whole();
    device.write(&slice, 0, bytes)?;
    Ok(slice)
}

fn download(device: &dyn Device, from: &Slice, like: &Array) -> Result<Array, Error> {
    let mut bytes = vec![0; like.data.len() * like.scalar.bytes()];
    device.read(from, 0, &mut bytes)?;
    Ok(Array::from_bytes(like.scalar, &like.dims, &bytes))
}

fn compare(case: &Case, got: &Array, want: &Array) -> Result<(), String> {
    let pairs = got.data.iter().zip(&want.data).enumerate();
    if !want.scalar.is_float() {
        for (i, (g, w)) in pairs {
            if (g.as_int() - w.as_int()).abs() > case.slack() {
                return Err(format!("element {i} is {}, not {}", g.as_int(), w.as_int()));
            }
        }
        return Ok(());
    }
    let most = want.floats().iter().fold(case.scale(), |m, v| m.max(v.abs()));
    for (i, (g, w)) in pairs {
        let (g, w) = (g.as_float(), w.as_float());
        if g == w || (g.is_nan() && w.is_nan()) {
            continue;
        }
        if (g - w).abs().is_nan() || (g - w).abs() > case.tolerance() * most {
            return Err(format!("element {i} is {g}, not {w} (the largest is {most})"));
        }
    }
    Ok(())
}
