//! Checkpoints: what the log and memory hold moves into the key-value store.

use std::sync::Arc;

use adit_core::{ErrorKind, Result};

use super::base::Shared;
use super::log::{Cut, Log, new_segment};
use super::memory::MemTable;
use super::{BLOCK_LEN_BYTES, Bytes, Run, Sink};
use crate::container::space::StoredBitmap;
use crate::format::log::Seed;
use crate::format::own::{APPLIED_KEY, bitmap_key, own_value};
use crate::kv::{Kv, View};

impl Shared {
    /// Moves what was found into the store, and starts an empty log of a new epoch after batch `seq`.
    pub(super) fn begin_epoch(&self, seq: u64, old_log: Vec<u32>) -> Result<()> {
        let segment = new_segment(&self.container)?;
        // The superblock that names the segment may reach the disk alone: the file is long enough before it is written.
        self.container.secure_superblock()?;
        let epoch = self.container.superblock().epoch.wrapping_add(1);
        self.container.label_folder(epoch, true)?;
        self.kv.go_live()?;
        let replayed = std::mem::take(&mut self.tables.write().active);
        if self.replayed > 0 {
            self.commit(&replayed, seq)?;
        }
        self.tables.write().view = self.kv.view()?;
        let mut seed = None;
        self.container.flip(|superblock| {
            superblock.epoch = epoch;
            superblock.log_segment = segment;
            superblock.log_seq = seq + 1;
            seed = Some(Seed::of(superblock));
        })?;
        self.container.label_folder(epoch, false)?;
        *self.writer.lock() = Log::new(seed.expect("the flip set it"), segment, seq);
        self.free_log(old_log);
        Ok(())
    }

    /// Writes what is in the blocks to them once more. After a failed sync the host counts pages as written that are not, and
    /// the next sync says nothing of them.
    pub(super) fn write_again(&self, runs: &[Run]) -> Result<()> {
        let mut bytes = vec![0; BLOCK_LEN_BYTES];
        for block in runs.iter().flat_map(Run::blocks) {
            // Not what a later batch freed: it may lie beyond the end, and nobody looks at it.
            if !self.container.space().is_allocated(block) {
                continue;
            }
            self.container.read_blocks(block, &mut bytes)?;
            self.container.write_blocks_again(block, &bytes)?;
        }
        Ok(())
    }

    /// Commits to the store what `table` holds, and the bitmaps, which are as of batch `seq`.
    fn commit(&self, table: &MemTable, seq: u64) -> Result<()> {
        let bitmaps = self.container.space().take_dirty();
        self.commit_with(table, &bitmaps, seq)
    }

    fn commit_with(&self, table: &MemTable, bitmaps: &[StoredBitmap], seq: u64) -> Result<()> {
        let bitmap = |(segment, bits): &StoredBitmap| (bitmap_key(*segment), bits.as_ref().map(|bits| own_value(bits)));
        let bitmaps: Vec<_> = bitmaps.iter().map(bitmap).collect();
        let applied = own_value(&seq.to_le_bytes());
        let own = bitmaps.iter().map(|(key, value)| (&key[..], value.as_deref()));
        let own = own.chain(std::iter::once((&APPLIED_KEY[..], Some(&applied[..]))));
        self.kv.commit(&mut table.iter().chain(own))
    }

    /// Segments of the log that hold nothing any more, and what else a checkpoint made free.
    pub(super) fn free_log(&self, segments: Vec<u32>) {
        let surplus = self.writer.lock().recycle(segments);
        for segment in surplus {
            self.container.punch_segment(segment);
            self.container.space().unbind(segment, false);
        }
        let durable = self.container.durable();
        let empty = {
            let mut space = self.container.space();
            space.settle(durable);
            space.take_empty()
        };
        for segment in empty {
            self.container.drop_data_segment(segment);
            self.container.space().unbind_empty(segment);
        }
    }

    /// Gives back what the log holds in advance. Syncs that follow write more of the host's metadata until there is some again.
    pub(super) fn shrink_log(&self) {
        // Held, so that nobody appends to what is punched.
        let mut log = self.writer.lock();
        let (spare, current, used) = log.shrink();
        self.container.punch_tail(current, used);
        for segment in spare {
            self.container.punch_segment(segment);
            self.container.space().unbind(segment, false);
        }
    }

    pub(super) fn checkpoint(&self) -> Result<()> {
        let _one_at_a_time = self.checkpointing.lock();
        self.container.check_writable()?;
        let result = self.move_log();
        if let Err(e) = &result
            && !self.container.has_failed()
        {
            // The log holds it all, but nothing can be moved out of it any more.
            let due = if e.kind() == ErrorKind::Corrupt { "; a check or a repair is due" } else { "" };
            self.container.fail("checkpoint", std::io::Error::other(format!("{e}{due}")));
        }
        if result.is_err() {
            let view = self.tables.read().view.clone();
            self.revive(&view);
        }
        // Also those who wait in vain.
        let _writer = self.writer.lock();
        self.room.notify_all();
        result
    }

    fn move_log(&self) -> Result<()> {
        let (cut, frozen, bitmaps) = {
            let mut log = self.writer.lock();
            if log.bytes() == 0 {
                return Ok(());
            }
            let cut: Cut = log.cut(&self.container)?;
            let mut tables = self.tables.write();
            let frozen = Arc::new(std::mem::take(&mut tables.active));
            tables.frozen = Some(frozen.clone());
            (cut, frozen, self.container.space().take_dirty())
        };
        self.twice(|| self.commit_with(&frozen, &bitmaps, cut.seq))?;
        self.container.flip(|superblock| {
            superblock.log_segment = cut.segment;
            superblock.log_seq = cut.seq + 1;
        })?;
        self.twice(|| {
            let mut tables = self.tables.write();
            (tables.view, tables.frozen) = (self.kv.view()?, None);
            Ok(())
        })?;
        self.free_log(cut.before);
        Ok(())
    }

    /// Once more after an error, with the store opened anew: an error latches it, also a reader's, or one that passes.
    fn twice<T>(&self, run: impl Fn() -> Result<T>) -> Result<T> {
        match run() {
            Err(e) if !self.container.has_failed() => {
                tracing::warn!("{e}; trying once more");
                let view = self.tables.read().view.clone();
                self.revive(&view);
                run()
            }
            result => result,
        }
    }

    pub(super) fn compact(&self) -> Result<()> {
        let _one_at_a_time = self.checkpointing.lock();
        self.container.check_writable()?;
        let mut tables = self.tables.write();
        // Nobody reads meanwhile. A view that a reader still has keeps the store from being packed, and that is all.
        tables.view = Arc::new(NoView);
        let result = self.kv.compact();
        let viewed = self.kv.view().map(|view| tables.view = view);
        let view = tables.view.clone();
        drop(tables);
        if result.is_err() || viewed.is_err() {
            self.revive(&view);
        }
        result.and(viewed)
    }
}

/// In place of a view while there is none.
struct NoView;

impl View for NoView {
    fn get_many(&self, _keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        Err(ErrorKind::Io.into())
    }

    fn scan(&self, _: &[u8], _: &[u8], _: &mut Sink<'_>) -> Result<()> {
        Err(ErrorKind::Io.into())
    }
}
