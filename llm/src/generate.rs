//! Answers. In: a prompt's tokens and how to answer. Out: text as it is made, then what was made and how fast.
//!
//! The cache holds the tokens in `Generator::held`, always: a prompt that begins like them is run from the first
//! difference on. What the model was stopped in the middle of stays usable.

use crate::model::{self, Model};
use crate::sample::{Sampler, Sampling, Scores};
use crate::stream::{Piece, Splitter};
use crate::tokenizer::{Decoder, Tokenizer};
use crate::tools;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[derive(thiserror::Error, Debug)]
pub enum Error {
    #[error(transparent)]
    Model(#[from] model::Error),
    #[error("the prompt is empty: there is nothing to continue")]
    Empty,
    #[error(
        "the prompt has {tokens} tokens and the context holds {context}; give a larger --ctx or a shorter prompt"
    )]
    TooLong { tokens: usize, context: usize },
}

#[derive(Clone, Debug)]
pub struct Request {
    pub sampling: Sampling,
    /// None: until the model ends its turn or the context is full.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer and are not part of it.
    pub stop: Vec<String>,
    /// Whether `<think>` and `</think>` set reasoning apart; otherwise they are text.
    pub split_reasoning: bool,
}

impl Default for Request {
    fn default() -> Request {
        Request { sampling: Sampling::default(), max_tokens: None, stop: vec![], split_reasoning: true }
    }
}

/// Why an answer ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The model ended its turn.
    End,
    /// This stop string.
    Stop(String),
    /// As many tokens as were asked for.
    Length,
    /// No room is left in the context.
    Context,
    Cancelled,
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub text: String,
    pub reasoning: String,
    /// Every token that was sampled, the one that ended the turn included.
    pub ids: Vec<u32>,
    pub reason: Reason,
    pub stats: Stats,
}

#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Stats {
    pub prompt_tokens: usize,
    /// Of the prompt, those that the cache held already.
    pub reused_tokens: usize,
    pub generated_tokens: usize,
    /// From the request to the first token.
    pub first_token: Duration,
    /// In the model, for the prompt.
    pub prompt_time: Duration,
    /// From the first token to the last.
    pub generation_time: Duration,
}

impl Stats {
    /// Tokens of the prompt a second, without the reused ones.
    pub fn prompt_speed(&self) -> f64 {
        speed(self.prompt_tokens - self.reused_tokens, self.prompt_time)
    }

    /// Tokens a second behind the first, which is the prompt's.
    pub fn speed(&self) -> f64 {
        speed(self.generated_tokens.saturating_sub(1), self.generation_time)
    }
}

fn speed(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}

/// A model that answers.
pub struct Generator {
    model: Model,
    tokenizer: Tokenizer,
    held: Vec<u32>,
}

impl Generator {
    pub fn new(mut model: Model, tokenizer: Tokenizer) -> Generator {
        model.truncate(0);
        Generator { model, tokenizer, held: vec![] }
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Positions of the context that are taken.
    pub fn used(&self) -> usize {
        self.held.len()
    }

    /// Runs the prompt and answers it. `text` gets the answer as it comes; `cancel` is looked at between tokens and
    /// between the chunks of a long prompt.
    pub fn answer(
        &mut self,
        prompt: &[u32],
        request: &Request,
        cancel: &AtomicBool,
        text: &mut dyn FnMut(&Piece),
    ) -> Result<Answer, Error> {
        let mut voice = Spoken::new(&self.tokenizer, prompt);
        let thinking = request.split_reasoning.then(|| opens_reasoning(&self.tokenizer, prompt));
        let mut run = Run { model: &mut self.model, held: &mut self.held, cancel };
        run.answer(prompt, request, thinking, &mut voice, text)
    }
}

/// Whether a prompt's last words are an opening tag.
pub(crate) fn opens_reasoning(tokenizer: &Tokenizer, prompt: &[u32]) -> bool {
    let last = &prompt[prompt.len().saturating_sub(12)..];
    let bytes: Vec<u8> = last.iter().flat_map(|&id| tokenizer.piece(id)).copied().collect();
    String::from_utf8_lossy(&bytes).trim_end().ends_with("<think>")
}

/// What an answer needs of a model.
trait Forward {
    fn context(&self) -> usize;
    fn chunk(&self) -> usize;
    fn truncate(&mut self, len: usize);
    fn feed(&mut self, tokens: &[u32]) -> Result<(), model::Error>;
    /// What follows the last token is chosen by these.
    fn scores(&mut self, few: Option<usize>) -> Result<Scores<'_>, model::Error>;
}

impl Forward for Model {
    fn context(&self) -> usize {
        Model::context(self)
    }
    fn chunk(&self) -> usize {
        self.long_chunk()
    }
    fn truncate(&mut self, len: usize) {
        Model::truncate(self, len)
    }
    fn feed(&mut self, tokens: &[u32]) -> Result<(), model::Error> {
        self.advance(tokens)
    }
    fn scores(&mut self, few: Option<usize>) -> Result<Scores<'_>, model::Error> {
        Model::scores(self, 0, few)
    }
}

