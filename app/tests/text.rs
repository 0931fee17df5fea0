//! `glimmer tokenize` and `glimmer template` on the model in this repository.

use std::io::Write;
use std::process::{Command, Output, Stdio};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/storyteller-Q4_K_M.gguf");

fn glimmer(args: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glimmer"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that refuses its arguments reads no input.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn output(args: &[&str], input: &[u8]) -> String {
    let out = glimmer(args, input);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn error(args: &[&str], input: &[u8]) -> String {
    let out = glimmer(args, input);
    assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0), "{args:?}");
    String::from_utf8(out.stderr).unwrap()
}

#[test]
fn ids_there_and_back() {
    let text = "Once upon a time,\n a dog & é🦙";
    let json = output(&["tokenize", MODEL, "--json"], text.as_bytes());
    assert_eq!(json, output(&["tokenize", MODEL, text, "--json"], b""));
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let ids: Vec<String> = value["ids"].as_array().unwrap().iter().map(|id| id.to_string()).collect();
    assert_eq!(output(&["tokenize", MODEL, "--decode", &ids.join(",")], b""), text);
    assert_eq!(output(&["tokenize", MODEL, text], b"").lines().count(), ids.len());
    let special = output(&["tokenize", MODEL, "<|user|>"], b"");
    assert_eq!(special.lines().count(), 1, "{special}");
    assert!(output(&["tokenize", MODEL, "<|user|>", "--no-special"], b"").lines().count() > 1);
}

#[test]
fn prompts() {
    let chat =
        r#"{"messages": [{"role": "user", "content": "Hi"}], "arguments": {"add_generation_prompt": true}}"#;
    let prompt = output(&["template", MODEL, "--messages", "-"], chat.as_bytes());
    assert!(prompt.contains("<|user|>") && prompt.contains("Hi") && !prompt.ends_with('\n'), "{prompt:?}");
}

#[test]
fn bad_input() {
    assert!(error(&["tokenize", MODEL, "--decode", "99999999"], b"").contains("99999999 is no token"));
    assert!(error(&["tokenize", MODEL], b"ab\xff").contains("not UTF-8: the byte at 2 is 0xFF"));
    assert!(error(&["tokenize", "no/such.gguf", "a"], b"").contains("no/such.gguf"));
    assert!(error(&["template", MODEL, "--messages", "-"], b"{\"messages\": [}").contains("line 1 column"));
    assert!(error(&["template", MODEL, "--messages", "-"], b"{}").contains("`messages` is a list"));
    assert!(error(&["template", MODEL, "--messages", "no.json"], b"").contains("no.json"));
}
