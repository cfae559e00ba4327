//! Cargo tools that the tests use: pinned by version, built once into the cache outside the repository.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::{process, workplace};

/// How long one tool may take to build.
const BUILD_LIMIT: Duration = Duration::from_secs(1200);

/// A program from crates.io, at one version.
pub struct Tool {
    /// The crate, which is also the program's name.
    pub name: &'static str,
    /// The exact version.
    pub version: &'static str,
}

/// POSIX semantics, 398 tests.
pub const PJDFSTEST: Tool = Tool { name: "pjdfstest", version: "0.2.2" };
/// Random file operations checked against a model of one file.
pub const FSX: Tool = Tool { name: "fsx", version: "0.3.2" };
/// Licences, bans and sources of every dependency.
pub const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2" };
/// The driver of the fuzz targets.
pub const CARGO_FUZZ: Tool = Tool { name: "cargo-fuzz", version: "0.13.2" };

impl Tool {
    /// The path of the program, which is built first if it is not in the cache.
    ///
    /// Built without optimisation and debug information: these tools mostly wait for the kernel, and the builds are a
    /// large part of a first `cargo xtask test`. fsx at level 1 saves 13 s in a run and costs 52 s to build.
    pub fn ensure(&self) -> Result<PathBuf> {
        let home = workplace::cache_dir()?.join("tools").join(format!("{}-{}", self.name, self.version));
        let program = home.join("bin").join(self.name);
        if program.is_file() {
            return Ok(program);
        }
        let started = Instant::now();
        let mut install = workplace::cargo();
        install
            .args(["install", "--quiet", "--debug", "--locked", "--root"])
            .arg(&home)
            .arg(format!("--version={}", self.version))
            .arg(self.name)
            // Not in the checkout: its cargo configuration is not meant for other people's programs.
            .current_dir("/")
            .env("CARGO_PROFILE_DEV_DEBUG", "false")
            .env("CARGO_INCREMENTAL", "0")
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("RUSTFLAGS");
        process::run(&mut install, BUILD_LIMIT)
            .with_context(|| format!("cannot install {} {}", self.name, self.version))?;
        eprintln!(
            "built {} {} in {:.0} s, kept in {}",
            self.name,
            self.version,
            started.elapsed().as_secs_f64(),
            home.display()
        );
        Ok(program)
    }
}
