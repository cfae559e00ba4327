//! Objects of one block: a file each, without a map. It is published when its content was compared with its hash, and compared with
//! it again when it is opened, so nothing else has to be known of it.

use std::io;
use std::sync::Arc;

use adit_core::error::Result;
use adit_core::media::HostFile;
use adit_core::types::{SetAttr, SetTime};
use xxhash_rust::xxh3::Xxh3;

use super::Fetch;
use super::fault::Failure;
use super::flight::Landed;
use super::generation::{open_file, publish, remove_file};
use super::id::Name;
use super::object::CachedObject;
use super::space::UNIT_LEN;
use super::stats::add;
use super::want::Want;
use crate::format::ContentHash;

/// Bytes that are read and hashed at a time.
const PIECE_LEN: usize = 32 << 10;

impl CachedObject {
    /// Reads an object that is kept as a whole. With `is_awaited` false, nobody has asked for it yet: what somebody else fetches is
    /// left to that one.
    pub(super) fn read_whole(&self, want: &mut Want<'_>, is_awaited: bool, fetch: &dyn Fetch) -> Result<()> {
        loop {
            self.check_failed()?;
            if self.open_whole(Some(want)).is_some() {
                add(&self.inner.counters.hits, 1);
                add(&self.inner.counters.hit_bytes, want.end() - want.start());
                return Ok(());
            }
            let claim = match self.claim(0..1, !is_awaited) {
                Ok(claim) => claim,
                Err(_) if !is_awaited => return Ok(()),
                Err(flight) => {
                    add(&self.inner.counters.waits, 1);
                    match flight.wait(0, self.inner.options.patience) {
                        Landed::Look => continue,
                        Landed::Failed(failure) => return Err(failure.error(&self.id())),
                        Landed::Late(fault) => return Err(fault.error(&self.id())),
                    }
                }
            };
            // Between the look and the claim somebody may have got it.
            if self.state.lock().whole.is_some() {
                claim.end(Ok(()));
                continue;
            }
            let result = self.fetch_whole(want, fetch, &claim);
            claim.end(result.as_ref().map(drop).map_err(Failure::of));
            return result;
        }
    }

    /// Fetches the object into memory, and once more if it is not right; then it is kept.
    fn fetch_whole(&self, want: &mut Want<'_>, fetch: &dyn Fetch, claim: &super::fill::Claim<'_>) -> Result<()> {
        let id = self.id();
        loop {
            self.check_failed()?;
            add(&self.inner.counters.misses, 1);
            // A block at most: see `is_small`.
            let mut bytes = Vec::with_capacity(id.len as usize);
            self.fetch_all(0..id.len, fetch, &mut |_, piece| {
                claim.came(piece.len() as u64);
                bytes.extend_from_slice(piece);
            })?;
            let found = ContentHash::of(&bytes);
            if found != id.hash {
                self.quarantine_bytes(&bytes, found);
                continue;
            }
            self.right();
            add(&self.inner.counters.verified, 1);
            want.put(0, &bytes);
            if let Err(e) = self.keep_whole(&bytes) {
                self.inner.note("write", &id, &e);
            }
            return Ok(());
        }
    }

    /// Keeps an object that has its hash, if there is room.
    fn keep_whole(&self, bytes: &[u8]) -> io::Result<()> {
        let len = bytes.len() as u64;
        let taken = len.next_multiple_of(UNIT_LEN);
        let Some(mut room) = self.inner.reserve(taken) else {
            add(&self.inner.counters.passed_bytes, len);
            return Ok(());
        };
        let (host, name) = (&*self.inner.host, Name::Whole(self.id()));
        let published = match publish(host, &name, bytes) {
            Err(e) if self.inner.look_for_room(&e) => publish(host, &name, bytes),
            result => result,
        };
        match published {
            Ok(file) => {
                room.take(taken);
                self.is_due();
                self.state.lock().whole = Some(Arc::from(file));
                Ok(())
            }
            // Another process was faster; what it made is compared by the next reader.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(e) => {
                add(&self.inner.counters.passed_bytes, len);
                Err(e)
            }
        }
    }

    /// The object's file, whose content has its hash, and what is wanted of it. `None` if there is none, or the folder failed.
    pub(super) fn open_whole(&self, mut want: Option<&mut Want<'_>>) -> Option<Arc<dyn HostFile>> {
        let open = self.state.lock().whole.clone();
        if let Some(file) = open {
            let Some(want) = want.as_deref_mut() else { return Some(file) };
            let (start, end) = (want.start(), want.end());
            let part = want.part(start..end);
            match file.read_at(start, part) {
                Ok(read) if read == part.len() => {
                    self.touch_whole(&*file);
                    return Some(file);
                }
                Ok(_) => {}
                Err(e) => self.inner.note("read", &self.id(), &e),
            }
            self.state.lock().whole = None;
        }
        match self.check_whole(want) {
            Ok(Some(file)) => {
                let file: Arc<dyn HostFile> = Arc::from(file);
                self.touch_whole(&*file);
                self.state.lock().whole = Some(file.clone());
                Some(file)
            }
            Ok(None) => None,
            Err(e) => {
                self.inner.note("open an object", &self.id(), &e);
                None
            }
        }
    }

    /// Opens the object's file and compares it with its hash. One that is not the object is removed.
    fn check_whole(&self, mut want: Option<&mut Want<'_>>) -> io::Result<Option<Box<dyn HostFile>>> {
        let (host, id) = (&*self.inner.host, self.id());
        let name = Name::Whole(id);
        let Some(file) = open_file(host, &name)? else { return Ok(None) };
        if let Some(found) = hash_of(&*file, id.len, &mut |at, bytes| {
            if let Some(want) = &mut want {
                want.put(at, bytes);
            }
        })? && found == id.hash
        {
            return Ok(Some(file));
        }
        add(&self.inner.counters.damaged, 1);
        tracing::warn!(object = %id, "the cache folder holds a damaged object; it is fetched again");
        remove_file(host, &name)?;
        Ok(None)
    }

    fn touch_whole(&self, file: &dyn HostFile) {
        let used = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        if self.is_due()
            && let Err(e) = file.set_attr(&used)
        {
            self.inner.note("note the use of an object", &self.id(), &e);
        }
    }
}

/// The hash of a file, if it is as long as that, and its bytes for `sink`.
pub(super) fn hash_of(
    file: &dyn HostFile,
    len: u64,
    sink: &mut dyn FnMut(u64, &[u8]),
) -> io::Result<Option<ContentHash>> {
    if file.stat()?.size != len {
        return Ok(None);
    }
    let (mut at, mut hash) = (0, Xxh3::new());
    let mut buffer = [0; PIECE_LEN];
    while at < len {
        let piece = &mut buffer[..(len - at).min(PIECE_LEN as u64) as usize];
        if file.read_at(at, piece)? < piece.len() {
            return Ok(None);
        }
        hash.update(piece);
        sink(at, piece);
        at += piece.len() as u64;
    }
    Ok(Some(ContentHash(hash.digest128().to_be_bytes())))
}
