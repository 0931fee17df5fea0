//! `glimmer bench kernels`: how fast the table's kernels stream their weights, as a share of the read bandwidth that is
//! measured between the runs of each row.

use crate::args::{BenchKernels, DeviceName};
use crate::device;
use anyhow::{Result, anyhow, bail};
use compiler::graph::Graph;
use compiler::kernel::split::phases;
use compiler::kernel::{self, Opt, heuristic, show};
use compiler::pipeline;
use compiler::quant::Format;
use compiler::rng::Rng;
use compiler::schedule::{Kernel, buffer_bytes};
use compiler::table::{Case, Form, fill};
use compiler::tensor::Tensor;
use runtime::bandwidth::{Reader, working_set};
use runtime::buffer::Slice;
use runtime::check::{layout, slot};
use runtime::device::Device;
use runtime::step::Step;
use runtime::tune::Trial;
use serde::Serialize;
use std::collections::HashMap;
use std::time::{Duration, Instant};

#[derive(Serialize)]
struct Report {
    device: String,
    /// GB/s of the read loop, median of all passes, and the slowest and fastest.
    bandwidth: f64,
    bandwidth_range: [f64; 2],
    rows: Vec<Row>,
    /// Milliseconds from a kernel to its code, over all rows.
    compile_ms_median: f64,
}

#[derive(Serialize)]
struct Row {
    name: String,
    what: &'static str,
    threads: usize,
    microseconds: f64,
    /// Of the fastest run.
    fastest: f64,
    gb_per_s: f64,
    /// Of the read bandwidth measured between this row's runs; none for rows that are not about memory.
    share: Option<f64>,
    tops: f64,
    schedule: String,
}

/// What a row is to show.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    /// Weights from memory.
    Stream,
    /// 2 MB of weights again and again, on one thread.
    Cached,
    /// Many tokens: arithmetic, on one thread.
    Prompt,
}

pub fn run(args: &BenchKernels) -> Result<()> {
    let gpu = matches!(args.device.device, DeviceName::Cuda(_));
    let device = device::open(&args.device)?;
    let rows: Vec<(Kind, Case)> =
        rows(gpu).into_iter().filter(|(_, c)| c.to_string().contains(&args.filter)).collect();
    if rows.is_empty() {
        bail!("no row of the benchmark contains `{}`", args.filter);
    }
    eprintln!("{}: preparing memory", device.name());
    let bytes = if gpu { 4 << 30 } else { working_set() };
    let mut bench = Runner { reader: Reader::new(&*device, bytes)?, passes: vec![], compile: vec![], args };
    let mut out = vec![];
    let single = if gpu { None } else { Some(device::cpu(&args.device, Some(1))?) };
    for (i, (kind, case)) in rows.iter().enumerate() {
        eprint!("\r{:>3} of {}: {case:<40}", i + 1, rows.len());
        let one = single.as_ref().map(|d| d as &dyn Device).filter(|_| *kind != Kind::Stream);
        out.push(bench.row(&*device, one.unwrap_or(&*device), *kind, case)?);
    }
    eprintln!();
    while bench.passes.len() < 3 {
        bench.passes.push(bench.reader.pass(&*device)?);
    }
    let median = |v: &mut Vec<f64>| {
        v.sort_by(f64::total_cmp);
        v[v.len() / 2]
    };
    let bandwidth = median(&mut bench.passes);
    let report = Report {
        device: device.name().into(),
        bandwidth,
        bandwidth_range: [bench.passes[0], bench.passes[bench.passes.len() - 1]],
        rows: out,
        compile_ms_median: median(&mut bench.compile),
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report);
    }
    Ok(())
}

fn print(r: &Report) {
    let [lo, hi] = r.bandwidth_range;
    println!("{}", r.device);
    println!("read bandwidth {:.1} GB/s (median; {lo:.1} to {hi:.1})", r.bandwidth);
    println!(
        "{:<36} {:>9} {:>9} {:>8} {:>7} {:>7}  schedule",
        "kernel", "us", "fastest", "GB/s", "share", "TOPS"
    );
    for row in &r.rows {
        let share = row.share.map_or_else(|| row.what.to_string(), |s| format!("{:.0}%", 100.0 * s));
        println!(
            "{:<36} {:>9.1} {:>9.1} {:>8.1} {share:>7} {:>7.3}  {}",
            row.name, row.microseconds, row.fastest, row.gb_per_s, row.tops, row.schedule
        );
    }
    println!("compiling one kernel: {:.1} ms (median)", r.compile_ms_median);
}

