//! Answers as they come. In: the engine's streams, one for each answer to a prompt. Out: what was said, as text,
//! reasoning, whole calls of tools and log probabilities; then why each ended.
//!
//! Dropping a [`Talk`] cancels its answers.

use super::error::{Refused, Result};
use super::ready::Ready;
use llm::engine::{Engine, Event, Logprobs, Refusal, Stream};
use llm::generate::{Reason, Stats};
use llm::stream::Piece;
use llm::tokenizer::Tokenizer;
use llm::tools::{self, Call, Parser};
use serde_json::{Value, json};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

/// What one step said; everything may be empty.
#[derive(Default, Debug)]
pub struct Bit {
    pub reasoning: String,
    pub text: String,
    pub calls: Vec<Call>,
    /// Of the text's tokens.
    pub logprobs: Vec<Likely>,
    pub end: Option<End>,
}

impl Bit {
    pub fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.text.is_empty() && self.calls.is_empty() && self.logprobs.is_empty()
    }
}

/// A token and how probable it was, beside others.
#[derive(Clone, Debug)]
pub struct Likely {
    pub bytes: Vec<u8>,
    pub logprob: f32,
    pub top: Vec<(Vec<u8>, f32)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finish {
    Stop,
    Length,
    Calls,
}

#[derive(Clone, Debug)]
pub struct End {
    pub finish: Finish,
    /// The stop text that ended it.
    pub stop: Option<String>,
    pub stats: Stats,
}

#[derive(Debug)]
pub enum Said {
    /// The prompt's tokens are counted.
    Started,
    Bit {
        answer: usize,
        bit: Bit,
    },
    Failed(Refused),
}

/// Tokens of a prompt and its answers.
#[derive(Clone, Copy, Default, Debug)]
pub struct Usage {
    pub prompt: usize,
    pub reused: usize,
    pub generated: usize,
    /// Of these, tokens of reasoning.
    pub reasoning: usize,
}

struct Voice {
    /// None when it has ended.
    stream: Option<Stream>,
    parser: Option<Parser>,
    called: bool,
    /// Of tokens whose text is still held back.
    pending: Vec<Likely>,
}

pub struct Talk {
    engine: Engine,
    voices: Vec<Voice>,
    started: bool,
    pub usage: Usage,
}

impl Talk {
    pub fn new(ready: &Ready) -> Talk {
        Talk { engine: ready.engine.clone(), voices: vec![], started: false, usage: Usage::default() }
    }

    pub fn add(&mut self, stream: Stream, parser: Option<Parser>) {
        self.voices.push(Voice { stream: Some(stream), parser, called: false, pending: vec![] });
    }

    pub fn answers(&self) -> usize {
        self.voices.len()
    }

    /// None when all answers have ended.
    pub async fn next(&mut self) -> Option<Said> {
        loop {
            let (answer, event) = self.event().await?;
            if let Some(said) = self.said(answer, event) {
                return Some(said);
            }
        }
    }

    /// Whichever comes first.
    async fn event(&mut self) -> Option<(usize, Option<Event>)> {
        poll_fn(|context| {
            let mut open = false;
            for (i, voice) in self.voices.iter_mut().enumerate() {
                let Some(stream) = &mut voice.stream else { continue };
                open = true;
                if let Poll::Ready(event) = pin!(stream.next()).poll(context) {
                    return Poll::Ready(Some((i, event)));
                }
            }
            if open { Poll::Pending } else { Poll::Ready(None) }
        })
        .await
    }

    fn said(&mut self, answer: usize, event: Option<Event>) -> Option<Said> {
        let voice = &mut self.voices[answer];
        match event {
            Some(Event::Started { prompt_tokens, reused_tokens }) => {
                if std::mem::replace(&mut self.started, true) {
                    return None;
                }
                (self.usage.prompt, self.usage.reused) = (prompt_tokens, reused_tokens);
                Some(Said::Started)
            }
            Some(Event::Token { id, pieces, logprobs }) => {
                self.usage.generated += 1;
                self.usage.reasoning += usize::from(pieces.iter().any(|p| p.reasoning));
                let tokenizer = self.engine.tokenizer();
                let likely = logprobs.filter(|_| speaks(tokenizer, id)).map(|l| likely(tokenizer, id, l));
                let bit = voice.hear(pieces, likely, None);
                (!bit.is_empty()).then_some(Said::Bit { answer, bit })
            }
            Some(Event::Done { reason, pieces, stats }) => {
                voice.stream = None;
                let (finish, stop) = match reason {
                    Reason::Cancelled => return Some(Said::Failed(Refusal::Stopped.into())),
                    Reason::End => (Finish::Stop, None),
                    Reason::Stop(text) => (Finish::Stop, Some(text)),
                    Reason::Length | Reason::Context => (Finish::Length, None),
                };
                let bit = voice.hear(pieces, None, Some(End { finish, stop, stats }));
                Some(Said::Bit { answer, bit })
            }
            Some(Event::Failed(text)) => {
                voice.stream = None;
                Some(Said::Failed(Refused::failed(text)))
            }
            None => {
                voice.stream = None;
                Some(Said::Failed(Refusal::Stopped.into()))
            }
        }
    }

