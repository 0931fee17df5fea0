//! Programs that between them use every operation on every type, with data: what every code generator is tested with.
//!
//! In: how many threads a block has (1 for a CPU). Out: cases whose result the interpreter defines. No case depends on
//! what `scalar` leaves unspecified, so outputs agree bit for bit unless the case states a bound.

mod programs;

use crate::dtype::{Bits, DType, Scalar};
use crate::linear::{Count, Inst, Linear, Mem, Op, Reg};
use crate::rng::Rng;
use crate::scalar::{Binary, Fold, Unary};
pub use programs::Q4_0_MATVEC;

pub struct Case {
    pub program: Linear,
    /// What the buffers hold before.
    pub buffers: Vec<Vec<u8>>,
    pub symbols: Vec<i64>,
    /// How far an f32 may be from the interpreter's, relative to 1 or its magnitude, whichever is more.
    pub bound: f32,
}

impl Case {
    /// Whether what a target computed agrees with the interpreter; if not, where it first differs.
    pub fn compare(&self, want: &[Vec<u8>], got: &[Vec<u8>]) -> Result<(), String> {
        for (i, (t, _)) in self.program.buffers.iter().enumerate() {
            let elements = |b: &[Vec<u8>]| -> Vec<Bits> {
                b[i].chunks(t.bytes()).map(|c| Bits::read(t.scalar, c)).collect()
            };
            for (at, (w, g)) in elements(want).into_iter().zip(elements(got)).enumerate() {
                if !self.agree(t.scalar, w, g) {
                    return Err(format!("g{i}[{at}] is {}, not {}", g.show(t.scalar), w.show(t.scalar)));
                }
            }
        }
        Ok(())
    }

    fn agree(&self, s: Scalar, want: Bits, got: Bits) -> bool {
        let (w, g) = (want.as_float(), got.as_float());
        want == got
            || s.is_float() && (w.is_nan() && g.is_nan() || (w - g).abs() <= self.bound * w.abs().max(1.0))
    }
}

/// Grid indices of every elementwise case.
const GRID: i64 = 3;
const LANES: [u16; 5] = [1, 2, 3, 4, 16];

/// Which values an input is drawn from.
#[derive(Clone, Copy)]
enum Draw {
    /// Any integer, with the extremes often; floats around zero.
    Any,
    Between(f32, f32),
}

/// Where an operation's operands come from: code generators treat each kind in a way of its own.
#[derive(Clone, Copy)]
enum Source {
    Memory,
    Constant,
    /// i64 scalars are computed from the thread's number and so have a small known range; the rest is loaded.
    Index,
}

/// The cases for blocks of `threads` threads.
pub fn all(threads: u32) -> Vec<Case> {
    let mut c = Cases { threads, rng: Rng::new(1), all: vec![] };
    c.unary();
    c.binary();
    c.casts();
    c.lanes();
    c.products();
    c.indices();
    c.memory();
    c.loops();
    if threads > 1 {
        c.cooperation();
    }
    c.all
}

struct Cases {
    threads: u32,
    rng: Rng,
    all: Vec<Case>,
}

impl Cases {
    fn draw(&mut self, s: Scalar, draw: Draw) -> Bits {
        let (lo, hi) = s.int_range();
        match draw {
            Draw::Between(lo, hi) if s.is_float() => {
                Bits::float(s.round(lo + (hi - lo) * (self.rng.f32() + 1.0) / 2.0))
            }
            Draw::Between(lo, hi) => Bits::int(self.rng.range(lo as i64, hi as i64)),
            Draw::Any if s.is_float() && self.rng.one_in(8) => Bits::float(0.0),
            Draw::Any if s.is_float() => Bits::float(s.round(self.rng.normal() * 4.0)),
            Draw::Any if self.rng.one_in(3) => {
                Bits::int(s.wrap(*self.rng.choose(&[lo, hi, 0, 1, hi / 2 + 1, lo + 1])))
            }
            Draw::Any => Bits::int(s.wrap(self.rng.bits() as i64)),
        }
    }
    fn data(&mut self, s: Scalar, len: usize, draw: Draw) -> Vec<u8> {
        let mut bytes = vec![0; len * s.bytes()];
        for element in bytes.chunks_mut(s.bytes()) {
            self.draw(s, draw).write(s, element);
        }
        bytes
    }

