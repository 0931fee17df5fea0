//! Tensor expressions on a device: scheduled, compiled, loaded and laid out in plans.
//!
//! In: the expressions, a slice for each input buffer, and how to choose each kernel's schedule. Out: a [`Module`], whose
//! launches are put into plans as often as wanted, each time over other buffers; or a [`Step`], one module as a plan of
//! its own. Temporaries share one arena. Where the target bundles, kernels that do not depend on one another are one launch.
//! Slots are different memory, unless nothing is written to them.

use crate::buffer::{Buffer, Slice};
use crate::device::{Device, Error, Prepared, Program};
use crate::plan::Plan;
use compiler::bundle::Bundle;
use compiler::codegen::linearize;
use compiler::graph::{Ex, Graph, Id, Op, topo};
use compiler::kernel::split::{Phase, phases};
use compiler::kernel::{Illegal, Opt, heuristic};
use compiler::linear::{Count, Linear};
use compiler::pipeline;
use compiler::schedule::{self, Grain, Kernel, buffer_bytes};
use compiler::tensor::Tensor;
use compiler::text::expr;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::sync::Arc;

pub struct Step {
    prepared: Prepared,
    outputs: Vec<Slice>,
    launches: Vec<Launched>,
}

/// What became of one kernel.
#[derive(Clone)]
pub struct Compiled {
    pub linear: Arc<Linear>,
    pub schedule: Vec<Opt>,
    /// The kernel for people, before its schedule; one allocation for all that share the program.
    pub text: Arc<str>,
}

/// Kernels that are launched together; mostly it is one.
#[derive(Clone)]
pub struct Launched {
    pub program: Program,
    pub parts: Vec<Compiled>,
}

/// A buffer that kernels of a module touch.
#[derive(Clone)]
pub struct Argument {
    /// The same for all kernels of the module.
    pub slot: u32,
    pub name: String,
    /// Number of elements, and the symbols that it depends on.
    pub elements: Count,
    pub symbols: Vec<String>,
}

/// How the schedule of each kernel is chosen.
pub trait Choose {
    fn choose(&mut self, kernel: &Kernel) -> Vec<Opt>;
    /// Another one where the chosen one was refused; none if that is an error.
    fn instead(&mut self, _kernel: &Kernel, _refused: &Error) -> Option<Vec<Opt>> {
        None
    }
}

impl<F: FnMut(&Kernel) -> Vec<Opt>> Choose for F {
    fn choose(&mut self, kernel: &Kernel) -> Vec<Opt> {
        self(kernel)
    }
}

/// Chooses the heuristic's schedule for every kernel.
pub fn by_heuristic(device: &dyn Device) -> impl FnMut(&Kernel) -> Vec<Opt> {
    let caps = device.target().caps();
    move |kernel| heuristic::propose(kernel, &caps)
}

/// What a kernel under a schedule is run as, on a device.
pub fn phases_on<'g>(
    device: &dyn Device,
    kernel: &Kernel<'g>,
    opts: &[Opt],
) -> Result<Vec<Phase<'g>>, Error> {
    let refused = |why: Illegal| Error::Code { program: kernel.name.clone(), why: why.to_string() };
    phases(kernel, opts, &device.target().caps()).map_err(refused)
}

pub fn compile(device: &dyn Device, phase: &Phase) -> Result<Linear, Error> {
    pipeline::compile(&phase.kernel, &phase.opts, &device.target().caps())
        .map_err(|why| Error::Code { program: phase.kernel.name.clone(), why: why.to_string() })
}

/// Makes a program of what a kernel's phase was compiled to.
pub fn load(device: &dyn Device, linear: Linear) -> Result<Program, Error> {
    let code = device.target().emit(&linear);
    device.load(linear, code)
}

/// A kernel's schedule and what its phases have become.
#[derive(Clone)]
struct Known {
    schedule: Vec<Opt>,
    phases: Vec<Compiled>,
}

