//! What the engine's tests share: a store with faults over the reference store, and an engine as a store again.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod engines;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adit_core::engine::{Engine, EngineOptions, Fh, SinkFlow};
use adit_core::store::{Capabilities, Created, DirEntry, NewNode, Spelling, Store, StoreFile};
use adit_core::types::*;
use adit_core::{ErrorKind, Result};
use adit_testkit::model::{Limits, MemoryStore};

pub fn name(s: &str) -> FileName<'_> {
    FileName::new(s.as_bytes()).unwrap()
}

pub fn new_node() -> NewNode {
    NewNode { perm: 0o644, umask: 0, caller: adit_testkit::own_caller() }
}

pub fn options(ttl: Duration, memory_bytes: u64) -> EngineOptions {
    EngineOptions { attr_ttl: ttl, entry_ttl: ttl, negative_ttl: ttl, memory_bytes, ..EngineOptions::default() }
}

/// What a test sets and reads of a [`FaultyStore`].
#[derive(Default)]
pub struct Faults {
    pub writes_fail: AtomicBool,
    pub reads_fail: AtomicBool,
    pub syncs_fail: AtomicBool,
    pub allocates_fail: AtomicBool,
    pub setattrs_fail: AtomicBool,
    /// Whether the kernel keeps the times of files; to be set before the engine is made.
    pub kernel_writeback: AtomicBool,
    pub getattr_fails_of: AtomicU64,
    pub lookups: AtomicU64,
    pub getattrs: AtomicU64,
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    /// Writes wait for it.
    pub write_gate: Mutex<()>,
    pub listings: AtomicU64,
    /// Entries that these handed out.
    pub listed: AtomicU64,
    /// Lookups of several entries at once.
    pub batches: AtomicU64,
    lookups_running: AtomicU64,
    pub overlaps: AtomicU64,
}

/// The reference store with counters, faults, and a check that forgets and lookups never overlap.
#[derive(Clone)]
pub struct FaultyStore {
    pub inner: MemoryStore,
    pub faults: Arc<Faults>,
    limits: Limits,
}

impl FaultyStore {
    pub fn new(limits: Limits) -> Self {
        FaultyStore { inner: MemoryStore::new(limits), faults: Arc::default(), limits }
    }

    fn knowing<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        self.faults.lookups_running.fetch_add(1, Relaxed);
        std::thread::yield_now();
        let r = f();
        self.faults.lookups_running.fetch_sub(1, Relaxed);
        r
    }

    fn wrap(&self, file: Arc<dyn StoreFile>) -> Arc<dyn StoreFile> {
        Arc::new(FaultyFile { inner: file, faults: self.faults.clone() })
    }
}

