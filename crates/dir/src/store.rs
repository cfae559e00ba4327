//! The store.

mod calls;
#[cfg(test)]
mod tests;

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use adit_core::host;
use adit_core::host::free_name::FreeNames;
use adit_core::store::{Capabilities, NewNode};
use adit_core::types::{Attr, FileName, Ino, Kind, XATTR_VALUE_LEN_MAX_BYTES, XattrName};
use adit_core::{ErrorKind, FsError, Result};
use adit_media::host::{chmod, unless_refused, with_proc_path};
use parking_lot::RwLock;
use rustix::fs::{AtFlags, Gid, OFlags, Uid};
use rustix::io::Errno;

use crate::directories::Directories;
use crate::file::{OpenFile, told};
use crate::folder::{Folder, Found, fail};
use crate::known::{Gone, Known, Name};

/// Deepest directory that is walked to: more means that others move directories into each other all the time.
const DEPTH_MAX: usize = 1 << 16;

/// What a folder is on this host, for who wants to find it again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Identity {
    /// Its device.
    pub dev: u64,
    /// Its number there; none where the host makes its numbers up, and they are not used.
    pub ino: Option<u64>,
}

/// A folder of the host as a [`Store`](adit_core::store::Store).
///
/// Locking: `naming` is shared by whatever goes from a name to an object, and held alone by what moves or removes names, so
/// that a path never leads elsewhere by our own doing. Nothing is held while a listing is handed out.
pub struct DirStore {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) folder: Folder,
    known: Known,
    dirs: Directories,
    naming: RwLock<()>,
    /// How the host renames to a free name.
    names: FreeNames,
    capabilities: Capabilities,
    /// Who we are on the host.
    uid: Uid,
}

/// A known inode, open as a place at least.
enum Held {
    Dir(Arc<OwnedFd>),
    File(Arc<OpenFile>),
    Place(OwnedFd),
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Held::Dir(fd) => fd.as_fd(),
            Held::File(file) => file.as_fd(),
            Held::Place(fd) => fd.as_fd(),
        }
    }
}

impl DirStore {
    /// Opens the folder `path`; a symbolic link to a folder is one. Nothing in it is changed through the store if
    /// `read_only`, nor are access times where the host lets us leave them.
    ///
    /// # Errors
    /// The host's, with the path.
    pub fn open(path: &Path, read_only: bool) -> Result<DirStore> {
        Ok(DirStore::of(Folder::open(path, read_only, false, false)?))
    }

    /// Opens a mount of this program, or a folder in one, as [`DirStore::open`] does: its numbers are those of the mount.
    ///
    /// # Errors
    /// The host's, with the path.
    pub fn open_mount(path: &Path, read_only: bool) -> Result<DirStore> {
        Ok(DirStore::of(Folder::open(path, read_only, false, false)?.with_numbers_of_mount()))
    }

    /// Opens the folder `path` to read, with numbers that are the same when its host was mounted again: where the host makes its own up, they
    /// follow from the paths, and names of one file are files of their own.
    ///
    /// # Errors
    /// The host's, with the path.
    pub fn open_lasting(path: &Path) -> Result<DirStore> {
        Ok(DirStore::of(Folder::open(path, true, true, false)?))
    }

    /// The same, as the layer below an overlay: that notes inode numbers for good, so they must not depend
    /// on what was looked up first, either. What is on another device than the folder (a subvolume of btrfs) is `NotSupported`.
    ///
    /// # Errors
    /// The host's, with the path.
    pub fn open_as_lower(path: &Path) -> Result<DirStore> {
        Ok(DirStore::of(Folder::open(path, true, true, true)?))
    }

    fn of(folder: Folder) -> DirStore {
        let keeps = |name: XattrName<'_>| {
            let asked = with_proc_path(&**folder.root(), |at| Ok(get_xattr(at, name)));
            !matches!(asked, Ok(Err(e)) if e.kind() == ErrorKind::NotSupported)
        };
        let probe = XattrName::new(b"user.adit").expect("a literal without NUL");
        let capabilities = Capabilities {
            read_only: folder.read_only,
            // Whole pages come from the host's own cache.
            unit_len_bytes: 4096,
            shared: true,
            xattrs: keeps(probe),
            acls: keeps(probe) && keeps(XattrName::ACL_ACCESS),
            made_up_numbers: !matches!(host::filesystem(&**folder.root()), Ok(Some(_))),
            ..Capabilities::plain("dir")
        };
        let inner = Inner {
            folder,
            known: Known::new(),
            dirs: Directories::default(),
            naming: RwLock::new(()),
            names: FreeNames::new(),
            capabilities,
            uid: rustix::process::geteuid(),
        };
        DirStore { inner: Arc::new(inner) }
    }

    /// What the folder is on this host.
    pub fn identity(&self) -> Identity {
        let (dev, ino) = self.inner.folder.identity();
        Identity { dev, ino: (!self.inner.folder.is_by_path()).then_some(ino) }
    }
}

