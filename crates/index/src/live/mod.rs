//! An index that follows the changes of its source: an immutable [`Base`], and what differs from it in memory.
//!
//! [`LiveIndex`] is the one that is written to, by one thread; [`View`] is what it says at one time, for any number of readers, as
//! long as they like. [`Kept`] does both for the engine of a mount: it walks the tree once, hears of every change, and asks
//! again what was named.
//!
//! Entries are told by their names in directories, and directories by the store's numbers ([`Facts::key`]), so that a directory which
//! is found under another name has moved, and costs no more than a file.
//!
//! Invariant: a view shows the tree between two batches of changes, never within one.

mod base;
mod changes;
mod find;
mod keeper;
mod kept;
mod make;
mod noticed;
mod queue;
mod source;
mod sums;
mod view;

use std::collections::VecDeque;
use std::sync::Arc;

use adit_core::error::Result;
use adit_core::types::Kind;
use hashbrown::{HashMap, HashSet};

pub use base::{Base, Contents, Facts, Keys};
pub use changes::{EachChild, LiveId};
pub use find::{LiveHit, Search};
pub use kept::{Kept, KeptOptions, Namespace, State, Waiting};
pub use make::{Lies, Making};
pub use source::Unread;
pub use sums::{Du, Sums, Top, du, top};
pub use view::{EachEntry, Found, View};

use changes::Changes;

/// What the store says of something now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// What `name` in the directory of this key leads to, or that there is nothing.
    Entry {
        /// Key of the directory.
        dir: u64,
        /// The name.
        name: Arc<[u8]>,
        /// What is there.
        found: Option<Facts>,
    },
    /// All that is in the directory of this key.
    Listing {
        /// Key of the directory.
        dir: u64,
        /// Names with what is there, in any order.
        entries: Vec<(Arc<[u8]>, Facts)>,
    },
    /// The attributes of everything with this key.
    Attrs(Facts),
}

/// What a batch of changes leaves to be done.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// Keys of directories that are new here, and of which nobody has said what is in them: their [`Change::Listing`] is due.
    pub unlisted: Vec<u64>,
    /// It contradicts itself, as no tree is that nobody changes meanwhile: the tree is to be walked again.
    pub lost: bool,
}

/// See the module's notes.
pub struct LiveIndex {
    base: Arc<Base>,
    changes: Arc<Changes>,
    generation: u64,
}

impl LiveIndex {
    /// The tree of `base`.
    pub fn new(base: Arc<Base>) -> LiveIndex {
        LiveIndex { base, changes: Arc::default(), generation: 0 }
    }

    /// The tree as it is now, for as long as the value lives. While one lives, the next change copies what differs from the base.
    pub fn view(&self) -> View {
        View::new(self.base.clone(), self.changes.clone(), self.generation)
    }

    /// How many batches were applied.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Counts on from where an index with another base was.
    fn continue_from(&mut self, generation: u64) {
        self.generation += generation;
    }

    /// How many entries differ from the base, about.
    pub fn changed(&self) -> usize {
        self.changes.len()
    }

    /// Memory that it takes, in bytes, without the segment's file.
    pub fn memory_bytes(&self) -> u64 {
        self.changes.memory_bytes() + self.base.memory_bytes()
    }

    /// Memory that differences from the base take, in bytes.
    pub fn changes_bytes(&self) -> u64 {
        self.changes.memory_bytes()
    }

    /// Makes the tree what a store says, one change after the other. A directory that loses its name in one of them and turns up at
    /// another in a later one has moved, with all that is in it; one that does not turn up is gone.
    ///
    /// What is said of directories that are not known is not of this tree, and passed over.
    ///
    /// # Errors
    /// `Corrupt` if the base is damaged: it is to be made anew.
    pub fn apply(&mut self, batch: &[Change]) -> Result<Applied> {
        let mut work = Work {
            base: &self.base,
            changes: Arc::make_mut(&mut self.changes),
            limbo: Limbo::default(),
            applied: Applied::default(),
        };
        work.all(batch)?;
        let applied = work.applied;
        self.generation += 1;
        Ok(applied)
    }
}

/// Directories that are at no name at the moment.
#[derive(Default)]
struct Limbo {
    by_key: HashMap<u64, LiveId>,
    ids: HashSet<LiveId>,
}

/// A batch that is being applied.
struct Work<'a> {
    base: &'a Base,
    changes: &'a mut Changes,
    limbo: Limbo,
    applied: Applied,
}

/// An entry that waits: it would be put below itself, so its place is to move first.
struct Postponed<'b> {
    dir: u64,
    name: &'b [u8],
    found: Facts,
}

