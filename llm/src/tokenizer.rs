//! The vocabulary of a GGUF file: text to token ids and back. No beginning- or end-of-text token is ever added here; the
//! file's wish is in [`Tokenizer::add_bos`] and [`Tokenizer::add_eos`]. Ids agree with llama.cpp's for the same file.

mod bpe;
mod decode;
mod index;
mod pre;
mod spm;

pub use decode::Decoder;

use crate::gguf::{self, Gguf};
use bpe::Bpe;
use index::Index;
use pre::Pre;
use spm::Spm;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    File(#[from] gguf::Error),
    #[error(
        "{file}: `tokenizer.ggml.model` is {model:?}; the known ones are gpt2 (byte-level BPE) and llama (SentencePiece)"
    )]
    Model { file: String, model: String },
    #[error("{file}: `tokenizer.ggml.pre` is {pre:?}; the known ones are {known}")]
    Pre { file: String, pre: String, known: String },
    #[error(
        "{file}: `{key}` has {got} entries; expected {expected}, one for each of `tokenizer.ggml.tokens`"
    )]
    Length { file: String, key: &'static str, got: usize, expected: usize },
    #[error("{file}: `{key}` is {id}; the vocabulary has {size} tokens")]
    Id { file: String, key: String, id: i64, size: usize },
    #[error(
        "`tokenizer.ggml.merges` entry {index} is {merge:?}; expected two texts with a space between them"
    )]
    Merge { index: usize, merge: String },
}

/// What a token is, by `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl Kind {
    fn of(number: i64) -> Kind {
        match number {
            2 => Kind::Unknown,
            3 => Kind::Control,
            4 => Kind::UserDefined,
            5 => Kind::Unused,
            6 => Kind::Byte,
            _ => Kind::Normal,
        }
    }

    /// Is its text looked for in every text, or in those where control tokens count?
    fn is_special(self, control: bool) -> bool {
        self == Kind::UserDefined || (control && matches!(self, Kind::Control | Kind::Unknown))
    }
}

enum Model {
    Bpe(Bpe, Pre),
    Spm(Spm),
}

pub struct Tokenizer {
    model: Model,
    index: Index,
    kinds: Vec<Kind>,
    /// All pieces one after another, and where each ends.
    pieces: Vec<u8>,
    piece_ends: Vec<usize>,
    special: Special,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    space_prefix: bool,
    ends: Vec<u32>,
}

/// Tokens that end a turn or a text, whatever the metadata says.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
];
/// Fill-in-the-middle tokens that end an answer: padding, a new repository, a new file.
const FIM_ENDS: &[(&str, &[&str])] = &[
    ("tokenizer.ggml.fim_pad_token_id", &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"]),
    (
        "tokenizer.ggml.fim_rep_token_id",
        &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
    ),
    ("tokenizer.ggml.fim_sep_token_id", &["<|file_sep|>"]),
];
/// Fill-in-the-middle tokens that are control tokens even where a file calls them something else.
const FIM_PARTS: &[(&str, &[&str])] = &[
    (
        "tokenizer.ggml.fim_pre_token_id",
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
        ],
    ),
    (
        "tokenizer.ggml.fim_suf_token_id",
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
        ],
    ),
    (
        "tokenizer.ggml.fim_mid_token_id",
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
        ],
    ),
];

impl Tokenizer {
    pub fn from_gguf(file: &Gguf) -> Result<Tokenizer, Error> {
        let tokens = file.strings("tokenizer.ggml.tokens")?;
        let name = || file.name().to_string();
        let checked = |key: &'static str, got: usize| match got == tokens.len() {
            true => Ok(()),
            false => Err(Error::Length { file: name(), key, got, expected: tokens.len() }),
        };
        let mut kinds = match file.opt_ints("tokenizer.ggml.token_type")? {
            Some(numbers) => numbers.into_iter().map(Kind::of).collect(),
            None => vec![Kind::Normal; tokens.len()],
        };
        checked("tokenizer.ggml.token_type", kinds.len())?;
        let index = Index::new(&tokens);
        let id = |key: &str| -> Result<Option<u32>, Error> {
            match file.opt_int(key)? {
                Some(id) if id < 0 || id >= tokens.len() as i64 => {
                    Err(Error::Id { file: name(), key: key.into(), id, size: tokens.len() })
                }
                id => Ok(id.map(|id| id as u32)),
            }
        };
        let mut bos = id("tokenizer.ggml.bos_token_id")?;
        let mut eos = id("tokenizer.ggml.eos_token_id")?;
        let ends = ends(&index, &mut kinds, &id, eos)?;