impl Store for FaultyStore {
    fn capabilities(&self) -> Capabilities {
        let kernel_writeback = self.faults.kernel_writeback.load(Relaxed);
        Capabilities { shared: self.limits.shared, kernel_writeback, ..self.inner.capabilities() }
    }
    fn spelling(&self, name: FileName<'_>) -> Spelling {
        match name.as_bytes() {
            name if name.is_ascii() => Spelling::Only,
            name if name == "\u{e9}".as_bytes() => Spelling::Stored,
            _ => Spelling::Other,
        }
    }
    fn lookup(&self, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        self.faults.lookups.fetch_add(1, Relaxed);
        self.knowing(|| {
            let attr = self.inner.lookup(parent, name)?;
            if attr.ino.0 == self.faults.getattr_fails_of.load(Relaxed) {
                return Err(ErrorKind::Corrupt.into());
            }
            Ok(attr)
        })
    }
    fn lookup_listed(&self, parent: Ino, entries: &[DirEntry<'_>]) -> Vec<Result<Attr>> {
        self.faults.batches.fetch_add(1, Relaxed);
        entries.iter().map(|entry| self.lookup(parent, entry.name)).collect()
    }
    fn forget(&self, ino: Ino) {
        if self.faults.lookups_running.load(Relaxed) > 0 {
            self.faults.overlaps.fetch_add(1, Relaxed);
        }
        self.inner.forget(ino);
    }
    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.faults.getattrs.fetch_add(1, Relaxed);
        if ino.0 == self.faults.getattr_fails_of.load(Relaxed) {
            return Err(ErrorKind::Corrupt.into());
        }
        self.inner.getattr(ino)
    }
    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        if self.faults.setattrs_fail.load(Relaxed) {
            return Err(ErrorKind::NoSpace.into());
        }
        self.inner.setattr(ino, set)
    }
    fn read_dir(&self, dir: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        self.faults.listings.fetch_add(1, Relaxed);
        self.inner.read_dir(dir, start, &mut |entry| {
            self.faults.listed.fetch_add(1, Relaxed);
            sink(entry)
        })
    }
    fn create(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<(Attr, Arc<dyn StoreFile>)> {
        let (attr, file) = self.knowing(|| self.inner.create(parent, name, new))?;
        Ok((attr, self.wrap(file)))
    }
    fn create_in(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Created> {
        let (attr, file) = self.create(parent, name, new)?;
        Ok(Created { attr, file, parent: self.inner.getattr(parent).ok() })
    }
    fn mkdir(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr> {
        self.knowing(|| self.inner.mkdir(parent, name, new))
    }
    fn symlink(&self, parent: Ino, name: FileName<'_>, target: &[u8], caller: Caller) -> Result<Attr> {
        self.knowing(|| self.inner.symlink(parent, name, target, caller))
    }
    fn mknod(&self, parent: Ino, name: FileName<'_>, kind: Kind, rdev: u32, new: &NewNode) -> Result<Attr> {
        self.knowing(|| self.inner.mknod(parent, name, kind, rdev, new))
    }
    fn link(&self, ino: Ino, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        self.knowing(|| self.inner.link(ino, parent, name))
    }
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.inner.readlink(ino)
    }
    fn unlink(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.inner.unlink(parent, name)
    }
    fn rmdir(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.inner.rmdir(parent, name)
    }
    fn rename(&self, p: Ino, n: FileName<'_>, q: Ino, m: FileName<'_>, flags: RenameFlags) -> Result<()> {
        self.inner.rename(p, n, q, m, flags)
    }
    fn open(&self, ino: Ino, access: Access) -> Result<Arc<dyn StoreFile>> {
        Ok(self.wrap(self.inner.open(ino, access)?))
    }
    fn xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        self.inner.xattr(ino, name)
    }
    fn xattr_names(&self, ino: Ino) -> Result<Vec<u8>> {
        self.inner.xattr_names(ino)
    }
    fn set_xattr(&self, ino: Ino, name: XattrName<'_>, value: &[u8], set: XattrSet) -> Result<()> {
        self.inner.set_xattr(ino, name, value, set)
    }
    fn remove_xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<()> {
        self.inner.remove_xattr(ino, name)
    }
    fn sync_dir(&self, dir: Ino) -> Result<()> {
        self.inner.sync_dir(dir)
    }
    fn sync_all(&self) -> Result<()> {
        self.inner.sync_all()
    }
    fn statfs(&self) -> Result<StatFs> {
        self.inner.statfs()
    }
}

struct FaultyFile {
    inner: Arc<dyn StoreFile>,
    faults: Arc<Faults>,
}

impl StoreFile for FaultyFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.faults.reads.fetch_add(1, Relaxed);
        if self.faults.reads_fail.load(Relaxed) {
            return Err(ErrorKind::Io.into());
        }
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        self.faults.writes.fetch_add(1, Relaxed);
        drop(self.faults.write_gate.lock().unwrap());
        assert!(pieces.windows(2).all(|w| w[0].0 + w[0].1.len() as u64 <= w[1].0), "pieces ascend");
        if self.faults.writes_fail.load(Relaxed) {
            return Err(ErrorKind::NoSpace.into());
        }
        self.inner.write_at(pieces)
    }
    fn set_len(&self, len: u64) -> Result<()> {
        self.inner.set_len(len)
    }
    fn len(&self) -> Result<u64> {
        self.inner.len()
    }
    fn sync(&self, data_only: bool) -> Result<()> {
        if self.faults.syncs_fail.load(Relaxed) {
            return Err(ErrorKind::Io.into());
        }
        self.inner.sync(data_only)
    }
    fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        if self.faults.allocates_fail.load(Relaxed) {
            return Err(ErrorKind::Io.into());
        }
        self.inner.allocate(offset, len, mode)
    }
    fn seek_data(&self, offset: u64) -> Result<u64> {
        self.inner.seek_data(offset)
    }
    fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.inner.seek_hole(offset)
    }
}

/// An engine seen as a store, so that whatever tests stores tests engines.
pub struct EngineStore(pub Arc<Engine>);

