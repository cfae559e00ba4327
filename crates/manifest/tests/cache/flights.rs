//! Who fetches what, and who waits for whom.

use std::time::Duration;

use adit_core::error::ErrorKind;
use adit_manifest::cache::{CacheOptions, ObjectFault};

use crate::support::*;

/// Blocks that are absent and adjacent are one fetch; those that are there are none.
#[test]
fn a_read_fetches_whole_blocks_once_and_together() {
    let (dir, source) = (folder(), Source::new());
    let id = source.add(10_240, 1);
    let cache = open(host(&dir), options());
    let object = cache.object(id);
    read(&object, 1000, 100, &source).unwrap();
    assert_eq!(source.fetched(), [0..2048]);
    read(&object, 5000, 10, &source).unwrap();
    assert_eq!(source.fetched(), [4096..5120]);
    read(&object, 0, 10_240, &source).unwrap();
    assert_eq!(source.fetched(), [2048..4096, 5120..10_240]);
    read(&object, 0, 10_240, &source).unwrap();
    assert_eq!(source.fetched(), []);
    let stats = cache.stats();
    assert_eq!((stats.misses, stats.fetches, stats.fetched_bytes), (4, 4, 10_240));
    assert_eq!((stats.waits, stats.passed_bytes, stats.verified), (0, 0, 1));
    assert_eq!(object.missing(0..id.len), []);
}

#[test]
fn what_is_missing_is_told_and_prefetched() {
    let (dir, source) = (folder(), Source::new());
    let id = source.add(10_000, 1);
    let cache = open(host(&dir), options());
    let object = cache.object(id);
    assert_eq!(object.missing(0..u64::MAX), [0..10_000]);
    read(&object, 3000, 1, &source).unwrap();
    assert_eq!(object.missing(100..9000), [0..2048, 3072..9216]);
    object.prefetch(0..4000, &source).unwrap();
    assert_eq!(source.fetched(), [2048..3072, 0..2048, 3072..4096]);
    assert_eq!((object.state().present, object.state().verified), (4096, false));
    object.prefetch(0..u64::MAX, &source).unwrap();
    let state = object.state();
    assert_eq!((state.present, state.verified, object.missing(0..id.len)), (10_000, true, vec![]));
    assert_eq!(read(&object, 9999, 10, &source).unwrap().len(), 1);
    assert_eq!(read(&object, 10_000, 10, &source).unwrap().len(), 0);
    assert_eq!(read(&object, u64::MAX, 10, &source).unwrap().len(), 0);
}

/// Eight readers of one block are one fetch.
#[test]
fn readers_of_one_block_share_a_fetch() {
    for len in [5000, 600] {
        let (dir, source) = (folder(), Source::new());
        let id = source.add(len, 1);
        let cache = open(host(&dir), CacheOptions { workers: 1, ..options() });
        source.hold(100);
        std::thread::scope(|scope| {
            let object = cache.object(id);
            let readers: Vec<_> = (0..8).map(|_| scope.spawn(|| read(&cache.object(id), 50, 100, &source))).collect();
            source.wait_for_held(1);
            eventually("seven wait", || cache.stats().waits == 7);
            source.release();
            for reader in readers {
                assert!(reader.join().unwrap().unwrap() == source.content(id)[50..150]);
            }
            drop(object);
        });
        assert_eq!(source.fetched().len(), 1);
    }
}

/// A fetch that hangs holds up neither another block of its object nor another object.
#[test]
fn nobody_waits_for_what_it_does_not_need() {
    for workers in [0, 1] {
        let (dir, source) = (folder(), Source::new());
        let (id, other) = (source.add(9000, 1), source.add(9000, 2));
        let cache = open(host(&dir), CacheOptions { workers, ..options() });
        source.hold(100);
        std::thread::scope(|scope| {
            let held = scope.spawn(|| read(&cache.object(id), 0, 100, &source));
            source.wait_for_held(1);
            let object = cache.object(id);
            assert!(read(&object, 2000, 3000, &source).unwrap() == source.content(id)[2000..5000]);
            assert!(read(&cache.object(other), 2000, 3000, &source).unwrap() == source.content(other)[2000..5000]);
            object.prefetch(0..5000, &source).unwrap();
            assert_eq!(object.missing(0..5000), []);
            object.state();
            object.verified_file();
            cache.stats();
            source.release();
            held.join().unwrap().unwrap();
        });
    }
}

