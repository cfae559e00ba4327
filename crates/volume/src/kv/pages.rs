//! The linear space of the key-value store, in segments of the container, each page with a checksum.
//!
//! Page 0 is the store's own header, which it writes in place: it is kept in memory, and becomes durable with the superblock,
//! after all that was written before it. The other pages are copied on write by the store, so a crash finds those that the
//! durable header leads to as they were: the checksum blocks, which are written in place, have the same entries for them
//! in every version.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use adit_core::{ErrorKind, FsError, Result};
use parking_lot::RwLock;

use super::sums::{UNWRITTEN, checksum, read_sums, sums_block};
use crate::container::{Container, runs_of};
use crate::format::container::{KV_HEAD_LEN_MAX_BYTES, Superblock};
use crate::table::BLOCK_LEN_BYTES;

/// Bytes in a page.
pub(super) const PAGE_LEN: usize = BLOCK_LEN_BYTES;
pub(super) const PAGE: u64 = PAGE_LEN as u64;

/// Most segments of the space: 4 TiB of the longest.
const PLACES_MAX: u64 = 1 << 20;

/// How long the space may be in a file of `file_len` bytes. The store doubles its space when it is full, and once that is more
/// than its regions of 4 GiB adds up to two of them; so a longer one was made up, and would only cost memory.
fn len_max(file_len: u64) -> u64 {
    file_len.saturating_mul(8).saturating_add(64 << 20)
}

/// The store writes these first bytes of page 0 last when it is made.
const MAGIC_LEN: usize = 9;

/// A segment of the space.
struct Segment {
    /// Its number in the file.
    number: u32,
    /// An entry for each of its pages.
    sums: Box<[u32]>,
    /// Whether `sums` differ from those in the file.
    dirty: bool,
}

struct State {
    /// In bytes.
    len: u64,
    /// By place in the space; `None` reads as zeros.
    segments: Vec<Option<Segment>>,
    /// Page 0.
    head: Box<[u8; PAGE_LEN]>,
    /// Whether a page was written since the last sync.
    unsynced: bool,
    /// Pages that were written since the superblock was, and how many beside each other: nothing durable leads to them.
    new: Vec<(u64, u64)>,
    /// Whether the superblock says something else than `len`, `segments` and `head`.
    moved: bool,
    /// Cut off, with their places; free once the superblock says so.
    cut_off: Vec<(usize, Segment)>,
    /// Whether the host had no space for a page, since it went live or a commit came to its end.
    full: bool,
    /// Where pages go if the file may not be written.
    scratch: Option<HashMap<u64, Box<[u8]>>>,
}

/// The space. Locking: `state` is not held while pages are read or written.
pub(super) struct Pages {
    container: Arc<Container>,
    /// Pages in a segment.
    per_segment: u64,
    state: RwLock<State>,
}

impl State {
    /// Notes that pages of one segment are written.
    fn note_new(&mut self, page: u64, count: u64, per_segment: u64) {
        match self.new.last_mut() {
            Some((start, len)) if *start + *len == page && !page.is_multiple_of(per_segment) => *len += count,
            _ => self.new.push((page, count)),
        }
    }
}

fn beyond_end() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the end of the key-value store")
}

fn to_io(e: FsError) -> io::Error {
    let kind = match e.kind() {
        ErrorKind::Corrupt => io::ErrorKind::InvalidData,
        kind if kind.is_refusal() => io::ErrorKind::StorageFull,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, e.to_string())
}

impl Pages {
    /// The space that the superblock describes. Claims its segments. Until [`Pages::go_live`], it only reads the file.
    pub fn open(container: Arc<Container>) -> Result<Pages> {
        let per_segment = u64::from(container.segment_len()) / PAGE - 1;
        let superblock = container.superblock();
        let (len, head) = (superblock.kv_len, superblock.kv_head);
        if len > len_max(container.len()) {
            return Err(container.corrupt("the key-value store is longer than the file can hold"));
        }
        let places: u64 = superblock.kv_segments.iter().map(|run| u64::from(run.count)).sum();
        if places > len.div_ceil(PAGE).div_ceil(per_segment).min(PLACES_MAX) {
            return Err(container.corrupt("the key-value store has more segments than pages"));
        }
        let mut segments = Vec::new();
        for run in superblock.kv_segments {
            for number in run.start..run.start + run.count {
                if run.start == 0 {
                    segments.push(None);
                    continue;
                }
                let claimed = container.space().claim(number, true);
                claimed.map_err(|e| container.corrupt(e.0))?;
                let sums = read_sums(&container, number, per_segment as usize)?;
                segments.push(Some(Segment { number, sums, dirty: false }));
            }
        }
        let mut page = Box::new([0; PAGE_LEN]);
        page[..head.len()].copy_from_slice(&head);
        let mut len = len;
        if head.iter().take(MAGIC_LEN).all(|b| *b == 0) {
            // Its making was cut short, before there was anything in it.
            len = 0;
            for segment in segments.iter_mut().flatten() {
                segment.sums.fill(UNWRITTEN);
                segment.dirty = true;
            }
        }
        let scratch = Some(HashMap::new());
        let state = State {
            len,
            segments,
            head: page,
            unsynced: false,
            new: Vec::new(),
            moved: false,
            cut_off: Vec::new(),
            full: false,
            scratch,
        };
        Ok(Pages { container, per_segment, state: RwLock::new(state) })
    }

