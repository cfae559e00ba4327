//! What things cost, by counting keys that are read and written: it must follow what changed, not what is there.

#[path = "support/tree.rs"]
mod support;

use std::cell::Cell;
use std::ops::ControlFlow;

use adit_core::store::Store;
use adit_core::transaction::{Transaction, Transactional};
use adit_core::types::{Access, FileName, Ino, RenameFlags};
use adit_volume::snapshots_dir::{SNAPSHOTS_INO, SnapshotsDir};
use adit_volume::tree::{Differing, MAIN};
use adit_volume::{Source, VolumeStore};

use support::{World, name, new};

/// Fills a branch with `count` files in directories of 100.
fn fill(store: &VolumeStore, count: usize) {
    let mut dir = Ino::ROOT;
    for i in 0..count {
        if i % 100 == 0 {
            dir = store.mkdir(Ino::ROOT, name(&format!("d{}", i / 100)), &new(0o755)).unwrap().ino;
        }
        let (_, file) = store.create(dir, name(&format!("f{i}")), &new(0o644)).unwrap();
        file.write_at(&[(0, b"small")]).unwrap();
    }
}

fn keys_read(world: &World, act: impl FnOnce()) -> u64 {
    let before = world.base.state().keys_read;
    act();
    world.base.state().keys_read - before
}

/// Ten changes of all kinds.
fn change(store: &VolumeStore) {
    let dir = store.lookup(Ino::ROOT, name("d0")).unwrap().ino;
    for i in 0..3 {
        let ino = store.lookup(dir, name(&format!("f{i}"))).unwrap().ino;
        store.open(ino, Access::Write).unwrap().write_at(&[(0, b"other content")]).unwrap();
        store.unlink(dir, name(&format!("f{}", i + 10))).unwrap();
        store.create(dir, name(&format!("new{i}")), &new(0o644)).unwrap();
    }
    store.rename(dir, name("f20"), Ino::ROOT, name("moved"), RenameFlags::empty()).unwrap();
}

#[test]
fn a_snapshot_writes_two_keys_whatever_is_there() {
    for count in [100, 3000] {
        let world = World::new();
        let store = world.main();
        fill(&store, count);
        for i in 0..20 {
            let before = world.base.state();
            world.tree.snapshot(MAIN, &format!("s{i}")).unwrap();
            let after = world.base.state();
            let written = after.map.iter().filter(|(key, value)| before.map.get(*key) != Some(value)).count();
            assert_eq!((written, after.seq - before.seq), (2, 1));
            assert_eq!(after.keys_read, before.keys_read);
        }
        world.tree.branch("s3", "b").unwrap();
        assert_eq!(world.tree.snapshots().len(), 22);
    }
}

#[test]
fn deletion_restoring_and_differences_cost_what_changed() {
    let costs = [200, 4000].map(|count| {
        let world = World::new();
        let store = world.main();
        fill(&store, count);
        world.tree.snapshot(MAIN, "a").unwrap();
        change(&store);
        world.tree.snapshot(MAIN, "b").unwrap();
        let mut told = Vec::new();
        let diff = keys_read(&world, || told = world.tree.diff("a", "b").unwrap());
        let kinds = |what: &dyn Fn(&Differing) -> bool| told.iter().filter(|d| what(&d.what)).count();
        assert_eq!(kinds(&|what| *what == Differing::Added), 3);
        assert_eq!(kinds(&|what| *what == Differing::Changed), 3);
        assert_eq!(kinds(&|what| *what == Differing::Removed), 3);
        assert_eq!(kinds(&|what| matches!(what, Differing::Renamed(from) if from == b"/d0/f20")), 1);
        assert_eq!(told.len(), 10, "{told:?}");
        world.tree.branch("a", "w").unwrap();
        let branch = world.branch("w");
        change(&branch);
        drop(branch);
        let leaf = keys_read(&world, || {
            world.tree.delete_branch("w").unwrap();
            world.tree.collect().unwrap();
        });
        let merge = keys_read(&world, || {
            world.tree.delete_snapshot("a").unwrap();
            world.tree.collect().unwrap();
        });
        let restore = keys_read(&world, || {
            change_again(&store);
            world.tree.restore(MAIN, "b", Default::default()).unwrap();
            world.tree.collect().unwrap();
        });
        assert_eq!(world.tree.verify().unwrap().problems, [""; 0]);
        [diff, leaf, merge, restore]
    });
    let [small, large] = costs;
    assert_eq!(small, large, "keys read, of a small tree and of a large one");
    assert!(large.iter().all(|&read| read < 600), "{large:?}");
}

