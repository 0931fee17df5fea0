//! An NVIDIA GPU as a device: PTX that the driver assembles, run as a graph.
//!
//! In: text of the PTX target. Out: buffers in the GPU's memory; steps run behind the caller. A prepared plan is one
//! graph. The symbol values lie in a small buffer that is written before a step, so the graph stays as it is from step
//! to step; only a kernel whose grid depends on the symbols is changed in it, and only when its grid changes.

mod driver;
mod stamps;

use crate::buffer::{Buffer, Slice};
use crate::device::{Device, Error, HostFloats, Prepared, Program, Span};
use crate::plan::{Launch, Plan};
use compiler::bundle::Bundle;
use compiler::codegen::ptx::{Ptx, dynamic_shared};
use compiler::codegen::{Code, Target};
use compiler::linear::Linear;
use driver::{Call, Context, Graph, Kernel, Memory};
use stamps::Stamped;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What the generated code takes for granted of a buffer's start.
const ALIGN: u64 = 16;

/// The driver hands out pages of 2 MiB, and a model has hundreds of buffers that would leave half of one empty: up to so many
/// bytes they lie in allocations of this size, each freed with the last of its buffers.
const SMALL: usize = 8 << 20;
const SHARED: usize = 64 << 20;

/// Where small buffers begin.
const BOUNDARY: usize = 256;

pub struct CudaDevice {
    context: Arc<Context>,
    target: Ptx,
    name: String,
    multiprocessors: u32,
    l2_bytes: usize,
    /// What small buffers are cut from, and how much of it is taken.
    shared: Mutex<Option<(Arc<Memory>, usize)>>,
}

/// A plan as a graph.
struct State {
    graph: Graph,
    /// Every launch's parameters: buffers and the place of its symbols.
    args: Vec<Vec<u64>>,
    /// The launches whose grids depend on the symbols, and the grids that the graph has now.
    varying: Vec<(usize, u32)>,
    /// Which of the plan's symbols lie where in `memory`.
    layout: Vec<usize>,
    /// What `memory` holds: the value of each entry of `layout`; none before the first step.
    values: Option<Vec<i64>>,
    memory: Memory,
    stamped: Option<Stamped>,
}

