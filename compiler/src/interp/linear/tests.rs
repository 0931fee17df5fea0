//! Small programs as text, each with the values it must leave in `g0` or the fault it must report.

use super::*;
use crate::text;

/// Runs `body`. `g0` starts as zeros and its elements come out as text; the other buffers are bytes 0, 1, .. 63.
fn outcome(head: &str, g0: (Scalar, usize), decls: &str, body: &str, symbols: &[i64]) -> Run<String> {
    let (s, len) = g0;
    let program = format!("linear t {head}\nbuffer g0: {s} written\n{decls}\n{}", body.replace("; ", "\n"));
    let program = text::linear::parse(&program).unwrap_or_else(|e| panic!("{e}\n{program}"));
    let mut buffers = vec![(0..64).collect::<Vec<u8>>(); program.buffers.len()];
    buffers[0] = vec![0; len * s.bytes()];
    try_run(&program, &mut buffers, symbols)?;
    let shown: Vec<_> = buffers[0].chunks(s.bytes()).map(|b| Bits::read(s, b).show(s)).collect();
    Ok(shown.join(" "))
}

/// What `body` computes in `%9`, a value of type `s` with `lanes` lanes.
fn value(s: Scalar, lanes: usize, body: &str) -> String {
    let unused: String =
        (0..9).filter(|i| !body.contains(&format!("%{i}:"))).map(|i| format!("unused %{i}: i64\n")).collect();
    let body = format!("{body}; %10: i64 = 0; store g0[%10] = %9");
    outcome("grid 1 threads 1", (s, lanes), &unused, &body, &[]).unwrap()
}

#[test]
fn operations() {
    use Scalar::*;
    let cases = [
        (I32, 4, "%9: i32x4 = Iota", "0 1 2 3"),
        (U8, 3, "%9: u8x3 = 255", "255 255 255"),
        (I32, 2, "%1: i32x2 = Iota; %9: i32x2 = Not %1", "-1 -2"),
        (F32, 1, "%1: f32 = 2.5; %9: f32 = Round %1", "2.0"),
        (I32, 2, "%1: i32x2 = Iota; %2: i32x2 = 7; %9: i32x2 = Sub %1 %2", "-7 -6"),
        (Bool, 3, "%1: i32x3 = Iota; %2: i32x3 = 1; %9: boolx3 = Lt %1 %2", "true false false"),
        // (1 + 2^-12)^2 - (1 + 2^-11) is 2^-24 unless the product is rounded on its own.
        (F32, 1, "%1: f32 = 1.0002441; %2: f32 = -1.0004883; %9: f32 = Fma %1 %1 %2", "5.9604645e-8"),
        (
            I32,
            3,
            "%1: i32x3 = Iota; %2: i32x3 = 1; %3: boolx3 = Le %2 %1; %4: i32x3 = 9; %9: i32x3 = Where %3 %1 %4",
            "9 1 2",
        ),
        (I8, 2, "%1: i32x2 = Iota; %2: i32x2 = 300; %3: i32x2 = Mul %1 %2; %9: i8x2 = Cast %3", "0 44"),
        (U16, 1, "%1: f16 = 1.0; %9: u16 = Bitcast %1", "15360"),
        (BF16, 1, "%1: f32 = 1.01; %9: bf16 = Cast %1", "1.0078125"),
        (I32, 4, "%1: i32x2 = Iota; %9: i32x4 = Spread %1", "0 0 1 1"),
        (I32, 4, "%1: i32x2 = Iota; %9: i32x4 = Repeat %1", "0 1 0 1"),
        (I32, 1, "%1: i32x4 = Iota; %9: i32 = Extract(3) %1", "3"),
        (I32, 2, "%1: i32x4 = Iota; %9: i32x2 = Slice(1) %1", "1 2"),
        (I8, 3, "%1: i8 = 5; %2: i8 = 6; %9: i8x3 = Stack %2 %1 %2", "6 5 6"),
        (I32, 1, "%1: i32x4 = Iota; %9: i32 = FoldSum %1", "6"),
        (I32, 1, "%1: i32x4 = Iota; %9: i32 = FoldMax %1", "3"),
        (I32, 1, "%1: i32x4 = Iota; %9: i32 = FoldMin %1", "0"),
        (
            I32,
            2,
            "%1: i32x2 = 5; %2: u8x8 = 255; %3: i8x8 = -128; %9: i32x2 = Dot4 %1 %2 %3",
            "-130555 -130555",
        ),
        (
            U8,
            3,
            "%1: i32x3 = Iota; %2: u8x3 = Cast %1; %9: u8x3 = Lookup(0x0f0e0d0c0b0a0908070605040302ff00) %2",
            "0 255 2",
        ),
        (I8, 1, "%1: u8 = 17; %9: i8 = Lookup(0x0000000000000000000000000000ff00) %1", "-1"),
        (BF16, 2, "%1: f32 = 1.01; %2: f32 = -1.01; %9: bf16x2 = Pairs %1 %2", "1.0078125 -1.0078125"),
        (BF16, 2, "%1: bf16 = 1.0078125; %2: bf16 = -2.0; %9: bf16x2 = Pairs %1 %2", "1.0078125 -2.0"),
        (BF16, 2, "%1: u32 = 1065451519; %2: u32 = 1; %9: bf16x2 = Pairs %1 %2", "1.0078125 0.0"),
        (I64, 1, "%9: i64 = Grid", "0"),
    ];
    for (s, lanes, body, want) in cases {
        assert_eq!(value(s, lanes, body), want, "{body}");
    }
}

