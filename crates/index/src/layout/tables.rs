//! The tables that make lookups of whole paths fast, as pure functions between bytes and values. All of it follows from the
//! columns, so a reader may ignore it. A hash is never taken for a path: what a table finds is compared byte by byte.
//!
//! `docs/formats/index.md` has the bytes, `docs/decisions/0028-path-table.md` why they are so.

use xxhash_rust::xxh3::xxh3_64;

/// Slots of a bucket. With a tag and a number each they fill a line of the processor's caches.
pub const BUCKET_SLOTS: usize = 8;
/// Bytes of a bucket.
pub const BUCKET_LEN_BYTES: usize = 64;
/// A path is in its own bucket or in one of those behind it: this many are looked at in all.
pub const PROBE_MAX: usize = 16;
/// So many paths come to a bucket: three in four slots are taken.
const BUCKET_LOAD: u64 = 6;
/// The number of no node.
pub const EMPTY: u32 = u32::MAX;
/// So many nodes share a [`Rank`].
pub const RANK_NODES: u32 = 64;
/// Bytes of a [`Rank`].
pub const RANK_LEN_BYTES: usize = 16;
/// A directory has its path in a stretch of its own if that, and its position, take at most so many bytes for each child.
const STORED_PATH_BYTES_A_CHILD: u64 = 4;

/// The hash of a path below the root, without a slash in front: XXH3-64.
#[inline]
pub fn path_hash(path: &[u8]) -> u64 {
    xxh3_64(path)
}

/// How many buckets are somebody's own, in a segment of so many nodes: the root is in none.
#[inline]
pub fn home_buckets(nodes: u32) -> u32 {
    u64::from(nodes.saturating_sub(1)).div_ceil(BUCKET_LOAD).max(1) as u32
}

/// How many buckets there are: the last ones only take what is too much for those before.
#[inline]
pub fn bucket_count(nodes: u32) -> u32 {
    home_buckets(nodes) + (PROBE_MAX as u32 - 1)
}

/// Length of the section in bytes.
pub fn buckets_len(nodes: u32) -> u64 {
    u64::from(bucket_count(nodes)) * BUCKET_LEN_BYTES as u64
}

/// Which bucket is a path's own, of so many. Rises with the hash.
#[inline]
pub fn home(hash: u64, home_buckets: u32) -> u32 {
    (((hash >> 32) * u64::from(home_buckets)) >> 32) as u32
}

/// What is kept of a path's hash in its slot: what its bucket does not tell.
#[inline]
pub fn tag(hash: u64) -> u32 {
    hash as u32
}

/// The bytes of a bucket: the tags of its slots, then their nodes, [`EMPTY`] where there is none. Slots are filled from the
/// first on; the tag of an empty one is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bucket<'a>(pub &'a [u8; BUCKET_LEN_BYTES]);

impl Bucket<'_> {
    /// The bytes of one with these tags and nodes.
    pub fn encode(tags: &[u32; BUCKET_SLOTS], nodes: &[u32; BUCKET_SLOTS]) -> [u8; BUCKET_LEN_BYTES] {
        let mut bytes = [0; BUCKET_LEN_BYTES];
        for (place, number) in bytes.as_chunks_mut().0.iter_mut().zip(tags.iter().chain(nodes)) {
            *place = number.to_le_bytes();
        }
        bytes
    }

    #[inline]
    fn numbers(&self) -> &[[u8; 4]; 2 * BUCKET_SLOTS] {
        self.0.as_chunks().0.try_into().expect("64 bytes are 16 numbers")
    }

    /// A bit for each slot that has this tag. Empty ones may be among them.
    #[inline]
    pub fn matches(&self, tag: u32) -> u32 {
        let tags = self.numbers();
        let tag = tag.to_le_bytes();
        let mut found = 0;
        for (slot, other) in tags.iter().take(BUCKET_SLOTS).enumerate() {
            found |= u32::from(*other == tag) << slot;
        }
        found
    }

    /// The node in a slot, one of [`BUCKET_SLOTS`].
    #[inline]
    pub fn node(&self, slot: u32) -> u32 {
        u32::from_le_bytes(self.numbers()[BUCKET_SLOTS + slot as usize % BUCKET_SLOTS])
    }

    /// Whether a path that is not in it may be in the next one.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.node(BUCKET_SLOTS as u32 - 1) != EMPTY
    }
}

