//! A store on WebDAV: the suite on the server of the test kit with each habit of servers, and every fault that a network has. Bytes that are
//! read are right, or there is an error of the right kind within the deadline; an object is there as a whole, or not at all.
#![cfg(feature = "objects")]

use std::io;
use std::time::Duration;

use adit_core::ErrorKind;
use adit_core::media::{Content, ContentSource, ObjectInfo, Objects, PutOptions, Stored};
use adit_media::objects::{Cancel, ObjectsOptions, Owner, StoreUrl, WebDavObjects, open_objects};
use adit_testkit::Rng;
use adit_testkit::objects::{FaultyWebDav, HttpFault, WebDavHabits, check_objects};

const IF_ABSENT: PutOptions<'static> = PutOptions { if_absent: true, metadata: &[] };
/// Longer than what is sent at once, in bytes.
const LARGE_LEN: usize = (6 << 20) + 11;

/// Short times, so that a test of the end of patience is soon over.
fn options() -> ObjectsOptions {
    ObjectsOptions {
        answer_timeout: Duration::from_secs(1),
        deadline: Duration::from_secs(10),
        tries_max: 4,
        pause_min: Duration::from_millis(2),
        pause_max: Duration::from_millis(20),
        part_len_bytes: 5 << 20,
        ..Default::default()
    }
}

fn open_for(server: &FaultyWebDav, options: &ObjectsOptions, owner: &Owner) -> WebDavObjects {
    let StoreUrl::WebDav(collection) = StoreUrl::parse(&server.url()).unwrap() else { panic!("{}", server.url()) };
    WebDavObjects::open_for(&collection, options, owner).unwrap()
}

fn open(server: &FaultyWebDav) -> WebDavObjects {
    open_for(server, &options(), &Owner::default())
}

fn with_habits(habits: WebDavHabits) -> (FaultyWebDav, WebDavObjects) {
    let server = FaultyWebDav::start().unwrap();
    server.set_habits(habits);
    let objects = open(&server);
    (server, objects)
}

/// A store with one object of `len` random bytes.
fn store_with(len: usize) -> (FaultyWebDav, WebDavObjects, Vec<u8>) {
    let (server, objects) = with_habits(WebDavHabits::default());
    let mut bytes = vec![0; len];
    Rng::new(len as u64).fill(&mut bytes);
    server.store("root/object", &bytes);
    (server, objects, bytes)
}

fn read(objects: &WebDavObjects, offset: u64, len: usize) -> adit_core::Result<(Vec<u8>, ObjectInfo)> {
    let mut buf = vec![0; len];
    let fetched = objects.read_at("object", offset, &mut buf, None)?;
    buf.truncate(fetched.count);
    Ok((buf, fetched.object))
}

fn put(objects: &WebDavObjects, key: &str, bytes: &[u8]) -> adit_core::Result<Stored> {
    objects.put(key, Content::Bytes(bytes), &PutOptions::default())
}

fn requests(server: &FaultyWebDav) -> Vec<String> {
    let key = |key: &str| if key.contains(".adit-") { "temporary".to_owned() } else { key.to_owned() };
    server.log().iter().map(|request| format!("{} {}", request.method, key(&request.key))).collect()
}

fn no_temporaries(server: &FaultyWebDav) {
    let left: Vec<_> = server.files().into_iter().filter(|path| path.contains(".adit-")).collect();
    assert_eq!(left, [""; 0]);
}

#[test]
fn servers_of_all_habits_pass_the_suite() {
    let none = WebDavHabits::default;
    for habits in [
        none(),
        WebDavHabits { ignores_overwrite: true, ..none() },
        WebDavHabits { weak_tags: true, absolute: true, ..none() },
        WebDavHabits { redirects: true, ..none() },
        WebDavHabits { no_ranges: true, ..none() },
        WebDavHabits { no_tags: true, ..none() },
        WebDavHabits { no_tags_in_properties: true, ..none() },
        WebDavHabits { no_tags_in_properties: true, no_ranges: true, ..none() },
    ] {
        let (server, objects) = with_habits(habits.clone());
        eprintln!("{habits:?}");
        check_objects(&objects);
        assert_eq!(objects.if_absent_is_atomic(), Some(false), "nobody promises that");
        assert_eq!(server.files(), [""; 0]);
        assert_eq!(objects.describe(), server.url());
    }
}

