//! Where a vault's journal lies on the host: `BASE/vault/<vault id>/<hash of the vault's path>-<slot>`.
//!
//! Each mounting process has a slot of its own, held by a lock that ends with it. Slots that nobody holds any more are
//! handed out as abandoned: what is in them is recovered. A vault that moved is found again: slots of another path
//! with the same id are adopted when it is the same folder (device and inode), and no vault is at that path any more.
//!
//! Slots tell of processes that share a state directory. [`FolderLock`] is on the vault's folder itself, and so tells of
//! every process of this machine, whoever runs it and wherever its journal lies.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use adit_core::{ErrorKind, FsError, Result};
use rustix::fs::{FlockOperation, flock};
use xxhash_rust::xxh3::xxh3_64;

use crate::format::config::CONFIG_FILE_NAME;

/// Processes that can have one vault open at once.
const SLOTS: u32 = 64;
/// File in a slot that is locked while it is in use.
const LOCK_FILE: &str = "lock";
/// File in a slot that holds the vault's path.
const PATH_FILE: &str = "vault-path";
/// File in a slot that holds the device and inode of the vault's folder.
const FOLDER_FILE: &str = "vault-folder";

/// A slot for this process, and the abandoned ones. The locks last as long as this value.
#[derive(Debug)]
pub struct StateDir {
    /// This process's slot.
    pub path: PathBuf,
    /// Slots of dead processes, whose journals are to be recovered.
    pub abandoned: Vec<PathBuf>,
    /// Living processes that have slots for the same folder: their ids, 0 for one that is not known.
    pub others: Vec<u32>,
    _locks: Vec<File>,
}

