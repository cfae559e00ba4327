//! A bucket, or what is below a prefix in one, as an object store.
//!
//! [`S3Objects`] makes its calls with opendal's operator. What the library leaves open is done here:
//! * a range that breaks off is continued where it stopped, of the same object only;
//! * whether a store heeds `If-None-Match: *` is found out with the first object that is stored in that way, and looked after
//!   with a look before until then;
//! * credentials that ran out, or were changed in a file, are read again once; a bucket in another region is looked for there; and what is stored
//!   goes with a checksum, unless the store does not know that ([`Ways`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, SystemTime};

use adit_core::media::{
    Content, Fetched, ListedObject, OBJECT_KEY_LEN_MAX_BYTES, ObjectInfo, ObjectPage, ObjectSink, Objects, PutOptions,
    Stored, Tag, check_object_key, check_object_prefix, check_user_metadata,
};
use adit_core::{ErrorKind, FsError, Result};
use futures_util::TryStreamExt;
use opendal_core::options::{ListOptions, ReaderOptions};
use opendal_core::{Error, HttpTransporter, Metadata, OperationContext, Operator};
use opendal_service_s3::S3;
use parking_lot::RwLock;
use reqsign_core::ProvideCredentialChain;
use tokio::time::{Instant, sleep};

use super::Owner;
use super::begun::Begun;
use super::calls::{Calls, Outcome};
use super::credentials::{Credentials, Why};
use super::failure::{
    LOOK, READ, explained, failed, is_about_checksums, is_answer, is_not_implemented, said_region,
    wants_other_credentials,
};
use super::options::{ObjectsOptions, Process, S3Settings};
use super::pieces::Pieces;
use super::transport::{Transport, Tries, Trouble};

/// What is known of the condition `If-None-Match: *`.
mod condition {
    pub const UNKNOWN: u8 = 0;
    pub const HEEDED: u8 = 1;
    pub const IGNORED: u8 = 2;
}

/// Most keys that S3 tells in one answer. A page has one less, so that one answer also tells whether there are more.
const LIST_PAGE_MAX: usize = 1000;

/// The beginning of the names of headers that only such a store sends.
const HEADER_OF_STORES: &str = "x-amz";

/// How the store is talked to, as far as it was found out.
#[derive(Clone)]
pub(super) struct Current {
    /// How often that was changed, or credentials were read anew.
    number: u64,
    operator: Operator,
    way: Way,
}

/// What may turn out to be otherwise than was set up.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Way {
    region: String,
    /// Whether what is stored goes with a checksum.
    has_checksums: bool,
}

/// A bucket, or what is below a prefix in one.
///
/// Locking: none that is held while a request is on its way.
pub struct S3Objects {
    pub(super) settings: S3Settings,
    transport: HttpTransporter,
    current: RwLock<Current>,
    pub(super) why: Why,
    condition: AtomicU8,
    pub(super) calls: Calls,
    /// Where its uploads in parts are noted.
    pub(super) begun: Option<Arc<Begun>>,
}

impl S3Objects {
    /// The objects below `prefix` in `bucket`. Nothing is sent yet.
    pub fn open(bucket: &str, prefix: &str, options: &ObjectsOptions) -> Result<S3Objects> {
        S3Objects::open_for(bucket, prefix, options, &Owner::default())
    }

    /// The same for an owner.
    pub fn open_for(bucket: &str, prefix: &str, options: &ObjectsOptions, owner: &Owner) -> Result<S3Objects> {
        let settings = S3Settings::resolve(bucket, prefix, options, &Process)?;
        let subject = format!("s3://{bucket}/{prefix}");
        let begun = owner.uploads.as_deref().map(|folder| Arc::new(Begun::new(folder, describe(&settings))));
        // A machine without any certificates can still talk to a store that needs none.
        let is_plain = settings.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http:"));
        let transport = HttpTransporter::new(Transport::new(
            &settings.options,
            is_plain,
            (Some(HEADER_OF_STORES), owner.notice),
            begun.clone(),
        )?);
        let calls = Calls::new(&settings.options, owner.cancel.clone());
        let why = Why::default();
        let way = Way { region: settings.region.clone(), has_checksums: settings.has_checksums };
        let operator =
            operator(&settings, &way, &transport, &why).map_err(|e| failed("open object store", &subject, &e))?;
        Ok(S3Objects {
            settings,
            transport,
            current: RwLock::new(Current { number: 0, operator, way }),
            why,
            condition: AtomicU8::new(condition::UNKNOWN),
            calls,
            begun,
        })
    }

