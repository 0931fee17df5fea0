//! What the head of a model gave. In: rows of logits on a device. Out: those that are asked for, or the best of a row.
//!
//! A row is cut into parts; its k largest logits are in the k parts with the largest maxima, equals by position in both:
//! each part that stands before another has a token that stands before all tokens of that one. A device computes the
//! maxima behind the head. Where its memory is far, it finds the best parts, too, and they are copied alone; where it is
//! near, they are read where they lie.

use crate::sample::{Candidate, FEW, Scores};
use compiler::ops::top_k;
use compiler::tensor::{IntoTensor, Tensor};
use runtime::buffer::{Buffer, Slice};
use runtime::device::{self, Device, Error, HostFloats};
use std::cmp::Ordering;
use std::sync::Arc;

/// Tokens of a part.
const WIDTH: usize = 128;

/// Logits that are compared at once.
const LANES: usize = 16;

/// The best are worth finding where there are so many parts for each that is wanted.
const EACH: usize = 4;

/// Most rows of a plan that finds them.
const ROWS: usize = 32;

/// Words of a row that plans give of a far device: the chosen parts, their maxima, their logits.
const WORDS: [usize; 3] = [FEW, FEW, FEW * WIDTH];

/// The largest logit of each part, `[rows, parts]`; x is `[rows, vocabulary]`.
fn part_maxima(x: Tensor) -> Tensor {
    let cut = x.reshape([x.size(0), x.size(1) / WIDTH as i64, WIDTH as i64]);
    cut.eq(cut).select(cut, f32::MIN.tensor(cut)).max(-1).squeeze(-1)
}

/// As [`WORDS`], of all rows: i32 `[rows, FEW]`, `[rows, FEW]` in falling order, `[FEW, rows, WIDTH]`, so that the best
/// parts of all lie first.
fn best_parts(x: Tensor) -> [Tensor; 3] {
    let (rows, parts, width) = (x.size(0), x.size(1) / WIDTH as i64, WIDTH as i64);
    let (largest, chosen) = top_k(part_maxima(x), FEW as i64);
    let first = x.graph().iota(rows) * parts;
    [chosen, largest, x.reshape([rows * parts, width]).gather(chosen.transpose(0, 1) + first)]
}

pub struct Logits {
    device: Arc<dyn Device>,
    vocab: usize,
    place: Slice,
    /// Where plans put what the best are found by: one kind of [`WORDS`] after the other, or all maxima.
    best: Option<Buffer>,
    far: bool,
    /// Where the last plan's rows lie; None if they are here.
    lie: Option<Lie>,
    rows: HostFloats,
    /// What was read of `best`.
    few: HostFloats,
}

#[derive(Clone, Copy)]
struct Lie {
    /// The first row that is wanted.
    first: usize,
    /// Rows of the plan.
    rows: usize,
    /// So many parts of each are here.
    parts: usize,
}

impl Logits {
    /// Room for so many rows. `far`: copies from the device cost more than the search for what is worth copying.
    pub fn new(device: Arc<dyn Device>, rows: usize, vocab: usize, far: bool) -> Result<Logits, Error> {
        let most = if far { FEW } else { 1 };
        let parts = vocab.is_multiple_of(WIDTH) && vocab / WIDTH >= EACH * most;
        let row = if far { WORDS.iter().sum::<usize>() } else { vocab / WIDTH };
        let words = if parts { rows.min(ROWS) * row } else { 0 };
        Ok(Logits {
            place: device.alloc(rows * vocab * 4)?.whole(),
            best: if parts { Some(device.alloc(words * 4)?) } else { None },
            lie: None,
            rows: device.host(vocab)?,
            few: device.host(if far { words } else { row + FEW * WIDTH })?,
            vocab,
            far,
            device,
        })
    }

    /// Where plans put rows.
    pub fn place(&self) -> &Slice {
        &self.place
    }