fn check(head: &str, g0: (Scalar, usize), decls: &str, body: &str, want: &str) {
    let got = outcome(head, g0, decls, body, &[3]);
    assert_eq!(got.as_deref(), Ok(want), "{body}");
}

fn check_fault(head: &str, g0: (Scalar, usize), decls: &str, body: &str, want: &str) {
    let got = outcome(head, g0, decls, body, &[3]).expect_err(body);
    assert!(got.starts_with(want), "{got}");
    assert!(got.contains("\n  at instruction ") && got.contains("linear t grid"), "{got}");
}

const ONE: &str = "grid 1 threads 1";
const N: &str = "symbol s0: n";

#[test]
fn grid_and_symbols() {
    let body = "%0: i64 = Grid; %1: i64 = s0; %2: i64 = Add %0 %1; store g0[%0] = %2";
    check("grid Add(s0, 1) threads 1", (Scalar::I64, 5), N, body, "3 4 5 6 0");
}

#[test]
fn loads_and_stores() {
    let decls = "symbol s0: n\nbuffer g1: u8";
    let u8s = (Scalar::U8, 4);
    check(ONE, u8s, decls, "%0: i64 = s0; %1: u8x4 = load g1[%0 + 2]; store g0[%0 - 3] = %1", "5 6 7 8");
    let gather = "%0: i64 = 0; %1: i32x4 = Iota; %2: i32x4 = Mul %1 %1; %3: u8x4 = gather g1[%2]; \
                  store g0[%0] = %3";
    check(ONE, u8s, decls, gather, "0 1 4 9");
    check(ONE, u8s, decls, "%0: i64 = -999; prefetch g1[%0 - 5]", "0 0 0 0");
}

#[test]
fn closed_gates_touch_nothing() {
    let decls = "symbol s0: n\nbuffer g1: u8";
    let first_two = "%0: i64 = 62; %1: i32x4 = Iota; %2: i32x4 = 2; %3: boolx4 = Lt %1 %2; %4: i64 = 0; \
                     %5: bool = false";
    let u8s = (Scalar::U8, 4);
    let load = format!("{first_two}; %6: u8x4 = load g1[%0] if %3; store g0[%4] = %6");
    check(ONE, u8s, decls, &load, "62 63 0 0");
    let shut = format!("{first_two}; %6: u8x4 = load g1[%0] if %5; store g0[%0] = %6 if %5");
    check(ONE, u8s, decls, &shut, "0 0 0 0");
    let store = format!("{first_two}; %6: u8x4 = 9; store g0[%4 + 2] = %6 if %3");
    check(ONE, u8s, decls, &store, "0 0 9 9");
    let gather = format!(
        "{first_two}; %6: i32x4 = 100; %7: i32x4 = Mul %1 %6; %8: boolx4 = Lt %7 %6; \
         %9: u8x4 = gather g1[%7] if %8; store g0[%4] = %9"
    );
    check(ONE, u8s, decls, &gather, "0 0 0 0");
}

