//! What all endpoints make of a request: an [`Ask`]. In: messages or text, tools, a format, sampling. Out: prompts and
//! grammars, handed to the engine; the answers are a [`Talk`].

use super::error::{Refused, Result};
use super::ready::Ready;
use super::talk::Talk;
use llm::chat;
use llm::constrain::Guide;
use llm::engine::{Constraint, Job};
use llm::generate::Request;
use llm::tools::grammar::{self, Must, Thought};
use llm::tools::{Form, Parser, Tool};
use serde_json::{Map, Value, json};

pub enum Input {
    /// Messages as chat templates read them, and further arguments of the template.
    Chat {
        messages: Vec<Value>,
        arguments: Map<String, Value>,
    },
    /// Text to be continued as it is.
    Text(String),
    Tokens(Vec<u32>),
}

/// Whether and which tools are called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Choice {
    None,
    Auto,
    Required,
    Named(String),
}

pub struct Ask {
    pub input: Input,
    pub request: Request,
    /// Answers to the same prompt.
    pub n: usize,
    pub logprobs: Option<usize>,
    pub reuse: bool,
    pub tools: Vec<Tool>,
    pub choice: Choice,
    /// Several calls in one answer.
    pub parallel: bool,
    /// The answer is a JSON document of this schema; the field that asked for it.
    pub schema: Option<(Value, &'static str)>,
}

/// Answers to one prompt at most.
pub const MOST_ANSWERS: i64 = 16;

impl Ask {
    pub fn new(input: Input, request: Request) -> Ask {
        let (tools, choice, parallel) = (vec![], Choice::Auto, true);
        Ask { input, request, n: 1, logprobs: None, reuse: true, tools, choice, parallel, schema: None }
    }

    /// The tokens of the prompt, and how calls are written in the answer.
    pub fn prompt(&self, ready: &Ready) -> Result<(Vec<u32>, Option<Form>)> {
        let tokenizer = ready.engine.tokenizer();
        let (messages, arguments) = match &self.input {
            Input::Text(text) => return Ok((chat::tokens(tokenizer, text), None)),
            Input::Tokens(ids) => return Ok((ids.clone(), None)),
            Input::Chat { messages, arguments } => (messages, arguments),
        };
        let called = !self.tools.is_empty() && self.choice != Choice::None;
        let Some(style) = &ready.style else {
            let text = "this model has no chat template; /v1/completions continues text as it is";
            return Err(Refused::field("messages", text));
        };
        let form = called.then(|| ready.form.unwrap_or(Form::Hermes));
        let mut messages = messages.clone();
        for message in &mut messages {
            fit_calls(message, ready.form);
        }
        let mut arguments = arguments.clone();
        if called {
            let tools: Vec<Value> = self.tools.iter().map(Tool::to_json).collect();
            match ready.form {
                Some(_) => drop(arguments.insert("tools".into(), tools.into())),
                None => explain_tools(&mut messages, &tools),
            }
        }
        let messages = Value::Array(messages);
        let prompt =
            style.render(&messages, &arguments).map_err(|e| Refused::field("messages", e.to_string()))?;
        Ok((chat::tokens(tokenizer, &prompt), form))
    }

    /// Takes a while: templates, tokens and grammars are made here. `streamed`: what is said is wanted as it comes.
    pub fn start(mut self, ready: &Ready, streamed: bool) -> Result<Talk> {
        let (prompt, form) = self.prompt(ready)?;
        let tokenizer = ready.engine.tokenizer();
        let vocab = tokenizer.vocab_size() as u32;
        if let Some(id) = prompt.iter().find(|id| **id >= vocab) {
            return Err(Refused::field(
                "prompt",
                format!("{id} is no token of this model, which has {vocab}"),
            ));
        }
        let grammar = self.grammar(form, thought(&prompt, ready))?;
        let tools = std::mem::take(&mut self.tools);
        let mut talk = Talk::new(ready);
        for i in 0..self.n {
            let mut request = self.request.clone();
            request.sampling.seed = request.sampling.seed.wrapping_add(i as u64);
            let constraint = match &grammar {
                None => None,
                Some(bound) => bound.guide(ready)?.map(|g| Box::new(g) as Box<dyn Constraint>),
            };
            let (prompt, logprobs, reuse) = (prompt.clone(), self.logprobs, self.reuse);
            let job = Job { prompt, request, logprobs, reuse, constraint, streamed };
            let stream = ready.engine.submit(job)?;
            talk.add(stream, form.map(|form| Parser::new(form, tools.clone())));
        }
        Ok(talk)
    }

