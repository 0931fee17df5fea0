//! What the plans of a model are made of: the embedding, the layers, the head, and the layer that drafts.
//!
//! In: a model whose weights are on a device, and a number of tokens. Out: compiled modules in order, each with where its
//! buffers lie. The stream goes from one of two buffers to the other, layer by layer.

use crate::attention::{Attention, Place, Reach};
use crate::block::Block;
use crate::config::Config;
use crate::model::{Error, Layer, Model};
use crate::weights::{self, Inputs, Matrix, Numbers, Source};
use compiler::dtype::DType;
use compiler::graph::Graph;
use compiler::ops::rms_norm;
use compiler::tensor::Tensor;
use runtime::buffer::Slice;
use runtime::check::slot;
use runtime::step::{Choose, Library, Module};
use std::collections::HashMap;
use std::sync::Arc;

/// What a plan is made of, each module with the memory of its buffers.
pub type Modules = Vec<(Arc<Module>, HashMap<u32, Slice>)>;

pub struct Planner<'m> {
    pub model: &'m Model,
    pub library: &'m mut Library,
    pub choose: &'m mut dyn Choose,
    pub modules: Modules,
    pub reach: Reach,
    /// Positions that a token may see.
    pub positions: i64,
    pub numbers: Numbers,
    /// Which of the batches that run beside each other it is: its rows lie behind those of the ones before.
    pub lane: usize,
}

impl<'m> Planner<'m> {
    fn inputs<'g>(&self, g: &'g Graph, prefix: &str) -> Inputs<'g, 'm> {
        Inputs::new(g, &self.model.file, prefix.into(), self.model.layout, self.numbers)
    }
    fn stream<'g>(&self, g: &'g Graph, name: &str, rows: i64) -> Tensor<'g> {
        g.input(name, DType::F32, [rows, self.model.config.dim])
    }
    /// Those of a buffer of rows that a plan of so many has.
    fn rows(&self, of: &Slice, rows: i64) -> Result<Slice, Error> {
        let at = self.lane * (rows * self.model.config.dim) as usize * 4;
        Ok(of.buffer().slice(of.offset() + at, of.len() - at)?)
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
        let module = Module::new(&*self.model.device, g, outputs, self.library, self.choose)?;
        memory.insert(module.outputs()[0].0, to.clone());
        self.modules.push((Arc::new(module), memory));
        Ok(())
    }

    pub fn trunk(&mut self, rows: i64) -> Result<(), Error> {
        let model = self.model;
        let g = Graph::new();
        let i = self.inputs(&g, "");
        let ids = g.input("ids", DType::I32, [rows]);
        let x = Embedding::declare(&i, &model.config)?.of(ids);
        let mut memory = self.weights(&i.sources());
        memory.insert(slot(ids), model.told[self.lane].ids(rows as usize)?);
        self.module(&g, &[x], memory, &self.rows(&model.stream[0], rows)?)?;
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
        memory.insert(slot(x), self.rows(&model.stream[at], rows)?);
        self.module(&g, &[y], memory, &self.rows(&model.hidden, rows)?)
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
        let (module, s) = if let Some(known) = made.get(&layer.kind) {
            known
        } else {
            let (g, c) = (Graph::new(), &model.config);
            let i = self.inputs(&g, &format!("blk.{}.", layer.index));
            let size = (model.capacity, self.positions);
            let place = Place::new(&g, c, rows, size, self.numbers, self.reach);
            let x = self.stream(&g, "x", rows);
            let caches: Vec<Tensor> = Attention::cache_rows(c)
                .iter()
                .map(|row| g.input("cache", model.numbers.cache(), [&[model.rows], &row[..]].concat()))
                .collect();
            let (y, after) = Block::declare(&i, c, layer.index)?.of(x, &caches, c, &place);
            let outputs: Vec<Tensor> = [y].into_iter().chain(after).collect();
            let module = Module::new(&*model.device, &g, &outputs, self.library, self.choose)?;
            let slots = BlockSlots {
                x: slot(x),
                y: module.outputs()[0].0,
                tables: [slot(place.cos), slot(place.sin)],
                weights: i.sources().iter().map(|s| s.slot).collect(),
                caches: caches.into_iter().map(slot).collect(),
                paging: place.paging.map(|p| [p.slots, p.positions, p.starts, p.table].map(slot)),
            };
            made.entry(layer.kind).or_insert((Arc::new(module), slots))
        };
        let mut memory: HashMap<u32, Slice> = HashMap::new();
        memory.extend(s.weights.iter().copied().zip(layer.weights.iter().cloned()));
        memory.extend(s.caches.iter().copied().zip(layer.caches.iter().cloned()));
        let [x, y] = [at, 1 - at].map(|at| self.rows(&model.stream[at], rows));
        memory.extend([(s.x, x?), (s.y, y?)]);
        memory.extend([(s.tables[0], model.cos.clone()), (s.tables[1], model.sin.clone())]);
        memory.extend(s.paging.into_iter().flatten().zip(model.told[self.lane].paging(rows as usize)?));
        self.modules.push((module.clone(), memory));
        Ok(1 - at)
    }

    pub fn draft(&mut self, rows: i64) -> Result<(), Error> {
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
        memory.extend([
            (slot(ids), model.told[self.lane].ids(rows as usize)?),
            (slot(h), model.hidden.clone()),
        ]);
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

    pub fn head(&mut self, rows: i64, draft: bool) -> Result<(), Error> {
        let model = self.model;
        let g = Graph::new();
        let i = self.inputs(&g, "");
        let h = self.stream(&g, "hidden", model.long as i64);
        let row = g.symbol("row", (0, model.long as i64 - rows));
        let x = h.slice_dim(0, row, g.int(rows));
        let own = self.inputs(&g, &format!("blk.{}.", model.config.layers));
        let drafting = if draft { Drafting::declare(&own, &model.config)?.head } else { None };
        let matrix = drafting.map_or_else(|| Ok(Head::declare(&i, &model.config)?.matrix), Ok::<_, Error>)?;
        let y = matrix.of_tall(x);
        let mut memory = self.weights(&i.sources());
        memory.extend(self.weights(&own.sources()));
        memory.insert(slot(h), model.hidden.clone());
        self.module(&g, &[y], memory, model.logits.place())?;
        if draft { Ok(()) } else { self.best(rows) }
    }

    /// What the best of rows of logits are found by.
    fn best(&mut self, rows: i64) -> Result<(), Error> {
        let model = self.model;
        let g = Graph::new();
        let x = g.input("logits", DType::F32, [rows, model.config.vocab]);
        let (outputs, to): (Vec<_>, Vec<_>) = model.logits.best(x)?.into_iter().unzip();
        if outputs.is_empty() {
            return Ok(());
        }
        let module = Module::new(&*model.device, &g, &outputs, self.library, self.choose)?;
        let mut memory: HashMap<u32, Slice> = module.outputs().iter().map(|o| o.0).zip(to).collect();
        memory.insert(slot(x), model.logits.place().clone());
        self.modules.push((Arc::new(module), memory));
        Ok(())
    }
}

