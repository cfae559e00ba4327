//! Snapshots and branches, at random: each stays what the model was, whatever is changed, deleted or restored elsewhere; and
//! after every step the tree keeps its rules and the space adds up.

#[path = "support/between.rs"]
mod forgotten;
#[path = "support/tree.rs"]
mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use adit_core::ErrorKind;
use adit_core::store::Store;
use adit_core::types::{Access, Ino, Kind, RenameFlags};
use adit_testkit::model::{Limits, MemoryStore};
use adit_testkit::ops::{Found, Op, Outcome, Seen, Shown, Snapshot, StoreSubject, Subject, generate};
use adit_testkit::{Rng, seeds};
use adit_volume::tree::{Difference, Differing, MAIN};
use adit_volume::{Source, VolumeStore};

use support::{Failing, ReadOnly, World, name, new};

fn limits() -> Limits {
    Limits { unit_len_bytes: 3000, buffer_writes: false, reserves: false, whiteouts: true, ..Limits::default() }
}

fn agree(expected: &Outcome, got: &Outcome) -> bool {
    expected == got || matches!((expected, got), (Outcome::Failed(_), Outcome::Failed(_)))
}

/// A history: the operations that lead to a tree, and the tree.
#[derive(Clone, Default)]
struct Saved {
    ops: Vec<Op>,
    tree: Snapshot,
}

struct Run {
    world: World,
    rng: Rng,
    branches: BTreeMap<String, Saved>,
    snapshots: BTreeMap<String, Saved>,
    count: usize,
}

impl Run {
    fn new(seed: u64, hash_bits: u32) -> Run {
        let branches = BTreeMap::from([(MAIN.to_owned(), Saved::default())]);
        let world = World::with(support::BLOCKS, hash_bits);
        Run { world, rng: Rng::new(seed), branches, snapshots: BTreeMap::new(), count: 0 }
    }

    fn pick(&mut self, of_branches: bool) -> Option<String> {
        let names: Vec<_> = if of_branches { self.branches.keys() } else { self.snapshots.keys() }.cloned().collect();
        (!names.is_empty()).then(|| self.rng.pick(&names).clone())
    }

    /// Operations on a branch, with snapshots made in between, also while files are open that have no name any more.
    fn work(&mut self) {
        let branch = self.pick(true).unwrap();
        let store = self.world.branch(&branch);
        let model = MemoryStore::new(limits());
        let (mut subject, mut expected) = (StoreSubject::new(&store), StoreSubject::new(&model));
        let mut done = self.branches[&branch].ops.clone();
        for op in &done {
            expected.run(op);
        }
        // What was open is closed in the branch.
        for slot in 0..5 {
            expected.run(&Op::Close(slot));
        }
        done.extend((0..5).map(Op::Close));
        for op in generate(self.rng.next_u64(), 40, &limits()) {
            let (a, b) = (expected.run(&op), subject.run(&op));
            assert!(agree(&a, &b), "{op:?} on {branch}: got {b:?}, expected {a:?}");
            done.push(op);
            if self.rng.percent(4) {
                self.count += 1;
                let name = format!("s{}", self.count);
                self.world.tree.snapshot(&branch, &name).unwrap();
                let tree = expected.snapshot().unwrap();
                self.snapshots.insert(name, Saved { ops: done.clone(), tree });
            }
            if self.rng.percent(10) {
                self.world.tree.collect_some().unwrap();
            }
        }
        let tree = expected.snapshot().unwrap();
        drop(subject);
        self.branches.insert(branch, Saved { ops: done, tree });
    }

    fn structure(&mut self) {
        let tree = self.world.tree.clone();
        match self.rng.below(12) {
            0..3 => {
                let Some(from) = self.pick(false) else { return };
                self.count += 1;
                let name = format!("b{}", self.count);
                tree.branch(&from, &name).unwrap();
                self.branches.insert(name, self.snapshots[&from].clone());
            }
            3..7 => {
                let Some(name) = self.pick(false) else { return };
                tree.delete_snapshot(&name).unwrap();
                self.snapshots.remove(&name);
            }
            7..8 => {
                let Some(name) = self.pick(true).filter(|name| name != MAIN) else { return };
                tree.delete_branch(&name).unwrap();
                self.branches.remove(&name);
            }
            8..10 => {
                let (Some(branch), Some(from)) = (self.pick(true), self.pick(false)) else { return };
                tree.restore(&branch, &from, Default::default()).unwrap();
                self.branches.insert(branch, self.snapshots[&from].clone());
            }
            10 => tree.collect().unwrap(),
            _ => {
                drop(tree);
                let empty = World::with(16, 64);
                self.world = std::mem::replace(&mut self.world, empty).reopen();
            }
        }
    }

