//! The fixed list of launches of one step, replayed with new symbol values.
//!
//! In: programs and the buffer slices they run on, in execution order. Out: the same, checked (argument counts,
//! alignment, symbol names), with each launch's latest dependency. A plan is never changed once it is prepared.

use crate::buffer::Slice;
use crate::device::{Error, Program};
use compiler::linear::Linear;

pub struct Plan {
    symbols: Vec<String>,
    launches: Vec<Launch>,
}

/// Where workers that walk the same list of launches must meet: before a launch that depends on one since the last
/// meeting, unless one worker alone runs all of these, and before more launches follow each other than can be counted.
pub struct Meetings {
    /// The first launch since the last meeting.
    first: usize,
    /// Whether worker 0 alone ran all of them.
    alone: bool,
}

/// Most launches between two meetings.
pub const BETWEEN: usize = 16;

impl Default for Meetings {
    fn default() -> Meetings {
        Meetings { first: 0, alone: true }
    }
}

impl Meetings {
    /// Must the workers meet before launch `i` of `grid` indices, which depends on launch `after`? Asked for one launch
    /// after the other; `apart` wants a meeting before each but the first.
    pub fn before(&mut self, i: usize, grid: u64, after: Option<usize>, apart: bool) -> bool {
        let single = grid <= 1;
        let waits = after.is_some_and(|a| a >= self.first) && !(self.alone && single);
        let meets = waits || self.since(i) == BETWEEN || (apart && i > 0);
        if meets {
            (self.first, self.alone) = (i, true);
        }
        self.alone &= single;
        meets
    }
    /// Launch `i`, counted from the last meeting.
    pub fn since(&self, i: usize) -> usize {
        i - self.first
    }
}

pub struct Launch {
    program: Program,
    args: Vec<Slice>,
    symbols: Vec<usize>,
    after: Option<usize>,
}

impl Plan {
    /// An empty plan whose steps are given values for `symbols`, in this order.
    pub fn new<S: Into<String>>(symbols: impl IntoIterator<Item = S>) -> Plan {
        Plan { symbols: symbols.into_iter().map(Into::into).collect(), launches: vec![] }
    }

    /// Appends a launch of `program` on `args`.
    pub fn push(&mut self, program: &Program, args: Vec<Slice>) -> Result<(), Error> {
        let bundle = program.bundle();
        let name = || bundle.name().to_string();
        let expected = bundle.buffers().count();
        if args.len() != expected {
            return Err(Error::Arguments { program: name(), expected, given: args.len() });
        }
        for (arg, (slice, (dtype, _))) in args.iter().zip(bundle.buffers()).enumerate() {
            if slice.address() % dtype.scalar.bytes() as u64 != 0 {
                return Err(Error::Misaligned { program: name(), arg, offset: slice.offset(), dtype });
            }
        }
        let find = |symbol: &String| {
            self.symbols.iter().position(|s| s == symbol).ok_or_else(|| Error::UnknownSymbol {
                program: name(),
                symbol: symbol.clone(),
                known: self.symbols.join(", "),
            })
        };
        let symbols = bundle.symbols().iter().map(find).collect::<Result<_, _>>()?;
        let mut launch = Launch { program: program.clone(), args, symbols, after: None };
        launch.apart()?;
        launch.after = self.launches.iter().rposition(|earlier| launch.conflicts(earlier));
        self.launches.push(launch);
        Ok(())
    }

    pub fn symbols(&self) -> &[String] {
        &self.symbols
    }
    pub fn launches(&self) -> &[Launch] {
        &self.launches
    }
    /// How often workers meet in one step, its start and its end among them.
    pub fn meetings(&self, symbols: &[i64]) -> usize {
        let mut meetings = Meetings::default();
        let meets = |(i, launch): (usize, &Launch)| {
            let own: Vec<i64> = launch.symbols(symbols).collect();
            meetings.before(i, launch.program().grid(&own), launch.after(), false)
        };
        self.launches.iter().enumerate().map(meets).filter(|&m| m).count() + 2
    }
}

impl Launch {
    pub fn program(&self) -> &Program {
        &self.program
    }
    pub fn args(&self) -> &[Slice] {
        &self.args
    }
    /// The values of the program's own symbols, out of the plan's.
    pub fn symbols(&self, plan: &[i64]) -> impl Iterator<Item = i64> {
        self.symbols.iter().map(|&s| plan[s])
    }
    /// The latest earlier launch that must be over before this one starts: one writes what the other touches.
    pub fn after(&self) -> Option<usize> {
        self.after
    }

    /// The programs that are launched together, each with its arguments.
    pub fn parts(&self) -> impl Iterator<Item = (&Linear, &[Slice])> {
        self.program.parts().iter().scan(&self.args[..], |rest, part| {
            let (own, others) = rest.split_at(part.buffers.len());
            *rest = others;
            Some((part, own))
        })
    }

    fn conflicts(&self, other: &Launch) -> bool {
        self.parts().any(|a| other.parts().any(|b| overlap(a, b)))
    }
    /// That its parts do not depend on one another.
    fn apart(&self) -> Result<(), Error> {
        for (i, a) in self.parts().enumerate() {
            if let Some(b) = self.parts().skip(i + 1).find(|b| overlap(a, *b)) {
                return Err(Error::Beside { first: a.0.name.clone(), second: b.0.name.clone() });
            }
        }
        Ok(())
    }
}

