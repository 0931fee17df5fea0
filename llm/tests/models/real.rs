//! Two real models, fetched by `tools/real-models`: what transformers says with their weights dequantised to f32.
//!
//! The prompts are followed by llama.cpp's answers, one token at a time. Perplexity goes through the plans for prompts:
//! chunks of 512 tokens of wikitext-2, each read from nothing, the second half scored.

use super::*;
use llm::chat::Chat;
use llm::tokenizer::Tokenizer;
use std::time::Instant;

const SMOLLM2: &str = "smollm2-135m-instruct.q4_1";
const QWEN: &str = "qwen2.5-coder-1.5b-instruct.q4_k_m";

/// How far the engine may be from transformers.
struct Bounds {
    /// The ten greatest log probabilities after the prompt.
    top: f64,
    /// The best token is the same where it is this much ahead.
    margin: f64,
    /// Relative.
    perplexity: f64,
}

const INT8: Bounds = Bounds { top: 0.5, margin: 0.3, perplexity: 0.015 };
/// SmolLM2 where prompts are in bytes too, as without AMX: it chooses otherwise once, with a margin of 0.384.
const ALL_BYTES: Bounds = Bounds { margin: 0.4, ..INT8 };
const F32: Bounds = Bounds { top: 0.005, margin: 0.002, perplexity: 0.0005 };

fn open(name: &str) -> Option<Gguf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/real").join(format!("{name}.gguf"));
    if !path.exists() {
        println!("skipped: {name} is not here; run tools/real-models");
        return None;
    }
    Some(Gguf::open(&path).unwrap())
}

/// Prompts, answers and the perplexity of the first `chunks` chunks.
fn agrees(name: &str, activations: Activations, chunks: usize) {
    let (Some(device), Some(file)) = (devices().into_iter().next(), open(name)) else { return };
    let bounds = match activations {
        Activations::F32 => F32,
        Activations::Int8 if name == SMOLLM2 && !device.target().caps().tile => ALL_BYTES,
        Activations::Int8 => INT8,
    };
    let expected = json(&format!("real/{name}.json"));
    let mut m = load(device, file, 512, activations);
    let what = format!("{name}, {activations:?}");
    answers(&mut m, &what, &expected, &bounds);
    perplexity(&mut m, &what, &expected["perplexity"], chunks, &bounds);
}

fn answers(m: &mut Model, what: &str, expected: &serde_json::Value, bounds: &Bounds) {
    let (mut worst, mut sure, mut steps, mut seconds) = (0f64, 0, 0, 0.0);
    for p in expected["prompts"].as_array().unwrap() {
        let (text, want) = (&p["prompt"], &p["transformers_fp32"]);
        m.truncate(0);
        let mut row = m.feed(&ids(&p["prompt_ids"])).unwrap().to_vec();
        for pair in want["top10_first"].as_array().unwrap() {
            let (token, log) = (pair[0].as_u64().unwrap() as u32, pair[1].as_f64().unwrap());
            let error = (-surprise(&row, token) - log).abs();
            assert!(error <= bounds.top, "{what}, {text}: token {token} is {error} off");
            worst = worst.max(error);
        }
        let best = ids(&want["teacher_forced_argmax"]);
        for (step, said) in ids(&p["llama_cpp"]["greedy"]).into_iter().enumerate() {
            let margin = want["logit_margins"][step].as_f64().unwrap();
            if margin > bounds.margin {
                assert_eq!(argmax(&row), best[step], "{what}, {text}: step {step}, margin {margin}");
                sure += 1;
            }
            let began = Instant::now();
            row = m.feed(&[said]).unwrap().to_vec();
            // The first step compiles.
            if steps > 0 {
                seconds += began.elapsed().as_secs_f64();
            }
            steps += 1;
        }
    }
    println!(
        "{what}: the best token agrees at {sure} of {steps} steps, where its margin is above {}; \
         log probabilities of the first differ by at most {worst:.4}; {:.1} tokens/s",
        bounds.margin,
        (steps - 1) as f64 / seconds
    );
}

