//! A live index as it is at one time.

use std::ops::ControlFlow;
use std::sync::Arc;

use adit_core::error::{ErrorKind, Result};
use adit_core::types::Kind;
use hashbrown::HashSet;

use super::base::{Base, Facts};
use super::changes::{Changes, EachChild, LiveId};
use super::source::Unread;
use crate::ContentHash;

/// Gets entries with their paths below the root; see [`View::walk`].
pub type EachEntry<'e> = dyn FnMut(LiveId, &[u8], &Facts) -> Result<ControlFlow<()>> + 'e;

/// A tree that does not change. Cheap to clone; see [`super::LiveIndex::view`].
#[derive(Clone)]
pub struct View {
    pub(super) base: Arc<Base>,
    pub(super) changes: Arc<Changes>,
    generation: u64,
    unread: Arc<Unread>,
}

/// What a path leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// This entry.
    Entry(LiveId),
    /// Nothing: `deepest` has no entry of the name number `component`, counted from 0.
    Missing {
        /// The last directory on the way that there is.
        deepest: LiveId,
        /// Which name of the path is not there.
        component: usize,
    },
    /// Nothing: `at`, which the name number `component` leads to, is no directory, and the path goes on.
    NotDirectory {
        /// What is there.
        at: LiveId,
        /// Which name of the path leads to it.
        component: usize,
    },
}

impl View {
    pub(super) fn new(base: Arc<Base>, changes: Arc<Changes>, generation: u64) -> View {
        View { base, changes, generation, unread: Arc::default() }
    }

    /// With what could not be read of it.
    pub(super) fn with_unread(self, unread: Arc<Unread>) -> View {
        View { unread, ..self }
    }

    /// How many directories could not all be read.
    pub fn unread_count(&self) -> u64 {
        self.unread.count
    }

    /// Whether something may be in a directory that could not be read. What is missing in it need not be absent.
    pub fn is_unread(&self, id: LiveId) -> Result<bool> {
        if self.unread.count == 0 {
            return Ok(false);
        }
        let facts = self.facts(id)?;
        Ok(facts.kind == Kind::Directory && self.unread.has(facts.key))
    }

    /// How many batches of changes there had been.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether it is what the base says.
    pub fn is_base(&self) -> bool {
        self.changes.is_empty()
    }

    /// What it rests on.
    pub fn base(&self) -> &Arc<Base> {
        &self.base
    }

    /// How many entries there are, the root among them. Takes a look at each difference from the base.
    pub fn entries(&self) -> Result<u64> {
        self.changes.entries(&self.base)
    }

    /// What is known of an entry.
    pub fn facts(&self, id: LiveId) -> Result<Facts> {
        self.changes.facts(&self.base, id)
    }

    /// The hash of a file's content, where the store knows it: in the namespace of a manifest, and of what an overlay shows of one as it was.
    pub fn hash(&self, id: LiveId) -> Result<Option<ContentHash>> {
        if id.0 < self.base.len()
            && !self.changes.has_other_attrs(id.0)
            && let Some(hash) = self.base.hash(id.0)?
        {
            return Ok(Some(hash));
        }
        self.base.original(&self.facts(id)?)
    }

    /// What an entry is.
    pub fn kind(&self, id: LiveId) -> Result<Kind> {
        self.changes.kind(&self.base, id)
    }

    /// The name of an entry; empty of the root.
    pub fn name(&self, id: LiveId) -> Result<&[u8]> {
        self.changes.name(&self.base, id)
    }

    /// The directory that an entry is in; the root is in itself.
    pub fn parent(&self, id: LiveId) -> Result<LiveId> {
        Ok(self.changes.parent(&self.base, id)?.unwrap_or(LiveId::ROOT))
    }

    /// The entry `name` of a directory.
    ///
    /// # Errors
    /// `NotDirectory` if `dir` is none; `Corrupt` if the base is damaged.
    pub fn lookup(&self, dir: LiveId, name: &[u8]) -> Result<Option<LiveId>> {
        if self.kind(dir)? != Kind::Directory {
            return Err(ErrorKind::NotDirectory.into());
        }
        self.changes.lookup(&self.base, dir, name)
    }

