//! SentencePiece with scores: text in, token ids out. Starts from characters and joins the neighbours whose joint text
//! is the token of highest score, the leftmost of equals first; a character that is no token becomes its bytes' tokens.

use super::index::Index;
use std::collections::BinaryHeap;

pub const SPACE: &str = "\u{2581}";
const NONE: u32 = u32::MAX;

pub struct Spm {
    scores: Vec<f32>,
    /// The token of each byte; the unknown token, if any, where the vocabulary has none.
    bytes: [Option<u32>; 256],
}

/// A piece of the text between two others; empty once it was joined to the one before.
struct Piece {
    start: u32,
    len: u32,
    previous: u32,
    next: u32,
}

impl Spm {
    pub fn new(index: &Index, scores: Vec<f32>, unknown: Option<u32>) -> Spm {
        let bytes = std::array::from_fn(|byte| {
            let name = format!("<0x{byte:02X}>");
            let plain = u8::try_from(byte).ok().filter(u8::is_ascii).map(|b| char::from(b).to_string());
            index.get(&name).or_else(|| index.get(&plain?)).or(unknown)
        });
        Spm { scores, bytes }
    }

    /// `text` has its spaces as [`SPACE`].
    pub fn encode(&self, index: &Index, text: &str, out: &mut Vec<u32>) {
        let mut pieces: Vec<Piece> = Vec::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            let i = pieces.len() as u32;
            let (start, len) = (at as u32, c.len_utf8() as u32);
            pieces.push(Piece { start, len, previous: i.wrapping_sub(1), next: i + 1 });
        }
        if let Some(last) = pieces.last_mut() {
            last.next = NONE;
        }
        let mut queue = BinaryHeap::new();
        let offer = |queue: &mut BinaryHeap<_>, pieces: &[Piece], left: u32| {
            let Some(a) = pieces.get(left as usize) else { return };
            let Some(b) = pieces.get(a.next as usize) else { return };
            let len = a.len + b.len;
            let joint = &text[a.start as usize..(a.start + len) as usize];
            if let Some(id) = index.get(joint) {
                queue.push((order(self.scores[id as usize]), NONE - left, len));
            }
        };
        for left in 0..pieces.len() as u32 {
            offer(&mut queue, &pieces, left);
        }
        while let Some((_, key, len)) = queue.pop() {
            let left = NONE - key;
            let (joined, next) = (pieces[left as usize].len, pieces[left as usize].next);
            if joined == 0 || next == NONE || joined + pieces[next as usize].len != len {
                continue;
            }
            let after = pieces[next as usize].next;
            pieces[next as usize].len = 0;
            pieces[left as usize].len = len;
            pieces[left as usize].next = after;
            if after != NONE {
                pieces[after as usize].previous = left;
            }
            offer(&mut queue, &pieces, pieces[left as usize].previous);
            offer(&mut queue, &pieces, left);
        }
        for piece in pieces.iter().filter(|p| p.len > 0) {
            let text = &text[piece.start as usize..(piece.start + piece.len) as usize];
            match index.get(text) {
                Some(id) => out.push(id),
                None => out.extend(text.bytes().filter_map(|b| self.bytes[b as usize])),
            }
        }
    }
}

/// Bits that order as the scores do, with both zeros equal.
fn order(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}
