//! What one id sees of the table.
//!
//! A [`View`] holds the topology's lock, shared: while one lives, no snapshot is made, no branch changes its id, and nothing
//! that it sees is dropped. So views are short-lived: one call of a store, no callback of a stranger within.

use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use adit_core::{ErrorKind, FsError, Result};
use parking_lot::RwLockReadGuard;

use super::Tree;
use super::topology::{Chain, Topology};
use crate::format::keys::{self, Id, Key};
use crate::format::records::{self, Entry, Inode, Malformed, Window};
use crate::fs::cache::InodeCache;
use crate::table::Bytes;

/// Invisible versions that are stepped over before a scan seeks the next one that could be seen.
const STEPS_MAX: usize = 8;

/// Takes a logical key and its value, and says whether to go on.
pub(crate) type Sink<'s> = dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>> + 's;

/// The nearest version of a key.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Who wrote it; `None`: nobody that is seen.
    pub owner: Option<Id>,
    /// Its value; `None` also if the nearest version says that there is none.
    pub value: Option<Bytes>,
}

/// Which id descends from which, for as long as a view lives.
pub(crate) enum Lines<'t> {
    /// Shared with all views.
    Shared(RwLockReadGuard<'t, Topology>),
    /// A copy, for whoever holds the lock alone.
    Own(Arc<Topology>),
}

impl std::ops::Deref for Lines<'_> {
    type Target = Topology;

    fn deref(&self) -> &Topology {
        match self {
            Lines::Shared(guard) => guard,
            Lines::Own(own) => own,
        }
    }
}

/// See the module's notes.
pub struct View<'t> {
    pub(crate) tree: &'t Tree,
    pub(crate) topology: Lines<'t>,
    pub(crate) id: Id,
    /// Of a branch.
    pub(crate) chain: Option<Arc<Chain>>,
    /// What is to forget what an operation changes.
    pub(crate) cache: Option<&'t OnceLock<InodeCache>>,
}

/// An error that names an inode.
pub(crate) fn corrupt_inode(ino: u64, why: Malformed) -> FsError {
    FsError::new(ErrorKind::Corrupt).on("read", format!("inode {ino}")).because(why)
}

/// An error that names a key.
pub(crate) fn corrupt_key(key: &[u8], why: &'static str) -> FsError {
    FsError::new(ErrorKind::Corrupt).on("read", format!("key {}", key.escape_ascii())).because(why)
}

