//! Every pass preserves the meaning: what the tensor interpreter computes, the kernel interpreter computes after each
//! pass, and the linear interpreter in the end.

use crate::cases::{EXAMPLES, environment};
use compiler::codegen::Caps;
use compiler::dtype::{Bits, DType};
use compiler::graph::{Ex, Graph, Op, topo};
use compiler::interp::kernel::{Memory, run, run_stages};
use compiler::interp::tensor::{Array, Env, eval};
use compiler::interp::{self, tensor::index};
use compiler::kernel::split::phases;
use compiler::kernel::{Action, Opt, Scheduled, heuristic, search, show};
use compiler::linear::Linear;
use compiler::pipeline::{self, Ir};
use compiler::quant::{Format, Layout};
use compiler::rng::Rng;
use compiler::scalar::Binary;
use compiler::schedule::{Grain, Kernel};
use compiler::table::{Case, Form};
use compiler::tensor::Tensor;
use compiler::testing::CPU;

const GPU: Caps = Caps {
    vector_bytes: 16,
    lanes: 32,
    max_threads: 1024,
    local_bytes: 48 << 10,
    dot4: true,
    tile: false,
    mma: true,
    transcendental: true,
};

fn slot(buffer: Ex) -> u32 {
    let Op::Buffer(slot) = buffer.op() else { panic!("{:?} is no buffer", buffer.op()) };
    slot
}

fn array(buffer: Ex, memory: &Memory, env: &Env) -> Array {
    let dims: Vec<usize> = buffer.dims().iter().map(|&d| index(d, env) as usize).collect();
    Array::from_bytes(buffer.dtype().scalar, &dims, &memory[&slot(buffer)])
}

/// Equal, or for floats within the error of another order of summation.
fn compare(got: &Array, want: &Array, tolerance: f32) -> Result<(), String> {
    let most = match want.scalar.is_float() {
        true => want.floats().iter().fold(0f32, |m, v| m.max(v.abs())),
        false => 0.0,
    };
    let near = |g: Bits, w: Bits| {
        g == w || want.scalar.is_float() && (g.as_float() - w.as_float()).abs() <= tolerance * most
    };
    let wrong = got.data.iter().zip(&want.data).position(|(g, w)| !near(*g, *w));
    wrong.map_or(Ok(()), |i| {
        let (g, w) = (got.data[i].show(want.scalar), want.data[i].show(want.scalar));
        Err(format!("element {i} of {} is {g}, not {w}", want.data.len()))
    })
}

fn run_linear(linear: &Linear, kernel: &Kernel, memory: &mut Memory, env: &Env) {
    let args = kernel.buffers();
    let contents = |(b, _): &(Ex, bool)| {
        let mut bytes = memory.get(&slot(*b)).cloned().unwrap_or_default();
        // No more than the step has: what may be there in a larger one is not to be read.
        let elements: i64 = b.dims().iter().map(|&d| index(d, env)).product();
        bytes.resize((elements as usize * b.dtype().bytes()).max(bytes.len()), 0xCD);
        bytes
    };
    let mut buffers: Vec<Vec<u8>> = args.iter().map(contents).collect();
    let symbols: Vec<i64> = linear.symbols.iter().map(|s| env.symbols[s]).collect();
    interp::linear::run(linear, &mut buffers, &symbols);
    memory.extend(args.iter().map(|(b, _)| slot(*b)).zip(buffers));
}

/// Runs a kernel after each pass of this schedule and compares what it writes with `want`.
fn check_passes(kernel: &Kernel, opts: &[Opt], caps: &Caps, before: &Memory, want: &Memory, env: &Env) {
    let mut seen = vec![];
    let compiled = pipeline::observe(kernel, opts, caps, &mut |pass, ir| {
        seen.push(pass);
        let mut memory = before.clone();
        match ir {
            Ir::Kernel(k) => run(k, &mut memory, &env.symbols),
            Ir::Stores(k, stages, _) => run_stages(&k.rows, stages, &mut memory, &env.symbols),
            Ir::Linear(l) => run_linear(l, kernel, &mut memory, env),
        }
        for (b, _) in kernel.buffers().into_iter().filter(|b| b.1) {
            let tolerance = if pass == "split ranges" { 0.0 } else { 2e-5 };
            compare(&array(b, &memory, env), &array(b, want, env), tolerance).unwrap_or_else(|why| {
                panic!("{} after {pass} with {}: {why}\n{kernel}\n{ir}", kernel.name, show(opts))
            });
        }
    });
    compiled.unwrap_or_else(|why| panic!("{} with {}: {why}", kernel.name, show(opts)));
    assert!(seen.contains(&"split ranges") && seen.contains(&"linearise"), "{seen:?}");
}

