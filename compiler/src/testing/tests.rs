//! The generator covers the instruction set and lets nothing unspecified through; the shrinker finds the culprit.

use super::*;
use crate::dtype::{DType, Scalar};
use crate::linear::{Inst, Op, Reg};
use crate::rng::Rng;
use crate::scalar::{Binary, Unary};
use std::collections::BTreeSet;

#[test]
fn random_programs_are_legal_and_defined() {
    let mut changed = 0;
    for seed in 0..300 {
        for caps in [CPU, GPU] {
            let (program, inputs, symbols) = random_program(&mut Rng::new(seed), &caps, 25);
            let mut buffers = inputs.clone();
            interp::linear::run(&program, &mut buffers, &symbols);
            changed += (buffers != inputs) as usize;
            for r in program.regs.iter().filter(|t| t.lanes > 1) {
                assert!(r.bytes() <= caps.vector_bytes as usize, "{r}");
            }
            assert!(program.threads <= caps.max_threads);
        }
    }
    assert!(changed > 590, "only {changed} of 600 programs write something");
}

/// The first word of every instruction, and for operations their type too.
fn kinds(caps: &Caps) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    for seed in 0..1000 {
        let program = random_program(&mut Rng::new(seed), caps, 50).0;
        for inst in &program.code {
            let scalar = |r: &Reg| program.dtype(*r).scalar;
            seen.insert(match inst {
                Inst::Op { op: Op::Binary(b), args, .. } => format!("{b:?} {}", scalar(&args[0])),
                Inst::Op { dst, op: Op::Cast, args } => format!("Cast {} {}", scalar(&args[0]), scalar(dst)),
                Inst::Op { dst, op: Op::Unary(u), .. } => format!("{u:?} {}", scalar(dst)),
                Inst::Op { dst, op: Op::Fold(f), .. } => format!("Fold{f:?} {}", scalar(dst)),
                Inst::Op { op, .. } => format!("{op:?}").split('(').next().unwrap().to_string(),
                Inst::Load { dst, gate, .. } => format!("load {} {}", scalar(dst), gate.is_some()),
                Inst::Store { value, gate, .. } => format!("store {} {}", scalar(value), gate.is_some()),
                other => format!("{other:?}").split([' ', '(']).next().unwrap().to_string(),
            });
        }
    }
    seen
}

#[test]
fn all_instructions_and_types_occur() {
    let mut want = vec!["Gather", "Prefetch", "Loop", "End", "Barrier", "LaneReduce"];
    want.extend(["Const", "Symbol", "Grid", "Thread", "Iota", "Fma", "Where", "Bitcast", "Spread", "Repeat"]);
    want.extend(["Extract", "Slice", "Stack", "Dot4", "Lookup"]);
    let mut want: BTreeSet<String> = want.into_iter().map(String::from).collect();
    for s in Scalar::ALL {
        let inexact = [Unary::Exp2, Unary::Log2, Unary::Sin];
        want.extend(
            Unary::ALL.iter().filter(|u| u.takes(s) && !inexact.contains(u)).map(|u| format!("{u:?} {s}")),
        );
        want.extend(Binary::ALL.iter().filter(|b| b.takes(s)).map(|b| format!("{b:?} {s}")));
        want.extend([format!("load {s} true"), format!("load {s} false"), format!("store {s} true")]);
        want.extend(Scalar::ALL.map(|to| format!("Cast {s} {to}")));
    }
    let (cpu, gpu) = (kinds(&CPU), kinds(&GPU));
    assert_eq!(want.difference(&gpu).collect::<Vec<_>>(), Vec::<&String>::new());
    want.insert("TileDot".into());
    assert_eq!(want.difference(&cpu).collect::<Vec<_>>(), Vec::<&String>::new());
}

