//! What the inner loops look like.

use super::*;
use crate::graph::Graph;
use crate::kernel::{heuristic, show};
use crate::pipeline;
use crate::quant::{Format, Layout};
use crate::schedule::Grain;
use crate::table::Case;
use crate::text::linear::parse;

const VNNI: Features = Features { avx512: true, vnni: true, avx_vnni: false, amx: false };

/// The code from the innermost loop's label up to the jump back: the first jump to a label before it.
fn inner_loop(features: Features, text: &str) -> String {
    let target = X86::new(features);
    let listing = target.disassemble(&target.emit(&parse(text).unwrap()));
    let lines: Vec<&str> = listing.lines().collect();
    let label = |line: &str| lines.iter().position(|l| l.strip_suffix(':') == line.split(' ').next_back());
    let (end, start) = lines
        .iter()
        .enumerate()
        .find_map(|(i, l)| Some((i, label(l).filter(|at| *at < i)?)))
        .expect("the program has a loop");
    lines[start..=end].join("\n")
}

/// One tile of 16 rows and one block of Q4_0 for each round.
const Q4_0: &str = "\
linear q4_0 grid 4 threads 1
  buffer g0: u8
  buffer g1: f16
  buffer g2: i8
  buffer g3: i32
  buffer g4: f32
  buffer g5: f32 written
  symbol s0: blocks
  %0: i64 = Grid
  %1: i64 = s0
  %2: i64 = 16
  %3: i64 = Mul %0 %1
  %4: u8x64 = 15
  %5: u8x64 = 4
  %6: i64 = 32
  %7: f32x16 = 0.0
  %8: i64 = 256
  loop %9 < %1 [%10: f32x16 = %7]
    %11: i64 = Add %3 %9
    %12: i64 = Mul %11 %8
    %13: i64 = Mul %9 %6
    %14: i64 = Mul %11 %2
    %15: i32 = load g3[%9]
    %16: i32x16 = Spread %15
    %17: u8x64 = load g0[%12]
    %18: u8x64 = And %17 %4
    %19: i8x4 = load g2[%13]
    %20: i8x64 = Repeat %19
    %21: i32x16 = Dot4 %16 %18 %20
    %22: u8x64 = Shr %17 %5
    %23: i8x4 = load g2[%13 + 16]
    %24: i8x64 = Repeat %23
    %25: i32x16 = Dot4 %21 %22 %24
    %26: u8x64 = load g0[%12 + 64]
    %27: u8x64 = And %26 %4
    %28: i8x4 = load g2[%13 + 4]
    %29: i8x64 = Repeat %28
    %30: i32x16 = Dot4 %25 %27 %29
    %31: u8x64 = Shr %26 %5
    %32: i8x4 = load g2[%13 + 20]
    %33: i8x64 = Repeat %32
    %34: i32x16 = Dot4 %30 %31 %33
    %35: u8x64 = load g0[%12 + 128]
    %36: u8x64 = And %35 %4
    %37: i8x4 = load g2[%13 + 8]
    %38: i8x64 = Repeat %37
    %39: i32x16 = Dot4 %34 %36 %38
    %40: u8x64 = Shr %35 %5
    %41: i8x4 = load g2[%13 + 24]
    %42: i8x64 = Repeat %41
    %43: i32x16 = Dot4 %39 %40 %42
    %44: u8x64 = load g0[%12 + 192]
    %45: u8x64 = And %44 %4
    %46: i8x4 = load g2[%13 + 12]
    %47: i8x64 = Repeat %46
    %48: i32x16 = Dot4 %43 %45 %47
    %49: u8x64 = Shr %44 %5
    %50: i8x4 = load g2[%13 + 28]
    %51: i8x64 = Repeat %50
    %52: i32x16 = Dot4 %48 %49 %51
    %53: f32x16 = Cast %52
    %54: f16x16 = load g1[%14]
    %55: f32x16 = Cast %54
    %56: f32 = load g4[%9]
    %57: f32x16 = Spread %56
    %58: f32x16 = Mul %55 %57
    %59: f32x16 = Fma %53 %58 %10
    prefetch g0[%12 + 4096]
  end [%59] -> [%60: f32x16]
  %61: i64 = Mul %0 %2
  store g5[%61] = %60
";

