//! Files in memory. In: a path. Out: its bytes, read by the system when they are first touched.
//!
//! The bytes are those of the file when it was opened only as long as nobody writes to it. Cutting a file short that is in
//! use ends the process with SIGBUS at the next read behind the new end, as with every mapping; whoever replaces a model
//! file should write a new one and rename it.

use memmap2::Mmap;
use std::fs::{self, File};
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

pub struct Mapped {
    map: Arc<Mmap>,
}

impl Mapped {
    /// An error where `path` is not a regular file.
    pub fn open(path: &Path) -> io::Result<Mapped> {
        // Asked before opening: opening a pipe would wait for its writer.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        // SAFETY: the mapping is private and read-only, and nothing here writes the file. That other processes leave it
        // alone cannot be enforced; what happens if not is said above.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Mapped { map: Arc::new(map) })
    }

    /// What keeps the bytes where they are.
    pub fn pages(&self) -> Arc<Mmap> {
        self.map.clone()
    }

    /// Has the system read `range`, which is wanted soon, while the caller does something else.
    pub fn fetch(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            let (start, end) = (range.start.min(self.len()), range.end.min(self.len()));
            if start < end {
                // A system that refuses reads the pages when they are touched.
                let _ = self.map.advise_range(memmap2::Advice::WillNeed, start, end - start);
            }
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Lets the system drop the pages that lie wholly inside `range` from this process' memory. Reading them again is
    /// allowed and fetches them from the file.
    pub fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            let page = page_size();
            let (start, end) = (range.start.next_multiple_of(page), range.end.min(self.len()) / page * page);
            if start < end {
                let drop = memmap2::UncheckedAdvice::DontNeed;
                // SAFETY: a read-only mapping of a file has no changes to lose; dropped pages are read again.
                // Where the system refuses, they stay, which is allowed.
                let _ = unsafe { self.map.unchecked_advise_range(drop, start, end - start) };
            }
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

impl Deref for Mapped {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(unix)]
fn page_size() -> usize {
    // SAFETY: sysconf reads a constant.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|s| s.is_power_of_two()).unwrap_or(1 << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_file_is_refused() {
        let error = |path: &Path| Mapped::open(path).err().expect("an error");
        assert_eq!(error(&std::env::temp_dir()).to_string(), "not a regular file");
        assert_eq!(error(Path::new("/nowhere/at all")).kind(), io::ErrorKind::NotFound);
    }

    /// Resident bytes of the mapping at `address`.
    #[cfg(target_os = "linux")]
    fn resident(address: usize) -> usize {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines().skip_while(|l| !l.starts_with(&format!("{address:x}-")));
        let rss = lines.find_map(|l| l.strip_prefix("Rss:")).unwrap();
        rss.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn released_pages_leave_memory_and_come_back() {
        let path = std::env::temp_dir().join(format!("glimmer-map-{}", std::process::id()));
        let content: Vec<u8> = (0..4 << 20).map(|i: u32| (i / 4096) as u8).collect();
        fs::write(&path, &content).unwrap();
        let map = Mapped::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(*map == content[..]);
        let whole = resident(map.as_ptr() as usize);
        assert!(whole >= 4 << 20, "{whole}");
        map.release(4095..(4 << 20) - 1);
        let left = resident(map.as_ptr() as usize);
        assert!(left <= 3 * page_size(), "{left} bytes are still resident");
        map.release(0..usize::MAX);
        assert!(*map == content[..]);
    }
}
