//! Graphs of any level as text, one node a line: `%3: f32[tokens,2048] = Add %1 %2`.
//!
//! Expressions in, a text out that [`parse`] makes the same expressions of. Symbols come first, then buffers by slot, so
//! that a parsed kernel has its arguments in the same order; the last line names the roots. Any text parses or gives an
//! error, never a panic; what parses need not be legal: that is for [`crate::spec`].

use super::{Cursor, ParseError, named};
use crate::dtype::{Bits, DType};
use crate::graph::{Ex, Graph, Id, Kind, Op, Perm};
use crate::scalar::{Binary, Fold, Unary};
use std::collections::HashMap;

/// Ranges are numbered below this.
const MAX_RANGES: u32 = 1 << 24;

pub fn print(roots: &[Ex]) -> String {
    let order = order(roots);
    let numbers: HashMap<Id, usize> = order.iter().enumerate().map(|(i, e)| (e.id, i)).collect();
    let mut out = String::new();
    if let Some(first) = roots.first() {
        for s in first.g.symbols() {
            out += &format!("symbol {} {}..{}\n", s.name, s.bounds.0, s.bounds.1);
        }
    }
    let refer = |e: &Ex| format!("%{}", numbers[&e.id]);
    for e in &order {
        let dims: Vec<String> = e.dims().iter().map(|d| dimension(*d).unwrap_or_else(|| refer(d))).collect();
        let shape = if dims.is_empty() { String::new() } else { format!("[{}]", dims.join(",")) };
        let args: String = e.args().iter().map(|a| format!(" {}", refer(a))).collect();
        out += &format!("{}: {}{shape} = {}{args}\n", refer(e), e.dtype(), head(*e));
    }
    let roots: String = roots.iter().map(|r| format!(" {}", refer(r))).collect();
    out + &format!("roots{roots}\n")
}

/// Everything that is to be printed, in an order where each node comes after what it names.
fn order<'g>(roots: &[Ex<'g>]) -> Vec<Ex<'g>> {
    let below = |e: Ex<'g>| {
        let named = e.dims().into_iter().filter(|d| dimension(*d).is_none());
        e.args().into_iter().chain(named).collect::<Vec<_>>()
    };
    let walk = |roots: &[Ex<'g>]| {
        let (mut seen, mut out) = (std::collections::HashSet::new(), vec![]);
        let mut stack: Vec<(Ex, bool)> = roots.iter().rev().map(|&r| (r, false)).collect();
        while let Some((e, done)) = stack.pop() {
            if done {
                out.push(e);
            } else if seen.insert(e.id) {
                stack.push((e, true));
                stack.extend(below(e).into_iter().rev().map(|a| (a, false)));
            }
        }
        out
    };
    let mut buffers: Vec<Ex> = walk(roots).into_iter().filter(|e| matches!(e.op(), Op::Buffer(_))).collect();
    buffers.sort_by_key(|e| e.op());
    walk(&[&buffers, roots].concat())
}

/// A dimension that is printed in its place.
fn dimension(d: Ex) -> Option<String> {
    match d.op() {
        Op::Const(v) if d.dtype() == DType::INDEX => Some(v.as_int().to_string()),
        Op::Symbol(i) => d.g.symbols().get(i as usize).map(|s| s.name.clone()),
        _ => None,
    }
}

/// The operation with what it holds besides its arguments.
fn head(e: Ex) -> String {
    let listed = |items: Vec<usize>| items.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    match e.op() {
        Op::Const(v) => v.show(e.dtype().scalar),
        Op::Symbol(i) => format!("Symbol({})", e.g.symbols().get(i as usize).map_or("?", |s| &s.name)),
        Op::Buffer(i) if e.g.has_buffer(i) => format!("Buffer({})", e.g.buffer(i).name),
        Op::Unary(op) => format!("{op:?}"),
        Op::Binary(op) => format!("{op:?}"),
        Op::Lookup(table) => format!("Lookup({table:#034x})"),
        Op::Permute(p) => {
            format!("Permute({})", listed((0..e.dims().len().min(16)).map(|i| p.get(i)).collect()))
        }
        Op::Reduce(fold, axes) => {
            format!("Reduce({fold:?},{})", listed((0..16).filter(|i| axes >> i & 1 == 1).collect()))
        }
        Op::Range(n, kind) => format!("Range({n},{kind:?})"),
        Op::Fold(fold, n) => format!("Fold({fold:?},{n})"),
        Op::LaneFold(fold) => format!("LaneFold({fold:?})"),
        op => format!("{op:?}"),
    }
}

