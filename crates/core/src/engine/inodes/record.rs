//! What a record of the inode table holds: number, lookup count, attributes, the latest change; seven words.
//!
//! Kind, permissions and owner are the same for nearly all files of a mount: a record names its [`Class`] of them by ten
//! bits. What few inodes have is [`Rare`] and lies beside the records.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::engine::clock::Tick;
use crate::types::{Attr, Ino, Kind, Timestamp};

pub(super) const WORDS: usize = 7;

const W_INO: usize = 0;
/// Size in the high 48 bits, number of links in the low 16.
const W_SIZE: usize = 1;
const W_MTIME: usize = 2;
const W_CTIME: usize = 3;
const W_ATIME: usize = 4;
/// Expiry of the attributes in the high 32 bits (0: none), the latest change in the low 32.
const W_FRESH: usize = 5;
/// Blocks in the high 32 bits, class in 10, [`RARE`], and the lookup count; in a free record the next free one.
const W_REFS: usize = 6;

const COUNT_BITS: u32 = 21;
/// Lookups beyond this are counted in [`Rare`].
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
/// Whether the inode has something [`Rare`].
const RARE: u64 = 1 << COUNT_BITS;
const CLASS_SHIFT: u32 = COUNT_BITS + 1;
const CLASSES: usize = 1 << (32 - CLASS_SHIFT);

/// See the module's notes.
#[derive(Default)]
pub(super) struct Record([AtomicU64; WORDS]);

/// What few inodes have.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Rare {
    /// Lookups that the record has no room for.
    pub(super) count: u64,
    /// Handles and buffered data.
    pub(super) pins: u64,
    /// Print of what the kernel's pages may hold.
    pub(super) print: u64,
}

impl Record {
    #[inline(always)]
    pub(super) fn load(&self) -> [u64; WORDS] {
        std::array::from_fn(|word| self.0[word].load(Relaxed))
    }

    #[inline(always)]
    pub(super) fn ino(&self) -> Ino {
        Ino(self.0[W_INO].load(Relaxed))
    }

    /// Makes it the record of an inode without references and attributes, whose latest change is `changed`.
    pub(super) fn reset(&self, ino: Ino, changed: u32) {
        self.0[W_REFS].store(0, Relaxed);
        self.0[W_FRESH].store(u64::from(changed), Relaxed);
        self.0[W_INO].store(ino.0, Relaxed);
    }

    /// Frees it, with a link of the list of free records.
    pub(super) fn free(&self, link: u64) {
        self.0[W_INO].store(0, Relaxed);
        self.0[W_FRESH].store(0, Relaxed);
        self.0[W_REFS].store(link, Relaxed);
    }

    /// The link of a free record.
    pub(super) fn link(&self) -> u64 {
        self.0[W_REFS].load(Relaxed)
    }

    /// Lookups counted here.
    pub(super) fn count(&self) -> u64 {
        self.0[W_REFS].load(Relaxed) & COUNT_MAX
    }

    pub(super) fn is_rare(&self) -> bool {
        self.0[W_REFS].load(Relaxed) & RARE != 0
    }

    /// Keeps as much of `count` as fits; what is left over.
    pub(super) fn set_count(&self, count: u64) -> u64 {
        let kept = count.min(COUNT_MAX);
        self.0[W_REFS].store(self.0[W_REFS].load(Relaxed) & !COUNT_MAX | kept, Relaxed);
        count - kept
    }

    pub(super) fn set_rare(&self, rare: bool) {
        let word = self.0[W_REFS].load(Relaxed) & !RARE;
        self.0[W_REFS].store(word | if rare { RARE } else { 0 }, Relaxed);
    }

    /// The latest own change.
    pub(super) fn changed(&self) -> u32 {
        self.0[W_FRESH].load(Relaxed) as u32
    }

    /// Expiry of the attributes (0: there are none) and latest own change.
    pub(super) fn set_fresh(&self, expiry: Tick, changed: u32) {
        self.0[W_FRESH].store(u64::from(expiry) << 32 | u64::from(changed), Relaxed);
    }

