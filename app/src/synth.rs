//! `glimmer synth`: a synthetic model as a file.

use crate::args::Synth;
use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use llm::gguf::{Gguf, write_gguf};
use llm::synth::{self, Changes};
use std::path::Path;
use std::time::Instant;

pub fn run(args: &Synth) -> Result<()> {
    let changes = Changes { layers: args.layers, vocab: args.vocab, experts: args.experts };
    let model = synth::open(&args.model, changes)?;
    let start = Instant::now();
    let bytes = write(&model, &args.file)?;
    println!(
        "{}: {} tensors, {:.2} GB, {:.1} s",
        args.file.display(),
        model.tensors().len(),
        bytes as f64 / 1e9,
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Writes a model, with a bar on a terminal; the file's bytes.
pub fn write(model: &Gguf, path: &Path) -> Result<u64> {
    // Drawn on standard error, and only on a terminal.
    let bar = ProgressBar::new(0).with_style(ProgressStyle::with_template(
        "{bar:32} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left",
    )?);
    let mut bytes = 0;
    let written = write_gguf(model, path, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        bytes = total;
    });
    bar.finish_and_clear();
    written?;
    Ok(bytes)
}
