//! The same script on mounts of adit and of its rivals, taking turns: A B C, A B C, …
//!
//! A [`Group`] is a piece of the script that leaves several figures. Each turn starts with an empty vault, everything on the
//! disk, and cold caches. "Cold" is after an unmount, a sync, `drop_caches`, and a new mount, so that neither the kernel nor a
//! server remembers anything; "warm" repeats the same at once.

mod build;
mod bytes;
mod large;
mod manifest;
mod open_file;
mod small;
mod sqlite;
mod tree;
mod unlock;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::report::{Aim, Report, Row, Unit};
use crate::sides::{self, Memory, Mounted, Place, Side};
use crate::{RunArgs, Subject, aims};

pub use bytes::Stream;

/// What a group's script is given.
pub struct Turn<'a> {
    /// The arguments.
    pub args: &'a RunArgs,
    /// The side whose turn it is.
    pub side: &'a Side,
    /// Its empty vault.
    pub place: &'a Place,
    /// The work folder of the run, for what all sides share.
    pub dir: &'a Path,
    /// Which round it is, from 1.
    pub round: u32,
    group: &'static str,
    samples: Vec<(&'static Row, f64)>,
    memory: Memory,
}

/// A piece of the script.
pub struct Group {
    /// For `--rows` and the heading.
    pub name: &'static str,
    /// What is done, for the text above the table.
    pub about: fn(&RunArgs) -> String,
    /// Which sides take part.
    pub takes: fn(&Side) -> bool,
    /// Whether one round is enough, because it takes minutes.
    pub once: bool,
    /// Whether it is run only if it is asked for by its name, because it takes very long.
    pub on_request: bool,
    /// Makes what all sides share, untimed.
    pub prepare: fn(&RunArgs, &Path) -> Result<()>,
    /// The script of one turn.
    pub script: fn(&mut Turn<'_>) -> Result<()>,
}

const VAULT_GROUPS: &[&Group] = &[
    &large::SEQUENTIAL,
    &large::RANDOM,
    &small::FEW,
    &small::MANY,
    &tree::TREE,
    &open_file::OPEN_FILE,
    &unlock::UNLOCK_GROUP,
    &large::REWRITE,
];

const VOLUME_GROUPS: &[&Group] = &[
    &large::SEQUENTIAL,
    &large::RANDOM,
    &small::FEW,
    &small::MANY,
    &tree::TREE,
    &tree::CLONE,
    &open_file::OPEN_FILE,
    &sqlite::SQLITE,
    &build::CRATE,
    &build::WHOLE,
];

const MANIFEST_GROUPS: &[&Group] = &[
    &manifest::FIRST,
    &manifest::COLD,
    &manifest::BLOCKS,
    &manifest::WARM,
    &manifest::TINY,
    &manifest::WIDE,
    &manifest::WRITES,
];

fn groups(subject: Subject) -> &'static [&'static Group] {
    match subject {
        Subject::Vault => VAULT_GROUPS,
        Subject::Volume => VOLUME_GROUPS,
        Subject::Manifest => MANIFEST_GROUPS,
        Subject::Index => &[],
    }
}

const MEMORY_RESIDENT: Row = Row { name: "peak memory, VmHWM", unit: Unit::Mib, aim: Aim::None };
const MEMORY_ANONYMOUS: Row =
    Row { name: "peak memory, RssAnon + RssShmem", unit: Unit::Mib, aim: Aim::Gocryptfs(1.0) };

/// The names of all groups.
pub fn group_names(subject: Subject) -> Vec<&'static str> {
    groups(subject).iter().map(|group| group.name).collect()
}

/// The names of those that are run only if they are asked for.
pub fn on_request(subject: Subject) -> Vec<&'static str> {
    groups(subject).iter().filter(|group| group.on_request).map(|group| group.name).collect()
}

/// Measures everything asked for. A side that fails is left out of the rest of its group and noted.
pub fn run(args: &RunArgs, dir: &Path, report: &mut Report) -> Result<()> {
    let groups: Vec<_> = groups(args.subject).iter().filter(|group| args.wants(group.name, group.on_request)).collect();
    if groups.is_empty() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        bail!("the macro benchmarks need root: they mount, and drop the kernel's caches");
    }
    let sides = sides::prepare(args.subject, &args.sides, args.adit.as_deref(), &mut |text| report.failed(text))?;
    for side in &sides {
        report.fact("side", format!("{}: {}", side.name, side.describe()));
    }
    let work = tempfile::Builder::new().prefix("adit-bench-").tempdir_in(dir)?;
    sides::spread(work.path())?;
    for group in groups {
        run_group(group, args, work.path(), &sides, report);
    }
    Ok(())
}

