use std::fs;
use std::path::Path;

use adit_core::media::ContentSource;
use adit_dir::DirStore;
use adit_testkit::objects::{MemoryObjects, ObjectCall, ObjectFault, ObjectFaults};

use super::*;
use crate::format::{Dialect, Format};
use crate::snapshot::{self, Filter};

/// A folder with its manifest, and a store for its objects.
struct World {
    dir: tempfile::TempDir,
    manifest: Manifest,
    memory: MemoryObjects,
    faults: ObjectFaults,
}

fn world(files: &[(&str, Vec<u8>)]) -> World {
    let dir = tempfile::tempdir().expect("a folder");
    for (name, content) in files {
        fs::write(dir.path().join(name), content).expect("a file");
    }
    let store = DirStore::open(dir.path(), true).expect("a folder");
    let format = Format::V2025(Dialect::G);
    let options = snapshot::Options { format, filter: &Filter::default(), threads: 2, known: None, names: None };
    let taken = snapshot::snapshot(&Tree::new(&store), b"/", &options, &mut |_| ControlFlow::Continue(()));
    let manifest = taken.expect("a manifest").manifest;
    World { dir, manifest, memory: MemoryObjects::new(), faults: ObjectFaults::new() }
}

impl World {
    /// An open file with this content.
    fn file(content: &[u8]) -> Arc<dyn StoreFile> {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("f"), content).expect("a file");
        let store = DirStore::open(dir.path(), true).expect("a folder");
        let tree = Tree::new(&store);
        let node = tree.resolve(b"f", Last::Keep).expect("the file");
        tree.store().open(node.ino(), Access::Read).expect("the file")
    }

    /// Uploads it, and returns what failed as well.
    fn upload(&self) -> (Result<Uploaded>, Vec<String>) {
        self.upload_as(false)
    }

    fn upload_as(&self, verify: bool) -> (Result<Uploaded>, Vec<String>) {
        self.upload_of(&Filter::default(), verify)
    }

    fn upload_of(&self, filter: &Filter, verify: bool) -> (Result<Uploaded>, Vec<String>) {
        let store = DirStore::open(self.dir.path(), true).expect("a folder");
        let objects = self.faults.wrap(Arc::new(self.memory.clone()));
        let keys = DataKeys::default();
        let options = UploadOptions { objects: &objects, keys: &keys, filter, threads: 3, verify };
        let mut failed = Vec::new();
        let uploaded = upload(&Tree::new(&store), b"", &self.manifest, &options, &mut |event| {
            if let UploadEvent::Failed { path, error } = event {
                assert!(error.to_string().contains(&*String::from_utf8_lossy(path)), "{error}");
                failed.push(error.to_string());
            }
            ControlFlow::Continue(())
        });
        (uploaded, failed)
    }

    fn expect_all(&self) {
        for (path, body) in self.manifest.entries() {
            let Body::File(file) = body else { continue };
            let content =
                fs::read(self.dir.path().join(Path::new(&String::from_utf8_lossy(&path.to_listing()).into_owned())));
            let content = content.expect("the file");
            for (hash, piece) in file.content.hashes().iter().zip(content.chunks(CHUNK_LEN_BYTES as usize)) {
                let stored = self.memory.bytes(&DataKeys::default().key(hash)).expect("the object");
                assert!(*stored == *piece, "{path:?}");
            }
        }
    }
}

fn content(len: usize, seed: u64) -> Vec<u8> {
    let mut content = vec![0; len];
    adit_testkit::Rng::new(seed).fill(&mut content);
    content
}

#[test]
fn each_content_goes_once_and_is_not_sent_again() {
    let long = content(LARGE_MIN_BYTES as usize + 5, 1);
    let world = world(&[("a", content(10, 2)), ("b", content(10, 2)), ("long", long.clone()), ("empty", Vec::new())]);
    let (uploaded, failed) = world.upload();
    let all = 10 + long.len() as u64;
    assert_eq!(uploaded.unwrap(), Uploaded { stored: (3, all), ..Uploaded::default() });
    assert_eq!(failed, [""; 0]);
    world.expect_all();
    let puts = world.faults.stats().puts;
    let (again, _) = world.upload();
    assert_eq!(again.unwrap(), Uploaded { present: (3, all), ..Uploaded::default() });
    assert_eq!(world.faults.stats().puts, puts, "nothing was sent");
}

