//! The bodies of the fuzz targets, so that a stable toolchain can replay their corpora.

use super::container::{FORMAT_VERSION, MAGIC, Superblock};
use super::log::{self, Draft, Kind, Seed};

/// The body of a target.
pub type Body = fn(&[u8]);

/// The targets by name.
pub const TARGETS: [(&str, Body); 2] = [("volume_superblock", fuzz_superblock), ("volume_log", fuzz_log)];

/// Any bytes as a slot; also with a right checksum, so that the fields are reached.
pub fn fuzz_superblock(data: &[u8]) {
    written_again(data);
    let mut slot = MAGIC.to_vec();
    slot.extend(FORMAT_VERSION.to_le_bytes());
    slot.extend(0_u32.to_le_bytes());
    slot.extend((slot.len() as u32 + data.len() as u32 + 8).to_le_bytes());
    slot.extend(data);
    slot.extend(crc32c::crc32c(&slot).to_le_bytes());
    written_again(&slot);
}

/// What is decoded is decoded the same again once it was encoded.
fn written_again(slot: &[u8]) {
    if let Ok(superblock) = Superblock::decode(slot) {
        let again = superblock.encode().expect("what was in a slot fits in one");
        assert_eq!(Superblock::decode(&again).as_ref(), Ok(&superblock));
    }
}

/// Any bytes as a record, and as the payload of one.
pub fn fuzz_log(data: &[u8]) {
    let seed = Seed::default();
    if let Some((record, len)) = log::decode(seed, data) {
        assert!(len <= data.len() && record.payload.len() < len);
    }
    let _ = (log::decode_after(seed, data, 1), log::decode_next(data));
    let Some(batch) = log::decode_batch(data) else { return };
    let draft = Draft::new(&batch);
    let len = draft.record_len();
    let record = draft.seal(seed, 3, 2);
    assert_eq!(record.len(), len);
    let (again, taken) = log::decode(seed, &record).expect("a sealed record is valid");
    assert_eq!((again.seq, again.durable, again.kind, taken), (3, 2, Kind::Batch, len));
    assert_eq!(again.payload, data);
}
