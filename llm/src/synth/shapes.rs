//! The published sizes of known models.

/// One model's sizes.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub name: &'static str,
    pub arch: &'static str,
    pub layers: i64,
    pub dim: i64,
    pub heads: i64,
    pub attention: Attention,
    /// Width of a dense block.
    pub ff: i64,
    pub moe: Option<Moe>,
    pub vocab: i64,
    pub context: i64,
    pub theta: f32,
    pub eps: f32,
    pub scaling: Scaling,
    /// The embedding is the output matrix.
    pub tied: bool,
    /// How the tokenizer splits words.
    pub pre: &'static str,
}

#[derive(Clone, Copy)]
pub(super) enum Attention {
    /// `q_lora` is 0 where queries are not compressed.
    Mla {
        q_lora: i64,
        kv_lora: i64,
        nope: i64,
        rope: i64,
        v: i64,
    },
    Gqa {
        kv_heads: i64,
        head: i64,
        biases: bool,
        norms: bool,
    },
}

#[derive(Clone, Copy)]
pub(super) struct Moe {
    pub experts: i64,
    pub used: i64,
    pub shared: i64,
    /// Width of one expert.
    pub ff: i64,
    /// Layers without experts, at the beginning.
    pub dense: i64,
    /// What the weights of the chosen are multiplied with, and whether they are normalised before.
    pub scale: f32,
    pub normalised: bool,
    pub gating: Gating,
    /// A bias in the choice of experts.
    pub bias: bool,
}

/// By the numbers that files have.
#[derive(Clone, Copy)]
pub(super) enum Gating {
    Softmax = 1,
    Sigmoid = 2,
}

#[derive(Clone, Copy)]
pub(super) enum Scaling {
    None,
    Yarn {
        factor: f32,
        context: u32,
        log_multiplier: f32,
    },
    /// As a tensor of factors.
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        context: f64,
    },
}

pub(super) const SHAPES: [Shape; 6] = [
    Shape {
        name: "glm-4.7-flash",
        arch: "deepseek2",
        layers: 47,
        dim: 2048,
        heads: 20,
        attention: Attention::Mla { q_lora: 768, kv_lora: 512, nope: 192, rope: 64, v: 256 },
        ff: 10240,
        moe: Some(Moe {
            experts: 64,
            used: 4,
            shared: 1,
            ff: 1536,
            dense: 1,
            scale: 1.8,
            normalised: true,
            gating: Gating::Sigmoid,
            bias: true,
        }),
        vocab: 154880,
        context: 202752,
        theta: 1e6,
        eps: 1e-5,
        scaling: Scaling::None,
        tied: false,
        pre: "glm4",
    },
    Shape {
        name: "deepseek-v2-lite",
        arch: "deepseek2",
        layers: 27,
        dim: 2048,
        heads: 16,
        attention: Attention::Mla { q_lora: 0, kv_lora: 512, nope: 128, rope: 64, v: 128 },
        ff: 10944,
        moe: Some(Moe {
            experts: 64,
            used: 6,
            shared: 2,
            ff: 1408,
            dense: 1,
            scale: 1.0,
            normalised: false,
            gating: Gating::Softmax,
            bias: false,
        }),
        vocab: 102400,
        context: 163840,
        theta: 1e4,
        eps: 1e-6,
        scaling: Scaling::Yarn { factor: 40.0, context: 4096, log_multiplier: 0.0707 },
        tied: false,
        pre: "deepseek-llm",
    },
    Shape {
        name: "youtu-llm-2b",
        arch: "deepseek2",
        layers: 32,
        dim: 2048,
        heads: 16,
        attention: Attention::Mla { q_lora: 1536, kv_lora: 512, nope: 128, rope: 64, v: 128 },
        ff: 6144,
        moe: None,
        vocab: 128256,
        context: 131072,
        theta: 1.6e6,
        eps: 1e-6,
        scaling: Scaling::None,
        tied: true,
        pre: "llama-bpe",
    },
    Shape {
        name: "qwen3-30b-a3b",
        arch: "qwen3moe",
        layers: 48,
        dim: 2048,
        heads: 32,
        attention: Attention::Gqa { kv_heads: 4, head: 128, biases: false, norms: true },
        ff: 6144,
        moe: Some(Moe {
            experts: 128,
            used: 8,
            shared: 0,
            ff: 768,
            dense: 0,
            scale: 1.0,
            normalised: true,
            gating: Gating::Softmax,
            bias: false,
        }),
        vocab: 151936,
        context: 40960,
        theta: 1e6,
        eps: 1e-6,
        scaling: Scaling::None,
        tied: false,
        pre: "qwen2",
    },
    Shape {
        name: "qwen2.5-coder-1.5b",
        arch: "qwen2",
        layers: 28,
        dim: 1536,
        heads: 12,
        attention: Attention::Gqa { kv_heads: 2, head: 128, biases: true, norms: false },
        ff: 8960,
        moe: None,
        vocab: 151936,
        context: 32768,
        theta: 1e6,
        eps: 1e-6,
        scaling: Scaling::None,
        tied: true,
        pre: "qwen2",
    },
    Shape {
        name: "llama-3.2-1b",
        arch: "llama",
        layers: 16,
        dim: 2048,
        heads: 32,
        attention: Attention::Gqa { kv_heads: 8, head: 64, biases: false, norms: false },
        ff: 8192,
        moe: None,
        vocab: 128256,
        context: 131072,
        theta: 5e5,
        eps: 1e-5,
        scaling: Scaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, context: 8192.0 },
        tied: true,
        pre: "llama-bpe",
    },
];
