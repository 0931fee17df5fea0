//! Devices: the only place where generated code runs, and the only unsafe.
//!
//! In: linear programs with their code, buffers, plans. Out: steps run. Nothing here knows what a model is.

pub mod arithmetic;
pub mod bandwidth;
pub mod buffer;
pub mod cache;
pub mod check;
pub mod cpu;
pub mod cuda;
pub mod device;
pub mod interp;
pub mod machine;
pub mod map;
pub mod plan;
pub mod schedules;
pub mod step;
pub mod tune;
