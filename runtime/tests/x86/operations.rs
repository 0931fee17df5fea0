//! Every operation on every type and lane count, one program for each operation and type.

use crate::run::{check, targets};
use compiler::codegen::Target;
use compiler::dtype::{Bits, DType, Scalar};
use compiler::linear::{Count, Inst, Linear, Mem, Op, Reg};
use compiler::rng::Rng;
use compiler::scalar::{self, Binary, Fold, Unary};

/// Elements of every buffer, and of a part of it that one vector is taken from in four rounds.
const LEN: i64 = 256;
const ROUNDS: i64 = 4;

/// A program under construction and the contents of its buffers.
struct Test {
    program: Linear,
    buffers: Vec<Vec<u8>>,
    /// Index of the round's first element, for 1, 2, 4, .. 64 lanes.
    starts: Vec<Reg>,
}

impl Test {
    fn new(name: &str) -> Test {
        let program = Linear {
            name: name.into(),
            grid: Count::Const(1),
            buffers: vec![],
            symbols: vec![],
            locals: vec![],
            threads: 1,
            code: vec![],
            regs: vec![],
        };
        let mut t = Test { program, buffers: vec![], starts: vec![] };
        let rounds = t.int(ROUNDS);
        let var = t.program.reg(DType::I64);
        t.program.code.push(Inst::Loop { var, extent: rounds, carried: vec![] });
        for lanes in [1, 2, 4, 8, 16, 32, 64] {
            let n = t.int(lanes);
            let start = t.op(DType::I64, Op::Binary(Binary::Mul), &[var, n]);
            t.starts.push(start);
        }
        t
    }
    fn op(&mut self, t: DType, op: Op, args: &[Reg]) -> Reg {
        self.program.op(t, op, args)
    }
    fn int(&mut self, v: i64) -> Reg {
        self.op(DType::I64, Op::Const(Bits::int(v)), &[])
    }
    fn input(&mut self, s: Scalar, values: impl FnMut() -> Bits) -> Mem {
        let mut values = values;
        let mut bytes = vec![0; LEN as usize * s.bytes()];
        bytes.chunks_exact_mut(s.bytes()).for_each(|b| values().write(s, b));
        self.program.buffers.push((s.into(), false));
        self.buffers.push(bytes);
        Mem::Global(self.buffers.len() as u32 - 1)
    }
    fn load(&mut self, t: DType, mem: Mem) -> Reg {
        self.load_if(t, mem, None)
    }
    fn load_if(&mut self, t: DType, mem: Mem, gate: Option<Reg>) -> Reg {
        let dst = self.program.reg(t);
        let index = self.starts[t.lanes.ilog2() as usize];
        self.program.code.push(Inst::Load { dst, mem, index, offset: 0, gate });
        dst
    }
    /// Stores to a buffer of its own.
    fn store(&mut self, value: Reg) {
        self.store_if(value, None);
    }
    fn store_if(&mut self, value: Reg, gate: Option<Reg>) {
        let t = self.program.dtype(value);
        self.program.buffers.push((t.scalar.into(), true));
        self.buffers.push(vec![0; ROUNDS as usize * t.bytes()]);
        let mem = Mem::Global(self.buffers.len() as u32 - 1);
        let index = self.starts[t.lanes.ilog2() as usize];
        self.program.code.push(Inst::Store { mem, index, offset: 0, value, gate });
    }
    fn check(mut self, target: &dyn Target) {
        self.program.code.push(Inst::End { next: vec![], out: vec![] });
        check(target, &self.program, &self.buffers, &[]);
    }
}

/// Lane counts that fit the target for elements of so many bytes.
fn lanes(target: &dyn Target, bytes: usize) -> impl Iterator<Item = u16> + use<> {
    let most = target.caps().vector_bytes as usize / bytes;
    [1, 2, 4, 8, 16, 32, 64].into_iter().filter(move |l| *l as usize <= most)
}

