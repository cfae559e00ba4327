//! A collection on a server on WebDAV (RFC 4918) as an object store: a resource for each object, at the path that its key is.
//!
//! [`WebDavObjects`] asks a [`Server`] over the transport of all stores, which has the limits. An object is stored under the name of a
//! temporary in its collection, and moved to its own when all of it is there ([`put`]). User metadata are one property of it. What a server
//! answers is believed as far as it fits the question ([`requests`], [`multistatus`]).
//!
//! No server decides at one moment whether a name is free: those that there are look, and rename afterwards. So a condition is heeded as
//! well as the server does, and [`if_absent_is_atomic`](Objects::if_absent_is_atomic) is never true. Whether one that came late wins is no
//! matter where the key is the hash of the content.
//!
//! A kill can leave a temporary `.adit-<16 hex digits>.tmp`; no object has such a name, and no listing tells of it.

mod failure;
mod listing;
mod multistatus;
mod put;
mod read;
mod requests;
mod settings;

use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use adit_core::media::{
    Content, Fetched, ObjectInfo, ObjectPage, ObjectSink, Objects, PutOptions, Stored, Tag, check_object_key,
    check_object_prefix, check_user_metadata,
};
use adit_core::{ErrorKind, FsError, Result};
use http::{Method, StatusCode};
use opendal_core::Buffer;
use parking_lot::Mutex;

use self::failure::{Refused, failed, refused_with};
use self::requests::{Found, Server};
use self::settings::WebDavSettings;
use super::Owner;
use super::calls::Calls;
use super::failure::LOOK;
use super::options::{ObjectsOptions, Process};
use super::transport::Transport;
use super::wanted::Wanted;

pub use self::settings::Collection;

/// What is known of the header `Overwrite: F`, what weighs more last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Condition {
    Unknown,
    Heeded,
    Ignored,
}

/// A collection on a server.
///
/// Locking: none that is held while a request is on its way.
pub struct WebDavObjects {
    server: Arc<Server>,
    calls: Calls,
    condition: AtomicU8,
    /// Whether it was seen that metadata stay with an object.
    keeps_metadata: AtomicBool,
    /// Collections that are there, or were.
    collections: Mutex<HashSet<String>>,
}

impl WebDavObjects {
    /// The objects in `collection`. Nothing is sent yet.
    pub fn open(collection: &Collection, options: &ObjectsOptions) -> Result<WebDavObjects> {
        WebDavObjects::open_for(collection, options, &Owner::default())
    }

    /// The same for an owner.
    pub fn open_for(collection: &Collection, options: &ObjectsOptions, owner: &Owner) -> Result<WebDavObjects> {
        let settings = WebDavSettings::resolve(collection, options, &Process)?;
        let transport = Transport::new(&settings.options, !collection.tls, (None, owner.notice), None)?;
        let calls = Calls::new(&settings.options, owner.cancel.clone());
        Ok(WebDavObjects {
            server: Arc::new(Server { settings, transport, tells_no_tags: AtomicBool::new(false) }),
            calls,
            condition: AtomicU8::new(Condition::Unknown as u8),
            keeps_metadata: AtomicBool::new(false),
            collections: Mutex::default(),
        })
    }

    /// The object as a URL, for messages.
    fn subject(&self, key: &str) -> String {
        let collection = &self.server.settings.collection;
        let slash = if collection.root.is_empty() { "" } else { "/" };
        format!("{collection}{slash}{key}")
    }

    /// Refuses a key that no object has.
    fn check_key(&self, op: &'static str, key: &str) -> Result<()> {
        check_object_key(key)?;
        if is_hidden(key) { Err(FsError::new(ErrorKind::NotFound).on(op, self.subject(key))) } else { Ok(()) }
    }

    fn look(&self, op: &'static str, key: &str) -> Result<Found> {
        let (server, path) = (self.server.clone(), key.to_owned());
        let found = self.calls.run(0, |deadline| async move {
            let tries = server.tries();
            server.look(&path, tries, deadline).await
        })?;
        found.map_err(|e| failed(op, &self.subject(key), &e))
    }

    /// That the collection itself is missing, which is not for us to make: another one may have been meant.
    fn no_root(&self, op: &'static str) -> FsError {
        let why = "there is no such collection; make it, or correct the URL";
        FsError::new(ErrorKind::NotFound).because(why).on(op, &self.server.settings.collection)
    }

    fn condition(&self) -> Condition {
        match self.condition.load(Ordering::Relaxed) {
            known if known == Condition::Heeded as u8 => Condition::Heeded,
            known if known == Condition::Ignored as u8 => Condition::Ignored,
            _ => Condition::Unknown,
        }
    }

    /// Remembers what came of a `MOVE` to a name that was taken. Once a server was seen to ignore the condition, it is not trusted again.
    fn condition_is(&self, condition: Condition) {
        // Of two that see something else at a time, the one that does not trust it is right.
        self.condition.fetch_max(condition as u8, Ordering::Relaxed);
    }

    fn keeps_metadata(&self) -> bool {
        self.keeps_metadata.load(Ordering::Relaxed)
    }

    fn metadata_are_kept(&self) {
        self.keeps_metadata.store(true, Ordering::Relaxed);
    }
}

