//! Positive and negative directory entries, by parent and name.
//!
//! [`Dentries`] holds two set-associative tables, for names up to 32 bytes and for longer ones. A set has eight slots
//! with a byte of hash each; names are compared whole. Readers take no lock (a sequence per set, as in
//! [`super::inodes`]); writers hold the table's mutex for the few words they write.
//!
//! **Invalidation.** A slot carries the epochs of its parent and child, bumped when one of them is forgotten, because a
//! store may give its number to something else. A reply of the store is only kept if its directory had no own change
//! since it was asked ([`Dentries::since`]).

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*, fence};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::clock::Tick;
use super::inodes::bytes_equal;
use crate::memory::{Budget, Part};
use crate::types::{FileName, Ino};

const WAYS: usize = 8;
const SHORT_WORDS: usize = 4;
const LONG_WORDS: usize = 32;

const SETS_FIRST: usize = 32;
/// Each generation of a table has four times the sets of the one before.
const GENERATIONS: usize = 9;
/// Positive entries alone do not make a table grow beyond this: the kernel caches them as well.
const POSITIVE_SLOTS_MAX: usize = 4096;
const STRIPES: usize = 1024;

/// What the cache knows of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dentry {
    /// The child; `None` if there is no such entry.
    pub(crate) child: Option<Ino>,
    /// When this expires.
    pub(crate) expiry: Tick,
}

pub(crate) struct Dentries {
    short: Table<SHORT_WORDS>,
    long: Table<LONG_WORDS>,
    /// Secret words to hash with.
    seeds: [u64; LONG_WORDS],
    /// Own changes of directories, by stripe.
    changes: Box<[AtomicU32; STRIPES]>,
    /// Forgotten inodes, by stripe.
    epochs: Box<[AtomicU32; STRIPES]>,
}

impl Dentries {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        let stripes = || Box::new([const { AtomicU32::new(0) }; STRIPES]);
        budget.add(Part::Dentries, (2 * STRIPES * 4) as u64);
        Dentries {
            short: Table::new(budget.clone()),
            long: Table::new(budget),
            seeds: std::array::from_fn(|at| hashbrown::DefaultHashBuilder::default().hash_one(at)),
            changes: stripes(),
            epochs: stripes(),
        }
    }

    /// Live entries, roughly (expired ones count until they are replaced).
    pub(crate) fn len(&self) -> usize {
        self.short.live.load(Relaxed) + self.long.live.load(Relaxed)
    }

    /// What is known of `name` in `parent`, fresh or not: the caller compares the expiry.
    #[inline]
    pub(crate) fn get(&self, parent: Ino, name: FileName<'_>) -> Option<Dentry> {
        if name.as_bytes().len() <= SHORT_WORDS * 8 {
            self.short.get(&self.key(parent, name), self)
        } else {
            self.get_long(parent, name)
        }
    }

    /// Apart, because its key takes much more room on the stack.
    #[inline(never)]
    fn get_long(&self, parent: Ino, name: FileName<'_>) -> Option<Dentry> {
        self.long.get(&self.key(parent, name), self)
    }

    /// A mark of the directory to hand to [`Dentries::insert`], taken before the store is asked.
    pub(crate) fn since(&self, parent: Ino) -> u32 {
        self.changes[stripe(parent)].load(SeqCst)
    }

    /// Keeps what the store said, unless the directory had an own change since `since`.
    pub(crate) fn insert(&self, parent: Ino, name: FileName<'_>, child: Option<Ino>, expiry: Tick, since: u32) {
        let epochs = self.epochs(parent, child.map_or(0, |c| c.0));
        let entry = Slot { child: child.map_or(0, |c| c.0), expiry, epochs };
        let current = || self.since(parent) == since;
        if name.as_bytes().len() <= SHORT_WORDS * 8 {
            self.short.insert(&self.key(parent, name), entry, current, self);
        } else {
            self.long.insert(&self.key(parent, name), entry, current, self);
        }
    }

    /// Notes an own change of the directory `parent`: what the store said before is not kept any more. The new mark.
    pub(crate) fn changed(&self, parent: Ino) -> u32 {
        self.changes[stripe(parent)].fetch_add(1, SeqCst).wrapping_add(1)
    }

    /// Drops what is known of one name.
    pub(crate) fn remove(&self, parent: Ino, name: FileName<'_>) {
        if name.as_bytes().len() <= SHORT_WORDS * 8 {
            self.short.remove(&self.key(parent, name));
        } else {
            self.long.remove(&self.key(parent, name));
        }
    }

    /// Notes that `ino` was forgotten: entries of it and in it are void.
    pub(crate) fn forgotten(&self, ino: Ino) {
        self.epochs[stripe(ino)].fetch_add(1, SeqCst);
    }

    /// Notes that all entries are void, and what the store is being asked.
    pub(crate) fn all_void(&self) {
        for mark in self.changes.iter().chain(self.epochs.iter()) {
            mark.fetch_add(1, SeqCst);
        }
    }

    /// Changes when `ino` is forgotten, or another one with which it shares it.
    pub(crate) fn epoch(&self, ino: Ino) -> u32 {
        self.epochs[stripe(ino)].load(SeqCst)
    }

    /// The key of a name that is not longer than `W` words.
    #[inline]
    fn key<const W: usize>(&self, parent: Ino, name: FileName<'_>) -> Key<W> {
        let bytes = name.as_bytes();
        self.key_of(parent.0, bytes.len(), words_of(bytes))
    }

    /// Multiplications that do not wait for each other; each word meets a secret one first, so that nobody can make
    /// names that collide.
    #[inline]
    fn key_of<const W: usize>(&self, parent: u64, len: usize, words: [u64; W]) -> Key<W> {
        let pairs = words.as_chunks::<2>().0.iter().zip(self.seeds.as_chunks::<2>().0);
        let sum = pairs.fold(parent.rotate_left(32) ^ len as u64, |sum, (word, seed)| {
            sum.wrapping_add(fold(word[0] ^ seed[0], word[1] ^ seed[1]))
        });
        Key { parent, len, words, hash: fold(sum, 0x9e37_79b9_7f4a_7c15) }
    }

    #[inline]
    fn epochs(&self, parent: Ino, child: u64) -> u64 {
        let of = |ino| u64::from(self.epochs[stripe(ino)].load(Relaxed));
        of(parent) << 32 | if child == 0 { 0 } else { of(Ino(child)) }
    }
}

