//! What is buffered of an open inode on its way to the store, and what becomes of it if that fails; the end of handles.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

use super::super::buffer::WriteBuffer;
use super::super::clock::{NEVER, Tick};
use super::super::handles::FileHandle;
use super::super::{Engine, Fh};
use super::{FileState, OpenInode};
use crate::error::{ErrorKind, FsError, Result};
use crate::memory::Part;
use crate::types::Access;

/// Buffered units go to the store in runs of this many bytes.
pub(super) const FLUSH_RUN_BYTES: usize = 1 << 20;
/// How long the background waits after the first failure; twice as long after each further one, up to 32 s.
const RETRY_AFTER: Duration = Duration::from_millis(500);
const RETRY_DOUBLINGS_MAX: u32 = 6;

/// A flush that fails again and again.
pub(super) struct Failing {
    kind: ErrorKind,
    times: u32,
    /// Before that the background does not try again.
    pub(super) retry_at: Tick,
}

impl Engine {
    /// Makes room: writes out a good part of what is buffered, the units first in which most of it is, because those are
    /// least likely to be written again.
    pub(super) fn relieve(&self, file: &OpenInode, state: &mut FileState) -> Result<()> {
        let bytes = self.budget.allowance_bytes(Part::Dirty) / 4;
        // What lies behind the store's end goes in order, or the store would fill gaps with zeros first.
        let units = state.buffer.fullest_units(bytes, state.store_len / self.unit_len() as u64);
        if (units.len() * self.unit_len()) as u64 > bytes / 2 {
            self.flush_these(file, state, &units)
        } else {
            self.flush_units(file, state, NEVER)
        }
    }

    /// Writes out all units of which something was born at or before `born_max`.
    pub(in crate::engine) fn flush_units(&self, file: &OpenInode, state: &mut FileState, born_max: Tick) -> Result<()> {
        let units = state.buffer.units_born(born_max);
        self.flush_these(file, state, &units)
    }

    /// Writes out units, which ascend, in runs. A failure keeps them, and is numbered.
    ///
    /// A unit that cannot be merged with the damaged one in the store keeps itself waiting only; any other failure ends
    /// the attempt.
    pub(super) fn flush_these(&self, file: &OpenInode, state: &mut FileState, units: &[u64]) -> Result<()> {
        let (mut rest, mut run_len_bytes, mut damaged) = (units, FLUSH_RUN_BYTES, None);
        while !rest.is_empty() {
            let Some(writer) = state.writer.clone() else { break };
            let (units, written, end) = if let [unit] = rest
                && let Some((at, bytes)) = state.buffer.only_piece(*unit)
            {
                // A small file as a whole: nothing to put together.
                (1, writer.write_at(&[(at, bytes)]), at + bytes.len() as u64)
            } else {
                let gathered = state.buffer.gather(rest, run_len_bytes);
                let pieces = gathered.pieces();
                let end = pieces.last().map_or(0, |(at, bytes)| at + bytes.len() as u64);
                (gathered.units, writer.write_at(&pieces), end)
            };
            let (now, later) = rest.split_at(units);
            state.unsettled = true;
            for &unit in now {
                self.units.drop_range(file.ino, unit, unit + 1);
            }
            self.inode_changed(file.ino);
            match written {
                Ok(()) => {
                    state.store_len = state.store_len.max(end);
                    self.with_buffer(file, state, |buffer| buffer.remove_units(now));
                    self.set_shown_times(file, state);
                    rest = later;
                }
                // One unit at a time, to find which it is.
                Err(e) if e.kind() == ErrorKind::Corrupt && now.len() > 1 => run_len_bytes = 1,
                Err(e) => {
                    let e = self.flush_failed(file, state, e);
                    if e.kind() != ErrorKind::Corrupt {
                        return Err(e);
                    }
                    (rest, run_len_bytes) = (later, FLUSH_RUN_BYTES);
                    damaged.get_or_insert(e);
                }
            }
        }
        if damaged.is_none() {
            state.failing = None;
        }
        damaged.map_or(Ok(()), Err)
    }

    /// Numbers a failure and says it in the log, unless it is the same one again: nothing was stored since, so who has
    /// heard of it knows.
    pub(super) fn flush_failed(&self, file: &OpenInode, state: &mut FileState, e: FsError) -> FsError {
        let path = self.store.path_of(file.ino).unwrap_or_else(|| format!("{:?}", file.ino));
        let times = match &state.failing {
            Some(failing) if failing.kind == e.kind() => failing.times + 1,
            _ => {
                state.failures += 1;
                state.failure = Some(e.kind());
                tracing::warn!(path, error = %e, "buffered writes could not be stored; they are kept for another try");
                0
            }
        };
        let wait = RETRY_AFTER * (1 << times.min(RETRY_DOUBLINGS_MAX));
        state.failing = Some(Failing { kind: e.kind(), times, retry_at: self.clock.expiry(self.clock.now(), wait) });
        e.on("flush", path)
    }