/// What the names of temporaries begin and end with.
const TEMPORARY: (&str, &str) = (".adit-", ".tmp");

/// The key of a new temporary in the collection of `key`.
fn temporary_beside(key: &str) -> String {
    let dir = key.rfind('/').map_or("", |slash| &key[..=slash]);
    // The keys of this hasher are random in each process, and differ from one to the next.
    let random = RandomState::new().build_hasher().finish();
    format!("{dir}{}{random:016x}{}", TEMPORARY.0, TEMPORARY.1)
}

/// Whether a key is one of a temporary: ours, or one of a folder that is served to others.
fn is_hidden(key: &str) -> bool {
    let name = key.rsplit('/').next().unwrap_or(key);
    let digits = name.strip_prefix(TEMPORARY.0).and_then(|rest| rest.strip_suffix(TEMPORARY.1));
    digits.is_some_and(|digits| digits.len() >= 8 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
}

impl Objects for WebDavObjects {
    fn read_at(&self, key: &str, offset: u64, buf: &mut [u8], tag: Option<&Tag>) -> Result<Fetched> {
        let mut count = 0;
        self.read_range(key, offset, buf.len() as u64, tag, &mut |_, bytes| {
            let room = buf.get_mut(count..count + bytes.len()).expect("no more is sent than was asked for");
            room.copy_from_slice(bytes);
            count += bytes.len();
            Ok(())
        })
    }

    fn read_through(
        &self,
        key: &str,
        offset: u64,
        len: u64,
        tag: Option<&Tag>,
        sink: &mut ObjectSink<'_>,
    ) -> Result<Fetched> {
        self.read_range(key, offset, len, tag, sink)
    }

    fn head(&self, key: &str) -> Result<ObjectInfo> {
        self.check_key(LOOK, key)?;
        match self.look(LOOK, key)? {
            Found::Object(object, Some(_)) => Ok(object),
            Found::Object(_, None) => Err(FsError::new(ErrorKind::NotSupported)
                .because("the server does not tell how long its files are")
                .on(LOOK, self.subject(key))),
            Found::Missing | Found::Collection => {
                let missing = Refused::with(StatusCode::NOT_FOUND).into_error();
                Err(failed(LOOK, &self.subject(key), &missing))
            }
        }
    }

    fn put(&self, key: &str, content: Content<'_>, options: &PutOptions<'_>) -> Result<Stored> {
        check_object_key(key)?;
        check_user_metadata(options.metadata)?;
        if is_hidden(key) {
            let why = "names like this one are kept for temporaries";
            return Err(FsError::new(ErrorKind::InvalidInput).because(why).on(put::OP, self.subject(key)));
        }
        self.store(key, content, options)
    }

    fn delete(&self, key: &str) -> Result<()> {
        const OP: &str = "delete object";
        check_object_key(key)?;
        // With a collection, all that is in it would go.
        if is_hidden(key) || !matches!(self.look(OP, key)?, Found::Object(..)) {
            return Ok(());
        }
        let (server, request) = (self.server.clone(), self.server.request(Method::DELETE, key).body(Buffer::new()));
        match self.calls.run(0, |_| async move { server.done(request).await })? {
            Err(e) if !matches!(refused_with(&e), Some(404 | 410)) => Err(failed(OP, &self.subject(key), &e)),
            _ => Ok(()),
        }
    }

    fn list(&self, prefix: &str, after: Option<&str>, max: usize) -> Result<ObjectPage> {
        check_object_prefix(prefix)?;
        if max == 0 {
            return Ok(ObjectPage { objects: Vec::new(), more: true });
        }
        self.list_page(&Wanted { prefix, after, max })
    }

    fn if_absent_is_atomic(&self) -> Option<bool> {
        Some(false)
    }

    fn describe(&self) -> String {
        self.server.settings.collection.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_ignored_the_condition_once_is_not_trusted_again() {
        let collection = Collection::parse(false, "localhost/root").unwrap();
        let options = ObjectsOptions { anonymous: true, ..Default::default() };
        let objects = WebDavObjects::open(&collection, &options).unwrap();
        assert_eq!(objects.condition(), Condition::Unknown);
        for (seen, known) in [
            (Condition::Heeded, Condition::Heeded),
            (Condition::Ignored, Condition::Ignored),
            (Condition::Heeded, Condition::Ignored),
        ] {
            objects.condition_is(seen);
            assert_eq!(objects.condition(), known);
        }
    }

    #[test]
    fn temporaries_are_beside_their_object_and_hidden() {
        for (key, dir) in [("a", ""), ("a/b/c", "a/b/")] {
            let (one, other) = (temporary_beside(key), temporary_beside(key));
            assert!(one != other && is_hidden(&one) && one.starts_with(dir), "{one}");
            assert_eq!(one.matches('/').count(), key.matches('/').count());
        }
        assert!(is_hidden("a/.adit-0123abcd.tmp"), "that of a folder");
        for key in [".adit-.tmp", ".adit-0123abcd.tmpx", ".adit-0123abcg.tmp", ".adit-0123abcd.tmp/x", "x"] {
            assert!(!is_hidden(key), "{key}");
        }
    }
}
