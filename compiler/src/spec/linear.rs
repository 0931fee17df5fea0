//! Which linear programs are legal: a [`Linear`] in, the first [`Violation`] out.
//!
//! A program that passes has one definition for each register, visible wherever it is used, and operand types as
//! `linear.rs` documents them; what depends on values (bounds, races, diverging barriers) is the interpreter's to find.

use crate::dtype::{DType, Scalar};
use crate::linear::{Count, Inst, Linear, Mem, Op, Reg};
use crate::scalar::Binary;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Index into `code`; none when the header or the end of the program is at fault.
    pub at: Option<usize>,
    pub why: String,
}

/// Panics with the program and the offending instruction unless the program is legal.
pub fn verify(program: &Linear) {
    if let Err(v) = check(program) {
        panic!("{}", report(program, v.at, &format!("illegal program: {}", v.why)));
    }
}

/// A message about one instruction, followed by the whole program.
pub fn report(program: &Linear, at: Option<usize>, why: &str) -> String {
    match at.and_then(|i| program.code.get(i).map(|inst| (i, inst))) {
        Some((i, inst)) => format!("{why}\n  at instruction {i}: {}\n{program}", program.show(inst)),
        None => format!("{why}\n{program}"),
    }
}

pub fn check(program: &Linear) -> Result<(), Violation> {
    header(program).map_err(|why| Violation { at: None, why })?;
    let count = program.regs.len();
    let mut c = Checker { program, defined: vec![false; count], visible: vec![false; count], open: vec![] };
    for (i, inst) in program.code.iter().enumerate() {
        c.inst(inst).map_err(|why| Violation { at: Some(i), why })?;
    }
    match c.open.is_empty() {
        true => Ok(()),
        false => Err(Violation { at: None, why: "a loop has no end".into() }),
    }
}

pub(super) type Check = Result<(), String>;

pub(super) fn ensure(ok: bool, why: impl FnOnce() -> String) -> Check {
    if ok { Ok(()) } else { Err(why()) }
}

fn header(p: &Linear) -> Check {
    let is_word = |s: &str| !s.is_empty() && !s.contains(char::is_whitespace);
    ensure(is_word(&p.name), || format!("name {:?} is not one word", p.name))?;
    for s in &p.symbols {
        ensure(is_word(s), || format!("symbol {s:?} is not one word"))?;
    }
    ensure(p.threads >= 1, || "a block has at least one thread".into())?;
    let elements = p.buffers.iter().map(|b| b.0).chain(p.locals.iter().map(|l| l.dtype));
    for t in elements {
        ensure(t.lanes == 1, || format!("memory of {t}: elements are scalars"))?;
    }
    for (i, t) in p.regs.iter().enumerate() {
        ensure(t.lanes >= 1, || format!("%{i} has no lanes"))?;
    }
    grid(p, &p.grid)
}

fn grid(p: &Linear, c: &Count) -> Check {
    match c {
        Count::Const(v) => ensure(*v >= 0, || format!("{v} grid indices")),
        Count::Symbol(s) => ensure((*s as usize) < p.symbols.len(), || format!("no symbol s{s}")),
        Count::Binary(op, ab) => {
            ensure(!op.is_compare(), || format!("{op:?} does not count"))?;
            grid(p, &ab.0)?;
            grid(p, &ab.1)
        }
    }
}

/// A loop whose `End` has not come.
struct Open {
    carried: Vec<DType>,
    /// Registers defined in the body: invisible after it.
    body: Vec<Reg>,
}

struct Checker<'a> {
    program: &'a Linear,
    defined: Vec<bool>,
    visible: Vec<bool>,
    open: Vec<Open>,
}

