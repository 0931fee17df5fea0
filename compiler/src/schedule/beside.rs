//! Which kernels are launched together, where a launch costs more than what many kernels do.
//!
//! In: a program's kernels in order, and what each was compiled to. Out: groups in an order that respects every
//! dependence; the members of a group do not depend on one another. Launches run one after the other, so what counts is the
//! sum of the groups' times: two groups become one while that saves time, those that save most first. Of three orders of
//! doing this the best is taken.
//!
//! Buffers of different slots are taken to be different memory.

use super::Kernel;
use crate::graph::Id;
use crate::linear::{Count, Linear};
use crate::work::{registers, work};

/// Cycles that a launch costs whatever it does: about 3 µs.
const LAUNCH: f64 = 5_000.0;
/// What two ways to save time may differ by and yet be as good: estimates are no better.
const NEARLY: f64 = LAUNCH / 10.0;
/// What takes longer than this is not worth the trouble.
const LONG: f64 = 32.0 * LAUNCH;
/// Multiprocessors of a large GPU; threads and registers of one.
const PROCESSORS: u64 = 128;
const THREADS: u64 = 2048;
const REGISTERS: u64 = 64 << 10;
/// Instructions and bytes that it does in a cycle.
const INSTRUCTIONS: f64 = 128.0 * 128.0;
const BYTES: f64 = 2_500.0;
/// Threads that it starts in a cycle, be it that they leave at once.
const STARTS: f64 = 128.0 * 8.0;
/// Cycles from an instruction to the next of the same thread, and threads that take turns without that showing.
const TURN: f64 = 4.0;
const TURNS: f64 = 128.0 * TURN;
/// Local memory of a group: what a GPU gives every block.
const LOCAL_BYTES: usize = 48 << 10;
/// Parameters of an entry are at most 4 KiB.
const BUFFERS: usize = 256;

/// What a group takes, in cycles where it is time.
#[derive(Clone, Copy)]
struct Cost {
    /// Of one block.
    depth: f64,
    /// Of all its blocks on the whole machine.
    total: f64,
    /// Of the longest member, by itself.
    longest: f64,
    blocks: u64,
    /// Threads of all blocks that do something.
    busy: u64,
    /// How often all multiprocessors are filled with blocks, summed over the members by themselves.
    rounds: u64,
    /// Threads of a block and registers of a thread, of the member that wants most.
    threads: u32,
    registers: u64,
    local: usize,
    buffers: usize,
    /// Members whose grid depends on symbols.
    varying: usize,
}

/// Blocks that run at once on a large GPU.
fn at_once(threads: u32, registers: u64) -> u64 {
    PROCESSORS * (THREADS.min(REGISTERS / registers) / threads as u64).max(1)
}

impl Cost {
    fn of(p: &Linear) -> Cost {
        let symbols = vec![1; p.symbols.len()];
        let w = work(p, &symbols);
        let blocks = p.grid.eval(&symbols).max(1) as u64;
        let (instructions, threads) = (w.instructions as f64, p.threads as f64);
        let depth = instructions / (blocks as f64 * threads) * TURN * (threads / TURNS).max(1.0);
        let registers = registers(p);
        let total = (instructions / INSTRUCTIONS).max(w.loaded as f64 / BYTES);
        Cost {
            depth,
            total,
            longest: depth.max(total),
            blocks,
            busy: blocks * p.threads as u64,
            rounds: blocks.div_ceil(at_once(p.threads, registers)),
            threads: p.threads,
            registers,
            local: p.locals.iter().map(|l| (l.len * l.dtype.bytes()).next_multiple_of(16)).sum(),
            buffers: p.buffers.len(),
            varying: !matches!(p.grid, Count::Const(_)) as usize,
        }
    }

    fn with(self, other: Cost) -> Cost {
        Cost {
            depth: self.depth.max(other.depth),
            total: self.total + other.total,
            longest: self.longest.max(other.longest),
            blocks: self.blocks + other.blocks,
            busy: self.busy + other.busy,
            rounds: self.rounds + other.rounds,
            threads: self.threads.max(other.threads),
            registers: self.registers.max(other.registers),
            local: self.local.max(other.local),
            buffers: self.buffers + other.buffers,
            varying: self.varying + other.varying,
        }
    }

    fn time(self) -> f64 {
        let idle = self.blocks * self.threads as u64 - self.busy;
        LAUNCH + self.depth.max(self.total) + idle as f64 / STARTS
    }

    /// Can it be one launch? Every block has the threads and the registers that its largest parts want: that must not
    /// make more rounds of blocks than its members have by themselves. An assembler makes do with some fewer registers.
    fn fits(self) -> bool {
        let wanted = self.threads as u64 * self.registers;
        let rounds = self.blocks.div_ceil(at_once(self.threads, self.registers));
        rounds <= self.rounds
            && wanted <= REGISTERS * 3 / 2
            && self.longest <= LONG
            && self.local <= LOCAL_BYTES
            && self.buffers <= BUFFERS
            && self.varying <= 1
    }
}

