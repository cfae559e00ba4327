//! Where paths led that no table knows: [`PathCache`].
//!
//! A path that a table knows is answered in fewer reads than a cache takes, so it never comes here. What comes here would be walked name by
//! name: every path where there are no tables, and those with `..` where there are. An index never changes, so nothing that is kept
//! here is ever wrong; paths that lead nowhere are kept with the reason.

use std::hash::Hash;

use adit_core::engine::HitCounter;
use hashbrown::DefaultHashBuilder as Hasher;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{Equivalent, OptionsBuilder, Weighter};

use crate::resolve::Miss;
use crate::segment::NodeId;

/// Where a path leads.
pub(super) type Answer = std::result::Result<NodeId, Miss>;

/// What an answer takes beside itself and its path, in bytes: its place in the cache, and marks.
const OVERHEAD_LEN_BYTES: u64 = 48;
/// An answer with its path, roughly: for the number of parts that the cache has, and of keys that it remembers when they have gone.
const ITEM_LEN_BYTES: u64 = 160;

/// The cache of paths of an [`Index`](super::Index) at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PathCacheStats {
    /// Paths that it answered.
    pub hits: u64,
    /// Of these, paths that lead nowhere.
    pub negative_hits: u64,
    /// Paths that had to be walked.
    pub misses: u64,
    /// Paths that it holds.
    pub entries: u64,
    /// Of these, paths that lead nowhere.
    pub negative_entries: u64,
    /// Memory that it takes, in bytes.
    pub bytes: u64,
    /// Memory that it may take, in bytes.
    pub max_bytes: u64,
}

impl PathCacheStats {
    /// The part of the paths that it answered, from 0 to 1; `None` before the first.
    pub fn hit_rate(&self) -> Option<f64> {
        let asked = self.hits + self.misses;
        (asked > 0).then(|| self.hits as f64 / asked as f64)
    }
}

/// The same bytes lead elsewhere from another directory.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    start: u32,
    path: Box<[u8]>,
}

/// As [`Key`], of a path that is not ours.
#[derive(Hash)]
struct Asked<'p> {
    start: u32,
    path: &'p [u8],
}

impl Equivalent<Key> for Asked<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.start == key.start && *self.path == *key.path
    }
}

#[derive(Clone)]
struct Weight;

impl Weighter<Key, Answer> for Weight {
    fn weight(&self, key: &Key, _: &Answer) -> u64 {
        (size_of::<Key>() + size_of::<Answer>() + key.path.len()) as u64 + OVERHEAD_LEN_BYTES
    }
}

/// See the module's notes. May be asked from any thread.
pub(super) struct PathCache {
    answers: Cache<Key, Answer, Weight, Hasher>,
    all: HitCounter,
    negative: HitCounter,
    max_bytes: u64,
}

impl PathCache {
    /// An empty one of at most `max_bytes`.
    pub fn new(max_bytes: u64) -> PathCache {
        let items = (max_bytes / ITEM_LEN_BYTES).max(1) as usize;
        let options = OptionsBuilder::new().estimated_items_capacity(items).weight_capacity(max_bytes).build();
        let options = options.expect("both are given");
        let answers = Cache::with_options(options, Weight, Hasher::default(), DefaultLifecycle::default());
        PathCache { answers, all: HitCounter::default(), negative: HitCounter::default(), max_bytes }
    }

    /// Where a path leads that begins in `start`, if that is known.
    #[inline]
    pub fn get(&self, start: NodeId, path: &[u8]) -> Option<Answer> {
        let Some(answer) = self.answers.get(&Asked { start: start.0, path }) else {
            self.all.miss();
            return None;
        };
        self.all.hit();
        if answer.is_err() {
            self.negative.hit();
        }
        Some(answer)
    }

    /// Keeps where a path leads.
    pub fn keep(&self, start: NodeId, path: &[u8], answer: Answer) {
        self.answers.insert(Key { start: start.0, path: path.into() }, answer);
    }

    pub fn stats(&self) -> PathCacheStats {
        let (entries, bytes) = (self.answers.len() as u64, self.answers.weight());
        let all = self.all.stats(entries, bytes, self.max_bytes);
        PathCacheStats {
            hits: all.hits,
            negative_hits: self.negative.stats(0, 0, 0).hits,
            misses: all.misses,
            entries,
            negative_entries: self.answers.iter().filter(|(_, answer)| answer.is_err()).count() as u64,
            bytes,
            max_bytes: self.max_bytes,
        }
    }
}
