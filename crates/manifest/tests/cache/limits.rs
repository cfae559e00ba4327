//! How much the folder may hold, and what goes first.

use std::os::unix::fs::MetadataExt;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use adit_core::media::{HostDir, HostFile};
use adit_core::types::StatFs;
use adit_manifest::cache::CacheOptions;
use adit_testkit::{Rng, Through};

use crate::support::*;

/// Bytes that the folder's objects take.
fn used(dir: &tempfile::TempDir) -> u64 {
    used_in(dir.path())
}

fn used_in(dir: &Path) -> u64 {
    let files = files(&dir.join("objects"));
    files.iter().filter_map(|path| std::fs::metadata(path).ok()).map(|meta| meta.blocks() * 512).sum()
}

/// Blocks as long as the host's, so that what is counted is what is taken.
fn options_of(limit_bytes: u64) -> CacheOptions {
    CacheOptions { limit_bytes, block_len: 4096, ..options() }
}

#[test]
fn the_folder_stays_within_its_limit() {
    const LIMIT: u64 = 1 << 20;
    let (dir, source) = (folder(), Source::new());
    let ids: Vec<_> = (0..40).map(|n| source.add(if n % 2 == 0 { 150_000 } else { 3000 }, n)).collect();
    for workers in [0, 2] {
        let cache = open(host(&dir), CacheOptions { workers, ..options_of(LIMIT) });
        let mut rng = Rng::new(7);
        for _ in 0..200 {
            let id = *rng.pick(&ids);
            let offset = rng.below(id.len);
            let from = offset as usize;
            let found = read(&cache.object(id), offset, 20_000, &source).unwrap();
            let content = source.content(id);
            assert!(found == content[from..(from + 20_000).min(content.len())]);
            assert!(used(&dir) <= LIMIT + LIMIT / 16, "{}", used(&dir));
        }
        let stats = cache.stats();
        assert!(stats.evictions > 0 && stats.evicted_bytes > 0 && stats.used_bytes <= LIMIT, "{stats:?}");
        assert_eq!(stats.limit_bytes, LIMIT);
    }
    // It is still so for who opens it with less.
    drop(open(host(&dir), options_of(LIMIT / 4)));
    assert!(used(&dir) <= LIMIT / 4, "{}", used(&dir));
}

/// An object that is larger than all that may be kept is read, kept as far as that goes, and fetched about once if it is read once.
#[test]
fn an_object_larger_than_the_limit_is_read() {
    const LIMIT: u64 = 400_000;
    for strict in [false, true] {
        let (dir, source) = (folder(), Source::new());
        let id = source.add(1_000_000, 1);
        let cache = open(host(&dir), CacheOptions { strict, ..options_of(LIMIT) });
        read_all(&cache, id, if strict { 500_000 } else { 10_000 }, &source);
        assert!(used(&dir) <= LIMIT + LIMIT / 16, "{}", used(&dir));
        if !strict {
            // The block that a request ends in is lost if room is made just then.
            let stats = cache.stats();
            assert!(source.fetched_bytes() <= 1_000_000 + stats.evictions * 4096, "{stats:?}");
            assert!(stats.evictions >= 2);
            assert_eq!(cache.stats().passed_bytes, 0);
        }
    }
}

