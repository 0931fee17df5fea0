//! What every device can do: hold buffers, load programs, replay plans.
//!
//! In: a program as linear IR with its target's code, and a [`Plan`] of launches over buffers. Out: the buffers after
//! each step. Calls on one device take effect in the order in which they were made, whether or not the device runs
//! behind the caller: a `read` after a `run` sees what the step wrote.

use crate::buffer::{Buffer, Slice};
use crate::map::Mapped;
use crate::plan::Plan;
use compiler::bundle::Bundle;
use compiler::codegen::{Code, Target};
use compiler::linear::Linear;
use std::any::Any;
use std::ops::{DerefMut, Range};
use std::sync::Arc;
use std::time::Duration;

pub trait Device: Send + Sync {
    /// For people: which machine this is, e.g. `cpu (2 threads, x86-avx512-vnni-amx)`.
    fn name(&self) -> &str;

    /// What programs must be compiled for.
    fn target(&self) -> &dyn Target;

    /// Zeroed memory, aligned to 64 bytes or better.
    fn alloc(&self, bytes: usize) -> Result<Buffer, Error>;

    /// Bytes `range` of a file, for programs to read where they are mapped; none where this device cannot.
    fn borrow(&self, _file: &Mapped, _range: Range<usize>) -> Option<Buffer> {
        None
    }

    /// Copies to `to`, `offset` bytes from its start. What a range holds while two threads write it, or a step runs that
    /// uses it, is unspecified.
    fn write(&self, to: &Slice, offset: usize, bytes: &[u8]) -> Result<(), Error>;

    /// Copies from `from`, `offset` bytes from its start; waits for what was run before.
    fn read(&self, from: &Slice, offset: usize, bytes: &mut [u8]) -> Result<(), Error>;

    /// Memory of the program that this device copies numbers to as fast as it can.
    fn host(&self, floats: usize) -> Result<HostFloats, Error> {
        Ok(Box::new(vec![0.0; floats]))
    }

    /// Makes a program ready to run. `code` must be what this device's target emitted for `linear`: it is trusted.
    fn load(&self, linear: Linear, code: Code) -> Result<Program, Error>;

    /// As `load`, for programs that are launched together; more than one only where the device's target bundles.
    fn load_bundle(&self, bundle: Bundle, code: Code) -> Result<Program, Error> {
        match bundle.parts() {
            [one] => self.load(one.clone(), code),
            _ => {
                let why = format!("{} runs one program at a time", self.name());
                Err(Error::Code { program: bundle.name().into(), why })
            }
        }
    }

    /// Does once whatever can be done before the first step.
    fn prepare(&self, plan: Plan) -> Result<Prepared, Error>;

    /// Runs every launch of the plan in order. `symbols` has a value for each of the plan's symbols. A device that runs
    /// behind the caller may report a failure of this step from a later call.
    fn run(&self, prepared: &mut Prepared, symbols: &[i64]) -> Result<(), Error>;

    /// How many plans run in the time of one, where what they read is near.
    fn lanes(&self) -> usize {
        1
    }

    /// Runs plans of which none reads what another writes. Whoever calls promises it: plans may write different rows of
    /// one buffer.
    fn run_beside(&self, plans: &mut [Beside]) -> Result<(), Error> {
        plans.iter_mut().try_for_each(|(prepared, symbols)| self.run(prepared, symbols))
    }

    /// As [`Device::run_beside`], and says how long each plan's launches took.
    fn time_beside(&self, plans: &mut [Beside]) -> Result<Vec<Vec<Duration>>, Error> {
        plans.iter_mut().map(|(prepared, symbols)| self.time(prepared, symbols)).collect()
    }

    /// Runs one step and says how long each launch took. Nothing overlaps, so the sum is more than an untimed step takes.
    fn time(&self, prepared: &mut Prepared, symbols: &[i64]) -> Result<Vec<Duration>, Error>;

    /// Runs one step as [`Device::run`] does and says when each launch ran in it. Where launches do not overlap this is
    /// what [`Device::time`] says.
    fn spans(&self, prepared: &mut Prepared, symbols: &[i64]) -> Result<Vec<Span>, Error> {
        let times = self.time(prepared, symbols)?;
        Ok(times.into_iter().map(|run| Span { gap: Duration::ZERO, run }).collect())
    }

    /// How often what runs in parallel waits for all of itself in one step: where launches are one chain, after each.
    fn synchronisations(&self, plan: &Plan, _symbols: &[i64]) -> usize {
        plan.launches().len()
    }
}

/// A plan that runs beside others, with the values of its symbols.
pub type Beside<'p> = (&'p mut Prepared, Vec<i64>);