/// A block that has come may be read while the rest of its run is still coming.
#[test]
fn the_first_block_of_a_run_is_there_before_the_last() {
    let (dir, mut source) = (folder(), Source::new());
    source.piece = 1024;
    let id = source.add(9000, 1);
    let cache = open(host(&dir), options());
    let (came, go_on) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    let slow = Slow { source: &source, came: &came, go_on: &go_on };
    std::thread::scope(|scope| {
        let prefetch = scope.spawn(|| cache.object(id).prefetch(0..9000, &slow));
        came.wait();
        // Three blocks have come. This would wait for ever if it waited for the rest.
        assert!(read(&cache.object(id), 0, 3000, &source).unwrap() == source.content(id)[..3000]);
        go_on.wait();
        prefetch.join().unwrap().unwrap();
    });
    assert_eq!(source.fetched(), [0..9000]);
}

/// Stops after the third piece.
struct Slow<'a> {
    source: &'a Source,
    came: &'a std::sync::Barrier,
    go_on: &'a std::sync::Barrier,
}

impl adit_manifest::cache::Fetch for Slow<'_> {
    fn fetch(
        &self,
        id: &adit_manifest::cache::ObjectId,
        range: std::ops::Range<u64>,
        sink: &mut dyn FnMut(&[u8]) -> adit_core::Result<()>,
    ) -> adit_core::Result<()> {
        let mut count = 0;
        self.source.fetch(id, range, &mut |bytes| {
            sink(bytes)?;
            count += 1;
            if count == 3 {
                self.came.wait();
                self.go_on.wait();
            }
            Ok(())
        })
    }
}

#[test]
fn who_waited_gets_the_same_error() {
    for len in [5000, 600] {
        let (dir, source) = (folder(), Source::new());
        let id = source.add(len, 1);
        let cache = open(host(&dir), CacheOptions { workers: 1, ..options() });
        for act in [Act::Fail, Act::FailMidway, Act::Short, Act::Long] {
            let waits = cache.stats().waits;
            source.hold(300);
            source.act(&[act]);
            let errors: Vec<_> = std::thread::scope(|scope| {
                let readers: Vec<_> =
                    (0..3).map(|_| scope.spawn(|| read(&cache.object(id), 0, 500, &source))).collect();
                source.wait_for_held(1);
                eventually("two wait", || cache.stats().waits == waits + 2);
                source.release();
                readers.into_iter().map(|reader| reader.join().unwrap().unwrap_err()).collect()
            });
            for e in errors {
                let fault = e.cause().and_then(|cause| cause.downcast_ref::<ObjectFault>());
                match act {
                    Act::Fail | Act::FailMidway => {
                        assert_eq!(e.kind(), ErrorKind::Network);
                        assert!(e.to_string().contains("told to fail"), "{e}");
                    }
                    Act::Short => assert!(matches!(fault, Some(ObjectFault::Short { .. })), "{e}"),
                    _ => assert!(matches!(fault, Some(ObjectFault::Long { .. })), "{e}"),
                }
            }
        }
        assert_eq!(source.fetched().len(), 4);
        // None of it has left anything wrong.
        read_all(&cache, id, 5000, &source);
    }
}

/// What is fetched ahead, or for a reader that is told to end, fails for nobody else: who waited for it fetches it itself.
#[test]
fn a_failure_that_is_not_the_readers_is_not_its_error() {
    struct Ended<'a>(&'a Source);
    impl adit_manifest::cache::Fetch for Ended<'_> {
        fn fetch(
            &self,
            id: &adit_manifest::cache::ObjectId,
            range: std::ops::Range<u64>,
            _sink: &mut dyn FnMut(&[u8]) -> adit_core::Result<()>,
        ) -> adit_core::Result<()> {
            self.0.fetch(id, range, &mut |_| Err(ErrorKind::Interrupted.into()))
        }
    }
    for len in [5000, 600] {
        for (strict, is_ahead) in [(false, true), (true, true), (false, false), (true, false)] {
            let (dir, source) = (folder(), Source::new());
            let id = source.add(len, 1);
            let cache = open(host(&dir), CacheOptions { strict, workers: 1, ..options() });
            source.hold(300);
            std::thread::scope(|scope| {
                let first = scope.spawn(|| {
                    let object = cache.object(id);
                    if is_ahead {
                        source.act(&[Act::Fail]);
                        object.prefetch(0..1024, &source)
                    } else {
                        object.read(0, &mut [0; 500], &Ended(&source)).map(drop)
                    }
                });
                source.wait_for_held(1);
                let second = scope.spawn(|| read(&cache.object(id), 0, 500, &source));
                eventually("one waits", || cache.stats().waits == 1);
                source.release();
                let expected = if is_ahead { ErrorKind::Network } else { ErrorKind::Interrupted };
                assert_eq!(first.join().unwrap().unwrap_err().kind(), expected);
                assert!(second.join().unwrap().unwrap() == source.content(id)[..500]);
            });
            read_all(&cache, id, 5000, &source);
        }
    }
}

