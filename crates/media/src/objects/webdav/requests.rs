//! Requests to a server on WebDAV, and what its answers say.
//!
//! [`Server`] knows how a key is spelled in a URL, and reads it back from one ([`Server::key_of`]): what a server tells of another host, or
//! of what is not below the root, is believed by nobody.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use adit_core::media::{ObjectInfo, Tag};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, ETAG, LAST_MODIFIED, LOCATION};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use opendal_core::raw::Timestamp;
use opendal_core::{Buffer, HttpBody, HttpTransport};
use tokio::time::{Instant, sleep};

use super::super::calls::Outcome;
use super::super::transport::{Transport, Tries, Trouble, WithAnother};
use super::failure::Refused;
use super::multistatus::{self, METADATA, NAMESPACE, Props};
use super::settings::WebDavSettings;

/// A server, and the collection on it that is the store.
pub struct Server {
    pub settings: WebDavSettings,
    pub transport: Transport,
    /// Whether the last object whose properties were seen had no entity tag among them.
    pub tells_no_tags: AtomicBool,
}

/// What is at a place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// Nothing.
    Missing,
    /// A collection, which is no object.
    Collection,
    /// An object, with its length if the server tells it.
    Object(ObjectInfo, Option<u64>),
}

/// The method with this name, which HTTP itself does not know.
pub fn method(name: &'static str) -> Method {
    Method::from_bytes(name.as_bytes()).expect("the name of a method")
}

/// What is asked of a resource.
fn question() -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?><propfind xmlns=\"DAV:\"><prop><resourcetype/><getcontentlength/><getetag/>\
         <getlastmodified/><{METADATA} xmlns=\"{NAMESPACE}\"/></prop></propfind>"
    )
}

impl Server {
    /// The path of a key, or of a collection if it ends with `/`; of the root, if it is empty. As it stands in a URL.
    pub fn path_of(&self, key: &str) -> String {
        let root = &self.settings.collection.root;
        let mut path = String::from("/");
        encode(root, &mut path);
        if !root.is_empty() {
            path.push('/');
        }
        encode(key, &mut path);
        path
    }

    /// The URL of a key.
    pub fn url_of(&self, key: &str) -> String {
        self.settings.collection.origin() + &self.path_of(key)
    }

    /// A request about a key.
    pub fn request(&self, method: Method, key: &str) -> http::request::Builder {
        let request = Request::builder().method(method).uri(self.url_of(key));
        match &self.settings.authorization {
            Some(value) => request.header(AUTHORIZATION, value),
            None => request,
        }
    }

    /// Asks what is known of a key or, with a depth of one, of a collection and its members.
    pub fn propfind(&self, key: &str, depth: &'static str) -> http::Result<Request<Buffer>> {
        let request = self.request(method("PROPFIND"), key).header("Depth", depth);
        let request = request.header(CONTENT_TYPE, "application/xml; charset=utf-8");
        let request = if depth == "0" { request } else { request.extension(super::super::transport::AsItComes) };
        request.body(Buffer::from(question()))
    }

    /// Sends a request, with all its tries.
    pub async fn send(&self, request: http::Result<Request<Buffer>>) -> Outcome<Response<HttpBody>> {
        self.transport.fetch(request.map_err(|e| no_request(&e))?).await
    }

    /// The same, for who wants to know no more than that it was done.
    pub async fn done(&self, request: http::Result<Request<Buffer>>) -> Outcome<StatusCode> {
        let answer = self.send(request).await?;
        match answer.status() {
            // A part of it was not done.
            StatusCode::MULTI_STATUS => Err(Refused::with(answer.status()).into_error()),
            status if status.is_success() => Ok(status),
            _ => Err(refusal(&answer).into_error()),
        }
    }

    /// What is at a key.
    pub async fn look(&self, key: &str, tries: Tries, deadline: Instant) -> Outcome<Found> {
        self.look_by(key, || self.propfind(key, "0"), (tries, deadline)).await
    }

    /// The same for who holds an answer about it, and has not read that yet.
    pub async fn look_with_answer(&self, key: &str, tries: Tries, deadline: Instant) -> Outcome<Found> {
        let request = || {
            self.propfind(key, "0").map(|mut request| {
                request.extensions_mut().insert(WithAnother);
                request
            })
        };
        self.look_by(key, request, (tries, deadline)).await
    }

