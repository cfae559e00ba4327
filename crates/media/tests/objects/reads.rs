//! What becomes of a read when the store or the network fails: right bytes, or an error of the right kind.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use adit_core::ErrorKind;
use adit_core::media::{Content, Objects, PutOptions};
use adit_media::objects::ObjectsOptions;
use adit_testkit::Rng;
use adit_testkit::objects::{FaultyS3, HttpFault};

use super::support::*;

#[test]
fn what_may_go_better_is_tried_again() {
    for fault in [
        HttpFault::Status(500, "InternalError"),
        HttpFault::Status(503, "SlowDown"),
        HttpFault::Status(429, "TooManyRequests"),
        HttpFault::Close,
        HttpFault::BreakBody(0),
        HttpFault::BreakBody(1234),
        HttpFault::StallBody(1234),
        HttpFault::Stall,
        HttpFault::Shorten(1234),
        HttpFault::WrongRange,
        HttpFault::IgnoreRange,
        HttpFault::Delay(Duration::from_millis(20)),
    ] {
        let (server, objects, bytes) = store_with(50_000);
        server.add(fault.clone(), "GET", "", 0, 2);
        let (got, object) = read(&objects, 10_000, 20_000).unwrap_or_else(|e| panic!("{fault:?}: {e}"));
        assert!(got == bytes[10_000..30_000] && object.len == 50_000, "{fault:?}");
        server.clear();
        server.add(fault.clone(), "HEAD", "", 0, 2);
        assert_eq!(objects.head("object").unwrap().len, 50_000, "{fault:?}");
    }
}

#[test]
fn a_range_that_breaks_off_goes_on_where_it_stopped() {
    let (server, objects, bytes) = store_with(50_000);
    server.add(HttpFault::BreakBody(12_000), "GET", "", 0, 1);
    assert!(read(&objects, 0, 50_000).unwrap().0 == bytes);
    let log = server.log();
    assert_eq!(log.len(), 2);
    let from: u64 = log[1].range.as_deref().unwrap()["bytes=".len()..].split('-').next().unwrap().parse().unwrap();
    assert!(from > 0 && from <= 12_000, "{:?}", log[1].range);

    // Never of two objects: the second request says which one it is about. It gets no answer until the object has changed.
    server.clear_log();
    server.add(HttpFault::BreakBody(12_000), "GET", "", 0, 1);
    server.add(HttpFault::Stall, "GET", "", 0, u64::MAX);
    let patience = ObjectsOptions { tries_max: 1000, deadline: Duration::from_secs(60), ..options(&server) };
    let objects = open(&server, &patience);
    let changed = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(&objects, 0, 50_000));
        while server.log().len() < 2 {
            std::thread::yield_now();
        }
        objects.put("object", Content::Bytes(&[7; 50_000]), &PutOptions::default()).unwrap();
        server.clear();
        reader.join().unwrap()
    });
    assert_eq!(changed.unwrap_err().kind(), ErrorKind::Stale);
}

#[test]
fn what_does_not_get_better_is_an_error_in_time() {
    for (fault, kind) in [
        (HttpFault::Status(500, "InternalError"), ErrorKind::Network),
        (HttpFault::Status(503, "SlowDown"), ErrorKind::Network),
        (HttpFault::Status(403, "AccessDenied"), ErrorKind::PermissionDenied),
        (HttpFault::Status(404, "NoSuchKey"), ErrorKind::NotFound),
        (HttpFault::Status(404, "NoSuchBucket"), ErrorKind::NotFound),
        (HttpFault::Status(301, "PermanentRedirect"), ErrorKind::InvalidInput),
        (HttpFault::Close, ErrorKind::Network),
        (HttpFault::BreakBody(0), ErrorKind::Network),
        (HttpFault::Stall, ErrorKind::TimedOut),
        (HttpFault::StallBody(100), ErrorKind::TimedOut),
        (HttpFault::WrongRange, ErrorKind::Corrupt),
        (HttpFault::IgnoreRange, ErrorKind::Corrupt),
    ] {
        let (server, objects, _) = store_with(50_000);
        server.add(fault.clone(), "GET", "", 0, u64::MAX);
        let e = read(&objects, 10_000, 20_000).unwrap_err();
        assert_eq!(e.kind(), kind, "{fault:?}: {e}");
        let text = e.to_string();
        assert!(text.starts_with("read object s3://bucket/root/object: "), "{text}");
        assert!(!text.contains("Credential=") && !text.contains("uthorization"), "{text}");
        assert!(server.log().len() <= 5, "{fault:?}: {} requests", server.log().len());
        server.clear();
        assert!(read(&objects, 0, 100).is_ok(), "{fault:?}: the store works again as soon as it does");
    }
}

