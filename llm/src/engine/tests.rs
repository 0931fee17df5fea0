//! The scheduler over a model that is told apart from others by what it says: many requests, few pages.

use super::answer::Sequence;
use super::schedule::{Scheduler, Steps};
use super::*;
use crate::generate::{Request, Voice};
use crate::model;
use crate::paged::{Row, Stretch};
use crate::sample::{Sampling, Scores};
use compiler::rng::Rng;

/// Remembers what each row of its cache was computed from: the next token depends on all tokens before, so that a wrong page
/// shows. Where it is not uniform, rows of prompts and of batches differ.
struct Fake {
    rows: Vec<u64>,
    pages: usize,
    context: usize,
    uniform: bool,
    steps: Vec<(usize, usize)>,
    logits: Vec<Vec<f32>>,
    fails: bool,
}

const VOCAB: u32 = 50;

impl Fake {
    fn new(pages: usize, uniform: bool) -> Fake {
        let context = (pages * PAGE).min(400);
        Fake {
            rows: vec![0; pages * PAGE],
            pages,
            context,
            uniform,
            steps: vec![],
            logits: vec![],
            fails: false,
        }
    }

    fn one(&mut self, token: u32, pos: usize, table: &[u32], salt: u64) -> Vec<f32> {
        let at = |p: usize| table[p / PAGE] as usize * PAGE + p % PAGE;
        let salt = if self.uniform { 0 } else { salt };
        self.rows[at(pos)] = mix(u64::from(token) << 20 ^ pos as u64 ^ salt << 40);
        let seen = (0..=pos).fold(7, |h, p| mix(h ^ self.rows[at(p)]));
        let mut logits = vec![0.0; VOCAB as usize];
        logits[(seen % u64::from(VOCAB)) as usize] = 9.0;
        logits
    }
}

fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ x >> 29
}

impl Steps for Fake {
    fn pages(&self) -> usize {
        self.pages
    }
    fn widest(&self) -> usize {
        8
    }
    fn chunk(&self) -> usize {
        64
    }
    fn uniform(&self) -> bool {
        self.uniform
    }
    fn prompts(&mut self, pieces: &[Stretch]) -> Result<Vec<Option<Vec<f32>>>, model::Error> {
        let tokens = pieces.iter().map(|p| p.tokens.len()).sum();
        assert!(pieces.iter().all(|p| !p.tokens.is_empty()) && tokens <= 64);
        self.steps.push((0, tokens));
        let mut logits = vec![];
        for p in pieces {
            let mut last = vec![];
            for (i, &t) in p.tokens.iter().enumerate() {
                last = self.one(t, p.pos + i, p.table, 1);
            }
            logits.push(p.wanted.then_some(last));
        }
        Ok(logits)
    }
    fn batch(&mut self, rows: &[Row]) -> Result<(), model::Error> {
        assert!(!rows.is_empty() && rows.len() <= 8);
        self.steps.push((rows.len(), 0));
        if self.fails {
            return Err(model::Error::Context { context: 1, wanted: 2 });
        }
        self.logits = rows.iter().map(|r| self.one(r.token, r.pos, r.table, 2)).collect();
        Ok(())
    }
    fn scores(&mut self, i: usize, _few: Option<usize>) -> Result<Scores<'_>, model::Error> {
        Ok(Scores::All(&mut self.logits[i]))
    }
    fn prepare(&mut self, _: usize) -> Result<bool, model::Error> {
        Ok(false)
    }
}

/// Token 0 ends a turn.
struct Numbers;

impl Voice for Numbers {
    fn ends(&self, id: u32) -> bool {
        id == 0
    }
    fn say(&mut self, id: u32) -> String {
        format!("{id} ")
    }
    fn rest(&mut self) -> String {
        String::new()
    }
}

struct Setup {
    scheduler: Scheduler<Fake, Numbers>,
    shared: Shared,
    order: u64,
}

impl Setup {
    fn new(fake: Fake, parallel: usize) -> Setup {
        Setup { scheduler: Scheduler::new(fake, parallel), shared: Shared::default(), order: 0 }
    }

    fn ask(&mut self, job: Job) -> Stream {
        let (events, receiver) = unbounded_channel();
        self.order += 1;
        self.shared.state().inside += 1;
        let context = self.scheduler.model.context;
        self.scheduler.add(Sequence::new(self.order, job, events, None, Numbers, context));
        Stream(receiver)
    }

