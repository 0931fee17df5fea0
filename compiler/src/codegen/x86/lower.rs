//! Instruction selection: a linear program in, machine instructions over virtual registers out.
//!
//! How values are held: integers, bools and the raw bits of f16 and bf16 scalars in general registers, extended to 64
//! bits as [`Bits`] says; f32 scalars and vectors in vector registers, a vector below 16 bytes in the low part with
//! anything above it; a bool vector as a bit mask in a general register, bits from the lane count on being 0.

use super::Features;
use super::asm::{Cond, Label, Pool};
use super::mach::{Address, Arg, Base, Func, Opcode, Size, gpr};
use super::plan::Plan;
use crate::dtype::{Bits, DType, Scalar};
use crate::linear::{Inst, Linear, Mem, Op, Reg};
use crate::scalar::Binary;
use iced_x86::Mnemonic as M;
use regalloc2::{Operand, RegClass, VReg};
use std::collections::HashMap;

pub struct Lowered {
    pub func: Func,
    pub pool: Pool,
    /// Bytes of stack for selection itself.
    pub scratch: usize,
}

/// Vector constants that stay in registers over the whole program, at most.
const HOISTED: usize = 6;
/// Vector registers kept for intermediate results when constants are hoisted.
const SPARE: usize = 4;

pub fn lower(p: &Linear, features: Features) -> Lowered {
    assert_eq!(p.threads, 1, "a CPU program has one thread:\n{p}");
    let plan = Plan::new(p, features);
    // The first round finds which constants the loops read, the second keeps them in registers.
    let trial = Lower::run(p, &plan, features, &[], 64);
    let mut wanted: Vec<(u64, u64)> = trial.requests.iter().map(|(k, v)| (*k, *v)).collect();
    wanted.sort_by_key(|(pattern, weight)| (std::cmp::Reverse(*weight), *pattern));
    wanted.truncate(features.vectors().saturating_sub(plan.pressure + SPARE).min(HOISTED));
    let constants: Vec<u64> = wanted.into_iter().map(|w| w.0).collect();
    let chosen = match constants.is_empty() {
        true => trial,
        false => Lower::run(p, &plan, features, &constants, trial.func.widest),
    };
    Lowered { func: chosen.func, pool: chosen.pool, scratch: chosen.scratch.next_multiple_of(64) }
}

/// What a block makes once: constants, and counts of shifts.
#[derive(PartialEq, Eq, Hash)]
pub(super) enum Cached {
    Int(i64),
    Float(u32),
    Vector(u64, Size),
    Table(u128, Size),
    /// A scalar as the count of shifts of lanes of so many bits, masked and in a general register; the same in a vector
    /// register.
    Count(VReg, u32),
    CountVector(VReg, u32),
    /// The order that puts two halves side by side, lane by lane.
    Interleave,
    /// What so many bits shifted by a scalar leave of a byte, in every lane.
    Shifted(i64, Binary, VReg, Size),
}

struct OpenLoop {
    head: Label,
    var: VReg,
    extent: Reg,
    /// Where a loop of no rounds goes on, and with what; none when there is at least one round.
    skip: Option<(Label, Vec<VReg>)>,
}

pub(super) struct Lower<'a> {
    pub p: &'a Linear,
    pub plan: &'a Plan<'a>,
    pub features: Features,
    pub func: Func,
    pub pool: Pool,
    pub scratch: usize,
    values: Vec<Option<VReg>>,
    globals: Vec<Option<VReg>>,
    locals: Option<VReg>,
    local_offsets: Vec<i64>,
    hoisted: HashMap<u64, VReg>,
    /// Made in the current block.
    cached: HashMap<Cached, VReg>,
    /// How much each vector constant is read, by loop depth.
    requests: HashMap<u64, u64>,
    loops: Vec<OpenLoop>,
    /// What the B tiles hold in the current block, by number of rows.
    pub tiles: HashMap<usize, Vec<Reg>>,
}

/// The bits of one value repeated to 64 bits.
pub(super) fn splat(s: Scalar, b: Bits) -> u64 {
    let mut raw = [0; 8];
    b.write(s, &mut raw);
    let n = s.bytes();
    u64::from_le_bytes(std::array::from_fn(|i| raw[i % n]))
}

