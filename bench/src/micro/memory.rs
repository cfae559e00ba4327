//! Memory of known inodes, counted at the allocator: engine alone, and engine with the vault's store.

use std::path::Path;
use std::sync::Arc;

use adit_core::engine::{Engine, EngineOptions};
use adit_core::store::{NewNode, Store};
use adit_core::types::{Caller, FileName, Ino};
use adit_media::HostDirectory;
use adit_vault::{CreateOptions, OpenOptions, Unlocked, VaultStore};
use anyhow::{Context, Result};

use super::counting;
use super::table_store::{self, TableStore};
use crate::report::{ADIT, Aim, Report, Row, Unit};

const FILES: usize = 10_000;
const FILES_A_DIR: usize = 100;
const PASSWORD: &str = "benchmark";

const fn row(name: &'static str, bytes_max: f64) -> Row {
    Row { name, unit: Unit::Bytes, aim: Aim::Bound(bytes_max) }
}

const ENGINE: Row = row("a known inode in the engine, attributes included, cached name not", 100.0);
const BOTH: Row = row("a known inode in engine and vault store, cached name not", 100.0);
const ALL: Row = row("all for 10,000 files in 100 directories, cached names included", 1_500_000.0);

/// Measures the memory.
pub fn run(dir: &Path, report: &mut Report) -> Result<()> {
    let title = "micro-memory: known inodes";
    report.group(
        title,
        "Bytes that 10,000 lookups leave allocated, as asked of the allocator; one sample, it does not vary.",
    );
    let engine = Engine::new(Arc::new(TableStore), EngineOptions::default());
    let names: Vec<String> = (0..FILES).map(table_store::name).collect();
    let (done, counts) = counting::counted(|| look_up(&engine, Ino::ROOT, &names));
    done?;
    report.add(title, &ENGINE, ADIT, (counts.live - cached_names(&engine)) as f64 / FILES as f64);
    drop(engine);

    let work = tempfile::Builder::new().prefix("adit-bench-").tempdir_in(dir)?;
    let keys = populate(work.path())?;
    let store = open(work.path(), &keys, false)?;
    let engine = Engine::new(Arc::new(store), EngineOptions::default());
    let dirs: Vec<String> = (0..FILES / FILES_A_DIR).map(|number| format!("directory {number}")).collect();
    let (done, counts) = counting::counted(|| -> Result<()> {
        for (number, name) in dirs.iter().enumerate() {
            let dir = engine.lookup(Ino::ROOT, FileName::new(name.as_bytes())?)?.attr.ino;
            look_up(&engine, dir, &names[number * FILES_A_DIR..][..FILES_A_DIR])?;
        }
        Ok(())
    });
    done?;
    let known = engine.known_inodes() as f64;
    report.add(title, &BOTH, ADIT, (counts.live - cached_names(&engine)) as f64 / known);
    report.add(title, &ALL, ADIT, counts.live as f64);
    Ok(())
}

/// Bytes of the cache of names, which is bounded and gives way, by the engine's own count.
fn cached_names(engine: &Engine) -> i64 {
    i64::try_from(engine.stats().dentries.bytes).unwrap_or(0)
}

fn look_up(engine: &Engine, dir: Ino, names: &[String]) -> Result<()> {
    for name in names {
        engine.lookup(dir, FileName::new(name.as_bytes())?)?;
    }
    Ok(())
}

/// Makes a vault with the files, empty ones, and returns its keys.
fn populate(work: &Path) -> Result<Unlocked> {
    for name in ["vault", "state"] {
        std::fs::create_dir(work.join(name))?;
    }
    let root = HostDirectory::open(&work.join("vault"))?;
    adit_vault::create(&root, PASSWORD, &CreateOptions::default())?;
    let keys = adit_vault::unlock(&root, PASSWORD)?;
    let store = open(work, &keys, true)?;
    let new = NewNode {
        perm: 0o755,
        umask: 0,
        caller: Caller { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() },
    };
    for number in 0..FILES / FILES_A_DIR {
        let dir = format!("directory {number}");
        let dir = store.mkdir(Ino::ROOT, FileName::new(dir.as_bytes())?, &new)?.ino;
        for index in number * FILES_A_DIR..(number + 1) * FILES_A_DIR {
            let name = table_store::name(index);
            store.create(dir, FileName::new(name.as_bytes())?, &new)?;
        }
    }
    store.sync_all().context("cannot write the vault")?;
    Ok(keys)
}

/// The vault's store, below which nothing runs in the background.
fn open(work: &Path, keys: &Unlocked, writable: bool) -> Result<VaultStore> {
    let state = match writable {
        true => Some(Arc::new(HostDirectory::open(&work.join("state"))?) as _),
        false => None,
    };
    let (store, _) = VaultStore::open(OpenOptions {
        root: Arc::new(HostDirectory::open(&work.join("vault"))?),
        state,
        abandoned: Vec::new(),
        masterkey: &keys.masterkey,
        config: &keys.config,
        background: false,
    })?;
    Ok(store)
}
