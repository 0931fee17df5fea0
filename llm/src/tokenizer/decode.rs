//! Token ids in, text out. [`Decoder`] takes one id at a time and never gives out part of a UTF-8 character: it keeps
//! incomplete bytes until the next id, or until [`Decoder::finish`] turns them into U+FFFD.

use super::{Kind, Tokenizer, spm};

/// The character that stands for a byte in the texts of byte-level vocabularies: printable bytes stand for themselves,
/// the others count up from U+0100.
pub fn char_of_byte(byte: u8) -> char {
    match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        0..=0x20 => shifted(byte),
        0x7f..=0xa0 => shifted(byte - 0x7f + 0x21),
        0xad => shifted(0x43),
    }
}

fn shifted(n: u8) -> char {
    char::from_u32(0x100 + u32::from(n)).expect("below the surrogates")
}

fn byte_of_char(c: char) -> Option<u8> {
    let byte = match c as u32 {
        n @ 0x100..=0x120 => n - 0x100,
        n @ 0x121..=0x142 => n - 0x121 + 0x7f,
        0x143 => 0xad,
        n => n,
    };
    u8::try_from(byte).ok().filter(|b| char_of_byte(*b) == c)
}

/// The bytes that a token of a byte-level vocabulary stands for.
pub fn byte_level_piece(kind: Kind, text: &str, out: &mut Vec<u8>) {
    match kind {
        Kind::Normal => {
            for c in text.chars() {
                match byte_of_char(c) {
                    Some(byte) => out.push(byte),
                    None => out.extend(c.encode_utf8(&mut [0; 4]).bytes()),
                }
            }
        }
        Kind::Byte => out.extend(named_byte(text)),
        Kind::Unused => {}
        Kind::Unknown | Kind::Control | Kind::UserDefined => out.extend(text.bytes()),
    }
}

/// The bytes that a SentencePiece token stands for.
pub fn spm_piece(kind: Kind, text: &str, out: &mut Vec<u8>) {
    match kind {
        Kind::Normal => out.extend(text.replace(spm::SPACE, " ").bytes()),
        Kind::Byte => out.extend(named_byte(text)),
        Kind::Unused => {}
        Kind::Unknown | Kind::Control | Kind::UserDefined => out.extend(text.bytes()),
    }
}

/// The byte of `<0x0A>`.
fn named_byte(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(hex, 16).ok()
}

/// Ids to text, piece by piece.
pub struct Decoder<'a> {
    tokenizer: &'a Tokenizer,
    control: bool,
    /// The next piece loses one leading space: the one that encoding put before the text.
    strip: bool,
    /// The beginning of a character.
    held: Vec<u8>,
}

impl<'a> Decoder<'a> {
    /// With `control` the texts of control tokens are part of the output.
    pub fn new(tokenizer: &'a Tokenizer, control: bool) -> Decoder<'a> {
        Decoder { tokenizer, control, strip: tokenizer.space_prefix(), held: Vec::new() }
    }

    /// The text that `id` completes; empty while a character is incomplete.
    pub fn push(&mut self, id: u32) -> String {
        if self.tokenizer.is_control(id) && !self.control {
            return String::new();
        }
        let mut piece = self.tokenizer.piece(id);
        if std::mem::take(&mut self.strip) {
            piece = piece.strip_prefix(b" ").unwrap_or(piece);
        }
        self.held.extend(piece);
        let mut text = String::new();
        let mut rest: &[u8] = &self.held;
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(e) => {
                    let (valid, bad) = rest.split_at(e.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(len) = e.error_len() else {
                        rest = bad;
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &bad[len..];
                }
            }
        }
        self.held = rest.to_vec();
        text
    }

    /// What is left: U+FFFD for a character that never came to its end.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.held).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_characters() {
        let all: std::collections::BTreeSet<char> = (0..=255).map(char_of_byte).collect();
        assert_eq!(all.len(), 256);
        assert_eq!((char_of_byte(b' '), char_of_byte(b'\n'), char_of_byte(0xad)), ('Ġ', 'Ċ', 'Ń'));
        assert!((0..=255).all(|b| byte_of_char(char_of_byte(b)) == Some(b)));
        assert_eq!((byte_of_char(' '), byte_of_char('\u{ad}'), byte_of_char('我')), (None, None, None));
    }

    #[test]
    fn named_bytes() {
        assert_eq!((named_byte("<0x0A>"), named_byte("<0x>"), named_byte("a")), (Some(10), None, None));
    }
}
