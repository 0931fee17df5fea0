//! Bytes of synthetic tensors. In: a tensor and a range. Out: valid blocks whose values have the variance of an initialised
//! layer, the same for the same place whatever the range.
//!
//! Blocks come from pools that are filled once, one for each format and deviation; a tensor is pieces of its pool, from
//! places that depend on the tensor's name and the piece's number.

use crate::gguf::TensorInfo;
use compiler::quant::Format;
use compiler::rng::Rng;
use half::f16;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a pool: they stay in the cache that a core has for itself.
const POOL: usize = 1 << 20;
/// Bytes that are copied from one place.
const PIECE: usize = 16 << 10;

/// Whole blocks.
type Pool = Arc<[u8]>;

#[derive(Default)]
pub(super) struct Weights {
    /// By format and deviation, as bits.
    pools: Mutex<HashMap<(u32, u32), Pool>>,
    /// Tensors that are not random.
    fixed: HashMap<String, Vec<u8>>,
}

impl Weights {
    pub fn fix(&mut self, name: &str, values: &[f32]) {
        self.fixed.insert(name.into(), values.iter().flat_map(|v| v.to_le_bytes()).collect());
    }

    pub fn make(&self, t: &TensorInfo, range: Range<usize>) -> Vec<u8> {
        if let Some(bytes) = self.fixed.get(&t.name) {
            return bytes[range].to_vec();
        }
        if t.name.ends_with("norm.weight") {
            return range.map(|i| 1f32.to_le_bytes()[i % 4]).collect();
        }
        let row = t.dims[t.dims.len() - 1] as f32;
        let pool = self.pool(t.format, if t.name.ends_with("bias") { 0.01 } else { row.sqrt().recip() });
        let (block, piece) =
            (t.format.bytes as usize, PIECE / t.format.bytes as usize * t.format.bytes as usize);
        let places = (pool.len() - piece) / block + 1;
        let seed = fnv(&t.name);

        let mut out = Vec::with_capacity(range.len());
        let mut at = range.start;
        while at < range.end {
            let (number, within) = (at / piece, at % piece);
            let n = (piece - within).min(range.end - at);
            let place = Rng::new(seed ^ number as u64).below(places) * block + within;
            out.extend_from_slice(&pool[place..place + n]);
            at += n;
        }
        out
    }

    fn pool(&self, format: &'static Format, deviation: f32) -> Pool {
        // A pool is inserted whole or not at all.
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.entry((format.id, deviation.to_bits()));
        pool.or_insert_with(|| fill(format, deviation).into()).clone()
    }
}

fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ b as u64).wrapping_mul(0x0100_0000_01b3))
}

/// The formats that [`fill`] can make.
pub(super) const MADE: [&str; 9] = ["F32", "F16", "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K"];

/// Random quants are uniform, so a block's scale is the deviation over theirs: 4.6 for 4 bits, 9.2 for 5, 18.5 for 6 and
/// 74 for 8. Scales vary by half, those of large blocks by a fifth and inside the block from 24 to 40.
fn fill(format: &Format, deviation: f32) -> Vec<u8> {
    let mut rng = Rng::new(format.id as u64);
    let mut out = Vec::with_capacity(POOL + 8);
    while out.len() < POOL {
        out.extend(rng.bits().to_le_bytes());
    }
    out.truncate(POOL / format.bytes as usize * format.bytes as usize);
    for b in out.chunks_exact_mut(format.bytes as usize) {
        let mut vary = |by: f32| deviation * (1.0 + by * rng.f32());
        match format.name {
            "F32" => b.copy_from_slice(&(rng.normal() * deviation).to_le_bytes()),
            "F16" => put(b, 0, rng.normal() * deviation),
            "Q4_0" => put(b, 0, vary(0.5) / 4.6),
            "Q4_1" => {
                let d = vary(0.5) / 4.6;
                put(b, 0, d);
                put(b, 2, -7.5 * d);
            }
            "Q5_0" => put(b, 0, vary(0.5) / 9.2),
            "Q8_0" => put(b, 0, vary(0.5) / 74.0),
            "Q4_K" | "Q5_K" => {
                let top = if format.name == "Q4_K" { 15.0 } else { 31.0 };
                let d = vary(0.2) / (top * 0.3 * 32.0);
                put(b, 0, d);
                put(b, 2, d * top / 2.0);
                // Scales and minima are equal, which centres the values on zero.
                for i in 0..4 {
                    let [first, last] = [(); 2].map(|()| 24 + rng.below(17) as u8);
                    b[4 + i] = first | (last >> 4) << 6;
                    b[8 + i] = b[4 + i];
                    b[12 + i] = (last & 15) * 0x11;
                }
            }
            "Q6_K" => {
                put(b, 208, vary(0.2) / (18.5 * 32.0));
                b[192..208].iter_mut().for_each(|s| *s = 24 + rng.below(17) as u8);
            }
            other => unreachable!("{other} is not in {MADE:?}"),
        }
    }
    out
}

fn put(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}
