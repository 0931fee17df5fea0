//! Expressions as one line each, for messages.

use crate::graph::{Ex, Op};
use crate::scalar::Binary;

/// An expression on one line: `(r0 * 16 + r1) / 4`.
pub fn expr(e: Ex) -> String {
    let n = e.node();
    let infix = |sym: &str| format!("({} {sym} {})", expr(e.arg(0)), expr(e.arg(1)));
    match n.op {
        Op::Const(v) => v.show(n.dtype.scalar),
        Op::Symbol(i) => e.g.symbols()[i as usize].name.clone(),
        Op::Buffer(i) => e.g.buffer(i).name,
        Op::Range(i, kind) => format!("{}{i}", format!("{kind:?}").to_lowercase()),
        Op::Local(i) => format!("local{i}"),
        Op::Load => format!("{}[{}]", expr(e.arg(0)), expr(e.arg(1))),
        Op::Cast => format!("{}({})", n.dtype, expr(e.arg(0))),
        Op::Binary(op) => match op {
            Binary::Add => infix("+"),
            Binary::Sub => infix("-"),
            Binary::Mul => infix("*"),
            Binary::Div => infix("/"),
            Binary::Mod => infix("%"),
            Binary::And => infix("&"),
            Binary::Or => infix("|"),
            Binary::Xor => infix("^"),
            Binary::Shl => infix("<<"),
            Binary::Shr => infix(">>"),
            Binary::Lt => infix("<"),
            Binary::Le => infix("<="),
            Binary::Eq => infix("=="),
            Binary::Ne => infix("!="),
            Binary::Max | Binary::Min => call(&format!("{op:?}").to_lowercase(), e),
        },
        Op::Unary(op) => call(&format!("{op:?}").to_lowercase(), e),
        op => call(&format!("{op:?}"), e),
    }
}

fn call(name: &str, e: Ex) -> String {
    let args: Vec<_> = e.args().iter().map(|&a| expr(a)).collect();
    format!("{name}({})", args.join(", "))
}
