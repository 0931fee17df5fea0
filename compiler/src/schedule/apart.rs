//! What lies side by side along an axis gets kernels of its own where one kernel would compute or choose among all of it for
//! every element.
//!
//! In: a kernel whose elements are products of bytes up to some index of an axis and something else behind it, or the other way
//! round, as a query in latent space and what is rotated of it; or a large one whose elements are read from one tensor up to
//! an index and from another behind it, as what parts of a prompt left. Out: kernels each of which writes its part of the
//! same memory.

use super::Kernel;
use super::item::extent;
use crate::graph::{Ex, Kind, Op, topo};
use crate::kernel::is_byte_product;
use crate::rewrite::substitute;
use crate::rules::simplify1;
use crate::scalar::Binary;
use std::collections::{HashMap, HashSet};

/// Elements that are worth launches of their own.
const MANY: i64 = 1 << 16;

pub fn apart(kernel: Kernel) -> Vec<Kernel> {
    let Some((axis, first)) = border(&kernel) else { return vec![kernel] };
    let last = extent(axis) - first;
    let own = |n: i64| axis.g.new_range(axis.like(n), Kind::Serial);
    let (low, high) = (own(first), own(last));
    let [low, high] = [part(&kernel, axis, low, low, "low"), part(&kernel, axis, high, high + first, "high")];
    let sums = |k: &Kernel| k.stores().into_iter().any(multiplies);
    // What the products wait for, the other mostly does not.
    let [a, b] = if sums(&low) { [high, low] } else { [low, high] };
    if sums(&b) { vec![pairs(a), b] } else { [a, b].into_iter().flat_map(apart).collect() }
}

/// The row along which elements are of two kinds, and the index of the first of the second: the last such index, as what is
/// to be told apart in front of it can still be seen then.
fn border<'g>(kernel: &Kernel<'g>) -> Option<(Ex<'g>, i64)> {
    let stores = kernel.stores();
    let many = kernel.rows.iter().map(|r| r.arg(0).bounds().1).product::<i64>() >= MANY;
    let loads = |e: Ex<'g>| topo(&[e]).into_iter().filter(|e| e.op() == Op::Load);
    let buffers = |e: Ex<'g>| loads(e).map(|l| l.arg(0).id).collect::<HashSet<_>>();
    let borders = topo(&stores).into_iter().filter_map(|e| {
        let (Op::Where, [condition, a, b]) = (e.op(), &e.args()[..]) else { return None };
        let (Op::Binary(Binary::Lt), [axis, at]) = (condition.op(), &condition.args()[..]) else {
            return None;
        };
        let axis = if axis.op() == Op::Cast { axis.arg(0) } else { *axis };
        let at = at.as_int().filter(|_| kernel.rows.contains(&axis) && axis.arg(0).as_int().is_some())?;
        let product = stores.len() == 1 && e == stores[0].arg(2) && multiplies(*a) != multiplies(*b);
        let sums = || topo(&[e]).iter().any(|e| matches!(e.op(), Op::Fold(..)));
        let parts = || {
            let [a, b] = [*a, *b].map(buffers);
            !a.is_empty() && !b.is_empty() && a.is_disjoint(&b)
        };
        (0 < at && at < extent(axis) && (product || many && !sums() && parts())).then_some((axis, at))
    });
    borders.max_by_key(|(_, at)| *at)
}

fn multiplies(e: Ex) -> bool {
    topo(&[e]).into_iter().any(is_byte_product)
}

/// The kernel where an axis is `index`, which goes along `own`.
fn part<'g>(kernel: &Kernel<'g>, axis: Ex<'g>, own: Ex<'g>, index: Ex<'g>, side: &str) -> Kernel<'g> {
    let mut part = kernel.clone();
    part.name = format!("{}_{side}", kernel.name);
    for stage in &mut part.stages {
        stage.store = simplify1(substitute(&[stage.store], &HashMap::from([(axis.id, index)]))[0]);
    }
    part.rows.iter_mut().filter(|r| **r == axis).for_each(|r| *r = own);
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
    fn parts_of_a_prompt_are_read_one_by_one() {
        let g = Graph::new();
        let parts = ["a", "b", "c"].map(|name| g.input(name, DType::F32, [128, 512]));
        let kernels = |tokens: i64, grain| {
            let all = Tensor::concat(&parts.map(|p| p.slice(0, 0..tokens)), 0);
            program(&g, &[all * 2.0], grain).kernels
        };
        for kernel in kernels(128, Grain::CPU) {
            assert_eq!(kernel.buffers().len(), 2, "{kernel}");
            assert!(
                !topo(&kernel.stores()).iter().any(|e| e.op() == Op::Where || e.dtype() == DType::BOOL),
                "{kernel}"
            );
        }
        let count =
            [(128, Grain::CPU), (8, Grain::CPU), (128, Grain::GPU)].map(|(t, grain)| kernels(t, grain).len());
        assert_eq!(count, [3, 1, 1], "what is little, and what is launched at a cost, stays together");
    }

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
