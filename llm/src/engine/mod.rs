//! A model on a thread of its own. In: jobs. Out: what happens to each, as a stream of events.
//!
//! Jobs are answered in the order in which they come, one after the other. Dropping a [`Stream`] cancels its job: the
//! thread looks between two tokens.

use crate::generate::{self, Reason, Stats};
use crate::model::Model;
use crate::sample::Sampler;
use crate::stream::{Piece, Splitter};
use crate::tokenizer::{Decoder, Tokenizer};
use crate::tools;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;
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
    pub prompt_seconds: f64,
    pub generation_seconds: f64,
    pub first_token: Histogram,
    pub pages_total: usize,
    pub pages_used: usize,
    pub evicted: u64,
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
pub struct Stream {
    events: UnboundedReceiver<Event>,
    cancel: Arc<AtomicBool>,
}

impl Stream {
    /// Waits; not for use in asynchronous code.
    pub fn recv(&mut self) -> Option<Event> {
        self.events.blocking_recv()
    }

    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
    }
}

type Work = Box<dyn FnOnce(&mut Model) + Send>;

enum Task {
    Answer { job: Job, events: UnboundedSender<Event>, cancel: Arc<AtomicBool> },
    Inspect(Work),
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    stopped: bool,
    metrics: Metrics,
    /// Of the job that runs.
    cancel: Option<Arc<AtomicBool>>,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    worker: Mutex<Option<JoinHandle<()>>>,
    tokenizer: Arc<Tokenizer>,
    context: usize,
    limits: Limits,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Cloning gives another handle to the same model.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

impl Engine {
    pub fn start(model: Model, tokenizer: Arc<Tokenizer>, limits: Limits) -> Engine {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            changed: Condvar::new(),
            worker: Mutex::new(None),
            tokenizer,
            context: model.context(),
            limits,
        });
        let of = shared.clone();
        let worker = std::thread::spawn(move || work(&of, model));
        *shared.worker.lock().unwrap_or_else(|e| e.into_inner()) = Some(worker);
        Engine { shared }
    }

    /// Returns at once.
    pub fn submit(&self, job: Job) -> Result<Stream, Refusal> {
        if job.prompt.is_empty() {
            return Err(Refusal::Empty);
        }
        let (tokens, context) = (job.prompt.len(), self.shared.context);
        if tokens > context {
            return Err(Refusal::TooLong { tokens, context });
        }
        let (events, receiver) = unbounded_channel();
        let cancel = Arc::new(AtomicBool::new(false));
        let mut queue = self.shared.queue();
        if queue.stopped {
            return Err(Refusal::Stopped);
        }
        if queue.metrics.waiting >= self.shared.limits.queue.max(1) {
            return Err(Refusal::Full { waiting: queue.metrics.waiting });
        }
        queue.metrics.requests += 1;
        queue.metrics.waiting += 1;
        queue.tasks.push_back(Task::Answer { job, events, cancel: cancel.clone() });
        self.shared.changed.notify_one();
        Ok(Stream { events: receiver, cancel })
    }

    /// Gives the model to `work` if nothing else wants it, and waits. What was cached is forgotten.
    pub fn inspect<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Model) -> R + Send + 'static,
    ) -> Result<R, Refusal> {
        let (send, receive) = mpsc::channel();
        {
            let mut queue = self.shared.queue();
            if queue.stopped {
                return Err(Refusal::Stopped);
            }
            if queue.metrics.running > 0 || !queue.tasks.is_empty() {
                return Err(Refusal::Busy);
            }
            let work: Work = Box::new(move |model| drop(send.send(work(model))));
            queue.tasks.push_back(Task::Inspect(work));
            self.shared.changed.notify_one();
        }
        receive.recv().map_err(|_| Refusal::Stopped)
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.shared.tokenizer
    }

    /// Most positions of one sequence.
    pub fn context(&self) -> usize {
        self.shared.context
    }

    pub fn metrics(&self) -> Metrics {
        self.shared.queue().metrics.clone()
    }

    /// Cancels everything and ends the thread.
    pub fn stop(&self) {
        {
            let mut queue = self.shared.queue();
            queue.stopped = true;
            queue.tasks.clear();
            queue.metrics.waiting = 0;
            if let Some(cancel) = &queue.cancel {
                cancel.store(true, Ordering::Relaxed);
            }
            self.shared.changed.notify_one();
        }
        let worker = self.shared.worker.lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(worker) = worker {
            let _ = worker.join();
        }
    }
}

fn work(shared: &Shared, mut model: Model) {
    let mut held = vec![];
    loop {
        let task = {
            let mut queue = shared.queue();
            loop {
                if queue.stopped {
                    return;
                }
                match queue.tasks.pop_front() {
                    Some(task) => {
                        if let Task::Answer { cancel, .. } = &task {
                            queue.cancel = Some(cancel.clone());
                            queue.metrics.waiting -= 1;
                            queue.metrics.running = 1;
                        }
                        break task;
                    }
                    None => queue = shared.changed.wait(queue).unwrap_or_else(|e| e.into_inner()),
                }
            }
        };
        match task {
            Task::Inspect(work) => {
                held.clear();
                let _ = catch_unwind(AssertUnwindSafe(|| work(&mut model)));
                model.truncate(0);
            }
            Task::Answer { job, events, cancel } => {
                let tokenizer = &shared.tokenizer;
                let mut run = Run { model: &mut model, held: &mut held, tokenizer, events: &events, cancel };
                let answered = catch_unwind(AssertUnwindSafe(|| run.answer(job)));
                let event = answered.unwrap_or_else(|_| {
                    held.clear();
                    model.truncate(0);
                    Event::Failed("the model's thread met an error of its own".into())
                });
                let mut queue = shared.queue();
                queue.cancel = None;
                count(&mut queue.metrics, &event);
                drop(queue);
                let _ = events.send(event);
            }
        }
    }
}