/// What is below it and was left alone is not even looked at.
#[test]
fn a_restore_of_a_path_costs_what_changed_below_it() {
    let [small, large] = [200, 4000].map(|count| {
        let world = World::new();
        let store = world.main();
        let top = store.mkdir(Ino::ROOT, name("top"), &new(0o755)).unwrap().ino;
        fill(&store, count);
        let large = store.mkdir(top, name("large"), &new(0o755)).unwrap().ino;
        for i in 0..count.div_ceil(100) {
            let dir = name_of_dir(i);
            store
                .rename(Ino::ROOT, name(&dir), if i == 0 { top } else { large }, name(&dir), RenameFlags::empty())
                .unwrap();
        }
        world.tree.snapshot(MAIN, "a").unwrap();
        let dir = store.lookup(top, name("d0")).unwrap().ino;
        for i in 0..3 {
            let ino = store.lookup(dir, name(&format!("f{i}"))).unwrap().ino;
            store.open(ino, Access::Write).unwrap().write_at(&[(0, b"other content")]).unwrap();
            store.unlink(dir, name(&format!("f{}", i + 10))).unwrap();
            store.create(dir, name(&format!("new{i}")), &new(0o644)).unwrap();
        }
        let read = keys_read(&world, || {
            world.tree.restore_path(MAIN, "a", &[b"top"], Default::default()).unwrap();
        });
        assert_eq!(world.tree.diff("a", MAIN).unwrap(), []);
        assert_eq!(world.tree.verify().unwrap().problems, [""; 0]);
        read
    });
    assert_eq!(small, large, "keys read, of a small tree and of a large one");
    assert!(large < 900, "{large}");
}

fn name_of_dir(i: usize) -> String {
    format!("d{i}")
}

fn change_again(store: &VolumeStore) {
    let dir = store.lookup(Ino::ROOT, name("d1")).unwrap().ino;
    for i in 100..110 {
        store.unlink(dir, name(&format!("f{i}"))).unwrap();
    }
}

#[test]
fn writers_pay_nothing_for_snapshots_that_were_deleted() {
    let world = World::new();
    let store = world.main();
    fill(&store, 100);
    let before = world.base.state().map.len();
    for i in 0..50 {
        let name = format!("s{i}");
        world.tree.snapshot(MAIN, &name).unwrap();
        change_back(&store);
        world.tree.delete_snapshot(&name).unwrap();
        world.tree.collect().unwrap();
    }
    let after = world.base.state();
    let versioned = |key: &&Vec<u8>| key[0] != b'S';
    assert_eq!(after.map.keys().filter(versioned).count(), before - 1, "no versions and no lists are left");
    assert_eq!(world.tree.verify().unwrap().problems, [""; 0]);
}

fn change_back(store: &VolumeStore) {
    let dir = store.lookup(Ino::ROOT, name("d0")).unwrap().ino;
    store.rename(dir, name("f1"), dir, name("x"), RenameFlags::empty()).unwrap();
    store.rename(dir, name("x"), dir, name("f1"), RenameFlags::empty()).unwrap();
    let ino = store.lookup(dir, name("f2")).unwrap().ino;
    store.open(ino, Access::Write).unwrap().write_at(&[(0, b"small")]).unwrap();
}

#[test]
fn a_stat_reads_two_keys_and_a_path_one_more_than_its_depth() {
    let world = World::new();
    let store = world.main();
    fill(&store, 300);
    let dir = store.lookup(Ino::ROOT, name("d2")).unwrap().ino;
    assert_eq!(keys_read(&world, || _ = store.lookup(dir, name("f250")).unwrap()), 2);
    assert_eq!(keys_read(&world, || _ = store.getattr(dir).unwrap()), 1);
    // A snapshot later it is the same: the newest version comes first.
    world.tree.snapshot(MAIN, "s").unwrap();
    assert_eq!(keys_read(&world, || _ = store.lookup(dir, name("f250")).unwrap()), 2);
}

