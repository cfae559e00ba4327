//! The words of the engine as types: inode numbers, names, times, attributes.
//!
//! Everything here is parsed once at the border (a front end, a store's format) and trusted afterwards. Nothing here
//! knows FUSE, a store or an operating-system handle.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest name of one path component, in bytes (POSIX `NAME_MAX` on Linux).
pub const NAME_LEN_MAX_BYTES: usize = 255;

/// An inode number, unique within one mounted store at any one time.
///
/// The store chooses it. [`Ino::ROOT`] is always the root directory; 0 is never used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ino(pub u64);

impl Ino {
    /// The root of every store (FUSE fixes it at 1).
    pub const ROOT: Ino = Ino(1);
}

impl fmt::Debug for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ino {}", self.0)
    }
}

/// What an inode is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Block device.
    BlockDevice,
    /// Character device.
    CharDevice,
    /// Named pipe.
    Fifo,
    /// Unix-domain socket.
    Socket,
}

impl Kind {
    /// The word used in `--json` output and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::File => "file",
            Kind::Directory => "directory",
            Kind::Symlink => "symlink",
            Kind::BlockDevice => "block-device",
            Kind::CharDevice => "char-device",
            Kind::Fifo => "fifo",
            Kind::Socket => "socket",
        }
    }
}

/// A point in time with nanoseconds, before or after 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Timestamp {
    /// Seconds since the Unix epoch; negative before it.
    pub secs: i64,
    /// Nanoseconds, 0..1_000_000_000, always counted forward from `secs`.
    pub nanos: u32,
}

impl Timestamp {
    /// The current time.
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// The current time as Linux sets it in the inodes of most file systems, as of the last tick of the system's clock (every 1 to 10 ms) or
    /// a finer stamp since: what is stamped by us and by the kernel one after the other is never in the wrong order.
    pub fn of_tick() -> Self {
        crate::file_clock::now()
    }

    /// Nanoseconds since the epoch, as printed in `mtime_ns` of `--json` output.
    pub fn as_nanos(self) -> i128 {
        i128::from(self.secs) * 1_000_000_000 + i128::from(self.nanos)
    }

    /// Whether it lies between 1677 and 2262, as far as nanoseconds in 64 bits reach. The first and the last moment of these stand for all
    /// times beyond, and are no times themselves.
    pub fn is_plausible(self) -> bool {
        let nanos = self.as_nanos();
        nanos > i128::from(i64::MIN) && nanos < i128::from(i64::MAX)
    }
}

impl From<SystemTime> for Timestamp {
    fn from(t: SystemTime) -> Self {
        match t.duration_since(UNIX_EPOCH) {
            Ok(d) => Timestamp { secs: d.as_secs() as i64, nanos: d.subsec_nanos() },
            Err(e) => {
                let d = e.duration();
                match d.subsec_nanos() {
                    0 => Timestamp { secs: -(d.as_secs() as i64), nanos: 0 },
                    n => Timestamp { secs: -(d.as_secs() as i64) - 1, nanos: 1_000_000_000 - n },
                }
            }
        }
    }
}

/// The attributes of an inode, as `stat(2)` shows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Length in bytes; for a symbolic link the length of its target.
    pub size: u64,
    /// Space used, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// What it is.
    pub kind: Kind,
    /// Permission bits including set-id and sticky (`mode & 0o7777`).
    pub perm: u16,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, for device nodes.
    pub rdev: u32,
}

impl Attr {
    /// The permission bits after its content or owner was changed: no set-user-id; set-group-id only where it is a mark
    /// for locking, without execution by the group, and the change is by a member of the group, or by one with privilege over it (`keeps_mark`; Linux
    /// since 6.2). Those of a directory stay.
    pub fn perm_without_set_id(&self, keeps_mark: bool) -> u16 {
        const SET_UID: u16 = 0o4000;
        const SET_GID: u16 = 0o2000;
        const SET_GID_EXEC: u16 = 0o2010;
        match self.kind {
            Kind::Directory => self.perm,
            _ if self.perm & SET_GID_EXEC == SET_GID_EXEC || !keeps_mark => self.perm & !(SET_UID | SET_GID),
            _ => self.perm & !SET_UID,
        }
    }

    /// Whether a change by anybody takes permission bits away.
    pub fn has_set_id(&self) -> bool {
        self.perm_without_set_id(false) != self.perm
    }
}

/// A time to set: a given one, or the moment of the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// This time.
    At(Timestamp),
    /// The time at which the store applies the change.
    Now,
}

/// Changes to attributes; `None` leaves a field as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// New permission bits (`& 0o7777`).
    pub perm: Option<u16>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New length in bytes; growing reads as zeros.
    pub size: Option<u64>,
    /// New access time.
    pub atime: Option<SetTime>,
    /// New modification time.
    pub mtime: Option<SetTime>,
    /// When attributes or content changed last, as the kernel noted it. Only a store with
    /// [`Capabilities::kernel_writeback`](crate::store::Capabilities) is told; others, and that one otherwise, take the present.
    pub ctime: Option<Timestamp>,
}

