//! The seam between the tree above and the file below: an ordered table that crashes cannot tear, and a place for extents.
//!
//! Everything that the tree knows is in a [`Table`]; file content that is not inline is in [`Extents`]. One [`Batch`] is one
//! operation: after any crash the table is what some prefix of the batches made of it, and the blocks that those batches
//! allocated hold what was written to them before.

use std::ops::ControlFlow;
use std::sync::Arc;

use adit_core::Result;
use adit_core::types::XATTR_VALUE_LEN_MAX_BYTES;

mod background;
mod base;
mod checkpoint;
mod log;
mod memory;
mod options;
mod recovery;
mod room;

pub use crate::container::Folder;
pub use base::{Base, CAPACITY_MAX_BYTES, CAPACITY_MIN_BYTES, FindFolder, MakeFolder, NewFolder};
pub use options::{Info, NewVolume, Options};
pub use room::CapacityUsed;

/// Bytes in a block, the unit of extents.
pub const BLOCK_LEN_BYTES: usize = 4096;

/// Longest key, in bytes.
pub const KEY_LEN_MAX_BYTES: usize = 512;

/// Longest value, in bytes: an extended attribute, with what its record has besides.
pub const VALUE_LEN_MAX_BYTES: usize = XATTR_VALUE_LEN_MAX_BYTES + 64;

/// Longest value, in bytes, that needs no [`FEATURE_LONG`](crate::format::container::FEATURE_LONG).
pub const SHORT_VALUE_LEN_MAX_BYTES: usize = 8192;

/// Longest batch in the log, in bytes, that every volume takes.
pub const BATCH_LEN_LEAST_BYTES: usize = 256 << 10;

/// Longest batch in the log, in bytes, that any volume takes.
pub const BATCH_LEN_MOST_BYTES: usize = 8 << 20;

/// The first byte of keys that the base keeps for itself: batches may not write them, and scans leave them out.
pub const OWN_PREFIX: u8 = b'F';

/// A value, shared.
pub type Bytes = Arc<[u8]>;

/// What takes the entries of a scan: a key and its value. It may end it.
pub type Sink<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// The number of a batch: 1 for a volume's first, one more for each after it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Seq(pub u64);

/// Consecutive blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Run {
    /// The first one's number in the volume's data space.
    pub start: u64,
    /// How many, at least 1.
    pub count: u32,
}

impl Run {
    /// The number after the last block, at most `u64::MAX`.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(u64::from(self.count))
    }

    /// The numbers of its blocks.
    pub fn blocks(&self) -> std::ops::Range<u64> {
        self.start..self.end()
    }
}

/// What one operation changes, all or nothing.
#[derive(Clone, Default, Debug)]
pub struct Batch {
    /// Keys with their new values; `None` removes a key. Of several for one key the last counts.
    pub writes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Blocks that this batch makes part of the tree, with the CRC-32C of each. They were reserved, and written before.
    pub allocated: Vec<(Run, Vec<u32>)>,
    /// Blocks that nobody refers to any more once this batch is applied.
    pub freed: Vec<Run>,
    /// Whether it may use the space kept back for deletes, gc and the like. Others end with `NoSpace` before.
    pub uses_reserve: bool,
    /// Whether it takes something away from users although it may add a little: it may use one half of that space. The other
    /// half stays for what gives space back.
    pub takes_away: bool,
}

/// An ordered map from keys to values. All methods may be called from any thread at any time.
pub trait Table: Send + Sync {
    /// The value of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;

    /// The values of `keys`, in their order, all as of one moment.
    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>>;

    /// Hands out what is from `start` (inclusive) to `end` (exclusive), ascending, until `sink` breaks. It goes in stretches:
    /// the first 16 entries at least are as of one moment after the call began, later ones of later moments. The sink may
    /// call this table.
    fn scan(&self, start: &[u8], end: &[u8], sink: &mut Sink<'_>) -> Result<()>;

    /// Applies the batch as one. When this returns, a kill of the process loses nothing of it. Batches are ordered by their
    /// calls. `NoSpace`, `ReadOnly`, `InvalidInput` (a key or value too long, blocks that are not reserved or not
    /// allocated, more than [`Table::batch_len_max_bytes`]): nothing was changed.
    fn apply(&self, batch: Batch) -> Result<Seq>;

    /// How long a batch may be in the log, in bytes: from [`BATCH_LEN_LEAST_BYTES`] to [`BATCH_LEN_MOST_BYTES`].
    fn batch_len_max_bytes(&self) -> usize;

    /// Makes everything durable that was applied before, with the data written for it. After an error the table is
    /// read-only for good.
    fn sync(&self) -> Result<()>;

    /// Moves what the log holds into the key-value store, durably, and empties the log.
    fn checkpoint(&self) -> Result<()>;
}

/// Blocks of data: in the same file, in a folder, later in an object store.
pub trait Extents: Send + Sync {
    /// Takes `blocks` free blocks, as few runs as possible, near `hint`. They belong to nobody until a batch has them in
    /// `allocated`, and return with [`release`](Extents::release). `NoSpace` takes none. `uses_reserve` is for what takes away
    /// more than it adds, as in a [`Batch`]; a part of what is kept back stays for the batches themselves.
    fn reserve(&self, blocks: u32, hint: Option<u64>, uses_reserve: bool) -> Result<Vec<Run>>;

    /// Returns reserved blocks that no batch took.
    fn release(&self, runs: &[Run]);

    /// Writes whole blocks, the first of which is `block`. They are reserved.
    fn write(&self, block: u64, bytes: &[u8]) -> Result<()>;

    /// Reads whole blocks. Not verified here.
    fn read(&self, block: u64, buf: &mut [u8]) -> Result<()>;

    /// How much there is.
    fn space(&self) -> Space;

    /// How many bytes the host has room for besides what is there; `u64::MAX` where it does not say.
    fn host_room_bytes(&self) -> u64 {
        u64::MAX
    }
}

/// Which blocks belong to the tree: for who checks and mends that. Nobody else uses the volume meanwhile.
pub trait Allocation: Send + Sync {
    /// Behind the greatest number that a block can have now.
    fn end(&self) -> u64;

    /// The first stretch of blocks from `block` on that belong to the tree, or the part of it that is found at once.
    fn allocated_from(&self, block: u64) -> Option<Run>;

    /// Reserves this block, as [`Extents::reserve`] would. `false`: it is not free, or is not there.
    fn reserve_at(&self, block: u64) -> Result<bool>;

    /// Whether the block was reserved, and belongs to nobody yet. (Or was freed by a batch that is not durable yet.)
    fn is_reserved(&self, block: u64) -> bool;
}

/// Room, in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// The volume's capacity.
    pub total: u64,
    /// Not in use. Blocks freed by a batch that is not durable yet count.
    pub free: u64,
    /// Of the free ones, those kept back for deletes, gc and commits.
    pub reserved: u64,
}
