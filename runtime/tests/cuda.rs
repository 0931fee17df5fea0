//! What only a GPU can show: every code generator's case against the interpreter, graphs, errors, speed.

use compiler::bundle::Bundle;
use compiler::interp;
use compiler::linear::Linear;
use compiler::rng::Rng;
use compiler::testing::{self, cases};
use runtime::bandwidth;
use runtime::buffer::Slice;
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

/// Calls `check` with every number below `count`, on all cores: the driver takes some milliseconds to assemble each
/// program. Fails with what any of them say.
fn check_all(count: usize, check: impl Fn(usize) -> Result<(), String> + Sync) {
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(vec![]));
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= count {
                return;
            }
            if let Err(why) = check(i) {
                wrong.lock().unwrap().push(why);
            }
        }
    };
    std::thread::scope(|s| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            s.spawn(work);
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}

/// The buffers as the GPU leaves them.
fn run(
    gpu: &CudaDevice,
    linear: &Linear,
    buffers: &[Vec<u8>],
    symbols: &[i64],
) -> Result<Vec<Vec<u8>>, Error> {
    run_bundle(gpu, &linear.clone().into(), buffers, symbols)
}

fn run_bundle(
    gpu: &CudaDevice,
    bundle: &Bundle,
    buffers: &[Vec<u8>],
    symbols: &[i64],
) -> Result<Vec<Vec<u8>>, Error> {
    let program = gpu.load_bundle(bundle.clone(), gpu.target().emit_bundle(bundle))?;
    let mut slices = vec![];
    for bytes in buffers {
        let slice = gpu.alloc(bytes.len())?.whole();
        gpu.write(&slice, 0, bytes)?;
        slices.push(slice);
    }
    let mut plan = Plan::new(bundle.symbols().to_vec());
    plan.push(&program, slices.clone())?;
    gpu.run(&mut gpu.prepare(plan)?, symbols)?;
    let read = |slice: &Slice| {
        let mut bytes = vec![0; slice.len()];
        gpu.read(slice, 0, &mut bytes).map(|()| bytes)
    };
    slices.iter().map(read).collect()
}

#[test]
fn every_case_runs_as_interpreted() {
    let Some(gpu) = device() else { return };
    let all = cases::all(128);
    check_all(all.len(), |i| {
        let (case, name) = (&all[i], &all[i].program.name);
        let mut want = case.buffers.clone();
        interp::linear::run(&case.program, &mut want, &case.symbols);
        let got = run(&gpu, &case.program, &case.buffers, &case.symbols);
        let got = got.map_err(|e| format!("{name}: {e}"))?;
        case.compare(&want, &got).map_err(|e| format!("{name}: {e}"))
    });
    eprintln!("{} cases on {}", all.len(), gpu.name());
}

#[test]
fn random_programs_run_as_interpreted() {
    let Some(gpu) = device() else { return };
    check_all(1000, |seed| {
        let (program, buffers, symbols) =
            testing::random_program(&mut Rng::new(seed as u64), &testing::GPU, 30);
        let want = testing::expected(&program, &buffers, &symbols).expect("a defined program");
        let got = run(&gpu, &program, &buffers, &symbols).map_err(|e| format!("seed {seed}: {e}"))?;
        match testing::difference(&program, &want, &got) {
            Some(why) => Err(format!("seed {seed}: {why}")),
            None => Ok(()),
        }
    });
}

#[test]
fn bundles_run_as_their_parts_one_by_one() {
    let Some(gpu) = device() else { return };
    check_all(300, |seed| {
        let (bundle, buffers, symbols) =
            testing::random_bundle(&mut Rng::new(seed as u64), &testing::GPU, 20);
        let got = run_bundle(&gpu, &bundle, &buffers, &symbols).map_err(|e| format!("seed {seed}: {e}"))?;
        let differs = testing::bundle_difference(&bundle, &buffers, &symbols, &got);
        differs.map_or(Ok(()), |why| Err(format!("seed {seed}: {why}")))
    });
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