impl Checker<'_> {
    fn inst(&mut self, inst: &Inst) -> Check {
        for r in inst.uses() {
            let known = self.visible.get(r.0 as usize);
            ensure(known == Some(&true), || format!("{r} is used where it is not defined"))?;
        }
        // An `End` defines its results outside the body it closes.
        let closed = match inst {
            Inst::End { .. } => Some(self.open.pop().ok_or("an end without a loop")?),
            _ => None,
        };
        if let Inst::Loop { carried, .. } = inst {
            let carried = carried.iter().map(|(_, init)| self.program.dtype(*init)).collect();
            self.open.push(Open { carried, body: vec![] });
        }
        for r in closed.iter().flat_map(|open| &open.body) {
            self.visible[r.0 as usize] = false;
        }
        for r in inst.defs() {
            let i = r.0 as usize;
            ensure(i < self.defined.len(), || format!("{r} has no type"))?;
            ensure(!self.defined[i], || format!("{r} is defined twice"))?;
            (self.defined[i], self.visible[i]) = (true, true);
            if let Some(open) = self.open.last_mut() {
                open.body.push(r);
            }
        }
        self.types(inst, closed)
    }

    fn types(&self, inst: &Inst, closed: Option<Open>) -> Check {
        let dtype = |r: &Reg| self.program.dtype(*r);
        match inst {
            Inst::Op { dst, op, args } => {
                let args: Vec<DType> = args.iter().map(dtype).collect();
                if let Op::Symbol(s) = op {
                    ensure((*s as usize) < self.program.symbols.len(), || format!("no symbol s{s}"))?;
                }
                operation(op, dtype(dst), &args)
            }
            Inst::Load { dst, mem, index, gate, .. } => {
                self.access(*mem, dtype(dst))?;
                self.is(*index, DType::INDEX)?;
                self.gate(*gate, dtype(dst).lanes)
            }
            Inst::Gather { dst, mem, index, gate } => {
                self.access(*mem, dtype(dst))?;
                self.is(*index, DType::I32.with_lanes(dtype(dst).lanes))?;
                self.gate(*gate, dtype(dst).lanes)
            }
            Inst::Store { mem, index, value, gate, .. } => {
                self.access(*mem, dtype(value))?;
                self.written(*mem)?;
                self.is(*index, DType::INDEX)?;
                self.gate(*gate, dtype(value).lanes)
            }
            Inst::Prefetch { mem, index, gate, .. } => {
                self.element(*mem)?;
                self.is(*index, DType::INDEX)?;
                self.gate(*gate, 1)
            }
            Inst::Loop { var, extent, carried } => {
                self.is(*var, DType::INDEX)?;
                self.is(*extent, DType::INDEX)?;
                carried.iter().try_for_each(|(phi, init)| self.is(*phi, dtype(init)))
            }
            Inst::End { next, out } => {
                let carried = closed.map(|open| open.carried).unwrap_or_default();
                let n = carried.len();
                ensure(next.len() == n && out.len() == n, || format!("the loop carries {n} values"))?;
                let mut each = carried.iter().zip(next.iter().zip(out));
                each.try_for_each(|(t, (next, out))| self.is(*next, *t).and_then(|()| self.is(*out, *t)))
            }
            Inst::Barrier { width: None } => Ok(()),
            Inst::Barrier { width: Some(n) } => {
                ensure(n.is_power_of_two(), || format!("width {n} is not a power of two"))
            }
            Inst::LaneReduce { dst, fold, src, width } => {
                let (s, threads) = (dtype(src).scalar, self.program.threads);
                self.is(*dst, dtype(src))?;
                ensure(fold.binary().takes(s), || format!("{fold:?} does not take {s}"))?;
                ensure(width.is_power_of_two() && threads.is_multiple_of(*width), || {
                    format!("width {width} is not a power of two that divides {threads} threads")
                })
            }
            Inst::Mma { dst, acc, a, b } => {
                let threads = self.program.threads;
                ensure(threads.is_multiple_of(32), || format!("{threads} threads are no groups of 32"))?;
                [dst, acc].into_iter().try_for_each(|r| self.is(*r, Scalar::F32.vec(4)))?;
                let half = match self.program.dtype(*b).scalar {
                    Scalar::F16 => Scalar::F16,
                    _ => Scalar::BF16,
                };
                a.iter().chain([b]).try_for_each(|r| self.is(*r, half.vec(4)))
            }
            Inst::TileZero { n } => {
                ensure(self.program.threads == 1, || "tiles belong to one thread".into())?;
                ensure((1..=4).contains(n), || format!("{n} accumulators"))
            }
            Inst::TileMul { a_mem, a, b_mem, b, .. } => {
                for mem in [a_mem, b_mem] {
                    self.access(*mem, DType::BF16)?;
                }
                let few = |v: &[Reg]| (1..=2).contains(&v.len());
                ensure(few(a) && few(b), || "one or two tiles of each".into())?;
                a.iter().chain(b).try_for_each(|r| self.is(*r, DType::INDEX))
            }
            Inst::TileStore { mem, index } => {
                self.access(*mem, DType::F32)?;
                self.written(*mem)?;
                index.iter().try_for_each(|r| self.is(*r, DType::INDEX))
            }
            Inst::TileDot { dst, mem, index, b, .. } => {
                self.access(*mem, DType::I8)?;
                self.is(*index, DType::INDEX)?;
                ensure(dst.len() == 16, || "a tile has 16 rows".into())?;
                ensure((1..=16).contains(&b.len()), || "a tile has 1 to 16 groups of inputs".into())?;
                b.iter().try_for_each(|r| self.is(*r, Scalar::U8.vec(64)))?;
                dst.iter().try_for_each(|r| self.is(*r, Scalar::I32.vec(16)))
            }
        }
    }

    fn is(&self, r: Reg, want: DType) -> Check {
        let got = self.program.dtype(r);
        ensure(got == want, || format!("{r} is {got}, not {want}"))
    }

    fn element(&self, mem: Mem) -> Result<DType, String> {
        let known = match mem {
            Mem::Global(i) => (i as usize) < self.program.buffers.len(),
            Mem::Local(i) => (i as usize) < self.program.locals.len(),
        };
        ensure(known, || format!("no memory {mem}"))?;
        Ok(self.program.mem_scalar(mem))
    }

    fn access(&self, mem: Mem, value: DType) -> Check {
        let element = self.element(mem)?;
        ensure(value.scalar == element.scalar, || format!("{value} in a memory of {element}"))
    }

    fn written(&self, mem: Mem) -> Check {
        let Mem::Global(i) = mem else { return Ok(()) };
        ensure(self.program.buffers[i as usize].1, || format!("{mem} is not flagged as written"))
    }

    fn gate(&self, gate: Option<Reg>, lanes: u16) -> Check {
        let Some(g) = gate else { return Ok(()) };
        let t = self.program.dtype(g);
        ensure(t == DType::BOOL || t == DType::BOOL.with_lanes(lanes), || {
            format!("gate {g} is {t}, not one bool or {lanes}")
        })
    }
}

