//! What whoever caches a branch has to forget before it shows what a snapshot held: entries and inodes, from the keys that were
//! touched on the way from one to the other, so that it costs what changed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use adit_core::types::Kind;
use adit_core::{ErrorKind, FsError, Result};

use super::view::{Lines, View, corrupt_inode, corrupt_key};
use super::{ROOT_INO, Tree};
use crate::format::keys::{self, Key, Parts};
use crate::format::records::{Entry, Place};

/// What is not the same in a branch and in a snapshot.
#[derive(Default, Debug)]
pub struct Between {
    /// Directories and names that lead elsewhere.
    pub entries: BTreeSet<(u64, Vec<u8>)>,
    /// All names in the branch of the regular files among the inodes.
    pub files: BTreeSet<(u64, Vec<u8>)>,
    /// Inodes whose record, content or attributes differ; and whether nobody may know one when it is changed underneath,
    /// because the kernel would not follow: a regular file, whose size and times it owns, or what has no name in the branch
    /// and could get one back.
    pub inodes: BTreeMap<u64, bool>,
}

impl Tree {
    /// What differs between `branch` and `snapshot`: everywhere, or at and below `path` (names from the root).
    pub fn between(&self, branch: &str, snapshot: &str, path: &[&[u8]]) -> Result<Between> {
        let topology = self.topology.read();
        let id = |name: &str| {
            let missing = || FsError::new(ErrorKind::NotFound).on("find", format!("snapshot or branch {name}"));
            topology.named(name).map(|(id, _)| id).ok_or_else(missing)
        };
        let view = |id| View {
            tree: self,
            topology: Lines::Shared(self.topology.read_recursive()),
            id,
            chain: None,
            cache: None,
        };
        let (new, old) = (id(snapshot)?, id(branch)?);
        let common = topology.common(old, new).unwrap_or(0);
        let mut ids = topology.path(old, common);
        ids.extend(topology.path(new, common));
        let mut finder = Finder { views: [view(old), view(new)], below: joined(path), found: Between::default() };
        for key in touched_by(self, &ids)? {
            finder.take(&key)?;
        }
        finder.inodes()?;
        if let Some((_, parents)) = path.split_last()
            && let Some(dir) = finder.views[0].walk(parents)?
        {
            // Its times and its links move with what is put into it.
            finder.found.inodes.insert(dir, false);
        }
        Ok(finder.found)
    }
}

fn touched_by(tree: &Tree, ids: &[keys::Id]) -> Result<BTreeSet<Key>> {
    let (mut all, mut bad) = (BTreeSet::new(), None);
    for &id in ids {
        tree.table.scan(&keys::touched_start(id), &keys::touched_end(id), &mut |bytes, _| {
            match keys::parse_touched(bytes).and_then(|(_, logical)| Key::from_logical(logical)) {
                Some(key) => drop(all.insert(key)),
                None => bad = Some(corrupt_key(bytes, "it is no touched key")),
            }
            ControlFlow::Continue(())
        })?;
    }
    bad.map_or(Ok(all), Err)
}

/// A path as [`View::path_to`] tells it; empty for the root.
fn joined(path: &[&[u8]]) -> Vec<u8> {
    path.iter().flat_map(|name| [b"/", *name].concat()).collect()
}

struct Finder<'t> {
    /// The branch's, and the snapshot's.
    views: [View<'t>; 2],
    below: Vec<u8>,
    found: Between,
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
                for (view, value) in self.views.iter().zip([a, b]) {
                    let Some(value) = value else { continue };
                    let entry = Entry::decode(&value).map_err(|why| corrupt_inode(dir, why))?;
                    if is_below(view, place, &self.below)? {
                        self.found.entries.insert((dir, entry.name.to_vec()));
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

    /// Finds out about the inodes in the branch.
    fn inodes(&mut self) -> Result<()> {
        let old = &self.views[0];
        for (&ino, is_kernels) in &mut self.found.inodes {
            let inode = match old.inode(ino) {
                Ok(inode) => inode,
                Err(e) if e.kind() == ErrorKind::Stale => {
                    *is_kernels = true;
                    continue;
                }
                Err(e) => return Err(e),
            };
            *is_kernels = inode.kind == Kind::File || inode.nlink == 0;
            if inode.kind != Kind::File || inode.nlink == 0 {
                continue;
            }
            for place in old.places(ino)? {
                if let Some(name) = old.name_at(place)? {
                    self.found.files.insert((place.dir, name));
                }
            }
        }
        Ok(())
    }
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
