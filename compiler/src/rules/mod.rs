//! The rule tables, by what they are about and when they run.
//!
//! [`simplify`] is exact for every type and may run at any time below the tensor level; its normal form is stable. The
//! other tables lower or reorder: they run once, late.

pub mod float;
pub mod fold;
pub mod index;
pub(crate) mod sample;
pub mod strength;
pub mod sum;
pub mod transcendental;

#[cfg(test)]
mod check;

use crate::graph::Ex;
use crate::rewrite::{Heads, Rule};
use std::sync::LazyLock;

/// What [`simplify`] applies.
pub const SIMPLIFY: &[&[Rule]] = &[
    fold::UNARY_CONSTANTS,
    fold::BINARY_CONSTANTS,
    fold::CASTS,
    fold::SELECTS,
    fold::LOGIC,
    fold::WRAPPING,
    fold::BITS,
    float::FLOAT,
    index::INDEX_ALGEBRA,
    index::INDEX_CASTS,
];

/// Sorted once: most of what is simplified is smaller than the tables.
static SIMPLE: LazyLock<Heads> = LazyLock::new(|| Heads::new(SIMPLIFY));

/// The same values in normal form.
pub fn simplify<'g>(roots: &[Ex<'g>]) -> Vec<Ex<'g>> {
    SIMPLE.rewrite(roots)
}

/// The same values in cheaper instructions, after the last [`simplify`].
pub const REDUCE: &[&[Rule]] = &[fold::BITS, strength::SHIFTS, strength::STRENGTH];

/// The same for a CPU. With its rules for fields of bytes, and loads repeated before they are multiplied, 8 sequences of
/// GLM-4.7-Flash were 0.6% slower on a GPU, where the latter alone changed nothing.
pub const REDUCE_CPU: &[&[Rule]] = &[fold::BITS, strength::SHIFTS, strength::FIELDS, strength::STRENGTH];

/// One expression in normal form.
pub fn simplify1(e: Ex) -> Ex {
    SIMPLE.rewrite(&[e])[0]
}
