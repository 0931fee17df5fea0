//! The weight formats of GGUF, one row each: from the file's blocks to planes, from planes to values and products.
//!
//! In: `raw`, the bytes of a matrix `[.., R, K]` as u8 `[.., R, K/block, bytes]`. At load [`Format::load`] separates
//! quants and scales into planes and lays them out for the target; from then on [`Format::inputs`] shows what is stored
//! as the logical planes and [`Planes`] computes with those. All of it is tensor expressions; leading axes are carried
//! along.
//!
//! Every quantised format is affine in a group: `value = scale[g] · (q + offset) − min[g]`, with an unsigned `q` that is
//! stored in planes of 8, 4, 2 or 1 bits. In each 32 elements a plane of b bits keeps element `k = s·4b + i` in field
//! `s` (bits `b·s..`) of byte `i`, however the file arranged its bits.

use crate::dtype::DType;
use crate::dtype::Scalar::{self, BF16, F16, F32, I8, I32, U8, U16, U32};
use crate::graph::Graph;
use crate::ops::{self, QuantX, Unit};
use crate::tensor::{IntoTensor, Tensor};

pub struct Format {
    pub name: &'static str,
    /// The type's number in ggml and GGUF.
    pub id: u32,
    /// Elements and bytes of a block.
    pub block: i64,
    pub bytes: i64,
    /// Elements that share a scale.
    pub group: i64,
    /// What is added to q before it is scaled.
    offset: i64,
    /// What a 4-bit code stands for, where codes are not the numbers themselves.
    table: Option<[i8; 16]>,
    pub planes: &'static [Plane],
}

/// What a plane holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Part {
    /// Unquantised elements.
    Values,
    /// This many bits of each q, above those of the planes before.
    Quants(i64),
    /// The scale of a block, and the factor of each group in it.
    Scale,
    SubScale,
    /// The minimum of a block, and the factor of each group in it.
    Min,
    SubMin,
}

pub struct Plane {
    pub part: Part,
    pub dtype: Scalar,
    read: Read,
}

/// How a plane comes out of the blocks.
enum Read {
    Number { at: i64 },
    Negated { at: i64 },
    Fields { bits: i64, at: i64, chunk: i64 },
    Groups(for<'g> fn(Tensor<'g>) -> Tensor<'g>),
}

const fn values(dtype: Scalar) -> Plane {
    Plane { part: Part::Values, dtype, read: Read::Number { at: 0 } }
}
/// From byte `at` on, chunks of bytes: first the low fields of all of a chunk's bytes, then the next.
const fn q(bits: i64, at: i64, chunk: i64) -> Plane {
    Plane { part: Part::Quants(bits), dtype: U8, read: Read::Fields { bits, at, chunk } }
}
const fn d(at: i64) -> Plane {
    Plane { part: Part::Scale, dtype: F16, read: Read::Number { at } }
}
/// A power of two, 2^(byte − 127).
const fn e8m0(at: i64) -> Plane {
    Plane { part: Part::Scale, dtype: U8, read: Read::Number { at } }
}
const fn dmin(at: i64) -> Plane {
    Plane { part: Part::Min, dtype: F16, read: Read::Number { at } }
}
/// A minimum that the file means to be added.
const fn plus(at: i64) -> Plane {
    Plane { part: Part::Min, dtype: F16, read: Read::Negated { at } }
}
const fn sc(dtype: Scalar, read: for<'g> fn(Tensor<'g>) -> Tensor<'g>) -> Plane {
    Plane { part: Part::SubScale, dtype, read: Read::Groups(read) }
}
const fn m(read: for<'g> fn(Tensor<'g>) -> Tensor<'g>) -> Plane {
    Plane { part: Part::SubMin, dtype: U8, read: Read::Groups(read) }
}

const fn plain(name: &'static str, id: u32, planes: &'static [Plane]) -> Format {
    let bytes = planes[0].dtype.bytes() as i64;
    Format { name, id, block: 1, bytes, group: 1, offset: 0, table: None, planes }
}
const fn row(
    name: &'static str,
    id: u32,
    [block, bytes, group]: [i64; 3],
    offset: i64,
    table: Option<[i8; 16]>,
    planes: &'static [Plane],
) -> Format {
    Format { name, id, block, bytes, group, offset, table, planes }
}

