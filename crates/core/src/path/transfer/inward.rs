//! From the host to a store.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Stat};

use super::host::{self, HostPlace};
use super::kept::{self, Kept, Linked};
use super::names::Names;
use super::pieces::{Pieces, Sparse, Stream};
use super::{COPY_LEN_BYTES, Copied, CopyOptions, Fault, Lack, Log, Owner, Progress, perm_kept};
use crate::error::{ErrorKind, FsError, Result};
use crate::path::{Node, Tree, about, show, this_process};
use crate::store::{NewNode, StoreFile};
use crate::types::{Attr, FileName, Ino, Kind, RenameFlags, SetAttr, SetTime, XattrName, XattrSet};

/// How far a copy is made longer at once, at first; and twice as far after each time that took less than this.
const GROW_STEP_LEN_BYTES: u64 = 16 << 20;
const GROW_QUICK: Duration = Duration::from_millis(20);

/// A host directory that the copy is in, and where it goes.
struct Level<'t> {
    from: OwnedFd,
    /// Its path on the host, for messages.
    path: PathBuf,
    to: Node<'t>,
    stat: Stat,
    /// Whether the copy made it, private until it is finished.
    is_new: bool,
    /// What was copied into it.
    names: Names<Ino>,
    /// Names still to copy, last first.
    todo: Vec<OsString>,
}

struct Copier<'t, 'l, 'p, 'f> {
    tree: &'t Tree<'t>,
    options: CopyOptions,
    kept: &'l mut Kept<'t>,
    log: &'l mut Log<'p, 'f>,
    buffer: Vec<u8>,
}

/// Copies `from`, an entry of the host, and what is below it, to the entry `name` of the directory `to`.
///
/// What was copied with the same `kept` before may be names of the same files. Nothing is durable before
/// [`crate::store::Store::sync_all`].
///
/// # Errors
/// Of what ends the whole copy; entries that failed alone are in [`Copied::failed`].
pub fn copy_in<'t>(
    tree: &'t Tree<'t>,
    from: &HostPlace,
    to: &Node<'t>,
    name: &[u8],
    options: &CopyOptions,
    kept: &mut Kept<'t>,
    progress: &mut Progress<'_>,
) -> Result<Copied> {
    let mut log = Log::new(progress);
    log.told = kept.told;
    let copied =
        copy_all(&mut Copier { tree, options: *options, kept, log: &mut log, buffer: Vec::new() }, from, to, name);
    kept.told = log.told;
    copied.map(|()| log.copied)
}

fn copy_all<'t>(copier: &mut Copier<'t, '_, '_, '_>, from: &HostPlace, to: &Node<'t>, name: &[u8]) -> Result<()> {
    let mut levels: Vec<Level<'t>> = Vec::new();
    let start = Source { dir: from.dir.as_fd(), name: from.name(), path: &from.path, named: true };
    let mut names = std::mem::take(&mut copier.kept.names);
    let entered = copier.entry(&start, to, name, &mut names);
    copier.kept.names = names;
    levels.extend(entered?);
    let copied = copy_levels(copier, &mut levels);
    // Of a copy that ended early: what it made is not to stay as private as it was meanwhile. Who hears of the error that ended
    // it needs no other.
    for made in levels.iter_mut().rev().filter(|level| level.is_new) {
        let _ = copier.owner(&mut made.to, &made.stat);
        let _ = copier.attributes(made.from.as_fd(), &made.stat, &made.to, made.to.path());
        let _ = finish(copier.tree, &made.to, &made.stat);
    }
    copied
}

