//! Storing an object: under another name first, and then, whole, under its own.
//!
//! A `PUT` may be seen half-way, and a `MOVE` is not. With `Overwrite: T` a `MOVE` first deletes what is there, a collection with all that
//! is in it, too: so it is sent only after one with `F` was refused, and after a look has shown that it is an object.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

use adit_core::media::{Content, ObjectInfo, PutOptions, Stored};
use adit_core::{ErrorKind, FsError, Result};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use opendal_core::{Buffer, Error};
use tokio::time::{Instant, timeout_at};

use super::super::body::{Asked, Wish};
use super::super::calls::Outcome;
use super::super::transport::Trouble;
use super::failure::{Refused, failed, refused_with};
use super::multistatus::{METADATA, NAMESPACE, responses};
use super::requests::{Found, method, refusal};
use super::{Condition, WebDavObjects, temporary_beside};

/// What a put is called in errors.
pub const OP: &str = "store object";
/// Bytes that are read of a content at a time.
const PIECE_LEN_BYTES: usize = 1 << 20;
/// Most attempts to give an object its name.
const ATTEMPTS_MAX: u32 = 3;
/// How long it is tried to take away what was stored half: whoever waits has its answer already.
const TAKE_AWAY_MAX: Duration = Duration::from_secs(5);

/// A temporary, which is taken away if it does not get another name.
struct Temporary<'a> {
    objects: &'a WebDavObjects,
    key: String,
    /// A second one that it may have become: whether it has is not known while this is set.
    other: Option<String>,
    is_there: bool,
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if self.is_there {
            self.objects.take_away(&self.key);
        }
        if let Some(other) = &self.other {
            self.objects.take_away(other);
        }
    }
}

/// How an object got its name, or did not.
enum Placed {
    New,
    /// In place of another, though that was not to be.
    Replaced,
    /// With its length.
    AlreadyThere(u64),
}

impl WebDavObjects {
    /// Stores a checked object.
    pub(super) fn store(&self, key: &str, content: Content<'_>, options: &PutOptions<'_>) -> Result<Stored> {
        let is_small = content.len() <= self.server.settings.options.part_len_bytes as u64;
        let condition = self.condition();
        // Of a large object it is said at the end, when everything is there already, that it need not have been sent.
        let looks = condition != Condition::Heeded || (options.if_absent && !is_small);
        let taken = if looks { self.len_of_present(key)? } else { None };
        if let Some(len) = taken.filter(|_| options.if_absent) {
            return Ok(Stored::AlreadyThere { len });
        }
        let stored = self.store_once(key, content, options)?;
        if let (Placed::New, Condition::Unknown) = (&stored, self.condition())
            && options.if_absent
            && is_small
            && options.metadata.is_empty()
        {
            // The same again: a server that heeds the condition refuses, another one stores what is there already. If that fails, the object
            // is stored nevertheless.
            let _ = self.store_once(key, content, options);
        }
        Ok(match stored {
            Placed::New | Placed::Replaced => Stored::New(None),
            Placed::AlreadyThere(len) => Stored::AlreadyThere { len },
        })
    }

    /// The length of the object, if there is one.
    ///
    /// # Errors
    /// `IsDirectory` if it is a collection, with which a `MOVE` would do away.
    fn len_of_present(&self, key: &str) -> Result<Option<u64>> {
        match self.look(OP, key)? {
            Found::Missing => Ok(None),
            Found::Object(object, _) => Ok(Some(object.len)),
            Found::Collection => {
                let why = "it is a collection, with whatever is in it; a server can have no object of the same name";
                Err(FsError::new(ErrorKind::IsDirectory).because(why).on(OP, self.subject(key)))
            }
        }
    }

    fn store_once(&self, key: &str, content: Content<'_>, options: &PutOptions<'_>) -> Result<Placed> {
        let mut temporary = Temporary { objects: self, key: temporary_beside(key), other: None, is_there: true };
        self.send_content(key, &temporary.key, content)?;
        self.describe_object(&mut temporary, key, content.len(), options.metadata)?;
        let placed = self.place(key, &temporary.key, content.len(), options.if_absent)?;
        temporary.is_there = matches!(placed, Placed::AlreadyThere(_));
        Ok(placed)
    }

