//! Files that the kernel reads by itself, because they are complete and verified in the cache.

mod common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use adit_core::engine::EngineOptions;
use adit_core::store::Store;
use adit_manifest::cache::CacheOptions;
use adit_manifest::store::ManifestStore;
use adit_mount::{Ended, MountOptions, Until};
use adit_testkit::Rng;
use adit_testkit::objects::ObjectFaults;
use common::{Mounted, await_that, fuse_usable, is_root, manifest, refuse_under_ci};
use rustix::fs::OFlags;

/// Longer than a block of the cache, and no multiple of a page.
const LEN: usize = (3 << 20) + 77;
/// First Linux that can.
const LINUX_MIN: (u32, u32) = (6, 9);

/// Whether the kernel would do it here. Under CI it must.
fn passthrough_usable(test: &str) -> bool {
    if !fuse_usable(test) {
        return false;
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let on_overlay = std::process::Command::new("stat").args(["-f", "-c", "%T"]).arg(std::env::temp_dir()).output();
    let reason = if !is_root() {
        "not root"
    } else if version < LINUX_MIN {
        "the kernel is too old"
    } else if on_overlay.is_ok_and(|told| told.stdout.starts_with(b"overlay")) {
        "the temporary folder lies on an overlay"
    } else {
        return true;
    };
    refuse_under_ci(test, reason);
    false
}

fn contents(count: usize, len: usize) -> Vec<Vec<u8>> {
    let content = |n: usize| {
        let mut bytes = vec![0; len + n];
        Rng::new(n as u64).fill(&mut bytes);
        bytes
    };
    (0..count).map(content).collect()
}

fn mounted(store: ManifestStore, passthrough: bool) -> Mounted<ManifestStore> {
    let options = EngineOptions { read_only: true, ..EngineOptions::default() };
    let threads = NonZero::new(4).unwrap();
    let mount = MountOptions { threads, read_only: true, passthrough, ..MountOptions::default() };
    Mounted::attached(store, options, Until::default(), &mount)
}

fn requests(mounted: &Mounted<ManifestStore>, kind: &str) -> u64 {
    let asked = mounted.handle.requests_by_kind();
    asked.iter().find(|(name, _)| *name == kind).map_or(0, |(_, count)| *count)
}

/// The file, open so that the kernel reads it by itself: all of it was read, and nobody else has it open.
fn passed(mounted: &Mounted<ManifestStore>, name: &str) -> File {
    let mut file = None;
    await_that("it is verified, and left to the kernel", || {
        drop(file.take());
        let before = mounted.handle.passed_opens();
        file = Some(File::open(mounted.path(name)).unwrap());
        mounted.handle.passed_opens() > before
    });
    file.unwrap()
}

fn direct(path: &Path) -> File {
    let fd: OwnedFd = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT, 0.into()).unwrap();
    File::from(fd)
}