        let mut pieces = Vec::with_capacity(tokens.iter().map(|t| t.len()).sum());
        let mut piece_ends = Vec::with_capacity(tokens.len());
        let mut space_prefix = false;
        let (model, piece): (Model, fn(Kind, &str, &mut Vec<u8>)) = match file.text("tokenizer.ggml.model")? {
            "gpt2" => {
                let pre = file.text("tokenizer.ggml.pre")?;
                let pre = Pre::named(pre).ok_or_else(|| Error::Pre {
                    file: name(),
                    pre: pre.into(),
                    known: Pre::names(),
                })?;
                let merges = file.strings("tokenizer.ggml.merges")?;
                (Model::Bpe(Bpe::new(&index, tokens.len() as u32, &merges)?, pre), decode::byte_level_piece)
            }
            "llama" => {
                let scores = file.opt_floats("tokenizer.ggml.scores")?.unwrap_or(vec![0.0; tokens.len()]);
                checked("tokenizer.ggml.scores", scores.len())?;
                space_prefix = file.opt_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
                bos = bos.or(index.get("<s>"));
                eos = eos.or(index.get("</s>"));
                let unknown = id("tokenizer.ggml.unknown_token_id")?;
                (Model::Spm(Spm::new(&index, scores, unknown)), decode::spm_piece)
            }
            other => return Err(Error::Model { file: name(), model: other.into() }),
        };
        for (text, kind) in tokens.iter().zip(&kinds) {
            piece(*kind, text, &mut pieces);
            piece_ends.push(pieces.len());
        }
        let by_default = matches!(model, Model::Spm(_));
        Ok(Tokenizer {
            special: Special::new(&tokens, &kinds),
            add_bos: file.opt_bool("tokenizer.ggml.add_bos_token")?.unwrap_or(by_default) && bos.is_some(),
            add_eos: file.opt_bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false) && eos.is_some(),
            model,
            index,
            kinds,
            pieces,
            piece_ends,
            bos,
            eos,
            space_prefix,
            ends,
        })
    }

    /// The ids of `text`. The texts of user-defined tokens become those tokens; with `parse_special` the texts of
    /// control tokens do too.
    pub fn encode(&self, text: &str, parse_special: bool) -> Vec<u32> {
        let mut out = Vec::new();
        let mut work = bpe::Work::default();
        let mut after_special = true;
        let special =
            |text: &str| self.token_id(text).filter(|id| self.kinds[*id as usize].is_special(parse_special));
        for part in self.special.split(text, special) {
            match (part, &self.model) {
                (Part::Token(id), _) => out.push(id),
                (Part::Text(text), Model::Bpe(bpe, pre)) => {
                    for word in pre.split(text) {
                        match self.whole_word(word, *pre) {
                            Some(id) => out.push(id),
                            None => bpe.encode(word, &mut work, &mut out),
                        }
                    }
                }
                (Part::Text(text), Model::Spm(spm)) => {
                    let space = if self.space_prefix && after_special { spm::SPACE } else { "" };
                    spm.encode(&self.index, &(space.to_string() + &text.replace(' ', spm::SPACE)), &mut out);
                }
            }
            after_special = matches!(part, Part::Token(_));
        }
        out
    }

    fn whole_word(&self, word: &str, pre: Pre) -> Option<u32> {
        if !pre.whole_words {
            return None;
        }
        let text: String = word.bytes().map(decode::char_of_byte).collect();
        self.token_id(&text)
    }

    /// The text of `ids`, control tokens included; U+FFFD for bytes that are no UTF-8.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut decoder = Decoder::new(self, true);
        let mut text: String = ids.iter().map(|id| decoder.push(*id)).collect();
        text.push_str(&decoder.finish());
        text
    }

    /// The bytes of one token; none for an id outside the vocabulary.
    pub fn piece(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(end) = self.piece_ends.get(id) else { return &[] };
        let start = id.checked_sub(1).map_or(0, |before| self.piece_ends[before]);
        &self.pieces[start..*end]
    }

    /// A token that steers rather than says something; the unknown token as well.
    pub fn is_control(&self, id: u32) -> bool {
        matches!(self.kinds.get(id as usize), Some(Kind::Control | Kind::Unknown))
    }

    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.index.get(text)
    }

    pub fn vocab_size(&self) -> usize {
        self.kinds.len()
    }

    /// Does the file want [`Tokenizer::bos`] before every text?
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    pub fn add_eos(&self) -> bool {
        self.add_eos
    }

    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// All tokens after which an answer is over, in ascending order.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    fn space_prefix(&self) -> bool {
        self.space_prefix
    }
}

