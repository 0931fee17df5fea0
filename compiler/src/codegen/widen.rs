//! Loads of neighbours become one wide load, stores of neighbours one wide store.
//!
//! In: a linear program whose unrolled copies read next to each other (the quants of one block, four bytes at a time).
//! Out: the same program with one load of up to `bytes` bytes in the place of the first, of which the others are
//! slices. Only loads of the same memory, index and gate between two stores, barriers or loop edges are joined, and
//! only to powers of two that start at a multiple of their own width, so that what was aligned stays so. Stores are joined
//! where they follow each other.

use crate::linear::{Inst, Linear, Mem, Op, Reg};
use std::collections::HashMap;

pub fn widen(mut l: Linear, bytes: usize) -> Linear {
    let code = std::mem::take(&mut l.code);
    let mut out = Vec::with_capacity(code.len());
    let mut rest = &code[..];
    while !rest.is_empty() {
        let edge = |i: &Inst| {
            matches!(i, Inst::Loop { .. } | Inst::End { .. } | Inst::Store { .. } | Inst::Barrier { .. })
        };
        let n = rest.iter().position(edge).map_or(rest.len(), |p| p + 1);
        block(&mut l, &rest[..n], bytes, &mut out);
        rest = &rest[n..];
    }
    l.code = stores(&mut l, &out, bytes);
    l
}

fn stores(l: &mut Linear, code: &[Inst], bytes: usize) -> Vec<Inst> {
    let mut out = Vec::with_capacity(code.len());
    let mut i = 0;
    while i < code.len() {
        let joined = [8, 4, 2].into_iter().find_map(|n| Some((n, beside(l, code.get(i..i + n)?, bytes)?)));
        let (Some((n, values)), Inst::Store { mem, index, offset, gate, .. }) = (joined, &code[i]) else {
            out.push(code[i].clone());
            i += 1;
            continue;
        };
        let value = l.reg(l.dtype(values[0]).with_lanes(n as u16));
        out.push(Inst::Op { dst: value, op: Op::Stack, args: values });
        out.push(Inst::Store { mem: *mem, index: *index, offset: *offset, value, gate: *gate });
        i += n;
    }
    out
}

/// What is stored, if these are stores of single elements side by side that fit one.
fn beside(l: &Linear, code: &[Inst], bytes: usize) -> Option<Vec<Reg>> {
    let Inst::Store { mem, index, offset, gate, value } = &code[0] else { return None };
    let (t, n) = (l.dtype(*value), code.len());
    let follows = |(k, i): (usize, &Inst)| match i {
        Inst::Store { mem: m, index: x, offset: o, gate: g, value } => {
            let place = (m, x, g) == (mem, index, gate) && *o == offset + k as i64;
            (place && l.dtype(*value) == t).then_some(*value)
        }
        _ => None,
    };
    let whole = t.lanes == 1 && t.bytes() * n <= bytes && offset.rem_euclid(n as i64) == 0;
    whole.then(|| code.iter().enumerate().map(follows).collect())?
}

/// What loads must have in common to be joined.
type Key = (Mem, Reg, Option<Reg>, crate::dtype::DType);

