//! Many sequences in one cache. In: tokens with their positions and the pages of their sequences. Out: logits.
//!
//! A page is [`PAGE`] rows of every layer's cache; whose it is, the caller knows. Behind the pages lie rows that the
//! unused rows of a plan write. On a CPU a token's row is computed bit by bit alike in every batch, whatever runs beside it; on
//! a GPU sums of more rows have another order, and from 16 rows on weights are worth unpacking for its matrix unit.

use crate::attention::{KV_BLOCK, Reach};
use crate::gguf::{Gguf, TensorInfo};
use crate::model::{Error, Model, Part, Piece, caches, most_rows};
use compiler::quant::Layout;
use runtime::buffer::{Buffer, Slice};
use runtime::device::{self, Device};
use runtime::machine;

/// Positions of a page.
pub const PAGE: usize = KV_BLOCK as usize;

/// Tokens of plans whose tokens are of different sequences.
const BATCHES: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// Tokens that are computed as one is, whatever the device.
const FEW: usize = 8;

/// Most tokens of prompts in one step, so that answers beside them keep flowing.
const PROMPT: usize = 256;

/// Most positions of prompts that share a plan: each token's scores are taken against all of them.
const JOINT: usize = 1024;

/// One token of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    pub token: u32,
    pub pos: usize,
    /// The sequence's pages up to this position or further.
    pub table: &'a [u32],
}

impl Row<'_> {
    /// Is the other's page one of those that this token sees?
    fn sees(&self, other: &Row) -> bool {
        let page = other.pos / PAGE;
        self.table.get(page) == other.table.get(page)
    }
}

/// Tokens of a sequence that follow each other.
#[derive(Clone, Copy, Debug)]
pub struct Stretch<'a> {
    pub tokens: &'a [u32],
    /// Where the first stands.
    pub pos: usize,
    /// The sequence's pages up to the last position or further.
    pub table: &'a [u32],
    /// Are the last one's logits wanted?
    pub wanted: bool,
}

impl Stretch<'_> {
    fn end(&self) -> usize {
        self.pos + self.tokens.len()
    }
    fn pages(&self) -> usize {
        self.end().div_ceil(PAGE)
    }
}

/// Where a step reads what it is told: one buffer, so that one write does.
pub(crate) struct Told(Buffer);

impl Told {
    pub fn alloc(device: &dyn Device, most: usize, capacity: i64) -> Result<Told, device::Error> {
        let widest = BATCHES[BATCHES.len() - 1];
        let table = widest * (capacity / KV_BLOCK) as usize * 4;
        Ok(Told(device.alloc(4 * Told::row(most.max(widest)) + table)?))
    }

    /// Bytes of a number for each of so many rows.
    fn row(rows: usize) -> usize {
        rows.next_multiple_of(16) * 4
    }

    /// The token ids of a plan of so many rows.
    pub fn ids(&self, rows: usize) -> Result<Slice, device::Error> {
        self.0.slice(0, Told::row(rows))
    }

    /// Its slots, positions, starts and table: right behind them, so that little is written for few rows.
    pub fn paging(&self, rows: usize) -> Result<[Slice; 4], device::Error> {
        let row = Told::row(rows);
        let part = |i: usize| self.0.slice(i * row, row);
        Ok([part(1)?, part(2)?, part(3)?, self.0.slice(4 * row, self.0.len() - 4 * row)?])
    }

    pub fn write(&self, device: &dyn Device, words: &[u32]) -> Result<(), device::Error> {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        device.write(&self.0.whole(), 0, &bytes)
    }
}

/// Most bytes of weights that are read for each of a few workers rather than once for all.
const AGAIN: usize = 32 << 20;

/// Batches that run beside each other, each by a worker of the device that waits for nobody: where the weights stay in a
/// cache, so that reading them for each costs less than the workers' waiting for one another after every kernel.
pub(crate) fn lanes(device: &dyn Device, weights: usize) -> usize {
    let near = weights <= AGAIN && machine::last_level_cache().is_some_and(|bytes| weights <= bytes / 3 * 2);
    let lanes = if near { device.lanes() } else { 1 };
    if lanes <= FEW / 2 && FEW.is_multiple_of(lanes) { lanes } else { 1 }
}

