//! Trees for tests, and the one that is obviously right: a map from paths to what was said of them.
#![allow(dead_code)] // No test uses all of it.

pub mod paths;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use adit_core::types::Kind;
use adit_index::build::MEMORY_MIN_BYTES;
use adit_index::{Builder, Built, ContentHash, Entry, NodeId, Segment, Stamp};
use adit_testkit::Rng;

/// An [`Entry`] that owns what it says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    pub path: Vec<u8>,
    pub kind: Kind,
    pub perm: u16,
    pub size: u64,
    pub mtime_ns: i64,
    pub hash: Option<ContentHash>,
    pub stamp: Option<Stamp>,
    pub extra: Vec<u8>,
    /// Of the model only: no entry names it.
    pub implied: bool,
}

impl Item {
    pub fn file(path: &[u8]) -> Item {
        let path = path.to_owned();
        Item {
            path,
            kind: Kind::File,
            perm: 0o644,
            size: 7,
            mtime_ns: 3,
            hash: None,
            stamp: None,
            extra: Vec::new(),
            implied: false,
        }
    }

    pub fn dir(path: &[u8]) -> Item {
        Item { kind: Kind::Directory, perm: 0o750, size: 0, ..Item::file(path) }
    }

    pub fn entry(&self) -> Entry<'_> {
        Entry {
            path: &self.path,
            kind: self.kind,
            perm: self.perm,
            size: self.size,
            mtime_ns: self.mtime_ns,
            hash: self.hash,
            stamp: self.stamp,
            extra: &self.extra,
        }
    }
}

/// The names of a path: their order is that of the tree.
pub fn names(path: &[u8]) -> Vec<&[u8]> {
    if path.is_empty() { Vec::new() } else { path.split(|byte| *byte == b'/').collect() }
}

/// All nodes by the names of their path.
pub type Model = BTreeMap<Vec<Vec<u8>>, Item>;

fn owned(names: &[&[u8]]) -> Vec<Vec<u8>> {
    names.iter().map(|name| name.to_vec()).collect()
}

/// The tree that these entries make.
pub fn model(items: &[Item], implied_perm: u16, implied_mtime_ns: i64) -> Model {
    let mut all = Model::new();
    for item in items {
        let names = names(&item.path);
        for depth in 0..names.len() {
            let path = names[..depth].join(&b'/');
            let dir = Item { perm: implied_perm, mtime_ns: implied_mtime_ns, implied: true, ..Item::dir(&path) };
            all.entry(owned(&names[..depth])).or_insert(dir);
        }
        let item = Item { size: if item.kind == Kind::Directory { 0 } else { item.size }, ..item.clone() };
        all.insert(owned(&names), item);
    }
    if all.is_empty() {
        let root = Item { perm: implied_perm, mtime_ns: implied_mtime_ns, implied: true, ..Item::dir(b"") };
        all.insert(Vec::new(), root);
    }
    all
}

/// A folder with room for scratch files and a segment.
pub struct Place {
    pub dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    pub fn out(&self) -> PathBuf {
        self.dir.path().join("segment")
    }

    pub fn builder(&self) -> Builder {
        Builder::new(self.dir.path(), MEMORY_MIN_BYTES as u64)
    }

    pub fn build(&self, items: &[Item]) -> Built {
        let mut builder = self.builder();
        builder.set_identity(b"a test").unwrap();
        items.iter().for_each(|item| builder.add(&item.entry()).unwrap());
        builder.finish(&self.out(), &mut |_| ControlFlow::Continue(())).unwrap()
    }

    pub fn segment(&self, items: &[Item]) -> Segment {
        self.build(items);
        Segment::open(&self.out()).unwrap()
    }

    /// A segment with tables.
    pub fn segment_with_tables(&self, items: &[Item]) -> Segment {
        let mut builder = self.builder();
        builder.set_tables(true);
        items.iter().for_each(|item| builder.add(&item.entry()).unwrap());
        builder.finish(&self.out(), &mut |_| ControlFlow::Continue(())).unwrap();
        Segment::open(&self.out()).unwrap()
    }

    /// What is in the folder beside the segment.
    pub fn left(&self) -> Vec<String> {
        left(self.dir.path())
    }
}

/// What is in a folder beside a segment.
pub fn left(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    entries.filter(|name| name != "segment").collect()
}

