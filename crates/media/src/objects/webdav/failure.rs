//! What a server on WebDAV refuses, in the words and kinds of the engine.

use std::fmt;

use adit_core::{ErrorKind, FsError};
use http::StatusCode;
use opendal_core::{Error, ErrorKind as Kind};

use super::super::failure::of_trouble;
use super::super::transport::{Trouble, may_go_better};
use super::settings::HOW_TO_SAY_WHO;

/// An answer that is a refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Its status.
    pub status: StatusCode,
    /// Where it sends who asks.
    pub location: Option<String>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server answers {}", self.status)
    }
}

impl std::error::Error for Refused {}

impl Refused {
    /// A refusal with this status.
    pub fn with(status: StatusCode) -> Refused {
        Refused { status, location: None }
    }

    /// As an error, which carries it to whoever made the call.
    pub fn into_error(self) -> Error {
        let e = Error::new(Kind::Unexpected, self.to_string());
        let e = if may_go_better(self.status) { e.set_temporary() } else { e };
        e.set_source(self)
    }

    /// The refusal that an error is.
    pub fn behind(e: &Error) -> Option<&Refused> {
        std::error::Error::source(e)?.downcast_ref()
    }
}

/// The status of the refusal that an error is.
pub fn refused_with(e: &Error) -> Option<u16> {
    Refused::behind(e).map(|refused| refused.status.as_u16())
}

/// The error of an operation on `subject`.
pub fn failed(op: &'static str, subject: &str, e: &Error) -> FsError {
    let (kind, words) = match (Trouble::behind(e), Refused::behind(e)) {
        (Some(trouble), _) => of_trouble(trouble),
        (None, Some(refused)) => of_refusal(refused),
        (None, None) if e.kind() == Kind::ConditionNotMatch => {
            (ErrorKind::Stale, "it is another object than before".to_owned())
        }
        (None, None) if e.is_temporary() => (ErrorKind::Network, format!("{}; try again later", e.message())),
        (None, None) => (ErrorKind::Io, e.message().to_owned()),
    };
    FsError::new(kind).because(words).on(op, subject)
}

fn of_refusal(refused: &Refused) -> (ErrorKind, String) {
    match refused.status.as_u16() {
        401 => (ErrorKind::PermissionDenied, format!("{refused}: it wants credentials, or others; {HOW_TO_SAY_WHO}")),
        403 => (
            ErrorKind::PermissionDenied,
            format!("{refused}: it is not allowed; check which credentials are used, and what they may do"),
        ),
        404 | 410 => (ErrorKind::NotFound, "there is no such object".to_owned()),
        301 | 302 | 303 | 307 | 308 => {
            let to = refused.location.as_deref().unwrap_or("elsewhere").escape_debug().to_string();
            (ErrorKind::InvalidInput, format!("{refused}, to {to}: name that place, as davs://HOST/PATH"))
        }
        200 => (ErrorKind::InvalidInput, format!("{refused}: that is no WebDAV; check host and path")),
        405 | 415 | 501 => {
            (ErrorKind::NotSupported, format!("{refused}: it does not speak WebDAV there; check host and path"))
        }
        412 => (ErrorKind::Stale, "it is another object than before".to_owned()),
        413 => (ErrorKind::FileTooLarge, refused.to_string()),
        423 => (ErrorKind::Busy, format!("{refused}: somebody has locked it; try again later")),
        507 => (ErrorKind::NoSpace, refused.to_string()),
        _ if may_go_better(refused.status) => (ErrorKind::Network, format!("{refused}; try again later")),
        _ => (ErrorKind::Io, refused.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_become_kinds_and_advice() {
        for (status, kind, advice) in [
            (401, ErrorKind::PermissionDenied, "ADIT_WEBDAV_USER"),
            (403, ErrorKind::PermissionDenied, "not allowed"),
            (404, ErrorKind::NotFound, "no such object"),
            (301, ErrorKind::InvalidInput, "name that place"),
            (200, ErrorKind::InvalidInput, "check host and path"),
            (405, ErrorKind::NotSupported, "check host and path"),
            (423, ErrorKind::Busy, "locked"),
            (503, ErrorKind::Network, "try again later"),
            (507, ErrorKind::NoSpace, "507"),
        ] {
            let e = Refused::with(StatusCode::from_u16(status).unwrap()).into_error();
            let e = failed("read object", "davs://h/k", &e);
            assert_eq!(e.kind(), kind, "{status}");
            assert!(e.to_string().starts_with("read object davs://h/k: ") && e.to_string().contains(advice), "{e}");
        }
        let e = failed("x", "y", &Trouble::TimedOut("no answer").into_error());
        assert_eq!(e.kind(), ErrorKind::TimedOut);
    }
}
