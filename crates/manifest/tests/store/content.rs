//! What is read of a file, how much is fetched for it, and ahead of it.

use std::sync::Arc;

use adit_core::error::Result;
use adit_core::store::Store;
use adit_manifest::cache::{CacheOptions, Fetch, ObjectId};
use adit_manifest::format::limits::CHUNK_LEN_BYTES;
use adit_manifest::format::{Content, ContentHash};
use adit_manifest::store::StoreOptions;
use adit_testkit::objects::{ObjectCall, ObjectFault};
use adit_testkit::{Rng, seeds};

use crate::support::*;

/// Waits for what another thread brings about. Fails after a minute.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if is_so() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("not within a minute: {what}");
}

fn with_read_ahead(world: &mut World, blocks: u64) {
    world.options = StoreOptions { read_ahead_bytes: blocks * BLOCK, ..world.options };
    world.cache = CacheOptions { workers: 2, ..world.cache.clone() };
}

#[test]
fn random_reads_give_the_files_bytes() {
    for seed in seeds(20) {
        let mut rng = Rng::new(seed);
        let mut world = World::new();
        let lens = [0, 1, BLOCK as usize, BLOCK as usize + 1, 50_000, 200_000];
        let files: Vec<_> = lens.iter().map(|len| (format!("f{len}"), world.add(&format!("f{len}"), *len))).collect();
        world.cache.limit_bytes = *rng.pick(&[u64::MAX, u64::MAX, 100_000, 0]);
        world.cache.strict = rng.percent(30);
        if rng.percent(50) {
            with_read_ahead(&mut world, 8);
        }
        let store = world.mount();
        for _ in 0..60 {
            let (path, content) = rng.pick(&files);
            let file = open(&store, path);
            let mut at = rng.below(content.len() as u64 + 10);
            for _ in 0..rng.below(5) + 1 {
                let len = *rng.pick(&[1, 100, 4096, 10_000, 300_000]);
                let from = content.len().min(at as usize);
                let expected = &content[from..(from + len).min(content.len())];
                assert!(read(&*file, at, len).unwrap() == expected, "seed {seed}: {path} at {at}");
                at += len as u64;
            }
            assert_eq!(read(&*file, u64::MAX, 10).unwrap(), b"");
        }
    }
}

/// The first bytes of a file cost one request for one block, and a block that is there costs none.
#[test]
fn a_small_read_fetches_one_block() {
    let mut world = World::new();
    let content = world.add("f", 1 << 20);
    let store = world.mount();
    let mut rng = Rng::new(1);
    let mut blocks = std::collections::BTreeSet::new();
    for _ in 0..300 {
        let at = rng.below((1 << 20) / BLOCK) * BLOCK;
        assert!(read(&*open(&store, "f"), at, BLOCK as usize).unwrap() == content[at as usize..][..BLOCK as usize]);
        blocks.insert(at);
        let stats = world.faults.stats();
        assert_eq!((stats.reads, stats.bytes_read), (blocks.len() as u64, blocks.len() as u64 * BLOCK));
    }
}

/// With read-ahead on as well: who reads at random has nothing fetched that it did not ask for.
#[test]
fn random_reads_have_nothing_fetched_ahead() {
    let mut world = World::new();
    world.add("f", 4 << 20);
    with_read_ahead(&mut world, 32);
    let store = world.mount();
    let file = open(&store, "f");
    let mut rng = Rng::new(3);
    for _ in 0..200 {
        read(&*file, rng.below(4 << 20), 100).unwrap();
    }
    let fetched = store.counters().iter().find(|(name, _)| *name == "fetched_bytes").unwrap().1;
    assert!(fetched <= 400 * BLOCK, "a block each, and where a read crosses one, two: {fetched}");
}

/// A sequential reader has each block fetched once, most of them ahead and several at a time.
#[test]
fn a_sequential_reader_has_the_rest_fetched_ahead() {
    let mut world = World::new();
    let content = world.add("f", 4 << 20);
    with_read_ahead(&mut world, 64);
    world.faults.always(ObjectFault::Delay(std::time::Duration::from_millis(2)), &[ObjectCall::Read]);
    let store = world.mount();
    let file = open(&store, "f");
    for (n, expected) in content.chunks(1024).enumerate() {
        assert!(read(&*file, n as u64 * 1024, 1024).unwrap() == expected);
    }
    let stats = world.faults.stats();
    assert_eq!(stats.bytes_read, 4 << 20, "each byte once");
    assert!(stats.calls_at_once_max > 4, "{stats:?}");
}

/// A file that is larger than the cache, read from its beginning to its end: little is fetched twice, with read-ahead as well.
#[test]
fn a_file_larger_than_the_cache_is_fetched_about_once() {
    let mut world = World::new();
    let content = world.add("f", 8 << 20);
    with_read_ahead(&mut world, 1024);
    world.cache.limit_bytes = 2 << 20;
    let store = world.mount();
    let file = open(&store, "f");
    for (n, expected) in content.chunks(10_000).enumerate() {
        assert!(read(&*file, n as u64 * 10_000, 10_000).unwrap() == expected);
    }
    let fetched = world.faults.stats().bytes_read;
    assert!(fetched <= (8 << 20) / 100 * 115, "{fetched}");
}

