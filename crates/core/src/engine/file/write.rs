//! Writes: into the buffer of an open inode, through to the store, or accepted before the store has them.
//!
//! All of it is done under the inode's lock, but for stores that keep calls on the same bytes apart by themselves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::super::clock::NEVER;
use super::super::handles::FileHandle;
use super::super::{Engine, Fh};
use super::flush::FLUSH_RUN_BYTES;
use super::{FileState, OFFSET_MAX, OpenInode};
use crate::error::{ErrorKind, FsError, Result};
use crate::memory::Part;
use crate::store::StoreFile;
use crate::types::{Access, Timestamp};

/// A write that covers this many whole units is not copied.
const DIRECT_UNITS_MIN: u64 = 4;

/// Tells a writer's client, at most once, that its write is accepted; `None` if it may not be, or was.
struct Acceptor<'a>(Option<&'a mut dyn FnMut()>);

impl Acceptor<'_> {
    /// Whether it is accepted now.
    fn accept(&mut self) -> bool {
        self.0.take().map(|accept| accept()).is_some()
    }
}

/// Who keeps the times of a file that is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    /// The store: it is a program's write.
    ByUser,
    /// The kernel, which noted them when a program wrote.
    ByKernel,
}

fn write_by(writer: &dyn StoreFile, pieces: &[(u64, &[u8])], by: Written) -> Result<()> {
    match by {
        Written::ByUser => writer.write_at(pieces),
        Written::ByKernel => writer.write_keeping_times(pieces),
    }
}

impl Engine {
    /// Writes all of `data` at `offset`, into the buffer or through to the store.
    pub fn write(&self, fh: Fh, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_or_accept(fh, offset, data, Written::ByUser, &mut Acceptor(None))
    }

    /// As [`write`](Self::write); see [`StoreFile::write_keeping_times`].
    pub fn write_keeping_times(&self, fh: Fh, offset: u64, data: &[u8]) -> Result<usize> {
        let written = if self.caps.kernel_writeback { Written::ByKernel } else { Written::ByUser };
        self.write_or_accept(fh, offset, data, written, &mut Acceptor(None))
    }

    /// As [`write`](Self::write), but may call `accept`, once, when everyone is bound to see the write and the store does
    /// not have it yet: the caller answers its client there, who goes on while this call works under the file's lock.
    ///
    /// Only writes that continue the one before are accepted early. One that fails afterwards is as any buffered write
    /// that could not be stored: its data is kept, every handle hears of it, and this call returns `Ok`.
    ///
    /// # Errors
    ///
    /// Only of writes that were not accepted.
    pub fn write_behind(&self, fh: Fh, offset: u64, data: &[u8], accept: &mut dyn FnMut()) -> Result<usize> {
        self.write_or_accept(fh, offset, data, Written::ByUser, &mut Acceptor(Some(accept)))
    }

    fn write_or_accept(
        &self,
        fh: Fh,
        offset: u64,
        data: &[u8],
        by: Written,
        acceptor: &mut Acceptor<'_>,
    ) -> Result<usize> {
        let handle = self.files.get(fh)?;
        let written = self.write_with(&handle, offset, data, by, acceptor);
        if written.is_err() && self.options.kernel_writeback {
            self.kernel_lost(handle.file.ino, Some((offset, data.len())));
        }
        self.report_inode(handle.file.ino);
        written
    }

