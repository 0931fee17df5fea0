//! Which sequences run in a step. In: requests as they come. Out: steps of the model, one batch of answers and some of the
//! prompts at a time.
//!
//! The oldest request always gets on: pages that run out are taken from the youngest, which goes back to the queue and is
//! computed again when there is room. What a sequence says does not depend on any of this.

use super::answer::{End, Sequence};
use super::pages::Pages;
use super::{Metrics, Shared};
use crate::generate::{Reason, Voice};
use crate::model::{self, Model};
use crate::paged::{PAGE, Row, Stretch};
use crate::sample::Scores;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What the engine needs of a model.
pub trait Steps {
    fn pages(&self) -> usize;
    /// Most rows of a batch.
    fn widest(&self) -> usize;
    /// Most tokens of prompts in one step.
    fn chunk(&self) -> usize;
    /// Does a token's row come out alike in a prompt and in a batch?
    fn uniform(&self) -> bool;
    /// The logits of each piece's last token, where they are wanted.
    fn prompts(&mut self, pieces: &[Stretch]) -> Result<Vec<Option<Vec<f32>>>, model::Error>;
    fn batch(&mut self, rows: &[Row]) -> Result<(), model::Error>;
    /// What follows a row of the last batch is chosen by these.
    fn scores(&mut self, i: usize, few: Option<usize>) -> Result<Scores<'_>, model::Error>;
    /// Does something ahead of time for so many sequences; false if nothing is left to do.
    fn prepare(&mut self, sequences: usize) -> Result<bool, model::Error>;
}

impl Steps for Model {
    fn pages(&self) -> usize {
        Model::pages(self)
    }
    fn widest(&self) -> usize {
        Model::widest(self)
    }
    fn chunk(&self) -> usize {
        self.prompt_chunk()
    }
    fn uniform(&self) -> bool {
        Model::uniform(self)
    }
    fn prompts(&mut self, pieces: &[Stretch]) -> Result<Vec<Option<Vec<f32>>>, model::Error> {
        Model::prompts(self, pieces)
    }
    fn batch(&mut self, rows: &[Row]) -> Result<(), model::Error> {
        Model::batch(self, rows)
    }
    fn scores(&mut self, i: usize, few: Option<usize>) -> Result<Scores<'_>, model::Error> {
        Model::scores(self, i, few)
    }
    fn prepare(&mut self, sequences: usize) -> Result<bool, model::Error> {
        Model::prepare(self, sequences)
    }
}

/// Seconds that answers wait at most, about, for a piece of a prompt.
const PATIENCE: f64 = 0.25;

pub struct Scheduler<M, V> {
    pub model: M,
    pub pages: Pages,
    /// By age.
    running: Vec<Sequence<V>>,
    waiting: VecDeque<Sequence<V>>,
    parallel: usize,
    /// Seconds for a token of the last piece of a prompt.
    pace: Option<f64>,
    preempted: u64,
    prompt_time: Duration,
    generation_time: Duration,
}

impl<M: Steps, V: Voice> Scheduler<M, V> {
    pub fn new(model: M, parallel: usize) -> Scheduler<M, V> {
        Scheduler {
            pages: Pages::new(model.pages()),
            parallel: parallel.clamp(1, model.widest()),
            model,
            running: vec![],
            waiting: VecDeque::new(),
            pace: None,
            preempted: 0,
            prompt_time: Duration::ZERO,
            generation_time: Duration::ZERO,
        }
    }

    pub fn add(&mut self, sequence: Sequence<V>) {
        self.waiting.push_back(sequence);
    }

    pub fn idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Does something that a later step need not do then; false if nothing is left.
    pub fn prepare(&mut self) -> bool {
        // What fails here fails again where it is needed, and is told there.
        self.model.prepare(self.parallel).unwrap_or(false)
    }

    /// One batch of answers, and prompts as far as they fit beside it.
    pub fn step(&mut self, shared: &Shared) {
        self.sweep(shared);
        self.admit();
        self.answers(shared);
        self.prompts(shared);
        shared.update(|m| self.report(m));
    }

