//! Folders under names of passage: what is made or taken apart lies there while it is not whole.
//!
//! Their names are recognisable with the epoch's seed ([`name`], [`is_of`]), as header nonces are, so recovery can tell
//! its own dead mount's from those of another mount that is at work, without a record for each. What lies in one was
//! never promised to anybody, or its removal was asked for: recovery removes it ([`sweep`]). Folders that a *plan* moves
//! things through are not among them: a plan that cannot be completed leaves what it moved there.

use std::path::Path;

use adit_core::media::{HostDir, HostEntry};
use adit_core::types::Kind;
use adit_core::{FsError, Result};
use aws_lc_rs::hmac;

use super::as_owner;
use super::recover::{absent, read_small};
use crate::format::names::{CONTENTS_FILE, DIR_FILE, DIRID_FILE, MAX_DIR_ID_BYTES, NAME_FILE, SYMLINK_FILE};
use crate::format::{DirId, NameCipher};

/// Names that begin with a dot and do not end with `.c9r` are no entries to any client.
const PREFIX: &str = ".adit-";
const SUFFIX: &str = ".tmp";
/// Hex digits of each half of a name: one random, one that the seed makes of it.
const HALF_LEN: usize = 16;
/// Hex digits of the names under which the medium publishes a file where the host has no unnamed ones.
const MEDIUM_LEN: usize = 8;

/// Who gives temporary names, as far as the name tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whose {
    /// The medium: a file whose publication has not ended.
    Medium,
    /// The store, of this mount or another one, or a repair. It can hold what is a user's: a plan moves objects through
    /// such names, and leaves there what it had to give up.
    Store,
}

/// Whose a temporary name is; None if it is none of ours.
pub(crate) fn whose(name: &str) -> Option<Whose> {
    let middle = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let is_medium = middle.len() == MEDIUM_LEN && middle.bytes().all(|b| b.is_ascii_hexdigit());
    Some(if is_medium { Whose::Medium } else { Whose::Store })
}

/// Whether a host gives such names to removed files that are open: NFS, and libfuse.
pub(crate) fn is_hidden_by_host(name: &str) -> bool {
    let digits = name.strip_prefix(".nfs").or_else(|| name.strip_prefix(".fuse_hidden"));
    digits.is_some_and(|digits| digits.len() >= 8 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// How far the removal of a folder came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Removal {
    /// It is gone.
    Done,
    /// Only removed files are in it that are open, and that its host keeps until they are closed.
    Waits,
}

/// Removes a folder, if it is there.
pub(crate) fn remove_folder(vault: &dyn HostDir, path: &str) -> std::io::Result<Removal> {
    match vault.remove(Path::new(path), Kind::Directory) {
        Ok(()) => Ok(Removal::Done),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Removal::Done),
        Err(e) if e.kind() == std::io::ErrorKind::DirectoryNotEmpty => {
            let (at, mut others) = (Path::new(path), 0);
            let mut look = |entry: HostEntry<'_>| {
                others += usize::from(!is_hidden_by_host(&String::from_utf8_lossy(entry.name)));
            };
            let listed = as_owner(vault, at, || vault.list(at, &mut look));
            // None at all: they were closed meanwhile.
            if listed.is_ok() && others == 0 { Ok(Removal::Waits) } else { Err(e) }
        }
        Err(e) => Err(e),
    }
}

/// A new name for what a plan or a repair moves, which recovery leaves alone.
pub(crate) fn name_to_move() -> String {
    format!("{PREFIX}{}{SUFFIX}", uuid::Uuid::new_v4().simple())
}

/// The name for a file of this content that is about to replace another one: the same after each crash.
pub(super) fn name_of_content(bytes: &[u8]) -> String {
    format!("{PREFIX}{:032x}{SUFFIX}", xxhash_rust::xxh3::xxh3_128(bytes))
}

