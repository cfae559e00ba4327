//! Large files: in sequence, at random, and rewritten as a whole at random.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use super::bytes::Stream;
use super::{Group, Turn, nothing_to_prepare};
use crate::RunArgs;
use crate::report::{Aim, Row, Unit};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
const LARGE_BLOCK: u64 = 64 << 10;
/// The default memory budget of a mount.
const BUDGET_MIB: f64 = 256.0;

const fn row(name: &'static str, unit: Unit, aim: Aim) -> Row {
    Row { name, unit, aim }
}

const SEQ_WRITE: Row = row("sequential write, fsync included", Unit::MibPerSec, Aim::Gocryptfs(2.0));
const SEQ_WRITE_CALLS: Row = row("sequential write, without fsync", Unit::MibPerSec, Aim::None);
const SEQ_READ_COLD: Row = row("sequential read, cold", Unit::MibPerSec, Aim::Host(0.9));
const SEQ_READ_WARM: Row = row("sequential read, warm", Unit::MibPerSec, Aim::Gocryptfs(1.0));

/// One file written and read in 1 MiB calls.
pub const SEQUENTIAL: Group = Group {
    name: "sequential",
    about: |args| format!("One file of {} MiB in calls of 1 MiB.", args.scaled(512)),
    takes: |side| side.keeps(),
    once: false,
    on_request: false,
    prepare: nothing_to_prepare,
    script: sequential,
};

fn sequential(turn: &mut Turn<'_>) -> Result<()> {
    let mib = turn.args.scaled(512);
    let rate = |took: f64| mib as f64 / took;
    let mounted = turn.mount_cold()?;
    let path = mounted.root().join("large");
    let (calls, synced) = write_file(&path, mib)?;
    turn.sample(&SEQ_WRITE, rate(synced));
    turn.sample(&SEQ_WRITE_CALLS, rate(calls));
    turn.unmount(mounted)?;

    let mounted = turn.mount_cold()?;
    for row in [&SEQ_READ_COLD, &SEQ_READ_WARM] {
        let took = read_file(&path, mib)?;
        turn.sample(row, rate(took));
    }
    turn.unmount(mounted)
}

