//! Counters of the engine, and their snapshot for `adit stats`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{AheadStats, Engine, INODE_LEN_BYTES, PathStats};
use crate::memory::Part;

/// Hits and misses of a cache, striped so that threads do not share a cache line.
#[derive(Default)]
pub struct HitCounter {
    stripes: [Stripe; STRIPES],
}

const STRIPES: usize = 8;

#[derive(Default)]
#[repr(align(64))]
struct Stripe {
    hits: AtomicU64,
    misses: AtomicU64,
}

impl HitCounter {
    /// Counts a hit. Takes no lock, and may lose a count.
    #[inline]
    pub fn hit(&self) {
        bump(&self.stripes[stripe()].hits);
    }

    /// Counts a miss.
    pub fn miss(&self) {
        self.stripes[stripe()].misses.fetch_add(1, Relaxed);
    }

    pub(crate) fn misses(&self, count: usize) {
        self.stripes[stripe()].misses.fetch_add(count as u64, Relaxed);
    }

    /// With what the cache holds, and the memory that it takes and may take, in bytes.
    pub fn stats(&self, entries: u64, bytes: u64, max_bytes: u64) -> CacheStats {
        CacheStats::new(self, (entries, bytes), max_bytes)
    }

    fn sums(&self) -> (u64, u64) {
        let sum = |f: fn(&Stripe) -> &AtomicU64| self.stripes.iter().map(|s| f(s).load(Relaxed)).sum();
        (sum(|s| &s.hits), sum(|s| &s.misses))
    }
}

/// Not a read-modify-write: a hit costs no bus lock. Two threads of one stripe may lose a count; it is a statistic.
#[inline]
fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

/// A stripe per thread, given out in turn.
#[inline]
fn stripe() -> usize {
    use std::cell::Cell;
    use std::sync::atomic::AtomicUsize;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<usize> = const { Cell::new(usize::MAX) });
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Relaxed) % STRIPES);
        }
        mine.get()
    })
}

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Calls so far, by operation.
        #[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
        pub struct OpStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Default)]
        pub(crate) struct OpCounters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl OpCounters {
            fn snapshot(&self) -> OpStats {
                OpStats { $($name: self.$name.load(Relaxed),)* }
            }
        }

        impl OpStats {
            /// Names and values, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

ops! {
    /// References taken back.
    forgets,
    /// Changes of attributes.
    setattrs,
    /// Files, directories, links and nodes made.
    creates,
    /// Names removed.
    removes,
    /// Renames.
    renames,
    /// Targets of symbolic links read.
    readlinks,
    /// Files opened.
    opens,
    /// Reads.
    reads,
    /// Bytes read.
    read_bytes,
    /// Writes.
    writes,
    /// Bytes written.
    written_bytes,
    /// Flushes.
    flushes,
    /// Syncs of files and directories.
    syncs,
    /// Calls of `fallocate`.
    allocates,
    /// Searches for data or holes.
    seeks,
    /// Extended attributes read, listed and changed.
    xattrs,
    /// Copies of ranges.
    copies,
    /// Directories opened.
    opendirs,
    /// Readings of directories.
    readdirs,
    /// Questions for size and use.
    statfs,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) attr: HitCounter,
    pub(crate) dentry: HitCounter,
    pub(crate) negative: HitCounter,
    pub(crate) listing: HitCounter,
    pub(crate) units: HitCounter,
    ops: OpCounters,
}

impl Counters {
    pub(crate) fn op(&self, which: impl FnOnce(&OpCounters) -> &AtomicU64) {
        which(&self.ops).fetch_add(1, Relaxed);
    }

    pub(crate) fn forget(&self, count: u64) {
        self.ops.forgets.fetch_add(count, Relaxed);
    }

