//! Object stores over the network: the suite on the server of the test kit, and every fault that a network has. Bytes that are
//! read are right, or there is an error of the right kind within the deadline.
#![cfg(feature = "objects")]

#[path = "objects/puts.rs"]
mod puts;
#[path = "objects/reads.rs"]
mod reads;
#[path = "objects/resumed.rs"]
mod resumed;
#[path = "objects/support.rs"]
mod support;
#[path = "objects/tls.rs"]
mod tls;
#[path = "objects/ways.rs"]
mod ways;

use adit_core::ErrorKind;
use adit_core::media::{Content, Objects, PutOptions, Withheld};
use adit_media::objects::{Cancel, ObjectsOptions, Owner, S3Objects, open_objects};
use adit_testkit::objects::{FaultyS3, HttpFault, check_objects};

use self::support::*;

#[test]
fn the_server_of_the_test_kit_passes_the_suite() {
    let (server, objects) = store();
    check_objects(&objects);
    assert_eq!(objects.if_absent_is_atomic(), Some(true));
    assert_eq!(server.open_uploads(), 0, "uploads that fail are given up");
    let told = objects.describe();
    assert_eq!(told, format!("s3://bucket/root at {}", server.endpoint()));
}

#[test]
fn a_bucket_may_be_called_like_the_host() {
    keys();
    // The first part of 127.0.0.1, which is where the server is.
    let server = FaultyS3::with_bucket("127").unwrap();
    let objects = open(&server, &options(&server));
    objects.put("object", Content::Bytes(b"0123456789"), &PutOptions::default()).unwrap();
    assert_eq!(read(&objects, 2, 3).unwrap().0, b"234");
}

#[test]
fn listings_have_pages() {
    let (server, objects) = store();
    let keys: Vec<String> = (0..1100).map(|n| format!("many/{n:04}")).collect();
    std::thread::scope(|scope| {
        for keys in keys.chunks(100) {
            let objects = &objects;
            scope.spawn(move || {
                for key in keys {
                    objects.put(key, Content::Bytes(key.as_bytes()), &PutOptions::default()).unwrap();
                }
            });
        }
    });
    server.clear_log();
    let (mut listed, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = objects.list("many/", after.as_deref(), 100_000).unwrap();
        listed.extend(page.objects.into_iter().map(|object| object.key));
        if !page.more {
            break;
        }
        after = listed.last().cloned();
    }
    assert_eq!(listed, keys);
    assert_eq!(server.log().len(), 2, "one request for a page");
}

#[test]
fn one_request_answers_a_read_and_one_a_put() {
    let (server, objects, bytes) = store_with(100_000);
    let (got, object) = read(&objects, 1000, 4096).unwrap();
    assert_eq!((got, object.len), (bytes[1000..5096].to_vec(), 100_000));
    assert_eq!(server.log().len(), 1);
    assert_eq!(server.log()[0].range.as_deref(), Some("bytes=1000-5095"));
    assert_eq!(server.bytes_sent(), 4096, "a few bytes cost a few bytes");

    objects.put("new", Content::Bytes(b"x"), &IF_ABSENT).unwrap();
    server.clear_log();
    objects.put("newer", Content::Bytes(b"x"), &IF_ABSENT).unwrap();
    assert_eq!(
        requests(&server),
        ["PUT root/newer"],
        "once it is known that the store decides, nothing is asked before"
    );
}

#[test]
fn credentials_that_are_refused_are_said_to_be() {
    let (server, objects, _) = store_with(10);
    server.expire_key("access");
    let e = read(&objects, 0, 10).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::PermissionDenied);
    assert!(e.to_string().contains("ExpiredToken") && e.to_string().contains("get new ones"), "{e}");
    let e = objects.put("new", Content::Bytes(b"x"), &PutOptions::default()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::PermissionDenied);
}

/// An object that may be missing, for who may not list, is told from credentials that are no good where the answer has a body.
#[test]
fn an_object_that_may_be_missing_is_told_from_bad_credentials() {
    let (server, objects, _) = store_with(10);
    server.forbid_listing();
    assert_eq!(read(&objects, 0, 10).unwrap().0.len(), 10);
    let mut buf = [0; 4];
    let e = objects.read_at("missing", 0, &mut buf, None).unwrap_err();
    assert_eq!((e.kind(), Withheld::is_behind(&e)), (ErrorKind::PermissionDenied, true));
    assert!(e.to_string().contains("AccessDenied") && e.to_string().contains("missing, or not allowed"), "{e}");
    let e = objects.list("", None, 1).unwrap_err();
    assert_eq!((e.kind(), Withheld::is_behind(&e)), (ErrorKind::PermissionDenied, false));
    server.expire_key("access");
    let e = objects.read_at("missing", 0, &mut buf, None).unwrap_err();
    assert!(!Withheld::is_behind(&e), "{e}");
}

