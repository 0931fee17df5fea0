//! Two kernels as they look after each pass.

use compiler::codegen::Caps;
use compiler::graph::Graph;
use compiler::kernel::{heuristic, show};
use compiler::pipeline;
use compiler::quant::{Format, Layout};
use compiler::schedule::Grain;
use compiler::table::{Case, Form};
use compiler::testing::CPU;

/// Snapshots of the first kernel of a case; shapes after expansion are kept small.
fn check(name: &str, case: Case, caps: Caps, passes: &[&str]) {
    let g = Graph::new();
    let program = pipeline::schedule(&g, &case.build(&g, Layout::Interleaved16).outputs, Grain::CPU);
    let kernel = &program.kernels[0];
    let opts = heuristic::propose(kernel, &caps);
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_snapshot_path("../snapshots");
    settings.set_omit_expression(true);
    let _bound = settings.bind_to_scope();
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
const LATE: [&str; 3] = ["expand", "vectorise", "linearise"];

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
