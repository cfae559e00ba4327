//! Damaged records keep out who needs them, and nobody else; and what a failure left half done is done later.

#[path = "support/tree.rs"]
mod support;

use adit_core::ErrorKind;
use adit_core::store::Store;
use adit_core::types::{Access, Ino};
use adit_volume::format::keys::{self, Key};
use adit_volume::format::records::{Snapshot, State};
use adit_volume::tree::MAIN;
use adit_volume::{Source, Tree, VolumeStore};

use support::{Failing, World, name, new};

fn file(store: &VolumeStore, at: &str, content: &[u8]) -> Ino {
    let (attr, file) = store.create(Ino::ROOT, name(at), &new(0o644)).unwrap();
    file.write_at(&[(0, content)]).unwrap();
    attr.ino
}

fn content(store: &VolumeStore, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0; store.getattr(ino).unwrap().size as usize];
    assert_eq!(store.open(ino, Access::Read).unwrap().read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Cuts all values whose keys begin so.
fn damage(world: &World, prefix: &[u8]) {
    let mut state = world.base.state();
    let mut count = 0;
    for (_, value) in state.map.iter_mut().filter(|(key, _)| key.starts_with(prefix)) {
        *value = value[..value.len() - 1].into();
        count += 1;
    }
    assert!(count > 0);
    world.base.restore(state);
}

#[test]
fn a_damaged_orphan_does_not_keep_the_branch_shut() {
    let world = World::new();
    let store = world.main();
    let inos = ["a", "b", "c"].map(|at| file(&store, at, &[1; 10_000]));
    let kept = file(&store, "kept", b"kept");
    for at in ["a", "b", "c"] {
        store.unlink(Ino::ROOT, name(at)).unwrap();
    }
    drop(store);
    damage(&world, Key::inode(inos[0].0).as_bytes());
    damage(&world, Key::window(inos[1].0, 0).as_bytes());
    let world = world.reopen();
    let store = world.main();
    assert_eq!(content(&store, kept), b"kept");
    let left = world.base.state().map.keys().filter(|key| key[0] == keys::space::ORPHAN).count();
    assert_eq!(left, 1, "the others went");
}

#[test]
fn a_damaged_window_does_not_stop_collecting() {
    let world = World::new();
    let store = world.main();
    let ino = file(&store, "f", &[1; 10_000]);
    world.tree.snapshot(MAIN, "s").unwrap();
    for at in ["b", "c"] {
        world.tree.branch("s", at).unwrap();
        world.branch(at).open(ino, Access::Write).unwrap().write_at(&[(0, &[2; 20_000])]).unwrap();
    }
    let used = world.base.state().allocated.len();
    damage(&world, &Key::window(ino.0, 0).at(world.tree.snapshots()[2].id));
    for at in ["b", "c"] {
        world.tree.delete_branch(at).unwrap();
    }
    world.tree.collect().unwrap();
    assert!(world.tree.is_collected());
    assert_eq!(world.tree.verify().unwrap().problems, [""; 0]);
    assert_eq!(content(&store, ino), [1; 10_000]);
    let now = world.base.state().allocated.len();
    assert!(now < used && now >= 3, "{now} of {used}: the blocks of the damaged one stay");
}

/// A world whose restore of a path failed, and could not clean up. Its branch `b` has a staging child.
fn half_restored() -> (World, Ino) {
    let world = World::new();
    let store = world.main();
    let ino = file(&store, "f", &[1; 10_000]);
    file(&store, "g", &[1; 10_000]);
    world.tree.snapshot(MAIN, "s").unwrap();
    world.tree.branch("s", "b").unwrap();
    let branch = world.branch("b");
    branch.open(ino, Access::Write).unwrap().write_at(&[(0, &[2; 10_000])]).unwrap();
    drop((store, branch));
    (world, ino)
}

#[test]
fn a_restore_that_could_not_clean_up_is_in_nobodys_way() {
    for then in 0..4 {
        for batches in 1..4 {
            let (world, ino) = half_restored();
            let failing = Failing::new(world.base.clone(), usize::MAX);
            let tree = failing.tree();
            failing.set_left(batches);
            tree.restore_path("b", "s", &[b"f"], Default::default()).unwrap_err();
            failing.set_left(usize::MAX);
            match then {
                0 => tree.delete_branch("b").unwrap(),
                1 => drop(tree.restore("b", "s", Default::default()).unwrap()),
                2 => drop(tree.restore_path("b", "s", &[b"f"], Default::default()).unwrap()),
                _ => {
                    let branch = VolumeStore::open(&tree, Source::Branch("b".to_owned())).unwrap();
                    branch.open(ino, Access::Write).unwrap().write_at(&[(5000, &[3; 10_000])]).unwrap();
                    tree.snapshot("b", "t").unwrap();
                    branch.open(ino, Access::Write).unwrap().set_len(0).unwrap();
                    tree.delete_snapshot("t").unwrap();
                }
            }
            tree.collect().unwrap();
            drop(tree);
            let world = world.reopen();
            let report = world.tree.verify().unwrap();
            assert_eq!(report.problems, [""; 0], "{then} after {batches}");
            assert_eq!(report.blocks, world.base.state().allocated, "{then} after {batches}");
        }
    }
}

#[test]
fn a_damaged_rest_of_a_restore_does_not_keep_the_volume_shut() {
    let (world, ino) = half_restored();
    let failing = Failing::new(world.base.clone(), usize::MAX);
    let tree = failing.tree();
    failing.set_left(2);
    tree.restore_path("b", "s", &[b"f"], Default::default()).unwrap_err();
    drop(tree);
    let mut state = world.base.state();
    let staging = state.map.keys().rev().find(|key| key[0] == keys::space::SNAPSHOT).unwrap();
    let staging = keys::parse_snapshot(&staging.clone()).unwrap();
    state.map.insert([&keys::touched_start(staging)[..], b"?"].concat(), b"t\x01"[..].into());
    world.base.restore(state);
    let world = world.reopen();
    let branch = world.branch("b");
    branch.open(ino, Access::Write).unwrap().write_at(&[(0, &[4; 5000])]).unwrap();
    assert_eq!(world.tree.collect().unwrap_err().kind(), ErrorKind::Corrupt);
    world.tree.collect().unwrap();
    let expected = [&[4; 5000][..], &[2; 5000]].concat();
    assert_eq!(content(&branch, ino), expected);
    assert_eq!(content(&world.main(), ino), [1; 10_000]);
    drop(branch);
    assert_eq!(world.tree.delete_branch("b").unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_restore_leaves_open_files_without_names_alone() {
    let world = World::new();
    let store = world.main();
    let ino = file(&store, "f", &[1; 10_000]);
    let open = store.open(ino, Access::Write).unwrap();
    store.unlink(Ino::ROOT, name("f")).unwrap();
    world.tree.snapshot(MAIN, "s").unwrap();
    world.tree.restore(MAIN, "s", Default::default()).unwrap();
    world.tree.reap_unused().unwrap();
    assert_eq!(open.read_at(0, &mut [0; 10_000]).unwrap(), 10_000);
    drop(open);
    store.forget(ino);
    drop(store);
    let store = world.main();
    assert_eq!(store.getattr(ino).unwrap_err().kind(), ErrorKind::Stale);
}

#[test]
fn ids_that_contradict_each_other_are_damage() {
    let opens = |changes: &dyn Fn(u32, &mut Snapshot)| {
        let (world, _) = half_restored();
        let mut state = world.base.state();
        for (key, value) in state.map.iter_mut().filter(|(key, _)| key[0] == keys::space::SNAPSHOT) {
            let mut record = Snapshot::decode(value).unwrap();
            changes(keys::parse_snapshot(key).unwrap(), &mut record);
            *value = record.encode().into();
        }
        world.base.restore(state);
        let base = std::sync::Arc::new(world.base.reopen());
        Tree::open(base.clone(), base, support::hash(64)).map(drop).map_err(|e| e.kind())
    };
    // 1 is the snapshot, with the branches 2 and 3 below it.
    assert_eq!(opens(&|_, _| {}), Ok(()));
    for state in [State::Staging, State::Dropping, State::Merging, State::Live] {
        let change = |id: u32, record: &mut Snapshot| {
            if id == 1 {
                record.state = state;
            }
        };
        assert_eq!(opens(&change), Err(ErrorKind::Corrupt), "{state:?} with children");
    }
    let childless = |id: u32, record: &mut Snapshot| {
        if id == 3 {
            record.state = State::Merging;
        }
    };
    assert_eq!(opens(&childless), Err(ErrorKind::Corrupt));
}

#[test]
fn a_lookup_that_fails_forgets_nothing() {
    let world = World::new();
    let store = world.main();
    let ino = file(&store, "f", &[1; 10_000]);
    let key = Key::inode(ino.0).at(1);
    let mut whole = world.base.state();
    let mut damaged = whole.clone();
    let value = damaged.map.get_mut(&key).unwrap();
    *value = value[..5].into();
    world.base.restore(damaged);
    assert_eq!(store.lookup(Ino::ROOT, name("f")).unwrap_err().kind(), ErrorKind::Corrupt);
    whole.reserved.clear();
    world.base.restore(whole);
    // Whoever made it still knows it.
    store.unlink(Ino::ROOT, name("f")).unwrap();
    assert_eq!(store.getattr(ino).unwrap().nlink, 0);
    store.forget(ino);
    assert_eq!(store.getattr(ino).unwrap_err().kind(), ErrorKind::Stale);
}

#[test]
fn numbers_beyond_all_sense_are_damage() {
    let world = World::new();
    let store = world.main();
    let ino = file(&store, "f", &[1; 10_000]);
    let mut state = world.base.state();
    let window = state.map[&Key::window(ino.0, 0).at(1)].clone();
    state.map.insert(Key::window(ino.0, u64::MAX - 1).at(1), window);
    world.base.restore(state);
    let open = store.open(ino, Access::Write).unwrap();
    assert_eq!(open.seek_data(0).unwrap(), 0);
    open.write_at(&[(1 << 21, b"far")]).unwrap();
    assert_eq!(open.seek_hole(1 << 21).unwrap(), (1 << 21) + 3);
    assert_eq!(open.set_len(5).unwrap_err().kind(), ErrorKind::Corrupt);
    drop((open, store));
    let mut state = world.base.state();
    let counter = adit_volume::format::records::encode_meta(u64::MAX - 3);
    state.map.insert(keys::meta("next-ino"), counter.into());
    world.base.restore(state);
    let base = std::sync::Arc::new(world.base.reopen());
    let error = Tree::open(base.clone(), base, support::hash(64)).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}