/// The program with another choice wherever the target has one: folds in reverse, `Max`/`Min` with swapped operands,
/// and a wrong value for casts out of range and `Max`/`Min` of a NaN.
fn perturbed(p: &Linear) -> Linear {
    let mut q = Linear { code: vec![], ..p.clone() };
    for inst in &p.code {
        let Inst::Op { dst, op, args } = inst else {
            q.code.push(inst.clone());
            continue;
        };
        let (t, from) = (p.dtype(*dst), args.first().map_or(DType::I64, |a| p.dtype(*a)));
        let flag = DType::BOOL.with_lanes(t.lanes);
        match op {
            Op::Fold(_) => {
                let one = t.with_lanes(1);
                let reversed = args.iter().map(|a| {
                    let lanes: Vec<Reg> =
                        (0..from.lanes).rev().map(|l| q.op(one, Op::Extract(l), &[*a])).collect();
                    q.op(from, Op::Stack, &lanes)
                });
                let args = reversed.collect();
                q.code.push(Inst::Op { dst: *dst, op: *op, args });
            }
            Op::Binary(Binary::Max | Binary::Min) if t.is_float() => {
                let swapped = q.op(t, *op, &[args[1], args[0]]);
                let zero = q.op(t, Op::Const(Bits::float(0.0)), &[]);
                let either = q.op(t, Op::Binary(Binary::Add), &[swapped, zero]);
                let known = [args[0], args[1]].map(|a| q.op(flag, Op::Binary(Binary::Eq), &[a, a]));
                let known = q.op(flag, Op::Binary(Binary::And), &known);
                let wrong = q.op(t, Op::Const(Bits::float(77.0)), &[]);
                q.code.push(Inst::Op { dst: *dst, op: Op::Where, args: vec![known, either, wrong] });
            }
            Op::Cast if from.is_float() && t.scalar.is_int() => {
                let wide = DType::F32.with_lanes(t.lanes);
                let x = q.op(wide, Op::Cast, args);
                let (lo, hi) = t.scalar.int_range();
                let lo = q.op(wide, Op::Const(Bits::float(lo as f32)), &[]);
                let hi = q.op(wide, Op::Const(Bits::float(hi as f32)), &[]);
                let above = q.op(flag, Op::Binary(Binary::Le), &[lo, x]);
                let below = q.op(flag, Op::Binary(Binary::Le), &[x, hi]);
                let inside = q.op(flag, Op::Binary(Binary::And), &[above, below]);
                let (cast, wrong) = (q.op(t, Op::Cast, args), q.op(t, Op::Const(Bits::int(77)), &[]));
                q.code.push(Inst::Op { dst: *dst, op: Op::Where, args: vec![inside, cast, wrong] });
            }
            _ => q.code.push(inst.clone()),
        }
    }
    q
}

#[test]
fn nothing_unspecified_reaches_a_buffer() {
    for seed in 0..400 {
        for caps in [CPU, GPU] {
            let (program, buffers, symbols) = random_program(&mut Rng::new(seed), &caps, 40);
            let want = expected(&program, &buffers, &symbols).unwrap();
            let got = expected(&perturbed(&program), &buffers, &symbols).unwrap();
            assert_eq!(difference(&program, &want, &got), None, "seed {seed}\n{program}");
        }
    }
}

/// A backend that computes `Xor` as `Or`.
fn miscompiled(p: &Linear) -> Linear {
    let mut q = p.clone();
    for inst in &mut q.code {
        if let Inst::Op { op: op @ Op::Binary(Binary::Xor), .. } = inst {
            *op = Op::Binary(Binary::Or);
        }
    }
    q
}

#[test]
fn shrinking_leaves_the_culprit() {
    let mut shrunk = 0;
    for seed in 0..200 {
        let caps = if seed % 2 == 0 { CPU } else { GPU };
        let (program, buffers, symbols) = random_program(&mut Rng::new(seed), &caps, 25);
        let mut fails = |p: &Linear| {
            expected(p, &buffers, &symbols).is_some_and(|want| {
                let got = expected(&miscompiled(p), &buffers, &symbols);
                got.is_some_and(|got| difference(p, &want, &got).is_some())
            })
        };
        if !fails(&program) {
            continue;
        }
        let small = shrink(&program, &mut fails);
        assert!(fails(&small));
        let is_xor = |i: &Inst| matches!(i, Inst::Op { op: Op::Binary(Binary::Xor), .. });
        assert_eq!(small.code.iter().filter(|i| is_xor(i)).count(), 1, "seed {seed}\n{small}");
        assert!(small.code.len() <= 12, "seed {seed}\n{small}");
        shrunk += 1;
    }
    assert!(shrunk >= 30, "only {shrunk} programs noticed");
}
