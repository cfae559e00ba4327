//! The walk over a vault's directories, breadth first, and over the content directories that it did not reach.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;

use adit_core::media::HostDir;
use adit_core::types::Kind;
use adit_core::{ErrorKind, FsError, Result};

use super::conflicts::Conflict;
use super::content::{Reader, fault_of};
use super::{Fix, NOTES_MAX, Note, Options, PROBLEMS_MAX, Place, Problem, ProblemKind, Progress, Report};
use crate::format::content::object;
use crate::format::names::{C9R, C9S, DATA_DIR, DIRID_FILE};
use crate::format::{ContentCipher, DirHash, DirId, NameCipher};
use crate::journal::recover::{ASIDE_DIR, read_small};
use crate::journal::temporary;
use crate::vault::Unlocked;

/// The directory at which a walk begins has no parent.
const NO_PARENT: u32 = u32::MAX;

/// A directory that was found.
struct Dir {
    parent: u32,
    /// None where it is not known; empty for a directory at which a walk begins.
    name: Option<Box<str>>,
    /// None in a content directory that no entry names and that does not tell.
    id: Option<DirId>,
    hash: DirHash,
    /// Whether no entry that leads here has been found (yet).
    orphan: bool,
}

/// A directory that a second version of a `dir.c9r` names.
pub(super) struct Later {
    pub parent: u32,
    /// Under which it could be shown.
    pub name: Option<String>,
    pub id: DirId,
    /// The second version.
    pub at: String,
}

/// The names in one folder of the host, in one piece of memory, sorted.
#[derive(Default)]
pub(super) struct Listing {
    text: Vec<u8>,
    entries: Vec<(u32, u16, Option<Kind>)>,
}

impl Listing {
    pub fn read(root: &dyn HostDir, path: &str) -> std::io::Result<Listing> {
        let mut listing = Listing::default();
        root.list(Path::new(path), &mut |e| {
            // A host's name is at most a few hundred bytes, and four gigabytes of names are beyond every folder.
            if let (Ok(start), Ok(len)) = (u32::try_from(listing.text.len()), u16::try_from(e.name.len())) {
                listing.text.extend_from_slice(e.name);
                listing.entries.push((start, len, e.kind));
            }
        })?;
        let Listing { text, entries } = &mut listing;
        entries.sort_unstable_by_key(|&(start, len, _)| text.get(start as usize..start as usize + usize::from(len)));
        Ok(listing)
    }

    /// Names and kinds. A name that is not UTF-8 is owned, with replacement characters, and no entry of any vault.
    pub fn iter(&self) -> impl Iterator<Item = (Cow<'_, str>, Option<Kind>)> {
        self.entries.iter().filter_map(|&(start, len, kind)| {
            let name = self.text.get(start as usize..start as usize + usize::from(len))?;
            Some((String::from_utf8_lossy(name), kind))
        })
    }
}

/// A temporary of ours: of the store, or of the medium below it.
pub(super) fn is_temporary(name: &str) -> bool {
    temporary::whose(name).is_some()
}

/// Whether a name in a content directory has the form of an entry's.
fn is_entry(name: &str) -> bool {
    (name.ends_with(C9R) || name.ends_with(C9S)) && name != DIRID_FILE && !is_temporary(name)
}

pub(super) struct Walk<'a> {
    pub(super) root: &'a dyn HostDir,
    pub(super) names: NameCipher,
    pub(super) content: ContentCipher,
    pub(super) threshold: u32,
    pub(super) options: Options,
    pub(super) reader: Reader<'a>,
    pub(super) report: Report,
    progress: &'a mut dyn FnMut(Progress),
    dirs: Vec<Dir>,
    queue: VecDeque<u32>,
    /// Which directory has a content directory.
    claims: HashMap<DirHash, u32>,
    /// Normalised names of this directory's entries that were not normalised.
    pub(super) normalised: HashSet<String>,
    /// Names under which second versions in this directory are shown.
    pub(super) shown: HashSet<String>,
    /// Directories that only second versions of a `dir.c9r` name, as far as is known.
    pub(super) later: Vec<Later>,
    /// Whether everything that could name a directory was read.
    complete: bool,
}