    /// Every thread applies `body` to vectors of its own from each input and stores what it gives.
    fn elementwise(
        &mut self,
        name: String,
        inputs: &[(DType, Draw)],
        bound: f32,
        body: impl Fn(&mut Linear, &[Reg]) -> Reg,
    ) {
        self.apply(format!("{name}_loaded"), inputs, Source::Memory, bound, &body);
        if inputs.iter().all(|(t, _)| matches!(t.lanes, 1 | 4 | 16)) {
            self.apply(format!("{name}_constant"), inputs, Source::Constant, bound, &body);
        }
        if inputs.iter().any(|(t, _)| *t == DType::I64) {
            self.apply(format!("{name}_computed"), inputs, Source::Index, bound, &body);
        }
    }

    fn apply(
        &mut self,
        name: String,
        inputs: &[(DType, Draw)],
        source: Source,
        bound: f32,
        body: &dyn Fn(&mut Linear, &[Reg]) -> Reg,
    ) {
        let mut p = empty(name.to_lowercase(), self.threads);
        let me = me(&mut p);
        let many = GRID as usize * self.threads as usize;
        let (mut args, mut buffers) = (vec![], vec![]);
        for (t, draw) in inputs {
            args.push(match source {
                Source::Constant => {
                    let value = self.draw(t.scalar, *draw);
                    p.op(*t, Op::Const(value), &[])
                }
                Source::Index if *t == DType::I64 => {
                    let origin = int(&mut p, 40 + args.len() as i64);
                    p.op(DType::I64, Op::Binary(Binary::Sub), &[me, origin])
                }
                _ => {
                    p.buffers.push((t.with_lanes(1), false));
                    buffers.push(self.data(t.scalar, many * t.lanes as usize, *draw));
                    let index = scaled(&mut p, me, t.lanes);
                    load(&mut p, *t, Mem::Global(buffers.len() as u32 - 1), index, 0)
                }
            });
        }
        let value = body(&mut p, &args);
        let t = p.dtype(value);
        p.buffers.push((t.with_lanes(1), true));
        let mem = Mem::Global(buffers.len() as u32);
        buffers.push(vec![0; many * t.bytes()]);
        let index = scaled(&mut p, me, t.lanes);
        p.code.push(Inst::Store { mem, index, offset: 0, value, gate: None });
        self.all.push(Case { program: p, buffers, symbols: vec![], bound });
    }

    fn unary(&mut self) {
        for op in Unary::ALL {
            for s in Scalar::ALL.into_iter().filter(|s| op.takes(*s)) {
                let (draw, bound) = match op {
                    Unary::Exp2 => (Draw::Between(-20.0, 20.0), 4e-7),
                    Unary::Log2 => (Draw::Between(1e-3, 100.0), 4e-7),
                    Unary::Sin => (Draw::Between(-1000.0, 1000.0), 2e-6),
                    Unary::Sqrt => (Draw::Between(0.0, 100.0), 0.0),
                    _ => (Draw::Any, 0.0),
                };
                for t in LANES.map(|n| s.vec(n)) {
                    let body = |p: &mut Linear, x: &[Reg]| p.op(t, Op::Unary(op), x);
                    self.elementwise(format!("{op:?}_{t}"), &[(t, draw)], bound, body);
                }
            }
        }
    }

    fn binary(&mut self) {
        for op in Binary::ALL {
            for s in Scalar::ALL.into_iter().filter(|s| op.takes(*s)) {
                for t in LANES.map(|n| s.vec(n)) {
                    let out = if op.is_compare() { Scalar::Bool.vec(t.lanes) } else { t };
                    let inputs = [(t, Draw::Any), (t, Draw::Any)];
                    let body = |p: &mut Linear, x: &[Reg]| p.op(out, Op::Binary(op), x);
                    self.elementwise(format!("{op:?}_{t}"), &inputs, 0.0, body);
                    for c in [0, 1, 3, 4, 7, -5].iter().filter(|_| s.is_int() && matches!(t.lanes, 1 | 3 | 4))
                    {
                        let bits = Bits::int(s.wrap(*c));
                        let body = |p: &mut Linear, x: &[Reg]| {
                            let c = p.op(t, Op::Const(bits), &[]);
                            p.op(out, Op::Binary(op), &[x[0], c])
                        };
                        let sign = if *c < 0 { "m" } else { "" };
                        self.elementwise(format!("{op:?}_{t}_by_{sign}{}", c.abs()), &inputs[..1], 0.0, body);
                    }
                }
            }
        }
    }