#[test]
fn a_store_is_opened_by_what_was_typed() {
    let server = FaultyWebDav::start().unwrap();
    server.store("root/a b/object", b"0123456789");
    let objects = open_objects(&format!("{}/a b/", server.url()), &options()).unwrap();
    assert_eq!(objects.head("object").unwrap().len, 10);
}

#[test]
fn one_request_answers_a_read_and_few_bytes_cost_few() {
    let (server, objects, bytes) = store_with(100_000);
    let (got, object) = read(&objects, 1000, 4096).unwrap();
    assert_eq!((got, object.len), (bytes[1000..5096].to_vec(), 100_000));
    assert_eq!(server.log().len(), 1);
    assert_eq!(server.log()[0].range.as_deref(), Some("bytes=1000-5095"));
    assert_eq!(server.bytes_sent(), 4096);
}

/// Once it is known that the server heeds the condition, nothing is asked before.
#[test]
fn an_object_gets_its_name_when_it_is_whole() {
    let (server, objects) = with_habits(WebDavHabits::default());
    objects.put("Data/first", Content::Bytes(b"x"), &IF_ABSENT).unwrap();
    no_temporaries(&server);
    server.clear_log();
    objects.put("Data/new", Content::Bytes(b"x"), &IF_ABSENT).unwrap();
    assert_eq!(requests(&server), ["PUT temporary", "PROPFIND temporary", "MOVE temporary"]);
    assert_eq!(objects.put("Data/new", Content::Bytes(b"y"), &IF_ABSENT).unwrap(), Stored::AlreadyThere { len: 1 });
    assert_eq!(server.bytes("root/Data/new").as_deref(), Some(&b"x"[..]));
    no_temporaries(&server);
}

#[test]
fn a_tag_is_the_time_and_the_length_where_there_is_no_other() {
    let (server, objects) = with_habits(WebDavHabits { no_tags: true, ..WebDavHabits::default() });
    server.store("root/object", &[7; 50_000]);
    let tag = objects.head("object").unwrap().tag;
    assert!(tag.is_some());
    let mut buf = [0; 10];
    assert_eq!(objects.read_at("object", 5, &mut buf, tag.as_ref()).unwrap().object.tag, tag);
    server.store("root/object", &[7; 50_001]);
    let e = objects.read_at("object", 5, &mut buf, tag.as_ref()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Stale);
}

/// What was told of an object by its properties is what it is read with.
#[test]
fn tags_that_come_with_the_content_alone_are_passed_over() {
    for no_ranges in [false, true] {
        let habits = WebDavHabits { no_tags_in_properties: true, no_ranges, ..WebDavHabits::default() };
        let (server, objects) = with_habits(habits);
        server.store("root/object", &[7; 50_000]);
        let mut buf = [0; 10];
        // Nothing was told before of what the properties have.
        let first = objects.read_at("object", 5, &mut buf, None).unwrap().object.tag;
        assert!(first.is_some());
        let told = objects.head("object").unwrap().tag;
        for tag in [&told, &first] {
            assert_eq!(objects.read_at("object", 5, &mut buf, tag.as_ref()).unwrap().object.tag, *tag);
        }
        assert_eq!(objects.read_at("object", 5, &mut buf, None).unwrap().object.tag, told);
        assert_eq!(objects.list("", None, 1).unwrap().objects[0].tag, told);
        server.store("root/object", &[8; 50_000]);
        for tag in [&told, &first] {
            let e = objects.read_at("object", 5, &mut buf, tag.as_ref()).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Stale);
        }
    }
}

#[test]
fn faults_that_pass_are_not_noticed() {
    let described = PutOptions { metadata: &[("asset-root", "/a")], ..Default::default() };
    for options in [PutOptions::default(), described] {
        faults_that_pass_are_not_noticed_by(&options);
    }
}

