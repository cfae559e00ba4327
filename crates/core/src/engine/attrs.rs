//! Attributes: cached in the inode table, corrected by what is buffered.

use std::time::Duration;

use super::clock::{NEVER, Tick, remaining};
use super::file::OpenInode;
use super::inodes::Fill;
use super::{Engine, Fh};
use crate::error::{ErrorKind, Result};
use crate::types::{Access, Attr, Ino, SetAttr, StatFs};

/// Own changes that may outrun one reading of attributes before it is served uncached.
const RETRIES: usize = 4;

impl Engine {
    /// Attributes, with the time for which they may be cached.
    ///
    /// All handles of an inode show the same. But who asks without one wants to know the times: buffered writes are stored first, so that what
    /// is shown is what stays. A kernel that asks through a handle wants to know the length, before a read or a write.
    #[inline]
    pub fn getattr(&self, ino: Ino, fh: Option<Fh>) -> Result<(Attr, Duration)> {
        if fh.is_some()
            && let Some(file) = self.open.get(ino).filter(|file| file.is_dirty())
        {
            return self.getattr_buffered(&file);
        }
        let now = self.clock.now_for_hit();
        match self.inodes.attr_at_once(ino, now) {
            Some((attr, expiry)) => {
                self.counters.attr.hit();
                Ok((attr, remaining(now, expiry, self.options.attr_ttl)))
            }
            None => self.getattr_slowly(ino, now),
        }
    }

    #[inline(never)]
    fn getattr_slowly(&self, ino: Ino, now: Tick) -> Result<(Attr, Duration)> {
        if let Some((attr, expiry)) = self.inodes.attr(ino, now) {
            self.counters.attr.hit();
            return Ok((attr, remaining(now, expiry, self.options.attr_ttl)));
        }
        self.counters.attr.miss();
        self.getattr_store(ino)
    }

    /// Attributes with the length and the times of what is buffered, not to be cached: these times may be others when it is stored.
    #[inline(never)]
    fn getattr_buffered(&self, file: &OpenInode) -> Result<(Attr, Duration)> {
        self.counters.attr.miss();
        let state = file.read();
        let mut attr = self.store.getattr(file.ino)?;
        if state.is_dirty() {
            state.overlay(&mut attr);
        }
        Ok((attr, Duration::ZERO))
    }

    /// Attributes from the store, which has what was buffered, or those of that if it could not be stored.
    pub(super) fn getattr_store(&self, ino: Ino) -> Result<(Attr, Duration)> {
        let mut last = None;
        for _ in 0..RETRIES {
            let file = self.open.get(ino);
            // Held over the question, so that no flush comes between the store's answer and the buffer's.
            let state = file.as_ref().map(|file| self.read_stored(file));
            let since = self.inodes.since();
            let mut attr = self.store.getattr(ino)?;
            if let Some(state) = state.filter(|s| s.is_dirty()) {
                state.overlay(&mut attr);
                return Ok((attr, self.options.attr_ttl));
            }
            let expiry = self.expiry(self.clock.now(), self.options.attr_ttl);
            match self.inodes.fill(&attr, expiry, since) {
                Fill::Current { foreign } => {
                    if foreign {
                        self.content_changed_elsewhere(ino);
                    }
                    return Ok((attr, self.options.attr_ttl));
                }
                Fill::Unknown => return Ok((attr, self.options.attr_ttl)),
                Fill::Outrun => last = Some(attr),
            }
        }
        last.map(|attr| (attr, Duration::ZERO)).ok_or_else(|| ErrorKind::Busy.into())
    }

    /// Someone else changed the content: what was cached of it here and in the kernel is void.
    pub(super) fn content_changed_elsewhere(&self, ino: Ino) {
        if self.store_orders_calls() && !self.caps.shared {
            // It was a write of ours: its attributes were seen before it was noted, for no lock is held meanwhile.
            return;
        }
        self.units.drop_inode(ino);
        self.listings.remove(ino);
        self.notices.inval_inode(ino);
        self.report_inode(ino);
    }

    /// Keeps attributes that an own change returned, unless another one ran since `since`.
    pub(super) fn own_attr(&self, attr: Attr, since: u32) -> (Attr, Duration) {
        if self.open.get(attr.ino).is_some_and(|f| f.is_dirty()) {
            self.inodes.changed(attr.ino);
            return self.getattr_store(attr.ino).unwrap_or((attr, Duration::ZERO));
        }
        let expiry = self.expiry(self.clock.now(), self.options.attr_ttl);
        if self.inodes.own(&attr, expiry, since) {
            return (attr, self.options.attr_ttl);
        }
        self.getattr_store(attr.ino).unwrap_or((attr, Duration::ZERO))
    }

    /// Changes attributes, and returns the new ones.
    ///
    /// Buffered writes come first where times are set, or their flush would set them again. Where the kernel keeps the times of files, those
    /// that it sends through a handle, alone, are what it noted at a write: they change nothing if a change of length brought newer ones.
    pub fn setattr(&self, ino: Ino, set: &SetAttr, fh: Option<Fh>) -> Result<(Attr, Duration)> {
        self.counters.op(|o| &o.setattrs);
        if set.is_empty() {
            return self.getattr(ino, None);
        }
        self.check_writable("setattr")?;
        let changed = if set.size.is_none() && self.open.get(ino).is_none() {
            let since = self.inodes.since();
            let attr = self.store.setattr(ino, set).inspect_err(|_| self.inodes.changed(ino));
            attr.map(|attr| self.own_attr(attr, since))
        } else {
            self.with_open_inode(ino, |file| self.setattr_open(file, set, fh))
        };
        if set.perm.is_some()
            && let Some(file) = self.open.get(ino)
        {
            file.set_id.changed();
        }
        self.report_inode(ino);
        changed
    }

    /// True if the handle is open, and for writing.
    pub fn may_write(&self, fh: Fh) -> bool {
        self.files.get(fh).is_ok_and(|handle| handle.access == Access::Write)
    }

    /// Whether a handle for writing is open on `ino`: the kernel may hold pages of it that were not written yet.
    pub fn is_open_for_writing(&self, ino: Ino) -> bool {
        self.open.get(ino).is_some_and(|file| file.read().write_handles > 0)
    }

    /// Whether any handle is open on `ino`.
    pub fn is_open(&self, ino: Ino) -> bool {
        self.open.get(ino).is_some()
    }

    /// Every inode that a handle is open on.
    pub fn all_open(&self) -> Vec<Ino> {
        self.open.those(|_| true)
    }

    /// Every inode that a handle for writing is open on; see [`Engine::is_open_for_writing`].
    pub fn open_for_writing(&self) -> Vec<Ino> {
        // Collected first: a file's own lock may be held for long.
        let open = self.open.those(|_| true);
        open.into_iter().filter(|&ino| self.is_open_for_writing(ino)).collect()
    }

    /// Size and use of the store.
    pub fn statfs(&self) -> Result<StatFs> {
        self.counters.op(|o| &o.statfs);
        Ok(self.store.statfs()?.within(self.store.room_bytes()?))
    }

    /// Writes out what is buffered of `ino` and was born at or before `born_max`.
    pub(super) fn flush_inode(&self, ino: Ino, born_max: u32) -> Result<()> {
        let Some(file) = self.open.acquire_open(ino) else {
            return Ok(());
        };
        let flushed = {
            let mut state = file.write();
            let flushed = self.flush_units(&file, &mut state, born_max);
            if born_max == NEVER && flushed.is_ok() {
                self.refresh(&file, &mut state);
            }
            flushed
        };
        self.release_open(file);
        flushed
    }
}
