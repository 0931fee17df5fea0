//! Upper halves of bytes as they are. In: a linear program. Out: one that gives the same bits.
//!
//! No instruction shifts bytes, so `w >> 4` is a shift of words and a mask. In a chain of dot products `w & 0xf0` does as
//! well: those of the upper halves become a chain of their own, whose sum is sixteen times as large.

use crate::dtype::{Bits, DType, Scalar};
use crate::linear::{Inst, Linear, Op, Reg};
use crate::scalar::Binary;
use std::collections::HashMap;

/// Shifts of a chain from which on it is worth the shift and the addition of its sum.
const WORTH: usize = 3;

pub fn unshifted(p: &Linear) -> Linear {
    let chains = chains(p);
    let mut out = Linear { code: vec![], ..p.clone() };
    let mut constants: HashMap<(DType, u64), Reg> = HashMap::new();
    // By the number of an instruction: its chain and whether its weights are upper halves.
    let mut members: HashMap<usize, (usize, bool)> = HashMap::new();
    let mut shifts: HashMap<usize, Reg> = HashMap::new();
    for (c, chain) in chains.iter().enumerate() {
        for &(at, upper) in chain {
            members.insert(at, (c, upper.is_some()));
            shifts.extend(upper);
        }
        let t = p.dtype(dot(p, chain[0].0).0);
        for value in [0, 4] {
            constants.entry((t, value)).or_insert_with(|| out.op(t, Op::Const(Bits(value)), &[]));
        }
    }
    for &x in shifts.values() {
        let t = p.dtype(x);
        constants.entry((t, 0xf0)).or_insert_with(|| out.op(t, Op::Const(Bits(0xf0)), &[]));
    }
    // The sums so far, of the lower and of the upper halves.
    let mut sums: Vec<[Reg; 2]> = vec![];
    for chain in &chains {
        let (dst, args) = dot(p, chain[0].0);
        sums.push([args[0], constants[&(p.dtype(dst), 0)]]);
    }
    for (i, inst) in p.code.iter().enumerate() {
        if let Some(&x) = shifts.get(&i) {
            let args = vec![x, constants[&(p.dtype(x), 0xf0)]];
            out.code.push(Inst::Op { dst: inst.defs()[0], op: Op::Binary(Binary::And), args });
        } else if let Some(&(c, upper)) = members.get(&i) {
            let (dst, args) = dot(p, i);
            let (t, last) = (p.dtype(dst), chains[c].last().is_some_and(|m| m.0 == i));
            let own = if last { out.reg(t) } else { dst };
            let sum = &mut sums[c][upper as usize];
            out.code.push(Inst::Op { dst: own, op: Op::Dot4, args: vec![*sum, args[1], args[2]] });
            *sum = own;
            if last {
                let [lower, upper] = sums[c];
                let upper = out.op(t, Op::Binary(Binary::Shr), &[upper, constants[&(t, 4)]]);
                out.code.push(Inst::Op { dst, op: Op::Binary(Binary::Add), args: vec![lower, upper] });
            }
        } else {
            out.code.push(inst.clone());
        }
    }
    out
}

/// A dot product's result and arguments.
fn dot(p: &Linear, at: usize) -> (Reg, &[Reg]) {
    match &p.code[at] {
        Inst::Op { dst, op: Op::Dot4, args } => (*dst, args),
        other => panic!("no dot product: {other:?}"),
    }
}

/// Dot products that add to each other, in order: the number of each, and where its weights are upper halves, that of the
/// shift with the bytes shifted.
type Chain = Vec<(usize, Option<(usize, Reg)>)>;

/// The chains that are worth it.
fn chains(p: &Linear) -> Vec<Chain> {
    let mut defined: HashMap<Reg, usize> = HashMap::new();
    let mut uses: HashMap<Reg, usize> = HashMap::new();
    let (mut open, mut inside) = (vec![0], vec![]);
    for (i, inst) in p.code.iter().enumerate() {
        inst.uses().into_iter().for_each(|r| *uses.entry(r).or_default() += 1);
        defined.extend(inst.defs().into_iter().map(|r| (r, i)));
        match inst {
            Inst::Loop { .. } => open.push(i),
            Inst::End { .. } => open.truncate(open.len() - 1),
            _ => {}
        }
        inside.push(*open.last().expect("loops are closed once"));
    }
    let op = |r: Reg| match &p.code[*defined.get(&r)?] {
        Inst::Op { op, args, .. } => Some((*op, args)),
        _ => None,
    };
    // What nobody else wants, from the same round of the same loop.
    let alone = |r: Reg, user: usize| uses[&r] == 1 && inside[defined[&r]] == inside[user];
    let upper = |w: Reg, user: usize| {
        let (Op::Binary(Binary::Shr), args) = op(w)? else { return None };
        let four = matches!(op(args[1])?.0, Op::Const(b) if b.0 as u8 == 4);
        let bytes = p.dtype(w).scalar == Scalar::U8 && p.dtype(w).lanes > 1;
        (four && bytes && alone(w, user)).then_some((defined[&w], args[0]))
    };
    let is_dot = |i: usize| matches!(p.code[i], Inst::Op { op: Op::Dot4, .. });
    let mut chains: Vec<Chain> = vec![];
    let mut ends: HashMap<Reg, usize> = HashMap::new();
    for i in (0..p.code.len()).filter(|i| is_dot(*i)) {
        let (dst, args) = dot(p, i);
        let before = ends.remove(&args[0]).filter(|_| alone(args[0], i));
        let c = before.unwrap_or_else(|| {
            chains.push(vec![]);
            chains.len() - 1
        });
        chains[c].push((i, upper(args[1], i)));
        ends.insert(dst, c);
    }
    chains.retain(|c| c.iter().filter(|(_, upper)| upper.is_some()).count() >= WORTH);
    chains
}