    fn report(&self, m: &mut Metrics) {
        (m.running, m.waiting) = (self.running.len(), self.waiting.len());
        (m.pages_total, m.pages_used) = (self.pages.total(), self.pages.used());
        (m.evicted, m.preempted) = (self.pages.evicted(), self.preempted);
        m.prompt_seconds = self.prompt_time.as_secs_f64();
        m.generation_seconds = self.generation_time.as_secs_f64();
    }

    /// Ends everything.
    pub fn cancel(&mut self, shared: &Shared) {
        for sequence in std::mem::take(&mut self.waiting) {
            self.finish(sequence, End::Because(Reason::Cancelled), shared);
        }
        for sequence in std::mem::take(&mut self.running) {
            self.finish(sequence, End::Because(Reason::Cancelled), shared);
        }
        shared.update(|m| self.report(m));
    }

    /// Ends what nobody waits for any more.
    fn sweep(&mut self, shared: &Shared) {
        let gone = |s: &Sequence<V>| s.abandoned();
        let running: Vec<_> = self.running.extract_if(.., |s| gone(s)).collect();
        let (left, stay): (VecDeque<_>, _) = std::mem::take(&mut self.waiting).into_iter().partition(gone);
        self.waiting = stay;
        for sequence in running.into_iter().chain(left) {
            self.finish(sequence, End::Because(Reason::Cancelled), shared);
        }
    }

    /// Starts waiting sequences while there are pages for all that they have and a token more.
    fn admit(&mut self) {
        while self.running.len() < self.parallel {
            let Some(mut next) = self.waiting.pop_front() else { return };
            let history = &next.saying.history;
            // The last token is run for its logits. Rows of an answer are computed as rows of an answer.
            let prompt = if self.model.uniform() { history.len() } else { next.saying.prompt().len() };
            let most = prompt.min(history.len() - 1);
            next.table = if next.reuse { self.pages.find(&history[..most]) } else { vec![] };
            let wanted = (history.len() + 1).div_ceil(PAGE).min(self.pages.total());
            if self.pages.available() < wanted - next.table.len() {
                self.pages.give(&next.table);
                next.table.clear();
                self.waiting.push_front(next);
                return;
            }
            next.sealed = next.table.len();
            next.computed = next.sealed * PAGE;
            next.prompt_end = prompt;
            while next.table.len() < wanted {
                next.table.extend(self.pages.take());
            }
            next.start(next.computed);
            let at = self.running.partition_point(|s| s.order < next.order);
            self.running.insert(at, next);
        }
    }

    /// One step of everything that is behind its prompt.
    fn answers(&mut self, shared: &Shared) {
        let widest = self.model.widest();
        let mut i = 0;
        while i < self.running.len() {
            let s = &self.running[i];
            let behind = s.computed >= s.prompt_end;
            if behind && !self.room(i) {
                // The youngest made room for itself: it is gone.
                continue;
            }
            i += 1;
        }
        let mut takes = vec![];
        let mut rows: Vec<Row> = vec![];
        for (i, s) in self.running.iter().enumerate().filter(|(_, s)| s.computed >= s.prompt_end) {
            // Every one needs a row; what has to catch up takes what is left.
            let others = self.running[i + 1..].iter().filter(|s| s.computed >= s.prompt_end).count();
            let n = (s.saying.history.len() - s.computed).min(widest - rows.len() - others);
            rows.extend((s.computed..s.computed + n).map(|pos| Row {
                token: s.saying.history[pos],
                pos,
                table: &s.table,
            }));
            takes.push((i, n, rows.len() - 1));
        }
        if rows.is_empty() {
            return;
        }
        let began = Instant::now();
        let result = self.model.batch(&rows);
        self.generation_time += began.elapsed();
        drop(rows);
        let mut ends = vec![];
        if let Err(e) = result {
            let all = takes.iter().map(|t| (t.0, End::Error(e.to_string())));
            return self.finish_all(all.collect(), shared);
        }
        for (i, n, last) in takes {
            self.ran(i, n);
            let s = &mut self.running[i];
            if s.computed < s.saying.history.len() {
                continue;
            }
            let end = match self.model.scores(last, s.few()) {
                Ok(scores) => s.next(scores),
                Err(e) => Some(End::Error(e.to_string())),
            };
            ends.extend(end.map(|end| (i, end)));
        }
        self.finish_all(ends, shared);
    }

