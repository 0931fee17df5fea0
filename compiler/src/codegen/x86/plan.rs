//! What selection may merge: a linear program in, for every instruction whether it is emitted and what it absorbs, out.
//!
//! A load merges into its only reader when no store, barrier or loop boundary stands between them, so it never sees
//! other memory than it would have seen in its place.

use super::{Features, nibbles};
use crate::dtype::{Bits, DType, Scalar};
use crate::linear::{Inst, Linear, Mem, Op, Reg};
use crate::scalar::Binary;

/// An argument that is read from memory by the instruction itself.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Folded {
    pub arg: usize,
    /// Index of the load, or of the tile product whose row it is.
    pub load: usize,
    /// The load is one element, repeated to all lanes.
    pub broadcast: bool,
}

/// `mem` + `index`·scale + `disp` bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Place {
    pub mem: Mem,
    pub index: Option<(Reg, u8)>,
    pub disp: i64,
}

/// Results of tile products that lie on the stack at a time.
pub const RESULTS: usize = 2;

pub struct Plan<'a> {
    p: &'a Linear,
    features: Features,
    /// Defining instruction of each register.
    pub def: Vec<usize>,
    uses: Vec<u32>,
    /// Loop nest segment of each instruction: equal numbers are in straight-line code together.
    block: Vec<u32>,
    /// Like `block`, and without a store or barrier between.
    span: Vec<u32>,
    pub emitted: Vec<bool>,
    pub folded: Vec<Option<Folded>>,
    /// The load of the first of a number's bytes, which lie side by side, where the number is put together from them.
    pub joined: Vec<Option<usize>>,
    /// Instructions merged into their only reader: a byte shift into an `And`, that into an `Or`, a comparison into a `Where`.
    pub absorbed: Vec<bool>,
    /// Dot products whose sums of two products stay in 16 bits, where the next of their chain adds its own.
    pub paired: Vec<bool>,
    /// Whether something reads more than the low bits of a scalar, so that they must be extended.
    pub extended: Vec<bool>,
    /// Whether something reads a register, rather than memory that it stands for.
    pub needed: Vec<bool>,
    /// Tile products before each instruction.
    pub tiles: Vec<usize>,
    /// Most vector values alive at once.
    pub pressure: usize,
}

impl<'a> Plan<'a> {
    pub fn new(p: &'a Linear, features: Features) -> Plan<'a> {
        let n = p.code.len();
        let mut plan = Plan {
            p,
            features,
            def: vec![usize::MAX; p.regs.len()],
            uses: vec![0; p.regs.len()],
            block: Vec::with_capacity(n),
            span: Vec::with_capacity(n),
            emitted: vec![true; n],
            folded: vec![None; n],
            joined: vec![None; n],
            absorbed: vec![false; n],
            paired: vec![false; n],
            extended: vec![false; p.regs.len()],
            needed: vec![false; p.regs.len()],
            tiles: Vec::with_capacity(n),
            pressure: 0,
        };
        let (mut block, mut span, mut tiles) = (0, 0, 0);
        for (i, inst) in p.code.iter().enumerate() {
            plan.block.push(block);
            plan.span.push(span);
            plan.tiles.push(tiles);
            match inst {
                Inst::TileDot { .. } => tiles += 1,
                Inst::Loop { .. } | Inst::End { .. } => (block, span) = (block + 1, span + 1),
                Inst::Store { .. } | Inst::TileStore { .. } | Inst::Barrier { .. } => span += 1,
                _ => {}
            }
            inst.defs().iter().for_each(|r| plan.def[r.0 as usize] = i);
            inst.uses().iter().for_each(|r| plan.uses[r.0 as usize] += 1);
            let low_bits = match inst {
                Inst::Op { dst, op: Op::Spread | Op::Repeat, args } if p.dtype(*dst).lanes > 1 => {
                    Some(args[0])
                }
                Inst::Store { value, .. } => Some(*value),
                _ => None,
            };
            let full = inst.uses().into_iter().filter(|r| Some(*r) != low_bits);
            full.for_each(|r| plan.extended[r.0 as usize] = true);
        }
        plan.merge();
        plan.pair();
        plan.pressure = plan.measure_pressure();
        plan
    }

    pub fn def_of(&self, r: Reg) -> &'a Inst {
        &self.p.code[self.def[r.0 as usize]]
    }

    pub fn op_of(&self, r: Reg) -> Option<(Op, &'a [Reg])> {
        match self.def_of(r) {
            Inst::Op { op, args, .. } => Some((*op, args)),
            _ => None,
        }
    }