/// Copies what is still to do of the innermost of `levels`, and then of those around it.
fn copy_levels<'t>(copier: &mut Copier<'t, '_, '_, '_>, levels: &mut Vec<Level<'t>>) -> Result<()> {
    while let Some(level) = levels.last_mut() {
        if let Some(next) = level.todo.pop() {
            let path = level.path.join(&next);
            let source = Source { dir: level.from.as_fd(), name: &next, path: &path, named: false };
            let entered = copier.entry(&source, &level.to, host::bytes(&next), &mut level.names)?;
            levels.extend(entered);
            continue;
        }
        let Some(mut done) = levels.pop() else { break };
        // Last, because entries change a directory's time, and its mode may forbid to create them.
        let finished = copier.owner(&mut done.to, &done.stat).map_err(Fault::from);
        let finished =
            finished.and_then(|()| copier.attributes(done.from.as_fd(), &done.stat, &done.to, done.to.path()));
        let finished = finished.map_err(|fault| fault.about(done.to.path()));
        match finished.and_then(|()| finish(copier.tree, &done.to, &done.stat)) {
            Ok(kept) => copier.log.perm(done.to.path(), done.stat.st_mode, kept)?,
            Err(e) => copier.log.failed(about("copy", done.to.path(), e))?,
        }
        copier.log.done(Kind::Directory);
    }
    Ok(())
}

/// An entry of the host that is to be copied.
struct Source<'a> {
    dir: BorrowedFd<'a>,
    name: &'a OsStr,
    /// Its path, for messages.
    path: &'a Path,
    /// Whether the caller named it, and did not only name a folder above it.
    named: bool,
}

impl Source<'_> {
    fn fault(&self, e: impl Into<FsError>) -> Fault {
        Fault::host("read", self.path.display(), e)
    }
}