    /// Lets `shrink` take something out of the buffer, and accounts for it.
    pub(super) fn with_buffer(&self, file: &OpenInode, state: &mut FileState, shrink: impl FnOnce(&mut WriteBuffer)) {
        let before = state.buffer.held_bytes();
        shrink(&mut state.buffer);
        self.budget.sub(Part::Dirty, before - state.buffer.held_bytes());
        if before > 0 && !state.is_dirty() {
            file.dirty.store(false, SeqCst);
        }
    }

    /// The lock of an open inode, after what is buffered of it was stored. If that fails, who wrote hears of it; what failed a moment ago is not
    /// tried again.
    pub(in crate::engine) fn read_stored<'a>(&self, file: &'a OpenInode) -> RwLockReadGuard<'a, FileState> {
        let state = file.read();
        let rests =
            |state: &FileState| state.failing.as_ref().is_some_and(|failing| self.clock.now() < failing.retry_at);
        if !state.is_dirty() || rests(&state) {
            return state;
        }
        drop(state);
        let mut state = file.write();
        let _ = self.flush_units(file, &mut state, NEVER);
        RwLockWriteGuard::downgrade(state)
    }

    /// Reads the attributes that our writes left, so that they are known as ours.
    pub(in crate::engine) fn refresh(&self, file: &OpenInode, state: &mut FileState) {
        if !state.unsettled || state.is_dirty() {
            return;
        }
        let since = self.inodes.since();
        if let Ok(attr) = self.store.getattr(file.ino) {
            let expiry = self.expiry(self.clock.now(), self.options.attr_ttl);
            self.inodes.fill(&attr, expiry, since);
            state.unsettled = false;
            self.report_inode(file.ino);
        }
    }

    /// Writes out what is buffered of the handle's file, and reports failures that this handle has not seen.
    fn flush_handle(&self, handle: &FileHandle, state: &mut FileState) -> Result<()> {
        let flushed = self.flush_units(&handle.file, state, NEVER);
        self.refresh(&handle.file, state);
        let unseen = handle.errors_seen.swap(state.failures, Relaxed) < state.failures;
        flushed?;
        match state.failure {
            Some(kind) if unseen => {
                let path = self.store.path_of(handle.file.ino).unwrap_or_default();
                Err(FsError::new(kind).on("write back", path))
            }
            _ => Ok(()),
        }
    }

    /// A descriptor of the handle is closed: what was written is with the store afterwards, or the error is returned.
    pub fn flush(&self, fh: Fh) -> Result<()> {
        self.counters.op(|o| &o.flushes);
        if !self.buffers_writes() {
            return Ok(());
        }
        let handle = self.files.get(fh)?;
        if handle.access == Access::Read && !handle.file.is_dirty() {
            return Ok(());
        }
        let mut state = handle.file.write();
        self.flush_handle(&handle, &mut state)
    }

    /// Makes content, and attributes unless `data_only`, durable.
    pub fn fsync(&self, fh: Fh, data_only: bool) -> Result<()> {
        self.counters.op(|o| &o.syncs);
        let handle = self.files.get(fh)?;
        let store_file = {
            let mut state = handle.file.write();
            self.flush_handle(&handle, &mut state)?;
            state.readable()?.clone()
        };
        // Without the lock: readers and writers go on while the medium works.
        let synced = store_file.sync(data_only);
        if let Err(e) = &synced {
            let mut state = handle.file.write();
            state.failures += 1;
            state.failure = Some(e.kind());
            handle.errors_seen.store(state.failures, Relaxed);
        }
        synced
    }

    /// Closes a handle. An error is the loss, or late discovery, of buffered writes.
    pub fn release(&self, fh: Fh) -> Result<()> {
        let Some(handle) = self.files.remove(fh) else {
            return Err(ErrorKind::Stale.into());
        };
        let flushed = {
            let mut state = handle.file.write();
            let flushed = self.flush_handle(&handle, &mut state);
            state.write_handles -= u64::from(handle.access == Access::Write);
            if state.write_handles == 0 && state.reader.is_some() && !state.is_dirty() {
                state.writer = None;
            }
            flushed
        };
        self.release_open(handle.file.clone());
        flushed
    }
}