/// Any value of a type, the extreme ones often; floats without NaN and -0.
fn any(rng: &mut Rng, s: Scalar) -> Bits {
    const FLOATS: [f32; 12] =
        [0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 1e-41, 3.4e38, -3.4e38, f32::INFINITY, f32::NEG_INFINITY];
    let (lo, hi) = s.int_range();
    match (s.is_float(), rng.below(3)) {
        (false, 0) => Bits::int(*rng.choose(&[lo, lo + 1, hi - 1, hi, s.wrap(-1), 0, 1, s.wrap(2)])),
        (false, _) => Bits::int(s.wrap(rng.bits() as i64)),
        (true, 0) => Bits::float(s.round(*rng.choose(&FLOATS))),
        (true, _) => Bits::float(s.round(rng.normal() * (rng.range(-8, 8) as f32).exp2())),
    }
}

fn each(mut f: impl FnMut(&dyn Target, &mut Rng)) {
    for target in targets() {
        f(&target, &mut Rng::new(7));
    }
}

#[test]
fn unary() {
    each(|target, rng| {
        for op in Unary::ALL.into_iter().filter(|u| !matches!(u, Unary::Exp2 | Unary::Log2 | Unary::Sin)) {
            for s in Scalar::ALL.into_iter().filter(|s| op.takes(*s)) {
                let mut t = Test::new(&format!("{op:?}_{s}"));
                let x = t.input(s, || any(rng, s));
                for n in lanes(target, s.bytes()) {
                    let v = t.load(s.vec(n), x);
                    let r = t.op(s.vec(n), Op::Unary(op), &[v]);
                    t.store(r);
                }
                t.check(target);
            }
        }
    });
}

#[test]
fn binary() {
    each(|target, rng| {
        for op in Binary::ALL {
            for s in Scalar::ALL.into_iter().filter(|s| op.takes(*s)) {
                let mut t = Test::new(&format!("{op:?}_{s}"));
                let (x, y) = (t.input(s, || any(rng, s)), t.input(s, || any(rng, s)));
                for n in lanes(target, s.bytes()) {
                    let to = if op.is_compare() { Scalar::Bool.vec(n) } else { s.vec(n) };
                    let (a, b) = (t.load(s.vec(n), x), t.load(s.vec(n), y));
                    // The second time both are in registers.
                    for _ in 0..2 {
                        let r = t.op(to, Op::Binary(op), &[a, b]);
                        t.store(r);
                    }
                    let same = t.op(to, Op::Binary(op), &[a, a]);
                    t.store(same);
                }
                t.check(target);
            }
        }
    });
}

#[test]
fn binary_with_constants() {
    each(|target, rng| {
        for op in Binary::ALL {
            for s in Scalar::ALL.into_iter().filter(|s| op.takes(*s)) {
                let constants: Vec<Bits> = match op {
                    Binary::Shl | Binary::Shr => {
                        (0..=s.bits() as i64).map(|v| Bits::int(s.wrap(v))).collect()
                    }
                    _ if s.is_int() => [0, 1, 2, 3, 8, 12, 64, -1, -4, i64::MIN, 1 << 40, rng.bits() as i64]
                        .map(|v| Bits::int(s.wrap(v)))
                        .into(),
                    _ => (0..4).map(|_| any(rng, s)).collect(),
                };
                let mut t = Test::new(&format!("{op:?}_{s}"));
                let x = t.input(s, || any(rng, s));
                for n in lanes(target, s.bytes()) {
                    let to = if op.is_compare() { Scalar::Bool.vec(n) } else { s.vec(n) };
                    for c in &constants {
                        let a = t.load(s.vec(n), x);
                        let c = t.op(s.vec(n), Op::Const(*c), &[]);
                        let right = t.op(to, Op::Binary(op), &[a, c]);
                        t.store(right);
                        let left = t.op(to, Op::Binary(op), &[c, a]);
                        t.store(left);
                    }
                }
                t.check(target);
            }
        }
    });
}

