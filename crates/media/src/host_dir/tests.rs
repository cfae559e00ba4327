//! What the seam promises, on a folder of this machine.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use adit_core::host::free_name::temporary_name;
use adit_core::types::{SetTime, Timestamp};

use super::*;

struct Fixture {
    dir: tempfile::TempDir,
    host: HostDirectory,
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let host = HostDirectory::open(dir.path()).unwrap();
    Fixture { dir, host }
}

fn fixture_with(names: FreeNames) -> Fixture {
    let Fixture { dir, host } = fixture();
    Fixture { dir, host: HostDirectory { names, ..host } }
}

fn content(bytes: &[u8]) -> NewFile<'_> {
    NewFile { content: bytes, perm: 0o644, owner: None, durable: false }
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

fn names(host: &HostDirectory, path: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    host.list(Path::new(path), &mut |e| {
        names.insert(String::from_utf8_lossy(e.name).into_owned());
    })
    .unwrap();
    names
}

/// Runs `check` with every way of publishing that the host may force on us.
fn each_way(check: impl Fn(&Fixture)) {
    for (unnamed, link_by_descriptor) in [(true, true), (true, false), (false, false)] {
        let f = fixture();
        f.host.unnamed.store(unnamed, Ordering::Relaxed);
        f.host.link_by_descriptor.store(link_by_descriptor, Ordering::Relaxed);
        check(&f);
    }
    for links in [Links::OneFile, Links::TwoFiles, Links::Missing] {
        let f = fixture_with(FreeNames::without_flags(links));
        f.host.unnamed.store(false, Ordering::Relaxed);
        check(&f);
    }
}

#[test]
fn a_published_file_has_content_and_permissions_and_is_open_for_both() {
    each_way(|f| {
        f.host.make_dir(Path::new("d"), 0o755, None).unwrap();
        for perm in [0o666, 0o600, 0o777, 0o000, 0o4755] {
            let path = format!("d/f{perm:o}");
            let new = NewFile { content: b"0123456789", perm, owner: None, durable: true };
            let file = f.host.publish(Path::new(&path), &new).unwrap();
            let meta = fs::metadata(f.dir.path().join(&path)).unwrap();
            assert_eq!(meta.permissions().mode() & 0o7777, u32::from(perm), "the umask does not apply");
            file.write_at(8, b"abcd").unwrap();
            let mut buf = [0; 20];
            assert_eq!(file.read_at(1, &mut buf).unwrap(), 11);
            assert_eq!(&buf[..11], b"1234567abcd");
            assert_eq!(file.stat().unwrap(), f.host.stat(Path::new(&path)).unwrap());
        }
        assert_eq!(names(&f.host, "d").len(), 5, "no temporary stays");
    });
}

#[test]
fn publishing_never_replaces() {
    each_way(|f| {
        f.host.publish(Path::new("f"), &content(b"old")).unwrap();
        f.host.make_dir(Path::new("d"), 0o755, None).unwrap();
        symlink("nowhere", f.dir.path().join("l")).unwrap();
        for taken in ["f", "d", "l"] {
            let e = f.host.publish(Path::new(taken), &content(b"new")).err().unwrap();
            assert_eq!(e.kind(), io::ErrorKind::AlreadyExists);
        }
        assert_eq!(errno(f.host.publish(Path::new("no/f"), &content(b""))), Some(libc::ENOENT));
        assert_eq!(errno(f.host.publish(Path::new("f/f"), &content(b""))), Some(libc::ENOTDIR));
        let long = "x".repeat(256);
        assert_eq!(errno(f.host.publish(Path::new(&long), &content(b""))), Some(libc::ENAMETOOLONG));
        assert_eq!(fs::read(f.dir.path().join("f")).unwrap(), b"old");
        assert_eq!(names(&f.host, "").len(), 3, "no temporary stays");
    });
}

#[test]
fn a_missing_directory_is_no_reason_to_give_up_the_fast_way() {
    let f = fixture();
    assert!(f.host.publish(Path::new("no/f"), &content(b"")).is_err());
    assert!(f.host.unnamed.load(Ordering::Relaxed) && f.host.link_by_descriptor.load(Ordering::Relaxed));
}

