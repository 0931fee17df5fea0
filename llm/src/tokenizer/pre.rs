//! Text in, words out: the splits that byte-level BPE may not merge across. The names and what they stand for are those
//! of `tokenizer.ggml.pre`. Every stage splits each piece that the stage before left, and no character is ever lost.

use unicode_general_category::{GeneralCategory as G, get_general_category};

/// One kind of pre-tokenizer.
#[derive(Clone, Copy)]
pub struct Pre {
    pub name: &'static str,
    /// A word that is a token is that token, whatever the merges say.
    pub whole_words: bool,
    stages: &'static [Stage],
}

/// What a stage cuts out of a piece; what lies between two cuts is a piece as well.
#[derive(Clone, Copy)]
enum Stage {
    /// `C`
    Each(Class),
    /// `C+`, or `C+|D+|...`
    Runs(&'static [Class]),
    /// `\s?C+`
    Spaced(Class),
    /// `\s+$`
    TrailingSpace,
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,D}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    Gpt4 { digits: usize },
    /// `[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|` and the rest as above
    Marked,
}

type Class = fn(char) -> bool;

const LLAMA3: Pre = Pre { name: "llama-bpe", whole_words: true, stages: &[Stage::Gpt4 { digits: 3 }] };
const KNOWN: &[Pre] = &[
    Pre { name: "glm4", whole_words: false, stages: &[Stage::Gpt4 { digits: 3 }] },
    Pre { name: "chatglm-bpe", whole_words: false, stages: &[Stage::Gpt4 { digits: 3 }] },
    LLAMA3,
    Pre { name: "llama3", ..LLAMA3 },
    Pre { name: "llama-v3", ..LLAMA3 },
    Pre { name: "qwen2", whole_words: false, stages: &[Stage::Gpt4 { digits: 1 }] },
    Pre { name: "deepseek-r1-qwen", whole_words: false, stages: &[Stage::Gpt4 { digits: 1 }] },
    Pre { name: "gpt-2", whole_words: false, stages: &[Stage::Gpt2] },
    Pre { name: "smollm", whole_words: false, stages: &[Stage::Each(is_number), Stage::Gpt2] },
    Pre {
        name: "deepseek-llm",
        whole_words: false,
        stages: &[
            Stage::Each(is_newline),
            Stage::Spaced(is_cased),
            Stage::Spaced(is_wide_punctuation),
            Stage::TrailingSpace,
            Stage::Runs(&[is_asian]),
            Stage::Runs(&[is_number]),
        ],
    },
    Pre {
        name: "deepseek-coder",
        whole_words: false,
        stages: &[
            Stage::Each(is_newline),
            Stage::Spaced(is_letter),
            Stage::Spaced(is_punctuation),
            Stage::Runs(&[is_asian]),
            Stage::Each(is_number),
        ],
    },
    Pre {
        name: "youtu",
        whole_words: true,
        stages: &[Stage::Runs(&[is_hangul, is_cjk_punctuation, is_bopomofo, is_han_or_kana]), Stage::Marked],
    },
];

impl Pre {
    pub fn named(name: &str) -> Option<Pre> {
        KNOWN.iter().find(|p| p.name == name).copied()
    }

    pub fn names() -> String {
        KNOWN.iter().map(|p| p.name).collect::<Vec<_>>().join(", ")
    }

    /// The words of `text` in order; together they are `text`.
    pub fn split<'a>(&self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let chars: Vec<char> = text.chars().collect();
        let mut ends = vec![chars.len()];
        for stage in self.stages {
            let mut next = Vec::with_capacity(ends.len());
            let mut start = 0;
            for end in ends {
                stage.cut(Piece { chars: &chars[start..end], base: start, ends: &mut next });
                start = end;
            }
            ends = next;
        }
        let (mut start, mut at) = (0, 0);
        ends.into_iter().map(move |end| {
            let bytes: usize = chars[start..end].iter().map(|c| c.len_utf8()).sum();
            let word = &text[at..at + bytes];
            (start, at) = (end, at + bytes);
            word
        })
    }
}