    /// The object as a URL, for messages.
    pub(super) fn subject(&self, key: &str) -> String {
        let S3Settings { bucket, prefix, .. } = &self.settings;
        match prefix.as_str() {
            "" => format!("s3://{bucket}/{key}"),
            prefix => format!("s3://{bucket}/{prefix}/{key}"),
        }
    }

    pub(super) fn check_key(&self, key: &str) -> Result<()> {
        check_object_key(key)?;
        if self.settings.prefix.len() + 1 + key.len() > OBJECT_KEY_LEN_MAX_BYTES {
            let why = "with the prefix of the store, the key is longer than 1024 bytes";
            return Err(FsError::new(ErrorKind::InvalidInput).on("address object", self.subject(key)).because(why));
        }
        Ok(())
    }

    /// Makes a call that moves `bytes`, and makes it again in another way if that may help ([`Ways`]). What a store does not know of one that
    /// `stores_plainly`, without a condition, may be its checksum.
    pub(super) fn call<T, C, F>(
        &self,
        (op, key): (&'static str, &str),
        bytes: u64,
        stores_plainly: bool,
        call: C,
    ) -> Result<T>
    where
        T: Send + 'static,
        C: Fn(Operator, Instant) -> F,
        F: Future<Output = Outcome<T>> + Send + 'static,
    {
        let mut ways = self.ways(stores_plainly);
        loop {
            match self.run(bytes, |deadline| call(ways.operator(), deadline))? {
                Ok(value) => return Ok(value),
                Err(e) if ways.go_on(&e) => {}
                Err(e) => return Err(failed(op, &self.subject(key), &e)),
            }
        }
    }

    /// The ways to make a [call](Self::call).
    pub(super) fn ways(&self, stores_plainly: bool) -> Ways<'_> {
        Ways { objects: self, current: self.current.read().clone(), stores_plainly, has_tried: Tried::default() }
    }

    /// Reads a range with `operator`, piece by piece: it is this thread that hands them on.
    fn read_once(
        &self,
        operator: Operator,
        key: &str,
        (offset, len): (u64, u64),
        tag: Option<&Tag>,
        sink: &mut ObjectSink<'_>,
    ) -> Result<Outcome<ObjectInfo>> {
        let (key, tag, tries) = (key.to_owned(), tag.cloned(), Tries::new(&self.settings.options));
        let outcome = self.calls.hand_on(len, sink, |deadline, pieces| {
            fetch(operator, key, (offset, len), tag, (tries, deadline), pieces)
        })?;
        Ok(outcome.map_err(|e| explained(e, &self.why)))
    }

