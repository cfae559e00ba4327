//! The folder of this machine in which objects of a content-addressed store are kept, so that they are fetched once.
//!
//! [`Cache`] is the folder, shared by all processes that open it; [`CachedObject`] an object in it; [`Fetch`] what gets bytes that
//! are not there. [`check_folder`] walks through all of it. Why it is made so: `docs/decisions/0017-manifest-cache.md`; its bytes:
//! `docs/formats/manifest-cache.md`.
//!
//! Invariants:
//! - What comes out was fetched for this object, or was compared with a checksum that was taken when it was. Nothing in the folder is
//!   believed without its mark, whatever a kill, a power cut or a hand left there. An object of one block, and with
//!   [`CacheOptions::strict`] any, was compared with its hash before.
//! - No read fails because of the folder: what cannot be kept is fetched and handed on.
//! - No lock is held while bytes are fetched. Who needs a block that somebody fetches waits for that block alone, and not for ever.
//! - The folder is a cache: nothing is ever synced, and all of it may be deleted at any time.
//!
//! It knows neither keys nor networks; that [`Fetch`] ends in time is for its implementation.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adit_core::error::Result;
use adit_core::media::HostDir;
use parking_lot::Mutex;

mod bits;
mod check;
mod fault;
mod fill;
mod flight;
mod generation;
mod id;
mod keep;
mod map;
mod object;
mod scan;
mod space;
mod stats;
mod strict;
mod sums;
mod verify;
mod want;
mod whole;
mod work;

pub use check::{CheckOptions, CheckProgress, CheckReport, Finding, Problem, check_folder};
pub use fault::ObjectFault;
pub use id::ObjectId;
pub use object::{CachedObject, ObjectState};
pub use stats::CacheStats;

use generation::make_dir;
use scan::Goal;
use space::Space;
use stats::Counters;
use work::Queue;

/// Objects that stay open after their last user, so that the next one finds them so. Each has two descriptors at most.
const KEPT_MAX: usize = 64;

/// Gets bytes of objects from wherever they are.
pub trait Fetch: Send + Sync {
    /// Hands the bytes of `range`, which lies within the object, to `sink`: in order, in pieces of any size (each costs a write,
    /// so 64 KiB and more are good). An error of `sink` is to be returned at once. It has a deadline of its own.
    fn fetch(&self, id: &ObjectId, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;
}

/// Wants to know what happens to objects. Called with no lock held, from whatever thread found it out.
pub trait Watch: Send + Sync {
    /// The object had other content than its hash says. What was read of it (without [`CacheOptions::strict`]) may have been
    /// wrong; whoever keeps that has to drop it.
    fn quarantined(&self, id: &ObjectId);
}

/// How a folder is used.
#[derive(Clone)]
pub struct CacheOptions {
    /// Bytes of the host's space that all objects together may take. Default: no limit but the host's.
    pub limit_bytes: u64,
    /// Bytes of the folder's disk that are left to others: objects go before there is less free, whoever took it. Default: the twentieth
    /// of the disk, at least 64 MiB or the fourth of a small one, at most 1 GiB.
    pub keep_free_bytes: Option<u64>,
    /// Length of a block of new objects in bytes, a power of two from 512 to 64 Mi. The unit of fetching; an object that is no
    /// longer is kept as a whole. Default 1 MiB.
    pub block_len: u32,
    /// Whether no byte of an object is handed out before all of it was compared with its hash. Default false.
    pub strict: bool,
    /// An object of at most so many bytes is fetched and compared whole before anything of it is [kept](CachedObject::read_to_keep) by
    /// somebody; of a longer one that is noted to be compared later. Default 8 MiB.
    pub verify_first_bytes: u64,
    /// Threads that verify and make room in the background. With none that is done by whoever makes it necessary. Default 2.
    pub workers: usize,
    /// How long who waits for somebody else's bytes goes on waiting while none come. More than a [`Fetch`] may take for a block, so
    /// that nobody gives up before the one whom it waits for. Default 180 s.
    pub patience: Duration,
    /// How long another process may take for a block before it is fetched a second time. Default 5 s.
    pub others_patience: Duration,
    /// How long an object that came with wrong content twice is not asked for again. Default 30 s.
    pub retry_after: Duration,
    /// Bytes of memory that the checksums of objects may take that the folder has no room for: 8 for each block. The object that was
    /// compared last keeps its own in any case. Default 16 MiB.
    pub memory_bytes: u64,
    /// Who is told.
    pub watch: Option<Arc<dyn Watch>>,
}

impl Default for CacheOptions {
    fn default() -> Self {
        CacheOptions {
            limit_bytes: u64::MAX,
            keep_free_bytes: None,
            block_len: 1 << 20,
            strict: false,
            verify_first_bytes: 8 << 20,
            workers: 2,
            patience: Duration::from_secs(180),
            others_patience: Duration::from_secs(5),
            retry_after: Duration::from_secs(30),
            memory_bytes: 16 << 20,
            watch: None,
        }
    }
}

/// A folder of objects. Locking: its own, none of it held while anything is read, written or fetched.
pub struct Cache {
    inner: Arc<Inner>,
    threads: Vec<JoinHandle<()>>,
}

/// What the objects of a cache share.
pub(super) struct Inner {
    host: Arc<dyn HostDir>,
    options: CacheOptions,
    counters: Counters,
    space: Space,
    queue: Queue,
    registry: Mutex<Registry>,
    /// What all checksums in memory take.
    sums_bytes: Arc<AtomicU64>,
    /// How often some object was found wrong.
    moment: AtomicU64,
    started: Instant,
}

#[derive(Default)]
struct Registry {
    live: HashMap<ObjectId, Weak<CachedObject>>,
    /// The newest ones, each once.
    kept: VecDeque<Arc<CachedObject>>,
    /// When `live` has so many entries, the dead ones are looked for.
    sweep_at: usize,
}

impl Cache {
    /// Opens the folder `host`, which may be empty, and may be in use by other processes. Nothing outside of it is touched. What
    /// it makes is for this user alone (0700, 0600). An error is that of the first folder in it that cannot be made.
    pub fn open(host: Arc<dyn HostDir>, options: CacheOptions) -> Result<Cache> {
        make_dir(&*host, Path::new(id::OBJECTS)).map_err(|e| on_folder(e, id::OBJECTS))?;
        make_dir(&*host, Path::new(id::QUARANTINE)).map_err(|e| on_folder(e, id::QUARANTINE))?;
        let workers = options.workers;
        let inner = Arc::new(Inner {
            host,
            counters: Counters::default(),
            space: Space::new(options.limit_bytes),
            queue: Queue::new(workers),
            registry: Mutex::default(),
            sums_bytes: Arc::default(),
            moment: AtomicU64::new(0),
            started: Instant::now(),
            options,
        });
        inner.open_space();
        let threads = (0..workers).filter_map(|_| work::start(inner.clone()).ok()).collect();
        Ok(Cache { inner, threads })
    }

