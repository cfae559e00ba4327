//! The log as it is written: where the next record goes, and in which segments the records so far are.

use adit_core::Result;

use crate::container::Container;
use crate::format::log::{self, Draft, HEADER_LEN, Seed, record_len};
use crate::table::BLOCK_LEN_BYTES;

/// Bytes that stay free at the end of a segment for the record that names the next one.
const NEXT_LEN: usize = record_len_of_next();

const fn record_len_of_next() -> usize {
    (HEADER_LEN + 4).next_multiple_of(log::ALIGNMENT)
}

/// Most segments that wait to be used for the log.
const SPARE_MAX: usize = 16;

/// The end of the log.
pub(super) struct Log {
    seed: Seed,
    segment: u32,
    offset: usize,
    /// The number of the last batch.
    seq: u64,
    /// Segments from the log's start on, the current one left out.
    before: Vec<u32>,
    /// Bytes of records since then.
    bytes: u64,
    /// Segments that wait to be used.
    spare: Vec<u32>,
}

/// Where a checkpoint cuts the log.
pub(super) struct Cut {
    /// The last batch before the cut.
    pub seq: u64,
    /// The segment that the log begins in after it.
    pub segment: u32,
    /// Those that only hold what is before.
    pub before: Vec<u32>,
}

impl Log {
    /// An empty log in `segment`, after batch `seq`.
    pub fn new(seed: Seed, segment: u32, seq: u64) -> Log {
        Log { seed, segment, offset: 0, seq, before: Vec::new(), bytes: 0, spare: Vec::new() }
    }

    /// Bytes of records since the log's start.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a record of this length fits in a segment.
    pub fn admits(container: &Container, record_len: usize) -> bool {
        record_len <= container.segment_len() as usize - NEXT_LEN
    }

    /// Appends a batch, which [`Log::admits`] admitted. Returns its number.
    pub fn append(&mut self, container: &Container, draft: Draft) -> Result<u64> {
        if self.offset + draft.record_len() + NEXT_LEN > container.segment_len() as usize {
            self.go_on(container)?;
        }
        let seq = self.seq + 1;
        let record = draft.seal(self.seed, seq, container.durable());
        container.write(container.segment_offset(self.segment) + self.offset as u64, &record)?;
        self.offset += record.len();
        self.bytes += record.len() as u64;
        self.seq = seq;
        container.set_appended(seq);
        Ok(seq)
    }

    /// Goes on in another segment.
    fn go_on(&mut self, container: &Container) -> Result<()> {
        let segment = match self.spare.pop() {
            Some(segment) => segment,
            None => new_segment(container)?,
        };
        let record = log::next(self.seed, self.seq + 1, container.durable(), segment);
        debug_assert_eq!(record.len(), record_len(4));
        if let Err(e) = container.write(container.segment_offset(self.segment) + self.offset as u64, &record) {
            self.spare.push(segment);
            return Err(e);
        }
        // What is full need not wait for the next sync.
        container.start_writeback(container.segment_offset(self.segment), u64::from(container.segment_len()));
        self.before.push(self.segment);
        (self.segment, self.offset) = (segment, 0);
        Ok(())
    }

    /// Lets the log go on in another segment, so that what is before can be dropped later.
    pub fn cut(&mut self, container: &Container) -> Result<Cut> {
        self.go_on(container)?;
        self.bytes = 0;
        Ok(Cut { seq: self.seq, segment: self.segment, before: std::mem::take(&mut self.before) })
    }

    /// Takes segments that hold nothing any more. Returns those that it does not need.
    pub fn recycle(&mut self, segments: Vec<u32>) -> Vec<u32> {
        let room = SPARE_MAX.saturating_sub(self.spare.len()).min(segments.len());
        let mut segments = segments;
        let surplus = segments.split_off(room);
        self.spare.extend(segments);
        surplus
    }

    /// Whether the next segment is still to be made.
    pub fn wants_spare(&self, container: &Container) -> bool {
        self.spare.is_empty() && self.offset > container.segment_len() as usize / 2
    }

    /// Gives up what it has for later: all segments that wait to be used, and where the rest of the current one begins.
    pub fn shrink(&mut self) -> (Vec<u32>, u32, u64) {
        let used = self.offset.next_multiple_of(BLOCK_LEN_BYTES) as u64;
        (std::mem::take(&mut self.spare), self.segment, used)
    }

    /// Adds a segment for later use.
    pub fn add_spare(&mut self, segment: u32) {
        self.spare.push(segment);
    }
}

/// A segment for the log, within the file's length: a superblock may name it before it is written.
pub(super) fn new_segment(container: &Container) -> Result<u32> {
    let segment = container.space().bind(false);
    container.extend_to(segment).inspect_err(|_| container.space().unbind(segment, false))?;
    Ok(segment)
}

/// As [`new_segment`], but written with zeros, so that later syncs write data and no more of the host's metadata. Nobody needs it
/// yet, so a failure is no reason to end writing.
pub(super) fn new_written_segment(container: &Container) -> Result<u32> {
    let segment = container.space().bind(false);
    let written = container.try_extend_to(segment).and_then(|()| fill_with_zeros(container, segment));
    written.inspect_err(|_| container.space().unbind(segment, false))?;
    Ok(segment)
}

fn fill_with_zeros(container: &Container, segment: u32) -> Result<()> {
    const PIECE_LEN: usize = 256 << 10;
    let (start, len) = (container.segment_offset(segment), container.segment_len() as usize);
    let piece = vec![0; PIECE_LEN.min(len)];
    for offset in (0..len).step_by(piece.len()) {
        container.write_spare(start + offset as u64, &piece)?;
    }
    container.start_writeback(start, len as u64);
    Ok(())
}