/// A piece that is being cut; `ends` are positions in the whole text.
struct Piece<'a> {
    chars: &'a [char],
    base: usize,
    ends: &'a mut Vec<usize>,
}

impl Piece<'_> {
    fn is(&self, at: usize, class: Class) -> bool {
        self.chars.get(at).is_some_and(|c| class(*c))
    }

    /// Where the run of `class` that starts at `at` ends.
    fn run(&self, at: usize, class: Class) -> usize {
        at + self.chars[at.min(self.chars.len())..].iter().take_while(|c| class(**c)).count()
    }

    fn end(&mut self, at: usize) {
        let end = self.base + at;
        if at > 0 && self.ends.last() != Some(&end) {
            self.ends.push(end);
        }
    }

    /// The end of an English contraction that starts at `at`, with any case or only in lower case.
    fn contraction(&self, at: usize, any_case: bool) -> Option<usize> {
        let letter = |i: usize| {
            let c = *self.chars.get(at + i)?;
            Some(if any_case { c.to_ascii_lowercase() } else { c })
        };
        if self.chars.get(at) != Some(&'\'') {
            return None;
        }
        match (letter(1)?, letter(2)) {
            ('s' | 't' | 'm' | 'd', _) => Some(at + 2),
            ('r' | 'v', Some('e')) | ('l', Some('l')) => Some(at + 3),
            _ => None,
        }
    }

    /// `\s*[\r\n]+|\s+(?!\S)|\s+`, the first of them only where `newlines`.
    fn space(&self, at: usize, newlines: bool) -> usize {
        let end = self.run(at, char::is_whitespace);
        let newline = self.chars[at..end].iter().rposition(|c| is_newline(*c));
        match newline {
            Some(last) if newlines => at + last + 1,
            _ if end > at + 1 && end < self.chars.len() => end - 1,
            _ => end.max(at + 1),
        }
    }
}

impl Stage {
    fn cut(&self, mut piece: Piece) {
        let mut at = 0;
        while at < piece.chars.len() {
            let found = match self {
                Stage::Each(class) => piece.is(at, *class).then_some(at + 1),
                Stage::Runs(classes) => classes.iter().find(|c| piece.is(at, **c)).map(|c| piece.run(at, *c)),
                Stage::Spaced(class) => spaced(&piece, at, *class),
                Stage::TrailingSpace => {
                    let end = piece.run(at, char::is_whitespace);
                    if end > at && end < piece.chars.len() {
                        at = end;
                        continue;
                    }
                    (end > at).then_some(end)
                }
                Stage::Gpt2 => Some(gpt2(&piece, at)),
                Stage::Gpt4 { digits } => Some(gpt4(&piece, at, *digits)),
                Stage::Marked => Some(marked(&piece, at)),
            };
            match found {
                Some(end) => {
                    piece.end(at);
                    piece.end(end);
                    at = end;
                }
                None => at += 1,
            }
        }
        piece.end(at);
    }
}

fn spaced(p: &Piece, at: usize, class: Class) -> Option<usize> {
    let space = p.is(at, char::is_whitespace) && p.is(at + 1, class);
    (space || p.is(at, class)).then(|| p.run(at + space as usize, class))
}

fn gpt2(p: &Piece, at: usize) -> usize {
    if let Some(end) = p.contraction(at, false) {
        return end;
    }
    let word = at + (p.chars[at] == ' ') as usize;
    for class in [is_letter, is_number, is_other] {
        if p.is(word, class) {
            return p.run(word, class);
        }
    }
    p.space(at, false)
}

fn gpt4(p: &Piece, at: usize, digits: usize) -> usize {
    if let Some(end) = p.contraction(at, true) {
        return end;
    }
    let c = p.chars[at];
    if is_number(c) {
        return p.run(at, is_number).min(at + digits);
    }
    if is_letter(c) || (!is_newline(c) && p.is(at + 1, is_letter)) {
        return p.run(at + 1, is_letter);
    }
    other(p, at, is_newline)
}

