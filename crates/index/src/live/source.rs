//! The tree as the engine of a mount tells it: what is at a name, what is in a directory, and all of it.
//!
//! Whatever is asked makes inodes known for a moment; each is given back before the question ends.

use std::ops::ControlFlow;
use std::sync::Arc;

use adit_core::engine::{Engine, Entry, Lookup, SinkFlow};
use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::types::{Attr, FileName, Ino, Kind};
use hashbrown::HashSet;

use super::base::{Contents, Facts};
use super::make;
use crate::build::Builder;

/// So many inodes are known at most while a directory is listed.
const KNOWN_MAX: usize = 512;

/// An engine, and the directories in it that are not gone into.
pub(super) struct Source<'a> {
    pub engine: &'a Engine,
    pub closed: &'a HashSet<u64>,
    /// Who knows which files hold what they held.
    pub contents: Option<&'a dyn Contents>,
    /// Asked now and then: whether it is to end.
    pub is_over: &'a dyn Fn() -> bool,
}

/// What could not be read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unread {
    /// How many entries, or directories.
    pub count: u64,
    /// The first of them, and why.
    pub first: Option<String>,
}

impl Unread {
    fn note(&mut self, e: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.is_none() {
            self.first = Some(e());
        }
    }
}

/// An inode that is known as long as this lives.
pub(super) struct Known<'a>(pub &'a Engine, pub Ino);

impl Drop for Known<'_> {
    fn drop(&mut self) {
        if self.1 != Ino::ROOT {
            self.0.forget(self.1, 1);
        }
    }
}

impl<'a> Source<'a> {
    /// What `name` in a directory leads to. `None` if there is nothing, or no such directory any more.
    pub fn lookup(&self, dir: u64, name: &[u8]) -> Result<Option<(Facts, Known<'a>)>> {
        let Ok(name) = FileName::new(name) else { return Ok(None) };
        self.known(self.engine.lookup_or_absent(Ino(dir), name))
    }

    /// The attributes of an inode, if it is known.
    pub fn attrs(&self, ino: u64) -> Option<Facts> {
        let ino = Ino(ino);
        if ino != Ino::ROOT && !self.engine.keep_known(ino) {
            return None;
        }
        let _known = Known(self.engine, ino);
        self.engine.getattr(ino, None).ok().map(|(attr, _)| self.facts(&attr))
    }

    /// What an index has of something that is known.
    fn facts(&self, attr: &Attr) -> Facts {
        let is_original =
            attr.kind == Kind::File && self.contents.is_some_and(|contents| contents.is_original(attr.ino));
        Facts { is_original, ..Facts::from(attr) }
    }

    /// Hands all entries of a known directory to `each`.
    ///
    /// # Errors
    /// Those of the store: what came before is right. `Interrupted` if it is over.
    pub fn list(&self, dir: u64, each: &mut dyn FnMut(&[u8], Facts)) -> Result<()> {
        if self.closed.contains(&dir) {
            return Ok(());
        }
        let fh = self.engine.opendir(Ino(dir))?;
        let mut known = Vec::new();
        let mut is_over = false;
        let listed = self.engine.read_dir_plus(fh, 0, &mut |entry, found: Option<&Entry>| {
            is_over = (self.is_over)();
            if is_over {
                return SinkFlow::Full;
            }
            let facts = match found {
                Some(found) => {
                    known.push(Known(self.engine, found.attr.ino));
                    self.facts(&found.attr)
                }
                // It is there, and more is not to be had of it.
                None => Facts { kind: entry.kind, perm: 0, ..Facts::directory(entry.ino.0) },
            };
            each(entry.name.as_bytes(), facts);
            if known.len() >= KNOWN_MAX {
                known.clear();
            }
            SinkFlow::More
        });
        // Nothing can be done about it.
        let _ = self.engine.releasedir(fh);
        if is_over { Err(over()) } else { listed }
    }