    fn check(&mut self, whole: bool) {
        let report = self.world.tree.verify().unwrap();
        assert_eq!(report.problems, [""; 0]);
        let state = self.world.base.state();
        assert_eq!(report.blocks, state.allocated, "blocks in use are those that something refers to");
        assert_eq!(state.reserved.len(), 0);
        if !whole {
            return;
        }
        let shows = |source: Source, saved: &Saved| {
            let store = VolumeStore::open(&self.world.tree, source.clone()).unwrap();
            let got = StoreSubject::new(&store).snapshot().unwrap();
            assert_eq!(saved.tree.difference(&got), None, "{source:?}");
        };
        for (name, saved) in &self.branches {
            shows(Source::Branch(name.clone()), saved);
        }
        for (name, saved) in &self.snapshots {
            shows(Source::Snapshot(self.world.tree.find_snapshot(name).unwrap()), saved);
        }
    }

    /// What the diff of two snapshots tells is what happened between them.
    fn diff(&mut self) {
        let (Some(a), Some(b)) = (self.pick(false), self.pick(false)) else { return };
        let told = self.world.tree.diff(&a, &b).unwrap();
        let differences = check_diff(&self.snapshots[&a].tree, &self.snapshots[&b].tree, &told);
        assert_eq!(differences, [""; 0], "from {a} to {b}: {told:?}");
    }

    /// A path of a branch that is set back, in a branch of its own.
    fn restore_path(&mut self) {
        let (Some(a), Some(b)) = (self.pick(false), self.pick(false)) else { return };
        let places = self.snapshots[&a].tree.0.keys().chain(self.snapshots[&b].tree.0.keys());
        let places: Vec<Shown> = places.cloned().collect();
        if places.is_empty() {
            return;
        }
        let place = self.rng.pick(&places).clone();
        let tree = &self.world.tree;
        tree.branch(&a, "trial").unwrap();
        let (from, to) = (&self.snapshots[&b].tree.0, &self.snapshots[&a].tree.0);
        let path: Vec<&[u8]> = place.0.iter().map(|name| &name[..]).collect();
        let parent = Shown(place.0[..place.0.len() - 1].to_vec());
        let parent_there =
            parent.0.is_empty() || to.get(&parent).is_some_and(|found| found.seen.kind == Kind::Directory);
        let before = forgotten::Seen::of(&self.world.branch("trial"));
        let told = tree.between("trial", &b, &path);
        let result = tree.restore_path("trial", &b, &path, Default::default());
        let mut expected = to.clone();
        if parent_there {
            expected.retain(|at, _| !at.0.starts_with(&place.0));
            expected.extend(
                from.iter().filter(|(at, _)| at.0.starts_with(&place.0)).map(|(at, s)| (at.clone(), s.clone())),
            );
            let restored = result.unwrap();
            for ino in restored.gone {
                tree.reap(&Source::Branch("trial".into()), ino.0).unwrap();
            }
        } else {
            assert!(result.is_err());
        }
        let store = VolumeStore::open(tree, Source::Branch("trial".into())).unwrap();
        let mut got = StoreSubject::new(&store).snapshot().unwrap();
        if parent_there {
            let untold = before.untold(&forgotten::Seen::of(&store), &told.unwrap());
            assert_eq!(untold, [""; 0], "when {place:?} of {a} is set back to {b}");
        }
        drop(store);
        for found in expected.values_mut().chain(got.0.values_mut()) {
            found.seen.nlink = 0;
        }
        assert_eq!(Snapshot(expected).difference(&got), None, "{place:?} of {a} as in {b}");
        let report = tree.verify().unwrap();
        assert_eq!(report.problems, [""; 0], "after {place:?} of {a} was restored as in {b}");
        tree.delete_branch("trial").unwrap();
    }

