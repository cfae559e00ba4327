//! The steps of a repair. Each one that takes something from its place is a rename that replaces nothing.

use std::io;
use std::path::Path;

use adit_core::media::{HostDir, NewFile, SyncTarget};
use adit_core::types::{Attr, Kind, RenameFlags};
use adit_core::{ErrorKind, FsError, Result};

use super::content::Reader;
use crate::format::content::object;
use crate::format::names::{CONTENTS_FILE, DATA_DIR, DIR_FILE, DIRID_FILE, MAX_DIR_ID_BYTES, NAME_FILE, SYMLINK_FILE};
use crate::format::names::{is_long, shorten};
use crate::format::{ContentCipher, DirId, NameCipher};
use crate::journal::recover::{ASIDE_DIR, read_small};
use crate::journal::{owner_beside, temporary};
use crate::perm;

/// Name of the vault's directory for what was found without a name.
pub(super) const LOST_AND_FOUND: &str = "lost+found";
/// Numbers that are tried behind a name, or in front of a path, that is taken.
const TRIES_MAX: u32 = 100_000;

/// Moves things within a vault.
pub(super) struct Mover<'a> {
    pub root: &'a dyn HostDir,
    pub names: NameCipher,
    pub content: ContentCipher,
    pub threshold: u32,
    pub reader: Reader<'a>,
    /// `/lost+found`, once it is known.
    lost: Option<DirId>,
}

/// What an entry is, as far as a move needs to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    /// A file of the host.
    File,
    /// A folder with `contents.c9r`.
    LongFile,
    /// A folder with `dir.c9r`.
    Directory,
    /// A folder with `symlink.c9r`.
    Link,
    /// A folder with none of them.
    Nothing,
}

fn exists(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::AlreadyExists || e.kind() == io::ErrorKind::DirectoryNotEmpty
}

fn new_temporary(folder: &str) -> String {
    format!("{folder}/{}", temporary::name_to_move())
}

impl<'a> Mover<'a> {
    pub fn new(root: &'a dyn HostDir, names: NameCipher, content: ContentCipher, threshold: u32) -> Self {
        let reader = Reader::new(root, content.clone());
        Mover { root, names, content, threshold, reader, lost: None }
    }

    /// The attributes of `path`; None if it is not there.
    pub fn find(&self, path: &str) -> Result<Option<Attr>> {
        match self.root.stat(Path::new(path)) {
            Ok(attr) => Ok(Some(attr)),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
            Err(e) => Err(FsError::from(e).on("look up", path)),
        }
    }

