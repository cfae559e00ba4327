//! Blocks of files outside of the volume's file: one linear space of segments, each an object of the folder.
//!
//! The label on the folder says whose it is. Nothing is read or written before [`Folder::claim`] has compared it with the
//! superblock: a folder of another volume, or of an earlier or later state of this one, holds other blocks.

use std::io;
use std::sync::Arc;

use adit_core::media::ExtentObjects;
use adit_core::{ErrorKind, FsError, Result};

use crate::format::container::Superblock;
use crate::format::data::Label;

/// Where the blocks of a volume's files are, if not in its file.
#[derive(Clone)]
pub struct Folder {
    /// The medium.
    pub objects: Arc<dyn ExtentObjects>,
    /// For messages.
    pub name: String,
}

/// A stretch of the linear space in one segment: the segment, the offset in it, and the length.
pub(crate) fn pieces(segment_len: u32, offset: u64, len: usize) -> impl Iterator<Item = (u32, u64, usize)> {
    let (mut offset, mut left) = (offset, len);
    std::iter::from_fn(move || {
        let (segment, at) = (offset / u64::from(segment_len), offset % u64::from(segment_len));
        let now = left.min((u64::from(segment_len) - at) as usize);
        offset = offset.saturating_add(now as u64);
        left -= now;
        (now > 0).then_some((u32::try_from(segment).unwrap_or(u32::MAX), at, now))
    })
}

impl Folder {
    fn failed(&self, op: &'static str) -> impl Fn(io::Error) -> FsError {
        move |e| FsError::from(e).on(op, &self.name)
    }

    /// The label of a volume with this superblock.
    pub(crate) fn label(superblock: &Superblock, epoch: u64, opening: bool) -> Label {
        Label { uuid: superblock.uuid, segment_len: superblock.segment_len, epoch, opening }
    }

    /// Locks the folder, and makes sure that it is the one that `superblock` means.
    ///
    /// # Errors
    /// `Busy`; `Corrupt` (the label is damaged); `InvalidInput` (it is another volume's); `Stale` (it goes with an earlier or
    /// later state of the file).
    pub(crate) fn claim(&self, superblock: &Superblock, read_only: bool) -> Result<()> {
        if !self.objects.try_lock(!read_only).map_err(self.failed("lock"))? {
            let why = "another process has it, with this volume or a copy of it";
            return Err(FsError::new(ErrorKind::Busy).on("open", &self.name).because(why));
        }
        let wrong = |kind, why: &'static str| Err(FsError::new(kind).on("open", &self.name).because(why));
        let bytes = self.objects.label().map_err(self.failed("read"))?;
        let Some(label) = Label::newest(&bytes) else {
            return wrong(ErrorKind::Corrupt, "the label of the data folder is damaged");
        };
        if label.uuid != superblock.uuid || label.segment_len != superblock.segment_len {
            return wrong(ErrorKind::InvalidInput, "this data folder belongs to another volume");
        }
        if !label.fits(superblock.epoch) {
            let why = if label.epoch > superblock.epoch {
                "the data folder has changed since this copy of the volume's file was made; use the file that was used last, or \
                 restore both from one backup"
            } else {
                "the data folder is older than the volume's file; restore both from one backup"
            };
            return wrong(ErrorKind::Stale, why);
        }
        Ok(())
    }

    /// Writes to the label, durably, that a superblock of `epoch` is about to be written, or has been.
    pub(crate) fn set_epoch(&self, superblock: &Superblock, epoch: u64, opening: bool) -> Result<()> {
        let label = Folder::label(superblock, epoch, opening);
        self.objects.write_label(label.offset(), &label.encode()).map_err(self.failed("write"))
    }

    /// A number that those of all objects are below.
    pub(crate) fn end(&self) -> Result<u32> {
        let objects = self.objects.list().map_err(self.failed("list"))?;
        Ok(objects.into_iter().max().map_or(0, |last| last.saturating_add(1)))
    }

    /// Reads at `offset` of the space, up to the first byte that is not there.
    pub(crate) fn read(&self, segment_len: u32, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        for (object, at, len) in pieces(segment_len, offset, buf.len()) {
            let Some(buf) = buf.get_mut(done..done + len) else { break };
            let read = match self.objects.read_at(object, at, buf) {
                Ok(read) => read,
                Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
                Err(e) => return Err(self.failed("read")(e)),
            };
            done += read;
            if read < len {
                break;
            }
        }
        Ok(done)
    }

    /// Writes at `offset` of the space.
    pub(crate) fn write(&self, segment_len: u32, offset: u64, mut bytes: &[u8]) -> io::Result<()> {
        for (object, at, len) in pieces(segment_len, offset, bytes.len()) {
            let (now, rest) = bytes.split_at(len);
            self.objects.write_at(object, at, now)?;
            bytes = rest;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_is_cut_at_the_ends_of_segments() {
        let cut = |offset, len| pieces(100, offset, len).collect::<Vec<_>>();
        assert_eq!(cut(250, 200), [(2, 50, 50), (3, 0, 100), (4, 0, 50)]);
        assert_eq!(cut(200, 100), [(2, 0, 100)]);
        assert_eq!(cut(5, 0), []);
    }
}