impl<'a> Walk<'a> {
    pub fn new(
        root: &'a dyn HostDir,
        keys: &Unlocked,
        options: Options,
        progress: &'a mut dyn FnMut(Progress),
    ) -> Result<Self> {
        let content = ContentCipher::new(&keys.masterkey, keys.config.cipher_combo)
            .map_err(|e| FsError::new(ErrorKind::Io).on("check", "the vault").because(e))?;
        Ok(Walk {
            root,
            names: NameCipher::new(&keys.masterkey),
            reader: Reader::new(root, content.clone()),
            content,
            threshold: keys.config.shortening_threshold,
            options,
            report: Report::default(),
            progress,
            dirs: Vec::new(),
            queue: VecDeque::new(),
            claims: HashMap::new(),
            normalised: HashSet::new(),
            shown: HashSet::new(),
            later: Vec::new(),
            complete: true,
        })
    }

    pub fn run(mut self) -> Result<Report> {
        self.vault_folder();
        let root = DirId::root();
        let hash = self.names.dir_hash(&root);
        if let Some(at) =
            self.add(Dir { parent: NO_PARENT, name: Some("".into()), id: Some(root), hash, orphan: false })
        {
            self.queue.push_back(at);
        }
        self.drain();
        self.of_second_versions();
        self.unreached();
        Ok(self.report)
    }

    fn drain(&mut self) {
        while let Some(at) = self.queue.pop_front() {
            self.directory(at);
        }
    }

    /// The directories that second versions name, once it is known which of them have an entry of their own.
    fn of_second_versions(&mut self) {
        while let Some(Later { parent, name, id, at }) = self.later.pop() {
            if !self.claims.contains_key(&self.names.dir_hash(&id)) {
                let path = self.place_in(parent, name.as_deref());
                self.claim(parent, name.as_deref(), id, &at, path);
                self.drain();
            }
        }
    }

    /// Takes note of a second version.
    pub(super) fn conflict(&mut self, conflict: Conflict) {
        if self.report.conflicts.len() < NOTES_MAX {
            self.report.conflicts.push(conflict);
        }
    }

    /// None beyond four thousand million directories.
    fn add(&mut self, dir: Dir) -> Option<u32> {
        let at = u32::try_from(self.dirs.len()).ok().filter(|&at| at != NO_PARENT)?;
        self.claims.insert(dir.hash, at);
        self.dirs.push(dir);
        Some(at)
    }

    /// Temporaries beside `d`, and what recovery and repair put there.
    fn vault_folder(&mut self) {
        match Listing::read(self.root, "") {
            Err(e) => self.host_error(Place::default(), "", &e.into()),
            Ok(listing) => {
                for (name, _) in listing.iter() {
                    if is_temporary(&name) {
                        self.interrupted(Place::default(), name.into_owned());
                    } else if name == ASIDE_DIR && self.holds_something(ASIDE_DIR) {
                        let detail = "what recovery or repair found no place for; look through it, then remove it";
                        self.note(name.into_owned(), detail.to_owned());
                    }
                }
            }
        }
    }

    /// Whether there is anything but folders in a folder of the host; also if that cannot be told.
    fn holds_something(&self, folder: &str) -> bool {
        let mut queue = vec![folder.to_owned()];
        while let Some(folder) = queue.pop() {
            let Ok(listing) = Listing::read(self.root, &folder) else { return true };
            for (name, kind) in listing.iter() {
                let path = format!("{folder}/{name}");
                match kind.or_else(|| self.root.stat(Path::new(&path)).ok().map(|attr| attr.kind)) {
                    Some(Kind::Directory) => queue.push(path),
                    _ => return true,
                }
            }
        }
        false
    }

