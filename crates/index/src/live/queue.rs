//! What may have changed, and was not asked for yet: bounded, whatever happens meanwhile.
//!
//! Names are noted one by one as long as there are not too many. Then it is only noted of a directory that something in it
//! changed, so all of it is listed again; and if there are too many directories, that the whole tree is to be walked again. So nobody who
//! makes changes ever waits for the index.

use hashbrown::{HashMap, HashSet};

/// Names noted one by one.
pub(super) const NAMES_MAX: usize = 1 << 16;
/// Directories in which something changed.
pub(super) const DIRS_MAX: usize = 1 << 16;
/// Inodes whose attributes may have changed.
pub(super) const ATTRS_MAX: usize = 1 << 20;

/// What may have changed in a directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// These names.
    Some(HashSet<Box<[u8]>>),
    /// Any.
    All,
}

/// A directory in which something may have changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dirty {
    pub names: Names,
    /// Whether the engine was told to keep it known for us.
    pub is_kept: bool,
}

/// See the module's notes.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub dirs: HashMap<u64, Dirty>,
    names: usize,
    pub attrs: HashSet<u64>,
    /// Likewise, and they could not be asked for once: what leads to them was moving.
    pub attrs_again: HashSet<u64>,
    /// There was too much of it: nothing else counts.
    pub everything: bool,
    /// Directories that were kept known for what does not count any more: each is to be given back.
    pub released: Vec<u64>,
}

impl Pending {
    /// How much there is to ask.
    pub fn len(&self) -> usize {
        self.names + self.dirs.len() + self.attrs.len() + self.attrs_again.len()
    }

    /// Notes a name. `keep` is called for a directory of which nothing was noted yet, and says whether it is kept known.
    pub fn name(&mut self, dir: u64, name: &[u8], keep: impl FnOnce() -> bool) {
        if self.everything {
            return;
        }
        let (full, no_more_dirs) = (self.names >= NAMES_MAX, self.dirs.len() >= DIRS_MAX);
        match self.dirs.get_mut(&dir) {
            Some(Dirty { names: Names::All, .. }) => return,
            Some(Dirty { names: Names::Some(names), .. }) if names.contains(name) => return,
            Some(dirty) if full => {
                if let Names::Some(names) = std::mem::replace(&mut dirty.names, Names::All) {
                    self.names -= names.len();
                }
                return;
            }
            Some(Dirty { names: Names::Some(names), .. }) => drop(names.insert(name.into())),
            None if no_more_dirs => return self.give_up(),
            None => {
                let names = if full { Names::All } else { Names::Some(HashSet::from_iter([name.into()])) };
                self.dirs.insert(dir, Dirty { names, is_kept: keep() });
            }
        }
        self.names += usize::from(!full);
    }

    /// Notes that anything in a directory may have changed. `keep` is as for [`Pending::name`].
    pub fn all_in(&mut self, dir: u64, keep: impl FnOnce() -> bool) {
        if self.everything {
            return;
        }
        let no_more_dirs = self.dirs.len() >= DIRS_MAX;
        match self.dirs.get_mut(&dir) {
            Some(dirty) => {
                if let Names::Some(names) = std::mem::replace(&mut dirty.names, Names::All) {
                    self.names -= names.len();
                }
            }
            None if no_more_dirs => self.give_up(),
            None => drop(self.dirs.insert(dir, Dirty { names: Names::All, is_kept: keep() })),
        }
    }

    /// Notes an inode.
    pub fn inode(&mut self, ino: u64) {
        if self.everything || self.attrs.contains(&ino) {
            return;
        }
        if self.attrs.len() >= ATTRS_MAX {
            return self.give_up();
        }
        self.attrs.insert(ino);
    }

    /// Notes that everything may have changed.
    pub fn give_up(&mut self) {
        let mut released = std::mem::take(&mut self.released);
        released.extend(self.kept());
        *self = Pending { everything: true, released, ..Pending::default() };
    }

    /// The directories that are kept known for what is noted.
    pub fn kept(&self) -> impl Iterator<Item = u64> + '_ {
        self.dirs.iter().filter(|(_, dirty)| dirty.is_kept).map(|(dir, _)| *dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_bounded_and_nothing_is_missing() {
        let mut pending = Pending::default();
        for n in 0..NAMES_MAX + 10 {
            pending.name(7, format!("{n}").as_bytes(), || true);
        }
        assert_eq!(pending.dirs[&7], Dirty { names: Names::All, is_kept: true });
        assert_eq!((pending.names, pending.dirs.len()), (0, 1));
        // As there is room again, names count.
        for name in [b"a", b"a", b"b"] {
            pending.name(8, name, || false);
        }
        assert_eq!((pending.names, pending.len()), (2, 4));
        pending.inode(5);
        for dir in 0..2 * DIRS_MAX as u64 {
            pending.name(100 + dir, b"x", || dir % 2 == 0);
        }
        assert!(pending.everything && pending.dirs.is_empty() && pending.attrs.is_empty());
        let kept = std::mem::take(&mut pending.released);
        assert_eq!(kept.len(), 1 + (DIRS_MAX - 2) / 2, "each that was kept is given back, once");
        pending.name(1, b"y", || unreachable!("nothing else counts"));
        pending.inode(5);
        assert!(pending.attrs.is_empty() && pending.released.is_empty());
    }
}