/// Writes so many MiB; returns the seconds of the calls, and those with fsync.
pub fn write_file(path: &Path, mib: u64) -> Result<(f64, f64)> {
    let mut block = Stream::new(1).bytes(MIB as usize);
    let started = Instant::now();
    let mut file = File::create(path)?;
    for number in 0..mib {
        block[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all(&block)?;
    }
    let calls = started.elapsed().as_secs_f64();
    file.sync_all().context("fsync")?;
    Ok((calls, started.elapsed().as_secs_f64()))
}

/// Reads to the end; returns the seconds.
fn read_file(path: &Path, mib: u64) -> Result<f64> {
    let mut block = vec![0; MIB as usize];
    let started = Instant::now();
    let mut file = File::open(path)?;
    let mut total = 0;
    loop {
        let len = file.read(&mut block)?;
        if len == 0 {
            break;
        }
        total += len as u64;
    }
    anyhow::ensure!(total == mib * MIB, "the file has {total} bytes");
    Ok(started.elapsed().as_secs_f64())
}

const RAND_READ_COLD: Row = row("random 4 KiB read, cold", Unit::PerSec, Aim::Gocryptfs(1.0));
const RAND_READ_WARM: Row = row("random 4 KiB read, warm", Unit::PerSec, Aim::Gocryptfs(1.0));
const RAND_WRITE: Row = row("random 4 KiB write, fsync included", Unit::PerSec, Aim::Gocryptfs(2.0));
const RAND_WRITE_CALLS: Row = row("random 4 KiB write, without fsync", Unit::PerSec, Aim::None);

/// A file read and overwritten in 4 KiB calls.
pub const RANDOM: Group = Group {
    name: "random",
    about: |args| {
        let blocks = args.scaled(64) * MIB / BLOCK;
        format!(
            "A file of {} MiB, calls of 4 KiB in random order, each block once: {} cold reads, all {blocks} blocks warm, and \
             all of them written, with one fsync at the end.",
            args.scaled(64),
            blocks / 4
        )
    },
    takes: |side| side.keeps(),
    once: false,
    on_request: false,
    prepare: nothing_to_prepare,
    script: random,
};

fn random(turn: &mut Turn<'_>) -> Result<()> {
    let mib = turn.args.scaled(64);
    let blocks = mib * MIB / BLOCK;
    let mounted = turn.mount_cold()?;
    let path = mounted.root().join("file");
    write_file(&path, mib)?;
    turn.unmount(mounted)?;

    let order = Stream::new(2).permutation(blocks);
    let mounted = turn.mount_cold()?;
    let some = &order[..order.len() / 4];
    turn.sample(&RAND_READ_COLD, read_blocks(&path, some)?);
    read_file(&path, mib)?;
    turn.sample(&RAND_READ_WARM, read_blocks(&path, &order)?);
    turn.unmount(mounted)?;

    let mounted = turn.mount_cold()?;
    let order = Stream::new(3).permutation(blocks);
    let (calls, synced) = write_blocks(&path, &order, BLOCK)?;
    turn.sample(&RAND_WRITE, synced);
    turn.sample(&RAND_WRITE_CALLS, calls);
    turn.unmount(mounted)
}

/// Reads the blocks in this order; returns calls a second.
fn read_blocks(path: &Path, order: &[u64]) -> Result<f64> {
    let mut block = vec![0; BLOCK as usize];
    let file = File::open(path)?;
    let started = Instant::now();
    for number in order {
        file.read_exact_at(&mut block, number * BLOCK)?;
    }
    Ok(order.len() as f64 / started.elapsed().as_secs_f64())
}

/// Overwrites the blocks in this order; returns calls a second, without and with the fsync.
fn write_blocks(path: &Path, order: &[u64], len: u64) -> Result<(f64, f64)> {
    let mut block = Stream::new(4).bytes(len as usize);
    let file = File::options().write(true).open(path)?;
    let started = Instant::now();
    for number in order {
        block[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all_at(&block, number * len)?;
    }
    let calls = started.elapsed().as_secs_f64();
    file.sync_all().context("fsync")?;
    let synced = started.elapsed().as_secs_f64();
    Ok((order.len() as f64 / calls, order.len() as f64 / synced))
}

const REWRITE_LARGE: Row = row("rewritten in 64 KiB calls, fsync included", Unit::MibPerSec, Aim::Gocryptfs(1.0));
const REWRITE_SMALL: Row = row("4 KiB calls all over it, fsync included", Unit::PerSec, Aim::Gocryptfs(1.0));
const REWRITE_MEMORY: Row = row("memory meanwhile, RssAnon + RssShmem", Unit::Mib, Aim::Bound(BUDGET_MIB));

/// A file larger than any cache, rewritten at random.
pub const REWRITE: Group = Group {
    name: "rewrite",
    about: |args| {
        format!(
            "A file of {} MiB, rewritten as a whole in 64 KiB calls in random order, then {} random 4 KiB calls all over it.",
            args.scaled(4096),
            small_calls(args)
        )
    },
    takes: |side| side.keeps(),
    once: true,
    on_request: false,
    prepare: nothing_to_prepare,
    script: rewrite,
};

fn small_calls(args: &RunArgs) -> u64 {
    args.scaled(65_536)
}

fn rewrite(turn: &mut Turn<'_>) -> Result<()> {
    let mib = turn.args.scaled(4096);
    let mounted = turn.mount_cold()?;
    let path = mounted.root().join("file");
    write_file(&path, mib)?;
    turn.unmount(mounted)?;

    let mounted = turn.mount_cold()?;
    let order = Stream::new(5).permutation(mib * MIB / LARGE_BLOCK);
    let (_, rate) = write_blocks(&path, &order, LARGE_BLOCK)?;
    turn.sample(&REWRITE_LARGE, rate * LARGE_BLOCK as f64 / MIB as f64);
    let mut order = Stream::new(6).permutation(mib * MIB / BLOCK);
    order.truncate(usize::try_from(small_calls(turn.args))?);
    let (_, rate) = write_blocks(&path, &order, BLOCK)?;
    turn.sample(&REWRITE_SMALL, rate);
    if turn.side.is_served() {
        turn.sample(&REWRITE_MEMORY, mounted.memory().anonymous as f64 / MIB as f64);
    }
    turn.unmount(mounted)
}
