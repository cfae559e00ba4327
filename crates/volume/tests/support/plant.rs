//! A tree with something of everything, and faults that are written into it below all that keeps its rules.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use adit_core::store::{NewNode, Store};
use adit_core::types::{Access, FileName, Ino, Kind, XattrName, XattrSet};
use adit_testkit::own_caller;
use adit_volume::check::{self, Options, Problem, Report};
use adit_volume::format::keys::{self, Id, Key, NameHash};
use adit_volume::format::records::{self, Block, Entry, Inode, Place, Window};
use adit_volume::table::Allocation;
use adit_volume::{Batch, Table, Tree, VolumeStore};

pub fn name(text: &str) -> FileName<'_> {
    FileName::new(text.as_bytes()).unwrap()
}

fn new(perm: u16) -> NewNode {
    NewNode { perm, umask: 0, caller: own_caller() }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 5) as u8 ^ (at / 4096) as u8).collect()
}

fn file(store: &VolumeStore, dir: Ino, at: &str, bytes: &[u8]) -> Ino {
    let (attr, file) = store.create(dir, name(at), &new(0o640)).unwrap();
    for (n, part) in bytes.chunks(1 << 20).enumerate() {
        file.write_at(&[((n << 20) as u64, part)]).unwrap();
    }
    attr.ino
}

/// Makes the tree. Its inodes by path.
///
/// ```text
/// /a = /d/a2   /big (a hole in it)   /empty/   /link   /pipe   /with (attributes)
/// /d/f   /d/e/g   /d/e/deep/h
/// ```
pub fn sample(store: &VolumeStore) -> BTreeMap<&'static str, u64> {
    let root = Ino::ROOT;
    let mut all = BTreeMap::new();
    let a = file(store, root, "a", b"alpha");
    let big = file(store, root, "big", &pattern(1_300_000));
    store.open(big, Access::Write).unwrap().write_at(&[(3 << 20, b"behind a hole")]).unwrap();
    let dir = |parent: Ino, at: &str| store.mkdir(parent, name(at), &new(0o750)).unwrap().ino;
    let d = dir(root, "d");
    store.link(a, d, name("a2")).unwrap();
    let e = dir(d, "e");
    let deep = dir(e, "deep");
    let with = file(store, root, "with", &pattern(9000));
    let attribute = XattrName::new(b"user.k").unwrap();
    store.set_xattr(with, attribute, b"value", XattrSet::Either).unwrap();
    all.insert("/link", store.symlink(root, name("link"), b"a", own_caller()).unwrap().ino.0);
    all.insert("/pipe", store.mknod(root, name("pipe"), Kind::Fifo, 0, &new(0o600)).unwrap().ino.0);
    let more = [
        ("/a", a),
        ("/big", big),
        ("/d", d),
        ("/d/f", file(store, d, "f", &pattern(5000))),
        ("/d/e", e),
        ("/d/e/g", file(store, e, "g", b"gamma")),
        ("/d/e/deep", deep),
        ("/d/e/deep/h", file(store, deep, "h", &pattern(20_000))),
        ("/empty", dir(root, "empty")),
        ("/with", with),
    ];
    all.extend(more.map(|(path, ino)| (path, ino.0)));
    all
}

/// What lies at each path that the root leads to, without times: kind, inode, and content, target, links and attributes.
pub fn shown(store: &VolumeStore) -> BTreeMap<String, (Kind, u64, String)> {
    let mut all = BTreeMap::new();
    let mut todo = vec![(String::new(), Ino::ROOT)];
    while let Some((path, dir)) = todo.pop() {
        let mut entries = Vec::new();
        let mut sink = |entry: adit_core::store::DirEntry<'_>| {
            entries.push((entry.ino, String::from_utf8_lossy(entry.name.as_bytes()).into_owned()));
            ControlFlow::Continue(())
        };
        store.read_dir(dir, 0, &mut sink).unwrap();
        for (ino, entry) in entries.into_iter().filter(|(_, name)| name != "." && name != "..") {
            let path = format!("{path}/{entry}");
            let attr = store.getattr(ino).unwrap_or_else(|e| panic!("{path}: {e}"));
            let mut what = format!("{:o} {} {}", attr.perm, attr.uid, attr.gid);
            match attr.kind {
                Kind::File => {
                    let mut bytes = vec![0; attr.size as usize];
                    let read = store.open(ino, Access::Read).unwrap().read_at(0, &mut bytes);
                    assert_eq!(read.unwrap_or_else(|e| panic!("{path}: {e}")), bytes.len());
                    let sum = crc32c::crc32c(&bytes);
                    what.push_str(&format!(" {} links, {} bytes, {sum:08x}", attr.nlink, attr.size));
                }
                Kind::Directory => todo.push((path.clone(), ino)),
                Kind::Symlink => what.push_str(&String::from_utf8_lossy(&store.readlink(ino).unwrap())),
                _ => {}
            }
            let names = store.xattr_names(ino).unwrap_or_default();
            what.push_str(&String::from_utf8_lossy(&names));
            assert!(all.insert(path, (attr.kind, ino.0, what)).is_none(), "a name is there twice");
            assert!(all.len() < 10_000, "the tree ends");
        }
    }
    all
}

