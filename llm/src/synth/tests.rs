use super::weights::MADE;
use super::*;
use compiler::dtype::DType;
use compiler::graph::Graph;
use compiler::interp::tensor::{Env, eval1};
use std::collections::HashSet;

fn small(spec: &str) -> Gguf {
    open(spec, Changes { layers: Some(2), vocab: Some(300), experts: None }).unwrap()
}

#[test]
fn names_and_sizes_that_are_wrong_are_named() {
    let error = |spec: &str, changes| open(spec, changes).unwrap_err().to_string();
    let none = Changes::default();
    assert!(error("glm-5:q4_0", none).contains("\"glm-5\"; there are glm-4.7-flash, deepseek-v2-lite,"));
    assert!(error("glm-4.7-flash:q3", none).contains("\"q3\"; there are q4_0, q4_k_m, q8_0, f16"));
    let says = error("glm-4.7-flash", Changes { experts: Some(3), ..none });
    assert_eq!(says, "glm-4.7-flash: experts must be from 4 to 4096, not 3");
    assert!(error("glm-4.7-flash", Changes { layers: Some(0), ..none }).contains("layers must be from 1"));
    assert!(
        error("glm-4.7-flash", Changes { vocab: Some(i64::MAX), ..none }).contains("vocab must be from 258")
    );
    assert_eq!(
        error("youtu-llm-2b", Changes { experts: Some(8), ..none }),
        "youtu-llm-2b has no experts to change"
    );
}

/// Tensor bytes of whole models, as the published files of the same mix have them within a few percent.
#[test]
fn sizes_are_those_of_the_real_models() {
    for (spec, gigabytes) in [
        ("glm-4.7-flash:q4_0", 16.95),
        ("GLM-4.7-Flash:Q8_0", 31.7),
        ("deepseek-v2-lite:q4_k_m", 10.36),
        ("youtu-llm-2b:f16", 3.92),
        ("qwen3-30b-a3b:q4_k_m", 18.5),
        ("qwen2.5-coder-1.5b:q4_k_m", 0.98),
        ("llama-3.2-1b:f16", 2.47),
    ] {
        let got = open(spec, Changes::default()).unwrap().bytes_total() as f64 / 1e9;
        assert!((got / gigabytes - 1.0).abs() < 0.03, "{spec}: {got} GB, not {gigabytes}");
    }
}

#[test]
fn every_model_and_mix_has_sound_tensors() {
    for name in names() {
        for quant in quants() {
            let model = small(&format!("{name}:{quant}"));
            let keys = model.metadata().map(|(k, _)| k).collect::<HashSet<_>>();
            assert!(keys.contains(format!("{}.block_count", model.architecture().unwrap()).as_str()));
            for t in model.tensors() {
                assert!(MADE.contains(&t.format.name), "{t:?}");
                assert_eq!(t.dims[t.dims.len() - 1] % t.format.block, 0, "{t:?}");
                assert_eq!(model.bytes(t, 0..64).unwrap().len(), 64);
            }
        }
    }
}

#[test]
fn ranges_agree_wherever_they_are_cut() {
    let (model, again) = (small("glm-4.7-flash:q4_0"), small("glm-4.7-flash:q4_0"));
    for name in
        ["blk.1.ffn_up_exps.weight", "blk.0.attn_norm.weight", "blk.1.exp_probs_b.bias", "output.weight"]
    {
        let t = model.tensor(name).unwrap();
        let n = t.bytes().min(100_000);
        let whole = model.bytes(t, 0..n).unwrap();
        assert!(
            again.bytes(again.tensor(name).unwrap(), 0..n).unwrap() == whole,
            "{name} is not the same again"
        );
        for (start, end) in [(0, 1), (1, 2), (n / 3, n / 2), (n / 2 + 1, n), (n, n)] {
            assert!(*model.bytes(t, start..end).unwrap() == whole[start..end], "{name} {start}..{end}");
        }
    }
    let [a, b] = ["blk.1.ffn_up_exps.weight", "blk.1.ffn_gate_exps.weight"].map(|n| model.tensor(n).unwrap());
    assert_ne!(model.bytes(a, 0..4096).unwrap(), model.bytes(b, 0..4096).unwrap());
}

