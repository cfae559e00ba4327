//! The engine's caches, by its public calls: what a request costs beside the transport when nothing must be asked for.

use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use adit_core::engine::{Engine, EngineOptions, Lookup};
use adit_core::types::{FileName, Ino};
use anyhow::{Context, Result, ensure};

use super::table_store::{self, LISTED, LISTED_LEN, TableStore};
use super::{SAMPLES, counting, one_sample, samples, shuffle};
use crate::RunArgs;
use crate::report::{ADIT, Aim, Report, Row, Unit};

const HOT: usize = 10_000;
const MANY: usize = 1_000_000;
/// The kernel caches names that exist, so the engine keeps few of them.
const PRESENT: usize = 1_000;

const fn row(name: &'static str, nanos_max: f64) -> Row {
    Row { name, unit: Unit::Nanos, aim: Aim::Bound(nanos_max) }
}

const KNOWN: Row = row("known inode looked up (`Engine::is_known`)", 10.0);
const ATTRIBUTES: Row = row("attribute hit (`getattr`)", 20.0);
const NEGATIVE: Row = row("negative hit (`lookup_or_absent` of an absent name)", 20.0);
const LISTING: Row = row("cached listing of 50 entries (`listing`, shared)", 100.0);
const POSITIVE: Row =
    Row { name: "positive hit and its forget (`lookup_or_absent`, `forget`)", unit: Unit::Nanos, aim: Aim::None };
const WALK: Row = Row { name: "cached listing, its 50 entries walked", unit: Unit::Nanos, aim: Aim::None };
const ALLOCATIONS: Row =
    Row { name: "allocations in a pass of all the above but the walk", unit: Unit::Count, aim: Aim::Bound(0.0) };

/// An engine whose caches hold everything that is asked for, and the questions in random order.
struct Hot {
    engine: Arc<Engine>,
    inos: Vec<Ino>,
    present: Vec<String>,
    absent: Vec<String>,
}

impl Hot {
    fn new(count: usize) -> Result<Hot> {
        let hour = Duration::from_secs(3600);
        let options = EngineOptions {
            attr_ttl: hour,
            entry_ttl: hour,
            negative_ttl: hour,
            // Caches take a share of the budget; a million names need more than the default.
            memory_bytes: ((count as u64 * 16) << 10).max(256 << 20),
            ..EngineOptions::default()
        };
        let engine = Engine::new(Arc::new(TableStore), options);
        let mut indexes: Vec<usize> = (0..count).collect();
        shuffle(&mut indexes);
        // More than are wanted: a set-associative cache does not keep each of them.
        let mut absent: Vec<usize> = (0..count + count / 4).collect();
        shuffle(&mut absent);
        let mut hot = Hot {
            inos: indexes.iter().map(|index| table_store::ino(*index)).collect(),
            present: indexes.iter().map(|index| table_store::name(*index)).collect(),
            absent: absent.iter().map(|index| format!("absent {index:07}.txt")).collect(),
            engine,
        };
        for name in &hot.present {
            hot.engine.lookup(Ino::ROOT, file_name(name)?)?;
        }
        hot.engine.lookup(Ino::ROOT, file_name("listed")?)?;
        hot.engine.listing(LISTED)?;
        hot.present.truncate(PRESENT);
        hot.negative();
        hot.positive();
        hot.keep_hits();
        hot.absent.truncate(count);
        Ok(hot)
    }

    /// Leaves out names that the caches, which are set-associative and bounded, do not keep beside the others.
    fn keep_hits(&mut self) {
        let engine = &self.engine;
        let misses = || {
            let stats = engine.stats();
            stats.dentries.misses + stats.negatives.misses
        };
        let hits = |name: &String| {
            let before = misses();
            FileName::new(name.as_bytes()).is_ok_and(|name| {
                let found = engine.lookup_or_absent(Ino::ROOT, name);
                if let Ok(Lookup::Found(entry)) = &found {
                    engine.forget(entry.attr.ino, 1);
                }
                found.is_ok() && misses() == before
            })
        };
        loop {
            let before = self.absent.len() + self.present.len();
            self.absent.retain(hits);
            self.present.retain(hits);
            if self.absent.len() + self.present.len() == before {
                return;
            }
        }
    }

    fn known(&self) {
        for ino in &self.inos {
            black_box(self.engine.is_known(black_box(*ino)));
        }
    }

    fn attributes(&self) {
        for ino in &self.inos {
            black_box(self.engine.getattr(black_box(*ino), None).is_ok());
        }
    }

    fn negative(&self) {
        self.look_up(&self.absent);
    }

    fn look_up(&self, names: &[String]) {
        for name in names {
            if let Ok(name) = FileName::new(name.as_bytes()) {
                black_box(self.engine.lookup_or_absent(Ino::ROOT, name).is_ok());
            }
        }
    }

