//! Renames to a name that is free, on hosts of every kind.
//!
//! [`FreeNames`] is how one host does that, and [`Links`] what its hard links are. Invariant: nothing of anybody else is
//! replaced, whoever makes the name at the same moment. No flag of a mount tells what a host can do: it is tried.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::types::Timestamp;

/// A name in an open directory.
pub type Named<'a> = (BorrowedFd<'a>, &'a OsStr);

/// What `link(2)` makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Links {
    /// A further name of one file.
    OneFile,
    /// A further name of one content, which the kernel takes for another file: filesystems of FUSE that go by paths (sshfs,
    /// mergerfs, unionfs).
    TwoFiles,
    /// Nothing: the host has no links.
    Missing,
}

/// How a host renames to a free name.
///
/// Locking: none; what is found out is kept in atomics, and found out twice by two callers at most.
#[derive(Debug)]
pub struct FreeNames {
    /// Whether the host knows the flags of `renameat2`; cleared when it did without one what it refused with one.
    flags: AtomicBool,
    /// Tried before the first one is relied on.
    links: OnceLock<Links>,
}

impl Default for FreeNames {
    fn default() -> Self {
        FreeNames::new()
    }
}

impl FreeNames {
    /// Of a host of which nothing is known.
    pub const fn new() -> FreeNames {
        FreeNames { flags: AtomicBool::new(true), links: OnceLock::new() }
    }

    /// Of a host that has no flags of `renameat2`, and these links.
    pub fn without_flags(links: Links) -> FreeNames {
        FreeNames { flags: AtomicBool::new(false), links: OnceLock::from(links) }
    }

    /// What links are on this host; tried in the directory `dir`.
    ///
    /// # Errors
    /// Of the host, where they say nothing of links: there is no room, no descriptor, no right to make anything there.
    pub fn links(&self, dir: BorrowedFd<'_>) -> io::Result<Links> {
        match self.links.get() {
            Some(links) => Ok(*links),
            None => links(dir).map(|links| *self.links.get_or_init(|| links)),
        }
    }

    /// Renames, if the new name is free: at one moment, whoever else makes it.
    ///
    /// # Errors
    /// `EEXIST` if it is taken; else the host's.
    pub fn rename(&self, from: Named<'_>, to: Named<'_>) -> io::Result<()> {
        if self.rename_with_flags(from, to)? { Ok(()) } else { self.rename_without_flags(from, to) }
    }

    /// Gives the new file `fd`, which lies at `from`, the free name `to`. None if it is to be opened anew.
    ///
    /// # Errors
    /// As [`FreeNames::rename`].
    pub fn name_new(&self, from: Named<'_>, to: Named<'_>, fd: OwnedFd) -> io::Result<Option<OwnedFd>> {
        if self.rename_with_flags(from, to)? {
            return Ok(Some(fd));
        }
        if self.links(to.0)? == Links::TwoFiles {
            // Closed before: the host has all of it then, and does not keep a removed file that is open.
            drop(fd);
            link_and_unlink(from, to)?;
            self.flags.store(false, Ordering::Relaxed);
            return Ok(None);
        }
        self.rename_without_flags(from, to).map(|()| Some(fd))
    }

    /// Renames to a free name in one call. False if the host, or this place in it, knows no flags.
    fn rename_with_flags(&self, from: Named<'_>, to: Named<'_>) -> io::Result<bool> {
        if !self.flags.load(Ordering::Relaxed) {
            return Ok(false);
        }
        match rustix::fs::renameat_with(from.0, from.1, to.0, to.1, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(false),
            other => Ok(other.map(|()| true)?),
        }
    }