fn faults_that_pass_are_not_noticed_by(options: &PutOptions<'_>) {
    for fault in [
        HttpFault::Status(500, ""),
        HttpFault::Status(503, ""),
        HttpFault::Close,
        HttpFault::DoneAndClose,
        HttpFault::BreakBody(10),
        HttpFault::StallBody(10),
        HttpFault::Stall,
        HttpFault::IgnoreRange,
        HttpFault::Delay(Duration::from_millis(50)),
    ] {
        let (server, objects, bytes) = store_with(50_000);
        server.store("root/dir/other", b"");
        for method in ["GET", "PROPFIND", "PUT", "PROPPATCH", "MOVE", "MKCOL", "DELETE"] {
            server.add(fault.clone(), method, "", 0, 1);
        }
        assert_eq!(read(&objects, 10_000, 20_000).unwrap().0, bytes[10_000..30_000], "{fault:?}");
        objects.put("new/object", Content::Bytes(b"0123456789"), options).unwrap();
        assert_eq!(objects.head("new/object").unwrap().metadata.len(), options.metadata.len(), "{fault:?}");
        let page = objects.list("", None, 10).unwrap();
        let keys: Vec<_> = page.objects.iter().map(|object| object.key.as_str()).collect();
        assert_eq!(keys, ["dir/other", "new/object", "object"], "{fault:?}");
        objects.delete("new/object").unwrap();
        assert_eq!(server.files(), ["root/dir/other", "root/object"], "{fault:?}");
    }
}

#[test]
fn what_does_not_get_better_is_an_error_in_time() {
    for (fault, kind) in [
        (HttpFault::Status(500, ""), ErrorKind::Network),
        (HttpFault::Status(503, ""), ErrorKind::Network),
        (HttpFault::Status(403, ""), ErrorKind::PermissionDenied),
        (HttpFault::Status(401, ""), ErrorKind::PermissionDenied),
        (HttpFault::Status(404, ""), ErrorKind::NotFound),
        (HttpFault::Status(302, ""), ErrorKind::InvalidInput),
        (HttpFault::Status(423, ""), ErrorKind::Busy),
        (HttpFault::Close, ErrorKind::Network),
        (HttpFault::BreakBody(0), ErrorKind::Network),
        (HttpFault::Stall, ErrorKind::TimedOut),
        (HttpFault::StallBody(100), ErrorKind::TimedOut),
        (HttpFault::WrongRange, ErrorKind::Corrupt),
    ] {
        let (server, objects, _) = store_with(50_000);
        server.add(fault.clone(), "GET", "", 0, u64::MAX);
        let e = read(&objects, 10_000, 20_000).unwrap_err();
        assert_eq!(e.kind(), kind, "{fault:?}: {e}");
        assert!(e.to_string().starts_with(&format!("read object {}/object: ", server.url())), "{e}");
        server.clear();
        assert!(read(&objects, 0, 100).is_ok(), "{fault:?}: the store works again as soon as it does");
    }
}

#[test]
fn a_range_goes_on_with_the_same_object_only() {
    let (server, objects, bytes) = store_with(50_000);
    server.add(HttpFault::BreakBody(7_000), "GET", "", 0, 2);
    assert_eq!(read(&objects, 100, 40_000).unwrap().0, bytes[100..40_100]);
    let ranges: Vec<_> = server.log().into_iter().filter_map(|request| request.range).collect();
    assert_eq!(ranges, ["bytes=100-40099", "bytes=7100-40099", "bytes=14100-40099"]);
    server.add(HttpFault::BreakBody(7_000), "GET", "", 0, 1);
    server.add(HttpFault::WrongTag, "GET", "", 0, 1);
    assert_eq!(read(&objects, 100, 40_000).unwrap_err().kind(), ErrorKind::Stale);
}

