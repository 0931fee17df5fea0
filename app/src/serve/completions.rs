//! `POST /v1/completions`: OpenAI's continuation of plain text.

use super::ask::{Ask, Input, MOST_ANSWERS};
use super::chat::{Head, StreamOptions, finish, usage};
use super::error::{Dialect, Refused, Result};
use super::fields::{Facts, Knobs, count, new_id, read, unix_time};
use super::http::{Events, Gone, Reply, blocking, events, json};
use super::talk::{Likely, Model, Said, Talk, Usage, timings, whole};
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize)]
struct Body {
    prompt: Value,
    suffix: Option<String>,
    n: Option<i64>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    logprobs: Option<i64>,
    echo: Option<bool>,
}

/// Prompts of one request at most.
const MOST_PROMPTS: usize = 64;

pub struct Manner {
    stream: bool,
    usage: bool,
    echo: bool,
}

/// One for each prompt.
pub fn parse(document: &Value, of: &Facts) -> Result<(Vec<Ask>, Manner)> {
    let body: Body = read(document)?;
    let knobs: Knobs = read(document)?;
    if body.suffix.is_some_and(|s| !s.is_empty()) {
        return Err(Refused::field("suffix", "text is not filled in; send what comes before alone"));
    }
    let request = knobs.request(false, of)?;
    let (n, reuse) = (count("n", body.n, 1, 1, MOST_ANSWERS)?, knobs.reuse());
    let logprobs = body.logprobs.map(|l| count("logprobs", Some(l), 0, 0, 20)).transpose()?;
    let asks = prompts(&body.prompt)?.into_iter().map(|input| {
        let mut ask = Ask::new(input, request.clone());
        (ask.n, ask.reuse, ask.logprobs) = (n, reuse, logprobs);
        ask
    });
    let usage = StreamOptions::usage(&body.stream_options);
    let stream = body.stream.unwrap_or(false);
    Ok((asks.collect(), Manner { stream, usage, echo: body.echo.unwrap_or(false) }))
}

/// A text, tokens, or several of either.
fn prompts(given: &Value) -> Result<Vec<Input>> {
    let expected = || Refused::field("prompt", "expected a text, a list of token ids, or a list of either");
    let tokens = |list: &[Value]| -> Result<Input> {
        let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(expected);
        Ok(Input::Tokens(list.iter().map(id).collect::<Result<_>>()?))
    };
    let inputs = match given {
        Value::String(text) => vec![Input::Text(text.clone())],
        Value::Array(list) if list.iter().any(Value::is_number) => vec![tokens(list)?],
        Value::Array(list) => {
            let one = |v: &Value| match v {
                Value::String(text) => Ok(Input::Text(text.clone())),
                Value::Array(ids) => tokens(ids),
                _ => Err(expected()),
            };
            list.iter().map(one).collect::<Result<_>>()?
        }
        _ => return Err(expected()),
    };
    match inputs.len() {
        0 => Err(Refused::field("prompt", "at least one is needed")),
        n if n > MOST_PROMPTS => Err(Refused::field("prompt", format!("at most {MOST_PROMPTS} at a time"))),
        _ => Ok(inputs),
    }
}

/// The answers to one prompt, and what stands before each.
struct Part {
    talk: Talk,
    echo: String,
}

pub async fn answer(document: Value, ready: Model) -> Result<Reply> {
    let of = ready.clone();
    let (parts, manner) = blocking(move || -> Result<_> {
        let (asks, manner) = parse(&document, &of.facts)?;
        let mut parts = vec![];
        for ask in asks {
            let echo = match (&ask.input, manner.echo) {
                (Input::Text(text), true) => text.clone(),
                (Input::Tokens(ids), true) => of.engine.tokenizer().decode(ids),
                _ => String::new(),
            };
            parts.push(Part { talk: ask.start(&of, manner.stream)?, echo });
        }
        Ok((parts, manner))
    })
    .await??;
    let head = Head { id: new_id("cmpl-"), created: unix_time(), model: ready.id.clone() };
    if manner.stream {
        return Ok(events(|out| stream(out, parts, head, manner)));
    }
    let context = ready.engine.context();
    let (mut choices, mut speeds, mut used) = (vec![], Value::Null, Usage::default());
    for part in parts {
        let all = whole(part.talk).await?;
        add(&mut used, &all.usage);
        for bit in all.answers {
            let mut offset = part.echo.chars().count();
            choices.push(json!({
                "index": choices.len(),
                "text": format!("{}{}", part.echo, bit.text),
                "logprobs": logprobs(&bit.logprobs, &mut offset),
                "finish_reason": bit.end.as_ref().map(finish),
            }));
            speeds = bit.end.map_or(speeds, |end| timings(&end.stats, context));
        }
    }
    let mut value = head.value("text_completion", choices.into());
    value["usage"] = usage(&used);
    value["timings"] = speeds;
    Ok(json(StatusCode::OK, &value))
}

fn add(sum: &mut Usage, one: &Usage) {
    sum.prompt += one.prompt;
    sum.reused += one.reused;
    sum.generated += one.generated;
    sum.reasoning += one.reasoning;
}

/// `offset` is where the next token's text begins, in characters.
fn logprobs(of: &[Likely], offset: &mut usize) -> Value {
    if of.is_empty() {
        return Value::Null;
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let top = |l: &Likely| -> Map<String, Value> {
        l.top.iter().map(|(bytes, logprob)| (text(bytes), (*logprob).into())).collect()
    };
    let offsets: Vec<usize> = of
        .iter()
        .map(|l| {
            let at = *offset;
            *offset += text(&l.bytes).chars().count();
            at
        })
        .collect();
    json!({
        "tokens": of.iter().map(|l| text(&l.bytes)).collect::<Vec<_>>(),
        "token_logprobs": of.iter().map(|l| l.logprob).collect::<Vec<_>>(),
        "top_logprobs": of.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

async fn stream(out: Events, parts: Vec<Part>, head: Head, manner: Manner) -> std::result::Result<(), Gone> {
    let (mut used, mut first) = (Usage::default(), 0);
    for Part { mut talk, echo } in parts {
        let n = talk.answers();
        let mut offsets = vec![echo.chars().count(); n];
        let chunk = |answer: usize, text: &str, finish: Value, logprobs: Value| {
            let choice = json!({
                "index": first + answer, "text": text, "logprobs": logprobs, "finish_reason": finish
            });
            head.value("text_completion", json!([choice]))
        };
        for answer in 0..if echo.is_empty() { 0 } else { n } {
            out.data(&chunk(answer, &echo, Value::Null, Value::Null)).await?;
        }
        while let Some(said) = talk.next().await {
            let (answer, bit) = match said {
                Said::Started => continue,
                Said::Failed(refused) => return out.data(&refused.body(Dialect::OpenAi)).await,
                Said::Bit { answer, bit } => (answer, bit),
            };
            if !bit.is_empty() {
                let likely = logprobs(&bit.logprobs, &mut offsets[answer]);
                out.data(&chunk(answer, &bit.text, Value::Null, likely)).await?;
            }
            if let Some(end) = &bit.end {
                let mut last = chunk(answer, "", finish(end).into(), Value::Null);
                last["timings"] = talk.timings(&end.stats);
                out.data(&last).await?;
            }
        }
        add(&mut used, &talk.usage);
        first += n;
    }
    if manner.usage {
        let mut last = head.value("text_completion", json!([]));
        last["usage"] = usage(&used);
        out.data(&last).await?;
    }
    out.write("data: [DONE]\n\n".into()).await
}
