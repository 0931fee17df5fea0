//! What a linear program does in numbers, read off its code.
//!
//! In: a program and values of its symbols. Out: arithmetic, bytes loaded and stored, instructions, over the whole grid.
//! Nothing is run: loops count as often as their extents say. An extent that depends on the grid index or on data is taken
//! at index 0.

use crate::dtype::{Bits, Scalar};
use crate::linear::{Inst, Linear, Mem, Op, Reg};
use crate::scalar::{self, Binary};
use std::collections::HashMap;
use std::ops::AddAssign;

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Work {
    /// Additions, multiplications, divisions and comparisons of floats and of byte products; an `Fma` is two. Arithmetic on
    /// indices is none.
    pub operations: u64,
    /// Bytes that loads from buffers ask for; what is read twice counts twice.
    pub loaded: u64,
    pub stored: u64,
    /// Linear instructions; a `Loop` counts once a round.
    pub instructions: u64,
}

impl Work {
    fn times(self, n: u64) -> Work {
        let Work { operations, loaded, stored, instructions } = self;
        Work {
            operations: operations.saturating_mul(n),
            loaded: loaded.saturating_mul(n),
            stored: stored.saturating_mul(n),
            instructions: instructions.saturating_mul(n),
        }
    }
}

impl AddAssign for Work {
    fn add_assign(&mut self, o: Work) {
        self.operations = self.operations.saturating_add(o.operations);
        self.loaded = self.loaded.saturating_add(o.loaded);
        self.stored = self.stored.saturating_add(o.stored);
        self.instructions = self.instructions.saturating_add(o.instructions);
    }
}

/// The whole grid's, on all threads of a block.
pub fn work(p: &Linear, symbols: &[i64]) -> Work {
    let mut known: HashMap<Reg, Bits> = HashMap::new();
    // What each open loop does in one round, and its rounds; the program's own level is a loop of one.
    let mut open: Vec<(Work, u64)> = vec![(Work::default(), 1)];
    for inst in &p.code {
        match inst {
            Inst::Loop { var, extent, .. } => {
                known.insert(*var, Bits::int(0));
                let rounds = known.get(extent).map_or(1, |n| n.as_int().max(0) as u64);
                open.push((Work::default(), rounds));
            }
            Inst::End { .. } => {
                let (round, rounds) = open.pop().expect("loops are nested");
                open.last_mut().expect("the program's own level stays").0 += round.times(rounds);
            }
            Inst::Op { dst, op, args } => {
                let value = value(p, *op, args, *dst, symbols, &known);
                known.extend(value.map(|v| (*dst, v)));
            }
            _ => {}
        }
        open.last_mut().expect("the program's own level stays").0 += one(p, inst);
    }
    let grid = p.grid.eval(symbols).max(0) as u64;
    open[0].0.times(grid.saturating_mul(p.threads as u64))
}

/// Registers that a GPU's assembler gives each thread, about: addresses come on top of the values, of which its order of
/// instructions keeps fewer alive (28 to 72 on sm_90 for kernels of one token whose pressure is 22 to 121, 174 for products
/// whose is 212).
pub fn registers(p: &Linear) -> u64 {
    16 + pressure(p) as u64 * 5 / 8
}

/// Registers of 32 bits that are alive at once, at most: what a GPU's threads hold of the program. An index is one of
/// them, a constant or a bool none.
pub fn pressure(p: &Linear) -> usize {
    let size = |r: Reg| match p.dtype(r) {
        t if t.scalar == Scalar::Bool => 0,
        t if t.scalar == Scalar::I64 => t.lanes as usize,
        t => t.bytes().div_ceil(4),
    };
    let mut ends = vec![0; p.code.len()];
    let mut open = vec![];
    for (at, inst) in p.code.iter().enumerate() {
        match inst {
            Inst::Loop { .. } => open.push(at),
            Inst::End { .. } => ends[open.pop().expect("loops are nested")] = at,
            _ => {}
        }
    }
    // Where each register is defined, and where it is needed for the last time.
    let mut life = vec![(0, 0); p.regs.len()];
    for (at, inst) in p.code.iter().enumerate() {
        if let Inst::End { .. } = inst {
            open.pop();
        }
        for r in inst.uses() {
            let life = &mut life[r.0 as usize];
            // What comes from outside a loop is needed in its every round.
            let outside = open.iter().find(|&&start| life.0 < start).map_or(at, |&start| ends[start]);
            life.1 = life.1.max(outside);
        }
        let lasts = if let Inst::Loop { .. } = inst { ends[at] } else { at };
        inst.defs().into_iter().for_each(|r| life[r.0 as usize] = (at, lasts));
        if let Inst::Loop { .. } = inst {
            open.push(at);
        }
    }
    let mut change = vec![0i64; p.code.len() + 2];
    for inst in p.code.iter().filter(|i| !matches!(i, Inst::Op { op: Op::Const(_), .. })) {
        for r in inst.defs() {
            let (from, to) = life[r.0 as usize];
            change[from] += size(r) as i64;
            change[to + 1] -= size(r) as i64;
        }
    }
    let alive = change.iter().scan(0, |sum, c| {
        *sum += c;
        Some(*sum)
    });
    alive.max().unwrap_or(0) as usize
}

