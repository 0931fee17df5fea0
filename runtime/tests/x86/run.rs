//! Runs machine code on guarded buffers and compares with the interpreter.

use compiler::codegen::x86::{Features, X86};
use compiler::codegen::{Code, Target};
use compiler::linear::Linear;
use compiler::testing;
use std::ptr;

/// The tiers that this processor runs, each by itself: none is hidden by a better one.
pub fn targets() -> Vec<X86> {
    macro_rules! all { ($($name:tt),*) => { $(is_x86_feature_detected!($name))&&* } }
    if !all!("avx2", "fma", "f16c", "bmi1", "bmi2") {
        println!("skipped: no AVX2");
        return vec![];
    }
    let avx512 = all!("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd");
    let (vnni, avx_vnni) = (avx512 && all!("avx512vnni"), all!("avxvnni"));
    let plain = Features::default();
    let wide = Features { avx512: true, ..plain };
    let tiers = [
        ("AVX-VNNI", avx_vnni, Features { avx_vnni: true, ..plain }),
        ("AVX-512", avx512, wide),
        ("VNNI", vnni, Features { vnni: true, ..wide }),
        (
            "AMX",
            vnni && is_x86_feature_detected!("avx512bf16") && amx(),
            Features { vnni: true, amx: true, ..wide },
        ),
    ];
    let mut found = vec![X86::new(plain)];
    for (name, here, features) in tiers {
        match here {
            true => found.push(X86::new(features)),
            false => println!("skipped: no {name}"),
        }
    }
    found
}

fn amx() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    const BF16_TILE_INT8: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    let leaf = std::arch::x86_64::__cpuid_count(7, 0);
    // SAFETY: the call changes nothing but this process' permission.
    let granted =
        || unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 };
    leaf.edx & BF16_TILE_INT8 == BF16_TILE_INT8 && granted()
}

const PAGE: usize = 4096;

/// Pages of their own, with an unmapped one on either side.
struct Pages {
    base: *mut u8,
    len: usize,
}

impl Pages {
    fn new(bytes: usize) -> Pages {
        let len = bytes.max(1).next_multiple_of(PAGE) + 2 * PAGE;
        // SAFETY: a fresh mapping; its inner pages become accessible.
        let base = unsafe {
            let base = libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(base, libc::MAP_FAILED);
            let inner = base.cast::<u8>().add(PAGE);
            assert_eq!(libc::mprotect(inner.cast(), len - 2 * PAGE, libc::PROT_READ | libc::PROT_WRITE), 0);
            base.cast()
        };
        Pages { base, len }
    }
    /// Where `bytes` bytes lie against the unmapped page after (or else before) them.
    fn place(&self, bytes: usize, at_end: bool) -> *mut u8 {
        let offset = if at_end { self.len - PAGE - bytes } else { PAGE };
        // SAFETY: inside the mapping.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nothing refers to it any more.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// The buffers as the code leaves them after the grid indices `0..grid`, in two calls.
pub fn execute(
    code: &Code,
    program: &Linear,
    buffers: &[Vec<u8>],
    symbols: &[i64],
    at_end: bool,
) -> Vec<Vec<u8>> {
    let Code::Machine(bytes) = code else { panic!("machine code") };
    let pages = Pages::new(bytes.len());
    let entry = pages.place(0, false);
    // SAFETY: the code fits its pages.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr(), entry, bytes.len());
        let inner = pages.len - 2 * PAGE;
        assert_eq!(libc::mprotect(entry.cast(), inner, libc::PROT_READ | libc::PROT_EXEC), 0);
    }
    let held: Vec<(Pages, *mut u8)> = buffers
        .iter()
        .map(|b| {
            let pages = Pages::new(b.len());
            let to = pages.place(b.len(), at_end);
            // SAFETY: `place` gives as many bytes.
            unsafe { ptr::copy_nonoverlapping(b.as_ptr(), to, b.len()) };
            (pages, to)
        })
        .collect();
    let locals: usize = program.locals.iter().map(|l| (l.len * l.dtype.bytes()).next_multiple_of(64)).sum();
    let local_pages = Pages::new(locals);
    let local_at = local_pages.place(locals, at_end);
    let args: Vec<u64> =
        held.iter().map(|(_, at)| *at as u64).chain(symbols.iter().map(|s| *s as u64)).collect();
    let grid = program.grid.eval(symbols).max(0) as u64;
    // SAFETY: the ABI of machine code; the arguments live until the end of this function.
    unsafe {
        let run: unsafe extern "C" fn(*const u64, *mut u8, u64, u64) = std::mem::transmute(entry);
        run(args.as_ptr(), local_at, 0, grid / 2);
        run(args.as_ptr(), local_at, grid / 2, grid);
    }
    buffers
        .iter()
        .zip(&held)
        // SAFETY: as many bytes as were copied in.
        .map(|(b, (_, at))| unsafe { std::slice::from_raw_parts(*at, b.len()).to_vec() })
        .collect()
}

/// What differs from the interpreter; none if the program does something undefined.
pub fn failure(
    target: &dyn Target,
    program: &Linear,
    buffers: &[Vec<u8>],
    symbols: &[i64],
) -> Option<String> {
    let want = testing::expected(program, buffers, symbols)?;
    let code = target.emit(program);
    [true, false].into_iter().find_map(|at_end| {
        let got = execute(&code, program, buffers, symbols, at_end);
        testing::difference(program, &want, &got)
    })
}

/// Panics with the smallest program found that differs.
pub fn check(target: &dyn Target, program: &Linear, buffers: &[Vec<u8>], symbols: &[i64]) {
    if failure(target, program, buffers, symbols).is_none() {
        return;
    }
    let small = testing::shrink(program, |p| failure(target, p, buffers, symbols).is_some());
    let why = failure(target, &small, buffers, symbols).expect("shrinking keeps the failure");
    let listing = target.disassemble(&target.emit(&small));
    panic!("{}: {why}\n{small}\n{listing}", target.name());
}
