//! Kernels, and the lists of stores that expansion and vectorisation make of them: memory in, memory after the kernel
//! out.
//!
//! How a range is carried out does not matter here: every one just enumerates. Each row begins with undefined local
//! memory and runs its stages one after the other; within a stage every value is computed before it is written, once for
//! each value of the ranges on which the stage's stores depend.

use super::expr::{Env, eval_all, eval1};
use crate::dtype::Bits;
use crate::graph::{Ex, Id, Op, topo};
use crate::rewrite::Ranges;
use crate::schedule::{Kernel, length};
use std::cell::RefCell;
use std::collections::HashMap;

/// The bytes of each buffer by slot.
pub type Memory = HashMap<u32, Vec<u8>>;

/// What undefined memory holds.
const POISON: u8 = 0xCD;

/// Runs a kernel, scheduled or not. Buffers that `memory` lacks begin undefined.
pub fn run(kernel: &Kernel, memory: &mut Memory, symbols: &HashMap<String, i64>) {
    let stages: Vec<Vec<Ex>> = kernel.stages.iter().map(|s| vec![s.store]).collect();
    run_stages(&kernel.rows, &stages, memory, symbols);
}

/// Runs the stores of each stage for every row.
pub fn run_stages(rows: &[Ex], stages: &[Vec<Ex>], memory: &mut Memory, symbols: &HashMap<String, i64>) {
    let mut ranges = Ranges::new();
    let free: Vec<Vec<Ex>> = stages.iter().map(|stores| free_ranges(stores, &mut ranges)).collect();
    // Copies have taken the place of the rows that a register tile covers.
    let rows: Vec<Ex> = rows.iter().copied().filter(|r| free.iter().any(|f| f.contains(r))).collect();
    let ram = RefCell::new(Ram { globals: memory, locals: HashMap::new(), lengths: HashMap::new() });
    let mut load = |mem: Ex, i: i64| ram.borrow().read(mem, i);
    let mut env = Env { ranges: HashMap::new(), symbols: symbols.clone(), load: &mut load };
    for mem in topo(&stages.concat()).into_iter().filter(|e| matches!(e.op(), Op::Buffer(_) | Op::Local(_))) {
        let size = length(mem);
        let now = eval1(size, &mut env).as_int() as usize;
        ram.borrow_mut().declare(mem, now, size.bounds().1 as usize);
    }
    each(&rows, &mut env, &mut |env| {
        ram.borrow_mut().forget_locals();
        for (stores, free) in stages.iter().zip(&free) {
            let outs: Vec<Ex> = free.iter().copied().filter(|r| !rows.contains(r)).collect();
            let first = |s: &Ex| if s.op() == Op::TileProduct { 3 } else { 1 };
            let parts: Vec<Ex> = stores.iter().flat_map(|s| s.args().split_off(first(s))).collect();
            each(&outs, env, &mut |env| {
                let values = eval_all(&parts, env, &mut ranges);
                let mut values = values.into_iter();
                for &store in stores {
                    if store.op() == Op::TileProduct {
                        let at = std::array::from_fn(|_| values.next().unwrap()[0].as_int());
                        ram.borrow_mut().tile_product(store, at);
                        continue;
                    }
                    let (index, value) = (values.next().unwrap(), values.next().unwrap());
                    let gate = (store.args().len() > 3).then(|| values.next().unwrap());
                    for (lane, &v) in value.iter().enumerate() {
                        if gate.as_ref().is_none_or(|g| g[lane % g.len()].as_bool()) {
                            ram.borrow_mut().write(store.arg(0), index[0].as_int() + lane as i64, v);
                        }
                    }
                }
            });
        }
    });
}

/// The ranges that some of the stores depend on, bounds before what they bound.
fn free_ranges<'g>(stores: &[Ex<'g>], ranges: &mut Ranges) -> Vec<Ex<'g>> {
    let mut ids: Vec<Id> = stores.iter().flat_map(|&s| ranges.of(s).to_vec()).collect();
    ids.sort();
    ids.dedup();
    ids.into_iter().map(|id| stores[0].g.ex(id)).collect()
}

/// Calls `f` for every value of the ranges.
fn each(ranges: &[Ex], env: &mut Env, f: &mut dyn FnMut(&mut Env)) {
    let Some((&range, inner)) = ranges.split_first() else { return f(env) };
    for i in 0..eval1(range.arg(0), env).as_int() {
        env.ranges.insert(range.id, i);
        each(inner, env, f);
    }
    env.ranges.remove(&range.id);
}

