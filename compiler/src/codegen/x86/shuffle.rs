//! Operations that move lanes: spread, repeat, extract, slice, stack and table lookup.

use super::lower::{Cached, Lower, lane_mask, splat};
use super::mach::{Address, Arg, Size};
use crate::dtype::{Bits, DType, Scalar};
use crate::linear::Reg;
use crate::scalar::Binary;
use iced_x86::Mnemonic as M;
use regalloc2::VReg;

fn broadcast(bytes: usize) -> M {
    match bytes {
        1 => M::Vpbroadcastb,
        2 => M::Vpbroadcastw,
        4 => M::Vpbroadcastd,
        _ => M::Vpbroadcastq,
    }
}

impl Lower<'_> {
    pub fn spread(&mut self, at: usize, t: DType, from: Reg) -> VReg {
        let source = self.p.dtype(from);
        if source.lanes == 1 {
            return self.repeat(at, t, from);
        }
        let v = self.reg(from);
        let k = (t.lanes / source.lanes) as usize;
        if k == 1 {
            return v;
        }
        if t.scalar == Scalar::Bool {
            // Each bit to its first place, then k times side by side.
            let places = (0..source.lanes as usize).fold(0u64, |m, l| m | 1 << (l * k));
            let [places, side_by_side] = [places as i64, lane_mask(k as u16)].map(|v| self.imm(v));
            let b8 = |v| Arg::Use(v, Size::B8);
            let apart = self.int_def(M::Pdep, Size::B8, &[b8(v), b8(places)]);
            return self.int_tied(M::Imul, Size::B8, apart, b8(side_by_side));
        }
        let (element, size) = (t.scalar.bytes(), Size::vector(t.bytes()));
        // Source byte of every destination byte.
        let byte = |b: usize| b / element / k * element + b % element;
        if size == Size::X {
            let order: Vec<u8> = (0..16).map(|b| byte(b % t.bytes()) as u8).collect();
            let order = self.constant_at(&order);
            return self.vec_def(M::Vpshufb, size, &[Arg::Use(v, size), Arg::Mem(order)]);
        }
        if element >= 4 {
            return self.words(v, size, |w| byte(4 * w) / 4);
        }
        // The 16 bytes of a part come from 8 source bytes: both halves of the part get them, then bytes are placed.
        let eight = |part: usize| byte(16 * part) / 8;
        let near = self.words(v, size, |w| 2 * eight(w / 4) + w % 2);
        let order: Vec<u8> = (0..size.bytes()).map(|b| (byte(b) - 8 * eight(b / 16)) as u8).collect();
        let order = self.constant_at(&order);
        self.vec_def(M::Vpshufb, size, &[Arg::Use(near, size), Arg::Mem(order)])
    }

    /// Each word of four bytes from the word of `v` that `word` says; more than 16 bytes of them.
    pub fn words(&mut self, v: VReg, size: Size, word: impl Fn(usize) -> usize) -> VReg {
        let order: Vec<u8> = (0..size.bytes() / 4).flat_map(|w| (word(w) as u32).to_le_bytes()).collect();
        let order = self.constant_at(&order);
        let order = self.vec_def(M::Vmovups, size, &[Arg::Mem(order)]);
        self.vec_def(M::Vpermd, size, &[Arg::Use(order, size), Arg::Use(v, size)])
    }

    pub fn repeat(&mut self, at: usize, t: DType, from: Reg) -> VReg {
        let source = self.p.dtype(from);
        let (bytes, size) = (source.bytes(), Size::vector(t.bytes()));
        if let Some((_, a)) = self.folded_address(at) {
            let m = match bytes {
                4 if t.scalar == Scalar::F32 => M::Vbroadcastss,
                16 if self.features.avx512 => M::Vbroadcasti32x4,
                16 => M::Vbroadcasti128,
                32 => M::Vbroadcasti64x4,
                _ => broadcast(bytes),
            };
            return self.vec_def(m, size, &[Arg::Mem(a)]);
        }
        let v = self.reg(from);
        if source.lanes == t.lanes {
            return v;
        }
        if t.scalar == Scalar::Bool {
            let n = source.lanes;
            let copies = (0..t.lanes / n).fold(0u64, |m, i| m | 1 << (i * n));
            let copies = self.imm(copies as i64);
            return self.int_tied(M::Imul, Size::B8, v, Arg::Use(copies, Size::B8));
        }
        if source == DType::F32 {
            return self.vec_def(M::Vbroadcastss, size, &[Arg::Use(v, Size::X)]);
        }
        if source.lanes == 1 {
            return self.splat_int(bytes, size, v);
        }
        match (bytes, self.features.avx512) {
            (16 | 32, true) => {
                let lanes = if bytes == 16 { 0 } else { 0x44 };
                let v = Arg::Use(v, size);
                self.vec_def(M::Vshufi32x4, size, &[v, v, Arg::Imm(lanes)])
            }
            (16, false) => self.join(v, v, 1, Size::Y),
            _ => self.vec_def(broadcast(bytes), size, &[Arg::Use(v, Size::X)]),
        }
    }

    /// The low bytes of a general register in every lane.
    pub fn splat_int(&mut self, bytes: usize, size: Size, v: VReg) -> VReg {
        let (m, from) = if bytes == 8 { (M::Vmovq, Size::B8) } else { (M::Vmovd, Size::B4) };
        if self.features.avx512 {
            return self.vec_def(broadcast(bytes), size, &[Arg::Use(v, from)]);
        }
        let low = self.vec_def(m, Size::X, &[Arg::Use(v, from)]);
        self.vec_def(broadcast(bytes), size, &[Arg::Use(low, Size::X)])
    }

    /// A general register's value as the first lane of a vector.
    pub fn first_lane(&mut self, s: Scalar, v: VReg) -> VReg {
        match s.bytes() {
            8 => self.vec_def(M::Vmovq, Size::X, &[Arg::Use(v, Size::B8)]),
            _ => self.vec_def(M::Vmovd, Size::X, &[Arg::Use(v, Size::B4)]),
        }
    }

    /// The n-th 16 bytes.
    fn part(&mut self, v: VReg, size: Size, n: usize) -> VReg {
        let m = if self.features.avx512 { M::Vextracti32x4 } else { M::Vextracti128 };
        match n {
            0 => v,
            _ => self.vec_def(m, Size::X, &[Arg::Use(v, size), Arg::Imm(n as i64)]),
        }
    }

    /// `low` with 16 bytes put at the n-th place.
    pub fn join(&mut self, low: VReg, part: VReg, n: usize, size: Size) -> VReg {
        let m = if self.features.avx512 { M::Vinserti32x4 } else { M::Vinserti128 };
        self.vec_def(m, size, &[Arg::Use(low, size), Arg::Use(part, Size::X), Arg::Imm(n as i64)])
    }

    pub fn extract(&mut self, t: DType, from: Reg, lane: usize) -> VReg {
        let v = self.reg(from);
        match t.scalar {
            _ if t.lanes == 1 => v,
            Scalar::Bool => self.mask_bit(v, lane),
            s => self.extract_lane(s, Size::vector(t.bytes()), v, lane),
        }
    }

    pub fn extract_lane(&mut self, s: Scalar, size: Size, v: VReg, lane: usize) -> VReg {
        let per_part = 16 / s.bytes();
        let v = self.part(v, size, lane / per_part);
        let (x, lane) = (Arg::Use(v, Size::X), lane % per_part);
        let index = Arg::Imm(lane as i64);
        match s {
            Scalar::F32 if lane == 0 => v,
            Scalar::F32 => self.vec_def(M::Vpshufd, Size::X, &[x, index]),
            Scalar::I64 if lane == 0 => self.int_def(M::Vmovq, Size::B8, &[x]),
            Scalar::I64 => self.int_def(M::Vpextrq, Size::B8, &[x, index]),
            _ => {
                let raw = match s.bytes() {
                    1 => self.int_def(M::Vpextrb, Size::B4, &[x, index]),
                    2 => self.int_def(M::Vpextrw, Size::B4, &[x, index]),
                    _ if lane == 0 => self.int_def(M::Vmovd, Size::B4, &[x]),
                    _ => self.int_def(M::Vpextrd, Size::B4, &[x, index]),
                };
                // These instructions extend with zeros.
                if s.is_int() && s.is_signed() { self.wrap(s, raw) } else { raw }
            }
        }
    }

    pub fn slice(&mut self, t: DType, from: Reg, first: usize) -> VReg {
        let source = self.p.dtype(from);
        if t.lanes == 1 {
            return self.extract(source, from, first);
        }
        let v = self.reg(from);
        if t.scalar == Scalar::Bool {
            let low = self.int_tied(M::Shr, Size::B8, v, Arg::Imm(first as i64));
            let keep = self.imm(lane_mask(t.lanes));
            return self.int_tied(M::And, Size::B8, low, Arg::Use(keep, Size::B8));
        }
        let (start, bytes, size) = (first * t.scalar.bytes(), t.bytes(), Size::vector(source.bytes()));
        if start == 0 {
            v
        } else if bytes == 32 && start == 32 {
            self.vec_def(M::Vextracti64x4, Size::Y, &[Arg::Use(v, size), Arg::Imm(1)])
        } else if start % 16 + bytes <= 16 {
            let part = self.part(v, size, start / 16);
            match start % 16 {
                0 => part,
                n => self.vec_def(M::Vpsrldq, Size::X, &[Arg::Use(part, Size::X), Arg::Imm(n as i64)]),
            }
        } else {
            let cell = self.cell(0, size.bytes());
            self.op(M::Vmovups, &[Arg::Mem(cell), Arg::Use(v, size)]);
            self.load_vector(bytes, cell.plus(start as i32))
        }
    }

    pub fn stack(&mut self, t: DType, args: &[Reg]) -> VReg {
        if t.lanes == 1 {
            return self.reg(args[0]);
        }
        if t.scalar == Scalar::Bool {
            let mut mask = self.reg(args[0]);
            for (lane, r) in args.iter().enumerate().skip(1) {
                let bit = self.reg(*r);
                let bit = self.int_tied(M::Shl, Size::B8, bit, Arg::Imm(lane as i64));
                mask = self.int_tied(M::Or, Size::B8, mask, Arg::Use(bit, Size::B8));
            }
            return mask;
        }
        self.build_vector(t, |l, lane| l.reg(args[lane]))
    }

    /// A vector from its lanes.
    pub fn build_vector(&mut self, t: DType, mut lane: impl FnMut(&mut Self, usize) -> VReg) -> VReg {
        let (s, size) = (t.scalar, Size::vector(t.bytes()));
        let per_part = (16 / s.bytes()).min(t.lanes as usize);
        let mut whole = None;
        for part in 0..t.lanes as usize / per_part {
            let mut v = lane(self, part * per_part);
            if s != Scalar::F32 {
                v = self.first_lane(s, v);
            }
            for n in 1..per_part {
                let x = lane(self, part * per_part + n);
                let (m, x, index) = match s.bytes() {
                    _ if s == Scalar::F32 => (M::Vinsertps, Arg::Use(x, Size::X), n << 4),
                    1 => (M::Vpinsrb, Arg::Use(x, Size::B4), n),
                    2 => (M::Vpinsrw, Arg::Use(x, Size::B4), n),
                    4 => (M::Vpinsrd, Arg::Use(x, Size::B4), n),
                    _ => (M::Vpinsrq, Arg::Use(x, Size::B8), n),
                };
                v = self.vec_def(m, Size::X, &[Arg::Use(v, Size::X), x, Arg::Imm(index as i64)]);
            }
            whole = Some(match whole {
                None => v,
                Some(low) => self.join(low, v, part, size),
            });
        }
        whole.expect("a vector has lanes")
    }

    /// The upper half of a vector of so many bytes.
    pub fn high_half(&mut self, v: VReg, bytes: usize) -> VReg {
        match bytes / 2 {
            32 => self.vec_def(M::Vextracti64x4, Size::Y, &[Arg::Use(v, Size::Z), Arg::Imm(1)]),
            16 => self.part(v, Size::Y, 1),
            n => self.vec_def(M::Vpsrldq, Size::X, &[Arg::Use(v, Size::X), Arg::Imm(n as i64)]),
        }
    }

    pub fn lookup(&mut self, t: DType, table: u128, index: Reg) -> VReg {
        let which = self.reg(index);
        let entries = self.constant_at(&table.to_le_bytes());
        if t.lanes == 1 {
            let low = self.int_tied(M::And, Size::B4, which, Arg::Imm(15));
            let base = self.lea(entries);
            let a = Address { index: Some((low, 1)), ..Address::new(super::mach::Base::Reg(base), 0, 1) };
            return self.load_scalar(t.scalar, a);
        }
        let size = Size::vector(t.bytes());
        let table = self.cached(Cached::Table(table, size), |l| {
            let m = match size {
                Size::X => M::Vmovups,
                _ if l.features.avx512 => M::Vbroadcasti32x4,
                _ => M::Vbroadcasti128,
            };
            l.vec_def(m, size, &[Arg::Mem(entries)])
        });
        // vpshufb reads bits 0 to 3 and gives 0 where bit 7 is set.
        let low = if self.plan.u8_max(index) < 128 {
            which
        } else {
            let nibble = self.vector_arg(splat(Scalar::U8, Bits(15)), size, 4);
            self.vec_def(self.bitwise(Binary::And), size, &[Arg::Use(which, size), nibble])
        };
        self.vec_def(M::Vpshufb, size, &[Arg::Use(table, size), Arg::Use(low, size)])
    }
}
