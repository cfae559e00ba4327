//! A directory that is being walked: what it says of itself, once all that was listed in it was found.
//!
//! A name that was listed may be gone when it is opened: removed, or it is another name now. Which of these it is, only another listing can tell. So
//! a directory is passed on when everything in it was opened, and listed again before that as often as something was gone. What was found in it is
//! known again by the hashes of names and inode numbers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use adit_core::types::Kind;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::listing::Known;
use crate::segment::NodeId;

/// How often a directory is listed again in which something was gone each time. One thing that is renamed all the time is found by each listing with
/// even odds.
const GONE_TRIES: u32 = 32;
/// Likewise one that changes while it is listed in several steps, where nothing was gone: what was renamed may have evaded all of them.
const CHANGED_TRIES: u32 = 4;
/// So much of a directory is known again, in hashes of 8 bytes, two of each thing.
const SEEN_MAX: usize = 2 << 20;

/// Waits a little between a listing and a look at what it has, more with each time: who renames waits for a listing to end as well, and goes on
/// then, so that all looks would come too late alike.
pub(super) fn fall_out_of_step(tries: u32) {
    if tries > 2 {
        std::thread::sleep(Duration::from_micros(u64::from(tries) * 37));
    }
}

/// What was found in a directory.
#[derive(Default)]
pub(super) struct Seen {
    /// Hashes of names and inode numbers.
    keys: Vec<u64>,
    /// So many of them are of listings before this one, and sorted.
    sorted: usize,
    /// Whether there was too much of it to be kept.
    is_full: bool,
}

fn name_key(name: &[u8]) -> u64 {
    xxh3_64(name)
}

/// `None` of a file with several names, which are all to be found.
fn inode_key(known: &Known) -> Option<u64> {
    (known.kind == Kind::Directory || known.names == 1).then(|| dir_key(known))
}

/// By what a directory is known again, under whatever name.
pub(super) fn dir_key(known: &Known) -> u64 {
    let both = [known.device.to_le_bytes(), known.ino.to_le_bytes()];
    xxh3_64_with_seed(both.as_flattened(), 1)
}

impl Seen {
    pub fn add(&mut self, name: &[u8], known: &Known) {
        if self.is_full {
            return;
        }
        self.keys.push(name_key(name));
        self.keys.extend(inode_key(known));
        // What is listed again was known to have room.
        if self.keys.len() > SEEN_MAX && self.sorted == 0 {
            *self = Seen { keys: Vec::new(), sorted: 0, is_full: true };
        }
    }

    fn has(&self, key: u64) -> bool {
        self.keys.get(..self.sorted).is_some_and(|keys| keys.binary_search(&key).is_ok())
    }

    /// Forgets what is gone, for another listing.
    fn forget(&mut self, gone: &[Gone]) {
        let mut keys: Vec<u64> = gone.iter().flat_map(|gone| gone.keys.into_iter().flatten()).collect();
        keys.sort_unstable();
        self.keys.retain(|key| keys.binary_search(key).is_err());
        self.keys.sort_unstable();
        self.sorted = self.keys.len();
    }

    /// Whether the name was found in a listing before this one.
    pub fn has_name(&self, name: &[u8]) -> bool {
        self.has(name_key(name))
    }

    /// Whether the same thing was found under another name, which it had before.
    pub fn has_inode(&self, known: &Known) -> bool {
        inode_key(known).is_some_and(|key| self.has(key))
    }
}

/// Something that was listed, and gone when it was opened.
struct Gone {
    keys: [Option<u64>; 2],
    is_dir: bool,
}

/// What is to be done once nothing is under way in a directory.
pub(super) enum Next {
    /// It is listed again, for the so-manieth time.
    Again(u32),
    /// Names in it could not be found, however often it was listed.
    Doubt,
    /// It is passed on, with why not all of it could be read.
    End(Vec<u8>),
}

#[derive(Default)]
struct State {
    seen: Seen,
    gone: Vec<Gone>,
    /// Whether it changed while it was listed.
    has_changed: bool,
    tries: u32,
    why: Vec<u8>,
}

/// The state of a directory between its listing and its end.
pub(super) struct Unfinished {
    pub known: Known,
    pub node: Option<NodeId>,
    /// What is under way: a listing of it, directories that are to be opened, groups of files that are to be read.
    under_way: AtomicUsize,
    state: Mutex<State>,
}

impl Unfinished {
    /// One that is about to be listed.
    pub fn new(known: Known, node: Option<NodeId>) -> Unfinished {
        Unfinished { known, node, under_way: AtomicUsize::new(1), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So much more is under way. Whoever says so has something under way himself, or was told [`Next::Again`].
    pub fn enter(&self, count: usize) {
        self.under_way.fetch_add(count, Ordering::Relaxed);
    }

    /// Something is done. If that was the last, it is told what comes next.
    pub fn leave(&self) -> Option<Next> {
        let was = self.under_way.fetch_sub(1, Ordering::AcqRel);
        (was == 1).then(|| self.next())
    }

    fn next(&self) -> Next {
        let mut state = self.state();
        let gone = std::mem::take(&mut state.gone);
        let has_changed = std::mem::take(&mut state.has_changed);
        let tries_max = if gone.is_empty() { CHANGED_TRIES } else { GONE_TRIES };
        let is_lost = match state.seen.is_full {
            // Files that nobody can find again are taken for removed, as in such a directory something always is.
            true => gone.iter().any(|gone| gone.is_dir),
            false if (gone.is_empty() && !has_changed) || state.tries >= tries_max => !gone.is_empty(),
            false => {
                state.tries += 1;
                state.seen.forget(&gone);
                self.enter(1);
                return Next::Again(state.tries);
            }
        };
        if is_lost {
            self.enter(1);
            return Next::Doubt;
        }
        state.seen = Seen::default();
        Next::End(std::mem::take(&mut state.why))
    }

    /// Something that was found by a listing is not there any more; `known` if it was looked at.
    pub fn gone(&self, name: &[u8], known: Option<&Known>) {
        let keys = [Some(name_key(name)), known.and_then(inode_key)];
        let is_dir = known.is_some_and(|known| known.kind == Kind::Directory);
        self.state().gone.push(Gone { keys, is_dir });
    }

    /// Likewise, of a directory with this [key](dir_key).
    pub fn gone_dir(&self, name: &[u8], key: u64) {
        self.state().gone.push(Gone { keys: [Some(name_key(name)), Some(key)], is_dir: true });
    }

    pub fn changed(&self) {
        self.state().has_changed = true;
    }

    /// Not all of it could be read.
    pub fn mark(&self, why: Vec<u8>) {
        self.state().why = why;
    }

    /// What was found so far, for the one who lists it.
    pub fn take_seen(&self) -> Seen {
        std::mem::take(&mut self.state().seen)
    }

    pub fn put_seen(&self, seen: Seen) {
        self.state().seen = seen;
    }
}
