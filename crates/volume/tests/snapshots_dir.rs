//! Snapshots in the hidden directory of a branch: what it shows, what it refuses, and what deleting does to it.

#[path = "support/tree.rs"]
mod support;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::mpsc::{TryRecvError, channel};

use adit_core::ErrorKind;
use adit_core::store::{DirEntry, Store};
use adit_core::types::{Access, Attr, Ino, Kind, RenameFlags, SetAttr};
use adit_volume::SnapshotsDir;
use adit_volume::snapshots_dir::{SNAPSHOTS_INO, SNAPSHOTS_NAME};
use adit_volume::tree::MAIN;

use support::{World, name, new};

fn write(store: &dyn Store, parent: Ino, file: &str, content: &[u8]) -> Attr {
    let attr = match store.lookup(parent, name(file)) {
        Ok(attr) => attr,
        Err(_) => store.create(parent, name(file), &new(0o644)).unwrap().0,
    };
    let open = store.open(attr.ino, Access::Write).unwrap();
    open.set_len(0).unwrap();
    open.write_at(&[(0, content)]).unwrap();
    attr
}

fn read(store: &dyn Store, ino: Ino) -> Vec<u8> {
    let open = store.open(ino, Access::Read).unwrap();
    let mut content = vec![0; open.len().unwrap() as usize];
    assert_eq!(open.read_at(0, &mut content).unwrap(), content.len());
    content
}

fn names(store: &dyn Store, dir: Ino) -> Vec<(String, Ino)> {
    let mut found = Vec::new();
    let mut sink = |entry: DirEntry<'_>| {
        found.push((entry.name.display().into_owned(), entry.ino));
        ControlFlow::Continue(())
    };
    store.read_dir(dir, 0, &mut sink).unwrap();
    found
}

fn kind<T>(result: adit_core::Result<T>) -> Option<ErrorKind> {
    result.err().map(|e| e.kind())
}

/// A branch with a file and a directory, and the snapshots `one` and `two` of it.
fn shown(world: &World) -> SnapshotsDir {
    let dir = SnapshotsDir::new(world.main());
    let sub = dir.mkdir(Ino::ROOT, name("sub"), &new(0o755)).unwrap();
    write(&dir, sub.ino, "f", b"first");
    world.tree.snapshot(MAIN, "one").unwrap();
    write(&dir, sub.ino, "f", b"second");
    world.tree.snapshot(MAIN, "two").unwrap();
    write(&dir, sub.ino, "f", b"third");
    dir
}

#[test]
fn each_snapshot_is_a_directory_of_its_own() {
    let world = World::new();
    let dir = shown(&world);
    assert!(names(&dir, Ino::ROOT).iter().all(|(name, _)| name != SNAPSHOTS_NAME), "hidden");
    let hidden = dir.lookup(Ino::ROOT, name(SNAPSHOTS_NAME)).unwrap();
    assert_eq!((hidden.ino, hidden.kind, hidden.nlink, hidden.perm), (SNAPSHOTS_INO, Kind::Directory, 4, 0o555));
    let listed = names(&dir, SNAPSHOTS_INO);
    assert_eq!(listed.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["one", "two"]);
    let mut inos = BTreeSet::new();
    for ((snapshot, ino), content) in listed.iter().zip([&b"first"[..], b"second"]) {
        let root = dir.lookup(SNAPSHOTS_INO, name(snapshot)).unwrap();
        assert_eq!(root.ino, *ino);
        let sub = dir.lookup(root.ino, name("sub")).unwrap();
        let entries = names(&dir, sub.ino);
        let entry = DirEntry { cookie: 1, ino: entries[0].1, kind: Kind::File, name: name("f") };
        let file = dir.lookup_listed(sub.ino, &[entry]).remove(0).unwrap();
        assert_eq!((file.ino, dir.getattr(file.ino).unwrap().ino), (entries[0].1, file.ino));
        assert_eq!(read(&dir, file.ino), content);
        assert_eq!(dir.path_of(file.ino).unwrap(), format!("/{SNAPSHOTS_NAME}/{snapshot}/sub/f"));
        assert_eq!(dir.name_of(file.ino).unwrap(), (sub.ino, b"f".to_vec()));
        inos.extend([root.ino, sub.ino, file.ino]);
        // Looked up again, it is the same.
        assert_eq!(dir.lookup(sub.ino, name("f")).unwrap().ino, file.ino);
    }
    let live = dir.lookup(Ino::ROOT, name("sub")).unwrap();
    inos.extend([Ino::ROOT, live.ino, dir.lookup(live.ino, name("f")).unwrap().ino, SNAPSHOTS_INO]);
    assert_eq!(inos.len(), 10, "no number is used twice");
}

