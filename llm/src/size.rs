//! What running a model takes. In: a file's keys and tensor table. Out: parameters, bytes read for a token, memory.
//!
//! Nothing is estimated: a token reads every weight once, except experts that are not chosen, rows of the embedding that are
//! not looked up, and the blocks that predict further tokens.

use crate::gguf::{Error, Gguf, TensorInfo};

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Size {
    /// All of the file's.
    pub parameters: i64,
    pub weight_bytes: u64,
    /// What one token is multiplied with.
    pub active_parameters: i64,
    /// What one token makes the machine read, apart from the cache.
    pub token_bytes: u64,
    /// Numbers that the cache holds for a position; 0 where the file does not say.
    pub kv_numbers: u64,
    /// Bytes of such a number.
    pub kv_number_bytes: u64,
}

impl Size {
    /// Of a file, with a cache in f16 as it is unless activations are exact ([`Model::size`](crate::model::Model::size)).
    pub fn of(model: &Gguf) -> Result<Size, Error> {
        let arch = model.opt_text("general.architecture")?.unwrap_or_default();
        let int = |key: &str| model.opt_int(&format!("{arch}.{key}"));
        let experts = int("expert_count")?.unwrap_or(0).max(1);
        let used = int("expert_used_count")?.unwrap_or(1).clamp(0, experts);
        let layers =
            int("block_count")?.unwrap_or(0).saturating_sub(int("nextn_predict_layers")?.unwrap_or(0));
        let tied = model.tensor("output.weight").is_none();

        let (mut active, mut read) = (0i128, 0i128);
        for t in model.tensors() {
            let (elements, bytes) = (t.elements() as i128, t.bytes() as i128);
            if t.name == "token_embd.weight" && !tied {
                active += t.dims[t.dims.len() - 1] as i128;
            } else if block(t).is_none_or(|i| i < layers) {
                let of_experts = t.name.contains("_exps.");
                let (n, all) = if of_experts { (used as i128, experts as i128) } else { (1, 1) };
                active += elements * n / all;
                read += bytes * n / all;
            }
        }
        Ok(Size {
            parameters: model.tensors().iter().map(TensorInfo::elements).sum(),
            weight_bytes: model.bytes_total(),
            active_parameters: active as i64,
            token_bytes: read as u64,
            kv_numbers: kv_numbers(model, arch, layers)?,
            kv_number_bytes: 2,
        })
    }

    /// The cache for `positions`.
    pub fn kv_bytes(&self, positions: u64) -> u64 {
        self.kv_numbers.saturating_mul(self.kv_number_bytes).saturating_mul(positions)
    }
    /// Weights and the cache for `positions`.
    pub fn memory(&self, positions: u64) -> u64 {
        self.weight_bytes.saturating_add(self.kv_bytes(positions))
    }
}

/// The block that a tensor belongs to.
fn block(t: &TensorInfo) -> Option<i64> {
    t.name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// Latent attention keeps one latent vector and one rotated key for all heads; other attention keeps keys and values.
fn kv_numbers(model: &Gguf, arch: &str, layers: i64) -> Result<u64, Error> {
    let int = |key: &str| model.opt_int(&format!("{arch}.{key}"));
    let times = |a: i64, b: i64| a.max(0).saturating_mul(b.max(0));
    if let Some(latent) = int("attention.kv_lora_rank")? {
        let rope = int("rope.dimension_count")?.unwrap_or(0);
        return Ok(times(layers, latent.saturating_add(rope)) as u64);
    }
    let Some(heads) = int("attention.head_count")?.filter(|h| *h > 0) else { return Ok(0) };
    let head = int("embedding_length")?.unwrap_or(0) / heads;
    let key = int("attention.key_length")?.unwrap_or(head);
    let value = int("attention.value_length")?.unwrap_or(head);
    let kv_heads = match model.opt_ints(&format!("{arch}.attention.head_count_kv"))?.as_deref() {
        Some([n]) => times(*n, layers),
        Some(each) => each.iter().take(layers.max(0) as usize).fold(0i64, |sum, n| sum.saturating_add(*n)),
        None => times(heads, layers),
    };
    Ok(times(kv_heads, key.saturating_add(value)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::{self, Changes};

    fn size(spec: &str) -> Size {
        Size::of(&synth::open(spec, Changes::default()).unwrap()).unwrap()
    }

    /// Counted by hand from the published configuration: parameters of one token in attention, experts, shared experts,
    /// the dense block and the head.
    #[test]
    fn glm_reads_what_its_configuration_says() {
        let s = size("glm-4.7-flash:q4_0");
        let attention = 2048 * 768 + 768 * 20 * 256 + 2048 * 576 + 20 * 512 * (192 + 256) + 20 * 256 * 2048;
        let expert = 3 * 2048 * 1536;
        let (head, norms) = (154880 * 2048, 47 * (2 * 2048 + 768 + 512) + 2048);
        let router = 46 * (64 * 2048 + 64);
        let active = 47 * attention + 46 * 5 * expert + 3 * 2048 * 10240 + head + norms + router + 2048;
        assert_eq!(s.active_parameters, active);
        assert_eq!(s.kv_numbers, 47 * 576);
        // Bits: Q4_0 4.5, Q4_1 5 (down in the first five layers), Q5_K 5.5 and Q6_K 6.5625 (shared experts, head).
        let matrix = expert / 3;
        let routed = 4 * (46 * 3 * matrix * 9 / 2 + 4 * matrix / 2);
        let shared = 46 * matrix * (11 + 11) / 2 + 46 * matrix * 105 / 16;
        let dense = 2048 * 10240 * (9 + 9 + 10) / 2;
        let bits = 47 * attention * 9 / 2 + routed + shared + dense + head * 105 / 16 + (norms + router) * 32;
        assert_eq!(s.token_bytes as i64, bits / 8);
        assert_eq!(s.token_bytes / 10_000_000, 219);
        assert_eq!(s.memory(10), s.weight_bytes + 10 * 47 * 576 * 2);
    }

    #[test]
    fn tied_heads_are_read_and_looked_up_rows_are_not() {
        let s = size("llama-3.2-1b:f16");
        assert_eq!((s.active_parameters, s.parameters), (s.parameters, 1_235_814_432));
        assert_eq!(s.token_bytes, s.weight_bytes);
        assert_eq!(s.kv_numbers, 16 * 2 * 8 * 64);
        let s = size("qwen3-30b-a3b:q8_0");
        assert_eq!(s.parameters, 30_532_122_624);
        assert!((3.0e9..3.4e9).contains(&(s.active_parameters as f64)), "{s:?}");
    }

    #[test]
    fn nonsense_sizes_do_not_overflow() {
        use crate::gguf::{Value, header};
        let keys = ["block_count", "attention.head_count", "attention.head_count_kv", "attention.key_length"];
        for value in [0i64, -1, i64::MAX, i64::MIN] {
            for mla in [false, true] {
                let mut metadata = vec![("general.architecture".to_string(), Value::from("x"))];
                metadata.extend(keys.iter().map(|k| (format!("x.{k}"), value.into())));
                metadata
                    .extend(["expert_count", "expert_used_count"].map(|k| (format!("x.{k}"), value.into())));
                if mla {
                    metadata.push(("x.attention.kv_lora_rank".into(), value.into()));
                }
                let bytes = header(metadata.iter().map(|(k, v)| (k.as_str(), v)), []);
                let s = Size::of(&Gguf::from_vec("m", bytes).unwrap()).unwrap();
                assert_eq!((s.parameters, s.token_bytes), (0, 0));
                s.memory(u64::MAX);
            }
        }
    }
}
