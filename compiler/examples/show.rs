use compiler::codegen::Caps;
use compiler::graph::Graph;
use compiler::kernel::{heuristic, show};
use compiler::pipeline;
use compiler::quant::{Format, Layout};
use compiler::table::{Case, Form};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let n = |i: usize, d: i64| a.get(i).and_then(|s| s.parse().ok()).unwrap_or(d);
    let caps = Caps {
        vector_bytes: 64,
        lanes: 1,
        max_threads: 1,
        local_bytes: 1 << 20,
        dot4: true,
        tile: true,
        transcendental: true,
    };
    let f = Format::by_name(&a[1]).unwrap();
    let mut case = Case::linear(f, n(2, 2048), n(3, 5120), n(4, 1));
    if let Some(k) = a.get(5) {
        case.form = match k.as_str() {
            "gateup" => Form::GateUp { experts: 64, used: 4 },
            "down" => Form::Down { experts: 64, used: 4 },
            "norm" => Form::NormQuant,
            "softmax" => Form::Softmax,
            "router" => Form::Router(4),
            _ => panic!(),
        }
    }
    let g = Graph::new();
    let b = case.build(&g, Layout::Interleaved16);
    let p = pipeline::schedule(&g, &b.outputs);
    println!("{} kernels", p.kernels.len());
    for k in &p.kernels {
        let t = std::time::Instant::now();
        let opts = heuristic::propose(k, &caps);
        let t1 = t.elapsed();
        println!("{} {} stages: {}", k.name, k.stages.len(), show(&opts));
        let l = pipeline::compile(k, &opts, &caps).unwrap();
        println!("{l}\npropose {:?} compile {:?} nodes {}", t1, t.elapsed() - t1, g.len());
    }
}
