//! `glimmer tune`: a search for faster schedules of a model's kernels, which later runs use.
//!
//! In: a model, a device, a time. Out: a report before and after; what was found is in the cache directory.

use crate::args::{DeviceName, Tune as Args};
use crate::model;
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use llm::tune::{GAIN, Options, Outcome, Progress, Report, Tuned};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

/// Share of a step below which a kernel is listed only if it changed.
const SMALL: f64 = 0.01;

pub fn run(args: &Args) -> Result<()> {
    if args.model.device.device == DeviceName::Interp {
        bail!(
            "--device interp: the interpreter is for checking, and nothing is tuned for it; use cpu or cuda"
        );
    }
    let apart = !args.sequences.is_empty();
    let tokens = if apart { &args.sequences } else { &args.tokens };
    let most = tokens.iter().max().copied().unwrap_or(1);
    let need = args.depth + most;
    let mut model = model::load(&args.model, args.model.ctx.unwrap_or(need).max(need), false)?;
    let limit = Duration::from_secs(args.time);
    let bar = ProgressBar::new(limit.as_millis() as u64);
    if let Ok(style) = ProgressStyle::with_template("{wide_msg} {bar:20} {elapsed}") {
        bar.set_style(style);
    }
    bar.set_message("profiling");
    let options = Options { tokens: tokens.clone(), apart, depth: args.depth, limit };
    let report = model.tune(&options, &mut |p| show(&bar, p));
    bar.finish_and_clear();
    let report = report?;
    if let Some(path) = &args.export {
        let table = model.schedules().export();
        fs::write(path, table).with_context(|| path.display().to_string())?;
    }
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&as_json(&report, model.device().name()))?),
        false => print!("{}", table(&report, model.device().name())),
    }
    Ok(())
}

fn show(bar: &ProgressBar, p: &Progress) {
    bar.set_position(p.elapsed.as_millis() as u64);
    let (first, best) = (p.first * 1e6, p.best * 1e6);
    bar.set_message(format!(
        "{}/{} {first:.1} -> {best:.1} us, {} tried: {}",
        p.done + 1,
        p.of,
        p.tried,
        p.words
    ));
}

fn gain(before: f64, after: f64) -> f64 {
    100.0 * (before / after.max(1e-12) - 1.0)
}

fn table(report: &Report, device: &str) -> String {
    let mut out = format!("{device}\n");
    for s in &report.steps {
        let (before, after) = (s.before * 1e3, s.after * 1e3);
        let what = if s.tokens == 1 { "a token".into() } else { format!("{} tokens", s.tokens) };
        out +=
            &format!("{what}: {before:.3} ms before, {after:.3} ms after ({:+.1}%)\n", gain(before, after));
    }
    let better = report.kernels.iter().filter(|k| matches!(k.outcome, Outcome::Better(_))).count();
    let tried: usize = report.kernels.iter().map(|k| k.tried).sum();
    out += &format!(
        "{better} of {} kernels have a schedule that is at least {:.0}% faster; {tried} schedules tried\n\n",
        report.kernels.len(),
        100.0 * GAIN
    );
    out += &format!(
        "{:>6} {:>6} {:>6} {:>10} {:>10} {:>6}  kernel\n",
        "tokens", "share", "tried", "us before", "us after", "gain"
    );
    let (shown, rest): (Vec<_>, Vec<_>) =
        report.kernels.iter().partition(|k| k.outcome != Outcome::Kept || k.share >= SMALL);
    shown.into_iter().for_each(|k| out += &row(k));
    if !rest.is_empty() {
        out += &format!("and {} more of less than {:.0}% each, as they were\n", rest.len(), 100.0 * SMALL);
    }
    out
}

fn row(k: &Tuned) -> String {
    let (share, before, after) = (100.0 * k.share, k.before * 1e6, k.after * 1e6);
    let start = format!("{:>6} {share:>5.1}% {:>6} {before:>10.1} ", k.tokens, k.tried);
    let end = format!("  {}\n", k.words);
    let indent = " ".repeat(51);
    match &k.outcome {
        Outcome::Kept => format!("{start}{:>10} {:>6}{end}", "", ""),
        Outcome::Better(new) => {
            let gain = gain(before, after);
            let lines = format!("{indent}was {}\n{indent}now {new}\n", k.old);
            format!("{start}{after:>10.1} {gain:>+5.1}%{end}{lines}")
        }
        Outcome::Wrong { schedule, why } => {
            let note = format!("{indent}not used, for its results differ: {schedule}: {why}\n");
            format!("{start}{:>10} {:>6}{end}{note}", "", "")
        }
    }
}

fn as_json(report: &Report, device: &str) -> Value {
    let steps = report
        .steps
        .iter()
        .map(|s| json!({ "tokens": s.tokens, "ms_before": s.before * 1e3, "ms_after": s.after * 1e3 }));
    let kernels = report.kernels.iter().map(|k| {
        let (outcome, schedule) = match &k.outcome {
            Outcome::Kept => ("kept", None),
            Outcome::Better(new) => ("better", Some(new)),
            Outcome::Wrong { schedule, .. } => ("wrong", Some(schedule)),
        };
        json!({
            "tokens": k.tokens, "name": k.name, "what": k.words, "calls": k.calls, "share": k.share, "tried": k.tried,
            "us_before": k.before * 1e6, "us_after": k.after * 1e6, "outcome": outcome, "old": k.old, "new": schedule,
        })
    });
    json!({ "device": device, "steps": steps.collect::<Vec<_>>(), "kernels": kernels.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use llm::tune::Step;

    fn kernel(words: &str, share: f64, outcome: Outcome) -> Tuned {
        let (name, old) = ("k1".into(), "lane(0,32)".into());
        let (before, after) = (6e-6, 4e-6);
        Tuned { tokens: 1, name, words: words.into(), calls: 1, share, tried: 9, before, after, old, outcome }
    }

    #[test]
    fn large_and_changed_kernels_are_listed_and_the_rest_counted() {
        let wrong = Outcome::Wrong { schedule: "group(0,2)".into(), why: "1 is not 2".into() };
        let kernels = vec![
            kernel("logits", 0.5, Outcome::Kept),
            kernel("norm", 0.005, Outcome::Better("lane(0,16)".into())),
            kernel("router", 0.005, wrong),
            kernel("rope", 0.005, Outcome::Kept),
        ];
        let report = Report { steps: vec![Step { tokens: 1, before: 3e-3, after: 2e-3 }], kernels };
        let out = table(&report, "a device");
        for part in [
            "a device\na token: 3.000 ms before, 2.000 ms after (+50.0%)\n1 of 4 kernels",
            "36 schedules tried",
            "     1  50.0%      9        6.0                    logits\n",
            "     1   0.5%      9        6.0        4.0 +50.0%  norm\n",
            "was lane(0,32)\n",
            "now lane(0,16)\n",
            "router\n",
            "not used, for its results differ: group(0,2): 1 is not 2\n",
            "and 1 more of less than 1% each, as they were\n",
        ] {
            assert!(out.contains(part), "no `{part}` in {out}");
        }
        assert!(!out.contains("rope"), "{out}");
    }
}
