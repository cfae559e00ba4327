//! Opening what is in the folder, one component at a time.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use adit_core::host::makes_numbers_up;
use adit_core::numbers::{Numbering, of_path};
use adit_core::types::{Attr, Ino, Kind};
use adit_core::{ErrorKind, FsError, Result};
use adit_media::host::{attr_of, kind_of, with_proc_path};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::{Errno, retry_on_intr};

/// What opens a place and neither reads nor writes it.
const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The folder, as a place to open things from.
pub(crate) struct Folder {
    root: Arc<OwnedFd>,
    /// Device and number of the folder itself, as the host has them.
    identity: (u64, u64),
    numbering: Numbering,
    /// Numbers are those of paths, for the host makes its own up.
    by_path: bool,
    /// Refuses what is on another device than the folder itself.
    one_device: bool,
    /// What `openat2` must refuse, or `None` where nobody knows that call.
    resolve: Option<ResolveFlags>,
    /// Leaves access times alone.
    pub(crate) read_only: bool,
}

/// Something that was found, open as a place only.
pub(crate) struct Found {
    pub(crate) fd: OwnedFd,
    pub(crate) attr: Attr,
}

impl Folder {
    /// Opens it; what is `lasting` has numbers that are the same when the host was mounted again.
    pub(crate) fn open(path: &Path, read_only: bool, lasting: bool, one_device: bool) -> Result<Folder> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fail = |e: Errno| fail(e).on("open", path.display());
        let root = retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty())).map_err(fail)?;
        let st = rustix::fs::fstat(&root).map_err(fail)?;
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let by_path = lasting && makes_numbers_up(&root).map_err(fail)?;
        let known = retry_on_intr(|| rustix::fs::openat2(&root, c".", flags, Mode::empty(), resolve)).is_ok();
        Ok(Folder {
            root: Arc::new(root),
            identity: (st.st_dev, st.st_ino),
            // The device is another one with each mount.
            numbering: Numbering::new(if by_path { 0 } else { st.st_dev }),
            by_path,
            one_device,
            resolve: known.then_some(resolve),
            read_only,
        })
    }

    /// The same with the numbers that it has, which is a mount of this program.
    pub(crate) fn with_numbers_of_mount(self) -> Folder {
        Folder { numbering: Numbering::of_mount(self.identity.0), ..self }
    }

    /// The folder itself.
    pub(crate) fn root(&self) -> &Arc<OwnedFd> {
        &self.root
    }

    /// Its device and number on the host.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// True if its numbers are those of paths.
    pub(crate) fn is_by_path(&self) -> bool {
        self.by_path
    }

    /// Opens the entry `name` of `dir`, which is no link; `.` is `dir` itself.
    pub(crate) fn open_in(&self, dir: impl AsFd, name: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        retry_on_intr(|| match self.resolve {
            Some(resolve) => rustix::fs::openat2(&dir, name, flags, mode, resolve),
            None => rustix::fs::openat(&dir, name, flags, mode),
        })
    }

    /// Finds the entry `name` of `dir`, which has the number `parent`.
    pub(crate) fn find(&self, (dir, parent): (impl AsFd, Ino), name: &[u8]) -> Result<Found> {
        let fd = self.open_in(dir, name, PLACE, Mode::empty()).map_err(fail)?;
        let attr = self.attr_as(&fd, self.number_by_path(parent, name))?;
        Ok(Found { fd, attr })
    }

    /// The number of an entry, where that is one of its path.
    fn number_by_path(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        self.by_path.then(|| self.numbering.own(of_path(parent, name)))
    }

    /// What a listing says that an entry of `dir` is; where the host does not say, it is looked at. `None` if it is gone.
    pub(crate) fn listed_kind(&self, dir: (impl AsFd, Ino), name: &[u8], told: FileType) -> Result<Option<Kind>> {
        if let Some(kind) = kind_of(told) {
            return Ok(Some(kind));
        }
        match self.find(dir, name) {
            Ok(found) => Ok(Some(found.attr.kind)),
            Err(e) if e.is_not_found() => Ok(None),
            // Another filesystem is mounted there. Nobody can go in, but the entry is there.
            Err(e) if e.kind() == ErrorKind::CrossDevice => Ok(Some(Kind::Directory)),
            Err(e) => Err(e),
        }
    }

    /// Opens what `fd` is anew, by way of `/proc`: the object itself, whatever its names have become.
    pub(crate) fn again(&self, fd: impl AsFd, flags: OFlags) -> Result<OwnedFd> {
        with_proc_path(fd, |path| {
            let open = |flags| retry_on_intr(|| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()));
            self.quietly(flags, open).map_err(io::Error::from)
        })
        .map_err(FsError::from)
    }

    /// Opens the directory `dir` to read its entries.
    pub(crate) fn listing(&self, dir: impl AsFd) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        self.quietly(flags, |flags| self.open_in(&dir, b".", flags, Mode::empty())).map_err(fail)
    }

    /// Opens without a mark in the access time, where nothing is to be changed and the host lets us.
    fn quietly(&self, flags: OFlags, open: impl Fn(OFlags) -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
        if self.read_only {
            match open(flags | OFlags::NOATIME) {
                Err(Errno::PERM) => {}
                other => return other,
            }
        }
        open(flags)
    }

    /// The attributes of what is open, under the host's number as it is here.
    pub(crate) fn attr(&self, fd: impl AsFd) -> Result<Attr> {
        self.attr_as(fd, None)
    }

    /// The same of what is known as `ino`.
    pub(crate) fn attr_of_known(&self, fd: impl AsFd, ino: Ino) -> Result<Attr> {
        self.attr_as(fd, self.by_path.then_some(ino))
    }

    /// The same under a number of its path, if it has one. Names of one file are files of their own then: nothing shows that they are one.
    fn attr_as(&self, fd: impl AsFd, by_path: Option<Ino>) -> Result<Attr> {
        let st = rustix::fs::fstat(fd).map_err(fail)?;
        let (host_number, attr) = (self.number(&st)?, attr_of(&st));
        let Some(ino) = by_path else { return Ok(Attr { ino: host_number, ..attr }) };
        let nlink = if attr.kind == Kind::Directory { attr.nlink } else { 1 };
        Ok(Attr { ino, nlink, ..attr })
    }

    /// The number here of an entry that a listing of the directory `parent` on the device `dev` tells. An entry that is on another device
    /// than its directory has another number when it is looked up.
    pub(crate) fn listed(&self, parent: Ino, name: &[u8], (dev, host_ino): (u64, u64)) -> Result<Ino> {
        self.number_by_path(parent, name).map_or_else(|| self.numbered(dev, host_ino), Ok)
    }

    fn number(&self, st: &Stat) -> Result<Ino> {
        self.numbered(st.st_dev, st.st_ino)
    }

    fn numbered(&self, dev: u64, host_ino: u64) -> Result<Ino> {
        if dev == self.identity.0 {
            return self.numbering.number(dev, self.swapped(host_ino));
        }
        if self.one_device {
            let why = "it is on another device than the folder, which the layer below an overlay cannot have";
            return Err(FsError::new(ErrorKind::NotSupported).because(why));
        }
        self.numbering.number(dev, host_ino)
    }

    /// The root of a store has a number of its own; whatever had that on the host gets the folder's.
    fn swapped(&self, host_ino: u64) -> u64 {
        match host_ino {
            ino if ino == self.identity.1 => Ino::ROOT.0,
            ino if ino == Ino::ROOT.0 => self.identity.1,
            ino => ino,
        }
    }
}

