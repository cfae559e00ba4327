//! Where journals and the log are kept.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};

/// The state directory: `given`, else `$XDG_STATE_HOME/adit`, else `~/.local/state/adit`. Absolute.
///
/// # Errors
/// `Failure` if nothing says where it is.
pub fn locate(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(given) = given {
        return std::path::absolute(given).map_err(|e| Failure::io(given.display(), &e));
    }
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    // The home of the account where the environment names none, as at boot.
    std::env::var_os("XDG_STATE_HOME")
        .and_then(|base| absolute(base.into()))
        .or_else(|| Some(absolute(std::env::home_dir()?)?.join(".local/state")))
        .map(|base| base.join("adit"))
        .ok_or_else(|| {
            Failure::usage("no place for journals: neither XDG_STATE_HOME nor a home directory is known")
                .hint("name one with --state-dir DIR")
        })
}

/// Creates `dir` and those above it, for this user alone.
pub fn create(dir: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|e| Failure::io(dir.display(), &e))
}
