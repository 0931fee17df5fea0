//! The program as a library: what `main` calls, and what tests and fuzz targets look at from outside.

mod args;
mod bench;
mod check;
mod device;
mod dump;
mod fetch;
mod inspect;
mod logits;
mod model;
mod names;
mod perplexity;
mod profile;
mod pull;
mod repl;
mod run;
pub mod serve;
mod synth;
mod template;
mod tokenize;
mod tune;

use clap::{CommandFactory, Parser};
use std::process::ExitCode;

/// Flags in, an exit code out.
pub fn main() -> ExitCode {
    runtime::machine::end_on_broken_pipe();
    let args = args::Args::parse();
    let result = match &args.command {
        args::Command::Bench(b) => bench::run(b),
        args::Command::Check(c) => check::run(c),
        args::Command::Dump(d) => dump::run(d),
        args::Command::Inspect(i) => inspect::run(i),
        args::Command::Logits(l) => logits::run(l),
        args::Command::Perplexity(p) => perplexity::run(p),
        args::Command::Profile(p) => profile::run(p),
        args::Command::Synth(s) => synth::run(s),
        args::Command::Run(r) => run::run(r),
        args::Command::Serve(s) => serve::run(s),
        args::Command::Pull(p) => pull::run(p),
        args::Command::Models => pull::list(),
        args::Command::Completions { shell } => {
            clap_complete::generate(*shell, &mut args::Args::command(), "glimmer", &mut std::io::stdout());
            Ok(())
        }
        args::Command::Template(t) => template::run(t),
        args::Command::Tokenize(t) => tokenize::run(t),
        args::Command::Tune(t) => tune::run(t),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("glimmer: {e:#}");
            ExitCode::FAILURE
        }
    }
}
