//! Second versions of entries, and the choice between them.
//!
//! As a repair does, nothing is deleted or overwritten: what is not kept goes to `/lost+found`, in steps of one rename each.

use std::path::Path;

use adit_core::media::{HostDir, SyncTarget};
use adit_core::{ErrorKind, FsError, Result};

use super::moves::Mover;
use crate::format::names::{DIR_FILE, MAX_DIR_ID_BYTES, SYMLINK_FILE};
use crate::format::{ContentCipher, DirId, NameCipher};
use crate::journal::recover::read_small;
use crate::vault::Unlocked;

/// A second version of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conflict {
    /// Cleartext path of the entry; None where that is not known.
    pub path: Option<String>,
    /// Cleartext path under which mounts show the second version. One of a part of an entry they do not show: what it is called here.
    pub shown: Option<String>,
    /// Path of the host's file or folder, relative to the vault.
    pub ciphertext_path: String,
    /// Whether it says what the first version says: then nothing shows it, and nothing is lost with it.
    pub same: bool,
    pub(super) kept: Kept,
}

impl Conflict {
    /// The part of the entry that it is a version of; None of the whole entry.
    #[must_use]
    pub fn part(&self) -> Option<&'static str> {
        match self.kept {
            Kept::Entry { .. } => None,
            Kept::Part { part, .. } => Some(part),
        }
    }
}

/// What there are two of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Kept {
    /// An entry, by the directory, the cleartext name and the ciphertext path of the first version.
    Entry { dir: DirId, name: String, first: String },
    /// A file in the folder of an entry.
    Part { dir: DirId, name: String, part: &'static str },
}

/// A step of [`keep`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolution {
    /// Ciphertext path of what was moved, as it was.
    pub ciphertext_path: String,
    /// Where it is now: a sentence for people.
    pub action: String,
}

/// Keeps the version at the cleartext path `path`: that of the entry, or one under which a second version is shown. It gets the entry's
/// name, and all others go to `/lost+found`. `conflicts` are those of a [check](super::check); the vault must not be mounted.
///
/// # Errors
/// `NotFound` if there are no two versions of what lies there; what the host says. What was moved before an error stays where it is.
pub fn keep(root: &dyn HostDir, keys: &Unlocked, conflicts: &[Conflict], path: &str) -> Result<Vec<Resolution>> {
    let none = || {
        let why = "there are no two versions of what lies there; `adit vault conflicts` lists those that there are";
        FsError::new(ErrorKind::NotFound).on("keep", path).because(why)
    };
    let chosen = conflicts.iter().find(|c| c.shown.as_deref() == Some(path));
    let entry = chosen.map_or(Some(path), |c| c.path.as_deref()).ok_or_else(none)?;
    let all: Vec<&Conflict> = conflicts.iter().filter(|c| c.path.as_deref() == Some(entry)).collect();
    if all.is_empty() {
        return Err(none());
    }
    let content = ContentCipher::new(&keys.masterkey, keys.config.cipher_combo)
        .map_err(|e| FsError::new(ErrorKind::Io).on("keep", path).because(e))?;
    let mover = Mover::new(root, NameCipher::new(&keys.masterkey), content, keys.config.shortening_threshold);
    let mut choice = Choice { mover, done: Vec::new() };
    for other in all.iter().filter(|c| chosen.is_none_or(|chosen| chosen != **c)) {
        choice.put_away(other)?;
    }
    if let Some(chosen) = chosen {
        choice.put_first_away(chosen)?;
        choice.put_in_place(chosen)?;
    }
    root.sync(SyncTarget::All).map_err(|e| FsError::from(e).on("sync", "the vault"))?;
    Ok(choice.done)
}

struct Choice<'a> {
    mover: Mover<'a>,
    done: Vec<Resolution>,
}

impl Choice<'_> {
    fn moved(&mut self, at: &str, to: &str) {
        self.done.push(Resolution { ciphertext_path: at.to_owned(), action: format!("moved to {to}") });
    }

    /// Puts a second version into `/lost+found`.
    fn put_away(&mut self, conflict: &Conflict) -> Result<()> {
        let at = &conflict.ciphertext_path;
        let shown = conflict.shown.as_deref().and_then(|path| path.rsplit('/').next());
        let to = match &conflict.kept {
            _ if conflict.same => self.mover.aside(at)?,
            Kept::Entry { name, .. } => self.entry_to_lost_and_found(at, shown.unwrap_or(name))?,
            Kept::Part { name, part, .. } => self.part_to_lost_and_found(at, part, shown.unwrap_or(name))?,
        };
        self.moved(at, &to);
        Ok(())
    }

    /// Puts what has the name of the entry into `/lost+found`, if there is anything.
    fn put_first_away(&mut self, conflict: &Conflict) -> Result<()> {
        let (first, name, part) = match &conflict.kept {
            Kept::Entry { first, name, .. } => (first.clone(), name, None),
            Kept::Part { name, part, .. } => (first_of(&conflict.ciphertext_path, part), name, Some(part)),
        };
        if self.mover.find(&first)?.is_none() {
            return Ok(());
        }
        let to = match part {
            None => self.entry_to_lost_and_found(&first, name)?,
            Some(part) => self.part_to_lost_and_found(&first, part, name)?,
        };
        self.moved(&first, &to);
        Ok(())
    }

    /// Gives a second version the name of the entry, which is free.
    fn put_in_place(&mut self, conflict: &Conflict) -> Result<()> {
        let at = &conflict.ciphertext_path;
        let to = match &conflict.kept {
            Kept::Entry { dir, name, .. } => self.mover.move_entry(at, dir, name)?,
            Kept::Part { part, .. } => {
                let first = first_of(at, part);
                self.mover.rename(at, &first)?.then_some(first)
            }
        };
        let Some(to) = to else {
            let why = "something has taken the name of the entry meanwhile; nothing else was moved";
            return Err(FsError::new(ErrorKind::Exists).on("keep", at).because(why));
        };
        self.moved(at, &to);
        Ok(())
    }

    fn entry_to_lost_and_found(&mut self, at: &str, name: &str) -> Result<String> {
        self.mover.put_in_lost_and_found(name, |m, dir, name| m.move_entry(at, dir, name))
    }

    fn part_to_lost_and_found(&mut self, at: &str, part: &str, name: &str) -> Result<String> {
        match part {
            SYMLINK_FILE => self.mover.put_in_lost_and_found(name, |m, dir, name| m.move_link(at, dir, name)),
            DIR_FILE => {
                let id = read_small(self.mover.root, at, MAX_DIR_ID_BYTES)?.and_then(|id| DirId::parse(&id).ok());
                let content = id.as_ref().map(|id| self.mover.names.dir_hash_path(id));
                let is_there = content.is_some_and(|content| self.mover.root.stat(Path::new(&content)).is_ok());
                // First the new entry: whatever cuts this off leaves one that leads to the directory.
                let to = match id.filter(|_| is_there) {
                    Some(id) => Some(self.mover.put_in_lost_and_found(name, |m, dir, n| m.link_dir(&id, dir, n))?),
                    None => None,
                };
                let aside = self.mover.aside(at)?;
                Ok(to.unwrap_or(aside))
            }
            _ => self.entry_to_lost_and_found(at, name),
        }
    }
}

/// The part beside its second version.
fn first_of(copy: &str, part: &str) -> String {
    let folder = copy.rsplit_once('/').map_or("", |(folder, _)| folder);
    format!("{folder}/{part}")
}
