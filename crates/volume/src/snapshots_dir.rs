//! A branch with the volume's snapshots in its hidden directory `.snapshots`, as one [`Store`].
//!
//! [`SnapshotsDir`] wraps the [`VolumeStore`] of a branch. The root finds `.snapshots`, but does not list it; in it each
//! snapshot is a directory, read-only, with the tree that it holds. An entry of that name that was made otherwise (by the
//! library) goes first, as long as it is there: what is stored is never hidden.
//!
//! **Inode numbers.** Each snapshot that is seen has a *slot*, which makes its numbers others than those of the tree and of other
//! snapshots; see [`numbers`]. It keeps that until it is deleted and nothing of it is known any more.
//!
//! **Deleting.** What is open keeps a snapshot from being deleted ([`SnapshotsDir::retire`]); what is only known, such as a
//! working directory, is `Stale` then.
//!
//! Lock: the table of slots, held over no call that writes, and never taken by one who holds a view of the tree.

mod file;
mod numbers;
mod store;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_core::store::{DirEntry, Store};
use adit_core::types::{Attr, FileName, Ino, Kind};
use adit_core::{ErrorKind, FsError, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::format::keys::Id;
use crate::store::VolumeStore;
use crate::tree::{SnapshotInfo, Source, Tree};
pub use numbers::SNAPSHOTS_INO;
use numbers::{At, Numbers, Starts};

/// The hidden name.
pub const SNAPSHOTS_NAME: &str = ".snapshots";

/// How long closes and calls that are under way are waited for, before a snapshot counts as in use; and how long it is waited until
/// nobody knows anything more of a deleted snapshot, before a new one of its name gets another slot.
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
    by_id: HashMap<Id, u64>,
    starts: Starts,
    /// Names that are not found, because their snapshots are about to be deleted.
    retiring: HashSet<String>,
}

struct Inner {
    live: VolumeStore,
    /// `None` if there are none for it.
    numbers: Option<Numbers>,
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
    /// The slot of a snapshot, if it has one.
    fn number(&self, id: Id) -> Option<u64> {
        self.by_id.get(&id).copied()
    }

    /// Gives a snapshot the slot to which its name leads, or the next one that fits.
    fn assign(&mut self, numbers: Numbers, id: Id, name: &str) -> Result<u64> {
        let is_free = |number| !self.by_number.contains_key(&number);
        let number = numbers.slot_for(name, &self.starts, is_free).ok_or(ErrorKind::Exhausted)?;
        let slot = Slot { id, name: name.to_owned(), store: None, gone: false, known: HashSet::new(), open: 0 };
        self.by_number.insert(number, slot);
        self.starts.add(number);
        self.by_id.insert(id, number);
        Ok(number)
    }

    /// The names of deleted snapshots of which something is known.
    fn left(&self) -> HashSet<&str> {
        self.by_number.values().filter(|slot| slot.gone).map(|slot| &*slot.name).collect()
    }

    /// Gives back the slot of a deleted snapshot that nobody knows any more.
    fn tidy(&mut self, number: u64) {
        let is_over = |slot: &Slot| slot.gone && slot.known.is_empty() && slot.open == 0;
        if self.by_number.get(&number).is_some_and(is_over)
            && let Some(slot) = self.by_number.remove(&number)
        {
            self.by_id.remove(&slot.id);
            self.starts.remove(number);
        }
    }