    fn positive(&self) {
        for name in &self.present {
            if let Ok(name) = FileName::new(name.as_bytes())
                && let Ok(Lookup::Found(entry)) = self.engine.lookup_or_absent(Ino::ROOT, name)
            {
                self.engine.forget(entry.attr.ino, 1);
            }
        }
    }

    fn listing(&self) {
        for _ in &self.inos {
            black_box(self.engine.listing(black_box(LISTED)).is_ok());
        }
    }

    fn walk(&self) {
        if let Ok(listing) = self.engine.listing(LISTED) {
            for entry in listing.entries_from(0) {
                black_box(entry);
            }
        }
    }

    /// Fails if anything above had to be asked of the store: then no hit was measured.
    fn ensure_hits(&self, before: &adit_core::engine::Stats) -> Result<()> {
        let after = self.engine.stats();
        for (name, before, after) in [
            ("attributes", before.attrs, after.attrs),
            ("entries", before.dentries, after.dentries),
            ("absences", before.negatives, after.negatives),
            ("listings", before.listings, after.listings),
        ] {
            ensure!(before.misses == after.misses, "the cache of {name} missed while its hits were measured");
        }
        Ok(())
    }
}

/// A row, a pass of its operation, and how many operations that is.
type Operation = (Row, fn(&Hot), fn(&Hot) -> usize);
const OPERATIONS: [Operation; 5] = [
    (KNOWN, Hot::known, |hot| hot.inos.len()),
    (ATTRIBUTES, Hot::attributes, |hot| hot.inos.len()),
    (NEGATIVE, Hot::negative, |hot| hot.absent.len()),
    (LISTING, Hot::listing, |hot| hot.inos.len()),
    (POSITIVE, Hot::positive, |hot| hot.present.len()),
];

/// Measures the caches.
pub fn run(args: &RunArgs, report: &mut Report) -> Result<()> {
    let hot = Hot::new(HOT)?;
    let before = hot.engine.stats();
    let one = "micro-engine: 10,000 entries, one thread";
    report.group(one, &held(&hot));
    for (row, operation, count) in OPERATIONS {
        for sample in samples(count(&hot), || operation(&hot)) {
            report.add(one, &row, ADIT, sample);
        }
    }
    for sample in samples(1, || hot.walk()) {
        report.add(one, &WALK, ADIT, sample);
    }
    let ((), counts) = counting::counted(|| OPERATIONS.iter().for_each(|(_, operation, _)| operation(&hot)));
    report.add(one, &ALLOCATIONS, ADIT, counts.calls as f64);

    let two = "micro-engine: 10,000 entries, two threads";
    report.group(two, "The same by two threads at once; nanoseconds of one thread for an operation.");
    for (row, operation, count) in OPERATIONS {
        for sample in by_two(&hot, operation, count(&hot)) {
            report.add(two, &Row { aim: Aim::None, ..row }, ADIT, sample);
        }
    }
    hot.ensure_hits(&before)?;
    drop(hot);

    let many = if args.quick { MANY / 8 } else { MANY };
    let hot = Hot::new(many).context("a million entries")?;
    let before = hot.engine.stats();
    let title = "micro-engine: 1 M entries, one thread";
    report.group(title, &held(&hot));
    for (row, operation, count) in OPERATIONS {
        for sample in samples(count(&hot), || operation(&hot)) {
            report.add(title, &Row { aim: Aim::None, ..row }, ADIT, sample);
        }
    }
    hot.ensure_hits(&before)?;
    ensure!(hot.engine.listing(LISTED)?.len() as u64 == LISTED_LEN, "the listing is not whole");
    Ok(())
}

fn held(hot: &Hot) -> String {
    format!(
        "{} known inodes, {} absent and {} present names that the caches hold, in random order. The store is asked for nothing \
         while this runs (checked).",
        hot.inos.len(),
        hot.absent.len(),
        hot.present.len()
    )
}

fn by_two(hot: &Hot, operation: fn(&Hot), count: usize) -> Vec<f64> {
    let barrier = Barrier::new(2);
    let one = || {
        let mut pass = || operation(hot);
        pass();
        let mut taken = Vec::with_capacity(SAMPLES);
        for _ in 0..SAMPLES {
            barrier.wait();
            taken.push(one_sample(count, &mut pass));
        }
        taken
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(one);
        let mut taken = one();
        taken.extend(other.join().unwrap_or_default());
        taken
    })
}

fn file_name(name: &str) -> Result<FileName<'_>> {
    FileName::new(name.as_bytes()).map_err(|e| anyhow::anyhow!("{name}: {e:?}"))
}
