//! `glimmer check`: the kernel table on a device against the interpreter, with progress on standard error.

use crate::args::Check;
use crate::device;
use anyhow::{Result, bail};
use compiler::table::cases;
use runtime::check::{check, layout};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

pub fn run(args: &Check) -> Result<()> {
    let device = device::open(&args.device)?;
    let most = if args.rows == 0 { i64::MAX } else { args.rows };
    let rows: Vec<_> = cases(most).into_iter().filter(|c| c.to_string().contains(&args.filter)).collect();
    if rows.is_empty() {
        bail!("no row of the table contains `{}`", args.filter);
    }
    let start = Instant::now();
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        loop {
            let i = next.fetch_add(1, Relaxed);
            let Some(case) = rows.get(i) else { return };
            if let Err(e) = check(&[&*device], layout(&*device), case, args.schedules, args.seed) {
                failed.fetch_add(1, Relaxed);
                println!("FAILED {e}");
            }
            eprint!("\r{} of {} rows", i + 1, rows.len());
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|s| (0..threads).for_each(|_| drop(s.spawn(work))));
    eprintln!();
    let failed = failed.into_inner();
    println!(
        "{} on {}: {} rows × {} schedules, {} passed, {failed} failed, {:.0} s",
        if failed == 0 { "ok" } else { "FAILED" },
        device.name(),
        rows.len(),
        args.schedules + 1,
        rows.len() - failed,
        start.elapsed().as_secs_f64()
    );
    if failed > 0 {
        bail!("{failed} rows differ from the interpreter");
    }
    Ok(())
}
