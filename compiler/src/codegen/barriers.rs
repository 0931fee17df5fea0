//! Which barriers a program needs.
//!
//! In: a linear program with a barrier wherever one stage follows another. Out: the same without those between which no
//! thread touches what another did, and with barriers of neighbours where only threads of one group do. Who touches what
//! is found by computing the index of each access for every thread; an index that depends on more than threads and
//! loops of known length may be anyone's.

use crate::dtype::Bits;
use crate::linear::{Inst, Linear, Mem, Op, Reg};
use crate::scalar::binary;
use std::collections::HashMap;
use std::rc::Rc;

/// Indices of one access that are worth computing, of all threads in all rounds.
const INDICES: usize = 1 << 14;

/// Drops and weakens the barriers outside of loops. Groups are of `width` neighbours.
pub fn relax(mut l: Linear, width: u32) -> Linear {
    let (mut depth, mut barriers) = (0, vec![]);
    for (at, inst) in l.code.iter().enumerate() {
        match inst {
            Inst::Loop { .. } => depth += 1,
            Inst::End { .. } => depth -= 1,
            Inst::Barrier { width: None } if depth == 0 => barriers.push(at),
            _ => {}
        }
    }
    let ends = barriers.iter().copied().chain([l.code.len()]);
    let mut places = Places::new(&l);
    let mut start = 0;
    let mut stretches = ends.map(|end| {
        let accesses: Vec<Access> = l.code[start..end].iter().filter_map(|i| places.access(i)).collect();
        start = end;
        accesses
    });
    // What a barrier may have to order, and whether one of groups stands behind it.
    let mut before: Vec<(Access, bool)> =
        stretches.next().into_iter().flatten().map(|a| (a, false)).collect();
    let mut waits = vec![];
    for after in stretches {
        let met = before.iter().flat_map(|(a, grouped)| {
            after.iter().map(|b| a.meets(b, width)).filter(|w| !(*grouped && *w == Wait::Group))
        });
        let wait = met.max().unwrap_or(Wait::Nobody);
        match wait {
            Wait::All => before.clear(),
            Wait::Group => before.iter_mut().for_each(|(_, grouped)| *grouped = true),
            Wait::Nobody => {}
        }
        before.extend(after.into_iter().map(|a| (a, false)));
        waits.push(wait);
    }
    let mut waits = barriers.into_iter().zip(waits).collect::<HashMap<_, _>>();
    let code = std::mem::take(&mut l.code).into_iter().enumerate();
    l.code = code
        .filter_map(|(at, inst)| match waits.remove(&at) {
            Some(Wait::Nobody) => None,
            Some(Wait::Group) => Some(Inst::Barrier { width: Some(width) }),
            _ => Some(inst),
        })
        .collect();
    l
}

/// Who has to wait for another thread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wait {
    Nobody,
    Group,
    All,
}

struct Access {
    mem: Mem,
    writes: bool,
    /// For each element the first and the last thread that touch it, if any do; none if it is not known.
    by: Option<Vec<Option<(u32, u32)>>>,
}

impl Access {
    fn meets(&self, other: &Access, width: u32) -> Wait {
        if self.mem != other.mem || !self.writes && !other.writes {
            return Wait::Nobody;
        }
        let (Some(mine), Some(others)) = (&self.by, &other.by) else { return Wait::All };
        let both = mine.iter().zip(others).filter_map(|(a, b)| Some(((*a)?, (*b)?)));
        let wait = both.map(|((a, b), (c, d))| match (a.min(c), b.max(d)) {
            (first, last) if first == last => Wait::Nobody,
            (first, last) if first / width == last / width => Wait::Group,
            _ => Wait::All,
        });
        wait.max().unwrap_or(Wait::Nobody)
    }
}

/// A value for each thread.
type Values = Rc<Vec<i64>>;

