//! Snapshots of emitted code. What it computes is tested by `tests/ptx` and, on a GPU, by the runtime's `tests/cuda`.

use super::*;
use crate::testing::cases::Q4_0_MATVEC;
use crate::text;

fn emit(source: &str) -> String {
    let program = text::linear::parse(source).unwrap();
    match Ptx::new(90).emit(&program) {
        Code::Text(text) => text,
        Code::Machine(_) => panic!("PTX is text"),
    }
}

/// The instructions of a program with these declarations, without declarations and parameters.
fn body(header: &str, code: &str) -> String {
    let text =
        emit(&format!("linear k grid 4 threads 64\n{header}\n%0: i64 = Thread\n%1: i64 = Grid\n{code}"));
    let lines = text.lines().skip_while(|l| !l.contains("%tid.x")).map(str::trim);
    lines.filter(|l| !matches!(*l, "ret;" | "}")).map(|l| format!("{l}\n")).collect()
}

#[test]
fn stamped_kernels_say_when_they_ran() {
    let source = "linear k grid 4 threads 64\nbuffer g0: i64 written\nsymbol s0: pos\n%0: i64 = s0\n%1: i64 = Grid\nstore g0[%1] = %0\n";
    let program = text::linear::parse(source).unwrap();
    let Code::Text(text) = Ptx::new(90).stamped().emit(&program) else { panic!("PTX is text") };
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part} in {text}"));
    let (waited, ready) = (at("griddepcontrol.wait"), at("red.global.min.u64"));
    assert!(waited < ready && ready < at("st.global") && at("st.global") < at("red.global.max.u64"));
    let places: Vec<&str> =
        text.lines().filter(|l| l.contains("red.")).map(|l| l.split(['+', ']']).nth(1).unwrap()).collect();
    assert_eq!(places, ["8", "16"], "behind the one symbol value");
}

