//! The compiler: tensor expressions in, machine code out. Pure: no I/O, clock, environment, device or unsafe.

pub mod codegen;
pub mod dtype;
pub mod interp;
pub mod linear;
pub mod rng;
pub mod scalar;
pub mod spec;
#[doc(hidden)]
pub mod testing;
pub mod text;
