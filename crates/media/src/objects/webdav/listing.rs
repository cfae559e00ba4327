//! Listings: collections one after the other, each asked with a depth of one, in the byte order of whole keys.
//!
//! An answer is read while it comes, and of its members no more are kept than a page has; one that has more is asked for again for the next
//! page. What a server tells of members that are no members is an error, and names that are no keys are passed over.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use adit_core::Result;
use adit_core::media::{ListedObject, ObjectInfo, ObjectPage, check_object_key};
use http::StatusCode;
use opendal_core::Error;
use opendal_core::raw::oio::ReadStream;
use tokio::time::{Instant, sleep};

use super::super::calls::Outcome;
use super::super::pieces::Pieces;
use super::super::transport::{Tries, Trouble};
use super::super::wanted::Wanted;
use super::failure::{failed, refused_with};
use super::multistatus::{Response, responses};
use super::requests::{Found, Joined, Server, object_of, refusal};
use super::{WebDavObjects, is_hidden};

/// What a listing is called in errors.
const OP: &str = "list objects";
/// A listing may be long, and a server gets the time that so many bytes take.
const TIME_AS_BYTES: u64 = 16 << 20;
/// Longest answer that is read, in bytes: that of some ten million members.
const LEN_MAX_BYTES: u64 = 8 << 30;

/// Members of a collection by key, a `/` at the end of what is a collection itself.
type Members = BTreeMap<String, Option<ListedObject>>;

/// Which members of a collection are wanted.
struct Part<'a> {
    /// The collection: empty, or with a `/` at its end.
    dir: &'a str,
    wanted: &'a Wanted<'a>,
    /// Those that come after this one.
    from: Option<&'a str>,
    /// How many of them.
    room: usize,
}

impl WebDavObjects {
    pub(super) fn list_page(&self, wanted: &Wanted<'_>) -> Result<ObjectPage> {
        let dir = wanted.prefix.rfind('/').map_or("", |slash| &wanted.prefix[..=slash]);
        let mut objects = Vec::new();
        self.walk(dir, wanted, &mut objects)?;
        let more = objects.len() > wanted.max;
        objects.truncate(wanted.max);
        Ok(ObjectPage { objects, more })
    }

    /// Adds what is in the collection `dir` and below it.
    fn walk(&self, dir: &str, wanted: &Wanted<'_>, found: &mut Vec<ListedObject>) -> Result<()> {
        let mut from: Option<String> = None;
        while found.len() <= wanted.max {
            let room = wanted.max + 1 - found.len();
            let (members, is_cut) = self.members(&Part { dir, wanted, from: from.as_deref(), room })?;
            for (key, object) in members {
                if found.len() > wanted.max {
                    return Ok(());
                }
                match object {
                    Some(object) => found.push(object),
                    None => self.walk(&key, wanted, found)?,
                }
                from = Some(key);
            }
            if !is_cut {
                break;
            }
        }
        Ok(())
    }

    /// The first wanted members of a collection, and whether there are others. One that is gone has none.
    fn members(&self, part: &Part<'_>) -> Result<(Members, bool)> {
        let mut tries = self.server.tries();
        loop {
            let e = match self.members_once(part)? {
                Ok(members) => return Ok(members),
                // The root is there, or it is another place that was meant.
                Err(e) if refused_with(&e) == Some(404) && !part.dir.is_empty() => return Ok((Members::new(), false)),
                Err(e) => e,
            };
            let subject = self.subject(part.dir);
            // What failed before an answer began was tried again already.
            let within = matches!(Trouble::behind(&e), Some(Trouble::Contradiction(_) | Trouble::Broken(_)));
            let deadline = Instant::now() + self.server.settings.options.deadline;
            let Some(pause) = tries.next_pause(Duration::ZERO, deadline).filter(|_| within) else {
                if refused_with(&e) == Some(404) {
                    return Err(self.no_root(OP));
                }
                return Err(failed(OP, &subject, &e));
            };
            let waited = self.calls.run(0, |_| async move {
                sleep(pause).await;
                Ok(())
            })?;
            waited.map_err(|e| failed(OP, &subject, &e))?;
        }
    }

