//! Where the directories of whole paths are, so that a deep path is one question and not one for each name.
//!
//! A [`PathTable`] is bounded in bytes and may be asked from any thread. What it keeps holds as long as no directory moves or goes:
//! each such change begins a new generation, in which the paths of earlier ones are not believed. Files come, go and move without
//! one, for their names are not in it: whoever finds the directory asks it for the last name.
//!
//! Invariant: a path that was walked, in part or as a whole, before a change is not believed after it. For that the generation is
//! read before the walk, and a change begins the new one when whoever walks by then finds it made.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use hashbrown::DefaultHashBuilder as Hasher;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{Equivalent, OptionsBuilder, Weighter};

use crate::engine::{CacheStats, HitCounter};

/// Bytes that an entry takes beside itself: its place in the index, and marks.
const OVERHEAD_LEN_BYTES: u64 = 48;
/// What an entry takes, about: for the number of shards, and how many keys that went are remembered.
const ITEM_LEN_BYTES: u64 = 160;

#[derive(Clone, PartialEq, Eq, Hash)]
struct PathKey {
    start: u64,
    path: Box<[u8]>,
}

/// As [`PathKey`], of a path that is not ours.
#[derive(Hash)]
struct PathRef<'p> {
    start: u64,
    path: &'p [u8],
}

impl Equivalent<PathKey> for PathRef<'_> {
    fn equivalent(&self, key: &PathKey) -> bool {
        self.start == key.start && *self.path == *key.path
    }
}

#[derive(Clone)]
struct PathWeight;

impl<V> Weighter<PathKey, (V, u64)> for PathWeight {
    fn weight(&self, key: &PathKey, _: &(V, u64)) -> u64 {
        (size_of::<PathKey>() + size_of::<(V, u64)>() + key.path.len()) as u64 + OVERHEAD_LEN_BYTES
    }
}

/// See the module's notes. `V` says where a directory is.
pub struct PathTable<V> {
    /// With the generation in which it was there.
    paths: Cache<PathKey, (V, u64), PathWeight, Hasher>,
    generation: AtomicU64,
    counter: HitCounter,
    bytes_max: AtomicU64,
}

impl<V: Copy> PathTable<V> {
    /// An empty one of at most `bytes`.
    pub fn new(bytes: u64) -> Self {
        let items = (bytes / ITEM_LEN_BYTES).max(1) as usize;
        let options = OptionsBuilder::new().estimated_items_capacity(items).weight_capacity(bytes).build();
        let options = options.expect("both are given");
        PathTable {
            paths: Cache::with_options(options, PathWeight, Hasher::default(), DefaultLifecycle::default()),
            generation: AtomicU64::new(0),
            counter: HitCounter::default(),
            bytes_max: AtomicU64::new(bytes),
        }
    }

    /// Where `path` led from `start`, if that was kept, no directory moved since, and it is good enough for `is_right`.
    #[inline]
    pub fn get(&self, start: u64, path: &[u8], is_right: impl FnOnce(&V) -> bool) -> Option<V> {
        match self.paths.get(&PathRef { start, path }) {
            Some((place, generation)) if generation == self.generation.load(Acquire) && is_right(&place) => {
                self.counter.hit();
                Some(place)
            }
            _ => {
                self.counter.miss();
                None
            }
        }
    }

    /// What [`PathTable::keep`] wants to know from before a path was walked.
    pub fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// Keeps that `path` led from `start` to `place`, by names of directories only. `generation` is from before it was walked.
    pub fn keep(&self, start: u64, path: &[u8], place: V, generation: u64) {
        self.paths.insert(PathKey { start, path: path.into() }, (place, generation));
    }

    /// A directory moved or went. After whatever else is known of its name is void: who walks in the new generation must not meet that.
    pub fn directory_moved(&self) {
        self.generation.fetch_add(1, Release);
    }

    /// Everything may have changed.
    pub fn clear(&self) {
        self.directory_moved();
        self.paths.clear();
    }

    /// Changes how much memory it may take, in bytes.
    pub fn set_bytes_max(&self, bytes: u64) {
        self.bytes_max.store(bytes, Relaxed);
        self.paths.set_capacity(bytes);
    }

    /// What it holds, and how it did. A miss is walked name by name.
    pub fn stats(&self) -> CacheStats {
        self.counter.stats(self.paths.len() as u64, self.paths.weight(), self.bytes_max.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anyhow(_: &u64) -> bool {
        true
    }

    #[test]
    fn a_path_that_was_walked_while_a_directory_moved_is_not_believed() {
        let table = PathTable::new(1 << 20);
        let generation = table.generation();
        table.keep(1, b"/a/b/", 9, generation);
        assert_eq!(table.get(1, b"/a/b/", anyhow), Some(9));
        assert_eq!(table.get(1, b"/a/b/", |place| *place != 9), None, "it is not good enough");
        assert_eq!(table.get(2, b"/a/b/", anyhow), None, "from elsewhere");
        table.directory_moved();
        assert_eq!(table.get(1, b"/a/b/", anyhow), None);
        table.keep(1, b"/a/b/", 9, generation);
        assert_eq!(table.get(1, b"/a/b/", anyhow), None, "walked before the change");
        table.keep(1, b"/a/b/", 8, table.generation());
        assert_eq!(table.get(1, b"/a/b/", anyhow), Some(8));
        table.clear();
        assert_eq!(table.get(1, b"/a/b/", anyhow), None);
        assert_eq!((table.stats().hits, table.stats().misses), (2, 5));
    }

    #[test]
    fn it_takes_no_more_than_it_may_whatever_is_put_in() {
        let table = PathTable::new(64 << 10);
        for n in 0..20_000_u64 {
            let path = vec![b'p'; (n % 4000) as usize];
            table.keep(n, &path, n, 0);
            assert!(table.stats().bytes <= 64 << 10);
        }
        assert!(table.stats().entries > 0);
        table.set_bytes_max(4 << 10);
        assert!(table.stats().bytes <= 4 << 10);
    }
}