#[test]
fn what_is_verified_is_read_by_the_kernel_alone() {
    if !passthrough_usable("what_is_verified_is_read_by_the_kernel_alone") {
        return;
    }
    let (dir, contents) = (tempfile::tempdir().unwrap(), contents(1, LEN));
    let content = &contents[0];
    let mounted = mounted(manifest::store(dir.path(), &contents, &ObjectFaults::new(), CacheOptions::default()), true);
    // Cold: it comes through us, and stays so as long as it is open.
    let cold = File::open(mounted.path("0")).unwrap();
    let mut bytes = vec![0; LEN];
    cold.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == *content);
    assert!(fs::read(mounted.path("0")).unwrap() == *content);
    assert!(requests(&mounted, "read") > 0);
    assert_eq!(mounted.handle.passed_opens(), 0);
    drop(cold);

    let file = passed(&mounted, "0");
    let reads = requests(&mounted, "read");
    assert!(fs::read(mounted.path("0")).unwrap() == *content);
    let mut rng = Rng::new(1);
    for _ in 0..200 {
        let (at, mut part) = (rng.below(LEN as u64) as usize, vec![0; rng.below(20_000) as usize]);
        let read = file.read_at(&mut part, at as u64).unwrap();
        assert_eq!(read, part.len().min(LEN - at), "short at the end alone");
        assert!(part[..read] == content[at..at + read]);
    }
    assert_eq!(file.read_at(&mut [0; 10], LEN as u64).unwrap(), 0);
    assert_eq!(file.read_at(&mut [0; 10], 1 << 40).unwrap(), 0);
    assert_eq!(file.metadata().unwrap().len(), LEN as u64);
    // As programs copy: by splice, and by what the kernel makes of it.
    let mut copy = tempfile::tempfile_in(dir.path()).unwrap();
    std::io::copy(&mut &file, &mut copy).unwrap();
    assert_eq!(copy.metadata().unwrap().len(), LEN as u64);
    let (mut end, pipe) = std::io::pipe().unwrap();
    let spliced = rustix::pipe::splice(&file, Some(&mut 5), &pipe, None, 1000, rustix::pipe::SpliceFlags::empty());
    let mut part = vec![0; spliced.unwrap()];
    end.read_exact(&mut part).unwrap();
    assert!(part == content[5..5 + part.len()]);
    // Mapped, also after it was closed.
    // SAFETY: the kernel chooses the place; the file is not changed as long as it is mapped, and it is unmapped below.
    let map = unsafe {
        let (prot, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
        rustix::mm::mmap(std::ptr::null_mut(), LEN, prot, flags, &file, 0).unwrap()
    };
    drop(file);
    // SAFETY: mapped just now, for so many bytes, and not unmapped before the last use.
    let mapped = unsafe { std::slice::from_raw_parts(map.cast::<u8>(), LEN) };
    assert!(mapped == content);
    assert_eq!(requests(&mounted, "read"), reads, "nobody was asked");
    // SAFETY: `mapped` is not used any more.
    unsafe { rustix::mm::munmap(map, LEN).unwrap() };
    assert_eq!(fs::write(mounted.path("0"), "x").unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(mounted.end(), Ended::Unmounted);
}

#[test]
fn handles_of_every_kind_get_on_with_each_other() {
    if !passthrough_usable("handles_of_every_kind_get_on_with_each_other") {
        return;
    }
    let (dir, contents) = (tempfile::tempdir().unwrap(), contents(2, LEN));
    let mounted = mounted(manifest::store(dir.path(), &contents, &ObjectFaults::new(), CacheOptions::default()), true);
    assert!(fs::read(mounted.path("0")).unwrap() == contents[0]);
    let first = passed(&mounted, "0");
    // Each with the same file of the host.
    let opens = mounted.handle.passed_opens();
    let many: Vec<File> = std::thread::scope(|scope| {
        let opening: Vec<_> = (0..50).map(|_| scope.spawn(|| File::open(mounted.path("0")).unwrap())).collect();
        opening.into_iter().map(|file| file.join().unwrap()).collect()
    });
    assert_eq!(mounted.handle.passed_opens(), opens + 50);
    let mut few = [0; 100];
    for file in &many {
        file.read_exact_at(&mut few, 4000).unwrap();
        assert_eq!(few, contents[0][4000..4100]);
    }
    // Among them one with O_DIRECT, of which a read at any place works as on every file here.
    let unaligned = direct(&mounted.path("0"));
    unaligned.read_exact_at(&mut few, 777).unwrap();
    assert_eq!(few, contents[0][777..877]);
    drop((first, many));
    File::open(mounted.path("0")).unwrap().read_exact_at(&mut few, 4000).unwrap();
    drop(unaligned);
    // Where such a one is the first, the others ask us as well.
    let unaligned = direct(&mounted.path("0"));
    let opens = mounted.handle.passed_opens();
    let second = File::open(mounted.path("0")).unwrap();
    second.read_exact_at(&mut few, 9).unwrap();
    unaligned.read_exact_at(&mut few, 9).unwrap();
    assert_eq!(few, contents[0][9..109]);
    assert_eq!(mounted.handle.passed_opens(), opens);
    drop((unaligned, second));
    assert!(requests(&mounted, "read") > 0);
    drop(passed(&mounted, "0"));
    mounted.end();
}

/// Files come and go in a cache that has room for half of them: what is verified now, is evicted and cold a moment later.
#[test]
fn however_files_are_opened_beside_each_other_they_open_and_are_right() {
    if !passthrough_usable("however_files_are_opened_beside_each_other_they_open_and_are_right") {
        return;
    }
    const FILES: usize = 4;
    let (dir, contents) = (tempfile::tempdir().unwrap(), contents(FILES, 2 << 20));
    let cache = CacheOptions { limit_bytes: 6 << 20, block_len: 64 << 10, ..CacheOptions::default() };
    let mounted = mounted(manifest::store(dir.path(), &contents, &ObjectFaults::new(), cache), true);
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (mounted, contents, reads) = (&mounted, &contents, &reads);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                let mut held: Vec<(usize, File)> = Vec::new();
                for _ in 0..150 {
                    let n = rng.below(FILES as u64) as usize;
                    let path = mounted.path(&n.to_string());
                    let file = if rng.below(8) == 0 { direct(&path) } else { File::open(&path).unwrap() };
                    held.push((n, file));
                    let (n, file) = &held[rng.below(held.len() as u64) as usize];
                    let content = &contents[*n];
                    let at = rng.below(content.len() as u64) as usize;
                    let mut part = vec![0; (rng.below(200_000) as usize).min(content.len() - at)];
                    file.read_exact_at(&mut part, at as u64).unwrap();
                    assert!(part == content[at..at + part.len()], "{n} at {at}");
                    reads.fetch_add(1, Ordering::Relaxed);
                    if rng.below(3) == 0 || held.len() > 4 {
                        held.clear();
                    }
                }
            });
        }
    });
    assert_eq!(reads.into_inner(), 8 * 150);
    eprintln!("passed through: {} opens, and {:?}", mounted.handle.passed_opens(), mounted.store.counters());
    // Past the kernel's cache, so that all of it is in ours.
    let mut bytes = vec![0; contents[0].len()];
    direct(&mounted.path("0")).read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == contents[0]);
    drop(passed(&mounted, "0"));
    mounted.end();
}

