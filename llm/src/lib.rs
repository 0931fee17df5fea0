//! Models as tensor expressions.

pub mod gguf;
pub mod size;
pub mod synth;
pub mod template;
pub mod tokenizer;
