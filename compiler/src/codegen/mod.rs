//! From scheduled kernels to code: expand, vectorise, linearise, then one [`Target`] emits.

pub mod ahead;
pub mod barriers;
pub mod expand;
pub mod linearize;
pub mod ptx;
pub mod vectorize;
pub mod widen;
pub mod x86;

use crate::bundle::Bundle;
use crate::linear::Linear;

/// What a schedule may count on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Caps {
    /// Bytes of the widest vector register; on a GPU the widest load of one thread.
    pub vector_bytes: u16,
    /// Threads that exchange registers (a warp); 1 on a CPU, whose `threads` is always 1.
    pub lanes: u32,
    /// Most threads a block may have.
    pub max_threads: u32,
    /// Bytes of local memory a kernel may use.
    pub local_bytes: usize,
    /// u8·i8 products summed by four: VNNI, dp4a.
    pub dot4: bool,
    /// 16×16 integer tile products: AMX.
    pub tile: bool,
    /// 16×8 sums of products of bf16 by 32 neighbouring threads.
    pub mma: bool,
    /// exp2 and log2 are instructions and need not be expanded to polynomials.
    pub transcendental: bool,
}

/// Finished code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Code {
    /// x86-64, position independent, entry at byte 0:
    /// `extern "C" fn(args: *const u64, locals: *mut u8, lo: u64, hi: u64)`; `args` holds the buffer addresses and then
    /// the symbol values, `locals` is 64-byte aligned, and the grid indices `lo..hi` are run.
    Machine(Vec<u8>),
    /// PTX; the entry has the program's name, one .u64 parameter a buffer and a last one: the address of the symbol values.
    Text(String),
}

/// Turns linear programs into code for one kind of machine. Pure.
pub trait Target: Send + Sync {
    /// Names the instruction set for caches and messages, e.g. `x86-avx512-vnni-amx`, `ptx-sm90`.
    fn name(&self) -> &str;
    fn caps(&self) -> Caps;
    fn emit(&self, program: &Linear) -> Code;
    /// Do launches cost so much that programs which do not depend on one another are better launched together?
    fn bundles(&self) -> bool {
        false
    }
    /// Code of a bundle; of more than one part only where [`Target::bundles`] says so.
    fn emit_bundle(&self, bundle: &Bundle) -> Code {
        match bundle.parts() {
            [one] => self.emit(one),
            _ => panic!("{} runs one program at a time, not {}", self.name(), bundle.name()),
        }
    }
    /// The code as a person reads it.
    fn disassemble(&self, code: &Code) -> String;
}
