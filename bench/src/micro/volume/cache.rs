//! The inode cache, by the engine's public calls over a volume: hits, misses, puts, a whole path.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use adit_core::engine::{Engine, EngineOptions};
use adit_core::types::Ino;
use anyhow::{Result, ensure};

use super::super::table_store::{self, TableStore};
use super::super::{SAMPLES, counting, cpu_time, samples, shuffle};
use super::{FILES_A_DIR, World, file_name, name_of};
use crate::RunArgs;
use crate::report::{ADIT, Aim, Report, Row, Unit};

const FILES: usize = 10_000;
const DEPTH: usize = 10;

const fn row(name: &'static str, nanos_max: f64) -> Row {
    Row { name, unit: Unit::Nanos, aim: Aim::Bound(nanos_max) }
}

const HIT: Row = row("hit (`Engine::getattr`)", 20.0);
const MISS: Row = row("miss (`Engine::is_known` of an inode that is not)", 20.0);
const PUT: Row = row("put (`Engine::lookup` of what is not known, the store's answer included)", 200.0);
const PATH: Row = row("path of 10 names, all known (`Engine::lookup`, ten times)", 200.0);
const ALLOCATIONS: Row =
    Row { name: "allocations in a pass of hits and misses", unit: Unit::Count, aim: Aim::Bound(0.0) };

fn options() -> EngineOptions {
    let hour = Duration::from_secs(3600);
    EngineOptions { attr_ttl: hour, entry_ttl: hour, negative_ttl: hour, ..EngineOptions::default() }
}

/// Measures the cache.
pub fn run(_: &RunArgs, dir: &Path, report: &mut Report) -> Result<()> {
    let title = "micro-cache: the inode cache over a volume";
    report.group(
        title,
        &format!(
            "{FILES} files, {FILES_A_DIR} a directory, all of them known, in random order; the volume is asked for nothing while \
             this runs (checked). Puts are measured over a store whose answers cost next to nothing: the volume's reads have \
             rows of their own."
        ),
    );
    let world = World::new(dir)?;
    let filled = world.fill(FILES)?;
    let levels = world.deepen(DEPTH)?;
    let engine = Engine::new(Arc::new(world.store.clone()), options());
    for (number, _) in filled.files.iter().enumerate() {
        let directory = format!("directory {}", number / FILES_A_DIR);
        let directory = engine.lookup(Ino::ROOT, file_name(&directory)?)?.attr.ino;
        engine.lookup(directory, file_name(&name_of(number))?)?;
    }
    let walk = || -> Result<()> {
        let mut ino = Ino::ROOT;
        for level in &levels {
            ino = engine.lookup(ino, file_name(level)?)?.attr.ino;
        }
        ensure!(black_box(ino) != Ino::ROOT, "the path leads nowhere");
        Ok(())
    };
    walk()?;
    let mut inos = filled.files.clone();
    shuffle_inos(&mut inos);
    let strangers: Vec<Ino> = inos.iter().map(|ino| Ino(ino.0 + (1 << 40))).collect();
    let hits = || inos.iter().for_each(|ino| drop(black_box(engine.getattr(black_box(*ino), None))));
    let misses = || {
        for ino in &strangers {
            black_box(engine.is_known(black_box(*ino)));
        }
    };

    let asked = world.asked.record(|| {
        for (row, count, pass) in [(&HIT, inos.len(), &hits as &dyn Fn()), (&MISS, strangers.len(), &misses)] {
            for sample in samples(count, pass) {
                report.add(title, row, ADIT, sample);
            }
        }
        for sample in samples(1, || drop(black_box(walk()))) {
            report.add(title, &PATH, ADIT, sample);
        }
        let ((), counts) = counting::counted(|| {
            hits();
            misses();
        });
        report.add(title, &ALLOCATIONS, ADIT, counts.calls as f64);
        Ok(())
    })?;
    ensure!(asked.is_empty(), "the volume was asked {} times while hits were measured", asked.len());
    for _ in 0..SAMPLES {
        report.add(title, &PUT, ADIT, put()?);
    }
    Ok(())
}

/// Nanoseconds of a put, in an engine that knows nothing yet.
fn put() -> Result<f64> {
    let engine = Engine::new(Arc::new(TableStore), options());
    let mut order: Vec<usize> = (0..FILES).collect();
    shuffle(&mut order);
    let names: Vec<String> = order.into_iter().map(table_store::name).collect();
    let started = cpu_time();
    for name in &names {
        black_box(engine.lookup(Ino::ROOT, file_name(name)?)?);
    }
    Ok(cpu_time().saturating_sub(started).as_secs_f64() * 1e9 / FILES as f64)
}

fn shuffle_inos(inos: &mut [Ino]) {
    let mut order: Vec<usize> = (0..inos.len()).collect();
    shuffle(&mut order);
    let shuffled: Vec<Ino> = order.iter().map(|&at| inos[at]).collect();
    inos.copy_from_slice(&shuffled);
}
