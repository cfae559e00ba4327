//! What went wrong, in the words and kinds of the engine.
//!
//! A message names the object with its store, says what the store said, and what can be done. Nothing of a request's head is
//! in it: there are signatures and tokens.

use adit_core::media::Withheld;
use adit_core::{ErrorKind, FsError};
use opendal_core::{Error, ErrorKind as Kind};

use super::credentials::{Lacking, NONE_SET_UP, Why};
use super::options::is_region;
use super::transport::Trouble;

/// Longest part of a store's own words in a message, in bytes.
const WORDS_LEN_MAX: usize = 300;
/// The same of what several sources of credentials say, the last of which may be what helps.
const SOURCES_LEN_MAX: usize = 1000;

/// What can be done about an object that is there and does not come.
const ARCHIVED: &str = "it is archived; restore it in the store first";
const KEY_IS_OFF: &str = "the key that the store encrypts it with cannot be used; enable that, or have it allowed";

/// What is asked of one object, in errors.
pub const READ: &str = "read object";
pub const LOOK: &str = "look at object";

/// The error of an operation on `subject`.
pub fn failed(op: &'static str, subject: &str, e: &Error) -> FsError {
    if [READ, LOOK].contains(&op)
        && let Some(withheld) = withheld(e)
    {
        return FsError::new(ErrorKind::PermissionDenied).because(withheld).on(op, subject);
    }
    let (kind, words) = classify(e);
    FsError::new(kind).because(words).on(op, subject)
}

/// That an object is refused by a store that may not say that it is missing. Other refusals have a code of their own, but in answers to HEAD,
/// which have no body.
fn withheld(e: &Error) -> Option<Withheld> {
    if lacking(e).is_some() || Trouble::behind(e).is_some() {
        return None;
    }
    match said(e, "code") {
        Some(code) if code == "InvalidObjectState" => Some(Withheld::present(words_of(e, &code), ARCHIVED)),
        Some(code) if code.starts_with("KMS.") => Some(Withheld::present(words_of(e, &code), KEY_IS_OFF)),
        _ if e.kind() != Kind::PermissionDenied => None,
        Some(code) if code == "AccessDenied" => Some(Withheld::new(words_of(e, &code))),
        None if e.message().is_empty() && status(e) == Some(403) => Some(Withheld::new(words_of(e, ""))),
        _ => None,
    }
}

/// What the library says where a request could not be signed.
const SIGNING: &str = "signing http request";

/// The same error with why there were no credentials, if that is what it is about.
pub fn explained(e: Error, why: &Why) -> Error {
    match why.lock().clone() {
        Some(why) if e.message() == SIGNING && Trouble::behind(&e).is_none() => {
            Error::new(e.kind(), SIGNING).set_source(why)
        }
        _ => e,
    }
}

/// Whether other credentials would do: these ran out, or are not known any more.
pub fn wants_other_credentials(e: &Error) -> bool {
    const CODES: [&str; 6] = [
        "ExpiredToken",
        "ExpiredTokenException",
        "RequestExpired",
        "TokenRefreshRequired",
        "InvalidAccessKeyId",
        "InvalidToken",
    ];
    match said(e, "code") {
        Some(code) => CODES.contains(&code.as_str()),
        // An answer to HEAD has no body, and so no code; 400 is what a token that ran out gets.
        None => e.message().is_empty() && status(e) == Some(400),
    }
}

/// Whether it is what the store answered, and not what became of the answer.
pub fn is_answer(e: &Error) -> bool {
    e.kind() != Kind::Unexpected || status(e).is_some()
}

/// Whether the upload that it is about has to begin anew: the store does not know it any more (it may be complete, and the
/// answer was lost), or another one of the same object came in between.
pub fn wants_new_upload(e: &Error) -> bool {
    // A part that was sent by a process before may be gone.
    e.kind() == Kind::Conflict || matches!(said(e, "code").as_deref(), Some("NoSuchUpload" | "InvalidPart"))
}

