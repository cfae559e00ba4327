//! An open file of a manifest.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use adit_core::error::{ErrorKind, Result};
use adit_core::store::{FileCall, Proof, StoreFile, Unproved};
use adit_core::types::AllocateMode;
use adit_index::NodeId;
use parking_lot::Mutex;

use super::Inner;
use super::ahead::Job;
use super::extra::Content;
use super::streams::{Limits, Streams};
use crate::cache::{CachedObject, Fetch, ObjectId};
use crate::cas::REQUEST_LEN_BYTES;
use crate::format::ContentHash;
use crate::format::limits::CHUNK_LEN_BYTES;

/// How much larger the cache is at least than what is fetched ahead of a reader. When room is made, that is lost, and as much again
/// that is on its way: three hundredths.
const CACHE_PER_WINDOW: u64 = 64;
/// Requests that a stretch which is fetched ahead is divided into at least, if it is long enough: they go side by side.
const REQUESTS_MIN: u64 = 4;

/// What a file is made of.
enum Parts {
    /// One object, which stays open as long as the file. An empty file has one, too, that is never asked for anything.
    Whole(Arc<CachedObject>),
    /// One for each chunk.
    Chunks(Vec<ContentHash>),
}

/// An open file: its objects, and who reads it how.
pub(super) struct ManifestFile {
    inner: Arc<Inner>,
    size: u64,
    parts: Parts,
    /// For what is fetched ahead.
    number: u64,
    streams: Mutex<Streams>,
    /// When it was opened, or read from its beginning last: see [`CachedObject::check_since`].
    since: AtomicU64,
    /// Whether the end of an object was read since.
    ended: AtomicBool,
}

/// A stretch of a file within one object.
struct Piece {
    object: Arc<CachedObject>,
    range: Range<u64>,
}

impl ManifestFile {
    /// Opens a node that is a regular file.
    pub fn open(inner: Arc<Inner>, id: NodeId) -> Result<Self> {
        let size = inner.index.node(id)?.size;
        let extra = inner.index.extra(id)?;
        inner.check_has_host_bytes(&extra)?;
        let parts = match (inner.index.hash(id)?, extra.content) {
            (Some(hash), Content::Plain) => {
                Parts::Whole(inner.cache.object(ObjectId { hash: ContentHash(hash), len: size }))
            }
            (None, Content::Chunks(hashes)) if hashes.len() as u64 == size.div_ceil(CHUNK_LEN_BYTES) => {
                Parts::Chunks(hashes.iter().copied().map(ContentHash).collect())
            }
            _ => return Err(inner.index.damaged(id, "its content")),
        };
        let number = inner.ahead.file();
        let since = AtomicU64::new(inner.cache.moment());
        Ok(ManifestFile { inner, size, parts, number, streams: Mutex::default(), since, ended: AtomicBool::new(false) })
    }

    /// The first piece of `range`, which is not empty and lies in the file.
    fn piece(&self, range: Range<u64>) -> Result<Piece> {
        match &self.parts {
            Parts::Whole(object) => Ok(Piece { object: object.clone(), range }),
            Parts::Chunks(hashes) => {
                let number = range.start / CHUNK_LEN_BYTES;
                let start = number * CHUNK_LEN_BYTES;
                let len = CHUNK_LEN_BYTES.min(self.size - start);
                // There are as many as the size says: `open` has seen to that.
                let hash = *hashes.get(number as usize).ok_or(ErrorKind::Corrupt)?;
                let object = self.inner.cache.object(ObjectId { hash, len });
                Ok(Piece { object, range: range.start - start..(range.end - start).min(len) })
            }
        }
    }

