//! One entry of a directory: its name, and what it is.

use std::path::Path;

use adit_core::ErrorKind;
use adit_core::types::Kind;

use super::conflicts::{Conflict, Kept};
use super::content::{Fault, fault_of};
use super::name::{NAME_FILE_LEN_MAX_BYTES, Naming, Reading, Version};
use super::walk::{Later, Listing, Walk, is_temporary};
use super::{Fix, Place, ProblemKind};
use crate::format::DirId;
use crate::format::names::{C9R, C9S, CONTENTS_FILE, DIR_FILE, NAME_FILE, SYMLINK_FILE, nfc};
use crate::format::names::{is_long, shorten};
use crate::journal::recover::read_small;
use crate::version::{self, part_of_copy, suffix_of};

/// Bytes of a `dir.c9r` that the official library wrote, and the most that its health check accepts.
const DIR_FILE_LEN_BYTES: usize = 36;
/// Most bytes of a `dir.c9r` that are read.
const DIR_FILE_READ_MAX_BYTES: usize = 1024;

/// Longest part of an entry that is compared with another.
const PART_LEN_MAX_BYTES: usize = 64 << 10;

/// What a folder holds.
#[derive(Default)]
struct Parts {
    name: bool,
    contents: bool,
    dir: bool,
    link: bool,
    /// Second versions of parts: of which, and their names.
    copies: Vec<(&'static str, String)>,
}

/// An entry under examination.
struct Subject {
    /// Index of its directory.
    parent: u32,
    /// Ciphertext path.
    at: String,
    /// Cleartext name, if it is known.
    clear: Option<String>,
    /// Where it is in cleartext.
    path: Place,
}

impl Walk<'_> {
    pub(super) fn entry(&mut self, parent: u32, dir: Option<&DirId>, stored: &str, kind: Option<Kind>, at: String) {
        let kind = match kind {
            Some(kind) => kind,
            None => match self.root.stat(Path::new(&at)) {
                Ok(attr) => attr.kind,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return,
                Err(e) => return self.host_error(self.place_of(parent), &at, &e.into()),
            },
        };
        let parts = match (kind, stored.ends_with(C9S)) {
            (Kind::Directory, _) => match self.parts(parent, &at) {
                Some(parts) => Some(parts),
                None => return,
            },
            _ => None,
        };
        let mut is_version = false;
        let naming = match self.naming(dir, stored, &at, parts.as_ref()) {
            Ok(Naming::Foreign(detail)) => return self.note(at, detail),
            Ok(Naming::Version(version)) => match dir.and_then(|dir| self.second_version(parent, dir, version, &at)) {
                Some(shown) => {
                    is_version = true;
                    Naming::Sound(shown)
                }
                None => return,
            },
            Ok(naming) => naming,
            Err(e) => return self.host_error(self.place_of(parent), &at, &e),
        };
        let clear = match &naming {
            Naming::Sound(clear) | Naming::Wrong { clear, .. } => Some(clear.clone()),
            _ => None,
        };
        let path = self.place_in(parent, clear.as_deref());
        let subject = Subject { parent, at, clear, path };
        let in_place = match (kind, &parts) {
            (Kind::File, _) if stored.ends_with(C9R) => {
                self.file(&subject, &subject.at);
                true
            }
            (_, Some(parts)) => {
                dir.iter().for_each(|dir| self.copies_of_parts(&subject, dir, &parts.copies));
                let named = if is_version { self.named_directory(&subject) } else { None };
                match named {
                    // Where an entry of its own leads to it as well, that one counts.
                    Some(id) => {
                        let name = subject.clear.clone();
                        self.later.push(Later { parent, name, id, at: subject.at.clone() });
                        true
                    }
                    _ => self.folder(&subject, dir, stored, parts),
                }
            }
            _ => {
                let detail = "neither a file nor a folder, or a file under the name of a folder";
                let Subject { at, path, .. } = &subject;
                self.problem(ProblemKind::UnknownEntry, path.clone(), at.clone(), detail, Some(Fix::Aside));
                false
            }
        };
        if in_place {
            self.judge(subject, dir, naming);
        }
    }