pub(super) fn lane_mask(lanes: u16) -> i64 {
    if lanes == 64 { -1 } else { (1 << lanes) - 1 }
}

pub(super) fn is_gpr(t: DType) -> bool {
    t.scalar == Scalar::Bool || t.lanes == 1 && t.scalar != Scalar::F32
}

impl<'a> Lower<'a> {
    fn run(p: &'a Linear, plan: &'a Plan<'a>, features: Features, hoist: &[u64], widest: usize) -> Lower<'a> {
        let mut l = Lower {
            p,
            plan,
            features,
            func: Func::default(),
            pool: Pool::default(),
            scratch: 0,
            values: vec![None; p.regs.len()],
            globals: vec![None; p.buffers.len()],
            locals: None,
            local_offsets: Vec::new(),
            hoisted: HashMap::new(),
            cached: HashMap::new(),
            requests: HashMap::new(),
            loops: Vec::new(),
            tiles: HashMap::new(),
        };
        let mut at = 0;
        for local in &p.locals {
            l.local_offsets.push(at as i64);
            at = (at + local.len * local.dtype.bytes()).next_multiple_of(64);
        }
        l.program(hoist, widest);
        l.func.seal();
        l
    }

    fn program(&mut self, hoist: &[u64], widest: usize) {
        let entry = self.func.label();
        self.func.block(entry, vec![]);
        let [args, locals, lo, hi] = [7, 6, 2, 1].map(|n| (self.int(), gpr(n)));
        let fixed: Vec<Operand> = [args, locals, lo, hi].map(|(v, r)| Operand::reg_fixed_def(v, r)).into();
        self.func.push(Opcode::Entry, vec![], None, &fixed);
        let (args, lo, hi) = (args.0, lo.0, hi.0);
        self.locals = Some(locals.0);
        self.load_arguments(args);
        self.configure_tiles();
        for &pattern in hoist {
            let v = self.make_vector(pattern, Size::vector(widest));
            self.hoisted.insert(pattern, v);
        }
        let invariant = self.emit_invariant();

        let [head, enter, back, done, skip, exit] = std::array::from_fn(|_| self.func.label());
        let grid = self.int();
        self.op(M::Cmp, &[Arg::Use(lo, Size::B8), Arg::Use(hi, Size::B8)]);
        self.func.branch(Cond::Less, enter, skip);
        self.start(enter, vec![]);
        self.func.jump(head, vec![lo]);
        self.start(head, vec![grid]);
        for (i, inst) in self.p.code.iter().enumerate() {
            match inst {
                Inst::Op { dst, op: Op::Grid, .. } => self.set(*dst, grid),
                Inst::Op { op: Op::Symbol(_), .. } => {}
                _ if self.plan.emitted[i] && !invariant[i] => self.inst(i, inst),
                _ => {}
            }
        }
        let next = self.int();
        self.op(M::Add, &[Arg::Tied(next, grid, Size::B8), Arg::Imm(1)]);
        self.op(M::Cmp, &[Arg::Use(next, Size::B8), Arg::Use(hi, Size::B8)]);
        self.func.branch(Cond::Less, back, done);
        self.start(back, vec![]);
        self.func.jump(head, vec![next]);
        self.start(done, vec![]);
        self.func.jump(exit, vec![]);
        self.start(skip, vec![]);
        self.func.jump(exit, vec![]);
        self.start(exit, vec![]);
        self.release_tiles();
        self.func.push(Opcode::Return, vec![], None, &[]);
    }

    /// Buffer addresses and symbols that something reads.
    fn load_arguments(&mut self, args: VReg) {
        for (i, inst) in self.p.code.iter().enumerate() {
            let word = |l: &mut Self, at: usize| {
                let address = Address::new(Base::Reg(args), 8 * at as i32, 8);
                l.int_def(M::Mov, Size::B8, &[Arg::Mem(address)])
            };
            // A merged load is not emitted but still reads its buffer.
            for mem in inst.memory() {
                if let Mem::Global(b) = mem
                    && self.globals[b as usize].is_none()
                {
                    self.globals[b as usize] = Some(word(self, b as usize));
                }
            }
            if let Inst::Op { dst, op: Op::Symbol(s), .. } = inst
                && self.plan.emitted[i]
            {
                let v = word(self, self.p.buffers.len() + *s as usize);
                self.set(*dst, v);
            }
        }
    }

    /// Emits what stands outside all loops and does not depend on the grid; says which instructions those are.
    fn emit_invariant(&mut self) -> Vec<bool> {
        let mut fixed = vec![false; self.p.regs.len()];
        let mut done = vec![false; self.p.code.len()];
        let mut depth = 0;
        for (i, inst) in self.p.code.iter().enumerate() {
            match inst {
                Inst::Loop { .. } => depth += 1,
                Inst::End { .. } => depth -= 1,
                Inst::Op { dst, op, args } if depth == 0 && *op != Op::Grid => {
                    let symbol = matches!(op, Op::Symbol(_));
                    let pure = args.iter().all(|r| fixed[r.0 as usize]);
                    let cheap = is_gpr(self.p.dtype(*dst)) || self.plan.constant(*dst).is_some();
                    fixed[dst.0 as usize] = pure && cheap;
                    done[i] = pure && cheap;
                    if done[i] && self.plan.emitted[i] && !symbol {
                        self.inst(i, inst);
                    }
                }
                _ => {}
            }
        }
        done
    }

    fn start(&mut self, label: Label, params: Vec<VReg>) {
        self.func.block(label, params);
        self.cached.clear();
        self.tiles.clear();
    }

    fn inst(&mut self, i: usize, inst: &Inst) {
        match inst {
            Inst::Op { dst, op, args } => {
                if self.plan.constant(*dst).is_none() {
                    let v = self.operation(i, *dst, *op, args);
                    self.set(*dst, v);
                }
            }
            Inst::Load { dst, gate, .. } => {
                let v = self.load(inst, *dst, *gate);
                self.set(*dst, v);
            }
            Inst::Gather { dst, mem, index, gate } => {
                let v = self.gather(*dst, *mem, *index, *gate);
                self.set(*dst, v);
            }
            Inst::Store { value, gate, .. } => self.store(inst, *value, *gate),
            Inst::Prefetch { .. } => {
                let a = self.address(inst, 1);
                self.op(M::Prefetcht0, &[Arg::Mem(a)]);
            }
            Inst::Loop { var, extent, carried } => self.enter_loop(*var, *extent, carried),
            Inst::End { next, out } => self.leave_loop(next, out),
            Inst::Barrier { .. } => {}
            Inst::LaneReduce { dst, src, width, .. } => {
                assert_eq!(*width, 1, "a CPU program has no lanes to reduce over");
                let v = self.reg(*src);
                self.set(*dst, v);
            }
            Inst::Mma { .. } => panic!("a CPU program has no threads that share a product"),
            Inst::TileDot { dst, b, stride, .. } => self.tile_dot(i, inst, dst, b, *stride),
            Inst::TileZero { n } => (0..*n).for_each(|i| self.op(M::Tilezero, &[Arg::Tile(i as u8)])),
            Inst::TileMul { a_mem, a, stride, b_mem, b } => self.tile_mul((*a_mem, a, *stride), (*b_mem, b)),
            Inst::TileStore { mem, index } => self.tile_store(*mem, index),
        }
    }
}

/// Loops are rotated: one test before the first round (none when the extent is a positive constant), the others at the
/// bottom.
impl Lower<'_> {
    fn enter_loop(&mut self, var: Reg, extent: Reg, carried: &[(Reg, Reg)]) {
        let inits: Vec<VReg> = carried.iter().map(|(_, init)| self.reg(*init)).collect();
        let head = self.func.label();
        let at_least_once = self.plan.constant(extent).is_some_and(|b| b.as_int() > 0);
        let skip = (!at_least_once).then(|| {
            let [enter, skip] = std::array::from_fn(|_| self.func.label());
            let n = self.reg(extent);
            self.op(M::Test, &[Arg::Use(n, Size::B8), Arg::Use(n, Size::B8)]);
            self.func.branch(Cond::Greater, enter, skip);
            self.start(enter, vec![]);
            (skip, inits.clone())
        });
        // Not shared with other constants: the counter is written in place.
        let zero = self.int_def(M::Mov, Size::B4, &[Arg::Imm(0)]);
        let mut start = vec![zero];
        start.extend(inits);
        self.func.jump(head, start);
        let mut params = Vec::new();
        for r in std::iter::once(var).chain(carried.iter().map(|c| c.0)) {
            let v = if is_gpr(self.p.dtype(r)) { self.int() } else { self.vec() };
            self.set(r, v);
            params.push(v);
        }
        self.start(head, params.clone());
        self.func.mark_loop_head();
        self.loops.push(OpenLoop { head, var: params[0], extent, skip });
    }

