//! Schedules by measuring. In: a kernel and the memory that it really runs on, several times over where several layers have
//! it. Out: the fastest schedule that a search finds in time, held against another one for speed and for results.
//!
//! Launches follow each other over different memory, so that what does not fit a cache in a whole step is not timed from it.

use crate::buffer::Slice;
use crate::device::{Device, Error, Prepared, Program};
use crate::plan::Plan;
use crate::step::{compile, load, phases_on};
use compiler::dtype::Scalar;
use compiler::graph::Ex;
use compiler::interp::tensor::Array;
use compiler::kernel::{Opt, search};
use compiler::linear::Linear;
use compiler::schedule::{Kernel, buffer_bytes};
use compiler::work::work;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Schedules that the search goes on with.
const WIDTH: usize = 3;

/// How many times as many instructions as another schedule's are not worth a try: such a kernel may run for minutes.
const WORK: f64 = 8.0;

/// Instructions that a driver assembles in a second or two; a few times as many take it a quarter of a minute.
const LONG: usize = 6000;

/// A kernel on memory.
pub struct Trial<'a, 'g> {
    pub device: &'a dyn Device,
    pub kernel: &'a Kernel<'g>,
    /// The arguments of each launch.
    pub launches: &'a [Vec<Slice>],
    /// Of the kernel or of what it is a part of.
    pub symbols: &'a [(String, i64)],
}

/// How far a search is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Schedules that were timed or refused.
    pub tried: usize,
    /// Seconds of a launch under the first schedule and under the best so far.
    pub first: f64,
    pub best: f64,
}

/// The kernel under a schedule.
struct Ready<P> {
    /// What each phase has become, with its arguments: those of the kernel by number, or what lies between the phases.
    phases: Vec<(P, Vec<Option<usize>>)>,
    between: usize,
}

impl Trial<'_, '_> {
    fn compile(&self, opts: &[Opt]) -> Result<Ready<Linear>, Error> {
        let given: Vec<Ex> = self.kernel.buffers().into_iter().map(|(b, _)| b).collect();
        let mut compiled = Ready { phases: vec![], between: 0 };
        for phase in phases_on(self.device, self.kernel, opts)? {
            let own = phase.kernel.buffers().into_iter();
            let from = own.map(|(b, _)| given.iter().position(|g| *g == b)).collect();
            compiled.phases.push((compile(self.device, &phase)?, from));
            compiled.between += phase.between.map_or(0, buffer_bytes);
        }
        Ok(compiled)
    }
    fn load(&self, compiled: Ready<Linear>) -> Result<Ready<Program>, Error> {
        let one = |(linear, from)| Ok((load(self.device, linear)?, from));
        let phases = compiled.phases.into_iter().map(one).collect::<Result<_, Error>>()?;
        Ok(Ready { phases, between: compiled.between })
    }
    fn prepare(&self, ready: &Ready<Program>, launches: &[Vec<Slice>]) -> Result<Prepared, Error> {
        let mut plan = Plan::new(self.symbols.iter().map(|s| s.0.clone()));
        let between = self.device.alloc(ready.between.max(1))?.whole();
        for args in launches {
            for (program, from) in &ready.phases {
                let given = from.iter().map(|i| i.map_or(&between, |i| &args[i]).clone());
                plan.push(program, given.collect())?;
            }
        }
        self.device.prepare(plan)
    }
    fn values(&self) -> Vec<i64> {
        self.symbols.iter().map(|s| s.1).collect()
    }
    /// Seconds of a launch, on average of so many.
    fn round(&self, prepared: &mut Prepared, launches: usize) -> Result<f64, Error> {
        let times = self.device.time(prepared, &self.values())?;
        Ok(times.iter().sum::<Duration>().as_secs_f64() / launches.max(1) as f64)
    }

    /// Instructions of a launch.
    fn work(&self, compiled: &Ready<Linear>) -> f64 {
        let value = |name: &String| self.symbols.iter().find(|s| s.0 == *name).map_or(0, |s| s.1);
        let one = |linear: &Linear| {
            work(linear, &linear.symbols.iter().map(value).collect::<Vec<_>>()).instructions as f64
        };
        compiled.phases.iter().map(|(linear, _)| one(linear)).sum()
    }

