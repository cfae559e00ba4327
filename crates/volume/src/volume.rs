//! A volume as a whole: its file, open once, with all its snapshots and branches.
//!
//! A [`Volume`] gives out a [`VolumeStore`] for what is to be worked in: each branch once at a time, each snapshot as often
//! as one likes. The file is locked while it is open: against every other process if it is open to be changed, else against
//! those that change it. What nobody sees any more is dropped by a thread of its own, in small batches. Not here: the check
//! ([`crate::check`]) and everything about mounts.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use adit_core::media::BlockFile;
use adit_core::types::{Access, Caller};
use adit_core::{ErrorKind, FsError, Result};
use adit_media::HostBlockFile;
use parking_lot::{Condvar, Mutex};

use crate::data_folder;
pub use crate::format::container::Durability;
use crate::format::container::{DataLocation, FORMAT_VERSION};
use crate::format::keys::NameHash;
use crate::store::VolumeStore;
use crate::table::{Base, NewFolder, NewVolume, Options, Space, Table};
pub use crate::table::{CAPACITY_MAX_BYTES, CAPACITY_MIN_BYTES};
use crate::tree::{Difference, MAIN, Mtimes, Restored, SnapshotInfo, Source, Tree};

/// How long a volume's file may become unless told otherwise, in bytes. It takes as much room as it holds.
pub const CAPACITY_DEFAULT_BYTES: u64 = 1 << 40;

/// What a new volume is to be.
#[derive(Clone, Copy, Debug)]
pub struct CreateOptions {
    /// How long the file may become, in bytes; by default [`CAPACITY_DEFAULT_BYTES`].
    pub capacity_bytes: Option<u64>,
    /// When its operations are safe from a power cut, unless who opens it says otherwise.
    pub durability: Durability,
    /// Whose its root is.
    pub owner: Caller,
    /// Permission bits of its root.
    pub perm: u16,
}

/// How a volume is opened.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// To read, which leaves the file as it is, or to change it.
    pub access: Access,
    /// Whether threads of its own make checkpoints, sync, and drop what nobody sees any more.
    pub background: bool,
    /// When operations are safe from a power cut; by default as the volume says.
    pub durability: Option<Durability>,
    /// Memory that it may take, in bytes: half of it for pages of metadata, half for what is not yet in a checkpoint.
    pub memory_bytes: u64,
}

/// Memory of a volume unless told otherwise, in bytes.
const MEMORY_DEFAULT_BYTES: u64 = 64 << 20;
/// Less than this for metadata makes every operation wait for checkpoints, in bytes.
const MEMORY_MIN_BYTES: u64 = 4 << 20;
/// More than this before a checkpoint only makes opening after a crash slow, in bytes.
const UNCHECKPOINTED_MAX_BYTES: u64 = 16 << 20;

impl OpenOptions {
    /// For `access`, with threads and 64 MiB of memory.
    pub fn new(access: Access) -> Self {
        OpenOptions { access, background: true, durability: None, memory_bytes: MEMORY_DEFAULT_BYTES }
    }

    fn base(&self) -> Options {
        let memory = self.memory_bytes.max(MEMORY_MIN_BYTES);
        Options {
            read_only: self.access == Access::Read,
            background: self.background,
            durability: self.durability,
            cache_bytes: (memory / 2) as usize,
            // There can be twice as much: while one part is moved, the next one fills.
            memory_bytes_max: Some((memory / 4).min(UNCHECKPOINTED_MAX_BYTES) as usize),
            ..Options::default()
        }
    }
}

/// What a volume is.
#[derive(Clone, Debug)]
pub struct VolumeInfo {
    /// The version of its format.
    pub format: u32,
    /// Its identity.
    pub uuid: [u8; 16],
    /// How long the file may become, in bytes.
    pub capacity_bytes: u64,
    /// Length of a segment in bytes.
    pub segment_len_bytes: u32,
    /// When its operations are safe from a power cut, unless a mount says otherwise.
    pub durability: Durability,
    /// The folder that holds the content of files, if it is not in the file.
    pub data_dir: Option<PathBuf>,
    /// Room, in blocks.
    pub space: Space,
    /// Operations that were found in the log when it was opened: more than none after a crash.
    pub replayed: usize,
    /// How many snapshots there are.
    pub snapshots: usize,
    /// How many branches there are, [`MAIN`] included.
    pub branches: usize,
    /// Whether there is nothing left to drop of what was deleted.
    pub collected: bool,
}

/// What a [`Volume::gc`] gave back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GcReport {
    /// Free blocks before.
    pub free_before: u64,
    /// Free blocks after.
    pub free_after: u64,
}

/// An open volume. Dropping it makes a checkpoint; [`Volume::close`] says whether that worked.
pub struct Volume {
    name: String,
    /// Where its data folder was said to be, whatever the file says.
    data: Option<PathBuf>,
    base: Arc<Base>,
    tree: Arc<Tree>,
    read_only: bool,
    collector: Option<Collector>,
}

