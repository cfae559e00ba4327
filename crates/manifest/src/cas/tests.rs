use std::io::Read;

use adit_core::media::{Content, PutOptions};
use adit_testkit::Rng;
use adit_testkit::objects::{MemoryObjects, ObjectCall, ObjectFault as Injected, ObjectFaults};

use super::*;
use crate::format::Source;

const MIB: u64 = 1 << 20;

struct World {
    memory: MemoryObjects,
    faults: ObjectFaults,
    source: ObjectSource,
    content: Vec<u8>,
    id: ObjectId,
}

/// A store with one object of so many bytes.
fn world(len: u64) -> World {
    let (memory, faults) = (MemoryObjects::new(), ObjectFaults::new());
    let mut content = vec![0; len as usize];
    Rng::new(len).fill(&mut content);
    let id = ObjectId { hash: ContentHash::of(&content), len };
    let source = ObjectSource::new(Arc::new(faults.wrap(Arc::new(memory.clone()))), DataKeys::default());
    put(&memory, &DataKeys::default().key(&id.hash), &content);
    World { memory, faults, source, content, id }
}

fn put(memory: &MemoryObjects, key: &str, content: &[u8]) {
    memory.put(key, Content::Bytes(content), &PutOptions::default()).unwrap();
}

impl World {
    fn fetch(&self, range: Range<u64>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.source.fetch(&self.id, range, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes)
    }

    fn fault(&self) -> ObjectFault {
        let e = self.fetch(0..self.id.len).unwrap_err();
        let fault = e.cause().and_then(|cause| cause.downcast_ref::<ObjectFault>());
        fault.unwrap_or_else(|| panic!("{e}")).clone()
    }
}

#[test]
fn keys_are_those_of_the_official_package() {
    let hash = ContentHash::of(b"");
    assert_eq!(DataKeys::default().key(&hash), "Data/99aa06d3014798d86001c324468d497f.xxh128");
    for folder in ["a/Data", "a/Data/"] {
        let keys = DataKeys::new(folder).unwrap();
        assert_eq!(keys.key(&hash), format!("a/Data/{hash}.xxh128"));
        assert_eq!(keys.bare_key(&hash), format!("a/Data/{hash}"));
    }
    assert_eq!(DataKeys::new("").unwrap().key(&hash), format!("{hash}.xxh128"));
    for folder in ["/a", "../a", "a//b", "a/.."] {
        assert_eq!(DataKeys::new(folder).unwrap_err().kind(), ErrorKind::InvalidInput, "{folder}");
    }
}

/// Bytes of a request, and of what takes many.
const PART: u64 = REQUEST_LEN_BYTES;
const LONG: u64 = 10 * PART;

#[test]
fn ranges_come_whole_and_in_order() {
    let world = world(20 * MIB + 5);
    for range in [0..1, 5..5 + MIB, 7..7 + MIB + 1, 0..world.id.len, 3 * MIB..20 * MIB + 5] {
        let expected = &world.content[range.start as usize..range.end as usize];
        assert!(world.fetch(range.clone()).unwrap() == expected, "{range:?}");
    }
}

/// A long range takes as many requests as it has parts, several at once, and never more than the limit.
#[test]
fn long_ranges_are_got_by_several_requests_at_a_time() {
    let world = world(LONG);
    world.faults.always(Injected::Hold, &[ObjectCall::Read]);
    std::thread::scope(|scope| {
        let fetch = scope.spawn(|| world.fetch(0..LONG));
        world.faults.wait_for_held(parts::AT_ONCE_MAX as u64);
        world.faults.clear();
        assert!(fetch.join().unwrap().unwrap() == world.content);
    });
    let stats = world.faults.stats();
    assert_eq!((stats.reads, stats.bytes_read), (LONG / PART, LONG));
    assert_eq!(stats.calls_at_once_max, parts::AT_ONCE_MAX as u64);
}

