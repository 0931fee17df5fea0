//! A model on a thread of its own that answers many requests at once. In: jobs. Out: what happens to each, as a stream of
//! events.
//!
//! Jobs join and leave between steps. An answer does not depend on what is answered beside it. Dropping a [`Stream`] frees
//! what its job held within one step.

mod answer;
mod pages;
mod schedule;
#[cfg(test)]
mod tests;

use crate::generate::{self, Reason, Spoken, Stats, opens_reasoning};
use crate::model::Model;
use crate::paged::PAGE;
use crate::stream::Piece;
use crate::tokenizer::Tokenizer;
use answer::{End, Sequence};
use schedule::Scheduler;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Sequences in one step.
    pub parallel: usize,
    /// Requests that wait at most.
    pub queue: usize,
}

pub struct Job {
    pub prompt: Vec<u32>,
    pub request: generate::Request,
    /// So many alternatives beside each chosen token.
    pub logprobs: Option<usize>,
    /// May use, and leave, what prompts have in common.
    pub reuse: bool,
    pub constraint: Option<Box<dyn Constraint>>,
    /// Events come as they happen; otherwise all of them at the end, and nobody is woken for a token.
    pub streamed: bool,
}

/// Decides which tokens may come next.
pub trait Constraint: Send {
    /// Makes impossible what may not come.
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String>;
    fn accept(&mut self, token: u32) -> Result<(), String>;
}

#[derive(Clone, Debug)]
pub enum Event {
    Started {
        prompt_tokens: usize,
        reused_tokens: usize,
    },
    /// Pieces may be none: half a character, or the beginning of a stop string.
    Token {
        id: u32,
        pieces: Vec<Piece>,
        logprobs: Option<Logprobs>,
    },
    /// The last one, with what was held back.
    Done {
        reason: Reason,
        pieces: Vec<Piece>,
        stats: Stats,
    },
    Failed(String),
}

/// Natural logarithms, of the model's own distribution.
#[derive(Clone, PartialEq, Debug)]
pub struct Logprobs {
    pub chosen: f32,
    pub top: Vec<(u32, f32)>,
}

#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    #[error("the prompt is empty: there is nothing to continue")]
    Empty,
    #[error(
        "the prompt has {tokens} tokens and the context holds {context}; give a larger --ctx or a shorter prompt"
    )]
    TooLong { tokens: usize, context: usize },
    #[error("{waiting} requests are waiting already")]
    Full { waiting: usize },
    #[error("answers are being made")]
    Busy,
    #[error("the server is stopping")]
    Stopped,
}

/// Counters since the start, and how things stand.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub requests: u64,
    pub finished: u64,
    pub cancelled: u64,
    pub failed: u64,
    pub running: usize,
    pub waiting: usize,
    pub prompt_tokens: u64,
    pub reused_tokens: u64,
    pub generated_tokens: u64,
    /// In the model, for prompts and for answers.
    pub prompt_seconds: f64,
    pub generation_seconds: f64,
    pub first_token: Histogram,
    pub pages_total: usize,
    pub pages_used: usize,
    /// Kept pages that made room for others.
    pub evicted: u64,
    /// Sequences that lost their pages to older ones for a while.
    pub preempted: u64,
}

/// Seconds, counted by upper bounds.
#[derive(Clone, Debug)]
pub struct Histogram {
    pub bounds: &'static [f64],
    /// One more than there are bounds.
    pub counts: Vec<u64>,
    pub sum: f64,
}

const BOUNDS: &[f64] = &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { bounds: BOUNDS, counts: vec![0; BOUNDS.len() + 1], sum: 0.0 }
    }
}

impl Histogram {
    pub fn add(&mut self, seconds: f64) {
        let at = self.bounds.iter().position(|b| seconds <= *b).unwrap_or(self.bounds.len());
        self.counts[at] += 1;
        self.sum += seconds;
    }
}

/// What happens to a job, in order. Dropping it cancels the job.
pub struct Stream(UnboundedReceiver<Event>);

impl Stream {
    /// Waits; not for use in asynchronous code.
    pub fn recv(&mut self) -> Option<Event> {
        self.0.blocking_recv()
    }

    pub async fn next(&mut self) -> Option<Event> {
        self.0.recv().await
    }
}

type Work = Box<dyn FnOnce(&mut Model) + Send>;

enum Task {
    Answer(Job, UnboundedSender<Event>),
    Inspect(Work),
    Stop,
}

/// What handles and the thread both see.
#[derive(Default)]
struct Shared(Mutex<State>);

#[derive(Default)]
struct State {
    stopped: bool,
    /// Jobs that have not ended.
    inside: usize,
    metrics: Metrics,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn update(&self, with: impl FnOnce(&mut Metrics)) {
        with(&mut self.state().metrics);
    }

    fn ended(&self, stats: &Stats, end: &End) {
        let mut state = self.state();
        state.inside -= 1;
        let m = &mut state.metrics;
        match end {
            End::Because(Reason::Cancelled) => m.cancelled += 1,
            End::Because(_) => m.finished += 1,
            End::Error(_) => m.failed += 1,
        }
        m.prompt_tokens += stats.prompt_tokens as u64;
        m.reused_tokens += stats.reused_tokens as u64;
        m.generated_tokens += stats.generated_tokens as u64;
        if stats.generated_tokens > 0 {
            m.first_token.add(stats.first_token.as_secs_f64());
        }
    }
}

