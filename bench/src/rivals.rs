//! Getting the rivals: from apt, through the Go proxy, from Maven Central. Versions are pinned; what is built is kept in the
//! cache outside the repository, `$ADIT_CACHE_DIR`, else `$XDG_CACHE_HOME/adit-dev`, else `~/.cache/adit-dev`.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

const GOCRYPTFS_MODULE: &str = "github.com/rfjakob/gocryptfs/v2@v2.6.1";
const GOCRYPTFS_VERSION: &str = "v2.6.1";
const JUICEFS_MODULE: &str = "github.com/juicedata/juicefs@v1.3.1";
/// Object stores, metadata stores and gateways that are not measured: without them a build takes a fraction of the time.
const JUICEFS_TAGS: &str = "nogateway,nowebdav,nocos,nobos,nohdfs,noibmcos,noobs,nooss,noqingstor,nosftp,noswift,noazure,nogs,\
                            noufile,nob2,nonfs,nodragonfly,nocifs,nomysql,nopg,notikv,noetcd,noredis";
/// The oldest Java that the official stack runs on.
const JAVA_MIN: u32 = 23;
const COPY_DEPENDENCIES: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";

/// The official stack, ready to start.
#[derive(Clone, Debug)]
pub struct Official {
    /// The `java` to run it with.
    pub java: PathBuf,
    /// Its class path.
    pub class_path: OsString,
}

/// The cache outside the repository.
fn cache_dir() -> Result<PathBuf> {
    let from = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = from("ADIT_CACHE_DIR") {
        return Ok(dir);
    }
    if let Some(dir) = from("XDG_CACHE_HOME") {
        return Ok(dir.join("adit-dev"));
    }
    let home = from("HOME").context("neither ADIT_CACHE_DIR, XDG_CACHE_HOME nor HOME is set")?;
    Ok(home.join(".cache/adit-dev"))
}

/// The first program of that name on the PATH.
fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).map(|dir| dir.join(name)).find(|program| program.is_file())
}

/// Runs to the end; what it says is part of the error.
fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} failed ({}): {}", output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// gocryptfs of the distribution, installed if it is missing.
pub fn gocryptfs_of_apt() -> Result<PathBuf> {
    if on_path("gocryptfs").is_none() {
        apt("gocryptfs")?;
    }
    fusermount()?;
    on_path("gocryptfs").context("apt-get brought no gocryptfs")
}

/// SQLite's shell, installed if it is missing.
pub fn sqlite() -> Result<()> {
    if on_path("sqlite3").is_some() { Ok(()) } else { apt("sqlite3") }
}

/// rclone of the distribution, installed if it is missing.
pub fn rclone() -> Result<PathBuf> {
    of_apt("rclone")
}

/// s3fs of the distribution, installed if it is missing.
pub fn s3fs() -> Result<PathBuf> {
    of_apt("s3fs")
}

/// plocate, fd and ripgrep of the distribution, installed if they are missing.
pub fn path_searchers() -> Result<()> {
    for (program, package) in [("plocate", "plocate"), ("fdfind", "fd-find"), ("rg", "ripgrep")] {
        if on_path(program).is_none() {
            apt(package)?;
        }
    }
    Ok(())
}

/// A program of the package that has its name, installed if it is missing.
fn of_apt(name: &str) -> Result<PathBuf> {
    if on_path(name).is_none() {
        apt(name)?;
    }
    // Which either would like to unmount with.
    fusermount()?;
    on_path(name).with_context(|| format!("apt-get brought no {name}"))
}

/// curl, which every distribution has.
pub fn curl() -> Result<PathBuf> {
    on_path("curl").context("curl is not installed")
}

/// Installs a package of the distribution.
fn apt(package: &str) -> Result<()> {
    let mut install = Command::new("apt-get");
    install.env("DEBIAN_FRONTEND", "noninteractive").args(["install", "-y", "-qq", "--no-install-recommends", package]);
    run(&mut install).map(drop).with_context(|| format!("it is missing; run: sudo apt-get install -y {package}"))
}

/// What every gocryptfs mounts with.
fn fusermount() -> Result<()> {
    if on_path("fusermount").is_some() { Ok(()) } else { apt("fuse3") }
}

/// The first line that a program prints of its version, or its path.
pub fn version(program: &Path) -> String {
    let text = run(Command::new(program).arg("--version")).unwrap_or_default();
    text.lines().next().map_or_else(|| program.display().to_string(), str::to_owned)
}