/// All of it is compared once, before the first byte; after that each block with what it was then.
#[test]
fn a_strict_reader_of_an_object_larger_than_the_limit_fetches_it_twice_and_no_more() {
    for limit_bytes in [400_000, 0] {
        let (dir, source) = (folder(), Source::new());
        let id = source.add(1_000_000, 1);
        let cache = open(host(&dir), CacheOptions { strict: true, ..options_of(limit_bytes) });
        let object = cache.object(id);
        read(&object, 700_000, 10, &source).unwrap();
        assert!(source.fetched_bytes() <= 1_000_000 + 4096);
        let content = source.content(id);
        for at in (0..1_000_000).step_by(4096) {
            let end = (at + 4096).min(1_000_000);
            assert!(read(&object, at as u64, 4096, &source).unwrap() == content[at..end]);
        }
        let stats = cache.stats();
        assert!(source.fetched_bytes() <= 1_000_000 + stats.evictions * 4096, "{stats:?}");
        assert_eq!(stats.verified, 1);
        let mut rng = Rng::new(2);
        for _ in 0..100 {
            let at = rng.below(1_000_000 - 100) as usize;
            assert!(read(&object, at as u64, 100, &source).unwrap() == content[at..at + 100]);
            assert!(source.fetched_bytes() <= 2 * 4096, "a block, or two");
        }
        // A block that comes wrong is fetched again; one that stays so is an error.
        drop(std::fs::remove_dir_all(dir.path().join("objects")));
        let cache = open(host(&dir), CacheOptions { strict: true, ..options_of(limit_bytes) });
        let object = cache.object(id);
        read(&object, 0, 1, &source).unwrap();
        for n in 1..20u64 {
            source.act(&[Act::Flip]);
            let at = (n * 40_960 + 4000) as usize;
            assert!(read(&object, at as u64, 96, &source).unwrap() == content[at..at + 96], "{n}");
            source.forget_acts();
        }
        source.always(Act::Flip);
        let wrong = (0..50).map(|n| read(&object, n * 20_480 + 4000, 96, &source)).find_map(Result::err);
        assert_eq!(wrong.expect("nothing else is there").kind(), adit_core::error::ErrorKind::Corrupt);
        source.always(Act::Right);
    }
}

/// Many at once: one of them goes through all of it.
#[test]
fn strict_readers_of_an_object_larger_than_the_limit_share_what_one_found() {
    let (dir, source) = (folder(), Source::new());
    let id = source.add(1_000_000, 1);
    let cache = open(host(&dir), CacheOptions { strict: true, ..options_of(100_000) });
    let (object, content) = (cache.object(id), source.content(id));
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (object, content, source) = (&object, &content, &source);
            scope.spawn(move || {
                let at = n * 100_000;
                assert!(read(object, at as u64, 4096, source).unwrap() == content[at..at + 4096]);
            });
        }
    });
    assert!(source.fetched_bytes() <= 1_000_000 + 8 * 4 * 4096);
}

/// What others have of the disk of [`small_disk`], in bytes, and where its folder is.
static OF_OTHERS: AtomicU64 = AtomicU64::new(0);
static SMALL_DISK: OnceLock<PathBuf> = OnceLock::new();
const DISK_LEN: u64 = 4 << 20;
/// What is kept free of such a small one.
const KEPT_FREE: u64 = DISK_LEN / 4;

/// A folder on a small disk, of which there is one.
fn small_disk(dir: &tempfile::TempDir) -> impl HostDir + use<> {
    SMALL_DISK.set(dir.path().to_owned()).unwrap();
    Through::files(host(dir), |file: Box<dyn HostFile>| file).with_space(|space| {
        let taken = OF_OTHERS.load(Ordering::SeqCst) + used_in(SMALL_DISK.get().unwrap());
        let free = DISK_LEN.saturating_sub(taken) / 4096;
        StatFs { block_size: 4096, blocks: DISK_LEN / 4096, blocks_free: free, blocks_available: free, ..space }
    })
}

