//! Reading a range of an object.
//!
//! What tells whether it is the same object is the tag in each answer. `If-Match` is not sent: it compares strongly, and a server that calls
//! a young tag weak would refuse what is right. A server that knows no ranges sends all of it; what comes before is passed over then.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use adit_core::media::{Fetched, ObjectInfo, ObjectSink, Objects, Tag};
use adit_core::{ErrorKind, FsError, Result};
use bytes::Buf;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, RANGE};
use http::{HeaderMap, Method, Response, StatusCode};
use opendal_core::raw::oio::ReadStream;
use opendal_core::{Buffer, Error, HttpBody};
use tokio::time::{Instant, sleep};

use super::super::calls::Outcome;
use super::super::failure::READ;
use super::super::pieces::Pieces;
use super::super::transport::{Tries, Trouble, WholeMayCome};
use super::WebDavObjects;
use super::failure::{Refused, failed, refused_with};
use super::requests::{Found, Server, is_by_time, refusal, tag_of};

impl WebDavObjects {
    /// Reads a range. Without any byte to be had, it is the object alone.
    pub(super) fn read_range(
        &self,
        key: &str,
        offset: u64,
        len: u64,
        tag: Option<&Tag>,
        sink: &mut ObjectSink<'_>,
    ) -> Result<Fetched> {
        self.check_key(READ, key)?;
        let len = len.min(u64::MAX - offset);
        if len > 0 {
            let mut done = 0;
            let mut counted = |object: &ObjectInfo, bytes: &[u8]| {
                sink(object, bytes)?;
                done += bytes.len() as u64;
                Ok(())
            };
            let (server, key_, tag) = (self.server.clone(), key.to_owned(), tag.cloned());
            let read = self.calls.hand_on(len, &mut counted, |deadline, pieces| {
                let tries = server.tries();
                fetch(server, key_, (offset, len), tag, (tries, deadline), pieces)
            })?;
            match read {
                Err(e) if refused_with(&e) == Some(416) && done == 0 => {}
                Err(e) => return Err(failed(READ, &self.subject(key), &e)),
                Ok(object) => return Ok(Fetched { count: done as usize, object }),
            }
        }
        // Nothing is asked for, or it is at the end or after it, where an answer does not tell what object it is.
        let object = ObjectInfo { metadata: Vec::new(), modified: None, ..self.head(key)? };
        if tag.is_some() && object.tag.as_ref() != tag {
            return Err(FsError::new(ErrorKind::Stale).on(READ, self.subject(key)));
        }
        if len > 0 && object.len > offset {
            let what = format!("the object has {} bytes, and none from {offset} on", object.len);
            return Err(failed(READ, &self.subject(key), &Trouble::Contradiction(what).into_error()));
        }
        Ok(Fetched { count: 0, object })
    }
}

/// An answer with bytes of an object.
struct Coming {
    object: ObjectInfo,
    body: HttpBody,
    /// Bytes that come before those that are wanted.
    before: u64,
    /// Whether it has more than what was asked for.
    is_whole: bool,
}

/// What an answer to a range has.
async fn coming(
    server: &Server,
    key: &str,
    (from, by_time): (u64, bool),
    answer: Response<HttpBody>,
    deadline: Instant,
) -> Outcome<Coming> {
    let headers = answer.headers();
    if answer.status() == StatusCode::PARTIAL_CONTENT {
        let total = headers.get(CONTENT_RANGE).and_then(|range| range.to_str().ok()?.rsplit('/').next()?.parse().ok());
        // The transport has looked at it.
        let Some(len) = total else {
            return Err(Trouble::Contradiction("the answer tells no length".to_owned()).into_error());
        };
        let object = ObjectInfo { len, tag: tag_of(headers, len, by_time), ..ObjectInfo::default() };
        return Ok(Coming { object, body: answer.into_body(), before: 0, is_whole: false });
    }
    let is_odd = answer.status() == StatusCode::METHOD_NOT_ALLOWED;
    if answer.status() != StatusCode::OK && !is_odd {
        let is_collection = server.is_collection_elsewhere(key, &answer);
        let refused = if is_collection { Refused::with(StatusCode::NOT_FOUND) } else { refusal(&answer) };
        return Err(refused.into_error());
    }
    // All of an object, or the page of a collection, which is to say that there is no such object.
    match server.look_with_answer(key, server.tries(), deadline).await? {
        Found::Missing | Found::Collection => Err(Refused::with(StatusCode::NOT_FOUND).into_error()),
        Found::Object(..) if is_odd => Err(refusal(&answer).into_error()),
        Found::Object(object, len) => {
            let Some(len) = len else {
                return Err(Trouble::Contradiction("the server tells no length".to_owned()).into_error());
            };
            let tag = tag_of_whole(answer.headers(), len, object.tag, by_time)?;
            let object = ObjectInfo { len, tag, ..ObjectInfo::default() };
            Ok(Coming { object, body: answer.into_body(), before: from, is_whole: true })
        }
    }
}