#[test]
fn what_changed_since_is_never_stored_under_the_old_hash() {
    for len in [10, LARGE_MIN_BYTES as usize + 5] {
        let world =
            world(&[("changed", content(len, 1)), ("short", content(len, 2)), ("gone", vec![3]), ("good", vec![4])]);
        fs::write(world.dir.path().join("changed"), content(len, 5)).unwrap();
        fs::write(world.dir.path().join("short"), content(len - 1, 2)).unwrap();
        fs::remove_file(world.dir.path().join("gone")).unwrap();
        let (uploaded, failed) = world.upload();
        assert_eq!(uploaded.unwrap(), Uploaded { stored: (1, 1), failed: 3, ..Uploaded::default() });
        assert!(
            failed.iter().any(|e| e.contains("/changed") && e.contains("not what the manifest says")),
            "{failed:?}"
        );
        assert!(failed.iter().any(|e| e.contains("/gone")), "{failed:?}");
        assert_eq!(world.memory.keys(), [DataKeys::default().key(&ContentHash::of(&[4]))]);
    }
}

/// Nothing but its bytes tells that a file changed: what is sent of it is given up before it is an object.
#[test]
fn what_is_sent_is_compared_on_its_way() {
    for len in [10, LARGE_MIN_BYTES as usize + 5] {
        let world = world(&[("changed", content(len, 1))]);
        let path = world.dir.path().join("changed");
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        fs::write(&path, content(len, 5)).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        let (uploaded, failed) = world.upload();
        assert_eq!(uploaded.unwrap(), Uploaded { failed: 1, ..Uploaded::default() });
        assert!(failed[0].contains("not what the manifest says"), "{failed:?}");
        assert!(world.memory.keys().is_empty() && world.faults.stats().puts == 1);
    }
}

#[test]
fn an_upload_that_is_ended_sends_no_more_of_an_object() {
    let file = World::file(&content(100, 1));
    let (is_over, read) = (AtomicBool::new(false), AtomicU64::new(0));
    let piece = Piece::new(&*file, 10, 50, ContentHash::of(&content(100, 1)[10..60]), (&is_over, &read));
    let mut buffer = [0; 30];
    // From the beginning again, as a store does that tries again.
    for _ in 0..2 {
        piece.read_exact_at(0, &mut buffer).unwrap();
    }
    piece.read_exact_at(30, &mut buffer[..20]).unwrap();
    assert_eq!((read.load(Ordering::Relaxed), buffer[..20] == content(100, 1)[40..60]), (80, true));
    assert!(piece.read_exact_at(51, &mut buffer[..1]).is_err(), "behind its end");
    assert!(piece.failure().is_none());
    // What is not read in order could not be compared.
    piece.read_exact_at(0, &mut buffer[..5]).unwrap();
    piece.read_exact_at(20, &mut buffer[..5]).unwrap_err();
    assert_eq!(piece.failure().unwrap().kind(), ErrorKind::NotSupported);
    is_over.store(true, Ordering::Relaxed);
    piece.read_exact_at(0, &mut buffer).unwrap_err();
    assert_eq!(piece.failure().unwrap().kind(), ErrorKind::Interrupted);
}

#[test]
fn only_what_is_wanted_goes() {
    let world = world(&[("a.txt", content(3000, 1)), ("b.txt", content(2000, 2)), ("c.bin", content(1000, 3))]);
    let filter = Filter::new(&["*.txt"], &["b.*"]).expect("patterns");
    let (uploaded, failed) = world.upload_of(&filter, false);
    assert_eq!((uploaded.unwrap().stored, failed), ((1, 3000), vec![]));
    assert!(world.memory.bytes(&DataKeys::default().key(&ContentHash::of(&content(3000, 1)))).is_some());
    assert_eq!(world.upload().0.unwrap().stored, (2, 3000));
}

#[test]
fn an_upload_that_broke_off_goes_on_where_it_was() {
    let files: Vec<_> = (0..20).map(|n| (format!("f{n:02}"), content(100 + n, n as u64))).collect();
    let named: Vec<(&str, Vec<u8>)> = files.iter().map(|(name, content)| (name.as_str(), content.clone())).collect();
    let world = world(&named);
    world.faults.add(ObjectFault::UNAVAILABLE, &[ObjectCall::Put], "", 9, u64::MAX);
    assert_eq!(world.upload().0.unwrap_err().kind(), ErrorKind::Network);
    world.faults.clear();
    let stored = world.memory.keys().len() as u64;
    assert_eq!(stored, 9);
    let uploaded = world.upload().0.unwrap();
    assert_eq!((uploaded.stored.0, uploaded.present.0), (20 - stored, stored));
    world.expect_all();
}