    /// What a repair makes is whose directory it is in: it may run as root, and others must be able to open it.
    fn make_dir(&self, path: &str) -> Result<()> {
        match self.root.make_dir(Path::new(path), perm::folder(self.root, 0), owner_beside(self.root, path)) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other.map_err(|e| FsError::from(e).on("make", path)),
        }
    }

    /// Makes a folder that things can be moved into: it must not be younger than they are.
    fn make_durable_dir(&self, path: &str) -> Result<()> {
        self.make_dir(path)?;
        self.sync(path.rsplit_once('/').map_or("", |(parent, _)| parent))
    }

    fn publish(&self, path: &str, content: &[u8]) -> Result<()> {
        let owner = owner_beside(self.root, path);
        let new = NewFile { content, perm: perm::file(self.root, 0), owner, durable: true };
        self.root.publish(Path::new(path), &new).map(drop).map_err(|e| FsError::from(e).on("write", path))
    }

    /// Renames; false if `to` is taken.
    pub fn rename(&self, from: &str, to: &str) -> Result<bool> {
        match self.root.rename(Path::new(from), Path::new(to), RenameFlags::NOREPLACE) {
            Ok(()) => Ok(true),
            Err(e) if exists(&e) => Ok(false),
            Err(e) => Err(FsError::from(e).on("move", from)),
        }
    }

    /// Moves `path` to the folder beside `d`, under the path that it had; returns where it is.
    pub fn aside(&self, path: &str) -> Result<String> {
        if self.find(ASIDE_DIR)?.is_none() {
            self.make_durable_dir(ASIDE_DIR)?;
        }
        for n in 1..TRIES_MAX {
            let to = format!("{ASIDE_DIR}/{n}/{path}");
            if self.find(&to)?.is_some() {
                continue;
            }
            let mut free = true;
            for folder in to.match_indices('/').skip(1).map(|(at, _)| &to[..at]) {
                // A file of that name may have been moved before.
                free = match self.find(folder)? {
                    Some(attr) => attr.kind == Kind::Directory,
                    None => self.make_durable_dir(folder).map(|()| true)?,
                };
                if !free {
                    break;
                }
            }
            if free && self.rename(path, &to)? {
                return Ok(to);
            }
        }
        Err(FsError::new(ErrorKind::Exists).on("move aside", path))
    }

    /// Makes the content directory of `id`, with its id file.
    pub fn make_content(&self, id: &DirId) -> Result<String> {
        let hash = self.names.dir_hash(id);
        let path = hash.path();
        for folder in [DATA_DIR, &format!("{DATA_DIR}/{}", hash.prefix()), &path] {
            self.make_dir(folder)?;
        }
        self.write_dir_id(id)?;
        Ok(path)
    }

    /// Publishes the id file of `id`. One that is there and not right goes aside first; a right one stays.
    pub fn write_dir_id(&self, id: &DirId) -> Result<String> {
        let path = format!("{}/{DIRID_FILE}", self.names.dir_hash(id));
        if self.find(&path)?.is_some() {
            let bytes = read_small(self.root, &path, object::max_encoded_bytes(&self.content));
            let told = match bytes {
                Err(e) if e.kind() != ErrorKind::IsDirectory && e.kind() != ErrorKind::InvalidInput => return Err(e),
                bytes => bytes.ok().flatten().and_then(|b| object::decode_dir_id(&self.content, &b).ok()),
            };
            if told.as_ref() == Some(id) {
                return Ok(path);
            }
            self.aside(&path)?;
        }
        let bytes = object::encode_dir_id(&self.content, id)
            .map_err(|e| FsError::new(ErrorKind::Io).on("write", &path).because(e))?;
        self.publish(&path, &bytes)?;
        Ok(path)
    }

    /// Gives `folder` the file `name` with this content. One that is there goes aside.
    pub fn write_part(&self, folder: &str, name: &str, content: &[u8]) -> Result<()> {
        let path = format!("{folder}/{name}");
        if self.find(&path)?.is_none() {
            return self.publish(&path, content);
        }
        let fresh = new_temporary(folder);
        self.publish(&fresh, content)?;
        match self.root.rename(Path::new(&fresh), Path::new(&path), RenameFlags::EXCHANGE) {
            Ok(()) => self.aside(&fresh).map(drop),
            // A host that cannot exchange: a crash in between leaves both, one of them aside.
            Err(_) => {
                self.aside(&path)?;
                self.rename(&fresh, &path).map(drop)
            }
        }
    }

    /// Where `name` is stored in `dir`: the path, the full name, and whether that is beyond the threshold.
    fn place(&self, dir: &DirId, name: &str) -> Result<(String, String, bool)> {
        let full = self
            .names
            .encrypt_name(name, dir)
            .map_err(|e| FsError::new(ErrorKind::IllegalName).on("use the name", name).because(e))?;
        let long = is_long(&full, self.threshold);
        let stored = if long { shorten(&full) } else { full.clone() };
        Ok((format!("{}/{stored}", self.names.dir_hash(dir)), full, long))
    }

    /// What the entry at `path` is; None if it is gone.
    pub fn shape(&self, path: &str) -> Result<Option<Shape>> {
        let Some(attr) = self.find(path)? else { return Ok(None) };
        if attr.kind != Kind::Directory {
            return Ok((attr.kind == Kind::File).then_some(Shape::File));
        }
        for (part, shape) in
            [(CONTENTS_FILE, Shape::LongFile), (DIR_FILE, Shape::Directory), (SYMLINK_FILE, Shape::Link)]
        {
            if self.find(&format!("{path}/{part}"))?.is_some() {
                return Ok(Some(shape));
            }
        }
        Ok(Some(Shape::Nothing))
    }

    /// Moves the entry at `from` into `dir` under `name`; returns where it is, None if the name is taken.
    pub fn move_entry(&self, from: &str, dir: &DirId, name: &str) -> Result<Option<String>> {
        let (to, full, long) = self.place(dir, name)?;
        let Some(shape) = self.shape(from)? else { return Err(ErrorKind::NotFound.into()) };
        if self.find(&to)?.is_some() {
            return Ok(None);
        }
        let moved = match (shape, long) {
            (Shape::File, false) => self.rename(from, &to)?,
            (Shape::File, true) => {
                self.make_entry(&to, &full, long, None)? && self.rename(from, &format!("{to}/{CONTENTS_FILE}"))?
            }
            (Shape::LongFile, false) => {
                let moved = self.rename(&format!("{from}/{CONTENTS_FILE}"), &to)?;
                if moved {
                    self.aside(from)?;
                }
                moved
            }
            (_, false) => {
                let name_file = format!("{from}/{NAME_FILE}");
                if self.find(&name_file)?.is_some() {
                    self.aside(&name_file)?;
                }
                self.rename(from, &to)?
            }
            (_, true) => {
                let known = read_small(self.root, &format!("{from}/{NAME_FILE}"), full.len());
                if known.ok().flatten().as_deref() != Some(full.as_bytes()) {
                    self.write_part(from, NAME_FILE, full.as_bytes())?;
                }
                self.rename(from, &to)?
            }
        };
        Ok(moved.then_some(to))
    }

    /// Makes the folder of an entry, whole, with the given `part`; false if the name is taken.
    fn make_entry(&self, to: &str, full: &str, long: bool, part: Option<(&str, &[u8])>) -> Result<bool> {
        let parent = to.rsplit_once('/').map_or("", |(parent, _)| parent);
        let fresh = new_temporary(parent);
        self.make_dir(&fresh)?;
        if long {
            self.publish(&format!("{fresh}/{NAME_FILE}"), full.as_bytes())?;
        }
        if let Some((name, content)) = part {
            self.publish(&format!("{fresh}/{name}"), content)?;
        }
        self.sync(&fresh)?;
        self.sync(parent)?;
        let placed = self.rename(&fresh, to)?;
        match placed {
            true => self.sync(parent)?,
            false => drop(self.aside(&fresh)?),
        }
        Ok(placed)
    }

    /// Enters the directory `id` in `dir` under `name`; None if the name is taken.
    pub fn link_dir(&self, id: &DirId, dir: &DirId, name: &str) -> Result<Option<String>> {
        let (to, full, long) = self.place(dir, name)?;
        if self.find(&to)?.is_some() {
            return Ok(None);
        }
        let part = Some((DIR_FILE, id.as_str().as_bytes()));
        Ok(self.make_entry(&to, &full, long, part)?.then_some(to))
    }

    /// Moves `part` (`symlink.c9r`) of an entry into a new folder in `dir`; None if the name is taken.
    pub fn move_link(&self, part: &str, dir: &DirId, name: &str) -> Result<Option<String>> {
        let (to, full, long) = self.place(dir, name)?;
        if self.find(&to)?.is_some() || !self.make_entry(&to, &full, long, None)? {
            return Ok(None);
        }
        Ok(self.rename(part, &format!("{to}/{SYMLINK_FILE}"))?.then_some(to))
    }

    /// Makes a file of at most one chunk in `dir` under `name`; None if the name is taken.
    pub fn put_file(&self, dir: &DirId, name: &str, clear: &[u8]) -> Result<Option<String>> {
        let (to, full, long) = self.place(dir, name)?;
        if self.find(&to)?.is_some() {
            return Ok(None);
        }
        let bytes = object::encode(&self.content, clear)
            .map_err(|e| FsError::new(ErrorKind::Io).on("write", &to).because(e))?;
        if long {
            let part = Some((CONTENTS_FILE, bytes.as_slice()));
            return Ok(self.make_entry(&to, &full, long, part)?.then_some(to));
        }
        self.publish(&to, &bytes)?;
        self.sync(to.rsplit_once('/').map_or("", |(parent, _)| parent))?;
        Ok(Some(to))
    }

    /// The id of `/lost+found`, which is made if need be.
    pub fn lost_and_found(&mut self) -> Result<DirId> {
        if let Some(id) = &self.lost {
            return Ok(id.clone());
        }
        let root = DirId::root();
        for name in numbered(LOST_AND_FOUND) {
            let (at, ..) = self.place(&root, &name)?;
            let id = if self.find(&at)?.is_none() {
                let id = DirId::generate();
                self.make_content(&id)?;
                self.root.sync(SyncTarget::All).map_err(|e| FsError::from(e).on("sync", "the vault"))?;
                self.link_dir(&id, &root, &name)?.map(|_| id)
            } else {
                self.directory_at(&at)?
            };
            if let Some(id) = id {
                self.sync(&self.names.dir_hash_path(&root))?;
                self.lost = Some(id.clone());
                return Ok(id);
            }
        }
        Err(FsError::new(ErrorKind::Exists).on("make", LOST_AND_FOUND))
    }

    /// The id of the sound directory whose entry is at `at`.
    pub fn directory_at(&self, at: &str) -> Result<Option<DirId>> {
        let bytes = match read_small(self.root, &format!("{at}/{DIR_FILE}"), MAX_DIR_ID_BYTES) {
            Err(e) if e.kind() == ErrorKind::IsDirectory => None,
            other => other?,
        };
        let Some(id) = bytes.and_then(|bytes| DirId::parse(&bytes).ok()) else { return Ok(None) };
        let content = self.find(&self.names.dir_hash_path(&id))?;
        Ok(content.is_some_and(|a| a.kind == Kind::Directory).then_some(id))
    }

    /// Puts something into `/lost+found` under `name` or, if that is taken, the same with a number.
    pub fn put_in_lost_and_found(
        &mut self,
        name: &str,
        put: impl Fn(&Self, &DirId, &str) -> Result<Option<String>>,
    ) -> Result<String> {
        let lost = self.lost_and_found()?;
        for name in numbered(name) {
            if let Some(at) = put(self, &lost, &name)? {
                return Ok(format!("/{LOST_AND_FOUND}/{name} ({at})"));
            }
        }
        Err(FsError::new(ErrorKind::Exists).on("put into lost+found", name))
    }

    pub fn sync(&self, folder: &str) -> Result<()> {
        self.root.sync(SyncTarget::Dir(Path::new(folder))).map_err(|e| FsError::from(e).on("sync", folder))
    }
}

/// `name`, `name-2`, `name-3`, …
fn numbered(name: &str) -> impl Iterator<Item = String> {
    (1..TRIES_MAX).map(move |n| if n == 1 { name.to_owned() } else { format!("{name}-{n}") })
}