    fn finish(&mut self) {
        for _ in 0..100_000 {
            if self.scheduler.idle() {
                return;
            }
            self.scheduler.step(&self.shared);
        }
        panic!("the scheduler does not come to an end");
    }
}

fn job(prompt: Vec<u32>, max_tokens: usize) -> Job {
    let request =
        Request { sampling: Sampling::greedy(), max_tokens: Some(max_tokens), ..Request::default() };
    Job { prompt, request, logprobs: None, reuse: true, constraint: None, streamed: true }
}

/// The tokens of an answer that came to an end, and how.
fn answer(stream: &mut Stream) -> (Vec<u32>, Option<Reason>) {
    let (mut ids, mut text, mut said) = (vec![], String::new(), String::new());
    while let Ok(event) = stream.0.try_recv() {
        match event {
            Event::Started { .. } => assert!(ids.is_empty()),
            Event::Token { id, pieces, .. } => {
                ids.push(id);
                if id > 0 {
                    said += &format!("{id} ");
                }
                text.extend(pieces.into_iter().map(|p| p.text));
            }
            Event::Done { reason, pieces, stats } => {
                text.extend(pieces.into_iter().map(|p| p.text));
                assert_eq!((text, stats.generated_tokens), (said, ids.len()));
                return (ids, Some(reason));
            }
            Event::Failed(why) => panic!("{why}"),
        }
    }
    (ids, None)
}

/// What a request alone is answered.
fn alone(prompt: &[u32], max_tokens: usize, uniform: bool) -> (Vec<u32>, Option<Reason>) {
    let mut setup = Setup::new(Fake::new(13, uniform), 1);
    let mut stream = setup.ask(job(prompt.to_vec(), max_tokens));
    setup.finish();
    answer(&mut stream)
}

fn prompt(rng: &mut Rng) -> Vec<u32> {
    // Few beginnings, many ends.
    let beginning = rng.below(3) as u32;
    let n = 32 * rng.below(4) + rng.below(30);
    let mut prompt: Vec<u32> = (0..n as u32).map(|i| 1 + (i + beginning) % 40).collect();
    prompt.extend((0..1 + rng.below(20)).map(|_| 1 + rng.below(40) as u32));
    prompt
}

#[test]
fn what_is_not_streamed_comes_at_the_end() {
    let prompt = (1..).map(|t| vec![t, 4]).find(|p| alone(p, 9, true).0.len() == 9).unwrap();
    let mut setup = Setup::new(Fake::new(13, true), 2);
    let mut streamed = setup.ask(job(prompt.clone(), 9));
    let mut whole = setup.ask(Job { streamed: false, ..job(prompt.clone(), 9) });
    (0..3).for_each(|_| setup.scheduler.step(&setup.shared));
    assert!(streamed.0.try_recv().is_ok());
    assert!(whole.0.try_recv().is_err());
    setup.finish();
    assert_eq!(answer(&mut whole), alone(&prompt, 9, true));
}

#[test]
fn answers_do_not_depend_on_their_company() {
    for (pages, parallel, uniform, seed) in
        [(200, 8, true, 1), (200, 3, false, 2), (14, 8, true, 3), (14, 8, false, 4), (13, 5, false, 5)]
    {
        let mut rng = Rng::new(seed);
        let mut setup = Setup::new(Fake::new(pages, uniform), parallel);
        let mut asked = vec![];
        let mut evicted = false;
        for _ in 0..120 {
            let (prompt, most) = (prompt(&mut rng), rng.below(150));
            let stream = setup.ask(job(prompt.clone(), most));
            asked.push((prompt, most, stream));
            for _ in 0..rng.below(30) {
                setup.scheduler.step(&setup.shared);
            }
            if rng.one_in(5) {
                asked.swap_remove(rng.below(asked.len()));
            }
            evicted |= setup.scheduler.pages.evicted() > 0;
        }
        setup.finish();
        for (prompt, most, mut stream) in asked {
            assert_eq!(answer(&mut stream), alone(&prompt, most, uniform), "{} tokens, {most}", prompt.len());
        }
        let pages_left = &setup.scheduler.pages;
        assert_eq!(pages_left.available(), pages, "no sequence holds a page");
        assert_eq!(evicted, pages < 100);
        let state = setup.shared.state();
        assert_eq!((state.inside, state.metrics.running, state.metrics.waiting), (0, 0, 0));
        assert_eq!(state.metrics.preempted > 0, pages < 100, "{:?}", state.metrics);
    }
}