/// Fewest rows of a plan that give the same bits as more do: alone, a token's products with numbers that are not in blocks
/// have another order of sums.
pub(crate) fn fewest(file: &Gguf) -> usize {
    let plain = |t: &TensorInfo| t.dims.len() > 1 && !t.format.is_quantised();
    let router = |t: &TensorInfo| t.name.ends_with("ffn_gate_inp.weight");
    if file.tensors().iter().any(|t| plain(t) && !router(t)) { 2 } else { 1 }
}

impl Model {
    /// Makes room for so many positions of all sequences together. What the cache held is lost.
    pub fn reserve(&mut self, positions: usize) -> Result<(), Error> {
        let (spare, most) = (self.spare(), most_rows(&self.config));
        if (positions.saturating_add(spare + PAGE)) as u64 > most as u64 {
            return Err(Error::TooLarge { positions, most });
        }
        self.rows = ((positions.div_ceil(PAGE) * PAGE + spare) as i64).max(self.capacity);
        self.plans.clear();
        self.truncate(0);
        let Model { device, config, layers, draft, rows, numbers, .. } = self;
        layers.iter_mut().chain(draft.as_mut()).for_each(|layer| layer.caches.clear());
        for layer in layers.iter_mut().chain(draft.as_mut()) {
            layer.caches = caches(&**device, config, *numbers, *rows)?;
        }
        Ok(())
    }

    /// A table of pages for each of so many sequences of so many positions; makes room where there is too little.
    pub fn tables(&mut self, sequences: usize, positions: usize) -> Result<Vec<Vec<u32>>, Error> {
        let each = positions.div_ceil(PAGE) as u32;
        if self.pages() < sequences * each as usize {
            self.reserve(sequences * each as usize * PAGE)?;
        }
        Ok((0..sequences as u32).map(|s| (s * each..(s + 1) * each).collect()).collect())
    }

    /// Pages that sequences may use.
    pub fn pages(&self) -> usize {
        (self.rows as usize - self.spare()) / PAGE
    }

    /// Rows behind the pages, for unused rows of plans.
    fn spare(&self) -> usize {
        self.chunk().next_multiple_of(PAGE)
    }

    /// Most tokens of one batch.
    pub fn widest(&self) -> usize {
        self.chunk().min(BATCHES[BATCHES.len() - 1])
    }

    /// Most tokens of prompts in one step.
    pub fn prompt_chunk(&self) -> usize {
        self.chunk().min(PROMPT)
    }

    /// Runs pieces of the prompts of different sequences; the logits of the last token of each that wants them.
    pub fn prompts(&mut self, pieces: &[Stretch]) -> Result<Vec<Option<Vec<f32>>>, Error> {
        let (tokens, most) = (pieces.iter().map(|p| p.tokens.len()).sum(), self.prompt_chunk());
        if tokens > most || pieces.iter().any(|p| p.tokens.is_empty()) {
            return Err(Error::Chunk { tokens, most });
        }
        let positions = JOINT.min(self.context());
        let (mut logits, mut rest) = (vec![], pieces);
        while !rest.is_empty() {
            let ends = rest.iter().scan(0, |sum, p| {
                *sum += p.pages() * PAGE;
                Some(*sum)
            });
            let n = ends.take_while(|&end| end <= positions).count().max(1);
            let (now, after) = rest.split_at(n);
            logits.extend(self.joint(now)?);
            rest = after;
        }
        Ok(logits)
    }

    /// One plan over pieces of prompts. Their pages are one table, of which each token sees its sequence's part: what it
    /// does not see adds zeros to its sums.
    fn joint(&mut self, pieces: &[Stretch]) -> Result<Vec<Option<Vec<f32>>>, Error> {
        let [mut ids, mut slots, mut positions, mut starts, mut table] = [const { vec![] }; 5];
        let mut pos = 0;
        for p in pieces {
            self.known(p.tokens)?;
            self.within(p.end(), p.table)?;
            let start = table.len() * PAGE;
            pos = pos.max((start + p.pos).saturating_sub(ids.len()));
            ids.extend_from_slice(p.tokens);
            slots.extend((p.pos..p.end()).map(|at| slot(p.table, at)));
            positions.extend((p.pos..p.end()).map(|at| at as u32));
            starts.extend(p.tokens.iter().map(|_| start as u32));
            table.extend_from_slice(&p.table[..p.pages()]);
        }
        let rows = self.prompt_rows(ids.len());
        slots.extend((ids.len()..rows).map(|i| self.spare_row(i)));
        self.tell(0, rows, [&ids, &slots, &positions, &starts], &table)?;
        self.launch(Part::Paged, rows, &[("pos", pos as i64), ("blocks", table.len() as i64)])?;
        let mut end = 0;
        let last = pieces.iter().map(|p| {
            end += p.tokens.len();
            if !p.wanted {
                return Ok(None);
            }
            self.head(Part::Head, self.fewest, end - 1)?;
            Ok(Some(self.row(0)?.to_vec()))
        });
        last.collect()
    }