impl Inner {
    /// A path of `ino` for messages.
    pub(crate) fn shown(&self, ino: Ino) -> String {
        match self.known.path(ino) {
            Some(parts) => parts.iter().fold(String::new(), |path, name| path + "/" + &String::from_utf8_lossy(name)),
            None => format!("{ino:?}"),
        }
    }

    fn stale(&self, ino: Ino) -> FsError {
        FsError::new(ErrorKind::Stale).on("open", self.shown(ino))
    }

    fn gone(&self, gone: Gone) {
        gone.into_iter().for_each(|dir| self.dirs.drop(dir));
    }

    /// Refuses a change of what is read-only.
    fn to_change(&self) -> Result<()> {
        if self.folder.read_only { Err(ErrorKind::ReadOnly.into()) } else { Ok(()) }
    }

    /// The known directory `ino`, open as a place.
    fn dir(&self, ino: Ino) -> Result<Held> {
        if ino == Ino::ROOT {
            return Ok(Held::Dir(self.folder.root().clone()));
        }
        let (mut way, mut at) = (Vec::new(), ino);
        let (mut fd, mut above) = loop {
            if let Some(fd) = self.dirs.get(at) {
                break (Held::Dir(fd), at);
            }
            if at == Ino::ROOT {
                break (self.dir(Ino::ROOT)?, at);
            }
            if way.len() > DEPTH_MAX {
                return Err(self.stale(ino));
            }
            let name = self.known.name(at, 0).ok_or_else(|| self.stale(ino))?;
            way.push((at, name.name));
            at = name.dir;
        };
        while let Some((number, name)) = way.pop() {
            let found = self.folder.find((&fd, above), &name).map_err(|e| match e.kind() {
                ErrorKind::NotFound | ErrorKind::NotDirectory => self.stale(ino),
                _ => e.on("open", self.shown(number)),
            })?;
            if found.attr.ino != number {
                return Err(self.stale(ino));
            }
            if found.attr.kind != Kind::Directory {
                return Err(ErrorKind::NotDirectory.into());
            }
            let found = Arc::new(found.fd);
            self.dirs.put(number, found.clone());
            (fd, above) = (Held::Dir(found), number);
        }
        Ok(fd)
    }

