//! Models as tensor expressions.

pub mod gguf;
pub mod template;
pub mod tokenizer;