/// Of a long object that comes whole, what is before is passed over, and what comes after is not waited for.
#[test]
fn a_server_without_ranges_gives_the_right_bytes() {
    let (server, objects, bytes) = store_with(LARGE_LEN);
    server.set_habits(WebDavHabits { no_ranges: true, ..WebDavHabits::default() });
    for (offset, len) in [(0, 100), (3_000_000, 100_000), (LARGE_LEN as u64 - 10, 100)] {
        let end = (offset as usize + len).min(LARGE_LEN);
        assert_eq!(read(&objects, offset, len).unwrap().0, bytes[offset as usize..end], "{offset}+{len}");
    }
    assert_eq!(read(&objects, LARGE_LEN as u64, 10).unwrap().0, b"");
    server.add(HttpFault::BreakBody(3_050_000), "GET", "", 0, 1);
    assert_eq!(read(&objects, 3_000_000, 100_000).unwrap().0, bytes[3_000_000..3_100_000]);
}

/// Readers of a server without ranges look whether it is an object, each with the answer in its hand.
#[test]
fn readers_of_a_server_without_ranges_do_not_wait_for_each_other() {
    for limit in [1, 4] {
        let (server, _, bytes) = store_with(1 << 20);
        server.set_habits(WebDavHabits { no_ranges: true, ..WebDavHabits::default() });
        server.add(HttpFault::Hold, "GET", "", 0, u64::MAX);
        let options = ObjectsOptions {
            requests_at_once_max: limit,
            answer_timeout: Duration::from_secs(600),
            // Readers that wait for each other wait that long.
            deadline: Duration::from_secs(20),
            ..options()
        };
        let objects = open_for(&server, &options, &Owner::default());
        std::thread::scope(|scope| {
            for n in 0..2 * limit {
                let (objects, bytes) = (&objects, &bytes);
                scope.spawn(move || {
                    let (got, _) = read(objects, n as u64 * 32_768, 32_768).unwrap();
                    assert!(got == bytes[n * 32_768..(n + 1) * 32_768]);
                });
            }
            server.wait_for_requests(limit as u64);
            server.release();
        });
    }
}

/// Between the answer and the look at what it is of, another object may have come.
#[test]
fn a_whole_answer_and_what_is_told_of_it_are_of_one_object() {
    let (server, objects, bytes) = store_with(50_000);
    for no_tags in [false, true] {
        server.set_habits(WebDavHabits { no_ranges: true, no_tags, ..WebDavHabits::default() });
        assert_eq!(read(&objects, 10_000, 20_000).unwrap().0, bytes[10_000..30_000]);
        server.add(HttpFault::Shorten(40_000), "GET", "", 0, 1);
        assert_eq!(read(&objects, 10_000, 20_000).unwrap_err().kind(), ErrorKind::Stale);
    }
    server.set_habits(WebDavHabits { no_ranges: true, ..WebDavHabits::default() });
    server.add(HttpFault::WrongTag, "GET", "", 0, 1);
    assert_eq!(read(&objects, 10_000, 20_000).unwrap_err().kind(), ErrorKind::Stale);
}

struct Pattern(u64);

impl ContentSource for Pattern {
    fn content_len(&self) -> u64 {
        self.0
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        for (at, byte) in (offset..).zip(buf) {
            *byte = (at % 251) as u8;
        }
        Ok(())
    }
}

#[test]
fn a_large_object_is_sent_again_from_its_beginning() {
    for fault in [HttpFault::Status(503, ""), HttpFault::Close, HttpFault::DoneAndClose, HttpFault::Stall] {
        let (server, objects) = with_habits(WebDavHabits::default());
        server.add(fault.clone(), "PUT", "", 0, 2);
        let content = Pattern(LARGE_LEN as u64);
        objects.put("new/large", Content::Source(&content), &PutOptions::default()).unwrap();
        let stored = server.bytes("root/new/large").unwrap();
        assert_eq!(stored.len(), LARGE_LEN, "{fault:?}");
        assert!(stored.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
        no_temporaries(&server);
    }
}

#[test]
fn what_is_not_stored_whole_is_not_stored() {
    let (server, objects) = with_habits(WebDavHabits { keeps_bytes_max: Some(5), ..WebDavHabits::default() });
    let e = put(&objects, "new", b"0123456789").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt);
    assert!(e.to_string().contains("took 10 bytes, and has 5"), "{e}");
    assert_eq!(server.files(), [""; 0]);
    server.set_habits(WebDavHabits::default());
    for method in ["PUT", "PROPFIND", "MOVE"] {
        server.add(HttpFault::Status(500, ""), method, ".adit-", 0, u64::MAX);
        assert_eq!(put(&objects, "new", b"0123456789").unwrap_err().kind(), ErrorKind::Network, "{method}");
        server.clear();
        assert_eq!(server.files(), [""; 0], "{method}");
    }
}

