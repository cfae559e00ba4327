//! Overlays beside what goes on: many threads, a lower that fails, a full upper, a folder of the host as the lower.

mod overlay;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};

use adit_core::overlay::Overlay;
use adit_core::store::{Capabilities, DirEntry, NewNode, Store, StoreFile};
use adit_core::types::{
    Access, AllocateMode, Attr, Caller, FileName, Ino, RenameFlags, SetAttr, StatFs, XattrName, XattrSet,
};
use adit_core::{ErrorKind, Result};
use adit_dir::DirStore;
use adit_testkit::model::MemoryStore;
use adit_testkit::ops::{Op, PathSubject, Plan, StoreSubject, Subject, fuzz, pattern};
use adit_testkit::{Rng, scaled, seeds};
use overlay::volume::{World, name, new};
use overlay::{Pair, Words, identity, limits, over, run};

const THREADS: u64 = 4;
const DIRS: u64 = 3;
const FILE_LEN: usize = 20000;

/// What one thread does: it changes its own files through handles that it opened at first, and moves, links, copies up and
/// lists whatever there is.
fn work(overlay: &Overlay, me: u64, seed: u64, all_have_opened: &Barrier) {
    let mut rng = Rng::new(seed ^ me << 32);
    let mine: Vec<(Ino, Arc<dyn StoreFile>)> = (0..DIRS)
        .map(|dir| {
            let ino = overlay.at(&format!("d{dir}/f{me}"));
            (ino, overlay.open(ino, Access::Write).unwrap())
        })
        .collect();
    let mut content: Vec<Vec<u8>> = (0..DIRS).map(|dir| pattern(dir * 10 + me, 0, FILE_LEN)).collect();
    let dirs: Vec<Ino> = (0..DIRS).map(|dir| overlay.at(&format!("d{dir}"))).collect();
    all_have_opened.wait();
    for step in 0..scaled(150) {
        let at = rng.below(DIRS) as usize;
        let (dir, other) = (*rng.pick(&dirs), *rng.pick(&dirs));
        let names: Vec<String> = (0..THREADS).map(|who| format!("f{who}")).collect();
        let (mine_now, theirs) = (name(&names[me as usize]), name(rng.pick::<String>(&names)));
        match rng.below(10) {
            0..3 => {
                let (offset, len) = (rng.below(FILE_LEN as u64 - 5000), 1 + rng.below(5000) as usize);
                let bytes = pattern(step as u64, offset, len);
                mine[at].1.write_at(&[(offset, &bytes)]).unwrap();
                content[at][offset as usize..offset as usize + len].copy_from_slice(&bytes);
            }
            3 => {
                let mut buf = vec![0; FILE_LEN];
                assert_eq!(mine[at].1.read_at(0, &mut buf).unwrap(), FILE_LEN);
                assert!(buf == content[at], "thread {me} has another content at step {step}");
            }
            4 => {
                let named = [format!("d{}", rng.below(DIRS)), format!("e{}", rng.below(DIRS))];
                let (from, to) = (name(rng.pick::<String>(&named)), name(rng.pick::<String>(&named)));
                drop(overlay.rename(Ino::ROOT, from, Ino::ROOT, to, RenameFlags::NOREPLACE));
            }
            5 => drop(overlay.rename(dir, mine_now, other, mine_now, RenameFlags::EXCHANGE)),
            6 => {
                if let Ok(attr) = overlay.lookup(dir, theirs) {
                    let set = SetAttr { perm: Some(0o600 + rng.below(8) as u16), ..SetAttr::default() };
                    overlay.setattr(attr.ino, &set).unwrap();
                }
            }
            7 => {
                let further = format!("link{me}");
                match overlay.link(mine[at].0, dir, name(&further)) {
                    Ok(attr) => assert_eq!(attr.ino, mine[at].0),
                    Err(_) => overlay.unlink(dir, name(&further)).unwrap(),
                }
            }
            8 => {
                let (path, created) = (format!("t{me}"), overlay.create(dir, name(&format!("t{me}")), &new(0o600)));
                if created.is_err() {
                    overlay.unlink(dir, name(&path)).unwrap();
                }
            }
            _ => {
                let mut entries = Vec::new();
                let listed = overlay.read_dir(dir, 0, &mut |entry| {
                    entries.push(entry.name.as_bytes().to_vec());
                    ControlFlow::Continue(())
                });
                listed.unwrap();
                entries.sort_unstable();
                assert!(entries.windows(2).all(|two| two[0] != two[1]), "{entries:?}");
                for name in entries {
                    match overlay.lookup(dir, FileName::new(&name).unwrap()) {
                        Err(e) => assert!(e.is_not_found(), "{e}"),
                        Ok(attr) => assert!(attr.nlink > 0),
                    }
                }
            }
        }
    }
    for (at, (ino, file)) in mine.iter().enumerate() {
        let mut buf = vec![0; FILE_LEN];
        file.read_at(0, &mut buf).unwrap();
        assert!(buf == content[at]);
        assert!(overlay.getattr(*ino).unwrap().nlink > 0);
    }
}

