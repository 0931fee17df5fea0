//! The CPU as a device: generated machine code, run by a pool of threads over host memory.
//!
//! In: machine code of the x86 target. Out: buffers in host memory; a step is over when `run` returns. A prepared plan
//! holds every launch's argument words, so that a step only fills in the symbol values and grids.

mod code;
mod features;
mod pool;

pub use features::Tier;

use crate::buffer::{Buffer, Host, Memory, Slice};
use crate::device::{Beside, Device, Error, Prepared, Program};
use crate::machine;
use crate::map::Mapped;
use crate::plan::Plan;
use code::Executable;
use compiler::codegen::x86::X86;
use compiler::codegen::{Code, Target};
use compiler::linear::Linear;
use pool::{Pool, Ready, Step};
use std::ops::Range;
use std::time::Duration;

/// What a person may choose about the CPU.
#[derive(Clone, Copy, Default, Debug)]
pub struct Options {
    /// As many as there are physical cores, if not given.
    pub threads: Option<usize>,
    /// The best there is, if not given.
    pub tier: Option<Tier>,
}

pub struct CpuDevice {
    name: String,
    target: Box<dyn Target>,
    pool: Pool,
    host: Host,
}

/// A program in memory.
struct Loaded {
    code: Executable,
    uneven: bool,
}

/// A plan as the pool wants it.
struct State {
    launches: Vec<Ready>,
    words: Vec<u64>,
    /// The symbols' values that grids and words are filled in for.
    filled: Option<Vec<i64>>,
    /// Room for the locals of the hungriest program, for each worker.
    locals: Buffer,
    stride: usize,
}

impl CpuDevice {
    /// This processor. An error says what it lacks.
    pub fn new(options: Options) -> Result<CpuDevice, Error> {
        CpuDevice::with_target(Box::new(X86::new(features::detect(options.tier)?)), options.threads)
    }

    /// Runs the code of any target whose machine code this processor can run.
    pub fn with_target(target: Box<dyn Target>, threads: Option<usize>) -> Result<CpuDevice, Error> {
        let threads = threads.unwrap_or_else(|| machine::cores().len()).max(1);
        let pool = Pool::new(threads)
            .map_err(|e| Error::System { what: format!("starting {threads} threads"), why: e.to_string() })?;
        let name = format!("cpu ({threads} threads, {})", target.name());
        Ok(CpuDevice { name, target, pool, host: Host::default() })
    }

    pub fn threads(&self) -> usize {
        self.pool.workers()
    }

    /// Fills in what a step depends on.
    fn step<'p>(&self, prepared: &'p mut Prepared, symbols: &[i64]) -> Result<Step<'p>, Error> {
        let (plan, state) = prepared.step::<State>(symbols)?;
        if state.locals.len() < state.stride * self.threads() {
            return Err(Error::Foreign { what: "plan".into() });
        }
        if state.filled.as_deref() != Some(symbols) {
            let mut own = vec![];
            for (launch, ready) in plan.launches().iter().zip(&mut state.launches) {
                own.clear();
                own.extend(launch.symbols(symbols));
                ready.grid = launch.program().grid(&own);
                let words = &mut state.words[ready.args + launch.args().len()..];
                words.iter_mut().zip(&own).for_each(|(word, &value)| *word = value as u64);
            }
            state.filled = Some(symbols.to_vec());
        }
        let locals = state.locals.whole().address() as usize as *mut u8;
        Ok(Step { launches: &state.launches, words: &state.words, locals, stride: state.stride })
    }

    fn steps<'p>(&self, plans: &'p mut [Beside]) -> Result<Vec<Step<'p>>, Error> {
        plans.iter_mut().map(|(prepared, symbols)| self.step(prepared, symbols)).collect()
    }
}

impl Device for CpuDevice {
    fn name(&self) -> &str {
        &self.name
    }
    fn target(&self) -> &dyn Target {
        &*self.target
    }
    fn alloc(&self, bytes: usize) -> Result<Buffer, Error> {
        self.host.alloc(bytes)
    }
    fn borrow(&self, file: &Mapped, range: Range<usize>) -> Option<Buffer> {
        Memory::of_file(file, range)
    }
    fn write(&self, to: &Slice, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        Memory::write(to, offset, bytes)
    }
    fn read(&self, from: &Slice, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        Memory::read(from, offset, bytes)
    }

    fn load(&self, linear: Linear, code: Code) -> Result<Program, Error> {
        let refused = |why: String| Error::Code { program: linear.name.clone(), why };
        let Code::Machine(bytes) = code else {
            return Err(refused("the CPU runs machine code, not text".into()));
        };
        let code = Executable::new(&bytes).map_err(|e| refused(format!("no executable memory: {e}")))?;
        let uneven = linear.is_uneven();
        Ok(Program::new(linear, Loaded { code, uneven }))
    }

    fn prepare(&self, plan: Plan) -> Result<Prepared, Error> {
        let (mut launches, mut words, mut stride) = (vec![], vec![], 0);
        for launch in plan.launches() {
            let linear = &launch.program().parts()[0];
            let Loaded { code, uneven } = launch.program().code::<Loaded>()?;
            let (entry, uneven) = (code.entry(), *uneven);
            launches.push(Ready { entry, args: words.len(), grid: 0, uneven, after: launch.after() });
            for (arg, (_, written)) in launch.args().iter().zip(&linear.buffers) {
                arg.buffer().memory::<Memory>()?;
                if *written {
                    Memory::check_writable(arg)?;
                }
                words.push(arg.address());
            }
            words.resize(words.len() + linear.symbols.len(), 0);
            stride = stride.max(local_bytes(linear));
        }
        let locals = Memory::alloc(stride * self.threads())?;
        Ok(Prepared::new(plan, State { launches, words, filled: None, locals, stride }))
    }

    fn run(&self, prepared: &mut Prepared, symbols: &[i64]) -> Result<(), Error> {
        let step = self.step(prepared, symbols)?;
        // SAFETY: `load` trusts the code, `prepared` keeps programs, buffers and scratch alive, and `step` sizes it.
        unsafe { self.pool.run(&step) };
        Ok(())
    }

    fn lanes(&self) -> usize {
        self.threads()
    }

    fn run_beside(&self, plans: &mut [Beside]) -> Result<(), Error> {
        let steps = self.steps(plans)?;
        // SAFETY: as in `run`.
        unsafe { self.pool.run_each(&steps) };
        Ok(())
    }

    fn time_beside(&self, plans: &mut [Beside]) -> Result<Vec<Vec<Duration>>, Error> {
        let steps = self.steps(plans)?;
        // SAFETY: as in `run`.
        Ok(unsafe { self.pool.time_each(&steps) })
    }

    fn time(&self, prepared: &mut Prepared, symbols: &[i64]) -> Result<Vec<Duration>, Error> {
        let step = self.step(prepared, symbols)?;
        // SAFETY: as in `run`.
        Ok(unsafe { self.pool.time(&step) })
    }

    fn synchronisations(&self, plan: &Plan, symbols: &[i64]) -> usize {
        plan.meetings(symbols)
    }
}

/// Scratch of one worker: the locals one after the other, each on its own cache lines.
fn local_bytes(linear: &Linear) -> usize {
    linear.locals.iter().map(|l| (l.len * l.dtype.bytes()).next_multiple_of(64)).sum()
}
