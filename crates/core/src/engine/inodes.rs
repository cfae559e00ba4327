//! The table of known inodes: lookup counts, pins, attributes, and what the kernel's pages were filled from.
//!
//! [`InodeTable`] is sharded. A [`Record`] is seven words; an [`Index`] of buckets leads to it.
//! Readers take no lock: a shard's sequence is odd while a writer moves things, and a reader that saw it change reads
//! again. All words are relaxed atomics, so a torn read is a wrong value that is thrown away, never undefined behaviour.
//! What few inodes have ([`Rare`]: pins, pages in the kernel) only writers need; it lies in a map under their lock.
//!
//! Invariants: a record exists exactly while its count or its pins are above zero, or its removal is pending; only
//! [`InodeTable::reap`] removes one. Memory stays at its high-water mark until the table goes.
//!
//! **Changes.** A counter runs over all own changes; a record keeps the value of its latest. Attributes that were read
//! from the store while a change ran are recognized by it ([`InodeTable::since`]) and not cached.

mod index;
mod record;

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*, fence};

use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};

pub(super) use self::index::bytes_equal;
use self::index::{Bucket, Index, Slot};
use self::record::{Classes, Rare, Record, WORDS, fresh};
use super::clock::{NEVER, Tick};
use super::segments::{Place, Pool};
use crate::error::{ErrorKind, FsError};
use crate::memory::{Budget, Part};
use crate::types::{Attr, Ino};

const SHARDS: usize = 8;

/// Print of what the kernel's pages may hold: 0 none, [`PRINT_OWN`], or the print of attributes; and [`PRINT_OLD`].
const PRINT_BITS: u32 = 48;
const PRINT_MASK: u64 = (1 << PRINT_BITS) - 1;
/// A change less than this many changes ago, as seen from a reader's mark, happened after it.
const CHANGE_WINDOW: u32 = 1 << 24;
/// Set while the pages may be older than the print says: the kernel was told, but perhaps it did not listen yet.
const PRINT_OLD: u64 = 1;
/// Our own writes led away from the last print.
const PRINT_OWN: u64 = 2;
const SPINS_MAX: u32 = 64;

/// Where [`InodeTable::sweep`] goes on.
#[derive(Default)]
pub(crate) struct Hand {
    shard: usize,
    place: Option<Place>,
}

/// Records that a sweep looks at under one hold of a shard's lock.
const SWEEP_STEP: usize = 512;

/// Aligned so that the sequences of two shards never share a cache line.
#[repr(align(64))]
struct Shard {
    seq: AtomicU32,
    index: Index,
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
    /// Of the inodes whose record says so.
    rare: HashMap<Ino, Rare>,
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
    classes: Classes,
    seed: u64,
    changes: AtomicU32,
    len: AtomicUsize,
    /// Inodes of which a [`Rare`] is kept.
    rare_len: AtomicUsize,
    budget: std::sync::Arc<Budget>,
}

/// A known inode, with its shard's lock.
struct Held<'a> {
    table: &'a InodeTable,
    shard: &'a Shard,
    writer: MutexGuard<'a, Writer>,
    ino: Ino,
    record: &'a Record,
}

