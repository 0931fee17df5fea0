//! Kernels in words. In: the calls of a module in order, each with its text and the buffers that it touches. Out: for each
//! what it computes, for which component, on what, from where in this crate, and the bytes that it touches.
//!
//! Everything is read off the names of buffers and, where a kernel touches temporaries alone, off what made them and off
//! the operations in its text. A kernel of several components is divided among them by the bytes of their weights.

use super::parts::{self, Component, Part};
use crate::gguf::TensorInfo;
use std::collections::HashMap;

/// A buffer as one call touches it.
#[derive(Clone, Debug)]
pub struct Touched {
    pub slot: u32,
    pub name: String,
    /// The whole buffer's, at the values of this step's symbols.
    pub bytes: u64,
    pub written: bool,
    /// Whether its elements are i8: activations for integer products.
    pub int8: bool,
}

pub struct Call<'a> {
    /// The kernel for people.
    pub text: &'a str,
    pub buffers: Vec<Touched>,
}

/// What a call's share of large buffers depends on.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Tokens that the plan is made for.
    pub rows: u64,
    /// Rows of the cache that are looked at, and all of them.
    pub positions: u64,
    pub capacity: u64,
    /// Rows of `hidden`.
    pub chunk: u64,
    /// Experts that a token uses, and all of them.
    pub experts: (u64, u64),
}

impl Setting {
    /// How many different experts the tokens of a step use, if each chooses as the others do and evenly.
    pub fn distinct(&self) -> f64 {
        let (used, all) = (self.experts.0 as f64, self.experts.1.max(1) as f64);
        all * (1.0 - (1.0 - used / all).powf(self.rows as f64))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// Each with its share of the kernel; the shares' sum is 1.
    pub components: Vec<(Component, f64)>,
    pub words: String,
    /// Formats and sizes of what it reads.
    pub shape: String,
    /// Files below `llm/src` with the function.
    pub sources: Vec<&'static str>,
    /// Read and written, each buffer once.
    pub bytes: f64,
}

impl Explained {
    /// Kernels that are launched together in the words of each. Their components share by bytes.
    pub fn together<'a>(parts: impl Iterator<Item = &'a Explained>) -> Explained {
        let parts: Vec<&Explained> = parts.collect();
        let all: f64 = parts.iter().map(|p| p.bytes).sum();
        let mut out = Explained {
            components: vec![],
            words: String::new(),
            shape: String::new(),
            sources: vec![],
            bytes: all,
        };
        let join = |of: fn(&Explained) -> &str| {
            let texts: Vec<&str> = parts.iter().map(|p| of(p)).filter(|t| !t.is_empty()).collect();
            texts.join(" | ")
        };
        (out.words, out.shape) = (join(|p| &p.words), join(|p| &p.shape));
        for p in &parts {
            let weight = if all > 0.0 { p.bytes / all } else { 1.0 / parts.len() as f64 };
            for (component, share) in &p.components {
                match out.components.iter_mut().find(|(known, _)| known == component) {
                    Some((_, sum)) => *sum += share * weight,
                    None => out.components.push((*component, share * weight)),
                }
            }
            for source in &p.sources {
                if !out.sources.contains(source) {
                    out.sources.push(source);
                }
            }
        }
        out
    }
}

/// What a temporary holds.
#[derive(Clone, Copy)]
struct Made {
    what: &'static str,
    component: Component,
    source: &'static str,
    /// Or bytes of it, their scales and sums.
    int8: bool,
}

const fn made(what: &'static str, component: Component, source: &'static str) -> Made {
    Made { what, component, source, int8: false }
}
const STREAM: Made = made("residual stream", Component::SmallOps, "block.rs Block::of");
const HIDDEN: Made = made("hidden state", Component::Head, parts::HEAD);
const BEST: Made = made("best tokens", Component::Head, parts::BEST);
/// Weights as numbers, for products over the cache.
const UNPACKED: &str = "unpacked weights";
const SCORES: &str = "scores";
const HEADS: &str = "heads";
const PER_ROW: &str = "keys or values of cached rows";

