//! The generator: picks operations whose operands are in scope, and makes operands that are missing.
//!
//! Nothing unspecified reaches a buffer. Float intervals are tracked, so that casts stay in range and `Max`/`Min` see no
//! NaN; float sums add small integers only, because their order is the target's; `Exp2`, `Log2` and `Sin`, which no
//! standard rounds, do not occur. Every thread writes its own part of a buffer.

mod memory;

use crate::codegen::Caps;
use crate::dtype::{Bits, DType, Scalar};
use crate::linear::{Count, Inst, Linear, Local, Op, Reg};
use crate::rng::Rng;
use crate::scalar::{Binary, Fold, Unary};
use std::collections::HashSet;

/// Loops run at most this often; loops nest at most this deep.
const MAX_ROUNDS: i64 = 4;
const MAX_DEPTH: usize = 2;

/// Elements of a buffer that is only read: enough for a tile of 16 rows, and no power of two.
const INPUT_LEN: i64 = 1200;

/// A legal program for a target that can do `caps`, its buffers and symbol values. A step is an instruction and those
/// that make its operands.
pub fn random_program(rng: &mut Rng, caps: &Caps, steps: usize) -> (Linear, Vec<Vec<u8>>, Vec<i64>) {
    let symbols: Vec<i64> = vec![rng.range(0, MAX_ROUNDS), rng.range(1, 3), rng.bits() as i64];
    let threads = 1 << rng.below(caps.max_threads.min(64).ilog2() as usize + 1);
    let grid = loop {
        let grid = random_count(rng, 2);
        if (1..=5).contains(&grid.eval(&symbols)) {
            break grid;
        }
    };
    let blocks = grid.eval(&symbols);
    let mut scalars = vec![Scalar::I32, Scalar::I64, Scalar::F32];
    let narrow = [Scalar::I8, Scalar::U8, Scalar::I16, Scalar::U16, Scalar::U32, Scalar::F16, Scalar::BF16];
    scalars.extend(narrow.into_iter().chain([Scalar::Bool]).filter(|_| rng.one_in(2)));

    let mut g = Generator {
        chunk: 4 * caps.vector_bytes as i64,
        program: Linear {
            name: format!("random_{}", rng.seed()),
            grid,
            buffers: scalars
                .iter()
                .flat_map(|s| [(DType::from(*s), false), (DType::from(*s), true)])
                .collect(),
            symbols: vec!["rounds".into(), "few".into(), "any".into()],
            locals: vec![],
            threads,
            code: vec![],
            regs: vec![],
        },
        rng,
        caps,
        scalars,
        scope: vec![],
        interval: vec![],
        own: Reg(0),
        rounds: vec![],
        diverged: false,
        steps,
    };
    g.start();
    while g.steps > 0 {
        g.step();
    }
    g.store_unused(0, 16);

    let (program, chunk) = (g.program, g.chunk);
    let part = blocks * threads as i64 * chunk;
    let fill = |(t, written): &(DType, bool)| {
        let len = if *written { part } else { INPUT_LEN };
        let mut bytes = vec![0; len as usize * t.bytes()];
        bytes.chunks_exact_mut(t.bytes()).for_each(|b| input(rng, t.scalar).write(t.scalar, b));
        bytes
    };
    let buffers = program.buffers.iter().map(fill).collect();
    (program, buffers, symbols)
}

fn random_count(rng: &mut Rng, nesting: usize) -> Count {
    match rng.below(if nesting == 0 { 2 } else { 3 }) {
        0 => Count::Const(rng.range(0, 4)),
        1 => Count::Symbol(rng.below(2) as u32),
        _ => {
            let op =
                *rng.choose(&[Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Max, Binary::Min]);
            Count::Binary(op, Box::new((random_count(rng, nesting - 1), random_count(rng, nesting - 1))))
        }
    }
}

