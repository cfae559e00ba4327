//! What a walk of a folder or a store gives, with everything that a tree can hold, and what has changed since the last one.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use adit_core::error::Result;
use adit_core::store::Store;
use adit_core::types::{Ino, Kind};
use adit_dir::DirStore;
use adit_index::scan::{self, Before, Change, Event, ScanOptions, StoreRoot, UNREADABLE};
use adit_index::{Builder, Segment};
use adit_testkit::{MappedByte, Rng, seeds};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// What was told of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Told {
    kind: Kind,
    perm: u16,
    size: u64,
    mtime_ns: i64,
    hash: Option<[u8; 16]>,
    stamp: Option<[u8; 8]>,
    extra: Vec<u8>,
    change: Change,
}

#[derive(Default, Debug)]
struct Seen {
    entries: BTreeMap<Vec<u8>, Told>,
    failures: Vec<String>,
    read_bytes: u64,
    /// Files that changed again and again. Where nobody changes any, there are none.
    unsettled: usize,
}

impl Seen {
    fn take(&mut self, event: Event<'_>) -> Result<ControlFlow<()>> {
        match event {
            Event::Entry(entry, change) => {
                let told = Told {
                    kind: entry.kind,
                    perm: entry.perm,
                    size: if entry.kind == Kind::Directory { 0 } else { entry.size },
                    mtime_ns: entry.mtime_ns,
                    hash: entry.hash,
                    stamp: entry.stamp,
                    extra: entry.extra.to_vec(),
                    change,
                };
                assert!(self.entries.insert(entry.path.to_vec(), told).is_none(), "{:?} twice", entry.path);
            }
            Event::Bytes(count) => self.read_bytes += count,
            Event::Failed(error) => self.failures.push(error.to_string()),
            Event::Unread(error) => self.failures.push(format!("content: {error}")),
            Event::Unsettled(_) => self.unsettled += 1,
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The paths of what has become of it what `change` says.
    fn with(&self, change: Change) -> Vec<String> {
        let with = self.entries.iter().filter(|(_, told)| told.change == change);
        with.map(|(path, _)| String::from_utf8_lossy(path).into_owned()).collect()
    }
}

const PLAIN: ScanOptions<'static> = ScanOptions { hash: false, one_file_system: false, threads: 2, before: None };

fn folder(root: &Path, options: &ScanOptions<'_>) -> Seen {
    let mut seen = Seen::default();
    scan::folder(root, None, options, &mut |event| seen.take(event)).unwrap();
    seen
}

/// The same through a store of the folder.
fn through_store(root: &Path, options: &ScanOptions<'_>) -> Seen {
    let store = DirStore::open(root, true).unwrap();
    let root = StoreRoot { store: &store, root: store.getattr(Ino::ROOT).unwrap() };
    let mut seen = Seen::default();
    scan::store(&root, options, &mut |event| seen.take(event)).unwrap();
    seen
}

/// What the standard library says of a tree.
fn expected(root: &Path, hash: bool) -> BTreeMap<Vec<u8>, Told> {
    let mut all = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let mut told = Told {
            kind: Kind::File,
            perm: (meta.mode() & 0o7777) as u16,
            size: meta.size(),
            mtime_ns: meta.mtime() * 1_000_000_000 + meta.mtime_nsec(),
            hash: None,
            stamp: None,
            extra: Vec::new(),
            change: Change::Added,
        };
        if meta.is_dir() {
            (told.kind, told.size) = (Kind::Directory, 0);
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if meta.is_symlink() {
            told.kind = Kind::Symlink;
            told.extra = fs::read_link(&path).unwrap().into_os_string().as_bytes().to_vec();
        } else if !meta.is_file() {
            told.kind = Kind::Fifo;
        } else if hash {
            told.hash = Some(xxh3_128(&fs::read(&path).unwrap()).to_be_bytes());
            // Which file the hash is of, as docs/formats/index.md has it.
            let ctime_ns = meta.ctime() * 1_000_000_000 + meta.ctime_nsec();
            told.stamp = Some(xxh3_64(&[meta.ino().to_le_bytes(), ctime_ns.to_le_bytes()].concat()).to_le_bytes());
        }
        all.insert(path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec(), told);
    }
    all
}

/// Names that nobody likes, hard links, links, a pipe, a deep directory, a large one, and content.
fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &[u8]| dir.path().join(OsStr::from_bytes(name));
    for name in [&b"a\nb"[..], b"\xff\xfe", b"...", b" ", b"-", b"*?["] {
        fs::write(at(name), name).unwrap();
    }
    fs::write(at(&[b'l'; 255]), "long").unwrap();
    let deep: std::path::PathBuf = std::iter::repeat_n("d", 200).collect();
    fs::create_dir_all(dir.path().join(&deep)).unwrap();
    fs::write(dir.path().join(&deep).join("bottom"), "deep").unwrap();
    fs::create_dir(at(b"many")).unwrap();
    for n in 0..2500 {
        fs::write(dir.path().join(format!("many/{n}")), format!("{}", n % 7)).unwrap();
    }
    fs::create_dir(at(b"empty")).unwrap();
    fs::write(at(b"large"), vec![7; 3 << 20]).unwrap();
    fs::hard_link(at(b"large"), at(b"many/again")).unwrap();
    fs::hard_link(at(b"large"), at(b"another")).unwrap();
    symlink("many/1", at(b"link")).unwrap();
    symlink(OsStr::from_bytes(b"/\xff/nowhere"), at(b"dangling")).unwrap();
    symlink(".", at(b"loop")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, at(b"pipe"), rustix::fs::Mode::from_raw_mode(0o640)).unwrap();
    fs::set_permissions(at(b"empty"), PermissionsExt::from_mode(0o1711)).unwrap();
    dir
}

#[test]
fn a_walk_tells_everything_once() {
    let dir = tree();
    for hash in [false, true] {
        let expected = expected(dir.path(), hash);
        for threads in [1, 3] {
            let options = ScanOptions { hash, threads, ..PLAIN };
            for seen in [folder(dir.path(), &options), through_store(dir.path(), &options)] {
                assert_eq!(seen.entries.len(), expected.len());
                for (path, told) in &seen.entries {
                    assert_eq!(Some(told), expected.get(path), "{}", path.escape_ascii());
                }
                let content = if hash { 3 * (3 << 20) + 2500 } else { 0 };
                assert!(seen.failures.is_empty() && seen.read_bytes >= content, "{:?}", seen.failures);
                assert_eq!(seen.unsettled, 0, "nobody changes anything");
            }
        }
    }
}

#[test]
fn the_index_is_not_in_itself() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["sub/index", "sub/.adit-index-0123456789abcdef.tmp", "index", "sub/other"] {
        fs::create_dir_all(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join(name), "").unwrap();
    }
    let mut seen = Seen::default();
    let output = dir.path().join("sub/../sub/index");
    scan::folder(dir.path(), Some(&output), &PLAIN, &mut |event| seen.take(event)).unwrap();
    assert_eq!(seen.with(Change::Added), ["", "index", "sub", "sub/other"]);
}

