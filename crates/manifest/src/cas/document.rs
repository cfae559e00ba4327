//! A manifest that lies in an object store itself.

use std::io::{self, Read};
use std::sync::Arc;

use adit_core::error::Result;
use adit_core::media::{ObjectInfo, Objects};

use crate::format::{ContentHash, Hasher, Source};

/// Bytes of one request.
const REQUEST_LEN_BYTES: usize = 4 << 20;
/// Bytes that are hashed at a time.
const HASHED_LEN_BYTES: usize = 256 << 10;

/// An object of a store that is read from its beginning on, as often as is needed. It is the same object each time: one that is
/// replaced meanwhile is `Stale`, where the store has tags.
pub struct ObjectDocument {
    objects: Arc<dyn Objects>,
    key: String,
    info: ObjectInfo,
}

impl ObjectDocument {
    /// The object with this key, which is looked at, and not read yet.
    ///
    /// # Errors
    /// Those of [`Objects::head`].
    pub fn open(objects: Arc<dyn Objects>, key: &str) -> Result<Self> {
        let info = objects.head(key)?;
        Ok(ObjectDocument { objects, key: key.to_owned(), info })
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
        let (mut stream, mut hasher) = (self.open()?, Hasher::default());
        let mut buffer = vec![0; HASHED_LEN_BYTES];
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(hasher.finish()),
                len => hasher.update(&buffer[..len]),
            }
        }
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

impl Read for Reader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.used == self.buffer.len() {
            let ObjectDocument { objects, key, info } = self.document;
            let len = info.len.saturating_sub(self.offset).min(REQUEST_LEN_BYTES as u64) as usize;
            let mut buffer = vec![0; len];
            if len > 0 {
                let fetched = objects.read_at(key, self.offset, &mut buffer, info.tag.as_ref());
                if fetched.map_err(io::Error::other)?.count < len {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
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
