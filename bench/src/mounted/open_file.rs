//! The price of a call: on an open file, and of open-read-close beside a server that does nothing.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, ensure};

use super::bytes::Stream;
use super::{Group, Turn, nothing_to_prepare};
use crate::null_server;
use crate::report::{Aim, Row, Unit};

const BLOCK: u64 = 4096;
const FILE_LEN: usize = 16 << 20;
const FILES: usize = 500;
const PASSES: usize = 10;
/// Open-read-close within 1.3 times the null server's time.
const OF_NULL: f64 = 1.0 / 1.3;

const fn row(name: &'static str, unit: Unit, aim: Aim) -> Row {
    Row { name, unit, aim }
}

static FSTAT: Row = row("fstat of an open file", Unit::Nanos, Aim::Host(0.9));
static PREAD: Row = row("4 KiB pread of an open file, warm", Unit::Nanos, Aim::Host(0.9));
static OPEN_COLD: Row = row("open-read-close, cold", Unit::Micros, Aim::Gocryptfs(1.5));
static OPEN_WARM: Row = row("open-read-close, warm", Unit::Micros, Aim::Null(OF_NULL));

/// Single calls, also beside the null server.
pub const OPEN_FILE: Group = Group {
    name: "open-file",
    about: |args| {
        format!(
            "{} calls on one open file of 16 MiB in the page cache; open, read and close of {FILES} files of 4 KiB, one pass \
             cold, {PASSES} warm.",
            args.scaled(CALLS)
        )
    },
    takes: |_| true,
    once: false,
    on_request: false,
    prepare: nothing_to_prepare,
    script,
};
const CALLS: u64 = 80_000;

fn script(turn: &mut Turn<'_>) -> Result<()> {
    if turn.side.keeps() {
        let mounted = turn.mount_cold()?;
        fs::write(mounted.root().join("large"), Stream::new(8).bytes(FILE_LEN))?;
        let content = Stream::new(9).bytes(null_server::FILE_LEN);
        for path in files(mounted.root()) {
            fs::write(path, &content)?;
        }
        turn.unmount(mounted)?;
    }
    let mounted = turn.mount_cold()?;
    let paths = files(mounted.root());
    let micros_a_file = |passes: usize| -> Result<f64> {
        let started = Instant::now();
        for _ in 0..passes {
            open_read_close(&paths)?;
        }
        Ok(started.elapsed().as_secs_f64() * 1e6 / (passes * FILES) as f64)
    };
    turn.sample(&OPEN_COLD, micros_a_file(1)?);
    turn.sample(&OPEN_WARM, micros_a_file(PASSES)?);
    if turn.side.keeps() {
        open_file(turn, &mounted.root().join("large"))?;
    }
    turn.unmount(mounted)
}

fn files(root: &Path) -> Vec<PathBuf> {
    (0..FILES).map(|number| root.join(format!("f{number}"))).collect()
}

fn open_read_close(paths: &[PathBuf]) -> Result<()> {
    // Longer than the file, as most programs read: the second read that finds the end is part of it.
    let mut content = [0; 2 * null_server::FILE_LEN];
    for path in paths {
        let mut file = File::open(path)?;
        let len = file.read(&mut content)?;
        ensure!(len == null_server::FILE_LEN && file.read(&mut content)? == 0, "wrong length");
    }
    Ok(())
}

fn open_file(turn: &mut Turn<'_>, path: &Path) -> Result<()> {
    let calls = turn.args.scaled(CALLS);
    let file = File::open(path)?;
    let mut block = vec![0; BLOCK as usize];
    for number in 0..FILE_LEN as u64 / BLOCK {
        file.read_exact_at(&mut block, number * BLOCK)?;
    }
    let nanos = |started: Instant| started.elapsed().as_secs_f64() * 1e9 / calls as f64;
    let started = Instant::now();
    for _ in 0..calls {
        // Not `File::metadata`, which asks for the birth time too.
        rustix::fs::fstat(&file)?;
    }
    turn.sample(&FSTAT, nanos(started));
    let order = Stream::new(10).permutation(FILE_LEN as u64 / BLOCK);
    let started = Instant::now();
    for number in order.iter().cycle().take(usize::try_from(calls)?) {
        file.read_exact_at(&mut block, number * BLOCK)?;
    }
    turn.sample(&PREAD, nanos(started));
    Ok(())
}
