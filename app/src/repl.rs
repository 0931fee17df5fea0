//! A chat in the terminal. In: lines. Out: answers as they come, and their speeds.
//!
//! Ctrl-C during an answer ends the answer; what was said until then stays part of the conversation.

use crate::names;
use crate::run::{Reasoning, Screen, Session, dimmed, report, speeds};
use anyhow::{Context, Result};
use llm::generate::{self, Answer, Reason, Request};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{
    Cmd, ConditionalEventHandler, Config, Editor, Event, EventContext, EventHandler, KeyEvent, Movement,
    RepeatCount,
};
use serde_json::json;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const HELP: &str = "\
/help               this text
/clear              forgets the conversation
/system TEXT        what the model is told before the conversation; without TEXT: nothing
/set NAME VALUE     a setting; /set alone shows all
/save FILE          writes the conversation as JSON
/stats              speeds of the last answer, and how full the context is
/exit               ends the program, as Ctrl-D does
\"\"\"                 begins and ends text of several lines; a \\ at its end continues a line
Ctrl-C              ends the answer";

type Lines = Editor<(), FileHistory>;

pub fn run(session: Session, request: Request) -> Result<()> {
    let mut repl = Repl::new(session, request)?;
    repl.greet();
    loop {
        match read(&mut repl.lines) {
            Ok(text) => {
                repl.interrupted.store(false, Ordering::Relaxed);
                if repl.take(&text)? == Next::Exit {
                    break;
                }
            }
            Err(ReadlineError::Interrupted) if !repl.interrupted.swap(true, Ordering::Relaxed) => {
                eprintln!(
                    "{}",
                    dimmed("(Ctrl-C again or Ctrl-D ends the program)", io::stderr().is_terminal())
                );
            }
            Err(ReadlineError::Interrupted | ReadlineError::Eof) => break,
            Err(e) => return Err(e).context("the terminal"),
        }
    }
    repl.remember();
    Ok(())
}

struct Repl {
    session: Session,
    request: Request,
    lines: Lines,
    history: Option<PathBuf>,
    last: Option<Answer>,
    /// Answers since the seed was set: each has a seed of its own.
    turn: u64,
    /// Whether Ctrl-C was the last thing at the prompt: a second one ends the program.
    interrupted: Arc<AtomicBool>,
    /// Whether an answer is being made, and whether it should end.
    busy: Arc<AtomicBool>,
    cancel: Arc<AtomicBool>,
}

#[derive(PartialEq, Eq)]
enum Next {
    Read,
    Exit,
}

impl Repl {
    fn new(session: Session, request: Request) -> Result<Repl> {
        let (busy, cancel) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (is_busy, cancels) = (busy.clone(), cancel.clone());
        ctrlc::set_handler(move || match is_busy.load(Ordering::Relaxed) {
            true => cancels.store(true, Ordering::Relaxed),
            false => std::process::exit(130),
        })
        .context("Ctrl-C")?;
        let config = Config::builder().auto_add_history(false).history_ignore_space(true).build();
        let mut lines = Lines::with_config(config).context("the terminal")?;
        let interrupted = Arc::new(AtomicBool::new(false));
        let clears = Box::new(Clear(interrupted.clone()));
        lines.bind_sequence(KeyEvent::ctrl('C'), EventHandler::Conditional(clears));
        let history = names::cache_dir().ok().map(|dir| dir.join("history"));
        if let Some(path) = history.as_ref().filter(|p| p.exists())
            && let Err(e) = lines.load_history(path)
        {
            eprintln!("glimmer: {}: {e}", path.display());
        }
        Ok(Repl { session, request, lines, history, last: None, turn: 0, interrupted, busy, cancel })
    }

    fn greet(&self) {
        let model = self.session.generator.model();
        let text = format!(
            "{}, context {} tokens, loaded in {:.2} s; /help shows what can be done",
            self.session.name,
            model.context(),
            self.session.load.as_secs_f64()
        );
        eprintln!("{}", dimmed(&text, io::stderr().is_terminal()));
    }

