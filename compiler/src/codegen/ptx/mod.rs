//! NVIDIA PTX. In: a linear program for a GPU; out: the text of one `.entry` that the driver assembles.
//!
//! The entry takes one `.u64` a buffer and then the address of an i64 array with the symbol values (never read when the
//! program has none). Stamped kernels write times behind these values. A block is one grid index (`%ctaid.x`) of `threads` threads (`%tid.x`). Buffers are aligned to 16
//! bytes.
//!
//! How values live in registers: a lane of 32 bits is one `.b32`, an i64 one `.b64`, a bool one `.pred`. Vectors of 8-
//! and 16-bit elements are packed four or two to a `.b32`, lane 0 lowest; what lies above the last lane is unspecified.
//! A scalar 8- or 16-bit integer is kept sign- or zero-extended. A scalar i64 whose range fits 32 bits may live in a
//! `.b32`: 64-bit arithmetic costs a GPU several instructions each, and nearly all i64 are indices.

mod arith;
mod asm;
mod bundle;
mod bytes;
mod copies;
mod early;
mod facts;
mod lanes;
mod memory;
#[cfg(test)]
mod tests;

use super::{Caps, Code, Target};
use crate::bundle::Bundle;
use crate::dtype::{DType, Scalar};
use crate::linear::{Inst, Linear, Mem, Op, Reg};
use crate::scalar::Binary;
use asm::{Address, Asm, Piece};
use bytes::Bytes;
use copies::Copies;
use early::Step;
use facts::{Fact, facts};
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// Bytes of shared memory a kernel may declare statically; what is larger the launch must ask for.
const STATIC_SHARED: usize = 48 * 1024;

/// What a stamped kernel makes less and more behind its symbol values: when its first block had waited for the kernel
/// before, and when its last one was done, in nanoseconds by the GPU's clock.
pub const STAMPS: usize = 2;

pub struct Ptx {
    sm: u32,
    name: String,
    stamps: bool,
}

impl Ptx {
    /// `sm`: compute capability times ten, at least 80.
    pub fn new(sm: u32) -> Ptx {
        assert!(sm >= 80, "sm_{sm} lacks what the code generator uses; sm_80 is the oldest");
        Ptx { sm, name: format!("ptx-sm{sm}"), stamps: false }
    }

    /// The same kernels, but they say when they ran: see [`STAMPS`].
    pub fn stamped(&self) -> Ptx {
        Ptx { sm: self.sm, name: self.name.clone(), stamps: true }
    }

    /// Do kernels wait by themselves for the one before them, which lets them start while it still runs?
    pub fn overlaps(&self) -> bool {
        self.sm >= 90
    }

    /// The code of a program, wherever in an entry it stands.
    fn body(&self, e: &mut Emitter) {
        e.prologue();
        let code = &e.program.code;
        // What is fetched ahead need not wait for the kernel before.
        let fetch = |i: &Inst| matches!(i, Inst::Prefetch { .. });
        let pure = code.iter().take_while(|i| fetch(i) || matches!(i, Inst::Op { .. })).count();
        let ahead = &code[..code[..pure].iter().rposition(fetch).map_or(0, |at| at + 1)];
        let steps = early::order(e.program, ahead.len(), &e.seat);
        let later: HashSet<Mem> = steps
            .iter()
            .skip_while(|s| **s != Step::Wait)
            .filter_map(|s| {
                if let Step::Early(at) | Step::Inst(at) = s { Some(code[*at].memory()) } else { None }
            })
            .flatten()
            .collect();
        let loaded = |i: &Inst| matches!(i, Inst::Prefetch { mem, .. } if !later.contains(mem));
        for (at, inst) in ahead.iter().enumerate().filter(|(_, i)| !loaded(i)) {
            e.inst(at, inst);
        }
        e.dismiss();
        for step in steps {
            let at = match step {
                Step::Fence => {
                    e.asm.line("bar.warp.sync 0xffffffff");
                    continue;
                }
                Step::Wait => {
                    self.wait(e);
                    continue;
                }
                Step::Early(at) | Step::Inst(at) => at,
            };
            match code[at] {
                Inst::Loop { .. } | Inst::End { .. } | Inst::Barrier { .. } => e.early = false,
                _ => e.early |= matches!(step, Step::Early(_)),
            }
            e.inst(at, &code[at]);
        }
        self.stamp(e, 1, "max");
    }

