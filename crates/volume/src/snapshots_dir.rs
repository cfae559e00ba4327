//! A branch with the volume's snapshots in its hidden directory `.snapshots`, as one [`Store`].
//!
//! [`SnapshotsDir`] wraps the [`VolumeStore`] of a branch. The root finds `.snapshots`, but does not list it; in it each
//! snapshot is a directory, read-only, with the tree that it holds. An entry of that name that was made otherwise (without a
//! mount) goes first: what is stored is never hidden.
//!
//! **Inode numbers.** The tree's own numbers stay below 2^48; above is the *slot* of the snapshot, so that nothing of a
//! snapshot is taken for a further name of what is live. Ids of snapshots do not fit there: a snapshot gets a free slot when
//! it is first seen, and keeps it until it is deleted and nothing of it is known any more. So numbers last as long as a
//! mount knows them, and may differ at the next one.
//!
//! **Deleting.** What is open keeps a snapshot from being deleted ([`SnapshotsDir::retire`]); what is only known, such as a
//! working directory, is `Stale` then.
//!
//! Lock: the table of slots, held over no call that writes, and never taken by one who holds a view of the tree.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_core::media::Remains;
use adit_core::store::{Capabilities, Created, DirEntry, NewNode, Store, StoreFile};
use adit_core::types::{
    Access, AllocateMode, Attr, Caller, FileName, Ino, Kind, RenameFlags, SetAttr, StatFs, XattrName, XattrSet,
};
use adit_core::{ErrorKind, FsError, Result};
use parking_lot::{Condvar, Mutex};

use crate::format::keys::Id;
use crate::store::VolumeStore;
use crate::tree::{SnapshotInfo, Source, Tree};

/// The hidden name.
pub const SNAPSHOTS_NAME: &str = ".snapshots";
/// Bits of the tree's own inode numbers. A volume whose counter has come half as far shows no snapshots; that takes centuries.
const OWN_BITS: u32 = 48;
/// The slot of the directory itself; those of snapshots are below.
const DIR_SLOT: u64 = 0x7fff;
/// The inode of the hidden directory.
pub const SNAPSHOTS_INO: Ino = Ino(DIR_SLOT << OWN_BITS | 1);
/// How long closes and calls that are under way are waited for, before a snapshot counts as in use.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);
/// How often it is looked whether the last call has ended.
const CALL_STEP: Duration = Duration::from_millis(1);

/// A snapshot that was seen.
struct Slot {
    id: Id,
    name: String,
    /// `None` until it is looked up, and once it is gone.
    store: Option<VolumeStore>,
    /// Deleted, or about to be.
    gone: bool,
    known: HashSet<u64>,
    open: usize,
}

#[derive(Default)]
struct Slots {
    by_number: BTreeMap<u64, Slot>,
    /// Names that are not found, because their snapshots are about to be deleted.
    retiring: HashSet<String>,
    last: u64,
}

struct Inner {
    live: VolumeStore,
    /// Whether there are numbers for it.
    shown: bool,
    slots: Mutex<Slots>,
    closed: Condvar,
}

/// See the module's notes. Cheap to clone.
#[derive(Clone)]
pub struct SnapshotsDir(Arc<Inner>);

/// Keeps a snapshot out of sight, and out of use, until it is dropped; see [`SnapshotsDir::retire`].
pub struct Retired {
    dir: SnapshotsDir,
    name: String,
    slot: Option<(u64, Id)>,
}

impl Drop for Retired {
    /// Back in sight, if it was not deleted.
    fn drop(&mut self) {
        let mut slots = self.dir.0.slots.lock();
        slots.retiring.remove(&self.name);
        let Some((number, id)) = self.slot else { return };
        if self.dir.tree().find_snapshot(&self.name).is_ok_and(|found| found == id)
            && let Some(slot) = slots.by_number.get_mut(&number)
        {
            slot.gone = false;
            slot.store = VolumeStore::open(self.dir.tree(), Source::Snapshot(id)).ok();
        }
        slots.tidy(number);
    }
}

