//! Tool calls in what a model says. In: text, in pieces of any size. Out: text and whole calls, in order.
//!
//! What comes out depends on the whole text and not on where it was cut. A call is given out when its last tag is there
//! and it is well formed; otherwise its text comes back as text, tags included.

mod body;
pub mod grammar;

use serde_json::{Map, Value};

/// How a model writes calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// `<tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value></tool_call>`
    Glm,
    /// `<tool_call>{"name": NAME, "arguments": {..}}</tool_call>`
    Hermes,
    /// `<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME`, arguments as a JSON block of Markdown
    DeepSeek,
    /// `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{..}<｜tool▁call▁end｜>`
    DeepSeekPlain,
}

/// The tags of all forms and of reasoning: in some files control tokens, which have no text otherwise.
const TAGS: &[&str] = &[
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    CALLS_BEGIN,
    CALLS_END,
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    SEPARATOR,
];
const CALLS_BEGIN: &str = "<｜tool▁calls▁begin｜>";
const CALLS_END: &str = "<｜tool▁calls▁end｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";

/// The tag that a token's bytes are.
pub fn tag(piece: &[u8]) -> Option<&'static str> {
    if piece.first() != Some(&b'<') {
        return None;
    }
    TAGS.iter().find(|t| t.as_bytes() == piece).copied()
}

impl Form {
    /// The form that a chat template shows or writes; none if it knows no tools.
    pub fn of_template(source: &str) -> Option<Form> {
        if source.contains("<arg_key>") {
            return Some(Form::Glm);
        }
        if source.contains("<｜tool▁call▁begin｜>") {
            return Some(if source.contains("```json") { Form::DeepSeek } else { Form::DeepSeekPlain });
        }
        source.contains("<tool_call>").then_some(Form::Hermes)
    }

    pub fn open(self) -> &'static str {
        match self {
            Form::Glm | Form::Hermes => "<tool_call>",
            Form::DeepSeek | Form::DeepSeekPlain => "<｜tool▁call▁begin｜>",
        }
    }

    fn close(self) -> &'static str {
        match self {
            Form::Glm | Form::Hermes => "</tool_call>",
            Form::DeepSeek | Form::DeepSeekPlain => "<｜tool▁call▁end｜>",
        }
    }

    /// Tags around several calls, which say nothing.
    fn around(self) -> &'static [&'static str] {
        match self {
            Form::Glm | Form::Hermes => &[],
            Form::DeepSeek | Form::DeepSeekPlain => &[CALLS_BEGIN, CALLS_END],
        }
    }

    /// Whether earlier calls' arguments are given to the template as JSON text rather than as objects.
    pub fn takes_text(self) -> bool {
        matches!(self, Form::DeepSeek | Form::DeepSeekPlain)
    }
}

/// A tool that may be called.
#[derive(Clone, PartialEq, Debug)]
pub struct Tool {
    pub name: String,
    pub description: Option<String>,
    /// The JSON schema of its arguments, an object's.
    pub parameters: Value,
}

impl Tool {
    pub fn properties(&self) -> Option<&Map<String, Value>> {
        self.parameters.get("properties")?.as_object()
    }

    fn requires(&self, name: &str) -> bool {
        let required = self.parameters.get("required").and_then(Value::as_array);
        required.is_some_and(|r| r.iter().any(|v| v == name))
    }

    /// As OpenAI's clients and chat templates write it.
    pub fn to_json(&self) -> Value {
        let mut function = Map::new();
        function.insert("name".into(), self.name.clone().into());
        if let Some(text) = &self.description {
            function.insert("description".into(), text.clone().into());
        }
        function.insert("parameters".into(), self.parameters.clone());
        serde_json::json!({"type": "function", "function": function})
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    pub name: String,
    /// A JSON object.
    pub arguments: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    Text(String),
    Call(Call),
}

/// What a body between two tags turns out to be.
enum Body {
    Whole(Call),
    /// The closing tag belongs to a text inside: the body goes on.
    Open,
    Malformed,
}

pub struct Parser {
    form: Form,
    tools: Vec<Tool>,
    held: String,
    /// Behind an opening tag, where to look for the closing one.
    inside: Option<usize>,
    /// White space that is text only if text follows.
    white: String,
    called: bool,
}

impl Parser {
    pub fn new(form: Form, tools: Vec<Tool>) -> Parser {
        Parser { form, tools, held: String::new(), inside: None, white: String::new(), called: false }
    }

    pub fn push(&mut self, text: &str, out: &mut Vec<Event>) {
        self.held.push_str(text);
        while self.advance(out) {}
    }

    /// The text is over: what has no end is text.
    pub fn finish(&mut self, out: &mut Vec<Event>) {
        let rest = std::mem::take(&mut self.held);
        let opened = self.inside.take().map_or("", |_| self.form.open());
        self.say(&format!("{opened}{rest}"), out);
        if !self.called && !self.white.is_empty() {
            let white = std::mem::take(&mut self.white);
            text_event(white, out);
        }
    }

    /// Whether there may be more to do.
    fn advance(&mut self, out: &mut Vec<Event>) -> bool {
        match self.inside {
            None => self.outside(out),
            Some(from) => self.within(from, out),
        }
    }

    fn outside(&mut self, out: &mut Vec<Event>) -> bool {
        let tags = || std::iter::once(self.form.open()).chain(self.form.around().iter().copied());
        let found = tags().filter_map(|t| self.held.find(t).map(|at| (at, t))).min();
        if let Some((at, tag)) = found {
            let behind = self.held.split_off(at + tag.len());
            self.held.truncate(at);
            let before = std::mem::replace(&mut self.held, behind);
            self.say(&before, out);
            if tag == self.form.open() {
                self.inside = Some(0);
            }
            return true;
        }
        let keep = tags().map(|t| open_end(&self.held, t)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        let sure = std::mem::replace(&mut self.held, rest);
        self.say(&sure, out);
        false
    }

    fn within(&mut self, from: usize, out: &mut Vec<Event>) -> bool {
        let close = self.form.close();
        let Some(at) = self.held[from..].find(close).map(|n| n + from) else {
            self.inside = Some(self.held.len() - open_end(&self.held[from..], close));
            return false;
        };
        match body::read(self.form, &self.held[..at], &self.tools) {
            Body::Open => {
                self.inside = Some(at + close.len());
                return true;
            }
            Body::Whole(call) => {
                self.white.clear();
                self.called = true;
                out.push(Event::Call(call));
            }
            Body::Malformed => {
                let text = format!("{}{}", self.form.open(), &self.held[..at + close.len()]);
                self.say(&text, out);
            }
        }
        self.held.drain(..at + close.len());
        self.inside = None;
        true
    }

    fn say(&mut self, text: &str, out: &mut Vec<Event>) {
        let solid = text.trim_end().len();
        if solid > 0 {
            let mut all = std::mem::take(&mut self.white);
            all.push_str(&text[..solid]);
            text_event(all, out);
        }
        self.white.push_str(&text[solid..]);
    }
}

fn text_event(text: String, out: &mut Vec<Event>) {
    match out.last_mut() {
        Some(Event::Text(last)) => last.push_str(&text),
        _ => out.push(Event::Text(text)),
    }
}

/// How many bytes at the end may be the beginning of a tag.
fn open_end(text: &str, tag: &str) -> usize {
    let most = tag.len().min(text.len() + 1) - 1;
    (1..=most).rev().find(|&n| text.as_bytes().ends_with(&tag.as_bytes()[..n])).unwrap_or(0)
}

#[cfg(test)]
mod tests;
