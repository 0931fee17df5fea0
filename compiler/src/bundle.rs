//! Programs that run side by side in one launch.
//!
//! In: linear programs of which none writes what another touches. Out: a [`Bundle`], whose first grid indices are those of
//! the first part, the next those of the second, and whose buffer arguments are the parts' one after the other.
//! Invariant: all parts count their symbols alike, and only the last one's grid may depend on them.

use crate::dtype::DType;
use crate::linear::{Count, Inst, Linear, Op};

/// One program, or several that a target runs as one.
#[derive(Clone, PartialEq, Debug)]
pub struct Bundle {
    name: String,
    parts: Vec<Linear>,
    settled: Vec<bool>,
}

impl From<Linear> for Bundle {
    fn from(one: Linear) -> Bundle {
        Bundle::new(vec![one])
    }
}

impl Bundle {
    pub fn new(mut parts: Vec<Linear>) -> Bundle {
        assert!(!parts.is_empty(), "a bundle of nothing");
        let mut symbols: Vec<String> = vec![];
        for part in &parts {
            symbols.extend(part.symbols.iter().filter(|s| !symbols.contains(s)).cloned().collect::<Vec<_>>());
        }
        for part in &mut parts {
            let place = |s: &String| symbols.iter().position(|known| known == s).map(|at| at as u32);
            let places: Vec<u32> = part.symbols.iter().filter_map(place).collect();
            renumber(part, &places);
            part.symbols.clone_from(&symbols);
        }
        let name = parts.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join("__");
        for part in &parts[..parts.len() - 1] {
            assert!(matches!(part.grid, Count::Const(_)), "the grid of {} depends on symbols", part.name);
        }
        let settled = vec![false; parts.iter().map(|p| p.buffers.len()).sum()];
        Bundle { name, parts, settled }
    }

    /// The same, launched where these of its buffer arguments are not written by the launch before.
    pub fn with_settled(self, settled: Vec<bool>) -> Bundle {
        assert_eq!(settled.len(), self.settled.len(), "buffers of {}", self.name);
        Bundle { settled, ..self }
    }

    pub fn name(&self) -> &str {
        &self.name
    }
    pub fn parts(&self) -> &[Linear] {
        &self.parts
    }
    pub fn symbols(&self) -> &[String] {
        &self.parts[0].symbols
    }
    /// Element type of each buffer argument and whether it is written.
    pub fn buffers(&self) -> impl Iterator<Item = (DType, bool)> {
        self.parts.iter().flat_map(|p| p.buffers.iter().copied())
    }
    /// Which buffer arguments hold what they will be read for before the launch before has ended.
    pub fn settled(&self) -> &[bool] {
        &self.settled
    }
    /// Number of grid indices of all parts.
    pub fn grid(&self, symbols: &[i64]) -> u64 {
        self.parts.iter().map(|p| p.grid.eval(symbols).max(0) as u64).sum()
    }
    /// Does the grid depend on the symbols, or is there none?
    pub fn varies(&self) -> bool {
        self.parts.iter().any(|p| !matches!(p.grid, Count::Const(1..)))
    }
    /// Threads of a block: what the largest part wants.
    pub fn threads(&self) -> u32 {
        self.parts.iter().map(|p| p.threads).max().unwrap_or(1)
    }
}

/// Makes symbol `i` symbol `places[i]`.
fn renumber(part: &mut Linear, places: &[u32]) {
    fn count(c: &mut Count, places: &[u32]) {
        match c {
            Count::Const(_) => {}
            Count::Symbol(i) => *i = places[*i as usize],
            Count::Binary(_, ab) => {
                count(&mut ab.0, places);
                count(&mut ab.1, places);
            }
        }
    }
    count(&mut part.grid, places);
    for inst in &mut part.code {
        if let Inst::Op { op: Op::Symbol(i), .. } = inst {
            *i = places[*i as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::linear::parse;

    #[test]
    fn symbols_are_shared() {
        let a = parse("linear a grid 3 threads 32\nbuffer g0: f32 written\nsymbol s0: pos\n%0: i64 = s0\n")
            .unwrap();
        let b = "linear b grid s1 threads 64\nsymbol s0: row\nsymbol s1: pos\n%0: i64 = s0\n%1: i64 = s1\n";
        let bundle = Bundle::new(vec![a, parse(b).unwrap()]);
        assert_eq!((bundle.name(), bundle.threads()), ("a__b", 64));
        assert_eq!(bundle.symbols(), ["pos", "row"]);
        assert_eq!(bundle.grid(&[5, 7]), 3 + 5);
        let read = bundle.parts()[1].code.iter().map(|i| match i {
            Inst::Op { op: Op::Symbol(i), .. } => *i,
            other => panic!("{other:?}"),
        });
        assert_eq!(read.collect::<Vec<_>>(), [1, 0]);
        assert_eq!(bundle.buffers().collect::<Vec<_>>(), [(DType::F32, true)]);
    }
}
