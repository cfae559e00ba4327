//! Whatever batch is the last one that survives a kill: the tree is right, it is one that the operations lead to, and what
//! was going on ends after the volume is opened again. And a full volume, and many threads at once.

#[path = "support/tree.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use adit_core::store::Store;
use adit_core::types::{Access, AllocateMode, Ino, RenameFlags, XattrName, XattrSet};
use adit_core::{ErrorKind, Result};
use adit_testkit::ops::{Snapshot, StoreSubject, Subject};
use adit_testkit::{Rng, scaled, seeds};
use adit_volume::tree::MAIN;
use adit_volume::{Source, Tree, VolumeStore};

use support::{Failing, World, Yielding, name, new};

/// Two folders with small, large and sparse files, links and attributes.
fn prepare(store: &VolumeStore) {
    for folder in ["one", "two"] {
        let dir = store.mkdir(Ino::ROOT, name(folder), &new(0o755)).unwrap().ino;
        let sub = store.mkdir(dir, name("sub"), &new(0o700)).unwrap().ino;
        for (i, len) in [0, 10, 3000, 100_000].into_iter().enumerate() {
            let (attr, file) = store.create(sub, name(&format!("f{i}")), &new(0o644)).unwrap();
            file.write_at(&[(0, &vec![i as u8 + 1; len])]).unwrap();
            file.write_at(&[(5 << 20, b"far")]).unwrap();
            store.link(attr.ino, dir, name(&format!("l{i}"))).unwrap();
            let user = XattrName::new(b"user.x").unwrap();
            store.set_xattr(attr.ino, user, b"value", XattrSet::Either).unwrap();
        }
    }
}

/// A story with all kinds of steps.
fn story(tree: &Arc<Tree>) -> Result<()> {
    let store = VolumeStore::open(tree, Source::Branch(MAIN.to_owned()))?;
    let one = store.lookup(Ino::ROOT, name("one"))?.ino;
    let sub = store.lookup(one, name("sub"))?.ino;
    tree.snapshot(MAIN, "s1")?;
    let f3 = store.lookup(sub, name("f3"))?.ino;
    store.open(f3, Access::Write)?.write_at(&[(50_000, &[9; 20_000]), (2 << 20, b"more")])?;
    store.unlink(sub, name("f3"))?;
    store.unlink(sub, name("f2"))?;
    store.unlink(one, name("l2"))?;
    store.rename(one, name("sub"), Ino::ROOT, name("moved"), RenameFlags::empty())?;
    tree.snapshot(MAIN, "s2")?;
    tree.branch("s1", "b1")?;
    {
        let branch = VolumeStore::open(tree, Source::Branch("b1".to_owned()))?;
        let ino = branch.lookup(branch.lookup(Ino::ROOT, name("two"))?.ino, name("l3"))?.ino;
        let file = branch.open(ino, Access::Write)?;
        file.allocate(0, 50_000, AllocateMode::PunchHole)?;
        file.set_len(60_000)?;
    }
    store.open(f3, Access::Write)?.set_len(0)?;
    tree.delete_snapshot("s1")?;
    tree.collect()?;
    tree.restore_path("b1", "s2", &[b"two"], Default::default())?;
    tree.restore_path(MAIN, "s2", &[b"one"], Default::default())?;
    tree.collect()?;
    tree.delete_branch("b1")?;
    tree.collect()?;
    tree.restore(MAIN, "s2", Default::default())?;
    tree.delete_snapshot("s2")?;
    tree.collect()
}

fn check(world: &World) {
    let report = world.tree.verify().unwrap();
    assert_eq!(report.problems, [""; 0]);
    let state = world.base.state();
    assert_eq!(report.blocks, state.allocated);
}

fn trees(world: &World) -> Vec<(String, Snapshot)> {
    let shown = |info: adit_volume::tree::SnapshotInfo| {
        let source = if info.is_branch { Source::Branch(info.name.clone()) } else { Source::Snapshot(info.id) };
        let store = VolumeStore::open(&world.tree, source).unwrap();
        let tree = StoreSubject::new(&store).snapshot().unwrap();
        (info.name, tree)
    };
    world.tree.snapshots().into_iter().map(shown).collect()
}

