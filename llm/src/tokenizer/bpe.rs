//! Byte-level byte-pair encoding: a word in, token ids out. Symbols below the vocabulary's size are tokens; the others
//! are texts that merges speak of but the vocabulary lacks. The merge of lowest rank is always done first, the leftmost
//! of equals before the others, in n log n for a word of n bytes.

use super::Error;
use super::decode::char_of_byte;
use super::index::Index;
use hashbrown::HashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const NONE: u32 = u32::MAX;

pub struct Bpe {
    /// The symbol of each byte.
    bytes: [u32; 256],
    /// A pair of symbols and the rank of its merge.
    ranks: HashMap<(u32, u32), u32>,
    /// The symbol that the merge of a rank makes.
    merged: Vec<u32>,
    /// What stands for the symbols that are no tokens.
    spelled: Vec<Vec<u32>>,
    tokens: u32,
}

/// Symbols by text while merges are read: the vocabulary's, and new ones after them.
struct Symbols<'a> {
    index: &'a Index,
    tokens: u32,
    others: HashMap<String, u32>,
    spelled: Vec<Vec<u32>>,
}

impl Symbols<'_> {
    fn of(&mut self, text: &str) -> u32 {
        if let Some(id) = self.index.get(text) {
            return id;
        }
        if let Some(symbol) = self.others.get(text) {
            return *symbol;
        }
        let symbol = self.tokens + self.spelled.len() as u32;
        let mut buffer = [0; 4];
        let letters = text.chars().filter_map(|c| self.index.get(c.encode_utf8(&mut buffer)));
        self.spelled.push(letters.collect());
        self.others.insert(text.to_string(), symbol);
        symbol
    }
}

impl Bpe {
    /// `merges` are pairs of texts with a space between them, the most urgent first.
    pub fn new(index: &Index, tokens: u32, merges: &[&str]) -> Result<Bpe, Error> {
        let mut symbols = Symbols { index, tokens, others: HashMap::new(), spelled: Vec::new() };
        let mut bytes = [0; 256];
        let mut buffer = [0; 4];
        for (byte, symbol) in bytes.iter_mut().enumerate() {
            *symbol = symbols.of(char_of_byte(byte as u8).encode_utf8(&mut buffer));
        }
        let mut ranks = HashMap::with_capacity(merges.len());
        let mut merged = Vec::with_capacity(merges.len());
        let mut text = String::new();
        for (rank, merge) in merges.iter().enumerate() {
            let space = merge.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| at);
            let Some((left, right)) = space.map(|at| (&merge[..at], &merge[at + 1..])) else {
                return Err(Error::Merge { index: rank, merge: merge.to_string() });
            };
            text.clear();
            text.push_str(left);
            text.push_str(right);
            let pair = (symbols.of(left), symbols.of(right));
            ranks.entry(pair).or_insert(rank as u32);
            merged.push(symbols.of(&text));
        }
        Ok(Bpe { bytes, ranks, merged, spelled: symbols.spelled, tokens })
    }

    pub fn encode(&self, word: &str, work: &mut Work, out: &mut Vec<u32>) {
        work.start(word.bytes().map(|b| self.bytes[b as usize]));
        for at in 1..work.symbols.len() {
            self.offer(work, at as u32 - 1);
        }
        while let Some(Reverse((rank, at))) = work.queue.pop() {
            let next = work.next[at as usize];
            if self.rank(work, at) != Some(rank) {
                continue;
            }
            work.symbols[at as usize] = self.merged[rank as usize];
            work.symbols[next as usize] = NONE;
            let after = work.next[next as usize];
            work.next[at as usize] = after;
            if after != NONE {
                work.previous[after as usize] = at;
            }
            let before = work.previous[at as usize];
            if before != NONE {
                self.offer(work, before);
            }
            self.offer(work, at);
        }
        for symbol in work.symbols.iter().filter(|s| **s != NONE) {
            match symbol.checked_sub(self.tokens) {
                None => out.push(*symbol),
                Some(other) => out.extend(&self.spelled[other as usize]),
            }
        }
    }

    /// The rank of the merge of the symbol at `at` with the one after it.
    fn rank(&self, work: &Work, at: u32) -> Option<u32> {
        let next = work.next[at as usize];
        let right = *work.symbols.get(next as usize)?;
        self.ranks.get(&(work.symbols[at as usize], right)).copied()
    }

    fn offer(&self, work: &mut Work, at: u32) {
        if let Some(rank) = self.rank(work, at) {
            work.queue.push(Reverse((rank, at)));
        }
    }
}

/// What encoding needs while it runs, kept from word to word. Merged-away symbols are `NONE`; the rest are linked.
#[derive(Default)]
pub struct Work {
    symbols: Vec<u32>,
    next: Vec<u32>,
    previous: Vec<u32>,
    queue: BinaryHeap<Reverse<(u32, u32)>>,
}

impl Work {
    fn start(&mut self, symbols: impl Iterator<Item = u32>) {
        self.symbols.clear();
        self.symbols.extend(symbols);
        let n = self.symbols.len() as u32;
        self.next.clear();
        self.next.extend((1..n).chain((n > 0).then_some(NONE)));
        self.previous.clear();
        self.previous.extend((0..n).map(|i| i.wrapping_sub(1)));
        self.queue.clear();
    }
}
