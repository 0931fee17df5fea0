//! One broken program for each rule, beside the legal one it was made from.

use super::*;
use crate::text;

const LEGAL: &str = "\
linear legal grid Add(s0, 2) threads 4
  buffer g0: f32 written
  buffer g1: i8
  symbol s0: n
  local l0: f32[64]
  %0: i64 = Grid
  %1: i64 = s0
  %2: f32x4 = load g0[%0]
  %3: f32x4 = 1.5
  loop %4 < %1 [%5: f32x4 = %2]
    %6: f32x4 = Add %5 %3
  end [%6] -> [%7: f32x4]
  %8: boolx4 = Lt %7 %3
  %9: f32x4 = Where %8 %7 %3
  store g0[%0] = %9 if %8
  %10: f32x4 = lanes4 Max %9
  store l0[%0] = %10
  %11: i32x4 = Iota
  %12: f32x4 = gather l0[%11]
  %13: u8x16 = 7
  %14: i8x16 = load g1[%0]
  %15: i32x4 = Dot4 %11 %13 %14
  %16: i8x16 = Lookup(0x000102030405060708090a0b0c0d0e0f) %13
  %17: f32x8 = Spread %9
  %18: f32x2 = Slice(6) %17
  %19: f32 = Extract(7) %17
  %20: f32x2 = Stack %19 %19
  %21: f32 = FoldSum %18
  %22: i32x4 = Bitcast %9
  %23: f32x4 = Fma %9 %9 %9
  %24: i8x4 = Cast %9
  prefetch g1[%0]
";