    /// Deletes all, and nothing is left.
    fn clear(mut self) {
        let tree = self.world.tree.clone();
        let mut names: Vec<(bool, String)> = self.snapshots.keys().map(|name| (false, name.clone())).collect();
        names.extend(self.branches.keys().filter(|name| *name != MAIN).map(|name| (true, name.clone())));
        while !names.is_empty() {
            let (is_branch, name) = names.swap_remove(self.rng.below(names.len() as u64) as usize);
            if is_branch {
                tree.delete_branch(&name).unwrap()
            } else {
                tree.delete_snapshot(&name).unwrap()
            }
            if self.rng.percent(50) {
                tree.collect_some().unwrap();
            }
        }
        tree.collect().unwrap();
        assert_eq!(tree.verify().unwrap().problems, [""; 0]);
        let store = self.world.main();
        empty(&store, adit_core::types::Ino::ROOT);
        drop(store);
        self.check(false);
        let state = self.world.base.state();
        assert_eq!(state.allocated.len(), 0);
        let of_root = |key: &Vec<u8>| matches!(key[0], b'I' | b'X') && key[1..9] == [0, 0, 0, 0, 0, 0, 0, 1];
        let left: Vec<_> = state.map.keys().filter(|key| !matches!(key[0], b'S' | b'M') && !of_root(key)).collect();
        assert!(left.is_empty(), "only the root is left: {left:?}");
    }
}

fn empty(store: &VolumeStore, dir: adit_core::types::Ino) {
    use adit_core::store::Store;
    let mut entries = Vec::new();
    store
        .read_dir(dir, 0, &mut |e| {
            entries.push((e.ino, e.kind, e.name.as_bytes().to_vec()));
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    for (ino, kind, name) in entries {
        let name = adit_core::types::FileName::new(&name).unwrap();
        if kind == Kind::Directory {
            empty(store, ino);
            store.rmdir(dir, name).unwrap();
        } else {
            store.unlink(dir, name).unwrap();
        }
    }
}

#[test]
fn snapshots_and_branches_keep_what_they_were() {
    for seed in seeds(25) {
        let on_panic = Named(seed);
        let mut run = Run::new(seed, if seed % 2 == 0 { 64 } else { 1 });
        for step in 0..24 {
            run.work();
            run.check(false);
            run.structure();
            run.diff();
            run.restore_path();
            run.check(step % 4 == 3);
        }
        run.check(true);
        run.clear();
        drop(on_panic);
    }
}

/// What the told differences leave open, or say too much.
fn check_diff(old: &Snapshot, new: &Snapshot, told: &[Difference]) -> Vec<String> {
    let place = |path: &[u8]| Shown(path.split(|&b| b == b'/').skip(1).map(<[u8]>::to_vec).collect());
    let told: Vec<(Shown, &Differing)> = told.iter().map(|d| (place(&d.path), &d.what)).collect();
    let is = |at: &Shown, what: &Differing| told.iter().any(|(place, w)| place == at && *w == what);
    let mut wrong = Vec::new();
    let mut origins: BTreeMap<Shown, Option<Shown>> = BTreeMap::from([(Shown::default(), Some(Shown::default()))]);
    for (at, found) in &new.0 {
        let parent = &origins[&Shown(at.0[..at.0.len() - 1].to_vec())];
        let renamed = told.iter().find_map(|(place, what)| match what {
            Differing::Renamed(from) if place == at => Some(from),
            _ => None,
        });
        let origin = match (renamed, parent) {
            (Some(from), _) => Some(place(from)),
            (None, _) if is(at, &Differing::Added) => None,
            (None, None) => {
                wrong.push(format!("{at:?} is in something new and not told"));
                None
            }
            (None, Some(parent)) => Some(Shown(parent.0.iter().chain(at.0.last()).cloned().collect())),
        };
        if let Some(origin) = &origin {
            let but_links = |f: &Found| Found { seen: Seen { nlink: 0, ..f.seen }, ..f.clone() };
            let same = |before: &Found| but_links(before) == but_links(found);
            match old.0.get(origin) {
                None => wrong.push(format!("{at:?} was not there, at {origin:?}")),
                Some(before) if !same(before) && !is(at, &Differing::Changed) => {
                    wrong.push(format!("{at:?} is not told as changed"));
                }
                _ => {}
            }
        }
        origins.insert(at.clone(), origin);
    }
    let kept: Vec<&Shown> = origins.values().flatten().collect();
    for at in old.0.keys() {
        let above = |at: &Shown| (1..=at.0.len()).any(|n| is(&Shown(at.0[..n].to_vec()), &Differing::Removed));
        if !kept.contains(&at) && !above(at) {
            wrong.push(format!("{at:?} is not told as removed"));
        }
        if kept.contains(&at) && is(at, &Differing::Removed) && !new.0.contains_key(at) {
            wrong.push(format!("{at:?} is told as removed and kept"));
        }
    }
    wrong
}

/// Says which seed it was.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("ADIT_TEST_SEED={}", self.0);
        }
    }
}