/// One launch within a step.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Span {
    /// From the end of the launch before until this one's input was there for it.
    pub gap: Duration,
    /// From then until its end.
    pub run: Duration,
}

pub type HostFloats = Box<dyn DerefMut<Target = [f32]> + Send>;

/// A program, or several that are launched together, loaded on a device; a cheap handle.
#[derive(Clone)]
pub struct Program(Arc<Loaded>);

struct Loaded {
    bundle: Bundle,
    code: Box<dyn Any + Send + Sync>,
}

impl Program {
    /// `code` is what the device made of the program; it is dropped with the last handle.
    pub fn new(bundle: impl Into<Bundle>, code: impl Any + Send + Sync) -> Program {
        Program(Arc::new(Loaded { bundle: bundle.into(), code: Box::new(code) }))
    }
    pub fn bundle(&self) -> &Bundle {
        &self.0.bundle
    }
    pub fn parts(&self) -> &[Linear] {
        self.0.bundle.parts()
    }
    pub fn name(&self) -> &str {
        self.0.bundle.name()
    }
    /// Whether both are handles of the same loaded program.
    pub fn is(&self, other: &Program) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
    /// Number of grid indices at these values of the program's own symbols.
    pub fn grid(&self, symbols: &[i64]) -> u64 {
        self.0.bundle.grid(symbols)
    }
    /// The device's form of the code; an error where another device loaded it.
    pub fn code<T: Any>(&self) -> Result<&T, Error> {
        self.0.code.downcast_ref().ok_or_else(|| Error::Foreign { what: format!("program {}", self.name()) })
    }
}

/// As [`Device::read`], numbers.
pub fn read_floats(device: &dyn Device, from: &Slice, offset: usize, to: &mut [f32]) -> Result<(), Error> {
    // SAFETY: these are the bytes of `to` and of nothing else, and any four bytes are an f32.
    let bytes = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<u8>(), size_of_val(to)) };
    device.read(from, offset, bytes)
}

/// A plan and what its device needs to replay it.
pub struct Prepared {
    plan: Plan,
    state: Box<dyn Any + Send>,
}

impl Prepared {
    pub fn new(plan: Plan, state: impl Any + Send) -> Prepared {
        Prepared { plan, state: Box::new(state) }
    }
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
    /// The plan and the device's part, once `symbols` are known to fit; an error where another device prepared it.
    pub fn step<T: Any>(&mut self, symbols: &[i64]) -> Result<(&Plan, &mut T), Error> {
        if symbols.len() != self.plan.symbols().len() {
            let names = self.plan.symbols().join(", ");
            return Err(Error::SymbolCount { names, given: symbols.len() });
        }
        let state = self.state.downcast_mut().ok_or_else(|| Error::Foreign { what: "plan".into() })?;
        Ok((&self.plan, state))
    }
}

#[derive(thiserror::Error, Debug)]
pub enum Error {
    /// This machine lacks what the device needs.
    #[error("{device} cannot be used on this machine: {why}; {instead}")]
    Unsupported { device: String, why: String, instead: String },

    #[error(
        "out of memory on {device}: asked for {} MiB{}; use a smaller model, a shorter context or another device",
        asked.div_ceil(1 << 20),
        free.map(|f| format!(", {} MiB are free", f >> 20)).unwrap_or_default()
    )]
    OutOfMemory { device: String, asked: usize, free: Option<usize> },

    #[error("bytes {offset}..{offset}+{len} are outside the buffer's {size}")]
    Range { offset: usize, len: usize, size: usize },

    #[error("{what} belongs to another device; load and prepare on the device that runs it")]
    Foreign { what: String },

    #[error("program {program} takes {expected} buffers and was given {given}")]
    Arguments { program: String, expected: usize, given: usize },

    #[error("buffer {arg} of program {program} starts at byte {offset}, not at a whole {dtype}")]
    Misaligned { program: String, arg: usize, offset: usize, dtype: compiler::dtype::DType },

    #[error("programs {first} and {second} are to run side by side, and one writes what the other touches")]
    Beside { first: String, second: String },

    #[error("program {program} needs the symbol `{symbol}`, which the plan lacks (it has: {known})")]
    UnknownSymbol { program: String, symbol: String, known: String },

    #[error("the plan's symbols are ({names}), and {given} values were given")]
    SymbolCount { names: String, given: usize },

    #[error("{buffer} is part of a file and may not be written")]
    Constant { buffer: String },

    #[error("the buffer {buffer} was given no memory")]
    Unbound { buffer: String },

    #[error("program {program} cannot be loaded: {why}")]
    Code { program: String, why: String },

    /// The operating system or a driver refused; `what` was being done.
    #[error("{what}: {why}")]
    System { what: String, why: String },
}
