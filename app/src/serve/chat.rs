//! `POST /v1/chat/completions`: OpenAI's chat. A body becomes an [`Ask`], a [`Talk`] becomes an answer or its chunks.

use super::ask::{Ask, Choice, Input, MOST_ANSWERS};
use super::error::{Dialect, Refused, Result};
use super::fields::{Facts, Knobs, content_text, count, new_id, read, unix_time};
use super::http::{Events, Gone, Reply, events, json};
use super::talk::{Bit, End, Finish, Likely, Model, Said, Talk, Usage, timings, whole};
use hyper::StatusCode;
use llm::tools::{Call, Tool};
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize)]
struct Body {
    messages: Vec<Value>,
    n: Option<i64>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    logprobs: Option<bool>,
    top_logprobs: Option<i64>,
    response_format: Option<Value>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    chat_template_kwargs: Option<Map<String, Value>>,
    reasoning_effort: Option<String>,
}

#[derive(Deserialize, Default)]
pub struct StreamOptions {
    include_usage: Option<bool>,
}

impl StreamOptions {
    pub fn usage(of: &Option<StreamOptions>) -> bool {
        of.as_ref().and_then(|o| o.include_usage).unwrap_or(false)
    }
}

/// How an answer is given.
pub struct Manner {
    stream: bool,
    usage: bool,
    logprobs: bool,
}

pub fn parse(document: &Value, of: &Facts) -> Result<(Ask, Manner)> {
    let body: Body = read(document)?;
    let knobs: Knobs = read(document)?;
    let messages = messages(&body.messages)?;
    let mut arguments = body.chat_template_kwargs.unwrap_or_default();
    if let Some(effort) = body.reasoning_effort {
        effort_arguments("reasoning_effort", &effort, &mut arguments)?;
    }
    let request = knobs.request(true, of)?;
    let mut ask = Ask::new(Input::Chat { messages, arguments }, request);
    ask.n = count("n", body.n, 1, 1, MOST_ANSWERS)?;
    ask.reuse = knobs.reuse();
    ask.tools = tools(body.tools.as_deref().unwrap_or_default())?;
    ask.choice = choice(body.tool_choice.as_ref())?;
    ask.parallel = body.parallel_tool_calls.unwrap_or(true);
    ask.schema = body.response_format.as_ref().map(schema).transpose()?.flatten();
    let logprobs = body.logprobs.unwrap_or(false);
    let top = count("top_logprobs", body.top_logprobs, 0, 0, 20)?;
    if top > 0 && !logprobs {
        return Err(Refused::field("top_logprobs", "needs `logprobs` to be true"));
    }
    ask.logprobs = logprobs.then_some(top);
    let stream = body.stream.unwrap_or(false);
    Ok((ask, Manner { stream, usage: StreamOptions::usage(&body.stream_options), logprobs }))
}

/// Reasoning is on or off for the templates that have a switch; others may know the word.
pub fn effort_arguments(field: &str, effort: &str, arguments: &mut Map<String, Value>) -> Result<()> {
    const KNOWN: [&str; 6] = ["none", "minimal", "low", "medium", "high", "xhigh"];
    if !KNOWN.contains(&effort) {
        return Err(Refused::field(field, format!("expected one of {}", KNOWN.join(", "))));
    }
    let on = !["none", "minimal"].contains(&effort);
    arguments.entry("enable_thinking").or_insert(on.into());
    arguments.entry("reasoning_effort").or_insert(effort.into());
    Ok(())
}

/// Messages as templates read them: texts for contents, `system` for `developer`.
fn messages(given: &[Value]) -> Result<Vec<Value>> {
    if given.is_empty() {
        return Err(Refused::field("messages", "at least one is needed"));
    }
    given.iter().enumerate().map(|(i, m)| message(m, &format!("messages[{i}]"))).collect()
}

