//! Random linear programs and a table of small ones ([`cases`]), to compare a backend with the interpreter: a seed and a
//! target's [`Caps`] in, a legal program with its inputs out. Every result of a random program is determined bit by bit,
//! but for the payload of NaNs ([`difference`]). Random tensor programs are in [`graphs`].

mod bundles;
pub mod cases;
mod generate;
pub mod graphs;
mod shrink;

pub use bundles::{bundle_difference, random_bundle};
pub use generate::random_program;
pub use shrink::shrink;

use crate::codegen::Caps;
use crate::dtype::Bits;
use crate::interp;
use crate::linear::Linear;

/// What an AVX-512 core with VNNI and AMX can do.
pub const CPU: Caps = Caps {
    vector_bytes: 64,
    lanes: 1,
    max_threads: 1,
    local_bytes: 1 << 14,
    dot4: true,
    tile: true,
    mma: false,
    transcendental: false,
};

/// What an NVIDIA GPU can do.
pub const GPU: Caps = Caps {
    vector_bytes: 16,
    lanes: 32,
    max_threads: 64,
    local_bytes: 1 << 14,
    dot4: true,
    tile: false,
    mma: true,
    transcendental: true,
};

/// The buffers as the interpreter leaves them; none if the program does something undefined.
pub fn expected(program: &Linear, buffers: &[Vec<u8>], symbols: &[i64]) -> Option<Vec<Vec<u8>>> {
    let mut buffers = buffers.to_vec();
    interp::linear::try_run(program, &mut buffers, symbols).ok().map(|()| buffers)
}

/// The first difference between two runs' buffers. All NaNs are the same.
pub fn difference(program: &Linear, want: &[Vec<u8>], got: &[Vec<u8>]) -> Option<String> {
    for (i, (w, g)) in want.iter().zip(got).enumerate() {
        let s = program.buffers[i].0.scalar;
        for (e, (w, g)) in w.chunks_exact(s.bytes()).zip(g.chunks_exact(s.bytes())).enumerate() {
            let (w, g) = (Bits::read(s, w), Bits::read(s, g));
            let nan = s.is_float() && w.as_float().is_nan() && g.as_float().is_nan();
            if w != g && !nan {
                return Some(format!("g{i}[{e}] is {}, not {}", g.show(s), w.show(s)));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests;
