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
use crate::memory::{Budget, Part};
use crate::types::{FileName, Ino};

const WAYS: usize = 8;
const SET_SEQ: usize = 0;
const SET_TAGS: usize = 1;
const SET_HEAD: usize = 2;

const S_PARENT: usize = 0;
/// Child's number; 0 for a name known to be absent.
const S_CHILD: usize = 1;
/// Expiry in the high 32 bits, length of the name in the low 32.
const S_META: usize = 2;
/// Epochs of parent (high) and child (low).
const S_EPOCHS: usize = 3;
const SLOT_HEAD: usize = 4;

const SHORT_WORDS: usize = 4;
const LONG_WORDS: usize = 32;

const SETS_FIRST: usize = 32;
/// Each generation of a table has four times the sets of the one before.
const GENERATIONS: usize = 9;
/// Positive entries alone do not make a table grow beyond this: the kernel caches them as well.
const POSITIVE_SLOTS_MAX: usize = 4096;
const STRIPES: usize = 1024;
const SPINS_MAX: u32 = 64;

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
    hasher: hashbrown::DefaultHashBuilder,
    /// Own changes of directories, by stripe.
    changes: Box<[AtomicU32]>,
    /// Forgotten inodes, by stripe.
    epochs: Box<[AtomicU32]>,
}

impl Dentries {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        let stripes = || (0..STRIPES).map(|_| AtomicU32::new(0)).collect();
        budget.add(Part::Dentries, (2 * STRIPES * 4) as u64);
        Dentries {
            short: Table::new(budget.clone()),
            long: Table::new(budget),
            hasher: Default::default(),
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
        let key = self.key(parent, name);
        if name.as_bytes().len() <= SHORT_WORDS * 8 { self.short.get(&key, self) } else { self.long.get(&key, self) }
    }

    /// A mark of the directory to hand to [`Dentries::insert`], taken before the store is asked.
    pub(crate) fn since(&self, parent: Ino) -> u32 {
        self.changes[stripe(parent)].load(SeqCst)
    }

    /// Keeps what the store said, unless the directory had an own change since `since`.
    pub(crate) fn insert(&self, parent: Ino, name: FileName<'_>, child: Option<Ino>, expiry: Tick, since: u32) {
        let key = self.key(parent, name);
        let epochs = self.epochs(parent, child.map_or(0, |c| c.0));
        let entry = Slot { child: child.map_or(0, |c| c.0), expiry, epochs };
        let current = || self.since(parent) == since;
        if name.as_bytes().len() <= SHORT_WORDS * 8 {
            self.short.insert(&key, entry, current, self);
        } else {
            self.long.insert(&key, entry, current, self);
        }
    }

    /// Notes an own change of the directory `parent`: what the store said before is not kept any more. The new mark.
    pub(crate) fn changed(&self, parent: Ino) -> u32 {
        self.changes[stripe(parent)].fetch_add(1, SeqCst).wrapping_add(1)
    }

    /// Drops what is known of one name.
    pub(crate) fn remove(&self, parent: Ino, name: FileName<'_>) {
        let key = self.key(parent, name);
        if name.as_bytes().len() <= SHORT_WORDS * 8 { self.short.remove(&key) } else { self.long.remove(&key) }
    }

    /// Notes that `ino` was forgotten: entries of it and in it are void.
    pub(crate) fn forgotten(&self, ino: Ino) {
        self.epochs[stripe(ino)].fetch_add(1, SeqCst);
    }

    #[inline]
    fn key<'a>(&self, parent: Ino, name: FileName<'a>) -> Key<'a> {
        let bytes = name.as_bytes();
        let wide = u128::from(self.hasher.hash_one(bytes) ^ parent.0) * 0x9e37_79b9_7f4a_7c15;
        Key { parent: parent.0, name: bytes, hash: (wide as u64) ^ ((wide >> 64) as u64) }
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

