//! The schedule cache against damage, other processes and a full disk.

use runtime::cache::{Cache, Error, Key};
use std::fs;
use std::path::{Path, PathBuf};

/// A directory of its own for each test, removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cache-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        Dir(dir)
    }
    fn file(&self) -> PathBuf {
        self.0.join("schedules")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn key(kernel: &str) -> Key {
    Key::new(kernel, "x86-avx2", "0.1.0")
}

fn open(dir: &Dir) -> Cache {
    let (cache, damage) = Cache::open(&dir.0).unwrap();
    assert_eq!(damage, None);
    cache
}

#[test]
fn what_is_saved_is_found_again() {
    let dir = Dir::new("again");
    let mut cache = open(&dir);
    assert_eq!(cache.get(&key("a")), None);
    cache.put(key("a"), "upcast 4");
    cache.put(key("b"), "");
    assert_eq!(cache.get(&key("a")), Some("upcast 4"), "before it is saved");
    assert_eq!(cache.save().unwrap(), None);
    cache.put(key("a"), "upcast 8");
    cache.save().unwrap();
    let cache = open(&dir);
    assert_eq!(cache.get(&key("a")), Some("upcast 8"));
    assert_eq!(cache.get(&key("b")), Some(""));
    assert_eq!(cache.get(&Key::new("a", "x86-avx512", "0.1.0")), None);
    assert_eq!(cache.get(&Key::new("a", "x86-avx2", "0.2.0")), None);
}

#[test]
fn damage_costs_its_lines_only() {
    let dir = Dir::new("damage");
    let mut cache = open(&dir);
    (0..10).for_each(|i| cache.put(key(&i.to_string()), "upcast 4"));
    cache.save().unwrap();
    let mut bytes = fs::read(dir.file()).unwrap();
    let (len, line) = (bytes.len(), bytes.len() / 10);
    bytes[line / 2] ^= 0x80;
    bytes.truncate(len - 3);
    fs::write(dir.file(), bytes).unwrap();

    let (mut cache, damage) = Cache::open(&dir.0).unwrap();
    let damage = damage.unwrap();
    assert_eq!((&damage.path, damage.lines), (&dir.file(), 2));
    assert_eq!((0..10).filter(|i| cache.get(&key(&i.to_string())).is_some()).count(), 8);
    assert_eq!(cache.save().unwrap(), Some(damage));
    open(&dir);
}

#[test]
fn a_file_of_something_else_is_an_empty_cache() {
    let dir = Dir::new("garbage");
    fs::create_dir_all(&dir.0).unwrap();
    fs::write(dir.file(), [0xff, 0, b'\n', b'\t', b'\n']).unwrap();
    let (mut cache, damage) = Cache::open(&dir.0).unwrap();
    assert_eq!(damage.unwrap().lines, 2);
    cache.put(key("a"), "upcast 4");
    cache.save().unwrap();
    assert_eq!(open(&dir).get(&key("a")), Some("upcast 4"));
}

#[test]
fn concurrent_savers_lose_nothing() {
    let dir = Dir::new("concurrent");
    std::thread::scope(|scope| {
        for saver in 0..8 {
            let dir = &dir;
            scope.spawn(move || {
                let (mut cache, _) = Cache::open(&dir.0).unwrap();
                for i in 0..20 {
                    cache.put(key(&format!("{saver} {i}")), "upcast 4");
                    assert_eq!(cache.save().unwrap(), None);
                }
            });
        }
    });
    let cache = open(&dir);
    for saver in 0..8 {
        assert!((0..20).all(|i| cache.get(&key(&format!("{saver} {i}"))).is_some()), "saver {saver}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_keeps_the_old_file_and_what_was_put() {
    let dir = Dir::new("full");
    let mut cache = open(&dir);
    cache.put(key("a"), "upcast 4");
    cache.save().unwrap();
    let before = fs::read(dir.file()).unwrap();
    std::os::unix::fs::symlink("/dev/full", dir.0.join("schedules.new")).unwrap();
    cache.put(key("b"), "upcast 8");
    let error = cache.save().unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert!(error.to_string().contains("disk is full"), "{error}");
    assert_eq!(fs::read(dir.file()).unwrap(), before);
    cache.save().unwrap();
    assert_eq!(open(&dir).get(&key("b")), Some("upcast 8"), "saved once there is room");
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let dir = Dir::new("blocked");
    fs::create_dir_all(&dir.0).unwrap();
    let blocked = dir.0.join("file").join("below");
    fs::write(dir.0.join("file"), "").unwrap();
    let error = match Cache::open(&blocked) {
        Err(e) => e,
        Ok((mut cache, _)) => cache.save().unwrap_err(),
    };
    assert!(error.to_string().contains("below"), "{error}");
}
