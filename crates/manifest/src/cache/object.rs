//! An object in the cache.
//!
//! [`CachedObject`] finds what is wanted in the object's [generation](super::generation), and has what is absent
//! [filled](super::fill). Its lock covers what is open and who fetches what, never a call on the folder or a fetch.

mod opening;
mod there;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use adit_core::error::Result;
use adit_core::media::HostFile;
use parking_lot::{Condvar, Mutex};

use super::fault::{Failure, ObjectFault};
use super::fill::Step;
use super::flight::Flight;
use super::generation::{Found, Generation, Trust};
use super::id::ObjectId;
use super::space::UNIT_LEN;
use super::stats::add;
use super::sums::{Summing, Sums};
use super::want::Want;
use super::{Fetch, Inner};
use crate::format::ContentHash;

/// How often a read looks again without having got on, before it fetches what it lacks for itself alone.
const STALLS_MAX: u32 = 16;

/// What there is of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectState {
    /// Its length in bytes.
    pub len: u64,
    /// Bytes that are in the folder.
    pub present: u64,
    /// Whether all of it was compared with its hash, by whatever process, and what is there of it was written then.
    pub verified: bool,
}

/// An object of the store, of which some blocks are in the folder. Made by [`Cache::object`](super::Cache::object).
///
/// All methods may be called from any thread at any time.
pub struct CachedObject {
    pub(super) inner: Arc<Inner>,
    /// This object itself.
    pub(super) me: Weak<CachedObject>,
    id: ObjectId,
    pub(super) state: Mutex<State>,
    /// Told when what is open changes.
    opened: Condvar,
    /// When its use was last noted in the folder, in seconds since the cache was opened, plus one.
    touched_secs: AtomicU64,
    /// Whether it waits to be verified.
    pub(super) is_queued: AtomicBool,
    /// How often what was open of it went.
    drops: AtomicU64,
    /// Whether somebody has read its end before all of it was there. From then on whoever finds it so has it compared: the kernel asks for
    /// several pieces at once, and the last to be answered need not be the end.
    pub(super) end_was_read: AtomicBool,
    /// When it was found wrong last, as the cache [counts](super::Cache::moment) that; 0 if never.
    wrong_at: AtomicU64,
    /// Held by who compares all of it with its hash.
    pub(super) verifying: Mutex<()>,
    /// What came in order of one that the folder has no room for.
    pub(super) following: Mutex<Option<Summing>>,
}

/// What is open of an object, and who is at work on it.
#[derive(Default)]
pub(super) struct State {
    generation: Option<Arc<Generation>>,
    /// Of an object that is kept as a whole: its file, which had the object's hash.
    pub(super) whole: Option<Arc<dyn HostFile>>,
    is_opening: bool,
    pub(super) flights: Vec<Arc<Flight>>,
    /// How often it came with other content than its hash says, since it last had the right one.
    pub(super) mismatches: u32,
    /// What it had instead, the last time.
    pub(super) found: Option<ContentHash>,
    /// The same, whether it had the right one since or not.
    pub(super) found_last: Option<ContentHash>,
    /// Until when it is not fetched again, and why.
    pub(super) failed: Option<(Instant, Failure)>,
    /// The files that were found wrong last, by their number.
    pub(super) wrong: Option<u64>,
    /// Of one that the folder has no room for, once it was compared with its hash.
    pub(super) sums: Option<Arc<Sums>>,
}

/// Why [`CachedObject::copy_present`] went no further.
pub(super) enum Stop {
    /// All that was wanted is there.
    End,
    /// This block is absent.
    Absent(u64),
    /// This block is damaged.
    Bad(u64),
    /// The folder failed.
    Failed(std::io::Error),
}

impl CachedObject {
    pub(super) fn new(inner: Arc<Inner>, id: ObjectId) -> Arc<Self> {
        Arc::new_cyclic(|me| CachedObject {
            inner,
            me: me.clone(),
            id,
            state: Mutex::default(),
            opened: Condvar::new(),
            touched_secs: AtomicU64::new(0),
            is_queued: AtomicBool::new(false),
            drops: AtomicU64::new(0),
            end_was_read: AtomicBool::new(false),
            wrong_at: AtomicU64::new(0),
            verifying: Mutex::default(),
            following: Mutex::default(),
        })
    }