struct Ram<'a> {
    globals: &'a mut Memory,
    locals: HashMap<u32, Vec<u8>>,
    /// Elements of each memory at the symbols' values, and at their largest: what lies between is there, but undefined.
    lengths: HashMap<Id, (usize, usize)>,
}

impl Ram<'_> {
    fn declare(&mut self, mem: Ex, now: usize, most: usize) {
        self.lengths.insert(mem.id, (now, most));
        let bytes = now * mem.dtype().bytes();
        let held = match mem.op() {
            Op::Buffer(slot) => self.globals.entry(slot),
            Op::Local(n) => self.locals.entry(n),
            op => panic!("{op:?} is no memory"),
        };
        let held = held.or_insert_with(|| vec![POISON; bytes]).len();
        assert!(held >= bytes, "{} has {held} bytes and needs {bytes}", crate::text::expr(mem));
    }

    fn forget_locals(&mut self) {
        self.locals.values_mut().for_each(|l| l.fill(POISON));
    }

    /// Where in its bytes an element lies.
    fn at(&self, mem: Ex, element: i64, length: usize) -> std::ops::Range<usize> {
        let size = mem.dtype().bytes();
        let inside = usize::try_from(element).ok().filter(|i| *i < length);
        let i = inside.unwrap_or_else(|| {
            panic!("{}[{element}] is out of bounds: {length} elements", crate::text::expr(mem))
        });
        i * size..(i + 1) * size
    }

    fn read(&self, mem: Ex, element: i64) -> Bits {
        let bytes = match mem.op() {
            Op::Buffer(slot) => &self.globals[&slot],
            Op::Local(n) => &self.locals[&n],
            op => panic!("{op:?} is no memory"),
        };
        let bytes = bytes.get(self.at(mem, element, self.lengths[&mem.id].1));
        Bits::read(mem.dtype().scalar, bytes.unwrap_or(&[POISON; 8]))
    }

    fn tile_product(&mut self, e: Ex, [c_at, a_at, b_at, stride, step, steps]: [i64; 6]) {
        let (c, a, b) = (e.arg(0), e.arg(1), e.arg(2));
        let mut sums = [0f32; 256];
        for k in 0..32 * steps {
            for (i, sum) in sums.iter_mut().enumerate() {
                let (row, column) = (i as i64 / 16, i as i64 % 16);
                let x = self.read(a, a_at + row * stride + k / 32 * step + k % 32).as_float();
                let y = self.read(b, b_at + k / 2 * 32 + 2 * column + k % 2).as_float();
                *sum += x * y;
            }
        }
        for (i, sum) in sums.into_iter().enumerate() {
            self.write(c, c_at + i as i64, Bits::float(sum));
        }
    }

    fn write(&mut self, mem: Ex, element: i64, value: Bits) {
        let (at, scalar) = (self.at(mem, element, self.lengths[&mem.id].0), mem.dtype().scalar);
        let bytes = match mem.op() {
            Op::Buffer(slot) => self.globals.get_mut(&slot),
            Op::Local(n) => self.locals.get_mut(&n),
            op => panic!("{op:?} is no memory"),
        };
        value.write(scalar, &mut bytes.expect("declared")[at]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::graph::{Graph, Kind};
    use crate::schedule::Stage;

    /// Row sums of a 2×3 matrix by way of local memory.
    #[test]
    fn stages_share_locals_within_a_row() {
        let g = Graph::new();
        let (x, y) = (g.new_buffer("x", DType::I32, &[g.int(6)]), g.new_buffer("y", DType::I32, &[g.int(2)]));
        let local = g.make(Op::Local(0), DType::I32, &[g.int(3)]);
        let range = |n: i64| g.new_range(g.int(n), Kind::Serial);
        let (r, i, j) = (range(2), range(3), range(3));
        let load = |m, i| g.make(Op::Load, DType::I32, &[m, i]);
        let copy = g.make(Op::Store, DType::I32, &[local, i, load(x, r * 3 + i) * 2]);
        let sum = g.make(Op::Fold(crate::scalar::Fold::Sum, 1), DType::I32, &[load(local, j), j]);
        let total = g.make(Op::Store, DType::I32, &[y, r, sum, r.lt(1)]);
        let stages = vec![Stage { outs: vec![i], store: copy }, Stage { outs: vec![], store: total }];
        let kernel = Kernel { g: &g, name: "sums".into(), rows: vec![r], stages };
        let mut memory = Memory::from([(0, (1..=6i32).flat_map(i32::to_le_bytes).collect())]);
        run(&kernel, &mut memory, &HashMap::new());
        assert_eq!(memory[&1], [12i32.to_le_bytes(), [POISON; 4]].concat(), "the second row is gated off");
    }
}
