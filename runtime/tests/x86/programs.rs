//! Whole programs: random ones, and some that strain one part.

use crate::run::{check, targets};
use compiler::codegen::{Caps, Target};
use compiler::rng::Rng;
use compiler::testing::random_program;

#[test]
fn random_programs() {
    for target in targets() {
        let caps = Caps { local_bytes: 1 << 14, ..target.caps() };
        for seed in 0..400 {
            let (program, buffers, symbols) = random_program(&mut Rng::new(seed), &caps, 60);
            check(&target, &program, &buffers, &symbols);
        }
    }
}
