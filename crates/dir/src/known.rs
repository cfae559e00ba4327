//! The known inodes: where each was found.

use std::sync::{Arc, Weak};

use adit_core::types::{Ino, Kind};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use parking_lot::Mutex;

use crate::file::OpenFile;

/// Most names that are remembered of one inode. Of one that was found under more, the oldest go: should all that are left
/// be removed, it is `Stale` until it is looked up again.
const NAMES_MAX: usize = 64;

/// A directory, and a name in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Name {
    pub(crate) dir: Ino,
    pub(crate) name: Box<[u8]>,
}

impl Name {
    pub(crate) fn new(dir: Ino, name: &[u8]) -> Name {
        Name { dir, name: name.into() }
    }
}

struct Record {
    kind: Kind,
    /// Newest last. One for a directory.
    names: Vec<Name>,
    /// Whether the engine holds a reference.
    known: bool,
    /// Whether a name was given here that may not be durable.
    fresh: bool,
    /// Names in other records that lie in this directory: it is needed to find them.
    children: usize,
    /// Its open files: at most one for reading and one for writing.
    open: Vec<Weak<OpenFile>>,
}

/// The table. Its lock is held for moments, and never during a call of the host.
pub(crate) struct Known {
    records: Mutex<HashMap<Ino, Record>>,
}

/// Directories whose records went with a change, for who holds something of them.
pub(crate) type Gone = Vec<Ino>;

impl Known {
    pub(crate) fn new() -> Known {
        let root = Record {
            kind: Kind::Directory,
            names: Vec::new(),
            known: true,
            fresh: false,
            children: 0,
            open: Vec::new(),
        };
        Known { records: Mutex::new(HashMap::from_iter([(Ino::ROOT, root)])) }
    }

    /// Makes `ino` known, as `name`. False if the directory is not known.
    pub(crate) fn learn(&self, ino: Ino, kind: Kind, name: Name, fresh: bool) -> bool {
        let mut records = self.records.lock();
        if !records.contains_key(&name.dir) {
            return false;
        }
        let mut left = Vec::new();
        match records.entry(ino) {
            Entry::Vacant(vacant) => {
                vacant.insert(Record {
                    kind,
                    names: Vec::with_capacity(1),
                    known: true,
                    fresh,
                    children: 0,
                    open: Vec::new(),
                });
            }
            Entry::Occupied(mut occupied) => {
                let record = occupied.get_mut();
                record.known = true;
                record.fresh |= fresh;
                if record.kind != kind {
                    // The host has given the number to something else.
                    record.kind = kind;
                    record.open.clear();
                    left = std::mem::take(&mut record.names);
                } else if record.names.last() == Some(&name) {
                    return true;
                } else if kind == Kind::Directory {
                    left = std::mem::take(&mut record.names);
                } else if let Some(at) = record.names.iter().position(|known| *known == name) {
                    left.push(record.names.remove(at));
                } else if record.names.len() == NAMES_MAX {
                    left.push(record.names.remove(0));
                }
            }
        }
        if let Some(dir) = records.get_mut(&name.dir) {
            dir.children += 1;
        }
        if let Some(record) = records.get_mut(&ino) {
            record.names.push(name);
        }
        for name in left {
            leave(&mut records, name.dir);
        }
        true
    }

    /// The engine's reference goes.
    pub(crate) fn forget(&self, ino: Ino) -> Gone {
        let mut records = self.records.lock();
        if let Some(record) = records.get_mut(&ino) {
            record.known = false;
        }
        collect(&mut records, ino)
    }

    /// `name` does not lead to `ino` any more.
    pub(crate) fn unname(&self, ino: Ino, name: &Name) -> Gone {
        let mut records = self.records.lock();
        let Some(record) = records.get_mut(&ino) else { return Gone::new() };
        let Some(at) = record.names.iter().position(|known| known == name) else { return Gone::new() };
        record.names.remove(at);
        leave(&mut records, name.dir);
        collect(&mut records, name.dir)
    }

    /// What was `from` is `to` now.
    pub(crate) fn moved(&self, ino: Ino, from: &Name, to: Name) -> Gone {
        let mut records = self.records.lock();
        let reachable = records.contains_key(&to.dir);
        let Some(record) = records.get_mut(&ino) else { return Gone::new() };
        let Some(at) = record.names.iter().position(|known| known == from) else { return Gone::new() };
        record.fresh = true;
        record.names.remove(at);
        if reachable {
            let dir = to.dir;
            record.names.push(to);
            if let Some(dir) = records.get_mut(&dir) {
                dir.children += 1;
            }
        }
        leave(&mut records, from.dir);
        collect(&mut records, from.dir)
    }

    #[cfg(test)]
    fn count(&self, ino: Ino) -> usize {
        self.records.lock().get(&ino).map_or(0, |record| record.names.len())
    }

    /// The newest name of `ino`, the `nth` one back.
    pub(crate) fn name(&self, ino: Ino, nth: usize) -> Option<Name> {
        self.records.lock().get(&ino)?.names.iter().rev().nth(nth).cloned()
    }

    /// What it is, if it is known.
    pub(crate) fn kind(&self, ino: Ino) -> Option<Kind> {
        self.records.lock().get(&ino).map(|record| record.kind)
    }

    /// An open file of `ino`; one that can be written if `write`.
    pub(crate) fn open_file(&self, ino: Ino, write: bool) -> Option<Arc<OpenFile>> {
        let records = self.records.lock();
        let mut open = records.get(&ino)?.open.iter().filter_map(Weak::upgrade);
        open.find(|file| file.writable || !write)
    }