/// Mean and deviation of a tensor's first rows.
fn moments(model: &Gguf, name: &str) -> (f64, f64) {
    let t = model.tensor(name).unwrap();
    let cols = t.dims[t.dims.len() - 1];
    let rows = 16;
    let raw = model.bytes(t, 0..(rows * t.format.row_bytes(cols)) as usize).unwrap();
    let (g, mut env) = (Graph::new(), Env::default());
    let blocks = g.input("raw", DType::U8, vec![rows, cols / t.format.block, t.format.bytes]);
    env.set(blocks, raw.into_owned());
    let values = eval1(t.format.planes(blocks).dequant(), &env).floats();
    assert_eq!(values.len() as i64, rows * cols);
    assert!(values.iter().all(|v| v.is_finite()), "{t:?}");
    let n = values.len() as f64;
    let mean = values.iter().map(|&v| v as f64).sum::<f64>() / n;
    (mean, (values.iter().map(|&v| (v as f64 - mean).powi(2)).sum::<f64>() / n).sqrt())
}

#[test]
fn values_have_the_variance_of_an_initialised_layer() {
    let mut seen = HashSet::new();
    for spec in
        ["glm-4.7-flash:q4_0", "glm-4.7-flash:q4_k_m", "deepseek-v2-lite:q8_0", "deepseek-v2-lite:f16"]
    {
        let model = open(spec, Changes { layers: Some(8), vocab: Some(300), experts: None }).unwrap();
        for t in model.tensors() {
            if t.dims.len() < 2 || t.dims[0] < 64 || !seen.insert((t.format.id, t.dims[t.dims.len() - 1])) {
                continue;
            }
            let (mean, deviation) = moments(&model, &t.name);
            let relative = deviation * (t.dims[t.dims.len() - 1] as f64).sqrt();
            assert!(
                (0.8..1.25).contains(&relative) && mean.abs() < 0.15 * deviation,
                "{t:?}: {mean} {relative}"
            );
        }
    }
    let formats: HashSet<u32> = seen.iter().map(|s| s.0).collect();
    assert!(formats.len() >= 8, "{formats:?}");
}

#[test]
fn llama_3_stretches_long_waves() {
    let model = small("llama-3.2-1b:f16");
    let t = model.tensor("rope_freqs.weight").unwrap();
    assert_eq!((t.format.name, &t.dims[..]), ("F32", &[32i64][..]));
    let raw = model.bytes(t, 0..t.bytes()).unwrap();
    let factors: Vec<f32> = raw.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    assert_eq!((factors[0], factors[31]), (1.0, 32.0));
    assert!(factors.is_sorted() && factors.iter().any(|f| (2.0..30.0).contains(f)), "{factors:?}");
}

#[test]
fn any_text_has_tokens() {
    let model = small("qwen3-30b-a3b:q8_0");
    let tokens = model.strings("tokenizer.ggml.tokens").unwrap();
    assert_eq!((tokens.len(), tokens[32], tokens[65], tokens[299]), (300, "Ġ", "A", "<t299>"));
    assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), 300);
    assert_eq!(model.int("tokenizer.ggml.eos_token_id").unwrap(), 299);
    assert_eq!(model.opt_ints("tokenizer.ggml.token_type").unwrap().unwrap().len(), 300);
}

#[test]
fn files_hold_what_is_made() {
    let folder = std::env::temp_dir().join(format!("glimmer-synth-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("m.gguf");
    let changes = Changes { layers: Some(1), vocab: Some(300), experts: None };
    let model = open("qwen2.5-coder-1.5b:q4_k_m", changes).unwrap();
    let (mut last, mut all) = (0, 0);
    gguf::write_gguf(&model, &path, &mut |done, total| {
        assert!(done >= last && done <= total);
        (last, all) = (done, total);
    })
    .unwrap();
    assert_eq!((last, std::fs::metadata(&path).unwrap().len()), (all, all));
    let back = Gguf::open(&path).unwrap();
    assert!(back.metadata().eq(model.metadata()));
    for (a, b) in model.tensors().iter().zip(back.tensors()) {
        assert_eq!((&a.name, a.format.id, &a.dims), (&b.name, b.format.id, &b.dims));
        assert!(model.bytes(a, 0..a.bytes()).unwrap() == back.bytes(b, 0..b.bytes()).unwrap(), "{a:?}");
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "a temporary file is left");
    let error = gguf::write_gguf(&model, &folder.join("no/m.gguf"), &mut |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("no/m.gguf: "), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
}
