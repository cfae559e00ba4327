//! Where a vault's journal lies on the host: `BASE/vault/<vault id>/<hash of the vault's path>-<slot>`.
//!
//! Each mounting process has a slot of its own, held by a lock that ends with it. Slots that nobody holds any more are
//! handed out as abandoned: what is in them is recovered. A vault that moved is found again: slots of another path
//! with the same id are adopted when it is the same folder, and it is not at that path any more. A journal of another
//! folder that was at this path (it was moved away, and a copy took its place) is left for that one.
//!
//! What a slot holds is believed: it tells recovery what to write and to rename. So a slot is this user's alone.
//!
//! Slots tell of processes that share a state directory. [`FolderLock`] is on the vault's folder itself, and so tells of
//! every process of this machine, whoever runs it and wherever its journal lies.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use adit_core::process::ProcessNumber;
use adit_core::{ErrorKind, FsError, Result};
use rustix::fs::{FlockOperation, flock};
use xxhash_rust::xxh3::xxh3_64;

use crate::format::config::CONFIG_FILE_NAME;

/// Processes that can have one vault open at once.
const SLOTS: u32 = 64;
/// How often a shared lock on a vault's folder is tried, and how long it is waited for between two tries.
const SHARED_TRIES: u32 = 10;
const SHARED_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);
/// Folder of a vault that holds all contents; it is never replaced.
const CONTENT_FOLDER: &str = "d";
/// File in a slot that is locked while it is in use.
const LOCK_FILE: &str = "lock";
/// File in a slot that holds the vault's path.
const PATH_FILE: &str = "vault-path";
/// File in a slot that tells the vault's folder from others: [`FolderId`].
const FOLDER_FILE: &str = "vault-folder";

/// A slot for this process, and the abandoned ones. The locks last as long as this value.
#[derive(Debug)]
pub struct StateDir {
    /// This process's slot.
    pub path: PathBuf,
    /// Slots of dead processes, whose journals are to be recovered.
    pub abandoned: Vec<PathBuf>,
    /// Slots with journals of another folder, which was at this path before. They are neither recovered nor used.
    pub strange: Vec<PathBuf>,
    /// Living processes that have slots for the same folder; `None` for one that has not told its number.
    pub others: Vec<Option<ProcessNumber>>,
    _locks: Vec<File>,
}

