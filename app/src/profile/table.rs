//! A report as text for a terminal.

use super::report::{Report, size};
use std::fmt::Write;

/// With the `top` kernels.
pub fn of(r: &Report, top: usize) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut out, r, top);
    out
}

fn write(out: &mut String, r: &Report, top: usize) -> std::fmt::Result {
    writeln!(out, "{} on {}", r.model, r.device)?;
    let filling = if r.rows > r.tokens { format!(" (in a plan for {})", r.rows) } else { String::new() };
    let what = if r.tokens == 1 { "1 token".into() } else { format!("{} tokens{filling}", r.tokens) };
    writeln!(out, "{what} at depth {}", r.depth)?;
    if r.lanes > 1 {
        let (n, rows) = (r.lanes, r.rows);
        writeln!(
            out,
            "in {n} plans for {rows} beside each other, a thread each; below is one of them, and the head"
        )?;
    }
    let [slow, fast] = r.bandwidth_range;
    writeln!(out)?;
    writeln!(
        out,
        "theoretical {:>9.2} tokens/s   {} at {:.1} GB/s ({slow:.1} to {fast:.1})",
        r.theoretical_tokens_s,
        size(r.bytes),
        r.bandwidth_gb_s
    )?;
    writeln!(
        out,
        "reached     {:>9.2} tokens/s   {:.0}% of it; {:.3} ms a step ({:.3} to {:.3})",
        r.reached_tokens_s,
        100.0 * r.reached_tokens_s / r.theoretical_tokens_s,
        r.step_us / 1e3,
        r.step_range_us[0] / 1e3,
        r.step_range_us[1] / 1e3
    )?;
    writeln!(
        out,
        "a step has {} launches and {} synchronisations; {}",
        r.launches,
        r.synchronisations,
        match r.gaps_us > 0.0 {
            true => format!(
                "in it the launches take {:.3} ms and the gaps between them {:.3}",
                r.launches_us / 1e3,
                r.gaps_us / 1e3
            ),
            false => format!("timed one by one the launches take {:.3} ms", r.launches_us / 1e3),
        }
    )?;
    // What a launch waited after the one before, where that is known.
    let gap = |us: f64| if r.gaps_us > 0.0 { format!(" {:>5.2} +", us) } else { String::new() };

    writeln!(out, "\n{:<15} {:>10} {:>7} {:>10} {:>8}", "component", "ms", "share", "touched", "GB/s")?;
    for p in &r.budget {
        writeln!(
            out,
            "{:<15} {:>10.3} {:>6.1}% {:>10} {:>8.2}  {}",
            p.component,
            p.us / 1e3,
            100.0 * p.share,
            size(p.bytes),
            p.gb_s,
            "█".repeat((40.0 * p.share).round() as usize)
        )?;
    }

    for block in &r.anatomy {
        let of = if block.layers == 1 { "alone".into() } else { format!("and {} like it", block.layers - 1) };
        writeln!(out, "\nlayer {} {of}: {:.1} us in order", block.layer, block.us)?;
        for e in &block.launches {
            let k = &r.kernels[e.kernel - 1];
            writeln!(
                out,
                "{:>4}{} {:>9.1} us {:>5.1}%  {:<14} {} · {}",
                k.id,
                gap(e.gap_us),
                e.us,
                100.0 * e.us / block.us,
                k.component,
                k.what,
                k.shape
            )?;
        }
    }

    writeln!(
        out,
        "\n{:>4} {:>6}{} {:>10} {:>8} {:>7}  {:<14} kernel",
        "no",
        "calls",
        if r.gaps_us > 0.0 { "   gap +" } else { "" },
        "us a call",
        "GB/s",
        "share",
        "component"
    )?;
    for k in r.by_time().into_iter().take(top) {
        writeln!(
            out,
            "{:>4} {:>6}{} {:>10.1} {:>8.2} {:>6.1}%  {:<14} {} · {}",
            k.id,
            k.calls,
            gap(k.gap_us),
            k.us,
            k.gb_s,
            100.0 * k.share,
            k.component,
            k.what,
            k.shape
        )?;
        let schedule = if k.schedule.is_empty() { "no schedule" } else { &k.schedule };
        writeln!(out, "{:56} {}  {schedule}", "", k.name)?;
        writeln!(out, "{:56} {}", "", k.source.join(", "))?;
    }
    if r.kernels.len() > top {
        writeln!(out, "and {} more kernels (--top {})", r.kernels.len() - top, r.kernels.len())?;
    }
    Ok(())
}
