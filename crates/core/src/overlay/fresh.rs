//! Which bytes of a file of the lower are not the lower's any more.
//!
//! Whoever knows something of the lower's content (its hashes) need not read again what is still that.

use std::ops::Range;
use std::sync::Arc;

use super::changes::Names;
use super::content::Work;
use super::node::Node;
use super::{BLOCK, Overlay, Shared, numbers};
use crate::error::{ErrorKind, Result};
use crate::types::{Ino, Kind};

/// A file that stands for one of the lower.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fresh {
    /// Its number, as it is shown.
    pub ino: Ino,
    /// Its length in bytes.
    pub len: u64,
    /// Where its bytes may differ from those that the lower's file has there: ascending, apart. All other bytes are the same.
    pub ranges: Vec<Range<u64>>,
}

impl Overlay {
    /// The number that a file shown under `ino` has in the lower; `None` for what was made above.
    pub fn lower_ino(ino: Ino) -> Option<Ino> {
        numbers::in_lower(ino)
    }

    /// What is new in the file at `path` (from the root, with or without a leading slash), if it was copied up from the lower;
    /// `None` for whatever else is there, or if nothing is.
    ///
    /// What is changed meanwhile may be told or not.
    ///
    /// # Errors
    /// What the layers say.
    pub fn fresh(&self, path: &[u8]) -> Result<Option<Fresh>> {
        let shared = self.shared();
        let names: Names =
            path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect();
        let found = shared.fresh(&names);
        shared.settle();
        found
    }

    /// Whether all that the file shown under `ino` holds is what its [number in the lower](Overlay::lower_ino) has: it was not copied up, or
    /// nothing of it but names and attributes was changed. The file is one that is known.
    ///
    /// A block that was written counts as changed, whatever was written into it.
    ///
    /// # Errors
    /// What the layers say.
    pub fn has_lower_content(&self, ino: Ino) -> Result<bool> {
        if Self::lower_ino(ino).is_none() {
            return Ok(false);
        }
        let shared = self.shared();
        let found = shared.node(ino).and_then(|node| shared.has_lower_content(&node));
        shared.settle();
        found
    }
}

impl Shared {
    fn has_lower_content(&self, node: &Arc<Node>) -> Result<bool> {
        if node.kind != Kind::File {
            return Ok(false);
        }
        let Some(upper) = node.upper() else { return Ok(true) };
        let len = self.upper.store.getattr(upper)?.size;
        let content = self.content(node);
        Ok(len == self.below(node)?.print.size && self.fresh_ranges(&Work { node, content: &content }, len)?.is_empty())
    }

    fn fresh(&self, path: &Names) -> Result<Option<Fresh>> {
        let Some(seen) = self.at(path)? else { return Ok(None) };
        let node = &seen.node;
        if node.kind != Kind::File || !node.from_lower || node.upper().is_none() {
            return Ok(None);
        }
        let content = self.content(node);
        let ranges = self.fresh_ranges(&Work { node, content: &content }, seen.attr.size)?;
        Ok(Some(Fresh { ino: seen.attr.ino, len: seen.attr.size, ranges }))
    }

    fn fresh_ranges(&self, work: &Work<'_>, len: u64) -> Result<Vec<Range<u64>>> {
        let Some(extent) = self.extent(work)? else { return Ok(Vec::from_iter((len > 0).then_some(0..len))) };
        // What lies behind it is zeros, also within the block.
        let valid = extent.valid.min(len);
        let mut ranges: Vec<Range<u64>> =
            extent.zeros.iter().map(|blocks| blocks.start * BLOCK..(blocks.end * BLOCK).min(valid)).collect();
        ranges.push(valid..len);
        if extent.valid > BLOCK {
            let upper = self.upper_file(work)?;
            let mut at = 0;
            while at < valid {
                let data = match upper.seek_data(at) {
                    Err(e) if e.kind() == ErrorKind::NoData => break,
                    data => data?.max(at),
                };
                let hole = match upper.seek_hole(data) {
                    Err(e) if e.kind() == ErrorKind::NoData => break,
                    hole => hole?,
                };
                // By blocks: what of one was not written was completed from the lower.
                ranges.push(data / BLOCK * BLOCK..hole.next_multiple_of(BLOCK).min(valid));
                at = hole.max(data + 1);
            }
        }
        Ok(joined(ranges))
    }
}

/// The same bytes as few ranges, ascending.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| range.start);
    let mut few: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match few.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => few.push(range),
        }
    }
    few
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_meet_are_one_and_empty_ones_none() {
        assert_eq!(joined(vec![8..9, 0..2, 5..5, 2..4, 3..6]), [0..6, 8..9]);
        assert!(joined(Vec::from_iter([3..3, 4..4])).is_empty());
    }
}
