//! How two snapshots or branches differ: from the keys that were touched on the way from one to the other, so that it costs what
//! changed, whatever the tree holds.
//!
//! Nobody waits for it: the topology is held for [`AT_ONCE`] keys or names at a time. In between, snapshots that are compared
//! cannot be deleted, and nothing is collected. A branch that is compared may change, as it may anyway; one that goes ends it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;

use adit_core::types::Kind;
use adit_core::{ErrorKind, FsError, Result};

use super::view::{Lines, View, corrupt_inode, corrupt_key};
use super::{Source, Tree};
use crate::format::keys::{self, Id, Key, Parts};
use crate::format::records::{Entry, Inode, Place, State};

/// How something differs.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Differing {
    /// It is new.
    Added,
    /// Its content or attributes changed. (Of a directory: attributes but for times. Its entries are told by themselves.)
    Changed,
    /// It is gone.
    Removed,
    /// It had this path. (What lies in a directory moved with it, and is not told.)
    Renamed(Vec<u8>),
}

/// One path that differs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// From the root, with a leading slash: the old one of what is gone, else the new one.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// How.
    pub what: Differing,
}

#[derive(Clone, PartialEq, Eq)]
struct Named {
    place: Place,
    ino: u64,
    kind: Kind,
    name: Vec<u8>,
}

impl Named {
    fn at(view: &View<'_>, key: &Key, place: Place) -> Result<Option<Named>> {
        let Some(value) = view.find(key)?.value else { return Ok(None) };
        let entry = Entry::decode(&value).map_err(|why| corrupt_inode(place.dir, why))?;
        Ok(Some(Named { place, ino: entry.ino, kind: entry.kind, name: entry.name.to_vec() }))
    }
}

/// Keys, names or inodes that are compared while the topology is held.
const AT_ONCE: usize = 256;

/// What is known so far.
#[derive(Default)]
struct Found {
    gone: Vec<Named>,
    new: Vec<Named>,
    /// Inodes whose record, content or attributes were touched, and whether content or attributes did change.
    inodes: BTreeMap<u64, bool>,
    told: Vec<Difference>,
    /// Places in the new tree that were told.
    done: BTreeSet<Place>,
}

/// What is gone, to be found by name and by inode.
#[derive(Default)]
struct Gone {
    all: Vec<Option<Named>>,
    by_name: HashMap<(u64, Vec<u8>), usize>,
    by_ino: HashMap<u64, Vec<usize>>,
}

impl Gone {
    fn new(gone: Vec<Named>) -> Gone {
        let mut index = Gone::default();
        for (at, named) in gone.iter().enumerate() {
            index.by_name.insert((named.place.dir, named.name.clone()), at);
            index.by_ino.entry(named.ino).or_default().push(at);
        }
        index.all = gone.into_iter().map(Some).collect();
        index
    }

    fn take(&mut self, at: usize, kind: Kind) -> Option<Named> {
        self.all.get_mut(at)?.take_if(|named| named.kind == kind)
    }

    /// What had the name of `new`, and was of its kind.
    fn of_name(&mut self, new: &Named) -> Option<Named> {
        let at = *self.by_name.get(&(new.place.dir, new.name.clone()))?;
        self.take(at, new.kind)
    }

    /// A name of the inode that `new` is a name of.
    fn of_inode(&mut self, new: &Named) -> Option<Named> {
        loop {
            let at = self.by_ino.get_mut(&new.ino)?.pop()?;
            if let Some(named) = self.take(at, new.kind) {
                return Some(named);
            }
        }
    }
}

impl Tree {
    /// How `new` differs from `old`: names of snapshots or branches. Sorted by path. `Stale` if a branch goes meanwhile.
    pub fn diff(&self, old: &str, new: &str) -> Result<Vec<Difference>> {
        let _nothing_is_dropped = self.collecting.lock();
        let (ids, path) = {
            let topology = self.topology.read();
            let ids = [topology.id_of(old)?, topology.id_of(new)?];
            let path = topology.way(ids);
            // Before the topology is let go: from here on nobody deletes them.
            self.note_compared(&ids);
            (ids, path)
        };
        let told = self.compare(ids, &path);
        ids.iter().for_each(|&id| self.end_use(&Source::Snapshot(id)));
        told
    }

    fn compare(&self, ids: [Id; 2], path: &[Id]) -> Result<Vec<Difference>> {
        let mut found = Found::default();
        let keys: Vec<Key> = self.touched_by(path)?.into_iter().collect();
        for keys in keys.chunks(AT_ONCE) {
            self.looking(ids, |old, new| keys.iter().try_for_each(|key| found.take(old, new, key)))?;
        }
        let mut gone = Gone::new(std::mem::take(&mut found.gone));
        let news = std::mem::take(&mut found.new);
        for some in news.chunks(AT_ONCE) {
            self.looking(ids, |old, new| some.iter().try_for_each(|named| found.came(&mut gone, old, new, named)))?;
        }
        let left: Vec<Named> = gone.all.into_iter().flatten().collect();
        for some in left.chunks(AT_ONCE) {
            self.looking(ids, |old, _| some.iter().try_for_each(|named| found.went(old, named)))?;
        }
        let inodes: Vec<(u64, bool)> = std::mem::take(&mut found.inodes).into_iter().collect();
        for some in inodes.chunks(AT_ONCE) {
            self.looking(ids, |old, new| {
                some.iter().try_for_each(|(ino, content)| found.changed(old, new, *ino, *content))
            })?;
        }
        let mut told = found.told;
        told.sort_by(|a, b| (&a.path, &a.what).cmp(&(&b.path, &b.what)));
        told.dedup();
        Ok(told)
    }

