//! Profiles of whole models: every kernel is accounted for.

use super::*;
use llm::profile::{Component, Kernel, Options as Wanted, Place, Profile};
use llm::size::Size;
use llm::synth::{self, Changes};
use runtime::cpu::Tier;
use std::collections::HashSet;

fn profile(file: Gguf, tokens: usize, depth: usize) -> Option<(Profile, Size)> {
    let device = devices().into_iter().next()?;
    let options = Options {
        context: Some(depth + tokens),
        activations: None,
        drafts: false,
        schedules: Default::default(),
    };
    let mut m = Model::load(device, file, options, &mut |_, _| ()).unwrap();
    let profile = m.profile(Wanted { tokens, apart: false, depth, repeat: 1 }).unwrap();
    assert_eq!(m.len(), depth, "the steps that were timed are forgotten");
    Some((profile, m.size().unwrap()))
}

#[test]
fn an_exact_cache_takes_twice_as_much() {
    let Some(device) = devices().into_iter().next() else { return };
    let open = || Gguf::open(&root().join("app/models/storyteller-Q4_K_M.gguf")).unwrap();
    let size = |activations| load(device.clone(), open(), 16, activations).size().unwrap();
    let (rounded, exact) = (size(Activations::Int8), size(Activations::F32));
    assert_eq!(rounded, Size::of(&open()).unwrap());
    assert_eq!(exact, Size { kv_number_bytes: 4, ..rounded });
    assert_eq!(exact.kv_bytes(7), 2 * rounded.kv_bytes(7));
}

