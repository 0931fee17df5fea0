//! Expressions as people read them: one line each, for messages; kernels with a name for whatever is long or used twice.

use crate::graph::{Ex, Id, Op, topo};
use crate::scalar::Binary;
use crate::schedule::Kernel;
use std::collections::HashMap;
use std::fmt;

/// Longer expressions get a name of their own in a kernel; so do shorter ones above `SHARED` that are used twice.
const LONG: usize = 96;
const SHARED: usize = 16;

/// Digits of a range's number, as far as lengths go.
const DIGITS: usize = 2;
const SERIAL: &str = "serial";

/// An expression on one line: `(r0 * 16 + r1) / 4`.
pub fn expr(e: Ex) -> String {
    show(e, &|a| expr(a))
}

/// A node, its arguments by `arg`.
fn show<'g>(e: Ex<'g>, arg: &dyn Fn(Ex<'g>) -> String) -> String {
    let (n, args) = (e.node(), e.args());
    let call =
        |name: &str| format!("{name}({})", args.iter().map(|&a| arg(a)).collect::<Vec<_>>().join(", "));
    let gate = |at: usize| args.get(at).map(|&g| format!(" if {}", arg(g))).unwrap_or_default();
    match (n.op, &args[..]) {
        (Op::Const(v), _) => v.show(n.dtype.scalar),
        (Op::Symbol(i), _) => e.g.symbols().get(i as usize).map_or(format!("symbol{i}"), |s| s.name.clone()),
        (Op::Buffer(i), _) if e.g.has_buffer(i) => e.g.buffer(i).name,
        (Op::Range(i, kind), _) => format!("{}{i}", format!("{kind:?}").to_lowercase()),
        (Op::Local(i), _) => format!("local{i}"),
        (Op::Load | Op::LoadLanes, [m, i, ..]) => {
            let lanes = if n.dtype.lanes > 1 { format!(":{}", n.dtype.lanes) } else { String::new() };
            format!("{}[{}{lanes}{}]", arg(*m), arg(*i), gate(2))
        }
        (Op::Store, [m, i, v, ..]) => format!("{}[{}{}] = {}", arg(*m), arg(*i), gate(3), arg(*v)),
        (Op::Cast, _) => call(&n.dtype.to_string()),
        (Op::Binary(op), [a, b]) => match infix(op) {
            Some(sign) => format!("({} {sign} {})", arg(*a), arg(*b)),
            None => call(&format!("{op:?}").to_lowercase()),
        },
        (Op::Where, [c, a, b]) => format!("({} ? {} : {})", arg(*c), arg(*a), arg(*b)),
        (Op::Fold(fold, k), _) if args.len() >= k as usize => {
            let list = |of: &[Ex<'g>]| of.iter().map(|&a| arg(a)).collect::<Vec<_>>().join(", ");
            let (bodies, over) = args.split_at(k as usize);
            format!("{}({}; {})", format!("{fold:?}").to_lowercase(), list(bodies), list(over))
        }
        (Op::Unary(op), _) => call(&format!("{op:?}").to_lowercase()),
        (Op::LaneFold(fold), _) => call(&format!("{fold:?}").to_lowercase()),
        (op, _) => call(&format!("{op:?}").to_lowercase()),
    }
}

fn infix(op: Binary) -> Option<&'static str> {
    Some(match op {
        Binary::Add => "+",
        Binary::Sub => "-",
        Binary::Mul => "*",
        Binary::Div => "/",
        Binary::Mod => "%",
        Binary::And => "&",
        Binary::Or => "|",
        Binary::Xor => "^",
        Binary::Shl => "<<",
        Binary::Shr => ">>",
        Binary::Lt => "<",
        Binary::Le => "<=",
        Binary::Eq => "==",
        Binary::Ne => "!=",
        Binary::Max | Binary::Min => return None,
    })
}

impl fmt::Display for Kernel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let stages: Vec<Vec<Ex>> = self.stages.iter().map(|s| vec![s.store]).collect();
        f.write_str(&crate::text::stages(self, &stages))
    }
}