fn marked(p: &Piece, at: usize) -> usize {
    let c = p.chars[at];
    if is_number(c) {
        return at + 1;
    }
    let word = if is_letter(c) || is_newline(c) || !p.is(at + 1, is_letter_or_mark) { at } else { at + 1 };
    if p.is(word, is_letter_or_mark) {
        let end = p.run(word, is_letter_or_mark);
        return p.contraction(end, true).unwrap_or(end);
    }
    other(p, at, |c| is_newline(c) || c == '/')
}

/// ` ?[^\s\p{L}\p{N}]+T*`, else white space.
fn other(p: &Piece, at: usize, tail: Class) -> usize {
    let word = at + (p.chars[at] == ' ') as usize;
    if p.is(word, is_other) {
        return p.run(p.run(word, is_other), tail);
    }
    p.space(at, true)
}

fn is_newline(c: char) -> bool {
    c == '\r' || c == '\n'
}

fn is_letter(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphabetic();
    }
    matches!(
        get_general_category(c),
        G::UppercaseLetter | G::LowercaseLetter | G::TitlecaseLetter | G::ModifierLetter | G::OtherLetter
    )
}

fn is_number(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_digit();
    }
    matches!(get_general_category(c), G::DecimalNumber | G::LetterNumber | G::OtherNumber)
}

fn is_letter_or_mark(c: char) -> bool {
    is_letter(c) || matches!(get_general_category(c), G::NonspacingMark | G::SpacingMark | G::EnclosingMark)
}

fn is_punctuation(c: char) -> bool {
    matches!(
        get_general_category(c),
        G::ConnectorPunctuation
            | G::DashPunctuation
            | G::OpenPunctuation
            | G::ClosePunctuation
            | G::InitialPunctuation
            | G::FinalPunctuation
            | G::OtherPunctuation
    )
}

fn is_other(c: char) -> bool {
    !(c.is_whitespace() || is_letter(c) || is_number(c))
}

fn is_wide_punctuation(c: char) -> bool {
    matches!(c, '!'..='/' | ':'..='~' | '\u{ff01}'..='\u{ff0f}' | '\u{ff1a}'..='\u{ff5e}' | '\u{2018}'..='\u{201f}' | '\u{3001}' | '\u{3002}')
}

/// Most of the scripts from U+0800 up to the Han ideographs, and Hangul; white space in between is not meant.
fn is_asian(c: char) -> bool {
    matches!(c, '\u{800}'..='\u{9fa5}' | '\u{ac00}'..='\u{d7ff}') && !c.is_whitespace()
}

fn is_hangul(c: char) -> bool {
    matches!(c, '\u{ac00}'..='\u{d7a3}' | '\u{3131}'..='\u{318e}')
}

fn is_cjk_punctuation(c: char) -> bool {
    matches!(
        c,
        '\u{ff01}'
            | '\u{ff0c}'
            | '\u{ff1a}'
            | '\u{ff1b}'
            | '\u{2014}'
            | '\u{2018}'
            | '\u{2019}'
            | '\u{201c}'
            | '\u{201d}'
            | '\u{2026}'
    ) || matches!(c, '\u{3001}'..='\u{303f}' | '\u{fe30}'..='\u{fe4f}')
}

fn is_bopomofo(c: char) -> bool {
    matches!(c, '\u{3105}'..='\u{312f}')
}

fn is_han_or_kana(c: char) -> bool {
    matches!(c, '\u{4e00}'..='\u{9fa5}' | '\u{3040}'..='\u{30ff}')
}

/// The letters of scripts with upper and lower case, as DeepSeek's vocabularies list them.
fn is_cased(c: char) -> bool {
    let at = CASED.partition_point(|(first, _)| *first <= c as u32);
    at > 0 && c as u32 <= CASED[at - 1].1
}

