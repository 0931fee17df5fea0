//! How fast this machine computes: the yardstick for kernels that memory does not hold up.
//!
//! In: a device. Out: operations a second of loops that do nothing else, from registers to registers. They are linear
//! programs like any other, so they get the vector width and the threads that kernels get. Tiles are not among them: what
//! goes through a tile passes through memory.

use crate::device::{Device, Error};
use crate::plan::Plan;
use compiler::dtype::{Bits, DType, Scalar};
use compiler::linear::{Count, Inst, Linear, Mem, Op, Reg};
use compiler::scalar::{Binary, Fold};

/// The most that one kind of instruction gave.
#[derive(Clone, PartialEq, Debug)]
pub struct Peak {
    pub what: &'static str,
    /// 10^9 additions and multiplications a second.
    pub gop_s: f64,
}

/// Accumulators that do not wait for each other: more than an instruction's latency, fewer than AVX2 has registers.
const CHAINS: usize = 12;
/// Instructions on each accumulator in one round of the loop.
const DEEP: usize = 4;
const ROUNDS: i64 = 2048;

/// The best of a few runs for each kind that the device has.
pub fn peaks(device: &dyn Device) -> Result<Vec<Peak>, Error> {
    let caps = device.target().caps();
    let gpu = caps.lanes > 1;
    let shape = if gpu {
        Shape { blocks: 2048, threads: 256, lanes: 1, rounds: ROUNDS }
    } else {
        Shape { blocks: 256, threads: 1, lanes: caps.vector_bytes / 4, rounds: ROUNDS }
    };
    let mut kinds = vec![("f32 multiply and add", Kind::Fma)];
    if caps.dot4 {
        kinds.push(("int8 dot products", Kind::Dot4));
    }
    kinds.into_iter().map(|(what, kind)| Ok(Peak { what, gop_s: best(device, kind, shape)? })).collect()
}

#[derive(Clone, Copy)]
enum Kind {
    Fma,
    Dot4,
}

#[derive(Clone, Copy)]
struct Shape {
    blocks: i64,
    threads: u32,
    /// Of 4 bytes.
    lanes: u16,
    rounds: i64,
}

impl Kind {
    /// Additions and multiplications of one instruction in one lane.
    fn operations(self) -> f64 {
        match self {
            Kind::Fma => 2.0,
            Kind::Dot4 => 8.0,
        }
    }
}

fn best(device: &dyn Device, kind: Kind, shape: Shape) -> Result<f64, Error> {
    let linear = program(kind, shape);
    let code = device.target().emit(&linear);
    let program = device.load(linear, code)?;
    let mut plan = Plan::new([""; 0]);
    plan.push(&program, vec![device.alloc(shape.blocks as usize * shape.threads as usize * 4)?.whole()])?;
    let mut prepared = device.prepare(plan)?;
    let mut seconds = f64::INFINITY;
    for _ in 0..15 {
        seconds = seconds.min(device.time(&mut prepared, &[])?[0].as_secs_f64());
    }
    let instructions = (shape.blocks * shape.threads as i64 * shape.rounds) as f64 * (CHAINS * DEEP) as f64;
    Ok(instructions * shape.lanes as f64 * kind.operations() / seconds / 1e9)
}

/// Each thread of each block folds into its accumulators for so many rounds and stores their sum.
fn program(kind: Kind, shape: Shape) -> Linear {
    let scalar = match kind {
        Kind::Fma => Scalar::F32,
        Kind::Dot4 => Scalar::I32,
    };
    let (one, vector) = (scalar.vec(1), scalar.vec(shape.lanes));
    let mut p = Linear {
        name: "compute".into(),
        grid: Count::Const(shape.blocks),
        buffers: vec![(one, true)],
        symbols: vec![],
        locals: vec![],
        threads: shape.threads,
        code: vec![],
        regs: vec![],
    };
    let constant = |p: &mut Linear, t: DType, v: Bits| p.op(t, Op::Const(v), &[]);
    let bytes = 4 * shape.lanes;
    // Halving and adding a half stays near 1; bytes of 1 count the instructions, wrapping.
    let (zero, a, b) = match kind {
        Kind::Fma => (
            constant(&mut p, vector, Bits::float(0.0)),
            constant(&mut p, vector, Bits::float(0.5)),
            constant(&mut p, vector, Bits::float(0.5)),
        ),
        Kind::Dot4 => (
            constant(&mut p, vector, Bits::int(0)),
            constant(&mut p, Scalar::U8.vec(bytes), Bits::int(1)),
            constant(&mut p, Scalar::I8.vec(bytes), Bits::int(1)),
        ),
    };
    let rounds = constant(&mut p, DType::I64, Bits::int(shape.rounds));
    let var = p.reg(DType::I64);
    let phis: Vec<Reg> = (0..CHAINS).map(|_| p.reg(vector)).collect();
    p.code.push(Inst::Loop { var, extent: rounds, carried: phis.iter().map(|r| (*r, zero)).collect() });
    let mut now = phis;
    for _ in 0..DEEP {
        for acc in &mut now {
            *acc = match kind {
                Kind::Fma => p.op(vector, Op::Fma, &[*acc, a, b]),
                Kind::Dot4 => p.op(vector, Op::Dot4, &[*acc, a, b]),
            };
        }
    }
    let out: Vec<Reg> = (0..CHAINS).map(|_| p.reg(vector)).collect();
    p.code.push(Inst::End { next: now, out: out.clone() });
    let total = out[1..].iter().fold(out[0], |a, &b| p.op(vector, Op::Binary(Binary::Add), &[a, b]));
    let value = if shape.lanes > 1 { p.op(one, Op::Fold(Fold::Sum), &[total]) } else { total };
    let (grid, thread) = (p.op(DType::I64, Op::Grid, &[]), p.op(DType::I64, Op::Thread, &[]));
    let threads = constant(&mut p, DType::I64, Bits::int(shape.threads as i64));
    let first = p.op(DType::I64, Op::Binary(Binary::Mul), &[grid, threads]);
    let index = p.op(DType::I64, Op::Binary(Binary::Add), &[first, thread]);
    p.code.push(Inst::Store { mem: Mem::Global(0), index, offset: 0, value, gate: None });
    p
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interp::InterpDevice;

    #[test]
    fn every_instruction_is_run() {
        let device = InterpDevice::default();
        for (lanes, threads) in [(1, 4), (8, 1)] {
            let shape = Shape { blocks: 3, threads, lanes, rounds: 5 };
            let linear = program(Kind::Dot4, shape);
            let code = device.target().emit(&linear);
            let program = device.load(linear, code).unwrap();
            let out = device.alloc(3 * threads as usize * 4).unwrap();
            let mut plan = Plan::new([""; 0]);
            plan.push(&program, vec![out.whole()]).unwrap();
            device.run(&mut device.prepare(plan).unwrap(), &[]).unwrap();
            let mut found = vec![0; out.len()];
            device.read(&out.whole(), 0, &mut found).unwrap();
            // Four products of 1 in each lane.
            let each = 4 * lanes as i32 * (5 * CHAINS * DEEP) as i32;
            assert_eq!(found, each.to_le_bytes().repeat(3 * threads as usize));
        }
    }
}
