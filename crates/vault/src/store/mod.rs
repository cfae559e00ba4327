//! A mounted vault as a [`Store`].
//!
//! - [`nodes`]: which inodes are known and where they lie;
//! - [`file`]: open content files, chunk by chunk; [`kept`]: those that stay open for a moment;
//! - [`entries`]: ciphertext paths, lookup, listing;
//! - [`change`]: create, mkdir, symlink, unlink, rmdir;
//! - [`rename`]: moves, replacement, exchange; [`steps`]: those that are several operations of the host;
//! - [`change_times`]: those that a kernel keeps itself;
//! - [`versions`]: second versions that sync programs made;
//! - [`leftovers`]: folders that could not be removed yet;
//! - [`removed`]: objects that are gone, and known;
//! - [`thrift`]: what is kept open gives its descriptors back first.
//!
//! Locking: `naming` is held shared by everything that goes from a name to an object or back, and alone by what takes
//! several host operations to look like one (rename, rmdir). Order: `naming`, then the journal's gate, then a file's
//! own lock, then the advisory lock of the host's file, then a shard of the nodes.

mod buffers;
mod change;
mod change_times;
mod entries;
mod file;
mod kept;
mod leftovers;
mod nodes;
mod removed;
mod rename;
mod rescue;
mod steps;
#[cfg(test)]
mod tests;
mod thrift;
mod versions;

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use adit_core::media::{HostDir, HostFile, SyncTarget};
use adit_core::store::{Capabilities, Created, DirEntry, NewNode, Spelling, Store, StoreFile};
use adit_core::types::{Access, Attr, Caller, FileName, Ino, Kind, RenameFlags, SetAttr, StatFs};
use adit_core::{ErrorKind, FsError, Result};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use zeroize::Zeroizing;

use self::buffers::Buffers;
use self::change_times::ChangeTimes;
use self::file::{Handle, HeaderOrBytes, VaultFile};
use self::kept::Kept;
use self::leftovers::Leftovers;
use self::nodes::{DirNode, Nodes, What};
use self::removed::RemovedObjects;
use self::thrift::Thrift;
use self::versions::Versions;
use crate::format::content::CHUNK_CLEAR_BYTES;
use crate::format::names::{DATA_DIR, DIR_FILE};
use crate::format::{ContentCipher, DirId, Layout, Masterkey, NameCipher, VaultConfig};
use crate::journal::recover::{self, RecoveryReport};
use crate::journal::{Journal, Op, VaultId, open_as_owner};

/// The name in messages of a file that has lost its own.
const UNLINKED_FILE: &str = "an unlinked file";
/// How often changes are made durable in the background, so that a power cut costs at most this much of them.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(5);
/// How often the background thread looks whether the journal has grown.
const JOURNAL_LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// How to open a vault.
pub struct OpenOptions<'a> {
    /// The vault's folder.
    pub root: Arc<dyn HostDir>,
    /// Where the redo journal lies, outside the vault; None for a read-only store.
    pub state: Option<Arc<dyn HostDir>>,
    /// Journals that dead mounts of this vault left elsewhere.
    pub abandoned: Vec<Arc<dyn HostDir>>,
    /// The keys.
    pub masterkey: &'a Masterkey,
    /// The verified configuration.
    pub config: &'a VaultConfig,
    /// Whether a thread makes checkpoints and closes files that were kept open, also of a read-only store. Without it, only
    /// `sync_all` and closing make any (crash tests).
    pub background: bool,
}

/// What is new or changed in a content directory since it was last made durable.
#[derive(Clone, Copy, Default)]
struct Unsynced {
    /// The directory itself was made, with its id file and the folder that names it.
    made: bool,
    /// Grows with each change: what a sync covered is told by it from what came later.
    stamp: u64,
}

