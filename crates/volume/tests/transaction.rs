//! Several operations as one: all of it or nothing, after errors and crashes, and beside others.

#[path = "support/mod.rs"]
mod base;
#[path = "support/joined.rs"]
mod joined;
#[path = "support/tree.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use adit_core::store::Store;
use adit_core::transaction::{Transaction, Transactional};
use adit_core::types::{Access, Ino, Kind, RenameFlags, SetAttr, XattrName, XattrSet};
use adit_core::{ErrorKind, Result};
use adit_testkit::crash::{CrashPlan, CrashWorld, Mode, crash_everywhere};
use adit_testkit::ops::{Snapshot, StoreSubject, Subject};
use adit_testkit::{Rng, own_caller, scaled, seeds};
use adit_volume::format::keys::NameHash;
use adit_volume::tree::MAIN;
use adit_volume::{Base, Run, Source, Table, Tree, VolumeStore};

use joined::{Singly, step};
use support::{Failing, World, Yielding, name, new};

const MIB: u64 = 1 << 20;

fn check(world: &World) {
    let report = world.tree.verify().unwrap();
    assert_eq!(report.problems, [""; 0]);
    let state = world.base.state();
    assert_eq!(report.blocks, state.allocated);
    assert_eq!(state.reserved.len(), 0);
}

fn shown(store: &VolumeStore) -> Snapshot {
    StoreSubject::new(store).snapshot().unwrap()
}

fn size(len: u64) -> SetAttr {
    SetAttr { size: Some(len), ..SetAttr::default() }
}