    /// An object, whether anything of it is there or not. Opens nothing yet.
    pub fn object(&self, id: ObjectId) -> Arc<CachedObject> {
        self.inner.object(id)
    }

    /// How often some object was found wrong: a moment, for [`CachedObject::check_since`].
    pub fn moment(&self) -> u64 {
        self.inner.moment.load(Ordering::Acquire)
    }

    /// Whether nothing is handed out before it was compared, see [`CacheOptions::strict`].
    pub fn is_strict(&self) -> bool {
        self.inner.options.strict
    }

    /// Length of a block of new objects, in bytes.
    pub fn block_len(&self) -> u32 {
        self.inner.options.block_len
    }

    /// How much all objects together may take now, in bytes: what they were given, or less if the disk has less.
    pub fn limit_bytes(&self) -> u64 {
        self.inner.space.limit()
    }

    /// Makes room on the disk for `bytes` of somebody else who finds it full, as far as there are objects to be removed. Whether there
    /// were, so that another try is worth it.
    pub fn make_room_for(&self, bytes: u64) -> bool {
        self.inner.make_room(Goal::ForOthers(bytes))
    }

    /// Counters, and how much there is.
    pub fn stats(&self) -> CacheStats {
        let (used, limit) = (self.inner.space.estimate(), self.inner.options.limit_bytes);
        self.inner.counters.snapshot(used, limit, self.inner.space.kept_free())
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.inner.queue.close();
        // They refer to this cache, and it to them.
        let kept = std::mem::take(&mut self.inner.registry.lock().kept);
        drop(kept);
        for thread in self.threads.drain(..) {
            // Whether it ended well is of no use to anybody any more.
            let _ = thread.join();
        }
        self.inner.tell_usage();
    }
}

fn on_folder(e: std::io::Error, folder: &str) -> adit_core::FsError {
    adit_core::FsError::from(e).on("make folder of the cache", folder)
}

impl Inner {
    fn object(self: &Arc<Self>, id: ObjectId) -> Arc<CachedObject> {
        let mut registry = self.registry.lock();
        if let Some(object) = registry.live.get(&id).and_then(Weak::upgrade) {
            return object;
        }
        let object = CachedObject::new(self.clone(), id);
        registry.live.insert(id, Arc::downgrade(&object));
        if registry.live.len() >= registry.sweep_at {
            registry.live.retain(|_, object| object.strong_count() > 0);
            registry.sweep_at = registry.live.len() * 2 + KEPT_MAX * 2;
        }
        registry.kept.push_back(object.clone());
        let oldest = if registry.kept.len() > KEPT_MAX { registry.kept.pop_front() } else { None };
        drop(registry);
        // Perhaps closes files.
        drop(oldest);
        object
    }

    /// The object with this id, if somebody holds it or it is kept open.
    fn live(&self, id: ObjectId) -> Option<Arc<CachedObject>> {
        self.registry.lock().live.get(&id).and_then(Weak::upgrade)
    }

    /// Whether somebody holds it.
    fn is_in_use(&self, id: ObjectId) -> bool {
        let registry = self.registry.lock();
        let holders = registry.live.get(&id).map_or(0, Weak::strong_count);
        holders > usize::from(holders > 0 && registry.kept.iter().any(|kept| kept.id() == id))
    }

    /// All objects that somebody holds or that are kept open.
    fn all_live(&self) -> Vec<Arc<CachedObject>> {
        self.registry.lock().live.values().filter_map(Weak::upgrade).collect()
    }

    /// Counts an error of the folder, which no reader is told of.
    fn note(&self, doing: &str, id: &ObjectId, e: &std::io::Error) {
        stats::add(&self.counters.folder_errors, 1);
        if space::is_full(e) {
            // That is no fault of anything.
            return;
        }
        tracing::warn!(object = %id, error = %e, "the cache folder failed: {doing}");
    }

    /// Seconds since the cache was opened.
    fn now_secs(&self) -> u64 {
        self.started.elapsed().as_secs()
    }
}