impl Work<'_> {
    fn all(&mut self, batch: &[Change]) -> Result<()> {
        let mut waiting = VecDeque::new();
        for change in batch {
            match change {
                Change::Entry { dir, name, found } => self.entry(*dir, name, *found, &mut waiting)?,
                Change::Listing { dir, entries } => self.listing(*dir, entries, &mut waiting)?,
                Change::Attrs(_) => {}
            }
        }
        // Each round puts one at least, from the root downwards.
        while !waiting.is_empty() {
            let before = waiting.len();
            for _ in 0..before {
                if let Some(Postponed { dir, name, found }) = waiting.pop_front() {
                    self.entry(dir, name, Some(found), &mut waiting)?;
                }
            }
            if waiting.len() == before {
                self.applied.lost = true;
                break;
            }
        }
        for id in std::mem::take(&mut self.limbo.ids) {
            self.changes.drop_detached(self.base, id)?;
        }
        // When all is at its name: what hangs on nothing is not found by its key.
        for change in batch {
            if let Change::Attrs(facts) = change {
                self.attrs(facts)?;
            }
        }
        Ok(())
    }

    /// The directory of this key, also below one that is at no name at the moment.
    fn dir(&self, key: u64) -> Result<Option<LiveId>> {
        match self.limbo.by_key.get(&key) {
            Some(id) => Ok(Some(*id)),
            None => self.changes.dir_of_key(self.base, key, &self.limbo.ids),
        }
    }

    fn entry<'b>(
        &mut self,
        dir: u64,
        name: &'b [u8],
        found: Option<Facts>,
        waiting: &mut VecDeque<Postponed<'b>>,
    ) -> Result<()> {
        let Some(parent) = self.dir(dir)? else { return Ok(()) };
        let current = self.changes.lookup(self.base, parent, name)?;
        let Some(found) = found else {
            return current.map_or(Ok(()), |id| self.take_away(id));
        };
        if let Some(id) = current {
            let known = self.changes.facts(self.base, id)?;
            if (known.key, known.kind) == (found.key, found.kind) {
                return self.changes.set_facts(self.base, id, found);
            }
        }
        let known = if found.kind == Kind::Directory { self.dir(found.key)? } else { None };
        let Some(id) = known else {
            current.map_or(Ok(()), |id| self.take_away(id))?;
            let id = self.changes.add(self.base, found)?;
            self.changes.attach(self.base, id, parent, name)?;
            if found.kind == Kind::Directory {
                self.applied.unlisted.push(found.key);
            }
            return Ok(());
        };
        if id == LiveId::ROOT || !self.changes.hangs_on(self.base, parent, Some(id), &self.limbo.ids)? {
            waiting.push_back(Postponed { dir, name, found });
            return Ok(());
        }
        current.map_or(Ok(()), |id| self.take_away(id))?;
        self.changes.detach(self.base, id)?;
        self.limbo.by_key.remove(&found.key);
        self.limbo.ids.remove(&id);
        self.changes.attach(self.base, id, parent, name)?;
        self.changes.set_facts(self.base, id, found)
    }

    /// What is at a name there is not there any more.
    fn take_away(&mut self, id: LiveId) -> Result<()> {
        let facts = self.changes.facts(self.base, id)?;
        self.changes.detach(self.base, id)?;
        if facts.kind == Kind::Directory {
            self.limbo.by_key.insert(facts.key, id);
            self.limbo.ids.insert(id);
            return Ok(());
        }
        self.changes.drop_detached(self.base, id)
    }

    fn listing<'b>(
        &mut self,
        dir: u64,
        entries: &'b [(Arc<[u8]>, Facts)],
        waiting: &mut VecDeque<Postponed<'b>>,
    ) -> Result<()> {
        let Some(id) = self.dir(dir)? else { return Ok(()) };
        let names: HashSet<&[u8]> = entries.iter().map(|(name, _)| &**name).collect();
        let mut gone = Vec::new();
        self.changes.each_child(self.base, id, &mut |child, name| {
            if !names.contains(name) {
                gone.push(child);
            }
            Ok(std::ops::ControlFlow::Continue(()))
        })?;
        for id in gone {
            self.take_away(id)?;
        }
        entries.iter().try_for_each(|(name, facts)| self.entry(dir, name, Some(*facts), waiting))
    }

    fn attrs(&mut self, facts: &Facts) -> Result<()> {
        let mut same = Vec::new();
        self.changes.of_key(self.base, facts.key, &mut same)?;
        for id in same {
            if self.changes.kind(self.base, id)? == facts.kind {
                self.changes.set_facts(self.base, id, *facts)?;
            }
        }
        Ok(())
    }
}
