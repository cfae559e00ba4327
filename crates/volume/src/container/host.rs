//! The file on its host: reads and writes, its length, and the space that the host keeps for it or gets back.
//!
//! A failure of what the volume needs to go on ends all writing. A refusal does not (the host has no space, or permits no change), where nothing
//! durable leads to what was to be written.

use std::sync::atomic::Ordering;

use adit_core::error::kind_of_io;
use adit_core::{ErrorKind, FsError, Result};

use super::{Container, Space};
use crate::format::container::SLOT_OFFSETS;
use crate::table::BLOCK_LEN_BYTES;

impl Container {
    /// Reads; what is beyond the file's end is zeros. Returns how many bytes there were.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let len = self.file.read_at(offset, buf).map_err(|e| FsError::from(e).on("read", &self.name))?;
        buf.get_mut(len..).unwrap_or_default().fill(0);
        Ok(len)
    }

    /// Writes what the volume needs to go on; a failure ends all writing.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_writable()?;
        self.file.write_at(offset, bytes).map_err(|e| self.fail("write", e))
    }

    /// As [`Container::write`], for what nothing durable leads to yet: a refusal of the host is the caller's, who leaves it and tries
    /// again later. Any other failure ends all writing.
    pub fn write_new(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_writable()?;
        self.file.write_at(offset, bytes).map_err(|e| self.unless_refused("write", e))
    }

    /// What [`ErrorKind::is_refusal`] knows, if the host refused; else writing ended.
    fn unless_refused(&self, what: &'static str, e: std::io::Error) -> FsError {
        let kind = kind_of_io(&e);
        if !kind.is_refusal() {
            return self.fail(what, e);
        }
        *self.refusal.lock() = kind;
        self.refused(what)
    }

    /// What to say where the host refuses: as it did last.
    pub fn refused(&self, what: &'static str) -> FsError {
        let kind = *self.refusal.lock();
        FsError::new(kind).on(what, &self.name).because(match kind {
            ErrorKind::QuotaExceeded => "the quota of its owner is used up on the disk that it lies on",
            ErrorKind::FileTooLarge => "its host lets it grow no longer",
            ErrorKind::NotPermitted | ErrorKind::PermissionDenied => {
                "its host lets nobody change it for now (chattr +i?)"
            }
            _ => "the disk that it lies on is full",
        })
    }

    /// Makes the host keep space for a range, unless it cannot: then writes to it may find none. After `NoSpace` it may keep some
    /// of it.
    pub fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.check_writable()?;
        if !self.allocates() {
            return Ok(());
        }
        match self.file.allocate(offset, len) {
            Err(e) if kind_of_io(&e).is_refusal() => Err(self.unless_refused("allocate space for", e)),
            Err(_) => {
                // Whatever the reason: whoever writes there finds out.
                self.allocates.store(false, Ordering::Relaxed);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// How many bytes the host has room for besides what is there, where blocks of files lie; `u64::MAX` where it does not say.
    pub fn host_room_bytes(&self) -> u64 {
        match &self.folder {
            None => self.file.host_room_bytes(),
            Some(folder) => folder.objects.host_room_bytes(),
        }
    }

    /// Finds out whether the host keeps space in advance, with what has some: before anything depends on it.
    pub fn find_allocates(&self) -> Result<()> {
        match self.allocate(SLOT_OFFSETS[0], BLOCK_LEN_BYTES as u64) {
            Err(e) if !e.kind().is_refusal() => Err(e),
            _ => Ok(()),
        }
    }

    /// Whether the host keeps space in advance, as far as is known.
    pub fn allocates(&self) -> bool {
        self.allocates.load(Ordering::Relaxed)
    }

    /// As [`Container::write`], for what the log takes along: a failure is the caller's.
    pub fn write_spare(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_writable()?;
        self.file.write_at(offset, bytes).map_err(|e| FsError::from(e).on("write", &self.name))
    }

    /// Makes the file long enough for a segment. Whoever binds one does this before writing to it. `NoSpace` is the caller's; any
    /// other failure ends all writing.
    pub fn extend_to(&self, segment: u32) -> Result<()> {
        self.check_writable()?;
        self.extend(segment).map_err(|e| self.unless_refused("extend", e))
    }

    /// As [`Container::extend_to`], for what nobody needs yet: a failure is the caller's.
    pub fn try_extend_to(&self, segment: u32) -> Result<()> {
        self.check_writable()?;
        self.extend(segment).map_err(|e| FsError::from(e).on("extend", &self.name))
    }

    fn extend(&self, segment: u32) -> std::io::Result<()> {
        let end = self.segment_offset(segment) + u64::from(self.segment_len);
        // Only here it becomes longer, and shorter by `shorten` alone.
        let mut len = self.len.lock();
        if *len < end {
            self.file.set_len(end)?;
            *len = end;
        }
        Ok(())
    }

    /// Cuts off what is free at the file's end. Nobody binds a segment meanwhile: the caller has `space`. What is durable names
    /// nothing there.
    pub fn shorten(&self, space: &Space) -> Result<()> {
        self.check_writable()?;
        let end = self.segment_offset(space.file_segments());
        let mut len = self.len.lock();
        if end < *len {
            self.file.set_len(end).map_err(|e| FsError::from(e).on("shorten", &self.name))?;
            *len = end;
        }
        Ok(())
    }

    /// Starts to write the range back.
    pub fn start_writeback(&self, offset: u64, len: u64) {
        self.file.start_writeback(offset, len);
    }

    /// Gives a segment's space back to the host, if it takes it.
    pub fn punch_segment(&self, segment: u32) {
        self.punch(self.segment_offset(segment), u64::from(self.segment_len));
    }

    /// Gives the space of a segment from `from` bytes on back to the host, if it takes it.
    pub fn punch_tail(&self, segment: u32, from: u64) {
        self.punch(self.segment_offset(segment) + from, u64::from(self.segment_len).saturating_sub(from));
    }

    /// Gives the space of a range back to the host, if it takes it. What is there then is undefined.
    pub fn punch(&self, offset: u64, len: u64) {
        self.punch_with(|| self.file.punch(offset, len));
    }

    pub(super) fn punch_with(&self, punch: impl FnOnce() -> std::io::Result<()>) {
        // Nothing relies on it, so a failure costs space and no more.
        if self.punches.load(Ordering::Relaxed)
            && let Err(e) = punch()
            && e.kind() == std::io::ErrorKind::Unsupported
        {
            self.punches.store(false, Ordering::Relaxed);
        }
    }
}
