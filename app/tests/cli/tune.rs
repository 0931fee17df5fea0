//! `glimmer tune` with the built-in model, and the commands that use what it found.

use crate::Place;
use runtime::cpu::CpuDevice;
use runtime::device::Device;
use runtime::schedules::Schedules;
use serde_json::Value;
use std::fs;

fn json(place: &Place, args: &[&str]) -> Value {
    serde_json::from_str(&place.glimmer(args).ok().out).unwrap()
}

/// The schedule and the text of the kernel that makes logits.
fn head(place: &Place) -> (String, String) {
    let report = json(place, &["profile", "--repeat=1", "--bandwidth=20", "--json"]);
    let kernels = report["kernels"].as_array().unwrap();
    let found = kernels.iter().find(|k| k["what"].as_str().unwrap().starts_with("logits")).unwrap();
    (found["schedule"].as_str().unwrap().into(), found["text"].as_str().unwrap().into())
}

#[test]
fn tuned_schedules_are_found_stored_used_and_exported() {
    let device = match CpuDevice::new(Default::default()) {
        Ok(device) => device,
        Err(why) => return println!("skipped: {why}"),
    };
    let place = Place::new();
    let (usual, text) = head(&place);
    assert_ne!(usual, "");
    let schedules = Schedules::open(&place.cache(), |what| panic!("{what}"));
    schedules.put(Schedules::key(&text, device.target().name()), &[]);
    schedules.save().unwrap();
    assert_eq!(head(&place).0, "", "a schedule of loops alone");

    let report = json(&place, &["tune", "--time", "2", "--depth", "2", "--json", "--export", "table.txt"]);
    assert!(report["steps"][0]["ms_before"].as_f64().unwrap() > 0.0, "{report}");
    let kernels = report["kernels"].as_array().unwrap();
    let tuned = kernels.iter().find(|k| k["what"].as_str().unwrap().starts_with("logits")).unwrap();
    assert_eq!((tuned["outcome"].as_str(), tuned["old"].as_str()), (Some("better"), Some("")));
    let new = tuned["new"].as_str().unwrap();
    assert_eq!(head(&place).0, new, "the next run uses it");
    let table = fs::read_to_string(place.0.join("table.txt")).unwrap();
    let line = table.lines().find(|l| l.ends_with(&format!(" {new}"))).unwrap_or_else(|| panic!("{table}"));
    assert!(line.starts_with(device.target().name()), "{line}");

    let cache = place.cache().join("schedules");
    fs::write(&cache, "nonsense\n").unwrap();
    let ran = place.glimmer(&["run", "--raw", "-p", "Once", "-n", "2"]).ok();
    assert!(ran.err.contains("1 damaged lines were left out; `glimmer tune`"), "{}", ran.err);
    assert_eq!(head(&place).0, usual);
}

#[test]
fn a_report_for_people() {
    let place = Place::new();
    let out = place.glimmer(&["tune", "--time", "0", "--tokens", "1,5", "--depth", "0"]).ok().out;
    for part in ["a token: ", "5 tokens: ", "0 schedules tried", "us before"] {
        assert!(out.contains(part), "no `{part}` in {out}");
    }
    let number = |from: &str, to: &str| -> Option<usize> {
        out.split_once(from)?.1.split_once(to).and_then(|(n, _)| n.parse().ok())
    };
    // Which kernels have rows depends on how busy the machine is; the others are counted.
    let rows = out.split_once("kernel\n").unwrap().1.lines().filter(|l| !l.starts_with("and ")).count();
    let more = number("\nand ", " more of less").unwrap_or(0);
    assert_eq!(Some(rows + more), number("\n0 of ", " kernels"), "{out}");
}

#[test]
fn what_cannot_be_tuned_is_refused() {
    let place = Place::new();
    place.glimmer(&["tune", "--device", "interp"]).fails(&["--device interp", "cpu or cuda"]);
    place.glimmer(&["tune", "--tokens", "0"]).ends(2, &["--tokens"]);
    place.glimmer(&["tune", "--time", "0", "--tokens", "5000"]).fails(&["from 1 to", "5000"]);
    place
        .glimmer(&["tune", "--time", "0", "--depth", "0", "--export", "no/such/file"])
        .fails(&["no/such/file"]);
}
