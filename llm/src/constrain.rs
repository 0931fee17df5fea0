//! Constrained decoding over llguidance. In: a vocabulary, once; a grammar for each answer. Out: which tokens may come
//! next.
//!
//! Control tokens are outside every grammar but those that end an answer, which may come where the grammar may end. The
//! tags of reasoning and of tool calls are text, whatever the file calls them.

use crate::engine::Constraint;
use crate::tokenizer::Tokenizer;
use crate::tools;
use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use std::sync::Arc;
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

#[derive(thiserror::Error, Debug)]
pub enum Error {
    #[error("the model's vocabulary has no token that ends an answer, which constrained answers need")]
    NoEnd,
    #[error("{0}")]
    Vocabulary(String),
    #[error("{0}")]
    Grammar(String),
}

/// A vocabulary that grammars are held against.
pub struct Vocabulary {
    factory: ParserFactory,
}

impl Vocabulary {
    pub fn new(tokenizer: &Tokenizer) -> Result<Vocabulary, Error> {
        let ends = tokenizer.ends();
        let first = *ends.first().ok_or(Error::NoEnd)?;
        let word = |id: u32| {
            let piece = tokenizer.piece(id);
            let special =
                ends.binary_search(&id).is_ok() || (tokenizer.is_control(id) && tools::tag(piece).is_none());
            match special {
                true => [&[TokTrie::SPECIAL_TOKEN_MARKER], piece].concat(),
                false => piece.to_vec(),
            }
        };
        let words: Vec<Vec<u8>> = (0..tokenizer.vocab_size() as u32).map(word).collect();
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, first), &words).with_eos_tokens(ends);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory =
            ParserFactory::new_simple(&environment).map_err(|e| Error::Vocabulary(e.to_string()))?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(Vocabulary { factory })
    }

    /// Follows a grammar from its beginning.
    pub fn guide(&self, grammar: &str) -> Result<Guide, Error> {
        let parser = self.factory.create_parser(TopLevelGrammar::from_lark(grammar.into()));
        let matcher = Matcher::new(parser);
        match matcher.get_error() {
            Some(e) => Err(Error::Grammar(e)),
            None => Ok(Guide { matcher }),
        }
    }
}

/// One answer's place in its grammar.
pub struct Guide {
    matcher: Matcher,
}

impl Constraint for Guide {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String> {
        let allowed = self.matcher.compute_mask_or_eos().map_err(|e| e.to_string())?;
        let words = allowed.as_slice().iter().copied().chain(std::iter::repeat(0));
        let mut some = false;
        for (logits, word) in logits.chunks_mut(32).zip(words) {
            for (bit, logit) in logits.iter_mut().enumerate().filter(|_| word != u32::MAX) {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
            some = some || logits.iter().any(|l| *l > f32::NEG_INFINITY);
        }
        if some { Ok(()) } else { Err("no token may follow in the answer's grammar".into()) }
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            return Ok(());
        }
        self.matcher.consume_token(token).map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::Gguf;
    use crate::sample::{Sampler, Sampling, Scores};
    use crate::tools::grammar::{self, Must, Thought};
    use crate::tools::{Call, Event, Form, Parser, Tool};
    use compiler::rng::Rng;
    use serde_json::{Value, json};

    fn tokenizer() -> Tokenizer {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../app/models/storyteller-Q4_K_M.gguf");
        Tokenizer::from_gguf(&Gguf::open(file.as_ref()).unwrap()).unwrap()
    }

    /// What comes out when tokens are drawn at random among those that may come, with a wish for short ends.
    fn babble(tokenizer: &Tokenizer, guide: &mut Guide, rng: &mut Rng) -> String {
        let mut ids = vec![];
        for n in 0..4000 {
            let mut logits: Vec<f32> = (0..tokenizer.vocab_size()).map(|_| rng.normal()).collect();
            for end in tokenizer.ends() {
                logits[*end as usize] += 20.0;
            }
            if n > 40 {
                for (id, logit) in logits.iter_mut().enumerate() {
                    let piece = tokenizer.piece(id as u32);
                    *logit += if piece.contains(&b'>') || piece.contains(&b'"') { 4.0 } else { 0.0 };
                }
            }
            guide.mask(&mut logits).unwrap();
            let id = Sampler::new(&Sampling::greedy()).sample(Scores::All(&mut logits), &[]);
            guide.accept(id).unwrap();
            if tokenizer.ends().contains(&id) {
                return tokenizer.decode(&ids);
            }
            ids.push(id);
        }
        panic!("no end: {}", tokenizer.decode(&ids));
    }

    fn tools() -> Vec<Tool> {
        let parameters = json!({
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "units": {"type": "string", "enum": ["metric", "imperial"]},
            },
            "required": ["city", "units"],
            "additionalProperties": false,
        });
        let nothing = json!({"type": "object", "properties": {}, "additionalProperties": false});
        vec![
            Tool { name: "weather".into(), description: None, parameters },
            Tool { name: "weather_now".into(), description: None, parameters: nothing },
        ]
    }

