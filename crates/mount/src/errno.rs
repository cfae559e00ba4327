//! The one table from [`ErrorKind`] to the errno that a caller of the mount sees, and the log of errors that hide detail.
//!
//! An errno says little: corrupt data, a failing disk and a dead network all are EIO. So these are logged with their
//! path ([`ErrorLog`]), a bounded number of lines at a time, because one bad disk can fail a million reads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adit_core::{ErrorKind, FsError};
use parking_lot::Mutex;

/// The errno for an error kind: the single place where the two meet.
pub fn errno_of(kind: ErrorKind) -> i32 {
    use ErrorKind::*;
    match kind {
        NotFound => libc::ENOENT,
        Exists => libc::EEXIST,
        NotDirectory => libc::ENOTDIR,
        IsDirectory => libc::EISDIR,
        NotEmpty => libc::ENOTEMPTY,
        InvalidInput => libc::EINVAL,
        NameTooLong => libc::ENAMETOOLONG,
        IllegalName => libc::EILSEQ,
        PermissionDenied | WrongPassword => libc::EACCES,
        NotPermitted => libc::EPERM,
        ReadOnly => libc::EROFS,
        NoSpace => libc::ENOSPC,
        QuotaExceeded => libc::EDQUOT,
        FileTooLarge => libc::EFBIG,
        Corrupt | Io | Network => libc::EIO,
        NotSupported => libc::EOPNOTSUPP,
        Stale => libc::ESTALE,
        Busy => libc::EBUSY,
        TooManyLinks => libc::EMLINK,
        Loop => libc::ELOOP,
        CrossDevice => libc::EXDEV,
        NoAttribute => libc::ENODATA,
        OutOfRange => libc::ERANGE,
        Interrupted => libc::EINTR,
        TimedOut => libc::ETIMEDOUT,
        Exhausted => libc::ENOMEM,
        TooManyFiles => libc::ENFILE,
        NoData => libc::ENXIO,
        // The kinds may grow; an unknown failure is still a failure.
        _ => libc::EIO,
    }
}

/// Whether the errno alone would hide what the user must know: which object is damaged or unreachable.
pub fn deserves_a_line(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Corrupt | ErrorKind::Io | ErrorKind::Network | ErrorKind::TimedOut)
}

/// Lines per window that [`ErrorLog`] lets through.
const LINES_PER_WINDOW: u64 = 20;
/// Length of a window.
const WINDOW: Duration = Duration::from_secs(10);

/// Logs errors that [`deserves_a_line`], at most 20 in 10 seconds; what was left out is counted and said.
#[derive(Debug, Default)]
pub struct ErrorLog {
    window: Mutex<Option<Window>>,
    suppressed: AtomicU64,
}

#[derive(Debug)]
struct Window {
    start: Instant,
    lines: u64,
}

impl ErrorLog {
    /// Logs `error` of `op` if its kind asks for it. `path` is called only when a line is written and the error names no
    /// subject itself.
    pub fn note(&self, op: &'static str, error: &FsError, path: impl FnOnce() -> Option<String>) {
        if !deserves_a_line(error.kind()) || !self.admit(Instant::now()) {
            return;
        }
        match (error.subject(), path()) {
            (None, Some(path)) => tracing::error!(op, path, "{error}"),
            _ => tracing::error!(op, "{error}"),
        }
    }

    /// Whether one more line may be written at `now`.
    fn admit(&self, now: Instant) -> bool {
        let mut window = self.window.lock();
        let open = window.get_or_insert(Window { start: now, lines: 0 });
        if now.saturating_duration_since(open.start) >= WINDOW {
            *open = Window { start: now, lines: 0 };
            let left_out = self.suppressed.swap(0, Ordering::Relaxed);
            if left_out > 0 {
                tracing::error!("{left_out} more errors were not logged");
            }
        }
        if open.lines >= LINES_PER_WINDOW {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        open.lines += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corruption_is_never_reported_as_absence() {
        assert_eq!(errno_of(ErrorKind::Corrupt), libc::EIO);
        assert_eq!(errno_of(ErrorKind::Network), libc::EIO);
        assert_eq!(errno_of(ErrorKind::Io), libc::EIO);
        assert_eq!(errno_of(ErrorKind::NotFound), libc::ENOENT);
        assert_eq!(errno_of(ErrorKind::Stale), libc::ESTALE);
        assert_eq!(errno_of(ErrorKind::WrongPassword), libc::EACCES);
        assert_eq!(errno_of(ErrorKind::NotPermitted), libc::EPERM);
        assert_eq!(errno_of(ErrorKind::NotSupported), libc::EOPNOTSUPP);
        assert_eq!(errno_of(ErrorKind::IllegalName), libc::EILSEQ);
        assert_eq!(errno_of(ErrorKind::NoData), libc::ENXIO);
        let of_host = |number| errno_of(FsError::from(std::io::Error::from_raw_os_error(number)).kind());
        assert_eq!([libc::EMFILE, libc::ENFILE, libc::ENOMEM].map(of_host), [libc::ENFILE, libc::ENFILE, libc::ENOMEM]);
    }

    #[test]
    fn a_flood_of_errors_is_bounded_and_starts_again_later() {
        let log = ErrorLog::default();
        let start = Instant::now();
        assert_eq!((0..100).filter(|_| log.admit(start)).count() as u64, LINES_PER_WINDOW);
        assert_eq!(log.suppressed.load(Ordering::Relaxed), 80);
        assert!(log.admit(start + WINDOW));
        assert_eq!(log.suppressed.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn only_kinds_that_hide_detail_are_logged() {
        assert!(deserves_a_line(ErrorKind::Corrupt));
        assert!(!deserves_a_line(ErrorKind::NotFound));
        assert!(!deserves_a_line(ErrorKind::NoSpace));
    }
}