#[inline]
fn stripe(ino: Ino) -> usize {
    (ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize % STRIPES
}

/// The 128 bits of the product, folded.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide as u64) ^ ((wide >> 64) as u64)
}

struct Key<const W: usize> {
    parent: u64,
    /// Length of the name in bytes.
    len: usize,
    /// The name, filled up with zeros.
    words: [u64; W],
    hash: u64,
}

impl<const W: usize> Key<W> {
    /// Never 0: that is an empty slot.
    #[inline]
    fn tag(&self) -> u64 {
        self.hash >> 56 | 1
    }
}

/// What a slot says, copied out.
#[derive(Clone, Copy)]
struct Slot {
    child: u64,
    expiry: Tick,
    epochs: u64,
}

/// One entry; a cache line, for names up to 32 bytes.
#[repr(align(64))]
struct Words<const W: usize> {
    parent: AtomicU64,
    /// Child's number; 0 for a name known to be absent.
    child: AtomicU64,
    /// Expiry in the high 32 bits, length of the name in the low 32.
    meta: AtomicU64,
    /// Epochs of parent (high) and child (low).
    epochs: AtomicU64,
    name: [AtomicU64; W],
}

impl<const W: usize> Default for Words<W> {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        let name = [const { AtomicU64::new(0) }; W];
        Words { parent: zero(), child: zero(), meta: zero(), epochs: zero(), name }
    }
}

impl<const W: usize> Words<W> {
    #[inline]
    fn matches(&self, key: &Key<W>) -> bool {
        // All words, and one branch; those beyond the name are zero.
        let differ = (self.parent.load(Relaxed) ^ key.parent) | (self.len() ^ key.len) as u64;
        self.name.iter().zip(key.words).fold(differ, |differ, (word, own)| differ | (word.load(Relaxed) ^ own)) == 0
    }

    #[inline]
    fn len(&self) -> usize {
        self.meta.load(Relaxed) as u32 as usize
    }

    #[inline]
    fn load(&self) -> Slot {
        Slot {
            child: self.child.load(Relaxed),
            expiry: (self.meta.load(Relaxed) >> 32) as Tick,
            epochs: self.epochs.load(Relaxed),
        }
    }
}

/// Sequence and tags of a set, apart from its slots, so that they share few cache lines.
#[derive(Default)]
struct Head {
    seq: AtomicU64,
    /// A byte of hash for each slot; 0 for an empty one.
    tags: AtomicU64,
}

impl Head {
    #[inline]
    fn write(&self, f: impl FnOnce()) {
        let seq = self.seq.load(Relaxed);
        self.seq.store(seq.wrapping_add(1), Relaxed);
        fence(Release);
        f();
        self.seq.store(seq.wrapping_add(2), Release);
    }
}

