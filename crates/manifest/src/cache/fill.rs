//! Getting blocks that are absent.
//!
//! Who wants absent blocks claims them with a [`Flight`] against the others of this process, and by the lock on their records
//! against other processes; then it alone fetches and writes them. Bytes go to the reader as they come, whatever becomes of the
//! write: what cannot be kept costs the next reader another fetch, and nobody an error.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_core::error::{ErrorKind, FsError, Result};
use xxhash_rust::xxh3::Xxh3;

use super::Fetch;
use super::fault::{Failure, ObjectFault};
use super::flight::{Flight, Landed};
use super::generation::{BlockLock, Generation};
use super::object::CachedObject;
use super::space::Reservation;
use super::stats::add;
use super::want::Want;

/// First and longest pause between two looks at what another process fetches.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// How far [`CachedObject::fill`] came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// All up to this byte was fetched, and is where it is wanted.
    To(u64),
    /// Something has changed: look again.
    Again,
    /// It cannot be kept.
    NoRoom,
    /// Another process has it, and gives nothing.
    Busy,
}

/// Whose turn it is to fetch.
enum Turn<'a> {
    /// This process's, of so many of the blocks.
    Ours(BlockLock<'a>, Range<u64>),
    /// Nobody's: the first block is there.
    There,
    /// Another process's.
    Theirs,
}

/// Blocks that the holder fetches, and nobody else of this process.
pub(super) struct Claim<'a> {
    object: &'a CachedObject,
    flight: Arc<Flight>,
    result: Option<Result<(), Failure>>,
}

impl Claim<'_> {
    /// Tells those that wait that bytes came.
    pub fn came(&self, bytes: u64) {
        self.flight.came(bytes);
    }

    /// Tells those that wait how it ended.
    pub fn end(mut self, result: Result<(), Failure>) {
        self.result = Some(result);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // First, so that who looks again finds it no more.
        self.object.state.lock().flights.retain(|flight| !Arc::ptr_eq(flight, &self.flight));
        // A fetch that panicked has none.
        let abandoned = || Err(Failure::of(&ObjectFault::Abandoned.error(&self.object.id())));
        self.flight.end(self.result.take().unwrap_or_else(abandoned));
    }
}

impl CachedObject {
    /// Whether somebody of this process fetches the block.
    pub(super) fn is_in_flight(&self, block: u64) -> bool {
        let blocks = block..block + 1;
        self.state.lock().flights.iter().any(|flight| flight.meets(&blocks))
    }

