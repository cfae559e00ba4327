//! What the cache has done so far.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of one process since it opened the cache, and what the folder holds by the latest estimate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Bytes that were read from the folder.
    pub hit_bytes: u64,
    /// How often a read found the next bytes that it needed in the folder.
    pub hits: u64,
    /// How often it did not.
    pub misses: u64,
    /// How often one waited for bytes that somebody else was fetching.
    pub waits: u64,
    /// Calls of [`Fetch`](super::Fetch).
    pub fetches: u64,
    /// Bytes that they gave.
    pub fetched_bytes: u64,
    /// Bytes that were fetched for a reader and not kept, for want of room or because the folder failed.
    pub passed_bytes: u64,
    /// Objects that were removed for want of room.
    pub evictions: u64,
    /// Bytes that they took.
    pub evicted_bytes: u64,
    /// Objects that came with other content than their hash says, each time counted.
    pub quarantined: u64,
    /// Blocks and small objects in the folder that were not as they had been written.
    pub damaged: u64,
    /// Objects that this process compared with their hash, as a whole.
    pub verified: u64,
    /// Calls on the folder that failed. No read fails for it.
    pub folder_errors: u64,
    /// Bytes that all objects in the folder take, of all processes; an estimate.
    pub used_bytes: u64,
    /// How much they may take.
    pub limit_bytes: u64,
    /// Bytes of the disk that are left free beside them.
    pub kept_free_bytes: u64,
}

/// The counters behind [`CacheStats`].
#[derive(Default)]
pub(super) struct Counters {
    pub hit_bytes: AtomicU64,
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub waits: AtomicU64,
    pub fetches: AtomicU64,
    pub fetched_bytes: AtomicU64,
    pub passed_bytes: AtomicU64,
    pub evictions: AtomicU64,
    pub evicted_bytes: AtomicU64,
    pub quarantined: AtomicU64,
    pub damaged: AtomicU64,
    pub verified: AtomicU64,
    pub folder_errors: AtomicU64,
}

impl Counters {
    pub fn snapshot(&self, used_bytes: u64, limit_bytes: u64, kept_free_bytes: u64) -> CacheStats {
        CacheStats {
            hit_bytes: self.hit_bytes.load(Relaxed),
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            waits: self.waits.load(Relaxed),
            fetches: self.fetches.load(Relaxed),
            fetched_bytes: self.fetched_bytes.load(Relaxed),
            passed_bytes: self.passed_bytes.load(Relaxed),
            evictions: self.evictions.load(Relaxed),
            evicted_bytes: self.evicted_bytes.load(Relaxed),
            quarantined: self.quarantined.load(Relaxed),
            damaged: self.damaged.load(Relaxed),
            verified: self.verified.load(Relaxed),
            folder_errors: self.folder_errors.load(Relaxed),
            used_bytes,
            limit_bytes,
            kept_free_bytes,
        }
    }
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}