impl SetAttr {
    /// Whether nothing is to change.
    pub fn is_empty(&self) -> bool {
        *self == SetAttr::default()
    }
}

/// One component of a path: not empty, not `.` or `..`, without `/` and NUL, at most 255 bytes. Bytes, not UTF-8.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileName<'a>(&'a [u8]);

/// Why bytes are not a [`FileName`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NameError {
    /// Longer than [`NAME_LEN_MAX_BYTES`].
    #[error("name is longer than {NAME_LEN_MAX_BYTES} bytes")]
    TooLong,
    /// Empty, `.`, `..`, or with a slash or NUL byte.
    #[error("not a name of a directory entry")]
    Invalid,
}

impl<'a> FileName<'a> {
    /// Checks `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, NameError> {
        if bytes.len() > NAME_LEN_MAX_BYTES {
            return Err(NameError::TooLong);
        }
        if bytes.is_empty() || bytes == b"." || bytes == b".." || has_slash_or_nul(bytes) {
            return Err(NameError::Invalid);
        }
        Ok(FileName(bytes))
    }

    /// The bytes.
    #[inline]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// For messages; bytes that are not UTF-8 are replaced.
    pub fn display(self) -> std::borrow::Cow<'a, str> {
        String::from_utf8_lossy(self.0)
    }
}

/// Eight bytes at a time: every request with a name comes through here.
#[inline]
fn has_slash_or_nul(bytes: &[u8]) -> bool {
    const EACH: u64 = 0x0101_0101_0101_0101;
    // Sets the top bit of a byte that is zero; with none, no top bit.
    let zeros = |word: u64| word.wrapping_sub(EACH) & !word;
    let bad = |word: [u8; 8]| {
        let word = u64::from_le_bytes(word);
        (zeros(word) | zeros(word ^ (EACH * u64::from(b'/')))) & (EACH << 7) != 0
    };
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().any(|word| bad(*word))
        || match bytes.last_chunk::<8>() {
            // The last word overlaps the one before.
            Some(word) => !rest.is_empty() && bad(*word),
            None => rest.iter().any(|&b| b == b'/' || b == 0),
        }
}

impl fmt::Debug for FileName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.display())
    }
}

/// Who asks, for the ownership of what is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

/// Longest name of an extended attribute, in bytes (`XATTR_NAME_MAX` on Linux).
pub const XATTR_NAME_LEN_MAX_BYTES: usize = 255;
/// Longest value of an extended attribute, in bytes (`XATTR_SIZE_MAX` on Linux). A store may have room for less.
pub const XATTR_VALUE_LEN_MAX_BYTES: usize = 64 << 10;

/// Full name of an extended attribute, with its namespace (`user.comment`): 1 to 255 bytes without NUL.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct XattrName<'a>(&'a [u8]);

impl<'a> XattrName<'a> {
    /// The access ACL of `acl(5)`.
    pub const ACL_ACCESS: XattrName<'static> = XattrName(b"system.posix_acl_access");
    /// What a program may do beyond its user when it is executed, as of `capabilities(7)`.
    pub const CAPABILITY: XattrName<'static> = XattrName(b"security.capability");
    /// The default ACL of `acl(5)`, which what is made in a directory gets.
    pub const ACL_DEFAULT: XattrName<'static> = XattrName(b"system.posix_acl_default");

    /// Checks `bytes`.
    ///
    /// # Errors
    /// [`XattrNameError`] for one that is empty or too long, or holds a NUL byte.
    pub fn new(bytes: &'a [u8]) -> Result<Self, XattrNameError> {
        match bytes.len() {
            1..=XATTR_NAME_LEN_MAX_BYTES if !bytes.contains(&0) => Ok(XattrName(bytes)),
            _ => Err(XattrNameError),
        }
    }

    /// The bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// For messages; bytes that are not UTF-8 are replaced.
    pub fn display(self) -> std::borrow::Cow<'a, str> {
        String::from_utf8_lossy(self.0)
    }
}

impl fmt::Debug for XattrName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.display())
    }
}

/// Bytes that are no [`XattrName`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a name of an extended attribute")]
pub struct XattrNameError;

/// Whether an extended attribute may exist when it is set (`setxattr(2)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrSet {
    /// It may, or not.
    Either,
    /// It must not, else `Exists` (`XATTR_CREATE`).
    Create,
    /// It must, else `NoAttribute` (`XATTR_REPLACE`).
    Replace,
}

bitflags::bitflags! {
    /// Flags of a rename, with the meaning of `renameat2(2)`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct RenameFlags: u32 {
        /// Fail with `Exists` if the target exists.
        const NOREPLACE = 1;
        /// Exchange source and target atomically; both must exist.
        const EXCHANGE = 2;
        /// Leave a whiteout under the old name: a character device 0/0 of root's. Not together with `EXCHANGE`.
        const WHITEOUT = 4;
    }
}

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// For reading.
    Read,
    /// For writing, and reading (partial blocks must be read).
    Write,
}