impl Known {
    fn new(device: &dyn Device, kernel: &Kernel, schedule: Vec<Opt>) -> Result<Known, Error> {
        let one = |p: &Phase| {
            let (linear, text) = (compile(device, p)?.into(), p.kernel.to_string().into());
            Ok(Compiled { linear, schedule: p.opts.clone(), text })
        };
        let mut phases =
            phases_on(device, kernel, &schedule)?.iter().map(one).collect::<Result<Vec<_>, Error>>()?;
        phases[0].schedule = schedule.clone();
        Ok(Known { schedule, phases })
    }
}

/// Kernels that were compiled for a device, by their text: modules that have a kernel in common share it.
#[derive(Default)]
pub struct Library {
    kernels: HashMap<String, Known>,
    /// What is launched, by where the texts of its parts lie and which of its buffers are settled.
    programs: HashMap<(Vec<usize>, Vec<bool>), Program>,
}

impl Library {
    /// The kernels as one launch; of the buffers those that are `settled` are not written by the launch before.
    fn launched(
        &mut self,
        device: &dyn Device,
        parts: Vec<Compiled>,
        settled: Vec<bool>,
    ) -> Result<Launched, Error> {
        let key = (parts.iter().map(|p| p.text.as_ptr() as usize).collect(), settled.clone());
        let program = match self.programs.entry(key) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(free) => {
                let bundle = Bundle::new(parts.iter().map(|p| Linear::clone(&p.linear)).collect());
                let bundle = bundle.with_settled(settled);
                let code = device.target().emit_bundle(&bundle);
                free.insert(device.load_bundle(bundle, code)?).clone()
            }
        };
        Ok(Launched { program, parts })
    }

    fn get(&mut self, device: &dyn Device, kernel: &Kernel, choose: &mut dyn Choose) -> Result<Known, Error> {
        let key = known_by(kernel);
        if let Some(known) = self.kernels.get(&key) {
            return Ok(known.clone());
        }
        let mut new = |schedule: Vec<Opt>| {
            let known = Known::new(device, kernel, schedule)?;
            // What may be launched with others is loaded with them.
            if !device.target().bundles() {
                for phase in &known.phases {
                    let settled = vec![false; phase.linear.buffers.len()];
                    self.launched(device, vec![phase.clone()], settled)?;
                }
            }
            Ok(known)
        };
        let known = new(choose.choose(kernel))
            .or_else(|refused| new(choose.instead(kernel, &refused).ok_or(refused)?))?;
        self.kernels.insert(key, known.clone());
        Ok(known)
    }
}

/// All that a kernel is compiled from: its text, how far its sums go, and the bounds of the symbols that it has. Those of
/// others may differ, so that plans for more positions share what does not see them.
fn known_by(kernel: &Kernel) -> String {
    let (mut text, symbols) = (kernel.to_string(), kernel.g.symbols());
    let dims = kernel.buffers().into_iter().flat_map(|(b, _)| b.dims());
    for e in topo(&kernel.stores().into_iter().chain(kernel.rows.clone()).chain(dims).collect::<Vec<_>>()) {
        let _ = match e.op() {
            Op::Range(..) => {
                let extent = e.args().first().map_or(String::new(), |n| expr(*n));
                writeln!(text, "{} < {extent}", expr(e))
            }
            Op::Symbol(i) => writeln!(text, "{:?}", symbols[i as usize]),
            _ => Ok(()),
        };
    }
    text
}

/// Loaded kernels in order, by the slots of the graph that they came from.
pub struct Module {
    launches: Vec<Launched>,
    /// The slots of each kernel's arguments.
    args: Vec<Vec<u32>>,
    buffers: HashMap<u32, Argument>,
    temps: Vec<(u32, usize, usize)>,
    scratch: usize,
    outputs: Vec<(u32, usize)>,
}

