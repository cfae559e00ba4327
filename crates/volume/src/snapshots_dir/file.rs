//! An open file of a snapshot, which keeps the snapshot from being deleted.

use std::sync::Arc;

use adit_core::store::StoreFile;
use adit_core::types::AllocateMode;
use adit_core::{ErrorKind, Result};

use super::SnapshotsDir;

/// A use of a snapshot that keeps it from being deleted.
pub(super) struct Using {
    pub dir: SnapshotsDir,
    pub number: u64,
}

impl Drop for Using {
    fn drop(&mut self) {
        let mut slots = self.dir.0.slots.lock();
        if let Some(slot) = slots.by_number.get_mut(&self.number) {
            slot.open -= 1;
        }
        slots.tidy(self.number);
        drop(slots);
        self.dir.0.closed.notify_all();
    }
}

/// An open file of a snapshot. Fields are dropped in this order: the file uses what the other keeps.
pub(super) struct SnapshotFile {
    pub file: Arc<dyn StoreFile>,
    pub _using: Using,
}

impl StoreFile for SnapshotFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file.read_at(offset, buf)
    }

    fn write_at(&self, _pieces: &[(u64, &[u8])]) -> Result<()> {
        Err(ErrorKind::ReadOnly.into())
    }

    fn set_len(&self, _len: u64) -> Result<()> {
        Err(ErrorKind::ReadOnly.into())
    }

    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn sync(&self, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, _offset: u64, _len: u64, _mode: AllocateMode) -> Result<()> {
        Err(ErrorKind::ReadOnly.into())
    }

    fn seek_data(&self, offset: u64) -> Result<u64> {
        self.file.seek_data(offset)
    }

    fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.file.seek_hole(offset)
    }
}
