//! Calls on ranges of open files: `fallocate`, data and holes, copies.

use super::clock::NEVER;
use super::file::OFFSET_MAX;
use super::{Engine, Fh};
use crate::error::{ErrorKind, Result};
use crate::store::StoreFile;
use crate::types::{Access, AllocateMode};

/// One step of [`Engine::copy_range`].
const COPY_STEP_BYTES: usize = 1 << 20;

impl Engine {
    /// `fallocate(2)`. What is buffered goes to the store first.
    pub fn allocate(&self, fh: Fh, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        self.allocate_by(fh, offset, len, |file| file.allocate(offset, len, mode))
    }

    /// As [`allocate`](Self::allocate); see [`StoreFile::allocate_keeping_times`].
    pub fn allocate_keeping_times(&self, fh: Fh, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        self.allocate_by(fh, offset, len, |file| file.allocate_keeping_times(offset, len, mode))
    }

    fn allocate_by(
        &self,
        fh: Fh,
        offset: u64,
        len: u64,
        allocate: impl FnOnce(&dyn StoreFile) -> Result<()>,
    ) -> Result<()> {
        self.counters.op(|o| &o.allocates);
        self.check_writable("allocate")?;
        let handle = self.files.get(fh)?;
        if handle.access != Access::Write {
            return Err(ErrorKind::NotPermitted.into());
        }
        if len == 0 {
            return Err(ErrorKind::InvalidInput.into());
        }
        let end = offset.checked_add(len).filter(|&e| e <= OFFSET_MAX).ok_or(ErrorKind::FileTooLarge)?;
        let file = &handle.file;
        let mut state = file.write();
        self.flush_units(file, &mut state, NEVER)?;
        let writer = state.writable()?.clone();
        let allocated = if self.store_orders_calls() {
            self.inode_changed(file.ino);
            drop(state);
            let allocated = allocate(&*writer);
            state = file.write();
            allocated
        } else {
            allocate(&*writer)
        };
        let unit = self.unit_len() as u64;
        self.units.drop_range(file.ino, offset / unit, end.div_ceil(unit));
        state.unsettled = true;
        self.inode_changed(file.ino);
        match &allocated {
            Ok(()) => self.content_changed(file, &mut state),
            Err(_) => state.change_failed(),
        }
        self.refresh(file, &mut state);
        allocated
    }

    /// The next data, or the next hole, at or after `offset`.
    pub fn seek(&self, fh: Fh, offset: u64, data: bool) -> Result<u64> {
        self.counters.op(|o| &o.seeks);
        let handle = self.files.get(fh)?;
        if handle.file.is_dirty() {
            self.flush_units(&handle.file, &mut handle.file.write(), NEVER)?;
        }
        let state = handle.file.read();
        let file = state.readable()?;
        if data { file.seek_data(offset) } else { file.seek_hole(offset) }
    }

    /// Reads what is to be written elsewhere.
    fn read_to_keep(&self, fh: Fh, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if !self.store_orders_calls() {
            return self.read(fh, offset, buf);
        }
        let file = self.files.get(fh)?.file.read().readable()?.clone();
        file.read_verified_at(offset, buf)
    }

    /// Copies up to `len` bytes from one file to another, or within one where the ranges do not overlap. Returns how
    /// many; fewer at the end of the source, or where an error came after the first bytes.
    pub fn copy_range(&self, fh_in: Fh, off_in: u64, fh_out: Fh, off_out: u64, len: u64) -> Result<u64> {
        self.copy_by(fh_in, off_in, fh_out, off_out, len, |offset, bytes| self.write(fh_out, offset, bytes))
    }

    /// As [`copy_range`](Self::copy_range); see [`StoreFile::write_keeping_times`].
    pub fn copy_range_keeping_times(&self, fh_in: Fh, off_in: u64, fh_out: Fh, off_out: u64, len: u64) -> Result<u64> {
        self.copy_by(fh_in, off_in, fh_out, off_out, len, |offset, bytes| {
            self.write_keeping_times(fh_out, offset, bytes)
        })
    }

    fn copy_by(
        &self,
        fh_in: Fh,
        off_in: u64,
        fh_out: Fh,
        off_out: u64,
        len: u64,
        write: impl Fn(u64, &[u8]) -> Result<usize>,
    ) -> Result<u64> {
        self.counters.op(|o| &o.copies);
        self.check_writable("copy")?;
        let same = self.files.get(fh_in)?.file.ino == self.files.get(fh_out)?.file.ino;
        let (end_in, end_out) = match (off_in.checked_add(len), off_out.checked_add(len)) {
            (Some(a), Some(b)) if a <= OFFSET_MAX && b <= OFFSET_MAX => (a, b),
            _ => return Err(ErrorKind::FileTooLarge.into()),
        };
        if same && off_in < end_out && off_out < end_in {
            return Err(ErrorKind::InvalidInput.into());
        }
        let mut buf = vec![0; COPY_STEP_BYTES.min(usize::try_from(len).unwrap_or(COPY_STEP_BYTES))];
        let mut done = 0;
        while done < len {
            let want = buf.len().min(usize::try_from(len - done).unwrap_or(buf.len()));
            let step = self.read_to_keep(fh_in, off_in + done, &mut buf[..want]).and_then(|n| match n {
                0 => Ok(0),
                n => write(off_out + done, &buf[..n]),
            });
            match step {
                Ok(0) => break,
                Ok(n) => done += n as u64,
                Err(e) => {
                    // Nothing was written of what could not be read.
                    self.files.get(fh_out)?.file.write().change_failed();
                    if done == 0 {
                        return Err(e);
                    }
                    break;
                }
            }
        }
        Ok(done)
    }
}