    /// Puts the first tokens of a sequence into its pages.
    pub fn fill(&mut self, tokens: &[u32], table: &[u32]) -> Result<(), Error> {
        let chunk = self.prompt_chunk();
        for (i, tokens) in tokens.chunks(chunk).enumerate() {
            self.prompts(&[Stretch { tokens, pos: i * chunk, table, wanted: false }])?;
        }
        Ok(())
    }

    /// Runs one token of each of several sequences, or several of one whose positions before are in the cache or here;
    /// the logits of each are a row.
    pub fn batch(&mut self, tokens: &[Row]) -> Result<(), Error> {
        let most = self.together_at_most();
        for (i, part) in tokens.chunks(most).enumerate() {
            self.together(part)?;
            if tokens.len() > most {
                self.logits.keep(part.len(), i * most)?;
            }
        }
        Ok(())
    }

    /// One plan over a few tokens.
    fn together(&mut self, tokens: &[Row]) -> Result<(), Error> {
        let n = tokens.len();
        let rows = self.batch_rows(n);
        let lanes = self.lanes(n);
        let mut pieces = vec![];
        for (lane, tokens) in tokens.chunks(rows / lanes).enumerate() {
            pieces.push(self.tell_batch(lane, rows / lanes, tokens)?);
        }
        if lanes > 1 && independent(tokens, rows / lanes) {
            self.with_plans(&pieces, |device, plans| device.run_beside(plans))?;
        } else {
            pieces.iter().try_for_each(|(part, rows, symbols)| self.launch(*part, *rows, symbols))?;
        }
        self.head(Part::Head, rows, 0)
    }

    /// So many batches run beside each other for so many tokens, each with one at least.
    pub(crate) fn lanes(&self, tokens: usize) -> usize {
        let lanes = self.told.len();
        let each = FEW / lanes;
        if tokens <= FEW && tokens > FEW - each { lanes } else { 1 }
    }

    /// Tells one of the batches that run beside each other its tokens.
    fn tell_batch(&self, lane: usize, rows: usize, tokens: &[Row]) -> Result<Piece, Error> {
        let n = tokens.len();
        let ids: Vec<u32> = tokens.iter().map(|r| r.token).collect();
        self.known(&ids)?;
        for r in tokens {
            self.within(r.pos + 1, r.table)?;
        }
        let last = tokens.iter().map(|r| r.pos).max().unwrap_or(0);
        let (part, blocks) = self.apart(rows, lane, last + 1);
        let pages = blocks * (self.block(part, rows) / PAGE);
        let spare = self.pages() as u32;
        let mut slots: Vec<u32> = tokens.iter().map(|r| slot(r.table, r.pos)).collect();
        slots.extend((n..rows).map(|i| self.spare_row(lane * rows + i)));
        let mut positions: Vec<u32> = tokens.iter().map(|r| r.pos as u32).collect();
        positions.resize(rows, 0);
        let mut table = vec![];
        for r in tokens {
            let used = r.table.iter().copied().take(r.pos / PAGE + 1);
            // What lies behind a token's position is not looked at, whatever it is.
            table.extend(used.chain(std::iter::repeat(r.table[0])).take(pages));
        }
        table.resize(rows * pages, spare);
        self.tell(lane, rows, [&ids, &slots, &positions, &[]], &table)?;
        Ok((part, rows, vec![("blocks", blocks as i64)]))
    }

    /// The part that runs rows of different sequences, and how many of its blocks hold so many positions.
    fn apart(&self, rows: usize, lane: usize, positions: usize) -> (Part, usize) {
        let part = Part::Batch(self.sight(rows, Reach::Apart, positions), lane);
        (part, positions.div_ceil(self.block(part, rows)))
    }

    /// What [`Model::batch`] runs for so many sequences, the last of their tokens at `pos`; of the batches beside each
    /// other the first.
    pub(crate) fn pieces_apart(&self, sequences: usize, pos: usize) -> [Piece; 2] {
        let all = self.batch_rows(sequences);
        let rows = all / self.lanes(sequences);
        let (part, blocks) = self.apart(rows, 0, pos + 1);
        [(part, rows, vec![("blocks", blocks as i64)]), (Part::Head, all, vec![("row", 0)])]
    }