    pub(crate) fn read(&self, bytes: usize) {
        self.ops.reads.fetch_add(1, Relaxed);
        self.ops.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn written(&self, bytes: usize) {
        self.ops.writes.fetch_add(1, Relaxed);
        self.ops.written_bytes.fetch_add(bytes as u64, Relaxed);
    }
}

/// A cache at one moment.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct CacheStats {
    /// Questions that it answered.
    pub hits: u64,
    /// Questions that went to the store.
    pub misses: u64,
    /// What it holds.
    pub entries: u64,
    /// Memory that it takes, in bytes.
    pub bytes: u64,
    /// Memory that it may take now, in bytes. The attributes, which are those of the known inodes: beyond it the front end is
    /// asked to forget some.
    pub max_bytes: u64,
}

impl CacheStats {
    fn new(counter: &HitCounter, (entries, bytes): (u64, u64), max_bytes: u64) -> Self {
        let (hits, misses) = counter.sums();
        CacheStats { hits, misses, entries, bytes, max_bytes }
    }

    /// The part of the questions that it answered, from 0 to 1; `None` before the first.
    pub fn hit_rate(&self) -> Option<f64> {
        let asked = self.hits + self.misses;
        (asked > 0).then(|| self.hits as f64 / asked as f64)
    }
}

/// The engine at one moment.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Stats {
    /// Known inodes, the root included.
    pub inodes: u64,
    /// Memory of the inode table with its attributes, in bytes.
    pub inode_bytes: u64,
    /// Open file handles.
    pub open_files: u64,
    /// Open directory handles.
    pub open_dirs: u64,
    /// Buffered writes, in bytes of units held.
    pub dirty_bytes: u64,
    /// The memory budget in bytes.
    pub budget_bytes: u64,
    /// What is used of it.
    pub used_bytes: u64,
    /// What is used of it by all who share it, in bytes.
    pub used_by_all_bytes: u64,
    /// Attributes (they live in the inode table).
    pub attrs: CacheStats,
    /// Directory entries; entries and bytes include the negative ones.
    pub dentries: CacheStats,
    /// Names known to be absent; they share the memory of `dentries`.
    pub negatives: CacheStats,
    /// Directory listings.
    pub listings: CacheStats,
    /// Decrypted units.
    pub units: CacheStats,
    /// Where paths lead; `None` where finding a name costs nothing.
    pub paths: Option<PathStats>,
    /// What is looked up ahead; `None` where that is never done.
    pub ahead: Option<AheadStats>,
    /// Calls by operation.
    pub ops: OpStats,
    /// The store's own counters.
    pub store: Vec<(&'static str, u64)>,
}

impl Engine {
    /// A snapshot of all counters.
    pub fn stats(&self) -> Stats {
        let (b, c) = (&self.budget, &self.counters);
        let dentries = (self.dentries.len() as u64, b.used_bytes(Part::Dentries));
        let max = |part| b.allowance_bytes(part);
        let inodes_max_bytes = self.inodes_max() as u64 * INODE_LEN_BYTES;
        Stats {
            inodes: self.inodes.len() as u64,
            inode_bytes: b.used_bytes(Part::Inodes),
            open_files: self.files.len() as u64,
            open_dirs: self.dirs.len() as u64,
            dirty_bytes: b.used_bytes(Part::Dirty),
            budget_bytes: b.limit_bytes(),
            used_bytes: b.used_in_all_bytes(),
            used_by_all_bytes: b.used_by_all_bytes(),
            attrs: CacheStats::new(&c.attr, (self.inodes.len() as u64, b.used_bytes(Part::Inodes)), inodes_max_bytes),
            dentries: CacheStats::new(&c.dentry, dentries, max(Part::Dentries)),
            negatives: CacheStats::new(&c.negative, (0, 0), max(Part::Dentries)),
            listings: CacheStats::new(&c.listing, self.listings.size(), max(Part::Listings)),
            units: CacheStats::new(&c.units, self.units.size(), max(Part::Units)),
            paths: self.paths.as_ref().map(super::paths::Paths::stats),
            ahead: self.ahead.as_ref().map(|ahead| ahead.stats()),
            ops: c.ops.snapshot(),
            store: self.store.counters(),
        }
    }
}