/// The tag of an answer with all of an object that was told to have this length and tag.
///
/// # Errors
/// `ConditionNotMatch` if what was told is of another object than the answer.
fn tag_of_whole(headers: &HeaderMap, len: u64, told: Option<Tag>, by_time: bool) -> Outcome<Option<Tag>> {
    let has_len = headers.get(CONTENT_LENGTH).and_then(|has| has.to_str().ok()?.parse::<u64>().ok());
    let is_same = |told: &Tag| {
        let has = tag_of(headers, len, is_by_time(told));
        has.is_none_or(|has| is_by_time(&has) != is_by_time(told) || has == *told)
    };
    if has_len.is_some_and(|has| has != len) || !told.as_ref().is_none_or(is_same) {
        return Err(changed());
    }
    let has = tag_of(headers, len, by_time);
    Ok(has.clone().filter(|tag| is_by_time(tag) == by_time).or(told).or(has))
}

fn changed() -> Error {
    Error::new(opendal_core::ErrorKind::ConditionNotMatch, "the object has changed")
}

/// Sends the pieces of a range, and tells the object that it is of.
async fn fetch(
    server: Arc<Server>,
    key: String,
    (offset, len): (u64, u64),
    tag: Option<Tag>,
    (mut tries, deadline): (Tries, Instant),
    pieces: Arc<Pieces>,
) -> Outcome<ObjectInfo> {
    let mut done = 0;
    let mut seen: Option<ObjectInfo> = None;
    // Tags are to be of the form that others are compared with.
    let by_time = tag.as_ref().map_or_else(|| server.tells_no_tags.load(Ordering::Relaxed), is_by_time);
    loop {
        let range = format!("bytes={}-{}", offset + done, offset + len - 1);
        let request = server.request(Method::GET, &key).header(RANGE, range).extension(WholeMayCome);
        let answer = server.send(request.body(Buffer::new())).await?;
        let mut coming = coming(&server, &key, (offset + done, by_time), answer, deadline).await?;
        let object = &coming.object;
        let expected = seen.get_or_insert_with(|| object.clone());
        if expected != object || tag.is_some() && object.tag != tag {
            return Err(changed());
        }
        let wanted = len.min(object.len.saturating_sub(offset));
        let e = match hand_over(&mut coming, (&mut done, wanted), &pieces).await {
            Ok(()) => return Ok(coming.object),
            Err(e) => e,
        };
        // Without a tag, what comes next could be of another object.
        let same = done == 0 || coming.object.tag.is_some();
        match tries.next_pause(Duration::ZERO, deadline).filter(|_| same && e.is_temporary()) {
            Some(pause) => sleep(pause).await,
            None => return Err(e),
        }
    }
}

/// Hands over what comes until `wanted` bytes are `done`. It ends well as well when nobody takes them any more.
async fn hand_over(coming: &mut Coming, (done, wanted): (&mut u64, u64), pieces: &Pieces) -> Outcome<()> {
    while *done < wanted {
        let mut piece = coming.body.read().await?;
        if piece.is_empty() {
            let what = format!("the answer ended after {done} of {wanted} bytes");
            return Err(Trouble::Contradiction(what).into_error());
        }
        let skipped = usize::try_from(coming.before).unwrap_or(usize::MAX).min(piece.len());
        piece.advance(skipped);
        coming.before -= skipped as u64;
        let left = usize::try_from(wanted - *done).unwrap_or(usize::MAX);
        if piece.len() > left {
            if !coming.is_whole {
                let what = format!("the answer has more than the {wanted} bytes that were asked for");
                return Err(Trouble::Contradiction(what).into_error());
            }
            piece.truncate(left);
        }
        *done += piece.len() as u64;
        for bytes in piece {
            if !pieces.hand_over(&coming.object, bytes).await {
                // The caller is gone, and hears nothing any more.
                return Ok(());
            }
        }
    }
    Ok(())
}