    /// A slot whose snapshot was looked up and is not deleted.
    fn known(&mut self, number: u64) -> Result<&mut Slot> {
        self.by_number.get_mut(&number).filter(|slot| slot.store.is_some()).ok_or_else(|| ErrorKind::Stale.into())
    }
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
        let numbers = Numbers::of(live.tree().next_ino());
        if numbers.is_none() {
            tracing::warn!(
                "{SNAPSHOTS_NAME} is left out: the volume's inode numbers leave no room for those of snapshots"
            );
        }
        SnapshotsDir(Arc::new(Inner { live, numbers, slots: Mutex::default(), closed: Condvar::new() }))
    }

    fn at(&self, ino: Ino) -> At {
        self.0.numbers.map_or(At::Live, |numbers| numbers.at(ino))
    }

    fn own(&self, ino: Ino) -> Ino {
        self.0.numbers.map_or(ino, |numbers| numbers.own(ino))
    }

    fn mapped(&self, number: u64, ino: Ino) -> Ino {
        self.0.numbers.map_or(ino, |numbers| numbers.mapped(number, ino))
    }

    /// The slot of a snapshot, which gets one if it has none: and so does every other, in the order of their ids.
    fn slot(&self, slots: &mut MutexGuard<'_, Slots>, id: Id) -> Result<u64> {
        let numbers = self.0.numbers.ok_or(ErrorKind::NotFound)?;
        let deadline = Instant::now() + CLOSE_PATIENCE;
        loop {
            if let Some(number) = slots.number(id) {
                return Ok(number);
            }
            let listed = self.listed();
            let is_fresh =
                |info: &&SnapshotInfo| slots.number(info.id).is_none() && !slots.retiring.contains(&info.name);
            let fresh: Vec<_> = listed.iter().filter(is_fresh).collect();
            // What the kernel has let go of may not be told yet.
            let left = slots.left();
            let is_left = fresh.iter().any(|info| left.contains(&*info.name));
            drop(left);
            if is_left && !self.0.closed.wait_until(slots, deadline).timed_out() {
                continue;
            }
            for info in fresh {
                slots.assign(numbers, info.id, &info.name)?;
            }
            return slots.number(id).ok_or_else(|| ErrorKind::NotFound.into());
        }
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
        self.0.numbers.is_some() && is_hidden(parent, name) && is_absent().unwrap_or(false)
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
        let number = self.slot(&mut slots, id)?;
        let slot = slots.by_number.get_mut(&number).ok_or(ErrorKind::Stale)?;
        let store = match &slot.store {
            Some(store) => store.clone(),
            None => VolumeStore::open(self.tree(), Source::Snapshot(id))?,
        };
        let attr = store.getattr(Ino::ROOT)?;
        slot.store = Some(store);
        slot.known.insert(Ino::ROOT.0);
        Ok(Attr { ino: self.mapped(number, attr.ino), ..attr })
    }

    /// Notes that an inode of a snapshot is known.
    fn learnt(&self, number: u64, attr: Attr) -> Result<Attr> {
        self.0.slots.lock().known(number)?.known.insert(attr.ino.0);
        Ok(Attr { ino: self.mapped(number, attr.ino), ..attr })
    }

    /// Refuses to make `name`, unless in the branch.
    fn check_new(&self, op: &'static str, parent: Ino, name: FileName<'_>) -> Result<()> {
        match self.at(parent) {
            At::Live if self.is_ours(parent, name) => Err(FsError::new(ErrorKind::Exists).on(op, name.display())),
            At::Live => Ok(()),
            At::Dir | At::Snapshot(_) => read_only(op, name),
        }
    }

    /// Refuses to take `name` away, unless from the branch.
    fn check_old(&self, op: &'static str, parent: Ino, name: FileName<'_>) -> Result<()> {
        match self.at(parent) {
            At::Live if self.is_ours(parent, name) => {
                let why = "it shows the volume's snapshots";
                Err(FsError::new(ErrorKind::NotPermitted).on(op, name.display()).because(why))
            }
            At::Live => Ok(()),
            At::Dir | At::Snapshot(_) => read_only(op, name),
        }
    }

    fn check_live(&self, op: &'static str, ino: Ino) -> Result<()> {
        match self.at(ino) {
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
                    match self.slot(&mut slots, id) {
                        // It was deleted in this moment.
                        Err(e) if e.is_not_found() => continue,
                        number => number?,
                    }
                };
                let (name, ino) = (FileName::new(name.as_bytes())?, self.mapped(number, Ino::ROOT));
                if sink(DirEntry { cookie: u64::from(id), ino, kind: Kind::Directory, name }).is_break() {
                    return Ok(());
                }
            }
        }
    }
}
