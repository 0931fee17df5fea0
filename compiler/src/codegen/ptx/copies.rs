//! Copies from memory to local memory that go past the registers.
//!
//! In: a linear program. Out: the loads whose value is only stored in local memory, 16 bytes at a time: load and store are
//! one instruction, which threads do not wait for. Invariant: before a barrier behind which a thread may read what was
//! copied, every thread waits for its copies.

use super::asm::Address;
use super::memory::alignment;
use super::{Emitter, Fact};
use crate::linear::{Inst, Linear, Mem, Reg};
use std::collections::{HashMap, HashSet};

/// Bytes of a copy.
const BYTES: usize = 16;

#[derive(Default)]
pub(super) struct Copies {
    loads: HashSet<Reg>,
    /// Where a load that was left out would have read.
    sources: HashMap<Reg, Address>,
    /// Local memory that may still be written.
    under_way: HashSet<Mem>,
}

impl Copies {
    pub fn new(program: &Linear, facts: &[Fact]) -> Copies {
        let mut uses: HashMap<Reg, usize> = HashMap::new();
        program.code.iter().flat_map(Inst::uses).for_each(|r| *uses.entry(r).or_default() += 1);
        let aligned = |index: Reg, offset: i64, value: Reg| {
            let unit = program.dtype(value).scalar.bytes();
            alignment(facts[index.0 as usize], offset, unit) == BYTES
        };
        let stored = program.code.iter().filter_map(|i| match *i {
            Inst::Store { mem: Mem::Local(_), index, offset, value, gate } => {
                let one = gate.is_none_or(|g| program.dtype(g).lanes == 1);
                let fits = program.dtype(value).bytes() == BYTES && one;
                (fits && aligned(index, offset, value)).then_some(value)
            }
            _ => None,
        });
        let stored: HashSet<Reg> = stored.filter(|r| uses[r] == 1).collect();
        let copied = |i: &Inst| match *i {
            Inst::Load { dst, mem: Mem::Global(b), index, offset, gate: None } if stored.contains(&dst) => {
                let fixed = !program.buffers[b as usize].1;
                (fixed && aligned(index, offset, dst)).then_some(dst)
            }
            _ => None,
        };
        Copies { loads: program.code.iter().filter_map(copied).collect(), ..Copies::default() }
    }
}

impl Emitter<'_> {
    /// Leaves a load to the store of its value; says whether it is one of a copy.
    pub(super) fn copied_from(&mut self, dst: Reg, at: Address) -> bool {
        let copied = self.copies.loads.contains(&dst);
        if copied {
            self.copies.sources.insert(dst, at);
        }
        copied
    }

    /// Copies to local memory what would be stored there; says whether it is a copy.
    pub(super) fn copied_to(&mut self, mem: Mem, at: Address, value: Reg, gate: Option<Reg>) -> bool {
        let Some(&from) = self.copies.sources.get(&value) else { return false };
        let gate = self.gate(gate, 0);
        self.asm.copy_async(gate, at, from);
        self.copies.under_way.insert(mem);
        true
    }

    /// Waits for copies before an instruction that needs them or that lets other threads have them.
    pub(super) fn settle(&mut self, at: usize, inst: &Inst) {
        if self.copies.under_way.is_empty() {
            return;
        }
        let edge = |i: &Inst| matches!(i, Inst::Loop { .. } | Inst::End { .. } | Inst::Barrier { .. });
        let reads = |i: &Inst| {
            let stores = matches!(i, Inst::Store { .. });
            !stores && i.memory().iter().any(|m| self.copies.under_way.contains(m))
        };
        let settles = match inst {
            Inst::Loop { .. } | Inst::End { .. } => true,
            Inst::Barrier { .. } => {
                let behind = &self.program.code[at + 1..];
                let n = behind.iter().position(edge).unwrap_or(behind.len());
                let meets = matches!(behind.get(n), Some(Inst::Barrier { .. }));
                !meets || behind[..n].iter().any(reads)
            }
            other => reads(other),
        };
        if settles {
            self.asm.line("cp.async.wait_all");
            self.copies.under_way.clear();
        }
    }
}
