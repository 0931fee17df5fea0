//! Model files: damaged in thousands of ways from a small corpus, and whole ones that other programs wrote.

mod sound;

use compiler::rng::Rng;
use llm::gguf::Gguf;
use std::path::{Path, PathBuf};

/// Small files by gguf-py.
fn corpus() -> Vec<(String, Vec<u8>)> {
    files("tests/data/gguf")
}
fn files(folder: &str) -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 4, "the corpus is gone");
    files
        .iter()
        .map(|f| (f.file_name().unwrap().to_string_lossy().into(), std::fs::read(f).unwrap()))
        .collect()
}

#[test]
fn corpus_is_read_as_it_was_written() {
    for (name, bytes) in corpus() {
        assert!(sound::check(&bytes), "{name}");
    }
}

/// One file for each way through the parser that fuzzing has found.
#[test]
fn fuzzed_files_are_refused_or_sound() {
    let opened = files("../fuzz/corpus/gguf").iter().filter(|(_, bytes)| sound::check(bytes)).count();
    assert!(opened > 0, "no file of the corpus opens");
}

/// Values that lengths, counts, sizes and offsets should not have.
const EXTREME: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    1 << 60,
    i64::MAX as u64,
    u64::MAX - 31,
    u64::MAX,
];

fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let at = rng.below(bytes.len());
    match rng.below(6) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes[at] = rng.bits() as u8,
        2 => bytes.truncate(at),
        3 => {
            let width = *rng.choose(&[4, 8]);
            let value = rng.choose(&EXTREME).wrapping_add(rng.below(3) as u64).to_le_bytes();
            let end = bytes.len().min(at + width);
            bytes[at..end].copy_from_slice(&value[..end - at]);
        }
        4 => {
            let from = rng.below(other.len());
            let piece = &other[from..from + rng.below(other.len() - from).min(64)];
            let end = bytes.len().min(at + piece.len() * rng.below(2));
            bytes.splice(at..end, piece.iter().copied());
        }
        _ => {
            let end = bytes.len().min(at + 1 + rng.below(16));
            bytes.drain(at..end);
        }
    }
}

#[test]
fn damaged_files_are_refused_or_sound() {
    let corpus = corpus();
    let (mut opened, mut refused) = (0, 0);
    for seed in 0..40_000 {
        let mut rng = Rng::new(seed);
        let mut bytes = rng.choose(&corpus).1.clone();
        let other = &rng.choose(&corpus).1;
        for _ in 0..1 + rng.below(3) {
            mutate(&mut rng, &mut bytes, other);
        }
        match std::panic::catch_unwind(|| sound::check(&bytes)) {
            Ok(true) => opened += 1,
            Ok(false) => refused += 1,
            Err(_) => panic!("{rng}: the parser failed"),
        }
    }
    assert!(
        opened > 2000 && refused > 20_000,
        "{opened} opened, {refused} refused: the mutations miss the point"
    );
}

/// Every model under a folder.
fn models(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => models(&path, found),
            false if path.extension().is_some_and(|e| e == "gguf") => found.push(path),
            false => {}
        }
    }
}

#[test]
fn models_by_other_programs_open() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = vec![];
    ["app/models", "../shared/fixtures", "../shared/models"]
        .iter()
        .for_each(|f| models(&root.join(f), &mut found));
    assert!(!found.is_empty(), "the built-in model is gone");
    if found.len() == 1 {
        println!("skipped: the fixtures' models, for want of ../shared");
    }
    for path in found {
        let model = Gguf::open(&path).unwrap_or_else(|e| panic!("{e}"));
        let arch = model.architecture().unwrap();
        assert!(model.int(&format!("{arch}.block_count")).unwrap() > 0, "{}", path.display());
        for t in model.tensors() {
            assert_eq!(model.bytes(t, 0..t.bytes()).unwrap().len(), t.bytes(), "{t:?}");
        }
    }
}
