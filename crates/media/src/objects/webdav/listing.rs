//! Listings: collections one after the other, each asked with a depth of one, in the byte order of whole keys.
//!
//! An answer is read while it comes, and of its members no more are kept than a page has; one that has more is asked for again for the next
//! page. What a server tells of members that are no members is an error, as is what it fails to tell of members that may be wanted; names
//! that are no keys are passed over. All requests of one page have one deadline.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use adit_core::Result;
use adit_core::media::{ListedObject, ObjectInfo, ObjectPage, check_object_key};
use http::StatusCode;
use opendal_core::Error;
use opendal_core::raw::oio::ReadStream;
use tokio::time::{Instant, sleep, timeout_at};

use super::super::calls::Outcome;
use super::super::pieces::Pieces;
use super::super::transport::{Tries, Trouble};
use super::super::wanted::Wanted;
use super::failure::{Refused, failed, refused_with};
use super::multistatus::{Response, responses};
use super::requests::{Found, Joined, Server, refusal};
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
    /// When all of the page has to be there.
    until: Instant,
}

/// What is told in one place of an answer.
enum Told {
    /// A member that is wanted; an object, or a collection.
    Member(String, Option<ListedObject>),
    /// That the collection itself is missing.
    Gone,
    /// Nothing that is wanted.
    Nothing,
}

impl WebDavObjects {
    pub(super) fn list_page(&self, wanted: &Wanted<'_>) -> Result<ObjectPage> {
        let dir = wanted.prefix.rfind('/').map_or("", |slash| &wanted.prefix[..=slash]);
        let mut objects = Vec::new();
        // A server may have any number of collections without objects, and make up others.
        self.walk(dir, wanted, self.calls.deadline_for(TIME_AS_BYTES), &mut objects)?;
        let more = objects.len() > wanted.max;
        objects.truncate(wanted.max);
        Ok(ObjectPage { objects, more })
    }

