//! Loads first.
//!
//! In: a linear program and the launch that it stands in. Out: the order in which its instructions are emitted. Between
//! two points where code repeats, loads from memory that nobody writes stand before everything else, with what their
//! addresses want, as many as there are registers for: those that are on their way at a time are waited for once. Those
//! of what no other block reads go first, as they come from far. What all blocks read is near by after the first time,
//! and goes there only where all blocks of a launch run at once. What the launch before does not write is loaded, or
//! copied to local memory, before that launch is waited for. Invariant: only the order changes, and never past an
//! instruction that a moved one depends on.

use super::Seat;
use crate::linear::{Count, Inst, Linear, Mem, Op, Reg};
use crate::work::registers;
use std::collections::{HashMap, HashSet};

/// Multiprocessors of a large GPU, the registers of one, and its threads but for those that the next kernel can start with.
const PROCESSORS: i64 = 128;
const THREADS: i64 = 1024;
const REGISTERS: i64 = 64 << 10;
/// Registers of a thread that are for something else, and most that are for values on their way.
const OTHERS: i64 = 24;
const MOST: i64 = 96;
/// The same where it is not known how many threads there are, in those of a small block and of a larger one.
const SMALL: u32 = 256;
const FEW: i64 = 64;
const FEWER: i64 = 32;
/// How many times what is a block's own it may read that all blocks read: as of one token, not of eight.
const TIMES: usize = 4;

/// How many blocks of a launch are on a multiprocessor at a time if all of them are; none where they cannot be.
pub fn resident(parts: &[Linear], threads: u32) -> Option<i64> {
    let grid = parts.iter().try_fold(0, |sum, p| match p.grid {
        Count::Const(n) => Some(sum + n.max(0)),
        _ => None,
    })?;
    let blocks = (grid + PROCESSORS - 1) / PROCESSORS;
    let all = (blocks * threads as i64).max(1);
    // An assembler makes do with some fewer registers.
    let fits = |p: &Linear| !multiplies(p) && registers(p) as i64 * all <= REGISTERS * 3 / 2;
    (blocks > 0 && all <= THREADS && parts.iter().all(fits)).then_some(blocks)
}

/// Does it use the matrix unit, whose sums have all registers?
fn multiplies(p: &Linear) -> bool {
    p.code.iter().any(|i| matches!(i, Inst::Mma { .. }))
}

/// What to emit, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The instruction of this number.
    Inst(usize),
    /// A load that was moved.
    Early(usize),
    /// From here on what the launch before writes can be read.
    Wait,
    /// The end of the loads that were moved: the driver's assembler would move them back to save registers.
    Fence,
}

/// The instructions from `start` on.
pub fn order(program: &Linear, start: usize, seat: &Seat) -> Vec<Step> {
    let own = from(program, |i| matches!(i, Inst::Op { op: Op::Grid, .. }));
    let apart = from(program, |i| matches!(i, Inst::Op { op: Op::Thread, .. }));
    let most = match seat.resident {
        _ if multiplies(program) => 0,
        Some(blocks) => (REGISTERS / (blocks * seat.threads as i64) - OTHERS).clamp(0, MOST),
        None if seat.threads <= SMALL => FEW,
        None => FEWER,
    } as usize;
    let settled: Vec<bool> = seat
        .settled
        .iter()
        .zip(&program.buffers)
        .map(|(settled, (_, written))| *settled && !written)
        .collect();
    let meets = |i: &Inst| matches!(i, Inst::Loop { .. } | Inst::End { .. });
    let (mut steps, mut loops) = (vec![], vec![]);
    let mut at = start;
    loop {
        let rest = &program.code[at..];
        let n = rest.iter().position(meets).unwrap_or(rest.len());
        // A fence is for threads that go the same way.
        let together = !loops.contains(&false);
        let near = loops.is_empty() && seat.resident.is_some();
        let mut first = first(program, &own, near, &rest[..n], if together { most } else { 0 });
        let far = |i: &usize| matches!(rest[*i], Inst::Load { mem: Mem::Global(_), .. });
        let early = |chosen: &HashSet<usize>| {
            let step = |i: usize| if far(&i) { Step::Early(at + i) } else { Step::Inst(at + i) };
            let fence = (chosen.iter().filter(|i| far(i)).count() > 1).then_some(Step::Fence);
            (0..n).filter(|i| chosen.contains(i)).map(step).chain(fence).collect::<Vec<_>>()
        };
        let mut ready = HashSet::new();
        if at == start {
            // Threads that wait for the launch before wait for their loads too: others would take their turn later.
            let loads = if seat.resident.is_some() { first.clone() } else { HashSet::new() };
            ready = self::ready(&rest[..n], &loads, &settled);
            first.retain(|i| !ready.contains(i));
            steps.extend(early(&ready));
            steps.push(Step::Wait);
        }
        steps.extend(early(&first));
        let moved = |i: &usize| first.contains(i) || ready.contains(i);
        steps.extend((0..n).filter(|i| !moved(i)).map(|i| Step::Inst(at + i)));
        match rest.get(n) {
            Some(Inst::Loop { extent, .. }) => loops.push(!apart.contains(extent)),
            Some(Inst::End { .. }) => drop(loops.pop()),
            _ => {}
        }
        steps.extend((n < rest.len()).then_some(Step::Inst(at + n)));
        at += n + 1;
        if at >= program.code.len() {
            return steps;
        }
    }
}