#[test]
fn an_answer_that_is_too_short_every_time_is_no_short_object() {
    let (server, objects, _) = store_with(50_000);
    server.add(HttpFault::Shorten(0), "GET", "", 0, u64::MAX);
    assert!(read(&objects, 0, 20_000).is_err());
    // Of the whole object, as a store without ranges would send it.
    let e = read(&objects, 0, 50_000).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Network), "{e}");
}

#[test]
fn a_tag_that_lies_is_another_object() {
    let (server, objects, _) = store_with(50_000);
    let tag = objects.head("object").unwrap().tag;
    server.add(HttpFault::WrongTag, "GET", "", 0, 1);
    let e = objects.read_at("object", 0, &mut [0; 100], tag.as_ref()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Stale);
}

#[test]
fn flipped_bits_are_for_those_who_know_the_hash() {
    // Without a checksum nobody can see it here; what must not happen is that anything else goes wrong.
    let (server, objects, bytes) = store_with(50_000);
    server.add(HttpFault::FlipBit, "GET", "", 0, 1);
    let (got, _) = read(&objects, 0, 50_000).unwrap();
    assert_eq!(got.iter().zip(&bytes).filter(|(a, b)| a != b).count(), 1);
}

#[test]
fn nonsense_is_an_error() {
    let (server, objects, _) = store_with(10);
    server.add(HttpFault::Nonsense, "GET", "", 0, u64::MAX);
    let e = objects.list("", None, 10).unwrap_err();
    assert!(e.kind() == ErrorKind::InvalidInput && e.to_string().contains("check the endpoint"), "{e}");
    server.add(HttpFault::Nonsense, "POST", "", 0, u64::MAX);
    let large = vec![1; 11 << 20];
    assert!(objects.put("large", Content::Bytes(&large), &PutOptions::default()).is_err());
    assert_eq!(server.bytes("root/large"), None);
}

#[test]
fn reads_go_side_by_side_within_the_limit() {
    for limit in [64, 3] {
        let (server, _, bytes) = store_with(1 << 20);
        server.add(HttpFault::Hold, "GET", "", 0, u64::MAX);
        // Long enough for readers that wait for each other.
        let patient = Duration::from_secs(600);
        let options = ObjectsOptions { answer_timeout: patient, deadline: patient, ..options(&server) };
        let objects = open(&server, &ObjectsOptions { requests_at_once_max: limit, ..options });
        std::thread::scope(|scope| {
            for n in 0..32_usize {
                let (objects, bytes) = (&objects, &bytes);
                scope.spawn(move || {
                    let (got, _) = read(objects, n as u64 * 32_768, 32_768).unwrap();
                    assert!(got == bytes[n * 32_768..(n + 1) * 32_768]);
                });
            }
            // All of them, or all that may be: nobody answers before.
            server.wait_for_requests(limit.min(32) as u64);
            server.release();
        });
        assert!(server.requests_at_once_max() <= limit as u64, "{} at a time", server.requests_at_once_max());
    }
}

#[test]
fn a_server_that_goes_and_comes_back_is_found_again() {
    let (server, objects, bytes) = store_with(1 << 20);
    let (stop, wrong) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let (objects, bytes, stop, wrong) = (&objects, &bytes, &stop, &wrong);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                while !stop.load(Ordering::Relaxed) {
                    let offset = rng.below(1 << 20) as usize;
                    match read(objects, offset as u64, 10_000) {
                        Ok((got, _)) if got == bytes[offset..bytes.len().min(offset + 10_000)] => {}
                        Ok(_) => wrong.store(true, Ordering::Relaxed),
                        Err(e) => assert!(matches!(e.kind(), ErrorKind::Network | ErrorKind::TimedOut), "{e}"),
                    }
                }
            });
        }
        for _ in 0..5 {
            server.wait_for_requests(1);
            server.go_down();
            assert!(read(&objects, 0, 10).is_err(), "down is down");
            server.come_back();
            assert!(read(&objects, 0, 10).is_ok(), "and back is back, at once");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(!wrong.load(Ordering::Relaxed), "wrong bytes");
}

#[test]
fn nobody_listens() {
    keys();
    let endpoint = {
        let server = FaultyS3::start().unwrap();
        server.endpoint()
    };
    let server = FaultyS3::start().unwrap();
    let options = ObjectsOptions { endpoint: Some(endpoint), ..options(&server) };
    let objects = open(&server, &options);
    let e = objects.head("object").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Network, "{e}");
    assert!(e.to_string().contains("refused"), "{e}");
}
