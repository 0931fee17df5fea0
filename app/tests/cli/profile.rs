//! `glimmer profile` with the built-in model.

use crate::Place;
use serde_json::Value;
use std::fs;

const QUICK: [&str; 4] = ["profile", "--repeat=1", "--bandwidth=20", "--threads=1"];

fn profile(place: &Place, more: &[&str]) -> crate::Ran {
    place.glimmer(&[&QUICK[..], more].concat())
}

#[test]
fn numbers_add_up() {
    let place = Place::new();
    let out = profile(&place, &["--json", "--depth", "3", "--trace", "t.json", "--html", "p.html"]).ok().out;
    let r: Value = serde_json::from_str(&out).unwrap();
    let number = |v: &Value| v.as_f64().unwrap_or_else(|| panic!("{v}"));
    let sum =
        |list: &str, key: &str| r[list].as_array().unwrap().iter().map(|v| number(&v[key])).sum::<f64>();
    assert!((sum("budget", "share") - 1.0).abs() < 1e-6);
    assert!((sum("kernels", "share") - 1.0).abs() < 1e-6);
    assert!((sum("timeline", "us") / number(&r["launches_us"]) - 1.0).abs() < 1e-6);
    assert_eq!(sum("kernels", "calls"), number(&r["launches"]));
    assert_eq!(r["bandwidth_gb_s"], 20.0);
    assert!((number(&r["theoretical_tokens_s"]) * number(&r["bytes"]) / 20e9 - 1.0).abs() < 1e-6);
    for k in r["kernels"].as_array().unwrap() {
        let source = k["source"][0].as_str().unwrap();
        assert!(source.starts_with("llm/src/"), "{k}");
        assert!(!k["what"].as_str().unwrap().is_empty() && number(&k["us"]) > 0.0, "{k}");
    }

    let trace: Value = serde_json::from_str(&fs::read_to_string(place.0.join("t.json")).unwrap()).unwrap();
    let slices: Vec<&Value> =
        trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X" && e["tid"] == 2).collect();
    assert_eq!(slices.len(), r["timeline"].as_array().unwrap().len());
    for two in slices.windows(2) {
        let end = number(&two[0]["ts"]) + number(&two[0]["dur"]);
        assert!((end - number(&two[1]["ts"])).abs() < 1e-3, "launches follow each other: {two:?}");
    }

    let page = fs::read_to_string(place.0.join("p.html")).unwrap();
    let data = page.split_once("const R = ").unwrap().1.split_once(";\n").unwrap().0;
    let again: Value = serde_json::from_str(data).unwrap();
    assert_eq!(again["launches"], r["launches"]);
    assert_eq!(page.matches("</script>").count(), 1);
}

#[test]
fn tables_for_people() {
    let place = Place::new();
    let out = profile(&place, &["--top", "2", "--tokens", "5"]).ok().out;
    for part in
        ["5 tokens (in a plan for 8) at depth 0", "theoretical", "synchronisations", "attention", "layer 0"]
    {
        assert!(out.contains(part), "no `{part}` in {out}");
    }
    let kernels = out.split_once("us a call").unwrap().1;
    assert_eq!(kernels.matches("llm/src/").count() - kernels.matches(", llm/src/").count(), 2, "{kernels}");
    let json: Value = serde_json::from_str(&profile(&place, &["--top", "2", "--json"]).ok().out).unwrap();
    assert_eq!(json["kernels"].as_array().unwrap().len(), 2);
}

#[test]
fn the_source_of_a_kernel() {
    let place = Place::new();
    let out = profile(&place, &["--source", "2"]).ok().out;
    let name = out.split_whitespace().nth(1).unwrap();
    for part in ["llm/src/", "schedule ", &format!("kernel {name}"), "  stage [", "ret"] {
        assert!(out.contains(part), "no `{part}` in {out}");
    }
    profile(&place, &["--source", "nothing"]).fails(&["no kernel is called `nothing`", name]);
}

#[test]
fn what_cannot_be_profiled_is_refused() {
    let place = Place::new();
    profile(&place, &["--tokens", "100000"]).fails(&["one step takes from 1 to", "not 100000"]);
    profile(&place, &["--html", "no/such/directory.html"]).fails(&["no/such/directory.html"]);
    profile(&place, &["--bandwidth", "0"]).ends(2, &["--bandwidth"]);
    profile(&place, &["--tokens", "0"]).ends(2, &["--tokens"]);
    profile(&place, &["--depth", "18446744073709551615"]).ends(2, &["--depth"]);
    profile(&place, &["--source", "1", "--html", "p.html"]).ends(2, &["--html"]);
}