#[test]
fn an_object_that_is_removed_from_the_cache_is_read_on() {
    if !passthrough_usable("an_object_that_is_removed_from_the_cache_is_read_on") {
        return;
    }
    let (dir, contents) = (tempfile::tempdir().unwrap(), contents(2, LEN));
    let mounted = mounted(manifest::store(dir.path(), &contents, &ObjectFaults::new(), CacheOptions::default()), true);
    assert!(fs::read(mounted.path("0")).unwrap() == contents[0]);
    let file = passed(&mounted, "0");
    // By whomever: here, by somebody who clears the folder.
    fs::remove_dir_all(dir.path().join("cache/objects")).unwrap();
    let reads = requests(&mounted, "read");
    let mut bytes = vec![0; LEN];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == contents[0]);
    // Who opens it now has the same file.
    assert!(fs::read(mounted.path("0")).unwrap() == contents[0]);
    assert_eq!(requests(&mounted, "read"), reads);
    drop(file);
    assert!(fs::read(mounted.path("0")).unwrap() == contents[0]);
    mounted.end();
}

#[test]
fn a_mount_ends_as_always_beside_what_the_kernel_reads() {
    if !passthrough_usable("a_mount_ends_as_always_beside_what_the_kernel_reads") {
        return;
    }
    let (dir, contents) = (tempfile::tempdir().unwrap(), contents(1, LEN));
    let mut mounted =
        mounted(manifest::store(dir.path(), &contents, &ObjectFaults::new(), CacheOptions::default()), true);
    assert!(fs::read(mounted.path("0")).unwrap() == contents[0]);
    let file = passed(&mounted, "0");
    assert!(matches!(mounted.handle.unmount(false), Err(adit_mount::MountError::Busy(_))));
    assert_eq!(mounted.handle.open_handles(), 1);
    mounted.handle.unmount(true).unwrap();
    let mut bytes = vec![0; LEN];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == contents[0]);
    drop(file);
    assert_eq!(mounted.ended(), Ended::Unmounted);
}

#[test]
fn without_it_files_are_read_as_ever() {
    if !fuse_usable("without_it_files_are_read_as_ever") {
        return;
    }
    let (dir, contents) = (tempfile::tempdir().unwrap(), contents(1, LEN));
    let store = manifest::store(dir.path(), &contents, &ObjectFaults::new(), CacheOptions::default());
    assert!(store.capabilities().host_files);
    let mounted = mounted(store, false);
    for _ in 0..3 {
        assert!(fs::read(mounted.path("0")).unwrap() == contents[0]);
    }
    assert_eq!(mounted.handle.passed_opens(), 0);
    let mut out = tempfile::tempfile().unwrap();
    out.write_all(&fs::read(mounted.path("0")).unwrap()).unwrap();
    mounted.end();
}