#[test]
fn owners_are_set_where_the_process_may() {
    each_way(|f| {
        let owner = Some(Caller { uid: 12, gid: 34 });
        let new = NewFile { content: b"x", perm: 0o6755, owner, durable: false };
        f.host.publish(Path::new("f"), &new).unwrap();
        f.host.make_dir(Path::new("d"), 0o1777, owner).unwrap();
        let (file, dir) = (f.host.stat(Path::new("f")).unwrap(), f.host.stat(Path::new("d")).unwrap());
        assert_eq!((file.perm, dir.perm), (0o6755, 0o1777));
        let wanted = if f.host.uid.is_root() { (12, 34) } else { (f.host.uid.as_raw(), f.host.gid.as_raw()) };
        assert_eq!((file.uid, file.gid), wanted);
        assert_eq!((dir.uid, dir.gid), wanted);
    });
}

/// Whether this process is root; says why a test is left out if not, which is a failure under CI.
fn is_root(f: &Fixture, why: &str) -> bool {
    let root = f.host.uid.is_root();
    if !root {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{why}");
        eprintln!("left out: {why}");
    }
    root
}

#[test]
fn a_set_group_id_directory_hands_its_group_and_bit_on() {
    let f = fixture();
    if !is_root(&f, "only root can choose a foreign group for the test") {
        return;
    }
    f.host.make_dir(Path::new("d"), 0o2775, Some(Caller { uid: 0, gid: 77 })).unwrap();
    let owner = Some(Caller { uid: 12, gid: 34 });
    f.host.make_dir(Path::new("d/sub"), 0o755, owner).unwrap();
    f.host.publish(Path::new("d/f"), &NewFile { content: b"", perm: 0o644, owner, durable: false }).unwrap();
    let sub = f.host.stat(Path::new("d/sub")).unwrap();
    assert_eq!((sub.uid, sub.gid, sub.perm), (12, 77, 0o2755));
    let file = f.host.stat(Path::new("d/f")).unwrap();
    assert_eq!((file.uid, file.gid, file.perm), (12, 77, 0o644));
}

/// What someone puts in the place of a directory that a mount by root has just made, before it gets its owner.
#[test]
fn a_directory_that_is_not_our_own_is_given_to_nobody() {
    let f = fixture();
    if !is_root(&f, "only root can make somebody else's directory for the test") {
        return;
    }
    f.host.make_dir(Path::new("theirs"), 0o700, Some(Caller { uid: 77, gid: 77 })).unwrap();
    let fd = f.host.open_at(Path::new("theirs"), OFlags::PATH, Mode::empty()).unwrap();
    f.host.finish_dir(&fd, 0o700, Some(Caller { uid: 12, gid: 34 })).unwrap();
    let theirs = f.host.stat(Path::new("theirs")).unwrap();
    assert_eq!((theirs.uid, theirs.gid), (77, 77));
}

#[test]
fn a_set_group_id_directory_hands_our_own_group_on_as_well() {
    let f = fixture();
    if !is_root(&f, "only root could give the file another group") {
        return;
    }
    f.host.make_dir(Path::new("d"), 0o2775, Some(Caller { uid: 0, gid: f.host.gid.as_raw() })).unwrap();
    let owner = Some(Caller { uid: 12, gid: 34 });
    f.host.publish(Path::new("d/f"), &NewFile { content: b"", perm: 0o644, owner, durable: false }).unwrap();
    let file = f.host.stat(Path::new("d/f")).unwrap();
    assert_eq!((file.uid, file.gid), (12, f.host.gid.as_raw()));
}

#[test]
fn publishing_tells_what_came_of_it() {
    each_way(|f| {
        f.host.make_dir(Path::new("d"), 0o755, None).unwrap();
        let made = f.host.publish_known(Path::new("d/f"), &content(b"12345")).unwrap();
        assert_eq!(made.attr, f.host.stat(Path::new("d/f")).unwrap());
        assert_eq!(made.dir, Some(f.host.stat(Path::new("d")).unwrap()));
    });
}