/// The directories with changes that may not be durable.
#[derive(Default)]
struct UnsyncedDirs {
    dirs: HashMap<DirId, Unsynced>,
    /// Stored names in these directories that objects left for another one in the same directory.
    vacated: HashMap<DirId, HashSet<String>>,
    /// Files, directories and links that were made and not synced since, each with the count of changes then.
    fresh: HashMap<Ino, u64>,
    changes: u64,
}

impl UnsyncedDirs {
    fn touch(&mut self, dir: &DirId, made: bool) {
        self.changes += 1;
        let unsynced = self.dirs.entry(dir.clone()).or_default();
        unsynced.stamp = self.changes;
        unsynced.made |= made;
    }

    /// `ino` was made.
    fn made(&mut self, ino: Ino) {
        self.changes += 1;
        self.fresh.insert(ino, self.changes);
    }

    /// A sync that began when `dir` was at `stamp` has succeeded.
    fn synced(&mut self, dir: &DirId, stamp: u64) {
        if self.dirs.get(dir).is_some_and(|u| u.stamp == stamp) {
            self.forget(dir);
        }
    }

    /// Nothing of `dir` is unsynced, or it is gone.
    fn forget(&mut self, dir: &DirId) {
        self.dirs.remove(dir);
        self.vacated.remove(dir);
    }
}

/// The part of the store that open files share.
pub(crate) struct Shared {
    root: Arc<dyn HostDir>,
    names: NameCipher,
    content: ContentCipher,
    layout: Layout,
    threshold: u32,
    nodes: Nodes,
    root_dir: Arc<DirNode>,
    removed: RemovedObjects,
    naming: RwLock<()>,
    pub(crate) journal: Option<Journal>,
    unsynced: Mutex<UnsyncedDirs>,
    buffers: Buffers,
    kept: Arc<Kept>,
    /// Per directory, what its latest whole listing left out.
    left_out: Mutex<HashMap<Ino, Vec<entries::Unnamed>>>,
    leftovers: Leftovers,
    versions: Versions,
    change_times: ChangeTimes,
    /// See [`Store::wind_up`].
    winding_up: AtomicBool,
}

/// A vault, open.
pub struct VaultStore {
    shared: Arc<Shared>,
    keeper: Option<(Sender<()>, JoinHandle<()>)>,
}

/// The id under which a vault's journals are kept: derived from its keys, the same after a change of password.
pub fn vault_id(masterkey: &Masterkey) -> VaultId {
    use aws_lc_rs::hmac;
    let key = hmac::Key::new(hmac::HMAC_SHA256, masterkey.mac());
    let tag = hmac::sign(&key, b"adit vault journal id");
    let mut id = VaultId::default();
    id.copy_from_slice(&tag.as_ref()[..16]);
    id
}

/// The key under which indexes of a vault are encrypted: derived from its keys, the same after a change of password. It says nothing of
/// them, and serves nothing else.
pub fn index_key(masterkey: &Masterkey) -> Zeroizing<[u8; 32]> {
    use aws_lc_rs::hmac;
    let key = hmac::Key::new(hmac::HMAC_SHA256, masterkey.raw());
    let mut out = Zeroizing::new([0; 32]);
    out.copy_from_slice(hmac::sign(&key, b"adit vault index key").as_ref());
    out
}

