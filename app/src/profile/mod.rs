//! `glimmer profile`: where the time of a step goes, kernel by kernel, beside what the machine's memory allows.
//!
//! In: a model and a device. Out: one [`Report`], shown as tables, JSON, a trace or a page; or the code of one kernel.

mod page;
mod report;
mod table;
mod trace;

use crate::args::{DeviceName, Profile as Args};
use crate::model;
use anyhow::{Context, Result, bail};
use llm::model::Model;
use llm::profile::{Kernel, Options, Profile};
use report::{Machine, Peak, Report};
use runtime::arithmetic::peaks;
use runtime::bandwidth::{measure, working_set};
use runtime::device::Device;
use std::fs;
use std::path::Path;

pub fn run(args: &Args) -> Result<()> {
    let tokens = args.sequences.unwrap_or(args.tokens);
    let need = args.depth + tokens;
    let mut model = model::load(&args.model, args.model.ctx.unwrap_or(need).max(need), false)?;
    let repeat = if args.source.is_some() { 1 } else { args.repeat };
    let profile =
        model.profile(Options { tokens, apart: args.sequences.is_some(), depth: args.depth, repeat })?;
    if let Some(wanted) = &args.source {
        print!("{}", source(&model, &profile, wanted)?);
        return Ok(());
    }
    let (size, name) = (model.size()?, model.file().name().to_string());
    let report = Report::new(
        name,
        machine(args.model.device.device, args.bandwidth, model.device())?,
        &profile,
        &size,
    );
    if let Some(path) = &args.trace {
        write(path, &serde_json::to_string(&trace::of(&report))?)?;
    }
    if let Some(path) = &args.html {
        write(path, &page::of(&report)?)?;
    }
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&report.top(args.top))?),
        false => print!("{}", table::of(&report, args.top.unwrap_or(20))),
    }
    Ok(())
}

/// The report of one token's step behind `depth` positions, as JSON.
pub fn decoding(model: &mut Model, device: DeviceName, depth: usize) -> Result<serde_json::Value> {
    let profile = model.profile(Options { tokens: 1, apart: false, depth, repeat: 5 })?;
    let (size, name) = (model.size()?, model.file().name().to_string());
    let machine = machine(device, None, model.device())?;
    Ok(serde_json::to_value(Report::new(name, machine, &profile, &size))?)
}

fn machine(name: DeviceName, bandwidth: Option<f64>, device: &dyn Device) -> Result<Machine> {
    let (bytes, computes) = match name {
        DeviceName::Cpu => (working_set(), true),
        DeviceName::Cuda(_) => (4 << 30, true),
        DeviceName::Interp => (1, false),
    };
    let bandwidth = match bandwidth {
        Some(given) => vec![given],
        None => measure(device, bytes, 5)?.passes,
    };
    let found = if computes { peaks(device)? } else { vec![] };
    let peaks = found.into_iter().map(|p| Peak { what: p.what, gop_s: p.gop_s }).collect();
    Ok(Machine { device: device.name().into(), bandwidth, peaks })
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| path.display().to_string())
}

/// One kernel as text: what it is, its IR before and after its schedule, its code.
fn source(model: &Model, profile: &Profile, wanted: &str) -> Result<String> {
    let all: Vec<(usize, &Kernel)> = (1..).zip(&profile.kernels).collect();
    let found: Vec<_> = match wanted.parse::<usize>() {
        Ok(number) => all.iter().filter(|(n, _)| *n == number).collect(),
        Err(_) => all.iter().filter(|(_, k)| k.name() == wanted).collect(),
    };
    let listed = |kernels: &mut dyn Iterator<Item = &(usize, &Kernel)>| -> String {
        kernels.map(|(n, k)| format!("\n{n:>4}  {:<28} {}", k.name(), k.explained.words)).collect()
    };
    let (number, k) = match found[..] {
        [one] => one,
        [] => bail!("no kernel is called `{wanted}`; there are{}", listed(&mut all.iter())),
        _ => bail!("several kernels are called `{wanted}`; give a number:{}", listed(&mut found.into_iter())),
    };
    let target = model.device().target();
    let linear: String = k.program.parts().iter().map(|p| p.to_string()).collect();
    Ok(format!(
        "{number}  {}\n{}; {}\n{}\nschedule {}\n\n{}\n{linear}\n{}\n",
        k.name(),
        k.explained.words,
        k.explained.shape,
        report::sources(k).join(", "),
        k.schedule,
        k.text(),
        target.disassemble(&target.emit_bundle(k.program.bundle())),
    ))
}
