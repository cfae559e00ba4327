//! Which blocks of a file hold bytes of the lower that nobody knew to be right when they were read.
//!
//! Only a set, kept twice of a file: of what was handed out while somebody could write it back, in memory; and of what is in the upper, in
//! an attribute there. What becomes of them is [`proof`](super::proof)'s.

use std::collections::BTreeMap;
use std::ops::Range;

use super::BLOCK;
use super::ranges::BlockRanges;
use crate::store::Unproved;

/// See the module's notes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Doubts {
    /// None of them empty.
    blocks: BTreeMap<Unproved, BlockRanges>,
    /// No stretch is longer.
    len_max: u64,
}

impl Doubts {
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// How many stretches there are.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Unproved, &BlockRanges)> {
        self.blocks.iter()
    }

    /// Adds those of `blocks` that have something of the stretch.
    pub fn add(&mut self, what: Unproved, blocks: Range<u64>) {
        let first = what.offset / BLOCK;
        let end = what.offset.saturating_add(what.len).div_ceil(BLOCK);
        let blocks = blocks.start.max(first)..blocks.end.min(end);
        if blocks.start < blocks.end {
            self.blocks.entry(what).or_default().insert(blocks);
            self.len_max = self.len_max.max(what.len);
        }
    }

    pub fn add_all(&mut self, others: &Doubts) {
        for (what, blocks) in others.iter() {
            blocks.iter().for_each(|blocks| self.add(*what, blocks.clone()));
        }
    }

    /// Whether all of `others` is in it.
    pub fn holds(&self, others: &Doubts) -> bool {
        others.iter().all(|(what, blocks)| {
            self.blocks.get(what).is_some_and(|own| blocks.iter().all(|blocks| own.holds(blocks)))
        })
    }

    /// What is in it of `blocks`.
    pub fn within(&self, blocks: &Range<u64>) -> Doubts {
        let mut found = Doubts::default();
        // Blocks of a stretch reach up to a block beyond it on both sides.
        let from = (blocks.start * BLOCK).saturating_sub(self.len_max.saturating_add(BLOCK));
        let to = blocks.end.saturating_mul(BLOCK);
        let at = |offset| Unproved { offset, len: 0, sum: 0 };
        for (what, own) in self.blocks.range(at(from)..at(to.max(from))) {
            own.within(blocks.clone()).for_each(|part| found.add(*what, part));
        }
        found
    }

    /// Takes a stretch away.
    pub fn settle(&mut self, what: &Unproved) {
        self.blocks.remove(what);
    }

    /// Takes these blocks away.
    pub fn remove(&mut self, blocks: &Range<u64>) {
        self.blocks.retain(|_, own| {
            own.remove(blocks);
            !own.is_empty()
        });
    }

    /// Takes away all blocks from `end` on.
    pub fn truncate(&mut self, end: u64) {
        self.remove(&(end..u64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(number: u64) -> Unproved {
        Unproved { offset: number * 4 * BLOCK, len: 4 * BLOCK, sum: number }
    }

    #[test]
    fn blocks_are_found_in_their_stretches() {
        let mut doubts = Doubts::default();
        doubts.add(stretch(0), 0..100);
        doubts.add(stretch(5), 21..22);
        doubts.add(stretch(9), 0..3);
        assert_eq!(doubts.len(), 2, "cut to the stretch");
        for block in 0..40 {
            let expected = block < 4 || block == 21;
            assert_eq!(!doubts.within(&(block..block + 1)).is_empty(), expected, "{block}");
        }
        assert!(doubts.holds(&doubts.within(&(0..u64::MAX / BLOCK))));
        let mut more = doubts.within(&(2..22));
        assert!(doubts.holds(&more) && !more.holds(&doubts));
        more.add(stretch(5), 22..23);
        assert!(!doubts.holds(&more));
        doubts.add_all(&more);
        assert!(doubts.holds(&more));
        doubts.remove(&(1..3));
        assert!(doubts.within(&(1..3)).is_empty() && !doubts.within(&(0..2)).is_empty());
        doubts.truncate(22);
        assert!(doubts.within(&(22..23)).is_empty());
        doubts.settle(&stretch(5));
        doubts.truncate(0);
        assert!(doubts.is_empty());
    }

    /// A stretch need not begin with a block.
    #[test]
    fn a_block_of_two_stretches_is_in_both() {
        let mut doubts = Doubts::default();
        let halves = [0, 1].map(|half| Unproved { offset: half * BLOCK / 2, len: BLOCK / 2, sum: half });
        halves.iter().for_each(|half| doubts.add(*half, 0..1));
        assert_eq!(doubts.within(&(0..1)).len(), 2);
        assert!(doubts.within(&(1..2)).is_empty());
    }
}
