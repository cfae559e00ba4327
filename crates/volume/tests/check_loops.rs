//! The search for directories that hold each other ends soon, however long the way up is and however many they are.

#[path = "support/faults.rs"]
mod faults;
#[path = "support/plant.rs"]
mod plant;
#[path = "support/tree.rs"]
mod support;

use std::collections::BTreeMap;

use adit_core::types::Kind;
use adit_volume::format::keys::{self, Key};
use adit_volume::format::records::{self, Entry, Inode};
use adit_volume::tree::verify::Fault;

use faults::{MEMORY, ROOT, assert_sound};
use plant::{Planter, checked, lines};
use support::{World, hash};

/// Memory in which a hundredth of the directories fits.
const LITTLE: usize = 4 << 10;

/// Writes that are made at once.
const AT_ONCE: usize = 300;

/// Numbers of which a fixed rule that keeps one in two, four, … of all keeps none: these are the ones that the check had once.
fn numbers() -> impl Iterator<Item = u64> {
    (1000..).filter(|ino: &u64| ino.wrapping_mul(0x9e37_79b9_7f4a_7c15).leading_zeros() == 0)
}

/// A world with these directories, each with the one that it is in.
fn planted(dirs: &[(u64, u64)]) -> World {
    let world = World::new();
    let planter = Planter { table: &*world.base, hash: hash(64), ids: vec![1] };
    let mut below: BTreeMap<u64, u32> = BTreeMap::new();
    dirs.iter().for_each(|(_, parent)| *below.entry(*parent).or_default() += 1);
    let held = |dir: u64| below.get(&dir).copied().unwrap_or(0);
    planter.edit(ROOT, |root| (root.nlink, root.size) = (2 + held(ROOT), held(ROOT).into()));
    let root = planter.inode(ROOT);
    for some in dirs.chunks(AT_ONCE) {
        let mut writes = Vec::new();
        for &(ino, parent) in some {
            let called = format!("n{ino}");
            let place = planter.place(parent, &called);
            let inode = Inode { nlink: 2 + held(ino), size: held(ino).into(), place, ..root.clone() };
            writes.push((Key::inode(ino).at(1), Some(inode.encode())));
            let entry = Entry { ino, kind: Kind::Directory, name: called.as_bytes() };
            writes.push((planter.key_of(place).at(1), Some(entry.encode())));
        }
        planter.apply(writes);
    }
    let next = dirs.iter().map(|(ino, _)| ino + 1).max().unwrap_or(2);
    planter.apply(vec![(keys::meta("next-ino"), Some(records::encode_meta(next)))]);
    world.reopen()
}

/// The loops that a check finds in little memory, and how many more there are; it may read so many keys.
fn loops(world: &World, keys_max: u64) -> (Vec<u64>, u64) {
    let before = world.base.state().keys_read;
    let found = world.tree.check(&*world.base, LITTLE).unwrap();
    let read = world.base.state().keys_read - before;
    assert!(read <= keys_max, "{read} keys were read");
    let ino = |fault: &Fault| match fault {
        Fault::Loop { ino } => *ino,
        other => panic!("{other}"),
    };
    (found.findings.iter().map(|finding| ino(&finding.fault)).collect(), found.omitted)
}

/// What it reads without a walk: all entries, as often as little memory asks for, and a little more of each.
fn keys_of_passes(dirs: usize) -> u64 {
    let names = LITTLE / 40;
    (dirs * (dirs / (names / 2) + 20)) as u64
}

#[test]
fn a_deep_tree_is_climbed_in_few_steps_for_each_directory() {
    const DEPTH: usize = 4000;
    let all: Vec<u64> = numbers().take(DEPTH).collect();
    let down: Vec<(u64, u64)> =
        all.iter().enumerate().map(|(n, ino)| (*ino, if n == 0 { ROOT } else { all[n - 1] })).collect();
    let up: Vec<(u64, u64)> =
        all.iter().enumerate().map(|(n, ino)| (*ino, all.get(n + 1).copied().unwrap_or(ROOT))).collect();
    for dirs in [down, up] {
        let world = planted(&dirs);
        // All ways up together are 8,000,000 steps.
        assert_eq!(loops(&world, keys_of_passes(DEPTH) + 2_000_000), (vec![], 0));
    }
}

#[test]
fn a_long_loop_with_much_below_it_is_told_once() {
    const LEN: usize = 2000;
    let all: Vec<u64> = numbers().take(2 * LEN).collect();
    let (ring, others) = all.split_at(LEN);
    let mut dirs: Vec<(u64, u64)> = ring.iter().enumerate().map(|(n, ino)| (*ino, ring[(n + 1) % LEN])).collect();
    dirs.extend(others.iter().zip(ring).map(|(ino, parent)| (*ino, *parent)));
    let world = planted(&dirs);
    assert_eq!(loops(&world, keys_of_passes(2 * LEN) + 2_000_000), (vec![ring[0]], 0));
    let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
    assert_eq!((lines(&mended.problems), mended.repaired.len()), (vec![], 1));
    assert_sound(&world, "a long loop");
}

#[test]
fn many_loops_are_told_and_mended() {
    const LOOPS: usize = 2000;
    let all: Vec<u64> = numbers().take(2 * LOOPS).collect();
    let dirs: Vec<(u64, u64)> = all.chunks(2).flat_map(|two| [(two[0], two[1]), (two[1], two[0])]).collect();
    let world = planted(&dirs);
    let firsts: Vec<u64> = all.iter().copied().step_by(2).collect();
    assert_eq!(loops(&world, keys_of_passes(2 * LOOPS) + 1_000_000), (firsts, 0));
    let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
    assert_eq!(lines(&mended.problems), [""; 0]);
    assert_sound(&world, "many loops");
}

#[test]
fn of_very_many_loops_some_thousands_are_told() {
    const LOOPS: u64 = 17_000;
    let dirs: Vec<(u64, u64)> =
        (0..LOOPS).flat_map(|n| [(1000 + 2 * n, 1001 + 2 * n), (1001 + 2 * n, 1000 + 2 * n)]).collect();
    let world = planted(&dirs);
    let found = world.tree.check(&*world.base, MEMORY).unwrap();
    assert!(found.findings.len() == 16 << 10 && found.omitted > 0, "{} {}", found.findings.len(), found.omitted);
}