/// Whether the store does not know what was asked of it.
pub fn is_not_implemented(e: &Error) -> bool {
    said(e, "code").as_deref() == Some("NotImplemented") || status(e) == Some(501)
}

/// Whether a store objects to a checksum, or to there being none.
pub fn is_about_checksums(e: &Error) -> bool {
    const CODES: [&str; 3] = ["InvalidRequest", "InvalidArgument", "NotImplemented"];
    said(e, "code").is_some_and(|code| CODES.contains(&code.as_str()))
        && said(e, "message").is_some_and(|message| message.to_ascii_lowercase().contains("checksum"))
}

/// The region in which a store says that the bucket is, where it refuses to look for it in this one.
pub fn said_region(e: &Error) -> Option<String> {
    status(e).filter(|status| matches!(status, 301 | 302 | 307 | 400))?;
    let text = e.to_string();
    let (_, rest) = text.split_once("\"x-amz-bucket-region\": \"")?;
    rest.split('"').next().filter(|region| is_region(region)).map(str::to_owned)
}

fn classify(e: &Error) -> (ErrorKind, String) {
    if let Some(lacking) = lacking(e) {
        let kind = match Trouble::behind(lacking) {
            None => ErrorKind::PermissionDenied,
            Some(Trouble::TimedOut(_)) => ErrorKind::TimedOut,
            Some(_) => ErrorKind::Network,
        };
        return (kind, cut(&lacking.to_string(), SOURCES_LEN_MAX));
    }
    if e.message() == SIGNING && Trouble::behind(e).is_none() {
        // They were found, and are not good enough.
        let why = "whoever was asked for credentials gave none that can be used";
        return (ErrorKind::PermissionDenied, format!("{why}; {NONE_SET_UP}"));
    }
    if let Some(trouble) = Trouble::behind(e) {
        return of_trouble(trouble);
    }
    let code = said(e, "code").unwrap_or_default();
    let words = words_of(e, &code);
    match (code.as_str(), e.kind()) {
        ("NoSuchBucket", _) => {
            (ErrorKind::NotFound, "there is no such bucket; check its name, the region and the endpoint".to_owned())
        }
        ("PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException", _) => {
            (ErrorKind::InvalidInput, format!("{words}; the bucket is in another region: set AWS_REGION to it"))
        }
        ("RequestTimeTooSkewed", _) => {
            (ErrorKind::PermissionDenied, format!("{words}; set the clock of this machine right"))
        }
        _ if wants_other_credentials(e) => {
            (ErrorKind::PermissionDenied, format!("{words}; the credentials ran out or are not known: get new ones"))
        }
        // It says that with 404: no object would be missed.
        ("XAdminUserNotFound", _) => {
            (ErrorKind::PermissionDenied, format!("{words}; check which credentials are used"))
        }
        ("EntityTooLarge", _) => (ErrorKind::FileTooLarge, words),
        ("QuotaExceeded" | "XMinioStorageFull" | "InsufficientStorage", _) => (ErrorKind::NoSpace, words),
        ("NoSuchUpload", _) => (ErrorKind::Network, format!("{words}; try again later")),
        // An answer to HEAD has no body, and so no code.
        ("", Kind::NotFound) if e.message().is_empty() => {
            (ErrorKind::NotFound, "there is no such object, or no such bucket".to_owned())
        }
        // Nothing of the protocol: an object that is there would be missed.
        ("", Kind::NotFound) => {
            (ErrorKind::InvalidInput, format!("{words}: that is no object store; check the endpoint, and its path"))
        }
        (_, Kind::NotFound) => (ErrorKind::NotFound, "there is no such object".to_owned()),
        (_, Kind::PermissionDenied) => {
            let advice = "check which credentials are used, and what they may do; a bucket whose requester pays wants --request-payer";
            (ErrorKind::PermissionDenied, format!("{words}; {advice}"))
        }
        (_, Kind::Conflict) => (ErrorKind::Network, format!("{words}; others store the same object, try again later")),
        (_, Kind::ConditionNotMatch) => (ErrorKind::Stale, "it is another object than before".to_owned()),
        (_, Kind::RateLimited) => {
            (ErrorKind::Network, format!("{words}; the store wants fewer requests, try again later"))
        }
        (_, Kind::Unsupported) => (ErrorKind::NotSupported, words),
        (_, Kind::ConfigInvalid) => (ErrorKind::InvalidInput, words),
        _ if e.is_temporary() => (ErrorKind::Network, format!("{words}; try again later")),
        _ => (ErrorKind::Io, words),
    }
}

