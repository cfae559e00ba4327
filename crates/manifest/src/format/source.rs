//! Where a manifest's bytes are read from, more than once.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// Bytes that can be read from the beginning as often as is needed: the keys of a manifest may come in any order, and what is
/// at its end can decide what its beginning means.
pub trait Source {
    /// A reader of all bytes.
    ///
    /// # Errors
    /// Those of the medium.
    fn open(&self) -> io::Result<Box<dyn Read + '_>>;

    /// The length in bytes, if it is known: what progress is measured against.
    fn len_bytes(&self) -> Option<u64>;
}

impl Source for [u8] {
    fn open(&self) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(self))
    }

    fn len_bytes(&self) -> Option<u64> {
        Some(self.len() as u64)
    }
}

/// By offset: the file's own position stays where it is.
impl Source for File {
    fn open(&self) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(AtOffset { file: self, offset: 0 }))
    }

    fn len_bytes(&self) -> Option<u64> {
        self.metadata().ok().map(|metadata| metadata.len())
    }
}

struct AtOffset<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for AtOffset<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read_at(buffer, self.offset)?;
        self.offset += len as u64;
        Ok(len)
    }
}
