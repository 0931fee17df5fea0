//! Small random models: all architectures, every way to feed them.

use super::*;
use compiler::codegen::Target;
use compiler::codegen::ptx::Ptx;
use compiler::linear::Inst;
use runtime::interp::InterpDevice;

/// Folder, file, largest error and divergence of the long sequence.
const MODELS: [(&str, &str, f32, f64); 10] = [
    ("glm4_moe_lite", "glm4_moe_lite.f16.gguf", 2e-3, 1e-6),
    ("glm4_moe_lite", "glm4_moe_lite.mtp.f16.gguf", 2e-3, 1e-6),
    ("deepseek_v2", "deepseek_v2.f16.gguf", 5e-2, 1e-4),
    ("deepseek_v2", "deepseek_v2.legacy_kv_b.f32.gguf", 5e-2, 1e-4),
    ("youtu", "youtu.f16.gguf", 2e-3, 1e-6),
    ("llama", "llama.f16.gguf", 2e-3, 1e-6),
    ("llama3_rope", "llama3_rope.f16.gguf", 2e-3, 1e-6),
    ("qwen2", "qwen2.f16.gguf", 2e-3, 1e-6),
    ("qwen3", "qwen3.f16.gguf", 2e-3, 1e-6),
    ("qwen3_moe", "qwen3_moe.f16.gguf", 2e-3, 1e-6),
];

struct Expected {
    json: serde_json::Value,
    folder: String,
    vocab: usize,
}

impl Expected {
    fn of(folder: &str) -> Expected {
        let json = json(&format!("{folder}/expected.json"));
        let vocab = json["vocab_size"].as_u64().unwrap() as usize;
        Expected { json, folder: folder.into(), vocab }
    }
    fn tokens(&self, seq: &str) -> Vec<u32> {
        ids(&self.json[seq]["tokens"])
    }
    fn logits(&self, name: &str) -> Vec<f32> {
        floats(&data(&format!("{}/{name}.logits.bin", self.folder)))
    }
}

#[track_caller]
fn exact(what: &str, got: &[f32], want: &[f32], vocab: usize, max: f32, kl: f64) {
    let d = distance(got, want, vocab);
    assert!(d.max <= max && d.kl <= kl, "{what}: {d:?}");
}

#[test]
fn every_architecture_at_once_and_token_by_token() {
    for device in devices() {
        for (folder, file, ..) in MODELS {
            let e = Expected::of(&format!("tiny/{folder}"));
            let mut m =
                load(device.clone(), packed_model(&format!("tiny/{folder}/{file}")), 64, Activations::F32);
            for seq in ["seq0", "seq1"] {
                let (tokens, want) = (e.tokens(seq), e.logits(seq));
                let what = format!("{file} {seq}");
                exact(&what, &all_logits(&mut m, &tokens), &want, e.vocab, 1e-3, 1e-7);
                m.truncate(5);
                let mut row = vec![];
                for (i, &t) in tokens.iter().enumerate().skip(5) {
                    row = m.feed(&[t]).unwrap().to_vec();
                    exact(
                        &format!("{what} position {i}"),
                        &row,
                        &want[i * e.vocab..][..e.vocab],
                        e.vocab,
                        1e-3,
                        1e-7,
                    );
                }
                for want in ids(&e.json[seq]["greedy_16"]) {
                    assert_eq!(argmax(&row), want, "{what}: greedy");
                    row = m.feed(&[want]).unwrap().to_vec();
                }
            }
        }
    }
}

#[test]
fn long_sequences_in_chunks_of_many_sizes() {
    for device in devices() {
        for (folder, file, max, kl) in MODELS {
            let e = Expected::of(&format!("tiny/{folder}"));
            let (tokens, want) = (e.tokens("long"), e.logits("long"));
            let mut m = load(
                device.clone(),
                packed_model(&format!("tiny/{folder}/{file}")),
                tokens.len(),
                Activations::F32,
            );
            let rows = all_logits(&mut m, &tokens);
            let at = ids(&e.json["long"]["positions"]);
            let got: Vec<f32> =
                at.iter().flat_map(|&p| rows[p as usize * e.vocab..][..e.vocab].to_vec()).collect();
            exact(&format!("{file} long"), &got, &want, e.vocab, max, kl);
        }
    }
}

