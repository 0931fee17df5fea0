//! Handles to device memory, and the memory of the CPU.
//!
//! A [`Buffer`] owns one allocation; a [`Slice`] is a range of it (weights and intermediates live in a few large arenas)
//! and is always inside its buffer. [`Memory`] is what a host buffer owns: pages that are never seen as a Rust reference but
//! only through atomics, because generated code writes them behind the compiler's back.

use crate::device::Error;
use crate::machine;
use crate::map::Mapped;
use memmap2::MmapOptions;
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// One allocation on a device, freed with the last handle.
#[derive(Clone)]
pub struct Buffer(Arc<Allocation>);

struct Allocation {
    address: u64,
    len: usize,
    memory: Box<dyn Any + Send + Sync>,
}

impl Buffer {
    /// `memory` owns the `len` bytes at the device's `address`.
    pub fn new(address: u64, len: usize, memory: impl Any + Send + Sync) -> Buffer {
        Buffer(Arc::new(Allocation { address, len, memory: Box::new(memory) }))
    }
    pub fn len(&self) -> usize {
        self.0.len
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// What owns the bytes; an error where another device allocated them.
    pub fn memory<T: Any>(&self) -> Result<&T, Error> {
        self.0.memory.downcast_ref().ok_or_else(|| Error::Foreign { what: format!("{self:?}") })
    }
    pub fn slice(&self, offset: usize, len: usize) -> Result<Slice, Error> {
        check(offset, len, self.len())?;
        Ok(Slice { buffer: self.clone(), offset, len })
    }
    pub fn whole(&self) -> Slice {
        Slice { buffer: self.clone(), offset: 0, len: self.len() }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "buffer {:#x} of {} bytes", self.0.address, self.0.len)
    }
}

/// A range of a buffer.
#[derive(Clone, Debug)]
pub struct Slice {
    buffer: Buffer,
    offset: usize,
    len: usize,
}

impl Slice {
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }
    /// Bytes from the buffer's start.
    pub fn offset(&self) -> usize {
        self.offset
    }
    pub fn len(&self) -> usize {
        self.len
    }
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Where it starts in the device's address space.
    pub fn address(&self) -> u64 {
        self.buffer.0.address + self.offset as u64
    }
    /// Address of `len` bytes that start at `offset` of this slice.
    pub fn locate(&self, offset: usize, len: usize) -> Result<u64, Error> {
        check(offset, len, self.len)?;
        Ok(self.address() + offset as u64)
    }
    pub fn overlaps(&self, other: &Slice) -> bool {
        let (start, end) =
            (self.offset.max(other.offset), (self.offset + self.len).min(other.offset + other.len));
        Arc::ptr_eq(&self.buffer.0, &other.buffer.0) && start < end
    }
}

fn check(offset: usize, len: usize, size: usize) -> Result<(), Error> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::Range { offset, len, size }),
    }
}

/// Host memory with [`GUARD`] readable bytes behind it: zeroed and at least 64-byte aligned, or a part of a file that may only
/// be read.
pub struct Memory {
    pages: Arc<dyn Any + Send + Sync>,
    constant: bool,
}

/// Host memory for many. What is less than a huge page shares some with others: a small model's weights are as many
/// allocations as it has matrices, and the TLB has no room for all of their 4 KiB pages.
#[derive(Default)]
pub struct Host {
    shared: Mutex<Option<(Buffer, usize)>>,
}

/// Memory that small allocations share.
const SHARED: usize = 4 * HUGE;

impl Host {
    pub fn alloc(&self, bytes: usize) -> Result<Buffer, Error> {
        if bytes >= HUGE {
            return Memory::alloc(bytes);
        }
        let room = (bytes + GUARD).next_multiple_of(64);
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let (buffer, taken) = match shared.take().filter(|(b, taken)| taken + room <= b.len()) {
            Some(known) => known,
            None => (Memory::alloc(SHARED)?, 0),
        };
        let pages = buffer.memory::<Memory>()?.pages.clone();
        let part = Buffer::new(buffer.0.address + taken as u64, bytes, Memory { pages, constant: false });
        *shared = Some((buffer, taken + room));
        Ok(part)
    }
}

/// Bytes behind every allocation that a vector load may run over.
const GUARD: usize = 256;
/// A huge page of x86-64 and of most others.
const HUGE: usize = 2 << 20;
/// Allocations from this size on are compared with the free memory.
const CHECKED: usize = 256 << 20;