#[test]
fn what_nobody_tells_the_length_of_is_not_stored() {
    let (server, objects) = with_habits(WebDavHabits { no_lengths: true, ..WebDavHabits::default() });
    for options in [PutOptions::default(), IF_ABSENT] {
        let e = objects.put("new", Content::Bytes(b"0123456789"), &options).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotSupported, "{e}");
        assert!(e.to_string().contains("how long"), "{e}");
        assert_eq!(server.files(), [""; 0]);
    }
}

/// Where the first object with metadata is tried out, it has two names one after the other.
#[test]
fn a_second_temporary_goes_as_the_first() {
    let described = PutOptions { metadata: &[("asset-root", "/a")], ..Default::default() };
    for fault in [HttpFault::DoneAndClose, HttpFault::Status(500, ""), HttpFault::Status(409, "")] {
        let (server, objects) = with_habits(WebDavHabits::default());
        server.add(fault.clone(), "MOVE", "", 0, u64::MAX);
        objects.put("manifest", Content::Bytes(b"x"), &described).unwrap_err();
        assert_eq!(server.files(), [""; 0], "{fault:?}");
        server.clear();
        objects.put("manifest", Content::Bytes(b"x"), &described).unwrap();
        assert_eq!(server.files(), ["root/manifest"], "{fault:?}");
    }
}

/// What a server fails to tell of a collection: its properties come with a status that is no success, or do not come.
const UNTOLD: [&str; 5] = [
    "<D:propstat><D:prop><D:resourcetype/></D:prop><D:status>HTTP/1.1 403 Forbidden</D:status></D:propstat>",
    "<D:propstat><D:prop><D:resourcetype/></D:prop><D:status>HTTP/1.1 500 Internal Server Error</D:status></D:propstat>",
    "<D:propstat><D:prop><D:resourcetype/></D:prop></D:propstat>",
    "<D:propstat><D:prop><D:getetag>\"1\"</D:getetag></D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat>",
    "",
];

#[test]
fn what_is_not_told_to_be_an_object_is_none() {
    for told in UNTOLD {
        let (server, objects) = with_habits(WebDavHabits::default());
        server.store("root/dir/object", b"mine");
        objects.put("known", Content::Bytes(b"x"), &IF_ABSENT).unwrap();
        server.set_habits(WebDavHabits { collections_told_as: Some(told), ..WebDavHabits::default() });
        for e in [
            objects.head("dir").unwrap_err(),
            objects.delete("dir").unwrap_err(),
            put(&objects, "dir", b"x").unwrap_err(),
            objects.put("dir", Content::Bytes(b"x"), &IF_ABSENT).unwrap_err(),
            objects.list("", None, 10).unwrap_err(),
        ] {
            assert_eq!(e.kind(), ErrorKind::Corrupt, "{told}: {e}");
        }
        assert_eq!(server.files(), ["root/dir/object", "root/known"], "{told}");
    }
}

/// An object whose metadata come with this status.
macro_rules! object_with_metadata {
    ($status:literal) => {
        concat!(
            "<D:propstat><D:prop><D:resourcetype/><D:getcontentlength>1</D:getcontentlength></D:prop>",
            "<D:status>HTTP/1.1 200 OK</D:status></D:propstat><D:propstat><D:prop><metadata xmlns=\"urn:adit:objects\"/></D:prop>",
            "<D:status>HTTP/1.1 ",
            $status,
            "</D:status></D:propstat>"
        )
    };
}

