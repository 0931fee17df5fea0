//! Pages of the cache: who holds which, and what they hold. In: tokens. Out: numbers of pages.
//!
//! A page is free, held by one or more sequences, or kept: nobody's, with a known content that a prompt may begin with. What
//! holds a page holds those before it in its chain too, so that of kept pages a chain's last is always the oldest.

use crate::paged::PAGE;
use std::collections::{BTreeMap, HashMap};

/// What a page holds, and the page that its content stands behind: equal keys, equal rows.
type Key = (Option<u32>, [u32; PAGE]);

pub struct Pages {
    /// How many hold each page.
    held: Vec<u32>,
    keys: Vec<Option<Key>>,
    known: HashMap<Key, u32>,
    free: Vec<u32>,
    /// Kept pages by when they were let go, oldest first.
    kept: BTreeMap<u64, u32>,
    since: Vec<u64>,
    clock: u64,
    evicted: u64,
}

impl Pages {
    pub fn new(pages: usize) -> Pages {
        Pages {
            held: vec![0; pages],
            keys: vec![None; pages],
            known: HashMap::new(),
            free: (0..pages as u32).rev().collect(),
            kept: BTreeMap::new(),
            since: vec![0; pages],
            clock: 0,
            evicted: 0,
        }
    }

    pub fn total(&self) -> usize {
        self.held.len()
    }

    /// Pages that [`Pages::take`] can give.
    pub fn available(&self) -> usize {
        self.free.len() + self.kept.len()
    }

    /// Pages that hold something, kept ones included.
    pub fn used(&self) -> usize {
        self.total() - self.free.len()
    }

    /// Kept pages that made room for others.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Holds the pages of the longest known beginning of these tokens.
    pub fn find(&mut self, tokens: &[u32]) -> Vec<u32> {
        let mut found: Vec<u32> = vec![];
        for content in tokens.chunks_exact(PAGE) {
            let Some(&page) = self.known.get(&key(found.last().copied(), content)) else { break };
            self.hold(page);
            found.push(page);
        }
        found
    }

    /// A page for one holder; the oldest kept one if none is free.
    pub fn take(&mut self) -> Option<u32> {
        let page = match self.free.pop() {
            Some(page) => page,
            None => {
                let (_, page) = self.kept.pop_first()?;
                self.evicted += 1;
                self.forget(page);
                page
            }
        };
        self.held[page as usize] = 1;
        Some(page)
    }

    /// Makes the content of a held page known, behind the page `before`, which is held too. The page that has it now: another
    /// one, held instead, if the content was known.
    pub fn seal(&mut self, before: Option<u32>, page: u32, content: &[u32]) -> u32 {
        let key = key(before, content);
        if let Some(&other) = self.known.get(&key) {
            if other != page {
                self.hold(other);
                self.give(&[page]);
            }
            return other;
        }
        self.keys[page as usize] = Some(key);
        self.known.insert(key, page);
        page
    }

    /// Lets go of a sequence's pages, which are in order.
    pub fn give(&mut self, table: &[u32]) {
        for &page in table.iter().rev() {
            let held = &mut self.held[page as usize];
            *held -= 1;
            if *held > 0 {
                continue;
            }
            if self.keys[page as usize].is_none() {
                self.free.push(page);
            } else {
                self.clock += 1;
                self.since[page as usize] = self.clock;
                self.kept.insert(self.clock, page);
            }
        }
    }

    /// Forgets what nobody holds.
    pub fn clear(&mut self) {
        while let Some((_, page)) = self.kept.pop_first() {
            self.forget(page);
            self.free.push(page);
        }
    }

    fn hold(&mut self, page: u32) {
        let at = page as usize;
        if self.held[at] == 0 {
            self.kept.remove(&self.since[at]);
        }
        self.held[at] += 1;
    }

    fn forget(&mut self, page: u32) {
        if let Some(key) = self.keys[page as usize].take() {
            self.known.remove(&key);
        }
    }
}