    /// Hands the entries of a directory to `each`, in the order of their names' bytes.
    ///
    /// # Errors
    /// As [`View::lookup`], and those of `each`.
    pub fn each_child(&self, dir: LiveId, each: &mut EachChild<'_>) -> Result<()> {
        if self.kind(dir)? != Kind::Directory {
            return Err(ErrorKind::NotDirectory.into());
        }
        self.changes.each_child(&self.base, dir, each)
    }

    /// The path of an entry below the root, without a slash in front.
    pub fn path(&self, id: LiveId) -> Result<Vec<u8>> {
        let (mut at, mut names) = (id, Vec::new());
        while at != LiveId::ROOT {
            names.push(self.name(at)?);
            at = self.parent(at)?;
        }
        names.reverse();
        Ok(names.join(&b'/'))
    }

    /// As [`View::path`], in place of what `path` has.
    pub(super) fn path_into(&self, id: LiveId, path: &mut Vec<u8>) -> Result<()> {
        path.clear();
        let mut at = id;
        // From the end to the beginning, then turned round name by name: no memory but the path's.
        while at != LiveId::ROOT {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(self.name(at)?.iter().rev());
            at = self.parent(at)?;
        }
        path.reverse();
        Ok(())
    }

    /// What `path` leads to from the directory `start`, or from the root if it begins with a slash. `.` and `..` are understood; `..` of the
    /// root is the root. Symbolic links are not followed.
    pub fn resolve(&self, start: LiveId, path: &[u8]) -> Result<Found> {
        let mut at = if path.first() == Some(&b'/') { LiveId::ROOT } else { start };
        let mut taken = 0;
        let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        for (component, name) in names.enumerate() {
            if self.kind(at)? != Kind::Directory {
                return Ok(Found::NotDirectory { at, component: taken });
            }
            match name {
                b"." => {}
                b".." => at = self.parent(at)?,
                name => match self.changes.lookup(&self.base, at, name)? {
                    Some(id) => at = id,
                    None => return Ok(Found::Missing { deepest: at, component }),
                },
            }
            taken = component;
        }
        if path.last() == Some(&b'/') && self.kind(at)? != Kind::Directory {
            return Ok(Found::NotDirectory { at, component: taken });
        }
        Ok(Found::Entry(at))
    }

    /// The directory with this key of the store.
    pub fn dir_of_key(&self, key: u64) -> Result<Option<LiveId>> {
        self.changes.dir_of_key(&self.base, key, &HashSet::new())
    }

    /// All entries with this key of the store: the names of one file.
    pub fn of_key(&self, key: u64) -> Result<Vec<LiveId>> {
        let mut found = Vec::new();
        self.changes.of_key(&self.base, key, &mut found)?;
        Ok(found)
    }

    /// Shows `start` and all that is below it to `each`, with the paths below the root: a directory before what is in it, entries
    /// of one directory by the order of their names' bytes. [`ControlFlow::Break`] passes over what is below an entry.
    ///
    /// # Errors
    /// Those of `each`, which end it; `Corrupt` if the base is damaged.
    pub fn walk(&self, start: LiveId, each: &mut EachEntry<'_>) -> Result<()> {
        let mut path = self.path(start)?;
        let facts = self.facts(start)?;
        if each(start, &path, &facts)?.is_break() || facts.kind != Kind::Directory {
            return Ok(());
        }
        // Of each directory on the way its path's length, and what is left of its entries, the last one first.
        let mut levels = vec![(path.len(), self.children_of(start)?)];
        while let Some((len, left)) = levels.last_mut() {
            path.truncate(*len);
            let Some(id) = left.pop() else {
                levels.pop();
                continue;
            };
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(self.name(id)?);
            let facts = self.facts(id)?;
            if each(id, &path, &facts)?.is_continue() && facts.kind == Kind::Directory {
                levels.push((path.len(), self.children_of(id)?));
            }
        }
        Ok(())
    }

    /// The entries of a directory, the last one first.
    fn children_of(&self, dir: LiveId) -> Result<Vec<LiveId>> {
        let mut children = Vec::new();
        self.changes.each_child(&self.base, dir, &mut |id, _| {
            children.push(id);
            Ok(ControlFlow::Continue(()))
        })?;
        children.reverse();
        Ok(children)
    }
}
