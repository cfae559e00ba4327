//! Random operations on a branch, compared with the naive model: with names that collide, and opened anew every now and then.

#[path = "support/tree.rs"]
mod support;

use adit_testkit::model::Limits;
use adit_testkit::ops::{Plan, check_store, fuzz};

use support::World;

/// A volume holds everything. Units of 1 KiB: content moves between the inode's record, blocks and windows.
fn limits(unit_len_bytes: u32) -> Limits {
    Limits { unit_len_bytes, buffer_writes: false, reserves: false, whiteouts: true, ..Limits::default() }
}

#[test]
fn random_operations_do_what_the_model_does() {
    for unit in [700, 4096, 32 << 10, 600 << 10] {
        let plan = Plan { seeds: 12, ops: 300, limits: limits(unit) };
        fuzz(&plan, |ops| {
            let world = World::new();
            check_store(&world.main(), ops, &plan.limits)
        });
    }
}

#[test]
fn names_that_collide_stay_apart() {
    for bits in [0, 1, 2] {
        let plan = Plan { seeds: 10, ops: 300, limits: limits(4096) };
        fuzz(&plan, |ops| {
            let world = World::with(support::BLOCKS, bits);
            check_store(&world.main(), ops, &plan.limits)
        });
    }
}
