//! A [`Base`] as the table and the extents of a volume.

use std::sync::atomic::Ordering;

use adit_core::{ErrorKind, FsError, Result};

use super::Base;
use crate::table::room::CAPACITY_USED;
use crate::table::{BLOCK_LEN_BYTES, Batch, Bytes, Extents, Run, Seq, Sink, Space, Table};

impl Table for Base {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.shared.read(|| {
            let tables = self.shared.tables.read();
            if let Some(known) = tables.get(key) {
                return Ok(known.clone());
            }
            let view = tables.view.clone();
            drop(tables);
            let values = view.get_many(&[key]).map_err(|e| (view, e));
            Ok(values?.pop().flatten())
        })
    }

    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        // As of one moment: after an error all of it is looked up again.
        self.shared.read(|| {
            let tables = self.shared.tables.read();
            let known: Vec<Option<Option<Bytes>>> = keys.iter().map(|key| tables.get(key).cloned()).collect();
            let view = tables.view.clone();
            drop(tables);
            let unknown = keys.iter().zip(&known).filter(|(_, known)| known.is_none());
            let unknown: Vec<&[u8]> = unknown.map(|(key, _)| *key).collect();
            let stored = if unknown.is_empty() { Ok(Vec::new()) } else { view.get_many(&unknown) };
            let mut stored = stored.map_err(|e| (view, e))?.into_iter();
            Ok(known.into_iter().map(|known| known.unwrap_or_else(|| stored.next().flatten())).collect())
        })
    }

    fn scan(&self, start: &[u8], end: &[u8], sink: &mut Sink<'_>) -> Result<()> {
        const STRETCH_MIN: usize = 16;
        const STRETCH_MAX: usize = 1024;
        let (mut start, mut limit) = (start.to_vec(), STRETCH_MIN);
        while start.as_slice() < end {
            let stretch = self.shared.read(|| {
                let part = self.shared.tables.read().stretch(&start, end, limit);
                let view = part.view.clone();
                part.merge(&start, end, limit).map_err(|e| (view, e))
            })?;
            for (key, value) in &stretch.entries {
                if sink(key, value).is_break() {
                    return Ok(());
                }
            }
            let Some(next) = stretch.next else { return Ok(()) };
            (start, limit) = (next, (2 * limit).min(STRETCH_MAX));
        }
        Ok(())
    }

    fn apply(&self, batch: Batch) -> Result<Seq> {
        self.shared.apply(batch)
    }

    fn batch_len_max_bytes(&self) -> usize {
        self.shared.batch_len_max
    }

    fn sync(&self) -> Result<()> {
        self.shared.container.sync_up_to(self.shared.container.appended())
    }

    fn checkpoint(&self) -> Result<()> {
        self.shared.checkpoint()
    }
}

impl Extents for Base {
    fn reserve(&self, blocks: u32, hint: Option<u64>, uses_reserve: bool) -> Result<Vec<Run>> {
        let container = &self.shared.container;
        container.check_writable()?;
        let try_now = || {
            let durable = container.durable();
            let mut space = container.space();
            space.settle(durable);
            space.reserve(blocks, hint, uses_reserve)
        };
        let runs = match try_now() {
            Some(runs) => runs,
            // What was freed is not durable yet, or lies in segments that only a checkpoint gives back, or packing.
            None => self.shared.find_room(try_now)?.ok_or_else(|| self.shared.no_space("reserve", CAPACITY_USED))?,
        };
        let extended = container.extend_to_block(runs.iter().map(Run::end).max().unwrap_or(0));
        extended.inspect_err(|_| container.space().release(&runs))?;
        Ok(runs)
    }

    fn release(&self, runs: &[Run]) {
        self.shared.container.space().release(runs);
    }

    fn write(&self, block: u64, bytes: &[u8]) -> Result<()> {
        // Cheap, and nothing else keeps a wrong number from overwriting the superblock.
        let last = block.saturating_add((bytes.len().div_ceil(BLOCK_LEN_BYTES) as u64).saturating_sub(1));
        let is_reserved = {
            let space = self.shared.container.space();
            bytes.len().is_multiple_of(BLOCK_LEN_BYTES) && space.is_reserved(block) && space.is_reserved(last)
        };
        if !is_reserved {
            return Err(FsError::new(ErrorKind::InvalidInput).on("write", "blocks that are not reserved"));
        }
        match self.shared.container.write_blocks(block, bytes) {
            // Blocks that were freed have space that the host can have back.
            Err(e) if e.kind().is_refusal() => {
                let giving = self.shared.giving.lock();
                if self.shared.freed.swap(false, Ordering::AcqRel) {
                    self.shared.give_free_blocks()?;
                }
                drop(giving);
                self.shared.container.write_blocks(block, bytes)
            }
            result => result,
        }
    }

    fn read(&self, block: u64, buf: &mut [u8]) -> Result<()> {
        let container = &self.shared.container;
        let read = container.read_blocks(block, buf)?;
        if read < buf.len() {
            return Err(container.missing_block(block + (read / BLOCK_LEN_BYTES) as u64));
        }
        Ok(())
    }

    fn space(&self) -> Space {
        let inside = self.shared.slack() / BLOCK_LEN_BYTES as u64;
        let space = self.shared.container.space();
        let (free, reserved) = space.blocks(inside);
        let geometry = space.geometry();
        Space { total: u64::from(geometry.segments) * u64::from(geometry.blocks), free, reserved }
    }

    fn host_room_bytes(&self) -> u64 {
        self.shared.container.host_room_bytes()
    }
}