    fn write_with(
        &self,
        handle: &FileHandle,
        offset: u64,
        data: &[u8],
        by: Written,
        acceptor: &mut Acceptor<'_>,
    ) -> Result<usize> {
        // With kernel write-back, pages come late and with any handle.
        if handle.access != Access::Write && !self.options.kernel_writeback {
            return Err(ErrorKind::NotPermitted.into());
        }
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > OFFSET_MAX) {
            return Err(ErrorKind::FileTooLarge.into());
        }
        if data.is_empty() {
            return Ok(0);
        }
        let file = &handle.file;
        let mut state = file.write();
        if state.writer.is_none() {
            self.check_writable("write")?;
            state.writer = Some(self.store.open(file.ino, Access::Write)?);
        }
        // After a failure its writers are to hear of the next one at once.
        if state.written_to != Some(offset) || state.failures > 0 {
            acceptor.0 = None;
        }
        state.written_to = Some(offset + data.len() as u64);
        let failures = state.failures;
        let written = match (by, self.buffers_writes()) {
            (Written::ByUser, true) => self.write_locked(file, &mut state, offset, data, acceptor),
            (by, _) => {
                let writer = state.writable()?.clone();
                if self.store_orders_calls() {
                    // As for reads. What is known of it is void from now on, and again when it is written.
                    self.inode_changed(file.ino);
                    drop(state);
                    let written = write_by(&*writer, &[(offset, data)], by);
                    state = file.write();
                    self.wrote(file, &mut state, &[(offset, data)], written)
                } else {
                    self.write_through(file, &mut state, &writer, &[(offset, data)], by)
                }
            }
        };
        match written {
            Ok(()) => self.counters.written(data.len()),
            Err(e) => {
                if state.failures > failures {
                    handle.errors_seen.store(state.failures, Relaxed);
                }
                return Err(e);
            }
        }
        Ok(data.len())
    }

    fn write_locked(
        &self,
        file: &OpenInode,
        state: &mut FileState,
        offset: u64,
        data: &[u8],
        acceptor: &mut Acceptor<'_>,
    ) -> Result<()> {
        let unit = self.unit_len() as u64;
        let end = offset + data.len() as u64;
        let (first, last) = (offset.div_ceil(unit), end / unit);
        if last < first + DIRECT_UNITS_MIN {
            self.write_buffered(file, state, offset, data)?;
            let Some(units) = state.buffer.long_run(FLUSH_RUN_BYTES as u64) else { return Ok(()) };
            // All of it is buffered: it is as safe as any smaller write.
            let accepted = acceptor.accept();
            let flushed = self.flush_these(file, state, &units.collect::<Vec<_>>());
            return if accepted { Ok(()) } else { flushed };
        }
        // Head and tail are buffered, in case their neighbours come; the whole units between are not copied.
        let (head, rest) = data.split_at((first * unit - offset) as usize);
        let (whole, tail) = rest.split_at(((last - first) * unit) as usize);
        if !head.is_empty() {
            self.write_buffered(file, state, offset, head)?;
            if state.buffer.is_unit_full(first - 1) {
                self.flush_these(file, state, &[first - 1])?;
            }
        }
        let writer = state.writable()?.clone();
        if whole.len() == data.len()
            && !state.is_dirty()
            && self.write_after_answer(file, state, &writer, (offset, data), acceptor)
        {
            return Ok(());
        }
        self.write_through(file, state, &writer, &[(first * unit, whole)], Written::ByUser)?;
        if !tail.is_empty() {
            self.write_buffered(file, state, last * unit, tail)?;
        }
        Ok(())
    }

    /// Accepts a write of whole units to a file without buffered ones, and then hands it to the store. False if it may not
    /// be accepted; nothing is done then.
    ///
    /// Whoever asks for the file's content or attributes meanwhile waits for its lock: it counts as one with buffered
    /// writes. The bytes count as buffered too, so that a failure finds room to keep them.
    fn write_after_answer(
        &self,
        file: &OpenInode,
        state: &mut FileState,
        writer: &Arc<dyn StoreFile>,
        (offset, data): (u64, &[u8]),
        acceptor: &mut Acceptor<'_>,
    ) -> bool {
        let len = state.buffer.growth_bytes(offset, data.len());
        if acceptor.0.is_none() || !self.budget.take(Part::Dirty, len) {
            return false;
        }
        file.dirty.store(true, SeqCst);
        self.inode_changed(file.ino);
        acceptor.accept();
        // The caller was told that this is done: a panic must not make it unhappen in silence.
        let write = AssertUnwindSafe(|| self.write_through(file, state, writer, &[(offset, data)], Written::ByUser));
        let written =
            catch_unwind(write).unwrap_or_else(|_| Err(FsError::new(ErrorKind::Io).because("the store panicked")));
        match written {
            // After `write_through` noted the change: who saw the file clean again is outrun by it.
            Ok(()) => file.dirty.store(false, SeqCst),
            Err(e) => self.keep_unwritten(file, state, writer, (offset, data), e),
        }
        self.budget.sub(Part::Dirty, len - state.buffer.held_bytes());
        true
    }

    /// Buffers what was accepted and could not be written. There was nothing buffered before; its bytes are counted.
    fn keep_unwritten(
        &self,
        file: &OpenInode,
        state: &mut FileState,
        writer: &Arc<dyn StoreFile>,
        (offset, data): (u64, &[u8]),
        e: FsError,
    ) {
        // Without an answer: everything before it was written.
        state.store_len = writer.len().unwrap_or(offset);
        // Whole units are whole blocks, which have no gaps to fill.
        let kept = state.buffer.write(offset, data, self.clock.now(), state.store_len, |_, _| Ok(()));
        debug_assert!(kept.is_ok(), "only a gap can fail");
        state.size = state.store_len.max(offset + data.len() as u64);
        state.last_write = Timestamp::now();
        self.inode_changed(file.ino);
        // It is in the log, and numbered.
        let _ = self.flush_failed(file, state, e);
        self.flusher.wake();
    }

    /// Hands pieces to the store; what was buffered of them is superseded.
    fn write_through(
        &self,
        file: &OpenInode,
        state: &mut FileState,
        writer: &Arc<dyn StoreFile>,
        pieces: &[(u64, &[u8])],
        by: Written,
    ) -> Result<()> {
        let written = write_by(&**writer, pieces, by);
        self.wrote(file, state, pieces, written)
    }

    /// Notes what was written, or not.
    fn wrote(
        &self,
        file: &OpenInode,
        state: &mut FileState,
        pieces: &[(u64, &[u8])],
        written: Result<()>,
    ) -> Result<()> {
        let unit = self.unit_len() as u64;
        state.unsettled = true;
        for &(offset, bytes) in pieces {
            let end = offset + bytes.len() as u64;
            self.units.drop_range(file.ino, offset / unit, end.div_ceil(unit));
            if written.is_ok() && state.is_dirty() {
                state.store_len = state.store_len.max(end);
                state.size = state.size.max(end);
                self.with_buffer(file, state, |buffer| buffer.remove_range(offset, end));
            }
        }
        self.inode_changed(file.ino);
        match &written {
            Ok(()) => self.content_changed(file, state),
            Err(_) => state.missed_times.failed(),
        }
        written
    }

    fn write_buffered(&self, file: &OpenInode, state: &mut FileState, offset: u64, data: &[u8]) -> Result<()> {
        let more = state.buffer.growth_bytes(offset, data.len());
        if !self.budget.take(Part::Dirty, more) {
            self.relieve(file, state)?;
            if !self.budget.take(Part::Dirty, more) {
                // Others hold the share. They are not waited for: this writer may be one whom they wait for.
                self.flusher.crowded();
                self.flush_units(file, state, NEVER)?;
                let writer = state.writable()?.clone();
                return self.write_through(file, state, &writer, &[(offset, data)], Written::ByUser);
            }
        }
        let held_before = state.buffer.held_bytes();
        let written = self.write_to_buffer(file, state, offset, data);
        self.budget.sub(Part::Dirty, more - (state.buffer.held_bytes() - held_before));
        written
    }

    /// Buffers a write, for whose growth there is room.
    fn write_to_buffer(&self, file: &OpenInode, state: &mut FileState, offset: u64, data: &[u8]) -> Result<()> {
        let writer = state.writable()?.clone();
        let was_dirty = state.is_dirty();
        if !was_dirty {
            state.store_len = writer.len()?;
            state.size = state.store_len;
        }
        let store_len = state.store_len;
        let written = state.buffer.write(offset, data, self.clock.now(), store_len, |at, gap| {
            self.read_clean(file.ino, &writer, at, gap).map(drop)
        });
        if !state.is_dirty() {
            return written;
        }
        if written.is_ok() {
            state.size = state.size.max(offset + data.len() as u64);
        } else {
            // Blocks before the failed one were taken: they are as good as any partial write.
            let taken = state.buffer.end().unwrap_or(0);
            state.size = state.size.max(taken);
        }
        state.last_write = Timestamp::now();
        if !was_dirty {
            file.dirty.store(true, SeqCst);
            self.inode_changed(file.ino);
            self.flusher.wake();
        }
        written
    }
}
