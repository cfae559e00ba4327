//! A manifest that lies in an object store itself.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_core::error::Result;
use adit_core::media::{ObjectInfo, Objects};

use crate::format::{ContentHash, Source};

/// Bytes of one request.
const REQUEST_LEN_BYTES: usize = 4 << 20;

/// An object of a store that is read from its beginning on, as often as is needed. It is the same object each time: one that is
/// replaced meanwhile is `Stale`, where the store has tags.
pub struct ObjectDocument {
    objects: Arc<dyn Objects>,
    key: String,
    info: ObjectInfo,
    kept: Option<Mutex<Kept>>,
}

/// What was fetched, from the beginning on.
struct Kept {
    file: File,
    len: u64,
    /// The file takes no more.
    is_full: bool,
}

impl ObjectDocument {
    /// The object with this key, which is looked at, and not read yet.
    ///
    /// # Errors
    /// Those of [`Objects::head`].
    pub fn open(objects: Arc<dyn Objects>, key: &str) -> Result<Self> {
        let info = objects.head(key)?;
        Ok(ObjectDocument { objects, key: key.to_owned(), info, kept: None })
    }

    /// Puts what is fetched into `file`, which is empty and has no other user, and fetches it once, however often it is read. What does not fit there
    /// is fetched again.
    #[must_use]
    pub fn keeping_in(self, file: File) -> Self {
        ObjectDocument { kept: Some(Mutex::new(Kept { file, len: 0, is_full: false })), ..self }
    }

    /// What the store says of it.
    pub fn info(&self) -> &ObjectInfo {
        &self.info
    }

    /// The hash of its bytes, all of which are fetched.
    ///
    /// # Errors
    /// Those of the store.
    pub fn hash(&self) -> io::Result<ContentHash> {
        ContentHash::of_stream(self.open()?)
    }

    /// Bytes that are others when the object is another: where it lies, its length and its tag. None if the store has no tags.
    pub fn origin(&self) -> Option<Vec<u8>> {
        let tag = self.info.tag.as_ref()?;
        let place = self.objects.describe();
        let mut origin = b"object".to_vec();
        for part in [place.as_bytes(), self.key.as_bytes(), tag.as_str().as_bytes(), &self.info.len.to_le_bytes()] {
            origin.extend_from_slice(&(part.len() as u64).to_le_bytes());
            origin.extend_from_slice(part);
        }
        Some(origin)
    }
}

impl Source for ObjectDocument {
    fn open(&self) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(Reader { document: self, offset: 0, buffer: Vec::new(), used: 0 }))
    }

    fn len_bytes(&self) -> Option<u64> {
        Some(self.info.len)
    }
}

struct Reader<'a> {
    document: &'a ObjectDocument,
    /// Where the next request begins.
    offset: u64,
    buffer: Vec<u8>,
    used: usize,
}

impl Reader<'_> {
    fn kept(&self) -> Option<MutexGuard<'_, Kept>> {
        Some(self.document.kept.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Fills `buffer` with what is next, if all of that is kept.
    fn read_kept(&self, buffer: &mut [u8]) -> io::Result<bool> {
        let Some(kept) = self.kept() else { return Ok(false) };
        let is_there = self.offset + buffer.len() as u64 <= kept.len;
        if is_there {
            kept.file.read_exact_at(buffer, self.offset)?;
        }
        Ok(is_there)
    }

    /// Keeps what is next, if all before it is kept.
    fn keep(&self, bytes: &[u8]) {
        let Some(mut kept) = self.kept() else { return };
        if kept.is_full || kept.len != self.offset {
            return;
        }
        match kept.file.write_all_at(bytes, self.offset) {
            Ok(()) => kept.len += bytes.len() as u64,
            Err(_) => kept.is_full = true,
        }
    }
}

impl Read for Reader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.used == self.buffer.len() {
            let ObjectDocument { objects, key, info, .. } = self.document;
            let len = info.len.saturating_sub(self.offset).min(REQUEST_LEN_BYTES as u64) as usize;
            let mut buffer = vec![0; len];
            if len > 0 && !self.read_kept(&mut buffer)? {
                let fetched = objects.read_at(key, self.offset, &mut buffer, info.tag.as_ref());
                if fetched.map_err(io::Error::other)?.count < len {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                self.keep(&buffer);
            }
            (self.used, self.buffer) = (0, buffer);
            self.offset += len as u64;
        }
        let ready = self.buffer.get(self.used..).unwrap_or_default();
        let count = ready.len().min(buf.len());
        buf[..count].copy_from_slice(&ready[..count]);
        self.used += count;
        Ok(count)
    }
}