struct Key<'a> {
    parent: u64,
    name: &'a [u8],
    hash: u64,
}

impl Key<'_> {
    /// Never 0: that is an empty slot.
    #[inline]
    fn tag(&self) -> u64 {
        (self.hash >> 56).max(1)
    }
}

#[derive(Clone, Copy)]
struct Slot {
    child: u64,
    expiry: Tick,
    epochs: u64,
}

struct Table<const W: usize> {
    generations: [OnceLock<Box<[AtomicU64]>>; GENERATIONS],
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
    const SET_WORDS: usize = SET_HEAD + WAYS * (SLOT_HEAD + W);

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
    fn set(&self, hash: u64) -> Option<&[AtomicU64]> {
        let generation = self.current.load(Acquire).checked_sub(1)?;
        let words = self.generations[generation].get()?;
        let at = (hash as usize & (sets_of(generation) - 1)) * Self::SET_WORDS;
        words.get(at..at + Self::SET_WORDS)
    }

    #[inline]
    fn get(&self, key: &Key<'_>, all: &Dentries) -> Option<Dentry> {
        for _ in 0..SPINS_MAX {
            let set = self.set(key.hash)?;
            let seq = set[SET_SEQ].load(Acquire);
            if seq & 1 == 1 {
                std::hint::spin_loop();
                continue;
            }
            let found = find::<W>(set, key).map(|way| load(slot::<W>(set, way)));
            fence(Acquire);
            if set[SET_SEQ].load(Relaxed) == seq {
                let found = found?;
                if found.epochs != all.epochs(Ino(key.parent), found.child) {
                    return None;
                }
                let child = (found.child != 0).then_some(Ino(found.child));
                return Some(Dentry { child, expiry: found.expiry });
            }
        }
        None // A writer is at work on this very set: a miss is always allowed.
    }

