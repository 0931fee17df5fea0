//! The linear level: a list of typed vector instructions with structured loops and virtual registers.
//!
//! In: what `codegen::linearize` produced from a scheduled kernel. Out: what a [`Target`](crate::codegen::Target) turns
//! into bytes or text. Every register is written once (structured SSA): values that change in a loop are the loop's
//! `carried` list.
//!
//! How a program runs: it is started once for every `grid` index (a CPU worker calls it with a sub-range of them, a GPU
//! starts one block for each). On a GPU `threads` threads run each block and share the `locals`; on a CPU `threads` is 1.

use crate::dtype::{Bits, DType, Scalar};
use crate::graph;
use crate::scalar::{self, Binary, Fold, Unary};
use std::fmt::{self, Write};

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(pub u32);

/// Where a load or store goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Mem {
    /// The n-th buffer argument.
    Global(u32),
    /// The n-th entry of `Linear::locals`: shared by a block's threads, private to a CPU worker, undefined at start.
    Local(u32),
}

#[derive(Clone, PartialEq, Debug)]
pub enum Inst {
    /// `dst = op(args)`, no effect.
    Op { dst: Reg, op: Op, args: Vec<Reg> },
    /// Reads `dst`'s lanes from consecutive elements that start at `index + offset` (in elements of `dst`'s scalar).
    /// Lanes whose `gate` is false read nothing and give 0; a scalar gate covers all lanes.
    Load { dst: Reg, mem: Mem, index: Reg, offset: i64, gate: Option<Reg> },
    /// Reads lane l from element `index[l]`; `index` is an i32 vector as wide as `dst`.
    Gather { dst: Reg, mem: Mem, index: Reg, gate: Option<Reg> },
    /// Writes all lanes of `value` to consecutive elements; gated like `Load`.
    Store { mem: Mem, index: Reg, offset: i64, value: Reg, gate: Option<Reg> },
    /// Asks for the cache line of element `index + offset` of bytes; may lie outside the buffer. Only a hint: a target may
    /// leave out the `gate`, and all of it.
    Prefetch { mem: Mem, index: Reg, offset: i64, gate: Option<Reg> },
    /// Runs the instructions up to the matching `End` for `var` = 0, 1, .. `extent`-1 (i64; may be none). A carried
    /// `(phi, init)`: `phi` is `init` in the first round and afterwards what `End` names.
    Loop { var: Reg, extent: Reg, carried: Vec<(Reg, Reg)> },
    /// Closes a loop: `next[i]` is the coming round's `phi[i]`, and `out[i]` the value after the last round.
    End { next: Vec<Reg>, out: Vec<Reg> },
    /// All threads of the block, or of each aligned group of `width` neighbours, arrive before one goes on; local memory
    /// that they wrote before is seen after.
    Barrier { width: Option<u32> },
    /// Folds `src` over aligned groups of `width` neighbouring threads; each thread of the group gets the result.
    LaneReduce { dst: Reg, fold: Fold, src: Reg, width: u32 },
    /// Every 32 neighbouring threads add the product of a 16×16 and a 16×8 matrix, both of bf16 or of f16, to one of f32.
    /// Thread 4g + t holds four inputs (bf16x4 or f16x4) of rows g (`a[0]`) and g + 8 (`a[1]`) and of column g (`b`); which
    /// four is the same for all g. Of the sums it holds columns 2t and 2t + 1 of row g, then of row g + 8 (f32x4).
    Mma { dst: Reg, acc: Reg, a: [Reg; 2], b: Reg },
    /// Matrix product on a tile unit. `a`: 16 rows, `stride` elements apart, of `4·b.len()` i8 elements from
    /// `index + offset` on. `b[j]`: 16 columns × 4 inputs of u8 (u8x64), at most 16 of them. `dst[m]` (i32x16):
    /// `dst[m][r] = Σ_{j,i} a[m][4j+i] · b[j][4r+i]`.
    TileDot { dst: Vec<Reg>, mem: Mem, index: Reg, offset: i64, stride: i64, b: Vec<Reg> },
    /// The first `n` accumulators of the tile unit, each 16×16 of f32, become zero.
    TileZero { n: usize },
    /// Accumulator `i·b.len() + j` gains `A_i·B_j`, up to two of each. `A_i`: 16 rows of 32 bf16 from `a[i]` on, `stride`
    /// elements apart. `B_j`: 16 rows of 16 columns × 2 inputs of bf16, 512 elements from `b[j]` on.
    TileMul { a_mem: Mem, a: Vec<Reg>, stride: i64, b_mem: Mem, b: Vec<Reg> },
    /// The first accumulators, 16 rows of 16 one after the other, go to the elements from `index[i]` on.
    TileStore { mem: Mem, index: Vec<Reg> },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// In every lane.
    Const(Bits),
    /// Value of the n-th symbol argument (i64).
    Symbol(u32),
    /// Which grid index this is (i64).
    Grid,
    /// Which thread of the block (i64); 0 on a CPU.
    Thread,
    /// 0, 1, 2, .. (i32 vector).
    Iota,
    Unary(Unary),
    /// Comparisons take two equal types and give bools of as many lanes.
    Binary(Binary),
    /// `a·b + c` rounded once (f32).
    Fma,
    /// `cond ? a : b`, `cond` a bool of as many lanes.
    Where,
    /// Keeps the lane count.
    Cast,
    /// Keeps the lane count and the width; no bools.
    Bitcast,
    /// Every lane repeated: n lanes become n·k, lane l at l·k .. l·k+k.
    Spread,
    /// The whole vector repeated: n lanes become n·k, lane l at l, l+n, l+2n, ...
    Repeat,
    /// One lane.
    Extract(u16),
    /// As many consecutive lanes as `dst` has, from this one on.
    Slice(u16),
    /// Scalars become the lanes of a vector.
    Stack,
    /// All lanes of each argument folded to one lane; a float sum's order is the target's (the interpreter's: from lane 0
    /// on).
    Fold(Fold),
    /// `acc + Σ_i a[4l+i]·b[4l+i]` in every lane l; args acc (i32), a (u8), b (i8).
    Dot4,
    /// Two vectors as one of bf16, lane by lane side by side: `a[l]` at 2l, `b[l]` at 2l+1. Of u32 these are the upper 16
    /// bits, f32 are rounded, where subnormals become 0.
    Pairs,
    /// 16-entry byte table, entry i at bits 8i..8i+8; the argument's low four bits choose. u8 in, i8 or u8 out.
    Lookup(u128),
}