    fn casts(&mut self) {
        for from in Scalar::ALL {
            for to in Scalar::ALL {
                let draw = if from.is_float() && to.is_int() { Draw::Between(0.0, 100.0) } else { Draw::Any };
                for (a, b) in LANES.map(|n| (from.vec(n), to.vec(n))) {
                    let body = |p: &mut Linear, x: &[Reg]| p.op(b, Op::Cast, x);
                    self.elementwise(format!("cast_{a}_{b}"), &[(a, draw)], 0.0, body);
                    if from.bytes() == to.bytes() && from != Scalar::Bool && to != Scalar::Bool {
                        // Any bits are a value of any of these types, but a NaN need not keep its payload.
                        let draw = if to.is_float() { Draw::Between(1.0, 9.0) } else { Draw::Any };
                        let body = |p: &mut Linear, x: &[Reg]| p.op(b, Op::Bitcast, x);
                        self.elementwise(format!("bitcast_{a}_{b}"), &[(a, draw)], 0.0, body);
                    }
                }
            }
        }
    }

    fn lanes(&mut self) {
        for s in Scalar::ALL {
            for t in LANES.map(|n| s.vec(n)) {
                let any = (t, Draw::Any);
                let c = Scalar::Bool.vec(t.lanes);
                self.elementwise(format!("where_{t}"), &[(c, Draw::Any), any, any], 0.0, |p, x| {
                    p.op(t, Op::Where, x)
                });
                for times in [2, 3] {
                    let wide = s.vec(t.lanes * times);
                    self.elementwise(format!("spread_{t}_{times}"), &[any], 0.0, |p, x| {
                        p.op(wide, Op::Spread, x)
                    });
                    self.elementwise(format!("repeat_{t}_{times}"), &[any], 0.0, |p, x| {
                        p.op(wide, Op::Repeat, x)
                    });
                }
                for lane in [0, t.lanes / 2, t.lanes - 1] {
                    self.elementwise(format!("extract_{t}_{lane}"), &[any], 0.0, |p, x| {
                        p.op(s.into(), Op::Extract(lane), x)
                    });
                    let rest = s.vec(t.lanes - lane);
                    self.elementwise(format!("slice_{t}_{lane}"), &[any], 0.0, |p, x| {
                        p.op(rest, Op::Slice(lane), x)
                    });
                }
                let scalars = vec![(DType::from(s), Draw::Any); t.lanes as usize];
                self.elementwise(format!("stack_{t}"), &scalars, 0.0, |p, x| p.op(t, Op::Stack, x));
                for fold in [Fold::Sum, Fold::Max, Fold::Min].into_iter().filter(|f| f.binary().takes(s)) {
                    // The order of a float sum is open.
                    let bound = if s.is_float() { 1e-5 } else { 0.0 };
                    for n in [1, 2, 3, 4, 8, 16].into_iter().filter(|n| n * s.bytes() <= 64) {
                        self.elementwise(format!("fold{fold:?}_{t}_{n}"), &vec![any; n], bound, |p, x| {
                            p.op(s.vec(n as u16), Op::Fold(fold), x)
                        });
                    }
                }
            }
        }
        for t in LANES.map(|n| Scalar::I32.vec(n)) {
            self.elementwise(format!("iota_{t}"), &[(t, Draw::Any)], 0.0, |p, x| {
                let iota = p.op(t, Op::Iota, &[]);
                p.op(t, Op::Binary(Binary::Add), &[x[0], iota])
            });
        }
    }

