//! `glimmer run` with the model inside the program.

use crate::Place;
use serde_json::Value;

const STORY: &str = "Tell me a story about a dog.";

#[test]
fn a_story_is_told_to_standard_output() {
    let place = Place::new();
    let ran = place.glimmer(&["run", "-p", STORY, "--seed", "1", "-n", "32", "--no-think"]).ok();
    assert!(ran.out.split_whitespace().count() > 10 && ran.out.ends_with('\n'), "{ran:?}");
    assert!(ran.err.contains("tokens/s") && ran.err.contains("loaded in"), "{ran:?}");
    assert!(!ran.out.contains('\x1b') && !ran.err.contains('\x1b'), "no colours without a terminal: {ran:?}");
}

#[test]
fn answers_repeat() {
    let place = Place::new();
    let out = |args: &[&str]| {
        let base = ["run", "-p", STORY, "-n", "24", "--no-think"];
        place.glimmer(&[&base, args].concat()).ok().out
    };
    assert_eq!(out(&["--temp", "0"]), out(&["--temp", "0", "--seed", "5"]));
    assert_eq!(out(&["--temp", "1", "--seed", "7"]), out(&["--temp", "1", "--seed", "7"]));
    assert_ne!(out(&["--temp", "2", "--seed", "7"]), out(&["--temp", "2", "--seed", "8"]));
}

/// The model inside the program recommends a temperature of 0.7 and a top-p of 0.95.
#[test]
fn the_model_recommends_how_to_sample() {
    let place = Place::new();
    let out = |args: &[&str]| {
        let base = ["run", "-p", STORY, "-n", "48", "--no-think", "--seed", "11"];
        place.glimmer(&[&base, args].concat()).ok().out
    };
    assert_eq!(out(&[]), out(&["--temp", "0.7", "--top-p", "0.95"]));
    assert_ne!(out(&[]), out(&["--temp", "2"]));
    let text = place.glimmer(&["inspect"]).ok().out;
    assert!(text.contains("\nsampling    --temp 0.7 --top-k 40 --top-p 0.95 --min-p 0.05"), "{text}");
}

#[test]
fn piped_input_is_the_prompt() {
    let place = Place::new();
    let flags = ["run", "--temp", "0", "-n", "16", "--no-think"];
    let piped = place.glimmer_with(&flags, &format!("{STORY}\n")).ok();
    let given = place.glimmer(&[&flags[..], &["-p", STORY]].concat()).ok();
    assert_eq!(piped.out, given.out);
    place.glimmer_with(&flags, "\n").fails(&["the prompt is empty"]);
}

#[test]
fn json_says_all_of_it() {
    let place = Place::new();
    let json = |args: &[&str]| -> Value {
        let base = ["run", "--json", "-p", STORY, "--temp", "0"];
        serde_json::from_str(&place.glimmer(&[&base, args].concat()).ok().out).unwrap()
    };
    let short = json(&["-n", "12", "--no-think"]);
    assert_eq!(short["finish_reason"], "length");
    assert_eq!(short["ids"].as_array().unwrap().len(), 12);
    assert_eq!(short["stats"]["generated_tokens"], 12);
    assert!(short["stats"]["tokens_per_second"].as_f64().unwrap() > 0.0, "{short}");
    assert_eq!(short["reasoning"], "");

    let whole = json(&[]);
    assert_eq!(whole["finish_reason"], "end", "the story ends by itself");
    assert!(!whole["reasoning"].as_str().unwrap().is_empty() && !whole["text"].as_str().unwrap().is_empty());
    assert!(!whole["text"].as_str().unwrap().contains("think>"), "{whole}");

    let text = short["text"].as_str().unwrap();
    let word = text.split_whitespace().nth(3).unwrap();
    let stopped = json(&["--no-think", "--stop", word]);
    assert_eq!((stopped["finish_reason"].as_str(), stopped["stop"].as_str()), (Some("stop"), Some(word)));
    assert_eq!(stopped["text"].as_str().unwrap(), &text[..text.find(word).unwrap()]);
}

#[test]
fn raw_text_is_continued() {
    let place = Place::new();
    let args = ["run", "--raw", "-p", "Once upon a time", "--temp", "0", "-n", "8", "--json"];
    let object: Value = serde_json::from_str(&place.glimmer(&args).ok().out).unwrap();
    assert!(object["prompt_ids"].as_array().unwrap().len() <= 5, "no template: {object}");
    assert!(object["text"].as_str().unwrap().starts_with([' ', ',']), "{object}");
}

#[test]
fn the_edge_of_the_context_is_said() {
    let place = Place::new();
    let flags = ["run", "-p", STORY, "--temp", "0", "--no-think", "--ctx"];
    let ran = place.glimmer(&[&flags[..], &["24"]].concat()).ok();
    assert!(!ran.out.is_empty() && ran.err.contains("the context of 24 tokens is full"), "{ran:?}");
    place.glimmer(&[&flags[..], &["4"]].concat()).fails(&["the context holds 4", "--ctx"]);
    place.glimmer(&[&flags[..], &["999999999999"]].concat()).fails(&["999999999999", "--ctx"]);
    let long = place.glimmer(&[&flags[..], &["2048", "-n", "1"]].concat()).ok();
    assert!(long.err.contains("was trained for 1024 tokens"), "{long:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_broken_pipe_ends_quietly() {
    use std::io::Read;
    use std::process::{Command, Stdio};
    let place = Place::new();
    let mut child = Command::new(env!("CARGO_BIN_EXE_glimmer"))
        .args(["run", "-p", STORY, "--temp", "0", "--no-think"])
        .env("XDG_CACHE_HOME", &place.0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success(), "it should not have gone on");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn kernels_are_shown_beside_the_answer() {
    let place = Place::new();
    let answer = |more: &[&str]| {
        let base = ["run", "-p", STORY, "--temp", "0", "--no-think", "-n", "1"];
        place.glimmer(&[&base, more].concat()).ok()
    };
    let (plain, shown) = (answer(&[]), answer(&["--dump", "schedule,kernel"]));
    assert_eq!(shown.out, plain.out);
    let kernels: Vec<&str> = shown.err.split("--- ").skip(1).collect();
    assert!(kernels.len() > 5 && plain.err.lines().count() < 5, "{shown:?}");
    assert!(kernels.iter().any(|k| !k.starts_with("1 x ")), "layers share kernels: {shown:?}");
    assert!(kernels.iter().any(|k| k.lines().nth(1).unwrap().contains("vector(")), "{shown:?}");
    let code = answer(&["--dump", "linear,asm"]);
    assert!(
        code.out == plain.out && code.err.contains("\nlinear ") && code.err.contains("\n  ret\n"),
        "{code:?}"
    );
    place.glimmer(&["run", "-p", STORY, "--dump", "x"]).ends(2, &["--dump", "schedule"]);
}