impl Memory {
    /// Reserves `bytes`; the system supplies the pages when they are first touched. Large ones are put on huge pages
    /// where the system grants them: streaming weights from 4 KiB pages is limited by the TLB.
    pub fn alloc(bytes: usize) -> Result<Buffer, Error> {
        let refused = |free| Error::OutOfMemory { device: "the host".into(), asked: bytes, free };
        // A system that overcommits grants any size and kills the process when it uses it.
        let free = if bytes >= CHECKED { machine::free_memory() } else { None };
        if free.is_some_and(|free| free < bytes) {
            return Err(refused(free));
        }
        let large = bytes >= HUGE;
        let reserve = bytes.saturating_add(GUARD + if large { HUGE } else { 0 });
        let mut pages = MmapOptions::new().len(reserve).map_anon().map_err(|_| refused(free))?;
        let start = pages.as_mut_ptr() as usize;
        let address = if large { start.next_multiple_of(HUGE) } else { start };
        #[cfg(target_os = "linux")]
        if large {
            // A system without huge pages refuses, and the memory is as good as any.
            let _ = pages.advise_range(memmap2::Advice::HugePage, address - start, bytes);
        }
        Ok(Buffer::new(address as u64, bytes, Memory { pages: Arc::new(pages), constant: false }))
    }

    /// Bytes `range` of a file, where they are mapped; none where the file ends too soon behind them.
    pub fn of_file(file: &Mapped, range: Range<usize>) -> Option<Buffer> {
        file.get(range.start..range.end.checked_add(GUARD)?)?;
        let memory = Memory { pages: file.pages(), constant: true };
        Some(Buffer::new(file.as_ptr() as u64 + range.start as u64, range.len(), memory))
    }

    /// An error where a program may not write to `slice`.
    pub fn check_writable(slice: &Slice) -> Result<(), Error> {
        if slice.buffer.memory::<Memory>()?.constant {
            return Err(Error::Constant { buffer: format!("{:?}", slice.buffer) });
        }
        Ok(())
    }

    pub fn write(to: &Slice, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        Memory::check_writable(to)?;
        let at = to.locate(offset, bytes.len())? as usize as *mut u8;
        let (head, words, tail) = split(at, bytes.len());
        // SAFETY: `locate` keeps all of it inside the pages that `to` keeps alive, and `split` aligns the words.
        unsafe {
            for i in (0..head).chain(tail..bytes.len()) {
                AtomicU8::from_ptr(at.add(i)).store(bytes[i], Relaxed);
            }
            for (i, word) in words.zip(bytes[head..tail].chunks_exact(8)) {
                let word = u64::from_ne_bytes(word.try_into().unwrap());
                AtomicU64::from_ptr(at.add(i).cast()).store(word, Relaxed);
            }
        }
        Ok(())
    }

    pub fn read(from: &Slice, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        from.buffer.memory::<Memory>()?;
        let at = from.locate(offset, bytes.len())? as usize as *mut u8;
        let (head, words, tail) = split(at, bytes.len());
        // SAFETY: `locate` keeps all of it inside the pages that `from` keeps alive, and `split` aligns the words.
        unsafe {
            for i in (0..head).chain(tail..bytes.len()) {
                bytes[i] = AtomicU8::from_ptr(at.add(i)).load(Relaxed);
            }
            for (i, word) in words.zip(bytes[head..tail].chunks_exact_mut(8)) {
                word.copy_from_slice(&AtomicU64::from_ptr(at.add(i).cast()).load(Relaxed).to_ne_bytes());
            }
        }
        Ok(())
    }
}

