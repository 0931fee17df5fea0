//! Recorded ids for the vocabularies in `data/tokenizer`, and small vocabularies made here.

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

/// A GGUF file of texts, lists of texts and lists of numbers, and no tensors.
#[derive(Default)]
struct File {
    pairs: Vec<u8>,
    count: u64,
}

impl File {
    fn text(&mut self, text: &str) {
        self.pairs.extend((text.len() as u64).to_le_bytes());
        self.pairs.extend(text.bytes());
    }

    fn key(mut self, key: &str, kind: &[u32]) -> File {
        self.text(&format!("tokenizer.ggml.{key}"));
        self.pairs.extend(kind.iter().flat_map(|k| k.to_le_bytes()));
        self.count += 1;
        self
    }

    fn with(self, key: &str, value: &str) -> File {
        let mut file = self.key(key, &[8]);
        file.text(value);
        file
    }

    fn texts(self, key: &str, values: &[&str]) -> File {
        let mut file = self.key(key, &[9, 8]);
        file.pairs.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|v| file.text(v));
        file
    }

    fn numbers(self, key: &str, values: &[i32]) -> File {
        let mut file = self.key(key, &[9, 5]);
        file.pairs.extend((values.len() as u64).to_le_bytes());
        file.pairs.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        file
    }

    fn number(self, key: &str, value: u32) -> File {
        let mut file = self.key(key, &[4]);
        file.pairs.extend(value.to_le_bytes());
        file
    }

    fn open(self) -> Result<Tokenizer, String> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(self.count.to_le_bytes());
        bytes.extend(self.pairs);
        let file = Gguf::from_vec("small.gguf", bytes).map_err(|e| e.to_string())?;
        Tokenizer::from_gguf(&file).map_err(|e| e.to_string())
    }
}

fn small(pre: &str) -> File {
    File::default()
        .with("model", "gpt2")
        .with("pre", pre)
        .texts("tokens", &["a", "b", "c", "ab", "abc", "<|im_end|>", "<think>"])
        .numbers("token_type", &[1, 1, 1, 1, 1, 4, 4])
}

#[test]
fn words_that_are_tokens_need_no_merges() {
    let merges = |pre| small(pre).texts("merges", &["b c", "a b"]).open().unwrap();
    assert_eq!(merges("glm4").encode("abc", false), [0, 1, 2]);
    assert_eq!(merges("llama-bpe").encode("abc", false), [4]);
    assert_eq!(merges("llama3").encode("abcab", false), [0, 1, 2, 3]);
    assert_eq!(merges("qwen2").encode("ab d", false), [3]);
}

#[test]
fn special_tokens() {
    let tokenizer = small("glm4").texts("merges", &["a b"]).number("eot_token_id", 6).open().unwrap();
    assert_eq!(tokenizer.ends(), [5, 6]);
    assert!(tokenizer.is_control(5) && !tokenizer.is_control(6) && !tokenizer.is_control(99));
    assert_eq!(tokenizer.encode("ab<think>c<|im_end|>", true), [3, 6, 2, 5]);
    assert_eq!(tokenizer.encode("ab<think>c<|im_end|>", false), [3, 6, 2]);
    assert_eq!(tokenizer.decode(&[3, 6, 5, 99]), "ab<think><|im_end|>");
    let mut decoder = Decoder::new(&tokenizer, false);
    assert_eq!([decoder.push(6), decoder.push(5), decoder.finish()].concat(), "<think>");
}

#[test]
fn characters_are_never_split() {
    let tokenizer = vocabulary("glm-4.7-flash");
    let ids = tokenizer.encode("🦙é", false);
    let mut decoder = Decoder::new(&tokenizer, true);
    let pieces: Vec<String> = ids[..ids.len() - 1].iter().map(|id| decoder.push(*id)).collect();
    assert!(ids.len() > 3 && pieces.iter().all(|p| !p.contains('\u{fffd}')), "{pieces:?}");
    let mut decoder = Decoder::new(&tokenizer, true);
    assert_eq!((decoder.push(ids[0]), decoder.finish()), ("".into(), "\u{fffd}".into()));
}

#[test]
fn sentencepiece_takes_its_space_back() {
    let tokenizer = vocabulary("llama-spm");
    let ids = tokenizer.encode("Hello world", false);
    assert_eq!(tokenizer.decode(&ids), "Hello world");
    assert_eq!(tokenizer.encode("a</s>b", true).len(), 3);
    assert!(tokenizer.add_bos() && tokenizer.bos() == Some(1) && tokenizer.ends() == [2]);
}

#[test]
fn errors_name_what_is_known() {
    let error = |file: File| file.open().err().unwrap();
    assert!(
        error(small("klingon")).contains("`tokenizer.ggml.pre` is \"klingon\"; the known ones are glm4, ")
    );
    assert!(error(small("glm4")).contains("tokenizer.ggml.merges"));
    assert!(error(small("glm4").texts("merges", &["a b", "ab"])).contains("entry 1 is \"ab\""));
    assert!(
        error(small("glm4").texts("merges", &[]).number("eos_token_id", 7)).contains("eos_token_id` is 7")
    );
    let model = File::default().with("model", "wordy").texts("tokens", &["a"]);
    assert!(error(model).contains("is \"wordy\"; the known ones are gpt2"));
    let types = File::default().with("model", "llama").texts("tokens", &["a"]).numbers("token_type", &[1, 1]);
    assert!(error(types).contains("`tokenizer.ggml.token_type` has 2 entries; expected 1"));
}
