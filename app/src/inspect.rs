//! `glimmer inspect`: a model's metadata, tensors, and what running it takes; as text or as one JSON document.

use crate::args::Inspect;
use crate::model;
use anyhow::Result;
use llm::gguf::{Array, Gguf, TensorInfo, Value};
use llm::sample::Sampling;
use llm::size::Size;
use serde_json::{Map, json};
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};

pub fn run(args: &Inspect) -> Result<()> {
    let model = model::open(args.model.as_deref())?;
    let report = Report::new(&model, args.ctx)?;
    let text = if args.json { report.json(args.tensors)? } else { report.text(args.tensors)? };
    match io::stdout().write_all(text.as_bytes()) {
        // Whoever reads has seen enough.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

struct Report<'a> {
    model: &'a Gguf,
    size: Size,
    types: Vec<Type>,
    /// The defaults, and what the file recommends instead.
    sampling: Sampling,
    context: u64,
}

/// All tensors of one format.
struct Type {
    name: &'static str,
    tensors: usize,
    elements: i64,
    bytes: u64,
}

const CONTEXT: u64 = 4096;

impl Report<'_> {
    fn new(model: &Gguf, context: Option<u64>) -> Result<Report<'_>> {
        let mut types: Vec<Type> = Vec::new();
        for t in model.tensors() {
            let place = types.iter().position(|k| k.name == t.format.name).unwrap_or_else(|| {
                types.push(Type { name: t.format.name, tensors: 0, elements: 0, bytes: 0 });
                types.len() - 1
            });
            types[place].tensors += 1;
            types[place].elements += t.elements();
            types[place].bytes += t.bytes() as u64;
        }
        types.sort_by_key(|t| std::cmp::Reverse(t.bytes));
        let arch = model.opt_text("general.architecture")?.unwrap_or_default();
        let longest = model.opt_int(&format!("{arch}.context_length"))?.and_then(|n| u64::try_from(n).ok());
        let context = context.unwrap_or(CONTEXT.min(longest.unwrap_or(CONTEXT)));
        let sampling = Sampling::from_gguf(model)?;
        Ok(Report { model, size: Size::of(model)?, types, sampling, context })
    }

    fn text(&self, list: bool) -> Result<String, fmt::Error> {
        let (mut out, s) = (String::new(), &self.size);
        writeln!(out, "{}\n\nmetadata", self.model.name())?;
        for (key, value) in self.model.metadata() {
            writeln!(out, "  {key:<46} {}", short(&value.to_string()))?;
        }
        if self.model.metadata().any(|(key, _)| key.starts_with("general.sampling.")) {
            let s = &self.sampling;
            let (temp, k, p, min) = (s.temperature, s.top_k, s.top_p, s.min_p);
            writeln!(
                out,
                "\nsampling    --temp {temp} --top-k {k} --top-p {p} --min-p {min} --repeat-penalty {}",
                s.repeat_penalty
            )?;
        }
        if !self.types.is_empty() {
            writeln!(out, "\ntensors{:>19}{:>14}{:>12}", "number", "elements", "bytes")?;
        }
        for t in &self.types {
            let share = 100.0 * t.bytes as f64 / s.weight_bytes as f64;
            let (elements, bytes) = (count(t.elements), size(t.bytes));
            writeln!(out, "  {:<10}{:>14}{elements:>14}{bytes:>12}{share:>6.1}%", t.name, t.tensors)?;
        }
        if list {
            writeln!(out)?;
            for t in self.model.tensors() {
                let dims: Vec<String> = t.dims.iter().map(i64::to_string).collect();
                let bytes = size(t.bytes() as u64);
                writeln!(out, "  {:<36} {:<8}{:>22}{bytes:>12}", t.name, t.format.name, dims.join(" × "))?;
            }
        }
        if self.types.is_empty() {
            writeln!(out, "\nno tensors: a vocabulary")?;
            return Ok(out);
        }
        let (all, active) = (count(s.parameters), count(s.active_parameters));
        writeln!(out, "\nparameters  {all}, of which a token uses {active}")?;
        writeln!(
            out,
            "weights     {}, of which a token reads {}",
            size(s.weight_bytes),
            size(s.token_bytes)
        )?;
        writeln!(out, "KV cache    {} numbers a position, {} in f16", s.kv_numbers, size(s.kv_bytes(1)))?;
        let (memory, cache) = (size(s.memory(self.context)), size(s.kv_bytes(self.context)));
        writeln!(out, "memory      {memory} with {} positions, whose cache takes {cache}", self.context)?;
        Ok(out)
    }

    fn json(&self, list: bool) -> Result<String> {
        let s = &self.size;
        let metadata: Map<_, _> =
            self.model.metadata().map(|(k, v)| (k.to_string(), value_json(v))).collect();
        let of_type = |t: &Type| json!({"type": t.name, "tensors": t.tensors, "elements": t.elements, "bytes": t.bytes});
        let of_tensor = |t: &TensorInfo| json!({"name": t.name, "type": t.format.name, "dims": t.dims, "bytes": t.bytes()});
        let mut document = json!({
            "model": self.model.name(),
            "metadata": metadata,
            "types": self.types.iter().map(of_type).collect::<Vec<_>>(),
            "parameters": s.parameters,
            "active_parameters": s.active_parameters,
            "weight_bytes": s.weight_bytes,
            "bytes_per_token": s.token_bytes,
            "sampling": {
                "temp": self.sampling.temperature,
                "top_k": self.sampling.top_k,
                "top_p": self.sampling.top_p,
                "min_p": self.sampling.min_p,
                "repeat_penalty": self.sampling.repeat_penalty,
                "repeat_last_n": self.sampling.repeat_last_n,
            },
            "kv_bytes_per_position": s.kv_bytes(1),
            "context": self.context,
            "memory_bytes": s.memory(self.context),
        });
        if list {
            document["tensors"] = self.model.tensors().iter().map(of_tensor).collect();
        }
        Ok(serde_json::to_string_pretty(&document)? + "\n")
    }
}

