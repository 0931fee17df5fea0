//! A model on a device: its weights, its cache, and the plans that run tokens through it.
//!
//! In: tokens at the next positions. Out: logits. A plan is made for each of a few numbers of tokens, when it is first
//! needed; layers whose tensors have the same types and shapes share its kernels. A chunk shorter than its plan is
//! filled up with tokens whose rows of the cache are written again before anything looks at them.

use crate::attention::{self, Attention, DEEP, KV_BLOCK, Reach, SHALLOW};
use crate::block::Block;
use crate::config::{self, Config};
use crate::gguf::{self, Gguf, TensorInfo};
use crate::logits::Logits;
use crate::paged;
use crate::planner::{Drafting, Embedding, Head, Modules, Planner};
use crate::sample::Scores;
use crate::size::Size;
use crate::weights::{self, Activations, Inputs, Loader, Numbers, Source};
use compiler::graph::Graph;
use compiler::ops::Unit;
use compiler::quant::Layout;
use runtime::buffer::{Buffer, Slice};
use runtime::cache;
use runtime::check::layout;
use runtime::device::{self, Beside, Device, Prepared, Span};
use runtime::plan::Plan;
use runtime::schedules::Schedules;
use runtime::step::{Choose, Launched, Library};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Tokens of a plan. On a CPU rows that nobody asked for take as long as others, so it has more plans; but a tile unit is not
/// used for a single tile.
const CPU_CHUNKS: &[usize] = &[1, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512];
const GPU_CHUNKS: &[usize] = &[1, 8, 32, 64, 128, 256, 512];

/// Tokens of a plan for a long prompt on a GPU: each expert has a few tiles of them, and a position's keys and values are
/// computed for all. Only whole ones are run so.
const LONG: usize = 2048;

/// Bytes that the scores of a plan may take where they are all there at once.
const SCORES: i64 = 256 << 20;

#[derive(Clone, Debug)]
pub struct Options {
    /// Positions of the cache; what the model was trained for, at most [`DEFAULT_CONTEXT`], if not given.
    pub context: Option<usize>,
    /// Int8 where the device multiplies bytes, if not given.
    pub activations: Option<Activations>,
    /// Loads the layers that draft as well.
    pub drafts: bool,
    /// What plans run under.
    pub schedules: Arc<Schedules>,
}

pub const DEFAULT_CONTEXT: usize = 4096;

/// Positions of a context at most: tables of angles are made for all of them.
const MOST_CONTEXT: i64 = 1 << 24;