fn segment(seen: &Seen, place: &Path) -> Segment {
    let mut builder = Builder::new(place, 0);
    for (path, told) in &seen.entries {
        let Told { kind, perm, size, mtime_ns, hash, stamp, ref extra, .. } = *told;
        builder.add(&adit_index::Entry { path, kind, perm, size, mtime_ns, hash, stamp, extra }).unwrap();
    }
    builder.finish(&place.join("index"), &mut |_| ControlFlow::Continue(())).unwrap();
    Segment::open(&place.join("index")).unwrap()
}

/// Every file and directory as of yesterday: what is settled is not read again.
fn age(root: &Path) {
    let past = SystemTime::now() - Duration::from_secs(86_400);
    for path in expected(root, false).keys() {
        let path = root.join(OsStr::from_bytes(path));
        if fs::symlink_metadata(&path).unwrap().is_file() {
            File::open(path).unwrap().set_modified(past).unwrap();
        }
    }
}

fn now_ns() -> i64 {
    i64::try_from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

#[test]
fn what_has_changed_is_told_and_only_that_is_read() {
    let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = |name: &str| dir.path().join(name);
    for name in ["same", "longer", "touched", "removed", "mode", "kind", "sub/in"] {
        fs::create_dir_all(at("sub")).unwrap();
        fs::write(at(name), name).unwrap();
    }
    symlink("a", at("link")).unwrap();
    age(dir.path());
    for walk in [folder, through_store] {
        let options = ScanOptions { hash: true, ..PLAIN };
        let first = walk(dir.path(), &options);
        let segment = segment(&first, place.path());
        // As if it had been made in an hour: the inodes were changed just now.
        let before = Before::new(&segment, now_ns() + 3_600_000_000_000);
        let again = walk(dir.path(), &ScanOptions { before: Some(before), ..options });
        assert_eq!((again.with(Change::Same).len(), again.read_bytes), (first.entries.len(), 0));
        assert_eq!(again.entries["same".as_bytes()].hash, first.entries["same".as_bytes()].hash);
        // What was changed when the index was made, or since, is read, whatever its time says.
        let before = Before::new(&segment, now_ns());
        let unsettled = walk(dir.path(), &ScanOptions { before: Some(before), ..options });
        assert_eq!(unsettled.with(Change::Same).len(), first.entries.len());
        assert_eq!(unsettled.read_bytes, first.read_bytes);
    }
    let segment = segment(&folder(dir.path(), &ScanOptions { hash: true, ..PLAIN }), place.path());
    let begun = now_ns();
    fs::write(at("longer"), "longer than before").unwrap();
    fs::remove_file(at("removed")).unwrap();
    fs::set_permissions(at("mode"), PermissionsExt::from_mode(0o600)).unwrap();
    File::open(at("touched")).unwrap().set_modified(SystemTime::now()).unwrap();
    fs::remove_file(at("kind")).unwrap();
    fs::create_dir(at("kind")).unwrap();
    fs::write(at("kind/new"), "").unwrap();
    fs::remove_file(at("link")).unwrap();
    symlink("b", at("link")).unwrap();
    for walk in [folder, through_store] {
        let before = Some(Before::new(&segment, begun));
        let seen = walk(dir.path(), &ScanOptions { hash: true, before, ..PLAIN });
        assert_eq!(seen.with(Change::Added), ["kind/new"]);
        assert_eq!(seen.with(Change::Changed), ["kind", "link", "longer", "mode", "touched"]);
        assert_eq!(seen.with(Change::Same), ["", "same", "sub", "sub/in"]);
    }
}

/// A write through a mapping gives a file new times only if its page was sent to the medium since the write before.
#[test]
fn what_is_written_through_a_mapping_is_read_again() {
    let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("x"), "0").unwrap();
    let mapped = MappedByte::of(&dir.path().join("x"));
    let options = ScanOptions { hash: true, ..PLAIN };
    for walk in [folder, through_store] {
        mapped.write(b'1');
        let first = walk(dir.path(), &options);
        mapped.write(b'2');
        let segment = segment(&first, place.path());
        // As if it had been made in an hour: the inode was changed just now.
        let before = Before::new(&segment, now_ns() + 3_600_000_000_000);
        let again = walk(dir.path(), &ScanOptions { before: Some(before), ..options });
        assert_eq!(again.read_bytes, 1);
        assert_eq!(again.with(Change::Changed), ["x"]);
        assert_ne!(again.entries["x".as_bytes()].hash, first.entries["x".as_bytes()].hash);
    }
}