/// All lanes by one scalar, which is computed and not in its type's range before it is cut.
#[test]
fn uniform_shifts() {
    each(|target, rng| {
        for op in [Binary::Shl, Binary::Shr] {
            for s in Scalar::ALL.into_iter().filter(|s| s.is_int()) {
                let mut t = Test::new(&format!("uniform_{op:?}_{s}"));
                let (x, by) = (t.input(s, || any(rng, s)), t.input(s, || any(rng, s)));
                for n in lanes(target, s.bytes()) {
                    for how in [Op::Spread, Op::Repeat] {
                        let (v, count) = (t.load(s.vec(n), x), t.load(s.into(), by));
                        let count = t.op(s.into(), Op::Binary(Binary::Add), &[count, count]);
                        let count = t.op(s.vec(n), how, &[count]);
                        let r = t.op(s.vec(n), Op::Binary(op), &[v, count]);
                        t.store(r);
                    }
                }
                t.check(target);
            }
        }
    });
}

/// A byte shift and the mask after it are one operation.
#[test]
fn masked_shifts() {
    each(|target, rng| {
        for s in [Scalar::U8, Scalar::I8] {
            let mut t = Test::new(&format!("masked_shift_{s}"));
            let x = t.input(s, || any(rng, s));
            for n in lanes(target, 1) {
                for (op, by, mask) in [
                    (Binary::Shr, 4, 15),
                    (Binary::Shr, 2, 0xff),
                    (Binary::Shl, 4, 0x30),
                    (Binary::Shl, 0, 3),
                    (Binary::Shr, 9, 0x7f),
                ] {
                    let v = t.load(s.vec(n), x);
                    let by = t.op(s.vec(n), Op::Const(Bits::int(by)), &[]);
                    let mask = t.op(s.vec(n), Op::Const(Bits::int(s.wrap(mask))), &[]);
                    let shifted = t.op(s.vec(n), Op::Binary(op), &[v, by]);
                    let r = t.op(s.vec(n), Op::Binary(Binary::And), &[shifted, mask]);
                    t.store(r);
                }
            }
            t.check(target);
        }
    });
}

#[test]
fn casts() {
    each(|target, rng| {
        for from in Scalar::ALL {
            for to in Scalar::ALL {
                let mut t = Test::new(&format!("{from}_to_{to}"));
                let fits = |v: f32| {
                    let (lo, hi) = to.int_range();
                    !to.is_int() || v.trunc() as f64 >= lo as f64 && (v.trunc() as f64) < hi as f64
                };
                let mut value = || loop {
                    let wide = from.is_float() && to.is_int();
                    let scale = if wide { (rng.range(0, to.bits() as i64) as f32).exp2() } else { 1.0 };
                    let v = any(rng, from);
                    let v = if wide { Bits::float(from.round(v.as_float() * scale)) } else { v };
                    if !from.is_float() || fits(v.as_float()) {
                        return v;
                    }
                };
                let x = t.input(from, &mut value);
                for n in lanes(target, from.bytes().max(to.bytes())) {
                    let v = t.load(from.vec(n), x);
                    let merged = t.op(to.vec(n), Op::Cast, &[v]);
                    t.store(merged);
                    let v = t.load(from.vec(n), x);
                    t.store(v);
                    let r = t.op(to.vec(n), Op::Cast, &[v]);
                    t.store(r);
                    if from.bytes() == to.bytes() && from != Scalar::Bool && to != Scalar::Bool {
                        let r = t.op(to.vec(n), Op::Bitcast, &[v]);
                        t.store(r);
                    }
                }
                t.check(target);
            }
        }
    });
}