impl Store for EngineStore {
    fn capabilities(&self) -> Capabilities {
        self.0.store().capabilities()
    }
    fn lookup(&self, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        Ok(self.0.lookup(parent, name)?.attr)
    }
    fn forget(&self, ino: Ino) {
        self.0.forget(ino, self.0.lookup_count(ino));
    }
    fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.0.getattr(ino, None)?.0)
    }
    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        Ok(self.0.setattr(ino, set, None)?.0)
    }
    fn read_dir(&self, dir: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        let fh = self.0.opendir(dir)?;
        // In several calls, as a kernel does it.
        let (mut at, mut stop, mut listed) = (start, false, Ok(()));
        while !stop {
            let (mut taken, from) = (0, at);
            let mut take = |e: DirEntry<'_>| {
                if taken == 3 || stop {
                    return SinkFlow::Full;
                }
                (taken, at) = (taken + 1, e.cookie);
                stop = sink(e).is_break();
                // What is taken with attributes is a reference, also where nobody wants more.
                SinkFlow::More
            };
            listed = match dir.0 % 2 {
                0 => self.0.read_dir(fh, from, &mut take),
                _ => self.0.read_dir_plus(fh, from, &mut |e, found| {
                    let flow = take(e);
                    if let (SinkFlow::More, Some(found)) = (flow, found) {
                        self.0.forget(found.attr.ino, 1);
                    }
                    flow
                }),
            };
            stop |= taken == 0;
        }
        self.0.releasedir(fh)?;
        listed
    }
    fn create(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<(Attr, Arc<dyn StoreFile>)> {
        let (entry, opened) = self.0.create(parent, name, new, Access::Write)?;
        Ok((entry.attr, self.file(entry.attr.ino, opened.fh)))
    }
    fn mkdir(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr> {
        Ok(self.0.mkdir(parent, name, new)?.attr)
    }
    fn symlink(&self, parent: Ino, name: FileName<'_>, target: &[u8], caller: Caller) -> Result<Attr> {
        Ok(self.0.symlink(parent, name, target, caller)?.attr)
    }
    fn mknod(&self, parent: Ino, name: FileName<'_>, kind: Kind, rdev: u32, new: &NewNode) -> Result<Attr> {
        Ok(self.0.mknod(parent, name, kind, rdev, new)?.attr)
    }
    fn link(&self, ino: Ino, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        Ok(self.0.link(ino, parent, name)?.attr)
    }
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.0.readlink(ino)
    }
    fn unlink(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.0.unlink(parent, name).map(drop)
    }
    fn rmdir(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.0.rmdir(parent, name)
    }
    fn rename(&self, p: Ino, n: FileName<'_>, q: Ino, m: FileName<'_>, flags: RenameFlags) -> Result<()> {
        self.0.rename(p, n, q, m, flags)
    }
    fn open(&self, ino: Ino, access: Access) -> Result<Arc<dyn StoreFile>> {
        let opened = self.0.open(ino, access, false)?;
        Ok(self.file(ino, opened.fh))
    }
    fn xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        self.0.xattr(ino, name)
    }
    fn xattr_names(&self, ino: Ino) -> Result<Vec<u8>> {
        self.0.xattr_names(ino)
    }
    fn set_xattr(&self, ino: Ino, name: XattrName<'_>, value: &[u8], set: XattrSet) -> Result<()> {
        self.0.set_xattr(ino, name, value, set)
    }
    fn remove_xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<()> {
        self.0.remove_xattr(ino, name)
    }
    fn sync_dir(&self, dir: Ino) -> Result<()> {
        let fh = self.0.opendir(dir)?;
        let synced = self.0.fsyncdir(fh);
        self.0.releasedir(fh)?;
        synced
    }
    fn sync_all(&self) -> Result<()> {
        self.0.store().sync_all()
    }
    fn statfs(&self) -> Result<StatFs> {
        self.0.statfs()
    }
}

impl EngineStore {
    fn file(&self, ino: Ino, fh: Fh) -> Arc<dyn StoreFile> {
        Arc::new(EngineFile { engine: self.0.clone(), ino, fh })
    }
}

struct EngineFile {
    engine: Arc<Engine>,
    ino: Ino,
    fh: Fh,
}

impl StoreFile for EngineFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.engine.read(self.fh, offset, buf)
    }
    fn write_at(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        pieces.iter().try_for_each(|&(at, bytes)| self.engine.write(self.fh, at, bytes).map(drop))
    }
    fn set_len(&self, len: u64) -> Result<()> {
        let set = SetAttr { size: Some(len), ..SetAttr::default() };
        let (attr, _) = self.engine.setattr(self.ino, &set, Some(self.fh))?;
        assert_eq!(attr.size, len);
        Ok(())
    }
    fn len(&self) -> Result<u64> {
        Ok(self.engine.getattr(self.ino, Some(self.fh))?.0.size)
    }
    fn sync(&self, data_only: bool) -> Result<()> {
        self.engine.fsync(self.fh, data_only)
    }
    fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        self.engine.allocate(self.fh, offset, len, mode)
    }
    fn seek_data(&self, offset: u64) -> Result<u64> {
        self.engine.seek(self.fh, offset, true)
    }
    fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.engine.seek(self.fh, offset, false)
    }
}

impl Drop for EngineFile {
    fn drop(&mut self) {
        self.engine.release(self.fh).unwrap();
    }
}
