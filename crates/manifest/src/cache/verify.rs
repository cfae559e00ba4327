//! Whether an object has the content that its hash says, and what happens if not.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use adit_core::error::Result;
use adit_core::media::{HostEntry, NewFile};
use adit_core::types::{Kind, RenameFlags, Timestamp};

use super::Inner;
use super::fault::{Failure, ObjectFault};
use super::generation::{FILE_PERM, Generation, Trust, Verdict};
use super::id::{Name, ObjectId, QUARANTINE};
use super::object::CachedObject;
use super::stats::add;
use super::work::Job;
use crate::format::ContentHash;

/// Objects in quarantine; the oldest go.
const QUARANTINED_MAX: usize = 4;
/// How often an object may come with wrong content before it is left alone for a while.
const MISMATCHES_MAX: u32 = 2;

impl CachedObject {
    /// Has the object verified, or compared with its checksums, by a thread in the background, or now if there is none. With
    /// [`CacheOptions::strict`](super::CacheOptions::strict) whoever reads it does so itself.
    pub(super) fn settle_later(&self, generation: &Generation) {
        if generation.is_verified() || self.inner.options.strict && generation.trust() == Trust::None {
            return;
        }
        if self.inner.queue.is_inline() {
            return self.settle();
        }
        if !self.is_queued.swap(true, Ordering::AcqRel)
            && let Some(me) = self.me.upgrade()
            && !self.inner.queue.submit(Job::Settle(me))
        {
            self.is_queued.store(false, Ordering::Release);
        }
    }

    /// Verifies the object, or compares it with its checksums, if all of it is there.
    pub(super) fn settle(&self) {
        self.is_queued.store(false, Ordering::Release);
        let Some(generation) = self.generation(false) else { return };
        match generation.survey() {
            Ok(Some(_)) if generation.trust() == Trust::BySums => match generation.check_all() {
                Ok(None) => {}
                Ok(Some(block)) => self.damaged(&generation, block),
                Err(e) => self.inner.note("check", &self.id(), &e),
            },
            Ok(Some(_)) => drop(self.verify(&generation)),
            Ok(None) => {}
            Err(e) => self.inner.note("read a map", &self.id(), &e),
        }
    }

    /// Verifies the object. False if it is not right, or not all there, or the folder failed.
    pub(super) fn verify(&self, generation: &Arc<Generation>) -> bool {
        let before = generation.trust();
        let _turn = self.verifying.lock();
        let was_verified = generation.trust() == Trust::Verified;
        if was_verified && before != Trust::Verified {
            // Somebody else has just done it.
            return true;
        }
        match generation.verify() {
            Ok(Verdict::Good) => {
                if !was_verified {
                    add(&self.inner.counters.verified, 1);
                    self.right();
                }
                return true;
            }
            Ok(Verdict::Mismatch(found)) => self.quarantine(generation, ContentHash(found.to_be_bytes())),
            Ok(Verdict::Incomplete) => {}
            Ok(Verdict::Damaged(block)) => self.damaged(generation, block),
            // The verdict may be all that could not be written.
            Err(e) => self.inner.note("verify", &self.id(), &e),
        }
        generation.trust() == Trust::Verified
    }

    /// Puts an object with wrong content aside, if nobody did so before.
    fn quarantine(&self, generation: &Generation, found: ContentHash) {
        if !generation.start_removal() {
            return;
        }
        let (id, host) = (self.id(), &*self.inner.host);
        let data = Name::Data(id, generation.header().nonce);
        let aside = PathBuf::from(format!("{QUARANTINE}/{}", data.file_name()));
        if let Err(e) = host.rename(&data.path(), &aside, RenameFlags::empty()) {
            self.inner.note("put an object into quarantine", &id, &e);
        }
        // With the map, and the data if it is still there.
        self.discard(generation);
        self.inner.trim_quarantine();
        // Who opened the same files again before their names were gone finds the same, which says nothing of what comes when it is
        // asked for again.
        let nonce = generation.header().nonce;
        if self.state.lock().wrong.replace(nonce) != Some(nonce) {
            self.wrong(found);
        }
    }

    /// Puts the content of a small object aside.
    pub(super) fn quarantine_bytes(&self, bytes: &[u8], found: ContentHash) {
        let name = Name::Data(self.id(), super::generation::fresh_nonce());
        let path = PathBuf::from(format!("{QUARANTINE}/{}", name.file_name()));
        let new = NewFile { content: bytes, perm: FILE_PERM, owner: None, durable: false };
        if let Err(e) = self.inner.host.publish(&path, &new) {
            self.inner.note("put an object into quarantine", &self.id(), &e);
        }
        self.inner.trim_quarantine();
        self.wrong(found);
    }

    /// Notes that the object came with wrong content.
    pub(super) fn wrong(&self, found: ContentHash) {
        let id = self.id();
        add(&self.inner.counters.quarantined, 1);
        let is_last = {
            let state = &mut *self.state.lock();
            state.mismatches += 1;
            state.found = Some(found);
            state.found_last = Some(found);
            state.sums = None;
            let is_last = state.mismatches >= MISMATCHES_MAX;
            if is_last {
                let failure = Failure::of(&ObjectFault::Mismatch { found }.error(&id));
                state.failed = Some((Instant::now() + self.inner.options.retry_after, failure));
            }
            is_last
        };
        self.wrong_now();
        tracing::error!(object = %id, %found, again = !is_last, "an object has other content than its hash says");
        if let Some(watch) = &self.inner.options.watch {
            watch.quarantined(&id);
        }
    }

    /// Notes that the object has its hash.
    pub(super) fn right(&self) {
        self.end_was_read.store(false, Ordering::Relaxed);
        let state = &mut *self.state.lock();
        (state.mismatches, state.failed, state.found) = (0, None, None);
    }

    /// The error of an object that came with wrong content too often, until it is time to try again.
    pub(super) fn check_failed(&self) -> Result<()> {
        let state = &mut *self.state.lock();
        match &state.failed {
            Some((until, failure)) if Instant::now() < *until => Err(failure.error(&self.id())),
            Some(_) => {
                (state.mismatches, state.failed, state.found) = (0, None, None);
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Inner {
    /// Removes what is in quarantine, but for the newest.
    fn trim_quarantine(&self) {
        let folder = PathBuf::from(QUARANTINE);
        let mut names: Vec<Name> = Vec::new();
        let listed = self.host.list(&folder, &mut |entry: HostEntry<'_>| names.extend(Name::parse(entry.name)));
        if let Err(e) = listed {
            let none = ObjectId { hash: ContentHash([0; 16]), len: 0 };
            return self.note("list the quarantine", &none, &e);
        }
        let mut aged: Vec<(Timestamp, PathBuf)> = names
            .into_iter()
            .map(|name| folder.join(name.file_name()))
            .filter_map(|path| Some((self.host.stat(&path).ok()?.ctime, path)))
            .collect();
        aged.sort();
        let surplus = aged.len().saturating_sub(QUARANTINED_MAX);
        for (_, path) in aged.into_iter().take(surplus) {
            // Another process may be at it too.
            let _ = self.host.remove(&path, Kind::File);
        }
    }
}
