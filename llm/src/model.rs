//! A model on a device: its weights, its cache, and the plans that run tokens through it.
//!
//! In: tokens at the next positions. Out: logits. A plan is made for each of a few numbers of tokens, when it is first
//! needed; layers whose tensors have the same types and shapes share its kernels. A chunk shorter than its plan is
//! filled up with tokens whose rows of the cache are written again before anything looks at them.

use crate::attention::{Attention, KV_BLOCK, Place};
use crate::block::Block;
use crate::config::{self, Config};
use crate::gguf::Gguf;
use crate::weights::{self, Activations, Inputs, Loader, Matrix, Source, slot};
use compiler::dtype::DType;
use compiler::graph::Graph;
use compiler::ops::rms_norm;
use compiler::quant::Layout;
use compiler::tensor::Tensor;
use runtime::buffer::{Buffer, Slice};
use runtime::check::layout;
use runtime::device::{self, Device, Prepared};
use runtime::plan::Plan;
use runtime::step::{Compiled, Library, Module, by_heuristic};
use std::collections::HashMap;
use std::sync::Arc;

/// Tokens of a plan.
const CHUNKS: [usize; 4] = [1, 8, 64, 256];

/// Bytes that the scores of a plan may take.
const SCORES: i64 = 256 << 20;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Positions of the cache; what the model was trained for, at most [`DEFAULT_CONTEXT`], if not given.
    pub context: Option<usize>,
    /// Int8 where the device multiplies bytes, if not given.
    pub activations: Option<Activations>,
    /// Loads the layers that draft as well.
    pub drafts: bool,
}

pub const DEFAULT_CONTEXT: usize = 4096;

