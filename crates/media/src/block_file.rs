//! A file of the host as a [`BlockFile`].
//!
//! The lock is one on the open file description (`F_OFD_SETLK`): it holds between threads and processes, survives a fork,
//! and the host drops it with the last descriptor, however the process ends.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use adit_core::media::BlockFile;
use adit_core::types::Access;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};

use crate::host::statfs_of;

#[cfg(test)]
mod tests;

/// An open file of the host. Errors are the host's.
pub struct HostBlockFile {
    file: File,
    access: Access,
}

impl HostBlockFile {
    /// Opens an existing regular file.
    pub fn open(path: &Path, access: Access) -> io::Result<HostBlockFile> {
        let write = access == Access::Write;
        let file =
            File::options().read(true).write(write).custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(HostBlockFile { file, access })
    }

    /// Makes a new, empty file with the process's umask applied to 0666. `AlreadyExists` if the name is taken. The name is
    /// durable only once the directory is synced.
    pub fn create(path: &Path) -> io::Result<HostBlockFile> {
        let file = File::options().read(true).write(true).create_new(true).custom_flags(libc::O_CLOEXEC).open(path)?;
        Ok(HostBlockFile { file, access: Access::Write })
    }
}

impl BlockFile for HostBlockFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = offset.checked_add(done as u64).ok_or(io::ErrorKind::InvalidInput)?;
            match retry_on_intr(|| rustix::io::pread(&self.file, &mut *rest, at))? {
                0 => break,
                read => done += read,
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        punch(self.file.as_fd(), offset, len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        match retry_on_intr(|| fallocate(&self.file, FallocateFlags::KEEP_SIZE, offset, len)) {
            Err(Errno::NOSYS | Errno::OPNOTSUPP) => Err(io::ErrorKind::Unsupported.into()),
            result => Ok(result?),
        }
    }

    fn start_writeback(&self, offset: u64, len: u64) {
        let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else { return };
        // SAFETY: takes a descriptor that is open and three numbers, and touches no memory of ours.
        // A hint: whatever it returns, the data is as safe as before.
        unsafe { libc::sync_file_range(self.file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
    }

    fn host_room_bytes(&self) -> u64 {
        // Its owner is charged.
        let owner = rustix::fs::fstat(&self.file);
        let host = owner.map_err(io::Error::from).and_then(|st| statfs_of(&self.file, st.st_uid, st.st_gid));
        host.map_or(u64::MAX, |host| host.room_bytes())
    }

    fn try_lock(&self) -> io::Result<bool> {
        // A lock to write needs a descriptor that may. Who only reads keeps writers out, and they him.
        lock_whole(self.file.as_fd(), self.access == Access::Write)
    }
}

/// Locks all of a file until its last descriptor is closed; false if another one has it.
pub(crate) fn lock_whole(fd: BorrowedFd<'_>, alone: bool) -> io::Result<bool> {
    lock_range(fd, if alone { libc::F_WRLCK } else { libc::F_RDLCK }, 0, 0)
}

/// Locks a range of a file, or gives it back; false if another open file has any of it. A length of 0 goes up to the end.
pub(crate) fn lock_range(fd: BorrowedFd<'_>, kind: libc::c_int, offset: u64, len: u64) -> io::Result<bool> {
    let (Ok(start), Ok(len)) = (offset.try_into(), len.try_into()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let lock = libc::flock { l_type: kind as _, l_whence: libc::SEEK_SET as _, l_start: start, l_len: len, l_pid: 0 };
    // SAFETY: takes a descriptor that is open and a `flock` that outlives the call, which only reads it.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
    if result == 0 {
        return Ok(true);
    }
    let e = io::Error::last_os_error();
    match e.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        // A host without locks.
        Some(libc::ENOLCK | libc::EOPNOTSUPP | libc::ENOSYS) => Ok(true),
        _ => Err(e),
    }
}

/// Makes a range of a file read as zeros, without a change of its length.
pub(crate) fn punch(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match retry_on_intr(|| fallocate(fd, flags, offset, len)) {
        Err(Errno::NOSYS | Errno::OPNOTSUPP) => Err(io::ErrorKind::Unsupported.into()),
        result => Ok(result?),
    }
}