    fn members_once(&self, part: &Part<'_>) -> Result<Outcome<(Members, bool)>> {
        let (server, dir) = (self.server.clone(), part.dir.to_owned());
        let mut arrived = self.calls.begin(TIME_AS_BYTES, |_, pieces| send(server, dir, pieces))?;
        let mut ended: Option<Error> = None;
        let (mut members, mut is_cut, mut read) = (Members::new(), false, 0_u64);
        let source = Joined::new(|| match arrived.next_piece() {
            Some(Ok(bytes)) => {
                read += bytes.len() as u64;
                match read > LEN_MAX_BYTES {
                    true => Err(io::Error::other("the listing is far too long")),
                    false => Ok(Some(bytes)),
                }
            }
            Some(Err(e)) => {
                ended = Some(e);
                Err(io::Error::other("the answer broke off"))
            }
            None => Ok(None),
        });
        let told = responses(source, &mut |response| {
            if let Some((key, object)) = self.member(part, response)? {
                members.insert(key, object);
                if members.len() > part.room {
                    members.pop_last();
                    is_cut = true;
                }
            }
            Ok(())
        });
        Ok(match (ended, told) {
            (Some(e), _) => Err(e),
            (None, Err(trouble)) => Err(trouble.into_error()),
            (None, Ok(())) => Ok((members, is_cut)),
        })
    }

    /// The member that is told of, if it is wanted.
    fn member(
        &self,
        part: &Part<'_>,
        response: Response,
    ) -> std::result::Result<Option<(String, Option<ListedObject>)>, Trouble> {
        let (key, _) = match self.server.key_of(&response.href) {
            // Names that are no text are no keys; whatever else it is, it is none of the members.
            Err(_) if is_no_text(&response.href) => return Ok(None),
            key => key?,
        };
        if key == part.dir.trim_end_matches('/') {
            return Ok(None);
        }
        let name = key.strip_prefix(part.dir).filter(|name| !name.contains('/') && !name.is_empty());
        let Some(name) = name else {
            let what = format!("the answer tells of `{}`, which is no member", key.escape_debug());
            return Err(Trouble::Contradiction(what));
        };
        let is_there = response.status.is_none_or(|status| (200..300).contains(&status));
        if !is_there || check_object_key(&key).is_err() || is_hidden(name) {
            return Ok(None);
        }
        let is_after = |key: &str| part.from.is_none_or(|from| key > from);
        if response.props.is_collection {
            let below = format!("{key}/");
            return Ok((part.wanted.may_be_below(&below) && is_after(&below)).then_some((below, None)));
        }
        if !part.wanted.is(&key) || !is_after(&key) {
            return Ok(None);
        }
        match object_of(response.props)? {
            Found::Object(object, Some(len)) => {
                Ok(Some((key.clone(), Some(ListedObject { key, len, tag: object.tag }))))
            }
            _ => Err(Trouble::Contradiction(format!("the answer tells no length of `{}`", key.escape_debug()))),
        }
    }
}

/// Whether a place is spelled with bytes that are no UTF-8.
fn is_no_text(href: &str) -> bool {
    let mut bytes = Vec::new();
    let mut rest = href.bytes();
    while let Some(b) = rest.next() {
        let digit = |b: Option<u8>| b.and_then(|b| char::from(b).to_digit(16));
        match b {
            b'%' => match (digit(rest.next()), digit(rest.next())) {
                (Some(high), Some(low)) => bytes.push((high * 16 + low) as u8),
                _ => return false,
            },
            b => bytes.push(b),
        }
    }
    String::from_utf8(bytes).is_err()
}

/// Hands over the answer for a collection.
async fn send(server: Arc<Server>, dir: String, pieces: Arc<Pieces>) -> Outcome<ObjectInfo> {
    let mut answer = server.send(server.propfind(&dir, "1")).await?;
    if answer.status() != StatusCode::MULTI_STATUS {
        return Err(refusal(&answer).into_error());
    }
    let object = ObjectInfo::default();
    loop {
        let piece = answer.body_mut().read().await?;
        if piece.is_empty() {
            return Ok(object);
        }
        for bytes in piece {
            if !pieces.hand_over(&object, bytes).await {
                return Ok(object);
            }
        }
    }
}

impl Server {
    /// Tries of something that takes several requests.
    pub(super) fn tries(&self) -> Tries {
        Tries::new(&self.settings.options)
    }
}