#[rustfmt::skip]
const CASED: &[(u32, u32)] = &[
    (0x41, 0x5a), (0x61, 0x7a), (0xb5, 0xb5), (0xc0, 0xd6), (0xd8, 0xf6), (0xf8, 0x1ba), (0x1bc, 0x1bf),
    (0x1c4, 0x293), (0x295, 0x2af), (0x370, 0x373), (0x376, 0x377), (0x37b, 0x37d), (0x37f, 0x37f), (0x386, 0x386),
    (0x388, 0x38a), (0x38c, 0x38c), (0x38e, 0x3a1), (0x3a3, 0x3f5), (0x3f7, 0x481), (0x48a, 0x52f), (0x531, 0x556),
    (0x10a0, 0x10c5), (0x13a0, 0x13f5), (0x13f8, 0x13fd), (0x1c90, 0x1cba), (0x1cbd, 0x1cbf), (0x1d00, 0x1d2b),
    (0x1d6b, 0x1d77), (0x1d79, 0x1d9a), (0x1e00, 0x1f15), (0x1f18, 0x1f1d), (0x1f20, 0x1f45), (0x1f48, 0x1f4d),
    (0x1f50, 0x1f57), (0x1f59, 0x1f59), (0x1f5b, 0x1f5b), (0x1f5d, 0x1f5d), (0x1f5f, 0x1f7d), (0x1f80, 0x1fb4),
    (0x1fb6, 0x1fbc), (0x1fbe, 0x1fbe), (0x1fc2, 0x1fc4), (0x1fc6, 0x1fcc), (0x1fd0, 0x1fd3), (0x1fd6, 0x1fdb),
    (0x1fe0, 0x1fec), (0x1ff2, 0x1ff4), (0x1ff6, 0x1ffc), (0x2102, 0x2102), (0x2107, 0x2107), (0x210a, 0x2113),
    (0x2115, 0x2115), (0x2119, 0x211d), (0x2124, 0x2124), (0x2126, 0x2126), (0x2128, 0x2128), (0x212a, 0x212d),
    (0x212f, 0x2134), (0x2139, 0x2139), (0x213c, 0x213f), (0x2145, 0x2149), (0x214e, 0x214e), (0x2183, 0x2184),
    (0x2c00, 0x2c7b), (0x2c7e, 0x2ce4), (0x2ceb, 0x2cee), (0x2cf2, 0x2cf3), (0xa640, 0xa66d), (0xa680, 0xa69b),
    (0xa722, 0xa76f), (0xa771, 0xa787), (0xa78b, 0xa78e), (0xab70, 0xabbf), (0xfb00, 0xfb06), (0xfb13, 0xfb17),
    (0xff21, 0xff3a), (0xff41, 0xff5a), (0x10400, 0x1044f), (0x104b0, 0x104d3), (0x104d8, 0x104fb),
    (0x10c80, 0x10cb2), (0x10cc0, 0x10cf2), (0x118a0, 0x118df), (0x1e900, 0x1e943),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pre: &str, text: &str, words: &[&str]) {
        let got: Vec<&str> = Pre::named(pre).unwrap().split(text).collect();
        assert_eq!(got, words, "{pre} {text:?}");
    }

    #[test]
    fn words() {
        check("gpt-2", "I'll  go\n\n 12ab!?", &["I", "'ll", " ", " go", "\n\n", " 12", "ab", "!?"]);
        check("gpt-2", "I'LL", &["I", "'", "LL"]);
        check(
            "glm4",
            "I'LL  go\r\n x 1234ab!?\n",
            &["I", "'LL", " ", " go", "\r\n", " x", " ", "123", "4", "ab", "!?\n"],
        );
        check("qwen2", "a12  ", &["a", "1", "2", "  "]);
        check("smollm", "a 12", &["a", " ", "1", "2"]);
        check("deepseek-llm", "Äpfel \u{3000}x 12 ", &["Ä", "pfel", " ", "\u{3000}x", " ", "12", " "]);
        check("deepseek-coder", "a <b\n我好x", &["a", " <", "b", "\n", "我好", "x"]);
        check("youtu", "it's 12/\n、我 é", &["it's", " ", "1", "2", "/\n", "、", "我", " é"]);
        check("youtu", "", &[]);
    }

    #[test]
    fn words_make_up_the_text() {
        let text = "a\u{301}\u{3000} \u{85}１２३ ½'s\t\r\n x\u{10ffff}\u{0}é 我们!!\n/ ";
        for pre in KNOWN {
            assert_eq!(pre.split(text).collect::<String>(), text, "{}", pre.name);
            assert!(pre.split(text).all(|w| !w.is_empty()), "{}", pre.name);
        }
    }
}
