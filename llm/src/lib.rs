//! Models as tensor expressions.

pub mod sample;
