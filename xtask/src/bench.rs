//! `cargo xtask bench …`: hands its arguments to the benchmark crate, in release mode.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::workplace;

/// What `cargo xtask bench` takes: whatever the benchmark crate takes.
#[derive(Args)]
pub struct BenchArgs {
    /// Arguments of the benchmark crate, e.g. `vault`; `-- --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Runs the benchmark crate to its end; it may take hours, so there is no time limit.
pub fn run(args: &BenchArgs) -> Result<ExitCode> {
    let status = workplace::cargo()
        .args(["run", "--release", "--locked", "--package", "adit-bench", "--"])
        .args(&args.rest)
        .status()
        .context("cannot start cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
