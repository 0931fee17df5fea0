//! Chains of dot products side by side. In: a linear program. Out: the same instructions in another order.
//!
//! A program computes one sum after the other, each over all its products: weights that several tokens share would all have
//! to stay in registers until the last of them. Here such sums take turns, product by product, so that weights are
//! unpacked, multiplied by all and forgotten. Weights for one token stay as they are: that they arrive in order matters more.

use crate::linear::{Inst, Linear, Op, Reg};
use std::collections::HashMap;

/// Most chains that take turns: their sums fill half of 16 registers.
const MOST: usize = 8;

pub fn side_by_side(p: &Linear) -> Linear {
    let mut out = Linear { code: vec![], ..p.clone() };
    let moves = |i: &Inst| {
        matches!(i, Inst::Op { .. } | Inst::Load { .. } | Inst::Gather { .. } | Inst::Prefetch { .. })
    };
    for part in p.code.chunk_by(|a, b| moves(a) && moves(b)) {
        out.code.extend(ordered(part).into_iter().map(|i| part[i].clone()));
    }
    out
}

/// The order of straight-line code without stores.
fn ordered(code: &[Inst]) -> Vec<usize> {
    let groups = groups(code);
    if groups.is_empty() {
        return (0..code.len()).collect();
    }
    let defined: HashMap<Reg, usize> =
        code.iter().enumerate().flat_map(|(i, inst)| inst.defs().into_iter().map(move |r| (r, i))).collect();
    let arguments: Vec<Vec<usize>> =
        code.iter().map(|i| i.uses().iter().filter_map(|r| defined.get(r).copied()).collect()).collect();
    // The last group that an instruction needs, from 1 on.
    let mut group = vec![0; code.len()];
    for (n, chains) in groups.iter().enumerate() {
        chains.iter().flatten().for_each(|&i| group[i] = n + 1);
    }
    for i in 0..code.len() {
        group[i] = arguments[i].iter().map(|&a| group[a]).fold(group[i], usize::max);
    }
    let mut order = Order { arguments: &arguments, done: vec![false; code.len()], order: vec![] };
    for (n, chains) in groups.iter().enumerate() {
        let longest = chains.iter().map(Vec::len).max().unwrap_or(0);
        (0..longest).for_each(|k| chains.iter().filter_map(|c| c.get(k)).for_each(|&i| order.take(i)));
        (0..code.len()).filter(|&i| group[i] == n + 1).for_each(|i| order.take(i));
    }
    (0..code.len()).for_each(|i| order.take(i));
    order.order
}

struct Order<'a> {
    arguments: &'a [Vec<usize>],
    done: Vec<bool>,
    order: Vec<usize>,
}

impl Order<'_> {
    /// An instruction, behind what it needs.
    fn take(&mut self, i: usize) {
        if !std::mem::replace(&mut self.done[i], true) {
            let arguments = self.arguments;
            arguments[i].iter().for_each(|&a| self.take(a));
            self.order.push(i);
        }
    }
}

/// Dot products that add to each other.
type Chain = Vec<usize>;

/// The chains that take turns: those of the same weights, and with them those of other weights for the same tokens, up to
/// [`MOST`]. None where nothing is shared.
fn groups(code: &[Inst]) -> Vec<Vec<Chain>> {
    let dot = |i: usize| match &code[i] {
        Inst::Op { dst, op: Op::Dot4, args } => Some((*dst, [args[0], args[1], args[2]])),
        _ => None,
    };
    let mut chains: Vec<Chain> = vec![];
    let mut ends: HashMap<Reg, usize> = HashMap::new();
    for i in 0..code.len() {
        let Some((dst, [before, ..])) = dot(i) else { continue };
        let c = ends.remove(&before).unwrap_or_else(|| {
            chains.push(vec![]);
            chains.len() - 1
        });
        chains[c].push(i);
        ends.insert(dst, c);
    }
    let first = |c: &Chain| dot(c[0]).expect("chains are of dot products").1;
    let mut of_weights: HashMap<Reg, usize> = HashMap::new();
    let mut groups: Vec<Vec<Chain>> = vec![];
    for c in chains {
        let [_, weights, _] = first(&c);
        let group = *of_weights.entry(weights).or_insert(groups.len());
        groups.resize_with(groups.len().max(group + 1), Vec::new);
        groups[group].push(c);
    }
    let mut joined: Vec<Vec<Chain>> = vec![];
    if groups.iter().all(|g| g.len() == 1) {
        return joined;
    }
    for group in groups {
        let beside = |last: &&mut Vec<Chain>| {
            last.len() + group.len() <= MOST && first(&last[0])[2] == first(&group[0])[2]
        };
        match joined.last_mut().filter(beside) {
            Some(last) => last.extend(group),
            None => joined.push(group),
        }
    }
    joined
}
