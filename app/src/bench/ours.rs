//! One model on one device, measured. In: a test. Out: seconds of a run, GB/s that the device reads meanwhile.
//!
//! Tokens are random, from a fixed seed, and fed one at a time where a test decodes: nothing is sampled. Filling the cache
//! to a test's depth is not timed.

use super::Stop;
use super::cases::{Kind, Test};
use crate::args::{ActivationsName, DeviceArgs, DeviceName};
use crate::{device, model};
use anyhow::Result;
use compiler::rng::Rng;
use llm::model::{Model, Options};
use llm::paged::Row;
use llm::size::Size;
use runtime::bandwidth::{Reader, working_set};
use runtime::device::Device;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub struct Ours {
    device: Arc<dyn Device>,
    model: Model,
    /// None where reading memory says nothing, or there is no room for it.
    reader: Option<Reader>,
    rng: Rng,
    /// Pages of the sequences that run at once.
    tables: Vec<Vec<u32>>,
    pub load: Duration,
}

/// Tokens that are fed between two looks at whether to stop.
const FILL: usize = 512;

impl Ours {
    /// Opens and loads the model, with room for all tests.
    pub fn load(
        on: &DeviceArgs,
        origin: &model::Origin,
        activations: Option<ActivationsName>,
        tests: &[Test],
    ) -> Result<Ours> {
        let device: Arc<dyn Device> = Arc::from(device::open(on)?);
        let context = tests.iter().map(Test::context).max();
        let activations = activations.map(Into::into);
        let options = Options { context, activations, drafts: false, schedules: model::schedules() };
        let began = Instant::now();
        let model = model::load_on(device.clone(), origin.open()?, options)?;
        let load = began.elapsed();
        let reader = match on.device {
            _ if tests.iter().all(|t| t.kind == Kind::Prompt) => None,
            DeviceName::Cpu => Some(Reader::new(&*device, working_set())),
            DeviceName::Cuda(_) => Some(Reader::new(&*device, 4 << 30)),
            DeviceName::Interp => None,
        };
        let reader = match reader {
            Some(Err(e)) => {
                eprintln!("glimmer: the read bandwidth is not measured: {e}");
                None
            }
            Some(Ok(reader)) => Some(reader),
            None => None,
        };
        Ok(Ours { device, model, reader, rng: Rng::new(1), tables: vec![], load })
    }

    /// The code that runs, e.g. `x86-avx512-vnni-amx`.
    pub fn backend(&self) -> String {
        self.device.target().name().into()
    }

    pub fn size(&self) -> Result<Size> {
        Ok(self.model.size()?)
    }

    /// GB/s of one pass over memory; None where it is not measured.
    pub fn bandwidth(&mut self) -> Result<Option<f64>> {
        let device = &*self.device;
        Ok(self.reader.as_mut().map(|r| r.pass(device)).transpose()?)
    }

    /// Fills the cache to the test's depth and does once what only the first run has to do, as llama-bench does: a whole
    /// prompt, or one token. False if it was stopped.
    pub fn prepare(&mut self, test: &Test, stop: &Stop) -> Result<bool> {
        if test.sequences > 1 {
            self.tables = self.model.tables(test.sequences, test.context())?;
            for i in 0..test.sequences {
                if stop.asked() {
                    return Ok(false);
                }
                let tokens = self.tokens(test.depth);
                self.model.fill(&tokens, &self.tables[i])?;
            }
        } else {
            self.model.truncate(test.depth);
            while self.model.len() < test.depth {
                if stop.asked() {
                    return Ok(false);
                }
                let tokens = self.tokens(FILL.min(test.depth - self.model.len()));
                self.model.advance(&tokens)?;
            }
        }
        let once = match test.kind {
            Kind::Prompt => *test,
            Kind::Decode => Test { tokens: 1, ..*test },
        };
        self.run(&once)?;
        Ok(!stop.asked())
    }

    /// One run of a prepared test.
    pub fn run(&mut self, test: &Test) -> Result<Duration> {
        let tokens = self.tokens(test.tokens * test.sequences);
        self.model.truncate(test.depth);
        let began = Instant::now();
        match test.kind {
            Kind::Prompt => self.advance(&tokens)?,
            Kind::Decode if test.sequences > 1 => {
                for (i, step) in tokens.chunks(test.sequences).enumerate() {
                    let (each, pos) = (step.iter().zip(&self.tables), test.depth + i);
                    let rows: Vec<Row> = each.map(|(&token, table)| Row { token, pos, table }).collect();
                    self.model.batch(&rows)?;
                    (0..rows.len()).try_for_each(|i| self.model.scores(i, Some(1)).map(drop))?;
                }
            }
            Kind::Decode => {
                for token in tokens.chunks(1) {
                    self.advance(token)?;
                }
            }
        }
        Ok(began.elapsed())
    }

    /// Tokens of one sequence, to what a next one is chosen by, the best.
    fn advance(&mut self, tokens: &[u32]) -> Result<()> {
        self.model.advance(tokens)?;
        self.model.scores(0, Some(1))?;
        Ok(())
    }

    fn tokens(&mut self, n: usize) -> Vec<u32> {
        let vocab = self.model.vocab();
        (0..n).map(|_| self.rng.below(vocab) as u32).collect()
    }
}