    /// Notes a second version of an entry; returns the cleartext name under which mounts show it. None if they do not.
    fn second_version(&mut self, parent: u32, dir: &DirId, version: Version, at: &str) -> Option<String> {
        let (content, _) = at.rsplit_once('/')?;
        let at_content = |stored: &str| Path::new(content).join(stored);
        let root = self.root;
        let is_there = |stored: &str| root.stat(&at_content(stored)).is_ok();
        let first = format!("{content}/{}", version.first);
        let same = [DIR_FILE, SYMLINK_FILE].iter().any(|part| {
            let ours = self.part_at(parent, &format!("{at}/{part}"));
            ours.is_some() && ours == self.part_at(parent, &format!("{first}/{part}"))
        });
        let reading =
            Reading { names: &self.names, dir: Some((dir, self.names.dir_context(dir))), threshold: self.threshold };
        let taken = |name: &str, stored: &str| self.shown.contains(name) || is_there(stored);
        let shown = if same { None } else { version.shown(&reading, is_there(&version.first), taken) };
        let path = self.place_in(parent, Some(&version.clear)).known().map(str::to_owned);
        let shown_path = self.place_in(parent, shown.as_deref()).known().map(str::to_owned);
        let subject = path.as_deref().unwrap_or(&version.clear);
        let way = match (&shown_path, same) {
            (_, true) => "it is the same as the first one, and can be removed".to_owned(),
            (Some(shown), _) => format!(
                "mounts show it as {shown}, where it can be read, renamed and removed. `adit vault conflicts DIR --keep PATH` keeps the one of \
                 these paths that you name, and puts the other into /lost+found"
            ),
            (None, _) => format!(
                "no mount shows it: there are too many. While nothing has the vault open, name it {}",
                version.first
            ),
        };
        let detail = format!("a second version of {subject}, as sync programs make them; {way}");
        self.note_of(path.clone(), at.to_owned(), detail);
        self.conflict(Conflict {
            path,
            shown: shown_path,
            ciphertext_path: at.to_owned(),
            same,
            kept: Kept::Entry { dir: dir.clone(), name: version.clear, first },
        });
        self.shown.extend(shown.clone());
        shown
    }