    pub fn constant(&self, r: Reg) -> Option<Bits> {
        match self.op_of(r)? {
            (Op::Const(b), _) => Some(b),
            (Op::Thread, _) => Some(Bits::int(0)),
            (Op::Spread | Op::Repeat, args) => self.constant(args[0]),
            _ => None,
        }
    }

    /// Walks from the last instruction to the first and decides merges and what is dead.
    fn merge(&mut self) {
        for i in (0..self.p.code.len()).rev() {
            let inst = &self.p.code[i];
            let pure = matches!(inst, Inst::Op { .. } | Inst::Load { .. } | Inst::Gather { .. });
            if self.absorbed[i] || (pure && !inst.defs().iter().any(|r| self.needed[r.0 as usize])) {
                self.emitted[i] = false;
                continue;
            }
            self.folded[i] = self.fold(i);
            self.joined[i] = self.join(i);
            if let Some(first) = self.joined[i] {
                let place = self.place(&self.p.code[first]).expect("a load has a place");
                place.index.iter().for_each(|(r, _)| self.needed[r.0 as usize] = true);
                continue;
            }
            let mut need: Vec<Reg> = inst.uses();
            if let Some(place) = self.place(inst) {
                need.remove(0);
                need.splice(0..0, place.index.map(|x| x.0));
            }
            if let Some(f) = self.folded[i] {
                need.remove(f.arg);
                if let load @ Inst::Load { .. } = &self.p.code[f.load] {
                    let place = self.place(load).expect("a load has a place");
                    need.extend(place.index.map(|x| x.0));
                }
            }
            if let Inst::TileDot { b, .. } = inst
                && let Some(place) = self.tile_place(i, b)
            {
                need.truncate(need.len() - b.len());
                need.extend(place.index.map(|x| x.0));
            }
            if let Inst::Op { op: Op::Binary(b), args, .. } = inst
                && let Some(count) = self.uniform_count(*b, args)
            {
                need[1] = count;
            }
            for r in self.absorbs(i) {
                self.absorbed[self.def[r.0 as usize]] = true;
                need.retain(|x| *x != r);
                need.extend(self.def_of(r).uses());
            }
            need.iter().for_each(|r| self.needed[r.0 as usize] = true);
        }
    }

    /// Without VNNI a dot product sums two products in 16 bits, then two of these sums in 32. The second step is taken once
    /// for as many of a chain as 16 bits hold for certain.
    fn pair(&mut self) {
        if self.features.dot4() {
            return;
        }
        let mut most = vec![0; self.p.code.len()];
        for (i, inst) in self.p.code.iter().enumerate() {
            let Inst::Op { op: Op::Dot4, args, .. } = inst else { continue };
            most[i] = self.pair_max(args[1]);
            let before = self.def[args[0].0 as usize];
            let chained = matches!(self.op_of(args[0]), Some((Op::Dot4, _)))
                && self.block[before] == self.block[i]
                && self.only_use(args[0])
                && self.p.dtype(args[0]).lanes > 1;
            let all = most[before] + most[i];
            if chained && all <= i16::MAX as u64 {
                (self.paired[before], most[i]) = (true, all);
            }
        }
    }

    /// What the first of these paired dot products adds to.
    pub fn chain_start(&self, mut sum: Reg) -> Reg {
        while let Some((Op::Dot4, args)) = self.op_of(sum).filter(|_| self.paired[self.def[sum.0 as usize]]) {
            sum = args[0];
        }
        sum
    }

    /// The largest sum of two products of these weights with bytes.
    fn pair_max(&self, weights: Reg) -> u64 {
        2 * 128 * self.u8_max(weights)
    }

    /// Whether one instruction reads `r`. A loop's own step also reads its variable.
    pub fn only_use(&self, r: Reg) -> bool {
        self.uses[r.0 as usize] == 1 && !matches!(self.def_of(r), Inst::Loop { var, .. } if *var == r)
    }

    fn only_use_in(&self, r: Reg, block: &[u32], at: usize) -> bool {
        self.only_use(r) && block[self.def[r.0 as usize]] == block[at]
    }

    /// The load of the first byte of a scalar that instruction `at` puts together from all of its bytes, in memory's order.
    fn join(&self, at: usize) -> Option<usize> {
        let Inst::Op { dst, op: Op::Binary(Binary::Or), .. } = &self.p.code[at] else { return None };
        let t = self.p.dtype(*dst);
        let (first, n) = self.bytes_of(*dst, at)?;
        (t.lanes == 1 && n == t.bytes()).then_some(first)
    }

