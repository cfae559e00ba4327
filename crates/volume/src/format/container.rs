//! The superblock: where everything else is. `docs/formats/volume.md` has the bytes.
//!
//! There are two slots; the valid one of the higher generation counts. [`Superblock::decode`] takes any bytes; what it
//! returns is consistent in itself, but says nothing of the rest of the file.

use std::fmt;

use super::Reader;

/// The first bytes of each slot, and so of the file.
pub const MAGIC: [u8; 8] = *b"ADITVOL1";
/// Where the two slots are, in bytes.
pub const SLOT_OFFSETS: [u64; 2] = [0, 64 << 10];
/// Room in a slot, in bytes.
pub const SLOT_LEN_BYTES: usize = 64 << 10;
/// The version of the format that this code writes, and the only one that it reads.
pub const FORMAT_VERSION: u32 = 1;
/// The feature of a volume that has, or had, batches in parts, or values of more than 8 KiB.
pub const FEATURE_LONG: u32 = 2;
/// Shortest segment, in bytes: two slots must fit in one.
pub const SEGMENT_LEN_MIN_BYTES: u32 = 128 << 10;
/// Longest segment, in bytes: the checksums of its pages must fit in one block.
pub const SEGMENT_LEN_MAX_BYTES: u32 = 4 << 20;
/// Most segments.
pub const SEGMENTS_MAX: u32 = u32::MAX / 2;
/// Most bytes of the key-value store's own header.
pub const KV_HEAD_LEN_MAX_BYTES: usize = 4096;

/// Longest path of the folder that holds the blocks of files, in bytes.
pub const DATA_PATH_LEN_MAX_BYTES: usize = 1024;

/// Bytes before the variable part.
const FIXED_LEN: usize = 128;

/// As many runs of segments as a slot has room for, whatever else is in it.
pub const KV_RUNS_MAX: usize = (SLOT_LEN_BYTES - FIXED_LEN - KV_HEAD_LEN_MAX_BYTES - DATA_PATH_LEN_MAX_BYTES - 4) / 8;

/// When a batch is safe from a power cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// Before its call returns.
    Sync,
    /// At the next sync, or within the volume's interval.
    #[default]
    Fsync,
}

/// Where the blocks of files are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DataLocation {
    /// In DATA segments of this file.
    #[default]
    Inline,
    /// Elsewhere: in a folder.
    External,
}

/// Consecutive segments of the key-value store's linear space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentRun {
    /// The first one's number in the file, or 0 for a stretch that has no segments and reads as zeros.
    pub start: u32,
    /// How many, at least 1.
    pub count: u32,
}

/// All that a slot says.
#[derive(Clone, PartialEq, Eq)]
pub struct Superblock {
    /// What a reader must know: [`FEATURE_LONG`], or nothing.
    pub features: u32,
    /// Counts up with each writing.
    pub generation: u64,
    /// Counts up with each opening for writing.
    pub epoch: u64,
    /// The volume's identity.
    pub uuid: [u8; 16],
    /// A key for hashes and checksums that nobody outside shall be able to foretell.
    pub secret: [u8; 16],
    /// Length of a segment in bytes, a power of two.
    pub segment_len: u32,
    /// How long the file may become, in bytes.
    pub capacity: u64,
    /// The default of the volume.
    pub durability: Durability,
    /// Where the blocks of files are.
    pub data: DataLocation,
    /// The folder that they are in, if they are in one: from the root, or from where the file lies.
    pub data_path: Vec<u8>,
    /// The segment in which the log begins.
    pub log_segment: u32,
    /// The number of the first record there.
    pub log_seq: u64,
    /// Length of the key-value store's linear space in bytes.
    pub kv_len: u64,
    /// The segments of that space, in order.
    pub kv_segments: Vec<SegmentRun>,
    /// The first page of that space, without the zeros at its end.
    pub kv_head: Vec<u8>,
}

// The secret is not for logs.
impl fmt::Debug for Superblock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Superblock")
            .field("generation", &self.generation)
            .field("epoch", &self.epoch)
            .field("segment_len", &self.segment_len)
            .field("capacity", &self.capacity)
            .field("log", &(self.log_segment, self.log_seq))
            .field("kv_len", &self.kv_len)
            .field("kv_segments", &self.kv_segments)
            .finish_non_exhaustive()
    }
}

