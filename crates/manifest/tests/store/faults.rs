//! Objects that are not what they should be: right bytes, or an error that names the object and says what to do.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use adit_core::error::{ErrorKind, FsError};
use adit_core::media::Objects;
use adit_core::store::{Store, StoreFile};
use adit_index::Segment;
use adit_manifest::cache::{CacheOptions, ObjectFault as Wrong, ObjectId, Watch};
use adit_manifest::cas::DataKeys;
use adit_manifest::format::ContentHash;
use adit_manifest::store::ManifestStore;
use adit_testkit::objects::{ObjectCall, ObjectFault};
use adit_testkit::{Rng, seeds};

use crate::support::*;

fn fault_of(e: &FsError) -> Option<&Wrong> {
    e.cause()?.downcast_ref()
}

#[derive(Default)]
struct Told(Mutex<Vec<ObjectId>>);

impl Watch for Told {
    fn quarantined(&self, id: &ObjectId) {
        self.0.lock().unwrap().push(*id);
    }
}

/// A bit that flips on the way is noticed when the object is complete, told to whoever keeps bytes of it, and repaired.
#[test]
fn a_bit_that_flips_once_is_repaired() {
    for strict in [false, true] {
        let mut world = World::new();
        let content = world.add("d/f", 50_000);
        world.insert(b"same", file(50_000, adit_manifest::format::Content::Whole(ContentHash::of(&content))));
        world.add("other", 50_001);
        world.cache = CacheOptions { strict, ..world.cache.clone() };
        let told = Arc::new(Told::default());
        let store = world.mount_with(world.source(), Some(told.clone()));
        world.faults.add(ObjectFault::FlipBit, &[ObjectCall::Read], "", 0, 1);
        // At once, so nothing was given before it was known.
        assert!(read(&*open(&store, "d/f"), 0, 50_000).unwrap() == content);
        let told = told.0.lock().unwrap().clone();
        assert_eq!(told.len(), 1);
        let files = [find(&store, b"d/f").unwrap().ino, find(&store, b"same").unwrap().ino];
        let mut found = store.files_of(&told[0]).unwrap();
        found.sort();
        assert_eq!(found.len(), 2);
        assert!(files.iter().all(|ino| found.contains(ino)));
        assert!(read(&*open(&store, "d/f"), 0, 50_000).unwrap() == content);
    }
}

/// The last bytes are right when they are asked for once more, as the kernel does by itself after an error. What was read before was not,
/// and the copy must not end well.
#[test]
fn a_copy_does_not_end_well_because_its_end_was_asked_for_again() {
    let mut world = World::new();
    let content = world.add("f", 50_000);
    let store = world.mount();
    let file = open(&store, "f");
    world.faults.add(ObjectFault::FlipBit, &[ObjectCall::Read], "", 0, 1);
    let copy = |file: &dyn StoreFile| -> adit_core::Result<Vec<u8>> {
        let mut copy = Vec::new();
        for at in (0..50_000).step_by(5000) {
            copy.extend(read(file, at, 5000)?);
        }
        Ok(copy)
    };
    assert_eq!(copy(&*file).unwrap_err().kind(), ErrorKind::Corrupt);
    for _ in 0..3 {
        let e = read(&*file, 45_000, 5000).unwrap_err();
        assert!(matches!(fault_of(&e), Some(Wrong::Mismatch { .. })), "{e}");
    }
    // Who begins anew has right bytes, and so has who was given none before.
    assert!(read(&*open(&store, "f"), 45_000, 5000).unwrap() == content[45_000..]);
    assert!(copy(&*file).unwrap() == content);
    assert!(read(&*file, 45_000, 5000).unwrap() == content[45_000..]);
}