/// Of `len` bytes at `at`: where the aligned words begin, their offsets, and where they end.
fn split(at: *mut u8, len: usize) -> (usize, impl Iterator<Item = usize>, usize) {
    let head = at.align_offset(8).min(len);
    let tail = head + (len - head) / 8 * 8;
    (head, (head..tail).step_by(8), tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_aligned_and_padded() {
        let host = Host::default();
        let sizes = [0, 1, 100, HUGE - 1, HUGE, 3 * HUGE + 5];
        let shared: Vec<Slice> = sizes.map(|bytes| host.alloc(bytes).unwrap().whole()).to_vec();
        let own = sizes.map(|bytes| Memory::alloc(bytes).unwrap().whole());
        for (bytes, whole) in sizes.into_iter().cycle().zip(own.into_iter().chain(shared)) {
            assert_eq!(whole.len(), bytes);
            assert_eq!(whole.address() % if bytes >= HUGE { HUGE as u64 } else { 64 }, 0);
            let mut read = vec![1; bytes];
            Memory::read(&whole, 0, &mut read).unwrap();
            assert!(read.iter().all(|&b| b == 0));
            let end = (whole.address() as usize + bytes) as *const u8;
            // SAFETY: the guard is mapped, and nothing writes it.
            let guard = unsafe { std::slice::from_raw_parts(end, GUARD) };
            assert!(guard.iter().all(|&b| b == 0));
        }
    }

    #[test]
    fn copies_keep_to_their_range_at_every_alignment() {
        let buffer = Memory::alloc(64).unwrap();
        for offset in 0..10 {
            for len in 0..30 {
                let whole = buffer.whole();
                Memory::write(&whole, 0, &[0; 64]).unwrap();
                let data: Vec<u8> = (1..=len as u8).collect();
                Memory::write(&buffer.slice(3, 40).unwrap(), offset, &data).unwrap();
                let mut expected = [0; 64];
                expected[3 + offset..][..len].copy_from_slice(&data);
                let mut found = [0; 64];
                Memory::read(&whole, 0, &mut found).unwrap();
                assert_eq!(found, expected);
                let mut part = vec![0; len];
                Memory::read(&whole, 3 + offset, &mut part).unwrap();
                assert_eq!(part, data);
            }
        }
    }

    #[test]
    fn ranges_outside_are_errors() {
        let buffer = Memory::alloc(100).unwrap();
        assert!(matches!(buffer.slice(90, 11), Err(Error::Range { offset: 90, len: 11, size: 100 })));
        assert!(buffer.slice(usize::MAX, 2).is_err());
        assert!(buffer.slice(100, 0).is_ok());
        let slice = buffer.slice(50, 20).unwrap();
        assert!(Memory::write(&slice, 15, &[0; 5]).is_ok());
        assert!(Memory::write(&slice, 16, &[0; 5]).is_err(), "inside the buffer but not inside the slice");
        assert!(Memory::read(&slice, usize::MAX, &mut [0; 5]).is_err());
    }

    #[test]
    fn small_allocations_lie_apart() {
        let host = Host::default();
        let all: Vec<Slice> = (0..40).map(|i| host.alloc(i * 20_000).unwrap().whole()).collect();
        for (i, slice) in all.iter().enumerate() {
            Memory::write(slice, 0, &vec![i as u8; slice.len()]).unwrap();
        }
        for (i, slice) in all.iter().enumerate() {
            let mut read = vec![0; slice.len()];
            Memory::read(slice, 0, &mut read).unwrap();
            assert!(read.iter().all(|b| *b == i as u8), "allocation {i}");
        }
        assert!(host.alloc(usize::MAX).is_err());
    }

    #[test]
    fn too_much_memory_is_an_error_that_says_how_much() {
        let message = Memory::alloc(1 << 60).unwrap_err().to_string();
        assert!(message.contains("1099511627776 MiB"), "{message}");
        let Some(free) = machine::free_memory() else { return println!("skipped: free memory is not known") };
        let message = Memory::alloc(free + (1 << 30)).unwrap_err().to_string();
        assert!(message.contains("MiB are free"), "{message}");
    }

    #[test]
    fn a_file_is_read_where_it_is_mapped_and_never_written() {
        let path = std::env::temp_dir().join(format!("glimmer-borrow-{}", std::process::id()));
        let content: Vec<u8> = (0..2000).map(|i| i as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let file = Mapped::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let part = Memory::of_file(&file, 100..200).unwrap().whole();
        let last = Memory::of_file(&file, 2000 - GUARD - 5..2000 - GUARD).unwrap().whole();
        assert!(
            Memory::of_file(&file, 0..2000 - GUARD + 1).is_none(),
            "a vector load would run over the end"
        );
        drop(file);
        let read = |slice: &Slice| {
            let mut bytes = vec![0; slice.len()];
            Memory::read(slice, 0, &mut bytes).map(|()| bytes).unwrap()
        };
        assert_eq!(read(&part), content[100..200]);
        assert_eq!(read(&last), content[2000 - GUARD - 5..2000 - GUARD]);
        let refused = Memory::write(&part, 0, &[1]).unwrap_err().to_string();
        assert!(refused.contains("part of a file and may not be written"), "{refused}");
    }

    #[test]
    fn another_devices_buffer_is_refused() {
        let slice = Buffer::new(64, 8, "some GPU's memory").whole();
        assert!(matches!(Memory::read(&slice, 0, &mut [0; 8]), Err(Error::Foreign { .. })));
    }

    #[test]
    fn overlap_is_by_bytes_of_one_buffer() {
        let (a, b) = (Memory::alloc(64).unwrap(), Memory::alloc(64).unwrap());
        let at = |b: &Buffer, offset, len| b.slice(offset, len).unwrap();
        assert!(at(&a, 0, 33).overlaps(&at(&a, 32, 32)));
        assert!(!at(&a, 0, 32).overlaps(&at(&a, 32, 32)));
        assert!(!at(&a, 0, 64).overlaps(&at(&b, 0, 64)));
        assert!(!at(&a, 16, 0).overlaps(&at(&a, 0, 64)), "nothing overlaps nothing");
    }
}
