//! An overlay whose upper lies on the real base, with crashes at every call of the file: what is left is the tree after some
//! number of operations, at least as many as were synced (power cut) or acknowledged (kill), with the same numbers.

#[path = "support/mod.rs"]
mod base;
mod overlay;

use std::sync::Arc;

use adit_core::overlay::Overlay;
use adit_core::store::Store;
use adit_testkit::crash::{CrashPlan, CrashWorld, Mode, crash_everywhere};
use adit_testkit::model::MemoryStore;
use adit_testkit::ops::{Op, Outcome, Snapshot, StoreSubject, Subject, generate};
use adit_testkit::{Rng, own_caller, scaled, seeds};
use adit_volume::format::keys::NameHash;
use adit_volume::tree::MAIN;
use adit_volume::{Base, Run, Source, Table, Tree, VolumeStore};

use base::{file, options, small};
use overlay::volume::World;
use overlay::{fill, identity, limits, snapshot_of};

const UNIT: u32 = 3000;

fn create(world: &CrashWorld) {
    let base = Base::create(file(world), "volume", &small(), options()).unwrap();
    Tree::format(&base, own_caller(), 0o755).unwrap();
    base.close().unwrap();
    world.settle();
}

fn opened(world: &CrashWorld, lower: &Arc<dyn Store>) -> adit_core::Result<(Arc<Base>, Arc<Tree>, Overlay)> {
    let base = Arc::new(Base::open(file(world), "volume", options())?);
    let tree = Arc::new(Tree::open(base.clone(), base.clone(), NameHash::new(base.info().secret))?);
    let upper = VolumeStore::open(&tree, Source::Branch(MAIN.to_owned()))?;
    let overlay = Overlay::open(lower.clone(), Arc::new(upper), &identity("the lower"))?;
    Ok((base, tree, overlay))
}

/// What a run was told.
struct Told {
    /// The tree at first and after each operation.
    trees: Vec<Snapshot>,
    acknowledged: usize,
    synced: usize,
}

fn run(world: &CrashWorld, lower: &Arc<dyn Store>, below: &[Op], ops: &[Op]) -> Told {
    let model = MemoryStore::new(limits(UNIT));
    fill(&MemoryStore::new(limits(UNIT)), &model, below).unwrap();
    let mut expected = StoreSubject::new(&model);
    let mut told = Told { trees: vec![expected.snapshot().unwrap()], acknowledged: 0, synced: 0 };
    let Ok((base, tree, overlay)) = opened(world, lower) else { return told };
    let mut subject = StoreSubject::new(&overlay);
    for op in ops {
        let outcome = expected.run(op);
        told.trees.push(expected.snapshot().unwrap());
        if subject.run(op) != outcome {
            // The world ended, or soon will: a difference without a crash is found by the tests without one.
            break;
        }
        told.acknowledged += 1;
        // A sync of one file says nothing of the others: it may be one that is only in the lower.
        if matches!(op, Op::SyncAll) && outcome == Outcome::Done {
            told.synced = told.acknowledged;
        }
    }
    drop(subject);
    drop(overlay);
    drop(tree);
    if base.sync().is_ok() {
        told.synced = told.acknowledged;
    }
    told
}

/// What is left after a crash.
fn check(world: &CrashWorld, lower: &Arc<dyn Store>, told: &Told, least: usize) -> Result<(), String> {
    let (base, tree, overlay) = opened(world, lower).map_err(|e| format!("cannot be opened: {e}"))?;
    let now = StoreSubject::new(&overlay).snapshot()?;
    let places: Vec<usize> = (0..told.trees.len()).filter(|&k| told.trees[k] == now).collect();
    if !places.iter().any(|&k| k >= least) {
        let nearest = told.trees[least..].iter().filter_map(|tree| tree.difference(&now)).next();
        return Err(format!(
            "it is the tree after {places:?} operations, at least {least} of {} were due: {nearest:?}",
            told.trees.len() - 1
        ));
    }
    overlay::numbers_of(&overlay)?;
    overlay.changes(&mut |_| {}).map_err(|e| format!("its changes cannot be told: {e}"))?;
    drop(overlay);
    let report = tree.verify().map_err(|e| e.to_string())?;
    let used: Vec<u64> = base.allocated().iter().flat_map(Run::blocks).collect();
    match report.blocks.into_iter().eq(used) {
        _ if !report.problems.is_empty() => Err(report.problems.join("; ")),
        true => Ok(()),
        false => Err("space does not add up".to_owned()),
    }
}

#[test]
fn a_crash_leaves_the_tree_after_some_operation() {
    for seed in seeds(1) {
        let ops = generate(seed, 120, &limits(UNIT));
        let (below, ops) = ops.split_at(70);
        let world = World::new();
        fill(&world.main(), &MemoryStore::new(limits(UNIT)), below).unwrap();
        let lower = snapshot_of(&world);
        for mode in [Mode::Kill, Mode::Journalled, Mode::Adversarial] {
            let mut rng = Rng::new(seed);
            let world = CrashWorld::new(mode);
            create(&world);
            let plan = CrashPlan { points_max: scaled(60), randoms: 2 };
            crash_everywhere(
                &world,
                &plan,
                &mut rng,
                |world| run(world, &lower, below, ops),
                |told, point, left| {
                    let least = if mode == Mode::Kill { told.acknowledged } else { told.synced };
                    if let Err(e) = check(&left, &lower, told, least) {
                        panic!("{mode:?}, {point:?}: {e}. ADIT_TEST_SEED={seed}");
                    }
                },
            );
        }
    }
}