/// A lock on the vault's folder, held by each process that has the vault open: shared, or alone for what must not meet
/// anyone (a repair). It ends with this value or the process.
#[derive(Debug)]
pub struct FolderLock(#[expect(dead_code, reason = "held, not used")] Option<File>);

impl FolderLock {
    /// Takes the lock on `root`, waiting for a tenth of a second at most. Where the host has no locks on folders (some network filesystems), it
    /// is taken as granted: then the slots of the state directory are all that can tell.
    ///
    /// # Errors
    /// `Busy` if another process holds it in a way that excludes this; what the host says if `root` cannot be opened.
    pub fn take(root: &Path, alone: bool) -> Result<FolderLock> {
        FolderLock::on(root, alone)
    }

    /// Takes the lock of those who change the vault at `root`, without waiting: shared, or alone for who is promised that
    /// nobody else changes it. It is another one than that of [`FolderLock::take`], on the folder of the contents.
    ///
    /// # Errors
    /// As [`FolderLock::take`].
    pub fn take_to_change(root: &Path, alone: bool) -> Result<FolderLock> {
        FolderLock::on(&root.join(CONTENT_FOLDER), alone)
    }

    fn on(root: &Path, alone: bool) -> Result<FolderLock> {
        let folder = match File::open(root) {
            Ok(folder) => folder,
            // A vault without contents is for the store to refuse, and for a repair to mend.
            Err(e) if e.kind() == io::ErrorKind::NotFound && root.ends_with(CONTENT_FOLDER) => {
                return Ok(FolderLock(None));
            }
            // A folder that can be entered but not listed still opens as a vault.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Ok(FolderLock(None)),
            Err(e) => return Err(FsError::from(e).on("open", root.display())),
        };
        let how = if alone { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
        // Whoever only asks whether anybody has it, has it alone for a moment; a repair for longer.
        let tries = if alone { 1 } else { SHARED_TRIES };
        for left in (0..tries).rev() {
            match flock(&folder, how) {
                Ok(()) => return Ok(FolderLock(Some(folder))),
                Err(rustix::io::Errno::WOULDBLOCK) if left > 0 => std::thread::sleep(SHARED_PAUSE),
                Err(rustix::io::Errno::WOULDBLOCK) => break,
                Err(_) => return Ok(FolderLock(None)),
            }
        }
        Err(FsError::new(ErrorKind::Busy).on("lock", root.display()))
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
        check_private(&base.join("vault"))?;
        check_private(&family)?;
        let key = format!("{:016x}", xxh3_64(root.as_os_str().as_bytes()));
        let folder = FolderId::of(&root).map_err(failed)?;
        let (mut own, mut abandoned, mut others, mut locks) = (None, Vec::new(), Vec::new(), Vec::new());
        let mut strange = Vec::new();
        for slot in 0..SLOTS {
            let path = family.join(format!("{key}-{slot}"));
            let exists = path.is_dir();
            if !exists && own.is_some() {
                continue;
            }
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(failed)?;
            check_private(&path)?;
            let Some(lock) = try_lock(&path).map_err(failed)? else {
                others.push(holder(&path));
                continue;
            };
            if holds_journals(&path) && FolderId::told_in(&path).is_some_and(|told| told.is_another(&folder)) {
                strange.push(path);
                continue;
            }
            if own.is_none() {
                tell_holder(&lock).map_err(failed)?;
                fs::write(path.join(PATH_FILE), root.as_os_str().as_bytes()).map_err(failed)?;
                fs::write(path.join(FOLDER_FILE), folder.to_string()).map_err(failed)?;
                own = Some(path);
            } else {
                abandoned.push(path);
            }
            locks.push(lock);
        }
        for path in moved_slots(&family, &key, &folder).map_err(failed)? {
            check_private(&path)?;
            match try_lock(&path).map_err(failed)? {
                Some(lock) => {
                    locks.push(lock);
                    abandoned.push(path);
                }
                None => others.push(holder(&path)),
            }
        }
        match own {
            Some(path) => Ok(StateDir { path, abandoned, strange, others, _locks: locks }),
            None => Err(FsError::new(ErrorKind::Busy)
                .on("open", root.display())
                .because(format!("{SLOTS} processes have this vault open"))),
        }
    }
}

impl StateDir {
    /// Whether a dead process left a journal in a slot: then the vault is to be opened for writing, which recovers it.
    pub fn has_journals(&self) -> bool {
        std::iter::once(&self.path).chain(&self.abandoned).any(|slot| holds_journals(slot))
    }
}

fn holds_journals(slot: &Path) -> bool {
    let mut entries = fs::read_dir(slot).into_iter().flatten().flatten();
    entries.any(|entry| crate::journal::recover::is_journal(entry.file_name().as_bytes()))
}

/// Whoever can write into a slot can have recovery rename and remove files of the vault.
fn check_private(slot: &Path) -> Result<()> {
    let unsafe_because = |why: &str| {
        let e = FsError::new(ErrorKind::NotPermitted).on("use the state directory", slot.display());
        Err(e.because(format!("it {why}, who could plant a journal there")))
    };
    let found = fs::symlink_metadata(slot).map_err(|e| FsError::from(e).on("look at", slot.display()))?;
    if !found.is_dir() {
        return unsafe_because("is not a folder but a link of somebody");
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return unsafe_because("belongs to another user");
    }
    if found.mode() & 0o022 != 0 {
        return unsafe_because("can be written by other users (chmod 700 it)");
    }
    Ok(())
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

/// Writes this process's number into the lock of its slot, for the messages of others.
fn tell_holder(mut lock: &File) -> io::Result<()> {
    let own = ProcessNumber::own();
    let namespace = own.namespace().map_or_else(String::new, |namespace| format!(" {namespace}"));
    lock.set_len(0)?;
    lock.write_all(format!("{}{namespace}", own.pid()).as_bytes())
}

/// The process that holds a slot, if it has told its number yet.
fn holder(slot: &Path) -> Option<ProcessNumber> {
    fs::read_to_string(slot.join(LOCK_FILE)).ok()?.parse().ok()
}

/// What tells a folder from its copies: device, inode, and when it was made (nanoseconds since 1970), where the host knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FolderId {
    device: u64,
    inode: u64,
    made: Option<u128>,
}

impl FolderId {
    fn of(root: &Path) -> io::Result<FolderId> {
        let meta = fs::metadata(root)?;
        let made = meta.created().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
        Ok(FolderId { device: meta.dev(), inode: meta.ino(), made: made.map(|since| since.as_nanos()) })
    }

    /// What the slot's last user wrote down.
    fn told_in(slot: &Path) -> Option<FolderId> {
        let text = fs::read_to_string(slot.join(FOLDER_FILE)).ok()?;
        let mut parts = text.trim().split(':');
        let (device, inode) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(FolderId { device, inode, made: parts.next().and_then(|made| made.parse().ok()) })
    }

    /// Whether this is surely another folder. Devices get other numbers at the next boot, and some filesystems number their
    /// inodes anew at each mount: a folder that may be the same counts as the same, or its journal would be lost to it.
    fn is_another(&self, now: &FolderId) -> bool {
        let other_time = self.made.zip(now.made).is_some_and(|(then, now)| then != now);
        self.inode != now.inode && other_time
    }

    /// Whether this is surely the same folder.
    fn is_same(&self, now: &FolderId) -> bool {
        let other_time = self.made.zip(now.made).is_some_and(|(then, now)| then != now);
        (self.device, self.inode) == (now.device, now.inode) && !other_time
    }
}

impl std::fmt::Display for FolderId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.device, self.inode)?;
        self.made.map_or(Ok(()), |made| write!(f, ":{made}"))
    }
}

/// Slots of this very folder under another path, where it is not any more. A copy of the vault is not that folder: its
/// journal must wait for the original.
fn moved_slots(family: &Path, key: &str, folder: &FolderId) -> io::Result<Vec<PathBuf>> {
    let mut moved = Vec::new();
    for entry in fs::read_dir(family)? {
        let path = entry?.path();
        let own = path.file_name().is_some_and(|n| n.as_bytes().starts_with(key.as_bytes()));
        if own || !path.is_dir() {
            continue;
        }
        let Ok(bytes) = fs::read(path.join(PATH_FILE)) else { continue };
        let place = Path::new(std::ffi::OsStr::from_bytes(&bytes));
        let Some(told) = FolderId::told_in(&path) else { continue };
        let gone = !place.join(CONFIG_FILE_NAME).exists() || FolderId::of(place).is_ok_and(|now| told.is_another(&now));
        if told.is_same(folder) && gone {
            moved.push(path);
        }
    }
    Ok(moved)
}

#[cfg(test)]
mod tests;
