//! `glimmer bench`: models and kernels, measured.
//!
//! Models are measured in rounds: ours is loaded, every test runs, ours is dropped; then each peer does the same. So no two
//! of them share the memory, and whatever else the machine does meets all of them alike.

pub mod cases;
pub mod kernels;
mod ours;
mod peer;
mod report;

use crate::args::{Bench, BenchCommand, BenchModels, DeviceArgs, DeviceName};
use crate::model::{self, Origin};
use crate::names::{self, show_bytes};
use crate::synth;
use anyhow::{Context, Result, bail};
use cases::{Kind, Numbers, Test};
use indicatif::{ProgressBar, ProgressStyle};
use llm::gguf::Gguf;
use llm::size::Size;
use ours::Ours;
use peer::{Peer, Question};
use report::{PeerRow, Row, Speed, median};
use runtime::machine;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub fn run(args: &Bench) -> Result<()> {
    match &args.kernels {
        Some(BenchCommand::Kernels(k)) => kernels::run(k),
        None => models(&args.models),
    }
}

/// Whether Ctrl-C was pressed: what runs is finished, what was measured is printed.
#[derive(Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    fn listen() -> Result<Stop> {
        let stop = Stop::default();
        let flag = stop.0.clone();
        ctrlc::set_handler(move || {
            if flag.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
            eprintln!("\nstopping after this run; Ctrl-C again ends at once");
        })
        .context("Ctrl-C")?;
        Ok(stop)
    }

    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

fn models(args: &BenchModels) -> Result<()> {
    let tests = cases::tests(&args.tests, &args.prompt, &args.n, &args.depth);
    if tests.is_empty() {
        bail!("nothing to measure: -p and -n are both 0");
    }
    if !args.against.is_empty() && args.device.contains(&DeviceName::Interp) {
        bail!("--against compares devices; the interpreter is none to compare");
    }
    if args.threads.as_ref().is_some_and(|t| t.0.contains(&0)) {
        bail!("--threads 0: at least one is needed");
    }
    let mut peers: Vec<Peer> = args.against.iter().map(|p| Peer::new(p)).collect::<Result<_>>()?;
    let named: Vec<Option<&str>> = args.models.iter().map(|m| Some(m.as_str())).collect();
    let named = if named.is_empty() { vec![None] } else { named };
    let mut subjects =
        named.into_iter().map(|m| Subject::new(m, &tests)).collect::<Result<Vec<Subject>>>()?;
    let stop = Stop::listen()?;
    if !peers.is_empty() {
        subjects.iter_mut().try_for_each(Subject::become_file)?;
    }
    let mut rows = vec![];
    let measured = subjects.iter().try_for_each(|subject| {
        places(args).iter().try_for_each(|on| {
            let mut group = Group { subject, on, args, tests: &tests, stop: &stop, found: vec![] };
            let result = group.measure(&mut peers);
            rows.extend(group.rows(&peers));
            result
        })
    });
    let text = report::show(&rows, args.format)?;
    let stopped = stop.asked();
    if !rows.is_empty() || (measured.is_ok() && !stopped) {
        io::stdout().write_all(text.as_bytes()).context("standard output")?;
    }
    if stopped {
        eprintln!("glimmer: interrupted; the runs until then are all there is");
        std::process::exit(130);
    }
    measured
}

/// Every device with every number of threads.
fn places(args: &BenchModels) -> Vec<DeviceArgs> {
    let mut out = vec![];
    for &device in &args.device {
        let own = |threads| DeviceArgs { device, threads, tier: args.tier };
        match (&args.threads, device) {
            (Some(Numbers(list)), DeviceName::Cpu) => out.extend(list.iter().map(|n| own(Some(*n)))),
            (None, DeviceName::Cpu) => out.push(own(Some(machine::cores().len().max(1)))),
            _ => out.push(own(None)),
        }
    }
    out
}

/// A model to be measured.
struct Subject {
    /// As the user named it; of a path the file's name.
    name: String,
    architecture: String,
    size: Size,
    origin: Origin,
}