#[test]
fn threads_go_on_beside_each_other() {
    for seed in seeds(6) {
        let pair = Pair::new(|lower| {
            for dir in 0..DIRS {
                lower.dir(&format!("d{dir}"));
                for who in 0..THREADS {
                    lower.put(&format!("d{dir}/f{who}"), &pattern(dir * 10 + who, 0, FILE_LEN));
                }
            }
        });
        let overlay = pair.open();
        let all_have_opened = Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for me in 0..THREADS {
                let (overlay, all_have_opened) = (&overlay, &all_have_opened);
                scope.spawn(move || work(overlay, me, seed, all_have_opened));
            }
        });
        let numbers = overlay::numbers_of(&overlay).unwrap();
        let mut files: BTreeMap<Ino, u32> = BTreeMap::new();
        for (path, ino) in numbers.iter().filter(|(path, _)| !path.contains("/t")) {
            *files.entry(*ino).or_insert(0) += u32::from(path.contains("/f") || path.contains("/link"));
        }
        let of_lower =
            files.iter().filter(|(ino, count)| Overlay::lower_ino(**ino).is_some() && **count > 0).count() as u64;
        assert_eq!(of_lower, THREADS * DIRS, "ADIT_TEST_SEED={seed}: {numbers:?}");
        drop(overlay);
        let again = overlay::numbers_of(&pair.open()).unwrap();
        assert_eq!(again, numbers, "ADIT_TEST_SEED={seed}");
        assert_eq!(pair.upper.tree.verify().unwrap().problems, [""; 0]);
    }
}

/// A lower that fails while it is told to.
struct Broken {
    store: MemoryStore,
    fails: AtomicBool,
}

impl Broken {
    fn check(&self) -> Result<()> {
        if self.fails.load(Relaxed) { Err(ErrorKind::Io.into()) } else { Ok(()) }
    }
}

