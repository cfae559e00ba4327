//! Checkpoints: what the log and memory hold moves into the key-value store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_core::{ErrorKind, Result};

use super::base::Shared;
use super::log::{Cut, Log, Segment};
use super::memory::MemTable;
use super::recovery::{Found, LogPart};
use super::room::is_no_space;
use super::{BLOCK_LEN_BYTES, Bytes, Run, Sink};
use crate::container::space::StoredBitmap;
use crate::format::log::Seed;
use crate::format::own::{APPLIED_KEY, bitmap_key, own_value};
use crate::kv::{Kv, View};

/// A checkpoint that has cut the log, but may find no space to go on.
pub(super) struct Unfinished {
    cut: Cut,
    frozen: Arc<MemTable>,
    /// As of the cut.
    bitmaps: Vec<StoredBitmap>,
}

impl Shared {
    /// Moves what was found into the store, and starts an empty log of a new epoch after batch `seq`.
    ///
    /// It begins where the old one does: the store has all of that before the superblock says so, and nothing is written there
    /// before that is durable. So a host without space is in nobody's way, as long as nothing is to be moved.
    pub(super) fn begin_epoch(&self, seq: u64, old_log: &[LogPart]) -> Result<()> {
        let segment = self.container.superblock().log_segment;
        self.container.secure_superblock()?;
        self.container.find_allocates()?;
        let epoch = self.container.superblock().epoch.wrapping_add(1);
        self.container.label_folder(epoch, true)?;
        let replayed = std::mem::take(&mut self.tables.write().active);
        let bitmaps = self.container.space().take_dirty();
        let moved = || {
            self.kv.go_live()?;
            if self.replayed > 0 { self.commit_with(&replayed, &bitmaps, seq) } else { Ok(()) }
        };
        let result = moved();
        if is_no_space(&result) {
            self.kv.revive()?;
            self.give_what_is_free(old_log)?;
            moved()?;
        } else {
            result?;
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
        let rest = old_log.iter().map(|part| part.segment).filter(|old| *old != segment);
        self.free_log(rest.map(Segment::found).collect());
        Ok(())
    }

    /// Writes what was found and may not be durable once more: after a failed sync the host counts pages as written that are not,
    /// and the next sync says nothing of them.
    pub(super) fn write_again(&self, found: &Found) -> Result<()> {
        // Else the store could hold a batch before the log does for sure. Where the last batch of a segment is durable, the record
        // behind it that names the next one may not be.
        for part in found.log.iter().filter(|part| part.seq >= found.durable) {
            let mut bytes = vec![0; part.len];
            let start = self.container.segment_offset(part.segment);
            self.container.read(start, &mut bytes)?;
            self.container.write_new(start, &bytes)?;
        }
        let mut bytes = vec![0; BLOCK_LEN_BYTES];
        for block in found.unsynced.iter().flat_map(Run::blocks) {
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
    fn commit_with(&self, table: &MemTable, bitmaps: &[StoredBitmap], seq: u64) -> Result<()> {
        let bitmap = |(segment, bits): &StoredBitmap| (bitmap_key(*segment), bits.as_ref().map(|bits| own_value(bits)));
        let bitmaps: Vec<_> = bitmaps.iter().map(bitmap).collect();
        let applied = own_value(&seq.to_le_bytes());
        let own = bitmaps.iter().map(|(key, value)| (&key[..], value.as_deref()));
        let own = own.chain(std::iter::once((&APPLIED_KEY[..], Some(&applied[..]))));
        self.kv.commit(&mut table.iter().chain(own))
    }

    /// Segments of the log that hold nothing any more, and what else a checkpoint made free.
    pub(super) fn free_log(&self, segments: Vec<Segment>) {
        let surplus = self.writer.lock().recycle(&self.container, segments);
        self.drop_segments(surplus);
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

    /// `NoSpace` if the host has none: then the log keeps what it holds, nothing is lost, and it is tried again later.
    pub(super) fn checkpoint(&self) -> Result<()> {
        let mut unfinished = self.checkpointing.lock();
        self.container.check_writable()?;
        let start = Instant::now();
        let mut result = self.move_log(&mut unfinished);
        let gives_room = is_no_space(&result);
        if gives_room {
            self.revive_after_failure();
            if let Some(begun) = unfinished.as_mut() {
                begun.cut.trim(&self.container);
            }
            result = self.make_room().and_then(|()| self.move_log(&mut unfinished));
        }
        let full = is_no_space(&result);
        self.note_checkpoint(start, full);
        if let Err(e) = &result
            && !full
            && !self.container.has_failed()
        {
            // The log holds it all, but nothing can be moved out of it any more.
            let due = if e.kind() == ErrorKind::Corrupt { "; a check or a repair is due" } else { "" };
            self.container.fail("checkpoint", std::io::Error::other(format!("{e}{due}")));
        }
        if result.is_err() {
            self.revive_after_failure();
        }
        if gives_room {
            // For the next checkpoint, now or at an opening, before somebody else has it. There may be less now.
            let _ = self.writer.lock().keep_ballast(&self.container, self.ballast());
        }
        // Also those who wait in vain.
        let _writer = self.writer.lock();
        self.room.notify_all();
        result
    }

    fn revive_after_failure(&self) {
        let view = self.tables.read().view.clone();
        self.revive(&view);
    }

    fn move_log(&self, unfinished: &mut Option<Unfinished>) -> Result<()> {
        if unfinished.is_none() && self.writer.lock().bytes() == 0 {
            return Ok(());
        }
        self.go_live()?;
        if let Some(earlier) = unfinished {
            self.finish(earlier)?;
            *unfinished = None;
        }
        let begun = {
            let mut log = self.writer.lock();
            if log.bytes() == 0 {
                return Ok(());
            }
            let cut: Cut = log.cut(&self.container)?;
            let mut tables = self.tables.write();
            let frozen = Arc::new(std::mem::take(&mut tables.active));
            tables.frozen = Some(frozen.clone());
            Unfinished { cut, frozen, bitmaps: self.container.space().take_dirty() }
        };
        self.finish(unfinished.insert(begun))?;
        *unfinished = None;
        Ok(())
    }

    /// Lets the store write to the file again, if that had no space.
    fn go_live(&self) -> Result<()> {
        if self.kv.is_live() {
            return Ok(());
        }
        // As when it is revived: whoever met an error of the old view waits for the new one.
        let _one_at_a_time = self.reviving.lock();
        self.kv.go_live()?;
        let mut tables = self.tables.write();
        tables.view = self.kv.view()?;
        Ok(())
    }

    fn finish(&self, begun: &mut Unfinished) -> Result<()> {
        let Unfinished { cut, frozen, bitmaps } = begun;
        self.twice(|| self.commit_with(frozen, bitmaps, cut.seq))?;
        self.container.flip(|superblock| {
            superblock.log_segment = cut.segment;
            superblock.log_seq = cut.seq + 1;
        })?;
        self.twice(|| {
            let mut tables = self.tables.write();
            (tables.view, tables.frozen) = (self.kv.view()?, None);
            Ok(())
        })?;
        self.free_log(std::mem::take(&mut cut.before));
        Ok(())
    }

    /// Once more after an error, with the store opened anew: an error latches it, also a reader's, or one that passes.
    fn twice<T>(&self, run: impl Fn() -> Result<T>) -> Result<T> {
        match run() {
            Err(e) if !self.container.has_failed() && !e.kind().is_refusal() => {
                tracing::warn!("{e}; trying once more");
                let view = self.tables.read().view.clone();
                self.revive(&view);
                run()
            }
            result => result,
        }
    }

    /// Packs the key-value store; `false` if a reader keeps it from that. Everybody waits meanwhile who reads or writes metadata.
    pub(super) fn pack(&self) -> Result<bool> {
        let _one_at_a_time = self.checkpointing.lock();
        self.container.check_writable()?;
        self.go_live()?;
        let mut tables = self.tables.write();
        let old = std::mem::replace(&mut tables.view, Arc::new(NoView));
        wait_for_readers(&old);
        drop(old);
        let result = self.kv.compact();
        let viewed = self.kv.view().map(|view| tables.view = view);
        let view = tables.view.clone();
        drop(tables);
        if result.is_err() || viewed.is_err() {
            self.revive(&view);
        }
        viewed.and(result)
    }

    /// As [`Shared::pack`], a few times if readers keep it from that.
    pub(super) fn pack_patiently(&self) -> Result<bool> {
        const ATTEMPTS_MAX: usize = 50;
        for _ in 0..ATTEMPTS_MAX {
            if self.pack()? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Waits until nobody reads with `view` any more, which nobody can begin to; but no longer than a moment, for who met an error
/// with it waits for whoever waits here.
fn wait_for_readers(view: &Arc<dyn View>) {
    const PATIENCE: Duration = Duration::from_millis(50);
    const STEP: Duration = Duration::from_micros(100);
    let deadline = Instant::now() + PATIENCE;
    while Arc::strong_count(view) > 1 && Instant::now() < deadline {
        std::thread::sleep(STEP);
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
