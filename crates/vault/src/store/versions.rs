//! Second versions of entries (see [`crate::version`]), as a mounted vault shows them: beside the entry, under a name that is made of its own.
//!
//! On the host nothing is renamed. Which name leads to which file is found by a listing, the first lookup of a name that is not there being
//! one as well, and is kept for each directory. It may be out of date: whoever finds nothing where such a name leads [forgets](Versions::forget)
//! it, and looks where the name belongs.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;

use super::Shared;
use super::entries::{Sealed, StoredEntry};
use super::nodes::DirNode;
use crate::check::name::{NAME_FILE_LEN_MAX_BYTES, Naming, Reading, Version};
use crate::format::DirId;
use crate::format::names::{C9R, C9S, DIR_FILE, DirContext, NAME_FILE, SYMLINK_FILE};
use crate::journal::recover::read_small;
use crate::version::part_of_copy;

/// Directories with second versions that are remembered, and second versions of each.
const DIRS_MAX: usize = 1000;
const VERSIONS_MAX: usize = 1000;
/// Copies of parts that were told of; all are told again then.
const TOLD_MAX: usize = 10_000;
/// Longest `dir.c9r` or `symlink.c9r` that is compared.
const PART_LEN_MAX_BYTES: usize = 64 << 10;

/// Where a shown name leads: the name of the host's file, and the entry's encrypted name.
#[derive(Clone, PartialEq, Eq)]
struct Place {
    stored: Box<str>,
    full: Box<str>,
}

/// What is known of them. Its locks are leaves.
#[derive(Default)]
pub(super) struct Versions {
    by_dir: Mutex<HashMap<DirId, HashMap<Box<str>, Place>>>,
    /// Directories among them. Most vaults have none, and who looks for a name then takes no lock.
    dirs: AtomicUsize,
    /// Paths of what the log has told of.
    told: Mutex<HashSet<Box<str>>>,
}

impl Versions {
    /// Where the name leads, if it is that of a second version.
    pub fn sealed(&self, dir: &DirId, name: &str) -> Option<Sealed> {
        if self.dirs.load(Ordering::Acquire) == 0 {
            return None;
        }
        let place = self.by_dir.lock().get(dir)?.get(name)?.clone();
        let long = place.stored.ends_with(C9S);
        Some(Sealed { full: place.full.into(), stored: place.stored.into(), long })
    }

    /// The name leads there no more; false if it was not known to.
    pub fn forget(&self, dir: &DirId, name: &str) -> bool {
        if self.dirs.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut by_dir = self.by_dir.lock();
        by_dir.get_mut(dir).is_some_and(|names| names.remove(name).is_some())
    }

    /// These are the second versions in `dir` now.
    fn set(&self, dir: &DirId, names: HashMap<Box<str>, Place>) {
        if names.is_empty() && self.dirs.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut by_dir = self.by_dir.lock();
        if names.is_empty() {
            by_dir.remove(dir);
        } else {
            if by_dir.len() >= DIRS_MAX {
                by_dir.clear();
            }
            by_dir.insert(dir.clone(), names);
        }
        self.dirs.store(by_dir.len(), Ordering::Release);
    }

    /// Whether the log is to tell of what lies at `path`: once.
    pub fn is_news(&self, path: &str) -> bool {
        let mut told = self.told.lock();
        if told.len() >= TOLD_MAX {
            told.clear();
        }
        told.insert(path.into())
    }
}

/// What a file or folder is whose name is that of no entry.
pub(super) enum Oddity {
    /// A second version, with the name under which it is shown.
    Version(String),
    /// Nothing of the vault's, or nothing that tells more than what is there.
    Foreign,
    /// An entry whose name is lost.
    Lost,
}

impl Shared {
    /// What the files with odd names in `dir` are, in their order: that of their names. `is_stored` tells which names there are in the
    /// directory. From then on their shown names lead to them.
    pub(super) fn examine_odd(
        &self,
        dir: &DirNode,
        odd: &mut [StoredEntry],
        is_stored: impl Fn(&str) -> bool,
    ) -> Vec<Oddity> {
        odd.sort_unstable_by(|a, b| a.stored.cmp(&b.stored));
        let content = dir.hash.path();
        let reading = self.reading(&dir.id, dir.context);
        let mut known: HashMap<Box<str>, Place> = HashMap::new();
        let mut found = Vec::with_capacity(odd.len());
        for StoredEntry { stored, .. } in odd.iter() {
            let path = format!("{content}/{stored}");
            found.push(match self.naming_of(&reading, &path, stored) {
                Naming::Version(version) if known.len() < VERSIONS_MAX && !self.is_same_version(&content, &path, &version) => {
                    let taken = |name: &str, at: &str| known.contains_key(name) || is_stored(at);
                    match version.shown(&reading, is_stored(&version.first), taken) {
                        Some(name) => {
                            let place = Place { stored: stored.clone(), full: version.full.into() };
                            known.insert(name.as_str().into(), place);
                            if self.versions.is_news(&path) {
                                tracing::warn!(
                                    "{path}: a second version of an entry, as sync programs make them, is shown beside it; \
                                     `adit vault conflicts` lists such versions, and keeps the one or the other"
                                );
                            }
                            Oddity::Version(name)
                        }
                        None => Oddity::Foreign,
                    }
                }
                Naming::Version(_) | Naming::Foreign(_) => Oddity::Foreign,
                _ => Oddity::Lost,
            });
        }
        self.versions.set(&dir.id, known);
        dir.set_surveyed();
        found
    }

