//! One request while it is answered. In: logits of its next position. Out: events to whoever asked.
//!
//! `computed` positions of the history have rows in the pages of `table`; the rest is still to be run. A sequence that lost
//! its pages is the same as before once they are computed again: nothing that was said is said twice.

use super::{Constraint, Event, Job, Logprobs};
use crate::generate::{Reason, Saying, Stats, Voice};
use crate::sample::{Scores, log_probabilities};
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;

pub struct Sequence<V> {
    /// When it came, in order.
    pub order: u64,
    pub saying: Saying<V>,
    pub table: Vec<u32>,
    pub computed: usize,
    /// Pages of the table whose content is known to others.
    pub sealed: usize,
    /// Up to here positions are computed as a prompt's.
    pub prompt_end: usize,
    pub reuse: bool,
    pub stats: Stats,
    logprobs: Option<usize>,
    constraint: Option<Box<dyn Constraint>>,
    events: UnboundedSender<Event>,
    streamed: bool,
    /// What is not yet sent.
    held: Vec<Event>,
    began: Instant,
    started: Option<Instant>,
}

/// How a sequence came to its end.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    Because(Reason),
    Error(String),
}

impl<V: Voice> Sequence<V> {
    pub fn new(
        order: u64,
        job: Job,
        events: UnboundedSender<Event>,
        thinking: Option<bool>,
        voice: V,
        context: usize,
    ) -> Sequence<V> {
        let stats = Stats { prompt_tokens: job.prompt.len(), ..Stats::default() };
        Sequence {
            order,
            saying: Saying::new(job.prompt, &job.request, thinking, voice, context),
            table: vec![],
            computed: 0,
            sealed: 0,
            prompt_end: 0,
            reuse: job.reuse,
            stats,
            logprobs: job.logprobs,
            constraint: job.constraint,
            events,
            streamed: job.streamed,
            held: vec![],
            began: Instant::now(),
            started: None,
        }
    }

    /// Has whoever asked gone away?
    pub fn abandoned(&self) -> bool {
        self.events.is_closed()
    }

    /// Its pages are there. Said once, however often it must begin again.
    pub fn start(&mut self, reused: usize) {
        if self.started.is_none() {
            self.started = Some(Instant::now());
            self.stats.reused_tokens = reused;
            let prompt_tokens = self.stats.prompt_tokens;
            self.tell(Event::Started { prompt_tokens, reused_tokens: reused });
        }
    }

    fn tell(&mut self, event: Event) {
        self.held.push(event);
        if self.streamed {
            self.send();
        }
    }

    fn send(&mut self) {
        for event in self.held.drain(..) {
            let _ = self.events.send(event);
        }
    }

    /// How many of the best tokens are all that the next is chosen among, if these are few.
    pub fn few(&self) -> Option<usize> {
        let all = self.logprobs.is_some() || self.constraint.is_some();
        self.saying.few().filter(|_| !all)
    }

    /// Chooses the next token by the scores of the last position.
    pub fn next(&mut self, mut scores: Scores) -> Option<End> {
        let first = self.saying.ids().is_empty();
        if first && let Some(started) = self.started {
            self.stats.prompt_time = started.elapsed();
        }
        if let Some(full) = self.saying.full() {
            return Some(End::Because(full));
        }
        let mut raw = None;
        if let Scores::All(logits) = &mut scores {
            raw = self.logprobs.map(|n| (n, logits.to_vec()));
            if let Some(Err(why)) = self.constraint.as_mut().map(|c| c.mask(logits)) {
                return Some(End::Error(why));
            }
        }
        let id = self.saying.choose(scores);
        let logprobs = raw.map(|(n, raw)| {
            let (chosen, top) = log_probabilities(&raw, id, n);
            Logprobs { chosen, top }
        });
        if let Some(Err(why)) = self.constraint.as_mut().map(|c| c.accept(id)) {
            return Some(End::Error(why));
        }
        if first {
            self.stats.first_token = self.began.elapsed();
        }
        self.stats.generation_time = self.began.elapsed() - self.stats.first_token;
        let mut pieces = vec![];
        let end = self.saying.push(id, &mut pieces);
        self.stats.generated_tokens = self.saying.ids().len();
        self.tell(Event::Token { id, pieces, logprobs });
        end.or_else(|| self.saying.full()).map(End::Because)
    }

    /// The last word.
    pub fn end(mut self, end: End) {
        let event = match end {
            End::Because(reason) => {
                let mut pieces = vec![];
                self.saying.finish(&mut pieces);
                Event::Done { reason, pieces, stats: self.stats }
            }
            End::Error(why) => Event::Failed(why),
        };
        self.held.push(event);
        self.send();
    }
}
