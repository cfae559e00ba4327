//! Buffered writes of one file: blocks with one dirty range each. Pure bookkeeping, no store, no lock.
//!
//! A block is smaller than a unit of the store, so that small writes all over a file take the memory of their bytes and
//! not of the units they lie in, and need nothing from the store; blocks go to the store together, by units.
//!
//! Invariant: within a block, `data[lo..hi]` is what readers see and what the store does not have yet; bytes outside are
//! meaningless. A write that does not touch the range fills the gap first, from the store or, past its end, with zeros.

use std::collections::BTreeMap;
use std::ops::Range;

use super::clock::Tick;
use crate::error::Result;

/// Length of a block, unless a unit is shorter. What the kernel writes at least, in most cases.
const BLOCK_LEN_BYTES: usize = 4096;

/// One block with buffered bytes.
#[derive(Debug)]
struct DirtyBlock {
    data: Vec<u8>,
    lo: usize,
    hi: usize,
    /// When its first byte came.
    born: Tick,
}

/// Copies of buffered bytes, on their way to the store.
pub(crate) struct Gathered {
    /// How many units they are of.
    pub(crate) units: usize,
    bytes: Vec<u8>,
    /// Offset and length of each piece, as long as it can be.
    pieces: Vec<(u64, usize)>,
}

impl Gathered {
    /// The pieces, ascending.
    pub(crate) fn pieces(&self) -> Vec<(u64, &[u8])> {
        let mut rest = &self.bytes[..];
        let piece = |&(at, len): &(u64, usize)| {
            let (piece, after) = rest.split_at(len);
            rest = after;
            (at, piece)
        };
        self.pieces.iter().map(piece).collect()
    }
}

#[derive(Debug)]
pub(crate) struct WriteBuffer {
    block_len: usize,
    blocks_per_unit: u64,
    blocks: BTreeMap<u64, DirtyBlock>,
    /// Full blocks that arose one after another: first, and the one after the last.
    run: (u64, u64),
}