fn content(store: &VolumeStore, ino: Ino) -> Vec<u8> {
    let file = store.open(ino, Access::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn it_sees_what_it_changed_and_others_see_all_of_it() {
    let world = World::new();
    let store = world.main();
    let old = store.create(Ino::ROOT, name("old"), &new(0o644)).unwrap().0.ino;
    let mut file = None;
    store
        .transact(&mut |t| {
            let dir = t.mkdir(Ino::ROOT, name("dir"), &new(0o755))?.ino;
            let ino = t.create(dir, name("f"), &new(0o644))?.ino;
            t.write(ino, 0, b"small")?;
            t.write(ino, 6000, b"large")?;
            t.write(ino, 6002, b"RG")?;
            assert_eq!(t.getattr(ino)?.size, 6005);
            assert_eq!(t.lookup(dir, name("f"))?.ino, ino);
            assert_eq!(store.lookup(Ino::ROOT, name("dir")).unwrap_err().kind(), ErrorKind::NotFound);
            t.rename(dir, name("f"), Ino::ROOT, name("old"), RenameFlags::empty())?;
            assert_eq!(t.lookup(dir, name("f")).unwrap_err().kind(), ErrorKind::NotFound);
            assert_eq!(t.getattr(old)?.nlink, 0);
            t.rmdir(Ino::ROOT, name("dir"))?;
            t.set_xattr(ino, XattrName::new(b"user.x").unwrap(), b"1", XattrSet::Create)?;
            assert_eq!(t.xattr(ino, XattrName::new(b"user.x").unwrap())?, b"1");
            t.mknod(Ino::ROOT, name("white"), Kind::CharDevice, 0, &new(0))?;
            file = Some(ino);
            Ok(())
        })
        .unwrap();
    let ino = store.lookup(Ino::ROOT, name("old")).unwrap().ino;
    assert_eq!(Some(ino), file);
    let mut expected = vec![0; 6005];
    expected[..5].copy_from_slice(b"small");
    expected[6000..].copy_from_slice(b"laRGe");
    assert_eq!(content(&store, ino), expected);
    assert_eq!(store.getattr(Ino::ROOT).unwrap().nlink, 2);
    check(&world);
    // The old one lost its last name, and is still known.
    assert_eq!(store.getattr(old).unwrap().nlink, 0);
    store.forget(old);
    assert_eq!(store.getattr(old).unwrap_err().kind(), ErrorKind::Stale);
    check(&world);
}

/// What random transactions do is what their steps do one by one; and what fails, or is given up, leaves nothing.
#[test]
fn random_transactions_do_what_their_steps_do() {
    for seed in seeds(12) {
        let (world, model) = (World::with(support::BLOCKS, 3), World::with(support::BLOCKS, 3));
        let (store, singly) = (world.main(), model.main());
        let mut rng = Rng::new(seed);
        for group in 0..40 {
            let (steps, given_up, steps_seed) = (1 + rng.below(9), rng.percent(20), rng.below(u64::MAX));
            let before = given_up.then(|| shown(&store));
            let mut said = Vec::new();
            let result = store.transact(&mut |t| {
                let mut rng = Rng::new(steps_seed);
                said = (0..steps).map(|_| step(t, &mut rng)).collect();
                if given_up { Err(ErrorKind::Interrupted.into()) } else { Ok(()) }
            });
            let context = format!("ADIT_TEST_SEED={seed}, group {group}");
            if let Some(before) = before {
                assert_eq!(result.unwrap_err().kind(), ErrorKind::Interrupted, "{context}");
                assert_eq!(before.difference(&shown(&store)), None, "{context}");
            } else {
                result.unwrap();
                let (mut one_by_one, mut rng) = (Singly(&singly), Rng::new(steps_seed));
                let expected: Vec<String> = (0..steps).map(|_| step(&mut one_by_one, &mut rng)).collect();
                assert_eq!(said, expected, "{context}");
                assert_eq!(shown(&singly).difference(&shown(&store)), None, "{context}");
            }
            check(&world);
            if rng.percent(15) {
                for world in [&world, &model] {
                    world.tree.snapshot(MAIN, &format!("s{group}")).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_failed_call_leaves_nothing_and_the_rest_goes_on() {
    let world = World::new();
    let store = world.main();
    let dir = store.mkdir(Ino::ROOT, name("dir"), &new(0o755)).unwrap().ino;
    let f = store.create(dir, name("f"), &new(0o644)).unwrap().0.ino;
    store
        .transact(&mut |t| {
            t.write(f, 0, &[1; 10_000])?;
            assert_eq!(t.create(dir, name("f"), &new(0o644)).unwrap_err().kind(), ErrorKind::Exists);
            assert_eq!(t.rmdir(Ino::ROOT, name("dir")).unwrap_err().kind(), ErrorKind::NotEmpty);
            assert_eq!(t.write(f, u64::MAX - 1, b"far").unwrap_err().kind(), ErrorKind::FileTooLarge);
            assert_eq!(t.write(f, 0, &vec![0; (1 << 20) + 1]).unwrap_err().kind(), ErrorKind::InvalidInput);
            assert_eq!(t.write(dir, 0, b"x").unwrap_err().kind(), ErrorKind::IsDirectory);
            assert_eq!(t.setattr(dir, &size(5)).unwrap_err().kind(), ErrorKind::IsDirectory);
            // Fails half way: the ACL says nothing that can be read.
            let acl = t.set_xattr(f, XattrName::ACL_ACCESS, b"nonsense", XattrSet::Either);
            assert_eq!(acl.unwrap_err().kind(), ErrorKind::NotSupported);
            t.write(f, 9000, &[2; 10])
        })
        .unwrap();
    assert_eq!(content(&store, f), [&[1; 9000][..], &[2; 10], &[1; 990]].concat());
    assert_eq!(store.getattr(Ino::ROOT).unwrap().nlink, 3);
    check(&world);
}

#[test]
fn too_much_is_refused_and_leaves_nothing() {
    let world = World::new();
    let store = world.main();
    let before = world.base.state().map;
    let result = store.transact(&mut |t| {
        let ino = t.create(Ino::ROOT, name("f"), &new(0o644))?.ino;
        t.write(ino, 0, &[1; 50_000])?;
        for i in 0..5000 {
            t.create(Ino::ROOT, name(&format!("a rather long name {i}")), &new(0o644))?;
        }
        Ok(())
    });
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("in several"), "{error}");
    assert!(world.base.state().map == before);
    check(&world);
    // Some hundred names are no problem.
    store
        .transact(&mut |t| {
            (0..400).try_for_each(|i| t.create(Ino::ROOT, name(&format!("f{i}")), &new(0o644)).map(drop))
        })
        .unwrap();
    assert_eq!(store.getattr(Ino::ROOT).unwrap().size, 400);
    // And what could never be applied ends early.
    let result = store.transact(&mut |t| {
        for i in 0.. {
            t.create(Ino::ROOT, name(&format!("g{i}")), &new(0o644))?;
        }
        Ok(())
    });
    assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(store.getattr(Ino::ROOT).unwrap().size, 400);
    check(&world);
}

#[test]
fn nothing_is_known_by_a_transaction_that_failed() {
    let world = World::new();
    let store = world.main();
    let ino = store.create(Ino::ROOT, name("f"), &new(0o644)).unwrap().0.ino;
    store.forget(ino);
    store.transact(&mut |t| t.lookup(Ino::ROOT, name("f")).and(Err(ErrorKind::Interrupted.into()))).unwrap_err();
    store.unlink(Ino::ROOT, name("f")).unwrap();
    assert_eq!(store.getattr(ino).unwrap_err().kind(), ErrorKind::Stale);
    // Known by one that did not, until it is forgotten.
    let ino = store.create(Ino::ROOT, name("g"), &new(0o644)).unwrap().0.ino;
    store.forget(ino);
    store.transact(&mut |t| t.lookup(Ino::ROOT, name("g")).map(drop)).unwrap();
    store.unlink(Ino::ROOT, name("g")).unwrap();
    assert_eq!(store.getattr(ino).unwrap().nlink, 0);
    store.forget(ino);
    assert_eq!(store.getattr(ino).unwrap_err().kind(), ErrorKind::Stale);
    // An open file outlives its name.
    let (attr, file) = store.create(Ino::ROOT, name("h"), &new(0o644)).unwrap();
    file.write_at(&[(0, &[7; 9000])]).unwrap();
    store.forget(attr.ino);
    store.transact(&mut |t| t.unlink(Ino::ROOT, name("h"))).unwrap();
    let mut buf = [0; 9000];
    assert_eq!(file.read_at(0, &mut buf).unwrap(), 9000);
    assert_eq!(buf, [7; 9000]);
    check(&world);
    drop(file);
    assert_eq!(world.base.state().allocated.len(), 0);
    check(&world);
}

/// A file of so many windows, each with a few bytes.
fn sparse(store: &VolumeStore, at: &str, windows: u64) -> Ino {
    let (attr, file) = store.create(Ino::ROOT, name(at), &new(0o644)).unwrap();
    for at in 0..windows {
        file.write_at(&[(at * MIB + 100, b"old")]).unwrap();
    }
    attr.ino
}

#[test]
fn a_long_cut_begins_with_the_transaction_and_shows_nothing_old() {
    let world = World::new();
    let store = world.main();
    for (at, windows) in [("few", 5), ("some", 100), ("many", 1300)] {
        let ino = sparse(&store, at, windows);
        store
            .transact(&mut |t| {
                t.setattr(ino, &size(MIB + 50))?;
                assert_eq!(t.getattr(ino)?.size, MIB + 50);
                Ok(())
            })
            .unwrap();
        check(&world);
        assert_eq!(store.getattr(ino).unwrap().blocks, 16, "{at}");
        store.open(ino, Access::Write).unwrap().set_len(4 * MIB).unwrap();
        let bytes = content(&store, ino);
        assert_eq!(&bytes[100..103], b"old");
        assert!(bytes[103..].iter().all(|&byte| byte == 0), "{at}");
        check(&world);
    }
    // More than one batch could take away, cut and written by the same one.
    let ino = sparse(&store, "most", 8000);
    store
        .transact(&mut |t| {
            t.setattr(ino, &size(0))?;
            t.write(ino, 0, b"new")
        })
        .unwrap();
    assert_eq!((content(&store, ino), store.getattr(ino).unwrap().blocks), (b"new".to_vec(), 8));
    check(&world);
    // So far apart that a part of it has to go before.
    let ino = sparse(&store, "both", 700);
    store
        .transact(&mut |t| {
            t.setattr(ino, &size(10))?;
            t.write(ino, 600 * MIB, b"new")
        })
        .unwrap();
    let file = store.open(ino, Access::Read).unwrap();
    assert_eq!(file.seek_data(1).unwrap(), 1);
    assert_eq!(file.seek_data(4096).unwrap(), 600 * MIB);
    let mut buf = [1; 200];
    file.read_at(300 * MIB, &mut buf).unwrap();
    assert_eq!(buf, [0; 200]);
    check(&world);
}

#[test]
fn what_is_written_to_a_cut_file_shows_nothing_old() {
    let world = World::new();
    // Written and made longer by the transaction that cuts it, in several ways.
    let cases: [(u64, &[(u64, bool)]); 5] = [
        (0, &[(0, true)]),
        (0, &[(MIB - 3, true)]),
        (10, &[(3 * MIB, true), (5 * MIB, false)]),
        (2 * MIB + 1, &[(2 * MIB, true), (2 * MIB + 9, false), (50 * MIB, true)]),
        (45 * MIB, &[(7, true), (MIB, false), (40 * MIB, false), (39 * MIB, true)]),
    ];
    let store = world.main();
    for (i, (len, then)) in cases.into_iter().enumerate() {
        let ino = sparse(&store, &format!("f{i}"), 60);
        let file = store.open(ino, Access::Write).unwrap();
        let mut all = content(&store, ino);
        all.truncate(len as usize);
        store
            .transact(&mut |t| {
                t.setattr(ino, &size(len))?;
                for &(at, is_write) in then {
                    let at_least = all.len().max(at as usize + 3);
                    if is_write {
                        t.write(ino, at, b"new")?;
                        all.resize(at_least, 0);
                        all[at as usize..at as usize + 3].copy_from_slice(b"new");
                    } else {
                        t.setattr(ino, &size(at))?;
                        all.resize(at as usize, 0);
                    }
                }
                assert_eq!(t.getattr(ino)?.size, all.len() as u64);
                Ok(())
            })
            .unwrap();
        check(&world);
        assert!(content(&store, ino) == all, "case {i}");
        file.set_len(60 * MIB).unwrap();
        all.resize(60 << 20, 0);
        assert!(content(&store, ino) == all, "case {i}");
        check(&world);
    }
}

#[test]
fn what_an_interrupted_cut_left_is_dropped_by_who_writes() {
    for write_len in [3, 9000] {
        let world = World::new();
        let media = Failing::new(world.base.clone(), usize::MAX);
        let store = VolumeStore::open(&media.tree(), Source::Branch(MAIN.to_owned())).unwrap();
        let ino = sparse(&store, "f", 1300);
        // The cut itself, and none of the batches after it.
        media.set_left(1);
        store.transact(&mut |t| t.setattr(ino, &size(2 * MIB)).map(drop)).unwrap();
        assert!(store.getattr(ino).unwrap().blocks > 1000);
        media.set_left(usize::MAX);
        check(&world);
        let bytes = vec![7; write_len];
        store.transact(&mut |t| t.write(ino, MIB, &bytes)).unwrap();
        let blocks = 8 * (1 + write_len.div_ceil(4096) as u64);
        assert_eq!(store.getattr(ino).unwrap().blocks, blocks, "nothing is left of it");
        store.open(ino, Access::Write).unwrap().set_len(1300 * MIB).unwrap();
        let file = store.open(ino, Access::Read).unwrap();
        assert_eq!(file.seek_data(2 * MIB).unwrap_err().kind(), ErrorKind::NoData);
        check(&world);
    }
}

#[test]
fn a_full_volume_takes_what_makes_room() {
    let world = World::with(1000, 64);
    let store = world.main();
    let ino = store.create(Ino::ROOT, name("f"), &new(0o644)).unwrap().0.ino;
    let file = store.open(ino, Access::Write).unwrap();
    let full = (0..1000_u64).find_map(|at| file.write_at(&[(at << 12, &[2; 4096])]).err()).unwrap();
    assert_eq!(full.kind(), ErrorKind::NoSpace);
    let result = store.transact(&mut |t| {
        t.create(Ino::ROOT, name("g"), &new(0o644))?;
        t.write(ino, 0, &[0; 8192])
    });
    assert_eq!(result.unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(store.lookup(Ino::ROOT, name("g")).unwrap_err().kind(), ErrorKind::NotFound);
    store.transact(&mut |t| t.setattr(ino, &size(5000)).map(drop)).unwrap();
    check(&world);
    file.write_at(&[(0, &[3; 100_000])]).unwrap();
    check(&world);
}

/// Transactions, each of several kinds of changes.
fn story(store: &VolumeStore) -> Result<()> {
    let (a, b) = (store.lookup(Ino::ROOT, name("a"))?.ino, store.lookup(Ino::ROOT, name("b"))?.ino);
    store.transact(&mut |t| {
        t.write(a, 3000, &[1; 9000])?;
        t.write(a, 5000, &[2; 3000])?;
        t.write(b, 0, b"b")?;
        t.rename(Ino::ROOT, name("a"), Ino::ROOT, name("c"), RenameFlags::empty())?;
        t.symlink(Ino::ROOT, name("a"), b"c", own_caller()).map(drop)
    })?;
    store.transact(&mut |t| {
        t.setattr(b, &size(MIB))?;
        t.unlink(Ino::ROOT, name("c"))?;
        t.unlink(Ino::ROOT, name("a"))?;
        let dir = t.mkdir(Ino::ROOT, name("dir"), &new(0o700))?.ino;
        t.link(b, dir, name("b"))?;
        t.create(dir, name("new"), &new(0o600)).map(drop)
    })?;
    store.forget(a);
    store.transact(&mut |t| {
        let dir = t.lookup(Ino::ROOT, name("dir"))?.ino;
        t.rename(dir, name("new"), Ino::ROOT, name("b"), RenameFlags::EXCHANGE)?;
        t.write(b, 4 * MIB, b"end")
    })
}

#[test]
fn every_batch_leaves_all_of_a_transaction_or_nothing() {
    let start = {
        let world = World::new();
        let store = world.main();
        sparse(&store, "a", 3);
        sparse(&store, "b", 700);
        world.base.state()
    };
    let mut seen: Vec<Snapshot> = Vec::new();
    for batches in 0.. {
        let world = World::new();
        world.base.restore(start.clone());
        let world = world.reopen();
        let failing = Failing::new(world.base.clone(), usize::MAX);
        let tree = failing.tree();
        let store = VolumeStore::open(&tree, Source::Branch(MAIN.to_owned())).unwrap();
        failing.set_left(batches);
        let result = story(&store);
        drop((store, tree));
        assert_eq!(world.base.state().reserved.len(), 0, "what was written for one that failed is given back");
        let after = world.reopen();
        check(&after);
        let store = after.main();
        check(&after);
        let now = shown(&store);
        if seen.last().is_none_or(|last| last.difference(&now).is_some()) {
            seen.push(now);
        }
        if result.is_ok() {
            assert!(batches > 4, "{batches}");
            break;
        }
    }
    assert_eq!(seen.len(), 4, "one state for each of three transactions, and the first");
}

fn create(world: &CrashWorld) {
    let base = Base::create(base::file(world), "volume", &base::small(), base::options()).unwrap();
    Tree::format(&base, own_caller(), 0o755).unwrap();
    base.close().unwrap();
    world.settle();
}

fn tree_of(base: &Arc<Base>) -> Result<Arc<Tree>> {
    let hash = NameHash::new(base.info().secret);
    Ok(Arc::new(Tree::open(base.clone(), base.clone(), hash)?))
}

fn main_of(tree: &Arc<Tree>) -> Result<VolumeStore> {
    VolumeStore::open(tree, Source::Branch(MAIN.to_owned()))
}

#[derive(Default)]
struct Told {
    /// The tree at first and after each transaction.
    trees: Vec<Snapshot>,
    acknowledged: usize,
    synced: usize,
}

fn run(world: &CrashWorld, seed: u64) -> Told {
    let mut told = Told::default();
    let model = World::new();
    let expected = model.main();
    told.trees.push(shown(&expected));
    let Ok(base) = Base::open(base::file(world), "volume", base::options()) else { return told };
    let base = Arc::new(base);
    let Ok(tree) = tree_of(&base) else { return told };
    let Ok(store) = main_of(&tree) else { return told };
    let mut rng = Rng::new(seed);
    for _ in 0..12 {
        let (steps, steps_seed) = (2 + rng.below(9), rng.below(u64::MAX));
        let run = |t: &mut dyn Transaction| -> Vec<String> {
            let mut rng = Rng::new(steps_seed);
            (0..steps).map(|_| step(t, &mut rng)).collect()
        };
        let said = run(&mut Singly(&expected));
        told.trees.push(shown(&expected));
        // A call that fails because the world ended ends the transaction.
        let alike = |now: Vec<String>| if now == said { Ok(()) } else { Err(ErrorKind::Io.into()) };
        if store.transact(&mut |t| alike(run(t))).is_err() {
            return told;
        }
        told.acknowledged += 1;
        if rng.percent(30) && base.sync().is_ok() {
            told.synced = told.acknowledged;
        }
    }
    told
}

#[test]
fn a_crash_leaves_whole_transactions() {
    for seed in seeds(1) {
        for mode in [Mode::Kill, Mode::Adversarial] {
            let mut rng = Rng::new(seed);
            let world = CrashWorld::new(mode);
            create(&world);
            let plan = CrashPlan { points_max: scaled(40), randoms: 1 };
            crash_everywhere(
                &world,
                &plan,
                &mut rng,
                |world| run(world, seed),
                |told, point, left| {
                    let least = if mode == Mode::Kill { told.acknowledged } else { told.synced };
                    let base = Arc::new(Base::open(base::file(&left), "volume", base::options()).unwrap());
                    let tree = tree_of(&base).unwrap();
                    let now = shown(&main_of(&tree).unwrap());
                    let at: Vec<usize> = (0..told.trees.len()).filter(|&k| told.trees[k] == now).collect();
                    let context = format!("{mode:?}, {point:?}, ADIT_TEST_SEED={seed}");
                    assert!(at.iter().any(|&k| k >= least), "{context}: after {at:?} transactions, of {least}");
                    let report = tree.verify().unwrap();
                    assert_eq!(report.problems, [""; 0], "{context}");
                    let used: Vec<u64> = base.allocated().iter().flat_map(Run::blocks).collect();
                    assert_eq!(report.blocks.into_iter().collect::<Vec<_>>(), used, "{context}");
                },
            );
        }
    }
}

/// Two files of which transactions make the same, while others write, cut and read them and change names.
#[test]
fn transactions_and_ordinary_calls_at_once() {
    const LEN: usize = 6 * 4096 + 100;
    let world = World::with(2000, 64);
    let tree = Yielding::tree(&world.base);
    let store = VolumeStore::open(&tree, Source::Branch(MAIN.to_owned())).unwrap();
    let pair = ["a", "b"].map(|at| store.create(Ino::ROOT, name(at), &new(0o644)).unwrap());
    let scratch = store.create(Ino::ROOT, name("scratch"), &new(0o644)).unwrap();
    let rounds = 60 * scaled(1).min(20) as u64;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (store, tree, done, pair, scratch) = (&store, &tree, &done, &pair, &scratch);
        let both = move || {
            for i in 0..rounds {
                store
                    .transact(&mut |t| {
                        for (attr, _) in pair {
                            if i % 3 == 0 {
                                t.setattr(attr.ino, &size(0))?;
                            }
                            t.write(attr.ino, 0, &vec![i as u8; LEN])?;
                            t.setattr(attr.ino, &size(LEN as u64))?;
                        }
                        // A quarter of a block of a file that others write in as well.
                        t.write(scratch.0.ino, 0, &[i as u8; 1024])?;
                        let made = format!("t{i}");
                        t.create(Ino::ROOT, name(&made), &new(0o644))?;
                        if i > 0 { t.unlink(Ino::ROOT, name(&format!("t{}", i - 1))) } else { Ok(()) }
                    })
                    .unwrap();
                let mut buf = [0; 1024];
                scratch.1.read_at(0, &mut buf).unwrap();
                assert_eq!(buf, [i as u8; 1024], "own writes stay");
            }
        };
        let writer = move |at: u64| {
            for i in 0..4 * rounds {
                scratch.1.write_at(&[(at * 1024, &[i as u8; 1024])]).unwrap();
                let mut buf = [0; 1024];
                scratch.1.read_at(at * 1024, &mut buf).unwrap();
                assert_eq!(buf, [i as u8; 1024], "own writes stay");
            }
        };
        let changers = [scope.spawn(both), scope.spawn(move || writer(1)), scope.spawn(move || writer(2))];
        for (_, file) in pair {
            scope.spawn(move || {
                while !done.load(Relaxed) {
                    let mut buf = vec![0; LEN];
                    let len = file.read_at(0, &mut buf).unwrap();
                    assert!(len == 0 || len == LEN, "whole or not at all: {len}");
                    assert!(buf.iter().all(|byte| *byte == buf[0]));
                }
            });
        }
        scope.spawn(move || {
            for i in 0.. {
                if done.load(Relaxed) {
                    break;
                }
                let at = format!("s{i}");
                tree.snapshot(MAIN, &at).unwrap();
                let old = VolumeStore::open(tree, Source::Snapshot(tree.find_snapshot(&at).unwrap())).unwrap();
                let [a, b] = pair.each_ref().map(|(attr, _)| content(&old, attr.ino));
                assert!(a == b, "a snapshot has whole transactions");
                drop(old);
                tree.delete_snapshot(&at).unwrap();
                tree.collect().unwrap();
                store.sync_all().unwrap();
            }
        });
        let results = changers.map(|thread| thread.join());
        done.store(true, Relaxed);
        assert!(results.iter().all(|result| result.is_ok()));
    });
    let report = tree.verify().unwrap();
    assert_eq!(report.problems, [""; 0]);
    assert_eq!(report.blocks, world.base.state().allocated);
}

#[test]
fn only_what_can_be_changed_takes_one() {
    let world = World::new();
    world.tree.snapshot(MAIN, "s").unwrap();
    let source = Source::Snapshot(world.tree.find_snapshot("s").unwrap());
    let store = VolumeStore::open(&world.tree, source).unwrap();
    assert_eq!(store.transact(&mut |_| Ok(())).unwrap_err().kind(), ErrorKind::ReadOnly);
}