    fn insert(&self, key: &Key<'_>, entry: Slot, current: impl Fn() -> bool, all: &Dentries) {
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
    fn place(&self, w: &mut Writer, key: &Key<'_>, entry: Slot, evict: bool) -> bool {
        let Some(set) = self.set(key.hash) else {
            return true;
        };
        let tags = set[SET_TAGS].load(Relaxed);
        let own = find::<W>(set, key);
        let empty = || (0..WAYS).find(|way| tags >> (way * 8) & 0xff == 0);
        let way = match own.or_else(empty) {
            Some(way) => way,
            None if evict => {
                w.victim = (w.victim + 1) % WAYS;
                w.victim
            }
            None => return false,
        };
        if tags >> (way * 8) & 0xff == 0 {
            self.live.fetch_add(1, Relaxed);
        }
        write_set(set, || {
            let s = slot::<W>(set, way);
            s[S_PARENT].store(key.parent, Relaxed);
            s[S_CHILD].store(entry.child, Relaxed);
            s[S_META].store(u64::from(entry.expiry) << 32 | key.name.len() as u64, Relaxed);
            s[S_EPOCHS].store(entry.epochs, Relaxed);
            for (word, bytes) in s[SLOT_HEAD..].iter().zip(key.name.chunks(8)) {
                word.store(word_of(bytes), Relaxed);
            }
            set[SET_TAGS].store(tags & !(0xff << (way * 8)) | key.tag() << (way * 8), Relaxed);
        });
        true
    }

    fn remove(&self, key: &Key<'_>) {
        let _w = self.writer.lock();
        let Some(set) = self.set(key.hash) else {
            return;
        };
        if let Some(way) = find::<W>(set, key) {
            let tags = set[SET_TAGS].load(Relaxed);
            write_set(set, || set[SET_TAGS].store(tags & !(0xff << (way * 8)), Relaxed));
            self.live.fetch_sub(1, Relaxed);
        }
    }

    /// Moves everything to the next, larger generation. The old sets stay allocated, empty: a third of the whole.
    fn grow(&self, w: &mut Writer, all: &Dentries) -> bool {
        let next = self.current.load(Relaxed);
        let bytes = if next < GENERATIONS { (sets_of(next) * Self::SET_WORDS * 8) as u64 } else { u64::MAX };
        let room = self.budget.allowance_bytes(Part::Dentries).saturating_sub(self.budget.used_bytes(Part::Dentries));
        if bytes > room && next > 0 || next >= GENERATIONS {
            return false;
        }
        self.generations[next]
            .get_or_init(|| (0..sets_of(next) * Self::SET_WORDS).map(|_| AtomicU64::new(0)).collect());
        self.budget.add(Part::Dentries, bytes);
        self.live.store(0, Relaxed);
        self.current.store(next + 1, Release);
        if let Some(old) = next.checked_sub(1).and_then(|g| self.generations[g].get()) {
            old.chunks_exact(Self::SET_WORDS).for_each(|set| self.move_set(w, set, all));
        }
        true
    }

    fn move_set(&self, w: &mut Writer, set: &[AtomicU64], all: &Dentries) {
        let tags = set[SET_TAGS].load(Relaxed);
        for way in (0..WAYS).filter(|way| tags >> (way * 8) & 0xff != 0) {
            let s = slot::<W>(set, way);
            let bytes: Vec<u8> = s[SLOT_HEAD..].iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
            let len = s[S_META].load(Relaxed) as u32 as usize;
            if let Some(Ok(name)) = bytes.get(..len).map(FileName::new) {
                self.place(w, &all.key(Ino(s[S_PARENT].load(Relaxed)), name), load(s), true);
            }
        }
        write_set(set, || set[SET_TAGS].store(0, Relaxed));
    }
}

#[inline]
fn slot<const W: usize>(set: &[AtomicU64], way: usize) -> &[AtomicU64] {
    let at = SET_HEAD + way * (SLOT_HEAD + W);
    &set[at..at + SLOT_HEAD + W]
}

#[inline]
fn load(slot: &[AtomicU64]) -> Slot {
    Slot {
        child: slot[S_CHILD].load(Relaxed),
        expiry: (slot[S_META].load(Relaxed) >> 32) as Tick,
        epochs: slot[S_EPOCHS].load(Relaxed),
    }
}

/// The way that holds exactly this parent and name.
#[inline]
fn find<const W: usize>(set: &[AtomicU64], key: &Key<'_>) -> Option<usize> {
    let tags = set[SET_TAGS].load(Relaxed);
    let tag = key.tag();
    (0..WAYS).find(|&way| tags >> (way * 8) & 0xff == tag && matches::<W>(slot::<W>(set, way), key))
}

#[inline]
fn matches<const W: usize>(slot: &[AtomicU64], key: &Key<'_>) -> bool {
    slot[S_PARENT].load(Relaxed) == key.parent
        && slot[S_META].load(Relaxed) as u32 as usize == key.name.len()
        && slot[SLOT_HEAD..].iter().zip(key.name.chunks(8)).all(|(word, bytes)| word.load(Relaxed) == word_of(bytes))
}

/// Up to eight bytes as a word, zero-filled; the length is compared apart.
#[inline]
fn word_of(bytes: &[u8]) -> u64 {
    match <[u8; 8]>::try_from(bytes) {
        Ok(whole) => u64::from_le_bytes(whole),
        Err(_) => bytes.iter().rev().fold(0, |word, &b| word << 8 | u64::from(b)),
    }
}

#[inline]
fn write_set(set: &[AtomicU64], f: impl FnOnce()) {
    let seq = set[SET_SEQ].load(Relaxed);
    set[SET_SEQ].store(seq.wrapping_add(1), Relaxed);
    fence(Release);
    f();
    set[SET_SEQ].store(seq.wrapping_add(2), Release);
}

#[cfg(test)]
#[path = "dentries_tests.rs"]
mod tests;
