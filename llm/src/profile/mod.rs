//! Where the time of a step goes. In: a model, a number of tokens and how many positions are filled before them. Out: every
//! launch with its time, and every kernel with what it computes, touches and takes.
//!
//! Launches are timed one by one with nothing overlapping; where a device lets them overlap, as they run in a step, with
//! the gaps between them. The same step is also timed as a whole, untimed inside. A model that is not profiled pays nothing.

mod explain;
pub mod parts;

pub use explain::{Call, Explained, Setting, Touched, explain};
pub use parts::Component;

use crate::model::{Error, Model, Part, Piece, Sight};
use crate::paged::Row;
use compiler::dtype::Scalar;
use compiler::kernel;
use compiler::rng::Rng;
use compiler::work::{Work, work};
use runtime::device::{Program, Span};
use runtime::step::{Argument, Compiled, Launched, Module};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// One for decoding, more for a chunk of a prompt or for as many sequences.
    pub tokens: usize,
    /// Each token is the next of a sequence of its own.
    pub apart: bool,
    /// Positions that are filled before them.
    pub depth: usize,
    pub repeat: usize,
}

pub struct Profile {
    pub options: Options,
    /// Tokens that the plan is made for: those that were asked for and filling.
    pub rows: usize,
    /// So many plans like it run beside each other.
    pub lanes: usize,
    /// In the order of their first launch.
    pub kernels: Vec<Kernel>,
    /// In order.
    pub launches: Vec<Launch>,
    /// Of one untimed step.
    pub synchronisations: usize,
    /// Seconds of each untimed step, from token ids to logits, fastest first.
    pub steps: Vec<f64>,
}

/// One kernel, or several that are launched together.
pub struct Kernel {
    pub program: Program,
    pub parts: Vec<(Compiled, Explained)>,
    pub schedule: String,
    /// All parts in one.
    pub explained: Explained,
    /// Launches in a step.
    pub calls: usize,
    /// Of one call, on average, and of the gap before it.
    pub seconds: f64,
    pub gap: f64,
    /// Additions and multiplications of one call, read off its code.
    pub operations: f64,
    /// Linear instructions of one call.
    pub instructions: f64,
    /// Bytes that its loads ask for in one call; what is read twice counts twice.
    pub loaded: f64,
}

impl Kernel {
    pub fn name(&self) -> &str {
        self.program.name()
    }
    /// Before its schedule, for people.
    pub fn text(&self) -> String {
        self.parts.iter().map(|(k, _)| k.text.as_ref()).collect::<Vec<_>>().join("\n")
    }
    /// GB/s (10^9 bytes).
    pub fn speed(&self) -> f64 {
        self.explained.bytes / self.seconds.max(1e-12) / 1e9
    }
    /// The one that most of it belongs to.
    pub fn component(&self) -> Component {
        let most = self.explained.components.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        most.map_or(Component::SmallOps, |(c, _)| *c)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Index of its kernel.
    pub kernel: usize,
    pub place: Place,
    /// Medians over the repetitions: of the launch, and of the time since the one before it ended.
    pub seconds: f64,
    pub gap: f64,
}

/// Which part of a step a launch belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    Embedding,
    /// Equal layers have equal kinds.
    Layer {
        index: usize,
        kind: usize,
    },
    FinalNorm,
    Head,
}

impl Profile {
    /// Seconds of all launches.
    pub fn seconds(&self) -> f64 {
        self.launches.iter().map(|l| l.seconds).sum()
    }
    /// Seconds between them.
    pub fn gaps(&self) -> f64 {
        self.launches.iter().map(|l| l.gap).sum()
    }
    /// Bytes that one step touches, in all plans of it.
    pub fn bytes(&self) -> f64 {
        let plans = |place: Place| if place == Place::Head { 1.0 } else { self.lanes as f64 };
        self.launches.iter().map(|l| self.kernels[l.kernel].explained.bytes * plans(l.place)).sum()
    }
    /// Median of the untimed steps.
    pub fn step(&self) -> f64 {
        self.steps[self.steps.len() / 2]
    }
    /// Of the launches' time.
    pub fn share(&self, kernel: &Kernel) -> f64 {
        kernel.seconds * kernel.calls as f64 / self.seconds().max(1e-12)
    }
    /// Each component's seconds in a step and bytes, those that there are.
    pub fn budget(&self) -> Vec<(Component, f64, f64)> {
        let of = |c: Component| {
            let parts = self.kernels.iter().flat_map(|k| {
                let mine = k.explained.components.iter().filter(move |(own, _)| *own == c);
                mine.map(move |(_, s)| {
                    (s * k.calls as f64 * k.seconds, s * k.calls as f64 * k.explained.bytes)
                })
            });
            parts.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        };
        let all = Component::ALL.into_iter().map(|c| (c, of(c)));
        all.filter(|(_, (s, _))| *s > 0.0).map(|(c, (seconds, bytes))| (c, seconds, bytes)).collect()
    }
    /// The launches of the first layer of each kind, with how many layers are of it.
    pub fn anatomy(&self) -> Vec<(usize, usize, Vec<Launch>)> {
        let mut out: Vec<(usize, usize, usize, Vec<Launch>)> = vec![];
        let mut seen: Vec<usize> = vec![];
        for launch in &self.launches {
            let Place::Layer { index, kind } = launch.place else { continue };
            match out.iter_mut().find(|(k, ..)| *k == kind) {
                None => out.push((kind, index, 1, vec![*launch])),
                Some((_, first, _, launches)) if *first == index => launches.push(*launch),
                Some((_, _, layers, _)) if !seen.contains(&index) => *layers += 1,
                Some(_) => {}
            }
            seen.push(index);
        }
        out.into_iter().map(|(_, first, layers, launches)| (first, layers, launches)).collect()
    }
}

