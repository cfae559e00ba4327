//! What is read of a file, how much is fetched for it, and ahead of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adit_core::error::Result;
use adit_core::store::Store;
use adit_manifest::cache::{CacheOptions, Fetch, ObjectId};
use adit_manifest::format::limits::CHUNK_LEN_BYTES;
use adit_manifest::format::{Content, ContentHash};
use adit_manifest::store::StoreOptions;
use adit_testkit::objects::{ObjectCall, ObjectFault};
use adit_testkit::{Rng, seeds};

use crate::support::*;

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

/// With read-ahead on as well: who reads at random has nothing fetched that it did not ask for, be it in one request or, as the kernel
/// asks for what a program reads at once, in several.
#[test]
fn random_reads_have_nothing_fetched_ahead() {
    for (len, piece) in [(100, 100), (50_000, 50_000), (256 << 10, 64 << 10), (1 << 20, 128 << 10)] {
        let mut world = World::new();
        let (content, other) = (world.add("f", 16 << 20), world.add("other", 1 << 20));
        with_read_ahead(&mut world, 32);
        world.options.read_ahead_threads = 1;
        let source = Noted::new(world.source());
        let store = world.mount_with(source.clone(), None);
        let file = open(&store, "f");
        let mut rng = Rng::new(3);
        let mut blocks = std::collections::BTreeSet::new();
        for _ in 0..20 {
            let start = 1 + rng.below((16 << 20) - len);
            for at in (start..start + len).step_by(piece) {
                let count = piece.min((start + len - at) as usize);
                assert!(read(&*file, at, count).unwrap() == content[at as usize..][..count]);
            }
            blocks.extend(start / BLOCK..(start + len).div_ceil(BLOCK));
        }
        // The one thread takes files in turns: what was to be done for this one is begun before the other one's.
        let sequential = open(&store, "other");
        for at in (0..20_000).step_by(1000) {
            read(&*sequential, at, 1000).unwrap();
        }
        eventually("the other file is fetched ahead", || source.fetched(&other, true).len() >= 2);
        assert_eq!(source.fetched(&content, true), [], "for reads of {len} in pieces of {piece}");
        let fetched: Vec<u64> = source
            .fetched(&content, false)
            .iter()
            .flat_map(|range| range.start / BLOCK..range.end.div_ceil(BLOCK))
            .collect();
        assert_eq!(fetched, blocks.into_iter().collect::<Vec<_>>());
    }
}

/// A sequential reader has each block fetched once, and as many at a time as there are threads.
#[test]
fn a_sequential_reader_has_the_rest_fetched_ahead() {
    let mut world = World::new();
    let content = world.add("f", 4 << 20);
    with_read_ahead(&mut world, 64);
    let store = world.mount();
    let file = open(&store, "f");
    let read_on = |numbers: std::ops::Range<usize>| {
        for (n, expected) in content.chunks(1024).enumerate().take(numbers.end).skip(numbers.start) {
            assert!(read(&*file, n as u64 * 1024, 1024).unwrap() == expected);
        }
    };
    // Far enough for the longest window, of which a quarter is asked for at once.
    read_on(0..1024);
    world.faults.always(ObjectFault::Hold, &[ObjectCall::Read]);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_on(1024..4096));
        world.faults.wait_for_held(4);
        world.faults.clear();
        reader.join().unwrap();
    });
    assert_eq!(world.faults.stats().bytes_read, 4 << 20, "each byte once");
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
    assert!(fetched <= (8 << 20) / 100 * 105, "{fetched}");
}