#[test]
fn nothing_of_it_is_changed() {
    let world = World::new();
    let dir = shown(&world);
    let root = dir.lookup(SNAPSHOTS_INO, name("one")).unwrap().ino;
    let sub = dir.lookup(root, name("sub")).unwrap().ino;
    let file = dir.lookup(sub, name("f")).unwrap().ino;
    let (live, hidden) = (Ino::ROOT, name(SNAPSHOTS_NAME));
    use ErrorKind::{CrossDevice, Exists, NotPermitted, ReadOnly};
    assert_eq!(kind(dir.mkdir(live, hidden, &new(0o755))), Some(Exists));
    assert_eq!(kind(dir.create(live, hidden, &new(0o644))), Some(Exists));
    assert_eq!(kind(dir.rmdir(live, hidden)), Some(NotPermitted));
    let plain = RenameFlags::default();
    assert_eq!(kind(dir.rename(live, hidden, live, name("x"), plain)), Some(NotPermitted));
    assert_eq!(kind(dir.rename(live, name("sub"), live, hidden, plain)), Some(NotPermitted));
    assert_eq!(kind(dir.rename(sub, name("f"), live, name("x"), plain)), Some(CrossDevice));
    assert_eq!(kind(dir.rename(sub, name("f"), sub, name("x"), plain)), Some(ReadOnly));
    assert_eq!(kind(dir.link(file, live, name("x"))), Some(CrossDevice));
    assert_eq!(kind(dir.open(file, Access::Write)), Some(ReadOnly));
    for parent in [SNAPSHOTS_INO, root, sub] {
        assert_eq!(kind(dir.mkdir(parent, name("x"), &new(0o755))), Some(ReadOnly));
        assert_eq!(kind(dir.unlink(parent, name("f"))), Some(ReadOnly));
        assert_eq!(kind(dir.setattr(parent, &SetAttr { perm: Some(0), ..SetAttr::default() })), Some(ReadOnly));
    }
    assert_eq!(read(&dir, file), b"first");
}

#[test]
fn what_was_made_under_that_name_goes_first() {
    let world = World::new();
    let live = world.main();
    let made = live.mkdir(Ino::ROOT, name(SNAPSHOTS_NAME), &new(0o755)).unwrap().ino;
    world.tree.snapshot(MAIN, "one").unwrap();
    let dir = SnapshotsDir::new(live);
    assert_eq!(dir.lookup(Ino::ROOT, name(SNAPSHOTS_NAME)).unwrap().ino, made);
    dir.rename(Ino::ROOT, name(SNAPSHOTS_NAME), Ino::ROOT, name("mine"), RenameFlags::default()).unwrap();
    assert_eq!(dir.lookup(Ino::ROOT, name(SNAPSHOTS_NAME)).unwrap().ino, SNAPSHOTS_INO);
}

#[test]
fn a_snapshot_is_deleted_unless_a_file_of_it_is_open() {
    let world = World::new();
    let dir = shown(&world);
    let root = dir.lookup(SNAPSHOTS_INO, name("one")).unwrap().ino;
    let sub = dir.lookup(root, name("sub")).unwrap().ino;
    let file = dir.lookup(sub, name("f")).unwrap().ino;
    let open = dir.open(file, Access::Read).unwrap();
    assert_eq!(kind(dir.retire("one").map(drop)), Some(ErrorKind::Busy));
    assert_eq!(dir.lookup(SNAPSHOTS_INO, name("one")).unwrap().ino, root, "nothing has changed");
    drop(open);
    // Let go, and not deleted after all.
    drop(dir.retire("one").unwrap());
    assert_eq!(read(&dir, file), b"first");

    let retired = dir.retire("one").unwrap();
    assert_eq!(kind(dir.lookup(SNAPSHOTS_INO, name("one"))), Some(ErrorKind::NotFound));
    world.tree.delete_snapshot("one").unwrap();
    drop(retired);
    assert_eq!(kind(dir.getattr(file)), Some(ErrorKind::Stale));
    assert_eq!(kind(dir.open(file, Access::Read)), Some(ErrorKind::Stale));
    // The name is used again, by something with other numbers as long as the old ones are known.
    world.tree.snapshot(MAIN, "one").unwrap();
    let again = dir.lookup(SNAPSHOTS_INO, name("one")).unwrap().ino;
    assert_ne!(again, root);
    assert_eq!(kind(dir.getattr(root)), Some(ErrorKind::Stale));
    [file, sub, root].into_iter().for_each(|ino| dir.forget(ino));
    let listed = names(&dir, SNAPSHOTS_INO);
    assert_eq!(listed.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["two", "one"]);
}

