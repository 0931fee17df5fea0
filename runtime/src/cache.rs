//! Tuned schedules on disk. In: a directory. Out: the schedule that was found best for a kernel, a target and a compiler.
//!
//! One text file, a line an entry, each with its checksum: what is damaged is left out and reported, the rest is kept.
//! The file is only ever replaced whole, under a lock, after merging with what other processes have saved meanwhile.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// What a schedule was tuned for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    kernel: u128,
    target: String,
    version: String,
}

impl Key {
    /// `kernel` is the kernel's text before scheduling, `version` the compiler's.
    pub fn new(kernel: &str, target: &str, version: &str) -> Key {
        Key::of_hash(hash(kernel.as_bytes()), target, version)
    }
    pub(crate) fn of_hash(kernel: u128, target: &str, version: &str) -> Key {
        Key { kernel, target: one_line(target), version: one_line(version) }
    }
    pub(crate) fn kernel(&self) -> u128 {
        self.kernel
    }
    pub(crate) fn target(&self) -> &str {
        &self.target
    }
    pub(crate) fn version(&self) -> &str {
        &self.version
    }
}

/// Without a directory it lasts as long as the process.
#[derive(Default, Debug)]
pub struct Cache {
    dir: Option<PathBuf>,
    /// What the file held when it was last read.
    entries: BTreeMap<Key, String>,
    /// What was put since.
    added: BTreeMap<Key, String>,
}

/// Entries that could not be read; the next `save` writes the file without them.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{path}: {lines} damaged lines were left out; `glimmer tune` finds their schedules again", path = path.display())]
pub struct Damage {
    pub path: PathBuf,
    pub lines: usize,
}

#[derive(thiserror::Error, Debug)]
pub enum Error {
    #[error("{}: the disk is full, so the schedules were not saved and the old file is kept; free some space", path.display())]
    Full { path: PathBuf },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl Cache {
    /// Reads the cache of a directory; one that does not exist is empty.
    pub fn open(dir: &Path) -> Result<(Cache, Option<Damage>), Error> {
        let (entries, damage) = read(&file(dir))?;
        Ok((Cache { dir: Some(dir.into()), entries, added: BTreeMap::new() }, damage))
    }

    pub fn get(&self, key: &Key) -> Option<&str> {
        self.added.get(key).or_else(|| self.entries.get(key)).map(String::as_str)
    }

    pub fn put(&mut self, key: Key, schedule: &str) {
        self.added.insert(key, one_line(schedule));
    }

    /// Everything, what was put last among it.
    pub fn entries(&self) -> BTreeMap<&Key, &str> {
        self.entries.iter().chain(&self.added).map(|(k, s)| (k, s.as_str())).collect()
    }

    /// Writes what was put since the last save, and takes over what others have saved.
    pub fn save(&mut self) -> Result<Option<Damage>, Error> {
        let Some(dir) = &self.dir else { return Ok(None) };
        fs::create_dir_all(dir).map_err(at(dir))?;
        // Not the cache itself: that one is replaced, and a lock stays with the replaced file.
        let lock = dir.join("schedules.lock");
        let locked = File::create(&lock).map_err(at(&lock))?;
        locked.lock().map_err(at(&lock))?;
        let (mut entries, damage) = read(&file(dir))?;
        entries.extend(self.added.clone());
        let text: String = entries.iter().map(line).collect();
        let new = dir.join("schedules.new");
        if let Err(error) = replace(&file(dir), &new, &text) {
            // It may not have got as far as a new file.
            let _ = fs::remove_file(&new);
            return Err(at(&new)(error));
        }
        self.entries = entries;
        self.added.clear();
        Ok(damage)
    }
}

fn file(dir: &Path) -> PathBuf {
    dir.join("schedules")
}

fn at(path: &Path) -> impl Fn(io::Error) -> Error {
    move |source| match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Error::Full { path: path.into() },
        _ => Error::Io { path: path.into(), source },
    }
}

/// Either the whole text is at `path` afterwards or what was there before.
fn replace(path: &Path, new: &Path, text: &str) -> io::Result<()> {
    let mut out = File::create(new)?;
    out.write_all(text.as_bytes())?;
    out.sync_all()?;
    fs::rename(new, path)
}

fn read(path: &Path) -> Result<(BTreeMap<Key, String>, Option<Damage>), Error> {
    let bytes = match fs::read(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => vec![],
        other => other.map_err(at(path))?,
    };
    let parsed: Vec<_> = bytes.split_inclusive(|&b| b == b'\n').map(parse).collect();
    let lines = parsed.iter().filter(|entry| entry.is_none()).count();
    let damage = (lines > 0).then(|| Damage { path: path.into(), lines });
    Ok((parsed.into_iter().flatten().collect(), damage))
}

/// Checksum, kernel, target, version and schedule, with tabs between them.
fn line((key, schedule): (&Key, &String)) -> String {
    let body = format!("{:032x}\t{}\t{}\t{schedule}", key.kernel, key.target, key.version);
    format!("{:032x}\t{body}\n", hash(body.as_bytes()))
}

fn parse(line: &[u8]) -> Option<(Key, String)> {
    let (sum, body) = std::str::from_utf8(line).ok()?.strip_suffix('\n')?.split_once('\t')?;
    if u128::from_str_radix(sum, 16).ok()? != hash(body.as_bytes()) {
        return None;
    }
    let mut fields = body.splitn(4, '\t');
    let kernel = u128::from_str_radix(fields.next()?, 16).ok()?;
    let key = Key { kernel, target: fields.next()?.into(), version: fields.next()?.into() };
    Some((key, fields.next()?.into()))
}

fn one_line(text: &str) -> String {
    assert!(!text.contains(['\t', '\n']), "a cache entry has one line and no tabs: {text:?}");
    text.into()
}

/// FNV-1a: the same on every machine and for every build.
fn hash(bytes: &[u8]) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(OFFSET, |h, &b| (h ^ b as u128).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv() {
        assert_eq!(hash(b""), 0x6c62272e07bb014262b821756295c58d);
        assert_eq!(hash(b"a"), 0xd228cb696f1a8caf78912b704e4a8964);
    }

    #[test]
    fn a_line_reads_back_and_any_changed_byte_is_noticed() {
        let entry = (Key::new("kernel", "x86-avx2", "0.1.0"), "upcast 4, unroll 2".to_string());
        let text = line((&entry.0, &entry.1));
        assert_eq!(parse(text.as_bytes()), Some(entry));
        for i in 0..text.len() {
            let mut damaged = text.clone().into_bytes();
            damaged[i] ^= 1;
            assert_eq!(parse(&damaged), None, "byte {i}");
        }
    }
}