/// Collects the tokens that end an answer, from the metadata and by their texts, and makes control tokens of all that
/// are known by their texts.
fn ends(
    index: &Index,
    kinds: &mut [Kind],
    id: &dyn Fn(&str) -> Result<Option<u32>, Error>,
    eos: Option<u32>,
) -> Result<Vec<u32>, Error> {
    let mut ends: Vec<u32> = eos.into_iter().collect();
    for key in ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
        ends.extend(id(key)?);
    }
    let mut known: Vec<u32> = ENDS.iter().filter_map(|text| index.get(text)).collect();
    let has = |text: &str| index.get(text).filter(|id| known.contains(id));
    if let (Some(_), Some(_), Some(end)) = (has("<|return|>"), has("<|call|>"), has("<|end|>")) {
        known.retain(|id| *id != end);
    }
    ends.extend(&known);
    for (key, texts) in FIM_ENDS {
        let found: Vec<u32> = texts.iter().filter_map(|text| index.get(text)).take(1).collect();
        match id(key)? {
            Some(id) => ends.push(id),
            None => {
                known.extend(&found);
                ends.extend(&found);
            }
        }
    }
    for (key, texts) in FIM_PARTS {
        if id(key)?.is_none() {
            known.extend(texts.iter().filter_map(|text| index.get(text)));
        }
    }
    for id in known {
        kinds[id as usize] = Kind::Control;
    }
    ends.sort_unstable();
    ends.dedup();
    Ok(ends)
}

/// A stretch of text or a token that was written out in it.
#[derive(Clone, Copy)]
enum Part<'a> {
    Text(&'a str),
    Token(u32),
}

/// Finds the tokens that count before anything else in a text: how long they are, by their first byte.
struct Special {
    lengths: Vec<Vec<usize>>,
}

impl Special {
    fn new(texts: &[&str], kinds: &[Kind]) -> Special {
        let mut lengths = vec![Vec::new(); 256];
        for (text, kind) in texts.iter().zip(kinds) {
            if let (true, Some(first)) = (kind.is_special(true), text.bytes().next()) {
                lengths[first as usize].push(text.len());
            }
        }
        for lengths in &mut lengths {
            lengths.sort_unstable();
            lengths.dedup();
        }
        Special { lengths }
    }

    /// Longer tokens are found before shorter ones, wherever they stand in the text.
    fn split<'a>(&self, text: &'a str, token: impl Fn(&str) -> Option<u32>) -> Vec<Part<'a>> {
        let mut found: Vec<(usize, u32, usize)> = Vec::new();
        for (at, first) in text.bytes().enumerate() {
            for len in &self.lengths[first as usize] {
                if let Some(id) = text.get(at..at + len).and_then(&token) {
                    found.push((*len, id, at));
                }
            }
        }
        found.sort_unstable_by_key(|(len, id, at)| (std::cmp::Reverse(*len), *id, *at));
        let mut taken = vec![false; if found.is_empty() { 0 } else { text.len() }];
        found.retain(|(len, _, at)| {
            let free = !taken[*at..at + len].iter().any(|t| *t);
            if free {
                taken[*at..at + len].fill(true);
            }
            free
        });
        found.sort_unstable_by_key(|(_, _, at)| *at);
        let mut parts = Vec::with_capacity(2 * found.len() + 1);
        let mut start = 0;
        for (len, id, at) in found {
            if start < at {
                parts.push(Part::Text(&text[start..at]));
            }
            parts.push(Part::Token(id));
            start = at + len;
        }
        if start < text.len() {
            parts.push(Part::Text(&text[start..]));
        }
        parts
    }
}
