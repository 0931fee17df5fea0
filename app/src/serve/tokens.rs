//! `POST /tokenize` and `/detokenize`: text as the model reads it.

use super::error::{Refused, Result};
use super::fields::read;
use super::http::{Reply, blocking, json};
use super::talk::Model;
use hyper::StatusCode;
use llm::chat;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Tokenize {
    content: String,
    /// Whether the token that begins a text is put first.
    add_special: Option<bool>,
    /// Whether the texts of control tokens are those tokens.
    parse_special: Option<bool>,
    with_pieces: Option<bool>,
}

#[derive(Deserialize)]
struct Detokenize {
    tokens: Vec<u32>,
}

pub fn parse_tokenize(document: &Value) -> Result<()> {
    read::<Tokenize>(document).map(drop)
}

pub fn parse_detokenize(document: &Value) -> Result<()> {
    read::<Detokenize>(document).map(drop)
}

pub async fn tokenize(document: Value, ready: Model) -> Result<Reply> {
    let body: Tokenize = read(&document)?;
    let value = blocking(move || {
        let tokenizer = ready.engine.tokenizer();
        let ids = match body.add_special.unwrap_or(false) {
            true => chat::tokens(tokenizer, &body.content),
            false => tokenizer.encode(&body.content, body.parse_special.unwrap_or(true)),
        };
        let piece = |id: &u32| json!({"id": id, "piece": String::from_utf8_lossy(tokenizer.piece(*id))});
        match body.with_pieces.unwrap_or(false) {
            true => json!({"tokens": ids.iter().map(piece).collect::<Vec<_>>()}),
            false => json!({"tokens": ids}),
        }
    })
    .await?;
    Ok(json(StatusCode::OK, &value))
}

pub async fn detokenize(document: Value, ready: Model) -> Result<Reply> {
    let body: Detokenize = read(&document)?;
    let tokenizer = ready.engine.tokenizer();
    let vocab = tokenizer.vocab_size();
    if let Some(i) = body.tokens.iter().position(|id| *id as usize >= vocab) {
        let text = format!("{} is no token of this model, which has {vocab}", body.tokens[i]);
        return Err(Refused::field(format!("tokens[{i}]"), text));
    }
    Ok(json(StatusCode::OK, &json!({"content": tokenizer.decode(&body.tokens)})))
}
