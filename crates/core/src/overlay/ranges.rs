//! Sets of blocks as few ranges.

use std::ops::Range;

/// Ranges of blocks: ascending, apart, none empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct BlockRanges(Vec<Range<u64>>);

impl BlockRanges {
    pub fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.0.iter()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The range that `block` is in.
    pub fn containing(&self, block: u64) -> Option<&Range<u64>> {
        let at = self.0.partition_point(|range| range.end <= block);
        self.0.get(at).filter(|range| range.contains(&block))
    }

    /// Adds a range; those that it meets become one with it.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|other| other.end < range.start);
        let last = self.0.partition_point(|other| other.start <= range.end);
        let met = &self.0[first..last];
        let start = met.first().map_or(range.start, |other| other.start.min(range.start));
        let end = met.last().map_or(range.end, |other| other.end.max(range.end));
        self.0.splice(first..last, std::iter::once(start..end));
    }

    /// Whether any of these blocks is in it.
    pub fn meets(&self, blocks: &Range<u64>) -> bool {
        let at = self.0.partition_point(|range| range.end <= blocks.start);
        !blocks.is_empty() && self.0.get(at).is_some_and(|range| range.start < blocks.end)
    }

    /// Whether all of these blocks are in it.
    pub fn holds(&self, blocks: &Range<u64>) -> bool {
        blocks.is_empty() || self.containing(blocks.start).is_some_and(|range| blocks.end <= range.end)
    }

    /// The parts of these blocks that are in it.
    pub fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let at = self.0.partition_point(|range| range.end <= blocks.start);
        let met = self.0[at..].iter().take_while(move |range| range.start < blocks.end);
        met.map(move |range| range.start.max(blocks.start)..range.end.min(blocks.end)).filter(|part| !part.is_empty())
    }

    /// Takes these blocks away.
    pub fn remove(&mut self, blocks: &Range<u64>) {
        if !self.meets(blocks) {
            return;
        }
        let left = self
            .0
            .iter()
            .flat_map(|range| [range.start..range.end.min(blocks.start), range.start.max(blocks.end)..range.end]);
        self.0 = left.filter(|part| part.start < part.end).collect();
    }

    /// Takes away all blocks from `end` on.
    pub fn truncate(&mut self, end: u64) {
        self.0.retain_mut(|range| {
            range.end = range.end.min(end);
            !range.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(ranges: &BlockRanges) -> Vec<(u64, u64)> {
        ranges.iter().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn ranges_that_meet_are_one() {
        let mut ranges = BlockRanges::default();
        for range in [10..12, 20..22, 5..5, 15..16, 12..13] {
            ranges.insert(range);
        }
        assert_eq!(all(&ranges), [(10, 13), (15, 16), (20, 22)]);
        ranges.insert(12..20);
        assert_eq!(all(&ranges), [(10, 22)]);
        ranges.insert(0..3);
        assert_eq!((ranges.containing(2), ranges.containing(3)), (Some(&(0..3)), None));
        assert_eq!(ranges.containing(21), Some(&(10..22)));
        ranges.truncate(11);
        assert_eq!(all(&ranges), [(0, 3), (10, 11)]);
        ranges.truncate(3);
        assert_eq!((all(&ranges), ranges.len()), (vec![(0, 3)], 1));
    }

    #[test]
    fn ranges_are_cut_and_asked_for_their_parts() {
        let mut ranges = BlockRanges::default();
        [2..5, 8..12].into_iter().for_each(|range| ranges.insert(range));
        assert!(ranges.meets(&(0..3)) && ranges.meets(&(4..9)) && !ranges.meets(&(5..8)) && !ranges.meets(&(3..3)));
        assert!(ranges.holds(&(8..12)) && ranges.holds(&(3..4)) && !ranges.holds(&(4..6)) && !ranges.holds(&(5..6)));
        assert_eq!(ranges.within(4..10).collect::<Vec<_>>(), [4..5, 8..10]);
        assert_eq!(ranges.within(5..8).count(), 0);
        ranges.remove(&(4..9));
        assert_eq!(all(&ranges), [(2, 4), (9, 12)]);
        ranges.remove(&(10..11));
        assert_eq!(all(&ranges), [(2, 4), (9, 10), (11, 12)]);
        ranges.remove(&(0..100));
        assert!(ranges.is_empty());
    }
}
