//! What the head of a model gave. In: rows of logits on a device. Out: those that are asked for, or the best of a row.
//!
//! Where the device's memory is far, a row's best tokens are found there and copied alone. The row is cut into parts; its
//! k largest logits are in the k parts with the largest maxima, equals by position in both: each part that stands before
//! another has a token that stands before all tokens of that one.

use crate::sample::{Candidate, FEW, Scores};
use compiler::ops::top_k;
use compiler::tensor::{IntoTensor, Tensor};
use runtime::buffer::{Buffer, Slice};
use runtime::device::{self, Device, Error, HostFloats};
use std::sync::Arc;

/// Tokens of a part.
const WIDTH: usize = 128;

/// Logits that are compared at once.
const LANES: usize = 16;

/// Of fewer parts a row's best are not worth finding.
const LEAST_PARTS: usize = 4 * FEW;

/// Most rows of a plan that finds them.
const ROWS: usize = 32;

/// Words of a row that plans give: the chosen parts, their maxima, their logits.
const WORDS: [usize; 3] = [FEW, FEW, FEW * WIDTH];

/// The same, of all rows: i32 `[rows, FEW]`, `[rows, FEW]` in falling order, `[FEW, rows, WIDTH]`, so that the best parts of
/// all lie first. x is `[rows, vocabulary]`.
pub fn best_parts(x: Tensor) -> [Tensor; 3] {
    let (rows, parts, width) = (x.size(0), x.size(1) / WIDTH as i64, WIDTH as i64);
    let cut = x.reshape([rows, parts, width]);
    let maxima = cut.eq(cut).select(cut, f32::MIN.tensor(cut)).max(-1).squeeze(-1);
    let (largest, chosen) = top_k(maxima, FEW as i64);
    let first = x.graph().iota(rows) * parts;
    [chosen, largest, cut.reshape([rows * parts, width]).gather(chosen.transpose(0, 1) + first)]
}

pub struct Logits {
    device: Arc<dyn Device>,
    vocab: usize,
    place: Slice,
    /// Where plans put the best parts of all rows, one kind of [`WORDS`] after the other.
    best: Option<Buffer>,
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
        let parts = far && vocab.is_multiple_of(WIDTH) && vocab / WIDTH >= LEAST_PARTS;
        let words = if parts { rows.min(ROWS) * WORDS.iter().sum::<usize>() } else { 0 };
        Ok(Logits {
            place: device.alloc(rows * vocab * 4)?.whole(),
            best: if parts { Some(device.alloc(words * 4)?) } else { None },
            lie: None,
            rows: device.host(vocab)?,
            few: device.host(words)?,
            vocab,
            device,
        })
    }

    /// Where plans put rows.
    pub fn place(&self) -> &Slice {
        &self.place
    }

    /// Where a plan of so many rows puts what [`best_parts`] gives; None if it need not.
    pub fn best_place(&self, rows: usize) -> Result<Option<[Slice; 3]>, Error> {
        let Some(buffer) = self.best.as_ref().filter(|_| rows <= ROWS) else { return Ok(None) };
        let [a, b, c] = WORDS.map(|n| n * rows * 4);
        Ok(Some([buffer.slice(0, a)?, buffer.slice(a, b)?, buffer.slice(a + b, c)?]))
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
            (Some(lie), Some(k @ 1..=FEW)) if self.best.is_some() && lie.rows <= ROWS => {
                Ok(Scores::Best(self.candidates(lie, i, k)?))
            }
            _ => Ok(Scores::All(self.row(i)?)),
        }
    }

    fn candidates(&mut self, lie: Lie, i: usize, k: usize) -> Result<Vec<Candidate>, Error> {
        if let Some(buffer) = self.best.as_ref().filter(|_| lie.parts < k) {
            let words = lie.rows * (2 * FEW + k * WIDTH);
            device::read_floats(&*self.device, &buffer.whole(), 0, &mut self.few[..words])?;
            self.lie = Some(Lie { parts: k, ..lie });
        }
        let at = lie.first + i;
        let (chosen, rest) = self.few.split_at(lie.rows * FEW);
        let (largest, values) = rest.split_at(lie.rows * FEW);
        let [chosen, largest] = [chosen, largest].map(|x| &x[at * FEW..][..k]);
        // As many tokens as are asked for are no less than this.
        let least = largest[k - 1];
        let mut out = Vec::with_capacity(2 * k);
        for (part, values) in chosen.iter().zip(values.chunks(WIDTH).skip(at).step_by(lie.rows)) {
            let part = part.to_bits() * WIDTH as u32;
            for (first, values) in (part..).step_by(LANES).zip(values.chunks_exact(LANES)) {
                // Nearly always there is none, which vector units see at once.
                if values.iter().fold(false, |some, l| some | (*l >= least)) {
                    let each = (first..).zip(values).filter(|(_, l)| **l >= least);
                    out.extend(each.map(|(id, &logit)| Candidate { id, logit }));
                }
            }
        }
        out.sort_unstable_by_key(|c| c.id);
        Ok(out)
    }
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

    const VOCAB: usize = WIDTH * LEAST_PARTS;

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
        let device: Arc<dyn Device> = Arc::new(InterpDevice::like(Ptx::new(90).caps()));
        let rows = rows();
        let mut logits = Logits::new(device.clone(), rows.len(), VOCAB, true).unwrap();
        let g = Graph::new();
        let x = g.input("logits", DType::F32, [rows.len() as i64, VOCAB as i64]);
        let mut choose = by_heuristic(&*device);
        let module = Module::new(&*device, &g, &best_parts(x), &mut Library::default(), &mut choose).unwrap();
        let places = logits.best_place(rows.len()).unwrap().unwrap();
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
                    assert_eq!(id(few), id(None), "row {i}, {how:?}");
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
