use adit_core::media::{Content, PutOptions};
use adit_testkit::objects::{MemoryObjects, ObjectCall, ObjectFault as Injected, ObjectFaults};

use super::*;

/// What was told, in the order of the keys.
#[derive(Default, Debug, PartialEq)]
struct Found {
    total: Option<(u64, u64)>,
    read: u64,
    sound: u64,
    damaged: Vec<String>,
    foreign: Vec<String>,
    gone: u64,
}

fn put(store: &MemoryObjects, key: &str, content: &[u8]) {
    store.put(key, Content::Bytes(content), &PutOptions::default()).unwrap();
}

fn run(objects: &dyn Objects) -> Result<Found> {
    let mut found = Found::default();
    check(objects, &DataKeys::default(), 4, &mut |told| {
        match told {
            Checked::Total { objects, bytes } => found.total = Some((objects, bytes)),
            Checked::Read(bytes) => found.read += bytes,
            Checked::Sound => found.sound += 1,
            Checked::Damaged { key, hash, error } => {
                assert_eq!(DataKeys::default().hash(key), Some(hash));
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                found.damaged.push(key.to_owned());
            }
            Checked::Foreign(key) => found.foreign.push(key.to_owned()),
            Checked::Gone => found.gone += 1,
        }
        ControlFlow::Continue(())
    })?;
    found.damaged.sort_unstable();
    Ok(found)
}

/// More than a page of objects, of which some are longer than a request.
#[test]
fn every_object_of_a_store_is_compared_with_its_key() {
    let (store, keys) = (MemoryObjects::new(), DataKeys::default());
    let mut bytes = 0;
    for at in 0..2 * PAGE_MAX as u32 + 7 {
        let content = at.to_le_bytes();
        bytes += content.len() as u64;
        let hash = ContentHash::of(&content);
        // Of older programs as well.
        put(&store, &if at % 3 == 0 { keys.bare_key(&hash) } else { keys.key(&hash) }, &content);
    }
    let long = vec![7; 2 * REQUEST_LEN_BYTES as usize + 5];
    put(&store, &keys.key(&ContentHash::of(&long)), &long);
    put(&store, &keys.key(&ContentHash::of(b"")), b"");
    // Of the same hash once more, beside it and wrong: each is looked at.
    let both = ContentHash::of(&long);
    put(&store, &keys.bare_key(&both), &long[1..]);
    let cut = ContentHash::of(b"all of it");
    put(&store, &keys.key(&cut), b"");
    put(&store, "Data/readme.txt", b"not ours");
    put(&store, "Data/below/99aa06d3014798d86001c324468d497f", b"not ours either");
    put(&store, "Manifests/99aa06d3014798d86001c324468d497f", b"elsewhere");
    let found = run(&store).unwrap();
    let bytes = bytes + 2 * long.len() as u64 - 1;
    let mut damaged = vec![keys.bare_key(&both), keys.key(&cut)];
    damaged.sort_unstable();
    let foreign = found.foreign.clone();
    assert_eq!(foreign.len(), 2, "{foreign:?}");
    let expected = Found {
        total: Some((2 * PAGE_MAX as u64 + 7 + 6, bytes)),
        read: bytes,
        sound: 2 * PAGE_MAX as u64 + 7 + 2,
        damaged,
        foreign,
        gone: 0,
    };
    assert_eq!(found, expected);
}

/// Who mends a store meanwhile does no damage, and what was removed is none.
#[test]
fn what_changes_meanwhile_is_no_damage() {
    /// Replaces one object while it is read, and removes another before.
    struct Changes(MemoryObjects, AtomicBool);
    impl Objects for Changes {
        fn read_at(
            &self,
            key: &str,
            offset: u64,
            buf: &mut [u8],
            tag: Option<&adit_core::media::Tag>,
        ) -> Result<adit_core::media::Fetched> {
            if offset > 0 && !self.1.swap(true, Ordering::Relaxed) {
                put(&self.0, key, &long());
            }
            self.0.read_at(key, offset, buf, tag)
        }
        fn head(&self, key: &str) -> Result<ObjectInfo> {
            self.0.head(key)
        }
        fn put(&self, _: &str, _: Content<'_>, _: &PutOptions<'_>) -> Result<adit_core::media::Stored> {
            unreachable!("a check only reads")
        }
        fn delete(&self, _: &str) -> Result<()> {
            unreachable!("a check only reads")
        }
        fn list(&self, prefix: &str, after: Option<&str>, max: usize) -> Result<adit_core::media::ObjectPage> {
            let page = self.0.list(prefix, after, max);
            self.0.delete(&DataKeys::default().key(&ContentHash::of(b"gone")))?;
            page
        }
        fn if_absent_is_atomic(&self) -> Option<bool> {
            None
        }
        fn describe(&self) -> String {
            self.0.describe()
        }
    }
    fn long() -> Vec<u8> {
        vec![9; REQUEST_LEN_BYTES as usize + 1]
    }
    let store = MemoryObjects::new();
    let key = |content: &[u8]| DataKeys::default().key(&ContentHash::of(content));
    let mut wrong = long();
    wrong[0] = 0;
    put(&store, &key(&long()), &wrong);
    put(&store, &key(b"stays"), b"stays");
    let found = run(&Changes(store.clone(), AtomicBool::new(false))).unwrap();
    assert_eq!((found.sound, found.damaged.len(), found.gone), (2, 0, 0));

    // One listing has it and the next has not; that nothing is there any more is told of whoever asks for it.
    put(&store, &key(b"gone"), b"gone");
    let found = run(&Changes(store, AtomicBool::new(true))).unwrap();
    assert_eq!((found.sound, found.damaged.len()), (2, 0));
}

#[test]
fn a_store_that_fails_or_a_caller_that_ends_it_ends_all_threads() {
    let store = MemoryObjects::new();
    for at in 0..3 * PAGE_MAX as u32 {
        put(&store, &DataKeys::default().key(&ContentHash::of(&at.to_le_bytes())), &at.to_le_bytes());
    }
    let faults = ObjectFaults::new();
    let objects = faults.wrap(Arc::new(store));
    for (call, skip) in [(ObjectCall::List, 0), (ObjectCall::List, 3), (ObjectCall::Read, 17)] {
        faults.add(Injected::UNAVAILABLE, &[call], "", skip, u64::MAX);
        assert_eq!(run(&objects).unwrap_err().kind(), ErrorKind::Network);
        faults.clear();
    }
    let ended = check(&objects, &DataKeys::default(), 4, &mut |_| ControlFlow::Break(()));
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Interrupted);
}