#[test]
fn a_path_is_restored_however_deep_it_goes() {
    const DEPTH: usize = 5000;
    let world = World::new();
    let store = world.main();
    let top = store.mkdir(Ino::ROOT, name("top"), &new(0o755)).unwrap().ino;
    let mut dir = top;
    for _ in 0..DEPTH {
        dir = store.mkdir(dir, name("d"), &new(0o755)).unwrap().ino;
    }
    store.create(dir, name("f"), &new(0o644)).unwrap().1.write_at(&[(0, b"deep")]).unwrap();
    world.tree.snapshot(MAIN, "s").unwrap();
    let found = |store: &VolumeStore| {
        let mut dir = store.lookup(Ino::ROOT, name("top")).unwrap().ino;
        for _ in 0..DEPTH {
            dir = store.lookup(dir, name("d")).unwrap().ino;
        }
        let ino = store.lookup(dir, name("f")).unwrap().ino;
        let mut buf = [0; 10];
        let len = store.open(ino, Access::Read).unwrap().read_at(0, &mut buf).unwrap();
        buf[..len].to_vec()
    };
    // What is there is removed as deeply.
    store.create(dir, name("g"), &new(0o644)).unwrap();
    let f = store.lookup(dir, name("f")).unwrap().ino;
    store.open(f, Access::Write).unwrap().write_at(&[(0, b"other")]).unwrap();
    store.restore_path("s", &[b"top"], Default::default()).unwrap();
    assert_eq!(found(&store), b"deep");
    // And put back where nothing is.
    store.rename(Ino::ROOT, name("top"), Ino::ROOT, name("moved"), RenameFlags::empty()).unwrap();
    store.restore_path("s", &[b"top"], Default::default()).unwrap();
    assert_eq!(found(&store), b"deep");
    world.tree.collect().unwrap();
    assert_eq!(world.tree.verify().unwrap().problems, [""; 0]);
}

#[test]
fn what_is_opened_to_read_is_left_as_a_crash_left_it() {
    let world = World::new();
    let store = world.main();
    let dir = store.mkdir(Ino::ROOT, name("dir"), &new(0o755)).unwrap().ino;
    for i in 0..20 {
        let file = store.create(dir, name(&format!("f{i}")), &new(0o644)).unwrap().1;
        file.write_at(&[(0, &[i; 9000])]).unwrap();
    }
    world.tree.snapshot(MAIN, "s").unwrap();
    for i in 0..20 {
        store.unlink(dir, name(&format!("f{i}"))).unwrap();
    }
    let expected = StoreSubject::new(&store).snapshot().unwrap();
    drop(store);
    let before = world.base.state();
    let mut crashed = 0;
    for batches in 1..40 {
        let world = World::new();
        world.base.restore(before.clone());
        let failing = Failing::new(world.base.clone(), usize::MAX);
        let tree = failing.tree();
        failing.set_left(batches);
        if tree.restore_path(MAIN, "s", &[b"dir"], Default::default()).is_ok() {
            break;
        }
        crashed += 1;
        drop(tree);
        let left = world.base.state().map;
        let tree = ReadOnly::tree(&world.base);
        let store = VolumeStore::open_to_read(&tree, Source::Branch(MAIN.to_owned())).unwrap();
        assert_eq!(expected.difference(&StoreSubject::new(&store).snapshot().unwrap()), None, "{batches}");
        assert_eq!(tree.verify().unwrap().problems, [""; 0], "{batches}");
        assert_eq!(tree.diff("s", MAIN).unwrap().len(), 20, "{batches}");
        assert!(world.base.state().map == left, "{batches}: it was written to");
    }
    assert!(crashed > 10, "{crashed}");
}

#[test]
fn comparing_keeps_nobody_waiting_and_its_snapshots() {
    const FILES: usize = 600;
    let world = World::new();
    let store = world.main();
    let inos: Vec<Ino> =
        (0..FILES).map(|i| store.create(Ino::ROOT, name(&format!("f{i}")), &new(0o644)).unwrap().0.ino).collect();
    store.link(inos[0], Ino::ROOT, name("second")).unwrap();
    world.tree.snapshot(MAIN, "s").unwrap();
    for i in 0..FILES {
        let to = format!("g{}", (i + 7) % FILES);
        store.rename(Ino::ROOT, name(&format!("f{i}")), Ino::ROOT, name(&to), RenameFlags::empty()).unwrap();
    }
    world.tree.snapshot(MAIN, "t").unwrap();
    let renamed = |told: &[Difference]| told.iter().filter(|d| matches!(d.what, Differing::Renamed(_))).count();
    assert_eq!(renamed(&world.tree.diff("s", "t").unwrap()), FILES);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (tree, store, done) = (&world.tree, &store, &done);
        let compares = scope.spawn(move || {
            for _ in 0..3 {
                assert_eq!(renamed(&tree.diff("s", "t").unwrap()), FILES);
                tree.diff("s", MAIN).unwrap();
            }
        });
        scope.spawn(move || {
            // Not for ever: each one stays a link of the chain.
            for i in 0..100 {
                if done.load(Relaxed) {
                    break;
                }
                let (at, made) = (format!("u{i}"), format!("new{i}"));
                store.create(Ino::ROOT, name(&made), &new(0o644)).unwrap();
                tree.snapshot(MAIN, &at).unwrap();
                if let Err(e) = tree.delete_snapshot(&at) {
                    // The branch was compared when it became this snapshot.
                    assert_eq!(e.kind(), ErrorKind::Busy);
                }
            }
        });
        let result = compares.join();
        done.store(true, Relaxed);
        result.unwrap();
    });
    world.tree.delete_snapshot("s").unwrap();
    world.tree.collect().unwrap();
    assert_eq!(world.tree.verify().unwrap().problems, [""; 0]);
}