    /// Waits for the launch before and lets the next one start: as soon as the one before this one has ended, not earlier.
    /// So the next finds settled what this one does not write, and loads of constant memory do not find what was there
    /// before this one overwrote it. With other loads an earlier start is no faster.
    fn wait(&self, e: &mut Emitter) {
        if self.overlaps() {
            e.asm.line("griddepcontrol.wait");
            e.asm.line("griddepcontrol.launch_dependents");
        }
        self.stamp(e, 0, "min");
    }

    /// An entry of one program.
    fn alone(&self, mut e: Emitter) -> Code {
        self.body(&mut e);
        let (program, shared) = (e.program, shared_offsets(e.program).1);
        Code::Text(module(&program.name, program.buffers.len(), &e.seat, shared, self.sm, &e.asm))
    }

    /// The time, if it is wanted, as the first thread of each block sees it.
    fn stamp(&self, e: &mut Emitter, n: usize, combine: &str) {
        if !self.stamps {
            return;
        }
        let now = e.asm.clock();
        let thread = e.special("%tid.x");
        let first = e.asm.p("setp.eq.u32", &[thread, Piece::int(0)]);
        let at = Address { base: e.parameter("symbols"), offset: 8 * (e.program.symbols.len() + n) as i64 };
        e.asm.store(Some(first), &format!("red.global.{combine}.u64"), at, &[now]);
    }
}

impl Target for Ptx {
    fn name(&self) -> &str {
        &self.name
    }

    fn caps(&self) -> Caps {
        Caps {
            vector_bytes: 16,
            lanes: 32,
            max_threads: 1024,
            // Largest shared memory of a block, from the CUDA programming guide's table of compute capabilities.
            local_bytes: match self.sm {
                80 | 87 => 163 * 1024,
                90 | 100..=119 => 227 * 1024,
                _ => 99 * 1024,
            },
            dot4: true,
            tile: false,
            mma: true,
            transcendental: true,
        }
    }

    fn emit(&self, program: &Linear) -> Code {
        self.alone(Emitter::new(program))
    }

    fn bundles(&self) -> bool {
        true
    }

    fn emit_bundle(&self, bundle: &Bundle) -> Code {
        match bundle.parts() {
            [one] => {
                let mut e = Emitter::new(one);
                e.seat.settled = bundle.settled().to_vec();
                self.alone(e)
            }
            _ => Code::Text(self.side_by_side(bundle)),
        }
    }

    fn disassemble(&self, code: &Code) -> String {
        match code {
            Code::Text(text) => text.clone(),
            Code::Machine(_) => panic!("machine code given to the PTX target"),
        }
    }
}

/// Bytes of dynamic shared memory a launch of `program` has to ask for.
pub fn dynamic_shared(program: &Linear) -> usize {
    let total = shared_offsets(program).1;
    if total <= STATIC_SHARED { 0 } else { total }
}

/// Where each local starts, and their total size.
fn shared_offsets(program: &Linear) -> (Vec<usize>, usize) {
    let mut end = 0;
    let starts = program.locals.iter().map(|l| {
        let start = end;
        end += (l.dtype.bytes() * l.len).next_multiple_of(16);
        start
    });
    (starts.collect(), end)
}

fn module(name: &str, params: usize, seat: &Seat, shared: usize, sm: u32, asm: &Asm) -> String {
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
    assert!(
        name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(legal),
        "kernel name {name:?}"
    );
    // Code for an older architecture runs on every later one, and PTX 7.8 knows sm_90 as its newest.
    let mut s = format!(".version 7.8\n.target sm_{}\n.address_size 64\n\n", sm.min(90));
    if shared > STATIC_SHARED {
        s += ".extern .shared .align 16 .b8 shared[];\n\n";
    }
    write!(s, ".visible .entry {name}(").unwrap();
    for i in 0..params {
        write!(s, ".param .u64 p{i}, ").unwrap();
    }
    write!(s, ".param .u64 symbols)\n.maxntid {}, 1, 1\n", seat.threads).unwrap();
    if let Some(blocks @ 2..) = seat.resident {
        writeln!(s, ".minnctapersm {blocks}").unwrap();
    }
    s += "{\n";
    s += &asm.declarations();
    if (1..=STATIC_SHARED).contains(&shared) {
        writeln!(s, "    .shared .align 16 .b8 shared[{shared}];").unwrap();
    }
    s + &asm.text + "    ret;\n}\n"
}