/// All f16 and bf16 bit patterns widen, and what lies around them rounds, as the reference says.
#[test]
fn narrow_floats_round_to_even() {
    each(|target, rng| {
        for s in [Scalar::F16, Scalar::BF16] {
            let mut t = Test::new(&format!("round_{s}"));
            let near = |rng: &mut Rng| {
                let exact = scalar::bitcast(Scalar::U16, s, Bits::int(rng.bits() as u16 as i64)).as_float();
                let step = rng.range(-2, 2) as i32 * if rng.one_in(2) { 1 } else { 0x1000 };
                Bits::float(f32::from_bits((exact.to_bits() as i32).wrapping_add(step) as u32))
            };
            let x = t.input(Scalar::F32, || near(rng));
            for n in lanes(target, 4) {
                let v = t.load(Scalar::F32.vec(n), x);
                let r = t.op(s.vec(n), Op::Cast, &[v]);
                t.store(r);
                let back = t.op(Scalar::F32.vec(n), Op::Cast, &[r]);
                t.store(back);
            }
            t.check(target);
        }
    });
}

#[test]
fn selects() {
    each(|target, rng| {
        for s in Scalar::ALL {
            let mut t = Test::new(&format!("where_{s}"));
            let (x, y) = (t.input(s, || any(rng, s)), t.input(s, || any(rng, s)));
            let cond = t.input(Scalar::Bool, || any(rng, Scalar::Bool));
            let (small, large) = (
                t.input(Scalar::I8, || any(rng, Scalar::I8)),
                t.input(Scalar::I64, || any(rng, Scalar::I64)),
            );
            for n in lanes(target, s.bytes()) {
                let flag = Scalar::Bool.vec(n);
                let (a, b, c) = (t.load(s.vec(n), x), t.load(s.vec(n), y), t.load(flag, cond));
                let r = t.op(s.vec(n), Op::Where, &[c, a, b]);
                t.store(r);
                for op in [Binary::Lt, Binary::Le, Binary::Eq, Binary::Ne] {
                    // Compared values of the selected, of a narrower and of a wider type.
                    for (mem, k) in [(x, s), (small, Scalar::I8), (large, Scalar::I64)] {
                        let fits = n as usize * k.bytes() <= target.caps().vector_bytes as usize || n == 1;
                        if !op.takes(k) || !fits {
                            continue;
                        }
                        let (p, zero) = (t.load(k.vec(n), mem), t.op(k.vec(n), Op::Const(Bits(0)), &[]));
                        let c = t.op(flag, Op::Binary(op), &[p, zero]);
                        let r = t.op(s.vec(n), Op::Where, &[c, a, b]);
                        t.store(r);
                    }
                }
            }
            t.check(target);
        }
    });
}

#[test]
fn moves_of_lanes() {
    each(|target, rng| {
        for s in Scalar::ALL {
            let mut t = Test::new(&format!("lanes_{s}"));
            let x = t.input(s, || any(rng, s));
            for n in lanes(target, s.bytes()) {
                for m in lanes(target, s.bytes()).filter(|m| *m >= n) {
                    for op in [Op::Spread, Op::Repeat] {
                        let v = t.load(s.vec(n), x);
                        let merged = t.op(s.vec(m), op, &[v]);
                        t.store(merged);
                        let v = t.load(s.vec(n), x);
                        t.store(v);
                        let r = t.op(s.vec(m), op, &[v]);
                        t.store(r);
                    }
                }
                let v = t.load(s.vec(n), x);
                for first in 0..n {
                    let r = t.op(s.into(), Op::Extract(first), &[v]);
                    t.store(r);
                    for m in lanes(target, s.bytes()).filter(|m| first + m <= n) {
                        let r = t.op(s.vec(m), Op::Slice(first), &[v]);
                        t.store(r);
                    }
                }
                let scalars: Vec<Reg> =
                    (0..n).map(|lane| t.op(s.into(), Op::Extract((lane * 7 + 3) % n), &[v])).collect();
                let r = t.op(s.vec(n), Op::Stack, &scalars);
                t.store(r);
            }
            t.check(target);
        }
    });
}