fn count(metrics: &mut Metrics, event: &Event) {
    metrics.running = 0;
    let Event::Done { reason, stats, .. } = event else {
        metrics.failed += 1;
        return;
    };
    match reason {
        Reason::Cancelled => metrics.cancelled += 1,
        _ => metrics.finished += 1,
    }
    metrics.prompt_tokens += stats.prompt_tokens as u64;
    metrics.reused_tokens += stats.reused_tokens as u64;
    metrics.generated_tokens += stats.generated_tokens as u64;
    metrics.prompt_seconds += stats.prompt_time.as_secs_f64();
    metrics.generation_seconds += stats.generation_time.as_secs_f64();
    if stats.generated_tokens > 0 {
        metrics.first_token.add(stats.first_token.as_secs_f64());
    }
}

/// One answer.
struct Run<'a> {
    model: &'a mut Model,
    held: &'a mut Vec<u32>,
    tokenizer: &'a Tokenizer,
    events: &'a UnboundedSender<Event>,
    cancel: Arc<AtomicBool>,
}

impl Run<'_> {
    fn answer(&mut self, job: Job) -> Event {
        match self.run(job) {
            Ok(done) => done,
            Err(text) => Event::Failed(text),
        }
    }

    fn run(&mut self, job: Job) -> Result<Event, String> {
        let Job { prompt, request, logprobs, reuse, mut constraint } = job;
        let began = Instant::now();
        let same = self.held.iter().zip(&prompt).take_while(|(a, b)| a == b).count();
        let same = if reuse { same.min(prompt.len() - 1) } else { 0 };
        self.held.truncate(same);
        self.model.truncate(same);
        let mut stats = Stats { prompt_tokens: prompt.len(), reused_tokens: same, ..Stats::default() };
        let _ = self.events.send(Event::Started { prompt_tokens: prompt.len(), reused_tokens: same });

        let mut decoder = Decoder::new(self.tokenizer, false);
        decoder.push(prompt[prompt.len() - 1]);
        let thinking = request.split_reasoning.then(|| opens_reasoning(self.tokenizer, &prompt));
        let mut splitter = Splitter::new(&request.stop, thinking);
        let mut sampler = Sampler::new(&request.sampling);

        let mut row = None;
        for chunk in prompt[same..].chunks(self.model.chunk().max(1)) {
            if self.cancelled() {
                return Ok(Event::Done { reason: Reason::Cancelled, pieces: vec![], stats });
            }
            row = Some(self.feed(chunk)?);
        }
        stats.prompt_time = began.elapsed();

        let mut history = prompt;
        let reason = loop {
            if self.cancelled() {
                break Reason::Cancelled;
            }
            if request.max_tokens == Some(stats.generated_tokens) {
                break Reason::Length;
            }
            if history.len() > self.model.context() {
                break Reason::Context;
            }
            let mut logits = match row.take() {
                Some(row) => row,
                None => self.feed(&history[history.len() - 1..])?,
            };
            let plain = logprobs.map(|n| (n, logits.clone()));
            if let Some(constraint) = &mut constraint {
                constraint.mask(&mut logits)?;
            }
            let id = sampler.sample(&mut logits, &history);
            if let Some(constraint) = &mut constraint {
                constraint.accept(id)?;
            }
            if stats.generated_tokens == 0 {
                stats.first_token = began.elapsed();
            }
            stats.generated_tokens += 1;
            stats.generation_time = began.elapsed() - stats.first_token;
            history.push(id);
            let ends = self.tokenizer.ends().binary_search(&id).is_ok();
            let mut pieces = vec![];
            if !ends {
                let text = match tools::tag(self.tokenizer.piece(id)) {
                    Some(tag) => tag.into(),
                    None => decoder.push(id),
                };
                splitter.push(&text, &mut pieces);
            }
            let logprobs = plain.map(|(n, row)| logprobs_of(&row, id, n));
            let _ = self.events.send(Event::Token { id, pieces, logprobs });
            if ends {
                break Reason::End;
            }
            if let Some(stop) = splitter.stopped() {
                break Reason::Stop(stop.into());
            }
        };
        let mut pieces = vec![];
        splitter.push(&decoder.finish(), &mut pieces);
        splitter.finish(&mut pieces);
        Ok(Event::Done { reason, pieces, stats })
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, String> {
        match self.model.feed(tokens) {
            Ok(row) => {
                self.held.extend_from_slice(tokens);
                Ok(row)
            }
            Err(e) => {
                self.model.truncate(self.held.len());
                Err(e.to_string())
            }
        }
    }

    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

/// Whether a prompt's last words are an opening tag.
fn opens_reasoning(tokenizer: &Tokenizer, prompt: &[u32]) -> bool {
    let last = &prompt[prompt.len().saturating_sub(12)..];
    let bytes: Vec<u8> = last.iter().flat_map(|&id| tokenizer.piece(id)).copied().collect();
    String::from_utf8_lossy(&bytes).trim_end().ends_with("<think>")
}

fn logprobs_of(logits: &[f32], chosen: u32, n: usize) -> Logprobs {
    let most = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - most).exp()).sum();
    let log = |l: f32| (f64::from(l - most) - sum.ln()) as f32;
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let by = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let n = n.min(ids.len());
    if n > 0 && n < ids.len() {
        ids.select_nth_unstable_by(n, by);
    }
    ids.truncate(n);
    ids.sort_unstable_by(by);
    let top = ids.into_iter().map(|id| (id, log(logits[id as usize]))).collect();
    Logprobs { chosen: log(logits[chosen as usize]), top }
}