/// What buffers hold at first: any integer; floats in [-4, 4], the narrow ones quarters so that tile products are exact.
fn input(rng: &mut Rng, s: Scalar) -> Bits {
    match s {
        Scalar::F32 if rng.one_in(8) => Bits::float(-0.0),
        Scalar::F32 if !rng.one_in(4) => Bits::float(4.0 * rng.f32()),
        Scalar::Bool => Bits::bool(rng.one_in(2)),
        _ if s.is_float() => Bits::float(rng.range(-16, 16) as f32 / 4.0),
        _ => Bits::int(s.wrap(rng.bits() as i64)),
    }
}

/// Where a float's value lies; `ANY` includes infinities and NaN. Integers are always `ANY`.
type Interval = (f64, f64);
const ANY: Interval = (f64::NEG_INFINITY, f64::INFINITY);

struct Generator<'a> {
    rng: &'a mut Rng,
    caps: &'a Caps,
    program: Linear,
    /// Element types of the buffers: for each one that is only read, then one that is written.
    scalars: Vec<Scalar>,
    /// Registers that may be used here.
    scope: Vec<Reg>,
    /// For each register.
    interval: Vec<Interval>,
    /// Elements that each thread owns in every written buffer, and the first one's index.
    chunk: i64,
    own: Reg,
    /// Variables of the loops around.
    rounds: Vec<Reg>,
    /// The threads of a block may be in different rounds here.
    diverged: bool,
    /// Steps that are left to take.
    steps: usize,
}