/// `kvalues_iq4nl` of ggml.
const IQ4: Option<[i8; 16]> =
    Some([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]);
/// Twice the numbers of e2m1, as in ggml; the scale is halved.
const E2M1: Option<[i8; 16]> = Some([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]);

#[rustfmt::skip]
pub static FORMATS: [Format; 16] = [
    plain("F32",   0, &[values(F32)]),
    plain("F16",   1, &[values(F16)]),
    plain("BF16", 30, &[values(BF16)]),
    //   name     id  block bytes group offset table planes: q(bits, at, chunk) and scales, by their place in a block
    row("Q4_0",    2, [ 32,  18, 32],    -8,  None, &[q(4, 2, 16), d(0)]),
    row("Q4_1",    3, [ 32,  20, 32],     0,  None, &[q(4, 4, 16), d(0), plus(2)]),
    row("Q5_0",    6, [ 32,  22, 32],   -16,  None, &[q(4, 6, 16), q(1, 2, 1), d(0)]),
    row("Q5_1",    7, [ 32,  24, 32],     0,  None, &[q(4, 8, 16), q(1, 4, 1), d(0), plus(2)]),
    row("Q8_0",    8, [ 32,  34, 32],  -128,  None, &[q(8, 2, 32), d(0)]),
    row("Q2_K",   10, [256,  84, 16],     0,  None, &[q(2, 16, 32), d(80), sc(U8, q2_scales), dmin(82), m(q2_mins)]),
    row("Q3_K",   11, [256, 110, 16],    -4,  None, &[q(2, 32, 32), q(1, 0, 32), d(108), sc(I8, q3_scales)]),
    row("Q4_K",   12, [256, 144, 32],     0,  None, &[q(4, 16, 32), d(0), sc(U8, k_scales), dmin(2), m(k_mins)]),
    row("Q5_K",   13, [256, 176, 32],     0,  None, &[q(4, 48, 32), q(1, 16, 32), d(0), sc(U8, k_scales), dmin(2), m(k_mins)]),
    row("Q6_K",   14, [256, 210, 16],   -32,  None, &[q(4, 0, 64), q(2, 128, 32), d(208), sc(I8, q6_scales)]),
    row("IQ4_NL", 20, [ 32,  18, 32],  -128,  IQ4,  &[q(4, 2, 16), d(0)]),
    row("IQ4_XS", 23, [256, 136, 32],  -128,  IQ4,  &[q(4, 8, 16), d(0), sc(I8, iq4_scales)]),
    row("MXFP4",  39, [ 32,  17, 32],   -12,  E2M1, &[q(4, 1, 16), e8m0(0)]),
];

fn q2_scales(raw: Tensor) -> Tensor {
    raw.slice(-1, 0..16) & 15
}
fn q2_mins(raw: Tensor) -> Tensor {
    raw.slice(-1, 0..16) >> 4
}
fn q3_scales(raw: Tensor) -> Tensor {
    six_bits(fields(raw, 96..104, 8, 4), fields(raw, 104..108, 4, 2))
}
fn q6_scales(raw: Tensor) -> Tensor {
    raw.slice(-1, 192..208).bitcast(I8)
}
fn iq4_scales(raw: Tensor) -> Tensor {
    six_bits(fields(raw, 4..8, 1, 4), fields(raw, 2..4, 1, 2))
}
/// Signed scales are stored with 32 added.
fn six_bits<'g>(low: Tensor<'g>, high: Tensor<'g>) -> Tensor<'g> {
    (low | (high << 4)).bitcast(I8) - 32
}
/// Bytes 4..16 of Q4_K and Q5_K: the first four scales, the first four minima, then four bits each of the last four
/// scales and minima, whose upper two bits top the bytes of the first four.
fn k_scales(raw: Tensor) -> Tensor {
    let (first, last) = (raw.slice(-1, 4..8), raw.slice(-1, 12..16));
    Tensor::concat(&[first & 63, (last & 15) | ((first >> 6) << 4)], -1)
}
fn k_mins(raw: Tensor) -> Tensor {
    let (first, last) = (raw.slice(-1, 8..12), raw.slice(-1, 12..16));
    Tensor::concat(&[first & 63, (last >> 4) | ((first >> 6) << 4)], -1)
}