    /// Claims blocks, or tells who has one of them. `is_ahead`: before anybody asks for them.
    pub(super) fn claim(&self, blocks: Range<u64>, is_ahead: bool) -> Result<Claim<'_>, Arc<Flight>> {
        let state = &mut *self.state.lock();
        if let Some(flight) = state.flights.iter().find(|flight| flight.meets(&blocks)) {
            return Err(flight.clone());
        }
        let flight = Flight::new(blocks, is_ahead);
        state.flights.push(flight.clone());
        Ok(Claim { object: self, flight, result: None })
    }

    /// Claims the first of `blocks`, and those after it that are absent too.
    fn claim_run(
        &self,
        generation: &Generation,
        blocks: Range<u64>,
        is_ahead: bool,
    ) -> Result<(Claim<'_>, Range<u64>), Arc<Flight>> {
        let run_max = (self.inner.space.run_max() / u64::from(generation.header().block_len)).max(1);
        let mut end = blocks.end.min(blocks.start + run_max);
        if let Some(known) = (blocks.start + 1..end).find(|block| generation.is_known(*block)) {
            end = known;
        }
        loop {
            match self.claim(blocks.start..end, is_ahead) {
                Ok(claim) => return Ok((claim, blocks.start..end)),
                Err(flight) if end == blocks.start + 1 => return Err(flight),
                // Up to the other one, or none but the first.
                Err(_) => {
                    end = (blocks.start + 1..end).find(|block| self.is_in_flight(*block)).unwrap_or(blocks.start + 1);
                }
            }
        }
    }

    /// Gets the first of `blocks`, which is absent, and those after it that are absent too, in one fetch; or waits for somebody
    /// else who does so, unless `is_awaited` is false: then nobody has asked for them yet.
    pub(super) fn fill(
        &self,
        generation: &Arc<Generation>,
        blocks: Range<u64>,
        want: Option<&mut Want<'_>>,
        is_awaited: bool,
        fetch: &dyn Fetch,
    ) -> Result<Step> {
        let first = blocks.start;
        let (claim, blocks) = match self.claim_run(generation, blocks, !is_awaited) {
            Ok(claimed) => claimed,
            Err(_) if !is_awaited => return Ok(Step::Again),
            Err(flight) => {
                add(&self.inner.counters.waits, 1);
                return match flight.wait(first, self.inner.options.patience) {
                    Landed::Look => Ok(Step::Again),
                    Landed::Failed(failure) => Err(failure.error(&self.id())),
                    Landed::Late(fault) => Err(fault.error(&self.id())),
                };
            }
        };
        let last = blocks.end - 1;
        let result = self.fill_claimed(generation, &claim.flight, blocks, want, is_awaited, fetch);
        claim.end(result.as_ref().map(drop).map_err(Failure::of));
        self.follow(generation);
        if !is_awaited
            && !self.inner.options.strict
            && let Err(e) = generation.advance()
        {
            self.inner.note("read", &self.id(), &e);
        }
        // Other processes may have the rest: whoever writes the last block looks.
        if generation.is_complete() || last + 1 == generation.blocks() {
            self.settle_later(generation);
        }
        result
    }

    fn fill_claimed(
        &self,
        generation: &Arc<Generation>,
        flight: &Flight,
        blocks: Range<u64>,
        want: Option<&mut Want<'_>>,
        is_awaited: bool,
        fetch: &dyn Fetch,
    ) -> Result<Step> {
        match generation.look_if_gone() {
            Ok(false) => {}
            Ok(true) => {
                self.let_go(false);
                return Ok(Step::Again);
            }
            Err(e) => {
                self.inner.note("look at an object", &self.id(), &e);
                return Ok(Step::NoRoom);
            }
        }
        let (_lock, blocks) = match self.turn(generation, blocks, is_awaited) {
            Ok(Turn::Ours(lock, blocks)) => (lock, blocks),
            Ok(Turn::There) => return Ok(Step::Again),
            Ok(Turn::Theirs) => return Ok(Step::Busy),
            Err(e) => {
                self.inner.note("read a map", &self.id(), &e);
                return Ok(Step::NoRoom);
            }
        };
        let range = generation.range(blocks.start).start..generation.range(blocks.end - 1).end;
        let Some(room) = self.inner.reserve(range.end - range.start) else { return Ok(Step::NoRoom) };
        if generation.is_gone() {
            // It was what had to make room.
            return Ok(Step::Again);
        }
        add(&self.inner.counters.misses, 1);
        add(&self.inner.counters.fetches, 1);
        let mut filler = Filler {
            object: self,
            generation,
            flight,
            want,
            room,
            at: range.start,
            end: range.end,
            keeps: true,
            sum: Xxh3::new(),
            whole: None,
            refused: None,
        };
        let result = fetch.fetch(&self.id(), range.clone(), &mut |bytes| filler.take(bytes));
        filler.end(result, &range)
    }

    /// Waits until it is this process's turn to fetch the first of `blocks`, or another one has done it; unless it is not
    /// awaited, then it does not wait.
    fn turn<'a>(&self, generation: &'a Generation, blocks: Range<u64>, is_awaited: bool) -> std::io::Result<Turn<'a>> {
        let deadline = Instant::now() + self.inner.options.others_patience;
        let mut pause = PAUSE_MIN;
        let first = blocks.start;
        loop {
            for end in [blocks.end, first + 1] {
                let Some(lock) = generation.lock(first..end)? else { continue };
                // Whoever had it before may have written some.
                let mut absent = first;
                while absent < end && generation.sum(absent)?.is_none() {
                    absent += 1;
                }
                return Ok(if absent == first { Turn::There } else { Turn::Ours(lock, first..absent) });
            }
            if generation.sum(first)?.is_some() {
                return Ok(Turn::There);
            }
            if !is_awaited || Instant::now() >= deadline {
                return Ok(Turn::Theirs);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Gets what is wanted from `at` on, and keeps nothing of it.
    pub(super) fn pass_through(&self, at: u64, want: &mut Want<'_>, fetch: &dyn Fetch) -> Result<()> {
        let range = at..want.end();
        add(&self.inner.counters.misses, 1);
        self.fetch_all(range.clone(), fetch, &mut |at, bytes| want.put(at, bytes))?;
        add(&self.inner.counters.passed_bytes, range.end - range.start);
        Ok(())
    }

    /// Fetches a range and makes sure that it is as long as that.
    pub(super) fn fetch_all(
        &self,
        range: Range<u64>,
        fetch: &dyn Fetch,
        sink: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<()> {
        let (mut at, mut is_long) = (range.start, false);
        add(&self.inner.counters.fetches, 1);
        let result = fetch.fetch(&self.id(), range.clone(), &mut |bytes| {
            if bytes.len() as u64 > range.end - at {
                is_long = true;
                return Err(self.too_long(&range));
            }
            sink(at, bytes);
            at += bytes.len() as u64;
            add(&self.inner.counters.fetched_bytes, bytes.len() as u64);
            Ok(())
        });
        if is_long {
            return Err(self.too_long(&range));
        }
        result.map_err(|e| e.on("read object", self.id()))?;
        if at < range.end { Err(self.too_short(&range, at)) } else { Ok(()) }
    }

    fn too_long(&self, range: &Range<u64>) -> FsError {
        ObjectFault::Long { expected: range.end - range.start }.error(&self.id())
    }

    fn too_short(&self, range: &Range<u64>, at: u64) -> FsError {
        let (got, expected) = (at - range.start, range.end - range.start);
        ObjectFault::Short { got, expected, len: self.id().len }.error(&self.id())
    }
}

/// Takes what a fetch gives.
struct Filler<'a, 'w, 'b> {
    object: &'a CachedObject,
    generation: &'a Generation,
    flight: &'a Flight,
    want: Option<&'w mut Want<'b>>,
    room: Reservation<'a>,
    /// The next byte.
    at: u64,
    end: u64,
    /// Whether what comes is written.
    keeps: bool,
    /// Of the block that `at` is in.
    sum: Xxh3,
    /// Of the object up to `at`, if its blocks came in order so far.
    whole: Option<Xxh3>,
    /// Why nothing more is taken.
    refused: Option<ObjectFault>,
}

impl Filler<'_, '_, '_> {
    fn take(&mut self, mut bytes: &[u8]) -> Result<()> {
        let count = bytes.len() as u64;
        if count > self.end - self.at {
            let expected = self.end - self.at;
            let fault = self.refused.insert(ObjectFault::Long { expected });
            return Err(fault.clone().error(&self.object.id()));
        }
        add(&self.object.inner.counters.fetched_bytes, count);
        self.flight.came(count);
        while !bytes.is_empty() {
            let block = self.generation.block_of(self.at);
            let block_end = self.generation.range(block).end;
            let (piece, rest) = bytes.split_at(bytes.len().min((block_end - self.at) as usize));
            if let Some(want) = &mut self.want {
                want.put(self.at, piece);
            }
            if self.keeps {
                self.keep(block, block_end, piece);
            }
            self.at += piece.len() as u64;
            bytes = rest;
        }
        match self.keeps || self.want.is_some() {
            true => Ok(()),
            // Nobody waits for the rest.
            false => Err(FsError::new(ErrorKind::NoSpace)),
        }
    }

    /// Writes a piece of a block.
    fn keep(&mut self, block: u64, block_end: u64, piece: &[u8]) {
        if self.at == self.generation.range(block).start {
            self.sum = Xxh3::new();
            self.whole = self.generation.whole_before(block);
            // Its names are gone: nobody will find what is written.
            self.keeps = !self.generation.is_gone();
        }
        let ends = self.at + piece.len() as u64 == block_end;
        self.sum.update(piece);
        if let Some(whole) = &mut self.whole {
            whole.update(piece);
        }
        let inner = &self.object.inner;
        let write = || {
            self.generation.write(self.at, piece)?;
            if ends { self.generation.set_record(block, self.sum.digest()) } else { Ok(()) }
        };
        let written = write().or_else(|e| if inner.look_for_room(&e) { write() } else { Err(e) });
        if let Err(e) = written {
            inner.note("write", &self.object.id(), &e);
            self.keeps = false;
            return;
        }
        if ends {
            let range = self.generation.range(block);
            self.room.take(range.end - range.start);
            if let Some(whole) = self.whole.take() {
                self.generation.set_whole_after(block, whole, self.sum.digest());
            }
            self.flight.kept(block + 1);
        }
    }

    /// What came of the fetch.
    fn end(self, result: Result<()>, range: &Range<u64>) -> Result<Step> {
        let id = self.object.id();
        if let Some(fault) = self.refused {
            return Err(fault.error(&id));
        }
        if !self.keeps && self.want.is_none() {
            return Ok(Step::NoRoom);
        }
        result.map_err(|e| e.on("read object", id))?;
        if self.at < self.end {
            return Err(self.object.too_short(range, self.at));
        }
        if !self.keeps {
            add(&self.object.inner.counters.passed_bytes, range.end - range.start);
        }
        Ok(Step::To(range.end))
    }
}
