//! Names and attributes: what is at a path, and making, moving and removing it.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use adit_core::store::Store;
use adit_core::types::{Attr, FileName, Ino, Kind, RenameFlags, SetAttr, SetTime, XattrName, XattrSet};
use adit_core::{ErrorKind, FsError, Result};

use super::{Fs, Last, OpenFlags, Spot, named};

/// Bytes that [`Fs::copy`] moves at once.
const COPY_LEN_BYTES: usize = 1 << 20;

impl Spot {
    /// Where a name can be made.
    pub fn vacant(&self) -> Result<(Ino, FileName<'_>)> {
        match self.found {
            Some(_) => Err(ErrorKind::Exists.into()),
            None => Ok((Ino(self.dir), FileName::new(&self.name)?)),
        }
    }

    /// As [`Spot::vacant`], for what is no directory.
    pub fn vacant_for_file(&self) -> Result<(Ino, FileName<'_>)> {
        if self.slash && self.found.is_none() {
            return Err(ErrorKind::NotFound.into());
        }
        self.vacant()
    }

    /// What a name stands for, to be removed or moved; not the root.
    pub fn taken(&self) -> Result<(Ino, FileName<'_>, u64, Kind)> {
        let (ino, kind) = self.found.ok_or(ErrorKind::NotFound)?;
        if self.name.is_empty() {
            // `.`, `..` or the root: it has no name here.
            return Err(FsError::from(ErrorKind::InvalidInput).because("the path ends in no name"));
        }
        Ok((Ino(self.dir), FileName::new(&self.name)?, ino, kind))
    }

    /// Where something of that kind can be moved to.
    pub fn target_of(&self, kind: Kind) -> Result<(Ino, FileName<'_>)> {
        if self.slash && self.found.is_none() && kind != Kind::Directory {
            return Err(ErrorKind::NotDirectory.into());
        }
        Ok((Ino(self.dir), FileName::new(&self.name)?))
    }
}

impl Fs {
    /// The attributes of what is at `path`. Symbolic links are followed.
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Attr> {
        let path = path.as_ref();
        let attr = || self.attr(self.find(path, Last::Follow)?.0);
        attr().map_err(named("stat", path))
    }

    /// As [`Fs::stat`], of a symbolic link itself.
    pub fn lstat(&self, path: impl AsRef<Path>) -> Result<Attr> {
        let path = path.as_ref();
        let attr = || self.attr(self.find(path, Last::Keep)?.0);
        attr().map_err(named("lstat", path))
    }

