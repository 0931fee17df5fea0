//! Every pass by name, in order.
//!
//! In: tensor expressions and a target's capabilities. Out: linear programs. Between two passes the verifier checks
//! what is legal at that level, and whoever wants to see what a pass has made of a kernel [`observe`]s it.

use crate::codegen::{Caps, barriers, expand, linearize, vectorize, widen};
use crate::graph::{Ex, Graph};
use crate::kernel::split::phases;
use crate::kernel::{Action, Illegal, Opt, Scheduled};
use crate::linear::Linear;
use crate::rewrite::{Rule, rewrite};
use crate::rules::float::FUSE_FMA;
use crate::rules::transcendental::{EXPONENTIALS, SINE};
use crate::rules::{REDUCE, REDUCE_CPU, SIMPLIFY};
use crate::schedule::{self, Grain, Kernel, Program};
use crate::spec::{self, kernel::Level};
use crate::tensor::Tensor;
use crate::text;
use std::fmt;

/// Tensor expressions to kernels.
pub fn schedule<'g>(g: &'g Graph, outputs: &[Tensor<'g>], grain: Grain) -> Program<'g> {
    if cfg!(debug_assertions) {
        spec::tensor::verify(&outputs.iter().map(|t| t.0).collect::<Vec<_>>());
    }
    let program = schedule::program(g, outputs, grain);
    if cfg!(debug_assertions) {
        program.kernels.iter().for_each(spec::kernel::verify);
    }
    program
}

/// Does a kernel compile under a schedule, in all of its phases?
pub fn compiles(kernel: &Kernel, opts: &[Opt], caps: &Caps) -> bool {
    phases(kernel, opts, caps).is_ok_and(|all| all.iter().all(|p| compile(&p.kernel, &p.opts, caps).is_ok()))
}

/// One kernel, or a phase of one, under a schedule to a linear program.
pub fn compile(kernel: &Kernel, opts: &[Opt], caps: &Caps) -> Result<Linear, Illegal> {
    observe(kernel, opts, caps, &mut |_, _| ())
}

/// As [`compile`]; `seen` is shown what comes out of each pass, by the pass's name.
pub fn observe<'g>(
    kernel: &Kernel<'g>,
    opts: &[Opt],
    caps: &Caps,
    seen: &mut dyn FnMut(&'static str, Ir<'_, 'g>),
) -> Result<Linear, Illegal> {
    let mut after = |pass: &'static str, ir: Ir<'_, 'g>| {
        ir.verify();
        seen(pass, ir);
    };
    if opts.iter().any(|o| o.action == Action::Split) {
        return Err(Illegal("split makes two kernels, each with options of its own".into()));
    }
    let s = Scheduled::new(kernel.clone());
    after("split ranges", Ir::Kernel(&s.kernel));
    let s = s.apply_all(opts, caps)?;
    after("apply options", Ir::Kernel(&s.kernel));
    let s = s.numbered();
    after("number ranges", Ir::Kernel(&s.kernel));
    let stages = expand::expand(&s)?;
    after("expand", Ir::Stores(&s.kernel, &stages, Level::Expanded));
    let stages = stages.iter().map(|s| vectorize::vectorize(s, caps)).collect::<Result<Vec<_>, _>>()?;
    after("vectorise", Ir::Stores(&s.kernel, &stages, Level::Vectorised));
    let mut late = |pass, stages: &[Vec<Ex<'g>>], tables: &[&[Rule]]| {
        let stages: Vec<Vec<Ex>> = stages.iter().map(|stores| rewrite(tables, stores)).collect();
        after(pass, Ir::Stores(&s.kernel, &stages, Level::Vectorised));
        stages
    };
    let polynomials: &[&[Rule]] = if caps.transcendental { &[SINE] } else { &[SINE, EXPONENTIALS] };
    let stages = late("transcendentals", &stages, polynomials);
    let stages = late("simplify", &stages, SIMPLIFY);
    let stages = late("fma", &stages, &[FUSE_FMA]);
    let stages = late("strength", &stages, if caps.lanes > 1 { REDUCE } else { REDUCE_CPU });
    let linear = linearize::linearize(&s, &stages);
    after("linearise", Ir::Linear(&linear));
    // A CPU's vectors come from its vector ranges; what one thread of a GPU reads next to each other is one load.
    let linear = if caps.lanes > 1 { widen::widen(linear, caps.vector_bytes as usize) } else { linear };
    after("widen loads", Ir::Linear(&linear));
    let linear = if caps.lanes > 1 { barriers::relax(linear, caps.lanes) } else { linear };
    after("relax barriers", Ir::Linear(&linear));
    let local: usize = linear.locals.iter().map(|l| l.len * l.dtype.bytes()).sum();
    if local > caps.local_bytes || linear.threads > caps.max_threads {
        return Err(Illegal(format!(
            "{local} bytes of local memory and {} threads are too many",
            linear.threads
        )));
    }
    Ok(linear)
}

/// A kernel between two passes.
#[derive(Clone, Copy)]
pub enum Ir<'a, 'g> {
    Kernel(&'a Kernel<'g>),
    /// What the stages of a kernel have become.
    Stores(&'a Kernel<'g>, &'a [Vec<Ex<'g>>], Level),
    Linear(&'a Linear),
}

impl Ir<'_, '_> {
    /// Linear programs are always checked; the levels above cost more and are checked in debug builds only.
    fn verify(self) {
        match self {
            Ir::Linear(l) => spec::linear::verify(l),
            Ir::Kernel(k) if cfg!(debug_assertions) => spec::kernel::verify(k),
            Ir::Stores(k, stages, level) if cfg!(debug_assertions) => {
                spec::kernel::verify_stages(k, stages, level)
            }
            _ => {}
        }
    }
}

impl fmt::Display for Ir<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Ir::Kernel(k) => k.fmt(f),
            Ir::Stores(k, stages, _) => f.write_str(&text::stages(k, stages)),
            Ir::Linear(l) => l.fmt(f),
        }
    }
}