impl CudaDevice {
    /// The `ordinal`-th GPU of this machine.
    pub fn new(ordinal: usize) -> Result<CudaDevice, Error> {
        let context = Context::open(ordinal)?;
        let sm = context.sm()?;
        if sm < 80 {
            return Err(Error::Unsupported {
                device: context.device_name()?,
                why: format!("its compute capability is {}.{}, and 8.0 is needed", sm / 10, sm % 10),
                instead: "use the CPU".into(),
            });
        }
        let (multiprocessors, l2_bytes) = (context.multiprocessors()?, context.l2_bytes()?);
        let target = Ptx::new(sm);
        let name = format!("{} ({multiprocessors} SMs, {})", context.device_name()?, target.name());
        Ok(CudaDevice { context, target, name, multiprocessors, l2_bytes, shared: Mutex::default() })
    }

    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }
    pub fn l2_bytes(&self) -> usize {
        self.l2_bytes
    }
    /// Free and total bytes of its memory.
    pub fn memory(&self) -> Result<(usize, usize), Error> {
        self.context.memory()
    }
    /// Far more than the cache holds, yet at most half of the free memory.
    pub fn working_set(&self) -> Result<usize, Error> {
        Ok((4 << 30).max(16 * self.l2_bytes).min(self.memory()?.0 / 2))
    }

    /// That the slice's buffer is of this GPU.
    fn own(&self, slice: &Slice) -> Result<(), Error> {
        let memory = slice.buffer().memory::<Arc<Memory>>()?;
        if Arc::ptr_eq(memory.context(), &self.context) {
            return Ok(());
        }
        Err(Error::Foreign { what: format!("{:?}", slice.buffer()) })
    }

    fn assemble(&self, bundle: &Bundle, code: Code) -> Result<Kernel, Error> {
        let Code::Text(ptx) = code else {
            let why = "an NVIDIA GPU runs PTX, not machine code".into();
            return Err(Error::Code { program: bundle.name().into(), why });
        };
        let shared = bundle.parts().iter().map(dynamic_shared).max().unwrap_or(0);
        let waits = self.target.overlaps();
        Kernel::load(&self.context, bundle.name(), ptx, bundle.threads(), shared, waits)
    }

    fn kernel<'a>(&self, launch: &'a Launch) -> Result<&'a Kernel, Error> {
        let kernel = launch.program().code::<Kernel>()?;
        if Arc::ptr_eq(kernel.context(), &self.context) {
            return Ok(kernel);
        }
        Err(Error::Foreign { what: format!("program {}", launch.program().name()) })
    }

    /// Writes the symbol values and sets the grids that depend on them, where they are not what they were: the GPU idles
    /// meanwhile.
    fn tell(&self, plan: &Plan, state: &mut State, symbols: &[i64]) -> Result<(), Error> {
        let values: Vec<i64> = state.layout.iter().map(|&s| symbols[s]).collect();
        if state.values.as_ref() == Some(&values) {
            return Ok(());
        }
        if !values.is_empty() {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            // SAFETY: `memory` was allocated for as many values.
            unsafe { self.context.upload(state.memory.address(), &bytes)? };
        }
        for (i, grid) in &mut state.varying {
            let call = self.call(&plan.launches()[*i], &state.args[*i], symbols)?;
            if *grid != call.grid {
                state.graph.set_grid(*i, &call)?;
                *grid = call.grid;
            }
        }
        state.values = Some(values);
        Ok(())
    }

    /// A launch as the graph has it.
    fn call<'a>(&self, launch: &'a Launch, args: &'a [u64], symbols: &[i64]) -> Result<Call<'a>, Error> {
        let own: Vec<i64> = launch.symbols(symbols).collect();
        Ok(Call { kernel: self.kernel(launch)?, grid: grid(launch, &own)?, args })
    }
}

fn grid(launch: &Launch, symbols: &[i64]) -> Result<u32, Error> {
    let grid = launch.program().grid(symbols);
    if grid <= i32::MAX as u64 {
        return Ok(grid as u32);
    }
    let (what, why) =
        (format!("starting {}", launch.program().name()), format!("{grid} blocks are too many"));
    Err(Error::System { what, why })
}

impl Device for CudaDevice {
    fn name(&self) -> &str {
        &self.name
    }
    fn target(&self) -> &dyn Target {
        &self.target
    }

    fn alloc(&self, bytes: usize) -> Result<Buffer, Error> {
        if bytes > SMALL {
            let memory = Arc::new(self.context.alloc(bytes)?);
            return Ok(Buffer::new(memory.address(), bytes, memory));
        }
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let (memory, taken) = match shared.take().filter(|(_, taken)| taken + bytes <= SHARED) {
            Some(known) => known,
            None => (Arc::new(self.context.alloc(SHARED)?), 0),
        };
        let buffer = Buffer::new(memory.address() + taken as u64, bytes, memory.clone());
        *shared = Some((memory, taken + bytes.next_multiple_of(BOUNDARY)));
        Ok(buffer)
    }

    fn write(&self, to: &Slice, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.own(to)?;
        let address = to.locate(offset, bytes.len())?;
        // SAFETY: `locate` keeps the range inside the buffer, which `own` says is of this context.
        unsafe { self.context.upload(address, bytes) }
    }

    fn read(&self, from: &Slice, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.own(from)?;
        let address = from.locate(offset, bytes.len())?;
        // SAFETY: as in `write`.
        unsafe { self.context.download(address, bytes) }
    }

    fn host(&self, floats: usize) -> Result<HostFloats, Error> {
        Ok(Box::new(self.context.pinned(floats)?))
    }

    fn load(&self, linear: Linear, code: Code) -> Result<Program, Error> {
        self.load_bundle(linear.into(), code)
    }

