//! `cargo build` of this project on the mount: sources and target directory there, the crates it depends on in cargo's own
//! registry on the plain disk.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::tree::{run, untar};
use super::{Change, Group, Turn, change};
use crate::RunArgs;
use crate::report::Aim;

const SOURCES_TAR: &str = "adit.tar";
/// At most 1.2 times the time of the plain folder.
const OF_HOST: f64 = 1.0 / 1.2;
/// The small build does without optimisation: else it mostly measures the compiler.
const UNOPTIMISED: [&str; 6] = [
    "--config=profile.dev.opt-level=0",
    "--config=profile.dev.package.\"*\".opt-level=0",
    "--config=profile.dev.package.redb.opt-level=0",
    "--config=profile.dev.debug=false",
    "--package",
    "adit-volume",
];

static ROWS: Change = change(
    [
        "cargo build, the command alone",
        "cargo build + syncfs of the mount",
        "cargo build + clean unmount + syncfs of the disk",
    ],
    Aim::Host(OF_HOST),
);
/// One crate of it with what it depends on.
pub const CRATE: Group = Group {
    name: "cargo-build",
    about: |_| {
        "`cargo build --offline --package adit-volume` of the last commit, with all that it depends on, not optimised, into an \
         empty target directory on the mount."
            .into()
    },
    takes: |side| side.keeps(),
    once: false,
    on_request: false,
    prepare,
    script: |turn| script(turn, &UNOPTIMISED),
};

/// All of it, as a developer builds it. Minutes.
pub const WHOLE: Group = Group {
    name: "cargo-build-all",
    about: |_| {
        "`cargo build --offline --workspace` of the last commit, as a developer builds it, into an empty target directory on \
         the mount."
            .into()
    },
    takes: |side| side.keeps(),
    once: true,
    on_request: true,
    prepare,
    script: |turn| script(turn, &["--workspace"]),
};

fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    // Those of the checkout that this benchmark was started in would have another meaning there.
    for (name, _) in env::vars_os() {
        let is_for_this = name.to_str().is_some_and(|name| name.starts_with("CARGO_") && name != "CARGO_HOME");
        if is_for_this {
            cargo.env_remove(name);
        }
    }
    cargo.env_remove("RUSTFLAGS");
    cargo
}

fn prepare(_: &RunArgs, dir: &Path) -> Result<()> {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the checkout")?;
    run(cargo().args(["fetch", "--quiet", "--locked"]).current_dir(checkout))?;
    run(Command::new("git").arg("-C").arg(checkout).args(["archive", "HEAD", "-o"]).arg(dir.join(SOURCES_TAR)))
        .context("the project is built from its repository")
}

fn script(turn: &mut Turn<'_>, what: &[&str]) -> Result<()> {
    let archive = turn.dir.join(SOURCES_TAR);
    let mounted = turn.mount_cold()?;
    let sources = mounted.root().join("adit");
    fs::create_dir(&sources)?;
    untar(&archive, &sources)?;
    turn.unmount(mounted)?;

    let mounted = turn.mount_cold()?;
    let target = mounted.root().join("target");
    turn.change(&ROWS, mounted, |_| {
        let mut build = cargo();
        build.args(["build", "--quiet", "--offline", "--locked", "--target-dir"]).arg(&target).args(what);
        run(build.current_dir(&sources))
    })
}