/// Does one write what the other touches?
fn overlap(a: (&Linear, &[Slice]), b: (&Linear, &[Slice])) -> bool {
    let of_a = || a.1.iter().zip(&a.0.buffers);
    let of_b = || b.1.iter().zip(&b.0.buffers);
    of_a().any(|(x, (_, wx))| of_b().any(|(y, (_, wy))| (*wx || *wy) && x.overlaps(y)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{Buffer, Memory};
    use compiler::bundle::Bundle;
    use compiler::dtype::DType;
    use compiler::linear::Count;
    use compiler::scalar::Binary;

    /// Reads its first buffer and writes its second.
    fn program(grid: Count, symbols: &[&str]) -> Program {
        let linear = Linear {
            name: "p".into(),
            grid,
            buffers: vec![(DType::F32, false), (DType::F32, true)],
            symbols: symbols.iter().map(|s| s.to_string()).collect(),
            locals: vec![],
            threads: 1,
            code: vec![],
            regs: vec![],
        };
        Program::new(linear, ())
    }
    fn at(b: &Buffer, offset: usize) -> Slice {
        b.slice(offset, 4).unwrap()
    }

    #[test]
    fn launches_wait_for_what_they_touch_and_nothing_else() {
        let b = Memory::alloc(64).unwrap();
        let p = program(Count::Const(1), &[]);
        let mut plan = Plan::new([""; 0]);
        for (from, to) in [(0, 4), (0, 8), (4, 12), (8, 16), (20, 0), (24, 16), (24, 28)] {
            plan.push(&p, vec![at(&b, from), at(&b, to)]).unwrap();
        }
        let after: Vec<_> = plan.launches().iter().map(|l| l.after()).collect();
        let read_after_write = [Some(0), Some(1)];
        let (write_after_read, write_after_write) = (Some(1), Some(3));
        assert_eq!(after[..2], [None, None], "two readers");
        assert_eq!(after[2..4], read_after_write);
        assert_eq!(after[4..], [write_after_read, write_after_write, None]);
    }

    #[test]
    fn workers_meet_before_what_depends_and_not_for_what_one_of_them_runs() {
        let b = Memory::alloc(256).unwrap();
        let meetings = |grid: i64, chain: &[(usize, usize)]| {
            let p = program(Count::Const(grid), &[]);
            let mut plan = Plan::new([""; 0]);
            chain.iter().for_each(|&(from, to)| plan.push(&p, vec![at(&b, from), at(&b, to)]).unwrap());
            plan.meetings(&[])
        };
        assert_eq!(meetings(8, &[]), 2);
        assert_eq!(meetings(8, &[(0, 4), (0, 8), (0, 12)]), 2, "nothing depends");
        assert_eq!(
            meetings(8, &[(0, 4), (4, 8), (4, 12), (8, 16)]),
            4,
            "the third is independent of the second"
        );
        assert_eq!(meetings(1, &[(0, 4), (4, 8), (8, 12)]), 2, "one worker runs all");
        let many: Vec<_> = (0..=BETWEEN).map(|i| (0, 4 * i + 4)).collect();
        assert_eq!(meetings(8, &many), 3, "one more than fit between two meetings");
    }

    #[test]
    fn symbols_are_found_by_name() {
        let b = Memory::alloc(64).unwrap();
        let double = Count::Binary(Binary::Mul, Box::new((Count::Symbol(1), Count::Const(2))));
        let mut plan = Plan::new(["tokens", "pos"]);
        plan.push(&program(double, &["pos", "tokens"]), vec![at(&b, 0), at(&b, 4)]).unwrap();
        let launch = &plan.launches()[0];
        assert_eq!(launch.symbols(&[3, 70]).collect::<Vec<_>>(), [70, 3]);
        assert_eq!(launch.program().grid(&[70, 3]), 6);
        assert_eq!(launch.program().grid(&[70, -3]), 0, "less than nothing is nothing");
    }

    #[test]
    fn parts_of_a_launch_must_not_touch_what_another_writes() {
        let b = Memory::alloc(64).unwrap();
        let one = program(Count::Const(1), &[]).parts()[0].clone();
        let two = Program::new(Bundle::new(vec![one.clone(), one]), ());
        let mut plan = Plan::new([""; 0]);
        let places = |all: [usize; 4]| all.iter().map(|&p| at(&b, p)).collect::<Vec<_>>();
        plan.push(&two, places([0, 4, 0, 8])).unwrap();
        for wrong in [[0, 4, 4, 8], [0, 4, 0, 4], [8, 4, 0, 8]] {
            let why = plan.push(&two, places(wrong)).unwrap_err().to_string();
            assert!(why.contains("p and p are to run side by side"), "{why}");
        }
        plan.push(&two, places([12, 16, 8, 20])).unwrap();
        assert_eq!(plan.launches()[1].after(), Some(0), "the second part reads what the first launch wrote");
        let starts = |args: &[Slice]| args.iter().map(Slice::offset).collect::<Vec<_>>();
        assert_eq!(starts(plan.launches()[1].parts().nth(1).unwrap().1), [8, 20]);
    }

    #[test]
    fn wrong_launches_are_refused_with_the_reason() {
        let b = Memory::alloc(64).unwrap();
        let mut plan = Plan::new(["pos"]);
        let mut refusal = |p: &Program, args| plan.push(p, args).unwrap_err().to_string();
        let p = program(Count::Const(1), &[]);
        assert_eq!(refusal(&p, vec![at(&b, 0)]), "program p takes 2 buffers and was given 1");
        assert_eq!(
            refusal(&p, vec![at(&b, 0), at(&b, 6)]),
            "buffer 1 of program p starts at byte 6, not at a whole f32"
        );
        assert_eq!(
            refusal(&program(Count::Const(1), &["tokens"]), vec![at(&b, 0), at(&b, 4)]),
            "program p needs the symbol `tokens`, which the plan lacks (it has: pos)"
        );
        assert!(plan.launches().is_empty());
    }
}
