//! Reads linear programs: what `Linear`'s `Display` prints in, an equal [`Linear`] out.
//!
//! Any text gives a program or an error, never a panic. The program is well formed (every register has one definition
//! and the register numbers have no gaps) but need not be legal: that is for [`crate::spec::linear::verify`].

use super::{Cursor, ParseError, named};
use crate::dtype::{Bits, DType};
use crate::linear::{Count, Inst, Linear, Local, Mem, Op, Reg};
use crate::scalar::{Binary, Fold, Unary};
use std::collections::BTreeMap;

/// Grid expressions nest no deeper than this.
const MAX_NESTING: usize = 64;

pub fn parse(text: &str) -> Result<Linear, ParseError> {
    let lines = text.lines().enumerate().map(|(i, rest)| Cursor { rest, line: i + 1 });
    let mut lines = lines.filter(|c| !c.rest.trim().is_empty());
    let mut header = lines.next().unwrap_or(Cursor { rest: "", line: 1 });
    let mut p = Parser { program: header_of(&mut header)?, types: BTreeMap::new(), uses: vec![] };
    for line in lines {
        p.line(line)?;
    }
    p.finish()
}

fn header_of(c: &mut Cursor) -> Result<Linear, ParseError> {
    c.want("linear ")?;
    let name = c.word("the program's name")?.to_string();
    c.want("grid ")?;
    let grid = count(c, MAX_NESTING)?;
    c.want("threads ")?;
    let threads = c.number()?;
    c.end()?;
    let (buffers, symbols, locals, code, regs) = (vec![], vec![], vec![], vec![], vec![]);
    Ok(Linear { name, grid, buffers, symbols, locals, threads, code, regs })
}

fn count(c: &mut Cursor, nesting: usize) -> Result<Count, ParseError> {
    if c.eat("s") {
        return Ok(Count::Symbol(c.number()?));
    }
    let is_number = c.rest.trim_start().starts_with(|k: char| k == '-' || k.is_ascii_digit());
    if is_number {
        return Ok(Count::Const(c.number()?));
    }
    if nesting == 0 {
        return c.fail("a less nested grid");
    }
    let op = c.token("a count", |k| k.is_ascii_alphabetic(), |t| named(&Binary::ALL, t))?;
    c.want("(")?;
    let a = count(c, nesting - 1)?;
    c.want(",")?;
    let b = count(c, nesting - 1)?;
    c.want(")")?;
    Ok(Count::Binary(op, Box::new((a, b))))
}

struct Parser<'a> {
    program: Linear,
    types: BTreeMap<u32, DType>,
    /// Where registers are used, to find those without a definition.
    uses: Vec<(Reg, Cursor<'a>)>,
}

impl<'a> Parser<'a> {
    fn line(&mut self, mut c: Cursor<'a>) -> Result<(), ParseError> {
        let c = &mut c;
        let p = &mut self.program;
        if c.eat("buffer ") {
            c.want(&format!("g{}:", p.buffers.len()))?;
            p.buffers.push((dtype(c)?, c.eat("written")));
        } else if c.eat("symbol ") {
            c.want(&format!("s{}:", p.symbols.len()))?;
            p.symbols.push(c.word("the symbol's name")?.to_string());
        } else if c.eat("local ") {
            c.want(&format!("l{}:", p.locals.len()))?;
            let dtype = dtype(c)?;
            c.want("[")?;
            p.locals.push(Local { dtype, len: c.number()? });
            c.want("]")?;
        } else if c.eat("unused ") {
            self.def(c)?;
        } else {
            let inst = self.inst(c)?;
            self.program.code.push(inst);
        }
        c.end()
    }

    fn finish(mut self) -> Result<Linear, ParseError> {
        for (r, c) in &self.uses {
            if !self.types.contains_key(&r.0) {
                return c.fail(format!("a definition of {r}"));
            }
        }
        let gap = self.types.keys().zip(0..).find(|(r, i)| *r != i);
        if let Some((_, i)) = gap {
            let line = 1;
            return Cursor { rest: "", line }.fail(format!("a definition or `unused` line of %{i}"));
        }
        self.program.regs = self.types.into_values().collect();
        Ok(self.program)
    }

