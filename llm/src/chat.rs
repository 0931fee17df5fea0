//! A conversation. In: what was said. Out: the prompt that the model's own template makes of it.
//!
//! The text of a prompt is the template's, byte for byte; a token for the beginning of text is put before it only if
//! the file asks for one and the template has not written it.

use crate::gguf::{self, Gguf};
use crate::template::{self, Template};
use crate::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

#[derive(thiserror::Error, Debug)]
pub enum Error {
    #[error(transparent)]
    File(#[from] gguf::Error),
    #[error(transparent)]
    Template(#[from] template::Error),
}

/// A file's chat template with what it is always told.
pub struct Style {
    template: Template,
    source: String,
    arguments: Map<String, Value>,
}

impl Style {
    /// None if the file has no chat template.
    pub fn from_gguf(file: &Gguf, tokenizer: &Tokenizer) -> Result<Option<Style>, Error> {
        let Some(source) = file.opt_text("tokenizer.chat_template")? else { return Ok(None) };
        let mut arguments = Map::new();
        arguments.insert("add_generation_prompt".into(), true.into());
        for (name, id) in [("bos_token", tokenizer.bos()), ("eos_token", tokenizer.eos())] {
            if let Some(id) = id {
                arguments.insert(name.into(), String::from_utf8_lossy(tokenizer.piece(id)).into());
            }
        }
        Ok(Some(Style { template: Template::new(source)?, source: source.into(), arguments }))
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    /// The prompt for `messages`; `more` goes before what is always told.
    pub fn render(&self, messages: &Value, more: &Map<String, Value>) -> Result<String, Error> {
        let mut arguments = self.arguments.clone();
        arguments.extend(more.iter().map(|(name, value)| (name.clone(), value.clone())));
        Ok(self.template.render(messages, &arguments)?)
    }
}

pub struct Chat {
    style: Style,
    arguments: Map<String, Value>,
    system: Option<String>,
    /// Of the user and of the model, in turn.
    turns: Vec<Value>,
}

impl Chat {
    /// None if the file has no chat template.
    pub fn from_gguf(file: &Gguf, tokenizer: &Tokenizer) -> Result<Option<Chat>, Error> {
        let style = Style::from_gguf(file, tokenizer)?;
        Ok(style.map(|style| Chat { style, arguments: Map::new(), system: None, turns: vec![] }))
    }

    /// Whether the model may reason before it answers, for templates that have that switch.
    pub fn set_thinking(&mut self, on: bool) {
        self.arguments.insert("enable_thinking".into(), on.into());
    }

    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    pub fn set_system(&mut self, text: Option<String>) {
        self.system = text.filter(|t| !t.is_empty());
    }

    /// Forgets what was said, but not the system's text.
    pub fn clear(&mut self) {
        self.turns.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    pub fn say(&mut self, text: &str) {
        self.turns.push(json!({"role": "user", "content": text}));
    }

    pub fn answered(&mut self, text: &str, reasoning: &str) {
        let mut turn = json!({"role": "assistant", "content": text});
        if !reasoning.is_empty() {
            turn["reasoning_content"] = reasoning.into();
        }
        self.turns.push(turn);
    }

    /// Takes back what was said last.
    pub fn unsay(&mut self) {
        self.turns.pop();
    }

    pub fn messages(&self) -> Value {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        system.chain(self.turns.iter().cloned()).collect()
    }

    pub fn prompt(&self) -> Result<String, Error> {
        self.style.render(&self.messages(), &self.arguments)
    }
}

/// The tokens of a prompt, control tokens in it included.
pub fn tokens(tokenizer: &Tokenizer, prompt: &str) -> Vec<u32> {
    let ids = tokenizer.encode(prompt, true);
    match tokenizer.bos() {
        Some(bos) if tokenizer.add_bos() && ids.first() != Some(&bos) => {
            std::iter::once(bos).chain(ids).collect()
        }
        _ => ids,
    }
}
