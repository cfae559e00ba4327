//! Memory of known inodes, counted at the allocator.

use std::path::Path;
use std::sync::Arc;

use adit_core::engine::{Engine, EngineOptions};
use adit_core::types::Ino;
use anyhow::Result;

use super::super::counting;
use super::{FILES_A_DIR, World, file_name, name_of};
use crate::RunArgs;
use crate::report::{ADIT, Aim, Report, Row, Unit};

const FILES: usize = 10_000;

const fn row(name: &'static str) -> Row {
    Row { name, unit: Unit::Bytes, aim: Aim::None }
}

const INODE: Row = row("a known inode in engine and volume, cached name not");
const ALL: Row = row("all for 10,000 files in 100 directories, cached names included");

/// Measures the memory.
pub fn run(_: &RunArgs, dir: &Path, report: &mut Report) -> Result<()> {
    let title = "micro-inodes: memory of known inodes";
    report.group(
        title,
        "Bytes that 10,000 lookups leave allocated, as asked of the allocator; the pages of the key-value store were in memory \
         before. One sample: it does not vary.",
    );
    let world = World::new(dir)?;
    world.fill(FILES)?;
    // Twice: what the first engine leaves in the caches below is no inode's.
    look_up(&world)?;
    let (engine, counts) = counting::counted(|| look_up(&world));
    let engine = engine?;
    let names = i64::try_from(engine.stats().dentries.bytes)?;
    report.add(title, &INODE, ADIT, (counts.live - names) as f64 / engine.known_inodes() as f64);
    report.add(title, &ALL, ADIT, counts.live as f64);
    Ok(())
}

fn look_up(world: &World) -> Result<Arc<Engine>> {
    let engine = Engine::new(Arc::new(world.store.clone()), EngineOptions::default());
    for number in 0..FILES {
        let directory = format!("directory {}", number / FILES_A_DIR);
        let directory = engine.lookup(Ino::ROOT, file_name(&directory)?)?.attr.ino;
        engine.lookup(directory, file_name(&name_of(number))?)?;
    }
    Ok(engine)
}
