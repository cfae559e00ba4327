//! From the host to a store.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Stat};

use super::host::{self, HostPlace};
use super::{COPY_LEN_BYTES, CopyOptions, Log, PERM_KEPT};
use crate::error::{ErrorKind, FsError, Result};
use crate::path::{Node, Tree, about, show, this_process};
use crate::store::NewNode;
use crate::types::{Attr, FileName, Kind, RenameFlags, SetAttr, SetTime};

/// A host directory that the copy is in, and where it goes.
struct Level<'t> {
    from: OwnedFd,
    to: Node<'t>,
    stat: Stat,
    /// Names still to copy, last first.
    todo: Vec<OsString>,
}

struct Copier<'t, 'l, 'p, 'f> {
    tree: &'t Tree<'t>,
    options: CopyOptions,
    log: &'l mut Log<'p, 'f>,
    buffer: Vec<u8>,
}

pub(super) fn copy<'t>(
    tree: &'t Tree<'t>,
    from: &HostPlace,
    to: &Node<'t>,
    name: &[u8],
    options: &CopyOptions,
    log: &mut Log<'_, '_>,
) -> Result<()> {
    let mut copier = Copier { tree, options: *options, log, buffer: Vec::new() };
    let mut levels: Vec<Level<'t>> = Vec::new();
    levels.extend(copier.entry(from.dir.as_fd(), from.name().to_owned(), to, name)?);
    while let Some(level) = levels.last_mut() {
        if let Some(next) = level.todo.pop() {
            let entry_name = host::bytes(&next).to_vec();
            let entered = copier.entry(level.from.as_fd(), next, &level.to, &entry_name)?;
            levels.extend(entered);
            continue;
        }
        let Some(done) = levels.pop() else { break };
        // Last, because entries change a directory's time, and its mode may forbid to create them.
        let set = attributes(&done.stat, Kind::Directory);
        let finished = tree.store().setattr(done.to.ino(), &set).map(drop);
        finished.or_else(|e| copier.log.failed(about("copy", done.to.path(), e)))?;
        copier.log.done(Kind::Directory);
    }
    Ok(())
}

impl<'t> Copier<'t, '_, '_, '_> {
    /// Copies one entry; a directory is returned to be gone into.
    fn entry(&mut self, dir: BorrowedFd<'_>, from: OsString, to: &Node<'_>, name: &[u8]) -> Result<Option<Level<'t>>> {
        match self.copy_entry(dir, from, to, name) {
            Ok(level) => Ok(level),
            Err(e) => self.log.failed(about("copy", &to.join(name), e)).map(|()| None),
        }
    }

    fn copy_entry(
        &mut self,
        dir: BorrowedFd<'_>,
        from: OsString,
        to: &Node<'_>,
        name: &[u8],
    ) -> Result<Option<Level<'t>>> {
        let stat = host::stat_in(dir, &from)?;
        let path = to.join(name);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory if self.options.leave_out == Some((stat.st_dev, stat.st_ino)) => {
                self.log.left_out(&path, "it is the store itself")?;
            }
            FileType::Directory => {
                self.log.begin(&path, Kind::Directory)?;
                return self.directory(host::open_dir_in(dir, &from)?, to, name).map(Some);
            }
            FileType::Symlink => {
                self.log.begin(&path, Kind::Symlink)?;
                let target = rustix::fs::readlinkat(dir, &from, Vec::new()).map_err(io::Error::from)?;
                self.link(target.as_bytes(), &stat, to, name)?;
            }
            FileType::RegularFile => {
                self.log.begin(&path, Kind::File)?;
                self.file(File::from(host::open_file_in(dir, &from)?), to, name)?;
            }
            _ => self.log.left_out(&path, "neither a file, a folder nor a symbolic link")?,
        }
        Ok(None)
    }

    fn directory(&mut self, from: OwnedFd, to: &Node<'_>, name: &[u8]) -> Result<Level<'t>> {
        // Of what was opened, should the name have changed its meaning in between.
        let stat = rustix::fs::fstat(&from).map_err(io::Error::from)?;
        let mut todo = host::names_in(from.as_fd())?;
        todo.reverse();
        let to = make_dir(self.tree, to, name)?;
        Ok(Level { from, to, stat, todo })
    }

    fn link(&mut self, target: &[u8], stat: &Stat, to: &Node<'_>, name: &[u8]) -> Result<()> {
        let mut draft = Draft::new(self.tree, to);
        let attr = self.tree.store().symlink(to.ino(), draft.name()?, target, this_process())?;
        let node = draft.hold(attr);
        self.tree.store().setattr(node.ino(), &attributes(stat, Kind::Symlink))?;
        draft.place(name, self.options.replace)?;
        self.log.done(Kind::Symlink);
        Ok(())
    }

    fn file(&mut self, mut from: File, to: &Node<'_>, name: &[u8]) -> Result<()> {
        let stat = rustix::fs::fstat(&from).map_err(io::Error::from)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(FsError::new(ErrorKind::Stale).because("it was replaced by something else"));
        }
        // Private until it is complete: the mode comes with the time, at the end.
        let new = NewNode { perm: 0o600, caller: this_process() };
        let mut draft = Draft::new(self.tree, to);
        let (attr, file) = self.tree.store().create(to.ino(), draft.name()?, &new)?;
        let node = draft.hold(attr);
        self.buffer.resize(COPY_LEN_BYTES, 0);
        let mut offset = 0;
        loop {
            let len = fill(&mut from, &mut self.buffer)?;
            let Some(piece) = self.buffer.get(..len).filter(|p| !p.is_empty()) else { break };
            file.write_at(&[(offset, piece)])?;
            offset += len as u64;
            self.log.bytes(len)?;
        }
        drop(file);
        self.tree.store().setattr(node.ino(), &attributes(&stat, Kind::File))?;
        draft.place(name, self.options.replace)?;
        self.log.done(Kind::File);
        Ok(())
    }
}

