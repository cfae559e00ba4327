//! Uploads in parts that broke off: the next try goes on with them, or has the store forget them.

use std::path::Path;

use adit_core::media::{Content, Objects, PutOptions, Stored};
use adit_media::objects::{ObjectsOptions, Owner, S3Objects};
use adit_testkit::objects::{FaultyS3, HttpFault};

use super::support::*;

const PART: usize = 5 << 20;
/// Three parts, and some bytes.
const LEN: usize = 3 * PART + 7;

fn content() -> Vec<u8> {
    (0..LEN).map(|n| (n ^ (n >> 11)) as u8).collect()
}

/// A store whose uploads are noted below `folder`, which sends one part after the other.
fn noting(server: &FaultyS3, folder: &Path) -> S3Objects {
    let owner = Owner { uploads: Some(folder.join("uploads")), ..Owner::default() };
    let options = ObjectsOptions { parts_at_once_max: 1, ..options(server) };
    S3Objects::open_for(server.bucket(), "root", &options, &owner).unwrap()
}

/// A server on which an upload broke off after so many parts, as if its process was killed.
fn broken_off(folder: &Path, key: &str, parts: u64) -> FaultyS3 {
    keys();
    let server = FaultyS3::start().unwrap();
    server.add(HttpFault::Close, "PUT", "", parts, u64::MAX);
    server.add(HttpFault::Close, "DELETE", "", 0, u64::MAX);
    put(&noting(&server, folder), key, &content()).unwrap_err();
    server.clear();
    server.clear_log();
    assert_eq!(server.open_uploads(), 1);
    server
}

fn put(objects: &S3Objects, key: &str, content: &[u8]) -> adit_core::Result<Stored> {
    objects.put(key, Content::Bytes(content), &PutOptions::default())
}

/// The numbers of the parts that came.
fn parts(server: &FaultyS3) -> Vec<String> {
    let log = server.log();
    let of_parts = log.iter().filter(|request| request.method == "PUT");
    let number = |query: &str| query.split('&').find_map(|pair| pair.strip_prefix("partNumber=").map(str::to_owned));
    of_parts.filter_map(|request| number(&request.query)).collect()
}

fn notes(folder: &Path) -> usize {
    std::fs::read_dir(folder.join("uploads")).map_or(0, Iterator::count)
}

#[test]
fn parts_that_are_there_are_not_sent_again() {
    for sent in 0..4 {
        let folder = tempfile::tempdir().unwrap();
        let server = broken_off(folder.path(), "object", sent);
        assert!(matches!(put(&noting(&server, folder.path()), "object", &content()).unwrap(), Stored::New(_)));
        let expected: Vec<String> = (sent + 1..=4).map(|number| number.to_string()).collect();
        assert_eq!(parts(&server), expected, "after {sent}");
        assert!(server.bytes("root/object").as_deref() == Some(&content()[..]));
        assert_eq!((server.open_uploads(), notes(folder.path())), (0, 0));
    }
}

/// What is sent under a key may be another thing now: of a part its bytes count, and nothing else.
#[test]
fn a_part_with_other_bytes_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let server = broken_off(folder.path(), "object", 2);
    let mut changed = content();
    changed[PART + 5] ^= 1;
    put(&noting(&server, folder.path()), "object", &changed).unwrap();
    assert_eq!(parts(&server), ["2", "3", "4"]);
    assert!(server.bytes("root/object").as_deref() == Some(&changed[..]));
    // Another object has nothing of it.
    let server = broken_off(folder.path(), "object", 2);
    put(&noting(&server, folder.path()), "other", &content()).unwrap();
    assert_eq!(parts(&server).len(), 4);
}

#[test]
fn an_upload_that_the_store_has_forgotten_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let server = broken_off(folder.path(), "object", 2);
    server.forget_uploads();
    put(&noting(&server, folder.path()), "object", &content()).unwrap();
    assert!(server.bytes("root/object").as_deref() == Some(&content()[..]));
    assert_eq!((server.open_uploads(), notes(folder.path())), (0, 0));
    // Likewise where a part of it is gone.
    let server = broken_off(folder.path(), "object", 3);
    server.add(HttpFault::Status(400, "InvalidPart"), "POST", "", 0, 1);
    put(&noting(&server, folder.path()), "object", &content()).unwrap();
    assert!(server.bytes("root/object").as_deref() == Some(&content()[..]));
    assert_eq!((server.open_uploads(), notes(folder.path())), (0, 0));
}

/// Nothing stays to be paid for, and nothing is sent for that.
#[test]
fn what_nobody_goes_on_with_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let server = broken_off(folder.path(), "some/ob ject", 2);
    let objects = noting(&server, folder.path());
    objects.give_up_left().unwrap();
    assert_eq!((server.open_uploads(), notes(folder.path())), (0, 0));
    assert!(parts(&server).is_empty(), "{:?}", server.log());
    assert_eq!(server.bytes("root/some/ob ject"), None);
    server.clear_log();
    objects.give_up_left().unwrap();
    assert!(server.log().is_empty());
    // One that cannot be told to the store stays noted.
    let server = broken_off(folder.path(), "object", 1);
    server.add(HttpFault::Status(403, "AccessDenied"), "DELETE", "", 0, 1);
    let objects = noting(&server, folder.path());
    objects.give_up_left().unwrap_err();
    assert_eq!((server.open_uploads(), notes(folder.path())), (1, 1));
    objects.give_up_left().unwrap();
    assert_eq!((server.open_uploads(), notes(folder.path())), (0, 0));
}

/// An upload with metadata may have had other metadata when it was begun.
#[test]
fn an_upload_with_metadata_is_not_noted() {
    keys();
    let (folder, server) = (tempfile::tempdir().unwrap(), FaultyS3::start().unwrap());
    server.add(HttpFault::Close, "PUT", "", 1, u64::MAX);
    server.add(HttpFault::Close, "DELETE", "", 0, u64::MAX);
    let options = PutOptions { metadata: &[("asset-root", "/a")], ..PutOptions::default() };
    noting(&server, folder.path()).put("object", Content::Bytes(&content()), &options).unwrap_err();
    assert_eq!(notes(folder.path()), 0);
}
