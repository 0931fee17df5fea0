//! What each tensor of a model is for. In: a tensor's name behind its block's prefix. Out: a row of [`PARTS`].
//!
//! A row's source is a function of this crate; a test holds it against the files.

use std::fmt;

/// What a model's time is accounted to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Component {
    Embedding,
    Attention,
    Router,
    Experts,
    SharedExpert,
    /// Of blocks without experts.
    FeedForward,
    Head,
    /// Norms, int8 and whatever stands between the products.
    SmallOps,
}

impl Component {
    pub const ALL: [Component; 8] = {
        use Component::*;
        [Embedding, Attention, Router, Experts, SharedExpert, FeedForward, Head, SmallOps]
    };
    pub fn name(self) -> &'static str {
        match self {
            Component::Embedding => "embedding",
            Component::Attention => "attention",
            Component::Router => "router",
            Component::Experts => "experts",
            Component::SharedExpert => "shared expert",
            Component::FeedForward => "feed-forward",
            Component::Head => "head",
            Component::SmallOps => "small ops",
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What is known of a tensor by its name.
pub struct Part {
    /// The tensor's name without `.weight` or `.bias`.
    pub stem: &'static str,
    pub component: Component,
    /// What a kernel that reads it computes.
    pub does: &'static str,
    /// What comes out.
    pub makes: &'static str,
    /// The file below `llm/src` and the function.
    pub source: &'static str,
}

const fn part(
    stem: &'static str,
    component: Component,
    does: &'static str,
    makes: &'static str,
    source: &'static str,
) -> Part {
    Part { stem, component, does, makes, source }
}

const MLA: &str = "attention.rs Mla::of";
const GQA: &str = "attention.rs Gqa::of";
const ATTENTION: &str = "attention.rs Attention::of";
const GATED: &str = "ffn.rs Gated::of";
const EXPERTS: &str = "ffn.rs Experts::of";
const BLOCK: &str = "block.rs Block::of";
pub const EMBEDDING: &str = "planner.rs Embedding::of";
pub const HEAD: &str = "planner.rs Planner::head";
pub const BEST: &str = "logits.rs Logits::best";
/// Where queries meet keys and weights meet values.
pub const ATTEND: &str = "attention.rs attend";
pub const CACHE: &str = "attention.rs Place::write";
pub const ROTATION: &str = "attention.rs Place::turn";
/// Where activations become bytes.
pub const INT8: &str = "weights.rs Matrix::of";

/// Every tensor that a plan may read.
pub const PARTS: &[Part] = {
    use Component::*;
    &[
        part("token_embd", Embedding, "rows of the embedding", "residual stream", EMBEDDING),
        part("output", Head, "logits", "logits", HEAD),
        part("output_norm", SmallOps, "final norm", "hidden state", "planner.rs Planner::trunk"),
        part("attn_norm", SmallOps, "norm before attention", "normed stream", BLOCK),
        part("ffn_norm", SmallOps, "norm before the feed-forward half", "normed stream", BLOCK),
        part("attn_q", Attention, "queries", "queries", ATTENTION),
        part("attn_k", Attention, "keys", "new keys", GQA),
        part("attn_v", Attention, "values", "new values", GQA),
        part("attn_q_norm", SmallOps, "norm of the queries", "queries", GQA),
        part("attn_k_norm", SmallOps, "norm of the keys", "new keys", GQA),
        part("attn_q_a", Attention, "queries, down-projection", "low-rank queries", MLA),
        part("attn_q_a_norm", SmallOps, "norm of the low-rank queries", "low-rank queries", MLA),
        part("attn_q_b", Attention, "queries, up-projection", "queries", MLA),
        part("attn_kv_a_mqa", Attention, "latent row and rotated key", "latent row", MLA),
        part("attn_kv_a_norm", SmallOps, "norm of the latent row", "latent row", MLA),
        part(
            "attn_k_b",
            Attention,
            "queries into the latent space",
            "queries",
            "attention.rs Mla::absorb_keys",
        ),
        part(
            "attn_v_b",
            Attention,
            "values out of the latent space",
            "heads",
            "attention.rs Mla::absorb_values",
        ),
        part("attn_kv_b", Attention, "into or out of the latent space", "heads", "attention.rs Mla::parts"),
        part("attn_output", Attention, "output projection, residual", "residual stream", ATTENTION),
        part("ffn_gate_inp", Router, "scores and choice of experts", "chosen experts", EXPERTS),
        part("exp_probs_b", Router, "choice of experts", "chosen experts", EXPERTS),
        part("ffn_gate_exps", Experts, "gate", "gated activations", GATED),
        part("ffn_up_exps", Experts, "up", "gated activations", GATED),
        part("ffn_down_exps", Experts, "down, weighted sum", "residual stream", EXPERTS),
        part("ffn_gate_shexp", SharedExpert, "gate", "gated activations", GATED),
        part("ffn_up_shexp", SharedExpert, "up", "gated activations", GATED),
        part("ffn_down_shexp", SharedExpert, "down", "residual stream", GATED),
        part("ffn_gate", FeedForward, "gate", "gated activations", GATED),
        part("ffn_up", FeedForward, "up", "gated activations", GATED),
        part("ffn_down", FeedForward, "down, residual", "residual stream", GATED),
    ]
};

/// The row of a tensor, its name behind the block's prefix.
pub fn of(tensor: &str) -> Option<&'static Part> {
    let stem = tensor.strip_suffix(".weight").or_else(|| tensor.strip_suffix(".bias"))?;
    PARTS.iter().find(|p| p.stem == stem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn sources_are_functions_of_this_crate() {
        let all =
            PARTS.iter().map(|p| p.source).chain([EMBEDDING, HEAD, BEST, ATTEND, CACHE, ROTATION, INT8]);
        for source in all {
            let (file, function) = source.split_once(' ').unwrap();
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
            let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{source}: {e}"));
            // Behind the type's `impl`, if it has a type.
            let (of, name) = function.split_once("::").unwrap_or(("", function));
            let body = match of {
                "" => text.as_str(),
                of => {
                    let start = text.match_indices("\nimpl").find(|(at, _)| {
                        let line = text[at + 1..].lines().next().unwrap_or_default();
                        line.split([' ', '<']).any(|word| word == of)
                    });
                    &text[start.unwrap_or_else(|| panic!("{source}: no impl of {of}")).0..]
                }
            };
            assert!(
                body.contains(&format!("fn {name}(")) || body.contains(&format!("fn {name}<")),
                "{source}"
            );
        }
    }

    #[test]
    fn names_are_found_whole() {
        let does = |name| of(name).map(|p| (p.stem, p.component));
        assert_eq!(does("attn_q.weight"), Some(("attn_q", Component::Attention)));
        assert_eq!(does("attn_q.bias"), Some(("attn_q", Component::Attention)));
        assert_eq!(does("attn_q_a_norm.weight"), Some(("attn_q_a_norm", Component::SmallOps)));
        assert_eq!(does("attn_q.weight.q4"), None);
        assert_eq!(does("cache"), None);
    }
}
