//! Making snapshots: the store's own step, and until it is durable.

use std::path::Path;
use std::time::Instant;

use adit_core::store::Store;
use adit_core::types::Ino;
use adit_volume::Table;
use adit_volume::tree::MAIN;
use anyhow::Result;

use std::sync::atomic::Ordering::Relaxed;

use super::super::cpu_time;
use super::{World, file_name, new_node};
use crate::RunArgs;
use crate::report::{ADIT, Aim, Report, Row, Unit};

const SAMPLES: usize = 11;
/// Snapshots in a sample.
const AT_ONCE: usize = 200;
/// Files in the two trees.
const FEW: u64 = 1_000;
const MANY: u64 = 100_000;
/// The side of a sync after the creation of a file.
const COMMIT: &str = "one commit";

const CREATE: Row =
    Row { name: "snapshot, safe from a kill (`Tree::snapshot`), CPU", unit: Unit::Micros, aim: Aim::Bound(5.0) };
const DURABLE: Row =
    Row { name: "the same until it is durable, beside a file's creation", unit: Unit::Micros, aim: Aim::None };
const SYNCS: Row = Row { name: "syncs of the file for a durable snapshot", unit: Unit::Count, aim: Aim::Bound(1.0) };

/// Measures snapshots.
pub fn run(args: &RunArgs, dir: &Path, report: &mut Report) -> Result<()> {
    for (title, files) in
        [("micro-snapshots: a small tree", args.scaled(FEW)), ("micro-snapshots: a large tree", args.scaled(MANY))]
    {
        report.group(
            title,
            &format!(
                "A tree of {files} files; samples of {AT_ONCE} snapshots with a change before each. `{COMMIT}` is a file's \
                 creation and the sync after it; what the sync takes is the disk's."
            ),
        );
        measure(title, usize::try_from(files)?, dir, report)?;
    }
    Ok(())
}

fn measure(title: &str, files: usize, dir: &Path, report: &mut Report) -> Result<()> {
    let world = World::new(dir)?;
    world.fill(files)?;
    let mut number = 0;
    let mut create = || -> Result<()> {
        number += 1;
        world.store.create(Ino::ROOT, file_name(&format!("new {number}"))?, &new_node())?;
        Ok(())
    };
    for sample in 0..SAMPLES {
        let mut spent = 0.0;
        for at in 0..AT_ONCE {
            create()?;
            let name = format!("quick {at}");
            let started = cpu_time();
            world.tree.snapshot(MAIN, &name)?;
            spent += cpu_time().saturating_sub(started).as_secs_f64() * 1e6;
        }
        report.add(title, &CREATE, ADIT, spent / AT_ONCE as f64);

        world.base.sync()?;
        let started = Instant::now();
        create()?;
        world.base.sync()?;
        report.add(title, &DURABLE, COMMIT, started.elapsed().as_secs_f64() * 1e6);
        create()?;
        world.base.sync()?;
        let before = world.file.syncs.load(Relaxed);
        let started = Instant::now();
        world.tree.snapshot(MAIN, &format!("durable {sample}"))?;
        world.base.sync()?;
        report.add(title, &DURABLE, ADIT, started.elapsed().as_secs_f64() * 1e6);
        report.add(title, &SYNCS, ADIT, (world.file.syncs.load(Relaxed) - before) as f64);
        for at in 0..AT_ONCE {
            world.tree.delete_snapshot(&format!("quick {at}"))?;
        }
        world.tree.collect()?;
    }
    Ok(())
}
