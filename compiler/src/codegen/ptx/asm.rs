//! PTX text, one instruction at a time. In: mnemonics and operands; out: lines and the register declarations they need.
//!
//! Invariant: an operand's register class is its variant, so a 32-bit and a 64-bit register can never be confused.
//! Integers and floats share the untyped `.b32` class; an instruction's last suffix says how immediates are written.

use std::fmt::Write;

/// One operand: a register of some class, or a constant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Piece {
    /// `.b32`
    R(u32),
    /// `.b64`
    D(u32),
    /// `.b16`, only as an end of a conversion
    H(u32),
    /// `.pred`
    P(u32),
    /// The low bits count for narrower uses; a pred is `!= 0`.
    Imm(u64),
}

impl Piece {
    /// A 32-bit constant.
    pub fn word(v: u32) -> Piece {
        Piece::Imm(v as u64)
    }
    pub fn int(v: i64) -> Piece {
        Piece::Imm(v as u64)
    }
    pub fn float(v: f32) -> Piece {
        Piece::word(v.to_bits())
    }

    /// As an operand of an instruction on `ty`, the instruction's last suffix.
    fn show(self, ty: &str) -> String {
        match self {
            Piece::R(n) => format!("%r{n}"),
            Piece::D(n) => format!("%rd{n}"),
            Piece::H(n) => format!("%h{n}"),
            Piece::P(n) => format!("%p{n}"),
            Piece::Imm(v) if ty == "f32" => format!("0f{:08X}", v as u32),
            Piece::Imm(v) => {
                let wide = ty.ends_with("64");
                let signed = if wide { v as i64 } else { v as i32 as i64 };
                match (signed.unsigned_abs() < 1 << 12, wide) {
                    (true, _) => format!("{signed}"),
                    (false, true) => format!("0x{v:X}"),
                    (false, false) => format!("0x{:X}", v as u32),
                }
            }
        }
    }
}

/// A byte address: a register and a constant.
#[derive(Clone, Copy)]
pub(super) struct Address {
    pub base: Piece,
    pub offset: i64,
}

impl Address {
    pub fn plus(self, bytes: usize) -> Address {
        Address { offset: self.offset + bytes as i64, ..self }
    }
}

#[derive(Default)]
pub(super) struct Asm {
    pub text: String,
    r: u32,
    d: u32,
    h: u32,
    p: u32,
    labels: u32,
}

impl Asm {
    pub fn fresh_r(&mut self) -> Piece {
        self.r += 1;
        Piece::R(self.r)
    }
    pub fn fresh_d(&mut self) -> Piece {
        self.d += 1;
        Piece::D(self.d)
    }
    pub fn fresh_p(&mut self) -> Piece {
        self.p += 1;
        Piece::P(self.p)
    }
    pub fn fresh_label(&mut self) -> u32 {
        self.labels += 1;
        self.labels
    }

    pub fn line(&mut self, text: &str) {
        writeln!(self.text, "    {text};").unwrap();
    }
    pub fn label(&mut self, name: &str, n: u32) {
        writeln!(self.text, "{name}{n}:").unwrap();
    }
    pub fn jump(&mut self, when: Piece, name: &str, n: u32) {
        self.line(&format!("{}bra {name}{n}", guard_text(Some(when))));
    }
    /// The threads for which `when` holds are done.
    pub fn exit(&mut self, when: Piece) {
        self.line(&format!("{}exit", guard_text(Some(when))));
    }
    /// Reads a kernel parameter.
    pub fn load_parameter(&mut self, dst: Piece, name: &str) {
        self.line(&format!("ld.param.u64 {}, [{name}]", dst.show("")));
    }
    /// Nanoseconds, the same for all multiprocessors.
    pub fn clock(&mut self) -> Piece {
        let now = self.fresh_d();
        self.line(&format!("mov.u64 {}, %globaltimer", now.show("")));
        now
    }
    /// Reads a special register, or the address of something declared.
    pub fn load_name(&mut self, dst: Piece, name: &str) {
        self.line(&format!("mov.u32 {}, {name}", dst.show("")));
    }

    /// Emits `op operands`.
    pub fn ins(&mut self, op: &str, operands: &[Piece]) {
        self.guarded(None, op, operands);
    }
    /// Emits `op operands` for the threads whose `guard` holds.
    pub fn guarded(&mut self, guard: Option<Piece>, op: &str, operands: &[Piece]) {
        let ty = op.rsplit('.').next().unwrap();
        let operands: Vec<_> = operands.iter().map(|p| p.show(ty)).collect();
        self.line(&format!("{}{op} {}", guard_text(guard), operands.join(", ")));
    }
    fn into(&mut self, dst: Piece, op: &str, args: &[Piece]) -> Piece {
        let all: Vec<_> = std::iter::once(dst).chain(args.iter().copied()).collect();
        self.ins(op, &all);
        dst
    }
    /// Emits `op` with a new 32-bit destination.
    pub fn r(&mut self, op: &str, args: &[Piece]) -> Piece {
        let dst = self.fresh_r();
        self.into(dst, op, args)
    }
    /// Emits `op` with a new 64-bit destination.
    pub fn d(&mut self, op: &str, args: &[Piece]) -> Piece {
        let dst = self.fresh_d();
        self.into(dst, op, args)
    }
    /// Emits `op` with a new predicate destination.
    pub fn p(&mut self, op: &str, args: &[Piece]) -> Piece {
        let dst = self.fresh_p();
        self.into(dst, op, args)
    }
    /// `op` on 32- or 64-bit registers, as `wide` says.
    pub fn rd(&mut self, wide: bool, op: &str, args: &[Piece]) -> Piece {
        if wide { self.d(op, args) } else { self.r(op, args) }
    }

