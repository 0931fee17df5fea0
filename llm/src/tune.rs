//! Better schedules for a model's kernels. In: a model, numbers of tokens, a time. Out: schedules that were measured to be
//! faster and to give the same results, put where later plans find them.
//!
//! A kernel gets its share of the time as it has of the step. It is timed on the memory of successive layers, with the
//! activations that a real step gave it.

use crate::model::{Error, Model, Part};
use crate::profile;
use compiler::kernel::{self, Opt, heuristic};
use compiler::schedule::Kernel;
use runtime::buffer::Slice;
use runtime::cache::Key;
use runtime::device::Device;
use runtime::plan::Plan;
use runtime::schedules::{Chooser, Schedules};
use runtime::step::{Choose, Library};
use runtime::tune::Trial;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

/// By how much a schedule must be faster to count: less is noise.
pub const GAIN: f64 = 0.03;

/// Seconds that one round over a kernel's layers is to take, about.
const ROUND: f64 = 0.03;

/// Bytes of activations that are kept aside for all kernels.
const KEPT: usize = 1 << 30;

/// Seconds that the steps before and after may take, each.
const BESIDE: f64 = 5.0;

/// Rounds of the comparison that decides.
const ROUNDS: usize = 9;

#[derive(Clone, Debug)]
pub struct Options {
    /// Tokens of each step that is tuned.
    pub tokens: Vec<usize>,
    /// Is each of a sequence of its own?
    pub apart: bool,
    /// Positions that are filled before them.
    pub depth: usize,
    /// For the search; profiles before and after come on top.
    pub limit: Duration,
}

pub struct Report {
    pub steps: Vec<Step>,
    /// By the share of their step, largest first.
    pub kernels: Vec<Tuned>,
}

/// One step, from token ids to logits.
#[derive(Clone, Debug)]
pub struct Step {
    pub tokens: usize,
    /// Median seconds before and after, taken in turns.
    pub before: f64,
    pub after: f64,
}

#[derive(Clone, Debug)]
pub struct Tuned {
    /// Tokens of the step that it is of.
    pub tokens: usize,
    pub name: String,
    pub words: String,
    pub calls: usize,
    /// Of its step.
    pub share: f64,
    /// Schedules that were tried.
    pub tried: usize,
    /// Seconds of a call under the old and the new schedule, taken in turns; the same where nothing better was found.
    pub before: f64,
    pub after: f64,
    pub old: String,
    pub outcome: Outcome,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Nothing faster by [`GAIN`] was found.
    Kept,
    /// The new schedule, which later plans use.
    Better(String),
    /// A faster schedule gave other results: a fault of the compiler. It is not used.
    Wrong { schedule: String, why: String },
}

/// How far it is.
pub struct Progress<'a> {
    /// Kernels that are done, and all.
    pub done: usize,
    pub of: usize,
    pub words: &'a str,
    pub tried: usize,
    /// Seconds of a call at first and now.
    pub first: f64,
    pub best: f64,
    pub elapsed: Duration,
}

/// A kernel that is to be tuned.
struct Target {
    name: String,
    words: String,
    calls: usize,
    share: f64,
    seconds: f64,
    launches: Vec<Vec<Slice>>,
}

impl Model {
    /// Tunes the kernels of some steps; the cache holds made-up tokens afterwards. What is found is saved kernel by kernel.
    pub fn tune(&mut self, options: &Options, seen: &mut dyn FnMut(&Progress)) -> Result<Report, Error> {
        let mut report = Report { steps: vec![], kernels: vec![] };
        let (mut known, mut rows) = (BTreeSet::new(), HashSet::new());
        let &Options { apart, depth, .. } = options;
        let pieces = |model: &Model, tokens: usize| model.pieces_of(tokens.max(1), apart, depth);
        let steps: Vec<usize> =
            options.tokens.iter().copied().filter(|&t| rows.insert(pieces(self, t)[0].1)).collect();
        let mut left = options.limit;
        for (i, &tokens) in steps.iter().enumerate() {
            let wanted = profile::Options { tokens, apart, depth, repeat: 3 };
            let profile = self.profile(wanted)?;
            let mut targets = self.targets(&profile, &known);
            let pieces = pieces(self, tokens);
            for (part, rows, symbols) in &pieces {
                self.capture(*part, *rows, symbols, &mut targets)?;
            }
            known.extend(targets.keys().cloned());
            let limit = left / (steps.len() - i) as u32;
            let start = Instant::now();
            let schedules = self.schedules.clone();
            let mut search = Search {
                device: &*self.device,
                schedules: &schedules,
                chooser: schedules.chooser(&*self.device),
                symbols: vec![],
                tokens,
                of: targets.len(),
                targets,
                start,
                until: start + limit,
                tuned: vec![],
                seen,
                error: None,
            };
            let mut library = Library::default();
            for (part, rows, symbols) in &pieces {
                search.symbols = symbols.iter().map(|(name, value)| (name.to_string(), *value)).collect();
                self.modules_by(*part, *rows as i64, &mut library, &mut search)?;
            }
            if let Some(error) = search.error {
                return Err(error);
            }
            report.kernels.extend(search.tuned);
            left = left.saturating_sub(start.elapsed());
            let again = profile::Again::new(self, tokens, apart, depth)?;
            let (before, after) = self.beside(&again, profile.step())?;
            report.steps.push(Step { tokens, before, after });
        }
        report.kernels.sort_by(|a, b| b.share.total_cmp(&a.share));
        Ok(report)
    }