    fn take(&mut self, text: &str) -> Result<Next> {
        if text.trim().is_empty() {
            return Ok(Next::Read);
        }
        // A history that cannot hold the line is no reason to stop.
        let _ = self.lines.add_history_entry(text);
        let done = match Command::parse(text) {
            None => self.answer(text),
            Some(Ok(Command::Exit)) => return Ok(Next::Exit),
            Some(Ok(command)) => self.obey(command),
            Some(Err(message)) => Err(anyhow::anyhow!(message)),
        };
        if let Err(e) = done {
            if e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
                return Err(e);
            }
            let long = matches!(e.downcast_ref(), Some(generate::Error::TooLong { .. }));
            eprintln!("glimmer: {e:#}{}", if long { "; /clear begins a new conversation" } else { "" });
        }
        Ok(Next::Read)
    }

    fn answer(&mut self, text: &str) -> Result<()> {
        let prompt = self.session.prompt(text)?;
        let mut screen = Screen::new(Reasoning::Inline);
        let mut failed = None;
        self.cancel.store(false, Ordering::Relaxed);
        self.busy.store(true, Ordering::Relaxed);
        let cancel = self.cancel.clone();
        let mut request = self.request.clone();
        request.sampling.seed = request.sampling.seed.wrapping_add(self.turn);
        self.turn += 1;
        let answer = self.session.generator.answer(&prompt, &request, &self.cancel, &mut |piece| {
            if let Err(e) = screen.show(piece) {
                failed = Some(e);
                cancel.store(true, Ordering::Relaxed);
            }
        });
        self.busy.store(false, Ordering::Relaxed);
        screen.end()?;
        if let Some(e) = failed {
            return Err(e.into());
        }
        let answer = answer?;
        let said_nothing = answer.text.is_empty() && answer.reasoning.is_empty();
        let stopped = answer.reason == Reason::Cancelled;
        if let Some(chat) = self.session.chat.as_mut().filter(|_| !(stopped && said_nothing)) {
            chat.say(text);
            chat.answered(&answer.text, &answer.reasoning);
        }
        report(&self.session, &answer);
        let mut line = speeds(&answer, None);
        if stopped {
            line += "; stopped";
        }
        eprintln!("{}", dimmed(&line, io::stderr().is_terminal()));
        self.last = Some(answer);
        Ok(())
    }

    fn obey(&mut self, command: Command) -> Result<()> {
        let no_chat = "there is no conversation: text is continued as it is";
        match command {
            Command::Help => println!("{HELP}"),
            Command::Clear => {
                self.session.chat.as_mut().context(no_chat)?.clear();
                println!("a new conversation begins");
            }
            Command::System(text) => {
                let chat = self.session.chat.as_mut().context(no_chat)?;
                chat.set_system(text);
                if !chat.is_empty() {
                    println!("it holds for the whole conversation; /clear begins a new one");
                }
            }
            Command::Settings => {
                for setting in SETTINGS {
                    println!("{:<18} {:<10} {}", setting.name, (setting.show)(&self.request), setting.about);
                }
                println!("{:<18} {:<10} on or off: whether the model reasons first", "think", "");
            }
            Command::Set(name, value) if name == "think" => {
                let on = match value.as_str() {
                    "on" => true,
                    "off" => false,
                    other => anyhow::bail!("/set think: expected on or off, not `{other}`"),
                };
                self.session.chat.as_mut().context(no_chat)?.set_thinking(on);
            }
            Command::Set(name, value) => {
                set(&mut self.request, &name, &value).map_err(anyhow::Error::msg)?;
                self.turn = if name == "seed" { 0 } else { self.turn };
            }
            Command::Save(path) => self.save(&path)?,
            Command::Stats => self.stats(),
            Command::Exit => {}
        }
        Ok(())
    }

    fn save(&self, path: &Path) -> Result<()> {
        let chat = self.session.chat.as_ref().context("there is no conversation to save")?;
        let object = json!({"model": self.session.name, "messages": chat.messages()});
        let text = serde_json::to_string_pretty(&object)? + "\n";
        fs::write(path, text).with_context(|| path.display().to_string())?;
        println!("saved to {}", path.display());
        Ok(())
    }

    fn stats(&self) {
        let generator = &self.session.generator;
        println!("context: {} of {} tokens", generator.used(), generator.model().context());
        match &self.last {
            Some(answer) => println!("last answer: {}", speeds(answer, None)),
            None => println!("no answer yet"),
        }
    }

    fn remember(&mut self) {
        let Some(path) = &self.history else { return };
        let saved = path.parent().map_or(Ok(()), fs::create_dir_all).map_err(ReadlineError::from);
        if let Err(e) = saved.and_then(|()| self.lines.save_history(path)) {
            eprintln!("glimmer: {}: {e}", path.display());
        }
    }
}

/// Ctrl-C on a line with text clears the line; on an empty one it is an interruption.
struct Clear(Arc<AtomicBool>);

impl ConditionalEventHandler for Clear {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext) -> Option<Cmd> {
        if context.line().is_empty() {
            return None;
        }
        self.0.store(true, Ordering::Relaxed);
        Some(Cmd::Kill(Movement::WholeBuffer))
    }
}