fn key(before: Option<u32>, content: &[u32]) -> Key {
    let mut tokens = [0; PAGE];
    tokens.copy_from_slice(content);
    (before, tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use compiler::rng::Rng;

    fn tokens(pages: usize, seed: u32) -> Vec<u32> {
        (0..(pages * PAGE) as u32).map(|i| i + 1000 * seed).collect()
    }

    /// A sequence of whole pages: what is known is found, the rest taken and sealed.
    fn run(pages: &mut Pages, tokens: &[u32]) -> Option<(Vec<u32>, usize)> {
        let mut table = pages.find(tokens);
        let found = table.len();
        if pages.available() < tokens.len() / PAGE - found {
            pages.give(&table);
            return None;
        }
        for content in tokens.chunks(PAGE).skip(found) {
            let page = pages.take().expect("counted");
            table.push(pages.seal(table.last().copied(), page, content));
        }
        Some((table, found))
    }

    #[test]
    fn beginnings_are_shared() {
        let mut pages = Pages::new(8);
        let (a, found) = run(&mut pages, &tokens(3, 1)).unwrap();
        assert_eq!((found, pages.used()), (0, 3));
        let longer = [tokens(3, 1), tokens(1, 2)].concat();
        let (b, found) = run(&mut pages, &longer).unwrap();
        assert_eq!((found, &b[..3], pages.used()), (3, &a[..], 4));
        // The same page behind another one is another page.
        let (c, found) = run(&mut pages, &tokens(1, 2)).unwrap();
        assert_eq!((found, pages.used()), (0, 5));
        for table in [a, b, c] {
            pages.give(&table);
        }
        assert_eq!((pages.available(), pages.used()), (8, 5));
        assert_eq!(pages.find(&longer).len(), 4);
    }

    #[test]
    fn the_oldest_make_room_ends_first() {
        let mut pages = Pages::new(4);
        let (old, _) = run(&mut pages, &tokens(2, 1)).unwrap();
        let (new, _) = run(&mut pages, &tokens(2, 2)).unwrap();
        pages.give(&old);
        pages.give(&new);
        let page = pages.take().unwrap();
        assert_eq!((page, pages.evicted()), (old[1], 1));
        assert_eq!(pages.find(&tokens(2, 1)).len(), 1, "its beginning is still there");
        let more: Vec<u32> = (0..2).map(|_| pages.take().unwrap()).collect();
        assert_eq!(more, [new[1], new[0]]);
        assert_eq!(pages.take(), None, "all are held");
    }

    #[test]
    fn two_that_computed_the_same_end_up_with_one_page() {
        let mut pages = Pages::new(4);
        let content = tokens(1, 1);
        let (a, b) = (pages.take().unwrap(), pages.take().unwrap());
        assert_eq!(pages.seal(None, a, &content), a);
        assert_eq!(pages.seal(None, b, &content), a);
        assert_eq!((pages.used(), pages.available()), (1, 3));
        pages.give(&[a]);
        pages.give(&[a]);
        assert_eq!(pages.available(), 4);
        pages.clear();
        assert_eq!((pages.used(), pages.find(&content).len()), (0, 0));
    }

    #[test]
    fn nothing_leaks_and_no_page_has_two_contents() {
        let mut rng = Rng::new(5);
        let mut pages = Pages::new(24);
        let mut live: Vec<(Vec<u32>, Vec<u32>, bool)> = vec![];
        let mut content: Vec<Option<(u32, bool)>> = vec![None; 24];
        for _ in 0..20_000 {
            if rng.one_in(2) || live.is_empty() {
                let (n, kind) = (1 + rng.below(6), rng.below(4) as u32);
                let text =
                    [tokens(n.min(2), kind), tokens(n.saturating_sub(2), 10 + rng.below(2) as u32)].concat();
                if let Some((table, _)) = run(&mut pages, &text) {
                    live.push((table, text, true));
                }
            } else if rng.one_in(4) {
                // A page that is never sealed.
                if let Some(page) = pages.take() {
                    live.push((vec![page], vec![], false));
                }
            } else {
                let (table, ..) = live.swap_remove(rng.below(live.len()));
                pages.give(&table);
            }
            content.fill(None);
            for (id, (table, text, sealed)) in live.iter().enumerate() {
                for (i, &page) in table.iter().enumerate() {
                    let what = if *sealed { (text[i * PAGE], true) } else { (id as u32, false) };
                    let before = content[page as usize].replace(what);
                    assert!(before.is_none_or(|b| b == what && *sealed), "page {page} is used twice");
                }
            }
            let held = content.iter().flatten().count();
            assert_eq!(pages.available() + held, 24);
        }
        for (table, ..) in live.drain(..) {
            pages.give(&table);
        }
        pages.clear();
        assert_eq!((pages.used(), pages.available(), pages.known.len()), (0, 24, 0));
    }
}
