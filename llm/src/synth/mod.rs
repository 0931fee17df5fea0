//! Models of known shapes with random weights. In: a name such as `glm-4.7-flash:q4_0`. Out: a [`Gguf`] without a file, with
//! the keys, tensors and types of the published one, so that it reads as many bytes for a token.
//!
//! The vocabulary is the 256 bytes and then made-up tokens that no text contains: any text can be tokenised.

mod shapes;
#[cfg(test)]
mod tests;
mod weights;

use crate::gguf::{self, Gguf, Strings, Value};
use compiler::quant::Format;
use shapes::{Attention, Gating, SHAPES, Scaling, Shape};
use weights::Weights;

/// Sizes that differ from the published ones.
#[derive(Clone, Copy, Default, Debug)]
pub struct Changes {
    pub layers: Option<i64>,
    pub vocab: Option<i64>,
    pub experts: Option<i64>,
}

#[derive(thiserror::Error, Debug)]
pub enum Error {
    #[error("no synthetic model is called {name:?}; there are {}", names().join(", "))]
    Name { name: String },
    #[error("{name}: no quantisation is called {quant:?}; there are {}", QUANTS.map(|q| q.0).join(", "))]
    Quant { name: String, quant: String },
    #[error("{name}: {what} must be from {least} to {most}, not {given}")]
    Change { name: String, what: &'static str, least: i64, most: i64, given: i64 },
    #[error("{name} has no experts to change")]
    Dense { name: String },
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
}

/// A mix of types. Quantised ones are those of published files: Q4_0 made with an importance matrix, and Q4_K_M.
#[derive(Clone, Copy, PartialEq)]
enum Quant {
    Q4_0,
    Q4KM,
    Q8_0,
    F16,
}
const QUANTS: [(&str, Quant); 4] =
    [("q4_0", Quant::Q4_0), ("q4_k_m", Quant::Q4KM), ("q8_0", Quant::Q8_0), ("f16", Quant::F16)];

/// The names that [`open`] knows.
pub fn names() -> Vec<&'static str> {
    SHAPES.iter().map(|s| s.name).collect()
}
/// The quantisations that [`open`] knows.
pub fn quants() -> Vec<&'static str> {
    QUANTS.iter().map(|q| q.0).collect()
}

/// The model `NAME:QUANT`, or `NAME` in Q4_0.
pub fn open(spec: &str, changes: Changes) -> Result<Gguf, Error> {
    let spec = spec.to_lowercase();
    let (name, quant) = spec.split_once(':').unwrap_or((&spec, "q4_0"));
    let shape = SHAPES.iter().find(|s| s.name == name).ok_or_else(|| Error::Name { name: name.into() })?;
    let no_quant = || Error::Quant { name: name.into(), quant: quant.into() };
    let &(label, quant) = QUANTS.iter().find(|q| q.0 == quant).ok_or_else(no_quant)?;
    let shape = shape.changed(changes)?;

    let mut weights = Weights::default();
    if let Some(factors) = shape.rope_factors() {
        weights.fix("rope_freqs.weight", &factors);
    }
    let tensors = shape.tensors().into_iter().map(|t| {
        let format = fitting(shape.tensor_type(quant, &t), t.dims[t.dims.len() - 1]);
        (t.name, format, t.dims)
    });
    let make = Box::new(move |t: &gguf::TensorInfo, range| weights.make(t, range));
    Ok(Gguf::made(&format!("synth:{name}:{label}"), shape.metadata(label), tensors.collect(), make)?)
}

struct Tensor {
    name: String,
    /// None outside the blocks.
    layer: Option<i64>,
    dims: Vec<i64>,
}

/// What is used where a row is no multiple of the block, as by llama.cpp's quantiser.
fn fitting(name: &str, row: i64) -> &'static Format {
    let format = |name| Format::by_name(name).expect("a format of the table");
    if row % format(name).block == 0 {
        return format(name);
    }
    format(match name {
        _ if row % 32 != 0 => "F16",
        "Q4_K" | "Q5_K" => "Q5_0",
        "Q6_K" => "Q8_0",
        _ => "F16",
    })
}

impl Shape {
    fn changed(mut self, changes: Changes) -> Result<Shape, Error> {
        let name = self.name.to_string();
        let within = |what, least, most, given: i64| match given {
            _ if (least..=most).contains(&given) => Ok(given),
            _ => Err(Error::Change { name: name.clone(), what, least, most, given }),
        };
        if let Some(layers) = changes.layers {
            self.layers = within("layers", 1, 1000, layers)?;
        }
        if let Some(vocab) = changes.vocab {
            // The bytes, a beginning and an end.
            self.vocab = within("vocab", 256 + 2, 1 << 20, vocab)?;
        }
        match (changes.experts, &mut self.moe) {
            (None, _) => {}
            (Some(experts), Some(moe)) => moe.experts = within("experts", moe.used, 4096, experts)?,
            (Some(_), None) => return Err(Error::Dense { name }),
        }
        Ok(self)
    }