/// One input, of several lines where it says so.
fn read(lines: &mut Lines) -> Result<String, ReadlineError> {
    let mut input = Input::default();
    let mut prompt = "> ";
    loop {
        let line = lines.readline(prompt)?;
        if let Some(text) = input.push(&line) {
            return Ok(text);
        }
        prompt = ". ";
    }
}

/// Lines until they are a whole text.
#[derive(Default)]
struct Input {
    text: String,
    quoted: bool,
    begun: bool,
}

impl Input {
    fn push(&mut self, line: &str) -> Option<String> {
        let mut line = line;
        if !self.begun {
            self.begun = true;
            if let Some(rest) = line.trim_start().strip_prefix("\"\"\"") {
                self.quoted = true;
                if rest.is_empty() {
                    return None;
                }
                line = rest;
            }
        }
        if self.quoted {
            if let Some(last) = line.trim_end().strip_suffix("\"\"\"") {
                self.text.push_str(last);
                return Some(std::mem::take(&mut self.text).trim_end_matches('\n').into());
            }
            self.text.push_str(line);
            self.text.push('\n');
            return None;
        }
        if let Some(rest) = line.strip_suffix('\\') {
            self.text.push_str(rest);
            self.text.push('\n');
            return None;
        }
        self.text.push_str(line);
        Some(std::mem::take(&mut self.text))
    }
}

#[derive(PartialEq, Debug)]
enum Command {
    Help,
    Clear,
    System(Option<String>),
    Settings,
    Set(String, String),
    Save(PathBuf),
    Stats,
    Exit,
}

impl Command {
    /// None for what is said to the model. Paths and the like (`/usr/bin is ...`) are said.
    fn parse(text: &str) -> Option<Result<Command, String>> {
        let text = text.trim();
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let name = word.strip_prefix('/')?;
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_lowercase()) {
            return None;
        }
        let rest = rest.trim();
        Some(match (name, rest) {
            ("help", "") => Ok(Command::Help),
            ("clear", "") => Ok(Command::Clear),
            ("system", text) => Ok(Command::System((!text.is_empty()).then(|| text.into()))),
            ("set", "") => Ok(Command::Settings),
            ("set", rest) => match rest.split_once(char::is_whitespace) {
                Some((name, value)) => Ok(Command::Set(name.into(), value.trim().into())),
                None => Err(format!("/set {rest}: a value is missing")),
            },
            ("save", "") => Err("/save: the name of a file is missing".into()),
            ("save", file) => Ok(Command::Save(file.into())),
            ("stats", "") => Ok(Command::Stats),
            ("exit" | "quit" | "bye", "") => Ok(Command::Exit),
            ("help" | "clear" | "stats" | "exit" | "quit" | "bye", _) => {
                Err(format!("/{name} takes no text"))
            }
            _ => Err(format!("/{name} is no command; /help shows them")),
        })
    }
}

struct Setting {
    name: &'static str,
    about: &'static str,
    show: fn(&Request) -> String,
    set: fn(&mut Request, &str) -> Option<()>,
}

const SETTINGS: &[Setting] = &[
    Setting {
        name: "temp",
        about: "temperature; 0 takes the most probable token",
        show: |r| r.sampling.temperature.to_string(),
        set: |r, v| number(v, 0.0, f32::MAX).map(|v| r.sampling.temperature = v),
    },
    Setting {
        name: "top-k",
        about: "of the k most probable tokens; 0: of all",
        show: |r| r.sampling.top_k.to_string(),
        set: |r, v| v.parse().ok().map(|v| r.sampling.top_k = v),
    },
    Setting {
        name: "top-p",
        about: "of the most probable tokens that have this probability together",
        show: |r| r.sampling.top_p.to_string(),
        set: |r, v| number(v, 0.0, 1.0).map(|v| r.sampling.top_p = v),
    },
    Setting {
        name: "min-p",
        about: "of tokens this probable, relative to the most probable",
        show: |r| r.sampling.min_p.to_string(),
        set: |r, v| number(v, 0.0, 1.0).map(|v| r.sampling.min_p = v),
    },
    Setting {
        name: "repeat-penalty",
        about: "above 1: against repetition",
        show: |r| r.sampling.repeat_penalty.to_string(),
        set: |r, v| number(v, f32::MIN_POSITIVE, f32::MAX).map(|v| r.sampling.repeat_penalty = v),
    },
    Setting {
        name: "repeat-last-n",
        about: "how many tokens the penalties look at",
        show: |r| r.sampling.repeat_last_n.to_string(),
        set: |r, v| v.parse().ok().map(|v| r.sampling.repeat_last_n = v),
    },
    Setting {
        name: "presence-penalty",
        about: "taken from the logit of every recent token",
        show: |r| r.sampling.presence_penalty.to_string(),
        set: |r, v| number(v, -100.0, 100.0).map(|v| r.sampling.presence_penalty = v),
    },
    Setting {
        name: "frequency-penalty",
        about: "the same, for each time it occurs",
        show: |r| r.sampling.frequency_penalty.to_string(),
        set: |r, v| number(v, -100.0, 100.0).map(|v| r.sampling.frequency_penalty = v),
    },
    Setting {
        name: "seed",
        about: "the same seed gives the same conversation",
        show: |r| r.sampling.seed.to_string(),
        set: |r, v| v.parse().ok().map(|v| r.sampling.seed = v),
    },
    Setting {
        name: "n",
        about: "tokens of an answer at most; 0: no limit",
        show: |r| r.max_tokens.unwrap_or(0).to_string(),
        set: |r, v| v.parse().ok().map(|v: usize| r.max_tokens = (v > 0).then_some(v)),
    },
    Setting {
        name: "stop",
        about: "a text that ends the answer; off: none",
        show: |r| r.stop.join(" "),
        set: |r, v| {
            r.stop = if v == "off" { vec![] } else { vec![v.into()] };
            Some(())
        },
    },
];

