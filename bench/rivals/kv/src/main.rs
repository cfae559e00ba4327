//! The tree of a volume over one key-value store: a round of what `bench/src/micro/volume/kv.rs` compares. Prints a JSON
//! object of row names and figures.
//!
//! `adit` is the volume's own base: a log, a table in memory, and redb in pages of its container. The others are a key-value
//! store as it comes, below a table in memory too ([`Grouped`]), which gives them 16 MiB of changes at once, durably, as a
//! checkpoint does. They have no log: a kill costs them what was not committed.
//!
//! `kv-bench STORE DIR FILES`, the folder being empty

mod grouped;
mod stores;

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use adit_core::store::{NewNode, Store};
use adit_core::types::{Access, Caller, FileName, Ino};
use adit_media::HostBlockFile;
use adit_volume::format::keys::NameHash;
use adit_volume::table::Options;
use adit_volume::tree::MAIN;
use adit_volume::{Base, Extents, NewVolume, Source, Table, Tree, VolumeStore};
use anyhow::{Context, Result, bail, ensure};
use rustix::time::{ClockId, clock_gettime};

use grouped::{Grouped, NoExtents};
use stores::{Fjall, Lmdb, Redb};

/// Memory for pages, of each store.
const CACHE_BYTES: usize = 256 << 20;
/// How long a volume's file may become.
const CAPACITY_BYTES: u64 = 64 << 30;
const FILES_A_DIR: usize = 100;
/// Random lookups and listed entries, at most.
const LOOKUPS_MAX: usize = 200_000;
/// The names' hash has this key where the volume's own is not there.
const SECRET: [u8; 16] = *b"benchmark secret";

type Rows = BTreeMap<&'static str, f64>;

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [store, dir, files] = arguments.as_slice() else {
        bail!("usage: kv-bench adit|redb|fjall|lmdb DIR FILES");
    };
    let rows = round(store, Path::new(dir), files.parse().context("FILES is a number")?)?;
    println!("{}", serde_json::to_string(&rows)?);
    Ok(())
}

/// A table and a place for extents, and the key of the names' hash.
struct Opened {
    table: Arc<dyn Table>,
    extents: Arc<dyn Extents>,
    secret: [u8; 16],
}

impl Opened {
    fn tree(&self) -> Result<VolumeStore> {
        let tree = Tree::open(self.table.clone(), self.extents.clone(), NameHash::new(self.secret))?;
        Ok(VolumeStore::open(&Arc::new(tree), Source::Branch(MAIN.into()))?)
    }
}

/// Opens a store in a folder, for the first time or again.
fn open(store: &str, dir: &Path) -> Result<Opened> {
    let table: Arc<dyn Table> = match store {
        "adit" => return open_base(&dir.join("volume")),
        "redb" => Arc::new(Grouped::new(Redb::open(dir, CACHE_BYTES)?)),
        "fjall" => Arc::new(Grouped::new(Fjall::open(dir, CACHE_BYTES)?)),
        "lmdb" => Arc::new(Grouped::new(Lmdb::open(dir)?)),
        _ => bail!("there is no store {store}"),
    };
    Ok(Opened { table, extents: Arc::new(NoExtents), secret: SECRET })
}

fn open_base(path: &Path) -> Result<Opened> {
    let options = Options { cache_bytes: CACHE_BYTES, ..Options::default() };
    let base = if path.exists() {
        Base::open(Arc::new(HostBlockFile::open(path, Access::Write)?), "volume", options)?
    } else {
        let file = HostBlockFile::create(path)?;
        Base::create(Arc::new(file), "volume", &NewVolume::new(CAPACITY_BYTES), options)?
    };
    let secret = base.info().secret;
    let base = Arc::new(base);
    Ok(Opened { table: base.clone(), extents: base, secret })
}