#[test]
fn loops_carry_values() {
    let fibonacci = "%0: i64 = 6; %1: i64 = 0; %2: i64 = 1; loop %3 < %0 [%4: i64 = %1, %5: i64 = %2]; \
                     %6: i64 = Add %4 %5; end [%5 %6] -> [%7: i64, %8: i64]; store g0[%1] = %7; store g0[%2] = %8";
    check(ONE, (Scalar::I64, 2), N, fibonacci, "8 13");
    check(ONE, (Scalar::I64, 2), N, &fibonacci.replace("%0: i64 = 6", "%0: i64 = -6"), "0 1");
    let swap = fibonacci.replace("[%5 %6]", "[%5 %4]").replace("= 6", "= 3");
    check(ONE, (Scalar::I64, 2), N, &swap, "1 0");
}

#[test]
fn threads_leave_loops_on_their_own() {
    let body = "%0: i64 = Thread; %1: i64 = 0; loop %2 < %0 [%3: i64 = %1]; %4: i64 = Add %3 %0; \
                end [%4] -> [%5: i64]; store g0[%0] = %5";
    check("grid 1 threads 4", (Scalar::I64, 4), N, body, "0 1 4 9");
    let barrier = body.replace("%4:", "barrier; %4:");
    check_fault("grid 1 threads 4", (Scalar::I64, 4), N, &barrier, "not all threads reach the barrier");
    let reduce = body.replace("Add %3 %0;", "Add %3 %0; %6: i64 = lanes2 Sum %4;");
    check_fault("grid 1 threads 4", (Scalar::I64, 4), N, &reduce, "some threads of a group are inactive");
}

#[test]
fn lane_reductions_stay_in_their_group() {
    let body = "%0: i64 = Thread; %1: i64 = lanes2 Sum %0; %2: i64 = lanes4 Max %0; %3: i64 = 4; \
                %4: i64 = Mul %1 %3; %5: i64 = Add %4 %2; store g0[%0] = %5";
    check("grid 1 threads 4", (Scalar::I64, 4), N, body, "7 7 23 23");
}

#[test]
fn out_of_bounds() {
    let decls = "symbol s0: n\nbuffer g1: u8\nlocal l0: i32[2]";
    let past = "%0: i64 = 61; %1: u8x4 = load g1[%0]";
    check_fault(ONE, (Scalar::U8, 4), decls, past, "g1[64] is out of bounds: 64 elements (grid index 0)");
    let before = "%0: i64 = 1; %1: u8 = 3; store g0[%0 - 2] = %1";
    check_fault(ONE, (Scalar::U8, 4), decls, before, "g0[-1] is out of bounds: 4 elements");
    let local = "%0: i64 = 2; %1: i32 = load l0[%0]";
    check_fault(ONE, (Scalar::U8, 4), decls, local, "l0[2] is out of bounds: 2 elements");
    let huge = "%0: i64 = 9223372036854775807; %1: u8 = load g1[%0 + 9223372036854775807]";
    check_fault(ONE, (Scalar::U8, 4), decls, huge, "g1[18446744073709551614] is out of bounds");
}

#[test]
fn local_memory_is_undefined_at_every_start() {
    let body =
        "%0: i64 = Grid; %1: i64 = 0; %2: u8 = load l0[%1]; store g0[%0] = %2; %3: u8 = 1; store l0[%1] = %3";
    check("grid 2 threads 1", (Scalar::U8, 2), "symbol s0: n\nlocal l0: u8[1]", body, "205 205");
}

/// Faults without the barrier, and gives `want` with it.
fn check_race(body: &str, fault: &str, want: &str) {
    let decls = "symbol s0: n\nlocal l0: i64[2]";
    let shape = ("grid 1 threads 2", (Scalar::I64, 2));
    check_fault(shape.0, shape.1, decls, &body.replace("barrier; ", ""), fault);
    check(shape.0, shape.1, decls, body, want);
}

