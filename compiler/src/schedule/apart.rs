//! What lies beside products of bytes along an axis gets a kernel of its own.
//!
//! In: a kernel of one stage whose elements are such sums up to some index of an axis and something else behind it, or the
//! other way round, as a query in latent space and what is rotated of it. Out: two kernels, each of which writes its part of
//! the buffer. In one kernel every element would be computed both ways. The sums come last: what they wait for, the other
//! mostly does not.

use super::Kernel;
use super::item::extent;
use crate::graph::{Ex, Kind, Op, topo};
use crate::kernel::byte_factors;
use crate::rewrite::substitute;
use crate::rules::simplify1;
use crate::scalar::Binary;
use std::collections::HashMap;

pub fn apart(kernel: Kernel) -> Vec<Kernel> {
    let [stage] = &kernel.stages[..] else { return vec![kernel] };
    let Some((axis, first)) = border(stage.store.arg(2)) else { return vec![kernel] };
    let last = extent(axis) - first;
    let own = |n: i64| axis.g.new_range(axis.like(n), Kind::Serial);
    let (low, high) = (own(first), own(last));
    let [low, high] = [part(&kernel, axis, low, low, "low"), part(&kernel, axis, high, high + first, "high")];
    let [plain, sums] = if low.stores().into_iter().any(multiplies) { [high, low] } else { [low, high] };
    vec![pairs(plain), sums]
}

/// The axis along which a value has products of bytes on one side only of some index, and that index.
fn border<'g>(value: Ex<'g>) -> Option<(Ex<'g>, i64)> {
    let (Op::Where, [condition, a, b]) = (value.op(), &value.args()[..]) else { return None };
    let (Op::Binary(Binary::Lt), [axis, at]) = (condition.op(), &condition.args()[..]) else { return None };
    let axis = if axis.op() == Op::Cast { axis.arg(0) } else { *axis };
    let at = at.as_int().filter(|&at| matches!(axis.op(), Op::Range(..)) && 0 < at && at < extent(axis))?;
    (axis.arg(0).as_int().is_some() && multiplies(*a) != multiplies(*b)).then_some((axis, at))
}

fn multiplies(e: Ex) -> bool {
    topo(&[e]).iter().any(|e| matches!(e.op(), Op::Fold(..)) && byte_factors(e.arg(0)).is_some())
}

/// The kernel where an axis is `index`, which goes along `own`.
fn part<'g>(kernel: &Kernel<'g>, axis: Ex<'g>, own: Ex<'g>, index: Ex<'g>, side: &str) -> Kernel<'g> {
    let mut part = kernel.clone();
    part.name = format!("{}_{side}", kernel.name);
    let stage = &mut part.stages[0];
    stage.store = simplify1(substitute(&[stage.store], &HashMap::from([(axis.id, index)]))[0]);
    part.rows.iter_mut().chain(&mut stage.outs).filter(|r| **r == axis).for_each(|r| *r = own);
    part
}

/// Elements that are read by twos or halves of a row, as those that turn together, are two axes.
fn pairs(kernel: Kernel) -> Kernel {
    let store = kernel.stages[0].store;
    let parted = kernel.rows.iter().find_map(|&r| {
        let by = topo(&[store]).into_iter().filter_map(|e| {
            let divides =
                matches!(e.op(), Op::Binary(Binary::Div | Binary::Mod)) && topo(&[e.arg(0)]).contains(&r);
            e.args().get(1).and_then(|n| n.as_int()).filter(|_| divides)
        });
        by.into_iter().find(|&n| 1 < n && n < extent(r) && extent(r) % n == 0).map(|n| (r, n))
    });
    let Some((r, n)) = parted else { return kernel };
    let own = |n: i64| r.g.new_range(r.like(n), Kind::Serial);
    let (outer, inner) = (own(extent(r) / n), own(n));
    let mut kernel = part(&kernel, r, outer, outer * n + inner, "pairs");
    let at = kernel.rows.iter().position(|row| *row == outer).expect("it was one");
    kernel.rows.insert(at + 1, inner);
    kernel
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::graph::Graph;
    use crate::ops::{self, Rope};
    use crate::quant::{Format, Layout};
    use crate::schedule::{Grain, program};
    use crate::tensor::Tensor;

    #[test]
    fn what_turns_behind_a_product_has_a_kernel_of_its_own() {
        let g = Graph::new();
        let bytes = ops::QuantX {
            q: g.input("q", DType::I8, [4, 2, 32]),
            d: g.input("d", DType::F32, [4, 2]),
            s16: g.input("s16", DType::F32, [4, 4]),
            s32: g.input("s32", DType::F32, [4, 2]),
        };
        let format = Format::by_name("Q4_0").unwrap();
        let (_, w) = format.inputs(&g, "w", &[], 128, 64, Layout::Interleaved16);
        let [x, angles] = [("x", 32), ("angles", 16)].map(|(name, n)| g.input(name, DType::F32, [4, n]));
        let turned = ops::rope(x, angles, angles, Rope::Interleaved);
        let product = w.linear_q8(&bytes);
        let kernels = |grain| program(&g, &[Tensor::concat(&[product, turned], -1)], grain).kernels;
        let rows = |k: &Kernel| k.rows.iter().map(|r| extent(*r)).collect::<Vec<_>>();
        let [.., turning, product] = &kernels(Grain::CPU)[..] else { panic!("not two kernels") };
        assert_eq!((rows(turning), rows(product)), (vec![4, 16, 2], vec![4, 128]));
        let choices = |k: &Kernel| topo(&k.stores()).iter().filter(|e| e.op() == Op::Where).count();
        assert_eq!((choices(turning), choices(product)), (1, 0), "which of a pair it is");
        assert_eq!(turning.stages[0].store.arg(0), product.stages[0].store.arg(0));
        assert!(kernels(Grain::GPU).len() < kernels(Grain::CPU).len(), "a launch costs more");
    }
}
