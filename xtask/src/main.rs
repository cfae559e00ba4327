//! Project tasks: `cargo xtask demo`, `cargo xtask test`, `cargo xtask bench`.
//!
//! This file only says what can be asked for; each module does one thing:
//!
//! | module    | what it does |
//! |-----------|--------------|
//! | [`demo`]  | the tour for a newcomer: a vault made, mounted, filled, read back, searched for plaintext |
//! | [`test`]  | the list of stages that CI runs, and what each of them starts |
//! | [`stage`] | runs stages in order, times them, prints the table and the closing line |
//! | [`suites`]| pjdfstest, fsx and fio against a mounted vault |
//! | [`fuzz`]  | the fuzz targets, where a nightly toolchain is at hand |
//! | [`mounted`] | a fresh vault mounted by the built binary, unmounted whatever happens |
//! | [`tools`] | version-pinned cargo tools in the cache directory |
//! | [`oracle`] | the official Cryptomator library behind a command line, built into the cache; the frozen fixtures |
//! | [`apt`]   | system packages: installed as root, otherwise the exact command |
//! | [`bench`] | hands its arguments to the benchmark crate |
//! | [`process`], [`workplace`] | child processes with time limits; where things lie |

mod apt;
mod bench;
mod demo;
mod fuzz;
mod mounted;
mod oracle;
mod process;
mod stage;
mod suites;
mod test;
mod tools;
mod workplace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Project tasks", version)]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build adit and show it at work: a vault created, mounted, filled, read back, searched for plaintext
    Demo,
    /// Run everything that CI runs, and print the time of each stage
    Test(test::TestArgs),
    /// Make those of the frozen vaults, volumes and indexes under fixtures/ that are missing, the vaults with the official library
    Fixtures,
    /// Run a benchmark of the bench crate in release mode, e.g. `cargo xtask bench vault`
    Bench(bench::BenchArgs),
}

fn main() -> ExitCode {
    let outcome = match Args::parse().task {
        Task::Demo => demo::run().map(|()| ExitCode::SUCCESS),
        Task::Test(args) => test::run(&args),
        Task::Fixtures => oracle::ensure_oracle()
            .and_then(|paths| oracle::make_fixtures(&paths))
            .and_then(|()| test::make_frozen())
            .map(|()| ExitCode::SUCCESS),
        Task::Bench(args) => bench::run(&args),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
