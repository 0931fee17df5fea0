//! Cases that are more than one operation: memory accesses, loops, threads that work together.

use super::{Case, Cases, Draw, GRID, LANES, empty, int, load, me, scaled};
use crate::dtype::{DType, Scalar};
use crate::linear::{Inst, Linear, Mem, Op, Reg};
use crate::scalar::Fold;
use crate::text;

/// Products of 64 rows of 64 blocks with a vector: a warp takes a row, a lane a block.
pub const Q4_0_MATVEC: &str = "
linear q4_0_matvec grid 16 threads 128
  buffer g0: u8
  buffer g1: f16
  buffer g2: i8
  buffer g3: f32
  buffer g4: i32
  buffer g5: f32 written
  %0: i64 = Grid
  %1: i64 = Thread
  %2: i64 = 32
  %3: i64 = 4
  %4: i64 = Mul %0 %3
  %5: i64 = Div %1 %2
  %6: i64 = Mod %1 %2
  %7: i64 = Add %4 %5
  %8: i64 = 64
  %9: i64 = Mul %7 %8
  %10: i64 = 2
  %11: f32 = 0.0
  %12: u8x16 = 15
  %13: u8x16 = 4
  %14: i32x4 = 0
  %15: i32 = 8
  %16: i64 = 16
  loop %17 < %10 [%18: f32 = %11]
    %19: i64 = Mul %17 %2
    %20: i64 = Add %19 %6
    %21: i64 = Add %9 %20
    %22: i64 = Mul %21 %16
    %23: u8x16 = load g0[%22]
    %24: u8x16 = And %23 %12
    %25: u8x16 = Shr %23 %13
    %26: u8x16 = And %25 %12
    %27: i64 = Mul %20 %2
    %28: i8x16 = load g2[%27]
    %29: i8x16 = load g2[%27 + 16]
    %30: i32x4 = Dot4 %14 %24 %28
    %31: i32x4 = Dot4 %30 %26 %29
    %32: i32 = FoldSum %31
    %33: i32 = load g4[%20]
    %34: i32 = Mul %33 %15
    %35: i32 = Sub %32 %34
    %36: f32 = Cast %35
    %37: f16 = load g1[%21]
    %38: f32 = Cast %37
    %39: f32 = load g3[%20]
    %40: f32 = Mul %38 %39
    %41: f32 = Fma %36 %40 %18
  end [%41] -> [%42: f32]
  %43: f32 = lanes32 Sum %42
  %44: i64 = 0
  %45: bool = Eq %6 %44
  store g5[%7] = %43 if %45
";

/// Carried values that change places, for as many rounds as the thread's number says, none for some.
const FIBONACCI: &str = "
linear fibonacci grid s0 threads THREADS
  buffer g0: i32 written
  symbol s0: blocks
  symbol s1: most
  %0: i64 = Grid
  %1: i64 = Thread
  %2: i64 = THREADS
  %3: i64 = Mul %0 %2
  %4: i64 = Add %3 %1
  %5: i64 = s1
  %6: i64 = Mod %4 %5
  %7: i32 = 0
  %8: i32 = 1
  loop %9 < %6 [%10: i32 = %7, %11: i32 = %8]
    %12: i32 = Add %10 %11
  end [%11 %12] -> [%13: i32, %14: i32]
  %15: i32x2 = Stack %13 %14
  %16: i64 = 2
  %17: i64 = Mul %4 %16
  store g0[%17] = %15
";

/// Loops in loops, with carried values of every register class.
const NESTED: &str = "
linear nested grid 2 threads THREADS
  buffer g0: f32
  buffer g1: f32 written
  buffer g2: i64 written
  symbol s0: columns
  %0: i64 = Grid
  %1: i64 = Thread
  %2: i64 = THREADS
  %3: i64 = Mul %0 %2
  %4: i64 = Add %3 %1
  %5: i64 = 3
  %6: i64 = s0
  %7: f32x4 = 0.5
  %8: i64 = 100
  %9: bool = false
  %10: i64 = 4
  loop %11 < %5 [%12: f32x4 = %7, %13: i64 = %8, %14: bool = %9]
    %15: i64 = Mul %11 %6
    loop %16 < %6 [%17: f32x4 = %12, %18: i64 = %13]
      %19: i64 = Add %15 %16
      %20: i64 = Mul %19 %10
      %21: f32x4 = load g0[%20]
      %22: f32x4 = Add %17 %21
      %23: i64 = Mul %18 %5
    end [%22 %23] -> [%24: f32x4, %25: i64]
    %26: bool = Not %14
    %27: i64 = Where %26 %25 %4
  end [%24 %27 %26] -> [%28: f32x4, %29: i64, %30: bool]
  %31: i64 = Mul %4 %10
  store g1[%31] = %28 if %30
  %32: i64 = Add %29 %6
  store g2[%4] = %32
