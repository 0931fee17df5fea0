//! Executable memory. In: a program's bytes. Out: an entry that may be called as long as the [`Executable`] lives.
//!
//! A page is writable while it is filled and executable afterwards, never both.

use memmap2::{Mmap, MmapMut};
use std::io;

/// The machine-code ABI of [`compiler::codegen::Code::Machine`].
pub type Entry = unsafe extern "C" fn(args: *const u64, locals: *mut u8, lo: u64, hi: u64);

pub struct Executable {
    pages: Mmap,
}

impl Executable {
    pub fn new(bytes: &[u8]) -> io::Result<Executable> {
        let mut pages = MmapMut::map_anon(bytes.len().max(1))?;
        pages[..bytes.len()].copy_from_slice(bytes);
        Ok(Executable { pages: pages.make_exec()? })
    }

    /// Page aligned. Valid until `self` is dropped.
    pub fn entry(&self) -> Entry {
        // SAFETY: a data pointer to mapped code is a function pointer; whether the bytes keep to the ABI is the affair
        // of who calls it.
        unsafe { std::mem::transmute::<*const u8, Entry>(self.pages.as_ptr()) }
    }
}

#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod tests {
    use super::*;
    use iced_x86::code_asm::*;

    /// `args[0][lo] = hi`.
    fn store() -> Vec<u8> {
        let mut a = CodeAssembler::new(64).unwrap();
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.mov(qword_ptr(rax + rdx * 8), rcx).unwrap();
        a.ret().unwrap();
        a.assemble(0).unwrap()
    }

    /// Permissions of the mapping that holds `address`; panics if any mapping is writable and executable.
    fn permissions(address: usize) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut found = None;
        for line in maps.lines() {
            let mut fields = line.split(' ');
            let (range, flags) = (fields.next().unwrap(), fields.next().unwrap());
            assert!(!(flags.contains('w') && flags.contains('x')), "{line}");
            let (lo, hi) = range.split_once('-').unwrap();
            let hex = |s| usize::from_str_radix(s, 16).unwrap();
            if (hex(lo)..hex(hi)).contains(&address) {
                found = Some(flags.to_string());
            }
        }
        found
    }

    #[test]
    fn code_runs_and_is_never_writable() {
        let code = Executable::new(&store()).unwrap();
        let address = code.entry() as usize;
        assert_eq!(address % 64, 0);
        assert_eq!(permissions(address).unwrap(), "r-xp");
        let mut out = [0u64; 4];
        let args = [out.as_mut_ptr() as u64];
        // SAFETY: the code writes out[2] and returns.
        unsafe { code.entry()(args.as_ptr(), std::ptr::null_mut(), 2, 77) };
        assert_eq!(out, [0, 0, 77, 0]);
    }

    #[test]
    fn code_is_unmapped_with_its_owner() {
        // Large, so that no other test's mapping takes the place at once.
        let code = Executable::new(&vec![0xc3; 64 << 20]).unwrap();
        let address = code.entry() as usize;
        drop(code);
        assert_ne!(permissions(address).as_deref(), Some("r-xp"));
    }
}