/// Where a program stands in its entry.
struct Seat {
    /// Its first parameter.
    params: usize,
    /// Its grid index, where that is not the block's.
    block: Option<Piece>,
    /// Threads of a block, which may be more than its own.
    threads: u32,
    /// Blocks that are to run on a multiprocessor at a time, where that is known.
    resident: Option<i64>,
    /// Its buffers that the launch before does not write.
    settled: Vec<bool>,
}

impl Seat {
    /// In an entry of its own.
    fn of(program: &Linear) -> Seat {
        let resident = early::resident(std::slice::from_ref(program), program.threads);
        let settled = vec![false; program.buffers.len()];
        Seat { params: 0, block: None, threads: program.threads, resident, settled }
    }
}

/// A loop whose `End` is still to come.
struct Open {
    label: u32,
    var: Piece,
    extent: Piece,
    phis: Vec<Vec<Piece>>,
    /// How many addresses were known before the loop: only those are still computed when it ends.
    addresses: usize,
}

struct Emitter<'a> {
    program: &'a Linear,
    seat: Seat,
    asm: Asm,
    facts: Vec<Fact>,
    /// The registers of each value, empty until it is defined.
    values: Vec<Vec<Piece>>,
    /// Shifts of packed vectors whose masking is left to the `And` that uses them; the mask of one lane.
    unmasked: HashMap<Reg, u32>,
    bytes: Bytes,
    copies: Copies,
    /// Base address of each buffer (64 bits) and local (32 bits).
    globals: Vec<Piece>,
    locals: Vec<Piece>,
    /// The value of each symbol.
    symbols: HashMap<u32, Piece>,
    /// `base + index · bytes`, by memory, index and element size.
    addresses: Vec<((Mem, Reg, usize), Piece)>,
    /// Of what word a register is the upper half.
    upper: HashMap<Piece, Piece>,
    open: Vec<Open>,
    /// Are loads to stay where they are, before or after a fence? The assembler moves those of constant memory.
    early: bool,
}

