//! What only a GPU can show: every code generator's case against the interpreter, graphs, errors, speed.

use compiler::codegen::cases;
use compiler::interp;
use runtime::bandwidth;
use runtime::cuda::CudaDevice;
use runtime::device::{Device, Error};
use runtime::plan::Plan;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

fn device() -> Option<CudaDevice> {
    match CudaDevice::new(0) {
        Ok(gpu) => Some(gpu),
        Err(e) => {
            eprintln!("skipped: {e}");
            None
        }
    }
}

#[test]
fn every_case_runs_as_interpreted() {
    let Some(gpu) = device() else { return };
    let all = cases::all(128);
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(vec![]));
    // The driver takes some milliseconds to assemble each program, so every core has a share.
    let work = || {
        while let Some(case) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut want = case.buffers.clone();
            interp::linear::run(&case.program, &mut want, &case.symbols);
            let outcome =
                run(&gpu, case).map_err(|e| e.to_string()).and_then(|got| case.compare(&want, &got));
            if let Err(why) = outcome {
                wrong.lock().unwrap().push(format!("{}: {why}", case.program.name));
            }
        }
    };
    std::thread::scope(|s| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            s.spawn(work);
        }
    });
    let (wrong, count) = (wrong.into_inner().unwrap(), all.len());
    assert!(wrong.is_empty(), "{} of {count} cases:\n{}", wrong.len(), wrong.join("\n"));
    eprintln!("{count} cases on {}", gpu.name());
}

fn run(gpu: &CudaDevice, case: &cases::Case) -> Result<Vec<Vec<u8>>, Error> {
    let program = gpu.load(case.program.clone(), gpu.target().emit(&case.program))?;
    let mut slices = vec![];
    for bytes in &case.buffers {
        let slice = gpu.alloc(bytes.len())?.whole();
        gpu.write(&slice, 0, bytes)?;
        slices.push(slice);
    }
    let mut plan = Plan::new(case.program.symbols.clone());
    plan.push(&program, slices.clone())?;
    gpu.run(&mut gpu.prepare(plan)?, &case.symbols)?;
    let read = |slice: &runtime::buffer::Slice| {
        let mut bytes = vec![0; slice.len()];
        gpu.read(slice, 0, &mut bytes).map(|()| bytes)
    };
    slices.iter().map(read).collect()
}

#[test]
fn errors_say_what_is_wrong() {
    let Some(gpu) = device() else { return };
    let free = gpu.memory().unwrap().0;
    let message = gpu.alloc(2 * free).unwrap_err().to_string();
    assert!(message.contains("MiB are free"), "{message}");
    let case = cases::all(1).swap_remove(0);
    let broken = compiler::codegen::Code::Text(".version 7.8\n.target sm_80\nnonsense".into());
    let Err(e) = gpu.load(case.program.clone(), broken) else { panic!("nonsense was loaded") };
    assert!(e.to_string().contains("syntax error"), "{e}");
    let program = gpu.load(case.program.clone(), gpu.target().emit(&case.program)).unwrap();
    let buffer = gpu.alloc(1024).unwrap();
    let mut plan = Plan::new([""; 0]);
    plan.push(&program, vec![buffer.slice(8, 1000).unwrap(); case.buffers.len()]).unwrap();
    let Err(e) = gpu.prepare(plan) else { panic!("a misaligned buffer was taken") };
    assert!(e.to_string().contains("multiple of 16"), "{e}");
}

#[test]
fn memory_is_read_at_a_plausible_speed() {
    let Some(gpu) = device() else { return };
    let bytes = gpu.working_set().unwrap();
    let measured = bandwidth::measure(&gpu, bytes, 9).unwrap();
    let (free, total) = gpu.memory().unwrap();
    eprintln!(
        "{}: {:.0} GB/s ({:.0} to {:.0}) over {} MiB; L2 {} MiB, {} of {} MiB free",
        gpu.name(),
        measured.median(),
        measured.slowest(),
        measured.fastest(),
        bytes >> 20,
        gpu.l2_bytes() >> 20,
        free >> 20,
        total >> 20
    );
    assert!((50.0..50_000.0).contains(&measured.median()), "{measured:?}");
}
