//! The table of known inodes: lookup counts, pins, attributes, and what the kernel's pages were filled from.
//!
//! [`InodeTable`] is sharded. A record is ten words; an index of buckets (eight slots, a byte of hash each) leads to it.
//! Readers take no lock: a shard's sequence is odd while a writer moves things, and a reader that saw it change reads
//! again. All words are relaxed atomics, so a torn read is a wrong value that is thrown away, never undefined behaviour.
//!
//! Invariants: a record exists exactly while its count or its pins are above zero, or its removal is pending; only
//! [`InodeTable::reap`] removes one. Memory stays at its high-water mark until the table goes.
//!
//! **Changes.** A counter runs over all own changes; a record keeps the value of its latest. Attributes that were read
//! from the store while a change ran are recognized by it ([`InodeTable::since`]) and not cached.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*, fence};

use parking_lot::Mutex;

use super::clock::Tick;
use super::segments::{Doubling, Place, Pool};
use crate::error::{ErrorKind, FsError};
use crate::memory::{Budget, Part};
use crate::types::{Attr, Ino, Kind, Timestamp};

const SHARDS: usize = 8;
const WORDS: usize = 10;
/// Slots of a bucket of the index.
const WAYS: usize = 8;

const W_INO: usize = 0;
/// Lookup count in the high 40 bits, pins in the low 24; in a free record the next free one (see [`chain`]).
const W_REFS: usize = 1;
const W_SIZE: usize = 2;
/// Blocks in the high 32 bits, print (see [`PRINT_BITS`]) in 16, kind in 4, permissions in 12.
const W_MODE: usize = 3;
const W_ATIME: usize = 4;
const W_MTIME: usize = 5;
const W_CTIME: usize = 6;
const W_OWNER: usize = 7;
/// Names in the high 32 bits, print in the low 32. A device number is kept in place of the size.
const W_LINKS: usize = 8;
/// Expiry of the attributes in the high 32 bits (0: none), the latest change in the low 32.
const W_FRESH: usize = 9;

/// Print of what the kernel's pages may hold: 0 none, [`PRINT_OWN`], or the print of attributes; and [`PRINT_OLD`].
const PRINT_BITS: u32 = 48;
const PRINT_MASK: u64 = (1 << PRINT_BITS) - 1;
const PINS_BITS: u32 = 24;
const PINS_MAX: u64 = (1 << PINS_BITS) - 1;
const COUNT_MAX: u64 = (1 << 40) - 1;
/// A change less than this many changes ago, as seen from a reader's mark, happened after it.
const CHANGE_WINDOW: u32 = 1 << 24;
/// Set while the pages may be older than the print says: the kernel was told, but perhaps it did not listen yet.
const PRINT_OLD: u64 = 1;
/// Our own writes led away from the last print.
const PRINT_OWN: u64 = 2;
const SPINS_MAX: u32 = 64;

#[derive(Default)]
struct Record([AtomicU64; WORDS]);

impl std::ops::Index<usize> for Record {
    type Output = AtomicU64;

    #[inline]
    fn index(&self, word: usize) -> &AtomicU64 {
        &self.0[word]
    }
}

impl Record {
    #[inline(always)]
    fn load(&self) -> [u64; WORDS] {
        std::array::from_fn(|word| self.0[word].load(Relaxed))
    }

    fn print(&self) -> u64 {
        (self[W_MODE].load(Relaxed) & 0xffff_0000) << 16 | self[W_LINKS].load(Relaxed) & 0xffff_ffff
    }

    fn set_print(&self, print: u64) {
        let (mode, links) = (self[W_MODE].load(Relaxed), self[W_LINKS].load(Relaxed));
        self[W_MODE].store(mode & !0xffff_0000 | (print >> 16) & 0xffff_0000, Relaxed);
        self[W_LINKS].store(links & !0xffff_ffff | print & 0xffff_ffff, Relaxed);
    }
}

/// Eight places of the index. An entry lives in its home bucket, or in the next one that had room.
#[derive(Default)]
struct Bucket {
    /// A byte of hash for each slot; 0 for an empty one.
    tags: AtomicU64,
    /// Places of records.
    slots: [AtomicU32; WAYS],
}

