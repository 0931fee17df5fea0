//! The story model: what llama.cpp says with the same file.

use super::*;
use llm::tokenizer::Tokenizer;

const PROMPTS: [&str; 9] = [
    "chat-continue",
    "chat-dog-boat",
    "chat-hello",
    "chat-multi-turn",
    "chat-think-bear",
    "plain-ball",
    "plain-long",
    "plain-once",
    "plain-prefix",
];

fn shipped() -> Gguf {
    let path = root().join("app/models/storyteller-Q4_K_M.gguf");
    Gguf::open(&path).unwrap()
}

/// Feeds llama.cpp's own words and compares the best token wherever llama.cpp was sure.
fn same_choices(m: &mut Model, entry: &str, margin: f64) {
    for name in PROMPTS {
        let e = json(&format!("story/{name}.json"));
        let r = &e["references"][entry];
        let (prompt, said) = (ids(&e["prompt_ids"]), ids(&r["greedy_ids"]));
        let vocab = m.vocab();
        let rows = all_logits(m, &[&prompt[..], &said].concat());
        let sure = r["top1_margin"].as_array().unwrap();
        for (i, want) in said.iter().enumerate().filter(|(i, _)| sure[*i].as_f64().unwrap() > margin) {
            let row = &rows[(prompt.len() - 1 + i) * vocab..][..vocab];
            assert_eq!(argmax(row), *want, "{name}, step {i}, margin {}", sure[i]);
        }
    }
}

#[test]
fn byte_activations_choose_as_llama_cpp_does() {
    for device in devices() {
        same_choices(&mut load(device.clone(), shipped(), 1024, Activations::Int8), "llama.cpp-Q4_K_M", 0.3);
        let Some(path) = beside("models/storyteller-Q4_0.gguf") else { return };
        let mut m = load(device, Gguf::open(&path).unwrap(), 1024, Activations::Int8);
        same_choices(&mut m, "llama.cpp-Q4_0", 0.3);
    }
}

/// llama.cpp rounds activations to bytes, so below some margin its own choices are chance.
#[test]
fn exact_activations_choose_as_llama_cpp_does() {
    for device in devices() {
        same_choices(&mut load(device, shipped(), 1024, Activations::F32), "llama.cpp-Q4_K_M", 0.15);
    }
}

#[test]
fn prompts_are_tokenised_as_the_references_are() {
    let tokenizer = Tokenizer::from_gguf(&shipped()).unwrap();
    for name in PROMPTS {
        let e = json(&format!("story/{name}.json"));
        let text = e["prompt"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, true), ids(&e["prompt_ids"]), "{name}");
    }
}

#[test]
fn a_story_ends_by_itself() {
    for device in devices() {
        let mut m = load(device, shipped(), 1024, Activations::Int8);
        let tokenizer = Tokenizer::from_gguf(m.file()).unwrap();
        let e = json("story/chat-dog-boat.json");
        let mut row = m.feed(&ids(&e["prompt_ids"])).unwrap();
        let mut said = vec![];
        while !tokenizer.ends().contains(&argmax(&row)) {
            assert!(said.len() < 400, "no end after {}", tokenizer.decode(&said));
            said.push(argmax(&row));
            row = m.feed(&said[said.len() - 1..]).unwrap();
        }
        let text = tokenizer.decode(&said);
        assert!(said.len() > 60 && text.contains("dog") && text.contains("boat"), "{text}");
    }
}

/// llama.cpp's perplexity of the first chunks is not recorded, so that of the whole text is compared where time allows;
/// here the two kinds of activations are held against each other.
#[test]
fn byte_activations_cost_little() {
    for device in devices() {
        let text = String::from_utf8(data("story/heldout.txt")).unwrap();
        let tokens = Tokenizer::from_gguf(&shipped()).unwrap().encode(&text, true);
        let perplexity = |activations| {
            let mut m = load(device.clone(), shipped(), 256, activations);
            let rows = all_logits(&mut m, &tokens[..256]);
            let (vocab, mut sum) = (m.vocab(), 0.0);
            for (row, &next) in rows.chunks(vocab).zip(&tokens[1..256]).skip(127) {
                sum += surprise(row, next);
            }
            (sum / 128.0).exp()
        };
        let (f32, int8) = (perplexity(Activations::F32), perplexity(Activations::Int8));
        assert!((1.5..3.5).contains(&f32), "{f32}");
        assert!((int8 / f32 - 1.0).abs() < 0.03, "{int8} against {f32}");
    }
}