/// In an index that was made before stamps had a place of their own they are extra bytes.
#[test]
fn stamps_of_an_earlier_version_are_believed_as_well() {
    let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("a"), "one").unwrap();
    fs::write(dir.path().join("b"), "another").unwrap();
    age(dir.path());
    let options = ScanOptions { hash: true, ..PLAIN };
    let mut first = folder(dir.path(), &options);
    for (path, told) in &mut first.entries {
        told.extra = told.stamp.take().map(|stamp| stamp.to_vec()).unwrap_or_default();
        if path == b"b" {
            told.extra[0] ^= 1;
        }
    }
    let segment = segment(&first, place.path());
    let before = Some(Before::new(&segment, now_ns() + 3_600_000_000_000));
    let again = folder(dir.path(), &ScanOptions { before, ..options });
    assert_eq!((again.with(Change::Same).len(), again.read_bytes), (3, "another".len() as u64));
    assert!(again.entries.values().all(|told| told.extra.is_empty()));
}

/// Files that are written to while they are read: what is told of one is what it has, if it still has the size and the time that were
/// told, or that nothing is known. A host gives a write its time before its bytes, so one that is stopped between them for longer than a
/// walk waits may be seen by its time alone; an update reads what had been changed so shortly before again.
#[test]
fn a_file_that_changes_while_it_is_read_has_its_own_hash_or_none() {
    const LEN: usize = 200 << 10;
    let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let names = ["a", "b", "c"];
    names.iter().for_each(|name| fs::write(dir.path().join(name), vec![0; LEN]).unwrap());
    let options = ScanOptions { hash: true, ..PLAIN };
    let (mut with, mut same, mut wrong) = (0, 0, 0);
    for seed in seeds(15) {
        let mut rng = Rng::new(seed);
        for walk in [folder, through_store] {
            let plan: Vec<(usize, u8, u64)> =
                (0..12).map(|_| (rng.below(3) as usize, rng.below(256) as u8, rng.below(10_000))).collect();
            let begun = now_ns();
            let seen = std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    for (file, byte, pause_us) in plan {
                        let file = File::options().write(true).open(dir.path().join(names[file])).unwrap();
                        // Half of it, and then the rest: neither is what it was.
                        for at in [0, LEN / 2] {
                            file.write_all_at(&vec![byte; LEN / 2], at as u64).unwrap();
                            let until = Instant::now() + Duration::from_micros(pause_us);
                            while Instant::now() < until {
                                std::hint::spin_loop();
                            }
                        }
                    }
                });
                let seen = walk(dir.path(), &options);
                writer.join().unwrap();
                seen
            });
            assert!(seen.failures.is_empty(), "{:?}", seen.failures);
            let now = expected(dir.path(), true);
            for (path, now) in &now {
                let told = &seen.entries[path];
                let is_as_told = (told.size, told.mtime_ns) == (now.size, now.mtime_ns);
                with += usize::from(told.hash.is_some());
                same += usize::from(told.hash.is_some() && is_as_told);
                wrong += usize::from(told.hash.is_some() && is_as_told && told.hash != now.hash);
            }
            let segment = segment(&seen, place.path());
            let updated = walk(dir.path(), &ScanOptions { before: Some(Before::new(&segment, begun)), ..options });
            for (path, now) in &now {
                assert_eq!(updated.entries[path].hash, now.hash, "seed {seed}: {}", path.escape_ascii());
            }
        }
    }
    println!("{with} hashes, of which {same} are of files that have not changed since, {wrong} of them wrong");
    assert!(with > 0 && same > 0 && wrong * 20 <= same);
}