    /// What it is.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Reads at `offset`, short only at the object's end; gets what is absent from `fetch`.
    ///
    /// [`Corrupt`](adit_core::ErrorKind::Corrupt) with an [`ObjectFault`](super::ObjectFault) if the object came with wrong content
    /// twice or with another length, [`TimedOut`](adit_core::ErrorKind::TimedOut) if somebody else's fetch of the same block gives
    /// nothing, else what `fetch` says, also if it was called for another reader; but not if it was called
    /// [ahead](Self::prefetch) of all readers, or said [`Interrupted`](adit_core::ErrorKind::Interrupted) to another one: then it is
    /// called again. On an error `buf` holds anything.
    pub fn read(&self, offset: u64, buf: &mut [u8], fetch: &dyn Fetch) -> Result<usize> {
        self.read_by(offset, buf, |want| self.get(want, self.inner.options.strict, fetch))
    }

    /// As [`CachedObject::read`] with [`CacheOptions::strict`](super::CacheOptions::strict): gets and compares the whole object first.
    pub fn read_verified(&self, offset: u64, buf: &mut [u8], fetch: &dyn Fetch) -> Result<usize> {
        self.read_by(offset, buf, |want| self.get(want, true, fetch))
    }

    pub(super) fn read_by(
        &self,
        offset: u64,
        buf: &mut [u8],
        get: impl FnOnce(&mut Want<'_>) -> Result<()>,
    ) -> Result<usize> {
        let len = self.id.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        if len > 0 {
            get(&mut Want::new(offset, &mut buf[..len]))?;
        }
        Ok(len)
    }

    pub(super) fn get(&self, want: &mut Want<'_>, is_strict: bool, fetch: &dyn Fetch) -> Result<()> {
        if self.is_small() {
            self.read_whole(want, true, fetch)
        } else if is_strict || self.is_suspect() {
            self.read_strict(want, fetch)
        } else if self.sums().is_some() {
            self.verified_through(want, fetch)
        } else {
            self.read_blocks(want, fetch)?;
            self.compare_at_end(want, fetch)
        }
    }

    /// Whether it came with other content than its hash says, and not yet with the right one since.
    pub(super) fn is_suspect(&self) -> bool {
        self.state.lock().found.is_some()
    }

    /// Who has come to the object's end hears whether it is the right one, once all of it is there: a program that read all of it must not
    /// end well with wrong bytes because they were compared a moment too late.
    pub(super) fn compare_at_end(&self, want: &mut Want<'_>, fetch: &dyn Fetch) -> Result<()> {
        if want.end() >= self.id.len {
            self.end_was_read.store(true, Ordering::Relaxed);
        }
        if !self.end_was_read.load(Ordering::Relaxed) {
            return Ok(());
        }
        if let Some(generation) = self.uncompared(want.end())
            && !self.verify(&generation)
        {
            // A folder that fails is not to be read again and again.
            self.end_was_read.store(false, Ordering::Relaxed);
        }
        // By this thread, or another one meanwhile.
        let Some(found) = self.state.lock().found else { return Ok(()) };
        match want.start() {
            // Nothing was read before.
            0 => self.read_strict(want, fetch),
            _ => Err(ObjectFault::Mismatch { found }.error(&self.id)),
        }
    }

    /// What there is of it, if that is all, was never compared with the hash, and a read to `end` comes to its end, or another one did.
    fn uncompared(&self, end: u64) -> Option<Arc<Generation>> {
        let is_asked = end >= self.id.len || self.end_was_read.load(Ordering::Relaxed);
        let generation = if is_asked { self.generation(false) } else { None };
        generation.filter(|generation| generation.trust() == Trust::None && generation.is_complete())
    }

    /// Whether it is kept as a whole.
    pub(super) fn is_small(&self) -> bool {
        self.id.len <= u64::from(self.inner.options.block_len)
    }

    pub(super) fn read_blocks(&self, want: &mut Want<'_>, fetch: &dyn Fetch) -> Result<()> {
        let (mut at, end) = (want.start(), want.end());
        let mut stalls = 0;
        while at < end {
            self.check_failed()?;
            let generation = match self.generation(true) {
                Some(generation) if stalls < STALLS_MAX => generation,
                // The folder is of no use now.
                _ => return self.pass_through(at, want, fetch),
            };
            let (copied_to, stop) = self.copy_present(&generation, at, want);
            if copied_to > at {
                self.follow(&generation);
            }
            stalls = if copied_to > at { 0 } else { stalls + 1 };
            at = copied_to;
            let absent = match stop {
                Stop::End => return Ok(()),
                Stop::Absent(block) => block,
                Stop::Bad(block) => {
                    self.damaged(&generation, block);
                    continue;
                }
                Stop::Failed(e) => {
                    self.inner.note("read", &self.id, &e);
                    return self.pass_through(at, want, fetch);
                }
            };
            let blocks = absent..generation.block_of(end - 1) + 1;
            match self.fill(&generation, blocks, Some(want), true, fetch)? {
                Step::To(to) => {
                    stalls = 0;
                    at = to.min(end);
                }
                Step::Again => {}
                Step::NoRoom | Step::Busy => return self.pass_through(at, want, fetch),
            }
        }
        Ok(())
    }

    /// Copies what is wanted from `at` on, as far as it is there without a gap.
    pub(super) fn copy_present(&self, generation: &Generation, mut at: u64, want: &mut Want<'_>) -> (u64, Stop) {
        let (from, end) = (at, want.end());
        let stop = loop {
            if at >= end {
                break Stop::End;
            }
            let block = generation.block_of(at);
            let block_end = generation.range(block).end;
            if !generation.is_checked(block) {
                match generation.check(block, Some(want)) {
                    Ok(Found::Good) => at = block_end.min(end),
                    Ok(Found::Bad) => break Stop::Bad(block),
                    Ok(Found::Absent) => break Stop::Absent(block),
                    Err(e) => break Stop::Failed(e),
                }
                continue;
            }
            // One call for all that is as good.
            let mut to = block_end;
            while to < end && generation.is_checked(generation.block_of(to)) {
                to = generation.range(generation.block_of(to)).end;
            }
            let to = to.min(end);
            match generation.read(at, want.part(at..to)) {
                Ok(true) => at = to,
                Ok(false) => break Stop::Bad(block),
                Err(e) => break Stop::Failed(e),
            }
        };
        if at > from {
            add(&self.inner.counters.hits, 1);
            add(&self.inner.counters.hit_bytes, at - from);
            self.touch(generation);
        }
        (at, stop)
    }

    /// Gets what is absent of `range`, which ends at the object's end at most, as a whole. What somebody else is fetching is not
    /// waited for; without room nothing is done. To be called beside reads, by whoever knows what will be read.
    pub fn prefetch(&self, range: Range<u64>, fetch: &dyn Fetch) -> Result<()> {
        let end = range.end.min(self.id.len);
        if range.start >= end {
            return Ok(());
        }
        if self.inner.options.strict && !self.inner.space.fits(self.id.len) && self.sums().is_none() {
            // The first read fetches all of it, past the folder.
            return Ok(());
        }
        if self.is_small() {
            let fits = self.inner.space.fits(self.id.len.next_multiple_of(UNIT_LEN));
            return if fits { self.read_whole(&mut Want::new(0, &mut []), false, fetch) } else { Ok(()) };
        }
        let mut at = range.start;
        while at < end {
            self.check_failed()?;
            let Some(generation) = self.generation(true) else { return Ok(()) };
            let block = generation.block_of(at);
            if generation.is_known(block) || self.is_in_flight(block) {
                at = generation.range(block).end;
                continue;
            }
            let blocks = block..generation.block_of(end - 1) + 1;
            match self.fill(&generation, blocks, None, false, fetch)? {
                Step::To(to) => at = to,
                Step::Again | Step::Busy => at = generation.range(block).end,
                Step::NoRoom => return Ok(()),
            }
        }
        Ok(())
    }

    /// Whether nothing that was read of it since `moment` ([`Cache::moment`](super::Cache::moment)) has turned out to be wrong: the error if
    /// it has, for who comes to its end. What was wrong once may be right when it is asked for again, also what the kernel itself asks for again
    /// after an error, and a program that has the wrong bytes is to hear of them.
    pub fn check_since(&self, moment: u64) -> Result<()> {
        if self.wrong_at.load(Ordering::Acquire) <= moment || self.is_small() || self.inner.options.strict {
            return Ok(());
        }
        let found = self.state.lock().found_last;
        found.map_or(Ok(()), |found| Err(ObjectFault::Mismatch { found }.error(&self.id)))
    }

    /// Notes when it was found wrong.
    pub(super) fn wrong_now(&self) {
        let moment = self.inner.moment.fetch_add(1, Ordering::AcqRel) + 1;
        self.wrong_at.store(moment, Ordering::Release);
    }

    /// How often all that was there of it went, to make room or because it was wrong, since it was opened. What was planned to be fetched before
    /// is no good plan any more: what readers have behind them would be fetched again.
    pub fn drops(&self) -> u64 {
        self.drops.load(Ordering::Relaxed)
    }
}
