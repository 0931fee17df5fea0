//! The compiler: tensor expressions in, machine code out. Pure: no I/O, clock, environment, device or unsafe.

pub mod codegen;
pub mod dtype;
pub mod graph;
pub mod interp;
pub mod linear;
pub mod rewrite;
pub mod rng;
pub mod rules;
pub mod scalar;
pub mod shape;
pub mod spec;
pub mod tensor;
pub mod text;