/// As [`check_passes`] for every phase that the schedule makes of the kernel; together they leave what the kernel does.
fn check_phases(kernel: &Kernel, opts: &[Opt], caps: &Caps, before: &Memory, want: &Memory, env: &Env) {
    let all = phases(kernel, opts, caps).unwrap_or_else(|why| panic!("{}: {why}", show(opts)));
    let mut memory = before.clone();
    for phase in &all {
        let before = memory.clone();
        run(&phase.kernel, &mut memory, &env.symbols);
        let want = if all.len() == 1 { want } else { &memory };
        check_passes(&phase.kernel, &phase.opts, caps, &before, want, env);
    }
    for (b, _) in kernel.buffers().into_iter().filter(|b| b.1) {
        compare(&array(b, &memory, env), &array(b, want, env), 2e-5)
            .unwrap_or_else(|why| panic!("{} with {}: {why}", kernel.name, show(opts)));
    }
}

/// All kernels of a program under the heuristic's schedule and `random` others.
fn check_program<'g>(
    g: &'g Graph,
    outputs: &[Tensor<'g>],
    env: &Env,
    caps: &[Caps],
    random: usize,
    rng: &mut Rng,
) {
    let want = eval(outputs, env);
    for caps in caps {
        let program = pipeline::schedule(g, outputs, Grain::of(caps));
        let mut memory: Memory = env.buffers.clone();
        for kernel in &program.kernels {
            let before = memory.clone();
            run(kernel, &mut memory, &env.symbols);
            let legal = |opts: &[Opt]| pipeline::compiles(kernel, opts, caps);
            check_phases(kernel, &heuristic::propose(kernel, caps), caps, &before, &memory, env);
            for _ in 0..random {
                let opts = search::random(kernel, caps, rng, 5, legal);
                check_phases(kernel, &opts, caps, &before, &memory, env);
            }
            let splits = search::moves(&Scheduled::new(kernel.clone()), caps);
            for split in splits.into_iter().filter(|o| o.action == Action::Split).take(random) {
                check_phases(kernel, &[split], caps, &before, &memory, env);
            }
        }
        for (out, want) in program.outputs.iter().zip(&want) {
            compare(&array(*out, &memory, env), want, 0.0)
                .unwrap_or_else(|why| panic!("after schedule: {why}"));
        }
    }
}

#[test]
fn every_pass_preserves_the_meaning() {
    for (i, example) in EXAMPLES.iter().enumerate() {
        let start = std::time::Instant::now();
        let (g, mut rng) = (Graph::new(), Rng::new(i as u64));
        let built = (example.build)(&g);
        let env = environment(&built, example.symbols, &mut rng);
        check_program(&g, &built.outputs, &env, &[CPU, GPU], 2, &mut rng);
        println!("{}: {:?}", example.name, start.elapsed());
    }
}

/// Whatever the search may put behind a warp's product.
#[test]
fn options_behind_a_product_preserve_the_meaning() {
    let (g, mut rng) = (Graph::new(), Rng::new(3));
    let format = Format::by_name("Q4_0").unwrap();
    let built = Case { form: Form::Half, format, rows: 64, cols: 256, tokens: 16 }.build(&g, Layout::Rows);
    let env = environment(&built, &[], &mut rng);
    let program = pipeline::schedule(&g, &built.outputs, Grain::of(&GPU));
    let [kernel] = &program.kernels[..] else { panic!("{} kernels", program.kernels.len()) };
    let mut want: Memory = env.buffers.clone();
    run(kernel, &mut want, &env.symbols);
    let mut first = heuristic::propose(kernel, &GPU);
    let at = first.iter().position(|o| o.action == Action::Mma).expect("a product of a warp");
    first.truncate(at + 1);
    let mut tried = 0;
    for _ in 0..40 {
        let mut opts = first.clone();
        let mut s = Scheduled::new(kernel.clone()).apply_all(&opts, &GPU).unwrap();
        for _ in 0..rng.below(5) {
            let choices = search::moves(&s, &GPU);
            let o = *rng.choose(&choices);
            s.apply(o, &GPU).expect("moves apply");
            opts.push(o);
        }
        let Ok(linear) = pipeline::compile(kernel, &opts, &GPU) else { continue };
        let mut memory = env.buffers.clone();
        run_linear(&linear, kernel, &mut memory, &env);
        let out = program.outputs[0];
        compare(&array(out, &memory, &env), &array(out, &want, &env), 2e-5)
            .unwrap_or_else(|why| panic!("{}: {why}\n{linear}", show(&opts)));
        tried += 1;
    }
    assert!(tried > 20, "{tried} schedules compiled");
}

