//! Reference interpreters: slow, obvious, the definition of what the compiler must preserve.

pub mod expr;
pub mod kernel;
pub mod linear;
mod race;
pub mod tensor;

use crate::dtype::{Bits, Scalar};
use crate::scalar;

/// What thread `t` of 32 gets of [`crate::linear::Inst::Mma`] of such inputs: its sums before, and what a thread holds of a
/// part, 0 and 1 being rows and 2 columns.
fn mma(t: usize, of: Scalar, acc: &[Bits], mut held: impl FnMut(usize, usize) -> Vec<Bits>) -> Vec<Bits> {
    let mut wide = |part: usize, row: usize| -> Vec<f32> {
        let inputs = (4 * row..4 * row + 4).flat_map(|u| held(part, u)).collect::<Vec<_>>();
        inputs.into_iter().map(|v| scalar::cast(of, Scalar::F32, v).as_float()).collect()
    };
    let rows = [0, 1].map(|part| wide(part, t / 4));
    let columns = [0, 1].map(|side| wide(2, t % 4 * 2 + side));
    let product = |(i, acc): (usize, &Bits)| {
        let terms = rows[i / 2].iter().zip(&columns[i % 2]);
        Bits::float(terms.fold(acc.as_float(), |sum, (x, y)| sum + x * y))
    };
    acc.iter().enumerate().map(product).collect()
}
