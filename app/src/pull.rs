//! `glimmer pull` and `glimmer models`: models from Hugging Face into the cache, and what is there.

use crate::args::Pull;
use crate::fetch::{HUGGING_FACE, Hub, Remote};
use crate::names::{self, KNOWN, Wanted, show_bytes};
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub fn run(args: &Pull) -> Result<()> {
    let Some(wanted) = names::parse(&args.name) else {
        let known: Vec<&str> = KNOWN.iter().map(|k| k.name).collect();
        bail!(
            "`{}` is no known model; known are {}, and anything on Hugging Face as hf:OWNER/REPO:QUANT or \
             hf:OWNER/REPO/FILE.gguf",
            args.name,
            known.join(", ")
        );
    };
    let (wanted, cache) = (wanted?, names::cache_dir()?);
    let endpoint = args.endpoint.as_deref().unwrap_or(HUGGING_FACE);
    let first = match wanted.here(&cache) {
        Some(path) => path,
        None => fetch(&wanted, endpoint, &cache).with_context(|| args.name.clone())?,
    };
    writeln!(io::stdout(), "{}", first.display())?;
    Ok(())
}

fn fetch(wanted: &Wanted, endpoint: &str, cache: &Path) -> Result<PathBuf> {
    let hub = Hub::new(endpoint, Duration::from_secs(1));
    let dir = wanted.dir(cache);
    let mut first = None;
    for remote in hub.list(wanted)? {
        let place = dir.join(&remote.path);
        // A file at its place was verified when it came there.
        if !place.exists() {
            let bar = bar(&remote);
            let fetched = hub.fetch(&wanted.repo, &remote, &dir, &mut |n| bar.set_position(n));
            bar.finish_and_clear();
            fetched?;
            eprintln!("{}: {}, checksum verified", remote.path, show_bytes(remote.bytes));
        }
        first.get_or_insert(place);
    }
    first.with_context(|| format!("{wanted}: no files"))
}

/// Hidden where standard error is no terminal.
fn bar(remote: &Remote) -> ProgressBar {
    if !io::stderr().is_terminal() {
        eprintln!("{}: fetching {}", remote.path, show_bytes(remote.bytes));
    }
    let template = "{msg} {wide_bar} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let name = remote.path.rsplit('/').next().unwrap_or(&remote.path);
    ProgressBar::new(remote.bytes).with_style(style).with_message(name.to_string())
}

/// What is known and what is here.
pub fn list() -> Result<()> {
    let cache = names::cache_dir()?;
    let here = names::files(&cache.join("models"));
    let mut out = io::stdout().lock();
    writeln!(out, "{:<20} {:<8} {:>9}  {:<10}  what it is", "name", "default", "size", "here")?;
    for k in KNOWN {
        let mine = |path: &&str| path.strip_prefix(k.repo).is_some_and(|rest| rest.starts_with('/'));
        let paths = here.iter().map(|(path, _)| path.as_str());
        let mut quants: Vec<String> = paths.filter(mine).filter_map(names::quant_of).collect();
        quants.dedup();
        let shown = if quants.is_empty() { "-".into() } else { quants.join(",") };
        writeln!(out, "{:<20} {:<8} {:>9}  {shown:<10}  {}", k.name, k.quant, show_bytes(k.bytes), k.about)?;
    }
    if !here.is_empty() {
        writeln!(out, "\nin {}:", cache.join("models").display())?;
        for (path, bytes) in &here {
            writeln!(out, "{:>9}  hf:{path}", show_bytes(*bytes))?;
        }
    }
    writeln!(
        out,
        "\n`glimmer pull NAME` fetches one; NAME:QUANT another quantisation, hf:OWNER/REPO:QUANT any other"
    )?;
    Ok(())
}
