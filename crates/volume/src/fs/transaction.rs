//! Several calls as one step, by path.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use adit_core::path::SYMLINKS_MAX;
use adit_core::transaction::Transaction;
use adit_core::types::{Attr, FileName, Ino, Kind, RenameFlags, SetAttr, XattrName, XattrSet};
use adit_core::{ErrorKind, Result};

use super::{Fs, Last, Spot, named};
use crate::transaction::Running;

/// What can be done in [`Fs::transact`]. Its calls mean what those of [`Fs`] do, and see what the transaction did so far. One that fails
/// leaves nothing, and the transaction may go on.
pub struct FsTransaction<'f, 'r, 's, 'c, 't> {
    fs: &'f Fs,
    running: &'r mut Running<'s, 'c, 't>,
}

impl Fs {
    /// Runs `work`, and applies all that it did as one step: for others, for snapshots, and after a crash it is there as a whole, or, if
    /// `work` or the applying fails, not at all.
    ///
    /// Nobody else changes the branch meanwhile, so it had better be short, and it must not call this [`Fs`], which may wait for it for
    /// ever. It has room for some hundred names and attributes, and some MiB of content. `InvalidInput` if that is too much.
    pub fn transact<R>(&self, work: impl FnOnce(&mut FsTransaction<'_, '_, '_, '_, '_>) -> Result<R>) -> Result<R> {
        self.shared.store.run(|running| work(&mut FsTransaction { fs: self, running }))
    }
}

impl FsTransaction<'_, '_, '_, '_, '_> {
    /// As [`Fs::spot`], of what the transaction made of the branch.
    fn spot(&mut self, path: &Path, last: Last) -> Result<Spot> {
        let path = path.as_os_str().as_bytes();
        if path.is_empty() {
            return Err(ErrorKind::NotFound.into());
        }
        let (mut at, mut links) = (self.fs.start(path), 0);
        // Names still to come, the next one last.
        let mut todo = components(path);
        let mut slash = path.ends_with(b"/");
        while let Some(name) = todo.pop() {
            match name.as_slice() {
                b"." => continue,
                b".." => {
                    at = self.fs.parent_in(at, |dir| self.running.inode(dir))?;
                    continue;
                }
                _ => {}
            }
            let found = match self.running.find(Ino(at), FileName::new(&name)?) {
                Ok(found) => Some(found),
                Err(e) if e.is_not_found() && todo.is_empty() => None,
                Err(e) => return Err(e),
            };
            let Some((ino, kind)) = found.filter(|_| !todo.is_empty() || last == Last::Follow || slash) else {
                return Ok(Spot { dir: at, name, found, slash });
            };
            match kind {
                Kind::Symlink => {
                    links += 1;
                    if links > SYMLINKS_MAX {
                        return Err(ErrorKind::Loop.into());
                    }
                    let target = self.running.inode(ino)?.inline;
                    if target.starts_with(b"/") {
                        at = self.fs.root;
                    }
                    slash |= todo.is_empty() && target.ends_with(b"/");
                    todo.extend(components(&target));
                }
                _ if todo.is_empty() && (kind == Kind::Directory || !slash) => {
                    return Ok(Spot { dir: at, name, found, slash });
                }
                Kind::Directory => at = ino,
                _ => return Err(ErrorKind::NotDirectory.into()),
            }
        }
        Ok(Spot { dir: at, name: Vec::new(), found: Some((at, Kind::Directory)), slash: true })
    }

    fn find(&mut self, path: &Path, last: Last) -> Result<Ino> {
        self.spot(path, last)?.found.map(|(ino, _)| Ino(ino)).ok_or_else(|| ErrorKind::NotFound.into())
    }

    /// Attributes; symbolic links are followed.
    pub fn stat(&mut self, path: impl AsRef<Path>) -> Result<Attr> {
        let path = path.as_ref();
        let attr = self.find(path, Last::Follow).and_then(|ino| self.running.getattr(ino));
        attr.map_err(named("stat", path))
    }

    /// Makes a file, empty. `Exists`.
    pub fn create(&mut self, path: impl AsRef<Path>, perm: u16) -> Result<()> {
        let path = path.as_ref();
        let mut create = || {
            let spot = self.spot(path, Last::Keep)?;
            if spot.slash && spot.found.is_none() {
                return Err(ErrorKind::IsDirectory.into());
            }
            let (dir, name) = spot.vacant()?;
            let made = self.running.create(dir, name, &self.fs.new_node(perm))?;
            self.running.unknow(made.ino);
            Ok(())
        };
        create().map_err(named("create", path))
    }

    /// Makes a directory. `Exists`.
    pub fn mkdir(&mut self, path: impl AsRef<Path>, perm: u16) -> Result<()> {
        let path = path.as_ref();
        let mut make = || {
            let spot = self.spot(path, Last::Keep)?;
            let (dir, name) = spot.vacant()?;
            let made = self.running.mkdir(dir, name, &self.fs.new_node(perm))?;
            self.running.unknow(made.ino);
            Ok(())
        };
        make().map_err(named("mkdir", path))
    }

