//! Recorded ids for the vocabularies in `data/tokenizer`; the README of each file's origin is in its `note`.

use flate2::read::GzDecoder;
use llm::gguf::Gguf;
use llm::tokenizer::{Decoder, Tokenizer};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizer")
}

fn vocabulary(name: &str) -> Tokenizer {
    let packed = std::fs::read(data().join(format!("{name}.gguf.gz"))).unwrap();
    let mut bytes = Vec::new();
    GzDecoder::new(packed.as_slice()).read_to_end(&mut bytes).unwrap();
    Tokenizer::from_gguf(&Gguf::from_vec(name, bytes).unwrap()).unwrap()
}

struct Case {
    text: String,
    parse_special: bool,
    ids: Vec<u32>,
}

fn cases(name: &str) -> Vec<Case> {
    let text = std::fs::read_to_string(data().join(format!("{name}.json"))).unwrap();
    let file: serde_json::Value = serde_json::from_str(&text).unwrap();
    let case = |c: &serde_json::Value| Case {
        text: c["text"].as_str().unwrap().into(),
        parse_special: c["parse_special"].as_bool().unwrap(),
        ids: c["ids"].as_array().unwrap().iter().map(|i| i.as_u64().unwrap() as u32).collect(),
    };
    file["cases"].as_array().unwrap().iter().map(case).collect()
}

fn check(name: &str, tokenizer: &Tokenizer, byte_level: bool) {
    let cases = cases(name);
    assert!(cases.len() > 20, "{name}");
    for c in &cases {
        assert_eq!(tokenizer.encode(&c.text, c.parse_special), c.ids, "{name}: {:?}", c.text);
        if byte_level {
            assert_eq!(tokenizer.decode(&c.ids), c.text, "{name}: {:?}", c.ids);
        }
        let mut decoder = Decoder::new(tokenizer, true);
        let mut streamed: String = c.ids.iter().map(|id| decoder.push(*id)).collect();
        streamed.push_str(&decoder.finish());
        assert_eq!(streamed, tokenizer.decode(&c.ids), "{name}");
    }
}

#[test]
fn recorded_ids() {
    for name in ["deepseek-coder", "deepseek-llm", "glm-4.7-flash", "gpt-2"] {
        check(name, &vocabulary(name), true);
    }
    check("llama-spm", &vocabulary("llama-spm"), false);
}

#[test]
fn long_texts_take_no_quadratic_time() {
    for name in ["glm-4.7-flash", "llama-spm", "deepseek-coder"] {
        let tokenizer = vocabulary(name);
        for text in
            ["a".repeat(1 << 20), " ".repeat(1 << 20), "<|user|>".repeat(1 << 17), "ab\n".repeat(1 << 18)]
        {
            let started = Instant::now();
            let ids = tokenizer.encode(&text, true);
            assert_eq!(tokenizer.decode(&ids), text, "{name}");
            assert!(started.elapsed() < Duration::from_secs(20), "{name}: {:?}", started.elapsed());
        }
    }
}