#[test]
fn an_error_of_one_request_is_that_of_the_fetch() {
    let world = world(LONG);
    for skip in [0, 5, LONG / PART - 1] {
        world.faults.add(Injected::UNAVAILABLE, &[ObjectCall::Read], "", skip, 1);
        assert_eq!(world.fetch(0..LONG).unwrap_err().kind(), ErrorKind::Network);
        world.faults.clear();
    }
    // What the sink says ends it, with few requests more.
    world.faults.reset_stats();
    let e = world.source.fetch(&world.id, 0..LONG, &mut |_| Err(ErrorKind::NoSpace.into())).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoSpace);
    assert!(world.faults.stats().reads <= parts::AT_ONCE_MAX as u64);
    assert!(world.fetch(0..LONG).unwrap() == world.content);
}

#[test]
fn a_sink_that_panics_leaves_no_thread_waiting() {
    let world = world(LONG);
    let fetch = || world.source.fetch(&world.id, 0..LONG, &mut |_| panic!("told to"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(fetch)).is_err());
    assert!(world.fetch(0..LONG).unwrap() == world.content);
}

/// A store that panics, as none should: nobody waits for ever.
#[test]
fn a_store_that_panics_leaves_nobody_waiting() {
    struct Panics(MemoryObjects);
    impl Objects for Panics {
        fn read_at(
            &self,
            key: &str,
            offset: u64,
            buf: &mut [u8],
            tag: Option<&adit_core::media::Tag>,
        ) -> Result<adit_core::media::Fetched> {
            assert_ne!(offset, 7 * PART, "told to");
            self.0.read_at(key, offset, buf, tag)
        }
        fn head(&self, key: &str) -> Result<adit_core::media::ObjectInfo> {
            self.0.head(key)
        }
        fn put(&self, key: &str, content: Content<'_>, options: &PutOptions<'_>) -> Result<adit_core::media::Stored> {
            self.0.put(key, content, options)
        }
        fn delete(&self, key: &str) -> Result<()> {
            self.0.delete(key)
        }
        fn list(&self, prefix: &str, after: Option<&str>, max: usize) -> Result<adit_core::media::ObjectPage> {
            self.0.list(prefix, after, max)
        }
        fn if_absent_is_atomic(&self) -> Option<bool> {
            None
        }
        fn describe(&self) -> String {
            self.0.describe()
        }
    }
    let world = world(LONG);
    let source = ObjectSource::new(Arc::new(Panics(world.memory.clone())), DataKeys::default());
    let fetch = || source.fetch(&world.id, 0..LONG, &mut |_| Ok(()));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(fetch)).is_err());
}

/// The key without the suffix is tried where the other is missing, and remembered.
#[test]
fn objects_under_their_bare_keys_are_found() {
    let world = world(100);
    let keys = DataKeys::default();
    put(&world.memory, &keys.bare_key(&world.id.hash), &world.content);
    world.memory.delete(&keys.key(&world.id.hash)).unwrap();
    for reads in [2, 1, 1] {
        world.faults.reset_stats();
        assert!(world.fetch(0..100).unwrap() == world.content);
        assert_eq!(world.faults.stats().reads, reads);
    }
    // Somebody has put it where it belongs, and taken the other one away.
    put(&world.memory, &keys.key(&world.id.hash), &world.content);
    world.memory.delete(&keys.bare_key(&world.id.hash)).unwrap();
    for reads in [2, 1] {
        world.faults.reset_stats();
        assert!(world.fetch(0..100).unwrap() == world.content);
        assert_eq!(world.faults.stats().reads, reads);
    }
}

/// An object that is gone is no absence of the file that needs it.
#[test]
fn a_missing_object_is_an_error_that_says_so() {
    let world = world(100);
    world.memory.delete(&DataKeys::default().key(&world.id.hash)).unwrap();
    let e = world.fetch(0..100).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Io);
    assert!(e.to_string().contains(&world.id.hash.to_string()), "{e}");
    assert_eq!(world.fault(), ObjectFault::Missing { store: "memory".to_owned(), answer: None });
    // What the store says of it is told: a bucket that is not there is no object to be uploaded again.
    world.faults.add(Injected::MISSING, &[ObjectCall::Read], ".xxh128", 0, 1);
    let e = world.fetch(0..100).unwrap_err();
    assert!(e.to_string().contains("(memory: an injected fault)"), "{e}");
    // Other failures stay what they are, whichever key they come for.
    world.faults.add(Injected::FORBIDDEN, &[ObjectCall::Read], ".xxh128", 0, 1);
    assert_eq!(world.fetch(0..100).unwrap_err().kind(), ErrorKind::PermissionDenied);
    world.faults.add(Injected::TIMED_OUT, &[ObjectCall::Read], "", 1, 1);
    assert_eq!(world.fetch(0..100).unwrap_err().kind(), ErrorKind::TimedOut);
}

