//! `glimmer perplexity`: how surprised a model is by a text, as llama.cpp counts it.
//!
//! The text is cut into chunks that the model reads from nothing; the second half of each is scored. The figures
//! compare with those of `llama-perplexity -c CHUNK`.

use crate::args::Perplexity;
use crate::model;
use anyhow::{Context, Result, bail};
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

/// `-ln p(token)`
fn surprise(logits: &[f32], token: u32) -> f64 {
    let most = logits.iter().copied().fold(f32::MIN, f32::max) as f64;
    let sum: f64 = logits.iter().map(|&l| (l as f64 - most).exp()).sum();
    most + sum.ln() - logits[token as usize] as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surprise_is_the_negative_log_of_the_softmax() {
        let want = -(1f64.exp() / (1f64.exp() + 3f64.exp() + 1.0)).ln();
        assert!((surprise(&[1.0, 3.0, 0.0], 0) - want).abs() < 1e-6);
        assert!((surprise(&[1e4, 0.0], 1) - 1e4).abs() < 1e-6);
    }
}
