//! Prints what one dependent launch costs on the CPU: the barrier, the call and the division of the grid.
//!
//! `cargo run --release -p glimmer-runtime --example barrier`

#[cfg(target_arch = "x86_64")]
#[path = "../tests/stub/mod.rs"]
mod stub;

#[cfg(target_arch = "x86_64")]
fn main() {
    use compiler::linear::Count;
    use runtime::device::Device;
    use runtime::plan::Plan;
    use std::time::Instant;

    const LAUNCHES: usize = 1000;
    for threads in 1..=runtime::machine::cores().len() {
        let device = stub::device(threads);
        let buffer = device.alloc(3 * 64).unwrap();
        let line = |i: usize| buffer.slice(i * 64, 64).unwrap();
        let mut plan = Plan::new(["n"]);
        let program = stub::mirror(&device, Count::Symbol(0), "n", false);
        for i in 0..LAUNCHES {
            plan.push(&program, vec![line(i % 2), line(1 - i % 2), line(2)]).unwrap();
        }
        let mut plan = device.prepare(plan).unwrap();
        for grid in [1, 2] {
            let mut samples: Vec<f64> = (0..201)
                .map(|_| {
                    let start = Instant::now();
                    device.run(&mut plan, &[grid]).unwrap();
                    start.elapsed().as_secs_f64() / LAUNCHES as f64 * 1e6
                })
                .collect();
            samples.sort_by(f64::total_cmp);
            let at = |share: usize| samples[samples.len() * share / 100];
            println!(
                "{threads} threads, grid {grid}: {:.3} us a launch (10%: {:.3}, 90%: {:.3})",
                at(50),
                at(10),
                at(90)
            );
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("skipped: not x86-64");
}
