//! Schedules by measuring. In: a kernel and the memory that it really runs on, several times over where several layers have
//! it. Out: the fastest schedule that a search finds in time, held against another one for speed and for results.
//!
//! Launches follow each other over different memory, so that what does not fit a cache in a whole step is not timed from it.

use crate::buffer::Slice;
use crate::device::{Device, Error, Prepared, Program};
use crate::plan::Plan;
use crate::step::load;
use compiler::dtype::Scalar;
use compiler::interp::tensor::Array;
use compiler::kernel::{Opt, search};
use compiler::schedule::Kernel;
use compiler::work::work;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Schedules that the search goes on with.
const WIDTH: usize = 3;

/// How many times as many instructions as another schedule's are not worth a try: such a kernel may run for minutes.
const WORK: f64 = 8.0;

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

impl Trial<'_, '_> {
    fn prepare(&self, program: &Program, launches: &[Vec<Slice>]) -> Result<Prepared, Error> {
        let mut plan = Plan::new(self.symbols.iter().map(|s| s.0.clone()));
        for args in launches {
            plan.push(program, args.clone())?;
        }
        self.device.prepare(plan)
    }
    fn values(&self) -> Vec<i64> {
        self.symbols.iter().map(|s| s.1).collect()
    }
    /// Seconds of a launch, on average.
    fn round(&self, prepared: &mut Prepared) -> Result<f64, Error> {
        let times = self.device.time(prepared, &self.values())?;
        Ok(times.iter().sum::<Duration>().as_secs_f64() / times.len().max(1) as f64)
    }

    /// Instructions of a launch.
    fn work(&self, program: &Program) -> f64 {
        let linear = program.linear();
        let value = |name: &String| self.symbols.iter().find(|s| s.0 == *name).map_or(0, |s| s.1);
        work(linear, &linear.symbols.iter().map(value).collect::<Vec<_>>()).instructions as f64
    }

    /// Seconds of a launch of a program; what is much slower than `best` is not timed with care.
    fn time(&self, program: &Program, best: f64) -> Result<f64, Error> {
        let one = self.round(&mut self.prepare(program, &self.launches[..1])?)?;
        if one > 4.0 * best {
            return Ok(one);
        }
        let mut all = self.prepare(program, self.launches)?;
        let mut fastest = f64::INFINITY;
        for _ in 0..3 {
            fastest = fastest.min(self.round(&mut all)?);
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
            let program =
                load(self.device, self.kernel, opts).ok().map(|program| (self.work(&program), program));
            let seconds = program.filter(|(work, _)| *work <= WORK * least).and_then(|(work, program)| {
                least = least.min(work);
                self.time(&program, p.best).ok()
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
        let ready = |opts| self.prepare(&load(self.device, self.kernel, opts)?, self.launches);
        let mut prepared = [ready(one)?, ready(other)?];
        let mut times = [vec![], vec![]];
        for round in 0..=rounds {
            for (p, t) in prepared.iter_mut().zip(&mut times) {
                let seconds = self.round(p)?;
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
        let program = load(self.device, self.kernel, one)?;
        let types = program.linear().buffers.clone();
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
        for program in [program, load(self.device, self.kernel, other)?] {
            self.device.run(&mut self.prepare(&program, self.launches)?, &self.values())?;
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