fn mark(seed: &hmac::Key, random: &str) -> String {
    let tag = hmac::sign(seed, format!("temporary {random}").as_bytes());
    tag.as_ref()[..HALF_LEN / 2].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A new name.
pub(super) fn name(seed: &hmac::Key) -> String {
    let random = &uuid::Uuid::new_v4().simple().to_string()[..HALF_LEN];
    format!("{PREFIX}{random}{}{SUFFIX}", mark(seed, random))
}

/// Whether the name was given in the epoch with this seed.
pub(super) fn is_of(seed: &hmac::Key, name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .and_then(|name| name.strip_suffix(SUFFIX))
        .filter(|name| name.len() == 2 * HALF_LEN && name.is_ascii())
        .is_some_and(|name| mark(seed, &name[..HALF_LEN]) == name[HALF_LEN..])
}

/// Removes the folder at `path`, whose name [`is_of`] a dead mount, and the empty content directory that it names. False
/// if something is in it that nobody of us put there, or the content directory is not empty: then all stays.
pub(super) fn sweep(vault: &dyn HostDir, names: &NameCipher, path: &str) -> Result<bool> {
    let failed = |e: std::io::Error| FsError::from(e).on("clear away", path);
    const PARTS: [&str; 4] = [CONTENTS_FILE, SYMLINK_FILE, DIR_FILE, NAME_FILE];
    let Some(found) = list(vault, path)? else { return Ok(true) };
    let (hidden, found): (Vec<_>, Vec<_>) = found.into_iter().partition(|name| is_hidden_by_host(name));
    if found.iter().any(|name| !PARTS.contains(&name.as_str())) {
        return Ok(false);
    }
    // Whoever had them open is dead. Where another mount has, the host keeps them all the same.
    hidden.iter().for_each(|name| drop(vault.remove(Path::new(&format!("{path}/{name}")), Kind::File)));
    if let Some(id) = read_small(vault, &format!("{path}/{DIR_FILE}"), MAX_DIR_ID_BYTES)?
        && let Ok(id) = DirId::parse(&id)
        && !remove_empty(vault, &names.dir_hash(&id).path())?
    {
        return Ok(false);
    }
    for part in PARTS.iter().filter(|part| found.iter().any(|name| name == *part)) {
        absent(vault.remove(Path::new(&format!("{path}/{part}")), Kind::File)).map_err(failed)?;
    }
    absent(vault.remove(Path::new(path), Kind::Directory)).map_err(failed)?;
    Ok(true)
}

/// Removes a content directory that holds its id file at most. False if it holds more.
fn remove_empty(vault: &dyn HostDir, content: &str) -> Result<bool> {
    let failed = |e: std::io::Error| FsError::from(e).on("clear away", content);
    let Some(found) = list(vault, content)? else { return Ok(true) };
    if found.iter().any(|name| name != DIRID_FILE) {
        return Ok(false);
    }
    absent(vault.remove(Path::new(&format!("{content}/{DIRID_FILE}")), Kind::File)).map_err(failed)?;
    match vault.remove(Path::new(content), Kind::Directory) {
        // Someone else's entry came at this moment: recovery of a later mount, or `check`, makes the id file again.
        Err(e) if e.kind() == std::io::ErrorKind::DirectoryNotEmpty => Ok(false),
        other => absent(other).map(|_| true).map_err(failed),
    }
}

/// The names in a folder, lossy; None if it is not there.
fn list(vault: &dyn HostDir, path: &str) -> Result<Option<Vec<String>>> {
    let mut names = Vec::new();
    let listed = vault.list(Path::new(path), &mut |e| names.push(String::from_utf8_lossy(e.name).into_owned()));
    let listed = absent(listed).map_err(|e| FsError::from(e).on("list", path))?;
    Ok(listed.map(|()| names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_by_the_seed_that_made_them() {
        let [one, two] = [1, 2].map(|byte| hmac::Key::new(hmac::HMAC_SHA256, &[byte; 32]));
        let ours = name(&one);
        assert!(is_of(&one, &ours) && !is_of(&two, &ours));
        assert_ne!(name(&one), ours);
        for other in [".adit-.tmp", ".adit-é.tmp", "dir.c9r", &ours[1..], &format!("{ours}.tmp")] {
            assert!(!is_of(&one, other), "{other}");
        }
        assert!(!is_of(&one, &name_to_move()), "as plans name theirs");
        for name in [&ours, &name_to_move(), &name_of_content(b"x"), ".adit-1.tmp", ".adit-0123456z.tmp"] {
            assert_eq!(whose(name), Some(Whose::Store), "{name}");
        }
        assert_eq!(whose(".adit-0123abcd.tmp"), Some(Whose::Medium));
        assert!([".nfs000000000002a5b300000001", ".fuse_hidden0000000a00000001"].into_iter().all(is_hidden_by_host));
        assert!(
            [".nfs", ".nfs-notes.txt", ".fuse_hidden", "nfs000000000002", "x.c9r"]
                .iter()
                .all(|n| !is_hidden_by_host(n))
        );
        assert!([".adit-0123abcd", "x.tmp", "dir.c9r"].into_iter().all(|name| whose(name).is_none()));
    }
}
