//! Who owns which segment, and in DATA segments which block. In memory only.
//!
//! Where blocks of files lie in a folder, segments with data have numbers of their own, those of the folder's objects, and the
//! numbers in the file are those of the others. Both count for the capacity.
//!
//! Each block of a DATA segment is *allocated* (the tree's, as of the last batch), *taken* (that, or reserved, or freed by a
//! batch that is not durable yet), or free. What is allocated is taken.

mod batches;
mod reserve;

use std::collections::{BTreeSet, VecDeque};

use super::bitmap::Bitmap;
use crate::table::Run;

/// How a file is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    /// Segments within the capacity, the first one included.
    pub segments: u32,
    /// Blocks in a segment.
    pub blocks: u32,
    /// Segments that the log may take without that being anyone's loss.
    pub log_segments: u32,
    /// Segments kept back for deletes, gc and commits.
    pub kept_back: u32,
}

/// What a segment is used for.
enum Use {
    Free,
    /// By the superblock, by the key-value store, or by the log; or being emptied.
    Taken,
    Data(Box<DataSegment>),
}

struct DataSegment {
    allocated: Bitmap,
    taken: Bitmap,
    free: u32,
    /// Whether `allocated` changed since the last checkpoint began.
    dirty: bool,
}

/// The bitmap of a segment as a checkpoint stores it; `None` if nothing is allocated there.
pub(crate) type StoredBitmap = (u32, Option<Vec<u8>>);

/// A contradiction in what the file says of its space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Contradiction(pub String);

/// The segments of the file, where those with data are not among them.
struct FileSegments {
    limit: u32,
    /// Up to the last segment that was ever used.
    taken: Vec<bool>,
    free: BTreeSet<u32>,
}

impl FileSegments {
    fn is_free(&self, segment: u32) -> bool {
        !self.taken.get(segment as usize).is_some_and(|taken| *taken)
    }

    fn put(&mut self, segment: u32, taken: bool) {
        while self.taken.len() <= segment as usize {
            self.free.insert(self.taken.len() as u32);
            self.taken.push(false);
        }
        if taken {
            self.free.remove(&segment);
        } else {
            self.free.insert(segment);
        }
        self.taken[segment as usize] = taken;
    }
}

pub(crate) struct Space {
    geometry: Geometry,
    /// What the file says of segments from here on is wrong: it is not that long, or the folder has no such objects.
    limit: u32,
    /// If data lies in a folder.
    file: Option<FileSegments>,
    /// Segments beside each other that the key-value store takes next. They count as free, and nobody else takes them while
    /// there are others.
    kept_together: VecDeque<u32>,
    /// Up to the last segment that was ever used.
    segments: Vec<Use>,
    free: BTreeSet<u32>,
    /// DATA segments with free blocks.
    partial: BTreeSet<u32>,
    /// Where the last reservation without a hint ended.
    cursor: u32,
    free_blocks: u64,
    data_segments: u32,
    /// Taken ones, but for those of the log.
    fixed_segments: u32,
    /// Freed by batches that may not be durable, with their numbers, ascending.
    pending: VecDeque<(u64, Run)>,
    pending_blocks: u64,
    /// Of what is free or will be, so many blocks have space on the host still.
    held_blocks: u64,
    /// Allocated so far by what was replayed, beyond `limit`: a power cut took the length of the file.
    lost: BTreeSet<u64>,
}

impl Space {
    /// All free, but for the first segment. The file has `limit` segments so far.
    pub fn new(geometry: Geometry, limit: u32) -> Space {
        Space {
            geometry,
            limit,
            file: None,
            kept_together: VecDeque::new(),
            segments: vec![Use::Taken],
            free: BTreeSet::new(),
            partial: BTreeSet::new(),
            cursor: 0,
            free_blocks: 0,
            data_segments: 0,
            fixed_segments: 1,
            pending: VecDeque::new(),
            pending_blocks: 0,
            held_blocks: 0,
            lost: BTreeSet::new(),
        }
    }

