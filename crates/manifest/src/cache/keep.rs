//! Reads of bytes that somebody keeps, before all of their object is there to be compared with its hash.
//!
//! What is handed out is told by the checksum that its block has in the map, or in memory: whoever keeps it asks later, also after a
//! restart, whether the block of the object that was compared has the same. So it does not matter what became of the files meanwhile.

use std::ops::Range;

use adit_core::error::Result;
use adit_core::store::{Proof, Unproved};
use xxhash_rust::xxh3::Xxh3;

use super::Fetch;
use super::generation::{Generation, Trust};
use super::object::{CachedObject, Stop};
use super::want::Want;

/// How often a read begins anew because the files change beneath it, before the whole object is compared at once.
const ROUNDS_MAX: u32 = 4;
/// Bytes that are read and hashed at a time.
const PIECE_LEN: u64 = 64 << 10;

impl CachedObject {
    /// As [`CachedObject::read`], for somebody who keeps some of it: what is not compared with the object's hash is added to `unproved`, by
    /// blocks of the object. An object of at most [`verify_first_bytes`](super::CacheOptions::verify_first_bytes) is compared first, and one
    /// that was wrong before.
    pub fn read_to_keep(
        &self,
        offset: u64,
        buf: &mut [u8],
        fetch: &dyn Fetch,
        unproved: &mut Vec<Unproved>,
    ) -> Result<usize> {
        self.read_by(offset, buf, |want| match self.compares_first() || self.sums().is_some() {
            true => self.get(want, true, fetch),
            false => self.read_noted(want, fetch, unproved),
        })
    }

    /// Whether all of it is compared before something of it is kept.
    pub(super) fn compares_first(&self) -> bool {
        let options = &self.inner.options;
        self.is_small() || options.strict || self.id().len <= options.verify_first_bytes || self.is_suspect()
    }

    /// Whether [`CachedObject::read_to_keep`] fetches nothing.
    pub fn answers_to_keep(&self, range: Range<u64>) -> bool {
        if self.compares_first() { self.has_verified(range) } else { self.answers(range) }
    }

    fn read_noted(&self, want: &mut Want<'_>, fetch: &dyn Fetch, unproved: &mut Vec<Unproved>) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            self.check_failed()?;
            let Some(generation) = self.generation(true) else { break };
            if generation.trust() > Trust::None || self.is_suspect() {
                break;
            }
            self.read_blocks(want, fetch)?;
            self.compare_at_end(want, fetch)?;
            // From now on it is only read, and told what that was.
            if let Some(noted) = self.note_blocks(&generation, want) {
                unproved.extend(noted);
                return Ok(());
            }
        }
        self.get(want, true, fetch)
    }

    /// Reads blocks that are there, with their checksums. `None` if one is not, or not what it was a moment ago.
    fn note_blocks(&self, generation: &Generation, want: &mut Want<'_>) -> Option<Vec<Unproved>> {
        let blocks = generation.block_of(want.start())..generation.block_of(want.end() - 1) + 1;
        let sums = || -> Option<Vec<u64>> { blocks.clone().map(|block| generation.sum(block).ok()?).collect() };
        let before = sums()?;
        let Stop::End = self.copy_present(generation, want.start(), want).1 else { return None };
        // Whoever writes a block anew takes its record away first.
        if sums()? != before || generation.is_gone() {
            return None;
        }
        let noted = blocks.zip(before).map(|(block, sum)| {
            let range = generation.range(block);
            Unproved { offset: range.start, len: range.end - range.start, sum }
        });
        Some(noted.collect())
    }

    /// Whether `range`, which [`CachedObject::read_to_keep`] told with `sum`, was the object's. With `fetch`, whatever is absent of the object
    /// is fetched, and it is known then; else only what is there is compared.
    pub fn prove(&self, range: Range<u64>, sum: u64, fetch: Option<&dyn Fetch>) -> Result<Proof> {
        if range.is_empty() || range.end > self.id().len {
            return Ok(Proof::Wrong);
        }
        if let Some(found) = self.proved_sum(&range) {
            return Ok(if found == sum { Proof::Right } else { Proof::Wrong });
        }
        let Some(fetch) = fetch else { return Ok(if self.is_suspect() { Proof::Suspect } else { Proof::Open }) };
        let (mut hash, mut at) = (Xxh3::new(), range.start);
        let mut buffer = vec![0; PIECE_LEN.min(range.end - range.start) as usize];
        while at < range.end {
            let piece = &mut buffer[..PIECE_LEN.min(range.end - at) as usize];
            self.read_verified(at, piece, fetch)?;
            hash.update(piece);
            at += piece.len() as u64;
        }
        Ok(if hash.digest() == sum { Proof::Right } else { Proof::Wrong })
    }

    /// The checksum of a block of the object that was compared with its hash, or is now, if all of it is there.
    fn proved_sum(&self, range: &Range<u64>) -> Option<u64> {
        if let Some(sum) = self.sums().and_then(|sums| sums.of(range, self.id().len)) {
            return Some(sum);
        }
        if self.is_small() {
            return None;
        }
        let generation = self.generation(false)?;
        if generation.trust() == Trust::None && generation.is_complete() {
            self.verify(&generation);
        }
        let block = generation.block_of(range.start);
        if generation.is_gone() || generation.trust() == Trust::None || generation.range(block) != *range {
            return None;
        }
        generation.sum(block).ok()?
    }
}
