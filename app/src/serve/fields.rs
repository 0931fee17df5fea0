//! What requests have in common: JSON text in, structs out; each wrong field is named.
//!
//! A struct takes its own fields from the document and leaves the others alone, so that one document is read as several
//! structs. `null` is as good as absent.

use super::error::{Refused, Result};
use llm::generate::Request;
use llm::sample::Sampling;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::time::SystemTime;

/// A body as a JSON object.
pub fn document(body: &[u8]) -> Result<Value> {
    let value: Value = serde_json::from_slice(body).map_err(|e| {
        let refused = Refused::bad(format!("the body is no JSON: {e}"));
        Refused { code: Some("invalid_json"), ..refused }
    })?;
    match value {
        Value::Object(_) => Ok(value),
        _ => Err(Refused::bad("the body has to be a JSON object")),
    }
}

/// The fields of `T` in a document.
pub fn read<T: DeserializeOwned>(document: &Value) -> Result<T> {
    serde_path_to_error::deserialize(document).map_err(|e| {
        let path = e.path().to_string();
        let message = e.into_inner().to_string();
        match path.as_str() {
            "." => match message.strip_prefix("missing field `").and_then(|m| m.split_once('`')) {
                Some((name, _)) => Refused::field(name, "is needed"),
                None => Refused::bad(message),
            },
            _ => Refused::field(path, message),
        }
    })
}

/// How tokens are chosen and when an answer ends, by the names that the APIs and llama.cpp's server use.
#[derive(Deserialize, Default)]
pub struct Knobs {
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    repeat_penalty: Option<f64>,
    repetition_penalty: Option<f64>,
    repeat_last_n: Option<i64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    seed: Option<i64>,
    logit_bias: Option<Map<String, Value>>,
    stop: Option<Value>,
    stop_sequences: Option<Vec<String>>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    max_output_tokens: Option<i64>,
    cache_prompt: Option<bool>,
}

/// What a request is read with.
pub struct Facts {
    /// Bounds the ids of `logit_bias`.
    pub vocab: usize,
    /// What holds where the request says nothing.
    pub sampling: Sampling,
}

impl Facts {
    /// Of a model that recommends nothing.
    pub fn plain(vocab: usize) -> Facts {
        Facts { vocab, sampling: Sampling::default() }
    }
}

/// Stop texts of a request at most, and bytes of each.
const STOPS: usize = 32;
const STOP_BYTES: usize = 1024;

impl Knobs {
    pub fn reuse(&self) -> bool {
        self.cache_prompt.unwrap_or(true)
    }

    pub fn request(&self, split_reasoning: bool, of: &Facts) -> Result<Request> {
        let d = &of.sampling;
        let repeat = self.repeat_penalty.map(|p| ("repeat_penalty", p));
        let repeat = repeat.or(self.repetition_penalty.map(|p| ("repetition_penalty", p)));
        let (repeat_name, repeat) = repeat.map_or(("", None), |(name, p)| (name, Some(p)));
        let sampling = Sampling {
            temperature: within("temperature", self.temperature, d.temperature, 0.0, 2.0)?,
            top_k: at_least("top_k", self.top_k, -1)?.map_or(d.top_k, |k| k.max(0) as usize),
            top_p: within("top_p", self.top_p, d.top_p, 0.0, 1.0)?,
            min_p: within("min_p", self.min_p, d.min_p, 0.0, 1.0)?,
            repeat_penalty: within(repeat_name, repeat, d.repeat_penalty, 0.01, 100.0)?,
            repeat_last_n: match at_least("repeat_last_n", self.repeat_last_n, -1)? {
                Some(-1) => usize::MAX,
                n => n.map_or(d.repeat_last_n, |n| n as usize),
            },
            presence_penalty: within("presence_penalty", self.presence_penalty, 0.0, -2.0, 2.0)?,
            frequency_penalty: within("frequency_penalty", self.frequency_penalty, 0.0, -2.0, 2.0)?,
            logit_bias: self.bias(of.vocab)?,
            seed: self.seed.filter(|s| *s >= 0).map_or_else(any_seed, |s| s as u64),
        };
        Ok(Request { sampling, max_tokens: self.most()?, stop: self.stops()?, split_reasoning })
    }