    /// Makes a symbolic link at `path`.
    pub fn symlink(&mut self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut make = || {
            let spot = self.spot(path, Last::Keep)?;
            let (dir, name) = spot.vacant_for_file()?;
            let target = target.as_ref().as_os_str().as_bytes();
            let made = self.running.symlink(dir, name, target, self.fs.shared.owner)?;
            self.running.unknow(made.ino);
            Ok(())
        };
        make().map_err(named("symlink", path))
    }

    /// Gives the file at `from` the further name `to`.
    pub fn link(&mut self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let ino = self.find(from, Last::Keep).map_err(named("link", from))?;
        let mut make = || {
            let spot = self.spot(to, Last::Keep)?;
            let (dir, name) = spot.vacant_for_file()?;
            self.running.link(ino, dir, name)?;
            self.running.unknow(ino);
            Ok(())
        };
        make().map_err(named("link", to))
    }

    /// Writes `bytes`, 1 MiB at most, at `offset` of a file that is there; it grows as needed.
    pub fn write(&mut self, path: impl AsRef<Path>, offset: u64, bytes: &[u8]) -> Result<()> {
        let path = path.as_ref();
        let done = self.find(path, Last::Follow).and_then(|ino| self.running.write(ino, offset, bytes));
        done.map_err(named("write", path))
    }

    /// Makes `bytes`, 1 MiB at most, all of a file, which is made if it is absent.
    pub fn write_file(&mut self, path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
        const NEW_PERM: u16 = 0o666;
        let path = path.as_ref();
        let mut write = || {
            let spot = self.spot(path, Last::Follow)?;
            let ino = match spot.found {
                Some((ino, _)) => Ino(ino),
                None if spot.slash => return Err(ErrorKind::IsDirectory.into()),
                None => {
                    let name = FileName::new(&spot.name)?;
                    let made = self.running.create(Ino(spot.dir), name, &self.fs.new_node(NEW_PERM))?;
                    self.running.unknow(made.ino);
                    made.ino
                }
            };
            let empty = SetAttr { size: Some(0), ..SetAttr::default() };
            self.running.setattr(ino, &empty)?;
            self.running.write(ino, 0, bytes)
        };
        write().map_err(named("write", path))
    }

    /// Sets the length of a file, in bytes.
    pub fn truncate(&mut self, path: impl AsRef<Path>, len: u64) -> Result<()> {
        self.set("truncate", path.as_ref(), &SetAttr { size: Some(len), ..SetAttr::default() })
    }

    /// Sets permission bits.
    pub fn chmod(&mut self, path: impl AsRef<Path>, perm: u16) -> Result<()> {
        self.set("chmod", path.as_ref(), &SetAttr { perm: Some(perm & 0o7777), ..SetAttr::default() })
    }

    /// Sets the owner.
    pub fn chown(&mut self, path: impl AsRef<Path>, uid: u32, gid: u32) -> Result<()> {
        self.set("chown", path.as_ref(), &SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() })
    }

    /// Sets attributes of what is at a path.
    pub fn set_attr(&mut self, path: impl AsRef<Path>, set: &SetAttr) -> Result<()> {
        self.set("change", path.as_ref(), set)
    }

    fn set(&mut self, op: &'static str, path: &Path, set: &SetAttr) -> Result<()> {
        let done = self.find(path, Last::Follow).and_then(|ino| self.running.setattr(ino, set));
        done.map(drop).map_err(named(op, path))
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&mut self, path: impl AsRef<Path>, name: &str, value: &[u8]) -> Result<()> {
        let path = path.as_ref();
        let mut set = || {
            let ino = self.find(path, Last::Follow)?;
            self.running.set_xattr(ino, XattrName::new(name.as_bytes())?, value, XattrSet::Either)
        };
        set().map_err(named("set attribute of", path))
    }

    /// Removes a file, a link or an empty directory.
    pub fn remove(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut remove = || {
            let spot = self.spot(path, Last::Keep)?;
            let (dir, name, _, kind) = spot.taken()?;
            match kind {
                Kind::Directory => self.running.rmdir(dir, name),
                _ => self.running.unlink(dir, name),
            }
        };
        remove().map_err(named("remove", path))
    }

    /// Renames; what is at `to` is replaced.
    pub fn rename(&mut self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let old = self.spot(from, Last::Keep).map_err(named("rename", from))?;
        let (dir, name, _, kind) = old.taken().map_err(named("rename", from))?;
        let mut moved = || {
            let new = self.spot(to, Last::Keep)?;
            let (new_dir, new_name) = new.target_of(kind)?;
            self.running.rename(dir, name, new_dir, new_name, RenameFlags::empty())
        };
        moved().map_err(named("rename", to))
    }
}

/// The names of a path, the last one first.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|&b| b == b'/').filter(|part| !part.is_empty()).rev().map(<[u8]>::to_vec).collect()
}
