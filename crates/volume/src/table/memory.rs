//! What the key-value store does not hold yet: tables in memory, and their merge with it.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use adit_core::Result;

use super::{Bytes, OWN_PREFIX};
use crate::kv::View;

/// A stretch of a scan ends with so many bytes of values from the store, if it has [`STRETCH_LEAST`] of them.
const STRETCH_BYTES: usize = 1 << 20;

/// Entries of a stretch that are as of one moment in any case.
const STRETCH_LEAST: usize = 16;

/// Memory that an entry takes besides its key and value, roughly.
const ENTRY_BYTES: usize = 80;

/// Changes in order; `None` removes a key.
#[derive(Default)]
pub(super) struct MemTable {
    map: BTreeMap<Box<[u8]>, Option<Bytes>>,
    bytes: usize,
    /// Keys that are known to be removed.
    removed: usize,
}

impl MemTable {
    pub fn insert(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        let key_len = key.len();
        let value: Option<Bytes> = value.map(Bytes::from);
        self.bytes += value.as_ref().map_or(0, |v| v.len());
        self.removed += usize::from(value.is_none());
        match self.map.insert(key.into(), value) {
            Some(Some(old)) => self.bytes -= old.len(),
            Some(None) => self.removed -= 1,
            None => self.bytes += key_len + ENTRY_BYTES,
        }
    }

    /// How many keys it knows to be removed.
    pub fn removed(&self) -> usize {
        self.removed
    }

    /// What is known of `key`: nothing, that it was removed, or its value.
    pub fn get(&self, key: &[u8]) -> Option<&Option<Bytes>> {
        self.map.get(key)
    }

    /// Memory that it takes, roughly.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many keys it knows.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.map.iter().map(|(key, value)| (&**key, value.as_deref()))
    }

    /// The first entries of the range, at most `limit`.
    fn range(&self, start: &[u8], end: &[u8], limit: usize) -> Part {
        let range = self.map.range::<[u8], _>((Bound::Included(start), Bound::Excluded(end)));
        let entries: Vec<_> = range.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect();
        Part { is_whole: entries.len() < limit, entries }
    }
}

/// All that is known, newest first.
pub(super) struct Tables {
    pub active: MemTable,
    /// What a checkpoint is moving into the store.
    pub frozen: Option<Arc<MemTable>>,
    /// The store. It may hold what is in `frozen`, too.
    pub view: Arc<dyn View>,
}

/// The first entries of a range from one of the tables.
#[derive(Default)]
struct Part {
    entries: Vec<(Box<[u8]>, Option<Bytes>)>,
    /// Whether these are all.
    is_whole: bool,
}

/// The first entries of a range, merged.
pub(super) struct Stretch {
    pub entries: Vec<(Box<[u8]>, Bytes)>,
    /// Where to go on, unless it is all.
    pub next: Option<Vec<u8>>,
}

/// The parts of a stretch that come from memory, and the store as of the same moment.
pub(super) struct StretchInMemory {
    parts: Vec<Part>,
    pub view: Arc<dyn View>,
}

impl Tables {
    /// What is known of `key` without the store.
    pub fn get(&self, key: &[u8]) -> Option<&Option<Bytes>> {
        self.active.get(key).or_else(|| self.frozen.as_ref()?.get(key))
    }

    /// The first entries of the range, at most `limit` from each table.
    pub fn stretch(&self, start: &[u8], end: &[u8], limit: usize) -> StretchInMemory {
        let mut parts = vec![self.active.range(start, end, limit)];
        parts.extend(self.frozen.as_ref().map(|frozen| frozen.range(start, end, limit)));
        StretchInMemory { parts, view: self.view.clone() }
    }
}

impl StretchInMemory {
    /// Merges them with the store.
    pub fn merge(mut self, start: &[u8], end: &[u8], limit: usize) -> Result<Stretch> {
        let mut stored = Part { is_whole: true, ..Part::default() };
        let mut bytes = 0;
        self.view.scan(start, end, &mut |key, value| {
            bytes += value.len();
            // The base's own are nobody's business.
            if key.first() != Some(&OWN_PREFIX) {
                stored.entries.push((key.into(), Some(value.into())));
            }
            let is_long = bytes >= STRETCH_BYTES && stored.entries.len() >= STRETCH_LEAST;
            stored.is_whole = stored.entries.len() < limit && !is_long;
            if stored.is_whole { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        self.parts.push(stored);
        // Up to here all tables have been seen.
        let ends = self.parts.iter().filter(|part| !part.is_whole);
        let horizon = ends.filter_map(|part| part.entries.last()).map(|(key, _)| key.clone()).min();
        let mut merged: BTreeMap<Box<[u8]>, Option<Bytes>> = BTreeMap::new();
        for part in self.parts {
            for (key, value) in part.entries {
                if horizon.as_ref().is_none_or(|horizon| key <= *horizon) {
                    merged.entry(key).or_insert(value);
                }
            }
        }
        let entries = merged.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
        let next = horizon.map(|horizon| {
            let mut next = horizon.into_vec();
            next.push(0);
            next
        });
        Ok(Stretch { entries, next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Sink;
    use adit_testkit::{Rng, seeds};

    struct Stored(BTreeMap<Vec<u8>, Vec<u8>>);

    impl View for Stored {
        fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
            Ok(keys.iter().map(|key| self.0.get(*key).map(|v| v.as_slice().into())).collect())
        }

        fn scan(&self, start: &[u8], end: &[u8], sink: &mut Sink<'_>) -> Result<()> {
            for (key, value) in self.0.range::<[u8], _>((Bound::Included(start), Bound::Excluded(end))) {
                if sink(key, value).is_break() {
                    break;
                }
            }
            Ok(())
        }
    }

    #[test]
    fn a_merge_of_all_three_is_what_one_map_would_hold() {
        for seed in seeds(100) {
            let mut rng = Rng::new(seed);
            let mut model = BTreeMap::new();
            let mut stored = BTreeMap::new();
            let changes = |rng: &mut Rng, model: &mut BTreeMap<Vec<u8>, Vec<u8>>| {
                let mut table = MemTable::default();
                for _ in 0..rng.below(60) {
                    let key = vec![1 + rng.below(60) as u8];
                    if rng.percent(40) {
                        model.remove(&key);
                        table.insert(key, None);
                    } else {
                        let value = rng.next_u64().to_le_bytes().to_vec();
                        model.insert(key.clone(), value.clone());
                        table.insert(key, Some(value));
                    }
                }
                table
            };
            let first = changes(&mut rng, &mut model);
            stored.clone_from(&model);
            drop(first);
            stored.insert(vec![OWN_PREFIX, 1], vec![]);
            let frozen = Some(Arc::new(changes(&mut rng, &mut model)));
            let active = changes(&mut rng, &mut model);
            let tables = Tables { active, frozen, view: Arc::new(Stored(stored)) };
            let (start, end) = (vec![rng.below(70) as u8], vec![rng.below(70) as u8]);
            if start >= end {
                continue;
            }
            let (mut at, mut seen) = (Some(start.clone()), Vec::new());
            while let Some(from) = at {
                let limit = 1 + rng.below(9) as usize;
                let stretch = tables.stretch(&from, &end, limit).merge(&from, &end, limit).unwrap();
                seen.extend(stretch.entries.into_iter().map(|(k, v)| (k.into_vec(), v.to_vec())));
                at = stretch.next;
            }
            let expected: Vec<_> = model.range(start..end).map(|(k, v)| (k.clone(), v.clone())).collect();
            assert_eq!(seen, expected, "ADIT_TEST_SEED={seed}");
        }
    }
}