/// What threads did not come to before all of an object was dropped, its reader has had by then: it is not fetched again.
#[test]
fn what_was_planned_before_an_object_was_dropped_is_left() {
    /// Lets the threads that fetch ahead begin when it is opened.
    struct Gate(Arc<Noted>, std::sync::RwLock<()>, AtomicBool);
    impl Fetch for Gate {
        fn fetch(
            &self,
            id: &ObjectId,
            range: std::ops::Range<u64>,
            sink: &mut dyn FnMut(&[u8]) -> Result<()>,
        ) -> Result<()> {
            if is_ahead() {
                self.2.store(true, Ordering::Relaxed);
                let _open = self.1.read();
                return self.0.fetch(id, range, sink);
            }
            self.0.fetch(id, range, sink)
        }
    }
    let mut world = World::new();
    let planned = world.add("planned", 1 << 20);
    world.add("held", 1 << 20);
    let contents = [("full", 4 << 20), ("later", 1 << 20)].map(|(path, len)| (path, world.add(path, len)));
    with_read_ahead(&mut world, 64);
    world.options.read_ahead_threads = 1;
    world.cache.limit_bytes = 2 << 20;
    let source = Arc::new(Gate(Noted::new(world.source()), std::sync::RwLock::default(), AtomicBool::new(false)));
    let store = world.mount_with(source.clone(), None);
    let closed = source.1.write().unwrap();
    let read_some = |path: &str, count: u64| {
        let file = open(&store, path);
        for at in (0..count * 1000).step_by(1000) {
            read(&*file, at, 1000).unwrap();
        }
        file
    };
    // The one thread waits at the gate, with a block that nobody reads: these three reads are of the one before it.
    let _held = read_some("held", 3);
    eventually("the thread fetches", || source.2.load(Ordering::Relaxed));
    let read_all = |path: &str, content: &[u8]| {
        let file = open(&store, path);
        for (n, expected) in content.chunks(1000).enumerate() {
            assert!(read(&*file, n as u64 * 1000, 1000).unwrap() == expected);
        }
        file
    };
    // As long as it is open, its plans stay.
    let file = read_all("planned", &planned);
    let [full, later] = contents;
    drop(read_all(full.0, &full.1));
    drop(closed);
    // Files take turns: what is to be done for the first one, is begun before the second fetch for another one.
    let _sequential = read_some(later.0, 20);
    eventually("another file is fetched ahead", || source.0.fetched(&later.1, true).len() >= 2);
    assert_eq!(source.0.fetched(&planned, true), []);
    drop(file);
}

/// What was to be fetched ahead is left when the file is closed, but for what is on its way.
#[test]
fn who_closes_a_file_has_no_more_fetched_of_it() {
    for closes in [true, false] {
        let mut world = World::new();
        let (content, other) = (world.add("f", 4 << 20), world.add("other", 1 << 20));
        with_read_ahead(&mut world, 256);
        world.options.read_ahead_threads = 2;
        let source = Noted::new(world.source());
        let store = world.mount_with(source.clone(), None);
        // One read, of which nothing follows. What is read then is there, and what is to be fetched lies behind it.
        read(&*open(&store, "f"), 0, 1 << 20).unwrap();
        let file = open(&store, "f");
        world.faults.add(ObjectFault::Hold, &[ObjectCall::Read], &ContentHash::of(&content).to_string(), 0, u64::MAX);
        for at in (0..1 << 20).step_by(BLOCK as usize) {
            read(&*file, at, BLOCK as usize).unwrap();
        }
        world.faults.wait_for_held(2);
        if !closes {
            world.faults.clear();
            let fetched = || source.fetched(&content, true).iter().map(|range| range.end - range.start).sum::<u64>();
            eventually("the rest is fetched", || fetched() > 100 * BLOCK);
            continue;
        }
        drop(file);
        world.faults.clear();
        // Files take turns: if there were more to be done for the first one, it would be begun before the other one's.
        let sequential = open(&store, "other");
        for at in (0..20_000).step_by(1000) {
            read(&*sequential, at, 1000).unwrap();
        }
        eventually("the other file is fetched ahead", || source.fetched(&other, true).len() >= 2);
        assert_eq!(source.fetched(&content, true).len(), 2);
    }
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