impl Slots {
    /// The number of the slot of a snapshot, which is made if it has none.
    fn number(&mut self, id: Id, name: &str) -> Result<u64> {
        if let Some((&number, _)) = self.by_number.iter().find(|(_, slot)| slot.id == id && !slot.gone) {
            return Ok(number);
        }
        // In turn, so that a number comes back late.
        let next = (0..DIR_SLOT - 1).map(|step| (self.last + step) % (DIR_SLOT - 1) + 1);
        let number =
            next.into_iter().find(|number| !self.by_number.contains_key(number)).ok_or(ErrorKind::Exhausted)?;
        self.last = number;
        let slot = Slot { id, name: name.to_owned(), store: None, gone: false, known: HashSet::new(), open: 0 };
        self.by_number.insert(number, slot);
        Ok(number)
    }

    /// Gives back the slot of a deleted snapshot that nobody knows any more.
    fn tidy(&mut self, number: u64) {
        let is_over = |slot: &Slot| slot.gone && slot.known.is_empty() && slot.open == 0;
        if self.by_number.get(&number).is_some_and(is_over) {
            self.by_number.remove(&number);
        }
    }

    /// A slot whose snapshot was looked up and is not deleted.
    fn known(&mut self, number: u64) -> Result<&mut Slot> {
        self.by_number.get_mut(&number).filter(|slot| slot.store.is_some()).ok_or_else(|| ErrorKind::Stale.into())
    }
}

/// Where an inode is.
enum At {
    Live,
    Dir,
    Snapshot(u64),
}

fn at(ino: Ino) -> At {
    match ino.0 >> OWN_BITS {
        0 => At::Live,
        DIR_SLOT => At::Dir,
        number => At::Snapshot(number),
    }
}

/// The number of an inode within its snapshot.
fn own(ino: Ino) -> Ino {
    Ino(ino.0 & ((1 << OWN_BITS) - 1))
}

fn mapped(number: u64, ino: Ino) -> Ino {
    Ino(number << OWN_BITS | ino.0)
}

fn is_hidden(parent: Ino, name: FileName<'_>) -> bool {
    parent == Ino::ROOT && name.as_bytes() == SNAPSHOTS_NAME.as_bytes()
}

fn read_only<T>(op: &'static str, name: FileName<'_>) -> Result<T> {
    Err(FsError::new(ErrorKind::ReadOnly).on(op, name.display()))
}

impl SnapshotsDir {
    /// Shows the snapshots of its volume in `live`, a branch.
    pub fn new(live: VolumeStore) -> SnapshotsDir {
        let shown = live.tree().next_ino() >> (OWN_BITS - 1) == 0;
        if !shown {
            tracing::warn!(
                "{SNAPSHOTS_NAME} is left out: the volume's inode numbers leave no room for those of snapshots"
            );
        }
        SnapshotsDir(Arc::new(Inner { live, shown, slots: Mutex::default(), closed: Condvar::new() }))
    }

    /// The branch.
    pub fn live(&self) -> &VolumeStore {
        &self.0.live
    }

    fn tree(&self) -> &Arc<Tree> {
        self.0.live.tree()
    }