fn violation(text: &str) -> Option<Violation> {
    check(&text::linear::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"))).err()
}

#[test]
fn legal() {
    assert_eq!(violation(LEGAL), None);
}

#[test]
fn each_rule_rejects() {
    // What to replace in the legal program by what, and the complaint.
    let cases = [
        ("threads 4", "threads 0", "a block has at least one thread"),
        ("grid Add(s0, 2)", "grid s1", "no symbol s1"),
        ("grid Add(s0, 2)", "grid Lt(s0, 2)", "Lt does not count"),
        ("grid Add(s0, 2)", "grid -1", "-1 grid indices"),
        ("g0: f32 written", "g0: f32x4 written", "memory of f32x4: elements are scalars"),
        ("l0: f32[64]", "l0: f32x4[64]", "memory of f32x4: elements are scalars"),
        ("Add %5 %3", "Add %5 %7", "%7 is used where it is not defined"),
        ("Lt %7 %3", "Lt %6 %3", "%6 is used where it is not defined"),
        ("Lt %7 %3", "Lt %5 %3", "%5 is used where it is not defined"),
        ("< %1 [%5: f32x4 = %2]", "< %1 [%5: f32x4 = %6]", "%6 is used where it is not defined"),
        ("Add %5 %3", "Add %5 %9", "%9 is used where it is not defined"),
        ("  end [%6] -> [%7: f32x4]\n", "  unused %7: f32x4\n", "%7 is used where it is not defined"),
        ("loop %4 < %1 [%5: f32x4 = %2]", "%4: i64 = Grid\n%5: f32x4 = 2.0", "an end without a loop"),
        ("prefetch g1[%0]", "loop %25 < %0 []", "a loop has no end"),
        ("loop %4 < %1", "loop %4 < %3", "%3 is f32x4, not i64"),
        ("[%5: f32x4 = %2]", "[%5: f32x4 = %0]", "%5 is f32x4, not i64"),
        ("end [%6]", "end [%0]", "%0 is i64, not f32x4"),
        ("end [%6]", "end []", "the loop carries 1 values"),
        ("end [%6] -> [%7: f32x4]", "end [%6] -> [%7: f32x8]", "%7 is f32x8, not f32x4"),
        ("load g0[%0]", "load g1[%0]", "f32x4 in a memory of i8"),
        ("load g0[%0]", "load g2[%0]", "no memory g2"),
        ("load g0[%0]", "load l1[%0]", "no memory l1"),
        ("store g0[%0] = %9 if %8", "store g0[%3] = %9 if %8", "%3 is f32x4, not i64"),
        ("store g0[%0] = %9 if %8", "store g0[%0] = %9 if %0", "gate %0 is i64, not one bool or 4"),
        ("load g1[%0]", "load g1[%0] if %8", "gate %8 is boolx4, not one bool or 16"),
        ("g0: f32 written", "g0: f32", "g0 is not flagged as written"),
        ("gather l0[%11]", "gather l0[%0]", "%0 is i64, not i32x4"),
        ("prefetch g1[%0]", "prefetch g9[%0]", "no memory g9"),
        ("%10: f32x4 = lanes4 Max %9", "%10: f32x4 = lanes8 Max %9", "width 8 is not a power of two"),
        ("%10: f32x4 = lanes4 Max %9", "%10: f32x4 = lanes0 Max %9", "width 0 is not a power of two"),
        ("%24: i8x4 = Cast %9", "%24: boolx4 = lanes4 Max %8", "Max does not take bool"),
        ("%24: i8x4 = Cast %9", "%24: i8x4 = lanes4 Max %9", "%24 is i8x4, not f32x4"),
        ("%1: i64 = s0", "%1: i64 = s3", "no symbol s3"),
        ("%0: i64 = Grid", "%0: i32 = Grid", "gives i64, not i32"),
        ("%11: i32x4 = Iota", "%11: f32x4 = Iota", "gives i32x4, not f32x4"),
        ("%13: u8x16 = 7", "%13: u8x16 = 256", "no value of u8"),
        ("%24: i8x4 = Cast %9", "%24: f16 = 1.0001", "no value of f16"),
        ("Add %5 %3", "Add %5", "takes 2 arguments, not 1"),
        ("Add %5 %3", "Add %5 %0", "takes f32x4"),
        ("Add %5 %3", "Mod %5 %3", "does not take f32"),
        ("Lt %7 %3", "Add %7 %3", "gives f32x4, not boolx4"),
        ("%24: i8x4 = Cast %9", "%24: f32x4 = Not %9", "does not take f32"),
        ("Where %8 %7 %3", "Where %7 %7 %3", "condition is f32x4, not boolx4"),
        ("Where %8 %7 %3", "Where %8 %7 %1", "chooses between values of f32x4"),
        ("Fma %9 %9 %9", "Fma %9 %9 %11", "takes f32x4"),
        ("%24: i8x4 = Cast %9", "%24: i8x8 = Cast %9", "gives i8x4, not i8x8"),
        ("%24: i8x4 = Cast %9", "%24: i8x4 = Bitcast %9", "f32 and i8 differ in width"),
        ("%24: i8x4 = Cast %9", "%24: i8x4 = Bitcast %8", "does not take bool"),
        ("%17: f32x8 = Spread %9", "%17: f32x10 = Spread %9", "f32x10 is no multiple of f32x4"),
        ("%17: f32x8 = Spread %9", "%17: i32x8 = Spread %9", "gives f32x8, not i32x8"),
        ("Slice(6)", "Slice(7)", "lanes 7..9 of f32x8"),
        ("Extract(7)", "Extract(8)", "no lane 8 in f32x8"),
        ("Stack %19 %19", "Stack %19 %19 %19", "takes 2 arguments, not 3"),
        ("Stack %19 %19", "Stack %19 %0", "takes f32"),
        ("%21: f32 = FoldSum %18", "%21: f32x2 = FoldSum %18", "takes 2 arguments, not 1"),
        ("%21: f32 = FoldSum %18", "%21: i32 = FoldSum %18", "gives f32, not i32"),
        ("%24: i8x4 = Cast %9", "%24: bool = FoldSum %8", "does not take bool"),
        ("Dot4 %11 %13 %14", "Dot4 %11 %14 %13", "takes [i32x4, u8x16, i8x16], not"),
        ("%16: i8x16 = Lookup", "%16: u16x16 = Lookup", "gives bytes, not u16x16"),
        ("0d0e0f) %13", "0d0e0f) %14", "takes u8x16"),
        ("prefetch g1[%0]", "[%25: i32x16] = tiledot g1[%0] by 4 of %13", "a tile has 16 rows"),
        ("prefetch g1[%0]", "[%25: i32x16] = tiledot g0[%0] by 4 of %13", "i8 in a memory of f32"),
    ];
    for (from, to, complaint) in cases {
        assert!(LEGAL.contains(from), "{from}");
        let broken = LEGAL.replacen(from, to, 1);
        let v = violation(&broken).unwrap_or_else(|| panic!("accepted: {to}"));
        assert!(v.why.starts_with(complaint), "{to}: {}", v.why);
    }
}

#[test]
fn rules_the_text_cannot_break() {
    let legal = text::linear::parse(LEGAL).unwrap();
    let why = |edit: fn(&mut Linear)| {
        let mut p = legal.clone();
        edit(&mut p);
        check(&p).unwrap_err().why
    };
    assert_eq!(why(|p| p.code.insert(1, p.code[0].clone())), "%0 is defined twice");
    assert_eq!(why(|p| p.regs[3].lanes = 0), "%3 has no lanes");
    assert_eq!(why(|p| p.regs.truncate(20)), "%20 has no type");
    assert_eq!(why(|p| p.name = "two words".into()), "name \"two words\" is not one word");
    assert_eq!(why(|p| p.symbols[0] = String::new()), "symbol \"\" is not one word");
    let inputs = |p: &mut Linear, b: usize| {
        let (column, dst) =
            (p.reg(Scalar::U8.vec(64)), (0..16).map(|_| p.reg(Scalar::I32.vec(16))).collect());
        p.code.push(Inst::Op { dst: column, op: Op::Const(crate::dtype::Bits(1)), args: vec![] });
        let (mem, index) = (Mem::Global(1), Reg(0));
        p.code.push(Inst::TileDot { dst, mem, index, offset: 0, stride: 4, b: vec![column; b] });
    };
    let mut p = legal.clone();
    inputs(&mut p, 17);
    assert_eq!(check(&p).unwrap_err().why, "a tile has 1 to 16 groups of inputs");
    let mut p = legal.clone();
    inputs(&mut p, 16);
    assert_eq!(check(&p), Ok(()));
    let product = |threads: u32| {
        let mut p = Linear { threads, ..legal.clone() };
        let mut zero = |t| p.op(t, Op::Const(crate::dtype::Bits(0)), &[]);
        let (acc, b) = (zero(Scalar::F32.vec(4)), zero(Scalar::BF16.vec(4)));
        let dst = p.reg(Scalar::F32.vec(4));
        p.code.push(Inst::Mma { dst, acc, a: [b, b], b });
        check(&p).map_err(|v| v.why)
    };
    assert_eq!(product(64), Ok(()));
    assert_eq!(product(16), Err("16 threads are no groups of 32".into()));
}

#[test]
#[should_panic(
    expected = "illegal program: takes f32x4\n  at instruction 5: %6: f32x4 = Add %5 %0\nlinear legal"
)]
fn the_panic_shows_instruction_and_program() {
    verify(&text::linear::parse(&LEGAL.replace("Add %5 %3", "Add %5 %0")).unwrap());
}
