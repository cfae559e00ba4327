//! Virtual environments of Python with exactly the packages that a file names.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::apt::{self, Need, Proof};
use crate::process;

/// How long making an environment, or fetching its packages, may take.
const FETCH_LIMIT: Duration = Duration::from_secs(600);

/// How long an import may take.
const IMPORT_LIMIT: Duration = Duration::from_secs(60);

const PYTHON: Need = Need { package: "python3", proof: Proof::Program("python3") };

/// Makes an environment at `venv` and installs `requirements` into it.
///
/// Fails with the command to run if Python is missing and cannot be installed.
pub fn make(venv: &Path, requirements: &Path) -> Result<()> {
    apt::ensure(&[PYTHON])?;
    let mut make = Command::new("python3");
    make.args(["-m", "venv"]).arg(venv);
    if process::run(&mut make, FETCH_LIMIT).is_err() {
        // Debian's python3 has the module without what it needs.
        let ensurepip = Need {
            package: "python3-venv",
            // Only asked for when it is known to be missing.
            proof: Proof::File(""),
        };
        apt::ensure(&[ensurepip])?;
        process::run(make.arg("--clear"), FETCH_LIMIT)?;
    }
    install(venv, requirements)
}

/// Installs what `requirements` names and nothing else: it lists what its packages need as well, with exact versions and the hashes of
/// their files. Nothing is built, and no code of a package runs meanwhile.
pub fn install(venv: &Path, requirements: &Path) -> Result<()> {
    process::run(
        Command::new(python(venv))
            .args(["-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:", "-r"])
            .arg(requirements)
            .env("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
        FETCH_LIMIT,
    )
    .with_context(|| format!("cannot install {}", requirements.display()))
}

/// The interpreter of the environment at `venv`.
pub fn python(venv: &Path) -> PathBuf {
    venv.join("bin/python")
}

/// Whether the environment at `venv` can import a module.
pub fn has(venv: &Path, module: &str) -> bool {
    let mut import = Command::new(python(venv));
    import.args(["-c", &format!("import {module}")]).stderr(Stdio::null());
    process::status(&mut import, IMPORT_LIMIT).is_ok_and(|status| status.success())
}
