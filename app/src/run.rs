//! `glimmer run`: one answer to standard output, or a chat in the terminal.
//!
//! Standard output gets the answer and nothing else; reasoning (on a terminal), speeds and messages go to standard error.

use crate::args::{Args, ModelArgs, Run};
use crate::{model, repl};
use anyhow::{Context, Result, bail};
use clap::CommandFactory;
use clap::error::ErrorKind;
use llm::chat::{self, Chat};
use llm::generate::{Answer, Generator, Reason, Request};
use llm::sample::Sampling;
use llm::stream::Piece;
use llm::tokenizer::Tokenizer;
use serde_json::json;
use std::io::{self, IsTerminal, Read, Write};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

/// A loaded model and what is said with it.
pub struct Session {
    pub generator: Generator,
    /// None if the file has no template, or none was wanted.
    pub chat: Option<Chat>,
    pub name: String,
    pub load: Duration,
}

pub fn run(args: &Run) -> Result<()> {
    let prompt = match &args.prompt {
        Some(text) => Some(text.clone()),
        None if io::stdin().is_terminal() => None,
        None => Some(piped()?),
    };
    if args.json && prompt.is_none() {
        let text = "--json prints one answer: give -p TEXT, or the prompt on standard input";
        Args::command().error(ErrorKind::MissingRequiredArgument, text).exit();
    }
    let mut session = open(&args.model, !args.raw)?;
    if session.chat.is_none() && !args.raw {
        eprintln!("glimmer: {} has no chat template: text is continued as it is", session.name);
    }
    if let Some(chat) = &mut session.chat {
        chat.set_system(args.system.clone());
        if args.no_think {
            chat.set_thinking(false);
        }
    }
    let recommended = Sampling::from_gguf(session.generator.model().file())?;
    let request = request(args, recommended, session.chat.is_some());
    match prompt {
        Some(prompt) => once(session, &prompt, &request, args.json),
        None => repl::run(session, request),
    }
}

fn piped() -> Result<String> {
    let mut bytes = vec![];
    io::stdin().read_to_end(&mut bytes).context("standard input")?;
    let text = String::from_utf8(bytes).context("standard input is no UTF-8 text")?;
    // The line's end is the shell's, not the prompt's.
    Ok(text.strip_suffix('\n').unwrap_or(&text).into())
}

fn request(args: &Run, d: Sampling, split_reasoning: bool) -> Request {
    let sampling = Sampling {
        temperature: args.temp.unwrap_or(d.temperature),
        top_k: args.top_k.unwrap_or(d.top_k),
        top_p: args.top_p.unwrap_or(d.top_p),
        min_p: args.min_p.unwrap_or(d.min_p),
        repeat_penalty: args.repeat_penalty.unwrap_or(d.repeat_penalty),
        seed: args.seed.unwrap_or_else(any_seed),
        ..d
    };
    Request { sampling, max_tokens: args.n, stop: args.stop.clone(), split_reasoning }
}

/// Another one each time.
fn any_seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |t| t.as_nanos() as u64) ^ u64::from(std::process::id()) << 32
}

/// Loads the model that the flags name, with a bar on a terminal; `talks` asks for its chat template.
pub fn open(args: &ModelArgs, talks: bool) -> Result<Session> {
    let began = Instant::now();
    let file = model::open(args.model.as_deref())?;
    let name = file.name().to_string();
    let tokenizer = Tokenizer::from_gguf(&file)?;
    let chat = if talks { Chat::from_gguf(&file, &tokenizer)? } else { None };
    let model = model::on_device(args, file, args.ctx, false)?;
    let load = began.elapsed();
    Ok(Session { generator: Generator::new(model, tokenizer), chat, name, load })
}

impl Session {
    /// What the model reads when this is said next; the conversation is left as it is.
    pub fn prompt(&mut self, text: &str) -> Result<Vec<u32>> {
        let Some(chat) = &mut self.chat else { return Ok(chat::tokens(self.generator.tokenizer(), text)) };
        chat.say(text);
        let prompt = chat.prompt();
        chat.unsay();
        Ok(chat::tokens(self.generator.tokenizer(), &prompt?))
    }
}

fn once(mut session: Session, text: &str, request: &Request, as_json: bool) -> Result<()> {
    if text.trim().is_empty() {
        bail!("the prompt is empty");
    }
    let prompt = session.prompt(text)?;
    let mut out = Screen::new(Reasoning::Aside);
    let mut failed = None;
    let cancel = AtomicBool::new(false);
    let answer = session.generator.answer(&prompt, request, &cancel, &mut |piece| {
        if !as_json && failed.is_none() {
            failed = out.show(piece).err();
            cancel.store(failed.is_some(), std::sync::atomic::Ordering::Relaxed);
        }
    })?;
    if let Some(error) = failed {
        return Err(error).context("standard output");
    }
    if as_json {
        return print_json(&session, &prompt, request, &answer);
    }
    out.end()?;
    report(&session, &answer);
    eprintln!("{}", dimmed(&speeds(&answer, Some(session.load)), io::stderr().is_terminal()));
    Ok(())
}