fn number(text: &str, lo: f32, hi: f32) -> Option<f32> {
    text.parse().ok().filter(|v| (lo..=hi).contains(v))
}

fn set(request: &mut Request, name: &str, value: &str) -> Result<(), String> {
    let Some(setting) = SETTINGS.iter().find(|s| s.name == name) else {
        let names: Vec<&str> = SETTINGS.iter().map(|s| s.name).collect();
        return Err(format!("/set {name}: the settings are {}, think", names.join(", ")));
    };
    (setting.set)(request, value)
        .ok_or_else(|| format!("/set {name}: `{value}` does not fit: {}", setting.about))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands() {
        let ok = |text| Command::parse(text).unwrap().unwrap();
        assert_eq!(ok(" /help "), Command::Help);
        assert_eq!(ok("/system You are  kind."), Command::System(Some("You are  kind.".into())));
        assert_eq!(ok("/system"), Command::System(None));
        assert_eq!(ok("/set temp 0.5"), Command::Set("temp".into(), "0.5".into()));
        assert_eq!(ok("/save my chat.json"), Command::Save("my chat.json".into()));
        assert_eq!(ok("/exit"), Command::Exit);
        for said in ["hello", "/usr/bin/env is a path", "/ is the root", "what is /help?", "/Users"] {
            assert_eq!(Command::parse(said), None, "{said}");
        }
        for wrong in ["/hlep", "/set temp", "/save", "/exit now"] {
            assert!(Command::parse(wrong).unwrap().is_err(), "{wrong}");
        }
    }

    #[test]
    fn settings_are_checked_and_shown() {
        let mut request = Request::default();
        for (name, value) in [("temp", "0.25"), ("top-k", "5"), ("n", "7"), ("seed", "9"), ("stop", "a b")] {
            set(&mut request, name, value).unwrap();
            let setting = SETTINGS.iter().find(|s| s.name == name).unwrap();
            assert_eq!((setting.show)(&request), value, "{name}");
        }
        set(&mut request, "n", "0").unwrap();
        assert_eq!(request.max_tokens, None);
        for (name, value) in
            [("temp", "-1"), ("temp", "hot"), ("top-p", "1.5"), ("min-p", "NaN"), ("top-k", "-3")]
        {
            assert!(set(&mut request, name, value).unwrap_err().contains(value), "{name} {value}");
        }
        assert!(set(&mut request, "heat", "1").unwrap_err().contains("temp, top-k"));
    }

    #[test]
    fn text_of_several_lines() {
        let whole = |lines: &[&str]| {
            let mut input = Input::default();
            let (last, first) = lines.split_last().unwrap();
            assert!(first.iter().all(|l| input.push(l).is_none()), "{lines:?}");
            input.push(last)
        };
        assert_eq!(whole(&["one"]).as_deref(), Some("one"));
        assert_eq!(whole(&["one \\", "two\\", "three"]).as_deref(), Some("one \ntwo\nthree"));
        assert_eq!(whole(&["\"\"\"", "one", "", "two\\", "\"\"\""]).as_deref(), Some("one\n\ntwo\\"));
        assert_eq!(whole(&["\"\"\"one", "two\"\"\" "]).as_deref(), Some("one\ntwo"));
        assert_eq!(whole(&["\"\"\"one\"\"\""]).as_deref(), Some("one"));
        assert_eq!(whole(&["say \"\"\""]).as_deref(), Some("say \"\"\""));
        assert_eq!(whole(&["\"\"\"", "open"]), None);
    }
}