    /// Stores the content at `temporary`. The collections above are made if they are missing.
    fn send_content(&self, key: &str, temporary: &str, content: Content<'_>) -> Result<()> {
        let is_small = content.len() <= self.server.settings.options.part_len_bytes as u64;
        if !is_small {
            // All of it would be sent before it is said that there is no place for it.
            self.make_collections(key)?;
        }
        let send = || match is_small {
            true => self.send_small(key, temporary, content),
            false => self.send_large(key, temporary, content),
        };
        let mut sent = send()?;
        if let Err(e) = &sent
            && matches!(refused_with(e), Some(404 | 409))
        {
            self.collections.lock().clear();
            self.make_collections(key)?;
            sent = send()?;
        }
        sent.map_err(|e| failed(OP, &self.subject(key), &e))
    }

    fn send_small(&self, key: &str, temporary: &str, content: Content<'_>) -> Result<Outcome<()>> {
        let bytes = self.piece(key, content, 0, content.len() as usize)?;
        let request = self.server.request(Method::PUT, temporary).body(Buffer::from(bytes));
        let server = self.server.clone();
        self.calls.run(content.len(), |_| async move { server.done(request).await.map(drop) })
    }

    /// Stores it in one request, whose body this thread reads while it goes.
    fn send_large(&self, key: &str, temporary: &str, content: Content<'_>) -> Result<Outcome<()>> {
        let mut tries = self.server.tries();
        let deadline = self.calls.deadline_for(content.len());
        loop {
            let e = match self.send_large_once(key, temporary, content, deadline)? {
                Ok(()) => return Ok(Ok(())),
                Err(e) => e,
            };
            let is_interrupted = matches!(Trouble::behind(&e), Some(Trouble::Interrupted));
            let again = tries.next_pause(Duration::ZERO, deadline).filter(|_| e.is_temporary() && !is_interrupted);
            let Some(pause) = again else { return Ok(Err(e)) };
            let waited = self.calls.run(0, |_| async move {
                tokio::time::sleep(pause).await;
                Ok(())
            })?;
            if let Err(e) = waited {
                return Ok(Err(e));
            }
        }
    }

    fn send_large_once(
        &self,
        key: &str,
        temporary: &str,
        content: Content<'_>,
        deadline: Instant,
    ) -> Result<Outcome<()>> {
        let (wishes, wished) = mpsc::channel();
        let (body, pieces) = Asked::new(content.len(), wishes.clone());
        let (server, cancel) = (self.server.clone(), self.calls.cancel().clone());
        let request = self.server.request(Method::PUT, temporary).body(Buffer::new());
        self.calls.spawn(async move {
            let sending = async {
                let request = request.map_err(|e| Error::new(opendal_core::ErrorKind::Unexpected, e.to_string()))?;
                server.transport.send_once(request, body, deadline).await
            };
            let ended = timeout_at(deadline, cancel.or(sending)).await;
            let ended = ended.unwrap_or_else(|_| Err(Trouble::TimedOut("it took too long").into_error()));
            // Who waited may be gone.
            let _ = wishes.send(Wish::Ended(ended));
        })?;
        let mut offset = 0;
        loop {
            match wished.recv() {
                Ok(Wish::Piece) if offset < content.len() => {
                    let len = PIECE_LEN_BYTES.min(usize::try_from(content.len() - offset).unwrap_or(usize::MAX));
                    let bytes = self.piece(key, content, offset, len)?;
                    offset += len as u64;
                    // A request that has ended says so next.
                    let _ = pieces.send(bytes);
                }
                Ok(Wish::Piece) => {}
                Ok(Wish::Ended(Err(e))) => return Ok(Err(e)),
                Ok(Wish::Ended(Ok(answer))) if answer.status().is_success() => return Ok(Ok(())),
                Ok(Wish::Ended(Ok(answer))) => return Ok(Err(refusal(&answer).into_error())),
                Err(_) => return Err(super::super::runtime::ended_without_result()),
            }
        }
    }

    fn piece(&self, key: &str, content: Content<'_>, offset: u64, len: usize) -> Result<Bytes> {
        let mut bytes = vec![0; len];
        let read = content.read_exact_at(offset, &mut bytes);
        read.map_err(|e| FsError::from(e).on("read what is to be stored as", self.subject(key)))?;
        Ok(bytes.into())
    }