/// How `allocate` changes a range (`fallocate(2)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocateMode {
    /// Make sure that the range exists; the file may grow.
    Extend,
    /// Likewise, but keep the length.
    KeepSize,
    /// Give the range's space back; it reads as zeros.
    PunchHole,
    /// The range reads as zeros; the file may grow unless `keep_size`.
    Zero {
        /// Whether the length stays.
        keep_size: bool,
    },
}

/// Size and use of a store (`statvfs(3)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatFs {
    /// Fundamental block size in bytes, the unit of the block counts.
    pub block_size: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for users without privilege.
    pub blocks_available: u64,
    /// Inodes in all, 0 if without limit.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_len_max: u32,
}

impl StatFs {
    /// Bytes that can be written by users without privilege; `u64::MAX` where it tells nothing.
    pub fn room_bytes(&self) -> u64 {
        let known = self.blocks > 0 && self.block_size > 0;
        if known { self.blocks_available.saturating_mul(self.block_size.into()) } else { u64::MAX }
    }

    /// The same with room for at most `bytes`. What cannot be written is no part of the size either, so the use stays as it is.
    #[must_use]
    pub fn within(self, bytes: u64) -> StatFs {
        let room = bytes.checked_div(self.block_size.into()).unwrap_or(u64::MAX);
        if room >= self.blocks_available {
            return self;
        }
        let free = self.blocks_free.min(room);
        let blocks = self.blocks.saturating_sub(self.blocks_free - free);
        StatFs { blocks, blocks_free: free, blocks_available: room, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_filesystem_has_no_more_room_than_its_host() {
        let stat = StatFs { block_size: 4096, blocks: 100, blocks_free: 80, blocks_available: 70, ..StatFs::default() };
        assert_eq!((stat.room_bytes(), stat.within(u64::MAX), stat.within(70 * 4096)), (70 * 4096, stat, stat));
        let full = stat.within(4095);
        assert_eq!((full.blocks, full.blocks_free, full.blocks_available), (20, 0, 0));
        assert_eq!(full.blocks - full.blocks_free, stat.blocks - stat.blocks_free, "the use");
        let silent = StatFs::default();
        assert_eq!((silent.room_bytes(), silent.within(0)), (u64::MAX, silent));
    }

    #[test]
    fn names_are_checked() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert_eq!(FileName::new(bad), Err(NameError::Invalid));
        }
        assert_eq!(FileName::new(&[b'x'; 256]), Err(NameError::TooLong));
        assert!(FileName::new(&[0xff; 255]).is_ok());
        assert!(FileName::new(b"...").is_ok());
        for len in 3..=255 {
            let mut name: Vec<u8> = (0..len).map(|at| b'0' - (at % 2) as u8 * 2).collect();
            assert!(FileName::new(&name).is_ok());
            for at in 0..len {
                for bad in [0, b'/'] {
                    let good = std::mem::replace(&mut name[at], bad);
                    assert_eq!(FileName::new(&name), Err(NameError::Invalid), "{len} {at}");
                    name[at] = good;
                }
            }
        }
    }

    #[test]
    fn set_id_bits_go_with_a_change() {
        let time = Timestamp::default();
        let ino = Ino(7);
        let file = |kind, perm, keeps_mark| {
            let (size, blocks, nlink, uid, gid, rdev) = (0, 0, 1, 0, 0, 0);
            let (atime, mtime, ctime) = (time, time, time);
            Attr { ino, size, blocks, atime, mtime, ctime, kind, perm, nlink, uid, gid, rdev }
                .perm_without_set_id(keeps_mark)
        };
        for keeps_mark in [true, false] {
            assert_eq!(file(Kind::File, 0o6755, keeps_mark), 0o755);
            assert_eq!(file(Kind::File, 0o5644, keeps_mark), 0o1644);
            assert_eq!(file(Kind::File, 0o2755, keeps_mark), 0o755);
            assert_eq!(file(Kind::Directory, 0o6755, keeps_mark), 0o6755);
        }
        assert_eq!(
            file(Kind::File, 0o2745, true),
            0o2745,
            "without group execution it is a lock mark, not a set-id bit"
        );
        assert_eq!(file(Kind::File, 0o2745, false), 0o745, "whoever is not in the group sets none");
    }

    #[test]
    fn times_before_the_epoch_count_nanoseconds_forward() {
        let t: Timestamp = (UNIX_EPOCH - Duration::from_millis(1500)).into();
        assert_eq!(t, Timestamp { secs: -2, nanos: 500_000_000 });
        assert_eq!(t.as_nanos(), -1_500_000_000);
        assert!(t.is_plausible());
        let of = |nanos: i64| Timestamp {
            secs: nanos.div_euclid(1_000_000_000),
            nanos: nanos.rem_euclid(1_000_000_000) as u32,
        };
        assert!(!of(i64::MAX).is_plausible() && !of(i64::MIN).is_plausible());
        assert!(of(i64::MAX - 1).is_plausible() && of(i64::MIN + 1).is_plausible());
    }
}
