//! Opening what is in the folder, one component at a time.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use adit_core::types::{Attr, Ino};
use adit_core::{ErrorKind, FsError, Result};
use adit_media::host::{attr_of, with_proc_path};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, ResolveFlags, Stat};
use rustix::io::{Errno, retry_on_intr};

/// What opens a place and neither reads nor writes it.
const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Numbers of files of a further device (a subvolume of btrfs, a layer of overlayfs) have that device's place in a table
/// from this bit on. Bit 62 and above are never set: an overlay marks its own numbers there.
const DEVICE_SHIFT: u32 = 54;
/// Most devices in one folder, that of the folder itself among them.
const DEVICES_MAX: usize = 256;

/// The folder, as a place to open things from.
pub(crate) struct Folder {
    root: Arc<OwnedFd>,
    /// Device and number of the folder itself, as the host has them.
    identity: (u64, u64),
    /// Devices besides the folder's own, in the order in which they were met.
    devices: Mutex<Vec<u64>>,
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
    pub(crate) fn open(path: &Path, read_only: bool) -> Result<Folder> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fail = |e: Errno| fail(e).on("open", path.display());
        let root = retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty())).map_err(fail)?;
        let st = rustix::fs::fstat(&root).map_err(fail)?;
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let known = retry_on_intr(|| rustix::fs::openat2(&root, c".", flags, Mode::empty(), resolve)).is_ok();
        Ok(Folder {
            root: Arc::new(root),
            identity: (st.st_dev, st.st_ino),
            devices: Mutex::default(),
            resolve: known.then_some(resolve),
            read_only,
        })
    }

    /// The folder itself.
    pub(crate) fn root(&self) -> &Arc<OwnedFd> {
        &self.root
    }

    /// Its device and number on the host.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Opens the entry `name` of `dir`, which is no link; `.` is `dir` itself.
    pub(crate) fn open_in(&self, dir: impl AsFd, name: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        retry_on_intr(|| match self.resolve {
            Some(resolve) => rustix::fs::openat2(&dir, name, flags, mode, resolve),
            None => rustix::fs::openat(&dir, name, flags, mode),
        })
    }

    /// Finds the entry `name` of `dir`.
    pub(crate) fn find(&self, dir: impl AsFd, name: &[u8]) -> Result<Found> {
        let fd = self.open_in(dir, name, PLACE, Mode::empty()).map_err(fail)?;
        let attr = self.attr(&fd)?;
        Ok(Found { fd, attr })
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

    /// The attributes of what is open, under its number here.
    pub(crate) fn attr(&self, fd: impl AsFd) -> Result<Attr> {
        let st = rustix::fs::fstat(fd).map_err(fail)?;
        Ok(Attr { ino: self.number(&st)?, ..attr_of(&st) })
    }

    /// The number here of an entry that a listing tells.
    pub(crate) fn listed(&self, host_ino: u64) -> Ino {
        Ino(self.swapped(host_ino))
    }

    fn number(&self, st: &Stat) -> Result<Ino> {
        if st.st_dev == self.identity.0 {
            return Ok(Ino(self.swapped(st.st_ino)));
        }
        let mut devices = self.devices.lock();
        let place = match devices.iter().position(|dev| *dev == st.st_dev) {
            Some(place) => place,
            None => {
                devices.push(st.st_dev);
                devices.len() - 1
            }
        };
        if place + 1 >= DEVICES_MAX || st.st_ino >> DEVICE_SHIFT != 0 {
            return Err(FsError::new(ErrorKind::NotSupported).because("too many devices in one folder"));
        }
        Ok(Ino(((place as u64 + 1) << DEVICE_SHIFT) | st.st_ino))
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