    /// Forgets what was written to memory, and writes to the file from now on. No store is open over it.
    pub fn go_live(&self) {
        self.forget();
        let mut state = self.state.write();
        (state.scratch, state.full) = (None, false);
    }

    /// Whether changes go to the file.
    pub fn is_live(&self) -> bool {
        self.state.read().scratch.is_none()
    }

    /// Whether the host had no space for a page, since it went live or a commit came to its end.
    pub fn is_full(&self) -> bool {
        self.state.read().full
    }

    /// A commit came to its end: what found no space before it found some.
    pub fn commit_ended(&self) {
        self.state.write().full = false;
    }

    /// After a failure: what is durable, with changes to memory only if the file may not be written any more, or has no space on
    /// its host: then until [`Pages::go_live`]. No store is open over it.
    pub fn go_back(&self) {
        let mut state = self.state.write();
        if state.full || self.container.has_failed() {
            state.scratch.get_or_insert_default();
        }
        if state.full {
            self.give_back_new(&mut state);
        }
        drop(state);
        self.forget();
    }

    /// Gives the host the space of a commit that did not come to its end: other things may need it, which it needs as well.
    fn give_back_new(&self, state: &mut State) {
        for (page, count) in std::mem::take(&mut state.new) {
            let (place, slot) = self.place(page);
            if let Some(Some(segment)) = state.segments.get_mut(place) {
                segment.sums[slot..slot + count as usize].fill(UNWRITTEN);
                segment.dirty = true;
                self.container
                    .punch(self.container.segment_offset(segment.number) + (slot as u64 + 1) * PAGE, count * PAGE);
            }
        }
    }

    /// Notes that the host is full, if that is the error.
    fn note<T>(&self, result: Result<T>) -> io::Result<T> {
        if result.as_ref().is_err_and(|e| e.kind().is_refusal()) {
            self.state.write().full = true;
        }
        result.map_err(to_io)
    }

    /// Goes back to the durable state, if changes went to memory.
    fn forget(&self) {
        let superblock = self.container.superblock();
        let mut state = self.state.write();
        let Some(scratch) = &mut state.scratch else { return };
        scratch.clear();
        state.head.fill(0);
        state.head[..superblock.kv_head.len()].copy_from_slice(&superblock.kv_head);
        let is_made = state.head.iter().take(MAGIC_LEN).any(|b| *b != 0);
        state.len = if is_made { superblock.kv_len } else { 0 };
        state.moved = false;
        for (place, segment) in state.cut_off.drain(..).collect::<Vec<_>>() {
            if state.segments.len() <= place {
                state.segments.resize_with(place + 1, || None);
            }
            // One that was bound in its place is known to nobody.
            if let Some(unknown) = state.segments[place].replace(segment) {
                self.free_unknown(&unknown);
            }
        }
        self.drop_unknown(&mut state, &superblock);
    }

    /// Frees the segments that no superblock names: a commit bound them that did not come to its end.
    fn drop_unknown(&self, state: &mut State, superblock: &Superblock) {
        let runs = superblock.kv_segments.iter();
        let places = runs.flat_map(|run| (0..run.count).map(|at| if run.start == 0 { 0 } else { run.start + at }));
        let known: Vec<u32> = places.collect();
        for (place, segment) in state.segments.iter_mut().enumerate() {
            let named = known.get(place).copied().unwrap_or(0);
            if let Some(unknown) = segment.take_if(|segment| segment.number != named) {
                self.free_unknown(&unknown);
            }
        }
        state.segments.truncate(known.len());
    }

    fn free_unknown(&self, segment: &Segment) {
        if !self.container.has_failed() {
            self.container.punch_segment(segment.number);
        }
        self.container.space().unbind(segment.number, true);
    }

    pub fn len(&self) -> u64 {
        self.state.read().len
    }

    fn place(&self, page: u64) -> (usize, usize) {
        ((page / self.per_segment) as usize, (page % self.per_segment) as usize)
    }

    /// How many of `count` pages from `page` on lie in one segment.
    fn together(&self, page: u64, count: u64) -> u64 {
        count.min(self.per_segment - page % self.per_segment)
    }

