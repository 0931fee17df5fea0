//! Every pass by name, in order.
//!
//! In: tensor expressions and a target's capabilities. Out: linear programs. Between two passes the verifier checks
//! what is legal at that level.

use crate::codegen::{Caps, expand, linearize, vectorize};
use crate::graph::{Ex, Graph};
use crate::kernel::{Illegal, Opt, Scheduled};
use crate::linear::Linear;
use crate::rules;
use crate::schedule::{self, Kernel, Program};
use crate::spec;
use crate::tensor::Tensor;

/// Tensor expressions to kernels.
pub fn schedule<'g>(g: &'g Graph, outputs: &[Tensor<'g>]) -> Program<'g> {
    schedule::program(g, outputs)
}

/// One kernel under a schedule to a linear program.
pub fn compile(kernel: &Kernel, opts: &[Opt], caps: &Caps) -> Result<Linear, Illegal> {
    let scheduled = Scheduled::new(kernel.clone()).apply_all(opts, caps)?.numbered();
    let stages = expand::expand(&scheduled)?;
    let stages = stages.iter().map(|s| vectorize::vectorize(s, caps)).collect::<Result<Vec<_>, _>>()?;
    let stages: Vec<Vec<Ex>> = stages.iter().map(|s| finish(s, caps)).collect();
    let linear = linearize::linearize(&scheduled, &stages);
    spec::linear::verify(&linear);
    Ok(linear)
}

/// The last rewrites before expressions become instructions.
fn finish<'g>(stores: &[Ex<'g>], caps: &Caps) -> Vec<Ex<'g>> {
    let _ = caps;
    rules::simplify(stores)
}
