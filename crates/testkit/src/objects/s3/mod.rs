//! A server of the S3 protocol on loopback, with one bucket in memory, as far as a client of objects needs it: it knows
//! ranges, conditions, multipart uploads and listings, and checks which access key a request is signed with (not the
//! signature: `xtask` runs the same tests against real servers).
//!
//! What it is for are [`HttpFault`]s: answers and ends of connections that no well-behaved server has.

mod answer;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Deref;
use std::sync::Arc;

use super::http::Request;
use super::server::{FaultyServer, RequestLog};

/// What the server makes of `If-None-Match` and `If-Match`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Conditions {
    /// What the protocol says.
    #[default]
    Heeded,
    /// Nothing, in silence.
    Ignored,
    /// A write with `If-None-Match` is answered with 501, `NotImplemented`; `If-Match` is heeded.
    NotImplemented,
}

/// What the server makes of checksums of what is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checksums {
    /// They may be there.
    #[default]
    Taken,
    /// They have to be there, as with Object Lock.
    Needed,
    /// A write with one is answered with 501, `NotImplemented`.
    NotImplemented,
}

#[derive(Clone)]
struct Object {
    bytes: Arc<[u8]>,
    tag: String,
    metadata: Vec<(String, String)>,
}

struct Upload {
    key: String,
    metadata: Vec<(String, String)>,
    parts: BTreeMap<u32, Arc<[u8]>>,
}

/// What the server has: one bucket.
#[derive(Default)]
pub struct Bucket {
    objects: BTreeMap<String, Object>,
    uploads: BTreeMap<u64, Upload>,
    numbers: u64,
    access_keys: BTreeSet<String>,
    expired_keys: BTreeSet<String>,
    conditions: Conditions,
    checksums: Checksums,
    /// Where the bucket is. Requests that are signed for another region are refused; with none, for no region.
    region: Option<&'static str>,
    /// Keys whose newest version marks a deletion, which counts for `If-None-Match` alone.
    deleted: BTreeSet<String>,
    /// Whether nobody may list: then nobody hears either that an object is missing.
    unlisted: bool,
    name: &'static str,
}

/// The server. It ends when this is dropped. A listing is `GET` of the empty key, parts of an upload are `PUT`, its beginning and its end
/// `POST`.
pub struct FaultyS3(FaultyServer<Bucket>);

impl Deref for FaultyS3 {
    type Target = FaultyServer<Bucket>;

    fn deref(&self) -> &FaultyServer<Bucket> {
        &self.0
    }
}

impl FaultyS3 {
    /// A server with an empty bucket, that takes requests signed with the access key `access`.
    pub fn start() -> io::Result<FaultyS3> {
        FaultyS3::with_bucket("bucket")
    }

    /// The same with a bucket of another name.
    pub fn with_bucket(name: &'static str) -> io::Result<FaultyS3> {
        let access_keys = BTreeSet::from(["access".to_owned()]);
        FaultyServer::with(Bucket { name, access_keys, ..Bucket::default() }).map(FaultyS3)
    }

    /// The name of its bucket.
    pub fn bucket(&self) -> &'static str {
        self.0.backend(|bucket| bucket.name)
    }

    /// Takes requests that are signed with this access key, too.
    pub fn accept_key(&self, access_key: &str) {
        self.0.backend(|bucket| {
            bucket.expired_keys.remove(access_key);
            bucket.access_keys.insert(access_key.to_owned())
        });
    }

    /// From now on, an access key is answered with `ExpiredToken`.
    pub fn expire_key(&self, access_key: &str) {
        self.0.backend(|bucket| {
            bucket.access_keys.remove(access_key);
            bucket.expired_keys.insert(access_key.to_owned())
        });
    }

    /// From now on, does this with conditions.
    pub fn set_conditions(&self, conditions: Conditions) {
        self.0.backend(|bucket| bucket.conditions = conditions);
    }

    /// From now on, does this with checksums.
    pub fn set_checksums(&self, checksums: Checksums) {
        self.0.backend(|bucket| bucket.checksums = checksums);
    }

    /// From now on, the bucket is in this region.
    pub fn set_region(&self, region: &'static str) {
        self.0.backend(|bucket| bucket.region = Some(region));
    }

    /// From now on, nobody may list the bucket. An object that is missing is answered as one that may not be had, as S3 does.
    pub fn forbid_listing(&self) {
        self.0.backend(|bucket| bucket.unlisted = true);
    }

    /// Puts an object there.
    pub fn store(&self, key: &str, bytes: &[u8]) {
        self.0.backend(|bucket| bucket.store(key, bytes.into(), Vec::new()));
    }

    /// Has the condition of a write take a key for taken, of which no object is there.
    pub fn mark_deleted(&self, key: &str) {
        self.0.backend(|bucket| bucket.deleted.insert(key.to_owned()));
    }

    /// Takes an object away.
    pub fn remove(&self, key: &str) -> bool {
        self.0.backend(|bucket| bucket.objects.remove(key).is_some())
    }

    /// The bytes of an object.
    pub fn bytes(&self, key: &str) -> Option<Arc<[u8]>> {
        self.0.backend(|bucket| bucket.objects.get(key).map(|object| object.bytes.clone()))
    }

    /// Forgets all of these, as a rule of the bucket does after some days.
    pub fn forget_uploads(&self) {
        self.0.backend(|bucket| bucket.uploads.clear());
    }

    /// Multipart uploads that were begun, and neither completed nor given up.
    pub fn open_uploads(&self) -> usize {
        self.0.backend(|bucket| bucket.uploads.len())
    }
}

/// What is noted of a request to a bucket.
fn log_of(request: &Request) -> RequestLog {
    RequestLog {
        method: request.method.clone(),
        key: request.key().to_owned(),
        query: request.query.clone(),
        range: request.header("range").map(str::to_owned),
        access_key: request.access_key().map(str::to_owned),
        is_paid: request.header("x-amz-request-payer") == Some("requester"),
    }
}
