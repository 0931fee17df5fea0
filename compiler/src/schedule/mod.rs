//! Which operations share a kernel, in what order, in which memory.
//!
//! In: tensor expressions. Out: a [`Program`]: kernels in an order that respects every dependence, each a list of
//! stages over ranges, and the memory between them. Of the target only its [`Grain`] is known here.

mod apart;
mod beside;
mod fuse;
mod item;
mod keep;
pub mod lower;
mod memory;

pub use beside::beside;
pub use fuse::{Grain, program};
pub use memory::{Arena, buffer_bytes, plan_memory};

use crate::dtype::DType;
use crate::graph::{Ex, Graph, Op, topo};
use crate::scalar::Binary;
use crate::shape::product;

/// One nest of ranges that ends in a store.
#[derive(Clone, Debug)]
pub struct Stage<'g> {
    /// Output ranges besides the kernel's rows, outermost first.
    pub outs: Vec<Ex<'g>>,
    pub store: Ex<'g>,
}

/// Stages that run one after the other for each row, and share local memory.
#[derive(Clone)]
pub struct Kernel<'g> {
    pub g: &'g Graph,
    pub name: String,
    /// Ranges that every stage's output has: rows are independent of each other.
    pub rows: Vec<Ex<'g>>,
    pub stages: Vec<Stage<'g>>,
}

impl<'g> Kernel<'g> {
    pub fn stores(&self) -> Vec<Ex<'g>> {
        self.stages.iter().map(|s| s.store).collect()
    }

    /// The buffers it touches, in argument order, and whether it writes them.
    pub fn buffers(&self) -> Vec<(Ex<'g>, bool)> {
        buffers(&self.stores())
    }
}

/// The buffers below these stores by slot, and whether they are written.
pub fn buffers<'g>(stores: &[Ex<'g>]) -> Vec<(Ex<'g>, bool)> {
    let mut found: Vec<_> = topo(stores).into_iter().filter(|e| matches!(e.op(), Op::Buffer(_))).collect();
    found.sort_by_key(|e| e.op());
    found.into_iter().map(|b| (b, stores.iter().any(|s| s.arg(0) == b))).collect()
}

/// Number of elements of a memory node.
pub fn length(mem: Ex) -> Ex {
    match mem.op() {
        Op::Local(_) => mem.arg(0),
        _ => product(mem.g, &mem.dims()),
    }
}

/// The factors of a product of two numbers of 16 bits, bf16 or f16.
pub fn half_factors<'g>(body: Ex<'g>) -> Option<(Ex<'g>, Ex<'g>)> {
    let half = |e: Ex<'g>| {
        let short = || matches!(e.arg(0).dtype(), DType::BF16 | DType::F16);
        (e.op() == Op::Cast && e.dtype() == DType::F32 && short()).then(|| e.arg(0))
    };
    let both = || Some((half(body.arg(0))?, half(body.arg(1))?));
    (body.op() == Op::Binary(Binary::Mul)).then(both)?.filter(|(a, b)| a.dtype() == b.dtype())
}

#[derive(Clone)]
pub struct Program<'g> {
    pub kernels: Vec<Kernel<'g>>,
    /// Memory of each requested tensor, in the order of the request.
    pub outputs: Vec<Ex<'g>>,
    /// Memory that only carries values from kernel to kernel.
    pub temps: Vec<Ex<'g>>,
}
