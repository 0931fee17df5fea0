//! When each kernel of a step runs, told by the kernels themselves.
//!
//! In: a plan and its kernels' parameters. Out: the same plan as a graph of kernels that note the time where they have
//! waited for the one before and where they end, so that a step is timed as it runs, launches that overlap included.

use super::driver::{Call, Graph, Kernel, Memory};
use super::{CudaDevice, grid};
use crate::device::{Error, Program, Span};
use crate::plan::Plan;
use compiler::codegen::Target;
use compiler::codegen::ptx::STAMPS;
use std::time::Duration;

/// What stands in a launch's place before it runs: nothing is later, and nothing earlier.
const FRESH: [i64; STAMPS] = [u64::MAX as i64, 0];

pub struct Stamped {
    graph: Graph,
    kernels: Vec<Kernel>,
    launches: Vec<Stamp>,
    /// Each launch's symbol values and stamps.
    memory: Memory,
}

struct Stamp {
    kernel: usize,
    args: Vec<u64>,
    /// The grid that the graph has now.
    grid: u32,
}

impl Stamped {
    /// `args` end with the address of the symbol values.
    pub fn new(device: &CudaDevice, plan: &Plan, args: &[Vec<u64>]) -> Result<Stamped, Error> {
        let target = device.target.stamped();
        let (mut kernels, mut known): (Vec<Kernel>, Vec<&Program>) = (vec![], vec![]);
        let words: usize =
            plan.launches().iter().map(|l| l.program().bundle().symbols().len() + STAMPS).sum();
        let memory = device.context.alloc(8 * words)?;
        let (mut launches, mut at) = (vec![], memory.address());
        for (launch, args) in plan.launches().iter().zip(args) {
            let program = launch.program();
            let kernel = match known.iter().position(|k| k.is(program)) {
                Some(n) => n,
                None => {
                    kernels.push(device.assemble(program.bundle(), target.emit_bundle(program.bundle()))?);
                    known.push(program);
                    known.len() - 1
                }
            };
            let buffers = args.split_last().map_or(&[][..], |(_, buffers)| buffers);
            launches.push(Stamp { kernel, args: [buffers, &[at]].concat(), grid: 1 });
            at += 8 * (program.bundle().symbols().len() + STAMPS) as u64;
        }
        let calls: Vec<Call> =
            launches.iter().map(|s| Call { kernel: &kernels[s.kernel], grid: 1, args: &s.args }).collect();
        // SAFETY: the kernels do what the plan's do, whose buffers live as long as it; the rest is kept here.
        let graph = unsafe { Graph::new(&device.context, &calls)? };
        Ok(Stamped { graph, kernels, launches, memory })
    }

    /// One step.
    pub fn run(&mut self, device: &CudaDevice, plan: &Plan, symbols: &[i64]) -> Result<Vec<Span>, Error> {
        let mut words: Vec<i64> = vec![];
        for (i, (launch, s)) in plan.launches().iter().zip(&mut self.launches).enumerate() {
            let own: Vec<i64> = launch.symbols(symbols).collect();
            let grid = grid(launch, &own)?;
            if s.grid != grid {
                self.graph.set_grid(i, &Call { kernel: &self.kernels[s.kernel], grid, args: &s.args })?;
                s.grid = grid;
            }
            words.extend(own);
            words.extend(FRESH);
        }
        let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        // SAFETY: `memory` was allocated for as many words.
        unsafe { device.context.upload(self.memory.address(), &bytes)? };
        self.graph.launch()?;
        // SAFETY: as above.
        unsafe { device.context.download(self.memory.address(), &mut bytes)? };
        let words: Vec<u64> = bytes.as_chunks().0.iter().map(|b| u64::from_le_bytes(*b)).collect();
        let (mut at, mut before) = (0, None);
        let spans = plan.launches().iter().map(|launch| {
            at += launch.program().bundle().symbols().len() + STAMPS;
            let [ready, end] = [words[at - 2], words[at - 1]];
            // One with no blocks leaves everything as it was.
            if end < ready {
                return Span::default();
            }
            let gap = before.replace(end).map_or(0, |before| ready.saturating_sub(before));
            Span { gap: Duration::from_nanos(gap), run: Duration::from_nanos(end - ready) }
        });
        Ok(spans.collect())
    }
}