#[test]
fn folds() {
    each(|target, rng| {
        for f in Fold::ALL {
            for s in Scalar::ALL.into_iter().filter(|s| f.binary().takes(*s)) {
                let mut t = Test::new(&format!("fold_{f:?}_{s}"));
                // Sums of small whole numbers do not depend on their order.
                let x = t.input(s, || match s {
                    Scalar::F32 => Bits::float(rng.range(-999, 999) as f32),
                    s => any(rng, s),
                });
                for n in lanes(target, s.bytes()) {
                    let v = t.load(s.vec(n), x);
                    let r = t.op(s.into(), Op::Fold(f), &[v]);
                    t.store(r);
                }
                t.check(target);
            }
        }
    });
}

/// Products at the ends of the range, where a saturating instruction would show, and chains of them, where sums in 16 bits
/// would.
#[test]
fn dots() {
    each(|target, rng| {
        for mask in [255, 127, 63, 31, 15, 7] {
            let mut t = Test::new("dot4");
            let acc = t.input(Scalar::I32, || any(rng, Scalar::I32));
            let a = t.input(Scalar::U8, || Bits(*rng.choose(&[0, 1, 127, 128, 254, 255])));
            let b = t.input(Scalar::I8, || Bits::int(*rng.choose(&[-128, -127, -1, 0, 1, 126, 127])));
            let largest = t.input(Scalar::U8, || Bits(255));
            let least = t.input(Scalar::I8, || Bits::int(-128));
            for n in lanes(target, 4) {
                let wide = 4 * n;
                let mask = t.op(Scalar::U8.vec(wide), Op::Const(Bits(mask)), &[]);
                let i32s = Scalar::I32.vec(n);
                let (c, x) = (t.load(i32s, acc), t.load(Scalar::U8.vec(wide), a));
                let x = t.op(Scalar::U8.vec(wide), Op::Binary(Binary::And), &[x, mask]);
                let whole = t.load(Scalar::I8.vec(wide), b);
                let r = t.op(i32s, Op::Dot4, &[c, x, whole]);
                t.store(r);
                let four = t.load(Scalar::I8.vec(4), b);
                let four = t.op(Scalar::I8.vec(wide), Op::Repeat, &[four]);
                let zero = t.op(i32s, Op::Const(Bits(0)), &[]);
                let r = t.op(i32s, Op::Dot4, &[zero, x, four]);
                t.store(r);
                let mut r = t.op(i32s, Op::Dot4, &[r, x, four]);
                t.store(r);
                let (x, y) = (t.load(Scalar::U8.vec(wide), largest), t.load(Scalar::I8.vec(wide), least));
                let x = t.op(Scalar::U8.vec(wide), Op::Binary(Binary::And), &[x, mask]);
                for _ in 0..19 {
                    r = t.op(i32s, Op::Dot4, &[r, x, y]);
                }
                t.store(r);
            }
            t.check(target);
        }
    });
}

#[test]
fn lookups_and_iota() {
    each(|target, rng| {
        let table = u128::from_le_bytes(std::array::from_fn(|_| rng.bits() as u8));
        let mut t = Test::new("lookup");
        let x = t.input(Scalar::U8, || any(rng, Scalar::U8));
        for n in lanes(target, 1) {
            let v = t.load(Scalar::U8.vec(n), x);
            let low = t.op(Scalar::U8.vec(n), Op::Const(Bits(15)), &[]);
            let low = t.op(Scalar::U8.vec(n), Op::Binary(Binary::And), &[v, low]);
            for s in [Scalar::I8, Scalar::U8] {
                for index in [v, low] {
                    let r = t.op(s.vec(n), Op::Lookup(table), &[index]);
                    t.store(r);
                }
            }
        }
        for n in lanes(target, 4) {
            let r = t.op(Scalar::I32.vec(n), Op::Iota, &[]);
            t.store(r);
        }
        t.check(target);
    });
}

