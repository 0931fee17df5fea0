//! `glimmer bench` with the model inside the program, alone and beside a program that answers as llama-bench does.

use crate::Place;
use serde_json::Value;

#[test]
fn a_row_for_each_test() {
    let place = Place::new();
    let ran = place.glimmer(&["bench", "-p", "8", "-n", "2", "-d", "0,4", "-r", "2", "-t", "1"]).ok();
    let lines: Vec<Vec<&str>> = ran.out.lines().map(|l| l.split('|').map(str::trim).collect()).collect();
    assert_eq!(lines.len(), 6, "{ran:?}");
    let tests: Vec<&str> = lines[2..].iter().map(|l| l[6]).collect();
    assert_eq!(tests, ["pp8", "tg2", "pp8 @ d4", "tg2 @ d4"]);
    for line in &lines[2..] {
        let speed: f64 = line[7].split(' ').next().unwrap().parse().unwrap();
        assert!(speed > 0.0 && line[5] == "1" && line[2] == "18.91 MiB" && line[3] == "32.02 M", "{line:?}");
        let decodes = line[6].starts_with("tg");
        assert_eq!((line[8] != "-", line[10].contains("% of"), line[11] == "-"), (decodes, decodes, decodes));
    }
    assert!(ran.err.contains("tg2 @ d4, run 2 of 2: "), "{ran:?}");
}

