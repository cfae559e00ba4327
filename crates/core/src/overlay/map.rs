//! Which blocks of an open file are in which layer.
//!
//! What an [`Extent`] says, and of windows of 256 blocks that were asked for, in which of them the upper has data. Whoever
//! changes the file says when; what was found out beside that is not kept.

use std::ops::Range;

use hashbrown::HashMap;

use super::BLOCK;
use super::record::Extent;

/// Blocks of a window.
pub(super) const WINDOW: u64 = 256;

/// Windows that are remembered of a file: of 16 GiB, in less than 1 MiB.
const WINDOWS_MAX: usize = 16 << 10;

/// A bit for each block of a window.
pub(super) type Bits = [u64; WINDOW as usize / 64];

/// Where the content of a block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// In the upper, as data or as a hole.
    Upper,
    /// Nowhere: it is zeros.
    Zero,
    /// In the lower, as far as that is valid; zeros behind.
    Lower,
}

/// See the module's notes.
pub(super) struct Map {
    pub extent: Extent,
    windows: HashMap<u64, Bits>,
    /// Odd while the file is being changed.
    epoch: u64,
}

pub(super) fn get_bit(bits: &Bits, at: u64) -> bool {
    bits[(at / 64) as usize % bits.len()] >> (at % 64) & 1 == 1
}

/// Sets the bits of those of `blocks` that are in window `index`.
pub(super) fn set_bits(bits: &mut Bits, index: u64, blocks: &Range<u64>) {
    let first = index * WINDOW;
    let range = blocks.start.max(first)..blocks.end.min(first + WINDOW);
    for at in range.map(|block| block - first) {
        bits[(at / 64) as usize] |= 1 << (at % 64);
    }
}

impl Map {
    pub fn new(extent: Extent) -> Map {
        Map { extent, windows: HashMap::new(), epoch: 0 }
    }

    /// Where a block is, if the upper has data in it or not.
    pub fn class(extent: &Extent, block: u64, in_upper: bool) -> Class {
        if block >= extent.valid.div_ceil(BLOCK) {
            return Class::Upper;
        }
        // Of so little nothing is in the upper, whatever holes it can tell.
        if in_upper && extent.valid > BLOCK {
            return Class::Upper;
        }
        if extent.zeros.containing(block).is_some() { Class::Zero } else { Class::Lower }
    }

    /// What was found out of a window.
    pub fn window(&self, index: u64) -> Option<Bits> {
        self.windows.get(&index).copied()
    }

    /// Before something is found out: what [`Map::learn`] wants to hear.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Remembers what was found out since `epoch`, unless the file was changed meanwhile.
    pub fn learn(&mut self, epoch: u64, index: u64, bits: Bits) {
        if epoch != self.epoch || !epoch.is_multiple_of(2) {
            return;
        }
        if self.windows.len() >= WINDOWS_MAX {
            self.windows.clear();
        }
        self.windows.insert(index, bits);
    }

    /// The upper's blocks are about to change.
    pub fn begin(&mut self) {
        self.epoch |= 1;
    }

    /// They did: `written` are there now. `None`: nobody knows.
    pub fn end(&mut self, written: Option<&[Range<u64>]>) {
        self.epoch = (self.epoch | 1) + 1;
        let Some(written) = written else { return self.windows.clear() };
        for blocks in written {
            for index in blocks.start / WINDOW..blocks.end.div_ceil(WINDOW) {
                if let Some(bits) = self.windows.get_mut(&index) {
                    set_bits(bits, index, blocks);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_the_uppers() {
        let mut extent = Extent { valid: 10 * BLOCK + 1, ..Extent::default() };
        extent.zeros.insert(2..4);
        assert_eq!(Map::class(&extent, 1, false), Class::Lower);
        assert_eq!(Map::class(&extent, 1, true), Class::Upper);
        assert_eq!(Map::class(&extent, 2, false), Class::Zero);
        assert_eq!(Map::class(&extent, 2, true), Class::Upper);
        assert_eq!(Map::class(&extent, 10, false), Class::Lower);
        assert_eq!(Map::class(&extent, 11, false), Class::Upper);
        let small = Extent { valid: BLOCK, ..Extent::default() };
        assert_eq!(Map::class(&small, 0, true), Class::Lower);

        let mut map = Map::new(extent);
        map.learn(map.epoch(), 1, Bits::default());
        let before = map.epoch();
        map.begin();
        map.learn(before, 2, Bits::default());
        map.learn(map.epoch(), 3, Bits::default());
        map.end(Some(&[200..258, 511..513]));
        assert_eq!((map.window(2), map.window(3)), (None, None), "nothing is learnt beside a change");
        let bits = map.window(1).unwrap();
        let set: Vec<u64> = (0..WINDOW).filter(|&at| get_bit(&bits, at)).collect();
        assert_eq!(set, [0, 1, 255]);
        map.begin();
        map.end(None);
        assert_eq!(map.window(1), None);
    }
}
