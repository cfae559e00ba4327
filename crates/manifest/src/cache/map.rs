//! The bytes of an object's map: which blocks of it are there, with what checksum. `docs/formats/manifest-cache.md` has the table.
//!
//! Nothing in a map is believed without its mark, a hash over the fact, its place and the map that it is in. So a record that a
//! kill or a power cut tore, one of another block and one of another map all read as "absent", and no order among writes is
//! needed, nor a sync.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::id::ObjectId;

/// Length of a header.
pub(super) const HEADER_LEN: usize = 64;
/// Length of the verdict on the whole object, which follows it.
const VERDICT_LEN: usize = 32;
/// Length of the record of a block.
pub(super) const RECORD_LEN: usize = 16;
/// Where the records begin. They are aligned, so that none lies in two sectors.
pub(super) const RECORDS_OFFSET: u64 = (HEADER_LEN + VERDICT_LEN) as u64;
/// Where the verdict is.
pub(super) const VERDICT_OFFSET: u64 = HEADER_LEN as u64;

/// Shortest and longest block.
pub(super) const BLOCK_LEN_MIN: u32 = 512;
pub(super) const BLOCK_LEN_MAX: u32 = 64 << 20;
/// Most blocks of an object: with blocks of 1 MiB, 16 TiB. What is larger is read without being kept.
pub(super) const BLOCKS_MAX: u64 = 1 << 24;

const MAGIC: [u8; 8] = *b"ADITCMAP";
const VERSION: u32 = 1;

/// What a map is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub id: ObjectId,
    /// A power of two, in bytes.
    pub block_len: u32,
    /// Names the file with the data.
    pub nonce: u64,
}

impl Header {
    /// `None` if no object can be kept so.
    pub fn new(id: ObjectId, block_len: u32, nonce: u64) -> Option<Header> {
        let fits = block_len.is_power_of_two() && (BLOCK_LEN_MIN..=BLOCK_LEN_MAX).contains(&block_len);
        let header = Header { id, block_len, nonce };
        (fits && header.blocks() <= BLOCKS_MAX).then_some(header)
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u64 {
        self.id.len.div_ceil(self.block_len.into())
    }

    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.block_len.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.id.len.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.id.hash.0);
        bytes[40..48].copy_from_slice(&self.nonce.to_le_bytes());
        let check = xxh3_64(&bytes[..56]);
        bytes[56..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// The header of a map of `id`; `None` if these bytes are not one.
    pub fn decode(bytes: &[u8], id: ObjectId) -> Option<Header> {
        let block_len = u32::from_le_bytes(*bytes.get(12..16)?.first_chunk()?);
        let nonce = u64::from_le_bytes(*bytes.get(40..48)?.first_chunk()?);
        let header = Header::new(id, block_len, nonce)?;
        (bytes == header.encode()).then_some(header)
    }

    /// What the marks of this map depend on.
    pub fn key(&self) -> u64 {
        xxh3_64_with_seed(&self.encode(), 1)
    }
}

/// Where the record of a block is.
pub(super) fn record_offset(block: u64) -> u64 {
    RECORDS_OFFSET + block * RECORD_LEN as u64
}

fn mark(key: u64, block: u64, sum: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
    bytes[8..].copy_from_slice(&block.to_le_bytes());
    xxh3_64_with_seed(&bytes, key)
}

/// The record of a block that is there.
pub(super) fn record(key: u64, block: u64, sum: u64) -> [u8; RECORD_LEN] {
    let mut bytes = [0; RECORD_LEN];
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
    bytes[8..].copy_from_slice(&mark(key, block, sum).to_le_bytes());
    bytes
}

/// The checksum of a block that is there.
pub(super) fn sum_in(key: u64, block: u64, record: &[u8]) -> Option<u64> {
    let (sum, its_mark) = (record.first_chunk()?, record.get(8..)?.first_chunk()?);
    let sum = u64::from_le_bytes(*sum);
    (mark(key, block, sum) == u64::from_le_bytes(*its_mark)).then_some(sum)
}

/// The verdict that an object, whose blocks' checksums together have this digest, has the content that its hash says.
pub(super) fn verdict(key: u64, digest: u128) -> [u8; VERDICT_LEN] {
    let mut bytes = [0; VERDICT_LEN];
    bytes[..16].copy_from_slice(&digest.to_le_bytes());
    let mark = xxh3_64_with_seed(&bytes[..24], key);
    bytes[24..].copy_from_slice(&mark.to_le_bytes());
    bytes
}

/// The digest of a verdict, if there is one.
pub(super) fn digest_in(key: u64, bytes: &[u8]) -> Option<u128> {
    let digest = u128::from_le_bytes(*bytes.first_chunk()?);
    (bytes == verdict(key, digest)).then_some(digest)
}

/// Length of a verdict in bytes.
pub(super) const fn verdict_len() -> usize {
    VERDICT_LEN
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::ContentHash;

    fn header() -> Header {
        Header::new(ObjectId { hash: ContentHash::of(b"x"), len: 5000 }, 1024, 7).unwrap()
    }

    #[test]
    fn each_part_reads_as_it_was_written() {
        let header = header();
        assert_eq!(header.blocks(), 5);
        assert_eq!(Header::decode(&header.encode(), header.id), Some(header));
        let key = header.key();
        assert_eq!(sum_in(key, 3, &record(key, 3, 99)), Some(99));
        assert_eq!(digest_in(key, &verdict(key, 1 << 100)), Some(1 << 100));
    }

    #[test]
    fn no_flipped_bit_is_believed() {
        let header = header();
        let key = header.key();
        let flipped = |bytes: &[u8], bit: usize| {
            let mut bytes = bytes.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        };
        for bit in 0..HEADER_LEN * 8 {
            assert_eq!(Header::decode(&flipped(&header.encode(), bit), header.id), None, "bit {bit}");
        }
        for bit in 0..RECORD_LEN * 8 {
            assert_eq!(sum_in(key, 3, &flipped(&record(key, 3, 99), bit)), None, "bit {bit}");
        }
        for bit in 0..VERDICT_LEN * 8 {
            assert_eq!(digest_in(key, &flipped(&verdict(key, 99), bit)), None, "bit {bit}");
        }
    }

    #[test]
    fn a_record_is_good_in_one_place_only() {
        let header = header();
        let key = header.key();
        let record = record(key, 3, 99);
        assert_eq!(sum_in(key, 4, &record), None);
        let other = Header { nonce: 8, ..header };
        assert_eq!(sum_in(other.key(), 3, &record), None);
        for len in 0..RECORD_LEN {
            let mut torn = record;
            torn[len..].fill(0);
            assert_eq!(sum_in(key, 3, &torn), None, "{len}");
            assert_eq!(sum_in(key, 3, &record[..len]), None, "{len}");
        }
    }

    #[test]
    fn absurd_headers_are_refused() {
        let id = header().id;
        for block_len in [0, 1, 256, 1000, 1 << 31] {
            assert_eq!(Header::new(id, block_len, 0), None, "{block_len}");
        }
        assert_eq!(Header::new(ObjectId { len: u64::MAX, ..id }, 1 << 20, 0), None);
        assert_eq!(Header::decode(&[], id), None);
        assert_eq!(Header::decode(&[0; HEADER_LEN], id), None);
        let other = ObjectId { len: id.len + 1, ..id };
        assert_eq!(Header::decode(&header().encode(), other), None);
    }
}
