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

/// The file inside the program and its sibling, which lies beside a checkout; each with its name in the references.
fn files() -> impl Iterator<Item = (&'static str, Gguf)> {
    let published = beside("models/storyteller-Q4_0.gguf").map(|path| ("Q4_0", Gguf::open(&path).unwrap()));
    [("Q4_K_M", shipped())].into_iter().chain(published)
}

/// Feeds llama.cpp's own words and compares the best token wherever llama.cpp was sure; says how many there were.
fn same_choices(m: &mut Model, name: &str, said: &serde_json::Value, margin: f64) -> usize {
    let prompt = ids(&json(&format!("story/{name}.json"))["prompt_ids"]);
    let (words, vocab) = (ids(&said["greedy_ids"]), m.vocab());
    let rows = all_logits(m, &[&prompt[..], &words].concat());
    let rows: Vec<&[f32]> = rows.chunks(vocab).skip(prompt.len() - 1).collect();
    let sure = floats_of(&said["top1_margin"]);
    let sure = words.iter().enumerate().filter(|(i, _)| sure[*i] > margin);
    for (i, want) in sure.clone() {
        assert_eq!(argmax(rows[i]), *want, "{name}, step {i}");
    }
    sure.count()
}

fn floats_of(v: &serde_json::Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

#[test]
fn byte_activations_choose_as_llama_cpp_does() {
    for device in devices() {
        for (quant, file) in files() {
            let mut m = load(device.clone(), file, 1024, Activations::Int8);
            for name in PROMPTS {
                let e = json(&format!("story/{name}.json"));
                same_choices(&mut m, name, &e["references"][format!("llama.cpp-{quant}")], 0.3);
            }
        }
    }
}

/// llama.cpp rounds activations to bytes where weights are quantised. On the same weights as F32 it does not.
#[test]
fn exact_activations_choose_as_llama_cpp_does() {
    let exact = json("story/f32-weights.json");
    for device in devices() {
        for (quant, file) in files() {
            let mut m = load(device.clone(), file, 1024, Activations::F32);
            let mut sure = 0;
            for name in PROMPTS {
                let said = &exact[quant]["prompts"][name];
                sure += same_choices(&mut m, name, said, 0.002);
                m.truncate(0);
                let row = m.feed(&ids(&json(&format!("story/{name}.json"))["prompt_ids"])).unwrap();
                for best in said["top10"].as_array().unwrap() {
                    let (token, logit) = (best[0].as_u64().unwrap() as usize, best[1].as_f64().unwrap());
                    let error = (f64::from(row[token]) - logit).abs();
                    assert!(error < 0.001, "{quant}, {name}: the logit of {token} is {error} off");
                }
            }
            assert!(sure > 400, "{quant}: llama.cpp was sure of {sure} tokens only");
        }
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
        let mut row = m.feed(&ids(&e["prompt_ids"])).unwrap().to_vec();
        let mut said = vec![];
        while !tokenizer.ends().contains(&argmax(&row)) {
            assert!(said.len() < 400, "no end after {}", tokenizer.decode(&said));
            said.push(argmax(&row));
            row = m.feed(&said[said.len() - 1..]).unwrap().to_vec();
        }
        let text = tokenizer.decode(&said);
        assert!(said.len() > 60 && text.contains("dog") && text.contains("boat"), "{text}");
    }
}

/// Of the first chunks; `glimmer perplexity` reads all 95.
#[test]
fn perplexity_is_llama_cpps() {
    const CHUNK: usize = 512;
    let text = String::from_utf8(data("story/heldout.txt")).unwrap();
    let tokens = Tokenizer::from_gguf(&shipped()).unwrap().encode(&text, true);
    let kinds = [
        (Activations::F32, json("story/f32-weights.json"), 0.0005),
        (Activations::Int8, json("story/quantised-weights.json"), 0.015),
    ];
    for device in devices() {
        for (activations, references, bound) in &kinds {
            for (quant, file) in files() {
                let wanted = floats_of(&references[quant]["chunk_nll"]);
                let wanted = &wanted[..2];
                let mut m = load(device.clone(), file, CHUNK, *activations);
                let (vocab, mut sum) = (m.vocab(), 0.0);
                for chunk in tokens.chunks(CHUNK).take(wanted.len()) {
                    let rows = all_logits(&mut m, chunk);
                    let scored = rows.chunks(vocab).zip(&chunk[1..]).skip(CHUNK / 2);
                    sum += scored.map(|(row, next)| surprise(row, *next)).sum::<f64>();
                }
                let scored = (CHUNK - 1 - CHUNK / 2) * wanted.len();
                let want = (wanted.iter().sum::<f64>() / wanted.len() as f64).exp();
                let got = (sum / scored as f64).exp();
                println!("{quant}, {activations:?}: perplexity {got:.5}, llama.cpp's {want:.5}");
                assert!((got / want - 1.0).abs() < *bound, "{quant}, {activations:?}: {got}, not {want}");
            }
        }
    }
}