impl Subject {
    fn new(model: Option<&str>, tests: &[Test]) -> Result<Subject> {
        let origin = model::origin(model)?;
        let file = origin.open()?;
        let name = match (&origin, model) {
            (Origin::File(path), _) => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            (_, Some(model)) => model.into(),
            (_, None) => file.name().into(),
        };
        let architecture = file.architecture()?.to_string();
        let most = file.opt_int(&format!("{architecture}.context_length"))?;
        let longest = tests.iter().max_by_key(|t| t.context());
        if let (Some(most), Some(test)) = (most, longest)
            && test.context() as i64 > most
        {
            eprintln!("glimmer: {test} is longer than the {most} tokens that {name} was made for");
        }
        Ok(Subject { name, architecture, size: Size::of(&file)?, origin })
    }

    /// llama-bench reads files only: writes what is none into the cache, unless it is there already.
    fn become_file(&mut self) -> Result<()> {
        let (stem, file) = match &self.origin {
            Origin::File(_) => return Ok(()),
            Origin::BuiltIn => ("storyteller".to_string(), self.origin.open()?),
            Origin::Synth(spec) => (spec.replace(':', "-"), self.origin.open()?),
        };
        let dir = names::cache_dir()?.join("bench");
        std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let path = dir.join(format!("{stem}.gguf"));
        if !Gguf::open(&path).is_ok_and(|there| same(&there, &file)) {
            eprintln!(
                "{}: writing {} for llama-bench; it stays until you remove it",
                path.display(),
                show_bytes(file.bytes_total())
            );
            synth::write(&file, &path)?;
        }
        self.origin = Origin::File(path);
        Ok(())
    }
}

/// The same tensors and the same keys.
fn same(a: &Gguf, b: &Gguf) -> bool {
    let tensors = |g: &Gguf| -> Vec<_> {
        g.tensors().iter().map(|t| (t.name.clone(), t.format.id, t.dims.clone())).collect()
    };
    tensors(a) == tensors(b) && a.metadata().eq(b.metadata())
}

/// One model in one place.
struct Group<'a> {
    subject: &'a Subject,
    on: &'a DeviceArgs,
    args: &'a BenchModels,
    tests: &'a [Test],
    stop: &'a Stop,
    found: Vec<Found>,
}

/// What was measured of a test.
struct Found {
    test: Test,
    backend: String,
    speeds: Vec<f64>,
    passes: Vec<f64>,
    loads: Vec<f64>,
    size: Size,
    /// For each peer.
    peers: Vec<Vec<f64>>,
}