impl Module {
    pub fn new<'g>(
        device: &dyn Device,
        g: &'g Graph,
        outputs: &[Tensor<'g>],
        library: &mut Library,
        choose: &mut dyn Choose,
    ) -> Result<Module, Error> {
        let mut program = pipeline::schedule(g, outputs, Grain::of(&device.target().caps()));
        let mut kernels = vec![];
        for kernel in std::mem::take(&mut program.kernels) {
            let known = library.get(device, &kernel, choose)?;
            for phase in phases_on(device, &kernel, &known.schedule)? {
                program.temps.extend(phase.between);
                program.kernels.push(phase.kernel);
            }
            kernels.extend(known.phases);
        }
        let groups: Vec<Vec<usize>> = if device.target().bundles() {
            let linears: Vec<&Linear> = kernels.iter().map(|k| &*k.linear).collect();
            schedule::beside(&program.kernels, &linears)
        } else {
            (0..kernels.len()).map(|k| vec![k]).collect()
        };
        program.kernels = groups.iter().flatten().map(|&k| program.kernels[k].clone()).collect();
        let moments: Vec<usize> = groups.iter().enumerate().flat_map(|(m, g)| vec![m; g.len()]).collect();
        let arena = schedule::plan_memory(&program, &moments);
        let mut launches = vec![];
        // What another module's last launch writes is not known, but for what none does.
        let (mut before, mut rest): (Option<HashSet<Id>>, _) = (None, &program.kernels[..]);
        for group in &groups {
            let (own, others) = rest.split_at(group.len());
            rest = others;
            let buffers: Vec<(Ex, bool)> = own.iter().flat_map(Kernel::buffers).collect();
            // Temporaries are near by: to load them early gains nothing.
            let settled = |(b, _): &(Ex, bool)| match &before {
                Some(written) => !written.contains(&b.id) && !program.temps.contains(b),
                None => g.buffer(slot(*b)).constant,
            };
            let settled = match device.target().bundles() {
                true => buffers.iter().map(settled).collect(),
                false => vec![false; buffers.len()],
            };
            let parts = group.iter().map(|&k| kernels[k].clone()).collect();
            launches.push(library.launched(device, parts, settled)?);
            before = Some(buffers.iter().filter(|(_, written)| *written).map(|(b, _)| b.id).collect());
        }
        let temps = program.temps.iter().filter_map(|t| {
            let at = arena.offsets.get(&t.id)?;
            Some((slot(*t), *at, buffer_bytes(*t)))
        });
        let mut module = Module {
            launches,
            args: vec![],
            buffers: HashMap::new(),
            temps: temps.collect(),
            scratch: arena.bytes,
            outputs: program.outputs.iter().map(|o| (slot(*o), buffer_bytes(*o))).collect(),
        };
        for kernel in &program.kernels {
            let buffers: Vec<Ex> = kernel.buffers().into_iter().map(|(b, _)| b).collect();
            for &b in &buffers {
                let (elements, symbols) = linearize::dimension(schedule::length(b));
                let argument = Argument { slot: slot(b), name: g.buffer(slot(b)).name, elements, symbols };
                module.buffers.insert(slot(b), argument);
            }
            module.args.push(buffers.into_iter().map(slot).collect());
        }
        Ok(module)
    }

    pub fn launches(&self) -> &[Launched] {
        &self.launches
    }
    /// Each kernel with the buffers that it is given, in order.
    pub fn calls(&self) -> impl Iterator<Item = (&Compiled, Vec<&Argument>)> {
        self.launches
            .iter()
            .flat_map(|l| &l.parts)
            .zip(self.args.iter().map(|slots| slots.iter().map(|s| &self.buffers[s]).collect()))
    }
    /// Bytes of temporaries.
    pub fn scratch(&self) -> usize {
        self.scratch
    }
    /// The slot and the bytes of each output.
    pub fn outputs(&self) -> &[(u32, usize)] {
        &self.outputs
    }

