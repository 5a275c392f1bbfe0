//! The `continuum` command: everything but workflows of its own.

use std::process::ExitCode;

use continuum_worker::Registry;

fn main() -> ExitCode {
    continuum_worker::main(Registry::new())
}
