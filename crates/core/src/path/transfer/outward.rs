//! From a store to the host.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::host::{Draft, HostPlace, check_replaceable, mtime_only, open_dir_in};
use super::{COPY_LEN_BYTES, Copied, CopyOptions, Fault, Log, Outward, Owner, Progress, perm_kept};
use crate::error::{ErrorKind, FsError, Result};
use crate::path::{Node, Step, Tree, Visit, show};
use crate::types::{Access, Kind};

/// What a copy needs besides the walk.
struct Copier<'a, 'p, 'f> {
    tree: &'a Tree<'a>,
    options: &'a CopyOptions,
    log: &'a mut Log<'p, 'f>,
    /// Host directories that the walk is in, innermost last.
    dirs: Vec<OwnedFd>,
    buffer: Vec<u8>,
}

/// Copies `start` and what is below it to the host.
///
/// # Errors
/// Of what ends the whole copy; entries that failed alone are in [`Copied::failed`].
pub fn copy_out<'t>(
    tree: &'t Tree<'t>,
    start: Node<'t>,
    to: Outward,
    options: &CopyOptions,
    progress: &mut Progress<'_>,
) -> Result<Copied> {
    let mut log = Log::new(progress);
    let mut copier = Copier { tree, options, log: &mut log, dirs: Vec::new(), buffer: Vec::new() };
    let (place, mut into) = match to {
        Outward::As(place) => (Some(place), None),
        Outward::Into(dir) => (None, Some(dir)),
    };
    let keep_outermost = into.is_some();
    if keep_outermost && start.kind() != Kind::Directory {
        return Err(FsError::new(ErrorKind::NotDirectory).on("copy", show(start.path())));
    }
    tree.walk(start, &mut |visit| match visit {
        Visit::Entry { node, depth: 0, .. } if into.is_some() => {
            copier.dirs.extend(into.take());
            copier.log.begin(node.path(), Kind::Directory)?;
            Ok(Step::Into)
        }
        Visit::Entry { node, depth, .. } => copier.entry(node, place.as_ref().filter(|_| depth == 0)),
        Visit::Leave { node, parent } => {
            let dir = copier.dirs.pop().filter(|_| parent.is_some() || !keep_outermost);
            if let Some(dir) = dir {
                match set_mode_and_mtime(dir.as_fd(), node) {
                    Ok(kept) => copier.log.perm(node.path(), node.attr().perm.into(), kept)?,
                    Err(e) => copier.log.failed(unwritten(node, e).about(node.path()))?,
                }
            }
            copier.log.done(Kind::Directory);
            Ok(Step::Past)
        }
        Visit::Failed { error, .. } => copier.log.failed(error).map(|()| Step::Past),
    })?;
    Ok(log.copied)
}

