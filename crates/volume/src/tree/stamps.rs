//! The times of what a restore sets back.
//!
//! A time of change never goes back: what asks "changed since the last backup" would pass over what the restore changed, and keep
//! what it threw away. So an inode that differed has that of the restore; one that did not keeps the one that it has in the branch.

use std::collections::BTreeMap;
use std::sync::Arc;

use adit_core::types::{SetAttr, SetTime, Timestamp};
use adit_core::{ErrorKind, Result};

use super::Tree;
use super::draft::FULL_LEN_BYTES;
use super::topology::Topology;
use super::view::{Lines, View, corrupt_inode};
use crate::format::keys::{Id, Parts};
use crate::format::records::{Entry, Inode};

/// When what a restore changed was modified.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mtimes {
    /// When it was in the snapshot.
    #[default]
    Snapshot,
    /// Now, so that what builds by these times (make, ninja) builds what depends on it.
    Now,
}

impl Mtimes {
    /// The times to set of what a restore changes, and what lies below is shown of.
    pub fn of_change(self) -> SetAttr {
        let now = Timestamp::of_tick();
        let mtime = (self == Mtimes::Now).then_some(SetTime::At(now));
        SetAttr { mtime, ctime: Some(now), ..SetAttr::default() }
    }
}

/// What a restore does to an inode of the snapshot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Its record, content, attributes or names differ, or it is not in the branch.
    Change,
    /// They are the same, and its time of change in the branch is this.
    Nothing(Timestamp),
}

/// See the module's notes.
pub(super) struct Stamps<'t> {
    /// The branch before.
    pub was: View<'t>,
    effects: BTreeMap<u64, Effect>,
    now: Timestamp,
    mtimes: Mtimes,
}

/// What an inode's time of change is in `old`, if nothing else differs from `new` that its record shows; and whether the same name counts as
/// the first in both.
pub(super) fn ctime_of_same(old: &[u8], new: &[u8], ino: u64) -> Result<Option<(Timestamp, bool)>> {
    let decode = |bytes| Inode::decode(bytes).map_err(|why| corrupt_inode(ino, why));
    let (old, new) = (decode(old)?, decode(new)?);
    let is_same = Inode { ctime: new.ctime, place: new.place, ..old.clone() } == new;
    Ok(is_same.then_some((old.ctime, old.place == new.place)))
}

impl<'t> Stamps<'t> {
    /// For what `was` differs in from the snapshot `old`: it costs what was changed.
    pub fn between(was: View<'t>, old: &View<'t>, mtimes: Mtimes) -> Result<Stamps<'t>> {
        let mut effects = BTreeMap::new();
        for key in was.tree.touched_by(&was.topology.way([was.id, old.id]))? {
            let [a, b] = [was.find(&key)?.value, old.find(&key)?.value];
            if a == b {
                continue;
            }
            let (ino, same) = match (key.parts(), a, b) {
                (Some(Parts::Inode(ino)), Some(a), Some(b)) => (ino, ctime_of_same(&a, &b, ino)?),
                (Some(Parts::Inode(ino) | Parts::Window(ino, _) | Parts::Xattr(ino, _)), ..) => (ino, None),
                // A name that comes back is a change of what it leads to.
                (Some(Parts::Entry(dir, _)), _, Some(b)) => {
                    (Entry::decode(&b).map_err(|why| corrupt_inode(dir, why))?.ino, None)
                }
                _ => continue,
            };
            match same {
                Some((ctime, _)) => drop(effects.entry(ino).or_insert(Effect::Nothing(ctime))),
                None => drop(effects.insert(ino, Effect::Change)),
            }
        }
        Ok(Stamps { was, effects, now: Timestamp::of_tick(), mtimes })
    }

    /// Gives the record of an inode in the snapshot the times that it has after the restore.
    pub fn apply(&self, ino: u64, record: &mut Inode) {
        match self.effects.get(&ino) {
            None => {}
            Some(Effect::Nothing(ctime)) => record.ctime = *ctime,
            Some(Effect::Change) => self.changed(record),
        }
    }

    /// As [`Stamps::apply`], for what is new in any case.
    pub fn changed(&self, record: &mut Inode) {
        record.ctime = self.now;
        if self.mtimes == Mtimes::Now {
            record.mtime = self.now;
        }
    }

    /// The time of change of an inode of the snapshot that is in the branch what it was.
    pub fn unchanged(&self, ino: u64, record: &Inode) -> Option<Timestamp> {
        match self.effects.get(&ino) {
            None => Some(record.ctime),
            Some(Effect::Nothing(ctime)) => Some(*ctime),
            Some(Effect::Change) => None,
        }
    }

    /// Stamps all of them in `new`, which is the snapshot so far.
    pub fn write(&self, new: &View<'t>) -> Result<()> {
        let mut left = self.effects.keys().peekable();
        while left.peek().is_some() {
            new.tree.change(new, |change| {
                // A full volume is set back, too.
                change.draft.takes_away = true;
                let mut len = 0;
                while len < FULL_LEN_BYTES
                    && let Some(&ino) = left.next()
                {
                    let mut record = match change.peek(ino) {
                        Ok(record) => record,
                        // It is not in the snapshot.
                        Err(e) if e.kind() == ErrorKind::Stale => continue,
                        Err(e) => return Err(e),
                    };
                    self.apply(ino, &mut record);
                    len += RECORD_LEN_BYTES + record.inline.len();
                    *change.edit(ino)? = record;
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Of an inode in a batch, without what is inline, and the key that says who touched it.
const RECORD_LEN_BYTES: usize = 256;

impl Tree {
    /// Views for whoever holds `topology` alone.
    pub(super) fn views_alone<const N: usize>(&self, topology: &Topology, ids: [Id; N]) -> [View<'_>; N] {
        let topology = Arc::new(topology.clone());
        ids.map(|id| {
            let chain = topology.live_chain(id).cloned();
            View { tree: self, topology: Lines::Own(topology.clone()), id, chain, cache: None }
        })
    }
}