    async fn look_by(
        &self,
        key: &str,
        request: impl Fn() -> http::Result<Request<Buffer>>,
        (mut tries, deadline): (Tries, Instant),
    ) -> Outcome<Found> {
        loop {
            let answer = self.send(request()).await?;
            let e = match self.found(key, answer).await {
                Err(e) if matches!(Trouble::behind(&e), Some(Trouble::Contradiction(_))) => e,
                found => return found,
            };
            // It may be the doing of something in between.
            match tries.next_pause(std::time::Duration::ZERO, deadline) {
                Some(pause) => sleep(pause).await,
                None => return Err(e),
            }
        }
    }

    async fn found(&self, key: &str, mut answer: Response<HttpBody>) -> Outcome<Found> {
        match answer.status() {
            StatusCode::MULTI_STATUS => {}
            StatusCode::NOT_FOUND | StatusCode::GONE => return Ok(Found::Missing),
            _ if self.is_collection_elsewhere(key, &answer) => return Ok(Found::Collection),
            _ => return Err(refusal(&answer).into_error()),
        }
        let document = answer.body_mut().to_buffer().await?.to_bytes();
        let mut found = None;
        let told = multistatus::responses(&document[..], &mut |response| {
            let (told, _) = self.key_of(&response.href)?;
            if told != key.trim_end_matches('/') || found.is_some() {
                return Err(Trouble::Contradiction(format!("it tells of {}", response.href.escape_debug())));
            }
            // That an object has no metadata is not the same as that the server could not look.
            if let Some(status) = response.metadata_refused.filter(|status| *status >= 500 && *status != 501) {
                let what = "the server does not tell which metadata it has";
                return Err(Trouble::Contradiction(format!("{what}: it answers {status}")));
            }
            found = Some(self.resource_of(response)?);
            Ok(())
        });
        told.map_err(Trouble::into_error)?;
        found.ok_or_else(|| Trouble::Contradiction("it tells of nothing".to_owned()).into_error())
    }

    /// What is told of a resource.
    ///
    /// # Errors
    /// `Contradiction` where the server did not tell. It is not missing then, and no object either: it may be a collection.
    pub fn resource_of(&self, response: multistatus::Response) -> Result<Found, Trouble> {
        let untold = |status: Option<u16>| {
            let answered = status.map_or(String::new(), |status| format!(": it answers {status}"));
            let shown: String = response.href.chars().take(200).collect();
            Err(Trouble::Contradiction(format!(
                "the server does not tell what `{}` is{answered}",
                shown.escape_debug()
            )))
        };
        match (response.status, response.props.is_collection) {
            (Some(404 | 410), _) => Ok(Found::Missing),
            (Some(status), _) if !(200..300).contains(&status) => untold(Some(status)),
            (_, None) => untold(response.refused),
            (_, Some(true)) => Ok(Found::Collection),
            (_, Some(false)) => {
                let found = object_of(response.props)?;
                if let Found::Object(ObjectInfo { tag: Some(tag), .. }, _) = &found {
                    self.tells_no_tags.store(is_by_time(tag), Ordering::Relaxed);
                }
                Ok(found)
            }
        }
    }

    /// Whether an answer says that at `key` is a collection: it sends there, with a `/` at the end.
    pub fn is_collection_elsewhere<T>(&self, key: &str, answer: &Response<T>) -> bool {
        let Some(to) = location(answer).filter(|_| answer.status().is_redirection()) else { return false };
        to.ends_with('/') && self.key_of(&to).is_ok_and(|(told, _)| told == key.trim_end_matches('/'))
    }