/// `[.., n]` bytes to `[.., 8/bits, n]` fields.
fn split_fields(x: Tensor, bits: i64) -> Tensor {
    (x.unsqueeze(-2) >> field_shifts(x.graph(), bits)) & ((1 << bits) - 1)
}
/// `[.., 8/bits, n]` fields to `[.., n]` bytes.
fn join_fields(x: Tensor, bits: i64) -> Tensor {
    (x << field_shifts(x.graph(), bits)).sum(-2).squeeze(-2)
}
fn field_shifts(g: &Graph, bits: i64) -> Tensor<'_> {
    (g.iota(8 / bits) * bits).cast(U8).unsqueeze(-1)
}
/// The fields of some of a block's bytes, in the order in which [`q`] numbers them.
fn fields(raw: Tensor, at: std::ops::Range<i64>, chunk: i64, bits: i64) -> Tensor {
    let n = at.end - at.start;
    split_fields(raw.slice(-1, at).reshape_last(1, &[n / chunk, chunk]), bits)
        .reshape_last(3, &[n * 8 / bits])
}

impl Plane {
    /// The logical shape of a row of `cols` elements.
    fn row_dims(&self, f: &Format, cols: i64) -> Vec<i64> {
        match self.part {
            Part::Values => vec![cols],
            Part::Quants(bits) => vec![cols / 32, 4 * bits],
            Part::Scale | Part::Min => vec![cols / f.block],
            Part::SubScale | Part::SubMin => vec![cols / f.group],
        }
    }

    fn extract<'g>(&self, f: &Format, raw: Tensor<'g>) -> Tensor<'g> {
        let cols = raw.size(-2) * f.block;
        let number = |at| raw.slice(-1, at..at + self.dtype.bytes() as i64).bitcast(self.dtype);
        let plane = match self.read {
            Read::Number { at } => number(at),
            Read::Negated { at } => (number(at).bitcast(U16) ^ 0x8000).bitcast(self.dtype),
            Read::Groups(read) => read(raw),
            Read::Fields { bits, at, chunk } => {
                let at = at..at + f.block * bits / 8;
                match bits {
                    // Two's complement with 128 added.
                    8 => raw.slice(-1, at) ^ 0x80,
                    _ if chunk == 4 * bits => raw.slice(-1, at),
                    _ => {
                        let q = fields(raw, at, chunk, bits);
                        join_fields(q.reshape_last(2, &[cols / 32, 8 / bits, 4 * bits]), bits)
                    }
                }
            }
        };
        plane.reshape_last(2, &self.row_dims(f, cols))
    }

    fn name(&self) -> &'static str {
        match self.part {
            Part::Values => "w",
            Part::Quants(8) => "q8",
            Part::Quants(4) => "q4",
            Part::Quants(2) => "q2",
            Part::Quants(_) => "q1",
            Part::Scale => "d",
            Part::SubScale => "sc",
            Part::Min => "dmin",
            Part::SubMin => "m",
        }
    }
}

/// How planes lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Layout {
    /// As they are, row after row.
    Rows,
    /// Tiles of 16 rows: quants `[.., R/16, K/32, bytes/4, 16, 4]`, all else `[.., R/16, n, 16]`; zeros fill the last.
    Interleaved16,
}

fn tiles(rows: i64) -> i64 {
    (rows + 15) / 16
}

/// A logical plane `[.., R, row..]` as it lies in memory.
fn store<'g>(plane: Tensor<'g>, part: Part, layout: Layout) -> Tensor<'g> {
    match (layout, part) {
        (Layout::Rows, _) => plane,
        (Layout::Interleaved16, Part::Quants(bits)) => {
            let (rows, blocks) = (plane.size(-3), plane.size(-2));
            let tiles = tiles(rows);
            let tiled = plane.pad(-3, 0, 16 * tiles - rows).reshape_last(3, &[tiles, 16, blocks, bits, 4]);
            tiled.move_axis(-4, -2)
        }
        (Layout::Interleaved16, _) => {
            let (rows, n) = (plane.size(-2), plane.size(-1));
            let tiles = tiles(rows);
            plane.pad(-2, 0, 16 * tiles - rows).reshape_last(2, &[tiles, 16, n]).transpose(-1, -2)
        }
    }
}