/// What is measured, and how.
pub fn rows(gpu: bool) -> Vec<(Kind, Case)> {
    let format = |name| Format::by_name(name).expect("a row of the table");
    let all =
        ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"];
    let rest = ["MXFP4", "F16", "BF16"];
    let linear = |name, rows, cols, tokens, batch| Case {
        form: Form::Linear { batch },
        format: format(name),
        rows,
        cols,
        tokens,
    };
    let mut out = vec![];
    for name in all.into_iter().chain(rest) {
        // As many matrices as it takes to leave every cache behind.
        let batch = if gpu { 64 } else { (1 << 30) / (2048 * format(name).row_bytes(5120)) };
        out.push((Kind::Stream, linear(name, 2048, 5120, 1, batch)));
    }
    for (rows, cols) in [(3072, 2048), (576, 2048), (768, 2048)] {
        let batch = if gpu { 64 } else { (1 << 30) / (rows * format("Q4_0").row_bytes(cols)) };
        out.push((Kind::Stream, linear("Q4_0", rows, cols, 1, batch)));
    }
    for name in ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"] {
        let f = format(name);
        let up = (1 << 30) / (2 * 1536 * f.row_bytes(2048));
        let expert = |form, rows, cols| Case { form, format: f, rows, cols, tokens: 1 };
        out.push((Kind::Stream, expert(Form::GateUp { experts: up, used: up }, 1536, 2048)));
        // A GPU has the rows of one token to spread, so the experts are few there, and partly cached.
        let used = if gpu { 64 } else { 2 * up };
        out.push((Kind::Stream, expert(Form::Down { experts: 2 * up, used }, 2048, 1536)));
    }
    if !gpu {
        for name in ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16"] {
            let f = format(name);
            let rows = (1 << 29) / f.row_bytes(2048) / 16 * 16;
            out.push((Kind::Stream, Case { form: Form::Load, format: f, rows, cols: 2048, tokens: 1 }));
        }
        out.push((Kind::Cached, linear("Q4_0", 1024, 3584, 1, 1)));
    }
    out.push((Kind::Prompt, linear("Q4_0", 4096, 4096, 64, 1)));
    for tokens in [32, 64, 256] {
        let case = Case { form: Form::Half, ..linear("Q4_0", 4096, 4096, tokens, 1) };
        out.push((Kind::Prompt, case));
    }
    if !gpu {
        // Of a prompt of GLM-4.7-Flash: a dense product, the output projection, a matrix of all experts of a layer.
        for (rows, cols) in [(2048, 2048), (2048, 5120)] {
            out.push((Kind::Prompt, Case { form: Form::Half, ..linear("Q4_0", rows, cols, 512, 1) }));
        }
        for (name, tokens) in [("Q4_0", 128), ("Q4_0", 512), ("Q4_K", 128), ("Q6_K", 128)] {
            let form = Form::Grouped { experts: 64, used: 4 };
            out.push((Kind::Prompt, Case { form, ..linear(name, 1536, 2048, tokens, 1) }));
        }
    }
    out
}

struct Runner<'a> {
    reader: Reader,
    /// GB/s of every pass of the read loop.
    passes: Vec<f64>,
    /// Milliseconds of every compilation.
    compile: Vec<f64>,
    args: &'a BenchKernels,
}