/// A new entry of a store under a temporary name, removed on drop unless it was put in place.
struct Draft<'t, 'd> {
    tree: &'t Tree<'t>,
    dir: &'d Node<'d>,
    name: String,
    made: bool,
}

impl<'t, 'd> Draft<'t, 'd> {
    fn new(tree: &'t Tree<'t>, dir: &'d Node<'d>) -> Self {
        Draft { tree, dir, name: host::temporary_name(), made: false }
    }

    fn name(&self) -> Result<FileName<'_>> {
        Ok(FileName::new(self.name.as_bytes())?)
    }

    /// Takes over what the store created under the name.
    fn hold(&mut self, attr: Attr) -> Node<'t> {
        self.made = true;
        self.tree.node(attr, self.dir.join(self.name.as_bytes()))
    }

    fn place(mut self, name: &[u8], replace: bool) -> Result<()> {
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        let dir = self.dir.ino();
        self.tree.store().rename(dir, self.name()?, dir, FileName::new(name)?, flags)?;
        self.made = false;
        Ok(())
    }
}

impl Drop for Draft<'_, '_> {
    fn drop(&mut self) {
        if let (true, Ok(name)) = (self.made, self.name()) {
            // Nothing to do about a failure: the error that led here is the one to report.
            let _ = self.tree.store().unlink(self.dir.ino(), name);
        }
    }
}

/// Creates the directory, or takes the one that is there.
fn make_dir<'t>(tree: &'t Tree<'t>, to: &Node<'_>, name: &[u8]) -> Result<Node<'t>> {
    let new = NewNode { perm: 0o700, caller: this_process() };
    match tree.mkdir_in(to, name, &new) {
        Err(e) if e.kind() == ErrorKind::Exists => {}
        other => return other,
    }
    let node = tree.child(to, name)?;
    if node.kind() != Kind::Directory {
        return Err(FsError::new(ErrorKind::NotDirectory)
            .on("copy", show(node.path()))
            .because("the store has something else in the place of a folder"));
    }
    Ok(node)
}

/// Mode and modification time of a host entry, as far as `kind` has them.
fn attributes(stat: &Stat, kind: Kind) -> SetAttr {
    let perm = match kind {
        Kind::Symlink => None,
        _ => Some((stat.st_mode & PERM_KEPT) as u16),
    };
    SetAttr { perm, mtime: Some(SetTime::At(host::mtime_of(stat))), ..SetAttr::default() }
}

/// Reads until the buffer is full or the file ends, so that a store sees whole units.
fn fill(from: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match from.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(len)
}
