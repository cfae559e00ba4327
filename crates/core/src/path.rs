//! Work on a store by cleartext path, without a mount: resolve, walk, create, remove, rename, copy in and out.
//!
//! [`Tree`] wraps a [`Store`] for the use of one thread; a [`Node`] is an entry of it together with the reference that
//! the store keeps for it. References are counted per inode and given back when the last node of an inode is dropped,
//! so however a call ends, nothing stays known. [`transfer`] copies between a tree and folders of the host.
//!
//! Paths are bytes, `/` between components; a leading `/` is the store's root. `..` is the folder that the walk came
//! from, as in a mount. Nothing leaves the store: `..` above the root, an absolute symbolic link, or one that climbs
//! out, is an error that says so. This module caches nothing but the places of directories, and those only where a name costs I/O (`ways`);
//! it is not an engine, and mounts do not use it.

pub mod transfer;
mod ways;

#[cfg(test)]
pub(crate) mod tests;

use std::cell::RefCell;
use std::ops::ControlFlow;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use self::ways::Ways;
use crate::error::{ErrorKind, FsError, Result};
use crate::store::{NewNode, Store};
use crate::types::{Attr, Caller, FileName, Ino, Kind, RenameFlags};

/// How many symbolic links one resolution follows, as Linux does.
pub const SYMLINKS_MAX: u32 = 40;

/// A store, used by one thread by path.
pub struct Tree<'s> {
    store: &'s dyn Store,
    /// Nodes alive per inode; an entry leaves at zero, and the store forgets it.
    known: RefCell<HashMap<Ino, u64>>,
    /// Where a name costs I/O, directories that paths led through.
    ways: Option<Ways>,
}

/// One entry of a [`Tree`], known to the store while this lives.
pub struct Node<'t> {
    tree: &'t Tree<'t>,
    attr: Attr,
    /// From the root, without a leading slash; empty for the root.
    path: Vec<u8>,
}

/// An entry of a listing; the inode is not known by it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Its name, checked to be one.
    pub name: Vec<u8>,
    /// What it is.
    pub kind: Kind,
}

/// Whether a symbolic link in the last place of a path stands for itself or for its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Last {
    /// The target.
    Follow,
    /// The link itself, unless a slash comes after it.
    Keep,
}

/// What a [`Tree::walk`] shows.
pub enum Visit<'a, 't> {
    /// An entry, before what is in it.
    Entry {
        /// The entry.
        node: &'a Node<'t>,
        /// The directory that holds it; none for the start.
        parent: Option<&'a Node<'t>>,
        /// How far below the start, which has depth 0.
        depth: usize,
        /// Whether no entry of the same directory comes after it.
        last: bool,
    },
    /// A directory whose entries have all been shown.
    Leave {
        /// The directory.
        node: &'a Node<'t>,
        /// The directory that holds it; none for the start.
        parent: Option<&'a Node<'t>>,
    },
    /// Something that could not be read; the walk goes on beside it.
    Failed {
        /// Its path, as [`Node::path`].
        path: &'a [u8],
        /// Why.
        error: FsError,
    },
}

/// How a [`Tree::walk`] goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Into this directory, and on.
    Into,
    /// On, but not into this directory; it gets no `Leave`.
    Past,
}

/// Whether an entry of a listing, with its path, is to be looked up.
pub type Wanted<'a> = dyn FnMut(&[u8], Kind) -> Result<bool> + 'a;

/// A directory that a walk is in.
struct Level<'t> {
    node: Node<'t>,
    /// Entries still to show, last first.
    todo: Vec<Listed>,
}

impl<'s> Tree<'s> {
    /// Wraps `store`.
    pub fn new(store: &'s dyn Store) -> Self {
        let ways = store.capabilities().slow_names.then(Ways::new);
        Tree { store, known: RefCell::default(), ways }
    }