";

/// Every thread reads what another wrote to local memory; once with more of it than can be declared statically.
const EXCHANGE: &str = "
linear exchange_SIZE grid 3 threads THREADS
  buffer g0: f32
  buffer g1: f32 written
  local l0: u8[20]
  local l1: f32[SIZE]
  %0: i64 = Grid
  %1: i64 = Thread
  %2: i64 = THREADS
  %3: i64 = Mul %0 %2
  %4: i64 = Add %3 %1
  %5: f32 = load g0[%4]
  store l1[%1] = %5
  barrier
  %6: i64 = 1
  %7: i64 = Sub %2 %6
  %8: i64 = Sub %7 %1
  %9: f32 = load l1[%8]
  prefetch g0[%4 + 1000000]
  store g1[%4] = %9
";

fn parse(source: &str, threads: u32) -> Linear {
    let source = source.replace("THREADS", &threads.to_string());
    text::linear::parse(&source).unwrap_or_else(|e| panic!("{e}\n{source}"))
}

impl Cases {
    fn many(&self) -> usize {
        GRID as usize * self.threads as usize
    }

    fn add(&mut self, program: Linear, buffers: Vec<Vec<u8>>, symbols: &[i64], bound: f32) {
        self.all.push(Case { program, buffers, symbols: symbols.to_vec(), bound });
    }

    pub(super) fn memory(&mut self) {
        for s in Scalar::ALL {
            for t in LANES.map(|n| s.vec(n)) {
                self.shifted(t);
                self.gated(t, Scalar::Bool.vec(1));
                self.gated(t, Scalar::Bool.vec(t.lanes));
                self.gather(t);
            }
        }
    }

    /// Loads and stores one element off where a vector would be aligned.
    fn shifted(&mut self, t: DType) {
        let mut p = empty(format!("shifted_{t}"), self.threads);
        p.buffers = vec![(t.with_lanes(1), false), (t.with_lanes(1), true)];
        let me = me(&mut p);
        let index = scaled(&mut p, me, t.lanes);
        let value = load(&mut p, t, Mem::Global(0), index, 1);
        p.code.push(Inst::Store { mem: Mem::Global(1), index, offset: 1, value, gate: None });
        let len = self.many() * t.lanes as usize + 1;
        let buffers = vec![self.data(t.scalar, len, Draw::Any), vec![0; len * t.scalar.bytes()]];
        self.add(p, buffers, &[], 0.0);
    }

    /// Loads and stores where a gate of type `g` is open; without one the index is far outside.
    fn gated(&mut self, t: DType, g: DType) {
        let mut p = empty(format!("gated_{t}_{g}"), self.threads);
        p.buffers = vec![(DType::BOOL, false), (t.with_lanes(1), false), (t.with_lanes(1), true)];
        p.buffers.push(p.buffers[2]);
        let me = me(&mut p);
        let gates = scaled(&mut p, me, g.lanes);
        let gate = load(&mut p, g, Mem::Global(0), gates, 0);
        let mut index = scaled(&mut p, me, t.lanes);
        let output = index;
        if g.lanes == 1 {
            let outside = int(&mut p, 1 << 40);
            index = p.op(DType::I64, Op::Where, &[gate, index, outside]);
        }
        let dst = p.reg(t);
        p.code.push(Inst::Load { dst, mem: Mem::Global(1), index, offset: 0, gate: Some(gate) });
        for (mem, index, gate) in [(2, output, None), (3, index, Some(gate))] {
            p.code.push(Inst::Store { mem: Mem::Global(mem), index, offset: 0, value: dst, gate });
        }
        let len = self.many() * t.lanes as usize;
        let mut buffers = vec![self.data(Scalar::Bool, self.many() * g.lanes as usize, Draw::Any)];
        buffers.extend([0; 3].map(|_| self.data(t.scalar, len, Draw::Any)));
        self.add(p, buffers, &[], 0.0);
    }

