//! The host's words and ours: attributes, modes, times, and the few calls that take more than a line.

mod quota;

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};

use adit_core::types::{Attr, Ino, Kind, SetAttr, SetTime, StatFs, Timestamp};
use rustix::fs::{FileType, Gid, Mode, Stat, StatVfs, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid};
use rustix::io::Errno;

/// Permission bits as the host takes them.
pub fn mode(perm: u16) -> Mode {
    Mode::from_raw_mode((perm & 0o7777).into())
}

/// The owner and the group to set.
pub fn ids(set: &SetAttr) -> (Option<Uid>, Option<Gid>) {
    (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw))
}

/// The times to set, `None` if neither is.
pub fn times(set: &SetAttr) -> Option<Timestamps> {
    let spec = |t: Option<SetTime>| match t {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::At(t)) => Timespec { tv_sec: t.secs, tv_nsec: t.nanos.into() },
    };
    (set.atime.is_some() || set.mtime.is_some())
        .then(|| Timestamps { last_access: spec(set.atime), last_modification: spec(set.mtime) })
}

/// What a type of the host is; `None` for one that it does not name.
pub fn kind_of(file_type: FileType) -> Option<Kind> {
    Some(match file_type {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::CharacterDevice => Kind::CharDevice,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::Unknown => return None,
    })
}

/// Attributes as the host tells them; the inode number is the host's.
// The fields' types differ between architectures and between rustix's backends.
#[allow(clippy::unnecessary_cast)]
pub fn attr_of(st: &Stat) -> Attr {
    Attr {
        ino: Ino(st.st_ino as u64),
        size: st.st_size as u64,
        blocks: st.st_blocks as u64,
        atime: Timestamp { secs: st.st_atime as i64, nanos: st.st_atime_nsec as u32 },
        mtime: Timestamp { secs: st.st_mtime as i64, nanos: st.st_mtime_nsec as u32 },
        ctime: Timestamp { secs: st.st_ctime as i64, nanos: st.st_ctime_nsec as u32 },
        // A type that the kernel does not name cannot be opened as a file either.
        kind: kind_of(FileType::from_raw_mode(st.st_mode)).unwrap_or(Kind::Socket),
        perm: (st.st_mode & 0o7777) as u16,
        nlink: st.st_nlink as u32,
        uid: st.st_uid,
        gid: st.st_gid,
        rdev: st.st_rdev as u32,
    }
}

/// An owner that the host does not let us choose stays as it is (vfat, a user namespace).
pub fn unless_refused(result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Err(Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP) => Ok(()),
        other => other,
    }
}

/// Changes permission bits of what `fd` is, which may be opened as a place only.
pub fn chmod(fd: impl AsFd, perm: u16) -> io::Result<()> {
    // The call that takes such a descriptor is newer than the kernels that we run on.
    with_proc_path(fd, |path| Ok(rustix::fs::chmod(path, mode(perm))?))
}

/// What closing the file would tell of what was written to it: a host that takes writes before it has stored them (a network
/// filesystem, a mount with write-back) stores them now, and has an error here at the latest.
pub fn flush(fd: impl AsFd) -> io::Result<()> {
    let copy = rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), 0)?;
    // SAFETY: the descriptor was made above, and is given up here: nobody else has it.
    match unsafe { libc::close(copy.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Writes all of `bytes`.
pub fn write_all_at(fd: impl AsFd, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pwrite(&fd, &bytes[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Calls `f` with the path of `fd` below `/proc`, without allocating.
pub fn with_proc_path<T>(fd: impl AsFd, f: impl FnOnce(&CStr) -> io::Result<T>) -> io::Result<T> {
    use io::Write as _;
    let mut buffer = [0; 32];
    write!(&mut buffer[..], "/proc/self/fd/{}\0", fd.as_fd().as_raw_fd())?;
    f(CStr::from_bytes_until_nul(&buffer).map_err(io::Error::other)?)
}

/// Size and use of the filesystem that `fd` is on, as its host tells them, and with no more room than the quotas of `uid` and `gid` leave.
pub fn statfs_of(fd: impl AsFd, uid: u32, gid: u32) -> io::Result<StatFs> {
    let host = told_by(&rustix::fs::fstatvfs(&fd)?);
    Ok(quota::left(fd.as_fd(), uid, gid).map_or(host, |bytes| host.within(bytes)))
}

fn told_by(st: &StatVfs) -> StatFs {
    StatFs {
        block_size: u32::try_from(st.f_frsize).unwrap_or(4096),
        blocks: st.f_blocks,
        blocks_free: st.f_bfree,
        blocks_available: st.f_bavail,
        files: st.f_files,
        files_free: st.f_ffree,
        name_len_max: u32::try_from(st.f_namemax).unwrap_or(u32::MAX),
    }
}

/// The process's umask. The call that tells it sets it, also for other threads that make something at that moment, so the kernel
/// is asked in another way; where it does not say, all is kept from others.
pub fn umask() -> u16 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let told = status.lines().find_map(|line| u16::from_str_radix(line.strip_prefix("Umask:")?.trim(), 8).ok());
    told.unwrap_or(0o077)
}
