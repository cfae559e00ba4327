//! What whoever caches a branch has to forget before it shows what a snapshot held: entries and inodes, from the keys that were
//! touched on the way from one to the other, so that it costs what changed.
//!
//! Of one path that is not enough. A directory that was moved into it or out of it is touched itself, but nothing in it is, and
//! yet all of it goes from there, or gets further names there. So these directories are walked.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use adit_core::types::Kind;
use adit_core::{ErrorKind, Result};

use super::names::Ascent;
use super::stamps::ctime_of_same;
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
        let views = [view(old), view(new)];
        let regions = [Region::of(&views[BRANCH], path)?, Region::of(&views[SNAPSHOT], path)?];
        let mut finder = Finder {
            views,
            regions,
            is_all: path.is_empty(),
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

/// Indices of the views.
const BRANCH: usize = 0;
const SNAPSHOT: usize = 1;

struct Finder<'t> {
    /// The branch's, and the snapshot's.
    views: [View<'t>; 2],
    /// What of each lies at or below the path.
    regions: [Region; 2],
    /// Whether the path is the root.
    is_all: bool,
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
                    if self.regions[side].has_place(&self.views[side], place)? {
                        self.found.entries.insert((dir, entry.name.to_vec()));
                        if side == SNAPSHOT {
                            // It gets the name back, which is a change of it.
                            self.found.inodes.entry(entry.ino).or_insert(false);
                        }
                        if entry.kind == Kind::Directory {
                            self.walk(side, entry.ino)?;
                        }
                    }
                }
            }
            Some(Parts::Inode(ino) | Parts::Window(ino, _) | Parts::Xattr(ino, _)) => {
                if let (Some(a), Some(b), Some(Parts::Inode(_))) = (&a, &b, key.parts())
                    && ctime_of_same(a, b, ino)?.is_some_and(|(_, has_same_place)| has_same_place)
                {
                    // It keeps its time of change.
                    return Ok(());
                }
                if self.has_inode(BRANCH, ino)? || self.has_inode(SNAPSHOT, ino)? {
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
        let now = self.views[BRANCH].entry(dir, name)?.map(|(_, ino, kind)| (ino, kind));
        let then = match self.views[SNAPSHOT].walk(parents) {
            Ok(Some(dir)) => self.views[SNAPSHOT].entry(dir, name)?.map(|(_, ino, kind)| (ino, kind)),
            Ok(None) => None,
            Err(e) if e.kind() == ErrorKind::NotDirectory => None,
            Err(e) => return Err(e),
        };
        // A directory gets back its number, which a file with a name elsewhere may not.
        if now == then && matches!(now, Some((_, Kind::Directory))) {
            return Ok(());
        }
        self.found.entries.insert((dir, name.to_vec()));
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
        if self.is_all {
            return Ok(());
        }
        let mut todo = vec![dir];
        while let Some(dir) = todo.pop() {
            if !self.walked[side].insert(dir) || !self.is_elsewhere(1 - side, dir)? {
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

    fn has_inode(&mut self, side: usize, ino: u64) -> Result<bool> {
        self.regions[side].has_inode(&self.views[side], ino)
    }

    /// Whether a directory is there, and not at or below the path.
    fn is_elsewhere(&mut self, side: usize, dir: u64) -> Result<bool> {
        Ok(named(&self.views[side], dir)?.is_some() && !self.has_inode(side, dir)?)
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

/// What lies at or below a path in one view. Each directory on the way up is looked at once, however deep the tree is.
struct Region {
    /// What the path names; `None` if it is not there.
    top: Option<Top>,
    /// Directories that were looked at, and whether what is in them lies there.
    dirs: HashMap<u64, bool>,
}

enum Top {
    Root,
    Entry(Place),
}

impl Region {
    fn of(view: &View<'_>, path: &[&[u8]]) -> Result<Region> {
        let region = |top| Region { top, dirs: HashMap::new() };
        let Some((name, parents)) = path.split_last() else { return Ok(region(Some(Top::Root))) };
        let dir = match view.walk(parents) {
            Err(e) if e.kind() == ErrorKind::NotDirectory => None,
            dir => dir?,
        };
        let Some(dir) = dir else { return Ok(region(None)) };
        let cookie = view.entry(dir, name)?.map(|(cookie, ..)| cookie);
        Ok(region(cookie.map(|cookie| Top::Entry(Place { dir, cookie }))))
    }

    fn has_place(&mut self, view: &View<'_>, place: Place) -> Result<bool> {
        let top = match self.top {
            Some(Top::Root) => return Ok(true),
            Some(Top::Entry(top)) => top,
            None => return Ok(false),
        };
        let (mut at, mut passed, mut ascent) = (place, Vec::new(), Ascent::default());
        let is_there = loop {
            if at == top {
                break true;
            }
            // What has no name is nowhere.
            if at.dir == ROOT_INO || at == Place::default() {
                break false;
            }
            if let Some(&is_there) = self.dirs.get(&at.dir) {
                break is_there;
            }
            ascent.pass(at.dir)?;
            passed.push(at.dir);
            at = match view.inode(at.dir) {
                Err(e) if e.kind() == ErrorKind::Stale => break false,
                inode => inode?.place,
            };
        };
        self.dirs.extend(passed.into_iter().map(|dir| (dir, is_there)));
        Ok(is_there)
    }

    /// Whether any name of an inode is there.
    fn has_inode(&mut self, view: &View<'_>, ino: u64) -> Result<bool> {
        if matches!(self.top, Some(Top::Root)) {
            return Ok(true);
        }
        if self.top.is_none() || ino == ROOT_INO {
            return Ok(false);
        }
        let places = match view.places(ino) {
            Err(e) if e.kind() == ErrorKind::Stale => return Ok(false),
            places => places?,
        };
        for place in places {
            if self.has_place(view, place)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
