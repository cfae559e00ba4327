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
}