/// An error of the host.
pub(crate) fn fail(e: Errno) -> FsError {
    match e {
        Errno::NODATA => ErrorKind::NoAttribute.into(),
        Errno::RANGE => ErrorKind::OutOfRange.into(),
        Errno::TOOBIG => ErrorKind::NoSpace.into(),
        Errno::XDEV => FsError::new(ErrorKind::CrossDevice).because("another filesystem is mounted there"),
        e => io::Error::from(e).into(),
    }
}

/// Room for the entries that one call of the host tells.
pub(crate) fn listing_buffer() -> Box<[MaybeUninit<u8>]> {
    const LEN_BYTES: usize = 32 << 10;
    Box::new_uninit_slice(LEN_BYTES)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use adit_core::numbers::NUMBERS_END;

    use super::*;

    fn folder(one_device: bool) -> (Folder, u64) {
        let folder = Folder::open(Path::new("/"), true, one_device, one_device).unwrap();
        let dev = folder.identity.0;
        (folder, dev)
    }

    fn kind<T>(result: Result<T>) -> ErrorKind {
        result.err().expect("fails").kind()
    }

    #[test]
    fn no_two_devices_share_a_number() {
        let (here, dev) = folder(false);
        let number = |dev, ino| here.numbered(dev, ino).unwrap();
        let numbers = [number(dev, 77), number(dev + 1, 77), number(dev + 2, 77), number(dev, u64::MAX - 77)];
        assert_eq!(numbers[0], Ino(77));
        assert_eq!(HashSet::from(numbers).len(), numbers.len());
        assert!(numbers.iter().all(|number| number.0 < NUMBERS_END / 2));
        assert_eq!(here.listed(Ino::ROOT, b"f", (dev + 1, 77)).unwrap(), numbers[1], "listings agree");
        assert_eq!(number(dev, here.identity.1), Ino::ROOT);
    }

    #[test]
    fn the_layer_below_an_overlay_has_one_device() {
        let (here, dev) = folder(true);
        assert_eq!(here.numbered(dev, 77).unwrap(), Ino(77));
        assert_eq!(kind(here.numbered(dev + 1, 77)), ErrorKind::NotSupported);
        assert_eq!(kind(here.listed(Ino::ROOT, b"f", (dev + 1, 77))), ErrorKind::NotSupported);
    }

    /// Of hosts that do not say in a listing what an entry is.
    #[test]
    fn what_a_listing_does_not_say_is_looked_at_and_never_left_out() {
        let (here, _) = folder(false);
        let kind = |name: &[u8], told| here.listed_kind((here.root(), Ino::ROOT), name, told);
        assert_eq!(kind(b"usr", FileType::Unknown).unwrap(), Some(Kind::Directory));
        assert_eq!(kind(b"adit, which is not there", FileType::Unknown).unwrap(), None);
        assert_eq!(kind(b"proc", FileType::Unknown).unwrap(), Some(Kind::Directory), "a mount");
        assert_eq!(kind(&[b'x'; 300], FileType::Unknown).unwrap_err().kind(), ErrorKind::NameTooLong);
        assert_eq!(kind(b"any", FileType::Fifo).unwrap(), Some(Kind::Fifo));
    }
}
