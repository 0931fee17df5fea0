//! Makes a failing tensor program small: outputs and a test of whether some still fail in, outputs that still fail and
//! from which no single step can be taken out.

use crate::graph::{Ex, Op, rebuild, topo};
use crate::spec;
use crate::tensor::Tensor;

/// Takes steps (drop an output, ask for a part of one instead, leave a node out) as long as the result is legal and
/// fails.
pub fn shrink_outputs<'g>(
    outputs: &[Tensor<'g>],
    mut still_fails: impl FnMut(&[Tensor<'g>]) -> bool,
) -> Vec<Tensor<'g>> {
    let mut best: Vec<Ex> = outputs.iter().map(|t| t.0).collect();
    while let Some(smaller) = steps(&best).into_iter().find(|s| {
        let tensors: Vec<Tensor> = s.iter().map(|&e| Tensor(e)).collect();
        size(s) < size(&best) && spec::tensor::check(s).is_ok() && still_fails(&tensors)
    }) {
        best = smaller;
    }
    best.into_iter().map(Tensor).collect()
}

fn size(roots: &[Ex]) -> usize {
    topo(roots).len() + roots.len()
}

fn steps<'g>(roots: &[Ex<'g>]) -> Vec<Vec<Ex<'g>>> {
    let mut all = vec![];
    for i in 0..roots.len() {
        let without = [&roots[..i], &roots[i + 1..]].concat();
        // Parts are asked for nearest first; a bare buffer is nothing to compute.
        for part in topo(&roots[i..=i]).into_iter().rev().skip(1) {
            let tensor = !part.dims().is_empty() && !matches!(part.op(), Op::Buffer(_));
            if tensor && !without.contains(&part) {
                all.push([&without[..], &[part]].concat());
            }
        }
        if !without.is_empty() {
            all.push(without);
        }
    }
    all.sort_by_key(|s| size(s));
    for e in topo(roots).into_iter().rev() {
        let same = |a: &Ex| (a.dtype(), a.node().shape) == (e.dtype(), e.node().shape);
        for a in e.args().into_iter().filter(same) {
            all.push(rebuild(roots, |old, args| if old == e { a } else { old.with_args(&args) }));
        }
    }
    all
}
