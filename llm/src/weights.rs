//! A file's tensors: declared to a graph, and loaded onto a device.
//!
//! In: a [`Gguf`]. Out: inputs of a graph whose shapes are known to fit, and for each of them where it lies on the device.
//! Declaring needs the file's table only, so that a wrong file is refused before anything is loaded. A tensor is laid out in
//! pieces, read where the file is mapped or from one staging buffer, so that nothing is held twice.

use crate::gguf::{self, Gguf, TensorInfo};
use compiler::dtype::DType;
use compiler::graph::Graph;
use compiler::ops::{self, Unit};
use compiler::quant::{Format, Layout, Planes};
use compiler::tensor::Tensor;
use half::{bf16, f16};
use runtime::buffer::Slice;
use runtime::check::slot;
use runtime::device::{self, Device};
use runtime::plan::Plan;
use runtime::step::{Library, Module, by_heuristic};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

/// In what the products of block-quantised weights are computed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Activations {
    /// Blocks of 32 bytes and a scale: integer products.
    Int8,
    F32,
}

#[derive(thiserror::Error, Debug)]
pub enum Error {
    #[error(transparent)]
    File(#[from] gguf::Error),
    #[error(transparent)]
    Device(#[from] device::Error),
    #[error("{file}: the tensor `{tensor}` is missing, expected with shape {expected:?}")]
    Missing { file: String, tensor: String, expected: Vec<i64> },
    #[error("{file}: the tensor `{tensor}` has shape {found:?}, expected {expected:?}")]
    Shape { file: String, tensor: String, found: Vec<i64>, expected: Vec<i64> },
    #[error("{file}: the tensor `{tensor}` is {found}, expected F32, F16 or BF16")]
    Vector { file: String, tensor: String, found: &'static str },
}

/// Where an input of a graph comes from.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Source {
    pub slot: u32,
    pub tensor: String,
    pub plane: usize,
}

/// Declares tensors of a file to a graph.
pub struct Inputs<'g, 'f> {
    pub g: &'g Graph,
    file: &'f Gguf,
    layout: Layout,
    numbers: Numbers,
    prefix: String,
    sources: RefCell<Vec<Source>>,
}

/// What products are computed in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Numbers {
    pub activations: Activations,
    /// What multiplies many tokens in bf16, if anything: more exact than int8, and faster there.
    pub unit: Option<Unit>,
    /// Many processors, which attention of tokens with positions of their own keeps busy only in pieces.
    pub spread: bool,
    /// Is each of several rows a sequence's next token?
    pub several: bool,
}

impl Numbers {
    /// Those of a batch: on a CPU those of single tokens, however many there are.
    pub fn of_batch(self, rows: i64) -> Numbers {
        Numbers { unit: self.unit.filter(|u| *u == Unit::Warp), several: rows > 1, ..self }
    }
    /// The unit for the products of so many tokens in bf16, if they are.
    pub fn halves(self, tokens: i64) -> Option<Unit> {
        self.unit.filter(|_| self.activations == Activations::Int8 && tokens >= MANY)
    }
    /// What a cache holds: rounded where activations are.
    pub fn cache(self) -> DType {
        if self.activations == Activations::Int8 { DType::F16 } else { DType::F32 }
    }
}

/// Tokens from which on weights are worth unpacking, and experts worth sorting by.
const MANY: i64 = 16;

/// Tokens of an expert that are not worth its weights in bf16.
const FEW: i64 = 8;

impl<'g, 'f> Inputs<'g, 'f> {
    /// Names are taken behind `prefix`.
    pub fn new(g: &'g Graph, file: &'f Gguf, prefix: String, layout: Layout, numbers: Numbers) -> Self {
        Inputs { g, file, layout, numbers, prefix, sources: RefCell::default() }
    }

