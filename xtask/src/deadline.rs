//! The official job-attachment packages, oracle of the manifests, and moto beside them: one virtual environment, which [`ensure`]
//! builds into the cache outside the repository, once for each state of `crates/manifest/tests/oracle/requirements.txt`.
//!
//! The tests run `official.py`, which lies beside that file, with the environment's interpreter.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::{kept, venv, workplace};

/// The variable that tells the tests the interpreter that has the official packages.
pub const ENV_PYTHON: &str = "ADIT_DEADLINE_PYTHON";

/// The environment, built.
pub struct Deadline {
    /// The interpreter that has the official packages.
    pub python: PathBuf,
    /// moto's server.
    pub moto: PathBuf,
}

/// Builds the environment if the cache does not have it, and says where its programs are.
///
/// Concurrent calls wait for each other. Fails with the command to run if Python is missing and cannot be installed.
pub fn ensure() -> Result<Deadline> {
    let requirements = workplace::root().join("crates/manifest/tests/oracle/requirements.txt");
    let content = fs::read(&requirements).with_context(|| format!("cannot read {}", requirements.display()))?;
    let environment = |home: &Path| home.join("venv");
    // A module in C, which a Python of another version does not find: the system's may have moved on.
    let is_whole = |home: &Path| home.join("whole").is_file() && venv::has(&environment(home), "xxhash");
    let home = kept::ensure("deadline", &[content], is_whole, |home| {
        venv::make(&environment(home), &requirements)?;
        // Written last: where it is missing, the build was interrupted.
        fs::write(home.join("whole"), "").context("cannot write to the cache")
    })?;
    let environment = environment(&home);
    Ok(Deadline { python: venv::python(&environment), moto: environment.join("bin/moto_server") })
}
