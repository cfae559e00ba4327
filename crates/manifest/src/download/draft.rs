//! Files that are not complete: each beside its place, under a temporary name, until it has all of its content.
//!
//! Who writes one holds its lock, and a lock goes with its process, however that ends. So one whose lock is free was left by a
//! download that was killed, of whatever user or machine, and the next one into that folder [removes](sweep) it. A host without locks
//! has this done to a download that is at work as well: that one fails, and nothing is wrong.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use adit_core::media::{HostDir, HostFile, NewFile};
use adit_core::path::transfer::draft_prefix;
use adit_core::types::{Access, Kind, RenameFlags, Timestamp};

/// What follows the number of a draft in its name.
const SUFFIX: &str = ".download";
/// Names that are tried; each is taken only by what has this process's number and time.
const NAMES_MAX: u32 = 100;
/// Links have no lock. One of this age is nobody's any more: they live for a moment.
const LINK_AGE: Duration = Duration::from_secs(60);

/// A new file that has no name of its own yet. It is removed when this is dropped.
pub(super) struct Draft<'d> {
    host: &'d dyn HostDir,
    path: PathBuf,
    /// The file; its lock is held as long as this is open. None for a link.
    file: Option<Box<dyn HostFile>>,
    is_placed: bool,
}

impl<'d> Draft<'d> {
    /// A file in the directory that `path` lies in, which only this user may open.
    pub fn file(host: &'d dyn HostDir, path: &Path) -> io::Result<Self> {
        let new = NewFile { content: b"", perm: 0o600, owner: None, durable: false };
        Draft::named(host, path, |name| {
            let file = host.publish(name, &new)?;
            // Somebody who sweeps can have been faster than the lock.
            if file.try_lock(true)? && file.stat()?.nlink > 0 { Ok(Some(file)) } else { Err(taken()) }
        })
    }

    /// A symbolic link beside `path`.
    pub fn link(host: &'d dyn HostDir, path: &Path, target: &[u8]) -> io::Result<Self> {
        Draft::named(host, path, |name| host.make_link(name, target).map(|()| None))
    }

    fn named(
        host: &'d dyn HostDir,
        path: &Path,
        make: impl Fn(&Path) -> io::Result<Option<Box<dyn HostFile>>>,
    ) -> io::Result<Self> {
        for _ in 0..NAMES_MAX {
            let name = path.with_file_name(temporary_name());
            match make(&name) {
                Ok(file) => return Ok(Draft { host, path: name, file, is_placed: false }),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(taken())
    }

    /// The open file.
    pub fn open(&self) -> io::Result<&dyn HostFile> {
        self.file.as_deref().ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// Gives it its name; `AlreadyExists` if that is taken and not to be replaced: then it can be tried with another one.
    pub fn place(&mut self, path: &Path, replace: bool) -> io::Result<()> {
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        self.host.rename(&self.path, path, flags)?;
        self.is_placed = true;
        Ok(())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.is_placed {
            // Nothing to do about a failure: the next download removes it.
            let _ = self.host.remove(&self.path, Kind::File);
        }
    }
}

/// Removes what downloads that were killed have left in the directory `dir`, but for what is `wanted` under such a name; how many that
/// were. What cannot be found or removed stays, and is no error: nothing needs its name.
pub(super) fn sweep(host: &dyn HostDir, dir: &Path, wanted: &dyn Fn(&Path) -> bool) -> u64 {
    let mut found = Vec::new();
    let listed = host.list(dir, &mut |entry| {
        if is_temporary(entry.name) {
            found.push(dir.join(OsStr::from_bytes(entry.name)));
        }
    });
    if let Err(e) = listed {
        tracing::debug!(dir = %dir.display(), error = %e, "what a killed download left here is not known");
    }
    found.retain(|path| !wanted(path));
    let removed = found.iter().filter(|path| is_left(host, path) && host.remove(path, Kind::File).is_ok());
    removed.count() as u64
}

/// Whether nobody is at work on it any more. Its lock is free again when this returns: who gets it then has made it, and finds that
/// it is gone.
fn is_left(host: &dyn HostDir, path: &Path) -> bool {
    match host.stat(path) {
        Ok(attr) if attr.kind == Kind::File => {
            host.open(path, Access::Write).is_ok_and(|file| file.try_lock(true).is_ok_and(|is_free| is_free))
        }
        Ok(attr) if attr.kind == Kind::Symlink => {
            Timestamp::now().as_nanos() - attr.ctime.as_nanos() > LINK_AGE.as_nanos() as i128
        }
        _ => false,
    }
}

/// A name that nobody else gives.
fn temporary_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{}{:x}{SUFFIX}", draft_prefix(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Whether a name is one that a download gives: `.adit-PROCESS-TIME-N.download`.
fn is_temporary(name: &[u8]) -> bool {
    let parts = name.strip_prefix(b".adit-").and_then(|rest| rest.strip_suffix(SUFFIX.as_bytes()));
    let Some(parts) = parts else { return false };
    let is_number = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_hexdigit);
    parts.split(|byte| *byte == b'-').filter(|part| is_number(part)).count() == 3
        && parts.iter().filter(|byte| **byte == b'-').count() == 2
}

fn taken() -> io::Error {
    io::ErrorKind::AlreadyExists.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_and_no_others() {
        assert!(is_temporary(temporary_name().as_bytes()));
        for name in [
            ".adit-1-2-3.part",
            ".adit-1-2.download",
            ".adit-1-2-3-4.download",
            ".adit-1--3.download",
            "a.adit-1-2-3.download",
        ] {
            assert!(!is_temporary(name.as_bytes()), "{name}");
        }
    }
}
