//! Which schedule a kernel runs under. In: the cache on disk and the table that ships with the program. Out: what was tuned
//! on this machine, else what ships for the target, else the heuristic's.
//!
//! A schedule never changes what a kernel computes, so a kernel is known by less than its whole text, and one that does
//! not apply costs a warning and the heuristic's schedule.

use crate::cache::{self, Cache, Key};
use crate::device::{Device, Error};
use crate::step::Choose;
use compiler::VERSION;
use compiler::codegen::Caps;
use compiler::kernel::{self, Opt, heuristic};
use compiler::schedule::Kernel;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What `glimmer tune --export` wrote.
const SHIPPED: &str = include_str!("tuned.txt");

#[derive(Debug)]
pub struct Schedules {
    shipped: BTreeMap<Key, String>,
    cache: Mutex<Cache>,
    warn: fn(&str),
    warned: AtomicBool,
}

/// What ships with the program, and nothing from disk.
impl Default for Schedules {
    fn default() -> Schedules {
        Schedules::of(SHIPPED, Cache::default(), |_| ())
    }
}

impl Schedules {
    fn of(shipped: &str, cache: Cache, warn: fn(&str)) -> Schedules {
        let shipped = import(shipped).collect();
        Schedules { shipped, cache: Mutex::new(cache), warn, warned: AtomicBool::new(false) }
    }

    /// What ships with the program and what was tuned into a directory. `warn` is told of damage, and once of schedules
    /// that do not apply.
    pub fn open(dir: &Path, warn: fn(&str)) -> Schedules {
        let (cache, damage) = match Cache::open(dir) {
            Ok((cache, damage)) => (cache, damage.map(|d| d.to_string())),
            Err(e) => (Cache::default(), Some(format!("tuned schedules are not used: {e}"))),
        };
        damage.iter().for_each(|d| warn(d));
        Schedules::of(SHIPPED, cache, warn)
    }

    /// By which a kernel is known: its text without names, numbers of ranges and sizes of whole buffers, so that equal
    /// kernels of different layers, models and contexts are one.
    pub fn key(kernel: &str, target: &str) -> Key {
        Key::new(&anonymous(kernel), target, VERSION)
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn find(&self, key: &Key) -> Option<String> {
        let tuned = self.cache().get(key).map(String::from);
        tuned.or_else(|| self.shipped.get(key).cloned())
    }
    pub fn put(&self, key: Key, schedule: &[Opt]) {
        self.cache().put(key, &kernel::show(schedule));
    }
    /// Writes what was put to disk, if there is a directory for it.
    pub fn save(&self) -> Result<(), cache::Error> {
        let damage = self.cache().save()?;
        damage.iter().for_each(|d| (self.warn)(&d.to_string()));
        Ok(())
    }

    /// Chooses for the kernels of a device.
    pub fn chooser(&self, device: &dyn Device) -> Chooser<'_> {
        let target = device.target();
        Chooser { schedules: self, target: target.name().into(), caps: target.caps() }
    }

    /// Everything that this version knows, as the table that ships.
    pub fn export(&self) -> String {
        let cache = self.cache();
        let mut all: BTreeMap<&Key, &str> = self.shipped.iter().map(|(k, s)| (k, s.as_str())).collect();
        all.extend(cache.entries().into_iter().filter(|(k, _)| k.version() == VERSION));
        let mut lines: Vec<_> = all.into_iter().map(|(k, s)| (k.target(), k.kernel(), s)).collect();
        lines.sort();
        let mut out: String =
            SHIPPED.lines().take_while(|l| l.starts_with('#')).map(|l| format!("{l}\n")).collect();
        for (target, kernel, schedule) in lines {
            let _ = writeln!(out, "{target} {kernel:032x} {schedule}");
        }
        out
    }
}

/// The entries of a table that [`Schedules::export`] wrote.
fn import(table: &str) -> impl Iterator<Item = (Key, String)> {
    table.lines().filter_map(|line| {
        let (target, rest) = line.split_once(' ').filter(|(t, _)| !t.starts_with('#'))?;
        let (kernel, schedule) = rest.split_once(' ')?;
        let kernel = u128::from_str_radix(kernel, 16).ok()?;
        Some((Key::of_hash(kernel, target, VERSION), schedule.into()))
    })
}

pub struct Chooser<'a> {
    schedules: &'a Schedules,
    target: String,
    caps: Caps,
}

impl Chooser<'_> {
    fn warn(&self, kernel: &Kernel, why: &str) {
        if !self.schedules.warned.swap(true, Ordering::Relaxed) {
            (self.schedules.warn)(&format!(
                "the tuned schedule of {} does not apply ({why}), so it runs under the heuristic's; `glimmer tune` finds another",
                kernel.name
            ));
        }
    }
}

