//! Random operands for the rules' tests: a type in, an expression of it out.
//!
//! The same few leaves come again and again, so rules that compare two operands get to fire.

use crate::dtype::{Bits, DType, Scalar};
use crate::graph::{Ex, Graph, Kind, Op};
use crate::rng::Rng;
use crate::scalar::Binary;

pub fn dtype(of: &[Scalar], rng: &mut Rng) -> DType {
    rng.choose(of).vec(if rng.one_in(4) { 4 } else { 1 })
}

/// What a comparison in the place of a `t` may compare.
pub fn compared(op: Binary, t: DType, rng: &mut Rng) -> DType {
    const SOME: [Scalar; 5] = [Scalar::Bool, Scalar::I64, Scalar::I32, Scalar::U8, Scalar::F32];
    let types: Vec<Scalar> = SOME.into_iter().filter(|&s| op.takes(s)).collect();
    if t.scalar == Scalar::Bool { rng.choose(&types).vec(t.lanes) } else { t }
}

pub fn cast_from(t: DType, rng: &mut Rng) -> DType {
    rng.choose(&Scalar::ALL).vec(t.lanes)
}

pub fn constant<'g>(g: &'g Graph, rng: &mut Rng, t: DType) -> Ex<'g> {
    if t.is_float() {
        return g
            .constant(t, Bits::float(*rng.choose(&[0.0, -0.0, 1.0, -1.0, 2.0, 0.25, 3.5, f32::INFINITY])));
    }
    let v = match rng.below(8) {
        0 => rng.bits() as i64,
        1 => (1i64 << rng.below(t.scalar.bits() as usize)).wrapping_sub(rng.range(0, 1)),
        2 => -rng.range(1, 4),
        _ => rng.range(0, 12),
    };
    g.constant(t, Bits::int(t.scalar.wrap(v)))
}

/// Memory of the type's elements, the same at every call.
pub fn memory(g: &Graph, t: DType) -> Ex<'_> {
    g.make(Op::Local(0), t.with_lanes(1), &[g.int(64)])
}

/// An operand: of unknown value, a constant, an index expression, or something computed in a narrow type.
pub fn leaf<'g>(g: &'g Graph, rng: &mut Rng, t: DType) -> Ex<'g> {
    match rng.below(8) {
        0 => constant(g, rng, t),
        1 | 2 if t.scalar.is_int() && t.lanes == 1 => {
            let op =
                *rng.choose(&[Binary::Add, Binary::Sub, Binary::Mul, Binary::Min, Binary::Div, Binary::Mod]);
            variable(g, rng).cast(t.scalar).binary(op, variable(g, rng).cast(t.scalar))
        }
        3.. if t == DType::INDEX => {
            let depth = rng.below(3);
            index(g, rng, depth)
        }
        _ => unknown(g, rng, t),
    }
}

fn unknown<'g>(g: &'g Graph, rng: &mut Rng, t: DType) -> Ex<'g> {
    g.make(Op::Load, t, &[memory(g, t), g.int(8 * rng.range(0, 2))])
}

/// A random index expression of this depth over ranges, symbols and small integers from memory.
pub fn index<'g>(g: &'g Graph, rng: &mut Rng, depth: usize) -> Ex<'g> {
    if depth == 0 {
        return variable(g, rng);
    }
    let x = index(g, rng, depth - 1);
    let c = *rng.choose(&[1, 2, 3, 4, 6, 8, 16, 64]);
    match rng.below(16) {
        0..3 => x + index(g, rng, depth - 1),
        3 => x - index(g, rng, depth - 1),
        4 => x * c + index(g, rng, depth - 1),
        5 => x * c,
        6 => x + rng.range(-20, 20),
        7..9 => x / c,
        9..11 => x % c,
        11 => x * symbol(g, rng) + variable(g, rng),
        12 => x / symbol(g, rng),
        13 => x % symbol(g, rng),
        14 => (x / c) * c + x % c,
        _ => match rng.below(4) {
            0 => x.min(index(g, rng, depth - 1)),
            1 => x.max(c),
            2 => x.lt(c).select(index(g, rng, depth - 1), x),
            _ => x.cast(Scalar::I32).cast(Scalar::I64),
        },
    }
}

fn symbol<'g>(g: &'g Graph, rng: &mut Rng) -> Ex<'g> {
    match rng.below(3) {
        0 => g.symbol("n", (1, 40)),
        1 => g.symbol("p", (0, 30)) + 1,
        _ => g.symbol("n", (1, 40)) * 4,
    }
}

fn variable<'g>(g: &'g Graph, rng: &mut Rng) -> Ex<'g> {
    let range = |number, extent| g.make(Op::Range(number, Kind::Serial), DType::INDEX, &[extent]);
    match rng.below(8) {
        0 => range(0, g.symbol("n", (1, 40))),
        1 => range(1, g.int(4)),
        2 => range(2, g.int(8)),
        3 => range(3, g.symbol("p", (0, 30)) + 1),
        4 => range(4, range(1, g.int(4)) + 1),
        5 => g.symbol("n", (1, 40)),
        6 => g.symbol("p", (0, 30)),
        _ => unknown(g, rng, DType::U8).cast(Scalar::I64),
    }
}
