//! Batches stay small whatever they are about: [`MemBase`](adit_volume::testing::MemBase) refuses what the smallest volume's
//! log would.

#[path = "support/tree.rs"]
mod support;

use adit_core::ErrorKind;
use adit_core::store::Store;
use adit_core::transaction::Transactional;
use adit_core::types::{Access, AllocateMode, Attr, Ino, XattrName, XattrSet};
use adit_volume::VolumeStore;
use adit_volume::tree::MAIN;

use support::{World, name, new};

fn check(world: &World) {
    let report = world.tree.verify().unwrap();
    assert_eq!(report.problems, [""; 0]);
    assert_eq!(report.blocks, world.base.state().allocated);
}

fn create(store: &VolumeStore, at: &str) -> Attr {
    store.create(Ino::ROOT, name(at), &new(0o644)).unwrap().0
}

fn set_xattrs(store: &VolumeStore, ino: Ino, names: impl Iterator<Item = String>, value: &[u8]) {
    for at in names {
        store.set_xattr(ino, XattrName::new(at.as_bytes()).unwrap(), value, XattrSet::Either).unwrap();
    }
}

/// Names of 250 bytes.
fn long_names() -> impl Iterator<Item = String> {
    (0..255).map(|i| format!("user.{i:0245}"))
}

fn keys_of(world: &World, space: u8) -> usize {
    world.base.state().map.keys().filter(|key| key.first() == Some(&space)).count()
}

#[test]
fn an_inode_with_many_attributes_can_go() {
    let world = World::new();
    let store = world.main();
    let ino = create(&store, "f").ino;
    set_xattrs(&store, ino, long_names(), b"");
    // Now each removal leaves a tombstone.
    world.tree.snapshot(MAIN, "s").unwrap();
    store.unlink(Ino::ROOT, name("f")).unwrap();
    assert_eq!(keys_of(&world, b'O'), 1);
    store.forget(ino);
    assert_eq!(keys_of(&world, b'O'), 0);
    check(&world);
    drop(store);
    world.reopen().main();
}

#[test]
fn a_branch_with_long_names_can_be_dropped_and_merged() {
    let world = World::new();
    world.tree.snapshot(MAIN, "s").unwrap();
    world.tree.branch("s", "b").unwrap();
    let branch = world.branch("b");
    set_xattrs(&branch, Ino::ROOT, long_names(), b"value");
    drop(branch);
    let main = world.main();
    set_xattrs(&main, Ino::ROOT, long_names(), b"value");
    // All of them once more, and one chain of all.
    world.tree.snapshot(MAIN, "t").unwrap();
    set_xattrs(&main, Ino::ROOT, long_names(), b"other");
    world.tree.delete_branch("b").unwrap();
    world.tree.delete_snapshot("t").unwrap();
    world.tree.collect().unwrap();
    check(&world);
}

#[test]
fn large_attributes_are_restored() {
    let world = World::new();
    let store = world.main();
    let names = || (0..60).map(|i| format!("user.{i}"));
    for at in ["gone", "changed"] {
        let ino = create(&store, at).ino;
        set_xattrs(&store, ino, names(), &[1; 8000]);
    }
    world.tree.snapshot(MAIN, "s").unwrap();
    store.unlink(Ino::ROOT, name("gone")).unwrap();
    let changed = store.lookup(Ino::ROOT, name("changed")).unwrap().ino;
    store.link(changed, Ino::ROOT, name("elsewhere")).unwrap();
    store.unlink(Ino::ROOT, name("changed")).unwrap();
    set_xattrs(&store, changed, names(), &[2; 8000]);
    for at in ["gone", "changed"] {
        store.restore_path("s", &[at.as_bytes()], Default::default()).unwrap();
        let ino = store.lookup(Ino::ROOT, name(at)).unwrap().ino;
        for at in names() {
            assert_eq!(store.xattr(ino, XattrName::new(at.as_bytes()).unwrap()).unwrap(), [1; 8000]);
        }
    }
    world.tree.collect().unwrap();
    check(&world);
}