    /// Keeps attributes. False, and nothing of use kept, where a field does not fit.
    pub(super) fn pack(&self, attr: &Attr, classes: &Classes) -> bool {
        let times = (pack_time(attr.mtime), pack_time(attr.ctime), pack_time(attr.atime));
        let (Some(mtime), Some(ctime), Some(atime)) = times else { return false };
        if attr.size >> 48 != 0 || attr.nlink >> 16 != 0 || attr.blocks >> 32 != 0 {
            return false;
        }
        let refs = self.0[W_REFS].load(Relaxed);
        let Some(class) = classes.number(attr, class_of(refs)) else { return false };
        self.0[W_SIZE].store(attr.size << 16 | u64::from(attr.nlink), Relaxed);
        self.0[W_MTIME].store(mtime, Relaxed);
        self.0[W_CTIME].store(ctime, Relaxed);
        self.0[W_ATIME].store(atime, Relaxed);
        let refs = refs & (RARE | COUNT_MAX);
        self.0[W_REFS].store(attr.blocks << 32 | (class as u64) << CLASS_SHIFT | refs, Relaxed);
        true
    }
}

#[inline(always)]
fn class_of(refs: u64) -> usize {
    (refs >> CLASS_SHIFT) as usize % CLASSES
}

/// The attributes in a record's words that are fresh at `now`, and when they expire.
#[inline(always)]
pub(super) fn fresh(ino: Ino, words: &[u64; WORDS], now: Tick, classes: &Classes) -> Option<(Attr, Tick)> {
    let expiry = (words[W_FRESH] >> 32) as Tick;
    if expiry <= now {
        return None;
    }
    let class = &classes.all[class_of(words[W_REFS])];
    let (rest, owner) = (class.rest.load(Relaxed), class.owner.load(Relaxed));
    let attr = Attr {
        ino,
        size: words[W_SIZE] >> 16,
        blocks: words[W_REFS] >> 32,
        atime: unpack_time(words[W_ATIME]),
        mtime: unpack_time(words[W_MTIME]),
        ctime: unpack_time(words[W_CTIME]),
        kind: KINDS[(rest >> 12 & 0xf) as usize],
        perm: (rest & 0o7777) as u16,
        nlink: words[W_SIZE] as u32 & 0xffff,
        uid: (owner >> 32) as u32,
        gid: owner as u32,
        rdev: (rest >> 32) as u32,
    };
    Some((attr, expiry))
}

/// Attributes that many inodes share.
#[derive(Default)]
struct Class {
    /// User in the high 32 bits, group in the low 32.
    owner: AtomicU64,
    /// Device number in the high 32 bits; kind in 4, permissions in 12.
    rest: AtomicU64,
}

/// The classes that there have been. They are written once and stay; attributes of any beyond [`CLASSES`] of them are not
/// cached.
pub(super) struct Classes {
    all: Box<[Class; CLASSES]>,
    numbers: Mutex<HashMap<(u64, u64), usize>>,
}

impl Classes {
    pub(super) const BYTES: usize = size_of::<[Class; CLASSES]>();

    pub(super) fn new() -> Self {
        Classes { all: Box::new(std::array::from_fn(|_| Class::default())), numbers: Mutex::default() }
    }

    /// The number of the class of `attr`, which is perhaps `likely`. None when there are too many.
    fn number(&self, attr: &Attr, likely: usize) -> Option<usize> {
        let owner = u64::from(attr.uid) << 32 | u64::from(attr.gid);
        let rest = u64::from(attr.rdev) << 32 | (attr.kind as u64) << 12 | u64::from(attr.perm & 0o7777);
        let mut numbers = self.numbers.lock();
        let is_it = |class: &Class| class.owner.load(Relaxed) == owner && class.rest.load(Relaxed) == rest;
        if likely < numbers.len() && self.all.get(likely).is_some_and(is_it) {
            return Some(likely);
        }
        if let Some(number) = numbers.get(&(owner, rest)) {
            return Some(*number);
        }
        let number = numbers.len();
        let class = self.all.get(number)?;
        // Readers learn the number from a record that is written after a fence.
        class.owner.store(owner, Relaxed);
        class.rest.store(rest, Relaxed);
        numbers.insert((owner, rest), number);
        Some(number)
    }
}

const SECS_BIAS: i64 = 1 << 31;

/// 34 bits of seconds since 1901, 30 bits of nanoseconds: until the year 2446.
fn pack_time(t: Timestamp) -> Option<u64> {
    let secs = t.secs.checked_add(SECS_BIAS)?;
    ((0..1 << 34).contains(&secs) && t.nanos < 1 << 30).then(|| (secs as u64) << 30 | u64::from(t.nanos))
}

#[inline(always)]
fn unpack_time(word: u64) -> Timestamp {
    Timestamp { secs: (word >> 30) as i64 - SECS_BIAS, nanos: (word & 0x3fff_ffff) as u32 }
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
