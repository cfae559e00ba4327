//! The numbers of what is in `.snapshots`: above those of the tree, with the *slot* of the snapshot; below 2^53.
//!
//! A snapshot gets the slot that its name leads to, or the next one that fits: in the order in which snapshots were made, all that
//! there are at once. So its numbers do not depend on what is looked at first, and a snapshot that is made again under the same name
//! has those of the one before, unless that is still in use.
//!
//! A slot fits if it is free, and if the low 32 bits of its numbers are others than those of the branch and of the slots that are taken: some
//! archives keep no more. They begin at the slot's *start* and go on for the [`Numbers::span`] of a tree, around the circle of 2^32.

use std::collections::BTreeSet;

use adit_core::numbers::{NUMBERS_END, SPREAD, mixed};
use adit_core::types::Ino;

/// The bit that tells these numbers from those of the tree.
const ABOVE: u64 = NUMBERS_END / 2;

/// The inode of the hidden directory, in the slot 0. Its low 32 bits are those of no inode but one that 2^32 others go before.
pub const SNAPSHOTS_INO: Ino = Ino(ABOVE | u32::MAX as u64);

/// Numbers of a tree that are kept apart at least: trees grow while they are mounted.
const SPAN_MIN: u64 = 1 << 16;

/// Bits of the numbers of a tree as a rule, and at most: the more, the fewer snapshots have room.
const OWN_BITS: std::ops::RangeInclusive<u32> = 36..=44;

/// Where an inode is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum At {
    Live,
    Dir,
    /// In the snapshot that has this slot, from 1 on.
    Snapshot(u64),
}

/// How numbers are put together: with so many bits of the tree's own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    own_bits: u32,
    span: u64,
}

/// The low 32 bits with which the numbers of slots begin that are taken, and those of the branch.
#[derive(Debug)]
pub(super) struct Starts(BTreeSet<u32>);

impl Default for Starts {
    fn default() -> Starts {
        Starts(BTreeSet::from([0]))
    }
}

impl Starts {
    pub fn add(&mut self, slot: u64) {
        self.0.insert(start_of(slot));
    }

    pub fn remove(&mut self, slot: u64) {
        self.0.remove(&start_of(slot));
    }

    /// Whether the numbers of a slot are apart from all of them, if those of each take `span`.
    fn fit(&self, slot: u64, span: u64) -> bool {
        let start = start_of(slot);
        let before = self.0.range(..=start).next_back().or(self.0.last());
        let behind = self.0.range(start..).next().or(self.0.first());
        let is_apart = |from: u32, to: u32| u64::from(to.wrapping_sub(from)) >= span;
        before.is_none_or(|&before| is_apart(before, start)) && behind.is_none_or(|&behind| is_apart(start, behind))
    }
}

fn start_of(slot: u64) -> u32 {
    (slot * SPREAD) as u32
}

impl Numbers {
    /// For a tree that gives out `next` next. It may give out as many again while these are used. `None` if there is no room.
    pub fn of(next: u64) -> Option<Numbers> {
        let own_bits = OWN_BITS.step_by(4).find(|bits| next >> (bits - 1) == 0)?;
        Some(Numbers { own_bits, span: (2 * next).next_power_of_two().max(SPAN_MIN) })
    }

    /// How many numbers of each tree are kept apart in 32 bits: twice as many as there are, so that this seldom changes.
    #[cfg(test)]
    pub fn span(self) -> u64 {
        self.span
    }

    /// The slot for a snapshot of this name, of those that `is_free`. Where no free one fits, which takes some 2^32 numbers, it is the
    /// first free one.
    pub fn slot_for(self, name: &str, starts: &Starts, is_free: impl Fn(u64) -> bool) -> Option<u64> {
        let first = self.slot_of(name);
        let mut free = std::iter::successors(Some(first), |&slot| Some(self.next(slot)).filter(|&next| next != first))
            .filter(|&slot| is_free(slot));
        // As many as there are may be tried in vain, for each snapshot.
        if starts.0.len() as u64 * self.span > 1 << 31 {
            return free.next();
        }
        free.clone().find(|&slot| starts.fit(slot, self.span)).or_else(|| free.next())
    }