    fn load_bundle(&self, bundle: Bundle, code: Code) -> Result<Program, Error> {
        let kernel = self.assemble(&bundle, code)?;
        Ok(Program::new(bundle, kernel))
    }

    fn prepare(&self, plan: Plan) -> Result<Prepared, Error> {
        let every: Vec<i64> = (0..plan.symbols().len() as i64).collect();
        // Launches that take the same symbols share one copy of them.
        let mut lists: Vec<(Vec<i64>, usize)> = vec![];
        let mut layout: Vec<usize> = vec![];
        let mut starts = vec![];
        for launch in plan.launches() {
            let list: Vec<i64> = launch.symbols(&every).collect();
            let known = lists.iter().find(|(l, _)| *l == list).map(|(_, at)| *at);
            starts.push(known.unwrap_or_else(|| {
                let at = layout.len();
                layout.extend(list.iter().map(|&s| s as usize));
                lists.push((list, at));
                at
            }));
        }
        let memory = self.context.alloc(8 * layout.len())?;
        let mut args = vec![];
        for (launch, start) in plan.launches().iter().zip(starts) {
            for (i, slice) in launch.args().iter().enumerate() {
                self.own(slice)?;
                if slice.address() % ALIGN != 0 {
                    let what = format!("buffer {i} of program {}", launch.program().name());
                    let why = format!(
                        "starts at byte {}; on a GPU it must be a multiple of {ALIGN}",
                        slice.offset()
                    );
                    return Err(Error::System { what, why });
                }
            }
            let symbols = memory.address() + 8 * start as u64;
            args.push(launch.args().iter().map(Slice::address).chain([symbols]).collect::<Vec<_>>());
        }
        // A grid that varies is set before the first step; until then any will do.
        let mut varying = vec![];
        let calls = plan.launches().iter().zip(&args).enumerate().map(|(i, (launch, args))| {
            let varies = launch.program().bundle().varies();
            if varies {
                varying.push((i, 1));
            }
            let grid = if varies { 1 } else { grid(launch, &[])? };
            Ok(Call { kernel: self.kernel(launch)?, grid, args })
        });
        let calls: Vec<Call> = calls.collect::<Result<_, Error>>()?;
        // SAFETY: `load` trusts the code, and `Prepared` keeps the programs, their buffers and the symbols alive.
        let graph = unsafe { Graph::new(&self.context, &calls)? };
        Ok(Prepared::new(plan, State { graph, args, varying, layout, values: None, memory, stamped: None }))
    }

    fn run(&self, prepared: &mut Prepared, symbols: &[i64]) -> Result<(), Error> {
        let (plan, state) = prepared.step::<State>(symbols)?;
        self.tell(plan, state, symbols)?;
        state.graph.launch()
    }

    fn time(&self, prepared: &mut Prepared, symbols: &[i64]) -> Result<Vec<Duration>, Error> {
        let (plan, state) = prepared.step::<State>(symbols)?;
        self.tell(plan, state, symbols)?;
        let calls = plan.launches().iter().zip(&state.args);
        let calls: Vec<Call> =
            calls.map(|(launch, args)| self.call(launch, args, symbols)).collect::<Result<_, _>>()?;
        // Events in the graph itself: the time between kernels does not depend on how fast they are submitted.
        // SAFETY: as in `prepare`.
        let (graph, events) = unsafe { Graph::timed(&self.context, &calls)? };
        graph.launch()?;
        self.context.synchronize()?;
        events.windows(2).map(|w| w[1].since(&w[0])).collect()
    }

    fn spans(&self, prepared: &mut Prepared, symbols: &[i64]) -> Result<Vec<Span>, Error> {
        let (plan, state) = prepared.step::<State>(symbols)?;
        let stamped = match state.stamped.take() {
            Some(known) => known,
            None => Stamped::new(self, plan, &state.args)?,
        };
        state.stamped.insert(stamped).run(self, plan, symbols)
    }
}
