//! What of an object is in the folder.

use std::ops::Range;
use std::os::fd::OwnedFd;

use adit_core::types::Access;

use super::super::generation::Trust;
use super::super::id::Name;
use super::{CachedObject, ObjectState};

impl CachedObject {
    /// Whether a read of `range` is answered with what is in the folder, and nothing has to be compared for it.
    pub fn answers(&self, range: Range<u64>) -> bool {
        match self.is_small() {
            true => self.has(range),
            false if self.is_suspect() => self.has_verified(range),
            false => self.uncompared(range.end).is_none() && self.has(range),
        }
    }

    /// Whether all of `range` is in the folder.
    pub fn has(&self, range: Range<u64>) -> bool {
        let range = range.start.min(self.id.len)..range.end.min(self.id.len);
        if range.is_empty() {
            return true;
        }
        if self.is_small() {
            return self.open_whole(None).is_some();
        }
        let Some(generation) = self.generation(false) else { return false };
        (generation.block_of(range.start)..=generation.block_of(range.end - 1)).all(|block| generation.is_known(block))
    }

    /// Whether all of `range` is in the folder, and the object was compared with its hash: [`CachedObject::read_verified`] fetches nothing.
    pub fn has_verified(&self, range: Range<u64>) -> bool {
        let is_verified = || self.generation(false).is_some_and(|generation| generation.trust() > Trust::None);
        range.is_empty() || self.has(range) && (self.is_small() || is_verified())
    }

    /// The parts of `range` that are neither in the folder nor being fetched by this process, in whole blocks.
    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let range = range.start.min(self.id.len)..range.end.min(self.id.len);
        if range.is_empty() {
            return Vec::new();
        }
        if self.is_small() {
            let is_there = self.open_whole(None).is_some() || self.is_in_flight(0);
            return (!is_there).then_some(0..self.id.len).into_iter().collect();
        }
        let Some(generation) = self.generation(false) else { return vec![range] };
        let mut missing: Vec<Range<u64>> = Vec::new();
        for block in generation.block_of(range.start)..=generation.block_of(range.end - 1) {
            if generation.is_known(block) || self.is_in_flight(block) {
                continue;
            }
            let bytes = generation.range(block);
            match missing.last_mut() {
                Some(last) if last.end == bytes.start => last.end = bytes.end,
                _ => missing.push(bytes),
            }
        }
        missing
    }

    /// What there is of it now. Reads its map.
    pub fn state(&self) -> ObjectState {
        let len = self.id.len;
        if self.is_small() {
            let there = len == 0 || self.open_whole(None).is_some();
            return ObjectState { len, present: if there { len } else { 0 }, verified: there };
        }
        let Some(generation) = self.generation(false) else { return ObjectState { len, present: 0, verified: false } };
        if let Err(e) = generation.survey() {
            self.inner.note("read a map", &self.id, &e);
        }
        let known = (0..generation.blocks()).filter(|block| generation.is_known(*block));
        let present = known.map(|block| generation.range(block)).map(|bytes| bytes.end - bytes.start).sum();
        ObjectState { len, present, verified: generation.trust() > Trust::None }
    }

    /// The object as an open file of the host to be read, if this process knows that each byte of it is right: for FUSE passthrough.
    /// If that is not known yet of an object that is all there, it is found out in the background. An empty object has none.
    pub fn verified_file(&self) -> Option<OwnedFd> {
        let (name, number) = if self.is_small() {
            (Name::Whole(self.id), self.open_whole(None)?.stat().ok()?.ino.0)
        } else {
            let generation = self.generation(false)?;
            if !generation.is_verified() {
                self.settle_later(&generation);
                return None;
            }
            self.touch(&generation);
            (Name::Data(self.id, generation.header().nonce), generation.data_identity().ok()?.0)
        };
        // Opened anew, so that nobody writes through it. What is found by name has to be what is known.
        let file = self.inner.host.open(&name.path(), Access::Read).ok()?;
        let attr = file.stat().ok()?;
        (attr.ino.0 == number && attr.size == self.id.len).then(|| file.descriptor().ok())?
    }
}
