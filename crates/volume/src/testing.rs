//! The seam in memory: a table and extents without files, for tests of what is above.
//!
//! [`MemBase`] is stricter than the real one: it panics where the tree breaks a rule of the seam (writes a block that was
//! not reserved, allocates one that was not, frees one twice, names a wrong checksum), and takes no batch that the smallest
//! volume would not.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use adit_core::{ErrorKind, FsError, Result};
use parking_lot::Mutex;

use crate::format::log;
use crate::table::{
    Allocation, BATCH_LEN_LEAST_BYTES, BLOCK_LEN_BYTES, Batch, Bytes, Extents, KEY_LEN_MAX_BYTES, Run,
    SHORT_VALUE_LEN_MAX_BYTES, Seq, Sink, Space, Table, VALUE_LEN_MAX_BYTES,
};

/// Longest record of a batch without values of more than 8 KiB, in bytes: what the smallest segment of a log takes beside the record
/// that leads to the next. Others are appended in parts.
pub const RECORD_LEN_MAX_BYTES: usize = (128 << 10) - 64;

/// Entries of a scan that are as of one moment.
const SCAN_AT_ONCE: usize = 16;

/// All that a [`MemBase`] holds.
#[derive(Clone, Default)]
pub struct MemState {
    /// Keys and values.
    pub map: BTreeMap<Vec<u8>, Bytes>,
    /// Blocks that were ever written.
    pub blocks: BTreeMap<u64, Box<[u8]>>,
    /// Blocks that belong to the tree.
    pub allocated: BTreeSet<u64>,
    /// Blocks that were reserved and belong to nobody yet.
    pub reserved: BTreeSet<u64>,
    /// Blocks freed since the last sync: not to be reused before the next one.
    pub freed: BTreeSet<u64>,
    /// Batches so far.
    pub seq: u64,
    /// Keys read so far, by gets and scans.
    pub keys_read: u64,
    /// Syncs so far.
    pub syncs: u64,
}

/// A [`Table`] and [`Extents`] in memory.
pub struct MemBase {
    state: Mutex<MemState>,
    total: u64,
    kept_back: u64,
}

impl MemBase {
    /// An empty one of `blocks` blocks, a hundredth of which is kept back.
    pub fn new(blocks: u64) -> Self {
        MemBase { state: Mutex::default(), total: blocks, kept_back: blocks / 100 }
    }

    /// A copy of all it holds.
    pub fn state(&self) -> MemState {
        self.state.lock().clone()
    }

    /// Goes back to `state`, as after a crash: what was reserved is free again.
    pub fn restore(&self, state: MemState) {
        let reserved = BTreeSet::new();
        *self.state.lock() = MemState { reserved, ..state };
    }

    /// A new one with that content, as if reopened.
    pub fn reopen(&self) -> MemBase {
        let other = MemBase { state: Mutex::default(), total: self.total, kept_back: self.kept_back };
        other.restore(self.state());
        other
    }
}

fn check_lengths(batch: &Batch) -> Result<()> {
    for (key, value) in &batch.writes {
        let value_len = value.as_ref().map_or(0, Vec::len);
        if key.is_empty() || key.len() > KEY_LEN_MAX_BYTES || value_len > VALUE_LEN_MAX_BYTES {
            return Err(FsError::new(ErrorKind::InvalidInput).on("apply", format!("a key of {} bytes", key.len())));
        }
    }
    let has_long = batch.writes.iter().flat_map(|(_, value)| value).any(|v| v.len() > SHORT_VALUE_LEN_MAX_BYTES);
    let len_max = if has_long { BATCH_LEN_LEAST_BYTES } else { RECORD_LEN_MAX_BYTES };
    let len = log::Draft::new(batch).record_len();
    if len > len_max {
        return Err(FsError::new(ErrorKind::InvalidInput).on("apply", format!("a batch of {len} bytes")));
    }
    Ok(())
}

impl Table for MemBase {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let mut state = self.state.lock();
        state.keys_read += 1;
        Ok(state.map.get(key).cloned())
    }

    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        let mut state = self.state.lock();
        state.keys_read += keys.len() as u64;
        Ok(keys.iter().map(|key| state.map.get(*key).cloned()).collect())
    }

    fn scan(&self, start: &[u8], end: &[u8], sink: &mut Sink<'_>) -> Result<()> {
        if start >= end {
            return Ok(());
        }
        let mut from = Bound::Included(start.to_vec());
        loop {
            // Copied out in stretches, so that the sink may call this table.
            let range = (from, Bound::Excluded(end.to_vec()));
            let found: Vec<(Vec<u8>, Bytes)> = {
                let state = self.state.lock();
                state.map.range::<Vec<u8>, _>(range).take(SCAN_AT_ONCE).map(|(k, v)| (k.clone(), v.clone())).collect()
            };
            for (key, value) in &found {
                self.state.lock().keys_read += 1;
                if sink(key, value).is_break() {
                    return Ok(());
                }
            }
            match found.into_iter().nth(SCAN_AT_ONCE - 1) {
                Some((last, _)) => from = Bound::Excluded(last),
                None => return Ok(()),
            }
        }
    }

    fn batch_len_max_bytes(&self) -> usize {
        BATCH_LEN_LEAST_BYTES
    }

    fn apply(&self, batch: Batch) -> Result<Seq> {
        check_lengths(&batch)?;
        let state = &mut *self.state.lock();
        for (run, sums) in &batch.allocated {
            assert_eq!(run.count as usize, sums.len(), "a checksum for each block of {run:?}");
            for (block, sum) in run.blocks().zip(sums) {
                assert!(state.reserved.remove(&block), "block {block} was not reserved");
                let bytes = state.blocks.get(&block).expect("an allocated block was written");
                assert_eq!(crc32c::crc32c(bytes), *sum, "checksum of block {block}");
                state.allocated.insert(block);
            }
        }
        for block in batch.freed.iter().flat_map(Run::blocks) {
            assert!(state.allocated.remove(&block), "block {block} was not allocated");
            state.freed.insert(block);
        }
        for (key, value) in batch.writes {
            match value {
                Some(value) => state.map.insert(key, value.into()),
                None => state.map.remove(&key),
            };
        }
        state.seq += 1;
        Ok(Seq(state.seq))
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.syncs += 1;
        for block in std::mem::take(&mut state.freed) {
            state.blocks.remove(&block);
        }
        Ok(())
    }

    fn checkpoint(&self) -> Result<()> {
        self.sync()
    }
}