impl WriteBuffer {
    pub(crate) fn new(unit_len: usize) -> Self {
        let block_len = unit_len.min(BLOCK_LEN_BYTES);
        let blocks_per_unit = (unit_len / block_len) as u64;
        WriteBuffer { block_len, blocks_per_unit, blocks: BTreeMap::new(), run: (0, 0) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Bytes of memory that its blocks stand for.
    pub(crate) fn held_bytes(&self) -> u64 {
        (self.blocks.len() * self.block_len) as u64
    }

    /// Bytes that a write of this range would add to them at most.
    pub(crate) fn growth_bytes(&self, offset: u64, len: usize) -> u64 {
        if len == 0 {
            return 0;
        }
        let block = self.block_len as u64;
        ((offset + len as u64 - 1) / block - offset / block + 1) * block
    }

    /// Takes `data` at `offset`. `fill` reads from the store (offset, buffer; missing bytes are zeros already); it is
    /// asked only for gaps before `store_len`. On its error nothing of that block is taken.
    pub(crate) fn write(
        &mut self,
        offset: u64,
        data: &[u8],
        now: Tick,
        store_len: u64,
        mut fill: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let block_len = self.block_len as u64;
        let mut taken = 0;
        while taken < data.len() {
            let at = offset + taken as u64;
            let (block, from) = (at / block_len, (at % block_len) as usize);
            let len = (self.block_len - from).min(data.len() - taken);
            self.write_block(block, from, &data[taken..taken + len], now, store_len, &mut fill)?;
            self.note_full(block);
            taken += len;
        }
        Ok(())
    }

    fn write_block(
        &mut self,
        block: u64,
        from: usize,
        src: &[u8],
        now: Tick,
        store_len: u64,
        fill: &mut impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let (to, block_len) = (from + src.len(), self.block_len);
        let start = block * block_len as u64;
        let Some(d) = self.blocks.get_mut(&block) else {
            let mut data = Vec::with_capacity(to);
            data.resize(from, 0);
            data.extend_from_slice(src);
            self.blocks.insert(block, DirtyBlock { data, lo: from, hi: to, born: now });
            return Ok(());
        };
        if d.data.len() < to {
            d.data.reserve_exact(block_len - d.data.len());
            d.data.resize(to, 0);
        }
        let gap = if from > d.hi { Some(d.hi..from) } else { (to < d.lo).then_some(to..d.lo) };
        if let Some(gap) = gap {
            let gap_start = start + gap.start as u64;
            let bytes = &mut d.data[gap];
            bytes.fill(0);
            if gap_start < store_len {
                let in_store = (store_len - gap_start).min(bytes.len() as u64) as usize;
                fill(gap_start, &mut bytes[..in_store])?;
            }
        }
        d.data[from..to].copy_from_slice(src);
        d.lo = d.lo.min(from);
        d.hi = d.hi.max(to);
        Ok(())
    }

    fn is_full(&self, block: u64) -> bool {
        self.blocks.get(&block).is_some_and(|d| d.lo == 0 && d.hi == self.block_len)
    }

    fn blocks_of(&self, unit: u64) -> Range<u64> {
        unit * self.blocks_per_unit..(unit + 1) * self.blocks_per_unit
    }

    /// Whether the whole unit is buffered.
    pub(crate) fn is_unit_full(&self, unit: u64) -> bool {
        self.blocks_of(unit).all(|b| self.is_full(b))
    }

    fn note_full(&mut self, block: u64) {
        if !self.is_full(block) || block + 1 == self.run.1 {
            return;
        }
        self.run =
            if block == self.run.1 && self.run.0 < self.run.1 { (self.run.0, block + 1) } else { (block, block + 1) };
    }

    /// The whole units of the latest sequential run of full blocks, if they have at least `bytes_min`.
    pub(crate) fn long_run(&self, bytes_min: u64) -> Option<Range<u64>> {
        let units = self.run.0.div_ceil(self.blocks_per_unit)..self.run.1 / self.blocks_per_unit;
        let blocks = units.end.saturating_sub(units.start) * self.blocks_per_unit;
        (blocks > 0 && blocks * self.block_len as u64 >= bytes_min).then_some(units)
    }

    /// Units with buffered bytes, ascending: those in which some were born at or before `born_max`.
    pub(crate) fn units_born(&self, born_max: Tick) -> Vec<u64> {
        let mut units = Vec::new();
        for (block, _) in self.blocks.iter().filter(|(_, d)| d.born <= born_max) {
            let unit = block / self.blocks_per_unit;
            if units.last() != Some(&unit) {
                units.push(unit);
            }
        }
        units
    }

    /// Units in which most is buffered, ascending, with about `bytes` in all; of those before `end_unit` only.
    pub(crate) fn fullest_units(&self, bytes: u64, end_unit: u64) -> Vec<u64> {
        let mut by_blocks: Vec<(u64, u64)> = Vec::new();
        for &block in self.blocks.range(..end_unit.saturating_mul(self.blocks_per_unit)).map(|(b, _)| b) {
            let unit = block / self.blocks_per_unit;
            match by_blocks.last_mut() {
                Some((n, last)) if *last == unit => *n += 1,
                _ => by_blocks.push((1, unit)),
            }
        }
        by_blocks.sort_unstable_by(|a, b| b.cmp(a));
        let mut left = bytes;
        let enough = by_blocks.iter().take_while(|(n, _)| {
            let wanted = left > 0;
            left = left.saturating_sub(n * self.block_len as u64);
            wanted
        });
        let mut units: Vec<u64> = enough.map(|&(_, unit)| unit).collect();
        units.sort_unstable();
        units
    }

    /// What is buffered of `unit`, if it lies in one block.
    pub(crate) fn only_piece(&self, unit: u64) -> Option<(u64, &[u8])> {
        let mut blocks = self.blocks.range(self.blocks_of(unit));
        let (block, d) = blocks.next()?;
        blocks.next().is_none().then(|| (block * self.block_len as u64 + d.lo as u64, &d.data[d.lo..d.hi]))
    }

    /// What is buffered of the first of `units`, which ascend: as many as have `bytes_max`, at least one.
    pub(crate) fn gather(&self, units: &[u64], bytes_max: usize) -> Gathered {
        let unit_len = self.blocks_per_unit as usize * self.block_len;
        let mut all = Gathered { units: 0, bytes: Vec::new(), pieces: Vec::new() };
        // One allocation, and of a size that comes again.
        all.bytes.reserve_exact((units.len() * unit_len).min(bytes_max.next_multiple_of(unit_len)));
        for &unit in units {
            if all.bytes.len() >= bytes_max || all.bytes.capacity() - all.bytes.len() < unit_len {
                break;
            }
            for (block, d) in self.blocks.range(self.blocks_of(unit)) {
                let (at, part) = (block * self.block_len as u64 + d.lo as u64, &d.data[d.lo..d.hi]);
                all.bytes.extend_from_slice(part);
                match all.pieces.last_mut() {
                    Some((start, len)) if *start + *len as u64 == at => *len += part.len(),
                    _ => all.pieces.push((at, part.len())),
                }
            }
            all.units += 1;
        }
        all
    }

    /// Drops units.
    pub(crate) fn remove_units(&mut self, units: &[u64]) {
        for &unit in units {
            let blocks = self.blocks_of(unit);
            if blocks.start < self.run.1 && blocks.end > self.run.0 {
                self.run = (blocks.end, self.run.1.max(blocks.end));
            }
            blocks.for_each(|b| drop(self.blocks.remove(&b)));
        }
    }

    /// Drops the blocks that lie within `offset..end`.
    pub(crate) fn remove_range(&mut self, offset: u64, end: u64) {
        let (first, end) = (offset.div_ceil(self.block_len as u64), end / self.block_len as u64);
        if first >= end {
            return;
        }
        let gone: Vec<u64> = self.blocks.range(first..end).map(|(&b, _)| b).collect();
        gone.iter().for_each(|b| drop(self.blocks.remove(b)));
        self.run = (0, 0);
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        self.run = (0, 0);
        self.blocks.clear();
    }

    /// Drops bytes at and after `len`.
    pub(crate) fn truncate(&mut self, len: u64) {
        let block_len = self.block_len as u64;
        let (block, cut) = (len / block_len, (len % block_len) as usize);
        drop(self.blocks.split_off(&(block + u64::from(cut > 0))));
        if let Some(d) = self.blocks.get_mut(&block) {
            d.hi = d.hi.min(cut);
            d.data.truncate(cut);
            if d.lo >= d.hi {
                self.blocks.remove(&block);
            }
        }
        self.run = (0, 0);
    }

    /// Whether every byte of the range is buffered.
    pub(crate) fn covers(&self, offset: u64, len: usize) -> bool {
        let mut at = offset;
        for (start, bytes) in self.in_range(offset, len) {
            if start > at {
                return false;
            }
            at = start + bytes.len() as u64;
        }
        at >= offset + len as u64
    }

    /// Copies the buffered bytes of the range over `buf`, which begins at `offset`.
    pub(crate) fn overlay(&self, offset: u64, buf: &mut [u8]) {
        for (start, bytes) in self.in_range(offset, buf.len()) {
            let (skip, at) = (offset.saturating_sub(start) as usize, start.saturating_sub(offset) as usize);
            let n = (bytes.len() - skip).min(buf.len() - at);
            buf[at..at + n].copy_from_slice(&bytes[skip..skip + n]);
        }
    }

    fn in_range(&self, offset: u64, len: usize) -> impl Iterator<Item = (u64, &[u8])> {
        let block_len = self.block_len as u64;
        let end = offset.saturating_add(len as u64);
        self.blocks
            .range(offset / block_len..end.div_ceil(block_len).max(offset / block_len))
            .map(move |(block, d)| (block * block_len + d.lo as u64, &d.data[d.lo..d.hi]))
            .filter(move |(start, bytes)| *start < end && start + bytes.len() as u64 > offset)
    }

    /// The end of the last buffered byte.
    pub(crate) fn end(&self) -> Option<u64> {
        let (block, d) = self.blocks.last_key_value()?;
        Some(block * self.block_len as u64 + d.hi as u64)
    }

    /// When the oldest block was born.
    pub(crate) fn oldest(&self) -> Option<Tick> {
        self.blocks.values().map(|d| d.born).min()
    }
}
