//! A volume as a library, beside other filesystems in a file that are libraries: AgentFS, in a program of its own
//! (`bench/rivals/agentfs`), which does the same in the same order.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_core::engine::{Engine, EngineOptions};
use adit_core::types::{Access, Attr, Ino, Kind};
use adit_volume::Volume;
use adit_volume::volume::{CreateOptions, Durability, OpenOptions};
use anyhow::{Context, Result, ensure};

use super::{FILES_A_DIR, caller, file_name, new_node};
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
    format!("directory {}/file {number}.txt", number / FILES_A_DIR)
}

/// The engine over the live tree of a volume.
struct Ours {
    engine: Arc<Engine>,
    volume: Volume,
}

impl Ours {
    fn with(volume: Volume) -> Result<Ours> {
        let hour = Duration::from_secs(3600);
        let options = EngineOptions { attr_ttl: hour, entry_ttl: hour, negative_ttl: hour, ..EngineOptions::default() };
        Ok(Ours { engine: Engine::new(Arc::new(volume.live()?), options), volume })
    }

    fn close(self) -> Result<()> {
        let Ours { engine, volume } = self;
        engine.shutdown()?;
        drop(engine);
        Ok(volume.close()?)
    }

    fn resolve(&self, path: &str) -> Result<Attr> {
        let mut found = None;
        for name in path.split('/') {
            let dir = found.map_or(Ino::ROOT, |attr: Attr| attr.ino);
            found = Some(self.engine.lookup(dir, file_name(name)?)?.attr);
        }
        found.context("an empty path")
    }

    fn parent<'p>(&self, path: &'p str) -> Result<(Ino, &'p str)> {
        match path.rsplit_once('/') {
            Some((dir, name)) => Ok((self.resolve(dir)?.ino, name)),
            None => Ok((Ino::ROOT, path)),
        }
    }

    fn mkdir(&self, path: &str) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        self.engine.mkdir(parent, file_name(name)?, &new_node())?;
        Ok(())
    }

    fn create(&self, path: &str, content: &[u8]) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        let (_, opened) = self.engine.create(parent, file_name(name)?, &new_node(), Access::Write)?;
        ensure!(self.engine.write(opened.fh, 0, content)? == content.len(), "a short write");
        // What was written is safe once its file is flushed, as by close().
        self.engine.flush(opened.fh)?;
        self.engine.release(opened.fh)?;
        Ok(())
    }

    fn read(&self, path: &str, buf: &mut [u8]) -> Result<usize> {
        let opened = self.engine.open(self.resolve(path)?.ino, Access::Read, false)?;
        let len = self.engine.read(opened.fh, 0, buf)?;
        self.engine.release(opened.fh)?;
        Ok(len)
    }

    fn remove(&self, path: &str) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        drop(self.engine.unlink(parent, file_name(name)?)?);
        Ok(())
    }
}

fn ours(file: &Path, files: usize) -> Result<Round> {
    let mut rows = Round::new();
    let mut add = |name: &str, value: f64| {
        rows.insert(name.to_owned(), value);
    };
    let options = OpenOptions::new(Access::Write);
    let new = CreateOptions { capacity_bytes: None, durability: Durability::default(), owner: caller(), perm: 0o755 };
    let ours = Ours::with(Volume::create(file, &new, &options)?)?;
    let mut content = vec![b'c'; FILE_LEN];
    for dir in 0..files.div_ceil(FILES_A_DIR) {
        ours.mkdir(&format!("directory {dir}"))?;
    }
    let started = Instant::now();
    for number in 0..files {
        content[..8].copy_from_slice(&(number as u64).to_le_bytes());
        ours.create(&path(number), &content)?;
    }
    add("create", micros(started, files));
    ours.engine.store().sync_all()?;
    add("create-synced", micros(started, files));
    let levels: Vec<String> = (0..DEPTH - 1).map(|level| format!("level {level}")).collect();
    for depth in 1..DEPTH {
        ours.mkdir(&levels[..depth].join("/"))?;
    }
    let deep = format!("{}/file", levels.join("/"));
    ours.create(&deep, b"")?;
    ours.close()?;

    let ours = Ours::with(Volume::open(file, &options)?)?;
    for name in ["stat", "stat-again"] {
        let started = Instant::now();
        for number in 0..files {
            ensure!(ours.resolve(&path(number))?.size == FILE_LEN as u64, "wrong length");
        }
        add(name, micros(started, files));
    }
    for (name, count) in [("path", 1), ("path-again", REPEATS)] {
        let started = Instant::now();
        for _ in 0..count {
            ensure!(ours.resolve(&deep)?.kind == Kind::File, "not a file");
        }
        add(name, micros(started, count));
    }
    let dir = ours.resolve("directory 0")?.ino;
    let started = Instant::now();
    for _ in 0..REPEATS {
        let listing = ours.engine.listing(dir)?;
        ensure!(listing.entries_from(0).map(black_box).count() >= files.min(FILES_A_DIR), "entries are missing");
    }
    add("list", micros(started, REPEATS));
    let mut buf = vec![0; FILE_LEN];
    let started = Instant::now();
    for number in 0..files {
        ensure!(ours.read(&path(number), &mut buf)? == FILE_LEN, "a short read");
    }
    add("read", micros(started, files));
    let started = Instant::now();
    for number in 0..files {
        ours.remove(&path(number))?;
    }
    add("remove", micros(started, files));
    let started = Instant::now();
    ours.volume.create_snapshot(adit_volume::tree::MAIN, "one")?;
    add("snapshot", micros(started, 1));
    ours.close()?;
    Ok(rows)
}