    /// As [`Space::new`], with data in a folder whose objects have numbers below `objects`.
    pub fn with_folder(geometry: Geometry, limit: u32, objects: u32) -> Space {
        let file = FileSegments { limit, taken: vec![true], free: BTreeSet::new() };
        Space { file: Some(file), ..Space::new(geometry, objects) }
    }

    /// How the file is divided.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Changes how much there is, unless what is in use, and what must stay free, would not fit.
    pub fn resize(&mut self, geometry: Geometry) -> bool {
        let needed = self.used().saturating_add(u64::from(geometry.kept_back));
        let fits = needed <= u64::from(geometry.segments);
        if fits {
            self.geometry = geometry;
        }
        fits
    }

    /// Segments in use, with the log's share.
    pub fn used(&self) -> u64 {
        u64::from(self.data_segments) + u64::from(self.fixed_segments) + u64::from(self.geometry.log_segments)
    }

    /// Segments that the file had when it was opened.
    pub fn limit(&self) -> u32 {
        self.file.as_ref().map_or(self.limit, |file| file.limit)
    }

    /// Segments of the file from its start to the last one in use.
    pub fn file_segments(&self) -> u32 {
        let last = match &self.file {
            None => self.segments.iter().rposition(|s| !matches!(s, Use::Free)),
            Some(file) => file.taken.iter().rposition(|taken| *taken),
        };
        last.map_or(1, |last| last as u32 + 1)
    }

    /// Segments in use, but for those of the log and of data.
    pub fn fixed(&self) -> u32 {
        self.fixed_segments
    }

    /// Segments that may still be bound, those kept back counted, the log's share not.
    pub fn available(&self) -> u32 {
        u64::from(self.geometry.segments).saturating_sub(self.used()) as u32
    }

    /// Free blocks in all, and those kept back. `inside` counts for segments that are about to be free.
    pub fn blocks(&self, inside: u64) -> (u64, u64) {
        let blocks = u64::from(self.geometry.blocks);
        let bindable = u64::from(self.available()) * blocks + inside;
        let free = self.free_blocks + self.pending_blocks + bindable;
        (free, (u64::from(self.geometry.kept_back) * blocks).min(bindable))
    }

    /// Free blocks that have space on the host, for whoever writes next, about and rather fewer.
    pub fn held_blocks(&self) -> u64 {
        self.held_blocks.min(self.free_blocks + self.pending_blocks)
    }

    /// The host has the space of all free blocks.
    pub fn note_given(&mut self) {
        self.held_blocks = 0;
    }

    /// Binds a segment for something else than data; `fixed` unless it is for the log. Where the capacity is used up, it is
    /// one beyond: what is promised must be kept, and batches are refused long before.
    pub fn bind(&mut self, fixed: bool) -> u32 {
        self.fixed_segments += u32::from(fixed);
        if let Some(file) = &mut self.file {
            let segment = file.free.first().copied().unwrap_or(file.taken.len() as u32);
            file.put(segment, true);
            return segment;
        }
        let segment = self.next_free();
        self.put(segment, Use::Taken);
        segment
    }

    /// As [`Space::bind`], for the key-value store: one beside the last one, so that the list of its segments stays short. As many
    /// are kept together as make a thirty-second of those that it has.
    pub fn bind_kv(&mut self) -> u32 {
        const SHARE: u32 = 32;
        if self.file.is_some() {
            // Only those of the log are between them, which are few.
            return self.bind(true);
        }
        if self.kept_together.is_empty() {
            self.keep_together((self.fixed_segments / SHARE).max(1));
        }
        let segment = self.kept_together.pop_front().unwrap_or_else(|| self.next_free());
        self.fixed_segments += 1;
        self.put(segment, Use::Taken);
        segment
    }