/// The kind and the words of what is wrong with an exchange.
pub fn of_trouble(trouble: &Trouble) -> (ErrorKind, String) {
    match trouble {
        Trouble::Interrupted => (ErrorKind::Interrupted, trouble.to_string()),
        Trouble::TimedOut(what) => (ErrorKind::TimedOut, format!("{what}; check the network, or try again later")),
        Trouble::Broken(what) if what.contains("certificate") => {
            (ErrorKind::Network, format!("{what}; {}", advice_on_certificate(what)))
        }
        Trouble::Broken(what) => {
            (ErrorKind::Network, format!("{what}; check the endpoint and the network, or try again later"))
        }
        Trouble::Elsewhere(what) => {
            (ErrorKind::InvalidInput, format!("{what}: that is no object store; check the endpoint, and its path"))
        }
        Trouble::Contradiction(what) => {
            (ErrorKind::Corrupt, format!("{what}: the store, or something before it, does not keep to the protocol"))
        }
    }
}

/// What can be done about a certificate with which this is wrong.
fn advice_on_certificate(what: &str) -> &'static str {
    let says = |word: &str| what.contains(word);
    if says("not valid for") || says("NotValidForName") || says("UnsupportedCertVersion") {
        "its names have to be in its subjectAltName, a common name alone is not enough: name the store as it does, or have it made anew"
    } else if says("expired") || says("Expired") || says("not valid yet") || says("NotValidYet") {
        "have it made anew, or set the clock of this machine right"
    } else {
        "AWS_CA_BUNDLE can name a file with it, or with the certificate of who issued it"
    }
}

/// What the store said, with its code, if it gave one.
fn words_of(e: &Error, code: &str) -> String {
    match said(e, "message") {
        Some(message) if !code.is_empty() => format!("the store says {code} ({message})"),
        _ if !code.is_empty() => format!("the store says {code}"),
        _ if !e.message().is_empty() => shortened(e.message()),
        _ => status(e).map_or("the store says no more".to_owned(), |status| format!("the store answers {status}")),
    }
}

/// What is said by whoever looked for credentials in vain.
fn lacking(e: &Error) -> Option<&Lacking> {
    std::error::Error::source(e)?.downcast_ref()
}

/// The status of the answer, which the library, too, hands on as a text only.
fn status(e: &Error) -> Option<u16> {
    let text = e.to_string();
    let (_, rest) = text.split_once("status: ")?;
    rest.get(..3)?.parse().ok()
}

/// A field of what the store said. The library hands it on as a text only.
fn said(e: &Error, field: &str) -> Option<String> {
    let message = e.message();
    let value = message.split_once(&format!("{field}: \""))?.1;
    let end = value.char_indices().find(|(at, c)| *c == '"' && !value[..*at].ends_with('\\'))?.0;
    Some(shortened(&value[..end]))
}

fn shortened(text: &str) -> String {
    cut(text, WORDS_LEN_MAX)
}

