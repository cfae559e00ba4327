//! The tree as the engine of a mount tells it: what is at a name, what is in a directory, and all of it.
//!
//! Whatever is asked makes inodes known for a moment; each is given back before the question ends.

use std::ops::ControlFlow;
use std::sync::Arc;

use adit_core::engine::{Engine, Entry, Lookup, SinkFlow};
use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::types::{Attr, FileName, Ino, Kind};
use hashbrown::{HashMap, HashSet};

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

/// So many directories are remembered as not read. When there are more, none is taken to be.
const UNREAD_MAX: usize = 1 << 16;

/// What could not be read, and the directories of which not all is known therefore.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unread {
    /// How many entries, or directories.
    pub count: u64,
    /// The first of them, and why.
    pub first: Option<String>,
    /// The keys of the directories, and how much of each could not be read.
    dirs: HashMap<u64, u64>,
    /// There were more than are remembered.
    is_full: bool,
}

impl Unread {
    /// So much of a directory could not be read.
    pub(super) fn note(&mut self, NotRead { dir, count, why }: NotRead) {
        match self.dirs.len() < UNREAD_MAX || self.dirs.contains_key(&dir) {
            true => *self.dirs.entry(dir).or_default() += count,
            false => self.is_full = true,
        }
        self.count += count;
        self.first.get_or_insert(why);
    }

    /// What is in the directory with this key was listed since.
    pub(super) fn clear(&mut self, dir: u64) {
        self.count -= self.dirs.remove(&dir).unwrap_or(0);
        if self.count == 0 {
            *self = Unread::default();
        }
    }

    /// Whether something may be in the directory with this key that is not known.
    pub fn has(&self, dir: u64) -> bool {
        self.is_full || self.dirs.contains_key(&dir)
    }
}

/// That something in a directory could not be read.
#[derive(Debug)]
pub(super) struct NotRead {
    /// The key of the directory.
    pub dir: u64,
    /// How much.
    pub count: u64,
    /// Why, of the first of it.
    pub why: String,
}

impl NotRead {
    pub fn new(dir: u64, e: &FsError) -> NotRead {
        NotRead { dir, count: 1, why: format!("in directory {dir}: {e}") }
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

    /// Hands all entries of a known directory to `each`, but those of which nothing is to be had: that is what it returns.
    ///
    /// # Errors
    /// Those of the store: what came before is right. `Interrupted` if it is over.
    pub fn list(&self, dir: u64, each: &mut dyn FnMut(&[u8], Facts)) -> Result<Option<NotRead>> {
        if self.closed.contains(&dir) {
            return Ok(None);
        }
        let fh = self.engine.opendir(Ino(dir))?;
        let (mut known, mut unseen) = (Vec::new(), Vec::new());
        let mut is_over = false;
        let listed = self.engine.read_dir_plus(fh, 0, &mut |entry, found: Option<&Entry>| {
            is_over = (self.is_over)();
            if is_over {
                return SinkFlow::Full;
            }
            match found {
                Some(found) => {
                    known.push(Known(self.engine, found.attr.ino));
                    each(entry.name.as_bytes(), self.facts(&found.attr));
                }
                None => unseen.push(name(entry.name.as_bytes())),
            }
            if known.len() >= KNOWN_MAX {
                known.clear();
            }
            SinkFlow::More
        });
        // Nothing can be done about it.
        let _ = self.engine.releasedir(fh);
        if is_over {
            return Err(over());
        }
        listed?;
        drop(known);
        let mut not_read: Option<NotRead> = None;
        // Once more, for why it is.
        for name in unseen {
            match (self.lookup(dir, &name), &mut not_read) {
                (Ok(Some((facts, _))), _) => each(&name, facts),
                (Ok(None), _) => {}
                (Err(_), Some(not_read)) => not_read.count += 1,
                (Err(e), not_read) => *not_read = Some(NotRead::new(dir, &e)),
            }
        }
        Ok(not_read)
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
            let Some((name, key)) = level.pop() else {
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
                Err(e) => unread.note(NotRead { dir: key, ..NotRead::new(dir, &e) }),
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
                Ok(ControlFlow::Continue(())) if facts.kind == Kind::Directory => level.push(name, facts.key),
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
                unread.note(NotRead { dir: level.dir.1.0, count: 1, why: e.to_string() });
                Ok(level)
            }
            Ok(not_read) => {
                not_read.into_iter().for_each(|not_read| unread.note(not_read));
                Ok(level)
            }
        }
    }
}

/// A directory on the way down.
struct Level<'a> {
    path_len: usize,
    /// The names of directories in it that are still to be gone into, each with its key and its length behind it.
    names: Vec<u8>,
    dir: Known<'a>,
}

impl Level<'_> {
    fn push(&mut self, name: &[u8], key: u64) {
        self.names.extend_from_slice(name);
        self.names.extend(key.to_le_bytes());
        self.names.extend((name.len() as u32).to_le_bytes());
    }

    fn pop(&mut self) -> Option<(Vec<u8>, u64)> {
        let (rest, len) = self.names.split_last_chunk()?;
        let (rest, key) = rest.split_last_chunk()?;
        let at = rest.len().checked_sub(u32::from_le_bytes(*len) as usize)?;
        let found = (rest[at..].to_vec(), u64::from_le_bytes(*key));
        self.names.truncate(at);
        Some(found)
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
