//! Open files of the host.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use adit_core::store::StoreFile;
use adit_core::types::{AllocateMode, Ino};
use adit_core::{ErrorKind, FsError, Result};
use adit_media::host::{flush, write_all_at};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::{Errno, retry_on_intr};

use crate::folder::fail;
use crate::store::Inner;

/// An open regular file.
pub(crate) struct OpenFile {
    pub(crate) fd: OwnedFd,
    pub(crate) writable: bool,
    pub(crate) ino: Ino,
    pub(crate) inner: Arc<Inner>,
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl OpenFile {
    fn seek(&self, to: SeekFrom, op: &'static str) -> Result<u64> {
        // The position is used for nothing else: reads and writes name their offset.
        rustix::fs::seek(&self.fd, to).map_err(|e| self.failed(op, fail(e)))
    }

    /// Names the file, unless it was only asked past the end.
    fn failed(&self, op: &'static str, e: FsError) -> FsError {
        if e.kind() == ErrorKind::NoData { e } else { e.on(op, self.inner.shown(self.ino)) }
    }
}

impl StoreFile for OpenFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match rustix::io::pread(&self.fd, &mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(len) => done += len,
                Err(Errno::INTR) => {}
                Err(e) => return Err(self.failed("read", fail(e))),
            }
        }
        Ok(done)
    }

    fn write_at(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        for (offset, bytes) in pieces {
            write_all_at(&self.fd, *offset, bytes).map_err(|e| self.failed("write", e.into()))?;
        }
        Ok(())
    }

    fn times_tell(&self) -> Result<bool> {
        adit_core::host::times_tell(&self.fd).map_err(|e| self.failed("write back", fail(e)))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        retry_on_intr(|| rustix::fs::ftruncate(&self.fd, len)).map_err(|e| self.failed("truncate", fail(e)))
    }

    fn len(&self) -> Result<u64> {
        self.inner.folder.attr(&self.fd).map(|attr| attr.size)
    }

    fn flush(&self) -> Result<()> {
        flush(&self.fd).map_err(|e| self.failed("write", e.into()))
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        let sync = || if data_only { rustix::fs::fdatasync(&self.fd) } else { rustix::fs::fsync(&self.fd) };
        retry_on_intr(sync).map_err(|e| self.failed("sync", fail(e)))?;
        if data_only { Ok(()) } else { self.inner.sync_names(self.ino) }
    }

    fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        let flags = match mode {
            AllocateMode::Extend => FallocateFlags::empty(),
            AllocateMode::KeepSize => FallocateFlags::KEEP_SIZE,
            AllocateMode::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            AllocateMode::Zero { keep_size: true } => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
            AllocateMode::Zero { keep_size: false } => FallocateFlags::ZERO_RANGE,
        };
        retry_on_intr(|| rustix::fs::fallocate(&self.fd, flags, offset, len)).map_err(|e| match e {
            Errno::NOSYS => ErrorKind::NotSupported.into(),
            e => self.failed("allocate", fail(e)),
        })
    }

    fn seek_data(&self, offset: u64) -> Result<u64> {
        self.seek(SeekFrom::Data(offset), "seek")
    }

    fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.seek(SeekFrom::Hole(offset), "seek")
    }
}

/// What a fallible call of the host on `/proc` says.
pub(crate) fn told<T>(result: io::Result<T>) -> Result<T> {
    result.map_err(|e| Errno::from_io_error(&e).map_or_else(|| e.into(), fail))
}
