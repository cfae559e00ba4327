//! From a store to the host.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::host::{Draft, HostPlace, check_replaceable, mtime_only, names_in, open_dir_in, stat_in};
use super::names::Names;
use super::{COPY_LEN_BYTES, Copied, CopyOptions, Fault, Lack, Log, Outward, Owner, Progress, kept, perm_kept};
use crate::error::{ErrorKind, FsError, Result};
use crate::host::free_name::FreeNames;
use crate::path::{Node, Step, Tree, Visit, show};
use crate::store::StoreFile;
use crate::types::{Access, Ino, Kind, XattrName};

/// What a copy needs besides the walk.
struct Copier<'a, 'p, 'f> {
    tree: &'a Tree<'a>,
    /// How a free name is taken, where nothing is replaced.
    free: Option<FreeNames>,
    log: &'a mut Log<'p, 'f>,
    /// The host directory that all copies lie in, and what is left out of a path in the store to get one from there.
    base: OwnedFd,
    cut: usize,
    /// The name in `base` of what the start is copied as, if it is not `base` itself.
    start: Vec<u8>,
    /// Files with more names to come: where the first one was copied to.
    links: HashMap<Ino, Placed>,
    /// Host directories that the walk is in, innermost last.
    dirs: Vec<Entered>,
    buffer: Vec<u8>,
}

/// A host directory that the walk is in.
struct Entered {
    fd: OwnedFd,
    /// If the copy made it, private until it is finished: the mode bits of its original, and whose that is.
    made: Option<(u32, Owner)>,
    /// What was copied into it, by device and number.
    names: Names<(u64, u64)>,
}

/// The copy of a file with several names.
struct Placed {
    /// Its path from the base.
    path: Vec<u8>,
    /// Its device and number, which tell whether it is still there.
    identity: (u64, u64),
    /// So many names are to come.
    left: u32,
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
    let (place, mut into) = match to {
        Outward::As(place) => (Some(place), None),
        Outward::Into(dir) => (None, Some(dir)),
    };
    let base = place.as_ref().map(|place| &place.dir).or(into.as_ref()).map(OwnedFd::try_clone);
    let mut copier = Copier {
        tree,
        free: (!options.replace).then(FreeNames::new),
        log: &mut log,
        base: base.ok_or(ErrorKind::InvalidInput)?.map_err(FsError::from)?,
        cut: start.path().len(),
        start: place.as_ref().map_or_else(Vec::new, |place| place.name().as_bytes().to_vec()),
        links: HashMap::new(),
        dirs: Vec::new(),
        buffer: Vec::new(),
    };
    let keep_outermost = into.is_some();
    if keep_outermost && start.kind() != Kind::Directory {
        return Err(FsError::new(ErrorKind::NotDirectory).on("copy", show(start.path())));
    }
    let walked = tree.walk(start, &mut |visit| match visit {
        Visit::Entry { node, depth: 0, .. } if into.is_some() => {
            copier.dirs.extend(into.take().map(|fd| Entered { fd, made: None, names: Names::new(false) }));
            copier.log.begin(node.path(), Kind::Directory)?;
            Ok(Step::Into)
        }
        Visit::Entry { node, depth, .. } => copier.entry(node, place.as_ref().filter(|_| depth == 0)),
        Visit::Leave { node, parent } => {
            let dir = copier.dirs.pop().filter(|_| parent.is_some() || !keep_outermost);
            if let Some(Entered { fd, .. }) = dir {
                let finished = copier.attributes(node, fd.as_fd());
                let finished =
                    finished.and_then(|()| set_mode_and_mtime(fd.as_fd(), node).map_err(|e| unwritten(node, e)));
                match finished {
                    Ok(kept) => {
                        copier.log.perm(node.path(), node.attr().perm.into(), kept)?;
                        copier.log.time(node.path(), node.attr().mtime)?;
                    }
                    Err(fault) => copier.log.failed(fault.about(node.path()))?,
                }
            }
            copier.log.done(Kind::Directory);
            Ok(Step::Past)
        }
        Visit::Failed { error, .. } => copier.log.failed(error).map(|()| Step::Past),
    });
    // Of a copy that ended early: what it made is not to stay as private as it was meanwhile.
    copier.dirs.iter().rev().for_each(Entered::give_mode);
    walked.map(|_| log.copied)
}