    /// What a plan finds the best of rows x of logits by, each with where it is to lie; nothing if it need not.
    pub fn best<'g>(&self, x: Tensor<'g>) -> Result<Vec<(Tensor<'g>, Slice)>, Error> {
        let rows = x.size(0) as usize;
        let Some(buffer) = self.best.as_ref().filter(|_| rows <= ROWS) else { return Ok(vec![]) };
        let outputs = if self.far { best_parts(x).to_vec() } else { vec![part_maxima(x)] };
        let mut at = 0;
        let place = |x: Tensor<'g>| {
            let bytes = x.dims().iter().map(|d| d.bounds().1 as usize).product::<usize>() * 4;
            at += bytes;
            Ok((x, buffer.slice(at - bytes, bytes)?))
        };
        outputs.into_iter().map(place).collect()
    }

    /// A plan of so many rows ran, of which those from `first` on are wanted.
    pub fn ran(&mut self, rows: usize, first: usize) {
        self.lie = Some(Lie { first, rows, parts: 0 });
    }

    /// Copies `n` rows behind `before` others, which are here: the device's place is wanted again.
    pub fn keep(&mut self, n: usize, before: usize) -> Result<(), Error> {
        self.room(before + n)?;
        if let Some(lie) = self.lie.take() {
            let to = &mut self.rows[before * self.vocab..][..n * self.vocab];
            device::read_floats(&*self.device, &self.place, lie.first * self.vocab * 4, to)?;
        }
        Ok(())
    }

    fn room(&mut self, rows: usize) -> Result<(), Error> {
        if self.rows.len() < rows * self.vocab {
            let mut more = self.device.host(rows * self.vocab)?;
            more[..self.rows.len()].copy_from_slice(&self.rows);
            self.rows = more;
        }
        Ok(())
    }

    /// A row that was computed last.
    pub fn row(&mut self, i: usize) -> Result<&mut [f32], Error> {
        self.room(i + 1)?;
        let to = &mut self.rows[i * self.vocab..][..self.vocab];
        if let Some(lie) = self.lie {
            device::read_floats(&*self.device, &self.place, (lie.first + i) * self.vocab * 4, to)?;
        }
        Ok(to)
    }

    /// What a token is chosen by that follows this row, where so few of the best do.
    pub fn scores(&mut self, i: usize, few: Option<usize>) -> Result<Scores<'_>, Error> {
        match (self.lie, few) {
            (Some(lie), Some(k @ 1..=FEW))
                if self.best.is_some() && lie.rows <= ROWS && self.vocab >= EACH * k * WIDTH =>
            {
                let found = if self.far { self.copied(lie, i, k)? } else { self.near(lie.first + i, k)? };
                Ok(Scores::Best(found))
            }
            _ => Ok(Scores::All(self.row(i)?)),
        }
    }

    /// The best of a row of which the device found the parts.
    fn copied(&mut self, lie: Lie, i: usize, k: usize) -> Result<Vec<Candidate>, Error> {
        if let Some(buffer) = self.best.as_ref().filter(|_| lie.parts < k) {
            let words = lie.rows * (2 * FEW + k * WIDTH);
            device::read_floats(&*self.device, &buffer.whole(), 0, &mut self.few[..words])?;
            self.lie = Some(Lie { parts: k, ..lie });
        }
        let at = lie.first + i;
        let (chosen, rest) = self.few.split_at(lie.rows * FEW);
        let (largest, values) = rest.split_at(lie.rows * FEW);
        let [chosen, largest] = [chosen, largest].map(|x| &x[at * FEW..][..k]);
        let values = values.chunks(WIDTH).skip(at).step_by(lie.rows);
        Ok(candidates(chosen.iter().map(|part| part.to_bits()).zip(values), largest[k - 1], k))
    }

    /// The best of a row of which the device gave the parts' maxima.
    fn near(&mut self, row: usize, k: usize) -> Result<Vec<Candidate>, Error> {
        let parts = self.vocab / WIDTH;
        let (maxima, values) = self.few.split_at_mut(parts);
        let values = &mut values[..k * WIDTH];
        if let Some(buffer) = &self.best {
            device::read_floats(&*self.device, &buffer.whole(), row * parts * 4, maxima)?;
        }
        let mut order: Vec<u32> = (0..parts as u32).collect();
        let falling = |a: &u32, b: &u32| {
            let [x, y] = [a, b].map(|part| maxima[*part as usize]);
            y.partial_cmp(&x).unwrap_or(Ordering::Equal).then(a.cmp(b))
        };
        let (_, &mut last, _) = order.select_nth_unstable_by(k - 1, falling);
        for (part, values) in order[..k].iter().zip(values.chunks_mut(WIDTH)) {
            let at = row * self.vocab + *part as usize * WIDTH;
            device::read_floats(&*self.device, &self.place, at * 4, values)?;
        }
        Ok(candidates(order[..k].iter().copied().zip(values.chunks(WIDTH)), maxima[last as usize], k))
    }
}