struct Set<'a, const W: usize> {
    head: &'a Head,
    slots: &'a [Words<W>; WAYS],
}

impl<const W: usize> Set<'_, W> {
    /// The way that holds exactly this parent and name.
    #[inline]
    fn find(&self, key: &Key<W>) -> Option<usize> {
        let tags = self.head.tags.load(Relaxed);
        let mut candidates = bytes_equal(tags, key.tag());
        while candidates != 0 {
            let way = (candidates.trailing_zeros() / 8) as usize;
            // The key tells more than the tag, and no empty slot has a name.
            if self.slots[way].matches(key) {
                return Some(way);
            }
            candidates &= candidates - 1;
        }
        None
    }

    fn tag(&self, way: usize) -> u64 {
        self.head.tags.load(Relaxed) >> (way * 8) & 0xff
    }
}

type Sets<const W: usize> = (Box<[Head]>, Box<[[Words<W>; WAYS]]>);

struct Table<const W: usize> {
    generations: [OnceLock<Sets<W>>; GENERATIONS],
    /// Index of the generation in use plus one; 0 before the first insertion.
    current: AtomicUsize,
    live: AtomicUsize,
    writer: Mutex<Writer>,
    budget: Arc<Budget>,
}

#[derive(Default)]
struct Writer {
    victim: usize,
}

const fn sets_of(generation: usize) -> usize {
    SETS_FIRST << (2 * generation)
}

impl<const W: usize> Table<W> {
    const SET_BYTES: usize = size_of::<Head>() + size_of::<[Words<W>; WAYS]>();

    fn new(budget: Arc<Budget>) -> Self {
        Table {
            generations: [const { OnceLock::new() }; GENERATIONS],
            current: AtomicUsize::new(0),
            live: AtomicUsize::new(0),
            writer: Mutex::default(),
            budget,
        }
    }