/// A mapped file is laid out from where it lies, but for what is too near its end; a synthetic model from staging memory.
#[test]
fn a_mapped_file_loads_as_one_that_is_made() {
    let changes = Changes { layers: Some(2), vocab: Some(1000), experts: Some(8) };
    let path = std::env::temp_dir().join(format!("glimmer-mapped-{}.gguf", std::process::id()));
    for device in devices() {
        let made = || synth::open("glm-4.7-flash:q4_k_m", changes).unwrap();
        llm::gguf::write_gguf(&made(), &path, &mut |_, _| ()).unwrap();
        let logits =
            |file| all_logits(&mut load(device.clone(), file, 16, Activations::Int8), &[1, 500, 999]);
        let mapped = logits(Gguf::open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(mapped.iter().any(|v| *v != 0.0));
        assert_eq!(mapped, logits(made()), "{}", device.name());
    }
}

fn adds_up(p: &Profile) {
    assert_eq!(p.kernels.iter().map(|k| k.calls).sum::<usize>(), p.launches.len());
    for k in &p.kernels {
        let e = &k.explained;
        let shares: f64 = e.components.iter().map(|c| c.1).sum();
        assert!((shares - 1.0).abs() < 1e-9, "{}: {:?}", k.name(), e);
        assert!(!e.words.is_empty() && !e.shape.is_empty() && !e.sources.is_empty(), "{}: {e:?}", k.name());
        assert!(e.bytes > 0.0 && k.instructions > 0.0 && k.seconds > 0.0, "{}", k.name());
    }
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b;
    assert!(close(p.budget().iter().map(|b| b.1).sum(), p.seconds()));
    assert!(close(p.budget().iter().map(|b| b.2).sum(), p.bytes()));
    assert!(close(p.kernels.iter().map(|k| p.share(k)).sum(), 1.0));
    assert!((3..=p.launches.len() + 4).contains(&p.synchronisations), "{}", p.synchronisations);
}

fn components(p: &Profile) -> HashSet<Component> {
    p.budget().into_iter().map(|b| b.0).collect()
}

#[test]
fn the_story_model_token_by_token() {
    let file = Gguf::open(&root().join("app/models/storyteller-Q4_K_M.gguf")).unwrap();
    let Some((p, size)) = profile(file, 1, 5) else { return };
    adds_up(&p);
    assert_eq!(components(&p), Component::ALL.into_iter().collect());
    // Weights as the file has them, and activations.
    let touched = p.bytes() / size.token_bytes as f64;
    assert!((0.95..1.6).contains(&touched), "{touched}");
    let anatomy = p.anatomy();
    assert_eq!(anatomy.iter().map(|(_, layers, _)| layers).sum::<usize>(), 7);
    assert_eq!((anatomy[0].0, anatomy[0].1), (0, 1), "the first layer has no experts");
    let layers = p.launches.iter().filter(|l| matches!(l.place, Place::Layer { .. })).count();
    assert_eq!(anatomy.iter().map(|(_, layers, each)| layers * each.len()).sum::<usize>(), layers);
    assert_eq!(
        (p.launches[0].place, p.launches[p.launches.len() - 1].place),
        (Place::Embedding, Place::Head)
    );
}

#[test]
fn chunks_of_other_models() {
    use Component::*;
    let dense = [Embedding, Attention, FeedForward, Head, SmallOps];
    for (spec, expected) in [
        ("llama-3.2-1b:q4_0", &dense[..]),
        ("qwen3-30b-a3b:q4_0", &[Embedding, Attention, Router, Experts, Head, SmallOps]),
        ("deepseek-v2-lite:q4_0", &Component::ALL),
    ] {
        for tokens in [1, 60] {
            let changes = Changes { layers: Some(2), vocab: Some(1024), experts: Some(8) };
            let changes =
                if spec.starts_with("llama") { Changes { experts: None, ..changes } } else { changes };
            let Some((p, _)) = profile(synth::open(spec, changes).unwrap(), tokens, 0) else { return };
            adds_up(&p);
            assert_eq!(components(&p), expected.iter().copied().collect(), "{spec}, {tokens} tokens");
            assert_eq!(p.rows, if tokens == 1 { 1 } else { 64 });
        }
    }
}

#[test]
fn a_step_takes_what_a_plan_takes() {
    let file =
        synth::open("llama-3.2-1b:q4_0", Changes { layers: Some(1), vocab: Some(1024), experts: None });
    let Some(device) = devices().into_iter().next() else { return };
    let mut m = load(device, file.unwrap(), 600, Activations::Int8);
    let error = |m: &mut Model, tokens| match m.profile(Wanted { tokens, apart: false, depth: 0, repeat: 1 })
    {
        Ok(_) => panic!("{tokens} tokens were taken"),
        Err(e) => e.to_string(),
    };
    assert_eq!(error(&mut m, 0), "one step takes from 1 to 512 tokens, not 0");
    assert_eq!(error(&mut m, 513), "one step takes from 1 to 512 tokens, not 513");
}

#[test]
fn a_token_of_each_of_several_sequences() {
    let file = synth::open(
        "deepseek-v2-lite:q4_0",
        Changes { layers: Some(2), vocab: Some(1024), experts: Some(8) },
    );
    let Some(device) = devices().into_iter().next() else { return };
    let mut m = load(device, file.unwrap(), 100, Activations::Int8);
    let p = m.profile(Wanted { tokens: 3, apart: true, depth: 40, repeat: 1 }).unwrap();
    adds_up(&p);
    assert_eq!((p.rows, components(&p)), (4, Component::ALL.into_iter().collect()));
}

/// What a token of GLM-4.7-Flash costs, read off the generated code and not timed: two layers of the real shapes, of which
/// the first is dense, with fewer experts and words. More launches, synchronisations, instructions or bytes are to be meant.
#[test]
fn the_code_of_glm_does_not_grow() {
    let tier = Some(Tier::Avx512Vnni);
    let device = match CpuDevice::new(runtime::cpu::Options { threads: Some(2), tier }) {
        Ok(device) => Arc::new(device),
        Err(why) => return println!("skipped: {why}"),
    };
    let changes = Changes { layers: Some(2), vocab: Some(1024), experts: Some(8) };
    let mut m = load(device, synth::open("glm-4.7-flash:q4_0", changes).unwrap(), 64, Activations::Int8);
    let p = m.profile(Wanted { tokens: 1, apart: false, depth: 0, repeat: 1 }).unwrap();
    let sum = |of: &dyn Fn(&Kernel) -> f64| p.kernels.iter().map(|k| of(k) * k.calls as f64).sum::<f64>();
    let found =
        [p.launches.len() as f64, p.synchronisations as f64, sum(&|k| k.instructions), sum(&|k| k.loaded)];
    assert_eq!(found, GLM, "launches, synchronisations, instructions and bytes loaded");
}

const GLM: [f64; 4] = [47.0, 45.0, 14_298_987.0, 98_297_088.0];