fn message(given: &Value, at: &str) -> Result<Value> {
    let Some(given) = given.as_object() else { return Err(Refused::field(at, "expected an object")) };
    let role = match given.get("role").and_then(Value::as_str) {
        Some("developer" | "system") => "system",
        Some("user") => "user",
        Some("assistant") => "assistant",
        Some("tool" | "function") => "tool",
        _ => {
            let expected = "expected one of system, developer, user, assistant and tool";
            return Err(Refused::field(format!("{at}.role"), expected));
        }
    };
    let content = given.get("content").unwrap_or(&Value::Null);
    if content.is_null() && role != "assistant" {
        return Err(Refused::field(format!("{at}.content"), "is needed"));
    }
    let mut out = json!({"role": role, "content": content_text(content, &format!("{at}.content"))?});
    for name in ["reasoning_content", "name", "tool_call_id"] {
        match given.get(name) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => out[name] = text.clone().into(),
            Some(_) => return Err(Refused::field(format!("{at}.{name}"), "expected a text")),
        }
    }
    match given.get("tool_calls") {
        None | Some(Value::Null) => {}
        Some(Value::Array(calls)) => {
            for (j, call) in calls.iter().enumerate() {
                let function = call.get("function").unwrap_or(&Value::Null);
                let arguments = function.get("arguments").unwrap_or(&Value::Null);
                if !function["name"].is_string() || !(arguments.is_string() || arguments.is_object()) {
                    let text = "a `name` and `arguments` are needed, both of them texts";
                    return Err(Refused::field(format!("{at}.tool_calls[{j}].function"), text));
                }
            }
            if !calls.is_empty() {
                out["tool_calls"] = calls.clone().into();
            }
        }
        Some(_) => return Err(Refused::field(format!("{at}.tool_calls"), "expected a list")),
    }
    Ok(out)
}

pub fn tools(given: &[Value]) -> Result<Vec<Tool>> {
    let tool = |(i, tool): (usize, &Value)| {
        let at = format!("tools[{i}]");
        match tool["type"].as_str() {
            None | Some("function") => self::tool(&tool["function"], &format!("{at}.function")),
            Some(other) => {
                let text = format!("tools of type {other:?} are not known, only \"function\"");
                Err(Refused::field(format!("{at}.type"), text))
            }
        }
    };
    given.iter().enumerate().map(tool).collect()
}

/// An object with a name, a description and a schema of parameters.
pub fn tool(given: &Value, at: &str) -> Result<Tool> {
    let name = given["name"].as_str().unwrap_or("");
    let legal = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
    if name.is_empty() || name.len() > 128 || !name.chars().all(legal) {
        let text = "a name of letters, digits, _ and - is needed";
        return Err(Refused::field(format!("{at}.name"), text));
    }
    let parameters = given.get("parameters").or(given.get("input_schema")).unwrap_or(&Value::Null);
    let parameters = match parameters {
        Value::Null => json!({"type": "object", "properties": {}, "additionalProperties": false}),
        Value::Object(_) => parameters.clone(),
        _ => return Err(Refused::field(format!("{at}.parameters"), "expected a JSON schema")),
    };
    let description = given["description"].as_str().map(String::from);
    Ok(Tool { name: name.into(), description, parameters })
}

pub fn choice(given: Option<&Value>) -> Result<Choice> {
    match given {
        None | Some(Value::Null) => Ok(Choice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Ok(Choice::Auto),
            "none" => Ok(Choice::None),
            "required" | "any" => Ok(Choice::Required),
            _ => Err(Refused::field("tool_choice", "expected none, auto, required or a function")),
        },
        Some(object) => {
            let name = object["function"]["name"].as_str().or(object["name"].as_str());
            let name = name.ok_or_else(|| Refused::field("tool_choice.function.name", "a name is needed"))?;
            Ok(Choice::Named(name.into()))
        }
    }
}

/// The schema of a `response_format`.
fn schema(format: &Value) -> Result<Option<(Value, &'static str)>> {
    match format["type"].as_str() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some((json!({"type": "object"}), "response_format"))),
        Some("json_schema") => match &format["json_schema"]["schema"] {
            schema @ Value::Object(_) => Ok(Some((schema.clone(), "response_format"))),
            _ => Err(Refused::field("response_format.json_schema.schema", "a JSON schema is needed")),
        },
        _ => Err(Refused::field("response_format.type", "expected text, json_object or json_schema")),
    }
}

pub async fn answer(document: Value, ready: Model) -> Result<Reply> {
    let of = ready.clone();
    let (talk, manner) = super::http::blocking(move || -> Result<_> {
        let (ask, manner) = parse(&document, &of.facts)?;
        Ok((ask.start(&of, manner.stream)?, manner))
    })
    .await??;
    let head = Head { id: new_id("chatcmpl-"), created: unix_time(), model: ready.id.clone() };
    if manner.stream {
        return Ok(events(|out| stream(out, talk, head, manner)));
    }
    let context = ready.engine.context();
    let whole = whole(talk).await?;
    let mut choices = vec![];
    let mut speeds = Value::Null;
    for (i, bit) in whole.answers.into_iter().enumerate() {
        let end = bit.end.as_ref();
        if let Some(end) = end {
            speeds = timings(&end.stats, context);
        }
        choices.push(json!({
            "index": i,
            "message": said(&bit),
            "logprobs": manner.logprobs.then(|| logprobs(&bit.logprobs)),
            "finish_reason": end.map(finish),
        }));
    }
    let mut value = head.value("chat.completion", choices.into());
    value["usage"] = usage(&whole.usage);
    value["timings"] = speeds;
    Ok(json(StatusCode::OK, &value))
}

