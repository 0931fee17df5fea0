//! Models as tensor expressions.

pub mod sample;
pub mod stream;
