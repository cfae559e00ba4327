//! Stores that want to be talked to in another way than was set up: in another region, with a checksum or without.

use adit_core::ErrorKind;
use adit_core::media::{Content, Objects, PutOptions, Stored};
use adit_media::objects::ObjectsOptions;
use adit_testkit::objects::{Checksums, Conditions, FaultyS3, HttpFault};

use super::support::*;

fn large() -> Vec<u8> {
    (0..11 << 20).map(|n: usize| (n ^ (n >> 9)) as u8).collect()
}

#[test]
fn what_is_stored_has_a_checksum_where_the_store_takes_it() {
    for checksums in [Checksums::Taken, Checksums::Needed, Checksums::NotImplemented] {
        let (server, objects) = store();
        server.set_checksums(checksums);
        for (key, bytes) in [("small", vec![1, 2, 3]), ("large", large())] {
            let stored = objects.put(key, Content::Bytes(&bytes), &IF_ABSENT).unwrap();
            assert!(matches!(stored, Stored::New(_)), "{checksums:?} {key}");
            assert!(server.bytes(&format!("root/{key}")).as_deref() == Some(&bytes[..]), "{checksums:?} {key}");
            objects.put(key, Content::Bytes(&bytes), &PutOptions::default()).unwrap();
        }
        assert_eq!(server.open_uploads(), 0);
        // The condition was not to blame.
        objects.put("other", Content::Bytes(b"x"), &IF_ABSENT).unwrap();
        assert_eq!(objects.if_absent_is_atomic(), Some(true), "{checksums:?}");
        let learnt = server.log().len();
        objects.put("next", Content::Bytes(b"x"), &IF_ABSENT).unwrap();
        assert_eq!(server.log().len(), learnt + 1, "{checksums:?}: what was found out is remembered");
    }
}

#[test]
fn a_store_that_knows_neither_checksums_nor_conditions_is_told_neither() {
    let (server, objects) = store();
    server.set_checksums(Checksums::NotImplemented);
    server.set_conditions(Conditions::NotImplemented);
    for (key, bytes) in [("small", vec![1, 2, 3]), ("large", large())] {
        assert!(matches!(objects.put(key, Content::Bytes(&bytes), &IF_ABSENT).unwrap(), Stored::New(_)));
        assert!(server.bytes(&format!("root/{key}")).as_deref() == Some(&bytes[..]));
    }
}

#[test]
fn a_bucket_is_found_in_its_region() {
    type Call = fn(&dyn Objects) -> adit_core::Result<()>;
    let calls: [Call; 5] = [
        |objects| objects.head("object").map(drop),
        |objects| objects.read_at("object", 0, &mut [0; 4], None).map(drop),
        |objects| objects.list("", None, 10).map(drop),
        |objects| objects.put("new", Content::Bytes(b"x"), &IF_ABSENT).map(drop),
        |objects| objects.put("large", Content::Bytes(&large()), &PutOptions::default()).map(drop),
    ];
    for call in calls {
        let (server, objects) = store();
        server.store("root/object", b"1234");
        server.set_region("eu-central-1");
        call(&objects).unwrap();
        server.clear_log();
        objects.head("object").unwrap();
        assert_eq!(server.log().len(), 1, "where it is is remembered");
    }
}

#[test]
fn a_region_that_cannot_be_one_is_not_followed() {
    for region in ["evil.example.com/", "eu-west-1.", ""] {
        keys();
        let server = FaultyS3::start().unwrap();
        server.set_region(region);
        let objects = open(&server, &options(&server));
        let e = objects.list("", None, 10).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
        assert_eq!(server.log().len(), 1);
    }
    // And no store sends anybody round in circles.
    let (server, objects) = store();
    server.set_region("eu-west-1");
    server.add(HttpFault::Status(301, "PermanentRedirect"), "HEAD", "", 0, u64::MAX);
    assert!(objects.head("object").is_err());
    assert!(server.log().len() <= 3);
}

#[test]
fn whoever_pays_says_so_in_each_request() {
    for pays in [false, true] {
        keys();
        let server = FaultyS3::start().unwrap();
        let objects = open(&server, &ObjectsOptions { request_payer: pays, ..options(&server) });
        objects.put("object", Content::Bytes(b"content"), &PutOptions::default()).unwrap();
        let large = vec![7; 11 << 20];
        objects.put("large", Content::Bytes(&large), &PutOptions::default()).unwrap();
        read(&objects, 0, 7).unwrap();
        objects.head("object").unwrap();
        objects.list("", None, 10).unwrap();
        objects.delete("object").unwrap();
        let log = server.log();
        assert!(log.len() >= 8 && log.iter().all(|request| request.is_paid == pays), "{log:?}");
    }
}

#[test]
fn a_store_is_waited_for_as_long_as_the_call_may_take() {
    keys();
    let server = FaultyS3::start().unwrap();
    let objects = open(&server, &ObjectsOptions { tries_max: 0, ..options(&server) });
    objects.put("object", Content::Bytes(b"content"), &PutOptions::default()).unwrap();
    for fault in [HttpFault::Close, HttpFault::Status(503, "SlowDown"), HttpFault::Status(500, "InternalError")] {
        server.add(fault, "GET", "object", 0, 40);
        assert_eq!(read(&objects, 0, 7).unwrap().0, b"content");
    }
}
