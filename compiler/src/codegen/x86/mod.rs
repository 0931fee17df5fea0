//! x86-64: linear programs in, machine code out, for AVX2 and for AVX-512 with or without VNNI and AMX.
//!
//! `nibbles` takes bytes apart, `order` spares registers where they are few, `plan` decides what merges, `lower` and its
//! siblings select instructions, `emit` allocates registers and writes bytes through `asm`. The code never reads or writes
//! memory of lanes whose gate is false.

mod asm;
mod cast;
mod emit;
mod fold;
mod lower;
mod mach;
mod mask;
mod memory;
mod nibbles;
mod order;
mod plan;
mod scalars;
mod shuffle;
#[cfg(test)]
mod tests;
mod tile;
mod vectors;

use super::{Caps, Code, Target};
use crate::linear::Linear;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Formatter, Instruction, IntelFormatter, Mnemonic};
use std::collections::BTreeMap;
use std::fmt::Write;

/// What a processor has beyond AVX2, FMA, F16C and BMI2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Features {
    /// F, BW, DQ, VL and CD.
    pub avx512: bool,
    /// AVX512_VNNI.
    pub vnni: bool,
    /// The VEX form of VNNI.
    pub avx_vnni: bool,
    /// AMX with 8-bit integers and bf16, and AVX512_BF16.
    pub amx: bool,
}

impl Features {
    fn dot4(self) -> bool {
        if self.avx512 { self.vnni } else { self.avx_vnni }
    }
    /// How many vector registers there are.
    fn vectors(self) -> usize {
        if self.avx512 { 32 } else { 16 }
    }
    fn vector_bytes(self) -> usize {
        if self.avx512 { 64 } else { 32 }
    }
}

pub struct X86 {
    features: Features,
    name: String,
}

impl X86 {
    pub fn new(features: Features) -> X86 {
        assert!(features.avx512 || !features.amx, "AMX comes with AVX-512");
        let mut name = String::from(if features.avx512 { "x86-avx512" } else { "x86-avx2" });
        if features.dot4() {
            name += "-vnni";
        }
        if features.amx {
            name += "-amx";
        }
        X86 { features, name }
    }
}

impl Target for X86 {
    fn name(&self) -> &str {
        &self.name
    }

    fn caps(&self) -> Caps {
        Caps {
            vector_bytes: self.features.vector_bytes() as u16,
            lanes: 1,
            max_threads: 1,
            local_bytes: 8 << 20,
            dot4: true,
            tile: self.features.amx,
            mma: false,
            transcendental: false,
        }
    }

    /// The bytes are the code, a constant pool from the next multiple of 64 on, and the code's length in a last
    /// little-endian u32, by which `disassemble` tells the two apart.
    fn emit(&self, program: &Linear) -> Code {
        let mut program =
            if self.features.dot4() { nibbles::unshifted(program) } else { nibbles::halved(program) };
        if self.features.vectors() == 16 {
            program = order::side_by_side(&program);
        }
        let l = lower::lower(&program, self.features);
        let avx_vnni = self.features.avx_vnni;
        Code::Machine(emit::emit(&l.func, &l.pool, l.scratch, self.features.vectors(), avx_vnni))
    }

    /// One instruction a line, `L1:` before the targets of jumps, padding left out, constants as `[pool+offset]`.
    fn disassemble(&self, code: &Code) -> String {
        let Code::Machine(bytes) = code else { panic!("x86 code is machine code") };
        let (rest, len) = bytes.split_last_chunk::<4>().expect("code ends with its length");
        let code = &rest[..u32::from_le_bytes(*len) as usize];
        let pool = code.len().next_multiple_of(64) as u64;
        let insts: Vec<Instruction> =
            Decoder::with_ip(64, code, 0, DecoderOptions::NONE).into_iter().collect();
        let jumps = |i: &Instruction| {
            matches!(i.flow_control(), FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch)
        };
        let mut labels: BTreeMap<u64, usize> =
            insts.iter().filter(|i| jumps(i)).map(|i| (i.near_branch64(), 0)).collect();
        labels.values_mut().zip(1..).for_each(|(l, n)| *l = n);
        let mut formatter = IntelFormatter::new();
        let options = formatter.options_mut();
        options.set_space_after_operand_separator(true);
        options.set_rip_relative_addresses(false);
        let (mut out, mut line) = (String::new(), String::new());
        for i in insts.iter() {
            if let Some(n) = labels.get(&i.ip()) {
                writeln!(out, "L{n}:").expect("strings grow");
            }
            if i.mnemonic() == Mnemonic::Nop {
                continue;
            }
            line.clear();
            formatter.format(i, &mut line);
            if jumps(i) {
                let name = line.split(' ').next().unwrap_or_default().to_string();
                line = format!("{name} L{}", labels[&i.near_branch64()]);
            } else if i.is_ip_rel_memory_operand() {
                let start = line.find('[').unwrap_or(0);
                let end = line.find(']').unwrap_or(line.len() - 1);
                let at = i.ip_rel_memory_address() - pool;
                line.replace_range(start..=end, &format!("[pool+{at}]"));
            }
            writeln!(out, "  {line}").expect("strings grow");
        }
        out
    }
}