#[test]
fn lookups_step_over_what_other_branches_wrote() {
    let world = World::new();
    let store = world.main();
    fill(&store, 10);
    world.tree.snapshot(MAIN, "s").unwrap();
    for i in 0..200 {
        let branch = format!("b{i}");
        world.tree.branch("s", &branch).unwrap();
        let store = world.branch(&branch);
        let dir = store.lookup(Ino::ROOT, name("d0")).unwrap().ino;
        store.setattr(dir, &adit_core::types::SetAttr { uid: Some(i), ..Default::default() }).unwrap();
    }
    let snapshot = Source::Snapshot(world.tree.find_snapshot("s").unwrap());
    let old = VolumeStore::open(&world.tree, snapshot).unwrap();
    let dir = old.lookup(Ino::ROOT, name("d0")).unwrap();
    assert_eq!(dir.uid, new(0).caller.uid);
    let read = keys_read(&world, || _ = old.getattr(dir.ino).unwrap());
    assert!(read <= 2, "{read}: its own id is sought, not stepped to");
    let first = world.branch("b0");
    assert_eq!(first.getattr(dir.ino).unwrap().uid, 0);
    let mut listed = 0;
    first
        .read_dir(dir.ino, 0, &mut |_| {
            listed += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(listed, 10);
}

/// A branch with a file of so many names.
fn linked(count: usize) -> (World, VolumeStore) {
    let world = World::new();
    let store = world.main();
    let ino = store.create(Ino::ROOT, name("0"), &new(0o644)).unwrap().0.ino;
    for n in 1..count {
        store.link(ino, Ino::ROOT, name(&n.to_string())).unwrap();
    }
    (world, store)
}

#[test]
fn a_name_of_many_is_removed_at_the_cost_of_one() {
    for has_snapshot in [false, true] {
        let [few, many] = [200, 2000].map(|count| {
            let (world, store) = linked(count);
            if has_snapshot {
                world.tree.snapshot(MAIN, "s").unwrap();
            }
            let mut names = Vec::new();
            let mut list = |entry: adit_core::store::DirEntry<'_>| {
                names.push(entry.name.display().to_string());
                ControlFlow::Continue(())
            };
            store.read_dir(Ino::ROOT, 0, &mut list).unwrap();
            let ino = store.lookup(Ino::ROOT, name("7")).unwrap().ino;
            let read = keys_read(&world, || {
                for at in &names {
                    store.unlink(Ino::ROOT, name(at)).unwrap();
                }
            });
            store.forget(ino);
            assert_eq!(world.tree.verify().unwrap().problems, [""; 0]);
            read
        });
        assert!(many < few * 11, "{few} keys for a tenth of the names, {many} for all");
    }
}

#[test]
fn a_transaction_takes_names_that_it_made_for_the_first() {
    let (world, store) = linked(1);
    let ino = store.lookup(Ino::ROOT, name("0")).unwrap().ino;
    let mut work = |transaction: &mut dyn Transaction| {
        transaction.link(ino, Ino::ROOT, name("1"))?;
        transaction.unlink(Ino::ROOT, name("0"))
    };
    store.transact(&mut work).unwrap();
    assert_eq!(store.getattr(ino).unwrap().nlink, 1);
    assert_eq!(store.path_of(ino).as_deref(), Some("/1"));
    assert_eq!(world.tree.verify().unwrap().problems, [""; 0]);
}

#[test]
fn snapshots_are_listed_and_looked_up_at_the_cost_of_each() {
    let [few, many] = [600, 6000].map(|count| {
        let world = World::new();
        let dir = SnapshotsDir::new(world.main());
        for n in 0..count {
            world.tree.snapshot(MAIN, &format!("s{n}")).unwrap();
        }
        let origins = world.tree.snapshots().into_iter().filter(|info| info.origin.is_some());
        assert_eq!(origins.count(), count, "all but the first, and the branch");
        let mut seen = 0;
        // In pieces, as the kernel does. With anything that goes through all of them for each, this would never end.
        let read = keys_read(&world, || {
            let start = Cell::new(0);
            loop {
                let mut names = Vec::new();
                let mut list = |entry: adit_core::store::DirEntry<'_>| {
                    start.set(entry.cookie);
                    names.push(entry.name.as_bytes().to_vec());
                    if names.len() < 30 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                };
                dir.read_dir(SNAPSHOTS_INO, start.get(), &mut list).unwrap();
                seen += names.len();
                if names.is_empty() {
                    break;
                }
                for at in names {
                    dir.lookup(SNAPSHOTS_INO, FileName::new(&at).unwrap()).unwrap();
                }
            }
        });
        assert_eq!(seen, count);
        read
    });
    assert!(many < few * 11, "{few} keys for a tenth of the snapshots, {many} for all");
}