/// A kernel whose stages have become these stores.
pub fn stages(kernel: &Kernel, stages: &[Vec<Ex>]) -> String {
    let ranges = |of: &[Ex]| {
        let each = of.iter().map(|r| match r.args()[..] {
            [extent] => format!("{} < {}", expr(*r), expr(extent)),
            _ => expr(*r),
        });
        each.collect::<Vec<_>>().join(", ")
    };
    let mut out = format!("kernel {} [{}]\n", kernel.name, ranges(&kernel.rows));
    for (b, written) in kernel.buffers() {
        let dims: Vec<String> = b.dims().iter().map(|d| expr(*d)).collect();
        let to = if written { " written" } else { "" };
        out += &format!("  buffer {}: {}[{}]{to}\n", expr(b), b.dtype(), dims.join(", "));
    }
    for (i, stores) in stages.iter().enumerate() {
        let outs = kernel.stages.get(i).map(|s| ranges(&s.outs)).unwrap_or_default();
        out += &format!("  stage [{outs}]\n");
        for line in lines(stores) {
            out += &format!("    {line}\n");
        }
    }
    out
}

/// How long a text is, whatever the numbers of its ranges: equal kernels are to read alike, as they are known by their text.
fn length(text: &str) -> usize {
    let mut pieces = text.split(SERIAL);
    let first = pieces.next().map_or(0, str::len);
    let number = |c: char| c.is_ascii_digit();
    first + pieces.map(|p| SERIAL.len() + DIGITS + p.trim_start_matches(number).len()).sum::<usize>()
}

/// The stores, after definitions of what they share.
fn lines(stores: &[Ex]) -> Vec<String> {
    let order = topo(stores);
    let mut uses: HashMap<Id, usize> = HashMap::new();
    for a in order.iter().flat_map(|e| e.args()) {
        *uses.entry(a.id).or_default() += 1;
    }
    let (mut texts, mut out, mut names): (HashMap<Id, String>, _, _) = (HashMap::new(), vec![], 0);
    for e in order {
        let text = show(e, &|a| texts[&a.id].clone());
        let leaf = matches!(e.op(), Op::Buffer(_) | Op::Symbol(_) | Op::Const(_));
        let shared = uses.get(&e.id).is_some_and(|n| *n > 1) && length(&text) > SHARED;
        let text = if matches!(e.op(), Op::Store | Op::TileProduct) {
            out.push(text.clone());
            text
        } else if !leaf && (shared || length(&text) > LONG) {
            names += 1;
            out.push(format!("v{names}: {} = {text}", e.dtype()));
            format!("v{names}")
        } else {
            text
        };
        texts.insert(e.id, text);
    }
    out
}

#[cfg(test)]
mod tests {
    use crate::dtype::DType;
    use crate::graph::{Graph, Kind};
    use crate::pipeline;

    #[test]
    fn numbers_of_ranges_do_not_decide_what_has_a_name() {
        let square = |before: usize| {
            let g = Graph::new();
            for _ in 0..before {
                g.new_range(g.int(2), Kind::Serial);
            }
            // As long as may be, so that a third digit would be too much.
            let x = g.input("inputs", DType::F32, [8]);
            let kernels = pipeline::schedule(&g, &[(x * x).sum(-1)], crate::schedule::Grain::CPU).kernels;
            let text = kernels[0].to_string();
            text.split(|c: char| c.is_ascii_digit()).collect::<String>()
        };
        let texts = [0, 8, 95, 995].map(square);
        assert!(texts.iter().all(|t| *t == texts[0]), "{texts:?}");
    }

    #[test]
    fn kernels_read_like_code() {
        let g = Graph::new();
        let n = g.symbol("n", (1, 8));
        let x = g.input("x", DType::F32, [n, g.int(64)]);
        let kernels = pipeline::schedule(&g, &[x.softmax(-1)], crate::schedule::Grain::CPU).kernels;
        insta::assert_snapshot!(kernels[0].to_string());
    }
}