/// Which of 64 nodes have their path in a stretch of its own, and how many before them have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rank {
    /// A bit for each node, the first one the lowest.
    pub bits: u64,
    /// How many there are before these nodes.
    pub before: u32,
}

impl Rank {
    /// Of its bytes.
    #[inline]
    pub fn decode(bytes: &[u8; RANK_LEN_BYTES]) -> Rank {
        let word = u128::from_le_bytes(*bytes);
        Rank { bits: word as u64, before: (word >> 64) as u32 }
    }

    /// Its bytes; the last four are zeros.
    pub fn encode(&self) -> [u8; RANK_LEN_BYTES] {
        (u128::from(self.bits) | u128::from(self.before) << 64).to_le_bytes()
    }

    /// Which one a node's path is, if it is there.
    #[inline]
    pub fn of(&self, node: u32) -> Option<u32> {
        let bit = 1_u64 << (node % RANK_NODES);
        (self.bits & bit != 0).then(|| self.before.wrapping_add((self.bits & (bit - 1)).count_ones()))
    }
}

/// Length of the ranks in bytes.
pub fn ranks_len(nodes: u32) -> u64 {
    u64::from(nodes.div_ceil(RANK_NODES)) * RANK_LEN_BYTES as u64
}

/// Whether a directory with such a path and so many children has its path in a stretch of its own. Its children pay for it,
/// so all of them together take [`STORED_PATH_BYTES_A_CHILD`] bytes a node at most.
pub fn is_path_stored(path_len: usize, children: u32) -> bool {
    path_len > 0 && path_len as u64 + 8 <= STORED_PATH_BYTES_A_CHILD * u64::from(children)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_its_bytes_and_rises_with_the_hash() {
        let (mut tags, mut nodes) = ([0; BUCKET_SLOTS], [EMPTY; BUCKET_SLOTS]);
        (tags[0], nodes[0]) = (0x0102_0304, 7);
        (tags[1], nodes[1]) = (0x0102_0304, 9);
        let bytes = Bucket::encode(&tags, &nodes);
        assert_eq!(bytes[..8], [4, 3, 2, 1, 4, 3, 2, 1]);
        assert_eq!(bytes[32..44], [7, 0, 0, 0, 9, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        let bucket = Bucket(&bytes);
        assert_eq!((bucket.matches(0x0102_0304), bucket.matches(1), bucket.is_full()), (0b11, 0, false));
        assert_eq!([0, 1, 2].map(|slot| bucket.node(slot)), [7, 9, EMPTY]);
        assert_eq!((home(0, 10), home(u64::MAX, 10), home(u64::MAX / 2, 10)), (0, 9, 4));
        assert_eq!((home_buckets(1), home_buckets(7), home_buckets(8), bucket_count(8)), (1, 1, 2, 17));
        assert_eq!(home_buckets(u32::MAX - 1), 715_827_883);
    }

    #[test]
    fn a_rank_counts_what_is_before() {
        let rank = Rank { bits: 0b1011, before: 5 };
        assert_eq!(Rank::decode(&rank.encode()), rank);
        assert_eq!([0, 1, 2, 3, 64].map(|node| rank.of(node)), [Some(5), Some(6), None, Some(7), Some(5)]);
    }

    #[test]
    fn children_pay_for_the_path_of_their_directory() {
        assert!(is_path_stored(4, 3) && !is_path_stored(5, 3) && !is_path_stored(0, 9) && !is_path_stored(1, 2));
    }

    #[test]
    fn the_hash_is_that_of_the_specification() {
        // XXH3_64bits of the empty input with seed 0, as the specification's reference has it.
        assert_eq!(path_hash(b""), 0x2d06_8005_38d3_94c2);
    }
}