impl Held<'_> {
    fn rare(&self) -> Rare {
        if self.record.is_rare() {
            self.writer.rare.get(&self.ino).copied().unwrap_or_default()
        } else {
            Rare::default()
        }
    }

    fn set_rare(&mut self, rare: Rare) {
        let (of_shard, is_none) = (&mut self.writer.rare, rare == Rare::default());
        let (len, bytes) = (of_shard.len(), of_shard.allocation_size());
        if is_none {
            of_shard.remove(&self.ino);
        } else {
            if len == of_shard.capacity() {
                make_anew(of_shard);
            }
            of_shard.insert(self.ino, rare);
        }
        let (len_now, bytes_now) = (of_shard.len(), of_shard.allocation_size());
        let table = self.table;
        match len_now.checked_sub(len) {
            Some(more) => drop(table.rare_len.fetch_add(more, Relaxed)),
            None => drop(table.rare_len.fetch_sub(len - len_now, Relaxed)),
        }
        match bytes_now.checked_sub(bytes) {
            Some(0) => {}
            Some(more) => table.budget.add(Part::Inodes, more as u64),
            None => table.budget.sub(Part::Inodes, (bytes - bytes_now) as u64),
        }
        self.record.set_rare(!is_none);
    }

    fn count(&self) -> u64 {
        self.rare().count.saturating_add(self.record.count())
    }

    fn set_count(&mut self, count: u64) {
        let over = self.record.set_count(count);
        let rare = self.rare();
        if over != rare.count {
            self.set_rare(Rare { count: over, ..rare });
        }
    }

    fn add_pin(&mut self) {
        let rare = self.rare();
        self.set_rare(Rare { pins: rare.pins.saturating_add(1), ..rare });
    }

    fn is_held(&self) -> bool {
        self.record.count() != 0 || self.rare().count != 0 || self.rare().pins != 0
    }

    fn set_print(&mut self, print: u64) {
        let rare = self.rare();
        if rare.print != print {
            self.set_rare(Rare { print, ..rare });
        }
    }

    /// Replaces the print, if the kernel may hold pages.
    fn note_print(&mut self, new: u64) {
        let print = self.rare().print;
        if print != 0 {
            self.set_print(new | print & PRINT_OLD);
        }
    }
}

/// Makes a full map anew, with an eighth more room. One that others were removed from is full of their marks, and would be made twice
/// as large by the next insertion; where inodes come and go, again and again up to four times of what they need.
fn make_anew(rare: &mut HashMap<Ino, Rare>) {
    let mut anew = HashMap::with_capacity(rare.len() + rare.len() / 8 + 1);
    anew.extend(rare.drain());
    *rare = anew;
}