/// The logical plane of `rows` rows that [`store`] put there.
fn view<'g>(stored: Tensor<'g>, part: Part, layout: Layout, rows: i64) -> Tensor<'g> {
    match (layout, part) {
        (Layout::Rows, _) => stored,
        (Layout::Interleaved16, Part::Quants(bits)) => {
            let (tiles, blocks) = (stored.size(-5), stored.size(-4));
            let rowwise = stored.move_axis(-2, -4).reshape_last(5, &[16 * tiles, blocks, 4 * bits]);
            rowwise.slice(-3, 0..rows)
        }
        (Layout::Interleaved16, _) => {
            let (tiles, n) = (stored.size(-3), stored.size(-2));
            stored.transpose(-1, -2).reshape_last(3, &[16 * tiles, n]).slice(-2, 0..rows)
        }
    }
}

/// Memory for one plane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    pub name: &'static str,
    pub dtype: DType,
    pub dims: Vec<i64>,
}

impl Stored {
    pub fn bytes(&self) -> usize {
        self.dims.iter().product::<i64>() as usize * self.dtype.bytes()
    }
}

impl Format {
    pub fn by_id(id: u32) -> Option<&'static Format> {
        FORMATS.iter().find(|f| f.id == id)
    }
    pub fn by_name(name: &str) -> Option<&'static Format> {
        FORMATS.iter().find(|f| f.name == name)
    }
    /// Has this format an integer product?
    pub fn is_quantised(&self) -> bool {
        self.planes[0].part != Part::Values
    }
    /// Bytes of a row in the file.
    pub fn row_bytes(&self, cols: i64) -> i64 {
        cols / self.block * self.bytes
    }

    /// The logical planes of the file's bytes, u8 `[.., R, K/block, bytes]`.
    pub fn planes<'g>(&'static self, raw: Tensor<'g>) -> Planes<'g> {
        let fits = raw.dtype() == DType::U8 && raw.size(-1) == self.bytes;
        assert!(fits, "{} has blocks of {} bytes: {}", self.name, self.bytes, raw.show_shape());
        Planes { format: self, planes: self.planes.iter().map(|p| p.extract(self, raw)).collect() }
    }

    /// The file's bytes as they are to lie in memory, one tensor for each of [`Format::stored`]: run once, at load.
    pub fn load<'g>(&'static self, raw: Tensor<'g>, layout: Layout) -> Vec<Tensor<'g>> {
        self.planes(raw).store(layout)
    }

    /// What a matrix `[leading.., rows, cols]` takes in memory.
    pub fn stored(&self, leading: &[i64], rows: i64, cols: i64, layout: Layout) -> Vec<Stored> {
        assert_eq!(cols % self.block, 0, "{} has blocks of {}: {cols} columns", self.name, self.block);
        let dims = |p: &Plane| {
            let row = p.row_dims(self, cols);
            let own = match (layout, p.part) {
                (Layout::Rows, _) => [&[rows], &row[..]].concat(),
                (Layout::Interleaved16, Part::Quants(bits)) => vec![tiles(rows), row[0], bits, 16, 4],
                (Layout::Interleaved16, _) => vec![tiles(rows), row[0], 16],
            };
            [leading, &own].concat()
        };
        self.planes.iter().map(|p| Stored { name: p.name(), dtype: p.dtype.into(), dims: dims(p) }).collect()
    }

    /// A matrix `[leading.., rows, cols]` in memory: the buffers, named `name.plane`, and what they show.
    pub fn inputs<'g>(
        &'static self,
        g: &'g Graph,
        name: &str,
        leading: &[i64],
        rows: i64,
        cols: i64,
        layout: Layout,
    ) -> (Vec<Tensor<'g>>, Planes<'g>) {
        let stored = self.stored(leading, rows, cols, layout);
        let buffers: Vec<_> =
            stored.iter().map(|s| g.input(&format!("{name}.{}", s.name), s.dtype, s.dims.clone())).collect();
        let planes = self.planes.iter().zip(&buffers).map(|(p, &b)| view(b, p.part, layout, rows)).collect();
        (buffers, Planes { format: self, planes })
    }
}

