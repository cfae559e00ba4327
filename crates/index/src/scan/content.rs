//! Hashes of content, as manifests have them: XXH3-128, big-endian.

use adit_core::error::Result;
use xxhash_rust::xxh3::Xxh3;

use crate::ContentHash;

/// What is read at once, in bytes.
pub(super) const READ_LEN_BYTES: usize = 256 << 10;

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
