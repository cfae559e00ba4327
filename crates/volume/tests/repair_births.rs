//! Blocks that seem younger than they are: a branch would free them when it overwrites them, whoever else has them.

#[path = "support/faults.rs"]
mod faults;
#[path = "support/plant.rs"]
mod plant;
#[path = "support/tree.rs"]
mod support;

use std::collections::BTreeMap;

use adit_core::store::Store;
use adit_core::types::{Access, Ino, Kind, SetAttr};
use adit_testkit::{Rng, seeds};
use adit_volume::format::keys::{self, Id, Key, space};
use adit_volume::format::records::{self, Block, Window};
use adit_volume::table::BLOCK_LEN_BYTES;
use adit_volume::tree::MAIN;
use adit_volume::{Source, VolumeStore};

use faults::{MEMORY, assert_sound, world};
use plant::{Planter, checked, lines, shown};
use support::{World, hash, name, new};

/// What is shown at each path.
type Shown = BTreeMap<String, (Kind, u64, String)>;

fn planter<'w>(world: &'w World, ids: &[Id]) -> Planter<'w> {
    Planter { table: &*world.base, hash: hash(64), ids: ids.to_vec() }
}

fn shown_in(world: &World, snapshot: &str) -> Shown {
    let id = world.tree.find_snapshot(snapshot).unwrap();
    shown(&VolumeStore::open(&world.tree, Source::Snapshot(id)).unwrap())
}

/// Writes over all of a file, and cuts it.
fn change(store: &VolumeStore, ino: u64, with: u8) {
    let file = store.open(Ino(ino), Access::Write).unwrap();
    let len = store.getattr(Ino(ino)).unwrap().size as usize;
    file.write_at(&[(0, &vec![with; len])]).unwrap();
    store.setattr(Ino(ino), &SetAttr { size: Some(len as u64 / 2), ..SetAttr::default() }).unwrap();
}

#[test]
fn a_branch_does_not_take_the_blocks_of_a_snapshot_for_its_own() {
    let (world, inodes) = world();
    let with = inodes["/with"];
    world.tree.snapshot(MAIN, "s").unwrap();
    let before = shown_in(&world, "s");
    // Of three blocks the branch has one of its own.
    world.main().open(Ino(with), Access::Write).unwrap().write_at(&[(0, b"new")]).unwrap();
    planter(&world, &[4, 2, 1]).bear(with, 0, 4);
    let world = world.reopen();
    let now = shown(&world.main());
    let found = checked(&world.tree, &*world.base, false, MEMORY).unwrap();
    let words = format!("block-birth: /with in main: inode {with} has 2 blocks from byte 4096 on");
    let told = lines(&found.problems);
    assert!(told.len() == 1 && told[0].starts_with(&words), "{told:?}");
    assert!(found.problems[0].is_repairable);
    let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
    assert_eq!((lines(&mended.problems), mended.repaired.len()), (vec![], 1));
    assert_sound(&world, "births in a branch");
    assert_eq!((shown(&world.main()), shown_in(&world, "s")), (now, before.clone()));
    change(&world.main(), with, 9);
    assert_sound(&world, "after a change");
    assert_eq!(shown_in(&world, "s"), before);
}

#[test]
fn a_branch_does_not_free_what_a_snapshot_says_that_the_branch_made() {
    let (world, inodes) = world();
    let with = inodes["/with"];
    world.tree.snapshot(MAIN, "s").unwrap();
    world.tree.branch("s", "b").unwrap();
    let before = shown_in(&world, "s");
    // The branch has no version of its own: it would have this one, and its first change, of which the second frees a part.
    planter(&world, &[2, 1]).bear(with, 0, 4);
    let world = world.reopen();
    let found = checked(&world.tree, &*world.base, false, MEMORY).unwrap();
    let parts: Vec<_> = found.problems.iter().map(|p| (p.part.as_deref().unwrap(), p.is_repairable)).collect();
    assert_eq!(parts, [("s", false), ("main", true), ("b", true)], "{:?}", lines(&found.problems));
    let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
    let told = lines(&mended.problems);
    assert!(told.len() == 1 && told[0].starts_with("block-birth: /with in s: "), "{told:?}");
    assert!(told[0].contains("delete it, or make a branch of it"), "{told:?}");
    assert_eq!(mended.repaired.len(), 2, "{:?}", lines(&mended.repaired));
    for (branch, with_byte) in [(MAIN, 7), ("b", 8), (MAIN, 9)] {
        let store = world.branch(branch);
        store.open(Ino(with), Access::Write).unwrap().write_at(&[(4096, &[with_byte])]).unwrap();
        assert_eq!(shown_in(&world, "s"), before, "{branch}");
    }
    change(&world.main(), with, 9);
    assert_eq!(shown_in(&world, "s"), before);
    world.tree.delete_snapshot("s").unwrap();
    let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
    assert_eq!(lines(&mended.problems), [""; 0]);
    assert_sound(&world, "without the snapshot");
}

#[test]
fn what_a_chain_has_may_be_born_below_it() {
    let (world, inodes) = world();
    world.tree.snapshot(MAIN, "s").unwrap();
    world.tree.snapshot(MAIN, "t").unwrap();
    for snapshot in ["t", "s", "before"] {
        world.tree.delete_snapshot(snapshot).unwrap();
        world.tree.collect().unwrap();
    }
    change(&world.main(), inodes["/with"], 3);
    let (id, value) = planter(&world, &[5, 4, 2, 1]).found(&Key::window(inodes["/with"], 0)).unwrap();
    let births: Vec<Id> = Window::decode(&value).unwrap().iter().map(|(_, block)| block.birth).collect();
    assert!(births.iter().all(|birth| *birth > id), "{id}: {births:?}");
    assert_sound(&world, "a chain");
    // But not below its end.
    planter(&world, &[5, 4, 2, 1]).bear(inodes["/with"], 0, 6);
    let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
    assert_eq!((lines(&mended.problems), mended.repaired.len()), (vec![], 1));
    assert_sound(&world, "a mended chain");
}