fn round(store: &str, dir: &Path, files: usize) -> Result<Rows> {
    let mut rows = Rows::new();
    let dirs = create(store, dir, files, &mut rows)?;
    File::open(dir).and_then(|dir| Ok(rustix::fs::syncfs(&dir)?)).context("cannot sync the folder")?;
    rows.insert("size", space_of(dir)? as f64 / files as f64);

    let started = Instant::now();
    let opened = open(store, dir)?;
    let tree = opened.tree()?;
    rows.insert("open", started.elapsed().as_secs_f64() * 1e3);
    let mut order: Vec<usize> = (0..files).collect();
    shuffle(&mut order);
    let some = &order[..files.min(LOOKUPS_MAX)];
    let started = Instant::now();
    for &number in some {
        let name = name_of(number);
        let attr = tree.lookup(dirs[number / FILES_A_DIR], file_name(&name)?)?;
        tree.forget(attr.ino);
    }
    rows.insert("lookup", some.len() as f64 / started.elapsed().as_secs_f64());
    let mut listed = 0;
    let started = Instant::now();
    for dir in dirs.iter().take(LOOKUPS_MAX.div_ceil(FILES_A_DIR)) {
        tree.read_dir(*dir, 0, &mut |_| {
            listed += 1;
            ControlFlow::Continue(())
        })?;
    }
    rows.insert("list", listed as f64 / started.elapsed().as_secs_f64());
    ensure!(listed == files.min(LOOKUPS_MAX), "{listed} entries were listed");
    let tenth = &order[..files.div_ceil(10)];
    let started = Instant::now();
    for &number in tenth {
        tree.unlink(dirs[number / FILES_A_DIR], file_name(&name_of(number))?)?;
    }
    opened.table.checkpoint()?;
    rows.insert("unlink", tenth.len() as f64 / started.elapsed().as_secs_f64());
    rows.insert("memory", peak_memory_mib()?);
    Ok(rows)
}

/// Makes the files, and closes the store; returns the directories.
fn create(store: &str, dir: &Path, files: usize, rows: &mut Rows) -> Result<Vec<Ino>> {
    let opened = open(store, dir)?;
    let new = NewNode { perm: 0o755, umask: 0, caller: Caller { uid: 0, gid: 0 } };
    Tree::format(&*opened.table, new.caller, new.perm)?;
    let tree = opened.tree()?;
    let (cpu, started) = (process_cpu_secs(), Instant::now());
    let mut dirs = Vec::new();
    for number in 0..files {
        if number % FILES_A_DIR == 0 {
            let name = format!("directory {}", number / FILES_A_DIR);
            dirs.push(tree.mkdir(Ino::ROOT, file_name(&name)?, &new)?.ino);
        }
        let (attr, file) = tree.create(dirs[number / FILES_A_DIR], file_name(&name_of(number))?, &new)?;
        drop(file);
        tree.forget(attr.ino);
    }
    opened.table.checkpoint()?;
    rows.insert("create", files as f64 / started.elapsed().as_secs_f64());
    rows.insert("create-cpu", (process_cpu_secs() - cpu) * 1e6 / files as f64);
    Ok(dirs)
}

fn name_of(number: usize) -> String {
    format!("document {number:07}.txt")
}

fn file_name(name: &str) -> Result<FileName<'_>> {
    FileName::new(name.as_bytes()).map_err(|e| anyhow::anyhow!("{name}: {e:?}"))
}

/// Fisher and Yates with a small congruential generator.
fn shuffle(numbers: &mut [usize]) {
    let mut state = 1u64;
    for at in (1..numbers.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        numbers.swap(at, (state >> 33) as usize % (at + 1));
    }
}

/// CPU time of all threads.
fn process_cpu_secs() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn peak_memory_mib() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("the kernel does not say")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}

/// Bytes that the files in a folder take on the disk.
fn space_of(dir: &Path) -> Result<u64> {
    let mut space = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let found = entry.metadata()?;
        space += if found.is_dir() { space_of(&entry.path())? } else { found.blocks() * 512 };
    }
    Ok(space)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_store_keeps_what_the_tree_makes() {
        for store in ["adit", "redb", "fjall", "lmdb"] {
            let work = tempfile::tempdir().unwrap();
            let rows = round(store, work.path(), 250).unwrap();
            assert_eq!(rows.len(), 8, "{store}");
            assert!(rows.values().all(|value| *value > 0.0), "{store}: {rows:?}");
            // Opened a third time: what was unlinked is gone, the rest is there.
            let tree = open(store, work.path()).unwrap().tree().unwrap();
            let mut left = 0;
            for number in 0..250 {
                let dir = format!("directory {}", number / FILES_A_DIR);
                let dir = tree.lookup(Ino::ROOT, file_name(&dir).unwrap()).unwrap().ino;
                left += usize::from(tree.lookup(dir, file_name(&name_of(number)).unwrap()).is_ok());
            }
            assert_eq!(left, 225, "{store}");
        }
    }
}