    /// The store.
    pub fn store(&self) -> &'s dyn Store {
        self.store
    }

    /// Inodes that are held at present (the root is never counted), by nodes, and as directories that paths led through; 0 when all nodes are gone and
    /// none of those is kept.
    pub fn known_inodes(&self) -> usize {
        self.known.borrow().len()
    }

    /// The root directory.
    pub fn root(&self) -> Result<Node<'_>> {
        let attr = self.store.getattr(Ino::ROOT)?;
        Ok(self.node(attr, Vec::new()))
    }

    /// The entry `name` of the directory `dir`. Symbolic links are not followed.
    pub fn child<'t>(&'t self, dir: &Node<'_>, name: &[u8]) -> Result<Node<'t>> {
        let path = dir.join(name);
        let name = FileName::new(name).map_err(|e| FsError::from(e).on("open", show(&path)))?;
        let attr = self.store.lookup(dir.ino(), name).map_err(|e| about("open", &path, e))?;
        Ok(self.node(attr, path))
    }

    /// The entry at `path`.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory` and `Loop` as a mount gives them; `InvalidInput` and `NotPermitted` for a path or a
    /// symbolic link that leads out of the tree.
    pub fn resolve(&self, path: &[u8], last: Last) -> Result<Node<'_>> {
        if let Some(found) = self.by_way(path, last)? {
            return Ok(found);
        }
        let (generation, mut is_plain) = (self.ways.as_ref().map_or(0, Ways::generation), true);
        let mut trail = vec![self.root()?];
        let mut links = 0;
        // Components still to take, the next one at the end. A trailing slash asks for a directory: it counts as `.`.
        let mut todo = components(path);
        while let Some(part) = todo.pop() {
            let here = trail.last().expect("the root stays on the trail");
            if here.kind() != Kind::Directory {
                return Err(FsError::new(ErrorKind::NotDirectory).on("open", show(here.path())));
            }
            match part.as_slice() {
                b"." => {}
                b".." => {
                    is_plain = false;
                    if trail.len() == 1 {
                        return Err(FsError::new(ErrorKind::InvalidInput)
                            .on("open", String::from_utf8_lossy(path))
                            .because("the path leads out of the tree"));
                    }
                    trail.pop();
                }
                name => {
                    let node = self.child(here, name)?;
                    if node.kind() != Kind::Symlink || (last == Last::Keep && todo.is_empty()) {
                        trail.push(node);
                        continue;
                    }
                    (links, is_plain) = (links + 1, false);
                    if links > SYMLINKS_MAX {
                        return Err(FsError::new(ErrorKind::Loop).on("open", String::from_utf8_lossy(path)));
                    }
                    todo.extend(self.link_components(&node, trail.len() - 1)?);
                }
            }
        }
        if is_plain {
            self.keep_ways(&trail, generation);
        }
        Ok(trail.pop().expect("the root stays on the trail"))
    }

    /// The components of a link's target, last first; refuses one that leaves the store. `depth` is the number of
    /// folders between the root and the one that holds the link.
    fn link_components(&self, link: &Node<'_>, depth: usize) -> Result<Vec<Vec<u8>>> {
        let target = self.read_link(link)?;
        let parts = components(&target);
        // Only leading `..` are counted here; one after a further link is caught when the walk gets there.
        let climbs = parts.iter().rev().take_while(|p| p.as_slice() == b"..").count();
        if target.starts_with(b"/") || climbs > depth {
            return Err(FsError::new(ErrorKind::NotPermitted)
                .on("open", show(link.path()))
                .because(format!("the symbolic link to {} leads out of the tree", String::from_utf8_lossy(&target))));
        }
        Ok(parts)
    }

    /// The directory in which `path` names an entry, which need not exist, and the entry's name.
    ///
    /// # Errors
    /// `NotPermitted` for the root, which has no name; `InvalidInput` if the path ends in none (`.`, `..`).
    pub fn resolve_parent(&self, path: &[u8]) -> Result<(Node<'_>, Vec<u8>)> {
        let trimmed = trim_slashes(path);
        if trimmed.is_empty() && path.starts_with(b"/") {
            return Err(FsError::new(ErrorKind::NotPermitted).on("change", "/").because("it is the root"));
        }
        let (dir, name) = match trimmed.iter().rposition(|&b| b == b'/') {
            Some(at) => (&trimmed[..=at], &trimmed[at + 1..]),
            None => (&b"/"[..], trimmed),
        };
        let name = FileName::new(name).map_err(|e| FsError::from(e).on("open", String::from_utf8_lossy(path)))?;
        let parent = self.resolve(dir, Last::Follow)?;
        Ok((parent, name.as_bytes().to_vec()))
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, link: &Node<'_>) -> Result<Vec<u8>> {
        self.store.readlink(link.ino()).map_err(|e| about("read link", link.path(), e))
    }

    /// The entries of a directory, sorted by name (bytes).
    pub fn list(&self, dir: &Node<'_>) -> Result<Vec<Listed>> {
        let mut entries = Vec::new();
        self.store
            .read_dir(dir.ino(), 0, &mut |e| {
                entries.push(Listed { name: e.name.as_bytes().to_vec(), kind: e.kind });
                ControlFlow::Continue(())
            })
            .map_err(|e| about("list", dir.path(), e))?;
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Shows `start` and everything below it in order of name, each directory before and after what is in it.
    ///
    /// Symbolic links are shown, not followed. What vanishes meanwhile is left out. An error of `visit` ends the walk.
    /// Depth is limited by memory only. A directory that two names lead to, which damage can do in a store that tells
    /// directories by an id, is gone into under the first; the second is shown as failed (`Corrupt`) with both paths, so
    /// that nothing is shown twice and the walk ends also where a directory holds itself.
    pub fn walk<'t>(&'t self, start: Node<'t>, visit: &mut dyn FnMut(Visit<'_, 't>) -> Result<Step>) -> Result<()> {
        self.walk_where(start, None, visit)
    }

    /// As [`Tree::walk`]. `is_wanted` is asked of each entry below `start`, with its path and the kind that the listing tells, before it is looked
    /// up: what is not wanted is passed, whatever it is, and no error of it shows.
    pub fn walk_where<'t>(
        &'t self,
        start: Node<'t>,
        mut is_wanted: Option<&mut Wanted<'_>>,
        visit: &mut dyn FnMut(Visit<'_, 't>) -> Result<Step>,
    ) -> Result<()> {
        let mut levels: Vec<Level<'t>> = Vec::new();
        let mut seen = HashMap::new();
        self.enter(start, &mut levels, &mut seen, visit)?;
        while let Some(level) = levels.last_mut() {
            let Some(next) = level.todo.pop() else {
                let Some(level) = levels.pop() else { break };
                visit(Visit::Leave { node: &level.node, parent: levels.last().map(|l| &l.node) })?;
                continue;
            };
            if let Some(is_wanted) = &mut is_wanted
                && !is_wanted(&level.node.join(&next.name), next.kind)?
            {
                continue;
            }
            match self.child(&level.node, &next.name) {
                Ok(node) => self.enter(node, &mut levels, &mut seen, visit)?,
                Err(e) if e.is_not_found() => {}
                Err(error) => {
                    let path = level.node.join(&next.name);
                    visit(Visit::Failed { path: &path, error })?;
                }
            }
        }
        Ok(())
    }

    /// Shows `node`, and makes it the innermost level if it is a directory to go into. `seen` are the directories that
    /// the walk has been in, with their paths.
    fn enter<'t>(
        &'t self,
        node: Node<'t>,
        levels: &mut Vec<Level<'t>>,
        seen: &mut HashMap<Ino, Box<[u8]>>,
        visit: &mut dyn FnMut(Visit<'_, 't>) -> Result<Step>,
    ) -> Result<()> {
        if let Some(error) = self.seen_before(&node, seen) {
            return visit(Visit::Failed { path: node.path(), error }).map(drop);
        }
        let parent = levels.last().map(|l| &l.node);
        let last = levels.last().is_none_or(|l| l.todo.is_empty());
        let step = visit(Visit::Entry { node: &node, parent, depth: levels.len(), last })?;
        if node.kind() != Kind::Directory || step == Step::Past {
            return Ok(());
        }
        let todo = match self.list(&node) {
            Ok(mut todo) => {
                for error in self.store.left_out(node.ino()) {
                    visit(Visit::Failed { path: node.path(), error: about("list", node.path(), error) })?;
                }
                todo.reverse();
                todo
            }
            Err(error) => {
                visit(Visit::Failed { path: node.path(), error })?;
                Vec::new()
            }
        };
        seen.insert(node.ino(), node.path().into());
        levels.push(Level { node, todo });
        Ok(())
    }

    /// Why `node` is not to be gone into: it is a directory that still lies at another path as well.
    fn seen_before(&self, node: &Node<'_>, seen: &HashMap<Ino, Box<[u8]>>) -> Option<FsError> {
        let first = seen.get(&node.ino()).filter(|_| node.kind() == Kind::Directory)?;
        // A host may give the number of a directory that was removed meanwhile to a new one.
        let still =
            first.as_ref() != node.path() && self.resolve(first, Last::Keep).is_ok_and(|n| n.ino() == node.ino());
        still.then(|| {
            FsError::new(ErrorKind::Corrupt)
                .on("open", show(node.path()))
                .because(format!("it is the same directory as {}", show(first)))
        })
    }

    /// Creates the directory `path`; `Exists` if the name is taken.
    pub fn mkdir(&self, path: &[u8], new: &NewNode) -> Result<Node<'_>> {
        if trim_slashes(path).is_empty() && !path.is_empty() {
            return Err(FsError::new(ErrorKind::Exists).on("mkdir", "/"));
        }
        let (parent, name) = self.resolve_parent(path)?;
        self.mkdir_in(&parent, &name, new)
    }

    /// Creates the directory `name` in `dir`.
    pub fn mkdir_in<'t>(&'t self, dir: &Node<'_>, name: &[u8], new: &NewNode) -> Result<Node<'t>> {
        let path = dir.join(name);
        let attr = self.store.mkdir(dir.ino(), FileName::new(name)?, new).map_err(|e| about("mkdir", &path, e))?;
        Ok(self.node(attr, path))
    }

    /// Creates the directory `path` and those above it, as far as they do not exist.
    pub fn mkdir_all(&self, path: &[u8], new: &NewNode) -> Result<Node<'_>> {
        let mut ends: Vec<usize> =
            (0..path.len()).filter(|&at| path[at] == b'/' && at > 0 && path[at - 1] != b'/').collect();
        if path.last().is_some_and(|&b| b != b'/') {
            ends.push(path.len());
        }
        let mut reached = self.root()?;
        for end in ends {
            let prefix = &path[..end];
            reached = match self.resolve(prefix, Last::Follow) {
                Ok(node) if node.kind() == Kind::Directory => node,
                Ok(node) => return Err(FsError::new(ErrorKind::NotDirectory).on("mkdir", show(node.path()))),
                Err(e) if e.is_not_found() => self.mkdir(prefix, new)?,
                Err(e) => return Err(e),
            };
        }
        Ok(reached)
    }

    /// Removes the file, link or empty directory at `path` itself.
    pub fn remove(&self, path: &[u8]) -> Result<()> {
        let (parent, name) = self.resolve_parent(path)?;
        let kind = self.child(&parent, &name)?.kind();
        self.remove_in(&parent, &name, kind)
    }

    /// Removes what is at `path` with everything in it; symbolic links are removed, not followed.
    ///
    /// Each entry that cannot be removed is handed to `failed`, and the rest goes on; the directories above such an
    /// entry stay, quietly. `seen` is called for each entry removed. Returns whether nothing failed.
    pub fn remove_all(
        &self,
        path: &[u8],
        seen: &mut dyn FnMut(&Node<'_>),
        failed: &mut dyn FnMut(FsError),
    ) -> Result<bool> {
        let (parent, name) = self.resolve_parent(path)?;
        let start = self.child(&parent, &name)?;
        // For each directory that the walk is in, whether it will be empty once its entries are handled.
        let mut clean: Vec<bool> = Vec::new();
        let mut all_clean = true;
        let mut fail = |error, clean: &mut Vec<bool>| {
            failed(error);
            all_clean = false;
            clean.last_mut().into_iter().for_each(|c| *c = false);
        };
        self.walk(start, &mut |visit| {
            let (node, holder) = match visit {
                Visit::Entry { node, .. } if node.kind() == Kind::Directory => {
                    clean.push(true);
                    return Ok(Step::Into);
                }
                Visit::Entry { node, parent, .. } => (node, parent),
                Visit::Leave { node, parent } => {
                    if !clean.pop().unwrap_or(false) {
                        clean.last_mut().into_iter().for_each(|c| *c = false);
                        return Ok(Step::Past);
                    }
                    (node, parent)
                }
                Visit::Failed { error, .. } => {
                    fail(error, &mut clean);
                    return Ok(Step::Past);
                }
            };
            // The start may have been reached through links: its place is the one that was resolved.
            let (holder, entry) = holder.map_or((&parent, name.as_slice()), |dir| (dir, node.name()));
            match self.remove_in(holder, entry, node.kind()) {
                Ok(()) => seen(node),
                Err(e) if e.is_not_found() => {}
                Err(e) => fail(e, &mut clean),
            }
            Ok(Step::Past)
        })?;
        Ok(all_clean)
    }

    /// Removes the entry `name` of `dir`, which is of `kind`.
    pub fn remove_in(&self, dir: &Node<'_>, name: &[u8], kind: Kind) -> Result<()> {
        let entry = FileName::new(name)?;
        let done = match kind {
            Kind::Directory => self.store.rmdir(dir.ino(), entry),
            _ => self.store.unlink(dir.ino(), entry),
        };
        if kind == Kind::Directory {
            self.directory_moved();
        }
        done.map_err(|e| about("remove", &dir.join(name), e))
    }

    /// Renames `from` to `to`, or into `to` if that is a directory. What is at `to` is replaced unless `flags` say
    /// otherwise. Returns the new path.
    pub fn rename(&self, from: &[u8], to: &[u8], flags: RenameFlags) -> Result<Vec<u8>> {
        let (from_dir, from_name) = self.resolve_parent(from)?;
        let (to_dir, to_name) = match self.resolve(to, Last::Follow) {
            Ok(dir) if dir.kind() == Kind::Directory => (dir, from_name.clone()),
            Ok(_) => self.resolve_parent(to)?,
            Err(e) if e.is_not_found() => self.resolve_parent(to)?,
            Err(e) => return Err(e),
        };
        let new_path = to_dir.join(&to_name);
        let old_path = from_dir.join(&from_name);
        if new_path.strip_prefix(old_path.as_slice()).is_some_and(|rest| rest.starts_with(b"/")) {
            return Err(FsError::new(ErrorKind::InvalidInput)
                .on("rename", format!("{} to {}", show(&old_path), show(&new_path)))
                .because("a folder cannot be moved into itself"));
        }
        let (from, to) = (FileName::new(&from_name)?, FileName::new(&to_name)?);
        let renamed = self.store.rename(from_dir.ino(), from, to_dir.ino(), to, flags);
        self.directory_moved();
        renamed.map_err(|e| {
            let subject = format!("{} to {}", show(&old_path), show(&new_path));
            about_subject("rename", subject, e)
        })?;
        Ok(new_path)
    }

    /// A node for attributes that the store just made known.
    fn node(&self, attr: Attr, path: Vec<u8>) -> Node<'_> {
        if attr.ino != Ino::ROOT {
            *self.known.borrow_mut().entry(attr.ino).or_insert(0) += 1;
        }
        Node { tree: self, attr, path }
    }

    fn release(&self, ino: Ino) {
        let mut known = self.known.borrow_mut();
        if let Entry::Occupied(mut count) = known.entry(ino) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
                drop(known);
                self.store.forget(ino);
            }
        }
    }
}