impl<'t> Copier<'t, '_, '_, '_> {
    /// Copies one entry; a directory is returned to be gone into.
    fn entry(
        &mut self,
        from: &Source<'_>,
        to: &Node<'_>,
        name: &[u8],
        names: &mut Names<Ino>,
    ) -> Result<Option<Level<'t>>> {
        match self.copy_entry(from, to, name, names) {
            Ok(level) => Ok(level),
            Err(fault) => self.log.failed(fault.about(&to.join(name))).map(|()| None),
        }
    }

    fn copy_entry(
        &mut self,
        from: &Source<'_>,
        to: &Node<'_>,
        name: &[u8],
        names: &mut Names<Ino>,
    ) -> Result<Option<Level<'t>>, Fault> {
        let stat = host::stat_in(from.dir, from.name).map_err(|e| from.fault(e))?;
        let path = to.join(name);
        let kind = FileType::from_raw_mode(stat.st_mode);
        // Held until it is replaced: what is let go of has a number that may come again.
        let there = self.tree.child(to, name).ok();
        if let Some(there) = &there {
            let merges = kind == FileType::Directory && there.kind() == Kind::Directory;
            names.check(name, &there.ino(), merges, || true)?;
        }
        let (made, level) = match kind {
            FileType::Directory | FileType::RegularFile
                if self.options.leave_out == Some((stat.st_dev, stat.st_ino)) =>
            {
                self.log.left_out(&path, "it is the store itself")?;
                return Ok(None);
            }
            FileType::Directory => {
                self.log.begin(&path, Kind::Directory)?;
                let level = self.directory(from, to, name)?;
                (level.to.ino(), Some(level))
            }
            FileType::Symlink => {
                self.log.begin(&path, Kind::Symlink)?;
                let target = rustix::fs::readlinkat(from.dir, from.name, Vec::new());
                let target = target.map_err(|e| from.fault(io::Error::from(e)))?;
                (self.link(target.as_bytes(), &stat, to, name)?, None)
            }
            FileType::RegularFile => {
                self.log.begin(&path, Kind::File)?;
                let linked = if stat.st_nlink == 1 { None } else { self.further_name(&stat, to, name)? };
                (linked.map_or_else(|| self.file(from, to, name), Ok)?, None)
            }
            _ if from.named => {
                let why = "it is neither a file, a folder nor a symbolic link, and cannot be stored";
                return Err(from.fault(FsError::new(ErrorKind::NotSupported).because(why)));
            }
            _ => {
                self.log.left_out(&path, "neither a file, a folder nor a symbolic link")?;
                return Ok(None);
            }
        };
        names.note(made, name);
        Ok(level)
    }

    fn directory(&mut self, from: &Source<'_>, to: &Node<'_>, name: &[u8]) -> Result<Level<'t>, Fault> {
        let dir = host::open_dir_in(from.dir, from.name).map_err(|e| from.fault(e))?;
        // Of what was opened, should the name have changed its meaning in between.
        let stat = rustix::fs::fstat(&dir).map_err(|e| from.fault(io::Error::from(e)))?;
        let mut todo = host::names_in(dir.as_fd()).map_err(|e| from.fault(e))?;
        todo.reverse();
        let (to, is_new) = make_dir(self.tree, to, name)?;
        let names = Names::new(is_new);
        Ok(Level { from: dir, path: from.path.to_owned(), to, stat, is_new, names, todo })
    }

    fn link(&mut self, target: &[u8], stat: &Stat, to: &Node<'_>, name: &[u8]) -> Result<Ino> {
        let mut draft = self.draft(to)?;
        let attr = self.tree.store().symlink(to.ino(), draft.name()?, target, this_process())?;
        let mut node = draft.hold(attr);
        self.owner(&mut node, stat)?;
        self.tree.store().setattr(node.ino(), &time(stat))?;
        draft.place(name, self.options.replace)?;
        self.log.done(Kind::Symlink);
        Ok(node.ino())
    }

    fn file(&mut self, from: &Source<'_>, to: &Node<'_>, name: &[u8]) -> Result<Ino, Fault> {
        let fault = |e: io::Error| from.fault(e);
        let file = File::from(host::open_file_in(from.dir, from.name).map_err(fault)?);
        let stat = rustix::fs::fstat(&file).map_err(|e| from.fault(io::Error::from(e)))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(from.fault(FsError::new(ErrorKind::Stale).because("it was replaced by something else")));
        }
        let (mut node, draft) = self.content(&mut Sparse::new(file.try_clone().map_err(fault)?), &fault, to)?;
        self.owner(&mut node, &stat)?;
        self.attributes(file.as_fd(), &stat, &node, &to.join(name))?;
        let kept = finish(self.tree, &node, &stat)?;
        draft.place(name, self.options.replace)?;
        self.log.done(Kind::File);
        let ino = node.ino();
        if stat.st_nlink > 1 {
            let left = u32::try_from(stat.st_nlink).unwrap_or(u32::MAX) - 1;
            self.kept.links.insert((stat.st_dev, stat.st_ino), Linked { copy: node, left });
        }
        self.log.perm(&to.join(name), stat.st_mode, kept)?;
        Ok(ino)
    }

    /// Makes `name` a further name of the copy of a file whose first name was copied before; none if there is no such copy, or no
    /// place for hard links.
    fn further_name(&mut self, stat: &Stat, to: &Node<'_>, name: &[u8]) -> Result<Option<Ino>> {
        let key = (stat.st_dev, stat.st_ino);
        let Some(linked) = self.kept.links.get_mut(&key) else { return Ok(None) };
        let ino = linked.copy.ino();
        // Renaming one name of a file over another does nothing, and would leave the first.
        let is_there = self.tree.child(to, name).is_ok_and(|there| there.ino() == ino);
        if !is_there {
            self.log.draft(to)?;
            let mut draft = Draft::new(self.tree, to);
            match self.tree.store().link(ino, to.ino(), draft.name()?) {
                Ok(attr) => drop(draft.hold(attr)),
                Err(e) if lacks_links(e.kind()) => {
                    self.kept.links.remove(&key);
                    self.log.lost(Lack::Links)?;
                    return Ok(None);
                }
                Err(e) => return Err(e),
            }
            draft.place(name, self.options.replace)?;
        }
        linked.left -= 1;
        if linked.left == 0 {
            self.kept.links.remove(&key);
        }
        self.log.done(Kind::File);
        Ok(Some(ino))
    }

    /// Gives the copy `node` the owner of its original, where this process may and the store can. Before its attributes and its mode: rights go with
    /// a former owner.
    fn owner(&mut self, node: &mut Node<'_>, stat: &Stat) -> Result<()> {
        if (node.attr.uid, node.attr.gid) == (stat.st_uid, stat.st_gid) {
            return Ok(());
        }
        let set = SetAttr { uid: Some(stat.st_uid), gid: Some(stat.st_gid), ..SetAttr::default() };
        if rustix::process::geteuid().is_root() {
            match self.tree.store().setattr(node.ino(), &set) {
                Ok(attr) => node.attr = attr,
                Err(e) if lacks_owners(e.kind()) => {}
                Err(e) => return Err(e),
            }
        }
        let is_kept = (node.attr.uid, node.attr.gid) == (stat.st_uid, stat.st_gid);
        if is_kept { Ok(()) } else { self.log.lost(Lack::Owners) }
    }

    /// Gives the copy `node` the extended attributes of what is open as `fd`. Before its mode: an ACL sets that, too.
    fn attributes(&mut self, fd: BorrowedFd<'_>, stat: &Stat, node: &Node<'_>, path: &[u8]) -> Result<(), Fault> {
        let failed = |e: io::Error| Fault::host("read the extended attributes of", show(path), e);
        let store = self.tree.store();
        let can = store.capabilities();
        let list = kept::names_of(fd).map_err(failed)?;
        if can.xattrs && can.acls {
            for name in kept::inherited(&store.xattr_names(node.ino())?, &list) {
                match store.remove_xattr(node.ino(), XattrName::new(name).map_err(FsError::from)?) {
                    Err(e) if e.kind() == ErrorKind::NoAttribute => {}
                    other => other?,
                }
            }
        }
        for name in kept::names(&list) {
            if !kept::is_kept(name, stat.st_uid == node.attr().uid) {
                match name == kept::CAPABILITY {
                    true => self.log.capability(path)?,
                    false => self.log.foreign(name)?,
                }
                continue;
            }
            if !can.xattrs || (kept::is_acl(name) && !can.acls) {
                self.log.lost(if kept::is_acl(name) { Lack::Acls } else { Lack::Xattrs })?;
                continue;
            }
            let Some(value) = kept::value_of(fd, name).map_err(failed)? else { continue };
            let xattr = XattrName::new(name).map_err(FsError::from)?;
            if let Err(e) = store.set_xattr(node.ino(), xattr, &value, XattrSet::Either) {
                self.log.xattr(path, name, &e)?;
            }
        }
        Ok(())
    }

    fn draft<'d>(&mut self, to: &'d Node<'d>) -> Result<Draft<'t, 'd>> {
        self.log.draft(to)?;
        Ok(Draft::new(self.tree, to))
    }

    /// Makes a file, private until it is complete, with all that `from` gives.
    fn content<'d>(
        &mut self,
        from: &mut dyn Pieces,
        fault: &dyn Fn(io::Error) -> Fault,
        to: &'d Node<'d>,
    ) -> Result<(Node<'t>, Draft<'t, 'd>), Fault> {
        // The mode comes with the time, at the end.
        let new = NewNode { perm: 0o600, umask: 0, caller: this_process() };
        let mut draft = self.draft(to)?;
        let (attr, file) = self.tree.store().create(to.ino(), draft.name()?, &new)?;
        let node = draft.hold(attr);
        self.buffer.resize(COPY_LEN_BYTES, 0);
        let mut end = 0;
        while let Some((offset, len)) = from.next(&mut self.buffer).map_err(fault)? {
            self.grow(&*file, end, offset)?;
            let Some(piece) = self.buffer.get(..len) else { break };
            file.write_at(&[(offset, piece)])?;
            end = offset + len as u64;
            self.log.bytes(len)?;
        }
        self.grow(&*file, end, from.len())?;
        // Before it takes the place of another one: the host below may not have stored it yet.
        file.flush()?;
        Ok((node, draft))
    }

    /// Makes the copy longer by a hole, in steps between which the copy can be ended: a vault has no holes, and writes zeros.
    fn grow(&mut self, file: &dyn StoreFile, from: u64, to: u64) -> Result<()> {
        let (mut at, mut step) = (from, GROW_STEP_LEN_BYTES);
        while at < to {
            let began = Instant::now();
            at = at.saturating_add(step).min(to);
            file.set_len(at)?;
            if began.elapsed() < GROW_QUICK {
                step = step.saturating_mul(2);
            }
            self.log.bytes(0)?;
        }
        Ok(())
    }
}