/// Why bytes are no superblock of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SuperblockError {
    /// They do not begin as one.
    NotAVolume,
    /// They were one, or a part of one.
    Damaged,
    /// Written by a later version of adit.
    Version(u32),
    /// It uses features that this version does not know.
    Features(u32),
}

impl fmt::Display for SuperblockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SuperblockError::NotAVolume => f.write_str("not a volume"),
            SuperblockError::Damaged => f.write_str("the superblock is damaged"),
            SuperblockError::Version(v) => write!(f, "format version {v}, which this version of adit does not know"),
            SuperblockError::Features(bits) => {
                write!(f, "features {bits:#x}, which this version of adit does not know")
            }
        }
    }
}

impl std::error::Error for SuperblockError {}

impl Superblock {
    /// The bytes of a slot, or `None` if they would not fit in one.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let len = FIXED_LEN + 8 * self.kv_segments.len() + self.kv_head.len() + self.data_path.len() + 4;
        let has_room = self.kv_head.len() <= KV_HEAD_LEN_MAX_BYTES && self.data_path.len() <= DATA_PATH_LEN_MAX_BYTES;
        if len > SLOT_LEN_BYTES || !has_room {
            return None;
        }
        let mut out = Vec::with_capacity(len);
        out.extend(MAGIC);
        out.extend(FORMAT_VERSION.to_le_bytes());
        out.extend(self.features.to_le_bytes());
        out.extend((len as u32).to_le_bytes());
        out.extend(self.segment_len.to_le_bytes());
        out.extend(self.uuid);
        out.extend(self.secret);
        out.extend(self.generation.to_le_bytes());
        out.extend(self.epoch.to_le_bytes());
        out.extend(self.capacity.to_le_bytes());
        out.push(self.durability as u8);
        out.push(self.data as u8);
        out.extend([0; 2]);
        out.extend(self.log_segment.to_le_bytes());
        out.extend(self.log_seq.to_le_bytes());
        out.extend(self.kv_len.to_le_bytes());
        out.extend((self.kv_segments.len() as u32).to_le_bytes());
        out.extend((self.kv_head.len() as u32).to_le_bytes());
        out.extend((self.data_path.len() as u32).to_le_bytes());
        out.resize(FIXED_LEN, 0);
        for run in &self.kv_segments {
            out.extend(run.start.to_le_bytes());
            out.extend(run.count.to_le_bytes());
        }
        out.extend(&self.kv_head);
        out.extend(&self.data_path);
        out.extend(crc32c::crc32c(&out).to_le_bytes());
        Some(out)
    }

    /// What a slot says. `bytes` may go on behind it.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, SuperblockError> {
        let mut head = Reader(bytes);
        if head.array() != Some(MAGIC) {
            return Err(SuperblockError::NotAVolume);
        }
        let damaged = SuperblockError::Damaged;
        let version = head.u32().ok_or(damaged)?;
        let features = head.u32().ok_or(damaged)?;
        let len = head.u32().ok_or(damaged)? as usize;
        // The length and the checksum at that end stay where they are in all versions, so that damage is told from news.
        let content = bytes.get(..len).filter(|_| len <= SLOT_LEN_BYTES).ok_or(damaged)?;
        let (content, sum) = content.split_last_chunk::<4>().ok_or(damaged)?;
        if crc32c::crc32c(content) != u32::from_le_bytes(*sum) {
            return Err(damaged);
        }
        match (version, features) {
            (FORMAT_VERSION, 0 | FEATURE_LONG) => Superblock::fields(features, content).ok_or(damaged),
            (FORMAT_VERSION, _) => Err(SuperblockError::Features(features)),
            _ => Err(SuperblockError::Version(version)),
        }
    }

    fn fields(features: u32, content: &[u8]) -> Option<Superblock> {
        let (fixed, rest) = content.split_at_checked(FIXED_LEN)?;
        let mut fixed = Reader(fixed.get(20..)?);
        let mut superblock = Superblock {
            features,
            segment_len: fixed.u32()?,
            uuid: fixed.array()?,
            secret: fixed.array()?,
            generation: fixed.u64()?,
            epoch: fixed.u64()?,
            capacity: fixed.u64()?,
            durability: match fixed.u8()? {
                0 => Durability::Sync,
                1 => Durability::Fsync,
                _ => return None,
            },
            data: match fixed.u8()? {
                0 => DataLocation::Inline,
                1 => DataLocation::External,
                _ => return None,
            },
            data_path: Vec::new(),
            log_segment: {
                fixed.u16()?;
                fixed.u32()?
            },
            log_seq: fixed.u64()?,
            kv_len: fixed.u64()?,
            kv_segments: Vec::new(),
            kv_head: Vec::new(),
        };
        let (runs, head_len, path_len) = (fixed.u32()? as usize, fixed.u32()? as usize, fixed.u32()? as usize);
        let mut rest = Reader(rest);
        let mut runs = Reader(rest.take(runs.checked_mul(8)?)?);
        while let Some(start) = runs.u32() {
            superblock.kv_segments.push(SegmentRun { start, count: runs.u32()? });
        }
        superblock.kv_head = rest.take(head_len)?.to_vec();
        superblock.data_path = rest.take(path_len)?.to_vec();
        (rest.0.is_empty() && superblock.is_consistent()).then_some(superblock)
    }

    fn is_consistent(&self) -> bool {
        let segments = self.capacity / u64::from(self.segment_len.max(1));
        let counts = self.kv_segments.iter().all(|run| {
            // Holes are as long as the space needs, which nothing else bounds.
            run.count > 0 && run.start.checked_add(run.count).is_some()
        });
        counts
            && self.segment_len.is_power_of_two()
            && (SEGMENT_LEN_MIN_BYTES..=SEGMENT_LEN_MAX_BYTES).contains(&self.segment_len)
            && (1..=u64::from(SEGMENTS_MAX)).contains(&segments)
            && self.log_segment > 0
            // Far enough from the end of the numbers that none is ever met.
            && (1..=u64::MAX / 2).contains(&self.log_seq)
            && self.kv_head.len() <= KV_HEAD_LEN_MAX_BYTES
            && self.data_path.len() <= DATA_PATH_LEN_MAX_BYTES
            && self.data_path.is_empty() == (self.data == DataLocation::Inline)
    }
}

