//! Where directories are that the paths of a [`Tree`] led through, so that the next path through one asks for its last name alone.
//!
//! Kept only for stores whose names cost I/O ([`Capabilities::slow_names`](crate::store::Capabilities::slow_names)): in a vault each name on
//! the way is several questions to a host. A directory that is kept is known to the store until the tree goes, or too many are kept.
//!
//! What the tree itself moves or removes voids all of it; what others move is believed for a second, as on a mount. Paths with `.`, `..` or
//! links on the way are walked, and so is one that leads nowhere: nothing is said to be absent but by the store.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use super::{Last, Node, Tree};
use crate::error::Result;
use crate::paths::PathTable;
use crate::types::{Attr, Ino, Kind};

/// Memory for paths, in bytes.
const PATHS_LEN_BYTES: u64 = 256 << 10;
/// Directories that are kept known. One more, and all are let go.
const DIRS_MAX: usize = 256;
/// How long the place of a directory is believed, as attributes and names on a mount.
const BELIEVED: Duration = Duration::from_secs(1);

#[derive(Clone, Copy)]
struct Way {
    attr: Attr,
    until: Instant,
}

/// See the module's notes.
pub(super) struct Ways {
    /// By the path without slashes at its ends.
    table: PathTable<Way>,
    held: RefCell<Vec<Ino>>,
}

impl Ways {
    pub fn new() -> Ways {
        Ways { table: PathTable::new(PATHS_LEN_BYTES), held: RefCell::default() }
    }

    /// What [`Tree::keep_ways`] wants to know from before a walk.
    pub fn generation(&self) -> u64 {
        self.table.generation()
    }
}

impl<'s> Tree<'s> {
    /// What is at `path`, if the directory that holds it is kept, and there is something.
    pub(super) fn by_way(&self, path: &[u8], last: Last) -> Result<Option<Node<'_>>> {
        let Some(ways) = &self.ways else { return Ok(None) };
        let mut names: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        let Some(name) = names.pop() else { return Ok(None) };
        if names.is_empty() || names.iter().chain([&name]).any(|name| matches!(*name, b"." | b"..")) {
            return Ok(None);
        }
        let (dir, now) = (names.join(&b'/'), Instant::now());
        let Some(way) = ways.table.get(Ino::ROOT.0, &dir, |way| way.until > now) else { return Ok(None) };
        let holder = self.node(way.attr, dir);
        // Whatever is wrong with it, the walk tells.
        let Ok(found) = self.child(&holder, name) else { return Ok(None) };
        let is_end = match found.kind() {
            Kind::Directory => true,
            Kind::Symlink => last == Last::Keep && !path.ends_with(b"/"),
            _ => !path.ends_with(b"/"),
        };
        Ok(is_end.then_some(found))
    }

    /// Keeps the directories of a trail, from the root down, that was walked by names alone in this generation.
    pub(super) fn keep_ways(&self, trail: &[Node<'_>], generation: u64) {
        let Some(ways) = &self.ways else { return };
        let until = Instant::now() + BELIEVED;
        for dir in trail.iter().filter(|node| node.kind() == Kind::Directory && !node.path().is_empty()) {
            let mut held = ways.held.borrow_mut();
            if !held.contains(&dir.ino()) {
                if held.len() >= DIRS_MAX {
                    ways.table.clear();
                    let all = std::mem::take(&mut *held);
                    drop(held);
                    all.into_iter().for_each(|ino| self.release(ino));
                    return;
                }
                held.push(dir.ino());
                *self.known.borrow_mut().entry(dir.ino()).or_insert(0) += 1;
            }
            drop(held);
            ways.table.keep(Ino::ROOT.0, dir.path(), Way { attr: dir.attr, until }, generation);
        }
    }

    /// A directory may have moved, or gone.
    pub(super) fn directory_moved(&self) {
        if let Some(ways) = &self.ways {
            ways.table.directory_moved();
        }
    }

    /// Keeps nothing any more.
    pub(super) fn let_ways_go(&self) {
        if let Some(ways) = &self.ways {
            ways.table.clear();
            let all = std::mem::take(&mut *ways.held.borrow_mut());
            all.into_iter().for_each(|ino| self.release(ino));
        }
    }
}
