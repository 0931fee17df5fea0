//! `glimmer pull` against a server on this machine.

use crate::Place;
use crate::hub::{Hub, sha256};
use std::fs;
use std::time::{Duration, Instant};

const NAME: &str = "hf:owner/repo:q4_0";
const FILE: &str = "tiny-Q4_0.gguf";

fn content(n: usize) -> Vec<u8> {
    (0..n as u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

#[test]
fn a_model_is_fetched_once() {
    let (place, bytes) = (Place::new(), content(100_000));
    let hub = Hub::new(&[(FILE, &bytes), ("tiny-Q8_0.gguf", b"other")]);
    let url = hub.serve();
    let ran = place.glimmer(&["pull", NAME, "--endpoint", &url]).ok();
    let path = place.cache().join("models/owner/repo").join(FILE);
    assert_eq!(ran.out.trim_end(), path.display().to_string());
    assert!(ran.err.contains("checksum verified"), "{ran:?}");
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left");

    // There now: no connection is needed.
    let again = place.glimmer(&["pull", NAME, "--endpoint", "http://127.0.0.1:9"]).ok();
    assert_eq!((again.out, hub.starts().len()), (ran.out, 1));
    let list = place.glimmer(&["models"]).ok().out;
    assert!(list.contains(&format!("400 kB  hf:owner/repo/{FILE}")), "{list}");
}

#[test]
fn a_broken_connection_is_continued() {
    let (place, bytes) = (Place::new(), content(50_000));
    let hub = Hub::new(&[(FILE, &bytes)]);
    *hub.drops.lock().unwrap() = vec![70_000, 30_000];
    place.glimmer(&["pull", NAME, "--endpoint", &hub.serve()]).ok();
    assert_eq!(hub.starts(), [0, 70_000, 100_000]);
    assert_eq!(fs::read(place.cache().join("models/owner/repo").join(FILE)).unwrap(), bytes);
}

#[test]
fn a_partial_file_is_continued() {
    let bytes = content(50_000);
    for (ignores_ranges, starts) in [(false, [120_000]), (true, [0])] {
        let place = Place::new();
        let dir = place.cache().join("models/owner/repo");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("{FILE}.{}.part", &sha256(&bytes)[..16])), &bytes[..120_000]).unwrap();
        let mut hub = Hub::new(&[(FILE, &bytes)]);
        hub.ignores_ranges = ignores_ranges;
        place.glimmer(&["pull", NAME, "--endpoint", &hub.serve()]).ok();
        assert_eq!(hub.starts(), starts);
        assert_eq!(fs::read(dir.join(FILE)).unwrap(), bytes);
    }
}

#[test]
fn a_wrong_checksum_is_found() {
    let (place, bytes) = (Place::new(), content(1000));
    let wrong = "ab".repeat(32);
    let mut hub = Hub::new(&[(FILE, &bytes)]);
    hub.sum = Some(wrong.clone());
    place.glimmer(&["pull", NAME, "--endpoint", &hub.serve()]).fails(&[
        FILE,
        &wrong,
        &sha256(&bytes),
        "pull again",
    ]);
    let dir = place.cache().join("models/owner/repo");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "neither the file nor a part of it");

    // Damage in what was there from an earlier attempt.
    let part = dir.join(format!("{FILE}.{}.part", &sha256(&bytes)[..16]));
    fs::write(&part, [7; 500]).unwrap();
    let url = Hub::new(&[(FILE, &bytes)]).serve();
    place.glimmer(&["pull", NAME, "--endpoint", &url]).fails(&["the damaged file was removed"]);
    place.glimmer(&["pull", NAME, "--endpoint", &url]).ok();
}

#[test]
fn all_parts_are_fetched() {
    let place = Place::new();
    let parts = ["Q8_0/big-Q8_0-00001-of-00002.gguf", "Q8_0/big-Q8_0-00002-of-00002.gguf"];
    let url = Hub::new(&[(parts[1], b"two"), (parts[0], b"one"), (FILE, b"x")]).serve();
    let dir = place.cache().join("models/owner/repo");
    for name in ["hf:owner/repo:Q8_0", &format!("hf:owner/repo/{}", parts[1])] {
        let ran = place.glimmer(&["pull", name, "--endpoint", &url]).ok();
        assert_eq!(ran.out.trim_end(), dir.join(parts[0]).display().to_string());
    }
    assert_eq!(fs::read(dir.join(parts[1])).unwrap(), b"two");
    // One part alone is not the model.
    fs::remove_file(dir.join(parts[0])).unwrap();
    place.glimmer(&["run", "hf:owner/repo:Q8_0", "-p", "x"]).fails(&["glimmer pull hf:owner/repo:Q8_0"]);
}

#[test]
fn what_does_not_exist_is_said() {
    let place = Place::new();
    let url = Hub::new(&[(FILE, b"x"), ("tiny-IQ4_XS.gguf", b"y")]).serve();
    let pull = |name: &str| place.glimmer(&["pull", name, "--endpoint", &url]);
    pull("hf:owner/repo:q6_k").fails(&["hf:owner/repo:Q6_K does not exist", "IQ4_XS, Q4_0"]);
    pull("hf:owner/repo/other.gguf").fails(&["other.gguf does not exist", FILE]);
    pull("hf:owner/nothing:q4_0").fails(&["status 404", "https://huggingface.co/owner/nothing"]);
    pull("no-such-model").fails(&["no-such-model", "glm-4.7-flash", "hf:OWNER/REPO"]);
    pull("hf:owner").fails(&["hf:owner", "expected hf:OWNER/REPO"]);
    place.glimmer(&["run", "smollm2-135m", "-p", "x"]).fails(&["glimmer pull smollm2-135m", "105 MB"]);
}

#[test]
fn without_a_connection_there_is_advice() {
    let place = Place::new();
    let began = Instant::now();
    let ran = place.glimmer(&["pull", "smollm2-135m", "--endpoint", "http://127.0.0.1:9"]);
    ran.fails(&[
        "cannot reach http://127.0.0.1:9",
        "huggingface.co/bartowski/SmolLM2-135M-Instruct-GGUF",
        "its path",
    ]);
    assert!(began.elapsed() < Duration::from_secs(20), "it should not take {:?}", began.elapsed());
}
