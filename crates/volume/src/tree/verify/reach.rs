//! Whether the root leads to each directory: up from each of them, by the place that its record names.
//!
//! That each is where it says was checked before, so all that can be wrong is that directories hold each other. Directories
//! that a walk came by are remembered, and the next walk ends where it meets one. When memory ends, more and more of them are
//! left out: of *n* directories, where *m* fit, one in about *n*/*m*, so that a walk goes so many steps further, and all walks
//! together take *n*·*n*/*m*. Which ones is drawn by a key that each search makes for itself: no tree can be made so that it
//! takes longer.

use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasher, RandomState};

use adit_core::types::Kind;
use adit_core::{ErrorKind, Result};

use super::stream::Stream;
use super::{Checked, Fault};
use crate::format::keys::{Id, Parts, space};
use crate::format::records::{Inode, Place};
use crate::tree::view::View;
use crate::tree::{ROOT_INO, is_ino};

/// Memory that a known directory takes, about, in bytes.
const KNOWN_BYTES: usize = 48;

/// The least number of known directories.
const KNOWN_MIN: usize = 16;

/// Loops that are told at once. When they are mended, a further check finds the others.
const LOOPS_MAX: usize = 16 << 10;

/// Finds directories that hold each other. `odd` are those that are known not to be where they say: nobody goes beyond them.
pub(super) fn check(
    view: &View<'_>,
    part: (Id, bool),
    odd: &Option<Vec<u64>>,
    memory_bytes: usize,
    checked: &mut Checked,
) -> Result<()> {
    let Some(odd) = odd else { return Ok(()) };
    let limit = (memory_bytes / KNOWN_BYTES).max(KNOWN_MIN);
    let mut upwards = Upwards { view, odd, known: HashSet::new(), limit, sparse: 0, draw: RandomState::new() };
    let mut loops = BTreeSet::new();
    let mut inodes = Stream::new(view, space::INODE);
    while let Some(record) = inodes.next()? {
        let Some(Parts::Inode(ino)) = record.key.parts() else { continue };
        let is_directory = matches!(Inode::decode(&record.value), Ok(inode) if inode.kind == Kind::Directory);
        if is_directory
            && let Some(least) = upwards.loop_above(ino)?
            && !loops.contains(&least)
        {
            if loops.len() == LOOPS_MAX {
                checked.omitted += 1;
                return Ok(());
            }
            loops.insert(least);
            checked.add(Some(part), Fault::Loop { ino: least });
        }
    }
    Ok(())
}

struct Upwards<'v, 't> {
    view: &'v View<'t>,
    odd: &'v [u64],
    /// Directories from which a walk was made, or through which one went, that ended: nothing new is above them.
    known: HashSet<u64>,
    limit: usize,
    /// Only those are remembered whose hash begins with so many zeros.
    sparse: u32,
    draw: RandomState,
}

impl Upwards<'_, '_> {
    /// The directory above; `None` if nothing new is there.
    fn above(&self, dir: u64) -> Result<Option<u64>> {
        if dir == ROOT_INO || !is_ino(dir) || self.known.contains(&dir) || self.odd.binary_search(&dir).is_ok() {
            return Ok(None);
        }
        match self.view.inode(dir) {
            Ok(inode) if inode.kind == Kind::Directory && inode.place != Place::default() => Ok(Some(inode.place.dir)),
            // Told by itself, or removed.
            Ok(_) => Ok(None),
            Err(e) if matches!(e.kind(), ErrorKind::Stale | ErrorKind::Corrupt) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The least directory of a loop into which the way up leads, unless that was met before.
    fn loop_above(&mut self, dir: u64) -> Result<Option<u64>> {
        // Brent's algorithm: a mark that is moved on after twice as many steps each time is met again in a loop.
        let (mut at, mut mark, mut steps, mut steps_max) = (dir, dir, 0_u64, 1_u64);
        let mut seen = Vec::new();
        let mut least = None;
        while let Some(above) = self.above(at)? {
            if self.is_kept(at) {
                self.make_room(&mut seen);
                seen.extend(Some(at).filter(|at| self.is_kept(*at)));
            }
            at = above;
            if at == mark {
                least = Some(self.least_of(at)?);
                break;
            }
            steps += 1;
            if steps == steps_max {
                (mark, steps, steps_max) = (at, 0, steps_max * 2);
            }
        }
        self.known.extend(seen);
        Ok(least)
    }

    /// The least directory of the loop that `dir` is in.
    fn least_of(&self, dir: u64) -> Result<u64> {
        let (mut least, mut at) = (dir, dir);
        while let Some(above) = self.above(at)? {
            least = least.min(above);
            at = above;
            if at == dir {
                break;
            }
        }
        Ok(least)
    }

    fn is_kept(&self, dir: u64) -> bool {
        self.sparse == 0 || self.draw.hash_one(dir).leading_zeros() >= self.sparse
    }

    fn make_room(&mut self, seen: &mut Vec<u64>) {
        while self.known.len() + seen.len() >= self.limit && self.sparse < 63 {
            self.sparse += 1;
            let mut known = std::mem::take(&mut self.known);
            known.retain(|dir| self.is_kept(*dir));
            self.known = known;
            seen.retain(|dir| self.is_kept(*dir));
        }
    }
}