/// A segment says exactly what the model has.
pub fn compare(segment: &Segment, model: &Model) {
    segment.verify(&mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(segment.len() as usize, model.len());
    let mut dirs = vec![(NodeId::ROOT, Vec::new())];
    let mut seen = 0;
    while let Some((id, at)) = dirs.pop() {
        seen += 1;
        let item = &model[&at];
        let node = segment.node(id).unwrap();
        assert_eq!((node.kind, node.implied, node.perm), (item.kind, item.implied, item.perm), "{at:?}");
        assert_eq!((node.size, node.mtime_ns), (item.size, item.mtime_ns), "{at:?}");
        assert_eq!((segment.hash(id).unwrap(), segment.stamp(id).unwrap()), (item.hash, item.stamp));
        assert_eq!(segment.extra(id).unwrap(), item.extra);
        assert_eq!(segment.path(id).unwrap(), item.path);
        if node.kind != Kind::Directory {
            assert!(segment.children(id, 0).is_err() && segment.lookup(id, b"x").is_err());
            continue;
        }
        let children: Vec<_> = segment.children(id, 0).unwrap().map(Result::unwrap).collect();
        let half = children.len() / 2;
        assert!(segment.children(id, half as u32).unwrap().map(Result::unwrap).eq(children[half..].iter().copied()));
        assert!(segment.children(id, children.len() as u32 + 1).unwrap().next().is_none());
        for child in &children {
            assert_eq!(segment.lookup(id, child.name).unwrap(), Some(child.id));
            assert_eq!((segment.parent(child.id).unwrap(), segment.name(child.id).unwrap()), (id, child.name));
            // Beside a name nothing is found that is not there.
            for other in near(child.name) {
                let mut path = at.clone();
                path.push(other.clone());
                let known = model.get(&path).map(|item| item.path.clone());
                let found = segment.lookup(id, &other).unwrap().map(|found| segment.path(found).unwrap());
                assert_eq!(found, known);
            }
            let mut path = at.clone();
            path.push(child.name.to_vec());
            assert_eq!(model[&path].kind, child.kind);
            dirs.push((child.id, path));
        }
    }
    assert_eq!(seen, model.len(), "children that the segment does not list");
}

/// Names that are nearly this one.
fn near(name: &[u8]) -> Vec<Vec<u8>> {
    let longer = [name, b"\x01"].concat();
    let shorter = name[..name.len() - 1].to_vec();
    let mut higher = name.to_vec();
    *higher.last_mut().unwrap() = higher.last().unwrap().wrapping_add(1);
    vec![longer, shorter, higher]
}

/// A name as nobody likes it.
pub fn name(rng: &mut Rng) -> Vec<u8> {
    const BAD: [&[u8]; 12] = [
        b"\n",
        b"a\nb",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"...",
        b" ",
        b"-",
        b"\\",
        b"*?[",
        b"a",
        b"a\x01",
        "é🎬".as_bytes(),
    ];
    match rng.below(8) {
        0 => rng.pick(&BAD).to_vec(),
        // Around the length that one byte holds.
        1 if rng.percent(10) => vec![b'l'; 250 + rng.below(10) as usize],
        2 if rng.percent(3) => vec![b'v'; 1 + rng.below(4096) as usize],
        _ => format!("n{}", rng.below(40)).into_bytes(),
    }
}

/// Entries of which no two contradict each other, in any order.
pub fn items(rng: &mut Rng, count: usize) -> Vec<Item> {
    let mut dirs: Vec<Vec<u8>> = vec![Vec::new()];
    let mut all = BTreeMap::new();
    let mut directories = std::collections::BTreeSet::new();
    for _ in 0..count {
        let dir = rng.pick(&dirs).clone();
        let mut path = dir;
        for _ in 0..1 + rng.below(3) {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(name(rng));
        }
        let names = names(&path);
        // What is above it is a directory from now on; if one of these is a file, or it is a directory, nothing is added.
        let above: Vec<Vec<u8>> = (1..names.len()).map(|depth| names[..depth].join(&b'/')).collect();
        let is_file = |path: &Vec<u8>| all.get(path).is_some_and(|item: &Item| item.kind != Kind::Directory);
        if path.len() > 60_000 || all.contains_key(&path) || above.iter().any(is_file) {
            continue;
        }
        let mut item =
            if rng.percent(20) || directories.contains(&path) { Item::dir(&path) } else { Item::file(&path) };
        item.perm = rng.below(0o10000) as u16;
        item.mtime_ns = rng.next_u64() as i64;
        if item.kind == Kind::Directory {
            dirs.push(path.clone());
        } else {
            item.size = rng.next_u64() >> rng.below(64);
            item.kind = *rng.pick(&[Kind::File, Kind::File, Kind::File, Kind::Symlink, Kind::Fifo]);
        }
        if rng.percent(50) {
            item.hash = Some(if rng.percent(5) { [0; 16] } else { [rng.below(256) as u8; 16] });
            item.stamp = rng.percent(50).then(|| [1 + rng.below(255) as u8; 8]);
        }
        if rng.percent(20) {
            item.extra = vec![rng.below(256) as u8; 1 + rng.below(100) as usize];
        }
        directories.extend(above);
        all.insert(path, item);
    }
    if rng.percent(50) {
        all.insert(Vec::new(), Item::dir(b""));
    }
    shuffled(rng, all.into_values().collect())
}

pub fn shuffled(rng: &mut Rng, mut items: Vec<Item>) -> Vec<Item> {
    for at in (1..items.len()).rev() {
        items.swap(at, rng.below(at as u64 + 1) as usize);
    }
    items
}