impl Bucket {
    #[inline]
    fn place(&self, way: usize) -> Place {
        Place(self.slots[way].load(Relaxed))
    }
}

/// Aligned so that the sequences of two shards never share a cache line.
#[repr(align(64))]
struct Shard {
    seq: AtomicU32,
    /// Buckets of the index minus one; meaningful once the first record exists.
    mask: AtomicU32,
    index: Doubling<Bucket>,
    records: Pool<Record>,
    writer: Mutex<Writer>,
}

#[derive(Default)]
struct Writer {
    live: u32,
    /// The record that was used for the first time last.
    last: Option<Place>,
    /// Head of the list of free records, see [`chain`].
    free: u64,
}

/// What became of attributes handed to [`InodeTable::fill`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fill {
    /// They are current; `foreign` when they show a change that is not ours and the kernel may hold older pages.
    Current {
        /// Whether someone else changed the content.
        foreign: bool,
    },
    /// An own change ran meanwhile: they may be old. Not kept.
    Outrun,
    /// The inode is not in the table.
    Unknown,
}

pub(crate) struct InodeTable {
    shards: Box<[Shard; SHARDS]>,
    seed: u64,
    changes: AtomicU32,
    len: AtomicUsize,
    budget: std::sync::Arc<Budget>,
}

impl InodeTable {
    pub(crate) fn new(budget: std::sync::Arc<Budget>) -> Self {
        let shards = Box::new(std::array::from_fn(|_| Shard {
            seq: AtomicU32::new(0),
            mask: AtomicU32::new(0),
            index: Doubling::new(),
            records: Pool::new(),
            writer: Mutex::default(),
        }));
        budget.add(Part::Inodes, (SHARDS * size_of::<Shard>()) as u64);
        let seed = hashbrown::DefaultHashBuilder::default().hash_one(0x6164_6974_u64);
        InodeTable { shards, seed, changes: AtomicU32::new(0), len: AtomicUsize::new(0), budget }
    }

    /// Inodes in the table.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    #[inline]
    fn hash(&self, ino: Ino) -> u64 {
        let wide = u128::from(ino.0 ^ self.seed) * 0x9e37_79b9_7f4a_7c15;
        (wide as u64) ^ ((wide >> 64) as u64)
    }

    /// Whether the inode is known.
    #[inline]
    pub(crate) fn known(&self, ino: Ino) -> bool {
        self.read(ino, |_| ()).is_some()
    }

    /// Cached attributes that are fresh at `now`, and when they expire. `None` also where finding them takes a little
    /// longer: then [`InodeTable::attr`] knows.
    #[inline(always)]
    pub(crate) fn attr_at_once(&self, ino: Ino, now: Tick) -> Option<(Attr, Tick)> {
        let hash = self.hash(ino);
        let shard = self.shard(hash);
        let seq = shard.seq.load(Acquire);
        let words = shard.find_home(ino, hash)?.load();
        fence(Acquire);
        if seq & 1 == 1 || shard.seq.load(Relaxed) != seq {
            return None;
        }
        fresh(ino, &words, now)
    }

    /// Cached attributes that are fresh at `now`, and when they expire.
    pub(crate) fn attr(&self, ino: Ino, now: Tick) -> Option<(Attr, Tick)> {
        fresh(ino, &self.read(ino, Record::load)?, now)
    }

    /// A mark to hand to [`InodeTable::fill`], taken before the store is asked.
    pub(crate) fn since(&self) -> u32 {
        self.changes.load(SeqCst)
    }

    /// One more reference by lookup.
    pub(crate) fn add_ref(&self, ino: Ino) -> Result<(), FsError> {
        self.add(ino, 1 << PINS_BITS, true).map(drop)
    }

    /// One more reference, if the inode is known.
    pub(crate) fn add_ref_if_known(&self, ino: Ino) -> bool {
        matches!(self.add(ino, 1 << PINS_BITS, false), Ok(true))
    }

    /// Holds a known inode beyond its references: a handle, or buffered data.
    pub(crate) fn pin(&self, ino: Ino) -> Result<(), FsError> {
        if self.add(ino, 1, false)? { Ok(()) } else { Err(ErrorKind::Stale.into()) }
    }

