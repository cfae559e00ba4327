//! The engine above a [`Store`]: lookup counts, handles, caches, write-back, and what is told to the front end.
//!
//! [`Engine`] is the one type; front ends (a FUSE mount, mountless verbs) call its methods from many threads. It knows
//! neither FUSE nor any format.
//!
//! **Locks**, in the order in which they may be taken:
//! 1. the reference gate (shared by calls that make inodes known; exclusive for [`Store::forget`], which does no I/O),
//! 2. the lock of one open inode, held while the store reads or writes that file, never two of them at once,
//! 3. leaves: a shard of a table or cache, a listing of a handle. No store call and no other lock below a leaf.
//!
//! **Staleness** never adds up: what is handed out from a cache carries the time that it has left there.
//!
//! What it is not: it does not check permissions (the kernel does). Paths it knows only to find where they lead (`paths`).

mod ahead;
mod attrs;
mod background;
mod buffer;
mod clock;
mod dentries;
mod dirs;
mod file;
mod handles;
mod held;
mod inodes;
mod listing;
mod lost;
mod namespace;
mod observer;
mod paths;
mod ranges;
mod read;
mod segments;
mod stats;
mod worth;
mod xattrs;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst, fence};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

pub use self::ahead::AheadStats;
pub use self::listing::Listing;
pub use self::observer::Observer;
pub use self::paths::PathStats;
pub use self::stats::{CacheStats, HitCounter, OpStats, Stats};
pub use self::worth::WorthStats;

use self::ahead::Ahead;
use self::background::{Flusher, Notices};
use self::clock::{Clock, NEVER, Tick};
use self::dentries::Dentries;
use self::handles::{DirHandle, FileHandle, Handles, OpenInodes};
use self::inodes::InodeTable;
use self::listing::Listings;
use self::lost::Lost;
use self::paths::Paths;
use self::read::Units;
use self::stats::Counters;
use crate::error::{ErrorKind, FsError, Result};
use crate::memory::{Budget, Part};
use crate::store::{Capabilities, Store};
use crate::types::{Attr, FileName, Ino};

/// How an [`Engine`] behaves.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// How long attributes may be served without asking the store again. Default 1 s.
    pub attr_ttl: Duration,
    /// Likewise for entries and listings. Default 1 s.
    pub entry_ttl: Duration,
    /// Likewise for the absence of an entry. Default 1 s.
    pub negative_ttl: Duration,
    /// The memory budget in bytes: caches and buffered writes. Default 256 MiB.
    pub memory_bytes: u64,
    /// The whole that several engines of this process share, and what is taken of it for as long as this one lives, in bytes.
    /// Its limit counts then, and not `memory_bytes`. Default: none.
    pub shared_memory: Option<(Arc<Budget>, u64)>,
    /// Refuse all changes.
    pub read_only: bool,
    /// The kernel buffers writes itself and owns size and times of files that it writes to (`-o exclusive`).
    pub kernel_writeback: bool,
    /// Entries of a listing that are looked up before anybody asks for them, at most, in a store whose names are slow
    /// ([`Capabilities::slow_names`]); 0: none. Twice as many are held. Default 1024.
    pub ahead_max: usize,
    /// What a lookup has to take on average for that. Default 100 µs: less than that, and waking up another thread for it takes as long.
    pub ahead_from: Duration,
}

impl Default for EngineOptions {
    fn default() -> Self {
        let ttl = Duration::from_secs(1);
        EngineOptions {
            attr_ttl: ttl,
            entry_ttl: ttl,
            negative_ttl: ttl,
            memory_bytes: 256 << 20,
            shared_memory: None,
            read_only: false,
            kernel_writeback: false,
            ahead_max: 1024,
            ahead_from: Duration::from_micros(100),
        }
    }
}

/// The number of an open file or directory; files and directories are numbered apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fh(pub u64);

/// An entry with the time for which it may be cached. It is a reference: see [`Engine::forget`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Attributes of the child.
    pub attr: Attr,
    /// Tells two uses of one inode number apart.
    pub generation: u64,
    /// How long the attributes may be cached.
    pub attr_ttl: Duration,
    /// How long the name may be cached.
    pub entry_ttl: Duration,
}

/// What a lookup found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// The entry.
    Found(Entry),
    /// There is none, and that may be cached for `ttl`.
    Absent {
        /// The time left.
        ttl: Duration,
    },
}

/// A file that was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// Its handle.
    pub fh: Fh,
    /// Pages that the kernel holds of this file are still right.
    pub keep_cache: bool,
    /// A handle for reading: closing it needs no flush.
    pub no_flush: bool,
    /// The kernel holds no pages of this file, and it is opened for reading: see [`Engine::give_whole`].
    pub unread: bool,
}