/// Who may not list hears of a missing object that it may not be had, so it is looked for under its other key all the same.
#[test]
fn an_object_that_may_be_missing_is_looked_for_under_both_keys() {
    let world = world(100);
    world.memory.delete(&DataKeys::default().key(&world.id.hash)).unwrap();
    world.faults.forbid_listing();
    let e = world.fetch(0..100).unwrap_err();
    assert_eq!((e.kind(), Withheld::is_behind(&e)), (ErrorKind::PermissionDenied, true), "{e}");
    assert!(e.to_string().contains("missing, or not allowed"), "{e}");
    assert_eq!(world.faults.stats().reads, 2);
    put(&world.memory, &DataKeys::default().bare_key(&world.id.hash), &world.content);
    assert!(world.fetch(0..100).unwrap() == world.content);
}

#[test]
fn objects_of_another_length_are_refused() {
    let world = world(100);
    let key = DataKeys::default().key(&world.id.hash);
    put(&world.memory, &key, &world.content[..99]);
    assert_eq!(world.fault(), ObjectFault::Length { found: 99, expected: 100 });
    put(&world.memory, &key, &[world.content.clone(), vec![0]].concat());
    assert_eq!(world.fault(), ObjectFault::Length { found: 101, expected: 100 });
    put(&world.memory, &key, &world.content);
    world.faults.add(Injected::CutShort, &[ObjectCall::Read], "", 0, 1);
    let fault = world.fault();
    assert!(matches!(fault, ObjectFault::Short { .. } | ObjectFault::Length { .. }), "{fault:?}");
    assert!(world.fetch(0..100).unwrap() == world.content);
}

#[test]
fn each_damage_of_a_store_is_found_by_the_object() {
    let memory = MemoryObjects::new();
    let faults = ObjectFaults::new();
    let source = ObjectSource::new(Arc::new(faults.wrap(Arc::new(memory.clone()))), DataKeys::default());
    let ids: Vec<ObjectId> = (0..40u8)
        .map(|n| {
            let content = vec![n; 1000 + usize::from(n)];
            let hash = ContentHash::of(&content);
            memory.put(&DataKeys::default().key(&hash), Content::Bytes(&content), &PutOptions::default()).unwrap();
            ObjectId { hash, len: content.len() as u64 }
        })
        .collect();
    let find = || {
        let (mut sound, mut damaged) = (0, Vec::new());
        let found = verify(&source, &ids, 3, &mut |verified| {
            match verified {
                Verified::Sound(_) => sound += 1,
                Verified::Damaged(id, _) => damaged.push(ids.iter().position(|other| other == id).unwrap()),
            }
            std::ops::ControlFlow::Continue(())
        });
        damaged.sort_unstable();
        found.map(|()| (sound, damaged))
    };
    assert_eq!(find().unwrap(), (40, vec![]));
    let key = |n: usize| DataKeys::default().key(&ids[n].hash);
    memory.delete(&key(3)).unwrap();
    assert!(memory.rot(&key(7), |bytes| bytes[5] ^= 1));
    assert!(memory.rot(&key(9), |bytes| bytes.truncate(9)));
    assert_eq!(find().unwrap(), (37, vec![3, 7, 9]));
    // To who may not list, what is missing is as good as forbidden: it is told, and the rest is compared.
    faults.forbid_listing();
    assert_eq!(find().unwrap(), (37, vec![3, 7, 9]));
    // A store that fails says nothing of its objects.
    faults.add(Injected::UNAVAILABLE, &[ObjectCall::Read], "", 5, 1);
    assert_eq!(find().unwrap_err().kind(), ErrorKind::Network);
    let ended = verify(&source, &ids, 3, &mut |_| std::ops::ControlFlow::Break(()));
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Interrupted);
}

