//! The caches over a volume: the engine's, which a mount asks by inode, and the library's ([`Fs`]), by path.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use adit_core::engine::{Engine, EngineOptions};
use adit_core::types::{Access, Ino};
use adit_volume::Volume;
use adit_volume::fs::{Fs, FsCacheStats, FsOptions};
use adit_volume::volume::{CreateOptions, Durability, OpenOptions};
use anyhow::{Result, ensure};

use super::super::table_store::{self, TableStore};
use super::super::{SAMPLES, counting, cpu_time, samples, shuffle};
use super::{FILES_A_DIR, World, caller, file_name, name_of};
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
const NAME: Row = Row { name: "stat by a path of one name, cached (`Fs::lstat`)", unit: Unit::Nanos, aim: Aim::None };
const PATH: Row = row("stat by a path of 10 names, cached (`Fs::lstat`)", 200.0);
const ALLOCATIONS: Row =
    Row { name: "allocations in a pass of hits and misses of the engine", unit: Unit::Count, aim: Aim::Bound(0.0) };
const PATH_ALLOCATIONS: Row =
    Row { name: "allocations in a stat by a path of 10 names, cached", unit: Unit::Count, aim: Aim::Bound(0.0) };

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
    let engine = Engine::new(Arc::new(world.store.clone()), options());
    for (number, _) in filled.files.iter().enumerate() {
        let directory = format!("directory {}", number / FILES_A_DIR);
        let directory = engine.lookup(Ino::ROOT, file_name(&directory)?)?.attr.ino;
        engine.lookup(directory, file_name(&name_of(number))?)?;
    }
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
    paths(title, dir, report)
}

/// The library's cache.
fn paths(title: &str, dir: &Path, report: &mut Report) -> Result<()> {
    let work = tempfile::Builder::new().prefix("adit-bench-").tempdir_in(dir)?;
    let new = CreateOptions { capacity_bytes: None, durability: Durability::default(), owner: caller(), perm: 0o755 };
    let volume = Volume::create(&work.path().join("volume"), &new, &OpenOptions::new(Access::Write))?;
    let fs = Fs::live(&Arc::new(volume), FsOptions::default())?;
    let levels: String = (0..DEPTH - 1).map(|level| format!("/level {level}")).collect();
    fs.mkdir_all(&levels, 0o755)?;
    let deep = format!("{levels}/file");
    fs.write(&deep, b"")?;
    fs.write("/file", b"")?;
    for (row, path) in [(&NAME, "/file"), (&PATH, deep.as_str())] {
        fs.lstat(path)?;
        let before = fs.cache_stats();
        // Many in a pass: asking for the time costs as much as several of them.
        const STATS: usize = 1000;
        for sample in samples(STATS, || (0..STATS).for_each(|_| drop(black_box(fs.lstat(black_box(path)))))) {
            report.add(title, row, ADIT, sample);
        }
        let after = fs.cache_stats();
        let misses = |stats: &FsCacheStats| stats.inodes.misses + stats.entries.misses;
        ensure!(misses(&before) == misses(&after), "the cache missed while its hits were measured");
    }
    let (found, counts) = counting::counted(|| fs.lstat(&deep));
    found?;
    report.add(title, &PATH_ALLOCATIONS, ADIT, counts.calls as f64);
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