    fn fits(call: &Call) {
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
        match call.name.as_str() {
            "weather" => {
                assert!(arguments["city"].is_string(), "{call:?}");
                assert!(["metric", "imperial"].contains(&arguments["units"].as_str().unwrap()), "{call:?}");
                let days = arguments.get("days").map(|d| d.as_i64().unwrap());
                assert!(days.is_none_or(|d| (1..=9).contains(&d)), "{call:?}");
            }
            name => assert_eq!((name, arguments), ("weather_now", json!({}))),
        }
    }

    #[test]
    fn documents_fit_their_schema() {
        let (tokenizer, mut rng) = (tokenizer(), Rng::new(1));
        let vocabulary = Vocabulary::new(&tokenizer).unwrap();
        let schema = json!({
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"$ref": "#/$defs/age"}},
            "required": ["name", "age"],
            "additionalProperties": false,
            "$defs": {"age": {"type": "integer", "minimum": 0, "maximum": 120}},
        });
        let grammar = grammar::document(&schema, Thought::No);
        for _ in 0..5 {
            let text = babble(&tokenizer, &mut vocabulary.guide(&grammar).unwrap(), &mut rng);
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text:?}"));
            assert!((0..=120).contains(&value["age"].as_i64().unwrap()), "{text}");
        }
        let grammar = grammar::document(&json!({"type": "boolean"}), Thought::Open);
        let text = babble(&tokenizer, &mut vocabulary.guide(&grammar).unwrap(), &mut rng);
        let (_, answer) = text.split_once("</think>").unwrap();
        assert!(["true", "false"].contains(&answer.trim()), "{text}");
    }

    #[test]
    fn required_calls_are_calls() {
        let (tokenizer, mut rng) = (tokenizer(), Rng::new(2));
        let vocabulary = Vocabulary::new(&tokenizer).unwrap();
        for form in [Form::Glm, Form::Hermes, Form::DeepSeek, Form::DeepSeekPlain] {
            for parallel in [false, true] {
                let grammar = grammar::calls(form, &tools(), Must::Call, parallel, Thought::No);
                for _ in 0..2 {
                    let text = babble(&tokenizer, &mut vocabulary.guide(&grammar).unwrap(), &mut rng);
                    let (mut parser, mut out) = (Parser::new(form, tools()), vec![]);
                    parser.push(&text, &mut out);
                    parser.finish(&mut out);
                    assert!(!out.is_empty() && (parallel || out.len() == 1), "{text:?}");
                    for event in &out {
                        let Event::Call(call) = event else { panic!("{event:?} in {text:?}") };
                        fits(call);
                    }
                }
            }
        }
    }

    #[test]
    fn calls_that_may_be_are_whole() {
        let (tokenizer, mut rng) = (tokenizer(), Rng::new(3));
        let vocabulary = Vocabulary::new(&tokenizer).unwrap();
        for form in [Form::Glm, Form::Hermes] {
            let grammar = grammar::calls(form, &tools(), Must::May(None), true, Thought::No);
            let mut guide = vocabulary.guide(&grammar).unwrap();
            for id in tokenizer.encode("I look. 1 < 2\n", false) {
                guide.accept(id).unwrap();
            }
            let mut ends = vec![0.0; tokenizer.vocab_size()];
            guide.mask(&mut ends).unwrap();
            assert!(ends[tokenizer.ends()[0] as usize] == 0.0, "text may end");
            for id in tokenizer.encode("<tool_call>", true) {
                guide.accept(id).unwrap();
            }
            let text = babble(&tokenizer, &mut guide, &mut rng);
            let (mut parser, mut out) = (Parser::new(form, tools()), vec![]);
            parser.push(&format!("<tool_call>{text}"), &mut out);
            parser.finish(&mut out);
            let Event::Call(call) = &out[0] else { panic!("{out:?}") };
            fits(call);
        }
    }

    #[test]
    fn a_document_or_a_call() {
        let tokenizer = tokenizer();
        let vocabulary = Vocabulary::new(&tokenizer).unwrap();
        let schema = json!({"type": "array", "items": {"type": "integer"}, "maxItems": 2});
        let grammar = grammar::calls(Form::Glm, &tools(), Must::May(Some(&schema)), true, Thought::Free);
        for (text, fits) in [
            ("[1, 2]", true),
            ("<think>hm</think>\n\n[1]", true),
            ("<tool_call>weather_now</tool_call>", true),
            ("<tool_call>weather_now</tool_call>\n<tool_call>weather_now</tool_call>", true),
            ("hello", false),
            ("<tool_call>storm</tool_call>", false),
            ("[1, 2, 3]", false),
        ] {
            let mut guide = vocabulary.guide(&grammar).unwrap();
            let ids = tokenizer.encode(text, true);
            let end = tokenizer.ends()[0];
            let taken = ids.iter().chain([&end]).try_for_each(|id| guide.accept(*id));
            assert_eq!(taken.is_ok(), fits, "{text}: {taken:?}");
        }
    }

    #[test]
    fn schemas_that_make_no_sense_are_refused() {
        let vocabulary = Vocabulary::new(&tokenizer()).unwrap();
        let refused = |schema| vocabulary.guide(&grammar::document(&schema, Thought::Free)).is_err();
        assert!(refused(json!({"type": "nothing"})));
        assert!(refused(json!({"type": "object", "properties": 3})));
        assert!(!refused(json!({"type": "object"})));
    }
}
