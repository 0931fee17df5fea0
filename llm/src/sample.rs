//! Choosing the next token. In: logits and the tokens so far. Out: one token id.
//!
//! The chain has the order of llama.cpp's: logit bias, penalties (repetition, then frequency and presence), top-k, top-p,
//! min-p, temperature, a random draw. Top-p and min-p therefore see the probabilities at temperature 1.
//!
//! The same logits, history and seed give the same token on every machine: the generator and the exponential are made
//! of exact integer and IEEE operations, ties go to the smaller id.

use crate::gguf::{self, Gguf};
use compiler::rng::Rng;
use std::cmp::Ordering;

/// How tokens are chosen. The defaults are llama.cpp's, but for the seed, which is 0.
#[derive(Clone, PartialEq, Debug)]
pub struct Sampling {
    /// 0 takes the most probable token (the first of equals) and ignores top-k, top-p and min-p. Default 0.8.
    pub temperature: f32,
    /// Keeps the k most probable tokens; 0 keeps all. Default 40.
    pub top_k: usize,
    /// Keeps the fewest most probable tokens that together have at least this probability; 1 keeps all. Default 0.95.
    pub top_p: f32,
    /// Keeps tokens at least this fraction as probable as the most probable one; 0 keeps all. Default 0.05.
    pub min_p: f32,
    /// Logits of recent tokens are divided by it where positive, multiplied where negative; 1 is off. Default 1.
    pub repeat_penalty: f32,
    /// How many recent tokens the penalties look at; 0 turns them off. Default 64.
    pub repeat_last_n: usize,
    /// Taken from the logit of every recent token. Default 0.
    pub presence_penalty: f32,
    /// Taken from the logit of every recent token once for each time it occurs. Default 0.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens; minus infinity forbids one. Default none.
    pub logit_bias: Vec<(u32, f32)>,
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: vec![],
            seed: 0,
        }
    }
}

impl Sampling {
    pub fn greedy() -> Sampling {
        Sampling { temperature: 0.0, ..Sampling::default() }
    }

    /// The defaults, changed by what the file recommends in its `general.sampling.` keys. What is out of bounds means the
    /// nearest that is not: no temperature below 0 and no top-k below "all". XTC and Mirostat are not there.
    pub fn from_gguf(file: &Gguf) -> Result<Sampling, gguf::Error> {
        let float = |name: &str, least: f32, most: f32, otherwise: f32| {
            let given = file.opt_number(&format!("general.sampling.{name}"))?;
            Ok(given.map_or(otherwise, |v| (v as f32).clamp(least, most)))
        };
        let int = |name: &str, below_0: usize, otherwise: usize| {
            let given = file.opt_int(&format!("general.sampling.{name}"))?;
            Ok(given.map_or(otherwise, |v| usize::try_from(v).unwrap_or(below_0)))
        };
        let d = Sampling::default();
        Ok(Sampling {
            temperature: float("temp", 0.0, f32::MAX, d.temperature)?,
            top_k: int("top_k", 0, d.top_k)?,
            top_p: float("top_p", 0.0, 1.0, d.top_p)?,
            min_p: float("min_p", 0.0, 1.0, d.min_p)?,
            repeat_penalty: float("penalty_repeat", f32::MIN_POSITIVE, f32::MAX, d.repeat_penalty)?,
            repeat_last_n: int("penalty_last_n", usize::MAX, d.repeat_last_n)?,
            ..d
        })
    }
}

pub struct Sampler {
    how: Sampling,
    rng: Rng,
    kept: Vec<Candidate>,
    recent: Vec<u32>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Candidate {
    pub id: u32,
    pub logit: f32,
}

/// A choice among fewer tokens than this is one among few.
pub const FEW: usize = 64;

/// What a token is chosen by.
pub enum Scores<'a> {
    /// Every token's logit.
    All(&'a mut [f32]),
    /// By rising id tokens among which the best are that were asked for.
    Best(Vec<Candidate>),
}

impl Sampler {
    pub fn new(how: &Sampling) -> Sampler {
        Sampler { how: how.clone(), rng: Rng::new(how.seed), kept: vec![], recent: vec![] }
    }

