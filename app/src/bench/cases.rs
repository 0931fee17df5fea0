//! What is measured: tests, and the lists of numbers that make them.
//!
//! In: flags as text. Out: each test once, in the order in which llama-bench runs them: by depth, prompts before decoding.

use std::fmt;
use std::str::FromStr;

/// `1,2,4`, `1-8`, `64-512+64` or `1-16*2`, as llama-bench reads them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Numbers(pub Vec<usize>);

/// A range that is longer is a slip of the finger.
const MOST: usize = 1000;

impl FromStr for Numbers {
    type Err = String;
    fn from_str(text: &str) -> Result<Numbers, String> {
        let mut out = vec![];
        for part in text.split(',') {
            range(part.trim(), &mut out)?;
        }
        Ok(Numbers(out))
    }
}

fn range(part: &str, out: &mut Vec<usize>) -> Result<(), String> {
    let number = |text: &str| {
        text.parse::<usize>().ok().filter(|n| *n <= i32::MAX as usize).ok_or_else(|| {
            format!(
                "`{text}` is no number; expected numbers with commas, or ranges as in 1-8, 64-512+64 or 1-16*2"
            )
        })
    };
    let Some((first, rest)) = part.split_once('-') else {
        out.push(number(part)?);
        return Ok(());
    };
    let (last, times, step) = match rest.split_once(['+', '*']) {
        Some((last, step)) => (last, rest[last.len()..].starts_with('*'), number(step)?),
        None => (rest, false, 1),
    };
    let (mut at, last) = (number(first)?, number(last)?);
    if at > last {
        return Err(format!("`{part}` ends before it begins"));
    }
    while at <= last {
        out.push(at);
        let next = if times { at * step } else { at + step };
        if next <= at || out.len() > MOST {
            return Err(format!("`{part}` has no end; expected a larger step"));
        }
        at = next;
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// All tokens at once.
    Prompt,
    /// One token after another.
    Decode,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Test {
    pub kind: Kind,
    /// Of each sequence.
    pub tokens: usize,
    /// Sequences that run at once.
    pub sequences: usize,
    /// Tokens in the cache of each before.
    pub depth: usize,
}

impl Test {
    /// Positions that it needs.
    pub fn context(&self) -> usize {
        self.depth + self.tokens
    }
}

/// As llama-bench names it.
impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let kind = if self.kind == Kind::Prompt { "pp" } else { "tg" };
        write!(f, "{kind}{}", self.tokens)?;
        if self.sequences > 1 {
            write!(f, "x{}", self.sequences)?;
        }
        if self.depth > 0 {
            write!(f, " @ d{}", self.depth)?;
        }
        Ok(())
    }
}

impl FromStr for Test {
    type Err = String;
    fn from_str(text: &str) -> Result<Test, String> {
        let parsed = || {
            let (what, depth) = text.split_once('@').unwrap_or((text, "d0"));
            let (what, depth) = (what.trim(), depth.trim().strip_prefix('d')?);
            let kind = |prefix| what.strip_prefix(prefix);
            let (kind, tokens) = match (kind("pp"), kind("tg")) {
                (Some(n), _) => (Kind::Prompt, n),
                (_, Some(n)) => (Kind::Decode, n),
                _ => return None,
            };
            let number =
                |text: &str| text.parse::<u32>().ok().filter(|n| *n <= i32::MAX as u32).map(|n| n as usize);
            let (tokens, sequences) = match (kind, tokens.split_once('x')) {
                (Kind::Decode, Some((tokens, n))) => (tokens, number(n)?),
                _ => (tokens, 1),
            };
            let (tokens, depth) = (number(tokens)?, number(depth)?);
            (tokens > 0 && sequences > 0).then_some(Test { kind, tokens, sequences, depth })
        };
        parsed()
            .ok_or_else(|| format!("`{text}` is no test; expected one as pp512, tg128, tg32@d4096 or tg32x8"))
    }
}

/// Each test once, by depth.
pub fn tests(named: &[Test], prompt: &Numbers, decode: &Numbers, depth: &Numbers) -> Vec<Test> {
    let mut all = named.to_vec();
    if named.is_empty() {
        for &depth in &depth.0 {
            let some = |list: &Numbers, kind| {
                let tokens = list.0.clone().into_iter().filter(|n| *n > 0);
                tokens.map(move |tokens| Test { kind, tokens, sequences: 1, depth })
            };
            all.extend(some(prompt, Kind::Prompt).chain(some(decode, Kind::Decode)));
        }
    }
    all.sort_by_key(|t| (t.depth, t.kind == Kind::Decode));
    let mut seen = std::collections::HashSet::new();
    all.retain(|t| seen.insert(*t));
    all
}

#[cfg(test)]
mod unit {
    use super::*;

    fn list(text: &str) -> Vec<usize> {
        text.parse::<Numbers>().unwrap().0
    }

    #[test]
    fn lists_are_read_as_llama_bench_reads_them() {
        assert_eq!(list("512"), [512]);
        assert_eq!(list("128, 512"), [128, 512]);
        assert_eq!(list("1-4"), [1, 2, 3, 4]);
        assert_eq!(list("64-200+64,7"), [64, 128, 192, 7]);
        assert_eq!(list("1-16*2"), [1, 2, 4, 8, 16]);
        assert_eq!(list("5-5"), [5]);
        for bad in ["", "x", "-5", "1,", "4-2", "1-8*1", "0-8*2", "1-9+0", "1-2000", "3000000000", "1.5"] {
            assert!(bad.parse::<Numbers>().is_err(), "{bad}");
        }
    }

    #[test]
    fn tests_have_names() {
        for (text, shown) in [
            ("pp512", "pp512"),
            ("tg32@d4096", "tg32 @ d4096"),
            ("tg1x8 @ d7", "tg1x8 @ d7"),
            ("pp5@d0", "pp5"),
        ] {
            assert_eq!(text.parse::<Test>().unwrap().to_string(), shown);
        }
        for bad in [
            "",
            "pp",
            "pp0",
            "xx5",
            "tg5@5",
            "tg5@d",
            "tg-5",
            "pp5000000000",
            "pp512+tg128",
            "pp5x2",
            "tg5x0",
            "tg5x",
        ] {
            assert!(bad.parse::<Test>().unwrap_err().contains("tg32@d4096"), "{bad}");
        }
    }

    #[test]
    fn each_test_runs_once_by_depth() {
        let of = |p: &str, n: &str, d: &str| {
            let read = |t: &str| t.parse().unwrap();
            let tests = tests(&[], &read(p), &read(n), &read(d));
            tests.iter().map(Test::to_string).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(of("512", "128", "0"), "pp512, tg128");
        assert_eq!(of("0", "32,32", "64,0"), "tg32, tg32 @ d64");
        assert_eq!(of("1,2", "3", "5,0"), "pp1, pp2, tg3, pp1 @ d5, pp2 @ d5, tg3 @ d5");
        assert_eq!(of("0", "0", "5"), "");
        let named: Vec<Test> = ["tg2@d9", "tg1", "pp4"].iter().map(|t| t.parse().unwrap()).collect();
        let one = Numbers(vec![1]);
        let shown: Vec<String> = tests(&named, &one, &one, &one).iter().map(Test::to_string).collect();
        assert_eq!(shown, ["pp4", "tg1", "tg2 @ d9"]);
    }
}
