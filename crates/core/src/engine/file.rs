//! Open files: the one state that all handles of an inode share, and the calls on them.
//!
//! [`OpenInode`] holds the store's files, the buffered writes and the failures not yet reported. Its lock is shared by
//! readers and exclusive for whatever changes content or length; the store is called under it. Invariant: while
//! anything is buffered, `size` is the length that everyone sees, and `store_len` the one that the store has.
//!
//! A failed flush keeps its units while a handle is open; it is numbered, and every handle reports it once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::buffer::WriteBuffer;
use super::clock::{NEVER, Tick};
use super::handles::FileHandle;
use super::{Engine, Entry, Fh, Opened};
use crate::error::{ErrorKind, FsError, Result};
use crate::memory::Part;
use crate::store::{FileCall, NewNode, StoreFile};
use crate::types::{Access, Attr, FileName, Ino, SetAttr, Timestamp};

/// A write that covers this many whole units is not copied.
const DIRECT_UNITS_MIN: u64 = 4;
/// Buffered units go to the store in runs of this many bytes.
const FLUSH_RUN_BYTES: usize = 1 << 20;
/// Largest file offset, as `off_t` has it.
pub(super) const OFFSET_MAX: u64 = i64::MAX as u64;

/// The shared state of an inode with open handles.
pub(crate) struct OpenInode {
    pub(crate) ino: Ino,
    state: RwLock<FileState>,
    dirty: AtomicBool,
    /// Changes of permission bits since it was opened.
    pub(super) perm_changes: AtomicU64,
    /// How many of these there had been when it was last seen without set-id bits, plus one; 0 if it never was.
    pub(super) seen_without_set_id: AtomicU64,
}

/// What the lock of an open inode guards.
pub(crate) struct FileState {
    reader: Option<Arc<dyn StoreFile>>,
    writer: Option<Arc<dyn StoreFile>>,
    pub(crate) buffer: WriteBuffer,
    pub(crate) size: u64,
    pub(crate) store_len: u64,
    last_write: Timestamp,
    pub(super) write_handles: u64,
    /// Whether the store's attributes moved by our writes, and were not read since.
    pub(super) unsettled: bool,
    /// Where the latest write ended: one that begins there is part of a sequence.
    written_to: Option<u64>,
    failures: u64,
    failure: Option<ErrorKind>,
    /// Why what is buffered could not be stored, until a flush succeeds.
    failing: Option<Failing>,
}

/// A flush that fails again and again.
struct Failing {
    kind: ErrorKind,
    times: u32,
    /// Before that the background does not try again.
    retry_at: Tick,
}

/// How long the background waits after the first failure; twice as long after each further one, up to 32 s.
const RETRY_AFTER: Duration = Duration::from_millis(500);
const RETRY_DOUBLINGS_MAX: u32 = 6;

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

/// What the kernel's pages of a file are worth when it is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pages {
    /// They belong to the content as it is.
    Right,
    /// They may be old.
    Void,
    /// There are none.
    None,
}

impl OpenInode {
    fn new(ino: Ino, unit_len: usize) -> Self {
        let state = FileState {
            reader: None,
            writer: None,
            buffer: WriteBuffer::new(unit_len),
            size: 0,
            store_len: 0,
            last_write: Timestamp::default(),
            write_handles: 0,
            unsettled: false,
            written_to: None,
            failures: 0,
            failure: None,
            failing: None,
        };
        OpenInode {
            ino,
            state: RwLock::new(state),
            dirty: AtomicBool::new(false),
            perm_changes: AtomicU64::new(0),
            seen_without_set_id: AtomicU64::new(0),
        }
    }

    /// Its permission bits are others now.
    pub(crate) fn perm_changed(&self) {
        self.perm_changes.fetch_add(1, SeqCst);
    }

    /// Whether writes are buffered, or one that was accepted is on its way: whoever wants to know more takes the lock.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(SeqCst)
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, FileState> {
        self.state.read()
    }

