//! Overlays for the tests: an upper volume in memory over lowers of several kinds.
#![allow(dead_code)] // Each test uses a part of it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use adit_core::overlay::{LowerIdentity, Overlay};
use adit_core::store::{Store, StoreFile};
use adit_core::types::{Access, Attr, FileName, Ino, Kind, RenameFlags};
use adit_testkit::model::{Limits, MemoryStore};
use adit_testkit::ops::{Mismatch, Op, Outcome, StoreSubject, Subject};
use adit_volume::tree::MAIN;
use adit_volume::{Source, VolumeStore};

#[path = "../support/tree.rs"]
pub mod volume;

use volume::World;

/// Everything that a volume holds, and with it an overlay.
pub fn limits(unit_len_bytes: u32) -> Limits {
    Limits { unit_len_bytes, buffer_writes: false, reserves: false, whiteouts: true, ..Limits::default() }
}

pub fn identity(text: &str) -> LowerIdentity {
    LowerIdentity { id: text.as_bytes().to_vec(), text: text.to_owned() }
}

/// The overlay of a world's branch over `lower`.
pub fn over(lower: &Arc<dyn Store>, upper: &World) -> Overlay {
    Overlay::open(lower.clone(), Arc::new(upper.main()), &identity("the lower")).unwrap()
}

/// A snapshot of a branch, to read.
pub fn snapshot_of(world: &World) -> Arc<dyn Store> {
    let id = world.tree.snapshot(MAIN, "lower").unwrap();
    Arc::new(VolumeStore::open(&world.tree, Source::Snapshot(id)).unwrap())
}

/// A store in memory, strict about references, listed whole.
pub fn memory() -> MemoryStore {
    MemoryStore::new(Limits { stable_cookies: false, ..limits(4096) })
}

/// Runs the first of `ops` on `lower` and on the model, and closes what they opened.
pub fn fill(lower: &dyn Store, model: &MemoryStore, ops: &[Op]) -> Result<(), Mismatch> {
    let (mut subject, mut expected) = (StoreSubject::new(lower), StoreSubject::new(model));
    for (step, op) in ops.iter().enumerate() {
        step_of(step, op, &mut expected, &mut subject)?;
    }
    Ok(())
}

fn step_of(step: usize, op: &Op, expected: &mut StoreSubject<'_>, got: &mut StoreSubject<'_>) -> Result<(), Mismatch> {
    let (expected, got) = (expected.run(op), got.run(op));
    if expected == got {
        return Ok(());
    }
    let mut what = format!("{op:?}: got {got:?}, expected {expected:?}");
    if let (Outcome::Bytes(a), Outcome::Bytes(b)) = (&expected, &got) {
        let at = a.iter().zip(b).position(|(x, y)| x != y);
        what += &format!(", different from byte {at:?} on");
    }
    Err(Mismatch { step, what })
}

/// Runs `ops` on an overlay and on the model, and opens the overlay anew every `remount` of them.
pub fn run(
    open: &dyn Fn() -> Overlay,
    model: &MemoryStore,
    (first, ops): (usize, &[Op]),
    remount: usize,
) -> Result<(), Mismatch> {
    let mut numbers = BTreeMap::new();
    for (part, ops) in ops.chunks(remount).enumerate() {
        let first = first + part * remount;
        let overlay = open();
        let fail = |what: String| Mismatch { step: first + ops.len(), what };
        let now = numbers_of(&overlay).map_err(fail)?;
        if let Some(difference) = difference(&numbers, &now) {
            return Err(fail(format!("opened anew: {difference}")));
        }
        {
            let (mut subject, mut expected) = (StoreSubject::new(&overlay), StoreSubject::new(model));
            for (step, op) in ops.iter().enumerate() {
                step_of(first + step, op, &mut expected, &mut subject)?;
            }
            let expected = expected.snapshot().map_err(|what| fail(format!("model: {what}")))?;
            let got = subject.snapshot().map_err(fail)?;
            if let Some(what) = expected.difference(&got) {
                return Err(fail(what));
            }
        }
        numbers = numbers_of(&overlay).map_err(fail)?;
        let unknown = overlay.changes(&mut |_| {}).map_err(|e| fail(format!("changes: {e}")))?;
        if !unknown.is_empty() {
            return Err(fail(format!("changes: {unknown:?}")));
        }
        let inodes = overlay.counters().iter().find(|(name, _)| *name == "overlay.inodes").unwrap().1;
        if inodes > 1 {
            return Err(fail(format!("{inodes} inodes are known, and nobody asked for them")));
        }
    }
    Ok(())
}