    /// The first load of a number made of the bytes that follow each other from there, and how many they are.
    fn bytes_of(&self, r: Reg, at: usize) -> Option<(usize, usize)> {
        match self.op_of(r)? {
            (Op::Cast, a) if self.p.dtype(a[0]) == DType::U8 => {
                let i = self.def[a[0].0 as usize];
                let plain = matches!(self.p.code[i], Inst::Load { gate: None, .. });
                (plain && self.span[i] == self.span[at]).then_some((i, 1))
            }
            (Op::Binary(Binary::Or), a) => {
                let (first, n) = self.bytes_of(a[0], at)?;
                let (Op::Binary(Binary::Shl), shifted) = self.op_of(a[1])? else { return None };
                let (next, 1) = self.bytes_of(shifted[0], at)? else { return None };
                let [a, b] = [first, next].map(|i| self.place(&self.p.code[i]));
                let a = a?;
                let follows = b? == Place { disp: a.disp + n as i64, ..a };
                let above = self.constant(shifted[1])?.as_int() == 8 * n as i64;
                (follows && above).then_some((first, n + 1))
            }
            _ => None,
        }
    }

    /// The load behind `r` when instruction `at` may do it itself.
    fn movable_load(&self, r: Reg, at: usize) -> Option<usize> {
        let i = self.def[r.0 as usize];
        let plain = matches!(self.p.code[i], Inst::Load { gate: None, .. });
        (plain && self.p.dtype(r).scalar != Scalar::Bool && self.only_use_in(r, &self.span, at)).then_some(i)
    }

    /// Where instruction `at` finds the rows of its B tile, if loads of one place after the other are all that `b` is.
    pub fn tile_place(&self, at: usize, b: &[Reg]) -> Option<Place> {
        let place = |r: &Reg| {
            let i = self.def[r.0 as usize];
            let plain = matches!(self.p.code[i], Inst::Load { gate: None, .. });
            (plain && self.span[i] == self.span[at]).then(|| self.place(&self.p.code[i])).flatten()
        };
        let first = place(&b[0])?;
        let follows = |(i, r)| place(r) == Some(Place { disp: first.disp + 64 * i as i64, ..first });
        b.iter().enumerate().all(follows).then_some(first)
    }

    /// The tile product whose row `r` is, when it still lies on the stack at instruction `at`.
    fn tile_row(&self, r: Reg, at: usize) -> Option<usize> {
        let i = self.def[r.0 as usize];
        let there =
            matches!(self.p.code[i], Inst::TileDot { .. }) && self.tiles[at] <= self.tiles[i] + RESULTS;
        (there && self.only_use_in(r, &self.block, at)).then_some(i)
    }