impl Copier<'_, '_, '_> {
    fn entry(&mut self, node: &Node<'_>, place: Option<&HostPlace>) -> Result<Step> {
        self.log.begin(node.path(), node.kind())?;
        match self.copy_entry(node, place) {
            Ok(step) => Ok(step),
            Err(fault) => self.log.failed(fault.about(node.path())).map(|()| Step::Past),
        }
    }

    fn copy_entry(&mut self, node: &Node<'_>, place: Option<&HostPlace>) -> Result<Step, Fault> {
        // The directory is off the stack meanwhile, so that `self` stays free for the copy.
        let taken = if place.is_none() { self.dirs.pop() } else { None };
        let (dir, name) = match (place, &taken) {
            (Some(place), _) => (place.dir.as_fd(), place.name()),
            (None, Some(dir)) => (dir.as_fd(), OsStr::from_bytes(node.name())),
            (None, None) => return Err(FsError::new(ErrorKind::InvalidInput).into()),
        };
        let done = match node.kind() {
            Kind::Directory => make_dir(dir, name).map(Some).map_err(|e| unwritten(node, e)),
            Kind::Symlink => self.link(node, dir, name).map(|()| None),
            Kind::File => self.file(node, dir, name).map(|()| None),
            _ => {
                let told = self.log.left_out(node.path(), "neither a file, a folder nor a symbolic link");
                told.map(|()| None).map_err(Fault::from)
            }
        };
        self.dirs.extend(taken);
        let Some(made) = done? else { return Ok(Step::Past) };
        self.dirs.push(made);
        Ok(Step::Into)
    }

    fn link(&mut self, node: &Node<'_>, dir: BorrowedFd<'_>, name: &OsStr) -> Result<(), Fault> {
        check_replaceable(dir, name).map_err(|e| unwritten(node, e))?;
        let unwritten = |e: io::Error| unwritten(node, e);
        let target = self.tree.read_link(node)?;
        let target = OsStr::from_bytes(&target);
        let (draft, ()) =
            Draft::new(dir, |temporary| Ok(rustix::fs::symlinkat(target, dir, temporary)?)).map_err(unwritten)?;
        let times = mtime_only(node.attr().mtime);
        let stamped = rustix::fs::utimensat(dir, draft.name(), &times, AtFlags::SYMLINK_NOFOLLOW);
        stamped.map_err(io::Error::from).map_err(unwritten)?;
        draft.place(name, self.options.replace).map_err(unwritten)?;
        self.log.done(Kind::Symlink);
        Ok(())
    }

    fn file(&mut self, node: &Node<'_>, dir: BorrowedFd<'_>, name: &OsStr) -> Result<(), Fault> {
        check_replaceable(dir, name).map_err(|e| unwritten(node, e))?;
        let unwritten = |e: io::Error| unwritten(node, e);
        let source = self.tree.store().open(node.ino(), Access::Read)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let private = Mode::from_raw_mode(0o600);
        let (draft, target) =
            Draft::new(dir, |temporary| Ok(rustix::fs::openat(dir, temporary, flags, private)?)).map_err(unwritten)?;
        let mut target = File::from(target);
        self.buffer.resize(COPY_LEN_BYTES, 0);
        let mut offset = 0;
        loop {
            let len = source.read_at(offset, &mut self.buffer)?;
            let Some(piece) = self.buffer.get(..len).filter(|p| !p.is_empty()) else { break };
            target.write_all(piece).map_err(unwritten)?;
            offset += len as u64;
            self.log.bytes(len)?;
        }
        let kept = set_mode_and_mtime(target.as_fd(), node).map_err(|e| self::unwritten(node, e))?;
        draft.place(name, self.options.replace).map_err(unwritten)?;
        self.log.done(Kind::File);
        Ok(self.log.perm(node.path(), node.attr().perm.into(), kept)?)
    }
}

/// An error of the host about the copy of `node`.
fn unwritten(node: &Node<'_>, e: impl Into<FsError>) -> Fault {
    Fault::host("write the copy of", show(node.path()), e)
}

/// Creates the directory, private until it is finished, or opens the one that is there.
fn make_dir(dir: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd> {
    match rustix::fs::mkdirat(dir, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(io::Error::from(e).into()),
    }
    // A link with O_DIRECTORY and O_NOFOLLOW is ENOTDIR on Linux, ELOOP elsewhere.
    let in_the_way = [Errno::NOTDIR, Errno::LOOP].map(|e| Some(e.raw_os_error()));
    open_dir_in(dir, name).map_err(|e| match e.raw_os_error() {
        code if in_the_way.contains(&code) => FsError::new(ErrorKind::NotDirectory)
            .because("the destination has something else, or a symbolic link, in the place of a folder"),
        _ => e.into(),
    })
}

/// Gives the copy of `node` its mode and modification time; returns the mode bits.
fn set_mode_and_mtime(fd: BorrowedFd<'_>, node: &Node<'_>) -> Result<u32> {
    let (attr, stat) = (node.attr(), rustix::fs::fstat(fd).map_err(io::Error::from)?);
    let original = Owner { uid: attr.uid, gid: attr.gid };
    let kept = perm_kept(attr.perm.into(), original, Owner { uid: stat.st_uid, gid: stat.st_gid });
    rustix::fs::fchmod(fd, Mode::from_raw_mode(kept)).map_err(io::Error::from)?;
    rustix::fs::futimens(fd, &mtime_only(attr.mtime)).map_err(io::Error::from)?;
    Ok(kept)
}
