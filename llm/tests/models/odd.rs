//! Small random models of sizes that fit no tile, no vector and no block: 5 or 7 heads, ranks of 36, 11 experts. What
//! llama.cpp says with their weights in F32.

use super::*;
use runtime::cpu::{Options as CpuOptions, Tier};
use runtime::interp::InterpDevice;

/// Every tier of this machine's CPU.
fn tiers() -> Vec<(String, Arc<dyn Device>)> {
    let tier = |tier: Tier| {
        let device = CpuDevice::new(CpuOptions { tier: Some(tier), ..Default::default() });
        let device = device.inspect_err(|why| println!("skipped: {why}")).ok()?;
        Some((format!("{tier:?}"), Arc::new(device) as Arc<dyn Device>))
    };
    [Tier::Avx2, Tier::Avx512, Tier::Avx512Vnni, Tier::Amx].into_iter().filter_map(tier).collect()
}

#[test]
fn odd_sizes_on_every_tier() {
    for (tier, device) in tiers() {
        for entry in json("odd/index.json").as_array().unwrap() {
            let (name, tokens) = (entry["name"].as_str().unwrap(), ids(&entry["tokens"]));
            let (want, vocab) = (logits(name), entry["vocab"].as_u64().unwrap() as usize);
            let open = |activations| load(device.clone(), model(name), 64, activations);
            let what = format!("{name} on {tier}");
            let mut m = open(Activations::F32);
            let d = distance(&all_logits(&mut m, &tokens), &want, vocab);
            assert!(d.max <= 1e-3 && d.kl <= 1e-7, "{what}: {d:?}");
            m.truncate(0);
            for (token, want) in tokens.iter().zip(want.chunks(vocab)).take(3) {
                let d = distance(m.feed(&[*token]).unwrap(), want, vocab);
                assert!(d.max <= 1e-3 && d.kl <= 1e-7, "{what}, one by one: {d:?}");
            }
            if name.ends_with(".quantised") {
                let d = distance(&all_logits(&mut open(Activations::Int8), &tokens), &want, vocab);
                let good = d.max <= 0.8 && d.mean <= 0.12 && d.kl <= 0.03 && d.cosine >= 0.996;
                assert!(good, "{what} with int8: {d:?}");
            }
        }
    }
}

#[test]
fn the_interpreter_agrees_on_odd_sizes() {
    for entry in json("odd/index.json").as_array().unwrap() {
        let (name, tokens) = (entry["name"].as_str().unwrap(), ids(&entry["tokens"]));
        let mut m = load(Arc::new(InterpDevice::default()), model(name), 16, Activations::F32);
        let got = all_logits(&mut m, &tokens[..3]);
        let d = distance(&got, &logits(name)[..got.len()], m.vocab());
        assert!(d.max <= 1e-3 && d.kl <= 1e-7, "{name}: {d:?}");
    }
}

fn model(name: &str) -> Gguf {
    packed_model(&format!("odd/{name}.gguf"))
}

fn logits(name: &str) -> Vec<f32> {
    floats(&data(&format!("odd/{name}.logits.bin")))
}
