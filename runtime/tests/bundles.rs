//! Kernels that are launched together: a plan of bundles against the same plan kernel by kernel.

use compiler::codegen::Target;
use compiler::codegen::ptx::Ptx;
use compiler::dtype::DType;
use compiler::graph::Graph;
use compiler::kernel::heuristic;
use compiler::ops;
use compiler::rng::Rng;
use compiler::schedule::buffer_bytes;
use compiler::table::{Fill, fill};
use compiler::tensor::Tensor;
use runtime::check::slot;
use runtime::device::Device;
use runtime::interp::InterpDevice;
use runtime::step::Step;
use std::collections::HashMap;

/// Queries, keys and values of one row, products that read the same; then one that reads all of them.
fn attention<'g>(g: &'g Graph) -> (Vec<Tensor<'g>>, Vec<Tensor<'g>>) {
    let x = g.input("x", DType::F32, [1, 256]);
    let weights: Vec<Tensor> = ["q", "k", "v"].map(|name| g.input(name, DType::F32, [512, 256])).to_vec();
    let [q, k, v] = [0, 1, 2].map(|i| ops::linear(x, weights[i]).contiguous());
    let out = g.input("out", DType::F32, [256, 512]);
    let y = ops::linear(q * k + v, out);
    (vec![y, v], [vec![x, out], weights].concat())
}

/// The outputs' bytes, and how many kernels each launch has.
fn run(device: &dyn Device) -> (Vec<Vec<u8>>, Vec<usize>) {
    let g = Graph::new();
    let (outputs, inputs) = attention(&g);
    let mut rng = Rng::new(3);
    let mut memory = HashMap::new();
    for t in inputs {
        let bytes = fill(t.0.dtype(), buffer_bytes(t.0) / t.0.dtype().bytes(), Fill::Normal(1.0), &mut rng);
        let slice = device.alloc(bytes.len()).unwrap().whole();
        device.write(&slice, 0, &bytes).unwrap();
        memory.insert(slot(t), slice);
    }
    // The same schedules for both devices: sums are then of the same order.
    let caps = Ptx::new(80).caps();
    let mut step =
        Step::new(device, &g, &outputs, &memory, |kernel| heuristic::propose(kernel, &caps)).unwrap();
    step.run(device, &[]).unwrap();
    let read = |slice: &runtime::buffer::Slice| {
        let mut bytes = vec![0; slice.len()];
        device.read(slice, 0, &mut bytes).unwrap();
        bytes
    };
    (step.outputs().iter().map(read).collect(), step.launches().iter().map(|l| l.parts.len()).collect())
}

#[test]
fn products_of_the_same_input_are_one_launch() {
    let (together, launches) = run(&InterpDevice::like(Ptx::new(80).caps()));
    assert_eq!(launches, [3, 1], "three projections, then what reads them");
    let (alone, launches) = run(&InterpDevice::like(Ptx::new(80).caps()).one_by_one());
    assert_eq!(launches, [1, 1, 1, 1]);
    assert_eq!(together, alone);
}
