//! What whoever caches a branch has to forget before it shows what a snapshot held: entries and inodes, from the keys that were
//! touched on the way from one to the other, so that it costs what changed.
//!
//! Of one path that is not enough. A directory that was moved into it or out of it is touched itself, but nothing in it is, and
//! yet all of it goes from there, or gets further names there. So these directories are walked.

use std::collections::{BTreeMap, BTreeSet};

use adit_core::types::Kind;
use adit_core::{ErrorKind, Result};

use super::view::{Lines, View, corrupt_inode};
use super::{ROOT_INO, Tree};
use crate::format::keys::{Key, Parts};
use crate::format::records::{Entry, Inode, Place};

/// What is not the same in a branch and in a snapshot.
#[derive(Default, Debug)]
pub struct Between {
    /// Directories and names that lead elsewhere, or may do so.
    pub entries: BTreeSet<(u64, Vec<u8>)>,
    /// All names in the branch of the regular files among the inodes.
    pub files: BTreeSet<(u64, Vec<u8>)>,
    /// Inodes whose record, content or attributes differ; and whether nobody may know one when it is changed underneath,
    /// because the kernel would not follow: a regular file, whose size and times it owns, or what has no name in the branch
    /// and could get one back. (A file that only gets further names may be known.)
    pub inodes: BTreeMap<u64, bool>,
}

impl Tree {
    /// What differs between `branch` and `snapshot`: everywhere, or at and below `path` (names from the root).
    pub fn between(&self, branch: &str, snapshot: &str, path: &[&[u8]]) -> Result<Between> {
        let topology = self.topology.read();
        let view = |id| View {
            tree: self,
            topology: Lines::Shared(self.topology.read_recursive()),
            id,
            chain: None,
            cache: None,
        };
        let [old, new] = [topology.id_of(branch)?, topology.id_of(snapshot)?];
        let mut finder = Finder {
            views: [view(old), view(new)],
            below: joined(path),
            found: Between::default(),
            linked: BTreeSet::new(),
            walked: [const { BTreeSet::new() }; 2],
        };
        for key in self.touched_by(&topology.way([old, new]))? {
            finder.take(&key)?;
        }
        finder.at(path)?;
        finder.inodes()?;
        Ok(finder.found)
    }
}

/// A path as [`View::path_to`] tells it; empty for the root.
fn joined(path: &[&[u8]]) -> Vec<u8> {
    path.iter().flat_map(|name| [b"/", *name].concat()).collect()
}

/// Indices of the views.
const BRANCH: usize = 0;
const SNAPSHOT: usize = 1;

struct Finder<'t> {
    /// The branch's, and the snapshot's.
    views: [View<'t>; 2],
    below: Vec<u8>,
    found: Between,
    /// What gets further names below the path, if it has one in the branch.
    linked: BTreeSet<u64>,
    /// Directories that were walked, in each view.
    walked: [BTreeSet<u64>; 2],
}