    /// Gives a temporary its metadata, and sees that all of it is there. Of the first one with metadata it is seen, too, that they stay with
    /// an object that gets another name.
    fn describe_object(
        &self,
        temporary: &mut Temporary<'_>,
        key: &str,
        len: u64,
        metadata: &[(&str, &str)],
    ) -> Result<()> {
        let fail = |e: &Error| failed(OP, &self.subject(key), e);
        if !metadata.is_empty() {
            self.set_metadata(key, &temporary.key, metadata)?;
        }
        let kept = || {
            FsError::new(ErrorKind::NotSupported).on(OP, self.subject(key)).because(
                "the server does not keep properties of its users, which this object needs; name one that does, as Apache with mod_dav",
            )
        };
        let mut expected: Vec<(String, String)> =
            metadata.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        expected.sort();
        let check = |place: &str| match self.look(OP, place)? {
            Found::Object(object, Some(told)) if told == len => match object.metadata == expected {
                true => Ok(()),
                false => Err(kept()),
            },
            Found::Object(_, None) => Err(FsError::new(ErrorKind::NotSupported)
                .because("the server does not tell how long its files are, so nobody knows whether all of it is there")
                .on(OP, self.subject(key))),
            found => Err(fail(&Trouble::Contradiction(lost(&found, len)).into_error())),
        };
        check(&temporary.key)?;
        if !metadata.is_empty() && !self.keeps_metadata() {
            let other = temporary.other.insert(temporary_beside(key)).clone();
            if let Err(e) = self.move_to(&temporary.key, &other, "F")? {
                let may_be_done = matches!(refused_with(&e), Some(404 | 409 | 412));
                if !may_be_done || !self.was_moved(&other, &temporary.key, len)? {
                    return Err(fail(&e));
                }
            }
            temporary.key = other;
            temporary.other = None;
            check(&temporary.key)?;
            self.metadata_are_kept();
        }
        Ok(())
    }

    fn set_metadata(&self, key: &str, temporary: &str, metadata: &[(&str, &str)]) -> Result<()> {
        let request = self.server.request(method("PROPPATCH"), temporary);
        let request = request.header(CONTENT_TYPE, "application/xml; charset=utf-8");
        let (server, request) = (self.server.clone(), request.body(Buffer::from(description(metadata))));
        let set = self.calls.run(0, |_| async move {
            let mut answer = server.send(request).await?;
            let status = answer.status();
            if status != StatusCode::MULTI_STATUS {
                return if status.is_success() { Ok(()) } else { Err(refusal(&answer).into_error()) };
            }
            let document = answer.body_mut().to_buffer().await?.to_bytes();
            let mut refused = None;
            let told = responses(&document[..], &mut |response| {
                let of_all = response.status.filter(|status| !(200..300).contains(status));
                refused = refused.or(response.refused).or(of_all);
                Ok(())
            });
            told.map_err(Trouble::into_error)?;
            match refused.map(|status| StatusCode::from_u16(status).unwrap_or(StatusCode::FORBIDDEN)) {
                Some(status) => Err(Refused::with(status).into_error()),
                None => Ok(()),
            }
        })?;
        set.map_err(|e| match refused_with(&e) {
            // Who may store may describe: it is the server that cannot.
            Some(status @ (403 | 405 | 409 | 415 | 501 | 507)) => {
                FsError::new(ErrorKind::NotSupported).on(OP, self.subject(key)).because(format!(
                    "the server does not keep properties of its users (it answers {status}), which this object needs"
                ))
            }
            _ => failed(OP, &self.subject(key), &e),
        })
    }

    /// Gives what is at `temporary` its name.
    fn place(&self, key: &str, temporary: &str, len: u64, if_absent: bool) -> Result<Placed> {
        let fail = |e: &Error| failed(OP, &self.subject(key), e);
        let mut attempts = 1;
        loop {
            let e = match self.move_to(temporary, key, "F")? {
                Ok(StatusCode::NO_CONTENT) => {
                    self.condition_is(Condition::Ignored);
                    return Ok(Placed::Replaced);
                }
                Ok(_) => return Ok(Placed::New),
                Err(e) => e,
            };
            match refused_with(&e) {
                Some(412) => {
                    self.condition_is(Condition::Heeded);
                    match (self.len_of_present(key)?, if_absent) {
                        (Some(len), true) => return Ok(Placed::AlreadyThere(len)),
                        (Some(_), false) => match self.move_to(temporary, key, "T")? {
                            Ok(_) => return Ok(Placed::Replaced),
                            Err(e) if refused_with(&e) == Some(404) && self.was_moved(key, temporary, len)? => {
                                return Ok(Placed::Replaced);
                            }
                            Err(e) => return Err(fail(&e)),
                        },
                        // It is gone again.
                        (None, _) if attempts < ATTEMPTS_MAX => attempts += 1,
                        (None, _) => return Err(fail(&e)),
                    }
                }
                Some(404 | 409) if self.was_moved(key, temporary, len)? => return Ok(Placed::New),
                Some(404) => return Err(fail(&Trouble::Contradiction(lost(&Found::Missing, len)).into_error())),
                _ => return Err(fail(&e)),
            }
        }
    }