/// The same size and time, and other content.
#[test]
fn content_that_hides_behind_its_old_time_is_found_by_its_inode() {
    let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(dir.path().join("a"), "one").unwrap();
    age(dir.path());
    let options = ScanOptions { hash: true, ..PLAIN };
    let segment = segment(&folder(dir.path(), &options), place.path());
    let begun = now_ns();
    let was = fs::metadata(dir.path().join("a")).unwrap().modified().unwrap();
    fs::write(dir.path().join("a"), "two").unwrap();
    File::open(dir.path().join("a")).unwrap().set_modified(was).unwrap();
    let seen = folder(dir.path(), &ScanOptions { before: Some(Before::new(&segment, begun)), ..options });
    assert_eq!(seen.with(Change::Changed), ["a"]);
}

/// Folders that change places take files along that nobody touched: of the size and the time of those that were there, with old inodes.
#[test]
fn files_that_come_with_their_folder_have_their_own_hashes() {
    let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = |name: &str| dir.path().join(name);
    for (name, content) in [("d/in/f", "AAAA"), ("e/in/f", "BBBB"), ("same/f", "CCCC")] {
        fs::create_dir_all(at(name).parent().unwrap()).unwrap();
        fs::write(at(name), content).unwrap();
        File::open(at(name))
            .unwrap()
            .set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_577_836_800))
            .unwrap();
    }
    let options = ScanOptions { hash: true, ..PLAIN };
    for walk in [folder, through_store] {
        let segment = segment(&walk(dir.path(), &options), place.path());
        // As if it had been made in an hour: all of it has been as it is for long.
        let before = Before::new(&segment, now_ns() + 3_600_000_000_000);
        for (from, to) in [("d", "x"), ("e", "d"), ("x", "e")] {
            fs::rename(at(from), at(to)).unwrap();
        }
        let seen = walk(dir.path(), &ScanOptions { before: Some(before), ..options });
        for (path, now) in expected(dir.path(), true) {
            assert_eq!(seen.entries[&path].hash, now.hash, "{}", path.escape_ascii());
        }
        assert_eq!(seen.with(Change::Changed), ["d/in/f", "e/in/f"]);
        assert_eq!(seen.read_bytes, 8, "what stayed where it was is not read again");
        // Of another place no hash is believed.
        let elsewhere = walk(dir.path(), &ScanOptions { before: Some(before.of_another_place()), ..options });
        assert_eq!((elsewhere.read_bytes, elsewhere.with(Change::Same).len()), (12, seen.with(Change::Same).len()));
    }
}