/// `tensor` finds a tensor of the file by the name that the module's inputs have.
pub fn explain<'t>(
    calls: &[Call],
    setting: Setting,
    tensor: &dyn Fn(&str) -> Option<&'t TensorInfo>,
) -> Vec<Explained> {
    let mut made: HashMap<u32, Made> = HashMap::new();
    let mut out = vec![];
    for (i, call) in calls.iter().enumerate() {
        let reads_cache_later =
            calls[i + 1..].iter().any(|c| c.buffers.iter().any(|b| b.name == "cache" && !b.written));
        let view = View::new(call, setting, tensor, &made);
        let (explained, makes) = view.explain(reads_cache_later);
        let makes = Made { int8: makes.int8 || view.int8, ..makes };
        made.extend(call.buffers.iter().filter(|b| b.written).map(|b| (b.slot, makes)));
        out.push(explained);
    }
    out
}

/// A weight that a call reads.
struct Weight<'t> {
    part: &'static Part,
    tensor: &'t TensorInfo,
    /// Of all planes, the part that is read.
    bytes: f64,
}

impl Weight<'_> {
    fn is_matrix(&self) -> bool {
        self.tensor.dims.len() > 1
    }
}

/// One call, its buffers sorted by what they are.
struct View<'a, 't> {
    call: &'a Call<'a>,
    setting: Setting,
    weights: Vec<Weight<'t>>,
    /// What the temporaries that it reads hold, the largest first.
    inputs: Vec<Made>,
    /// Read and written.
    cache: [bool; 2],
    turns: bool,
    int8: bool,
    bytes: f64,
    /// Bytes of the largest buffer that is no weight.
    activations: u64,
}

impl<'a, 't> View<'a, 't> {
    fn new(
        call: &'a Call<'a>,
        setting: Setting,
        tensor: &dyn Fn(&str) -> Option<&'t TensorInfo>,
        made: &HashMap<u32, Made>,
    ) -> View<'a, 't> {
        let mut view = View {
            call,
            setting,
            weights: vec![],
            inputs: vec![],
            cache: [false; 2],
            turns: false,
            int8: false,
            bytes: 0.0,
            activations: 0,
        };
        let looks_up = call.buffers.iter().any(|b| b.name == "ids");
        let mut inputs: Vec<(u64, Made)> = vec![];
        for b in &call.buffers {
            let part_of = |n: u64, all: u64| b.bytes as f64 * n as f64 / all.max(1) as f64;
            let found = tensor(&b.name).or_else(|| tensor(b.name.rsplit_once('.')?.0));
            view.bytes += match (b.name.as_str(), found) {
                ("cache", _) => {
                    view.cache[b.written as usize] = true;
                    part_of(if b.written { setting.rows } else { setting.positions }, setting.capacity)
                }
                ("cos" | "sin", _) => {
                    view.turns = true;
                    part_of(setting.rows, setting.capacity)
                }
                ("hidden", _) => {
                    inputs.push((0, HIDDEN));
                    part_of(setting.rows, setting.chunk)
                }
                ("logits", _) => {
                    inputs.push((b.bytes, BEST));
                    b.bytes as f64
                }
                (_, Some(t)) => {
                    let bytes = view.weight_bytes(b, t, looks_up);
                    view.add_weight(t, bytes, looks_up);
                    bytes
                }
                (name, None) => {
                    view.int8 |= b.written && b.int8;
                    view.activations = view.activations.max(b.bytes);
                    if !b.written && !matches!(name, "ids" | "positions" | "slots" | "starts" | "table") {
                        inputs.push((b.bytes, made.get(&b.slot).copied().unwrap_or(STREAM)));
                    }
                    b.bytes as f64
                }
            };
        }
        inputs.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        for (_, m) in inputs {
            if view.inputs.iter().all(|known| known.what != m.what) {
                view.inputs.push(m);
            }
        }
        view
    }

