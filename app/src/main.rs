//! The program: flags in, results on standard output, messages on standard error.

use std::process::ExitCode;

fn main() -> ExitCode {
    app::main()
}