/// Whether a listing goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SinkFlow {
    /// The entry was taken.
    More,
    /// The entry was *not* taken: there is no room for it.
    Full,
}

/// Tells the kernel to drop what it has cached. Called only from a thread of its own that holds no lock.
pub trait Notifier: Send + Sync {
    /// Drop attributes and the pages of a range (`len` 0: to the end).
    fn inval_inode(&self, ino: Ino, offset: i64, len: i64);
    /// Drop an entry.
    fn inval_entry(&self, parent: Ino, name: FileName<'_>);
}

/// The engine; see the module's notes.
pub struct Engine {
    this: Weak<Engine>,
    store: Arc<dyn Store>,
    caps: Capabilities,
    options: EngineOptions,
    budget: Arc<Budget>,
    clock: Clock,
    inodes: InodeTable,
    dentries: Dentries,
    listings: Listings,
    units: Units,
    open: OpenInodes,
    files: Handles<FileHandle>,
    dirs: Handles<DirHandle>,
    gate: RwLock<()>,
    /// Inodes without references that the store was not told of yet.
    unreferenced: Mutex<Vec<Ino>>,
    unreferenced_len: AtomicUsize,
    lost: Lost,
    notices: Notices,
    flusher: Arc<Flusher>,
    counters: Counters,
    ahead: Option<Arc<Ahead>>,
    paths: Option<Paths>,
    observer: OnceLock<Box<dyn Observer>>,
    /// What an index of this engine takes, in bytes.
    index_bytes: AtomicU64,
}

/// Shared hold of the gate: references may arise. Inodes that lost their last one meanwhile are forgotten at its end.
struct Knowing<'a> {
    engine: &'a Engine,
    gate: Option<RwLockReadGuard<'a, ()>>,
}

impl Drop for Knowing<'_> {
    fn drop(&mut self) {
        self.gate.take();
        fence(SeqCst);
        if self.engine.unreferenced_len.load(SeqCst) > 0 {
            self.engine.reap(false);
        }
    }
}

impl Engine {
    /// An engine on `store`. Starts a thread that writes buffered data back, if the store wants writes buffered.
    pub fn new(store: Arc<dyn Store>, options: EngineOptions) -> Arc<Engine> {
        let caps = store.capabilities();
        let budget = Arc::new(match &options.shared_memory {
            Some((whole, fixed_bytes)) => Budget::part_of(whole, *fixed_bytes),
            None => Budget::new(options.memory_bytes),
        });
        let ahead = Ahead::new(&caps, &options);
        let engine = Arc::new_cyclic(|this| Engine {
            this: this.clone(),
            inodes: InodeTable::new(budget.clone()),
            dentries: Dentries::new(budget.clone()),
            listings: Listings::new(budget.clone()),
            units: Units::new(budget.clone()),
            open: OpenInodes::new(),
            files: Handles::new(),
            dirs: Handles::new(),
            gate: RwLock::new(()),
            unreferenced: Mutex::default(),
            unreferenced_len: AtomicUsize::new(0),
            lost: Lost::default(),
            notices: Notices::default(),
            flusher: Arc::default(),
            counters: Counters::default(),
            ahead,
            paths: caps.slow_names.then(|| Paths::new(&budget)),
            observer: OnceLock::new(),
            index_bytes: AtomicU64::new(0),
            clock: Clock::new(),
            budget,
            options,
            caps,
            store,
        });
        // The root is known from the start, and never forgotten.
        if engine.inodes.add_ref(Ino::ROOT).and_then(|()| engine.inodes.pin(Ino::ROOT)).is_err() {
            tracing::error!("no room for the root inode");
        }
        if engine.buffers_writes() {
            background::start_flusher(&engine);
        }
        engine
    }

    /// Whom to tell about foreign changes, and that it knows too much; starts the thread that does.
    pub fn set_notifier(self: &Arc<Self>, notifier: Box<dyn Notifier>) {
        self.notices.start(notifier, Arc::downgrade(self));
    }

    /// The options that it was made with.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Whether `ino` is in the table of known inodes.
    #[inline]
    pub fn is_known(&self, ino: Ino) -> bool {
        self.inodes.known(ino)
    }

    /// Inodes in the table, the root included.
    pub fn known_inodes(&self) -> usize {
        self.inodes.len()
    }

    /// The inodes in the table.
    pub fn all_known(&self) -> Vec<Ino> {
        self.inodes.all()
    }

