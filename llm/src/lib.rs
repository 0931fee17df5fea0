//! Models as tensor expressions.

pub mod gguf;
pub mod tokenizer;