impl InodeTable {
    pub(crate) fn new(budget: std::sync::Arc<Budget>) -> Self {
        let shards = Box::new(std::array::from_fn(|_| Shard {
            seq: AtomicU32::new(0),
            index: Index::new(),
            records: Pool::new(),
            writer: Mutex::default(),
        }));
        budget.add(Part::Inodes, (SHARDS * size_of::<Shard>() + Classes::BYTES) as u64);
        let seed = hashbrown::DefaultHashBuilder::default().hash_one(0x6164_6974_u64);
        let (changes, len, rare_len) = (AtomicU32::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        InodeTable { shards, classes: Classes::new(), seed, changes, len, rare_len, budget }
    }

    /// Inodes in the table.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// How many inodes of which nothing but attributes is known take the memory of these: one that was opened takes that of two.
    pub(crate) fn weight(&self) -> usize {
        self.len() + self.rare_len.load(Relaxed)
    }

    #[inline(always)]
    fn hash(&self, ino: Ino) -> u64 {
        let wide = u128::from(ino.0 ^ self.seed) * 0x9e37_79b9_7f4a_7c15;
        (wide as u64) ^ ((wide >> 64) as u64)
    }

    /// Whether the inode is known.
    #[inline]
    pub(crate) fn known(&self, ino: Ino) -> bool {
        let hash = self.hash(ino);
        // A record has the number exactly as long as the inode is known: seen in one, it needs no second look.
        self.shard(hash).find_home(ino, hash).is_some() || self.known_slowly(ino)
    }

    #[cold]
    #[inline(never)]
    fn known_slowly(&self, ino: Ino) -> bool {
        self.read(ino, |_| ()).is_some()
    }

    /// Cached attributes that are fresh at `now`, and when they expire. `None` also where finding them takes a little
    /// longer: then [`InodeTable::attr`] knows.
    #[inline(always)]
    pub(crate) fn attr_at_once(&self, ino: Ino, now: Tick) -> Option<(Attr, Tick)> {
        let hash = self.hash(ino);
        let shard = self.shard(hash);
        let seq = shard.seq.load(Acquire);
        let words: [u64; WORDS] = shard.find_home(ino, hash)?.load();
        fence(Acquire);
        if seq & 1 == 1 || shard.seq.load(Relaxed) != seq {
            return None;
        }
        fresh(ino, &words, now, &self.classes)
    }

    /// Cached attributes that are fresh at `now`, and when they expire.
    pub(crate) fn attr(&self, ino: Ino, now: Tick) -> Option<(Attr, Tick)> {
        fresh(ino, &self.read(ino, Record::load)?, now, &self.classes)
    }

    /// A mark to hand to [`InodeTable::fill`], taken before the store is asked.
    pub(crate) fn since(&self) -> u32 {
        self.changes.load(SeqCst)
    }

    /// One more reference by lookup.
    pub(crate) fn add_ref(&self, ino: Ino) -> Result<(), FsError> {
        let hash = self.hash(ino);
        let shard = self.shard(hash);
        let mut writer = shard.writer.lock();
        let place = match shard.find(ino, hash) {
            Some((_, place)) => place,
            None => self.insert(shard, &mut writer, ino, hash)?,
        };
        let record = shard.records.get(place).ok_or(ErrorKind::Exhausted)?;
        let mut held = Held { table: self, shard, writer, ino, record };
        held.set_count(held.count().saturating_add(1));
        Ok(())
    }

    /// One more reference, if the inode is known.
    pub(crate) fn add_ref_if_known(&self, ino: Ino) -> bool {
        self.hold(ino).map(|mut held| held.set_count(held.count().saturating_add(1))).is_some()
    }

    /// Holds a known inode beyond its references: a handle, or buffered data.
    pub(crate) fn pin(&self, ino: Ino) -> Result<(), FsError> {
        self.hold(ino).map(|mut held| held.add_pin()).ok_or_else(|| ErrorKind::Stale.into())
    }

    /// Takes a pin back; true when nothing holds the inode any more.
    pub(crate) fn unpin(&self, ino: Ino) -> bool {
        let Some(mut held) = self.hold(ino) else { return false };
        let rare = held.rare();
        debug_assert!(rare.pins != 0, "unpin without pin");
        held.set_rare(Rare { pins: rare.pins.saturating_sub(1), ..rare });
        !held.is_held()
    }

    /// Takes `count` references back; true when nothing holds the inode any more.
    pub(crate) fn forget(&self, ino: Ino, count: u64) -> bool {
        let Some(mut held) = self.hold(ino) else { return false };
        let before = held.count();
        if count > before {
            tracing::warn!(ino = ino.0, held = before, count, "more references forgotten than were given");
        }
        held.set_count(before.saturating_sub(count));
        !held.is_held()
    }

    /// Known inodes that no handle and no buffered data hold, `wanted` at most, from where the last sweep ended; fewer
    /// only if there are no more. The root is held always.
    pub(crate) fn sweep(&self, hand: &mut Hand, wanted: usize) -> Vec<Ino> {
        let mut found = Vec::new();
        let mut begun = 0;
        while begun <= SHARDS && found.len() < wanted {
            let shard = &self.shards[hand.shard];
            let writer = shard.writer.lock();
            for _ in 0..SWEEP_STEP {
                let Some((place, record)) = shard.records.following(hand.place).filter(|_| found.len() < wanted) else {
                    break;
                };
                hand.place = Some(place);
                let ino = record.ino();
                let is_held = || record.is_rare() && writer.rare.get(&ino).is_some_and(|rare| rare.pins > 0);
                if ino != Ino(0) && record.count() > 0 && !is_held() {
                    found.push(ino);
                }
            }
            if shard.records.following(hand.place).is_none() {
                *hand = Hand { shard: (hand.shard + 1) % SHARDS, place: None };
                begun += 1;
            }
        }
        found
    }

    /// All known inodes.
    pub(crate) fn all(&self) -> Vec<Ino> {
        let mut found = Vec::with_capacity(self.len());
        for shard in &*self.shards {
            let _writer = shard.writer.lock();
            let mut place = None;
            while let Some((next, record)) = shard.records.following(place) {
                place = Some(next);
                found.extend(Some(record.ino()).filter(|&ino| ino != Ino(0)));
            }
        }
        found
    }

    /// References by lookup (tests and statistics).
    pub(crate) fn count(&self, ino: Ino) -> u64 {
        self.hold(ino).map_or(0, |held| held.count())
    }

    /// Removes the inode if nothing holds it; true if it was there and is gone.
    pub(crate) fn reap(&self, ino: Ino) -> bool {
        let Some(mut held) = self.hold(ino) else { return false };
        if held.is_held() {
            return false;
        }
        held.set_rare(Rare::default());
        let Held { shard, writer: mut w, record, .. } = held;
        let Some((slot, place)) = shard.find(ino, self.hash(ino)) else { return false };
        shard.write(|| {
            shard.index.remove(slot, |place| self.hash_at(shard, place));
            record.free(w.free);
        });
        w.free = chain(place);
        w.live -= 1;
        self.len.fetch_sub(1, Relaxed);
        true
    }

    /// Keeps attributes from the store until `expiry` (0: does not keep them), unless an own change ran since `since`.
    pub(crate) fn fill(&self, attr: &Attr, expiry: Tick, since: u32) -> Fill {
        let Some(mut held) = self.hold(attr.ino) else { return Fill::Unknown };
        let latest = held.record.changed();
        let changed = latest.wrapping_sub(since);
        if changed != 0 && changed <= CHANGE_WINDOW {
            return Fill::Outrun;
        }
        let record = held.record;
        held.shard.write(|| {
            let kept = may_keep(attr, expiry) && record.pack(attr, &self.classes);
            record.set_fresh(if kept { expiry } else { 0 }, latest);
        });
        let print = held.rare().print;
        if print == 0 {
            return Fill::Current { foreign: false };
        }
        let new_print = self.print_of(attr);
        let foreign = print & !PRINT_OLD != PRINT_OWN && print & !PRINT_OLD != new_print;
        held.set_print(new_print | (print & PRINT_OLD) | u64::from(foreign));
        Fill::Current { foreign }
    }

    /// Keeps attributes that an own change returned, until `expiry`. False if another own change ran since `since`, and
    /// then they may be old: it is as with [`InodeTable::changed`].
    pub(crate) fn own(&self, attr: &Attr, expiry: Tick, since: u32) -> bool {
        let Some(mut held) = self.hold(attr.ino) else { return true };
        let now = self.changes.fetch_add(1, SeqCst).wrapping_add(1);
        let record = held.record;
        let changed = record.changed().wrapping_sub(since);
        let current = changed == 0 || changed > CHANGE_WINDOW;
        held.shard.write(|| {
            let kept = current && may_keep(attr, expiry) && record.pack(attr, &self.classes);
            record.set_fresh(if kept { expiry } else { 0 }, now);
        });
        held.note_print(if current { self.print_of(attr) } else { PRINT_OWN });
        current
    }

    /// Notes an own change of the inode: cached attributes go, and the next ones are ours.
    pub(crate) fn changed(&self, ino: Ino) {
        let now = self.changes.fetch_add(1, SeqCst).wrapping_add(1);
        if let Some(mut held) = self.hold(ino) {
            held.shard.write(|| held.record.set_fresh(0, now));
            held.note_print(PRINT_OWN);
        }
    }

    /// Notes that the kernel may fill pages of a file with these attributes from now on; true when pages that it holds
    /// already belong to the same content.
    pub(crate) fn opened(&self, attr: &Attr) -> bool {
        let now = self.print_of(attr);
        let Some(mut held) = self.hold(attr.ino) else { return false };
        let print = held.rare().print;
        held.set_print(now);
        print == now || print == PRINT_OWN
    }

    /// Notes that the kernel holds pages that belong to no content: they are not right when it is opened next.
    pub(crate) fn pages_void(&self, ino: Ino) {
        if let Some(mut held) = self.hold(ino)
            && held.rare().print != 0
        {
            held.set_print(PRINT_OWN | PRINT_OLD);
        }
    }

    /// Whether the kernel cannot hold pages of it: it was not opened since it is known.
    pub(crate) fn is_unread(&self, ino: Ino) -> bool {
        self.hold(ino).is_some_and(|held| held.rare().print == 0)
    }

    /// As [`InodeTable::opened`], for a file with buffered writes: whatever is seen next is ours.
    pub(crate) fn opened_dirty(&self, ino: Ino) -> bool {
        let Some(mut held) = self.hold(ino) else { return false };
        let old = held.rare().print & PRINT_OLD != 0;
        held.set_print(PRINT_OWN);
        !old
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

    #[inline(always)]
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

    /// The inode with its shard's lock, if it is known.
    fn hold(&self, ino: Ino) -> Option<Held<'_>> {
        let hash = self.hash(ino);
        let shard = self.shard(hash);
        let writer = shard.writer.lock();
        let (_, place) = shard.find(ino, hash)?;
        let record = shard.records.get(place)?;
        Some(Held { table: self, shard, writer, ino, record })
    }

    /// The hash of the inode whose record is at `place`.
    fn hash_at(&self, shard: &Shard, place: Place) -> u64 {
        self.hash(shard.records.get(place).map_or(Ino(0), Record::ino))
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
            w.free = record.link();
        }
        shard.write(|| {
            let added = shard.index.grow(w.live, |place| self.hash_at(shard, place));
            self.budget.add(Part::Inodes, (added * size_of::<Bucket>()) as u64);
            // Its latest change lies outside the window of any reader's mark.
            record.reset(ino, self.changes.load(SeqCst).wrapping_sub(2 * CHANGE_WINDOW));
            shard.index.insert(place, hash);
        });
        w.live += 1;
        self.len.fetch_add(1, Relaxed);
        Ok(place)
    }
}

