//! Objects of a content-addressed store by the hash of their content: under which keys they lie, and how their bytes are fetched.
//!
//! [`DataKeys`] has the keys, [`ObjectSource`] fetches for the [cache](crate::cache). What it hands on was as long as it should be;
//! that it has its hash, the cache finds out. [`ObjectDocument`] is a manifest that lies in a store itself.

mod document;
mod parts;
mod verify;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::media::{Objects, check_object_prefix};
use parking_lot::Mutex;

use crate::cache::{Fetch, ObjectFault, ObjectId};
use crate::format::ContentHash;

pub use document::ObjectDocument;
pub use verify::{Verified, verify};

/// The folder of data objects below the root of a queue.
const DATA_FOLDER: &str = "Data";
/// What stands behind the hash in a key.
const SUFFIX: &str = ".xxh128";
/// Bytes of one request at most. What is longer is got by several at a time.
pub(crate) const REQUEST_LEN_BYTES: u64 = 4 << 20;
/// Objects that are remembered to lie under a key without the suffix. A lapse costs a request.
const BARE_MAX: usize = 1 << 16;

/// The keys of data objects: `{folder}/{hash}.xxh128`, and for reading `{folder}/{hash}` where that is missing, as the official
/// package has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataKeys {
    /// With the slash behind it; empty for the store's own root.
    folder: Box<str>,
}

impl DataKeys {
    /// Keys in `folder` of the store, which may be empty, and may end with a slash.
    ///
    /// # Errors
    /// `InvalidInput` for what no key can begin with.
    pub fn new(folder: &str) -> Result<Self> {
        let folder = folder.strip_suffix('/').unwrap_or(folder);
        let folder = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        check_object_prefix(&folder)?;
        Ok(DataKeys { folder: folder.into() })
    }

    /// The key of the object with this content.
    pub fn key(&self, hash: &ContentHash) -> String {
        format!("{}{hash}{SUFFIX}", self.folder)
    }

    /// The key under which an older program may have put it.
    pub fn bare_key(&self, hash: &ContentHash) -> String {
        format!("{}{hash}", self.folder)
    }
}

impl Default for DataKeys {
    /// Those below the root of a queue, in `Data`.
    fn default() -> Self {
        DataKeys { folder: format!("{DATA_FOLDER}/").into() }
    }
}

/// Data objects of a store, for the [cache](crate::cache::Cache).
///
/// Nothing is tried again here: [`Objects`] does that, within a deadline of its own. Tags are not asked for, because the hash of
/// what comes decides.
pub struct ObjectSource {
    objects: Arc<dyn Objects>,
    keys: DataKeys,
    /// What lies under its bare key.
    bare: Mutex<HashSet<ContentHash>>,
    buffers: Mutex<Vec<Vec<u8>>>,
}

impl ObjectSource {
    /// The objects of `objects` under `keys`.
    pub fn new(objects: Arc<dyn Objects>, keys: DataKeys) -> Self {
        ObjectSource { objects, keys, bare: Mutex::default(), buffers: Mutex::default() }
    }

    /// The store, for messages.
    pub fn describe(&self) -> String {
        self.objects.describe()
    }

    /// Fills `buf` with the object's bytes from `at` on, which it has.
    fn read(&self, id: &ObjectId, at: u64, buf: &mut [u8]) -> Result<()> {
        let is_bare = self.bare.lock().contains(&id.hash);
        let missing = match self.read_under(id, is_bare, at, buf) {
            Err(e) if e.is_not_found() => e,
            result => return result,
        };
        match self.read_under(id, !is_bare, at, buf) {
            Ok(()) => {
                let bare = &mut *self.bare.lock();
                if is_bare {
                    bare.remove(&id.hash);
                } else if bare.len() < BARE_MAX {
                    bare.insert(id.hash);
                }
                Ok(())
            }
            // The first one tells why: the object is missing, or its bucket.
            Err(e) if e.is_not_found() => {
                let subject = missing.subject().map_or_else(|| self.keys.key(&id.hash), str::to_owned);
                let answer = missing.cause().map(ToString::to_string);
                let fault = ObjectFault::Missing { store: self.objects.describe(), answer };
                Err(FsError::new(ErrorKind::Io).on("read object", subject).because(fault))
            }
            Err(e) => Err(e),
        }
    }

    fn read_under(&self, id: &ObjectId, is_bare: bool, at: u64, buf: &mut [u8]) -> Result<()> {
        let key = if is_bare { self.keys.bare_key(&id.hash) } else { self.keys.key(&id.hash) };
        let fetched = self.objects.read_at(&key, at, buf, None)?;
        let (got, expected) = (fetched.count as u64, buf.len() as u64);
        let fault = if fetched.object.len != id.len {
            ObjectFault::Length { found: fetched.object.len, expected: id.len }
        } else if got < expected {
            ObjectFault::Short { got, expected, len: id.len }
        } else {
            return Ok(());
        };
        Err(FsError::new(ErrorKind::Corrupt).on("read object", key).because(fault))
    }

    /// A buffer of this length, with anything in it.
    fn buffer(&self, len: u64) -> Vec<u8> {
        let mut buffer = self.buffers.lock().pop().unwrap_or_default();
        // A request's length at most.
        buffer.resize(len as usize, 0);
        buffer
    }

    /// Takes a buffer back.
    fn give_back(&self, buffer: Vec<u8>) {
        let buffers = &mut *self.buffers.lock();
        if buffers.len() < parts::AT_ONCE_MAX {
            buffers.push(buffer);
        }
    }
}

impl Fetch for ObjectSource {
    fn fetch(&self, id: &ObjectId, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if range.end - range.start > REQUEST_LEN_BYTES {
            return self.fetch_in_parts(id, range, sink);
        }
        let mut buffer = self.buffer(range.end - range.start);
        let result = self.read(id, range.start, &mut buffer).and_then(|()| sink(&buffer));
        self.give_back(buffer);
        result
    }
}

#[cfg(test)]
mod tests;