impl VaultStore {
    /// Opens the vault, after recovering what dead mounts left in its journals.
    ///
    /// If a journal cannot be recovered, it stays, and the next opening goes on from there. Meanwhile the vault opens
    /// without `state`, and can be read as it is.
    ///
    /// # Errors
    /// `NotSupported` if it is to be changed and its host cannot do that ([`HostDir::trial`]); `Corrupt` if the root directory
    /// is not there or a journal is another vault's; what the host says.
    pub fn open(options: OpenOptions<'_>) -> Result<(VaultStore, RecoveryReport)> {
        let OpenOptions { root, state, abandoned, masterkey, config, background } = options;
        let names = NameCipher::new(masterkey);
        let content =
            ContentCipher::new(masterkey, config.cipher_combo).map_err(|e| FsError::new(ErrorKind::Io).because(e))?;
        let id = vault_id(masterkey);
        let root_dir = DirNode::new(Ino::ROOT, DirId::root(), &names);
        let mut left = Vec::new();
        for (slot, dir) in abandoned.iter().chain(&state).enumerate() {
            left.extend(recover::leftovers(dir, slot)?);
        }
        let kept = Arc::new(Kept::new());
        let thrift: Arc<dyn HostDir> = Arc::new(Thrift { host: root.clone(), kept: kept.clone() });
        let journal = match state {
            Some(state) => {
                root.trial(Path::new(DATA_DIR)).map_err(|e| {
                    let why = format!("the filesystem that the vault lies on lacks what changes need: {e}");
                    FsError::new(ErrorKind::NotSupported).on("write in", DATA_DIR).because(why)
                })?;
                Some(Journal::create(thrift.clone(), state, id)?)
            }
            None => None,
        };
        let shared = Arc::new(Shared {
            root: thrift,
            layout: content.layout(),
            names,
            content,
            threshold: config.shortening_threshold,
            nodes: Nodes::new(),
            root_dir,
            removed: RemovedObjects::default(),
            naming: RwLock::new(()),
            journal,
            unsynced: Mutex::default(),
            buffers: Buffers::default(),
            left_out: Mutex::default(),
            kept,
            leftovers: Leftovers::default(),
            versions: Versions::default(),
            change_times: ChangeTimes::default(),
            winding_up: AtomicBool::new(false),
        });
        // From here on an error closes the journal: nobody is to find one that tells nothing.
        let mut store = VaultStore { shared, keeper: None };
        let report = store.recover(id, &left)?;
        let shared = &store.shared;
        let dir = shared.root_dir.hash.path();
        shared.root.stat(Path::new(&dir)).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => FsError::new(ErrorKind::Corrupt)
                .on("open", &dir)
                .because("the vault's root directory is not there: is the vault complete, and the key file its own?"),
            _ => FsError::from(e).on("open", &dir),
        })?;
        store.keeper = background.then(|| start_keeper(store.shared.clone()));
        Ok((store, report))
    }

    fn recover(&self, id: VaultId, left: &[recover::Leftover]) -> Result<RecoveryReport> {
        let shared = &self.shared;
        if shared.journal.is_none() {
            if !left.is_empty() {
                tracing::warn!("a dead mount left changes in a journal; the next writable mount recovers them");
            }
            return Ok(RecoveryReport::default());
        }
        let mut rescue = |lost: recover::Rescue<'_>| rescue::keep(shared, &lost);
        let report = recover::recover(&*shared.root, &shared.content, &shared.names, id, left, &mut rescue)?;
        if let Some(journal) = &shared.journal {
            shared.leftovers.begin(&*shared.root, journal.state());
            shared.change_times.begin(journal.state());
        }
        shared.checkpoint(Journal::is_dirty)?;
        Ok(report)
    }
}

/// The thread that makes checkpoints, and closes files that were kept open long enough.
fn start_keeper(shared: Arc<Shared>) -> (Sender<()>, JoinHandle<()>) {
    let (stop, stopped) = channel();
    let thread = std::thread::spawn(move || {
        let mut waited = Duration::ZERO;
        while stopped.recv_timeout(JOURNAL_LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            waited += JOURNAL_LOOK_INTERVAL;
            shared.kept.expire();
            shared.leftovers.retry(&*shared.root);
            let Some(journal) = &shared.journal else { continue };
            if (waited >= CHECKPOINT_INTERVAL && journal.is_dirty()) || journal.wants_checkpoint() {
                waited = Duration::ZERO;
                if let Err(e) = shared.checkpoint(Journal::is_dirty) {
                    tracing::error!("checkpoint: {e}");
                }
            }
        }
    });
    (stop, thread)
}

impl Drop for VaultStore {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.keeper.take() {
            drop(stop);
            let _ = thread.join();
        }
        // They hold what they are kept in.
        self.shared.kept.clear();
        let Some(journal) = &self.shared.journal else { return };
        self.shared.leftovers.end(&*self.shared.root, journal.state());
        if let Err(e) = journal.close() {
            tracing::error!("closing the vault: {e}");
        }
    }
}