    fn key(&self, text: &str) -> Key {
        Schedules::key(text, self.device.target().name())
    }

    /// The kernels of a profile that are not `known`.
    fn targets(&self, profile: &profile::Profile, known: &BTreeSet<Key>) -> BTreeMap<Key, Target> {
        let mut targets: BTreeMap<Key, Target> = BTreeMap::new();
        for k in &profile.kernels {
            let of = k.parts.len() as f64;
            for (compiled, explained) in &k.parts {
                let key = self.key(&compiled.text);
                if known.contains(&key) {
                    continue;
                }
                let target = targets.entry(key).or_insert_with(|| Target {
                    name: compiled.linear.name.clone(),
                    words: format!("{} · {}", explained.words, explained.shape),
                    calls: 0,
                    share: 0.0,
                    seconds: k.seconds,
                    launches: vec![],
                });
                target.calls += k.calls;
                target.share += profile.share(k) / of;
            }
        }
        targets
    }

    /// Runs a plan launch by launch and keeps what the targets are given: weights and caches as they lie, copies of
    /// activations, whose memory the next launches use again.
    fn capture(
        &mut self,
        part: Part,
        rows: usize,
        symbols: &[(&str, i64)],
        targets: &mut BTreeMap<Key, Target>,
    ) -> Result<(), Error> {
        let modules = self.modules(part, rows as i64)?;
        let launches = modules.iter().flat_map(|(m, _)| m.launches());
        let keys = launches.map(|l| l.parts.iter().map(|k| self.key(&k.text)).collect());
        let keys: Vec<Vec<Key>> = keys.collect();
        let layers = self.layers.iter().chain(&self.draft).flat_map(|l| &l.caches);
        let lasting = self.weights.values().flatten().chain(layers).chain([&self.cos, &self.sin]);
        let lasting: HashSet<u64> = lasting.map(base).collect();
        let most = KEPT / targets.len().max(1);
        let Some(prepared) = self.plans.get(&(part, rows)) else { return Ok(()) };
        let names = prepared.plan().symbols();
        let value = |name: &String| symbols.iter().find(|s| s.0 == name).map_or(0, |s| s.1);
        let values: Vec<i64> = names.iter().map(value).collect();
        let mut kept: BTreeMap<Key, usize> = BTreeMap::new();
        for (launch, keys) in prepared.plan().launches().iter().zip(keys) {
            for ((_, args), key) in launch.parts().zip(keys) {
                let Some(target) = targets.get_mut(&key) else { continue };
                let passing = |s: &&Slice| !lasting.contains(&base(s));
                let bytes = args.iter().filter(passing).map(Slice::len).sum::<usize>();
                let kept = kept.entry(key).or_default();
                let enough = (ROUND / target.seconds.max(1e-9)).ceil() as usize;
                let n = target.launches.len();
                if n == 0 || n < enough && *kept + bytes <= most {
                    *kept += bytes;
                    let copy = |s: &Slice| if passing(&s) { copied(&*self.device, s) } else { Ok(s.clone()) };
                    target.launches.push(args.iter().map(copy).collect::<Result<_, _>>()?);
                }
            }
            let mut plan = Plan::new(names.iter().cloned());
            plan.push(launch.program(), launch.args().to_vec())?;
            self.device.run(&mut self.device.prepare(plan)?, &values)?;
        }
        Ok(())
    }

    /// Times the step under the plans that there are, which are those from before, in turns with new ones.
    fn beside(&mut self, again: &profile::Again, about: f64) -> Result<(f64, f64), Error> {
        let mut plans = std::mem::take(&mut self.plans);
        self.library = Library::default();
        let mut times = [vec![], vec![]];
        let rounds = ((BESIDE / about.max(1e-9)) as usize).clamp(3, ROUNDS);
        for round in 0..=rounds {
            for t in &mut times {
                std::mem::swap(&mut self.plans, &mut plans);
                let seconds = again.step(self)?;
                if round > 0 {
                    t.push(seconds);
                }
            }
        }
        let [before, after] = times.map(|mut t| {
            t.sort_by(f64::total_cmp);
            t[t.len() / 2]
        });
        Ok((before, after))
    }
}