    fn find(&self, name: &str, dims: &[i64]) -> Result<Option<(&'f TensorInfo, String)>, Error> {
        let full = format!("{}{name}", self.prefix);
        let Some(t) = self.file.tensor(&full) else { return Ok(None) };
        if t.dims != dims {
            return Err(Error::Shape {
                file: self.file.name().into(),
                tensor: full,
                found: t.dims.clone(),
                expected: dims.to_vec(),
            });
        }
        Ok(Some((t, full)))
    }
    fn required<T>(&self, found: Option<T>, name: &str, dims: &[i64]) -> Result<T, Error> {
        found.ok_or_else(|| Error::Missing {
            file: self.file.name().into(),
            tensor: format!("{}{name}", self.prefix),
            expected: dims.to_vec(),
        })
    }
    /// Rows of a matrix whose size no key gives, if it is there.
    pub fn rows(&self, name: &str) -> Option<i64> {
        let t = self.file.tensor(&format!("{}{name}", self.prefix))?;
        t.dims.iter().rev().nth(1).copied()
    }

    /// A matrix `[leading.., rows, cols]`.
    pub fn opt_matrix(&self, name: &str, dims: &[i64]) -> Result<Option<Matrix<'g>>, Error> {
        let Some((t, full)) = self.find(name, dims)? else { return Ok(None) };
        let [leading @ .., rows, cols] = dims else { panic!("{full} is no matrix: {dims:?}") };
        let (buffers, planes) = t.format.inputs(self.g, name, leading, *rows, *cols, self.layout);
        for (plane, b) in buffers.into_iter().enumerate() {
            self.add(Source { slot: slot(b), tensor: full.clone(), plane });
        }
        Ok(Some(Matrix { planes, numbers: self.numbers, layout: self.layout }))
    }
    pub fn matrix(&self, name: &str, dims: &[i64]) -> Result<Matrix<'g>, Error> {
        self.required(self.opt_matrix(name, dims)?, name, dims)
    }

    /// f32 `[n]`.
    pub fn opt_vector(&self, name: &str, n: i64) -> Result<Option<Tensor<'g>>, Error> {
        let Some((t, full)) = self.find(name, &[n])? else { return Ok(None) };
        if t.format.is_quantised() {
            let (file, found) = (self.file.name().into(), t.format.name);
            return Err(Error::Vector { file, tensor: full, found });
        }
        let x = self.g.input(name, DType::F32, [n]);
        self.add(Source { slot: slot(x), tensor: full, plane: 0 });
        Ok(Some(x))
    }
    pub fn vector(&self, name: &str, n: i64) -> Result<Tensor<'g>, Error> {
        self.required(self.opt_vector(name, n)?, name, &[n])
    }

    fn add(&self, source: Source) {
        self.g.set_constant(source.slot);
        self.sources.borrow_mut().push(source);
    }

    /// Everything declared so far.
    pub fn sources(self) -> Vec<Source> {
        self.sources.into_inner()
    }
}

/// A weight matrix `[.., R, K]`, or a stack of them.
#[derive(Clone)]
pub struct Matrix<'g> {
    planes: Planes<'g>,
    numbers: Numbers,
    layout: Layout,
}