#[test]
fn q4_0_matrix_vector() {
    insta::assert_snapshot!(emit(Q4_0_MATVEC), @r"
    .version 7.8
    .target sm_90
    .address_size 64

    .visible .entry q4_0_matvec(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4, .param .u64 p5, .param .u64 symbols)
    .maxntid 128, 1, 1
    {
        .reg .b32 %r<69>;
        .reg .b64 %rd<19>;
        .reg .b16 %h<3>;
        .reg .pred %p<3>;
        ld.param.u64 %rd1, [p0];
        cvta.to.global.u64 %rd2, %rd1;
        ld.param.u64 %rd3, [p1];
        cvta.to.global.u64 %rd4, %rd3;
        ld.param.u64 %rd5, [p2];
        cvta.to.global.u64 %rd6, %rd5;
        ld.param.u64 %rd7, [p3];
        cvta.to.global.u64 %rd8, %rd7;
        ld.param.u64 %rd9, [p4];
        cvta.to.global.u64 %rd10, %rd9;
        ld.param.u64 %rd11, [p5];
        cvta.to.global.u64 %rd12, %rd11;
        griddepcontrol.wait;
        griddepcontrol.launch_dependents;
        mov.u32 %r1, %ctaid.x;
        mov.u32 %r2, %tid.x;
        mul.lo.s32 %r3, %r1, 4;
        shr.s32 %r4, %r2, 5;
        and.b32 %r5, %r2, 31;
        add.s32 %r6, %r3, %r4;
        mul.lo.s32 %r7, %r6, 64;
        mov.b32 %r8, 0;
        mov.b32 %r9, 0;
    loop1:
        mul.lo.s32 %r10, %r8, 32;
        add.s32 %r11, %r10, %r5;
        add.s32 %r12, %r7, %r11;
        mul.lo.s32 %r13, %r12, 16;
        mad.wide.s32 %rd13, %r13, 1, %rd2;
        ld.global.v4.b32 {%r14, %r15, %r16, %r17}, [%rd13];
        mad.wide.s32 %rd14, %r12, 2, %rd4;
        ld.global.u16 %r18, [%rd14];
        bar.warp.sync 0xffffffff;
        and.b32 %r19, %r14, 0xF0F0F0F;
        and.b32 %r20, %r15, 0xF0F0F0F;
        and.b32 %r21, %r16, 0xF0F0F0F;
        and.b32 %r22, %r17, 0xF0F0F0F;
        shr.u32 %r23, %r14, 4;
        shr.u32 %r24, %r15, 4;
        shr.u32 %r25, %r16, 4;
        shr.u32 %r26, %r17, 4;
        and.b32 %r27, %r23, 0xF0F0F0F;
        and.b32 %r28, %r24, 0xF0F0F0F;
        and.b32 %r29, %r25, 0xF0F0F0F;
        and.b32 %r30, %r26, 0xF0F0F0F;
        mul.lo.s32 %r31, %r11, 32;
        mad.wide.s32 %rd15, %r31, 1, %rd6;
        ld.global.v4.b32 {%r32, %r33, %r34, %r35}, [%rd15];
        ld.global.v4.b32 {%r36, %r37, %r38, %r39}, [%rd15+16];
        dp4a.u32.s32 %r40, %r19, %r32, 0;
        dp4a.u32.s32 %r41, %r20, %r33, 0;
        dp4a.u32.s32 %r42, %r21, %r34, 0;
        dp4a.u32.s32 %r43, %r22, %r35, 0;
        dp4a.u32.s32 %r44, %r27, %r36, %r40;
        dp4a.u32.s32 %r45, %r28, %r37, %r41;
        dp4a.u32.s32 %r46, %r29, %r38, %r42;
        dp4a.u32.s32 %r47, %r30, %r39, %r43;
        add.s32 %r48, %r44, %r46;
        add.s32 %r49, %r45, %r47;
        add.s32 %r50, %r48, %r49;
        mad.wide.s32 %rd16, %r11, 4, %rd10;
        ld.global.b32 %r51, [%rd16];
        mul.lo.s32 %r52, %r51, 8;
        sub.s32 %r53, %r50, %r52;
        cvt.rn.f32.s32 %r54, %r53;
        mov.b32 {%h1, %h2}, %r18;
        cvt.f32.f16 %r55, %h1;
        mad.wide.s32 %rd17, %r11, 4, %rd8;
        ld.global.b32 %r56, [%rd17];
        mul.rn.f32 %r57, %r55, %r56;
        fma.rn.f32 %r58, %r54, %r57, %r9;
        mov.b32 %r9, %r58;
        add.s32 %r8, %r8, 1;
        setp.lt.s32 %p1, %r8, 2;
        @%p1 bra loop1;
    done1:
        shfl.sync.bfly.b32 %r59, %r9, 16, 31, -1;
        add.rn.f32 %r60, %r9, %r59;
        shfl.sync.bfly.b32 %r61, %r60, 8, 31, -1;
        add.rn.f32 %r62, %r60, %r61;
        shfl.sync.bfly.b32 %r63, %r62, 4, 31, -1;
        add.rn.f32 %r64, %r62, %r63;
        shfl.sync.bfly.b32 %r65, %r64, 2, 31, -1;
        add.rn.f32 %r66, %r64, %r65;
        shfl.sync.bfly.b32 %r67, %r66, 1, 31, -1;
        add.rn.f32 %r68, %r66, %r67;
        setp.eq.s32 %p2, %r5, 0;
        mad.wide.s32 %rd18, %r6, 4, %rd12;
        @%p2 st.global.b32 [%rd18], %r68;
        ret;
    }
    ");
}

#[test]
fn bytes_become_floats_without_integers() {
    let code = "
        %2: i64 = 4
        %3: i64 = Mul %0 %2
        %4: u8x4 = load g0[%3]
        %5: i32x4 = Cast %4
        %6: i32x4 = -8
        %7: i32x4 = Add %5 %6
        %8: f32x4 = Cast %7
        store g1[%3] = %8";
    insta::assert_snapshot!(body("buffer g0: u8\nbuffer g1: f32 written", code), @r"
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mul.lo.s32 %r3, %r1, 4;
    mad.wide.s32 %rd5, %r3, 1, %rd2;
    ld.global.nc.b32 %r4, [%rd5];
    mov.b32 %r5, 0x4B000000;
    prmt.b32 %r6, %r4, %r5, 0x7440;
    add.rn.f32 %r7, %r6, 0fCB000008;
    prmt.b32 %r8, %r4, %r5, 0x7441;
    add.rn.f32 %r9, %r8, 0fCB000008;
    prmt.b32 %r10, %r4, %r5, 0x7442;
    add.rn.f32 %r11, %r10, 0fCB000008;
    prmt.b32 %r12, %r4, %r5, 0x7443;
    add.rn.f32 %r13, %r12, 0fCB000008;
    mad.wide.s32 %rd6, %r3, 4, %rd4;
    st.global.v4.b32 [%rd6], {%r7, %r9, %r11, %r13};
    ");
}

#[test]
fn bytes_of_a_warps_product_take_their_factor_along() {
    let code = "
        %2: i64 = 4
        %3: i64 = Mul %0 %2
        %4: u8x4 = load g0[%3]
        %5: u8x4 = 15
        %6: u8x4 = And %4 %5
        %7: i32x4 = Cast %6
        %8: i32x4 = -8
        %9: i32x4 = Add %7 %8
        %10: f32x4 = Cast %9
        %11: f32x4 = load g1[%3]
        %12: f32x4 = Mul %10 %11
        %13: bf16x4 = Cast %12
        %14: f32x4 = 0.0
        %15: f32x4 = mma %14 %13 %13 %13";
    let declared = "buffer g0: u8\nbuffer g1: f32\nbuffer g2: f32 written";
    let count = |text: &str, what: &str| text.matches(what).count();
    let taken = body(declared, &format!("{code}\n        store g2[%3] = %15"));
    assert_eq!([count(&taken, "fma.rn.f32"), count(&taken, "add.rn.f32")], [4, 0], "{taken}");
    let seen = body(declared, &format!("{code}\n        store g2[%3] = %12"));
    assert_eq!([count(&seen, "fma.rn.f32"), count(&seen, "add.rn.f32")], [0, 4], "{seen}");
}

#[test]
fn product_of_a_warp() {
    let code = "
        %2: i64 = 4
        %3: i64 = Mul %0 %2
        %4: bf16x4 = load g0[%3]
        %5: bf16x4 = load g0[%3 + 256]
        %6: bf16x4 = load g0[%3 + 512]
        %7: f32x4 = 0.0
        %8: f32x4 = mma %7 %4 %5 %6
        store g1[%3] = %8";
    insta::assert_snapshot!(body("buffer g0: bf16\nbuffer g1: f32 written", code), @r"
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mul.lo.s32 %r3, %r1, 4;
    mad.wide.s32 %rd5, %r3, 2, %rd2;
    ld.global.nc.v2.b32 {%r4, %r5}, [%rd5];
    ld.global.nc.v2.b32 {%r6, %r7}, [%rd5+512];
    ld.global.nc.v2.b32 {%r8, %r9}, [%rd5+1024];
    mov.b32 %r10, 0;
    mov.b32 %r11, 0;
    mov.b32 %r12, 0;
    mov.b32 %r13, 0;
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r14, %r15, %r16, %r17}, {%r4, %r6, %r5, %r7}, {%r8, %r9}, {%r10, %r11, %r12, %r13};
    mad.wide.s32 %rd6, %r3, 4, %rd4;
    st.global.v4.b32 [%rd6], {%r14, %r15, %r16, %r17};
    ");
}

#[test]
fn mask_of_a_shift_merges_with_the_and() {
    let code = "
        %2: i64 = 4
        %3: i64 = Mul %0 %2
        %4: u8x4 = load g0[%3]
        %5: u8x4 = 3
        %6: u8x4 = Shr %4 %5
        %7: u8x4 = 63
        %8: u8x4 = And %6 %7
        %9: u8x4 = Shr %8 %5
        store g1[%3] = %9";
    insta::assert_snapshot!(body("buffer g0: u8\nbuffer g1: u8 written", code), @r"
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mul.lo.s32 %r3, %r1, 4;
    mad.wide.s32 %rd5, %r3, 1, %rd2;
    ld.global.nc.b32 %r4, [%rd5];
    shr.u32 %r5, %r4, 3;
    and.b32 %r6, %r5, 0x1F1F1F1F;
    shr.u32 %r7, %r6, 3;
    and.b32 %r8, %r7, 0x1F1F1F1F;
    mad.wide.s32 %rd6, %r3, 1, %rd4;
    st.global.b32 [%rd6], %r8;
    ");
}

#[test]
fn unaligned_vectors_are_read_in_parts() {
    let code = "
        %2: f16x4 = load g0[%0]
        %3: i64 = 8
        %4: i64 = Mul %0 %3
        %5: f16x4 = load g0[%4 + 2]
        store g1[%4] = %2
        store g1[%4 + 4] = %5";
    insta::assert_snapshot!(body("buffer g0: f16\nbuffer g1: f16 written", code), @r"
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mad.wide.s32 %rd5, %r1, 2, %rd2;
    ld.global.nc.u16 %r3, [%rd5];
    ld.global.nc.u16 %r4, [%rd5+2];
    ld.global.nc.u16 %r5, [%rd5+4];
    ld.global.nc.u16 %r6, [%rd5+6];
    prmt.b32 %r7, %r3, %r4, 0x5410;
    prmt.b32 %r8, %r5, %r6, 0x5410;
    mul.lo.s32 %r9, %r1, 8;
    mad.wide.s32 %rd6, %r9, 2, %rd2;
    ld.global.nc.b32 %r10, [%rd6+4];
    ld.global.nc.b32 %r11, [%rd6+8];
    mad.wide.s32 %rd7, %r9, 2, %rd4;
    st.global.v2.b32 [%rd7], {%r7, %r8};
    st.global.v2.b32 [%rd7+8], {%r10, %r11};
    ");
}

#[test]
fn copies_to_local_memory_need_no_registers() {
    let source = "linear k grid 4 threads 64\nbuffer g0: f16\nbuffer g1: f16 written\nlocal l0: f16[512]\n\
        %0: i64 = Thread\n%1: i64 = 8\n%2: i64 = Mul %0 %1\n%3: f16x8 = load g0[%2]\nstore l0[%2] = %3\n\
        barrier\n%4: f16x8 = load l0[%2]\nstore g1[%2] = %4\n";
    let program = text::linear::parse(source).unwrap();
    let order = |settled: bool| {
        let bundle = Bundle::from(program.clone()).with_settled(vec![settled, false]);
        let Code::Text(text) = Ptx::new(90).emit_bundle(&bundle) else { panic!("PTX is text") };
        assert!(!text.contains("ld.global"), "{text}");
        let parts = ["griddepcontrol.wait", "cp.async.cg", "cp.async.wait_all", "bar.sync", "ld.shared"];
        parts.map(|p| text.find(p).expect(p))
    };
    let [wait, copy, rest @ ..] = order(true);
    assert!(copy < wait && wait < rest[0] && rest.is_sorted());
    assert!(order(false).is_sorted());
}

#[test]
fn small_indices_are_32_bit_and_large_ones_64() {
    let code = "
        %2: i64 = 100
        %3: i64 = Mul %1 %2
        %4: i64 = Add %3 %0
        %5: f32 = load g0[%4]
        %6: i64 = 1000000000
        %7: i64 = Mul %1 %6
        %8: i64 = Add %7 %0
        %9: f32 = load g0[%8]
        %10: i64 = s0
        %11: i64 = Mod %10 %2
        store g1[%11] = %5
        store g1[%10 - 1] = %9";
    insta::assert_snapshot!(body("buffer g0: f32\nbuffer g1: f32 written\nsymbol s0: n", code), @r"
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mul.lo.s32 %r3, %r2, 100;
    add.s32 %r4, %r3, %r1;
    mul.wide.s32 %rd8, %r2, 0x3B9ACA00;
    cvt.s64.s32 %rd9, %r1;
    add.s64 %rd10, %rd8, %rd9;
    griddepcontrol.wait;
    griddepcontrol.launch_dependents;
    mad.wide.s32 %rd11, %r4, 4, %rd2;
    ld.global.b32 %r5, [%rd11];
    shl.b64 %rd12, %rd10, 2;
    add.s64 %rd13, %rd12, %rd2;
    ld.global.b32 %r6, [%rd13];
    bar.warp.sync 0xffffffff;
    div.s64 %rd14, %rd7, 100;
    mul.lo.s64 %rd15, %rd14, 100;
    sub.s64 %rd16, %rd7, %rd15;
    setp.ne.s64 %p1, %rd16, 0;
    xor.b64 %rd17, %rd16, 100;
    setp.lt.s64 %p2, %rd17, 0;
    and.pred %p3, %p1, %p2;
    add.s64 %rd18, %rd16, 100;
    selp.b64 %rd19, %rd18, %rd16, %p3;
    cvt.u32.u64 %r7, %rd19;
    mad.wide.s32 %rd20, %r7, 4, %rd4;
    st.global.b32 [%rd20], %r5;
    shl.b64 %rd21, %rd7, 2;
    add.s64 %rd22, %rd21, %rd4;
    st.global.b32 [%rd22+-4], %r6;
    ");
}

#[test]
fn carried_values_change_at_once() {
    let code = "
        %2: i64 = s0
        %3: f32 = 0.0
        %4: f32 = 1.0
        loop %5 < %2 [%6: f32 = %3, %7: f32 = %4]
          %8: f32 = Add %6 %7
        end [%7 %6] -> [%9: f32, %10: f32]
        store g0[%0] = %9";
    insta::assert_snapshot!(body("buffer g0: f32 written\nsymbol s0: n", code), @r"
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.b64 %rd6, 0;
    mov.b32 %r3, 0;
    mov.b32 %r4, 0x3F800000;
    setp.le.s64 %p1, %rd5, 0;
    @%p1 bra done1;
    loop1:
    add.rn.f32 %r5, %r3, %r4;
    mov.b32 %r6, %r3;
    mov.b32 %r3, %r4;
    mov.b32 %r4, %r6;
    add.s64 %rd6, %rd6, 1;
    setp.lt.s64 %p2, %rd6, %rd5;
    @%p2 bra loop1;
    done1:
    mad.wide.s32 %rd7, %r1, 4, %rd2;
    st.global.b32 [%rd7], %r3;
    ");
}

#[test]
fn gates_become_predicates() {
    let code = "
        %2: i64 = 60
        %3: bool = Lt %0 %2
        %4: f32 = load g0[%0] if %3
        %5: f32 = Exp2 %4
        store g1[%0] = %5 if %3";
    insta::assert_snapshot!(body("buffer g0: f32\nbuffer g1: f32 written", code), @r"
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    setp.lt.s32 %p1, %r1, 60;
    mad.wide.s32 %rd5, %r1, 4, %rd2;
    mov.b32 %r3, 0;
    @%p1 ld.global.nc.b32 %r3, [%rd5];
    ex2.approx.f32 %r4, %r3;
    mad.wide.s32 %rd6, %r1, 4, %rd4;
    @%p1 st.global.b32 [%rd6], %r4;
    ");
}

#[test]
fn large_locals_are_dynamic() {
    let program = |len: usize| {
        let source = format!("linear k grid 1 threads 32\nlocal l0: u8[20]\nlocal l1: f32[{len}]");
        text::linear::parse(&source).unwrap()
    };
    assert_eq!(dynamic_shared(&program(12_280)), 0);
    assert_eq!(dynamic_shared(&program(12_281)), 32 + 12_284 * 4);
}