#[test]
fn a_listing_that_is_under_way_is_waited_for() {
    let world = World::new();
    let dir = shown(&world);
    let root = dir.lookup(SNAPSHOTS_INO, name("one")).unwrap().ino;
    let listing = |within: &mut dyn FnMut()| {
        let mut sink = |_: DirEntry<'_>| {
            within();
            ControlFlow::Break(())
        };
        dir.read_dir(root, 0, &mut sink).unwrap();
    };
    // One that does not end keeps the snapshot.
    let ((begun, begins), (end, ends)) = (channel(), channel());
    std::thread::scope(|scope| {
        let listing = &listing;
        scope.spawn(move || {
            listing(&mut || {
                begun.send(()).unwrap();
                ends.recv().unwrap();
            })
        });
        // Dropped if this fails, so that the listing ends.
        let end = end;
        begins.recv().unwrap();
        assert_eq!(kind(dir.retire("one").map(drop)), Some(ErrorKind::Busy));
        assert_eq!(dir.getattr(root).unwrap().ino, root, "nothing has changed");
        end.send(()).unwrap();
    });
    // One that ends when it is already out of sight.
    let ((begun, begins), (deletes, over)) = (channel(), channel::<()>());
    std::thread::scope(|scope| {
        let (listing, dir, _deletes) = (&listing, &dir, deletes);
        scope.spawn(move || {
            listing(&mut || {
                begun.send(()).unwrap();
                while dir.getattr(root).is_ok() && over.try_recv() == Err(TryRecvError::Empty) {
                    std::thread::yield_now();
                }
            })
        });
        begins.recv().unwrap();
        let _retired = dir.retire("one").unwrap();
        world.tree.delete_snapshot("one").unwrap();
    });
    assert_eq!(kind(dir.lookup(SNAPSHOTS_INO, name("one"))), Some(ErrorKind::NotFound));
}

/// The root of a snapshot and all that is in `sub`, all of it let go of.
fn numbers(dir: &SnapshotsDir, snapshot: &str) -> Vec<Ino> {
    let root = dir.lookup(SNAPSHOTS_INO, name(snapshot)).unwrap().ino;
    let sub = dir.lookup(root, name("sub")).unwrap().ino;
    let file = dir.lookup(sub, name("f")).unwrap().ino;
    let found = vec![file, sub, root];
    found.iter().for_each(|ino| dir.forget(*ino));
    found
}

/// What reads `.snapshots/nightly` each night compares numbers, and so does what mounts the volume again.
#[test]
fn numbers_are_the_same_at_each_mount_and_in_the_next_snapshot_of_the_name() {
    let world = World::new();
    let dir = shown(&world);
    let (one, two) = (numbers(&dir, "one"), numbers(&dir, "two"));
    let again = SnapshotsDir::new(world.main());
    assert_eq!(numbers(&again, "two"), two, "looked at first");
    assert_eq!(numbers(&again, "one"), one);

    let retired = dir.retire("one").unwrap();
    world.tree.delete_snapshot("one").unwrap();
    drop(retired);
    world.tree.snapshot(MAIN, "one").unwrap();
    assert_eq!(numbers(&dir, "one"), one);
}

#[test]
fn numbers_of_all_snapshots_and_the_tree_differ_also_in_32_bits() {
    let world = World::new();
    let dir = shown(&world);
    for n in 0..20 {
        world.tree.snapshot(MAIN, &format!("snapshot {n}")).unwrap();
    }
    let mut seen: Vec<Ino> = names(&dir, SNAPSHOTS_INO).iter().flat_map(|(name, _)| numbers(&dir, name)).collect();
    let live = dir.lookup(Ino::ROOT, name("sub")).unwrap().ino;
    seen.extend([live, dir.lookup(live, name("f")).unwrap().ino]);
    assert!(seen.iter().all(|ino| ino.0 < 1 << 53), "a double holds each");
    assert_eq!(seen.iter().map(|ino| ino.0 as u32).collect::<BTreeSet<_>>().len(), seen.len());
}
