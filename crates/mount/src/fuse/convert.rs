//! Between fuser's types and the engine's. Pure.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use adit_core::types::{AllocateMode, Attr, Ino, Kind, SetAttr, SetTime, Timestamp};
use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};

/// `.` and `..` come first in a listing, as offsets 1 and 2; a store's cookie `c` becomes the offset `c + 2`.
pub(super) const DOTS: u64 = 2;

/// The offset behind an entry; `None` if the cookie leaves no room (the kernel's offsets are signed).
pub(super) fn offset_of_cookie(cookie: u64) -> Option<u64> {
    cookie.checked_add(DOTS).filter(|&offset| i64::try_from(offset).is_ok())
}

pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::CharDevice => FileType::CharDevice,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
    }
}

/// The kind that `mknod` asks for; a mode without type bits means a regular file (mknod(2)).
pub(super) fn kind_of_mode(mode: u32) -> Option<Kind> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Some(Kind::File),
        libc::S_IFBLK => Some(Kind::BlockDevice),
        libc::S_IFCHR => Some(Kind::CharDevice),
        libc::S_IFIFO => Some(Kind::Fifo),
        libc::S_IFSOCK => Some(Kind::Socket),
        _ => None,
    }
}

/// Whether nothing but times is to change.
pub(super) fn only_times(set: &SetAttr) -> bool {
    SetAttr { atime: None, mtime: None, ctime: None, ..*set }.is_empty()
}

/// What is known of a regular file that has no name and no handle any more.
pub(super) fn removed_file(ino: Ino) -> Attr {
    Attr {
        ino,
        size: 0,
        blocks: 0,
        atime: Timestamp::default(),
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
        kind: Kind::File,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
    }
}

/// Attributes as the kernel gets them. `block_len` is what `st_blksize` says: the best size of a write, in bytes.
pub(super) fn file_attr(attr: &Attr, block_len: u32) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino.0),
        size: attr.size,
        blocks: attr.blocks,
        atime: to_system_time(attr.atime),
        mtime: to_system_time(attr.mtime),
        ctime: to_system_time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(attr.kind),
        perm: attr.perm & 0o7777,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: block_len,
        flags: 0,
    }
}

/// Attributes for an answer that names no inode (a negative entry) or carries only a kind and a number (a listed entry).
pub(super) fn no_inode(kind: Kind, ino: Ino) -> FileAttr {
    let nothing = Attr {
        ino,
        size: 0,
        blocks: 0,
        atime: Timestamp::default(),
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
        kind,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
    };
    file_attr(&nothing, 0)
}

fn to_system_time(time: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(time.secs.unsigned_abs());
    let whole = match time.secs {
        0.. => UNIX_EPOCH.checked_add(whole),
        _ => UNIX_EPOCH.checked_sub(whole),
    };
    let nanos = Duration::from_nanos(u64::from(time.nanos.min(999_999_999)));
    whole.and_then(|t| t.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// A time in a request.
///
/// fuser 0.18 turns seconds and nanoseconds before 1970 into `epoch − (seconds + nanoseconds)`, though the nanoseconds
/// count forward; this undoes it.
pub(super) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(_) => time.into(),
        Err(before) => {
            let raw = before.duration();
            Timestamp { secs: 0i64.saturating_sub_unsigned(raw.as_secs()), nanos: raw.subsec_nanos() }
        }
    }
}

/// A time of SETATTR, as above.
pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(timestamp(time)),
    }
}

/// The mode of `fallocate(2)`; `None` where nobody here could serve it.
pub(super) fn allocate_mode(mode: i32) -> Option<AllocateMode> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH_KEEP: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
    const ZERO_KEEP: i32 = ZERO | KEEP;
    match mode {
        0 => Some(AllocateMode::Extend),
        KEEP => Some(AllocateMode::KeepSize),
        PUNCH_KEEP => Some(AllocateMode::PunchHole),
        ZERO => Some(AllocateMode::Zero { keep_size: false }),
        ZERO_KEEP => Some(AllocateMode::Zero { keep_size: true }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_on_both_sides_of_the_epoch_reach_the_kernel() {
        for (secs, nanos) in [(0, 0), (1, 5), (-2, 500_000_000), (-1, 0), (i64::MAX / 4, 999_999_999)] {
            let time = Timestamp { secs, nanos };
            assert_eq!(Timestamp::from(to_system_time(time)), time);
        }
        // A time that the system cannot hold is no reason to panic.
        to_system_time(Timestamp { secs: i64::MIN, nanos: u32::MAX });
        to_system_time(Timestamp { secs: i64::MAX, nanos: 0 });
    }

    #[test]
    fn times_before_the_epoch_come_back_from_fuser() {
        // utimensat(-2 s + 0.3 s) arrives as epoch − 2.3 s.
        let arrived = UNIX_EPOCH - Duration::new(2, 300_000_000);
        let meant = SetTime::At(Timestamp { secs: -2, nanos: 300_000_000 });
        assert_eq!(set_time(TimeOrNow::SpecificTime(arrived)), meant);
        let after = UNIX_EPOCH + Duration::new(2, 3);
        assert_eq!(set_time(TimeOrNow::SpecificTime(after)), SetTime::At(Timestamp { secs: 2, nanos: 3 }));
        assert_eq!(set_time(TimeOrNow::Now), SetTime::Now);
    }

    #[test]
    fn cookies_leave_room_for_the_dots() {
        assert_eq!(offset_of_cookie(1), Some(3));
        assert_eq!(offset_of_cookie(i64::MAX as u64 - 2), Some(i64::MAX as u64));
        assert_eq!(offset_of_cookie(i64::MAX as u64 - 1), None);
        assert_eq!(offset_of_cookie(u64::MAX), None);
    }

    #[test]
    fn only_known_modes_of_allocation_pass() {
        assert_eq!(allocate_mode(3), Some(AllocateMode::PunchHole));
        assert_eq!(allocate_mode(2), None, "a hole cannot be punched without keeping the size");
        assert_eq!(allocate_mode(8), None, "collapsing a range is not offered");
        assert_eq!(kind_of_mode(0o644), Some(Kind::File));
        assert_eq!(kind_of_mode(libc::S_IFDIR), None);
    }
}