fn run_group(group: &Group, args: &RunArgs, dir: &Path, sides: &[Side], report: &mut Report) {
    let rounds = if group.once { 1 } else { args.rounds() };
    report.group(group.name, &format!("{} Rounds: {rounds}.", (group.about)(args)));
    if let Err(error) = (group.prepare)(args, dir) {
        report.failed(format!("{}: {error:#}", group.name));
        return;
    }
    let mut sides: Vec<&Side> = sides.iter().filter(|side| (group.takes)(side)).collect();
    for round in 1..=rounds {
        sides.retain(|side| {
            let started = Instant::now();
            let result = run_turn(group, args, dir, (side, round), report);
            let took = started.elapsed().as_secs_f64();
            eprintln!("{} {round}/{rounds} {}: {took:.1} s", group.name, side.name);
            if let Err(error) = &result {
                eprintln!("{} {}: {error:#}", group.name, side.name);
                report.failed(format!("{} {}: {error:#}", group.name, side.name));
            }
            result.is_ok()
        });
    }
}

fn run_turn(group: &Group, args: &RunArgs, dir: &Path, (side, round): (&Side, u32), report: &mut Report) -> Result<()> {
    let place = side.fresh(dir)?;
    let (group_name, samples, memory) = (group.name, Vec::new(), Memory::default());
    let mut turn = Turn { args, side, place: &place, dir, round, group: group_name, samples, memory };
    (group.script)(&mut turn)?;
    // Samples of a turn that failed half way would make the medians of a row incomparable.
    let mut add = |row: &Row, value| {
        let row = Row { aim: aims::of(args.subject, row), ..*row };
        report.add(group.name, &row, side.name, value);
    };
    for (row, value) in &turn.samples {
        add(row, *value);
    }
    if turn.memory.resident > 0 {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        add(&MEMORY_RESIDENT, mib(turn.memory.resident));
        add(&MEMORY_ANONYMOUS, mib(turn.memory.anonymous));
    }
    std::fs::remove_dir_all(&place.work).with_context(|| format!("cannot remove {}", place.work.display()))?;
    // The next side does not pay for what this one left in the disk's queue.
    sides::sync_fs(dir)
}

impl Turn<'_> {
    /// Mounts with cold caches.
    pub fn mount_cold(&self) -> Result<Mounted> {
        self.side.mount_cold(self.place)
    }

    /// Unmounts cleanly.
    pub fn unmount(&mut self, mounted: Mounted) -> Result<()> {
        let memory = mounted.unmount()?;
        self.memory.resident = self.memory.resident.max(memory.resident);
        self.memory.anonymous = self.memory.anonymous.max(memory.anonymous);
        Ok(())
    }

    /// A figure.
    pub fn sample(&mut self, row: &'static Row, value: f64) {
        self.samples.push((row, value));
    }

    /// The time of `work` in seconds.
    pub fn seconds(&mut self, row: &'static Row, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let took = timed(work).with_context(|| format!("{}: {}", self.group, row.name))?;
        self.sample(row, took.as_secs_f64());
        Ok(())
    }

    /// Times a change in three figures: the calls alone; with `syncfs` of the mount; with a clean unmount and `syncfs` of
    /// the disk below, after which the change is on the disk on every side.
    pub fn change(
        &mut self,
        rows: &'static Change,
        mounted: Mounted,
        work: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        let started = Instant::now();
        work(mounted.root()).with_context(|| format!("{}: {}", self.group, rows.calls.name))?;
        self.sample(&rows.calls, started.elapsed().as_secs_f64());
        sides::sync_fs(mounted.root())?;
        self.sample(&rows.synced, started.elapsed().as_secs_f64());
        self.unmount(mounted)?;
        sides::sync_fs(&self.place.work)?;
        self.sample(&rows.unmounted, started.elapsed().as_secs_f64());
        Ok(())
    }
}

/// The three rows of a change.
pub struct Change {
    calls: Row,
    synced: Row,
    unmounted: Row,
}

/// The time that `work` takes.
fn timed(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed())
}

/// The rows of a change; the aim is for the last, which does the same on every side.
const fn change(names: [&'static str; 3], aim: Aim) -> Change {
    const fn row(name: &'static str, aim: Aim) -> Row {
        Row { name, unit: Unit::Seconds, aim }
    }
    Change { calls: row(names[0], Aim::None), synced: row(names[1], Aim::None), unmounted: row(names[2], aim) }
}

/// For groups without anything to share.
fn nothing_to_prepare(_: &RunArgs, _: &Path) -> Result<()> {
    Ok(())
}
