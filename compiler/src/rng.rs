//! Deterministic random numbers for tests: a seed in, the same sequence on every machine out (SplitMix64).
//!
//! Print the `Rng` when a test fails: it shows the seed that repeats the run.

use std::fmt;

#[derive(Clone)]
pub struct Rng {
    seed: u64,
    state: u64,
}

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng { seed, state: seed }
    }

    /// The seed this sequence began with.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of 0..n.
    pub fn below(&mut self, n: usize) -> usize {
        assert!(n > 0, "no number is below 0");
        ((self.bits() as u128 * n as u128) >> 64) as usize
    }

    /// One of lo..=hi.
    pub fn range(&mut self, lo: i64, hi: i64) -> i64 {
        assert!(lo <= hi, "{lo}..={hi} is empty");
        let span = hi.wrapping_sub(lo) as u64 as u128 + 1;
        lo.wrapping_add(((self.bits() as u128 * span) >> 64) as i64)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Uniform in [-1, 1).
    pub fn f32(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Roughly normal, mean 0 and deviation 1: a sum of twelve uniform numbers.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.f32()).sum::<f32>() / 2.0
    }

    pub fn choose<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

impl fmt::Display for Rng {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "seed {}", self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_is_fixed() {
        let mut rng = Rng::new(0);
        assert_eq!([rng.bits(), rng.bits()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
        assert_eq!(rng.to_string(), "seed 0");
    }

    #[test]
    fn ranges_are_covered_and_kept() {
        let mut rng = Rng::new(1);
        let (mut hits, mut sum, mut squares) = ([0; 5], 0.0, 0.0);
        for _ in 0..4000 {
            hits[(rng.range(-2, 2) + 2) as usize] += 1;
            assert!((-1.0..1.0).contains(&rng.f32()));
            let n = rng.normal();
            sum += n;
            squares += n * n;
        }
        assert!(hits.iter().all(|h| (600..1000).contains(h)), "{hits:?}");
        assert!((sum / 4000.0).abs() < 0.1 && (squares / 4000.0 - 1.0).abs() < 0.1, "{sum} {squares}");
        let extremes: Vec<i64> = (0..64).map(|_| rng.range(i64::MIN, i64::MAX)).collect();
        assert!(extremes.iter().any(|v| *v < 0) && extremes.iter().any(|v| *v > 0));
    }
}