    fn leave_loop(&mut self, next: &[Reg], out: &[Reg]) {
        let l = self.loops.pop().expect("End has its Loop");
        let next: Vec<VReg> = next.iter().map(|r| self.reg(*r)).collect();
        let limit = self.int_arg(l.extent);
        let var = self.int();
        let [back, done] = std::array::from_fn(|_| self.func.label());
        self.op(M::Add, &[Arg::Tied(var, l.var, Size::B8), Arg::Imm(1)]);
        self.op(M::Cmp, &[Arg::Use(var, Size::B8), limit]);
        self.func.branch(Cond::Less, back, done);
        self.start(back, vec![]);
        let mut round = vec![var];
        round.extend(&next);
        self.func.jump(l.head, round);
        self.start(done, vec![]);
        let results = match l.skip {
            None => next,
            Some((skip, inits)) => {
                let after = self.func.label();
                self.func.jump(after, next);
                self.start(skip, vec![]);
                self.func.jump(after, inits);
                let params: Vec<VReg> = out
                    .iter()
                    .map(|r| if is_gpr(self.p.dtype(*r)) { self.int() } else { self.vec() })
                    .collect();
                self.start(after, params.clone());
                params
            }
        };
        out.iter().zip(results).for_each(|(r, v)| self.set(*r, v));
    }
}

