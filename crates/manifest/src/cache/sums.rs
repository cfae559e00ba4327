//! What is remembered of an object that the folder has no room for as a whole: the checksums of its blocks, from when all of it was
//! compared with its hash. A block that is fetched again later is compared with its own, and nobody fetches the rest for it.
//!
//! They come from a pass through all of it, for a reader that must not have a byte before ([`CachedObject::verified_through`]), or from
//! following one that reads it from its beginning to its end ([`CachedObject::follow`]). They are in memory, 8 bytes a block, as long as
//! somebody uses the object.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use adit_core::error::Result;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::Fetch;
use super::fault::{Failure, ObjectFault};
use super::fill::{Claim, Step};
use super::flight::Landed;
use super::generation::{Found, Generation};
use super::id::ObjectId;
use super::object::CachedObject;
use super::stats::add;
use super::want::Want;
use crate::format::ContentHash;

/// How often a block is looked for in the folder, which may lose it meanwhile, before it is fetched past that.
const LOOKS_MAX: u32 = 4;
/// How often one is fetched that is not what it was, before nothing is believed any more.
const FETCHES_MAX: u32 = 2;
/// How often somebody else who fetches something of the object is waited for.
const WAITS_MAX: u32 = 16;
/// Bytes that are read and hashed at a time.
const PIECE_LEN: usize = 32 << 10;

/// The checksums of the blocks of an object that had its hash.
pub(super) struct Sums {
    block_len: u64,
    sums: Vec<u64>,
    /// Once they are kept.
    counted: Option<Counted>,
}

/// Bytes that are counted until this is dropped.
struct Counted {
    bytes: u64,
    all: Arc<AtomicU64>,
}

impl Counted {
    fn new(bytes: u64, all: &Arc<AtomicU64>) -> Self {
        all.fetch_add(bytes, Relaxed);
        Counted { bytes, all: all.clone() }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Relaxed);
    }
}

impl Sums {
    /// The checksum of exactly these bytes of an object that is `len` long, if they are a block.
    pub fn of(&self, range: &Range<u64>, len: u64) -> Option<u64> {
        let block = range.start / self.block_len;
        let bytes = block * self.block_len..((block + 1) * self.block_len).min(len);
        if bytes == *range { self.sums.get(usize::try_from(block).ok()?).copied() } else { None }
    }
}

/// Takes the bytes of an object in order.
pub(super) struct Summing {
    id: ObjectId,
    block_len: u64,
    at: u64,
    whole: Xxh3,
    block: Xxh3,
    sums: Vec<u64>,
}

impl Summing {
    pub fn new(id: ObjectId, block_len: u32) -> Self {
        Summing { id, block_len: block_len.into(), at: 0, whole: Xxh3::new(), block: Xxh3::new(), sums: Vec::new() }
    }

    /// Takes bytes that follow those before, and lie in the object.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.whole.update(bytes);
        while !bytes.is_empty() {
            let end = ((self.at / self.block_len + 1) * self.block_len).min(self.id.len);
            let (piece, rest) = bytes.split_at(bytes.len().min((end - self.at) as usize));
            self.block.update(piece);
            self.at += piece.len() as u64;
            if self.at == end {
                self.sums.push(self.block.digest());
                self.block = Xxh3::new();
            }
            if piece.is_empty() {
                // Behind the object's end.
                return;
            }
            bytes = rest;
        }
    }

    /// The hash, and the checksums if it is the object's; of one that came to its end.
    pub fn end(self) -> (ContentHash, Option<Sums>) {
        let found = ContentHash(self.whole.digest128().to_be_bytes());
        let sums = Sums { block_len: self.block_len, sums: self.sums, counted: None };
        (found, (found == self.id.hash).then_some(sums))
    }
}

/// Tells those that wait how a fetch ended, if it was claimed.
fn end(claim: Option<Claim<'_>>, result: Result<(), Failure>) {
    if let Some(claim) = claim {
        claim.end(result);
    }
}

impl CachedObject {
    /// The checksums, if they are known.
    pub(super) fn sums(&self) -> Option<Arc<Sums>> {
        self.state.lock().sums.clone()
    }