/// The volume of a writable mount often lies on the same disk: it must not find that full of what can be fetched again.
#[test]
fn some_of_the_disk_is_left_to_others() {
    let (dir, source) = (folder(), Source::new());
    let ids: Vec<_> = (0..60).map(|n| source.add(if n % 2 == 0 { 150_000 } else { 3000 }, n)).collect();
    let cache = open(small_disk(&dir), options_of(u64::MAX));
    let free = || DISK_LEN.saturating_sub(OF_OTHERS.load(Ordering::SeqCst) + used(&dir));
    let read_each = || {
        for id in &ids {
            read_all(&cache, *id, 20_000, &source);
        }
    };
    read_each();
    let stats = cache.stats();
    assert_eq!((stats.limit_bytes, stats.kept_free_bytes), (u64::MAX, KEPT_FREE));
    assert!(stats.evictions > 0 && used(&dir) > DISK_LEN / 2, "{stats:?}");
    // A block or two were under way.
    assert!(free() >= KEPT_FREE - 200_000, "{}", free());
    // Somebody else takes some of it: that is made up for as soon as something is added.
    OF_OTHERS.store(DISK_LEN / 4, Ordering::SeqCst);
    read_each();
    assert!(free() >= KEPT_FREE - 200_000, "{}", free());
    assert!(used(&dir) > DISK_LEN / 4);
    // Who finds it full gets as much as is needed.
    let before = used(&dir);
    OF_OTHERS.store(DISK_LEN - before, Ordering::SeqCst);
    assert!(cache.make_room_for(100_000));
    assert!(used(&dir) <= before - 100_000 - KEPT_FREE / 2);
    // All of it: what is here goes, nothing is kept, and everything can be read.
    OF_OTHERS.store(DISK_LEN, Ordering::SeqCst);
    read_all(&cache, ids[0], 20_000, &source);
    assert_eq!(used(&dir), 0);
    read_all(&cache, ids[0], 20_000, &source);
    assert_eq!(used(&dir), 0);
    assert!(!cache.make_room_for(1), "there is nothing left to remove");
}

#[derive(Default)]
struct Told(std::sync::atomic::AtomicU64);

impl adit_manifest::cache::Watch for Told {
    fn quarantined(&self, _: &adit_manifest::cache::ObjectId) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

/// Who reads an object from its beginning to its end learns whether it was right, also of one that was never there as a whole.
#[test]
fn an_object_larger_than_the_limit_is_compared_when_a_reader_came_through() {
    let (dir, source) = (folder(), Source::new());
    let id = source.add(1_000_000, 1);
    let told = std::sync::Arc::new(Told::default());
    let watch = || told.0.load(std::sync::atomic::Ordering::SeqCst);
    let cache = open(host(&dir), CacheOptions { watch: Some(told.clone()), ..options_of(400_000) });
    let (object, content) = (cache.object(id), source.content(id));
    let through = || {
        (0..1_000_000)
            .step_by(10_000)
            .map(|at| read(&object, at as u64, 10_000, &source).map(|got| got == content[at..at + 10_000]))
            .collect::<Result<Vec<_>, _>>()
    };
    source.act(&[Act::Flip]);
    assert_eq!(through().unwrap_err().kind(), adit_core::ErrorKind::Corrupt, "it is known at the end");
    assert_eq!((watch(), cache.stats().quarantined), (1, 1));
    assert!(through().unwrap().into_iter().all(|right| right));
    assert_eq!((watch(), cache.stats().verified), (1, 1));
    // From now on each block is compared.
    source.fetched();
    for n in 0..50u64 {
        source.act(&[Act::Flip]);
        let at = (n * 20_000) as usize;
        assert!(read(&object, at as u64, 500, &source).unwrap() == content[at..at + 500]);
        // It was there already.
        source.forget_acts();
    }
    assert!(through().unwrap().into_iter().all(|right| right));
    assert_eq!(watch(), 1);
}

#[test]
fn without_room_only_what_is_read_is_fetched() {
    let (dir, source) = (folder(), Source::new());
    let (large, small) = (source.add(100_000, 1), source.add(3000, 2));
    let cache = open(host(&dir), options_of(0));
    read(&cache.object(large), 50_000, 100, &source).unwrap();
    assert_eq!(source.fetched(), [50_000..50_100]);
    read_all(&cache, small, 3000, &source);
    read_all(&cache, large, 30_000, &source);
    cache.object(large).prefetch(0..large.len, &source).unwrap();
    assert_eq!(source.fetched_bytes(), 103_000);
    assert!(cache.object(large).verified_file().is_none());
    assert_eq!(cache.stats().used_bytes, 0);
}

/// Sets when an object was used last.
fn age(dir: &tempfile::TempDir, id: adit_manifest::cache::ObjectId, secs: u64) {
    let then = std::time::SystemTime::now() - std::time::Duration::from_secs(secs);
    let path = files(dir.path()).into_iter().find(|path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with(&id.hash.to_string()) && !name.ends_with(".data")
    });
    std::fs::File::options().write(true).open(path.unwrap()).unwrap().set_modified(then).unwrap();
}

