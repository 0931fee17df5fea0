//! The interpreter as a device: any machine, no generated code, slow. The answer to "is the model or the code wrong?".
//!
//! In: linear programs. Out: what the compiler's reference interpreter makes of them. An undefined program (a race, an
//! access out of bounds) panics with the program's text.

use crate::buffer::{Buffer, Memory, Slice};
use crate::device::{Device, Error, Prepared, Program};
use crate::plan::{Launch, Plan};
use compiler::bundle::Bundle;
use compiler::codegen::{Caps, Code, Target};
use compiler::interp;
use compiler::linear::Linear;
use std::time::{Duration, Instant};

#[derive(Default)]
pub struct InterpDevice {
    target: InterpTarget,
}

impl InterpDevice {
    /// Stands in for a device of other capabilities: programs are scheduled as for that one.
    pub fn like(caps: Caps) -> InterpDevice {
        InterpDevice { target: InterpTarget { caps, bundles: caps.lanes > 1, ..InterpTarget::default() } }
    }
    /// Under the schedules that are known for a target of this name.
    pub fn named(mut self, target: &'static str) -> InterpDevice {
        self.target.name = target;
        self
    }
    /// Launches every kernel by itself.
    pub fn one_by_one(mut self) -> InterpDevice {
        self.target.bundles = false;
        self
    }
}

/// Code for the interpreter is the program's text.
struct InterpTarget {
    name: &'static str,
    caps: Caps,
    bundles: bool,
}

impl Default for InterpTarget {
    fn default() -> InterpTarget {
        let caps = Caps {
            vector_bytes: 64,
            lanes: 1,
            max_threads: 1,
            local_bytes: 1 << 20,
            dot4: true,
            tile: false,
            mma: false,
            transcendental: true,
        };
        InterpTarget { name: "interp", caps, bundles: false }
    }
}

impl Target for InterpTarget {
    fn name(&self) -> &str {
        self.name
    }
    fn caps(&self) -> Caps {
        self.caps
    }
    fn emit(&self, program: &Linear) -> Code {
        Code::Text(program.to_string())
    }
    /// As the GPU does that it stands in for.
    fn bundles(&self) -> bool {
        self.bundles
    }
    fn emit_bundle(&self, bundle: &Bundle) -> Code {
        Code::Text(bundle.parts().iter().map(Linear::to_string).collect())
    }
    fn disassemble(&self, code: &Code) -> String {
        match code {
            Code::Text(text) => text.clone(),
            Code::Machine(_) => panic!("the interpreter's code is text"),
        }
    }
}

/// Marks programs and plans as this device's.
struct Own;

impl Device for InterpDevice {
    fn name(&self) -> &str {
        "interp"
    }
    fn target(&self) -> &dyn Target {
        &self.target
    }
    fn alloc(&self, bytes: usize) -> Result<Buffer, Error> {
        Memory::alloc(bytes)
    }
    fn write(&self, to: &Slice, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        Memory::write(to, offset, bytes)
    }
    fn read(&self, from: &Slice, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        Memory::read(from, offset, bytes)
    }
    fn load(&self, linear: Linear, _: Code) -> Result<Program, Error> {
        Ok(Program::new(linear, Own))
    }
    fn load_bundle(&self, bundle: Bundle, _: Code) -> Result<Program, Error> {
        Ok(Program::new(bundle, Own))
    }
    fn prepare(&self, plan: Plan) -> Result<Prepared, Error> {
        for launch in plan.launches() {
            launch.program().code::<Own>()?;
        }
        Ok(Prepared::new(plan, Own))
    }
    fn run(&self, prepared: &mut Prepared, symbols: &[i64]) -> Result<(), Error> {
        self.time(prepared, symbols).map(drop)
    }
    fn time(&self, prepared: &mut Prepared, symbols: &[i64]) -> Result<Vec<Duration>, Error> {
        let (plan, _) = prepared.step::<Own>(symbols)?;
        let timed = |launch| {
            let start = Instant::now();
            interpret(launch, symbols).map(|()| start.elapsed())
        };
        plan.launches().iter().map(timed).collect()
    }
}

/// Runs one launch on copies of its arguments and puts back those it writes. All copies are of before the launch: no part
/// of it sees what another writes.
fn interpret(launch: &Launch, symbols: &[i64]) -> Result<(), Error> {
    let symbols: Vec<i64> = launch.symbols(symbols).collect();
    let mut done = vec![];
    for (linear, args) in launch.parts() {
        let mut copies = vec![];
        for arg in args {
            let mut copy = vec![0; arg.len()];
            Memory::read(arg, 0, &mut copy)?;
            copies.push(copy);
        }
        interp::linear::run(linear, &mut copies, &symbols);
        let written = args.iter().zip(copies).zip(&linear.buffers).filter(|(_, (_, written))| *written);
        done.extend(written.map(|(changed, _)| changed));
    }
    done.into_iter().try_for_each(|(arg, copy)| Memory::write(arg, 0, &copy))
}