    /// Appends the launches, each buffer at its slot's slice and the temporaries in `scratch`.
    pub fn push(&self, plan: &mut Plan, memory: &HashMap<u32, Slice>, scratch: &Buffer) -> Result<(), Error> {
        let mut memory = memory.clone();
        for &(slot, at, bytes) in &self.temps {
            memory.insert(slot, scratch.slice(at, bytes)?);
        }
        let mut rest = &self.args[..];
        for launched in &self.launches {
            let (own, others) = rest.split_at(launched.parts.len());
            rest = others;
            let args = own.iter().flatten().map(|s| {
                memory.get(s).cloned().ok_or_else(|| Error::Unbound { buffer: self.buffers[s].name.clone() })
            });
            plan.push(&launched.program, args.collect::<Result<_, _>>()?)?;
        }
        Ok(())
    }
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
        Step::by(device, g, outputs, inputs, &mut choose)
    }

    pub fn by<'g>(
        device: &dyn Device,
        g: &'g Graph,
        outputs: &[Tensor<'g>],
        inputs: &HashMap<u32, Slice>,
        choose: &mut dyn Choose,
    ) -> Result<Step, Error> {
        let module = Module::new(device, g, outputs, &mut Library::default(), choose)?;
        let mut memory = inputs.clone();
        for &(slot, bytes) in &module.outputs {
            if let Entry::Vacant(free) = memory.entry(slot) {
                free.insert(device.alloc(bytes.max(1))?.whole());
            }
        }
        let mut plan = Plan::new(g.symbols().into_iter().map(|s| s.name));
        module.push(&mut plan, &memory, &device.alloc(module.scratch.max(1))?)?;
        let outputs = module.outputs.iter().map(|(slot, _)| memory[slot].clone()).collect();
        Ok(Step { prepared: device.prepare(plan)?, outputs, launches: module.launches })
    }

    /// Where the results lie, in the order in which they were asked for.
    pub fn outputs(&self) -> &[Slice] {
        &self.outputs
    }
    pub fn launches(&self) -> &[Launched] {
        &self.launches
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interp::InterpDevice;
    use compiler::codegen::Target;
    use compiler::codegen::ptx::Ptx;
    use compiler::dtype::DType;

    /// How a sum of so many numbers is known, and one that has a symbol of such a bound.
    fn known(summed: i64, bound: i64) -> [String; 2] {
        let g = Graph::new();
        let n = g.symbol("n", (1, bound));
        let [x, y] = [g.int(64), n].map(|n| g.input("x", DType::F32, [n]));
        let sums = [x.slice(0, 0..summed).sum(0), y.sum(0)];
        let kernels = pipeline::schedule(&g, &sums, Grain::CPU).kernels;
        // Without the name, which says how much the last stage sums.
        let text = |k: &Kernel| known_by(&Kernel { name: "k".into(), ..k.clone() });
        [text(&kernels[0]), text(&kernels[1])]
    }

    #[test]
    fn the_first_launch_knows_what_no_step_writes() {
        let device = InterpDevice::like(Ptx::new(90).caps());
        let g = Graph::new();
        let [x, w] = ["x", "w"].map(|name| g.input(name, DType::F32, [64]));
        g.set_constant(slot(w.0));
        let mut choose = by_heuristic(&device);
        let module = Module::new(&device, &g, &[x * w], &mut Library::default(), &mut choose).unwrap();
        let settled = module.launches[0].program.bundle().settled();
        let of = |t: Tensor| settled[module.args[0].iter().position(|s| *s == slot(t.0)).unwrap()];
        assert_eq!([of(x), of(w)], [false, true]);
    }

    #[test]
    fn plans_share_what_does_not_see_their_bounds() {
        assert_eq!(known(32, 8)[0], known(32, 16)[0]);
        assert_ne!(known(32, 8)[1], known(32, 16)[1]);
        assert_ne!(known(32, 8)[0], known(16, 8)[0]);
    }
}