impl Extents for MemBase {
    fn reserve(&self, blocks: u32, hint: Option<u64>, uses_reserve: bool) -> Result<Vec<Run>> {
        let kept_back = if uses_reserve { self.kept_back.div_ceil(2) } else { self.kept_back };
        let state = &mut *self.state.lock();
        let used = |state: &MemState| (state.allocated.len() + state.reserved.len() + state.freed.len()) as u64;
        if used(state) + u64::from(blocks) + kept_back > self.total {
            state.freed.clear(); // As if it had synced to get room.
            if used(state) + u64::from(blocks) + kept_back > self.total {
                return Err(ErrorKind::NoSpace.into());
            }
        }
        let from = hint.filter(|&hint| hint < self.total).unwrap_or(0);
        let mut runs: Vec<Run> = Vec::new();
        let mut left = blocks;
        for block in (from..self.total).chain(0..from) {
            if left == 0 {
                break;
            }
            if state.allocated.contains(&block) || state.freed.contains(&block) || !state.reserved.insert(block) {
                continue;
            }
            left -= 1;
            match runs.last_mut() {
                Some(last) if last.end() == block => last.count += 1,
                _ => runs.push(Run { start: block, count: 1 }),
            }
        }
        Ok(runs)
    }

    fn release(&self, runs: &[Run]) {
        let mut state = self.state.lock();
        for block in runs.iter().flat_map(Run::blocks) {
            assert!(state.reserved.remove(&block), "block {block} was not reserved");
        }
    }

    fn write(&self, block: u64, bytes: &[u8]) -> Result<()> {
        assert_eq!(bytes.len() % BLOCK_LEN_BYTES, 0, "whole blocks");
        let mut state = self.state.lock();
        for (block, bytes) in (block..).zip(bytes.chunks(BLOCK_LEN_BYTES)) {
            assert!(state.reserved.contains(&block), "block {block} was not reserved");
            state.blocks.insert(block, bytes.into());
        }
        Ok(())
    }

    fn read(&self, block: u64, buf: &mut [u8]) -> Result<()> {
        assert_eq!(buf.len() % BLOCK_LEN_BYTES, 0, "whole blocks");
        let state = self.state.lock();
        for (block, buf) in (block..).zip(buf.chunks_mut(BLOCK_LEN_BYTES)) {
            match state.blocks.get(&block) {
                Some(bytes) => buf.copy_from_slice(bytes),
                None => buf.fill(0),
            }
        }
        Ok(())
    }

    fn space(&self) -> Space {
        let state = self.state.lock();
        let used = (state.allocated.len() + state.reserved.len()) as u64;
        Space { total: self.total, free: self.total - used, reserved: self.kept_back }
    }
}

impl Allocation for MemBase {
    fn end(&self) -> u64 {
        self.total
    }

    fn allocated_from(&self, block: u64) -> Option<Run> {
        let state = self.state.lock();
        let start = *state.allocated.range(block..).next()?;
        let count = state.allocated.range(start..).zip(start..).take_while(|(there, at)| *there == at).count();
        Some(Run { start, count: count as u32 })
    }

    fn reserve_at(&self, block: u64) -> Result<bool> {
        let state = &mut *self.state.lock();
        let is_free = block < self.total && !state.allocated.contains(&block) && !state.freed.contains(&block);
        Ok(is_free && state.reserved.insert(block))
    }

    fn is_reserved(&self, block: u64) -> bool {
        self.state.lock().reserved.contains(&block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_takes_what_was_reserved_and_frees_it_for_after_the_sync() {
        let base = MemBase::new(200);
        let runs = base.reserve(3, Some(10), false).unwrap();
        assert_eq!(runs, [Run { start: 10, count: 3 }]);
        let bytes = vec![7; 3 * BLOCK_LEN_BYTES];
        base.write(10, &bytes).unwrap();
        let sum = crc32c::crc32c(&bytes[..BLOCK_LEN_BYTES]);
        let before = base.state();
        base.apply(Batch {
            writes: vec![(b"a".to_vec(), Some(b"1".to_vec()))],
            allocated: vec![(runs[0], vec![sum; 3])],
            ..Batch::default()
        })
        .unwrap();
        base.apply(Batch { freed: runs, ..Batch::default() }).unwrap();
        assert_eq!(base.reserve(1, Some(10), false).unwrap(), [Run { start: 13, count: 1 }]);
        base.sync().unwrap();
        assert_eq!(base.reserve(1, Some(10), false).unwrap(), [Run { start: 10, count: 1 }]);
        assert_eq!(base.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
        base.restore(before);
        assert_eq!((base.get(b"a").unwrap(), base.state().reserved.len()), (None, 0));
    }
}