    fn gather(&mut self, t: DType) {
        let mut p = empty(format!("gather_{t}"), self.threads);
        let element = t.with_lanes(1);
        p.buffers = vec![(DType::BOOL, false), (DType::I32, false), (element, false), (element, true)];
        let me = me(&mut p);
        let place = scaled(&mut p, me, t.lanes);
        let gate = load(&mut p, Scalar::Bool.vec(t.lanes), Mem::Global(0), place, 0);
        let index = load(&mut p, Scalar::I32.vec(t.lanes), Mem::Global(1), place, 0);
        let dst = p.reg(t);
        p.code.push(Inst::Gather { dst, mem: Mem::Global(2), index, gate: Some(gate) });
        p.code.push(Inst::Store { mem: Mem::Global(3), index: place, offset: 0, value: dst, gate: None });
        let len = self.many() * t.lanes as usize;
        let buffers = vec![
            self.data(Scalar::Bool, len, Draw::Any),
            self.data(Scalar::I32, len, Draw::Between(0.0, 99.0)),
            self.data(t.scalar, 100, Draw::Any),
            vec![0; len * t.scalar.bytes()],
        ];
        self.add(p, buffers, &[], 0.0);
    }

    pub(super) fn loops(&mut self) {
        let threads = self.threads as usize;
        self.add(parse(FIBONACCI, self.threads), vec![vec![0; 5 * threads * 8]], &[5, 7], 0.0);
        for columns in [0, 5] {
            let data = self.data(Scalar::F32, 3 * 5 * 4, Draw::Any);
            let buffers = vec![data, vec![0; 2 * threads * 16], vec![0; 2 * threads * 8]];
            self.add(parse(NESTED, self.threads), buffers, &[columns], 0.0);
        }
    }

    pub(super) fn cooperation(&mut self) {
        for size in [self.threads as usize, 13_000] {
            let p = parse(&EXCHANGE.replace("SIZE", &size.to_string()), self.threads);
            let data = self.data(Scalar::F32, self.many(), Draw::Any);
            self.add(p, vec![data.clone(), vec![0; data.len()]], &[], 0.0);
        }
        let types = [DType::F32, DType::I32, DType::U32, DType::I64, DType::I8, DType::U16.with_lanes(3)];
        for t in types.into_iter().chain([DType::F32.with_lanes(4)]) {
            for fold in [Fold::Sum, Fold::Max, Fold::Min] {
                for width in [1, 2, 4, 8, 16, 32] {
                    let bound = if t.is_float() { 1e-5 } else { 0.0 };
                    let name = format!("lanes{width}_{fold:?}_{t}");
                    self.elementwise(name, &[(t, Draw::Any)], bound, |p, x| {
                        lane_reduce(p, x[0], fold, width)
                    });
                }
            }
        }
        if self.threads.is_multiple_of(32) {
            let some = Draw::Between(-2.0, 2.0);
            for half in [Scalar::BF16, Scalar::F16] {
                let (sums, inputs) = (Scalar::F32.vec(4), half.vec(4));
                let args = [(sums, some), (inputs, some), (inputs, some), (inputs, some)];
                self.elementwise(format!("mma_{half}"), &args, 1e-4, |p, x| {
                    let dst = p.reg(sums);
                    p.code.push(Inst::Mma { dst, acc: x[0], a: [x[1], x[2]], b: x[3] });
                    dst
                });
            }
        }
        let mut buffers = vec![self.data(Scalar::U8, 64 * 64 * 16, Draw::Any)];
        buffers.push(self.data(Scalar::F16, 64 * 64, Draw::Between(0.01, 0.05)));
        buffers.push(self.data(Scalar::I8, 64 * 32, Draw::Any));
        buffers.push(self.data(Scalar::F32, 64, Draw::Between(0.01, 0.05)));
        buffers.push(self.data(Scalar::I32, 64, Draw::Between(-2000.0, 2000.0)));
        buffers.push(vec![0; 64 * 4]);
        self.add(parse(Q4_0_MATVEC, self.threads), buffers, &[], 1e-4);
    }
}

fn lane_reduce(p: &mut Linear, src: Reg, fold: Fold, width: u32) -> Reg {
    let dst = p.reg(p.dtype(src));
    p.code.push(Inst::LaneReduce { dst, fold, src, width });
    dst
}