impl Group<'_> {
    fn measure(&mut self, peers: &mut [Peer]) -> Result<()> {
        let new = |test: &Test| Found {
            test: *test,
            backend: String::new(),
            speeds: vec![],
            passes: vec![],
            loads: vec![],
            size: self.subject.size,
            peers: vec![vec![]; peers.len()],
        };
        self.found = self.tests.iter().map(new).collect();
        let repeat = self.args.repeat;
        let rounds = if peers.is_empty() { 1 } else { self.args.rounds.unwrap_or(repeat).min(repeat) };
        for round in 0..rounds {
            let runs = repeat / rounds + usize::from(round < repeat % rounds);
            self.ours(runs)?;
            for (i, peer) in peers.iter_mut().enumerate() {
                if self.stop.asked() {
                    return Ok(());
                }
                let asked = self.peer(i, peer, runs);
                if self.stop.asked() {
                    return Ok(());
                }
                asked?;
            }
        }
        Ok(())
    }

    /// Loads, runs every test so often, and drops the model.
    fn ours(&mut self, runs: usize) -> Result<()> {
        if self.stop.asked() {
            return Ok(());
        }
        let mut ours = Ours::load(self.on, &self.subject.origin, self.args.activations, self.tests)?;
        for found in &mut self.found {
            let what = format!("{} {}", self.subject.name, found.test);
            found.backend = ours.backend();
            found.size = ours.size()?;
            found.loads.push(ours.load.as_secs_f64());
            if !busy(&format!("{what}: warming up"), || ours.prepare(&found.test, self.stop))? {
                return Ok(());
            }
            let decodes = found.test.kind == Kind::Decode;
            for _ in 0..runs {
                if decodes {
                    found.passes.extend(ours.bandwidth()?);
                }
                let time = busy(&what, || ours.run(&found.test))?;
                let tokens = found.test.tokens * found.test.sequences;
                found.speeds.push(tokens as f64 / time.as_secs_f64());
                said(&what, "", &found.speeds, self.args.repeat);
                if self.stop.asked() {
                    return Ok(());
                }
            }
            if decodes {
                found.passes.extend(ours.bandwidth()?);
            }
        }
        Ok(())
    }

    fn peer(&mut self, index: usize, peer: &mut Peer, runs: usize) -> Result<()> {
        let Origin::File(file) = &self.subject.origin else { bail!("{}: no file", self.subject.name) };
        let DeviceArgs { device, threads, .. } = *self.on;
        let alone = |t: &Test| t.sequences == 1;
        let tests: Vec<Test> = self.tests.iter().copied().filter(alone).collect();
        let q = Question { file, tests: &tests, repeat: runs, threads, device };
        let what = format!("{}: {}", peer.path.display(), self.subject.name);
        let answers = busy(&what, || peer.ask(&q, self.stop))?;
        for (found, (test, speeds)) in self.found.iter_mut().filter(|f| alone(&f.test)).zip(answers) {
            found.peers[index].extend(speeds);
            let what = format!("{} {test}", self.subject.name);
            said(&what, &format!(", {}", peer.path.display()), &found.peers[index], self.args.repeat);
        }
        Ok(())
    }

    /// Of tests that ran.
    fn rows(&self, peers: &[Peer]) -> Vec<Row> {
        self.found.iter().filter_map(|f| self.row(f, peers)).collect()
    }

    fn row(&self, f: &Found, peers: &[Peer]) -> Option<Row> {
        let (subject, speed) = (self.subject, Speed::of(&f.speeds)?);
        let decodes = f.test.kind == Kind::Decode;
        // Positions that a token in the middle of the run sees.
        let seen = f.test.depth as u64 + f.test.tokens as u64 / 2;
        let alone = decodes && f.test.sequences == 1;
        let bytes = alone.then(|| f.size.token_bytes + f.size.kv_bytes(seen));
        let gb_per_second = bytes.map(|b| b as f64 * speed.median / 1e9);
        let bandwidth = median(&f.passes);
        let peers = peers.iter().zip(&f.peers).filter_map(|(p, speeds)| {
            Some(PeerRow {
                program: p.path.display().to_string(),
                build: p.about.clone().unwrap_or_default(),
                tokens_per_second: Speed::of(speeds)?,
            })
        });
        let row = Row {
            model: subject.name.clone(),
            architecture: subject.architecture.clone(),
            size_bytes: subject.size.weight_bytes,
            parameters: subject.size.parameters,
            backend: f.backend.clone(),
            threads: self.on.threads,
            test: f.test.to_string(),
            first_token_seconds: (!decodes).then_some(f.test.tokens as f64 / speed.median),
            tokens_per_second: speed,
            bytes_per_token: bytes,
            gb_per_second,
            bandwidth,
            share_of_bandwidth: gb_per_second.zip(bandwidth).map(|(own, all)| own / all),
            load_seconds: median(&f.loads)?,
            peers: peers.collect(),
            ratio: None,
        };
        Some(row.with_ratio())
    }
}

/// Shows on a terminal what is under way, and for how long.
fn busy<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let bar = ProgressBar::new_spinner().with_message(what.to_string());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}") {
        bar.set_style(style);
    }
    // Rarely: it takes time from what is measured.
    bar.enable_steady_tick(Duration::from_secs(1));
    let result = work();
    bar.finish_and_clear();
    result
}

fn said(what: &str, who: &str, speeds: &[f64], of: usize) {
    if let Some(last) = speeds.last() {
        eprintln!("{what}, run {} of {of}{who}: {last:.2} t/s", speeds.len());
    }
}
