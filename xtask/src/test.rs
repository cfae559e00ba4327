//! `cargo xtask test`: the stages that CI runs, in the order in which they find faults cheapest.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use adit_servers::Kind;
use anyhow::{Context, Result, bail};
use clap::Args;

use crate::stage::{self, Outcome, Run, Stage};
use crate::{apt, deadline, fuzz, oracle, process, s3, suites, tools, webdav, workplace};

/// The variable that tests multiply their seeds and counts by.
const SCALE_VARIABLE: &str = "ADIT_TEST_SCALE";
/// The variable that the library of property tests takes its seed from.
const PROPTEST_SEED_VARIABLE: &str = "PROPTEST_RNG_SEED";
/// The scale of `--long`, unless the variable says otherwise.
const LONG_SCALE: u32 = 10;
/// The limit of a cargo call that builds and tests, at scale 1.
const CARGO_LIMIT: Duration = Duration::from_secs(1800);

/// What `cargo xtask test` takes.
#[derive(Args)]
pub struct TestArgs {
    /// Run the suites with their full counts (hours rather than minutes)
    #[arg(long)]
    long: bool,
    /// Run these stages only (repeat the option, or separate by commas)
    #[arg(long, value_name = "STAGE", value_delimiter = ',')]
    only: Vec<String>,
    /// Go on after a stage failed
    #[arg(long)]
    keep_going: bool,
    /// List the stages and leave
    #[arg(long)]
    list: bool,
}

const STAGES: &[Stage] = &[
    Stage { name: "fmt", about: "formatting", body: fmt },
    Stage { name: "clippy", about: "clippy on every target, warnings denied", body: clippy },
    Stage {
        name: "deny",
        about: "licences, bans and sources of all dependencies, and that lock files are up to date",
        body: deny,
    },
    Stage { name: "unit", about: "unit, property, model and crash tests, examples in the docs", body: unit },
    Stage {
        name: "gpu",
        about: "the index on a device, beside the processor's answers: Mesa's, which is a program, where there is no other",
        body: gpu,
    },
    Stage { name: "corpus", about: "fuzz corpora replayed on stable", body: corpus },
    Stage {
        name: "interop",
        about: "both directions with the official libraries of vaults and of manifests, on versitygw and moto",
        body: interop,
    },
    Stage { name: "mounted", about: "adit's own tests through a mount", body: mounted },
    Stage {
        name: "pjdfstest",
        about: "POSIX semantics of a mounted vault, volume (also with a data folder), overlay and writable manifest",
        body: suites::pjdfstest,
    },
    Stage {
        name: "fsx",
        about: "random file operations with mmap on a mounted vault, volume (also with a data folder), overlay and manifest",
        body: suites::fsx,
    },
    Stage { name: "fio", about: "verified random writes on a mounted vault and volume", body: suites::fio },
    Stage { name: "fuzz", about: "the fuzz targets, three minutes together, with a nightly", body: fuzz::run },
];

