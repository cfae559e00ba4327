//! A volume as a library, beside other filesystems in a file that are libraries: AgentFS, in a program of its own
//! (`bench/rivals/agentfs`), which does the same in the same order.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use adit_core::types::{Access, Kind};
use adit_volume::Volume;
use adit_volume::fs::{Fs, FsOptions};
use adit_volume::volume::{CreateOptions, Durability, OpenOptions};
use anyhow::{Context, Result, ensure};

use super::{FILES_A_DIR, caller};
use crate::report::{ADIT, Aim, Report, Row, Unit};
use crate::{RunArgs, rivals};

const AGENTFS: &str = "agentfs";
const FILE_LEN: usize = 4096;
const FILES: u64 = 2_000;
const DEPTH: usize = 10;
/// Calls of what has one subject alone.
const REPEATS: usize = 200;

const fn row(name: &'static str) -> Row {
    Row { name, unit: Unit::Micros, aim: Aim::None }
}

/// Names as the rivals' programs print them, with their rows.
static ROWS: [(&str, Row); 10] = [
    ("create", row("create + write of 4 KiB, safe from a kill")),
    ("create-synced", row("the same, one sync at the end included")),
    ("stat", row("stat of each, the first after opening")),
    ("stat-again", row("stat of each, again")),
    ("path", row("path of 10 names, the first after opening")),
    ("path-again", row("path of 10 names, again")),
    ("list", row("names of a directory of 100")),
    ("read", row("read of each, 4 KiB")),
    ("remove", row("remove")),
    ("snapshot", row("snapshot, durable")),
];

type Round = BTreeMap<String, f64>;

/// Measures the libraries, taking turns.
pub fn run(args: &RunArgs, dir: &Path, report: &mut Report) -> Result<()> {
    let files = usize::try_from(args.scaled(FILES))?;
    let rounds = args.rounds();
    let title = "micro-library: filesystems in a file, as libraries";
    report.group(
        title,
        &format!(
            "{files} files of 4 KiB, {FILES_A_DIR} a directory; wall time of one call. \"The first after opening\" finds the host's page cache \
             warm. AgentFS 0.6.4 by its Rust library, whose calls are safe from a kill and not from a power cut, as adit's. Rounds: {rounds}."
        ),
    );
    let agentfs = match rivals::agentfs() {
        Ok(program) => Some(program),
        Err(error) => {
            report.failed(format!("{title}: {AGENTFS}: {error:#}"));
            None
        }
    };
    let work = tempfile::Builder::new().prefix("adit-bench-").tempdir_in(dir)?;
    for round in 0..rounds {
        let ours = ours(&work.path().join(format!("volume-{round}")), files)?;
        add(report, title, ADIT, &ours);
        if let Some(program) = &agentfs {
            let database = work.path().join(format!("agentfs-{round}.db"));
            add(report, title, AGENTFS, &theirs(program, &database, files)?);
        }
    }
    Ok(())
}

fn add(report: &mut Report, title: &str, side: &str, round: &Round) {
    for (name, row) in &ROWS {
        if let Some(value) = round.get(*name) {
            report.add(title, row, side, *value);
        }
    }
}

/// One round of a rival's program.
fn theirs(program: &Path, database: &Path, files: usize) -> Result<Round> {
    let output = Command::new(program).arg(database).arg(files.to_string()).output()?;
    ensure!(output.status.success(), "{}: {}", program.display(), String::from_utf8_lossy(&output.stderr).trim());
    serde_json::from_slice(&output.stdout).context("the rival's program printed no object of numbers")
}

/// Microseconds of one of `count` calls since `started`.
fn micros(started: Instant, count: usize) -> f64 {
    started.elapsed().as_secs_f64() * 1e6 / count as f64
}

fn path(number: usize) -> String {
    format!("/directory {}/file {number}.txt", number / FILES_A_DIR)
}

/// Opens the live tree of a volume.
fn live(volume: Volume) -> Result<Fs> {
    Ok(Fs::live(&Arc::new(volume), FsOptions { owner: caller(), ..FsOptions::default() })?)
}

/// Closes the volume; the lock of its file goes with its last user.
fn close(fs: Fs) -> Result<()> {
    let volume = fs.volume().clone();
    drop(fs);
    Ok(volume.close()?)
}

fn ours(file: &Path, files: usize) -> Result<Round> {
    let mut rows = Round::new();
    let mut add = |name: &str, value: f64| {
        rows.insert(name.to_owned(), value);
    };
    let options = OpenOptions::new(Access::Write);
    let new = CreateOptions { capacity_bytes: None, durability: Durability::default(), owner: caller(), perm: 0o755 };
    let fs = live(Volume::create(file, &new, &options)?)?;
    let mut content = vec![b'c'; FILE_LEN];
    for dir in 0..files.div_ceil(FILES_A_DIR) {
        fs.mkdir(format!("/directory {dir}"), 0o755)?;
    }
    let started = Instant::now();
    for number in 0..files {
        content[..8].copy_from_slice(&(number as u64).to_le_bytes());
        fs.write(path(number), &content)?;
    }
    add("create", micros(started, files));
    fs.sync()?;
    add("create-synced", micros(started, files));
    let levels: String = (0..DEPTH - 1).map(|level| format!("/level {level}")).collect();
    fs.mkdir_all(&levels, 0o755)?;
    let deep = format!("{levels}/file");
    fs.write(&deep, b"")?;
    close(fs)?;

    let fs = live(Volume::open(file, &options)?)?;
    for name in ["stat", "stat-again"] {
        let started = Instant::now();
        for number in 0..files {
            ensure!(fs.lstat(path(number))?.size == FILE_LEN as u64, "wrong length");
        }
        add(name, micros(started, files));
    }
    for (name, count) in [("path", 1), ("path-again", REPEATS)] {
        let started = Instant::now();
        for _ in 0..count {
            ensure!(fs.lstat(&deep)?.kind == Kind::File, "not a file");
        }
        add(name, micros(started, count));
    }
    let started = Instant::now();
    for _ in 0..REPEATS {
        let entries = fs.read_dir("/directory 0")?.map(|entry| entry.map(black_box));
        ensure!(entries.collect::<Result<Vec<_>, _>>()?.len() == files.min(FILES_A_DIR), "entries are missing");
    }
    add("list", micros(started, REPEATS));
    let started = Instant::now();
    for number in 0..files {
        ensure!(fs.read(path(number))?.len() == FILE_LEN, "a short read");
    }
    add("read", micros(started, files));
    let started = Instant::now();
    for number in 0..files {
        fs.remove(path(number))?;
    }
    add("remove", micros(started, files));
    let started = Instant::now();
    fs.create_snapshot("one")?;
    add("snapshot", micros(started, 1));
    close(fs)?;
    Ok(rows)
}