impl<'g> Matrix<'g> {
    /// `x · wᵀ`: x `[.., M, K]` to `[.., M, R]`; leading axes broadcast.
    pub fn of(&self, x: Tensor<'g>) -> Tensor<'g> {
        if !self.planes.format.is_quantised() {
            return self.of_f32(x);
        }
        if let Some(unit) = self.numbers.halves(x.size(-2)) {
            return self.of_half(x, unit);
        }
        match self.numbers.activations {
            Activations::Int8 if self.layout == Layout::Interleaved16 && x.size(-2) % ops::TILE == 0 => {
                self.planes.linear_q8(&ops::quantize_i8(x).in_tiles())
            }
            Activations::Int8 => {
                self.planes.linear_q8(&ops::kept_i8(x, self.numbers.several && self.layout == Layout::Rows))
            }
            Activations::F32 => self.of_f32(x),
        }
    }
    /// As [`Matrix::of`] of a matrix with so many rows that the work on each counts, not how soon it begins: formats with sums
    /// of a few numbers each are unpacked for a GPU's matrix unit from one tile of tokens on.
    pub fn of_tall(&self, x: Tensor<'g>) -> Tensor<'g> {
        let fine = self.planes.format.block > 32 && self.numbers.activations == Activations::Int8;
        match self.numbers.unit {
            Some(Unit::Warp) if fine && x.size(-2) % ops::WARP_TOKENS == 0 => self.of_half(x, Unit::Warp),
            _ => self.of(x),
        }
    }
    /// As [`Matrix::of`] of rows that are normed for this product: where every block makes their bytes for itself, none of
    /// them waits for the norm's sum to do so.
    pub fn of_normed(&self, x: Tensor<'g>) -> Tensor<'g> {
        if self.layout == Layout::Interleaved16 || self.numbers.halves(x.size(-2)).is_some() {
            return self.of(x);
        }
        let (rest, factor) = ops::common_factor(x);
        let y = self.of(rest);
        factor.map_or(y, |f| y * f)
    }
    /// Are these a few tokens on a GPU, of which a launch costs more than most of its work?
    pub fn launches_count(&self, tokens: i64) -> bool {
        let few = tokens > 1 && self.numbers.halves(tokens).is_none();
        few && self.layout == Layout::Rows && self.numbers.activations == Activations::Int8
    }
    /// Is what it makes of so many tokens best computed in blocks of its rows, so that the same kernel makes the next
    /// product's bytes of them?
    pub fn in_blocks(&self, tokens: i64) -> bool {
        self.planes.format.is_quantised() && self.launches_count(tokens)
    }
    /// Its rows in blocks of 32, as a stack: `[.., R/32, 32, K]`.
    pub fn blocks(&self) -> Matrix<'g> {
        Matrix { planes: self.planes.blocks(32), ..self.clone() }
    }
    /// As [`Matrix::of`] of what [`Matrix::blocks`] made, `[.., M, 32]`, as rows `[M, K]`.
    pub fn of_blocks(&self, x: Tensor<'g>) -> Tensor<'g> {
        self.planes.linear_q8(&ops::kept_blocks(x, self.numbers.several))
    }
    /// As [`Matrix::of`], by a unit that multiplies bf16.
    fn of_half(&self, x: Tensor<'g>, unit: Unit) -> Tensor<'g> {
        self.planes.linear_half(ops::halved(x, unit), unit)
    }
    /// As [`Matrix::of_f32`] of rows that are normed: beside the norm, where that saves a launch.
    pub fn of_normed_f32(&self, x: Tensor<'g>) -> Tensor<'g> {
        if !self.launches_count(x.size(-2)) {
            return self.of_f32(x);
        }
        let (rest, factor) = ops::common_factor(x);
        let y = self.of_f32(rest).contiguous();
        factor.map_or(y, |f| y * f)
    }
    /// As [`Matrix::of`], the activations always in f32.
    pub fn of_f32(&self, x: Tensor<'g>) -> Tensor<'g> {
        self.planes.linear(x)
    }
    /// How many tokens of an expert go together where there are so many that they share what they read, `each` of them an
    /// expert's. Where no unit takes whole tiles, those that are empty for the most part are worse than weights unpacked again;
    /// and where one does, formats of large blocks take longer on their way to bf16 than a few tokens' products in bytes.
    pub fn together(&self, tokens: i64, each: i64) -> Option<i64> {
        let shares = tokens >= MANY && self.layout == Layout::Interleaved16;
        let unpacks = self.planes.format.is_quantised() && self.numbers.activations == Activations::Int8;
        let few = || [4, 8].into_iter().find(|tile| unpacks && each <= 4 * tile);
        let tile = || few().unwrap_or(ops::TILE);
        let bytes = |unit: &Unit| *unit == Unit::Tile && self.planes.format.block > 32 && each <= FEW;
        let unit = self.numbers.halves(tokens).filter(|unit| !bytes(unit));
        unit.map(|unit| unit.together(each)).or_else(|| shares.then(tile))
    }
    /// The matrices of a stack that `index` chooses.
    pub fn gather(&self, index: Tensor<'g>) -> Matrix<'g> {
        Matrix { planes: self.planes.gather(index), ..self.clone() }
    }
    /// The rows that `index` chooses, as numbers.
    pub fn rows(&self, index: Tensor<'g>) -> Tensor<'g> {
        self.planes.gather(index).dequant()
    }
    /// The numbers themselves, f32 `[.., R, K]`.
    pub fn values(&self) -> Tensor<'g> {
        self.planes.dequant()
    }
}

/// Bytes of a tensor that are staged at a time.
const PIECE: usize = 8 << 20;

/// Bytes that are laid out at a time where they need no staging. Each of a CPU's workers takes a part of its own: two that touch
/// a new huge page at the same time both fill it with zeros.
const MAPPED_PIECE: usize = 64 << 20;

/// Whole tiles of 16 rows in a piece.
fn tiles(piece: usize, row_bytes: usize) -> i64 {
    (piece / (16 * row_bytes)).max(1) as i64
}

/// Puts tensors of a file into a device's memory.
pub struct Loader<'d> {
    device: &'d dyn Device,
    layout: Layout,
    staging: Option<Slice>,
    /// By format, columns and rows beside whole tiles of 16: what lays out rows, with the slot of the raw bytes.
    modules: HashMap<(u32, i64, i64), (Module, u32)>,
}

impl<'d> Loader<'d> {
    pub fn new(device: &'d dyn Device, layout: Layout) -> Loader<'d> {
        Loader { device, layout, staging: None, modules: HashMap::new() }
    }

    /// Loads one tensor; a slice for each of its planes. `read` hears of every piece.
    pub fn load(
        &mut self,
        file: &Gguf,
        t: &TensorInfo,
        read: &mut dyn FnMut(usize),
    ) -> Result<Vec<Slice>, Error> {
        let planes = match t.dims[..] {
            [_] => vec![self.vector(file, t)?],
            _ => return self.matrices(file, t, read),
        };
        read(t.bytes());
        Ok(planes)
    }

    fn vector(&self, file: &Gguf, t: &TensorInfo) -> Result<Slice, Error> {
        let raw = file.bytes(t, 0..t.bytes())?;
        let wide = |one: fn([u8; 2]) -> f32| -> Vec<u8> {
            raw.chunks_exact(2).flat_map(|b| one([b[0], b[1]]).to_le_bytes()).collect()
        };
        let bytes = match t.format.name {
            "F16" => wide(|b| f16::from_le_bytes(b).to_f32()),
            "BF16" => wide(|b| bf16::from_le_bytes(b).to_f32()),
            _ => raw.to_vec(),
        };
        let slice = self.device.alloc(bytes.len())?.whole();
        self.device.write(&slice, 0, &bytes)?;
        Ok(slice)
    }

    fn matrices(
        &mut self,
        file: &Gguf,
        t: &TensorInfo,
        read: &mut dyn FnMut(usize),
    ) -> Result<Vec<Slice>, Error> {
        let (device, layout, format) = (self.device, self.layout, t.format);
        let [leading @ .., rows, cols] = &t.dims[..] else { unreachable!("a matrix has two axes") };
        let (rows, cols) = (*rows, *cols);
        let mut at = 0;
        let ends: Vec<_> = format
            .stored(leading, rows, cols, layout)
            .iter()
            .map(|p| {
                at = usize::next_multiple_of(at, 64) + p.bytes();
                (at - p.bytes(), p.bytes())
            })
            .collect();
        let buffer = device.alloc(at)?;
        let planes =
            ends.iter().map(|&(at, n)| buffer.slice(at, n)).collect::<Result<Vec<_>, device::Error>>()?;
        // Whole tiles of 16 follow each other across the matrices of a stack.
        let stack: i64 = leading.iter().product();
        let (matrices, rows) = if rows % 16 == 0 { (1, stack * rows) } else { (stack, rows) };
        let row_bytes = format.row_bytes(cols) as usize;
        let piece =
            if self.borrow(file, t, 0..t.bytes().min(PIECE)).is_some() { MAPPED_PIECE } else { PIECE };
        let most = 16 * tiles(piece, row_bytes);
        let of = |rows: i64| format.stored(&[], rows, cols, layout);
        let whole: Vec<usize> = of(rows).iter().map(|p| p.bytes()).collect();
        for m in 0..matrices {
            let mut row = 0;
            while row < rows {
                let n = match most.min(rows - row) {
                    n @ ..16 => n,
                    n => n / 16 * 16,
                };
                let start = (m * rows + row) as usize * row_bytes;
                let range = start..start + n as usize * row_bytes;
                let parts = of(row).into_iter().zip(of(n)).zip(&whole).zip(&planes);
                let to = parts.map(|(((before, part), w), plane)| {
                    buffer.slice(plane.offset() + m as usize * w + before.bytes(), part.bytes())
                });
                let to = to.collect::<Result<Vec<_>, device::Error>>()?;
                let raw = match self.borrow(file, t, range.clone()) {
                    Some(raw) => raw,
                    None => self.stage(&file.bytes(t, range.clone())?)?,
                };
                self.piece(format, n, cols, raw, &to)?;
                file.release(t, range.clone());
                read(range.len());
                row += n;
            }
        }
        Ok(planes)
    }

    /// The bytes where the file is mapped, if the device's programs can read them there.
    fn borrow(&self, file: &Gguf, t: &TensorInfo, range: Range<usize>) -> Option<Slice> {
        let (map, range) = file.mapped(t, range)?;
        self.device.borrow(map, range).map(|b| b.whole())
    }

    fn stage(&mut self, raw: &[u8]) -> Result<Slice, Error> {
        let staging = match &self.staging {
            Some(s) if s.len() >= raw.len() => s.clone(),
            _ => self.device.alloc(raw.len().max(PIECE))?.whole(),
        };
        self.staging = Some(staging.clone());
        self.device.write(&staging, 0, raw)?;
        Ok(staging.buffer().slice(0, raw.len())?)
    }

    /// Lays out `rows` rows of raw blocks as planes.
    fn piece(
        &mut self,
        format: &'static Format,
        rows: i64,
        cols: i64,
        raw: Slice,
        planes: &[Slice],
    ) -> Result<(), Error> {
        let device = self.device;
        let key = (format.id, cols, rows % 16);
        if !self.modules.contains_key(&key) {
            let g = Graph::new();
            let most = tiles(MAPPED_PIECE, format.row_bytes(cols) as usize);
            let (tiles, rows) = match rows % 16 {
                0 => (g.symbol("tiles", (1, most)), 16),
                n => (g.int(1), n),
            };
            let x = g.input(
                "raw",
                DType::U8,
                [tiles, g.int(rows), g.int(cols / format.block), g.int(format.bytes)],
            );
            let stored = format.load(x, self.layout);
            let module =
                Module::new(device, &g, &stored, &mut Library::default(), &mut by_heuristic(device))?;
            self.modules.insert(key, (module, slot(x)));
        }
        let (module, raw_slot) = &self.modules[&key];
        let mut memory = HashMap::from([(*raw_slot, raw)]);
        memory.extend(module.outputs().iter().zip(planes).map(|((s, _), p)| (*s, p.clone())));
        let mut plan = Plan::new(["tiles"]);
        let scratch = device.alloc(module.scratch().max(1))?;
        module.push(&mut plan, &memory, &scratch)?;
        device.run(&mut device.prepare(plan)?, &[rows / 16])?;
        Ok(())
    }
}