impl Volume {
    /// Makes a volume in a new file, durably, and opens it. `Exists` if the name is taken.
    pub fn create(path: &Path, new: &CreateOptions, options: &OpenOptions) -> Result<Volume> {
        Volume::create_with_data(path, None, new, options)
    }

    /// As [`Volume::create`], with the content of files in the folder `data`, which is made if it is not there.
    pub fn create_with_data(
        path: &Path,
        data: Option<&Path>,
        new: &CreateOptions,
        options: &OpenOptions,
    ) -> Result<Volume> {
        let name = path.display().to_string();
        let file = HostBlockFile::create(path).map_err(|e| FsError::from(e).on("create", &name))?;
        let folder_made = OnceCell::new();
        let make = |dir: &Path, uuid, label: &[u8]| {
            let folder = data_folder::create(path, dir, uuid, label)?;
            let _ = folder_made.set(dir.join(data_folder::part(uuid)));
            Ok(folder)
        };
        let made = || {
            let volume = match data {
                None => Volume::create_in(Arc::new(file), &name, new, options)?,
                Some(dir) => {
                    data_folder::ensure(dir)?;
                    let make = |uuid, label: &[u8]| make(dir, uuid, label);
                    let folder = NewFolder { path: data_folder::name_for(path, dir)?, make: &make };
                    Volume::make(Arc::new(file), Some(folder), &name, new, options)?
                }
            };
            data_folder::sync_parent(path).map_err(|e| FsError::from(e).on("sync", &name))?;
            Ok(volume)
        };
        let made = made();
        if made.is_err() {
            // It was ours and holds nothing; that it cannot be removed changes nothing about the failure.
            let _ = std::fs::remove_file(path);
            folder_made.get().inspect(|folder| data_folder::discard(folder));
        }
        made
    }

    /// Makes a volume in an empty file. `name` is for messages.
    pub fn create_in(
        file: Arc<dyn BlockFile>,
        name: &str,
        new: &CreateOptions,
        options: &OpenOptions,
    ) -> Result<Volume> {
        Volume::make(file, None, name, new, options)
    }

    fn make(
        file: Arc<dyn BlockFile>,
        folder: Option<NewFolder<'_>>,
        name: &str,
        new: &CreateOptions,
        options: &OpenOptions,
    ) -> Result<Volume> {
        let shape = NewVolume {
            capacity: new.capacity_bytes.unwrap_or(CAPACITY_DEFAULT_BYTES),
            segment_len: None,
            durability: new.durability,
        };
        let base = Base::create_with(file, name, &shape, folder, options.base())?;
        Tree::format(&base, new.owner, new.perm)?;
        base.checkpoint()?;
        Volume::with(base, name, options)
    }

