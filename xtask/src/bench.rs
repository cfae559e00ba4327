//! `cargo xtask bench …`: hands its arguments to the benchmark crate, in release mode.

use std::process::ExitCode;

use adit_servers::Kind;
use anyhow::{Context, Result};
use clap::Args;

use crate::{golang, workplace};

/// What `cargo xtask bench` takes: whatever the benchmark crate takes.
#[derive(Args)]
pub struct BenchArgs {
    /// Arguments of the benchmark crate, e.g. `vault`; `-- --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Runs the benchmark crate to its end; it may take hours, so there is no time limit.
pub fn run(args: &BenchArgs) -> Result<ExitCode> {
    let mut bench = workplace::cargo();
    bench.args(["run", "--release", "--locked", "--package", "adit-bench", "--"]).args(&args.rest);
    if args.rest.first().is_some_and(|what| what == "manifest") {
        bench.env(Kind::Versitygw.variable(), golang::VERSITYGW.ensure()?);
        bench.env(adit_servers::ENV_KEEP_ALIVE, "true");
    }
    let status = bench.status().context("cannot start cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