fn block(l: &mut Linear, code: &[Inst], bytes: usize, out: &mut Vec<Inst>) {
    let mut groups: HashMap<Key, Vec<(i64, usize)>> = HashMap::new();
    for (at, inst) in code.iter().enumerate() {
        if let Inst::Load { dst, mem, index, offset, gate } = inst {
            groups.entry((*mem, *index, *gate, l.dtype(*dst))).or_default().push((*offset, at));
        }
    }
    // In the order of the code: the same program gets the same registers every time.
    let mut groups: Vec<(Key, Vec<(i64, usize)>)> = groups.into_iter().collect();
    groups.sort_unstable_by_key(|(_, loads)| loads[0].1);
    // By position: the wide load to put there, if any, and the load's slice of it.
    let mut wide: HashMap<usize, (Inst, Reg)> = HashMap::new();
    let mut slices: HashMap<usize, (Reg, u16)> = HashMap::new();
    for ((mem, index, gate, t), mut loads) in groups {
        loads.sort_unstable();
        let step = t.lanes as i64;
        // A gate of lanes covers just the lanes it was made for.
        if gate.is_some_and(|g| l.dtype(g).lanes > 1) {
            continue;
        }
        let mut i = 0;
        while i < loads.len() {
            let first = loads[i].0;
            let fits = |n: usize| {
                n > 1
                    && t.bytes() * n <= bytes
                    && first.rem_euclid(step * n as i64) == 0
                    && i + n <= loads.len()
                    && (0..n).all(|k| loads[i + k].0 == first + k as i64 * step)
            };
            let Some(n) = [16, 8, 4, 2].into_iter().find(|&n| fits(n)) else {
                i += 1;
                continue;
            };
            let whole = l.reg(t.with_lanes(t.lanes * n as u16));
            let at = loads[i..i + n].iter().map(|p| p.1).min().expect("a run has loads");
            wide.insert(at, (Inst::Load { dst: whole, mem, index, offset: first, gate }, whole));
            for (k, &(_, at)) in loads[i..i + n].iter().enumerate() {
                slices.insert(at, (whole, k as u16 * t.lanes));
            }
            i += n;
        }
    }
    for (at, inst) in code.iter().enumerate() {
        if let Some((load, _)) = wide.remove(&at) {
            out.push(load);
        }
        match (inst, slices.get(&at)) {
            (Inst::Load { dst, .. }, Some(&(whole, from))) => {
                let op = if l.dtype(*dst).lanes == 1 { Op::Extract(from) } else { Op::Slice(from) };
                out.push(Inst::Op { dst: *dst, op, args: vec![whole] });
            }
            _ => out.push(inst.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::{Bits, DType, Scalar};
    use crate::linear::Count;

    /// Sums neighbours that are loaded four bytes at a time, from this offset on.
    fn program(first: i64) -> Linear {
        let mut p = Linear {
            name: "p".into(),
            grid: Count::Const(1),
            buffers: vec![(DType::U8, false), (DType::U8, true)],
            symbols: vec![],
            locals: vec![],
            threads: 1,
            code: vec![],
            regs: vec![],
        };
        let index = p.op(DType::I64, Op::Const(Bits::int(0)), &[]);
        let mut sum = None;
        for i in 0..4 {
            let dst = p.reg(Scalar::U8.vec(4));
            p.code.push(Inst::Load { dst, mem: Mem::Global(0), index, offset: first + 4 * i, gate: None });
            sum =
                Some(sum.map_or(dst, |s| {
                    p.op(Scalar::U8.vec(4), Op::Binary(crate::scalar::Binary::Add), &[s, dst])
                }));
        }
        p.code.push(Inst::Store { mem: Mem::Global(1), index, offset: 0, value: sum.unwrap(), gate: None });
        p
    }

    fn loads(p: &Linear) -> Vec<usize> {
        let width = |i: &Inst| match i {
            Inst::Load { dst, .. } => Some(p.dtype(*dst).bytes()),
            _ => None,
        };
        p.code.iter().filter_map(width).collect()
    }

    /// Stores five numbers one after the other, from this offset on.
    fn storing(first: i64) -> Linear {
        let mut p = Linear { buffers: vec![(DType::F32, true)], code: vec![], ..program(0) };
        let index = p.op(DType::I64, Op::Const(Bits::int(0)), &[]);
        let values: Vec<Reg> =
            (1..6).map(|i| p.op(DType::F32, Op::Const(Bits::float(i as f32)), &[])).collect();
        for (value, offset) in values.into_iter().zip(first..) {
            p.code.push(Inst::Store { mem: Mem::Global(0), index, offset, value, gate: None });
        }
        p
    }

    #[test]
    fn stores_join_as_far_as_they_are_aligned_and_mean_the_same() {
        for (first, lanes) in [(0, vec![4, 1]), (2, vec![2, 2, 1]), (3, vec![1, 4])] {
            let before = storing(first);
            let after = widen(before.clone(), 16);
            crate::spec::linear::verify(&after);
            let width = |i: &Inst| match i {
                Inst::Store { value, .. } => Some(after.dtype(*value).lanes),
                _ => None,
            };
            assert_eq!(after.code.iter().filter_map(width).collect::<Vec<_>>(), lanes, "from {first}");
            let run = |p: &Linear| {
                let mut buffers = vec![vec![0; 64]];
                crate::interp::linear::run(p, &mut buffers, &[]);
                buffers
            };
            assert_eq!(run(&before), run(&after));
        }
    }

    #[test]
    fn neighbours_join_as_far_as_they_are_aligned_and_mean_the_same() {
        for (first, widths) in [(0, vec![16]), (4, vec![4, 8, 4]), (16, vec![16])] {
            let before = program(first);
            let after = widen(before.clone(), 16);
            crate::spec::linear::verify(&after);
            assert_eq!(loads(&after), widths, "from {first}");
            let run = |p: &Linear| {
                let mut buffers = vec![(0..64).map(|i| i * 3).collect(), vec![0; 4]];
                crate::interp::linear::run(p, &mut buffers, &[]);
                buffers
            };
            assert_eq!(run(&before), run(&after));
        }
        assert_eq!(loads(&widen(program(0), 8)), [8, 8]);
    }
}
