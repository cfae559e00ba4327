//! Runs operations through system calls below a directory of a mounted filesystem.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use adit_core::types::{AllocateMode, Kind, Timestamp, XATTR_VALUE_LEN_MAX_BYTES, XattrSet};
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Mode, OFlags, RenameFlags, SeekFrom, Stat, Timespec, Timestamps, XattrFlags,
};
use rustix::io::Errno;

use super::{
    Found, Op, Outcome, Place, Seen, Shown, Snapshot, Subject, Target, Xattrs, pattern, takes_xattrs, user_names,
};

type Run<T> = Result<T, Errno>;

/// A directory as a [`Subject`].
pub struct PathSubject {
    root: OwnedFd,
    slots: BTreeMap<u8, OwnedFd>,
}

impl PathSubject {
    /// Opens `dir`, which should be empty.
    pub fn new(dir: &Path) -> std::io::Result<Self> {
        let root = rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(PathSubject { root, slots: BTreeMap::new() })
    }

    fn open(&self, place: &Place, flags: OFlags, perm: u16) -> Run<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.root, path(place), flags, Mode::from_raw_mode(perm.into()))
    }

    fn with_file(&self, target: &Target, flags: OFlags, act: impl FnOnce(&OwnedFd) -> Run<Outcome>) -> Run<Outcome> {
        match target {
            Target::At(place) if self.is_special(place)? => Ok(Outcome::Skipped),
            Target::At(place) => act(&self.open(place, flags, 0)?),
            Target::Slot(slot) => self.slots.get(slot).map_or(Ok(Outcome::Skipped), act),
        }
    }

    fn stat(&self, place: &Place) -> Run<Stat> {
        rustix::fs::statat(&self.root, path(place), AtFlags::SYMLINK_NOFOLLOW)
    }

    fn is_link(&self, place: &Place) -> Run<bool> {
        Ok(FileType::from_raw_mode(self.stat(place)?.st_mode) == FileType::Symlink)
    }

    /// Whether it is a node that is not the filesystem's to open: a FIFO, a socket or a device.
    fn is_special(&self, place: &Place) -> Run<bool> {
        let kind = kind_of(&self.stat(place)?);
        Ok(!matches!(kind, Kind::File | Kind::Directory | Kind::Symlink))
    }

    fn on_names(&mut self, op: &Op) -> Run<Outcome> {
        let root = &self.root;
        match op {
            Op::Create(place, perm) => {
                self.open(&place.0, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, *perm)?;
            }
            Op::Mkdir(place, perm) => {
                rustix::fs::mkdirat(root, path(&place.0), Mode::from_raw_mode((*perm).into()))?;
            }
            Op::Mknod(place, kind, perm) => {
                let kind = if *kind == Kind::Fifo { FileType::Fifo } else { FileType::Socket };
                rustix::fs::mknodat(root, path(&place.0), kind, Mode::from_raw_mode((*perm).into()), 0)?;
            }
            Op::Symlink(place, target) => rustix::fs::symlinkat(&target[..], root, path(&place.0))?,
            Op::Link(from, to) => rustix::fs::linkat(root, path(&from.0), root, path(&to.0), AtFlags::empty())?,
            Op::Unlink(place) => rustix::fs::unlinkat(root, path(&place.0), AtFlags::empty())?,
            Op::Rmdir(place) => rustix::fs::unlinkat(root, path(&place.0), AtFlags::REMOVEDIR)?,
            Op::Rename(from, to, flags) => {
                let flags = RenameFlags::from_bits_retain(flags.bits());
                rustix::fs::renameat_with(root, path(&from.0), root, path(&to.0), flags)?;
            }
            _ => unreachable!("not an operation on names"),
        }
        Ok(Outcome::Done)
    }

    fn on_content(&mut self, op: &Op) -> Run<Outcome> {
        match op {
            Op::Write(target, pieces, seed) => self.with_file(target, OFlags::RDWR, |fd| {
                for &(at, len) in pieces {
                    write_all(fd, at, &pattern(*seed, at, len))?;
                }
                Ok(Outcome::Done)
            }),
            Op::Read(target, offset, len) => {
                let read = |fd: &OwnedFd| Ok(Outcome::Bytes(read_up_to(fd, *offset, *len)?));
                match target {
                    // The store's subject says that of directories at once, and the kernel when they are read.
                    Target::At(_) => self.with_file(target, OFlags::RDONLY, read),
                    Target::Slot(_) => self.with_file(target, OFlags::RDWR, read),
                }
            }
            Op::ReadSparse(target) => self.with_file(target, OFlags::RDWR, |fd| Ok(Outcome::Bytes(read_sparse(fd)?))),
            Op::Truncate(target, len, _) => self.with_file(target, OFlags::WRONLY, |fd| {
                rustix::fs::ftruncate(fd, *len)?;
                Ok(Outcome::Done)
            }),
            Op::Allocate(target, offset, len, mode) => self.with_file(target, OFlags::RDWR, |fd| {
                rustix::fs::fallocate(fd, fallocate_flags(*mode), *offset, *len)?;
                Ok(Outcome::Done)
            }),
            Op::Sync(target, data_only) => self.with_file(target, OFlags::RDWR, |fd| {
                if *data_only {
                    rustix::fs::fdatasync(fd)?
                } else {
                    rustix::fs::fsync(fd)?
                }
                Ok(Outcome::Done)
            }),
            Op::Open(slot, place) => {
                self.slots.remove(slot);
                if self.is_special(&place.0)? {
                    return Ok(Outcome::Skipped);
                }
                let fd = self.open(&place.0, OFlags::RDWR, 0)?;
                self.slots.insert(*slot, fd);
                Ok(Outcome::Done)
            }
            Op::Close(slot) => {
                self.slots.remove(slot);
                Ok(Outcome::Done)
            }
            _ => unreachable!("not an operation on content"),
        }
    }

    fn on_attributes(&mut self, op: &Op) -> Run<Outcome> {
        match op {
            Op::List(place) => Ok(Outcome::Names(self.list(&place.0)?)),
            Op::Stat(place) => Ok(Outcome::Seen(seen(&self.stat(&place.0)?))),
            Op::ReadLink(place) => {
                let target = rustix::fs::readlinkat(&self.root, path(&place.0), Vec::new())?;
                Ok(Outcome::Bytes(target.into_bytes()))
            }
            Op::Chmod(place, perm) => {
                if self.is_link(&place.0)? {
                    return Ok(Outcome::Skipped);
                }
                let mode = Mode::from_raw_mode((*perm).into());
                rustix::fs::chmodat(&self.root, path(&place.0), mode, AtFlags::empty())?;
                Ok(Outcome::Seen(seen(&self.stat(&place.0)?)))
            }
            Op::SetTimes(place, atime, mtime) => {
                if self.is_link(&place.0)? {
                    return Ok(Outcome::Skipped);
                }
                let spec = |t: &Timestamp| Timespec { tv_sec: t.secs, tv_nsec: t.nanos.into() };
                let times = Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
                rustix::fs::utimensat(&self.root, path(&place.0), &times, AtFlags::SYMLINK_NOFOLLOW)?;
                let st = self.stat(&place.0)?;
                let time = |secs, nanos: u64| Timestamp { secs, nanos: nanos as u32 };
                Ok(Outcome::Times(time(st.st_atime, st.st_atime_nsec), time(st.st_mtime, st.st_mtime_nsec)))
            }
            Op::SyncDir(place) => {
                if self.is_link(&place.0)? {
                    return Err(Errno::NOTDIR);
                }
                rustix::fs::fsync(self.open(&place.0, OFlags::RDONLY | OFlags::DIRECTORY, 0)?)?;
                Ok(Outcome::Done)
            }
            Op::SyncAll => {
                rustix::fs::syncfs(&self.root)?;
                Ok(Outcome::Done)
            }
            _ => unreachable!("not an operation on attributes"),
        }
    }

    /// A path that leads to `place` without the working directory, for calls that take no directory.
    fn whole_path(&self, place: &Place) -> PathBuf {
        let root = PathBuf::from(format!("/proc/self/fd/{}", self.root.as_raw_fd()));
        root.join(path(place))
    }

    fn on_xattrs(&self, place: &Place, op: &Op) -> Run<Outcome> {
        let kind = kind_of(&self.stat(place)?);
        if !takes_xattrs(kind) {
            return Ok(Outcome::Skipped);
        }
        let at = self.whole_path(place);
        match op {
            Op::SetXattr(_, name, (len, seed), set) => {
                let flags = match set {
                    XattrSet::Either => XattrFlags::empty(),
                    XattrSet::Create => XattrFlags::CREATE,
                    XattrSet::Replace => XattrFlags::REPLACE,
                };
                rustix::fs::lsetxattr(&at, &name[..], &pattern(*seed, 0, *len), flags)?;
                Ok(Outcome::Done)
            }
            Op::GetXattr(_, name) => Ok(Outcome::Bytes(xattr(&at, name)?)),
            Op::RemoveXattr(_, name) => {
                rustix::fs::lremovexattr(&at, &name[..])?;
                Ok(Outcome::Done)
            }
            Op::ListXattrs(_) => Ok(Outcome::Names(xattr_names(&at)?.into_iter().map(|name| (name, kind)).collect())),
            _ => unreachable!("not an operation on extended attributes"),
        }
    }

    /// Extended attributes for a snapshot; none where the filesystem has none.
    fn xattrs(&self, place: &Place, kind: Kind) -> Run<Xattrs> {
        if !takes_xattrs(kind) {
            return Ok(Xattrs::new());
        }
        let at = self.whole_path(place);
        let names = match xattr_names(&at) {
            Err(Errno::OPNOTSUPP) => Vec::new(),
            names => names?,
        };
        names.into_iter().map(|name| Ok((name.clone(), xattr(&at, &name)?))).collect()
    }

    fn list(&self, place: &Place) -> Run<Vec<(Vec<u8>, Kind)>> {
        let fd = self.open(place, OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&fd)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        names.sort_unstable();
        let kind = |name: Vec<u8>| {
            let st = rustix::fs::statat(&fd, &name[..], AtFlags::SYMLINK_NOFOLLOW)?;
            Ok((name, kind_of(&st)))
        };
        names.into_iter().map(kind).collect()
    }

    fn walk(&self, at: &mut Place, found: &mut Snapshot) -> Result<(), String> {
        let fail = |at: &Place, what: &str, e: Errno| format!("{what} {:?}: {e}", Shown(at.clone()));
        for (name, kind) in self.list(at).map_err(|e| fail(at, "list", e))? {
            at.push(name);
            let st = self.stat(at).map_err(|e| fail(at, "stat", e))?;
            let content = match kind {
                Kind::File => self.whole(at, st.st_size as usize).map_err(|e| fail(at, "read", e)),
                Kind::Symlink => rustix::fs::readlinkat(&self.root, path(at), Vec::new())
                    .map(|target| target.into_bytes())
                    .map_err(|e| fail(at, "read link", e)),
                _ => Ok(Vec::new()),
            };
            let xattrs = self.xattrs(at, kind).map_err(|e| fail(at, "extended attributes of", e))?;
            found.0.insert(Shown(at.clone()), Found { seen: seen(&st), content: content?, xattrs });
            if kind == Kind::Directory {
                self.walk(at, found)?;
            }
            at.pop();
        }
        Ok(())
    }

    fn whole(&self, place: &Place, len: usize) -> Run<Vec<u8>> {
        read_up_to(&self.open(place, OFlags::RDONLY, 0)?, 0, len + 1)
    }
}

