//! `POST /v1/responses`: OpenAI's responses with text and tools. Nothing is kept between requests.

use super::ask::{Ask, Input};
use super::blocks::{Block, Blocks, Change, Grown};
use super::chat::{choice, effort_arguments, tool};
use super::error::{Refused, Result};
use super::fields::{Facts, Knobs, content_text, new_id, read, unix_time};
use super::http::{Events, Gone, Reply, blocking, events, json};
use super::talk::{Finish, Model, Said, Talk, Usage};
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize)]
struct Body {
    input: Value,
    instructions: Option<String>,
    stream: Option<bool>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    text: Option<Text>,
    reasoning: Option<Reasoning>,
    previous_response_id: Option<String>,
    chat_template_kwargs: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
struct Text {
    format: Option<Value>,
}

#[derive(Deserialize)]
struct Reasoning {
    effort: Option<String>,
}

/// What an answer repeats of its request.
pub struct Echo {
    stream: bool,
    fields: Map<String, Value>,
}

pub fn parse(document: &Value, of: &Facts) -> Result<(Ask, Echo)> {
    let body: Body = read(document)?;
    let knobs: Knobs = read(document)?;
    if body.previous_response_id.is_some() {
        let text = "nothing is kept between requests; send the conversation as `input`";
        return Err(Refused::field("previous_response_id", text));
    }
    let mut messages = vec![];
    if let Some(text) = &body.instructions {
        messages.push(json!({"role": "system", "content": text}));
    }
    items(&body.input, &mut messages)?;
    let mut arguments = body.chat_template_kwargs.unwrap_or_default();
    if let Some(effort) = body.reasoning.and_then(|r| r.effort) {
        effort_arguments("reasoning.effort", &effort, &mut arguments)?;
    }
    let mut ask = Ask::new(Input::Chat { messages, arguments }, knobs.request(true, of)?);
    ask.reuse = knobs.reuse();
    let given = body.tools.unwrap_or_default();
    for (i, one) in given.iter().enumerate() {
        let at = format!("tools[{i}]");
        match one["type"].as_str() {
            Some("function") => ask.tools.push(tool(one, &at)?),
            _ => return Err(Refused::field(format!("{at}.type"), "expected function")),
        }
    }
    ask.choice = choice(body.tool_choice.as_ref())?;
    ask.parallel = body.parallel_tool_calls.unwrap_or(true);
    ask.schema = body.text.and_then(|t| t.format).as_ref().map(schema).transpose()?.flatten();
    let or = |name: &str, otherwise: Value| {
        let value = document.get(name).filter(|v| !v.is_null()).cloned();
        (name.to_string(), value.unwrap_or(otherwise))
    };
    let fields = Map::from_iter([
        or("instructions", Value::Null),
        or("max_output_tokens", Value::Null),
        or("metadata", json!({})),
        or("parallel_tool_calls", true.into()),
        or("temperature", ask.request.sampling.temperature.into()),
        or("tool_choice", "auto".into()),
        or("tools", json!([])),
        or("top_p", ask.request.sampling.top_p.into()),
        or("text", json!({"format": {"type": "text"}})),
    ]);
    Ok((ask, Echo { stream: body.stream.unwrap_or(false), fields }))
}

fn schema(format: &Value) -> Result<Option<(Value, &'static str)>> {
    match format["type"].as_str() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some((json!({"type": "object"}), "text.format"))),
        Some("json_schema") => match &format["schema"] {
            schema @ Value::Object(_) => Ok(Some((schema.clone(), "text.format"))),
            _ => Err(Refused::field("text.format.schema", "a JSON schema is needed")),
        },
        _ => Err(Refused::field("text.format.type", "expected text, json_object or json_schema")),
    }
}

