//! The volume, by calls in this process: what its caches, its table and its snapshots cost.
//!
//! A [`World`] is a volume in a file of the work folder whose parts can be called one by one.

mod cache;
mod kv;
mod library;
mod memory;
mod reads;
mod snapshots;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use adit_core::media::BlockFile;
use adit_core::store::{NewNode, Store};
use adit_core::types::{Caller, FileName, Ino};
use adit_media::HostBlockFile;
use adit_volume::format::keys::NameHash;
use adit_volume::table::Options;
use adit_volume::tree::MAIN;
use adit_volume::{Base, Batch, Bytes, NewVolume, Seq, Sink, Source, Table, Tree, VolumeStore};
use anyhow::Result;
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::RunArgs;
use crate::report::Report;

/// Groups of rows, for `--rows`, and what measures them.
pub const GROUPS: [Group; 7] = [
    ("micro-cache", false, cache::run),
    ("micro-reads", false, reads::run),
    ("micro-snapshots", false, snapshots::run),
    ("micro-inodes", false, memory::run),
    ("micro-library", false, library::run),
    ("micro-kv", true, kv::run),
    ("micro-kv-10m", true, kv::run_large),
];

/// Its name, whether it is run only if it is asked for by its name, and what measures it.
type Group = (&'static str, bool, fn(&RunArgs, &Path, &mut Report) -> Result<()>);

/// How long the file of a [`World`] may become.
const CAPACITY_BYTES: u64 = 64 << 30;
/// Pages of its key-value store that stay in memory: all of them.
const CACHE_BYTES: usize = 512 << 20;
/// Files in a directory of a [`World`].
const FILES_A_DIR: usize = 100;

/// A volume in a file that goes with it.
struct World {
    /// The table below the tree.
    base: Arc<Base>,
    /// What the tree asks of it.
    asked: Arc<Recorder>,
    tree: Arc<Tree>,
    store: VolumeStore,
    file: Arc<CountingFile>,
    _work: TempDir,
}

impl World {
    /// An empty one.
    fn new(dir: &Path) -> Result<World> {
        let work = tempfile::Builder::new().prefix("adit-bench-").tempdir_in(dir)?;
        let file = HostBlockFile::create(&work.path().join("volume"))?;
        let file = Arc::new(CountingFile { file, syncs: AtomicU64::new(0) });
        let options = Options { background: false, cache_bytes: CACHE_BYTES, ..Options::default() };
        let base = Arc::new(Base::create(file.clone(), "volume", &NewVolume::new(CAPACITY_BYTES), options)?);
        Tree::format(&*base, caller(), 0o755)?;
        let asked = Arc::new(Recorder { base: base.clone(), on: AtomicBool::new(false), keys: Mutex::default() });
        let tree = Arc::new(Tree::open(asked.clone(), base.clone(), NameHash::new(base.info().secret))?);
        let store = VolumeStore::open(&tree, Source::Branch(MAIN.into()))?;
        Ok(World { base, asked, tree, store, file, _work: work })
    }

    /// Makes so many empty files, [`FILES_A_DIR`] in a directory, and moves them to the key-value store.
    fn fill(&self, files: usize) -> Result<Filled> {
        let mut filled = Filled { dirs: Vec::new(), files: Vec::with_capacity(files) };
        for number in 0..files {
            if number % FILES_A_DIR == 0 {
                let name = format!("directory {}", number / FILES_A_DIR);
                filled.dirs.push(self.store.mkdir(Ino::ROOT, file_name(&name)?, &new_node())?.ino);
            }
            let dir = filled.dirs[number / FILES_A_DIR];
            filled.files.push(self.store.create(dir, file_name(&name_of(number))?, &new_node())?.0.ino);
        }
        self.base.checkpoint()?;
        Ok(filled)
    }

    /// Makes a chain of directories and a file at its end; returns the names, the file's last.
    fn deepen(&self, depth: usize) -> Result<Vec<String>> {
        let names: Vec<String> = (0..depth).map(|level| format!("level {level}")).collect();
        let mut dir = Ino::ROOT;
        for (level, name) in names.iter().enumerate() {
            if level + 1 < depth {
                dir = self.store.mkdir(dir, file_name(name)?, &new_node())?.ino;
            } else {
                self.store.create(dir, file_name(name)?, &new_node())?;
            }
        }
        self.base.checkpoint()?;
        Ok(names)
    }
}

/// What [`World::fill`] made.
struct Filled {
    dirs: Vec<Ino>,
    files: Vec<Ino>,
}

/// The name of a file.
fn name_of(number: usize) -> String {
    format!("document {number:07}.txt")
}

fn file_name(name: &str) -> Result<FileName<'_>> {
    FileName::new(name.as_bytes()).map_err(|e| anyhow::anyhow!("{name}: {e:?}"))
}

fn caller() -> Caller {
    Caller { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

fn new_node() -> NewNode {
    NewNode { perm: 0o755, umask: 0, caller: caller() }
}

/// A file whose syncs are counted.
struct CountingFile {
    file: HostBlockFile,
    syncs: AtomicU64,
}

impl BlockFile for CountingFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, Relaxed);
        self.file.sync()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.punch(offset, len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.allocate(offset, len)
    }

    fn start_writeback(&self, offset: u64, len: u64) {
        self.file.start_writeback(offset, len);
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.file.try_lock()
    }
}

/// A table that notes what it is asked for, while it is asked to.
struct Recorder {
    base: Arc<Base>,
    on: AtomicBool,
    keys: Mutex<Vec<Vec<u8>>>,
}

impl Recorder {
    /// The keys that `work` gets; a scan counts as a get of where it starts.
    fn record(&self, work: impl FnOnce() -> Result<()>) -> Result<Vec<Vec<u8>>> {
        self.keys.lock().clear();
        self.on.store(true, Relaxed);
        let done = work();
        self.on.store(false, Relaxed);
        done?;
        Ok(std::mem::take(&mut self.keys.lock()))
    }

    fn note(&self, key: &[u8]) {
        if self.on.load(Relaxed) {
            self.keys.lock().push(key.to_vec());
        }
    }
}

impl Table for Recorder {
    fn get(&self, key: &[u8]) -> adit_core::Result<Option<Bytes>> {
        self.note(key);
        self.base.get(key)
    }

    fn get_many(&self, keys: &[&[u8]]) -> adit_core::Result<Vec<Option<Bytes>>> {
        keys.iter().for_each(|key| self.note(key));
        self.base.get_many(keys)
    }

    fn scan(&self, start: &[u8], end: &[u8], sink: &mut Sink<'_>) -> adit_core::Result<()> {
        self.note(start);
        self.base.scan(start, end, sink)
    }

    fn apply(&self, batch: Batch) -> adit_core::Result<Seq> {
        self.base.apply(batch)
    }

    fn batch_len_max_bytes(&self) -> usize {
        self.base.batch_len_max_bytes()
    }

    fn sync(&self) -> adit_core::Result<()> {
        self.base.sync()
    }

    fn checkpoint(&self) -> adit_core::Result<()> {
        self.base.checkpoint()
    }
}