    /// The set of `hash` in the current generation.
    #[inline]
    fn set(&self, hash: u64) -> Option<Set<'_, W>> {
        let generation = self.current.load(Acquire).checked_sub(1)?;
        let (heads, slots) = self.generations.get(generation)?.get()?;
        let at = hash as usize & (heads.len() - 1);
        Some(Set { head: heads.get(at)?, slots: slots.get(at)? })
    }

    #[inline]
    fn get(&self, key: &Key<W>, all: &Dentries) -> Option<Dentry> {
        let set = self.set(key.hash)?;
        let seq = set.head.seq.load(Acquire);
        let found = set.find(key).map(|way| set.slots[way].load());
        fence(Acquire);
        if seq & 1 == 1 || set.head.seq.load(Relaxed) != seq {
            return None; // A writer is at work on this very set: a miss is always allowed.
        }
        let found = found?;
        if found.epochs != all.epochs(Ino(key.parent), found.child) {
            return None;
        }
        let child = (found.child != 0).then_some(Ino(found.child));
        Some(Dentry { child, expiry: found.expiry })
    }

    fn insert(&self, key: &Key<W>, entry: Slot, current: impl Fn() -> bool, all: &Dentries) {
        let mut w = self.writer.lock();
        if !current() {
            return;
        }
        if self.current.load(Relaxed) == 0 && !self.grow(&mut w, all) {
            return;
        }
        if self.place(&mut w, key, entry, false) {
            return;
        }
        let slots = sets_of(self.current.load(Relaxed) - 1) * WAYS;
        let may_grow = entry.child == 0 || slots < POSITIVE_SLOTS_MAX;
        if may_grow && self.live.load(Relaxed) * 4 > slots {
            self.grow(&mut w, all);
        }
        self.place(&mut w, key, entry, true);
    }

    /// Writes the entry into its own, an empty, or (if `evict`) any slot of its set. False if there was no place.
    fn place(&self, w: &mut Writer, key: &Key<W>, entry: Slot, evict: bool) -> bool {
        let Some(set) = self.set(key.hash) else { return true };
        let way = match set.find(key).or_else(|| (0..WAYS).find(|&way| set.tag(way) == 0)) {
            Some(way) => way,
            None if evict => {
                w.victim = (w.victim + 1) % WAYS;
                w.victim
            }
            None => return false,
        };
        if set.tag(way) == 0 {
            self.live.fetch_add(1, Relaxed);
        }
        let (tags, slot) = (&set.head.tags, &set.slots[way]);
        set.head.write(|| {
            slot.parent.store(key.parent, Relaxed);
            slot.child.store(entry.child, Relaxed);
            slot.meta.store(u64::from(entry.expiry) << 32 | key.len as u64, Relaxed);
            slot.epochs.store(entry.epochs, Relaxed);
            slot.name.iter().zip(key.words).for_each(|(word, own)| word.store(own, Relaxed));
            tags.store(tags.load(Relaxed) & !(0xff << (way * 8)) | key.tag() << (way * 8), Relaxed);
        });
        true
    }

    fn remove(&self, key: &Key<W>) {
        let _w = self.writer.lock();
        let Some(set) = self.set(key.hash) else { return };
        if let Some(way) = set.find(key) {
            let tags = &set.head.tags;
            set.head.write(|| {
                set.slots[way].meta.store(0, Relaxed);
                tags.store(tags.load(Relaxed) & !(0xff << (way * 8)), Relaxed);
            });
            self.live.fetch_sub(1, Relaxed);
        }
    }

    /// Moves everything to the next, larger generation. The old sets stay allocated, empty: a third of the whole.
    fn grow(&self, w: &mut Writer, all: &Dentries) -> bool {
        let next = self.current.load(Relaxed);
        let bytes = if next < GENERATIONS { (sets_of(next) * Self::SET_BYTES) as u64 } else { u64::MAX };
        let room = self.budget.allowance_bytes(Part::Dentries).saturating_sub(self.budget.used_bytes(Part::Dentries));
        if bytes > room && next > 0 || next >= GENERATIONS {
            return false;
        }
        self.generations[next].get_or_init(|| {
            let sets = || 0..sets_of(next);
            (sets().map(|_| Head::default()).collect(), sets().map(|_| Default::default()).collect())
        });
        self.budget.add(Part::Dentries, bytes);
        self.live.store(0, Relaxed);
        self.current.store(next + 1, Release);
        if let Some((heads, slots)) = next.checked_sub(1).and_then(|g| self.generations[g].get()) {
            heads.iter().zip(slots).for_each(|(head, slots)| self.move_set(w, &Set { head, slots }, all));
        }
        true
    }

    fn move_set(&self, w: &mut Writer, set: &Set<'_, W>, all: &Dentries) {
        for way in (0..WAYS).filter(|&way| set.tag(way) != 0) {
            let slot = &set.slots[way];
            let words = std::array::from_fn(|at| slot.name[at].load(Relaxed));
            self.place(w, &all.key_of(slot.parent.load(Relaxed), slot.len(), words), slot.load(), true);
        }
        set.head.write(|| set.head.tags.store(0, Relaxed));
    }
}

/// Bytes as words, filled up with zeros; those beyond `W` words are left out.
#[inline(always)]
fn words_of<const W: usize>(bytes: &[u8]) -> [u64; W] {
    if W == SHORT_WORDS {
        let words = short_words(bytes);
        return std::array::from_fn(|at| words[at]);
    }
    std::array::from_fn(|at| {
        let from = bytes.get(at * 8..).unwrap_or_default();
        match (from.first_chunk::<8>(), bytes.last_chunk::<8>()) {
            (Some(word), _) => u64::from_le_bytes(*word),
            (None, _) if from.is_empty() => 0,
            // The end of a longer name: the bytes before it are shifted out.
            (None, Some(last)) => u64::from_le_bytes(*last) >> (64 - 8 * from.len()),
            (None, None) => tiny_word(from),
        }
    })
}

/// At most 32 bytes as words. The end is read with bytes before it, which are shifted out: few branches, none of which
/// depends on more than a range of lengths.
#[inline(always)]
fn short_words(bytes: &[u8]) -> [u64; SHORT_WORDS] {
    let spare_bits = |len: usize| 8 * len.saturating_sub(bytes.len()) as u32;
    if let (Some(first), Some(last)) = (bytes.first_chunk::<16>(), bytes.last_chunk::<16>()) {
        let first = u128::from_le_bytes(*first);
        let last = u128::from_le_bytes(*last).checked_shr(spare_bits(32)).unwrap_or(0);
        return [first as u64, (first >> 64) as u64, last as u64, (last >> 64) as u64];
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        let last = u64::from_le_bytes(*last).checked_shr(spare_bits(16)).unwrap_or(0);
        return [u64::from_le_bytes(*first), last, 0, 0];
    }
    [tiny_word(bytes), 0, 0, 0]
}

/// Less than eight bytes as a word.
#[inline(always)]
fn tiny_word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &b| word << 8 | u64::from(b))
}

#[cfg(test)]
mod tests;