    /// Remembers an open file, unless another thread did so first: then it is that one.
    pub(crate) fn opened(&self, ino: Ino, file: Arc<OpenFile>) -> Arc<OpenFile> {
        let mut records = self.records.lock();
        let Some(record) = records.get_mut(&ino) else { return file };
        let mut others = record.open.iter().filter_map(Weak::upgrade);
        if let Some(other) = others.find(|other| other.writable || !file.writable) {
            return other;
        }
        drop(others);
        record.open.retain(|open| open.strong_count() > 0);
        record.open.push(Arc::downgrade(&file));
        file
    }

    /// The directories of `ino`, if a name was given here since they were synced.
    pub(crate) fn fresh_dirs(&self, ino: Ino) -> Vec<Ino> {
        let records = self.records.lock();
        let record = records.get(&ino).filter(|record| record.fresh);
        record.map_or_else(Vec::new, |record| record.names.iter().map(|name| name.dir).collect())
    }

    /// Marks `ino` as one with a name that may not be durable, or as one with durable names only.
    pub(crate) fn set_fresh(&self, ino: Ino, fresh: bool) {
        if let Some(record) = self.records.lock().get_mut(&ino) {
            record.fresh = fresh;
        }
    }

    /// The components of a path of `ino`, from the root; `None` if it has none that is known.
    pub(crate) fn path(&self, ino: Ino) -> Option<Vec<Box<[u8]>>> {
        let records = self.records.lock();
        let (mut parts, mut at) = (Vec::new(), ino);
        while at != Ino::ROOT {
            let name = records.get(&at)?.names.last()?;
            parts.push(name.name.clone());
            at = name.dir;
            if parts.len() > records.len() {
                // Others have moved directories into each other meanwhile.
                return None;
            }
        }
        parts.reverse();
        Some(parts)
    }

    /// Records, that of the root among them.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.records.lock().len()
    }
}

/// One name less lies in `dir`.
fn leave(records: &mut HashMap<Ino, Record>, dir: Ino) {
    if let Some(dir) = records.get_mut(&dir) {
        dir.children = dir.children.saturating_sub(1);
    }
}

/// Drops the record of `ino` if nobody needs it, and those above it that it alone kept.
fn collect(records: &mut HashMap<Ino, Record>, ino: Ino) -> Gone {
    let (mut gone, mut todo) = (Gone::new(), vec![ino]);
    while let Some(at) = todo.pop() {
        let Entry::Occupied(record) = records.entry(at) else { continue };
        if at == Ino::ROOT || record.get().known || record.get().children > 0 {
            continue;
        }
        let record = record.remove();
        if record.kind == Kind::Directory {
            gone.push(at);
        }
        for name in record.names {
            leave(records, name.dir);
            todo.push(name.dir);
        }
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(dir: u64, name: &str) -> Name {
        Name::new(Ino(dir), name.as_bytes())
    }

    #[test]
    fn a_directory_stays_while_something_known_lies_in_it() {
        let known = Known::new();
        assert!(known.learn(Ino(10), Kind::Directory, name(1, "a"), false));
        assert!(known.learn(Ino(11), Kind::Directory, name(10, "b"), false));
        assert!(known.learn(Ino(12), Kind::File, name(11, "c"), false));
        assert_eq!(known.forget(Ino(10)), [], "still on the way to c");
        assert_eq!(known.forget(Ino(11)), []);
        assert_eq!(known.path(Ino(12)).unwrap().concat(), b"abc");
        assert_eq!(known.forget(Ino(12)), [Ino(11), Ino(10)]);
        assert_eq!(known.len(), 1, "the root");
        assert!(!known.learn(Ino(12), Kind::File, name(11, "c"), false), "in a directory that nobody knows");
    }

    #[test]
    fn all_names_are_remembered_and_the_newest_comes_first() {
        let known = Known::new();
        for at in 0..NAMES_MAX + 2 {
            assert!(known.learn(Ino(9), Kind::File, name(1, &format!("n{at}")), false));
        }
        assert_eq!(known.count(Ino(9)), NAMES_MAX);
        assert_eq!(known.name(Ino(9), 0), Some(name(1, "n65")));
        assert_eq!(known.name(Ino(9), NAMES_MAX - 1), Some(name(1, "n2")));
        known.moved(Ino(9), &name(1, "n64"), name(1, "m"));
        known.unname(Ino(9), &name(1, "n65"));
        assert_eq!(known.name(Ino(9), 0), Some(name(1, "m")));
        known.forget(Ino(9));
        assert_eq!(known.len(), 1);
    }

    #[test]
    fn a_directory_has_one_name_and_a_number_may_become_another_things() {
        let known = Known::new();
        known.learn(Ino(9), Kind::Directory, name(1, "a"), false);
        known.learn(Ino(9), Kind::Directory, name(1, "b"), false);
        assert_eq!((known.count(Ino(9)), known.name(Ino(9), 0)), (1, Some(name(1, "b"))));
        known.learn(Ino(9), Kind::File, name(1, "f"), false);
        assert_eq!((known.count(Ino(9)), known.kind(Ino(9))), (1, Some(Kind::File)));
        known.unname(Ino(9), &name(1, "f"));
        assert_eq!(known.path(Ino(9)), None);
        known.forget(Ino(9));
        assert_eq!(known.len(), 1);
    }
}
