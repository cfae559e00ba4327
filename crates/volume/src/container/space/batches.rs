//! Blocks that are the tree's: what batches allocate and free, now or as the log tells, and what checkpoints store of it.

use super::{Contradiction, DataSegment, Space, StoredBitmap, Use};
use crate::container::bitmap::Bitmap;
use crate::table::Run;

impl Space {
    /// Whether the block is the tree's.
    pub fn is_allocated(&self, block: u64) -> bool {
        let (segment, at) = self.split(block);
        matches!(self.segments.get(segment as usize), Some(Use::Data(data)) if data.allocated.get(at))
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
            self.held_blocks += u64::from(run.count);
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
            self.held_blocks = self.held_blocks.saturating_sub(blocks.into());
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
}

pub(super) fn no_block_twice(runs: &[Run]) -> bool {
    let mut sorted = runs.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0].end() <= pair[1].start)
}