/// Whoever fetches ahead waits for nobody.
#[test]
fn what_is_fetched_already_is_not_waited_for_ahead() {
    for len in [5000, 600] {
        let (dir, source) = (folder(), Source::new());
        let id = source.add(len, 1);
        let cache = open(host(&dir), CacheOptions { workers: 1, ..options() });
        source.hold(300);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| read(&cache.object(id), 0, 500, &source));
            source.wait_for_held(1);
            // This would wait for the reader if it waited, and that one for what comes after this.
            cache.object(id).prefetch(0..1024, &source).unwrap();
            source.release();
            assert!(reader.join().unwrap().unwrap() == source.content(id)[..500]);
        });
        assert_eq!((source.fetched().len(), cache.stats().waits), (1, 0));
    }
}

#[test]
fn a_hanging_fetch_is_not_waited_for_for_ever() {
    for len in [5000, 600] {
        let (dir, source) = (folder(), Source::new());
        let id = source.add(len, 1);
        let cache = open(host(&dir), CacheOptions { patience: Duration::from_millis(50), workers: 1, ..options() });
        source.hold(100);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| read(&cache.object(id), 0, 500, &source));
            source.wait_for_held(1);
            let e = read(&cache.object(id), 0, 500, &source).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::TimedOut);
            assert_eq!(e.subject(), Some(id.hash.to_string().as_str()));
            source.release();
            assert!(first.join().unwrap().unwrap() == source.content(id)[..500]);
        });
    }
}

#[test]
fn a_fetch_that_panics_leaves_nobody_waiting() {
    for len in [5000, 600] {
        let (dir, source) = (folder(), Source::new());
        let id = source.add(len, 1);
        let cache = open(host(&dir), CacheOptions { workers: 1, ..options() });
        source.hold(100);
        source.act(&[Act::Panic]);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| read(&cache.object(id), 0, 500, &source));
            source.wait_for_held(1);
            let second = scope.spawn(|| read(&cache.object(id), 0, 500, &source));
            eventually("one waits", || cache.stats().waits == 1);
            source.release();
            assert!(first.join().is_err());
            assert_eq!(second.join().unwrap().unwrap_err().kind(), ErrorKind::Io);
        });
        read_all(&cache, id, 5000, &source);
    }
}

/// The blocks that came before a failure are kept.
#[test]
fn a_failure_midway_keeps_what_came() {
    let (dir, source) = (folder(), Source::new());
    let id = source.add(8192, 1);
    let cache = open(host(&dir), options());
    source.act(&[Act::FailMidway]);
    read(&cache.object(id), 0, 8192, &source).unwrap_err();
    source.fetched();
    read_all(&cache, id, 8192, &source);
    assert_eq!(source.fetched(), [4096..8192]);
}

/// Random readers of many threads.
#[test]
fn many_readers_read_right_bytes() {
    let (dir, source) = (folder(), Source::new());
    let ids: Vec<_> = (0..6).map(|n| source.add(500 + n * 3000, n as u64)).collect();
    for limit_bytes in [u64::MAX, 40_000] {
        let cache = open(host(&dir), CacheOptions { workers: 2, limit_bytes, ..options() });
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (cache, source, ids) = (&cache, &source, &ids);
                scope.spawn(move || {
                    let mut rng = adit_testkit::Rng::new(thread);
                    for _ in 0..200 {
                        let id = *rng.pick(ids);
                        let (content, offset) = (source.content(id), rng.below(id.len) as usize);
                        let found = read(&cache.object(id), offset as u64, 2000, source).unwrap();
                        assert!(found == content[offset..(offset + 2000).min(content.len())]);
                    }
                });
            }
        });
        if limit_bytes == u64::MAX {
            let all: u64 = ids.iter().map(|id| id.len).sum();
            assert_eq!(cache.stats().fetched_bytes, all, "each byte once");
        }
        assert_eq!(cache.stats().quarantined, 0);
    }
}