    /// What the answer has to be.
    fn grammar(&self, form: Option<Form>, thought: Thought) -> Result<Option<Bound>> {
        let Some(form) = form else {
            if let (Choice::Required | Choice::Named(_), true) = (&self.choice, self.tools.is_empty()) {
                return Err(Refused::field("tool_choice", "there are no `tools` to choose from"));
            }
            let made = |(schema, field): &(Value, &'static str)| Bound {
                grammar: grammar::document(schema, thought),
                field,
                needed: true,
            };
            return Ok(self.schema.as_ref().map(made));
        };
        let (tools, must): (Vec<Tool>, Must) = match &self.choice {
            Choice::Named(name) => {
                let one: Vec<Tool> = self.tools.iter().filter(|t| t.name == *name).cloned().collect();
                if one.is_empty() {
                    let text = format!("no tool is called {name:?}");
                    return Err(Refused::field("tool_choice", text));
                }
                (one, Must::Call)
            }
            Choice::Required => (self.tools.clone(), Must::Call),
            Choice::None | Choice::Auto => {
                (self.tools.clone(), Must::May(self.schema.as_ref().map(|(schema, _)| schema)))
            }
        };
        let grammar = grammar::calls(form, &tools, must, self.parallel, thought);
        Ok(Some(Bound { grammar, field: "tools", needed: must != Must::May(None) }))
    }
}

/// A grammar and the field that asks for it.
struct Bound {
    grammar: String,
    field: &'static str,
    /// Otherwise an answer without it will do: calls that the model decides on are checked when they are read.
    needed: bool,
}

impl Bound {
    fn guide(&self, ready: &Ready) -> Result<Option<Guide>> {
        let refused = |text: String| Refused::field(self.field, text);
        let made = ready.vocabulary().map_err(|e| refused(e.to_string())).and_then(|vocabulary| {
            let guide = vocabulary.guide(&self.grammar);
            guide.map_err(|e| refused(format!("this schema cannot be enforced: {e}")))
        });
        match made {
            Ok(guide) => Ok(Some(guide)),
            Err(refused) if self.needed => Err(refused),
            Err(_) => Ok(None),
        }
    }
}

/// What the end of a prompt says about reasoning.
fn thought(prompt: &[u32], ready: &Ready) -> Thought {
    let last = &prompt[prompt.len().saturating_sub(12)..];
    let bytes: Vec<u8> = last.iter().flat_map(|&id| ready.engine.tokenizer().piece(id)).copied().collect();
    let text = String::from_utf8_lossy(&bytes);
    let knows = ready.style.as_ref().is_some_and(|s| s.source().contains("<think>"));
    match text.trim_end() {
        end if end.ends_with("<think>") => Thought::Open,
        end if end.ends_with("</think>") || !knows => Thought::No,
        _ => Thought::Free,
    }
}

/// Earlier calls carry their arguments as JSON text; most templates want the object.
fn fit_calls(message: &mut Value, form: Option<Form>) {
    let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) else { return };
    for call in calls {
        let Some(arguments) = call.get_mut("function").and_then(|f| f.get_mut("arguments")) else { continue };
        match arguments {
            Value::String(text) if !form.is_some_and(Form::takes_text) => {
                if let Ok(Value::Object(object)) = serde_json::from_str(text) {
                    *arguments = Value::Object(object);
                }
            }
            Value::Object(_) if form.is_some_and(Form::takes_text) => {
                *arguments = Value::String(arguments.to_string());
            }
            _ => {}
        }
    }
}

/// For templates that know no tools: they are described in the system's text, and what they answered is the user's.
fn explain_tools(messages: &mut Vec<Value>, tools: &[Value]) {
    let mut text = String::from("You may call functions. Their signatures:\n<tools>\n");
    for tool in tools {
        text.push_str(&format!("{tool}\n"));
    }
    text.push_str(
        "</tools>\nTo call one, write <tool_call>{\"name\": NAME, \"arguments\": ARGUMENTS}</tool_call> with a JSON object \
         for ARGUMENTS.",
    );
    match messages.first_mut().filter(|m| m["role"] == "system") {
        Some(system) => {
            let before = system["content"].as_str().unwrap_or("").to_string();
            system["content"] = format!("{before}\n\n{text}").into();
        }
        None => messages.insert(0, json!({"role": "system", "content": text})),
    }
    for message in messages.iter_mut() {
        if message["role"] == "tool" {
            let said = message["content"].as_str().unwrap_or("");
            *message =
                json!({"role": "user", "content": format!("<tool_response>\n{said}\n</tool_response>")});
            continue;
        }
        let Some(calls) = message.get_mut("tool_calls").map(Value::take) else { continue };
        let mut said = message["content"].as_str().unwrap_or("").to_string();
        for call in calls.as_array().into_iter().flatten() {
            said.push_str(&format!("<tool_call>{}</tool_call>", call["function"]));
        }
        *message = json!({"role": "assistant", "content": said});
    }
}
