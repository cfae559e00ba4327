//! Reading without any cache above the table, beside the bare gets that it takes.

use std::hint::black_box;
use std::path::Path;

use adit_core::store::Store;
use adit_core::types::Ino;
use adit_volume::tree::MAIN;
use adit_volume::{Source, Table};
use anyhow::{Context, Result, ensure};

use super::super::{SAMPLES, one_sample};
use super::{FILES_A_DIR, World, file_name, name_of};
use crate::RunArgs;
use crate::report::{ADIT, Aim, Report, Row, Unit};

const FILES: u64 = 100_000;
const DEPTH: usize = 10;
/// The bare gets of the same keys.
const GETS: &str = "bare gets";
/// At most 1.2 times their time.
const OF_GETS: f64 = 1.0 / 1.2;

const fn row(name: &'static str) -> Row {
    Row { name, unit: Unit::Nanos, aim: Aim::Side(GETS, OF_GETS) }
}

const fn count(name: &'static str, max: f64) -> Row {
    Row { name, unit: Unit::Count, aim: Aim::Bound(max) }
}

const STAT: Row = row("stat of an inode (`Store::getattr`)");
const LOOKUP: Row = row("stat by directory and name (`Store::lookup`)");
const PATH: Row = row("stat by a path of 10 names");
const STAT_GETS: Row = count("keys asked for by a stat of an inode", 2.0);
const LOOKUP_GETS: Row = count("keys asked for by a stat by directory and name", 2.0);
const PATH_GETS: Row = count("keys asked for by a stat by a path of 10 names", DEPTH as f64 + 1.0);

/// Measures the reads.
pub fn run(args: &RunArgs, dir: &Path, report: &mut Report) -> Result<()> {
    let files = usize::try_from(args.scaled(FILES))?;
    let title = "micro-reads: nothing cached above the table";
    report.group(
        title,
        &format!(
            "{files} files, {FILES_A_DIR} a directory; asked in random order. All is in the key-value store, and its pages in memory. \
             `{GETS}` asks the table for the same keys and does nothing with them."
        ),
    );
    let world = World::new(dir)?;
    let filled = world.fill(files)?;
    let names: Vec<String> = (0..files).map(name_of).collect();
    let levels = world.deepen(DEPTH)?;
    let mut order: Vec<usize> = (0..files).collect();
    super::super::shuffle(&mut order);
    // Enough to leave the processor's caches, few enough that a sample is short.
    order.truncate(10_000);
    let main = Source::Branch(MAIN.into());

    let stat = || {
        for &number in &order {
            black_box(world.store.getattr(filled.files[number])?);
        }
        Ok(())
    };
    let lookup = || {
        for &number in &order {
            let name = file_name(&names[number])?;
            black_box(world.store.lookup(filled.dirs[number / FILES_A_DIR], name)?);
        }
        Ok(())
    };
    let path = || {
        let view = world.tree.view(&main)?;
        let mut ino = Ino::ROOT.0;
        for level in &levels {
            ino = view.entry(ino, level.as_bytes())?.context("a level is missing")?.1;
        }
        black_box(view.inode(ino)?);
        Ok(())
    };
    compare(report, title, &world, (&STAT, &STAT_GETS), order.len(), &stat)?;
    compare(report, title, &world, (&LOOKUP, &LOOKUP_GETS), order.len(), &lookup)?;
    compare(report, title, &world, (&PATH, &PATH_GETS), 1, &path)
}

/// Measures `pass`, which does its work `count` times, and the gets that it asks for.
fn compare(
    report: &mut Report,
    title: &str,
    world: &World,
    (time, gets): (&Row, &Row),
    count: usize,
    pass: &dyn Fn() -> Result<()>,
) -> Result<()> {
    let keys = world.asked.record(pass)?;
    ensure!(!keys.is_empty(), "{}: the table was not asked", time.name);
    let bare = || {
        for key in &keys {
            black_box(world.base.get(key).is_ok());
        }
    };
    bare();
    for _ in 0..SAMPLES {
        report.add(title, time, ADIT, one_sample(count, &mut || drop(black_box(pass()))));
        report.add(title, time, GETS, one_sample(count, &mut || bare()));
    }
    report.add(title, gets, ADIT, keys.len() as f64 / count as f64);
    Ok(())
}
