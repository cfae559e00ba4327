//! Overlays whose lower is another one at the next opening: numbers come again, or are made up anew. What was changed stays with its path.

mod overlay;

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use adit_core::overlay::Overlay;
use adit_core::store::{Capabilities, DirEntry, NewNode, Store, StoreFile};
use adit_core::types::{Access, Attr, Caller, FileName, Ino, RenameFlags, SetAttr, StatFs, XattrName};
use adit_core::{ErrorKind, Result};
use adit_dir::DirStore;
use overlay::volume::World;
use overlay::{Words, numbers_of, over};
use parking_lot::Mutex;

/// A folder of the host, and an upper.
struct Bench {
    folder: tempfile::TempDir,
    upper: World,
}

impl Bench {
    fn new() -> Bench {
        Bench { folder: tempfile::tempdir().unwrap(), upper: World::new() }
    }

    fn low(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.low(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// What has the old path keeps its number, and has another path now.
    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.low(from), self.low(to)).unwrap();
    }

    fn open(&self) -> Overlay {
        let lower: Arc<dyn Store> = Arc::new(DirStore::open_as_lower(self.folder.path()).unwrap());
        over(&lower, &self.upper)
    }
}

/// Checks what files hold, in this order and the other one, each of an overlay of its own.
fn expect(open: &dyn Fn() -> Overlay, files: &[(&str, &str)]) {
    let forth: Vec<_> = files.iter().collect();
    for files in [forth.clone(), forth.into_iter().rev().collect()] {
        let overlay = open();
        for (path, content) in &files {
            overlay.at(path);
            assert_eq!(String::from_utf8(overlay.content(path)).unwrap(), *content, "{path} of {files:?}");
        }
    }
}

fn append(overlay: &Overlay, path: &str, text: &str) {
    let file = overlay.file(path);
    file.write_at(&[(file.len().unwrap(), text.as_bytes())]).unwrap();
}

#[test]
fn a_file_that_has_the_number_of_a_changed_one_is_another() {
    for new_first in [false, true] {
        let bench = Bench::new();
        bench.write("d/f", "content");
        append(&bench.open(), "d/f", " changed");
        bench.rename("d/f", "new");
        bench.write("d/f", "saved anew");
        let open = || bench.open();
        expect(&open, &[("d/f", "content changed"), ("new", "content")]);
        let overlay = open();
        if new_first {
            overlay.at("new");
        }
        assert_ne!(overlay.at("d/f"), overlay.at("new"));
        append(&overlay, "new", " too");
        append(&overlay, "d/f", " again");
        let numbers = numbers_of(&overlay).unwrap();
        drop(overlay);
        expect(&open, &[("d/f", "content changed again"), ("new", "content too")]);
        assert_eq!(numbers_of(&open()).unwrap(), numbers);
    }
}

/// What is still the lower's of a file is gone with that, and never another file's.
#[test]
fn what_a_changed_file_has_of_the_lower_is_not_taken_from_what_has_its_number() {
    let bench = Bench::new();
    bench.write("f", &"old ".repeat(10_000));
    bench.open().file("f").write_at(&[(5000, b"changed")]).unwrap();
    bench.rename("f", "new");
    bench.write("f", &"new ".repeat(10_000));
    let overlay = bench.open();
    assert_eq!(overlay.content("new"), "old ".repeat(10_000).as_bytes());
    let opened = overlay.open(overlay.at("f"), Access::Read);
    assert_eq!(opened.map(drop).unwrap_err().kind(), ErrorKind::Stale);
    overlay.rm("f");
    assert_eq!(overlay.names(""), ["new"]);
}

#[test]
fn names_that_have_the_number_of_a_changed_file_with_several_are_others() {
    let bench = Bench::new();
    bench.write("d/f", "content");
    fs::hard_link(bench.low("d/f"), bench.low("d/g")).unwrap();
    {
        let overlay = bench.open();
        append(&overlay, "d/f", " changed");
        assert_eq!(overlay.content("d/g"), b"content changed");
    }
    expect(&|| bench.open(), &[("d/f", "content changed"), ("d/g", "content changed")]);
    for (from, to) in [("d/f", "one"), ("d/g", "two")] {
        bench.rename(from, to);
        bench.write(from, "saved anew");
    }
    // The change stays with the name by which it was made.
    let files = [("d/f", "content changed"), ("d/g", "saved anew"), ("one", "content"), ("two", "content")];
    expect(&|| bench.open(), &files);
    let overlay = bench.open();
    append(&overlay, "two", " too");
    assert_eq!((overlay.at("one"), overlay.stat("one").nlink), (overlay.at("two"), 2));
    drop(overlay);
    let files = [("d/f", "content changed"), ("d/g", "saved anew"), ("one", "content too"), ("two", "content too")];
    expect(&|| bench.open(), &files);
    let overlay = bench.open();
    numbers_of(&overlay).unwrap();
    ["one", "two", "d/g"].into_iter().for_each(|path| overlay.rm(path));
    drop(overlay);
    expect(&|| bench.open(), &[("d/f", "content changed")]);
    assert_eq!(bench.upper.main().names("index").len(), 1, "one copy went with its last name");
}