    /// Layers without experts.
    fn dense(&self) -> i64 {
        self.moe.map_or(self.layers, |m| m.dense)
    }

    fn tensors(&self) -> Vec<Tensor> {
        let (d, h) = (self.dim, self.heads);
        let mut out =
            vec![Tensor { name: "token_embd.weight".into(), layer: None, dims: vec![self.vocab, d] }];
        if let Some(factors) = self.rope_factors() {
            let dims = vec![factors.len() as i64];
            out.push(Tensor { name: "rope_freqs.weight".into(), layer: None, dims });
        }
        for i in 0..self.layers {
            let mut add = |name: &str, dims: &[i64]| {
                out.push(Tensor { name: format!("blk.{i}.{name}"), layer: Some(i), dims: dims.to_vec() });
            };
            add("attn_norm.weight", &[d]);
            match self.attention {
                Attention::Mla { q_lora, kv_lora, nope, rope, v } => {
                    if q_lora > 0 {
                        add("attn_q_a.weight", &[q_lora, d]);
                        add("attn_q_a_norm.weight", &[q_lora]);
                        add("attn_q_b.weight", &[h * (nope + rope), q_lora]);
                    } else {
                        add("attn_q.weight", &[h * (nope + rope), d]);
                    }
                    add("attn_kv_a_mqa.weight", &[kv_lora + rope, d]);
                    add("attn_kv_a_norm.weight", &[kv_lora]);
                    add("attn_k_b.weight", &[h, kv_lora, nope]);
                    add("attn_v_b.weight", &[h, v, kv_lora]);
                    add("attn_output.weight", &[d, h * v]);
                }
                Attention::Gqa { kv_heads, head, biases, norms } => {
                    for (part, heads) in [("q", h), ("k", kv_heads), ("v", kv_heads)] {
                        add(&format!("attn_{part}.weight"), &[heads * head, d]);
                        if biases {
                            add(&format!("attn_{part}.bias"), &[heads * head]);
                        }
                    }
                    if norms {
                        add("attn_q_norm.weight", &[head]);
                        add("attn_k_norm.weight", &[head]);
                    }
                    add("attn_output.weight", &[d, h * head]);
                }
            }
            add("ffn_norm.weight", &[d]);
            match self.moe {
                Some(m) if i >= m.dense => {
                    let (e, f, s) = (m.experts, m.ff, m.ff * m.shared);
                    add("ffn_gate_inp.weight", &[e, d]);
                    if m.bias {
                        add("exp_probs_b.bias", &[e]);
                    }
                    add("ffn_gate_exps.weight", &[e, f, d]);
                    add("ffn_up_exps.weight", &[e, f, d]);
                    add("ffn_down_exps.weight", &[e, d, f]);
                    if s > 0 {
                        add("ffn_gate_shexp.weight", &[s, d]);
                        add("ffn_up_shexp.weight", &[s, d]);
                        add("ffn_down_shexp.weight", &[d, s]);
                    }
                }
                _ => {
                    add("ffn_gate.weight", &[self.ff, d]);
                    add("ffn_up.weight", &[self.ff, d]);
                    add("ffn_down.weight", &[d, self.ff]);
                }
            }
        }
        out.push(Tensor { name: "output_norm.weight".into(), layer: None, dims: vec![d] });
        if !self.tied {
            out.push(Tensor { name: "output.weight".into(), layer: None, dims: vec![self.vocab, d] });
        }
        out
    }