/// An object of one block is never handed out unverified, strict or not.
#[test]
fn an_object_that_stays_wrong_is_eio_with_its_name() {
    for (len, strict) in [(1000, false), (1000, true), (50_000, true)] {
        let mut world = World::new();
        let content = world.add("f", len);
        world.cache = CacheOptions { strict, retry_after: Duration::from_millis(200), ..world.cache.clone() };
        let hash = ContentHash::of(&content);
        let key = DataKeys::default().key(&hash);
        assert!(world.memory.rot(&key, |bytes| bytes[len / 2] ^= 1));
        let store = world.mount();
        let file = open(&store, "f");
        let e = read(&*file, 0, len).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt);
        assert!(matches!(fault_of(&e), Some(Wrong::Mismatch { .. })), "{e}");
        assert!(e.to_string().contains(&hash.to_string()), "{e}");
        // Other files are as they were, and this one recovers by itself when it is repaired.
        assert!(world.memory.rot(&key, |bytes| bytes[len / 2] ^= 1));
        let mut found = None;
        for _ in 0..600 {
            found = read(&*file, 0, len).ok();
            if found.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(found.expect("it recovers") == content);
    }
}

#[test]
fn missing_and_cut_objects_are_errors_of_their_own() {
    let mut world = World::new();
    let (gone, cut) = (world.add("gone", 20_000), world.add("cut", 30_000));
    world.add("there", 10_000);
    let keys = DataKeys::default();
    world.memory.delete(&keys.key(&ContentHash::of(&gone))).unwrap();
    world.memory.rot(&keys.key(&ContentHash::of(&cut)), |bytes| bytes.truncate(29_999));
    let store = world.mount();
    let e = read(&*open(&store, "gone"), 0, 10).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Io, "the file is there");
    assert!(matches!(fault_of(&e), Some(Wrong::Missing { .. })), "{e}");
    assert!(e.to_string().contains(&ContentHash::of(&gone).to_string()), "{e}");
    let e = read(&*open(&store, "cut"), 0, 10).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt);
    assert_eq!(fault_of(&e), Some(&Wrong::Length { found: 29_999, expected: 30_000 }));
    read(&*open(&store, "there"), 0, 10).unwrap();
}

/// Whatever the store does, and however often: right bytes or an error that says what happened; and afterwards all is well. Some
/// readers go on where they were, so that things are fetched ahead of them.
#[test]
fn a_store_that_fails_in_every_way_gives_no_wrong_byte() {
    let faults = [
        (ObjectFault::UNAVAILABLE, ErrorKind::Network),
        (ObjectFault::FORBIDDEN, ErrorKind::PermissionDenied),
        (ObjectFault::MISSING, ErrorKind::Io),
        (ObjectFault::TIMED_OUT, ErrorKind::TimedOut),
        (ObjectFault::BreakOff, ErrorKind::Network),
        (ObjectFault::CutShort, ErrorKind::Corrupt),
        (ObjectFault::WrongTag, ErrorKind::Corrupt),
        (ObjectFault::WrongLen, ErrorKind::Corrupt),
        (ObjectFault::Delay(Duration::from_millis(1)), ErrorKind::Corrupt),
        // Last: who is not strict may read it before it shows.
        (ObjectFault::FlipBit, ErrorKind::Corrupt),
    ];
    let (mut right, mut failed, mut ahead) = (0, 0, 0);
    for seed in seeds(30) {
        let mut rng = Rng::new(seed);
        let mut world = World::new();
        let strict = rng.percent(50);
        let files: Vec<_> = [500, 30_000, 90_000]
            .into_iter()
            .map(|len| (format!("f{len}"), world.add(&format!("f{len}"), len)))
            .collect();
        let retry_after = Duration::from_millis(1);
        world.cache = CacheOptions { strict, workers: 2, retry_after, ..world.cache.clone() };
        world.cache.limit_bytes = *rng.pick(&[u64::MAX, u64::MAX, 60_000, 0]);
        world.options.read_ahead_bytes = 8 * BLOCK;
        let source = Noted::new(world.source());
        let store = world.mount_with(source.clone(), None);
        let (mut expected, mut opened) = (Vec::new(), Vec::new());
        for _ in 0..6 {
            let (fault, kind) = rng.pick(&faults[..faults.len() - usize::from(!strict)]);
            expected.push(*kind);
            world.faults.add(*fault, &[ObjectCall::Read], "", rng.below(20), rng.below(6));
        }
        for _ in 0..10 {
            let (path, content) = rng.pick(&files);
            let file = open(&store, path);
            // As long as it is open, what is to be fetched ahead of it is not forgotten.
            opened.push(file.clone());
            let (mut at, len) = (rng.below(content.len() as u64) as usize, *rng.pick(&[1000, 10_000]));
            for _ in 0..6 {
                match read(&*file, at as u64, len) {
                    Ok(found) => {
                        assert!(found == content[at..content.len().min(at + len)], "seed {seed}");
                        right += 1;
                        at = content.len().min(at + len);
                    }
                    Err(e) => {
                        assert!(expected.contains(&e.kind()), "seed {seed}: {e}, and not one of {expected:?}");
                        assert!(e.to_string().contains(&ContentHash::of(content).to_string()), "seed {seed}: {e}");
                        failed += 1;
                    }
                }
            }
        }
        world.faults.clear();
        std::thread::sleep(Duration::from_millis(2));
        for (path, content) in &files {
            assert!(read(&*open(&store, path), 0, content.len()).unwrap() == *content, "seed {seed}: {path}");
            ahead += source
                .fetched(content, true)
                .iter()
                .map(|range| (range.end - range.start).div_ceil(BLOCK))
                .sum::<u64>();
        }
    }
    let all = right + failed;
    // How much is fetched ahead is a matter of how soon those threads run: that they did at all is to be seen.
    assert!(right > all / 2 && failed > all / 100 && ahead > 0, "{right} right, {failed} failed, {ahead} blocks ahead");
}

