//! What the requests of a mount met that `EIO` hides.
//!
//! To the kernel damage is `EIO`, as a failing disk, a dead network and a missing object are, and so it is to every program on the mount. A
//! command of ours that works through the mount asks for more: what a request about that inode met since the command began.

use std::collections::VecDeque;

use adit_core::types::Ino;
use adit_core::{ErrorKind, FsError};
use parking_lot::Mutex;

/// Most inodes that are remembered; of more, those that were met last.
const INODES_MAX: usize = 64;

/// See the module's notes.
#[derive(Debug, Default)]
pub(crate) struct Damage(Mutex<Met>);

#[derive(Debug, Default)]
struct Met {
    /// Requests that met something of the kind, ever.
    count: u64,
    /// One for each inode, the one that was met last at the end.
    latest: VecDeque<One>,
}

#[derive(Debug)]
struct One {
    ino: Ino,
    /// Which of the requests it was, from 1.
    number: u64,
    kind: ErrorKind,
    what: String,
}

impl Damage {
    /// A request about `ino` ended with `error`.
    pub(crate) fn note(&self, ino: Ino, error: &FsError) {
        let kind = error.kind();
        // Damage says something by itself, the others with a cause.
        let is_told = match kind {
            ErrorKind::Corrupt => true,
            ErrorKind::Io | ErrorKind::Network => error.cause().is_some(),
            _ => false,
        };
        if !is_told {
            return;
        }
        let what = error.cause().map_or_else(|| error.to_string(), |cause| cause.to_string());
        let met = &mut *self.0.lock();
        met.count += 1;
        met.latest.retain(|one| one.ino != ino);
        if met.latest.len() >= INODES_MAX {
            met.latest.pop_front();
        }
        met.latest.push_back(One { ino, number: met.count, kind, what });
    }

    /// How many requests met something of the kind so far.
    pub(crate) fn count(&self) -> u64 {
        self.0.lock().count
    }

    /// What a request about one of `inodes` met after the first `count`, and of what kind that is.
    pub(crate) fn since(&self, count: u64, inodes: &[Ino]) -> Option<(ErrorKind, String)> {
        let met = self.0.lock();
        let found = met.latest.iter().rev().find(|one| one.number > count && inodes.contains(&one.ino))?;
        Some((found.kind, found.what.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_told_of_the_inode_and_only_if_it_was_met_since() {
        let damage = Damage::default();
        let corrupt = |why: &str| FsError::new(ErrorKind::Corrupt).on("read", "/f").because(why);
        damage.note(Ino(5), &corrupt("block 7"));
        damage.note(Ino(6), &ErrorKind::Io.into());
        assert_eq!(damage.count(), 1, "an error that says no more than its number is none");
        let since = |count, inodes: &[Ino]| damage.since(count, inodes).map(|(kind, what)| (kind, what.leak() as &str));
        assert_eq!(since(0, &[Ino(4), Ino(5)]), Some((ErrorKind::Corrupt, "block 7")));
        assert_eq!((damage.since(1, &[Ino(5)]), damage.since(0, &[Ino(6)])), (None, None));
        damage.note(Ino(5), &corrupt("block 8"));
        assert_eq!(since(1, &[Ino(5)]), Some((ErrorKind::Corrupt, "block 8")));
        damage.note(Ino(9), &ErrorKind::Corrupt.into());
        assert_eq!(since(0, &[Ino(9)]), Some((ErrorKind::Corrupt, "corrupt data")));
        damage.note(Ino(7), &FsError::new(ErrorKind::Io).on("read", "/f").because("it is not in the store"));
        assert_eq!(since(0, &[Ino(7)]), Some((ErrorKind::Io, "it is not in the store")));
    }

    #[test]
    fn what_is_remembered_has_an_end() {
        let damage = Damage::default();
        for ino in 1..=1000 {
            damage.note(Ino(ino), &ErrorKind::Corrupt.into());
        }
        assert_eq!(damage.0.lock().latest.len(), INODES_MAX);
        assert!(damage.since(0, &[Ino(1000)]).is_some() && damage.since(0, &[Ino(1)]).is_none());
        assert_eq!(damage.count(), 1000);
    }
}
