//! Prints the read bandwidth that kernels are measured against, for every number of threads.
//!
//! `cargo run --release -p glimmer-runtime --example bandwidth`

use runtime::bandwidth;
use runtime::cpu::{CpuDevice, Options};
use runtime::device::{Device, Error};

fn main() -> Result<(), Error> {
    let bytes = bandwidth::working_set();
    for threads in 1..=runtime::machine::cores().len() {
        let device = CpuDevice::new(Options { threads: Some(threads), tier: None })?;
        let speed = bandwidth::measure(&device, bytes, 15)?;
        let (slowest, median, fastest) = (speed.slowest(), speed.median(), speed.fastest());
        println!(
            "{}: {median:.1} GB/s ({slowest:.1} to {fastest:.1}) over {} MiB",
            device.name(),
            bytes >> 20
        );
    }
    Ok(())
}
