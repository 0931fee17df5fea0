//! Flags, help, exit codes.

use crate::Place;
use llm::gguf::{Value, header};

#[test]
fn usage_errors_end_with_2() {
    let place = Place::new();
    for (args, with) in [
        (&[][..], "Usage"),
        (&["nonsense"][..], "nonsense"),
        (&["run", "--temp", "hot"][..], "--temp"),
        (&["run", "--temp", "-1", "-p", "x"][..], "--temp"),
        (&["run", "--top-p", "1.5", "-p", "x"][..], "--top-p"),
        (&["run", "--device", "tpu", "-p", "x"][..], "--device"),
        (&["run", "--ctx", "0", "-p", "x"][..], "--ctx"),
        (&["run", "--threads", "0", "-p", "x"][..], "--threads"),
        (&["pull"][..], "NAME"),
        (&["completions", "tcsh"][..], "tcsh"),
    ] {
        place.glimmer(args).ends(2, &[with]);
    }
}

#[test]
fn help_has_examples() {
    let place = Place::new();
    assert!(place.glimmer(&["--help"]).ok().out.contains("run"));
    for command in [
        "run",
        "serve",
        "inspect",
        "tokenize",
        "template",
        "logits",
        "perplexity",
        "synth",
        "pull",
        "models",
        "profile",
        "tune",
        "bench",
        "check",
        "dump",
        "completions",
    ] {
        let help = place.glimmer(&[command, "--help"]).ok().out;
        assert!(help.contains("Usage: glimmer") && help.contains("Examples:"), "{command}: {help}");
        assert!(help.contains(&format!("glimmer {command}")), "{command}: {help}");
    }
}

#[test]
fn completions_for_every_shell() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = place.glimmer(&["completions", shell]).ok().out;
        assert!(script.contains("glimmer") && script.contains("no-think"), "{shell}: {script}");
    }
}

#[test]
fn a_missing_file_is_named() {
    let place = Place::new();
    place.glimmer(&["run", "no/such.gguf", "-p", "x"]).fails(&["no/such.gguf"]);
}

#[test]
fn a_vocabulary_is_not_run() {
    let place = Place::new();
    let keys = [("general.architecture", &Value::String("llama".into()))];
    std::fs::write(place.0.join("vocab.gguf"), header(keys, [])).unwrap();
    let args = ["logits", "vocab.gguf", "--tokens", "1", "--output", "x.npy"];
    place.glimmer(&args).fails(&["vocab.gguf", "a vocabulary and no tensors"]);
}
