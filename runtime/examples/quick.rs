use compiler::codegen::x86::{Features, X86};
use compiler::graph::{Graph, Op};
use compiler::kernel::{self, heuristic, show};
use compiler::quant::{Format, Layout};
use compiler::rng::Rng;
use compiler::table::{Case, Form, fill};
use runtime::cpu::CpuDevice;
use runtime::device::Device;
use runtime::step::Step;
use std::collections::HashMap;
use std::time::Instant;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let n = |i: usize, d: i64| a.get(i).and_then(|s| s.parse().ok()).unwrap_or(d);
    let (rows, cols, tokens, batch) = (n(2, 2048), n(3, 5120), n(4, 1), n(5, 100));
    let device = CpuDevice::with_target(Box::new(X86::new(Features { avx512: true, vnni: true, ..Features::default() })), Some(n(6, 2) as usize)).unwrap();
    let mut case = Case::linear(Format::by_name(&a[1]).unwrap(), rows, cols, tokens);
    case.form = Form::Linear { batch };
    let g = Graph::new();
    let built = case.build(&g, Layout::Interleaved16);
    let mut inputs = HashMap::new();
    let mut rng = Rng::new(1);
    for &(t, how) in &built.inputs {
        let Op::Buffer(slot) = t.0.op() else { unreachable!() };
        let n: i64 = t.dims().iter().map(|d| d.as_int().unwrap()).product();
        let slice = device.alloc(n as usize * t.dtype().bytes()).unwrap().whole();
        let some = fill(t.dtype(), (n as usize).min(1 << 20), how, &mut rng);
        let mut at = 0;
        while at < slice.len() {
            let m = some.len().min(slice.len() - at);
            device.write(&slice, at, &some[..m]).unwrap();
            at += m;
        }
        inputs.insert(slot, slice);
    }
    let caps = device.target().caps();
    let mut step = Step::new(&device, &g, &built.outputs, &inputs, |k| {
        let o = match a.get(7) { Some(s) => kernel::parse(s).unwrap(), None => heuristic::propose(k, &caps) };
        println!("{} {}", k.name, show(&o));
        o
    }).unwrap();
    if a.get(8).is_some() { let l = step.kernels()[0].program.linear(); println!("{l}"); println!("{}", device.target().disassemble(&device.target().emit(l))); }
    for _ in 0..6 {
        let t = Instant::now();
        step.run(&device, &[]).unwrap();
        let s = t.elapsed().as_secs_f64();
        println!("{case}: {:.2} ms {:.2} GB/s {:.3} TOPS", s * 1e3, case.weight_bytes() as f64 / s / 1e9, case.operations() as f64 / s / 1e12);
    }
    let b = runtime::bandwidth::measure(&device, 1 << 30, 5).unwrap();
    println!("{b:?}");
}