    /// References by lookup that are out on `ino`.
    pub fn lookup_count(&self, ino: Ino) -> u64 {
        self.inodes.count(ino)
    }

    /// Takes back `count` references to `ino`. The last one makes the store forget it, as soon as no handle and no
    /// buffered data hold it.
    pub fn forget(&self, ino: Ino, count: u64) {
        self.counters.forget(count);
        if ino != Ino::ROOT && self.inodes.forget(ino, count) {
            self.unreference(ino);
        }
    }

    /// Writes everything buffered, forgets what is unreferenced, and makes the store durable. The first error is
    /// returned after all was tried.
    pub fn shutdown(&self) -> Result<()> {
        let mut first = None;
        if let Some(observer) = self.observer.get() {
            observer.ends();
        }
        self.end_ahead();
        self.end_paths();
        for ino in self.open.dirty() {
            first = first.or(self.flush_inode(ino, clock::NEVER).err());
        }
        self.reap(true);
        self.notices.stop();
        self.flusher.stop();
        if !self.is_read_only() {
            first = first.or(self.store.sync_all().err());
        }
        first.map_or(Ok(()), Err)
    }

    /// Whether nothing can be changed: the store takes no changes, or it was mounted so.
    pub fn is_read_only(&self) -> bool {
        self.options.read_only || self.caps.read_only
    }

    fn check_writable(&self, op: &'static str) -> Result<()> {
        if self.is_read_only() { Err(FsError::new(ErrorKind::ReadOnly).on(op, "")) } else { Ok(()) }
    }

    fn buffers_writes(&self) -> bool {
        self.caps.buffer_writes && !self.is_read_only()
    }

    fn unit_len(&self) -> usize {
        (self.caps.unit_len_bytes as usize).max(512)
    }

    /// Known inodes beyond which the front end is asked to forget some; one that was opened [counts twice](InodeTable::weight).
    fn inodes_max(&self) -> usize {
        let share = self.budget.limit_bytes() / INODES_SHARE;
        (self.budget.left_of_bytes(Part::Inodes, share) / INODE_LEN_BYTES) as usize
    }

    /// When something cached now expires.
    fn expiry(&self, now: Tick, ttl: Duration) -> Tick {
        if self.caps.shared { self.clock.expiry(now, ttl) } else { NEVER }
    }

    /// Must be held while the store is asked for something that makes an inode known, until it is counted.
    fn knowing(&self) -> Knowing<'_> {
        Knowing { engine: self, gate: Some(self.gate.read()) }
    }

    /// Gives back a pin.
    fn unpin(&self, ino: Ino) {
        if self.inodes.unpin(ino) {
            self.unreference(ino);
        }
    }

    /// Nothing holds `ino` any more: tell the store, now or as soon as no lookup runs.
    fn unreference(&self, ino: Ino) {
        let backlog = {
            let mut list = self.unreferenced.lock();
            list.push(ino);
            self.unreferenced_len.store(list.len(), SeqCst);
            list.len()
        };
        fence(SeqCst);
        self.reap(backlog > BACKLOG_MAX);
    }

    /// Forgets the unreferenced inodes. Without `wait` it leaves them to the lookups that run now.
    fn reap(&self, wait: bool) {
        loop {
            let gate = if wait { Some(self.gate.write()) } else { self.gate.try_write() };
            let Some(gate) = gate else { return };
            let list = {
                let mut list = self.unreferenced.lock();
                self.unreferenced_len.store(0, SeqCst);
                std::mem::take(&mut *list)
            };
            for ino in list {
                // A reference may have come back meanwhile: then the table keeps it, and the store is not told.
                if self.inodes.reap(ino) {
                    self.dentries.forgotten(ino);
                    self.listings.remove(ino);
                    self.units.drop_inode(ino);
                    self.lost.forgotten(ino);
                    self.store.forget(ino);
                }
            }
            drop(gate);
            fence(SeqCst);
            if self.unreferenced_len.load(SeqCst) == 0 {
                return;
            }
        }
    }
}

/// The part of the budget that known inodes may take in the engine; stores and names need about as much again.
const INODES_SHARE: u64 = 4;
/// What one of them takes: a record, and its part of the index. What is kept of one that was opened takes as much again.
const INODE_LEN_BYTES: u64 = 64;

/// Unreferenced inodes beyond which a forget waits for the lookups that run, and holds new ones off.
const BACKLOG_MAX: usize = 4096;

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(ahead) = &self.ahead {
            ahead.end();
        }
        self.flusher.stop();
        self.notices.stop();
    }
}
