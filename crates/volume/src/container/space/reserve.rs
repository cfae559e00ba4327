//! Blocks that are taken before they are the tree's: reserved, and given back.

use super::{Space, Use};
use crate::table::Run;

impl Space {
    pub(super) fn take(&mut self, segment: u32, start: u32, count: u32) -> Run {
        let data = self.data(segment).expect("only free blocks of DATA segments are taken");
        (start..start + count).for_each(|at| data.taken.set(at));
        data.free -= count;
        if data.free == 0 {
            self.partial.remove(&segment);
        }
        self.free_blocks -= u64::from(count);
        Run { start: u64::from(segment) * u64::from(self.geometry.blocks) + u64::from(start), count }
    }

    pub(super) fn untake(&mut self, block: u64) {
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
        self.held_blocks = self.held_blocks.saturating_sub(count.into());
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

    /// Returns reserved blocks.
    pub fn release(&mut self, runs: &[Run]) {
        for block in runs.iter().flat_map(Run::blocks) {
            self.untake(block);
        }
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

    /// Whether the block was reserved, and is not the tree's yet.
    pub fn is_reserved(&self, block: u64) -> bool {
        let (segment, at) = self.split(block);
        match self.segments.get(segment as usize) {
            Some(Use::Data(data)) => data.taken.get(at) && !data.allocated.get(at),
            _ => false,
        }
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
