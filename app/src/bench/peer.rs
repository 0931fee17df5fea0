//! llama.cpp's llama-bench as a peer. In: a model's file and tests. Out: tokens a second of each run.
//!
//! It runs as a process of its own, one for each depth, and is ended when the benchmark is.

use super::Stop;
use super::cases::{Kind, Test};
use crate::args::DeviceName;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

pub struct Peer {
    pub path: PathBuf,
    /// What it says about itself, once it ran: the commit and its backends.
    pub about: Option<String>,
}

/// What the peer is asked.
pub struct Question<'a> {
    pub file: &'a Path,
    pub tests: &'a [Test],
    pub repeat: usize,
    pub threads: Option<usize>,
    pub device: DeviceName,
}

/// Tokens a second of each run of a test.
pub type Answer = (Test, Vec<f64>);

impl Peer {
    pub fn new(path: &Path) -> Result<Peer> {
        let ran = Command::new(path).arg("--help").stdin(Stdio::null()).output();
        let help = ran.with_context(|| format!("--against {}", path.display()))?;
        if !String::from_utf8_lossy(&help.stdout).contains("--n-depth") {
            bail!(
                "--against {}: this is no llama-bench that knows --n-depth; benches/README.md says how to build one",
                path.display()
            );
        }
        Ok(Peer { path: path.into(), about: None })
    }

    /// Runs it for every depth in turn; what it said before it was stopped is lost.
    pub fn ask(&mut self, q: &Question, stop: &Stop) -> Result<Vec<Answer>> {
        let mut answers = vec![];
        for tests in q.tests.chunk_by(|a, b| a.depth == b.depth) {
            let text = run(&self.path, &arguments(q, tests), stop)?;
            let said = parse(&text).with_context(|| format!("{}: its JSON", self.path.display()))?;
            for test in tests {
                let samples = said.iter().find(|s| s.is(test)).map(|s| s.samples_ts.clone());
                let samples = samples.filter(|s| !s.is_empty());
                let samples =
                    samples.with_context(|| format!("{}: no result for {test}", self.path.display()))?;
                answers.push((*test, samples));
            }
            self.about = said.first().map(|s| format!("{} {}", s.build_commit, s.backends));
        }
        Ok(answers)
    }
}

/// For tests of one depth.
fn arguments(q: &Question, tests: &[Test]) -> Vec<OsString> {
    let list = |kind| {
        let tokens: Vec<String> =
            tests.iter().filter(|t| t.kind == kind).map(|t| t.tokens.to_string()).collect();
        if tokens.is_empty() { "0".into() } else { tokens.join(",") }
    };
    let mut out: Vec<OsString> = vec!["-m".into(), q.file.into()];
    let depth = tests.first().map_or(0, |t| t.depth).to_string();
    let repeat = q.repeat.to_string();
    let (prompt, decode) = (list(Kind::Prompt), list(Kind::Decode));
    let pairs = [("-p", prompt), ("-n", decode), ("-d", depth), ("-r", repeat), ("-o", "json".into())];
    out.extend(pairs.into_iter().flat_map(|(flag, value)| [flag.into(), value.into()]));
    match q.device {
        DeviceName::Cuda(n) => {
            out.extend(["-ngl", "99", "-sm", "none", "-mg"].map(OsString::from));
            out.push(n.to_string().into());
        }
        DeviceName::Cpu | DeviceName::Interp => out.extend(["-ngl", "0", "-dev", "none"].map(OsString::from)),
    }
    if let Some(threads) = q.threads {
        out.extend(["-t".into(), threads.to_string().into()]);
    }
    out
}

/// What it wrote to standard output.
fn run(path: &Path, arguments: &[OsString], stop: &Stop) -> Result<String> {
    let name = path.display();
    let mut child = Command::new(path)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| name.to_string())?;
    let (out, err) = (collect(child.stdout.take()), collect(child.stderr.take()));
    let status = loop {
        if let Some(status) = child.try_wait().with_context(|| name.to_string())? {
            break status;
        }
        if stop.asked() {
            // It may have ended in the meantime.
            let _ = child.kill();
        }
        thread::sleep(Duration::from_millis(100));
    };
    let text = |thread: thread::JoinHandle<Vec<u8>>| {
        String::from_utf8_lossy(&thread.join().unwrap_or_default()).into_owned()
    };
    let (out, err) = (text(out), text(err));
    if !status.success() {
        let last = reason(&err).join("\n  ");
        bail!("{name} ended with {status}; it said\n  {last}");
    }
    Ok(out)
}