/// The roots of what [`print`] wrote, as nodes of `g`. Buffers are new ones; symbols and ranges of `g` with the same
/// name or number are the same.
pub fn parse<'g>(text: &str, g: &'g Graph) -> Result<Vec<Ex<'g>>, ParseError> {
    let mut p = Parser { g, nodes: vec![] };
    let mut last = 1;
    for (i, rest) in text.lines().enumerate() {
        let mut c = Cursor { rest, line: i + 1 };
        last = c.line;
        if c.end().is_ok() {
            continue;
        }
        if c.eat("symbol ") {
            p.symbol(&mut c)?;
        } else if c.eat("roots") {
            let roots = p.operands(&mut c)?;
            let more = text.lines().enumerate().skip(i + 1).find(|(_, l)| !l.trim().is_empty());
            return match more {
                Some((i, rest)) => Cursor { rest, line: i + 1 }.fail("nothing after the roots"),
                None => Ok(roots),
            };
        } else {
            p.node(&mut c)?;
        }
    }
    Cursor { rest: "", line: last }.fail("the roots")
}

struct Parser<'g> {
    g: &'g Graph,
    nodes: Vec<Ex<'g>>,
}

impl<'g> Parser<'g> {
    /// `symbol tokens 1..512`
    fn symbol(&mut self, c: &mut Cursor) -> Result<(), ParseError> {
        let before = *c;
        let name = c.word("the symbol's name")?;
        let (low, high) = c.token(
            "bounds such as `1..8`",
            |k| k == '-' || k == '.' || k.is_ascii_digit(),
            |t| {
                let (low, high) = t.split_once("..")?;
                Some((low.parse::<i64>().ok()?, high.parse::<i64>().ok()?)).filter(|(l, h)| l <= h)
            },
        )?;
        c.end()?;
        let known = self.g.symbols().into_iter().find(|s| s.name == name);
        if known.is_some_and(|s| s.bounds != (low, high)) {
            return before.fail("the bounds that this symbol has");
        }
        if !name.chars().all(is_name) || name.starts_with(|k: char| k.is_ascii_digit()) {
            return before.fail("a name");
        }
        self.g.symbol(name, (low, high));
        Ok(())
    }

    /// `%3: f32[tokens,2048] = Add %1 %2`
    fn node(&mut self, c: &mut Cursor) -> Result<(), ParseError> {
        c.want(&format!("%{}:", self.nodes.len()))?;
        let dtype = c.token("a type", |k| k.is_ascii_alphanumeric(), DType::parse)?;
        let mut dims = vec![];
        if c.eat("[") {
            while !c.eat("]") {
                if !dims.is_empty() {
                    c.want(",")?;
                }
                dims.push(self.dimension(c)?.id);
            }
        }
        c.want("=")?;
        let shape = self.g.list(&dims);
        let before = *c;
        let (name, payload) = operation(c)?;
        let e = match (name, payload) {
            ("Buffer", Some(name)) => {
                c.end()?;
                let dims: Vec<Ex> = dims.iter().map(|&d| self.g.ex(d)).collect();
                self.g.new_buffer(name, dtype, &dims)
            }
            ("Range", Some(p)) => {
                let args = self.operands(c)?;
                let (n, kind) = p.split_once(',').unwrap_or((p, ""));
                let n = n.parse().ok().filter(|n| *n < MAX_RANGES);
                let kind = named(&Kind::ALL, kind);
                match (n, kind, &args[..]) {
                    (Some(n), Some(kind), [extent]) if dtype == DType::INDEX => {
                        self.g.range(n, *extent, kind)
                    }
                    _ => return before.fail("a range such as `Range(0,Serial) %1`"),
                }
            }
            _ => {
                let op = match self.op(name, payload, dims.len()).or_else(|| constant(name, payload, dtype)) {
                    Some(op) => op,
                    None => return before.fail("an operation or a value"),
                };
                let args = self.operands(c)?;
                self.g.shaped(op, dtype, shape, &args)
            }
        };
        self.nodes.push(e);
        Ok(())
    }

