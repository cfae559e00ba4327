//! Hashes of content, as manifests have them: XXH3-128, big-endian.

use adit_core::error::Result;
use xxhash_rust::xxh3::Xxh3;

use crate::ContentHash;

/// What is read at once, in bytes.
pub(super) const READ_LEN_BYTES: usize = 256 << 10;

/// A host's clock goes in steps that are not longer, in nanoseconds: of 10 ms where it has the fewest.
const TICK_NS: i64 = 20_000_000;

/// Waits, for a few milliseconds at most, until whatever changes a file has a later time than its last change. Two changes within one step of
/// the host's clock have the same time: one that comes between the look at a file and the end of its reading would not show. A time that lies
/// further ahead is of another clock, which nobody here can wait for.
pub(super) fn settle(changed_ns: i64) {
    let ahead = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        let now_ns = now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec);
        changed_ns.saturating_sub(now_ns)
    };
    while (0..TICK_NS).contains(&ahead()) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// The hash of what `read` gives at each offset until it gives nothing, and its length in bytes. `told` hears of the bytes of each piece.
pub(super) fn hash(
    buffer: &mut Vec<u8>,
    read: &mut dyn FnMut(u64, &mut [u8]) -> Result<usize>,
    told: &mut dyn FnMut(u64) -> bool,
) -> Result<Option<(ContentHash, u64)>> {
    buffer.resize(READ_LEN_BYTES, 0);
    let (mut hasher, mut offset) = (Xxh3::new(), 0);
    loop {
        let len = read(offset, buffer)?;
        let Some(piece) = buffer.get(..len).filter(|piece| !piece.is_empty()) else {
            return Ok(Some((hasher.digest128().to_be_bytes(), offset)));
        };
        hasher.update(piece);
        offset += len as u64;
        if !told(len as u64) {
            return Ok(None);
        }
    }
}