impl Entered {
    /// Gives what the copy made the mode of its original. Who hears of the error that ended the copy needs no other.
    fn give_mode(&self) {
        let (Some((perm, original)), Ok(stat)) = (self.made, rustix::fs::fstat(&self.fd)) else { return };
        // What its folder handed on would get rights by the mode that nobody gave.
        let inherited = kept::names_of(self.fd.as_fd()).unwrap_or_default();
        let is_rid = kept::inherited(&inherited, b"").all(|name| kept::remove(self.fd.as_fd(), name).is_ok());
        if is_rid {
            let kept = perm_kept(perm, original, Owner { uid: stat.st_uid, gid: stat.st_gid });
            let _ = rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(kept));
        }
    }
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
        let mut taken = if place.is_none() { self.dirs.pop() } else { None };
        let done = match (place, &mut taken) {
            (Some(place), _) => self.copy_to(node, place.dir.as_fd(), place.name()),
            (None, Some(dir)) => self.copy_into(node, dir),
            (None, None) => return Err(FsError::new(ErrorKind::InvalidInput).into()),
        };
        self.dirs.extend(taken);
        let Some(made) = done? else { return Ok(Step::Past) };
        self.dirs.push(made);
        Ok(Step::Into)
    }

    /// Copies an entry into a directory that the walk is in, if its name does not lead to what was copied there before.
    fn copy_into(&mut self, node: &Node<'_>, dir: &mut Entered) -> Result<Option<Entered>, Fault> {
        let name = OsStr::from_bytes(node.name());
        let identity = |fd: BorrowedFd<'_>| stat_in(fd, name).map(|stat| (stat.st_dev, stat.st_ino));
        if let Ok(there) = identity(dir.fd.as_fd()) {
            let is_listed = || names_in(dir.fd.as_fd()).is_ok_and(|names| names.iter().any(|listed| listed == name));
            dir.names.check(node.name(), &there, false, is_listed).map_err(|e| unwritten(node, e))?;
        }
        let entered = self.copy_to(node, dir.fd.as_fd(), name)?;
        if let Ok(made) = identity(dir.fd.as_fd()) {
            dir.names.note(made, node.name());
        }
        Ok(entered)
    }

    /// Copies an entry as `name` in `dir`; a directory is returned to be gone into.
    fn copy_to(&mut self, node: &Node<'_>, dir: BorrowedFd<'_>, name: &OsStr) -> Result<Option<Entered>, Fault> {
        match node.kind() {
            Kind::Directory => make_dir(dir, name, node).map(Some).map_err(|e| unwritten(node, e)),
            Kind::Symlink => self.link(node, dir, name).map(|()| None),
            Kind::File if node.attr().nlink > 1 => self.linked_file(node, dir, name).map(|()| None),
            Kind::File => self.file(node, dir, name).map(|_| None),
            _ => {
                let told = self.log.left_out(node.path(), "neither a file, a folder nor a symbolic link");
                told.map(|()| None).map_err(Fault::from)
            }
        }
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
        draft.place(name, self.free.as_ref()).map_err(unwritten)?;
        self.log.done(Kind::Symlink);
        self.log.time(node.path(), node.attr().mtime)?;
        Ok(())
    }

    /// Copies a file that has further names, or makes this one a further name of the copy that is there.
    fn linked_file(&mut self, node: &Node<'_>, dir: BorrowedFd<'_>, name: &OsStr) -> Result<(), Fault> {
        if let Some(mut placed) = self.links.remove(&node.ino()) {
            match self.further_name(&placed, dir, name) {
                Ok(true) => {
                    placed.left -= 1;
                    if placed.left > 0 {
                        self.links.insert(node.ino(), placed);
                    }
                    self.log.done(Kind::File);
                    return Ok(());
                }
                Ok(false) => self.log.lost(Lack::Links)?,
                Err(e) => return Err(unwritten(node, e)),
            }
        }
        let identity = self.file(node, dir, name)?;
        let below = node.path().get(self.cut..).unwrap_or_default();
        let path = match self.start.is_empty() {
            true => below.strip_prefix(b"/").unwrap_or(below).to_vec(),
            false => [&self.start, below].concat(),
        };
        self.links.insert(node.ino(), Placed { path, identity, left: node.attr().nlink - 1 });
        Ok(())
    }

    /// Links `name` in `dir` to the copy; false if the host does not, or the copy is not there any more.
    fn further_name(&self, placed: &Placed, dir: BorrowedFd<'_>, name: &OsStr) -> Result<bool> {
        check_replaceable(dir, name)?;
        let path = Path::new(OsStr::from_bytes(&placed.path));
        let Some(first) = path.file_name() else { return Ok(false) };
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let Ok(above) = rustix::fs::openat2(&self.base, above, flags, Mode::empty(), resolve) else { return Ok(false) };
        let is_copy = |dir: BorrowedFd<'_>, name: &OsStr| {
            stat_in(dir, name).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == placed.identity)
        };
        if !is_copy(above.as_fd(), first) {
            return Ok(false);
        }
        // Renaming one name of a file over another does nothing, and would leave the first.
        if is_copy(dir, name) {
            return Ok(true);
        }
        let made =
            Draft::new(dir, |temporary| Ok(rustix::fs::linkat(&above, first, dir, temporary, AtFlags::empty())?));
        let Ok((draft, ())) = made else { return Ok(false) };
        // What someone else has put there in between is not the copy.
        if !is_copy(dir, draft.name()) {
            return Ok(false);
        }
        draft.place(name, self.free.as_ref())?;
        Ok(true)
    }

    /// Gives the copy `fd` the extended attributes of `node`. Before its mode: an ACL sets that, too.
    fn attributes(&mut self, node: &Node<'_>, fd: BorrowedFd<'_>) -> Result<(), Fault> {
        let store = self.tree.store();
        let list = if store.capabilities().xattrs { store.xattr_names(node.ino())? } else { Vec::new() };
        let host = |e: io::Error| unwritten(node, e);
        for name in kept::inherited(&kept::names_of(fd).map_err(host)?, &list) {
            kept::remove(fd, name).map_err(host)?;
        }
        let owner = rustix::fs::fstat(fd).map_err(|e| unwritten(node, io::Error::from(e)))?.st_uid;
        for name in kept::names(&list) {
            if !kept::is_kept(name, node.attr().uid == owner) {
                continue;
            }
            let value = match store.xattr(node.ino(), XattrName::new(name).map_err(FsError::from)?) {
                Err(e) if e.kind() == ErrorKind::NoAttribute => continue,
                other => other?,
            };
            match kept::set_value(fd, name, &value).map_err(FsError::from) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::NotSupported => {
                    self.log.lost(if kept::is_acl(name) { Lack::Acls } else { Lack::Xattrs })?;
                }
                Err(e) => self.log.xattr(node.path(), name, &e)?,
            }
        }
        Ok(())
    }

    /// Copies a file; the device and number of its copy.
    fn file(&mut self, node: &Node<'_>, dir: BorrowedFd<'_>, name: &OsStr) -> Result<(u64, u64), Fault> {
        check_replaceable(dir, name).map_err(|e| unwritten(node, e))?;
        let unwritten = |e: io::Error| unwritten(node, e);
        let source = self.tree.store().open(node.ino(), Access::Read)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let private = Mode::from_raw_mode(0o600);
        let (draft, target) =
            Draft::new(dir, |temporary| Ok(rustix::fs::openat(dir, temporary, flags, private)?)).map_err(unwritten)?;
        let target = File::from(target);
        self.content(&*source, &target, &unwritten)?;
        self.attributes(node, target.as_fd())?;
        let kept = set_mode_and_mtime(target.as_fd(), node).map_err(|e| self::unwritten(node, e))?;
        let meta = target.metadata().map_err(unwritten)?;
        draft.place(name, self.free.as_ref()).map_err(unwritten)?;
        self.log.done(Kind::File);
        self.log.perm(node.path(), node.attr().perm.into(), kept)?;
        self.log.time(node.path(), node.attr().mtime)?;
        Ok((meta.dev(), meta.ino()))
    }

    /// Writes all that `source` holds; what is a hole there is one here.
    fn content(
        &mut self,
        source: &dyn StoreFile,
        target: &File,
        unwritten: &dyn Fn(io::Error) -> Fault,
    ) -> Result<(), Fault> {
        self.buffer.resize(COPY_LEN_BYTES, 0);
        let (len, mut offset) = (source.len()?, 0);
        loop {
            offset = match source.seek_data(offset) {
                Err(e) if e.kind() == ErrorKind::NoData => break,
                other => other?,
            };
            let end = source.seek_hole(offset)?;
            while offset < end {
                let want = usize::try_from(end - offset).unwrap_or(usize::MAX).min(COPY_LEN_BYTES);
                let read = source.read_at(offset, &mut self.buffer[..want])?;
                if read == 0 {
                    // Shorter than a moment ago.
                    return Ok(());
                }
                target.write_all_at(&self.buffer[..read], offset).map_err(unwritten)?;
                offset += read as u64;
                self.log.bytes(read)?;
            }
        }
        if len > target.metadata().map_err(unwritten)?.len() { target.set_len(len).map_err(unwritten) } else { Ok(()) }
    }
}