    /// Speeds of one answer, for people who watch.
    pub fn timings(&self, stats: &Stats) -> Value {
        timings(stats, self.engine.context())
    }
}

pub fn timings(stats: &Stats, context: usize) -> Value {
    json!({
        "prompt_tokens": stats.prompt_tokens,
        "reused_tokens": stats.reused_tokens,
        "prompt_tokens_per_second": stats.prompt_speed(),
        "first_token_seconds": stats.first_token.as_secs_f64(),
        "generated_tokens": stats.generated_tokens,
        "tokens_per_second": stats.speed(),
        "context": context,
    })
}

impl Voice {
    fn hear(&mut self, pieces: Vec<Piece>, likely: Option<Likely>, end: Option<End>) -> Bit {
        let mut bit = Bit::default();
        let mut events = vec![];
        let mut spoke = false;
        for piece in pieces {
            spoke |= !piece.reasoning;
            match (&mut self.parser, piece.reasoning) {
                (_, true) => bit.reasoning.push_str(&piece.text),
                (Some(parser), false) => parser.push(&piece.text, &mut events),
                (None, false) => bit.text.push_str(&piece.text),
            }
        }
        if let (Some(parser), Some(_)) = (&mut self.parser, &end) {
            parser.finish(&mut events);
        }
        for event in events {
            match event {
                tools::Event::Text(text) => bit.text.push_str(&text),
                tools::Event::Call(call) => bit.calls.push(call),
            }
        }
        self.called |= !bit.calls.is_empty();
        self.pending.extend(likely);
        match (spoke, bit.reasoning.is_empty()) {
            (true, _) => bit.logprobs = std::mem::take(&mut self.pending),
            (false, false) => self.pending.clear(),
            _ => {}
        }
        bit.end = end.map(|mut end| {
            if self.called && end.finish == Finish::Stop {
                end.finish = Finish::Calls;
            }
            end
        });
        bit
    }
}

/// Whether a token is part of the text rather than a mark in it.
fn speaks(tokenizer: &Tokenizer, id: u32) -> bool {
    tokenizer.ends().binary_search(&id).is_err() && !matches!(tokenizer.piece(id), b"<think>" | b"</think>")
}

fn likely(tokenizer: &Tokenizer, id: u32, logprobs: Logprobs) -> Likely {
    let bytes = |id: u32| tokenizer.piece(id).to_vec();
    Likely {
        bytes: bytes(id),
        logprob: logprobs.chosen,
        top: logprobs.top.into_iter().map(|(id, l)| (bytes(id), l)).collect(),
    }
}

/// Everything of all answers, for replies that come whole.
pub struct Whole {
    pub answers: Vec<Bit>,
    pub usage: Usage,
}

/// Waits for the end of all answers.
pub async fn whole(mut talk: Talk) -> Result<Whole> {
    let mut answers: Vec<Bit> = talk.voices.iter().map(|_| Bit::default()).collect();
    while let Some(said) = talk.next().await {
        match said {
            Said::Started => {}
            Said::Failed(refused) => return Err(refused),
            Said::Bit { answer, bit } => {
                let all = &mut answers[answer];
                all.reasoning.push_str(&bit.reasoning);
                all.text.push_str(&bit.text);
                all.calls.extend(bit.calls);
                all.logprobs.extend(bit.logprobs);
                all.end = bit.end.or(all.end.take());
            }
        }
    }
    Ok(Whole { answers, usage: talk.usage })
}

/// Shared by everything that answers.
pub type Model = Arc<Ready>;
