//! What the PTX target emits, without a GPU: every case's text through NVIDIA's assembler, and run by an emulator against
//! the interpreter.

mod emulator;

use compiler::codegen::cases;
use compiler::codegen::ptx::{Ptx, dynamic_shared};
use compiler::codegen::{Code, Target};
use compiler::interp;
use compiler::linear::Linear;
use std::process::{Command, Stdio};

fn emit(sm: u32, program: &Linear) -> String {
    match Ptx::new(sm).emit(program) {
        Code::Text(text) => text,
        Code::Machine(_) => panic!("PTX is text"),
    }
}

#[test]
fn every_case_runs_as_interpreted() {
    let mut wrong = vec![];
    for case in cases::all(32) {
        let text = emit(80, &case.program);
        let (mut want, mut got) = (case.buffers.clone(), case.buffers.clone());
        interp::linear::run(&case.program, &mut want, &case.symbols);
        let p = &case.program;
        let shared = p.locals.iter().map(|l| (l.dtype.bytes() * l.len).next_multiple_of(16)).sum();
        emulator::run(&text, p.grid.eval(&case.symbols), p.threads, shared, &mut got, &case.symbols);
        if let Err(why) = case.compare(&want, &got) {
            wrong.push(format!("{}: {why}", p.name));
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}
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
        let (mut batch, mut count) = (String::new(), 0);
        for (i, case) in cases::all(128).into_iter().enumerate() {
            let mut program = case.program;
            program.name = format!("{}_{i}", program.name);
            let text = emit(sm, &program);
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