    /// Reads a range; with other credentials from where it was, if those run out. Without any byte to be had, it is the object alone.
    fn read_range(
        &self,
        key: &str,
        offset: u64,
        len: u64,
        tag: Option<&Tag>,
        sink: &mut ObjectSink<'_>,
    ) -> Result<Fetched> {
        self.check_key(key)?;
        let len = len.min(u64::MAX - offset);
        let (mut done, mut seen) = (0, None);
        if len > 0 {
            let mut ways = self.ways(false);
            let read = loop {
                // What comes later has to be of the same object.
                let same = seen.as_ref().and_then(|object: &ObjectInfo| object.tag.clone());
                let (from, tag) = (done, if done == 0 { tag } else { same.as_ref() });
                let mut counted = |object: &ObjectInfo, bytes: &[u8]| {
                    sink(object, bytes)?;
                    done += bytes.len() as u64;
                    seen.get_or_insert_with(|| object.clone());
                    Ok(())
                };
                let read = self.read_once(ways.operator(), key, (offset + from, len - from), tag, &mut counted)?;
                let may_go_on = done == 0 || seen.as_ref().is_some_and(|object| object.tag.is_some());
                match read {
                    Err(e) if may_go_on && ways.go_on(&e) => {}
                    read => break read,
                }
            };
            match read {
                Err(e) if e.kind() == opendal_core::ErrorKind::RangeNotSatisfied && done == 0 => {}
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

    /// Runs a call that moves `bytes`, within the time for it, and until it is told to end.
    pub(super) fn run<T, F>(&self, bytes: u64, call: impl FnOnce(Instant) -> F) -> Result<Outcome<T>>
    where
        T: Send + 'static,
        F: Future<Output = Outcome<T>> + Send + 'static,
    {
        Ok(self.calls.run(bytes, call)?.map_err(|e| explained(e, &self.why)))
    }

    /// The same of a call that looks itself whether it is to end.
    pub(super) fn run_to_end<T, F>(&self, bytes: u64, call: impl FnOnce(Instant) -> F) -> Result<Outcome<T>>
    where
        T: Send + 'static,
        F: Future<Output = Outcome<T>> + Send + 'static,
    {
        Ok(self.calls.run_to_end(bytes, call)?.map_err(|e| explained(e, &self.why)))
    }

    /// The same way, changed so, with credentials that are read anew; or what somebody else has changed since the `number`th.
    fn changed(&self, number: u64, change: impl FnOnce(&mut Way)) -> Outcome<Current> {
        let mut current = self.current.write();
        if current.number == number {
            let mut way = current.way.clone();
            change(&mut way);
            let operator = operator(&self.settings, &way, &self.transport, &self.why)?;
            *current = Current { number: number + 1, operator, way };
        }
        Ok(current.clone())
    }

    /// Whether a put has to look before, and whether it is to say the condition.
    pub(super) fn condition(&self) -> (bool, bool) {
        let known = self.condition.load(Ordering::Relaxed);
        (known != condition::HEEDED, known != condition::IGNORED)
    }

    /// Remembers what came of a put with the condition to a key that was taken.
    pub(super) fn condition_was(&self, heeded: bool) {
        self.condition.store(if heeded { condition::HEEDED } else { condition::IGNORED }, Ordering::Relaxed);
    }
}

/// The ways to make one call, one after the other: each of what may be wrong is set right once.
pub(super) struct Ways<'a> {
    objects: &'a S3Objects,
    current: Current,
    stores_plainly: bool,
    has_tried: Tried,
}

/// What was set right.
#[derive(Default)]
struct Tried {
    region: bool,
    checksums: bool,
    credentials: bool,
}

impl Ways<'_> {
    /// What the call is to be made with.
    pub fn operator(&self) -> Operator {
        self.current.operator.clone()
    }

    /// Whether there is another way after this error.
    pub fn go_on(&mut self, e: &Error) -> bool {
        let (objects, way) = (self.objects, &self.current.way);
        let region = said_region(e).filter(|region| *region != way.region);
        // A store that knows neither checksums nor the condition is asked without the latter first.
        let is_unknown = self.stores_plainly && way.has_checksums && is_not_implemented(e);
        let changed = if let Some(region) = region.filter(|_| !self.has_tried.region) {
            self.has_tried.region = true;
            objects.changed(self.current.number, |way| way.region = region)
        } else if !self.has_tried.checksums && (is_unknown || is_about_checksums(e)) {
            self.has_tried.checksums = true;
            let has_checksums = !way.has_checksums;
            // It may have been the checksum that was refused, and not the condition.
            objects.condition.store(condition::UNKNOWN, Ordering::Relaxed);
            objects.changed(self.current.number, |way| way.has_checksums = has_checksums)
        } else if !self.has_tried.credentials && wants_other_credentials(e) {
            self.has_tried.credentials = true;
            objects.changed(self.current.number, |_| {})
        } else {
            return false;
        };
        changed.map(|changed| self.current = changed).is_ok()
    }
}

/// The store, for messages.
fn describe(settings: &S3Settings) -> String {
    let S3Settings { bucket, prefix, .. } = settings;
    let slash = if prefix.is_empty() { "" } else { "/" };
    match &settings.endpoint {
        Some(endpoint) => format!("s3://{bucket}{slash}{prefix} at {endpoint}"),
        None => format!("s3://{bucket}{slash}{prefix} in {}", settings.region),
    }
}

/// An operator that has read no credentials yet.
fn operator(settings: &S3Settings, way: &Way, transport: &HttpTransporter, why: &Why) -> Outcome<Operator> {
    // The variables were read already, and mean what the AWS tools mean by them.
    let mut builder = S3::default().bucket(&settings.bucket).region(&way.region).disable_config_load();
    if !settings.prefix.is_empty() {
        builder = builder.root(&format!("/{}/", settings.prefix));
    }
    let none = |e: FsError| Error::new(opendal_core::ErrorKind::ConfigInvalid, e.to_string());
    if let Some(endpoint) = settings.endpoint_in(&way.region).map_err(none)? {
        builder = builder.endpoint(&kept_whole(&endpoint, settings));
    }
    if way.has_checksums {
        builder = builder.checksum_algorithm("crc32c");
    }
    if !settings.path_style {
        builder = builder.enable_virtual_host_style();
    }
    if settings.options.request_payer {
        builder = builder.enable_request_payer();
    }
    if settings.options.anonymous {
        builder = builder.skip_signature();
    } else {
        let credentials = Credentials::new(settings, Arc::new(Process), why.clone());
        builder = builder.credential_provider_chain(ProvideCredentialChain::new().push(credentials));
    }
    let context = OperationContext::new().with_http_transport(transport.clone());
    Ok(Operator::new(builder)?.with_context(context))
}

/// The endpoint in a spelling of which the library takes nothing away. It cuts the bucket's name off the host, though a bucket
/// `data` may well lie on `data.example.org`. What it is looking for does not have a percent sign, which it undoes afterwards.
fn kept_whole(endpoint: &str, settings: &S3Settings) -> String {
    let Some((scheme, host)) = endpoint.split_once("://").filter(|_| settings.path_style) else {
        return endpoint.to_owned();
    };
    match host.as_bytes().first() {
        Some(first) if first.is_ascii() && host.starts_with(&format!("{}.", settings.bucket)) => {
            format!("{scheme}://%{first:02X}{}", &host[1..])
        }
        _ => endpoint.to_owned(),
    }
}

fn tag_of(metadata: &Metadata) -> Option<Tag> {
    metadata.etag().map(Tag::new)
}

fn info_of(metadata: &Metadata) -> ObjectInfo {
    let mut user: Vec<(String, String)> = Vec::new();
    for (name, value) in metadata.user_metadata().into_iter().flatten() {
        user.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    user.sort();
    let modified = metadata.last_modified().map(SystemTime::from);
    ObjectInfo { len: metadata.content_length(), tag: tag_of(metadata), metadata: user, modified }
}

/// Sends the pieces of a range, and tells the object that it is of. A range that begins at the end or after it is an error.
async fn fetch(
    operator: Operator,
    key: String,
    (offset, len): (u64, u64),
    tag: Option<Tag>,
    (mut tries, deadline): (Tries, Instant),
    pieces: Arc<Pieces>,
) -> Outcome<ObjectInfo> {
    let mut done = 0;
    let mut seen: Option<ObjectInfo> = None;
    loop {
        let guard = seen.as_ref().map_or(tag.as_ref(), |object| object.tag.as_ref());
        let options = ReaderOptions { if_match: guard.map(|tag| tag.as_str().to_owned()), ..Default::default() };
        let reader = operator.reader_options(&key, options).await?;
        let mut stream = reader.clone().into_stream(offset + done..offset + len).await?;
        let broken = loop {
            let piece = stream.try_next().await;
            if let Some(metadata) = reader.metadata() {
                let object = ObjectInfo { len: metadata.content_length(), tag: tag_of(metadata), ..Default::default() };
                let expected = seen.get_or_insert_with(|| object.clone());
                // Not every store heeds the condition.
                if *expected != object || tag.is_some() && object.tag != tag {
                    return Err(Error::new(opendal_core::ErrorKind::ConditionNotMatch, "the object has changed"));
                }
            }
            match piece {
                Ok(Some(buffer)) => {
                    if buffer.len() as u64 > len - done {
                        let what = format!("the answer has more than the {len} bytes that were asked for");
                        return Err(Trouble::Contradiction(what).into_error());
                    }
                    done += buffer.len() as u64;
                    let Some(object) = &seen else {
                        return Err(Trouble::Contradiction("the answer tells no object".to_owned()).into_error());
                    };
                    for bytes in buffer {
                        if !pieces.hand_over(object, bytes).await {
                            // The caller is gone, and hears nothing any more.
                            return Ok(object.clone());
                        }
                    }
                }
                Ok(None) => break None,
                Err(e) => break Some(e),
            }
        };
        let whole = seen.as_ref().map(|object| len.min(object.len.saturating_sub(offset)));
        let e = match (broken, seen.as_ref().filter(|_| Some(done) == whole)) {
            // That the object ends before the range does, the library takes for an error.
            (_, Some(object)) => return Ok(object.clone()),
            (Some(e), None) if seen.is_none() || Trouble::behind(&e).is_some() || is_answer(&e) => e,
            (_, None) => Trouble::Contradiction(format!("the answer ended after {done} of {len} bytes")).into_error(),
        };
        // What went wrong before an answer was accepted, the transport has tried again already.
        let within = reader.metadata().is_some() || matches!(Trouble::behind(&e), Some(Trouble::Contradiction(_)));
        // Without a tag, what comes next could be of another object.
        let same = done == 0 || seen.as_ref().is_some_and(|object| object.tag.is_some());
        match tries.next_pause(Duration::ZERO, deadline).filter(|_| within && same && e.is_temporary()) {
            Some(pause) => sleep(pause).await,
            None => return Err(e),
        }
    }
}

/// A page of a listing: one answer's, unless that has nothing but what is passed over.
async fn list(operator: Operator, prefix: String, after: Option<String>, max: usize) -> Outcome<ObjectPage> {
    let max = max.min(LIST_PAGE_MAX - 1);
    let limit = Some(max + 1);
    let options = ListOptions { recursive: true, start_after: after.clone(), limit, ..Default::default() };
    let mut lister = operator.lister_options(&prefix, options).await?;
    let mut page = ObjectPage::default();
    while let Some(entry) = lister.try_next().await? {
        let (key, metadata) = entry.into_parts();
        // What other programs keep as folders is no object here, and neither is a key that no call takes.
        let wanted = metadata.is_file() && key.starts_with(&prefix) && after.as_ref().is_none_or(|after| key > *after);
        if !wanted || check_object_key(&key).is_err() {
            continue;
        }
        if page.objects.len() == max {
            page.more = true;
            break;
        }
        page.objects.push(ListedObject { key, len: metadata.content_length(), tag: tag_of(&metadata) });
    }
    Ok(page)
}

impl Objects for S3Objects {
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
        self.check_key(key)?;
        let path = key.to_owned();
        self.call((LOOK, key), 0, false, move |operator, _| {
            let path = path.clone();
            async move { Ok(info_of(&operator.stat(&path).await?)) }
        })
    }

    fn put(&self, key: &str, content: Content<'_>, options: &PutOptions<'_>) -> Result<Stored> {
        self.check_key(key)?;
        check_user_metadata(options.metadata)?;
        self.upload(key, content, options)
    }

    fn delete(&self, key: &str) -> Result<()> {
        self.check_key(key)?;
        let path = key.to_owned();
        self.call(("delete object", key), 0, false, move |operator, _| {
            let path = path.clone();
            async move { operator.delete(&path).await }
        })
    }

    fn list(&self, prefix: &str, after: Option<&str>, max: usize) -> Result<ObjectPage> {
        check_object_prefix(prefix)?;
        if max == 0 {
            return Ok(ObjectPage { objects: Vec::new(), more: true });
        }
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        let subject = prefix.clone();
        self.call(("list objects", &subject), 0, false, move |operator, _| {
            list(operator, prefix.clone(), after.clone(), max)
        })
    }

    fn if_absent_is_atomic(&self) -> Option<bool> {
        match self.condition.load(Ordering::Relaxed) {
            condition::HEEDED => Some(true),
            condition::IGNORED => Some(false),
            _ => None,
        }
    }

    fn give_up_left(&self) -> Result<()> {
        self.give_up_left_uploads()
    }

    fn describe(&self) -> String {
        describe(&self.settings)
    }
}
