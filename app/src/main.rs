//! The program: flags in, results on standard output, messages on standard error.

mod args;
mod bench;
mod check;
mod device;
mod dump;
mod inspect;
mod model;
mod synth;
mod template;
mod tokenize;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = args::Args::parse();
    let result = match &args.command {
        args::Command::Bench(b) => bench::run(b),
        args::Command::Check(c) => check::run(c),
        args::Command::Dump(d) => dump::run(d),
        args::Command::Inspect(i) => inspect::run(i),
        args::Command::Synth(s) => synth::run(s),
        args::Command::Template(t) => template::run(t),
        args::Command::Tokenize(t) => tokenize::run(t),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("glimmer: {e:#}");
            ExitCode::FAILURE
        }
    }
}