/// Goes on with `change` while `walk` is under way.
fn beside<T>(change: impl Fn() + Sync, walk: impl FnOnce() -> T) -> T {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                change();
            }
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(walk));
        ended.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A name that was listed and is gone when it is opened is another one now: what has it is not lost, and told once.
#[test]
fn what_is_renamed_meanwhile_is_told_under_one_of_its_names() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for n in 0..200 {
        fs::create_dir_all(at(&format!("d/{n}/in"))).unwrap();
        fs::write(at(&format!("d/{n}/in/f")), "f").unwrap();
        fs::write(at(&format!("d/f{n}")), "f").unwrap();
    }
    let rename = |from: &str, to: &str| fs::rename(at(from), at(to)).unwrap();
    let there_and_back = |name: &str, other: &str| {
        rename(name, other);
        rename(other, name);
    };
    let count = |seen: Seen, what: &str| {
        assert!(seen.failures.is_empty(), "{what}: {:?}", seen.failures);
        assert_eq!(seen.entries.len(), 2 + 200 * 4, "{what}: {:?}", seen.with(Change::Added).len());
    };
    let folders = || there_and_back("d/100", "d/a");
    let both = || {
        there_and_back("d/150", "d/b");
        there_and_back("d/f50", "d/fb");
    };
    let files = || there_and_back("d/f100", "d/fa");
    for hash in [false, true] {
        let options = ScanOptions { hash, ..PLAIN };
        for round in 0..20 {
            count(beside(folders, || folder(dir.path(), &options)), &format!("folders, {hash}, {round}"));
            count(beside(both, || folder(dir.path(), &options)), &format!("both, {hash}, {round}"));
            count(beside(files, || folder(dir.path(), &options)), &format!("files, {hash}, {round}"));
        }
    }
    for round in 0..20 {
        count(beside(files, || through_store(dir.path(), &PLAIN)), &format!("through a store, {round}"));
    }
}

/// What is removed while it is listed was removed: nothing is told of it, and all else is there.
#[test]
fn what_is_removed_meanwhile_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for n in 0..200 {
        fs::create_dir_all(at(&format!("d/{n}"))).unwrap();
    }
    let change = || {
        fs::create_dir_all(at("d/x/y/z")).unwrap();
        fs::write(at("d/x/y/f"), "").unwrap();
        fs::write(at("d/f"), "").unwrap();
        fs::remove_file(at("d/f")).unwrap();
        symlink("f", at("d/f")).unwrap();
        fs::remove_file(at("d/f")).unwrap();
        fs::remove_dir_all(at("d/x")).unwrap();
    };
    for round in 0..20 {
        for hash in [false, true] {
            let seen = beside(change, || folder(dir.path(), &ScanOptions { hash, ..PLAIN }));
            assert!(seen.failures.is_empty(), "{round}: {:?}", seen.failures);
            let stays = |path: &[u8]| path.strip_prefix(b"d/").is_some_and(|name| name[0].is_ascii_digit());
            assert_eq!(seen.entries.keys().filter(|path| stays(path)).count(), 200, "{round}");
        }
    }
}

