//! `glimmer tokenize`: text to token ids and back, with nothing added to either.

use crate::args::Tokenize;
use crate::model;
use anyhow::{Context, Result, bail};
use llm::tokenizer::Tokenizer;
use std::fmt::Write as _;
use std::io::{Read, Write};

pub fn run(args: &Tokenize) -> Result<()> {
    let tokenizer = Tokenizer::from_gguf(&model::open(Some(&args.model))?)?;
    let mut out = String::new();
    if let Some(ids) = &args.decode {
        let size = tokenizer.vocab_size();
        if let Some(id) = ids.iter().find(|id| **id as usize >= size) {
            bail!("--decode: {id} is no token; the vocabulary of {} has {size}", args.model);
        }
        let text = tokenizer.decode(ids);
        out = if args.json { format!("{}\n", serde_json::json!({ "text": text })) } else { text };
    } else {
        let text = match &args.text {
            Some(text) => text.clone(),
            None => standard_input()?,
        };
        let ids = tokenizer.encode(&text, !args.no_special);
        if args.json {
            writeln!(out, "{}", serde_json::json!({ "ids": ids }))?;
        } else {
            for id in ids {
                writeln!(out, "{id:>7}  {}", shown(tokenizer.piece(id)))?;
            }
        }
    }
    std::io::stdout().write_all(out.as_bytes())?;
    Ok(())
}

fn standard_input() -> Result<String> {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).context("standard input")?;
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        anyhow::anyhow!("standard input is not UTF-8: the byte at {at} is 0x{:02X}", e.as_bytes()[at])
    })
}

/// A piece in quotes; bytes that are only part of a character as `<0xE6>`.
fn shown(piece: &[u8]) -> String {
    let mut out = String::from("\"");
    for chunk in piece.utf8_chunks() {
        out.extend(chunk.valid().chars().flat_map(char::escape_debug));
        out.extend(chunk.invalid().iter().map(|byte| format!("<0x{byte:02X}>")));
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_shown() {
        assert_eq!(shown(b" a\n\xe6\x88"), "\" a\\n<0xE6><0x88>\"");
    }
}