/// The logits of some parts that are no less than `least`, as so many at least are, by id.
fn candidates<'a>(parts: impl Iterator<Item = (u32, &'a [f32])>, least: f32, k: usize) -> Vec<Candidate> {
    let mut out = Vec::with_capacity(2 * k);
    for (part, values) in parts {
        let first = part * WIDTH as u32;
        for (first, values) in (first..).step_by(LANES).zip(values.chunks_exact(LANES)) {
            // Nearly always there is none, which vector units see at once.
            if values.iter().fold(false, |some, l| some | (*l >= least)) {
                let each = (first..).zip(values).filter(|(_, l)| **l >= least);
                out.extend(each.map(|(id, &logit)| Candidate { id, logit }));
            }
        }
    }
    out.sort_unstable_by_key(|c| c.id);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Sampler, Sampling};
    use compiler::codegen::Target;
    use compiler::codegen::ptx::Ptx;
    use compiler::dtype::DType;
    use compiler::graph::Graph;
    use compiler::rng::Rng;
    use runtime::check::slot;
    use runtime::interp::InterpDevice;
    use runtime::plan::Plan;
    use runtime::step::{Library, Module, by_heuristic};
    use std::collections::HashMap;

    const VOCAB: usize = WIDTH * EACH * FEW;

    /// Random logits, and such as make the search hard.
    fn rows() -> Vec<Vec<f32>> {
        let mut rng = Rng::new(3);
        let mut random = || (0..VOCAB).map(|_| 4.0 * rng.normal()).collect::<Vec<f32>>();
        let coarse = random().iter().map(|l| (l / 4.0).round()).collect();
        let mut together = random();
        together[1000..1100].fill(30.0);
        let mut broken = random();
        broken.iter_mut().step_by(3).for_each(|l| *l = f32::NAN);
        broken[WIDTH..2 * WIDTH].fill(f32::NAN);
        let mut alone = vec![f32::NEG_INFINITY; VOCAB];
        (alone[VOCAB - 1], alone[5], alone[700]) = (-3.0, -2.5, f32::INFINITY);
        vec![random(), coarse, together, broken, alone, vec![0.0; VOCAB]]
    }

    #[test]
    fn the_best_do_for_a_choice_among_few() {
        for far in [true, false] {
            best_do(far);
        }
    }

    fn best_do(far: bool) {
        let device: Arc<dyn Device> = Arc::new(InterpDevice::like(Ptx::new(90).caps()));
        let rows = rows();
        let mut logits = Logits::new(device.clone(), rows.len(), VOCAB, far).unwrap();
        let g = Graph::new();
        let x = g.input("logits", DType::F32, [rows.len() as i64, VOCAB as i64]);
        let (outputs, places): (Vec<_>, Vec<_>) = logits.best(x).unwrap().into_iter().unzip();
        let mut choose = by_heuristic(&*device);
        let module = Module::new(&*device, &g, &outputs, &mut Library::default(), &mut choose).unwrap();
        let mut memory: HashMap<u32, Slice> = module.outputs().iter().map(|o| o.0).zip(places).collect();
        memory.insert(slot(x), logits.place().clone());
        let mut plan = Plan::new([] as [&str; 0]);
        module.push(&mut plan, &memory, &device.alloc(module.scratch()).unwrap()).unwrap();
        let bytes: Vec<u8> = rows.iter().flatten().flat_map(|l| l.to_le_bytes()).collect();
        device.write(logits.place(), 0, &bytes).unwrap();
        device.run(&mut device.prepare(plan).unwrap(), &[]).unwrap();
        logits.ran(rows.len(), 1);
        for i in 0..rows.len() - 1 {
            for seed in 0..20 {
                let how = Sampling { seed, top_k: 1 + 3 * seed as usize, min_p: 0.0, ..Sampling::default() };
                for how in [how, Sampling::greedy()] {
                    let mut id = |few: Option<usize>| {
                        let scores = logits.scores(i, few).unwrap();
                        assert_eq!(matches!(scores, Scores::Best(_)), few.is_some());
                        Sampler::new(&how).sample(scores, &[])
                    };
                    let few = Sampler::new(&how).few();
                    assert!(few.is_some());
                    assert_eq!(id(few), id(None), "row {i}, far {far}, {how:?}");
                }
            }
        }
    }

    #[test]
    fn what_looks_at_more_gets_all() {
        for how in [
            Sampling { top_k: 0, ..Sampling::default() },
            Sampling { top_k: FEW, ..Sampling::default() },
            Sampling { presence_penalty: 0.1, ..Sampling::default() },
            Sampling { repeat_penalty: 1.1, ..Sampling::greedy() },
            Sampling { logit_bias: vec![(1, 1.0)], ..Sampling::greedy() },
        ] {
            assert_eq!(Sampler::new(&how).few(), None, "{how:?}");
        }
        assert_eq!(Sampler::new(&Sampling { top_k: 0, ..Sampling::greedy() }).few(), Some(1));
    }
}
