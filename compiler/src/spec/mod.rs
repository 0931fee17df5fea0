//! What is legal at each level: a program of that level in, nothing out. Illegal IR is a bug of the pass before, so
//! `verify` panics and prints the program.

pub mod linear;
