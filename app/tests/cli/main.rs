//! The program as its users meet it: arguments in, exit codes, standard output and standard error out.

mod bench;
mod hub;
mod profile;
mod pull;
mod run;
mod tune;
mod usage;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory of its own for each test, removed afterwards; the program's cache is in it.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Place(dir)
    }

    fn cache(&self) -> PathBuf {
        self.0.join("glimmer")
    }

    fn glimmer(&self, args: &[&str]) -> Ran {
        self.glimmer_with(args, "")
    }

    fn glimmer_with(&self, args: &[&str], input: &str) -> Ran {
        let mut child = Command::new(env!("CARGO_BIN_EXE_glimmer"))
            .args(args)
            .env("XDG_CACHE_HOME", &self.0)
            .env_remove("RUST_BACKTRACE")
            .current_dir(&self.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A program that does not read its input may have ended before it was written.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        Ran::new(child.wait_with_output().unwrap())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ran {
    fn new(output: Output) -> Ran {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        Ran { code: output.status.code(), out, err }
    }

    fn ok(self) -> Ran {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    /// Exit code 1, nothing on standard output, and a message with all of these in it.
    fn fails(self, with: &[&str]) -> Ran {
        self.ends(1, with)
    }

    fn ends(self, code: i32, with: &[&str]) -> Ran {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert_eq!(self.out, "", "{self:#?}");
        for part in with {
            assert!(self.err.contains(part), "no `{part}` in {self:#?}");
        }
        assert!(!self.err.contains("panicked"), "{self:#?}");
        self
    }
}