    /// Takes a pin back; true when nothing holds the inode any more.
    pub(crate) fn unpin(&self, ino: Ino) -> bool {
        self.with_record(ino, |r| {
            let refs = r[W_REFS].load(Relaxed);
            debug_assert!(refs & PINS_MAX != 0, "unpin without pin");
            let refs = if refs & PINS_MAX == 0 || refs & PINS_MAX == PINS_MAX { refs } else { refs - 1 };
            r[W_REFS].store(refs, Relaxed);
            refs == 0
        })
        .unwrap_or(false)
    }

    /// Takes `count` references back; true when nothing holds the inode any more.
    pub(crate) fn forget(&self, ino: Ino, count: u64) -> bool {
        self.with_record(ino, |r| {
            let refs = r[W_REFS].load(Relaxed);
            let held = refs >> PINS_BITS;
            if count > held {
                tracing::warn!(ino = ino.0, held, count, "more references forgotten than were given");
            }
            let left = if held == COUNT_MAX { held } else { held.saturating_sub(count) };
            let refs = (left << PINS_BITS) | (refs & PINS_MAX);
            r[W_REFS].store(refs, Relaxed);
            refs == 0
        })
        .unwrap_or(false)
    }

    /// References by lookup (tests and statistics).
    pub(crate) fn count(&self, ino: Ino) -> u64 {
        self.read(ino, |r| r[W_REFS].load(Relaxed) >> PINS_BITS).unwrap_or(0)
    }

    /// Removes the inode if nothing holds it; true if it was there and is gone.
    pub(crate) fn reap(&self, ino: Ino) -> bool {
        let hash = self.hash(ino);
        let shard = self.shard(hash);
        let mut w = shard.writer.lock();
        let Some((slot, place, record)) = shard.find(ino, hash) else { return false };
        if record[W_REFS].load(Relaxed) != 0 {
            return false;
        }
        shard.write(|| {
            shard.unlink(slot, |ino| self.hash(ino));
            record[W_INO].store(0, Relaxed);
            record[W_FRESH].store(0, Relaxed);
            record.set_print(0);
            record[W_REFS].store(w.free, Relaxed);
        });
        w.free = chain(place);
        w.live -= 1;
        self.len.fetch_sub(1, Relaxed);
        true
    }

    /// Keeps attributes from the store until `expiry` (0: does not keep them), unless an own change ran since `since`.
    pub(crate) fn fill(&self, attr: &Attr, expiry: Tick, since: u32) -> Fill {
        self.with_shard_record(attr.ino, |shard, r| {
            let fresh = r[W_FRESH].load(Relaxed);
            let changed = (fresh as u32).wrapping_sub(since);
            if changed != 0 && changed <= CHANGE_WINDOW {
                return Fill::Outrun;
            }
            let print = r.print();
            let new_print = self.print_of(attr);
            let foreign = print != 0 && print & !PRINT_OLD != PRINT_OWN && print & !PRINT_OLD != new_print;
            shard.write(|| {
                let kept = pack(attr, r);
                r[W_FRESH].store(if kept { u64::from(expiry) << 32 } else { 0 } | (fresh & 0xffff_ffff), Relaxed);
                if print != 0 {
                    r.set_print(new_print | (print & PRINT_OLD) | u64::from(foreign));
                }
            });
            Fill::Current { foreign }
        })
        .unwrap_or(Fill::Unknown)
    }

    /// Keeps attributes that an own change returned, until `expiry`. False if another own change ran since `since`, and
    /// then they may be old: it is as with [`InodeTable::changed`].
    pub(crate) fn own(&self, attr: &Attr, expiry: Tick, since: u32) -> bool {
        self.with_shard_record(attr.ino, |shard, r| {
            let now = self.changes.fetch_add(1, SeqCst).wrapping_add(1);
            let changed = (r[W_FRESH].load(Relaxed) as u32).wrapping_sub(since);
            let current = changed == 0 || changed > CHANGE_WINDOW;
            let new_print = if current { self.print_of(attr) } else { PRINT_OWN };
            shard.write(|| {
                let kept = current && pack(attr, r);
                r[W_FRESH].store(if kept { u64::from(expiry) << 32 } else { 0 } | u64::from(now), Relaxed);
                let print = r.print();
                if print != 0 {
                    r.set_print(new_print | (print & PRINT_OLD));
                }
            });
            current
        })
        .unwrap_or(true)
    }