#[test]
fn q4_0_inner_loop() {
    insta::assert_snapshot!(inner_loop(VNNI, Q4_0), @r"
    L2:
      lea rdi, [rbx+rbp]
      imul r12, rdi, 100h
      imul r14, rbp, 20h
      imul r13, rdi, 10h
      vpbroadcastd zmm2, [r15+rbp*4]
      vmovups zmm0, [r9+r12]
      vpandd zmm1, zmm0, zmm19
      vpdpbusd zmm2, zmm1, [r11+r14]{1to16}
      vpandd zmm0, zmm0, zmm21
      vxorps xmm9, xmm9, xmm9
      vpdpbusd zmm9, zmm0, [r11+r14+10h]{1to16}
      vmovups zmm0, [r9+r12+40h]
      vpandd zmm1, zmm0, zmm19
      vpdpbusd zmm2, zmm1, [r11+r14+4]{1to16}
      vpandd zmm4, zmm0, zmm21
      vpdpbusd zmm9, zmm4, [r11+r14+14h]{1to16}
      vmovups zmm7, [r9+r12+80h]
      vpandd zmm10, zmm7, zmm19
      vpdpbusd zmm2, zmm10, [r11+r14+8]{1to16}
      vpandd zmm13, zmm7, zmm21
      vpdpbusd zmm9, zmm13, [r11+r14+18h]{1to16}
      vmovups zmm17, [r9+r12+0C0h]
      vpandd zmm20, zmm17, zmm19
      vpdpbusd zmm2, zmm20, [r11+r14+0Ch]{1to16}
      vpandd zmm23, zmm17, zmm21
      vpdpbusd zmm9, zmm23, [r11+r14+1Ch]{1to16}
      vpsrad zmm27, zmm9, 4
      vpaddd zmm29, zmm2, zmm27
      vcvtdq2ps zmm31, zmm29
      vcvtph2ps zmm0, [rax+r13*2]
      vmulps zmm0, zmm0, [r8+rbp*4]{1to16}
      vfmadd231ps zmm3, zmm31, zmm0
      prefetcht0 [r9+r12+1000h]
      add rbp, 1
      cmp rbp, rsi
      jl L2
    ");
}

/// Half of an AVX2 row of bytes below 16: the saturating product is exact.
const BYTES: &str = "\
linear bytes grid 1 threads 1
  buffer g0: u8
  buffer g1: i8
  buffer g2: i32 written
  symbol s0: blocks
  %0: i64 = s0
  %1: i32x8 = 0
  %2: i64 = 32
  %3: u8x32 = 15
  loop %4 < %0 [%5: i32x8 = %1]
    %6: i64 = Mul %4 %2
    %7: u8x32 = load g0[%6]
    %8: u8x32 = And %7 %3
    %9: i8x32 = load g1[%6]
    %10: i32x8 = Dot4 %5 %8 %9
  end [%10] -> [%11: i32x8]
  %12: i64 = 0
  store g2[%12] = %11
";

#[test]
fn dot_of_small_bytes_without_vnni() {
    insta::assert_snapshot!(inner_loop(Features::default(), BYTES), @r"
    L2:
      imul rdi, rax, 20h
      vpand ymm1, ymm15, [r8+rdi]
      vpmaddubsw ymm1, ymm1, [r9+rdi]
      vpmaddwd ymm1, ymm1, ymm13
      vpaddd ymm0, ymm1, ymm0
      add rax, 1
      cmp rax, rsi
      jl L2
    ");
}

/// Two tokens, and weights of two rounds: each is unpacked once for both, and the sums of both rounds stay in 16 bits.
const TOKENS: &str = "\
linear tokens grid 1 threads 1
  buffer g0: u8
  buffer g1: i8
  buffer g2: i32 written
  symbol s0: blocks
  %0: i64 = s0
  %1: i32x8 = 0
  %2: i64 = 64
  %3: u8x32 = 4
  loop %4 < %0 [%5: i32x8 = %1, %6: i32x8 = %1]
    %7: i64 = Mul %4 %2
    %8: u8x32 = load g0[%7]
    %9: u8x32 = Shr %8 %3
    %10: u8x32 = load g0[%7 + 32]
    %11: u8x32 = Shr %10 %3
    %12: i8x32 = load g1[%7]
    %13: i32x8 = Dot4 %5 %9 %12
    %14: i8x32 = load g1[%7 + 32]
    %15: i32x8 = Dot4 %13 %11 %14
    %16: i8x32 = load g1[%7 + 64]
    %17: i32x8 = Dot4 %6 %9 %16
    %18: i8x32 = load g1[%7 + 96]
    %19: i32x8 = Dot4 %17 %11 %18
  end [%15 %19] -> [%20: i32x8, %21: i32x8]
  %22: i64 = 0
  store g2[%22] = %20
  store g2[%22 + 8] = %21
";

#[test]
fn tokens_take_turns() {
    insta::assert_snapshot!(inner_loop(Features::default(), TOKENS), @r"
    L2:
      imul r8, rax, 40h
      vmovups ymm2, [r10+r8]
      vpsrlw ymm2, ymm2, 4
      vpand ymm2, ymm2, ymm15
      vpmaddubsw ymm3, ymm2, [r9+r8]
      vpmaddubsw ymm2, ymm2, [r9+r8+40h]
      vmovups ymm4, [r10+r8+20h]
      vpsrlw ymm4, ymm4, 4
      vpand ymm4, ymm4, ymm15
      vpmaddubsw ymm5, ymm4, [r9+r8+20h]
      vpaddw ymm3, ymm3, ymm5
      vpmaddwd ymm3, ymm3, ymm13
      vpaddd ymm1, ymm3, ymm1
      vpmaddubsw ymm3, ymm4, [r9+r8+60h]
      vpaddw ymm2, ymm2, ymm3
      vpmaddwd ymm2, ymm2, ymm13
      vpaddd ymm0, ymm2, ymm0
      add rax, 1
      cmp rax, rsi
      jl L2
    ");
}

/// A product of 32 tokens: weights are unpacked in one loop, tiles of them loaded straight from memory in another, and
/// rows of the result converted where they lie.
#[test]
fn tiles_of_kept_weights() {
    let target = X86::new(Features { amx: true, ..VNNI });
    let g = Graph::new();
    let case = Case::linear(Format::by_name("Q4_0").unwrap(), 64, 256, 32);
    let built = case.build(&g, Layout::Interleaved16);
    let program = pipeline::schedule(&g, &built.outputs, Grain::CPU);
    let [kernel] = &program.kernels[..] else { panic!("one kernel") };
    let opts = heuristic::propose(kernel, &target.caps());
    let want = "keep(4,0) unroll(2,0) vector(3,64) dot4(8,0) unroll(8,0) vector(6,16) tile(5,16) unroll(7,2) prefetch(0,64) grid(0,0)";
    assert_eq!(show(&opts), want);
    let linear = pipeline::compile(kernel, &opts, &target.caps()).unwrap();
    let listing = target.disassemble(&target.emit(&linear));
    let products = listing.split("L").find(|block| block.contains("tdpbsud")).unwrap();
    let count = |what: &str| products.matches(what).count();
    assert_eq!([count("tdpbsud"), count("tileloadd"), count("tilestored")], [2, 4, 2], "{listing}");
    let from_memory = products.lines().filter(|l| l.contains("vcvtdq2ps") && l.contains("[rsp")).count();
    assert_eq!([count("vcvtdq2ps"), from_memory], [32, 32], "{listing}");
    assert_eq!([count("vmovups"), count("vpandd")], [0, 0], "{listing}");
}

/// The loads of a number that is put together from two bytes, the first of them at `first`.
fn loads_of_two(first: i64, between: &str) -> usize {
    let second = 1;
    let text = format!(
        "linear two grid 4 threads 1
  buffer g0: u8
  buffer g1: u16 written
  %0: i64 = Grid
  %1: u8 = load g0[%0 + {first}]
  %2: u16 = Cast %1
  {between}
  %3: u8 = load g0[%0 + {second}]
  %4: u16 = Cast %3
  %5: u16 = 8
  %6: u16 = Shl %4 %5
  %7: u16 = Or %2 %6
  store g1[%0] = %7
"
    );
    let target = X86::new(VNNI);
    let listing = target.disassemble(&target.emit(&parse(&text).unwrap()));
    listing.lines().filter(|l| l.contains("movzx") && l.contains("ptr [")).count()
}

#[test]
fn bytes_that_lie_side_by_side_are_one_number() {
    assert_eq!(loads_of_two(0, ""), 1);
    assert_eq!(loads_of_two(2, ""), 2, "in the other order");
    assert_eq!(loads_of_two(0, "store g1[%0 + 4] = %2"), 2, "a store may change the second");
}