    /// The key that a place has, as a server spells it, and whether it is spelled as a collection. A relative one begins with `/`.
    pub fn key_of(&self, href: &str) -> Result<(String, bool), Trouble> {
        let refuse = |why: &str| {
            let shown: String = href.chars().take(200).collect();
            Err(Trouble::Contradiction(format!("the answer tells of `{}`, {why}", shown.escape_debug())))
        };
        let collection = &self.settings.collection;
        let path = match href.split_once("://") {
            Some(("http" | "https", rest)) => {
                let (authority, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
                let usual = |text: &str| {
                    let text = text.to_ascii_lowercase();
                    text.strip_suffix(":443").or(text.strip_suffix(":80")).unwrap_or(&text).to_owned()
                };
                if usual(authority) != usual(&collection.authority) {
                    return refuse("which is on another host");
                }
                path
            }
            _ => href,
        };
        let Some(path) = path.strip_prefix('/') else { return refuse("which is no absolute path") };
        let is_collection = path.ends_with('/') || path.is_empty();
        let path = path.strip_suffix('/').unwrap_or(path);
        let mut parts = Vec::new();
        for part in path.split('/').filter(|_| !path.is_empty()) {
            let Some(part) = decode(part).filter(|part| !part.contains('/')) else {
                return refuse("which is no name of an object");
            };
            if matches!(part.as_str(), "" | "." | "..") {
                return refuse("which is no plain path");
            }
            parts.push(part);
        }
        let path = parts.join("/");
        let key = match collection.root.as_str() {
            "" => Some(path.as_str()),
            root => {
                path.strip_prefix(root).and_then(|rest| if rest.is_empty() { Some("") } else { rest.strip_prefix('/') })
            }
        };
        match key {
            Some(key) => Ok((key.to_owned(), is_collection)),
            None => refuse("which is not below the root"),
        }
    }
}

/// What is known of an object, as its properties tell it.
fn object_of(props: Props) -> Result<Found, Trouble> {
    let metadata = match &props.metadata {
        None => Vec::new(),
        Some(text) => {
            let read: Result<BTreeMap<String, String>, _> = serde_json::from_str(text);
            let wrong = |_| Trouble::Contradiction("the metadata of the object are not what was stored".to_owned());
            read.map_err(wrong)?.into_iter().collect()
        }
    };
    let tag = tag_from(props.tag.as_deref(), props.modified.as_deref(), props.len);
    let modified = props.modified.as_deref().and_then(|time| Timestamp::parse_rfc2822(time).ok()).map(SystemTime::from);
    Ok(Found::Object(ObjectInfo { len: props.len.unwrap_or(0), tag, metadata, modified }, props.len))
}

/// What tells one content from the next: the entity tag, whether it is told to be weak or not, since Apache says so of one that is younger
/// than a second and takes it back afterwards; else the time and the length.
fn tag_from(tag: Option<&str>, modified: Option<&str>, len: Option<u64>) -> Option<Tag> {
    match (tag, modified, len) {
        (Some(tag), _, _) => {
            let tag = tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"');
            Some(Tag::new(format!("\"{tag}\"")))
        }
        (None, Some(modified), Some(len)) => Some(Tag::new(format!("{len} bytes of {modified}"))),
        _ => None,
    }
}

/// Whether a tag is the time and the length.
pub fn is_by_time(tag: &Tag) -> bool {
    !tag.as_str().starts_with('"')
}

/// The same of the head of an answer about an object of this length; the time and the length also if there is an entity tag and it is to be
/// `by_time`: nginx gives one with an object, and has none among its properties.
pub fn tag_of(headers: &HeaderMap, len: u64, by_time: bool) -> Option<Tag> {
    let text = |name| headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
    tag_from(text(ETAG).filter(|_| !by_time), text(LAST_MODIFIED), Some(len))
}

fn location<T>(answer: &Response<T>) -> Option<String> {
    Some(answer.headers().get(LOCATION)?.to_str().ok()?.to_owned())
}

/// What an answer is that is no success.
pub fn refusal<T>(answer: &Response<T>) -> Refused {
    Refused { status: answer.status(), location: location(answer) }
}

fn no_request(e: &http::Error) -> opendal_core::Error {
    opendal_core::Error::new(opendal_core::ErrorKind::Unexpected, format!("the request is none: {e}"))
}

/// Percent-encodes all but what never means anything in a path.
fn encode(text: &str, into: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for b in text.bytes() {
        match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => into.push(char::from(b)),
            _ => {
                into.push('%');
                into.push(char::from(DIGITS[usize::from(b >> 4)]));
                into.push(char::from(DIGITS[usize::from(b & 15)]));
            }
        }
    }
}

