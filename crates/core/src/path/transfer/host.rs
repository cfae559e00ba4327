//! Entries of the host, by open directory and name; no link is followed below the directory that the caller opened.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps};

use crate::error::{ErrorKind, FsError, Result};
use crate::host::free_name::FreeNames;
use crate::types::Timestamp;

/// Temporary names tried before a directory is given up; each is taken only by a copy that was killed.
const DRAFT_NAMES_MAX: u32 = 100;

/// An entry of the host, which may exist or not: an open directory and a name in it.
#[derive(Debug)]
pub struct HostPlace {
    pub(super) dir: OwnedFd,
    /// One plain component.
    name: OsString,
    /// As the caller named it, for messages.
    pub(super) path: PathBuf,
}

impl HostPlace {
    /// The place that `path` names. Links in the folders above it are followed, one in its last component is not.
    ///
    /// # Errors
    /// `InvalidInput` for a path that ends in no name (`/`, `..`); otherwise what opening the folder above gives.
    pub fn of(path: &Path) -> Result<HostPlace> {
        let Some(Component::Normal(name)) = path.components().next_back() else {
            return Err(FsError::new(ErrorKind::InvalidInput).on("open", path.display()).because("it ends in no name"));
        };
        let above = match path.parent() {
            Some(above) if above != Path::new("") => above,
            _ => Path::new("."),
        };
        Ok(HostPlace { dir: open_dir(above)?, name: name.to_owned(), path: path.to_owned() })
    }

    /// The name.
    pub fn name(&self) -> &OsStr {
        &self.name
    }
}

/// Opens a directory that the caller named, links followed. It may be one that may not be listed.
pub fn open_dir(path: &Path) -> Result<OwnedFd> {
    crate::host::open_folder(path).map_err(|e| FsError::from(io::Error::from(e)).on("open", path.display()))
}

/// Opens the directory `name` in `dir`; a link there is an error.
pub(super) fn open_dir_in(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

/// Opens the file `name` in `dir` for reading; a link there is an error, and a FIFO does not block.
pub(super) fn open_file_in(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

/// Attributes of the entry itself.
pub(super) fn stat_in(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<Stat> {
    Ok(rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Fails if a copy must not take the place of what is there: a device, a FIFO or a socket, also at the end of a link.
pub(super) fn check_replaceable(dir: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
    let kind = |flags| rustix::fs::statat(dir, name, flags).map(|stat| FileType::from_raw_mode(stat.st_mode));
    let kind = match kind(AtFlags::SYMLINK_NOFOLLOW) {
        Ok(FileType::Symlink) => kind(AtFlags::empty()),
        other => other,
    };
    match kind {
        // What is not there, or cannot be looked at, is for the call that puts the copy in its place.
        Ok(FileType::RegularFile | FileType::Directory | FileType::Symlink) | Err(_) => Ok(()),
        Ok(_) => Err(FsError::new(ErrorKind::NotSupported)
            .because("a device, FIFO or socket is in its place; `-` as the destination writes to standard output")),
    }
}

/// The names in a directory, sorted.
pub(super) fn names_in(dir: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name.to_vec()));
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Sets the modification time, unless it is [none](Timestamp::is_plausible), and leaves the access time.
pub(super) fn mtime_only(mtime: Timestamp) -> Timestamps {
    let last_modification = match mtime.is_plausible() {
        true => Timespec { tv_sec: mtime.secs, tv_nsec: i64::from(mtime.nanos) },
        false => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
    };
    Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT }, last_modification }
}

/// The modification time of a host entry.
pub(super) fn mtime_of(stat: &Stat) -> Timestamp {
    Timestamp { secs: stat.st_mtime, nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or(0) }
}

/// A new entry under a temporary name, removed on drop unless it was put in place.
pub(super) struct Draft<'d> {
    dir: BorrowedFd<'d>,
    name: OsString,
    placed: bool,
}

impl<'d> Draft<'d> {
    /// Tries temporary names until `make` creates one.
    pub(super) fn new<T>(dir: BorrowedFd<'d>, make: impl Fn(&OsStr) -> io::Result<T>) -> io::Result<(Self, T)> {
        for _ in 0..DRAFT_NAMES_MAX {
            let name = OsString::from(temporary_name());
            match make(&name) {
                Ok(made) => return Ok((Draft { dir, name, placed: false }, made)),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// The temporary name.
    pub(super) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Gives the entry its name, in place of a file or link there unless the name must be one of the host's `free` ones.
    pub(super) fn place(mut self, name: &OsStr, free: Option<&FreeNames>) -> io::Result<()> {
        match free {
            Some(free) => free.rename((self.dir, &self.name), (self.dir, name))?,
            None => rustix::fs::renameat(self.dir, &self.name, self.dir, name)?,
        }
        self.placed = true;
        Ok(())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.placed {
            // Nothing to do about a failure: the error that led here is the one to report.
            let _ = rustix::fs::unlinkat(self.dir.as_fd(), &self.name, AtFlags::empty());
        }
    }
}

/// What follows the number of a draft in its temporary name.
const DRAFT_END: &str = ".part";

/// What the temporary names of this process begin with, and of no other.
pub fn draft_prefix() -> &'static str {
    static PREFIX: LazyLock<String> = LazyLock::new(|| {
        let stamp = Timestamp::now();
        format!(".adit-{:x}-{:x}{:08x}-", std::process::id(), stamp.secs, stamp.nanos)
    });
    &PREFIX
}

/// Whether a process whose names begin with `prefix` gave an entry this temporary name.
pub fn is_draft(name: &[u8], prefix: &str) -> bool {
    let count = name.strip_prefix(prefix.as_bytes()).and_then(|rest| rest.strip_suffix(DRAFT_END.as_bytes()));
    count.is_some_and(|count| !count.is_empty() && count.iter().all(u8::is_ascii_hexdigit))
}

/// A temporary name that no two copies use at the same time.
pub(super) fn temporary_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{}{:x}{DRAFT_END}", draft_prefix(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Bytes of a host name.
pub(super) fn bytes(name: &OsStr) -> &[u8] {
    name.as_bytes()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::host::free_name::Links;

    /// As on sshfs, mergerfs and rclone.
    #[test]
    fn a_copy_gets_its_name_where_the_host_knows_no_flags_of_a_rename() {
        for free in [Links::OneFile, Links::TwoFiles, Links::Missing].map(FreeNames::without_flags) {
            let folder = tempfile::tempdir().unwrap();
            let dir = open_dir(folder.path()).unwrap();
            fs::write(folder.path().join("taken"), "taken").unwrap();
            let draft = |text: &str| {
                let make = |name: &OsStr| fs::write(folder.path().join(name), text);
                Draft::new(dir.as_fd(), make).unwrap().0
            };
            let refused = draft("new").place(OsStr::new("taken"), Some(&free)).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
            draft("new").place(OsStr::new("free"), Some(&free)).unwrap();
            let contents = ["taken", "free"].map(|name| fs::read_to_string(folder.path().join(name)).unwrap());
            assert_eq!(contents, ["taken", "new"]);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        }
    }
}
