//! A folder of the host as a [`HostDir`].
//!
//! [`HostDirectory`] holds one descriptor of the folder and resolves every path relative to it; [`OpenFile`] is an open
//! file in it. Invariant: nothing is opened, made, changed, moved or removed through a symbolic link, wherever in the path
//! it is, nor outside the folder. Opens leave that to `openat2(2)` (it costs no more than `openat`, 1.1 µs either way);
//! whatever else changes something opens the directory that holds the path in that way first, and acts in it.
//!
//! [`stat`](HostDir::stat) alone follows links in the middle of a path (never the last component): it is one call of the
//! kernel on every lookup, and would be three. What it tells of a place outside can neither be read nor changed here.
//!
//! A new file is an unnamed one (`O_TMPFILE`) that gets its name when its content is complete: 15 µs on ext4, against
//! 20 µs for a temporary that is renamed, and a kill leaves nothing behind. Where the host lacks a part of that, or a link
//! is another file there ([`Links`]), the named temporary `.adit-<8 hex digits>.tmp` takes its place, and a kill may leave
//! one of those.
//!
//! A removed file can be [held](freeing) for those who found it under its name. Freeing its space takes long, and is done by a thread of its own.

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adit_core::host;
use adit_core::host::free_name::{self, FreeNames, Links};
use adit_core::media::{HeldFile, HostDir, HostEntry, HostFile, NewFile, Published, SyncTarget};
use adit_core::types::{Access, Attr, Caller, Kind, RenameFlags, SetAttr, StatFs};
use rustix::fs::{AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, RawDir, ResolveFlags, Stat, StatxFlags, Uid};
use rustix::io::{Errno, retry_on_intr};

mod freeing;
#[cfg(test)]
mod tests;
mod trial;

use self::freeing::{Freeing, Held};
use crate::block_file::{lock_range, lock_whole, punch};
use crate::host::{
    attr_of, chmod, ids, kind_of, mode, statfs_of, times, umask, unless_refused, with_proc_path, write_all_at,
};

/// Bytes that one `getdents64` may return: some 500 vault entries. On the stack, untouched until filled.
const LIST_BUFFER_LEN_BYTES: usize = 32 << 10;

/// The set-group-ID bit of a mode: entries of such a directory belong to its group.
const SET_GID: u32 = 0o2000;

/// A folder of the host with all that is below it.
///
/// Locking: none of its own; the host serialises. Errors are the host's.
pub struct HostDirectory {
    root: OwnedFd,
    /// What `openat2` must refuse, or `None` where the kernel (or a sandbox) does not know that call.
    resolve: Option<ResolveFlags>,
    /// Whether publishing goes through unnamed files; cleared at the first sign that the host has none.
    unnamed: AtomicBool,
    /// Whether an unnamed file is linked through its descriptor. Before Linux 6.10 that needs a capability, and the
    /// way through `/proc` does not.
    link_by_descriptor: AtomicBool,
    /// How a free name is taken, and what links are.
    names: FreeNames,
    /// Removed files that are not freed yet.
    freeing: Arc<Freeing>,
    uid: Uid,
    gid: Gid,
    umask: u16,
}

impl AsFd for HostDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

/// The directory that holds a path.
enum Parent<'a> {
    /// The folder itself.
    Root(BorrowedFd<'a>),
    /// One below it, opened as a place only.
    Below(OwnedFd),
}

impl AsFd for Parent<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Parent::Root(fd) => *fd,
            Parent::Below(fd) => fd.as_fd(),
        }
    }
}

