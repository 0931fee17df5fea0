//! Sequences in pages: what they say does not depend on where their pages lie, on what runs beside them, or on whether a
//! row was computed alone.

use super::{data, devices, distance, ids, json, load, packed_model, root};
use llm::gguf::Gguf;
use llm::model::Model;
use llm::paged::{PAGE, Row};
use llm::weights::Activations;

fn story() -> Gguf {
    Gguf::open(&root().join("app/models/storyteller-Q4_K_M.gguf")).unwrap()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn probe() {
    for device in devices() {
        for act in [Activations::Int8, Activations::F32] {
            let mut m = load(device.clone(), story(), 256, act);
            m.reserve(4096).unwrap();
            let v = m.vocab();
            let tokens: Vec<u32> = (0..100).map(|i| (i * 37 + 11) % v as u32).collect();
            let mut want = vec![];
            m.feed_all(&tokens, &mut |r| want.extend_from_slice(r)).unwrap();
            let mut one = vec![];
            m.truncate(0);
            for t in &tokens {
                one.extend(m.feed(&[*t]).unwrap());
            }
            let table = [7u32, 3, 9, 1];
            // decode alone through the pages
            let mut alone = vec![];
            for (i, t) in tokens.iter().enumerate() {
                alone.extend(m.batch(&[Row { token: *t, pos: i, table: &table }]).unwrap());
            }
            println!(
                "{} {act:?} batch1 vs feed1: equal {} {:?}",
                device.name(),
                bits(&alone) == bits(&one),
                distance(&alone, &one, v)
            );
            for n in [2usize, 4, 8, 16, 32] {
                let mut rows = vec![];
                let other = [20u32, 21, 22, 23];
                for c in tokens.chunks(n) {
                    let at = rows.len() / v;
                    let rs: Vec<Row> = c
                        .iter()
                        .enumerate()
                        .map(|(i, t)| Row { token: *t, pos: at + i, table: &other })
                        .collect();
                    rows.extend(m.batch(&rs).unwrap());
                }
                println!(
                    "  batch{n} vs batch1: equal {} {:?}",
                    bits(&alone) == bits(&rows),
                    distance(&rows, &alone, v)
                );
            }
            for n in [8usize, 32, 64, 100] {
                let t = [30u32, 31, 32, 33];
                let mut lasts = vec![];
                let mut wants = vec![];
                let mut at = 0;
                for c in tokens.chunks(n) {
                    lasts.extend(m.prompt(c, at, &t, true).unwrap().unwrap());
                    at += c.len();
                    wants.extend_from_slice(&want[(at - 1) * v..at * v]);
                }
                // last position only
                println!("  prompt{n} last vs feed_all: {:?}", distance(&lasts, &wants, v));
                let l = lasts.len();
                println!("  prompt{n} hash last {:?}", &bits(&lasts[l - v..])[..4]);
            }
        }
    }
}
