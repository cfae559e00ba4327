//! A store whose content comes over a network, with a volume on top that takes what is changed.

mod common;

use std::fs::{self, File};
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use adit_core::engine::EngineOptions;
use adit_core::overlay::{LowerIdentity, Overlay};
use adit_core::types::Access;
use adit_manifest::cache::CacheOptions;
use adit_mount::{MountOptions, Until};
use adit_testkit::objects::{MemoryObjects, ObjectCall, ObjectFault, ObjectFaults};
use adit_testkit::own_caller;
use adit_volume::Volume;
use adit_volume::volume::{CreateOptions, Durability, OpenOptions};
use common::{Mounted, fuse_usable, manifest};
use rustix::fs::FallocateFlags;

/// Files of one block, files of several, and the one that is cached.
const SMALL: usize = 12;
const LARGE: std::ops::Range<usize> = SMALL..SMALL + 2;
const CACHED: usize = LARGE.end;

fn content(n: usize) -> Vec<u8> {
    let len = if LARGE.contains(&n) { 65_541 } else { 1000 + n };
    (0..len).map(|at| (at * 31 + n) as u8).collect()
}

struct World {
    dir: tempfile::TempDir,
    memory: MemoryObjects,
    faults: ObjectFaults,
    contents: Vec<Vec<u8>>,
    cache: CacheOptions,
}

impl World {
    fn new(contents: Vec<Vec<u8>>) -> World {
        let dir = tempfile::tempdir().unwrap();
        let new = CreateOptions {
            capacity_bytes: Some(64 << 20),
            durability: Durability::Fsync,
            owner: own_caller(),
            perm: 0o755,
        };
        let volume = Volume::create(&dir.path().join("upper"), &new, &OpenOptions::new(Access::Write)).unwrap();
        volume.close().unwrap();
        drop(volume);
        let cache = CacheOptions { retry_after: Duration::from_millis(100), ..CacheOptions::default() };
        World { dir, memory: MemoryObjects::new(), faults: ObjectFaults::new(), contents, cache }
    }

    fn open(&self) -> (Volume, Overlay) {
        let lower = manifest::store_of(self.dir.path(), &self.contents, &self.memory, &self.faults, self.cache.clone());
        // A thread of the mount before may be at its end.
        let (path, mut volume) = (self.dir.path().join("upper"), None);
        common::await_that("nobody has the volume", || {
            volume = Volume::open(&path, &OpenOptions::new(Access::Write)).ok();
            volume.is_some()
        });
        let volume = volume.unwrap();
        let identity = LowerIdentity { id: b"manifest".to_vec(), text: "the manifest".to_owned() };
        let overlay = Overlay::open(Arc::new(lower), Arc::new(volume.live().unwrap()), &identity).unwrap();
        (volume, overlay)
    }

    fn mount(&self, kernel_writeback: bool) -> (Volume, Mounted<Overlay>) {
        let (volume, overlay) = self.open();
        let ttl = Duration::from_secs(3600);
        let engine = EngineOptions {
            attr_ttl: ttl,
            entry_ttl: ttl,
            negative_ttl: ttl,
            kernel_writeback,
            ..EngineOptions::default()
        };
        let mount = MountOptions { threads: NonZero::new(2).unwrap(), ..MountOptions::default() };
        (volume, Mounted::attached(overlay, engine, Until::default(), &mount))
    }

    /// Changes a byte of an object in the store, or changes it back.
    fn turn(&self, n: usize, at: usize) {
        assert!(self.memory.rot(&manifest::key_of(&self.contents[n]), |bytes| bytes[at] ^= 1));
    }
}