impl Runner<'_> {
    /// Times a row on `on`, with the read loop on `device` between its runs.
    fn row(&mut self, device: &dyn Device, on: &dyn Device, kind: Kind, case: &Case) -> Result<Row> {
        let g = Graph::new();
        let built = case.build(&g, layout(on));
        let inputs = self.inputs(on, kind, &built)?;
        let caps = on.target().caps();
        let mut compile = vec![];
        let (tune, repeat) = (self.args.tune, self.args.repeat.max(1));
        let given = match &self.args.schedule {
            Some(s) => Some(kernel::parse(s).ok_or_else(|| anyhow!("`{s}` is no schedule"))?),
            None => None,
        };
        let choose = |k: &Kernel| {
            let start = Instant::now();
            let mut opts = given.clone().unwrap_or_else(|| heuristic::propose(k, &caps));
            for phase in phases(k, &opts, &caps).into_iter().flatten() {
                if let Ok(linear) = pipeline::compile(&phase.kernel, &phase.opts, &caps) {
                    on.target().emit(&linear);
                }
            }
            compile.push(start.elapsed().as_secs_f64() * 1e3);
            if let Some(limit) = tune {
                let found = tuned(on, k, &inputs, &opts, Duration::from_secs(limit));
                opts = found.ok().flatten().unwrap_or(opts);
            }
            opts
        };
        let mut step = Step::new(on, &g, &built.outputs, &inputs, choose)?;
        self.compile.extend(compile);
        step.run(on, &[])?;
        let (mut times, mut passes) = (vec![], vec![]);
        for _ in 0..repeat {
            if kind == Kind::Stream {
                passes.push(self.reader.pass(device)?);
            }
            times.push(on.time(step.prepared(), &[])?.iter().sum::<Duration>().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        passes.sort_by(f64::total_cmp);
        let seconds = times[times.len() / 2];
        let speed = case.weight_bytes() as f64 / seconds / 1e9;
        let schedules: Vec<String> =
            step.launches().iter().flat_map(|l| &l.parts).map(|k| show(&k.schedule)).collect();
        let row = Row {
            name: case.to_string(),
            what: match kind {
                Kind::Stream => "memory",
                Kind::Cached => "cached",
                Kind::Prompt => "prompt",
            },
            threads: if kind == Kind::Stream { 0 } else { 1 },
            microseconds: seconds * 1e6,
            fastest: times[0] * 1e6,
            gb_per_s: speed,
            share: passes.get(passes.len() / 2).map(|p| speed / p),
            tops: case.operations() as f64 / seconds / 1e12,
            schedule: schedules.join(" | "),
        };
        self.passes.extend(passes);
        Ok(row)
    }

    /// Memory for the inputs: weights lie in the reader's memory, everything small is random.
    fn inputs(
        &self,
        on: &dyn Device,
        kind: Kind,
        built: &compiler::table::Built,
    ) -> Result<HashMap<u32, Slice>> {
        let (mut rng, mut at) = (Rng::new(1), 0);
        let mut inputs = HashMap::new();
        for &(t, how) in &built.inputs {
            let bytes = buffer_bytes(t.0);
            let room = self.reader.data().len();
            let shared = kind == Kind::Stream && bytes > 1 << 20;
            let slice = if shared {
                // Planes that do not fit behind each other lie over each other, a part of the memory apart.
                if at + bytes > room {
                    at = 0;
                }
                let slice = self.reader.data().slice(at, bytes.min(room))?;
                at += bytes.next_multiple_of(4096);
                slice
            } else {
                let slice = on.alloc(bytes.max(1))?.whole();
                on.write(&slice, 0, &fill(t.dtype(), bytes / t.dtype().bytes(), how, &mut rng))?;
                slice
            };
            inputs.insert(slot(t), slice);
        }
        Ok(inputs)
    }
}

/// The best schedule that a search finds in time.
fn tuned(
    on: &dyn Device,
    kernel: &Kernel,
    inputs: &HashMap<u32, Slice>,
    start: &[Opt],
    limit: Duration,
) -> Result<Option<Vec<Opt>>> {
    let mut args = vec![];
    for (b, _) in kernel.buffers() {
        args.push(match inputs.get(&slot(Tensor(b))) {
            Some(slice) => slice.clone(),
            None => on.alloc(buffer_bytes(b).max(1))?.whole(),
        });
    }
    let trial = Trial { device: on, kernel, launches: &[args], symbols: &[] };
    Ok(trial.search(&[start.to_vec(), vec![]], Instant::now() + limit, &mut |_| ()))
}