#[test]
fn metadata_that_a_server_fails_to_tell_are_not_taken_for_none() {
    let head = |told: &'static str| {
        let (server, objects) = with_habits(WebDavHabits::default());
        server.store("root/dir/object", b"mine");
        server.set_habits(WebDavHabits { collections_told_as: Some(told), ..WebDavHabits::default() });
        objects.head("dir")
    };
    for told in [object_with_metadata!("500 Internal Server Error"), object_with_metadata!("503 Busy")] {
        let e = head(told).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
        assert!(e.to_string().contains("it answers 50"), "{e}");
    }
    // Of another property it says nothing about these.
    let other = "<D:propstat><D:prop><D:resourcetype/><D:getcontentlength>1</D:getcontentlength></D:prop>\
        <D:status>HTTP/1.1 200 OK</D:status></D:propstat><D:propstat><D:prop><D:getetag/></D:prop>\
        <D:status>HTTP/1.1 500 Internal Server Error</D:status></D:propstat>";
    for told in [object_with_metadata!("404 Not Found"), object_with_metadata!("501 Not Implemented"), other] {
        assert!(head(told).unwrap().metadata.is_empty());
    }
}

/// A `MOVE` with `Overwrite: T` does away with a collection and all that is in it.
#[test]
fn collections_are_never_replaced_or_removed() {
    for ignores_overwrite in [false, true] {
        let (server, objects) = with_habits(WebDavHabits { ignores_overwrite, ..WebDavHabits::default() });
        server.store("root/dir/object", b"mine");
        for options in [PutOptions::default(), IF_ABSENT] {
            let e = objects.put("dir", Content::Bytes(b"x"), &options).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::IsDirectory, "{e}");
        }
        // Also once it is known that the server heeds the condition.
        objects.put("known", Content::Bytes(b"x"), &IF_ABSENT).unwrap();
        assert_eq!(put(&objects, "dir", b"x").unwrap_err().kind(), ErrorKind::IsDirectory);
        objects.delete("dir").unwrap();
        assert_eq!(server.files(), ["root/dir/object", "root/known"]);
    }
}

#[test]
fn a_server_that_ignores_the_condition_is_found_out() {
    let (server, objects) = with_habits(WebDavHabits { ignores_overwrite: true, ..WebDavHabits::default() });
    objects.put("one", Content::Bytes(b"1"), &IF_ABSENT).unwrap();
    server.clear_log();
    server.store("root/two", b"theirs");
    assert_eq!(objects.put("two", Content::Bytes(b"2"), &IF_ABSENT).unwrap(), Stored::AlreadyThere { len: 6 });
    assert_eq!(requests(&server), ["PROPFIND root/two"], "it is looked before anything is sent");
    assert_eq!(server.bytes("root/two").as_deref(), Some(&b"theirs"[..]));
}

#[test]
fn metadata_that_are_not_kept_are_told_before_anything_is_seen() {
    let described = PutOptions { metadata: &[("asset-root", "/a")], ..Default::default() };
    let none = WebDavHabits::default;
    for habits in
        [WebDavHabits { refuses_properties: true, ..none() }, WebDavHabits { forgets_properties: true, ..none() }]
    {
        let (server, objects) = with_habits(habits);
        let e = objects.put("manifest", Content::Bytes(b"x"), &described).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotSupported, "{e}");
        assert!(e.to_string().contains("properties"), "{e}");
        assert_eq!(server.files(), [""; 0]);
        put(&objects, "plain", b"x").unwrap();
    }
    let (server, objects) = with_habits(none());
    objects.put("first", Content::Bytes(b"x"), &described).unwrap();
    server.clear_log();
    objects.put("manifest", Content::Bytes(b"x"), &described).unwrap();
    let moves = requests(&server).iter().filter(|request| request.starts_with("MOVE")).count();
    assert_eq!(moves, 1, "it is tried out once");
}

