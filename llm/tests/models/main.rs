//! Whole models against other people's systems: logits of small random models from transformers, what llama.cpp says
//! with the story model, and both of them with real models. The bounds are those that the makers of the references
//! recommend. And where the time of a step goes.

mod odd;
mod paged;
mod profile;
mod real;
mod story;
mod tiny;
mod tune;

use flate2::read::GzDecoder;
use llm::gguf::Gguf;
use llm::model::{Model, Options};
use llm::sample::surprise;
use llm::weights::Activations;
use runtime::cpu::CpuDevice;
use runtime::cuda::CudaDevice;
use runtime::device::{self, Device};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The repository, also where the test was built on another machine and is run from the repository's root.
fn root() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    if built.exists() { built } else { ".".into() }
}

/// A packed file of `tests/data`, unpacked.
fn data(name: &str) -> Vec<u8> {
    let path = root().join("llm/tests/data").join(format!("{name}.gz"));
    let packed = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut out = vec![];
    GzDecoder::new(&packed[..]).read_to_end(&mut out).unwrap();
    out
}

fn json(name: &str) -> serde_json::Value {
    serde_json::from_slice(&data(name)).unwrap()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn ids(v: &serde_json::Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect()
}

/// A file that lies beside a checkout of the project and in no clone of it.
fn beside(name: &str) -> Option<PathBuf> {
    let path = root().join("../shared").join(name);
    if !path.exists() {
        println!("skipped: {name} is not part of the repository");
    }
    path.exists().then_some(path)
}

fn packed_model(name: &str) -> Gguf {
    Gguf::from_static(name, data(name).leak()).unwrap()
}

/// Every device of this machine that runs generated code.
fn devices() -> Vec<Arc<dyn Device>> {
    fn found<D: Device + 'static>(device: Result<D, device::Error>) -> Option<Arc<dyn Device>> {
        device.map(|d| Arc::new(d) as Arc<dyn Device>).inspect_err(|why| println!("skipped: {why}")).ok()
    }
    [found(CpuDevice::new(Default::default())), found(CudaDevice::new(0))].into_iter().flatten().collect()
}

fn load(device: Arc<dyn Device>, file: Gguf, context: usize, activations: Activations) -> Model {
    let drafts = file.opt_int("deepseek2.nextn_predict_layers").unwrap().unwrap_or(0) > 0;
    let options = Options {
        context: Some(context),
        activations: Some(activations),
        drafts,
        schedules: Default::default(),
    };
    Model::load(device, file, options, &mut |_, _| ()).unwrap()
}

fn all_logits(m: &mut Model, tokens: &[u32]) -> Vec<f32> {
    m.truncate(0);
    let mut rows = vec![];
    m.feed_all(tokens, &mut |row| rows.extend_from_slice(row)).unwrap();
    rows
}

fn argmax(row: &[f32]) -> u32 {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32
}

/// How far logits are from those expected.
#[derive(Debug)]
struct Distance {
    max: f32,
    mean: f32,
    kl: f64,
    cosine: f64,
}

fn distance(got: &[f32], want: &[f32], vocab: usize) -> Distance {
    assert_eq!(got.len(), want.len());
    let softmax = |row: &[f32]| -> Vec<f64> {
        let most = row.iter().copied().fold(f32::MIN, f32::max) as f64;
        let e: Vec<f64> = row.iter().map(|&v| (v as f64 - most).exp()).collect();
        let sum: f64 = e.iter().sum();
        e.iter().map(|v| v / sum).collect()
    };
    let mut d = Distance { max: 0.0, mean: 0.0, kl: 0.0, cosine: 1.0 };
    for (g, w) in got.chunks(vocab).zip(want.chunks(vocab)) {
        for (a, b) in g.iter().zip(w) {
            assert!(a.is_finite(), "{a} among the logits");
            d.max = d.max.max((a - b).abs());
            d.mean += (a - b).abs() / got.len() as f32;
        }
        let kl: f64 = softmax(w).iter().zip(softmax(g)).map(|(p, q)| p * (p / q).ln()).sum();
        let dot = |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(x, y)| *x as f64 * *y as f64).sum() };
        d.kl = d.kl.max(kl);
        d.cosine = d.cosine.min(dot(g, w) / (dot(g, g) * dot(w, w)).sqrt());
    }
    d
}