    /// Keeps so many free segments that lie beside each other, if there are.
    fn keep_together(&mut self, count: u32) {
        let (mut start, mut end) = (0, 0);
        for &segment in &self.free {
            (start, end) = (if segment == end { start } else { segment }, segment + 1);
            if end - start == count {
                break;
            }
        }
        if end - start < count {
            start = self.segments.len() as u32;
            end = start.saturating_add(count);
            if end > self.geometry.segments {
                return;
            }
            self.segments.resize_with(end as usize, || Use::Free);
        }
        for segment in start..end {
            self.free.remove(&segment);
            self.kept_together.push_back(segment);
        }
    }

    /// The free segment to take next.
    fn next_free(&mut self) -> u32 {
        let len = self.segments.len() as u32;
        if self.free.is_empty() && len >= self.geometry.segments {
            self.free.extend(self.kept_together.drain(..));
        }
        self.free.first().copied().unwrap_or(len)
    }

    /// Marks the segment as bound by what the file says; see [`Space::bind`].
    pub fn claim(&mut self, segment: u32, fixed: bool) -> Result<(), Contradiction> {
        match &mut self.file {
            None => {
                self.check_free(segment)?;
                self.put(segment, Use::Taken);
            }
            Some(file) => {
                check_free(segment, file.limit, file.is_free(segment))?;
                file.put(segment, true);
            }
        }
        self.fixed_segments += u32::from(fixed);
        Ok(())
    }

    /// Frees a segment that was bound.
    pub fn unbind(&mut self, segment: u32, fixed: bool) {
        self.fixed_segments -= u32::from(fixed);
        match &mut self.file {
            None => self.put(segment, Use::Free),
            Some(file) => file.put(segment, false),
        }
    }

    /// Frees a segment of [`Space::take_empty`].
    pub fn unbind_empty(&mut self, segment: u32) {
        self.fixed_segments -= 1;
        self.put(segment, Use::Free);
    }

    /// Whether the file may say that the segment is used for something.
    fn check_free(&self, segment: u32) -> Result<(), Contradiction> {
        check_free(segment, self.limit, self.is_free(segment))
    }

    fn is_free(&self, segment: u32) -> bool {
        self.segments.get(segment as usize).is_none_or(|s| matches!(s, Use::Free))
    }

    /// Segments that the file had when it was opened, and that nobody uses now.
    pub fn free_segments(&self) -> Vec<u32> {
        let is_free = |segment: &u32| match &self.file {
            None => self.is_free(*segment),
            Some(file) => file.is_free(*segment),
        };
        (1..self.limit()).filter(is_free).collect()
    }

    fn put(&mut self, segment: u32, new: Use) {
        while self.segments.len() <= segment as usize {
            self.free.insert(self.segments.len() as u32);
            self.segments.push(Use::Free);
        }
        if matches!(new, Use::Free) {
            self.free.insert(segment);
        } else {
            self.free.remove(&segment);
        }
        self.segments[segment as usize] = new;
    }

    fn bind_data(&mut self, segment: u32) {
        let blocks = self.geometry.blocks;
        let data =
            DataSegment { allocated: Bitmap::new(blocks), taken: Bitmap::new(blocks), free: blocks, dirty: false };
        self.put(segment, Use::Data(Box::new(data)));
        self.partial.insert(segment);
        self.data_segments += 1;
        self.free_blocks += u64::from(blocks);
    }

    fn data(&mut self, segment: u32) -> Option<&mut DataSegment> {
        match self.segments.get_mut(segment as usize) {
            Some(Use::Data(data)) => Some(data),
            _ => None,
        }
    }

    fn split(&self, block: u64) -> (u32, u32) {
        let blocks = u64::from(self.geometry.blocks);
        (u32::try_from(block / blocks).unwrap_or(u32::MAX), (block % blocks) as u32)
    }
}

fn check_free(segment: u32, limit: u32, is_free: bool) -> Result<(), Contradiction> {
    if segment >= limit {
        return Err(Contradiction(format!("segment {segment} lies beyond the end of the file or folder")));
    }
    if !is_free {
        return Err(Contradiction(format!("segment {segment} is used twice")));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
