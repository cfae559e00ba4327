//! A tree over memory, for the tests.
#![allow(dead_code)] // Each test uses a part of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use adit_core::store::NewNode;
use adit_core::types::FileName;
use adit_core::{ErrorKind, Result};
use adit_testkit::own_caller;
use adit_volume::format::keys::NameHash;
use adit_volume::testing::MemBase;
use adit_volume::tree::MAIN;
use adit_volume::{Batch, Bytes, Extents, Run, Seq, Sink, Source, Space, Table, Tree, VolumeStore};

/// Blocks of the media: 1 GiB.
pub const BLOCKS: u64 = 1 << 18;

/// A tree and the memory that it lies in.
pub struct World {
    pub base: Arc<MemBase>,
    pub tree: Arc<Tree>,
    pub hash_bits: u32,
}

/// The name hash of the tests, of which only so many bits count.
pub fn hash(bits: u32) -> NameHash {
    NameHash::new(*b"a secret of test").weakened(bits)
}

impl World {
    /// An empty one.
    pub fn new() -> World {
        World::with(BLOCKS, 64)
    }

    /// An empty one of so many blocks, whose name hash has so many bits.
    pub fn with(blocks: u64, hash_bits: u32) -> World {
        let base = Arc::new(MemBase::new(blocks));
        Tree::format(&*base, own_caller(), 0o755).unwrap();
        World { tree: open(&base, hash_bits), base, hash_bits }
    }

    /// Closed, or killed, and opened again.
    pub fn reopen(self) -> World {
        let World { base, tree, hash_bits } = self;
        drop(tree);
        let base = Arc::new(base.reopen());
        World { tree: open(&base, hash_bits), base, hash_bits }
    }

    /// The branch of every volume.
    pub fn main(&self) -> VolumeStore {
        self.branch(MAIN)
    }

    pub fn branch(&self, name: &str) -> VolumeStore {
        VolumeStore::open(&self.tree, Source::Branch(name.to_owned())).unwrap()
    }
}

fn open(base: &Arc<MemBase>, hash_bits: u32) -> Arc<Tree> {
    Arc::new(Tree::open(base.clone(), base.clone(), hash(hash_bits)).unwrap())
}

pub fn name(s: &str) -> FileName<'_> {
    FileName::new(s.as_bytes()).unwrap()
}

pub fn new(perm: u16) -> NewNode {
    NewNode { perm, umask: 0, caller: own_caller() }
}

/// Media that take so many batches more, and fail then.
pub struct Failing {
    base: Arc<MemBase>,
    left: AtomicUsize,
    /// Whether syncs fail, too.
    pub fail_syncs: AtomicBool,
}

impl Failing {
    pub fn new(base: Arc<MemBase>, batches: usize) -> Arc<Failing> {
        Arc::new(Failing { base, left: AtomicUsize::new(batches), fail_syncs: AtomicBool::new(false) })
    }

    /// From now on they take so many batches.
    pub fn set_left(&self, batches: usize) {
        self.left.store(batches, Relaxed);
    }

    /// The tree on it.
    pub fn tree(self: &Arc<Self>) -> Arc<Tree> {
        Arc::new(Tree::open(self.clone(), self.base.clone(), hash(64)).unwrap())
    }
}

impl Table for Failing {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.base.get(key)
    }
    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        self.base.get_many(keys)
    }
    fn scan(&self, start: &[u8], end: &[u8], sink: &mut Sink<'_>) -> Result<()> {
        self.base.scan(start, end, sink)
    }
    fn apply(&self, batch: Batch) -> Result<Seq> {
        let take = |left: usize| left.checked_sub(1);
        if self.left.fetch_update(Relaxed, Relaxed, take).is_err() {
            return Err(ErrorKind::Io.into());
        }
        self.base.apply(batch)
    }
    fn batch_len_max_bytes(&self) -> usize {
        self.base.batch_len_max_bytes()
    }
    fn sync(&self) -> Result<()> {
        if self.fail_syncs.load(Relaxed) { Err(ErrorKind::Io.into()) } else { self.base.sync() }
    }
    fn checkpoint(&self) -> Result<()> {
        self.base.checkpoint()
    }
}

/// Media that take nothing.
pub struct ReadOnly(pub Arc<MemBase>);

impl ReadOnly {
    /// The tree on them.
    pub fn tree(base: &Arc<MemBase>) -> Arc<Tree> {
        Arc::new(Tree::open(Arc::new(ReadOnly(base.clone())), base.clone(), hash(64)).unwrap())
    }
}

impl Table for ReadOnly {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.0.get(key)
    }
    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        self.0.get_many(keys)
    }
    fn scan(&self, start: &[u8], end: &[u8], sink: &mut Sink<'_>) -> Result<()> {
        self.0.scan(start, end, sink)
    }
    fn apply(&self, _: Batch) -> Result<Seq> {
        Err(ErrorKind::ReadOnly.into())
    }
    fn batch_len_max_bytes(&self) -> usize {
        self.0.batch_len_max_bytes()
    }
    fn sync(&self) -> Result<()> {
        Err(ErrorKind::ReadOnly.into())
    }
    fn checkpoint(&self) -> Result<()> {
        Err(ErrorKind::ReadOnly.into())
    }
}

/// Extents that let other threads go first at each call.
pub struct Yielding(pub Arc<MemBase>);

impl Yielding {
    /// A tree on them.
    pub fn tree(base: &Arc<MemBase>) -> Arc<Tree> {
        Arc::new(Tree::open(base.clone(), Arc::new(Yielding(base.clone())), hash(64)).unwrap())
    }

    fn others_first() {
        for _ in 0..20 {
            std::thread::yield_now();
        }
    }
}

impl Extents for Yielding {
    fn reserve(&self, blocks: u32, hint: Option<u64>, uses_reserve: bool) -> Result<Vec<Run>> {
        // Always from the start, so that what was freed is used again soon.
        let _ = hint;
        self.0.reserve(blocks, None, uses_reserve)
    }
    fn release(&self, runs: &[Run]) {
        self.0.release(runs);
    }
    fn write(&self, block: u64, bytes: &[u8]) -> Result<()> {
        Self::others_first();
        self.0.write(block, bytes)
    }
    fn read(&self, block: u64, buf: &mut [u8]) -> Result<()> {
        Self::others_first();
        self.0.read(block, buf)
    }
    fn space(&self) -> Space {
        self.0.space()
    }
}