impl Op {
    /// The instruction that computes a node of the scheduled level from its arguments alone.
    pub fn of(op: graph::Op) -> Option<Op> {
        Some(match op {
            graph::Op::Const(v) => Op::Const(v),
            graph::Op::Unary(u) => Op::Unary(u),
            graph::Op::Binary(b) => Op::Binary(b),
            graph::Op::Fma => Op::Fma,
            graph::Op::Where => Op::Where,
            graph::Op::Cast => Op::Cast,
            graph::Op::Bitcast => Op::Bitcast,
            graph::Op::Lookup(t) => Op::Lookup(t),
            graph::Op::Lanes => Op::Iota,
            graph::Op::Spread => Op::Spread,
            graph::Op::Repeat => Op::Repeat,
            graph::Op::Extract(i) => Op::Extract(i),
            graph::Op::Slice(first) => Op::Slice(first),
            graph::Op::Stack => Op::Stack,
            graph::Op::LaneFold(f) => Op::Fold(f),
            graph::Op::Dot4 => Op::Dot4,
            graph::Op::Pairs => Op::Pairs,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Local {
    pub dtype: DType,
    pub len: usize,
}

/// A number that may depend on the symbols: how many grid indices there are.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Count {
    Const(i64),
    /// The n-th symbol argument.
    Symbol(u32),
    Binary(Binary, Box<(Count, Count)>),
}

impl Count {
    pub fn eval(&self, symbols: &[i64]) -> i64 {
        match self {
            Count::Const(v) => *v,
            Count::Symbol(i) => symbols[*i as usize],
            Count::Binary(op, ab) => {
                let (a, b) = (Bits::int(ab.0.eval(symbols)), Bits::int(ab.1.eval(symbols)));
                scalar::binary(*op, Scalar::I64, a, b).as_int()
            }
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct Linear {
    pub name: String,
    /// Number of grid indices.
    pub grid: Count,
    /// Element type of each buffer argument and whether it is written.
    pub buffers: Vec<(DType, bool)>,
    /// Names of the symbol arguments.
    pub symbols: Vec<String>,
    pub locals: Vec<Local>,
    pub threads: u32,
    pub code: Vec<Inst>,
    /// Type of each register.
    pub regs: Vec<DType>,
}

impl Linear {
    pub fn reg(&mut self, t: DType) -> Reg {
        self.regs.push(t);
        Reg(self.regs.len() as u32 - 1)
    }
    pub fn dtype(&self, r: Reg) -> DType {
        self.regs[r.0 as usize]
    }
    /// Appends `dst = op(args)`.
    pub fn op(&mut self, t: DType, op: Op, args: &[Reg]) -> Reg {
        let dst = self.reg(t);
        self.code.push(Inst::Op { dst, op, args: args.to_vec() });
        dst
    }
    /// Does memory say how many rounds a loop has? Then some grid indices may take much longer than others.
    pub fn is_uneven(&self) -> bool {
        let mut read = vec![false; self.regs.len()];
        for inst in &self.code {
            let loads = matches!(inst, Inst::Load { .. } | Inst::Gather { .. });
            let depends = loads || inst.uses().iter().any(|r| read[r.0 as usize]);
            match inst {
                Inst::Loop { extent, .. } if read[extent.0 as usize] => return true,
                // A loop's number is known; what it carries may not be.
                Inst::Loop { carried, .. } => {
                    carried.iter().for_each(|(r, init)| read[r.0 as usize] = read[init.0 as usize]);
                }
                _ => inst.defs().iter().for_each(|r| read[r.0 as usize] = depends),
            }
        }
        false
    }
    pub fn mem_scalar(&self, m: Mem) -> DType {
        match m {
            Mem::Global(i) => self.buffers[i as usize].0,
            Mem::Local(i) => self.locals[i as usize].dtype,
        }
    }
}

impl Inst {
    /// Registers this instruction defines. A `Loop` defines its variable and phis, an `End` the loop's results.
    pub fn defs(&self) -> Vec<Reg> {
        match self {
            Inst::Op { dst, .. }
            | Inst::Load { dst, .. }
            | Inst::Gather { dst, .. }
            | Inst::LaneReduce { dst, .. }
            | Inst::Mma { dst, .. } => vec![*dst],
            Inst::TileDot { dst, .. } => dst.clone(),
            Inst::Loop { var, carried, .. } => {
                std::iter::once(*var).chain(carried.iter().map(|c| c.0)).collect()
            }
            Inst::End { out, .. } => out.clone(),
            Inst::Store { .. } | Inst::Prefetch { .. } | Inst::Barrier { .. } => vec![],
            Inst::TileZero { .. } | Inst::TileMul { .. } | Inst::TileStore { .. } => vec![],
        }
    }

    pub fn uses(&self) -> Vec<Reg> {
        match self {
            Inst::Op { args, .. } => args.clone(),
            Inst::Load { index, gate, .. }
            | Inst::Gather { index, gate, .. }
            | Inst::Prefetch { index, gate, .. } => std::iter::once(*index).chain(*gate).collect(),
            Inst::Store { index, value, gate, .. } => [*index, *value].into_iter().chain(*gate).collect(),
            Inst::Loop { extent, carried, .. } => {
                std::iter::once(*extent).chain(carried.iter().map(|c| c.1)).collect()
            }
            Inst::End { next, .. } => next.clone(),
            Inst::Barrier { .. } | Inst::TileZero { .. } => vec![],
            Inst::TileMul { a, b, .. } => [a.as_slice(), b].concat(),
            Inst::TileStore { index, .. } => index.clone(),
            Inst::LaneReduce { src, .. } => vec![*src],
            Inst::Mma { acc, a, b, .. } => vec![*acc, a[0], a[1], *b],
            Inst::TileDot { index, b, .. } => std::iter::once(*index).chain(b.iter().copied()).collect(),
        }
    }

    /// The memories that are touched.
    pub fn memory(&self) -> Vec<Mem> {
        match self {
            Inst::Load { mem, .. }
            | Inst::Gather { mem, .. }
            | Inst::Store { mem, .. }
            | Inst::Prefetch { mem, .. }
            | Inst::TileDot { mem, .. }
            | Inst::TileStore { mem, .. } => vec![*mem],
            Inst::TileMul { a_mem, b_mem, .. } => vec![*a_mem, *b_mem],
            _ => vec![],
        }
    }

    /// Puts `f` of each used register in its place.
    pub fn map_uses(&mut self, mut f: impl FnMut(Reg) -> Reg) {
        let mut put = |r: &mut Reg| *r = f(*r);
        match self {
            Inst::Op { args: all, .. } | Inst::End { next: all, .. } => all.iter_mut().for_each(put),
            Inst::Load { index, gate, .. }
            | Inst::Gather { index, gate, .. }
            | Inst::Prefetch { index, gate, .. } => {
                put(index);
                gate.iter_mut().for_each(put);
            }
            Inst::Store { index, value, gate, .. } => {
                put(index);
                put(value);
                gate.iter_mut().for_each(put);
            }
            Inst::Loop { extent, carried, .. } => {
                put(extent);
                carried.iter_mut().for_each(|(_, init)| put(init));
            }
            Inst::Barrier { .. } | Inst::TileZero { .. } => {}
            Inst::TileMul { a, b, .. } => a.iter_mut().chain(b).for_each(put),
            Inst::TileStore { index, .. } => index.iter_mut().for_each(put),
            Inst::LaneReduce { src, .. } => put(src),
            Inst::Mma { acc, a, b, .. } => [acc, b].into_iter().chain(a).for_each(put),
            Inst::TileDot { index, b, .. } => {
                put(index);
                b.iter_mut().for_each(put);
            }
        }
    }
}

impl fmt::Debug for Reg {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}
impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}
impl fmt::Display for Mem {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Mem::Global(i) => write!(f, "g{i}"),
            Mem::Local(i) => write!(f, "l{i}"),
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Count::Const(v) => write!(f, "{v}"),
            Count::Symbol(i) => write!(f, "s{i}"),
            Count::Binary(op, ab) => write!(f, "{op:?}({}, {})", ab.0, ab.1),
        }
    }
}

fn list(rs: &[Reg]) -> String {
    rs.iter().map(|r| r.to_string()).collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Linear {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        writeln!(f, "linear {} grid {} threads {}", self.name, self.grid, self.threads)?;
        for (i, (t, written)) in self.buffers.iter().enumerate() {
            writeln!(f, "  buffer g{i}: {t}{}", if *written { " written" } else { "" })?;
        }
        for (i, s) in self.symbols.iter().enumerate() {
            writeln!(f, "  symbol s{i}: {s}")?;
        }
        for (i, l) in self.locals.iter().enumerate() {
            writeln!(f, "  local l{i}: {}[{}]", l.dtype, l.len)?;
        }
        let mut defined = vec![false; self.regs.len()];
        for r in self.code.iter().flat_map(Inst::defs) {
            defined.get_mut(r.0 as usize).into_iter().for_each(|d| *d = true);
        }
        for (i, t) in self.regs.iter().enumerate().filter(|(i, _)| !defined[*i]) {
            writeln!(f, "  unused %{i}: {t}")?;
        }
        let mut depth = 1i32;
        for inst in &self.code {
            if matches!(inst, Inst::End { .. }) {
                depth = 1.max(depth - 1);
            }
            writeln!(f, "{:1$}{2}", "", 2 * depth as usize, self.show(inst))?;
            if matches!(inst, Inst::Loop { .. }) {
                depth += 1;
            }
        }
        Ok(())
    }
}

impl Linear {
    /// One instruction as `Display` prints it. Also prints illegal programs: the verifier shows what it rejects.
    pub fn show(&self, inst: &Inst) -> String {
        let dtype = |r: &Reg| self.regs.get(r.0 as usize);
        let def = |r: &Reg| match dtype(r) {
            Some(t) => format!("{r}: {t}"),
            None => format!("{r}: ?"),
        };
        let at = |m: &Mem, i: &Reg, o: &i64| match o {
            0 => format!("{m}[{i}]"),
            o => format!("{m}[{i} {} {}]", if *o < 0 { '-' } else { '+' }, o.unsigned_abs()),
        };
        let when = |g: &Option<Reg>| g.map(|g| format!(" if {g}")).unwrap_or_default();
        match inst {
            Inst::Op { dst, op, args } => {
                let mut s = format!("{} = ", def(dst));
                match op {
                    Op::Const(b) => s += &b.show(dtype(dst).map_or(Scalar::I64, |t| t.scalar)),
                    Op::Symbol(i) => write!(s, "s{i}").unwrap(),
                    Op::Lookup(table) => write!(s, "Lookup({table:#034x})").unwrap(),
                    Op::Unary(u) => write!(s, "{u:?}").unwrap(),
                    Op::Binary(b) => write!(s, "{b:?}").unwrap(),
                    Op::Fold(k) => write!(s, "Fold{k:?}").unwrap(),
                    op => write!(s, "{op:?}").unwrap(),
                }
                if !args.is_empty() {
                    write!(s, " {}", list(args)).unwrap();
                }
                s
            }
            Inst::Load { dst, mem, index, offset, gate } => {
                format!("{} = load {}{}", def(dst), at(mem, index, offset), when(gate))
            }
            Inst::Gather { dst, mem, index, gate } => {
                format!("{} = gather {}{}", def(dst), at(mem, index, &0), when(gate))
            }
            Inst::Store { mem, index, offset, value, gate } => {
                format!("store {} = {value}{}", at(mem, index, offset), when(gate))
            }
            Inst::Prefetch { mem, index, offset, gate } => {
                format!("prefetch {}{}", at(mem, index, offset), when(gate))
            }
            Inst::Loop { var, extent, carried } => {
                let c: Vec<_> = carried.iter().map(|(p, i)| format!("{} = {i}", def(p))).collect();
                format!("loop {var} < {extent} [{}]", c.join(", "))
            }
            Inst::End { next, out } => {
                let o: Vec<_> = out.iter().map(def).collect();
                format!("end [{}] -> [{}]", list(next), o.join(", "))
            }
            Inst::Barrier { width: None } => "barrier".into(),
            Inst::Barrier { width: Some(n) } => format!("barrier of {n}"),
            Inst::TileZero { n } => format!("tilezero {n}"),
            Inst::TileMul { a_mem, a, stride, b_mem, b } => {
                format!("tilemul {a_mem}[{}] by {stride} of {b_mem}[{}]", list(a), list(b))
            }
            Inst::TileStore { mem, index } => format!("tilestore {mem}[{}]", list(index)),
            Inst::LaneReduce { dst, fold, src, width } => {
                format!("{} = lanes{width} {fold:?} {src}", def(dst))
            }
            Inst::Mma { dst, acc, a, b } => {
                format!("{} = mma {}", def(dst), list(&[*acc, a[0], a[1], *b]))
            }
            Inst::TileDot { dst, mem, index, offset, stride, b } => {
                let dst: Vec<_> = dst.iter().map(def).collect();
                format!(
                    "[{}] = tiledot {} by {stride} of {}",
                    dst.join(", "),
                    at(mem, index, offset),
                    list(b)
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::text::linear::parse;

    #[test]
    fn loops_that_memory_bounds_are_uneven() {
        let uneven = |code: &str| {
            let head = "linear t grid 1 threads 1\n buffer g0: i64\n buffer g1: i64 written\n symbol s0: n\n";
            parse(&format!("{head}%0: i64 = s0\n%1: i64 = load g0[%0]\n{code}")).unwrap().is_uneven()
        };
        assert!(!uneven("loop %2 < %0 []\nstore g1[%2] = %1\nend [] -> []\n"));
        assert!(!uneven(
            "loop %2 < %0 [%3: i64 = %1]\nloop %4 < %2 []\nend [] -> []\nend [%3] -> [%5: i64]\n"
        ));
        assert!(uneven("loop %2 < %1 []\nend [] -> []\n"));
        assert!(uneven("%2: i64 = Add %1 %0\nloop %3 < %2 []\nend [] -> []\n"));
        assert!(uneven(
            "loop %2 < %0 [%3: i64 = %1]\nloop %4 < %3 []\nend [] -> []\nend [%3] -> [%5: i64]\n"
        ));
    }
}
