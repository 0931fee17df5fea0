//! Gives each temporary a place in one arena; those that are never alive together share bytes.

use super::Program;
use crate::graph::{Ex, Id};
use crate::shape::product;
use std::collections::HashMap;

/// Offsets are multiples of this, so that vector accesses stay aligned.
const ALIGN: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arena {
    pub bytes: usize,
    /// Where each temporary lies.
    pub offsets: HashMap<Id, usize>,
}

/// Bytes a buffer needs at the symbols' largest values.
pub fn buffer_bytes(b: Ex) -> usize {
    product(b.g, &b.dims()).bounds().1 as usize * b.dtype().bytes()
}

/// `moments` says when each kernel runs; kernels of one moment share no bytes of what they touch.
pub fn plan_memory(p: &Program, moments: &[usize]) -> Arena {
    let mut life: HashMap<Id, (usize, usize)> = HashMap::new();
    for (kernel, &k) in p.kernels.iter().zip(moments) {
        for (b, _) in kernel.buffers() {
            life.entry(b.id).or_insert((k, k)).1 = k;
        }
    }
    let mut placed: Vec<(usize, usize, (usize, usize))> = vec![];
    let mut arena = Arena::default();
    let mut temps: Vec<Ex> = p.temps.iter().copied().filter(|t| life.contains_key(&t.id)).collect();
    temps.sort_by_key(|t| std::cmp::Reverse(buffer_bytes(*t)));
    for t in temps {
        let (bytes, (from, to)) = (buffer_bytes(t).next_multiple_of(ALIGN), life[&t.id]);
        let mut busy: Vec<_> = placed.iter().filter(|(_, _, l)| l.0 <= to && from <= l.1).collect();
        busy.sort();
        let mut at = 0;
        for (start, end, _) in busy {
            if at + bytes <= *start {
                break;
            }
            at = at.max(*end);
        }
        placed.push((at, at + bytes, (from, to)));
        arena.offsets.insert(t.id, at);
        arena.bytes = arena.bytes.max(at + bytes);
    }
    arena
}
