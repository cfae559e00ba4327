//! The log as it is written: where the next record goes, and in which segments the records so far are.

use adit_core::Result;

use crate::container::Container;
use crate::format::log::{self, ALIGNMENT, Draft, HEADER_LEN, PART_HEADER_LEN, Seed, record_len};
use crate::table::BLOCK_LEN_BYTES;

/// Bytes that stay free at the end of a segment for the record that names the next one.
const NEXT_LEN: usize = record_len_of_next();

const fn record_len_of_next() -> usize {
    (HEADER_LEN + 4).next_multiple_of(log::ALIGNMENT)
}

/// Most segments that wait to be used for the log.
const SPARE_MAX: usize = 16;

/// Bytes of a segment that the host is made to keep space for at a time: some hundred records.
const PIECE_LEN: usize = 128 << 10;

/// What records may use of the ballast that do not give space back, in bytes: half of what is kept for a closed volume.
const BORROWED_MAX_BYTES: u64 = 32 << 10;

/// A segment for the log.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    pub number: u32,
    /// The host keeps space for so many bytes of it, as far as is known.
    allocated: usize,
    /// Whether it was written as a whole, but for a record's length at its end: then syncs write data and no more of the host's
    /// metadata, which space that is only kept does not give.
    written: bool,
}

/// The end of the log.
pub(super) struct Log {
    seed: Seed,
    current: Segment,
    offset: usize,
    /// The number of the last batch.
    seq: u64,
    /// Segments from the log's start on, the current one left out.
    before: Vec<Segment>,
    /// Bytes of records since then.
    bytes: u64,
    /// Segments that wait to be used. What the host keeps for them is ballast too: a checkpoint that finds no space gets it.
    spare: Vec<Segment>,
    /// Most ballast that was wanted since segments were recycled, in bytes.
    ballast_max: u64,
    /// Bytes of records that may use a part of the ballast only, since there was enough of it.
    borrowed: u64,
}

/// Where a checkpoint cuts the log.
pub(super) struct Cut {
    /// The last batch before the cut.
    pub seq: u64,
    /// The number of the segment that the log begins in after it.
    pub segment: u32,
    /// Those that only hold what is before.
    pub before: Vec<Segment>,
    /// Bytes of records in the last of them.
    last_len: usize,
}

impl Cut {
    /// Gives back what the host keeps behind the records: no more come there.
    pub fn trim(&mut self, container: &Container) {
        if let Some(last) = self.before.last_mut() {
            last.trim(container, self.last_len.next_multiple_of(BLOCK_LEN_BYTES));
        }
    }
}

impl Log {
    /// An empty log in `segment`, after batch `seq`.
    pub fn new(seed: Seed, segment: u32, seq: u64) -> Log {
        let current = Segment::found(segment);
        let (before, spare) = (Vec::new(), Vec::new());
        Log { seed, current, offset: 0, seq, before, bytes: 0, spare, ballast_max: 0, borrowed: 0 }
    }

    /// Bytes of records since the log's start.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The longest record that fits in a segment, in bytes. Longer ones are appended in parts.
    pub fn segment_room(container: &Container) -> usize {
        container.segment_len() as usize - NEXT_LEN
    }

    /// Makes sure of space for a record of this length, which fits in a segment. `NoSpace` if the host has none.
    pub fn prepare(&mut self, container: &Container, record_len: usize) -> Result<()> {
        let needed = record_len + NEXT_LEN;
        if !self.fits(container, record_len) {
            return self.go_on(container, needed);
        }
        self.current.allocate(container, self.offset + needed)
    }

    /// Whether the current segment has a place for a record of this length.
    pub fn fits(&self, container: &Container, record_len: usize) -> bool {
        self.offset + record_len + NEXT_LEN <= container.segment_len() as usize
    }

    /// As [`Log::prepare`]; where the host has no space, with what it keeps for a spare segment.
    pub fn prepare_with_ballast(&mut self, container: &Container, record_len: usize) -> Result<()> {
        match self.prepare(container, record_len) {
            // The record that names the next segment fits in what is kept for this one.
            Err(e) if e.kind().is_refusal() => self.go_on(container, record_len + NEXT_LEN),
            result => result,
        }
    }