    fn dimension(&self, c: &mut Cursor) -> Result<Ex<'g>, ParseError> {
        if c.rest.trim_start().starts_with('%') {
            return self.operand(c);
        }
        if c.rest.trim_start().starts_with(|k: char| k == '-' || k.is_ascii_digit()) {
            return Ok(self.g.int(c.number()?));
        }
        c.token("a dimension", is_name, |t| self.symbol_named(t))
    }

    fn symbol_named(&self, name: &str) -> Option<Ex<'g>> {
        let s = self.g.symbols().into_iter().find(|s| s.name == name)?;
        Some(self.g.symbol(&s.name, s.bounds))
    }

    fn operand(&self, c: &mut Cursor) -> Result<Ex<'g>, ParseError> {
        let find = |t: &str| self.nodes.get(t.strip_prefix('%')?.parse::<usize>().ok()?).copied();
        c.token("a node from above", |k| k == '%' || k.is_ascii_digit(), find)
    }

    /// Nodes up to the end of the line.
    fn operands(&self, c: &mut Cursor) -> Result<Vec<Ex<'g>>, ParseError> {
        let mut all = vec![];
        while c.end().is_err() {
            all.push(self.operand(c)?);
        }
        Ok(all)
    }

    fn op(&self, name: &str, payload: Option<&str>, rank: usize) -> Option<Op> {
        let Some(p) = payload else {
            return named(&Unary::ALL, name)
                .map(Op::Unary)
                .or_else(|| named(&Binary::ALL, name).map(Op::Binary))
                .or_else(|| named(&PLAIN, name));
        };
        let numbers = |t: &str| {
            t.split(',')
                .filter(|n| !n.is_empty())
                .map(|n| n.parse().ok().filter(|n| *n < 16))
                .collect::<Option<Vec<usize>>>()
        };
        let fold = |t: &str| named(&Fold::ALL, t);
        Some(match name {
            "Symbol" => self.symbol_named(p)?.op(),
            "Lookup" => Op::Lookup(u128::from_str_radix(p.strip_prefix("0x")?, 16).ok()?),
            "Permute" => Op::Permute(Perm::new(&numbers(p).filter(|axes| axes.len() == rank)?)),
            "Reduce" => {
                let (f, axes) = p.split_once(',')?;
                Op::Reduce(fold(f)?, numbers(axes)?.iter().fold(0, |m, a| m | 1 << a))
            }
            "Fold" => {
                let (f, n) = p.split_once(',')?;
                Op::Fold(fold(f)?, n.parse().ok()?)
            }
            "LaneFold" => Op::LaneFold(fold(p)?),
            "Local" => Op::Local(p.parse().ok()?),
            "Extract" => Op::Extract(p.parse().ok()?),
            "Slice" => Op::Slice(p.parse().ok()?),
            "TileDot" => Op::TileDot(p.parse().ok()?),
            _ => return None,
        })
    }
}

/// Operations that hold nothing.
const PLAIN: [Op; 25] = [
    Op::Iota,
    Op::Where,
    Op::Cast,
    Op::Bitcast,
    Op::Reshape,
    Op::Expand,
    Op::Shrink,
    Op::Pad,
    Op::Gather,
    Op::Assign,
    Op::Contiguous,
    Op::Load,
    Op::Store,
    Op::Lanes,
    Op::Spread,
    Op::Repeat,
    Op::Stack,
    Op::Fma,
    Op::Dot4,
    Op::Pairs,
    Op::Mma,
    Op::LoadLanes,
    Op::TileRow,
    Op::TileProduct,
    Op::Segment,
];

/// `Fold(Sum,1)` as its name and what stands in the parentheses, up to the last one: buffers may be named anything.
fn operation<'a>(c: &mut Cursor<'a>) -> Result<(&'a str, Option<&'a str>), ParseError> {
    let name = c.token("an operation or a value", |k| !k.is_whitespace() && k != '(', Some)?;
    let Some(inside) = c.rest.strip_prefix('(') else { return Ok((name, None)) };
    let end = if name == "Buffer" { inside.rfind(')') } else { inside.find(')') };
    match end {
        Some(end) => {
            c.rest = &inside[end + 1..];
            Ok((name, Some(&inside[..end])))
        }
        None => c.fail("`)`"),
    }
}

fn constant(name: &str, payload: Option<&str>, t: DType) -> Option<Op> {
    payload.is_none().then(|| Bits::parse(t.scalar, name)).flatten().map(Op::Const)
}

fn is_name(k: char) -> bool {
    k.is_alphanumeric() || k == '_' || k == '.'
}

#[cfg(test)]
mod tests;