    fn weight_bytes(&self, b: &Touched, t: &TensorInfo, looks_up: bool) -> f64 {
        let bytes = b.bytes as f64;
        match local(&t.name) {
            "token_embd.weight" if looks_up => bytes * self.setting.rows as f64 / t.dims[0].max(1) as f64,
            name if name.contains("_exps.") => {
                bytes * self.setting.distinct() / self.setting.experts.1.max(1) as f64
            }
            _ => bytes,
        }
    }

    fn add_weight(&mut self, t: &'t TensorInfo, bytes: f64, looks_up: bool) {
        // A head that has no matrix of its own reads the embedding's.
        let name = match local(&t.name) {
            "token_embd.weight" if !looks_up => "output.weight",
            name => name,
        };
        let Some(part) = parts::of(name) else { return };
        match self.weights.iter_mut().find(|w| w.tensor.name == t.name) {
            Some(known) => known.bytes += bytes,
            None => self.weights.push(Weight { part, tensor: t, bytes }),
        }
    }

    fn has(&self, operation: &str) -> bool {
        self.call.text.contains(operation)
    }
    fn reads(&self, what: &str) -> bool {
        self.inputs.iter().any(|m| m.what == what)
    }

    fn explain(&self, reads_cache_later: bool) -> (Explained, Made) {
        let matrices: Vec<&Weight> = self.weights.iter().filter(|w| w.is_matrix()).collect();
        let (mut words, made, mut sources) = if matrices.is_empty() {
            self.without_matrices(reads_cache_later)
        } else {
            self.with_matrices(&matrices)
        };
        if self.turns && !words.iter().any(|w| w.contains("rotation")) {
            words.push("rotation".into());
            sources.push(parts::ROTATION);
        }
        if self.cache[1] && !words.iter().any(|w| w.contains("cache")) {
            words.push("cache write".into());
            sources.push(parts::CACHE);
        }
        if self.int8 && !words.iter().any(|w| w.contains("int8")) {
            words.push("int8".into());
        }
        let mut unique: Vec<&'static str> = vec![];
        sources.into_iter().for_each(|s| {
            if !unique.contains(&s) {
                unique.push(s);
            }
        });
        let components = shares(&matrices).unwrap_or_else(|| vec![(made.component, 1.0)]);
        let words = words.join("; ");
        let shape = self.shape(&matrices);
        (Explained { components, words, shape, sources: unique, bytes: self.bytes }, made)
    }

    fn with_matrices(&self, matrices: &[&Weight]) -> (Vec<String>, Made, Vec<&'static str>) {
        let several = matrices.iter().any(|w| w.part.component != matrices[0].part.component);
        let mut clauses: Vec<(Component, Vec<&str>)> = vec![];
        for w in &self.weights {
            match clauses.last_mut() {
                Some((c, does)) if *c == w.part.component => {
                    if !does.contains(&w.part.does) && w.part.stem != "exp_probs_b" {
                        does.push(w.part.does);
                    }
                }
                _ => clauses.push((w.part.component, vec![w.part.does])),
            }
        }
        let gated = self
            .weights
            .iter()
            .any(|w| w.part.stem.starts_with("ffn_gate") && w.part.component != Component::Router);
        let mut words: Vec<String> = clauses
            .iter()
            .map(|(c, does)| match several && *c != Component::SmallOps {
                true => format!("{c}: {}", does.join(", ")),
                false => does.join(", "),
            })
            .collect();
        if gated && self.has("exp2(") {
            words.push("SiLU".into());
        }
        let part = matrices[matrices.len() - 1].part;
        let unpacks = self.inputs.is_empty() && !self.cache[0] && part.component == Component::Attention;
        if unpacks {
            words = vec![format!("weights unpacked ({})", words.join(", "))];
        }
        let what = if unpacks { UNPACKED } else { part.makes };
        (words, made(what, part.component, part.source), self.weights.iter().map(|w| w.part.source).collect())
    }

