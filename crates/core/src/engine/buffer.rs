//! Buffered writes of one file: units with one dirty range each. Pure bookkeeping, no store, no lock.
//!
//! Invariant: within a unit, `data[lo..hi]` is what readers see and what the store does not have yet; bytes outside are
//! meaningless. A write that does not touch the range fills the gap first, from the store or, past its end, with zeros.

use std::collections::BTreeMap;

use super::clock::Tick;
use crate::error::Result;

/// One unit with buffered bytes.
#[derive(Debug)]
pub(crate) struct DirtyUnit {
    data: Vec<u8>,
    lo: usize,
    hi: usize,
    /// When its first byte came.
    pub(crate) born: Tick,
}

#[derive(Debug)]
pub(crate) struct WriteBuffer {
    unit_len: usize,
    units: BTreeMap<u64, DirtyUnit>,
    /// Full units that arose one after another: first, and the one after the last.
    run: (u64, u64),
}

impl WriteBuffer {
    pub(crate) fn new(unit_len: usize) -> Self {
        WriteBuffer { unit_len, units: BTreeMap::new(), run: (0, 0) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Units held.
    pub(crate) fn len(&self) -> usize {
        self.units.len()
    }

    /// Units that a write of this range would add at most.
    pub(crate) fn units_of(&self, offset: u64, len: usize) -> u64 {
        if len == 0 {
            return 0;
        }
        let unit = self.unit_len as u64;
        (offset + len as u64 - 1) / unit - offset / unit + 1
    }

    /// Takes `data` at `offset`. `fill` reads from the store (offset, buffer; missing bytes are zeros already); it is
    /// asked only for gaps before `store_len`. On its error nothing of that unit is taken.
    pub(crate) fn write(
        &mut self,
        offset: u64,
        data: &[u8],
        now: Tick,
        store_len: u64,
        mut fill: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let unit_len = self.unit_len as u64;
        let mut taken = 0;
        while taken < data.len() {
            let at = offset + taken as u64;
            let (unit, from) = (at / unit_len, (at % unit_len) as usize);
            let len = (self.unit_len - from).min(data.len() - taken);
            self.write_unit(unit, from, &data[taken..taken + len], now, store_len, &mut fill)?;
            self.note_full(unit);
            taken += len;
        }
        Ok(())
    }

    fn write_unit(
        &mut self,
        unit: u64,
        from: usize,
        src: &[u8],
        now: Tick,
        store_len: u64,
        fill: &mut impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let (to, unit_len) = (from + src.len(), self.unit_len);
        let start = unit * unit_len as u64;
        let Some(d) = self.units.get_mut(&unit) else {
            let mut data = Vec::with_capacity(if to > 4096 { unit_len } else { to });
            data.resize(from, 0);
            data.extend_from_slice(src);
            self.units.insert(unit, DirtyUnit { data, lo: from, hi: to, born: now });
            return Ok(());
        };
        if d.data.len() < to {
            if to > 4096 {
                d.data.reserve_exact(unit_len - d.data.len());
            }
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

    /// Whether the whole unit is buffered.
    pub(crate) fn is_full(&self, unit: u64) -> bool {
        self.units.get(&unit).is_some_and(|d| d.lo == 0 && d.hi == self.unit_len)
    }

    fn note_full(&mut self, unit: u64) {
        if !self.is_full(unit) || unit + 1 == self.run.1 {
            return;
        }
        self.run =
            if unit == self.run.1 && self.run.0 < self.run.1 { (self.run.0, unit + 1) } else { (unit, unit + 1) };
    }

    /// The latest sequential run of full units, if it has at least `bytes_min`: first unit, and the one after the last.
    pub(crate) fn long_run(&self, bytes_min: u64) -> Option<(u64, u64)> {
        let (first, end) = self.run;
        ((end - first) * self.unit_len as u64 >= bytes_min).then_some(self.run)
    }

    /// Bytes of units in `first..end` and born at or before `born_max`, ascending, at most `bytes_max` (at least one).
    pub(crate) fn pieces(&self, first: u64, end: u64, born_max: Tick, bytes_max: usize) -> Vec<(u64, &[u8])> {
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        if first >= end {
            return pieces;
        }
        for (unit, d) in self.units.range(first..end).filter(|(_, d)| d.born <= born_max) {
            if bytes >= bytes_max {
                break;
            }
            bytes += d.hi - d.lo;
            pieces.push((unit * self.unit_len as u64 + d.lo as u64, &d.data[d.lo..d.hi]));
        }
        pieces
    }

    /// Drops the unit that holds `offset`; true if there was one.
    pub(crate) fn remove_unit_at(&mut self, offset: u64) -> bool {
        let unit = offset / self.unit_len as u64;
        if (self.run.0..self.run.1).contains(&unit) {
            self.run = (unit + 1, self.run.1.max(unit + 1));
        }
        self.units.remove(&unit).is_some()
    }

    /// Drops the units in `first..end`; returns how many.
    pub(crate) fn remove_units(&mut self, first: u64, end: u64) -> usize {
        if first >= end {
            return 0;
        }
        let gone: Vec<u64> = self.units.range(first..end).map(|(&u, _)| u).collect();
        gone.iter().for_each(|u| drop(self.units.remove(u)));
        self.run = (0, 0);
        gone.len()
    }

    /// Drops everything; returns the number of units.
    pub(crate) fn clear(&mut self) -> usize {
        self.run = (0, 0);
        std::mem::take(&mut self.units).len()
    }

    /// Drops bytes at and after `len`; returns the number of units that went.
    pub(crate) fn truncate(&mut self, len: u64) -> usize {
        let unit_len = self.unit_len as u64;
        let (unit, cut) = (len / unit_len, (len % unit_len) as usize);
        let before = self.units.len();
        drop(self.units.split_off(&(unit + u64::from(cut > 0))));
        if let Some(d) = self.units.get_mut(&unit) {
            d.hi = d.hi.min(cut);
            d.data.truncate(cut);
            if d.lo >= d.hi {
                self.units.remove(&unit);
            }
        }
        self.run = (0, 0);
        before - self.units.len()
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
        let unit_len = self.unit_len as u64;
        let end = offset.saturating_add(len as u64);
        self.units
            .range(offset / unit_len..end.div_ceil(unit_len).max(offset / unit_len))
            .map(move |(unit, d)| (unit * unit_len + d.lo as u64, &d.data[d.lo..d.hi]))
            .filter(move |(start, bytes)| *start < end && start + bytes.len() as u64 > offset)
    }

    /// The end of the last buffered byte.
    pub(crate) fn end(&self) -> Option<u64> {
        let (unit, d) = self.units.last_key_value()?;
        Some(unit * self.unit_len as u64 + d.hi as u64)
    }

    /// When the oldest unit was born.
    pub(crate) fn oldest(&self) -> Option<Tick> {
        self.units.values().map(|d| d.born).min()
    }
}