/// Who may not list is not told that an object is missing: it is stored, unless the store refuses that as well.
#[test]
fn what_cannot_be_seen_is_stored() {
    let world = world(&[("a", content(3000, 1)), ("b", content(9 << 20, 2))]);
    world.faults.forbid_listing();
    assert_eq!(world.upload().0.unwrap().stored.0, 2);
    world.expect_all();
    assert_eq!(world.upload().0.unwrap().present.0, 2);
    let other = self::world(&[("a", content(3000, 1))]);
    other.faults.forbid_listing();
    other.faults.always(ObjectFault::FORBIDDEN, &[ObjectCall::Put]);
    assert_eq!(other.upload().0.unwrap_err().kind(), ErrorKind::PermissionDenied);
}

#[test]
fn an_object_of_another_length_is_replaced() {
    let world = world(&[("a", content(10, 1))]);
    let key = DataKeys::default().key(&ContentHash::of(&content(10, 1)));
    world.memory.put(&key, Content::Bytes(b"torn"), &PutOptions::default()).unwrap();
    let uploaded = world.upload().0.unwrap();
    assert_eq!((uploaded.stored, uploaded.replaced), ((1, 10), (1, 10)));
    world.expect_all();
}

/// An object of another length that shows only when its place is to be taken.
#[test]
fn what_comes_meanwhile_has_to_have_the_length() {
    for (theirs, expected) in [
        (&b"torn"[..], Uploaded { stored: (1, 10), replaced: (1, 10), ..Uploaded::default() }),
        (&content(10, 1), Uploaded { present: (1, 10), ..Uploaded::default() }),
    ] {
        let world = world(&[("a", content(10, 1))]);
        let key = DataKeys::default().key(&ContentHash::of(&content(10, 1)));
        world.memory.put(&key, Content::Bytes(theirs), &PutOptions::default()).unwrap();
        world.faults.add(ObjectFault::MISSING, &[ObjectCall::Head], "", 0, 1);
        assert_eq!(world.upload().0.unwrap(), expected);
        world.expect_all();
    }
}

/// One of the right length is taken for what it should be, unless it is compared; and it stays if there is nothing better.
#[test]
fn a_wrong_object_of_the_right_length_is_replaced_if_what_is_there_is_verified() {
    for len in [10, LARGE_MIN_BYTES as usize + 5] {
        let world = world(&[("a", content(len, 1)), ("b", content(20, 2))]);
        world.upload().0.unwrap();
        let key = DataKeys::default().key(&ContentHash::of(&content(len, 1)));
        let mut wrong = content(len, 1);
        *wrong.last_mut().unwrap() ^= 1;
        world.memory.put(&key, Content::Bytes(&wrong), &PutOptions::default()).unwrap();
        let all = len as u64 + 20;
        assert_eq!(world.upload().0.unwrap(), Uploaded { present: (2, all), ..Uploaded::default() });
        let path = world.dir.path().join("a");
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        let write = |content: &[u8]| {
            fs::write(&path, content).unwrap();
            fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        };
        write(&content(len, 3));
        let (uploaded, failed) = world.upload_as(true);
        assert_eq!(uploaded.unwrap(), Uploaded { present: (1, 20), failed: 1, ..Uploaded::default() });
        assert!(failed[0].contains("/a"), "{failed:?}");
        assert!(world.memory.bytes(&key).is_some_and(|found| *found == *wrong));
        write(&content(len, 1));
        let once = (1, len as u64);
        let expected = Uploaded { stored: once, replaced: once, present: (1, 20), failed: 0 };
        assert_eq!(world.upload_as(true).0.unwrap(), expected);
        world.expect_all();
        assert_eq!(world.upload_as(true).0.unwrap(), Uploaded { present: (2, all), ..Uploaded::default() });
    }
}

#[test]
fn what_one_file_has_no_more_is_taken_from_another() {
    let world = world(&[("a", content(10, 1)), ("b", content(10, 1)), ("c", content(10, 1))]);
    fs::write(world.dir.path().join("a"), content(10, 2)).unwrap();
    fs::remove_file(world.dir.path().join("b")).unwrap();
    let (uploaded, failed) = world.upload();
    assert_eq!(uploaded.unwrap(), Uploaded { stored: (1, 10), failed: 2, ..Uploaded::default() });
    assert!(failed[0].contains("/a") && failed[1].contains("/b"), "{failed:?}");
    assert!(world.memory.bytes(&DataKeys::default().key(&ContentHash::of(&content(10, 1)))).is_some());
}