    fn most(&self) -> Result<Option<usize>> {
        let given = [
            ("max_completion_tokens", self.max_completion_tokens),
            ("max_output_tokens", self.max_output_tokens),
            ("max_tokens", self.max_tokens),
        ];
        for (name, value) in given {
            if let Some(n) = at_least(name, value, 0)? {
                return Ok(Some(n as usize));
            }
        }
        Ok(None)
    }

    fn stops(&self) -> Result<Vec<String>> {
        let (name, stops) = match (&self.stop, &self.stop_sequences) {
            (Some(Value::Null) | None, given) => ("stop_sequences", given.clone().unwrap_or_default()),
            (Some(Value::String(one)), _) => ("stop", vec![one.clone()]),
            (Some(Value::Array(several)), _) => {
                let texts = several.iter().map(|s| s.as_str().map(String::from)).collect::<Option<_>>();
                ("stop", texts.ok_or_else(|| Refused::field("stop", "expected a text or a list of texts"))?)
            }
            _ => return Err(Refused::field("stop", "expected a text or a list of texts")),
        };
        if stops.len() > STOPS || stops.iter().any(|s| s.len() > STOP_BYTES) {
            return Err(Refused::field(name, format!("at most {STOPS} texts of {STOP_BYTES} bytes")));
        }
        Ok(stops)
    }

    fn bias(&self, vocab: usize) -> Result<Vec<(u32, f32)>> {
        let none = Map::new();
        let entry = |(id, bias): (&String, &Value)| {
            let at = || format!("logit_bias.{id}");
            let token = id.parse::<u32>().ok().filter(|t| (*t as usize) < vocab);
            let token = token.ok_or_else(|| Refused::field(at(), "no token of this model has that id"))?;
            let bias = bias.as_f64().filter(|b| (-100.0..=100.0).contains(b));
            let bias = bias.ok_or_else(|| Refused::field(at(), "expected a number from -100 to 100"))?;
            // As with OpenAI, the lowest bias is a ban.
            Ok((token, if bias == -100.0 { f32::NEG_INFINITY } else { bias as f32 }))
        };
        self.logit_bias.as_ref().unwrap_or(&none).iter().map(entry).collect()
    }
}

fn within(name: &str, value: Option<f64>, otherwise: f32, least: f64, most: f64) -> Result<f32> {
    match value {
        None => Ok(otherwise),
        Some(v) if (least..=most).contains(&v) => Ok(v as f32),
        Some(v) => Err(Refused::field(name, format!("expected a number from {least} to {most}, not {v}"))),
    }
}

fn at_least(name: &str, value: Option<i64>, least: i64) -> Result<Option<i64>> {
    match value {
        Some(v) if v < least => {
            Err(Refused::field(name, format!("expected a number that is at least {least}, not {v}")))
        }
        v => Ok(v),
    }
}

/// A number of things within bounds, or what it is by default.
pub fn count(name: &str, value: Option<i64>, otherwise: usize, least: i64, most: i64) -> Result<usize> {
    match value {
        None => Ok(otherwise),
        Some(v) if (least..=most).contains(&v) => Ok(v as usize),
        Some(v) => Err(Refused::field(name, format!("expected a number from {least} to {most}, not {v}"))),
    }
}

/// Another one each time.
fn any_seed() -> u64 {
    random() & (i64::MAX as u64)
}

/// Not to be guessed from the time alone.
pub fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let mut hasher = RandomState::new().build_hasher();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    hasher.write_u128(now.map_or(0, |t| t.as_nanos()));
    hasher.finish()
}

/// `prefix` and 24 hexadecimal digits.
pub fn new_id(prefix: &str) -> String {
    format!("{prefix}{:016x}{:08x}", random(), random() as u32)
}

pub fn unix_time() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |t| t.as_secs())
}

/// The text of a message's content: a text, or a list of parts that are texts.
pub fn content_text(content: &Value, at: &str) -> Result<String> {
    match content {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let mut all = String::new();
            for (i, part) in parts.iter().enumerate() {
                all.push_str(part_text(part, &format!("{at}[{i}]"))?);
            }
            Ok(all)
        }
        _ => Err(Refused::field(at, "expected a text or a list of parts")),
    }
}

