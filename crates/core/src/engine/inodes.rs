//! The table of known inodes: lookup counts, pins, attributes, and what the kernel's pages were filled from.
//!
//! [`InodeTable`] is sharded. A record is eleven words; an index of 4 bytes a slot (linear probing) leads to it.
//! Readers take no lock: a shard's sequence is odd while a writer moves things, and a reader that saw it change reads
//! again. All words are relaxed atomics, so a torn read is a wrong value that is thrown away, never undefined behaviour.
//!
//! Invariants: a record exists exactly while its count or its pins are above zero, or its removal is pending; only
//! [`InodeTable::reap`] removes one. Memory stays at its high-water mark until the table goes.
//!
//! **Changes.** A counter runs over all own changes; a record keeps the value of its latest. Attributes that were read
//! from the store while a change ran are recognized by it ([`InodeTable::since`]) and not cached.

use std::hash::BuildHasher;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*, fence};

use parking_lot::Mutex;

use super::clock::Tick;
use super::segments::Segmented;
use crate::error::{ErrorKind, Result};
use crate::memory::{Budget, Part};
use crate::types::{Attr, Ino, Kind, Timestamp};

const SHARDS: usize = 16;
const CHUNK_RECORDS: usize = 32;
const WORDS: usize = 11;

const W_INO: usize = 0;
/// Lookup count in the high 40 bits, pins in the low 24; in a free record the next free one.
const W_REFS: usize = 1;
const W_SIZE: usize = 2;
/// Blocks in the high 48 bits, kind in 4, permissions in 12.
const W_MODE: usize = 3;
const W_ATIME: usize = 4;
const W_MTIME: usize = 5;
const W_CTIME: usize = 6;
const W_OWNER: usize = 7;
const W_LINKS: usize = 8;
/// Expiry of the attributes in the high 32 bits (0: none), the latest change in the low 32.
const W_FRESH: usize = 9;
/// Print of what the kernel's pages may hold: 0 none, [`PRINT_OWN`], or the print of attributes; and [`PRINT_OLD`].
const W_PRINT: usize = 10;

const PINS_BITS: u32 = 24;
const PINS_MAX: u64 = (1 << PINS_BITS) - 1;
const COUNT_MAX: u64 = (1 << 40) - 1;
/// A change less than this many changes ago, as seen from a reader's mark, happened after it.
const CHANGE_WINDOW: u32 = 1 << 24;
/// Set while the pages may be older than the print says: the kernel was told, but perhaps it did not listen yet.
const PRINT_OLD: u64 = 1;
/// Our own writes led away from the last print.
const PRINT_OWN: u64 = 2;
/// Index slots: 8 bits of hash, 24 bits of record number + 1.
const RECORDS_MAX: u32 = (1 << 24) - 2;
const SPINS_MAX: u32 = 64;

type Record = [AtomicU64; WORDS];

struct Chunk(OnceLock<Box<[Record; CHUNK_RECORDS]>>);

impl Default for Chunk {
    fn default() -> Self {
        Chunk(OnceLock::new())
    }
}

/// Aligned so that the sequences of two shards never share a cache line.
#[repr(align(64))]
struct Shard {
    seq: AtomicU32,
    /// Slots of the index minus one; meaningful once the first record exists.
    mask: AtomicU32,
    index: Segmented<AtomicU32>,
    chunks: Segmented<Chunk>,
    writer: Mutex<Writer>,
}

#[derive(Default)]
struct Writer {
    live: u32,
    /// First never-used record.
    next: u32,
    /// Head of the list of free records, number + 1.
    free: u32,
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
    shards: Box<[Shard]>,
    seed: u64,
    changes: AtomicU32,
    len: AtomicUsize,
    budget: std::sync::Arc<Budget>,
}

