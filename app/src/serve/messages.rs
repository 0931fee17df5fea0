//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's messages.

use super::ask::{Ask, Choice, Input};
use super::blocks::{Block, Blocks, Change, Grown};
use super::chat::tool;
use super::error::{Dialect, Refused, Result};
use super::fields::{Facts, Knobs, content_text, new_id, read};
use super::http::{Events, Gone, Reply, blocking, events, json};
use super::talk::{End, Finish, Model, Said, Talk, Usage};
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize)]
struct Body {
    messages: Vec<Value>,
    system: Option<Value>,
    max_tokens: Option<i64>,
    stream: Option<bool>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    thinking: Option<Thinking>,
    chat_template_kwargs: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
struct Thinking {
    r#type: String,
}

/// Whether the answer is streamed. `counts`: only the prompt matters.
pub fn parse(document: &Value, of: &Facts, counts: bool) -> Result<(Ask, bool)> {
    let body: Body = read(document)?;
    let knobs: Knobs = read(document)?;
    if body.max_tokens.is_none() && !counts {
        return Err(Refused::field("max_tokens", "is needed"));
    }
    if body.messages.is_empty() {
        return Err(Refused::field("messages", "at least one is needed"));
    }
    let mut arguments = body.chat_template_kwargs.unwrap_or_default();
    let thinks = match body.thinking.as_ref().map(|t| t.r#type.as_str()) {
        Some("enabled" | "adaptive") => true,
        None | Some("disabled") => false,
        Some(_) => return Err(Refused::field("thinking.type", "expected enabled, adaptive or disabled")),
    };
    arguments.entry("enable_thinking").or_insert(thinks.into());
    let mut messages = vec![];
    if let Some(system) = body.system.as_ref().filter(|s| !s.is_null()) {
        messages.push(json!({"role": "system", "content": content_text(system, "system")?}));
    }
    for (i, given) in body.messages.iter().enumerate() {
        message(given, &format!("messages[{i}]"), &mut messages)?;
    }
    let request = knobs.request(true, of)?;
    let mut ask = Ask::new(Input::Chat { messages, arguments }, request);
    ask.reuse = knobs.reuse();
    let given = body.tools.unwrap_or_default();
    let tools = given.iter().enumerate().map(|(i, t)| tool(t, &format!("tools[{i}]")));
    ask.tools = tools.collect::<Result<_>>()?;
    (ask.choice, ask.parallel) = choice(body.tool_choice.as_ref())?;
    Ok((ask, body.stream.unwrap_or(false)))
}

fn choice(given: Option<&Value>) -> Result<(Choice, bool)> {
    let Some(given) = given.filter(|g| !g.is_null()) else { return Ok((Choice::Auto, true)) };
    let choice = match given["type"].as_str() {
        Some("auto") => Choice::Auto,
        Some("any") => Choice::Required,
        Some("none") => Choice::None,
        Some("tool") => {
            let name = given["name"].as_str();
            Choice::Named(name.ok_or_else(|| Refused::field("tool_choice.name", "is needed"))?.into())
        }
        _ => return Err(Refused::field("tool_choice.type", "expected auto, any, tool or none")),
    };
    Ok((choice, given["disable_parallel_tool_use"] != json!(true)))
}

/// One of Anthropic's messages as the messages that templates read: results of tools are messages of their own.
fn message(given: &Value, at: &str, out: &mut Vec<Value>) -> Result<()> {
    let role = match given["role"].as_str() {
        Some(role @ ("user" | "assistant" | "system")) => role,
        _ => return Err(Refused::field(format!("{at}.role"), "expected user or assistant")),
    };
    let blocks = match given.get("content") {
        Some(Value::String(text)) => {
            out.push(json!({"role": role, "content": text}));
            return Ok(());
        }
        Some(Value::Array(blocks)) => blocks,
        _ => return Err(Refused::field(format!("{at}.content"), "expected a text or a list of blocks")),
    };
    let (mut text, mut thought, mut calls) = (String::new(), String::new(), vec![]);
    for (i, block) in blocks.iter().enumerate() {
        let at = format!("{at}.content[{i}]");
        match block["type"].as_str().unwrap_or("") {
            "tool_use" => {
                let Some(name) = block["name"].as_str() else {
                    return Err(Refused::field(format!("{at}.name"), "is needed"));
                };
                let arguments = block.get("input").filter(|i| i.is_object()).cloned().unwrap_or(json!({}));
                let function = json!({"name": name, "arguments": arguments.to_string()});
                calls.push(json!({"id": block["id"], "type": "function", "function": function}));
            }
            "tool_result" => {
                let content =
                    content_text(block.get("content").unwrap_or(&Value::Null), &format!("{at}.content"))?;
                out.push(json!({"role": "tool", "tool_call_id": block["tool_use_id"], "content": content}));
            }
            "thinking" => thought.push_str(block["thinking"].as_str().unwrap_or("")),
            "redacted_thinking" => {}
            _ => text.push_str(&content_text(&json!([block]), &format!("{at}.content"))?),
        }
    }
    if text.is_empty() && calls.is_empty() && thought.is_empty() && !blocks.is_empty() {
        return Ok(());
    }
    let mut message = json!({"role": role, "content": text});
    if !thought.is_empty() {
        message["reasoning_content"] = thought.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    out.push(message);
    Ok(())
}

pub async fn answer(document: Value, ready: Model) -> Result<Reply> {
    let of = ready.clone();
    let (mut talk, streamed) = blocking(move || -> Result<_> {
        let (ask, streamed) = parse(&document, &of.facts, false)?;
        Ok((ask.start(&of, streamed)?, streamed))
    })
    .await??;
    let id = new_id("msg_");
    if streamed {
        return Ok(events(|out| stream(out, talk, id, ready.id.clone())));
    }
    let blocks = Blocks::whole(&mut talk).await?;
    let content: Vec<Value> = blocks.all.iter().map(block).collect();
    let mut value = shell(&id, &ready.id, content.into(), usage(&talk.usage));
    if let Some(end) = &blocks.end {
        value["stop_reason"] = reason(end).into();
        value["stop_sequence"] = end.stop.clone().into();
    }
    Ok(json(StatusCode::OK, &value))
}

/// The number of tokens that a request's prompt has.
pub async fn count(document: Value, ready: Model) -> Result<Reply> {
    let tokens = blocking(move || -> Result<usize> {
        let (ask, _) = parse(&document, &ready.facts, true)?;
        Ok(ask.prompt(&ready)?.0.len())
    })
    .await??;
    Ok(json(StatusCode::OK, &json!({"input_tokens": tokens})))
}

fn shell(id: &str, model: &str, content: Value, usage: Value) -> Value {
    json!({
        "id": id, "type": "message", "role": "assistant", "model": model, "content": content,
        "stop_reason": null, "stop_sequence": null, "usage": usage,
    })
}

fn usage(of: &Usage) -> Value {
    json!({
        "input_tokens": of.prompt - of.reused,
        "cache_read_input_tokens": of.reused,
        "cache_creation_input_tokens": 0,
        "output_tokens": of.generated,
    })
}

fn reason(end: &End) -> &'static str {
    match (end.finish, &end.stop) {
        (Finish::Calls, _) => "tool_use",
        (Finish::Length, _) => "max_tokens",
        (Finish::Stop, Some(_)) => "stop_sequence",
        (Finish::Stop, None) => "end_turn",
    }
}

fn block(of: &Block) -> Value {
    match of {
        Block::Thought { text, .. } => json!({"type": "thinking", "thinking": text, "signature": ""}),
        Block::Text { text, .. } => json!({"type": "text", "text": text}),
        Block::Call { id, call } => {
            let input: Value = serde_json::from_str(&call.arguments).unwrap_or(json!({}));
            json!({"type": "tool_use", "id": id, "name": call.name, "input": input})
        }
    }
}

async fn stream(out: Events, mut talk: Talk, id: String, model: String) -> std::result::Result<(), Gone> {
    let mut blocks = Blocks::default();
    while let Some(said) = talk.next().await {
        match said {
            Said::Started => {
                let message = shell(&id, &model, json!([]), usage(&talk.usage));
                out.named("message_start", &json!({"type": "message_start", "message": message})).await?;
                out.named("ping", &json!({"type": "ping"})).await?;
            }
            Said::Failed(refused) => return out.named("error", &refused.body(Dialect::Anthropic)).await,
            Said::Bit { bit, .. } => {
                for change in blocks.take(bit) {
                    tell(&out, change).await?;
                }
            }
        }
    }
    let (reason, stop) = blocks.end.as_ref().map_or(("end_turn", None), |e| (reason(e), e.stop.clone()));
    let delta = json!({
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": stop},
        "usage": usage(&talk.usage),
    });
    out.named("message_delta", &delta).await?;
    out.named("message_stop", &json!({"type": "message_stop"})).await
}

async fn tell(out: &Events, change: Change) -> std::result::Result<(), Gone> {
    let delta =
        |index: usize, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    match change {
        Change::Open(index, of) => {
            let start = json!({"type": "content_block_start", "index": index, "content_block": block(&of)});
            out.named("content_block_start", &start).await
        }
        Change::Grow(index, grown) => {
            let grown = match grown {
                Grown::Thought(text) => json!({"type": "thinking_delta", "thinking": text}),
                Grown::Text(text) => json!({"type": "text_delta", "text": text}),
                Grown::Arguments(text) => json!({"type": "input_json_delta", "partial_json": text}),
            };
            out.named("content_block_delta", &delta(index, grown)).await
        }
        Change::Close(index, of) => {
            if let Block::Thought { .. } = of {
                let signature = json!({"type": "signature_delta", "signature": ""});
                out.named("content_block_delta", &delta(index, signature)).await?;
            }
            let stop = json!({"type": "content_block_stop", "index": index});
            out.named("content_block_stop", &stop).await
        }
    }
}