    fn tensor_type(&self, quant: Quant, t: &Tensor) -> &'static str {
        let (name, eighth) = (t.name.as_str(), self.layers / 8);
        let plain = ["norm.weight", "ffn_gate_inp.weight", "bias", "rope_freqs.weight"];
        if plain.iter().any(|end| name.ends_with(end)) {
            return "F32";
        }
        let has = |part| name.contains(part);
        // Every third layer, and all of the first and last eighth, have more bits.
        let more = t.layer.is_some_and(|l| l < eighth || l >= 7 * self.layers / 8 || (l - eighth) % 3 == 2);
        match quant {
            Quant::F16 => "F16",
            Quant::Q8_0 => "Q8_0",
            _ if name == "output.weight" => "Q6_K",
            Quant::Q4KM if has("attn_k_b") => "Q8_0",
            _ if has("ffn_down_shexp") => "Q6_K",
            _ if has("shexp") => "Q5_K",
            Quant::Q4_0 if has("ffn_down") && t.layer.is_some_and(|l| l < eighth) => "Q4_1",
            Quant::Q4_0 => "Q4_0",
            Quant::Q4KM if name == "token_embd.weight" && self.tied => "Q6_K",
            Quant::Q4KM if has("attn_v_b") || (more && (has("ffn_down") || has("attn_v."))) => "Q6_K",
            Quant::Q4KM => "Q4_K",
        }
    }

    /// What the wavelengths of Llama 3 are stretched by.
    fn rope_factors(&self) -> Option<Vec<f32>> {
        let (Scaling::Llama3 { factor, low, high, context }, Attention::Gqa { head, .. }) =
            (self.scaling, self.attention)
        else {
            return None;
        };
        let stretch = |i: i64| {
            let wavelength = std::f64::consts::TAU * (self.theta as f64).powf(2.0 * i as f64 / head as f64);
            let smooth = ((context / wavelength - low) / (high - low)).clamp(0.0, 1.0);
            ((1.0 - smooth) / factor + smooth).recip() as f32
        };
        Some((0..head / 2).map(stretch).collect())
    }

    fn metadata(&self, label: &str) -> Vec<(String, Value)> {
        let mut kv: Vec<(String, Value)> = vec![
            ("general.architecture".into(), self.arch.into()),
            ("general.name".into(), format!("synthetic-{label}").as_str().into()),
            ("general.quantization_version".into(), 2u32.into()),
        ];
        let mut add = |key: &str, value: Value| kv.push((format!("{}.{key}", self.arch), value));
        let int = |v: i64| Value::U32(v as u32);
        add("block_count", int(self.layers));
        add("context_length", int(self.context));
        add("embedding_length", int(self.dim));
        add("feed_forward_length", int(self.ff));
        add("attention.head_count", int(self.heads));
        add("attention.layer_norm_rms_epsilon", self.eps.into());
        add("rope.freq_base", self.theta.into());
        add("vocab_size", int(self.vocab));
        match self.attention {
            Attention::Mla { q_lora, kv_lora, nope, rope, v } => {
                add("attention.head_count_kv", int(1));
                if q_lora > 0 {
                    add("attention.q_lora_rank", int(q_lora));
                }
                add("attention.kv_lora_rank", int(kv_lora));
                add("attention.key_length", int(kv_lora + rope));
                add("attention.value_length", int(kv_lora));
                add("attention.key_length_mla", int(nope + rope));
                add("attention.value_length_mla", int(v));
                add("rope.dimension_count", int(rope));
                // Dense models of this architecture have these keys too.
                add("leading_dense_block_count", int(self.dense()));
                add("expert_shared_count", int(self.moe.map_or(0, |m| m.shared)));
                add("expert_weights_scale", self.moe.map_or(1.0, |m| m.scale).into());
                add("expert_weights_norm", self.moe.is_some_and(|m| m.normalised).into());
                add("expert_gating_func", int(self.moe.map_or(Gating::Sigmoid, |m| m.gating) as i64));
                add("expert_feed_forward_length", int(self.moe.map_or(self.ff, |m| m.ff)));
            }
            Attention::Gqa { kv_heads, head, .. } => {
                add("attention.head_count_kv", int(kv_heads));
                add("attention.key_length", int(head));
                add("attention.value_length", int(head));
                add("rope.dimension_count", int(head));
                if let Some(m) = self.moe {
                    add("expert_feed_forward_length", int(m.ff));
                }
            }
        }
        if let Some(m) = self.moe {
            add("expert_count", int(m.experts));
            add("expert_used_count", int(m.used));
        }
        if let Scaling::Yarn { factor, context, log_multiplier } = self.scaling {
            add("rope.scaling.type", "yarn".into());
            add("rope.scaling.factor", factor.into());
            add("rope.scaling.original_context_length", context.into());
            add("rope.scaling.yarn_log_multiplier", log_multiplier.into());
        }
        kv.extend(self.tokenizer());
        kv
    }

    fn tokenizer(&self) -> [(String, Value); 7] {
        let made_up = (256..self.vocab).map(|i| format!("<t{i}>"));
        let tokens: Strings = (0..=255).map(|b| alias(b).to_string()).chain(made_up).collect();
        let merges: Strings = [format!("{0} {0}", alias(b' '))].iter().collect();
        [
            ("model", "gpt2".into()),
            ("pre", self.pre.into()),
            ("tokens", tokens.into()),
            ("token_type", vec![1i32; self.vocab as usize].into()),
            ("merges", merges.into()),
            ("eos_token_id", (self.vocab as u32 - 1).into()),
            ("bos_token_id", (self.vocab as u32 - 2).into()),
        ]
        .map(|(key, value)| (format!("tokenizer.ggml.{key}"), value))
    }
}

/// The printable character that stands for a byte in vocabularies of GPT-2's kind: itself, or the next from U+0100 on.
fn alias(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if printable(byte) {
        return byte.into();
    }
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(256 + before).expect("below the surrogates")
}
