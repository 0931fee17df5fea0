//! Reference interpreters: slow, obvious, the definition of what the compiler must preserve.

pub mod expr;
pub mod linear;
mod race;
pub mod tensor;