/// A text, or items: messages, calls and what they gave.
fn items(input: &Value, out: &mut Vec<Value>) -> Result<()> {
    let list = match input {
        Value::String(text) => {
            out.push(json!({"role": "user", "content": text}));
            return Ok(());
        }
        Value::Array(list) if !list.is_empty() => list,
        _ => return Err(Refused::field("input", "expected a text or a list of items")),
    };
    for (i, item) in list.iter().enumerate() {
        let at = format!("input[{i}]");
        match (item["type"].as_str(), item["role"].as_str()) {
            (Some("message") | None, Some(role)) => {
                let role = match role {
                    "developer" | "system" => "system",
                    "user" | "assistant" => role,
                    _ => {
                        let text = "expected one of system, developer, user and assistant";
                        return Err(Refused::field(format!("{at}.role"), text));
                    }
                };
                let content = content_text(&item["content"], &format!("{at}.content"))?;
                out.push(json!({"role": role, "content": content}));
            }
            (Some("function_call"), _) => {
                let (Some(name), Some(arguments)) = (item["name"].as_str(), item["arguments"].as_str())
                else {
                    return Err(Refused::field(
                        at,
                        "a `name` and `arguments` are needed, both of them texts",
                    ));
                };
                let function = json!({"name": name, "arguments": arguments});
                let call = json!({"id": item["call_id"], "type": "function", "function": function});
                add_call(out, call);
            }
            (Some("function_call_output"), _) => {
                let content = content_text(&item["output"], &format!("{at}.output"))?;
                out.push(json!({"role": "tool", "tool_call_id": item["call_id"], "content": content}));
            }
            (Some("reasoning"), _) => {}
            _ => {
                let text = "expected a message, a function_call, a function_call_output or reasoning";
                return Err(Refused::field(format!("{at}.type"), text));
            }
        }
    }
    Ok(())
}

/// Calls that follow each other, or the text before them, are one message of the model's.
fn add_call(out: &mut Vec<Value>, call: Value) {
    match out.last_mut().filter(|m| m["role"] == "assistant") {
        Some(message) => match message.get_mut("tool_calls").and_then(Value::as_array_mut) {
            Some(calls) => calls.push(call),
            None => message["tool_calls"] = json!([call]),
        },
        None => out.push(json!({"role": "assistant", "content": "", "tool_calls": [call]})),
    }
}

pub async fn answer(document: Value, ready: Model) -> Result<Reply> {
    let of = ready.clone();
    let (mut talk, echo) = blocking(move || -> Result<_> {
        let (ask, echo) = parse(&document, &of.facts)?;
        Ok((ask.start(&of, echo.stream)?, echo))
    })
    .await??;
    let shell = Shell { id: new_id("resp_"), created: unix_time(), model: ready.id.clone(), echo };
    if shell.echo.stream {
        return Ok(events(|out| stream(out, talk, shell)));
    }
    let blocks = Blocks::whole(&mut talk).await?;
    Ok(json(StatusCode::OK, &shell.ended(&blocks, &talk.usage)))
}

struct Shell {
    id: String,
    created: u64,
    model: String,
    echo: Echo,
}

impl Shell {
    fn value(&self, status: &str, output: Vec<Value>) -> Value {
        let mut value = json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "error": null,
            "incomplete_details": null, "model": self.model, "output": output, "usage": null,
        });
        for (name, field) in &self.echo.fields {
            value[name] = field.clone();
        }
        value
    }

    fn ended(&self, blocks: &Blocks, usage: &Usage) -> Value {
        let cut = blocks.end.as_ref().is_some_and(|e| e.finish == Finish::Length);
        let status = if cut { "incomplete" } else { "completed" };
        let mut value = self.value(status, blocks.all.iter().map(|b| item(b, "completed")).collect());
        if cut {
            value["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        value["usage"] = json!({
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.reused},
            "output_tokens": usage.generated,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.prompt + usage.generated,
        });
        value
    }
}