    /// The plan of a batch.
    fn batch_rows(&self, sequences: usize) -> usize {
        BATCHES.into_iter().find(|&b| b >= sequences.max(self.fewest)).unwrap_or(sequences)
    }

    /// Makes one of the plans that a step of so many sequences may want; false if all are there.
    pub(crate) fn prepare(&mut self, sequences: usize) -> Result<bool, Error> {
        let most = self.together_at_most().min(sequences.next_power_of_two());
        let batches = BATCHES.into_iter().filter(|&n| n >= self.fewest && n <= most);
        let mut wanted: Vec<(Part, usize)> = vec![];
        for n in batches {
            let lanes = self.lanes(n);
            for sight in self.sights(n / lanes, Reach::Apart) {
                wanted.extend((0..lanes).map(|lane| (Part::Batch(sight, lane), n / lanes)));
            }
            wanted.push((Part::Head, n));
        }
        let prompts = self.chunks.iter().filter(|&&c| c <= PROMPT && self.prompt_rows(c) == c);
        wanted.extend(prompts.map(|&c| (Part::Paged, c)));
        let Some((part, rows)) = wanted.into_iter().find(|w| !self.plans.contains_key(w)) else {
            return Ok(false);
        };
        self.with_plan(part, rows, &[], |_, _, _| Ok(true))
    }

    /// Most tokens of one plan for a batch: on a CPU sums of more have another order where there are tiles for them.
    pub(crate) fn together_at_most(&self) -> usize {
        let alike = self.uniform() || self.layout == Layout::Rows;
        if alike { self.widest() } else { FEW.min(self.widest()) }
    }

    /// The plan of a piece of a prompt. Where many tokens are computed in other numbers than few, all are in those of many.
    fn prompt_rows(&self, n: usize) -> usize {
        let fits = |&&c: &&usize| {
            c >= n.max(self.fewest)
                && (self.numbers.unit.is_none() || self.numbers.halves(c as i64).is_some())
        };
        self.chunks.iter().find(fits).copied().unwrap_or(self.chunk())
    }

    /// Does a token's row come out alike in a prompt and in an answer?
    pub fn uniform(&self) -> bool {
        self.numbers.halves(self.chunk() as i64).is_none()
    }

    fn within(&self, positions: usize, table: &[u32]) -> Result<(), Error> {
        let held = table.len() * PAGE;
        let context = self.context().min(held);
        let known = table.iter().all(|&p| (p as usize) < self.pages());
        if positions > context || !known {
            Err(Error::Context { context, wanted: positions })
        } else {
            Ok(())
        }
    }

    fn spare_row(&self, i: usize) -> u32 {
        (self.pages() * PAGE + i) as u32
    }

    /// Tells a plan of so many rows their ids, slots, positions and starts.
    fn tell(&self, lane: usize, rows: usize, parts: [&[u32]; 4], table: &[u32]) -> Result<(), Error> {
        let mut words = vec![];
        for (i, part) in parts.into_iter().enumerate() {
            words.extend_from_slice(part);
            words.resize((i + 1) * Told::row(rows) / 4, 0);
        }
        words.extend_from_slice(table);
        Ok(self.told[lane].write(&*self.device, &words)?)
    }
}

/// Does no token see one of another batch, `each` of them one?
fn independent(tokens: &[Row], each: usize) -> bool {
    let sees = |i: usize, j: usize| i / each != j / each && tokens[i].sees(&tokens[j]);
    !(0..tokens.len()).any(|i| (0..tokens.len()).any(|j| sees(i, j)))
}

/// The row of the cache for a position.
fn slot(table: &[u32], pos: usize) -> u32 {
    table[pos / PAGE] * PAGE as u32 + (pos % PAGE) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_one_sequence_are_no_batches_beside_each_other() {
        let row = |pos, table| Row { token: 0, pos, table };
        let four = [row(31, &[0, 1]), row(32, &[0, 1]), row(5, &[2]), row(6, &[2])];
        assert!(independent(&four, 2) && independent(&four, 4));
        assert!(!independent(&four, 1));
        // What they have in common is a prompt's beginning, which nobody writes any more.
        let shared = [row(40, &[7, 1]), row(70, &[7, 2, 3])];
        assert!(independent(&shared, 1));
        assert!(!independent(&[row(40, &[7, 1]), row(31, &[7])], 1), "the second writes what the first sees");
    }
}