fn document(world: &World) -> ObjectDocument {
    let objects = Arc::new(world.faults.wrap(Arc::new(world.memory.clone())));
    ObjectDocument::open(objects, &DataKeys::default().key(&world.id.hash)).unwrap()
}

#[test]
fn a_document_is_read_as_often_as_is_needed() {
    let world = world(9 * MIB + 5);
    let document = document(&world);
    assert_eq!(document.len_bytes(), Some(world.id.len));
    for _ in 0..2 {
        world.faults.reset_stats();
        let mut bytes = Vec::new();
        Source::open(&document).unwrap().read_to_end(&mut bytes).unwrap();
        assert!(bytes == world.content);
        assert_eq!((world.faults.stats().reads, world.faults.stats().bytes_read), (3, world.id.len));
    }
}

/// Also where a reading ends early, and where there is no room for all of it.
#[test]
fn a_document_that_is_kept_is_fetched_once() {
    let world = world(9 * MIB + 5);
    let read = |document: &ObjectDocument, len: u64| {
        world.faults.reset_stats();
        let mut bytes = Vec::new();
        Source::open(document).unwrap().take(len).read_to_end(&mut bytes).unwrap();
        assert!(bytes == world.content[..len as usize]);
        world.faults.stats().bytes_read
    };
    let len = world.id.len;
    let kept = document(&world).keeping_in(tempfile::tempfile().unwrap());
    let fetched = [10, 5 * MIB, len, len].map(|len| read(&kept, len));
    assert_eq!(fetched, [4 * MIB, 4 * MIB, MIB + 5, 0]);
    assert_eq!(kept.hash().unwrap(), world.id.hash);
    // A file that may not be written takes nothing.
    let full = document(&world).keeping_in(std::fs::File::open("/dev/null").unwrap());
    assert_eq!([read(&full, len), read(&full, len)], [len; 2]);
}

/// What comes of a document is of one object, or nothing comes.
#[test]
fn a_document_that_is_replaced_between_two_requests_is_stale() {
    let world = world(9 * MIB + 5);
    let document = document(&world);
    let origin = document.origin();
    assert_eq!(self::document(&world).origin(), origin);
    let mut reader = Source::open(&document).unwrap();
    let mut first = vec![0; 4 << 20];
    reader.read_exact(&mut first).unwrap();
    assert!(first == world.content[..4 << 20]);
    // The same bytes, in another object.
    put(&world.memory, &DataKeys::default().key(&world.id.hash), &world.content);
    for _ in 0..2 {
        let e = FsError::from(reader.read(&mut first).unwrap_err());
        assert_eq!(e.kind(), ErrorKind::Stale, "{e}");
        assert!(e.to_string().contains(&world.id.hash.to_string()), "{e}");
    }
    assert_ne!(self::document(&world).origin(), origin, "it is another one");
}

#[test]
fn a_document_of_which_too_little_comes_is_an_error() {
    let world = world(5 * MIB);
    let document = document(&world);
    for skip in [0, 1] {
        world.faults.add(Injected::CutShort, &[ObjectCall::Read], "", skip, 1);
        let mut bytes = Vec::new();
        let mut reader = Source::open(&document).unwrap();
        assert_eq!(reader.read_to_end(&mut bytes).unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
        assert_eq!(bytes.len() as u64, skip * 4 * MIB);
        // The next attempt goes on where the last good one ended.
        reader.read_to_end(&mut bytes).unwrap();
        assert!(bytes == world.content);
    }
    world.faults.add(Injected::UNAVAILABLE, &[ObjectCall::Read], "", 0, 1);
    let e = FsError::from(Source::open(&document).unwrap().read(&mut [0; 10]).unwrap_err());
    assert_eq!(e.kind(), ErrorKind::Network);
}
