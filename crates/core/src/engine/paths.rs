//! What a whole path leads to, for front ends that have paths and not the kernel's inodes.
//!
//! A path is walked by [`Engine::lookup_or_absent`], which answers from the caches what it can: names that are there and names that
//! are absent. Where a name costs I/O, the directories of paths are kept besides ([`PathTable`]), and held, so that what the caches
//! know of them stays: nobody else holds them, as a kernel does. Whatever may move a directory voids all paths; where others may change the
//! store, a path is believed as long as the least fresh of its names, and that table is switched off where it answers too little.

use std::time::Duration;

use parking_lot::Mutex;

use super::clock::{NEVER, Tick};
use super::held::Held;
use super::stats::CacheStats;
use super::worth::{Worth, WorthStats};
use super::{Engine, Entry, Lookup};
use crate::error::{ErrorKind, Result};
use crate::memory::{Budget, Part};
use crate::paths::PathTable;
use crate::types::{FileName, Ino, Kind};

/// Memory for paths, in bytes: some thousand of them. Less where the engine has little.
const PATHS_LEN_BYTES: u64 = 1 << 20;
/// Likewise, the part of the engine's memory.
const MEMORY_SHARE: u64 = 64;
/// Directories that are held.
const DIRS_HELD_MAX: usize = 256;
/// Of a hundred paths so many have to be found. A path that is found spares I/O for each of its names; one that is not costs a hash, a copy
/// of it and a pin, which no store is asked for. So it is switched off only where it is nearly never of use, and takes memory for nothing.
const FOUND_PERCENT_MIN: u32 = 5;

/// Where a directory is.
#[derive(Clone, Copy)]
struct Place {
    dir: Ino,
    /// Of its number: void when that was forgotten.
    epoch: u32,
    expiry: Tick,
}

/// See the module's notes.
pub(super) struct Paths {
    table: PathTable<Place>,
    held: Mutex<Held<()>>,
    worth: Worth,
}

/// How the paths of an engine fare.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PathStats {
    /// Directories of paths.
    pub directories: CacheStats,
    /// Whether they are kept, and the rate that this goes by: of the paths that were asked for, those found.
    pub worth: WorthStats,
}

/// A reference, given back at the end.
struct Known<'e>(&'e Engine, Ino);

impl Drop for Known<'_> {
    fn drop(&mut self) {
        self.0.drop_ref(self.1);
    }
}

/// A directory on the way.
enum Way<'e> {
    Directory(Known<'e>),
    Absent { ttl: Duration },
}

impl Paths {
    /// Within `budget`.
    pub(super) fn new(budget: &Budget) -> Paths {
        let bytes = PATHS_LEN_BYTES.min(budget.limit_bytes() / MEMORY_SHARE);
        budget.add(Part::Fixed, bytes);
        Paths { table: PathTable::new(bytes), held: Mutex::default(), worth: Worth::new(FOUND_PERCENT_MIN) }
    }

    /// A directory may have moved, or gone.
    pub(super) fn directory_moved(&self) {
        self.table.directory_moved();
    }

    pub(super) fn stats(&self) -> PathStats {
        PathStats { directories: self.table.stats(), worth: self.worth.stats() }
    }
}

impl Engine {
    /// What `path` leads to from the root, as a reference to it. Symbolic links on the way are not followed, nor is one at the end.
    ///
    /// # Errors
    /// `NotDirectory` if something on the way is none; `InvalidInput` and `NameTooLong` for what is no name, `.` and `..` among them; those of the
    /// store.
    pub fn resolve(&self, path: &[u8]) -> Result<Lookup> {
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let path = &path[..end];
        let name_at = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (dir, name) = path.split_at(name_at);
        if name.is_empty() {
            let (attr, attr_ttl) = self.getattr(Ino::ROOT, None)?;
            return Ok(Lookup::Found(Entry { attr, generation: 0, attr_ttl, entry_ttl: self.options.entry_ttl }));
        }
        match self.directory_at(dir)? {
            Way::Directory(dir) => self.lookup_or_absent(dir.1, FileName::new(name)?),
            Way::Absent { ttl } => Ok(Lookup::Absent { ttl }),
        }
    }

