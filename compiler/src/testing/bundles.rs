//! Random programs side by side: a seed in, a bundle with its inputs out, and whether it ran as its parts do one by one.

use super::{difference, expected, random_program};
use crate::bundle::Bundle;
use crate::codegen::Caps;
use crate::linear::{Count, Linear};
use crate::rng::Rng;

/// Two to four random programs of different numbers of threads, their buffers and the values of their symbols.
pub fn random_bundle(rng: &mut Rng, caps: &Caps, steps: usize) -> (Bundle, Vec<Vec<u8>>, Vec<i64>) {
    let mut parts = vec![];
    let mut values: Vec<(String, i64)> = vec![];
    for i in 0..2 + rng.below(3) {
        let (mut part, buffers, symbols) = random_program(rng, caps, steps);
        part.name = format!("{}_{i}", part.name);
        // Parts share symbols by name, and these have other values.
        part.symbols.iter_mut().for_each(|s| *s = format!("{s}_{i}"));
        values.extend(part.symbols.iter().cloned().zip(symbols));
        parts.push((part, buffers));
    }
    let value = |s: &String| values.iter().find(|v| v.0 == *s).expect("every symbol has a value").1;
    let varies = |p: &Linear| !matches!(p.grid, Count::Const(_));
    parts.sort_by_key(|(p, _)| varies(p));
    let last = parts.len() - 1;
    for (part, _) in parts[..last].iter_mut().filter(|(p, _)| varies(p)) {
        part.grid = Count::Const(part.grid.eval(&part.symbols.iter().map(value).collect::<Vec<_>>()));
    }
    let (parts, buffers): (Vec<Linear>, Vec<Vec<Vec<u8>>>) = parts.into_iter().unzip();
    let bundle = Bundle::new(parts);
    let symbols = bundle.symbols().iter().map(value).collect();
    (bundle, buffers.concat(), symbols)
}

/// The first difference between what a bundle made of its buffers and what its parts make of them by themselves.
pub fn bundle_difference(
    bundle: &Bundle,
    buffers: &[Vec<u8>],
    symbols: &[i64],
    got: &[Vec<u8>],
) -> Option<String> {
    let mut at = 0;
    bundle.parts().iter().find_map(|part| {
        let own = at..at + part.buffers.len();
        at = own.end;
        let want = expected(part, &buffers[own.clone()], symbols).expect("random programs are defined");
        difference(part, &want, &got[own]).map(|why| format!("{}: {why}", part.name))
    })
}
