//! What opening finds: the bitmaps of the last checkpoint, and the log since.
//!
//! A crash leaves a prefix of the batches. The chain of records ends at the first that is not valid; of those, what was not
//! durable may name blocks that never reached the disk. So the table is what the longest prefix makes of it all of
//! whose blocks are as the batches say.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, ControlFlow};

use adit_core::Result;

use super::memory::MemTable;
use super::{BATCH_LEN_MOST_BYTES, BLOCK_LEN_BYTES, Batch, OWN_PREFIX, Run};
use crate::container::Container;
use crate::format::container::Superblock;
use crate::format::log::{self, ALIGNMENT, Kind, Seed};
use crate::format::own::Own;
use crate::kv::View;

/// A segment of the log.
#[derive(Clone, Copy)]
pub(super) struct LogPart {
    pub segment: u32,
    /// Bytes of records from its start on.
    pub len: usize,
    /// The last batch up to its end.
    pub seq: u64,
}

/// What the file holds besides the store.
pub(super) struct Found {
    /// What the store lacks.
    pub table: MemTable,
    /// The last batch of the prefix.
    pub seq: u64,
    /// Where the log is.
    pub log: Vec<LogPart>,
    /// The last batch that a record, or the store, says is durable.
    pub durable: u64,
    /// How many batches the store lacks.
    pub batches: usize,
    /// Runs that verify, but that no record says are durable: after a failed sync they may be in the host's cache alone.
    pub unsynced: Vec<Run>,
}

/// Reads it, and fills the container's space.
pub(super) fn find(container: &Container, view: &dyn View) -> Result<Found> {
    let superblock = container.superblock();
    let applied = load(container, view)?;
    if applied.is_some_and(|applied| applied.saturating_add(1) < superblock.log_seq) {
        return Err(container.corrupt("the key-value store is older than the log"));
    }
    // A volume whose first opening was cut short has an empty store.
    let applied = applied.unwrap_or(superblock.log_seq - 1);
    if superblock.log_segment >= container.space().limit() {
        return Err(container.corrupt("the log begins beyond the end of the file"));
    }
    let chain = Chain::read(container, &superblock)?;
    for part in &chain.parts {
        let claimed = container.space().claim(part.segment, false);
        claimed.map_err(|e| container.corrupt(e.0))?;
    }
    let durable = chain.durable.max(applied);
    let seq = longest_prefix(container, &chain, durable)?;
    if seq < applied {
        return Err(container.corrupt(format!("the log ends at {seq}, the key-value store at {applied}")));
    }
    let mut found =
        Found { table: MemTable::default(), seq, log: chain.parts, durable, batches: 0, unsynced: Vec::new() };
    for (number, batch) in chain.batches.range((Bound::Excluded(applied), Bound::Included(seq))) {
        let allocated: Vec<_> = batch.allocated.iter().map(|(run, _)| *run).collect();
        let replayed = container.space().replay(&allocated, &batch.freed, *number);
        replayed.map_err(|e| container.corrupt(e.0))?;
        for (key, value) in &batch.writes {
            found.table.insert(key.clone(), value.clone());
        }
        if *number > durable {
            found.unsynced.extend(allocated);
        }
        found.batches += 1;
    }
    container.space().check_replayed().map_err(|e| container.corrupt(e.0))?;
    Ok(found)
}

/// Loads the bitmaps. Returns the number of the last batch in the store.
fn load(container: &Container, view: &dyn View) -> Result<Option<u64>> {
    let mut applied = None;
    let mut problem = None;
    view.scan(&[OWN_PREFIX], &[OWN_PREFIX + 1], &mut |key, value| {
        let result = match Own::decode(key, value) {
            Ok(Own::Applied(number)) => {
                applied = Some(number);
                Ok(())
            }
            Ok(Own::Bitmap(segment, bitmap)) => container.space().load(segment, bitmap).map_err(|e| e.0),
            Err(why) => Err(why.to_owned()),
        };
        match result {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => {
                problem = Some(e);
                ControlFlow::Break(())
            }
        }
    })?;
    match problem {
        Some(e) => Err(container.corrupt(e)),
        None => Ok(applied),
    }
}

/// The valid records from the log's start on.
struct Chain {
    batches: BTreeMap<u64, Batch>,
    parts: Vec<LogPart>,
    /// The last batch that a record says was durable.
    durable: u64,
    /// The last batch.
    end: u64,
    /// Parts of the batch behind it, as far as they are there.
    parts_of_next: Parts,
}

/// What is known of a batch in parts.
#[derive(Default)]
struct Parts {
    count: u32,
    payload: Vec<u8>,
}

impl Parts {
    /// Takes in the next part. The first one begins anew: of a batch that could not be appended, some may be left. `None` for one
    /// that does not go on where the last one ended, or is more than any volume takes at once.
    fn add(&mut self, payload: &[u8]) -> Option<()> {
        let (index, bytes) = log::decode_part(payload)?;
        if index == 0 {
            *self = Parts::default();
        }
        let is_next = index == self.count && self.payload.len() + bytes.len() <= BATCH_LEN_MOST_BYTES;
        is_next.then(|| {
            self.count += 1;
            self.payload.extend(bytes);
        })
    }
}