/// Blocks that belong to files.
fn blocks(world: &World) -> usize {
    let report = world.tree.verify().unwrap();
    assert_eq!(report.problems, [""; 0]);
    assert_eq!(report.blocks, world.base.state().allocated);
    report.blocks.len()
}

fn put(store: &VolumeStore, at: &str, count: usize) {
    let ino = match store.lookup(Ino::ROOT, name(at)) {
        Ok(attr) => attr.ino,
        Err(_) => store.create(Ino::ROOT, name(at), &new(0o644)).unwrap().0.ino,
    };
    store.open(ino, Access::Write).unwrap().write_at(&[(0, &vec![7; count * 4096])]).unwrap();
}

fn remove(store: &VolumeStore, at: &str) {
    let ino = store.lookup(Ino::ROOT, name(at)).unwrap().ino;
    store.unlink(Ino::ROOT, name(at)).unwrap();
    store.forget(ino);
}

#[test]
fn what_a_deleted_base_held_and_no_branch_sees_comes_back() {
    let world = World::new();
    let main = world.main();
    put(&main, "removed in both", 600);
    put(&main, "removed in one", 30);
    put(&main, "replaced in both", 10);
    put(&main, "kept", 1);
    world.tree.snapshot(MAIN, "base").unwrap();
    let branches = ["b", "c"].map(|at| {
        world.tree.branch("base", at).unwrap();
        world.branch(at)
    });
    remove(&branches[0], "removed in one");
    for store in branches.iter().chain([&main]) {
        remove(store, "removed in both");
        put(store, "replaced in both", 10);
    }
    world.tree.collect().unwrap();
    assert_eq!(blocks(&world), 600 + 30 + 4 * 10 + 1, "the base is there");
    world.tree.delete_snapshot("base").unwrap();
    drop((main, branches));
    // The opening goes on with it.
    let world = world.reopen();
    world.tree.collect().unwrap();
    assert_eq!(blocks(&world), 30 + 3 * 10 + 1);
    // What is hidden later goes once it is looked for.
    for at in [MAIN, "c"] {
        remove(&world.branch(at), "removed in one");
    }
    world.tree.note_forks();
    world.tree.collect().unwrap();
    assert_eq!(blocks(&world), 3 * 10 + 1);
    // Tombstones went with what they hid.
    for at in [MAIN, "b", "c"] {
        let store = world.branch(at);
        put(&store, "removed in both", 2);
        assert!(
            store.lookup(Ino::ROOT, name("kept")).is_ok() && store.lookup(Ino::ROOT, name("removed in one")).is_err()
        );
    }
    assert_eq!(blocks(&world), 3 * 10 + 1 + 3 * 2);
}

#[test]
fn a_fork_below_a_fork_hides_only_with_all_its_branches() {
    let world = World::new();
    let main = world.main();
    put(&main, "f", 50);
    world.tree.snapshot(MAIN, "base").unwrap();
    world.tree.branch("base", "b").unwrap();
    let b = world.branch("b");
    put(&b, "of b", 1);
    world.tree.snapshot("b", "second").unwrap();
    world.tree.branch("second", "c").unwrap();
    let c = world.branch("c");
    for at in ["base", "second"] {
        world.tree.delete_snapshot(at).unwrap();
    }
    for (store, left) in [(&main, 51), (&b, 51), (&c, 1)] {
        remove(store, "f");
        world.tree.note_forks();
        world.tree.collect().unwrap();
        assert_eq!(blocks(&world), left);
    }
    drop(b);
    world.tree.delete_branch("b").unwrap();
    world.tree.collect().unwrap();
    assert_eq!(blocks(&world), 1);
}