fn base(slice: &Slice) -> u64 {
    slice.buffer().whole().address()
}

fn copied(device: &dyn Device, slice: &Slice) -> Result<Slice, runtime::device::Error> {
    let mut bytes = vec![0; slice.len()];
    device.read(slice, 0, &mut bytes)?;
    let copy = device.alloc(bytes.len().max(1))?.slice(0, bytes.len())?;
    device.write(&copy, 0, &bytes)?;
    Ok(copy)
}

/// Tunes each target when a plan asks for its schedule.
struct Search<'a> {
    device: &'a dyn Device,
    schedules: &'a Schedules,
    chooser: Chooser<'a>,
    symbols: Vec<(String, i64)>,
    tokens: usize,
    of: usize,
    targets: BTreeMap<Key, Target>,
    start: Instant,
    until: Instant,
    tuned: Vec<Tuned>,
    seen: &'a mut dyn FnMut(&Progress),
    error: Option<Error>,
}

impl Choose for Search<'_> {
    fn choose(&mut self, kernel: &Kernel) -> Vec<Opt> {
        let current = self.chooser.choose(kernel);
        let key = Schedules::key(&kernel.to_string(), self.device.target().name());
        let left: f64 = self.targets.values().map(|t| t.share).sum();
        let Some(target) = self.targets.remove(&key) else { return current };
        let now = Instant::now();
        // What earlier kernels left over is shared out; what they took too much is not taken from the others.
        let part = (target.share / left.max(1e-12)).min(1.0);
        let rest = self.until.saturating_duration_since(now).mul_f64(part);
        let until = now + rest.max((self.until - self.start).mul_f64(target.share.min(1.0)));
        if self.error.is_some() || target.launches.is_empty() {
            return current;
        }
        match self.tune(kernel, key, &target, &current, until) {
            Ok(better) => better.unwrap_or(current),
            Err(error) => {
                self.error = Some(error);
                current
            }
        }
    }

    fn instead(&mut self, kernel: &Kernel, refused: &runtime::device::Error) -> Option<Vec<Opt>> {
        self.chooser.instead(kernel, refused)
    }
}

impl Search<'_> {
    /// The new schedule, if there is a better one.
    fn tune(
        &mut self,
        kernel: &Kernel,
        key: Key,
        target: &Target,
        current: &[Opt],
        until: Instant,
    ) -> Result<Option<Vec<Opt>>, Error> {
        let trial = Trial { device: self.device, kernel, launches: &target.launches, symbols: &self.symbols };
        let plain = heuristic::propose(kernel, &self.device.target().caps());
        let (done, of, start) = (self.tuned.len(), self.of, self.start);
        let (mut tried, seen) = (0, &mut *self.seen);
        let in_time = Instant::now() < until;
        let found = in_time.then(|| {
            trial.search(&[current.to_vec(), plain.clone(), vec![]], until, &mut |p| {
                tried = p.tried;
                let words = target.words.as_str();
                let (first, best, elapsed) = (p.first, p.best, start.elapsed());
                seen(&Progress { done, of, words, tried, first, best, elapsed });
            })
        });
        let mut tuned = Tuned {
            tokens: self.tokens,
            name: target.name.clone(),
            words: target.words.clone(),
            calls: target.calls,
            share: target.share,
            tried,
            before: target.seconds,
            after: target.seconds,
            old: kernel::show(current),
            outcome: Outcome::Kept,
        };
        let mut better = None;
        if let Some(new) = found.flatten().filter(|f| f != current) {
            // A schedule from the cache may not apply any more; then the plan runs under the heuristic's.
            let old = if trial.compare(current, current, 0).is_ok() { current } else { &plain };
            let [before, after] = trial.compare(old, &new, ROUNDS)?;
            let faster = |i: usize| after[i] < before[i] * (1.0 - GAIN);
            if faster(0) && faster(ROUNDS / 2) {
                match trial.difference(&plain, &new)? {
                    Some(why) => tuned.outcome = Outcome::Wrong { schedule: kernel::show(&new), why },
                    None => {
                        (tuned.before, tuned.after) = (before[ROUNDS / 2], after[ROUNDS / 2]);
                        tuned.outcome = Outcome::Better(kernel::show(&new));
                        self.schedules.put(key, &new);
                        self.schedules.save()?;
                        better = Some(new);
                    }
                }
            }
        }
        self.tuned.push(tuned);
        Ok(better)
    }
}
