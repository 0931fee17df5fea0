//! Bodies that were damaged at random: each is understood or refused in words, and no endpoint breaks.

use app::serve::{ROUTES, understand};
use compiler::rng::Rng;
use std::fs;
use std::path::Path;

/// The bodies that the fuzz target begins with.
fn corpus() -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/requests");
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|p| fs::read(p).unwrap()).collect()
}

fn damaged(body: &[u8], others: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut body = body.to_vec();
    for _ in 0..1 + rng.below(4) {
        if body.is_empty() {
            break;
        }
        let at = rng.below(body.len());
        match rng.below(6) {
            0 => body[at] = rng.bits() as u8,
            1 => drop(body.remove(at)),
            2 => body.truncate(at),
            3 => {
                let value = *rng.choose(&["null", "[]", "{}", "-1", "1e999", "\"\""]);
                drop(body.splice(at..at, value.bytes()));
            }
            4 => {
                let other = rng.choose(others);
                let from = rng.below(other.len().max(1));
                drop(body.splice(at..at, other[from..].iter().take(40).copied()));
            }
            _ => {
                let end = (at + rng.below(30)).min(body.len());
                drop(body.drain(at..end));
            }
        }
    }
    body
}

#[test]
fn no_body_breaks_an_endpoint() {
    let bodies = corpus();
    assert!(bodies.len() >= 8);
    let mut rng = Rng::new(11);
    let (mut fine, mut refused) = (0, 0);
    for round in 0..6000 {
        let body = rng.choose(&bodies).clone();
        let body =
            if round < bodies.len() { bodies[round].clone() } else { damaged(&body, &bodies, &mut rng) };
        for route in ROUTES.iter().filter(|r| r.method == "POST") {
            match understand(route.what, &body, 1000) {
                Ok(_) => fine += 1,
                Err(e) => {
                    assert!(e.status.as_u16() == 400 && !e.message.is_empty());
                    refused += 1;
                }
            }
        }
    }
    assert!(fine > 100 && refused > 1000, "{fine} {refused}");
}