    /// Makes the host keep so many bytes for what comes, and what leads to a spare segment. After `NoSpace` it keeps what it has.
    pub fn keep_ballast(&mut self, container: &Container, wanted: u64) -> Result<()> {
        let segment_len = container.segment_len() as usize;
        self.current.allocate(container, self.offset + NEXT_LEN)?;
        self.ballast_max = self.ballast_max.max(wanted);
        while container.allocates() && self.ballast() < wanted {
            match self.spare.iter_mut().find(|spare| spare.allocated < segment_len) {
                Some(spare) => spare.allocate(container, spare.allocated + 1)?,
                None => {
                    let number = new_segment(container)?;
                    self.spare.push(Segment::found(number));
                }
            }
        }
        self.borrowed = 0;
        Ok(())
    }

    /// Bytes that the host keeps for what comes: in spare segments, and behind the last record.
    fn ballast(&self) -> u64 {
        let behind = self.current.allocated.saturating_sub(self.offset + NEXT_LEN);
        self.spare.iter().map(|spare| spare.allocated as u64).sum::<u64>() + behind as u64
    }

    /// Takes so many bytes of what records may use that may use a part of the ballast only, unless they used that.
    pub fn borrow(&mut self, record_len: usize) -> bool {
        let borrowed = self.borrowed.saturating_add(record_len as u64);
        let may = borrowed <= BORROWED_MAX_BYTES;
        if may {
            self.borrowed = borrowed;
        }
        may
    }

    /// Appends a batch, for which there is space ([`Log::prepare`]); of a longer one than a segment holds, for its first part.
    /// Returns its number. A host that finds none nevertheless, as it does not keep any, gives `NoSpace`: what is left of the
    /// record is none, and the next one is written over it, or makes parts of it that are there void.
    pub fn append(&mut self, container: &Container, draft: Draft) -> Result<u64> {
        let seq = self.seq + 1;
        if draft.record_len() <= Log::segment_room(container) {
            self.write(container, &draft.seal(self.seed, seq, container.durable()))?;
        } else {
            self.append_parts(container, seq, draft.payload())?;
        }
        self.seq = seq;
        container.set_appended(seq);
        Ok(seq)
    }

    fn append_parts(&mut self, container: &Container, seq: u64, payload: &[u8]) -> Result<()> {
        let (mut rest, mut index) = (payload, 0);
        while !rest.is_empty() {
            let room = (container.segment_len() as usize).saturating_sub(self.offset + NEXT_LEN);
            let room = (room / ALIGNMENT * ALIGNMENT).saturating_sub(PART_HEADER_LEN);
            let (bytes, behind) = rest.split_at(rest.len().min(room));
            if bytes.is_empty() {
                self.go_on(container, container.segment_len() as usize)?;
                continue;
            }
            let record = log::part(self.seed, seq, container.durable(), index, bytes, behind.is_empty());
            self.current.allocate(container, self.offset + record.len() + NEXT_LEN)?;
            self.write(container, &record)?;
            (rest, index) = (behind, index + 1);
        }
        Ok(())
    }

    /// Writes a record at the end of the log.
    fn write(&mut self, container: &Container, record: &[u8]) -> Result<()> {
        write_record(container, container.segment_offset(self.current.number) + self.offset as u64, record)?;
        self.offset += record.len();
        self.bytes += record.len() as u64;
        Ok(())
    }

    /// Goes on in another segment, the first `needed` bytes of which have space.
    fn go_on(&mut self, container: &Container, needed: usize) -> Result<()> {
        let mut next = match self.take_spare() {
            Some(segment) => segment,
            None => Segment::found(new_segment(container)?),
        };
        let record = log::next(self.seed, self.seq + 1, container.durable(), next.number);
        debug_assert_eq!(record.len(), record_len(4));
        let start = container.segment_offset(self.current.number);
        let written = self
            .current
            .allocate(container, self.offset + record.len())
            .and_then(|()| next.allocate(container, needed))
            .and_then(|()| write_record(container, start + self.offset as u64, &record));
        if let Err(e) = written {
            self.spare.push(next);
            return Err(e);
        }
        self.current.written |= self.offset + needed > container.segment_len() as usize;
        // What is full need not wait for the next sync.
        container.start_writeback(start, u64::from(container.segment_len()));
        self.before.push(std::mem::replace(&mut self.current, next));
        self.offset = 0;
        Ok(())
    }

    /// Lets the log go on in another segment, so that what is before can be dropped later. That needs no more space on the host.
    pub fn cut(&mut self, container: &Container) -> Result<Cut> {
        let last_len = self.offset + NEXT_LEN;
        self.go_on(container, 0)?;
        self.bytes = 0;
        Ok(Cut { seq: self.seq, segment: self.current.number, before: std::mem::take(&mut self.before), last_len })
    }