impl InodeTable {
    pub(crate) fn new(budget: std::sync::Arc<Budget>) -> Self {
        let shards = (0..SHARDS)
            .map(|_| Shard {
                seq: AtomicU32::new(0),
                mask: AtomicU32::new(0),
                index: Segmented::new(),
                chunks: Segmented::new(),
                writer: Mutex::default(),
            })
            .collect();
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

    /// Cached attributes that are fresh at `now`, and when they expire.
    #[inline]
    pub(crate) fn attr(&self, ino: Ino, now: Tick) -> Option<(Attr, Tick)> {
        let (attr, expiry) = self.read(ino, |r| (unpack(ino, r), (r[W_FRESH].load(Relaxed) >> 32) as Tick))?;
        (expiry > now).then_some((attr, expiry))
    }

    /// A mark to hand to [`InodeTable::fill`], taken before the store is asked.
    pub(crate) fn since(&self) -> u32 {
        self.changes.load(SeqCst)
    }

    /// One more reference by lookup.
    pub(crate) fn add_ref(&self, ino: Ino) -> Result<()> {
        self.add(ino, 1 << PINS_BITS, true).map(drop)
    }

    /// One more reference, if the inode is known.
    pub(crate) fn add_ref_if_known(&self, ino: Ino) -> bool {
        matches!(self.add(ino, 1 << PINS_BITS, false), Ok(true))
    }

    /// Holds a known inode beyond its references: a handle, or buffered data.
    pub(crate) fn pin(&self, ino: Ino) -> Result<()> {
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
        let Some((slot, number)) = shard.find(ino, hash) else {
            return false;
        };
        let Some(record) = shard.record(number) else {
            return false;
        };
        if record[W_REFS].load(Relaxed) != 0 {
            return false;
        }
        shard.write(|| {
            shard.unlink(slot, |ino| self.hash(ino));
            record[W_INO].store(0, Relaxed);
            record[W_FRESH].store(0, Relaxed);
            record[W_PRINT].store(0, Relaxed);
            record[W_REFS].store(u64::from(w.free), Relaxed);
        });
        w.free = number + 1;
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
            let print = r[W_PRINT].load(Relaxed);
            let new_print = self.print_of(attr);
            let foreign = print != 0 && print & !PRINT_OLD != PRINT_OWN && print & !PRINT_OLD != new_print;
            shard.write(|| {
                let kept = pack(attr, r);
                r[W_FRESH].store(if kept { u64::from(expiry) << 32 } else { 0 } | (fresh & 0xffff_ffff), Relaxed);
                if print != 0 {
                    r[W_PRINT].store(new_print | (print & PRINT_OLD) | u64::from(foreign), Relaxed);
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
                let print = r[W_PRINT].load(Relaxed);
                if print != 0 {
                    r[W_PRINT].store(new_print | (print & PRINT_OLD), Relaxed);
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
                let print = r[W_PRINT].load(Relaxed);
                if print != 0 {
                    r[W_PRINT].store(PRINT_OWN | (print & PRINT_OLD), Relaxed);
                }
            });
        });
    }

    /// Notes that the kernel may fill pages of a file with these attributes from now on; true when pages that it holds
    /// already belong to the same content.
    pub(crate) fn opened(&self, attr: &Attr) -> bool {
        let now = self.print_of(attr);
        self.with_shard_record(attr.ino, |shard, r| {
            let print = r[W_PRINT].load(Relaxed);
            shard.write(|| r[W_PRINT].store(now, Relaxed));
            print == now || print == PRINT_OWN
        })
        .unwrap_or(false)
    }

    /// As [`InodeTable::opened`], for a file with buffered writes: whatever is seen next is ours.
    pub(crate) fn opened_dirty(&self, ino: Ino) -> bool {
        self.with_shard_record(ino, |shard, r| {
            let old = r[W_PRINT].load(Relaxed) & PRINT_OLD != 0;
            shard.write(|| r[W_PRINT].store(PRINT_OWN, Relaxed));
            !old
        })
        .unwrap_or(false)
    }

    fn print_of(&self, attr: &Attr) -> u64 {
        let mut h = self.seed;
        for word in [attr.size, pack_time(attr.mtime).unwrap_or(attr.mtime.secs as u64), attr.ctime.secs as u64] {
            h = self.hash(Ino(h ^ word)).rotate_left(23);
        }
        self.hash(Ino(h ^ u64::from(attr.ctime.nanos))).max(PRINT_OWN + 2) & !PRINT_OLD
    }

    fn shard(&self, hash: u64) -> &Shard {
        &self.shards[hash as usize % SHARDS]
    }

    #[inline]
    fn read<R>(&self, ino: Ino, f: impl Fn(&Record) -> R) -> Option<R> {
        let hash = self.hash(ino);
        let shard = self.shard(hash);
        for _ in 0..SPINS_MAX {
            let seq = shard.seq.load(Acquire);
            if seq & 1 == 1 {
                std::hint::spin_loop();
                continue;
            }
            let found = shard.find(ino, hash).and_then(|(_, number)| shard.record(number)).map(&f);
            fence(Acquire);
            if shard.seq.load(Relaxed) == seq {
                return found;
            }
        }
        // A writer was descheduled in the middle: wait for it instead of spinning.
        let _writer = shard.writer.lock();
        shard.find(ino, hash).and_then(|(_, number)| shard.record(number)).map(f)
    }

    fn with_record<R>(&self, ino: Ino, f: impl FnOnce(&Record) -> R) -> Option<R> {
        self.with_shard_record(ino, |_, r| f(r))
    }

    fn with_shard_record<R>(&self, ino: Ino, f: impl FnOnce(&Shard, &Record) -> R) -> Option<R> {
        let hash = self.hash(ino);
        let shard = self.shard(hash);
        let _writer = shard.writer.lock();
        let (_, number) = shard.find(ino, hash)?;
        Some(f(shard, shard.record(number)?))
    }

    /// Adds to the reference word, saturating each half; makes the record if `insert`. True if there is one now.
    fn add(&self, ino: Ino, step: u64, insert: bool) -> Result<bool> {
        let hash = self.hash(ino);
        let shard = self.shard(hash);
        let mut w = shard.writer.lock();
        let number = match shard.find(ino, hash) {
            Some((_, number)) => number,
            None if insert => self.insert(shard, &mut w, ino, hash)?,
            None => return Ok(false),
        };
        if let Some(r) = shard.record(number) {
            let refs = r[W_REFS].load(Relaxed);
            let full = if step == 1 { refs & PINS_MAX == PINS_MAX } else { refs >> PINS_BITS == COUNT_MAX };
            if !full {
                r[W_REFS].store(refs + step, Relaxed);
            }
        }
        Ok(true)
    }

    fn insert(&self, shard: &Shard, w: &mut Writer, ino: Ino, hash: u64) -> Result<u32> {
        let number = match w.free {
            0 if w.next > RECORDS_MAX => return Err(ErrorKind::Exhausted.into()),
            0 => {
                let number = w.next;
                let chunk = number as usize / CHUNK_RECORDS;
                let added = shard.chunks.ensure(chunk) * size_of::<Chunk>();
                if let Some(c) = shard.chunks.get(chunk)
                    && c.0.get().is_none()
                {
                    c.0.get_or_init(|| Box::new([const { [const { AtomicU64::new(0) }; WORDS] }; CHUNK_RECORDS]));
                    self.budget.add(Part::Inodes, (CHUNK_RECORDS * size_of::<Record>()) as u64);
                }
                self.budget.add(Part::Inodes, added as u64);
                w.next += 1;
                number
            }
            head => head - 1,
        };
        let Some(record) = shard.record(number) else {
            return Err(ErrorKind::Exhausted.into());
        };
        if w.free != 0 {
            w.free = record[W_REFS].load(Relaxed) as u32;
        }
        shard.write(|| {
            self.grow(shard, w.live);
            record[W_INO].store(ino.0, Relaxed);
            record[W_REFS].store(0, Relaxed);
            // No attributes; its latest change lies outside the window of any reader's mark.
            let old = self.changes.load(SeqCst).wrapping_sub(2 * CHANGE_WINDOW);
            record[W_FRESH].store(u64::from(old), Relaxed);
            record[W_PRINT].store(0, Relaxed);
            shard.link(number, hash);
        });
        w.live += 1;
        self.len.fetch_add(1, Relaxed);
        Ok(number)
    }

    /// Doubles the index when one more record would fill it beyond 7/8.
    fn grow(&self, shard: &Shard, live: u32) {
        let mask = shard.mask.load(Relaxed);
        let slots = if mask == 0 { 0 } else { u64::from(mask) + 1 };
        if (u64::from(live) + 1) * 8 <= slots * 7 {
            return;
        }
        let slots_new = (slots * 2).max(16) as u32;
        let added = shard.index.ensure(slots_new as usize - 1);
        self.budget.add(Part::Inodes, (added * size_of::<AtomicU32>()) as u64);
        let old: Vec<u32> = (0..slots as u32)
            .filter_map(|i| shard.index.get(i as usize).map(|s| s.swap(0, Relaxed)))
            .filter(|&v| v != 0)
            .collect();
        shard.mask.store(slots_new - 1, Relaxed);
        for value in old {
            let number = (value & 0xff_ffff) - 1;
            if let Some(r) = shard.record(number) {
                shard.link(number, self.hash(Ino(r[W_INO].load(Relaxed))));
            }
        }
    }
}

impl Shard {
    #[inline]
    fn record(&self, number: u32) -> Option<&Record> {
        let chunk = self.chunks.get(number as usize / CHUNK_RECORDS)?.0.get()?;
        Some(&chunk[number as usize % CHUNK_RECORDS])
    }