/// Whether a failed `link` says that the store has no place for a further name.
fn lacks_links(kind: ErrorKind) -> bool {
    use ErrorKind::*;
    matches!(kind, NotPermitted | NotSupported | TooManyLinks | CrossDevice | NotFound)
}

/// True if a failed change of an owner says that the store has no owners, or not these.
fn lacks_owners(kind: ErrorKind) -> bool {
    use ErrorKind::*;
    matches!(kind, NotPermitted | PermissionDenied | NotSupported | InvalidInput)
}

/// Writes all that `from` gives into a new file, the entry `name` of the directory `to`, with the permission bits `perm`.
///
/// The file appears under its name when it is complete. Nothing is durable before [`crate::store::Store::sync_all`].
///
/// # Errors
/// What `from` or the store says, and `Exists` without [`CopyOptions::replace`]; then nothing has appeared.
pub fn copy_stream_in<'t>(
    tree: &'t Tree<'t>,
    from: &mut dyn Read,
    to: &Node<'t>,
    name: &[u8],
    perm: u16,
    options: &CopyOptions,
    progress: &mut Progress<'_>,
) -> Result<Copied> {
    let mut log = Log::new(progress);
    let path = to.join(name);
    log.begin(&path, Kind::File)?;
    let mut kept = Kept::default();
    let mut copier = Copier { tree, options: *options, kept: &mut kept, log: &mut log, buffer: Vec::new() };
    let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
    let fault = |e| Fault::host("read", "standard input", e);
    let made = copier.content(&mut Stream { from, offset: 0 }, &fault, to).and_then(|(node, draft)| {
        tree.store().setattr(node.ino(), &set)?;
        Ok(draft.place(name, options.replace)?)
    });
    made.map_err(|fault| fault.about(&path))?;
    log.done(Kind::File);
    Ok(log.copied)
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

/// Creates the directory, or takes the one that is there; whether it was created.
fn make_dir<'t>(tree: &'t Tree<'t>, to: &Node<'_>, name: &[u8]) -> Result<(Node<'t>, bool)> {
    let new = NewNode { perm: 0o700, umask: 0, caller: this_process() };
    match tree.mkdir_in(to, name, &new) {
        Err(e) if e.kind() == ErrorKind::Exists => {}
        made => return Ok((made?, true)),
    }
    let node = tree.child(to, name)?;
    if node.kind() != Kind::Directory {
        return Err(FsError::new(ErrorKind::NotDirectory)
            .on("copy", show(node.path()))
            .because("the store has something else in the place of a folder"));
    }
    Ok((node, false))
}

/// Gives the copy `node` the mode and modification time of a file or directory of the host; returns the mode bits.
fn finish(tree: &Tree<'_>, node: &Node<'_>, stat: &Stat) -> Result<u32> {
    let copy = Owner { uid: node.attr().uid, gid: node.attr().gid };
    let kept = perm_kept(stat.st_mode, Owner { uid: stat.st_uid, gid: stat.st_gid }, copy);
    let set = SetAttr { perm: Some(kept as u16), ..time(stat) };
    tree.store().setattr(node.ino(), &set).map(|_| kept)
}

/// The modification time of a host entry.
fn time(stat: &Stat) -> SetAttr {
    SetAttr { mtime: Some(SetTime::At(host::mtime_of(stat))), ..SetAttr::default() }
}
