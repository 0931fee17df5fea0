//! Operations on scalars. Integers are kept extended to 64 bits as their type says, so comparisons and divisions are
//! always 64-bit, and whatever may leave the type's range is extended again.

use super::asm::Cond;
use super::lower::Lower;
use super::mach::{Address, Arg, Base, Opcode, Size, gpr};
use super::mask::{K, float_predicate};
use crate::dtype::{Bits, DType, Scalar};
use crate::linear::Reg;
use crate::scalar::{Binary, Unary};
use iced_x86::Mnemonic as M;
use regalloc2::{Operand, VReg};

impl Lower<'_> {
    /// Extends the low bits of `v` to a value of type `s`.
    pub fn wrap(&mut self, s: Scalar, v: VReg) -> VReg {
        let from = Arg::Use(v, Size::int(s.bytes()));
        match s {
            Scalar::I8 | Scalar::I16 => self.int_def(M::Movsx, Size::B8, &[from]),
            Scalar::U8 | Scalar::U16 | Scalar::F16 | Scalar::BF16 => {
                self.int_def(M::Movzx, Size::B4, &[from])
            }
            Scalar::I32 => self.int_def(M::Movsxd, Size::B8, &[from]),
            Scalar::U32 => self.int_def(M::Mov, Size::B4, &[from]),
            Scalar::Bool => self.test(v),
            Scalar::I64 | Scalar::F32 => v,
        }
    }

    /// 1 if `v` is not 0.
    fn test(&mut self, v: VReg) -> VReg {
        self.op(M::Test, &[Arg::Use(v, Size::B8), Arg::Use(v, Size::B8)]);
        self.flag(Cond::NotEqual)
    }

    fn flag(&mut self, c: Cond) -> VReg {
        let byte = self.int_def(c.set(), Size::B1, &[]);
        self.int_def(M::Movzx, Size::B4, &[Arg::Use(byte, Size::B1)])
    }

    pub fn scalar_unary(&mut self, op: Unary, s: Scalar, x: VReg) -> VReg {
        match (op, s) {
            (Unary::Not, Scalar::Bool) => self.int_tied(M::Xor, Size::B4, x, Arg::Imm(1)),
            (Unary::Neg | Unary::Not, _) if s != Scalar::F32 => {
                let d = self.int();
                let m = if op == Unary::Neg { M::Neg } else { M::Not };
                self.op(m, &[Arg::Tied(d, x, Size::B8)]);
                self.wrap(s, d)
            }
            (Unary::Recip, _) => {
                let one = self.make_vector(super::lower::splat(Scalar::F32, Bits::float(1.0)), Size::X);
                self.vec_def(M::Vdivss, Size::X, &[Arg::Use(one, Size::X), Arg::Use(x, Size::X)])
            }
            (Unary::Sqrt, _) => self.vec_def(M::Vsqrtss, Size::X, &[Arg::Use(x, Size::X); 2]),
            _ => self.vector_unary(op, s, Size::X, x),
        }
    }

    pub fn scalar_binary(
        &mut self,
        op: Binary,
        dst: Reg,
        args: &[Reg],
        memory: Option<(usize, Address)>,
    ) -> VReg {
        let s = self.p.dtype(args[0]).scalar;
        if s == Scalar::F32 {
            return self.float_binary(op, args, memory);
        }
        if op.is_compare() {
            let c = self.compare_ints(op, args);
            return self.flag(c);
        }
        let constant = self.plan.constant(args[1]).map(|b| b.as_int());
        if matches!(op, Binary::Div | Binary::Mod) {
            let x = self.reg(args[0]);
            let d = self.divide(op, x, args[1], constant);
            return self.wrap(s, d);
        }
        let a = self.reg(args[0]);
        let use_a = Arg::Use(a, Size::B8);
        let width = s.bits() as i64 - 1;
        let d = match (op, constant) {
            (Binary::Add | Binary::Sub, Some(c)) if i32::try_from(c).is_ok_and(|c| c != i32::MIN) => {
                let by = if op == Binary::Add { c } else { -c };
                self.lea(Address::new(Base::Reg(a), by as i32, 0))
            }
            (Binary::Add, _) => {
                let b = self.reg(args[1]);
                self.lea(Address { index: Some((b, 1)), ..Address::new(Base::Reg(a), 0, 0) })
            }
            (Binary::Mul, Some(1)) => a,
            (Binary::Mul, Some(c @ (2 | 3 | 5 | 9))) => {
                self.lea(Address { index: Some((a, c as u8 - 1)), ..Address::new(Base::Reg(a), 0, 0) })
            }
            // Where `a` is read again, the multiplication saves the copy that a shift in place would need.
            (Binary::Mul, Some(c)) if c > 0 && c.count_ones() == 1 && self.plan.only_use(args[0]) => {
                self.int_tied(M::Shl, Size::B8, a, Arg::Imm(c.trailing_zeros() as i64))
            }
            (Binary::Mul, Some(c)) if i32::try_from(c).is_ok() => {
                self.int_def(M::Imul, Size::B8, &[use_a, Arg::Imm(c)])
            }
            (Binary::Shl, Some(c)) => self.int_tied(M::Shl, Size::B8, a, Arg::Imm(c & width)),
            (Binary::Shr, Some(c)) => {
                let m = if s.is_signed() { M::Sar } else { M::Shr };
                return self.int_tied(m, Size::B8, a, Arg::Imm(c & width));
            }
            (Binary::Shl | Binary::Shr, None) => {
                let mut by = self.reg(args[1]);
                if s != Scalar::I64 {
                    by = self.int_tied(M::And, Size::B4, by, Arg::Imm(width));
                }
                let m = match op {
                    Binary::Shl => M::Shlx,
                    _ if s.is_signed() => M::Sarx,
                    _ => M::Shrx,
                };
                self.int_def(m, Size::B8, &[use_a, Arg::Use(by, Size::B8)])
            }
            (Binary::Max | Binary::Min, _) => {
                let b = self.reg(args[1]);
                self.op(M::Cmp, &[use_a, Arg::Use(b, Size::B8)]);
                let c = if op == Binary::Max { Cond::Less } else { Cond::Greater };
                return self.int_tied(c.cmov(), Size::B8, a, Arg::Use(b, Size::B8));
            }
            (Binary::And | Binary::Or | Binary::Xor, _) => {
                let b = self.int_arg(args[1]);
                let m = match op {
                    Binary::And => M::And,
                    Binary::Or => M::Or,
                    _ => M::Xor,
                };
                // Extended values stay extended.
                return self.int_tied(m, Size::B8, a, b);
            }
            _ => {
                let b = Arg::Use(self.reg(args[1]), Size::B8);
                self.int_tied(if op == Binary::Sub { M::Sub } else { M::Imul }, Size::B8, a, b)
            }
        };
        if self.plan.extended[dst.0 as usize] { self.wrap(s, d) } else { d }
    }

    /// Compares integers; gives the condition that then holds in the flags.
    pub fn compare_ints(&mut self, op: Binary, args: &[Reg]) -> Cond {
        let a = self.reg(args[0]);
        let b = self.int_arg(args[1]);
        self.op(M::Cmp, &[Arg::Use(a, Size::B8), b]);
        match op {
            Binary::Lt => Cond::Less,
            Binary::Le => Cond::LessEqual,
            Binary::Eq => Cond::Equal,
            _ => Cond::NotEqual,
        }
    }

    fn float_binary(&mut self, op: Binary, args: &[Reg], memory: Option<(usize, Address)>) -> VReg {
        let (a, b) = self.operands(args, DType::F32, 4, op.commutes() && !op.is_compare(), memory);
        let (use_a, x) = (Arg::Use(a, Size::X), Size::X);
        let m = match op {
            Binary::Add => M::Vaddss,
            Binary::Sub => M::Vsubss,
            Binary::Mul => M::Vmulss,
            Binary::Div => M::Vdivss,
            Binary::Max => M::Vmaxss,
            Binary::Min => M::Vminss,
            _ if self.features.avx512 => {
                self.op(M::Vcmpss, &[K, use_a, b, Arg::Imm(float_predicate(op))]);
                return self.int_def(M::Kmovd, Size::B4, &[K]);
            }
            _ => {
                let v = self.vec_def(M::Vcmpss, x, &[use_a, b, Arg::Imm(float_predicate(op))]);
                let ones = self.int_def(M::Vmovd, Size::B4, &[Arg::Use(v, x)]);
                return self.int_tied(M::And, Size::B4, ones, Arg::Imm(1));
            }
        };
        self.vec_def(m, x, &[use_a, b])
    }

    /// Rounds towards negative infinity and never traps.
    fn divide(&mut self, op: Binary, x: VReg, by: Reg, constant: Option<i64>) -> VReg {
        match constant {
            Some(0) if op == Binary::Div => return self.imm(0),
            Some(0 | 1) if op == Binary::Mod => return if constant == Some(0) { x } else { self.imm(0) },
            Some(c) if c > 0 && c.count_ones() == 1 => {
                return match op {
                    Binary::Div => self.int_tied(M::Sar, Size::B8, x, Arg::Imm(c.trailing_zeros() as i64)),
                    _ if i32::try_from(c - 1).is_ok() => self.int_tied(M::And, Size::B8, x, Arg::Imm(c - 1)),
                    _ => {
                        let low = self.imm(c - 1);
                        self.int_tied(M::And, Size::B8, x, Arg::Use(low, Size::B8))
                    }
                };
            }
            Some(c) if c > 0 => {
                let q = self.divide_by(x, c);
                if op == Binary::Div {
                    return q;
                }
                let whole = match i32::try_from(c) {
                    Ok(_) => self.int_def(M::Imul, Size::B8, &[Arg::Use(q, Size::B8), Arg::Imm(c)]),
                    Err(_) => {
                        let c = self.imm(c);
                        self.int_tied(M::Imul, Size::B8, q, Arg::Use(c, Size::B8))
                    }
                };
                return self.int_tied(M::Sub, Size::B8, x, Arg::Use(whole, Size::B8));
            }
            _ => {}
        }
        let y = self.reg(by);
        self.divide_registers(op, x, y, constant.is_some_and(|c| c != 0 && c != -1))
    }

    /// By a positive constant that is no power of two: a multiplication with its reciprocal. A negative number x is
    /// divided as -1 - x is, which rounds down where that rounds up.
    fn divide_by(&mut self, x: VReg, c: i64) -> VReg {
        let b8 = |v| Arg::Use(v, Size::B8);
        // Of 63 bits and those of c, rounded up: exact for every number of 63 bits.
        let shift = 64 - c.leading_zeros();
        let reciprocal = (1u128 << (63 + shift)).div_ceil(c as u128) as u64;
        let sign = self.int_tied(M::Sar, Size::B8, x, Arg::Imm(63));
        let size = self.int_tied(M::Xor, Size::B8, x, b8(sign));
        let reciprocal = self.imm(reciprocal as i64);
        let [high, low] = std::array::from_fn(|_| self.int());
        self.func.push(
            Opcode::Op(M::Mulx),
            vec![Arg::Def(high, Size::B8), Arg::Def(low, Size::B8), b8(reciprocal)],
            None,
            &[Operand::reg_fixed_use(size, gpr(2))],
        );
        let q = self.int_tied(M::Shr, Size::B8, high, Arg::Imm(shift as i64 - 1));
        self.int_tied(M::Xor, Size::B8, q, b8(sign))
    }

    /// `safe`: the divisor is known to be neither 0 nor -1.
    pub fn divide_registers(&mut self, op: Binary, x: VReg, y: VReg, safe: bool) -> VReg {
        let b8 = |v| Arg::Use(v, Size::B8);
        let mut divisor = y;
        if !safe {
            // y + 1 is 0 or 1 (unsigned) exactly for the two divisors that could trap.
            let one = self.imm(1);
            let near = self.lea(Address::new(Base::Reg(y), 1, 0));
            self.op(M::Cmp, &[b8(one), b8(near)]);
            divisor = self.int_tied(Cond::AboveEqual.cmov(), Size::B8, y, b8(one));
        }
        let [high, q, r] = std::array::from_fn(|_| self.int());
        let (rax, rdx) = (gpr(0), gpr(2));
        self.func.push(
            Opcode::Op(M::Cqo),
            vec![],
            None,
            &[Operand::reg_fixed_use(x, rax), Operand::reg_fixed_def(high, rdx)],
        );
        self.func.push(
            Opcode::Op(M::Idiv),
            vec![b8(divisor)],
            None,
            &[
                Operand::reg_fixed_use(x, rax),
                Operand::reg_fixed_use(high, rdx),
                Operand::reg_fixed_def(q, rax),
                Operand::reg_fixed_def(r, rdx),
            ],
        );
        // One less where the remainder is not 0 and its sign is not the divisor's: then (r ^ y) < 0.
        let lower = self.lea(Address::new(Base::Reg(q), -1, 0));
        let signs = self.int_tied(M::Xor, Size::B8, r, b8(divisor));
        let zero = self.imm(0);
        self.op(M::Test, &[b8(r), b8(r)]);
        let signs = self.int_tied(Cond::Equal.cmov(), Size::B8, signs, b8(zero));
        self.op(M::Test, &[b8(signs), b8(signs)]);
        let mut floor = self.int_tied(Cond::Less.cmov(), Size::B8, q, b8(lower));
        if !safe {
            let negated = self.int();
            self.op(M::Neg, &[Arg::Tied(negated, x, Size::B8)]);
            self.op(M::Cmp, &[b8(y), Arg::Imm(-1)]);
            floor = self.int_tied(Cond::Equal.cmov(), Size::B8, floor, b8(negated));
            self.op(M::Test, &[b8(y), b8(y)]);
            floor = self.int_tied(Cond::Equal.cmov(), Size::B8, floor, b8(zero));
        }
        if op == Binary::Div {
            return floor;
        }
        let whole = self.int_tied(M::Imul, Size::B8, floor, b8(y));
        self.int_tied(M::Sub, Size::B8, x, b8(whole))
    }

    /// `cond ? a : b`; an absorbed comparison stays in the flags.
    pub fn scalar_where(&mut self, t: DType, cond: Reg, a: Reg, b: Reg) -> VReg {
        let (a, b) = (self.reg(a), self.reg(b));
        if t.scalar == Scalar::F32 {
            let c = self.reg(cond);
            if self.features.avx512 {
                self.mask_to_k(c, 1);
                return self.blend_k(Scalar::F32, Size::X, a, b);
            }
            let ones = self.int();
            self.op(M::Neg, &[Arg::Tied(ones, c, Size::B4)]);
            let mask = self.vec_def(M::Vmovd, Size::X, &[Arg::Use(ones, Size::B4)]);
            return self.blend_elements(Size::X, mask, a, b);
        }
        let holds = match self.absorbed_compare(cond) {
            Some((op, args)) => self.compare_ints(op, args),
            None => {
                let c = self.reg(cond);
                self.op(M::Test, &[Arg::Use(c, Size::B4), Arg::Use(c, Size::B4)]);
                Cond::NotEqual
            }
        };
        self.int_tied(holds.cmov(), Size::B8, b, Arg::Use(a, Size::B8))
    }
}
