//! The file on its host: reads and writes, its length, and the space that the host keeps for it or gets back.
//!
//! A failure of what the volume needs to go on ends all writing. A refusal does not (the host has no space, or permits no change), where nothing
//! durable leads to what was to be written.

use std::sync::atomic::{AtomicU64, Ordering};

use adit_core::error::kind_of_io;
use adit_core::{ErrorKind, FsError, Result};

use super::{Container, Space};

/// A host's last refusal of space: what it said to have left then is of no use, until as much is had again. It may be kept for others, or
/// a quota be used up of which it tells nothing.
#[derive(Default)]
pub(super) struct Refusal {
    room_bytes: AtomicU64,
    /// How much was asked for; 0 without any refusal.
    len: AtomicU64,
}

impl Refusal {
    /// Notes the outcome of a call that takes `len` bytes. `room_bytes` is asked only after a refusal.
    pub fn heed(&self, len: u64, outcome: &std::io::Result<()>, room_bytes: impl FnOnce() -> u64) {
        let refused = self.len.load(Ordering::Relaxed);
        match outcome {
            Err(e)
                if !matches!(kind_of_io(e), ErrorKind::NotPermitted | ErrorKind::PermissionDenied)
                    && kind_of_io(e).is_refusal() =>
            {
                self.room_bytes.store(room_bytes(), Ordering::Relaxed);
                self.len.store(len.max(1), Ordering::Relaxed);
            }
            Ok(()) if refused > 0 && len >= refused => {
                self.len.store(0, Ordering::Relaxed);
                self.room_bytes.store(0, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// The part of `room_bytes` that can be used.
    pub fn left(&self, room_bytes: u64) -> u64 {
        room_bytes.saturating_sub(self.room_bytes.load(Ordering::Relaxed))
    }
}
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
        let written = self.with_file(bytes.len() as u64, || self.file.write_at(offset, bytes));
        written.map_err(|e| self.unless_refused("write", e))
    }

    /// A call that takes `len` bytes of space for the file. Its outcome is heeded.
    pub(super) fn with_file(&self, len: u64, call: impl FnOnce() -> std::io::Result<()>) -> std::io::Result<()> {
        let outcome = call();
        self.file_refusal.heed(len, &outcome, || self.file.host_room_bytes());
        outcome
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
        match self.with_file(len, || self.file.allocate(offset, len)) {
            Err(e) if kind_of_io(&e).is_refusal() => Err(self.unless_refused("allocate space for", e)),
            Err(_) => {
                // Whatever the reason: whoever writes there finds out.
                self.allocates.store(false, Ordering::Relaxed);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// How many bytes the host has room for besides what is in use, where blocks of files lie; `u64::MAX` where it does not say. None but that of
    /// freed blocks where the file itself has found no room.
    pub fn host_room_bytes(&self) -> u64 {
        let of_file = self.file_refusal.left(self.file.host_room_bytes());
        let left = match &self.folder {
            Some(folder) if of_file > 0 => self.folder_refusal.left(folder.objects.host_room_bytes()),
            _ => of_file,
        };
        // It is given to the host when that is short of it.
        left.saturating_add(self.space().held_blocks() * BLOCK_LEN_BYTES as u64)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_refused_is_no_room_until_it_is_had() {
        let refusal = Refusal::default();
        let full = || Err(std::io::ErrorKind::StorageFull.into());
        refusal.heed(100, &Ok(()), || panic!("nothing was refused"));
        assert_eq!(refusal.left(500), 500);
        refusal.heed(100, &full(), || 70);
        assert_eq!((refusal.left(70), refusal.left(50), refusal.left(500)), (0, 0, 430));
        refusal.heed(99, &Ok(()), || panic!("nothing was refused"));
        assert_eq!(refusal.left(70), 0, "less fits in still");
        refusal.heed(10, &Err(std::io::ErrorKind::NotFound.into()), || panic!("nothing was refused"));
        refusal.heed(100, &Ok(()), || panic!("nothing was refused"));
        assert_eq!(refusal.left(70), 70);
    }
}
