//! Whole programs: random ones, and some that strain one part.

use crate::run::{check, targets};
use compiler::codegen::{Caps, Target};
use compiler::dtype::{Bits, DType, Scalar};
use compiler::linear::{Inst, Linear, Mem, Op, Reg};
use compiler::rng::Rng;
use compiler::scalar::Binary;
use compiler::testing::random_program;

#[test]
fn random_programs() {
    for target in targets() {
        let caps = Caps { local_bytes: 1 << 14, ..target.caps() };
        for seed in 0..400 {
            let (program, buffers, symbols) = random_program(&mut Rng::new(seed), &caps, 60);
            check(&target, &program, &buffers, &symbols);
        }
    }
}

fn program(text: &str) -> Linear {
    compiler::text::linear::parse(text).unwrap()
}

fn floats(n: usize) -> Vec<u8> {
    (0..n).flat_map(|i| ((i * 37 % 101) as f32 - 50.0).to_le_bytes()).collect()
}

/// More accumulators than there are registers, all changed in every round.
#[test]
fn spilled_accumulators() {
    for target in targets() {
        let lanes = target.caps().vector_bytes / 4;
        let t = Scalar::F32.vec(lanes);
        let mut p = program("linear many grid 2 threads 1\n  buffer g0: f32\n  buffer g1: f32 written\n");
        let count = 44;
        let extent = p.op(DType::I64, Op::Const(Bits::int(5)), &[]);
        let zero = p.op(t, Op::Const(Bits(0)), &[]);
        let (var, step) = (p.reg(DType::I64), p.op(DType::I64, Op::Const(Bits::int(lanes as i64)), &[]));
        let carried: Vec<(Reg, Reg)> = (0..count).map(|_| (p.reg(t), zero)).collect();
        let phis: Vec<Reg> = carried.iter().map(|c| c.0).collect();
        p.code.push(Inst::Loop { var, extent, carried });
        let index = p.op(DType::I64, Op::Binary(Binary::Mul), &[var, step]);
        let next = (0..count)
            .map(|i| {
                let x = p.reg(t);
                p.code.push(Inst::Load { dst: x, mem: Mem::Global(0), index, offset: i as i64, gate: None });
                // Each takes its neighbour's value: the moves of the back edge are one long cycle.
                p.op(t, Op::Binary(Binary::Add), &[phis[(i + 1) % count], x])
            })
            .collect();
        let out: Vec<Reg> = (0..count).map(|_| p.reg(t)).collect();
        p.code.push(Inst::End { next, out: out.clone() });
        let grid = p.op(DType::I64, Op::Grid, &[]);
        let size = p.op(DType::I64, Op::Const(Bits::int((count * lanes as usize) as i64)), &[]);
        let index = p.op(DType::I64, Op::Binary(Binary::Mul), &[grid, size]);
        for (i, value) in out.into_iter().enumerate() {
            let offset = (i * lanes as usize) as i64;
            p.code.push(Inst::Store { mem: Mem::Global(1), index, offset, value, gate: None });
        }
        let out = vec![0; 2 * count * t.bytes()];
        check(&target, &p, &[floats(5 * lanes as usize + count), out], &[]);
    }
}

/// Loops of no round hand on what they were given; carried values may swap.
#[test]
fn loops() {
    let p = program(
        "linear loops grid 3 threads 1
  buffer g0: f32
  buffer g1: f32 written
  buffer g2: i64 written
  symbol s0: n
  %0: i64 = Grid
  %1: i64 = s0
  %2: i64 = Sub %1 %0
  %3: f32x4 = load g0[%0]
  %4: f32x4 = load g0[%0 + 4]
  loop %5 < %2 [%6: f32x4 = %3, %7: f32x4 = %4, %8: i64 = %0]
    %9: f32x4 = Add %6 %7
    loop %10 < %5 [%11: i64 = %8]
      %12: i64 = Add %11 %10
    end [%12] -> [%13: i64]
  end [%7 %9 %13] -> [%14: f32x4, %15: f32x4, %16: i64]
  %17: i64 = 8
  %18: i64 = Mul %0 %17
  store g1[%18] = %14
  store g1[%18 + 4] = %15
  store g2[%0] = %16
",
    );
    for target in targets() {
        for n in -1..6 {
            check(&target, &p, &[floats(16), vec![0; 96], vec![0; 24]], &[n]);
        }
    }
}

/// Rows of the last products are read where they lie, those of earlier ones were brought to registers in time.
#[test]
fn rows_of_tiles_converted() {
    let mut rng = Rng::new(4);
    for target in targets().into_iter().filter(|t| t.caps().tile) {
        let mut p = program("linear rows grid 2 threads 1\n");
        p.buffers = vec![(DType::I8, false), (DType::U8, false), (DType::F32, true)];
        let grid = p.op(DType::I64, Op::Grid, &[]);
        let size = p.op(DType::I64, Op::Const(Bits::int(4 * 256)), &[]);
        let index = p.op(DType::I64, Op::Binary(Binary::Mul), &[grid, size]);
        let mut rows = vec![];
        for n in 0..4 {
            let load = |p: &mut Linear, i: i64| {
                let (dst, offset) = (p.reg(Scalar::U8.vec(64)), 64 * (n + i));
                p.code.push(Inst::Load { dst, mem: Mem::Global(1), index: grid, offset, gate: None });
                dst
            };
            let b: Vec<Reg> = (0..8).map(|i| load(&mut p, i)).collect();
            let dst: Vec<Reg> = (0..16).map(|_| p.reg(Scalar::I32.vec(16))).collect();
            rows.extend(dst.clone());
            p.code.push(Inst::TileDot {
                dst,
                mem: Mem::Global(0),
                index: grid,
                offset: 5 * n,
                stride: 70,
                b,
            });
        }
        let floats: Vec<Reg> = rows.iter().map(|r| p.op(Scalar::F32.vec(16), Op::Cast, &[*r])).collect();
        for (i, value) in floats.into_iter().enumerate() {
            let (mem, offset) = (Mem::Global(2), 16 * i as i64);
            p.code.push(Inst::Store { mem, index, offset, value, gate: None });
        }
        let mut bytes = |n: usize| (0..n).map(|_| rng.bits() as u8).collect::<Vec<u8>>();
        let buffers = [bytes(1300), bytes(12 * 64), vec![0; 2 * 4 * 256 * 4]];
        check(&target, &p, &buffers, &[]);
    }
}