/// What was to be fetched ahead is left when the file is closed.
#[test]
fn who_closes_a_file_has_no_more_fetched_of_it() {
    let mut world = World::new();
    world.add("f", 4 << 20);
    with_read_ahead(&mut world, 256);
    world.options.read_ahead_threads = 2;
    let store = world.mount();
    let file = open(&store, "f");
    for at in 0..200 {
        read(&*file, at * 1000, 1000).unwrap();
    }
    world.faults.always(ObjectFault::Hold, &[ObjectCall::Read]);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut at = 200_000;
            while read(&*file, at, 100_000).is_ok() && at < 2 << 20 {
                at += 100_000;
            }
        });
        world.faults.wait_for_held(2);
        world.faults.clear();
        reader.join().unwrap();
    });
    world.faults.always(ObjectFault::Hold, &[ObjectCall::Read]);
    drop(file);
    world.faults.clear();
    let fetched = world.faults.stats().bytes_read;
    eventually("the threads have come to rest", || {
        let before = world.faults.stats();
        std::thread::sleep(std::time::Duration::from_millis(50));
        before == world.faults.stats()
    });
    let after = world.faults.stats().bytes_read;
    assert!(after - fetched <= 4 * BLOCK, "{}", after - fetched);
}

/// A file in chunks, whose objects are of 256 MiB and computed: across their boundaries, and never more than was asked for. The
/// last one, which is a block, is verified before it is handed out, so it has its hash.
#[test]
fn chunks_are_read_across_their_boundaries() {
    struct Chunks(Vec<u8>);
    impl Fetch for Chunks {
        fn fetch(
            &self,
            id: &ObjectId,
            range: std::ops::Range<u64>,
            sink: &mut dyn FnMut(&[u8]) -> Result<()>,
        ) -> Result<()> {
            if id.hash == ContentHash::of(&self.0) {
                assert_eq!(id.len, self.0.len() as u64);
                return sink(&self.0[range.start as usize..range.end as usize]);
            }
            assert_eq!(id.len, CHUNK_LEN_BYTES);
            Computed.fetch(id, range, sink)
        }
    }
    let mut world = World::new();
    let last: Vec<u8> = (0..1000_u32).map(|n| (n * n % 251) as u8).collect();
    let hashes = vec![ContentHash([0; 16]), ContentHash([1; 16]), ContentHash::of(&last)];
    let size = 2 * CHUNK_LEN_BYTES + 1000;
    world.insert(b"f", file(size, Content::chunks(hashes.clone().into(), size).unwrap()));
    for ahead in [0, 16] {
        with_read_ahead(&mut world, ahead);
        let store = world.mount_with(Arc::new(Chunks(last.clone())), None);
        let file = open(&store, "f");
        let expected = |at: u64| match last.get(at.wrapping_sub(2 * CHUNK_LEN_BYTES) as usize) {
            Some(byte) => *byte,
            None => Computed::byte(&hashes[(at / CHUNK_LEN_BYTES) as usize], at % CHUNK_LEN_BYTES),
        };
        for start in [0, CHUNK_LEN_BYTES - 5000, 2 * CHUNK_LEN_BYTES - 50_000] {
            for at in (start..size).step_by(3000).take(40) {
                let found = read(&*file, at, 10_000).unwrap();
                assert_eq!(found.len() as u64, (size - at).min(10_000));
                for (n, byte) in found.iter().enumerate() {
                    assert_eq!(*byte, expected(at + n as u64), "at {at}, {n}");
                }
            }
        }
        assert_eq!(read(&*file, size - 1, 10).unwrap(), [expected(size - 1)]);
        let fetched = store.counters().iter().find(|(name, _)| *name == "fetched_bytes").unwrap().1;
        assert!(fetched < 2 << 20, "{fetched}");
        drop(file);
    }
}

/// What one reader waits for holds up nobody else: no other file, no listing, no lookup.
#[test]
fn nobody_waits_for_another_files_download() {
    let mut world = World::new();
    let slow = world.add("slow", 100_000);
    let quick = world.add("d/quick", 50_000);
    with_read_ahead(&mut world, 16);
    let store = world.mount();
    world.faults.add(ObjectFault::Hold, &[ObjectCall::Read], &ContentHash::of(&slow).to_string(), 0, u64::MAX);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(&*open(&store, "slow"), 0, 100_000));
        world.faults.wait_for_held(1);
        assert!(read(&*open(&store, "d/quick"), 0, 50_000).unwrap() == quick);
        assert_eq!(list(&store, adit_core::types::Ino::ROOT, 0).len(), 2);
        store.counters();
        open(&store, "slow");
        world.faults.clear();
        assert!(reader.join().unwrap().unwrap() == slow);
    });
}

/// What the kernel may read by itself: a file that is all there and verified, and nothing else.
#[test]
fn a_verified_file_is_an_open_file() {
    let mut world = World::new();
    let content = world.add("f", 30_000);
    world.insert(b"d", adit_manifest::format::Body::Directory);
    let store = world.mount();
    let ino = find(&store, b"f").unwrap().ino;
    read(&*open(&store, "f"), 0, 100).unwrap();
    assert!(store.verified_file(ino).unwrap().is_none());
    read(&*open(&store, "f"), 0, 30_000).unwrap();
    let mut bytes = Vec::new();
    let mut file = std::fs::File::from(store.verified_file(ino).unwrap().unwrap());
    std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
    assert!(bytes == content);
    assert_eq!(kind(store.verified_file(find(&store, b"d").unwrap().ino)), adit_core::error::ErrorKind::IsDirectory);
}