    fn inst(&mut self, c: &mut Cursor<'a>) -> Result<Inst, ParseError> {
        if c.eat("store ") {
            let (mem, index, offset) = self.place(c)?;
            c.want("=")?;
            let value = self.used(c)?;
            Ok(Inst::Store { mem, index, offset, value, gate: self.gate(c)? })
        } else if c.eat("prefetch ") {
            let (mem, index, offset) = self.place(c)?;
            Ok(Inst::Prefetch { mem, index, offset, gate: self.gate(c)? })
        } else if c.eat("loop ") {
            let var = self.define(c, |_| Ok(DType::INDEX))?;
            c.want("<")?;
            let extent = self.used(c)?;
            c.want("[")?;
            let carried = separated(c, ",", |c| {
                let phi = self.def(c)?;
                c.want("=")?;
                Ok((phi, self.used(c)?))
            })?;
            Ok(Inst::Loop { var, extent, carried })
        } else if c.eat("end ") {
            c.want("[")?;
            let next = separated(c, "", |c| self.used(c))?;
            c.want("->")?;
            c.want("[")?;
            Ok(Inst::End { next, out: separated(c, ",", |c| self.def(c))? })
        } else if c.eat("barrier") {
            let width = if c.eat("of") { Some(c.number()?) } else { None };
            Ok(Inst::Barrier { width })
        } else if c.eat("tilezero ") {
            Ok(Inst::TileZero { n: c.number()? })
        } else if c.eat("tilemul ") {
            let (a_mem, a) = self.places(c)?;
            c.want("by")?;
            let stride = c.number()?;
            c.want("of")?;
            let (b_mem, b) = self.places(c)?;
            Ok(Inst::TileMul { a_mem, a, stride, b_mem, b })
        } else if c.eat("tilestore ") {
            let (mem, index) = self.places(c)?;
            Ok(Inst::TileStore { mem, index })
        } else if c.eat("[") {
            let dst = separated(c, ",", |c| self.def(c))?;
            c.want("=")?;
            c.want("tiledot ")?;
            let (mem, index, offset) = self.place(c)?;
            c.want("by")?;
            let stride = c.number()?;
            c.want("of")?;
            Ok(Inst::TileDot { dst, mem, index, offset, stride, b: self.rest(c)? })
        } else if c.rest.trim_start().starts_with('%') {
            let dst = self.def(c)?;
            c.want("=")?;
            self.assigned(dst, c)
        } else {
            c.fail("an instruction")
        }
    }

    fn assigned(&mut self, dst: Reg, c: &mut Cursor<'a>) -> Result<Inst, ParseError> {
        if c.eat("load ") {
            let (mem, index, offset) = self.place(c)?;
            return Ok(Inst::Load { dst, mem, index, offset, gate: self.gate(c)? });
        }
        if c.eat("gather ") {
            return match self.place(c)? {
                (mem, index, 0) => Ok(Inst::Gather { dst, mem, index, gate: self.gate(c)? }),
                _ => c.fail("a gather without offset"),
            };
        }
        if c.eat("lanes") {
            let width = c.number()?;
            let fold = c.token("a fold", |k| k.is_ascii_alphabetic(), |t| named(&Fold::ALL, t))?;
            return Ok(Inst::LaneReduce { dst, fold, src: self.used(c)?, width });
        }
        if c.eat("mma ") {
            let [acc, first, second, b] = [self.used(c)?, self.used(c)?, self.used(c)?, self.used(c)?];
            return Ok(Inst::Mma { dst, acc, a: [first, second], b });
        }
        let scalar = self.types[&dst.0].scalar;
        let value = |t: &str| op(t).or_else(|| Bits::parse(scalar, t).map(Op::Const));
        let op = c.token("an operation or a value", |k| !k.is_whitespace(), value)?;
        Ok(Inst::Op { dst, op, args: self.rest(c)? })
    }

    /// `%7: f32x8`.
    fn def(&mut self, c: &mut Cursor<'a>) -> Result<Reg, ParseError> {
        self.define(c, |c| c.want(":").and_then(|()| dtype(c)))
    }

