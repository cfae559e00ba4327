//! Where paths led that no table knows: [`PathCache`].
//!
//! A path that a table knows is answered in fewer reads than a cache takes, so it never comes here. What comes here would be walked name by
//! name: every path where there are no tables, and those with `..` where there are; and all, if somebody says so, who asks for the same ones
//! again and again. An index never changes, so nothing that is kept
//! here is ever wrong; paths that lead nowhere are kept with the reason.

use adit_core::engine::HitCounter;
use adit_core::paths;

use crate::resolve::Miss;
use crate::segment::NodeId;

/// Where a path leads.
pub(super) type Answer = std::result::Result<NodeId, Miss>;

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

/// See the module's notes. May be asked from any thread.
pub(super) struct PathCache {
    answers: paths::PathCache<Answer>,
    negative: HitCounter,
}

impl PathCache {
    /// An empty one of at most `max_bytes`.
    pub fn new(max_bytes: u64) -> PathCache {
        PathCache { answers: paths::PathCache::new(max_bytes), negative: HitCounter::default() }
    }

    /// Where a path leads that begins in `start`, if that is known.
    #[inline]
    pub fn get(&self, start: NodeId, path: &[u8]) -> Option<Answer> {
        let answer = self.answers.get(start.0.into(), path, |_| true)?;
        if answer.is_err() {
            self.negative.hit();
        }
        Some(answer)
    }

    /// Keeps where a path leads.
    pub fn keep(&self, start: NodeId, path: &[u8], answer: Answer) {
        self.answers.keep(start.0.into(), path, answer);
    }

    pub fn stats(&self) -> PathCacheStats {
        let all = self.answers.stats();
        PathCacheStats {
            hits: all.hits,
            negative_hits: self.negative.stats(0, 0, 0).hits,
            misses: all.misses,
            entries: all.entries,
            negative_entries: self.answers.count(Answer::is_err),
            bytes: all.bytes,
            max_bytes: all.max_bytes,
        }
    }
}
