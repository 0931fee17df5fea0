//! Loads of what no other block reads, first.
//!
//! In: a linear program. Out: the order in which its instructions are emitted. Between two points where threads meet or code repeats, loads from
//! memory that nobody writes stand before everything else, with what their addresses want. Such loads come from far, and
//! those that are on their way at a time are waited for once. What all blocks read is in a cache near by and stays where
//! it is. Invariant: only the order changes, and never past an instruction that a moved one depends on.

use crate::linear::{Inst, Linear, Mem, Op, Reg};
use std::collections::{HashMap, HashSet};

/// Registers for values on their way, in threads of a small block and of a larger one, of which two are to fit.
const SMALL: u32 = 256;
const REGISTERS: usize = 64;
const FEWER: usize = 32;

/// What to emit, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The instruction of this number.
    Inst(usize),
    /// A load that was moved.
    Early(usize),
    /// The end of the loads that were moved: the driver's assembler would move them back to save registers.
    Fence,
}

/// The instructions from `start` on.
pub fn order(program: &Linear, start: usize) -> Vec<Step> {
    let own = from(program, |i| matches!(i, Inst::Op { op: Op::Grid, .. }));
    let apart = from(program, |i| matches!(i, Inst::Op { op: Op::Thread, .. }));
    // The sums of the matrix unit have all registers.
    let sums = program.code.iter().any(|i| matches!(i, Inst::Mma { .. }));
    let most = match program.threads {
        _ if sums => 0,
        ..=SMALL => REGISTERS,
        _ => FEWER,
    };
    let meets = |i: &Inst| matches!(i, Inst::Loop { .. } | Inst::End { .. } | Inst::Barrier { .. });
    let (mut steps, mut loops) = (vec![], vec![]);
    let mut at = start;
    while at < program.code.len() {
        let rest = &program.code[at..];
        let n = rest.iter().position(meets).unwrap_or(rest.len());
        // A fence is for threads that go the same way.
        let together = !loops.contains(&false);
        let first = first(program, &own, &rest[..n], if together { most } else { 0 });
        let far = |i: &usize| matches!(rest[*i], Inst::Load { mem: Mem::Global(_), .. });
        let step = |i: usize| if far(&i) { Step::Early(at + i) } else { Step::Inst(at + i) };
        steps.extend((0..n).filter(|i| first.contains(i)).map(step));
        steps.extend((first.iter().filter(|i| far(i)).count() > 1).then_some(Step::Fence));
        steps.extend((0..n).filter(|i| !first.contains(i)).map(|i| Step::Inst(at + i)));
        match rest.get(n) {
            Some(Inst::Loop { extent, .. }) => loops.push(!apart.contains(extent)),
            Some(Inst::End { .. }) => drop(loops.pop()),
            _ => {}
        }
        steps.extend((n < rest.len()).then_some(Step::Inst(at + n)));
        at += n + 1;
    }
    steps
}

/// Registers that depend on some instructions.
fn from(program: &Linear, source: impl Fn(&Inst) -> bool) -> HashSet<Reg> {
    let (mut found, mut before) = (HashSet::new(), None);
    // What a round hands to the next is known when the round is.
    while before != Some(found.len()) {
        before = Some(found.len());
        let mut open: Vec<&[(Reg, Reg)]> = vec![];
        for inst in &program.code {
            if source(inst) || inst.uses().iter().any(|r| found.contains(r)) {
                found.extend(inst.defs());
            }
            match inst {
                Inst::Loop { carried, .. } => open.push(carried),
                Inst::End { next, .. } => {
                    let carried = open.pop().unwrap_or_default();
                    let handed = carried.iter().zip(next).filter(|(_, n)| found.contains(n));
                    let handed: Vec<Reg> = handed.map(|((phi, _), _)| *phi).collect();
                    found.extend(handed);
                }
                _ => {}
            }
        }
    }
    found
}

/// The instructions of a stretch that go to its start.
fn first(program: &Linear, own: &HashSet<Reg>, stretch: &[Inst], most: usize) -> HashSet<usize> {
    let maker: HashMap<Reg, usize> = stretch
        .iter()
        .enumerate()
        .flat_map(|(i, inst)| inst.defs().into_iter().map(move |r| (r, i)))
        .collect();
    let stored: HashSet<Mem> = stretch
        .iter()
        .filter_map(|i| if let Inst::Store { mem, .. } = i { Some(*mem) } else { None })
        .collect();
    let fixed = |mem: Mem| match mem {
        Mem::Global(b) => !program.buffers[b as usize].1,
        Mem::Local(_) => !stored.contains(&mem),
    };
    // What an instruction of the stretch wants of it, itself included; none if that cannot move.
    let wants = |at: usize| {
        let (mut all, mut stack) = (HashSet::new(), vec![at]);
        while let Some(i) = stack.pop() {
            match &stretch[i] {
                Inst::Op { .. } => {}
                Inst::Load { mem, .. } if fixed(*mem) => {}
                _ => return None,
            }
            if all.insert(i) {
                stack.extend(stretch[i].uses().iter().filter_map(|r| maker.get(r)));
            }
        }
        Some(all)
    };
    let (mut moved, mut registers) = (HashSet::new(), 0);
    for (i, inst) in stretch.iter().enumerate() {
        let Inst::Load { dst, mem: mem @ Mem::Global(_), index, .. } = inst else { continue };
        let bytes = program.dtype(*dst).bytes();
        if !fixed(*mem) || !own.contains(index) || registers + bytes.div_ceil(4) > most {
            continue;
        }
        if let Some(all) = wants(i) {
            moved.extend(all);
            registers += bytes.div_ceil(4);
        }
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::linear::parse;

    #[test]
    fn only_what_a_block_has_for_itself_moves_and_never_past_a_barrier() {
        let text = "linear a grid 8 threads 64\nbuffer g0: f32 written\nbuffer g1: f32\n\
            %0: i64 = Grid\n%1: i64 = Thread\n%2: f32 = load g1[%1]\nstore g0[%1] = %2\n\
            %3: i64 = Add %0 %1\n%4: f32 = load g1[%3]\n%5: f32 = load g1[%0]\nstore g0[%3] = %4\nbarrier\n\
            %6: f32 = load g0[%3]\nstore g0[%3] = %6\nstore g0[%0] = %5\n";
        use Step::*;
        let want = [0, 1, 4].map(Inst).into_iter().chain([Early(5), Early(6), Fence]);
        let want: Vec<Step> = want.chain([2, 3, 7, 8, 9, 10, 11].map(Inst)).collect();
        assert_eq!(order(&parse(text).unwrap(), 0), want);
    }
}