    pub fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64).filter(|end| *end <= self.len());
        let end = end.ok_or_else(beyond_end)?;
        if offset.is_multiple_of(PAGE) && out.len().is_multiple_of(PAGE_LEN) {
            return self.read_pages(offset / PAGE, out);
        }
        let first = offset / PAGE;
        let mut pages = vec![0; ((end.div_ceil(PAGE) - first) * PAGE) as usize];
        self.read_pages(first, &mut pages)?;
        let from = (offset % PAGE) as usize;
        out.copy_from_slice(&pages[from..from + out.len()]);
        Ok(())
    }

    pub(super) fn read_pages(&self, mut page: u64, mut out: &mut [u8]) -> io::Result<()> {
        while !out.is_empty() {
            let count = if page == 0 { 1 } else { self.together(page, (out.len() / PAGE_LEN) as u64) };
            let (now, rest) = out.split_at_mut(count as usize * PAGE_LEN);
            if page == 0 {
                now.copy_from_slice(&self.state.read().head[..]);
            } else {
                self.read_together(page, now)?;
            }
            page += count;
            out = rest;
        }
        Ok(())
    }

    /// Pages of one segment.
    fn read_together(&self, page: u64, out: &mut [u8]) -> io::Result<()> {
        let (place, slot) = self.place(page);
        let count = out.len() / PAGE_LEN;
        let (number, sums) = {
            let state = self.state.read();
            match state.segments.get(place) {
                Some(Some(segment)) => (segment.number, segment.sums[slot..slot + count].to_vec()),
                _ => (0, vec![UNWRITTEN; count]),
            }
        };
        let offset = self.container.segment_offset(number) + (slot as u64 + 1) * PAGE;
        if sums.iter().any(|sum| *sum != UNWRITTEN) {
            self.container.read(offset, out).map_err(to_io)?;
        }
        let state = self.state.read();
        for (at, (bytes, sum)) in out.chunks_exact_mut(PAGE_LEN).zip(&sums).enumerate() {
            if let Some(page) = state.scratch.as_ref().and_then(|scratch| scratch.get(&(page + at as u64))) {
                bytes.copy_from_slice(page);
            } else if *sum == UNWRITTEN {
                bytes.fill(0);
            } else if checksum(bytes) != *sum {
                let offset = offset + at as u64 * PAGE;
                let e = format!("page {} of the key-value store, at byte {offset}, is damaged", page + at as u64);
                return Err(to_io(self.container.corrupt(e)));
            }
        }
        Ok(())
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= self.len());
        let end = end.ok_or_else(beyond_end)?;
        if offset.is_multiple_of(PAGE) && bytes.len().is_multiple_of(PAGE_LEN) {
            return self.write_pages(offset / PAGE, bytes);
        }
        let first = offset / PAGE;
        let mut pages = vec![0; ((end.div_ceil(PAGE) - first) * PAGE) as usize];
        self.read_pages(first, &mut pages)?;
        let from = (offset % PAGE) as usize;
        pages[from..from + bytes.len()].copy_from_slice(bytes);
        self.write_pages(first, &pages)
    }

    fn write_pages(&self, mut page: u64, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = if page == 0 { 1 } else { self.together(page, (bytes.len() / PAGE_LEN) as u64) };
            let (now, rest) = bytes.split_at(count as usize * PAGE_LEN);
            if page == 0 {
                let mut state = self.state.write();
                state.moved |= state.head[..] != *now;
                state.head.copy_from_slice(now);
            } else {
                self.write_together(page, now)?;
            }
            page += count;
            bytes = rest;
        }
        Ok(())
    }

    /// Pages of one segment, which is bound now if it was not.
    fn write_together(&self, page: u64, bytes: &[u8]) -> io::Result<()> {
        let (place, slot) = self.place(page);
        let count = bytes.len() as u64 / PAGE;
        let sums = bytes.chunks_exact(PAGE_LEN).map(checksum);
        let bound = {
            let mut state = self.state.write();
            if let Some(scratch) = &mut state.scratch {
                let numbered = (page..).zip(bytes.chunks_exact(PAGE_LEN));
                scratch.extend(numbered.map(|(page, bytes)| (page, bytes.into())));
                return Ok(());
            }
            let bound = self.bound(&mut state, place);
            if bound.is_ok() {
                state.note_new(page, count, self.per_segment);
            }
            bound
        };
        let number = self.note(bound)?;
        let offset = self.container.segment_offset(number) + (slot as u64 + 1) * PAGE;
        // A commit that does not come to its end leaves pages that nothing leads to.
        self.note(self.container.write_new(offset, bytes))?;
        let mut state = self.state.write();
        state.unsynced = true;
        if let Some(Some(segment)) = state.segments.get_mut(place) {
            segment.sums[slot..].iter_mut().zip(sums).for_each(|(entry, sum)| *entry = sum);
            segment.dirty = true;
        }
        Ok(())
    }

    /// The segment at a place, within the file's length: a superblock may name it as soon as it is bound.
    fn bound(&self, state: &mut State, place: usize) -> Result<u32> {
        if state.segments.len() <= place {
            state.segments.resize_with(place + 1, || None);
        }
        if let Some(segment) = &state.segments[place] {
            return Ok(segment.number);
        }
        let number = self.container.space().bind_kv();
        self.container.extend_to(number).inspect_err(|_| self.container.space().unbind(number, true))?;
        let sums = vec![UNWRITTEN; self.per_segment as usize].into();
        state.segments[place] = Some(Segment { number, sums, dirty: true });
        state.moved = true;
        Ok(number)
    }

    pub fn set_len(&self, len: u64) {
        let state = &mut *self.state.write();
        state.moved |= state.len != len;
        let shrinks = len < state.len;
        state.len = len;
        if let Some(scratch) = &mut state.scratch {
            scratch.retain(|page, _| *page < len.div_ceil(PAGE));
        } else if shrinks {
            // What is beyond reads as zeros if it comes back.
            let (place, slot) = self.place(len.div_ceil(PAGE));
            let kept = state.segments.len().min(place + usize::from(slot > 0));
            let cut = state.segments.drain(kept..).enumerate();
            state.cut_off.extend(cut.filter_map(|(at, segment)| Some((kept + at, segment?))));
            if let Some(Some(last)) = state.segments.get_mut(place) {
                last.sums[slot..].fill(UNWRITTEN);
                last.dirty = true;
            }
        }
    }

    /// Makes all of it durable: pages and checksums first, then the header with the list of segments.
    pub fn sync(&self) -> io::Result<()> {
        if self.state.read().scratch.is_some() {
            return Ok(());
        }
        self.note(self.sync_pages())?;
        self.note(self.sync_head())
    }

    fn sync_pages(&self) -> Result<()> {
        let blocks: Vec<(u32, Vec<u8>)> = {
            let mut state = self.state.write();
            let dirty = state.segments.iter_mut().flatten().filter(|segment| segment.dirty);
            let block = |segment: &mut Segment| {
                segment.dirty = false;
                (segment.number, sums_block(&segment.sums))
            };
            let blocks: Vec<_> = dirty.map(block).collect();
            if !std::mem::take(&mut state.unsynced) && blocks.is_empty() {
                return Ok(());
            }
            blocks
        };
        let write = |(number, block): &(u32, Vec<u8>)| {
            // The entries of pages that something durable leads to are the same in all versions of the block.
            self.container.write_new(self.container.segment_offset(*number), block)
        };
        blocks.iter().try_for_each(write).inspect_err(|_| {
            let mut state = self.state.write();
            state.unsynced = true;
            let numbers: Vec<u32> = blocks.iter().map(|(number, _)| *number).collect();
            let written = state.segments.iter_mut().flatten().filter(|segment| numbers.contains(&segment.number));
            written.for_each(|segment| segment.dirty = true);
        })?;
        self.container.sync()
    }

    fn sync_head(&self) -> Result<()> {
        let (len, segments, head, cut_off) = {
            let mut state = self.state.write();
            if !std::mem::take(&mut state.moved) {
                return Ok(());
            }
            let segments = runs_of(state.segments.iter().map(|s| s.as_ref().map_or(0, |s| s.number)));
            let used = state.head.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
            (state.len, segments, state.head[..used].to_vec(), std::mem::take(&mut state.cut_off))
        };
        debug_assert!(head.len() <= KV_HEAD_LEN_MAX_BYTES);
        let flipped = self.container.flip(|superblock| {
            superblock.kv_len = len;
            superblock.kv_segments = segments;
            superblock.kv_head = head;
        });
        if let Err(e) = flipped {
            let mut state = self.state.write();
            state.moved = true;
            state.cut_off.extend(cut_off);
            return Err(e);
        }
        self.state.write().new.clear();
        for (_, segment) in cut_off {
            self.container.punch_segment(segment.number);
            self.container.space().unbind(segment.number, true);
        }
        Ok(())
    }

    /// Reads every page that was ever written. Returns those that do not have their checksums: damaged ones, and after a crash
    /// also some that the durable header does not lead to.
    pub fn verify(&self) -> Vec<u64> {
        let mut page_bytes = vec![0; PAGE_LEN];
        (1..self.len() / PAGE).filter(|page| self.read_together(*page, &mut page_bytes).is_err()).collect()
    }
}

#[cfg(test)]
mod tests;