    /// Lets go of a snapshot that is to be deleted: it is not found any more, and what is known of it is `Stale`, until the
    /// answer is dropped; for good if it is deleted by then. Whoever caches entries of [`SNAPSHOTS_INO`] has to forget it.
    ///
    /// Waits for calls that are under way.
    ///
    /// # Errors
    /// `Busy` if a file of it is open, or a call does not end.
    pub fn retire(&self, name: &str) -> Result<Retired> {
        let mut slots = self.0.slots.lock();
        slots.retiring.insert(name.to_owned());
        let mut retired = Retired { dir: self.clone(), name: name.to_owned(), slot: None };
        let is_it = |slot: &Slot| slot.name == name && !slot.gone;
        let Some(number) = slots.by_number.iter().find(|(_, slot)| is_it(slot)).map(|(&number, _)| number) else {
            drop(slots);
            return Ok(retired);
        };
        let deadline = Instant::now() + CLOSE_PATIENCE;
        let busy = |why: String| FsError::new(ErrorKind::Busy).on("delete", format!("snapshot {name}")).because(why);
        let mut store = None;
        while let Some(slot) = slots.by_number.get_mut(&number) {
            if slot.open == 0 {
                retired.slot = Some((number, slot.id));
                (slot.gone, store) = (true, slot.store.take());
                break;
            }
            if self.0.closed.wait_until(&mut slots, deadline).timed_out() {
                drop(slots);
                return Err(busy(format!("a file in {SNAPSHOTS_NAME}/{name} is open")));
            }
        }
        drop(slots);
        // Calls that have begun have a clone of their own. New ones find none.
        while store.as_ref().is_some_and(|store| Arc::strong_count(&store.0) > 1) {
            if Instant::now() >= deadline {
                return Err(busy(format!("something in {SNAPSHOTS_NAME}/{name} is being read")));
            }
            std::thread::sleep(CALL_STEP);
        }
        Ok(retired)
    }

    /// The store of a snapshot; `Stale` if it was deleted.
    fn snapshot(&self, number: u64) -> Result<VolumeStore> {
        self.0.slots.lock().known(number)?.store.clone().ok_or_else(|| ErrorKind::Stale.into())
    }

    /// Whether `.snapshots` is ours, and not an entry that somebody made.
    fn is_ours(&self, parent: Ino, name: FileName<'_>) -> bool {
        let is_absent =
            || -> Result<bool> { self.0.live.0.view()?.entry(parent.0, name.as_bytes()).map(|entry| entry.is_none()) };
        self.0.shown && is_hidden(parent, name) && is_absent().unwrap_or(false)
    }

    fn listed(&self) -> Vec<SnapshotInfo> {
        let mut listed = self.tree().snapshots();
        listed.retain(|info| !info.is_branch);
        listed.sort_unstable_by_key(|info| info.id);
        listed
    }

    fn dir_attr(&self) -> Result<Attr> {
        let root = self.0.live.getattr(Ino::ROOT)?;
        let listed = self.listed();
        let changed = listed.iter().map(|info| info.created).max().unwrap_or(root.ctime);
        let nlink = u32::try_from(listed.len()).unwrap_or(u32::MAX).saturating_add(2);
        let times = Attr { atime: changed, mtime: changed, ctime: changed, ..root };
        Ok(Attr { ino: SNAPSHOTS_INO, size: 0, blocks: 0, perm: 0o555, nlink, ..times })
    }

    /// The root of a snapshot.
    fn find(&self, name: FileName<'_>) -> Result<Attr> {
        let missing = || FsError::new(ErrorKind::NotFound).on("lookup", name.display());
        let text = std::str::from_utf8(name.as_bytes()).map_err(|_| missing())?;
        let mut slots = self.0.slots.lock();
        if slots.retiring.contains(text) {
            return Err(missing());
        }
        let id = self.tree().find_snapshot(text).map_err(|_| missing())?;
        let number = slots.number(id, text)?;
        let slot = slots.by_number.get_mut(&number).ok_or(ErrorKind::Stale)?;
        let store = match &slot.store {
            Some(store) => store.clone(),
            None => VolumeStore::open(self.tree(), Source::Snapshot(id))?,
        };
        let attr = store.getattr(Ino::ROOT)?;
        slot.store = Some(store);
        slot.known.insert(Ino::ROOT.0);
        Ok(Attr { ino: mapped(number, attr.ino), ..attr })
    }

    /// Notes that an inode of a snapshot is known.
    fn learnt(&self, number: u64, attr: Attr) -> Result<Attr> {
        self.0.slots.lock().known(number)?.known.insert(attr.ino.0);
        Ok(Attr { ino: mapped(number, attr.ino), ..attr })
    }

