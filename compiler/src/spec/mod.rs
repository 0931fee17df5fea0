//! What is legal at each level: a program of that level in, nothing out. Illegal IR is a bug of the pass before, so
//! `verify` panics and prints the program.

pub mod kernel;
pub mod linear;
pub mod tensor;

use crate::graph::{Ex, Id, List};
use linear::{Check, ensure};

/// What is wrong with a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    pub at: Id,
    pub why: String,
}

impl Violation {
    /// The message that a verifier panics with, followed by the program.
    fn report(&self, program: &str) -> String {
        format!("illegal node %{}: {}\n{program}", self.at.0, self.why)
    }
}

/// An operation that computes each element from the same element of its arguments: all have one shape.
fn elementwise(e: Ex, op: &crate::linear::Op) -> Check {
    let args = e.args();
    let types: Vec<_> = args.iter().map(|a| a.dtype()).collect();
    linear::operation(op, e.dtype(), &types)?;
    let shape = e.node().shape;
    ensure(args.iter().all(|a| a.node().shape == shape), || "the shapes of the arguments differ".into())
}

/// An index expression without axes.
fn is_index(e: Ex) -> bool {
    e.dtype() == crate::dtype::DType::INDEX && e.node().shape == List::EMPTY
}
