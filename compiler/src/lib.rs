//! The compiler: tensor expressions in, machine code out. Pure: no I/O, clock, environment, device or unsafe.

pub mod bundle;
pub mod codegen;
pub mod dtype;
pub mod graph;
pub mod hash;
pub mod interp;
pub mod kernel;
pub mod linear;
pub mod ops;
pub mod pipeline;
pub mod quant;
pub mod rewrite;
pub mod rng;
pub mod rules;
pub mod scalar;
pub mod schedule;
pub mod shape;
pub mod spec;
pub mod table;
pub mod tensor;
#[doc(hidden)]
pub mod testing;
pub mod text;
pub mod work;

/// Part of the key of whatever is kept between runs.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
