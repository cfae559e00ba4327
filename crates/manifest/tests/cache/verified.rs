//! Whether an object is what its hash says, who is told if not, and what a verified one is good for.

use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adit_core::error::ErrorKind;
use adit_manifest::cache::{Cache, CacheOptions, ObjectFault, ObjectId, Watch};

use crate::support::*;

#[derive(Default)]
struct Told(Mutex<Vec<ObjectId>>);

impl Watch for Told {
    fn quarantined(&self, id: &ObjectId) {
        self.0.lock().unwrap().push(*id);
    }
}

fn fault_of(e: &adit_core::FsError) -> Option<&ObjectFault> {
    e.cause()?.downcast_ref()
}

fn quarantined(dir: &tempfile::TempDir) -> usize {
    files(&dir.path().join("quarantine")).len()
}

/// Wrong once: it is put aside, told, and fetched again.
#[test]
fn wrong_content_is_put_aside_and_fetched_again() {
    for len in [5000, 600] {
        for strict in [false, true] {
            let (dir, source) = (folder(), Source::new());
            let id = source.add(len, 1);
            let told = Arc::new(Told::default());
            let cache = open(host(&dir), CacheOptions { strict, watch: Some(told.clone()), ..options() });
            source.act(&[Act::Flip]);
            // Who reads all of it at once gets the right bytes, strict or not.
            assert!(read(&cache.object(id), 0, len, &source).unwrap() == source.content(id));
            assert_eq!((*told.0.lock().unwrap()).as_slice(), [id]);
            assert_eq!((cache.stats().quarantined, quarantined(&dir)), (1, 1));
            read_all(&cache, id, 5000, &source);
            read_all(&cache, id, 900, &source);
            assert_eq!(source.fetched_bytes(), 2 * len as u64);
            assert_eq!(cache.stats().verified, 1);
            assert!(cache.object(id).state().verified);
        }
    }
}

/// Wrong twice: an error that says which object and what to do, until it is time to look again.
#[test]
fn content_that_stays_wrong_is_an_error() {
    for len in [5000, 600] {
        for strict in [false, true] {
            let (dir, source) = (folder(), Source::new());
            let id = source.add(len, 1);
            let options = CacheOptions { strict, retry_after: Duration::from_millis(300), ..options() };
            let cache = open(host(&dir), options);
            let object = cache.object(id);
            source.always(Act::Flip);
            let e = (0..3).find_map(|_| read(&object, 0, len, &source).err()).expect("wrong twice");
            assert_eq!(e.kind(), ErrorKind::Corrupt);
            assert_eq!(e.subject(), Some(id.hash.to_string().as_str()));
            assert!(matches!(fault_of(&e), Some(ObjectFault::Mismatch { .. })), "{e}");
            assert!(e.to_string().contains("upload the object again"), "{e}");
            assert_eq!((cache.stats().quarantined, quarantined(&dir)), (2, 2));
            assert_eq!(source.fetched_bytes(), 2 * len as u64);
            read(&object, 0, 1, &source).unwrap_err();
            object.prefetch(0..id.len, &source).unwrap_err();
            assert_eq!(source.fetched(), [], "it is left alone");
            // Repaired in the store.
            source.always(Act::Right);
            eventually("asked for again", || read(&object, 0, len, &source).is_ok());
            read_all(&cache, id, 900, &source);
        }
    }
}

#[test]
fn the_quarantine_does_not_grow() {
    let (dir, source) = (folder(), Source::new());
    let cache = open(host(&dir), options());
    source.always(Act::Flip);
    for n in 0..20 {
        let id = source.add(if n % 2 == 0 { 5000 } else { 600 }, n);
        let _ = read(&cache.object(id), 0, 5000, &source);
        let _ = read(&cache.object(id), 0, 5000, &source);
    }
    assert_eq!((cache.stats().quarantined, quarantined(&dir)), (40, 4));
}

/// No byte of an object that turns out wrong is handed out, also where nothing can be kept.
#[test]
fn strict_hands_out_no_byte_before_all_is_verified() {
    for limit_bytes in [u64::MAX, 0] {
        for len in [20_000, 600] {
            let (dir, source) = (folder(), Source::new());
            let id = source.add(len, 1);
            let cache = open(host(&dir), CacheOptions { strict: true, limit_bytes, ..options() });
            source.act(&[Act::Flip, Act::Flip]);
            let e = read(&cache.object(id), 0, 100, &source).unwrap_err();
            assert!(matches!(fault_of(&e), Some(ObjectFault::Mismatch { .. })), "{e}");
            let cache = open(host(&dir), CacheOptions { strict: true, limit_bytes, ..options() });
            source.fetched();
            assert!(read(&cache.object(id), 300, 100, &source).unwrap() == source.content(id)[300..400]);
            assert_eq!(source.fetched_bytes(), len as u64, "all of it, once");
        }
    }
}