    fn directory_at(&self, path: &[u8]) -> Result<Way<'_>> {
        if path.iter().all(|byte| *byte == b'/') {
            return Ok(Way::Directory(Known(self, Ino::ROOT)));
        }
        let paths = self.paths.as_ref().filter(|paths| paths.worth.turn());
        let Some(paths) = paths else { return self.walk_to(path, None).map(|(way, _)| way) };
        // Before anything is asked.
        let (generation, now) = (paths.table.generation(), self.clock.now());
        if let Some(place) = paths.table.get(Ino::ROOT.0, path, |place| self.is_there(place, now)) {
            paths.worth.settle(true);
            return Ok(Way::Directory(Known(self, place.dir)));
        }
        paths.worth.settle(false);
        let (way, ttl) = self.walk_to(path, Some((paths, now)))?;
        let expiry = self.expiry(now, ttl);
        if let Way::Directory(dir) = &way
            && expiry > now
        {
            let place = Place { dir: dir.1, epoch: self.dentries.epoch(dir.1), expiry };
            paths.table.keep(Ino::ROOT.0, path, place, generation);
        }
        Ok(way)
    }

    /// Whether a directory is still there; takes a reference to it then.
    fn is_there(&self, place: &Place, now: Tick) -> bool {
        if place.expiry <= now || !self.inodes.add_ref_if_known(place.dir) {
            return false;
        }
        // In this order: its number cannot be forgotten, and mean something else, any more.
        let is_same = self.dentries.epoch(place.dir) == place.epoch;
        if !is_same {
            self.drop_ref(place.dir);
        }
        is_same
    }

    /// Walks to a directory by its names, and says how long that may be believed. `holding` are to hold the directories on the way.
    fn walk_to(&self, path: &[u8], holding: Option<(&Paths, Tick)>) -> Result<(Way<'_>, Duration)> {
        let (mut at, mut least_ttl) = (Known(self, Ino::ROOT), self.options.entry_ttl);
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            match self.lookup_or_absent(at.1, FileName::new(name)?)? {
                Lookup::Found(entry) => {
                    at = Known(self, entry.attr.ino);
                    if entry.attr.kind != Kind::Directory {
                        return Err(ErrorKind::NotDirectory.into());
                    }
                    least_ttl = least_ttl.min(entry.entry_ttl);
                    if let Some((paths, now)) = holding {
                        self.hold_directory(paths, at.1, now);
                    }
                }
                Lookup::Absent { ttl } => return Ok((Way::Absent { ttl }, Duration::ZERO)),
            }
        }
        Ok((Way::Directory(at), least_ttl))
    }

    fn hold_directory(&self, paths: &Paths, dir: Ino, now: Tick) {
        if self.inodes.pin(dir).is_err() {
            return;
        }
        let mut gone = Vec::new();
        {
            let mut held = paths.held.lock();
            if !held.put(dir, (), NEVER) {
                gone.push(dir);
            }
            gone.extend(std::iter::from_fn(|| held.pop(now, DIRS_HELD_MAX)).map(|(ino, ())| ino));
        }
        gone.into_iter().for_each(|ino| self.unpin(ino));
    }

    /// A directory went: nothing of it is held.
    pub(super) fn let_go(&self, dir: Ino) {
        if let Some(paths) = &self.paths {
            let held = paths.held.lock().take(dir);
            if held.is_some() {
                self.unpin(dir);
            }
        }
    }

    /// Holds no directory any more.
    pub(super) fn end_paths(&self) {
        let Some(paths) = &self.paths else { return };
        let gone: Vec<Ino> = {
            let mut held = paths.held.lock();
            std::iter::from_fn(|| held.pop(NEVER, 0)).map(|(ino, ())| ino).collect()
        };
        gone.into_iter().for_each(|ino| self.unpin(ino));
    }

    /// Whatever leads through a directory may lead elsewhere.
    pub(super) fn directory_moved(&self) {
        if let Some(paths) = &self.paths {
            paths.directory_moved();
        }
    }
}