    /// How many of the best tokens are all that it looks at, if these are few.
    pub fn few(&self) -> Option<usize> {
        let k = if self.how.temperature > 0.0 { self.how.top_k } else { 1 };
        Some(k).filter(|k| (1..FEW).contains(k) && self.how.logit_bias.is_empty() && !self.penalises())
    }

    /// One token. Logits are changed by the bias and the penalties; those that are no numbers count as impossible. If
    /// nothing is possible, the answer is token 0.
    pub fn sample(&mut self, scores: Scores, history: &[u32]) -> u32 {
        let draws = self.how.temperature > 0.0;
        match scores {
            Scores::All(logits) => {
                self.adjust(logits, history);
                if !draws {
                    return greedy(logits);
                }
                self.filter(logits);
            }
            Scores::Best(best) => {
                let possible =
                    best.into_iter().map(|c| Candidate { logit: finite_or_impossible(c.logit), ..c });
                self.kept.clear();
                self.kept.extend(possible.filter(|c| c.logit > f32::NEG_INFINITY));
                if !draws {
                    return self.kept.iter().min_by(|a, b| order(a, b)).map_or(0, |c| c.id);
                }
                let sorted = cut(&mut self.kept, self.how.top_k);
                self.narrow(sorted);
            }
        }
        self.draw()
    }

    fn penalises(&self) -> bool {
        let how = &self.how;
        how.repeat_penalty != 1.0 || how.presence_penalty != 0.0 || how.frequency_penalty != 0.0
    }

    /// Bias and penalties; afterwards every logit is finite or minus infinity.
    fn adjust(&mut self, logits: &mut [f32], history: &[u32]) {
        for logit in logits.iter_mut() {
            *logit = finite_or_impossible(*logit);
        }
        for &(id, bias) in &self.how.logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = finite_or_impossible(*logit + bias);
            }
        }
        if !self.penalises() {
            return;
        }
        let (repeat, presence, frequency) =
            (self.how.repeat_penalty, self.how.presence_penalty, self.how.frequency_penalty);
        self.recent.clear();
        self.recent.extend_from_slice(&history[history.len().saturating_sub(self.how.repeat_last_n)..]);
        self.recent.sort_unstable();
        for run in self.recent.chunk_by(|a, b| a == b) {
            if let Some(logit) = logits.get_mut(run[0] as usize) {
                let repeated = if *logit > 0.0 { *logit / repeat } else { *logit * repeat };
                *logit = finite_or_impossible(repeated - presence - frequency * run.len() as f32);
            }
        }
    }

    /// Top-k, top-p, min-p. What is kept is in the order of ids, or sorted where sorting was needed to choose.
    fn filter(&mut self, logits: &[f32]) {
        let k = if self.how.top_k > 0 { self.how.top_k } else { logits.len() };
        let sorted = best(logits, k, &mut self.kept);
        self.narrow(sorted);
    }

    /// Top-p and min-p among what is kept, of which so many are in order.
    fn narrow(&mut self, mut sorted: usize) {
        let kept = &mut self.kept;
        let max = kept.iter().fold(f32::NEG_INFINITY, |m, c| m.max(c.logit)) as f64;
        if self.how.top_p < 1.0 {
            let wanted = self.how.top_p as f64 * kept.iter().map(|c| exp(c.logit as f64 - max)).sum::<f64>();
            let (mut sum, mut n) = (0.0, 0);
            while n < kept.len() && (n == 0 || sum < wanted) {
                if n == sorted {
                    sorted = (4 * sorted).max(64).min(kept.len());
                    sort_first(&mut kept[n..], sorted - n);
                }
                sum += exp(kept[n].logit as f64 - max);
                n += 1;
            }
            kept.truncate(n);
        }
        if self.how.min_p > 0.0 {
            let least = self.how.min_p.min(1.0) as f64;
            kept.retain(|c| exp(c.logit as f64 - max) >= least);
        }
    }

    fn draw(&mut self) -> u32 {
        let max = self.kept.iter().fold(f32::NEG_INFINITY, |m, c| m.max(c.logit)) as f64;
        let weight = |c: &Candidate| exp((c.logit as f64 - max) / self.how.temperature as f64);
        let total: f64 = self.kept.iter().map(weight).sum();
        let mut left = (self.rng.bits() >> 11) as f64 / (1u64 << 53) as f64 * total;
        for c in &self.kept {
            left -= weight(c);
            if left < 0.0 {
                return c.id;
            }
        }
        // Rounding may leave a trace of `left` behind the last one.
        self.kept.last().map_or(0, |c| c.id)
    }
}