    /// The index slot and the number of the record of `ino`.
    #[inline]
    fn find(&self, ino: Ino, hash: u64) -> Option<(u32, u32)> {
        let mask = self.mask.load(Relaxed);
        let mut slot = (hash >> 8) as u32 & mask;
        // Bounded, because a reader may see an index in motion.
        for _ in 0..=mask {
            let value = self.index.get(slot as usize)?.load(Relaxed);
            if value == 0 {
                return None;
            }
            if value >> 24 == (hash >> 56) as u32 {
                let number = (value & 0xff_ffff).wrapping_sub(1);
                if self.record(number)?[W_INO].load(Relaxed) == ino.0 {
                    return Some((slot, number));
                }
            }
            slot = (slot + 1) & mask;
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

    fn link(&self, number: u32, hash: u64) {
        let mask = self.mask.load(Relaxed);
        let mut slot = (hash >> 8) as u32 & mask;
        while let Some(place) = self.index.get(slot as usize) {
            if place.load(Relaxed) == 0 {
                place.store(((hash >> 56) as u32) << 24 | (number + 1), Relaxed);
                return;
            }
            slot = (slot + 1) & mask;
        }
    }

    /// Empties `slot` and moves later entries of the run back, so that no probe ends too early.
    fn unlink(&self, slot: u32, hash_of: impl Fn(Ino) -> u64) {
        let mask = self.mask.load(Relaxed);
        let (mut hole, mut at) = (slot, slot);
        loop {
            at = (at + 1) & mask;
            let value = self.index.get(at as usize).map_or(0, |s| s.load(Relaxed));
            if value == 0 || at == slot {
                break;
            }
            let Some(r) = self.record((value & 0xff_ffff) - 1) else {
                break;
            };
            let home = (hash_of(Ino(r[W_INO].load(Relaxed))) >> 8) as u32 & mask;
            // It may move to the hole unless its home lies cyclically in (hole, at].
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                if let Some(s) = self.index.get(hole as usize) {
                    s.store(value, Relaxed);
                }
                hole = at;
            }
        }
        if let Some(s) = self.index.get(hole as usize) {
            s.store(0, Relaxed);
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

/// False where a field does not fit: such attributes are not cached.
fn pack(attr: &Attr, r: &Record) -> bool {
    let (Some(atime), Some(mtime), Some(ctime)) = (pack_time(attr.atime), pack_time(attr.mtime), pack_time(attr.ctime))
    else {
        return false;
    };
    if attr.blocks >> 48 != 0 {
        return false;
    }
    r[W_SIZE].store(attr.size, Relaxed);
    r[W_MODE].store(attr.blocks << 16 | (attr.kind as u64) << 12 | u64::from(attr.perm & 0o7777), Relaxed);
    r[W_ATIME].store(atime, Relaxed);
    r[W_MTIME].store(mtime, Relaxed);
    r[W_CTIME].store(ctime, Relaxed);
    r[W_OWNER].store(u64::from(attr.uid) << 32 | u64::from(attr.gid), Relaxed);
    r[W_LINKS].store(u64::from(attr.nlink) << 32 | u64::from(attr.rdev), Relaxed);
    true
}

fn unpack(ino: Ino, r: &Record) -> Attr {
    let (mode, owner, links) = (r[W_MODE].load(Relaxed), r[W_OWNER].load(Relaxed), r[W_LINKS].load(Relaxed));
    Attr {
        ino,
        size: r[W_SIZE].load(Relaxed),
        blocks: mode >> 16,
        atime: unpack_time(r[W_ATIME].load(Relaxed)),
        mtime: unpack_time(r[W_MTIME].load(Relaxed)),
        ctime: unpack_time(r[W_CTIME].load(Relaxed)),
        kind: match mode >> 12 & 0xf {
            0 => Kind::File,
            1 => Kind::Directory,
            2 => Kind::Symlink,
            3 => Kind::BlockDevice,
            4 => Kind::CharDevice,
            5 => Kind::Fifo,
            _ => Kind::Socket,
        },
        perm: (mode & 0o7777) as u16,
        nlink: (links >> 32) as u32,
        uid: (owner >> 32) as u32,
        gid: owner as u32,
        rdev: links as u32,
    }
}

#[cfg(test)]
#[path = "inodes_tests.rs"]
mod tests;