/// Building blocks of the other files.
impl Lower<'_> {
    pub fn int(&mut self) -> VReg {
        self.func.vreg(RegClass::Int)
    }
    pub fn vec(&mut self) -> VReg {
        self.func.vreg(RegClass::Float)
    }
    pub fn op(&mut self, m: M, args: &[Arg]) {
        self.func.push(Opcode::Op(m), args.to_vec(), None, &[]);
    }
    /// With opmask `k1`; lanes that are not selected become 0 or stay.
    pub fn masked(&mut self, m: M, args: &[Arg], zeroing: bool) {
        self.func.push(Opcode::Op(m), args.to_vec(), Some((1, zeroing)), &[]);
    }
    pub fn int_def(&mut self, m: M, size: Size, rest: &[Arg]) -> VReg {
        let d = self.int();
        self.op(m, &[&[Arg::Def(d, size)], rest].concat());
        d
    }
    pub fn vec_def(&mut self, m: M, size: Size, rest: &[Arg]) -> VReg {
        let d = self.vec();
        self.op(m, &[&[Arg::Def(d, size)], rest].concat());
        d
    }
    /// `d = a op b` where the machine writes over `a`.
    pub fn int_tied(&mut self, m: M, size: Size, a: VReg, b: Arg) -> VReg {
        let d = self.int();
        self.op(m, &[Arg::Tied(d, a, size), b]);
        d
    }

    pub fn set(&mut self, r: Reg, v: VReg) {
        self.values[r.0 as usize] = Some(v);
    }

    /// The value in a register; constants are made on the spot.
    pub fn reg(&mut self, r: Reg) -> VReg {
        if let Some(v) = self.values[r.0 as usize] {
            return v;
        }
        let t = self.p.dtype(r);
        let b = self.plan.constant(r).unwrap_or_else(|| panic!("{r} is used before it is set:\n{}", self.p));
        match t {
            _ if t.scalar == Scalar::Bool => self.imm(if b.as_bool() { lane_mask(t.lanes) } else { 0 }),
            DType::F32 => self.float(b.0 as u32),
            _ if t.lanes > 1 => self.make_vector(splat(t.scalar, b), Size::vector(t.bytes())),
            _ if t.scalar.is_float() => self.imm((splat(t.scalar, b) & 0xffff) as i64),
            _ => self.imm(b.as_int()),
        }
    }

    pub fn imm(&mut self, v: i64) -> VReg {
        let size = if u32::try_from(v).is_ok() { Size::B4 } else { Size::B8 };
        self.cached(Cached::Int(v), |l| l.int_def(M::Mov, size, &[Arg::Imm(v)]))
    }

    pub fn cached(&mut self, key: Cached, make: impl FnOnce(&mut Self) -> VReg) -> VReg {
        if let Some(&r) = self.cached.get(&key) {
            return r;
        }
        let r = make(self);
        self.cached.insert(key, r);
        r
    }

    /// An integer as an operand of a 64-bit instruction.
    pub fn int_arg(&mut self, r: Reg) -> Arg {
        match self.plan.constant(r) {
            Some(b) if i32::try_from(b.as_int()).is_ok() => Arg::Imm(b.as_int()),
            _ => Arg::Use(self.reg(r), Size::B8),
        }
    }

    pub fn zero(&mut self) -> VReg {
        self.vec_def(M::Vxorps, Size::X, &[Arg::Same(Size::X), Arg::Same(Size::X)])
    }

    fn float(&mut self, bits: u32) -> VReg {
        if bits == 0 {
            return self.zero();
        }
        self.cached(Cached::Float(bits), |l| {
            let a = l.constant_at(&bits.to_le_bytes());
            l.vec_def(M::Vmovss, Size::X, &[Arg::Mem(a)])
        })
    }

    /// A pool entry.
    pub fn constant_at(&mut self, bytes: &[u8]) -> Address {
        let at = self.pool.add(bytes);
        Address::new(Base::Pool(at), 0, bytes.len())
    }

    /// `pattern` repeated, in a register.
    pub fn make_vector(&mut self, pattern: u64, size: Size) -> VReg {
        if pattern == 0 {
            return self.zero();
        }
        self.request(pattern);
        if let Some(&r) = self.hoisted.get(&pattern) {
            return r;
        }
        let bytes = pattern.to_le_bytes();
        let (m, unit) = if bytes[..4] == bytes[4..] { (M::Vpbroadcastd, 4) } else { (M::Vpbroadcastq, 8) };
        self.cached(Cached::Vector(pattern, size), |l| {
            let a = l.constant_at(&bytes[..unit]);
            l.vec_def(m, size, &[Arg::Mem(a)])
        })
    }

    /// `pattern` repeated, as the last operand of an instruction whose embedded broadcast (if any) has `element` bytes.
    pub fn vector_arg(&mut self, pattern: u64, size: Size, element: usize) -> Arg {
        self.request(pattern);
        if let Some(&r) = self.hoisted.get(&pattern).or(self.cached.get(&Cached::Vector(pattern, size))) {
            return Arg::Use(r, size);
        }
        if pattern == 0 {
            return Arg::Use(self.zero(), size);
        }
        let bytes = pattern.to_le_bytes();
        if self.features.avx512 && (element == 8 || element == 4 && bytes[..4] == bytes[4..]) {
            let a = self.constant_at(&bytes[..element]);
            return Arg::Mem(Address { broadcast: true, ..a });
        }
        let a = self.constant_at(&bytes.repeat(size.bytes() / 8));
        Arg::Mem(a)
    }

    fn request(&mut self, pattern: u64) {
        if pattern != 0 {
            *self.requests.entry(pattern).or_default() += 8u64.pow(self.loops.len().min(8) as u32);
        }
    }

    pub fn buffer(&self, mem: Mem) -> (VReg, i64) {
        match mem {
            Mem::Global(b) => (self.globals[b as usize].expect("loaded at entry"), 0),
            Mem::Local(l) => (self.locals.expect("set at entry"), self.local_offsets[l as usize]),
        }
    }

    /// The n-th 64-byte cell of the stack.
    pub fn cell(&mut self, n: usize, bytes: usize) -> Address {
        self.scratch = self.scratch.max(64 * (n + 1));
        Address::new(Base::Frame, 64 * n as i32, bytes)
    }
}
