//! Where things lie: the checkout, cargo's target directory, the cache outside the repository.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// The root of the checkout.
pub fn root() -> &'static Path {
    // The manifest lies in `<root>/xtask`, so a parent always exists.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Cargo's target directory: that of the running xtask, so `CARGO_TARGET_DIR` and its like are followed.
pub fn target_dir() -> Result<PathBuf> {
    let exe = env::current_exe().context("cannot find the path of xtask itself")?;
    exe.parent().and_then(Path::parent).map(Path::to_path_buf).context("xtask does not lie in a target directory")
}

/// The folder that holds everything xtask fetches or builds for the tests, outside the repository:
/// `$ADIT_CACHE_DIR`, else `$XDG_CACHE_HOME/adit-dev`, else `~/.cache/adit-dev`.
pub fn cache_dir() -> Result<PathBuf> {
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

/// The cargo that runs this xtask, to be started in the root of the checkout.
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// True under `CI=true`: a suite that cannot run is then a failure.
pub fn in_ci() -> bool {
    env::var_os("CI").is_some_and(|value| value == "true" || value == "1")
}

/// True when this process runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Why no filesystem can be mounted here, if so.
pub fn mount_obstacle() -> Option<&'static str> {
    if !Path::new("/dev/fuse").exists() {
        Some("there is no /dev/fuse (modprobe fuse; in a container: --device /dev/fuse --cap-add SYS_ADMIN)")
    } else if !is_root() {
        Some("the mounted suites need root (they switch users)")
    } else {
        None
    }
}
