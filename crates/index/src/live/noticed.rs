//! What the engine was told by a store that others change, held against what the index says.
//!
//! Nothing need have changed: of most that a store says the index knows already. What it does not know is noted like a change, and asked for.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;

use adit_core::engine::Listing;
use adit_core::error::Result;
use adit_core::types::FileName;
use hashbrown::{HashMap, HashSet};

use super::LiveIndex;
use super::base::Facts;
use super::view::View;

/// Entries of listings that wait to be compared, all together. Beyond, the directories are asked for as a whole.
const ENTRIES_MAX: usize = 1 << 18;

thread_local! {
    /// Whether this thread asks for an index: what it is told, it knows what to do with.
    static ASKS: Cell<bool> = const { Cell::new(false) };
}

/// This thread asks for an index from here on.
pub(super) fn this_thread_asks() {
    ASKS.set(true);
}

/// Whether it does.
pub(super) fn is_own() -> bool {
    ASKS.get()
}

/// Listings that were given to others, and not compared yet: of each directory the latest.
#[derive(Default)]
pub(super) struct Noticed {
    listings: HashMap<u64, Arc<Listing>>,
    entries: usize,
}

impl Noticed {
    /// Keeps one. False if there is no room for it.
    pub fn put(&mut self, dir: u64, listing: &Arc<Listing>) -> bool {
        if self.entries + listing.len() > ENTRIES_MAX {
            return false;
        }
        self.entries += listing.len();
        if let Some(old) = self.listings.insert(dir, listing.clone()) {
            self.entries -= old.len();
        }
        true
    }

    pub fn is_empty(&self) -> bool {
        self.listings.is_empty()
    }

    /// All of them, by directory.
    pub fn take(&mut self) -> HashMap<u64, Arc<Listing>> {
        self.entries = 0;
        std::mem::take(&mut self.listings)
    }
}

impl LiveIndex {
    /// Whether it is news that `name` in the directory with this key leads there, or nowhere. Of a directory that is not known nothing is.
    /// Without a view: that would have the next change copy all that differs from the base.
    pub(super) fn is_news(&self, dir: u64, name: &[u8], found: Option<&Facts>) -> Result<bool> {
        let (base, changes) = (&*self.base, &*self.changes);
        let Some(dir) = changes.dir_of_key(base, dir, &HashSet::new())? else { return Ok(false) };
        let known = changes.lookup(base, dir, name)?.map(|id| changes.facts(base, id)).transpose()?;
        Ok(known.as_ref() != found)
    }
}

impl View {
    /// Hands to `each` the names of the directory with this key that a listing tells otherwise: what is not there, or is something else.
    pub(super) fn news_in(&self, dir: u64, listing: &Listing, each: &mut dyn FnMut(FileName<'_>)) -> Result<()> {
        let Some(dir) = self.dir_of_key(dir)? else { return Ok(()) };
        let mut same = 0;
        for entry in listing.entries_from(0) {
            let known = self.lookup(dir, entry.name.as_bytes())?.map(|id| self.facts(id)).transpose()?;
            match known {
                Some(facts) if (facts.key, facts.kind) == (entry.ino.0, entry.kind) => same += 1,
                _ => each(entry.name),
            }
        }
        let mut count = 0;
        self.each_child(dir, &mut |_, _| {
            count += 1;
            Ok(ControlFlow::Continue(()))
        })?;
        if count == same || listing.is_incomplete() {
            return Ok(());
        }
        let listed: HashSet<&[u8]> = listing.entries_from(0).map(|entry| entry.name.as_bytes()).collect();
        self.each_child(dir, &mut |_, name| {
            if !listed.contains(name)
                && let Ok(name) = FileName::new(name)
            {
                each(name);
            }
            Ok(ControlFlow::Continue(()))
        })
    }
}