    fn products(&mut self) {
        for n in LANES {
            let f = Scalar::F32.vec(n);
            self.elementwise(format!("fma_{f}"), &[(f, Draw::Any); 3], 0.0, |p, x| p.op(f, Op::Fma, x));
            let (acc, a, b) = (Scalar::I32.vec(n), Scalar::U8.vec(4 * n), Scalar::I8.vec(4 * n));
            let inputs = [(acc, Draw::Any), (a, Draw::Any), (b, Draw::Any)];
            self.elementwise(format!("dot4_{acc}"), &inputs, 0.0, |p, x| p.op(acc, Op::Dot4, x));
            for to in [Scalar::I8, Scalar::U8] {
                let table = Op::Lookup(0x7059_4132_2719_0d02_f6ea_dccc_bfad_9881);
                let (x, y) = (Scalar::U8.vec(n), to.vec(n));
                self.elementwise(format!("lookup_{y}"), &[(x, Draw::Any)], 0.0, |p, x| p.op(y, table, x));
            }
            // Shift and mask of a nibble: the two masks may become one.
            let bytes = Scalar::U8.vec(n);
            self.elementwise(format!("nibble_{bytes}"), &[(bytes, Draw::Any)], 0.0, |p, x| {
                let four = p.op(bytes, Op::Const(Bits::int(4)), &[]);
                let mask = p.op(bytes, Op::Const(Bits::int(0x35)), &[]);
                let high = p.op(bytes, Op::Binary(Binary::Shr), &[x[0], four]);
                let low = p.op(bytes, Op::Binary(Binary::Shl), &[x[0], four]);
                let high = p.op(bytes, Op::Binary(Binary::And), &[mask, high]);
                let low = p.op(bytes, Op::Binary(Binary::And), &[low, mask]);
                p.op(bytes, Op::Binary(Binary::Xor), &[high, low])
            });
        }
    }

    /// i64 arithmetic on values of known small range, where a target may use fewer bits.
    fn indices(&mut self) {
        let i64_binary = |op: Binary| Binary::takes(op, Scalar::I64);
        for op in Binary::ALL.into_iter().filter(|op| i64_binary(*op)) {
            let out = if op.is_compare() { DType::BOOL } else { DType::I64 };
            for (a, b) in [
                (DType::I32, DType::I32),
                (DType::U32, DType::U8),
                (DType::I16, DType::U16),
                (DType::I64, DType::I8),
            ] {
                self.elementwise(
                    format!("index_{op:?}_{a}_{b}"),
                    &[(a, Draw::Any), (b, Draw::Any)],
                    0.0,
                    |p, x| {
                        let [x, y] = [x[0], x[1]].map(|r| p.op(DType::I64, Op::Cast, &[r]));
                        p.op(out, Op::Binary(op), &[x, y])
                    },
                );
            }
            for (t, c) in [
                (DType::U16, 40),
                (DType::I32, 12),
                (DType::I32, 1 << 33),
                (DType::U8, 3),
                (DType::U32, 1000),
                (DType::I64, 1000),
            ] {
                self.elementwise(format!("index_{op:?}_{t}_by_{c}"), &[(t, Draw::Any)], 0.0, |p, x| {
                    let x = p.op(DType::I64, Op::Cast, x);
                    let c = p.op(DType::I64, Op::Const(Bits::int(c)), &[]);
                    p.op(out, Op::Binary(op), &[x, c])
                });
            }
        }
    }
}

fn empty(name: String, threads: u32) -> Linear {
    let (buffers, symbols, locals, code, regs) = (vec![], vec![], vec![], vec![], vec![]);
    Linear { name, grid: Count::Const(GRID), buffers, symbols, locals, threads, code, regs }
}

fn int(p: &mut Linear, v: i64) -> Reg {
    p.op(DType::I64, Op::Const(Bits::int(v)), &[])
}

/// The number of this thread in the whole grid.
fn me(p: &mut Linear) -> Reg {
    let (grid, thread) = (p.op(DType::I64, Op::Grid, &[]), p.op(DType::I64, Op::Thread, &[]));
    let threads = int(p, p.threads as i64);
    let first = p.op(DType::I64, Op::Binary(Binary::Mul), &[grid, threads]);
    p.op(DType::I64, Op::Binary(Binary::Add), &[first, thread])
}

fn scaled(p: &mut Linear, index: Reg, lanes: u16) -> Reg {
    let lanes = int(p, lanes as i64);
    p.op(DType::I64, Op::Binary(Binary::Mul), &[index, lanes])
}

fn load(p: &mut Linear, t: DType, mem: Mem, index: Reg, offset: i64) -> Reg {
    let dst = p.reg(t);
    p.code.push(Inst::Load { dst, mem, index, offset, gate: None });
    dst
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interp;

    #[test]
    fn every_case_is_defined_for_a_cpu_too() {
        for mut case in all(1) {
            interp::linear::run(&case.program, &mut case.buffers, &case.symbols);
        }
    }
}
