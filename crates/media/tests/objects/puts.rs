//! What becomes of a put when the store or the network fails.

use std::time::Duration;

use adit_core::media::{Content, Objects, PutOptions, Stored, Withheld};
use adit_core::{ErrorKind, Result};
use adit_media::objects::{ObjectsOptions, S3Objects};
use adit_testkit::objects::{Conditions, HttpFault};

use super::support::*;

#[test]
fn a_store_that_ignores_the_condition_is_found_out() {
    let (server, objects) = store();
    server.set_conditions(Conditions::Ignored);
    assert_eq!(objects.if_absent_is_atomic(), None);
    assert!(matches!(objects.put("a", Content::Bytes(b"first"), &IF_ABSENT).unwrap(), Stored::New(_)));
    assert_eq!(objects.if_absent_is_atomic(), Some(false));
    assert_eq!(objects.put("a", Content::Bytes(b"second"), &IF_ABSENT).unwrap(), Stored::AlreadyThere { len: 5 });
    assert_eq!(&*server.bytes("root/a").unwrap(), b"first");
    // Also a change between two ranges is noticed, though the store does not look at the condition.
    let tag = objects.head("a").unwrap().tag;
    objects.put("a", Content::Bytes(b"other"), &PutOptions::default()).unwrap();
    let e = objects.read_at("a", 1, &mut [0; 2], tag.as_ref()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Stale);
}

#[test]
fn a_store_that_refuses_the_condition_is_asked_without_it() {
    let large = vec![1; 11 << 20];
    for content in [&b"small"[..], &large] {
        let (server, objects) = store();
        server.set_conditions(Conditions::NotImplemented);
        let put = |bytes| objects.put("a", Content::Bytes(bytes), &IF_ABSENT).unwrap();
        assert!(matches!(put(content), Stored::New(_)));
        assert_eq!(objects.if_absent_is_atomic(), Some(false));
        assert_eq!(put(b"another"), Stored::AlreadyThere { len: content.len() as u64 });
        assert!(server.bytes("root/a").as_deref() == Some(content));
        assert_eq!(server.open_uploads(), 0);
    }
}

#[test]
fn puts_survive_what_reads_survive() {
    for fault in [
        HttpFault::Status(500, "InternalError"),
        HttpFault::Status(503, "SlowDown"),
        HttpFault::Status(400, "RequestTimeout"),
        HttpFault::Status(200, "InternalError"),
        HttpFault::Close,
        HttpFault::DoneAndClose,
        HttpFault::Stall,
    ] {
        for (len, method) in [(1000, "PUT"), (11 << 20, "PUT"), (11 << 20, "POST")] {
            // An upload that was begun, and the answer lost, is begun again: nobody knows of the first.
            if method == "POST" && fault == HttpFault::DoneAndClose {
                continue;
            }
            // What says that it is busy in an answer that went well is the end of an upload only.
            if matches!(fault, HttpFault::Status(200, _)) && method == "PUT" {
                continue;
            }
            let (server, objects) = store();
            let bytes: Vec<u8> = (0..len).map(|n: usize| (n ^ (n >> 9)) as u8).collect();
            // One that stalls is waited for until what the system may hold back would have gone on a slow line.
            if fault != HttpFault::Stall || len < 10_000 {
                server.add(fault.clone(), method, "", 1, 2);
            }
            server.add(fault.clone(), method, "", 0, 1);
            let stored = objects.put("object", Content::Bytes(&bytes), &PutOptions::default());
            let stored = stored.unwrap_or_else(|e| panic!("{fault:?} {len} {method}: {e}"));
            assert!(matches!(stored, Stored::New(_)));
            assert!(server.bytes("root/object").as_deref() == Some(&bytes[..]), "{fault:?} {len} {method}");
            assert_eq!(server.open_uploads(), 0, "{fault:?} {len} {method}");
        }
    }
}

/// Who may not list is not told that an object is missing. Then the store decides, if it can.
#[test]
fn what_cannot_be_seen_is_stored_where_the_store_decides() {
    let large: Vec<u8> = vec![7; 11 << 20];
    for content in [&b"mine"[..], &large] {
        let (server, objects) = store();
        server.forbid_listing();
        let e = objects.head("object").unwrap_err();
        assert!(Withheld::is_behind(&e) && e.to_string().contains("missing, or not allowed"), "{e}");
        let put = |key| objects.put(key, Content::Bytes(content), &IF_ABSENT);
        assert!(matches!(put("object").unwrap(), Stored::New(_)));
        assert_eq!(put("object").unwrap(), Stored::AlreadyThere { len: content.len() as u64 });
        assert!(server.bytes("root/object").as_deref() == Some(content));
        // A store that cannot decide, and does not let us look, is not trusted with it.
        server.set_conditions(Conditions::Ignored);
        let objects = open(&server, &options(&server));
        put_with(&objects, "first").unwrap();
        let e = put_with(&objects, "second").unwrap_err();
        assert!(Withheld::is_behind(&e), "{e}");
        assert_eq!(server.bytes("root/second"), None);
    }
}