    /// Whether an earlier try has moved it, and its answer was lost.
    fn was_moved(&self, key: &str, temporary: &str, len: u64) -> Result<bool> {
        let is_whole = |found| matches!(found, Found::Object(_, Some(told)) if told == len);
        Ok(self.look(OP, temporary)? == Found::Missing && is_whole(self.look(OP, key)?))
    }

    fn move_to(&self, from: &str, to: &str, overwrite: &'static str) -> Result<Outcome<StatusCode>> {
        let request = self.server.request(method("MOVE"), from);
        let request = request.header("Destination", self.server.url_of(to)).header("Overwrite", overwrite);
        let (server, request) = (self.server.clone(), request.body(Buffer::new()));
        self.calls.run(0, |_| async move { server.done(request).await })
    }

    /// Makes the collections that an object of this key lies in, as far as they are not known to be there.
    fn make_collections(&self, key: &str) -> Result<()> {
        for (at, _) in key.match_indices('/') {
            let dir = &key[..=at];
            if self.collections.lock().contains(dir) {
                continue;
            }
            let (server, request) =
                (self.server.clone(), self.server.request(method("MKCOL"), dir).body(Buffer::new()));
            let made = self.calls.run(0, |_| async move { server.done(request).await })?;
            if let Err(e) = made {
                match self.look(OP, dir)? {
                    Found::Collection => {}
                    Found::Missing if self.look(OP, "")? == Found::Missing => return Err(self.no_root(OP)),
                    _ => return Err(failed("make collection", &self.subject(dir), &e)),
                }
            }
            self.collections.lock().insert(dir.to_owned());
        }
        match key.contains('/') {
            true => Ok(()),
            // There is none to make but the root, which is another's to make.
            false if self.look(OP, "")? == Found::Missing => Err(self.no_root(OP)),
            false => Ok(()),
        }
    }

    /// Takes a temporary away, also if all is to end.
    fn take_away(&self, temporary: &str) {
        let (server, request) =
            (self.server.clone(), self.server.request(Method::DELETE, temporary).body(Buffer::new()));
        // What failed before is what is told. One that stays is nothing but bytes that nobody sees.
        let _ = self.calls.run_to_end(0, |deadline| async move {
            let until = deadline.min(Instant::now() + TAKE_AWAY_MAX);
            timeout_at(until, server.done(request)).await.unwrap_or(Ok(StatusCode::OK))
        });
    }
}

/// What gives an object its metadata.
fn description(metadata: &[(&str, &str)]) -> String {
    let map: BTreeMap<_, _> = metadata.iter().copied().collect();
    let text = serde_json::Value::from_iter(map).to_string();
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?><propertyupdate xmlns=\"DAV:\"><set><prop>\
         <{METADATA} xmlns=\"{NAMESPACE}\">{text}</{METADATA}></prop></set></propertyupdate>"
    )
}

/// What is wrong with what the server has, of `len` bytes that were sent.
fn lost(found: &Found, len: u64) -> String {
    match found {
        Found::Object(ObjectInfo { len: told, .. }, _) => {
            format!("the server took {len} bytes, and has {told} of them")
        }
        _ => format!("the server took {len} bytes, and does not have them"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of `docs/formats/manifest.md`.
    #[test]
    fn metadata_are_one_property() {
        let sent = description(&[("file-system-location-name", "a & <b>"), ("asset-root", "/home/me/work")]);
        let property = "<metadata xmlns=\"urn:adit:objects\">\
                        {\"asset-root\":\"/home/me/work\",\"file-system-location-name\":\"a &amp; &lt;b&gt;\"}</metadata>";
        let expected = "<?xml version=\"1.0\" encoding=\"utf-8\"?><propertyupdate xmlns=\"DAV:\"><set><prop>"
            .to_owned()
            + property
            + "</prop></set></propertyupdate>";
        assert_eq!(sent, expected);
    }
}