#[test]
fn an_axis_that_is_split_again_is_gated_once() {
    let g = Graph::new();
    let n = g.symbol("n", (1, 64));
    let x = g.input("x", DType::F32, [n]);
    let program = pipeline::schedule(&g, &[x.sum(-1)], Grain::of(&GPU));
    let opts = [Action::Lane.on(0, 4), Action::Group.on(0, 8), Action::Unroll.on(0, 2)];
    let s = Scheduled::new(program.kernels[0].clone()).apply_all(&opts, &GPU).unwrap();
    let loads = topo(&s.kernel.stores()).into_iter().filter(|e| e.op() == Op::Load);
    let gates: Vec<Ex> = loads.map(|e| e.args().get(2).copied().expect("there may be fewer")).collect();
    assert_eq!(gates.len(), 1);
    assert_eq!(gates[0].op(), Op::Binary(Binary::Lt), "{:?}", gates[0]);
}

/// Whatever the search may put before and behind a loop over segments.
#[test]
fn options_around_segments_preserve_the_meaning() {
    let (g, mut rng) = (Graph::new(), Rng::new(5));
    let (form, format) = (Form::Grouped { experts: 3, used: 2 }, Format::by_name("F32").unwrap());
    let built = Case { form, format, rows: 19, cols: 32, tokens: 40 }.build(&g, Layout::Interleaved16);
    let env = environment(&built, &[], &mut rng);
    let program = pipeline::schedule(&g, &built.outputs, Grain::of(&CPU));
    let segment = Action::Segment.on(0, 0);
    let of = |kernel: &Kernel, opts: &[Opt]| Scheduled::new(kernel.clone()).apply_all(opts, &CPU).map(|_| ());
    let (want, mut before, mut tried) = (eval(&built.outputs, &env), env.buffers.clone(), 0);
    for (n, kernel) in program.kernels.iter().enumerate() {
        if of(kernel, &[segment]).is_ok() {
            let upcast = Action::Upcast.on(0, 2);
            assert!(of(kernel, &[upcast]).is_ok(), "the axis can be divided");
            assert!(of(kernel, &[upcast, segment]).is_err(), "two of its elements may be of two segments");
            assert!(of(kernel, &[segment, upcast]).is_err(), "two segments have two lengths");
            for _ in 0..60 {
                let mut s = Scheduled::new(kernel.clone());
                let (mut opts, last) = (vec![], rng.below(6));
                let at = rng.below(3).min(last);
                for i in 0..=last {
                    let choices = search::moves(&s, &CPU);
                    let o = if i == at { segment } else { *rng.choose(&choices) };
                    if o.action != Action::Split && s.apply(o, &CPU).is_ok() {
                        opts.push(o);
                    }
                }
                let Ok(linear) = pipeline::compile(kernel, &opts, &CPU) else { continue };
                let mut memory = before.clone();
                run_linear(&linear, kernel, &mut memory, &env);
                // What lies behind the last segment is read by nobody.
                program.kernels[n + 1..].iter().for_each(|k| run(k, &mut memory, &env.symbols));
                compare(&array(program.outputs[0], &memory, &env), &want[0], 5e-4)
                    .unwrap_or_else(|why| panic!("{}: {why}\n{linear}", show(&opts)));
                tried += opts.contains(&segment) as usize;
            }
        }
        run(kernel, &mut before, &env.symbols);
    }
    assert!(tried > 20, "{tried} schedules compiled");
}