    fn fold(&self, at: usize) -> Option<Folded> {
        let Inst::Op { dst, op, args } = &self.p.code[at] else { return None };
        let t = self.p.dtype(*dst);
        let source = |arg: usize| self.p.dtype(args[arg]);
        let direct =
            |arg: usize| Some(Folded { arg, load: self.movable_load(args[arg], at)?, broadcast: false });
        // A whole vector or scalar as it stands, or one 4-byte element for all lanes.
        let operand = |arg: usize| {
            let t = source(arg);
            let full = t.lanes > 1 && t.bytes() >= 16 || t == DType::F32;
            if let Some(f) = direct(arg).filter(|_| full) {
                return Some(f);
            }
            let (Op::Spread | Op::Repeat, from) = self.op_of(args[arg])? else { return None };
            let wide = self.features.avx512 && t.bytes() >= 16 && self.p.dtype(from[0]).bytes() == 4;
            let repeats = matches!(self.op_of(args[arg])?.0, Op::Repeat) || self.p.dtype(from[0]).lanes == 1;
            if !wide || !repeats || !self.only_use_in(args[arg], &self.span, at) {
                return None;
            }
            let load = self.movable_load(from[0], self.def[args[arg].0 as usize])?;
            Some(Folded { arg, load, broadcast: true })
        };
        match op {
            Op::Repeat | Op::Spread if t.scalar != Scalar::Bool && t.lanes > source(0).lanes => {
                (*op == Op::Repeat || source(0).lanes == 1).then(|| direct(0)).flatten()
            }
            Op::Cast => {
                let s = source(0);
                let widens = s.scalar.is_int() && t.scalar.is_int() && s.bytes() < t.bytes()
                    || s.scalar.is_int() && s.scalar.bytes() <= 2 && t.scalar == Scalar::F32
                    || s.scalar == Scalar::I32 && t.scalar == Scalar::F32
                    || matches!(s.scalar, Scalar::F16 | Scalar::BF16) && t.scalar == Scalar::F32;
                let half = !s.scalar.is_int();
                if let Some(load) = self.tile_row(args[0], at).filter(|_| widens) {
                    return Some(Folded { arg: 0, load, broadcast: false });
                }
                (widens && (s.lanes > 1 && t.bytes() >= 16 || s.lanes == 1 && half))
                    .then(|| direct(0))
                    .flatten()
            }
            Op::Dot4 if t.bytes() >= 16 && self.features.dot4() => operand(2),
            // One `vpmaddubsw`, see selection; it has no embedded broadcast.
            Op::Dot4 if t.bytes() >= 16 => direct(2),
            Op::Binary(b) if !b.is_compare() && (t == DType::F32 || t.lanes > 1 && t.bytes() >= 16) => {
                use Binary::*;
                let element = t.scalar.bytes();
                let right = |f: &Folded| !f.broadcast || element == 4;
                let plain = matches!(b, Add | Sub | Mul | Max | Min | And | Or | Xor)
                    || *b == Div && t.scalar == Scalar::F32;
                if !plain || t.scalar == Scalar::Bool {
                    return None;
                }
                operand(1).filter(right).or_else(|| operand(0).filter(|f| b.commutes() && right(f)))
            }
            Op::Fma if t == DType::F32 || t.bytes() >= 16 => {
                operand(1).or_else(|| operand(0)).or_else(|| operand(2))
            }
            _ => None,
        }
    }

    /// The arguments whose definitions instruction `at` does as part of itself, and theirs.
    fn absorbs(&self, at: usize) -> Vec<Reg> {
        let Inst::Op { dst, op, args } = &self.p.code[at] else { return vec![] };
        let merged = |r: &Reg| self.only_use_in(*r, &self.block, at);
        let shift = |dst: Reg, and: &[Reg]| self.masked_shift(dst, and).filter(merged);
        let alone = match op {
            Op::Binary(Binary::And) if self.folded[at].is_none() => shift(*dst, args),
            Op::Binary(Binary::Or) if self.features.avx512 && self.folded[at].is_none() => {
                let masked = |r: &Reg| match self.op_of(*r)? {
                    (Op::Binary(Binary::And), and) => self.constant(and[1]).map(|_| (*r, and)),
                    _ => None,
                };
                let t = self.p.dtype(*dst);
                let wide = t.scalar != Scalar::Bool && t.bytes() >= 16;
                let found = args.iter().rev().find_map(masked).filter(|(r, _)| wide && merged(r));
                return found.map_or(vec![], |(r, and)| [r].into_iter().chain(shift(r, and)).collect());
            }
            Op::Where if self.p.dtype(*dst).scalar != Scalar::Bool => {
                self.compared(*dst, args).filter(merged)
            }
            _ => None,
        };
        alone.into_iter().collect()
    }

    /// The comparison that a selection can do itself.
    fn compared(&self, dst: Reg, args: &[Reg]) -> Option<Reg> {
        let (Op::Binary(b), compared) = self.op_of(args[0])? else { return None };
        let (s, t) = (self.p.dtype(compared[0]).scalar, self.p.dtype(dst));
        // A vector mask has the width of what is compared, a scalar one is in the flags.
        let fits = match t.lanes {
            1 => s.is_int() && t.scalar != Scalar::F32,
            _ => self.features.avx512 || s.bytes() == t.scalar.bytes(),
        };
        (b.is_compare() && s != Scalar::Bool && fits).then_some(args[0])
    }

    /// The scalar by which all lanes of a vector are shifted.
    pub fn uniform_count(&self, op: Binary, args: &[Reg]) -> Option<Reg> {
        let t = self.p.dtype(args[0]);
        let shift =
            op == Binary::Shl || op == Binary::Shr && (t.scalar != Scalar::I64 || self.features.avx512);
        if t.lanes == 1 || !shift || self.constant(args[1]).is_some() {
            return None;
        }
        let (Op::Spread | Op::Repeat, from) = self.op_of(args[1])? else { return None };
        (self.p.dtype(from[0]).lanes == 1).then_some(from[0])
    }

