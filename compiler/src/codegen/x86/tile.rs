//! Tile products on AMX. Tile 0 holds the result; every height of B in the program has a tile for A and one for B, up to
//! three heights, else the tiles are configured anew for each product.
//!
//! B comes from memory where its vectors are loads of one place after the other, else they go through the stack; its tile
//! is kept while the block's next products name the same vectors. The results lie on the stack, the last few of them, so
//! that a conversion can read its row from there.
//!
//! Sums of products of bf16 stay in tiles 0 to 3, with two tiles for A and two for B; a program has these or the others.

use super::lower::Lower;
use super::mach::{Address, Arg, Base, Size};
use super::plan::RESULTS;
use crate::linear::{Inst, Mem, Reg};
use iced_x86::Mnemonic as M;

/// Cells of the stack where B and the result pass through; the first four belong to other sequences.
const B_CELL: usize = 4;
const RESULT_CELL: usize = B_CELL + 16;
const ROWS: usize = 16;

/// Besides the result there are seven tiles.
const TILE_PAIRS: usize = 3;

impl Lower<'_> {
    /// Heights of B that occur, in order.
    fn tile_heights(&self) -> Vec<usize> {
        let mut heights: Vec<usize> = self
            .p
            .code
            .iter()
            .filter_map(|i| match i {
                Inst::TileDot { b, .. } => Some(b.len()),
                _ => None,
            })
            .collect();
        heights.sort_unstable();
        heights.dedup();
        heights
    }

    pub fn configure_tiles(&mut self) {
        let heights = self.tile_heights();
        if !self.uses_tiles() {
            return;
        }
        assert!(self.features.amx, "{} has tile products, which need AMX", self.p.name);
        if self.sums_tiles() {
            assert!(heights.is_empty(), "{} has two kinds of tile products", self.p.name);
            return self.load_tile_shapes([(16, 64); 8]);
        }
        if heights.len() <= TILE_PAIRS {
            self.load_tile_config(&heights);
        }
    }

    fn load_tile_config(&mut self, heights: &[usize]) {
        let mut shapes = [(0, 0); 8];
        shapes[0] = (16, 64);
        for (i, h) in heights.iter().enumerate() {
            shapes[1 + 2 * i] = (16, 4 * h);
            shapes[2 + 2 * i] = (*h, 64);
        }
        self.load_tile_shapes(shapes);
    }

    /// Rows and bytes a row of each tile.
    fn load_tile_shapes(&mut self, shapes: [(usize, usize); 8]) {
        // Palette 1; 16-bit row lengths from byte 16 on, row counts from byte 48 on.
        let mut config = [0u8; 64];
        config[0] = 1;
        for (tile, (rows, bytes)) in shapes.into_iter().enumerate() {
            config[16 + 2 * tile] = bytes as u8;
            config[48 + tile] = rows as u8;
        }
        let a = self.constant_at(&config);
        self.op(M::Ldtilecfg, &[Arg::Mem(a.with_bytes(0))]);
    }

    fn sums_tiles(&self) -> bool {
        self.p.code.iter().any(|i| matches!(i, Inst::TileZero { .. }))
    }

    fn uses_tiles(&self) -> bool {
        self.sums_tiles() || !self.tile_heights().is_empty()
    }

    pub fn release_tiles(&mut self) {
        if self.uses_tiles() {
            self.op(M::Tilerelease, &[]);
        }
    }

    /// Row `row` of the result of instruction `at`.
    pub fn tile_row(&mut self, at: usize, row: usize) -> Address {
        let result = self.plan.tiles[at] % RESULTS;
        self.cell(RESULT_CELL + ROWS * result + row, 64)
    }

    /// Where rows `bytes` apart begin at an element of `mem`.
    fn tile_rows(&mut self, mem: Mem, index: Reg, element: u8, bytes: i64) -> Arg {
        let (base, offset) = self.buffer(mem);
        let index = Some((self.reg(index), element));
        let first = self.lea(Address { index, ..Address::new(Base::Reg(base), offset as i32, 0) });
        let apart = self.imm(bytes);
        Arg::Mem(Address { index: Some((apart, 1)), ..Address::new(Base::Reg(first), 0, 0) })
    }

    pub fn tile_mul(&mut self, (a_mem, a, stride): (Mem, &[Reg], i64), (b_mem, b): (Mem, &[Reg])) {
        const A: u8 = 4;
        const B: u8 = 6;
        for (j, &at) in b.iter().enumerate() {
            let rows = self.tile_rows(b_mem, at, 2, 64);
            self.op(M::Tileloadd, &[Arg::Tile(B + j as u8), rows]);
        }
        for (i, &at) in a.iter().enumerate() {
            let rows = self.tile_rows(a_mem, at, 2, 2 * stride);
            self.op(M::Tileloadd, &[Arg::Tile(A + i as u8), rows]);
            if 2 * stride == 64 {
                self.fetch_tile(rows);
            }
            for j in 0..b.len() {
                let [sum, a, b] = [(i * b.len() + j) as u8, A + i as u8, B + j as u8].map(Arg::Tile);
                self.op(M::Tdpbf16ps, &[sum, a, b]);
            }
        }
    }

    /// Asks for the tile after the next one where tiles follow each other: loads of 16 lines at a time hide no latency.
    fn fetch_tile(&mut self, rows: Arg) {
        const AHEAD: i32 = 2 * 16 * 64;
        let Arg::Mem(first) = rows else { unreachable!("rows are in memory") };
        for row in 0..16 {
            let line = Address { index: None, disp: first.disp + AHEAD + 64 * row, ..first };
            self.op(M::Prefetcht0, &[Arg::Mem(line.with_bytes(1))]);
        }
    }

    pub fn tile_store(&mut self, mem: Mem, index: &[Reg]) {
        for (tile, &at) in index.iter().enumerate() {
            let rows = self.tile_rows(mem, at, 4, 64);
            self.op(M::Tilestored, &[rows, Arg::Tile(tile as u8)]);
        }
    }

    pub fn tile_dot(&mut self, number: usize, inst: &Inst, dst: &[Reg], b: &[Reg], stride: i64) {
        let heights = self.tile_heights();
        let at = match heights.len() {
            ..=TILE_PAIRS => heights.iter().position(|h| *h == b.len()).expect("configured at entry"),
            _ => {
                self.load_tile_config(&[b.len()]);
                self.tiles.clear();
                0
            }
        };
        let (result, a_tile, b_tile) =
            (Arg::Tile(0), Arg::Tile(1 + 2 * at as u8), Arg::Tile(2 + 2 * at as u8));
        let row = self.imm(64);
        let rows = |a: Address| Arg::Mem(Address { index: Some((row, 1)), ..a.with_bytes(0) });
        if self.tiles.get(&b.len()).is_none_or(|held| held != b) {
            let from = match self.plan.tile_place(number, b) {
                Some(place) => {
                    let a = self.place_address(place, 0);
                    if a.index.is_some() { Address::new(Base::Reg(self.lea(a)), 0, 0) } else { a }
                }
                None => {
                    for (i, r) in b.iter().enumerate() {
                        let v = self.reg(*r);
                        let cell = self.cell(B_CELL + i, 64);
                        self.op(M::Vmovups, &[Arg::Mem(cell), Arg::Use(v, Size::Z)]);
                    }
                    self.cell(B_CELL, 0)
                }
            };
            self.op(M::Tileloadd, &[b_tile, rows(from)]);
            self.tiles.insert(b.len(), b.to_vec());
        }
        let from = self.address(inst, 0);
        let from = self.lea(from);
        let stride = self.imm(stride);
        let a = Address { index: Some((stride, 1)), ..Address::new(Base::Reg(from), 0, 0) };
        self.op(M::Tileloadd, &[a_tile, Arg::Mem(a)]);
        self.op(M::Tilezero, &[result]);
        self.op(M::Tdpbsud, &[result, a_tile, b_tile]);
        self.tile_row(number, ROWS - 1);
        let cell = self.tile_row(number, 0);
        self.op(M::Tilestored, &[rows(cell), result]);
        for (i, r) in dst.iter().enumerate() {
            if self.plan.needed[r.0 as usize] {
                let cell = self.tile_row(number, i);
                let v = self.load_vector(64, cell);
                self.set(*r, v);
            }
        }
    }
}