/// A link of the list of free records: 0 ends it.
fn chain(place: Place) -> u64 {
    u64::from(place.0) + 1
}

fn unchain(link: u64) -> Option<Place> {
    link.checked_sub(1).map(|place| Place(place as u32))
}

/// A writer was at work: what was read means nothing.
struct Torn;

impl Shard {
    /// The record of `ino`, if its home bucket leads to it.
    #[inline(always)]
    fn find_home(&self, ino: Ino, hash: u64) -> Option<&Record> {
        self.index.find_home(hash, |place| self.records.get(place).filter(|record| record.ino() == ino))
    }

    /// The index slot and the place of `ino`.
    fn find(&self, ino: Ino, hash: u64) -> Option<(Slot, Place)> {
        self.index.find(hash, |place| self.records.get(place).is_some_and(|record| record.ino() == ino))
    }

    fn record(&self, ino: Ino, hash: u64) -> Option<&Record> {
        self.records.get(self.find(ino, hash)?.1)
    }

    fn try_read<R>(&self, ino: Ino, hash: u64, f: impl Fn(&Record) -> R) -> Result<Option<R>, Torn> {
        let seq = self.seq.load(Acquire);
        let found = self.record(ino, hash).map(f);
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
        self.record(ino, hash).map(f)
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
}

/// Whether attributes may be kept. Where others change the store, those with set-id bits may not: whoever runs the file would be its owner after
/// somebody else has overwritten it.
fn may_keep(attr: &Attr, expiry: Tick) -> bool {
    expiry == NEVER || !attr.has_set_id()
}

#[cfg(test)]
mod tests;
