//! One plan on every device that this machine has: symbols, slices of an arena, dependent launches.

use compiler::dtype::{Bits, DType};
use compiler::linear::{Count, Inst, Linear, Mem, Op};
use compiler::scalar::Binary;
use runtime::cpu::{CpuDevice, Options, Tier};
use runtime::cuda::CudaDevice;
use runtime::device::{Device, Error};
use runtime::interp::InterpDevice;
use runtime::plan::Plan;

fn devices() -> Vec<Box<dyn Device>> {
    let mut all: Vec<Box<dyn Device>> = vec![Box::new(InterpDevice::default())];
    match CpuDevice::new(Options { threads: Some(2), tier: None }) {
        Ok(cpu) => all.push(Box::new(cpu)),
        Err(e) => eprintln!("skipped: {e}"),
    }
    match CudaDevice::new(0) {
        Ok(gpu) => all.push(Box::new(gpu)),
        Err(e) => eprintln!("skipped: {e}"),
    }
    all
}

/// `out[g] = 2·in[g] + k` for g below n.
fn scale() -> Linear {
    let mut p = Linear {
        name: "scale".into(),
        grid: Count::Symbol(1),
        buffers: vec![(DType::I64, false), (DType::I64, true)],
        symbols: vec!["k".into(), "n".into()],
        locals: vec![],
        threads: 1,
        code: vec![],
        regs: vec![],
    };
    let index = p.op(DType::I64, Op::Grid, &[]);
    let x = p.reg(DType::I64);
    p.code.push(Inst::Load { dst: x, mem: Mem::Global(0), index, offset: 0, gate: None });
    let two = p.op(DType::I64, Op::Const(Bits::int(2)), &[]);
    let double = p.op(DType::I64, Op::Binary(Binary::Mul), &[x, two]);
    let k = p.op(DType::I64, Op::Symbol(0), &[]);
    let value = p.op(DType::I64, Op::Binary(Binary::Add), &[double, k]);
    p.code.push(Inst::Store { mem: Mem::Global(1), index, offset: 0, value, gate: None });
    p
}

fn replay(device: &dyn Device) {
    let linear = scale();
    let code = device.target().emit(&linear);
    let program = device.load(linear, code).unwrap();
    let arena = device.alloc(3 * 800).unwrap();
    let part = |i: usize| arena.slice(i * 800, 800).unwrap();
    let mut plan = Plan::new(["n", "k"]);
    plan.push(&program, vec![part(0), part(1)]).unwrap();
    plan.push(&program, vec![part(1), part(2)]).unwrap();
    let mut plan = device.prepare(plan).unwrap();
    let input: Vec<u8> = (0..100i64).flat_map(i64::to_le_bytes).collect();
    device.write(&part(0), 0, &input).unwrap();
    let mut expected = vec![0; 100];
    let steps = [(100, 7), (0, 9), (1, -3), (50, 1)].map(|step| (step, false));
    let timed = [(70, 2), (0, 4), (33, 5)].map(|step| (step, true));
    for ((n, k), timed) in steps.into_iter().chain(timed) {
        match timed {
            false => device.run(&mut plan, &[n, k]).unwrap(),
            true => assert_eq!(device.spans(&mut plan, &[n, k]).unwrap().len(), 2),
        }
        (0..n).for_each(|i| expected[i as usize] = 2 * (2 * i + k) + k);
        let mut bytes = vec![0; 800];
        device.read(&part(2), 0, &mut bytes).unwrap();
        let found: Vec<i64> =
            bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(found, expected, "{} at n = {n}", device.name());
    }
    assert_eq!(device.time(&mut plan, &[1, 1]).unwrap().len(), 2);
}

#[test]
fn a_plan_is_replayed_with_new_symbols() {
    devices().iter().for_each(|device| replay(&**device));
}

#[test]
fn every_tier_of_this_processor_can_be_chosen() {
    for tier in [Tier::Avx2, Tier::Avx512, Tier::Avx512Vnni, Tier::Amx] {
        match CpuDevice::new(Options { threads: Some(2), tier: Some(tier) }) {
            Ok(device) => replay(&device),
            Err(Error::Unsupported { why, .. }) => println!("skipped: {why}"),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn programs_and_plans_stay_on_their_device() {
    let devices = devices();
    for (i, one) in devices.iter().enumerate() {
        for other in devices[i + 1..].iter().chain(&devices[..i]) {
            let code = one.target().emit(&scale());
            let program = one.load(scale(), code).unwrap();
            let buffer = one.alloc(64).unwrap();
            let plan = || {
                let mut plan = Plan::new(["n", "k"]);
                plan.push(&program, vec![buffer.whole(), buffer.whole()]).unwrap();
                plan
            };
            assert!(matches!(other.prepare(plan()), Err(Error::Foreign { .. })));
            let mut prepared = one.prepare(plan()).unwrap();
            assert!(matches!(other.run(&mut prepared, &[1, 1]), Err(Error::Foreign { .. })));
        }
    }
}