impl<'a> Emitter<'a> {
    fn new(program: &'a Linear) -> Emitter<'a> {
        let facts = facts(program);
        Emitter {
            unmasked: unmasked_shifts(program, &facts),
            bytes: Bytes::new(program, &facts),
            copies: Copies::new(program, &facts),
            program,
            seat: Seat::of(program),
            asm: Asm::default(),
            facts,
            values: vec![vec![]; program.regs.len()],
            globals: vec![],
            locals: vec![],
            symbols: HashMap::new(),
            addresses: vec![],
            upper: HashMap::new(),
            open: vec![],
            early: false,
        }
    }

    fn dtype(&self, r: Reg) -> DType {
        self.program.dtype(r)
    }
    fn fact(&self, r: Reg) -> Fact {
        self.facts[r.0 as usize]
    }
    fn value(&self, r: Reg) -> Vec<Piece> {
        self.values[r.0 as usize].clone()
    }
    fn scalar(&self, r: Reg) -> Piece {
        self.values[r.0 as usize][0]
    }
    fn set(&mut self, r: Reg, value: Vec<Piece>) {
        debug_assert_eq!(value.len(), pieces(self.dtype(r)), "pieces of {r}");
        self.values[r.0 as usize] = value;
    }

    fn prologue(&mut self) {
        for i in 0..self.program.buffers.len() {
            let base = self.parameter(&format!("p{}", self.seat.params + i));
            self.globals.push(base);
        }
        let mut symbols: Vec<u32> = vec![];
        for inst in &self.program.code {
            if let Inst::Op { op: Op::Symbol(n), .. } = *inst
                && !symbols.contains(&n)
            {
                symbols.push(n);
            }
        }
        if !symbols.is_empty() {
            // Written before the first kernel of a step: no kernel need wait for them.
            let base = self.parameter("symbols");
            for n in symbols {
                let value = self.asm.fresh_d();
                self.asm.load(None, "ld.global.nc.b64", &[value], Address { base, offset: 8 * n as i64 });
                self.symbols.insert(n, value);
            }
        }
        for start in shared_offsets(self.program).0 {
            let base = self.special(&format!("shared+{start}"));
            self.locals.push(base);
        }
    }

    /// Threads that the program has no use for are done. Barriers and shuffles are for those that have not left.
    fn dismiss(&mut self) {
        if self.seat.threads > self.program.threads {
            let thread = self.special("%tid.x");
            let idle = self.asm.p("setp.ge.u32", &[thread, Piece::int(self.program.threads as i64)]);
            self.asm.exit(idle);
        }
    }

    fn parameter(&mut self, name: &str) -> Piece {
        let p = self.asm.fresh_d();
        self.asm.load_parameter(p, name);
        self.asm.d("cvta.to.global.u64", &[p])
    }

    fn special(&mut self, name: &str) -> Piece {
        let r = self.asm.fresh_r();
        self.asm.load_name(r, name);
        r
    }

    fn inst(&mut self, at: usize, inst: &Inst) {
        self.settle(at, inst);
        match inst {
            Inst::Op { dst, .. } if self.bytes.unneeded(*dst) => {}
            Inst::Op { dst, op, args } => {
                let value = self.op(*dst, *op, args);
                self.set(*dst, value);
            }
            Inst::Load { dst, mem, index, offset, gate } => self.load(*dst, *mem, *index, *offset, *gate),
            Inst::Gather { dst, mem, index, gate } => self.gather(*dst, *mem, *index, *gate),
            Inst::Store { mem, index, offset, value, gate } => {
                self.store(*mem, *index, *offset, *value, *gate)
            }
            Inst::Prefetch { mem, index, offset, gate } => self.prefetch(*mem, *index, *offset, *gate),
            Inst::Loop { var, extent, carried } => self.begin(*var, *extent, carried),
            Inst::End { next, out } => self.end(next, out),
            Inst::Barrier { width: None } => self.asm.line("bar.sync 0"),
            Inst::Barrier { width: Some(n) } => {
                assert!(*n <= 32, "instruction {at}: a group of {n} is no warp");
                self.asm.line("bar.warp.sync 0xffffffff");
            }
            Inst::LaneReduce { dst, fold, src, width } => {
                let value = self.lane_reduce(*src, *fold, *width);
                self.set(*dst, value);
            }
            Inst::Mma { dst, acc, a, b } => {
                let value = self.mma(*acc, *a, *b);
                self.set(*dst, value);
            }
            Inst::TileDot { .. } | Inst::TileZero { .. } | Inst::TileMul { .. } | Inst::TileStore { .. } => {
                panic!("tile products are not for PTX: instruction {at} of\n{}", self.program)
            }
        }
    }

    fn begin(&mut self, var: Reg, extent: Reg, carried: &[(Reg, Reg)]) {
        let rounds = self.fact(extent);
        let narrow = rounds.fits_i32();
        let extent = self.scalar(extent);
        let extent = if narrow { self.asm.low(extent) } else { self.asm.wide(extent) };
        let zero = Piece::Imm(0);
        let counter = if narrow { self.asm.r("mov.b32", &[zero]) } else { self.asm.d("mov.b64", &[zero]) };
        let phis: Vec<Vec<Piece>> = carried.iter().map(|(phi, init)| self.copies(*phi, *init)).collect();
        let label = self.asm.fresh_label();
        if rounds.lo <= 0 {
            let none = self.asm.p(if narrow { "setp.le.s32" } else { "setp.le.s64" }, &[extent, zero]);
            self.asm.jump(none, "done", label);
        }
        self.asm.label("loop", label);
        self.set(var, vec![counter]);
        for ((phi, _), value) in carried.iter().zip(&phis) {
            self.set(*phi, value.clone());
        }
        self.open.push(Open { label, var: counter, extent, phis, addresses: self.addresses.len() });
    }

    /// The value of `init` in registers of its own, to change from round to round as `phi`.
    fn copies(&mut self, phi: Reg, init: Reg) -> Vec<Piece> {
        let class = self.dtype(phi).scalar;
        let fresh = |asm: &mut Asm| match class {
            Scalar::Bool => asm.fresh_p(),
            Scalar::I64 => asm.fresh_d(),
            _ => asm.fresh_r(),
        };
        let copy = |src: &Piece| {
            let dst = fresh(&mut self.asm);
            self.asm.copy(dst, *src);
            dst
        };
        self.values[init.0 as usize].iter().map(copy).collect()
    }

    fn end(&mut self, next: &[Reg], out: &[Reg]) {
        let open = self.open.pop().expect("End without Loop");
        let targets: Vec<Piece> = open.phis.concat();
        let sources: Vec<Piece> = next.iter().flat_map(|r| self.value(*r)).collect();
        // All carried values change at once: one that another still reads goes through a temporary.
        let moves: Vec<_> =
            targets.iter().zip(&sources).filter(|(t, s)| t != s).map(|(t, s)| (*t, *s)).collect();
        let mut pending = vec![];
        for (i, (dst, src)) in moves.iter().enumerate() {
            let overwritten = moves[..i].iter().any(|m| m.0 == *src);
            let held = if overwritten { self.hold(*src) } else { *src };
            pending.push((*dst, held));
        }
        for (dst, src) in pending {
            self.asm.copy(dst, src);
        }
        let wide = matches!(open.var, Piece::D(_));
        let (add, test) = if wide { ("add.s64", "setp.lt.s64") } else { ("add.s32", "setp.lt.s32") };
        self.asm.ins(add, &[open.var, open.var, Piece::Imm(1)]);
        let more = self.asm.p(test, &[open.var, open.extent]);
        self.asm.jump(more, "loop", open.label);
        self.asm.label("done", open.label);
        self.addresses.truncate(open.addresses);
        for (r, phi) in out.iter().zip(open.phis) {
            self.set(*r, phi);
        }
    }

    /// A copy of one register.
    fn hold(&mut self, p: Piece) -> Piece {
        let dst = match p {
            Piece::D(_) => self.asm.fresh_d(),
            Piece::P(_) => self.asm.fresh_p(),
            _ => self.asm.fresh_r(),
        };
        self.asm.copy(dst, p);
        dst
    }
}

/// Lanes of `s` in one register.
fn per_register(s: Scalar) -> usize {
    match s {
        Scalar::Bool => 1,
        _ => (4 / s.bytes()).max(1),
    }
}

/// Registers of a value.
fn pieces(t: DType) -> usize {
    (t.lanes as usize).div_ceil(per_register(t.scalar))
}

/// Several lanes share a register.
fn packed(t: DType) -> bool {
    t.lanes > 1 && per_register(t.scalar) > 1
}

/// The mask of one lane after shifting by `n`.
fn lane_mask(op: Binary, s: Scalar, n: u32) -> u32 {
    let full = u32::MAX >> (32 - s.bits());
    if op == Binary::Shl { (full << n) & full } else { full >> n }
}

/// Shifts of packed vectors whose only use is an `And` with a constant: there the two masks become one.
fn unmasked_shifts(program: &Linear, facts: &[Fact]) -> HashMap<Reg, u32> {
    let constant = |r: &Reg| facts[r.0 as usize].constant();
    let mut uses = vec![0; program.regs.len()];
    let mut masked = vec![false; program.regs.len()];
    for inst in &program.code {
        for r in inst.uses() {
            uses[r.0 as usize] += 1;
        }
        if let Inst::Op { op: Op::Binary(Binary::And), args, .. } = inst {
            masked[args[0].0 as usize] |= constant(&args[1]).is_some();
            masked[args[1].0 as usize] |= constant(&args[0]).is_some();
        }
    }
    let shift = |inst: &Inst| match inst {
        Inst::Op { dst, op: Op::Binary(op @ (Binary::Shl | Binary::Shr)), args } => {
            let t = program.dtype(*dst);
            let once = uses[dst.0 as usize] == 1 && masked[dst.0 as usize];
            let logical = *op == Binary::Shl || !t.scalar.is_signed();
            let n = constant(&args[1])? as u32 & (t.scalar.bits() - 1);
            (packed(t) && once && logical).then(|| (*dst, lane_mask(*op, t.scalar, n)))
        }
        _ => None,
    };
    program.code.iter().filter_map(shift).collect()
}
