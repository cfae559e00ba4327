//! From names to objects: ciphertext paths, lookup, attributes, listing.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Weak};

use adit_core::store::{DirEntry, Spelling};
use adit_core::types::{Access, Attr, FileName, Ino, Kind, NAME_LEN_MAX_BYTES, SetAttr};
use adit_core::{ErrorKind, FsError, Result};
use hashbrown::{HashMap, HashSet};
use unicode_normalization::is_nfd;

use super::change::{DEPTH_MAX, lies_below};
use super::nodes::{DirNode, Place, Seen, What};
use super::removed::Remains;
use super::versions::Oddity;
use super::{Shared, UNLINKED_FILE, VaultFile};
use crate::format::DirId;
use crate::format::content::object;
use crate::format::names::{
    C9R, C9S, CONTENTS_FILE, DATA_DIR, DIR_FILE, DIRID_FILE, NAME_FILE, SYMLINK_FILE, is_long, nfc, shorten,
};
use crate::journal::recover::read_small;
use crate::perm;

/// Directories, and entries in each, of which is kept that listings left something out; in a mount nobody asks.
const LEFT_OUT_MAX: usize = 100;
/// How often a folder is looked at that seems to be damaged, while others come in its place.
const EXAMINED_MAX: usize = 16;

/// Why an entry has no name that can be shown.
pub(super) type Unnamed = (ErrorKind, String);
/// Longest `name.c9s` that is read.
const NAME_FILE_LEN_MAX_BYTES: usize = 4096;

/// The ciphertext of a name in its directory.
pub(super) struct Sealed {
    /// With `.c9r`, however long.
    pub full: String,
    /// Under which it is stored: `full`, or its hash with `.c9s`.
    pub stored: String,
    /// Whether it is stored under its hash.
    pub long: bool,
}

/// What the host lists in a content folder.
#[derive(Clone)]
pub(super) struct StoredEntry {
    pub stored: Box<str>,
    pub host_ino: u64,
    pub kind: Option<Kind>,
}

/// How an object is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    /// A file of that name.
    PlainFile,
    /// A folder with `contents.c9r`.
    LongFile,
    /// A folder with `dir.c9r`.
    Directory(DirId),
    /// A folder with `symlink.c9r`.
    Symlink,
}

impl Shape {
    pub fn kind(&self) -> Kind {
        match self {
            Shape::PlainFile | Shape::LongFile => Kind::File,
            Shape::Directory(_) => Kind::Directory,
            Shape::Symlink => Kind::Symlink,
        }
    }
}

/// An object that was found under its name.
pub(super) struct Found {
    pub attr: Attr,
    pub shape: Shape,
    /// Ciphertext path of the entry.
    pub path: String,
    /// The name as it is encrypted there.
    pub name: Box<str>,
    /// Its ciphertext, however long.
    pub full: String,
    pub long: bool,
    pub host_ino: u64,
}

impl Found {
    /// Where its content file lies, if it is a file.
    pub fn content_path(&self) -> Option<String> {
        match self.shape {
            Shape::LongFile => Some(format!("{}/{CONTENTS_FILE}", self.path)),
            Shape::PlainFile => Some(self.path.clone()),
            Shape::Directory(_) | Shape::Symlink => None,
        }
    }
}

