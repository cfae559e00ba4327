//! The checksums of the key-value store's pages: the first block of each of its segments.

use adit_core::Result;

use super::pages::PAGE_LEN;
use crate::container::Container;

/// The entry of a page that was never written: it reads as zeros. Not 0, so that a block of entries that got lost, and reads as
/// zeros itself, is damage.
pub(super) const UNWRITTEN: u32 = u32::MAX;

/// The checksum of a page, never [`UNWRITTEN`] and never 0.
pub(super) fn checksum(page: &[u8]) -> u32 {
    match crc32c::crc32c(page) {
        0 | UNWRITTEN => 1,
        sum => sum,
    }
}

/// The block of checksums of a segment.
pub(crate) fn sums_block(sums: &[u32]) -> Vec<u8> {
    let mut block: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
    block.resize(PAGE_LEN, 0);
    block
}

pub(super) fn read_sums(container: &Container, number: u32, count: usize) -> Result<Box<[u32]>> {
    let mut block = vec![0; PAGE_LEN];
    container.read(container.segment_offset(number), &mut block)?;
    Ok(sums_in(&block, count))
}

/// The first `count` checksums in a block of them.
pub(crate) fn sums_in(block: &[u8], count: usize) -> Box<[u32]> {
    let (entries, _) = block.as_chunks::<4>();
    entries.iter().take(count).map(|entry| u32::from_le_bytes(*entry)).collect()
}