    fn directory(&mut self, at: u32) {
        let Some(dir) = self.dirs.get(at as usize) else { return };
        let (id, hash) = (dir.id.clone(), dir.hash);
        let content = hash.path();
        let listing = match Listing::read(self.root, &content) {
            Ok(listing) => listing,
            Err(e) => return self.unlistable(at, id, &content, e),
        };
        self.report.directories += 1;
        self.tell(0);
        self.normalised.clear();
        self.shown.clear();
        let mut has_id = false;
        for (name, kind) in listing.iter() {
            let path = format!("{content}/{name}");
            if matches!(name, Cow::Owned(_)) {
                self.note(path, "not an entry of the vault: its name is not UTF-8".to_owned());
            } else if name == DIRID_FILE {
                has_id = true;
                self.dir_id_file(at, id.as_ref(), &path);
            } else if is_temporary(&name) {
                self.interrupted(self.place_of(at), path);
            } else if is_entry(&name) {
                self.entry(at, id.as_ref(), &name, kind, path);
            } else {
                self.note(path, "not an entry of the vault".to_owned());
            }
        }
        self.tell_of_rescues(at, &content, listing.iter().filter(|(name, _)| is_entry(name)).count());
        if let (false, Some(id)) = (has_id, id) {
            let (path, fix) = (self.place_of(at), Fix::WriteDirId(id));
            let detail = "the content directory lacks its dirid.c9r, so its names are lost if its entry is";
            self.problem(ProblemKind::MissingDirId, path, format!("{content}/{DIRID_FILE}"), detail, Some(fix));
        }
    }

    fn unlistable(&mut self, at: u32, id: Option<DirId>, content: &str, e: std::io::Error) {
        let path = self.place_of(at);
        match e.kind() {
            std::io::ErrorKind::NotFound => {
                let fix = id.map(Fix::MakeContentDir);
                let detail = "the directory's content directory does not exist";
                self.problem(ProblemKind::MissingContentDir, path, content.to_owned(), detail, fix);
            }
            std::io::ErrorKind::NotADirectory => {
                let detail = "the directory's content directory is not a folder";
                self.problem(ProblemKind::MissingContentDir, path, content.to_owned(), detail, None);
            }
            _ => self.host_error(path, content, &e.into()),
        }
    }

    fn dir_id_file(&mut self, at: u32, id: Option<&DirId>, path: &str) {
        let Some(id) = id else { return };
        let detail = match read_small(self.root, path, object::max_encoded_bytes(&self.content)) {
            Ok(None) => return,
            Ok(Some(bytes)) => match object::decode_dir_id(&self.content, &bytes) {
                Ok(found) if found == *id => return,
                Ok(_) => "it holds the id of another directory".to_owned(),
                Err(e) => e.to_string(),
            },
            Err(e) => match fault_of(&e) {
                (ProblemKind::HostError, _) => return self.host_error(self.place_of(at), path, &e),
                (_, detail) => detail,
            },
        };
        let fix = Fix::WriteDirId(id.clone());
        self.problem(ProblemKind::BadDirId, self.place_of(at), path.to_owned(), detail, Some(fix));
    }