#[derive(thiserror::Error, Debug)]
pub enum Error {
    #[error(transparent)]
    Config(#[from] config::Error),
    #[error(transparent)]
    Weights(#[from] weights::Error),
    #[error(transparent)]
    Device(#[from] device::Error),
    #[error("the context holds {context} positions and {wanted} are needed; give a larger --ctx")]
    Context { context: usize, wanted: usize },
    #[error("token {token} is outside the vocabulary of {vocab}")]
    Token { token: u32, vocab: usize },
    #[error("{file} has no layer that drafts (its `nextn_predict_layers` is 0 or absent)")]
    NoDraft { file: String },
}

/// What the tensors of a block look like, their names behind the block's prefix.
type Signature = Vec<(String, u32, Vec<i64>)>;

struct Layer {
    index: i64,
    /// Equal layers have equal numbers.
    kind: usize,
    /// What plans read, in the order of the declarations.
    weights: Vec<Slice>,
    caches: Vec<Slice>,
}

pub struct Model {
    device: Arc<dyn Device>,
    file: Gguf,
    config: Config,
    layout: Layout,
    activations: Activations,
    context: usize,
    /// Rows of the cache: the context and room for the tokens that fill up a chunk.
    capacity: i64,
    chunks: Vec<usize>,
    layers: Vec<Layer>,
    draft: Option<Layer>,
    weights: HashMap<String, Vec<Slice>>,
    cos: Slice,
    sin: Slice,
    ids: Slice,
    /// The residual stream, before and after a layer.
    stream: [Slice; 2],
    /// After the final norm.
    hidden: Slice,
    logits: Slice,
    scratch: Buffer,
    plans: HashMap<(Part, usize), Prepared>,
    library: Library,
    len: usize,
}

/// What one plan does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Part {
    /// Token ids through all layers and the final norm.
    Trunk,
    /// The next tokens and the trunk's hidden rows through the drafting layer, to its norm.
    Draft,
    /// Hidden rows to logits.
    Head,
    DraftHead,
}

impl Model {
    /// `progress` is told how many of how many bytes are loaded.
    pub fn load(
        device: Arc<dyn Device>,
        file: Gguf,
        options: Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Model, Error> {
        let config = Config::read(&file)?;
        let layout = layout(&*device);
        let caps = device.target().caps();
        let activations =
            options.activations.unwrap_or(if caps.dot4 { Activations::Int8 } else { Activations::F32 });
        let context =
            options.context.unwrap_or_else(|| (config.context as usize).min(DEFAULT_CONTEXT)).max(1);
        let fits = |&t: &usize| t == 1 || (t as i64) * config.heads * context as i64 * 4 <= SCORES;
        let chunks: Vec<usize> = CHUNKS.into_iter().filter(fits).collect();
        let most = chunks[chunks.len() - 1];
        let capacity = ((context + most) as i64 + KV_BLOCK - 1) / KV_BLOCK * KV_BLOCK;

        let mut names: Vec<Source> = vec![];
        let declare = |prefix: &str, g: &Graph, part: &dyn Fn(&Inputs) -> Result<(), weights::Error>| {
            let inputs = Inputs::new(g, &file, prefix.into(), layout, activations);
            part(&inputs).map(|()| inputs.sources())
        };
        let g = Graph::new();
        let mut kinds: Vec<Signature> = vec![];
        let mut declared = vec![];
        let drafts = if options.drafts { config.drafts } else { 0 };
        for index in 0..config.layers + drafts {
            let prefix = format!("blk.{index}.");
            let sources = declare(&prefix, &Graph::new(), &|i| Block::declare(i, &config, index).map(drop))?;
            let signature: Signature = sources
                .iter()
                .filter_map(|s| file.tensor(&s.tensor))
                .map(|t| (t.name[prefix.len()..].into(), t.format.id, t.dims.clone()))
                .collect();
            let kind = kinds.iter().position(|k| *k == signature).unwrap_or_else(|| {
                kinds.push(signature);
                kinds.len() - 1
            });
            names.extend(sources.iter().cloned());
            if index >= config.layers {
                names.extend(declare(&prefix, &g, &|i| Drafting::declare(i, &config).map(drop))?);
            }
            declared.push((index, kind, sources));
        }
        names.extend(declare("", &g, &|i| {
            Embedding::declare(i, &config)?;
            Head::declare(i, &config).map(drop)
        })?);

        let total: u64 = {
            let mut seen = std::collections::HashSet::new();
            let tensors =
                names.iter().filter(|s| seen.insert(s.tensor.clone())).filter_map(|s| file.tensor(&s.tensor));
            tensors.map(|t| t.bytes() as u64).sum()
        };
        let mut weights: HashMap<String, Vec<Slice>> = HashMap::new();
        let (mut done, mut loader) = (0, Loader::new(&*device, layout));
        for s in &names {
            let Some(t) = file.tensor(&s.tensor).filter(|_| !weights.contains_key(&s.tensor)) else {
                continue;
            };
            let planes = loader.load(&file, t, &mut |bytes| {
                done += bytes as u64;
                progress(done, total);
            })?;
            weights.insert(s.tensor.clone(), planes);
        }
        drop(loader);

        let factors =
            file.tensor("rope_freqs.weight").map(|t| frequency_factors(&file, t, &config)).transpose()?;
        let (cos, sin) = config.rotary.tables(capacity as usize, factors.as_deref());
        let upload = |values: &[f32]| -> Result<Slice, device::Error> {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let slice = device.alloc(bytes.len())?.whole();
            device.write(&slice, 0, &bytes)?;
            Ok(slice)
        };
        let floats = |n: i64| Ok::<_, device::Error>(device.alloc(n as usize * 4)?.whole());
        let mut layers = vec![];
        for (index, kind, sources) in declared {
            let caches = Attention::cache_rows(&config)
                .iter()
                .map(|row| floats(capacity * row.iter().product::<i64>()))
                .collect::<Result<_, _>>()?;
            let weights = sources.iter().map(|s| weights[&s.tensor][s.plane].clone()).collect();
            layers.push(Layer { index, kind, weights, caches });
        }
        let draft = (drafts > 0).then(|| layers.split_off(config.layers as usize).swap_remove(0));
        let rows = most as i64;
        Ok(Model {
            layout,
            activations,
            context,
            capacity,
            chunks,
            layers,
            draft,
            weights,
            cos: upload(&cos)?,
            sin: upload(&sin)?,
            ids: floats(rows)?,
            stream: [floats(rows * config.dim)?, floats(rows * config.dim)?],
            hidden: floats(rows * config.dim)?,
            logits: floats(rows * config.vocab)?,
            scratch: device.alloc(1)?,
            plans: HashMap::new(),
            library: Library::default(),
            len: 0,
            device,
            file,
            config,
        })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }
    pub fn file(&self) -> &Gguf {
        &self.file
    }
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }
    pub fn activations(&self) -> Activations {
        self.activations
    }
    pub fn vocab(&self) -> usize {
        self.config.vocab as usize
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

    /// Runs tokens at the next positions; the logits of the last one.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        let mut last = vec![];
        self.run(tokens, &mut |model, n, end| {
            if end {
                last = model.head(Part::Head, n - 1, 1)?;
            }
            Ok(())
        })?;
        Ok(last)
    }

    /// Runs tokens at the next positions and gives each one's logits to `row`, in order.
    pub fn feed_all(&mut self, tokens: &[u32], row: &mut dyn FnMut(&[f32])) -> Result<(), Error> {
        self.run(tokens, &mut |model, n, _| {
            model.head(Part::Head, 0, n)?.chunks(model.vocab()).for_each(&mut *row);
            Ok(())
        })
    }

    /// As [`Model::feed_all`], with the drafting layer's logits: row i sees the hidden state of token i and token i + 1.
    pub fn feed_drafts(&mut self, tokens: &[u32], row: &mut dyn FnMut(&[f32])) -> Result<(), Error> {
        if self.draft.is_none() {
            return Err(Error::NoDraft { file: self.file.name().into() });
        }
        let start = self.len;
        self.run(&tokens[..tokens.len().saturating_sub(1)], &mut |model, n, _| {
            let at = model.len - start;
            model.step(Part::Draft, &tokens[at + 1..][..n], model.len)?;
            model.head(Part::DraftHead, 0, n)?.chunks(model.vocab()).for_each(&mut *row);
            Ok(())
        })
    }

    /// Runs tokens through the trunk chunk by chunk. `then` is told how many rows of `hidden` there are, before the
    /// positions count as filled, and whether they are the last.
    fn run(
        &mut self,
        tokens: &[u32],
        then: &mut dyn FnMut(&mut Model, usize, bool) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let wanted = self.len + tokens.len();
        if wanted > self.context {
            return Err(Error::Context { context: self.context, wanted });
        }
        if let Some(&token) = tokens.iter().find(|&&t| t as usize >= self.vocab()) {
            return Err(Error::Token { token, vocab: self.vocab() });
        }
        let mut rest = tokens;
        while !rest.is_empty() {
            let n = rest.len().min(self.chunk());
            let (now, after) = rest.split_at(n);
            self.step(Part::Trunk, now, self.len)?;
            then(self, n, after.is_empty())?;
            self.len += n;
            rest = after;
        }
        Ok(())
    }

    /// Runs one plan over token ids that stand at `pos`.
    fn step(&mut self, part: Part, tokens: &[u32], pos: usize) -> Result<(), Error> {
        let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        self.device.write(&self.ids, 0, &bytes)?;
        let rows = self.rows_for(tokens.len());
        let blocks = (pos + rows).div_ceil(KV_BLOCK as usize);
        self.launch(part, rows, &[("pos", pos as i64), ("blocks", blocks as i64)])
    }

    /// Logits of rows `at..at + n` of the hidden state.
    fn head(&mut self, part: Part, at: usize, n: usize) -> Result<Vec<f32>, Error> {
        let rows = self.rows_for(n);
        // A full chunk has no other place than the first row.
        let row = at.min(self.chunk() - rows);
        self.launch(part, rows, &[("row", row as i64)])?;
        let mut bytes = vec![0; n * self.vocab() * 4];
        self.device.read(&self.logits, (at - row) * self.vocab() * 4, &mut bytes)?;
        Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    /// The smallest plan for `n` tokens.
    fn rows_for(&self, n: usize) -> usize {
        self.chunks.iter().copied().find(|&c| c >= n).unwrap_or(self.chunk())
    }

    fn launch(&mut self, part: Part, rows: usize, symbols: &[(&str, i64)]) -> Result<(), Error> {
        if !self.plans.contains_key(&(part, rows)) {
            let plan = self.plan(part, rows as i64)?;
            self.plans.insert((part, rows), plan);
        }
        let prepared = self.plans.get_mut(&(part, rows)).expect("just made");
        let value = |name: &String| symbols.iter().find(|s| s.0 == name).map_or(0, |s| s.1);
        let values: Vec<i64> = prepared.plan().symbols().iter().map(value).collect();
        Ok(self.device.run(prepared, &values)?)
    }

    /// The kernels from `tokens` tokens to logits, each with how often it is launched.
    pub fn kernels(&mut self, tokens: usize) -> Result<Vec<(Compiled, usize)>, Error> {
        let rows = self.rows_for(tokens) as i64;
        let mut out: Vec<(Compiled, usize)> = vec![];
        for part in [Part::Trunk, Part::Head] {
            let modules = self.modules(part, rows)?;
            for kernel in modules.iter().flat_map(|(m, _)| m.kernels()) {
                match out.iter_mut().find(|(k, _)| Arc::ptr_eq(&k.text, &kernel.text)) {
                    Some((_, times)) => *times += 1,
                    None => out.push((kernel.clone(), 1)),
                }
            }
        }
        Ok(out)
    }

    fn modules(&mut self, part: Part, rows: i64) -> Result<Modules, Error> {
        let mut library = std::mem::take(&mut self.library);
        let mut p = Planner { model: self, library: &mut library, modules: vec![] };
        match part {
            Part::Trunk => p.trunk(rows)?,
            Part::Draft => p.draft(rows)?,
            Part::Head => p.head(rows, false)?,
            Part::DraftHead => p.head(rows, true)?,
        }
        let modules = p.modules;
        self.library = library;
        Ok(modules)
    }

    fn plan(&mut self, part: Part, rows: i64) -> Result<Prepared, Error> {
        let modules = self.modules(part, rows)?;
        let mut plan = Plan::new(["pos", "blocks", "row"]);
        let scratch = modules.iter().map(|(m, _)| m.scratch()).max().unwrap_or(0);
        if scratch > self.scratch.len() {
            self.scratch = self.device.alloc(scratch)?;
        }
        for (module, memory) in &modules {
            module.push(&mut plan, memory, &self.scratch)?;
        }
        Ok(self.device.prepare(plan)?)
    }
}

/// What a plan is made of, each module with the memory of its buffers.
type Modules = Vec<(Arc<Module>, HashMap<u32, Slice>)>;

struct Planner<'m> {
    model: &'m Model,
    library: &'m mut Library,
    modules: Modules,
}

impl<'m> Planner<'m> {
    fn inputs<'g>(&self, g: &'g Graph, prefix: &str) -> Inputs<'g, 'm> {
        Inputs::new(g, &self.model.file, prefix.into(), self.model.layout, self.model.activations)
    }
    fn stream<'g>(&self, g: &'g Graph, name: &str, rows: i64) -> Tensor<'g> {
        g.input(name, DType::F32, [rows, self.model.config.dim])
    }
    fn weights(&self, sources: &[Source]) -> HashMap<u32, Slice> {
        sources.iter().map(|s| (s.slot, self.model.weights[&s.tensor][s.plane].clone())).collect()
    }
    /// Compiles outputs; the first is to lie at `to`.
    fn module<'g>(
        &mut self,
        g: &'g Graph,
        outputs: &[Tensor<'g>],
        mut memory: HashMap<u32, Slice>,
        to: &Slice,
    ) -> Result<(), Error> {
        let device = &*self.model.device;
        let module = Module::new(device, g, outputs, self.library, by_heuristic(device))?;
        memory.insert(module.outputs()[0].0, to.clone());
        self.modules.push((Arc::new(module), memory));
        Ok(())
    }

    fn trunk(&mut self, rows: i64) -> Result<(), Error> {
        let model = self.model;
        let g = Graph::new();
        let i = self.inputs(&g, "");
        let ids = g.input("ids", DType::I32, [rows]);
        let x = Embedding::declare(&i, &model.config)?.of(ids);
        let mut memory = self.weights(&i.sources());
        memory.insert(slot(ids), model.ids.clone());
        self.module(&g, &[x], memory, &model.stream[0])?;
        let mut at = 0;
        let mut made: HashMap<usize, (Arc<Module>, BlockSlots)> = HashMap::new();
        for layer in &model.layers {
            at = self.block(layer, rows, at, &mut made)?;
        }
        let g = Graph::new();
        let i = self.inputs(&g, "");
        let x = self.stream(&g, "x", rows);
        let y = rms_norm(x, Head::declare(&i, &model.config)?.norm, model.config.eps);
        let mut memory = self.weights(&i.sources());
        memory.insert(slot(x), model.stream[at].clone());
        self.module(&g, &[y], memory, &model.hidden)
    }

    /// One layer from one of the stream's buffers to the other, which is returned.
    fn block(
        &mut self,
        layer: &Layer,
        rows: i64,
        at: usize,
        made: &mut HashMap<usize, (Arc<Module>, BlockSlots)>,
    ) -> Result<usize, Error> {
        let model = self.model;
        if !made.contains_key(&layer.kind) {
            let (g, c) = (Graph::new(), &model.config);
            let i = self.inputs(&g, &format!("blk.{}.", layer.index));
            let place = Place::new(&g, c, rows, model.capacity);
            let x = self.stream(&g, "x", rows);
            let caches: Vec<Tensor> = Attention::cache_rows(c)
                .iter()
                .map(|row| g.input("cache", DType::F32, [&[model.capacity], &row[..]].concat()))
                .collect();
            let (y, after) = Block::declare(&i, c, layer.index)?.of(x, &caches, c, &place);
            let outputs: Vec<Tensor> = [y].into_iter().chain(after).collect();
            let module =
                Module::new(&*model.device, &g, &outputs, self.library, by_heuristic(&*model.device))?;
            let slots = BlockSlots {
                x: slot(x),
                y: module.outputs()[0].0,
                tables: [slot(place.cos), slot(place.sin)],
                weights: i.sources().iter().map(|s| s.slot).collect(),
                caches: caches.into_iter().map(slot).collect(),
            };
            made.insert(layer.kind, (Arc::new(module), slots));
        }
        let (module, s) = &made[&layer.kind];
        let mut memory: HashMap<u32, Slice> = HashMap::new();
        memory.extend(s.weights.iter().copied().zip(layer.weights.iter().cloned()));
        memory.extend(s.caches.iter().copied().zip(layer.caches.iter().cloned()));
        memory.extend([(s.x, model.stream[at].clone()), (s.y, model.stream[1 - at].clone())]);
        memory.extend([(s.tables[0], model.cos.clone()), (s.tables[1], model.sin.clone())]);
        self.modules.push((module.clone(), memory));
        Ok(1 - at)
    }

    fn draft(&mut self, rows: i64) -> Result<(), Error> {
        let model = self.model;
        let layer = model.draft.as_ref().expect("asked for only where it is loaded");
        let prefix = format!("blk.{}.", layer.index);
        let g = Graph::new();
        let (i, own) = (self.inputs(&g, ""), self.inputs(&g, &prefix));
        let (ids, h) = (g.input("ids", DType::I32, [rows]), self.stream(&g, "hidden", rows));
        let drafting = Drafting::declare(&own, &model.config)?;
        let e = match &drafting.embedding {
            Some(table) => table.rows(ids),
            None => Embedding::declare(&i, &model.config)?.of(ids),
        };
        let x = drafting.of(e, h, model.config.eps);
        let mut memory = self.weights(&i.sources());
        memory.extend(self.weights(&own.sources()));
        memory.extend([(slot(ids), model.ids.clone()), (slot(h), model.hidden.clone())]);
        self.module(&g, &[x], memory, &model.stream[0])?;
        let at = self.block(layer, rows, 0, &mut HashMap::new())?;
        let g = Graph::new();
        let own = self.inputs(&g, &prefix);
        let x = self.stream(&g, "x", rows);
        let y = rms_norm(x, Drafting::declare(&own, &model.config)?.norm, model.config.eps);
        let mut memory = self.weights(&own.sources());
        memory.insert(slot(x), model.stream[at].clone());
        self.module(&g, &[y], memory, &model.hidden)
    }

    fn head(&mut self, rows: i64, draft: bool) -> Result<(), Error> {
        let model = self.model;
        let g = Graph::new();
        let i = self.inputs(&g, "");
        let h = self.stream(&g, "hidden", model.chunk() as i64);
        let row = g.symbol("row", (0, model.chunk() as i64 - rows));
        let x = h.slice_dim(0, row, g.int(rows));
        let own = self.inputs(&g, &format!("blk.{}.", model.config.layers));
        let drafting = if draft { Drafting::declare(&own, &model.config)?.head } else { None };
        let matrix = drafting.map_or_else(|| Ok(Head::declare(&i, &model.config)?.matrix), Ok::<_, Error>)?;
        let y = matrix.of(x);
        let mut memory = self.weights(&i.sources());
        memory.extend(self.weights(&own.sources()));
        memory.insert(slot(h), model.hidden.clone());
        self.module(&g, &[y], memory, &model.logits)
    }
}

