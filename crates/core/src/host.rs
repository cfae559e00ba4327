//! What more than one crate asks of files of the host.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Result;

/// Filesystems that lie in memory, by the number that statfs(2) has: tmpfs, ramfs and hugetlbfs.
const IN_MEMORY: [u32; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];

/// Whether whatever is written to a file from now on gives it other times than it has.
///
/// A write through a mapping does so when its page was clean before (Linux 6.18: `do_shared_fault`, `do_wp_page`), and none later, until the
/// page is sent to the medium. So what programs have written is sent there first, which costs next to nothing where there is no such page.
/// False where pages are never sent anywhere, as in memory.
///
/// # Errors
/// Those of the host: the medium failed.
pub fn times_tell(file: impl AsFd) -> Result<bool> {
    let file = file.as_fd();
    let kind = rustix::fs::fstatfs(file)?.f_type;
    if IN_MEMORY.contains(&(kind as u32)) {
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
        assert_eq!(times_tell(&file), Ok(false));
    }
}