fn item(of: &Block, status: &str) -> Value {
    match of {
        Block::Thought { id, text } => json!({
            "type": "reasoning", "id": id, "summary": [], "status": status,
            "content": [{"type": "reasoning_text", "text": text}],
        }),
        Block::Text { id, text } => json!({
            "type": "message", "id": id, "role": "assistant", "status": status, "content": [part(text)],
        }),
        Block::Call { id, call } => json!({
            "type": "function_call", "id": format!("fc_{id}"), "call_id": id, "name": call.name,
            "arguments": call.arguments, "status": status,
        }),
    }
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// Events are numbered.
struct Numbered {
    out: Events,
    next: u64,
    /// Of the items.
    ids: Vec<Value>,
}

impl Numbered {
    async fn send(&mut self, kind: &str, mut value: Value) -> std::result::Result<(), Gone> {
        value["type"] = kind.into();
        value["sequence_number"] = self.next.into();
        self.next += 1;
        self.out.named(kind, &value).await
    }

    async fn tell(&mut self, change: Change) -> std::result::Result<(), Gone> {
        match change {
            Change::Open(index, block) => {
                let mut added = item(&block, "in_progress");
                if !matches!(block, Block::Call { .. }) {
                    added["content"] = json!([]);
                }
                let id = added["id"].clone();
                self.ids.push(id.clone());
                self.send("response.output_item.added", json!({"output_index": index, "item": added}))
                    .await?;
                if let Block::Text { .. } = block {
                    let place = json!({
                        "item_id": id, "output_index": index, "content_index": 0, "part": part("")
                    });
                    self.send("response.content_part.added", place).await?;
                }
                Ok(())
            }
            Change::Grow(index, grown) => {
                let (kind, text) = match grown {
                    Grown::Thought(text) => ("response.reasoning_text.delta", text),
                    Grown::Text(text) => ("response.output_text.delta", text),
                    Grown::Arguments(text) => ("response.function_call_arguments.delta", text),
                };
                let mut value = json!({
                    "item_id": self.ids.get(index), "output_index": index, "content_index": 0, "delta": text
                });
                if kind == "response.output_text.delta" {
                    value["logprobs"] = json!([]);
                }
                self.send(kind, value).await
            }
            Change::Close(index, block) => {
                let done = item(&block, "completed");
                let place = |more: (&str, Value)| {
                    let mut value = json!({"item_id": done["id"], "output_index": index, "content_index": 0});
                    value[more.0] = more.1;
                    value
                };
                match &block {
                    Block::Thought { text, .. } => {
                        let text = place(("text", text.clone().into()));
                        self.send("response.reasoning_text.done", text).await?;
                    }
                    Block::Text { text, .. } => {
                        let mut value = place(("text", text.clone().into()));
                        value["logprobs"] = json!([]);
                        self.send("response.output_text.done", value).await?;
                        self.send("response.content_part.done", place(("part", part(text)))).await?;
                    }
                    Block::Call { call, .. } => {
                        let mut value = place(("arguments", call.arguments.clone().into()));
                        value["name"] = call.name.clone().into();
                        self.send("response.function_call_arguments.done", value).await?;
                    }
                }
                self.send("response.output_item.done", json!({"output_index": index, "item": done})).await
            }
        }
    }
}

async fn stream(out: Events, mut talk: Talk, shell: Shell) -> std::result::Result<(), Gone> {
    let mut out = Numbered { out, next: 0, ids: vec![] };
    let begun = shell.value("in_progress", vec![]);
    out.send("response.created", json!({"response": begun})).await?;
    out.send("response.in_progress", json!({"response": begun})).await?;
    let mut blocks = Blocks::default();
    while let Some(said) = talk.next().await {
        match said {
            Said::Started => {}
            Said::Failed(refused) => {
                let mut value = shell.value("failed", vec![]);
                value["error"] = json!({"code": "server_error", "message": refused.message});
                return out.send("response.failed", json!({"response": value})).await;
            }
            Said::Bit { bit, .. } => {
                for change in blocks.take(bit) {
                    out.tell(change).await?;
                }
            }
        }
    }
    let ended = shell.ended(&blocks, &talk.usage);
    let kind = match ended["status"].as_str() {
        Some("incomplete") => "response.incomplete",
        _ => "response.completed",
    };
    out.send(kind, json!({"response": ended})).await
}