    /// Refuses to make `name`, unless in the branch.
    fn check_new(&self, op: &'static str, parent: Ino, name: FileName<'_>) -> Result<()> {
        match at(parent) {
            At::Live if self.is_ours(parent, name) => Err(FsError::new(ErrorKind::Exists).on(op, name.display())),
            At::Live => Ok(()),
            At::Dir | At::Snapshot(_) => read_only(op, name),
        }
    }

    /// Refuses to take `name` away, unless from the branch.
    fn check_old(&self, op: &'static str, parent: Ino, name: FileName<'_>) -> Result<()> {
        match at(parent) {
            At::Live if self.is_ours(parent, name) => {
                let why = "it shows the volume's snapshots";
                Err(FsError::new(ErrorKind::NotPermitted).on(op, name.display()).because(why))
            }
            At::Live => Ok(()),
            At::Dir | At::Snapshot(_) => read_only(op, name),
        }
    }

    fn check_live(&self, op: &'static str, ino: Ino) -> Result<()> {
        match at(ino) {
            At::Live => Ok(()),
            At::Dir | At::Snapshot(_) => {
                Err(FsError::new(ErrorKind::ReadOnly).on(op, self.path_of(ino).unwrap_or_default()))
            }
        }
    }

    /// Hands out the snapshots; the cookie of each is its id.
    fn list(&self, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        for info in self.listed().into_iter().filter(|info| u64::from(info.id) > start) {
            let number = {
                let mut slots = self.0.slots.lock();
                if slots.retiring.contains(&info.name) {
                    continue;
                }
                slots.number(info.id, &info.name)?
            };
            let name = FileName::new(info.name.as_bytes())?;
            let ino = mapped(number, Ino::ROOT);
            if sink(DirEntry { cookie: u64::from(info.id), ino, kind: Kind::Directory, name }).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl Store for SnapshotsDir {
    fn capabilities(&self) -> Capabilities {
        self.0.live.capabilities()
    }

    fn lookup(&self, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        match at(parent) {
            At::Live if is_hidden(parent, name) && self.0.shown => match self.0.live.lookup(parent, name) {
                Err(e) if e.is_not_found() => self.dir_attr(),
                found => found,
            },
            At::Live => self.0.live.lookup(parent, name),
            At::Dir => self.find(name),
            At::Snapshot(number) => self.learnt(number, self.snapshot(number)?.lookup(own(parent), name)?),
        }
    }

    fn lookup_listed(&self, parent: Ino, entries: &[DirEntry<'_>]) -> Vec<Result<Attr>> {
        let each = |answer: Result<Attr>, number| answer.and_then(|attr| self.learnt(number, attr));
        match at(parent) {
            At::Live => self.0.live.lookup_listed(parent, entries),
            At::Dir => entries.iter().map(|entry| self.find(entry.name)).collect(),
            At::Snapshot(number) => match self.snapshot(number) {
                Ok(store) => {
                    let entries: Vec<_> = entries.iter().map(|e| DirEntry { ino: own(e.ino), ..*e }).collect();
                    let answers = store.lookup_listed(own(parent), &entries).into_iter();
                    answers.map(|answer| each(answer, number)).collect()
                }
                Err(e) => entries.iter().map(|_| Err(FsError::new(e.kind()))).collect(),
            },
        }
    }

    fn forget(&self, ino: Ino) {
        match at(ino) {
            At::Live => self.0.live.forget(ino),
            At::Dir => {}
            At::Snapshot(number) => {
                let mut slots = self.0.slots.lock();
                if let Some(slot) = slots.by_number.get_mut(&number) {
                    slot.known.remove(&own(ino).0);
                }
                slots.tidy(number);
            }
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        match at(ino) {
            At::Live => self.0.live.getattr(ino),
            At::Dir => self.dir_attr(),
            At::Snapshot(number) => self.snapshot(number)?.getattr(own(ino)).map(|attr| Attr { ino, ..attr }),
        }
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.check_live("setattr", ino)?;
        self.0.live.setattr(ino, set)
    }

    fn read_dir(&self, dir: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        match at(dir) {
            At::Live => self.0.live.read_dir(dir, start, sink),
            At::Dir => self.list(start, sink),
            At::Snapshot(number) => self
                .snapshot(number)?
                .read_dir(own(dir), start, &mut |entry| sink(DirEntry { ino: mapped(number, entry.ino), ..entry })),
        }
    }

    fn left_out(&self, dir: Ino) -> Vec<FsError> {
        match at(dir) {
            At::Live => self.0.live.left_out(dir),
            At::Dir => Vec::new(),
            At::Snapshot(number) => self.snapshot(number).map_or_else(|_| Vec::new(), |store| store.left_out(own(dir))),
        }
    }

    fn create(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<(Attr, Arc<dyn StoreFile>)> {
        self.check_new("create", parent, name)?;
        self.0.live.create(parent, name, new)
    }

    fn create_in(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Created> {
        self.check_new("create", parent, name)?;
        self.0.live.create_in(parent, name, new)
    }

    fn mkdir(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr> {
        self.check_new("mkdir", parent, name)?;
        self.0.live.mkdir(parent, name, new)
    }

    fn symlink(&self, parent: Ino, name: FileName<'_>, target: &[u8], caller: Caller) -> Result<Attr> {
        self.check_new("symlink", parent, name)?;
        self.0.live.symlink(parent, name, target, caller)
    }

    fn mknod(&self, parent: Ino, name: FileName<'_>, kind: Kind, rdev: u32, new: &NewNode) -> Result<Attr> {
        self.check_new("mknod", parent, name)?;
        self.0.live.mknod(parent, name, kind, rdev, new)
    }

    fn link(&self, ino: Ino, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        if matches!(at(parent), At::Live) && !matches!(at(ino), At::Live) {
            return Err(FsError::new(ErrorKind::CrossDevice).on("link", name.display()));
        }
        self.check_new("link", parent, name)?;
        self.0.live.link(ino, parent, name)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        match at(ino) {
            At::Live => self.0.live.readlink(ino),
            At::Dir => Err(ErrorKind::InvalidInput.into()),
            At::Snapshot(number) => self.snapshot(number)?.readlink(own(ino)),
        }
    }

    fn unlink(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.check_old("unlink", parent, name)?;
        self.0.live.unlink(parent, name)
    }

    fn unlink_at_once(&self, parent: Ino, name: FileName<'_>) -> Result<Remains> {
        self.check_old("unlink", parent, name)?;
        self.0.live.unlink_at_once(parent, name)
    }

    fn rmdir(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.check_old("rmdir", parent, name)?;
        self.0.live.rmdir(parent, name)
    }

    fn rename(
        &self,
        parent: Ino,
        name: FileName<'_>,
        new_parent: Ino,
        new_name: FileName<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        if matches!(at(parent), At::Live) != matches!(at(new_parent), At::Live) {
            return Err(FsError::new(ErrorKind::CrossDevice).on("rename", name.display()));
        }
        self.check_old("rename", parent, name)?;
        self.check_old("rename", new_parent, new_name)?;
        self.0.live.rename(parent, name, new_parent, new_name, flags)
    }

    fn open(&self, ino: Ino, access: Access) -> Result<Arc<dyn StoreFile>> {
        let number = match at(ino) {
            At::Live => return self.0.live.open(ino, access),
            At::Dir => return Err(ErrorKind::IsDirectory.into()),
            At::Snapshot(number) => number,
        };
        // Counted first: whoever deletes the snapshot waits for what is counted.
        let store = {
            let mut slots = self.0.slots.lock();
            let slot = slots.known(number)?;
            slot.open += 1;
            slot.store.clone()
        };
        let using = Using { dir: self.clone(), number };
        let file = store.ok_or(ErrorKind::Stale)?.open(own(ino), access)?;
        Ok(Arc::new(SnapshotFile { file, _using: using }))
    }

    fn xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        match at(ino) {
            At::Live => self.0.live.xattr(ino, name),
            At::Dir => Err(ErrorKind::NoAttribute.into()),
            At::Snapshot(number) => self.snapshot(number)?.xattr(own(ino), name),
        }
    }

    fn xattr_names(&self, ino: Ino) -> Result<Vec<u8>> {
        match at(ino) {
            At::Live => self.0.live.xattr_names(ino),
            At::Dir => Ok(Vec::new()),
            At::Snapshot(number) => self.snapshot(number)?.xattr_names(own(ino)),
        }
    }

    fn set_xattr(&self, ino: Ino, name: XattrName<'_>, value: &[u8], set: XattrSet) -> Result<()> {
        self.check_live("setxattr", ino)?;
        self.0.live.set_xattr(ino, name, value, set)
    }

    fn remove_xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<()> {
        self.check_live("removexattr", ino)?;
        self.0.live.remove_xattr(ino, name)
    }

    fn sync_dir(&self, dir: Ino) -> Result<()> {
        match at(dir) {
            At::Live => self.0.live.sync_dir(dir),
            At::Dir | At::Snapshot(_) => Ok(()),
        }
    }

    fn sync_all(&self) -> Result<()> {
        self.0.live.sync_all()
    }

    fn statfs(&self) -> Result<StatFs> {
        self.0.live.statfs()
    }

    fn path_of(&self, ino: Ino) -> Option<String> {
        match at(ino) {
            At::Live => self.0.live.path_of(ino),
            At::Dir => Some(format!("/{SNAPSHOTS_NAME}")),
            At::Snapshot(number) => {
                let (store, name) = {
                    let mut slots = self.0.slots.lock();
                    let slot = slots.known(number).ok()?;
                    (slot.store.clone()?, slot.name.clone())
                };
                let path = store.path_of(own(ino))?;
                Some(format!("/{SNAPSHOTS_NAME}/{name}{}", path.trim_end_matches('/')))
            }
        }
    }

    fn name_of(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        match at(ino) {
            At::Live => self.0.live.name_of(ino),
            At::Dir => None,
            At::Snapshot(number) => {
                let (dir, name) = self.snapshot(number).ok()?.name_of(own(ino))?;
                Some((mapped(number, dir), name))
            }
        }
    }

    fn wind_up(&self) {
        self.0.live.wind_up();
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.0.live.counters()
    }
}

/// A use of a snapshot that keeps it from being deleted.
struct Using {
    dir: SnapshotsDir,
    number: u64,
}

impl Drop for Using {
    fn drop(&mut self) {
        let mut slots = self.dir.0.slots.lock();
        if let Some(slot) = slots.by_number.get_mut(&self.number) {
            slot.open -= 1;
        }
        slots.tidy(self.number);
        drop(slots);
        self.dir.0.closed.notify_all();
    }
}

/// An open file of a snapshot. Fields are dropped in this order: the file uses what the other keeps.
struct SnapshotFile {
    file: Arc<dyn StoreFile>,
    _using: Using,
}

impl StoreFile for SnapshotFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file.read_at(offset, buf)
    }

    fn write_at(&self, _pieces: &[(u64, &[u8])]) -> Result<()> {
        Err(ErrorKind::ReadOnly.into())
    }

    fn set_len(&self, _len: u64) -> Result<()> {
        Err(ErrorKind::ReadOnly.into())
    }

    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn sync(&self, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, _offset: u64, _len: u64, _mode: AllocateMode) -> Result<()> {
        Err(ErrorKind::ReadOnly.into())
    }

    fn seek_data(&self, offset: u64) -> Result<u64> {
        self.file.seek_data(offset)
    }

    fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.file.seek_hole(offset)
    }
}