/// The kernels' numbers in groups, in order of launch. In a group few blocks come before many: they take as long as they
/// take. A grid that depends on symbols is the last.
pub fn beside(kernels: &[Kernel], programs: &[&Linear]) -> Vec<Vec<usize>> {
    let touched: Vec<Vec<(Id, bool)>> = kernels
        .iter()
        .map(|k| k.buffers().into_iter().map(|(b, written)| (b.id, written)).collect())
        .collect();
    let mut groups = grouped(&touched, &programs.iter().map(|p| Cost::of(p)).collect::<Vec<_>>());
    for group in &mut groups {
        group.sort_by_key(|&k| match programs[k].grid {
            Count::Const(n) => n,
            _ => i64::MAX,
        });
    }
    groups
}

/// `touched` has each kernel's buffers and whether it writes them.
fn grouped<B: PartialEq>(touched: &[Vec<(B, bool)>], costs: &[Cost]) -> Vec<Vec<usize>> {
    let n = touched.len();
    let conflict = |a: usize, b: usize| {
        touched[a].iter().any(|(x, wx)| touched[b].iter().any(|(y, wy)| x == y && (*wx || *wy)))
    };
    // `before[a][b]`: all of group a comes before all of group b. A group goes by its first member's number.
    let mut before = vec![vec![false; n]; n];
    for b in 0..n {
        for a in (0..b).filter(|&a| conflict(a, b)).collect::<Vec<_>>() {
            for row in before.iter_mut().take(b) {
                row[b] |= row[a];
            }
            before[a][b] = true;
        }
    }
    // Kernels as early as can be, as late as can be: what is independent at one depth first, so that no pair stands in the
    // way of two others.
    let depth = |before: &dyn Fn(usize, usize) -> bool, order: &mut dyn Iterator<Item = usize>| {
        let mut depths = vec![0; n];
        for k in order {
            depths[k] =
                (0..n).filter(|&other| before(other, k)).map(|other| depths[other] + 1).max().unwrap_or(0);
        }
        depths
    };
    let early = depth(&|a, b| before[a][b], &mut (0..n));
    let late = depth(&|a, b| before[b][a], &mut (0..n).rev());
    let ways = [vec![0; n], early, late].map(|depths| merged(before.clone(), costs, &depths));
    let least = ways.into_iter().reduce(|a, b| if b.time < a.time { b } else { a });
    let Way { mut groups, before, .. } = least.expect("there are three");
    let mut left: Vec<usize> = (0..n).filter(|&g| !groups[g].is_empty()).collect();
    let mut order = vec![];
    while !left.is_empty() {
        let free = |&g: &usize| left.iter().all(|&other| !before[other][g]);
        let at = left.iter().position(free).expect("groups have an order");
        order.push(std::mem::take(&mut groups[left.remove(at)]));
    }
    order
}

/// A way to group kernels.
struct Way {
    groups: Vec<Vec<usize>>,
    before: Vec<Vec<bool>>,
    time: f64,
}

/// Merges groups of equal depths while that saves time, then any.
fn merged(mut before: Vec<Vec<bool>>, costs: &[Cost], depths: &[usize]) -> Way {
    let n = costs.len();
    let mut costs = costs.to_vec();
    let mut groups: Vec<Vec<usize>> = (0..n).map(|k| vec![k]).collect();
    for any in [false, true] {
        while let Some((a, b)) = best(&groups, &before, &costs, &|a, b| any || depths[a] == depths[b]) {
            costs[a] = costs[a].with(costs[b]);
            let moved = std::mem::take(&mut groups[b]);
            groups[a].extend(moved);
            let later: Vec<bool> = before[a].iter().zip(&before[b]).map(|(x, y)| *x || *y).collect();
            for row in before.iter_mut().filter(|row| row[a] || row[b]) {
                row[a] = true;
                row.iter_mut().zip(&later).for_each(|(known, l)| *known |= l);
            }
            before[a] = later;
        }
    }
    let time = groups.iter().zip(&costs).filter(|(g, _)| !g.is_empty()).map(|(_, c)| c.time()).sum();
    Way { groups, before, time }
}