/// What an answer needs of a tokenizer.
pub(crate) trait Voice {
    fn ends(&self, id: u32) -> bool;
    fn say(&mut self, id: u32) -> String;
    /// What is left when no token follows.
    fn rest(&mut self) -> String;
}

impl<V: Voice> Voice for &mut V {
    fn ends(&self, id: u32) -> bool {
        (**self).ends(id)
    }
    fn say(&mut self, id: u32) -> String {
        (**self).say(id)
    }
    fn rest(&mut self) -> String {
        (**self).rest()
    }
}

pub(crate) struct Spoken<'a> {
    tokenizer: &'a Tokenizer,
    decoder: Decoder<'a>,
}

impl<'a> Spoken<'a> {
    pub fn new(tokenizer: &'a Tokenizer, prompt: &[u32]) -> Spoken<'a> {
        let mut decoder = Decoder::new(tokenizer, false);
        if let Some(last) = prompt.last() {
            // The answer continues the prompt: a space at its beginning is text.
            decoder.push(*last);
        }
        Spoken { tokenizer, decoder }
    }
}

impl Voice for Spoken<'_> {
    fn ends(&self, id: u32) -> bool {
        self.tokenizer.ends().binary_search(&id).is_ok()
    }

    fn say(&mut self, id: u32) -> String {
        match tools::tag(self.tokenizer.piece(id)) {
            // Some files call the tags control tokens, which have no text.
            Some(tag) => tag.into(),
            None => self.decoder.push(id),
        }
    }

    fn rest(&mut self) -> String {
        std::mem::replace(&mut self.decoder, Decoder::new(self.tokenizer, false)).finish()
    }
}

struct Run<'a, M> {
    model: &'a mut M,
    held: &'a mut Vec<u32>,
    cancel: &'a AtomicBool,
}

