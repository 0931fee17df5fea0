//! Kernels for people, down to machine code: `glimmer dump` shows a row of the kernel table, `--dump` those of a model.

use crate::args::{DeviceName, Dump, DumpWhat};
use crate::{bench, device};
use anyhow::{Context, Result, anyhow};
use compiler::graph::Graph;
use compiler::kernel::split::phases;
use compiler::kernel::{self, heuristic};
use compiler::pipeline;
use compiler::schedule::Grain;
use compiler::table::cases;
use llm::model::Model;
use runtime::check::layout;

pub fn run(args: &Dump) -> Result<()> {
    let device = device::open(&args.device)?;
    let target = device.target();
    let caps = target.caps();
    let gpu = matches!(args.device.device, DeviceName::Cuda(_));
    let case = cases(i64::MAX)
        .into_iter()
        .chain(bench::kernels::rows(gpu).into_iter().map(|(_, c)| c))
        .find(|c| c.to_string().starts_with(&args.row))
        .with_context(|| format!("no row of the table begins with `{}`", args.row))?;
    let g = Graph::new();
    let built = case.build(&g, layout(&*device));
    let program = pipeline::schedule(&g, &built.outputs, Grain::of(&caps));
    println!("{case}: {} kernel(s) for {}", program.kernels.len(), target.name());
    for k in &program.kernels {
        let opts = match &args.schedule {
            Some(s) => kernel::parse(s).ok_or_else(|| anyhow!("`{s}` is no schedule"))?,
            None => heuristic::propose(k, &caps),
        };
        let wants = |w| args.show.contains(&w);
        if wants(DumpWhat::Schedule) {
            println!("{}: {}", k.name, kernel::show(&opts));
        }
        for phase in phases(k, &opts, &caps)? {
            let linear = pipeline::observe(&phase.kernel, &phase.opts, &caps, &mut |pass, ir| {
                if wants(DumpWhat::Kernel) && pass != "linearise" {
                    println!("--- {pass}\n{ir}");
                }
            })?;
            if wants(DumpWhat::Linear) {
                println!("{linear}");
            }
            if wants(DumpWhat::Asm) {
                println!("{}", target.disassemble(&target.emit(&linear)));
            }
        }
    }
    Ok(())
}

/// Each launch when the model reads one token, to standard error.
pub fn model(model: &mut Model, show: &[DumpWhat]) -> Result<()> {
    for (launched, times) in model.launches(1)? {
        eprintln!("--- {times} x {}", launched.program.name());
        let wants = |w| show.contains(&w);
        for k in &launched.parts {
            if wants(DumpWhat::Schedule) {
                eprintln!("{}", kernel::show(&k.schedule));
            }
            if wants(DumpWhat::Kernel) {
                eprintln!("{}", k.text);
            }
            if wants(DumpWhat::Linear) {
                eprintln!("{}", k.linear);
            }
        }
        if wants(DumpWhat::Asm) {
            let target = model.device().target();
            eprintln!("{}", target.disassemble(&target.emit_bundle(launched.program.bundle())));
        }
    }
    Ok(())
}
