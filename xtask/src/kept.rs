//! What is built once and kept in the cache outside the repository, in a folder named after all that goes into it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::workplace;

/// The folder of `<cache>/<name>` that belongs to `parts`, filled by `build` unless `is_whole` says that it is.
///
/// `parts` are the contents of whatever the result depends on: a change to any of them gives another folder. What an interrupted
/// build left is removed before the next one. Concurrent calls for one name wait for each other.
pub fn ensure(
    name: &str,
    parts: &[Vec<u8>],
    is_whole: impl Fn(&Path) -> bool,
    build: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let cache = workplace::cache_dir()?.join(name);
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let lock =
        File::create(cache.join("lock")).with_context(|| format!("cannot make the lock of {}", cache.display()))?;
    lock.lock().with_context(|| format!("cannot lock {}", cache.display()))?;

    let home = cache.join(digest(parts));
    if !is_whole(&home) {
        if home.exists() {
            fs::remove_dir_all(&home).with_context(|| format!("cannot remove the unfinished {}", home.display()))?;
        }
        fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
        build(&home)?;
    }
    Ok(home)
}

/// FNV-1a over all parts, in hex.
fn digest(parts: &[Vec<u8>]) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for part in parts {
        // The length keeps the border between two parts from moving.
        for byte in part.iter().chain(&part.len().to_le_bytes()) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_tells_where_one_part_ends() {
        let digest = |parts: &[&str]| digest(&parts.iter().map(|part| part.as_bytes().to_vec()).collect::<Vec<_>>());
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
        assert_ne!(digest(&["a"]), digest(&["a", ""]));
        assert_eq!(digest(&["a", "b"]), digest(&["a", "b"]));
    }
}
