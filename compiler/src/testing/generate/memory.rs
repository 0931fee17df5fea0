//! Instructions that touch memory or other threads.
//!
//! Reads go anywhere in the buffers that are only read, writes to the thread's own part of the others, so that no order
//! of threads or grid indices matters.

use super::{ANY, Generator, INPUT_LEN, MAX_ROUNDS};
use crate::dtype::{DType, Scalar};
use crate::linear::{Inst, Local, Mem, Op, Reg};
use crate::scalar::{Binary, Fold};

impl Generator<'_> {
    pub(super) fn input(&self, s: Scalar) -> Option<Mem> {
        self.scalars.iter().position(|k| *k == s).map(|i| Mem::Global(2 * i as u32))
    }

    fn output(&self, s: Scalar) -> Option<Mem> {
        self.scalars.iter().position(|k| *k == s).map(|i| Mem::Global(2 * i as u32 + 1))
    }

    /// Stores something in this thread's part of a local memory: as many elements as a vector has.
    pub(super) fn store_local(&mut self, local: usize, t: DType) {
        let part = self.caps.vector_bytes as i64 / t.scalar.bytes() as i64;
        let thread = self.program.op(DType::I64, Op::Thread, &[]);
        let size = self.int(DType::I64, part);
        let index = self.program.op(DType::I64, Op::Binary(Binary::Mul), &[thread, size]);
        let (value, offset) = (self.pick(t), self.rng.range(0, part - t.lanes as i64));
        let mem = Mem::Local(local as u32);
        self.program.code.push(Inst::Store { mem, index, offset, value, gate: None });
    }

    pub(super) fn load_input(&mut self) {
        let s = *self.rng.choose(&self.scalars);
        let t = s.vec(self.lanes(s));
        let mem = self.input(s).expect("every scalar has a buffer");
        let gated = self.rng.one_in(2);
        self.load(t, mem, gated);
    }

    /// Reads somewhere in a buffer that is only read.
    pub(super) fn load(&mut self, t: DType, mem: Mem, gated: bool) -> Reg {
        let last = INPUT_LEN - t.lanes as i64;
        let offset = self.rng.range(0, 8);
        let start = if gated && self.rng.one_in(3) {
            // Across either end of the buffer, or far away.
            let end = if self.rng.one_in(2) { last } else { -offset };
            let end = self.int(DType::I64, end);
            let by = *self.rng.choose(&self.known(DType::I64));
            self.op(DType::I64, Op::Binary(Binary::Add), &[end, by])
        } else {
            self.below(DType::I64, last + 1 - offset)
        };
        let gate = gated.then(|| self.bounds(t, start, offset));
        let dst = self.program.reg(t);
        self.program.code.push(Inst::Load { dst, mem, index: start, offset, gate });
        self.defined(dst, if t.is_float() { (-4.0, 4.0) } else { ANY })
    }

    /// Some value of type `t` in 0..n.
    pub(super) fn below(&mut self, t: DType, n: i64) -> Reg {
        let known = self.known(t);
        let any = if known.is_empty() { self.constant(t) } else { *self.rng.choose(&known) };
        let n = self.int(t, n);
        self.op(t, Op::Binary(Binary::Mod), &[any, n])
    }

    /// A gate that is closed for what is outside the buffer, for each lane where the vectors are wide enough.
    fn bounds(&mut self, t: DType, start: Reg, offset: i64) -> Reg {
        let lanes = DType::I64.with_lanes(t.lanes);
        let each = self.fits(lanes) && self.rng.one_in(2);
        let (zero, len) = (-offset, INPUT_LEN - offset);
        let (index, of, end) = match each {
            true => {
                let steps = self.program.op(DType::I32.with_lanes(t.lanes), Op::Iota, &[]);
                let steps = self.program.op(lanes, Op::Cast, &[steps]);
                let all = self.program.op(lanes, Op::Spread, &[start]);
                (self.op(lanes, Op::Binary(Binary::Add), &[all, steps]), lanes, len)
            }
            false => (start, DType::I64, len - t.lanes as i64 + 1),
        };
        let flag = DType::BOOL.with_lanes(of.lanes);
        let (zero, end) = (self.int(of, zero), self.int(of, end));
        let above = self.op(flag, Op::Binary(Binary::Le), &[zero, index]);
        let below = self.op(flag, Op::Binary(Binary::Lt), &[index, end]);
        self.op(flag, Op::Binary(Binary::And), &[above, below])
    }

    pub(super) fn gather(&mut self) {
        let s = *self.rng.choose(&self.scalars);
        let lanes = self.lanes(Scalar::I32);
        let t = s.vec(lanes);
        if !self.fits(t) {
            return;
        }
        let mem = self.input(s).expect("every scalar has a buffer");
        let index = self.below(DType::I32.with_lanes(lanes), INPUT_LEN);
        let gate = self.gate(lanes);
        let dst = self.program.reg(t);
        self.program.code.push(Inst::Gather { dst, mem, index, gate });
        self.defined(dst, if t.is_float() { (-4.0, 4.0) } else { ANY });
    }

    /// None, a bool, or one for each lane.
    fn gate(&mut self, lanes: u16) -> Option<Reg> {
        match self.rng.below(4) {
            0 => Some(self.pick(DType::BOOL)),
            1 => Some(self.pick(DType::BOOL.with_lanes(lanes))),
            _ => None,
        }
    }

    /// Some place in the thread's own part of a buffer: the index and offset of `lanes` elements.
    fn own_place(&mut self, lanes: u16) -> (Reg, i64) {
        let free = self.chunk - MAX_ROUNDS * lanes as i64;
        let offset = if free > 0 { self.rng.range(0, free) } else { 0 };
        match self.rounds.last().copied() {
            Some(round) if self.rng.one_in(2) => {
                let step = self.int(DType::I64, lanes as i64);
                let by = self.program.op(DType::I64, Op::Binary(Binary::Mul), &[round, step]);
                (self.program.op(DType::I64, Op::Binary(Binary::Add), &[self.own, by]), offset)
            }
            _ if self.rng.one_in(3) => {
                let far = self.int(DType::I64, 1 << 20);
                (self.program.op(DType::I64, Op::Binary(Binary::Add), &[self.own, far]), offset - (1 << 20))
            }
            _ => (self.own, offset),
        }
    }

    pub(super) fn load_own(&mut self) {
        let s = *self.rng.choose(&self.scalars);
        let t = s.vec(self.lanes(s));
        let (index, offset) = self.own_place(t.lanes);
        let gate = self.gate(t.lanes);
        let mem = self.output(s).expect("every scalar has a buffer");
        let dst = self.program.reg(t);
        self.program.code.push(Inst::Load { dst, mem, index, offset, gate });
        self.defined(dst, ANY);
    }

    pub(super) fn store(&mut self, value: Reg) {
        let t = self.program.dtype(value);
        let Some(mem) = self.output(t.scalar) else { return };
        let (index, offset) = self.own_place(t.lanes);
        let gate = self.gate(t.lanes);
        self.program.code.push(Inst::Store { mem, index, offset, value, gate });
    }

    /// Writes to a local memory and reads from it: another thread's part too, once all have arrived.
    pub(super) fn use_local(&mut self) {
        if self.program.locals.is_empty() || self.diverged {
            return;
        }
        let which = self.rng.below(self.program.locals.len());
        let Local { dtype, len } = self.program.locals[which];
        let t = dtype.scalar.vec(self.lanes(dtype.scalar));
        self.arrive();
        self.store_local(which, t);
        self.arrive();
        let index = self.below(DType::I64, len as i64 - t.lanes as i64 + 1);
        let gate = self.gate(t.lanes);
        let dst = self.program.reg(t);
        self.program.code.push(Inst::Load { dst, mem: Mem::Local(which as u32), index, offset: 0, gate });
        self.defined(dst, ANY);
    }

    fn arrive(&mut self) {
        if self.program.threads > 1 || self.rng.one_in(4) {
            self.program.code.push(Inst::Barrier { width: None });
        }
    }

    pub(super) fn special(&mut self) {
        match self.rng.below(3) {
            0 => {
                let index = self.pick(DType::I64);
                let mem = Mem::Global(self.rng.below(self.program.buffers.len()) as u32);
                let offset = self.rng.range(-64, 64);
                self.program.code.push(Inst::Prefetch { mem, index, offset, gate: None });
            }
            1 if self.caps.tile => self.tile(),
            _ if !self.diverged => {
                let fold = *self.rng.choose(&Fold::ALL);
                let Some(t) = self.dtype(|s| fold.binary().takes(s)) else { return };
                let src = self.folded(fold, t);
                let most = self.caps.lanes.min(self.program.threads);
                let width = 1 << self.rng.below(most.ilog2() as usize + 1);
                let dst = self.program.reg(t);
                self.program.code.push(Inst::LaneReduce { dst, fold, src, width });
                self.fold_result(dst, fold, &[src]);
            }
            _ => {}
        }
    }

    fn tile(&mut self) {
        let (Some(mem), Some(columns)) = (self.input(Scalar::I8), self.input(Scalar::U8)) else { return };
        let groups = 1 + self.rng.below(16) as i64;
        let (row, stride) = (groups * 4, self.rng.range(0, 70));
        let b = (0..groups).map(|_| self.load(Scalar::U8.vec(64), columns, false)).collect();
        let offset = self.rng.range(0, 8);
        let index = self.below(DType::I64, INPUT_LEN - offset - 15 * stride - row + 1);
        let dst: Vec<Reg> = (0..16).map(|_| self.program.reg(Scalar::I32.vec(16))).collect();
        self.program.code.push(Inst::TileDot { dst: dst.clone(), mem, index, offset, stride, b });
        dst.into_iter().for_each(|r| {
            self.defined(r, ANY);
        });
    }
}
