//! One entry of a directory: its name, and what it is.

use std::path::Path;

use adit_core::types::Kind;

use super::content::{Fault, fault_of};
use super::name::{NAME_FILE_LEN_MAX_BYTES, Naming, Reading};
use super::walk::{Listing, Walk, is_temporary};
use super::{Fix, Place, ProblemKind};
use crate::format::DirId;
use crate::format::names::{C9R, C9S, CONTENTS_FILE, DIR_FILE, NAME_FILE, SYMLINK_FILE, nfc};
use crate::format::names::{is_long, shorten};
use crate::journal::recover::read_small;

/// Bytes of a `dir.c9r` that the official library wrote, and the most that its health check accepts.
const DIR_FILE_LEN_BYTES: usize = 36;
/// Most bytes of a `dir.c9r` that are read.
const DIR_FILE_READ_MAX_BYTES: usize = 1024;

/// What a folder holds.
#[derive(Default)]
struct Parts {
    name: bool,
    contents: bool,
    dir: bool,
    link: bool,
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
        let naming = match self.naming(dir, stored, &at, parts.as_ref()) {
            Ok(Naming::Foreign(detail)) => return self.note(at, detail),
            Ok(Naming::Version { clear, stored }) => return self.second_version(parent, &clear, &stored, at),
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
            (_, Some(parts)) => self.folder(&subject, dir, stored, parts),
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

    /// Notes a second version of the entry `clear`, which is stored, or would be, as `stored`.
    fn second_version(&mut self, parent: u32, clear: &str, stored: &str, at: String) {
        let path = self.place_in(parent, Some(clear)).known().map(str::to_owned);
        let shown = path.as_deref().unwrap_or(clear);
        let folder = at.rsplit_once('/').map_or("", |(folder, _)| folder);
        let how = match self.root.stat(Path::new(&format!("{folder}/{stored}"))) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                format!("while nothing has the vault open, name it {stored}")
            }
            _ => format!(
                "copy {shown} out of the vault; then, while nothing has the vault open, move {stored} out of this folder \
                 and give its name to this"
            ),
        };
        let detail =
            format!("a second version of {shown}, as sync programs make them; no mount shows it. To get at it, {how}");
        self.note_of(path, at, detail);
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
                other => self.note(format!("{at}/{other}"), "not a part of the entry".to_owned()),
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
            Naming::Sound(_) | Naming::Sealed | Naming::Foreign(_) | Naming::Version { .. } => {}
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
                report(self, kind, "the folder is neither a file, nor a directory, nor a link", Fix::Aside);
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