/// Where a block's module wants its buffers.
struct BlockSlots {
    x: u32,
    y: u32,
    tables: [u32; 2],
    weights: Vec<u32>,
    caches: Vec<u32>,
    /// Slots, positions, starts and table.
    paging: Option<[u32; 4]>,
}

pub struct Embedding<'g>(Matrix<'g>);

impl<'g> Embedding<'g> {
    pub fn declare(i: &Inputs<'g, '_>, c: &Config) -> Result<Self, weights::Error> {
        Ok(Embedding(i.matrix("token_embd.weight", &[c.vocab, c.dim])?))
    }
    fn of(&self, ids: Tensor<'g>) -> Tensor<'g> {
        self.0.rows(ids)
    }
}

pub struct Head<'g> {
    norm: Tensor<'g>,
    /// The embedding's where the two are tied.
    matrix: Matrix<'g>,
}

impl<'g> Head<'g> {
    pub fn declare(i: &Inputs<'g, '_>, c: &Config) -> Result<Self, weights::Error> {
        let dims = [c.vocab, c.dim];
        let own = i.opt_matrix("output.weight", &dims)?;
        Ok(Head {
            norm: i.vector("output_norm.weight", c.dim)?,
            matrix: own.map_or_else(|| i.matrix("token_embd.weight", &dims), Ok)?,
        })
    }
}

/// What stands around the drafting layer: the next token's embedding and the trunk's hidden state become one row.
pub struct Drafting<'g> {
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
    pub fn declare(i: &Inputs<'g, '_>, c: &Config) -> Result<Self, weights::Error> {
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