    fn without_matrices(&self, reads_cache_later: bool) -> (Vec<String>, Made, Vec<&'static str>) {
        let mut words: Vec<String> = self.weights.iter().map(|w| w.part.does.into()).collect();
        let mut sources: Vec<_> = self.weights.iter().map(|w| w.part.source).collect();
        let of = || {
            let all: Vec<&str> = self.inputs.iter().map(|m| m.what).collect();
            all.join(" and ")
        };
        let attention = |what| made(what, Component::Attention, parts::ATTEND);
        let [reads_cache, writes_cache] = self.cache;
        let (rows, softmax) = (reads_cache || self.reads(PER_ROW), self.has("exp2("));
        let over = if reads_cache { "the cache" } else { "every position's keys" };
        let made = if self.reads(UNPACKED) && reads_cache {
            words.push("keys or values of cached rows".into());
            attention(PER_ROW)
        } else if rows && self.reads(SCORES) {
            let first = if softmax { "softmax, " } else { "" };
            words.push(format!(
                "{first}weighted sum of {}",
                if reads_cache { "the cache's rows" } else { "values" }
            ));
            attention(HEADS)
        } else if rows && softmax && reads_cache && !reads_cache_later {
            words.push("scores against the cache, softmax, weighted sum".into());
            attention(HEADS)
        } else if rows {
            let then = if softmax { ", softmax" } else { "" };
            words.push(format!("scores of queries against {over}{then}"));
            attention(SCORES)
        } else if self.reads(SCORES) {
            words.push(if softmax { "softmax".into() } else { format!("combination of {}", of()) });
            attention(SCORES)
        } else if softmax && self.reads(HEADS) {
            words.push("sum over the pieces of the cache".into());
            attention(HEADS)
        } else if writes_cache {
            words.extend(self.turns.then(|| "rotation".into()));
            words.push("cache write".into());
            made("cache", Component::Attention, parts::CACHE)
        } else if let Some(w) = self.weights.last() {
            made(w.part.makes, w.part.component, w.part.source)
        } else {
            let from = self.inputs.first().copied().unwrap_or(STREAM);
            let small = |source| Made { component: Component::SmallOps, source, ..from };
            if self.int8 {
                words.push(format!("int8 of {}", of()));
                small(parts::INT8)
            } else if self.turns {
                words.push(format!("rotation of {}", of()));
                Made { source: parts::ROTATION, ..from }
            } else if self.has("recip(sqrt(") {
                words.push(format!("norm's scale of {}", of()));
                small(from.source)
            } else if from.int8 {
                words.push(format!("scales, sums or order of int8 of {}", of()));
                small(parts::INT8)
            } else if from.component == Component::Router {
                words.push("choice of experts".into());
                from
            } else if from.what == BEST.what {
                words.push("search for the best tokens".into());
                from
            } else {
                words.push(format!("combination of {}", of()));
                from
            }
        };
        sources.push(made.source);
        (words, made, sources)
    }

    fn shape(&self, matrices: &[&Weight]) -> String {
        let mut counted: Vec<(String, usize)> = vec![];
        for w in matrices {
            let dims = |dims: &[i64]| dims.iter().map(i64::to_string).collect::<Vec<_>>().join("×");
            let (format, d) = (w.tensor.format.name, &w.tensor.dims);
            let text = match w.part.component {
                Component::Experts => {
                    let (used, all) = (self.setting.distinct(), self.setting.experts.1);
                    format!("{} of {all} {format} {}", rounded(used), dims(&d[1..]))
                }
                Component::Embedding => format!("{} of {format} {}", self.setting.rows, dims(d)),
                _ => format!("{format} {}", dims(d)),
            };
            match counted.iter_mut().find(|(t, _)| *t == text) {
                Some((_, n)) => *n += 1,
                None => counted.push((text, 1)),
            }
        }
        if counted.is_empty() {
            return match self.cache {
                [true, _] => format!("{} positions", self.setting.positions),
                [_, true] if self.setting.rows == 1 => "1 row".into(),
                [_, true] => format!("{} rows", self.setting.rows),
                _ => format!("{} bytes", self.activations),
            };
        }
        let one = |(text, n): &(String, usize)| match n {
            1 => text.clone(),
            n => format!("{n}× {text}"),
        };
        counted.iter().map(one).collect::<Vec<_>>().join(" + ")
    }
}