fn corrupt(path: &str, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> FsError {
    FsError::new(ErrorKind::Corrupt).on("read", path).because(why)
}

/// A name that can be encrypted.
pub(super) fn text(name: FileName<'_>) -> Result<&str> {
    std::str::from_utf8(name.as_bytes())
        .map_err(|e| FsError::new(ErrorKind::IllegalName).on("use the name", name.display()).because(e))
}

/// A name as it is stored if it is new: normalised.
///
/// # Errors
/// `IllegalName`; `NameTooLong` if normalising lengthens it (up to threefold) beyond what a listing can show: what was
/// made under it could be neither seen nor removed.
pub(super) fn new_name(name: FileName<'_>) -> Result<Cow<'_, str>> {
    let clear = nfc(text(name)?);
    check_new_name(name, &clear)?;
    Ok(clear)
}

/// The part of [`new_name`] that its length decides.
pub(super) fn check_new_name(name: FileName<'_>, clear: &str) -> Result<()> {
    if clear.len() <= NAME_LEN_MAX_BYTES {
        return Ok(());
    }
    Err(FsError::new(ErrorKind::NameTooLong)
        .on("use the name", name.display())
        .because(format!("it has {} bytes once it is normalised (NFC)", clear.len())))
}

/// How a name is spelt: entries are stored in normal form C, and found by other forms as well.
pub(super) fn spelling(name: FileName<'_>) -> Spelling {
    if name.as_bytes().is_ascii() {
        return Spelling::Only; // asked at each lookup
    }
    let Ok(name) = text(name) else { return Spelling::Only };
    match nfc(name) {
        Cow::Owned(_) => Spelling::Other,
        Cow::Borrowed(_) if is_nfd(name) => Spelling::Only,
        Cow::Borrowed(_) => Spelling::Stored,
    }
}

impl Shared {
    /// Encrypts a name as it is: new ones are normalised by whoever makes them. That of a second version leads to where that lies.
    pub(super) fn seal_name(&self, dir: &DirNode, name: &str) -> Result<Sealed> {
        if let Some(sealed) = self.versions.sealed(&dir.id, name) {
            return Ok(sealed);
        }
        let full = self
            .names
            .encrypt_name_as_found(name, dir.context)
            .map_err(|e| FsError::new(ErrorKind::NameTooLong).because(e))?;
        let long = is_long(&full, self.threshold);
        let stored = if long { shorten(&full) } else { full.clone() };
        Ok(Sealed { full, stored, long })
    }

    /// Under which name `name` is stored in `dir`, and whether that is a hash.
    pub(super) fn stored_name(&self, dir: &DirNode, name: &str) -> Result<(String, bool)> {
        self.seal_name(dir, name).map(|s| (s.stored, s.long))
    }

    /// The host path of the object that carries an inode's content and attributes. None once it has no name.
    pub(crate) fn object_path(&self, ino: Ino) -> Option<String> {
        if ino == Ino::ROOT {
            return Some(self.root_dir.hash.path());
        }
        let known = self.nodes.get(ino)?;
        let place = known.place?;
        if let What::Directory(dir) = known.what {
            return Some(dir.hash.path());
        }
        let (stored, long) = self.stored_name(&place.parent, &place.name).ok()?;
        let entry = format!("{}/{stored}", place.parent.hash);
        Some(match known.what {
            What::Symlink => format!("{entry}/{SYMLINK_FILE}"),
            _ if long => format!("{entry}/{CONTENTS_FILE}"),
            _ => entry,
        })
    }

    /// A known directory that still has its name.
    pub(super) fn directory(&self, ino: Ino) -> Result<Arc<DirNode>> {
        if ino == Ino::ROOT {
            return Ok(self.root_dir.clone());
        }
        match self.nodes.directory(ino) {
            Some((dir, true)) => Ok(dir),
            Some((_, false)) => Err(ErrorKind::NotFound.into()),
            None if self.nodes.get(ino).is_some() => Err(ErrorKind::NotDirectory.into()),
            None => Err(ErrorKind::Stale.into()),
        }
    }

    /// The nonce that a file's header begins with: empty for what has none, None if it cannot be read.
    pub(super) fn header_nonce(&self, found: &Found) -> Option<Vec<u8>> {
        let Some(path) = found.content_path() else { return Some(Vec::new()) };
        if let Some(file) = self.live_file(found.attr.ino) {
            return Some(file.header_nonce().to_vec());
        }
        let mut nonce = vec![0; self.layout.nonce_len as usize];
        let file = self.root.open(Path::new(&path), Access::Read).ok()?;
        let got = file.read_at(0, &mut nonce).ok()?;
        (got == nonce.len()).then_some(nonce)
    }

    /// Finds `name` in `dir` and makes it known.
    pub(super) fn find(&self, dir: &Arc<DirNode>, name: FileName<'_>) -> Result<Found> {
        let Ok(name) = text(name) else { return Err(ErrorKind::NotFound.into()) };
        let normal = nfc(name);
        let found = match self.find_sealed(dir, &normal) {
            // Names that another program encrypted without normalising them are listed as they are; so they open.
            Err(e) if e.is_not_found() && *normal != *name => self.find_sealed(dir, name),
            other => other,
        };
        match found {
            Err(e) if e.is_not_found() => match self.versions.forget(&dir.id, &normal) || self.survey(dir) {
                true => self.find_sealed(dir, &normal),
                false => Err(e),
            },
            other => other,
        }
    }

    fn find_sealed(&self, dir: &Arc<DirNode>, name: &str) -> Result<Found> {
        let sealed = match self.seal_name(dir, name) {
            Err(e) if e.kind() == ErrorKind::NameTooLong => return Err(ErrorKind::NotFound.into()),
            other => other?,
        };
        let path = format!("{}/{}", dir.hash, sealed.stored);
        let (shape, attr) = self.settle_on(dir, &path, sealed.long)?;
        if let Shape::Directory(id) = &shape {
            self.check_no_loop(dir, self.nodes.ino_of_host(attr.ino.0), id, &path)?;
        }
        let (attr, host_ino) = self.know(dir, name, &shape, attr);
        Ok(Found { attr, shape, path, name: name.into(), full: sealed.full, long: sealed.long, host_ino })
    }

    /// What the entry at `path` in `dir` is. A folder is looked at in several steps: if it went meanwhile, or another came in its place, what
    /// they found together says nothing, and they are made again.
    fn settle_on(&self, dir: &DirNode, path: &str, long: bool) -> Result<(Shape, Attr)> {
        let stat = || match self.root.stat(Path::new(path)) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(self.explain_absence(dir)),
            other => other.map_err(|e| FsError::from(e).on("look up", path)),
        };
        let same = |a: &Attr| (a.ino, a.kind, a.mtime, a.ctime);
        let (mut entry, mut was_damaged) = (stat()?, false);
        for _ in 0..EXAMINED_MAX {
            let examined = self.examine(path, long, entry);
            // A file may have come in the folder's place as well.
            let is_odd = |e: &FsError| matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::NotDirectory);
            if entry.kind != Kind::Directory || !examined.as_ref().is_err_and(is_odd) {
                return examined;
            }
            let now = stat()?;
            let is_same = same(&now) == same(&entry);
            // Twice: another one that came within a tick of the host's clock may have the number and the times of the one before.
            if is_same && was_damaged {
                return examined;
            }
            (entry, was_damaged) = (now, is_same);
        }
        self.examine(path, long, entry)
    }

    /// `Corrupt` if the directory `id` that was found in `dir` is `dir` or above it: no walk of it would end.
    ///
    /// Only a directory that is known at another place can be.
    fn check_no_loop(&self, dir: &DirNode, ino: Ino, id: &DirId, path: &str) -> Result<()> {
        let itself = *id == dir.id;
        let elsewhere = || self.nodes.place(ino).is_some_and(|p| p.parent.id != dir.id);
        if itself || (elsewhere() && lies_below(self, dir.ino, ino) && self.still_below(dir.ino, ino)?) {
            return Err(corrupt(path, "the directory holds itself"));
        }
        Ok(())
    }

    /// Whether the vault agrees that `ino` lies below `above`. Another client may have moved what we know of.
    fn still_below(&self, mut ino: Ino, above: Ino) -> Result<bool> {
        for _ in 0..DEPTH_MAX {
            if ino == above {
                return Ok(true);
            }
            let Some((dir, true)) = self.nodes.directory(ino) else { return Ok(false) };
            let Some(place) = self.nodes.place(ino) else { return Ok(false) };
            let (stored, _) = self.stored_name(&place.parent, &place.name)?;
            if self.dir_id_at(&format!("{}/{stored}", place.parent.hash))?.as_ref() != Some(&dir.id) {
                return Ok(false);
            }
            ino = place.parent.ino;
        }
        Ok(true)
    }

    /// A name is absent, unless all of its directory is: then that is the news.
    fn explain_absence(&self, dir: &DirNode) -> FsError {
        let content = dir.hash.path();
        match self.root.stat(Path::new(&content)) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                corrupt(&content, "the directory's content folder is not there")
            }
            Err(e) => FsError::from(e).on("look up", &content),
            Ok(_) => ErrorKind::NotFound.into(),
        }
    }

    /// What the entry at `path` is, and the cleartext attributes of its object (with the host's inode number).
    pub(super) fn examine(&self, path: &str, long: bool, entry: Attr) -> Result<(Shape, Attr)> {
        match entry.kind {
            Kind::File if !long => Ok((Shape::PlainFile, self.clear_attr(path, Kind::File, entry)?)),
            Kind::Directory => self.examine_folder(path, long),
            _ => Err(corrupt(path, "neither a file nor a folder")),
        }
    }

    /// As [`Shared::examine`], of an entry that is a folder.
    fn examine_folder(&self, path: &str, long: bool) -> Result<(Shape, Attr)> {
        if long {
            let contents = format!("{path}/{CONTENTS_FILE}");
            match self.root.stat(Path::new(&contents)) {
                Ok(attr) => return Ok((Shape::LongFile, self.clear_attr(&contents, Kind::File, attr)?)),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(FsError::from(e).on("look up", &contents)),
            }
        }
        if let Some(id) = self.dir_id_at(path)? {
            let attr = self.content_attr(path, &id)?;
            return Ok((Shape::Directory(id), attr));
        }
        let link = format!("{path}/{SYMLINK_FILE}");
        match self.root.stat(Path::new(&link)) {
            Ok(attr) => Ok((Shape::Symlink, self.clear_attr(&link, Kind::Symlink, attr)?)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                Err(corrupt(path, "the folder holds neither contents.c9r, dir.c9r nor symlink.c9r"))
            }
            Err(e) => Err(FsError::from(e).on("look up", &link)),
        }
    }

    /// The content of a small file of an entry, or None if it is not there. Anything else in its place is damage.
    fn small_part(&self, path: &str, max: usize) -> Result<Option<Vec<u8>>> {
        read_small(&*self.root, path, max).map_err(|e| match e.kind() {
            ErrorKind::IsDirectory | ErrorKind::Loop | ErrorKind::InvalidInput => corrupt(path, "not a regular file"),
            _ => e,
        })
    }

    /// The directory id that the folder at `path` names. None if it has no `dir.c9r`.
    pub(super) fn dir_id_at(&self, path: &str) -> Result<Option<DirId>> {
        let file = format!("{path}/{DIR_FILE}");
        match self.small_part(&file, crate::format::names::MAX_DIR_ID_BYTES)? {
            Some(bytes) => DirId::parse(&bytes).map(Some).map_err(|e| corrupt(&file, e)),
            None => Ok(None),
        }
    }

    fn content_attr(&self, path: &str, id: &DirId) -> Result<Attr> {
        let content = self.names.dir_hash(id).path();
        match self.root.stat(Path::new(&content)) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                Err(corrupt(path, format!("the directory's content folder {content} is not there")))
            }
            other => other.map_err(|e| FsError::from(e).on("look up", &content)),
        }
    }

    /// Attributes of a file or link as its users see them.
    fn clear_attr(&self, path: &str, kind: Kind, host: Attr) -> Result<Attr> {
        if host.kind != Kind::File {
            return Err(corrupt(path, "not a regular file"));
        }
        let host = self.change_times.shown(host);
        let size = self.layout.cleartext_size(host.size).map_err(|e| corrupt(path, e))?;
        let perm = if kind == Kind::Symlink { 0o777 } else { host.perm };
        Ok(Attr { kind, size, perm, nlink: 1, ..host })
    }

    /// Makes the object known and gives its attributes their inode number; also returns the host's.
    pub(super) fn know(&self, dir: &Arc<DirNode>, name: &str, shape: &Shape, attr: Attr) -> (Attr, u64) {
        self.observe(dir, name, shape, attr, Seen::Found)
    }

    /// As [`Shared::know`], for an object that was made just now.
    pub(super) fn know_new(&self, dir: &Arc<DirNode>, name: &str, shape: &Shape, attr: Attr) -> (Attr, u64) {
        self.observe(dir, name, shape, attr, Seen::Made)
    }

    fn observe(&self, dir: &Arc<DirNode>, name: &str, shape: &Shape, attr: Attr, seen: Seen) -> (Attr, u64) {
        let place = Place { parent: dir.clone(), name: name.into() };
        let host_ino = attr.ino.0;
        let id = match shape {
            Shape::Directory(id) => Some(id),
            _ => None,
        };
        let ino = self.nodes.observe(host_ino, place, seen, shape.kind(), id, |ino| match shape {
            Shape::PlainFile | Shape::LongFile => What::File(Weak::<VaultFile>::new()),
            Shape::Directory(id) => What::Directory(DirNode::new(ino, id.clone(), &self.names)),
            Shape::Symlink => What::Symlink,
        });
        (Attr { ino, ..attr }, host_ino)
    }

    /// The open file of `ino` with its attributes, if there is one. Not one that is kept open only, while another client
    /// has put another file in its place.
    fn used_file(&self, ino: Ino) -> Result<Option<(Arc<VaultFile>, Attr)>> {
        let failed = |e: std::io::Error| {
            FsError::from(e).on("stat", self.object_path(ino).unwrap_or_else(|| UNLINKED_FILE.to_owned()))
        };
        let Some(file) = self.live_file(ino) else { return Ok(None) };
        let host = self.change_times.shown(file.host().stat().map_err(failed)?);
        if host.nlink > 0 || self.nodes.place(ino).is_none() {
            return Ok(Some((file, host)));
        }
        self.kept.remove(ino);
        drop(file);
        // Who has it open goes on with what was replaced.
        Ok(self.live_file(ino).map(|file| (file, host)))
    }

    pub(super) fn attr_of(&self, ino: Ino) -> Result<Attr> {
        if let Some(attr) = self.removed.attr(ino) {
            return Ok(attr);
        }
        if let Some((file, host)) = self.used_file(ino)? {
            drop(file);
            let path = || self.object_path(ino).unwrap_or_else(|| UNLINKED_FILE.to_owned());
            let size = self.layout.cleartext_size(host.size).map_err(|e| corrupt(&path(), e))?;
            return Ok(Attr { ino, size, nlink: u32::from(self.nodes.place(ino).is_some()), ..host });
        }
        let kind = if ino == Ino::ROOT { Kind::Directory } else { self.known(ino)?.what.kind() };
        let path = self.object_path(ino);
        let found = path.as_ref().map(|path| self.root.stat(Path::new(path)));
        let path = path.unwrap_or_else(|| UNLINKED_FILE.to_owned());
        let host = match found {
            Some(Err(e)) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
            Some(Ok(host)) => Ok(host),
            _ => self.removed.file(ino).ok_or(ErrorKind::Stale)?.stat(),
        };
        let host = host.map_err(|e| FsError::from(e).on("stat", &path))?;
        let has_name = self.nodes.place(ino).is_some() || ino == Ino::ROOT;
        match kind {
            Kind::Directory if host.kind == Kind::Directory => Ok(Attr { ino, ..host }),
            Kind::Directory => Err(corrupt(&path, "not a folder")),
            _ => Ok(Attr { ino, nlink: has_name.into(), ..self.clear_attr(&path, kind, host)? }),
        }
    }

    pub(super) fn set_attr(&self, ino: Ino, set: &SetAttr) -> Result<()> {
        if self.removed.set_attr(ino, set) {
            return Ok(());
        }
        // A link has no mode of its own.
        let is_link = ino != Ino::ROOT && self.known(ino)?.what.kind() == Kind::Symlink;
        let set = if is_link { SetAttr { perm: None, ..*set } } else { *set };
        let path = self.object_path(ino);
        let failed =
            |e: std::io::Error| FsError::from(e).on("set attributes of", path.as_deref().unwrap_or(UNLINKED_FILE));
        // What has lost its name is shown to nobody later.
        let changed = match (self.used_file(ino)?, &path, self.removed.file(ino)) {
            (Some((file, _)), ..) => {
                let host = file.host();
                host.set_attr(&set).and_then(|()| set.ctime.map(|_| host.stat()).transpose())
            }
            (None, _, Some(file)) => file.set_attr(&set).map(|()| None),
            (None, Some(path), None) => {
                let path = Path::new(path);
                self.root.set_attr(path, &set).and_then(|()| set.ctime.map(|_| self.root.stat(path)).transpose())
            }
            (None, None, None) => return Err(ErrorKind::Stale.into()),
        };
        let host = changed.map_err(failed)?;
        if let (Some(host), Some(ctime), Some(journal)) = (host, set.ctime, &self.journal) {
            self.change_times.note(journal.state(), &host, ctime);
        }
        set.perm.into_iter().try_for_each(|perm| self.open_way_to(ino, perm))
    }

    /// Gives what carries the entry of `ino` the permissions that go with its own, `perm`.
    pub(super) fn open_way_to(&self, ino: Ino, perm: u16) -> Result<()> {
        let modes = |perm| (perm::folder(&*self.root, perm), perm::file(&*self.root, perm));
        if let Ok(dir) = self.directory(ino) {
            let (folder, file) = modes(perm);
            let prefix = format!("{DATA_DIR}/{}", dir.hash.prefix());
            let found = self.root.stat(Path::new(&prefix)).map_err(|e| FsError::from(e).on("look up", &prefix))?;
            perm::open_way(&*self.root, &prefix, found.perm, perm);
            perm::follow(&*self.root, &format!("{}/{DIRID_FILE}", dir.hash), file);
            self.open_way_to_links(&dir, folder, file);
        }
        let Some(Place { parent, name }) = self.nodes.place(ino) else { return Ok(()) };
        let (stored, long) = self.stored_name(&parent, &name)?;
        let entry = format!("{}/{stored}", parent.hash);
        // What a kind of entry has besides its content, and the permissions that go with it: those of a link are its directory's.
        let part = match self.known(ino)?.what.kind() {
            Kind::Directory => Some(DIR_FILE),
            Kind::Symlink => Some(SYMLINK_FILE),
            _ => None,
        };
        let of_directory = || self.root.stat(Path::new(&parent.hash.path())).map_or(0, |dir| dir.perm);
        let (folder, file) = modes(if part == Some(SYMLINK_FILE) { of_directory() } else { perm });
        if part.is_some() || long {
            perm::follow(&*self.root, &entry, folder);
        }
        if let Some(part) = part {
            perm::follow(&*self.root, &format!("{entry}/{part}"), file);
        }
        if long {
            perm::follow(&*self.root, &format!("{entry}/{NAME_FILE}"), file);
        }
        Ok(())
    }

    /// Gives what carries the links in `dir` the permissions that go with those of the directory: they have none of their own. One that cannot be
    /// listed lets nobody to them.
    fn open_way_to_links(&self, dir: &DirNode, folder: u16, file: u16) {
        let content = dir.hash.path();
        let _ = self.root.list(Path::new(&content), &mut |entry| {
            if entry.kind.is_some_and(|kind| kind != Kind::Directory) {
                return;
            }
            let entry = format!("{content}/{}", String::from_utf8_lossy(entry.name));
            let link = format!("{entry}/{SYMLINK_FILE}");
            if self.root.stat(Path::new(&link)).is_ok() {
                perm::follow(&*self.root, &entry, folder);
                [link, format!("{entry}/{NAME_FILE}")].iter().for_each(|path| perm::follow(&*self.root, path, file));
            }
        });
    }

    pub(super) fn link_target(&self, ino: Ino) -> Result<Vec<u8>> {
        if let Some(target) = self.removed.target(ino) {
            return Ok(target);
        }
        let path = self.object_path(ino).ok_or(ErrorKind::Stale)?;
        if self.known(ino)?.what.kind() != Kind::Symlink {
            return Err(ErrorKind::InvalidInput.into());
        }
        self.target_at(&path)?.ok_or_else(|| ErrorKind::Stale.into())
    }

    /// The target in the `symlink.c9r` at `path`; None if that is not there.
    fn target_at(&self, path: &str) -> Result<Option<Vec<u8>>> {
        let Some(bytes) = self.small_part(path, object::max_encoded_bytes(&self.content))? else { return Ok(None) };
        let target = object::decode_symlink(&self.content, &bytes).map_err(|e| corrupt(path, e))?;
        Ok(Some(target.into_bytes()))
    }

    /// `found` is about to lose its name: who knows it goes on with what is left. Where the host holds no files, or what it is cannot be
    /// read, that is nothing. Nor of a file or link whose name is spelt in several ways: the kernel can believe for a moment that another
    /// spelling leads to it still, and what is written there would be nobody's. It is to ask for the name again (`ESTALE`).
    pub(super) fn part_from(&self, found: &Found) {
        let is_spelt_once = FileName::new(found.name.as_bytes()).is_ok_and(|name| spelling(name) == Spelling::Only);
        if !is_spelt_once && !matches!(found.shape, Shape::Directory(_)) {
            return;
        }
        let remains = match &found.shape {
            Shape::Directory(_) => Some(Remains::Directory(found.attr)),
            Shape::Symlink => {
                let target = self.target_at(&format!("{}/{SYMLINK_FILE}", found.path)).ok().flatten();
                target.map(|target| Remains::Symlink(found.attr, target))
            }
            Shape::PlainFile | Shape::LongFile => found
                .content_path()
                .and_then(|path| self.root.hold(Path::new(&path)))
                .map(|file| Remains::File(Arc::from(file))),
        };
        remains.into_iter().for_each(|remains| self.removed.add(found.attr.ino, remains));
    }

    /// The cleartext name of an entry, or why it cannot be read.
    ///
    /// # Errors
    /// `Exhausted`, `TooManyFiles`: what could be read with more memory or handles is not to be left out.
    pub(super) fn open_name(&self, dir: &DirNode, stored: &str) -> Result<std::result::Result<String, Unnamed>> {
        let damaged = |why: &str| Ok(Err((ErrorKind::Corrupt, why.to_owned())));
        let full = if stored.ends_with(C9S) {
            let path = format!("{}/{stored}/{NAME_FILE}", dir.hash);
            match read_small(&*self.root, &path, NAME_FILE_LEN_MAX_BYTES) {
                Ok(Some(bytes)) => match String::from_utf8(bytes) {
                    Ok(full) if shorten(&full) == stored => full,
                    _ => return damaged("name.c9s does not belong to this folder"),
                },
                Ok(None) => return damaged("name.c9s is missing"),
                Err(e) if matches!(e.kind(), ErrorKind::Exhausted | ErrorKind::TooManyFiles) => return Err(e),
                Err(e) => return Ok(Err((e.kind(), e.to_string()))),
            }
        } else {
            stored.to_owned()
        };
        if is_long(&full, self.threshold) != stored.ends_with(C9S) {
            // No client looks for it there: what is listed must be found.
            return damaged("the name's length asks for the other form");
        }
        let name = self.names.decrypt_name_in(&full, dir.context).map_err(|e| e.to_string());
        let name = name.and_then(|n| match FileName::new(n.as_bytes()) {
            Ok(_) => Ok(n),
            // Nobody here makes one: see `new_name`.
            Err(e) if n.len() > NAME_LEN_MAX_BYTES => Err(format!("{e}: it has {}", n.len())),
            Err(e) => Err(e.to_string()),
        });
        Ok(name.map_err(|why| (ErrorKind::Corrupt, why)))
    }

    /// The names in the content folder of `dir` that have the form of an entry's, with number and kind.
    pub(super) fn stored_entries(&self, dir: &DirNode) -> Result<Vec<StoredEntry>> {
        let content = dir.hash.path();
        let mut entries = Vec::new();
        let listed = self.root.list(Path::new(&content), &mut |e| {
            if let Ok(name) = std::str::from_utf8(e.name)
                && name != DIRID_FILE
                && (name.ends_with(C9R) || name.ends_with(C9S))
            {
                entries.push(StoredEntry { stored: name.into(), host_ino: e.ino, kind: e.kind });
            }
        });
        listed.map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => corrupt(&content, "the directory's content folder is not there"),
            _ => FsError::from(e).on("list", &content),
        })?;
        Ok(entries)
    }

    pub(super) fn list(
        &self,
        dir: &Arc<DirNode>,
        start: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let entries = self.stored_entries(dir)?;
        let mut cookie = 0;
        let mut hand_out = |entry: &StoredEntry, name: &str| {
            cookie += 1;
            let Some(name) = FileName::new(name.as_bytes()).ok().filter(|_| cookie > start) else {
                return ControlFlow::Continue(());
            };
            let path = format!("{}/{}", dir.hash, entry.stored);
            let (ino, kind) = self.glance(&path, &entry.stored, entry.host_ino, entry.kind);
            sink(DirEntry { cookie, ino, kind, name })
        };
        let (mut odd, mut why_odd) = (Vec::new(), HashMap::new());
        for entry in &entries {
            match self.open_name(dir, &entry.stored)? {
                Ok(name) => {
                    if hand_out(entry, &name).is_break() {
                        return Ok(());
                    }
                }
                Err(why) => {
                    odd.push(entry.clone());
                    why_odd.insert(&*entry.stored, why);
                }
            }
        }
        let there: HashSet<&str> = match odd.is_empty() {
            true => HashSet::new(),
            false => entries.iter().map(|entry| &*entry.stored).collect(),
        };
        let is_stored = |at: &str| there.contains(at);
        let found = self.examine_odd(dir, &mut odd, is_stored);
        let mut left_out = Vec::new();
        for (entry, oddity) in odd.iter().zip(found) {
            if let Oddity::Version(name) = oddity {
                if hand_out(entry, &name).is_break() {
                    return Ok(());
                }
                continue;
            }
            let Some((kind, why)) = why_odd.get(&*entry.stored) else { continue };
            let path = format!("{}/{}", dir.hash, entry.stored);
            if matches!(oddity, Oddity::Lost) || self.versions.is_news(&path) {
                tracing::warn!("{path}: left out of its directory: {why}");
            }
            if matches!(oddity, Oddity::Lost) {
                let why = format!("an entry is left out, its name cannot be used ({path}: {why})");
                left_out.push((*kind, why));
            }
        }
        // Replaced as a whole: another listing of the directory may ask at any time.
        if start == 0 {
            self.note_left_out(dir.ino, left_out);
        }
        Ok(())
    }

    /// Keeps for [`Store::left_out`](adit_core::store::Store::left_out) what a listing found.
    fn note_left_out(&self, dir: Ino, mut why: Vec<Unnamed>) {
        let mut left_out = self.left_out.lock();
        if why.is_empty() {
            left_out.remove(&dir);
            return;
        }
        if left_out.len() >= LEFT_OUT_MAX {
            left_out.clear();
        }
        why.truncate(LEFT_OUT_MAX);
        left_out.insert(dir, why);
    }

    /// Inode number and kind of an entry, for a listing. What cannot be read is shown all the same.
    fn glance(&self, path: &str, stored: &str, host_ino: u64, kind: Option<Kind>) -> (Ino, Kind) {
        let long = stored.ends_with(C9S);
        if kind == Some(Kind::File) && !long {
            return (self.nodes.ino_of_host(host_ino), Kind::File);
        }
        let looked = match kind {
            Some(Kind::Directory) => self.examine_folder(path, long),
            _ => self.root.stat(Path::new(path)).map_err(FsError::from).and_then(|e| self.examine(path, long, e)),
        };
        self.tell_copies_of_parts(path);
        match looked {
            Ok((shape, attr)) => (self.nodes.ino_of_host(attr.ino.0), shape.kind()),
            Err(_) => (self.nodes.ino_of_host(host_ino), if long { Kind::File } else { Kind::Directory }),
        }
    }
}