#[test]
fn a_directory_that_has_the_number_of_a_changed_one_is_another() {
    let bench = Bench::new();
    bench.write("d/f", "content");
    bench.open().put("d/x", b"x");
    bench.rename("d", "new");
    bench.write("d/f", "made anew");
    let open = || bench.open();
    expect(&open, &[("d/x", "x"), ("new/f", "content")]);
    let overlay = open();
    assert_eq!(overlay.names("new"), ["f"]);
    append(&overlay, "new/f", " changed");
    assert_eq!(Words::find(&overlay, "d/f").unwrap_err().kind(), ErrorKind::Stale, "no absence");
    drop(overlay);
    expect(&open, &[("d/x", "x"), ("new/f", "content changed")]);
}

/// As they were before copies of what has several names had one of their own in the upper.
#[test]
fn copies_that_an_index_knows_by_number_alone_are_found() {
    let bench = Bench::new();
    bench.write("d/f", "content");
    fs::hard_link(bench.low("d/f"), bench.low("d/g")).unwrap();
    append(&bench.open(), "d/f", " changed");
    {
        let upper = bench.upper.main();
        let [key] = &upper.names("index")[..] else { panic!("one copy") };
        upper.mv(&format!("index/{key}"), &format!("index/{}", &key[..16])).unwrap();
        upper.rm("tree/d/f");
    }
    let open = || bench.open();
    expect(&open, &[("d/f", "content changed"), ("d/g", "content changed")]);
    // Where it is not known any more which object that was, it is found at its path.
    fs::set_permissions(bench.low("d/f"), fs::Permissions::from_mode(0o600)).unwrap();
    expect(&open, &[("d/f", "content changed"), ("d/g", "content")]);
    let overlay = open();
    append(&overlay, "d/g", " too");
    drop(overlay);
    expect(&open, &[("d/f", "content changed"), ("d/g", "content too")]);
}

/// A folder whose files are numbered in the order in which they are met, as a FUSE filesystem does, and have no ctime of their own.
struct MadeUp {
    store: DirStore,
    met: Mutex<Vec<Ino>>,
}

impl MadeUp {
    fn number(&self, host: Ino) -> Ino {
        let mut met = self.met.lock();
        let at = met.iter().position(|&known| known == host).unwrap_or_else(|| {
            met.push(host);
            met.len() - 1
        });
        Ino(at as u64 + 1)
    }

    fn host(&self, ino: Ino) -> Ino {
        self.met.lock()[ino.0 as usize - 1]
    }

    fn shown(&self, attr: Attr) -> Attr {
        Attr { ino: self.number(attr.ino), ctime: attr.mtime, ..attr }
    }
}

impl Store for MadeUp {
    fn capabilities(&self) -> Capabilities {
        Capabilities { made_up_numbers: true, ..self.store.capabilities() }
    }
    fn lookup(&self, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        Ok(self.shown(self.store.lookup(self.host(parent), name)?))
    }
    fn forget(&self, ino: Ino) {
        self.store.forget(self.host(ino));
    }
    fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.shown(self.store.getattr(self.host(ino))?))
    }
    fn setattr(&self, _: Ino, _: &SetAttr) -> Result<Attr> {
        panic!("the lower is only read")
    }
    fn read_dir(&self, dir: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        let number = |entry: DirEntry<'_>| self.number(entry.ino);
        self.store.read_dir(self.host(dir), start, &mut |entry| sink(DirEntry { ino: number(entry), ..entry }))
    }
    fn create(&self, _: Ino, _: FileName<'_>, _: &NewNode) -> Result<(Attr, Arc<dyn StoreFile>)> {
        panic!("the lower is only read")
    }
    fn mkdir(&self, _: Ino, _: FileName<'_>, _: &NewNode) -> Result<Attr> {
        panic!("the lower is only read")
    }
    fn symlink(&self, _: Ino, _: FileName<'_>, _: &[u8], _: Caller) -> Result<Attr> {
        panic!("the lower is only read")
    }
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.store.readlink(self.host(ino))
    }
    fn unlink(&self, _: Ino, _: FileName<'_>) -> Result<()> {
        panic!("the lower is only read")
    }
    fn rmdir(&self, _: Ino, _: FileName<'_>) -> Result<()> {
        panic!("the lower is only read")
    }
    fn rename(&self, _: Ino, _: FileName<'_>, _: Ino, _: FileName<'_>, _: RenameFlags) -> Result<()> {
        panic!("the lower is only read")
    }
    fn open(&self, ino: Ino, access: Access) -> Result<Arc<dyn StoreFile>> {
        self.store.open(self.host(ino), access)
    }
    fn xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        self.store.xattr(self.host(ino), name)
    }
    fn xattr_names(&self, ino: Ino) -> Result<Vec<u8>> {
        self.store.xattr_names(self.host(ino))
    }
    fn sync_dir(&self, _: Ino) -> Result<()> {
        panic!("nothing of the lower is to be synced")
    }
    fn sync_all(&self) -> Result<()> {
        panic!("nothing of the lower is to be synced")
    }
    fn statfs(&self) -> Result<StatFs> {
        self.store.statfs()
    }
}