/// Whatever a call waits for, and whoever makes it later.
#[test]
fn calls_end_when_they_are_told_to() {
    type Call = fn(&S3Objects) -> adit_core::Result<()>;
    let calls: [(&str, Call); 5] = [
        ("GET", |objects| objects.read_at("object", 0, &mut [0; 4], None).map(drop)),
        ("HEAD", |objects| objects.head("object").map(drop)),
        ("PUT", |objects| objects.put("new", Content::Bytes(b"x"), &PutOptions::default()).map(drop)),
        ("DELETE", |objects| objects.delete("object")),
        ("PUT", |objects| objects.put("large", Content::Bytes(&vec![1; 11 << 20]), &PutOptions::default()).map(drop)),
    ];
    keys();
    for (method, call) in calls {
        let (server, cancel) = (FaultyS3::start().unwrap(), Cancel::default());
        let never = std::time::Duration::from_secs(3600);
        let options = ObjectsOptions { answer_timeout: never, deadline: never, ..options(&server) };
        let owner = Owner { cancel: cancel.clone(), ..Owner::default() };
        let objects = S3Objects::open_for(server.bucket(), "root", &options, &owner).unwrap();
        server.add(HttpFault::Stall, method, "", 0, u64::MAX);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| call(&objects).unwrap_err().kind());
            server.wait_for_request(method, "");
            cancel.cancel();
            assert_eq!(waits.join().unwrap(), ErrorKind::Interrupted, "{method}");
        });
        assert_eq!(server.open_uploads(), 0);
        assert_eq!(call(&objects).unwrap_err().kind(), ErrorKind::Interrupted, "{method}");
        assert!(!server.log().is_empty());
    }
}

#[test]
fn credentials_that_ran_out_are_read_again() {
    keys();
    let server = FaultyS3::start().unwrap();
    let rotate = |key: &str| {
        let text = format!("[rotating]\naws_access_key_id = {key}\naws_secret_access_key = s\naws_session_token = t\n");
        std::fs::write(credentials_file(), text).unwrap();
        server.accept_key(key);
    };
    rotate("first");
    let objects = open(&server, &ObjectsOptions { profile: Some("rotating".to_owned()), ..options(&server) });
    let large = vec![1; 11 << 20];
    let signed_with = |server: &FaultyS3| server.log().last().unwrap().access_key.clone().unwrap();
    objects.put("object", Content::Bytes(b"0123456789"), &PutOptions::default()).unwrap();
    assert_eq!(signed_with(&server), "first");
    for (key, before) in [("second", "first"), ("third", "second"), ("fourth", "third"), ("fifth", "fourth")] {
        server.expire_key(before);
        rotate(key);
        match key {
            "second" => assert_eq!(read(&objects, 2, 3).unwrap().0, b"234"),
            "third" => assert_eq!(objects.head("object").unwrap().len, 10),
            "fourth" => drop(objects.put("large", Content::Bytes(&large), &PutOptions::default()).unwrap()),
            _ => assert_eq!(objects.list("", None, 10).unwrap().objects.len(), 2),
        }
        assert_eq!(signed_with(&server), key);
    }
    assert!(server.bytes("root/large").as_deref() == Some(&large[..]));
    std::fs::remove_file(credentials_file()).unwrap();
}

#[test]
fn certificates_that_cannot_be_read_are_named() {
    let (server, _) = store();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("certificates.pem");
    let open = || {
        let options = ObjectsOptions { ca_bundle: Some(path.clone()), ..options(&server) };
        S3Objects::open(server.bucket(), "root", &options).map(|_| ()).unwrap_err()
    };
    let missing = open();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(missing.to_string().contains("certificates.pem"), "{missing}");
    std::fs::write(&path, "nothing of that kind").unwrap();
    let e = open();
    assert_eq!(e.kind(), ErrorKind::InvalidInput);
    assert!(e.to_string().contains("certificates.pem") && e.to_string().contains("PEM"), "{e}");
}

#[test]
fn unsigned_is_unsigned() {
    keys();
    let server = FaultyS3::start().unwrap();
    let objects = open(&server, &ObjectsOptions { anonymous: true, ..options(&server) });
    assert_eq!(objects.head("object").unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert!(server.log().iter().all(|request| request.access_key.is_none()));
}

#[test]
fn a_store_is_opened_by_what_was_typed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    for url in [path.to_owned(), format!("file://{path}")] {
        check_objects(&*open_objects(&url, &ObjectsOptions::default()).unwrap());
    }
    keys();
    let server = FaultyS3::start().unwrap();
    let objects = open_objects("s3://bucket/some/root", &options(&server)).unwrap();
    assert_eq!(objects.describe(), format!("s3://bucket/some/root at {}", server.endpoint()));
    assert!(open_objects("gs://bucket", &ObjectsOptions::default()).is_err());
}