/// Cloning gives another handle to the same model.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
    tasks: Sender<Task>,
    worker: Arc<Mutex<Option<JoinHandle<()>>>>,
    tokenizer: Arc<Tokenizer>,
    context: usize,
    limits: Limits,
}

impl Engine {
    /// All sequences share the pages that the model has: see [`Model::reserve`].
    pub fn start(model: Model, tokenizer: Arc<Tokenizer>, limits: Limits) -> Engine {
        let context = model.context().min(model.pages() * PAGE);
        let (tasks, receiver) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        shared.update(|m| m.pages_total = model.pages());
        let (of, words) = (shared.clone(), tokenizer.clone());
        let worker = std::thread::spawn(move || {
            let scheduler = Scheduler::new(model, limits.parallel);
            // Whoever waits for an answer hears of a panic by the end of the stream.
            let result = catch_unwind(AssertUnwindSafe(|| work(scheduler, &of, &words, &receiver, context)));
            of.state().stopped = true;
            drop(result);
        });
        let worker = Arc::new(Mutex::new(Some(worker)));
        Engine { shared, tasks, worker, tokenizer, context, limits }
    }

    /// Returns at once.
    pub fn submit(&self, job: Job) -> Result<Stream, Refusal> {
        if job.prompt.is_empty() {
            return Err(Refusal::Empty);
        }
        let (tokens, context) = (job.prompt.len(), self.context);
        if tokens > context {
            return Err(Refusal::TooLong { tokens, context });
        }
        let (events, receiver) = unbounded_channel();
        let mut state = self.shared.state();
        if state.stopped {
            return Err(Refusal::Stopped);
        }
        let Limits { parallel, queue } = self.limits;
        if state.inside >= parallel + queue {
            return Err(Refusal::Full { waiting: state.inside.saturating_sub(parallel) });
        }
        self.tasks.send(Task::Answer(job, events)).map_err(|_| Refusal::Stopped)?;
        state.inside += 1;
        state.metrics.requests += 1;
        Ok(Stream(receiver))
    }

    /// Gives the model to `work` if nothing else wants it, and waits. What was cached is forgotten.
    pub fn inspect<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Model) -> R + Send + 'static,
    ) -> Result<R, Refusal> {
        let (send, receive) = mpsc::channel();
        {
            let state = self.shared.state();
            if state.stopped {
                return Err(Refusal::Stopped);
            }
            if state.inside > 0 {
                return Err(Refusal::Busy);
            }
            let work: Work = Box::new(move |model| drop(send.send(work(model))));
            self.tasks.send(Task::Inspect(work)).map_err(|_| Refusal::Stopped)?;
        }
        receive.recv().map_err(|_| if self.shared.state().stopped { Refusal::Stopped } else { Refusal::Busy })
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Most positions of one sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    pub fn metrics(&self) -> Metrics {
        let state = self.shared.state();
        let waiting = state.inside.saturating_sub(state.metrics.running);
        Metrics { waiting, ..state.metrics.clone() }
    }

    /// Cancels everything and ends the thread.
    pub fn stop(&self) {
        self.shared.state().stopped = true;
        let _ = self.tasks.send(Task::Stop);
        let worker = self.worker.lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(worker) = worker {
            let _ = worker.join();
        }
    }
}

/// Takes tasks between steps until there are no handles, or one says stop.
fn work<'t>(
    mut scheduler: Scheduler<Model, Spoken<'t>>,
    shared: &Shared,
    tokenizer: &'t Tokenizer,
    tasks: &Receiver<Task>,
    context: usize,
) {
    let mut order = 0;
    loop {
        let mut task = tasks.try_recv();
        if matches!(task, Err(TryRecvError::Empty)) && scheduler.idle() {
            if scheduler.prepare() {
                continue;
            }
            task = tasks.recv().map_err(|_| TryRecvError::Disconnected);
        }
        match task {
            Ok(Task::Answer(job, events)) => {
                order += 1;
                let thinking = job.request.split_reasoning.then(|| opens_reasoning(tokenizer, &job.prompt));
                let voice = Spoken::new(tokenizer, &job.prompt);
                scheduler.add(Sequence::new(order, job, events, thinking, voice, context));
            }
            Ok(Task::Inspect(work)) if scheduler.idle() => {
                let _ = catch_unwind(AssertUnwindSafe(|| work(&mut scheduler.model)));
                scheduler.model.truncate(0);
                scheduler.pages.clear();
            }
            // Another job came first: whoever asks is told that the model is busy.
            Ok(Task::Inspect(_)) => {}
            Ok(Task::Stop) => return scheduler.cancel(shared),
            Err(TryRecvError::Empty) => scheduler.step(shared),
            Err(TryRecvError::Disconnected) if scheduler.idle() => return,
            Err(TryRecvError::Disconnected) => scheduler.step(shared),
        }
    }
}
