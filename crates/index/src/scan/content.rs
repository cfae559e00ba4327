//! Hashes of content, as manifests have them: XXH3-128, big-endian.

use adit_core::error::Result;
use xxhash_rust::xxh3::Xxh3;

use crate::ContentHash;

/// What is read at once, in bytes.
pub(super) const READ_LEN_BYTES: usize = 256 << 10;

/// So long a file is left alone after a change before it is read, in nanoseconds. Longer than a step of a host's clock, within which two changes have
/// one time, and than a write takes between the time that it gives the file and the last of its bytes, which come later.
const SETTLED_NS: i64 = 50_000_000;

/// Waits until a file has been as it is for a while: a change that was under way when it was looked at is complete then, and one that comes
/// while it is read has another time. A time of the future is another clock's, which nobody here can wait for.
pub(super) fn settle(changed_ns: i64) {
    while is_fresh(changed_ns) {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// Whether another change may have the same time.
pub(super) fn is_fresh(changed_ns: i64) -> bool {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let now_ns = now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec);
    // Where times are finer than the clock that is looked at here, a change just now is ahead of it by a step.
    (-SETTLED_NS..SETTLED_NS).contains(&now_ns.saturating_sub(changed_ns))
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