impl<M: Forward> Run<'_, M> {
    fn answer(
        &mut self,
        prompt: &[u32],
        request: &Request,
        thinking: Option<bool>,
        voice: &mut impl Voice,
        text: &mut dyn FnMut(&Piece),
    ) -> Result<Answer, Error> {
        let began = Instant::now();
        let context = self.model.context();
        if prompt.is_empty() {
            return Err(Error::Empty);
        }
        if prompt.len() > context {
            return Err(Error::TooLong { tokens: prompt.len(), context });
        }
        let mut saying = Saying::new(prompt.to_vec(), request, thinking, voice, context);
        let mut said = Said { pieces: vec![], answer: String::new(), reasoning: String::new(), to: text };
        let mut stats = Stats { prompt_tokens: prompt.len(), ..Stats::default() };
        stats.reused_tokens = self.reuse(prompt);
        let complete = self.prompt(&prompt[stats.reused_tokens..])?;
        stats.prompt_time = began.elapsed();

        let reason = loop {
            if !complete || self.cancelled() {
                break Reason::Cancelled;
            }
            if let Some(full) = saying.full() {
                break full;
            }
            if !saying.ids().is_empty() {
                self.feed(&saying.history[saying.history.len() - 1..])?;
            }
            let scores = self.model.scores(saying.few())?;
            let id = saying.choose(scores);
            if saying.ids().is_empty() {
                stats.first_token = began.elapsed();
            }
            stats.generation_time = began.elapsed() - stats.first_token;
            let end = saying.push(id, &mut said.pieces);
            said.give();
            if let Some(end) = end {
                break end;
            }
        };
        saying.finish(&mut said.pieces);
        said.give();
        let ids = saying.ids().to_vec();
        stats.generated_tokens = ids.len();
        Ok(Answer { text: said.answer, reasoning: said.reasoning, ids, reason, stats })
    }

    /// Forgets what the prompt does not begin with. At least one token of it is left to run, for its logits.
    fn reuse(&mut self, prompt: &[u32]) -> usize {
        let same = self.held.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let same = same.min(prompt.len() - 1);
        self.model.truncate(same);
        self.held.truncate(same);
        same
    }

    /// Runs the prompt; false if cancelled before its last token.
    fn prompt(&mut self, tokens: &[u32]) -> Result<bool, Error> {
        for chunk in tokens.chunks(self.model.chunk().max(1)) {
            if self.cancelled() {
                return Ok(false);
            }
            self.feed(chunk)?;
        }
        Ok(true)
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<(), Error> {
        match self.model.feed(tokens) {
            Ok(()) => {
                self.held.extend_from_slice(tokens);
                Ok(())
            }
            Err(e) => {
                self.model.truncate(self.held.len());
                Err(e.into())
            }
        }
    }

    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

/// An answer as it is made: logits in, tokens and their text out, until there is a reason to end.
pub(crate) struct Saying<V> {
    /// The prompt and the answer.
    pub history: Vec<u32>,
    prompt: usize,
    context: usize,
    max_tokens: Option<usize>,
    sampler: Sampler,
    splitter: Splitter,
    voice: V,
}

impl<V: Voice> Saying<V> {
    /// `thinking` says whether the prompt has opened a thought; None: tags are text.
    pub fn new(
        prompt: Vec<u32>,
        request: &Request,
        thinking: Option<bool>,
        voice: V,
        context: usize,
    ) -> Saying<V> {
        Saying {
            prompt: prompt.len(),
            history: prompt,
            context,
            max_tokens: request.max_tokens,
            sampler: Sampler::new(&request.sampling),
            splitter: Splitter::new(&request.stop, thinking),
            voice,
        }
    }

    /// Tokens of the prompt.
    pub fn prompt(&self) -> &[u32] {
        &self.history[..self.prompt]
    }

    /// The answer's tokens.
    pub fn ids(&self) -> &[u32] {
        &self.history[self.prompt..]
    }

    /// Why no token may follow.
    pub fn full(&self) -> Option<Reason> {
        if self.max_tokens == Some(self.ids().len()) {
            return Some(Reason::Length);
        }
        (self.history.len() > self.context).then_some(Reason::Context)
    }

    /// How many of the best tokens are all that the next is chosen among, if these are few.
    pub fn few(&self) -> Option<usize> {
        self.sampler.few()
    }

    pub fn choose(&mut self, scores: Scores) -> u32 {
        self.sampler.sample(scores, &self.history)
    }

    /// Adds a token; what is sure of its text, and why the answer ends with it if it does.
    pub fn push(&mut self, id: u32, out: &mut Vec<Piece>) -> Option<Reason> {
        self.history.push(id);
        if self.voice.ends(id) {
            return Some(Reason::End);
        }
        self.splitter.push(&self.voice.say(id), out);
        self.splitter.stopped().map(|stop| Reason::Stop(stop.into()))
    }

    /// What was held back.
    pub fn finish(&mut self, out: &mut Vec<Piece>) {
        self.splitter.push(&self.voice.rest(), out);
        self.splitter.finish(out);
    }
}

struct Said<'a> {
    pieces: Vec<Piece>,
    answer: String,
    reasoning: String,
    to: &'a mut dyn FnMut(&Piece),
}

