//! The IR as text.

mod graph;
pub mod linear;

pub use graph::expr;