/// A step that can be run again: made-up tokens, one after the other or each of a sequence of its own.
pub(crate) struct Again {
    ids: Vec<u32>,
    depth: usize,
    /// The pages of each sequence.
    tables: Option<Vec<Vec<u32>>>,
}

impl Again {
    /// Fills `depth` positions.
    pub fn new(model: &mut Model, tokens: usize, apart: bool, depth: usize) -> Result<Again, Error> {
        let most = if apart { model.together_at_most() } else { model.chunk() };
        if tokens == 0 || tokens > most {
            return Err(Error::Chunk { tokens, most });
        }
        let mut rng = Rng::new(1);
        let mut ids: Vec<u32> = (0..depth + tokens).map(|_| rng.below(model.vocab()) as u32).collect();
        let tables = if apart { Some(model.tables(tokens, depth + 1)?) } else { None };
        model.truncate(0);
        match &tables {
            Some(tables) => tables.iter().try_for_each(|t| model.fill(&ids[..depth], t))?,
            None => model.advance(&ids[..depth])?,
        }
        Ok(Again { ids: ids.split_off(depth), depth, tables })
    }

    /// Seconds of one run.
    pub fn step(&self, model: &mut Model) -> Result<f64, Error> {
        let start = Instant::now();
        match &self.tables {
            Some(tables) => {
                let each = self.ids.iter().zip(tables);
                let rows: Vec<Row> =
                    each.map(|(&token, table)| Row { token, pos: self.depth, table }).collect();
                model.batch(&rows)?;
            }
            None => model.advance(&self.ids)?,
        }
        model.scores(0, Some(1))?;
        let seconds = start.elapsed().as_secs_f64();
        model.truncate(self.depth);
        Ok(seconds)
    }
}

impl Model {
    /// What a step runs at `depth` positions.
    pub(crate) fn pieces_of(&self, tokens: usize, apart: bool, depth: usize) -> [Piece; 2] {
        if apart { self.pieces_apart(tokens, depth) } else { self.pieces(tokens) }
    }

    /// Runs steps at `depth` positions and times them; the cache holds made-up tokens afterwards.
    pub fn profile(&mut self, options: Options) -> Result<Profile, Error> {
        let Options { tokens, apart, depth, repeat } = options;
        let again = Again::new(self, tokens, apart, depth)?;
        let mut steps = vec![];
        // The first makes the plans.
        for round in 0..=repeat.max(1) {
            let seconds = again.step(self)?;
            if round > 0 {
                steps.push(seconds);
            }
        }
        steps.sort_by(f64::total_cmp);
        let (mut kernels, mut launches, mut synchronisations) = (vec![], vec![], 0);
        let pieces = self.pieces_of(tokens, apart, depth);
        let rows = pieces[0].1;
        let lanes = if apart { self.lanes(tokens) } else { 1 };
        for (part, rows, symbols) in pieces {
            let mut times = vec![];
            for _ in 0..repeat.max(1) {
                let (each, count) = match part {
                    Part::Batch(sight, _) if lanes > 1 => self.time_lanes(sight, lanes, rows, &symbols)?,
                    _ => self.time(part, rows, &symbols)?,
                };
                times.push(each);
                if times.len() == 1 {
                    synchronisations += count;
                }
            }
            let median = |i: usize, of: fn(&Span) -> Duration| {
                let mut each: Vec<Duration> = times.iter().map(|t| of(&t[i])).collect();
                each.sort();
                each[each.len() / 2].as_secs_f64()
            };
            let mut at = 0;
            for (place, calls) in self.explained(part, rows, &symbols)? {
                for mut kernel in calls {
                    let (seconds, gap) = (median(at, |s| s.run), median(at, |s| s.gap));
                    (kernel.seconds, kernel.gap) = (seconds, gap);
                    launches.push(Launch { kernel: add(&mut kernels, kernel), place, seconds, gap });
                    at += 1;
                }
            }
        }
        for k in &mut kernels {
            k.seconds /= k.calls as f64;
            k.gap /= k.calls as f64;
        }
        Ok(Profile { options, rows, lanes, kernels, launches, synchronisations, steps })
    }