fn put_with(objects: &S3Objects, key: &str) -> Result<Stored> {
    objects.put(key, Content::Bytes(b"x"), &IF_ABSENT)
}

/// A version that marks a deletion is an object to the condition of some stores, and to nothing else.
#[test]
fn a_refusal_of_the_condition_is_no_proof_of_an_object() {
    let large: Vec<u8> = vec![7; 11 << 20];
    for content in [&b"mine"[..], &large] {
        let (server, objects) = store();
        objects.put("known", Content::Bytes(b"x"), &IF_ABSENT).unwrap();
        server.mark_deleted("root/object");
        server.clear_log();
        assert!(matches!(objects.put("object", Content::Bytes(content), &IF_ABSENT).unwrap(), Stored::New(_)));
        assert!(server.bytes("root/object").as_deref() == Some(content));
        if content.len() == 4 {
            assert_eq!(requests(&server), ["PUT root/object", "HEAD root/object", "PUT root/object"]);
        }
        server.clear_log();
        let again = objects.put("object", Content::Bytes(content), &IF_ABSENT).unwrap();
        assert_eq!(again, Stored::AlreadyThere { len: content.len() as u64 });
        // It was refused, and may not be looked at: nobody knows.
        server.mark_deleted("root/other");
        server.add(HttpFault::Status(403, ""), "HEAD", "other", 0, u64::MAX);
        let e = objects.put("other", Content::Bytes(content), &IF_ABSENT).unwrap_err();
        assert!(Withheld::is_behind(&e), "{e}");
    }
}

#[test]
fn a_put_whose_answer_was_lost_is_there_once() {
    let (server, objects) = store();
    objects.put("known", Content::Bytes(b"x"), &IF_ABSENT).unwrap();
    server.add(HttpFault::DoneAndClose, "PUT", "", 0, 1);
    let stored = objects.put("object", Content::Bytes(b"mine"), &IF_ABSENT).unwrap();
    // Tried again, it is refused: that the object is our own nobody knows, and it does not matter.
    assert_eq!(stored, Stored::AlreadyThere { len: 4 });
    assert_eq!(&*server.bytes("root/object").unwrap(), b"mine");
}

#[test]
fn the_lost_answer_to_the_end_of_an_upload_costs_another_upload() {
    let large: Vec<u8> = (0..11 << 20).map(|n: usize| (n ^ (n >> 9)) as u8).collect();
    for options in [PutOptions::default(), IF_ABSENT] {
        let (server, objects) = store();
        // The second request of that kind is the end of the upload; tried again, there is no upload any more.
        server.add(HttpFault::DoneAndClose, "POST", "", 1, 1);
        let stored = objects.put("object", Content::Bytes(&large), &options).unwrap();
        assert_eq!(stored == Stored::AlreadyThere { len: large.len() as u64 }, options.if_absent);
        assert!(server.bytes("root/object").as_deref() == Some(&large[..]));
        assert_eq!(server.open_uploads(), 0);
    }
}

#[test]
fn a_store_has_time_to_join_the_parts() {
    let (server, objects) = store();
    // Longer than any other answer may take.
    server.add(HttpFault::Delay(Duration::from_millis(1500)), "POST", "", 1, 1);
    let large = vec![1; 16 << 20];
    objects.put("object", Content::Bytes(&large), &PutOptions::default()).unwrap();
    let ends = requests(&server).iter().filter(|request| request.starts_with("POST")).count();
    assert_eq!(ends, 2, "one request begins the upload, and one ends it");
}

#[test]
fn an_upload_that_fails_leaves_nothing() {
    let large = vec![1; 21 << 20];
    for (fault, method, skip) in [
        (HttpFault::Status(403, "AccessDenied"), "PUT", 2),
        (HttpFault::Status(500, "InternalError"), "PUT", 1),
        (HttpFault::Stall, "PUT", 2),
        (HttpFault::Status(403, "AccessDenied"), "POST", 1),
        (HttpFault::Status(400, "InvalidPart"), "POST", 1),
    ] {
        let (server, _) = store();
        let tries_max = if fault == HttpFault::Stall { 1 } else { 3 };
        let objects = open(&server, &ObjectsOptions { tries_max, ..options(&server) });
        server.add(fault.clone(), method, "", skip, u64::MAX);
        assert!(objects.put("object", Content::Bytes(&large), &PutOptions::default()).is_err(), "{fault:?}");
        assert_eq!(server.bytes("root/object"), None);
        assert_eq!(server.open_uploads(), 0, "{fault:?} {method}: the upload is given up");
    }
}

#[test]
fn a_key_that_is_too_long_with_the_prefix_is_refused() {
    let (server, objects) = store();
    let long = "k".repeat(1020);
    let e = objects.put(&long, Content::Bytes(b"x"), &PutOptions::default()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput);
    objects.put(&long[..1019], Content::Bytes(b"x"), &PutOptions::default()).unwrap();
    assert!(server.bytes(&format!("root/{}", &long[..1019])).is_some());
}