    /// The 32-bit register or constant `p` in a register.
    pub fn reg(&mut self, p: Piece) -> Piece {
        if let Piece::Imm(_) = p { self.r("mov.b32", &[p]) } else { p }
    }
    pub fn pred(&mut self, p: Piece) -> Piece {
        if let Piece::Imm(v) = p {
            self.p("setp.ne.u32", &[Piece::int((v != 0) as i64), Piece::Imm(0)])
        } else {
            p
        }
    }
    /// An index as 64 bits: 32-bit pieces hold it sign-extended.
    pub fn wide(&mut self, p: Piece) -> Piece {
        if let Piece::R(_) = p { self.d("cvt.s64.s32", &[p]) } else { p }
    }
    /// An i64 in a 64-bit register.
    pub fn wide_reg(&mut self, p: Piece) -> Piece {
        if let Piece::Imm(_) = p { self.d("mov.b64", &[p]) } else { self.wide(p) }
    }
    /// The low 32 bits of an index.
    pub fn low(&mut self, p: Piece) -> Piece {
        match p {
            Piece::D(_) => self.r("cvt.u32.u64", &[p]),
            Piece::Imm(v) => Piece::int(v as i32 as i64),
            _ => p,
        }
    }
    /// Copies into an existing register of the same class.
    pub fn copy(&mut self, dst: Piece, src: Piece) {
        match dst {
            Piece::P(_) => {
                let src = self.pred(src);
                self.ins("mov.pred", &[dst, src]);
            }
            Piece::D(_) => {
                let src = self.wide(src);
                self.ins("mov.b64", &[dst, src]);
            }
            _ => self.ins("mov.b32", &[dst, src]),
        }
    }

    /// The two 16-bit halves of a word, low first.
    pub fn halves(&mut self, word: Piece) -> [Piece; 2] {
        let word = self.reg(word);
        self.h += 2;
        let [lo, hi] = [Piece::H(self.h - 1), Piece::H(self.h)];
        self.line(&format!("mov.b32 {{{}, {}}}, {}", lo.show(""), hi.show(""), word.show("")));
        [lo, hi]
    }
    /// The two words of a 64-bit register, low first.
    pub fn split(&mut self, wide: Piece) -> [Piece; 2] {
        let [lo, hi] = [self.fresh_r(), self.fresh_r()];
        self.line(&format!("mov.b64 {{{}, {}}}, {}", lo.show(""), hi.show(""), wide.show("b64")));
        [lo, hi]
    }
    pub fn join(&mut self, [lo, hi]: [Piece; 2]) -> Piece {
        let dst = self.fresh_d();
        self.line(&format!("mov.b64 {}, {{{}, {}}}", dst.show(""), lo.show(""), hi.show("")));
        dst
    }

    /// Emits `op` with operands of several registers each.
    pub fn tuples(&mut self, op: &str, operands: &[&[Piece]]) {
        let operands: Vec<_> = operands.iter().map(|t| tuple(t)).collect();
        self.line(&format!("{op} {}", operands.join(", ")));
    }

    /// `op dst, [at]`; several destinations make a vector load.
    pub fn load(&mut self, guard: Option<Piece>, op: &str, dst: &[Piece], at: Address) {
        self.line(&format!("{}{op} {}, {}", guard_text(guard), tuple(dst), bracket(at)));
    }
    pub fn store(&mut self, guard: Option<Piece>, op: &str, at: Address, src: &[Piece]) {
        self.line(&format!("{}{op} {}, {}", guard_text(guard), bracket(at), tuple(src)));
    }
    /// 16 bytes from global to shared memory.
    pub fn copy_async(&mut self, guard: Option<Piece>, to: Address, from: Address) {
        let guard = guard_text(guard);
        self.line(&format!("{guard}cp.async.cg.shared.global {}, {}, 16", bracket(to), bracket(from)));
    }
    pub fn prefetch(&mut self, guard: Option<Piece>, at: Address) {
        self.line(&format!("{}prefetch.global.L2 {}", guard_text(guard), bracket(at)));
    }

    pub fn declarations(&self) -> String {
        let classes =
            [(".b32", "r", self.r), (".b64", "rd", self.d), (".b16", "h", self.h), (".pred", "p", self.p)];
        let used = classes.iter().filter(|c| c.2 > 0);
        used.map(|(class, name, n)| format!("    .reg {class} %{name}<{}>;\n", n + 1)).collect()
    }
}

fn guard_text(guard: Option<Piece>) -> String {
    guard.map(|p| format!("@{} ", p.show("pred"))).unwrap_or_default()
}

fn tuple(pieces: &[Piece]) -> String {
    let names: Vec<_> = pieces.iter().map(|p| p.show("")).collect();
    if names.len() == 1 { names[0].clone() } else { format!("{{{}}}", names.join(", ")) }
}

fn bracket(at: Address) -> String {
    match at.offset {
        0 => format!("[{}]", at.base.show("")),
        // The sign of a negative offset stands after the plus.
        o => format!("[{}+{o}]", at.base.show("")),
    }
}
