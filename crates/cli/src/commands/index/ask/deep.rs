//! What lies below a folder, by paths of any length: of one the host takes less than 4 KiB at once.
//!
//! A longer way is gone in steps, each from a folder that is open.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use rustix::io::{Errno, retry_on_intr};

/// So much of a path is gone in one step: less than the host takes, whatever is in front.
const STEP_LEN_BYTES: usize = 3000;

/// A folder that is open, if it need be, and the path from there on.
struct Way {
    from: Option<OwnedFd>,
    rest: PathBuf,
}

impl Way {
    /// To `path` below the folder `root`.
    fn to(root: &Path, path: &[u8]) -> io::Result<Way> {
        let whole = root.join(OsStr::from_bytes(path));
        if whole.as_os_str().len() <= STEP_LEN_BYTES {
            return Ok(Way { from: None, rest: whole });
        }
        let open = |at: BorrowedFd<'_>, path: &Path, more| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | more;
            retry_on_intr(|| openat(at, path, flags, Mode::empty()))
        };
        let mut at = open(CWD, root, OFlags::empty())?;
        let mut left = path;
        while left.len() > STEP_LEN_BYTES {
            let slash = left[..STEP_LEN_BYTES].iter().rposition(|byte| *byte == b'/').filter(|slash| *slash > 0);
            let slash = slash.ok_or(Errno::NAMETOOLONG)?;
            at = open(at.as_fd(), Path::new(OsStr::from_bytes(&left[..slash])), OFlags::NOFOLLOW)?;
            left = &left[slash + 1..];
        }
        Ok(Way { from: Some(at), rest: OsStr::from_bytes(left).into() })
    }

    fn from(&self) -> BorrowedFd<'_> {
        self.from.as_ref().map_or(CWD, AsFd::as_fd)
    }
}

/// Opens the file at `path` below the folder `root` to read it; not what a link leads to, and no pipe is waited for.
///
/// # Errors
/// The host's.
pub fn open(root: &Path, path: &[u8]) -> io::Result<File> {
    let way = Way::to(root, path)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(retry_on_intr(|| openat(way.from(), &way.rest, flags, Mode::empty()))?.into())
}

/// Where the link at `path` below the folder `root` leads.
///
/// # Errors
/// The host's.
pub fn read_link(root: &Path, path: &[u8]) -> io::Result<Vec<u8>> {
    let way = Way::to(root, path)?;
    Ok(retry_on_intr(|| readlinkat(way.from(), &way.rest, Vec::new()))?.into_bytes())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::fs::{mkdirat, symlinkat};

    use super::*;

    #[test]
    fn paths_of_any_length_lead_to_files_and_links() {
        let folder = tempfile::tempdir().unwrap();
        let mut at: OwnedFd = File::open(folder.path()).unwrap().into();
        let mut path = Vec::new();
        // Ends of steps, and beyond what the host takes, by names of several lengths.
        for n in 0..200_usize {
            let name = "n".repeat([1, 2, 99, 255][n % 4]);
            mkdirat(&at, &*name, Mode::from_raw_mode(0o755)).unwrap();
            at = openat(&at, &*name, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
            path.extend_from_slice(name.as_bytes());
            path.push(b'/');
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::io::write(openat(&at, "f", flags, Mode::from_raw_mode(0o644)).unwrap(), name.as_bytes()).unwrap();
            symlinkat(&*name, &at, "l").unwrap();
            let mut content = String::new();
            open(folder.path(), &[&path[..], b"f"].concat()).unwrap().read_to_string(&mut content).unwrap();
            assert_eq!(content, name);
            assert_eq!(read_link(folder.path(), &[&path[..], b"l"].concat()).unwrap(), name.as_bytes());
            let none = [&path[..], b"none"].concat();
            assert_eq!(open(folder.path(), &none).unwrap_err().kind(), io::ErrorKind::NotFound);
            assert!(open(folder.path(), &[&path[..], b"l"].concat()).is_err(), "a link is not followed");
        }
        assert!(path.len() > 3 * 4096);
    }
}