/// Each argument from memory, from one element for all lanes, constant, and in a register.
#[test]
fn fused_multiply_add() {
    each(|target, rng| {
        let mut t = Test::new("fma");
        let mems: Vec<Mem> = (0..3).map(|_| t.input(Scalar::F32, || Bits::float(rng.normal()))).collect();
        for n in lanes(target, 4) {
            let v = Scalar::F32.vec(n);
            for how in 0..64 {
                let args: Vec<Reg> = (0..3)
                    .map(|i| match how >> (2 * i) & 3 {
                        0 => t.load(v, mems[i]),
                        1 => {
                            let one = t.load(DType::F32, mems[i]);
                            t.op(v, Op::Spread, &[one])
                        }
                        2 => t.op(v, Op::Const(Bits::float(0.1 + i as f32)), &[]),
                        _ => {
                            let x = t.load(v, mems[i]);
                            t.store(x);
                            x
                        }
                    })
                    .collect();
                let r = t.op(v, Op::Fma, &args);
                t.store(r);
            }
        }
        t.check(target);
    });
}

#[test]
fn gathers() {
    each(|target, rng| {
        for s in Scalar::ALL {
            let mut t = Test::new(&format!("gather_{s}"));
            let x = t.input(s, || any(rng, s));
            let at = t.input(Scalar::I32, || Bits::int(rng.range(0, LEN - 1)));
            // Far outside wherever the gate is closed.
            let open = t.input(Scalar::Bool, || any(rng, Scalar::Bool));
            for n in lanes(target, s.bytes().max(4)) {
                let (index, gate) = (t.load(Scalar::I32.vec(n), at), t.load(Scalar::Bool.vec(n), open));
                let far = t.op(Scalar::I32.vec(n), Op::Const(Bits::int(1 << 29)), &[]);
                let wild = t.op(Scalar::I32.vec(n), Op::Where, &[gate, index, far]);
                let one = t.op(DType::BOOL, Op::Extract(0), &[gate]);
                for (index, gate) in [(index, None), (wild, Some(gate)), (index, Some(one))] {
                    let dst = t.program.reg(s.vec(n));
                    t.program.code.push(Inst::Gather { dst, mem: x, index, gate });
                    t.store(dst);
                }
            }
            t.check(target);
        }
    });
}

/// Loads and stores of which only the first lanes lie inside the buffers; what is outside would fault.
#[test]
fn gates_at_page_edges() {
    each(|target, rng| {
        for s in Scalar::ALL {
            for n in lanes(target, s.bytes()) {
                for inside in [0, 1, n / 2, n - 1, n] {
                    let mut t = Test::new(&format!("gate_{s}x{n}_{inside}"));
                    let x = t.input(s, || any(rng, s));
                    t.buffers[0].truncate(inside as usize * s.bytes());
                    let flags = t.input(Scalar::Bool, || Bits(0));
                    t.buffers[1][..inside as usize].fill(1);
                    t.program.buffers.push((s.into(), true));
                    t.buffers.push(vec![0; inside as usize * s.bytes()]);
                    let index = t.int(0);
                    let gate = t.program.reg(Scalar::Bool.vec(n));
                    t.program.code.push(Inst::Load { dst: gate, mem: flags, index, offset: 0, gate: None });
                    let all = t.op(DType::BOOL, Op::Extract(n - 1), &[gate]);
                    for gate in [gate, all] {
                        let dst = t.program.reg(s.vec(n));
                        let gate = Some(gate);
                        t.program.code.push(Inst::Load { dst, mem: x, index, offset: 0, gate });
                        let mem = Mem::Global(2);
                        t.program.code.push(Inst::Store { mem, index, offset: 0, value: dst, gate });
                        t.store(dst);
                    }
                    t.check(target);
                }
            }
        }
    });
}