impl Finder<'_> {
    fn take(&mut self, key: &Key) -> Result<()> {
        let [a, b] = [self.views[0].find(key)?.value, self.views[1].find(key)?.value];
        if a == b {
            return Ok(());
        }
        match key.parts() {
            Some(Parts::Entry(dir, cookie)) => {
                let place = Place { dir, cookie };
                for (side, value) in [a, b].into_iter().enumerate() {
                    let Some(value) = value else { continue };
                    let entry = Entry::decode(&value).map_err(|why| corrupt_inode(dir, why))?;
                    if is_below(&self.views[side], place, &self.below)? {
                        self.found.entries.insert((dir, entry.name.to_vec()));
                        if entry.kind == Kind::Directory {
                            self.walk(side, entry.ino)?;
                        }
                    }
                }
            }
            Some(Parts::Inode(ino) | Parts::Window(ino, _) | Parts::Xattr(ino, _)) => {
                let mut is_below = self.below.is_empty();
                for view in &self.views {
                    is_below |= is_inode_below(view, ino, &self.below)?;
                }
                if is_below {
                    self.found.inodes.entry(ino).or_insert(false);
                }
            }
            Some(Parts::Name(..) | Parts::Orphan(_)) | None => {}
        }
        Ok(())
    }

    /// Takes what the path itself leads to: it leads elsewhere also when a directory above it was moved.
    fn at(&mut self, path: &[&[u8]]) -> Result<()> {
        let Some((name, parents)) = path.split_last() else { return Ok(()) };
        let Some(dir) = self.views[BRANCH].walk(parents)? else { return Ok(()) };
        // Its times and its links move with what is put into it.
        self.found.inodes.insert(dir, false);
        self.found.entries.insert((dir, name.to_vec()));
        let now = self.views[BRANCH].entry(dir, name)?.map(|(_, ino, kind)| (ino, kind));
        let then = match self.views[SNAPSHOT].walk(parents) {
            Ok(Some(dir)) => self.views[SNAPSHOT].entry(dir, name)?.map(|(_, ino, kind)| (ino, kind)),
            Ok(None) => None,
            Err(e) if e.kind() == ErrorKind::NotDirectory => None,
            Err(e) => return Err(e),
        };
        if now == then {
            return Ok(());
        }
        if let Some((ino, kind)) = now {
            self.found.inodes.entry(ino).or_insert(false);
            if kind == Kind::Directory {
                self.walk(BRANCH, ino)?;
            }
        }
        match then {
            Some((ino, Kind::Directory)) => self.walk(SNAPSHOT, ino)?,
            Some((ino, _)) => drop(self.linked.insert(ino)),
            None => {}
        }
        Ok(())
    }

    /// Takes what lies in a directory that one view has below the path, and the other one elsewhere: in the branch, it goes;
    /// in the snapshot, it gets further names, for the directory is copied.
    fn walk(&mut self, side: usize, dir: u64) -> Result<()> {
        if self.below.is_empty() {
            return Ok(());
        }
        let mut todo = vec![dir];
        while let Some(dir) = todo.pop() {
            if !self.walked[side].insert(dir) || !is_elsewhere(&self.views[1 - side], dir, &self.below)? {
                continue;
            }
            for (name, ino, kind) in self.views[side].entries(dir)? {
                if kind == Kind::Directory {
                    todo.push(ino);
                }
                if side == BRANCH {
                    self.found.entries.insert((dir, name));
                    self.found.inodes.entry(ino).or_insert(false);
                } else if kind != Kind::Directory {
                    self.linked.insert(ino);
                }
            }
        }
        Ok(())
    }

    /// Finds out about the inodes in the branch.
    fn inodes(&mut self) -> Result<()> {
        let old = &self.views[BRANCH];
        let Between { inodes, files, entries } = &mut self.found;
        let mut add_names = |ino, kind| match kind {
            Kind::Directory => Ok(()),
            Kind::File => add_names(old, ino, files),
            // One that has a name elsewhere stays as it is, and this one leads to a copy.
            _ => add_names(old, ino, entries),
        };
        for (&ino, is_kernels) in &mut *inodes {
            let named = named(old, ino)?;
            *is_kernels = named.as_ref().is_none_or(|inode| inode.kind == Kind::File);
            if let Some(inode) = named {
                add_names(ino, inode.kind)?;
            }
        }
        for &ino in &self.linked {
            if let Some(inode) = named(old, ino)?
                && !inodes.contains_key(&ino)
            {
                inodes.insert(ino, false);
                add_names(ino, inode.kind)?;
            }
        }
        Ok(())
    }
}

/// The record of an inode that has a name.
fn named(view: &View<'_>, ino: u64) -> Result<Option<Inode>> {
    match view.inode(ino) {
        Ok(inode) => Ok(Some(inode).filter(|inode| inode.nlink > 0)),
        Err(e) if e.kind() == ErrorKind::Stale => Ok(None),
        Err(e) => Err(e),
    }
}

fn add_names(view: &View<'_>, ino: u64, names: &mut BTreeSet<(u64, Vec<u8>)>) -> Result<()> {
    for place in view.places(ino)? {
        if let Some(name) = view.name_at(place)? {
            names.insert((place.dir, name));
        }
    }
    Ok(())
}

/// Whether a directory is there, and not at or below the path.
fn is_elsewhere(view: &View<'_>, dir: u64, below: &[u8]) -> Result<bool> {
    Ok(named(view, dir)?.is_some() && !is_inode_below(view, dir, below)?)
}

fn is_below(view: &View<'_>, place: Place, below: &[u8]) -> Result<bool> {
    if below.is_empty() {
        return Ok(true);
    }
    let path = view.path_to(place)?;
    Ok(path.is_some_and(|path| path.strip_prefix(below).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')))
}

/// Whether any name of an inode is there.
fn is_inode_below(view: &View<'_>, ino: u64, below: &[u8]) -> Result<bool> {
    if below.is_empty() {
        return Ok(true);
    }
    if ino == ROOT_INO {
        return Ok(false);
    }
    let places = match view.places(ino) {
        Err(e) if e.kind() == ErrorKind::Stale => return Ok(false),
        places => places?,
    };
    for place in places {
        if is_below(view, place, below)? {
            return Ok(true);
        }
    }
    Ok(false)
}