impl Shared {
    /// Begins an operation that changes the vault. May make a checkpoint first: the caller holds no lock.
    pub(crate) fn begin(&self) -> Result<Op<'_>> {
        self.make_room()?.begin()
    }

    /// The journal, after a checkpoint if it is too full for more.
    fn make_room(&self) -> Result<&Journal> {
        let journal = self.journal.as_ref().ok_or(ErrorKind::ReadOnly)?;
        if journal.is_full() {
            self.checkpoint(Journal::is_full)?;
        }
        Ok(journal)
    }

    /// Begins an operation during which names stay as they are. A checkpoint that is due comes before the lock: whoever
    /// waits for `naming` does not wait for that. What must be durable before or behind a change of names (a record, the
    /// directories of a move between two) is synced with the lock held, and is waited for.
    fn begin_naming(&self) -> Result<(RwLockReadGuard<'_, ()>, Op<'_>)> {
        let journal = self.make_room()?;
        let naming = self.naming.read();
        Ok((naming, journal.begin()?))
    }

    /// As [`Shared::begin_naming`], alone with all names.
    fn begin_naming_alone(&self) -> Result<(RwLockWriteGuard<'_, ()>, Op<'_>)> {
        let journal = self.make_room()?;
        let naming = self.naming.write();
        Ok((naming, journal.begin()?))
    }

    /// See [`Journal::checkpoint`].
    fn checkpoint(&self, due: impl FnOnce(&Journal) -> bool) -> Result<()> {
        let Some(journal) = &self.journal else { return Ok(()) };
        let (before, changes) = {
            let unsynced = self.unsynced.lock();
            (unsynced.dirs.clone(), unsynced.changes)
        };
        if journal.checkpoint(due)? {
            let mut unsynced = self.unsynced.lock();
            unsynced.fresh.retain(|_, made| *made > changes);
            before.iter().for_each(|(dir, u)| unsynced.synced(dir, u.stamp));
        }
        Ok(())
    }

    /// Entries of `dir` changed.
    fn touched(&self, dir: &DirNode) {
        self.unsynced.lock().touch(&dir.id, false);
    }

    /// An object left the name that is stored as `stored` for another one in `dir`.
    fn vacated(&self, dir: &DirNode, stored: &str) {
        self.unsynced.lock().vacated.entry(dir.id.clone()).or_default().insert(stored.to_owned());
    }

    /// The name `stored` in `dir` is about to be given to an object. If another one has just left it, that one's new name
    /// becomes durable first: should only the later of the two changes reach the disk, it would have none.
    fn before_reuse(&self, dir: &Arc<DirNode>, stored: &str) -> Result<()> {
        let vacated = self.unsynced.lock().vacated.get(&dir.id).is_some_and(|names| names.contains(stored));
        if vacated { self.sync_entries(dir) } else { Ok(()) }
    }

    /// Whether some file, directory or link in `dir` was made and not synced since. One that nobody knows any more may be.
    fn has_fresh(&self, dir: Ino) -> Result<bool> {
        let _naming = self.naming.read();
        let dir = self.directory(dir)?;
        let unsynced = self.unsynced.lock();
        Ok(unsynced.fresh.keys().any(|&ino| self.nodes.lies_in(ino, &dir.id).unwrap_or(true)))
    }

    /// Makes the names that lead to `ino` durable.
    pub(crate) fn sync_names(&self, ino: Ino) -> Result<()> {
        let Some(place) = self.nodes.place(ino) else { return Ok(()) };
        let (stored, long) = self.stored_name(&place.parent, &place.name)?;
        // That the entries of the directory are durable says nothing of those of a folder in it: another file's sync may
        // have made them so.
        let unsynced =
            |unsynced: &UnsyncedDirs| unsynced.fresh.contains_key(&ino) || unsynced.dirs.contains_key(&place.parent.id);
        if long && unsynced(&self.unsynced.lock()) {
            self.sync_dir_at(&format!("{}/{stored}", place.parent.hash))?;
        }
        self.sync_entries(&place.parent)
    }

    /// Makes the entries of `dir` durable, and the names of the directories above it that are not.
    fn sync_entries(&self, dir: &Arc<DirNode>) -> Result<()> {
        let mut dir = dir.clone();
        for _ in 0..change::DEPTH_MAX {
            let unsynced = self.unsynced.lock().dirs.get(&dir.id).copied();
            let above = self.nodes.place(dir.ino);
            // The entry goes when the sync is through, not before: whoever comes meanwhile syncs as well.
            if let Some(unsynced) = unsynced {
                self.sync_one(&dir, unsynced, above.as_ref())?;
                self.unsynced.lock().synced(&dir.id, unsynced.stamp);
            }
            match above {
                Some(place) => dir = place.parent,
                None => break,
            }
        }
        Ok(())
    }

    /// Makes those directories durable, from `dir` upwards, that are not since they were made.
    fn sync_new_directories(&self, dir: &Arc<DirNode>) -> Result<()> {
        let mut dir = dir.clone();
        let mut newest = None;
        for _ in 0..change::DEPTH_MAX {
            if self.unsynced.lock().dirs.get(&dir.id).is_some_and(|u| u.made) {
                newest = newest.or_else(|| Some(dir.clone()));
            }
            match self.nodes.place(dir.ino) {
                Some(place) => dir = place.parent,
                None => break,
            }
        }
        newest.map_or(Ok(()), |dir| self.sync_entries(&dir))
    }

    fn sync_one(&self, dir: &DirNode, unsynced: Unsynced, place: Option<&nodes::Place>) -> Result<()> {
        let content = dir.hash.path();
        if unsynced.made {
            // Its id file needs no sync: until the next checkpoint, the intent of the directory above leads recovery to
            // `dir.c9r`, from which it writes a lost one again.
            if let Some(place) = place {
                let (stored, _) = self.stored_name(&place.parent, &place.name)?;
                let folder = format!("{}/{stored}", place.parent.hash);
                self.sync_file_at(&format!("{folder}/{DIR_FILE}"))?;
                self.sync_dir_at(&folder)?;
            }
        }
        self.sync_dir_at(&content)?;
        if unsynced.made {
            self.sync_dir_at(&format!("d/{}", dir.hash.prefix()))?;
            self.sync_dir_at("d")?;
        }
        Ok(())
    }

    fn sync_dir_at(&self, path: &str) -> Result<()> {
        match self.root.sync(SyncTarget::Dir(Path::new(path))) {
            // It was renamed or removed meanwhile, and that will be made durable where it happened.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(|e| self.sync_failed(e, path)),
        }
    }

    fn sync_file_at(&self, path: &str) -> Result<()> {
        match self.root.open(Path::new(path), Access::Read) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            // That nobody lets us open it says nothing of the disk.
            Err(_) => self.root.sync(SyncTarget::All).map_err(|e| self.sync_failed(e, path)),
            Ok(file) => file.sync(false).map_err(|e| self.sync_failed(e, path)),
        }
    }

    /// After a failed sync nobody knows what is durable, and the next one would succeed: the journal stays.
    fn sync_failed(&self, e: std::io::Error, path: &str) -> FsError {
        if let Some(journal) = &self.journal {
            journal.keep(&format!("{path}: a sync failed"));
        }
        FsError::from(e).on("sync", path)
    }

    fn known(&self, ino: Ino) -> Result<nodes::Known> {
        self.nodes.get(ino).ok_or_else(|| ErrorKind::Stale.into())
    }

    /// The open file of `ino`, if there is one.
    fn live_file(&self, ino: Ino) -> Option<Arc<VaultFile>> {
        match self.nodes.get(ino)?.what {
            What::File(weak) => weak.upgrade(),
            _ => None,
        }
    }
}