/// Checks, and repairs if asked to.
pub fn checked(
    tree: &Tree,
    allocation: &dyn Allocation,
    repair: bool,
    memory_bytes: usize,
) -> adit_core::Result<Report> {
    let mut report = Report::default();
    let options = Options { contents: true, repair };
    check::check_tree(tree, allocation, options, memory_bytes, &mut report, &mut |_| ())?;
    Ok(report)
}

/// Problems in one line each.
pub fn lines(problems: &[Problem]) -> Vec<String> {
    let place = |p: &Problem| format!("{} in {}", p.path.as_deref().unwrap_or("-"), p.part.as_deref().unwrap_or("-"));
    problems.iter().map(|p| format!("{}: {}: {}", p.kind.as_str(), place(p), p.detail)).collect()
}

/// Writes records as they come.
pub struct Planter<'a> {
    pub table: &'a dyn Table,
    pub hash: NameHash,
    /// The ids that the branch sees, its own first.
    pub ids: Vec<Id>,
}

impl Planter<'_> {
    pub fn apply(&self, writes: Vec<(Vec<u8>, Option<Vec<u8>>)>) {
        self.table.apply(Batch { writes, ..Batch::default() }).unwrap();
    }

    /// The version that is seen, and who wrote it.
    pub fn found(&self, key: &Key) -> Option<(Id, Vec<u8>)> {
        self.ids.iter().find_map(|id| Some((*id, self.table.get(&key.at(*id)).unwrap()?.to_vec())))
    }

    /// Writes over the version that is seen, or adds one of the branch's own.
    pub fn put(&self, key: &Key, value: Vec<u8>) {
        let id = self.found(key).map_or(self.ids[0], |(id, _)| id);
        let mut writes = vec![(key.at(id), Some(value))];
        if self.ids.len() > 1 && id == self.ids[0] {
            writes.push((keys::touched(id, key.as_bytes()), Some(records::TOUCHED.to_vec())));
        }
        self.apply(writes);
    }

    /// Takes away the version that is seen, as if it had never been written.
    pub fn remove(&self, key: &Key) {
        let (id, _) = self.found(key).expect("it is there");
        self.apply(vec![(key.at(id), None), (keys::touched(id, key.as_bytes()), None)]);
    }

    pub fn inode(&self, ino: u64) -> Inode {
        Inode::decode(&self.found(&Key::inode(ino)).expect("it is there").1).unwrap()
    }

    pub fn edit(&self, ino: u64, change: impl FnOnce(&mut Inode)) {
        let mut inode = self.inode(ino);
        change(&mut inode);
        self.put(&Key::inode(ino), inode.encode());
    }

    /// Has the version of a window that is seen say that all its blocks were born under `birth`.
    pub fn bear(&self, ino: u64, index: u64, birth: Id) {
        let key = Key::window(ino, index);
        let (id, value) = self.found(&key).expect("it is there");
        let mut window = Window::decode(&value).unwrap();
        let blocks: Vec<(usize, Block)> = window.iter().collect();
        for (at, block) in blocks {
            window.set(at, Some(Block { birth, ..block }));
        }
        self.apply(vec![(key.at(id), Some(window.encode()))]);
    }

    /// Where an entry of that name is, or would be.
    pub fn place(&self, dir: u64, name: &str) -> Place {
        Place { dir, cookie: self.hash.cookie(name.as_bytes()) }
    }

    pub fn key_of(&self, place: Place) -> Key {
        Key::entry(place.dir, place.cookie)
    }

    /// Makes an entry, and nothing else.
    pub fn link(&self, dir: u64, name: &str, ino: u64, kind: Kind) -> Place {
        let place = self.place(dir, name);
        self.put(&self.key_of(place), Entry { ino, kind, name: name.as_bytes() }.encode());
        place
    }

    /// Removes an entry, and nothing else.
    pub fn unlink(&self, dir: u64, name: &str) {
        self.remove(&self.key_of(self.place(dir, name)));
    }
}