impl View<'_> {
    /// The nearest version of `key`.
    pub fn find(&self, key: &Key) -> Result<Found> {
        if self.topology.is_single() {
            let value = self.tree.table.get(&key.at(self.id))?;
            return Ok(found(value.map(|value| (self.id, value))));
        }
        let (end, mut from) = (key.end(), self.id);
        loop {
            let (mut hit, mut lost, mut steps) = (None, None, 0);
            self.tree.table.scan(&key.at(from), &end, &mut |bytes, value| {
                let Some((_, owner)) = keys::split(bytes) else {
                    lost = Some(Err(corrupt_key(bytes, "it is no key")));
                    return ControlFlow::Break(());
                };
                if self.topology.sees(self.id, owner) {
                    hit = Some((owner, Bytes::from(value)));
                    return ControlFlow::Break(());
                }
                steps += 1;
                if steps < STEPS_MAX {
                    return ControlFlow::Continue(());
                }
                lost = Some(Ok(owner));
                ControlFlow::Break(())
            })?;
            match (hit, lost.transpose()?) {
                (None, Some(owner)) => match self.topology.at_or_above(self.id, owner.saturating_sub(1)) {
                    Some(next) => from = next,
                    None => return Ok(Found::default()),
                },
                (hit, _) => return Ok(found(hit)),
            }
        }
    }

    /// Hands out what is seen of the keys from `start` to `end` (logical, exclusive) until `sink` breaks.
    pub fn scan(&self, start: &[u8], end: &[u8], sink: &mut Sink<'_>) -> Result<()> {
        let mut from = start.to_vec();
        loop {
            let mut picker = Picker { view: self, current: Vec::new(), decided: false, steps: 0 };
            let mut stop = Ok(None);
            self.tree.table.scan(&from, end, &mut |bytes, value| {
                stop = picker.step(bytes, value, sink);
                if matches!(stop, Ok(None)) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            match stop? {
                Some(Stop::Seek(next)) => from = next,
                Some(Stop::Full) | None => return Ok(()),
            }
        }
    }

    /// The record of an inode; `Stale` if there is none.
    pub fn inode(&self, ino: u64) -> Result<Inode> {
        decode_inode(ino, self.find(&Key::inode(ino))?.value)
    }

    /// The records of several inodes, in their order; `Stale` for those that are not there.
    pub fn inodes(&self, inos: &[u64]) -> Vec<Result<Inode>> {
        if !self.topology.is_single() {
            return inos.iter().map(|&ino| self.inode(ino)).collect();
        }
        let keys: Vec<Vec<u8>> = inos.iter().map(|&ino| Key::inode(ino).at(self.id)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        match self.tree.table.get_many(&keys) {
            Ok(values) => values.into_iter().zip(inos).map(|(value, &ino)| decode_inode(ino, value)).collect(),
            // Each with an error of its own.
            Err(_) => inos.iter().map(|&ino| self.inode(ino)).collect(),
        }
    }

    /// A window of an inode's content, and who wrote it.
    pub fn window(&self, ino: u64, index: u64) -> Result<(Option<Id>, Option<Window>)> {
        let found = self.find(&Key::window(ino, index))?;
        let window = found.value.map(|v| Window::decode(&v).map_err(|why| corrupt_inode(ino, why))).transpose()?;
        Ok((found.owner, window))
    }

    /// The entry `name` of `dir`: its cookie, inode and kind.
    pub fn entry(&self, dir: u64, name: &[u8]) -> Result<Option<(u64, u64, adit_core::types::Kind)>> {
        let first = self.tree.hash.cookie(name);
        let (start, end) = (Key::entry(dir, first), Key::entry(dir, first + keys::cookie::SLOTS));
        if self.topology.is_single()
            && let Some(value) = self.tree.table.get(&start.at(self.id))?
        {
            // Nearly always the only name with its hash: a get is cheaper than a scan.
            let entry = Entry::decode(&value).map_err(|why| corrupt_inode(dir, why))?;
            if entry.name == name {
                return Ok(Some((first, entry.ino, entry.kind)));
            }
        }
        let mut hit = None;
        self.scan(start.as_bytes(), end.as_bytes(), &mut |key, value| {
            let entry = Entry::decode(value).map_err(|why| corrupt_inode(dir, why))?;
            if entry.name != name {
                return Ok(ControlFlow::Continue(()));
            }
            hit = Some((cookie_in(key)?, entry.ino, entry.kind));
            Ok(ControlFlow::Break(()))
        })?;
        Ok(hit)
    }
}

fn decode_inode(ino: u64, value: Option<Bytes>) -> Result<Inode> {
    let value = value.filter(|v| !records::is_tombstone(v)).ok_or(ErrorKind::Stale)?;
    Inode::decode(&value).map_err(|why| corrupt_inode(ino, why))
}

/// The cookie in a logical key of an entry.
pub(crate) fn cookie_in(key: &[u8]) -> Result<u64> {
    match Key::from_logical(key).as_ref().and_then(Key::parts) {
        Some(keys::Parts::Entry(_, cookie)) => Ok(cookie),
        _ => Err(corrupt_key(key, "it is no entry's")),
    }
}

fn found(hit: Option<(Id, Bytes)>) -> Found {
    match hit {
        None => Found::default(),
        Some((owner, value)) => Found { owner: Some(owner), value: Some(value).filter(|v| !records::is_tombstone(v)) },
    }
}

enum Stop {
    /// The sink has enough.
    Full,
    /// Go on there.
    Seek(Vec<u8>),
}

/// Picks of each key the version that is seen.
struct Picker<'v, 't> {
    view: &'v View<'t>,
    current: Vec<u8>,
    decided: bool,
    steps: usize,
}

impl Picker<'_, '_> {
    fn step(&mut self, bytes: &[u8], value: &[u8], sink: &mut Sink<'_>) -> Result<Option<Stop>> {
        let (logical, owner) = keys::split(bytes).ok_or_else(|| corrupt_key(bytes, "it is no key"))?;
        if logical != self.current {
            self.current.clear();
            self.current.extend_from_slice(logical);
            (self.decided, self.steps) = (false, 0);
        }
        if !self.decided && self.view.topology.sees(self.view.id, owner) {
            (self.decided, self.steps) = (true, 0);
            let show = !records::is_tombstone(value);
            return Ok((show && sink(logical, value)?.is_break()).then_some(Stop::Full));
        }
        self.steps += 1;
        if self.steps < STEPS_MAX {
            return Ok(None);
        }
        let next = match self.view.topology.at_or_above(self.view.id, owner.saturating_sub(1)) {
            Some(next) if !self.decided => next,
            _ => 0,
        };
        let versioned = [logical, &(!next).to_be_bytes()].concat();
        Ok(Some(Stop::Seek(versioned)))
    }
}
