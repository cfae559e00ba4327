//! A range of a file on its way to a store, hashed as it is read.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::media::ContentSource;
use adit_core::store::StoreFile;
use parking_lot::Mutex;

use super::changed;
use crate::format::{ContentHash, Hasher};

/// How much is read at once where it is only compared.
const READ_LEN_BYTES: usize = 1 << 20;

/// The content of an object, which a store reads from its beginning to its end, once or several times. Its last bytes are only given if all
/// that was read has the hash.
pub(super) struct Piece<'a> {
    file: &'a dyn StoreFile,
    offset: u64,
    len: u64,
    hash: ContentHash,
    is_over: &'a AtomicBool,
    read: &'a AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    hasher: Hasher,
    /// The bytes before this one are hashed.
    hashed: u64,
    /// Why it was not read to its end.
    failure: Option<FsError>,
}

impl<'a> Piece<'a> {
    /// The range of `file`, which should have this hash; a read fails once the flag is set, and its bytes are counted.
    pub fn new(
        file: &'a dyn StoreFile,
        offset: u64,
        len: u64,
        hash: ContentHash,
        (is_over, read): (&'a AtomicBool, &'a AtomicU64),
    ) -> Self {
        Piece { file, offset, len, hash, is_over, read, state: Mutex::default() }
    }

    /// Reads all of it, without a store.
    ///
    /// # Errors
    /// As a read, and [`failure`](Self::failure) tells it.
    pub fn check(&self) -> Result<()> {
        let mut buffer = vec![0; READ_LEN_BYTES];
        let mut at = 0;
        while at < self.len {
            let len = (self.len - at).min(READ_LEN_BYTES as u64) as usize;
            self.read_exact_at(at, &mut buffer[..len])?;
            at += len as u64;
        }
        Ok(())
    }

    /// Why it was not read to its end, if the file, or a signal, is to blame.
    pub fn failure(&self) -> Option<FsError> {
        self.state.lock().failure.take()
    }

    fn read(&self, at: u64, mut into: &mut [u8]) -> Result<()> {
        let mut offset = self.offset + at;
        while !into.is_empty() {
            if self.is_over.load(Ordering::Relaxed) {
                return Err(ErrorKind::Interrupted.into());
            }
            let read = self.file.read_at(offset, into)?;
            if read == 0 {
                return Err(changed());
            }
            offset += read as u64;
            into = into.get_mut(read..).unwrap_or_default();
        }
        Ok(())
    }

    /// Takes a piece into the hash, and compares that at the end.
    fn take(&self, state: &mut State, at: u64, bytes: &[u8]) -> Result<()> {
        if at == 0 {
            (state.hasher, state.hashed) = (Hasher::default(), 0);
        }
        if at != state.hashed {
            // No store does so; one that would could not be told what it got.
            return Err(FsError::new(ErrorKind::NotSupported).because("the store reads it out of order"));
        }
        state.hasher.update(bytes);
        state.hashed += bytes.len() as u64;
        self.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if state.hashed == self.len && state.hasher.finish() != self.hash { Err(changed()) } else { Ok(()) }
    }
}

impl ContentSource for Piece<'_> {
    fn content_len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut state = self.state.lock();
        self.read(offset, buf).and_then(|()| self.take(&mut state, offset, buf)).map_err(|e| {
            let said = io::Error::other(e.to_string());
            state.failure = Some(e);
            said
        })
    }
}
