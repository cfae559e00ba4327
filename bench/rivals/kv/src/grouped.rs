//! A key-value store as a table: changes are collected in memory and committed many at once.

use std::collections::BTreeMap;
use std::ops::Bound;

use adit_core::{ErrorKind, FsError, Result};
use adit_volume::{Batch, Bytes, Extents, Run, Seq, Sink, Space, Table};
use parking_lot::Mutex;

/// What is committed at once, in bytes of keys and values: as much as a checkpoint moves.
const AT_ONCE_BYTES: usize = 16 << 20;

/// A key with its new value, or without one if it is removed.
pub type Change = (Vec<u8>, Option<Bytes>);

/// A key-value store.
pub trait Backend: Send + Sync {
    /// The value of `key`.
    fn get(&self, key: &[u8]) -> anyhow::Result<Option<Bytes>>;
    /// Hands out what is from `start` to `end` (exclusive), ascending, until `sink` breaks.
    fn scan(&self, start: &[u8], end: &[u8], sink: &mut Sink<'_>) -> anyhow::Result<()>;
    /// Applies all as one, durably.
    fn commit(&self, changes: Vec<Change>) -> anyhow::Result<()>;
}

/// See the module's notes.
pub struct Grouped<B> {
    backend: B,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    changes: BTreeMap<Vec<u8>, Option<Bytes>>,
    bytes: usize,
    seq: u64,
}

impl<B: Backend> Grouped<B> {
    /// With nothing collected yet.
    pub fn new(backend: B) -> Self {
        Grouped { backend, pending: Mutex::default() }
    }

    fn commit(&self, pending: &mut Pending) -> Result<()> {
        if pending.changes.is_empty() {
            return Ok(());
        }
        pending.bytes = 0;
        self.backend.commit(std::mem::take(&mut pending.changes).into_iter().collect()).map_err(failed)
    }
}

fn failed(error: anyhow::Error) -> FsError {
    FsError::new(ErrorKind::Io).on("use", "the key-value store").because(format!("{error:#}"))
}

impl<B: Backend> Table for Grouped<B> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        if let Some(pending) = self.pending.lock().changes.get(key) {
            return Ok(pending.clone());
        }
        self.backend.get(key).map_err(failed)
    }

    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        keys.iter().map(|key| self.get(key)).collect()
    }

    fn scan(&self, start: &[u8], end: &[u8], sink: &mut Sink<'_>) -> Result<()> {
        if start >= end {
            return Ok(());
        }
        // Ranges are short here: the entries of one directory at most.
        let mut all: BTreeMap<Vec<u8>, Bytes> = BTreeMap::new();
        self.backend
            .scan(start, end, &mut |key, value| {
                all.insert(key.to_vec(), value.into());
                std::ops::ControlFlow::Continue(())
            })
            .map_err(failed)?;
        let range = (Bound::Included(start), Bound::Excluded(end));
        for (key, value) in self.pending.lock().changes.range::<[u8], _>(range) {
            match value {
                Some(value) => all.insert(key.clone(), value.clone()),
                None => all.remove(key),
            };
        }
        for (key, value) in &all {
            if sink(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn apply(&self, batch: Batch) -> Result<Seq> {
        let mut pending = self.pending.lock();
        for (key, value) in batch.writes {
            pending.bytes += key.len() + value.as_ref().map_or(0, Vec::len);
            pending.changes.insert(key, value.map(Bytes::from));
        }
        pending.seq += 1;
        if pending.bytes >= AT_ONCE_BYTES {
            self.commit(&mut pending)?;
        }
        Ok(Seq(pending.seq))
    }

    fn sync(&self) -> Result<()> {
        self.commit(&mut self.pending.lock())
    }

    fn checkpoint(&self) -> Result<()> {
        self.sync()
    }
}

/// No place for extents: the files are empty.
pub struct NoExtents;

impl Extents for NoExtents {
    fn reserve(&self, _blocks: u32, _hint: Option<u64>, _uses_reserve: bool) -> Result<Vec<Run>> {
        Err(ErrorKind::NoSpace.into())
    }

    fn release(&self, _runs: &[Run]) {}

    fn write(&self, _block: u64, _bytes: &[u8]) -> Result<()> {
        Err(ErrorKind::NoSpace.into())
    }

    fn read(&self, _block: u64, _buf: &mut [u8]) -> Result<()> {
        Err(ErrorKind::NotFound.into())
    }

    fn space(&self) -> Space {
        Space { total: 1 << 40, free: 1 << 40, reserved: 0 }
    }
}
