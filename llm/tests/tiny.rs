//! Small random models against transformers' logits.
use llm::gguf::Gguf;
use llm::model::{Model, Options};
use llm::weights::Activations;
use runtime::cpu::CpuDevice;
use std::path::Path;
use std::sync::Arc;

#[test]
fn all() {
    let dir = Path::new("../../shared/fixtures/tiny");
    let only = std::env::args().nth(2);
    for name in
        ["llama", "llama3_rope", "qwen2", "qwen3", "qwen3_moe", "youtu", "glm4_moe_lite", "deepseek_v2"]
    {
        if only.as_ref().is_some_and(|o| o != name) {
            continue;
        }
        let t = std::time::Instant::now();
        let file = Gguf::open(&dir.join(name).join(format!("{name}.f16.gguf"))).unwrap();
        let e: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(dir.join(name).join("expected.json")).unwrap())
                .unwrap();
        let device = Arc::new(CpuDevice::new(Default::default()).unwrap());
        let mut m = Model::load(
            device,
            file,
            Options { context: Some(512), activations: Some(Activations::F32), drafts: false },
            &mut |_, _| (),
        )
        .unwrap();
        println!("{name}: load {:?}", t.elapsed());
        for seq in ["seq0", "seq1"] {
            let tokens: Vec<u32> =
                e[seq]["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
            let want: Vec<f32> = std::fs::read(dir.join(name).join(format!("{seq}.logits.bin")))
                .unwrap()
                .chunks(4)
                .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
                .collect();
            for one in [false, true] {
                m.truncate(0);
                let mut got = vec![];
                let t = std::time::Instant::now();
                if one {
                    for t in &tokens {
                        got.extend(m.feed(&[*t]).unwrap());
                    }
                } else {
                    m.feed_all(&tokens, &mut |r| got.extend_from_slice(r)).unwrap();
                }
                let max = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                println!("  {seq} one={one} {:?} max {max} {}", t.elapsed(), got.len() == want.len());
            }
        }
    }
}
