//! Who owns which segment, and in DATA segments which block. In memory only.
//!
//! Where blocks of files lie in a folder, segments with data have numbers of their own, those of the folder's objects, and the
//! numbers in the file are those of the others. Both count for the capacity.
//!
//! Each block of a DATA segment is *allocated* (the tree's, as of the last batch), *taken* (that, or reserved, or freed by a
//! batch that is not durable yet), or free. What is allocated is taken.

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
    fn used(&self) -> u64 {
        u64::from(self.data_segments) + u64::from(self.fixed_segments) + u64::from(self.geometry.log_segments)
    }

    /// Segments that the file had when it was opened.
    pub fn limit(&self) -> u32 {
        self.file.as_ref().map_or(self.limit, |file| file.limit)
    }

    /// Segments that may still be bound, those kept back counted, the log's share not.
    pub fn available(&self) -> u32 {
        u64::from(self.geometry.segments).saturating_sub(self.used()) as u32
    }

    /// Free blocks in all, and those kept back.
    pub fn blocks(&self) -> (u64, u64) {
        let blocks = u64::from(self.geometry.blocks);
        let free = self.free_blocks + self.pending_blocks + u64::from(self.available()) * blocks;
        (free, u64::from(self.geometry.kept_back.min(self.available())) * blocks)
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

    fn take(&mut self, segment: u32, start: u32, count: u32) -> Run {
        let data = self.data(segment).expect("only free blocks of DATA segments are taken");
        (start..start + count).for_each(|at| data.taken.set(at));
        data.free -= count;
        if data.free == 0 {
            self.partial.remove(&segment);
        }
        self.free_blocks -= u64::from(count);
        Run { start: u64::from(segment) * u64::from(self.geometry.blocks) + u64::from(start), count }
    }

    fn untake(&mut self, block: u64) {
        let (segment, at) = self.split(block);
        if let Some(data) = self.data(segment)
            && data.taken.get(at)
            && !data.allocated.get(at)
        {
            data.taken.clear(at);
            data.free += 1;
            self.partial.insert(segment);
            self.free_blocks += 1;
        }
    }

    /// Takes so many blocks, or none; with `uses_reserve` also from one half of what is kept back.
    pub fn reserve(&mut self, count: u32, hint: Option<u64>, uses_reserve: bool) -> Option<Vec<Run>> {
        let kept_back = if uses_reserve { self.geometry.kept_back.div_ceil(2) } else { self.geometry.kept_back };
        let spare = self.available().saturating_sub(kept_back);
        if self.free_blocks + u64::from(spare) * u64::from(self.geometry.blocks) < u64::from(count) {
            return None;
        }
        let mut runs: Vec<Run> = Vec::new();
        let mut left = count;
        if let Some(run) = hint.and_then(|hint| self.take_at(hint, left)) {
            left -= run.count;
            runs.push(run);
        }
        while left > 0 {
            let run = self.take_best(left, kept_back);
            left -= run.count;
            match runs.last_mut() {
                Some(last) if last.end() == run.start => last.count += run.count,
                _ => runs.push(run),
            }
        }
        Some(runs)
    }

    /// Free blocks from `block` on, at most `want`.
    fn take_at(&mut self, block: u64, want: u32) -> Option<Run> {
        let (segment, at) = self.split(block);
        let blocks = self.geometry.blocks;
        let data = self.data(segment)?;
        let count = (at..blocks).take(want as usize).take_while(|at| !data.taken.get(*at)).count() as u32;
        (count > 0).then(|| self.take(segment, at, count))
    }

    /// One run, as long as may be, but not longer than `want`. There is one.
    fn take_best(&mut self, want: u32, kept_back: u32) -> Run {
        /// How many segments are looked at for a run that is long enough, before another segment is bound.
        const LOOKED_AT_MAX: usize = 32;
        let want = want.min(self.geometry.blocks);
        let candidates = self.partial.range(self.cursor..).chain(self.partial.range(..self.cursor));
        let mut best: Option<(u32, u32, u32)> = None;
        let can_bind = self.available() > kept_back;
        for (looked_at, &segment) in candidates.enumerate() {
            if can_bind && looked_at >= LOOKED_AT_MAX {
                break;
            }
            let Some(Use::Data(data)) = self.segments.get(segment as usize) else { continue };
            if data.free <= best.map_or(0, |(.., count)| count) {
                continue;
            }
            for (start, count) in data.taken.clear_runs() {
                if count > best.map_or(0, |(.., count)| count) {
                    best = Some((segment, start, count));
                }
                if count >= want {
                    break;
                }
            }
            if best.is_some_and(|(.., count)| count >= want) {
                break;
            }
        }
        if can_bind && best.is_none_or(|(.., count)| count < want) {
            let segment = self.next_free();
            self.bind_data(segment);
            best = Some((segment, 0, self.geometry.blocks));
        }
        let (segment, start, count) = best.expect("free blocks were counted before");
        self.cursor = segment;
        self.take(segment, start, count.min(want))
    }

    /// Whether the block was reserved, and is not the tree's yet.
    pub fn is_reserved(&self, block: u64) -> bool {
        let (segment, at) = self.split(block);
        match self.segments.get(segment as usize) {
            Some(Use::Data(data)) => data.taken.get(at) && !data.allocated.get(at),
            _ => false,
        }
    }

    /// Whether the block is the tree's.
    pub fn is_allocated(&self, block: u64) -> bool {
        let (segment, at) = self.split(block);
        matches!(self.segments.get(segment as usize), Some(Use::Data(data)) if data.allocated.get(at))
    }

    /// Returns reserved blocks.
    pub fn release(&mut self, runs: &[Run]) {
        for block in runs.iter().flat_map(Run::blocks) {
            self.untake(block);
        }
    }

    /// Whether a batch may allocate and free these: reserved ones and allocated ones, each once.
    pub fn admits(&mut self, allocated: &[Run], freed: &[Run]) -> bool {
        self.all(allocated, |data, at| data.taken.get(at) && !data.allocated.get(at))
            && self.all(freed, |data, at| data.allocated.get(at))
            && no_block_twice(allocated)
            && no_block_twice(freed)
    }

    fn all(&mut self, runs: &[Run], test: impl Fn(&DataSegment, u32) -> bool) -> bool {
        runs.iter().all(|run| {
            run.blocks().all(|block| {
                let (segment, at) = self.split(block);
                self.data(segment).is_some_and(|data| test(data, at))
            })
        })
    }

    /// What batch `seq` did, which was admitted.
    pub fn apply(&mut self, allocated: impl Iterator<Item = Run>, freed: &[Run], seq: u64) {
        self.mark(allocated);
        for run in freed {
            for block in run.blocks() {
                let (segment, at) = self.split(block);
                if let Some(data) = self.data(segment) {
                    data.allocated.clear(at);
                    data.dirty = true;
                }
            }
            self.pending.push_back((seq, *run));
            self.pending_blocks += u64::from(run.count);
        }
    }

    fn mark(&mut self, allocated: impl Iterator<Item = Run>) {
        for block in allocated.flat_map(|run| run.blocks()) {
            let (segment, at) = self.split(block);
            if let Some(data) = self.data(segment) {
                data.allocated.set(at);
                data.dirty = true;
            }
        }
    }

    /// What a batch did that is found in the log; [`Space::check_replayed`] comes after the last.
    pub fn replay(&mut self, allocated: &[Run], freed: &[Run], seq: u64) -> Result<(), Contradiction> {
        for block in allocated.iter().flat_map(Run::blocks) {
            let (segment, at) = self.split(block);
            if segment >= self.limit {
                if !self.lost.insert(block) {
                    return Err(Contradiction(format!("block {block} is allocated twice")));
                }
                continue;
            }
            if self.is_free(segment) {
                self.bind_data(segment);
            }
            let untaken = self.data(segment).map(|data| !data.taken.get(at));
            match untaken {
                Some(true) => drop(self.take(segment, at, 1)),
                // Freed by an earlier batch of this log.
                Some(false) if self.data(segment).is_some_and(|data| !data.allocated.get(at)) => {
                    self.forget_pending(block);
                }
                _ => return Err(Contradiction(format!("block {block} is allocated twice"))),
            }
            self.mark(std::iter::once(Run { start: block, count: 1 }));
        }
        let mut there = Vec::with_capacity(freed.len());
        let end = u64::from(self.limit) * u64::from(self.geometry.blocks);
        for run in freed {
            let count = run.count.min(u32::try_from(end.saturating_sub(run.start)).unwrap_or(u32::MAX));
            let inside = Run { count, ..*run };
            let is_known = self.all(&[inside], |data, at| data.allocated.get(at))
                && (inside.end()..run.end()).all(|block| self.lost.remove(&block));
            if !is_known {
                return Err(Contradiction(format!("{run:?} was freed, and not allocated")));
            }
            there.extend((count > 0).then_some(inside));
        }
        if !no_block_twice(&there) {
            return Err(Contradiction(format!("batch {seq} frees a block twice")));
        }
        self.apply(std::iter::empty(), &there, seq);
        Ok(())
    }

    /// Whether all that is allocated lies in the file, once all is replayed.
    pub fn check_replayed(&self) -> Result<(), Contradiction> {
        match self.lost.first() {
            Some(block) => Err(Contradiction(format!("block {block} lies beyond the end of the file or folder"))),
            None => Ok(()),
        }
    }

    /// The pending run that holds `block` loses it.
    fn forget_pending(&mut self, block: u64) {
        let Some(at) = self.pending.iter().position(|(_, run)| run.blocks().contains(&block)) else { return };
        let Some((seq, run)) = self.pending.remove(at) else { return };
        let before = Run { start: run.start, count: (block - run.start) as u32 };
        let after = Run { start: block + 1, count: (run.end() - block - 1) as u32 };
        for part in [after, before].into_iter().filter(|part| part.count > 0) {
            self.pending.insert(at, (seq, part));
        }
        self.pending_blocks -= 1;
    }

    /// What batches up to `durable` freed may be used again.
    pub fn settle(&mut self, durable: u64) {
        while let Some((_, run)) = self.pending.pop_front_if(|(seq, _)| *seq <= durable) {
            self.pending_blocks -= u64::from(run.count);
            run.blocks().for_each(|block| self.untake(block));
        }
    }

    /// Whether there is something to settle.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The bitmaps that changed since this was called last.
    pub fn take_dirty(&mut self) -> Vec<StoredBitmap> {
        let mut dirty = Vec::new();
        for (segment, data) in (0..).zip(&mut self.segments) {
            if let Use::Data(data) = data
                && std::mem::take(&mut data.dirty)
            {
                dirty.push((segment, (!data.allocated.is_empty()).then(|| data.allocated.to_bytes())));
            }
        }
        dirty
    }

    /// A bitmap that a checkpoint stored.
    pub fn load(&mut self, segment: u32, bytes: &[u8]) -> Result<(), Contradiction> {
        let bitmap = Bitmap::from_bytes(self.geometry.blocks, bytes);
        let bitmap = bitmap.ok_or_else(|| Contradiction(format!("the bitmap of segment {segment} is none")))?;
        self.check_free(segment)?;
        self.bind_data(segment);
        for (start, count) in bitmap.set_runs() {
            self.take(segment, start, count);
        }
        if let Some(data) = self.data(segment) {
            data.allocated = bitmap;
        }
        Ok(())
    }

    /// DATA segments of which nothing is taken, and a checkpoint knows it: they are bound by the caller now.
    pub fn take_empty(&mut self) -> Vec<u32> {
        let blocks = self.geometry.blocks;
        let is_empty = |s: &u32| matches!(&self.segments[*s as usize], Use::Data(d) if d.free == blocks && !d.dirty);
        let empty: Vec<u32> = self.partial.iter().copied().filter(is_empty).collect();
        for &segment in &empty {
            self.partial.remove(&segment);
            self.put(segment, Use::Taken);
            self.data_segments -= 1;
            self.fixed_segments += 1;
            self.free_blocks -= u64::from(blocks);
        }
        empty
    }

    /// Whether the segment holds data, or is being emptied.
    pub fn has_data(&self, segment: u32) -> bool {
        !self.is_free(segment)
    }

    /// All allocated blocks, ascending.
    pub fn allocated(&self) -> Vec<Run> {
        let mut runs = Vec::new();
        for (segment, data) in (0_u64..).zip(&self.segments) {
            if let Use::Data(data) = data {
                let first = segment * u64::from(self.geometry.blocks);
                let run = |(start, count)| Run { start: first + u64::from(start), count };
                runs.extend(data.allocated.set_runs().map(run));
            }
        }
        runs
    }

    /// Behind the last block of the segments that the file or folder has, or that are in use.
    pub fn end(&self) -> u64 {
        let segments = (self.segments.len() as u64).max(u64::from(self.limit));
        segments.saturating_mul(u64::from(self.geometry.blocks))
    }

    /// The first stretch of allocated blocks from `block` on, within one segment.
    pub fn allocated_from(&self, block: u64) -> Option<Run> {
        let (first, mut at) = self.split(block);
        for (segment, data) in (u64::from(first)..).zip(self.segments.get(first as usize..)?) {
            if let Use::Data(data) = data
                && let Some((start, count)) = data.allocated.set_run_from(at)
            {
                return Some(Run { start: segment * u64::from(self.geometry.blocks) + u64::from(start), count });
            }
            at = 0;
        }
        None
    }

    /// Takes this very block, if it is free: within what the file or folder had when it was opened, and not in a segment
    /// that is used for something else.
    pub fn reserve_at(&mut self, block: u64) -> bool {
        let (segment, at) = self.split(block);
        if segment >= self.limit {
            return false;
        }
        if self.is_free(segment) {
            self.kept_together.retain(|kept| *kept != segment);
            self.bind_data(segment);
        }
        let is_free = self.data(segment).is_some_and(|data| !data.taken.get(at));
        if is_free {
            self.take(segment, at, 1);
        }
        is_free
    }

    /// Free stretches of DATA segments, ascending.
    pub fn free_runs(&self) -> Vec<Run> {
        let mut runs = Vec::new();
        for &segment in &self.partial {
            if let Some(Use::Data(data)) = self.segments.get(segment as usize) {
                let first = u64::from(segment) * u64::from(self.geometry.blocks);
                let run = |(start, count)| Run { start: first + u64::from(start), count };
                runs.extend(data.taken.clear_runs().map(run));
            }
        }
        runs
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

fn no_block_twice(runs: &[Run]) -> bool {
    let mut sorted = runs.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0].end() <= pair[1].start)
}

#[cfg(test)]
mod tests;