    /// Takes segments that hold nothing any more. Returns those that it needs neither for as many records again nor as ballast.
    pub fn recycle(&mut self, container: &Container, segments: Vec<Segment>) -> Vec<Segment> {
        // Else the host would get what it is made to keep again at once.
        let records = segments.len() as u64 * u64::from(container.segment_len());
        let wanted = std::mem::take(&mut self.ballast_max) + records;
        let mut surplus = Vec::new();
        for segment in segments {
            let is_needed = self.spare.len() < SPARE_MAX || self.ballast() < wanted;
            if is_needed { &mut self.spare } else { &mut surplus }.push(segment);
        }
        surplus
    }

    /// Whether the next segment is still to be made, and written.
    pub fn wants_spare(&self, container: &Container) -> bool {
        !self.spare.iter().any(|spare| spare.written) && self.offset > container.segment_len() as usize / 2
    }

    /// The segment to use next: one that was written, or the one that the host keeps most space for.
    fn take_spare(&mut self) -> Option<Segment> {
        let (most, _) = self.spare.iter().enumerate().max_by_key(|(_, spare)| (spare.written, spare.allocated))?;
        Some(self.spare.remove(most))
    }

    /// Gives up all segments that wait to be used.
    pub fn drop_spares(&mut self) -> Vec<Segment> {
        std::mem::take(&mut self.spare)
    }

    /// Has the host keep space for so many more bytes of records in the current segment, if it has that, and for no more.
    pub fn trim(&mut self, container: &Container, more: usize) {
        let end =
            (self.offset + NEXT_LEN + more).next_multiple_of(BLOCK_LEN_BYTES).min(container.segment_len() as usize);
        self.current.trim(container, end);
        if more > 0 {
            // Without it, deletes may find no space later.
            let _ = self.current.allocate_to(container, end);
        }
    }

    /// Adds a segment for later use, written as a whole.
    pub fn add_spare(&mut self, container: &Container, number: u32) {
        self.spare.push(Segment { number, allocated: container.segment_len() as usize, written: true });
    }
}

impl Segment {
    /// A segment that was found: nothing is known of its space.
    pub fn found(number: u32) -> Segment {
        Segment { number, allocated: 0, written: false }
    }

    /// Gives back what the host keeps for the bytes from `end` on.
    fn trim(&mut self, container: &Container, end: usize) {
        container.punch_tail(self.number, end as u64);
        self.allocated = self.allocated.min(end);
        self.written = false;
    }

    /// Makes the host keep space for the bytes up to `end`, within the segment; a piece at a time, if it has that.
    fn allocate(&mut self, container: &Container, end: usize) -> Result<()> {
        if end <= self.allocated {
            return Ok(());
        }
        let until = |end: usize| end.min(container.segment_len() as usize);
        match self.allocate_to(container, until(end.next_multiple_of(PIECE_LEN))) {
            Err(e) if e.kind().is_refusal() => {
                self.allocate_to(container, until(end.next_multiple_of(BLOCK_LEN_BYTES)))
            }
            result => result,
        }
    }

    fn allocate_to(&mut self, container: &Container, end: usize) -> Result<()> {
        if end > self.allocated {
            let start = container.segment_offset(self.number) + self.allocated as u64;
            container.allocate(start, (end - self.allocated) as u64)?;
            self.allocated = end;
        }
        Ok(())
    }
}

/// Writes a record. Where the host has no space for its end, that may read as the zeros which belong there: so it is made none.
/// A host that has no space for that either, as it writes nothing in place, ends all writing, if the record is there.
fn write_record(container: &Container, offset: u64, record: &[u8]) -> Result<()> {
    let Err(e) = container.write_new(offset, record) else { return Ok(()) };
    // These bytes lie in one block: that has space, or nothing of the record is there.
    if e.kind().is_refusal() && container.write_new(offset, &[0xff; log::ALIGNMENT]).is_err() {
        let mut found = vec![0; record.len()];
        if container.read(offset, &mut found).is_err() || found == record {
            // What comes after it would make it count.
            return Err(container.fail("write", std::io::ErrorKind::StorageFull.into()));
        }
    }
    Err(e)
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
    written.inspect_err(|_| {
        container.punch_segment(segment);
        container.space().unbind(segment, false);
    })?;
    Ok(segment)
}

fn fill_with_zeros(container: &Container, segment: u32) -> Result<()> {
    const ZEROS_LEN: usize = 256 << 10;
    let (start, len) = (container.segment_offset(segment), container.segment_len() as usize);
    let piece = vec![0; ZEROS_LEN.min(len)];
    for offset in (0..len).step_by(piece.len()) {
        container.write_spare(start + offset as u64, &piece)?;
    }
    container.start_writeback(start, len as u64);
    Ok(())
}