    /// Notes an own change of the inode: cached attributes go, and the next ones are ours.
    pub(crate) fn changed(&self, ino: Ino) {
        let now = self.changes.fetch_add(1, SeqCst).wrapping_add(1);
        self.with_shard_record(ino, |shard, r| {
            shard.write(|| {
                r[W_FRESH].store(u64::from(now), Relaxed);
                let print = r.print();
                if print != 0 {
                    r.set_print(PRINT_OWN | (print & PRINT_OLD));
                }
            });
        });
    }

    /// Notes that the kernel may fill pages of a file with these attributes from now on; true when pages that it holds
    /// already belong to the same content.
    pub(crate) fn opened(&self, attr: &Attr) -> bool {
        let now = self.print_of(attr);
        self.with_shard_record(attr.ino, |shard, r| {
            let print = r.print();
            shard.write(|| r.set_print(now));
            print == now || print == PRINT_OWN
        })
        .unwrap_or(false)
    }

    /// Whether the kernel cannot hold pages of it: it was not opened since it is known.
    pub(crate) fn is_unread(&self, ino: Ino) -> bool {
        self.with_record(ino, |r| r.print() == 0).unwrap_or(false)
    }

    /// As [`InodeTable::opened`], for a file with buffered writes: whatever is seen next is ours.
    pub(crate) fn opened_dirty(&self, ino: Ino) -> bool {
        self.with_shard_record(ino, |shard, r| {
            let old = r.print() & PRINT_OLD != 0;
            shard.write(|| r.set_print(PRINT_OWN));
            !old
        })
        .unwrap_or(false)
    }

    /// 48 bits of a keyed hash; even, and none of the reserved values.
    fn print_of(&self, attr: &Attr) -> u64 {
        let mut h = self.seed;
        let times = [attr.mtime, attr.ctime].map(|t| (t.secs as u64).rotate_left(30) ^ u64::from(t.nanos));
        for word in [attr.size, times[0], times[1]] {
            h = self.hash(Ino(h ^ word)).rotate_left(23);
        }
        (self.hash(Ino(h)) & PRINT_MASK).max(PRINT_OWN + 2) & !PRINT_OLD
    }

    #[inline]
    fn shard(&self, hash: u64) -> &Shard {
        &self.shards[hash as usize % SHARDS]
    }

    #[inline(always)]
    fn read<R>(&self, ino: Ino, f: impl Fn(&Record) -> R) -> Option<R> {
        let hash = self.hash(ino);
        let shard = self.shard(hash);
        match shard.try_read(ino, hash, &f) {
            Ok(found) => found,
            Err(Torn) => shard.read_beside_writer(ino, hash, f),
        }
    }

    fn with_record<R>(&self, ino: Ino, f: impl FnOnce(&Record) -> R) -> Option<R> {
        self.with_shard_record(ino, |_, r| f(r))
    }

    fn with_shard_record<R>(&self, ino: Ino, f: impl FnOnce(&Shard, &Record) -> R) -> Option<R> {
        let hash = self.hash(ino);
        let shard = self.shard(hash);
        let _writer = shard.writer.lock();
        let (_, _, record) = shard.find(ino, hash)?;
        Some(f(shard, record))
    }

    /// Adds to the reference word, saturating each half; makes the record if `insert`. True if there is one now.
    fn add(&self, ino: Ino, step: u64, insert: bool) -> Result<bool, FsError> {
        let hash = self.hash(ino);
        let shard = self.shard(hash);
        let mut w = shard.writer.lock();
        let record = match shard.find(ino, hash) {
            Some((_, _, record)) => Some(record),
            None if insert => shard.records.get(self.insert(shard, &mut w, ino, hash)?),
            None => return Ok(false),
        };
        if let Some(r) = record {
            let refs = r[W_REFS].load(Relaxed);
            let full = if step == 1 { refs & PINS_MAX == PINS_MAX } else { refs >> PINS_BITS == COUNT_MAX };
            if !full {
                r[W_REFS].store(refs + step, Relaxed);
            }
        }
        Ok(true)
    }

