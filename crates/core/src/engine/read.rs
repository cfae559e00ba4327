//! The read path, and the cache of decrypted units for small reads.
//!
//! Reads of a unit or more go from the store straight into the caller's buffer. Smaller ones go through [`Units`]:
//! whole clean units, never the short one at the end of a file, so that growth cannot make one stale. A unit that is
//! being loaded is loaded once; whoever else wants it waits. Cleartext stays in memory until it is evicted and is not
//! wiped then: it is no more secret than the kernel's page cache, which holds the same bytes.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use parking_lot::{Condvar, Mutex};

use super::file::FileState;
use super::{Engine, Fh};
use crate::error::Result;
use crate::memory::{Budget, Part};
use crate::store::StoreFile;
use crate::types::Ino;

const SHARDS: usize = 16;

struct Unit {
    bytes: Arc<[u8]>,
    used: bool,
    /// Tells this copy from an older one that the queue may still name.
    id: u64,
}

#[derive(Default)]
struct Shard {
    units: HashMap<(Ino, u64), Unit>,
    /// How many units each inode has here: forgetting one that has none costs a look.
    per_inode: HashMap<Ino, u32>,
    /// In order of insertion; a unit that was used gets a second round.
    queue: VecDeque<(Ino, u64, u64)>,
    loading: HashSet<(Ino, u64)>,
    next_id: u64,
    /// Drops so far: a load that one of them ran past is not kept.
    drops: u64,
}

#[derive(Default)]
struct Place {
    shard: Mutex<Shard>,
    loaded: Condvar,
}

/// Clean units of content by inode and number, bounded by the budget.
pub(crate) struct Units {
    places: Box<[Place]>,
    budget: Arc<Budget>,
}

impl Shard {
    fn remove(&mut self, key: (Ino, u64)) -> Option<usize> {
        let unit = self.units.remove(&key)?;
        if let Some(n) = self.per_inode.get_mut(&key.0) {
            *n -= 1;
            if *n == 0 {
                self.per_inode.remove(&key.0);
            }
        }
        Some(unit.bytes.len())
    }

    fn insert(&mut self, key: (Ino, u64), bytes: Arc<[u8]>) -> Option<usize> {
        let replaced = self.remove(key);
        self.next_id += 1;
        self.queue.push_back((key.0, key.1, self.next_id));
        self.units.insert(key, Unit { bytes, used: false, id: self.next_id });
        *self.per_inode.entry(key.0).or_default() += 1;
        replaced
    }

    /// Takes the oldest unit that was not used lately. Returns its length.
    fn evict(&mut self) -> Option<usize> {
        while let Some((ino, unit, id)) = self.queue.pop_front() {
            match self.units.get_mut(&(ino, unit)) {
                Some(u) if u.id == id && u.used => {
                    u.used = false;
                    self.queue.push_back((ino, unit, id));
                }
                Some(u) if u.id == id => return self.remove((ino, unit)),
                _ => {}
            }
        }
        None
    }
}

/// Ends a load, also by panic.
struct Loading<'a> {
    place: &'a Place,
    key: (Ino, u64),
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.place.shard.lock().loading.remove(&self.key);
        self.place.loaded.notify_all();
    }
}

enum Found<'a> {
    Cached(Arc<[u8]>),
    /// To be loaded by the caller; with the number of drops before.
    Missing(Loading<'a>, u64),
}

impl Units {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Units { places: (0..SHARDS).map(|_| Place::default()).collect(), budget }
    }

    /// All units of an inode share a shard, so that dropping them takes one lock.
    fn place(&self, ino: Ino) -> &Place {
        &self.places[(ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % SHARDS]
    }

    fn find(&self, key: (Ino, u64)) -> Found<'_> {
        let place = self.place(key.0);
        let mut shard = place.shard.lock();
        loop {
            if let Some(unit) = shard.units.get_mut(&key) {
                unit.used = true;
                return Found::Cached(unit.bytes.clone());
            }
            if shard.loading.insert(key) {
                return Found::Missing(Loading { place, key }, shard.drops);
            }
            place.loaded.wait(&mut shard);
        }
    }

    fn keep(&self, key: (Ino, u64), bytes: Arc<[u8]>, drops: u64) {
        let allowance = self.budget.allowance_bytes(Part::Units);
        let len = bytes.len() as u64;
        if len > allowance {
            return;
        }
        {
            let mut shard = self.place(key.0).shard.lock();
            if shard.drops != drops {
                return;
            }
            self.budget.add(Part::Units, len);
            if let Some(replaced) = shard.insert(key, bytes) {
                self.budget.sub(Part::Units, replaced as u64);
            }
        }
        // From this shard first, and then from any other, one shard locked at a time.
        let at = (key.0.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % SHARDS;
        for i in 0..SHARDS {
            let mut shard = self.places[(at + i) % SHARDS].shard.lock();
            while self.budget.used_bytes(Part::Units) > self.budget.allowance_bytes(Part::Units) {
                match shard.evict() {
                    Some(len) => self.budget.sub(Part::Units, len as u64),
                    None => break,
                }
            }
        }
    }

    fn drop_if(&self, ino: Ino, gone: impl Fn(u64) -> bool) {
        let mut shard = self.place(ino).shard.lock();
        shard.drops += 1;
        if !shard.per_inode.contains_key(&ino) {
            return;
        }
        let keys: Vec<_> = shard.units.keys().filter(|(i, u)| *i == ino && gone(*u)).copied().collect();
        for key in keys {
            let len = shard.remove(key).unwrap_or(0);
            self.budget.sub(Part::Units, len as u64);
        }
        let Shard { units, queue, .. } = &mut *shard;
        if queue.len() > 2 * units.len() + 64 {
            queue.retain(|(ino, unit, id)| units.get(&(*ino, *unit)).is_some_and(|u| u.id == *id));
        }
    }

    /// Drops all units of an inode.
    pub(crate) fn drop_inode(&self, ino: Ino) {
        self.drop_if(ino, |_| true);
    }

    /// Drops the units from `first` on.
    pub(crate) fn drop_from(&self, ino: Ino, first: u64) {
        self.drop_if(ino, |u| u >= first);
    }

    /// Drops the units in `first..end`.
    pub(crate) fn drop_range(&self, ino: Ino, first: u64, end: u64) {
        self.drop_if(ino, |u| (first..end).contains(&u));
    }

    /// Entries and bytes.
    pub(crate) fn size(&self) -> (u64, u64) {
        let entries = self.places.iter().map(|p| p.shard.lock().units.len() as u64).sum();
        (entries, self.budget.used_bytes(Part::Units))
    }
}

