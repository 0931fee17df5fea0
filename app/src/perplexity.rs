//! `glimmer perplexity`: how surprised a model is by a text, as llama.cpp counts it.
//!
//! The text is cut into chunks that the model reads from nothing; the second half of each is scored. The figures
//! compare with those of `llama-perplexity -c CHUNK`.

use crate::args::Perplexity;
use crate::model;
use anyhow::{Context, Result, bail};
use llm::sample::surprise;
use llm::tokenizer::Tokenizer;
use serde_json::json;
use std::fs;
use std::io::{IsTerminal, stderr};

pub fn run(args: &Perplexity) -> Result<()> {
    let text = fs::read_to_string(&args.file).with_context(|| args.file.display().to_string())?;
    let mut m = model::load(&args.model, args.model.ctx.unwrap_or(args.chunk).max(args.chunk), false)?;
    let tokenizer = Tokenizer::from_gguf(m.file())?;
    let mut tokens = tokenizer.encode(&text, true);
    let first = tokenizer.bos().filter(|_| tokenizer.add_bos());
    if let Some(bos) = first {
        tokens.insert(0, bos);
    }
    let chunks: Vec<&[u32]> =
        tokens.chunks_exact(args.chunk).take(args.chunks.unwrap_or(usize::MAX)).collect();
    if chunks.is_empty() {
        bail!("{}: {} tokens are no chunk of {}", args.file.display(), tokens.len(), args.chunk);
    }
    let (mut total, mut count) = (0.0, 0);
    for (n, chunk) in chunks.iter().enumerate() {
        let mut read = chunk.to_vec();
        if let Some(bos) = first {
            read[0] = bos;
        }
        m.truncate(0);
        let mut at = 0;
        m.feed_all(&read, &mut |row| {
            if (args.chunk / 2..args.chunk - 1).contains(&at) {
                total += surprise(row, chunk[at + 1]);
                count += 1;
            }
            at += 1;
        })?;
        if stderr().is_terminal() {
            eprint!("\rchunk {} of {}: {:.4}  ", n + 1, chunks.len(), (total / count as f64).exp());
        }
    }
    if stderr().is_terminal() {
        eprintln!();
    }
    let perplexity = (total / count as f64).exp();
    match args.json {
        true => println!("{}", json!({"perplexity": perplexity, "chunks": chunks.len(), "tokens": count})),
        false => println!("{perplexity:.4} over {} chunks of {}", chunks.len(), args.chunk),
    }
    Ok(())
}