fn difference(before: &BTreeMap<String, Ino>, now: &BTreeMap<String, Ino>) -> Option<String> {
    if before.is_empty() || before == now {
        return None;
    }
    let other = before.iter().find(|(path, ino)| now.get(*path) != Some(ino));
    Some(format!("{other:?} was not found again as that"))
}

/// The number of everything, by path; that listings and lookups agree is checked.
pub fn numbers_of(store: &dyn Store) -> Result<BTreeMap<String, Ino>, String> {
    let mut found = BTreeMap::new();
    let mut todo = vec![(Ino::ROOT, String::new())];
    while let Some((dir, path)) = todo.pop() {
        let mut entries = Vec::new();
        let listed = store.read_dir(dir, 0, &mut |entry| {
            entries.push((entry.name.as_bytes().to_vec(), entry.ino, entry.kind));
            ControlFlow::Continue(())
        });
        listed.map_err(|e| format!("list {path}: {e}"))?;
        for (name, ino, kind) in entries {
            let path = format!("{path}/{}", name.escape_ascii());
            let attr = store.lookup(dir, FileName::new(&name).unwrap()).map_err(|e| format!("look up {path}: {e}"))?;
            if (attr.ino, attr.kind) != (ino, kind) {
                return Err(format!("{path} is listed as {ino:?} {kind:?} and is {:?} {:?}", attr.ino, attr.kind));
            }
            if found.insert(path.clone(), ino).is_some() {
                return Err(format!("{path} is listed twice"));
            }
            if kind == Kind::Directory {
                todo.push((ino, path));
            }
        }
    }
    let mut all: Vec<Ino> = found.values().copied().collect();
    all.sort_unstable();
    all.dedup();
    all.into_iter().for_each(|ino| store.forget(ino));
    Ok(found)
}

/// A lower that was made by `make`, as a snapshot, and an empty upper.
pub struct Pair {
    pub lower: Arc<dyn Store>,
    pub upper: World,
}

impl Pair {
    pub fn new(make: impl FnOnce(&VolumeStore)) -> Pair {
        let world = World::new();
        make(&world.main());
        Pair { lower: snapshot_of(&world), upper: World::new() }
    }

    pub fn open(&self) -> Overlay {
        over(&self.lower, &self.upper)
    }
}

/// Short words for tests that know what is there.
pub trait Words: Store {
    /// The number of what lies at a path, known from now on.
    fn at(&self, path: &str) -> Ino {
        self.find(path).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    fn find(&self, path: &str) -> adit_core::Result<Ino> {
        let mut at = Ino::ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = self.lookup(at, volume::name(name))?.ino;
        }
        Ok(at)
    }

    /// The directory of a path, and its last name.
    fn place<'p>(&self, path: &'p str) -> (Ino, FileName<'p>) {
        let (dir, last) = path.rsplit_once('/').unwrap_or(("", path));
        (self.at(dir), volume::name(last))
    }

    fn put(&self, path: &str, content: &[u8]) -> Ino {
        let (dir, name) = self.place(path);
        let (attr, file) = self.create(dir, name, &volume::new(0o644)).unwrap();
        file.write_at(&[(0, content)]).unwrap();
        attr.ino
    }

    fn dir(&self, path: &str) -> Ino {
        let (dir, name) = self.place(path);
        self.mkdir(dir, name, &volume::new(0o755)).unwrap().ino
    }

    fn file(&self, path: &str) -> Arc<dyn StoreFile> {
        self.open(self.at(path), Access::Write).unwrap()
    }

    fn content(&self, path: &str) -> Vec<u8> {
        let file = self.file(path);
        let mut content = vec![0xee; file.len().unwrap() as usize];
        assert_eq!(file.read_at(0, &mut content).unwrap(), content.len());
        content
    }

    fn names(&self, path: &str) -> Vec<String> {
        let mut names = Vec::new();
        let listed = self.read_dir(self.at(path), 0, &mut |entry| {
            names.push(entry.name.display().into_owned());
            ControlFlow::Continue(())
        });
        listed.unwrap();
        names.sort_unstable();
        names
    }

    fn mv(&self, from: &str, to: &str) -> adit_core::Result<()> {
        let ((dir, name), (new_dir, new_name)) = (self.place(from), self.place(to));
        self.rename(dir, name, new_dir, new_name, RenameFlags::empty())
    }

    fn rm(&self, path: &str) {
        let (dir, name) = self.place(path);
        self.unlink(dir, name).unwrap_or_else(|e| panic!("{path}: {e}"));
    }

    fn stat(&self, path: &str) -> Attr {
        self.getattr(self.at(path)).unwrap()
    }
}

impl<S: Store + ?Sized> Words for S {}
