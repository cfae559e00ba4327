//! A volume as a library: files, directories, snapshots and transactions by path, for programs that embed it.
//!
//! An [`Fs`] is a branch or a snapshot of an open [`Volume`]; a [`File`] is an open file. Paths are as on Linux: from the working
//! directory unless they begin with `/`, symbolic links followed up to 40 times, `..` of the root is the root. Nobody's
//! permissions are checked: whoever has the file has all that is in it. Everything may be used from many threads at once.
//!
//! **Durability** is the volume's: when a call returns, a kill of the process loses nothing of it; [`Fs::sync`] and
//! [`File::sync`] are for power cuts. Each call is one step for others, but [`Fs::copy`], [`Fs::remove_all`], [`Fs::mkdir_all`] and
//! writes of more than 8 MiB; [`Fs::transact`] makes one step of several.
//!
//! **Caching.** Entries and attributes that were asked for are kept, within [`FsOptions::cache_bytes`], and never stale; see
//! [`Fs::cache_stats`].

pub(crate) mod cache;
mod file;
mod list;
mod names;
mod transaction;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};

use adit_core::engine::CacheStats;
use adit_core::path::SYMLINKS_MAX;
use adit_core::store::{NewNode, Store};
use adit_core::types::{Attr, Caller, Ino, Kind, StatFs};
use adit_core::{ErrorKind, FsError, Result};
use parking_lot::RwLock;

pub use file::{File, OpenFlags};
pub use list::{DirEntry, ReadDir, Visited, WalkStep};
pub use transaction::FsTransaction;

use self::cache::InodeCache;
use crate::format::records::{Inode, Place};
use crate::store::VolumeStore;
use crate::tree::{Mtimes, ROOT_INO, SnapshotInfo, View};
use crate::volume::Volume;

/// Depth at which a directory is taken for one that holds itself.
const DEPTH_MAX: usize = 1 << 20;

/// How an [`Fs`] behaves.
#[derive(Clone, Copy, Debug)]
pub struct FsOptions {
    /// Memory for entries and attributes, in bytes. Default 8 MiB: some 20,000 of each.
    pub cache_bytes: u64,
    /// Owner of what is made. Default root.
    pub owner: Caller,
    /// Permission bits that are left out of what is made. Default 0o022.
    pub umask: u16,
}

impl Default for FsOptions {
    fn default() -> Self {
        FsOptions { cache_bytes: 8 << 20, owner: Caller { uid: 0, gid: 0 }, umask: 0o022 }
    }
}

/// What all views of one branch or snapshot share.
struct Shared {
    volume: Arc<Volume>,
    store: VolumeStore,
    owner: Caller,
}

/// A branch or a snapshot by path. See the module's notes.
pub struct Fs {
    shared: Arc<Shared>,
    root: u64,
    cwd: AtomicU64,
    umask: AtomicU16,
    temp_dir: RwLock<PathBuf>,
}

/// What the caches of an [`Fs`] hold, and how they did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FsCacheStats {
    /// Attributes of inodes.
    pub inodes: CacheStats,
    /// Entries of directories, and names that are absent.
    pub entries: CacheStats,
    /// Paths of at least two names to directories; a miss is walked by entries, and counted there as well.
    pub paths: CacheStats,
    /// Memory that all together may take, in bytes.
    pub bytes_max: u64,
}

impl FsCacheStats {
    /// Questions answered from memory, of all; 0 before the first. A missed path is no question of its own.
    pub fn hit_rate(&self) -> f64 {
        let hits = self.inodes.hits + self.entries.hits + self.paths.hits;
        let all = hits + self.inodes.misses + self.entries.misses;
        if all == 0 { 0.0 } else { hits as f64 / all as f64 }
    }
}

/// Whether a symbolic link at the end of a path stands for itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Follow,
    Keep,
}

/// Where a path leads.
struct Spot {
    /// The directory that holds the last name.
    dir: u64,
    /// The last name; empty for a directory that was reached by `.`, `..` or as the root.
    name: Vec<u8>,
    /// What is there.
    found: Option<(u64, Kind)>,
    /// The path ends with a slash.
    slash: bool,
}