/// A lock on the vault's folder, held by each process that has the vault open: shared, or alone for what must not meet
/// anyone (a repair). It ends with this value or the process.
#[derive(Debug)]
pub struct FolderLock(#[expect(dead_code, reason = "held, not used")] Option<File>);

impl FolderLock {
    /// Takes the lock on `root` without waiting. Where the host has no locks on folders (some network filesystems), it
    /// is taken as granted: then the slots of the state directory are all that can tell.
    ///
    /// # Errors
    /// `Busy` if another process holds it in a way that excludes this; what the host says if `root` cannot be opened.
    pub fn take(root: &Path, alone: bool) -> Result<FolderLock> {
        let folder = match File::open(root) {
            Ok(folder) => folder,
            // A folder that can be entered but not listed still opens as a vault.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Ok(FolderLock(None)),
            Err(e) => return Err(FsError::from(e).on("open", root.display())),
        };
        let how = if alone { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
        match flock(&folder, how) {
            Ok(()) => Ok(FolderLock(Some(folder))),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(FsError::new(ErrorKind::Busy).on("lock", root.display())),
            Err(_) => Ok(FolderLock(None)),
        }
    }
}

impl StateDir {
    /// Takes a slot for the vault at `root` (an existing folder), below the state directory `base`.
    ///
    /// # Errors
    /// What the host says if the state directory cannot be written; `Busy` if all slots are in use.
    pub fn acquire(base: &Path, id: &[u8; 16], root: &Path) -> Result<StateDir> {
        let failed = |e: io::Error| FsError::from(e).on("use the state directory", base.display());
        let root = root.canonicalize().map_err(|e| FsError::from(e).on("open", root.display()))?;
        let family = base.join("vault").join(data_encoding::HEXLOWER.encode(id));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&family).map_err(failed)?;
        let key = format!("{:016x}", xxh3_64(root.as_os_str().as_bytes()));
        let (mut own, mut abandoned, mut others, mut locks) = (None, Vec::new(), Vec::new(), Vec::new());
        for slot in 0..SLOTS {
            let path = family.join(format!("{key}-{slot}"));
            let exists = path.is_dir();
            if !exists && own.is_some() {
                continue;
            }
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(failed)?;
            let Some(lock) = try_lock(&path).map_err(failed)? else {
                others.push(holder(&path));
                continue;
            };
            if own.is_none() {
                tell_holder(&lock).map_err(failed)?;
                fs::write(path.join(PATH_FILE), root.as_os_str().as_bytes()).map_err(failed)?;
                fs::write(path.join(FOLDER_FILE), folder_id(&root).map_err(failed)?).map_err(failed)?;
                own = Some(path);
            } else {
                abandoned.push(path);
            }
            locks.push(lock);
        }
        for path in moved_slots(&family, &key, &root).map_err(failed)? {
            match try_lock(&path).map_err(failed)? {
                Some(lock) => {
                    locks.push(lock);
                    abandoned.push(path);
                }
                None => others.push(holder(&path)),
            }
        }
        match own {
            Some(path) => Ok(StateDir { path, abandoned, others, _locks: locks }),
            None => Err(FsError::new(ErrorKind::Busy)
                .on("open", root.display())
                .because(format!("{SLOTS} processes have this vault open"))),
        }
    }
}

impl StateDir {
    /// Whether a dead process left a journal in a slot: then the vault is to be opened for writing, which recovers it.
    pub fn has_journals(&self) -> bool {
        let slots = std::iter::once(&self.path).chain(&self.abandoned);
        let mut entries = slots.filter_map(|slot| fs::read_dir(slot).ok()).flatten().flatten();
        entries.any(|entry| crate::journal::recover::is_journal(entry.file_name().as_bytes()))
    }
}

/// Locks a slot, or None if a living process holds it.
fn try_lock(slot: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(slot.join(LOCK_FILE))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Writes this process's id into the lock of its slot, for the messages of others.
fn tell_holder(mut lock: &File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.write_all(std::process::id().to_string().as_bytes())
}

/// The process that holds a slot; 0 if it has not told yet.
fn holder(slot: &Path) -> u32 {
    fs::read_to_string(slot.join(LOCK_FILE)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Device and inode: the same for a folder that moved, another for a copy.
fn folder_id(root: &Path) -> io::Result<String> {
    let meta = fs::metadata(root)?;
    Ok(format!("{}:{}", meta.dev(), meta.ino()))
}

/// Slots of this very folder under another path, where no vault is any more. A copy of the vault is not that folder: its
/// journal must wait for the original.
fn moved_slots(family: &Path, key: &str, root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut moved = Vec::new();
    let folder = folder_id(root)?;
    for entry in fs::read_dir(family)? {
        let path = entry?.path();
        let own = path.file_name().is_some_and(|n| n.as_bytes().starts_with(key.as_bytes()));
        if own || !path.is_dir() {
            continue;
        }
        let Ok(bytes) = fs::read(path.join(PATH_FILE)) else { continue };
        let place = Path::new(std::ffi::OsStr::from_bytes(&bytes));
        let same = fs::read_to_string(path.join(FOLDER_FILE)).is_ok_and(|f| f == folder);
        if same && !place.join(CONFIG_FILE_NAME).exists() {
            moved.push(path);
        }
    }
    Ok(moved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_a_slot_and_dead_ones_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let (base, root) = (dir.path().join("state"), dir.path().join("vault"));
        fs::create_dir(&root).unwrap();
        let first = StateDir::acquire(&base, &[1; 16], &root).unwrap();
        let second = StateDir::acquire(&base, &[1; 16], &root).unwrap();
        assert_ne!(first.path, second.path);
        assert!(second.abandoned.is_empty(), "a living process's slot is its own");
        assert!(first.others.is_empty());
        assert_eq!(second.others, [std::process::id()], "and it is told who lives");
        let dead = first.path.clone();
        drop(first);
        let third = StateDir::acquire(&base, &[1; 16], &root).unwrap();
        assert_eq!(third.path, dead);
        drop((second, third));
        let copy = dir.path().join("copy");
        fs::create_dir(&copy).unwrap();
        let other = StateDir::acquire(&base, &[1; 16], &copy).unwrap();
        assert!(other.abandoned.is_empty(), "a copy of the vault leaves the original's journals alone");
        drop(other);
        let moved = dir.path().join("moved");
        fs::rename(&root, &moved).unwrap();
        let fourth = StateDir::acquire(&base, &[1; 16], &moved).unwrap();
        assert_eq!(fourth.abandoned.len(), 2, "the slots of the old path are adopted");
    }

    #[test]
    fn a_folder_is_shared_or_somebodys_alone() {
        let dir = tempfile::tempdir().unwrap();
        let first = FolderLock::take(dir.path(), false).unwrap();
        let second = FolderLock::take(dir.path(), false).unwrap();
        assert_eq!(FolderLock::take(dir.path(), true).unwrap_err().kind(), ErrorKind::Busy);
        drop((first, second));
        let alone = FolderLock::take(dir.path(), true).unwrap();
        assert_eq!(FolderLock::take(dir.path(), false).unwrap_err().kind(), ErrorKind::Busy);
        drop(alone);
        FolderLock::take(dir.path(), false).unwrap();
    }
}