/// Runs the chosen stages.
pub fn run(args: &TestArgs) -> Result<ExitCode> {
    if args.list {
        for stage in STAGES {
            println!("{:<12} {}", stage.name, stage.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(unknown) = args.only.iter().find(|name| STAGES.iter().all(|stage| stage.name != **name)) {
        bail!("there is no stage {unknown}; `cargo xtask test --list` names them");
    }
    let chosen: Vec<&Stage> =
        STAGES.iter().filter(|stage| args.only.is_empty() || args.only.iter().any(|name| name == stage.name)).collect();
    let run = Run { long: args.long, scale: scale(args.long)? };
    Ok(stage::run_all(&chosen, &run, args.keep_going))
}

fn scale(long: bool) -> Result<u32> {
    match env::var(SCALE_VARIABLE) {
        Ok(text) => text
            .parse()
            .ok()
            .filter(|scale| *scale > 0)
            .with_context(|| format!("{SCALE_VARIABLE} is to be a number from 1 up, not {text:?}")),
        Err(_) => Ok(if long { LONG_SCALE } else { 1 }),
    }
}

fn cargo_step(run: &Run, arguments: &[&str]) -> Result<()> {
    cargo_step_with(run, arguments, &[])
}

fn cargo_step_with(run: &Run, arguments: &[&str], variables: &[(&str, &OsStr)]) -> Result<()> {
    let mut cargo = workplace::cargo();
    cargo.args(arguments).env(SCALE_VARIABLE, run.scale.to_string()).envs(variables.iter().copied());
    if workplace::in_ci() && env::var_os(PROPTEST_SEED_VARIABLE).is_none() {
        // As with the seeds of the test kit: there a failure has to be one of the change at hand.
        cargo.env(PROPTEST_SEED_VARIABLE, "1");
    }
    process::run(&mut cargo, CARGO_LIMIT * run.scale)
}

fn fmt(run: &Run) -> Result<Outcome> {
    cargo_step(run, &["fmt", "--all", "--check"])?;
    cargo_step(run, &["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"])?;
    Ok(Outcome::Passed)
}

fn clippy(run: &Run) -> Result<Outcome> {
    cargo_step(run, &["clippy", "--quiet", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    // The program without devices is another one in places.
    let plain = ["clippy", "--quiet", "--locked", "-p", "adit", "--no-default-features", "--", "-D", "warnings"];
    cargo_step(run, &plain)?;
    // The fuzz targets run with a nightly, and are checked with any toolchain. Their bodies are in the vault's crate.
    cargo_step(
        run,
        &["clippy", "--quiet", "--locked", "-p", "adit-vault", "--features", "fuzzing", "--", "-D", "warnings"],
    )?;
    let target = workplace::target_dir()?;
    let target = target.to_str().context("a target directory with a name in UTF-8")?;
    let mut fuzz = vec!["clippy", "--quiet", "--locked", "--manifest-path", "fuzz/Cargo.toml", "--target-dir", target];
    fuzz.extend(["--bins", "--", "-D", "warnings"]);
    // Nothing is linked, so the fuzzer's library, for which a C++ compiler is needed, is not built.
    cargo_step_with(run, &fuzz, &[("CUSTOM_LIBFUZZER_PATH", OsStr::new("nowhere/libfuzzer.a"))])?;
    Ok(Outcome::Passed)
}

fn deny(_: &Run) -> Result<Outcome> {
    let program = tools::CARGO_DENY.ensure()?;
    let mut checks = vec!["licenses", "bans", "sources"];
    let mut fetch = Command::new(&program);
    fetch.args(["--log-level", "off", "fetch", "db"]).current_dir(workplace::root());
    // The database is a git repository on a host that a CI machine may not reach.
    if process::status(&mut fetch, Duration::from_secs(60)).is_ok_and(|status| status.success()) {
        checks.push("advisories");
    } else {
        println!("the advisory database cannot be fetched here: licences, bans and sources only");
    }
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        let mut check = Command::new(&program);
        check.args(["--locked", "--all-features", "--manifest-path", manifest, "check"]);
        check.args(&checks).current_dir(workplace::root());
        process::run(&mut check, Duration::from_secs(300))?;
    }
    // The rivals' programs are built by a benchmark only, with `--locked`: too late to learn that a lock file is behind.
    for manifest in ["bench/rivals/agentfs/Cargo.toml", "bench/rivals/kv/Cargo.toml"] {
        let mut read = workplace::cargo();
        read.args(["metadata", "--quiet", "--locked", "--format-version", "1", "--manifest-path", manifest]);
        read.current_dir(workplace::root()).stdout(Stdio::null());
        process::run(&mut read, Duration::from_secs(300))?;
    }
    Ok(Outcome::Passed)
}

/// All tests but those that a later stage runs, and the examples in the documentation.
fn unit(run: &Run) -> Result<Outcome> {
    ensure_fuse()?;
    let elsewhere = |name: &str| ["corpus", "gpu", "interop", "mounted"].iter().any(|stage| name.starts_with(stage));
    let targets: Vec<String> = test_targets()?.into_iter().filter(|name| !elsewhere(name)).collect();
    let mut arguments = vec!["test", "--locked", "--workspace", "--lib", "--bins"];
    for target in &targets {
        arguments.extend(["--test", target]);
    }
    // Apart, with a limit of its own: on a machine that has built nothing yet this takes as long as the tests.
    cargo_step(run, &[&arguments[..], &["--no-run"]].concat())?;
    // One red target does not hide another one.
    cargo_step(run, &[&arguments[..], &["--no-fail-fast"]].concat())?;
    cargo_step(run, &["test", "--quiet", "--locked", "--workspace", "--doc"])?;
    Ok(Outcome::Passed)
}

/// Whoever tests here has a device: it is no longer a reason to skip.
fn gpu(run: &Run) -> Result<Outcome> {
    apt::ensure(apt::VULKAN)?;
    test_targets_named(run, "gpu", &[], &[("CI", OsStr::new("1"))])
}

fn corpus(run: &Run) -> Result<Outcome> {
    test_targets_named(run, "corpus", &["--features", "adit-vault/fuzzing"], &[])
}

fn interop(run: &Run) -> Result<Outcome> {
    let started = Instant::now();
    let ready = |what: &str| println!("{what} ready after {:.1} s", started.elapsed().as_secs_f64());
    let oracle = oracle::ensure_oracle()?;
    ready("the official library of vaults is");
    let deadline = deadline::ensure()?;
    ready("the official packages of manifests are");
    if workplace::is_root() {
        apt::ensure([&apt::SUDO])?;
    }
    ensure_fuse()?;
    let servers = s3::Servers::start()?;
    ready("the S3 servers are");
    let webdav = webdav::Scratch::start()?;
    ready("the WebDAV server is");

    let variables = servers.variables();
    let mut variables: Vec<(&str, &OsStr)> = variables.iter().map(|(name, value)| (*name, value.as_os_str())).collect();
    variables.extend(oracle.env());
    let (name, urls) = webdav.variable();
    variables.push((name, urls.as_os_str()));
    variables.push((deadline::ENV_PYTHON, deadline.python.as_os_str()));
    test_targets_named(run, "interop", &[], &variables)?;
    // Those that start a server of their own once more: now that is the other one.
    variables.push((adit_servers::ENV_KIND, OsStr::new(Kind::Moto.name())));
    let both = ["interop_s3", "interop_download", "interop_s3_mount", "interop_s3_commit", "interop_worker"];
    let targets = both.iter().flat_map(|target| ["--test", target]);
    let arguments: Vec<&str> =
        ["test", "--locked", "--workspace", "--no-fail-fast"].into_iter().chain(targets).collect();
    cargo_step_with(run, &arguments, &variables)?;
    Ok(Outcome::Passed)
}

/// What mounts for users who are not root, where anything can be mounted: tests of other stages mount as well, and refuse to be left out
/// under CI.
fn ensure_fuse() -> Result<()> {
    if workplace::mount_obstacle().is_none() { apt::ensure([&apt::FUSE]) } else { Ok(()) }
}

fn mounted(run: &Run) -> Result<Outcome> {
    if let Some(why) = workplace::mount_obstacle() {
        return Ok(Outcome::NotRun(why.to_owned()));
    }
    ensure_fuse()?;
    // Part of the load of the kill loop.
    let fsx = tools::FSX.ensure()?;
    test_targets_named(run, "mounted", &[], &[("ADIT_FSX", fsx.as_os_str())])
}

/// Makes the frozen volumes and indexes that are missing.
pub fn make_frozen() -> Result<()> {
    // An encrypted index is made of a segment, so it comes after that.
    let makers = [("adit-volume", "frozen", ""), ("adit-index", "frozen", ""), ("adit-index", "sealed", "sealed")];
    for (package, test, features) in makers {
        let mut cargo = workplace::cargo();
        cargo.args(["test", "--locked", "-p", package, "--features", features, "--test", test, "--"]);
        cargo.args(["--ignored", "make_those_that_are_missing"]);
        process::run(&mut cargo, CARGO_LIMIT)?;
    }
    Ok(())
}

/// Runs the integration tests whose file name starts with `prefix`; it is an error if there is none.
///
/// The whole workspace is named, so that features resolve as they did for the unit tests and nothing is built twice.
fn test_targets_named(run: &Run, prefix: &str, more: &[&str], variables: &[(&str, &OsStr)]) -> Result<Outcome> {
    let targets: Vec<String> = test_targets()?.into_iter().filter(|name| name.starts_with(prefix)).collect();
    if targets.is_empty() {
        bail!("no crate has a test named tests/{prefix}*.rs");
    }
    let mut arguments = vec!["test", "--locked", "--workspace", "--no-fail-fast"];
    arguments.extend(more);
    for target in &targets {
        arguments.extend(["--test", target]);
    }
    cargo_step_with(run, &arguments, variables)?;
    Ok(Outcome::Passed)
}

/// The names of all integration tests in the workspace: `tests/NAME.rs` and `tests/NAME/main.rs`.
fn test_targets() -> Result<BTreeSet<String>> {
    let root = workplace::root();
    let mut crates = vec![root.join("xtask"), root.join("bench")];
    for entry in fs::read_dir(root.join("crates")).context("cannot list crates/")? {
        crates.push(entry?.path());
    }
    let mut names = BTreeSet::new();
    for dir in crates {
        let tests = match fs::read_dir(dir.join("tests")) {
            Ok(tests) => tests,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => {
                return Err(error).with_context(|| format!("cannot list the tests of {}", dir.display()));
            }
        };
        for entry in tests {
            let path = entry?.path();
            let is_target =
                path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").is_file();
            if let (true, Some(stem)) = (is_target, path.file_stem()) {
                names.insert(stem.to_string_lossy().into_owned());
            }
        }
    }
    Ok(names)
}