impl Engine {
    /// Reads the whole of a file that was just opened into `buf`, if it fits, and hands it to `give`, which puts it where
    /// the first read will look. True when `give` took it. A file that cannot be read is not reported here: whoever
    /// reads it hears of it.
    ///
    /// `fh` is a handle that is [`unread`](super::Opened::unread) and that the front end has not answered yet. While
    /// `give` runs nobody else opens, changes or reads the file: they wait for its lock, or are seen here as users.
    pub fn give_whole(&self, fh: Fh, buf: &mut [u8], give: impl FnOnce(&[u8]) -> bool) -> bool {
        let Ok(handle) = self.files.get(fh) else { return false };
        let ino = handle.file.ino;
        let state = handle.file.read();
        if state.is_dirty() || !self.open.has_one_user(ino) {
            return false;
        }
        // What the kernel knows: the attributes that this open, or a lookup just before it, found.
        let Some((attr, _)) = self.inodes.attr(ino, self.clock.now()) else { return false };
        let Some(buf) = usize::try_from(attr.size).ok().filter(|&n| n > 0).and_then(|n| buf.get_mut(..n)) else {
            return false;
        };
        let whole = self.read_merged(ino, &state, 0, buf).is_ok_and(|n| n == buf.len());
        whole && give(buf)
    }

    /// The content of an open file as a file of the host; see [`StoreFile::host_file`]. `None` for one that is shorter than `len_min`
    /// bytes, and wherever something can be changed.
    pub fn host_file(&self, fh: Fh, len_min: u64) -> Option<OwnedFd> {
        if !self.caps.host_files || !self.is_read_only() {
            return None;
        }
        let handle = self.files.get(fh).ok()?;
        let file = handle.file.read().readable().ok()?.clone();
        if file.len().ok()? < len_min { None } else { file.host_file() }
    }

    /// Reads what the store has and what is buffered over it.
    pub(super) fn read_merged(&self, ino: Ino, state: &FileState, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let file = state.readable()?;
        if !state.is_dirty() {
            return self.read_clean(ino, file, offset, buf);
        }
        let n = state.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..n];
        if !state.buffer.covers(offset, n) {
            let in_store = state.store_len.saturating_sub(offset).min(n as u64) as usize;
            let got = if in_store > 0 { self.read_clean(ino, file, offset, &mut buf[..in_store])? } else { 0 };
            buf[got..].fill(0);
        }
        state.buffer.overlay(offset, buf);
        Ok(n)
    }

    /// Reads what the store has. The caller holds the lock of the open inode.
    pub(super) fn read_clean(&self, ino: Ino, file: &Arc<dyn StoreFile>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let unit_len = self.unit_len();
        if buf.len() >= unit_len || buf.is_empty() {
            return file.read_at(offset, buf);
        }
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let (unit, from) = (at / unit_len as u64, (at % unit_len as u64) as usize);
            let want = (unit_len - from).min(buf.len() - done);
            let n = self.read_unit(ino, file, unit, from, &mut buf[done..done + want])?;
            done += n;
            if n < want {
                break;
            }
        }
        Ok(done)
    }

    /// Reads within one unit, through the cache if the unit is a whole one.
    fn read_unit(&self, ino: Ino, file: &Arc<dyn StoreFile>, unit: u64, from: usize, buf: &mut [u8]) -> Result<usize> {
        let unit_len = self.unit_len();
        let start = unit * unit_len as u64;
        // The last unit of a small file is not worth a buffer of its own. Old attributes only choose the way here.
        if self.inodes.attr(ino, 0).is_some_and(|(attr, _)| attr.size < start + unit_len as u64) {
            return file.read_at(start + from as u64, buf);
        }
        let (loading, drops) = match self.units.find((ino, unit)) {
            Found::Cached(bytes) => {
                self.counters.units.hit();
                buf.copy_from_slice(&bytes[from..from + buf.len()]);
                return Ok(buf.len());
            }
            Found::Missing(loading, drops) => (loading, drops),
        };
        self.counters.units.miss();
        let mut bytes = vec![0; unit_len];
        let got = file.read_at(start, &mut bytes)?;
        let n = got.saturating_sub(from).min(buf.len());
        buf[..n].copy_from_slice(&bytes[from..from + n]);
        if got == unit_len {
            self.units.keep((ino, unit), bytes.into(), drops);
        }
        drop(loading);
        Ok(n)
    }
}