#[test]
fn a_walk_ends_when_it_is_told_to() {
    let dir = tree();
    for hash in [false, true] {
        let options = ScanOptions { hash, ..PLAIN };
        let ended = scan::folder(dir.path(), None, &options, &mut |_| Ok(ControlFlow::Break(())));
        assert_eq!(ended.unwrap_err().kind(), adit_core::ErrorKind::Interrupted);
        let store = DirStore::open(dir.path(), true).unwrap();
        let root = StoreRoot { store: &store, root: store.getattr(Ino::ROOT).unwrap() };
        let mut left = 100;
        let ended = scan::store(&root, &options, &mut |_| {
            left -= 1;
            Ok(if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        });
        assert_eq!(ended.unwrap_err().kind(), adit_core::ErrorKind::Interrupted);
    }
    assert!(scan::folder(&dir.path().join("none"), None, &PLAIN, &mut |_| panic!("nothing")).is_err());
}

/// A directory that cannot be listed, also by root: its store says so.
#[test]
fn what_cannot_be_read_is_told_and_marked() {
    use adit_core::error::{ErrorKind, FsError};
    use adit_core::store::{Capabilities, DirEntry, NewNode, StoreFile};
    use adit_core::types::{Access, Attr, Caller, FileName, RenameFlags, SetAttr, StatFs};
    use std::sync::Arc;

    /// Passes on to a folder, but for one inode.
    struct Broken(DirStore, Ino);
    impl Store for Broken {
        fn capabilities(&self) -> Capabilities {
            self.0.capabilities()
        }
        fn lookup(&self, parent: Ino, name: FileName<'_>) -> Result<Attr> {
            match name.as_bytes() {
                b"lost" => Err(FsError::new(ErrorKind::Corrupt).on("lookup", "lost")),
                _ => self.0.lookup(parent, name),
            }
        }
        fn forget(&self, ino: Ino) {
            self.0.forget(ino);
        }
        fn getattr(&self, ino: Ino) -> Result<Attr> {
            self.0.getattr(ino)
        }
        fn read_dir(&self, dir: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
            if dir == self.1 { Err(ErrorKind::Io.into()) } else { self.0.read_dir(dir, start, sink) }
        }
        fn open(&self, ino: Ino, access: Access) -> Result<Arc<dyn StoreFile>> {
            self.0.open(ino, access)
        }
        fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
            self.0.readlink(ino)
        }
        fn setattr(&self, _: Ino, _: &SetAttr) -> Result<Attr> {
            unreachable!("it is only read")
        }
        fn create(&self, _: Ino, _: FileName<'_>, _: &NewNode) -> Result<(Attr, Arc<dyn StoreFile>)> {
            unreachable!("it is only read")
        }
        fn mkdir(&self, _: Ino, _: FileName<'_>, _: &NewNode) -> Result<Attr> {
            unreachable!("it is only read")
        }
        fn symlink(&self, _: Ino, _: FileName<'_>, _: &[u8], _: Caller) -> Result<Attr> {
            unreachable!("it is only read")
        }
        fn unlink(&self, _: Ino, _: FileName<'_>) -> Result<()> {
            unreachable!("it is only read")
        }
        fn rmdir(&self, _: Ino, _: FileName<'_>) -> Result<()> {
            unreachable!("it is only read")
        }
        fn rename(&self, _: Ino, _: FileName<'_>, _: Ino, _: FileName<'_>, _: RenameFlags) -> Result<()> {
            unreachable!("it is only read")
        }
        fn sync_dir(&self, _: Ino) -> Result<()> {
            unreachable!("it is only read")
        }
        fn sync_all(&self) -> Result<()> {
            unreachable!("it is only read")
        }
        fn statfs(&self) -> Result<StatFs> {
            unreachable!("it is only read")
        }
    }

    let dir = tempfile::tempdir().unwrap();
    for name in ["bad/below", "with/lost", "with/found", "sound/a"] {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    let store = DirStore::open(dir.path(), true).unwrap();
    let bad = store.lookup(Ino::ROOT, FileName::new(b"bad").unwrap()).unwrap().ino;
    store.forget(bad);
    let store = Broken(store, bad);
    let root = StoreRoot { store: &store, root: store.getattr(Ino::ROOT).unwrap() };
    let mut seen = Seen::default();
    scan::store(&root, &PLAIN, &mut |event| seen.take(event)).unwrap();
    assert_eq!(seen.with(Change::Added), ["", "bad", "sound", "sound/a", "with", "with/found"]);
    assert_eq!(seen.failures.len(), 2, "{:?}", seen.failures);
    for (path, marked) in [("", false), ("bad", true), ("with", true), ("sound", false)] {
        assert_eq!(seen.entries[path.as_bytes()].extra.starts_with(UNREADABLE), marked, "{path}");
    }
}