#[test]
fn a_root_that_is_not_there_is_named() {
    let server = FaultyWebDav::start().unwrap();
    let objects = open_objects(&server.url().replace("root", "other"), &options()).unwrap();
    for e in [
        objects.list("", None, 10).unwrap_err(),
        objects.list("prefix/", None, 10).unwrap_err(),
        objects.list("deep/prefix", None, 10).unwrap_err(),
        objects.put("a", Content::Bytes(b"x"), &PutOptions::default()).unwrap_err(),
        objects.put("a/b", Content::Bytes(b"x"), &PutOptions::default()).unwrap_err(),
    ] {
        assert_eq!(e.kind(), ErrorKind::NotFound);
        assert!(
            e.to_string().contains("/other") && e.to_string().contains("there is no such collection; make it"),
            "{e}"
        );
    }
    assert_eq!(server.files(), [""; 0]);
}

/// Large collections are asked for again for each page, and no more of them is kept.
#[test]
fn listings_have_pages_and_pass_over_what_is_no_object() {
    let (server, objects) = with_habits(WebDavHabits {
        more_members: "<D:response><D:href>/root/%ff</D:href></D:response><D:response><D:href>/root/gone</D:href>\
                       <D:status>HTTP/1.1 404 Not Found</D:status></D:response>",
        ..WebDavHabits::default()
    });
    for n in 0..30 {
        server.store(&format!("root/empty-{n:02}/x"), b"");
        server.remove_file(&format!("root/empty-{n:02}/x"));
        server.store(&format!("root/object-{n:02}"), b"x");
    }
    server.store("root/.adit-0123456789abcdef.tmp", b"left by a kill");
    let (mut listed, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = objects.list("", after.as_deref(), 7).unwrap();
        assert!(page.objects.len() <= 7);
        listed.extend(page.objects.into_iter().map(|object| object.key));
        if !page.more {
            break;
        }
        after = listed.last().cloned();
    }
    assert_eq!(listed, (0..30).map(|n| format!("object-{n:02}")).collect::<Vec<_>>());
    assert_eq!(objects.head(".adit-0123456789abcdef.tmp").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(put(&objects, ".adit-0123456789abcdef.tmp", b"x").unwrap_err().kind(), ErrorKind::InvalidInput);
}

/// A listing that leaves out what the server could not look at would be one of missing objects.
#[test]
fn what_a_listing_fails_to_tell_is_an_error() {
    for more_members in [
        "<D:response><D:href>/root/a</D:href><D:status>HTTP/1.1 403 Forbidden</D:status></D:response>",
        "<D:response><D:href>/root/a/</D:href><D:status>HTTP/1.1 500 Internal Server Error</D:status></D:response>",
        "<D:response><D:href>/root/a</D:href><D:status>HTTP/1.1 302 Found</D:status></D:response>",
        "<D:response><D:href>/root/a</D:href></D:response>",
        "<D:response><D:href>/root/</D:href><D:status>HTTP/1.1 507 Insufficient Storage</D:status></D:response>",
    ] {
        let (server, objects) = with_habits(WebDavHabits { more_members, ..WebDavHabits::default() });
        server.store("root/object", b"x");
        let e = objects.list("", None, 10).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{more_members}: {e}");
    }
    let gone = "<D:status>HTTP/1.1 404 Not Found</D:status>";
    let (server, objects) = with_habits(WebDavHabits { collections_told_as: Some(gone), ..WebDavHabits::default() });
    server.store("root/object", b"x");
    assert_eq!(objects.list("", None, 10).unwrap_err().kind(), ErrorKind::NotFound, "the root is gone");
}

#[test]
fn a_page_may_have_any_length() {
    let (_server, objects, _) = store_with(10);
    let page = objects.list("", None, usize::MAX).unwrap();
    assert_eq!((page.objects.len(), page.more), (1, false));
}

#[test]
fn what_a_listing_tells_of_other_places_is_refused() {
    for more_members in [
        "<D:response><D:href>/etc/passwd</D:href></D:response>",
        "<D:response><D:href>/root/../etc</D:href></D:response>",
        "<D:response><D:href>/root/%2e%2e/%2e%2e/etc</D:href></D:response>",
        "<D:response><D:href>http://other/root/a</D:href></D:response>",
        "<D:response><D:href>/root/a/deeper</D:href></D:response>",
        "<D:response><D:href>/root/a%2fb</D:href></D:response>",
        "<D:response><D:href>&entity;</D:href></D:response>",
        "<D:response>",
    ] {
        let (_server, objects) = with_habits(WebDavHabits { more_members, ..WebDavHabits::default() });
        let e = objects.list("", None, 10).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{more_members}: {e}");
    }
    let (server, objects, _) = store_with(10);
    server.add(HttpFault::Nonsense, "PROPFIND", "", 0, u64::MAX);
    assert_eq!(objects.list("", None, 10).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(objects.head("object").unwrap_err().kind(), ErrorKind::Corrupt);
    server.clear();
    server.add(HttpFault::Nonsense, "PROPFIND", "", 0, 1);
    assert_eq!(objects.list("", None, 10).unwrap().objects.len(), 1, "once is not always");
}

#[test]
fn who_asks_is_told_to_the_server_and_to_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "secret\n").unwrap();
    let (server, nobody, _) = store_with(10);
    server.set_habits(WebDavHabits { authorization: Some("Basic bWU6c2VjcmV0"), ..WebDavHabits::default() });
    let me =
        ObjectsOptions { webdav_user: Some("me".to_owned()), webdav_password_file: Some(file.clone()), ..options() };
    let objects = open_for(&server, &me, &Owner::default());
    assert_eq!(read(&objects, 0, 10).unwrap().0.len(), 10);
    put(&objects, "new", b"x").unwrap();
    assert_eq!(objects.list("", None, 10).unwrap().objects.len(), 2);
    assert!(!objects.describe().contains("secret"));
    std::fs::write(&file, "wrong-secret\n").unwrap();
    for objects in [nobody, open_for(&server, &me, &Owner::default())] {
        for e in [
            read(&objects, 0, 10).unwrap_err(),
            objects.head("object").unwrap_err(),
            put(&objects, "other", b"x").unwrap_err(),
            objects.list("", None, 10).unwrap_err(),
        ] {
            assert_eq!(e.kind(), ErrorKind::PermissionDenied);
            assert!(e.to_string().contains("401") && e.to_string().contains("ADIT_WEBDAV_USER"), "{e}");
            assert!(!e.to_string().contains("secret") && !e.to_string().contains("Basic"), "{e}");
        }
    }
}