    /// When each launch of a batch ran, others like it beside it, and how often all of them wait for each other.
    fn time_lanes(
        &mut self,
        sight: Sight,
        lanes: usize,
        rows: usize,
        symbols: &[(&'static str, i64)],
    ) -> Result<(Vec<Span>, usize), Error> {
        let piece = |lane| (Part::Batch(sight, lane), rows, symbols.to_vec());
        let pieces: Vec<_> = (0..lanes).map(piece).collect();
        let times = self.with_plans(&pieces, |device, plans| device.time_beside(plans))?.swap_remove(0);
        // They meet when they begin and when all are done.
        Ok((times.into_iter().map(|run| Span { gap: Duration::ZERO, run }).collect(), 2))
    }

    /// Every call of a plan in order, module by module, untimed.
    fn explained(
        &mut self,
        part: Part,
        rows: usize,
        symbols: &[(&str, i64)],
    ) -> Result<Vec<(Place, Vec<Kernel>)>, Error> {
        let modules = self.modules(part, rows as i64)?;
        let last = modules.len() - 1;
        let mut out = vec![];
        let mut known: HashMap<usize, Vec<Explained>> = HashMap::new();
        for (n, (module, _)) in modules.iter().enumerate() {
            let place = match part {
                Part::Trunk(_) | Part::Batch(..) if n == 0 => Place::Embedding,
                Part::Trunk(_) | Part::Batch(..) if n == last => Place::FinalNorm,
                Part::Trunk(_) | Part::Batch(..) => {
                    Place::Layer { index: n - 1, kind: self.layers[n - 1].kind }
                }
                _ => Place::Head,
            };
            let prefix = match place {
                Place::Layer { index, .. } => format!("blk.{}.", self.layers[index].index),
                _ => String::new(),
            };
            let key = Arc::as_ptr(module) as usize;
            let all = known.entry(key).or_insert_with(|| {
                let calls = calls(module, symbols);
                explain(&calls, self.setting(part, rows, symbols), &|name| {
                    self.file.tensor(&format!("{prefix}{name}"))
                })
            });
            let mut each = all.iter().cloned();
            let kernels = module.launches().iter().map(|l| kernel(l, each.by_ref(), symbols));
            out.push((place, kernels.collect()));
        }
        Ok(out)
    }

    fn setting(&self, part: Part, rows: usize, symbols: &[(&str, i64)]) -> Setting {
        let blocks = symbols.iter().find(|s| s.0 == "blocks").map_or(0, |s| s.1);
        let moe = self.config.moe.map(|m| (m.router.k as u64, m.experts as u64));
        Setting {
            rows: rows as u64,
            positions: blocks as u64 * self.block(part, rows) as u64,
            capacity: self.capacity as u64,
            chunk: self.chunk() as u64,
            experts: moe.unwrap_or((0, 1)),
        }
    }
}

/// Counts a call of a kernel; one that shares code and words with an earlier one is the same.
fn add(kernels: &mut Vec<Kernel>, kernel: Kernel) -> usize {
    let same = |k: &Kernel| k.program.is(&kernel.program) && k.explained == kernel.explained;
    match kernels.iter().position(same) {
        Some(i) => {
            kernels[i].calls += 1;
            kernels[i].seconds += kernel.seconds;
            kernels[i].gap += kernel.gap;
            i
        }
        None => {
            kernels.push(kernel);
            kernels.len() - 1
        }
    }
}

fn values(names: &[String], symbols: &[(&str, i64)]) -> Vec<i64> {
    names.iter().map(|n| symbols.iter().find(|s| s.0 == n).map_or(0, |s| s.1)).collect()
}

/// `explained` gives the words of each part in turn.
fn kernel(
    launched: &Launched,
    explained: &mut dyn Iterator<Item = Explained>,
    symbols: &[(&str, i64)],
) -> Kernel {
    let parts: Vec<(Compiled, Explained)> = launched.parts.iter().cloned().zip(explained).collect();
    let mut w = Work::default();
    for linear in launched.program.parts() {
        w += work(linear, &values(&linear.symbols, symbols));
    }
    Kernel {
        program: launched.program.clone(),
        schedule: parts.iter().map(|(k, _)| kernel::show(&k.schedule)).collect::<Vec<_>>().join(" | "),
        explained: Explained::together(parts.iter().map(|(_, e)| e)),
        parts,
        calls: 1,
        seconds: 0.0,
        gap: 0.0,
        operations: w.operations as f64,
        instructions: w.instructions as f64,
        loaded: w.loaded as f64,
    }
}

fn calls<'m>(module: &'m Module, symbols: &[(&str, i64)]) -> Vec<Call<'m>> {
    let touched = |a: &Argument, (dtype, written): (compiler::dtype::DType, bool)| Touched {
        slot: a.slot,
        name: a.name.clone(),
        bytes: a.elements.eval(&values(&a.symbols, symbols)).max(0) as u64 * dtype.bytes() as u64,
        written,
        int8: dtype.scalar == Scalar::I8,
    };
    let call = |(compiled, arguments): (&'m Compiled, Vec<&Argument>)| {
        let types = compiled.linear.buffers.iter().copied();
        Call {
            text: &compiled.text,
            buffers: arguments.into_iter().zip(types).map(|(a, t)| touched(a, t)).collect(),
        }
    };
    module.calls().map(call).collect()
}
