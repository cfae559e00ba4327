//! The bodies of the fuzz targets, so that a stable toolchain can replay their corpora.
//!
//! Each takes any bytes, must not panic, and asserts that what decodes is written again as it was read.

use adit_media::ExtentFolder;

use super::Reader;
use super::container::{FORMAT_VERSION, MAGIC, Superblock};
use super::data::{self, LABEL_LEN_BYTES, LABEL_OFFSETS, Label};
use super::keys::{self, Key, NameHash};
use super::log::{self, Draft, Kind, Seed};
use super::own::{APPLIED_KEY, Own, bitmap_key, own_value};
use super::records::{self, Entry, Inode, Orphan, Snapshot, Window};
use crate::container::bitmap::Bitmap;
use crate::container::folder::pieces;
use crate::kv::sums::{sums_block, sums_in};
use crate::table::{BLOCK_LEN_BYTES, OWN_PREFIX};

/// The body of a target.
pub type Body = fn(&[u8]);

/// The targets by name.
pub const TARGETS: [(&str, Body); 6] = [
    ("volume_superblock", fuzz_superblock),
    ("volume_log", fuzz_log),
    ("volume_key", fuzz_key),
    ("volume_record", fuzz_record),
    ("volume_own", fuzz_own),
    ("volume_data_folder", fuzz_data_folder),
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

/// What the base keeps for itself. The first byte is the length of a record's key, which comes next; what is left is the record's
/// value, and checksums, and a bitmap behind the number of its blocks.
pub fn fuzz_own(data: &[u8]) {
    let mut rest = Reader(data);
    let Some(key) = rest.u8().and_then(|len| rest.take(usize::from(len % 8))) else { return };
    let key = [&[OWN_PREFIX], key].concat();
    if let Ok(own) = Own::decode(&key, rest.0) {
        let (wanted, value) = match own {
            Own::Applied(number) => (APPLIED_KEY.to_vec(), own_value(&number.to_le_bytes())),
            Own::Bitmap(segment, bytes) => (bitmap_key(segment).to_vec(), own_value(bytes)),
        };
        assert_eq!((wanted, &value[..]), (key, rest.0));
    }
    let sums = sums_in(rest.0, 31);
    assert_eq!(sums_in(&sums_block(&sums), sums.len()), sums);
    let Some(blocks) = rest.u16().map(|blocks| 1 + u32::from(blocks % 1024)) else { return };
    if let Some(bitmap) = Bitmap::from_bytes(blocks, rest.0) {
        assert_eq!(bitmap.to_bytes(), rest.0);
        let runs: Vec<_> = bitmap.set_runs().chain(bitmap.clear_runs()).collect();
        assert!(runs.iter().all(|(start, count)| *count > 0 && start + count <= blocks));
        assert_eq!(runs.iter().map(|(_, count)| count).sum::<u32>(), blocks);
    }
}

/// What says whose a data folder is, the names of objects in it, and where a stretch of the blocks' space lies in them.
pub fn fuzz_data_folder(data: &[u8]) {
    label(data);
    // Also with what begins and ends it, so that the fields are reached.
    let mut sealed = data::MAGIC.to_vec();
    sealed.extend(data::VERSION.to_le_bytes());
    sealed.extend(data.iter().take(LABEL_LEN_BYTES - 16));
    sealed.resize(LABEL_LEN_BYTES - 4, 0);
    sealed.extend(crc32c::crc32c(&sealed).to_le_bytes());
    label(&sealed);

    let (dir, file) = data.split_at_checked(6).unwrap_or((data, &[]));
    if let Some(object) = ExtentFolder::object_of(dir, file) {
        let (of_dir, of_file) = ExtentFolder::names(object);
        assert_eq!((of_dir.as_bytes(), of_file.as_bytes()), (dir, file));
    }
    let mut fields = Reader(data);
    let (Some(object), Some(offset), Some(len)) = (fields.u32(), fields.u64(), fields.u16()) else { return };
    let (of_dir, of_file) = ExtentFolder::names(object);
    assert_eq!(ExtentFolder::object_of(of_dir.as_bytes(), of_file.as_bytes()), Some(object));
    let segment_len = BLOCK_LEN_BYTES as u32 * (1 + object % 1024);
    // A block's number is below 2^52.
    let (offset, len) = (offset >> 1, usize::from(len) * 64);
    let mut at = offset;
    for (segment, start, piece) in pieces(segment_len, offset, len) {
        assert!(piece > 0 && start + piece as u64 <= u64::from(segment_len));
        if let Some(segment) = u32::try_from(at / u64::from(segment_len)).ok().filter(|known| *known == segment) {
            assert_eq!(u64::from(segment) * u64::from(segment_len) + start, at);
        }
        at += piece as u64;
    }
    assert_eq!(at, offset + len as u64);
}

/// What is read as a label is written as it was, and the newest in a folder is one of those in their places.
fn label(bytes: &[u8]) {
    if let Some(label) = Label::decode(bytes) {
        assert_eq!(label.encode(), bytes);
        let _ = label.fits(label.epoch.wrapping_sub(1));
        assert!(label.fits(label.epoch) && LABEL_OFFSETS.contains(&label.offset()));
    }
    if let Some(newest) = Label::newest(bytes) {
        let places = LABEL_OFFSETS.iter().filter_map(|at| bytes.get(*at as usize..)?.get(..LABEL_LEN_BYTES));
        assert!(places.filter_map(Label::decode).any(|label| label == newest));
    }
}