    fn each_piece(&self, range: Range<u64>, mut sink: impl FnMut(Piece) -> Result<()>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let piece = self.piece(at..range.end)?;
            at += piece.range.end - piece.range.start;
            sink(piece)?;
        }
        Ok(())
    }

    /// Has fetched what will be read after this.
    fn look_ahead(&self, offset: u64, len: u64) -> Result<()> {
        let block = u64::from(self.inner.cache.block_len());
        let options = &self.inner.options;
        // What is dropped before it is read, when a full cache makes room, is a small part of all.
        let window_max = options.read_ahead_bytes.min(self.inner.cache.limit_bytes() / CACHE_PER_WINDOW);
        if self.size <= block || window_max == 0 || options.read_ahead_threads == 0 {
            return Ok(());
        }
        let ranges = self.streams.lock().note(offset, len, self.size, Limits { block, window_max });
        for (number, range) in ranges.iter().enumerate() {
            if let Some(from) = self.fetch_ahead(range.clone(), block)? {
                self.streams.lock().take_back(&ranges[number..], from);
                break;
            }
        }
        Ok(())
    }

    /// Whether that is so of all objects that `range` touches.
    fn all(&self, range: Range<u64>, so: impl Fn(Piece) -> bool) -> bool {
        let mut all = true;
        let looked = self.each_piece(range, |piece| {
            all &= so(piece);
            Ok(())
        });
        looked.is_ok() && all
    }

    /// Reads as `read` does of one object.
    fn read_by(
        &self,
        offset: u64,
        buf: &mut [u8],
        mut read: impl FnMut(&CachedObject, u64, &mut [u8], &dyn Fetch) -> Result<usize>,
    ) -> Result<usize> {
        self.read_pieces(offset, buf, |object, _, at, part| read(object, at, part, &*self.inner.source))
    }

    /// Reads piece by piece, of an object that begins at a place of the file, at a place of the object.
    fn read_pieces(
        &self,
        offset: u64,
        buf: &mut [u8],
        mut read: impl FnMut(&CachedObject, u64, u64, &mut [u8]) -> Result<usize>,
    ) -> Result<usize> {
        let len = self.size.saturating_sub(offset).min(buf.len() as u64);
        if len == 0 {
            return Ok(0);
        }
        // Before the read, so that both go on at once.
        self.look_ahead(offset, len)?;
        let (mut rest, mut at) = (&mut buf[..len as usize], offset);
        self.each_piece(offset..offset + len, |Piece { object, range }| {
            let taken = std::mem::take(&mut rest);
            let (part, left) = taken.split_at_mut((range.end - range.start) as usize);
            rest = left;
            let read = read(&object, at - range.start, range.start, part);
            self.inner.unread.note(object.id(), read.as_ref().err());
            let read = read?;
            at += range.end - range.start;
            // The range lies in the object.
            if read == part.len() { Ok(()) } else { Err(ErrorKind::Corrupt.into()) }
        })?;
        Ok(len as usize)
    }

    fn note_beginning(&self, offset: u64) {
        if offset == 0 {
            self.since.store(self.inner.cache.moment(), Ordering::Relaxed);
            self.ended.store(false, Ordering::Relaxed);
        }
    }

    /// Whoever comes to an object's end hears that what was read before was wrong, though it may be right by now. The end need not be the
    /// last to be answered: the kernel asks for several pieces at once, and for one again that was an error.
    fn check_end(&self, object: &CachedObject, at: u64, read: usize) -> Result<usize> {
        let is_end = at + read as u64 == object.id().len;
        // What is read in one go is right, or was an error.
        if at > 0 && (is_end || self.ended.load(Ordering::Relaxed)) {
            self.ended.store(true, Ordering::Relaxed);
            object.check_since(self.since.load(Ordering::Relaxed))?;
        }
        Ok(read)
    }

    /// Has a range fetched: block by block what is short, in longer requests what is long. If there is too much to be done already, it tells
    /// the first byte that is not.
    fn fetch_ahead(&self, range: Range<u64>, block: u64) -> Result<Option<u64>> {
        let (mut at, mut refused) = (range.start, None);
        let request = ((range.end - range.start) / REQUESTS_MIN).min(REQUEST_LEN_BYTES).max(block) / block * block;
        self.each_piece(range, |Piece { object, range }| {
            let object_start = at - range.start;
            at = object_start + range.end;
            let missing = if refused.is_none() { object.missing(range) } else { Vec::new() };
            for missing in missing {
                let mut start = missing.start;
                while start < missing.end && refused.is_none() {
                    let end = (start / request + 1).saturating_mul(request).min(missing.end);
                    let job = Job::new(object.clone(), start..end);
                    if !self.inner.ahead.submit(self.number, job) {
                        refused = Some(object_start + start);
                    }
                    start = end;
                }
            }
            Ok(())
        })?;
        Ok(refused)
    }

    /// Whether an object of it could not be read last.
    pub fn is_unread(&self) -> Result<bool> {
        let mut is_unread = false;
        self.each_piece(0..self.size, |piece| {
            is_unread |= self.inner.unread.has(piece.object.id());
            Ok(())
        })?;
        Ok(is_unread)
    }

    /// Whether all of its content is in the cache.
    pub fn is_cached(&self) -> Result<bool> {
        let mut is_cached = true;
        self.each_piece(0..self.size, |piece| {
            let state = piece.object.state();
            is_cached &= state.present == state.len;
            Ok(())
        })?;
        Ok(is_cached)
    }

    /// Whether something of its content is in the cache.
    pub fn has_cached(&self) -> Result<bool> {
        let mut has_cached = false;
        self.each_piece(0..self.size, |piece| {
            has_cached |= piece.object.state().present > 0;
            Ok(())
        })?;
        Ok(has_cached)
    }

    /// See [`ManifestStore::verified_file`](super::ManifestStore::verified_file).
    pub fn verified_file(&self) -> Option<OwnedFd> {
        match &self.parts {
            Parts::Whole(object) => object.verified_file(),
            Parts::Chunks(_) => None,
        }
    }
}

