//! Files that the kernel opens by itself: of a manifest whose files have one block each.

mod common;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use adit_core::engine::EngineOptions;
use adit_manifest::cache::CacheOptions;
use adit_manifest::store::ManifestStore;
use adit_mount::{MountOptions, Until};
use adit_testkit::Rng;
use adit_testkit::objects::{MemoryObjects, ObjectFaults};
use common::{Mounted, await_that, fuse_usable, is_root, manifest, refuse_under_ci};
use rustix::fs::{OFlags, SeekFrom as RawSeek};

/// More files than are kept open.
const FILES: usize = 300;

fn contents() -> Vec<Vec<u8>> {
    let content = |n: usize| {
        let mut bytes = vec![0; 37 * n];
        Rng::new(n as u64).fill(&mut bytes);
        bytes
    };
    (0..FILES).map(content).collect()
}

fn mount(store: ManifestStore) -> Mounted<ManifestStore> {
    mount_with(store, false)
}

fn mount_with(store: ManifestStore, counts_opens: bool) -> Mounted<ManifestStore> {
    let ttl = std::time::Duration::from_secs(3600);
    let options = EngineOptions { read_only: true, attr_ttl: ttl, entry_ttl: ttl, ..EngineOptions::default() };
    let mount = MountOptions { read_only: true, counts_opens, ..MountOptions::default() };
    Mounted::attached(store, options, Until::default(), &mount)
}

fn requests(mounted: &Mounted<ManifestStore>, kind: &str) -> u64 {
    let asked = mounted.handle.requests_by_kind();
    asked.iter().find(|(name, _)| *name == kind).map_or(0, |(_, count)| *count)
}

fn direct(path: &Path) -> File {
    let fd: OwnedFd = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT, 0.into()).unwrap();
    File::from(fd)
}

#[test]
fn what_was_read_once_is_opened_and_read_without_a_request() {
    if !fuse_usable("what_was_read_once_is_opened_and_read_without_a_request") {
        return;
    }
    let (dir, all) = (tempfile::tempdir().unwrap(), contents());
    let mounted = mount(manifest::store(dir.path(), &all, &ObjectFaults::new(), CacheOptions::default()));
    let read_all = || {
        for (n, content) in all.iter().enumerate() {
            assert!(fs::read(mounted.path(&n.to_string())).unwrap() == *content, "{n}");
        }
    };
    read_all();
    assert_eq!(requests(&mounted, "open"), 1, "the first, and never again");
    let before = mounted.handle.requests();
    read_all();
    assert_eq!(mounted.handle.requests(), before);
    assert_eq!((requests(&mounted, "release"), mounted.handle.passed_opens()), (0, 0));

    // The other calls on what is open.
    let mut file = File::open(mounted.path("299")).unwrap();
    let content = &all[299];
    assert_eq!(file.metadata().unwrap().len(), content.len() as u64);
    file.sync_all().unwrap();
    file.seek(SeekFrom::Start(5000)).unwrap();
    let mut rest = Vec::new();
    file.read_to_end(&mut rest).unwrap();
    assert!(rest == content[5000..]);
    assert_eq!(rustix::fs::seek(&file, RawSeek::Hole(0)).unwrap(), content.len() as u64);
    assert_eq!(rustix::fs::seek(&file, RawSeek::Data(7)).unwrap(), 7);
    let mut some = [0; 100];
    direct(&mounted.path("299")).read_exact_at(&mut some, 33).unwrap();
    assert!(some == content[33..133]);
    assert_eq!(File::options().write(true).open(mounted.path("299")).unwrap_err().raw_os_error(), Some(libc::EROFS));
    drop(file);
    mounted.end();
}

