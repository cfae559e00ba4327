//! Random operations on overlays, compared with the naive model: over an empty lower, and over one of each kind that holds a
//! random tree. The overlay is opened anew every now and then, and every number stays what it was.

mod overlay;

use std::sync::Arc;

use adit_core::store::Store;
use adit_testkit::model::MemoryStore;
use adit_testkit::ops::{Mismatch, Op, Plan, fuzz};
use overlay::volume::World;
use overlay::{fill, limits, memory, over, run, snapshot_of};

/// Half of the operations make the lower, the others change what is shown of it.
fn check(
    ops: &[Op],
    unit: u32,
    fill_lower: impl Fn(&MemoryStore, &[Op]) -> Result<Arc<dyn Store>, Mismatch>,
) -> Result<(), Mismatch> {
    let model = MemoryStore::new(limits(unit));
    let half = ops.len() / 2;
    let lower = fill_lower(&model, &ops[..half])?;
    let upper = World::new();
    run(&|| over(&lower, &upper), &model, (half, &ops[half..]), 60)?;
    let report = upper.tree.verify().unwrap();
    if report.problems.is_empty() {
        Ok(())
    } else {
        Err(Mismatch { step: ops.len(), what: report.problems.join("; ") })
    }
}

#[test]
fn over_an_empty_lower() {
    for unit in [700, 4096, 32 << 10] {
        let plan = Plan { seeds: 4, ops: 300, limits: limits(unit) };
        fuzz(&plan, |ops| {
            let model = MemoryStore::new(plan.limits);
            let (lower, upper): (Arc<dyn Store>, _) = (Arc::new(memory()), World::new());
            run(&|| over(&lower, &upper), &model, (0, ops), 80)
        });
    }
}

#[test]
fn over_a_snapshot() {
    for unit in [700, 4096, 32 << 10] {
        let plan = Plan { seeds: 10, ops: 500, limits: limits(unit) };
        fuzz(&plan, |ops| {
            let world = World::new();
            check(ops, unit, |model, ops| {
                fill(&world.main(), model, ops)?;
                Ok(snapshot_of(&world))
            })
        });
    }
}

/// A lower that knows an inode only as long as it was not forgotten, and is listed whole.
#[test]
fn over_a_strict_store() {
    for unit in [1000, 9000] {
        let plan = Plan { seeds: 8, ops: 400, limits: limits(unit) };
        fuzz(&plan, |ops| {
            let lower = memory();
            let result = check(ops, unit, |model, ops| {
                fill(&lower, model, ops)?;
                Ok(Arc::new(lower.clone()))
            });
            result?;
            let left = (lower.known_count(), lower.open_count(), lower.stray_forgets());
            if left == (0, 0, 0) {
                return Ok(());
            }
            Err(Mismatch { step: ops.len(), what: format!("known, open, forgotten twice of the lower: {left:?}") })
        });
    }
}