fn perplexity(m: &mut Model, what: &str, expected: &serde_json::Value, chunks: usize, bounds: &Bounds) {
    let tokens = ids(&expected["tokens"]);
    let size = expected["ctx"].as_u64().unwrap() as usize;
    let wanted = expected["transformers_fp32_chunk_nll"].as_array().unwrap();
    let (mut got, mut want, mut began) = (0.0, 0.0, Instant::now());
    for (n, (chunk, nll)) in tokens.chunks(size).zip(wanted).take(chunks).enumerate() {
        m.truncate(0);
        let (mut at, mut sum) = (0, 0.0);
        m.feed_all(chunk, &mut |row| {
            if (size / 2..size - 1).contains(&at) {
                sum += surprise(row, chunk[at + 1]);
            }
            at += 1;
        })
        .unwrap();
        let scored = (size - 1 - size / 2) as f64;
        got += sum / scored / chunks as f64;
        want += nll.as_f64().unwrap() / chunks as f64;
        // The first chunk compiles.
        if n == 0 {
            began = Instant::now();
        }
    }
    let (got, want) = (f64::exp(got), f64::exp(want));
    let speed = ((chunks - 1) * size) as f64 / began.elapsed().as_secs_f64();
    println!(
        "{what}: perplexity of {chunks} chunks {got:.4}, of transformers {want:.4}; {speed:.1} tokens/s"
    );
    assert!((got / want - 1.0).abs() <= bounds.perplexity, "{what}: perplexity {got} against {want}");
}

#[test]
fn smollm2_with_byte_activations() {
    agrees(SMOLLM2, Activations::Int8, 20);
}

#[test]
fn smollm2_with_f32_activations() {
    agrees(SMOLLM2, Activations::F32, 20);
}

#[test]
fn qwen_with_byte_activations() {
    agrees(QWEN, Activations::Int8, 4);
}

#[test]
fn qwen_with_f32_activations() {
    agrees(QWEN, Activations::F32, 4);
}

#[test]
fn smollm2_answers_as_transformers_does() {
    let (Some(device), Some(file)) = (devices().into_iter().next(), open(SMOLLM2)) else { return };
    let mut m = load(device, file, 128, Activations::F32);
    for p in json(&format!("real/{SMOLLM2}.json"))["prompts"].as_array().unwrap() {
        m.truncate(0);
        let mut row = m.feed(&ids(&p["prompt_ids"])).unwrap().to_vec();
        for (step, want) in ids(&p["transformers_fp32"]["greedy"]).into_iter().enumerate() {
            let best = argmax(&row);
            let next = row.iter().enumerate().filter(|(i, _)| *i != best as usize).map(|(_, v)| *v);
            if f64::from(row[best as usize] - next.fold(f32::MIN, f32::max)) < F32.margin {
                break;
            }
            assert_eq!(best, want, "{}: step {step}", p["prompt"]);
            row = m.feed(&[want]).unwrap().to_vec();
        }
    }
}

#[test]
fn chats_become_the_references_tokens() {
    for name in [SMOLLM2, QWEN] {
        let Some(file) = open(name) else { continue };
        let tokenizer = Tokenizer::from_gguf(&file).unwrap();
        for p in json(&format!("real/{name}.json"))["prompts"].as_array().unwrap() {
            let text = p["prompt"].as_str().unwrap();
            assert_eq!(tokenizer.encode(text, true), ids(&p["prompt_ids"]), "{name}: {text}");
            if let [message] = p["messages"].as_array().map_or(&[][..], |m| m) {
                let mut chat = Chat::from_gguf(&file, &tokenizer).unwrap().unwrap();
                chat.say(message["content"].as_str().unwrap());
                assert_eq!(chat.prompt().unwrap(), text, "{name}");
            }
        }
    }
}