impl HostDirectory {
    /// Opens the folder `path`; a symbolic link to a folder is one.
    pub fn open(path: &Path) -> io::Result<HostDirectory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()))?;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let known = rustix::fs::openat2(&root, c".", flags, Mode::empty(), resolve).is_ok();
        Ok(HostDirectory {
            freeing: Arc::new(Freeing::new(&root)),
            root,
            resolve: known.then_some(resolve),
            unnamed: AtomicBool::new(true),
            link_by_descriptor: AtomicBool::new(true),
            names: FreeNames::new(),
            uid: rustix::process::geteuid(),
            gid: rustix::process::getegid(),
            umask: umask(),
        })
    }

    /// Whether the folder itself was removed by somebody, so that nothing can be in it any more.
    pub fn is_removed(&self) -> io::Result<bool> {
        Ok(rustix::fs::fstat(&self.root)?.st_nlink == 0)
    }

    pub(crate) fn open_at(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match self.resolve {
            Some(resolve) => retry_on_intr(|| rustix::fs::openat2(&self.root, or_root(path), flags, mode, resolve)),
            None => {
                let (dir, name) = self.parent(path)?;
                retry_on_intr(|| rustix::fs::openat(&dir, name, flags, mode))
            }
        }
    }

    /// The directory that holds `path`, and the name in it, to act there without following a link on the way.
    fn parent<'p>(&self, path: &'p Path) -> Result<(Parent<'_>, &'p OsStr), Errno> {
        let Some(above) = path.parent() else { return Ok((Parent::Root(self.root.as_fd()), OsStr::new("."))) };
        let name = path.file_name().ok_or(Errno::INVAL)?;
        if above.as_os_str().is_empty() {
            return Ok((Parent::Root(self.root.as_fd()), name));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let below = match self.resolve {
            Some(resolve) => retry_on_intr(|| rustix::fs::openat2(&self.root, above, flags, Mode::empty(), resolve))?,
            None => self.walk(above, flags)?,
        };
        Ok((Parent::Below(below), name))
    }

    /// Opens a directory step by step, for kernels without `openat2`.
    fn walk(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut at = None;
        for part in path.components() {
            let Component::Normal(name) = part else { return Err(Errno::INVAL) };
            let from = at.as_ref().map_or(self.root.as_fd(), OwnedFd::as_fd);
            let next = retry_on_intr(|| rustix::fs::openat(from, name, flags, Mode::empty()))?;
            at = Some(next);
        }
        at.ok_or(Errno::INVAL)
    }

    /// Opens a regular file and nothing else. `NONBLOCK`, so that a FIFO that someone put here cannot hang us.
    pub(crate) fn open_regular(&self, path: &Path, access: OFlags) -> io::Result<OwnedFd> {
        let fd = self.open_at(path, access | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty())?;
        check_regular(&fd)?;
        Ok(fd)
    }

    /// The ids that a new object with `st` must change to, for `owner`. The group that a set-group-ID directory gave it
    /// stays; `inherited` says whether it lies in one, and is asked only where that group is our own by chance.
    fn owner_change(
        &self,
        st: &Stat,
        owner: Option<Caller>,
        inherited: impl FnOnce() -> bool,
    ) -> Option<(Option<Uid>, Option<Gid>)> {
        let owner = owner.filter(|_| self.uid.is_root())?;
        let uid = (owner.uid != st.st_uid).then(|| Uid::from_raw(owner.uid));
        let other_group = st.st_gid == self.gid.as_raw() && owner.gid != st.st_gid;
        let gid = (other_group && !inherited()).then(|| Gid::from_raw(owner.gid));
        (uid.is_some() || gid.is_some()).then_some((uid, gid))
    }

    /// Gives the new directory `fd` its owner and permissions. One that is not our own is given to nobody: the host chose its
    /// owner, or someone else has put it there since.
    fn finish_dir(&self, fd: &OwnedFd, perm: u16, owner: Option<Caller>) -> io::Result<()> {
        let st = rustix::fs::fstat(fd)?;
        let owner = owner.filter(|_| st.st_uid == self.uid.as_raw());
        if let Some((uid, gid)) = self.owner_change(&st, owner, || st.st_mode & SET_GID != 0) {
            unless_refused(rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH))?;
        }
        // A set-group-ID bit is inherited from the parent, and meant to be.
        let wanted = perm & 0o7777 | (st.st_mode & SET_GID) as u16;
        if st.st_mode & 0o7777 != u32::from(wanted) {
            chmod(fd, wanted)?;
        }
        Ok(())
    }

    /// Gives the new file `fd` its content, permissions and owner, and makes it durable if asked to.
    fn fill(&self, dir: &Parent<'_>, fd: &OwnedFd, new: &NewFile<'_>) -> io::Result<()> {
        write_all_at(fd, 0, new.content)?;
        let st = rustix::fs::fstat(fd)?;
        let owner =
            self.owner_change(&st, new.owner, || rustix::fs::fstat(dir).is_ok_and(|dir| dir.st_mode & SET_GID != 0));
        if let Some((uid, gid)) = owner {
            unless_refused(rustix::fs::fchown(fd, uid, gid))?;
        }
        // The umask, or a default ACL of the directory, may have changed them (a look is cheaper than a change), and a
        // new owner takes set-id bits away.
        if owner.is_some() || st.st_mode & 0o7777 != u32::from(new.perm) {
            rustix::fs::fchmod(fd, mode(new.perm))?;
        }
        if new.durable {
            retry_on_intr(|| rustix::fs::fdatasync(fd))?;
        }
        Ok(())
    }

    /// Makes the entries of a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        if path.as_os_str().is_empty() {
            return Ok(host::sync_entries(&self.root)?);
        }
        match self.open_at(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
            Err(Errno::MFILE | Errno::NFILE) => self.sync_all(),
            folder => Ok(host::sync_entries(folder?)?),
        }
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(host::sync_filesystem(&self.root)?)
    }

    fn opened(&self, fd: OwnedFd) -> Box<dyn HostFile> {
        Box::new(OpenFile { fd, freeing: self.freeing.clone(), lock_is_kept: AtomicBool::new(false) })
    }

    fn publish_at(&self, dir: &Parent<'_>, name: &OsStr, new: &NewFile<'_>) -> io::Result<OwnedFd> {
        self.place_at(dir, name, new.perm, &|fd| self.fill(dir, fd, new))
    }

    /// Makes a file appear under `name` when `fill` is through with it. Where the host lacks something, `fill` may be called
    /// for a second file.
    fn place_at(&self, dir: &Parent<'_>, name: &OsStr, perm: u16, fill: &Fill<'_>) -> io::Result<OwnedFd> {
        if self.unnamed.load(Ordering::Relaxed) {
            if self.names.links(dir.as_fd())? == Links::OneFile
                && let Some(fd) = self.place_unnamed(dir, name, perm, fill)?
            {
                return Ok(fd);
            }
            let fd = self.place_named(dir, name, perm, fill)?;
            // Only now is it known that the host, and not this path, was the reason.
            self.unnamed.store(false, Ordering::Relaxed);
            return Ok(fd);
        }
        self.place_named(dir, name, perm, fill)
    }

    /// Through an unnamed file. `None` where the host cannot.
    fn place_unnamed(&self, dir: &Parent<'_>, name: &OsStr, perm: u16, fill: &Fill<'_>) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let fd = match retry_on_intr(|| rustix::fs::openat(dir, c".", flags, mode(perm))) {
            Ok(fd) => fd,
            Err(e) if lacks_feature(e) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        fill(&fd)?;
        if self.link_by_descriptor.load(Ordering::Relaxed) {
            match rustix::fs::linkat(&fd, c"", dir, name, AtFlags::EMPTY_PATH) {
                Ok(()) => return Ok(Some(fd)),
                // ENOENT is how a kernel says that the capability is missing.
                Err(Errno::NOENT | Errno::PERM) => {}
                Err(e) if lacks_feature(e) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
        with_proc_path(&fd, |link| {
            match rustix::fs::linkat(rustix::fs::CWD, link, dir, name, AtFlags::SYMLINK_FOLLOW) {
                Ok(()) => {
                    self.link_by_descriptor.store(false, Ordering::Relaxed);
                    Ok(true)
                }
                // No /proc, or the directory has gone: the slow way tells them apart.
                Err(e) if e == Errno::NOENT || lacks_feature(e) => Ok(false),
                Err(e) => Err(e.into()),
            }
        })
        .map(|linked| linked.then_some(fd))
    }

    /// Through a named temporary in the same directory.
    fn place_named(&self, dir: &Parent<'_>, name: &OsStr, perm: u16, fill: &Fill<'_>) -> io::Result<OwnedFd> {
        let (temporary, fd) = free_name::new_file(dir, mode(perm))?;
        let at = dir.as_fd();
        let placed = fill(&fd).and_then(|()| self.names.name_new((at, temporary.as_ref()), (at, name), fd));
        match placed {
            Ok(Some(fd)) if free_name::is_one(dir, name, &fd)? => Ok(fd),
            // What the name leads to is what others will see.
            Ok(_) => open_again(dir, name, perm),
            Err(e) => {
                // The first error is the one to report; a temporary that stays is swept by the store.
                let _ = rustix::fs::unlinkat(dir, &temporary, AtFlags::empty());
                Err(e)
            }
        }
    }

    /// Creates `path`, with what `fill` gives it, in one step, as [`HostDir::publish`]. Its permissions are those that the
    /// process gives to any new file. `fill` may be called again for another file.
    #[cfg(feature = "objects")]
    pub(crate) fn place(&self, path: &Path, fill: &Fill<'_>) -> io::Result<OwnedFd> {
        let (dir, name) = self.parent(path)?;
        self.freeing.with_space(|| self.place_at(&dir, name, 0o666, fill))
    }

    /// Creates a directory, with the permissions that the process gives to any new one.
    #[cfg(feature = "objects")]
    pub(crate) fn make_plain_dir(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        self.freeing.with_space(|| Ok(rustix::fs::mkdirat(&dir, name, mode(0o777))?))
    }

    fn rename_at(&self, from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
        let (from_dir, from_name) = self.parent(from)?;
        let elsewhere = if from.parent() == to.parent() { None } else { Some(self.parent(to)?.0) };
        let to_dir = elsewhere.as_ref().unwrap_or(&from_dir);
        let to_name = to.file_name().ok_or(Errno::INVAL)?;
        if flags.is_empty() {
            return Ok(rustix::fs::renameat(&from_dir, from_name, to_dir, to_name)?);
        }
        if flags == RenameFlags::NOREPLACE {
            if to.starts_with(from) && to != from {
                // Into itself: the host knows what is wrong with that (the name may be taken, too), and no other way is.
                let flags = rustix::fs::RenameFlags::NOREPLACE;
                return Ok(rustix::fs::renameat_with(&from_dir, from_name, to_dir, to_name, flags)?);
            }
            return self.names.rename((from_dir.as_fd(), from_name), (to_dir.as_fd(), to_name));
        }
        let host_flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        match rustix::fs::renameat_with(&from_dir, from_name, to_dir, to_name, host_flags) {
            Err(Errno::INVAL) if to.starts_with(from) || from.starts_with(to) => Err(Errno::INVAL.into()),
            Err(Errno::INVAL | Errno::NOSYS) if flags == RenameFlags::EXCHANGE => Err(Errno::OPNOTSUPP.into()),
            other => Ok(other?),
        }
    }
}

/// What gives a new file all that it is to have before it gets its name.
type Fill<'a> = dyn Fn(&OwnedFd) -> io::Result<()> + 'a;

/// Opens a file of ours by its name, for both, whatever its permissions `perm` are.
fn open_again(dir: &Parent<'_>, name: &OsStr, perm: u16) -> io::Result<OwnedFd> {
    let open = |flags| {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        retry_on_intr(|| rustix::fs::openat(dir, name, flags, Mode::empty()))
    };
    match open(OFlags::RDWR) {
        Err(Errno::ACCESS) => {
            chmod(open(OFlags::PATH)?, perm | 0o600)?;
            let fd = open(OFlags::RDWR)?;
            rustix::fs::fchmod(&fd, mode(perm))?;
            Ok(fd)
        }
        other => Ok(other?),
    }
}

impl HostDir for HostDirectory {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn HostFile>> {
        Ok(self.opened(self.open_regular(path, access_flags(access))?))
    }

    fn publish(&self, path: &Path, new: &NewFile<'_>) -> io::Result<Box<dyn HostFile>> {
        let (dir, name) = self.parent(path)?;
        self.freeing.with_space(|| self.publish_at(&dir, name, new)).map(|fd| self.opened(fd))
    }

    fn publish_known(&self, path: &Path, new: &NewFile<'_>) -> io::Result<Published> {
        let (dir, name) = self.parent(path)?;
        let fd = self.freeing.with_space(|| self.publish_at(&dir, name, new))?;
        // Through descriptors that are open: what a path would cost is left to the next lookup.
        let attr = attr_of(&rustix::fs::fstat(&fd)?);
        let dir = rustix::fs::fstat(&dir).ok().map(|st| attr_of(&st));
        Ok(Published { file: self.opened(fd), attr, dir })
    }

    fn stat(&self, path: &Path) -> io::Result<Attr> {
        Ok(attr_of(&rustix::fs::statat(&self.root, or_root(path), AtFlags::SYMLINK_NOFOLLOW)?))
    }

    fn set_attr(&self, path: &Path, set: &SetAttr) -> io::Result<()> {
        if let Some(size) = set.size {
            let fd = self.open_regular(path, OFlags::WRONLY)?;
            retry_on_intr(|| rustix::fs::ftruncate(&fd, size))?;
        }
        // One object for all that is changed: by name, someone else could put another one there in between.
        set_attr_of(&self.open_at(path, OFlags::PATH, Mode::empty())?, set)
    }

    fn list(&self, path: &Path, sink: &mut dyn FnMut(HostEntry<'_>)) -> io::Result<()> {
        let fd = self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let mut buffer = [const { MaybeUninit::uninit() }; LIST_BUFFER_LEN_BYTES];
        let mut entries = RawDir::new(fd, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            };
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                sink(HostEntry { name, ino: entry.ino(), kind: kind_of(entry.file_type()) });
            }
        }
        Ok(())
    }

    fn make_dir(&self, path: &Path, perm: u16, owner: Option<Caller>) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        self.freeing.with_space(|| Ok(rustix::fs::mkdirat(&dir, name, mode(perm))?))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = retry_on_intr(|| rustix::fs::openat(&dir, name, flags, Mode::empty())).inspect_err(|_| {
            // Not made, then: whoever tries again finds the name free.
            let _ = rustix::fs::unlinkat(&dir, name, AtFlags::REMOVEDIR);
        })?;
        self.finish_dir(&made, perm, owner)
    }

    fn make_link(&self, path: &Path, target: &[u8]) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        self.freeing.with_space(|| Ok(rustix::fs::symlinkat(target, &dir, name)?))
    }

    fn read_link(&self, path: &Path) -> io::Result<Vec<u8>> {
        let fd = self.open_at(path, OFlags::PATH, Mode::empty())?;
        // Only a symbolic link is one without a name; anything else is not there to the kernel.
        let target = retry_on_intr(|| rustix::fs::readlinkat(&fd, c"", Vec::new()));
        target.map(std::ffi::CString::into_bytes).map_err(|e| if e == Errno::NOENT { Errno::INVAL } else { e }.into())
    }

    fn remove(&self, path: &Path, kind: Kind) -> io::Result<()> {
        let flags = if kind == Kind::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let (dir, name) = self.parent(path)?;
        Ok(rustix::fs::unlinkat(&dir, name, flags)?)
    }

    fn hold(&self, path: &Path) -> Option<Box<dyn HeldFile>> {
        // As a place only: that takes no rights. A hold that the host refuses (it has no descriptor left) is none.
        let held = self.freeing.hold(|| self.open_at(path, OFlags::PATH, Mode::empty()).ok())?;
        Some(Box::new(held))
    }

    fn rename(&self, from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
        self.freeing.with_space(|| self.rename_at(from, to, flags))
    }

    fn sync(&self, target: SyncTarget<'_>) -> io::Result<()> {
        match target {
            SyncTarget::Dir(path) => self.sync_dir(path),
            SyncTarget::All => self.sync_all(),
        }
    }

    fn statfs(&self) -> io::Result<StatFs> {
        self.freeing.settle();
        statfs_of(&self.root, rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
    }

    fn trial(&self, folder: &Path) -> io::Result<()> {
        trial::changes(self, folder)
    }

    fn umask(&self) -> u16 {
        self.umask
    }

    /// The boot and the mount. Linux before 6.8 gives the number of a mount out again.
    fn incarnation(&self) -> Option<[u8; 16]> {
        const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let boot = u128::from_str_radix(&boot.trim().replace('-', ""), 16).ok()?;
        let flags = StatxFlags::MNT_ID | MNT_ID_UNIQUE;
        let mount = retry_on_intr(|| rustix::fs::statx(&self.root, c"", AtFlags::EMPTY_PATH, flags)).ok()?;
        Some((boot ^ u128::from(mount.stx_mnt_id)).to_le_bytes())
    }
}