/// What a number is made larger by before its last 16 bits are cut off. Half a step of bf16, which this loses on average, is
/// `2^-8 / (2 ln 2)` of a number on average; so errors are about 0 on average, as large as those of rounding, and as less
/// than a whole step is added, what bf16 holds stays what it is.
const CUT: f32 = 1.0 + 0.721_347_5 / 256.0;

/// A weight matrix `[.., R, K]`, or a stack of them, as its logical planes.
#[derive(Clone)]
pub struct Planes<'g> {
    pub format: &'static Format,
    /// In the order of [`Format::planes`].
    pub planes: Vec<Tensor<'g>>,
}

impl<'g> Planes<'g> {
    fn part(&self, part: Part) -> Option<Tensor<'g>> {
        self.format.planes.iter().position(|p| p.part == part).map(|i| self.planes[i])
    }
    pub fn store(&self, layout: Layout) -> Vec<Tensor<'g>> {
        self.format.planes.iter().zip(&self.planes).map(|(p, &t)| store(t, p.part, layout)).collect()
    }
    /// Entries of the first axis by index (i32): experts of a stack, or rows of an embedding.
    pub fn gather(&self, index: Tensor<'g>) -> Planes<'g> {
        Planes { format: self.format, planes: self.planes.iter().map(|p| p.gather(index)).collect() }
    }

    /// A quantised matrix's rows in blocks of so many, as a stack: `[.., R/n, n, K]`.
    pub fn blocks(&self, n: i64) -> Planes<'g> {
        let leading = self.block_scale().rank() - 2;
        let apart = |t: &Tensor<'g>| {
            let own: Vec<i64> = (leading..t.rank()).map(|i| t.size(i as isize)).collect();
            t.reshape_last(own.len(), &[&[own[0] / n, n], &own[1..]].concat())
        };
        Planes { format: self.format, planes: self.planes.iter().map(apart).collect() }
    }

    /// u8 `[.., R, K/32, 32]`
    pub fn q(&self) -> Tensor<'g> {
        let mut below = 0;
        let parts = self.format.planes.iter().zip(&self.planes).filter_map(|(p, &plane)| {
            let Part::Quants(bits) = p.part else { return None };
            let q = if bits == 8 { plane } else { split_fields(plane, bits).reshape_last(2, &[32]) };
            below += bits;
            Some(if below == bits { q } else { q << (below - bits) })
        });
        let q = parts.reduce(|a, b| a | b).unwrap_or_else(|| panic!("{} has no quants", self.format.name));
        match self.format.table {
            Some(t) => q.lookup(t.map(|v| (v as i64 - self.format.offset) as i8), U8),
            None => q,
        }
    }

    /// f32 `[.., R, K/block]`
    fn block_scale(&self) -> Tensor<'g> {
        let d = self.part(Part::Scale).unwrap();
        if d.dtype() == DType::F16 {
            return d.cast(F32);
        }
        // 2^(e − 128), the table's numbers being doubled; the two smallest are subnormal.
        let e = d.cast(U32);
        e.lt(2).select(0x20_0000.tensor(e) << e, (e - 1) << 23).bitcast(F32)
    }

    /// A factor of each block times one of each group in it: f32 `[.., R, K/group]`.
    fn per_group(&self, block: Tensor<'g>, groups: Option<Tensor<'g>>) -> Tensor<'g> {
        let (blocks, n) = (block.size(-1), self.format.block / self.format.group);
        match groups {
            None => block,
            Some(s) => {
                let s = s.cast(F32).reshape_last(1, &[blocks, n]);
                (block.unsqueeze(-1) * s).reshape_last(2, &[blocks * n])
            }
        }
    }
    /// f32 `[.., R, K/group]`
    pub fn scale(&self) -> Tensor<'g> {
        self.per_group(self.block_scale(), self.part(Part::SubScale))
    }
    /// f32 `[.., R, K/group]`, to be subtracted.
    pub fn min(&self) -> Option<Tensor<'g>> {
        self.part(Part::Min).map(|d| self.per_group(d.cast(F32), self.part(Part::SubMin)))
    }

    /// The values, f32 `[.., R, K]`: bit for bit those of ggml, which multiplies in the same order.
    pub fn dequant(&self) -> Tensor<'g> {
        match self.part(Part::Values) {
            Some(w) => w.cast(F32),
            None => self.scaled(self.scale(), self.min()),
        }
    }

    /// The quants times a scale less a minimum of each group.
    fn scaled(&self, scale: Tensor<'g>, min: Option<Tensor<'g>>) -> Tensor<'g> {
        let (groups, group) = (scale.size(-1), self.format.group);
        let q = (self.q().cast(I32) + self.format.offset).cast(F32).reshape_last(2, &[groups, group]);
        let w = q * scale.unsqueeze(-1);
        let w = min.map_or(w, |min| w - min.unsqueeze(-1));
        w.reshape_last(2, &[groups * group])
    }

    /// The values in bf16 `[.., R, K]` for a tile unit, cut off where others round: a third of the instructions that unpack
    /// a weight would do nothing but round it. See [`CUT`].
    fn cut(&self) -> Tensor<'g> {
        if self.part(Part::Values).is_some() {
            return self.dequant().cast(BF16);
        }
        let w = self.scaled(self.scale() * CUT, self.min().map(|min| min * CUT));
        (w.bitcast(U32) >> 16).cast(U16).bitcast(BF16)
    }

    /// `x · wᵀ` with x f32 `[.., M, K]`: f32 `[.., M, R]`; leading axes broadcast.
    pub fn linear(&self, x: Tensor<'g>) -> Tensor<'g> {
        ops::linear(x, self.dequant())
    }

    /// `x · wᵀ` with x bf16 `[.., M, K]` and the weights in bf16: f32 `[.., M, R]`; leading axes broadcast.
    pub fn linear_half(&self, x: Tensor<'g>, unit: Unit) -> Tensor<'g> {
        let w = match unit {
            Unit::Tile => self.cut(),
            Unit::Warp => self.dequant(),
        };
        ops::linear_half(x, w)
    }

    /// `x · wᵀ` in integers, x `[.., M, K]`: f32 `[.., M, R]`; leading axes broadcast.
    ///
    /// `Σ_B (d·Σ_b Σ_g sc·(xd·Σ_e q·xq + offset·xs) − dmin·Σ_b Σ_g m·xs)` over blocks B, the activations' blocks b of 32,
    /// groups g and elements e: a factor stands outside the sums that do not need it.
    pub fn linear_q8(&self, x: &QuantX<'g>) -> Tensor<'g> {
        let Format { block, group, offset, .. } = *self.format;
        let q = self.q();
        // The axes are [.., M, R, B, b, g, e] as far as they are still there.
        let [nblocks, nb, ng] = [q.size(-2) * 32 / block, block / 32, 32 / group];
        let weights = |t: Tensor<'g>| t.cast(F32).reshape_last(1, &[nblocks, nb, ng]).unsqueeze(-5);
        let w = q.reshape_last(2, &[nblocks, nb, ng, group]).unsqueeze(-6);
        let xq = x.q.reshape_last(2, &[1, nblocks, nb, ng, group]);
        let xd = x.d.reshape_last(1, &[1, nblocks, nb]);
        let xs = if group == 16 { x.s16 } else { x.s32 }.reshape_last(1, &[1, nblocks, nb, ng]);

        let dot = total(w.cast(I32) * xq.cast(I32)).cast(F32) * xd.unsqueeze(-1);
        let dot = if offset == 0 { dot } else { dot + xs * offset };
        let dot = self.part(Part::SubScale).map_or(dot, |sc| dot * weights(sc));
        let y = self.block_scale().unsqueeze(-3) * total(total(dot));
        let y = self.part(Part::Min).map_or(y, |dmin| {
            let sums = self.part(Part::SubMin).map_or(xs, |m| xs * weights(m));
            y - dmin.unsqueeze(-3) * total(total(sums))
        });
        total(y)
    }
}

/// The sum over the last axis, which goes away.
fn total(x: Tensor) -> Tensor {
    if x.size(-1) == 1 { x.squeeze(-1) } else { x.sum(-1).squeeze(-1) }
}

#[cfg(test)]
mod tests;