impl Store for Broken {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }
    fn lookup(&self, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        self.check()?;
        self.store.lookup(parent, name)
    }
    fn forget(&self, ino: Ino) {
        self.store.forget(ino);
    }
    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.check()?;
        self.store.getattr(ino)
    }
    fn setattr(&self, _: Ino, _: &SetAttr) -> Result<Attr> {
        panic!("the lower is only read")
    }
    fn read_dir(&self, dir: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        self.check()?;
        self.store.read_dir(dir, start, sink)
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
        self.check()?;
        self.store.readlink(ino)
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
        assert_eq!(access, Access::Read, "the lower is only read");
        self.check()?;
        self.store.open(ino, access)
    }
    fn xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        self.check()?;
        self.store.xattr(ino, name)
    }
    fn xattr_names(&self, ino: Ino) -> Result<Vec<u8>> {
        self.check()?;
        self.store.xattr_names(ino)
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
fn a_lower_that_fails_is_no_empty_one() {
    let store = overlay::memory();
    store.dir("d");
    store.put("d/f", &[3; 9000]);
    store.put("g", b"g");
    let broken = Arc::new(Broken { store, fails: AtomicBool::new(false) });
    let upper = World::new();
    let lower: Arc<dyn Store> = broken.clone();
    let overlay = over(&lower, &upper);
    let (d, f) = (overlay.at("d"), overlay.at("d/f"));
    let file = overlay.file("d/f");
    broken.fails.store(true, Relaxed);
    let io = |e: adit_core::FsError| assert_eq!(e.kind(), ErrorKind::Io, "{e}");
    io(overlay.lookup(d, name("f")).unwrap_err());
    io(overlay.lookup(d, name("none")).unwrap_err());
    io(overlay.create(d, name("f"), &new(0o600)).map(drop).unwrap_err());
    io(overlay.unlink(d, name("f")).unwrap_err());
    io(overlay.rmdir(Ino::ROOT, name("d")).unwrap_err());
    io(overlay.mv("g", "h").unwrap_err());
    io(overlay.rename(Ino::ROOT, name("d"), Ino::ROOT, name("e"), RenameFlags::empty()).unwrap_err());
    io(overlay.setattr(f, &SetAttr { perm: Some(0), ..SetAttr::default() }).unwrap_err());
    io(overlay.set_xattr(f, XattrName::new(b"user.a").unwrap(), b"", XattrSet::Either).unwrap_err());
    io(file.write_at(&[(5, b"x")]).unwrap_err());
    io(overlay.read_dir(d, 0, &mut |_| ControlFlow::Continue(())).unwrap_err());
    broken.fails.store(false, Relaxed);
    assert_eq!((overlay.names("d"), overlay.content("d/f")), (vec!["f".to_owned()], vec![3; 9000]));
    let mut changes = 0;
    overlay.changes(&mut |_| changes += 1).unwrap();
    assert_eq!(changes, 0, "nothing was half done");
    file.write_at(&[(5, b"x")]).unwrap();
    assert_eq!(overlay.content("d/f")[4..7], [3, b'x', 3]);
}

#[test]
fn a_full_upper_says_so_and_shows_what_it_has() {
    let lower = overlay::memory();
    lower.put("big", &[9; 400 << 10]);
    let (shown, upper): (Arc<dyn Store>, _) = (Arc::new(lower), World::with(64, 64));
    let overlay = over(&shown, &upper);
    let mut full = None;
    for block in 0..100 {
        if let Err(e) = overlay.file("big").write_at(&[(block * 4096 + 1, b"x")]) {
            assert_eq!(e.kind(), ErrorKind::NoSpace);
            full = Some(block);
            break;
        }
    }
    let full = full.expect("a small volume gets full");
    let content = overlay.content("big");
    for (block, bytes) in content.chunks(4096).enumerate() {
        assert_eq!(bytes[1], if (block as u64) < full { b'x' } else { 9 }, "block {block}");
    }
    overlay.file("big").set_len(0).unwrap();
    overlay.put("other", &[1; 40960]);
    overlay.rm("other");
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Half of the operations on the folder itself, by system calls, the others on the overlay.
#[test]
fn over_a_folder_of_the_host() {
    let mut limits = limits(3000);
    // The host has its own idea of what a node or an attribute may be.
    limits.special_nodes = true;
    let plan = Plan { seeds: 6, ops: 300, limits };
    fuzz(&plan, |ops| {
        let folder = scratch();
        let model = MemoryStore::new(limits);
        let half = ops.len() / 2;
        fill_folder(folder.path(), &model, &ops[..half]);
        let lower: Arc<dyn Store> = Arc::new(DirStore::open(folder.path(), true).unwrap());
        let upper = World::new();
        run(&|| over(&lower, &upper), &model, (half, &ops[half..]), 60)
    });
}

/// The model becomes what the folder is: it is filled from it. The host sets space aside, which the model of an overlay does not.
fn fill_folder(folder: &Path, model: &MemoryStore, ops: &[Op]) {
    let (mut subject, mut expected) = (PathSubject::new(folder).unwrap(), StoreSubject::new(model));
    let reserves = |op: &&Op| matches!(op, Op::Allocate(.., AllocateMode::Extend | AllocateMode::KeepSize));
    for op in ops.iter().filter(|op| !reserves(op)) {
        let (expected, got) = (expected.run(op), subject.run(op));
        assert_eq!(got, expected, "{op:?} on the host");
    }
}

#[test]
fn a_folder_that_changes_underneath_is_stale() {
    let folder = scratch();
    let path = folder.path().join("f");
    std::fs::write(&path, [1; 30000]).unwrap();
    let lower: Arc<dyn Store> = Arc::new(DirStore::open(folder.path(), true).unwrap());
    let upper = World::new();
    let overlay = Overlay::open(lower, Arc::new(upper.main()), &identity("a folder")).unwrap();
    let file = overlay.file("f");
    file.write_at(&[(0, b"x")]).unwrap();
    let mut buf = [0; 100];
    assert_eq!(file.read_at(8192, &mut buf).unwrap(), 100);
    std::fs::write(&path, [2; 20000]).unwrap();
    let e = file.read_at(8192, &mut buf).unwrap_err();
    assert_eq!((e.kind(), e.subject()), (ErrorKind::Stale, Some("/f")));
    assert_eq!(file.write_at(&[(9000, b"y")]).unwrap_err().kind(), ErrorKind::Stale, "a block would be mixed");
    file.read_at(0, &mut buf).unwrap();
    assert_eq!(buf[0], b'x', "what is above can be read");
}

/// By the name under which it is known, and with all that holds nothing: then it does not show again.
#[test]
fn what_a_folder_lost_is_removed_and_stays_away() {
    let folder = scratch();
    let low = |path: &str| folder.path().join(path);
    for dir in ["gone/sub", "held/sub/deeper", "file", "other"] {
        std::fs::create_dir_all(low(dir)).unwrap();
        std::fs::write(low(dir).join("f"), dir).unwrap();
    }
    for file in ["dir", "one"] {
        std::fs::write(low(file), file).unwrap();
    }
    std::fs::hard_link(low("one"), low("two")).unwrap();
    let lower: Arc<dyn Store> = Arc::new(DirStore::open(folder.path(), true).unwrap());
    let upper = World::new();
    let overlay = over(&lower, &upper);
    let known = ["gone/sub/f", "file/f", "other/f", "dir", "one"].map(|path| overlay.at(path));
    let (gone, sub) = (overlay.at("gone"), overlay.at("gone/sub"));
    overlay.put("held/sub/deeper/new", b"new");

    for dir in ["gone", "held", "file", "other"] {
        std::fs::remove_dir_all(low(dir)).unwrap();
    }
    std::fs::write(low("file"), "a file").unwrap();
    std::fs::create_dir(low("other")).unwrap();
    std::fs::write(low("other/strange"), "another folder").unwrap();
    std::fs::remove_file(low("dir")).unwrap();
    std::fs::create_dir(low("dir")).unwrap();
    std::fs::write(low("one"), "changed").unwrap();

    assert!(overlay.unlink(sub, name("f")).unwrap_err().is_not_found(), "nothing is left to be hidden");
    assert!(overlay.rmdir(gone, name("sub")).unwrap_err().is_not_found());
    for dir in ["gone", "file", "other"] {
        overlay.rmdir(Ino::ROOT, name(dir)).unwrap_or_else(|e| panic!("{dir}: {e}"));
    }
    for file in ["dir", "one"] {
        overlay.unlink(Ino::ROOT, name(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
    }
    assert_eq!(overlay.rmdir(Ino::ROOT, name("held")).unwrap_err().kind(), ErrorKind::NotEmpty);
    assert_eq!(overlay.content("held/sub/deeper/new"), b"new", "nothing of it went");
    overlay.rm("held/sub/deeper/new");
    overlay.rmdir(Ino::ROOT, name("held")).unwrap();
    assert!(overlay.rmdir(Ino::ROOT, name("held")).unwrap_err().is_not_found());
    assert_eq!(overlay.names(""), ["two"]);
    known.into_iter().chain([gone, sub]).for_each(|ino| overlay.forget(ino));
    drop(overlay);

    for dir in ["gone", "held/sub"] {
        std::fs::create_dir_all(low(dir)).unwrap();
    }
    assert_eq!(over(&lower, &upper).names(""), ["two"]);
    assert_eq!(upper.tree.verify().unwrap().problems, [""; 0]);
}

/// What would go by without the lower fails all the same once that changed: the rest of the file is lost to whoever goes on.
#[test]
fn a_file_that_changed_underneath_is_stale_to_whatever_comes_next() {
    let folder = scratch();
    let write = |name: &str, byte: u8, len: usize| std::fs::write(folder.path().join(name), vec![byte; len]).unwrap();
    for name in ["copied", "not copied", "cut"] {
        write(name, 1, 30000);
    }
    let lower: Arc<dyn Store> = Arc::new(DirStore::open(folder.path(), true).unwrap());
    let upper = World::new();
    let overlay = Overlay::open(lower, Arc::new(upper.main()), &identity("a folder")).unwrap();
    let files = ["copied", "not copied", "cut"].map(|name| overlay.file(name));
    let [copied, not_copied, cut] = &files;
    copied.write_at(&[(0, b"x")]).unwrap();
    cut.set_len(0).unwrap();
    for (name, len) in [("copied", 30001), ("not copied", 20000), ("cut", 5)] {
        write(name, 2, len);
    }
    let mut buf = [0; 4096];
    for (file, path, says) in
        [(copied, "/copied", "30000 bytes, and has 30001"), (not_copied, "/not copied", "30000 bytes, and has 20000")]
    {
        let stale = |e: adit_core::FsError| {
            assert_eq!((e.kind(), e.subject()), (ErrorKind::Stale, Some(path)), "{e}");
            assert!(e.to_string().contains(says), "{e}");
        };
        stale(file.read_at(8192, &mut buf).unwrap_err());
        stale(file.write_at(&[(8192, &[3; 8192])]).unwrap_err());
        stale(file.write_keeping_times(&[(8192, &[3; 8192])]).unwrap_err());
        stale(file.allocate(0, 8192, AllocateMode::PunchHole).unwrap_err());
        stale(file.set_len(10000).unwrap_err());
        stale(overlay.open(overlay.at(path), Access::Write).map(drop).unwrap_err());
        stale(overlay.open(overlay.at(path), Access::Read).map(drop).unwrap_err());
    }
    // What needs nothing of the lower goes on.
    assert_eq!(copied.read_at(0, &mut buf[..1]).unwrap(), 1);
    assert_eq!(buf[0], b'x');
    copied.set_len(0).unwrap();
    copied.write_at(&[(0, b"new")]).unwrap();
    cut.write_at(&[(0, b"new")]).unwrap();
    assert_eq!((overlay.content("copied"), overlay.content("cut")), (b"new".to_vec(), b"new".to_vec()));
}
