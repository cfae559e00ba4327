//! A long range of an object, by several requests at a time.
//!
//! The threads live as long as the fetch. Each takes the next part that nobody has, as long as it is not too far ahead of what was
//! handed on: so memory is bounded, and the parts come in order.

use std::collections::BTreeMap;
use std::ops::Range;
use std::thread::{Builder, Scope};

use adit_core::error::{ErrorKind, FsError, Result};
use parking_lot::{Condvar, Mutex};

use super::{ObjectSource, REQUEST_LEN_BYTES};
use crate::cache::ObjectId;

/// Requests of one fetch at a time.
pub(super) const AT_ONCE_MAX: usize = 4;

#[derive(Default)]
struct State {
    /// The next part that nobody has.
    next: u64,
    /// Parts before this one were handed on.
    handed_on: u64,
    arrived: BTreeMap<u64, Result<Vec<u8>>>,
    /// Nothing more is wanted.
    is_over: bool,
    /// A thread has ended in the middle of its work.
    is_broken: bool,
}

/// What the threads of a fetch share.
struct Parts<'a> {
    source: &'a ObjectSource,
    id: &'a ObjectId,
    range: Range<u64>,
    /// Parts that are fetched, or wait to be handed on, at a time.
    at_once: u64,
    state: Mutex<State>,
    changed: Condvar,
}

impl Parts<'_> {
    fn count(&self) -> u64 {
        (self.range.end - self.range.start).div_ceil(REQUEST_LEN_BYTES)
    }

    fn bytes(&self, part: u64) -> Range<u64> {
        let start = self.range.start + part * REQUEST_LEN_BYTES;
        start..(start + REQUEST_LEN_BYTES).min(self.range.end)
    }

    fn read(&self, part: u64) -> Result<Vec<u8>> {
        let Range { start, end } = self.bytes(part);
        let mut buffer = self.source.buffer(end - start);
        self.source.read(self.id, start, &mut buffer).map(|()| buffer)
    }

    /// What a thread does.
    fn work(&self) {
        let _end = EndOfWork(self);
        loop {
            let part = {
                let mut state = self.state.lock();
                while !state.is_over && state.next >= state.handed_on + self.at_once {
                    self.changed.wait(&mut state);
                }
                if state.is_over || state.next >= self.count() {
                    return;
                }
                state.next += 1;
                state.next - 1
            };
            let result = self.read(part);
            self.state.lock().arrived.insert(part, result);
            self.changed.notify_all();
        }
    }

    /// The bytes of a part, when they are there.
    fn wait(&self, part: u64) -> Result<Vec<u8>> {
        let mut state = self.state.lock();
        loop {
            if let Some(result) = state.arrived.remove(&part) {
                return result;
            }
            if state.is_broken {
                return Err(FsError::new(ErrorKind::Io).on("read object", self.id).because("a request broke down"));
            }
            self.changed.wait(&mut state);
        }
    }

    fn hand_on(&self, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        // Also if `sink` panics: the threads are waited for.
        let _end = EndOfFetch(self);
        for part in 0..self.count() {
            let buffer = self.wait(part)?;
            sink(&buffer)?;
            self.source.give_back(buffer);
            self.state.lock().handed_on = part + 1;
            self.changed.notify_all();
        }
        Ok(())
    }
}

/// Lets the threads end.
struct EndOfFetch<'a>(&'a Parts<'a>);

impl Drop for EndOfFetch<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_over = true;
        self.0.changed.notify_all();
    }
}

/// Tells that a thread panicked, so that nobody waits for its part.
struct EndOfWork<'a>(&'a Parts<'a>);

impl Drop for EndOfWork<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.state.lock().is_broken = true;
            self.0.changed.notify_all();
        }
    }
}

impl ObjectSource {
    /// Fetches a range of more than one request.
    pub(super) fn fetch_in_parts(
        &self,
        id: &ObjectId,
        range: Range<u64>,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let places = self.places(AT_ONCE_MAX);
        let at_once = places.taken as u64;
        let parts = Parts { source: self, id, range, at_once, state: Mutex::default(), changed: Condvar::new() };
        let parts = &parts;
        // One by itself is faster without a buffer.
        let threads = if at_once > 1 { parts.count().min(at_once) } else { 0 };
        std::thread::scope(|scope: &Scope<'_, '_>| {
            let start = || Builder::new().name("adit-fetch".to_owned()).spawn_scoped(scope, || parts.work()).is_ok();
            if (0..threads).filter(|_| start()).count() > 0 {
                return parts.hand_on(sink);
            }
            // No room for what comes out of order, or for a thread.
            (0..parts.count()).try_for_each(|part| self.read_through(id, parts.bytes(part), sink))
        })
    }
}