#[test]
fn differences_of_two_of_many_branches_cost_what_changed_in_these() {
    let [few, many] = [20, 200].map(|count| {
        let world = World::new();
        let store = world.main();
        fill(&store, 100);
        for n in 0..count {
            world.tree.snapshot(MAIN, &format!("s{n}")).unwrap();
            world.tree.branch(&format!("s{n}"), &format!("b{n}")).unwrap();
            change_again_in(&world.branch(&format!("b{n}")), n);
        }
        keys_read(&world, || assert_eq!(world.tree.diff("b3", "b11").unwrap().len(), 3))
    });
    assert!(many < few * 2, "{few} keys with a tenth of the branches, {many} with all");
}

/// A change that is another one in each branch, and one that all make.
fn change_again_in(store: &VolumeStore, n: usize) {
    let dir = store.lookup(Ino::ROOT, name("d0")).unwrap().ino;
    store.unlink(dir, name("f50")).unwrap();
    store.create(dir, name(&format!("of {n}")), &new(0o644)).unwrap();
    let ino = store.lookup(dir, name("f1")).unwrap().ino;
    store.open(ino, Access::Write).unwrap().write_at(&[(0, format!("content of {n}").as_bytes())]).unwrap();
}

#[test]
fn a_directory_takes_many_entries() {
    const COUNT: usize = 20_000;
    let world = World::new();
    let store = world.main();
    for i in 0..COUNT {
        store.mknod(Ino::ROOT, name(&format!("entry {i}")), adit_core::types::Kind::File, 0, &new(0o644)).unwrap();
    }
    assert_eq!(store.getattr(Ino::ROOT).unwrap().size, COUNT as u64);
    assert!(keys_read(&world, || _ = store.lookup(Ino::ROOT, name("entry 777")).unwrap()) <= 3);
    let mut seen = vec![false; COUNT];
    let listing = keys_read(&world, || {
        store
            .read_dir(Ino::ROOT, 0, &mut |e| {
                let at: usize = e.name.display()["entry ".len()..].parse().unwrap();
                assert!(!std::mem::replace(&mut seen[at], true), "{at} comes twice");
                ControlFlow::Continue(())
            })
            .unwrap();
    });
    assert!(seen.iter().all(|&seen| seen));
    assert!(listing < COUNT as u64 * 11 / 10, "{listing}");
}

#[test]
fn deletions_of_many_keys_go_in_batches_and_go_on_after_a_kill() {
    let mut world = World::new();
    fill(&world.main(), 1000);
    let touch = |store: &VolumeStore| {
        for i in 0..10 {
            let dir = store.lookup(Ino::ROOT, name(&format!("d{i}"))).unwrap().ino;
            for j in i * 100..i * 100 + 100 {
                let file = name_of(j);
                let ino = store.lookup(dir, name(&file)).unwrap().ino;
                if j % 2 == 0 {
                    store.open(ino, Access::Write).unwrap().write_at(&[(0, &[7; 5000])]).unwrap();
                } else {
                    store.unlink(dir, name(&file)).unwrap();
                    store.forget(ino);
                }
            }
        }
    };
    world.tree.snapshot(MAIN, "a").unwrap();
    touch(&world.main());
    world.tree.snapshot(MAIN, "b").unwrap();
    world.tree.branch("a", "w").unwrap();
    touch(&world.branch("w"));
    world.tree.delete_branch("w").unwrap();
    world.tree.delete_snapshot("a").unwrap();
    let mut batches = 0;
    while world.tree.collect_some().unwrap() {
        assert_eq!(world.tree.verify().unwrap().problems, [""; 0]);
        world = world.reopen();
        batches += 1;
    }
    assert!(batches > 10, "{batches}");
    let report = world.tree.verify().unwrap();
    assert_eq!((report.problems, report.blocks.len()), (vec![], 1000));
    world.tree.delete_snapshot("b").unwrap();
    world.tree.collect().unwrap();
    // Two keys of each file, one window of each, the folders, and what says so.
    let left = world.base.state().map.keys().filter(|key| key[0] != b'S').count();
    assert_eq!(left, 500 * 3 + 10 * 2 + 1 + 2);
}

fn name_of(i: usize) -> String {
    format!("f{i}")
}
