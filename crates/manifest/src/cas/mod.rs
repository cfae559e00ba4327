//! Objects of a content-addressed store by the hash of their content: under which keys they lie, and how their bytes are fetched.
//!
//! [`DataKeys`] has the keys, [`ObjectSource`] fetches for the [cache](crate::cache). What it hands on was as long as it should be;
//! that it has its hash, the cache finds out. [`ObjectDocument`] is a manifest that lies in a store itself.

mod check;
mod document;
mod parts;
mod verify;

use std::cell::Cell;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::media::{ObjectInfo, Objects, Withheld, check_object_prefix};
use parking_lot::Mutex;

use crate::cache::{Fetch, ObjectFault, ObjectId};
use crate::format::ContentHash;

pub use check::{Checked, check};
pub use document::ObjectDocument;
pub use verify::{Verified, verify};

/// The folder of data objects below the root of a queue.
const DATA_FOLDER: &str = "Data";
/// What stands behind the hash in a key.
const SUFFIX: &str = ".xxh128";
/// Bytes of one request at most. What is longer is got by several at a time.
pub(crate) const REQUEST_LEN_BYTES: u64 = 4 << 20;
/// What the parts of all long fetches may take together, unless somebody says otherwise.
const MEMORY_DEFAULT_BYTES: u64 = 32 << 20;
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
    /// Parts that may be collected yet, of all long fetches together.
    places_left: AtomicUsize,
}

impl ObjectSource {
    /// The objects of `objects` under `keys`.
    pub fn new(objects: Arc<dyn Objects>, keys: DataKeys) -> Self {
        Self::within(objects, keys, MEMORY_DEFAULT_BYTES)
    }

    /// The same, which holds at most so many bytes of parts that came out of order; a long fetch for which there are none left goes in one
    /// request after the other.
    pub fn within(objects: Arc<dyn Objects>, keys: DataKeys, memory_bytes: u64) -> Self {
        let places = AtomicUsize::new((memory_bytes / REQUEST_LEN_BYTES) as usize);
        ObjectSource { objects, keys, bare: Mutex::default(), buffers: Mutex::default(), places_left: places }
    }

    /// The store, for messages.
    pub fn describe(&self) -> String {
        self.objects.describe()
    }

    /// Fills `buf` with the object's bytes from `at` on, which it has.
    fn read(&self, id: &ObjectId, at: u64, buf: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        self.read_through(id, at..at + buf.len() as u64, &mut |bytes| {
            // No more comes than was asked for.
            let room = buf.get_mut(filled..filled + bytes.len()).ok_or(ErrorKind::Corrupt)?;
            room.copy_from_slice(bytes);
            filled += bytes.len();
            Ok(())
        })
    }

    /// Hands on the object's bytes of `range`, which it has, in one request.
    fn read_through(&self, id: &ObjectId, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let is_bare = self.bare.lock().contains(&id.hash);
        let has_begun = Cell::new(false);
        let mut sink = |bytes: &[u8]| {
            has_begun.set(true);
            sink(bytes)
        };
        let missing = match self.read_under(id, is_bare, range.clone(), &mut sink) {
            Err(e) if e.is_not_found() || Withheld::is_behind(&e) => e,
            result => return result,
        };
        // It went while it was read: what comes under the other key would be its bytes once more.
        let other = if has_begun.get() {
            Err(ErrorKind::NotFound.into())
        } else {
            self.read_under(id, !is_bare, range, &mut sink)
        };
        match other {
            Ok(()) => {
                let bare = &mut *self.bare.lock();
                if is_bare {
                    bare.remove(&id.hash);
                } else if bare.len() < BARE_MAX {
                    bare.insert(id.hash);
                }
                Ok(())
            }
            // It may be missing under both keys, and only a store that lets us list says so.
            Err(e) if (e.is_not_found() || Withheld::is_behind(&e)) && Withheld::is_behind(&missing) => Err(missing),
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

    fn read_under(
        &self,
        id: &ObjectId,
        is_bare: bool,
        range: Range<u64>,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let key = if is_bare { self.keys.bare_key(&id.hash) } else { self.keys.key(&id.hash) };
        let wrong = |fault| FsError::new(ErrorKind::Corrupt).on("read object", &key).because(fault);
        let check = |object: &ObjectInfo| match object.len == id.len {
            true => Ok(()),
            false => Err(wrong(ObjectFault::Length { found: object.len, expected: id.len })),
        };
        let expected = range.end - range.start;
        // Before any of it is handed on.
        let fetched = self.objects.read_through(&key, range.start, expected, None, &mut |object, bytes| {
            check(object)?;
            sink(bytes)
        })?;
        check(&fetched.object)?;
        let got = fetched.count as u64;
        if got < expected { Err(wrong(ObjectFault::Short { got, expected, len: id.len })) } else { Ok(()) }
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

    /// Takes places for parts that are collected, at most `wanted`, and as many as are left.
    fn places(&self, wanted: usize) -> Places<'_> {
        let mut taken = 0;
        // Some or none: nobody waits for them.
        let _ = self.places_left.fetch_update(Relaxed, Relaxed, |left| {
            taken = wanted.min(left);
            Some(left - taken)
        });
        Places { source: self, taken }
    }
}

/// Places that somebody has, until this is dropped.
struct Places<'a> {
    source: &'a ObjectSource,
    taken: usize,
}

impl Drop for Places<'_> {
    fn drop(&mut self) {
        self.source.places_left.fetch_add(self.taken, Relaxed);
    }
}

impl Fetch for ObjectSource {
    fn fetch(&self, id: &ObjectId, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if range.end - range.start > REQUEST_LEN_BYTES {
            return self.fetch_in_parts(id, range, sink);
        }
        self.read_through(id, range, sink)
    }
}

#[cfg(test)]
mod tests;