    fn reading<'a>(&'a self, id: &'a DirId, context: DirContext) -> Reading<'a> {
        Reading { names: &self.names, dir: Some((id, context)), threshold: self.threshold }
    }

    fn naming_of(&self, reading: &Reading<'_>, path: &str, stored: &str) -> Naming {
        if !stored.ends_with(C9S) {
            return reading.short(stored);
        }
        let bytes = read_small(&*self.root, &format!("{path}/{NAME_FILE}"), NAME_FILE_LEN_MAX_BYTES);
        reading.long(stored, bytes.ok().flatten().as_deref(), &|_| true)
    }

    /// Whether the file or folder `stored` in the content folder of the directory `id` is nothing of the vault's, and nobody's version of an
    /// entry, so that it may go with the directory.
    pub(super) fn goes_with_its_directory(&self, id: &DirId, stored: &str) -> bool {
        let content = self.names.dir_hash(id).path();
        let (reading, path) = (self.reading(id, self.names.dir_context(id)), format!("{content}/{stored}"));
        if !(stored.ends_with(C9R) || stored.ends_with(C9S)) {
            return !reading.holds_authentic(stored);
        }
        match self.naming_of(&reading, &path, stored) {
            Naming::Foreign(_) => true,
            Naming::Version(version) => self.is_same_version(&content, &path, &version),
            _ => false,
        }
    }

    /// Whether the folder at `path` in the content folder `content` is the directory, or the link, that the entry itself is: Cryptomator's own
    /// clients remove it then.
    fn is_same_version(&self, content: &str, path: &str, version: &Version) -> bool {
        let part = |folder: &str, part: &str| {
            read_small(&*self.root, &format!("{folder}/{part}"), PART_LEN_MAX_BYTES).ok().flatten()
        };
        let first = format!("{content}/{}", version.first);
        [DIR_FILE, SYMLINK_FILE].iter().any(|name| {
            let ours = part(path, name);
            ours.is_some() && ours == part(&first, name)
        })
    }

    /// Looks for second versions in `dir`, if nobody has listed it since it is known. Whether there are any. One that cannot be listed has none
    /// that anybody could know of.
    pub(super) fn survey(&self, dir: &DirNode) -> bool {
        if dir.is_surveyed() {
            return false;
        }
        let Ok(mut entries) = self.stored_entries(dir) else { return false };
        let is_odd = |stored: &str| !self.open_name(dir, stored).is_ok_and(|name| name.is_ok());
        // A folder with a hash for a name is looked into only where it is none by its form.
        let is_hash = |stored: &str| stored.len() == C9S_LEN && stored.ends_with(C9S);
        let odd = entries.iter().filter(|entry| !is_hash(&entry.stored) && is_odd(&entry.stored));
        let mut odd: Vec<StoredEntry> = odd.cloned().collect();
        entries.sort_unstable_by(|a, b| a.stored.cmp(&b.stored));
        let is_stored = |at: &str| entries.binary_search_by(|entry| (*entry.stored).cmp(at)).is_ok();
        let found = self.examine_odd(dir, &mut odd, is_stored);
        found.iter().any(|oddity| matches!(oddity, Oddity::Version(_)))
    }

    /// Tells once of second versions of the parts of the entry whose folder is at `path`.
    pub(super) fn tell_copies_of_parts(&self, path: &str) {
        let mut copies = Vec::new();
        let listed = self.root.list(Path::new(path), &mut |e| {
            let name = String::from_utf8_lossy(e.name);
            copies.extend(part_of_copy(&name).map(|_| format!("{path}/{name}")));
        });
        if listed.is_err() {
            return;
        }
        for copy in copies.iter().filter(|copy| self.versions.is_news(copy)) {
            tracing::warn!(
                "{copy}: a second version of a part of an entry, as sync programs make them; no mount shows it. `adit vault conflicts` \
                 tells of which entry it is, and keeps the one or the other"
            );
        }
    }
}

/// Characters of a folder with a hash for a name.
const C9S_LEN: usize = 32;