impl Subject for PathSubject {
    fn run(&mut self, op: &Op) -> Outcome {
        let outcome = match op {
            Op::Create(..) | Op::Mkdir(..) | Op::Mknod(..) | Op::Symlink(..) | Op::Link(..) => self.on_names(op),
            Op::Unlink(..) | Op::Rmdir(..) | Op::Rename(..) => self.on_names(op),
            Op::Write(..) | Op::Read(..) | Op::Truncate(..) | Op::Allocate(..) => self.on_content(op),
            Op::Sync(..) | Op::Open(..) | Op::Close(..) | Op::ReadSparse(_) => self.on_content(op),
            Op::SetXattr(Shown(at), ..) | Op::GetXattr(Shown(at), _) => self.on_xattrs(at, op),
            Op::RemoveXattr(Shown(at), _) | Op::ListXattrs(Shown(at)) => self.on_xattrs(at, op),
            _ => self.on_attributes(op),
        };
        outcome.unwrap_or_else(|e| Outcome::Failed(e.raw_os_error()))
    }

    fn snapshot(&mut self) -> Result<Snapshot, String> {
        let mut found = Snapshot::default();
        self.walk(&mut Vec::new(), &mut found)?;
        Ok(found)
    }
}

fn path(place: &Place) -> PathBuf {
    if place.is_empty() {
        return PathBuf::from(".");
    }
    place.iter().map(|name| OsString::from_vec(name.clone())).collect()
}