pub struct Head {
    pub id: String,
    pub created: u64,
    pub model: String,
}

impl Head {
    pub fn value(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "system_fingerprint": concat!("glimmer-", env!("CARGO_PKG_VERSION")), "choices": choices,
        })
    }
}

fn said(bit: &Bit) -> Value {
    let content =
        if bit.text.is_empty() && !bit.calls.is_empty() { Value::Null } else { bit.text.clone().into() };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !bit.reasoning.is_empty() {
        message["reasoning_content"] = bit.reasoning.clone().into();
    }
    if !bit.calls.is_empty() {
        message["tool_calls"] = bit.calls.iter().map(call).collect();
    }
    message
}

fn call(call: &Call) -> Value {
    let function = json!({"name": call.name, "arguments": call.arguments});
    json!({"id": new_id("call_"), "type": "function", "function": function})
}

pub fn finish(end: &End) -> &'static str {
    match end.finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::Calls => "tool_calls",
    }
}

pub fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.generated,
        "total_tokens": usage.prompt + usage.generated,
        "prompt_tokens_details": {"cached_tokens": usage.reused},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    })
}

fn logprobs(of: &[Likely]) -> Value {
    let entry = |bytes: &[u8], logprob: f32| json!({"token": String::from_utf8_lossy(bytes), "logprob": logprob, "bytes": bytes});
    let content = of.iter().map(|l| {
        let mut one = entry(&l.bytes, l.logprob);
        one["top_logprobs"] = l.top.iter().map(|(bytes, logprob)| entry(bytes, *logprob)).collect();
        one
    });
    json!({"content": content.collect::<Vec<_>>(), "refusal": null})
}

async fn stream(out: Events, mut talk: Talk, head: Head, manner: Manner) -> std::result::Result<(), Gone> {
    let chunk = |answer: usize, delta: Value, finish: Value, likely: &[Likely]| {
        let mut choice = json!({"index": answer, "delta": delta, "finish_reason": finish});
        choice["logprobs"] = if likely.is_empty() { Value::Null } else { logprobs(likely) };
        head.value("chat.completion.chunk", json!([choice]))
    };
    let mut calls: Vec<Option<usize>> = vec![None; talk.answers()];
    while let Some(said) = talk.next().await {
        let (answer, bit) = match said {
            Said::Started => continue,
            Said::Failed(refused) => return out.data(&refused.body(Dialect::OpenAi)).await,
            Said::Bit { answer, bit } => (answer, bit),
        };
        if calls[answer].is_none() {
            calls[answer] = Some(0);
            out.data(&chunk(answer, json!({"role": "assistant", "content": ""}), Value::Null, &[])).await?;
        }
        let mut delta = Map::new();
        if !bit.reasoning.is_empty() {
            delta.insert("reasoning_content".into(), bit.reasoning.clone().into());
        }
        if !bit.text.is_empty() || !bit.logprobs.is_empty() {
            delta.insert("content".into(), bit.text.clone().into());
        }
        if !bit.calls.is_empty() {
            let before = calls[answer].unwrap_or(0);
            let numbered = (before..).zip(&bit.calls).map(|(index, c)| {
                let mut value = call(c);
                value["index"] = index.into();
                value
            });
            delta.insert("tool_calls".into(), numbered.collect());
            calls[answer] = Some(before + bit.calls.len());
        }
        if !delta.is_empty() {
            out.data(&chunk(answer, delta.into(), Value::Null, &bit.logprobs)).await?;
        }
        if let Some(end) = &bit.end {
            let mut last = chunk(answer, json!({}), finish(end).into(), &[]);
            last["timings"] = talk.timings(&end.stats);
            out.data(&last).await?;
        }
    }
    if manner.usage {
        let mut last = head.value("chat.completion.chunk", json!([]));
        last["usage"] = usage(&talk.usage);
        out.data(&last).await?;
    }
    out.write("data: [DONE]\n\n".into()).await
}
