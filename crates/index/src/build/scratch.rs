//! Scratch files of a build: they have no name, so they go with the process however it ends.
//!
//! Those of a vault's index are encrypted by a key that only this process has, and only in memory (feature `sealed`): what names and
//! sizes a vault has is never on the disk in clear. Each byte is written once, so a stream cipher needs no more than that.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::publish;
#[cfg(feature = "sealed")]
use crate::sealed::{Stream, StreamKey};

/// Where scratch files lie, and how.
#[derive(Clone)]
pub(crate) struct Place {
    folder: PathBuf,
    #[cfg(feature = "sealed")]
    key: Option<std::sync::Arc<StreamKey>>,
}

impl Place {
    /// In the folder `folder`, in clear.
    pub fn new(folder: &Path) -> Place {
        Place {
            folder: folder.to_owned(),
            #[cfg(feature = "sealed")]
            key: None,
        }
    }

    /// From here on they are encrypted.
    #[cfg(feature = "sealed")]
    pub fn seal(&mut self) -> adit_core::error::Result<()> {
        self.key = Some(std::sync::Arc::new(StreamKey::random()?));
        Ok(())
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A new, empty file.
    pub fn file(&self) -> io::Result<ScratchFile> {
        Ok(ScratchFile {
            file: publish::unnamed(&self.folder)?,
            at: 0,
            #[cfg(feature = "sealed")]
            stream: self.key.as_ref().map(|key| key.stream()),
        })
    }
}

/// A scratch file. Written and read in order by [`Write`] and [`Read`], with one position for both, and at any place.
pub(crate) struct ScratchFile {
    file: File,
    at: u64,
    #[cfg(feature = "sealed")]
    stream: Option<Stream>,
}

impl ScratchFile {
    /// Reads all of `bytes` at `offset`.
    pub fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)?;
        #[cfg(feature = "sealed")]
        self.stream.iter().try_for_each(|stream| stream.apply(bytes, offset))?;
        Ok(())
    }

    /// Writes all of `bytes` at `offset`, where nothing was written before.
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        #[cfg(feature = "sealed")]
        if let Some(stream) = &self.stream {
            let mut sealed = bytes.to_vec();
            stream.apply(&mut sealed, offset)?;
            return self.file.write_all_at(&sealed, offset);
        }
        self.file.write_all_at(bytes, offset)
    }

    /// Goes back to the beginning.
    pub fn rewind(&mut self) {
        self.at = 0;
    }
}

impl Read for ScratchFile {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read_at(buf, self.at)?;
        #[cfg(feature = "sealed")]
        self.stream.iter().try_for_each(|stream| stream.apply(&mut buf[..len], self.at))?;
        self.at += len as u64;
        Ok(len)
    }
}

impl Write for ScratchFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_all_at(buf, self.at)?;
        self.at += buf.len() as u64;
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