    /// The known inode `ino`, open as a place at least.
    fn held(&self, ino: Ino) -> Result<Held> {
        if ino == Ino::ROOT || self.known.kind(ino) == Some(Kind::Directory) {
            return self.dir(ino);
        }
        if let Some(file) = self.known.open_file(ino, false) {
            return Ok(Held::File(file));
        }
        while let Some(name) = self.known.name(ino, 0) {
            let found = self.dir(name.dir).and_then(|dir| self.folder.find((&dir, name.dir), &name.name));
            match found {
                Ok(found) if found.attr.ino == ino && Some(found.attr.kind) == self.known.kind(ino) => {
                    return Ok(Held::Place(found.fd));
                }
                Err(e) if !matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotDirectory | ErrorKind::Stale) => {
                    return Err(e.on("open", self.shown(ino)));
                }
                // Somebody else's doing. One of its other names may still lead here.
                _ => {
                    let subject = self.stale(ino);
                    self.gone(self.known.unname(ino, &name));
                    if self.known.name(ino, 0).is_none() {
                        return Err(subject);
                    }
                }
            }
        }
        Err(self.stale(ino))
    }

    /// Makes what was found known, as the entry `name` of `dir`.
    fn learn(&self, dir: Ino, name: FileName<'_>, found: Found, fresh: bool) -> Result<Attr> {
        let Found { fd, attr } = found;
        if !self.known.learn(attr.ino, attr.kind, Name::new(dir, name.as_bytes()), fresh) {
            return Err(self.stale(dir));
        }
        if attr.kind == Kind::Directory {
            self.dirs.put(attr.ino, Arc::new(fd));
        }
        Ok(attr)
    }

    /// What the entry `name` of `dir` is, should it be known: for what the table is to learn of a change.
    fn number_of(&self, dir: (&Held, Ino), name: FileName<'_>) -> Option<Ino> {
        self.folder.find(dir, name.as_bytes()).ok().map(|found| found.attr.ino)
    }

    /// Gives the new object `fd` in the directory `parent` its owner and permissions.
    ///
    /// One that is not our own is given to nobody: the host chose its owner, or someone else has put it there since.
    fn finish(&self, parent: &Held, fd: impl AsFd, new: &NewNode, kind: Kind) -> Result<Attr> {
        let attr = self.folder.attr(&fd)?;
        let wanted = new.in_directory(&self.folder.attr(parent)?, kind);
        let mut changed = false;
        if self.uid.is_root() && attr.uid == self.uid.as_raw() {
            let uid = (wanted.caller.uid != attr.uid).then(|| Uid::from_raw(wanted.caller.uid));
            let gid = (wanted.caller.gid != attr.gid).then(|| Gid::from_raw(wanted.caller.gid));
            if uid.is_some() || gid.is_some() {
                unless_refused(rustix::fs::chownat(&fd, c"", uid, gid, AtFlags::EMPTY_PATH)).map_err(fail)?;
                changed = true;
            }
        }
        // With a default ACL the host has applied that, and no umask.
        if kind != Kind::Symlink && !self.has_default_acl(parent)? {
            let perm = wanted.masked_perm();
            if changed || attr.perm != perm {
                told(chmod(&fd, perm))?;
                changed = true;
            }
        }
        if changed { self.folder.attr(&fd) } else { Ok(attr) }
    }

    fn has_default_acl(&self, dir: &Held) -> Result<bool> {
        if !self.capabilities.acls {
            return Ok(false);
        }
        let asked =
            told(with_proc_path(dir, |at| Ok(rustix::fs::getxattr_query(at, XattrName::ACL_DEFAULT.as_bytes())?)));
        match asked {
            Ok(_) => Ok(true),
            Err(e) if matches!(e.kind(), ErrorKind::NoAttribute | ErrorKind::NotSupported) => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn open(self: &Arc<Inner>, ino: Ino, write: bool) -> Result<Arc<OpenFile>> {
        if let Some(file) = self.known.open_file(ino, write) {
            return Ok(file);
        }
        let place = self.held(ino)?;
        match self.folder.attr(&place)?.kind {
            Kind::File => {}
            Kind::Directory => return Err(ErrorKind::IsDirectory.into()),
            _ => return Err(ErrorKind::InvalidInput.into()),
        }
        let fd = self.folder.again(&place, if write { OFlags::RDWR } else { OFlags::RDONLY })?;
        let file = Arc::new(OpenFile { fd, writable: write, ino, inner: self.clone() });
        Ok(self.known.opened(ino, file))
    }

    /// Makes the names of `ino` durable that were given here, and those of the directories on the way.
    pub(crate) fn sync_names(&self, ino: Ino) -> Result<()> {
        let _naming = self.naming.read();
        let mut todo = vec![ino];
        while let Some(at) = todo.pop() {
            let dirs = self.known.fresh_dirs(at);
            if dirs.is_empty() {
                continue;
            }
            // Before, so that a name that is given meanwhile is not taken for durable.
            self.known.set_fresh(at, false);
            for dir in dirs {
                if let Err(e) = self.sync_dir(dir) {
                    self.known.set_fresh(at, true);
                    return Err(e);
                }
                todo.push(dir);
            }
        }
        Ok(())
    }

    fn sync_dir(&self, dir: Ino) -> Result<()> {
        host::sync_entries(self.dir(dir)?).map_err(fail)
    }

    /// Makes an entry with `make`, which gets the open directory and the name.
    fn make(
        &self,
        parent: Ino,
        name: FileName<'_>,
        new: &NewNode,
        kind: Kind,
        make: impl FnOnce(&Held, &[u8]) -> Result<(), Errno>,
    ) -> Result<Attr> {
        self.to_change()?;
        let _naming = self.naming.read();
        let dir = self.dir(parent)?;
        make(&dir, name.as_bytes()).map_err(fail)?;
        let found = self.folder.find((&dir, parent), name.as_bytes())?;
        let attr = self.finish(&dir, &found.fd, new, kind)?;
        self.learn(parent, name, Found { attr, ..found }, true)
    }
}

/// The value of an extended attribute of what is at `at`.
fn get_xattr(at: &CStr, name: XattrName<'_>) -> Result<Vec<u8>> {
    loop {
        let len = rustix::fs::getxattr_query(at, name.as_bytes()).map_err(fail)?;
        let mut value = vec![0; len.min(XATTR_VALUE_LEN_MAX_BYTES)];
        if value.is_empty() {
            return Ok(value);
        }
        match rustix::fs::getxattr(at, name.as_bytes(), &mut value[..]) {
            Ok(len) => {
                value.truncate(len);
                return Ok(value);
            }
            // It has grown meanwhile.
            Err(Errno::RANGE) if len < XATTR_VALUE_LEN_MAX_BYTES => {}
            Err(e) => return Err(fail(e)),
        }
    }
}