/// Whether an operation on these types gives this type. Which symbols there are is for the caller to know.
pub(super) fn operation(op: &Op, dst: DType, args: &[DType]) -> Check {
    let arity = match op {
        Op::Const(_) | Op::Symbol(_) | Op::Grid | Op::Thread | Op::Iota => 0,
        Op::Unary(_) | Op::Cast | Op::Bitcast | Op::Spread | Op::Repeat => 1,
        Op::Extract(_) | Op::Slice(_) | Op::Lookup(_) => 1,
        Op::Binary(_) | Op::Pairs => 2,
        Op::Fma | Op::Where | Op::Dot4 => 3,
        Op::Stack | Op::Fold(_) => dst.lanes as usize,
    };
    ensure(args.len() == arity, || format!("takes {arity} arguments, not {}", args.len()))?;
    let all_are = |t: DType| ensure(args.iter().all(|a| *a == t), || format!("takes {t}"));
    let gives = |t: DType| ensure(dst == t, || format!("gives {t}, not {dst}"));
    let takes = |ok: bool, s: Scalar| ensure(ok, || format!("does not take {s}"));
    match op {
        Op::Const(bits) => ensure(bits.is_canonical(dst.scalar), || format!("no value of {}", dst.scalar)),
        Op::Symbol(_) | Op::Grid | Op::Thread => gives(DType::INDEX),
        Op::Iota => gives(DType::I32.with_lanes(dst.lanes)),
        Op::Unary(u) => {
            takes(u.takes(args[0].scalar), args[0].scalar)?;
            gives(args[0])
        }
        Op::Binary(b) => {
            all_are(args[0])?;
            takes(b.takes(args[0].scalar), args[0].scalar)?;
            gives(result(*b, args[0]))
        }
        Op::Fma => {
            all_are(DType::F32.with_lanes(dst.lanes))?;
            gives(args[0])
        }
        Op::Where => {
            let cond = DType::BOOL.with_lanes(dst.lanes);
            ensure(args[0] == cond, || format!("condition is {}, not {cond}", args[0]))?;
            ensure(args[1] == dst && args[2] == dst, || format!("chooses between values of {dst}"))
        }
        Op::Cast => gives(dst.scalar.vec(args[0].lanes)),
        Op::Bitcast => {
            let (from, to) = (args[0].scalar, dst.scalar);
            ensure(from.bytes() == to.bytes(), || format!("{from} and {to} differ in width"))?;
            takes(from != Scalar::Bool && to != Scalar::Bool, Scalar::Bool)?;
            gives(to.vec(args[0].lanes))
        }
        Op::Spread | Op::Repeat => {
            gives(args[0].with_lanes(dst.lanes))?;
            ensure(dst.lanes.is_multiple_of(args[0].lanes), || format!("{dst} is no multiple of {}", args[0]))
        }
        Op::Extract(lane) => {
            ensure(*lane < args[0].lanes, || format!("no lane {lane} in {}", args[0]))?;
            gives(args[0].with_lanes(1))
        }
        Op::Slice(first) => {
            let end = *first as u32 + dst.lanes as u32;
            ensure(end <= args[0].lanes as u32, || format!("lanes {first}..{end} of {}", args[0]))?;
            gives(args[0].with_lanes(dst.lanes))
        }
        Op::Stack => all_are(dst.with_lanes(1)),
        Op::Fold(fold) => {
            all_are(args[0])?;
            takes(fold.binary().takes(args[0].scalar), args[0].scalar)?;
            gives(args[0].with_lanes(dst.lanes))
        }
        Op::Dot4 => {
            gives(DType::I32.with_lanes(dst.lanes))?;
            let wide = dst.lanes.checked_mul(4).ok_or("too many lanes")?;
            let want = [dst, Scalar::U8.vec(wide), Scalar::I8.vec(wide)];
            ensure(args == want, || format!("takes {want:?}, not {args:?}"))
        }
        Op::Pairs => {
            takes(matches!(args[0].scalar, Scalar::F32 | Scalar::U32 | Scalar::BF16), args[0].scalar)?;
            all_are(args[0])?;
            gives(Scalar::BF16.vec(2 * args[0].lanes))
        }
        Op::Lookup(_) => {
            all_are(Scalar::U8.vec(dst.lanes))?;
            ensure(matches!(dst.scalar, Scalar::U8 | Scalar::I8), || format!("gives bytes, not {dst}"))
        }
    }
}

/// The type of `op` of two `t`.
fn result(op: Binary, t: DType) -> DType {
    if op.is_compare() { Scalar::Bool.vec(t.lanes) } else { t }
}

#[cfg(test)]
mod tests;
