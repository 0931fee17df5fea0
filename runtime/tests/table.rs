//! The kernel table against the interpreter, every row of it: under the heuristic's schedules on every tier of the CPU, under
//! random ones on the best, and a part of it in the linear interpreter scheduled as for a GPU. `glimmer check` runs it with whole
//! matrices and on a GPU.

use compiler::codegen::Caps;
use compiler::quant::Layout;
use compiler::table::{Case, Form, cases};
use runtime::check::check;
use runtime::cpu::{CpuDevice, Options, Tier};
use runtime::device::Device;
use runtime::interp::InterpDevice;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Of the large matrices; the odd ones are whole.
const ROWS: i64 = 3;
/// Random schedules of each row of the table, besides the heuristic's.
const SCHEDULES: usize = 8;

#[test]
fn every_row_on_the_cpu() {
    let mut devices = vec![];
    for tier in [Tier::Avx2, Tier::Avx512, Tier::Avx512Vnni, Tier::Amx] {
        match CpuDevice::new(Options { threads: Some(1), tier: Some(tier) }) {
            Ok(device) => devices.push(device),
            Err(e) => println!("skipped: {e}"),
        }
    }
    let devices: Vec<&dyn Device> = devices.iter().map(|d| d as &dyn Device).collect();
    let cases = cases(ROWS);
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let i = next.fetch_add(1, Relaxed);
            let Some(case) = cases.get(i) else { return };
            check(&devices, Layout::Interleaved16, case, SCHEDULES, i as u64)
                .unwrap_or_else(|e| panic!("{e}"));
        }
    };
    std::thread::scope(|s| (0..2).for_each(|_| drop(s.spawn(work))));
}

#[test]
fn small_rows_interpreted_as_on_a_gpu() {
    let caps = Caps {
        vector_bytes: 16,
        lanes: 32,
        max_threads: 1024,
        local_bytes: 48 << 10,
        dot4: true,
        tile: false,
        mma: true,
        transcendental: true,
    };
    let device = InterpDevice::like(caps);
    let small = |c: &&Case| c.cols <= 768 && c.tokens <= 2 || c.form == Form::Half && c.rows == 1;
    for case in cases(4).iter().filter(small) {
        check(&[&device], Layout::Rows, case, 1, 1).unwrap_or_else(|e| panic!("{e}"));
    }
}