    fn insert(&self, shard: &Shard, w: &mut Writer, ino: Ino, hash: u64) -> Result<Place, FsError> {
        let reused = unchain(w.free);
        let place = match reused {
            Some(place) => place,
            None => {
                let (place, added) = shard.records.next(w.last).ok_or(ErrorKind::Exhausted)?;
                self.budget.add(Part::Inodes, (added * size_of::<Record>()) as u64);
                w.last = Some(place);
                place
            }
        };
        let record = shard.records.get(place).ok_or(ErrorKind::Exhausted)?;
        if reused.is_some() {
            w.free = record[W_REFS].load(Relaxed);
        }
        shard.write(|| {
            self.grow(shard, w.live);
            record[W_INO].store(ino.0, Relaxed);
            record[W_REFS].store(0, Relaxed);
            // No attributes; its latest change lies outside the window of any reader's mark.
            let old = self.changes.load(SeqCst).wrapping_sub(2 * CHANGE_WINDOW);
            record[W_FRESH].store(u64::from(old), Relaxed);
            record.set_print(0);
            shard.link(place, hash);
        });
        w.live += 1;
        self.len.fetch_add(1, Relaxed);
        Ok(place)
    }

    /// Doubles the index when one more record would fill it beyond 7/8.
    fn grow(&self, shard: &Shard, live: u32) {
        let mask = shard.mask.load(Relaxed);
        let buckets = if live == 0 && shard.index.get(0).is_none() { 0 } else { u64::from(mask) + 1 };
        if (u64::from(live) + 1) * 8 <= buckets * WAYS as u64 * 7 {
            return;
        }
        let buckets_new = (buckets * 2).max(1) as u32;
        let added: usize = (buckets as usize..buckets_new as usize).map(|b| shard.index.ensure(b)).sum();
        self.budget.add(Part::Inodes, (added * size_of::<Bucket>()) as u64);
        let mut places = Vec::with_capacity(live as usize);
        for bucket in (0..buckets as usize).filter_map(|b| shard.index.get(b)) {
            let tags = bucket.tags.swap(0, Relaxed);
            places.extend((0..WAYS).filter(|w| tag_at(tags, *w) != 0).map(|w| bucket.place(w)));
        }
        shard.mask.store(buckets_new - 1, Relaxed);
        for place in places {
            if let Some(r) = shard.records.get(place) {
                shard.link(place, self.hash(Ino(r[W_INO].load(Relaxed))));
            }
        }
    }
}

#[inline]
fn tag_at(tags: u64, way: usize) -> u64 {
    tags >> (way * 8) & 0xff
}

/// Never 0: that is an empty slot.
#[inline]
fn tag_of(hash: u64) -> u64 {
    (hash >> 56).max(1)
}

/// A one in each byte.
pub(super) const EACH: u64 = 0x0101_0101_0101_0101;
const TOPS: u64 = 0x8080_8080_8080_8080;

/// The top bit of each byte that is zero; above a zero byte perhaps of some that are not.
#[inline]
pub(super) fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(EACH) & !word & TOPS
}

/// A link of the list of free records: 0 ends it.
fn chain(place: Place) -> u64 {
    u64::from(place.0) + 1
}

fn unchain(link: u64) -> Option<Place> {
    link.checked_sub(1).map(|place| Place(place as u32))
}

/// A slot of the index: bucket and way.
type Slot = (u32, usize);

/// A writer was at work: what was read means nothing.
struct Torn;

impl Shard {
    #[inline(always)]
    fn try_read<R>(&self, ino: Ino, hash: u64, f: impl Fn(&Record) -> R) -> Result<Option<R>, Torn> {
        let seq = self.seq.load(Acquire);
        let found = match self.find_home(ino, hash) {
            Some(record) => Some(f(record)),
            None => self.find_far(ino, hash).map(f),
        };
        fence(Acquire);
        if seq & 1 == 0 && self.seq.load(Relaxed) == seq { Ok(found) } else { Err(Torn) }
    }

    /// Spins a while; then the writer was descheduled in the middle, and it waits for it instead.
    #[cold]
    #[inline(never)]
    fn read_beside_writer<R>(&self, ino: Ino, hash: u64, f: impl Fn(&Record) -> R) -> Option<R> {
        for _ in 0..SPINS_MAX {
            std::hint::spin_loop();
            if let Ok(found) = self.try_read(ino, hash, &f) {
                return found;
            }
        }
        let _writer = self.writer.lock();
        self.find(ino, hash).map(|(_, _, record)| f(record))
    }

