//! Halves of bytes, in chains of dot products of their own. In: a linear program. Out: one that gives the same bits.
//!
//! No instruction shifts bytes, so `w >> 4` is a shift of words and a mask. In a chain of dot products `w & 0xf0` does as
//! well: those of the upper halves become a chain of their own, whose sum is sixteen times as large ([`unshifted`]).
//! Without VNNI sums of products are exact in 16 bits where weights have few: those of more than seven are multiplied in
//! halves ([`halved`]).

use crate::dtype::{Bits, DType, Scalar};
use crate::linear::{Inst, Linear, Op, Reg};
use crate::scalar::Binary;
use std::collections::HashMap;

/// Shifts of a chain from which on it is worth the shift and the addition of its sum.
const WORTH: usize = 3;

pub fn unshifted(p: &Linear) -> Linear {
    let view = View::new(p);
    let upper = |&i: &usize| Some((i, view.upper(i)?));
    let uppers: Vec<HashMap<usize, Upper>> =
        view.chains.iter().map(|c| c.iter().filter_map(upper).collect()).collect();
    let worth = |c: usize| uppers[c].len() >= WORTH;
    let shifts: HashMap<usize, Reg> =
        uppers.iter().filter(|u| u.len() >= WORTH).flatten().map(|(_, u)| (u.shift, u.bytes)).collect();
    let mut out = Output::new(&view, Binary::Shr);
    for (i, inst) in p.code.iter().enumerate() {
        if let Some(&bytes) = shifts.get(&i) {
            let mask = out.constant(p.dtype(bytes), 0xf0);
            let args = vec![bytes, mask];
            out.p.code.push(Inst::Op { dst: inst.defs()[0], op: Op::Binary(Binary::And), args });
            continue;
        }
        match view.chain_of.get(&i).filter(|&&c| worth(c)) {
            Some(&c) => {
                let weights = Some(view.dot(i)[2]);
                let upper = uppers[c].contains_key(&i);
                out.product(i, if upper { [None, weights] } else { [weights, None] });
            }
            None => out.p.code.push(inst.clone()),
        }
    }
    out.p
}

pub fn halved(p: &Linear) -> Linear {
    let view = View::new(p);
    let wide = |c: usize| view.chains[c].iter().any(|&i| view.u8_max(view.dot(i)[2]) > 127);
    let mut out = Output::new(&view, Binary::Shl);
    // Of weights in a round of a loop.
    let mut halves: HashMap<(Reg, usize), [Option<Reg>; 2]> = HashMap::new();
    for (i, inst) in p.code.iter().enumerate() {
        if !view.chain_of.get(&i).is_some_and(|&c| wide(c)) {
            out.p.code.push(inst.clone());
            continue;
        }
        let weights = view.dot(i)[2];
        let parts = halves.entry((weights, view.inside[i])).or_insert_with(|| {
            let t = p.dtype(weights);
            [(Binary::And, 15), (Binary::Shr, 4)].map(|(op, by)| {
                let by = out.constant(t, by);
                Some(out.p.op(t, Op::Binary(op), &[weights, by]))
            })
        });
        out.product(i, *parts);
    }
    out.p
}

/// A program that is written anew.
struct Output<'a> {
    p: Linear,
    view: &'a View<'a>,
    /// What brings the sum of the upper halves to its place: by four.
    shift: Binary,
    /// By chain its sums so far: of the lower and of the upper halves.
    sums: HashMap<usize, [Reg; 2]>,
}

impl<'a> Output<'a> {
    fn new(view: &'a View, shift: Binary) -> Output<'a> {
        let p = Linear { code: vec![], ..view.p.clone() };
        Output { p, view, shift, sums: HashMap::new() }
    }

    fn constant(&mut self, t: DType, value: u64) -> Reg {
        self.p.op(t, Op::Const(Bits(value)), &[])
    }

    /// A product of a chain, of what there is of its weights' lower and upper halves. The last one's result is the sum of
    /// both.
    fn product(&mut self, i: usize, parts: [Option<Reg>; 2]) {
        let [dst, before, _, x] = self.view.dot(i);
        let (c, t) = (self.view.chain_of[&i], self.p.dtype(dst));
        let mut sums = match self.sums.remove(&c) {
            Some(sums) => sums,
            None => [before, self.constant(t, 0)],
        };
        for (sum, part) in sums.iter_mut().zip(parts) {
            if let Some(weights) = part {
                *sum = self.p.op(t, Op::Dot4, &[*sum, weights, x]);
            }
        }
        if self.view.chains[c].last() == Some(&i) {
            let four = self.constant(t, 4);
            let upper = self.p.op(t, Op::Binary(self.shift), &[sums[1], four]);
            self.p.code.push(Inst::Op { dst, op: Op::Binary(Binary::Add), args: vec![sums[0], upper] });
        }
        self.sums.insert(c, sums);
    }
}

/// A dot product's weights that are the upper halves of bytes.
struct Upper {
    shift: usize,
    bytes: Reg,
}

struct View<'a> {
    p: &'a Linear,
    defined: HashMap<Reg, usize>,
    uses: HashMap<Reg, usize>,
    /// The innermost loop around each instruction.
    inside: Vec<usize>,
    /// Dot products that add to each other, in order; by a product its chain.
    chains: Vec<Vec<usize>>,
    chain_of: HashMap<usize, usize>,
}