#[test]
fn attributes_are_set_by_path_and_by_file() {
    let f = fixture();
    let path = Path::new("f");
    let file = f.host.publish(path, &content(b"12345")).unwrap();
    let before_epoch = Timestamp { secs: -2, nanos: 500_000_000 };
    let later = Timestamp { secs: 4_000_000_000, nanos: 999_999_999 };
    let set = SetAttr {
        perm: Some(0o640),
        size: Some(9),
        atime: Some(SetTime::At(before_epoch)),
        mtime: Some(SetTime::At(later)),
        ..SetAttr::default()
    };
    f.host.set_attr(path, &set).unwrap();
    let got = f.host.stat(path).unwrap();
    assert_eq!((got.perm, got.size, got.atime, got.mtime), (0o640, 9, before_epoch, later));
    let set = SetAttr { perm: Some(0o600), mtime: Some(SetTime::Now), ..SetAttr::default() };
    file.set_attr(&set).unwrap();
    let got = file.stat().unwrap();
    assert_eq!((got.perm, got.atime), (0o600, before_epoch), "what is not named stays");
    assert!(got.mtime < later && got.mtime.secs > 1_600_000_000);
    file.set_len(3).unwrap();
    let mut buf = [7; 4];
    assert_eq!((file.read_at(0, &mut buf).unwrap(), &buf), (3, b"123\x07"));
    file.sync(true).unwrap();
    file.sync(false).unwrap();
    file.start_writeback(0, 3);
    file.start_writeback(u64::MAX, u64::MAX);
}

#[test]
fn the_root_is_the_empty_path() {
    let f = fixture();
    let root = Path::new("");
    assert_eq!(f.host.stat(root).unwrap().kind, Kind::Directory);
    f.host.set_attr(root, &SetAttr { perm: Some(0o711), ..SetAttr::default() }).unwrap();
    assert_eq!(f.host.stat(root).unwrap().perm, 0o711);
    f.host.sync(SyncTarget::Dir(root)).unwrap();
    f.host.sync(SyncTarget::All).unwrap();
    assert!(names(&f.host, "").is_empty());
    let st = f.host.statfs().unwrap();
    assert!(st.block_size > 0 && st.blocks >= st.blocks_free && st.name_len_max >= 255);
}

#[test]
fn links_are_never_followed() {
    let f = fixture();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), b"s").unwrap();
    fs::set_permissions(outside.path().join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    symlink(outside.path().join("secret"), f.dir.path().join("file")).unwrap();
    symlink(outside.path(), f.dir.path().join("dir")).unwrap();
    let file = Path::new("file");
    assert_eq!(f.host.stat(file).unwrap().kind, Kind::Symlink);
    for access in [Access::Read, Access::Write] {
        assert_eq!(errno(f.host.open(file, access)), Some(libc::ELOOP));
    }
    assert_eq!(errno(f.host.open(Path::new("dir/secret"), Access::Read)), Some(libc::ELOOP));
    assert!(f.host.list(Path::new("dir"), &mut |_| {}).is_err());
    assert!(f.host.sync(SyncTarget::Dir(Path::new("dir"))).is_err());
    assert!(f.host.publish(Path::new("dir/new"), &content(b"")).is_err());
    assert!(f.host.set_attr(file, &SetAttr { perm: Some(0o777), ..SetAttr::default() }).is_err());
    assert!(f.host.set_attr(file, &SetAttr { size: Some(0), ..SetAttr::default() }).is_err());
    f.host.set_attr(file, &SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }).unwrap();
    let meta = fs::metadata(outside.path().join("secret")).unwrap();
    assert_eq!((meta.mode() & 0o777, meta.len()), (0o600, 1));
    f.host.remove(file, Kind::Symlink).unwrap();
    assert!(outside.path().join("secret").exists());
}