/// The two groups that save most as one, the earliest of those that save nearly as much.
fn best(
    groups: &[Vec<usize>],
    before: &[Vec<bool>],
    costs: &[Cost],
    allowed: &dyn Fn(usize, usize) -> bool,
) -> Option<(usize, usize)> {
    let mut found: Option<(f64, usize, usize)> = None;
    for a in (0..groups.len()).filter(|&a| !groups[a].is_empty()) {
        for b in (a + 1..groups.len()).filter(|&b| !groups[b].is_empty()) {
            if before[a][b] || before[b][a] || !allowed(a, b) {
                continue;
            }
            let both = costs[a].with(costs[b]);
            let saved = costs[a].time() + costs[b].time() - both.time();
            if both.fits() && saved > found.map_or(0.0, |f| f.0 + NEARLY) {
                found = Some((saved, a, b));
            }
        }
    }
    found.map(|(_, a, b)| (a, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small kernel of so many cycles.
    fn cost(depth: f64) -> Cost {
        Cost {
            depth,
            total: depth / 4.0,
            longest: depth,
            blocks: 64,
            busy: 64 * 128,
            rounds: 1,
            threads: 128,
            registers: 32,
            local: 1 << 10,
            buffers: 3,
            varying: 0,
        }
    }

    /// Groups of kernels that read the first buffers and write the last.
    fn groups(kernels: &[(&[u32], u32, Cost)]) -> Vec<Vec<usize>> {
        let touched: Vec<Vec<(u32, bool)>> = kernels
            .iter()
            .map(|(reads, writes, _)| reads.iter().map(|&r| (r, false)).chain([(*writes, true)]).collect())
            .collect();
        grouped(&touched, &kernels.iter().map(|k| k.2).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_independent_is_launched_together() {
        let c = cost(400.0);
        // Queries 0 → 1 → 2 → 3 → 4 and the row that goes to the cache, 0 → 5 → 6, which 4 needs.
        let layer: [(&[u32], u32, Cost); 7] = [
            (&[0], 1, c),
            (&[1], 2, c),
            (&[2], 3, c),
            (&[3], 4, c),
            (&[1], 5, c),
            (&[5], 9, c),
            (&[4, 9], 6, c),
        ];
        assert_eq!(groups(&layer), [vec![0], vec![1, 4], vec![2, 5], vec![3], vec![6]]);
    }

    #[test]
    fn kernels_go_with_those_that_take_as_long() {
        // Scores, choice, experts; beside them the shared expert.
        let layer: [(&[u32], u32, Cost); 5] = [
            (&[0], 1, cost(500.0)),
            (&[1], 2, cost(1_500.0)),
            (&[2], 3, cost(6_000.0)),
            (&[0], 4, cost(5_000.0)),
            (&[3, 4], 5, cost(6_000.0)),
        ];
        assert_eq!(groups(&layer), [vec![0], vec![1], vec![2, 3], vec![4]]);
    }

    #[test]
    fn of_pairs_that_save_nearly_as_much_the_earliest_is_taken() {
        // A row for the cache beside one of two products that follow each other.
        let pair = |second: f64| {
            let costs = [cost(900.0), cost(second), cost(2_000.0)];
            let before = [[false, true, false], [false; 3], [false; 3]].map(|b| b.to_vec());
            best(&[vec![0], vec![1], vec![2]], &before, &costs, &|_, _| true)
        };
        assert_eq!(pair(1_000.0), Some((0, 2)));
        assert_eq!(pair(900.0 + 2.0 * NEARLY), Some((1, 2)));
    }

    #[test]
    fn no_pair_stands_in_the_way_of_two_others() {
        // Queries and their norm, keys and theirs; the first product and the second norm would save most.
        let layer: [(&[u32], u32, Cost); 4] = [
            (&[0], 1, cost(1_000.0)),
            (&[1], 2, cost(300.0)),
            (&[0], 3, cost(300.0)),
            (&[3], 4, cost(1_000.0)),
        ];
        assert_eq!(groups(&layer), [[0, 2], [1, 3]]);
    }

    #[test]
    fn readers_and_writers_of_a_buffer_stay_in_order() {
        let c = cost(400.0);
        assert_eq!(groups(&[(&[1], 2, c), (&[3], 1, c)]), [[0], [1]], "written after it is read");
        assert_eq!(groups(&[(&[1], 2, c), (&[3], 2, c)]), [[0], [1]], "written twice");
        assert_eq!(groups(&[(&[1], 2, c), (&[1], 3, c)]), [[0, 1]], "read twice");
    }

    #[test]
    fn launches_have_bounds() {
        let two = |a: Cost, b: Cost| groups(&[(&[0], 1, a), (&[0], 2, b)]).len();
        let c = cost(400.0);
        assert_eq!(two(c, c), 1);
        assert_eq!(two(Cost { varying: 1, ..c }, c), 1);
        assert_eq!(two(Cost { varying: 1, ..c }, Cost { varying: 1, ..c }), 2, "two grids that vary");
        assert_eq!(two(Cost { local: 64 << 10, ..c }, c), 2, "too much local memory");
        assert_eq!(two(cost(2.0 * LONG), c), 2, "too long to matter");
        let wide = Cost { threads: 1024, blocks: 1, busy: 1024, ..c };
        assert_eq!(two(wide, c), 1, "65 blocks of 1024 threads run at once");
        let more = |blocks| Cost { blocks, busy: blocks * 128, ..c };
        assert_eq!(two(wide, more(640)), 2, "and 641 do not");
        let full = Cost { registers: 160, ..c };
        assert_eq!(two(full, more(1000)), 2, "at once before, and in rounds with so many registers");
        assert_eq!(two(wide, full), 2, "no block of 1024 threads has so many registers");
    }
}