    /// The record of `ino`, if it is in its home bucket: nearly all are. In a few instructions, so that the processor
    /// can overlap the cache misses of several requests.
    #[inline(always)]
    fn find_home(&self, ino: Ino, hash: u64) -> Option<&Record> {
        let bucket = self.index.get(((hash >> 8) as u32 & self.mask.load(Relaxed)) as usize)?;
        let mut candidates = zero_bytes(bucket.tags.load(Relaxed) ^ (tag_of(hash) * EACH));
        while candidates != 0 {
            let record = self.records.get(bucket.place((candidates.trailing_zeros() / 8) as usize))?;
            // A record has the number as long as the inode is known, so the tag need not be compared again.
            if record[W_INO].load(Relaxed) == ino.0 {
                return Some(record);
            }
            candidates &= candidates - 1;
        }
        None
    }

    #[cold]
    #[inline(never)]
    fn find_far(&self, ino: Ino, hash: u64) -> Option<&Record> {
        self.find(ino, hash).map(|(_, _, record)| record)
    }

    /// The index slot, the place, and the record of `ino`.
    fn find(&self, ino: Ino, hash: u64) -> Option<(Slot, Place, &Record)> {
        let mask = self.mask.load(Relaxed);
        let mut at = (hash >> 8) as u32 & mask;
        // Bounded, because a reader may see an index in motion.
        for _ in 0..=mask {
            let bucket = self.index.get(at as usize)?;
            let tags = bucket.tags.load(Relaxed);
            let mut candidates = zero_bytes(tags ^ (tag_of(hash) * EACH));
            while candidates != 0 {
                let way = (candidates.trailing_zeros() / 8) as usize;
                let place = bucket.place(way);
                let record = self.records.get(place)?;
                if record[W_INO].load(Relaxed) == ino.0 && tag_at(tags, way) == tag_of(hash) {
                    return Some(((at, way), place, record));
                }
                candidates &= candidates - 1;
            }
            if zero_bytes(tags) != 0 {
                return None;
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// Runs `f` with readers told to read again. The caller holds `writer`.
    #[inline]
    fn write<R>(&self, f: impl FnOnce() -> R) -> R {
        let seq = self.seq.load(Relaxed);
        self.seq.store(seq.wrapping_add(1), Relaxed);
        fence(Release);
        let r = f();
        self.seq.store(seq.wrapping_add(2), Release);
        r
    }

    /// Puts a record into the first bucket with room, from its home on. There is one: the index is at most 7/8 full.
    fn link(&self, place: Place, hash: u64) {
        let mask = self.mask.load(Relaxed);
        let mut at = (hash >> 8) as u32 & mask;
        while let Some(bucket) = self.index.get(at as usize) {
            let tags = bucket.tags.load(Relaxed);
            if let Some(way) = (0..WAYS).find(|&w| tag_at(tags, w) == 0) {
                bucket.slots[way].store(place.0, Relaxed);
                bucket.tags.store(tags | tag_of(hash) << (way * 8), Relaxed);
                return;
            }
            at = (at + 1) & mask;
        }
    }

    /// Empties a slot. If its bucket was full, entries that had overflowed from it or before move back into the hole,
    /// so that no search ends too early.
    fn unlink(&self, (mut hole, mut hole_way): Slot, hash_of: impl Fn(Ino) -> u64) {
        let mask = self.mask.load(Relaxed);
        let Some(mut bucket) = self.index.get(hole as usize) else { return };
        let mut was_full = zero_bytes(bucket.tags.load(Relaxed)) == 0;
        bucket.tags.fetch_and(!(0xff << (hole_way * 8)), Relaxed);
        let mut at = hole;
        while was_full {
            at = (at + 1) & mask;
            let Some(next) = self.index.get(at as usize).filter(|_| at != hole) else { return };
            let tags = next.tags.load(Relaxed);
            let next_full = zero_bytes(tags) == 0;
            let movable = (0..WAYS).filter(|&w| tag_at(tags, w) != 0).find_map(|way| {
                let place = next.place(way);
                let home = (hash_of(Ino(self.records.get(place)?[W_INO].load(Relaxed))) >> 8) as u32 & mask;
                let may = (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask);
                may.then_some((way, place))
            });
            if let Some((way, place)) = movable {
                bucket.slots[hole_way].store(place.0, Relaxed);
                bucket.tags.fetch_or(tag_at(tags, way) << (hole_way * 8), Relaxed);
                next.tags.store(tags & !(0xff << (way * 8)), Relaxed);
                (bucket, hole, hole_way) = (next, at, way);
            }
            was_full = next_full;
        }
    }
}

const SECS_BIAS: i64 = 1 << 31;

/// 34 bits of seconds since 1901, 30 bits of nanoseconds: until the year 2446.
fn pack_time(t: Timestamp) -> Option<u64> {
    let secs = t.secs.checked_add(SECS_BIAS)?;
    ((0..1 << 34).contains(&secs) && t.nanos < 1 << 30).then(|| (secs as u64) << 30 | u64::from(t.nanos))
}

fn unpack_time(word: u64) -> Timestamp {
    Timestamp { secs: (word >> 30) as i64 - SECS_BIAS, nanos: (word & 0x3fff_ffff) as u32 }
}

fn is_device(kind: Kind) -> bool {
    matches!(kind, Kind::BlockDevice | Kind::CharDevice)
}

/// False where a field does not fit: such attributes are not cached. The print stays.
fn pack(attr: &Attr, r: &Record) -> bool {
    let (Some(atime), Some(mtime), Some(ctime)) = (pack_time(attr.atime), pack_time(attr.mtime), pack_time(attr.ctime))
    else {
        return false;
    };
    let fits = if is_device(attr.kind) { attr.size == 0 } else { attr.rdev == 0 };
    if attr.blocks >> 32 != 0 || !fits {
        return false;
    }
    let print = r.print();
    r[W_SIZE].store(attr.size | u64::from(attr.rdev), Relaxed);
    r[W_MODE].store(attr.blocks << 32 | (attr.kind as u64) << 12 | u64::from(attr.perm & 0o7777), Relaxed);
    r[W_ATIME].store(atime, Relaxed);
    r[W_MTIME].store(mtime, Relaxed);
    r[W_CTIME].store(ctime, Relaxed);
    r[W_OWNER].store(u64::from(attr.uid) << 32 | u64::from(attr.gid), Relaxed);
    r[W_LINKS].store(u64::from(attr.nlink) << 32, Relaxed);
    r.set_print(print);
    true
}

const KINDS: [Kind; 16] = {
    let mut kinds = [Kind::Socket; 16];
    kinds[Kind::File as usize] = Kind::File;
    kinds[Kind::Directory as usize] = Kind::Directory;
    kinds[Kind::Symlink as usize] = Kind::Symlink;
    kinds[Kind::BlockDevice as usize] = Kind::BlockDevice;
    kinds[Kind::CharDevice as usize] = Kind::CharDevice;
    kinds[Kind::Fifo as usize] = Kind::Fifo;
    kinds
};

#[inline(always)]
fn fresh(ino: Ino, words: &[u64; WORDS], now: Tick) -> Option<(Attr, Tick)> {
    let expiry = (words[W_FRESH] >> 32) as Tick;
    (expiry > now).then(|| (unpack(ino, words), expiry))
}

#[inline(always)]
fn unpack(ino: Ino, words: &[u64; WORDS]) -> Attr {
    let (mode, owner, size) = (words[W_MODE], words[W_OWNER], words[W_SIZE]);
    let kind = KINDS[(mode >> 12 & 0xf) as usize];
    let device = is_device(kind);
    Attr {
        ino,
        size: if device { 0 } else { size },
        blocks: mode >> 32,
        atime: unpack_time(words[W_ATIME]),
        mtime: unpack_time(words[W_MTIME]),
        ctime: unpack_time(words[W_CTIME]),
        kind,
        perm: (mode & 0o7777) as u16,
        nlink: (words[W_LINKS] >> 32) as u32,
        uid: (owner >> 32) as u32,
        gid: owner as u32,
        rdev: if device { size as u32 } else { 0 },
    }
}

#[cfg(test)]
#[path = "inodes_tests.rs"]
mod tests;