struct Places<'l> {
    program: &'l Linear,
    makers: HashMap<Reg, &'l Inst>,
    /// Rounds of the loops that have a known number of them, by their variables.
    rounds: HashMap<Reg, i64>,
    known: HashMap<Reg, Values>,
}

impl<'l> Places<'l> {
    fn new(program: &'l Linear) -> Places<'l> {
        let defs = program.code.iter().flat_map(|i| i.defs().into_iter().map(move |r| (r, i)));
        let makers: HashMap<Reg, &Inst> = defs.collect();
        let constant = |r: &Reg| match makers.get(r) {
            Some(Inst::Op { op: Op::Const(v), .. }) => Some(v.as_int()),
            _ => None,
        };
        let rounds = program.code.iter().filter_map(|i| match i {
            Inst::Loop { var, extent, .. } => Some((*var, constant(extent)?)),
            _ => None,
        });
        Places { program, rounds: rounds.collect(), makers, known: HashMap::new() }
    }

    fn access(&mut self, inst: &Inst) -> Option<Access> {
        let (mem, writes, place) = match inst {
            Inst::Load { dst, mem, index, offset, .. } => (*mem, false, Some((*dst, *index, *offset))),
            Inst::Store { mem, index, offset, value, .. } => (*mem, true, Some((*value, *index, *offset))),
            Inst::Gather { mem, .. } => (*mem, false, None),
            _ => return None,
        };
        let by = place.and_then(|(value, index, offset)| self.by(mem, value, index, offset));
        Some(Access { mem, writes, by })
    }

    fn by(&mut self, mem: Mem, value: Reg, index: Reg, offset: i64) -> Option<Vec<Option<(u32, u32)>>> {
        let Mem::Local(local) = mem else { return None };
        let (local, t) = (self.program.locals[local as usize], self.program.dtype(value));
        let mut loops = vec![];
        self.loops(index, &mut loops)?;
        let rounds: usize = loops.iter().map(|var| self.rounds[var] as usize).product();
        if local.dtype.scalar != t.scalar || rounds * self.program.threads as usize > INDICES {
            return None;
        }
        let mut by = vec![None; local.len];
        for round in 0..rounds {
            let mut rest = round as i64;
            // What was computed in another round is of that round.
            if !loops.is_empty() {
                self.known.clear();
            }
            for var in &loops {
                let n = self.rounds[var];
                self.known.insert(*var, Rc::new(vec![rest % n; self.program.threads as usize]));
                rest /= n;
            }
            let starts = self.values(index);
            for (thread, start) in starts.iter().enumerate() {
                for lane in 0..t.lanes as i64 {
                    let place = by.get_mut(usize::try_from(start + offset + lane).ok()?)?;
                    let (thread, others) = (thread as u32, place.unwrap_or((u32::MAX, 0)));
                    *place = Some((others.0.min(thread), others.1.max(thread)));
                }
            }
        }
        Some(by)
    }

    /// The loops that a register depends on; none if it depends on what is not known here.
    fn loops(&self, reg: Reg, found: &mut Vec<Reg>) -> Option<()> {
        if self.rounds.contains_key(&reg) {
            if !found.contains(&reg) {
                found.push(reg);
            }
            return Some(());
        }
        match self.makers.get(&reg)? {
            Inst::Op { op: Op::Const(_) | Op::Thread | Op::Binary(_), args, .. } => {
                args.iter().try_for_each(|a| self.loops(*a, found))
            }
            _ => None,
        }
    }

    /// Of a register of which [`Places::loops`] knows what it depends on.
    fn values(&mut self, reg: Reg) -> Values {
        if let Some(known) = self.known.get(&reg) {
            return known.clone();
        }
        let threads = 0..self.program.threads as i64;
        let found: Values = Rc::new(match self.makers[&reg] {
            Inst::Op { op: Op::Const(v), .. } => threads.map(|_| v.as_int()).collect(),
            Inst::Op { op: Op::Thread, .. } => threads.collect(),
            Inst::Op { op: Op::Binary(op), args, .. } => {
                let (a, b) = (self.values(args[0]), self.values(args[1]));
                let s = self.program.dtype(args[0]).scalar;
                let each = a.iter().zip(b.iter());
                each.map(|(a, b)| binary(*op, s, Bits::int(*a), Bits::int(*b)).as_int()).collect()
            }
            other => unreachable!("{other:?} has no loops"),
        });
        self.known.insert(reg, found.clone());
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::linear::parse;

    /// What is left of the barriers of a program of 8 threads in groups of 4, which tells a barrier from what comes next.
    fn left(code: &str) -> String {
        let text = format!(
            "linear a grid 2 threads 8\nbuffer g0: i64 written\nlocal l0: i64[8]\nlocal l1: i64[8]\n\
             %0: i64 = Thread\n%1: i64 = Grid\n%2: i64 = 1\n%3: i64 = Xor %0 %2\n%4: i64 = 4\n%5: i64 = Xor %0 %4\n{}\n",
            code.replace("; ", "\n")
        );
        let relaxed = relax(parse(&text).unwrap(), 4).to_string();
        let lines = relaxed.lines().map(str::trim).filter(|l| l.starts_with("barrier"));
        lines.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn threads_wait_for_those_whose_elements_they_touch() {
        let store = "store l0[%0] = %0; barrier; ";
        assert_eq!(left(&format!("{store}%6: i64 = load l0[%0]")), "");
        assert_eq!(left(&format!("{store}%6: i64 = load l0[%3]")), "barrier of 4");
        assert_eq!(left(&format!("{store}%6: i64 = load l0[%5]")), "barrier");
        assert_eq!(left(&format!("{store}%6: i64 = load l1[%5]")), "");
        assert_eq!(left("%6: i64 = load l0[%5]; barrier; %7: i64 = load l0[%0]"), "");
        assert_eq!(left("%6: i64 = load l0[%5]; barrier; store l0[%0] = %0"), "barrier");
    }

    #[test]
    fn what_is_not_known_may_be_anyones() {
        assert_eq!(left("store l0[%1] = %0; barrier; %6: i64 = load l0[%0]"), "barrier");
        assert_eq!(left("store g0[%0] = %0; barrier; %6: i64 = load g0[%0]"), "barrier");
        assert_eq!(
            left("store l0[%0] = %0; barrier; loop %6 < %1 []; %7: i64 = load l0[%6]; end [] -> []"),
            "barrier"
        );
    }

    #[test]
    fn a_barrier_orders_what_stood_before_those_that_were_dropped() {
        let kept = "store l0[%0] = %0; barrier; store l1[%0] = %0; barrier; %6: i64 = load l0[%5]";
        assert_eq!(left(kept), "barrier");
        let once = "store l0[%0] = %0; barrier; %6: i64 = load l0[%3]; barrier; %7: i64 = load l0[%3]";
        assert_eq!(left(once), "barrier of 4");
    }

    #[test]
    fn rounds_of_a_loop_are_looked_at_one_by_one() {
        let over = |index: &str| {
            format!(
                "store l0[%0] = %0; barrier; %6: i64 = 2; loop %7 < %6 []; {index}; %9: i64 = load l0[%8]; end [] -> []"
            )
        };
        assert_eq!(left(&over("%8: i64 = Xor %0 %7")), "barrier of 4");
        assert_eq!(left(&over("%10: i64 = Mul %7 %4; %8: i64 = Xor %0 %10")), "barrier");
        // The second round of l1 is outside; the first of l0 is another group's.
        let outside = "%10: i64 = Sub %2 %7; %11: i64 = Mul %10 %4; %12: i64 = Add %0 %4; %13: i64 = Sub %12 %11; \
             %14: i64 = load l1[%13]; %8: i64 = Xor %0 %11";
        assert_eq!(left(&over(outside)), "barrier");
    }
}