fn to_write(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

#[test]
fn who_waits_for_content_is_in_nobodys_way_where_it_is_written_to() {
    if !fuse_usable("who_waits_for_content_is_in_nobodys_way_where_it_is_written_to") {
        return;
    }
    for kernel_writeback in [false, true] {
        let world = World::new((0..=CACHED).map(content).collect());
        let (volume, mounted) = world.mount(kernel_writeback);
        let at = |n: usize| mounted.path(&n.to_string());
        assert_eq!(fs::read(at(CACHED)).unwrap(), content(CACHED));
        world.faults.always(ObjectFault::Hold, &[ObjectCall::Read]);
        std::thread::scope(|scope| {
            let reading: Vec<_> =
                (0..3).map(|n| (n, at(n))).map(|(n, path)| (n, scope.spawn(move || fs::read(path)))).collect();
            // What each needs of the lower: the block that is changed in part, that which stays, those at both edges, all.
            let writing = scope.spawn(|| to_write(&at(3)).write_all_at(b"0123456789", 5));
            let cutting = scope.spawn(|| to_write(&at(4)).set_len(10));
            let punching = scope.spawn(|| {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(to_write(&at(12)), flags, 100, 9000)
            });
            let copying = scope.spawn(|| {
                let copy = File::create(mounted.path("copy")).unwrap();
                rustix::fs::copy_file_range(File::open(at(5)).unwrap(), None, copy, None, 5000)
            });
            world.faults.wait_for_held(7);
            for n in (0..3).chain(5..SMALL) {
                drop(File::open(at(n)).unwrap());
            }
            assert_eq!(fs::read_dir(mounted.root()).unwrap().count(), CACHED + 2);
            for n in 0..=CACHED {
                assert!(at(n).metadata().unwrap().len() > 0);
            }
            assert_eq!(fs::read(at(CACHED)).unwrap(), content(CACHED));
            // What needs nothing of the lower waits for nothing: new content, whole blocks, the last block as far as it goes.
            fs::write(at(6), "new").unwrap();
            assert_eq!(fs::read(at(6)).unwrap(), b"new");
            let whole = to_write(&at(13));
            whole.write_all_at(&[7; 4096], 8192).unwrap();
            // (The kernel that collects writes reads the last page first.)
            if !kernel_writeback {
                whole.write_all_at(&[8; 5], 65_536).unwrap();
            }
            whole.sync_all().unwrap();
            let mut read = [0; 4096];
            whole.read_exact_at(&mut read, 8192).unwrap();
            assert_eq!(read, [7; 4096]);
            if !kernel_writeback {
                whole.read_exact_at(&mut read[..5], 65_536).unwrap();
                assert_eq!(read[..5], [8; 5]);
            }
            drop(whole);
            fs::remove_file(at(7)).unwrap();
            fs::rename(at(8), mounted.path("moved")).unwrap();
            fs::create_dir(mounted.path("d")).unwrap();
            // So does who opens, closes and looks at what others wait for.
            assert_eq!(at(4).metadata().unwrap().len(), 1004);
            drop(File::options().write(true).open(at(9)).unwrap());
            world.faults.clear();
            world.faults.release();
            for (n, reader) in reading {
                assert_eq!(reader.join().unwrap().unwrap(), content(n), "{n}");
            }
            writing.join().unwrap().unwrap();
            cutting.join().unwrap().unwrap();
            punching.join().unwrap().unwrap();
            assert_eq!(copying.join().unwrap().unwrap(), 1005);
        });
        let check = |read: &dyn Fn(&str) -> Vec<u8>| {
            let changed = |n: usize, change: &dyn Fn(&mut Vec<u8>)| {
                let mut expected = content(n);
                change(&mut expected);
                assert!(read(&n.to_string()) == expected, "{n}");
            };
            changed(3, &|all| all[5..15].copy_from_slice(b"0123456789"));
            changed(4, &|all| all.truncate(10));
            changed(12, &|all| all[100..9100].fill(0));
            changed(13, &|all| {
                all[8192..12_288].fill(7);
                if !kernel_writeback {
                    all[65_536..].fill(8);
                }
            });
            assert_eq!(read("copy"), content(5));
        };
        check(&|name| fs::read(mounted.path(name)).unwrap());
        mounted.end();
        volume.close().unwrap();
        drop(volume);
        let (volume, mounted) = world.mount(kernel_writeback);
        check(&|name| fs::read(mounted.path(name)).unwrap());
        mounted.end();
        volume.close().unwrap();
        drop(volume);
    }
}

/// Longer than a block of the cache: it is compared only when all of it is there.
const LONG: usize = (3 << 20) + 5;

/// Whatever was read before: what goes to the volume for good was compared with the object's hash.
#[test]
fn what_is_copied_up_is_verified() {
    if !fuse_usable("what_is_copied_up_is_verified") {
        return;
    }
    for kernel_writeback in [false, true] {
        let long: Vec<u8> = (0..LONG).map(|at| (at / 7) as u8).collect();
        let world = World::new(vec![long.clone(), long.iter().map(|byte| !byte).collect()]);
        let (volume, mounted) = world.mount(kernel_writeback);
        (0..2).for_each(|n| world.turn(n, 100));
        let (reader, mut page) = (File::open(mounted.path("0")).unwrap(), [0; 4096]);
        reader.read_exact_at(&mut page, 0).unwrap();
        assert_ne!(page[100], long[100], "nobody can know yet");
        // It stays wrong: an error, and nothing is copied.
        let writer = to_write(&mounted.path("0"));
        let refused = writer.write_all_at(b"hello", 0).and_then(|()| writer.sync_all());
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(5));
        drop(writer);
        let copy = File::create(mounted.path("copy")).unwrap();
        let refused = rustix::fs::copy_file_range(File::open(mounted.path("1")).unwrap(), None, &copy, None, 4096);
        assert_eq!(refused, Err(rustix::io::Errno::IO));
        // It is mended.
        (0..2).for_each(|n| world.turn(n, 100));
        let mut expected = long.clone();
        expected[..5].copy_from_slice(b"hello");
        common::await_that("it is fetched again", || to_write(&mounted.path("0")).write_all_at(b"hello", 0).is_ok());
        to_write(&mounted.path("0")).sync_all().unwrap();
        reader.read_exact_at(&mut page, 0).unwrap();
        assert!(page == expected[..4096], "also for who has it open");
        assert!(fs::read(mounted.path("0")).unwrap() == expected);
        drop((reader, copy));
        mounted.end();
        volume.close().unwrap();
        drop(volume);
        let (volume, mounted) = world.mount(kernel_writeback);
        assert!(fs::read(mounted.path("0")).unwrap() == expected);
        mounted.end();
        volume.close().unwrap();
        drop(volume);
    }
}