    /// Keeps them, or takes them away. If all together take too much, those of other objects go: these are compared anew when they are
    /// read again.
    fn set_sums(&self, sums: Option<Sums>) {
        let all = &self.inner.sums_bytes;
        let sums = sums.map(|mut sums| {
            sums.sums.shrink_to_fit();
            sums.counted = Some(Counted::new(size_of_val(&*sums.sums) as u64, all));
            Arc::new(sums)
        });
        let before = std::mem::replace(&mut self.state.lock().sums, sums);
        drop(before);
        for object in self.inner.all_live() {
            if all.load(Relaxed) <= self.inner.options.memory_bytes {
                return;
            }
            if object.id() != self.id() {
                let gone = object.state.lock().sums.take();
                drop(gone);
            }
        }
    }

    /// Reads blocks, each of which is compared with its checksum before anything of it is handed out. False if one is not what it was:
    /// then nothing is known any more.
    pub(super) fn read_by_sums(&self, sums: &Sums, want: &mut Want<'_>, fetch: &dyn Fetch) -> Result<bool> {
        for block in want.start() / sums.block_len..want.end().div_ceil(sums.block_len) {
            let Some(sum) = sums.sums.get(block as usize) else { return Ok(false) };
            if !self.read_block(sums.block_len, (block, *sum), want, fetch)? {
                tracing::warn!(object = %self.id(), block, "a block is not what it was when the object was compared with its hash");
                self.set_sums(None);
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn read_block(
        &self,
        block_len: u64,
        (block, sum): (u64, u64),
        want: &mut Want<'_>,
        fetch: &dyn Fetch,
    ) -> Result<bool> {
        let mut fetches = 0;
        for _ in 0..LOOKS_MAX {
            self.check_failed()?;
            let generation = self.generation(true);
            let Some(generation) = generation.filter(|found| u64::from(found.header().block_len) == block_len) else {
                break;
            };
            let found = self.block_in_folder(&generation, block, sum, want);
            match found {
                Ok(Found::Good) => return Ok(true),
                Ok(Found::Absent) => {}
                Ok(Found::Bad) => {
                    // Of an object that does not fit little is lost.
                    self.discard(&generation);
                    if fetches >= FETCHES_MAX {
                        return Ok(false);
                    }
                    continue;
                }
                Err(e) => {
                    self.inner.note("read", &self.id(), &e);
                    break;
                }
            }
            match self.fill(&generation, block..block + 1, None, true, fetch)? {
                Step::To(_) => fetches += 1,
                Step::Again => {}
                Step::NoRoom | Step::Busy => break,
            }
        }
        let range = block * block_len..((block + 1) * block_len).min(self.id().len);
        for _ in fetches..FETCHES_MAX {
            // A block at most.
            let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
            add(&self.inner.counters.misses, 1);
            self.fetch_all(range.clone(), fetch, &mut |_, piece| bytes.extend_from_slice(piece))?;
            add(&self.inner.counters.passed_bytes, range.end - range.start);
            if xxh3_64(&bytes) == sum {
                want.put(range.start, &bytes);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes what is wanted of a block in the folder, if it is there and what it was.
    fn block_in_folder(
        &self,
        generation: &Generation,
        block: u64,
        sum: u64,
        want: &mut Want<'_>,
    ) -> std::io::Result<Found> {
        match generation.sum(block)? {
            None => return Ok(Found::Absent),
            Some(found) if found != sum => return Ok(Found::Bad),
            Some(_) => {}
        }
        if !generation.is_checked(block) {
            return generation.check(block, Some(want));
        }
        let bytes = generation.range(block);
        let start = bytes.start.max(want.start());
        let is_there = generation.read(start, want.part(start..bytes.end))?;
        if is_there {
            add(&self.inner.counters.hits, 1);
            self.touch(generation);
        }
        Ok(if is_there { Found::Good } else { Found::Bad })
    }

    /// Fetches the whole object, keeps what is wanted of it in the reader's buffer alone, and compares it with its hash; and once more
    /// if it is not right. One reader does so, the others go by what it finds.
    pub(super) fn verified_through(&self, want: &mut Want<'_>, fetch: &dyn Fetch) -> Result<()> {
        let block_len = self.inner.options.block_len;
        let blocks = self.id().len.div_ceil(block_len.into());
        let mut found = ContentHash([0; 16]);
        let (mut passes, mut waits) = (0, 0);
        while passes < FETCHES_MAX {
            self.check_failed()?;
            if let Some(sums) = self.sums()
                && self.read_by_sums(&sums, want, fetch)?
            {
                return Ok(());
            }
            let claim = match self.claim(0..blocks, false) {
                Ok(claim) => Some(claim),
                // Others go on with some block or other: it is fetched beside them.
                Err(_) if waits >= WAITS_MAX => None,
                Err(flight) => {
                    waits += 1;
                    add(&self.inner.counters.waits, 1);
                    match flight.wait(0, self.inner.options.patience) {
                        Landed::Look => {}
                        Landed::Failed(failure) => return Err(failure.error(&self.id())),
                        Landed::Late(fault) => return Err(fault.error(&self.id())),
                    }
                    continue;
                }
            };
            if self.sums().is_some() {
                // Between the look and the claim.
                end(claim, Ok(()));
                continue;
            }
            passes += 1;
            let mut summing = Summing::new(self.id(), block_len);
            add(&self.inner.counters.misses, 1);
            let fetched = self.fetch_all(0..self.id().len, fetch, &mut |at, bytes| {
                if let Some(claim) = &claim {
                    claim.came(bytes.len() as u64);
                }
                summing.update(bytes);
                want.put(at, bytes);
            });
            if let Err(e) = fetched {
                end(claim, Err(Failure::of(&e)));
                return Err(e);
            }
            add(&self.inner.counters.passed_bytes, self.id().len);
            let (hash, sums) = summing.end();
            let is_right = sums.is_some();
            if is_right {
                self.set_sums(sums);
                self.right();
                add(&self.inner.counters.verified, 1);
            }
            end(claim, Ok(()));
            if is_right {
                return Ok(());
            }
            found = hash;
            self.wrong(found);
        }
        Err(ObjectFault::Mismatch { found }.error(&self.id()))
    }

    /// Hashes what has come of an object that the folder cannot hold, as far as it came in order, and compares it with its hash when all of
    /// it did: so a reader that went through the whole of it learns, at its end, whether it was right.
    pub(super) fn follow(&self, generation: &Generation) {
        let block_len = self.inner.options.block_len;
        if self.inner.space.fits(self.id().len)
            || self.inner.options.strict
            || generation.header().block_len != block_len
            || self.sums().is_some()
        {
            return;
        }
        let mut following = self.following.lock();
        let summing = following.get_or_insert_with(|| Summing::new(self.id(), block_len));
        let mut buffer = [0; PIECE_LEN];
        while summing.at < self.id().len {
            let block = generation.block_of(summing.at);
            if !generation.is_checked(block) {
                return;
            }
            while summing.at < generation.range(block).end {
                let len = (generation.range(block).end - summing.at).min(PIECE_LEN as u64) as usize;
                if !generation.read(summing.at, &mut buffer[..len]).unwrap_or(false) {
                    // It is read from its beginning again, or by a thread that looks at it.
                    *following = None;
                    return;
                }
                summing.update(&buffer[..len]);
            }
        }
        let Some((found, sums)) = following.take().map(Summing::end) else { return };
        drop(following);
        match sums {
            Some(sums) => {
                self.set_sums(Some(sums));
                self.right();
                add(&self.inner.counters.verified, 1);
            }
            None => {
                self.discard(generation);
                self.wrong(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_blocks() {
        let content: Vec<u8> = (0..10_007u32).map(|n| (n * 7) as u8).collect();
        let id = ObjectId { hash: ContentHash::of(&content), len: content.len() as u64 };
        for piece in [1, 1023, 1024, 4096, 20_000] {
            let mut summing = Summing::new(id, 1024);
            content.chunks(piece).for_each(|piece| summing.update(piece));
            let (found, sums) = summing.end();
            assert_eq!(found, id.hash);
            let expected: Vec<u64> = content.chunks(1024).map(xxh3_64).collect();
            assert_eq!(sums.unwrap().sums, expected, "{piece}");
        }
        let mut summing = Summing::new(id, 1024);
        summing.update(&vec![0; content.len()]);
        assert!(summing.end().1.is_none());
    }
}
