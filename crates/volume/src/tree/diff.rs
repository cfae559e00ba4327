//! How two snapshots or branches differ: from the keys that were touched on the way from one to the other, so that it costs what
//! changed, whatever the tree holds.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use adit_core::types::Kind;
use adit_core::{ErrorKind, FsError, Result};

use super::Tree;
use super::view::{Lines, View, corrupt_inode, corrupt_key};
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

impl Tree {
    /// How `new` differs from `old`: names of snapshots or branches. Sorted by path.
    pub fn diff(&self, old: &str, new: &str) -> Result<Vec<Difference>> {
        let topology = self.topology.read();
        let id = |name: &str| -> Result<Id> {
            let missing = || FsError::new(ErrorKind::NotFound).on("find", format!("snapshot or branch {name}"));
            topology.named(name).map(|(id, _)| id).ok_or_else(missing)
        };
        let (old, new) = (id(old)?, id(new)?);
        let view = |id| View {
            tree: self,
            topology: Lines::Shared(self.topology.read_recursive()),
            id,
            chain: None,
            cache: None,
        };
        let (old, new) = (view(old), view(new));
        debug_assert!(topology.nodes().all(|(_, node)| node.record.state != State::Staging));
        let common = topology.common(old.id, new.id).unwrap_or(0);
        let mut ids = topology.path(old.id, common);
        ids.extend(topology.path(new.id, common));
        let mut found = Found::default();
        for key in self.touched_by(&ids)? {
            found.take(&old, &new, &key)?;
        }
        found.names(&old, &new)?;
        found.changed(&old, &new)?;
        let mut told = found.told;
        told.sort_by(|a, b| (&a.path, &a.what).cmp(&(&b.path, &b.what)));
        told.dedup();
        Ok(told)
    }

    fn touched_by(&self, ids: &[Id]) -> Result<BTreeSet<Key>> {
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

    /// Pairs what is gone with what is new.
    fn names(&mut self, old: &View<'_>, new: &View<'_>) -> Result<()> {
        let mut gone = std::mem::take(&mut self.gone);
        for named in std::mem::take(&mut self.new) {
            self.done.insert(named.place);
            let path = new.path_to(named.place)?;
            // A file under a name that a file had: how programs save. A directory goes by what it is.
            let same_name = |g: &Named| {
                (g.place.dir, &g.name, g.kind) == (named.place.dir, &named.name, named.kind)
                    && g.kind != Kind::Directory
            };
            if let Some(at) = gone.iter().position(same_name) {
                gone.swap_remove(at);
                self.tell(path, named.kind, Differing::Changed);
                continue;
            }
            if let Some(at) = gone.iter().position(|g| g.ino == named.ino && g.kind == named.kind) {
                let before = gone.swap_remove(at);
                if let Some(from) = old.path_to(before.place)? {
                    self.tell(path, named.kind, Differing::Renamed(from));
                    // That it changed as well is told beside.
                    self.done.remove(&named.place);
                    continue;
                }
            }
            self.tell(path, named.kind, Differing::Added);
        }
        for named in gone {
            let path = old.path_to(named.place)?;
            self.tell(path, named.kind, Differing::Removed);
        }
        Ok(())
    }

    /// Tells of inodes that are in both trees and differ.
    fn changed(&mut self, old: &View<'_>, new: &View<'_>) -> Result<()> {
        for (ino, content) in std::mem::take(&mut self.inodes) {
            let inode = |view: &View<'_>| match view.inode(ino) {
                Ok(inode) => Ok(Some(inode).filter(|inode| inode.nlink > 0)),
                Err(e) if e.kind() == ErrorKind::Stale => Ok(None),
                Err(e) => Err(e),
            };
            let (Some(a), Some(b)) = (inode(old)?, inode(new)?) else { continue };
            if !content && !differ(&a, &b) {
                continue;
            }
            if ino == super::ROOT_INO {
                self.tell(Some(b"/".to_vec()), b.kind, Differing::Changed);
            }
            let places = match new.places(ino) {
                // It goes while we look.
                Err(e) if e.kind() == ErrorKind::Stale => continue,
                places => places?,
            };
            for place in places {
                if !self.done.contains(&place) {
                    let path = new.path_to(place)?;
                    self.tell(path, b.kind, Differing::Changed);
                }
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
