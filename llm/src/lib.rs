//! Models from files: everything between the bytes of a GGUF file and text, written in the tensor language.
//!
//! In: files, text, tokens. Out: tokens, text, logits. No device appears here by name: what runs is decided by whoever
//! opens one.

pub mod attention;
pub mod block;
pub mod chat;
pub mod config;
pub mod constrain;
pub mod engine;
pub mod ffn;
pub mod generate;
pub mod gguf;
mod logits;
pub mod model;
pub mod paged;
mod planner;
pub mod profile;
pub mod rope;
pub mod sample;
pub mod size;
pub mod stream;
pub mod synth;
pub mod template;
pub mod tokenizer;
pub mod tools;
pub mod tune;
pub mod weights;
