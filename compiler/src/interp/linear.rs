//! The meaning of a linear program: buffers and symbol values in, the buffers as the program leaves them out.
//!
//! The grid indices run in order and a block's threads in lockstep: each instruction for every active thread before the
//! next instruction. What would make another order give another result (a race, a barrier some threads miss) panics,
//! as does an access out of bounds.

use super::mma;
use super::race::{Point, Shadow};
use crate::dtype::{Bits, Scalar};
use crate::linear::{Inst, Linear, Mem, Op, Reg};
use crate::scalar::{self, Binary};
use crate::spec;

/// What undefined memory holds.
const POISON: u8 = 0xCD;

/// Runs every grid index. Panics if the program is illegal or does something undefined.
pub fn run(program: &Linear, buffers: &mut [Vec<u8>], symbols: &[i64]) {
    if let Err(fault) = try_run(program, buffers, symbols) {
        panic!("{fault}");
    }
}

/// As [`run`], but something undefined is an error: the message, the instruction and the program.
pub fn try_run(program: &Linear, buffers: &mut [Vec<u8>], symbols: &[i64]) -> Result<(), String> {
    spec::linear::verify(program);
    assert_eq!(buffers.len(), program.buffers.len(), "buffers for {program}");
    assert_eq!(symbols.len(), program.symbols.len(), "symbols for {program}");
    let mut m = Machine::new(program, buffers, symbols);
    let everyone = vec![true; program.threads as usize];
    for grid in 0..program.grid.eval(symbols) {
        m.start(grid);
        m.body(0, program.code.len(), &everyone).map_err(|why| {
            spec::linear::report(program, Some(m.at), &format!("{why} (grid index {grid})"))
        })?;
    }
    Ok(())
}

/// Done, or what was undefined.
type Run<T = ()> = Result<T, String>;

struct Machine<'a> {
    program: &'a Linear,
    buffers: &'a mut [Vec<u8>],
    symbols: &'a [i64],
    locals: Vec<Vec<u8>>,
    /// Of the buffers that are written; the others cannot race.
    buffer_shadows: Vec<Option<Shadow>>,
    local_shadows: Vec<Shadow>,
    /// The registers' values, for each register thread after thread.
    values: Vec<Bits>,
    /// Where in `values` a register's first thread is.
    first: Vec<usize>,
    /// For each `Loop`, where its `End` is.
    ends: Vec<usize>,
    /// The lanes an instruction has computed for one thread.
    result: Vec<Bits>,
    /// The accumulators of the tile unit.
    tiles: Vec<[f32; 256]>,
    grid: i64,
    /// The instruction that is running.
    at: usize,
    /// Barriers and blocks that have passed: when this block began, and now.
    block: u32,
    interval: u32,
    /// Barriers of groups that have passed, and how many threads a group has.
    grouped: u32,
    group: u32,
}