#[test]
fn what_was_used_least_lately_goes_first_also_after_a_restart() {
    let (dir, source) = (folder(), Source::new());
    let ids: Vec<_> = (0..5).map(|n| source.add(20_000, n)).collect();
    let cache = open(host(&dir), options_of(u64::MAX));
    for id in &ids {
        read_all(&cache, *id, 20_000, &source);
    }
    drop(cache);
    for (n, id) in ids.iter().enumerate() {
        age(&dir, *id, 1000 * (n as u64 + 1));
    }
    // The oldest is used again.
    let cache = open(host(&dir), options_of(u64::MAX));
    read_all(&cache, ids[4], 20_000, &source);
    drop(cache);
    drop(open(host(&dir), options_of(75_000)));
    let cache = open(host(&dir), options_of(u64::MAX));
    let kept: Vec<u64> = ids.iter().map(|id| cache.object(*id).state().present).collect();
    assert_eq!(kept, [20_000, 0, 0, 0, 20_000], "{}", used(&dir));
}

/// What another process removes stays readable for who has it open.
#[test]
fn what_is_open_stays_readable() {
    let (dir, source) = (folder(), Source::new());
    let ids: Vec<_> = (0..80).map(|n| source.add(20_000, n)).collect();
    let cache = open(host(&dir), options_of(u64::MAX));
    let held = cache.object(ids[0]);
    for id in &ids {
        read_all(&cache, *id, 20_000, &source);
    }
    drop(cache);
    let limited = open(host(&dir), options_of(u64::MAX));
    let mine = limited.object(ids[0]);
    read_all(&limited, ids[0], 20_000, &source);
    let fd = mine.verified_file().or_else(|| mine.verified_file()).expect("all of it was read");
    drop(limited);
    // For another process it is the oldest.
    age(&dir, ids[0], 10_000);
    let other = open(host(&dir), options_of(60_000));
    source.fetched();
    let content = source.content(ids[0]);
    assert!(read(&held, 0, 20_000, &source).unwrap() == content);
    assert!(read(&mine, 0, 20_000, &source).unwrap() == content);
    assert_eq!(source.fetched(), [], "an open file outlives its name");
    assert_eq!(other.object(ids[0]).state().present, 0, "its name has gone");
    let mut through = std::fs::File::from(fd);
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut through, &mut bytes).unwrap();
    assert!(bytes == content);
    drop(other);
}

#[test]
fn an_object_in_use_is_not_removed_before_others() {
    let (dir, source) = (folder(), Source::new());
    let ids: Vec<_> = (0..6).map(|n| source.add(20_000, n)).collect();
    let cache = open(host(&dir), options_of(100_000));
    let held = cache.object(ids[0]);
    read_all(&cache, ids[0], 20_000, &source);
    for _ in 0..3 {
        age(&dir, ids[0], 10_000);
        for id in &ids[1..] {
            read_all(&cache, *id, 20_000, &source);
        }
        assert_eq!(held.state().present, 20_000);
    }
    assert!(cache.stats().evictions > 2);
}

/// What a kill left half made is swept when it is old.
#[test]
fn orphans_are_swept() {
    let (dir, source) = (folder(), Source::new());
    let id = source.add(20_000, 1);
    let cache = open(host(&dir), options_of(u64::MAX));
    read_all(&cache, id, 20_000, &source);
    drop(cache);
    let map = files_with(dir.path(), "map").remove(0);
    let data = files_with(dir.path(), "data").remove(0);
    std::fs::remove_file(&map).unwrap();
    let temporary = data.with_file_name(".adit-0123abcd.tmp");
    std::fs::write(&temporary, "x").unwrap();
    drop(open(host(&dir), options_of(u64::MAX)));
    assert!(data.exists() && temporary.exists(), "perhaps somebody makes them now");
    for path in [&data, &temporary] {
        let then = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
        std::fs::File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
    }
    drop(open(host(&dir), options_of(u64::MAX)));
    assert!(!data.exists() && !temporary.exists());
}
