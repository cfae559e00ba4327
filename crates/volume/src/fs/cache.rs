//! What paths lead through: entries by directory and name, attributes by inode, and where the directories of whole paths are.
//! Exact at any time.
//!
//! A value is kept only if nothing removed its key while it was read: a reader leaves a placeholder before it asks the tree, and
//! a commit removes the keys that it changed, placeholders included, before its operation returns. So no reader that begins
//! after an operation sees what was before it. A placeholder is never waited for with a view in hand.
//!
//! A path to a directory holds as long as no directory moves or goes ([`PathTable`]).

use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use adit_core::Result;
use adit_core::engine::{CacheStats, HitCounter};
use adit_core::paths::PathTable;
use adit_core::types::{Attr, Kind};
use hashbrown::DefaultHashBuilder as Hasher;
use quick_cache::sync::{Cache, DefaultLifecycle, GuardResult};
use quick_cache::{Equivalent, OptionsBuilder, Weighter};

/// What an entry leads to; `None`: there is none.
pub(crate) type Target = Option<(u64, Kind)>;

/// Bytes that a value takes beside itself: its place in the index, and marks.
const OVERHEAD_LEN_BYTES: u64 = 48;

#[derive(Clone, PartialEq, Eq, Hash)]
struct EntryKey {
    dir: u64,
    name: Box<[u8]>,
}

/// As [`EntryKey`], of a name that is not ours.
#[derive(Hash)]
struct EntryRef<'n> {
    dir: u64,
    name: &'n [u8],
}

impl Equivalent<EntryKey> for EntryRef<'_> {
    fn equivalent(&self, key: &EntryKey) -> bool {
        self.dir == key.dir && *self.name == *key.name
    }
}

#[derive(Clone)]
struct EntryWeight;

impl Weighter<EntryKey, Target> for EntryWeight {
    fn weight(&self, key: &EntryKey, _: &Target) -> u64 {
        (size_of::<EntryKey>() + size_of::<Target>() + key.name.len()) as u64 + OVERHEAD_LEN_BYTES
    }
}

#[derive(Clone)]
struct AttrWeight;

impl Weighter<u64, Attr> for AttrWeight {
    fn weight(&self, _: &u64, _: &Attr) -> u64 {
        size_of::<(u64, Attr)>() as u64 + OVERHEAD_LEN_BYTES
    }
}

/// See the module's notes. All methods may be called from any thread.
pub(crate) struct InodeCache {
    attrs: Cache<u64, Attr, AttrWeight, Hasher>,
    entries: Cache<EntryKey, Target, EntryWeight, Hasher>,
    /// By the directory that a path begins in, and its bytes.
    paths: PathTable<u64>,
    attr_count: HitCounter,
    entry_count: HitCounter,
    bytes_max: AtomicU64,
}

fn make<K: Eq + Hash, V: Clone, W: Weighter<K, V> + Clone>(bytes: u64, weighter: W) -> Cache<K, V, W, Hasher> {
    /// For the number of shards, and how many keys that went are remembered.
    const ITEM_LEN_BYTES: u64 = 160;
    let items = (bytes / ITEM_LEN_BYTES).max(1) as usize;
    let options = OptionsBuilder::new().estimated_items_capacity(items).weight_capacity(bytes).build();
    let options = options.expect("both are given");
    Cache::with_options(options, weighter, Hasher::default(), DefaultLifecycle::default())
}

fn attrs_share(bytes: u64) -> u64 {
    bytes / 2
}

fn paths_share(bytes: u64) -> u64 {
    bytes / 8
}

fn entries_share(bytes: u64) -> u64 {
    bytes - attrs_share(bytes) - paths_share(bytes)
}

impl InodeCache {
    /// An empty one of at most `bytes`: half of it for attributes, an eighth for paths, the rest for entries.
    pub fn new(bytes: u64) -> Self {
        InodeCache {
            attrs: make(attrs_share(bytes), AttrWeight),
            entries: make(entries_share(bytes), EntryWeight),
            paths: PathTable::new(paths_share(bytes)),
            attr_count: HitCounter::default(),
            entry_count: HitCounter::default(),
            bytes_max: AtomicU64::new(bytes),
        }
    }

    /// The attributes of an inode, from `read` if they are not here.
    #[inline]
    pub fn attr(&self, ino: u64, read: impl FnOnce() -> Result<Attr>) -> Result<Attr> {
        if let Some(attr) = self.attrs.get(&ino) {
            self.attr_count.hit();
            return Ok(attr);
        }
        self.attr_count.miss();
        match self.attrs.get_value_or_guard(&ino, None) {
            GuardResult::Value(attr) => Ok(attr),
            GuardResult::Guard(guard) => {
                let attr = read()?;
                // Not kept if it changed meanwhile.
                let _ = guard.insert(attr);
                Ok(attr)
            }
            GuardResult::Timeout => read(),
        }
    }

