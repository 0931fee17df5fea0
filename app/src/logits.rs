//! `glimmer logits`: what a model says of each position, as a NumPy file.
//!
//! In: token ids. Out: f32 rows in the order of the positions asked for. The file appears when it is whole.

use crate::args::Logits;
use crate::model;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

pub fn run(args: &Logits) -> Result<()> {
    let tokens = tokens(&args.tokens)?;
    let rows = if args.mtp { tokens.len().saturating_sub(1) } else { tokens.len() };
    if rows == 0 {
        bail!("--tokens: at least {} are needed", if args.mtp { "two tokens" } else { "one token" });
    }
    let positions = match &args.positions {
        Some(list) => positions(list, rows)?,
        None => (0..rows).collect(),
    };
    let mut m = model::load(&args.model, args.model.ctx.unwrap_or(tokens.len()), args.mtp)?;
    let vocab = m.vocab();
    let mut out = Npy::create(&args.output, positions.len(), vocab)?;
    let (mut at, mut next, mut failed) = (0, positions.iter().peekable(), None);
    let mut row = |row: &[f32]| {
        while next.next_if(|p| **p == at).is_some() {
            failed = failed.take().or(out.row(row).err());
        }
        at += 1;
    };
    if args.mtp {
        m.feed_drafts(&tokens, &mut row)?
    } else {
        m.feed_all(&tokens, &mut row)?
    };
    failed.map_or(Ok(()), Err)?;
    out.finish()
}

/// `1,2,3`, or `@FILE` that holds such a list; spaces, line ends and brackets do no harm.
fn tokens(text: &str) -> Result<Vec<u32>> {
    let (source, list) = match text.strip_prefix('@') {
        Some(path) => (path, fs::read_to_string(path).with_context(|| path.to_string())?),
        None => ("--tokens", text.to_string()),
    };
    list.split(|c: char| c == ',' || c == '[' || c == ']' || c.is_whitespace())
        .filter(|s| !s.is_empty())
        .map(|s| s.parse().with_context(|| format!("{source}: `{s}` is no token id")))
        .collect()
}

/// `0,7,100-103`, in rising order.
fn positions(list: &str, rows: usize) -> Result<Vec<usize>> {
    let mut out = vec![];
    for part in list.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let number = |s: &str| s.trim().parse::<usize>().with_context(|| format!("--positions: `{part}`"));
        let (from, to) = (number(from)?, number(to)?);
        if from > to || to >= rows {
            bail!("--positions: `{part}` is outside 0 to {}", rows - 1);
        }
        out.extend(from..=to);
    }
    if out.is_empty() || !out.is_sorted() {
        bail!("--positions: expected positions in rising order, as in 0,7,100-103");
    }
    Ok(out)
}

/// A two-dimensional array of f32 in NumPy's format, version 1.
struct Npy<'a> {
    path: &'a Path,
    part: std::path::PathBuf,
    out: BufWriter<File>,
}

impl<'a> Npy<'a> {
    fn create(path: &'a Path, rows: usize, cols: usize) -> Result<Npy<'a>> {
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = std::path::PathBuf::from(part);
        let file = File::create(&part).with_context(|| format!("{}", part.display()))?;
        let mut npy = Npy { path, part, out: BufWriter::new(file) };
        npy.write(&header(rows, cols))?;
        Ok(npy)
    }
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).with_context(|| format!("{}", self.part.display()))
    }
    fn row(&mut self, row: &[f32]) -> Result<()> {
        row.iter().try_for_each(|v| self.write(&v.to_le_bytes()))
    }
    fn finish(mut self) -> Result<()> {
        let done = self.out.flush().and_then(|()| fs::rename(&self.part, self.path));
        done.with_context(|| format!("{}", self.path.display()))
    }
}

impl Drop for Npy<'_> {
    /// What was not finished is not left behind; after a rename there is nothing to remove.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.part);
    }
}

fn header(rows: usize, cols: usize) -> Vec<u8> {
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {cols}), }}");
    // Magic, version and length take 10 bytes; the data starts at a multiple of 64.
    while (10 + text.len() + 1) % 64 != 0 {
        text.push(' ');
    }
    text.push('\n');
    [b"\x93NUMPY\x01\x00", &(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_tokens_and_positions() {
        assert_eq!(tokens("1, 2,\n[3]").unwrap(), [1, 2, 3]);
        assert_eq!(tokens("1,x").unwrap_err().to_string(), "--tokens: `x` is no token id");
        assert!(format!("{:#}", tokens("@no/such").unwrap_err()).starts_with("no/such: "));
        assert_eq!(positions("0,2-4, 9", 10).unwrap(), [0, 2, 3, 4, 9]);
        for wrong in ["10", "4-2", "5,3", "a", ""] {
            assert!(positions(wrong, 10).unwrap_err().to_string().starts_with("--positions: "), "{wrong}");
        }
    }

    #[test]
    fn numpy_header_is_aligned_and_says_the_shape() {
        let h = header(3, 8192);
        assert_eq!((h.len() % 64, h.last()), (0, Some(&b'\n')));
        assert_eq!(u16::from_le_bytes([h[8], h[9]]) as usize, h.len() - 10);
        assert!(String::from_utf8_lossy(&h).contains("'shape': (3, 8192)"));
    }
}
