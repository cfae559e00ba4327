//! What a volume is to be, how it is opened, and what it is.

use std::time::Duration;

use crate::format::container::{DataLocation, Durability};

/// What a new volume is to be.
#[derive(Clone, Copy, Debug)]
pub struct NewVolume {
    /// How long the file may become, in bytes; at least 4 MiB.
    pub capacity: u64,
    /// Length of a segment in bytes, a power of two from 128 KiB to 4 MiB; by default so that there are 256 at least.
    pub segment_len: Option<u32>,
    /// When its batches are safe from a power cut, unless a mount says otherwise.
    pub durability: Durability,
}

impl NewVolume {
    /// An ordinary one of `capacity` bytes.
    pub fn new(capacity: u64) -> NewVolume {
        NewVolume { capacity, segment_len: None, durability: Durability::default() }
    }
}

/// How to open a volume.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether to write nothing. What the log holds is then kept in memory.
    pub read_only: bool,
    /// Whether a thread syncs and makes checkpoints. Without it, whoever fills the log makes the checkpoint, and nobody
    /// syncs unasked.
    pub background: bool,
    /// When batches are safe from a power cut; by default as the volume says.
    pub durability: Option<Durability>,
    /// How long a batch may wait for its sync, with [`Durability::Fsync`].
    pub sync_interval: Duration,
    /// Memory for pages of the key-value store, in bytes.
    pub cache_bytes: usize,
    /// Log that a checkpoint is made at, in bytes; by default an eighth of the capacity, but not more than 32 MiB.
    pub log_bytes_max: Option<u64>,
    /// Memory for what the log holds that a checkpoint is made at, in bytes, of which there can be twice as much; by default a
    /// sixteenth of the capacity, but not more than 16 MiB.
    pub memory_bytes_max: Option<usize>,
    /// How many runs of segments the key-value store may be in before only deletes and the like are admitted; by default as many
    /// as a superblock can name.
    pub kv_runs_max: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            read_only: false,
            background: true,
            durability: None,
            sync_interval: Duration::from_secs(1),
            cache_bytes: 32 << 20,
            log_bytes_max: None,
            memory_bytes_max: None,
            kv_runs_max: None,
        }
    }
}

/// What a volume is.
#[derive(Clone, Debug)]
pub struct Info {
    /// Its identity.
    pub uuid: [u8; 16],
    /// A key for hashes that nobody outside shall be able to foretell.
    pub secret: [u8; 16],
    /// How long the file may become, in bytes.
    pub capacity: u64,
    /// Length of a segment in bytes.
    pub segment_len: u32,
    /// When batches are safe from a power cut, by default.
    pub durability: Durability,
    /// Where the blocks of files are.
    pub data: DataLocation,
    /// The path of the folder that they are in, if they are in one.
    pub data_path: Vec<u8>,
    /// How many times it was opened for writing.
    pub epoch: u64,
    /// Batches found in the log when it was opened: more than none after a crash.
    pub replayed: usize,
    /// Segments of the key-value store.
    pub kv_segments: u32,
}