impl Drop for ManifestFile {
    fn drop(&mut self) {
        self.inner.ahead.forget(self.number);
    }
}

impl StoreFile for ManifestFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.note_beginning(offset);
        self.read_by(offset, buf, |object, at, part, fetch| {
            let read = object.read(at, part, fetch)?;
            self.check_end(object, at, read)
        })
    }

    fn read_verified_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_by(offset, buf, CachedObject::read_verified)
    }

    fn read_to_keep_at(&self, offset: u64, buf: &mut [u8], unproved: &mut Vec<Unproved>) -> Result<usize> {
        self.note_beginning(offset);
        self.read_pieces(offset, buf, |object, object_start, at, part| {
            let first = unproved.len();
            let read = object.read_to_keep(at, part, &*self.inner.source, unproved)?;
            unproved[first..].iter_mut().for_each(|what| what.offset += object_start);
            self.check_end(object, at, read)
        })
    }

    fn prove(&self, what: &Unproved, now: bool) -> Result<Proof> {
        let range = what.offset..what.offset.saturating_add(what.len).min(self.size);
        if range.is_empty() || range.end - range.start < what.len {
            return Ok(Proof::Wrong);
        }
        let piece = self.piece(range)?;
        match piece.range.end - piece.range.start == what.len {
            true => piece.object.prove(piece.range, what.sum, now.then_some(&*self.inner.source)),
            // Never told of two objects.
            false => Ok(Proof::Wrong),
        }
    }

    fn write_at(&self, _pieces: &[(u64, &[u8])]) -> Result<()> {
        Err(ErrorKind::ReadOnly.into())
    }

    fn may_wait(&self, call: FileCall) -> bool {
        let range = |offset: u64, len: u64| offset..offset.saturating_add(len).min(self.size);
        match call {
            FileCall::Read { offset, len } if !self.inner.cache.is_strict() => {
                !self.all(range(offset, len), |piece| piece.object.answers(piece.range))
            }
            FileCall::ReadToKeep { offset, len } if !self.inner.cache.is_strict() => {
                !self.all(range(offset, len), |piece| piece.object.answers_to_keep(piece.range))
            }
            FileCall::Read { offset, len }
            | FileCall::ReadVerified { offset, len }
            | FileCall::ReadToKeep { offset, len } => {
                !self.all(range(offset, len), |piece| piece.object.has_verified(piece.range))
            }
            // They are refused.
            FileCall::Write { .. } | FileCall::SetLen { .. } | FileCall::Allocate { .. } => false,
        }
    }

    fn host_file(&self) -> Option<OwnedFd> {
        self.verified_file()
    }

    fn set_len(&self, _len: u64) -> Result<()> {
        Err(ErrorKind::ReadOnly.into())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.size)
    }

    fn sync(&self, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, _offset: u64, _len: u64, _mode: AllocateMode) -> Result<()> {
        Err(ErrorKind::ReadOnly.into())
    }
}