impl Node<'_> {
    /// Its attributes when it was looked up.
    pub fn attr(&self) -> &Attr {
        &self.attr
    }

    /// Its inode number.
    pub fn ino(&self) -> Ino {
        self.attr.ino
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.attr.kind
    }

    /// From the root, without a leading slash; empty for the root.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The last component; empty for the root.
    pub fn name(&self) -> &[u8] {
        let start = self.path.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
        &self.path[start..]
    }

    /// The path of an entry of this directory.
    fn join(&self, name: &[u8]) -> Vec<u8> {
        let mut path = Vec::with_capacity(self.path.len() + 1 + name.len());
        if !self.path.is_empty() {
            path.extend_from_slice(&self.path);
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }
}

impl Drop for Tree<'_> {
    fn drop(&mut self) {
        self.let_ways_go();
    }
}

impl Drop for Node<'_> {
    fn drop(&mut self) {
        if self.attr.ino != Ino::ROOT {
            self.tree.release(self.attr.ino);
        }
    }
}

/// Makes `path` the subject of an error. A subject that the store named itself (a ciphertext path) stays, as the cause.
fn about(op: &'static str, path: &[u8], error: FsError) -> FsError {
    about_subject(op, show(path), error)
}

fn about_subject(op: &'static str, subject: String, error: FsError) -> FsError {
    match error.subject() {
        Some(inner) if inner != subject => FsError::new(error.kind()).on(op, subject).because(error),
        _ => error.on(op, subject),
    }
}

/// A path of this module as people write it: with a leading slash, bytes that are not UTF-8 replaced.
pub fn show(path: &[u8]) -> String {
    format!("/{}", String::from_utf8_lossy(path))
}

/// The process's effective user and group, the owner of what it creates.
pub fn this_process() -> Caller {
    Caller { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

/// The components of a path, last first; a trailing slash becomes `.`, empty components go.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = path.split(|&b| b == b'/').filter(|p| !p.is_empty()).map(<[u8]>::to_vec).collect();
    if path.ends_with(b"/") {
        parts.push(b".".to_vec());
    }
    parts.reverse();
    parts
}

fn trim_slashes(mut path: &[u8]) -> &[u8] {
    while let [rest @ .., b'/'] = path {
        path = rest;
    }
    path
}