/// The newer of what the two slots say.
///
/// # Errors
/// That of the slot that tells more, if neither counts.
pub fn newest(slots: [Result<Superblock, SuperblockError>; 2]) -> Result<Superblock, SuperblockError> {
    match slots {
        [Ok(a), Ok(b)] => Ok(if b.generation > a.generation { b } else { a }),
        // A valid slot of a later version is news, whatever the other one says.
        [Err(e @ (SuperblockError::Version(_) | SuperblockError::Features(_))), _]
        | [_, Err(e @ (SuperblockError::Version(_) | SuperblockError::Features(_)))] => Err(e),
        [Ok(one), Err(_)] | [Err(_), Ok(one)] => Ok(one),
        [Err(SuperblockError::NotAVolume), Err(SuperblockError::NotAVolume)] => Err(SuperblockError::NotAVolume),
        _ => Err(SuperblockError::Damaged),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_testkit::{Rng, seeds};

    fn some(rng: &mut Rng) -> Superblock {
        let mut superblock = Superblock {
            features: *rng.pick(&[0, FEATURE_LONG]),
            generation: rng.next_u64(),
            epoch: rng.next_u64(),
            uuid: [0; 16],
            secret: [0; 16],
            segment_len: 1 << (17 + rng.below(6)),
            capacity: 1 << 40,
            durability: *rng.pick(&[Durability::Sync, Durability::Fsync]),
            data: DataLocation::Inline,
            data_path: Vec::new(),
            log_segment: 1 + rng.below(100) as u32,
            log_seq: 1 + rng.below(1000),
            kv_len: rng.next_u64(),
            kv_segments: Vec::new(),
            kv_head: vec![7; rng.below(KV_HEAD_LEN_MAX_BYTES as u64 + 1) as usize],
        };
        if rng.percent(50) {
            superblock.data = DataLocation::External;
            superblock.data_path = vec![b'x'; 1 + rng.below(DATA_PATH_LEN_MAX_BYTES as u64) as usize];
        }
        rng.fill(&mut superblock.uuid);
        rng.fill(&mut superblock.secret);
        for _ in 0..rng.below(100) {
            superblock.kv_segments.push(SegmentRun { start: rng.below(99) as u32, count: 1 + rng.below(9) as u32 });
        }
        superblock
    }

    #[test]
    fn round_trips_and_every_flipped_bit_is_found() {
        for seed in seeds(10) {
            let mut rng = Rng::new(seed);
            let superblock = some(&mut rng);
            let mut bytes = superblock.encode().unwrap();
            let len = bytes.len();
            bytes.resize(len + 100, 0xee);
            assert_eq!(Superblock::decode(&bytes), Ok(superblock), "ADIT_TEST_SEED={seed}");
            for bit in 0..len * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(Superblock::decode(&bytes).is_err(), "bit {bit}, ADIT_TEST_SEED={seed}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        for seed in seeds(200) {
            let mut rng = Rng::new(seed);
            let mut bytes = some(&mut rng).encode().unwrap();
            let len = bytes.len();
            for _ in 0..rng.below(8) {
                bytes[rng.below(len as u64) as usize] = rng.next_u64() as u8;
            }
            // Also what checks, so that the fields are looked at.
            if rng.percent(80) {
                let sum = crc32c::crc32c(&bytes[..len - 4]);
                bytes[len - 4..].copy_from_slice(&sum.to_le_bytes());
            }
            let cut = if rng.percent(50) { len } else { rng.below(len as u64) as usize };
            let _ = Superblock::decode(&bytes[..cut]);
        }
    }

    #[test]
    fn a_superblock_that_does_not_fit_is_not_made() {
        let mut superblock = some(&mut Rng::new(1));
        superblock.kv_segments = vec![SegmentRun { start: 1, count: 1 }; SLOT_LEN_BYTES / 8];
        assert_eq!(superblock.encode(), None);
        superblock.kv_segments.truncate(KV_RUNS_MAX);
        superblock.kv_head.resize(KV_HEAD_LEN_MAX_BYTES, 1);
        superblock.data = DataLocation::External;
        superblock.data_path.resize(DATA_PATH_LEN_MAX_BYTES, b'x');
        assert!(superblock.encode().is_some_and(|bytes| bytes.len() <= SLOT_LEN_BYTES));
    }

    #[test]
    fn news_is_told_from_damage() {
        let superblock = some(&mut Rng::new(2));
        let mut bytes = superblock.encode().unwrap();
        bytes[8] = 2;
        assert_eq!(Superblock::decode(&bytes), Err(SuperblockError::Damaged));
        let len = bytes.len();
        let sum = crc32c::crc32c(&bytes[..len - 4]);
        bytes[len - 4..].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(Superblock::decode(&bytes), Err(SuperblockError::Version(2)));
        assert_eq!(Superblock::decode(b"PK"), Err(SuperblockError::NotAVolume));
        let newer = Superblock { generation: 9, ..superblock.clone() };
        let older = Superblock { generation: 8, ..superblock };
        assert_eq!(newest([Ok(older.clone()), Ok(newer.clone())]), Ok(newer));
        assert_eq!(newest([Err(SuperblockError::Damaged), Ok(older.clone())]), Ok(older.clone()));
        let later = Err(SuperblockError::Version(2));
        assert_eq!(newest([Ok(older), later.clone()]), later, "not to be written over");
    }

    /// The worked example of docs/formats/volume.md.
    #[test]
    fn the_worked_example() {
        let superblock = Superblock {
            features: 0,
            generation: 3,
            epoch: 2,
            uuid: *b"0123456789abcdef",
            secret: *b"ABCDEFGHIJKLMNOP",
            segment_len: 4 << 20,
            capacity: 1 << 30,
            durability: Durability::Fsync,
            data: DataLocation::Inline,
            data_path: Vec::new(),
            log_segment: 5,
            log_seq: 42,
            kv_len: 8 << 20,
            kv_segments: vec![SegmentRun { start: 2, count: 2 }, SegmentRun { start: 0, count: 1 }],
            kv_head: b"redb".to_vec(),
        };
        let bytes = superblock.encode().unwrap();
        assert_eq!(bytes.len(), 152);
        assert_eq!(bytes[..24], *b"ADITVOL1\x01\0\0\0\0\0\0\0\x98\0\0\0\0\0\x40\0");
        assert_eq!(bytes[72..88], *b"\0\0\0\x40\0\0\0\0\x01\0\0\0\x05\0\0\0");
        assert_eq!(bytes[128..148], *b"\x02\0\0\0\x02\0\0\0\0\0\0\0\x01\0\0\0redb");
    }
}
