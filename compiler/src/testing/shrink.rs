//! Makes a failing program small: a legal program and a test of whether one still fails in, a legal program that still
//! fails and from which no single step can be taken out.

use crate::dtype::Bits;
use crate::linear::{Count, Inst, Linear, Mem, Op, Reg};
use crate::spec;

/// Takes steps (drop an instruction or a loop, run a loop's body once, replace a value by a constant or an operand) as
/// long as the result is legal and fails. A step may make a program undefined (an index that was clamped): `still_fails`
/// must say no to those, see [`super::expected`].
pub fn shrink(program: &Linear, mut still_fails: impl FnMut(&Linear) -> bool) -> Linear {
    let mut best = program.clone();
    let mut accept = |best: &mut Linear, smaller: Linear| {
        let ok = smaller != *best && spec::linear::check(&smaller).is_ok() && still_fails(&smaller);
        if ok {
            *best = smaller;
        }
        ok
    };
    loop {
        let one_block = Linear { grid: Count::Const(1), ..best.clone() };
        let mut progress = accept(&mut best, one_block);
        // From the back: what a later instruction used may then go too.
        let mut at = best.code.len();
        while at > 0 {
            at = at.min(best.code.len());
            if at == 0 {
                break;
            }
            at -= 1;
            for step in STEPS {
                if step(&best, at).is_some_and(|smaller| accept(&mut best, smaller)) {
                    progress = true;
                    break;
                }
            }
        }
        if !progress {
            return best;
        }
    }
}

type Step = fn(&Linear, usize) -> Option<Linear>;
const STEPS: [Step; 5] = [drop_inst, drop_loop, run_once, forward, constant];

/// Local memory stays defined: its stores and the barriers go after its loads.
fn drop_inst(p: &Linear, at: usize) -> Option<Linear> {
    let reads = |want: Option<Mem>| {
        p.code.iter().any(|i| match i {
            Inst::Load { mem: m @ Mem::Local(_), .. } | Inst::Gather { mem: m @ Mem::Local(_), .. } => {
                want.is_none_or(|w| w == *m)
            }
            _ => false,
        })
    };
    match &p.code[at] {
        Inst::Loop { .. } | Inst::End { .. } => return None,
        Inst::Barrier { .. } if reads(None) => return None,
        Inst::Store { mem: mem @ Mem::Local(_), .. } if reads(Some(*mem)) => return None,
        _ => {}
    }
    let mut smaller = p.clone();
    smaller.code.remove(at);
    Some(smaller)
}

/// The loop at `at` as if it ran no round.
fn drop_loop(p: &Linear, at: usize) -> Option<Linear> {
    let Inst::Loop { carried, .. } = &p.code[at] else { return None };
    let end = end_of(p, at);
    let Inst::End { out, .. } = &p.code[end] else { return None };
    let mut smaller = p.clone();
    smaller.code.drain(at..=end);
    let values: Vec<(Reg, Reg)> = out.iter().copied().zip(carried.iter().map(|c| c.1)).collect();
    replace(&mut smaller, &values);
    Some(smaller)
}

/// The loop at `at` as if it ran one round.
fn run_once(p: &Linear, at: usize) -> Option<Linear> {
    let Inst::Loop { var, carried, .. } = &p.code[at] else { return None };
    let end = end_of(p, at);
    let Inst::End { next, out } = &p.code[end] else { return None };
    let mut smaller = p.clone();
    smaller.code.remove(end);
    smaller.code[at] = Inst::Op { dst: *var, op: Op::Const(Bits::int(0)), args: vec![] };
    replace(&mut smaller, carried);
    let inits = |r: &Reg| carried.iter().find(|(phi, _)| phi == r).map_or(*r, |(_, init)| *init);
    let values: Vec<(Reg, Reg)> = out.iter().copied().zip(next.iter().map(inits)).collect();
    replace(&mut smaller, &values);
    Some(smaller)
}

/// Uses of a result become uses of an operand of the same type.
fn forward(p: &Linear, at: usize) -> Option<Linear> {
    let [dst] = p.code[at].defs()[..] else { return None };
    let operand = p.code[at].uses().into_iter().find(|r| p.dtype(*r) == p.dtype(dst))?;
    let mut smaller = p.clone();
    smaller.code.remove(at);
    replace(&mut smaller, &[(dst, operand)]);
    Some(smaller)
}

fn constant(p: &Linear, at: usize) -> Option<Linear> {
    let [dst] = p.code[at].defs()[..] else { return None };
    if matches!(p.code[at], Inst::Loop { .. } | Inst::End { .. } | Inst::Op { op: Op::Const(_), .. }) {
        return None;
    }
    let one = if p.dtype(dst).is_float() { Bits::float(1.0) } else { Bits::int(1) };
    let mut smaller = p.clone();
    smaller.code[at] = Inst::Op { dst, op: Op::Const(one), args: vec![] };
    Some(smaller)
}

fn end_of(p: &Linear, start: usize) -> usize {
    let mut depth = 0;
    let closes = |inst: &Inst| {
        match inst {
            Inst::Loop { .. } => depth += 1,
            Inst::End { .. } => depth -= 1,
            _ => {}
        }
        depth == 0
    };
    start + p.code[start..].iter().position(closes).expect("loops of a legal program end")
}

/// Replaces uses.
fn replace(p: &mut Linear, values: &[(Reg, Reg)]) {
    for inst in &mut p.code {
        inst.map_uses(|r| values.iter().find(|(from, _)| *from == r).map_or(r, |(_, to)| *to));
    }
}