/// Where a block's module wants its buffers.
struct BlockSlots {
    x: u32,
    y: u32,
    tables: [u32; 2],
    weights: Vec<u32>,
    caches: Vec<u32>,
}

struct Embedding<'g>(Matrix<'g>);

impl<'g> Embedding<'g> {
    fn declare(i: &Inputs<'g, '_>, c: &Config) -> Result<Self, weights::Error> {
        Ok(Embedding(i.matrix("token_embd.weight", &[c.vocab, c.dim])?))
    }
    fn of(&self, ids: Tensor<'g>) -> Tensor<'g> {
        self.0.rows(ids)
    }
}

struct Head<'g> {
    norm: Tensor<'g>,
    /// The embedding's where the two are tied.
    matrix: Matrix<'g>,
}

impl<'g> Head<'g> {
    fn declare(i: &Inputs<'g, '_>, c: &Config) -> Result<Self, weights::Error> {
        let dims = [c.vocab, c.dim];
        let own = i.opt_matrix("output.weight", &dims)?;
        Ok(Head {
            norm: i.vector("output_norm.weight", c.dim)?,
            matrix: own.map_or_else(|| i.matrix("token_embd.weight", &dims), Ok)?,
        })
    }
}

/// What stands around the drafting layer: the next token's embedding and the trunk's hidden state become one row.
struct Drafting<'g> {
    /// The trunk's where it has none of its own.
    embedding: Option<Matrix<'g>>,
    embedding_norm: Tensor<'g>,
    hidden_norm: Tensor<'g>,
    join: Matrix<'g>,
    norm: Tensor<'g>,
    /// The trunk's where it has none of its own.
    head: Option<Matrix<'g>>,
}

impl<'g> Drafting<'g> {
    fn declare(i: &Inputs<'g, '_>, c: &Config) -> Result<Self, weights::Error> {
        let dims = [c.vocab, c.dim];
        Ok(Drafting {
            embedding: i.opt_matrix("nextn.embed_tokens.weight", &dims)?,
            embedding_norm: i.vector("nextn.enorm.weight", c.dim)?,
            hidden_norm: i.vector("nextn.hnorm.weight", c.dim)?,
            join: i.matrix("nextn.eh_proj.weight", &[c.dim, 2 * c.dim])?,
            norm: i.vector("nextn.shared_head_norm.weight", c.dim)?,
            head: i.opt_matrix("nextn.shared_head_head.weight", &dims)?,
        })
    }
    fn of(&self, embedding: Tensor<'g>, hidden: Tensor<'g>, eps: f32) -> Tensor<'g> {
        let (e, h) = (rms_norm(embedding, self.embedding_norm, eps), rms_norm(hidden, self.hidden_norm, eps));
        self.join.of(Tensor::concat(&[e, h], -1))
    }
}

fn frequency_factors(
    file: &Gguf,
    t: &crate::gguf::TensorInfo,
    c: &Config,
) -> Result<Vec<f32>, weights::Error> {
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
    Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}
