//! Open files: the one state that all handles of an inode share, and the calls on them.
//!
//! [`OpenInode`] holds the store's files, the buffered writes and the failures not yet reported. Its lock is shared by
//! readers and exclusive for whatever changes content or length; the store is called under it. Invariant: while
//! anything is buffered, `size` is the length that everyone sees, and `store_len` the one that the store has.
//!
//! A failed flush keeps its units while a handle is open; it is numbered, and every handle reports it once.

mod flush;
mod late_times;
mod privileges;
mod write;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use self::flush::Failing;
use self::late_times::{LengthTimes, MissedTimes};
use self::privileges::Privilege;
use super::buffer::WriteBuffer;
use super::clock::{NEVER, Tick};
use super::handles::FileHandle;
use super::{Engine, Entry, Fh, Opened};
use crate::error::{ErrorKind, Result};
use crate::store::{FileCall, NewNode, StoreFile};
use crate::types::{Access, Attr, FileName, Ino, SetAttr, SetTime, Timestamp};

/// Largest file offset, as `off_t` has it.
pub(super) const OFFSET_MAX: u64 = i64::MAX as u64;

/// The shared state of an inode with open handles.
pub(crate) struct OpenInode {
    pub(crate) ino: Ino,
    state: RwLock<FileState>,
    dirty: AtomicBool,
    pub(super) set_id: Privilege,
    pub(super) capability: Privilege,
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
    /// The times that the latest change of length brought along.
    length_times: LengthTimes,
    /// Of which changes times come, where the kernel keeps them.
    missed_times: MissedTimes,
    /// The times that the kernel shows, as far as it has sent them, where those in the store move with each write.
    shown_times: Option<SetAttr>,
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
            length_times: LengthTimes::default(),
            missed_times: MissedTimes::default(),
            shown_times: None,
        };
        OpenInode {
            ino,
            state: RwLock::new(state),
            dirty: AtomicBool::new(false),
            set_id: Privilege::default(),
            capability: Privilege::default(),
        }
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

    /// A change of the content came to nothing.
    pub(super) fn change_failed(&mut self) {
        self.missed_times.failed();
    }

    pub(super) fn writable(&self) -> Result<&Arc<dyn StoreFile>> {
        self.writer.as_ref().ok_or_else(|| ErrorKind::NotPermitted.into())
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
        let is_last = if self.kernel_keeps_times() { self.release_with_times(&file) } else { self.open.release(ino) };
        if !is_last {
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

    /// Stops being a user, and sets what was kept back if it was the last one: before nobody finds the file open, so that who sets other times
    /// meanwhile comes after that. True if it was the last.
    fn release_with_times(&self, file: &OpenInode) -> bool {
        let mut state = file.write();
        let left = if self.open.has_one_user(file.ino) { state.missed_times.left() } else { None };
        if let Some(times) = left {
            // Who sent them has its answer.
            let _ = self.set_late(file, &times);
        }
        let is_last = self.open.release(file.ino);
        drop(state);
        if left.is_some() {
            self.report_inode(file.ino);
        }
        is_last
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
            self.setattr_open(file, &SetAttr { size: Some(0), ..SetAttr::default() }, None)?;
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

    /// Takes other files of the store for those that are open. What cannot be opened again is `Stale` for who has it.
    pub(super) fn open_all_again(&self) {
        for ino in self.open.those(|_| true) {
            let Some(file) = self.open.get(ino) else { continue };
            let mut state = file.write();
            let again = |file: &Option<Arc<dyn StoreFile>>, access| {
                let opened = file.as_ref().map(|_| self.store.open(ino, access)).transpose();
                opened.inspect_err(|e| tracing::warn!("inode {} was open: {e}", ino.0)).ok().flatten()
            };
            (state.writer, state.reader) = (again(&state.writer, Access::Write), again(&state.reader, Access::Read));
        }
    }

    /// Changes attributes of an open inode. Its lock is not held by the caller.
    pub(super) fn setattr_open(&self, file: &OpenInode, set: &SetAttr, fh: Option<Fh>) -> Result<(Attr, Duration)> {
        let mut state = file.write();
        if set.mtime.is_some() || set.atime.is_some() {
            self.flush_units(file, &mut state, NEVER)?;
        }
        let keeps_times = self.kernel_keeps_times();
        let is_noted = keeps_times && fh.is_some();
        let missed_before = state.missed_times;
        if keeps_times {
            let is_late = is_noted && state.length_times.are_newer_than(set);
            if is_late || state.missed_times.keep_back(set, is_noted) {
                drop(state);
                return self.getattr(file.ino, fh);
            }
            state.length_times.begin(set);
        }
        let done = if set.size.is_some() && self.store_orders_calls() {
            drop(state);
            let done = self.setattr_in_store(file, set);
            state = file.write();
            done
        } else {
            self.setattr_in_store(file, set)
        };
        if done.is_err() {
            state.missed_times.refused(missed_before);
            if let Some(refused) = state.length_times.failed(set) {
                // They were the newest after all. Who sent them has its answer.
                let _ = self.setattr_in_store(file, &refused);
            }
        }
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
        if self.options.kernel_writeback && !self.caps.kernel_writeback {
            let before = state.shown_times.filter(|_| set.size.is_none() && set.mtime.is_none());
            let is_told = before.is_some() || set.size.is_some() || set.mtime.is_some();
            let mtime = before.map_or(Some(SetTime::At(attr.mtime)), |before| before.mtime);
            let ctime = set.ctime.or(Some(attr.ctime));
            state.shown_times = is_told.then_some(SetAttr { mtime, ctime, ..SetAttr::default() });
        }
        if let Some(size) = set.size {
            self.truncated(file, &mut state, size);
            self.content_changed(file, &mut state);
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
        let read = if self.store_orders_calls() {
            // Whoever opens or closes it meanwhile must not wait for a network.
            let file = state.readable()?.clone();
            drop(state);
            self.read_clean(handle.file.ino, &file, offset, buf)
        } else {
            let read = self.read_merged(handle.file.ino, &state, offset, buf);
            drop(state);
            read
        };
        if read.is_err() && self.kernel_keeps_times() {
            handle.file.write().missed_times.failed();
        }
        let n = read?;
        self.counters.read(n);
        Ok(n)
    }

    /// Whether the kernel notes the times of files itself, and sends them.
    pub(super) fn kernel_keeps_times(&self) -> bool {
        self.options.kernel_writeback && self.caps.kernel_writeback
    }

    /// The content of a file changed: times of that which came before it are set now.
    pub(super) fn content_changed(&self, file: &OpenInode, state: &mut FileState) {
        if let Some(times) = state.missed_times.changed()
            && self.set_late(file, &times).is_err()
        {
            state.missed_times.not_set(times);
        }
        self.set_shown_times(file, state);
    }

    /// The store has changed a file, and its times with that: they are those again that the kernel shows. It may have sent them before the write
    /// that they are of (with a rename, it does), and sends no others then.
    pub(super) fn set_shown_times(&self, file: &OpenInode, state: &FileState) {
        if let Some(times) = &state.shown_times
            && let Err(e) = self.set_late(file, times)
        {
            tracing::debug!("inode {}: its times moved with a write: {e}", file.ino.0);
        }
    }

    /// Sets times whose sender was answered before.
    fn set_late(&self, file: &OpenInode, times: &SetAttr) -> Result<()> {
        self.setattr_in_store(file, times)?;
        self.inode_changed(file.ino);
        Ok(())
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
}