#[test]
fn every_batch_leaves_a_tree_that_is_right() {
    let start = {
        let world = World::new();
        prepare(&world.main());
        world.base.state()
    };
    let mut before: Option<Vec<(String, Snapshot)>> = None;
    let mut steps = 0;
    for batches in 0.. {
        let world = World::new();
        world.base.restore(start.clone());
        let world = world.reopen();
        let failing = Failing::new(world.base.clone(), batches);
        let tree = failing.tree();
        let result = story(&tree);
        drop(tree);
        let after = world.reopen();
        // Staging branches went when it was opened. What was removed while in use goes when its branch is.
        check(&after);
        let now = trees(&after);
        check(&after);
        // Names are part of it: a batch changes one thing, or nothing that shows.
        if let Some(before) = &before
            && *before != now
        {
            steps += 1;
        }
        before = Some(now);
        after.tree.collect().unwrap();
        after.tree.reap_unused().unwrap();
        check(&after);
        assert!(Some(trees(&after)) == before, "collecting changes nothing that shows");
        // And the story's rest, or another one, can go on.
        prepare_more(&after);
        check(&after);
        if result.is_ok() {
            assert!(batches > 40, "{batches}");
            break;
        }
    }
    // Each operation of the story shows at once: not in more steps than it has.
    assert!((15..=21).contains(&steps), "{steps}");
}

fn prepare_more(world: &World) {
    let store = world.main();
    let (_, file) = store.create(Ino::ROOT, name("more"), &new(0o644)).unwrap();
    file.write_at(&[(0, &[3; 50_000])]).unwrap();
    store.unlink(Ino::ROOT, name("more")).unwrap();
}