/// As long as any system takes one.
#[test]
fn attributes_of_64_kib_are_kept_shared_restored_and_dropped() {
    let world = World::new();
    let store = world.main();
    let names = || (0..20).map(|i| format!("user.{i}"));
    let has = |ino: Ino, byte: u8| {
        for at in names() {
            assert_eq!(store.xattr(ino, XattrName::new(at.as_bytes()).unwrap()).unwrap(), [byte; 64 << 10]);
        }
    };
    for at in ["gone", "changed", "moved"] {
        let ino = create(&store, at).ino;
        set_xattrs(&store, ino, names(), &[1; 64 << 10]);
    }
    world.tree.snapshot(MAIN, "s").unwrap();
    store.unlink(Ino::ROOT, name("gone")).unwrap();
    let [changed, moved] = ["changed", "moved"].map(|at| store.lookup(Ino::ROOT, name(at)).unwrap().ino);
    set_xattrs(&store, changed, names(), &[2; 64 << 10]);
    store.rename(Ino::ROOT, name("moved"), Ino::ROOT, name("elsewhere"), Default::default()).unwrap();
    set_xattrs(&store, moved, names(), &[3; 64 << 10]);
    for at in ["gone", "changed", "moved"] {
        store.restore_path("s", &[at.as_bytes()], Default::default()).unwrap();
        has(store.lookup(Ino::ROOT, name(at)).unwrap().ino, 1);
    }
    has(moved, 3);
    let one = XattrName::new(b"user.one").unwrap();
    let e = store.set_xattr(moved, one, &[0; (64 << 10) + 1], XattrSet::Either).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoSpace);
    world.tree.delete_snapshot("s").unwrap();
    world.tree.collect().unwrap();
    check(&world);
}

/// Three values are more than the smallest segment of a log holds.
#[test]
fn a_transaction_takes_several_long_attributes() {
    let world = World::new();
    let store = world.main();
    let ino = create(&store, "f").ino;
    let set = |values: usize| {
        store.transact(&mut |tx| {
            (0..values).try_for_each(|i| {
                let at = format!("user.{i}");
                tx.set_xattr(ino, XattrName::new(at.as_bytes()).unwrap(), &[7; 64 << 10], XattrSet::Either)
            })
        })
    };
    set(3).unwrap();
    assert_eq!(store.xattr(ino, XattrName::new(b"user.2").unwrap()).unwrap(), [7; 64 << 10]);
    assert_eq!(set(5).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(store.xattr_names(ino).unwrap(), b"user.0\0user.1\0user.2\0");
    check(&world);
}

#[test]
fn scattered_pieces_are_written_in_several_batches() {
    let world = World::new();
    let store = world.main();
    let ino = create(&store, "f").ino;
    let file = store.open(ino, Access::Write).unwrap();
    let full = vec![1; 1 << 20];
    for at in 0..200_u64 {
        file.write_at(&[(at << 20, &full)]).unwrap();
    }
    let pieces: Vec<(u64, &[u8])> = (0..200_u64).map(|at| ((at << 20) + 5000, &b"piece"[..])).collect();
    file.write_at(&pieces).unwrap();
    for (at, piece) in pieces {
        let mut buf = [0; 5];
        file.read_at(at, &mut buf).unwrap();
        assert_eq!(buf, piece);
    }
    file.set_len(0).unwrap();
    check(&world);
    assert_eq!(world.base.state().allocated.len(), 0);
}

#[test]
fn cuts_and_holes_inside_of_blocks_need_no_ordinary_space() {
    let world = World::with(1000, 64);
    let store = world.main();
    let ino = create(&store, "f").ino;
    let file = store.open(ino, Access::Write).unwrap();
    file.write_at(&[(0, &[1; 10 * 4096])]).unwrap();
    let fill = store.open(create(&store, "fill").ino, Access::Write).unwrap();
    let full = (0..1000_u64).find_map(|at| fill.write_at(&[(at << 12, &[2; 4096])]).err()).unwrap();
    assert_eq!(full.kind(), ErrorKind::NoSpace);
    file.allocate(100, 5000, AllocateMode::PunchHole).unwrap();
    file.allocate(9000, 100, AllocateMode::Zero { keep_size: true }).unwrap();
    file.set_len(15_000).unwrap();
    assert_eq!(fill.write_at(&[(0, &[3; 20 * 4096])]).unwrap_err().kind(), ErrorKind::NoSpace);
    let mut read = vec![9; 15_000];
    assert_eq!(file.read_at(0, &mut read).unwrap(), 15_000);
    let zero = |at: &usize| (100..5100).contains(at) || (9000..9100).contains(at);
    assert!(read.iter().enumerate().all(|(at, &byte)| byte == u8::from(!zero(&at))));
    check(&world);
}
