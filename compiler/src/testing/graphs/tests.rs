//! The generator covers the language, its results are bounded, and the shrinker finds the culprit.

use super::*;
use crate::graph::topo;
use crate::interp::tensor::eval;
use crate::spec;
use std::collections::BTreeSet;

fn roots<'g>(outputs: &[Tensor<'g>]) -> Vec<Ex<'g>> {
    outputs.iter().map(|t| t.0).collect()
}

#[test]
fn programs_are_legal_bounded_and_of_every_kind() {
    let mut ops = BTreeSet::new();
    let (mut elements, mut loose) = (0, 0);
    for seed in 0..400 {
        let g = Graph::new();
        let sample = random_graph(&g, &mut Rng::new(seed), 12);
        spec::tensor::verify(&roots(&sample.outputs));
        ops.extend(topo(&roots(&sample.outputs)).iter().map(|e| {
            let name = match e.op() {
                Op::Unary(op) => format!("{op:?}"),
                Op::Binary(op) => format!("{op:?}"),
                op => format!("{op:?}"),
            };
            name.split('(').next().unwrap().to_string()
        }));
        let want = expected(&sample.outputs, &sample.env).expect("bounded");
        for (w, v) in want.iter().zip(eval(&sample.outputs, &sample.env)) {
            assert_eq!(w.difference(&v), None, "seed {seed}");
            if v.scalar.is_float() {
                assert!(v.floats().iter().all(|x| x.is_finite()), "seed {seed}");
                elements += v.data.len();
                // Half as much again must be wrong nearly everywhere.
                let mut off = v.clone();
                off.data.iter_mut().for_each(|b| *b = Bits::float(b.as_float() * 1.5 + 1.0));
                loose +=
                    off.data.iter().zip(&v.data).enumerate().filter(|(i, (o, _))| w.allows(*i, **o)).count();
            }
        }
    }
    assert!(loose * 20 < elements, "{loose} of {elements} elements could be anything");
    let mut want: Vec<String> = Unary::ALL.iter().map(|u| format!("{u:?}")).collect();
    want.extend(Binary::ALL.iter().map(|b| format!("{b:?}")));
    for op in
        ["Where", "Cast", "Bitcast", "Lookup", "Reshape", "Expand", "Permute", "Shrink", "Pad", "Reduce"]
    {
        want.push(op.into());
    }
    want.extend(["Gather", "Assign", "Contiguous", "Symbol", "Iota"].map(String::from));
    let missing: Vec<_> = want.into_iter().filter(|w| !ops.contains(w)).collect();
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn shrinking_leaves_the_culprit() {
    let mut shrunk = 0;
    for seed in 0..100 {
        let g = Graph::new();
        let sample = random_graph(&g, &mut Rng::new(seed), 12);
        let guilty =
            |outputs: &[Tensor]| topo(&roots(outputs)).iter().any(|e| matches!(e.op(), Op::Permute(_)));
        if guilty(&sample.outputs) {
            let small = shrink_outputs(&sample.outputs, guilty);
            assert_eq!(small.len(), 1, "seed {seed}");
            assert!(matches!(small[0].0.op(), Op::Permute(_)), "seed {seed}");
            shrunk += 1;
        }
    }
    assert!(shrunk > 10, "{shrunk}");
}
