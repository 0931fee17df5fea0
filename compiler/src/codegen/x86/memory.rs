//! Loads, stores and gathers, with and without gates.
//!
//! A scalar gate chooses between the address and a harmless one: a constant of zeros for loads, a cell of the stack for
//! stores. Lane gates use opmasks or `vpmaskmov`; what neither covers goes lane by lane through chosen addresses.

use super::asm::Cond;
use super::lower::{Lower, lane_mask};
use super::mach::{Address, Arg, Base, Opcode, Size};
use super::plan::Place;
use crate::dtype::{DType, Scalar};
use crate::linear::{Inst, Mem, Reg};
use iced_x86::Mnemonic as M;
use regalloc2::VReg;

/// Cell of the stack that swallows stores.
const TRASH: usize = 3;

impl Lower<'_> {
    /// Address of a memory instruction, `bytes` wide.
    pub fn address(&mut self, inst: &Inst, bytes: usize) -> Address {
        let place = self.plan.place(inst).expect("a memory instruction");
        self.place_address(place, bytes)
    }

    pub fn place_address(&mut self, place: Place, bytes: usize) -> Address {
        let (base, offset) = self.buffer(place.mem);
        let index = place.index.map(|(r, scale)| (self.reg(r), scale));
        let disp = place.disp.wrapping_add(offset);
        let mut a = Address { index, ..Address::new(Base::Reg(base), 0, bytes) };
        match i32::try_from(disp) {
            // Room for the offsets of single lanes.
            Ok(d) if d.checked_add(4096).is_some() => a.disp = d,
            _ => {
                let far = self.imm(disp);
                let base = self.int_tied(M::Add, Size::B8, far, Arg::Use(base, Size::B8));
                a.base = Base::Reg(base);
            }
        }
        a
    }

    /// Memory operand of the load that instruction `at` has merged, in lane type and as the consumer reads it.
    pub fn folded_address(&mut self, at: usize) -> Option<(usize, Address)> {
        let f = self.plan.folded[at]?;
        let inst = &self.p.code[f.load];
        if let Inst::TileDot { dst, .. } = inst {
            let read = self.p.code[at].uses()[f.arg];
            let row = dst.iter().position(|r| *r == read).expect("a row of this product");
            return Some((f.arg, self.tile_row(f.load, row)));
        }
        let t = self.p.dtype(inst.defs()[0]);
        let a = self.address(inst, t.bytes());
        Some((f.arg, Address { broadcast: f.broadcast, ..a }))
    }

    pub fn lea(&mut self, a: Address) -> VReg {
        self.int_def(M::Lea, Size::B8, &[Arg::Mem(a.with_bytes(0))])
    }

    /// `a` if `gate` (0 or 1) else `other`.
    fn choose(&mut self, gate: VReg, a: Address, other: Address) -> Address {
        let (p, q) = (self.lea(a), self.lea(other));
        self.op(M::Test, &[Arg::Use(gate, Size::B4), Arg::Use(gate, Size::B4)]);
        let p = self.int_tied(Cond::Equal.cmov(), Size::B8, p, Arg::Use(q, Size::B8));
        Address::new(Base::Reg(p), 0, a.bytes as usize)
    }

    pub fn load_scalar(&mut self, s: Scalar, a: Address) -> VReg {
        let a = Arg::Mem(a.with_bytes(s.bytes()));
        match s {
            Scalar::F32 => self.vec_def(M::Vmovss, Size::X, &[a]),
            Scalar::I8 | Scalar::I16 => self.int_def(M::Movsx, Size::B8, &[a]),
            Scalar::I32 => self.int_def(M::Movsxd, Size::B8, &[a]),
            Scalar::I64 => self.int_def(M::Mov, Size::B8, &[a]),
            Scalar::U32 => self.int_def(M::Mov, Size::B4, &[a]),
            _ => self.int_def(M::Movzx, Size::B4, &[a]),
        }
    }

    pub fn store_scalar(&mut self, s: Scalar, v: VReg, a: Address) {
        let a = Arg::Mem(a.with_bytes(s.bytes()));
        match s {
            Scalar::F32 => self.op(M::Vmovss, &[a, Arg::Use(v, Size::X)]),
            _ => self.op(M::Mov, &[a, Arg::Use(v, Size::int(s.bytes()))]),
        }
    }

    /// Reads exactly `bytes` into the low part of a vector register.
    pub fn load_vector(&mut self, bytes: usize, a: Address) -> VReg {
        let m = match bytes {
            2 => M::Vpbroadcastw,
            4 => M::Vmovd,
            8 => M::Vmovq,
            _ => M::Vmovups,
        };
        self.vec_def(m, Size::vector(bytes), &[Arg::Mem(a.with_bytes(bytes))])
    }

    pub fn store_vector(&mut self, bytes: usize, v: VReg, a: Address) {
        let to = Arg::Mem(a.with_bytes(bytes));
        let from = Arg::Use(v, Size::vector(bytes));
        match bytes {
            2 => self.op(M::Vpextrw, &[to, from, Arg::Imm(0)]),
            4 => self.op(M::Vmovd, &[to, from]),
            8 => self.op(M::Vmovq, &[to, from]),
            _ => self.op(M::Vmovups, &[to, from]),
        }
    }

    pub fn load(&mut self, inst: &Inst, dst: Reg, gate: Option<Reg>) -> VReg {
        let t = self.p.dtype(dst);
        let mut a = self.address(inst, t.bytes());
        if let Some(g) = gate {
            if self.p.dtype(g).lanes > 1 {
                let bytes =
                    DType { scalar: if t.scalar == Scalar::Bool { Scalar::U8 } else { t.scalar }, ..t };
                let v = self.load_lanes(bytes, a, g);
                return if t.scalar == Scalar::Bool { self.bytes_to_mask(v, t.lanes) } else { v };
            }
            let zeros = self.constant_at(&[0; 64]);
            let g = self.reg(g);
            a = self.choose(g, a, zeros);
        }
        match t {
            _ if t.lanes == 1 => self.load_scalar(t.scalar, a),
            _ if t.scalar == Scalar::Bool => {
                let v = self.load_vector(t.bytes(), a);
                self.bytes_to_mask(v, t.lanes)
            }
            _ => self.load_vector(t.bytes(), a),
        }
    }

    pub fn store(&mut self, inst: &Inst, value: Reg, gate: Option<Reg>) {
        let t = self.p.dtype(value);
        let mut v = self.reg(value);
        if t.scalar == Scalar::Bool && t.lanes > 1 {
            v = self.mask_to_bytes(v, t.lanes);
        }
        let mut a = self.address(inst, t.bytes());
        if let Some(g) = gate {
            if self.p.dtype(g).lanes > 1 {
                return self.store_lanes(t, v, a, g);
            }
            let trash = self.cell(TRASH, 64);
            let g = self.reg(g);
            a = self.choose(g, a, trash);
        }
        match t.lanes {
            1 => self.store_scalar(t.scalar, v, a),
            _ => self.store_vector(t.bytes(), v, a),
        }
    }

    /// The masked move for elements of this size.
    fn masked_move(&self, element: usize) -> Option<M> {
        match (self.features.avx512, element) {
            (true, 1) => Some(M::Vmovdqu8),
            (true, 2) => Some(M::Vmovdqu16),
            (true, 4) => Some(M::Vmovdqu32),
            (true, _) => Some(M::Vmovdqu64),
            (false, 4) => Some(M::Vpmaskmovd),
            (false, 8) => Some(M::Vpmaskmovq),
            (false, _) => None,
        }
    }

    fn load_lanes(&mut self, t: DType, a: Address, gate: Reg) -> VReg {
        let size = Size::vector(t.bytes());
        let a = a.with_bytes(size.bytes());
        let gate = self.reg(gate);
        let Some(m) = self.masked_move(t.scalar.bytes()) else {
            let zeros = self.constant_at(&[0; 64]);
            return self.build_vector(t, |l, lane| {
                let bit = l.mask_bit(gate, lane);
                let from = l.choose(bit, a.plus((lane * t.scalar.bytes()) as i32), zeros);
                l.load_scalar(t.scalar, from)
            });
        };
        if self.features.avx512 {
            self.mask_to_k(gate, t.lanes);
            let d = self.vec();
            self.masked(m, &[Arg::Def(d, size), Arg::Mem(a)], true);
            return d;
        }
        let lanes = self.expand_mask(gate, t.scalar.bytes(), size);
        self.vec_def(m, size, &[Arg::Use(lanes, size), Arg::Mem(a)])
    }

    fn store_lanes(&mut self, t: DType, v: VReg, a: Address, gate: Reg) {
        let size = Size::vector(t.bytes());
        let a = a.with_bytes(size.bytes());
        let gate = self.reg(gate);
        let Some(m) = self.masked_move(t.scalar.bytes()) else {
            let trash = self.cell(TRASH, 64);
            let cell = self.cell(0, size.bytes());
            self.op(M::Vmovups, &[Arg::Mem(cell), Arg::Use(v, size)]);
            for lane in 0..t.lanes as usize {
                let at = (lane * t.scalar.bytes()) as i32;
                let bit = self.mask_bit(gate, lane);
                let to = self.choose(bit, a.plus(at), trash);
                let x = self.load_scalar(t.scalar, cell.plus(at));
                self.store_scalar(t.scalar, x, to);
            }
            return;
        };
        if self.features.avx512 {
            self.mask_to_k(gate, t.lanes);
            return self.masked(m, &[Arg::Mem(a), Arg::Use(v, size)], false);
        }
        let lanes = self.expand_mask(gate, t.scalar.bytes(), size);
        self.op(m, &[Arg::Mem(a), Arg::Use(lanes, size), Arg::Use(v, size)]);
    }

    pub fn gather(&mut self, dst: Reg, mem: Mem, index: Reg, gate: Option<Reg>) -> VReg {
        let t = self.p.dtype(dst);
        let (base, offset) = self.buffer(mem);
        let base = match offset {
            0 => base,
            // Locals lie within the few megabytes a worker has.
            at => self.lea(Address::new(Base::Reg(base), at as i32, 0)),
        };
        let scalar_gate = gate.filter(|g| self.p.dtype(*g).lanes == 1).map(|g| self.reg(g));
        let lane_gate = gate.filter(|g| self.p.dtype(*g).lanes > 1).map(|g| self.reg(g));
        if t.lanes == 1 {
            let i = self.reg(index);
            return self.gather_lane(t.scalar, base, i, scalar_gate);
        }
        let indices = self.reg(index);
        if t.scalar.bytes() == 4 {
            return self.gather_words(t, base, indices, scalar_gate, lane_gate);
        }
        let size = Size::vector(4 * t.lanes as usize);
        let cell = self.cell(0, size.bytes());
        self.op(M::Vmovups, &[Arg::Mem(cell), Arg::Use(indices, size)]);
        let bytes = DType { scalar: if t.scalar == Scalar::Bool { Scalar::U8 } else { t.scalar }, ..t };
        let v = self.build_vector(bytes, |l, lane| {
            let i = l.load_scalar(Scalar::I32, cell.plus(4 * lane as i32));
            let gate = match lane_gate {
                Some(mask) => Some(l.mask_bit(mask, lane)),
                None => scalar_gate,
            };
            l.gather_lane(bytes.scalar, base, i, gate)
        });
        if t.scalar == Scalar::Bool { self.bytes_to_mask(v, t.lanes) } else { v }
    }

    fn gather_lane(&mut self, s: Scalar, base: VReg, index: VReg, gate: Option<VReg>) -> VReg {
        let a = Address::new(Base::Reg(base), 0, s.bytes());
        let mut a = Address { index: Some((index, s.bytes() as u8)), ..a };
        if let Some(g) = gate {
            let zeros = self.constant_at(&[0; 64]);
            a = self.choose(g, a, zeros);
        }
        self.load_scalar(s, a)
    }

    fn gather_words(
        &mut self,
        t: DType,
        base: VReg,
        index: VReg,
        scalar: Option<VReg>,
        lanes: Option<VReg>,
    ) -> VReg {
        let size = Size::vector(t.bytes());
        let all = lane_mask(t.lanes);
        let mask = match (lanes, scalar) {
            (Some(m), _) => m,
            (None, Some(g)) => self.int_def(M::Imul, Size::B8, &[Arg::Use(g, Size::B8), Arg::Imm(all)]),
            (None, None) => self.imm(all),
        };
        let a = Address::new(Base::Reg(base), 0, 4);
        let a = Address { index: Some((index, 4)), vsib: Some(size), ..a };
        let (d, zero) = (self.vec(), self.zero());
        let mut args = vec![Arg::Tied(d, zero, size), Arg::Mem(a)];
        if self.features.avx512 {
            self.mask_to_k(mask, t.lanes);
        } else {
            let lanes = self.expand_mask(mask, 4, size);
            args.push(Arg::Tied(self.vec(), lanes, size));
        }
        // A gather that selects nothing takes as long as any: a jump takes its place.
        let gated = lanes.is_some() || scalar.is_some();
        args.extend(gated.then_some(Arg::Use(mask, Size::B4)));
        let op = if gated { Opcode::Unless0 } else { Opcode::Op };
        let k = self.features.avx512.then_some((1, false));
        self.func.push(op(M::Vpgatherdd), args, k, &[]);
        d
    }
}
