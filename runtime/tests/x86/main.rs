//! Generated x86 code against the interpreter, on every tier that this processor runs.
//!
//! Every buffer lies against an unmapped page, at its end or at its start: an access outside faults.

mod operations;
mod programs;
mod run;
