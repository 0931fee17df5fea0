//! Arithmetic on dimensions, which are index expressions: constants, symbols and products of them.

use crate::graph::{Ex, Graph, Id, Op};
use crate::scalar::Binary;
use std::ops::Range;

/// What may be given as a list of dimensions.
pub trait Dims<'g> {
    fn dims(&self, g: &'g Graph) -> Vec<Ex<'g>>;
}
impl<'g> Dims<'g> for [i64] {
    fn dims(&self, g: &'g Graph) -> Vec<Ex<'g>> {
        self.iter().map(|&d| g.int(d)).collect()
    }
}
impl<'g, const N: usize> Dims<'g> for [i64; N] {
    fn dims(&self, g: &'g Graph) -> Vec<Ex<'g>> {
        self[..].dims(g)
    }
}
impl<'g> Dims<'g> for [Ex<'g>] {
    fn dims(&self, _: &'g Graph) -> Vec<Ex<'g>> {
        self.to_vec()
    }
}
impl<'g, const N: usize> Dims<'g> for [Ex<'g>; N] {
    fn dims(&self, _: &'g Graph) -> Vec<Ex<'g>> {
        self.to_vec()
    }
}
impl<'g, T> Dims<'g> for Vec<T>
where
    [T]: Dims<'g>,
{
    fn dims(&self, g: &'g Graph) -> Vec<Ex<'g>> {
        self[..].dims(g)
    }
}

/// A product of dimensions in normal form: a constant and the symbolic factors in order.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Size {
    constant: i64,
    symbolic: Vec<Id>,
}

impl Size {
    const ONE: Size = Size { constant: 1, symbolic: vec![] };

    fn times(mut self, d: Ex) -> Size {
        match (d.as_int(), d.op()) {
            (Some(c), _) => self.constant *= c,
            (_, Op::Binary(Binary::Mul)) => self = self.times(d.arg(0)).times(d.arg(1)),
            _ => {
                self.symbolic.push(d.id);
                self.symbolic.sort();
            }
        }
        self
    }
}

pub fn product<'g>(g: &'g Graph, dims: &[Ex<'g>]) -> Ex<'g> {
    let size = dims.iter().fold(Size::ONE, |s, &d| s.times(d));
    let c = g.int(size.constant);
    match size.symbolic.iter().map(|&id| g.ex(id)).reduce(|a, b| a * b) {
        None => c,
        Some(s) if size.constant == 1 => s,
        Some(s) => s * c,
    }
}

/// How far apart neighbours along each axis lie in row-major order.
pub fn strides<'g>(g: &'g Graph, dims: &[Ex<'g>]) -> Vec<Ex<'g>> {
    (0..dims.len()).map(|i| product(g, &dims[i + 1..])).collect()
}

/// Same number of elements?
pub fn same_size<'g>(a: &[Ex<'g>], b: &[Ex<'g>]) -> bool {
    let size = |dims: &[Ex<'g>]| dims.iter().fold(Size::ONE, |s, &d| s.times(d));
    size(a) == size(b)
}

/// The finest pairing of neighbouring axes of `from` with neighbouring axes of `to` so that each pair has the same
/// number of elements: a reshape acts within each pair alone.
pub fn pair_axes<'g>(from: &[Ex<'g>], to: &[Ex<'g>]) -> Vec<(Range<usize>, Range<usize>)> {
    let mut pairs = vec![];
    let (mut f, mut t) = (0, 0);
    while f < from.len() || t < to.len() {
        let (f0, t0) = (f, t);
        let (mut a, mut b) = (Size::ONE, Size::ONE);
        loop {
            let behind = (a.symbolic.len(), a.constant) <= (b.symbolic.len(), b.constant);
            if f < from.len() && (t == to.len() || behind) {
                a = a.times(from[f]);
                f += 1;
            } else if t < to.len() {
                b = b.times(to[t]);
                t += 1;
            }
            if a == b && (f > f0 && t > t0 || f == from.len() && t == to.len()) {
                break;
            }
            if f == from.len() && t == to.len() {
                break;
            }
        }
        pairs.push((f0..f, t0..t));
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reshape_touches_only_what_changes() {
        let g = Graph::new();
        let n = g.symbol("n", (1, 64));
        let pairs = |a: &[Ex], b: &[Ex]| format!("{:?}", pair_axes(a, b));
        let i = |v| g.int(v);
        assert_eq!(pairs(&[n, i(5120)], &[n, i(20), i(256)]), "[(0..1, 0..1), (1..2, 1..3)]");
        assert_eq!(pairs(&[i(32), i(7)], &[i(2), i(16), i(7)]), "[(0..1, 0..2), (1..2, 2..3)]");
        assert_eq!(pairs(&[i(6), i(4)], &[i(4), i(6)]), "[(0..2, 0..2)]");
        assert_eq!(pairs(&[n, i(1)], &[n]), "[(0..1, 0..1), (1..2, 1..1)]");
        assert_eq!(product(&g, &[i(2), n, i(3)]), n * 6);
        assert_eq!(product(&g, &[i(2), n * 4, n]), n * n * 8);
        assert!(same_size(&[i(8), n], &[n * 8]) && !same_size(&[i(4), n], &[n * 8]));
    }
}