#[test]
fn only_regular_files_open() {
    let f = fixture();
    f.host.make_dir(Path::new("d"), 0o755, None).unwrap();
    rustix::fs::mknodat(&f.host.root, "pipe", FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    for access in [Access::Read, Access::Write] {
        assert_eq!(errno(f.host.open(Path::new("d"), access)), Some(libc::EISDIR));
        assert_eq!(errno(f.host.open(Path::new("pipe"), access)), Some(libc::EINVAL));
        assert_eq!(errno(f.host.open(Path::new("gone"), access)), Some(libc::ENOENT));
    }
}

#[test]
fn large_directories_list_completely() {
    let f = fixture();
    for i in 0..2500 {
        let name = format!("{i:0>200}");
        if i % 2 == 0 {
            fs::write(f.dir.path().join(name), b"").unwrap();
        } else {
            fs::create_dir(f.dir.path().join(name)).unwrap();
        }
    }
    let mut seen = BTreeSet::new();
    f.host
        .list(Path::new(""), &mut |e| {
            let i: u32 = std::str::from_utf8(e.name).unwrap().parse().unwrap();
            let kind = if i.is_multiple_of(2) { Kind::File } else { Kind::Directory };
            assert!(e.kind.is_none_or(|k| k == kind));
            assert!(seen.insert(i));
        })
        .unwrap();
    assert_eq!(seen.len(), 2500);
    let first = f.dir.path().join(format!("{:0>200}", 0));
    let mut ino = 0;
    f.host
        .list(Path::new(""), &mut |e| {
            if e.name.ends_with(b"00000") {
                ino = e.ino
            }
        })
        .unwrap();
    assert_eq!(ino, fs::metadata(first).unwrap().ino());
}

#[test]
fn renames_follow_their_flags() {
    let f = fixture();
    let (a, b, d) = (Path::new("a"), Path::new("b"), Path::new("d"));
    f.host.publish(a, &content(b"a")).unwrap();
    f.host.publish(b, &content(b"b")).unwrap();
    f.host.make_dir(d, 0o755, None).unwrap();
    let read = |name: &str| fs::read(f.dir.path().join(name)).unwrap();
    assert_eq!(errno(f.host.rename(a, b, RenameFlags::NOREPLACE)), Some(libc::EEXIST));
    f.host.rename(a, b, RenameFlags::EXCHANGE).unwrap();
    assert_eq!((read("a"), read("b")), (b"b".to_vec(), b"a".to_vec()));
    assert_eq!(errno(f.host.rename(d, &d.join("x"), RenameFlags::NOREPLACE)), Some(libc::EINVAL));
    assert_eq!(errno(f.host.rename(d, &d.join("x"), RenameFlags::empty())), Some(libc::EINVAL));
    f.host.rename(a, &d.join("a"), RenameFlags::NOREPLACE).unwrap();
    f.host.rename(b, &d.join("a"), RenameFlags::empty()).unwrap();
    assert_eq!((read("d/a"), names(&f.host, "").len()), (b"a".to_vec(), 1));
    assert_eq!(errno(f.host.remove(d, Kind::Directory)), Some(libc::ENOTEMPTY));
    assert_eq!(errno(f.host.remove(d, Kind::File)), Some(libc::EISDIR));
    assert_eq!(errno(f.host.remove(&d.join("a"), Kind::Directory)), Some(libc::ENOTDIR));
    f.host.remove(&d.join("a"), Kind::File).unwrap();
    f.host.remove(d, Kind::Directory).unwrap();
    assert!(names(&f.host, "").is_empty());
}

#[test]
fn files_outlive_their_names() {
    let f = fixture();
    let file = f.host.publish(Path::new("f"), &content(b"abc")).unwrap();
    f.host.remove(Path::new("f"), Kind::File).unwrap();
    file.write_at(3, b"def").unwrap();
    let mut buf = [0; 6];
    assert_eq!((file.read_at(0, &mut buf).unwrap(), &buf), (6, b"abcdef"));
    assert_eq!(file.stat().unwrap().nlink, 0);
}

#[test]
fn what_is_held_can_be_used_without_a_name() {
    let mut f = fixture();
    // Whatever filesystem this is.
    f.host.freeing = Arc::new(Freeing::holding(2));
    let (a, b) = (Path::new("a"), Path::new("b"));
    for path in [a, b, Path::new("c")] {
        f.host.publish(path, &content(b"abc")).unwrap();
    }
    let held = [a, b].map(|path| f.host.hold(path).unwrap());
    assert!(f.host.hold(Path::new("c")).is_none(), "there is an end to it");
    f.host.remove(a, Kind::File).unwrap();
    f.host.rename(Path::new("c"), b, RenameFlags::empty()).unwrap();
    for file in &held {
        let (found, set) = (file.stat().unwrap(), SetAttr { perm: Some(0o600), ..SetAttr::default() });
        file.set_attr(&set).unwrap();
        let open = file.open(Access::Write).unwrap();
        open.write_at(3, b"def").unwrap();
        let mut buf = [0; 8];
        assert_eq!(file.open(Access::Read).unwrap().read_at(0, &mut buf).unwrap(), 6);
        let now = open.stat().unwrap();
        assert_eq!((&buf[..6], now.ino, now.perm, now.nlink), (&b"abcdef"[..], found.ino, 0o600, 0));
    }
    drop(held);
    f.host.freeing.settle();
    f.host.publish(a, &content(b"abc")).unwrap();
    assert!(f.host.hold(a).is_some(), "there is room again");
    assert!(f.host.hold(Path::new("absent")).is_none());
}

#[test]
fn temporaries_do_not_collide() {
    let names: BTreeSet<_> = (0..1000).map(|_| temporary_name()).collect();
    assert!(names.len() > 990);
    let name = names.first().unwrap();
    assert!(name.starts_with(".adit-") && name.ends_with(".tmp") && name.len() == ".adit-89abcdef.tmp".len());
}

/// Runs `check` with and without `openat2`.
fn each_resolution(check: impl Fn(&Fixture)) {
    let f = fixture();
    assert!(f.host.resolve.is_some(), "this kernel has openat2");
    check(&f);
    let mut f = fixture();
    f.host.resolve = None;
    check(&f);
}

#[test]
fn nothing_is_changed_through_a_link_on_the_way() {
    each_resolution(|f| {
        let outside = tempfile::tempdir().unwrap();
        let there = |name: &str| outside.path().join(name);
        fs::write(there("file"), b"old").unwrap();
        fs::set_permissions(there("file"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::create_dir(there("dir")).unwrap();
        fs::create_dir(f.dir.path().join("d")).unwrap();
        symlink(outside.path(), f.dir.path().join("d/AB")).unwrap();
        f.host.publish(Path::new("mine"), &content(b"new")).unwrap();
        let before = fs::metadata(there("file")).unwrap();

        let (file, dir, mine) = (Path::new("d/AB/file"), Path::new("d/AB/dir"), Path::new("mine"));
        let set = |set: SetAttr| f.host.set_attr(file, &set);
        let owner = SetAttr { uid: Some(12), ..SetAttr::default() };
        let times = SetAttr { mtime: Some(SetTime::At(Timestamp { secs: 1, nanos: 0 })), ..SetAttr::default() };
        let mut refused = vec![
            f.host.make_dir(Path::new("d/AB/made"), 0o755, None),
            f.host.publish(Path::new("d/AB/made"), &content(b"")).map(drop),
            f.host.remove(file, Kind::File),
            f.host.remove(dir, Kind::Directory),
            set(SetAttr { perm: Some(0o777), ..SetAttr::default() }),
            set(SetAttr { size: Some(0), ..SetAttr::default() }),
            set(owner),
            set(times),
            f.host.open(file, Access::Write).map(drop),
            f.host.list(dir, &mut |_| {}),
        ];
        for flags in [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE] {
            refused.push(f.host.rename(mine, file, flags));
            refused.push(f.host.rename(mine, Path::new("d/AB/free"), flags));
            refused.push(f.host.rename(file, mine, flags));
            refused.push(f.host.rename(dir, Path::new("free"), flags));
        }
        f.host.unnamed.store(false, Ordering::Relaxed);
        refused.push(f.host.publish(Path::new("d/AB/made"), &content(b"")).map(drop));
        for (n, result) in refused.into_iter().enumerate() {
            let e = errno(result);
            assert!(matches!(e, Some(libc::ELOOP | libc::ENOTDIR)), "{n}: {e:?}");
        }
        let after = fs::metadata(there("file")).unwrap();
        assert_eq!((after.mode(), after.uid(), after.len()), (before.mode(), before.uid(), before.len()));
        assert_eq!((after.mtime(), after.ctime_nsec()), (before.mtime(), before.ctime_nsec()));
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 2);
        assert_eq!(fs::read(f.dir.path().join("mine")).unwrap(), b"new");
    });
}

/// Runs `check` with `renameat2` and with what takes its place.
fn each_rename(check: impl Fn(&Fixture)) {
    let without = FreeNames::without_flags;
    for names in [FreeNames::new(), without(Links::OneFile), without(Links::TwoFiles)] {
        check(&fixture_with(names));
    }
}

#[test]
fn a_rename_to_a_free_name_replaces_nothing() {
    each_rename(|f| {
        let path = |name: &str| f.dir.path().join(name);
        fs::write(path("file"), b"file").unwrap();
        symlink("target", path("link")).unwrap();
        for dir in ["dir", "empty", "full/inside"] {
            fs::create_dir_all(path(dir)).unwrap();
        }
        fs::write(path("dir/f"), b"moved").unwrap();
        fs::write(path("taken"), b"taken").unwrap();
        for from in ["file", "dir", "link"] {
            for to in ["taken", "empty", "full", from] {
                let e = errno(f.host.rename(Path::new(from), Path::new(to), RenameFlags::NOREPLACE));
                assert_eq!(e, Some(libc::EEXIST), "{from} to {to}");
            }
            let gone = f.host.rename(Path::new("gone"), Path::new("free"), RenameFlags::NOREPLACE);
            assert_eq!(errno(gone), Some(libc::ENOENT));
        }
        assert_eq!(fs::read(path("taken")).unwrap(), b"taken");
        for from in ["file", "dir", "link"] {
            let (from, to) = (Path::new(from), format!("full/{from}"));
            let (ino, to) = (f.host.stat(from).unwrap().ino, Path::new(&to));
            f.host.rename(from, to, RenameFlags::NOREPLACE).unwrap();
            assert_eq!(f.host.stat(to).unwrap().ino, ino);
            assert_eq!(errno(f.host.stat(from)), Some(libc::ENOENT));
        }
        assert_eq!(fs::read(path("full/dir/f")).unwrap(), b"moved");
        let into_itself = f.host.rename(Path::new("full"), Path::new("full/x"), RenameFlags::NOREPLACE);
        assert_eq!(errno(into_itself), Some(libc::EINVAL));
        assert_eq!(names(&f.host, ""), ["empty", "full", "taken"].map(str::to_owned).into());
    });
}

/// Another client makes the name at any moment: one of the two gets it, and the other is told.
#[test]
fn what_another_client_makes_meanwhile_is_not_destroyed() {
    const ROUNDS: usize = 3000;
    each_rename(|f| {
        let start = std::sync::Barrier::new(2);
        let wanted = f.dir.path().join("wanted");
        for round in 0..ROUNDS {
            fs::write(f.dir.path().join("mine"), b"mine").unwrap();
            let (ours, theirs) = std::thread::scope(|scope| {
                let theirs = scope.spawn(|| {
                    start.wait();
                    let made = fs::File::create_new(&wanted);
                    made.and_then(|mut file| io::Write::write_all(&mut file, b"theirs")).is_ok()
                });
                start.wait();
                let ours = f.host.rename(Path::new("mine"), Path::new("wanted"), RenameFlags::NOREPLACE);
                (ours.is_ok(), theirs.join().unwrap())
            });
            assert!(ours != theirs, "round {round}: ours {ours}, theirs {theirs}");
            let kept = fs::read(&wanted).unwrap();
            assert_eq!(kept, if ours { b"mine".as_slice() } else { b"theirs" }, "round {round}");
            fs::remove_file(&wanted).unwrap();
        }
    });
}

#[test]
fn ranges_are_locked_between_handles() {
    let f = fixture();
    let path = Path::new("f");
    let first = f.host.publish(path, &content(b"0123456789")).unwrap();
    let second = f.host.open(path, Access::Write).unwrap();
    assert!(first.try_lock_range(0, 4).unwrap());
    assert!(first.try_lock_range(2, 2).unwrap(), "it has that already");
    assert!(!second.try_lock_range(3, 4).unwrap());
    assert!(second.try_lock_range(4, u64::MAX / 4).unwrap());
    assert!(!first.try_lock_range(1 << 40, 1).unwrap());
    first.unlock_range(0, 2);
    assert!(second.try_lock_range(0, 2).unwrap());
    assert!(!second.try_lock_range(2, 1).unwrap());
    drop(first);
    assert!(second.try_lock_range(2, 1).unwrap());
    assert!(second.try_lock_range(u64::MAX, 1).is_err());
}

#[test]
fn a_descriptor_is_the_file_with_its_access() {
    let f = fixture();
    let path = Path::new("f");
    f.host.publish(path, &content(b"0123456789")).unwrap();
    let file = fs::File::from(f.host.open(path, Access::Read).unwrap().descriptor().unwrap());
    f.host.remove(path, Kind::File).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10);
    assert_eq!(file.set_len(0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

/// Where a link is another file, none is relied on: whoever has a file open goes on with it under its new name.
#[test]
fn a_file_that_is_renamed_without_links_stays_the_one_that_is_open() {
    for links in [Links::TwoFiles, Links::Missing] {
        let f = fixture_with(FreeNames::without_flags(links));
        let file = f.host.publish(Path::new("a"), &content(b"12345")).unwrap();
        f.host.rename(Path::new("a"), Path::new("b"), RenameFlags::NOREPLACE).unwrap();
        file.write_at(0, b"abc").unwrap();
        assert_eq!(fs::read(f.dir.path().join("b")).unwrap(), b"abc45");
        assert_eq!((file.stat().unwrap().nlink, names(&f.host, "").len()), (1, 1));
    }
}

#[test]
fn a_host_that_can_do_what_changes_need_is_found_so() {
    for free in [FreeNames::new(), FreeNames::without_flags(Links::OneFile)] {
        let f = fixture_with(free);
        f.host.make_dir(Path::new("d"), 0o755, None).unwrap();
        f.host.trial(Path::new("d")).unwrap();
        assert_eq!((names(&f.host, "d").len(), names(&f.host, "").len()), (0, 1), "it leaves nothing");
        // A lack of rights or of a place is told by whoever meets it.
        f.host.trial(Path::new("not/there")).unwrap();
    }
}

/// The owner of a directory may not read it, and has changed it.
#[test]
fn a_directory_that_nobody_may_read_is_synced_all_the_same() {
    const USER: u32 = 65_534;
    let f = fixture();
    let is_root = f.host.uid.is_root();
    for dir in [f.dir.path().to_owned(), f.dir.path().join("d")] {
        let _ = fs::create_dir(&dir);
        if is_root {
            std::os::unix::fs::chown(&dir, Some(USER), Some(USER)).unwrap();
        }
    }
    fs::set_permissions(f.dir.path().join("d"), fs::Permissions::from_mode(0o300)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if is_root {
                // SAFETY: takes numbers; the bare call changes this thread alone, which ends with the test.
                assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, USER, USER, USER) }, 0);
            }
            f.host.publish(Path::new("d/f"), &content(b"x")).unwrap();
            assert_eq!(errno(f.host.list(Path::new("d"), &mut |_| {})), Some(libc::EACCES));
            f.host.sync(SyncTarget::Dir(Path::new("d"))).unwrap();
            f.host.sync(SyncTarget::Dir(Path::new(""))).unwrap();
        });
    });
    assert_eq!(errno(f.host.sync(SyncTarget::Dir(Path::new("no")))), Some(libc::ENOENT));
}