/// A program reads, somebody opens the file to write a few bytes, and the kernel hands back whole pages: not those that the program was
/// given.
#[test]
fn pages_from_before_are_not_written_back() {
    if !fuse_usable("pages_from_before_are_not_written_back") {
        return;
    }
    let long: Vec<u8> = (0..LONG).map(|at| (at / 5) as u8).collect();
    for kernel_writeback in [false, true] {
        let world = World::new(vec![long.clone()]);
        let (volume, mounted) = world.mount(kernel_writeback);
        world.turn(0, 100);
        let reader = File::open(mounted.path("0")).unwrap();
        let mut page = [0; 4096];
        reader.read_exact_at(&mut page, 0).unwrap();
        assert_ne!(page[100], long[100]);
        // The store is right from now on, and only who fetches again will know.
        world.turn(0, 100);
        let writer = to_write(&mounted.path("0"));
        writer.write_all_at(b"h", 0).unwrap();
        writer.sync_all().unwrap();
        drop((reader, writer));
        mounted.end();
        volume.close().unwrap();
        drop(volume);
        let mut expected = long.clone();
        expected[0] = b'h';
        let (volume, mounted) = world.mount(kernel_writeback);
        assert!(fs::read(mounted.path("0")).unwrap() == expected, "{kernel_writeback}");
        mounted.end();
        volume.close().unwrap();
        drop(volume);
    }
}

/// What a few bytes of a long file were written into is compared when all of it is there: whichever way a page came into the volume, a
/// wrong one is an error from then on, and never content.
#[test]
fn what_is_changed_before_it_is_compared_is_an_error_if_it_was_wrong() {
    if !fuse_usable("what_is_changed_before_it_is_compared_is_an_error_if_it_was_wrong") {
        return;
    }
    let long: Vec<u8> = (0..LONG).map(|at| (at / 5) as u8).collect();
    for (kernel_writeback, is_wrong) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut world = World::new(vec![long.clone()]);
        world.cache.verify_first_bytes = 0;
        let (volume, mounted) = world.mount(kernel_writeback);
        if is_wrong {
            world.turn(0, 100);
        }
        let writer = to_write(&mounted.path("0"));
        writer.write_all_at(b"h", 0).unwrap();
        writer.sync_all().unwrap();
        drop(writer);
        if is_wrong {
            world.turn(0, 100);
        }
        let mut expected = long.clone();
        expected[0] = b'h';
        let path = mounted.path("0");
        if !is_wrong {
            assert!(fs::read(&path).unwrap() == expected);
        } else {
            assert_eq!(fs::read(&path).unwrap_err().raw_os_error(), Some(5), "who comes to its end");
            let mut page = [0; 4096];
            // The program drops what the kernel keeps of a wrong object as soon as that is known; here nobody else does.
            let first = || {
                let file = File::open(&path).unwrap();
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                file.read_exact_at(&mut [0; 4096], 0)
            };
            assert_eq!(first().unwrap_err().raw_os_error(), Some(5));
            common::await_that("what was not changed is fetched again", || {
                File::open(&path).unwrap().read_exact_at(&mut page, 4096 * 3).is_ok()
            });
            assert!(page == long[4096 * 3..][..4096]);
            // Written anew, it is as any other.
            fs::write(&path, &expected).unwrap();
        }
        mounted.end();
        volume.close().unwrap();
        drop(volume);
        let (volume, mounted) = world.mount(kernel_writeback);
        assert!(fs::read(mounted.path("0")).unwrap() == expected);
        mounted.end();
        volume.close().unwrap();
        drop(volume);
    }
}