#[derive(thiserror::Error, Debug)]
pub enum Error {
    #[error(transparent)]
    Config(#[from] config::Error),
    #[error(transparent)]
    Weights(#[from] weights::Error),
    #[error(transparent)]
    Device(#[from] device::Error),
    #[error(transparent)]
    Cache(#[from] cache::Error),
    #[error("the context holds {context} positions and {wanted} are needed; give a larger --ctx")]
    Context { context: usize, wanted: usize },
    #[error(
        "a cache of {positions} positions is asked for and this model's can have {most}; give a smaller --ctx or --cache"
    )]
    TooLarge { positions: usize, most: i64 },
    #[error("{file} holds a vocabulary and no tensors: it can be tokenized with, not run")]
    Vocabulary { file: String },
    #[error("token {token} is outside the vocabulary of {vocab}")]
    Token { token: u32, vocab: usize },
    #[error("one step takes from 1 to {most} tokens, not {tokens}")]
    Chunk { tokens: usize, most: usize },
    #[error("{file} has no layer that drafts (its `nextn_predict_layers` is 0 or absent)")]
    NoDraft { file: String },
}

/// What the tensors of a block look like, their names behind the block's prefix.
type Signature = Vec<(String, u32, Vec<i64>)>;

pub(crate) struct Layer {
    pub index: i64,
    /// Equal layers have equal numbers.
    pub kind: usize,
    /// What plans read, in the order of the declarations.
    pub weights: Vec<Slice>,
    pub caches: Vec<Slice>,
}

pub struct Model {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) file: Gguf,
    pub(crate) config: Config,
    pub(crate) layout: Layout,
    pub(crate) numbers: Numbers,
    context: usize,
    /// Positions that plans may name: the context and room for the tokens that fill up a chunk.
    pub(crate) capacity: i64,
    /// Rows of each cache, at least `capacity`.
    pub(crate) rows: i64,
    pub(crate) chunks: Vec<usize>,
    /// Most tokens of a step of which only the last one's logits are wanted.
    pub(crate) long: usize,
    /// Fewest rows of plans in pages.
    pub(crate) fewest: usize,
    pub(crate) layers: Vec<Layer>,
    pub(crate) draft: Option<Layer>,
    pub(crate) weights: HashMap<String, Vec<Slice>>,
    pub(crate) cos: Slice,
    pub(crate) sin: Slice,
    /// What each of the batches that run beside each other is told, one alone as the first.
    pub(crate) told: Vec<paged::Told>,
    /// The residual stream, before and after a layer.
    pub(crate) stream: [Slice; 2],
    /// After the final norm.
    pub(crate) hidden: Slice,
    pub(crate) logits: Logits,
    /// Of the same.
    scratch: Vec<Buffer>,
    pub(crate) plans: Plans,
    pub(crate) library: Library,
    pub(crate) schedules: Arc<Schedules>,
    pub(crate) len: usize,
}

pub(crate) type Plans = HashMap<(Part, usize), Prepared>;

/// One plan of a step: its part, its rows, the values of its symbols.
pub(crate) type Piece = (Part, usize, Vec<(&'static str, i64)>);

/// What one plan does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Part {
    /// Token ids through all layers and the final norm.
    Trunk(Sight),
    /// The next tokens and the trunk's hidden rows through the drafting layer, to its norm.
    Draft,
    /// Hidden rows to logits.
    Head,
    DraftHead,
    /// As [`Part::Trunk`], the cache in pages.
    Paged,
    /// Tokens that are each of another sequence, in one of the batches that run beside each other.
    Batch(Sight, usize),
}

impl Part {
    /// Which of the batches that run beside each other it is.
    fn lane(self) -> usize {
        if let Part::Batch(_, lane) = self { lane } else { 0 }
    }
}

/// Positions that the tokens of a plan may see, where fewer than all there are make another plan of it.
pub(crate) type Sight = Option<i64>;

impl Model {
    /// `progress` is told how many of how many bytes are loaded.
    pub fn load(
        device: Arc<dyn Device>,
        file: Gguf,
        options: Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Model, Error> {
        if file.tensors().is_empty() {
            return Err(Error::Vocabulary { file: file.name().into() });
        }
        let config = Config::read(&file)?;
        let layout = layout(&*device);
        let caps = device.target().caps();
        let activations =
            options.activations.unwrap_or(if caps.dot4 { Activations::Int8 } else { Activations::F32 });
        // Without block-quantised weights there is nothing to round: everything is exact.
        let quantised = file.tensors().iter().any(|t| t.format.is_quantised());
        let unit = caps.tile.then_some(Unit::Tile).or(caps.mma.then_some(Unit::Warp));
        let numbers =
            Numbers { activations, unit: unit.filter(|_| quantised), spread: caps.lanes > 1, several: false };
        let context =
            options.context.unwrap_or_else(|| (config.context as usize).min(DEFAULT_CONTEXT)).max(1);
        let most_rows = most_rows(&config).min(MOST_CONTEXT);
        let too_large = Error::TooLarge { positions: context, most: most_rows };
        if context as u64 > most_rows as u64 {
            return Err(too_large);
        }
        let fits = |&t: &usize| {
            let parts = numbers.halves(t as i64) == Some(Unit::Warp);
            t == 1 || parts || (t as i64) * config.heads * context as i64 * 4 <= SCORES
        };
        let chunks = if numbers.spread { GPU_CHUNKS } else { CPU_CHUNKS };
        let single = |t: usize| t == 16 && numbers.unit == Some(Unit::Tile);
        let chunks: Vec<usize> = chunks.iter().copied().filter(|t| fits(t) && !single(*t)).collect();
        let most = chunks[chunks.len() - 1];
        let warps = numbers.halves(LONG as i64) == Some(Unit::Warp);
        let long = if warps && context >= LONG { LONG } else { most };
        let whole = |n: usize| n.next_multiple_of(KV_BLOCK as usize);
        let rows = whole(context) + whole(most);
        let block = |tokens| attention::block(&config, tokens, numbers, Reach::Whole, rows as i64) as usize;
        let capacity = rows.next_multiple_of(block(1).max(block(most as i64))) as i64;
        if capacity > most_rows {
            return Err(too_large);
        }

        let drafts = if options.drafts { config.drafts } else { 0 };
        let declared = declare(&file, &config, drafts, layout, numbers)?;
        let weights = load(&*device, &file, layout, &declared.sources, progress)?;

        let factors =
            file.tensor("rope_freqs.weight").map(|t| frequency_factors(&file, t, &config)).transpose()?;
        let (cos, sin) = config.rotary.tables(capacity as usize, factors.as_deref());
        let upload = |values: &[f32]| -> Result<Slice, device::Error> {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let slice = device.alloc(bytes.len())?.whole();
            device.write(&slice, 0, &bytes)?;
            Ok(slice)
        };
        let room = |n: i64| Ok::<_, device::Error>(device.alloc(n as usize * 4)?.whole());
        let mut layers = vec![];
        for (index, (kind, sources)) in declared.layers.into_iter().enumerate() {
            let caches = caches(&*device, &config, numbers, capacity)?;
            let weights = sources.iter().map(|s| weights[&s.tensor][s.plane].clone()).collect();
            layers.push(Layer { index: index as i64, kind, weights, caches });
        }
        let draft = (drafts > 0).then(|| layers.split_off(config.layers as usize).swap_remove(0));
        let rows = long as i64;
        let lanes = paged::lanes(&*device, weights.values().flatten().map(Slice::len).sum());
        Ok(Model {
            layout,
            numbers,
            context,
            capacity,
            rows: capacity,
            fewest: paged::fewest(&file).min(most),
            chunks,
            long,
            layers,
            draft,
            weights,
            cos: upload(&cos)?,
            sin: upload(&sin)?,
            told: (0..lanes)
                .map(|_| paged::Told::alloc(&*device, long, capacity))
                .collect::<Result<_, _>>()?,
            stream: [room(rows * config.dim)?, room(rows * config.dim)?],
            hidden: room(rows * config.dim)?,
            logits: Logits::new(device.clone(), most, config.vocab as usize, numbers.spread)?,
            scratch: (0..lanes).map(|_| device.alloc(1)).collect::<Result<_, _>>()?,
            plans: HashMap::new(),
            library: Library::default(),
            schedules: options.schedules,
            len: 0,
            device,
            file,
            config,
        })
    }

    pub fn file(&self) -> &Gguf {
        &self.file
    }
    /// What running it takes, with the cache that it has.
    pub fn size(&self) -> Result<Size, gguf::Error> {
        let kv_number_bytes = self.numbers.cache().bytes() as u64;
        Ok(Size { kv_number_bytes, ..Size::of(&self.file)? })
    }
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }
    pub fn schedules(&self) -> &Schedules {
        &self.schedules
    }
    pub fn vocab(&self) -> usize {
        self.config.vocab as usize
    }
    /// Positions that the model was trained for.
    pub fn trained(&self) -> usize {
        self.config.context as usize
    }
    /// Positions that the cache holds.
    pub fn context(&self) -> usize {
        self.context
    }
    /// Positions that are filled.
    pub fn len(&self) -> usize {
        self.len
    }
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Forgets everything from position `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
    /// Most tokens that one step takes.
    pub fn chunk(&self) -> usize {
        self.chunks[self.chunks.len() - 1]
    }

    /// The same of a step of which only the last one's logits are wanted.
    pub fn long_chunk(&self) -> usize {
        self.long
    }

    /// Runs tokens at the next positions; the logits of the last one are row 0.
    pub fn advance(&mut self, tokens: &[u32]) -> Result<(), Error> {
        self.run(tokens, self.long, &mut |model, n, end| {
            if end {
                model.head(Part::Head, 1, n - 1)?;
            }
            Ok(())
        })
    }

    /// The same, and its logits.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<&mut [f32], Error> {
        self.advance(tokens)?;
        self.row(0)
    }

    /// The logits that the last call computed, by row.
    pub fn row(&mut self, i: usize) -> Result<&mut [f32], Error> {
        Ok(self.logits.row(i)?)
    }

    /// What a token is chosen by that follows row `i` of the last call, where so `few` of the best do.
    pub fn scores(&mut self, i: usize, few: Option<usize>) -> Result<Scores<'_>, Error> {
        Ok(self.logits.scores(i, few)?)
    }

    /// Runs tokens at the next positions and gives each one's logits to `row`, in order.
    pub fn feed_all(&mut self, tokens: &[u32], row: &mut dyn FnMut(&[f32])) -> Result<(), Error> {
        self.run(tokens, self.chunk(), &mut |model, n, _| model.head_all(Part::Head, n, row))
    }

    /// As [`Model::feed_all`], with the drafting layer's logits: row i sees the hidden state of token i and token i + 1.
    pub fn feed_drafts(&mut self, tokens: &[u32], row: &mut dyn FnMut(&[f32])) -> Result<(), Error> {
        if self.draft.is_none() {
            return Err(Error::NoDraft { file: self.file.name().into() });
        }
        self.known(tokens)?;
        let start = self.len;
        self.run(&tokens[..tokens.len().saturating_sub(1)], self.chunk(), &mut |model, n, _| {
            let at = model.len - start;
            model.step(Part::Draft, &tokens[at + 1..][..n], model.len)?;
            model.head_all(Part::DraftHead, n, row)
        })
    }

    /// Runs tokens through the trunk chunk by chunk, or by `long` ones while there are as many. `then` is told how many rows of `hidden` there are, before the
    /// positions count as filled, and whether they are the last.
    fn run(
        &mut self,
        tokens: &[u32],
        long: usize,
        then: &mut dyn FnMut(&mut Model, usize, bool) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let wanted = self.len + tokens.len();
        if wanted > self.context {
            return Err(Error::Context { context: self.context, wanted });
        }
        self.known(tokens)?;
        let mut rest = tokens;
        while !rest.is_empty() {
            let n = if rest.len() >= long { long } else { rest.len().min(self.chunk()) };
            let (now, after) = rest.split_at(n);
            self.step(self.trunk(now.len()), now, self.len)?;
            then(self, n, after.is_empty())?;
            self.len += n;
            rest = after;
        }
        Ok(())
    }

    pub(crate) fn known(&self, tokens: &[u32]) -> Result<(), Error> {
        match tokens.iter().find(|&&t| t as usize >= self.vocab()) {
            Some(&token) => Err(Error::Token { token, vocab: self.vocab() }),
            None => Ok(()),
        }
    }

    /// Runs one plan over token ids that stand at `pos`.
    fn step(&mut self, part: Part, tokens: &[u32], pos: usize) -> Result<(), Error> {
        self.told[0].write(&*self.device, tokens)?;
        let rows = self.rows_for(tokens.len());
        self.launch(part, rows, &[("pos", pos as i64), ("blocks", self.blocks(part, rows, pos + rows))])
    }

    /// The part that runs so many tokens at the next positions.
    fn trunk(&self, tokens: usize) -> Part {
        let rows = self.rows_for(tokens);
        Part::Trunk(self.sight(rows, Reach::Whole, self.len + rows))
    }

    /// What suffices for so many rows, the last of which sees so many positions.
    pub(crate) fn sight(&self, rows: usize, reach: Reach, positions: usize) -> Sight {
        let block = |most| attention::block(&self.config, rows as i64, self.numbers, reach, most);
        let differs = |&most: &i64| most < self.capacity && block(most) != block(self.capacity);
        [SHALLOW, DEEP].into_iter().filter(differs).find(|&most| positions as i64 <= most)
    }

    /// All sights that plans of so many rows have.
    pub(crate) fn sights(&self, rows: usize, reach: Reach) -> Vec<Sight> {
        let mut all = [1, SHALLOW + 1, DEEP + 1].map(|n| self.sight(rows, reach, n as usize)).to_vec();
        all.dedup();
        all
    }

    /// Positions that a part's tokens may see.
    fn positions(&self, part: Part) -> i64 {
        match part {
            Part::Trunk(sight) | Part::Batch(sight, _) => sight.unwrap_or(self.capacity),
            _ => self.capacity,
        }
    }

    /// Positions of a block, in a plan of so many tokens.
    pub(crate) fn block(&self, part: Part, rows: usize) -> usize {
        let reach = if let Part::Batch(..) = part { Reach::Apart } else { Reach::Whole };
        let positions = self.positions(part);
        attention::block(&self.config, rows as i64, self.numbers, reach, positions) as usize
    }

    /// Logits of the hidden state's rows from `at` on, by a plan of so many rows.
    pub(crate) fn head(&mut self, part: Part, rows: usize, at: usize) -> Result<(), Error> {
        // A full chunk has no other place than the first row.
        let row = at.min(self.long - rows);
        self.launch(part, rows, &[("row", row as i64)])?;
        self.logits.ran(rows, at - row);
        Ok(())
    }

    /// Logits of the hidden state's first rows, each given to `row`.
    fn head_all(&mut self, part: Part, n: usize, row: &mut dyn FnMut(&[f32])) -> Result<(), Error> {
        self.head(part, self.rows_for(n), 0)?;
        self.logits.keep(n, 0)?;
        for i in 0..n {
            row(self.row(i)?);
        }
        Ok(())
    }

    /// Blocks that hold so many positions.
    fn blocks(&self, part: Part, rows: usize, positions: usize) -> i64 {
        positions.div_ceil(self.block(part, rows)) as i64
    }

    /// The smallest plan for `n` tokens.
    fn rows_for(&self, n: usize) -> usize {
        self.chunks.iter().copied().find(|&c| c >= n).unwrap_or(self.long)
    }

    pub(crate) fn launch(&mut self, part: Part, rows: usize, symbols: &[(&str, i64)]) -> Result<(), Error> {
        self.with_plan(part, rows, symbols, |device, prepared, values| device.run(prepared, values))
    }

    /// Makes a plan if it is not there, and gives it to `go` with the values of its symbols.
    pub(crate) fn with_plan<R>(
        &mut self,
        part: Part,
        rows: usize,
        symbols: &[(&str, i64)],
        go: impl FnOnce(&dyn Device, &mut Prepared, &[i64]) -> Result<R, device::Error>,
    ) -> Result<R, Error> {
        self.make(part, rows)?;
        let prepared = self.plans.get_mut(&(part, rows)).expect("just made");
        let values = values(prepared, symbols);
        Ok(go(&*self.device, prepared, &values)?)
    }

    /// Makes a plan if it is not there.
    fn make(&mut self, part: Part, rows: usize) -> Result<(), Error> {
        if !self.plans.contains_key(&(part, rows)) {
            let plan = self.plan(part, rows as i64)?;
            self.plans.insert((part, rows), plan);
        }
        Ok(())
    }

    /// Gives plans of which none needs another to `go`, made where they are not there.
    pub(crate) fn with_plans<R>(
        &mut self,
        pieces: &[Piece],
        go: impl FnOnce(&dyn Device, &mut [Beside]) -> Result<R, device::Error>,
    ) -> Result<R, Error> {
        for (part, rows, _) in pieces {
            self.make(*part, *rows)?;
        }
        let mut plans = vec![];
        for (key, prepared) in &mut self.plans {
            if let Some((.., symbols)) = pieces.iter().find(|(part, rows, _)| (*part, *rows) == *key) {
                let values = values(prepared, symbols);
                plans.push((prepared, values));
            }
        }
        Ok(go(&*self.device, &mut plans)?)
    }

    /// What [`Model::feed`] runs for so many tokens at the next positions, one chunk: each plan's part, rows and symbols.
    pub(crate) fn pieces(&self, tokens: usize) -> [Piece; 2] {
        let (rows, part) = (self.rows_for(tokens), self.trunk(tokens));
        let blocks = self.blocks(part, rows, self.len + rows);
        let row = (tokens - 1).min(self.chunk() - 1);
        [
            (part, rows, vec![("pos", self.len as i64), ("blocks", blocks)]),
            (Part::Head, 1, vec![("row", row as i64)]),
        ]
    }

    /// Runs one plan over the token ids of the step before: when each launch ran, and how often an untimed step
    /// synchronises.
    pub(crate) fn time(
        &mut self,
        part: Part,
        rows: usize,
        symbols: &[(&str, i64)],
    ) -> Result<(Vec<Span>, usize), Error> {
        self.with_plan(part, rows, symbols, |device, prepared, values| {
            let times = device.spans(prepared, values)?;
            Ok((times, device.synchronisations(prepared.plan(), values)))
        })
    }

    /// The launches from `tokens` tokens to logits, each with how often there is one like it.
    pub fn launches(&mut self, tokens: usize) -> Result<Vec<(Launched, usize)>, Error> {
        let rows = self.rows_for(tokens) as i64;
        let mut out: Vec<(Launched, usize)> = vec![];
        for part in [Part::Trunk(self.sight(rows as usize, Reach::Whole, rows as usize)), Part::Head] {
            let modules = self.modules(part, rows)?;
            for launched in modules.iter().flat_map(|(m, _)| m.launches()) {
                match out.iter_mut().find(|(l, _)| l.program.is(&launched.program)) {
                    Some((_, times)) => *times += 1,
                    None => out.push((launched.clone(), 1)),
                }
            }
        }
        Ok(out)
    }

    pub(crate) fn modules(&mut self, part: Part, rows: i64) -> Result<Modules, Error> {
        let mut library = std::mem::take(&mut self.library);
        let schedules = self.schedules.clone();
        let modules = self.modules_by(part, rows, &mut library, &mut schedules.chooser(&*self.device));
        self.library = library;
        modules
    }

    pub(crate) fn modules_by(
        &self,
        part: Part,
        rows: i64,
        library: &mut Library,
        choose: &mut dyn Choose,
    ) -> Result<Modules, Error> {
        let reach = match part {
            // A batch's head is computed as that of a single token.
            Part::Head if rows as usize <= self.together_at_most() => Reach::Apart,
            Part::Trunk(_) | Part::Draft | Part::Head | Part::DraftHead => Reach::Whole,
            Part::Paged => Reach::Paged,
            Part::Batch(..) => Reach::Apart,
        };
        let numbers = if reach == Reach::Apart { self.numbers.of_batch(rows) } else { self.numbers };
        let positions = self.positions(part);
        let lane = part.lane();
        let mut p =
            Planner { model: self, library, choose, modules: vec![], reach, positions, numbers, lane };
        match part {
            Part::Trunk(_) | Part::Paged | Part::Batch(..) => p.trunk(rows)?,
            Part::Draft => p.draft(rows)?,
            Part::Head => p.head(rows, false)?,
            Part::DraftHead => p.head(rows, true)?,
        }
        Ok(p.modules)
    }

    fn plan(&mut self, part: Part, rows: i64) -> Result<Prepared, Error> {
        let modules = self.modules(part, rows)?;
        let mut plan = Plan::new(["pos", "blocks", "row"]);
        let scratch = modules.iter().map(|(m, _)| m.scratch()).max().unwrap_or(0);
        let own = &mut self.scratch[part.lane()];
        if scratch > own.len() {
            *own = self.device.alloc(scratch)?;
        }
        for (module, memory) in &modules {
            module.push(&mut plan, memory, own)?;
        }
        Ok(self.device.prepare(plan)?)
    }
}

/// What a plan's symbols are worth, those that are not given nothing.
fn values(prepared: &Prepared, symbols: &[(&str, i64)]) -> Vec<i64> {
    let value = |name: &String| symbols.iter().find(|s| s.0 == name).map_or(0, |s| s.1);
    prepared.plan().symbols().iter().map(value).collect()
}

/// A layer's caches of so many rows.
pub(crate) fn caches(
    device: &dyn Device,
    c: &Config,
    numbers: Numbers,
    rows: i64,
) -> Result<Vec<Slice>, device::Error> {
    let bytes = |row: &Vec<i64>| (rows * row.iter().product::<i64>()) as usize * numbers.cache().bytes();
    Attention::cache_rows(c).iter().map(|row| Ok(device.alloc(bytes(row))?.whole())).collect()
}

/// Rows of a cache at most: places in it are numbers of 32 bits.
pub(crate) fn most_rows(c: &Config) -> i64 {
    let row = Attention::cache_rows(c).iter().map(|row| row.iter().product()).max();
    i64::from(i32::MAX) / row.unwrap_or(1).max(1)
}

/// What of a file is wanted.
struct Declared {
    /// Everything, also what several parts share.
    sources: Vec<Source>,
    /// For each layer the number that equal layers share, and what it reads.
    layers: Vec<(usize, Vec<Source>)>,
}

fn declare(
    file: &Gguf,
    c: &Config,
    drafts: i64,
    layout: Layout,
    numbers: Numbers,
) -> Result<Declared, weights::Error> {
    type Part<'a> = &'a dyn for<'g> Fn(&Inputs<'g, '_>) -> Result<(), weights::Error>;
    let part = |prefix: &str, of: Part| {
        let g = Graph::new();
        let inputs = Inputs::new(&g, file, prefix.into(), layout, numbers);
        of(&inputs).map(|()| inputs.sources())
    };
    let mut sources = part("", &|i| {
        Embedding::declare(i, c)?;
        Head::declare(i, c).map(drop)
    })?;
    let (mut kinds, mut layers) = (Vec::<Signature>::new(), vec![]);
    for index in 0..c.layers + drafts {
        let prefix = format!("blk.{index}.");
        let own = part(&prefix, &|i| Block::declare(i, c, index).map(drop))?;
        let tensors = own.iter().filter_map(|s| file.tensor(&s.tensor));
        let signature: Signature =
            tensors.map(|t| (t.name[prefix.len()..].into(), t.format.id, t.dims.clone())).collect();
        let kind = kinds.iter().position(|k| *k == signature).unwrap_or(kinds.len());
        if kind == kinds.len() {
            kinds.push(signature);
        }
        sources.extend(own.iter().cloned());
        if index >= c.layers {
            sources.extend(part(&prefix, &|i| Drafting::declare(i, c).map(drop))?);
        }
        layers.push((kind, own));
    }
    Ok(Declared { sources, layers })
}

/// Every tensor that a source names, as its planes on the device.
fn load(
    device: &dyn Device,
    file: &Gguf,
    layout: Layout,
    sources: &[Source],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<HashMap<String, Vec<Slice>>, weights::Error> {
    let mut seen = HashSet::new();
    let wanted = sources.iter().filter(|s| seen.insert(&s.tensor)).filter_map(|s| file.tensor(&s.tensor));
    let wanted: Vec<&TensorInfo> = wanted.collect();
    let total = wanted.iter().map(|t| t.bytes() as u64).sum();
    let (mut done, mut loader) = (0, Loader::new(device, layout));
    let mut weights = HashMap::new();
    for (i, t) in wanted.iter().enumerate() {
        if let Some(next) = wanted.get(i + 1) {
            file.fetch(next, 0..next.bytes());
        }
        let planes = loader.load(file, t, &mut |bytes| {
            done += bytes as u64;
            progress(done, total);
        })?;
        weights.insert(t.name.clone(), planes);
    }
    Ok(weights)
}

fn frequency_factors(file: &Gguf, t: &TensorInfo, c: &Config) -> Result<Vec<f32>, weights::Error> {
    let expected = vec![c.rotary.dims / 2];
    if t.dims != expected {
        let (file, tensor, found) = (file.name().into(), t.name.clone(), t.dims.clone());
        return Err(weights::Error::Shape { file, tensor, found, expected });
    }
    if t.format.name != "F32" {
        let (file, tensor, found) = (file.name().into(), t.name.clone(), t.format.name);
        return Err(weights::Error::Vector { file, tensor, found });
    }
    let bytes = file.bytes(t, 0..t.bytes())?;
    Ok(floats(&bytes))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}