#[test]
fn where_numbers_are_made_up_the_path_tells() {
    let bench = Bench::new();
    for n in 0..8 {
        bench.write(&format!("d{n}/f"), &format!("{n} ").repeat(5000));
    }
    // What of it was met before the overlay is opened differs each time.
    let open = |first: &[u64]| {
        let store = DirStore::open_as_lower(bench.folder.path()).unwrap();
        let lower: Arc<dyn Store> = Arc::new(MadeUp { store, met: Mutex::new(vec![Ino::ROOT]) });
        for n in first {
            lower.at(&format!("d{n}/f"));
        }
        over(&lower, &bench.upper)
    };
    let content = |n: u64| format!("{n} ").repeat(5000).into_bytes();
    let changed = |n: u64| [&b"changed"[..], &content(n)[7..]].concat();
    {
        let overlay = open(&[]);
        overlay.file("d3/f").write_at(&[(0, b"changed")]).unwrap();
        overlay.put("d5/x", b"x");
        overlay.mv("d6", "moved").unwrap();
    }
    for first in [&[7, 6, 5, 4][..], &[0, 3], &[3, 5, 6], &[1, 2, 4, 7]] {
        let overlay = open(first);
        for n in [0, 1, 2, 4, 5, 7] {
            assert_eq!(overlay.content(&format!("d{n}/f")), content(n), "{n} of {first:?}");
        }
        assert_eq!(overlay.content("d3/f"), changed(3), "{first:?}");
        assert_eq!(overlay.content("moved/f"), content(6), "{first:?}");
        assert_eq!(overlay.names("d5"), ["f", "x"]);
        let mut numbers: Vec<Ino> = numbers_of(&overlay).unwrap().into_values().collect();
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count, "{first:?}");
        let mut told = Vec::new();
        let unknown = overlay.changes(&mut |change| told.push(String::from_utf8(change.path).unwrap())).unwrap();
        assert!(unknown.is_empty(), "{unknown:?}");
        assert_eq!(told, ["/d3/f", "/d5/x", "/moved"]);
    }
}

/// Of a path that is noted in pieces, none is taken for that of what has its number later.
#[test]
fn where_numbers_are_made_up_a_path_in_pieces_tells() {
    let bench = Bench::new();
    let steps = |from: &str| (0..12).map(|level| format!("/{from}{level:0>199}")).collect::<String>();
    let path = |tree: &str| format!("{tree}{}{}/f", steps("x"), steps("y"));
    let content = |tree: &str| tree.repeat(10_000).into_bytes();
    for tree in ["a", "b"] {
        // The host takes no path that is so long.
        bench.write(&format!("lower{}/f", steps("y")), &tree.repeat(10_000));
        fs::create_dir_all(bench.low(&format!("{tree}{}", steps("x")))).unwrap();
        let first = &steps("y")[..201];
        bench.rename(&format!("lower{first}"), &format!("{tree}{}{first}", steps("x")));
        bench.write(&format!("{tree}/only-{tree}"), tree);
    }
    fs::remove_dir(bench.low("lower")).unwrap();
    // Each time the one that is met first has the numbers.
    let open = |first: &str| {
        let store = DirStore::open_as_lower(bench.folder.path()).unwrap();
        let lower: Arc<dyn Store> = Arc::new(MadeUp { store, met: Mutex::new(vec![Ino::ROOT]) });
        lower.at(&path(first));
        over(&lower, &bench.upper)
    };
    for tree in ["a", "b"] {
        open(tree).file(&path(tree)).write_at(&[(0, b"changed")]).unwrap();
    }
    for first in ["a", "b"] {
        let overlay = open(first);
        for tree in ["a", "b"] {
            let changed = [&b"changed"[..], &content(tree)[7..]].concat();
            assert_eq!(overlay.content(&path(tree)), changed, "{tree}, {first} first");
        }
        let mut told = Vec::new();
        let unknown = overlay.changes(&mut |change| told.push(String::from_utf8(change.path).unwrap())).unwrap();
        assert!(unknown.is_empty(), "{unknown:?}");
        assert_eq!(told, ["a", "b"].map(|tree| format!("/{}", path(tree))));
    }
}
