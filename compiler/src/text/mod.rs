//! Programs as people read and write them: the text that a level's `Display` prints in, the same program out.

mod graph;
pub mod linear;

pub use graph::expr;

/// Says where a text stopped making sense.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: expected {expected}, found {found:?}")]
pub struct ParseError {
    /// Counted from 1.
    pub line: usize,
    pub expected: String,
    /// The beginning of what stands there instead; empty at the end of the line.
    pub found: String,
}

/// The unread rest of one line. Blanks before a token do not matter.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Cursor<'a> {
    fn fail<T>(&self, expected: impl Into<String>) -> Result<T, ParseError> {
        let found = self.rest.trim_start().chars().take(24).collect();
        Err(ParseError { line: self.line, expected: expected.into(), found })
    }

    fn eat(&mut self, token: &str) -> bool {
        match self.rest.trim_start().strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn want(&mut self, token: &str) -> Result<(), ParseError> {
        if self.eat(token) { Ok(()) } else { self.fail(format!("`{token}`")) }
    }

    /// The longest token of characters that `belongs` accepts, converted; nothing is consumed if that fails.
    fn token<T>(
        &mut self,
        expected: &str,
        belongs: impl Fn(char) -> bool,
        convert: impl FnOnce(&'a str) -> Option<T>,
    ) -> Result<T, ParseError> {
        let text = self.rest.trim_start();
        let (token, rest) = text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()));
        match convert(token).filter(|_| !token.is_empty()) {
            Some(value) => {
                self.rest = rest;
                Ok(value)
            }
            None => self.fail(expected),
        }
    }

    fn word(&mut self, expected: &str) -> Result<&'a str, ParseError> {
        self.token(expected, |c| !c.is_whitespace(), Some)
    }

    fn number<T: std::str::FromStr>(&mut self) -> Result<T, ParseError> {
        self.token("a number", |c| c == '-' || c.is_ascii_digit(), |t| t.parse().ok())
    }

    fn end(&self) -> Result<(), ParseError> {
        if self.rest.trim().is_empty() { Ok(()) } else { self.fail("the end of the line") }
    }
}