fn print_json(session: &Session, prompt: &[u32], request: &Request, answer: &Answer) -> Result<()> {
    let stats = &answer.stats;
    let (reason, stop) = match &answer.reason {
        Reason::End => ("end", None),
        Reason::Stop(text) => ("stop", Some(text)),
        Reason::Length => ("length", None),
        Reason::Context => ("context", None),
        Reason::Cancelled => ("cancelled", None),
    };
    let object = json!({
        "model": session.name,
        "text": answer.text,
        "reasoning": answer.reasoning,
        "finish_reason": reason,
        "stop": stop,
        "prompt_ids": prompt,
        "ids": answer.ids,
        "seed": request.sampling.seed,
        "stats": {
            "load_seconds": session.load.as_secs_f64(),
            "prompt_tokens": stats.prompt_tokens,
            "reused_tokens": stats.reused_tokens,
            "generated_tokens": stats.generated_tokens,
            "first_token_seconds": stats.first_token.as_secs_f64(),
            "prompt_tokens_per_second": stats.prompt_speed(),
            "tokens_per_second": stats.speed(),
        },
    });
    writeln!(io::stdout(), "{object}").context("standard output")
}

/// Says what the reader should know about the end of an answer.
pub fn report(session: &Session, answer: &Answer) {
    if answer.reason == Reason::Context {
        let context = session.generator.model().context();
        eprintln!("glimmer: the context of {context} tokens is full; a larger one is had with --ctx");
    }
}

pub fn speeds(answer: &Answer, load: Option<Duration>) -> String {
    let s = &answer.stats;
    let mut text = format!("{} tokens", s.generated_tokens);
    if s.generated_tokens > 1 {
        text += &format!(", {:.1} tokens/s", s.speed());
    }
    let reused = if s.reused_tokens > 0 { format!(" ({} reused)", s.reused_tokens) } else { String::new() };
    text += &format!("; prompt {} tokens{reused}", s.prompt_tokens);
    if s.generated_tokens > 0 {
        let first = s.first_token.as_secs_f64();
        text += &format!(", {:.1} tokens/s; first token after {first:.2} s", s.prompt_speed());
    }
    if let Some(load) = load {
        text += &format!("; loaded in {:.2} s", load.as_secs_f64());
    }
    text
}

pub fn dimmed(text: &str, on: bool) -> String {
    if on { format!("\x1b[2m{text}\x1b[0m") } else { text.into() }
}

/// Where reasoning goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reasoning {
    /// To standard error if that is a terminal.
    Aside,
    /// Before the answer.
    Inline,
}

/// An answer as it comes, reasoning dimmed on a terminal.
pub struct Screen {
    place: Reasoning,
    colours: bool,
    /// The last piece, if it was reasoning.
    thought: Option<String>,
    /// Whether the last line of standard output has no end yet.
    open: bool,
}

impl Screen {
    pub fn new(place: Reasoning) -> Screen {
        let colours = match place {
            Reasoning::Aside => io::stderr().is_terminal(),
            Reasoning::Inline => io::stdout().is_terminal(),
        };
        Screen { place, colours, thought: None, open: false }
    }

    pub fn show(&mut self, piece: &Piece) -> io::Result<()> {
        if piece.reasoning {
            self.thought = Some(piece.text.clone());
            return self.think(&dimmed(&piece.text, self.colours));
        }
        if let Some(thought) = self.thought.take() {
            self.think(if thought.ends_with('\n') { "\n" } else { "\n\n" })?;
        }
        self.say(&piece.text)
    }

    /// Ends the last line.
    pub fn end(&mut self) -> io::Result<()> {
        if self.thought.take().is_some() {
            self.think("\n")?;
        }
        if self.open { self.say("\n") } else { Ok(()) }
    }

    fn think(&mut self, text: &str) -> io::Result<()> {
        match self.place {
            Reasoning::Inline => write_now(text),
            Reasoning::Aside if self.colours => io::stderr().write_all(text.as_bytes()),
            Reasoning::Aside => Ok(()),
        }
    }

    fn say(&mut self, text: &str) -> io::Result<()> {
        self.open = !text.ends_with('\n');
        write_now(text)
    }
}

fn write_now(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
