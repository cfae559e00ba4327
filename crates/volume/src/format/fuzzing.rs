//! The bodies of the fuzz targets, so that a stable toolchain can replay their corpora.
//!
//! Each takes any bytes, must not panic, and asserts that what decodes is written again as it was read.

use super::container::{FORMAT_VERSION, MAGIC, Superblock};
use super::keys::{self, Key, NameHash};
use super::log::{self, Draft, Kind, Seed};
use super::records::{self, Entry, Inode, Orphan, Snapshot, Window};

/// The body of a target.
pub type Body = fn(&[u8]);

/// The targets by name.
pub const TARGETS: [(&str, Body); 4] = [
    ("volume_superblock", fuzz_superblock),
    ("volume_log", fuzz_log),
    ("volume_key", fuzz_key),
    ("volume_record", fuzz_record),
];

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

/// A key of the table, of any space.
pub fn fuzz_key(data: &[u8]) {
    if let Some((logical, id)) = keys::split(data) {
        let key = Key::from_logical(logical).expect("what split gives is a key");
        assert_eq!(key.at(id), data);
        assert!(key.parts().is_some());
    }
    if let Some((id, logical)) = keys::parse_touched(data) {
        assert_eq!(keys::touched(id, logical), data);
        assert!(data >= &keys::touched_start(id)[..] && data < &keys::touched_end(id)[..]);
    }
    if let Some(id) = keys::parse_snapshot(data) {
        assert_eq!(keys::snapshot(id), data);
    }
    let cookie = NameHash::new([7; 16]).cookie(data);
    assert!(cookie >= keys::cookie::SLOTS && cookie + keys::cookie::SLOTS < i64::MAX as u64);
}

/// A value of the table, of any type.
pub fn fuzz_record(data: &[u8]) {
    if let Ok(inode) = Inode::decode(data) {
        assert_eq!(inode.encode(), data);
    }
    if let Ok(entry) = Entry::decode(data) {
        assert_eq!(entry.encode(), data);
    }
    if let Ok(value) = records::decode_xattr(data) {
        assert_eq!(records::encode_xattr(value), data);
    }
    if let Ok(window) = Window::decode(data) {
        // Fragments that could be one are written as one.
        assert_eq!(Window::decode(&window.encode()), Ok(window));
    }
    if let Ok(orphan) = Orphan::decode(data) {
        assert_eq!(orphan.encode(), data);
    }
    if let Ok(snapshot) = Snapshot::decode(data) {
        assert_eq!(snapshot.encode(), data);
    }
    if let Ok(value) = records::decode_meta(data) {
        assert_eq!(records::encode_meta(value), data);
    }
    let _ = (records::decode_name(data), records::is_tombstone(data));
}
