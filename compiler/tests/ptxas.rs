//! Every case's PTX goes through NVIDIA's assembler, for the oldest and the newest architecture the target names.

use compiler::codegen::ptx::{Ptx, dynamic_shared};
use compiler::codegen::{Code, Target, cases};
use std::process::{Command, Stdio};

/// Kernels in one call of the assembler, which takes most of its time to start.
const BATCH: usize = 200;

fn assemble(sm: u32, name: &str, text: &str) {
    let file = std::env::temp_dir().join(format!("glimmer-{}-{sm}-{name}.ptx", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let mut ptxas = Command::new("ptxas");
    ptxas.arg(format!("-arch=sm_{sm}")).args(["-O1", "-o", "/dev/null"]).arg(&file);
    let output = ptxas.output().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_case_assembles() {
    if Command::new("ptxas").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: no ptxas on PATH");
        return;
    }
    for sm in [80, 90] {
        let target = Ptx::new(sm);
        let (mut batch, mut count) = (String::new(), 0);
        for (i, case) in cases::all(128).into_iter().enumerate() {
            let mut program = case.program;
            program.name = format!("{}_{i}", program.name);
            let Code::Text(text) = target.emit(&program) else { panic!("PTX is text") };
            if dynamic_shared(&program) > 0 {
                assemble(sm, &program.name, &text);
                continue;
            }
            let (header, entry) = text.split_at(text.find(".visible").unwrap());
            if batch.is_empty() {
                batch = header.into();
            }
            batch += entry;
            count += 1;
            if count % BATCH == 0 {
                assemble(sm, &count.to_string(), &std::mem::take(&mut batch));
            }
        }
        if !batch.is_empty() {
            assemble(sm, "rest", &batch);
        }
        eprintln!("sm_{sm}: {count} kernels assembled");
    }
}