/// Tile products of three heights and of four, with B kept and B changed.
#[test]
fn tiles() {
    let mut rng = Rng::new(3);
    for target in targets().into_iter().filter(|t| t.caps().tile) {
        for count in [5, 6] {
            let mut p = program("linear tiles grid 2 threads 1\n");
            p.buffers = vec![(DType::I8, false), (DType::U8, false), (DType::I32, true)];
            let grid = p.op(DType::I64, Op::Grid, &[]);
            let size = p.op(DType::I64, Op::Const(Bits::int(6 * 256)), &[]);
            let index = p.op(DType::I64, Op::Binary(Binary::Mul), &[grid, size]);
            let columns: Vec<Reg> = (0..17)
                .map(|i| {
                    let (dst, offset) = (p.reg(Scalar::U8.vec(64)), i * 64);
                    p.code.push(Inst::Load { dst, mem: Mem::Global(1), index: grid, offset, gate: None });
                    dst
                })
                .collect();
            let products: [&[Reg]; 6] = [
                &columns[..16],
                &columns[..16],
                &columns[1..],
                &columns[..8],
                &columns[3..4],
                &columns[4..9],
            ];
            for (n, used) in products[..count].iter().enumerate() {
                let dst: Vec<Reg> = (0..16).map(|_| p.reg(Scalar::I32.vec(16))).collect();
                let (offset, stride) = (3 * n as i64, 70);
                let (mem, b) = (Mem::Global(0), used.to_vec());
                p.code.push(Inst::TileDot { dst: dst.clone(), mem, index: grid, offset, stride, b });
                for (i, value) in dst.into_iter().enumerate() {
                    let offset = (256 * n + 16 * i) as i64;
                    p.code.push(Inst::Store { mem: Mem::Global(2), index, offset, value, gate: None });
                }
            }
            let mut bytes = |n: usize| (0..n).map(|_| rng.bits() as u8).collect::<Vec<u8>>();
            let buffers = [bytes(1300), bytes(17 * 64 + 1), vec![0; 2 * 6 * 256 * 4]];
            check(&target, &p, &buffers, &[]);
        }
    }
}

#[test]
fn pairs_of_each_type() {
    let mut rng = Rng::new(6);
    for (of, bytes) in [("f32", 4), ("u32", 4), ("bf16", 2)] {
        let p = program(&format!(
            "linear pairs grid 1 threads 1
  buffer g0: {of}
  buffer g1: bf16 written
  %0: i64 = 0
  %1: {of}x16 = load g0[%0]
  %2: {of}x16 = load g0[%0 + 16]
  %3: bf16x32 = Pairs %1 %2
  store g1[%0] = %3
"
        ));
        let number = |_| (rng.range(-999, 999) as f32 / 7.0).to_bits().to_le_bytes()[4 - bytes..].to_vec();
        let numbers: Vec<u8> = (0..32).flat_map(number).collect();
        for target in targets().into_iter().filter(|t| t.caps().tile) {
            check(&target, &p, &[numbers.clone(), vec![0; 64]], &[]);
        }
    }
}

/// Two tiles times two over three steps, the second factors rounded and put side by side on the way.
#[test]
fn sums_of_tiles() {
    let p = program(
        "linear sums grid 1 threads 1
  buffer g0: bf16
  buffer g1: f32
  buffer g2: f32 written
  local l0: bf16[3072]
  %0: i64 = 96
  %1: i64 = 32
  loop %2 < %0 []
    %3: i64 = Mul %2 %1
    %4: f32x16 = load g1[%3]
    %5: f32x16 = load g1[%3 + 16]
    %6: bf16x32 = Pairs %4 %5
    store l0[%3] = %6
  end [] -> []
  tilezero 4
  %7: i64 = 3
  %8: i64 = 1600
  %9: i64 = 512
  %10: i64 = 1536
  loop %11 < %7 []
    %12: i64 = Mul %11 %1
    %13: i64 = Add %12 %8
    %14: i64 = Mul %11 %9
    %15: i64 = Add %14 %10
    tilemul g0[%12 %13] by 100 of l0[%14 %15]
  end [] -> []
  %16: i64 = 0
  %17: i64 = 256
  %18: i64 = 768
  tilestore g2[%16 %17 %9 %18]
",
    );
    let mut rng = Rng::new(5);
    // Whole numbers, whose sums are exact in any order; subnormals become zero.
    let halves: Vec<u8> =
        (0..3200).flat_map(|_| (rng.range(-8, 8) as f32).to_bits().to_le_bytes()[2..].to_vec()).collect();
    let columns: Vec<u8> = (0..3072)
        .flat_map(|i| {
            (if i % 50 == 0 { f32::from_bits(0x7f_ffff) } else { rng.range(-99, 99) as f32 }).to_le_bytes()
        })
        .collect();
    for target in targets().into_iter().filter(|t| t.caps().tile) {
        check(&target, &p, &[halves.clone(), columns.clone(), vec![0; 4096]], &[]);
    }
}
