//! How fast this machine reads memory: the yardstick that the program calls 100%.
//!
//! In: a device and how much to read. Out: GB/s of several passes over memory that no cache holds. The reading loop is a
//! linear program like any other, so it gets the huge pages, the vector width and the threads that kernels get. A CPU's
//! core reads eight places at a time, each with a prefetch ahead: that gives it 1.4 times what one place does.

use crate::buffer::Buffer;
use crate::device::{Device, Error, Prepared, Program};
use crate::machine;
use crate::plan::Plan;
use compiler::dtype::{Bits, DType, Scalar};
use compiler::linear::{Count, Inst, Linear, Mem, Op, Reg};
use compiler::scalar::{Binary, Fold};

/// GB/s (10^9 bytes) of each pass, slowest first.
#[derive(Clone, Debug)]
pub struct Bandwidth {
    pub passes: Vec<f64>,
}

impl Bandwidth {
    pub fn median(&self) -> f64 {
        self.passes[self.passes.len() / 2]
    }
    pub fn slowest(&self) -> f64 {
        self.passes[0]
    }
    pub fn fastest(&self) -> f64 {
        self.passes[self.passes.len() - 1]
    }
}

/// Bytes one grid index reads.
const BLOCK: usize = 256 << 10;
/// Vectors read in one round of the loop, each into its own accumulator; on a CPU each from its own part of the block.
const UNROLL: usize = 8;
/// Bytes between what is prefetched and what is read.
const AHEAD: i64 = 1024;

/// Far more than the last cache holds, yet at most a third of the free memory.
pub fn working_set() -> usize {
    let wanted = (4 * machine::last_level_cache().unwrap_or(0)).max(1 << 30);
    wanted.min(machine::free_memory().map_or(wanted, |free| free / 3))
}

/// As f16, bf16 and f32 a small positive number; as quants neither all alike nor all different.
const PATTERN: i64 = 0x2a35_1c27;

/// Threads of a block where a block has more than one: enough to keep a GPU's memory busy.
const THREADS: u32 = 256;

/// Memory that was written once, and the loop that reads it.
pub struct Reader {
    read: Prepared,
    data: Buffer,
}

impl Reader {
    /// Over `bytes`, rounded up to whole blocks.
    pub fn new(device: &dyn Device, bytes: usize) -> Result<Reader, Error> {
        let blocks = bytes.div_ceil(BLOCK).max(1);
        let data = device.alloc(blocks * BLOCK)?;
        let caps = device.target().caps();
        let shape = Shape { lanes: caps.vector_bytes / 4, threads: if caps.lanes > 1 { THREADS } else { 1 } };
        let sums = device.alloc(blocks * shape.threads as usize * 4)?;
        let prepare = |program: Linear| -> Result<Prepared, Error> {
            let code = device.target().emit(&program);
            let program: Program = device.load(program, code)?;
            let mut plan = Plan::new([""; 0]);
            plan.push(&program, vec![data.whole(), sums.whole()])?;
            device.prepare(plan)
        };
        // Memory that was never written is one page of zeros, read from the cache.
        device.run(&mut prepare(fill(blocks, shape))?, &[])?;
        let mut read = prepare(sum(blocks, shape))?;
        device.run(&mut read, &[])?;
        Ok(Reader { read, data })
    }

    /// The memory that is read: small positive numbers in every format that has them, to be used as weights.
    pub fn data(&self) -> &Buffer {
        &self.data
    }

    /// GB/s of one pass.
    pub fn pass(&mut self, device: &dyn Device) -> Result<f64, Error> {
        let seconds = device.time(&mut self.read, &[])?[0].as_secs_f64();
        Ok(self.data.len() as f64 / seconds / 1e9)
    }
}

/// Reads `bytes` (rounded up to whole blocks) `passes` times.
pub fn measure(device: &dyn Device, bytes: usize, passes: usize) -> Result<Bandwidth, Error> {
    let mut reader = Reader::new(device, bytes)?;
    let mut passes = (0..passes.max(1)).map(|_| reader.pass(device)).collect::<Result<Vec<_>, _>>()?;
    passes.sort_by(f64::total_cmp);
    Ok(Bandwidth { passes })
}

/// What a block reads at a time: a vector in each of its threads.
#[derive(Clone, Copy)]
struct Shape {
    lanes: u16,
    threads: u32,
}

impl Shape {
    fn elements(self) -> usize {
        self.lanes as usize * self.threads as usize
    }
}

/// A program over (data, sums) with the index of its thread's first element and a loop's trip count for `unroll` vectors
/// a round.
fn start(name: &str, blocks: usize, written: usize, shape: Shape, unroll: usize) -> (Linear, Reg, Reg) {
    let mut p = Linear {
        name: name.into(),
        grid: Count::Const(blocks as i64),
        buffers: vec![(DType::I32, written == 0), (DType::I32, written == 1)],
        symbols: vec![],
        locals: vec![],
        threads: shape.threads,
        code: vec![],
        regs: vec![],
    };
    let grid = p.op(DType::I64, Op::Grid, &[]);
    let thread = p.op(DType::I64, Op::Thread, &[]);
    let elements = constant(&mut p, DType::I64, BLOCK as i64 / 4);
    let first = p.op(DType::I64, Op::Binary(Binary::Mul), &[grid, elements]);
    let first = advance(&mut p, first, thread, shape.lanes as i64);
    let rounds = constant(&mut p, DType::I64, (BLOCK / 4 / unroll / shape.elements()) as i64);
    (p, first, rounds)
}