    /// Notes second versions of the parts of an entry, whose name is known now. The directory that one of a `dir.c9r` names is walked later, if
    /// no entry leads to it.
    fn copies_of_parts(&mut self, subject: &Subject, dir: &DirId, copies: &[(&'static str, String)]) {
        let Some(clear) = &subject.clear else { return };
        for (part, copy) in copies {
            let at = format!("{}/{copy}", subject.at);
            let suffix = suffix_of(part, copy);
            let ours = if *part == CONTENTS_FILE { None } else { self.part_at(subject.parent, &at) };
            let same = ours.is_some() && ours == self.part_at(subject.parent, &format!("{}/{part}", subject.at));
            let path = subject.path.known().map(str::to_owned);
            let shown = self.free_name(dir, clear, suffix);
            let shown = self.place_in(subject.parent, shown.as_deref()).known().map(str::to_owned);
            let shown = shown.filter(|_| *part != NAME_FILE && !same);
            let of = path.as_deref().unwrap_or(clear);
            let way = match (&shown, same) {
                (_, true) => "it is the same as the first one, and can be removed".to_owned(),
                (Some(shown), _) => format!(
                    "no mount shows it. `adit vault conflicts DIR --keep {of}` keeps what mounts show, and `--keep {shown}` this one; the other is \
                     put into /lost+found"
                ),
                (None, _) => "it says nothing that the vault needs, and can be removed".to_owned(),
            };
            self.note_of(
                path.clone(),
                at.clone(),
                format!("a second version of {of} (of its {part}), as sync programs make them; {way}"),
            );
            if *part == DIR_FILE
                && !same
                && let Some(id) = ours.and_then(|bytes| DirId::parse(&bytes).ok())
            {
                let name = shown.as_deref().and_then(|shown| shown.rsplit('/').next()).map(str::to_owned);
                self.later.push(Later { parent: subject.parent, name, id, at: at.clone() });
            }
            if shown.is_some() || same {
                let kept = Kept::Part { dir: dir.clone(), name: clear.clone(), part };
                self.conflict(Conflict { path, shown, ciphertext_path: at, same, kept });
            }
        }
    }

    /// What a small file of an entry holds; None if it is not there. That the host does not read it is reported.
    fn part_at(&mut self, parent: u32, at: &str) -> Option<Vec<u8>> {
        match read_small(self.root, at, PART_LEN_MAX_BYTES) {
            Ok(bytes) => bytes,
            // Of a file there are no parts.
            Err(e) if e.kind() == ErrorKind::NotDirectory || fault_of(&e).0 != ProblemKind::HostError => None,
            Err(e) => {
                self.host_error(self.place_of(parent), at, &e);
                None
            }
        }
    }

    /// The first name for a second version of `clear` in `dir` that is no entry's.
    fn free_name(&mut self, dir: &DirId, clear: &str, suffix: &str) -> Option<String> {
        let content = self.names.dir_hash_path(dir);
        let len_max_bytes = version::clear_len_max_bytes(self.threshold).max(clear.len());
        let name = version::shown_names(clear, suffix, len_max_bytes).find(|name| {
            let full = self.names.encrypt_name(name, dir);
            let stored = full.map(|full| if is_long(&full, self.threshold) { shorten(&full) } else { full });
            let is_there = |stored: String| self.root.stat(Path::new(&format!("{content}/{stored}"))).is_ok();
            name != clear && !self.shown.contains(name) && !stored.is_ok_and(is_there)
        })?;
        self.shown.insert(name.clone());
        Some(name)
    }

    /// What the folder at `at` holds; None if it cannot be listed, which is then reported.
    fn parts(&mut self, parent: u32, at: &str) -> Option<Parts> {
        let listing = match Listing::read(self.root, at) {
            Ok(listing) => listing,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return None,
            Err(e) => {
                self.host_error(self.place_of(parent), at, &e.into());
                return None;
            }
        };
        let mut parts = Parts::default();
        for (name, _) in listing.iter() {
            match &*name {
                NAME_FILE => parts.name = true,
                CONTENTS_FILE => parts.contents = true,
                DIR_FILE => parts.dir = true,
                SYMLINK_FILE => parts.link = true,
                other if is_temporary(other) => self.interrupted(self.place_of(parent), format!("{at}/{other}")),
                other => match part_of_copy(other) {
                    Some(part) => parts.copies.push((part, other.to_owned())),
                    None => self.note(format!("{at}/{other}"), "not a part of the entry".to_owned()),
                },
            }
        }
        Some(parts)
    }

    fn naming(
        &self,
        dir: Option<&DirId>,
        stored: &str,
        at: &str,
        parts: Option<&Parts>,
    ) -> Result<Naming, adit_core::FsError> {
        let dir = dir.map(|id| (id, self.names.dir_context(id)));
        let reading = Reading { names: &self.names, dir, threshold: self.threshold };
        if stored.ends_with(C9R) {
            return Ok(reading.short(stored));
        }
        let name_file = format!("{at}/{NAME_FILE}");
        let bytes = match parts {
            Some(Parts { name: true, .. }) => match read_small(self.root, &name_file, NAME_FILE_LEN_MAX_BYTES) {
                Err(e) if fault_of(&e).0 == ProblemKind::HostError => return Err(e),
                Err(_) => Some(Vec::new()),
                Ok(bytes) => bytes,
            },
            _ => None,
        };
        let folder = at.strip_suffix(stored).unwrap_or(at);
        let taken = |name: &str| name != stored && self.root.stat(Path::new(&format!("{folder}{name}"))).is_ok();
        Ok(reading.long(stored, bytes.as_deref(), &taken))
    }

    /// Reports what is wrong with a name, now that the entry itself is something.
    fn judge(&mut self, subject: Subject, dir: Option<&DirId>, naming: Naming) {
        let Subject { at, path, .. } = subject;
        match naming {
            Naming::Sound(_) | Naming::Sealed | Naming::Foreign(_) | Naming::Version(_) => {}
            Naming::Broken { kind, detail } => self.problem(kind, path, at, detail, Some(Fix::Adopt)),
            Naming::Wrong { clear, kind, detail, fix } => {
                let twin = match (&fix, dir) {
                    (Fix::Rename { .. }, Some(dir)) => self.has_twin(dir, &clear, &at),
                    _ => false,
                };
                match twin {
                    false => self.problem(kind, path, at, detail, Some(fix)),
                    true => {
                        let detail = format!("another entry has this name; and {detail}");
                        self.problem(ProblemKind::DuplicateName, path, at, detail, Some(fix));
                    }
                }
            }
        }
    }

    /// Whether the name, stored as it should be, is another entry's; or an earlier one's that is to get it as well.
    fn has_twin(&mut self, dir: &DirId, clear: &str, at: &str) -> bool {
        let Ok(full) = self.names.encrypt_name(clear, dir) else { return false };
        let stored = if is_long(&full, self.threshold) { shorten(&full) } else { full };
        let right = format!("{}/{stored}", self.names.dir_hash(dir));
        let there = right != at && self.root.stat(Path::new(&right)).is_ok();
        !self.normalised.insert(nfc(clear).into_owned()) || there
    }

    fn fault(&mut self, subject: &Subject, at: String, (kind, detail): Fault) {
        self.problem(kind, subject.path.clone(), at, detail, None);
    }

    fn file(&mut self, subject: &Subject, at: &str) {
        self.report.files += 1;
        match self.file_fault(at) {
            Some(fault) => self.fault(subject, at.to_owned(), fault),
            None => self.look_for_note(subject.path.known(), at),
        }
    }

    /// False if the folder is to go as a whole, whatever its name.
    fn folder(&mut self, subject: &Subject, dir: Option<&DirId>, stored: &str, parts: &Parts) -> bool {
        let long = stored.ends_with(C9S);
        let report = |walk: &mut Self, kind, detail: &str, fix| {
            walk.problem(kind, subject.path.clone(), subject.at.clone(), detail, Some(fix));
        };
        let stay = |name: &Option<String>| match (dir, name) {
            (Some(dir), Some(name)) => Fix::Rename { dir: dir.clone(), name: name.clone() },
            _ => Fix::Adopt,
        };
        match (parts.contents, parts.dir, parts.link) {
            (false, false, false) => {
                let kind = if long { ProblemKind::BrokenLongName } else { ProblemKind::UnknownEntry };
                let mut detail = "the folder is neither a file, nor a directory, nor a link".to_owned();
                let is_copied = parts.copies.iter().any(|(part, _)| *part != NAME_FILE);
                if is_copied {
                    detail.push_str(
                        ", but has a second version of one: `adit vault conflicts --keep` gives that the place",
                    );
                }
                let fix = (!is_copied).then_some(Fix::Aside);
                self.problem(kind, subject.path.clone(), subject.at.clone(), detail, fix);
                return false;
            }
            (true, false, false) if long => self.file(subject, &format!("{}/{CONTENTS_FILE}", subject.at)),
            (true, false, false) => {
                let detail = "the folder holds the content of a shortened name, but is none";
                report(self, ProblemKind::UnknownEntry, detail, stay(&subject.clear));
                return false;
            }
            (false, true, false) => return self.dir_file(subject, false),
            (false, false, true) => self.link(subject),
            _ => {
                let fix = Fix::Split { name: subject.clear.clone() };
                let detail = "the folder is several of a file, a directory and a link";
                report(self, ProblemKind::AmbiguousEntry, detail, fix);
                if parts.dir {
                    self.dir_file(subject, true);
                }
            }
        }
        true
    }

    fn link(&mut self, subject: &Subject) {
        self.report.symlinks += 1;
        self.tell(0);
        let at = format!("{}/{SYMLINK_FILE}", subject.at);
        if let Some(Err(fault)) = self.reader.link(&at) {
            self.fault(subject, at, fault);
        }
    }

    /// The directory that the folder of a second version names, if it does.
    fn named_directory(&mut self, subject: &Subject) -> Option<DirId> {
        let bytes = self.part_at(subject.parent, &format!("{}/{DIR_FILE}", subject.at))?;
        DirId::parse(&bytes).ok()
    }

    /// Follows a directory's entry. In an `ambiguous` one, a `dir.c9r` that leads nowhere is no news.
    fn dir_file(&mut self, subject: &Subject, ambiguous: bool) -> bool {
        let Subject { parent, at, clear, path } = subject;
        let file = format!("{at}/{DIR_FILE}");
        let bytes = match read_small(self.root, &file, DIR_FILE_READ_MAX_BYTES) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return true,
            Err(e) if fault_of(&e).0 == ProblemKind::HostError => {
                self.host_error(path.clone(), &file, &e);
                return true;
            }
            Err(_) => Vec::new(),
        };
        let len = bytes.len();
        match DirId::parse(&bytes) {
            Ok(id) if ambiguous && self.root.stat(Path::new(&self.names.dir_hash_path(&id))).is_err() => true,
            Ok(id) => {
                if len > DIR_FILE_LEN_BYTES && !ambiguous {
                    let detail = format!("its dir.c9r has {len} bytes; other programs refuse more than 36");
                    self.problem(ProblemKind::BadDirFile, path.clone(), at.clone(), detail, None);
                }
                self.claim(*parent, clear.as_deref(), id, at, path.clone());
                true
            }
            Err(_) if ambiguous => true,
            Err(e) => {
                // More than an id: if the id in front leads to a directory that tells the same, it is the right one.
                let front = bytes.get(..DIR_FILE_LEN_BYTES).and_then(|front| DirId::parse(front).ok());
                let proven = front.filter(|id| self.is_free(id));
                let fix = proven.clone().map_or(Fix::Aside, Fix::WriteDirFile);
                let whole = proven.is_some();
                self.problem(ProblemKind::BadDirFile, path.clone(), at.clone(), format!("{DIR_FILE}: {e}"), Some(fix));
                if let Some(id) = proven {
                    self.claim(*parent, clear.as_deref(), id, at, path.clone());
                }
                whole
            }
        }
    }
}
