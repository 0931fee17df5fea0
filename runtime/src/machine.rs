//! What the operating system says about this machine: cores, the last cache, free memory.
//!
//! All of it is advice: an answer the system does not give is `None` or the cautious guess, never a failure.

use std::fs;

/// One logical processor of every physical core this process may use: a second thread of a core adds no bandwidth.
pub fn cores() -> Vec<usize> {
    let allowed = allowed();
    let first = |cpu: &usize| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let siblings = fs::read_to_string(path).map(|s| parse_list(&s)).unwrap_or_default();
        siblings.into_iter().find(|s| allowed.contains(s)).is_none_or(|s| s == *cpu)
    };
    let mut cores: Vec<_> = allowed.iter().copied().filter(first).collect();
    // A container's quota may be less than the processors it sees.
    cores.truncate(std::thread::available_parallelism().map_or(1, |n| n.get()));
    cores
}

/// `0-2,8` as 0, 1, 2, 8; what is no list is empty.
fn parse_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (lo, hi) = part.split_once('-').unwrap_or((part, part));
        Some(lo.parse::<usize>().ok()?..=hi.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// The logical processors this process may use.
#[cfg(target_os = "linux")]
fn allowed() -> Vec<usize> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
    list.map(parse_list).filter(|l| !l.is_empty()).unwrap_or_else(|| vec![0])
}

#[cfg(not(target_os = "linux"))]
fn allowed() -> Vec<usize> {
    (0..std::thread::available_parallelism().map_or(1, |n| n.get())).collect()
}

/// Bytes of the last-level cache of the first processor.
pub fn last_level_cache() -> Option<usize> {
    let size = |index: usize| {
        let text =
            fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
        Some(text.trim().strip_suffix('K')?.parse::<usize>().ok()? << 10)
    };
    (0..8).map_while(size).max()
}

/// Bytes that can be allocated before the system starts to swap or to kill.
pub fn free_memory() -> Option<usize> {
    let system = field(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")?.checked_mul(1024)?;
    Some(system.min(group_memory().unwrap_or(usize::MAX)))
}

/// What this process' control group may still use: page cache that can be dropped counts as free.
fn group_memory() -> Option<usize> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|l| l.strip_prefix("0::"))?;
    let read = |file| fs::read_to_string(format!("/sys/fs/cgroup{path}/{file}")).ok();
    let number = |file| read(file)?.trim().parse::<usize>().ok();
    let used = number("memory.current")?.saturating_sub(field(&read("memory.stat")?, "inactive_file")?);
    Some(number("memory.max")?.saturating_sub(used))
}

/// The number behind `name` at the start of a line.
fn field(text: &str, name: &str) -> Option<usize> {
    text.lines().find_map(|l| l.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// Lets a broken pipe end the process, as it ends other programs: Rust's runtime turns it into an error of every write,
/// which `println!` makes a panic. Sockets are not affected.
pub fn end_on_broken_pipe() {
    #[cfg(target_os = "linux")]
    // SAFETY: the default action is a valid handler, and no other thread sets handlers while the program starts.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_as_the_kernel_writes_them() {
        assert_eq!(parse_list("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(parse_list("\t5"), [5]);
        assert!(parse_list("").is_empty());
    }

    #[test]
    fn fields_are_found_by_name() {
        let text = "MemTotal:       24000 kB\nMemAvailable:   22000 kB\n";
        assert_eq!(field(text, "MemAvailable:"), Some(22000));
        assert_eq!(field(text, "SwapFree:"), None);
    }

    #[test]
    fn there_is_a_core_and_memory() {
        assert!(!cores().is_empty());
        assert!(cores().iter().all(|c| allowed().contains(c)));
        if cfg!(target_os = "linux") {
            assert!(free_memory().unwrap() > 1 << 20);
        }
    }
}