impl VaultStore {
    fn open_file(&self, ino: Ino, access: Access) -> Result<Arc<VaultFile>> {
        open_file(&self.shared, ino, access)
    }
}

fn open_file(shared: &Arc<Shared>, ino: Ino, access: Access) -> Result<Arc<VaultFile>> {
    if file::writable(access) && shared.journal.is_none() {
        return Err(ErrorKind::ReadOnly.into());
    }
    let _naming = shared.naming.read();
    let known = shared.known(ino)?;
    let What::File(weak) = &known.what else {
        let kind = if known.what.kind() == Kind::Directory { ErrorKind::IsDirectory } else { ErrorKind::InvalidInput };
        return Err(kind.into());
    };
    // Another client may have put another content in its place, header and all, since it was opened.
    let live = weak.upgrade();
    if live.as_ref().is_some_and(|file| !file.is_current()) {
        shared.kept.remove(ino);
        drop(live);
    } else if let Some(file) = live {
        if file::writable(access) {
            file.ensure_writable(|| open_host(shared, ino, access).map(|(host, _)| host))?;
        }
        shared.kept.keep(ino, &file);
        return Ok(file);
    }
    let (host, path) = open_host(shared, ino, access)?;
    // Before its header is read: that one is of this version, or a later one that is looked at again.
    let stat = host.stat().map_err(|e| FsError::from(e).on("open", &path))?;
    let (header, cipher) = file::open_content(shared, &path, &*host)?;
    let io = Handle { file: host.clone(), writable: file::writable(access), seen: Some(file::version(&stat)) };
    let made = VaultFile::new(shared.clone(), ino, stat.ino.0, HeaderOrBytes::Read(header), cipher, io);
    let file = shared.nodes.share_file(ino, Arc::new(made));
    if file::writable(access) {
        file.ensure_writable(|| Ok(host))?;
    }
    shared.kept.keep(ino, &file);
    Ok(file)
}