#[test]
fn the_drafting_layer() {
    for device in devices() {
        let e = Expected::of("tiny/glm4_moe_lite");
        let mut m =
            load(device, packed_model("tiny/glm4_moe_lite/glm4_moe_lite.mtp.f16.gguf"), 64, Activations::F32);
        let mut got = vec![];
        m.feed_drafts(&e.tokens("seq0"), &mut |row| got.extend_from_slice(row)).unwrap();
        exact("drafts", &got, &e.logits("mtp.seq0"), e.vocab, 1e-3, 1e-7);
        let wrong = m.feed_drafts(&[1, e.vocab as u32], &mut |_| ()).unwrap_err().to_string();
        assert_eq!(wrong, format!("token {} is outside the vocabulary of {}", e.vocab, e.vocab));
    }
}

#[test]
fn the_interpreter_agrees() {
    for (folder, file, ..) in MODELS {
        let e = Expected::of(&format!("tiny/{folder}"));
        let device = Arc::new(InterpDevice::default());
        let mut m = load(device, packed_model(&format!("tiny/{folder}/{file}")), 16, Activations::F32);
        let got = all_logits(&mut m, &e.tokens("seq0")[..3]);
        exact(file, &got, &e.logits("seq0")[..got.len()], e.vocab, 1e-3, 1e-7);
    }
}

/// Token by token, as a GPU's plans do it.
#[test]
fn the_interpreter_agrees_with_single_tokens_as_a_gpu() {
    for (folder, file) in [("glm4_moe_lite", MODELS[0].1), ("qwen3", MODELS[8].1)] {
        let e = Expected::of(&format!("tiny/{folder}"));
        let device = Arc::new(InterpDevice::like(Ptx::new(90).caps()));
        let mut m = load(device, packed_model(&format!("tiny/{folder}/{file}")), 16, Activations::F32);
        let tokens = &e.tokens("seq0")[..3];
        let got: Vec<f32> = tokens.iter().flat_map(|&t| m.feed(&[t]).unwrap().to_vec()).collect();
        exact(file, &got, &e.logits("seq0")[..got.len()], e.vocab, 1e-3, 1e-7);
    }
}

/// A prompt on a GPU with a matrix unit: products in bf16, experts by tiles of tokens, attention.
#[test]
fn the_interpreter_agrees_with_prompts_as_a_gpu() {
    let caps = Ptx::new(80).caps();
    for (name, kind) in [("q_llama", "q8_0"), ("q_glm4_moe_lite", "q4_k_m")] {
        let e = Expected::of(&format!("tiny_quant/{name}"));
        let file = packed_model(&format!("tiny_quant/{name}/{name}.{kind}.gguf"));
        let tokens = &e.tokens("seq0")[..17];
        let mut m = load(Arc::new(InterpDevice::like(caps)), file, 32, Activations::Int8);
        let mut on_the_unit = |tokens: usize| {
            let product = |i: &Inst| matches!(i, Inst::Mma { .. });
            let launches = m.launches(tokens).unwrap();
            let kernels = launches.iter().flat_map(|(l, _)| l.program.parts());
            kernels.filter(|k| k.code.iter().any(product)).count()
        };
        assert_eq!(on_the_unit(1), 0, "{name}: one token is as it was");
        assert!(on_the_unit(17) >= 6, "{name}: projections, scores, values, feed forward");
        let got = m.feed(tokens).unwrap();
        let want = &e.logits(&format!("{name}.{kind}.seq0"))[16 * e.vocab..17 * e.vocab];
        let d = distance(got, want, e.vocab);
        assert!(d.max <= 0.8 && d.mean <= 0.12 && d.kl <= 0.03 && d.cosine >= 0.996, "{name}: {d:?}");
    }
}