    /// `(x shift const) & const` on byte vectors: which register the shift is.
    fn masked_shift(&self, dst: Reg, args: &[Reg]) -> Option<Reg> {
        let t = self.p.dtype(dst);
        if t.lanes == 1 || !matches!(t.scalar, Scalar::U8 | Scalar::I8) {
            return None;
        }
        self.constant(args[1])?;
        let (Op::Binary(shift), by) = self.op_of(args[0])? else { return None };
        let logical = shift == Binary::Shl || shift == Binary::Shr && t.scalar == Scalar::U8;
        (logical && self.constant(by[1]).is_some()).then_some(args[0])
    }

    /// Where a memory instruction goes; constants in the index move to the displacement, small factors to the scale.
    pub fn place(&self, inst: &Inst) -> Option<Place> {
        let (mem, index, offset, bytes) = match inst {
            Inst::Load { dst, mem, index, offset, .. } => {
                (*mem, *index, *offset, self.p.dtype(*dst).scalar.bytes())
            }
            Inst::Store { mem, index, offset, value, .. } => {
                (*mem, *index, *offset, self.p.dtype(*value).scalar.bytes())
            }
            Inst::Prefetch { mem, index, offset, .. } | Inst::TileDot { mem, index, offset, .. } => {
                (*mem, *index, *offset, 1)
            }
            _ => return None,
        };
        let (mut index, mut scale, mut disp) = (index, bytes as i64, offset.wrapping_mul(bytes as i64));
        loop {
            if let Some(c) = self.constant(index) {
                return Some(Place {
                    mem,
                    index: None,
                    disp: disp.wrapping_add(c.as_int().wrapping_mul(scale)),
                });
            }
            let step = match self.op_of(index) {
                Some((Op::Binary(Binary::Add), a)) => self.constant(a[1]).map(|c| (a[0], c.as_int(), 1)),
                Some((Op::Binary(Binary::Mul), a)) => self.constant(a[1]).map(|c| (a[0], 0, c.as_int())),
                Some((Op::Binary(Binary::Shl), a)) => {
                    self.constant(a[1]).filter(|c| c.as_int() < 4).map(|c| (a[0], 0, 1 << c.as_int()))
                }
                _ => None,
            };
            match step {
                Some((next, add, factor)) if matches!(scale.wrapping_mul(factor), 1 | 2 | 4 | 8) => {
                    disp = disp.wrapping_add(add.wrapping_mul(scale));
                    (index, scale) = (next, scale * factor);
                }
                _ => return Some(Place { mem, index: Some((index, scale as u8)), disp }),
            }
        }
    }

    pub fn u8_max(&self, r: Reg) -> u64 {
        nibbles::u8_max(&|r| self.op_of(r), r)
    }

    fn measure_pressure(&self) -> usize {
        // Last position of each value; a use in a loop that does not contain the definition lasts to the loop's end.
        let n = self.p.code.len();
        let mut ends = vec![0; n];
        let mut open = Vec::new();
        for (i, inst) in self.p.code.iter().enumerate() {
            match inst {
                Inst::Loop { .. } => open.push(i),
                Inst::End { .. } => ends[open.pop().expect("End has its Loop")] = i,
                _ => {}
            }
        }
        let mut last = vec![0; self.p.regs.len()];
        for (i, inst) in self.p.code.iter().enumerate() {
            match inst {
                Inst::Loop { .. } => open.push(i),
                Inst::End { .. } => drop(open.pop()),
                _ => {}
            }
            for r in inst.uses() {
                let def = self.def[r.0 as usize];
                let outermost = open.iter().find(|l| **l > def);
                let at = outermost.map_or(i, |l| ends[*l]);
                let l = &mut last[r.0 as usize];
                *l = at.max(*l);
            }
        }
        let mut change = vec![0i32; n + 1];
        for (r, t) in self.p.regs.iter().enumerate() {
            let vector = t.scalar != Scalar::Bool && (t.lanes > 1 || t.scalar == Scalar::F32);
            let def = self.def[r];
            if vector
                && def < n
                && self.emitted[def]
                && self.needed[r]
                && self.constant(Reg(r as u32)).is_none()
                && last[r] > def
            {
                change[def] += 1;
                change[last[r]] -= 1;
            }
        }
        let mut alive = 0;
        change
            .iter()
            .map(|c| {
                alive += c;
                alive
            })
            .max()
            .unwrap_or(0) as usize
    }
}