impl<'a> Machine<'a> {
    fn new(program: &'a Linear, buffers: &'a mut [Vec<u8>], symbols: &'a [i64]) -> Machine<'a> {
        let mut count = 0;
        let mut first = vec![];
        for t in &program.regs {
            first.push(count);
            count += t.lanes as usize * program.threads as usize;
        }
        let widths = program.code.iter().filter_map(|i| match i {
            Inst::Barrier { width } => *width,
            _ => None,
        });
        let (mut ends, mut open) = (vec![0; program.code.len()], vec![]);
        for (i, inst) in program.code.iter().enumerate() {
            match inst {
                Inst::Loop { .. } => open.push(i),
                Inst::End { .. } => ends[open.pop().expect("verified")] = i,
                _ => {}
            }
        }
        let shadows =
            program.buffers.iter().zip(&*buffers).map(|((element, written), bytes)| {
                written.then(|| Shadow::new(bytes.len() / element.bytes()))
            });
        Machine {
            buffer_shadows: shadows.collect(),
            local_shadows: program.locals.iter().map(|l| Shadow::new(l.len)).collect(),
            locals: program.locals.iter().map(|l| vec![POISON; l.len * l.dtype.bytes()]).collect(),
            program,
            buffers,
            symbols,
            values: vec![Bits(0); count],
            first,
            ends,
            result: vec![],
            tiles: vec![],
            grid: 0,
            at: 0,
            block: 0,
            interval: 0,
            grouped: 0,
            group: widths.min().unwrap_or(1),
        }
    }

    fn start(&mut self, grid: i64) {
        self.grid = grid;
        self.interval += 1;
        self.block = self.interval;
        self.locals.iter_mut().for_each(|l| l.fill(POISON));
        self.local_shadows.iter_mut().for_each(Shadow::clear);
    }

    /// Runs `code[from..to]` for the active threads.
    fn body(&mut self, from: usize, to: usize, active: &[bool]) -> Run {
        let program = self.program;
        let threads = || (0..active.len()).filter(|t| active[*t]);
        let mut at = from;
        while at < to {
            self.at = at;
            match &program.code[at] {
                Inst::Op { dst, op, args } => {
                    for t in threads() {
                        self.op(*dst, op, args, t);
                        self.set(*dst, t);
                    }
                }
                Inst::Load { dst, mem, index, offset, gate } => {
                    for t in threads() {
                        let start = self.scalar(*index, t).as_int() as i128 + *offset as i128;
                        self.load(*dst, *mem, *gate, t, |_, lane| start + lane as i128)?;
                    }
                }
                Inst::Gather { dst, mem, index, gate } => {
                    for t in threads() {
                        self.load(*dst, *mem, *gate, t, |m, l| m.get(*index, t)[l].as_int() as i128)?;
                    }
                }
                Inst::Store { mem, index, offset, value, gate } => {
                    for t in threads() {
                        let start = self.scalar(*index, t).as_int() as i128 + *offset as i128;
                        for lane in 0..self.get(*value, t).len() {
                            if self.is_open(*gate, t, lane) {
                                let v = self.get(*value, t)[lane];
                                self.write(*mem, start + lane as i128, t, v)?;
                            }
                        }
                    }
                }
                Inst::Prefetch { .. } => {}
                Inst::Loop { extent, carried, .. } => {
                    self.repeat(at, *extent, carried, active)?;
                    at = self.ends[at];
                }
                Inst::End { .. } => unreachable!("a loop's body stops before its end"),
                Inst::Barrier { width } => {
                    if active.contains(&false) {
                        return Err("not all threads reach the barrier".into());
                    }
                    match width {
                        None => self.interval += 1,
                        Some(_) => self.grouped += 1,
                    }
                }
                Inst::LaneReduce { dst, fold, src, width } => {
                    let s = program.dtype(*src).scalar;
                    for group in (0..active.len()).step_by(*width as usize) {
                        let group = group..group + *width as usize;
                        match active[group.clone()].iter().filter(|a| **a).count() {
                            0 => continue,
                            n if n < group.len() => {
                                return Err("some threads of a group are inactive".into());
                            }
                            _ => {}
                        }
                        self.result.clear();
                        for lane in 0..program.dtype(*src).lanes as usize {
                            let mut folded = self.get(*src, group.start)[lane];
                            for t in group.clone().skip(1) {
                                folded = scalar::binary(fold.binary(), s, folded, self.get(*src, t)[lane]);
                            }
                            self.result.push(folded);
                        }
                        group.for_each(|t| self.set(*dst, t));
                    }
                }
                Inst::Mma { dst, acc, a, b } => {
                    for group in (0..active.len()).step_by(32) {
                        match active[group..group + 32].iter().filter(|a| **a).count() {
                            0 => continue,
                            32 => {}
                            _ => return Err("some threads of a group are inactive".into()),
                        }
                        let parts = [a[0], a[1], *b];
                        let held = |part: usize, t: usize| self.get(parts[part], group + t).to_vec();
                        let half = self.program.dtype(*b).scalar;
                        let sum = |t| mma(t, half, self.get(*acc, group + t), held);
                        let sums: Vec<_> = (0..32).map(sum).collect();
                        for (t, own) in sums.into_iter().enumerate() {
                            self.result = own;
                            self.set(*dst, group + t);
                        }
                    }
                }
                Inst::TileZero { n } => self.tiles = vec![[0.0; 256]; *n],
                Inst::TileMul { a_mem, a, stride, b_mem, b } => {
                    for (i, &a) in a.iter().enumerate() {
                        for (j, &b_at) in b.iter().enumerate() {
                            self.tile_mul(i * b.len() + j, (*a_mem, a, *stride), (*b_mem, b_at))?;
                        }
                    }
                }
                Inst::TileStore { mem, index } => {
                    for (tile, at) in index.iter().enumerate() {
                        let start = self.scalar(*at, 0).as_int() as i128;
                        for i in 0..256 {
                            let v = Bits::float(self.tiles[tile][i]);
                            self.write(*mem, start + i as i128, 0, v)?;
                        }
                    }
                }
                Inst::TileDot { dst, mem, index, offset, stride, b } => {
                    for t in threads() {
                        let start = self.scalar(*index, t).as_int() as i128 + *offset as i128;
                        for (m, d) in dst.iter().enumerate() {
                            self.tile_row(*mem, start + m as i128 * *stride as i128, b, t)?;
                            self.set(*d, t);
                        }
                    }
                }
            }
            at += 1;
        }
        Ok(())
    }

    /// Runs the loop at `start`: a thread drops out of `active` when its own extent is reached.
    fn repeat(&mut self, start: usize, extent: Reg, carried: &[(Reg, Reg)], active: &[bool]) -> Run {
        let program = self.program;
        let end = self.ends[start];
        let (Inst::Loop { var, .. }, Inst::End { next, out }) = (&program.code[start], &program.code[end])
        else {
            unreachable!("`ends` pairs loops with their ends")
        };
        let (phis, inits): (Vec<Reg>, Vec<Reg>) = carried.iter().copied().unzip();
        for t in (0..active.len()).filter(|t| active[*t]) {
            self.assign(&phis, &inits, t);
        }
        for round in 0.. {
            let running: Vec<bool> =
                (0..active.len()).map(|t| active[t] && round < self.scalar(extent, t).as_int()).collect();
            if !running.contains(&true) {
                break;
            }
            for t in (0..active.len()).filter(|t| running[*t]) {
                self.values[self.first[var.0 as usize] + t] = Bits::int(round);
            }
            self.body(start + 1, end, &running)?;
            for t in (0..active.len()).filter(|t| running[*t]) {
                self.assign(&phis, next, t);
            }
        }
        for t in (0..active.len()).filter(|t| active[*t]) {
            self.assign(out, &phis, t);
        }
        Ok(())
    }

    /// All at once: a source may be one of the destinations.
    fn assign(&mut self, dst: &[Reg], src: &[Reg], t: usize) {
        let new: Vec<Bits> = src.iter().flat_map(|r| self.get(*r, t)).copied().collect();
        let mut rest = &new[..];
        for d in dst {
            let lanes = self.program.dtype(*d).lanes as usize;
            self.result.clear();
            self.result.extend_from_slice(&rest[..lanes]);
            self.set(*d, t);
            rest = &rest[lanes..];
        }
    }

    fn get(&self, r: Reg, t: usize) -> &[Bits] {
        let lanes = self.program.dtype(r).lanes as usize;
        let start = self.first[r.0 as usize] + t * lanes;
        &self.values[start..start + lanes]
    }

    fn scalar(&self, r: Reg, t: usize) -> Bits {
        self.get(r, t)[0]
    }

    /// Gives `dst` the lanes in `result`.
    fn set(&mut self, dst: Reg, t: usize) {
        let lanes = self.result.len();
        let start = self.first[dst.0 as usize] + t * lanes;
        self.values[start..start + lanes].copy_from_slice(&self.result);
    }

    fn is_open(&self, gate: Option<Reg>, t: usize, lane: usize) -> bool {
        gate.is_none_or(|g| match self.get(g, t) {
            [one] => one.as_bool(),
            each => each[lane].as_bool(),
        })
    }

    fn load(
        &mut self,
        dst: Reg,
        mem: Mem,
        gate: Option<Reg>,
        t: usize,
        element: impl Fn(&Self, usize) -> i128,
    ) -> Run {
        self.result.clear();
        for lane in 0..self.program.dtype(dst).lanes as usize {
            let v = match self.is_open(gate, t, lane) {
                true => self.read(mem, element(self, lane), t)?,
                false => Bits(0),
            };
            self.result.push(v);
        }
        self.set(dst, t);
        Ok(())
    }

    fn read(&mut self, mem: Mem, element: i128, t: usize) -> Run<Bits> {
        let i = self.in_bounds(mem, element)?;
        let p = self.point(t);
        if let Some(shadow) = self.shadow(mem) {
            shadow.read(i, p).map_err(|race| format!("race at {mem}[{i}]: {race}"))?;
        }
        let s = self.program.mem_scalar(mem).scalar;
        Ok(Bits::read(s, &self.bytes(mem)[i * s.bytes()..]))
    }

    fn write(&mut self, mem: Mem, element: i128, t: usize, value: Bits) -> Run {
        let i = self.in_bounds(mem, element)?;
        let p = self.point(t);
        let s = self.program.mem_scalar(mem).scalar;
        let mut new = [0u8; 8];
        value.write(s, &mut new);
        let target = &mut self.bytes(mem)[i * s.bytes()..(i + 1) * s.bytes()];
        let changes = *target != new[..s.bytes()];
        target.copy_from_slice(&new[..s.bytes()]);
        match self.shadow(mem) {
            Some(shadow) => shadow.write(i, p, changes).map_err(|race| format!("race at {mem}[{i}]: {race}")),
            None => Ok(()),
        }
    }

    fn in_bounds(&mut self, mem: Mem, element: i128) -> Run<usize> {
        let len = self.bytes(mem).len() / self.program.mem_scalar(mem).bytes();
        match usize::try_from(element) {
            Ok(i) if i < len => Ok(i),
            _ => Err(format!("{mem}[{element}] is out of bounds: {len} elements")),
        }
    }

    fn bytes(&mut self, mem: Mem) -> &mut Vec<u8> {
        match mem {
            Mem::Global(i) => &mut self.buffers[i as usize],
            Mem::Local(i) => &mut self.locals[i as usize],
        }
    }

    fn shadow(&mut self, mem: Mem) -> Option<&mut Shadow> {
        match mem {
            Mem::Global(i) => self.buffer_shadows[i as usize].as_mut(),
            Mem::Local(i) => Some(&mut self.local_shadows[i as usize]),
        }
    }

    fn point(&self, t: usize) -> Point {
        let Machine { block, interval, grouped, group, .. } = *self;
        Point { thread: t as u32, group: t as u32 / group, block, interval, grouped }
    }

    /// Leaves the lanes of `op(args)` for thread `t` in `result`.
    fn op(&mut self, dst: Reg, op: &Op, args: &[Reg], t: usize) {
        let mut result = std::mem::take(&mut self.result);
        result.clear();
        let to = self.program.dtype(dst);
        let from = args.first().map_or(to, |a| self.program.dtype(*a)).scalar;
        let lanes = to.lanes as usize;
        let arg = |i: usize| self.get(args[i], t);
        match *op {
            Op::Const(c) => result.resize(lanes, c),
            Op::Symbol(i) => result.push(Bits::int(self.symbols[i as usize])),
            Op::Grid => result.push(Bits::int(self.grid)),
            Op::Thread => result.push(Bits::int(t as i64)),
            Op::Iota => result.extend((0..lanes as i64).map(Bits::int)),
            Op::Unary(u) => result.extend(arg(0).iter().map(|a| scalar::unary(u, from, *a))),
            Op::Binary(b) => {
                result.extend(arg(0).iter().zip(arg(1)).map(|(x, y)| scalar::binary(b, from, *x, *y)))
            }
            Op::Fma => result.extend((0..lanes).map(|l| scalar::fma(arg(0)[l], arg(1)[l], arg(2)[l]))),
            Op::Where => {
                result.extend((0..lanes).map(|l| if arg(0)[l].as_bool() { arg(1)[l] } else { arg(2)[l] }))
            }
            Op::Cast => result.extend(arg(0).iter().map(|a| scalar::cast(from, to.scalar, *a))),
            Op::Bitcast => result.extend(arg(0).iter().map(|a| scalar::bitcast(from, to.scalar, *a))),
            Op::Spread => {
                let times = lanes / arg(0).len();
                result.extend((0..lanes).map(|l| arg(0)[l / times]));
            }
            Op::Repeat => result.extend((0..lanes).map(|l| arg(0)[l % arg(0).len()])),
            Op::Extract(lane) => result.push(arg(0)[lane as usize]),
            Op::Slice(first) => result.extend_from_slice(&arg(0)[first as usize..][..lanes]),
            Op::Stack => result.extend(args.iter().map(|a| self.scalar(*a, t))),
            Op::Fold(f) => {
                let folded =
                    |v: &[Bits]| v.iter().copied().reduce(|x, y| scalar::binary(f.binary(), from, x, y));
                result.extend((0..lanes).map(|l| folded(arg(l)).expect("verified: at least one lane")));
            }
            Op::Dot4 => {
                for (l, acc) in arg(0).iter().enumerate() {
                    let products = (4 * l..4 * l + 4)
                        .map(|i| product(Scalar::I32, (Scalar::U8, arg(1)[i]), (Scalar::I8, arg(2)[i])));
                    result.push(products.fold(*acc, |x, y| scalar::binary(Binary::Add, Scalar::I32, x, y)));
                }
            }
            Op::Pairs => result.extend((0..lanes).map(|l| scalar::pair(from, arg(l % 2)[l / 2]))),
            Op::Lookup(table) => result.extend(arg(0).iter().map(|a| {
                let entry = table.to_le_bytes()[a.0 as usize & 15];
                Bits::read(to.scalar, &[entry])
            })),
        }
        self.result = result;
    }

    /// One accumulator gains the product of two tiles.
    fn tile_mul(&mut self, tile: usize, a: (Mem, Reg, i64), b: (Mem, Reg)) -> Run {
        let (a_start, b_start) = (self.scalar(a.1, 0).as_int() as i128, self.scalar(b.1, 0).as_int() as i128);
        let wide = |v: Bits| scalar::cast(Scalar::BF16, Scalar::F32, v).as_float();
        let mut columns = vec![];
        for i in 0..512 {
            columns.push(wide(self.read(b.0, b_start + i, 0)?));
        }
        for row in 0..16 {
            for k in 0..32 {
                let x = wide(self.read(a.0, a_start + row as i128 * a.2 as i128 + k as i128, 0)?);
                for c in 0..16 {
                    self.tiles[tile][16 * row + c] += x * columns[32 * (k / 2) + 2 * c + k % 2];
                }
            }
        }
        Ok(())
    }

    /// Leaves one row of a tile product in `result`: the row of `a` starts at `start`.
    fn tile_row(&mut self, mem: Mem, start: i128, b: &[Reg], t: usize) -> Run {
        let mut row = vec![Bits(0); 16];
        for (j, column) in b.iter().enumerate() {
            for i in 0..4 {
                let a = self.read(mem, start + (4 * j + i) as i128, t)?;
                for (r, acc) in row.iter_mut().enumerate() {
                    let b = self.get(*column, t)[4 * r + i];
                    let term = product(Scalar::I32, (Scalar::I8, a), (Scalar::U8, b));
                    *acc = scalar::binary(Binary::Add, Scalar::I32, *acc, term);
                }
            }
        }
        self.result = row;
        Ok(())
    }
}

/// The product of two values, widened to `to` first.
fn product(to: Scalar, a: (Scalar, Bits), b: (Scalar, Bits)) -> Bits {
    scalar::binary(Binary::Mul, to, scalar::cast(a.0, to, a.1), scalar::cast(b.0, to, b.1))
}

#[cfg(test)]
mod tests;
