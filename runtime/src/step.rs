//! Tensor expressions on a device: scheduled, compiled, loaded and laid out as one plan.
//!
//! In: the expressions, a slice for each input buffer, and how to choose each kernel's schedule. Out: a [`Step`] that is
//! run again and again; its outputs lie at fixed slices. Temporaries share one arena.

use crate::buffer::Slice;
use crate::device::{Device, Error, Prepared, Program};
use crate::plan::Plan;
use compiler::graph::{Ex, Graph, Op};
use compiler::kernel::{Opt, heuristic};
use compiler::pipeline;
use compiler::schedule::{self, Kernel, buffer_bytes};
use compiler::tensor::Tensor;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

pub struct Step {
    prepared: Prepared,
    outputs: Vec<Slice>,
    kernels: Vec<Compiled>,
}

/// What became of one kernel.
pub struct Compiled {
    pub program: Program,
    pub schedule: Vec<Opt>,
}

/// Chooses the heuristic's schedule for every kernel.
pub fn by_heuristic(device: &dyn Device) -> impl FnMut(&Kernel) -> Vec<Opt> {
    let caps = device.target().caps();
    move |kernel| heuristic::propose(kernel, &caps)
}

/// Compiles one kernel under a schedule and loads it.
pub fn load(device: &dyn Device, kernel: &Kernel, opts: &[Opt]) -> Result<Program, Error> {
    let target = device.target();
    let linear = pipeline::compile(kernel, opts, &target.caps())
        .map_err(|why| Error::Code { program: kernel.name.clone(), why: why.to_string() })?;
    let code = target.emit(&linear);
    device.load(linear, code)
}

impl Step {
    /// `inputs` has a slice for every buffer by slot, outputs excepted: those are allocated.
    pub fn new<'g>(
        device: &dyn Device,
        g: &'g Graph,
        outputs: &[Tensor<'g>],
        inputs: &HashMap<u32, Slice>,
        mut choose: impl FnMut(&Kernel) -> Vec<Opt>,
    ) -> Result<Step, Error> {
        let program = pipeline::schedule(g, outputs);
        let arena = schedule::plan_memory(&program);
        let temporary = device.alloc(arena.bytes.max(1))?;
        let mut memory = inputs.clone();
        for t in &program.temps {
            if let Some(&at) = arena.offsets.get(&t.id) {
                memory.insert(slot(*t), temporary.slice(at, buffer_bytes(*t))?);
            }
        }
        for &out in &program.outputs {
            if let Entry::Vacant(free) = memory.entry(slot(out)) {
                free.insert(device.alloc(buffer_bytes(out).max(1))?.whole());
            }
        }
        let mut plan = Plan::new(g.symbols().into_iter().map(|s| s.name));
        let mut kernels = vec![];
        for kernel in &program.kernels {
            let schedule = choose(kernel);
            let program = load(device, kernel, &schedule)?;
            let args = kernel.buffers().into_iter().map(|(b, _)| {
                memory.get(&slot(b)).cloned().ok_or_else(|| Error::Unbound { buffer: g.buffer(slot(b)).name })
            });
            plan.push(&program, args.collect::<Result<_, _>>()?)?;
            kernels.push(Compiled { program, schedule });
        }
        let outputs = program.outputs.iter().map(|o| memory[&slot(*o)].clone()).collect();
        Ok(Step { prepared: device.prepare(plan)?, outputs, kernels })
    }

    /// One kernel by itself, for a search to time; what it writes and was not given is allocated.
    pub fn of_kernel(
        device: &dyn Device,
        g: &Graph,
        kernel: &Kernel,
        inputs: &HashMap<u32, Slice>,
        opts: &[Opt],
    ) -> Result<Step, Error> {
        let program = load(device, kernel, opts)?;
        let mut plan = Plan::new(g.symbols().into_iter().map(|s| s.name));
        let mut args = vec![];
        for (b, _) in kernel.buffers() {
            args.push(match inputs.get(&slot(b)) {
                Some(slice) => slice.clone(),
                None => device.alloc(buffer_bytes(b).max(1))?.whole(),
            });
        }
        plan.push(&program, args)?;
        let kernels = vec![Compiled { program, schedule: opts.to_vec() }];
        Ok(Step { prepared: device.prepare(plan)?, outputs: vec![], kernels })
    }

    /// Where the results lie, in the order in which they were asked for.
    pub fn outputs(&self) -> &[Slice] {
        &self.outputs
    }
    pub fn kernels(&self) -> &[Compiled] {
        &self.kernels
    }
    pub fn prepared(&mut self) -> &mut Prepared {
        &mut self.prepared
    }
    /// `symbols` are in the graph's order.
    pub fn run(&mut self, device: &dyn Device, symbols: &[i64]) -> Result<(), Error> {
        device.run(&mut self.prepared, symbols)
    }
}

fn slot(buffer: Ex) -> u32 {
    match buffer.op() {
        Op::Buffer(slot) => slot,
        op => panic!("{op:?} is no buffer"),
    }
}