fn finite_or_impossible(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit.min(f32::MAX) }
}

/// Two passes that vector units take, where one with an index is not.
fn greedy(logits: &[f32]) -> u32 {
    let most = largest(logits);
    logits.iter().position(|l| *l == most).unwrap_or(0) as u32
}

fn largest(logits: &[f32]) -> f32 {
    let mut most = [f32::NEG_INFINITY; 16];
    for lanes in logits.chunks(16) {
        for (m, l) in most.iter_mut().zip(lanes) {
            *m = if *l > *m { *l } else { *m };
        }
    }
    most.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// The `k` largest logits but minus infinity; says how many of `out` are in order, which is all or none.
fn best(logits: &[f32], k: usize, out: &mut Vec<Candidate>) -> usize {
    out.clear();
    let mut take = |first: usize, of: &[f32], least: f32| {
        let ids = (first as u32..).zip(of).filter(|(_, l)| **l >= least && **l > f32::NEG_INFINITY);
        out.extend(ids.map(|(id, &logit)| Candidate { id, logit }));
    };
    let parts = k.saturating_mul(4).max(256);
    if parts >= logits.len() {
        take(0, logits, f32::NEG_INFINITY);
    } else {
        // The k-th largest of the parts' maxima is at most the k-th largest of all, and few are above it that are not wanted.
        let width = logits.len().div_ceil(parts);
        let maxima: Vec<f32> = logits.chunks(width).map(largest).collect();
        let least = *maxima.clone().select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1;
        for (i, part) in logits.chunks(width).enumerate().filter(|(i, _)| maxima[*i] >= least) {
            take(i * width, part, least);
        }
    }
    cut(out, k)
}

/// Leaves the best `k`; says how many are in order, which is all or none.
fn cut(of: &mut Vec<Candidate>, k: usize) -> usize {
    if of.len() <= k {
        return 0;
    }
    sort_first(of, k);
    of.truncate(k);
    k
}

/// The `n` most probable to the front, in order.
fn sort_first(of: &mut [Candidate], n: usize) {
    if n < of.len() {
        of.select_nth_unstable_by(n, order);
    }
    of[..n].sort_unstable_by(order);
}

fn order(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

/// 1/n! to the 13th: the rest of the series is below 1e-16 for arguments up to ln(2)/2.
const TAYLOR: [f64; 14] = {
    let (mut c, mut n) = ([1.0; 14], 1);
    while n < 14 {
        c[n] = c[n - 1] / n as f64;
        n += 1;
    }
    c
};

/// The exponential of a number that is not positive, without the platform's library, whose last bit varies.
fn exp(x: f64) -> f64 {
    if x < -700.0 {
        return 0.0;
    }
    let n = (x * std::f64::consts::LOG2_E).round();
    // ln 2 in two parts: the first has trailing zero bits, so that its product with n is exact.
    let r = x - n * 0.693_147_180_369_123_8 - n * 1.908_214_929_270_587_7e-10;
    let series = TAYLOR.iter().rev().fold(0.0, |sum, c| sum * r + c);
    series * f64::from_bits(((1023 + n as i64) as u64) << 52)
}

/// `-ln p(token)`
pub fn surprise(logits: &[f32], token: u32) -> f64 {
    let most = logits.iter().copied().fold(f32::MIN, f32::max) as f64;
    let sum: f64 = logits.iter().map(|&l| (l as f64 - most).exp()).sum();
    most + sum.ln() - logits[token as usize] as f64
}

/// `ln p` of a token, and of the `n` most probable ones in falling order.
pub fn log_probabilities(logits: &[f32], token: u32, n: usize) -> (f32, Vec<(u32, f32)>) {
    let most = logits.iter().copied().fold(f32::MIN, f32::max) as f64;
    let sum: f64 = logits.iter().map(|&l| (l as f64 - most).exp()).sum();
    let of = |logit: f32| (logit as f64 - most - sum.ln()) as f32;
    let mut top = vec![];
    if n > 0 {
        best(logits, n, &mut top);
        let n = n.min(top.len());
        sort_first(&mut top, n);
        top.truncate(n);
    }
    let chosen = logits.get(token as usize).map_or(f32::NEG_INFINITY, |l| of(*l));
    (chosen, top.into_iter().map(|c| (c.id, of(c.logit))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::{Value, header};

    /// Everything is off but the draw at temperature 1.
    fn plain() -> Sampling {
        Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Sampling::default() }
    }

    fn random_logits(n: usize, seed: u64) -> Vec<f32> {
        let mut rng = Rng::new(seed);
        (0..n).map(|_| rng.normal() * 3.0).collect()
    }

    fn kept(how: &Sampling, logits: &[f32]) -> Vec<u32> {
        let mut sampler = Sampler::new(how);
        sampler.filter(logits);
        let mut ids: Vec<u32> = sampler.kept.iter().map(|c| c.id).collect();
        ids.sort_unstable();
        ids
    }

    /// Ids by falling probability, and the probabilities, by a full sort.
    fn ranked(logits: &[f32]) -> Vec<(u32, f64)> {
        let total: f64 = logits.iter().map(|l| (*l as f64).exp()).sum();
        let mut all: Vec<(u32, f64)> =
            logits.iter().enumerate().map(|(i, l)| (i as u32, (*l as f64).exp() / total)).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        all
    }

    fn sorted(ids: impl Iterator<Item = u32>) -> Vec<u32> {
        let mut ids: Vec<u32> = ids.collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn files_recommend() {
        let read = |keys: &[(&str, Value)]| {
            let bytes = header(keys.iter().map(|(k, v)| (*k, v)), []);
            Sampling::from_gguf(&Gguf::from_vec("m.gguf", bytes).unwrap())
        };
        assert_eq!(read(&[]).unwrap(), Sampling::default());
        let given = read(&[
            ("general.sampling.temp", Value::F32(0.7)),
            ("general.sampling.top_k", Value::I32(20)),
            ("general.sampling.top_p", Value::F64(0.5)),
            ("general.sampling.min_p", Value::U32(0)),
            ("general.sampling.penalty_repeat", Value::F32(1.125)),
            ("general.sampling.penalty_last_n", Value::I32(-1)),
        ]);
        let want = Sampling {
            temperature: 0.7,
            top_k: 20,
            top_p: 0.5,
            min_p: 0.0,
            repeat_penalty: 1.125,
            repeat_last_n: usize::MAX,
            ..Sampling::default()
        };
        assert_eq!(given.unwrap(), want);
        let bounded = read(&[
            ("general.sampling.temp", Value::F32(-1.0)),
            ("general.sampling.top_k", Value::I32(-1)),
            ("general.sampling.top_p", Value::F32(7.0)),
        ]);
        let bounded = bounded.unwrap();
        assert_eq!((bounded.temperature, bounded.top_k, bounded.top_p), (0.0, 0, 1.0));
        for wrong in [Value::F32(f32::NAN), Value::F64(f64::INFINITY), Value::String("hot".into())] {
            let error = read(&[("general.sampling.temp", wrong)]).unwrap_err().to_string();
            assert!(error.starts_with("m.gguf: general.sampling.temp: expected a number"), "{error}");
        }
    }

    #[test]
    fn exponential_is_exact_enough() {
        for i in 0..7000 {
            let x = -0.1 * i as f64;
            assert!((exp(x) - x.exp()).abs() <= 4e-16 * x.exp(), "{x}: {} {}", exp(x), x.exp());
        }
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn greedy_takes_the_first_of_equals() {
        let mut sampler = Sampler::new(&Sampling::greedy());
        assert_eq!(sampler.sample(Scores::All(&mut [0.0, 3.0, -1.0, 3.0]), &[]), 1);
        assert_eq!(sampler.sample(Scores::All(&mut [-5.0, -5.0]), &[]), 0);
    }

    #[test]
    fn top_k_keeps_the_best() {
        for (seed, k) in [(1, 1), (2, 7), (3, 64), (4, 999), (5, 1000), (6, 5000)] {
            let logits = random_logits(1000, seed);
            let how = Sampling { top_k: k, ..plain() };
            let expected = sorted(ranked(&logits).iter().take(k).map(|r| r.0));
            assert_eq!(kept(&how, &logits), expected, "k {k}");
        }
        // Equal logits: the smaller ids; the best ones at the very end, or first.
        assert_eq!(kept(&Sampling { top_k: 3, ..plain() }, &[1.0; 1000]), [0, 1, 2]);
        let rising: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        assert_eq!(kept(&Sampling { top_k: 2, ..plain() }, &rising), [998, 999]);
        let falling: Vec<f32> = rising.iter().map(|l| -l).collect();
        let mut sampler = Sampler::new(&Sampling { top_k: 128, ..plain() });
        sampler.filter(&falling);
        assert!(sampler.kept.iter().map(|c| c.id).eq(0..128), "in order");
    }

    #[test]
    fn top_p_keeps_the_fewest_that_reach_it() {
        for (seed, p) in [(1, 0.0), (2, 0.3), (3, 0.9), (4, 0.99), (5, 0.99999)] {
            for scale in [0.05, 1.0] {
                let logits: Vec<f32> = random_logits(3000, seed).iter().map(|l| l * scale).collect();
                let ids = kept(&Sampling { top_p: p, ..plain() }, &logits);
                let rank = ranked(&logits);
                assert_eq!(ids, sorted(rank.iter().take(ids.len()).map(|r| r.0)), "the most probable");
                let mass = |n: usize| rank[..n].iter().map(|r| r.1).sum::<f64>();
                assert!(
                    mass(ids.len()) >= p as f64 - 1e-9,
                    "{p}: {} reach only {}",
                    ids.len(),
                    mass(ids.len())
                );
                assert!(ids.len() == 1 || mass(ids.len() - 1) < p as f64 + 1e-9, "{p}: one too many");
            }
        }
    }

    #[test]
    fn min_p_compares_with_the_best() {
        let logits: Vec<f32> = [0.5f32, 0.3, 0.15, 0.05].iter().map(|p| p.ln()).collect();
        for (p, expected) in [(0.05, 4), (0.2, 3), (0.5, 2), (0.7, 1), (1.0, 1), (7.0, 1)] {
            let ids = kept(&Sampling { min_p: p, ..plain() }, &logits);
            assert_eq!(ids, (0..expected).collect::<Vec<u32>>(), "min-p {p}");
        }
    }

    #[test]
    fn filters_follow_each_other() {
        // Top-k first: of 0.4 0.3 0.2 0.1 it leaves two, whose shares are 4/7 and 3/7; top-p 0.55 then leaves one.
        let logits: Vec<f32> = [0.1f32, 0.4, 0.3, 0.2].iter().map(|p| p.ln()).collect();
        assert_eq!(kept(&Sampling { top_p: 0.55, ..plain() }, &logits), [1, 2]);
        assert_eq!(kept(&Sampling { top_k: 2, top_p: 0.55, ..plain() }, &logits), [1]);
    }

    #[test]
    fn draws_have_the_distribution() {
        // Chi-square over 12 tokens: with 11 degrees of freedom 31.3 is passed once in a thousand.
        let logits = random_logits(12, 9);
        for (temperature, seed) in [(0.5f32, 1), (1.0, 2), (2.0, 3)] {
            let how = Sampling { temperature, seed, ..plain() };
            let mut sampler = Sampler::new(&how);
            let n = 20_000;
            let mut hits = [0usize; 12];
            for _ in 0..n {
                hits[sampler.sample(Scores::All(&mut logits.clone()), &[]) as usize] += 1;
            }
            let scaled: Vec<f32> = logits.iter().map(|l| l / temperature).collect();
            let chi: f64 = ranked(&scaled)
                .iter()
                .map(|&(id, p)| (hits[id as usize] as f64 - n as f64 * p).powi(2) / (n as f64 * p))
                .sum();
            assert!(chi < 31.3, "temperature {temperature}: {chi} from {hits:?}");
        }
    }

    #[test]
    fn same_seed_same_tokens() {
        let run = |seed| -> Vec<u32> {
            let mut sampler = Sampler::new(&Sampling { seed, ..Sampling::default() });
            (0..8).map(|i| sampler.sample(Scores::All(&mut random_logits(500, i)), &[])).collect()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
        let mut sampler = Sampler::new(&Sampling { seed: 1, ..plain() });
        let drawn: Vec<u32> = (0..10).map(|_| sampler.sample(Scores::All(&mut [0.0; 100]), &[])).collect();
        assert_eq!(drawn, [56, 74, 97, 44, 44, 76, 87, 52, 28, 79], "the same on every machine");
    }

    #[test]
    fn penalties_by_hand() {
        let penalised = |how: Sampling, history: &[u32]| {
            let mut logits = [2.0, -2.0, 1.0, 0.5];
            Sampler::new(&how).adjust(&mut logits, history);
            logits
        };
        let repeat = Sampling { repeat_penalty: 2.0, ..plain() };
        assert_eq!(penalised(repeat.clone(), &[0, 1, 0]), [1.0, -4.0, 1.0, 0.5]);
        let last = Sampling { repeat_last_n: 2, ..repeat.clone() };
        assert_eq!(penalised(last, &[0, 1, 2]), [2.0, -4.0, 0.5, 0.5]);
        assert_eq!(penalised(Sampling { repeat_last_n: 0, ..repeat }, &[0]), [2.0, -2.0, 1.0, 0.5]);
        let presence = Sampling { presence_penalty: 0.25, ..plain() };
        assert_eq!(penalised(presence, &[3, 3, 3, 0]), [1.75, -2.0, 1.0, 0.25]);
        let frequency = Sampling { frequency_penalty: 0.5, ..plain() };
        assert_eq!(penalised(frequency, &[3, 3, 3, 0]), [1.5, -2.0, 1.0, -1.0]);
        let all = Sampling { repeat_penalty: 2.0, presence_penalty: 0.25, frequency_penalty: 0.5, ..plain() };
        assert_eq!(penalised(all, &[0, 0, 1, 77]), [1.0 - 0.25 - 1.0, -4.0 - 0.25 - 0.5, 1.0, 0.5]);
        let bias = Sampling { logit_bias: vec![(1, 5.0), (2, f32::NEG_INFINITY), (99, 1.0)], ..plain() };
        assert_eq!(penalised(bias, &[]), [2.0, 3.0, f32::NEG_INFINITY, 0.5]);
    }

    #[test]
    fn bad_numbers_do_no_harm() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        for how in
            [Sampling::default(), plain(), Sampling::greedy(), Sampling { temperature: nan, ..plain() }]
        {
            let mut sampler = Sampler::new(&how);
            assert_eq!(sampler.sample(Scores::All(&mut [nan, -inf, 1.0, nan]), &[]), 2);
            assert_eq!(sampler.sample(Scores::All(&mut [0.0, inf, 1.0, nan]), &[]), 1);
            assert_eq!(sampler.sample(Scores::All(&mut [nan, -inf]), &[]), 0);
            assert_eq!(sampler.sample(Scores::All(&mut []), &[3]), 0);
        }
        let hostile = Sampling {
            temperature: inf,
            top_p: nan,
            min_p: nan,
            repeat_penalty: 0.0,
            presence_penalty: -inf,
            frequency_penalty: nan,
            logit_bias: vec![(0, nan), (1, inf)],
            ..plain()
        };
        assert!(Sampler::new(&hostile).sample(Scores::All(&mut [1.0, 2.0, 3.0]), &[0, 1, 2]) < 3);
    }

    #[test]
    fn log_probabilities_of_the_best() {
        let logits = random_logits(500, 3);
        let rank = ranked(&logits);
        for n in [0, 1, 5, 500, 900] {
            let (chosen, top) = log_probabilities(&logits, rank[3].0, n);
            assert!((chosen as f64 - rank[3].1.ln()).abs() < 1e-5);
            assert_eq!(top.len(), n.min(500));
            for ((id, p), (want, probability)) in top.iter().zip(&rank) {
                assert!(id == want && (*p as f64 - probability.ln()).abs() < 1e-4, "{id} {p}");
            }
        }
        assert_eq!(log_probabilities(&[0.0], 7, 1), (f32::NEG_INFINITY, vec![(0, 0.0)]));
    }

    #[test]
    fn surprise_is_the_negative_log_of_the_softmax() {
        let want = -(1f64.exp() / (1f64.exp() + 3f64.exp() + 1.0)).ln();
        assert!((surprise(&[1.0, 3.0, 0.0], 0) - want).abs() < 1e-6);
        assert!((surprise(&[1e4, 0.0], 1) - 1e4).abs() < 1e-6);
    }
}