/// Whatever a call waits for, and whoever makes it later.
#[test]
fn calls_end_when_they_are_told_to() {
    type Call = fn(&WebDavObjects) -> adit_core::Result<()>;
    let calls: [(&str, Call); 6] = [
        ("GET", |objects| objects.read_at("object", 0, &mut [0; 4], None).map(drop)),
        ("PROPFIND", |objects| objects.head("object").map(drop)),
        ("PROPFIND", |objects| objects.list("", None, 4).map(drop)),
        ("PUT", |objects| put(objects, "new", b"x").map(drop)),
        ("MOVE", |objects| put(objects, "new", b"x").map(drop)),
        ("PUT", |objects| put(objects, "large", &vec![1; LARGE_LEN]).map(drop)),
    ];
    for (method, call) in calls {
        let (server, cancel) = (FaultyWebDav::start().unwrap(), Cancel::default());
        let never = Duration::from_secs(3600);
        let options = ObjectsOptions { answer_timeout: never, deadline: never, ..options() };
        let objects = open_for(&server, &options, &Owner { cancel: cancel.clone(), ..Owner::default() });
        server.add(HttpFault::Stall, method, "", 0, u64::MAX);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| call(&objects).unwrap_err().kind());
            server.wait_for_request(method, "");
            cancel.cancel();
            assert_eq!(waits.join().unwrap(), ErrorKind::Interrupted, "{method}");
        });
        no_temporaries(&server);
        assert_eq!(call(&objects).unwrap_err().kind(), ErrorKind::Interrupted, "{method}");
    }
}
