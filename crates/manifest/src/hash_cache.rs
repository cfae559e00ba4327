//! Hashes of files that were read before, by what the file was like then.
//!
//! A file is believed to be the same if its inode number, length, and times of modification and of change are. Where that may not
//! tell a change, nothing is noted: a file that was touched less than [`DOUBT`] before it was read can change once more within one
//! tick of its clock. What programs write through mappings gives a file new times only once for each time that its pages are sent to the
//! medium, so they are before it is read ([`StoreFile::times_tell`](adit_core::store::StoreFile::times_tell)), and of a file in memory nothing
//! is noted, nor of one on a filesystem that makes numbers and times up: of two that are mounted in turn, two files may have the same ones. The name
//! of a [`Scope`] tells such filesystems apart ([`filesystem`](adit_core::host::filesystem)). So a wrong hash needs somebody who sets ctime back, or a file server whose clock runs behind by more than that.
//!
//! One file of redb, kept by one process at a time: others hash what they need. It is a cache: what is lost or damaged is made again.

use std::cell::RefCell;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::types::{Attr, Timestamp};
use redb::{Database, DatabaseError, ReadableDatabase, StorageError, TableDefinition};

use crate::format::ContentHash;
use crate::format::limits::CHUNK_LEN_BYTES;
use crate::snapshot::Known;

/// How long before it is read a file must have been left alone. The clocks of filesystems tick every 10 ms at most, but for FAT (2 s).
const DOUBT: Duration = Duration::from_secs(3);

/// Hashes that are noted together.
const BATCH: usize = 4096;

/// Key: a scope's hash, the layout, the path. Value: a [`Stamp`], and the hashes.
const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("hashes-2");

/// Which hashes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// One, of all of it.
    Whole,
    /// One of each chunk of 256 MiB.
    Chunks,
}

impl Layout {
    /// Where the objects lie that a file of this length is made of, in order. An empty file is one, too.
    pub fn objects(self, len_bytes: u64) -> impl Iterator<Item = Range<u64>> {
        let one = match self {
            Layout::Whole => len_bytes.max(1),
            Layout::Chunks => CHUNK_LEN_BYTES,
        };
        let count = len_bytes.div_ceil(one).max(1);
        (0..count).map(move |number| (number * one)..((number + 1).saturating_mul(one)).min(len_bytes))
    }
}

/// A cache of hashes in a file.
pub struct HashCache {
    database: Database,
}

impl HashCache {
    /// Opens the cache in `file`, which is made if it is not there. None while another process has it.
    ///
    /// # Errors
    /// Those of the host. A file that is damaged, or no cache, is put aside and made anew.
    pub fn open(file: &Path) -> Result<Option<Self>> {
        let failed = |e: &dyn std::fmt::Display| {
            FsError::new(ErrorKind::Io).on("open the cache of hashes", file.display()).because(e.to_string())
        };
        match Database::create(file) {
            Ok(database) => Ok(Some(HashCache { database })),
            Err(DatabaseError::DatabaseAlreadyOpen) => Ok(None),
            Err(DatabaseError::Storage(StorageError::Io(e))) if e.kind() != std::io::ErrorKind::InvalidData => {
                Err(FsError::from(e).on("open the cache of hashes", file.display()))
            }
            Err(e) => {
                tracing::warn!(file = %file.display(), error = %e, "the cache of hashes is damaged: it is made anew");
                std::fs::remove_file(file).map_err(|e| failed(&e))?;
                Database::create(file).map(|database| Some(HashCache { database })).map_err(|e| failed(&e))
            }
        }
    }

    /// The files of one place, which `name` tells from all others: paths are below it.
    pub fn scope(&self, name: &[u8]) -> Scope<'_> {
        Scope {
            cache: self,
            key: ContentHash::of(name).0,
            pending: RefCell::default(),
            #[cfg(test)]
            later: std::cell::Cell::default(),
        }
    }

    fn get(&self, key: &[u8]) -> std::result::Result<Option<Vec<u8>>, redb::Error> {
        let table = match self.database.begin_read()?.open_table(TABLE) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        Ok(table.get(key)?.map(|value| value.value().to_vec()))
    }

    fn put(&self, pending: &[(Vec<u8>, Vec<u8>)]) -> std::result::Result<(), redb::Error> {
        let writing = self.database.begin_write()?;
        {
            let mut table = writing.open_table(TABLE)?;
            for (key, value) in pending {
                table.insert(&key[..], &value[..])?;
            }
        }
        Ok(writing.commit()?)
    }
}