    /// Renames to a free name on a host that knows no flags (NFS, many of FUSE). Looking first would destroy what another
    /// client makes in between; so a file is linked, which fails if the name is taken, and a folder replaces an empty one
    /// that was made for it, which fails if that is empty no more. A kill can leave a file under both names, or the empty
    /// folder.
    ///
    /// Where a link is another file, or there is none, a file replaces an empty one that was made for it: whoever has it open
    /// goes on with it. A kill can leave the empty one, and what another client writes into that in between is lost.
    fn rename_without_flags(&self, from: Named<'_>, to: Named<'_>) -> io::Result<()> {
        let st = rustix::fs::statat(from.0, from.1, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_dir = FileType::from_raw_mode(st.st_mode) == FileType::Directory;
        if is_dir {
            rustix::fs::mkdirat(to.0, to.1, Mode::RWXU)?;
            match replace_own(from, to, AtFlags::REMOVEDIR) {
                // It was empty, and is gone: a host that moves nothing to a name that is there.
                Err(Errno::EXIST) => rustix::fs::renameat(from.0, from.1, to.0, to.1)?,
                Err(Errno::NOTEMPTY) => return Err(Errno::EXIST.into()),
                other => other?,
            }
        } else if self.links(to.0)? == Links::OneFile {
            link_and_unlink(from, to)?;
        } else {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            drop(retry_on_intr(|| rustix::fs::openat(to.0, to.1, flags, Mode::RUSR | Mode::WUSR))?);
            replace_own(from, to, AtFlags::empty())?;
        }
        // Only now is it known that the host, and not what was asked, was the reason.
        self.flags.store(false, Ordering::Relaxed);
        Ok(())
    }
}

/// Moves to the name `to`, at which lies what was made to keep it: that goes if the move fails. `NOTEMPTY` if it is empty no
/// more.
fn replace_own(from: Named<'_>, to: Named<'_>, kind: AtFlags) -> Result<(), Errno> {
    rustix::fs::renameat(from.0, from.1, to.0, to.1)
        .map_err(|e| rustix::fs::unlinkat(to.0, to.1, kind).err().filter(|why| *why == Errno::NOTEMPTY).unwrap_or(e))
}

/// Moves a file to a free name by way of a second one.
fn link_and_unlink(from: Named<'_>, to: Named<'_>) -> io::Result<()> {
    rustix::fs::linkat(from.0, from.1, to.0, to.1, AtFlags::empty())?;
    rustix::fs::unlinkat(from.0, from.1, AtFlags::empty()).map_err(|e| {
        let _ = rustix::fs::unlinkat(to.0, to.1, AtFlags::empty());
        e.into()
    })
}

/// Makes a file under a name that nobody else has, open for both.
///
/// # Errors
/// The host's.
pub fn new_file(dir: impl AsFd, mode: Mode) -> io::Result<(String, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    loop {
        let name = temporary_name();
        match retry_on_intr(|| rustix::fs::openat(&dir, &name, flags, mode)) {
            Ok(fd) => return Ok((name, fd)),
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Whether the name in `dir` is the open file `fd`, as far as numbers tell.
///
/// # Errors
/// The host's.
pub fn is_one(dir: impl AsFd, name: &OsStr, fd: &OwnedFd) -> io::Result<bool> {
    let (named, open) = (rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?, rustix::fs::fstat(fd)?);
    Ok((named.st_dev, named.st_ino) == (open.st_dev, open.st_ino))
}

/// Tries a link in `dir`, and removes what it made.
fn links(dir: BorrowedFd<'_>) -> io::Result<Links> {
    let (first, fd) = new_file(dir, Mode::RUSR | Mode::WUSR)?;
    let second = temporary_name();
    let linked = rustix::fs::linkat(dir, &first, dir, &second, AtFlags::empty());
    let tried = match linked {
        Ok(()) => is_seen(dir, &second, &fd),
        Err(e) if is_of_the_moment(e) => Err(e.into()),
        Err(_) => Ok(false),
    };
    let open = rustix::fs::fstat(&fd);
    // Closed before: some hosts store a file once more when it is closed. What cannot be removed again is swept as what a kill
    // leaves.
    drop(fd);
    let _ = rustix::fs::unlinkat(dir, &first, AtFlags::empty());
    let named = rustix::fs::statat(dir, &second, AtFlags::SYMLINK_NOFOLLOW);
    if linked.is_ok() {
        let _ = rustix::fs::unlinkat(dir, &second, AtFlags::empty());
    }
    let stays = open.is_ok_and(|open| named.is_ok_and(|named| named.st_ino == open.st_ino));
    Ok(match (linked, tried?) {
        (Err(_), _) => Links::Missing,
        (Ok(()), seen) if seen && stays => Links::OneFile,
        (Ok(()), _) => Links::TwoFiles,
    })
}

/// Whether what is written to `fd` shows under the name at once.
fn is_seen(dir: BorrowedFd<'_>, name: &str, fd: &OwnedFd) -> io::Result<bool> {
    let len = || rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map(|st| st.st_size);
    let before = len()?;
    if rustix::io::pwrite(fd, b"x", 0)? != 1 {
        return Err(io::ErrorKind::WriteZero.into());
    }
    Ok(before == 0 && len()? == 1 && is_one(dir, name.as_ref(), fd)?)
}

/// Whether the error says how things are now, and not what the host can do.
pub fn is_of_the_moment(e: Errno) -> bool {
    let of_the_moment =
        [Errno::NOSPC, Errno::DQUOT, Errno::NOMEM, Errno::INTR, Errno::NOTCONN, Errno::TIMEDOUT, Errno::STALE];
    of_the_moment.contains(&e)
}

/// A name for a temporary. Unpredictable enough to seldom collide; `EXCL` decides.
pub fn temporary_name() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let now = Timestamp::now();
    let mut x = COUNTER.fetch_add(1, Ordering::Relaxed)
        ^ (u64::from(now.nanos) << 32)
        ^ (now.secs as u64)
        ^ (u64::from(std::process::id()) << 20);
    // splitmix64's finaliser.
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    format!(".adit-{:08x}.tmp", (x >> 32) as u32)
}

/// Whether a name is one that [`temporary_name`] gives.
pub fn is_temporary_name(name: &[u8]) -> bool {
    name.strip_prefix(b".adit-").and_then(|rest| rest.strip_suffix(b".tmp")).is_some_and(|digits| {
        digits.len() == 8 && digits.iter().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b))
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn what_links_are_here_is_found_out_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let open = File::open(dir.path()).unwrap();
        let names = FreeNames::new();
        assert_eq!(names.links(open.as_fd()).unwrap(), Links::OneFile);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let gone = FreeNames::new();
        dir.close().unwrap();
        assert!(gone.links(open.as_fd()).is_err(), "that says nothing of links");
        assert_eq!(gone.links.get(), None);
    }
}
