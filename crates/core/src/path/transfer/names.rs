//! Names of one directory that are one name in the target. A vault has one spelling of each, and many hosts take capitals and
//! small letters for the same: a second name would take the place of what was copied a moment ago.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::error::{ErrorKind, FsError, Result};

/// The entries that a copy made in one directory of the target, with the names that they were made under. `I` is what tells an
/// entry from others there.
#[derive(Debug)]
pub(super) struct Names<I> {
    by_entry: HashMap<I, Box<[u8]>>,
    /// Hashes of the names in small letters: a host that makes its inode numbers up gives each spelling another one.
    small: HashSet<u64>,
    /// Whether the copy made the directory, so that nothing in it was there before.
    is_new: bool,
}

impl<I> Default for Names<I> {
    fn default() -> Self {
        Names { by_entry: HashMap::new(), small: HashSet::new(), is_new: false }
    }
}

impl<I: Eq + Hash> Names<I> {
    /// Of a directory that the copy is about to fill.
    pub(super) fn new(is_new: bool) -> Self {
        Names { is_new, ..Names::default() }
    }

    /// `entry` was made under `name`.
    pub(super) fn note(&mut self, entry: I, name: &[u8]) {
        self.small.insert(small(name));
        self.by_entry.insert(entry, name.into());
    }

    /// What is to be copied as `name` finds `there` in its place. `Exists` if that came with this copy; a directory that `merges`
    /// goes into one of the same name. `is_listed` tells whether the target has the name in this spelling.
    pub(super) fn check(&self, name: &[u8], there: &I, merges: bool, is_listed: impl FnOnce() -> bool) -> Result<()> {
        let made = self.by_entry.get(there).map(AsRef::as_ref);
        let first = made.or_else(|| self.other_spelling(name).filter(|_| !is_listed()));
        let why = match first {
            None if !self.is_new => return Ok(()),
            None => "another entry is in its place, in a folder that this copy made".to_owned(),
            Some(first) if *first == *name && merges => return Ok(()),
            Some(first) if *first == *name => "another one of that name was copied before it, and stays".to_owned(),
            Some(first) => {
                let first = String::from_utf8_lossy(first);
                format!(
                    "its name is the same there as {first}, which was copied before it, and stays; rename one of them"
                )
            }
        };
        Err(FsError::new(ErrorKind::Exists).because(why))
    }

    /// A name that was made, and differs in capitals alone.
    fn other_spelling(&self, name: &[u8]) -> Option<&[u8]> {
        let wanted = small(name);
        let is_other = |made: &&[u8]| **made != *name && small(made) == wanted;
        let mut made = self.by_entry.values().map(AsRef::as_ref);
        self.small.contains(&wanted).then(|| made.find(is_other)).flatten()
    }
}

/// The hash of a name in small letters.
fn small(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    String::from_utf8_lossy(name).to_lowercase().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_name_for_what_a_copy_made_is_refused() {
        let mut names = Names::new(false);
        let is_refused = |names: &Names<i32>, name: &[u8], there, merges, listed: bool| {
            names.check(name, &there, merges, || listed).is_err_and(|e| e.kind() == ErrorKind::Exists)
        };
        assert!(!is_refused(&names, b"a", 1, false, true));
        names.note(1, b"a");
        let told = names.check(b"A", &1, false, || true).unwrap_err().to_string();
        assert!(told.contains("the same there as a,"), "{told}");
        assert!(is_refused(&names, b"A", 1, true, true) && is_refused(&names, b"a", 1, false, true));
        assert!(!is_refused(&names, b"a", 1, true, true) && !is_refused(&names, b"b", 2, false, true));
        // By a number that was made up; and on a host with both names.
        assert!(is_refused(&names, b"A", 2, false, false) && !is_refused(&names, b"A", 2, false, true));
        assert!(is_refused(&Names::new(true), b"b", 2, false, true));
    }
}