#[test]
fn the_new_part_of_a_conversation_is_computed() {
    let mut setup = Setup::new(Fake::new(40, true), 4);
    let first: Vec<u32> = (0..70).map(|i| 1 + i % 40).collect();
    let mut stream = setup.ask(job(first.clone(), 40));
    setup.finish();
    let (said, _) = answer(&mut stream);
    let turn = [&first[..], &said, &[3, 4, 5]].concat();
    let mut again = setup.ask(job(turn.clone(), 5));
    setup.finish();
    let Ok(Event::Started { reused_tokens, .. }) = again.0.try_recv() else { panic!("no start") };
    assert_eq!(reused_tokens, (first.len() + said.len() - 1) / PAGE * PAGE);
    let mut unshared = setup.ask(Job { reuse: false, ..job(turn.clone(), 5) });
    setup.finish();
    let Ok(Event::Started { reused_tokens: 0, .. }) = unshared.0.try_recv() else { panic!("reused") };
    assert_eq!(answer(&mut again), answer(&mut unshared));
}

#[test]
fn a_long_prompt_leaves_room_for_answers() {
    let mut setup = Setup::new(Fake::new(40, true), 4);
    let _answering = setup.ask(job(vec![1, 2, 3], 300));
    setup.scheduler.step(&setup.shared);
    let _long = setup.ask(job((0..390).map(|i| 1 + i % 40).collect(), 1));
    setup.scheduler.model.steps.clear();
    for _ in 0..7 {
        setup.scheduler.step(&setup.shared);
    }
    let steps = &setup.scheduler.model.steps;
    assert_eq!(steps[..4], [(1, 0), (0, 64), (1, 0), (0, 64)], "{steps:?}");
}

#[test]
fn whoever_leaves_is_gone_within_a_step() {
    let mut setup = Setup::new(Fake::new(40, true), 2);
    let streams: Vec<Stream> = (0..6).map(|_| setup.ask(job(vec![1, 2, 3], 300))).collect();
    setup.scheduler.step(&setup.shared);
    assert_eq!(setup.shared.state().metrics.running, 2);
    drop(streams);
    setup.scheduler.step(&setup.shared);
    assert!(setup.scheduler.idle());
    assert_eq!(setup.shared.state().metrics.cancelled, 6);
    assert_eq!(setup.scheduler.pages.available(), 40);
}

#[test]
fn errors_end_those_that_they_concern() {
    let mut setup = Setup::new(Fake::new(40, true), 2);
    let mut stream = setup.ask(job(vec![1, 2, 3], 300));
    setup.scheduler.model.fails = true;
    setup.finish();
    let last = std::iter::from_fn(|| stream.0.try_recv().ok()).last();
    assert!(matches!(last, Some(Event::Failed(why)) if why.contains("--ctx")));
    setup.scheduler.model.fails = false;
    let mut stream = setup.ask(job(vec![1, 2, 3], 5));
    setup.finish();
    assert!(answer(&mut stream).1.is_some());
    assert_eq!(setup.scheduler.pages.available(), 40);
}

struct Never;

impl Constraint for Never {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String> {
        logits.fill(f32::NEG_INFINITY);
        logits[7] = 0.0;
        Ok(())
    }
    fn accept(&mut self, token: u32) -> Result<(), String> {
        if token == 7 { Ok(()) } else { Err(format!("{token} was forbidden")) }
    }
}

#[test]
fn constraints_choose_and_logprobs_are_the_models_own() {
    let mut setup = Setup::new(Fake::new(40, true), 2);
    let constrained = Job { constraint: Some(Box::new(Never)), logprobs: Some(1), ..job(vec![1, 2], 3) };
    let mut stream = setup.ask(constrained);
    setup.finish();
    let events: Vec<Event> = std::iter::from_fn(|| stream.0.try_recv().ok()).collect();
    let tokens: Vec<(u32, &Logprobs)> = events
        .iter()
        .filter_map(|e| match e {
            Event::Token { id, logprobs: Some(l), .. } => Some((*id, l)),
            _ => None,
        })
        .collect();
    assert_eq!(tokens.len(), 3);
    for (id, logprobs) in tokens {
        assert_eq!((id, logprobs.top.len()), (7, 1));
        let (best, probability) = logprobs.top[0];
        assert!(best == 7 || logprobs.chosen < probability - 8.0, "{logprobs:?}");
    }
}