    /// Seconds of a launch; what is much slower than `best` is not timed with care.
    fn time(&self, ready: &Ready<Program>, best: f64) -> Result<f64, Error> {
        let one = self.round(&mut self.prepare(ready, &self.launches[..1])?, 1)?;
        if one > 4.0 * best {
            return Ok(one);
        }
        let mut all = self.prepare(ready, self.launches)?;
        let mut fastest = f64::INFINITY;
        for _ in 0..3 {
            fastest = fastest.min(self.round(&mut all, self.launches.len())?);
            if fastest > 1.25 * best {
                break;
            }
        }
        Ok(fastest)
    }

    /// The best schedule that is found before `until`, looked for from `starts` on; none if none of these runs.
    pub fn search(
        &self,
        starts: &[Vec<Opt>],
        until: Instant,
        seen: &mut dyn FnMut(Progress),
    ) -> Option<Vec<Opt>> {
        let mut p = Progress { tried: 0, first: f64::INFINITY, best: f64::INFINITY };
        let mut least = f64::INFINITY;
        let measure = |opts: &[Opt]| {
            if p.tried > 0 && Instant::now() >= until {
                return ControlFlow::Break(());
            }
            let compiled = self.compile(opts).ok().map(|c| (self.work(&c), c));
            let length =
                |c: &Ready<Linear>| c.phases.iter().map(|(linear, _)| linear.code.len()).sum::<usize>();
            let worth =
                compiled.filter(|(work, c)| p.tried == 0 || *work <= WORK * least && length(c) <= LONG);
            let seconds = worth.and_then(|(work, compiled)| {
                least = least.min(work);
                self.time(&self.load(compiled).ok()?, p.best).ok()
            });
            p.tried += 1;
            if let Some(s) = seconds {
                p.best = p.best.min(s);
                p.first = if p.first.is_finite() { p.first } else { s };
            }
            seen(p);
            ControlFlow::Continue(seconds)
        };
        let caps = self.device.target().caps();
        search::search(self.kernel, &caps, starts, WIDTH, measure).map(|(opts, _)| opts)
    }

    /// Seconds of a launch under two schedules that take turns, each in ascending order.
    pub fn compare(&self, one: &[Opt], other: &[Opt], rounds: usize) -> Result<[Vec<f64>; 2], Error> {
        let ready = |opts| self.prepare(&self.load(self.compile(opts)?)?, self.launches);
        let mut prepared = [ready(one)?, ready(other)?];
        let mut times = [vec![], vec![]];
        for round in 0..=rounds {
            for (p, t) in prepared.iter_mut().zip(&mut times) {
                let seconds = self.round(p, self.launches.len())?;
                // The first of each warms up.
                if round > 0 {
                    t.push(seconds);
                }
            }
        }
        times.iter_mut().for_each(|t| t.sort_by(f64::total_cmp));
        Ok(times)
    }

    /// What differs between the results of two schedules, if anything does beyond rounding. Memory is as before
    /// afterwards.
    pub fn difference(&self, one: &[Opt], other: &[Opt]) -> Result<Option<String>, Error> {
        let types: Vec<_> = self.kernel.buffers().into_iter().map(|(b, w)| (b.dtype(), w)).collect();
        let written = || {
            let each = self.launches.iter().flat_map(|args| args.iter().zip(&types));
            each.filter(|(_, (_, written))| *written).map(|(slice, (dtype, _))| (slice, dtype.scalar))
        };
        let read = || -> Result<Vec<Vec<u8>>, Error> {
            let one = |(slice, _): (&Slice, Scalar)| {
                let mut bytes = vec![0; slice.len()];
                self.device.read(slice, 0, &mut bytes).map(|()| bytes)
            };
            written().map(one).collect()
        };
        let before = read()?;
        let mut results = vec![];
        for opts in [one, other] {
            self.device
                .run(&mut self.prepare(&self.load(self.compile(opts)?)?, self.launches)?, &self.values())?;
            results.push(read()?);
            for ((slice, _), bytes) in written().zip(&before) {
                self.device.write(slice, 0, bytes)?;
            }
        }
        let pairs = results[0].iter().zip(&results[1]).zip(written());
        Ok(pairs.into_iter().find_map(|((want, got), (_, scalar))| differs(scalar, want, got)))
    }
}