impl HeldFile for Held {
    fn stat(&self) -> io::Result<Attr> {
        Ok(attr_of(&rustix::fs::fstat(self.file())?))
    }

    fn set_attr(&self, set: &SetAttr) -> io::Result<()> {
        set_attr_of(self.file(), set)
    }

    fn open(&self, access: Access) -> io::Result<Box<dyn HostFile>> {
        let flags = access_flags(access) | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        // By its name it cannot be found, and a place cannot be opened anew in another way.
        let fd =
            with_proc_path(self.file(), |link| Ok(retry_on_intr(|| rustix::fs::open(link, flags, Mode::empty()))?))?;
        check_regular(&fd)?;
        Ok(Box::new(OpenFile { fd, freeing: self.freeing().clone(), lock_is_kept: AtomicBool::new(false) }))
    }
}

/// How often a file's lock is tried, and how long it is waited for between two tries: a second in all.
const LOCK_TRIES: u32 = 2000;
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_micros(500);

/// An open regular file.
struct OpenFile {
    fd: OwnedFd,
    freeing: Arc<Freeing>,
    /// Whether the latest wait for the lock was in vain.
    lock_is_kept: AtomicBool,
}

impl HostFile for OpenFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match rustix::io::pread(&self.fd, &mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(done)
    }

    fn hold_others(&self) {
        // Not waited for in the kernel: a holder may be stopped, and a host of the network may hang.
        // Nor waited for again and again where someone keeps it: that could be any program.
        let tries = if self.lock_is_kept.load(Ordering::Relaxed) { 1 } else { LOCK_TRIES };
        for left in (0..tries).rev() {
            let kept = rustix::fs::flock(&self.fd, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK);
            if !kept || left == 0 {
                self.lock_is_kept.store(kept, Ordering::Relaxed);
                return;
            }
            std::thread::sleep(LOCK_PAUSE);
        }
    }

    fn admit_others(&self) {
        // Nothing is lost if there was no lock.
        let _ = rustix::fs::flock(&self.fd, FlockOperation::Unlock);
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.freeing.with_space(|| write_all_at(&self.fd, offset, bytes))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::ftruncate(&self.fd, len))?)
    }

    fn stat(&self) -> io::Result<Attr> {
        Ok(attr_of(&rustix::fs::fstat(&self.fd)?))
    }

    fn set_attr(&self, set: &SetAttr) -> io::Result<()> {
        if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) = ids(set);
            rustix::fs::fchown(&self.fd, uid, gid)?;
        }
        if let Some(perm) = set.perm {
            rustix::fs::fchmod(&self.fd, mode(perm))?;
        }
        if let Some(times) = times(set) {
            rustix::fs::futimens(&self.fd, &times)?;
        }
        Ok(())
    }

    fn sync(&self, data_only: bool) -> io::Result<()> {
        Ok(retry_on_intr(|| if data_only { rustix::fs::fdatasync(&self.fd) } else { rustix::fs::fsync(&self.fd) })?)
    }

    fn start_writeback(&self, offset: u64, len: u64) {
        let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else { return };
        // SAFETY: takes a descriptor that is open and three numbers, and touches no memory of ours.
        // A hint: whatever it returns, the data is as safe as before.
        unsafe { libc::sync_file_range(self.fd.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        punch(self.fd.as_fd(), offset, len)
    }

    fn try_lock(&self, alone: bool) -> io::Result<bool> {
        lock_whole(self.fd.as_fd(), alone)
    }

    fn try_lock_range(&self, offset: u64, len: u64) -> io::Result<bool> {
        lock_range(self.fd.as_fd(), libc::F_WRLCK, offset, len)
    }

    fn unlock_range(&self, offset: u64, len: u64) {
        // Whatever the host says, it goes with the handle.
        let _ = lock_range(self.fd.as_fd(), libc::F_UNLCK, offset, len);
    }

    fn descriptor(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }
}

fn access_flags(access: Access) -> OFlags {
    match access {
        Access::Read => OFlags::RDONLY,
        Access::Write => OFlags::RDWR,
    }
}

fn check_regular(fd: &OwnedFd) -> io::Result<()> {
    match FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Errno::ISDIR.into()),
        _ => Err(Errno::INVAL.into()),
    }
}

/// Changes attributes, `size` excepted, of what was opened as a place.
fn set_attr_of(fd: &OwnedFd, set: &SetAttr) -> io::Result<()> {
    if set.uid.is_some() || set.gid.is_some() {
        let (uid, gid) = ids(set);
        rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH)?;
    }
    if let Some(perm) = set.perm {
        chmod(fd, perm)?;
    }
    if let Some(times) = times(set) {
        rustix::fs::utimensat(fd, c"", &times, AtFlags::EMPTY_PATH)?;
    }
    Ok(())
}

/// The folder itself is the empty path of the seam, and `.` for the host.
fn or_root(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

/// Whether `e` says that the host lacks what was asked, rather than that it failed. `EISDIR` is how a kernel without
/// `O_TMPFILE` reads it; `EPERM` and `EXDEV` are how some filesystems refuse to link an unnamed file.
fn lacks_feature(e: Errno) -> bool {
    matches!(e, Errno::OPNOTSUPP | Errno::INVAL | Errno::ISDIR | Errno::NOSYS | Errno::PERM | Errno::XDEV)
}