/// For a plan of 64 rows keys and values are computed from the latent rows, for one of 32 they are not.
#[test]
fn a_prompt_as_a_gpu_says_what_its_halves_say() {
    let e = Expected::of("tiny_quant/q_glm4_moe_lite");
    let file = packed_model("tiny_quant/q_glm4_moe_lite/q_glm4_moe_lite.q4_k_m.gguf");
    let device = Arc::new(InterpDevice::like(Ptx::new(80).caps()));
    let mut m = load(device, file, 64, Activations::Int8);
    let (first, second) = (e.tokens("seq0"), e.tokens("seq1"));
    let got = m.feed(&[&first[..], &second[..]].concat()).unwrap().to_vec();
    m.truncate(0);
    m.feed(&first).unwrap();
    let d = distance(&got, m.feed(&second).unwrap(), e.vocab);
    assert!(d.max <= 0.4 && d.mean <= 0.06 && d.kl <= 0.01 && d.cosine >= 0.998, "{d:?}");
}

/// In room for many positions the first have a plan of their own on a GPU: that of a short context.
#[test]
fn an_answer_as_a_gpu_begins_alike_in_a_long_context() {
    let e = Expected::of("tiny_quant/q_glm4_moe_lite");
    let [short, long] = [64, 9000].map(|context| {
        let file = packed_model("tiny_quant/q_glm4_moe_lite/q_glm4_moe_lite.q4_k_m.gguf");
        let device = Arc::new(InterpDevice::like(Ptx::new(80).caps()));
        let mut m = load(device, file, context, Activations::Int8);
        let tokens = e.tokens("seq0").into_iter().take(3);
        tokens.flat_map(|t| m.feed(&[t]).unwrap().to_vec()).collect::<Vec<_>>()
    });
    let d = distance(&long, &short, e.vocab);
    assert!(d.max <= 0.4 && d.mean <= 0.06 && d.kl <= 0.01 && d.cosine >= 0.998, "{d:?}");
}

#[test]
fn quantised_models_with_exact_and_with_byte_activations() {
    for device in devices() {
        for (name, kinds) in
            [("q_llama", &["q8_0", "q4_k_m", "iq4_xs", "q5_0"][..]), ("q_glm4_moe_lite", &["q4_k_m"])]
        {
            let e = Expected::of(&format!("tiny_quant/{name}"));
            for kind in kinds {
                for seq in ["seq0", "seq1"] {
                    let (tokens, want) = (e.tokens(seq), e.logits(&format!("{name}.{kind}.{seq}")));
                    let what = format!("{name} {kind} {seq}");
                    let run = |activations| {
                        let file = packed_model(&format!("tiny_quant/{name}/{name}.{kind}.gguf"));
                        all_logits(&mut load(device.clone(), file, 64, activations), &tokens)
                    };
                    let d = distance(&run(Activations::F32), &want, e.vocab);
                    let good = d.max <= 1e-3 && d.mean <= 1e-4 && d.kl <= 1e-7 && d.cosine >= 0.999999;
                    assert!(good, "{what} with f32: {d:?}");
                    let d = distance(&run(Activations::Int8), &want, e.vocab);
                    let good = d.max <= 0.8 && d.mean <= 0.12 && d.kl <= 0.03 && d.cosine >= 0.996;
                    assert!(good, "{what} with int8: {d:?}");
                }
            }
        }
    }
}

/// The same numbers in F32, and a larger quantised model.
#[test]
fn files_beside_the_checkout() {
    for device in devices() {
        for (folder, file, ..) in
            MODELS.into_iter().filter(|m| m.1.ends_with(".f16.gguf") && !m.1.contains("mtp"))
        {
            let file = file.replace("f16", "f32");
            let Some(path) = beside(&format!("fixtures/tiny/{folder}/{file}")) else { return };
            let e = Expected::of(&format!("tiny/{folder}"));
            let mut m = load(device.clone(), Gguf::open(&path).unwrap(), 64, Activations::F32);
            exact(&file, &all_logits(&mut m, &e.tokens("seq0")), &e.logits("seq0"), e.vocab, 1e-3, 1e-7);
        }
    }
}
