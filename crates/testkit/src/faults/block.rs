//! A single file that a store lies in, with faults.

use std::io;
use std::sync::Arc;

use adit_core::media::BlockFile;

use super::{CallClass, Faults};

/// A [`BlockFile`] some calls of which fail. See [`Faults::wrap_block`].
pub struct FaultyBlockFile {
    pub(super) inner: Arc<dyn BlockFile>,
    pub(super) faults: Faults,
}

impl FaultyBlockFile {
    fn pass(&self, class: CallClass) -> io::Result<()> {
        self.faults.pass(class, &String::new)
    }
}

impl BlockFile for FaultyBlockFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.pass(CallClass::Read)?;
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let subject = || format!("at {offset}, {} bytes", bytes.len());
        self.faults.write(&subject, bytes, |bytes| self.inner.write_at(offset, bytes))
    }

    fn len(&self) -> io::Result<u64> {
        self.pass(CallClass::Stat)?;
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.pass(CallClass::SetLen)?;
        self.inner.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.pass(CallClass::Sync)?;
        self.inner.sync()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.pass(CallClass::Write)?;
        self.inner.punch(offset, len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.allocate(offset, len)
    }

    fn start_writeback(&self, offset: u64, len: u64) {
        self.inner.start_writeback(offset, len);
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.inner.try_lock()
    }
}
