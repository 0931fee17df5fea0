//! Models as tensor expressions.

pub mod gguf;