fn constant(p: &mut Linear, t: DType, v: i64) -> Reg {
    p.op(t, Op::Const(Bits::int(v)), &[])
}

/// `first + round·step`.
fn advance(p: &mut Linear, first: Reg, round: Reg, step: i64) -> Reg {
    let step = constant(p, DType::I64, step);
    let done = p.op(DType::I64, Op::Binary(Binary::Mul), &[round, step]);
    p.op(DType::I64, Op::Binary(Binary::Add), &[first, done])
}

/// Writes the pattern to every element.
fn fill(blocks: usize, shape: Shape) -> Linear {
    let (mut p, first, rounds) = start("fill", blocks, 0, shape, 1);
    let value = constant(&mut p, Scalar::I32.vec(shape.lanes), PATTERN);
    let round = p.reg(DType::I64);
    p.code.push(Inst::Loop { var: round, extent: rounds, carried: vec![] });
    let index = advance(&mut p, first, round, shape.elements() as i64);
    p.code.push(Inst::Store { mem: Mem::Global(0), index, offset: 0, value, gate: None });
    p.code.push(Inst::End { next: vec![], out: vec![] });
    p
}

/// Adds up what each thread of each block reads.
fn sum(blocks: usize, shape: Shape) -> Linear {
    let vector = Scalar::I32.vec(shape.lanes);
    let (mut p, first, rounds) = start("read", blocks, 1, shape, UNROLL);
    let zero = constant(&mut p, vector, 0);
    let four = constant(&mut p, DType::I64, 4);
    let round = p.reg(DType::I64);
    let sums: Vec<Reg> = (0..UNROLL).map(|_| p.reg(vector)).collect();
    let carried = sums.iter().map(|s| (*s, zero)).collect();
    p.code.push(Inst::Loop { var: round, extent: rounds, carried });
    let part = if shape.threads == 1 { BLOCK / 4 / UNROLL } else { shape.elements() };
    let step = if shape.threads == 1 { shape.elements() } else { UNROLL * part };
    let index = advance(&mut p, first, round, step as i64);
    let byte = p.op(DType::I64, Op::Binary(Binary::Mul), &[index, four]);
    let mut next = vec![];
    for (i, &sum) in sums.iter().enumerate() {
        let offset = (i * part) as i64;
        if shape.threads == 1 {
            let offset = 4 * offset + AHEAD;
            p.code.push(Inst::Prefetch { mem: Mem::Global(0), index: byte, offset, gate: None });
        }
        let dst = p.reg(vector);
        p.code.push(Inst::Load { dst, mem: Mem::Global(0), index, offset, gate: None });
        next.push(p.op(vector, Op::Binary(Binary::Add), &[sum, dst]));
    }
    let out: Vec<Reg> = (0..UNROLL).map(|_| p.reg(vector)).collect();
    p.code.push(Inst::End { next, out: out.clone() });
    let total = out[1..].iter().fold(out[0], |a, &b| p.op(vector, Op::Binary(Binary::Add), &[a, b]));
    let value = p.op(DType::I32, Op::Fold(Fold::Sum), &[total]);
    let (grid, thread) = (p.op(DType::I64, Op::Grid, &[]), p.op(DType::I64, Op::Thread, &[]));
    let index = advance(&mut p, thread, grid, shape.threads as i64);
    p.code.push(Inst::Store { mem: Mem::Global(1), index, offset: 0, value, gate: None });
    p
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interp::InterpDevice;

    #[test]
    fn the_loop_reads_every_element_once() {
        let device = InterpDevice::default();
        for (lanes, threads) in [(8, 1), (16, 1), (4, 32)] {
            let shape = Shape { lanes, threads };
            let count = 2 * threads as usize;
            let (data, sums) = (device.alloc(2 * BLOCK).unwrap(), device.alloc(4 * count).unwrap());
            let mut plan = Plan::new([""; 0]);
            for program in [fill(2, shape), sum(2, shape)] {
                let code = device.target().emit(&program);
                let program = device.load(program, code).unwrap();
                plan.push(&program, vec![data.whole(), sums.whole()]).unwrap();
            }
            device.run(&mut device.prepare(plan).unwrap(), &[]).unwrap();
            let mut found = vec![0; 4 * count];
            device.read(&sums.whole(), 0, &mut found).unwrap();
            let each = (PATTERN as u32).wrapping_mul(BLOCK as u32 / 4 / threads).to_le_bytes();
            assert_eq!(found, each.repeat(count));
        }
    }

    #[test]
    fn passes_are_sorted_and_positive() {
        let b = measure(&InterpDevice::default(), 1, 3).unwrap();
        assert_eq!(b.passes.len(), 3);
        assert!(0.0 < b.slowest() && b.slowest() <= b.median() && b.median() <= b.fastest());
    }
}
