//! Angles of the rotary embedding, as tables over positions.
//!
//! In: base, dimensions, scaling, and a file's own frequency factors. Out: cosine and sine for every position of the
//! context. Angles are rounded to f32 before their sine is taken, as they were when the models were trained.

use compiler::ops::Rope;

#[derive(Clone, Debug)]
pub struct Rotary {
    pub style: Rope,
    /// Elements of a head that turn.
    pub dims: i64,
    pub base: f32,
    pub scaling: Scaling,
}

#[derive(Clone, Debug)]
pub enum Scaling {
    None,
    Linear {
        factor: f32,
    },
    /// Peng et al., "YaRN" (arXiv:2309.00071): slow frequencies are stretched, fast ones are not.
    Yarn {
        factor: f32,
        original: i64,
        fast: f32,
        slow: f32,
        /// DeepSeek's: the scores grow by `(1 + m·ln factor)²` instead of the embedding by `1 + 0.1·ln factor`.
        log_multiplier: Option<f32>,
    },
}

impl Rotary {
    /// What the scaling multiplies scores by.
    pub fn score_factor(&self) -> f32 {
        match self.scaling {
            Scaling::Yarn { factor, log_multiplier: Some(m), .. } => (1.0 + m * factor.ln()).powi(2),
            _ => 1.0,
        }
    }

    /// What cosine and sine are multiplied by.
    fn magnitude(&self) -> f64 {
        match self.scaling {
            Scaling::Yarn { factor, log_multiplier: None, .. } => 1.0 + 0.1 * (factor as f64).ln(),
            _ => 1.0,
        }
    }

    /// The angle of one position for each pair; `factors` divide the frequencies.
    fn frequencies(&self, factors: Option<&[f32]>) -> Vec<f32> {
        let (n, base) = (self.dims as f64, self.base as f64);
        let one = |i: usize| {
            let plain = base.powf(-2.0 * i as f64 / n) / factors.map_or(1.0, |f| f[i] as f64);
            match self.scaling {
                Scaling::None => plain,
                Scaling::Linear { factor } => plain / factor as f64,
                Scaling::Yarn { factor, original, fast, slow, .. } => {
                    // The pair that turns `turns` times within the original context.
                    let pair = |turns: f32| {
                        let positions = original as f64 / (turns as f64 * std::f64::consts::TAU);
                        n * positions.ln() / (2.0 * base.ln())
                    };
                    let (low, high) = (pair(fast).floor().max(0.0), pair(slow).ceil().min(n - 1.0));
                    let stretch = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                    plain * (1.0 - stretch) + plain / factor as f64 * stretch
                }
            }
        };
        (0..self.dims as usize / 2).map(|i| one(i) as f32).collect()
    }

    /// Cosine and sine, each `[positions, dims/2]`.
    pub fn tables(&self, positions: usize, factors: Option<&[f32]>) -> (Vec<f32>, Vec<f32>) {
        let (frequencies, magnitude) = (self.frequencies(factors), self.magnitude());
        let angles = (0..positions).flat_map(|p| frequencies.iter().map(move |f| (p as f32 * f) as f64));
        angles.map(|a| ((a.cos() * magnitude) as f32, (a.sin() * magnitude) as f32)).unzip()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yarn(log_multiplier: Option<f32>) -> Rotary {
        let scaling = Scaling::Yarn { factor: 40.0, original: 4096, fast: 32.0, slow: 1.0, log_multiplier };
        Rotary { style: Rope::Interleaved, dims: 64, base: 10_000.0, scaling }
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_stretches_slow_ones() {
        let plain = Rotary { scaling: Scaling::None, ..yarn(None) }.frequencies(None);
        let f = yarn(None).frequencies(None);
        // 64·ln(4096/(32·2π))/(2·ln 10000) = 10.5 and, for one turn, 22.5.
        assert_eq!(f[..=10], plain[..=10]);
        for i in 23..32 {
            assert!((f[i] * 40.0 / plain[i] - 1.0).abs() < 1e-6, "pair {i}");
        }
        assert!(f[16] < plain[16] && f[16] > plain[16] / 40.0);
    }

    #[test]
    fn a_log_multiplier_moves_the_magnitude_into_the_scores() {
        assert_eq!(yarn(None).score_factor(), 1.0);
        assert!((yarn(None).tables(1, None).0[0] - 1.368_888).abs() < 1e-5);
        assert!((yarn(Some(0.0707)).score_factor() - 1.589_63).abs() < 1e-4);
        assert_eq!(yarn(Some(0.0707)).tables(1, None).0[0], 1.0);
    }

    #[test]
    fn factors_of_the_file_divide_the_frequencies() {
        let r = Rotary { style: Rope::HalfSplit, dims: 4, base: 100.0, scaling: Scaling::None };
        assert_eq!(r.frequencies(Some(&[1.0, 8.0])), [1.0, 0.1 / 8.0]);
    }
}