/// The lines that tell why it failed: a failed assertion may be followed by a long backtrace.
fn reason(err: &str) -> Vec<&str> {
    let lines: Vec<&str> = err.lines().filter(|l| !l.trim().is_empty()).collect();
    let telling = |l: &&str| l.contains("ASSERT") || l.contains("error:");
    let found: Vec<&str> = lines.iter().copied().filter(telling).take(5).collect();
    if found.is_empty() { lines[lines.len().saturating_sub(5)..].to_vec() } else { found }
}

fn collect(from: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = vec![];
        if let Some(mut from) = from {
            // What could be read is what it said.
            let _ = from.read_to_end(&mut bytes);
        }
        bytes
    })
}

#[derive(Deserialize)]
struct Said {
    #[serde(default)]
    build_commit: String,
    #[serde(default)]
    backends: String,
    n_prompt: usize,
    n_gen: usize,
    #[serde(default)]
    n_depth: usize,
    samples_ts: Vec<f64>,
}

impl Said {
    fn is(&self, test: &Test) -> bool {
        let tokens = match test.kind {
            Kind::Prompt => (test.tokens, 0),
            Kind::Decode => (0, test.tokens),
        };
        (self.n_prompt, self.n_gen) == tokens && self.n_depth == test.depth
    }
}

/// Builds may print lines of their own before the array.
fn parse(text: &str) -> Result<Vec<Said>> {
    let start = text.lines().position(|l| l.starts_with('[')).context("no array")?;
    let array: Vec<&str> = text.lines().skip(start).collect();
    Ok(serde_json::from_str(&array.join("\n"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_json_is_understood() {
        let text = include_str!("../../tests/data/llama-bench.json");
        for text in [text.to_string(), format!("warning: no huge pages\n{text}")] {
            let said = parse(&text).unwrap();
            let names = ["pp64 @ d32", "tg16 @ d32"];
            let tests: Vec<Test> = names.iter().map(|n| n.parse().unwrap()).collect();
            assert_eq!(said.len(), 2);
            for (said, test) in said.iter().zip(&tests) {
                assert!(said.is(test) && said.samples_ts.len() == 2, "{test}");
                assert!(said.samples_ts.iter().all(|s| *s > 1.0));
            }
            assert!(!said[0].is(&tests[1]) && !said[0].is(&"pp64".parse().unwrap()));
            assert_eq!((said[0].build_commit.as_str(), said[0].backends.as_str()), ("b21e4de745", "CPU"));
        }
        assert!(parse("error").is_err() && parse("[{}]").is_err());
    }

    #[test]
    fn it_is_asked_for_one_depth_at_a_time() {
        let tests: Vec<Test> =
            ["pp128@d9", "pp512@d9", "tg32@d9"].iter().map(|n| n.parse().unwrap()).collect();
        let ask = |device, tests: &[Test]| {
            let q = Question { file: Path::new("m.gguf"), tests, repeat: 3, threads: Some(2), device };
            arguments(&q, tests).join(&OsString::from(" ")).into_string().unwrap()
        };
        assert_eq!(
            ask(DeviceName::Cpu, &tests),
            "-m m.gguf -p 128,512 -n 32 -d 9 -r 3 -o json -ngl 0 -dev none -t 2"
        );
        assert_eq!(
            ask(DeviceName::Cuda(1), &tests[2..]),
            "-m m.gguf -p 0 -n 32 -d 9 -r 3 -o json -ngl 99 -sm none -mg 1 -t 2"
        );
    }

    #[test]
    fn the_reason_is_found_among_other_lines() {
        assert_eq!(
            reason("loading\nx.cpp:1: GGML_ASSERT(a) failed\n#0 main\n"),
            ["x.cpp:1: GGML_ASSERT(a) failed"]
        );
        assert_eq!(reason("1\n2\n\n3\n4\n5\n6\n"), ["2", "3", "4", "5", "6"]);
        assert!(reason("").is_empty());
    }

    #[test]
    fn what_is_no_llama_bench_is_refused() {
        let error = |path: &str| format!("{:#}", Peer::new(Path::new(path)).err().unwrap());
        assert!(error("/no/such/program").starts_with("--against /no/such/program: "));
        let own = std::env::current_exe().unwrap().display().to_string();
        assert!(error(&own).contains("no llama-bench"));
    }
}
