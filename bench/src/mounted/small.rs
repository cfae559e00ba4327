//! Many small files: created, looked at, listed, read, removed.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use super::bytes::Stream;
use super::{Change, Group, Turn, change, nothing_to_prepare};
use crate::RunArgs;
use crate::report::{Aim, Row, Unit};

const FILE_LEN: usize = 4096;
const FILES_A_DIR: u64 = 100;

static CREATE: Change = change(
    ["create, the calls alone", "create + syncfs of the mount", "create + clean unmount + syncfs of the disk"],
    Aim::Gocryptfs(1.5),
);
static UNLINK: Change = change(
    ["unlink, the calls alone", "unlink + syncfs of the mount", "unlink + clean unmount + syncfs of the disk"],
    Aim::Gocryptfs(1.0),
);

const fn row(name: &'static str, aim: Aim) -> Row {
    Row { name, unit: Unit::Seconds, aim }
}

static STAT_COLD: Row = row("stat of each, cold", Aim::Gocryptfs(1.0));
static STAT_WARM: Row = row("stat of each, warm", Aim::Host(0.9));
static LIST_COLD: Row = row("`ls -lR`, cold", Aim::Gocryptfs(1.5));
static LIST_WARM: Row = row("`ls -lR`, warm", Aim::Gocryptfs(1.0));
static READ_COLD: Row = row("read of each, cold", Aim::Gocryptfs(1.5));
static READ_WARM: Row = row("read of each, warm", Aim::Gocryptfs(1.0));

/// 2,000 files.
pub const FEW: Group = Group {
    name: "small-2000",
    about: |args| about(args, 2_000),
    takes: |side| side.keeps(),
    once: false,
    on_request: false,
    prepare: nothing_to_prepare,
    script: |turn| script(turn, 2_000),
};

/// 20,000 files.
pub const MANY: Group = Group {
    name: "small-20000",
    about: |args| about(args, 20_000),
    takes: |side| side.keeps(),
    once: false,
    on_request: false,
    prepare: nothing_to_prepare,
    script: |turn| script(turn, 20_000),
};

fn about(args: &RunArgs, full: u64) -> String {
    format!("{} files of 4 KiB, {FILES_A_DIR} a directory; each create is open, write, close.", args.scaled(full))
}

fn script(turn: &mut Turn<'_>, full: u64) -> Result<()> {
    let count = turn.args.scaled(full);
    let mounted = turn.mount_cold()?;
    let paths = paths(mounted.root(), count);
    turn.change(&CREATE, mounted, |_| create(&paths))?;

    let mounted = turn.mount_cold()?;
    turn.seconds(&STAT_COLD, || stat(&paths))?;
    turn.seconds(&STAT_WARM, || stat(&paths))?;
    turn.unmount(mounted)?;

    let mounted = turn.mount_cold()?;
    turn.seconds(&LIST_COLD, || list(mounted.root()))?;
    turn.seconds(&LIST_WARM, || list(mounted.root()))?;
    turn.unmount(mounted)?;

    let mounted = turn.mount_cold()?;
    turn.seconds(&READ_COLD, || read(&paths))?;
    turn.seconds(&READ_WARM, || read(&paths))?;
    turn.unmount(mounted)?;

    let mounted = turn.mount_cold()?;
    turn.change(&UNLINK, mounted, |_| remove(&paths))
}

fn paths(root: &Path, count: u64) -> Vec<PathBuf> {
    let path = |number| root.join(format!("directory {}/file {number}.txt", number / FILES_A_DIR));
    (0..count).map(path).collect()
}

fn create(paths: &[PathBuf]) -> Result<()> {
    let mut content = Stream::new(7).bytes(FILE_LEN);
    for (number, path) in paths.iter().enumerate() {
        if (number as u64).is_multiple_of(FILES_A_DIR)
            && let Some(dir) = path.parent()
        {
            fs::create_dir(dir)?;
        }
        content[..8].copy_from_slice(&(number as u64).to_le_bytes());
        File::create_new(path)?.write_all(&content)?;
    }
    Ok(())
}

fn stat(paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        ensure!(fs::symlink_metadata(path)?.len() == FILE_LEN as u64, "wrong length");
    }
    Ok(())
}

fn list(root: &Path) -> Result<()> {
    let status = Command::new("ls").arg("-lR").arg(root).stdout(Stdio::null()).status()?;
    ensure!(status.success(), "ls failed ({status})");
    Ok(())
}

fn read(paths: &[PathBuf]) -> Result<()> {
    let mut content = Vec::with_capacity(2 * FILE_LEN);
    for path in paths {
        content.clear();
        File::open(path)?.read_to_end(&mut content)?;
        ensure!(content.len() == FILE_LEN, "wrong length");
    }
    Ok(())
}

fn remove(paths: &[PathBuf]) -> Result<()> {
    for (number, path) in paths.iter().enumerate() {
        fs::remove_file(path)?;
        let is_last = number as u64 % FILES_A_DIR == FILES_A_DIR - 1 || number + 1 == paths.len();
        if is_last && let Some(dir) = path.parent() {
            fs::remove_dir(dir)?;
        }
    }
    Ok(())
}
