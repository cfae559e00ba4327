//! The numbers of what is in `.snapshots`: above those of the tree, with the *slot* of the snapshot; below 2^53.
//!
//! A snapshot gets the slot that its name leads to, or the next one that is free: in the order in which snapshots were made, all that
//! there are at once. So its numbers do not depend on what is looked at first, and a snapshot that is made again under the same name
//! has those of the one before, unless that is still in use.

use adit_core::numbers::{NUMBERS_END, SPREAD, mixed};
use adit_core::types::Ino;

/// The bit that tells these numbers from those of the tree.
const ABOVE: u64 = NUMBERS_END / 2;

/// The inode of the hidden directory, in the slot 0.
pub const SNAPSHOTS_INO: Ino = Ino(ABOVE | 1);

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
}

impl Numbers {
    /// For a tree that gives out `next` next. It may give out as many again while these are used. `None` if there is no room.
    pub fn of(next: u64) -> Option<Numbers> {
        let own_bits = OWN_BITS.step_by(4).find(|bits| next >> (bits - 1) == 0)?;
        Some(Numbers { own_bits })
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

    /// The number of `own` of the snapshot that has this slot. Files of several snapshots also differ in the low 32 bits, by chance.
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
        for (next, slots) in [(2, 65_535), (1 << 34, 65_535), (1 << 35, 4095), (1 << 43, 255)] {
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

    /// Which is all that cpio keeps.
    #[test]
    fn files_of_some_snapshots_differ_in_32_bits() {
        let numbers = Numbers::of(2).unwrap();
        let mut seen = std::collections::HashSet::new();
        for name in 0..20 {
            let slot = numbers.slot_of(&name.to_string());
            for own in 1..1000 {
                assert!(seen.insert(numbers.mapped(slot, Ino(own)).0 as u32));
            }
        }
    }
}