/// Arrays longer than this are shown by their beginning.
const WHOLE: usize = 64;

fn value_json(value: &Value) -> serde_json::Value {
    match value {
        Value::U8(v) => json!(v),
        Value::I8(v) => json!(v),
        Value::U16(v) => json!(v),
        Value::I16(v) => json!(v),
        Value::U32(v) => json!(v),
        Value::I32(v) => json!(v),
        Value::F32(v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::String(v) => json!(v),
        Value::U64(v) => json!(v),
        Value::I64(v) => json!(v),
        Value::F64(v) => json!(v),
        Value::Array(v) if v.len() > WHOLE => {
            json!({"type": v.type_name(), "length": v.len(), "first": array_json(v)})
        }
        Value::Array(v) => array_json(v),
    }
}

fn array_json(array: &Array) -> serde_json::Value {
    match array {
        Array::U8(v) => json!(first(v)),
        Array::I8(v) => json!(first(v)),
        Array::U16(v) => json!(first(v)),
        Array::I16(v) => json!(first(v)),
        Array::U32(v) => json!(first(v)),
        Array::I32(v) => json!(first(v)),
        Array::F32(v) => json!(first(v)),
        Array::Bool(v) => json!(first(v)),
        Array::Strings(v) => v.iter().take(WHOLE).collect(),
        Array::Arrays(v) => first(v).iter().map(array_json).collect(),
        Array::U64(v) => json!(first(v)),
        Array::I64(v) => json!(first(v)),
        Array::F64(v) => json!(first(v)),
    }
}
fn first<T>(v: &[T]) -> &[T] {
    &v[..v.len().min(WHOLE)]
}

/// One line of at most 100 characters.
fn short(text: &str) -> String {
    match text.char_indices().nth(100) {
        Some((end, _)) => format!("{}... {} characters", &text[..end], text.chars().count()),
        None => text.into(),
    }
}

fn count(n: i64) -> String {
    scaled(n as f64, &[(1e9, " B"), (1e6, " M"), (1e3, " k")]).unwrap_or_else(|| n.to_string())
}
fn size(bytes: u64) -> String {
    let units = [(1e9, " GB"), (1e6, " MB"), (1e3, " kB")];
    scaled(bytes as f64, &units).unwrap_or_else(|| format!("{bytes} B"))
}
fn scaled(n: f64, units: &[(f64, &str)]) -> Option<String> {
    units.iter().find(|u| n >= u.0).map(|(unit, name)| format!("{:.2}{name}", n / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn story_model_is_described() {
        let model = model::open(None).unwrap();
        let report = Report::new(&model, Some(1024)).unwrap();
        let text = report.text(true).unwrap();
        for part in [
            "deepseek2.block_count                          8\n",
            "tokenizer.ggml.tokens                          [\"!\", \"\\\"\",",
            "... 8192 in all]",
            "  Q4_K",
            "  blk.1.ffn_down_exps.weight           Q4_K            16 × 256 × 256",
            "KV cache    1120 numbers a position, 2.24 kB in f16",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        let json: serde_json::Value = serde_json::from_str(&report.json(true).unwrap()).unwrap();
        assert_eq!(json["metadata"]["tokenizer.ggml.tokens"]["length"], 8192);
        assert_eq!(json["metadata"]["deepseek2.expert_used_count"], 4);
        assert_eq!(json["tensors"].as_array().unwrap().len(), model.tensors().len());
        assert_eq!(json["memory_bytes"].as_u64(), Some(model.bytes_total() + 1024 * 2240));
        let types = json["types"].as_array().unwrap();
        assert_eq!(types.iter().map(|t| t["bytes"].as_u64().unwrap()).sum::<u64>(), model.bytes_total());
    }

    #[test]
    fn long_values_are_cut() {
        assert_eq!(short(&"ż".repeat(101)), format!("{}... 101 characters", "ż".repeat(100)));
        assert_eq!(
            (size(999), size(2_124_000_000), count(31)),
            ("999 B".into(), "2.12 GB".into(), "31".into())
        );
    }
}
