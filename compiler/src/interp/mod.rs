//! Reference interpreters, one a level: a program and its inputs in, its outputs out. They define what a program means;
//! every scalar is computed by [`crate::scalar`], and speed is not a goal.

pub mod linear;
mod race;