#[test]
fn a_full_volume_can_be_emptied() {
    let world = World::with(300, 64);
    let store = world.main();
    let mut names = Vec::new();
    let error = loop {
        let at = format!("f{}", names.len());
        let (_, file) = store.create(Ino::ROOT, name(&at), &new(0o644)).unwrap();
        names.push(at);
        if let Err(e) = file.write_at(&[(0, &[1; 40_000])]) {
            break e;
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    check(&world);
    let stat = store.statfs().unwrap();
    assert!(stat.blocks_available < 10 && stat.blocks == 300, "{stat:?}");
    world.tree.snapshot(MAIN, "s").unwrap();
    for at in &names {
        store.unlink(Ino::ROOT, name(at)).unwrap();
        let ino = world.base.state(); // Nothing comes back while the snapshot has it.
        assert!(ino.allocated.len() > 280);
    }
    for ino in 0..10_000 {
        store.forget(Ino(ino));
    }
    check(&world);
    world.tree.delete_snapshot("s").unwrap();
    world.tree.collect().unwrap();
    check(&world);
    assert_eq!(world.base.state().allocated.len(), 0);
    let (_, file) = store.create(Ino::ROOT, name("again"), &new(0o644)).unwrap();
    file.write_at(&[(0, &[1; 1_000_000])]).unwrap();
}

#[test]
fn threads_lose_nothing_and_see_whole_operations() {
    for seed in seeds(4) {
        let world = World::with(support::BLOCKS, if seed % 2 == 0 { 64 } else { 3 });
        let store = world.main();
        let shared = store.create(Ino::ROOT, name("shared"), &new(0o644)).unwrap().1;
        let stop = AtomicBool::new(false);
        let per_thread = 150 * scaled(1).min(20);
        std::thread::scope(|scope| {
            let (store, tree, shared, stop) = (&store, &world.tree, &shared, &stop);
            let workers: Vec<_> = (0..4_u64)
                .map(|thread| {
                    let work = move || {
                        let mut rng = Rng::new(seed * 10 + thread);
                        for i in 0..per_thread {
                            let at = format!("t{thread}-{i}");
                            let (attr, file) = store.create(Ino::ROOT, name(&at), &new(0o644)).unwrap();
                            file.write_at(&[(0, &vec![thread as u8; rng.below(9000) as usize])]).unwrap();
                            // A quarter of a block each: neighbours must not lose theirs.
                            shared.write_at(&[(thread * 1024, &[i as u8; 1024])]).unwrap();
                            if i % 3 == 0 {
                                store
                                    .rename(
                                        Ino::ROOT,
                                        name(&at),
                                        Ino::ROOT,
                                        name(&format!("{at}-x")),
                                        RenameFlags::empty(),
                                    )
                                    .unwrap();
                            } else if i % 3 == 1 {
                                store.unlink(Ino::ROOT, name(&at)).unwrap();
                            }
                            drop(file);
                            store.forget(attr.ino);
                            let mut buf = [0; 1024];
                            shared.read_at(thread * 1024, &mut buf).unwrap();
                            assert_eq!(buf, [i as u8; 1024], "own writes are seen, whole");
                        }
                    };
                    scope.spawn(work)
                })
                .collect();
            scope.spawn(move || {
                for i in 0.. {
                    if stop.load(Relaxed) {
                        break;
                    }
                    let at = format!("s{i}");
                    tree.snapshot(MAIN, &at).unwrap();
                    let source = Source::Snapshot(tree.find_snapshot(&at).unwrap());
                    let old = VolumeStore::open(tree, source).unwrap();
                    let listed = |store: &VolumeStore| StoreSubject::new(store).snapshot().unwrap();
                    let (a, b) = (listed(&old), listed(&old));
                    assert_eq!(a.difference(&b), None, "a snapshot stays what it is");
                    drop(old);
                    if i % 2 == 0 {
                        tree.delete_snapshot(&at).unwrap();
                        tree.collect().unwrap();
                    }
                }
            });
            for worker in workers {
                let result = worker.join();
                if result.is_err() {
                    stop.store(true, Relaxed);
                    panic!("ADIT_TEST_SEED={seed}");
                }
            }
            stop.store(true, Relaxed);
        });
        let entries = store.getattr(Ino::ROOT).unwrap().size;
        assert_eq!(entries, 1 + 4 * (per_thread as u64 - per_thread as u64 / 3), "ADIT_TEST_SEED={seed}");
        check(&world);
    }
}

#[test]
fn writers_of_one_block_keep_what_others_wrote() {
    let world = World::new();
    let tree = Yielding::tree(&world.base);
    let store = VolumeStore::open(&tree, Source::Branch(MAIN.to_owned())).unwrap();
    let file = store.create(Ino::ROOT, name("shared"), &new(0o644)).unwrap().1;
    file.set_len(4096).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let file = &file;
            scope.spawn(move || {
                for i in 0..200_u64 {
                    file.write_at(&[(thread * 1024, &[i as u8; 1024])]).unwrap();
                    let mut buf = [0; 1024];
                    file.read_at(thread * 1024, &mut buf).unwrap();
                    assert_eq!(buf, [i as u8; 1024]);
                }
            });
        }
    });
}

#[test]
fn a_block_that_is_read_is_given_to_nobody_else() {
    let world = World::with(64, 64);
    let tree = Yielding::tree(&world.base);
    let store = VolumeStore::open(&tree, Source::Branch(MAIN.to_owned())).unwrap();
    const LEN: usize = 8 * 4096;
    let files = ["a", "b"].map(|at| {
        let file = store.create(Ino::ROOT, name(at), &new(0o644)).unwrap().1;
        file.write_at(&[(0, &[1; LEN])]).unwrap();
        file
    });
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (files, store, done) = (&files, &store, &done);
        for file in files {
            scope.spawn(move || {
                while !done.load(Relaxed) {
                    let mut buf = vec![0; LEN];
                    file.read_at(0, &mut buf).unwrap();
                    assert!(buf.iter().all(|&b| b == buf[0]), "a write is seen whole or not at all");
                }
            });
        }
        let writers = files.each_ref().map(|file| {
            scope.spawn(move || {
                for i in 0..200 {
                    file.write_at(&[(0, &[i; LEN])]).unwrap();
                    store.sync_all().unwrap();
                }
            })
        });
        let results = writers.map(|writer| writer.join());
        done.store(true, Relaxed);
        assert!(results.iter().all(|result| result.is_ok()));
    });
    assert_eq!(tree.verify().unwrap().problems, [""; 0]);
}
