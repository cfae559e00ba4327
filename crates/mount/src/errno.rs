//! The one table from [`ErrorKind`] to the errno that a caller of the mount sees, and the log of errors that hide detail.
//!
//! An errno says little: corrupt data, a failing disk and a dead network all are EIO. So these are logged with their
//! path ([`ErrorLog`]), a bounded number of lines at a time, because one bad disk can fail a million reads.

use std::collections::VecDeque;
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

/// True if the errno alone would hide what the user must know: the object that is damaged or unreachable, or the reason of a store or its host to refuse it.
/// A refusal by the engine's own rules has neither subject nor cause.
fn deserves_a_line(error: &FsError) -> bool {
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::Io | ErrorKind::Network | ErrorKind::TimedOut => true,
        ErrorKind::PermissionDenied => error.subject().is_some() || error.cause().is_some(),
        // The store turns out to be none.
        ErrorKind::InvalidInput => error.subject().is_some() && error.cause().is_some(),
        _ => false,
    }
}

/// Lines per window that [`ErrorLog`] lets through.
const LINES_PER_WINDOW: u64 = 20;
/// Length of a window.
const WINDOW: Duration = Duration::from_secs(10);
/// Most errors that are remembered to be counted; of more, those that were met last.
const REMEMBERED_MAX: usize = 64;

/// An error that requests met, and how often.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ErrorCount {
    /// The kind of request that met it last.
    pub op: &'static str,
    /// The error, with its subject.
    pub text: String,
    /// Requests that met it.
    pub count: u64,
}

/// Logs errors that the errno hides, at most 20 in 10 seconds; those beyond are counted, and the count is logged. One that is met again has another line
/// when it was met ten, a hundred, a thousand times.
#[derive(Debug, Default)]
pub struct ErrorLog {
    window: Mutex<Option<Window>>,
    suppressed: AtomicU64,
    /// The one that was met last is the last.
    met: Mutex<VecDeque<ErrorCount>>,
}

#[derive(Debug)]
struct Window {
    start: Instant,
    lines: u64,
}

impl ErrorLog {
    /// Logs `error` of `op` if its errno hides something. `path` is called only if such an error names no subject itself.
    pub fn note(&self, op: &'static str, error: &FsError, path: impl FnOnce() -> Option<String>) {
        if !deserves_a_line(error) {
            return;
        }
        let text = match error.subject() {
            None => path().map_or_else(|| error.to_string(), |path| format!("{path}: {error}")),
            Some(_) => error.to_string(),
        };
        let count = self.count(op, &text);
        if !is_power_of_ten(count) || !self.admit(Instant::now()) {
            return;
        }
        match count {
            1 => tracing::error!(op, "{text}"),
            _ => tracing::error!(op, count, "{text}"),
        }
    }

    /// The errors that were met last, the latest at the end.
    pub fn met(&self) -> Vec<ErrorCount> {
        self.met.lock().iter().cloned().collect()
    }

    /// Remembers an error; how often it was met so far.
    fn count(&self, op: &'static str, text: &str) -> u64 {
        let met = &mut *self.met.lock();
        let before = met.iter().rposition(|one| one.text == text).and_then(|at| met.remove(at));
        if met.len() >= REMEMBERED_MAX {
            met.pop_front();
        }
        let count = before.map_or(0, |one| one.count) + 1;
        met.push_back(ErrorCount { op, text: text.to_owned(), count });
        count
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

fn is_power_of_ten(count: u64) -> bool {
    count.checked_ilog10().is_some_and(|zeros| 10u64.pow(zeros) == count)
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
    fn only_errors_that_hide_detail_are_logged() {
        let refused = |kind| FsError::new(kind).on("read object", "s3://b/k").because("the store says ExpiredToken");
        for kind in [ErrorKind::Corrupt, ErrorKind::Io, ErrorKind::Network, ErrorKind::TimedOut] {
            assert!(deserves_a_line(&kind.into()), "{kind:?}");
        }
        for kind in [ErrorKind::PermissionDenied, ErrorKind::InvalidInput] {
            assert!(deserves_a_line(&refused(kind)), "{kind:?}");
            assert!(!deserves_a_line(&kind.into()), "{kind:?} by a rule of the engine");
        }
        for kind in [ErrorKind::NotFound, ErrorKind::NoSpace, ErrorKind::Exists] {
            assert!(!deserves_a_line(&refused(kind)), "{kind:?}");
        }
    }

    #[test]
    fn repeated_errors_are_counted() {
        let log = ErrorLog::default();
        let refused = FsError::new(ErrorKind::PermissionDenied).on("read object", "s3://b/k").because("ExpiredToken");
        for _ in 0..12 {
            log.note("read", &refused, || panic!("it names its subject"));
        }
        log.note("getattr", &ErrorKind::Io.into(), || Some("/a".to_owned()));
        log.note("read", &ErrorKind::NotFound.into(), || panic!("it hides nothing"));
        let count = |op, text: &str, count| ErrorCount { op, text: text.to_owned(), count };
        let text = "read object s3://b/k: permission denied: ExpiredToken";
        assert_eq!(log.met(), [count("read", text, 12), count("getattr", "/a: input/output error", 1)]);
        assert_eq!(
            log.window.lock().as_ref().map(|window| window.lines),
            Some(3),
            "of the first, the tenth and the other one"
        );
        for number in 0..1000 {
            log.note("read", &ErrorKind::Io.into(), || Some(number.to_string()));
        }
        assert_eq!(log.met().len(), REMEMBERED_MAX);
        assert_eq!([1, 2, 10, 11, 1000].map(is_power_of_ten), [true, false, true, false, true]);
    }
}
