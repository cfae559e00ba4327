//! What the host does with names, found out by trying.
//!
//! No flag of a mount tells it: the filesystems of FUSE that go by paths (sshfs, mergerfs, unionfs) make a link, and the
//! kernel takes the second name for another file, with a number, a length and a cache of its own.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use adit_core::media::{HostDir, HostFile, NewFile};
use adit_core::types::{Access, Kind, RenameFlags};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use super::{HostDirectory, temporary_name};
use crate::host::write_all_at;

/// What `link(2)` makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Links {
    /// A further name of one file.
    OneFile,
    /// A further name of one content, which the kernel takes for another file.
    TwoFiles,
    /// Nothing: the host has no links.
    Missing,
}

/// Makes a file under a name that nobody else has, open for both.
pub(super) fn new_file(dir: impl AsFd, mode: Mode) -> io::Result<(String, OwnedFd)> {
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
pub(super) fn is_one(dir: impl AsFd, name: &OsStr, fd: &OwnedFd) -> io::Result<bool> {
    let (named, open) = (rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?, rustix::fs::fstat(fd)?);
    Ok((named.st_dev, named.st_ino) == (open.st_dev, open.st_ino))
}

/// Tries a link in `dir`, and removes what it made.
///
/// # Errors
/// What says nothing of links: there is no room, no descriptor, no right to make anything there, or no host any more.
pub(super) fn links(dir: impl AsFd) -> io::Result<Links> {
    let (first, fd) = new_file(&dir, Mode::RUSR | Mode::WUSR)?;
    let second = temporary_name();
    let linked = rustix::fs::linkat(&dir, &first, &dir, &second, AtFlags::empty());
    let tried = match linked {
        Ok(()) => is_seen(&dir, &second, &fd),
        Err(e) if is_of_the_moment(e) => Err(e.into()),
        Err(_) => Ok(false),
    };
    // What cannot be removed again is swept as what a kill leaves.
    let _ = rustix::fs::unlinkat(&dir, &first, AtFlags::empty());
    let stays = linked.is_err() || is_one(&dir, second.as_ref(), &fd).unwrap_or(false);
    if linked.is_ok() {
        let _ = rustix::fs::unlinkat(&dir, &second, AtFlags::empty());
    }
    Ok(match (linked, tried?) {
        (Err(_), _) => Links::Missing,
        (Ok(()), seen) if seen && stays => Links::OneFile,
        (Ok(()), _) => Links::TwoFiles,
    })
}

/// Whether what is written to `fd` shows under the name at once.
fn is_seen(dir: impl AsFd, name: &str, fd: &OwnedFd) -> io::Result<bool> {
    let len = || rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW).map(|st| st.st_size);
    let before = len()?;
    write_all_at(fd, 0, b"x")?;
    Ok(before == 0 && len()? == 1 && is_one(&dir, name.as_ref(), fd)?)
}

/// Whether the error says how things are now, and not what the host can do.
fn is_of_the_moment(e: Errno) -> bool {
    let of_the_moment =
        [Errno::NOSPC, Errno::DQUOT, Errno::NOMEM, Errno::INTR, Errno::NOTCONN, Errno::TIMEDOUT, Errno::STALE];
    of_the_moment.contains(&e)
}

/// Tries in `folder` what a store that changes files does, and removes what it made. See [`HostDir::trial`].
pub(super) fn changes(host: &HostDirectory, folder: &Path) -> io::Result<()> {
    let [first, second] = [(); 2].map(|()| folder.join(temporary_name()));
    let new = NewFile { content: &[b'x'; 4096], perm: 0o600, owner: None, durable: false };
    let file = match host.publish(&first, &new) {
        Err(e) if Errno::from_io_error(&e).is_some_and(|e| is_of_the_moment(e) || is_of_rights(e)) => return Ok(()),
        other => other?,
    };
    let worked = change(host, file, &first, &second);
    // Only one of them is there.
    let _ = (host.remove(&first, Kind::File), host.remove(&second, Kind::File));
    match worked {
        Err(e) if matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => Ok(()),
        worked => worked,
    }
}

fn change(host: &HostDirectory, file: Box<dyn HostFile>, first: &Path, second: &Path) -> io::Result<()> {
    let step = |what: &str, done: io::Result<()>| done.map_err(|e| io::Error::new(e.kind(), format!("{what}: {e}")));
    let read = |file: &dyn HostFile, wanted: &[u8]| {
        let mut found = vec![0; wanted.len()];
        let got = file.read_at(10, &mut found)?;
        if found[..got] == *wanted { Ok(()) } else { Err(io::Error::other("something else is read")) }
    };
    step("a new file cannot be read", read(&*file, b"xxxx"))?;
    step("a file cannot be renamed", host.rename(first, second, RenameFlags::NOREPLACE))?;
    drop(file);
    let file = host.open(second, Access::Write);
    let file = file.map_err(|e| io::Error::new(e.kind(), format!("a file cannot be opened to change it: {e}")))?;
    step("a file cannot be changed", file.write_at(10, b"abcd").and_then(|()| read(&*file, b"abcd")))?;
    step("a file cannot be cut", file.set_len(12).and_then(|()| read(&*file, b"ab")))
}

/// Whether the error is about who asks, or where.
fn is_of_rights(e: Errno) -> bool {
    [Errno::ACCESS, Errno::PERM, Errno::ROFS, Errno::NOENT, Errno::NOTDIR, Errno::MFILE, Errno::NFILE].contains(&e)
}