    /// What the entry `name` of `dir` leads to, from `read` if it is not here.
    #[inline]
    pub fn entry(&self, dir: u64, name: &[u8], read: impl FnOnce() -> Result<Target>) -> Result<Target> {
        if let Some(target) = self.entries.get(&EntryRef { dir, name }) {
            self.entry_count.hit();
            return Ok(target);
        }
        self.entry_count.miss();
        match self.entries.get_value_or_guard(&EntryKey { dir, name: name.into() }, None) {
            GuardResult::Value(target) => Ok(target),
            GuardResult::Guard(guard) => {
                let target = read()?;
                // Not kept if it changed meanwhile.
                let _ = guard.insert(target);
                Ok(target)
            }
            GuardResult::Timeout => read(),
        }
    }

    /// Where the directories of paths are.
    #[inline]
    pub fn paths(&self) -> &PathTable<u64> {
        &self.paths
    }

    /// An inode changed.
    pub fn forget_attr(&self, ino: u64) {
        self.attrs.remove(&ino);
    }

    /// An entry came, went, or leads elsewhere.
    pub fn forget_entry(&self, dir: u64, name: &[u8]) {
        self.entries.remove(&EntryRef { dir, name });
    }

    /// Everything may have changed.
    pub fn clear(&self) {
        self.attrs.clear();
        self.entries.clear();
        self.paths.clear();
    }

    /// Changes how much memory it may take, in bytes.
    pub fn set_bytes_max(&self, bytes: u64) {
        self.bytes_max.store(bytes, Relaxed);
        self.attrs.set_capacity(attrs_share(bytes));
        self.entries.set_capacity(entries_share(bytes));
        self.paths.set_bytes_max(paths_share(bytes));
    }

    pub fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Relaxed)
    }

    /// Of the attributes.
    pub fn attr_stats(&self) -> CacheStats {
        self.attr_count.stats(self.attrs.len() as u64, self.attrs.weight(), attrs_share(self.bytes_max()))
    }

    /// Of the entries.
    pub fn entry_stats(&self) -> CacheStats {
        self.entry_count.stats(self.entries.len() as u64, self.entries.weight(), entries_share(self.bytes_max()))
    }

    /// Of the paths to directories.
    pub fn path_stats(&self) -> CacheStats {
        self.paths.stats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_core::types::{Ino, Timestamp};

    fn attr(ino: u64) -> Attr {
        let time = Timestamp::default();
        let (size, blocks, nlink, uid, gid, rdev, perm) = (0, 0, 1, 0, 0, 0, 0o644);
        let (atime, mtime, ctime, kind, ino) = (time, time, time, Kind::File, Ino(ino));
        Attr { ino, size, blocks, atime, mtime, ctime, kind, perm, nlink, uid, gid, rdev }
    }

    #[test]
    fn a_working_set_as_large_as_the_cache_stays_in_it() {
        let one = AttrWeight.weight(&0, &attr(0));
        let count = 20_000;
        let cache = InodeCache::new(2 * count * one);
        for round in 0..10 {
            for ino in 0..count {
                assert_eq!(cache.attr(ino, || Ok(attr(ino))).unwrap().ino.0, ino);
            }
            let stats = cache.attr_stats();
            assert!(stats.bytes <= count * one, "{stats:?}");
            if round == 0 {
                assert_eq!(stats.misses, count);
            }
        }
        let stats = cache.attr_stats();
        let hit_rate = stats.hits as f64 / (9 * count) as f64;
        assert!(hit_rate > 0.9, "{hit_rate}");
    }

    #[test]
    fn what_changed_while_it_was_read_is_not_kept() {
        let cache = InodeCache::new(1 << 20);
        let target = cache.entry(1, b"a", || {
            cache.forget_entry(1, b"a");
            Ok(Some((7, Kind::File)))
        });
        assert_eq!(target.unwrap(), Some((7, Kind::File)));
        assert_eq!(cache.entry(1, b"a", || Ok(None)).unwrap(), None);
        assert_eq!(cache.entry(1, b"a", || Ok(Some((8, Kind::File)))).unwrap(), None, "an absence is kept as well");
        let stale = cache.attr(5, || {
            cache.clear();
            Ok(attr(5))
        });
        assert_eq!(stale.unwrap().size, 0);
        assert_eq!(cache.attr(5, || Ok(Attr { size: 3, ..attr(5) })).unwrap().size, 3);
    }

    #[test]
    fn its_size_can_be_changed() {
        let cache = InodeCache::new(1 << 20);
        (0..2000).for_each(|ino| drop(cache.attr(ino, || Ok(attr(ino)))));
        cache.set_bytes_max(64 << 10);
        assert!(cache.attr_stats().bytes <= 34 << 10 && cache.bytes_max() == 64 << 10);
        cache.clear();
        assert_eq!(cache.attr_stats().entries, 0);
    }
}