    /// The directory entry at `entry` in `parent` names `id`. Its content is queued, unless another one has it.
    pub(super) fn claim(&mut self, parent: u32, name: Option<&str>, id: DirId, entry: &str, path: Place) {
        let hash = self.names.dir_hash(&id);
        if let Some(&first) = self.claims.get(&hash) {
            if self.joins(first, parent) {
                if let Some(orphan) = self.dirs.get_mut(first as usize) {
                    (orphan.orphan, orphan.parent, orphan.name) = (false, parent, None);
                }
                return;
            }
            let detail = match self.lies_below(parent, first) {
                true => "the directory holds itself".to_owned(),
                false => match self.path_of(first) {
                    Some(other) => format!("the directory {other} has the same id"),
                    None => "another directory has the same id".to_owned(),
                },
            };
            self.problem(ProblemKind::DuplicateDirId, path, entry.to_owned(), detail, Some(Fix::Aside));
            return;
        }
        let content = hash.path();
        let found = self.root.stat(Path::new(&content));
        let dir = Dir { parent, name: name.map(Into::into), id: Some(id.clone()), hash, orphan: false };
        let Some(at) = self.add(dir) else { return };
        match found {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let detail = format!("its content directory {content} does not exist");
                let fix = Fix::MakeContentDir(id);
                self.problem(ProblemKind::MissingContentDir, path, entry.to_owned(), detail, Some(fix));
            }
            _ => self.queue.push_back(at),
        }
    }

    /// Whether the content directory of `id` is there, tells that id, and no entry has led to it yet.
    pub(super) fn is_free(&self, id: &DirId) -> bool {
        let hash = self.names.dir_hash(id);
        !self.claims.contains_key(&hash) && self.told_id(&hash).ok().flatten().as_ref() == Some(id)
    }

    /// Whether `first` is where a walk over unreached directories began, and an entry in `parent` explains it.
    fn joins(&self, first: u32, parent: u32) -> bool {
        self.dirs.get(first as usize).is_some_and(|d| d.orphan) && !self.lies_below(parent, first)
    }

    fn lies_below(&self, mut at: u32, above: u32) -> bool {
        loop {
            if at == above {
                return true;
            }
            match self.dirs.get(at as usize) {
                Some(dir) if dir.parent != NO_PARENT => at = dir.parent,
                _ => return false,
            }
        }
    }

    /// Content directories that no entry led to.
    fn unreached(&mut self) {
        let hashes = self.content_dirs();
        let mut begun = Vec::new();
        for hash in hashes {
            if self.claims.contains_key(&hash) {
                continue; // below another unreached one
            }
            let id = match self.told_id(&hash) {
                Ok(id) => id,
                Err(e) => {
                    self.host_error(Place::default(), &format!("{hash}/{DIRID_FILE}"), &e);
                    continue;
                }
            };
            let Some(at) = self.add(Dir { parent: NO_PARENT, name: None, id, hash, orphan: true }) else { return };
            self.queue.push_back(at);
            begun.push(at);
            self.drain();
        }
        for at in begun {
            let Some(dir) = self.dirs.get(at as usize).filter(|d| d.orphan) else { continue };
            let (content, id) = (dir.hash.path(), dir.id.clone());
            let detail = match (&id, self.complete) {
                (_, false) => "no directory that could be read leads to it; some could not be read".to_owned(),
                (Some(id), _) => format!("no directory leads to it; its id is {id}"),
                (None, _) => "no directory leads to it, and it does not tell its id, so its names are lost".to_owned(),
            };
            let fix = self.complete.then_some(id.map_or(Fix::EmptyOrphan, Fix::LinkOrphan));
            self.problem(ProblemKind::OrphanedContentDir, Place::default(), content, detail, fix);
        }
    }

    /// The id that a content directory tells of itself, if that is authentic and its own.
    fn told_id(&self, hash: &DirHash) -> Result<Option<DirId>> {
        match read_small(self.root, &format!("{hash}/{DIRID_FILE}"), object::max_encoded_bytes(&self.content)) {
            Ok(bytes) => Ok(bytes
                .and_then(|bytes| object::decode_dir_id(&self.content, &bytes).ok())
                .filter(|id| self.names.dir_hash(id) == *hash && !id.is_root())),
            Err(e) if fault_of(&e).0 == ProblemKind::HostError => Err(e),
            Err(_) => Ok(None),
        }
    }

    /// Content directories that are not claimed, sorted.
    fn content_dirs(&mut self) -> Vec<DirHash> {
        let mut found = Vec::new();
        let prefixes = match Listing::read(self.root, DATA_DIR) {
            Ok(listing) => listing,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return found,
            Err(e) => {
                self.host_error(Place::default(), DATA_DIR, &e.into());
                return found;
            }
        };
        for (prefix, _) in prefixes.iter() {
            let path = format!("{DATA_DIR}/{prefix}");
            let looks_right = prefix.len() == 2 && prefix.bytes().all(|b| matches!(b, b'A'..=b'Z' | b'2'..=b'7'));
            match Listing::read(self.root, &path) {
                Ok(listing) if looks_right => {
                    for (rest, _) in listing.iter() {
                        match DirHash::from_parts(&prefix, &rest) {
                            Some(hash) if self.claims.contains_key(&hash) => {}
                            Some(hash) => match self.root.stat(Path::new(&hash.path())) {
                                Ok(attr) if attr.kind == Kind::Directory => found.push(hash),
                                Ok(_) => self.note(hash.path(), "not a folder".to_owned()),
                                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                                Err(e) => self.host_error(Place::default(), &hash.path(), &e.into()),
                            },
                            None if is_temporary(&rest) => self.interrupted(Place::default(), format!("{path}/{rest}")),
                            None => self.note(format!("{path}/{rest}"), "not a content directory".to_owned()),
                        }
                    }
                }
                Err(e) if looks_right && e.kind() != std::io::ErrorKind::NotADirectory => {
                    self.host_error(Place::default(), &path, &e.into());
                }
                _ if is_temporary(&prefix) => self.interrupted(Place::default(), path),
                _ => self.note(path, "not a folder of content directories".to_owned()),
            }
        }
        found
    }

    /// The name of a directory that lies in the root, where every walk begins.
    pub(super) fn name_in_root(&self, at: u32) -> Option<&str> {
        self.dirs.get(at as usize).filter(|dir| dir.parent == 0)?.name.as_deref()
    }

    /// The cleartext path of a directory.
    pub(super) fn path_of(&self, mut at: u32) -> Option<String> {
        let mut names = Vec::new();
        loop {
            let dir = self.dirs.get(at as usize)?;
            names.push(dir.name.as_deref()?);
            if dir.parent == NO_PARENT {
                break;
            }
            at = dir.parent;
        }
        names.reverse();
        Some(if names.len() == 1 { "/".to_owned() } else { names.join("/") })
    }

    /// Where a directory is; if its path is not known, in which one it is whose path is.
    pub(super) fn place_of(&self, at: u32) -> Place {
        let mut above = at;
        loop {
            if let Some(path) = self.path_of(above) {
                return if above == at { Some(path).into() } else { Place::within(&path) };
            }
            match self.dirs.get(above as usize) {
                Some(dir) if dir.parent != NO_PARENT => above = dir.parent,
                _ => return Place::default(),
            }
        }
    }

    /// Where an entry is.
    pub(super) fn place_in(&self, dir: u32, name: Option<&str>) -> Place {
        match (self.place_of(dir), name) {
            (Place { path: Some(dir), name_known: true }, Some(name)) => {
                Some(format!("{}/{name}", dir.trim_end_matches('/'))).into()
            }
            (Place { path: Some(dir), name_known: true }, None) => Place::within(&dir),
            (below, _) => below,
        }
    }

    pub(super) fn problem(
        &mut self,
        kind: ProblemKind,
        place: Place,
        ciphertext_path: String,
        detail: impl Into<String>,
        fix: Option<Fix>,
    ) {
        if self.report.problems.len() >= PROBLEMS_MAX {
            self.report.problems_omitted += 1;
            return;
        }
        let (detail, repairable, Place { path, name_known }) = (detail.into(), fix.is_some(), place);
        self.report.problems.push(Problem { kind, path, name_known, ciphertext_path, detail, repairable, fix });
    }

    pub(super) fn note(&mut self, ciphertext_path: String, detail: String) {
        self.note_of(None, ciphertext_path, detail);
    }

    /// A note about a second version of the entry at `path`.
    pub(super) fn note_of(&mut self, path: Option<String>, ciphertext_path: String, detail: String) {
        if self.report.notes.len() >= NOTES_MAX {
            self.report.notes_omitted += 1;
        } else {
            self.report.notes.push(Note { path, ciphertext_path, detail });
        }
    }

    /// Something that could name directories was not read.
    pub(super) fn host_error(&mut self, place: Place, ciphertext_path: &str, e: &FsError) {
        self.complete = false;
        self.problem(ProblemKind::HostError, place, ciphertext_path.to_owned(), e.to_string(), None);
    }

    pub(super) fn interrupted(&mut self, place: Place, ciphertext_path: String) {
        let detail = "an operation was interrupted; no entry names this";
        self.problem(ProblemKind::InterruptedOperation, place, ciphertext_path, detail, Some(Fix::Aside));
    }

    /// Reports progress, `bytes` more than before.
    pub(super) fn tell(&mut self, bytes: u64) {
        self.report.bytes += bytes;
        let Report { files, directories, symlinks, bytes, .. } = self.report;
        (self.progress)(Progress { files, directories, symlinks, bytes });
    }

    /// Checks the file at `path`; `bytes` that are read are counted.
    pub(super) fn file_fault(&mut self, path: &str) -> Option<super::content::Fault> {
        let (report, progress) = (&mut self.report, &mut self.progress);
        self.reader.file(path, self.options.contents, &mut |bytes| {
            report.bytes += bytes;
            let Report { files, directories, symlinks, bytes, .. } = *report;
            progress(Progress { files, directories, symlinks, bytes });
        })
    }
}