    /// Looks at both for a moment.
    fn looking<R>(&self, ids: [Id; 2], look: impl FnOnce(&View<'_>, &View<'_>) -> Result<R>) -> Result<R> {
        let topology = self.topology.read();
        for id in ids {
            if !matches!(topology.node(id).map(|node| node.record.state), Ok(State::Live | State::Frozen)) {
                let why = "a branch went, or was set back, while it was compared";
                return Err(FsError::new(ErrorKind::Stale).on("compare", format!("id {id}")).because(why));
            }
        }
        let lines = || Lines::Shared(self.topology.read_recursive());
        let [old, new] = ids.map(|id| View { tree: self, topology: lines(), id, chain: None, cache: None });
        look(&old, &new)
    }

    /// The keys that were touched by any of these.
    pub(super) fn touched_by(&self, ids: &[Id]) -> Result<BTreeSet<Key>> {
        let (mut all, mut bad) = (BTreeSet::new(), None);
        for &id in ids {
            self.table.scan(&keys::touched_start(id), &keys::touched_end(id), &mut |bytes, _| {
                match keys::parse_touched(bytes).and_then(|(_, logical)| Key::from_logical(logical)) {
                    Some(key) => drop(all.insert(key)),
                    None => bad = Some(corrupt_key(bytes, "it is no touched key")),
                }
                ControlFlow::Continue(())
            })?;
        }
        bad.map_or(Ok(all), Err)
    }
}

impl Found {
    fn take(&mut self, old: &View<'_>, new: &View<'_>, key: &Key) -> Result<()> {
        match key.parts() {
            Some(Parts::Entry(dir, cookie)) => {
                let place = Place { dir, cookie };
                let (a, b) = (Named::at(old, key, place)?, Named::at(new, key, place)?);
                if a != b {
                    self.gone.extend(a);
                    self.new.extend(b);
                }
            }
            Some(Parts::Inode(ino)) => drop(self.inodes.entry(ino).or_insert(false)),
            Some(Parts::Window(ino, _) | Parts::Xattr(ino, _)) => {
                let differs = old.find(key)?.value != new.find(key)?.value;
                *self.inodes.entry(ino).or_insert(false) |= differs;
            }
            Some(Parts::Name(..) | Parts::Orphan(_)) | None => {}
        }
        Ok(())
    }

    fn tell(&mut self, path: Option<Vec<u8>>, kind: Kind, what: Differing) {
        // What has no path any more has none to be told.
        self.told.extend(path.map(|path| Difference { path, kind, what }));
    }

    /// Tells of a name that came, with what is gone for it.
    fn came(&mut self, gone: &mut Gone, old: &View<'_>, new: &View<'_>, named: &Named) -> Result<()> {
        self.done.insert(named.place);
        let path = new.path_to(named.place)?;
        // A file under a name that a file had: how programs save. A directory goes by what it is.
        if named.kind != Kind::Directory && gone.of_name(named).is_some() {
            self.tell(path, named.kind, Differing::Changed);
            return Ok(());
        }
        if let Some(before) = gone.of_inode(named)
            && let Some(from) = old.path_to(before.place)?
        {
            self.tell(path, named.kind, Differing::Renamed(from));
            // That it changed as well is told beside.
            self.done.remove(&named.place);
            return Ok(());
        }
        self.tell(path, named.kind, Differing::Added);
        Ok(())
    }

    /// Tells of a name that went, and nothing came for it.
    fn went(&mut self, old: &View<'_>, named: &Named) -> Result<()> {
        let path = old.path_to(named.place)?;
        self.tell(path, named.kind, Differing::Removed);
        Ok(())
    }

    /// Tells of an inode if it is in both trees and differs.
    fn changed(&mut self, old: &View<'_>, new: &View<'_>, ino: u64, content: bool) -> Result<()> {
        let inode = |view: &View<'_>| match view.inode(ino) {
            Ok(inode) => Ok(Some(inode).filter(|inode| inode.nlink > 0)),
            Err(e) if e.kind() == ErrorKind::Stale => Ok(None),
            Err(e) => Err(e),
        };
        let (Some(a), Some(b)) = (inode(old)?, inode(new)?) else { return Ok(()) };
        if !content && !differ(&a, &b) {
            return Ok(());
        }
        if ino == super::ROOT_INO {
            self.tell(Some(b"/".to_vec()), b.kind, Differing::Changed);
        }
        let places = match new.places(ino) {
            // It goes while we look.
            Err(e) if e.kind() == ErrorKind::Stale => return Ok(()),
            places => places?,
        };
        for place in places {
            if !self.done.contains(&place) {
                let path = new.path_to(place)?;
                self.tell(path, b.kind, Differing::Changed);
            }
        }
        Ok(())
    }
}

fn differ(a: &Inode, b: &Inode) -> bool {
    let attributes = |i: &Inode| (i.kind, i.perm, i.uid, i.gid, i.rdev);
    let content = |i: &Inode| (i.size, i.mtime);
    attributes(a) != attributes(b) || (a.kind != Kind::Directory && (content(a) != content(b) || a.inline != b.inline))
}
