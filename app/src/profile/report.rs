//! What a profile says, in plain numbers: the one form that tables, JSON, traces and pages are made from.
//!
//! Times are in microseconds, speeds in GB/s (10^9 bytes), shares of the time that all launches take one after the other.

use llm::profile::{Kernel, Place, Profile};
use llm::size::Size;
use serde::Serialize;

#[derive(Clone, Serialize)]
pub struct Report {
    pub model: String,
    pub device: String,
    pub tokens: usize,
    /// Tokens that the plan is made for.
    pub rows: usize,
    /// Plans of so many rows that run beside each other; launches, budget and timeline are of one, and of the head.
    pub lanes: usize,
    pub depth: usize,
    /// Of the machine, median of several passes, and the slowest and fastest.
    pub bandwidth_gb_s: f64,
    pub bandwidth_range: [f64; 2],
    /// What loops of nothing but arithmetic reach.
    pub peaks: Vec<Peak>,
    /// What a step has to read: weights and cache; of a prompt's chunk what its kernels touch.
    pub bytes: f64,
    /// If reading these bytes were all.
    pub theoretical_tokens_s: f64,
    /// As it runs.
    pub reached_tokens_s: f64,
    pub step_us: f64,
    pub step_range_us: [f64; 2],
    /// All launches, and the gaps between them where they run as in a step; without gaps they were timed one by one.
    pub launches_us: f64,
    pub gaps_us: f64,
    pub launches: usize,
    pub synchronisations: usize,
    pub budget: Vec<Part>,
    /// In the order of their first launch; `id` counts from 1.
    pub kernels: Vec<Row>,
    pub anatomy: Vec<Block>,
    /// Every launch of the step in order.
    pub timeline: Vec<Event>,
}

#[derive(Clone, Serialize)]
pub struct Peak {
    pub what: &'static str,
    pub gop_s: f64,
}

/// What the machine can do.
pub struct Machine {
    pub device: String,
    /// GB/s of several passes over memory, slowest first.
    pub bandwidth: Vec<f64>,
    pub peaks: Vec<Peak>,
}

#[derive(Clone, Serialize)]
pub struct Part {
    pub component: &'static str,
    pub us: f64,
    pub share: f64,
    pub bytes: f64,
    pub gb_s: f64,
}

#[derive(Clone, Serialize)]
pub struct Row {
    pub id: usize,
    pub name: String,
    /// Where most of it belongs, and everything with its share of the kernel.
    pub component: &'static str,
    pub components: Vec<(&'static str, f64)>,
    pub what: String,
    pub shape: String,
    pub source: Vec<String>,
    pub schedule: String,
    pub calls: usize,
    pub us: f64,
    pub gap_us: f64,
    pub share: f64,
    pub bytes: f64,
    pub gb_s: f64,
    pub operations: f64,
    pub gop_s: f64,
    pub instructions: f64,
    pub loaded: f64,
    pub text: String,
}

#[derive(Clone, Serialize)]
pub struct Block {
    /// The first layer of this kind.
    pub layer: usize,
    /// How many are of it.
    pub layers: usize,
    pub us: f64,
    pub launches: Vec<Event>,
}

#[derive(Clone, Serialize)]
pub struct Event {
    pub kernel: usize,
    /// `embedding`, `layer 7`, `final norm`, `head`.
    pub place: String,
    pub us: f64,
    /// Before it.
    pub gap_us: f64,
}

impl Report {
    pub fn new(model: String, machine: Machine, p: &Profile, size: &Size) -> Report {
        let Machine { device, bandwidth, peaks } = machine;
        let tokens = p.options.tokens;
        let bytes = match tokens {
            1 => (size.token_bytes + size.kv_bytes(p.options.depth as u64 + 1)) as f64,
            _ => p.bytes(),
        };
        let speed = bandwidth[bandwidth.len() / 2];
        let total = p.seconds().max(1e-12);
        let event = |l: &llm::profile::Launch| Event {
            kernel: l.kernel + 1,
            place: match l.place {
                Place::Embedding => "embedding".into(),
                Place::Layer { index, .. } => format!("layer {index}"),
                Place::FinalNorm => "final norm".into(),
                Place::Head => "head".into(),
            },
            us: l.seconds * 1e6,
            gap_us: l.gap * 1e6,
        };
        let budget = p.budget().into_iter().map(|(c, seconds, bytes)| Part {
            component: c.name(),
            us: seconds * 1e6,
            share: seconds / total,
            bytes,
            gb_s: bytes / seconds.max(1e-12) / 1e9,
        });
        let block = |(layer, layers, launches): (usize, usize, Vec<llm::profile::Launch>)| Block {
            layer,
            layers,
            us: launches.iter().map(|l| (l.seconds + l.gap) * 1e6).sum(),
            launches: launches.iter().map(event).collect(),
        };
        Report {
            model,
            device,
            tokens,
            rows: p.rows,
            lanes: p.lanes,
            depth: p.options.depth,
            bandwidth_gb_s: speed,
            bandwidth_range: [bandwidth[0], bandwidth[bandwidth.len() - 1]],
            peaks,
            bytes,
            theoretical_tokens_s: tokens as f64 * speed * 1e9 / bytes,
            reached_tokens_s: tokens as f64 / p.step(),
            step_us: p.step() * 1e6,
            step_range_us: [p.steps[0] * 1e6, p.steps[p.steps.len() - 1] * 1e6],
            launches_us: p.seconds() * 1e6,
            gaps_us: p.gaps() * 1e6,
            launches: p.launches.len(),
            synchronisations: p.synchronisations,
            budget: budget.collect(),
            kernels: (1..).zip(&p.kernels).map(|(id, k)| row(p, id, k)).collect(),
            anatomy: p.anatomy().into_iter().map(block).collect(),
            timeline: p.launches.iter().map(event).collect(),
        }
    }

    /// Kernels by the time they take, the longest first.
    pub fn by_time(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> = self.kernels.iter().collect();
        rows.sort_by(|a, b| b.share.total_cmp(&a.share));
        rows
    }

    /// With the kernels that take the most time alone, if so many are wanted.
    pub fn top(&self, n: Option<usize>) -> Report {
        let kept: Vec<Row> = self.by_time().into_iter().take(n.unwrap_or(usize::MAX)).cloned().collect();
        match n {
            Some(_) => Report { kernels: kept, ..self.clone() },
            None => self.clone(),
        }
    }
}

fn row(p: &Profile, id: usize, k: &Kernel) -> Row {
    Row {
        id,
        name: k.name().into(),
        component: k.component().name(),
        components: k.explained.components.iter().map(|(c, share)| (c.name(), *share)).collect(),
        what: k.explained.words.clone(),
        shape: k.explained.shape.clone(),
        source: sources(k),
        schedule: k.schedule.clone(),
        calls: k.calls,
        us: k.seconds * 1e6,
        gap_us: k.gap * 1e6,
        share: p.share(k),
        bytes: k.explained.bytes,
        gb_s: k.speed(),
        operations: k.operations,
        gop_s: k.operations / k.seconds.max(1e-12) / 1e9,
        instructions: k.instructions,
        loaded: k.loaded,
        text: k.text(),
    }
}

/// Where in the sources a kernel comes from.
pub fn sources(k: &Kernel) -> Vec<String> {
    k.explained.sources.iter().map(|s| format!("llm/src/{s}")).collect()
}

/// Bytes for people.
pub fn size(bytes: f64) -> String {
    match bytes {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB", b / 1e6),
        b if b >= 1e3 => format!("{:.1} kB", b / 1e3),
        b => format!("{b:.0} B"),
    }
}