impl Said<'_> {
    fn give(&mut self) {
        for piece in self.pieces.drain(..) {
            let whole = if piece.reasoning { &mut self.reasoning } else { &mut self.answer };
            whole.push_str(&piece.text);
            (self.to)(&piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens are bytes, 0 ends a turn. After a history that ends in the n-th byte of `says` comes the next one: the
    /// logits of a position depend on the token at it and on the position, so a wrong cache shows.
    struct Fake {
        says: &'static [u8],
        from: usize,
        fed: Vec<u32>,
        feeds: Vec<usize>,
        logits: Vec<f32>,
        context: usize,
        fails_at: Option<usize>,
    }

    impl Fake {
        /// Says its text behind a prompt of `from` tokens.
        fn new(says: &'static str, from: usize) -> Fake {
            Fake {
                says: says.as_bytes(),
                from,
                fed: vec![],
                feeds: vec![],
                logits: vec![],
                context: 100,
                fails_at: None,
            }
        }
    }

    impl Forward for Fake {
        fn context(&self) -> usize {
            self.context
        }
        fn chunk(&self) -> usize {
            4
        }
        fn truncate(&mut self, len: usize) {
            self.fed.truncate(len);
        }
        fn feed(&mut self, tokens: &[u32]) -> Result<(), model::Error> {
            assert!(!tokens.is_empty() && tokens.len() <= 4);
            self.fed.extend(tokens);
            self.feeds.push(tokens.len());
            if self.fails_at.is_some_and(|at| self.fed.len() > at) {
                return Err(model::Error::Context { context: 0, wanted: 0 });
            }
            assert!(self.fed.len() <= self.context, "more than the cache holds");
            self.logits = vec![0.0; 256];
            let next = self.fed.len().checked_sub(self.from).and_then(|n| self.says.get(n));
            self.logits[next.copied().unwrap_or(0) as usize] = 50.0;
            Ok(())
        }
        fn scores(&mut self, _few: Option<usize>) -> Result<Scores<'_>, model::Error> {
            Ok(Scores::All(&mut self.logits))
        }
    }

    struct Bytes;

    impl Voice for Bytes {
        fn ends(&self, id: u32) -> bool {
            id == 0
        }
        fn say(&mut self, id: u32) -> String {
            char::from(id as u8).into()
        }
        fn rest(&mut self) -> String {
            String::new()
        }
    }

    struct Setup {
        fake: Fake,
        held: Vec<u32>,
        cancel: AtomicBool,
    }

    impl Setup {
        fn new(fake: Fake) -> Setup {
            Setup { fake, held: vec![], cancel: AtomicBool::new(false) }
        }

        fn answer(&mut self, prompt: &str, request: Request) -> Result<(Answer, Vec<Piece>), Error> {
            let prompt: Vec<u32> = prompt.bytes().map(u32::from).collect();
            let mut pieces = vec![];
            let mut run = Run { model: &mut self.fake, held: &mut self.held, cancel: &self.cancel };
            let answer =
                run.answer(&prompt, &request, Some(false), &mut Bytes, &mut |p| pieces.push(p.clone()))?;
            assert_eq!(self.fake.fed, self.held, "what the cache holds is known");
            Ok((answer, pieces))
        }
    }

    #[test]
    fn an_answer_streams_and_ends() {
        let mut setup = Setup::new(Fake::new("fine", 6));
        let (answer, pieces) = setup.answer("hello?", Request::default()).unwrap();
        assert_eq!((answer.text.as_str(), answer.reason), ("fine", Reason::End));
        assert_eq!(answer.ids, [b'f', b'i', b'n', b'e', 0].map(u32::from));
        assert_eq!(pieces.len(), 4, "{pieces:?}");
        assert_eq!(setup.fake.feeds, [4, 2, 1, 1, 1, 1]);
        let stats = answer.stats;
        assert_eq!((stats.prompt_tokens, stats.reused_tokens, stats.generated_tokens), (6, 0, 5));
    }

    #[test]
    fn the_common_prefix_is_run_once() {
        let mut setup = Setup::new(Fake::new("ok", 5));
        setup.answer("abcde", Request::default()).unwrap();
        setup.fake.feeds.clear();
        // Five of the prompt and the two of the answer are there; the token that ended the turn never was.
        setup.fake.from = 8;
        let (answer, _) = setup.answer("abcdeokx", Request::default()).unwrap();
        assert_eq!((answer.text.as_str(), answer.stats.reused_tokens), ("ok", 7));
        assert_eq!(setup.fake.feeds, [1, 1, 1]);
        // The same again: the last token is run for its logits.
        let (answer, _) = setup.answer("abcdeokx", Request::default()).unwrap();
        assert_eq!((answer.text.as_str(), answer.stats.reused_tokens), ("ok", 7));
        // Another beginning: from the difference on.
        let (answer, _) = setup.answer("abXdeokx", Request::default()).unwrap();
        assert_eq!((answer.text.as_str(), answer.stats.reused_tokens), ("ok", 2));
    }

    #[test]
    fn answers_end_for_a_reason() {
        let ask =
            |request: Request| Setup::new(Fake::new("one two three", 1)).answer("?", request).unwrap().0;
        let answer = ask(Request { max_tokens: Some(3), ..Request::default() });
        assert_eq!((answer.text.as_str(), answer.reason, answer.ids.len()), ("one", Reason::Length, 3));
        let answer = ask(Request { stop: vec!["wo t".into()], ..Request::default() });
        assert_eq!((answer.text.as_str(), answer.reason), ("one t", Reason::Stop("wo t".into())));
        let answer = ask(Request { stop: vec!["threes".into()], ..Request::default() });
        assert_eq!((answer.text.as_str(), answer.reason), ("one two three", Reason::End));
        let answer = ask(Request { max_tokens: Some(0), ..Request::default() });
        assert_eq!((answer.text.as_str(), answer.reason), ("", Reason::Length));
    }

    #[test]
    fn the_context_is_used_to_its_edge() {
        let mut fake = Fake::new("one two three", 3);
        fake.context = 6;
        let mut setup = Setup::new(fake);
        let (answer, _) = setup.answer("abc", Request::default()).unwrap();
        // Three positions for the answer, and the token behind the last position.
        assert_eq!((answer.text.as_str(), answer.reason), ("one ", Reason::Context));
        assert_eq!(setup.held.len(), 6);
        let error = setup.answer("abcdefg", Request::default()).unwrap_err();
        assert!(matches!(error, Error::TooLong { tokens: 7, context: 6 }), "{error}");
        assert!(matches!(setup.answer("", Request::default()), Err(Error::Empty)));
    }

    #[test]
    fn cancelling_keeps_what_was_done() {
        let mut setup = Setup::new(Fake::new("one two", 6));
        setup.cancel = AtomicBool::new(true);
        let (answer, _) = setup.answer("abcdef", Request::default()).unwrap();
        assert_eq!((answer.text.as_str(), answer.reason, setup.held.len()), ("", Reason::Cancelled, 0));

        setup.cancel = AtomicBool::new(false);
        let prompt: Vec<u32> = b"abcdef".map(u32::from).to_vec();
        let mut run = Run { model: &mut setup.fake, held: &mut setup.held, cancel: &setup.cancel };
        let mut text = String::new();
        let answer = run.answer(&prompt, &Request::default(), None, &mut Bytes, &mut |p| {
            text.push_str(&p.text);
            setup.cancel.store(text == "one", Ordering::Relaxed);
        });
        assert_eq!(answer.unwrap().reason, Reason::Cancelled);
        assert_eq!((text.as_str(), setup.held.len()), ("one", 8), "the last token has not been run");
    }

    #[test]
    fn after_an_error_the_cache_is_known() {
        let mut setup = Setup::new(Fake::new("one", 9));
        setup.fake.fails_at = Some(5);
        assert!(setup.answer("abcdefghi", Request::default()).is_err());
        assert_eq!((setup.held.len(), setup.fake.fed.len()), (4, 4));
        setup.fake.fails_at = None;
        let (answer, _) = setup.answer("abcdefghi", Request::default()).unwrap();
        assert_eq!((answer.text.as_str(), answer.stats.reused_tokens), ("one", 4));
    }

    #[test]
    fn reasoning_comes_apart() {
        let mut setup = Setup::new(Fake::new("<think>hm</think>\nyes", 1));
        let (answer, pieces) = setup.answer("?", Request::default()).unwrap();
        assert_eq!((answer.reasoning.as_str(), answer.text.as_str()), ("hm", "yes"));
        let joined =
            |r| pieces.iter().filter(|p| p.reasoning == r).map(|p| p.text.as_str()).collect::<String>();
        assert_eq!((joined(true), joined(false)), ("hm".into(), "yes".into()));
    }

    #[test]
    fn speeds_are_of_what_was_run() {
        let stats = Stats {
            prompt_tokens: 110,
            reused_tokens: 10,
            generated_tokens: 21,
            prompt_time: Duration::from_millis(500),
            generation_time: Duration::from_secs(2),
            ..Stats::default()
        };
        assert_eq!((stats.prompt_speed(), stats.speed()), (200.0, 10.0));
        assert_eq!(Stats::default().speed(), 0.0);
    }
}