    /// Opens the volume in a file of the host, with the folder that holds the content of its files, if one does.
    ///
    /// # Errors
    /// As [`Volume::open_in`]. `NotFound` if the folder is not there; `InvalidInput` if it is another volume's; `Stale` if it
    /// goes with an earlier or later state of the file.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Volume> {
        Volume::open_with_data(path, None, options)
    }

    /// As [`Volume::open`], with the content of files in the folder `data`, whatever the file says. If it is opened to be
    /// changed, it says so from then on. `InvalidInput` for a volume that has what files hold in its file.
    pub fn open_with_data(path: &Path, data: Option<&Path>, options: &OpenOptions) -> Result<Volume> {
        Volume::open_through(path, data, options, &|file| Arc::new(file))
    }

    /// As [`Volume::open_with_data`], with all that is done to its file going through what `wrap` makes of it.
    pub fn open_through(
        path: &Path,
        data: Option<&Path>,
        options: &OpenOptions,
        wrap: &dyn Fn(HostBlockFile) -> Arc<dyn BlockFile>,
    ) -> Result<Volume> {
        let name = path.display().to_string();
        let file = HostBlockFile::open(path, options.access).map_err(|e| FsError::from(e).on("open", &name))?;
        let find = |uuid, stored: &[u8]| match data {
            Some(dir) => data_folder::open(dir, uuid, options.access),
            None => data_folder::open(&data_folder::place(path, stored), uuid, options.access),
        };
        let base = Base::open_with(wrap(file), &name, &find, options.base())?;
        if data.is_some() && base.info().data == DataLocation::Inline {
            let why = "what its files hold is in the volume's own file, and in no folder";
            return Err(FsError::new(ErrorKind::InvalidInput).on("open", &name).because(why));
        }
        if let Some(dir) = data.filter(|_| options.access == Access::Write) {
            let stored = data_folder::name_for(path, dir)?;
            if stored != base.info().data_path {
                base.set_data_path(&stored)?;
            }
        }
        let mut volume = Volume::with(base, &name, options)?;
        volume.data = data.map(|dir| dir.canonicalize().unwrap_or_else(|_| dir.to_owned()));
        Ok(volume)
    }

    /// Opens the volume in `file`, after bringing it to a consistent state if it was not closed. `name` is for messages.
    ///
    /// # Errors
    /// `Busy` if another process has it; `InvalidInput` if it is no volume; `NotSupported` if it is one of a later version;
    /// `Corrupt`.
    pub fn open_in(file: Arc<dyn BlockFile>, name: &str, options: &OpenOptions) -> Result<Volume> {
        Volume::with(Base::open(file, name, options.base())?, name, options)
    }

    fn with(base: Base, name: &str, options: &OpenOptions) -> Result<Volume> {
        let base = Arc::new(base);
        let hash = NameHash::new(base.info().secret);
        let tree = Arc::new(Tree::open(base.clone(), base.clone(), hash)?);
        let read_only = options.access == Access::Read;
        let collector = (options.background && !read_only).then(|| Collector::start(tree.clone())).transpose()?;
        Ok(Volume { name: name.to_owned(), data: None, base, tree, read_only, collector })
    }

    /// The name that it was opened by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether nothing can be changed.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Why nothing can be changed any more, if an error of the file ended that: until it is opened again.
    pub fn failure(&self) -> Option<&str> {
        self.base.failure()
    }

    /// What lies below: operations on inodes, snapshots as ids.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// The table and the extents.
    pub(crate) fn base(&self) -> &Base {
        &self.base
    }

    /// The live tree. `Busy` if it is in use already.
    pub fn live(&self) -> Result<VolumeStore> {
        self.branch(MAIN)
    }

    /// A branch. `Busy` if it is in use already, `NotFound`.
    pub fn branch(&self, name: &str) -> Result<VolumeStore> {
        let source = Source::Branch(name.to_owned());
        if self.read_only {
            VolumeStore::open_to_read(&self.tree, source)
        } else {
            VolumeStore::open(&self.tree, source)
        }
    }

    /// A snapshot, to read. `NotFound`.
    pub fn snapshot(&self, name: &str) -> Result<VolumeStore> {
        VolumeStore::open(&self.tree, Source::Snapshot(self.tree.find_snapshot(name)?))
    }

    /// Snapshots and branches, the oldest first.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.tree.snapshots()
    }

    /// Makes a snapshot of a branch, durably: all operations that returned before are in it. `Exists`, `NotFound`.
    ///
    /// What the kernel holds of a mount that writes back later is not; have it written first.
    pub fn create_snapshot(&self, branch: &str, name: &str) -> Result<()> {
        self.tree.snapshot(branch, name)?;
        self.base.sync()
    }

    /// Deletes a snapshot, durably. `Busy` while it is in use. Its space comes back in the background, or by [`Volume::gc`].
    pub fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.tree.delete_snapshot(name)?;
        self.dropped()
    }

    /// Makes a branch that begins as a snapshot, durably. `Exists`, `NotFound`.
    pub fn create_clone(&self, snapshot: &str, name: &str) -> Result<()> {
        self.tree.branch(snapshot, name)?;
        self.base.sync()
    }

    /// Deletes a branch, durably. `Busy` while it is in use, `NotPermitted` for [`MAIN`].
    pub fn delete_clone(&self, name: &str) -> Result<()> {
        self.tree.delete_branch(name)?;
        self.dropped()
    }

    /// Sets a branch back to a snapshot, as one step and durably: all of it, or what is at `path` (names from the root).
    /// `Busy` while the branch is in use, for nobody would tell its caches. Tells what came of it beside that.
    pub fn restore(&self, branch: &str, snapshot: &str, path: &[&[u8]], mtimes: Mtimes) -> Result<Restored> {
        let source = Source::Branch(branch.to_owned());
        // Held for the time that it takes, so that nobody opens it meanwhile.
        let hold = self.tree.hold(source.clone())?;
        let restored = if path.is_empty() {
            self.tree.restore(branch, snapshot, mtimes)?;
            // It is held here, but nobody has a file of it open.
            self.tree.reap_all(&source)?;
            Restored::default()
        } else {
            let restored = self.tree.restore_path(branch, snapshot, path, mtimes)?;
            for gone in &restored.gone {
                self.tree.reap(&source, gone.0)?;
            }
            restored
        };
        drop(hold);
        self.dropped().map(|()| restored)
    }

    /// As [`Volume::restore`], of the branch that `store` shows. Whoever caches what the store says has to forget it, and must
    /// ask nothing meanwhile; [`Tree::between`] tells what.
    pub fn restore_in(&self, store: &VolumeStore, snapshot: &str, path: &[&[u8]], mtimes: Mtimes) -> Result<Restored> {
        let restored = match path {
            [] => store.restore(snapshot, mtimes).map(|()| Restored::default())?,
            path => store.restore_path(snapshot, path, mtimes)?,
        };
        self.dropped().map(|()| restored)
    }

    /// How `new` differs from `old`: names of snapshots or branches.
    pub fn diff(&self, old: &str, new: &str) -> Result<Vec<Difference>> {
        self.tree.diff(old, new)
    }

    /// What it is.
    pub fn info(&self) -> VolumeInfo {
        let info = self.base.info();
        let named = self.tree.snapshots();
        let branches = named.iter().filter(|info| info.is_branch).count();
        VolumeInfo {
            format: FORMAT_VERSION,
            uuid: info.uuid,
            capacity_bytes: info.capacity,
            segment_len_bytes: info.segment_len,
            durability: info.durability,
            data_dir: (info.data == DataLocation::External).then(|| {
                let stored = || data_folder::place(Path::new(&self.name), &info.data_path);
                self.data.clone().unwrap_or_else(stored).join(data_folder::part(info.uuid))
            }),
            space: crate::table::Extents::space(&*self.base),
            replayed: info.replayed,
            snapshots: named.len() - branches,
            branches,
            collected: self.tree.is_collected(),
        }
    }

    /// Changes how long the file may become, in bytes, durably. `NoSpace`, which tells the least, if what is there would not
    /// fit, `InvalidInput` if no volume can have that capacity.
    pub fn set_capacity(&self, bytes: u64) -> Result<()> {
        if self.read_only {
            return Err(FsError::new(ErrorKind::ReadOnly).on("resize", &self.name));
        }
        self.base.set_capacity(bytes)
    }

    /// Drops what nobody sees any more, packs the metadata, and gives free space back to the host.
    pub fn gc(&self) -> Result<GcReport> {
        if self.read_only {
            return Err(FsError::new(ErrorKind::ReadOnly).on("gc", &self.name));
        }
        let free = || crate::table::Extents::space(&*self.base).free;
        let free_before = free();
        self.tree.reap_unused()?;
        self.tree.note_forks();
        self.tree.collect()?;
        self.base.gc()?;
        Ok(GcReport { free_before, free_after: free() })
    }

    /// Makes everything durable.
    pub fn sync(&self) -> Result<()> {
        if self.read_only { Ok(()) } else { self.base.sync() }
    }

    /// Ends its threads and makes a checkpoint, if the host has space for one: a copy of the file is a backup now. Stores that are
    /// still in use go on, and what they change later lies in the log.
    pub fn close(&self) -> Result<()> {
        if let Some(collector) = &self.collector {
            collector.stop();
        }
        if self.read_only { Ok(()) } else { self.base.settle() }
    }

    /// After something was deleted.
    pub(crate) fn dropped(&self) -> Result<()> {
        self.base.sync()?;
        match &self.collector {
            Some(collector) => collector.wake(),
            None => self.tree.collect()?,
        }
        Ok(())
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if let Some(collector) = &self.collector {
            collector.stop();
        }
    }
}