/// Undoes percent encoding; none if that is no text.
fn decode(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let (mut decoded, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        if *byte != b'%' {
            decoded.push(*byte);
            at += 1;
            continue;
        }
        let digits = bytes.get(at + 1..at + 3).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
        decoded.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        at += 3;
    }
    String::from_utf8(decoded).ok()
}

/// Pieces that come one after the other, as something to read from.
pub struct Joined<F> {
    /// The next piece; none at the end.
    next: F,
    piece: Bytes,
}

impl<F: FnMut() -> io::Result<Option<Bytes>>> Joined<F> {
    /// What `next` gives, until it gives none.
    pub fn new(next: F) -> Joined<F> {
        Joined { next, piece: Bytes::new() }
    }
}

impl<F: FnMut() -> io::Result<Option<Bytes>>> BufRead for Joined<F> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.piece.is_empty() {
            match (self.next)()? {
                Some(piece) => self.piece = piece,
                None => break,
            }
        }
        Ok(&self.piece)
    }

    fn consume(&mut self, count: usize) {
        bytes::Buf::advance(&mut self.piece, count);
    }
}

impl<F: FnMut() -> io::Result<Option<Bytes>>> Read for Joined<F> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.len().min(buf.len());
        buf[..count].copy_from_slice(&self.piece[..count]);
        self.consume(count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::options::{ObjectsOptions, Process};
    use super::super::settings::Collection;
    use super::*;
    use crate::objects::Notice;

    fn server(rest: &str) -> Server {
        let collection = Collection::parse(false, rest).unwrap();
        let options = ObjectsOptions { anonymous: true, ..Default::default() };
        let settings = WebDavSettings::resolve(&collection, &options, &Process).unwrap();
        let transport = Transport::new(&settings.options, true, (None, Notice::default()), None).unwrap();
        Server { settings, transport, tells_no_tags: AtomicBool::new(false) }
    }

    #[test]
    fn keys_are_spelled_and_read_back() {
        let at = server("Host:8080/my root/");
        for (key, path) in [
            ("", "/my%20root/"),
            ("a/b", "/my%20root/a/b"),
            ("sp ace/%41?#&+", "/my%20root/sp%20ace/%2541%3F%23%26%2B"),
            ("日本/", "/my%20root/%E6%97%A5%E6%9C%AC/"),
        ] {
            assert_eq!(at.path_of(key), path);
            let told = (key.trim_end_matches('/').to_owned(), path.ends_with('/'));
            assert_eq!(at.key_of(path), Ok(told.clone()), "{path}");
            assert_eq!(at.key_of(&format!("https://HOST:8080{path}")), Ok(told), "{path}");
        }
        assert_eq!(at.url_of("x"), "http://host:8080/my%20root/x");
        assert_eq!(at.key_of("/my root/a b+c~"), Ok(("a b+c~".to_owned(), false)), "some spell it as it is");
        assert_eq!(server("h").key_of("/"), Ok((String::new(), true)));
        assert_eq!(server("h:80/x").key_of("http://h/x/y"), Ok(("y".to_owned(), false)));
    }

    #[test]
    fn what_leads_elsewhere_is_refused() {
        let at = server("host:8080/root");
        for href in [
            "",
            "root/a",
            "//root/a",
            "/",
            "/other/a",
            "/rootless",
            "/root/../etc",
            "/root/%2e%2e/etc",
            "/root/./a",
            "/root//a",
            "/root/a%2Fb",
            "/root/%ff",
            "/root/%zz",
            "http://other:8080/root/a",
            "http://host/root/a",
            "http://user@host:8080/root/a",
            "ftp://host:8080/root/a",
        ] {
            assert!(matches!(at.key_of(href), Err(Trouble::Contradiction(_))), "{href}");
        }
    }

    #[test]
    fn tags_are_compared_whatever_they_are_told_to_be() {
        let tag = |tag, modified, len| tag_from(tag, modified, len).map(|tag| tag.as_str().to_owned());
        for spelled in ["\"1\"", "W/\"1\"", "1"] {
            assert_eq!(tag(Some(spelled), None, None).as_deref(), Some("\"1\""), "{spelled}");
        }
        assert_eq!(tag(None, Some("then"), Some(3)).as_deref(), Some("3 bytes of then"));
        assert_eq!((tag(None, Some("then"), None), tag(None, None, Some(3))), (None, None));
    }
}
