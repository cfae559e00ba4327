//! Random operations through a real mount of a vault, compared with the naive model, by system calls.
//!
//! `ADIT_TEST_SEED` runs one seed; `ADIT_TEST_SCALE` multiplies their number.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use adit_core::types::AllocateMode;
use adit_testkit::model::Limits;
use adit_testkit::ops::{Op, Plan, check_path, fuzz};

use mounts::Mounts;

/// What a vault cannot hold.
const LIMITS: Limits = Limits {
    hard_links: false,
    special_nodes: false,
    holes: true,
    reserves: true,
    any_bytes: false,
    name_len_max: 255,
    unit_len_bytes: 32 << 10,
    buffer_writes: true,
    shared: true,
    xattrs: false,
    acls: false,
    whiteouts: false,
    stable_cookies: false,
    slow_names: true,
};

/// Sequences of each mount.
const PLAN: Plan = Plan { seeds: 6, ops: 300, limits: LIMITS };

fn run(init: &[&str], options: &[&str]) {
    let Some(m) = Mounts::with(init) else { return };
    m.mount(options).expect(0);
    let mut run = 0;
    fuzz(&PLAN, |ops| {
        run += 1;
        let dir = m.at(&format!("run-{run}"));
        std::fs::create_dir(&dir).unwrap();
        // A vault has no holes to punch, and nothing lies beyond the end of its files.
        let can = |op: &&Op| !matches!(op, Op::Allocate(.., AllocateMode::PunchHole | AllocateMode::KeepSize));
        let ops: Vec<Op> = ops.iter().filter(can).cloned().collect();
        let result = check_path(&dir, &ops, &LIMITS);
        std::fs::remove_dir_all(&dir).unwrap();
        result
    });
    m.umount();
    m.expect_sound();
}

#[test]
fn gcm() {
    run(&[], &[]);
}

#[test]
fn gcm_exclusive() {
    run(&[], &["-o", "exclusive"]);
}

#[test]
fn gcm_without_caches() {
    run(&[], &["-o", "attr_timeout=0,entry_timeout=0,negative_timeout=0"]);
}

#[test]
fn ctrmac_with_nearly_all_names_long() {
    run(&["--cipher", "siv-ctrmac", "--shortening-threshold", "40"], &[]);
}

#[test]
fn ctrmac_exclusive() {
    run(&["--cipher", "siv-ctrmac"], &["-o", "exclusive"]);
}

#[test]
fn ctrmac_without_caches() {
    run(&["--cipher", "siv-ctrmac"], &["-o", "attr_timeout=0,entry_timeout=0"]);
}
