//! Space that comes back: of a volume that was full of metadata, and of what nobody sees.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use adit_core::ErrorKind;
use adit_core::types::Access;
use adit_media::HostBlockFile;
use adit_testkit::crash::{CrashWorld, Mode};
use adit_volume::table::BLOCK_LEN_BYTES;
use adit_volume::{Base, Batch, Extents, NewVolume, Options, Run, Table};

mod support;
use support::*;

/// Bytes of each value.
const VALUE: [u8; 1000] = [7; 1000];

fn key(n: usize) -> Vec<u8> {
    format!("key {n:08}").into()
}

fn put(base: &Base, n: usize) -> adit_core::Result<()> {
    base.apply(Batch { writes: vec![(key(n), Some(VALUE.to_vec()))], ..Batch::default() }).map(drop)
}

/// Puts keys until there is no space; how many.
fn fill(base: &Base) -> usize {
    for n in 0.. {
        match put(base, n) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::NoSpace => return n,
            Err(e) => panic!("{e}"),
        }
    }
    unreachable!()
}

/// Removes keys as a deletion of files does.
fn remove(base: &Base, keys: impl Iterator<Item = usize>) {
    for n in keys {
        base.apply(Batch { writes: vec![(key(n), None)], uses_reserve: true, ..Batch::default() }).unwrap();
    }
}

/// Blocks for those who have no part in what is kept back.
fn available(base: &Base) -> u64 {
    let space = base.space();
    space.free - space.reserved
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// No thread.
fn quiet() -> Options {
    Options { background: false, cache_bytes: 1 << 20, ..Options::default() }
}

fn volume(path: &Path, options: Options) -> Base {
    let file = Arc::new(HostBlockFile::create(path).unwrap());
    Base::create(file, "v", &NewVolume::new(32 << 20), options).unwrap()
}

#[test]
fn a_volume_full_of_metadata_has_room_once_some_is_removed() {
    let world = CrashWorld::new(Mode::Kill);
    let base = Base::create(file(&world), "volume", &small(), quiet()).unwrap();
    let empty = available(&base);
    let count = fill(&base);
    assert!(available(&base) < empty / 20, "{} of {empty}", available(&base));
    remove(&base, (0..count).filter(|n| n % 10 > 0));
    put(&base, 1).unwrap();
    assert!(available(&base) > empty / 2, "{} of {empty}", available(&base));
    // That is no promise of metadata alone.
    base.release(&base.reserve((empty / 2) as u32, None, false).unwrap());
    remove(&base, 0..count);
    base.release(&base.reserve((empty * 9 / 10) as u32, None, false).unwrap());
    assert!(available(&base) > empty * 9 / 10, "{} of {empty}", available(&base));
    assert!(fill(&base) > count * 9 / 10);
    base.close().unwrap();
}

#[test]
fn an_opening_of_a_full_volume_has_room_for_what_was_removed_before() {
    let world = CrashWorld::new(Mode::Kill);
    let base = Base::create(file(&world), "volume", &small(), quiet()).unwrap();
    let empty = available(&base);
    let count = fill(&base);
    // Too little for an end to pack anything.
    remove(&base, 0..count / 5);
    base.close().unwrap();
    let base = Base::open(file(&world), "volume", quiet()).unwrap();
    assert!(available(&base) < empty / 10);
    base.release(&base.reserve((empty / 40) as u32, None, false).unwrap());
    put(&base, 0).unwrap();
    base.close().unwrap();
}

#[test]
fn room_comes_back_in_the_background_and_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let base = volume(&dir.path().join("v"), Options::default());
    let empty = available(&base);
    let count = fill(&base);
    remove(&base, 0..count);
    // Nobody asks for space. The last keys, of which there are few, wait for a checkpoint.
    wait_until("room is shown", || available(&base) > empty * 4 / 5);
    wait_until("room is made", || base.info().kv_segments < 40);
    base.close().unwrap();
}

/// Sets it, also where a test fails meanwhile.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn packing_in_the_background_is_in_nobodys_way() {
    let dir = tempfile::tempdir().unwrap();
    let base = volume(&dir.path().join("v"), Options { sync_interval: Duration::ZERO, ..Options::default() });
    put(&base, 1_000_000).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = End(&done);
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(base.get(&key(1_000_000)).unwrap().as_deref(), Some(&VALUE[..]));
                    assert!(!scan_all(&base).unwrap().is_empty());
                }
            });
        }
        for _ in 0..2 {
            let count = fill(&base);
            remove(&base, 0..count);
        }
        wait_until("it is packed, whoever reads", || base.info().kv_segments < 40);
        drop(end);
    });
    assert_eq!(scan_all(&base).unwrap().len(), 1);
    base.close().unwrap();
}

#[test]
fn gc_makes_the_file_shorter() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v");
    let base = volume(&path, Options::default());
    let count = fill(&base);
    remove(&base, 0..count);
    let full = path.metadata().unwrap().len();
    base.gc().unwrap();
    let after = path.metadata().unwrap().len();
    assert!(after < full / 2, "{after} of {full}");
    put(&base, 1).unwrap();
    let count = fill(&base);
    base.close().unwrap();
    let base = Base::open(Arc::new(HostBlockFile::open(&path, Access::Write).unwrap()), "v", quiet()).unwrap();
    assert_eq!(scan_all(&base).unwrap().len(), count);
}

/// What is written anew while the old content is there takes its room twice, and little more, however often.
#[test]
fn content_that_is_replaced_again_and_again_takes_little_more() {
    const ROUNDS: usize = 20;
    const BLOCKS: u32 = 5120;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v");
    let file = Arc::new(HostBlockFile::create(&path).unwrap());
    let base = Base::create(file, "v", &NewVolume::new(256 << 20), Options::default()).unwrap();
    let block = vec![1; BLOCK_LEN_BYTES];
    let sum = crc32c::crc32c(&block);
    let mut old: Vec<Run> = Vec::new();
    for round in 0..ROUNDS {
        let runs = base.reserve(BLOCKS, None, false).unwrap();
        runs.iter().for_each(|run| base.write(run.start, &block.repeat(run.count as usize)).unwrap());
        let allocated = runs.iter().map(|run| (*run, vec![sum; run.count as usize])).collect();
        base.apply(Batch { allocated, ..Batch::default() }).unwrap();
        base.apply(Batch { freed: std::mem::replace(&mut old, runs), ..Batch::default() }).unwrap();
        base.sync().unwrap();
        let taken = std::os::unix::fs::MetadataExt::blocks(&path.metadata().unwrap()) * 512;
        assert!(taken <= 60 << 20, "{taken} bytes in round {round}");
    }
    base.close().unwrap();
}