impl Generator<'_> {
    fn start(&mut self) {
        let grid = self.op(DType::I64, Op::Grid, &[]);
        let thread = self.op(DType::I64, Op::Thread, &[]);
        let threads = self.int(DType::I64, self.program.threads as i64);
        let chunk = self.int(DType::I64, self.chunk);
        let block = self.op(DType::I64, Op::Binary(Binary::Mul), &[grid, threads]);
        let which = self.op(DType::I64, Op::Binary(Binary::Add), &[block, thread]);
        self.own = self.op(DType::I64, Op::Binary(Binary::Mul), &[which, chunk]);
        for s in [0, 1, 2] {
            self.op(DType::I64, Op::Symbol(s), &[]);
        }
        for s in self.scalars.clone() {
            let part = self.caps.vector_bytes / s.bytes() as u16;
            let local = Local { dtype: s.into(), len: part as usize * self.program.threads as usize };
            let used: usize = self.program.locals.iter().map(|l| l.len * l.dtype.bytes()).sum();
            if self.rng.one_in(3) && used + local.len * s.bytes() <= self.caps.local_bytes {
                self.program.locals.push(local);
                self.store_local(self.program.locals.len() - 1, s.vec(part));
            }
        }
    }

    /// Stores what was computed and not used, up to `most` values from `scope[from..]`, the latest first.
    fn store_unused(&mut self, from: usize, most: usize) {
        let used: HashSet<Reg> = self.program.code.iter().flat_map(Inst::uses).collect();
        let unused = self.scope[from..].iter().rev().filter(|r| !used.contains(r));
        let unused: Vec<Reg> = unused.take(most).copied().collect();
        unused.into_iter().for_each(|r| self.store(r));
    }

    fn step(&mut self) {
        self.steps = self.steps.saturating_sub(1);
        match self.rng.below(33) {
            0..3 => self.unary(),
            3..10 => self.binary(),
            10 => self.fma(),
            11..13 => self.choose(),
            13..16 => self.cast(),
            16 => self.bitcast(),
            17..20 => self.shuffle(),
            20..22 => self.fold(),
            22 => self.dot4(),
            23 => self.lookup(),
            24..26 => self.load_input(),
            26 => self.gather(),
            27 => self.load_own(),
            28 => self.use_local(),
            29 => self.special(),
            30..32 => {
                let Some(t) = self.dtype(|_| true) else { return };
                let value = self.pick(t);
                self.store(value);
            }
            _ if self.rounds.len() < MAX_DEPTH => self.repeat(),
            _ => {}
        }
    }

    // Making values.

    fn op(&mut self, t: DType, op: Op, args: &[Reg]) -> Reg {
        let r = self.program.op(t, op, args);
        self.defined(r, ANY)
    }

    /// Notes a new register.
    fn defined(&mut self, r: Reg, interval: Interval) -> Reg {
        self.interval.resize(self.program.regs.len(), ANY);
        // Far from overflow, so that rounding cannot leave the interval either.
        let sure = interval.0 > -1e18 && interval.1 < 1e18;
        self.interval[r.0 as usize] = if sure { interval } else { ANY };
        self.scope.push(r);
        r
    }

    fn of(&self, r: Reg) -> Interval {
        self.interval[r.0 as usize]
    }

    fn all_of(&self, args: &[Reg]) -> Interval {
        let both = |a: Interval, b: Interval| (a.0.min(b.0), a.1.max(b.1));
        args.iter().map(|a| self.of(*a)).reduce(both).unwrap_or(ANY)
    }

    /// A constant for the step's own use: not in scope.
    fn int(&mut self, t: DType, v: i64) -> Reg {
        self.program.op(t, Op::Const(Bits::int(v)), &[])
    }

    fn float(&mut self, lanes: u16, v: f32) -> Reg {
        self.program.op(DType::F32.with_lanes(lanes), Op::Const(Bits::float(v)), &[])
    }

    fn constant(&mut self, t: DType) -> Reg {
        if t.is_float() {
            let v = self.rng.range(-64, 64) as f32 / 8.0;
            let r = self.program.op(t, Op::Const(Bits::float(v)), &[]);
            return self.defined(r, (v as f64, v as f64));
        }
        let (lo, hi) = t.scalar.int_range();
        let small = self.rng.range(-9, 9);
        let v = *self.rng.choose(&[lo, hi, small, small]);
        let v = if self.rng.one_in(4) { self.rng.range(lo, hi) } else { v };
        self.op(t, Op::Const(Bits::int(t.scalar.wrap(v))), &[])
    }

    /// A lane count that keeps `t` within the vector width.
    fn lanes(&mut self, s: Scalar) -> u16 {
        let most = (self.caps.vector_bytes / s.bytes() as u16).max(1);
        1 << self.rng.below(most.ilog2() as usize + 1)
    }

    fn fits(&self, t: DType) -> bool {
        t.lanes == 1 || t.bytes() <= self.caps.vector_bytes as usize
    }

    /// A type that `takes` accepts: each scalar is as likely, and the lanes are often those of a known register.
    fn dtype(&mut self, takes: impl Fn(Scalar) -> bool) -> Option<DType> {
        let all = self.scalars.iter().copied().filter(|s| *s != Scalar::Bool).chain([Scalar::Bool]);
        let scalars: Vec<Scalar> = all.filter(|s| takes(*s)).collect();
        if scalars.is_empty() {
            return None;
        }
        let s = *self.rng.choose(&scalars);
        let known: Vec<DType> =
            self.scope.iter().map(|r| self.program.dtype(*r)).filter(|t| t.scalar == s).collect();
        match known.is_empty() || self.rng.one_in(4) {
            true => Some(s.vec(self.lanes(s))),
            false => Some(*self.rng.choose(&known)),
        }
    }

    fn known(&self, t: DType) -> Vec<Reg> {
        self.scope.iter().copied().filter(|r| self.program.dtype(*r) == t).collect()
    }

    /// A register of type `t`, rather a late one; a new one if there is none.
    fn pick(&mut self, t: DType) -> Reg {
        let known = self.known(t);
        if !known.is_empty() && !self.rng.one_in(8) {
            return known[self.rng.below(known.len()).max(self.rng.below(known.len()))];
        }
        let compared = DType::I32.with_lanes(t.lanes);
        match self.input(t.scalar) {
            Some(mem) if !self.rng.one_in(3) => self.load(t, mem, false),
            None if t.scalar == Scalar::Bool && self.fits(compared) => {
                let args = [self.pick(compared), self.pick(compared)];
                self.op(t, Op::Binary(Binary::Lt), &args)
            }
            _ => self.constant(t),
        }
    }

    /// `x` (f32), but a constant instead of what is outside [lo, hi].
    fn tame(&mut self, x: Reg, lo: f32, hi: f32) -> Reg {
        let (a, b) = self.of(x);
        if a >= lo as f64 && b <= hi as f64 {
            return x;
        }
        let t = self.program.dtype(x);
        let flag = DType::BOOL.with_lanes(t.lanes);
        let (low, high) = (self.float(t.lanes, lo), self.float(t.lanes, hi));
        let above = self.program.op(flag, Op::Binary(Binary::Le), &[low, x]);
        let below = self.program.op(flag, Op::Binary(Binary::Le), &[x, high]);
        let inside = self.op(flag, Op::Binary(Binary::And), &[above, below]);
        let r = self.program.op(t, Op::Where, &[inside, x, low]);
        self.defined(r, (lo as f64, hi as f64))
    }

    /// f32 whose sums are exact in any order.
    fn small_ints(&mut self, lanes: u16) -> Reg {
        let t = DType::I32.with_lanes(lanes);
        let (x, mask) = (self.pick(t), self.int(t, 127));
        let small = self.op(t, Op::Binary(Binary::And), &[x, mask]);
        let r = self.program.op(DType::F32.with_lanes(lanes), Op::Cast, &[small]);
        self.defined(r, (0.0, 127.0))
    }

    // One operation each.

    fn unary(&mut self) {
        use Unary::*;
        let op = *self.rng.choose(&[Neg, Not, Sqrt, Recip, Floor, Ceil, Trunc, Round]);
        let Some(t) = self.dtype(|s| op.takes(s)) else { return };
        let a = self.pick(t);
        let (lo, hi) = self.of(a);
        let interval = match op {
            Neg => (-hi, -lo),
            Sqrt if lo >= 0.0 => (0.0, hi.max(1.0)),
            Floor | Ceil | Trunc | Round => (lo.floor(), hi.ceil()),
            _ => ANY,
        };
        let r = self.program.op(t, Op::Unary(op), &[a]);
        self.defined(r, interval);
    }

    fn binary(&mut self) {
        let op = *self.rng.choose(&Binary::ALL);
        let Some(t) = self.dtype(|s| op.takes(s)) else { return };
        let (mut a, mut b) = (self.pick(t), self.pick(t));
        if t.is_float() && matches!(op, Binary::Max | Binary::Min) {
            (a, b) = (self.tame(a, -1e6, 1e6), self.tame(b, -1e6, 1e6));
        }
        let ((alo, ahi), (blo, bhi)) = (self.of(a), self.of(b));
        let interval = match op {
            Binary::Add => (alo + blo, ahi + bhi),
            Binary::Sub => (alo - bhi, ahi - blo),
            Binary::Mul => product((alo, ahi), (blo, bhi)),
            Binary::Max => (alo.max(blo), ahi.max(bhi)),
            Binary::Min => (alo.min(blo), ahi.min(bhi)),
            _ => ANY,
        };
        let out = if op.is_compare() { DType::BOOL.with_lanes(t.lanes) } else { t };
        let r = self.program.op(out, Op::Binary(op), &[a, b]);
        match op {
            Binary::Max | Binary::Min if t.is_float() => self.unsigned_zero(r, interval),
            _ => self.defined(r, interval),
        };
    }

    /// `r + 0`, which makes -0 into 0: which of the two `Max` and `Min` give is the target's.
    fn unsigned_zero(&mut self, r: Reg, interval: Interval) -> Reg {
        let t = self.program.dtype(r);
        let zero = self.float(t.lanes, 0.0);
        let sum = self.program.op(t, Op::Binary(Binary::Add), &[r, zero]);
        self.defined(sum, interval)
    }

    fn fma(&mut self) {
        let Some(t) = self.dtype(|s| s == Scalar::F32) else { return };
        let (a, b, c) = (self.pick(t), self.pick(t), self.pick(t));
        let (ab, c_) = (product(self.of(a), self.of(b)), self.of(c));
        let r = self.program.op(t, Op::Fma, &[a, b, c]);
        self.defined(r, (ab.0 + c_.0, ab.1 + c_.1));
    }

    fn choose(&mut self) {
        let Some(t) = self.dtype(|_| true) else { return };
        let (cond, a, b) = (self.pick(DType::BOOL.with_lanes(t.lanes)), self.pick(t), self.pick(t));
        let ((alo, ahi), (blo, bhi)) = (self.of(a), self.of(b));
        let r = self.program.op(t, Op::Where, &[cond, a, b]);
        self.defined(r, (alo.min(blo), ahi.max(bhi)));
    }

    fn cast(&mut self) {
        let mut to = *self.rng.choose(&self.scalars);
        let Some(from) = self.dtype(|_| true) else { return };
        if !self.fits(to.vec(from.lanes)) {
            to = from.scalar;
        }
        let mut a = self.pick(from);
        if from.is_float() && to.is_int() {
            let (lo, hi) = to.int_range();
            // Both bounds are exact in every float type.
            let (lo, hi) = (lo.max(-1024) as f32, hi.min(1024) as f32);
            a = match from.scalar {
                Scalar::F32 => self.tame(a, lo, hi),
                _ if !self.fits(DType::F32.with_lanes(from.lanes)) => return,
                _ => {
                    let wide = self.op(DType::F32.with_lanes(from.lanes), Op::Cast, &[a]);
                    let wide = self.tame(wide, lo, hi);
                    self.op(from, Op::Cast, &[wide])
                }
            };
        }
        let source = match from.scalar.int_range() {
            _ if from.is_float() => self.of(a),
            (lo, hi) => (lo as f64, hi as f64),
        };
        let overflows = to == Scalar::F16 && (source.0 < -60000.0 || source.1 > 60000.0);
        // Rounding to the narrow types may go up by at most one part in 128.
        let interval = match to.is_float() && !overflows {
            true => (source.0 - source.0.abs() / 100.0, source.1 + source.1.abs() / 100.0),
            false => ANY,
        };
        let r = self.program.op(to.vec(from.lanes), Op::Cast, &[a]);
        self.defined(r, interval);
    }

    fn bitcast(&mut self) {
        let Some(from) = self.dtype(|s| s != Scalar::Bool) else { return };
        let same = |s: &Scalar| s.bytes() == from.scalar.bytes() && *s != Scalar::Bool;
        let scalars: Vec<Scalar> = self.scalars.iter().copied().filter(same).collect();
        if scalars.is_empty() {
            return;
        }
        let to = *self.rng.choose(&scalars);
        let mut a = self.pick(from);
        if from.scalar == Scalar::F32 {
            a = self.tame(a, -1e30, 1e30);
        } else if from.is_float() && self.of(a) == ANY {
            return;
        }
        self.op(to.vec(from.lanes), Op::Bitcast, &[a]);
    }

    fn shuffle(&mut self) {
        let Some(t) = self.dtype(|_| true) else { return };
        let lanes = self.lanes(t.scalar);
        let out = t.with_lanes(lanes);
        let (op, args) = match self.rng.below(5) {
            0 if lanes >= t.lanes => (Op::Spread, vec![self.pick(t)]),
            1 if lanes >= t.lanes => (Op::Repeat, vec![self.pick(t)]),
            2 if lanes <= t.lanes => {
                let first = self.rng.below((t.lanes - lanes) as usize + 1) as u16;
                (Op::Slice(first), vec![self.pick(t)])
            }
            3 if lanes <= 16 => (Op::Stack, (0..lanes).map(|_| self.pick(t.with_lanes(1))).collect()),
            _ => {
                let lane = self.rng.below(t.lanes as usize) as u16;
                let a = self.pick(t);
                let r = self.program.op(t.with_lanes(1), Op::Extract(lane), &[a]);
                self.defined(r, self.of(a));
                return;
            }
        };
        let r = self.program.op(out, op, &args);
        self.defined(r, self.all_of(&args));
    }

    /// An operand that any order of folding gives the same result for.
    fn folded(&mut self, fold: Fold, t: DType) -> Reg {
        match (fold, t.is_float()) {
            (Fold::Sum, true) => self.small_ints(t.lanes),
            (_, true) => {
                let a = self.pick(t);
                self.tame(a, -1e6, 1e6)
            }
            (_, false) => self.pick(t),
        }
    }

    /// Notes the result of folding these.
    fn fold_result(&mut self, r: Reg, fold: Fold, args: &[Reg]) {
        let is_float = self.program.dtype(r).is_float();
        match fold {
            Fold::Max | Fold::Min if is_float => self.unsigned_zero(r, self.all_of(args)),
            _ => self.defined(r, ANY),
        };
    }

    fn fold(&mut self) {
        let fold = *self.rng.choose(&Fold::ALL);
        let Some(t) = self.dtype(|s| fold.binary().takes(s)) else { return };
        let n = *self.rng.choose(&[1, 1, 2, 4, 8, 16]);
        let n = if n * t.scalar.bytes() <= self.caps.vector_bytes as usize { n } else { 1 };
        let args: Vec<Reg> = (0..n).map(|_| self.folded(fold, t)).collect();
        let r = self.program.op(t.with_lanes(n as u16), Op::Fold(fold), &args);
        self.fold_result(r, fold, &args);
    }

    fn dot4(&mut self) {
        if !self.caps.dot4 || self.caps.vector_bytes < 4 {
            return;
        }
        let lanes = self.lanes(Scalar::I32);
        let (acc, wide) = (DType::I32.with_lanes(lanes), 4 * lanes);
        let args = [self.pick(acc), self.pick(Scalar::U8.vec(wide)), self.pick(Scalar::I8.vec(wide))];
        self.op(acc, Op::Dot4, &args);
    }

    fn lookup(&mut self) {
        let lanes = self.lanes(Scalar::U8);
        let table = (self.rng.bits() as u128) << 64 | self.rng.bits() as u128;
        let a = self.pick(Scalar::U8.vec(lanes));
        let out = *self.rng.choose(&[Scalar::U8, Scalar::I8]);
        self.op(out.vec(lanes), Op::Lookup(table), &[a]);
    }

    fn repeat(&mut self) {
        let uniform = self.rng.one_in(2);
        let extent = match self.rng.below(3) {
            _ if !uniform => self.below(DType::I64, MAX_ROUNDS + 1),
            0 => self.program.op(DType::I64, Op::Symbol(0), &[]),
            _ => {
                let rounds = self.rng.range(0, MAX_ROUNDS);
                self.int(DType::I64, rounds)
            }
        };
        let mut carried = vec![];
        for _ in 0..self.rng.below(4) {
            let Some(t) = self.dtype(|_| true) else { continue };
            let (init, phi) = (self.pick(t), self.program.reg(t));
            carried.push((phi, init));
        }
        let phis: Vec<Reg> = carried.iter().map(|c| c.0).collect();
        let var = self.program.reg(DType::I64);
        self.program.code.push(Inst::Loop { var, extent, carried });

        let (outside, diverged) = (self.scope.len(), self.diverged);
        self.diverged |= !uniform && self.program.threads > 1;
        self.rounds.push(var);
        [var].iter().chain(&phis).for_each(|r| {
            self.defined(*r, ANY);
        });
        for _ in 0..(3 + self.rng.below(12)).min(self.steps) {
            self.step();
        }
        self.store_unused(outside, 3);
        let next: Vec<Reg> = phis.iter().map(|r| self.pick(self.program.dtype(*r))).collect();
        self.rounds.pop();
        self.diverged = diverged;
        self.scope.truncate(outside);

        let out: Vec<Reg> = phis.iter().map(|r| self.program.reg(self.program.dtype(*r))).collect();
        self.program.code.push(Inst::End { next, out: out.clone() });
        out.into_iter().for_each(|r| {
            self.defined(r, ANY);
        });
    }
}

fn product(a: Interval, b: Interval) -> Interval {
    let corners = [a.0 * b.0, a.0 * b.1, a.1 * b.0, a.1 * b.1];
    match corners.iter().any(|c| c.is_nan()) {
        true => ANY,
        false => (
            corners.into_iter().fold(f64::INFINITY, f64::min),
            corners.into_iter().fold(f64::NEG_INFINITY, f64::max),
        ),
    }
}