/// Sums in another order differ by rounding, and so do the bytes that they are quantised to.
fn differs(scalar: Scalar, want: &[u8], got: &[u8]) -> Option<String> {
    if want == got {
        return None;
    }
    let whole = |bytes: &[u8]| {
        let n = bytes.len() / scalar.bytes();
        Array::from_bytes(scalar, &[n], &bytes[..n * scalar.bytes()])
    };
    let (want, got) = (whole(want), whole(got));
    let pairs = want.data.iter().zip(&got.data).enumerate();
    if !scalar.is_float() {
        let slack = if scalar.bytes() == 1 { 1 } else { 0 };
        return pairs
            .map(|(i, (w, g))| (i, w.as_int(), g.as_int()))
            .find(|(_, w, g)| (w - g).abs() > slack)
            .map(|(i, w, g)| format!("element {i} is {g}, not {w}"));
    }
    let finite = want.data.iter().map(|w| w.as_float().abs()).filter(|w| w.is_finite());
    let most = finite.fold(0.0, f32::max);
    let tolerance = if scalar.bytes() < 4 { 1e-2 } else { 2e-3 } * most;
    let same = |w: f32, g: f32| w == g || w.is_nan() && g.is_nan() || (w - g).abs() <= tolerance;
    pairs
        .map(|(i, (w, g))| (i, w.as_float(), g.as_float()))
        .find(|&(_, w, g)| !same(w, g))
        .map(|(i, w, g)| format!("element {i} is {g}, not {w} (the largest is {most})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::slot;
    use crate::interp::InterpDevice;
    use compiler::codegen::Target;
    use compiler::codegen::ptx::Ptx;
    use compiler::graph::Graph;
    use compiler::kernel::{Action, heuristic, show};
    use compiler::pipeline;
    use compiler::quant::{Format, Layout};
    use compiler::rng::Rng;
    use compiler::schedule::Grain;
    use compiler::table::{Case, environment};

    /// A sum of 4096 products under the heuristic's schedule and in pieces, with memory between the two kernels.
    #[test]
    fn a_split_sum_runs_and_agrees() {
        let gpu = Ptx::new(90).caps();
        for device in [InterpDevice::default(), InterpDevice::like(gpu)] {
            let (g, caps) = (Graph::new(), device.target().caps());
            let case = Case::linear(Format::by_name("F32").unwrap(), 3, 4096, 1);
            let built = case.build(&g, Layout::Rows);
            let env = environment(&built, &mut Rng::new(1));
            let program = pipeline::schedule(&g, &built.outputs, Grain::of(&caps));
            let [kernel] = &program.kernels[..] else { panic!("{} kernels", program.kernels.len()) };
            let args = kernel.buffers().into_iter().map(|(b, _)| {
                let slice = device.alloc(buffer_bytes(b)).unwrap().whole();
                let given = built.inputs.iter().find(|(t, _)| t.0 == b);
                let bytes = given.map(|(t, _)| env.buffers[&slot(*t)].clone());
                device.write(&slice, 0, &bytes.unwrap_or_default()).unwrap();
                slice
            });
            let launches = [args.collect()];
            let trial = Trial { device: &device, kernel, launches: &launches, symbols: &[] };
            let plain = heuristic::propose(kernel, &caps);
            let splits: Vec<_> =
                search::neighbours(kernel, &caps, &plain).filter(|o| o[0].action == Action::Split).collect();
            assert!(!splits.is_empty());
            for split in splits.iter().filter(|o| trial.compile(o).is_ok()) {
                assert_eq!(trial.compile(split).unwrap().phases.len(), 2, "{}", show(split));
                assert_eq!(trial.difference(&plain, split).unwrap(), None, "{}", show(split));
                assert_eq!(trial.compare(&plain, split, 1).unwrap()[1].len(), 1);
            }
        }
    }

    #[test]
    fn rounding_is_forgiven_and_nothing_else() {
        let floats = |v: &[f32]| v.iter().flat_map(|f| f.to_le_bytes()).collect::<Vec<u8>>();
        let of = |a: &[f32], b: &[f32]| differs(Scalar::F32, &floats(a), &floats(b));
        assert_eq!(of(&[1.0, -4.0], &[1.001, -4.0]), None);
        assert_eq!(of(&[f32::NAN, 1.0], &[f32::NAN, 1.0]), None);
        assert!(of(&[1.0, -4.0], &[1.1, -4.0]).unwrap().contains("element 0"));
        assert!(of(&[1.0, -4.0], &[1.0, f32::NAN]).unwrap().contains("element 1"));
        assert_eq!(differs(Scalar::I8, &[5, 255], &[6, 255]), None);
        assert!(differs(Scalar::I8, &[5], &[7]).is_some());
        assert!(differs(Scalar::I32, &[5, 0, 0, 0], &[6, 0, 0, 0]).is_some());
    }
}
