//! From an inode's number to the place of its record: buckets of eight places with a byte of hash each.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::engine::segments::{Doubling, Place};

/// Slots of a bucket.
const WAYS: usize = 8;

/// An entry lives in its home bucket, or in the next one that had room.
#[derive(Default)]
pub(super) struct Bucket {
    /// A byte of hash for each slot; 0 for an empty one.
    tags: AtomicU64,
    /// Places of records.
    places: [AtomicU32; WAYS],
}

impl Bucket {
    #[inline(always)]
    fn place(&self, way: usize) -> Place {
        Place(self.places[way].load(Relaxed))
    }

    fn tag(&self, way: usize) -> u64 {
        self.tags.load(Relaxed) >> (way * 8) & 0xff
    }

    fn is_full(&self) -> bool {
        zero_bytes(self.tags.load(Relaxed)) == 0
    }

    fn store(&self, way: usize, tag: u64, place: Place) {
        self.places[way].store(place.0, Relaxed);
        self.tags.store(self.tags.load(Relaxed) & !(0xff << (way * 8)) | tag << (way * 8), Relaxed);
    }
}

/// Never 0: that is an empty slot.
#[inline(always)]
fn tag_of(hash: u64) -> u64 {
    hash >> 56 | 1
}

/// A one in each byte.
const EACH: u64 = 0x0101_0101_0101_0101;
const TOPS: u64 = 0x8080_8080_8080_8080;

/// The top bit of each byte that is zero; above a zero byte perhaps of some that are not.
#[inline(always)]
pub(in crate::engine) fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(EACH) & !word & TOPS
}

/// The top bit of each byte that is `byte`; above such a byte perhaps of some that are not.
#[inline(always)]
pub(in crate::engine) fn bytes_equal(word: u64, byte: u64) -> u64 {
    zero_bytes(word ^ (byte * EACH))
}

/// A slot: number of the bucket, and the way in it.
pub(super) type Slot = (u32, usize);

/// See the module's notes.
pub(super) struct Index {
    /// Buckets minus one; meaningful once the first record exists.
    mask: AtomicU32,
    buckets: Doubling<Bucket>,
}

impl Index {
    pub(super) fn new() -> Self {
        Index { mask: AtomicU32::new(0), buckets: Doubling::new() }
    }

    #[inline(always)]
    fn bucket(&self, at: u32) -> Option<&Bucket> {
        self.buckets.get(at as usize)
    }

    #[inline(always)]
    fn home(&self, hash: u64) -> u32 {
        (hash >> 8) as u32 & self.mask.load(Relaxed)
    }

    fn after(&self, at: u32) -> u32 {
        (at + 1) & self.mask.load(Relaxed)
    }

    /// Buckets from `from` on to `to`, around the end.
    fn distance(&self, from: u32, to: u32) -> u32 {
        to.wrapping_sub(from) & self.mask.load(Relaxed)
    }

    /// Hands the places that may be the one of the inode with this hash to `is_it`, those of its home bucket: nearly all
    /// are there. In a few instructions, so that the processor can overlap the cache misses of several requests.
    #[inline(always)]
    pub(super) fn find_home<T>(&self, hash: u64, is_it: impl Fn(Place) -> Option<T>) -> Option<T> {
        let bucket = self.bucket(self.home(hash))?;
        let mut candidates = bytes_equal(bucket.tags.load(Relaxed), tag_of(hash));
        while candidates != 0 {
            let found = is_it(bucket.place((candidates.trailing_zeros() / 8) as usize));
            if found.is_some() {
                return found;
            }
            candidates &= candidates - 1;
        }
        None
    }

    /// The slot of the inode with this hash whose place `is_it`.
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(Place) -> bool) -> Option<(Slot, Place)> {
        let mut at = self.home(hash);
        // Bounded, because a reader may see an index in motion.
        for _ in 0..=self.mask.load(Relaxed) {
            let bucket = self.bucket(at)?;
            let mut candidates = bytes_equal(bucket.tags.load(Relaxed), tag_of(hash));
            while candidates != 0 {
                let way = (candidates.trailing_zeros() / 8) as usize;
                if bucket.tag(way) == tag_of(hash) && is_it(bucket.place(way)) {
                    return Some(((at, way), bucket.place(way)));
                }
                candidates &= candidates - 1;
            }
            if !bucket.is_full() {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// Puts a place into the first bucket with room, from its home on. There is one: see [`Index::grow`].
    pub(super) fn insert(&self, place: Place, hash: u64) {
        let mut at = self.home(hash);
        while let Some(bucket) = self.bucket(at) {
            if let Some(way) = (0..WAYS).find(|&way| bucket.tag(way) == 0) {
                bucket.store(way, tag_of(hash), place);
                return;
            }
            at = self.after(at);
        }
    }

    /// Doubles it when one more than `live` entries would fill it beyond 7/8. Returns the buckets added.
    pub(super) fn grow(&self, live: u32, hash_of: impl Fn(Place) -> u64) -> usize {
        let old = if self.bucket(0).is_none() { 0 } else { self.mask.load(Relaxed) + 1 };
        if (u64::from(live) + 1) * 8 <= u64::from(old) * WAYS as u64 * 7 {
            return 0;
        }
        let new = (old * 2).max(1);
        let added = (old..new).map(|at| self.buckets.ensure(at as usize)).sum();
        let mut places = Vec::with_capacity(live as usize);
        for bucket in (0..old).filter_map(|at| self.bucket(at)) {
            places.extend((0..WAYS).filter(|&way| bucket.tag(way) != 0).map(|way| bucket.place(way)));
            bucket.tags.store(0, Relaxed);
        }
        self.mask.store(new - 1, Relaxed);
        places.into_iter().for_each(|place| self.insert(place, hash_of(place)));
        added
    }

    /// Empties a slot. If its bucket was full, entries that had overflowed from it or before move back into the hole,
    /// so that no search ends too early.
    pub(super) fn remove(&self, (mut hole, mut hole_way): Slot, hash_of: impl Fn(Place) -> u64) {
        let Some(mut bucket) = self.bucket(hole) else { return };
        let mut was_full = bucket.is_full();
        bucket.store(hole_way, 0, Place::default());
        let mut at = hole;
        while was_full {
            at = self.after(at);
            let Some(next) = self.bucket(at).filter(|_| at != hole) else { return };
            let next_full = next.is_full();
            let movable = (0..WAYS).filter(|&way| next.tag(way) != 0).find(|&way| {
                let home = self.home(hash_of(next.place(way)));
                self.distance(home, at) >= self.distance(hole, at)
            });
            if let Some(way) = movable {
                bucket.store(hole_way, next.tag(way), next.place(way));
                next.store(way, 0, Place::default());
                (bucket, hole, hole_way) = (next, at, way);
            }
            was_full = next_full;
        }
    }
}