/// The value of an index that loops and symbols alone decide.
fn value(
    p: &Linear,
    op: Op,
    args: &[Reg],
    dst: Reg,
    symbols: &[i64],
    known: &HashMap<Reg, Bits>,
) -> Option<Bits> {
    let t = p.dtype(dst);
    if t.lanes > 1 || !t.scalar.is_int() {
        return None;
    }
    let arg = |i: usize| known.get(&args[i]).copied();
    match op {
        Op::Const(v) => Some(v),
        Op::Symbol(s) => symbols.get(s as usize).map(|&v| Bits::int(v)),
        Op::Grid | Op::Thread => Some(Bits::int(0)),
        Op::Cast if p.dtype(args[0]).scalar.is_int() => Some(Bits::int(t.scalar.wrap(arg(0)?.as_int()))),
        Op::Binary(b) => Some(scalar::binary(b, t.scalar, arg(0)?, arg(1)?)),
        _ => None,
    }
}

/// One instruction's own.
fn one(p: &Linear, inst: &Inst) -> Work {
    let bytes = |mem: &Mem, r: Reg| match mem {
        Mem::Global(_) => p.dtype(r).bytes() as u64,
        Mem::Local(_) => 0,
    };
    let mut w = Work { instructions: 1, ..Work::default() };
    match inst {
        Inst::Op { dst, op, args } => {
            let t = p.dtype(*dst);
            let float = args.first().is_some_and(|a| p.dtype(*a).scalar == Scalar::F32);
            w.operations = match op {
                Op::Fma => 2 * t.lanes as u64,
                Op::Dot4 => 8 * t.lanes as u64,
                Op::Binary(b) if float && !matches!(b, Binary::And | Binary::Or | Binary::Xor) => {
                    t.lanes as u64
                }
                Op::Fold(_) if float => p.dtype(args[0]).lanes as u64,
                _ => 0,
            };
        }
        Inst::Load { dst, mem, .. } | Inst::Gather { dst, mem, .. } => w.loaded = bytes(mem, *dst),
        Inst::Store { mem, value, .. } => w.stored = bytes(mem, *value),
        Inst::Mma { .. } => w.operations = 2 * 16 * 8 * 16 / 32,
        Inst::TileDot { dst, mem, b, .. } => {
            let inner: u64 = b.iter().map(|r| p.dtype(*r).lanes as u64).sum();
            w.operations = 2 * dst.len() as u64 * inner;
            if let Mem::Global(_) = mem {
                w.loaded = dst.len() as u64 * inner / 16;
            }
        }
        Inst::TileMul { a_mem, a, b, .. } => {
            w.operations = 2 * 16 * 16 * 32 * (a.len() * b.len()) as u64;
            if let Mem::Global(_) = a_mem {
                w.loaded = 16 * 64 * a.len() as u64;
            }
        }
        _ => {}
    }
    w
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::linear::parse;

    #[test]
    fn values_are_alive_from_where_they_are_made_to_where_they_are_used() {
        let p = parse(
            "linear p grid 1 threads 1
             buffer g0: f32
             buffer g1: f32 written
             %0: i64 = 4
             %1: i64 = Grid
             %2: f32x4 = load g0[%1]
             %3: f32 = 0.0
             loop %4 < %0 [%5: f32 = %3]
               %6: f32x4 = load g0[%4]
               %7: f32x4 = Add %6 %2
               %8: f32 = FoldSum %7
               %9: f32 = Add %8 %5
             end [%9] -> [%10: f32]
             store g1[%1] = %10",
        );
        // The grid's index, the four that every round needs, the round and the sum, then eight of the round's own.
        assert_eq!(pressure(&p.unwrap()), 1 + 4 + 1 + 1 + 8);
    }
    use crate::dtype::DType;
    use crate::linear::Count;

    /// `for i in 0..rounds { out[i] = fma(x[8i..8i+8] ..) }`, on a grid of three.
    fn looped(rounds: impl FnOnce(&mut Linear) -> Reg) -> Linear {
        let mut p = Linear {
            name: "p".into(),
            grid: Count::Const(3),
            buffers: vec![(DType::F32, false), (DType::F32, true)],
            symbols: vec!["n".into()],
            locals: vec![],
            threads: 1,
            code: vec![],
            regs: vec![],
        };
        let extent = rounds(&mut p);
        let var = p.reg(DType::I64);
        p.code.push(Inst::Loop { var, extent, carried: vec![] });
        let v = Scalar::F32.vec(8);
        let dst = p.reg(v);
        p.code.push(Inst::Load { dst, mem: Mem::Global(0), index: var, offset: 0, gate: None });
        let value = p.op(v, Op::Fma, &[dst, dst, dst]);
        p.code.push(Inst::Store { mem: Mem::Global(1), index: var, offset: 0, value, gate: None });
        p.code.push(Inst::End { next: vec![], out: vec![] });
        p
    }

    #[test]
    fn loops_count_as_often_as_they_run() {
        let five = looped(|p| p.op(DType::I64, Op::Const(Bits::int(5)), &[]));
        let w = work(&five, &[0]);
        assert_eq!((w.operations, w.loaded, w.stored), (3 * 5 * 16, 3 * 5 * 32, 3 * 5 * 32));
        assert_eq!(
            w.instructions,
            3 * (1 + 4 * 5 + 1),
            "a constant, five rounds of `Loop` and its body, an `End`"
        );
    }

    #[test]
    fn extents_may_depend_on_symbols() {
        let twice = looped(|p| {
            let n = p.op(DType::I64, Op::Symbol(0), &[]);
            p.op(DType::I64, Op::Binary(Binary::Add), &[n, n])
        });
        assert_eq!(work(&twice, &[7]).operations, 3 * 14 * 16);
        assert_eq!(work(&twice, &[-1]).operations, 0);
    }
}