/// What a gocryptfs says of its version.
pub fn gocryptfs_version(program: &Path) -> Result<String> {
    let text = run(Command::new(program).arg("-version"))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// The current gocryptfs, built from the Go proxy's module; with OpenSSL if its headers are there, as its authors do.
pub fn gocryptfs_of_go() -> Result<PathBuf> {
    fusermount()?;
    let has_openssl = Path::new("/usr/include/openssl/evp.h").exists() && on_path("pkg-config").is_some();
    let tags = if has_openssl { "" } else { "without_openssl" };
    let flags = format!("-s -w -X main.GitVersion={GOCRYPTFS_VERSION}");
    of_go(GOCRYPTFS_MODULE, "tools/gocryptfs-2.6.1/bin/gocryptfs", tags, &flags)
}

/// JuiceFS with SQLite and Badger as metadata stores, built from the Go proxy's module. It takes five minutes of two cores.
pub fn juicefs() -> Result<PathBuf> {
    fusermount()?;
    of_go(JUICEFS_MODULE, "tools/juicefs-1.3.1/bin/juicefs", JUICEFS_TAGS, "-s -w")
}

/// Builds the program of a Go module, unless the cache has it under `place`.
///
/// `go install module@version` would ask for the list of all versions, which a proxy need not serve; and it refuses modules
/// that replace others, as JuiceFS does.
fn of_go(module: &str, place: &str, tags: &str, linker_flags: &str) -> Result<PathBuf> {
    let program = cache_dir()?.join(place);
    if program.is_file() {
        return Ok(program);
    }
    let home = program.parent().context("a program lies in a folder")?;
    fs::create_dir_all(home)?;
    let download = run(Command::new("go").args(["mod", "download", "-json", module]).current_dir(home))
        .with_context(|| format!("cannot fetch {module}"))?;
    let module: serde_json::Value = serde_json::from_str(&download).context("go said no JSON")?;
    let sources = module["Dir"].as_str().context("go did not say where the module lies")?;
    eprintln!("building {}", program.display());
    let mut build = Command::new("go");
    build.args(["build", "-mod=readonly", "-ldflags", linker_flags, "-tags", tags]).current_dir(sources);
    run(build.arg("-o").arg(&program).arg("."))?;
    Ok(program)
}

/// AgentFS behind the program of ours that calls its library: its own command, which mounts, is in no registry. Built from
/// crates.io, which takes ten minutes of two cores.
pub fn agentfs() -> Result<PathBuf> {
    of_cargo("agentfs")
}

/// The program that runs the volume's tree over several key-value stores.
pub fn kv() -> Result<PathBuf> {
    of_cargo("kv")
}

/// Builds the program under `bench/rivals` into the cache.
fn of_cargo(name: &str) -> Result<PathBuf> {
    let target = cache_dir()?.join("tools").join(format!("{name}-bench"));
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("rivals").join(name);
    let mut build = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    build.args(["build", "--quiet", "--locked", "--target-dir"]).arg(&target).current_dir(sources);
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    if profile == "release" {
        build.arg("--release");
    }
    // Cargo knows better than a file's presence whether the program is that of these sources.
    run(&mut build).context("cannot build it")?;
    Ok(target.join(profile).join(format!("{name}-bench")))
}

/// The official library with its FUSE adapter, fetched by Maven and compiled if the cache does not have it.
pub fn official() -> Result<Official> {
    let java_home = java_home().with_context(|| format!("no JDK {JAVA_MIN} or later is installed"))?;
    let library = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib64"]
        .iter()
        .any(|dir| Path::new(dir).join("libfuse3.so").exists());
    if !library {
        apt("libfuse3-dev")?;
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("official");
    let home = cache_dir()?.join("tools/official-mount-5.1.0");
    let (lib, classes) = (home.join("lib"), home.join("classes"));
    let class_path = env::join_paths([classes.as_path(), &lib.join("*")]).context("the cache's path holds a colon")?;
    if !classes.join("MountVault.class").is_file() {
        fs::create_dir_all(&lib)?;
        // Maven writes beside the pom, and that is not to be the checkout.
        fs::copy(sources.join("pom.xml"), home.join("pom.xml"))?;
        run(Command::new("mvn")
            .args(["--quiet", "--batch-mode", COPY_DEPENDENCIES])
            .arg(format!("-DoutputDirectory={}", lib.display()))
            .current_dir(&home)
            .env("JAVA_HOME", &java_home))?;
        run(Command::new(java_home.join("bin/javac"))
            .arg("-cp")
            .arg(lib.join("*"))
            .arg("-d")
            .arg(&classes)
            .arg(sources.join("MountVault.java")))?;
    }
    Ok(Official { java: java_home.join("bin/java"), class_path })
}

/// The first JDK that is new enough: `JAVA_HOME`, else under `/usr/lib/jvm`.
fn java_home() -> Option<PathBuf> {
    let installed = fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten();
    let mut homes: Vec<PathBuf> = installed.map(|entry| entry.path()).collect();
    homes.sort();
    if let Some(home) = env::var_os("JAVA_HOME") {
        homes.insert(0, home.into());
    }
    homes.into_iter().find(|home| home.join("bin/javac").is_file() && java_version(home).is_some_and(|v| v >= JAVA_MIN))
}

/// The feature release of the Java at `home`, from its `release` file.
fn java_version(home: &Path) -> Option<u32> {
    let release = fs::read_to_string(home.join("release")).ok()?;
    let line = release.lines().find_map(|line| line.strip_prefix("JAVA_VERSION="))?;
    line.trim_matches('"').split('.').next()?.parse().ok()
}

/// adit itself: built in the profile of this program, whose neighbour it then is.
pub fn adit() -> Result<PathBuf> {
    let exe = env::current_exe().context("cannot find this program's own path")?;
    if let Some(cargo) = env::var_os("CARGO") {
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--locked", "--package", "adit"]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        run(build.current_dir(env!("CARGO_MANIFEST_DIR"))).context("cannot build adit")?;
    }
    let program = exe.with_file_name("adit");
    if !program.is_file() {
        bail!("{} is missing: run through cargo, or name it with --adit", program.display());
    }
    Ok(program)
}