fn rounded(n: f64) -> String {
    if (n - n.round()).abs() < 1e-9 { format!("{n:.0}") } else { format!("about {n:.0}") }
}

/// A tensor's name behind its block's prefix.
fn local(name: &str) -> &str {
    match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((_, name)) => name,
        None => name,
    }
}

/// By bytes of weights.
fn shares(matrices: &[&Weight]) -> Option<Vec<(Component, f64)>> {
    let total: f64 = matrices.iter().map(|w| w.bytes).sum();
    if total <= 0.0 {
        return None;
    }
    let mut out: Vec<(Component, f64)> = vec![];
    for w in matrices {
        let share = w.bytes / total;
        match out.iter_mut().find(|(c, _)| *c == w.part.component) {
            Some((_, s)) => *s += share,
            None => out.push((w.part.component, share)),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::Gguf;
    use crate::synth::{self, Changes};

    const SETTING: Setting = Setting { rows: 1, positions: 64, capacity: 256, chunk: 256, experts: (4, 64) };

    /// A call that reads and writes buffers, each with its bytes; a slot for each name.
    fn call(text: &'static str, reads: &[(&str, u64)], writes: &[(&str, u64)]) -> Call<'static> {
        let touched = |&(name, bytes): &(&str, u64), written| Touched {
            slot: name.bytes().fold(7, |n, b| n * 31 % 1_000_003 + b as u32),
            name: name.into(),
            bytes,
            written,
            int8: name.starts_with("i8"),
        };
        let buffers = reads.iter().map(|b| touched(b, false)).chain(writes.iter().map(|b| touched(b, true)));
        Call { text, buffers: buffers.collect() }
    }

    fn explained(calls: &[Call], setting: Setting) -> Vec<Explained> {
        let file: Gguf = synth::open("glm-4.7-flash:q4_0", Changes::default()).unwrap();
        explain(calls, setting, &|name| file.tensor(&format!("blk.1.{name}")).or_else(|| file.tensor(name)))
    }

    #[test]
    fn a_kernel_of_two_components_is_divided_by_bytes() {
        let weights = [("ffn_down_exps.weight.q4", 64_000), ("ffn_down_shexp.weight.q4", 1_000)];
        let e = &explained(&[call("", &weights, &[("out0", 100)])], SETTING)[0];
        assert_eq!(e.components, [(Component::Experts, 0.8), (Component::SharedExpert, 0.2)]);
        assert_eq!(e.bytes, 4_000.0 + 1_000.0 + 100.0, "four experts of 64 are read");
        assert_eq!(e.words, "experts: down, weighted sum; shared expert: down");
        assert_eq!(e.shape, "4 of 64 Q4_1 2048×1536 + Q6_K 2048×1536");
        assert_eq!(e.sources, ["ffn.rs Experts::of", "ffn.rs Gated::of"]);
    }

    #[test]
    fn the_best_tokens_are_known_by_the_logits() {
        let chain = [
            call("", &[("output.weight.q6", 900), ("hidden", 80)], &[("out0", 1024)]),
            call("", &[("logits", 1024)], &[("t1", 8)]),
            call("", &[("t1", 8)], &[("t2", 8)]),
            call("", &[("logits", 1024), ("t2", 8)], &[("out1", 512)]),
        ];
        for e in &explained(&chain, SETTING)[1..] {
            assert_eq!(e.words, "search for the best tokens");
            assert_eq!(
                (&e.components[..], &e.sources[..]),
                (&[(Component::Head, 1.0)][..], &[parts::BEST][..])
            );
        }
    }

    #[test]
    fn attention_is_known_by_the_cache_and_what_came_before() {
        let chain = [
            call("recip(sqrt(", &[("x", 80), ("attn_norm.weight", 80)], &[("i8_0", 20)]),
            call("", &[("attn_q_b.weight.q4", 100), ("i8_0", 20)], &[("t1", 40)]),
            call("", &[("t1", 40)], &[("i8_2", 10)]),
            call(
                "",
                &[("attn_k_b.weight.q4", 100), ("i8_2", 10), ("cos", 2560), ("sin", 2560)],
                &[("t3", 40)],
            ),
            call("", &[("attn_kv_a_norm.weight", 20), ("t1", 40), ("cos", 2560)], &[("cache", 25600)]),
            call("", &[("cache", 25600), ("t3", 40)], &[("t4", 64)]),
            call("exp2(", &[("t4", 64)], &[("t5", 64)]),
            call("", &[("cache", 25600), ("t5", 64)], &[("t6", 64)]),
        ];
        let all = explained(&chain, SETTING);
        let words: Vec<&str> = all.iter().map(|e| e.words.as_str()).collect();
        assert_eq!(
            words,
            [
                "norm before attention; int8",
                "queries, up-projection",
                "int8 of queries",
                "queries into the latent space; rotation",
                "norm of the latent row; rotation; cache write",
                "scores of queries against the cache",
                "softmax",
                "weighted sum of the cache's rows",
            ]
        );
        let small = |e: &Explained| e.components == [(Component::SmallOps, 1.0)];
        assert_eq!(
            all.iter().map(small).collect::<Vec<_>>(),
            [true, false, true, false, false, false, false, false]
        );
        assert_eq!(all[3].bytes, 100.0 + 10.0 + 20.0 + 40.0, "one row of each table");
        assert_eq!(all[4].bytes, 20.0 + 40.0 + 10.0 + 100.0, "one row of the cache is written");
        assert_eq!(all[5].bytes, 6400.0 + 40.0 + 64.0, "64 rows of 256 are read");
        assert_eq!(all[5].shape, "64 positions");
    }

    #[test]
    fn kernels_of_one_launch_are_told_together() {
        let each = explained(
            &[
                call("", &[("attn_q_b.weight.q4", 300), ("x", 20)], &[("t1", 40)]),
                call("", &[("ffn_down_exps.weight.q4", 64)], &[("t2", 86)]),
            ],
            SETTING,
        );
        let both = Explained::together(each.iter());
        assert_eq!(both.words, format!("{} | {}", each[0].words, each[1].words));
        assert_eq!(both.bytes, 360.0 + 90.0);
        assert_eq!(both.components, [(Component::Attention, 0.8), (Component::Experts, 0.2)]);
        assert_eq!(both.sources, [each[0].sources.clone(), each[1].sources.clone()].concat());
        assert_eq!(Explained::together(each[..1].iter()), each[0], "one alone stays as it is");
    }

    #[test]
    fn one_kernel_may_do_all_of_attention() {
        let all = explained(&[call("exp2(", &[("cache", 256), ("t0", 4)], &[("t1", 4)])], SETTING);
        assert_eq!(all[0].words, "scores against the cache, softmax, weighted sum");
        assert_eq!(all[0].components, [(Component::Attention, 1.0)]);
    }

    #[test]
    fn rows_of_the_embedding_and_a_head_without_a_matrix_of_its_own() {
        let table = ("token_embd.weight.q4", 154_880);
        let all = explained(
            &[call("", &[("ids", 4), table], &[("out0", 8)]), call("", &[table], &[("out1", 8)])],
            SETTING,
        );
        assert_eq!((all[0].bytes, all[1].bytes), (4.0 + 1.0 + 8.0, 154_888.0));
        let components: Vec<_> = all.iter().map(|e| e.components[0].0).collect();
        assert_eq!(components, [Component::Embedding, Component::Head]);
    }

    #[test]
    fn many_tokens_share_experts() {
        assert_eq!(SETTING.distinct(), 4.0);
        let many = Setting { rows: 256, ..SETTING };
        assert!((63.9..64.0).contains(&many.distinct()), "{}", many.distinct());
        assert_eq!(Setting { experts: (0, 1), ..SETTING }.distinct(), 0.0);
    }
}
