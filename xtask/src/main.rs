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
//! | [`golang`], [`venv`], [`kept`] | programs of Go modules, Python environments, what is built once for a state of its sources |
//! | [`oracle`] | the official Cryptomator library behind a command line, built into the cache; the frozen fixtures |
//! | [`deadline`] | the official job-attachment packages, in an environment in the cache |
//! | [`s3`]    | S3 servers for the tests, and for a command of your own |
//! | [`webdav`] | a server on WebDAV for the tests |
//! | [`apt`]   | system packages: installed as root, otherwise the exact command |
//! | [`bench`] | hands its arguments to the benchmark crate |
//! | [`process`], [`workplace`] | child processes with time limits; where things lie |

mod apt;
mod bench;
mod deadline;
mod demo;
mod fuzz;
mod golang;
mod kept;
mod mounted;
mod oracle;
mod process;
mod s3;
mod stage;
mod suites;
mod test;
mod tools;
mod venv;
mod webdav;
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
    /// Run a command with an S3 server on the loopback, whose address and keys are in its environment
    S3(s3::S3Args),
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
        Task::S3(args) => s3::run(&args),
        Task::Bench(args) => bench::run(&args),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
