//! Several caches on one folder: in one process and in several, one of which is killed again and again.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};

use adit_manifest::cache::{Cache, CacheOptions, CheckOptions, ObjectId, check_folder};
use adit_testkit::{Rng, scaled};

use crate::support::*;

/// Names the folder in the environment of a child.
const FOLDER: &str = "ADIT_TEST_CACHE_FOLDER";
/// Names its seed.
const SEED: &str = "ADIT_TEST_CACHE_SEED";

fn objects(source: &Source) -> Vec<ObjectId> {
    (0..8).map(|n| source.add(200 + n * 4000, n as u64)).collect()
}

/// Reads for ever, or some times.
fn read_randomly(cache: &Cache, source: &Source, ids: &[ObjectId], seed: u64, times: u64) {
    let mut rng = Rng::new(seed);
    for _ in 0..times {
        let id = *rng.pick(ids);
        let (content, offset) = (source.content(id), rng.below(id.len) as usize);
        let found = read(&cache.object(id), offset as u64, 3000, source).unwrap();
        assert!(found == content[offset..(offset + 3000).min(content.len())], "seed {seed}");
        if rng.percent(5) {
            drop(cache.object(id).verified_file());
        }
    }
}

/// The other processes: they run this test alone, with a folder.
#[test]
fn child() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let seed = std::env::var(SEED).unwrap().parse().unwrap();
    let source = Source::new();
    let ids = objects(&source);
    let host = adit_media::HostDirectory::open(folder.as_ref()).unwrap();
    let limit_bytes = if seed % 2 == 0 { u64::MAX } else { 60_000 };
    let cache = open(host, CacheOptions { workers: 2, limit_bytes, ..options() });
    let times = if seed >= 1000 { u64::MAX } else { 400 };
    read_randomly(&cache, &source, &ids, seed, times);
    assert_eq!((cache.stats().quarantined, cache.stats().damaged), (0, 0));
}

fn spawn(dir: &tempfile::TempDir, seed: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "processes::child"]).env(FOLDER, dir.path()).env(SEED, seed.to_string());
    command.stdout(std::process::Stdio::null()).spawn().unwrap()
}

#[test]
fn two_caches_on_a_folder_share_it() {
    let (dir, source) = (folder(), Source::new());
    let ids = objects(&source);
    let caches: Vec<Cache> = (0..2).map(|_| open(host(&dir), CacheOptions { workers: 1, ..options() })).collect();
    std::thread::scope(|scope| {
        for (n, cache) in caches.iter().enumerate() {
            for thread in 0..2 {
                let (source, ids) = (&source, &ids);
                scope.spawn(move || read_randomly(cache, source, ids, n as u64 * 2 + thread, 300));
            }
        }
    });
    for cache in &caches {
        assert_eq!((cache.stats().quarantined, cache.stats().damaged), (0, 0));
        assert_eq!(cache.stats().folder_errors, 0);
    }
    let (small, large): (Vec<&ObjectId>, Vec<&ObjectId>) = ids.iter().partition(|id| id.len <= u64::from(BLOCK));
    // Blocks are fetched by one of them; of small objects both may try at one moment.
    let fetched: u64 = caches.iter().map(|cache| cache.stats().fetched_bytes).sum();
    let bytes = |ids: &[&ObjectId]| ids.iter().map(|id| id.len).sum::<u64>();
    assert!(fetched <= bytes(&large) + 2 * bytes(&small), "{fetched}");
}

/// While one fetches a block the other waits for it, and takes over when that one gives up.
#[test]
fn a_block_is_fetched_by_one_process_at_a_time() {
    let (dir, source) = (folder(), Source::new());
    let id = source.add(5000, 1);
    let caches: Vec<Cache> = (0..2).map(|_| open(host(&dir), options())).collect();
    let quiet = Source::new();
    quiet.add(5000, 1);
    source.hold(100);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| read(&caches[0].object(id), 0, 100, &source));
        source.wait_for_held(1);
        let second = scope.spawn(|| read(&caches[1].object(id), 0, 100, &quiet));
        // Another block is nobody's.
        read(&caches[1].object(id), 3000, 100, &quiet).unwrap();
        assert_eq!(quiet.fetched(), [2048..4096]);
        source.release();
        assert!(first.join().unwrap().unwrap() == second.join().unwrap().unwrap());
    });
    assert_eq!(quiet.fetched(), [], "it was there when it was its turn");
    // One that gives nothing is not waited for for ever; what is fetched then is not kept.
    source.hold(4500);
    let impatient =
        open(host(&dir), CacheOptions { others_patience: std::time::Duration::from_millis(30), ..options() });
    std::thread::scope(|scope| {
        let first = scope.spawn(|| read(&caches[0].object(id), 4500, 100, &source));
        source.wait_for_held(1);
        assert!(read(&impatient.object(id), 4500, 100, &quiet).unwrap() == source.content(id)[4500..4600]);
        assert_eq!(quiet.fetched(), [4500..4600]);
        source.release();
        first.join().unwrap().unwrap();
    });
    // One that failed is followed at once.
    let other = source.add(5001, 2);
    quiet.add(5001, 2);
    source.hold(100);
    source.act(&[Act::FailMidway]);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| read(&caches[0].object(other), 0, 100, &source));
        source.wait_for_held(1);
        let second = scope.spawn(|| read(&caches[1].object(other), 0, 100, &quiet));
        source.release();
        first.join().unwrap().unwrap_err();
        second.join().unwrap().unwrap();
    });
}

#[test]
fn processes_share_a_folder() {
    let dir = folder();
    let children: Vec<Child> = (0..4).map(|seed| spawn(&dir, seed)).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let report = check_folder(&host(&dir), CheckOptions::default(), &mut |_| {}).unwrap();
    assert_eq!((report.damaged, report.foreign), (0, 0), "{:?}", report.findings);
}

/// A kill at any moment leaves nothing that is wrong, and no lock.
#[test]
fn a_killed_process_leaves_nothing_wrong() {
    let (dir, source) = (folder(), Source::new());
    let ids = objects(&source);
    let mut rng = Rng::new(1);
    for round in 0..scaled(12) as u64 {
        if round % 3 == 0 {
            // So that there is something to write.
            let _ = std::fs::remove_dir_all(dir.path().join("objects"));
        }
        let mut children: Vec<Child> = (0..2).map(|n| spawn(&dir, 1000 + round * 2 + n)).collect();
        eventually("they have begun", || files(dir.path()).len() > 4);
        std::thread::sleep(std::time::Duration::from_millis(rng.below(60)));
        for child in &mut children {
            child.kill().unwrap();
            assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL), "it had found something wrong");
        }
        let report = check_folder(&host(&dir), CheckOptions::default(), &mut |_| {}).unwrap();
        assert_eq!(report.damaged, 0, "{:?}", report.findings);
        let cache = open(host(&dir), options());
        for id in &ids {
            read_all(&cache, *id, 3000, &source);
        }
        assert_eq!((cache.stats().damaged, cache.stats().folder_errors), (0, 0));
    }
}