#[test]
fn tests_by_name_and_formats() {
    let place = Place::new();
    let bench = |format: &str, threads: &str| {
        let args = ["bench", "--test", "pp4@d3,pp2", "-r", "1", "-t", threads, "--format", format];
        place.glimmer(&args).ok().out
    };
    let json: Value = serde_json::from_str(&bench("json", "1,2")).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let of = |key: &str| rows.iter().map(|r| r[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("test"), ["pp2", "pp4 @ d3", "pp2", "pp4 @ d3"]);
    assert_eq!(of("threads"), [1, 1, 2, 2]);
    assert_eq!(rows[0]["tokens_per_second"]["runs"].as_array().unwrap().len(), 1);
    assert!(rows[0]["load_seconds"].as_f64().unwrap() > 0.0 && rows[0]["ratio"].is_null());
    let lines = bench("jsonl", "1");
    assert_eq!(lines.lines().filter(|l| serde_json::from_str::<Value>(l).is_ok()).count(), 2, "{lines}");
    let csv = bench("csv", "1");
    assert!(csv.starts_with("model,") && csv.lines().count() == 3, "{csv}");
}

#[test]
fn what_cannot_be_measured_is_said() {
    let place = Place::new();
    place.glimmer(&["bench", "-p", "x"]).ends(2, &["-p", "ranges as in 1-8"]);
    place.glimmer(&["bench", "--test", "pp0"]).ends(2, &["pp0", "tg32@d4096"]);
    place.glimmer(&["bench", "--test", "pp1", "-p", "4"]).ends(2, &["cannot be used with"]);
    place.glimmer(&["bench", "--rounds", "2"]).ends(2, &["--against"]);
    place.glimmer(&["bench", "-p", "0", "-n", "0"]).fails(&["nothing to measure"]);
    place.glimmer(&["bench", "-t", "0"]).fails(&["--threads 0"]);
    place.glimmer(&["bench", "kernel"]).fails(&["kernel: no such file"]);
    place.glimmer(&["bench", "--against", "no/such"]).fails(&["--against no/such"]);
    place.glimmer(&["bench", "kernels", "--filter", "nothing like it"]).fails(&["nothing like it"]);
    assert!(place.glimmer(&["bench", "--help"]).ok().out.contains("Examples:"));
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::fs;
    use std::io::{BufRead, BufReader, Read};
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};

    /// A script in place of llama-bench that says what it was asked in `asked` and answers with these speeds.
    fn peer(place: &Place, name: &str, prompt: f64, decode: f64) -> String {
        let row = |p: u32, n: u32, speed: f64| {
            format!(
                r#"{{"build_commit": "abc", "backends": "CPU", "n_prompt": {p}, "n_gen": {n}, "n_depth": 0, "samples_ts": [{speed}]}}"#
            )
        };
        let script = format!(
            "#!/bin/sh\nif [ \"$1\" = --help ]; then echo '-d, --n-depth'; exit; fi\n\
             echo {name} $* >> asked\n[ -f \"$2\" ] || exit 3\necho '[\n{},\n{}\n]'\n",
            row(8, 0, prompt),
            row(0, 2, decode)
        );
        script_at(place, name, &script)
    }

    fn script_at(place: &Place, name: &str, script: &str) -> String {
        let path = place.0.join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    }

    #[test]
    fn the_best_of_two_peers_in_turn() {
        let place = Place::new();
        let (one, two) = (peer(&place, "one", 4.0, 1.0), peer(&place, "two", 2.0, 3.0));
        let against = ["--against", one.as_str(), "--against", &two];
        let flags =
            ["bench", "-p", "8", "-n", "2", "-r", "3", "--rounds", "2", "-t", "1", "--format", "json"];
        let ran = place.glimmer(&[&flags[..], &against].concat()).ok();
        let file = place.cache().join("bench/storyteller.gguf");
        assert!(ran.err.contains(&format!("{}: writing 20 MB for llama-bench", file.display())), "{ran:?}");
        let asked = fs::read_to_string(place.0.join("asked")).unwrap();
        let asked: Vec<&str> = asked.lines().collect();
        let line = |who, runs| {
            format!("{who} -m {} -p 8 -n 2 -d 0 -r {runs} -o json -ngl 0 -dev none -t 1", file.display())
        };
        assert_eq!(asked, [line("one", 2), line("two", 2), line("one", 1), line("two", 1)]);

        let json: Value = serde_json::from_str(&ran.out).unwrap();
        for (row, best) in [(0, 4.0), (1, 3.0)] {
            let row = &json["rows"][row];
            let own = row["tokens_per_second"]["median"].as_f64().unwrap();
            assert_eq!(row["tokens_per_second"]["runs"].as_array().unwrap().len(), 3);
            assert!((row["ratio"].as_f64().unwrap() - own / best).abs() < 1e-9 * own, "{row}");
            assert_eq!(
                (&row["model"], &row["peers"][1]["build"]),
                (&"storyteller (built in)".into(), &"abc CPU".into())
            );
        }
        // The file is there now.
        let again = place.glimmer(&["bench", "-p", "8", "-n", "0", "-r", "1", "--against", &one]).ok();
        assert!(!again.err.contains("writing") && again.out.contains("4.00 ± 0.00"), "{again:?}");
    }

    #[test]
    fn a_peer_that_fails_is_named() {
        let place = Place::new();
        let bad = script_at(
            &place,
            "bad",
            "#!/bin/sh\n[ $1 = --help ] && echo --n-depth || { echo no model >&2; exit 7; }\n",
        );
        let ran = place.glimmer(&["bench", "-p", "4", "-n", "0", "-r", "1", "--against", &bad]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.err.contains("bad ended with exit status: 7") && ran.err.contains("no model"), "{ran:?}");
        assert!(ran.out.contains("pp4"), "what was measured is printed: {ran:?}");
    }

    #[test]
    fn an_interrupted_run_prints_what_it_has() {
        let place = Place::new();
        let mut child = Command::new(env!("CARGO_BIN_EXE_glimmer"))
            .args(["bench", "-p", "4", "-n", "0", "-r", "100000000", "--format", "jsonl"])
            .env("XDG_CACHE_HOME", &place.0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("run 3 of") {
            line.clear();
            assert_ne!(err.read_line(&mut line).unwrap(), 0);
        }
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        let mut rest = String::new();
        err.read_to_string(&mut rest).unwrap();
        let output = child.wait_with_output().unwrap();
        let row: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((output.status.code(), &row["test"]), (Some(130), &"pp4".into()), "{rest}");
        assert!(
            row["tokens_per_second"]["runs"].as_array().unwrap().len() >= 3 && rest.contains("interrupted")
        );
    }
}