/// How far a path could be walked.
enum Walked<'p> {
    /// To its end: directory, last name, what is there, whether a slash follows.
    Done(u64, &'p [u8], Option<(u64, Kind)>, bool),
    /// To a symbolic link in a directory, with this path behind it.
    Link(u64, u64, &'p [u8]),
}

impl Fs {
    /// The live tree. `Busy` if it is in use already.
    pub fn live(volume: &Arc<Volume>, options: FsOptions) -> Result<Fs> {
        Ok(Fs::with(volume, volume.live()?, options))
    }

    /// A branch. `Busy` if it is in use already, `NotFound`.
    pub fn branch(volume: &Arc<Volume>, name: &str, options: FsOptions) -> Result<Fs> {
        Ok(Fs::with(volume, volume.branch(name)?, options))
    }

    /// A snapshot, to read. `NotFound`.
    pub fn snapshot(volume: &Arc<Volume>, name: &str, options: FsOptions) -> Result<Fs> {
        Ok(Fs::with(volume, volume.snapshot(name)?, options))
    }

    fn with(volume: &Arc<Volume>, store: VolumeStore, options: FsOptions) -> Fs {
        store.set_cache(InodeCache::new(options.cache_bytes));
        let shared = Shared { volume: volume.clone(), store, owner: options.owner };
        Fs {
            shared: Arc::new(shared),
            root: ROOT_INO,
            cwd: AtomicU64::new(ROOT_INO),
            umask: AtomicU16::new(options.umask & 0o777),
            temp_dir: RwLock::new(PathBuf::from("/tmp")),
        }
    }

    /// The volume that it belongs to.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.shared.volume
    }

    /// The directory `path` as a filesystem of its own: nothing above it can be reached by a path of it. It shares the cache, and has
    /// its own working directory, umask and folder for temporary files. A directory that is moved out of it stays the working
    /// directory if it is that, but has no `..` any more: `NotFound`.
    pub fn sub(&self, path: impl AsRef<Path>) -> Result<Fs> {
        let path = path.as_ref();
        let root = self.directory(path).map_err(named("open", path))?;
        Ok(Fs {
            shared: self.shared.clone(),
            root,
            cwd: AtomicU64::new(root),
            umask: AtomicU16::new(self.umask()),
            temp_dir: RwLock::new(self.temp_dir()),
        })
    }

    /// Permission bits that are left out of what is made.
    pub fn umask(&self) -> u16 {
        self.umask.load(Relaxed)
    }

    /// Sets the umask; the old one.
    pub fn set_umask(&self, umask: u16) -> u16 {
        self.umask.swap(umask & 0o777, Relaxed)
    }

    /// Where paths without a leading slash begin. `NotFound` if it was removed.
    pub fn working_dir(&self) -> Result<PathBuf> {
        let path = self.view()?.path_below(self.root, self.cwd.load(Relaxed))?;
        path.map(|path| PathBuf::from(OsStr::from_bytes(&path))).ok_or_else(|| ErrorKind::NotFound.into())
    }

    /// Changes where paths without a leading slash begin. It stays that directory, also if it is renamed.
    pub fn set_working_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.cwd.store(self.directory(path).map_err(named("chdir", path))?, Relaxed);
        Ok(())
    }

    /// Where [`Fs::create_temp`] makes files; `/tmp` unless it was set.
    pub fn temp_dir(&self) -> PathBuf {
        self.temp_dir.read().clone()
    }

    /// Sets the folder for temporary files.
    pub fn set_temp_dir(&self, path: impl Into<PathBuf>) {
        *self.temp_dir.write() = path.into();
    }

    /// Size and use, with no more room than the host has.
    pub fn statfs(&self) -> Result<StatFs> {
        Ok(self.shared.store.statfs()?.within(self.shared.store.room_bytes()?))
    }

    /// Makes everything durable.
    pub fn sync(&self) -> Result<()> {
        self.shared.store.sync_all()
    }

    /// What the cache holds, and how it did.
    pub fn cache_stats(&self) -> FsCacheStats {
        let cache = self.cache();
        let (inodes, entries, paths) = (cache.attr_stats(), cache.entry_stats(), cache.path_stats());
        FsCacheStats { inodes, entries, paths, bytes_max: cache.bytes_max() }
    }

    /// Changes how much memory the cache may take, in bytes.
    pub fn set_cache_size(&self, bytes: u64) {
        self.cache().set_bytes_max(bytes);
    }

    /// Empties the cache.
    pub fn flush_cache(&self) {
        self.cache().clear();
    }

    /// Snapshots and branches, the oldest first.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.shared.volume.snapshots()
    }

    /// Makes a snapshot of this branch, durably: what returned before is in it. `Exists`; `ReadOnly` in a snapshot.
    pub fn create_snapshot(&self, name: &str) -> Result<()> {
        self.shared.volume.create_snapshot(self.shared.store.branch_name()?, name)
    }

    /// Opens a snapshot of the volume, to read; a path in it is copied back by [`Fs::restore`]. `NotFound`.
    pub fn open_snapshot(&self, name: &str) -> Result<Fs> {
        let options =
            FsOptions { cache_bytes: self.cache().bytes_max(), owner: self.shared.owner, umask: self.umask() };
        Fs::snapshot(&self.shared.volume, name, options)
    }

    /// Deletes a snapshot, durably. `Busy` while it is open.
    pub fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.shared.volume.delete_snapshot(name)
    }

    /// Sets everything (`/`), or what is at `path`, back to what it is in a snapshot, as one step and durably. What is not there is
    /// removed. Symbolic links on the way are not followed. What differed has the time of change of the restore.
    ///
    /// An open file that goes by the restore of a path stays usable, as one that is removed. After that of everything, an open file
    /// has the content of the snapshot, and one that is not in it is `Stale`.
    pub fn restore(&self, snapshot: &str, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let bytes = path.as_os_str().as_bytes();
        let names: Vec<&[u8]> = bytes.split(|&b| b == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
        let inside = self.root == ROOT_INO && (bytes.first() == Some(&b'/') || self.cwd.load(Relaxed) == ROOT_INO);
        if !inside || names.contains(&&b".."[..]) {
            let why = "what is restored is named from the volume's root, without `..`";
            return Err(FsError::new(ErrorKind::InvalidInput).on("restore", path.display()).because(why));
        }
        let store = &self.shared.store;
        let done = match names.is_empty() {
            true => store.restore(snapshot, Mtimes::Snapshot),
            false => store.restore_path(snapshot, &names, Mtimes::Snapshot).map(drop),
        };
        done.map_err(named("restore", path))?;
        self.shared.volume.dropped()
    }

    fn cache(&self) -> &InodeCache {
        self.shared.store.cache().expect("it was set when this was made")
    }

    fn view(&self) -> Result<View<'_>> {
        self.shared.store.0.view()
    }

    fn new_node(&self, perm: u16) -> NewNode {
        NewNode { perm: perm & 0o7777, umask: self.umask(), caller: self.shared.owner }
    }

    /// Ends what the store knows of an inode that was made: here, only open files keep one.
    fn unknow(&self, ino: Ino) {
        self.shared.store.forget(ino);
    }

    fn entry(&self, dir: u64, name: &[u8]) -> Result<Option<(u64, Kind)>> {
        self.cache().entry(dir, name, || {
            let found = self.view()?.entry(dir, name)?;
            Ok(found.map(|(_, ino, kind)| (ino, kind)))
        })
    }

    /// `NotFound` if it went meanwhile.
    fn attr(&self, ino: u64) -> Result<Attr> {
        let attr = self.cache().attr(ino, || Ok(self.view()?.inode(ino)?.attr(ino)));
        attr.map_err(|e| if e.kind() == ErrorKind::Stale { ErrorKind::NotFound.into() } else { e })
    }

    /// Where a path leads. An absent last name is no error, anything else that is absent is.
    fn spot(&self, path: &Path, last: Last) -> Result<Spot> {
        let path = path.as_os_str().as_bytes();
        if path.is_empty() {
            return Err(ErrorKind::NotFound.into());
        }
        let done = |dir, name: &[u8], found, slash| Spot { dir, name: name.to_vec(), found, slash };
        let (mut at, mut ino, mut rest) = match self.walk_on(self.start(path), path, last)? {
            Walked::Done(dir, name, found, slash) => return Ok(done(dir, name, found, slash)),
            Walked::Link(dir, ino, rest) => (dir, ino, rest.to_vec()),
        };
        for _ in 0..SYMLINKS_MAX {
            let mut next = self.view()?.inode(ino)?.inline;
            if next.first() == Some(&b'/') {
                at = self.root;
            }
            next.extend_from_slice(&rest);
            match self.walk_on(at, &next, last)? {
                Walked::Done(dir, name, found, slash) => return Ok(done(dir, name, found, slash)),
                Walked::Link(dir, link, behind) => (at, ino, rest) = (dir, link, behind.to_vec()),
            }
        }
        Err(ErrorKind::Loop.into())
    }

    fn start(&self, path: &[u8]) -> u64 {
        if path.first() == Some(&b'/') { self.root } else { self.cwd.load(Relaxed) }
    }

    /// Walks from the directory `at` until the path ends, or a symbolic link is to be followed.
    fn walk_on<'p>(&self, start: u64, path: &'p [u8], last: Last) -> Result<Walked<'p>> {
        let (mut at, mut rest) = (start, path);
        // All but the last name, where that is worth a look.
        let mut above = above(path);
        if let Some(prefix) = above
            && let Some(dir) = self.cache().paths().get(start, prefix, |_| true)
        {
            (at, rest, above) = (dir, &path[prefix.len()..], None);
        }
        let generation = self.cache().paths().generation();
        loop {
            while let [b'/', behind @ ..] = rest {
                rest = behind;
            }
            if rest.is_empty() {
                return Ok(Walked::Done(at, b"", Some((at, Kind::Directory)), true));
            }
            let end = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
            let (name, behind) = rest.split_at(end);
            let is_last = behind.iter().all(|&b| b == b'/');
            let slash = !behind.is_empty();
            rest = behind;
            match name {
                b"." => continue,
                b".." => {
                    // It is another directory in a part of the tree that is seen by itself.
                    above = None;
                    at = self.parent(at)?;
                    continue;
                }
                _ => {}
            }
            match self.entry(at, name)? {
                Some((ino, Kind::Directory)) if !is_last => at = ino,
                Some((ino, Kind::Symlink)) if !is_last || slash || last == Last::Follow => {
                    return Ok(Walked::Link(at, ino, behind));
                }
                Some((_, kind)) if !is_last || (slash && kind != Kind::Directory) => {
                    return Err(ErrorKind::NotDirectory.into());
                }
                None if !is_last => return Err(ErrorKind::NotFound.into()),
                found => {
                    if let Some(prefix) = above {
                        self.cache().paths().keep(start, prefix, at, generation);
                    }
                    // Where something may be made by it.
                    adit_core::types::FileName::new(name)?;
                    return Ok(Walked::Done(at, name, found, slash));
                }
            }
        }
    }

    /// The directory above one; the root's is itself.
    fn parent(&self, dir: u64) -> Result<u64> {
        let view = self.view()?;
        self.parent_in(dir, |dir| view.inode(dir))
    }

    /// As [`Fs::parent`], of what `inode` says. `NotFound` of what has no name, or is not below the root any more: it may have been
    /// moved since it was entered, and nothing that is above it there can be reached from here.
    fn parent_in(&self, dir: u64, inode: impl Fn(u64) -> Result<Inode>) -> Result<u64> {
        let up = |dir| match inode(dir) {
            Ok(inode) if inode.place != Place::default() => Ok(inode.place.dir),
            Ok(_) => Err(ErrorKind::NotFound.into()),
            Err(e) if e.kind() == ErrorKind::Stale => Err(ErrorKind::NotFound.into()),
            Err(e) => Err(e),
        };
        if dir == self.root {
            return Ok(dir);
        }
        let parent = up(dir)?;
        let mut at = parent;
        for _ in 0..DEPTH_MAX {
            if at == self.root || self.root == ROOT_INO {
                return Ok(parent);
            }
            at = up(at)?;
        }
        let why = "a directory holds itself: check the volume";
        Err(FsError::new(ErrorKind::Corrupt).on("read", format!("inode {dir}")).because(why))
    }

    /// What is at a path.
    fn find(&self, path: &Path, last: Last) -> Result<(u64, Kind)> {
        let bytes = path.as_os_str().as_bytes();
        if !bytes.is_empty()
            && let Walked::Done(_, _, found, _) = self.walk_on(self.start(bytes), bytes, last)?
        {
            return found.ok_or_else(|| ErrorKind::NotFound.into());
        }
        self.spot(path, last)?.found.ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn directory(&self, path: &Path) -> Result<u64> {
        match self.find(path, Last::Follow)? {
            (ino, Kind::Directory) => Ok(ino),
            _ => Err(ErrorKind::NotDirectory.into()),
        }
    }
}

/// A path without its last name, if that are at least two names, and no slash ends it.
fn above(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().rposition(|&b| b == b'/')? + 1;
    let names = path[..end].split(|&b| b == b'/').filter(|name| !name.is_empty());
    (end < path.len() && names.take(2).count() == 2).then(|| &path[..end])
}

/// Makes a path the subject of an error that has none.
fn named<'p>(op: &'static str, path: &'p Path) -> impl Fn(FsError) -> FsError + 'p {
    move |e| {
        // Gone between two looks.
        let e = if e.kind() == ErrorKind::Stale { FsError::from(ErrorKind::NotFound) } else { e };
        match e.subject() {
            Some(subject) if subject == path.to_string_lossy() => e,
            Some(_) => FsError::new(e.kind()).on(op, path.display()).because(e),
            None => e.on(op, path.display()),
        }
    }
}
