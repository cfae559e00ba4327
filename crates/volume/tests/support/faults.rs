//! A world to plant faults in, and what is to hold once they are mended.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;

use adit_volume::Extents;
use adit_volume::tree::MAIN;

use crate::plant::{Planter, checked, lines, sample};
use crate::support::{World, hash};

/// Memory for a check.
pub const MEMORY: usize = 64 << 20;

/// The root's inode.
pub const ROOT: u64 = 1;

/// A world with a snapshot of nothing, below which `main` and the branch `other` have a tree each.
pub fn world() -> (World, BTreeMap<&'static str, u64>) {
    let world = World::new();
    world.tree.snapshot(MAIN, "before").unwrap();
    world.tree.branch("before", "other").unwrap();
    sample(&world.branch("other"));
    let inodes = sample(&world.main());
    (world, inodes)
}

pub fn planter(world: &World) -> Planter<'_> {
    Planter { table: &*world.base, hash: hash(64), ids: vec![2, 1] }
}

/// It is sound, space adds up, and a further repair does nothing.
pub fn assert_sound(world: &World, what: &str) {
    let report = checked(&world.tree, &*world.base, false, MEMORY).unwrap();
    assert_eq!(lines(&report.problems), [""; 0], "{what}");
    let again = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
    assert_eq!((lines(&again.problems), lines(&again.repaired)), (vec![], vec![]), "{what}");
    let state = world.base.state();
    assert_eq!(world.tree.verify().unwrap().blocks, state.allocated, "{what}");
    assert_eq!(state.reserved.len(), 0, "{what}");
    let space = world.base.space();
    assert_eq!(space.free, space.total - state.allocated.len() as u64, "{what}");
}
