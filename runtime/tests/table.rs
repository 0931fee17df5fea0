//! Every row of the kernel table on a device against the tensor interpreter.

use compiler::graph::{Graph, Op};
use compiler::interp::tensor::{Array, eval};
use compiler::quant::Layout;
use compiler::rng::Rng;
use compiler::table::{Case, cases, environment};
use runtime::device::Device;
use runtime::interp::InterpDevice;
use runtime::step::{Step, by_heuristic};
use std::collections::HashMap;

fn check(device: &dyn Device, case: &Case, layout: Layout, seed: u64) {
    let g = Graph::new();
    let built = case.build(&g, layout);
    let mut rng = Rng::new(seed);
    let env = environment(&built, &mut rng);
    let want = eval(&built.outputs, &env);
    let mut inputs = HashMap::new();
    for (t, _) in &built.inputs {
        let Op::Buffer(slot) = t.0.op() else { unreachable!() };
        let bytes = &env.buffers[&slot];
        let slice = device.alloc(bytes.len()).unwrap().whole();
        device.write(&slice, 0, bytes).unwrap();
        inputs.insert(slot, slice);
    }
    let mut step = Step::new(device, &g, &built.outputs, &inputs, by_heuristic(device)).unwrap_or_else(|e| panic!("{case}: {e}"));
    step.run(device, &[]).unwrap();
    for (out, want) in step.outputs().iter().zip(&want) {
        let mut bytes = vec![0; want.data.len() * want.scalar.bytes()];
        device.read(out, 0, &mut bytes).unwrap();
        let got = Array::from_bytes(want.scalar, &want.dims, &bytes);
        compare(case, &got, want);
    }
}

fn compare(case: &Case, got: &Array, want: &Array) {
    if !want.scalar.is_float() {
        let off = got.data.iter().zip(&want.data).filter(|(a, b)| a != b).count();
        assert_eq!(off, 0, "{case}: {off} integers differ");
        return;
    }
    let (got, want) = (got.floats(), want.floats());
    let most = want.iter().fold(0f32, |m, v| m.max(v.abs()));
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        assert!((g - w).abs() <= case.tolerance() * most, "{case}: element {i} is {g}, not {w} (largest {most})");
    }
}

#[test]
fn interp_small() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let _ = filter;
    for case in cases(16) {
        if case.cols > 2048 || case.tokens > 5 { continue; }
        println!("{case}");
        check(&InterpDevice, &case, Layout::Interleaved16, 1);
    }
}