impl<'a> View<'a> {
    fn new(p: &'a Linear) -> View<'a> {
        let mut view = View {
            p,
            defined: HashMap::new(),
            uses: HashMap::new(),
            inside: vec![],
            chains: vec![],
            chain_of: HashMap::new(),
        };
        let mut open = vec![0];
        for (i, inst) in p.code.iter().enumerate() {
            inst.uses().into_iter().for_each(|r| *view.uses.entry(r).or_default() += 1);
            view.defined.extend(inst.defs().into_iter().map(|r| (r, i)));
            match inst {
                Inst::Loop { .. } => open.push(i),
                Inst::End { .. } => open.truncate(open.len() - 1),
                _ => {}
            }
            view.inside.push(*open.last().expect("loops are closed once"));
        }
        let mut ends: HashMap<Reg, usize> = HashMap::new();
        for i in 0..p.code.len() {
            if !matches!(p.code[i], Inst::Op { op: Op::Dot4, .. }) {
                continue;
            }
            let [dst, before, ..] = view.dot(i);
            let c = ends.remove(&before).filter(|_| view.alone(before, i));
            let c = c.unwrap_or_else(|| {
                view.chains.push(vec![]);
                view.chains.len() - 1
            });
            view.chains[c].push(i);
            view.chain_of.insert(i, c);
            ends.insert(dst, c);
        }
        view
    }

    /// A dot product's result and arguments.
    fn dot(&self, at: usize) -> [Reg; 4] {
        match &self.p.code[at] {
            Inst::Op { dst, op: Op::Dot4, args } => [*dst, args[0], args[1], args[2]],
            other => panic!("no dot product: {other:?}"),
        }
    }

    fn op(&self, r: Reg) -> Option<(Op, &'a [Reg])> {
        match &self.p.code[*self.defined.get(&r)?] {
            Inst::Op { op, args, .. } => Some((*op, args)),
            _ => None,
        }
    }

    fn u8_max(&self, r: Reg) -> u64 {
        u8_max(&|r| self.op(r), r)
    }

    /// Does nobody else want it, and is it from the same round of the same loop?
    fn alone(&self, r: Reg, user: usize) -> bool {
        self.uses[&r] == 1 && self.inside[self.defined[&r]] == self.inside[user]
    }

    fn upper(&self, at: usize) -> Option<Upper> {
        let weights = self.dot(at)[2];
        let (Op::Binary(Binary::Shr), args) = self.op(weights)? else { return None };
        let four = matches!(self.op(args[1])?.0, Op::Const(b) if b.0 as u8 == 4);
        let t = self.p.dtype(weights);
        let bytes = t.scalar == Scalar::U8 && t.lanes > 1;
        (four && bytes && self.alone(weights, at))
            .then(|| Upper { shift: self.defined[&weights], bytes: args[0] })
    }
}

/// The largest value a u8 can have, as far as its definition shows.
pub fn u8_max<'a>(op_of: &impl Fn(Reg) -> Option<(Op, &'a [Reg])>, r: Reg) -> u64 {
    let Some((op, args)) = op_of(r) else { return 255 };
    let max = |i: usize| u8_max(op_of, args[i]);
    match op {
        Op::Const(b) => b.0,
        Op::Binary(Binary::And) => max(0).min(max(1)),
        // As many bits as the larger has.
        Op::Binary(Binary::Or) => (max(0).max(max(1)) + 1).next_power_of_two() - 1,
        Op::Binary(Binary::Shr) => match op_of(args[1]) {
            Some((Op::Const(by), _)) => max(0) >> (by.0 & 7),
            _ => 255,
        },
        Op::Spread | Op::Repeat | Op::Slice(_) => max(0),
        Op::Lookup(table) => table.to_le_bytes().into_iter().max().map_or(255, u64::from),
        _ => 255,
    }
}
