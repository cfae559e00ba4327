//! A branch with the volume's snapshots in its hidden directory `.snapshots`, as one [`Store`].
//!
//! [`SnapshotsDir`] wraps the [`VolumeStore`] of a branch. The root finds `.snapshots`, but does not list it; in it each
//! snapshot is a directory, read-only, with the tree that it holds. An entry of that name that was made otherwise (by the
//! library) goes first, as long as it is there: what is stored is never hidden.
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

mod file;
mod store;

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_core::store::{DirEntry, Store};
use adit_core::types::{Attr, FileName, Ino, Kind};
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

/// Snapshots that are read before they are handed out.
const LIST_AT_ONCE: usize = 128;

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
        let missing = || FsError::new(ErrorKind::NotFound);
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
        let Ok(mut last) = Id::try_from(start) else { return Ok(()) };
        loop {
            let listed = self.tree().snapshots_after(last, LIST_AT_ONCE);
            let Some((end, _)) = listed.last() else { return Ok(()) };
            last = *end;
            for (id, name) in listed {
                let number = {
                    let mut slots = self.0.slots.lock();
                    if slots.retiring.contains(&name) {
                        continue;
                    }
                    slots.number(id, &name)?
                };
                let (name, ino) = (FileName::new(name.as_bytes())?, mapped(number, Ino::ROOT));
                if sink(DirEntry { cookie: u64::from(id), ino, kind: Kind::Directory, name }).is_break() {
                    return Ok(());
                }
            }
        }
    }
}
