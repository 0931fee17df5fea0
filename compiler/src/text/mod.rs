//! The IR as text.

mod graph;

pub use graph::expr;