impl Choose for Chooser<'_> {
    fn choose(&mut self, kernel: &Kernel) -> Vec<Opt> {
        let found = self.schedules.find(&Schedules::key(&kernel.to_string(), &self.target));
        let parsed = found.map(|text| kernel::parse(&text).ok_or(text));
        match parsed {
            Some(Ok(opts)) => opts,
            Some(Err(text)) => {
                self.warn(kernel, &format!("`{text}` is no schedule"));
                heuristic::propose(kernel, &self.caps)
            }
            None => heuristic::propose(kernel, &self.caps),
        }
    }

    fn instead(&mut self, kernel: &Kernel, refused: &Error) -> Option<Vec<Opt>> {
        self.schedules.find(&Schedules::key(&kernel.to_string(), &self.target))?;
        self.warn(kernel, &refused.to_string());
        Some(heuristic::propose(kernel, &self.caps))
    }
}

/// A kernel's text with buffers and ranges numbered as they appear.
fn anonymous(kernel: &str) -> String {
    let mut names: HashMap<&str, String> = HashMap::new();
    let mut out = String::new();
    for line in kernel.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["kernel", name, ..] => out += &rename(line.split_once(name).map_or(line, |l| l.1), &mut names),
            ["buffer", name, dtype, ..] => {
                let n = names.len();
                names.insert(name.trim_end_matches(':'), format!("b{n}"));
                let dtype = dtype.split('[').next().unwrap_or(dtype);
                let written = if words.ends_with(&["written"]) { " written" } else { "" };
                let _ = write!(out, "b{n}: {dtype}{written}");
            }
            _ => out += &rename(line, &mut names),
        }
        out.push('\n');
    }
    out
}

fn rename<'a>(line: &'a str, names: &mut HashMap<&'a str, String>) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let belongs = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
        let end = match belongs(first) {
            true => rest.find(|c| !belongs(c)).unwrap_or(rest.len()),
            false => first.len_utf8(),
        };
        let (token, after) = rest.split_at(end);
        let n = names.len();
        if token.strip_prefix("serial").is_some_and(|n| !n.is_empty()) {
            names.entry(token).or_insert_with(|| format!("r{n}"));
        }
        out += names.get(token).map_or(token, String::as_str);
        rest = after;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str = "kernel k1_4 [serial3 < 4]
  buffer w.q4: u8[8, 8]
  buffer x: f32[4] written
  stage []
    x[(serial3 * 2)] = f32(w.q4[serial3])
";

    #[test]
    fn names_and_numbers_do_not_matter_and_work_does() {
        let same = KERNEL.replace("k1_4", "k7_4").replace("serial3", "serial11").replace("w.q4", "blk.x");
        let larger = same.replace("[8, 8]", "[16, 8]");
        assert_eq!(anonymous(KERNEL), anonymous(&larger));
        for (from, to) in [("* 2", "* 3"), ("< 4", "< 5"), ("u8[", "i8["), (" written", ""), ("f32(", "f16(")]
        {
            assert_ne!(anonymous(KERNEL), anonymous(&KERNEL.replacen(from, to, 1)), "{from}");
        }
    }

    #[test]
    fn a_table_reads_back() {
        let key = |kernel: &str, target: &str| Schedules::key(kernel, target);
        let opts = kernel::parse("vector(1,16) grid(0,0)").unwrap();
        let schedules = Schedules::of("", Cache::default(), |_| ());
        schedules.put(key(KERNEL, "x86-avx2"), &opts);
        schedules.put(key("", "ptx-sm90"), &[]);
        let text = schedules.export();
        let again = Schedules::of(&text, Cache::default(), |_| ());
        assert_eq!(again.find(&key(KERNEL, "x86-avx2")).as_deref(), Some("vector(1,16) grid(0,0)"));
        assert_eq!(again.find(&key("", "ptx-sm90")).as_deref(), Some(""));
        assert_eq!(again.find(&key(KERNEL, "ptx-sm90")), None);
        assert_eq!(again.export(), text);
        again.put(key(KERNEL, "x86-avx2"), &[]);
        assert_eq!(again.find(&key(KERNEL, "x86-avx2")).as_deref(), Some(""), "tuned here counts more");
    }

    #[test]
    fn what_ships_is_whole() {
        let lines = SHIPPED.lines().filter(|l| !l.starts_with('#')).count();
        assert_eq!(import(SHIPPED).filter(|(_, s)| kernel::parse(s).is_some()).count(), lines);
        assert_eq!(Schedules::default().export(), SHIPPED);
    }
}