#[derive(Default)]
struct ToCollect {
    wanted: bool,
    stop: bool,
}

/// The thread that drops what nobody sees any more. It has no part in the volume's life.
struct Collector {
    shared: Arc<(Mutex<ToCollect>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Collector {
    /// Starts with what the last opening left.
    fn start(tree: Arc<Tree>) -> Result<Collector> {
        let shared = Arc::new((Mutex::new(ToCollect { wanted: true, stop: false }), Condvar::new()));
        let work = shared.clone();
        let thread = std::thread::Builder::new().name("adit-collect".into()).spawn(move || collect(&tree, &work))?;
        Ok(Collector { shared, thread: Mutex::new(Some(thread)) })
    }

    fn wake(&self) {
        self.shared.0.lock().wanted = true;
        self.shared.1.notify_all();
    }

    /// Waits for the batch that it is at.
    fn stop(&self) {
        self.shared.0.lock().stop = true;
        self.shared.1.notify_all();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that drops deleted snapshots died");
        }
    }
}

fn collect(tree: &Tree, (state, changed): &(Mutex<ToCollect>, Condvar)) {
    loop {
        let mut work = state.lock();
        while !work.wanted && !work.stop {
            changed.wait(&mut work);
        }
        if work.stop {
            return;
        }
        work.wanted = false;
        drop(work);
        loop {
            match tree.collect_some() {
                Ok(true) if !state.lock().stop => {}
                Ok(_) => break,
                Err(e) if e.kind() == ErrorKind::Corrupt => {
                    tracing::warn!("something that was deleted still takes space: {e}");
                }
                Err(e) => {
                    // It is tried again after the next deletion, and at the next opening.
                    tracing::warn!("what was deleted still takes space: {e}");
                    break;
                }
            }
        }
    }
}