/// Snapshots and branches of some files, of which each wrote a part.
fn grow(rng: &mut Rng) -> (World, Vec<u64>) {
    let world = World::new();
    let store = world.main();
    let mut files = Vec::new();
    for n in 0..4 {
        let (attr, file) = store.create(Ino::ROOT, name(&format!("f{n}")), &new(0o644)).unwrap();
        file.write_at(&[(0, &vec![n; 8 * BLOCK_LEN_BYTES])]).unwrap();
        files.push(attr.ino.0);
    }
    drop(store);
    for round in 0..8 {
        let named = |is_branch: bool| {
            let all = world.tree.snapshots().into_iter().filter(move |info| info.is_branch == is_branch);
            all.map(|info| info.name).collect::<Vec<_>>()
        };
        let branch = rng.pick(&named(true)).clone();
        let store = world.branch(&branch);
        for _ in 0..rng.below(4) {
            let file = store.open(Ino(*rng.pick(&files)), Access::Write).unwrap();
            let at = rng.below(8) * BLOCK_LEN_BYTES as u64;
            file.write_at(&[(at, &vec![rng.below(250) as u8; BLOCK_LEN_BYTES])]).unwrap();
        }
        drop(store);
        world.tree.snapshot(&branch, &format!("s{round}")).unwrap();
        if rng.percent(40) {
            world.tree.branch(rng.pick::<String>(&named(false)), &format!("b{round}")).unwrap();
        }
        if rng.percent(40) {
            world.tree.delete_snapshot(rng.pick::<String>(&named(false))).unwrap();
        }
        if rng.percent(50) {
            world.tree.collect().unwrap();
        }
    }
    assert_eq!(lines(&checked(&world.tree, &*world.base, false, MEMORY).unwrap().problems), [""; 0]);
    (world, files)
}

/// Gives blocks of random versions random births.
fn plant_births(world: &World, rng: &mut Rng) {
    let map = world.base.state().map;
    let windows: Vec<_> =
        map.iter().filter(|(key, value)| key[0] == space::WINDOW && !records::is_tombstone(value)).collect();
    let ids = 4 + map.keys().filter_map(|key| keys::parse_snapshot(key)).max().unwrap_or(0);
    for _ in 0..1 + rng.below(12) {
        let (key, _) = *rng.pick(&windows);
        // It may have been changed before.
        let value = adit_volume::Table::get(&*world.base, key).unwrap().unwrap();
        let mut window = Window::decode(&value).unwrap();
        let birth = 1 + rng.below(u64::from(ids)) as Id;
        let blocks: Vec<(usize, Block)> = window.iter().collect();
        for (at, block) in blocks {
            if rng.percent(70) {
                window.set(at, Some(Block { birth, ..block }));
            }
        }
        planter(world, &[1]).apply(vec![(key.clone(), Some(window.encode()))]);
    }
}

#[test]
fn random_births_are_mended_so_that_no_change_takes_what_others_have() {
    for seed in seeds(60) {
        let mut rng = Rng::new(seed);
        let what = format!("ADIT_TEST_SEED={seed}");
        let (world, files) = grow(&mut rng);
        plant_births(&world, &mut rng);
        let world = world.reopen();
        let infos = world.tree.snapshots();
        let named = |is_branch: bool| infos.iter().filter(move |i| i.is_branch == is_branch).map(|i| i.name.as_str());
        let snapshots = || named(false).map(|name| (name, shown_in(&world, name))).collect::<Vec<_>>();
        let branches = || named(true).map(|name| (name, shown(&world.branch(name)))).collect::<Vec<_>>();
        let before = (snapshots(), branches());
        let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
        for problem in &mended.problems {
            let is_frozen = named(false).any(|name| problem.part.as_deref() == Some(name));
            assert!(is_frozen && problem.kind.as_str() == "block-birth", "{:?} {what}", lines(&mended.problems));
        }
        assert!((snapshots(), branches()) == before, "{what}");
        // The media of the tests tell if a block is freed that is free already.
        for round in 0..2 {
            for branch in named(true) {
                let store = world.branch(branch);
                for &ino in &files {
                    if rng.percent(70) {
                        let file = store.open(Ino(ino), Access::Write).unwrap();
                        file.write_at(&[(rng.below(4) * BLOCK_LEN_BYTES as u64, &[round; BLOCK_LEN_BYTES])]).unwrap();
                    }
                }
                drop(store);
                assert!(snapshots() == before.0, "{branch}: {what}");
            }
            files.iter().for_each(|ino| change(&world.main(), *ino, round));
            assert!(snapshots() == before.0, "{what}");
        }
        for info in &infos {
            match info.is_branch {
                true if info.name == MAIN => {}
                true => world.tree.delete_branch(&info.name).unwrap(),
                false => world.tree.delete_snapshot(&info.name).unwrap(),
            }
        }
        let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
        assert_eq!(lines(&mended.problems), [""; 0], "{what}");
        assert_sound(&world, &what);
    }
}