#[test]
fn races_are_found() {
    // %1 is the other thread.
    let start = "%0: i64 = Thread; %2: i64 = 1; %1: i64 = Sub %2 %0";
    check_race(
        &format!("{start}; store l0[%0] = %0; barrier; %3: i64 = load l0[%1]; store g0[%0] = %3"),
        "race at l0[1]: thread 0 reads what thread 1 wrote",
        "1 0",
    );
    check_race(
        &format!("{start}; %3: i64 = load l0[%1]; barrier; store l0[%0] = %0; store g0[%0] = %0"),
        "race at l0[0]: thread 0 writes what thread 1 read",
        "0 1",
    );
    check_race(
        &format!("{start}; store l0[%0] = %0; barrier; store l0[%1] = %0; barrier; store g0[%0] = %1"),
        "race at l0[1]: thread 0 writes another value than thread 1",
        "1 0",
    );
    check_race(
        &format!("{start}; store g0[%0] = %0; barrier; store g0[%1] = %0"),
        "race at g0[1]: thread 0 writes another value than thread 1",
        "1 0",
    );
}

#[test]
fn a_barrier_of_groups_orders_neighbours_alone() {
    let body = |other: i64| {
        format!(
            "%0: i64 = Thread; %1: i64 = {other}; %2: i64 = Xor %0 %1; store l0[%0] = %0; barrier of 2; \
             %3: i64 = load l0[%2]; store g0[%0] = %3"
        )
    };
    let decls = "symbol s0: n\nlocal l0: i64[4]";
    check("grid 1 threads 4", (Scalar::I64, 4), decls, &body(1), "1 0 3 2");
    let fault = "race at l0[2]: thread 0 reads what thread 2 wrote";
    check_fault("grid 1 threads 4", (Scalar::I64, 4), decls, &body(2), fault);
}

#[test]
fn equal_writes_are_no_race() {
    let body = "%0: i64 = Thread; %1: i64 = 0; %2: i64 = 7; store g0[%1] = %2";
    check("grid 3 threads 2", (Scalar::I64, 1), N, body, "7");
    let differing = body.replace("= %2", "= %0");
    check_fault(
        "grid 1 threads 2",
        (Scalar::I64, 1),
        N,
        &differing,
        "race at g0[0]: thread 1 writes another",
    );
}

#[test]
fn no_barrier_orders_grid_indices() {
    let body = "%0: i64 = Grid; %1: i64 = 0; barrier; %2: i64 = load g0[%1]; barrier; store g0[%0] = %2";
    check("grid 1 threads 1", (Scalar::I64, 1), N, body, "0");
    let fault = "race at g0[0]: thread 0 reads what another grid index wrote (grid index 1)";
    check_fault("grid 2 threads 1", (Scalar::I64, 2), N, body, fault);
    let writes = "%0: i64 = Grid; %1: i64 = 0; store g0[%1] = %0";
    check_fault("grid 2 threads 1", (Scalar::I64, 1), N, writes, "race at g0[0]: thread 0 writes another");
}

/// 16 rows from `g1`, 5 elements apart, times 2 groups of columns from `g2`.
#[test]
fn tile_products() {
    let dst: Vec<_> = (0..16).map(|i| format!("%{}: i32x16", 3 + i)).collect();
    let stores: String = (0..16).map(|i| format!("store g0[%0 + {}] = %{}\n", 16 * i, 3 + i)).collect();
    let program = format!(
        "linear t grid 1 threads 1\nbuffer g0: i32 written\nbuffer g1: i8\nbuffer g2: u8\n%0: i64 = 0\n\
         %1: u8x64 = load g2[%0]\n%2: u8x64 = load g2[%0 + 64]\n\
         [{}] = tiledot g1[%0 + 1] by 5 of %1 %2\n{stores}",
        dst.join(", ")
    );
    let a: Vec<u8> = (0..100).map(|i| (i as i8 - 50) as u8).collect();
    let b: Vec<u8> = (0..128).map(|i: usize| (i * i % 200) as u8).collect();
    let mut buffers = [vec![0; 1024], a.clone(), b.clone()];
    run(&text::linear::parse(&program).unwrap(), &mut buffers, &[]);
    for (i, got) in buffers[0].chunks(4).enumerate() {
        let (m, r) = (i / 16, i % 16);
        let term = |k: usize| a[1 + 5 * m + k] as i8 as i64 * b[64 * (k / 4) + 4 * r + k % 4] as i64;
        let want: i64 = (0..8).map(term).sum();
        assert_eq!(Bits::read(Scalar::I32, got).as_int(), want, "row {m}, column {r}");
    }
}
