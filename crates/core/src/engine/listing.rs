//! Directory listings as immutable, shared snapshots, and the cache of them.
//!
//! A [`Listing`] is two allocations, however many entries: fixed-size records and one buffer of names. It is handed
//! around behind `Arc`, so a hit copies nothing.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::clock::{NEVER, Tick};
use crate::memory::{Budget, Part};
use crate::store::DirEntry;
use crate::types::{FileName, Ino, Kind};

const SHARDS: usize = 16;

/// The entries of a directory at one moment, without `.` and `..`.
#[derive(Debug)]
pub struct Listing {
    records: Box<[Record]>,
    names: Box<[u8]>,
    /// Whether the store had to leave entries out.
    pub(crate) incomplete: bool,
    /// Mark of the directory's own changes when the store was asked.
    pub(crate) since: u32,
    pub(crate) expiry: Tick,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    ino: Ino,
    /// Where its name ends; it starts where the one before ends.
    name_end: u32,
    kind: Kind,
}

/// Collects a [`Listing`].
#[derive(Default)]
pub(crate) struct ListingBuilder {
    records: Vec<Record>,
    names: Vec<u8>,
}

impl ListingBuilder {
    /// Adds an entry. False, and nothing added, when the names would exceed 4 GiB.
    pub(crate) fn push(&mut self, entry: &DirEntry<'_>) -> bool {
        let Ok(name_end) = u32::try_from(self.names.len() + entry.name.as_bytes().len()) else {
            return false;
        };
        self.names.extend_from_slice(entry.name.as_bytes());
        self.records.push(Record { ino: entry.ino, name_end, kind: entry.kind });
        true
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn finish(self, since: u32, expiry: Tick, incomplete: bool) -> Listing {
        Listing { records: self.records.into(), names: self.names.into(), incomplete, since, expiry }
    }
}

impl Listing {
    /// Whether the store had to leave entries out.
    pub fn is_incomplete(&self) -> bool {
        self.incomplete
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether the directory was empty.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The entries from the one with number `from` on; their cookie is their number plus one.
    pub fn entries_from(&self, from: usize) -> impl Iterator<Item = DirEntry<'_>> {
        (from..self.records.len()).filter_map(|i| {
            let record = self.records.get(i)?;
            let start = if i == 0 { 0 } else { self.records[i - 1].name_end as usize };
            let name = FileName::new(self.names.get(start..record.name_end as usize)?).ok()?;
            Some(DirEntry { cookie: i as u64 + 1, ino: record.ino, kind: record.kind, name })
        })
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> u64 {
        (size_of::<Self>() + size_of_val(&*self.records) + self.names.len()) as u64
    }
}

struct Cached {
    listing: Arc<Listing>,
    used: bool,
}

/// Listings by directory, bounded by the budget.
pub(crate) struct Listings {
    shards: Box<[Mutex<HashMap<Ino, Cached>>]>,
    budget: Arc<Budget>,
}

impl Listings {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Listings { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), budget }
    }

    fn shard(&self, dir: Ino) -> &Mutex<HashMap<Ino, Cached>> {
        &self.shards[(dir.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % SHARDS]
    }

    /// The listing of `dir`, if it is fresh at `now` and of the mark `since`.
    pub(crate) fn get(&self, dir: Ino, now: Tick, since: u32) -> Option<Arc<Listing>> {
        let mut shard = self.shard(dir).lock();
        let cached = shard.get_mut(&dir)?;
        if cached.listing.since != since || cached.listing.expiry <= now && cached.listing.expiry != NEVER {
            return None;
        }
        cached.used = true;
        Some(cached.listing.clone())
    }

    /// Keeps a listing; drops others if there is no room, or this one if it is larger than a quarter of all room.
    pub(crate) fn insert(&self, dir: Ino, listing: Arc<Listing>) {
        let bytes = listing.bytes();
        if bytes > self.budget.allowance_bytes(Part::Listings) / 4 {
            self.remove(dir);
            return;
        }
        self.budget.add(Part::Listings, bytes);
        if let Some(old) = self.shard(dir).lock().insert(dir, Cached { listing, used: false }) {
            self.budget.sub(Part::Listings, old.listing.bytes());
        }
        self.shrink(dir);
    }

    pub(crate) fn remove(&self, dir: Ino) {
        if let Some(old) = self.shard(dir).lock().remove(&dir) {
            self.budget.sub(Part::Listings, old.listing.bytes());
        }
    }

    /// Entries and bytes.
    pub(crate) fn size(&self) -> (u64, u64) {
        let entries = self.shards.iter().map(|s| s.lock().len() as u64).sum();
        (entries, self.budget.used_bytes(Part::Listings))
    }

    /// Second chance: a first pass takes what was not used since the last one, the second anything but `keep`.
    fn shrink(&self, keep: Ino) {
        for pass in 0..2 {
            for shard in &self.shards {
                if self.budget.used_bytes(Part::Listings) <= self.budget.allowance_bytes(Part::Listings) {
                    return;
                }
                shard.lock().retain(|&dir, cached| {
                    let over = self.budget.used_bytes(Part::Listings) > self.budget.allowance_bytes(Part::Listings);
                    let stays = dir == keep || !over || (pass == 0 && cached.used);
                    cached.used = false;
                    if !stays {
                        self.budget.sub(Part::Listings, cached.listing.bytes());
                    }
                    stays
                });
            }
        }
    }
}
