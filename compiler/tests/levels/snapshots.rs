//! Kernels as they look after each pass, and the main ones as x86-64 and PTX.

use compiler::codegen::ptx::Ptx;
use compiler::codegen::x86::{Features, X86};
use compiler::codegen::{Caps, Target};
use compiler::graph::Graph;
use compiler::kernel::{heuristic, show};
use compiler::ops::Rope;
use compiler::pipeline;
use compiler::quant::{Format, Layout};
use compiler::schedule::Grain;
use compiler::table::{Case, Form};
use compiler::testing::CPU;

fn settings() -> insta::Settings {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_snapshot_path("../snapshots");
    settings.set_omit_expression(true);
    settings
}

fn layout(caps: &Caps) -> Layout {
    if caps.lanes > 1 { Layout::Rows } else { Layout::Interleaved16 }
}

/// Snapshots of the first kernel of a case; shapes after expansion are kept small.
fn check(name: &str, case: Case, caps: Caps, passes: &[&str]) {
    let g = Graph::new();
    let program = pipeline::schedule(&g, &case.build(&g, layout(&caps)).outputs, Grain::of(&caps));
    let kernel = &program.kernels[0];
    let opts = heuristic::propose(kernel, &caps);
    let _bound = settings().bind_to_scope();
    let snap = |pass: &str, text: String| {
        if passes.contains(&pass) {
            insta::assert_snapshot!(format!("{name}-{}", pass.replace(' ', "-")), text);
        }
    };
    snap("schedule", kernel.to_string());
    pipeline::observe(kernel, &opts, &caps, &mut |pass, ir| {
        snap(pass, format!("{case}: {}\n{ir}", show(&opts)));
    })
    .unwrap();
}

fn linear(rows: i64, cols: i64) -> Case {
    Case::linear(Format::by_name("Q4_0").unwrap(), rows, cols, 1)
}

fn norm(cols: i64) -> Case {
    Case { form: Form::NormQuant, format: Format::by_name("F32").unwrap(), rows: 1, cols, tokens: 2 }
}

const EARLY: [&str; 3] = ["schedule", "split ranges", "apply options"];
const LATE: [&str; 8] =
    ["number ranges", "expand", "vectorise", "transcendentals", "simplify", "fma", "strength", "linearise"];

#[test]
fn product() {
    let caps = Caps { tile: false, ..CPU };
    check("linear", linear(2048, 5120), caps, &EARLY);
    check("linear", linear(16, 64), caps, &LATE);
}

#[test]
fn norm_and_quantise() {
    check("norm", norm(2048), CPU, &EARLY);
    check("norm", norm(64), CPU, &LATE);
}

#[test]
fn exponentials() {
    check("softmax", plain(Form::Softmax, 2, 32, 1), CPU, &["vectorise", "transcendentals", "simplify"]);
}

#[test]
fn loads_of_one_thread() {
    check("linear-gpu", linear(16, 64), Ptx::new(80).caps(), &["linearise", "widen loads"]);
}

fn plain(form: Form, rows: i64, cols: i64, tokens: i64) -> Case {
    Case { form, format: Format::by_name("F32").unwrap(), rows, cols, tokens }
}

/// The main kernels under the heuristic's schedules, small enough to be read.
#[test]
fn code() {
    let q4_0 = Format::by_name("Q4_0").unwrap();
    let expert = |form| Case { form, format: q4_0, rows: 16, cols: 64, tokens: 1 };
    let cases = [
        ("linear", linear(16, 64)),
        ("gate-up", expert(Form::GateUp { experts: 8, used: 2 })),
        ("down", expert(Form::Down { experts: 8, used: 2 })),
        ("norm", norm(64)),
        ("softmax", plain(Form::Softmax, 2, 32, 1)),
        ("rope", plain(Form::Rope(Rope::HalfSplit), 2, 32, 1)),
        ("top-k", plain(Form::TopK(2), 1, 8, 1)),
    ];
    let x86 = X86::new(Features { avx512: true, vnni: true, ..Features::default() });
    let ptx = Ptx::new(80);
    let targets: [(&str, &dyn Target); 2] = [("x86", &x86), ("ptx", &ptx)];
    let _bound = settings().bind_to_scope();
    for (name, case) in &cases {
        for (target, to) in targets {
            let (g, caps) = (Graph::new(), to.caps());
            let program = pipeline::schedule(&g, &case.build(&g, layout(&caps)).outputs, Grain::of(&caps));
            let text = program.kernels.iter().map(|kernel| {
                let opts = heuristic::propose(kernel, &caps);
                let linear = pipeline::compile(kernel, &opts, &caps).unwrap();
                format!("{case}: {}\n{}", show(&opts), to.disassemble(&to.emit(&linear)))
            });
            insta::assert_snapshot!(format!("code-{name}-{target}"), text.collect::<String>());
        }
    }
}
