//! The tree on the real base: random operations against the model, and crashes at every call of the file. What is left is the
//! tree after some number of operations, at least as many as were synced (power cut) or acknowledged (kill); it keeps its
//! rules, and the blocks in use are those that it refers to.

#[path = "support/mod.rs"]
mod base;

use std::sync::Arc;

use adit_testkit::crash::{CrashPlan, CrashWorld, Mode, crash_everywhere};
use adit_testkit::model::{Limits, MemoryStore};
use adit_testkit::ops::{Mismatch, Op, Plan, Snapshot, StoreSubject, Subject, check_store, fuzz, generate};
use adit_testkit::{Rng, own_caller, seeds};
use adit_volume::format::keys::NameHash;
use adit_volume::tree::MAIN;
use adit_volume::{Base, Run, Source, Table, Tree, VolumeStore};

use base::{Data, create_in, open_in, options};

fn limits() -> Limits {
    Limits { unit_len_bytes: 3000, buffer_writes: false, reserves: false, whiteouts: true, ..Limits::default() }
}

fn create(world: &CrashWorld, data: Data) {
    let base = create_in(world, data, options()).unwrap();
    Tree::format(&base, own_caller(), 0o755).unwrap();
    base.close().unwrap();
    world.settle();
}

/// The tree of an open base.
fn tree_of(base: &Arc<Base>) -> adit_core::Result<Arc<Tree>> {
    let hash = NameHash::new(base.info().secret);
    Ok(Arc::new(Tree::open(base.clone(), base.clone(), hash)?))
}

fn main_of(tree: &Arc<Tree>) -> adit_core::Result<VolumeStore> {
    VolumeStore::open(tree, Source::Branch(MAIN.to_owned()))
}

#[test]
fn random_operations_do_what_the_model_does() {
    let plan = Plan { seeds: 6, ops: 250, limits: limits() };
    fuzz(&plan, |ops| [Data::Inline, Data::Folder].into_iter().try_for_each(|data| do_as_the_model(ops, data)));
}

fn do_as_the_model(ops: &[Op], data: Data) -> Result<(), Mismatch> {
    let world = CrashWorld::new(Mode::Kill);
    create(&world, data);
    let base = Arc::new(open_in(&world, options()).unwrap());
    let tree = tree_of(&base).unwrap();
    let result = check_store(&main_of(&tree).unwrap(), ops, &limits());
    let report = tree.verify().unwrap();
    assert_eq!(report.problems, [""; 0]);
    let used: Vec<u64> = base.allocated().iter().flat_map(Run::blocks).collect();
    assert_eq!(report.blocks.into_iter().collect::<Vec<_>>(), used);
    result
}

/// What a run was told.
struct Told {
    /// The tree at first and after each operation.
    trees: Vec<Snapshot>,
    acknowledged: usize,
    synced: usize,
    /// Snapshots that were made: the name, and which of the trees it is.
    snapshots: Vec<(String, usize)>,
}

fn run(world: &CrashWorld, ops: &[Op]) -> Told {
    let model = MemoryStore::new(limits());
    let mut expected = StoreSubject::new(&model);
    let first = expected.snapshot().unwrap();
    let mut told = Told { trees: vec![first], acknowledged: 0, synced: 0, snapshots: Vec::new() };
    let Ok(base) = open_in(world, options()) else { return told };
    let base = Arc::new(base);
    let Ok(tree) = tree_of(&base) else { return told };
    let Ok(store) = main_of(&tree) else { return told };
    let mut subject = StoreSubject::new(&store);
    for (i, op) in ops.iter().enumerate() {
        let outcome = expected.run(op);
        told.trees.push(expected.snapshot().unwrap());
        if subject.run(op) != outcome {
            // The world ended, or soon will: a difference without a crash is found by the tests without one.
            break;
        }
        told.acknowledged += 1;
        if matches!(op, Op::Sync(..) | Op::SyncDir(_) | Op::SyncAll) && outcome == adit_testkit::ops::Outcome::Done {
            told.synced = told.acknowledged;
        }
        let name = format!("s{i}");
        let made = match i % 8 {
            3 => tree.snapshot(MAIN, &name).map(|_| told.snapshots.push((name, told.acknowledged))),
            7 => told.snapshots.pop().map_or(Ok(()), |(name, _)| tree.delete_snapshot(&name)),
            _ if i % 3 == 0 => tree.collect_some().map(drop),
            _ => Ok(()),
        };
        if made.is_err() {
            break;
        }
    }
    drop(subject);
    drop(store);
    drop(tree);
    if base.sync().is_ok() {
        told.synced = told.acknowledged;
    }
    told
}

fn shown(tree: &Arc<Tree>, source: Source) -> Result<Snapshot, String> {
    let store = VolumeStore::open(tree, source).map_err(|e| format!("cannot be mounted: {e}"))?;
    StoreSubject::new(&store).snapshot()
}

/// What is left after a crash.
fn check(world: &CrashWorld, told: &Told, least: usize) -> Result<(), String> {
    let base = Arc::new(open_in(world, options()).map_err(|e| format!("cannot be opened: {e}"))?);
    let tree = tree_of(&base).map_err(|e| format!("has no tree: {e}"))?;
    let sound = || {
        let report = tree.verify().map_err(|e| e.to_string())?;
        let used: Vec<u64> = base.allocated().iter().flat_map(Run::blocks).collect();
        match report.blocks.into_iter().eq(used) {
            _ if !report.problems.is_empty() => Err(report.problems.join("; ")),
            true => Ok(()),
            false => Err("space does not add up".to_owned()),
        }
    };
    sound()?;
    let now = shown(&tree, Source::Branch(MAIN.to_owned()))?;
    let places: Vec<usize> = (0..told.trees.len()).filter(|&k| told.trees[k] == now).collect();
    if !places.iter().any(|&k| k >= least) {
        return Err(format!("it is the tree after {places:?} operations, at least {least} were due"));
    }
    for (name, at) in &told.snapshots {
        let Ok(id) = tree.find_snapshot(name) else { continue };
        if let Some(difference) = told.trees[*at].difference(&shown(&tree, Source::Snapshot(id))?) {
            return Err(format!("snapshot {name}: {difference}"));
        }
    }
    tree.collect().map_err(|e| e.to_string())?;
    sound()
}

#[test]
fn a_crash_leaves_the_tree_after_some_operation() {
    for seed in seeds(1) {
        let modes = [Mode::Kill, Mode::Journalled, Mode::Adversarial];
        for (mode, data) in modes.into_iter().flat_map(|mode| [(mode, Data::Inline), (mode, Data::Folder)]) {
            let mut rng = Rng::new(seed);
            let world = CrashWorld::new(mode);
            create(&world, data);
            let ops = generate(seed, 60, &limits());
            let plan = CrashPlan { points_max: 60, randoms: 2 };
            crash_everywhere(
                &world,
                &plan,
                &mut rng,
                |world| run(world, &ops),
                |told, point, left| {
                    let least = if mode == Mode::Kill { told.acknowledged } else { told.synced };
                    if let Err(e) = check(&left, told, least) {
                        panic!("{mode:?}, {data:?}, {point:?}: {e}. ADIT_TEST_SEED={seed}");
                    }
                },
            );
        }
    }
}