    /// None while somebody has it to change something.
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, FileState>> {
        self.state.try_read()
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, FileState> {
        self.state.write()
    }

    /// When its oldest buffered write came; `None` if there is none, the file is busy, or it could not be stored a moment
    /// ago.
    pub(crate) fn oldest(&self, now: Tick) -> Option<Tick> {
        let state = self.state.try_read()?;
        if state.failing.as_ref().is_some_and(|failing| now < failing.retry_at) {
            return None;
        }
        state.buffer.oldest()
    }
}

impl FileState {
    pub(crate) fn is_dirty(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Corrects the store's attributes by what is buffered.
    pub(crate) fn overlay(&self, attr: &mut Attr) {
        attr.size = self.size;
        attr.blocks = attr.blocks.max(self.size.div_ceil(512));
        attr.mtime = attr.mtime.max(self.last_write);
        attr.ctime = attr.ctime.max(self.last_write);
    }

    /// The file to read from: the one that writes, if there is one.
    pub(crate) fn readable(&self) -> Result<&Arc<dyn StoreFile>> {
        self.writer.as_ref().or(self.reader.as_ref()).ok_or_else(|| ErrorKind::Stale.into())
    }

    pub(super) fn writable(&self) -> Result<&Arc<dyn StoreFile>> {
        self.writer.as_ref().ok_or_else(|| ErrorKind::NotPermitted.into())
    }
}

fn write_by(writer: &dyn StoreFile, pieces: &[(u64, &[u8])], by: Written) -> Result<()> {
    match by {
        Written::ByUser => writer.write_at(pieces),
        Written::ByKernel => writer.write_keeping_times(pieces),
    }
}

/// Whether the store gave the same open file twice.
fn is_same(one: &Arc<dyn StoreFile>, other: &Arc<dyn StoreFile>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

impl Engine {
    /// Becomes a user of the open inode, which pins it.
    fn acquire_open(&self, ino: Ino) -> Result<Arc<OpenInode>> {
        self.open.acquire(ino, || {
            self.inodes.pin(ino)?;
            Ok(OpenInode::new(ino, self.unit_len()))
        })
    }

    /// Stops being a user. After the last one, what could not be written is lost, which was reported before.
    pub(super) fn release_open(&self, file: Arc<OpenInode>) {
        let ino = file.ino;
        if !self.open.release(ino) {
            return;
        }
        {
            let mut state = file.write();
            if state.is_dirty() {
                let path = self.store.path_of(ino).unwrap_or_else(|| format!("{ino:?}"));
                let failure = state.failure.unwrap_or(ErrorKind::Io);
                tracing::error!(path, ?failure, "buffered writes could not be stored and are lost");
                self.with_buffer(&file, &mut state, WriteBuffer::clear);
                self.inode_changed(ino);
                self.kernel_lost(ino, None);
            }
        }
        self.forget_if_lost(ino);
        if self.inodes.unpin(ino) {
            self.unreference(ino);
        }
    }

    pub(super) fn with_open_inode<R>(&self, ino: Ino, f: impl FnOnce(&OpenInode) -> Result<R>) -> Result<R> {
        let file = self.acquire_open(ino)?;
        let result = f(&file);
        self.release_open(file);
        result
    }

    /// Creates and opens a regular file.
    pub fn create(&self, parent: Ino, name: FileName<'_>, new: &NewNode, access: Access) -> Result<(Entry, Opened)> {
        self.counters.op(|o| &o.creates);
        let (entry, store_file) = self.make_in(parent, name, || {
            let made = self.store.create_in(parent, name, new)?;
            Ok((made.attr, made.file, made.parent))
        })?;
        let ino = entry.attr.ino;
        let file = self.acquire_open(ino).inspect_err(|_| self.drop_ref(ino))?;
        {
            let mut state = file.write();
            state.writer.get_or_insert(store_file);
            state.write_handles += u64::from(access == Access::Write);
        }
        self.inodes.opened(&entry.attr);
        Ok((entry, self.opened(file, access, Pages::Void)))
    }

    /// Opens a regular file.
    pub fn open(&self, ino: Ino, access: Access, truncate: bool) -> Result<Opened> {
        self.counters.op(|o| &o.opens);
        if access == Access::Write || truncate {
            self.check_writable("open")?;
        }
        let file = self.acquire_open(ino)?;
        match self.open_files(&file, access, truncate) {
            Ok(pages) => Ok(self.opened(file, access, pages)),
            Err(e) => {
                self.release_open(file);
                Err(e)
            }
        }
    }

    fn opened(&self, file: Arc<OpenInode>, access: Access, pages: Pages) -> Opened {
        let errors_seen = AtomicU64::new(file.read().failures);
        let fh = self.files.insert(FileHandle { file, access, errors_seen });
        let is_reader = access == Access::Read;
        Opened { fh, keep_cache: pages == Pages::Right, no_flush: is_reader, unread: is_reader && pages == Pages::None }
    }

    /// Opens what is needed below.
    fn open_files(&self, file: &OpenInode, access: Access, truncate: bool) -> Result<Pages> {
        let ino = file.ino;
        if truncate {
            self.setattr_open(file, &SetAttr { size: Some(0), ..SetAttr::default() })?;
        }
        let mut state = file.write();
        // The store is asked also where the file is open already: what lies there may be another file by now, which someone
        // else put in its place. With unstored data there is no changing over: that belongs to the former one.
        match access {
            Access::Write if state.writer.is_none() || !state.is_dirty() => {
                let writer = self.store.open(ino, Access::Write)?;
                if state.writer.as_ref().is_some_and(|former| !is_same(former, &writer)) {
                    state.reader = None;
                }
                state.writer = Some(writer);
            }
            Access::Read if state.readable().is_err() || (state.write_handles == 0 && !state.is_dirty()) => {
                let reader = self.store.open(ino, Access::Read)?;
                if !state.readable().is_ok_and(|former| is_same(former, &reader)) {
                    (state.writer, state.reader) = (None, Some(reader));
                }
            }
            Access::Read if !state.is_dirty() => {
                // Those who write go over as well.
                if let Ok(writer) = self.store.open(ino, Access::Write)
                    && !state.readable().is_ok_and(|former| is_same(former, &writer))
                {
                    (state.writer, state.reader) = (Some(writer), None);
                }
            }
            Access::Write | Access::Read => {}
        }
        if state.is_dirty() {
            state.write_handles += u64::from(access == Access::Write);
            return Ok(if self.inodes.opened_dirty(ino) { Pages::Right } else { Pages::Void });
        }
        drop(state);
        let unread = self.inodes.is_unread(ino);
        let right = self.getattr(ino, None).is_ok_and(|(attr, _)| self.inodes.opened(&attr));
        file.write().write_handles += u64::from(access == Access::Write);
        if access == Access::Write && file.read().readable().is_ok_and(|file| file.voids_pages()) {
            self.units.drop_inode(ino);
            return Ok(Pages::Void);
        }
        Ok(match (right, unread) {
            (true, _) => Pages::Right,
            (false, true) => Pages::None,
            (false, false) => Pages::Void,
        })
    }

    /// Changes attributes of an open inode. Its lock is not held by the caller.
    pub(super) fn setattr_open(&self, file: &OpenInode, set: &SetAttr) -> Result<(Attr, Duration)> {
        let mut state = file.write();
        if set.mtime.is_some() || set.atime.is_some() {
            self.flush_units(file, &mut state, NEVER)?;
        }
        if set.size.is_some() && self.store_orders_calls() {
            drop(state);
            let done = self.setattr_in_store(file, set);
            state = file.write();
            return self.attributes_set(file, state, set, done);
        }
        let done = self.setattr_in_store(file, set);
        self.attributes_set(file, state, set, done)
    }

    /// Has the store change attributes. Second, when it was asked.
    fn setattr_in_store(&self, file: &OpenInode, set: &SetAttr) -> Result<(Attr, u32)> {
        let since = self.inodes.since();
        let attr = self.store.setattr(file.ino, set).inspect_err(|_| self.inode_changed(file.ino))?;
        Ok((attr, since))
    }

    /// Notes what the store did.
    fn attributes_set(
        &self,
        file: &OpenInode,
        mut state: RwLockWriteGuard<'_, FileState>,
        set: &SetAttr,
        done: Result<(Attr, u32)>,
    ) -> Result<(Attr, Duration)> {
        let (attr, since) = done?;
        if let Some(size) = set.size {
            self.truncated(file, &mut state, size);
        }
        drop(state);
        let settled = self.own_attr(attr, since);
        self.report_inode(file.ino);
        Ok(settled)
    }

    /// The store's length is `size` now: so is that of what is buffered and cached.
    fn truncated(&self, file: &OpenInode, state: &mut FileState, size: u64) {
        self.with_buffer(file, state, |buffer| buffer.truncate(size));
        (state.size, state.store_len) = (size, size);
        self.units.drop_from(file.ino, size / self.unit_len() as u64);
    }

    /// Reads at `offset`; short only at the end of the file.
    pub fn read(&self, fh: Fh, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let handle = self.files.get(fh)?;
        let state = handle.file.read();
        let n = if self.store_orders_calls() {
            // Whoever opens or closes it meanwhile must not wait for a network.
            let file = state.readable()?.clone();
            drop(state);
            self.read_clean(handle.file.ino, &file, offset, buf)?
        } else {
            self.read_merged(handle.file.ino, &state, offset, buf)?
        };
        self.counters.read(n);
        Ok(n)
    }

    /// Whether no lock is held while the store reads or writes a file: it keeps calls on the same bytes apart, and may take long.
    pub(super) fn store_orders_calls(&self) -> bool {
        self.caps.remote && !self.buffers_writes()
    }

    /// Whether a call through this handle may wait for a network; it waits for nothing itself.
    pub fn may_wait(&self, fh: Fh, call: FileCall) -> bool {
        self.caps.remote && self.files.get(fh).is_ok_and(|handle| self.may_wait_for(&handle.file, call))
    }

    /// Whether [`setattr`](Self::setattr) may wait for a network; it waits for nothing itself.
    pub fn setattr_may_wait(&self, ino: Ino, set: &SetAttr) -> bool {
        let Some(len) = set.size.filter(|_| self.caps.remote) else { return false };
        // Of one that nobody has open, the store would have to be asked for it first.
        self.open.get(ino).is_none_or(|file| self.may_wait_for(&file, FileCall::SetLen { len }))
    }

    fn may_wait_for(&self, file: &OpenInode, call: FileCall) -> bool {
        // Whoever has the lock may be waiting.
        let Some(state) = file.try_read() else { return true };
        let Ok(file) = state.readable().cloned() else { return false };
        drop(state);
        file.may_wait(call)
    }

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

    /// Makes room: writes out a good part of what is buffered, the units first in which most of it is, because those are
    /// least likely to be written again.
    fn relieve(&self, file: &OpenInode, state: &mut FileState) -> Result<()> {
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
    pub(super) fn flush_units(&self, file: &OpenInode, state: &mut FileState, born_max: Tick) -> Result<()> {
        let units = state.buffer.units_born(born_max);
        self.flush_these(file, state, &units)
    }

    /// Writes out units, which ascend, in runs. A failure keeps them, and is numbered.
    ///
    /// A unit that cannot be merged with the damaged one in the store keeps itself waiting only; any other failure ends
    /// the attempt.
    fn flush_these(&self, file: &OpenInode, state: &mut FileState, units: &[u64]) -> Result<()> {
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
    fn flush_failed(&self, file: &OpenInode, state: &mut FileState, e: FsError) -> FsError {
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
    fn with_buffer(&self, file: &OpenInode, state: &mut FileState, shrink: impl FnOnce(&mut WriteBuffer)) {
        let before = state.buffer.held_bytes();
        shrink(&mut state.buffer);
        self.budget.sub(Part::Dirty, before - state.buffer.held_bytes());
        if before > 0 && !state.is_dirty() {
            file.dirty.store(false, SeqCst);
        }
    }

    /// Reads the attributes that our writes left, so that they are known as ours.
    pub(super) fn refresh(&self, file: &OpenInode, state: &mut FileState) {
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