/// The instructions of the first stretch that go before the wait: the ones of `first` that only read what is settled, and
/// copies of such to local memory, before threads meet, with what they want.
fn ready(stretch: &[Inst], first: &HashSet<usize>, settled: &[bool]) -> HashSet<usize> {
    let maker = makers(stretch);
    let (mut ready, mut late, mut touched) = (HashSet::new(), HashSet::new(), HashSet::new());
    let mut met = false;
    for (i, inst) in stretch.iter().enumerate() {
        let load = |r: &Reg| maker.get(r).is_some_and(|&at| matches!(stretch[at], Inst::Load { .. }));
        let (known, copies) = match inst {
            Inst::Op { .. } => (true, false),
            Inst::Load { mem: Mem::Global(b), .. } => (settled[*b as usize], false),
            Inst::Store { mem: mem @ Mem::Local(_), value, .. } => {
                (!met && !touched.contains(mem) && load(value), true)
            }
            _ => (false, false),
        };
        met |= matches!(inst, Inst::Barrier { .. });
        if !known || inst.uses().iter().any(|r| late.contains(r)) {
            late.extend(inst.defs());
            touched.extend(inst.memory());
        } else if copies || first.contains(&i) {
            let mut wanted = vec![i];
            while let Some(i) = wanted.pop() {
                if ready.insert(i) {
                    wanted.extend(stretch[i].uses().iter().filter_map(|r| maker.get(r)));
                }
            }
        }
    }
    ready
}

/// Where registers are made in a stretch.
fn makers(stretch: &[Inst]) -> HashMap<Reg, usize> {
    let made = |(i, inst): (usize, &Inst)| inst.defs().into_iter().map(move |r| (r, i)).collect::<Vec<_>>();
    stretch.iter().enumerate().flat_map(made).collect()
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
fn first(program: &Linear, own: &HashSet<Reg>, near: bool, stretch: &[Inst], most: usize) -> HashSet<usize> {
    let maker = makers(stretch);
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
    let size = |r: Reg| program.dtype(r).bytes().div_ceil(4);
    let (far, common): (Vec<_>, Vec<_>) = stretch
        .iter()
        .enumerate()
        .filter_map(|(i, inst)| match inst {
            Inst::Load { dst, mem: mem @ Mem::Global(_), index, .. } if fixed(*mem) => {
                Some((i, *dst, *index))
            }
            _ => None,
        })
        .partition(|(.., index)| own.contains(index));
    let total = |loads: &[(usize, Reg, Reg)]| loads.iter().map(|(_, dst, _)| size(*dst)).sum::<usize>();
    let near = near && total(&common) <= TIMES * total(&far);
    let (mut moved, mut registers) = (HashSet::new(), 0);
    for (i, dst, _) in far.into_iter().chain(common.into_iter().filter(|_| near)) {
        if registers + size(dst) > most {
            continue;
        }
        if let Some(all) = wants(i) {
            moved.extend(all);
            registers += size(dst);
        }
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::linear::parse;

    /// What becomes of a program of so many blocks: g0 is written, g1 is not, and %0 is the block.
    fn ordered(blocks: usize, settled: bool) -> Vec<Step> {
        let text = format!(
            "linear a grid {blocks} threads 64\nbuffer g0: f32 written\nbuffer g1: f32\n\
            %0: i64 = Grid\n%1: i64 = Thread\n%2: f32 = load g1[%1]\nstore g0[%1] = %2\n\
            %3: i64 = Add %0 %1\n%4: f32 = load g1[%3]\nbarrier\n%5: f32 = load g1[%0]\nstore g0[%3] = %4\n\
            %6: f32 = load g0[%3]\nstore g0[%3] = %6\nloop %7 < %1 []\n  %8: f32 = load g1[%0]\n  \
            store g0[%0] = %8\nend [] -> []\nstore g0[%0] = %5\n"
        );
        let program = parse(&text).unwrap();
        order(&program, 0, &Seat { settled: vec![settled; 2], ..Seat::of(&program) })
    }

    #[test]
    fn loads_move_past_barriers_and_not_past_loops() {
        use Step::*;
        let first = [Inst(0), Inst(1), Inst(4), Wait, Early(2), Early(5), Early(7), Fence];
        let want: Vec<Step> =
            first.into_iter().chain([3, 6, 8, 9, 10, 11, 12, 13, 14, 15].map(Inst)).collect();
        assert_eq!(ordered(8, false), want);
    }

    #[test]
    fn what_is_settled_is_loaded_before_the_wait() {
        use Step::*;
        let first = [Inst(0), Inst(1), Early(2), Inst(4), Early(5), Early(7), Fence, Wait];
        let want: Vec<Step> =
            first.into_iter().chain([3, 6, 8, 9, 10, 11, 12, 13, 14, 15].map(Inst)).collect();
        assert_eq!(ordered(8, true), want);
    }

    #[test]
    fn what_all_blocks_read_stays_where_blocks_take_turns() {
        use Step::*;
        let first = [Wait, Inst(0), Inst(1), Inst(4), Early(5), Early(7), Fence];
        let want: Vec<Step> =
            first.into_iter().chain([2, 3, 6, 8, 9, 10, 11, 12, 13, 14, 15].map(Inst)).collect();
        assert_eq!(ordered(1 << 20, false), want);
        assert_eq!(ordered(1 << 20, true), want);
    }
}
