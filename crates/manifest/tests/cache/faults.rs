//! A fault of the folder at every call: no read fails for it, and nothing wrong stays.

use adit_manifest::cache::{Cache, CacheOptions, ObjectId};
use adit_testkit::crash::{CrashWorld, Mode};
use adit_testkit::faults::{CallClass, Fault, Faults, each_fault};

use crate::support::*;

const FAULTS: [Fault; 4] = [Fault::IO, Fault::NO_SPACE, Fault::HALF, Fault::Errno(libc::EROFS)];

fn script(cache: &Cache, ids: &[ObjectId], source: &Source) {
    for id in ids {
        read_all(cache, *id, 1500, source);
        drop(cache.object(*id).verified_file());
        cache.object(*id).prefetch(0..id.len, source).unwrap();
        read_all(cache, *id, 4000, source);
    }
}

fn each(options: &CacheOptions) {
    for fault in FAULTS {
        for times in [1, 3, u64::MAX] {
            each_fault(fault, &CallClass::ALL, times, |round| {
                let world = CrashWorld::new(Mode::Kill);
                let source = Source::new();
                let ids = [source.add(700, 1), source.add(5000, 2), source.add(3000, 3)];
                {
                    // Something is there from before.
                    let cache = open(world.dir("cache"), options.clone());
                    read_all(&cache, ids[1], 5000, &source);
                }
                let cache = open(round.faults.wrap(world.dir("cache")), options.clone());
                round.arm();
                script(&cache, &ids, &source);
                round.faults.disarm();
                script(&cache, &ids, &source);
                drop(cache);
                let cache = open(world.dir("cache"), options.clone());
                script(&cache, &ids, &source);
                assert_eq!(cache.stats().quarantined, 0);
            });
        }
    }
}

#[test]
fn no_read_fails_because_of_the_folder() {
    each(&options());
}

#[test]
fn no_read_fails_because_of_the_folder_under_a_limit() {
    each(&CacheOptions { limit_bytes: 8000, ..options() });
}

#[test]
fn no_strict_read_fails_because_of_the_folder() {
    each(&CacheOptions { strict: true, ..options() });
}

#[test]
fn a_fault_while_the_folder_is_opened_is_told() {
    each_fault(Fault::IO, &CallClass::ALL, 1, |round| {
        let world = CrashWorld::new(Mode::Kill);
        round.arm();
        let opened = Cache::open(std::sync::Arc::new(round.faults.wrap(world.dir("cache"))), options());
        let fired = round.faults.fired();
        round.faults.disarm();
        match opened {
            Err(e) => assert!(fired[0].starts_with("MakeDir") && e.to_string().contains("cache"), "{e}"),
            Ok(cache) => {
                let source = Source::new();
                read_all(&cache, source.add(5000, 1), 5000, &source);
            }
        }
    });
}

/// A full host costs objects that were used before, and nobody a read.
#[test]
fn a_full_host_makes_room_of_old_objects() {
    let world = CrashWorld::new(Mode::Kill);
    let faults = Faults::new();
    let source = Source::new();
    let (old, new) = (source.add(9000, 1), source.add(5000, 2));
    let cache = open(faults.wrap(world.dir("cache")), options());
    read_all(&cache, old, 9000, &source);
    faults.arm(Fault::NO_SPACE, &[CallClass::Write], 0, 1);
    read_all(&cache, new, 5000, &source);
    let stats = cache.stats();
    assert_eq!((stats.evictions, stats.passed_bytes), (1, 0));
    source.fetched();
    read_all(&cache, new, 5000, &source);
    assert_eq!(source.fetched(), []);
    read_all(&cache, old, 9000, &source);
    assert_eq!(source.fetched_bytes(), 9000);
}
