//! The calls of a [`DirStore`].

use std::ffi::{CString, OsStr};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use adit_core::host;
use adit_core::store::{Capabilities, DirEntry, NewNode, Store, StoreFile};
use adit_core::types::{
    Access, Attr, Caller, FileName, Ino, Kind, RenameFlags, SetAttr, StatFs, XATTR_VALUE_LEN_MAX_BYTES, XattrName,
    XattrSet,
};
use adit_core::{ErrorKind, FsError, Result};
use adit_media::host::{chmod, ids, mode, statfs_of, times, with_proc_path};
use rustix::fs::{AtFlags, CWD, FileType, OFlags, RawDir, XattrFlags};
use rustix::io::Errno;

use super::{DirStore, get_xattr};
use crate::file::{OpenFile, told};
use crate::folder::{fail, listing_buffer};
use crate::known::Name;

impl Store for DirStore {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities
    }

    fn lookup(&self, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        let inner = &*self.inner;
        let _naming = inner.naming.read();
        let found =
            inner.folder.find((inner.dir(parent)?, parent), name.as_bytes()).map_err(|e| match e.is_not_found() {
                true => e,
                false => e.on("look up", format!("{}/{}", inner.shown(parent).trim_end_matches('/'), name.display())),
            })?;
        inner.learn(parent, name, found, false)
    }

    fn forget(&self, ino: Ino) {
        self.inner.gone(self.inner.known.forget(ino));
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let _naming = self.inner.naming.read();
        self.inner.folder.attr_of_known(self.inner.held(ino)?, ino)
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let inner = &self.inner;
        inner.to_change()?;
        let _naming = inner.naming.read();
        if let Some(size) = set.size {
            inner.open(ino, true)?.set_len(size)?;
        }
        let held = inner.held(ino)?;
        if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) = ids(set);
            rustix::fs::chownat(&held, c"", uid, gid, AtFlags::EMPTY_PATH).map_err(fail)?;
        }
        if let Some(perm) = set.perm {
            told(chmod(&held, perm))?;
        }
        if let Some(times) = times(set) {
            rustix::fs::utimensat(&held, c"", &times, AtFlags::EMPTY_PATH).map_err(fail)?;
        }
        inner.folder.attr(&held)
    }

    fn read_dir(&self, ino: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        let inner = &*self.inner;
        let (dir, fd) = {
            let _naming = inner.naming.read();
            let dir = inner.dir(ino)?;
            let fd = inner.folder.listing(&dir)?;
            (dir, fd)
        };
        let dev = rustix::fs::fstat(&fd).map_err(fail)?.st_dev;
        let mut buffer = listing_buffer();
        let (mut entries, mut cookie) = (RawDir::new(fd, &mut buffer), 0);
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Err(Errno::INTR) => continue,
                other => other.map_err(fail)?,
            };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            cookie += 1;
            if cookie <= start {
                continue;
            }
            let about = |e: FsError| {
                let above = inner.shown(ino);
                e.on("list", format!("{}/{}", above.trim_end_matches('/'), String::from_utf8_lossy(name)))
            };
            let Some(kind) = inner.folder.listed_kind((&dir, ino), name, entry.file_type()).map_err(about)? else {
                continue;
            };
            let ino = inner.folder.listed(ino, name, (dev, entry.ino())).map_err(about)?;
            let entry = DirEntry { cookie, ino, kind, name: FileName::new(name)? };
            if sink(entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn create(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<(Attr, Arc<dyn StoreFile>)> {
        let inner = &self.inner;
        inner.to_change()?;
        let _naming = inner.naming.read();
        let dir = inner.dir(parent)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let fd = inner.folder.open_in(&dir, name.as_bytes(), flags, mode(new.perm)).map_err(fail)?;
        let attr = inner.finish(&dir, &fd, new, Kind::File)?;
        if !inner.known.learn(attr.ino, attr.kind, Name::new(parent, name.as_bytes()), true) {
            return Err(inner.stale(parent));
        }
        let file = Arc::new(OpenFile { fd, writable: true, ino: attr.ino, inner: inner.clone() });
        Ok((attr, inner.known.opened(attr.ino, file)))
    }

    fn mkdir(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr> {
        self.inner.make(parent, name, new, Kind::Directory, |dir, name| rustix::fs::mkdirat(dir, name, mode(new.perm)))
    }

    fn symlink(&self, parent: Ino, name: FileName<'_>, target: &[u8], caller: Caller) -> Result<Attr> {
        let new = NewNode { perm: 0o777, umask: 0, caller };
        self.inner.make(parent, name, &new, Kind::Symlink, |dir, name| rustix::fs::symlinkat(target, dir, name))
    }

    fn mknod(&self, parent: Ino, name: FileName<'_>, kind: Kind, rdev: u32, new: &NewNode) -> Result<Attr> {
        let file_type = match kind {
            Kind::File => FileType::RegularFile,
            Kind::BlockDevice => FileType::BlockDevice,
            Kind::CharDevice => FileType::CharacterDevice,
            Kind::Fifo => FileType::Fifo,
            Kind::Socket => FileType::Socket,
            Kind::Directory | Kind::Symlink => return Err(ErrorKind::InvalidInput.into()),
        };
        self.inner.make(parent, name, new, kind, |dir, name| {
            rustix::fs::mknodat(dir, name, file_type, mode(new.perm), rdev.into())
        })
    }

    fn link(&self, ino: Ino, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        let inner = &*self.inner;
        inner.to_change()?;
        let _naming = inner.naming.read();
        let (held, dir) = (inner.held(ino)?, inner.dir(parent)?);
        told(with_proc_path(&held, |from| {
            Ok(rustix::fs::linkat(CWD, from, &dir, name.as_bytes(), AtFlags::SYMLINK_FOLLOW)?)
        }))?;
        let attr = inner.folder.attr(&held)?;
        if !inner.known.learn(attr.ino, attr.kind, Name::new(parent, name.as_bytes()), true) {
            return Err(inner.stale(parent));
        }
        Ok(attr)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let _naming = self.inner.naming.read();
        let held = self.inner.held(ino)?;
        rustix::fs::readlinkat(held, c"", Vec::new()).map(CString::into_bytes).map_err(|e| match e {
            // What the host says of something that is no link.
            Errno::NOENT => ErrorKind::InvalidInput.into(),
            e => fail(e),
        })
    }

    fn unlink(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.remove(parent, name, AtFlags::empty())
    }

    fn rmdir(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.remove(parent, name, AtFlags::REMOVEDIR)
    }

    fn rename(
        &self,
        parent: Ino,
        name: FileName<'_>,
        new_parent: Ino,
        new_name: FileName<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let inner = &*self.inner;
        inner.to_change()?;
        if flags.contains(RenameFlags::WHITEOUT) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let _naming = inner.naming.write();
        let (from_dir, to_dir) = (inner.dir(parent)?, inner.dir(new_parent)?);
        let (from, to) = (inner.number_of((&from_dir, parent), name), inner.number_of((&to_dir, new_parent), new_name));
        let (old, new) = (name.as_bytes(), new_name.as_bytes());
        if flags.is_empty() {
            rustix::fs::renameat(&from_dir, old, &to_dir, new).map_err(fail)?;
        } else if flags == RenameFlags::NOREPLACE {
            let place = |dir, name| (AsFd::as_fd(dir), OsStr::from_bytes(name));
            told(inner.names.rename(place(&from_dir, old), place(&to_dir, new)))?;
        } else {
            let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
            rustix::fs::renameat_with(&from_dir, old, &to_dir, new, flags).map_err(fail)?;
        }
        if from == to {
            // Two names of one inode: nothing was moved.
            return Ok(());
        }
        let (old, new) = (Name::new(parent, old), Name::new(new_parent, new));
        let exchanged = flags.contains(RenameFlags::EXCHANGE);
        if let Some(to) = to.filter(|_| !exchanged) {
            inner.dirs.drop(to);
            inner.gone(inner.known.unname(to, &new));
        }
        if let Some(from) = from {
            inner.gone(inner.known.moved(from, &old, new.clone()));
        }
        if let Some(to) = to.filter(|_| exchanged) {
            inner.gone(inner.known.moved(to, &new, old));
        }
        Ok(())
    }

    fn open(&self, ino: Ino, access: Access) -> Result<Arc<dyn StoreFile>> {
        let write = access == Access::Write;
        if write {
            self.inner.to_change()?;
        }
        let _naming = self.inner.naming.read();
        Ok(self.inner.open(ino, write)?)
    }

    fn xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        let _naming = self.inner.naming.read();
        let held = self.inner.held(ino)?;
        told(with_proc_path(&held, |at| Ok(get_xattr(at, name))))?
    }

    fn xattr_names(&self, ino: Ino) -> Result<Vec<u8>> {
        let _naming = self.inner.naming.read();
        let held = self.inner.held(ino)?;
        told(with_proc_path(&held, |at| {
            // The kernel hands out no more than this.
            let mut names = vec![0; XATTR_VALUE_LEN_MAX_BYTES];
            let len = rustix::fs::listxattr(at, &mut names[..])?;
            names.truncate(len);
            Ok(names)
        }))
    }

    fn set_xattr(&self, ino: Ino, name: XattrName<'_>, value: &[u8], set: XattrSet) -> Result<()> {
        self.inner.to_change()?;
        let _naming = self.inner.naming.read();
        let held = self.inner.held(ino)?;
        let flags = match set {
            XattrSet::Either => XattrFlags::empty(),
            XattrSet::Create => XattrFlags::CREATE,
            XattrSet::Replace => XattrFlags::REPLACE,
        };
        told(with_proc_path(&held, |at| Ok(rustix::fs::setxattr(at, name.as_bytes(), value, flags)?)))
    }

    fn remove_xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<()> {
        self.inner.to_change()?;
        let _naming = self.inner.naming.read();
        let held = self.inner.held(ino)?;
        told(with_proc_path(&held, |at| Ok(rustix::fs::removexattr(at, name.as_bytes())?)))
    }

    fn sync_dir(&self, dir: Ino) -> Result<()> {
        let _naming = self.inner.naming.read();
        self.inner.sync_dir(dir)
    }

    fn sync_all(&self) -> Result<()> {
        host::sync_filesystem(&**self.inner.folder.root()).map_err(fail)
    }

    fn statfs(&self) -> Result<StatFs> {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Ok(statfs_of(&**self.inner.folder.root(), uid, gid)?)
    }

    fn path_of(&self, ino: Ino) -> Option<String> {
        self.inner.known.path(ino).map(|_| match ino {
            Ino::ROOT => "/".to_owned(),
            ino => self.inner.shown(ino),
        })
    }

    fn name_of(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        if self.inner.known.kind(ino)? == Kind::Directory {
            return None;
        }
        let name = self.inner.known.name(ino, 0)?;
        Some((name.dir, name.name.into()))
    }
}

impl DirStore {
    fn remove(&self, parent: Ino, name: FileName<'_>, flags: AtFlags) -> Result<()> {
        let inner = &*self.inner;
        inner.to_change()?;
        let _naming = inner.naming.write();
        let dir = inner.dir(parent)?;
        let ino = inner.number_of((&dir, parent), name);
        rustix::fs::unlinkat(&dir, name.as_bytes(), flags).map_err(fail)?;
        if let Some(ino) = ino {
            inner.dirs.drop(ino);
            inner.gone(inner.known.unname(ino, &Name::new(parent, name.as_bytes())));
        }
        Ok(())
    }
}