#[test]
fn many_files_are_read_at_once_by_many() {
    if !fuse_usable("many_files_are_read_at_once_by_many") {
        return;
    }
    let (dir, all) = (tempfile::tempdir().unwrap(), contents());
    let mounted = mount(manifest::store(dir.path(), &all, &ObjectFaults::new(), CacheOptions::default()));
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let (mounted, all) = (&mounted, &all);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                for _ in 0..FILES {
                    let n = 1 + rng.below(FILES as u64 - 1) as usize;
                    // Past the kernel's pages, so that each read needs a handle.
                    let (mut read, at) = (vec![0; 4096], rng.below(37 * n as u64) as usize);
                    let len = direct(&mounted.path(&n.to_string())).read_at(&mut read, at as u64).unwrap();
                    assert!(read[..len] == all[n][at..(at + 4096).min(37 * n)], "{n} at {at}");
                }
            });
        }
    });
    // Each may have asked before the first answer came.
    assert!((1..=8).contains(&requests(&mounted, "open")));
    mounted.end();
}

/// A mount that ends when nobody uses it has to know who does.
#[test]
fn opens_are_asked_for_where_they_are_counted() {
    if !fuse_usable("opens_are_asked_for_where_they_are_counted") {
        return;
    }
    let (dir, all) = (tempfile::tempdir().unwrap(), contents());
    let store = manifest::store(dir.path(), &all, &ObjectFaults::new(), CacheOptions::default());
    let mounted = mount_with(store, true);
    let file = File::open(mounted.path("7")).unwrap();
    assert_eq!(mounted.handle.open_handles(), 1);
    drop(file);
    await_that("it is closed", || mounted.handle.open_handles() == 0);
    mounted.end();
}

#[test]
fn wrong_bytes_are_an_error_and_right_ones_show_once_they_are_there() {
    if !fuse_usable("wrong_bytes_are_an_error_and_right_ones_show_once_they_are_there") {
        return;
    }
    let (dir, all, memory) = (tempfile::tempdir().unwrap(), contents(), MemoryObjects::new());
    let cache = CacheOptions { retry_after: std::time::Duration::from_millis(50), ..CacheOptions::default() };
    let mounted = mount(manifest::store_of(dir.path(), &all, &memory, &ObjectFaults::new(), cache));
    let turn = || assert!(memory.rot(&manifest::key_of(&all[200]), |bytes| bytes[10] ^= 1));
    turn();
    for _ in 0..2 {
        assert_eq!(fs::read(mounted.path("200")).unwrap_err().raw_os_error(), Some(libc::EIO));
    }
    turn();
    await_that("it is fetched again", || fs::read(mounted.path("200")).is_ok_and(|read| read == all[200]));
    mounted.end();
}

#[test]
fn what_the_kernel_forgets_is_closed() {
    if !fuse_usable("what_the_kernel_forgets_is_closed") {
        return;
    }
    if !is_root() {
        return refuse_under_ci("what_the_kernel_forgets_is_closed", "dropping the kernel's caches needs root");
    }
    let (dir, all) = (tempfile::tempdir().unwrap(), contents());
    let mounted = mount(manifest::store(dir.path(), &all, &ObjectFaults::new(), CacheOptions::default()));
    for n in 1..FILES {
        fs::read(mounted.path(&n.to_string())).unwrap();
    }
    assert!(mounted.engine.known_inodes() > FILES / 2);
    await_that("the kernel forgets all but the root", || {
        fs::write("/proc/sys/vm/drop_caches", "3").expect("root may drop caches");
        mounted.engine.known_inodes() == 1
    });
    assert!(fs::read(mounted.path("5")).unwrap() == all[5]);
    mounted.end();
}

/// A block less than the longest file.
#[test]
fn files_of_several_blocks_are_opened() {
    if !fuse_usable("files_of_several_blocks_are_opened") {
        return;
    }
    let (dir, all) = (tempfile::tempdir().unwrap(), contents());
    let cache = CacheOptions { block_len: 4096, ..CacheOptions::default() };
    let mounted = mount(manifest::store(dir.path(), &all, &ObjectFaults::new(), cache));
    for n in [1, 299, 1] {
        assert!(fs::read(mounted.path(&n.to_string())).unwrap() == all[n]);
    }
    assert_eq!(requests(&mounted, "open"), 3);
    mounted.end();
}