    /// Adds what is in the collection `dir` and below it.
    fn walk(&self, dir: &str, wanted: &Wanted<'_>, until: Instant, found: &mut Vec<ListedObject>) -> Result<()> {
        let mut from: Option<String> = None;
        while found.len() <= wanted.max {
            if Instant::now() >= until {
                return Err(failed(OP, &self.subject(wanted.prefix), &took_too_long()));
            }
            let room = wanted.max.saturating_add(1) - found.len();
            let (members, is_cut) = self.members(&Part { dir, wanted, from: from.as_deref(), room, until })?;
            for (key, object) in members {
                if found.len() > wanted.max {
                    return Ok(());
                }
                match object {
                    Some(object) => found.push(object),
                    None => self.walk(&key, wanted, until, found)?,
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
                Err(e) if is_missing(&e) => {
                    // The root is there, or it is another place that was meant.
                    return match part.dir.is_empty() || self.look(OP, "")? == Found::Missing {
                        true => Err(self.no_root(OP)),
                        false => Ok((Members::new(), false)),
                    };
                }
                Err(e) => e,
            };
            let subject = self.subject(part.dir);
            // What failed before an answer began was tried again already.
            let within = matches!(Trouble::behind(&e), Some(Trouble::Contradiction(_) | Trouble::Broken(_)));
            let Some(pause) = tries.next_pause(Duration::ZERO, part.until).filter(|_| within) else {
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
        let (server, dir, until) = (self.server.clone(), part.dir.to_owned(), part.until);
        let mut arrived = self.calls.begin(TIME_AS_BYTES, |_, pieces| async move {
            timeout_at(until, send(server, dir, pieces)).await.unwrap_or_else(|_| Err(took_too_long()))
        })?;
        let mut ended: Option<Error> = None;
        let (mut members, mut is_cut, mut is_gone, mut read) = (Members::new(), false, false, 0_u64);
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
            match self.told(part, response)? {
                Told::Member(key, object) => drop(members.insert(key, object)),
                Told::Gone => is_gone = true,
                Told::Nothing => {}
            }
            if members.len() > part.room {
                members.pop_last();
                is_cut = true;
            }
            Ok(())
        });
        Ok(match (ended, told) {
            (Some(e), _) => Err(e),
            (None, Err(trouble)) => Err(trouble.into_error()),
            (None, Ok(())) if is_gone => Err(Refused::with(StatusCode::NOT_FOUND).into_error()),
            (None, Ok(())) => Ok((members, is_cut)),
        })
    }

    /// What one response of an answer tells.
    ///
    /// # Errors
    /// `Contradiction` also if it tells that the server could not look: a listing without it would be one of a missing object.
    fn told(&self, part: &Part<'_>, response: Response) -> std::result::Result<Told, Trouble> {
        let (key, _) = match self.server.key_of(&response.href) {
            // Names that are no text are no keys; whatever else it is, it is none of the members.
            Err(_) if is_no_text(&response.href) => return Ok(Told::Nothing),
            key => key?,
        };
        if key == part.dir.trim_end_matches('/') {
            return Ok(if self.server.resource_of(response)? == Found::Missing { Told::Gone } else { Told::Nothing });
        }
        let name = key.strip_prefix(part.dir).filter(|name| !name.contains('/') && !name.is_empty());
        let Some(name) = name else {
            let what = format!("the answer tells of `{}`, which is no member", key.escape_debug());
            return Err(Trouble::Contradiction(what));
        };
        if check_object_key(&key).is_err() || is_hidden(name) {
            return Ok(Told::Nothing);
        }
        let (below, is_after) = (format!("{key}/"), |key: &str| part.from.is_none_or(|from| key > from));
        let is_wanted = part.wanted.is(&key) && is_after(&key);
        let has_wanted = part.wanted.may_be_below(&below) && is_after(&below);
        if !is_wanted && !has_wanted {
            return Ok(Told::Nothing);
        }
        match self.server.resource_of(response)? {
            Found::Collection if has_wanted => Ok(Told::Member(below, None)),
            Found::Object(object, Some(len)) if is_wanted => {
                Ok(Told::Member(key.clone(), Some(ListedObject { key, len, tag: object.tag })))
            }
            Found::Object(_, None) if is_wanted => {
                Err(Trouble::Contradiction(format!("the answer tells no length of `{}`", key.escape_debug())))
            }
            Found::Missing | Found::Collection | Found::Object(..) => Ok(Told::Nothing),
        }
    }
}

fn is_missing(e: &Error) -> bool {
    matches!(refused_with(e), Some(404 | 410))
}

fn took_too_long() -> Error {
    Trouble::TimedOut("the listing takes too long").into_error()
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

#[cfg(test)]
mod tests {
    use adit_core::ErrorKind;
    use adit_testkit::objects::FaultyWebDav;

    use super::super::super::options::ObjectsOptions;
    use super::super::settings::Collection;
    use super::*;

    /// However many collections there are, a page has one deadline.
    #[test]
    fn a_page_that_takes_too_long_is_an_error() {
        let server = FaultyWebDav::start().unwrap();
        server.store("root/a/object", b"x");
        let collection = Collection::parse(false, server.url().strip_prefix("dav://").unwrap()).unwrap();
        let options = ObjectsOptions { anonymous: true, ..Default::default() };
        let objects = WebDavObjects::open(&collection, &options).unwrap();
        let wanted = Wanted { prefix: "", after: None, max: 10 };
        let (now, mut found) = (Instant::now(), Vec::new());
        let e = objects.walk("", &wanted, now, &mut found).unwrap_err();
        assert_eq!((e.kind(), found.len(), server.log().len()), (ErrorKind::TimedOut, 0, 0));
        // Nor does a request outlive it.
        let part = Part { dir: "", wanted: &wanted, from: None, room: 11, until: now };
        assert_eq!(objects.members(&part).unwrap_err().kind(), ErrorKind::TimedOut);
        objects.walk("", &wanted, now + options.deadline, &mut found).unwrap();
        assert_eq!(found.len(), 1);
    }
}