/// What another process fetched is verified before a strict one reads of it.
#[test]
fn strict_verifies_what_others_fetched() {
    let (dir, source) = (folder(), Source::new());
    let id = source.add(20_000, 1);
    let loose = open(host(&dir), options());
    source.act(&[Act::Flip]);
    read(&loose.object(id), 0, 10_000, &source).unwrap();
    let strict = open(host(&dir), CacheOptions { strict: true, ..options() });
    assert!(read(&strict.object(id), 9000, 100, &source).unwrap() == source.content(id)[9000..9100]);
    assert_eq!(strict.stats().quarantined, 1);
    // The other one still has the file open that was put aside; what it reads from now on it finds by name.
    let again = open(host(&dir), options());
    read_all(&again, id, 20_000, &source);
}

fn bytes_of(fd: std::os::fd::OwnedFd) -> Vec<u8> {
    let mut bytes = Vec::new();
    std::fs::File::from(fd).read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_verified_object_is_an_open_file() {
    for len in [5000, 600] {
        let (dir, source) = (folder(), Source::new());
        let id = source.add(len, 1);
        let cache = open(host(&dir), options());
        let object = cache.object(id);
        assert!(object.verified_file().is_none());
        read(&object, 0, 10, &source).unwrap();
        assert_eq!(object.verified_file().is_some(), len == 600);
        read_all(&cache, id, 5000, &source);
        let fd = object.verified_file().unwrap();
        let mut file = std::fs::File::from(fd.try_clone().unwrap());
        file.seek(SeekFrom::Start(0)).unwrap();
        assert!(file.write(b"x").is_err(), "nobody writes through it");
        assert!(bytes_of(fd) == source.content(id));
        // A new process trusts no disk: it looks first.
        drop((object, cache));
        let cache = open(host(&dir), options());
        let object = cache.object(id);
        let fd = object.verified_file().or_else(|| object.verified_file()).unwrap();
        assert!(bytes_of(fd) == source.content(id));
        assert_eq!((cache.stats().verified, cache.stats().fetches), (0, 0), "checksums were enough");
        // One that was removed is none.
        for path in files(&dir.path().join("objects")) {
            std::fs::remove_file(path).unwrap();
        }
        assert!(object.verified_file().is_none());
    }
}

#[test]
fn verification_goes_on_in_the_background() {
    let (dir, source) = (folder(), Source::new());
    let ids: Vec<_> = (0..20).map(|n| source.add(30_000, n)).collect();
    let cache = open(host(&dir), CacheOptions { workers: 2, ..options() });
    for id in &ids {
        read_all(&cache, *id, 30_000, &source);
    }
    eventually("all are verified", || cache.stats().verified == 20);
    drop(cache);
    let cache = open(host(&dir), CacheOptions { workers: 2, ..options() });
    for id in &ids {
        eventually("it is compared with its checksums", || cache.object(*id).verified_file().is_some());
    }
    assert_eq!(cache.stats().fetches, 0);
}

/// Nobody reads all of a wrong object and ends well, strict or not: who comes to its end hears of it, and so does who reads on there.
#[test]
fn who_reads_to_the_end_hears_that_the_object_is_wrong() {
    for workers in [0, 2] {
        let (dir, source) = (folder(), Source::new());
        let id = source.add(30_000, 1);
        source.always(Act::Flip);
        let cache = open(host(&dir), CacheOptions { workers, ..options() });
        let object = cache.object(id);
        for _ in 0..3 {
            let read_on =
                |from: u64| (from..id.len).step_by(1000).try_for_each(|at| read(&object, at, 1000, &source).map(drop));
            assert_eq!(read_on(0).unwrap_err().kind(), ErrorKind::Corrupt);
            assert_eq!(read_on(29_000).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}

/// Blocks that came out of order, or by several processes.
#[test]
fn an_object_in_pieces_is_verified_as_a_whole() {
    let (dir, source) = (folder(), Source::new());
    let id = source.add(10 * 1024, 1);
    let caches: Vec<Cache> = (0..2).map(|_| open(host(&dir), options())).collect();
    for (n, block) in [9_u64, 2, 0, 7, 1, 3, 8, 4, 6, 5].into_iter().enumerate() {
        read(&caches[n % 2].object(id), block * 1024, 1, &source).unwrap();
    }
    assert_eq!(source.fetched_bytes(), id.len);
    for cache in &caches {
        let object = cache.object(id);
        assert!(object.state().verified || object.verified_file().is_some() || object.verified_file().is_some());
        read_all(cache, id, 10_000, &source);
    }
    assert_eq!(source.fetched(), []);
}

/// The kernel asks for several pieces at once. The end is not always the last to come: then whoever completes the object hears of it.
#[test]
fn whoever_completes_an_object_that_was_read_to_its_end_has_it_compared() {
    for workers in [0, 2] {
        let (dir, source) = (folder(), Source::new());
        let id = source.add(5000, 1);
        let cache = open(host(&dir), CacheOptions { workers, ..options() });
        let object = cache.object(id);
        read(&object, 0, 2000, &source).unwrap();
        source.hold(2500);
        std::thread::scope(|scope| {
            let late = scope.spawn(|| read(&object, 2100, 900, &source));
            source.wait_for_held(1);
            source.act(&[Act::Flip]);
            read(&object, 3072, 5000 - 3072, &source).unwrap();
            source.release();
            let e = late.join().unwrap().unwrap_err();
            assert!(matches!(fault_of(&e), Some(ObjectFault::Mismatch { .. })), "{e}");
        });
        // It is right by now, and nobody else is told.
        read_all(&cache, id, 900, &source);
    }
}