    /// Whether there is something at `path`. Errors but absence are told.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        let path = path.as_ref();
        match self.find(path, Last::Follow) {
            Ok(_) => Ok(true),
            Err(e) if e.is_not_found() => Ok(false),
            Err(e) => Err(named("stat", path)(e)),
        }
    }

    fn set(&self, op: &'static str, path: &Path, last: Last, set: &SetAttr) -> Result<()> {
        let done = || self.shared.store.setattr(Ino(self.find(path, last)?.0), set).map(drop);
        done().map_err(named(op, path))
    }

    /// Sets permission bits, set-id and sticky bits among them.
    pub fn chmod(&self, path: impl AsRef<Path>, perm: u16) -> Result<()> {
        self.set("chmod", path.as_ref(), Last::Follow, &SetAttr { perm: Some(perm & 0o7777), ..SetAttr::default() })
    }

    /// Sets the owner.
    pub fn chown(&self, path: impl AsRef<Path>, uid: u32, gid: u32) -> Result<()> {
        let set = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
        self.set("chown", path.as_ref(), Last::Follow, &set)
    }

    /// As [`Fs::chown`], of a symbolic link itself.
    pub fn lchown(&self, path: impl AsRef<Path>, uid: u32, gid: u32) -> Result<()> {
        let set = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
        self.set("lchown", path.as_ref(), Last::Keep, &set)
    }

    /// Sets the times of the last access and the last change of content.
    pub fn set_times(&self, path: impl AsRef<Path>, accessed: SystemTime, modified: SystemTime) -> Result<()> {
        let at = |time: SystemTime| Some(SetTime::At(time.into()));
        let set = SetAttr { atime: at(accessed), mtime: at(modified), ..SetAttr::default() };
        self.set("set times of", path.as_ref(), Last::Follow, &set)
    }

    /// Sets the length of a file, in bytes. What is added reads as zeros, and takes no room.
    pub fn truncate(&self, path: impl AsRef<Path>, len: u64) -> Result<()> {
        self.set("truncate", path.as_ref(), Last::Follow, &SetAttr { size: Some(len), ..SetAttr::default() })
    }

    /// Makes a directory. `Exists`.
    pub fn mkdir(&self, path: impl AsRef<Path>, perm: u16) -> Result<()> {
        let path = path.as_ref();
        let make = || {
            let spot = self.spot(path, Last::Keep)?;
            let (dir, name) = spot.vacant()?;
            let made = self.shared.store.mkdir(dir, name, &self.new_node(perm))?;
            self.unknow(made.ino);
            Ok(())
        };
        make().map_err(named("mkdir", path))
    }

    /// Makes a directory and those above it, as far as they are absent.
    pub fn mkdir_all(&self, path: impl AsRef<Path>, perm: u16) -> Result<()> {
        let path = path.as_ref();
        // From the deepest one that is there.
        let mut missing = Vec::new();
        for above in path.ancestors().filter(|above| !above.as_os_str().is_empty()) {
            match self.find(above, Last::Follow) {
                Ok((_, Kind::Directory)) => break,
                Ok(_) => return Err(FsError::new(ErrorKind::NotDirectory).on("mkdir", above.display())),
                Err(e) if e.is_not_found() => missing.push(above),
                Err(e) => return Err(named("mkdir", above)(e)),
            }
        }
        for path in missing.into_iter().rev() {
            match self.mkdir(path, perm) {
                Err(e) if e.kind() == ErrorKind::Exists && self.directory(path).is_ok() => {}
                made => made?,
            }
        }
        Ok(())
    }

    /// Makes a symbolic link at `path` to `target`, which need not be there.
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let make = || {
            let spot = self.spot(path, Last::Keep)?;
            let (dir, name) = spot.vacant_for_file()?;
            let target = target.as_ref().as_os_str().as_bytes();
            let made = self.shared.store.symlink(dir, name, target, self.shared.owner)?;
            self.unknow(made.ino);
            Ok(())
        };
        make().map_err(named("symlink", path))
    }

    /// What a symbolic link says. `InvalidInput` of anything else.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let path = path.as_ref();
        let read = || self.shared.store.readlink(Ino(self.find(path, Last::Keep)?.0));
        read().map(|target| PathBuf::from(OsString::from_vec(target))).map_err(named("read link", path))
    }

    /// Gives the file at `from` the further name `to`. A symbolic link is not followed.
    pub fn link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let (ino, _) = self.find(from, Last::Keep).map_err(named("link", from))?;
        let make = || {
            let spot = self.spot(to, Last::Keep)?;
            let (dir, name) = spot.vacant_for_file()?;
            self.shared.store.link(Ino(ino), dir, name)?;
            self.unknow(Ino(ino));
            Ok(())
        };
        make().map_err(named("link", to))
    }

    /// Renames, in one step. What is at `to` is replaced; a directory only by a directory, and only if it is empty.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, to, RenameFlags::empty())
    }

    /// As [`Fs::rename`], with the flags of `renameat2(2)`.
    pub fn rename_with(&self, from: impl AsRef<Path>, to: impl AsRef<Path>, flags: RenameFlags) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let old = self.spot(from, Last::Keep).map_err(named("rename", from))?;
        let (dir, name, _, kind) = old.taken().map_err(named("rename", from))?;
        let moved = || {
            let new = self.spot(to, Last::Keep)?;
            let (new_dir, new_name) = new.target_of(kind)?;
            self.shared.store.rename(dir, name, new_dir, new_name, flags)
        };
        moved().map_err(named("rename", to))
    }

    /// Removes a file, a link or an empty directory.
    pub fn remove(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let remove = || {
            let spot = self.spot(path, Last::Keep)?;
            let (dir, name, _, kind) = spot.taken()?;
            self.remove_in(dir, name, kind)
        };
        remove().map_err(named("remove", path))
    }

    pub(super) fn remove_in(&self, dir: Ino, name: FileName<'_>, kind: Kind) -> Result<()> {
        match kind {
            Kind::Directory => self.shared.store.rmdir(dir, name),
            _ => self.shared.store.unlink(dir, name),
        }
    }

    /// Copies the content and the permission bits of a file over another one, or to a new one. How many bytes it has; holes stay holes.
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let source = self.open(from)?;
        let perm = source.metadata()?.perm;
        if let Ok((ino, _)) = self.find(to, Last::Follow)
            && ino == source.ino().0
        {
            let why = "it is the same file";
            return Err(FsError::new(ErrorKind::InvalidInput).on("copy", to.display()).because(why));
        }
        let flags = OpenFlags { write: true, create: true, truncate: true, perm, ..OpenFlags::default() };
        let target = self.open_with(to, &flags)?;
        let mut buf = vec![0; COPY_LEN_BYTES];
        let mut at = 0;
        while let Some(data) = source.next_data(at)? {
            let end = source.next_hole(data)?;
            at = data;
            while at < end {
                let want = buf.len().min((end - at) as usize);
                let len = source.read_at(at, &mut buf[..want])?;
                if len == 0 {
                    break;
                }
                target.write_at(at, &buf[..len])?;
                at += len as u64;
            }
            at = at.max(end);
        }
        let len = source.len()?;
        if target.len()? < len {
            target.set_len(len)?;
        }
        self.set("copy", to, Last::Follow, &SetAttr { perm: Some(perm), ..SetAttr::default() })?;
        Ok(len)
    }

    /// The value of an extended attribute; `NoAttribute`. Symbolic links are followed.
    pub fn xattr(&self, path: impl AsRef<Path>, name: &str) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let read = || self.shared.store.xattr(Ino(self.find(path, Last::Follow)?.0), XattrName::new(name.as_bytes())?);
        read().map_err(named("get attribute of", path))
    }

    /// Sets an extended attribute (`user.`, `trusted.`, `security.`).
    pub fn set_xattr(&self, path: impl AsRef<Path>, name: &str, value: &[u8]) -> Result<()> {
        let path = path.as_ref();
        let set = || {
            let ino = Ino(self.find(path, Last::Follow)?.0);
            self.shared.store.set_xattr(ino, XattrName::new(name.as_bytes())?, value, XattrSet::Either)
        };
        set().map_err(named("set attribute of", path))
    }

    /// Removes an extended attribute; `NoAttribute`.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: &str) -> Result<()> {
        let path = path.as_ref();
        let remove = || {
            let ino = Ino(self.find(path, Last::Follow)?.0);
            self.shared.store.remove_xattr(ino, XattrName::new(name.as_bytes())?)
        };
        remove().map_err(named("remove attribute of", path))
    }

    /// The names of all extended attributes.
    pub fn xattr_names(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>> {
        let path = path.as_ref();
        let read = || self.shared.store.xattr_names(Ino(self.find(path, Last::Follow)?.0));
        let names = read().map_err(named("list attributes of", path))?;
        Ok(names.split(|&b| b == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
    }

    /// All of a file.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let file = self.open(path.as_ref())?;
        let len = usize::try_from(file.len()?).map_err(|_| ErrorKind::Exhausted)?;
        file.read_range(0, len).map_err(named("read", path.as_ref()))
    }

    /// At most `len` bytes of a file from `offset` on; fewer only at its end.
    pub fn read_range(&self, path: impl AsRef<Path>, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.open(path.as_ref())?.read_range(offset, len).map_err(named("read", path.as_ref()))
    }

    /// Makes `bytes` all of a file, which is made if it is absent. Up to 1 MiB it is one step: after a crash it has its old content or
    /// the new one.
    pub fn write(&self, path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
        let path = path.as_ref();
        if bytes.len() <= crate::transaction::WRITE_LEN_MAX_BYTES {
            return self.transact(|t| t.write_file(path, bytes));
        }
        self.create(path)?.write_at(0, bytes).map_err(named("write", path))
    }

    /// Writes `bytes` at `offset` of a file that is there; it grows as needed.
    pub fn write_range(&self, path: impl AsRef<Path>, offset: u64, bytes: &[u8]) -> Result<()> {
        let path = path.as_ref();
        let flags = OpenFlags { read: false, write: true, ..OpenFlags::default() };
        self.open_with(path, &flags)?.write_at(offset, bytes).map_err(named("write", path))
    }
}