fn part_text<'a>(part: &'a Value, at: &str) -> Result<&'a str> {
    if let Value::String(text) = part {
        return Ok(text);
    }
    let kind = part.get("type").and_then(Value::as_str).unwrap_or("");
    match (kind, part.get("text").and_then(Value::as_str)) {
        ("text" | "input_text" | "output_text", Some(text)) => Ok(text),
        ("refusal", _) => Ok(part.get("refusal").and_then(Value::as_str).unwrap_or("")),
        ("text" | "input_text" | "output_text", None) => {
            Err(Refused::field(format!("{at}.text"), "a text is needed"))
        }
        (kind, _) => Err(Refused::field(at, format!("parts of type {kind:?} are not understood, only text"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn knobs(document: Value) -> Result<Request> {
        read::<Knobs>(&document)?.request(true, &Facts::plain(100))
    }

    #[test]
    fn what_is_absent_or_null_has_defaults() {
        let d = Sampling::default();
        for body in [json!({}), json!({"temperature": null, "stop": null, "max_tokens": null, "seed": null})]
        {
            let request = knobs(body).unwrap();
            assert_eq!((request.sampling.temperature, request.sampling.top_k), (d.temperature, d.top_k));
            assert_eq!((request.max_tokens, request.stop.len()), (None, 0));
        }
    }

    #[test]
    fn what_the_model_recommends_holds_where_nothing_is_said() {
        let sampling = Sampling { temperature: 0.25, top_k: 7, repeat_penalty: 1.5, ..Sampling::default() };
        let of = Facts { vocab: 100, sampling };
        let of_body = |body: Value| read::<Knobs>(&body).unwrap().request(true, &of).unwrap().sampling;
        let silent = of_body(json!({}));
        assert_eq!((silent.temperature, silent.top_k, silent.repeat_penalty), (0.25, 7, 1.5));
        let said = of_body(json!({"temperature": 1, "top_k": 0, "repetition_penalty": 1}));
        assert_eq!((said.temperature, said.top_k, said.repeat_penalty), (1.0, 0, 1.0));
    }

    #[test]
    fn what_is_given_counts() {
        let request = knobs(json!({
            "temperature": 0, "top_k": -1, "seed": 7, "stop": ["a", "b"], "max_tokens": 5,
            "max_completion_tokens": 6, "logit_bias": {"3": -100, "4": 1.5}, "repetition_penalty": 1.5,
        }))
        .unwrap();
        let s = &request.sampling;
        assert_eq!((s.temperature, s.top_k, s.seed, s.repeat_penalty), (0.0, 0, 7, 1.5));
        assert_eq!(s.logit_bias, [(3, f32::NEG_INFINITY), (4, 1.5)]);
        assert_eq!((request.max_tokens, request.stop), (Some(6), vec!["a".into(), "b".into()]));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, param) in [
            (json!({"temperature": "hot"}), "temperature"),
            (json!({"temperature": -1}), "temperature"),
            (json!({"top_p": 1.5}), "top_p"),
            (json!({"max_tokens": -5}), "max_tokens"),
            (json!({"max_tokens": 1.5}), "max_tokens"),
            (json!({"stop": 3}), "stop"),
            (json!({"stop": ["a", 3]}), "stop"),
            (json!({"stop_sequences": "a"}), "stop_sequences"),
            (json!({"logit_bias": {"100": 1}}), "logit_bias.100"),
            (json!({"logit_bias": {"x": 1}}), "logit_bias.x"),
            (json!({"logit_bias": {"5": 101}}), "logit_bias.5"),
            (json!({"logit_bias": [1]}), "logit_bias"),
            (json!({"seed": "x"}), "seed"),
            (json!({"cache_prompt": 1}), "cache_prompt"),
        ] {
            let refused = knobs(body.clone()).unwrap_err();
            assert_eq!(refused.param.as_deref(), Some(param), "{body}: {}", refused.message);
        }
    }

    #[test]
    fn broken_documents_say_where() {
        let refused = document(b"{\"a\": [1,}").unwrap_err();
        assert!(refused.message.contains("line 1 column 10"), "{}", refused.message);
        assert!(document(b"[1]").is_err() && document(b"").is_err());
        let deep = "[".repeat(100_000);
        assert!(document(format!("{{\"a\": {deep}").as_bytes()).is_err());
    }
}