/// The value of an extended attribute, of any length that a store can have.
fn xattr(at: &Path, name: &[u8]) -> Run<Vec<u8>> {
    let mut value = vec![0; XATTR_VALUE_LEN_MAX_BYTES];
    let len = rustix::fs::lgetxattr(at, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

fn xattr_names(at: &Path) -> Run<Vec<Vec<u8>>> {
    let mut list = vec![0; XATTR_VALUE_LEN_MAX_BYTES];
    let len = rustix::fs::llistxattr(at, &mut list[..])?;
    Ok(user_names(&list[..len]))
}

/// What lies in the ranges that are said to be data, and zeros between them.
fn read_sparse(fd: &OwnedFd) -> Run<Vec<u8>> {
    let mut content = vec![0; rustix::fs::fstat(fd)?.st_size as usize];
    let mut at = 0;
    loop {
        let data = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => return Ok(content),
            data => data?,
        };
        let hole = rustix::fs::seek(fd, SeekFrom::Hole(data))?;
        assert!(at <= data && data < hole && hole <= content.len() as u64, "data at {data}..{hole}, asked at {at}");
        let read = read_up_to(fd, data, (hole - data) as usize)?;
        content[data as usize..][..read.len()].copy_from_slice(&read);
        at = hole;
    }
}

fn fallocate_flags(mode: AllocateMode) -> FallocateFlags {
    match mode {
        AllocateMode::Extend => FallocateFlags::empty(),
        AllocateMode::KeepSize => FallocateFlags::KEEP_SIZE,
        AllocateMode::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        AllocateMode::Zero { keep_size: false } => FallocateFlags::ZERO_RANGE,
        AllocateMode::Zero { keep_size: true } => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
    }
}

fn write_all(fd: &OwnedFd, mut offset: u64, mut bytes: &[u8]) -> Run<()> {
    while !bytes.is_empty() {
        let len = rustix::io::pwrite(fd, bytes, offset)?;
        bytes = &bytes[len..];
        offset += len as u64;
    }
    Ok(())
}

fn read_up_to(fd: &OwnedFd, offset: u64, len: usize) -> Run<Vec<u8>> {
    let mut buf = vec![0xaa; len];
    let mut done = 0;
    while done < len {
        match rustix::io::pread(fd, &mut buf[done..], offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    buf.truncate(done);
    Ok(buf)
}

fn kind_of(st: &Stat) -> Kind {
    match FileType::from_raw_mode(st.st_mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::CharacterDevice => Kind::CharDevice,
        FileType::Fifo => Kind::Fifo,
        _ => Kind::Socket,
    }
}

#[allow(clippy::unnecessary_cast)] // The fields' types differ between architectures.
fn seen(st: &Stat) -> Seen {
    let kind = kind_of(st);
    let directory = kind == Kind::Directory;
    Seen {
        kind,
        perm: if kind == Kind::Symlink { 0 } else { (st.st_mode & 0o7777) as u16 },
        size: if directory { 0 } else { st.st_size as u64 },
        nlink: if directory { 0 } else { st.st_nlink as u32 },
        owner: (st.st_uid, st.st_gid),
    }
}