/// Two mounts of one manifest share a cache: what one of them gives up, because it ends, the other one gets.
#[test]
fn who_shares_a_cache_with_a_mount_that_ends_reads_on() {
    let mut world = World::new();
    let content = world.add("f", 100_000);
    let (first, cache) = world.mount_sharing();
    let segment = Segment::open(&world.dir.path().join("segment")).unwrap();
    let second = ManifestStore::new(segment, cache.clone(), world.source(), world.options).unwrap();
    world.faults.add(ObjectFault::Hold, &[ObjectCall::Read], "", 0, 1);
    std::thread::scope(|scope| {
        let ends = scope.spawn(|| read(&*open(&first, "f"), 50_000, 10));
        world.faults.wait_for_held(1);
        let reads_on = scope.spawn(|| read(&*open(&second, "f"), 50_000, 10));
        eventually("the other one waits for it", || cache.stats().waits == 1);
        first.wind_up();
        world.faults.clear();
        assert_eq!(kind(ends.join().unwrap()), ErrorKind::Interrupted);
        assert!(reads_on.join().unwrap().unwrap() == content[50_000..50_010]);
    });
}

/// A mount that is ended by force gives those up that wait for bytes, and begins nothing new.
#[test]
fn who_is_ended_by_force_fetches_no_more() {
    let mut world = World::new();
    let content = world.add("f", 100_000);
    let store = world.mount();
    read(&*open(&store, "f"), 0, 10).unwrap();
    world.faults.always(ObjectFault::Hold, &[ObjectCall::Read]);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(&*open(&store, "f"), 50_000, 10));
        world.faults.wait_for_held(1);
        store.wind_up();
        world.faults.clear();
        assert_eq!(kind(reader.join().unwrap()), ErrorKind::Interrupted);
    });
    assert_eq!(kind(read(&*open(&store, "f"), 90_000, 10)), ErrorKind::Interrupted);
    assert!(read(&*open(&store, "f"), 0, 10).unwrap() == content[..10], "what is there is there");
}