fn cut(text: &str, len_max: usize) -> String {
    let mut end = text.len().min(len_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store_says(kind: Kind, code: &str) -> Error {
        let message = format!(
            "S3Error {{ code: \"{code}\", message: \"words \\\"quoted\\\" of it\", resource: \"r\", request_id: \"i\" }}"
        );
        Error::new(kind, message)
    }

    #[test]
    fn codes_become_kinds_and_advice() {
        for (kind, code, expected, advice) in [
            (Kind::NotFound, "NoSuchKey", ErrorKind::NotFound, "no such object"),
            (Kind::ConfigInvalid, "NoSuchBucket", ErrorKind::NotFound, "no such bucket; check its name"),
            (Kind::PermissionDenied, "AccessDenied", ErrorKind::PermissionDenied, "check which credentials"),
            (Kind::Unexpected, "ExpiredToken", ErrorKind::PermissionDenied, "get new ones"),
            (Kind::PermissionDenied, "InvalidAccessKeyId", ErrorKind::PermissionDenied, "get new ones"),
            (Kind::PermissionDenied, "RequestTimeTooSkewed", ErrorKind::PermissionDenied, "clock"),
            (Kind::Unexpected, "PermanentRedirect", ErrorKind::InvalidInput, "AWS_REGION"),
            (Kind::RateLimited, "SlowDown", ErrorKind::Network, "fewer requests"),
            (Kind::ConditionNotMatch, "PreconditionFailed", ErrorKind::Stale, "another object"),
            (Kind::Conflict, "ConditionalRequestConflict", ErrorKind::Network, "others store the same"),
            (Kind::NotFound, "XAdminUserNotFound", ErrorKind::PermissionDenied, "check which credentials"),
            (Kind::NotFound, "NoSuchUpload", ErrorKind::Network, "NoSuchUpload"),
        ] {
            let e = failed("read object", "s3://b/k", &store_says(kind, code));
            assert_eq!(e.kind(), expected, "{code}");
            let text = e.to_string();
            assert!(text.starts_with("read object s3://b/k: ") && text.contains(advice), "{text}");
        }
        let head = Error::new(Kind::NotFound, "");
        assert!(failed("look at object", "s3://b/k", &head).to_string().contains("or no such bucket"));
        let other = failed("read object", "s3://b/k", &Error::new(Kind::NotFound, "<html>Not Found</html>"));
        assert_eq!(other.kind(), ErrorKind::InvalidInput, "nothing is damaged: {other}");
        assert!(other.to_string().contains("check the endpoint"), "{other}");
        let busy = store_says(Kind::Unexpected, "InternalError").set_temporary();
        let e = failed("read object", "s3://b/k", &busy);
        assert_eq!(e.kind(), ErrorKind::Network);
        assert!(e.to_string().contains("InternalError (words \\\"quoted\\\" of it)"), "{e}");
    }

    #[test]
    fn what_is_there_and_does_not_come_is_about_one_object() {
        for (kind, code, advice) in [
            (Kind::PermissionDenied, "InvalidObjectState", "restore it"),
            (Kind::Unexpected, "KMS.DisabledException", "enable that"),
        ] {
            let e = failed(READ, "s3://b/k", &store_says(kind, code));
            assert!(Withheld::is_behind(&e) && e.kind() == ErrorKind::PermissionDenied, "{e}");
            assert!(e.to_string().contains(advice) && !e.to_string().contains("credentials"), "{e}");
            assert!(!Withheld::is_behind(&failed("store object", "s3://b/k", &store_says(kind, code))));
        }
    }

    #[test]
    fn trouble_of_the_network_keeps_its_kind() {
        for (trouble, kind) in [
            (Trouble::TimedOut("no answer"), ErrorKind::TimedOut),
            (Trouble::Broken("connection refused".to_owned()), ErrorKind::Network),
            (Trouble::Broken("invalid peer certificate: UnknownIssuer".to_owned()), ErrorKind::Network),
            (Trouble::Contradiction("another range".to_owned()), ErrorKind::Corrupt),
            (Trouble::Elsewhere("a page"), ErrorKind::InvalidInput),
        ] {
            assert_eq!(failed("read object", "s3://b/k", &trouble.into_error()).kind(), kind);
        }
    }
}