/// The part of a cache that is about one place. What is noted is kept when it is dropped.
pub struct Scope<'c> {
    cache: &'c HashCache,
    key: [u8; 16],
    pending: RefCell<Vec<(Vec<u8>, Vec<u8>)>>,
    /// How much later it is, for tests that cannot wait.
    #[cfg(test)]
    later: std::cell::Cell<Duration>,
}

impl Scope<'_> {
    /// The hashes of the file at `path`, if it is as it was.
    pub fn find(&self, path: &[u8], attr: &Attr, layout: Layout) -> Option<Vec<ContentHash>> {
        let value = self.cache.get(&self.key_of(path, layout)).unwrap_or_else(|e| {
            tracing::warn!(error = %e, "the cache of hashes cannot be read");
            None
        })?;
        let (stamp, hashes) = value.split_at_checked(STAMP_LEN_BYTES)?;
        let (hashes, rest) = hashes.as_chunks::<16>();
        let expected = match layout {
            Layout::Whole => 1,
            Layout::Chunks => attr.size.div_ceil(CHUNK_LEN_BYTES),
        };
        let sound = stamp == stamp_of(attr) && rest.is_empty() && hashes.len() as u64 == expected;
        sound.then(|| hashes.iter().map(|hash| ContentHash(*hash)).collect())
    }

    /// Notes the hashes of the file at `path`, which had `attr` before and after it was read; `began` was before that.
    pub(crate) fn note(&self, path: &[u8], attr: &Attr, began: Timestamp, hashes: &[ContentHash]) {
        let now = began.as_nanos();
        #[cfg(test)]
        let now = now + self.later.get().as_nanos() as i128;
        let left_alone = |time: Timestamp| now - time.as_nanos() > DOUBT.as_nanos() as i128;
        if !left_alone(attr.mtime) || !left_alone(attr.ctime) {
            return;
        }
        let layout = if hashes.len() == 1 { Layout::Whole } else { Layout::Chunks };
        let mut value = stamp_of(attr).to_vec();
        hashes.iter().for_each(|hash| value.extend_from_slice(&hash.0));
        let full = {
            let mut pending = self.pending.borrow_mut();
            pending.push((self.key_of(path, layout), value));
            pending.len() >= BATCH
        };
        if full {
            self.save();
        }
    }

    #[cfg(test)]
    pub(crate) fn pretend_later(&self, by: Duration) {
        self.later.set(by);
    }

    fn save(&self) {
        let pending = self.pending.take();
        if pending.is_empty() {
            return;
        }
        if let Err(e) = self.cache.put(&pending) {
            tracing::warn!(error = %e, "the cache of hashes cannot be written: these files are hashed again next time");
        }
    }

    fn key_of(&self, path: &[u8], layout: Layout) -> Vec<u8> {
        let layout = match layout {
            Layout::Whole => b'w',
            Layout::Chunks => b'c',
        };
        [&self.key[..], &[layout], path].concat()
    }
}

impl Known for Scope<'_> {
    fn find(&self, path: &[u8], attr: &Attr, layout: Layout) -> Result<Vec<Option<ContentHash>>> {
        Ok(Scope::find(self, path, attr, layout).unwrap_or_default().into_iter().map(Some).collect())
    }

    fn note(&self, path: &[u8], attr: &Attr, began: Timestamp, hashes: &[ContentHash]) {
        Scope::note(self, path, attr, began, hashes);
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        self.save();
    }
}

const STAMP_LEN_BYTES: usize = 40;

/// What a file is recognised by: inode number, length, mtime and ctime.
fn stamp_of(attr: &Attr) -> [u8; STAMP_LEN_BYTES] {
    let mut stamp = [0; STAMP_LEN_BYTES];
    let words = [attr.ino.0, attr.size, attr.mtime.secs as u64, attr.ctime.secs as u64];
    for (place, word) in stamp.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
    stamp[32..36].copy_from_slice(&attr.mtime.nanos.to_le_bytes());
    stamp[36..].copy_from_slice(&attr.ctime.nanos.to_le_bytes());
    stamp
}
