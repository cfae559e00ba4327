//! Where the directories of whole paths are, so that a deep path is one question and not one for each name.
//!
//! A [`PathTable`] is bounded in bytes and may be asked from any thread. What it keeps holds as long as no directory moves or goes:
//! each such change begins a new generation, in which the paths of earlier ones are not believed. Files come, go and move without
//! one, for their names are not in it: whoever finds the directory asks it for the last name.
//!
//! Invariant: a path that was walked, in part or as a whole, before a change is not believed after it. For that the generation is
//! read before the walk, and a change begins the new one when whoever walks by then finds it made.
//!
//! [`PathCache`] is what it keeps them in, for others who know something of paths.

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

impl<V> Weighter<PathKey, V> for PathWeight {
    fn weight(&self, key: &PathKey, _: &V) -> u64 {
        (size_of::<PathKey>() + size_of::<V>() + key.path.len()) as u64 + OVERHEAD_LEN_BYTES
    }
}

/// What is known of paths, by where they begin and their bytes: the same path leads elsewhere from another directory. Bounded in bytes, and
/// asked from any thread. What it says is the business of whoever keeps it.
pub struct PathCache<V> {
    paths: Cache<PathKey, V, PathWeight, Hasher>,
    counter: HitCounter,
    bytes_max: AtomicU64,
}

impl<V: Clone> PathCache<V> {
    /// An empty one of at most `bytes`.
    pub fn new(bytes: u64) -> Self {
        let items = (bytes / ITEM_LEN_BYTES).max(1) as usize;
        let options = OptionsBuilder::new().estimated_items_capacity(items).weight_capacity(bytes).build();
        let options = options.expect("both are given");
        PathCache {
            paths: Cache::with_options(options, PathWeight, Hasher::default(), DefaultLifecycle::default()),
            counter: HitCounter::default(),
            bytes_max: AtomicU64::new(bytes),
        }
    }

    /// What is known of `path` from `start`, if that is good enough for `is_right`; anything else is a miss.
    #[inline]
    pub fn get(&self, start: u64, path: &[u8], is_right: impl FnOnce(&V) -> bool) -> Option<V> {
        let found = self.paths.get(&PathRef { start, path }).filter(is_right);
        match found.is_some() {
            true => self.counter.hit(),
            false => self.counter.miss(),
        }
        found
    }

    /// Keeps what is known of `path` from `start`.
    pub fn keep(&self, start: u64, path: &[u8], value: V) {
        self.paths.insert(PathKey { start, path: path.into() }, value);
    }

    /// Keeps nothing any more.
    pub fn clear(&self) {
        self.paths.clear();
    }

    /// Changes how much memory it may take, in bytes.
    pub fn set_bytes_max(&self, bytes: u64) {
        self.bytes_max.store(bytes, Relaxed);
        self.paths.set_capacity(bytes);
    }

    /// How many of the paths that are kept `is_one` is true of. Looks at all of them.
    pub fn count(&self, mut is_one: impl FnMut(&V) -> bool) -> u64 {
        self.paths.iter().filter(|(_, value)| is_one(value)).count() as u64
    }

    /// What it holds, and how it did.
    pub fn stats(&self) -> CacheStats {
        self.counter.stats(self.paths.len() as u64, self.paths.weight(), self.bytes_max.load(Relaxed))
    }
}

/// See the module's notes. `V` says where a directory is.
pub struct PathTable<V> {
    /// With the generation in which it was there.
    paths: PathCache<(V, u64)>,
    generation: AtomicU64,
}

impl<V: Copy> PathTable<V> {
    /// An empty one of at most `bytes`.
    pub fn new(bytes: u64) -> Self {
        PathTable { paths: PathCache::new(bytes), generation: AtomicU64::new(0) }
    }

    /// Where `path` led from `start`, if that was kept, no directory moved since, and it is good enough for `is_right`.
    #[inline]
    pub fn get(&self, start: u64, path: &[u8], is_right: impl FnOnce(&V) -> bool) -> Option<V> {
        let is_current = |(place, generation): &(V, u64)| *generation == self.generation() && is_right(place);
        self.paths.get(start, path, is_current).map(|(place, _)| place)
    }

    /// What [`PathTable::keep`] wants to know from before a path was walked.
    pub fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// Keeps that `path` led from `start` to `place`, by names of directories only. `generation` is from before it was walked.
    pub fn keep(&self, start: u64, path: &[u8], place: V, generation: u64) {
        self.paths.keep(start, path, (place, generation));
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
        self.paths.set_bytes_max(bytes);
    }

    /// What it holds, and how it did. A miss is walked name by name.
    pub fn stats(&self) -> CacheStats {
        self.paths.stats()
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
