//! What POSIX asks of a branch beyond what the model compares: times, link counts, owners, holes, renames, attributes; and the
//! faults of boltfs, the file system in a database that this one is measured against, each as a test.

#[path = "support/tree.rs"]
mod support;

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use adit_core::ErrorKind;
use adit_core::store::{DirEntry, NewNode, Store};
use adit_core::types::{
    Access, AllocateMode, Attr, Caller, FileName, Ino, Kind, RenameFlags, SetAttr, SetTime, Timestamp, XattrName,
    XattrSet,
};
use adit_volume::format::keys::{Key, range_of, space};
use adit_volume::tree::{Differing, FIRST_ID};
use adit_volume::{Batch, Table, VolumeStore};

use support::{World, name, new};

fn kind<T>(result: adit_core::Result<T>) -> ErrorKind {
    result.err().expect("it fails").kind()
}

fn file(store: &VolumeStore, dir: Ino, at: &str, content: &[u8]) -> Ino {
    let (attr, file) = store.create(dir, name(at), &new(0o644)).unwrap();
    file.write_at(&[(0, content)]).unwrap();
    attr.ino
}

fn content(store: &VolumeStore, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0; store.getattr(ino).unwrap().size as usize];
    assert_eq!(store.open(ino, Access::Read).unwrap().read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn list(store: &VolumeStore, dir: Ino) -> Vec<String> {
    let mut names = Vec::new();
    store
        .read_dir(dir, 0, &mut |e| {
            names.push(e.name.display().into_owned());
            ControlFlow::Continue(())
        })
        .unwrap();
    names.sort();
    names
}

/// Sets the times of an inode to a moment long ago, so that a change shows.
fn age(store: &VolumeStore, ino: Ino) -> Attr {
    let old = Timestamp { secs: 1, nanos: 2 };
    let at = Some(SetTime::At(old));
    // The time of change, too: within one tick of the clock it would not move.
    store.setattr(ino, &SetAttr { atime: at, mtime: at, ctime: Some(old), ..SetAttr::default() }).unwrap()
}

#[test]
fn times_go_with_what_changes() {
    let world = World::new();
    let store = world.main();
    let dir = store.mkdir(Ino::ROOT, name("d"), &new(0o755)).unwrap().ino;
    let other = store.mkdir(Ino::ROOT, name("e"), &new(0o755)).unwrap().ino;
    let fresh = |ino: Ino| store.getattr(ino).unwrap().mtime.secs > 1;
    type Act<'a> = &'a dyn Fn();
    let mut ino = Ino(0);
    for (what, act) in [
        ("create", (&|| _ = file(&store, dir, "f", b"x")) as Act<'_>),
        ("mkdir", &|| _ = store.mkdir(dir, name("s"), &new(0o755)).unwrap()),
        ("symlink", &|| _ = store.symlink(dir, name("l"), b"target", new(0).caller).unwrap()),
        ("mknod", &|| _ = store.mknod(dir, name("p"), Kind::Fifo, 0, &new(0o600)).unwrap()),
        ("link", &|| _ = store.link(store.lookup(dir, name("f")).unwrap().ino, dir, name("g")).unwrap()),
        ("unlink", &|| store.unlink(dir, name("g")).unwrap()),
        ("rmdir", &|| store.rmdir(dir, name("s")).unwrap()),
        ("rename", &|| store.rename(dir, name("f"), dir, name("h"), RenameFlags::empty()).unwrap()),
    ] {
        age(&store, dir);
        act();
        assert!(fresh(dir), "{what} changes the times of the directory");
        if ino == Ino(0) {
            ino = store.lookup(dir, name("f")).unwrap().ino;
        }
    }
    for flags in [RenameFlags::empty(), RenameFlags::NOREPLACE] {
        let (from, to) = if flags.is_empty() { (dir, other) } else { (other, dir) };
        age(&store, dir);
        age(&store, other);
        let before = age(&store, ino);
        store.rename(from, name("h"), to, name("h"), flags).unwrap();
        assert!(fresh(dir) && fresh(other), "a rename changes the times of both directories");
        let after = store.getattr(ino).unwrap();
        assert!(after.ctime > before.ctime && after.mtime == before.mtime);
    }
    // Content: mtime and ctime; attributes: ctime; reading: nothing here.
    let aged = age(&store, ino);
    let open = store.open(ino, Access::Write).unwrap();
    open.write_at(&[(0, b"y")]).unwrap();
    let written = store.getattr(ino).unwrap();
    assert!(written.mtime > aged.mtime && written.ctime > aged.ctime && written.atime == aged.atime);
    let aged = age(&store, ino);
    store.setattr(ino, &SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap();
    let changed = store.getattr(ino).unwrap();
    assert!(changed.mtime == aged.mtime && changed.ctime > aged.ctime);
    let exact = Timestamp { secs: -5, nanos: 123_456_789 };
    let set = SetAttr { size: Some(9), mtime: Some(SetTime::At(exact)), ..SetAttr::default() };
    assert_eq!(store.setattr(ino, &set).unwrap().mtime, exact, "a time that comes with a length counts");
}

#[test]
fn directories_count_those_in_them() {
    let world = World::new();
    let store = world.main();
    let nlink = |ino: Ino| store.getattr(ino).unwrap().nlink;
    let a = store.mkdir(Ino::ROOT, name("a"), &new(0o755)).unwrap().ino;
    let b = store.mkdir(a, name("b"), &new(0o755)).unwrap().ino;
    file(&store, a, "f", b"");
    assert_eq!((nlink(Ino::ROOT), nlink(a), nlink(b)), (3, 3, 2));
    store.rename(a, name("b"), Ino::ROOT, name("c"), RenameFlags::empty()).unwrap();
    assert_eq!((nlink(Ino::ROOT), nlink(a), nlink(b)), (4, 2, 2));
    store.rename(a, name("f"), Ino::ROOT, name("c"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!((nlink(Ino::ROOT), nlink(a)), (3, 3));
    store.unlink(Ino::ROOT, name("c")).unwrap();
    let d = store.mkdir(Ino::ROOT, name("d"), &new(0o755)).unwrap().ino;
    store.rename(a, name("f"), Ino::ROOT, name("d"), RenameFlags::empty()).unwrap();
    assert_eq!((nlink(Ino::ROOT), nlink(a), nlink(d)), (4, 2, 0), "an empty directory is replaced");
    assert!(world.tree.verify().unwrap().problems.is_empty());
}

#[test]
fn set_group_id_is_inherited() {
    let world = World::new();
    let store = world.main();
    let dir = store.mkdir(Ino::ROOT, name("d"), &new(0o755)).unwrap().ino;
    let set = SetAttr { perm: Some(0o2775), gid: Some(4711), ..SetAttr::default() };
    store.setattr(dir, &set).unwrap();
    let caller = Caller { uid: 5, gid: 6 };
    let new = NewNode { perm: 0o755, umask: 0o022, caller };
    let sub = store.mkdir(dir, name("s"), &new).unwrap();
    assert_eq!((sub.gid, sub.uid, sub.perm), (4711, 5, 0o2755));
    let (made, _) = store.create(dir, name("f"), &new).unwrap();
    assert_eq!((made.gid, made.perm), (4711, 0o755));
    assert_eq!(store.symlink(dir, name("l"), b"t", caller).unwrap().gid, 4711);
    let (plain, _) = store.create(Ino::ROOT, name("f"), &new).unwrap();
    assert_eq!((plain.gid, plain.perm), (6, 0o755));
}

#[test]
fn attributes_and_lists_of_access() {
    let world = World::new();
    let store = world.main();
    let ino = file(&store, Ino::ROOT, "f", b"");
    let user = |s: &'static str| XattrName::new(s.as_bytes()).unwrap();
    assert_eq!(kind(store.xattr(ino, user("user.a"))), ErrorKind::NoAttribute);
    store.set_xattr(ino, user("user.a"), b"1", XattrSet::Either).unwrap();
    assert_eq!(kind(store.set_xattr(ino, user("user.a"), b"2", XattrSet::Create)), ErrorKind::Exists);
    assert_eq!(kind(store.set_xattr(ino, user("user.b"), b"2", XattrSet::Replace)), ErrorKind::NoAttribute);
    store.set_xattr(ino, user("user.a"), b"3", XattrSet::Replace).unwrap();
    store.set_xattr(ino, user("user.b"), b"", XattrSet::Create).unwrap();
    assert_eq!(store.xattr(ino, user("user.a")).unwrap(), b"3");
    assert_eq!(store.xattr_names(ino).unwrap(), b"user.a\0user.b\0");
    assert_eq!(kind(store.set_xattr(ino, user("user.c"), &[0; 70_000], XattrSet::Either)), ErrorKind::NoSpace);
    store.remove_xattr(ino, user("user.a")).unwrap();
    assert_eq!(kind(store.remove_xattr(ino, user("user.a"))), ErrorKind::NoAttribute);
    // user::rw-, user:7:rwx, group::r--, mask::rwx, other::r--
    let entry =
        |tag: u16, perm: u16, id: u32| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat();
    let none = u32::MAX;
    let acl = [
        2_u32.to_le_bytes().to_vec(),
        entry(1, 6, none),
        entry(2, 7, 7),
        entry(4, 4, none),
        entry(16, 7, none),
        entry(32, 4, none),
    ]
    .concat();
    store.set_xattr(ino, XattrName::ACL_ACCESS, &acl, XattrSet::Either).unwrap();
    assert_eq!(store.getattr(ino).unwrap().perm, 0o674, "the mask is the group's bits");
    store.setattr(ino, &SetAttr { perm: Some(0o640), ..SetAttr::default() }).unwrap();
    let masked = store.xattr(ino, XattrName::ACL_ACCESS).unwrap();
    assert_eq!(masked[4 + 3 * 8 + 2], 4, "and the group's bits are the mask");
    let dir = store.mkdir(Ino::ROOT, name("d"), &new(0o755)).unwrap().ino;
    store.set_xattr(dir, XattrName::ACL_DEFAULT, &acl, XattrSet::Either).unwrap();
    let node = NewNode { perm: 0o666, umask: 0o077, caller: new(0).caller };
    let (made, _) = store.create(dir, name("f"), &node).unwrap();
    assert_eq!(made.perm, 0o664, "a default list goes before the umask");
    assert!(store.xattr(made.ino, XattrName::ACL_ACCESS).is_ok());
    let sub = store.mkdir(dir, name("s"), &node).unwrap().ino;
    assert_eq!(store.xattr(sub, XattrName::ACL_DEFAULT).unwrap(), acl);
    // All goes with the inode.
    for (dir, name, is_dir) in [(Ino::ROOT, "f", false), (dir, "f", false), (dir, "s", true), (Ino::ROOT, "d", true)] {
        let ino = store.lookup(dir, support::name(name)).unwrap().ino;
        if is_dir { store.rmdir(dir, support::name(name)) } else { store.unlink(dir, support::name(name)) }.unwrap();
        store.forget(ino);
    }
    let left: Vec<_> = world.base.state().map.keys().filter(|k| k[0] == b'X').cloned().collect();
    assert_eq!(left.len(), 0);
}

#[test]
fn holes_are_found_and_cost_nothing() {
    let world = World::new();
    let store = world.main();
    let (attr, open) = store.create(Ino::ROOT, name("f"), &new(0o644)).unwrap();
    let far = 1 << 40;
    open.write_at(&[(far, b"x")]).unwrap();
    let seen = store.getattr(attr.ino).unwrap();
    assert_eq!((seen.size, seen.blocks), (far + 1, 8));
    assert_eq!(world.base.state().allocated.len(), 1, "one byte at 1 TiB makes a small file");
    assert_eq!((open.seek_data(0).unwrap(), open.seek_hole(0).unwrap()), (far, 0));
    assert_eq!(open.seek_hole(far).unwrap(), far + 1);
    assert_eq!(kind(open.seek_data(far + 1)), ErrorKind::NoData);
    open.write_at(&[(0, &[7; 3 << 20])]).unwrap();
    assert_eq!((open.seek_data(5).unwrap(), open.seek_hole(5).unwrap()), (5, 3 << 20));
    open.allocate(4096, 1 << 20, AllocateMode::PunchHole).unwrap();
    assert_eq!((open.seek_hole(0).unwrap(), open.seek_data(5000).unwrap()), (4096, 4096 + (1 << 20)));
    open.allocate(100, 10, AllocateMode::Zero { keep_size: true }).unwrap();
    let mut buf = [1; 20];
    open.read_at(95, &mut buf).unwrap();
    assert_eq!(buf, [7, 7, 7, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7]);
    // Space cannot be set aside for what is always written to new blocks. Who asks for it writes zeros then.
    for mode in [AllocateMode::Extend, AllocateMode::KeepSize] {
        assert_eq!(kind(open.allocate(0, 4096, mode)), ErrorKind::NotSupported);
    }
    assert_eq!(store.getattr(attr.ino).unwrap().size, far + 1, "and nothing has changed");
    assert_eq!(kind(open.write_at(&[(i64::MAX as u64, b"xy")])), ErrorKind::FileTooLarge);
    open.set_len(10).unwrap();
    open.set_len(5000).unwrap();
    let mut buf = [1; 30];
    open.read_at(0, &mut buf).unwrap();
    assert_eq!((&buf[..10], &buf[10..]), (&[7; 10][..], &[0; 20][..]), "what was cut stays away");
    open.set_len(0).unwrap();
    assert_eq!((store.getattr(attr.ino).unwrap().blocks, world.base.state().allocated.len()), (0, 0));
    assert!(world.tree.verify().unwrap().problems.is_empty());
}

#[test]
fn a_cut_of_many_windows_goes_in_batches_and_survives_a_kill_in_between() {
    let world = World::new();
    let store = world.main();
    let (attr, open) = store.create(Ino::ROOT, name("f"), &new(0o644)).unwrap();
    for window in 0..1200_u64 {
        open.write_at(&[(window << 20, b"content")]).unwrap();
    }
    let full = world.base.state();
    open.set_len(5 << 20).unwrap();
    assert_eq!(store.getattr(attr.ino).unwrap().blocks, 5 * 8);
    assert_eq!(world.base.state().allocated.len(), 5);
    assert!(world.tree.verify().unwrap().problems.is_empty());
    // The same with the last batches lost: as after a kill.
    for batches in 1..=3 {
        let again = World::new();
        again.base.restore(full.clone());
        let again = again.reopen();
        let failing = support::Failing::new(again.base.clone(), batches);
        let tree = failing.tree();
        let store = VolumeStore::open(&tree, adit_volume::Source::Branch("main".into())).unwrap();
        let ino = store.lookup(Ino::ROOT, name("f")).unwrap().ino;
        let result = store.open(ino, Access::Write).unwrap().set_len(5 << 20);
        assert_eq!(result.is_ok(), batches >= 4, "{batches}: {result:?}");
        drop(store);
        let after = again.reopen();
        let store = after.main();
        let ino = store.lookup(Ino::ROOT, name("f")).unwrap().ino;
        let size = store.getattr(ino).unwrap().size;
        assert!(size == 5 << 20 || size == (1199 << 20) + 7, "{size}");
        let open = store.open(ino, Access::Write).unwrap();
        open.set_len(1 << 40).unwrap();
        if size == 5 << 20 {
            assert_eq!(open.seek_data(5 << 20).map_err(|e| e.kind()), Err(ErrorKind::NoData), "nothing comes back");
        }
        assert!(after.tree.verify().unwrap().problems.is_empty());
    }
}

#[test]
fn open_files_live_on_without_a_name_and_leave_nothing() {
    let world = World::new();
    let store = world.main();
    let ino = file(&store, Ino::ROOT, "f", &[5; 10_000]);
    let open = store.open(ino, Access::Write).unwrap();
    store.unlink(Ino::ROOT, name("f")).unwrap();
    open.write_at(&[(20_000, b"more")]).unwrap();
    assert_eq!(store.getattr(ino).unwrap().nlink, 0);
    assert!(list(&store, Ino::ROOT).is_empty(), "a write brings no name back");
    store.forget(ino);
    let mut buf = [0; 4];
    open.read_at(20_000, &mut buf).unwrap();
    assert_eq!(&buf, b"more");
    // Killed now, the next mount drops it.
    let killed = World { tree: world.tree.clone(), base: world.base.clone(), ..World::new() }.reopen();
    assert!(!killed.base.state().allocated.is_empty());
    drop(killed.main());
    assert_eq!(killed.base.state().allocated.len(), 0);
    drop(open);
    assert_eq!(world.base.state().allocated.len(), 0);
    assert_eq!(kind(store.getattr(ino)), ErrorKind::Stale);
    assert!(world.tree.verify().unwrap().problems.is_empty());
}

#[test]
fn a_whiteout_takes_the_place_of_what_moved() {
    let world = World::new();
    let store = world.main();
    file(&store, Ino::ROOT, "a", b"x");
    store.rename(Ino::ROOT, name("a"), Ino::ROOT, name("b"), RenameFlags::WHITEOUT).unwrap();
    let white = store.lookup(Ino::ROOT, name("a")).unwrap();
    assert_eq!((white.kind, white.rdev, white.nlink), (Kind::CharDevice, 0, 1));
    let both = RenameFlags::WHITEOUT | RenameFlags::EXCHANGE;
    let result = store.rename(Ino::ROOT, name("a"), Ino::ROOT, name("b"), both);
    assert_eq!(kind(result), ErrorKind::InvalidInput);
    assert!(world.tree.verify().unwrap().problems.is_empty());
}

#[test]
fn listings_go_on_where_they_were_while_the_directory_changes() {
    for bits in [2, 64] {
        let world = World::with(support::BLOCKS, bits);
        let store = world.main();
        for i in 0..300 {
            file(&store, Ino::ROOT, &format!("stays-{i}"), b"");
            file(&store, Ino::ROOT, &format!("goes-{i}"), b"");
        }
        let (mut seen, mut cookies, mut start, mut round) = (Vec::new(), BTreeSet::new(), 0, 0);
        loop {
            let mut part = 0;
            store
                .read_dir(Ino::ROOT, start, &mut |e: DirEntry<'_>| {
                    seen.push(e.name.display().into_owned());
                    assert!(cookies.insert(e.cookie), "a cookie comes once");
                    start = e.cookie;
                    part += 1;
                    if part < 50 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                })
                .unwrap();
            if part == 0 {
                break;
            }
            for i in round * 20..(round * 20 + 20).min(300) {
                store.unlink(Ino::ROOT, name(&format!("goes-{i}"))).unwrap();
                file(&store, Ino::ROOT, &format!("comes-{i}"), b"");
            }
            round += 1;
        }
        let stayed = seen.iter().filter(|name| name.starts_with("stays")).count();
        let all: BTreeSet<&String> = seen.iter().collect();
        assert_eq!((stayed, all.len()), (300, seen.len()), "what stayed comes once, and nothing twice");
        assert!(world.tree.verify().unwrap().problems.is_empty());
    }
}

#[test]
fn damage_is_told_with_the_path_and_never_read() {
    let world = World::new();
    let store = world.main();
    let dir = store.mkdir(Ino::ROOT, name("d"), &new(0o755)).unwrap().ino;
    let ino = file(&store, dir, "f", &[5; 100_000]);
    let mut state = world.base.state();
    let block = *state.allocated.iter().nth(3).unwrap();
    state.blocks.get_mut(&block).unwrap()[77] ^= 1;
    world.base.restore(state);
    let open = store.open(ino, Access::Write).unwrap();
    let error = open.read_at(0, &mut [0; 100_000]).unwrap_err();
    assert_eq!((error.kind(), error.subject()), (ErrorKind::Corrupt, Some("/d/f")));
    assert_eq!(open.read_at(0, &mut [0; 4096]).unwrap(), 4096, "the rest can be read");
    assert_eq!(kind(open.write_at(&[(3 * 4096 + 5, b"x")])), ErrorKind::Corrupt, "and no half of it is written on");
    open.write_at(&[(3 * 4096, &[1; 4096])]).unwrap();
    assert_eq!(open.read_at(0, &mut [0; 100_000]).unwrap(), 100_000);
}

// What boltfs does wrong, after the list in the handbook.

#[test]
fn boltfs_renames() {
    let world = World::new();
    let store = world.main();
    let a = file(&store, Ino::ROOT, "a", b"new");
    file(&store, Ino::ROOT, "b", b"old");
    store.rename(Ino::ROOT, name("a"), Ino::ROOT, name("b"), RenameFlags::empty()).unwrap();
    assert_eq!((content(&store, a), list(&store, Ino::ROOT)), (b"new".to_vec(), vec!["b".to_owned()]));
    let d = store.mkdir(Ino::ROOT, name("d"), &new(0o755)).unwrap().ino;
    let e = store.mkdir(d, name("e"), &new(0o755)).unwrap().ino;
    for (to, at) in [(d, "x"), (e, "x")] {
        let result = store.rename(Ino::ROOT, name("d"), to, name(at), RenameFlags::empty());
        assert_eq!(kind(result), ErrorKind::InvalidInput);
    }
    assert_eq!(list(&store, d), ["e"]);
}

#[test]
fn boltfs_attributes_and_lengths() {
    let world = World::new();
    let store = world.main();
    let dir = store.mkdir(Ino::ROOT, name("d"), &new(0o755)).unwrap().ino;
    let attr = store.setattr(dir, &SetAttr { perm: Some(0o700), ..SetAttr::default() }).unwrap();
    assert_eq!((attr.kind, attr.perm), (Kind::Directory, 0o700), "chmod leaves a directory one");
    let ino = file(&store, dir, "f", b"content");
    let open = store.open(ino, Access::Write).unwrap();
    open.set_len(10).unwrap();
    assert_eq!(content(&store, ino), b"content\0\0\0", "only what is new is zero");
    store.setattr(ino, &SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap();
    open.write_at(&[(0, b"C")]).unwrap();
    assert_eq!(store.getattr(ino).unwrap().perm, 0o600, "a handle that writes undoes no chmod");
    assert_eq!(open.read_at(8, &mut [0; 100]).unwrap(), 2, "a short read");
    assert_eq!(open.read_at(0, &mut [0; 7]).unwrap(), 7);
    open.set_len(0).unwrap();
    assert_eq!((open.len().unwrap(), store.getattr(ino).unwrap().size), (0, 0));
    open.write_at(&[(64 << 20, b"x")]).unwrap();
    assert_eq!(world.base.state().allocated.len(), 1, "one byte at 64 MiB takes one block");
}

#[test]
fn boltfs_concurrent_creates() {
    let world = World::new();
    let store = world.main();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || (0..50).for_each(|i| _ = file(store, Ino::ROOT, &format!("{thread}-{i}"), b"x")));
        }
    });
    assert_eq!(list(&store, Ino::ROOT).len(), 200);
    assert_eq!(store.getattr(Ino::ROOT).unwrap().size, 200);
    assert!(world.tree.verify().unwrap().problems.is_empty());
}

#[test]
fn boltfs_snapshots() {
    let world = World::new();
    let store = world.main();
    let ino = file(&store, Ino::ROOT, "f", &[1; 10_000]);
    world.tree.snapshot("main", "s").unwrap();
    // Writers go on, also while the snapshot is open.
    let snapshot = adit_volume::Source::Snapshot(world.tree.find_snapshot("s").unwrap());
    let old = VolumeStore::open(&world.tree, snapshot.clone()).unwrap();
    store.open(ino, Access::Write).unwrap().write_at(&[(0, &[2; 10_000])]).unwrap();
    assert_eq!((content(&old, ino), content(&store, ino)), (vec![1; 10_000], vec![2; 10_000]));
    assert_eq!(kind(store.create(Ino::ROOT, FileName::new(b"f").unwrap(), &new(0o600))), ErrorKind::Exists);
    assert_eq!(kind(old.mkdir(Ino::ROOT, name("d"), &new(0o755))), ErrorKind::ReadOnly);
    assert_eq!(kind(old.open(ino, Access::Write)), ErrorKind::ReadOnly);
    assert_eq!(kind(world.tree.delete_snapshot("s")), ErrorKind::Busy);
    drop(old);
    drop(store);
    // It is there after a restart, and restoring from it works while the branch is mounted.
    let world = world.reopen();
    let old = VolumeStore::open(&world.tree, snapshot).unwrap();
    assert_eq!(content(&old, ino), [1; 10_000]);
    drop(old);
    let store = world.main();
    world.tree.restore("main", "s", Default::default()).unwrap();
    assert_eq!(content(&store, ino), [1; 10_000]);
}

#[test]
fn restoring_a_folder_leaves_other_names_alone() {
    let world = World::new();
    let store = world.main();
    let dir = store.mkdir(Ino::ROOT, name("d"), &new(0o755)).unwrap().ino;
    let sub = store.mkdir(dir, name("sub"), &new(0o755)).unwrap().ino;
    let [linked, same, moved] = ["linked", "same", "moved"].map(|at| file(&store, dir, at, &[1; 9000]));
    store.link(linked, Ino::ROOT, name("other")).unwrap();
    store.link(same, sub, name("same too")).unwrap();
    store.link(same, Ino::ROOT, name("same")).unwrap();
    let before = store.getattr(linked).unwrap();
    world.tree.snapshot("main", "s").unwrap();
    // Changed, but not to be seen by its attributes.
    let open = store.open(linked, Access::Write).unwrap();
    open.write_at(&[(0, &[2; 9000])]).unwrap();
    store.setattr(linked, &SetAttr { mtime: Some(SetTime::At(before.mtime)), ..SetAttr::default() }).unwrap();
    store.rename(dir, name("sub"), Ino::ROOT, name("sub"), RenameFlags::empty()).unwrap();
    store.rename(dir, name("moved"), Ino::ROOT, name("moved"), RenameFlags::empty()).unwrap();
    file(&store, dir, "new", b"x");
    store.restore_path("s", &[b"d"], Default::default()).unwrap();
    assert_eq!(list(&store, Ino::ROOT), ["d", "moved", "other", "same", "sub"]);
    let dir = store.lookup(Ino::ROOT, name("d")).unwrap().ino;
    assert_eq!(list(&store, dir), ["linked", "moved", "same", "sub"]);
    let at = |dir: Ino, at: &str| store.lookup(dir, name(at)).unwrap();
    assert_eq!((content(&store, at(dir, "linked").ino), content(&store, linked)), (vec![1; 9000], vec![2; 9000]));
    assert_ne!(at(dir, "linked").ino, linked, "the other name keeps what it has");
    assert_eq!((at(dir, "same").ino, at(dir, "same").nlink), (same, 4), "what is the same stays one file");
    let back = at(dir, "sub").ino;
    assert!(back != sub && at(back, "same too").ino == same, "a directory is at one place");
    assert_eq!(content(&store, at(dir, "moved").ino), vec![1; 9000]);
    assert_eq!(at(dir, "moved").ino, moved, "not changed: a further name");
    assert_eq!(at(dir, "linked").mtime, before.mtime);
    world.tree.collect().unwrap();
    assert_eq!(world.tree.verify().unwrap().problems, [""; 0]);
    // What is open and goes by a restore stays usable.
    let ino = file(&store, dir, "late", &[3; 5000]);
    let open = store.open(ino, Access::Write).unwrap();
    store.forget(ino);
    store.restore_path("s", &[b"d"], Default::default()).unwrap();
    assert_eq!(open.read_at(0, &mut [0; 9000]).unwrap(), 5000);
    drop(open);
    assert_eq!(kind(store.getattr(ino)), ErrorKind::Stale);
    assert_eq!(kind(store.restore_path("s", &[b"nowhere", b"x"], Default::default())), ErrorKind::NotFound);
    assert_eq!(kind(store.restore_path("none", &[b"d"], Default::default())), ErrorKind::NotFound);
    assert_eq!(world.tree.verify().unwrap().problems, [""; 0]);
}

#[test]
fn a_diff_tells_what_attributes_hide_and_nothing_that_only_looks_new() {
    let world = World::new();
    let store = world.main();
    let dir = store.mkdir(Ino::ROOT, name("d"), &new(0o755)).unwrap().ino;
    let [big, marked, read, replaced] =
        ["big", "marked", "read", "replaced"].map(|at| file(&store, dir, at, &[1; 5000]));
    let before = store.getattr(big).unwrap();
    world.tree.snapshot("main", "a").unwrap();
    let same_time = SetAttr { mtime: Some(SetTime::At(before.mtime)), ..SetAttr::default() };
    store.open(big, Access::Write).unwrap().write_at(&[(100, b"x")]).unwrap();
    store.setattr(big, &same_time).unwrap();
    store.set_xattr(marked, XattrName::new(b"user.x").unwrap(), b"1", XattrSet::Either).unwrap();
    store.setattr(read, &SetAttr { atime: Some(SetTime::Now), ..SetAttr::default() }).unwrap();
    let saved = file(&store, dir, "replaced~", b"saved");
    store.rename(dir, name("replaced~"), dir, name("replaced"), RenameFlags::empty()).unwrap();
    store.forget(replaced);
    store.link(big, Ino::ROOT, name("big too")).unwrap();
    store.rename(Ino::ROOT, name("d"), Ino::ROOT, name("e"), RenameFlags::empty()).unwrap();
    store.mkdir(Ino::ROOT, name("gone again"), &new(0o755)).unwrap();
    store.rmdir(Ino::ROOT, name("gone again")).unwrap();
    world.tree.snapshot("main", "b").unwrap();
    let told = |from: &str, to: &str| -> Vec<(String, Differing)> {
        let told = world.tree.diff(from, to).unwrap();
        told.into_iter().map(|d| (String::from_utf8(d.path).unwrap(), d.what)).collect()
    };
    let at = |path: &str, what: Differing| (path.to_owned(), what);
    let expected = [
        at("/big too", Differing::Added),
        at("/e", Differing::Renamed(b"/d".to_vec())),
        at("/e/big", Differing::Changed),
        at("/e/marked", Differing::Changed),
        at("/e/replaced", Differing::Changed),
    ];
    assert_eq!(told("a", "b"), expected);
    assert_eq!(told("a", "main"), expected, "a branch is as good as a snapshot");
    assert_eq!(told("b", "main"), []);
    assert_eq!(told("a", "a"), []);
    let back = told("b", "a");
    assert!(back.contains(&at("/big too", Differing::Removed)) && back.len() == 5, "{back:?}");
    assert!(store.getattr(saved).is_ok());
    assert_eq!(kind(world.tree.diff("a", "none")), ErrorKind::NotFound);
}

/// The kernel sends them when it drops an inode, which is not worth a write.
#[test]
fn times_of_what_was_removed_are_answered_and_not_stored() {
    let world = World::new();
    let store = world.main();
    let ino = file(&store, Ino::ROOT, "f", b"x");
    store.lookup(Ino::ROOT, name("f")).unwrap();
    let key = Key::inode(ino.0).at(FIRST_ID);
    let stored = || world.base.get(&key).unwrap();
    let open = store.open(ino, Access::Read).unwrap();
    store.unlink(Ino::ROOT, name("f")).unwrap();
    let before = stored();
    age(&store, ino);
    assert_ne!(stored(), before, "it is open: whoever has it may ask for them");
    assert_eq!(store.getattr(ino).unwrap().mtime.secs, 1);
    drop(open);
    let before = stored();
    let at = Some(SetTime::At(Timestamp { secs: 5, nanos: 6 }));
    let attr = store.setattr(ino, &SetAttr { mtime: at, ..SetAttr::default() }).unwrap();
    assert_eq!((attr.mtime, attr.nlink), (Timestamp { secs: 5, nanos: 6 }, 0));
    assert_eq!(stored(), before);
    store.forget(ino);
    assert_eq!(stored(), None, "it is gone");
}

#[test]
fn an_entry_that_cannot_be_read_hides_no_other_and_is_told() {
    let world = World::new();
    let store = world.main();
    for at in ["a", "b", "c"] {
        file(&store, Ino::ROOT, at, b"x");
    }
    assert!(store.left_out(Ino::ROOT).is_empty());
    let (start, end) = range_of(space::ENTRY, Ino::ROOT.0);
    let mut first = None;
    world
        .base
        .scan(&start, &end, &mut |key, _| {
            first = Some(key.to_vec());
            ControlFlow::Break(())
        })
        .unwrap();
    let writes = vec![(first.unwrap(), Some(b"no entry".to_vec()))];
    world.base.apply(Batch { writes, ..Batch::default() }).unwrap();
    assert_eq!(list(&store, Ino::ROOT).len(), 2);
    let told: Vec<ErrorKind> = store.left_out(Ino::ROOT).iter().map(|e| e.kind()).collect();
    assert_eq!(told, [ErrorKind::Corrupt]);
}