    fn define(
        &mut self,
        c: &mut Cursor<'a>,
        dtype: impl FnOnce(&mut Cursor<'a>) -> Result<DType, ParseError>,
    ) -> Result<Reg, ParseError> {
        let before = *c;
        let r = reg(c)?;
        match self.types.insert(r.0, dtype(c)?) {
            None => Ok(r),
            Some(_) => before.fail("a register without another definition"),
        }
    }

    fn used(&mut self, c: &mut Cursor<'a>) -> Result<Reg, ParseError> {
        let before = *c;
        let r = reg(c)?;
        self.uses.push((r, before));
        Ok(r)
    }

    /// Registers up to the end of the line.
    fn rest(&mut self, c: &mut Cursor<'a>) -> Result<Vec<Reg>, ParseError> {
        let mut all = vec![];
        while c.end().is_err() {
            all.push(self.used(c)?);
        }
        Ok(all)
    }

    fn gate(&mut self, c: &mut Cursor<'a>) -> Result<Option<Reg>, ParseError> {
        if c.eat("if ") { self.used(c).map(Some) } else { Ok(None) }
    }

    /// `g0[%1 + 16]`.
    fn place(&mut self, c: &mut Cursor<'a>) -> Result<(Mem, Reg, i64), ParseError> {
        let mem = memory(c)?;
        c.want("[")?;
        let index = self.used(c)?;
        let digits = |k: char| k.is_ascii_digit();
        let offset = if c.eat("+") {
            c.token("an offset", digits, |t| t.parse().ok())?
        } else if c.eat("-") {
            c.token("an offset", digits, |t| format!("-{t}").parse().ok())?
        } else {
            0
        };
        c.want("]")?;
        Ok((mem, index, offset))
    }

    /// `g0[%1 %2]`.
    fn places(&mut self, c: &mut Cursor<'a>) -> Result<(Mem, Vec<Reg>), ParseError> {
        let mem = memory(c)?;
        c.want("[")?;
        Ok((mem, separated(c, "", |c| self.used(c))?))
    }
}

fn memory(c: &mut Cursor) -> Result<Mem, ParseError> {
    if c.eat("g") {
        Ok(Mem::Global(c.number()?))
    } else if c.eat("l") {
        Ok(Mem::Local(c.number()?))
    } else {
        c.fail("a memory such as `g0` or `l0`")
    }
}

/// `symbol`s and all operations by name; values are not operations.
fn op(t: &str) -> Option<Op> {
    let argument = |prefix: &str| t.strip_prefix(prefix)?.strip_suffix(')');
    if let Some(lane) = argument("Extract(") {
        return lane.parse().ok().map(Op::Extract);
    }
    if let Some(first) = argument("Slice(") {
        return first.parse().ok().map(Op::Slice);
    }
    if let Some(table) = argument("Lookup(0x") {
        return u128::from_str_radix(table, 16).ok().map(Op::Lookup);
    }
    if let Some(symbol) = t.strip_prefix('s') {
        return symbol.parse().ok().map(Op::Symbol);
    }
    let plain = [
        Op::Grid,
        Op::Thread,
        Op::Iota,
        Op::Fma,
        Op::Where,
        Op::Cast,
        Op::Bitcast,
        Op::Spread,
        Op::Repeat,
        Op::Stack,
        Op::Dot4,
        Op::Pairs,
    ];
    let fold = || named(&Fold::ALL, t.strip_prefix("Fold")?).map(Op::Fold);
    named(&Unary::ALL, t)
        .map(Op::Unary)
        .or_else(|| named(&Binary::ALL, t).map(Op::Binary))
        .or_else(|| named(&plain, t))
        .or_else(fold)
}

fn reg(c: &mut Cursor) -> Result<Reg, ParseError> {
    let number = |t: &str| t.strip_prefix('%')?.parse().ok().map(Reg);
    c.token("a register", |k| k == '%' || k.is_ascii_digit(), number)
}

fn dtype(c: &mut Cursor) -> Result<DType, ParseError> {
    c.token("a type", |k| k.is_ascii_alphanumeric(), DType::parse)
}

/// Items up to the closing bracket.
fn separated<'a, T>(
    c: &mut Cursor<'a>,
    separator: &str,
    mut item: impl FnMut(&mut Cursor<'a>) -> Result<T, ParseError>,
) -> Result<Vec<T>, ParseError> {
    let mut all = vec![];
    while !c.eat("]") {
        if !all.is_empty() {
            c.want(separator)?;
        }
        all.push(item(c)?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use crate::spec;
    use crate::testing::{CPU, GPU, random_program};

    fn check_round_trip(program: &Linear) {
        let text = program.to_string();
        let parsed = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(parsed.to_string(), text);
        assert!(parsed == *program, "prints alike but differs:\n{text}");
    }

    #[test]
    fn random_programs_round_trip() {
        for seed in 0..500 {
            let caps = if seed % 2 == 0 { CPU } else { GPU };
            check_round_trip(&random_program(&mut Rng::new(seed), &caps, 20).0);
        }
    }

    #[test]
    fn extreme_values_round_trip() {
        let mut p = parse("linear t grid Div(Mul(s0, -3), 2) threads 1\nsymbol s0: n").unwrap();
        for f in [0.0, -0.0, 1e-45, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, 0.1, 16777217.0] {
            p.op(DType::F32, Op::Const(Bits::float(f)), &[]);
        }
        for nan in [0x7fc0_0000, 0xffc0_0000, 0x7f80_0001] {
            p.op(DType::F32, Op::Const(Bits(nan)), &[]);
        }
        let index = p.op(DType::I64, Op::Const(Bits::int(i64::MIN)), &[]);
        p.op(DType::U32, Op::Const(Bits::int(u32::MAX as i64)), &[]);
        p.op(DType::BOOL, Op::Const(Bits::bool(true)), &[]);
        p.op(DType::U8, Op::Lookup(u128::MAX), &[index]);
        p.op(DType::U8, Op::Lookup(1), &[index]);
        p.reg(DType::BF16.with_lanes(32));
        p.code.push(Inst::Prefetch { mem: Mem::Local(0), index, offset: i64::MIN, gate: None });
        p.code.push(Inst::Prefetch { mem: Mem::Global(7), index, offset: i64::MAX, gate: None });
        check_round_trip(&p);
    }

    #[test]
    fn errors_name_the_line_and_what_was_expected() {
        let head = "linear t grid 1 threads 1\n  buffer g0: f32\n";
        let cases = [
            ("", "line 3: expected an instruction, found \"jump\"", "jump"),
            ("", "line 3: expected a type, found \"f33 = Grid\"", "%0: f33 = Grid"),
            (
                "",
                "line 3: expected an operation or a value, found \"Frobnicate %0\"",
                "%0: i64 = Frobnicate %0",
            ),
            ("", "line 3: expected an operation or a value, found \"1.5\"", "%0: i64 = 1.5"),
            ("", "line 3: expected `]`, found \"\"", "%0: i64 = load g0[%0"),
            ("", "line 3: expected a definition of %7, found \"%7\"", "%0: i64 = Neg %7"),
            ("", "line 3: expected the end of the line, found \"now\"", "barrier now"),
            ("", "line 3: expected `g1:`, found \"g2: i8\"", "buffer g2: i8"),
            ("%0: i64 = 1\n", "line 4: expected a register without", "%0: i64 = 2"),
            ("", "line 1: expected a definition or `unused` line of %0", "%1: i64 = 2"),
        ];
        for (before, want, line) in cases {
            let error = parse(&format!("{head}{before}{line}")).expect_err(line).to_string();
            assert!(error.starts_with(want), "{error}");
        }
        assert_eq!(parse("").unwrap_err().to_string(), "line 1: expected `linear `, found \"\"");
        let deep = format!("linear t grid {}", "Add(".repeat(100_000));
        assert_eq!(parse(&deep).unwrap_err().expected, "a less nested grid");
    }

    #[test]
    fn mutated_text_never_panics() {
        let (mut accepted, mut rejected) = (0, 0);
        for seed in 0..2000 {
            let mut rng = Rng::new(seed);
            let mut text: Vec<char> =
                random_program(&mut Rng::new(seed % 20), &CPU, 8).0.to_string().chars().collect();
            for _ in 0..1 + rng.below(3) {
                let at = rng.below(text.len());
                match rng.below(4) {
                    0 => drop(text.remove(at)),
                    1 => {
                        text[at] = *rng.choose(&['0', '9', '%', '[', ']', ' ', 'x', '-', 'é', '\n', ':', '('])
                    }
                    2 => text.insert(at, *rng.choose(&['0', '9', '%', ',', 's', 'g', '\u{1F600}'])),
                    _ => text.truncate(at.max(1)),
                }
            }
            match parse(&text.into_iter().collect::<String>()) {
                Ok(program) => {
                    // Whatever parses can be printed and checked.
                    let _ = (program.to_string(), spec::linear::check(&program));
                    accepted += 1;
                }
                Err(e) => {
                    assert!(e.line > 0 && !e.expected.is_empty());
                    rejected += 1;
                }
            }
        }
        assert!(accepted > 50 && rejected > 500, "{accepted} accepted, {rejected} rejected");
    }
}