impl Chain {
    fn read(container: &Container, superblock: &Superblock) -> Result<Chain> {
        let seed = Seed::of(superblock);
        let first = superblock.log_segment;
        let (batches, parts_of_next) = (BTreeMap::new(), Parts::default());
        let mut chain = Chain { batches, parts: Vec::new(), durable: 0, end: superblock.log_seq - 1, parts_of_next };
        let mut segment = first;
        loop {
            let mut bytes = vec![0; container.segment_len() as usize];
            container.read(container.segment_offset(segment), &mut bytes)?;
            let (len, next) = chain.read_segment(container, seed, &bytes)?;
            chain.parts.push(LogPart { segment, len, seq: chain.end });
            match next {
                // Beyond the file's end: it was named, but nothing of it reached the disk.
                Some(next) if next >= container.space().limit() => return Ok(chain),
                Some(next) if next == 0 || chain.parts.iter().any(|part| part.segment == next) => {
                    return Err(container.corrupt(format!("the log runs in a circle at segment {next}")));
                }
                Some(next) => segment = next,
                None => return Ok(chain),
            }
        }
    }

    /// Takes in the records of a segment. Returns how long they are together, and the segment that the log goes on in, if it does.
    fn read_segment(&mut self, container: &Container, seed: Seed, bytes: &[u8]) -> Result<(usize, Option<u32>)> {
        let mut rest = bytes;
        while let Some((record, len)) = log::decode(seed, rest).filter(|(record, _)| record.seq == self.end + 1) {
            let unknown = || container.corrupt(format!("record {} of the log makes no sense", record.seq));
            self.durable = self.durable.max(record.durable);
            let end = bytes.len().saturating_sub(rest.len()).saturating_add(len);
            match record.kind {
                Kind::Next => {
                    let next = log::decode_next(record.payload).ok_or_else(unknown)?;
                    return Ok((end, Some(next)));
                }
                Kind::Batch => self.add(record.seq, record.payload).ok_or_else(unknown)?,
                Kind::Part => self.parts_of_next.add(record.payload).ok_or_else(unknown)?,
                Kind::LastPart => {
                    self.parts_of_next.add(record.payload).ok_or_else(unknown)?;
                    let whole = std::mem::take(&mut self.parts_of_next.payload);
                    self.add(record.seq, &whole).ok_or_else(unknown)?;
                }
            }
            rest = rest.get(len..).unwrap_or_default();
        }
        self.check_end(container, seed, rest)?;
        Ok((bytes.len().saturating_sub(rest.len()), None))
    }

    /// Takes in a batch that is whole. `None` if its payload is none.
    fn add(&mut self, seq: u64, payload: &[u8]) -> Option<()> {
        self.batches.insert(seq, log::decode_batch(payload)?);
        self.end = seq;
        self.parts_of_next = Parts::default();
        Some(())
    }

    /// A crash ends the log; damage makes a hole in it. What comes after a hole may say that what was there was durable.
    fn check_end(&self, container: &Container, seed: Seed, rest: &[u8]) -> Result<()> {
        for at in (0..rest.len()).step_by(ALIGNMENT) {
            let later = rest.get(at..).and_then(|bytes| log::decode_after(seed, bytes, self.end));
            if later.is_some_and(|record| record.durable > self.end) {
                return Err(container.corrupt(format!("record {} of the log is damaged", self.end + 1)));
            }
        }
        Ok(())
    }
}

/// The last batch up to which all blocks of batches after `durable` are as they say.
fn longest_prefix(container: &Container, chain: &Chain, durable: u64) -> Result<u64> {
    // Which batch freed a block: then what is in it does not matter any more.
    let batches = || chain.batches.range(durable.saturating_add(1)..);
    let allocated = batches().flat_map(|(_, batch)| &batch.allocated).flat_map(|(run, _)| run.blocks());
    let mut freed: BTreeMap<u64, Vec<u64>> = allocated.map(|block| (block, Vec::new())).collect();
    for (seq, batch) in batches() {
        for run in &batch.freed {
            // A made-up run can be as long as it likes.
            freed.range_mut(run.blocks()).for_each(|(_, seqs)| seqs.push(*seq));
        }
    }
    // Prefixes that end in one of these show a block that is not as it should be.
    let mut bad: BTreeSet<(u64, u64)> = BTreeSet::new();
    let mut bytes = vec![0; BLOCK_LEN_BYTES];
    for (seq, batch) in batches() {
        for (run, sums) in &batch.allocated {
            for (block, sum) in run.blocks().zip(sums) {
                // A number that no file has room for is none.
                let len = if block > u64::MAX / BLOCK_LEN_BYTES as u64 {
                    0
                } else {
                    container.read_blocks(block, &mut bytes)?
                };
                if len < BLOCK_LEN_BYTES || crc32c::crc32c(&bytes) != *sum {
                    let until = freed.get(&block).and_then(|seqs| seqs.iter().find(|freed| *freed > seq).copied());
                    bad.insert((*seq, until.unwrap_or(u64::MAX)));
                }
            }
        }
    }
    let mut end = chain.end;
    while let Some((from, _)) = bad.iter().find(|(from, until)| (*from..*until).contains(&end)) {
        end = from - 1;
    }
    Ok(end)
}
