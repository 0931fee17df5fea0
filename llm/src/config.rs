//! What a file's metadata says about its model: sizes, attention, routing and rotary embedding.
//!
//! In: a [`Gguf`]. Out: a [`Config`], checked, so that whatever is built from it fits together. A new architecture is a
//! row of [`FAMILIES`].

use crate::gguf::Gguf;
use crate::rope::{Rotary, Scaling};
use compiler::ops::{Gate, Rope, Router};

#[derive(Clone, Debug)]
pub struct Config {
    /// Layers of the trunk, without those that only draft.
    pub layers: i64,
    /// Layers behind the trunk that predict one token more.
    pub drafts: i64,
    pub dim: i64,
    pub vocab: i64,
    /// Positions that the model was trained for.
    pub context: i64,
    pub eps: f32,
    pub heads: i64,
    pub attention: Attention,
    pub rotary: Rotary,
    /// First layers that have no experts.
    pub dense: i64,
    pub moe: Option<Moe>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Attention {
    /// Keys and values for groups of heads.
    Gqa { kv_heads: i64, key: i64, value: i64 },
    /// One latent row of `rank` for all heads, and `rope` more elements that carry the position.
    Mla { rank: i64, nope: i64, rope: i64, value: i64 },
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Moe {
    pub experts: i64,
    pub router: Router,
}

/// What the name of an architecture implies and its keys do not say.
struct Family {
    name: &'static str,
    mla: bool,
    rope: Rope,
    /// Do the chosen experts' weights sum to one where no key says so?
    normalise: bool,
}

const fn family(name: &'static str, mla: bool, rope: Rope, normalise: bool) -> Family {
    Family { name, mla, rope, normalise }
}

const FAMILIES: [Family; 5] = [
    family("deepseek2", true, Rope::Interleaved, false),
    family("llama", false, Rope::Interleaved, true),
    family("qwen2", false, Rope::HalfSplit, true),
    family("qwen3", false, Rope::HalfSplit, true),
    family("qwen3moe", false, Rope::HalfSplit, true),
];

#[derive(thiserror::Error, Debug)]
pub enum Error {
    #[error(transparent)]
    File(#[from] crate::gguf::Error),
    #[error("{file}: the architecture `{found}` is not known; known are {}", FAMILIES.map(|f| f.name).join(", "))]
    Architecture { file: String, found: String },
    #[error("{file}: `{key}` is {found}, expected {expected}")]
    Value { file: String, key: String, found: String, expected: String },
}

/// The keys of one architecture.
struct Keys<'a> {
    file: &'a Gguf,
    prefix: &'a str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }
    fn wrong(&self, name: &str, found: impl ToString, expected: impl ToString) -> Error {
        Error::Value {
            file: self.file.name().into(),
            key: self.key(name),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }
    fn within(&self, name: &str, v: i64, least: i64) -> Result<i64, Error> {
        // Far above any model, and small enough that products of three sizes do not overflow.
        const MOST: i64 = 1 << 20;
        let most = if name == "context_length" { i64::MAX } else { MOST };
        if (least..=most).contains(&v) {
            Ok(v)
        } else {
            Err(self.wrong(name, v, format!("{least} to {most}")))
        }
    }
    /// A size, at least 1.
    fn size(&self, name: &str) -> Result<i64, Error> {
        self.within(name, self.file.int(&self.key(name))?, 1)
    }
    /// A count that may be absent or 0.
    fn count(&self, name: &str) -> Result<i64, Error> {
        let v = self.file.opt_int(&self.key(name))?.unwrap_or(0);
        self.within(name, v, 0)
    }
    fn size_or(&self, name: &str, default: i64) -> Result<i64, Error> {
        match self.file.opt_int(&self.key(name))? {
            Some(v) => self.within(name, v, 1),
            None => Ok(default),
        }
    }
    fn float_or(&self, name: &str, default: f32) -> Result<f32, Error> {
        let v = self.file.opt_float(&self.key(name))?.unwrap_or(default);
        if v.is_finite() { Ok(v) } else { Err(self.wrong(name, v, "a finite number")) }
    }
}

impl Config {
    pub fn read(file: &Gguf) -> Result<Config, Error> {
        let name = file.architecture()?;
        let family = FAMILIES
            .iter()
            .find(|f| f.name == name)
            .ok_or_else(|| Error::Architecture { file: file.name().into(), found: name.into() })?;
        let k = Keys { file, prefix: name };
        let blocks = k.size("block_count")?;
        let drafts = k.count("nextn_predict_layers")?;
        if drafts >= blocks {
            return Err(k.wrong("nextn_predict_layers", drafts, format!("less than the {blocks} blocks")));
        }
        let layers = blocks - drafts;
        let dim = k.size("embedding_length")?;
        let heads = k.size("attention.head_count")?;
        let vocab = vocabulary(&k)?;
        let attention = if family.mla { mla(&k)? } else { gqa(&k, dim, heads)? };
        let turning = match attention {
            Attention::Mla { rope, .. } => rope,
            Attention::Gqa { key, .. } => k.size_or("rope.dimension_count", key)?,
        };
        let most = match attention {
            Attention::Mla { rope, .. } => rope,
            Attention::Gqa { key, .. } => key,
        };
        if turning % 2 != 0 || turning > most {
            return Err(k.wrong("rope.dimension_count", turning, format!("an even number up to {most}")));
        }
        let moe = experts(&k, family, blocks, vocab)?;
        let dense = if moe.is_some() { k.count("leading_dense_block_count")? } else { blocks };
        let context = k.size("context_length")?;
        Ok(Config {
            layers,
            drafts,
            dim,
            vocab,
            context,
            eps: k.float_or("attention.layer_norm_rms_epsilon", 1e-5)?,
            heads,
            attention,
            rotary: rotary(&k, family, turning, context)?,
            dense,
            moe,
        })
    }

    /// Does this layer choose among experts?
    pub fn has_experts(&self, layer: i64) -> bool {
        self.moe.is_some() && layer >= self.dense
    }

    /// What the scores of attention are multiplied by.
    pub fn score_scale(&self) -> f32 {
        let key = match self.attention {
            Attention::Gqa { key, .. } => key,
            Attention::Mla { nope, rope, .. } => nope + rope,
        };
        self.rotary.score_factor() / (key as f32).sqrt()
    }
}

fn vocabulary(k: &Keys) -> Result<i64, Error> {
    let embedding = k.file.tensor("token_embd.weight").and_then(|t| t.dims.first().copied());
    match (embedding, k.file.opt_int(&k.key("vocab_size"))?) {
        (Some(rows), Some(v)) if v != rows => {
            Err(k.wrong("vocab_size", v, format!("{rows}, the rows of token_embd.weight")))
        }
        (Some(rows), _) => Ok(rows),
        (None, Some(v)) => k.within("vocab_size", v, 1),
        (None, None) => k.size("vocab_size"),
    }
}

fn gqa(k: &Keys, dim: i64, heads: i64) -> Result<Attention, Error> {
    let kv_heads = k.size_or("attention.head_count_kv", heads)?;
    if heads % kv_heads != 0 {
        let expected = format!("a divisor of the {heads} heads");
        return Err(k.wrong("attention.head_count_kv", kv_heads, expected));
    }
    let key = k.size_or("attention.key_length", dim / heads)?;
    Ok(Attention::Gqa { kv_heads, key, value: k.size_or("attention.value_length", key)? })
}

/// Newer files say `*_mla` for the sizes of a head, and for the cache what older files say for a head.
fn mla(k: &Keys) -> Result<Attention, Error> {
    let rank = k.size("attention.kv_lora_rank")?;
    let rope = k.size("rope.dimension_count")?;
    let (name, key) = match k.file.opt_int(&k.key("attention.key_length_mla"))? {
        Some(_) => ("attention.key_length_mla", k.size("attention.key_length_mla")?),
        None => ("attention.key_length", k.size("attention.key_length")?),
    };
    if key <= rope {
        return Err(k.wrong(name, key, format!("more than the {rope} elements that carry the position")));
    }
    let value = match k.file.opt_int(&k.key("attention.value_length_mla"))? {
        Some(_) => k.size("attention.value_length_mla")?,
        None => k.size("attention.value_length")?,
    };
    Ok(Attention::Mla { rank, nope: key - rope, rope, value })
}

fn experts(k: &Keys, family: &Family, blocks: i64, vocab: i64) -> Result<Option<Moe>, Error> {
    let experts = k.count("expert_count")?;
    if experts == 0 {
        return Ok(None);
    }
    let used = k.size("expert_used_count")?;
    if used > experts {
        return Err(k.wrong("expert_used_count", used, format!("at most the {experts} experts")));
    }
    let gate = match k.file.opt_int(&k.key("expert_gating_func"))? {
        Some(1) => Gate::Softmax,
        Some(2) => Gate::Sigmoid,
        Some(other) => return Err(k.wrong("expert_gating_func", other, "1 (softmax) or 2 (sigmoid)")),
        // The first files of GLM-4.7-Flash, with and without its draft block, lack the key.
        None if matches!(blocks, 47 | 48) && vocab == 154_880 => Gate::Sigmoid,
        None => Gate::Softmax,
    };
    let normalise = k.file.opt_bool(&k.key("expert_weights_norm"))?.unwrap_or(family.normalise);
    let scale = match k.float_or("expert_weights_scale", 1.0)? {
        0.0 => 1.0,
        s => s,
    };
    let groups = k.count("expert_group_count")?.max(1);
    let groups_used = k.size_or("expert_group_used_count", groups)?;
    if experts % groups != 0 {
        return Err(k.wrong("expert_group_count", groups, format!("a divisor of the {experts} experts")));
    }
    if groups_used > groups || used > experts / groups * groups_used {
        let expected = format!("at most {groups}, and enough of them for {used} experts");
        return Err(k.wrong("expert_group_used_count", groups_used, expected));
    }
    Ok(Some(Moe { experts, router: Router { gate, k: used, normalise, scale, groups, groups_used } }))
}

fn rotary(k: &Keys, family: &Family, dims: i64, context: i64) -> Result<Rotary, Error> {
    let factor = k.float_or("rope.scaling.factor", 1.0)?;
    if factor <= 0.0 {
        return Err(k.wrong("rope.scaling.factor", factor, "a positive number"));
    }
    let scaling = match k.file.opt_text(&k.key("rope.scaling.type"))? {
        None | Some("none") => Scaling::None,
        Some("linear") => Scaling::Linear { factor },
        Some("yarn") => Scaling::Yarn {
            factor,
            original: k.size_or("rope.scaling.original_context_length", context)?,
            fast: k.float_or("rope.scaling.yarn_beta_fast", 32.0)?,
            slow: k.float_or("rope.scaling.yarn_beta_slow", 1.0)?,
            log_multiplier: k.file.opt_float(&k.key("rope.scaling.yarn_log_multiplier"))?,
        },
        Some(other) => return Err(k.wrong("rope.scaling.type", other, "none, linear or yarn")),
    };
    let base = k.float_or("rope.freq_base", 10_000.0)?;
    if base <= 1.0 {
        return Err(k.wrong("rope.freq_base", base, "more than 1"));
    }
    Ok(Rotary { style: family.rope, dims, base, scaling })
}
