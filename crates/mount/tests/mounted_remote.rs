//! A store whose content comes over a network: who reads what does not come is in nobody's way.

mod common;

use std::fs;
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::channel;

use adit_core::engine::EngineOptions;
use adit_manifest::cache::CacheOptions;
use adit_manifest::store::ManifestStore;
use adit_mount::{MountOptions, Until};
use adit_testkit::objects::{ObjectCall, ObjectFault, ObjectFaults};
use common::{Mounted, await_that, fuse_usable, manifest};
use rustix::fs::{Advice, OFlags};

/// Files whose content does not come. Many more than threads that serve.
const COLD: usize = 20;

fn content(n: usize) -> Vec<u8> {
    vec![n as u8; 1000 + n]
}

/// A store of a manifest with files `0` to `COLD`, whose objects come as `faults` says.
fn store(dir: &std::path::Path, faults: &ObjectFaults) -> ManifestStore {
    let contents: Vec<_> = (0..=COLD).map(content).collect();
    manifest::store(dir, &contents, faults, CacheOptions::default())
}

#[test]
fn who_waits_for_content_is_in_nobodys_way() {
    if !fuse_usable("who_waits_for_content_is_in_nobodys_way") {
        return;
    }
    let (dir, faults) = (tempfile::tempdir().unwrap(), ObjectFaults::new());
    let store = store(dir.path(), &faults);
    let mount = MountOptions { threads: NonZero::new(2).unwrap(), read_only: true, ..MountOptions::default() };
    let options = EngineOptions { read_only: true, ..EngineOptions::default() };
    let mounted = Mounted::attached(store, options, Until::default(), &mount);
    // This one is cached.
    let last = COLD.to_string();
    assert_eq!(fs::read(mounted.path(&last)).unwrap(), content(COLD));
    faults.always(ObjectFault::Hold, &[ObjectCall::Read]);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..COLD)
            .map(|n| (n, mounted.path(&n.to_string())))
            .map(|(n, path)| (n, scope.spawn(move || fs::read(path))))
            .collect();
        faults.wait_for_held(COLD as u64);
        // Who opens and closes one of them meanwhile waits for nothing, however many do.
        for _ in 0..5 {
            drop(fs::File::open(mounted.path("0")).unwrap());
        }
        // While all of them wait. With a request of its own each: nothing of this is in the kernel's caches.
        assert_eq!(fs::read_dir(mounted.root()).unwrap().count(), COLD + 1);
        for n in 0..COLD {
            assert_eq!(mounted.path(&n.to_string()).metadata().unwrap().len(), 1000 + n as u64);
        }
        assert!(mounted.path("none").metadata().is_err());
        let cached = rustix::fs::open(mounted.path(&last), OFlags::RDONLY | OFlags::DIRECT, 0.into());
        let mut bytes = vec![0; 512];
        fs::File::from(cached.unwrap()).read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, content(COLD)[..512]);
        faults.clear();
        faults.release();
        for (n, reader) in readers {
            assert_eq!(reader.join().unwrap().unwrap(), content(n), "{n}");
        }
    });
    mounted.end();
}

/// More readers of one file than threads that wait, each of a block of its own: those of other files go on, whether their content is here or has
/// to come.
#[test]
fn many_who_wait_for_one_file_leave_room_for_others() {
    if !fuse_usable("many_who_wait_for_one_file_leave_room_for_others") {
        return;
    }
    const READERS: usize = 120;
    const BLOCK: usize = 64 << 10;
    let (dir, faults) = (tempfile::tempdir().unwrap(), ObjectFaults::new());
    let stalled: Vec<u8> = (0..READERS * BLOCK).map(|at| (at / BLOCK) as u8).collect();
    // Longer than what comes with the answer to an open, and one block.
    let others: Vec<_> = [7, 8].map(|byte| vec![byte; BLOCK - 1]).into();
    let contents = [vec![stalled.clone()], others.clone()].concat();
    let cache = CacheOptions { block_len: BLOCK as u32, ..CacheOptions::default() };
    let store = manifest::store(dir.path(), &contents, &faults, cache);
    let mount = MountOptions { threads: NonZero::new(2).unwrap(), read_only: true, ..MountOptions::default() };
    let options = EngineOptions { read_only: true, ..EngineOptions::default() };
    let mounted = Mounted::attached(store, options, Until::default(), &mount);
    // This one is in the cache, and the kernel has no page of it.
    let direct = rustix::fs::open(mounted.path("1"), OFlags::RDONLY | OFlags::DIRECT, 0.into()).unwrap();
    fs::File::from(direct).read_exact_at(&mut vec![0; BLOCK - 1], 0).unwrap();
    faults.add(ObjectFault::Hold, &[ObjectCall::Read], &manifest::key_of(&stalled), 0, u64::MAX);
    std::thread::scope(|scope| {
        let (sent, ids) = channel();
        // Before anybody reads: the first who opens a file has the kernel drop its pages, and would wait for one that is on its way.
        let files: Vec<_> = (0..READERS).map(|_| fs::File::open(mounted.path("0")).unwrap()).collect();
        let readers: Vec<_> = files
            .into_iter()
            .enumerate()
            .map(|(n, file)| {
                let sent = sent.clone();
                scope.spawn(move || {
                    // A request of its own, on the kernel's account.
                    rustix::fs::fadvise(&file, 0, None, Advice::Random).unwrap();
                    let mut page = [0; 4096];
                    sent.send(rustix::thread::gettid()).unwrap();
                    file.read_exact_at(&mut page, (n * BLOCK) as u64).map(|()| page)
                })
            })
            .collect();
        let ids: Vec<_> = ids.iter().take(READERS).collect();
        await_that("all of them wait in the kernel", || {
            ids.iter().all(|id| {
                let stat = format!("/proc/self/task/{}/stat", id.as_raw_nonzero());
                let stat = fs::read_to_string(stat).unwrap();
                stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('D'))
            })
        });
        faults.wait_for_held(40);
        for (name, content) in ["1", "2"].iter().zip(&others) {
            assert!(fs::read(mounted.path(name)).unwrap() == *content, "{name}");
        }
        faults.clear();
        for (n, reader) in readers.into_iter().enumerate() {
            assert_eq!(reader.join().unwrap().unwrap(), [n as u8; 4096], "{n}");
        }
    });
    mounted.end();
}