    /// Tokens of prompts in this step: what a chunk holds, fewer if answers would wait for them too long.
    fn portion(&self) -> usize {
        let most = self.model.chunk();
        if self.running.iter().all(|s| s.computed < s.prompt_end) {
            return most;
        }
        let patient = self.pace.map_or(0, |pace| (PATIENCE / pace.max(1e-9)) as usize);
        (patient / PAGE * PAGE).clamp(PAGE.min(most), most)
    }

    /// Prompts in the order of age.
    fn prompts(&mut self, shared: &Shared) {
        let portion = self.portion();
        let mut left = portion;
        let (mut takes, mut pieces) = (vec![], vec![]);
        for (i, s) in self.running.iter().enumerate() {
            let n = s.prompt_end.saturating_sub(s.computed).min(left);
            if n == 0 {
                continue;
            }
            let tokens = &s.saying.history[s.computed..s.computed + n];
            let wanted = s.computed + n == s.saying.history.len();
            pieces.push(Stretch { tokens, pos: s.computed, table: &s.table, wanted });
            takes.push((i, n));
            left -= n;
        }
        if pieces.is_empty() {
            return;
        }
        let began = Instant::now();
        let result = self.model.prompts(&pieces);
        self.prompt_time += began.elapsed();
        self.pace = Some(began.elapsed().as_secs_f64() / (portion - left).max(PAGE) as f64);
        let mut ends = vec![];
        match result {
            Ok(logits) => {
                for ((i, n), row) in takes.into_iter().zip(logits) {
                    self.ran(i, n);
                    if let Some(end) = row.and_then(|mut row| self.running[i].next(Scores::All(&mut row))) {
                        ends.push((i, end));
                    }
                }
            }
            Err(e) => ends.extend(takes.into_iter().map(|(i, _)| (i, End::Error(e.to_string())))),
        }
        self.finish_all(ends, shared);
    }

    /// Counts positions as computed, and lets others know of pages that are complete.
    fn ran(&mut self, i: usize, n: usize) {
        let uniform = self.model.uniform();
        let s = &mut self.running[i];
        s.computed += n;
        let shared = if uniform { s.computed } else { s.computed.min(s.saying.prompt().len()) };
        while s.reuse && (s.sealed + 1) * PAGE <= shared {
            let at = s.sealed;
            let before = at.checked_sub(1).map(|b| s.table[b]);
            let content = &s.saying.history[at * PAGE..(at + 1) * PAGE];
            s.table[at] = self.pages.seal(before, s.table[at], content);
            s.sealed += 1;
        }
    }

    /// Sees to it that sequence `i` has pages for its whole history, at the cost of the youngest; false if that was itself.
    fn room(&mut self, i: usize) -> bool {
        while self.running[i].table.len() * PAGE < self.running[i].saying.history.len() {
            if let Some(page) = self.pages.take() {
                self.running[i].table.push(page);
                continue;
            }
            let Some(mut youngest) = self.running.pop() else { return false };
            self.pages.give(&std::mem::take(&mut youngest.table));
            (youngest.computed, youngest.sealed) = (0, 0);
            self.preempted += 1;
            self.waiting.push_front(youngest);
            if self.running.len() == i {
                return false;
            }
        }
        true
    }

    /// Ends sequences, given by rising index.
    fn finish_all(&mut self, ends: Vec<(usize, End)>, shared: &Shared) {
        for (i, end) in ends.into_iter().rev() {
            let sequence = self.running.remove(i);
            self.finish(sequence, end, shared);
        }
    }

    fn finish(&mut self, sequence: Sequence<V>, end: End, shared: &Shared) {
        self.pages.give(&sequence.table);
        shared.ended(&sequence.stats, &end);
        sequence.end(end);
    }
}
