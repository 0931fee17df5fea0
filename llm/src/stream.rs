//! Text as it is generated. In: pieces of text, cut anywhere. Out: pieces of reasoning and of the answer, up to a stop
//! string.
//!
//! What comes out depends on the whole text and not on where it was cut: whatever may still turn out to be the
//! beginning of a stop string or of a tag is held back.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    pub reasoning: bool,
    pub text: String,
}

pub struct Splitter {
    stops: Vec<String>,
    part: Part,
    held: String,
    /// The stop string that ended the text.
    stopped: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Only white space so far: a tag may open the reasoning.
    Start,
    Reasoning {
        begun: bool,
    },
    /// Behind the closing tag: line ends are left out.
    Gap,
    Answer,
}

impl Splitter {
    /// `reasoning` says whether the prompt has opened a thought; None: tags are text.
    pub fn new(stops: &[String], reasoning: Option<bool>) -> Splitter {
        let part = match reasoning {
            None => Part::Answer,
            Some(false) => Part::Start,
            Some(true) => Part::Reasoning { begun: false },
        };
        let stops = stops.iter().filter(|s| !s.is_empty()).cloned().collect();
        Splitter { stops, part, held: String::new(), stopped: None }
    }

    pub fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// Nothing comes out after a stop string.
    pub fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        if self.stopped.is_some() {
            return;
        }
        self.held.push_str(text);
        while let Some((at, pattern)) = self.first_match() {
            let behind = self.held.split_off(at + pattern.len());
            self.held.truncate(at);
            let before = std::mem::replace(&mut self.held, behind);
            self.emit(&before, out);
            if self.stops.contains(&pattern) {
                self.stopped = Some(pattern);
                self.held.clear();
                return;
            }
            self.part = if pattern == OPEN { Part::Reasoning { begun: false } } else { Part::Gap };
        }
        let keep = self.open_end();
        let rest = self.held.split_off(self.held.len() - keep);
        let sure = std::mem::replace(&mut self.held, rest);
        self.emit(&sure, out);
    }

    /// The text is over: what was held back is text.
    pub fn finish(&mut self, out: &mut Vec<Piece>) {
        let rest = std::mem::take(&mut self.held);
        self.emit(&rest, out);
    }

    /// The tag that has a meaning now.
    fn tag(&self) -> Option<&'static str> {
        match self.part {
            Part::Start => Some(OPEN),
            Part::Reasoning { .. } => Some(CLOSE),
            Part::Gap | Part::Answer => None,
        }
    }

    fn patterns(&self) -> impl Iterator<Item = &str> {
        self.stops.iter().map(String::as_str).chain(self.tag())
    }

    /// The pattern that is complete first; of those that end together the longest, and a stop string before a tag.
    fn first_match(&self) -> Option<(usize, String)> {
        let found = self.patterns().filter_map(|p| self.find(p).map(|at| (at, p)));
        found.min_by_key(|(at, p)| (at + p.len(), *at)).map(|(at, p)| (at, p.to_string()))
    }

    fn find(&self, pattern: &str) -> Option<usize> {
        let at = self.held.find(pattern)?;
        let only_white = self.held[..at].chars().all(char::is_whitespace);
        (self.part != Part::Start || pattern != OPEN || only_white).then_some(at)
    }

    /// How many bytes at the end may be the beginning of a pattern.
    fn open_end(&self) -> usize {
        let longest_open = |p: &str| {
            let most = p.len().min(self.held.len() + 1) - 1;
            (1..=most).rev().find(|&n| self.held.as_bytes().ends_with(&p.as_bytes()[..n]))
        };
        self.patterns().filter_map(longest_open).max().unwrap_or(0)
    }

    fn emit(&mut self, text: &str, out: &mut Vec<Piece>) {
        let text = match self.part {
            Part::Reasoning { begun: false } | Part::Gap => text.trim_start_matches(['\n', '\r']),
            _ => text,
        };
        if text.is_empty() {
            return;
        }
        match &mut self.part {
            Part::Reasoning { begun } => *begun = true,
            Part::Start if text.chars().all(char::is_whitespace) => {}
            part => *part = Part::Answer,
        }
        let reasoning = matches!(self.part, Part::Reasoning { .. });
        match out.last_mut() {
            Some(last) if last.reasoning == reasoning => last.text.push_str(text),
            _ => out.push(Piece { reasoning, text: text.into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use compiler::rng::Rng;

    /// The text whole, by characters and in random pieces; reasoning in brackets.
    fn check(text: &str, stops: &[&str], reasoning: Option<bool>, expected: &str, stopped: Option<&str>) {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let mut rng = Rng::new(text.len() as u64);
        for round in 0..30 {
            let mut splitter = Splitter::new(&stops, reasoning);
            let (mut out, mut piece) = (vec![], String::new());
            for c in text.chars() {
                piece.push(c);
                if round == 1 || round > 1 && rng.one_in(3) {
                    splitter.push(&piece, &mut out);
                    piece.clear();
                }
            }
            splitter.push(&piece, &mut out);
            splitter.finish(&mut out);
            let shown: String = out
                .iter()
                .map(|p| if p.reasoning { format!("[{}]", p.text) } else { p.text.clone() })
                .collect();
            assert_eq!(shown, expected, "{text:?} in round {round}");
            assert_eq!(splitter.stopped(), stopped, "{text:?} in round {round}");
        }
    }

    #[test]
    fn stop_strings_end_the_text() {
        check("one two three", &["two"], None, "one ", Some("two"));
        check("one two three", &["four", "thr"], None, "one two ", Some("thr"));
        check("one tw", &["two"], None, "one tw", None);
        check("aaab", &["aab"], None, "a", Some("aab"));
        check("xabcabd", &["abd", ""], None, "xabc", Some("abd"));
        check("grün – ende", &["– e"], None, "grün ", Some("– e"));
    }

    #[test]
    fn of_several_stop_strings_the_first_complete_one_counts() {
        check("abcd", &["abcd", "bc"], None, "a", Some("bc"));
        check("xab", &["b", "ab"], None, "x", Some("ab"));
    }

    #[test]
    fn reasoning_is_told_apart() {
        check("<think>\nwhy\n</think>\n\nso", &[], Some(false), "[why\n]so", None);
        check("why</think>so", &[], Some(true), "[why]so", None);
        check("\n<think>a</think>b", &[], Some(false), "\n[a]b", None);
        check("no <think>a</think>", &[], Some(false), "no <think>a</think>", None);
        check("<think>a</think>b<think>c</think>", &[], Some(false), "[a]b<think>c</think>", None);
        check("</think>b", &[], Some(false), "</think>b", None);
        check("</think>\nb", &[], Some(true), "b", None);
        check("<think>a</think>b", &[], None, "<think>a</think>b", None);
        check("a < b </thin", &[], Some(true), "[a < b </thin]", None);
    }

    #[test]
    fn stop_strings_hold_in_the_reasoning_too() {
        check("a stop b</think>c", &["stop"], Some(true), "[a ]", Some("stop"));
        check("a</think>b", &["</think>"], Some(true), "[a]", Some("</think>"));
    }

    #[test]
    fn sure_text_comes_out_at_once() {
        let mut splitter = Splitter::new(&["STOP".into()], Some(false));
        let mut out = vec![];
        splitter.push("Hello S", &mut out);
        assert_eq!(out, [Piece { reasoning: false, text: "Hello ".into() }]);
    }
}