/// An error of the host about the copy of `node`.
fn unwritten(node: &Node<'_>, e: impl Into<FsError>) -> Fault {
    Fault::host("write the copy of", show(node.path()), e)
}

/// Creates the directory for `node`, private until it is finished, or opens the one that is there.
fn make_dir(dir: BorrowedFd<'_>, name: &OsStr, node: &Node<'_>) -> Result<Entered> {
    let attr = node.attr();
    let made = match rustix::fs::mkdirat(dir, name, Mode::RWXU) {
        Ok(()) => Some((attr.perm.into(), Owner { uid: attr.uid, gid: attr.gid })),
        Err(Errno::EXIST) => None,
        Err(e) => return Err(io::Error::from(e).into()),
    };
    // A link with O_DIRECTORY and O_NOFOLLOW is ENOTDIR on Linux, ELOOP elsewhere.
    let in_the_way = [Errno::NOTDIR, Errno::LOOP].map(|e| Some(e.raw_os_error()));
    let fd = open_dir_in(dir, name).map_err(|e| match e.raw_os_error() {
        code if in_the_way.contains(&code) => FsError::new(ErrorKind::NotDirectory)
            .because("the destination has something else, or a symbolic link, in the place of a folder"),
        _ => FsError::from(e),
    })?;
    Ok(Entered { fd, made, names: Names::new(made.is_some()) })
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
