//! What more than one crate asks of files of the host.

pub mod free_name;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result, retry_on_intr};

/// Filesystems that note each change of a file with the clock of this machine, and keep that and the file's number on a medium: ext2 to ext4,
/// XFS, btrfs, F2FS, ZFS and bcachefs, by the number that statfs(2) has.
const KEEP_IDENTITY: [u32; 6] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x2fc1_2fc1, 0xca45_1a4e];

/// Filesystems of FUSE, by the number that statfs(2) has.
const FUSE: u32 = 0x6573_5546;

/// True if the inode numbers of the filesystem of `file` may be others when it is mounted again. Most programs behind FUSE have none, and libfuse
/// counts what is looked up; nothing tells those that have some.
///
/// # Errors
/// Those of the host.
pub fn makes_numbers_up(file: impl AsFd) -> Result<bool> {
    Ok(rustix::fs::fstatfs(file)?.f_type as u32 == FUSE)
}

/// What tells the filesystem of `file` from others; none where nothing is known to tell one file of it from another that had its path before.
///
/// FUSE filesystems, those of a network, and those whose layers come and go make inode numbers and times up, or take those that a server says:
/// of two that are mounted in turn, two files may have the same ones. In memory, what is written through a mapping shows in no time.
///
/// # Errors
/// Those of the host.
pub fn filesystem(file: impl AsFd) -> Result<Option<[u8; 12]>> {
    let file = file.as_fd();
    let kind = rustix::fs::fstatfs(file)?.f_type as u32;
    if !KEEP_IDENTITY.contains(&kind) {
        return Ok(None);
    }
    let mut name = [0; 12];
    name[..4].copy_from_slice(&kind.to_le_bytes());
    name[4..].copy_from_slice(&rustix::fs::fstatvfs(file)?.f_fsid.to_le_bytes());
    Ok(Some(name))
}

/// Whether whatever is written to a file from now on gives it other times than it has, and no other file has its number and them.
///
/// A write through a mapping does so when its page was clean before (Linux 6.18: `do_shared_fault`, `do_wp_page`), and none later, until the
/// page is sent to the medium. So what programs have written is sent there first, which costs next to nothing where there is no such page.
/// False where that is not known of the [`filesystem`].
///
/// # Errors
/// Those of the host: the medium failed.
pub fn times_tell(file: impl AsFd) -> Result<bool> {
    let file = file.as_fd();
    if filesystem(file)?.is_none() {
        return Ok(false);
    }
    const SENT: libc::c_uint =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    rustix::io::retry_on_intr(|| {
        // SAFETY: takes a descriptor that is open and three numbers, and touches no memory of ours.
        match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, SENT) } {
            0 => Ok(true),
            _ => {
                Err(rustix::io::Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(rustix::io::Errno::IO))
            }
        }
    })
}

/// What an error of a call about extended attributes of `file` means, whose content can be read. A program that serves a filesystem without them may
/// answer `EIO` (rclone): that is `EOPNOTSUPP`, as from all others. On a disk `EIO` stays what it is.
pub fn attribute_error(file: impl AsFd, e: Errno) -> Errno {
    let is_served = || rustix::fs::fstatfs(file).is_ok_and(|stat| stat.f_type as u32 == FUSE);
    if e == Errno::IO && is_served() { Errno::OPNOTSUPP } else { e }
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens the folder at `path`, or the current one, to work in it. One that its user may not list can be worked in all the same.
///
/// # Errors
/// Those of the host.
pub fn open_folder(path: &Path) -> Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let open = |flags| retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()));
    match open(FOLDER) {
        Err(Errno::ACCESS | Errno::PERM) => open(OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC),
        other => other,
    }
}

/// Makes the entries of a folder durable, which may be open by its path alone. One that its user may not list, or no descriptor is left for, or that
/// the host does not sync by itself, becomes so with all else of its filesystem: neither is an error of the disk.
///
/// # Errors
/// Those of the host.
pub fn sync_entries(folder: impl AsFd) -> Result<()> {
    let folder = folder.as_fd();
    match listing(folder).and_then(|fd| retry_on_intr(|| rustix::fs::fsync(&fd))) {
        Err(e) if is_no_state_of_the_disk(e) => sync_filesystem(folder),
        other => other,
    }
}

/// Makes all of a folder's filesystem durable; the folder may be open by its path alone.
///
/// # Errors
/// Those of the host.
pub fn sync_filesystem(folder: impl AsFd) -> Result<()> {
    let folder = folder.as_fd();
    let nameless = || {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        retry_on_intr(|| rustix::fs::openat(folder, c".", flags, Mode::RUSR))
    };
    // A folder that cannot be read gives way to a file in it, and one that gives neither to everything.
    let synced = match listing(folder).or_else(|_| nameless()) {
        Ok(fd) => retry_on_intr(|| rustix::fs::syncfs(&fd)),
        Err(_) => retry_on_intr(|| rustix::fs::syncfs(folder)),
    };
    match synced {
        Err(Errno::BADF) => {
            rustix::fs::sync();
            Ok(())
        }
        other => other,
    }
}

fn listing(folder: BorrowedFd<'_>) -> Result<OwnedFd> {
    retry_on_intr(|| rustix::fs::openat(folder, c".", FOLDER, Mode::empty()))
}

fn is_no_state_of_the_disk(e: Errno) -> bool {
    matches!(
        e,
        Errno::ACCESS | Errno::PERM | Errno::MFILE | Errno::NFILE | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS
    )
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::MetadataExt;

    use adit_testkit::MappedByte;

    use super::*;

    /// Waits until the kernel's clock of files went on.
    fn past_a_tick() {
        let start = crate::types::Timestamp::of_tick();
        while crate::types::Timestamp::of_tick() == start {
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_is_written_through_a_mapping_later_shows_in_the_times() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, [0]).unwrap();
        let file = File::open(&path).unwrap();
        let changed = || {
            let meta = file.metadata().unwrap();
            (meta.ctime(), meta.ctime_nsec())
        };
        let mapped = MappedByte::of(&path);
        for round in 1..4 {
            mapped.write(2 * round);
            if !times_tell(&file).unwrap() {
                // The folder for temporary files lies in memory, and it was said.
                return;
            }
            let before = changed();
            past_a_tick();
            mapped.write(2 * round + 1);
            assert_ne!(changed(), before, "round {round}");
        }
    }

    #[test]
    fn files_in_memory_have_no_such_times() {
        let file = rustix::fs::memfd_create(c"times", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert_eq!((times_tell(&file), filesystem(&file)), (Ok(false), Ok(None)));
    }

    /// The kernel makes the files of this one up, as a FUSE filesystem does.
    #[test]
    fn what_is_made_up_has_no_identity() {
        let file = File::open("/proc/self/status").unwrap();
        assert_eq!((times_tell(&file), filesystem(&file)), (Ok(false), Ok(None)));
    }
}