    /// Gives the whole tree to `builder`, one directory after the other. `progress` is told how many entries there are so far.
    ///
    /// # Errors
    /// Of the root and of the builder; `Interrupted`. What else cannot be read is counted.
    pub fn walk(&self, builder: &mut Builder, progress: &dyn Fn(u64), unread: &mut Unread) -> Result<()> {
        let (root, _) = self.engine.getattr(Ino::ROOT, None)?;
        _ = make::add(builder, b"", &Facts::from(&root))?;
        let mut path = Vec::new();
        let mut seen: HashSet<u64> = HashSet::from_iter([root.ino.0]);
        let mut levels = vec![self.level(Known(self.engine, Ino::ROOT), &mut path, builder, unread)?];
        while let Some(level) = levels.last_mut() {
            path.truncate(level.path_len);
            let Some(name) = level.pop() else {
                levels.pop();
                continue;
            };
            progress(builder.len());
            let (dir, found) = (level.dir.1.0, self.lookup(level.dir.1.0, &name));
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
            match found {
                // Damage can make a directory that holds itself.
                Ok(Some((facts, known))) if facts.kind == Kind::Directory && seen.insert(facts.key) => {
                    let level = self.level(known, &mut path, builder, unread);
                    levels.push(level?);
                }
                Ok(_) => {}
                Err(e) => unread.note(|| format!("in directory {dir}: {e}")),
            }
        }
        Ok(())
    }

    /// Lists a directory into the builder, and notes the directories in it.
    fn level(
        &self,
        dir: Known<'a>,
        path: &mut Vec<u8>,
        builder: &mut Builder,
        unread: &mut Unread,
    ) -> Result<Level<'a>> {
        let len = path.len();
        let mut level = Level { path_len: len, names: Vec::new(), dir };
        let mut failed = None;
        let listed = self.list(level.dir.1.0, &mut |name, facts| {
            if failed.is_some() {
                return;
            }
            path.truncate(len);
            if len > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            match make::add(builder, path, &facts) {
                Ok(ControlFlow::Continue(())) if facts.kind == Kind::Directory => level.push(name),
                Ok(_) => {}
                Err(e) => failed = Some(e),
            }
        });
        path.truncate(len);
        if let Some(e) = failed {
            return Err(e);
        }
        match listed {
            Err(e) if e.kind() == ErrorKind::Interrupted => Err(e),
            Err(e) => {
                unread.note(|| e.to_string());
                Ok(level)
            }
            Ok(()) => Ok(level),
        }
    }
}

/// A directory on the way down.
struct Level<'a> {
    path_len: usize,
    /// The names of directories in it that are still to be gone into, a zero byte before each.
    names: Vec<u8>,
    dir: Known<'a>,
}

impl Level<'_> {
    fn push(&mut self, name: &[u8]) {
        self.names.push(0);
        self.names.extend_from_slice(name);
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        let at = self.names.iter().rposition(|byte| *byte == 0)?;
        let name = self.names.split_off(at + 1);
        self.names.pop();
        Some(name)
    }
}

pub(super) fn over() -> FsError {
    FsError::new(ErrorKind::Interrupted).on("index", "the mount").because("the mount is ending")
}

/// Names as changes have them.
pub(super) fn name(bytes: &[u8]) -> Arc<[u8]> {
    bytes.into()
}

impl<'a> Source<'a> {
    /// What a path below the root leads to.
    pub fn resolve(&self, path: &[u8]) -> Result<Option<(Facts, Known<'a>)>> {
        self.known(self.engine.resolve(path))
    }

    /// What was found, with what keeps it known. `None` if there is nothing, or no such directory any more.
    fn known(&self, found: Result<Lookup>) -> Result<Option<(Facts, Known<'a>)>> {
        match found {
            Ok(Lookup::Found(found)) => {
                let known = Known(self.engine, found.attr.ino);
                Ok(Some((self.facts(&found.attr), known)))
            }
            Ok(Lookup::Absent { .. }) => Ok(None),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Stale | ErrorKind::NotDirectory) => Ok(None),
            Err(e) => Err(e),
        }
    }
}
