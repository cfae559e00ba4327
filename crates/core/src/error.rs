//! The one error of the engine: a kind where a caller acts differently, the operation, the subject, and the cause.
//!
//! A miss (`NotFound` without detail) is two words and allocates nothing, because lookups miss all the time.

use std::error::Error;
use std::fmt;

/// Result of the engine and of stores.
pub type Result<T, E = FsError> = std::result::Result<T, E>;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident => $words:literal,)*) => {
        /// What went wrong, as far as a caller acts differently. `mount::errno` maps each to an errno, the CLI to an exit
        /// code.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[$doc])* $kind,)*
        }

        impl ErrorKind {
            /// Every kind, in the order of their declaration.
            pub const ALL: [ErrorKind; [$(ErrorKind::$kind),*].len()] = [$(ErrorKind::$kind),*];

            fn describe(self) -> &'static str {
                match self {
                    $(ErrorKind::$kind => $words,)*
                }
            }
        }
    };
}

kinds! {
    /// No such entry (ENOENT).
    NotFound => "not found",
    /// The entry exists already (EEXIST).
    Exists => "exists already",
    /// A directory was needed (ENOTDIR).
    NotDirectory => "not a directory",
    /// A directory was not allowed (EISDIR).
    IsDirectory => "is a directory",
    /// The directory holds entries (ENOTEMPTY).
    NotEmpty => "directory is not empty",
    /// The arguments make no sense (EINVAL).
    InvalidInput => "invalid argument",
    /// A name exceeds the store's limit (ENAMETOOLONG).
    NameTooLong => "name is too long",
    /// The bytes of a name cannot be represented in the store (EILSEQ).
    IllegalName => "name cannot be stored here",
    /// Access denied (EACCES).
    PermissionDenied => "permission denied",
    /// The operation is not permitted to this caller or on this kind of object (EPERM).
    NotPermitted => "operation not permitted",
    /// The store or mount is read-only (EROFS).
    ReadOnly => "read-only",
    /// No space left (ENOSPC).
    NoSpace => "no space left",
    /// A quota is used up (EDQUOT).
    QuotaExceeded => "quota exceeded",
    /// The file would exceed the largest size (EFBIG).
    FileTooLarge => "file too large",
    /// Data does not authenticate, or contradicts its format (EIO; the message names the path).
    Corrupt => "corrupt data",
    /// The medium failed (EIO).
    Io => "input/output error",
    /// The store cannot do this (EOPNOTSUPP).
    NotSupported => "not supported",
    /// The object is not there any more, or not the one that it was (ESTALE).
    Stale => "changed or removed underneath",
    /// In use (EBUSY).
    Busy => "busy",
    /// Too many names for one inode (EMLINK).
    TooManyLinks => "too many links",
    /// Too many symbolic links (ELOOP).
    Loop => "too many levels of symbolic links",
    /// Source and target are on different stores (EXDEV).
    CrossDevice => "on different stores",
    /// No such extended attribute (ENODATA).
    NoAttribute => "no such attribute",
    /// The result does not fit the caller's buffer (ERANGE).
    OutOfRange => "does not fit",
    /// Interrupted by a signal (EINTR).
    Interrupted => "interrupted",
    /// A deadline passed (ETIMEDOUT).
    TimedOut => "timed out",
    /// The network failed (EIO, exit code 9).
    Network => "network failure",
    /// The password is wrong (EACCES, exit code 3).
    WrongPassword => "wrong password",
    /// Memory, or numbers of something, are used up (ENOMEM).
    Exhausted => "out of memory",
    /// As many files are open as may be, of this process or of the system (ENFILE).
    TooManyFiles => "too many open files",
    /// There is no data at or after the offset (ENXIO, of SEEK_DATA and SEEK_HOLE).
    NoData => "no data there",
}