    /// How many slots there are.
    pub fn slots(self) -> u64 {
        (ABOVE >> self.own_bits) - 1
    }

    /// The slot that a name leads to.
    pub fn slot_of(self, name: &str) -> u64 {
        name.bytes().fold(0, |hash, byte| mixed(hash ^ u64::from(byte))) % self.slots() + 1
    }

    /// The slot behind, the first one behind the last.
    pub fn next(self, slot: u64) -> u64 {
        slot % self.slots() + 1
    }

    pub fn at(self, ino: Ino) -> At {
        match (ino.0 & ABOVE, (ino.0 & (ABOVE - 1)) >> self.own_bits) {
            (0, _) => At::Live,
            (_, 0) => At::Dir,
            (_, slot) => At::Snapshot(slot),
        }
    }

    /// The number of an inode within its snapshot.
    pub fn own(self, ino: Ino) -> Ino {
        let At::Snapshot(slot) = self.at(ino) else { return ino };
        Ino(ino.0.wrapping_sub(slot * SPREAD) & self.mask())
    }

    /// The number of `own` of the snapshot that has this slot.
    pub fn mapped(self, slot: u64, own: Ino) -> Ino {
        Ino(ABOVE | slot << self.own_bits | own.0.wrapping_add(slot * SPREAD) & self.mask())
    }

    fn mask(self) -> u64 {
        (1 << self.own_bits) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_and_stay_small() {
        for (next, slots) in [(2, 65_535), (1 << 34, 65_535), (1 << 35, 4095), (1 << 42, 255)] {
            let numbers = Numbers::of(next).unwrap();
            assert_eq!(numbers.slots(), slots);
            for slot in [1, 2, slots / 2, slots] {
                for own in [1, 2, 1 << 31, next] {
                    let shown = numbers.mapped(slot, Ino(own));
                    assert!(shown.0 < NUMBERS_END && shown != SNAPSHOTS_INO);
                    assert_eq!((numbers.at(shown), numbers.own(shown)), (At::Snapshot(slot), Ino(own)));
                }
            }
            assert_eq!((numbers.at(Ino(next)), numbers.own(Ino(next))), (At::Live, Ino(next)));
            assert_eq!(numbers.at(SNAPSHOTS_INO), At::Dir);
            assert_eq!((numbers.next(slots), numbers.next(1)), (1, 2));
            assert!((1..=slots).contains(&numbers.slot_of("nightly")));
        }
        assert!(Numbers::of(1 << 44).is_none());
    }

    /// Which is all that cpio keeps. By their names alone, several of these would share some.
    #[test]
    fn files_of_snapshots_and_the_branch_differ_in_32_bits() {
        for (next, snapshots) in [(1000, 10_000), (1 << 20, 500), (1 << 28, 3)] {
            let numbers = Numbers::of(next).unwrap();
            let (mut starts, mut taken) = (Starts::default(), std::collections::HashSet::new());
            let mut ranges = vec![(1, next)];
            for name in 0..snapshots {
                let slot = numbers.slot_for(&name.to_string(), &starts, |slot| !taken.contains(&slot)).unwrap();
                assert!(taken.insert(slot));
                starts.add(slot);
                let [first, last] = [1, next].map(|own| u64::from(numbers.mapped(slot, Ino(own)).0 as u32));
                let halves = if first <= last { [(first, last), (first, last)] } else { [(first, 1 << 32), (0, last)] };
                ranges.extend(halves);
            }
            ranges.sort_unstable();
            ranges.dedup();
            assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "{next}");
        }
    }

    #[test]
    fn a_slot_is_found_as_long_as_one_is_free() {
        let numbers = Numbers::of(1 << 42).unwrap();
        assert_eq!(numbers.span(), 1 << 43);
        let (mut starts, mut taken) = (Starts::default(), std::collections::HashSet::new());
        for name in 0..numbers.slots() {
            let slot = numbers.slot_for(&name.to_string(), &starts, |slot| !taken.contains(&slot)).unwrap();
            assert!(taken.insert(slot));
            starts.add(slot);
        }
        assert_eq!(numbers.slot_for("more", &starts, |slot| !taken.contains(&slot)), None);
    }
}