/// Opens the host's file of `ino`, where it lies or, if it has lost its name, as it is held. Second, what messages call it.
fn open_host(shared: &Shared, ino: Ino, access: Access) -> Result<(Arc<dyn HostFile>, String)> {
    let path = shared.object_path(ino);
    let opened = path.as_deref().map(|path| open_as_owner(&*shared.root, Path::new(path), access));
    let subject = path.unwrap_or_else(|| UNLINKED_FILE.to_owned());
    let opened = match opened {
        Some(Err(e)) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        Some(Ok(file)) => Ok(file),
        absent => match (shared.removed.open(ino, access), absent) {
            (Some(opened), _) => opened,
            (None, Some(absent)) => absent,
            (None, None) => return Err(ErrorKind::Stale.into()),
        },
    };
    opened.map(|file| (Arc::from(file), subject.clone())).map_err(|e| FsError::from(e).on("open", subject))
}

impl Store for VaultStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            read_only: self.shared.journal.is_none(),
            unit_len_bytes: CHUNK_CLEAR_BYTES,
            buffer_writes: true,
            shared: true,
            // Each is several questions to a host, which may be far away.
            slow_names: true,
            ..Capabilities::plain("vault")
        }
    }

    fn spelling(&self, name: FileName<'_>) -> Spelling {
        entries::spelling(name)
    }

    fn lookup(&self, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        let _naming = self.shared.naming.read();
        let dir = self.shared.directory(parent)?;
        self.shared.find(&dir, name).map(|found| found.attr)
    }

    fn forget(&self, ino: Ino) {
        self.shared.kept.remove(ino);
        // Before its number can come again.
        self.shared.removed.forget(ino);
        self.shared.nodes.forget(ino);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let _naming = self.shared.naming.read();
        self.shared.attr_of(ino)
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        if self.shared.journal.is_none() {
            return Err(ErrorKind::ReadOnly.into());
        }
        if let Some(size) = set.size {
            self.open_file(ino, Access::Write)?.set_len(size)?;
        }
        let rest = SetAttr { size: None, ..*set };
        if rest.is_empty() {
            let _naming = self.shared.naming.read();
            return self.shared.attr_of(ino);
        }
        // The epoch does not end between the note and the change: a checkpoint that covers the one covers the other.
        let (_naming, op) = self.shared.begin_naming()?;
        op.touch();
        self.shared.set_attr(ino, &rest)?;
        self.shared.attr_of(ino)
    }

    fn read_dir(&self, dir: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        let _naming = self.shared.naming.read();
        if self.shared.removed.contains(dir) {
            return Ok(());
        }
        let dir = self.shared.directory(dir)?;
        self.shared.list(&dir, start, sink)
    }

    fn left_out(&self, dir: Ino) -> Vec<FsError> {
        let told = self.shared.left_out.lock().get(&dir).cloned().unwrap_or_default();
        told.into_iter().map(|(kind, why)| FsError::new(kind).because(why)).collect()
    }

    fn create(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<(Attr, Arc<dyn StoreFile>)> {
        self.create_in(parent, name, new).map(|made| (made.attr, made.file))
    }

    fn create_in(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Created> {
        let (attr, file, parent) = change::create(&self.shared, parent, name, new)?;
        self.shared.kept.keep(attr.ino, &file);
        Ok(Created { attr, file, parent })
    }

    fn mkdir(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr> {
        change::mkdir(&self.shared, parent, name, new)
    }

    fn symlink(&self, parent: Ino, name: FileName<'_>, target: &[u8], caller: Caller) -> Result<Attr> {
        change::symlink(&self.shared, parent, name, target, caller)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let _naming = self.shared.naming.read();
        self.shared.link_target(ino)
    }

    fn unlink(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        change::unlink(&self.shared, parent, name)
    }

    fn rmdir(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        change::rmdir(&self.shared, parent, name)
    }

    fn rename(
        &self,
        parent: Ino,
        name: FileName<'_>,
        new_parent: Ino,
        new_name: FileName<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        rename::rename(&self.shared, (parent, name), (new_parent, new_name), flags)
    }

    fn open(&self, ino: Ino, access: Access) -> Result<Arc<dyn StoreFile>> {
        let file: Arc<VaultFile> = self.open_file(ino, access)?;
        Ok(file)
    }

    fn sync_dir(&self, dir: Ino) -> Result<()> {
        if self.shared.journal.is_none() || self.shared.removed.contains(dir) {
            return Ok(());
        }
        // A new object without a durable header or id would not survive under its durable name.
        if self.shared.has_fresh(dir)? {
            self.shared.checkpoint(Journal::is_dirty)?;
        }
        let (_naming, _op) = self.shared.begin_naming()?;
        let dir = self.shared.directory(dir)?;
        self.shared.touched(&dir);
        self.shared.sync_entries(&dir)
    }

    fn sync_all(&self) -> Result<()> {
        self.shared.checkpoint(Journal::is_dirty)
    }

    fn statfs(&self) -> Result<StatFs> {
        let host = self.shared.root.statfs().map_err(|e| FsError::from(e).on("statfs", "the vault"))?;
        Ok(StatFs { name_len_max: adit_core::types::NAME_LEN_MAX_BYTES as u32, ..host })
    }

    fn path_of(&self, ino: Ino) -> Option<String> {
        // The ciphertext path: what is logged must not tell cleartext names.
        self.shared.object_path(ino)
    }

    fn name_of(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        let known = self.shared.nodes.get(ino)?;
        let place = known.place.filter(|_| known.what.kind() != Kind::Directory)?;
        Some((place.parent.ino, place.name.into_string().into_bytes()))
    }

    fn wind_up(&self) {
        self.shared.winding_up.store(true, Ordering::Relaxed);
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let syncs = self.shared.journal.as_ref().map_or(0, Journal::syncs);
        vec![("vault_nodes", self.shared.nodes.len() as u64), ("journal_syncs", syncs)]
    }
}