impl ErrorKind {
    /// Whether a medium takes no more for now: its disk is full, a quota used up, a file as long as it may be, or not to be changed by us. What is
    /// there is not in danger.
    pub fn is_refusal(self) -> bool {
        use ErrorKind::*;
        matches!(self, NoSpace | QuotaExceeded | FileTooLarge | NotPermitted | PermissionDenied)
    }

    /// The kind whose name in the code is `word`: what another process of this program answers with.
    pub fn from_word(word: &str) -> Option<ErrorKind> {
        Self::ALL.into_iter().find(|kind| format!("{kind:?}") == word)
    }
}

/// An error with its kind, and, where known, the operation, the subject and the cause.
pub struct FsError {
    kind: ErrorKind,
    detail: Option<Box<Detail>>,
}

#[derive(Default)]
struct Detail {
    op: &'static str,
    subject: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl FsError {
    /// An error of `kind` without detail; allocates nothing.
    pub fn new(kind: ErrorKind) -> Self {
        FsError { kind, detail: None }
    }

    /// Its kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether it is a plain absence.
    pub fn is_not_found(&self) -> bool {
        self.kind == ErrorKind::NotFound
    }

    /// Says which operation failed on which subject (a path, never a secret). An inner subject stays.
    #[must_use]
    pub fn on(mut self, op: &'static str, subject: impl fmt::Display) -> Self {
        let detail = self.detail.get_or_insert_default();
        if detail.op.is_empty() {
            detail.op = op;
        }
        if detail.subject.is_empty() {
            detail.subject = subject.to_string();
        }
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.detail.get_or_insert_default().source = Some(source.into());
        self
    }

    /// The cause, as it was given, for whoever acts on what it is. (`source` is what lies behind it.)
    pub fn cause(&self) -> Option<&(dyn Error + 'static)> {
        self.detail.as_deref()?.source.as_deref().map(|cause| cause as &(dyn Error + 'static))
    }

    /// The subject, if one was named.
    pub fn subject(&self) -> Option<&str> {
        self.detail.as_deref().map(|d| d.subject.as_str()).filter(|s| !s.is_empty())
    }
}

impl From<ErrorKind> for FsError {
    fn from(kind: ErrorKind) -> Self {
        FsError::new(kind)
    }
}

impl From<crate::types::NameError> for FsError {
    fn from(e: crate::types::NameError) -> Self {
        FsError::new(match e {
            crate::types::NameError::TooLong => ErrorKind::NameTooLong,
            crate::types::NameError::Invalid => ErrorKind::InvalidInput,
        })
    }
}

impl From<crate::types::XattrNameError> for FsError {
    fn from(_: crate::types::XattrNameError) -> Self {
        // What Linux says of a name that is empty or too long.
        FsError::new(ErrorKind::OutOfRange)
    }
}

/// The number of an input/output error.
const EIO: i32 = 5;

/// The kind of an error of the host's filesystem.
pub fn kind_of_io(e: &std::io::Error) -> ErrorKind {
    use std::io::ErrorKind as K;
    match e.kind() {
        K::NotFound => ErrorKind::NotFound,
        K::AlreadyExists => ErrorKind::Exists,
        K::NotADirectory => ErrorKind::NotDirectory,
        K::IsADirectory => ErrorKind::IsDirectory,
        K::DirectoryNotEmpty => ErrorKind::NotEmpty,
        K::InvalidInput => ErrorKind::InvalidInput,
        K::InvalidFilename => ErrorKind::NameTooLong,
        K::PermissionDenied => match e.raw_os_error() {
            Some(1) => ErrorKind::NotPermitted,
            _ => ErrorKind::PermissionDenied,
        },
        K::ReadOnlyFilesystem => ErrorKind::ReadOnly,
        K::StorageFull => ErrorKind::NoSpace,
        K::QuotaExceeded => ErrorKind::QuotaExceeded,
        K::FileTooLarge => ErrorKind::FileTooLarge,
        K::Unsupported => ErrorKind::NotSupported,
        K::StaleNetworkFileHandle => ErrorKind::Stale,
        K::ResourceBusy | K::ExecutableFileBusy => ErrorKind::Busy,
        K::TooManyLinks => ErrorKind::TooManyLinks,
        K::CrossesDevices => ErrorKind::CrossDevice,
        K::Interrupted => ErrorKind::Interrupted,
        K::TimedOut => ErrorKind::TimedOut,
        K::OutOfMemory => ErrorKind::Exhausted,
        K::NetworkDown | K::NetworkUnreachable | K::HostUnreachable | K::ConnectionReset => ErrorKind::Network,
        _ => match e.raw_os_error() {
            Some(23 | 24) => ErrorKind::TooManyFiles, // ENFILE, EMFILE
            Some(40) => ErrorKind::Loop,              // ELOOP
            Some(95) => ErrorKind::NotSupported,      // EOPNOTSUPP
            Some(6) => ErrorKind::NoData,             // ENXIO
            _ => ErrorKind::Io,
        },
    }
}

impl From<std::io::Error> for FsError {
    fn from(e: std::io::Error) -> Self {
        // What was handed through a reader of the standard library comes out as it was.
        let e = match e.downcast::<FsError>() {
            Ok(own) => return own,
            Err(other) => other,
        };
        let kind = kind_of_io(&e);
        // Where the kind says all that the number does, the system's own words would only repeat it.
        let said = match (kind, e.raw_os_error()) {
            (ErrorKind::NotFound, _) => true,
            (ErrorKind::Io, Some(number)) => number == EIO,
            (ErrorKind::Exhausted | ErrorKind::Network, _) => false,
            (_, Some(_)) => true,
            (_, None) => e.get_ref().is_none(),
        };
        if said { FsError::new(kind) } else { FsError::new(kind).because(e) }
    }
}

impl fmt::Display for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.detail.as_deref() {
            None => f.write_str(self.kind.describe()),
            Some(d) => {
                if !d.op.is_empty() {
                    write!(f, "{} ", d.op)?;
                }
                if !d.subject.is_empty() {
                    write!(f, "{}: ", d.subject)?;
                }
                f.write_str(self.kind.describe())?;
                match &d.source {
                    Some(s) => write!(f, ": {s}"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl fmt::Debug for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self})", self.kind)
    }
}

impl Error for FsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // Display prints the cause already; handing it out again would print it twice in a chain.
        self.detail.as_deref()?.source.as_ref()?.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_is_small_and_plain() {
        assert!(std::mem::size_of::<FsError>() <= 16);
        assert_eq!(FsError::new(ErrorKind::NotFound).to_string(), "not found");
    }

    #[test]
    fn every_kind_is_found_by_its_word() {
        assert_eq!(ErrorKind::ALL.len(), ErrorKind::NoData as usize + 1, "a kind is missing");
        for (at, kind) in ErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at);
            assert_eq!(ErrorKind::from_word(&format!("{kind:?}")), Some(kind));
        }
        assert_eq!(ErrorKind::from_word("NotAMount"), None);
    }

    #[test]
    fn nothing_is_said_twice() {
        let of = |number| FsError::from(std::io::Error::from_raw_os_error(number)).to_string();
        assert_eq!(of(17), "exists already");
        assert_eq!(of(13), "permission denied");
        assert_eq!(of(5), "input/output error");
        // What the kind leaves open is told.
        assert!(of(25).starts_with("input/output error: Inappropriate ioctl"), "{}", of(25));
        assert_eq!(of(24), "too many open files");
        let custom = std::io::Error::new(std::io::ErrorKind::InvalidInput, "not so");
        assert_eq!(FsError::from(custom).to_string(), "invalid argument: not so");
    }

    #[test]
    fn the_inner_subject_wins() {
        let e = FsError::new(ErrorKind::Corrupt).on("read", "/a").on("copy", "/b").because("chunk 3");
        assert_eq!(e.to_string(), "read /a: corrupt data: chunk 3");
        assert_eq!(e.subject(), Some("/a"));
    }
}
