//! Hand-assembled programs for tests of the pool: no compiler is needed to see whether every index runs once.
#![cfg(target_arch = "x86_64")]

use compiler::codegen::{Caps, Code, Target};
use compiler::dtype::{Bits, DType};
use compiler::linear::{Count, Inst, Linear, Local, Mem, Op};
use iced_x86::code_asm::*;
use runtime::cpu::CpuDevice;
use runtime::device::{Device, Program};

/// Emits nothing: the tests bring their own bytes.
struct Bytes;

impl Target for Bytes {
    fn name(&self) -> &str {
        "bytes"
    }
    fn caps(&self) -> Caps {
        unimplemented!()
    }
    fn emit(&self, _: &Linear) -> Code {
        unimplemented!()
    }
    fn disassemble(&self, _: &Code) -> String {
        unimplemented!()
    }
}

pub fn device(threads: usize) -> CpuDevice {
    CpuDevice::with_target(Box::new(Bytes), Some(threads)).unwrap()
}

/// With buffers src, dst, hits and a symbol n: `dst[i] = 3·src[n-1-i] + 1` and `hits[i] += 1` for each grid index i.
/// The index goes through the worker's scratch, which nobody else may touch. `hits` is added to atomically and not
/// declared as written, so that it orders nothing. The program may say of itself that its indices are `uneven`.
pub fn mirror(device: &dyn Device, grid: Count, symbol: &str, uneven: bool) -> Program {
    let mut linear = Linear {
        name: "mirror".into(),
        grid,
        buffers: vec![(DType::I64, false), (DType::I64, true), (DType::I64, false)],
        symbols: vec![symbol.into()],
        locals: vec![Local { dtype: DType::I64, len: 1 }],
        threads: 1,
        code: vec![],
        regs: vec![],
    };
    if uneven {
        let index = linear.op(DType::INDEX, Op::Const(Bits::int(0)), &[]);
        let [dst, var] = [(); 2].map(|_| linear.reg(DType::INDEX));
        linear.code.push(Inst::Load { dst, mem: Mem::Global(0), index, offset: 0, gate: None });
        linear.code.push(Inst::Loop { var, extent: dst, carried: vec![] });
        linear.code.push(Inst::End { next: vec![], out: vec![] });
    }
    assert_eq!(linear.is_uneven(), uneven);
    device.load(linear, Code::Machine(assemble().unwrap())).unwrap()
}

fn assemble() -> Result<Vec<u8>, iced_x86::IcedError> {
    let mut a = CodeAssembler::new(64)?;
    let (mut next, mut done) = (a.create_label(), a.create_label());
    a.mov(r8, qword_ptr(rdi))?;
    a.mov(r9, qword_ptr(rdi + 8))?;
    a.mov(r10, qword_ptr(rdi + 16))?;
    a.mov(r11, qword_ptr(rdi + 24))?;
    a.set_label(&mut next)?;
    a.cmp(rdx, rcx)?;
    a.jae(done)?;
    a.mov(qword_ptr(rsi), rdx)?;
    a.mov(rax, r11)?;
    a.sub(rax, qword_ptr(rsi))?;
    a.mov(rax, qword_ptr(r8 + rax * 8 - 8))?;
    a.lea(rax, qword_ptr(rax + rax * 2 + 1))?;
    a.mov(rdx, qword_ptr(rsi))?;
    a.mov(qword_ptr(r9 + rdx * 8), rax)?;
    a.lock().inc(qword_ptr(r10 + rdx * 8))?;
    a.inc(rdx)?;
    a.jmp(next)?;
    a.set_label(&mut done)?;
    a.ret()?;
    a.assemble(0)
}
