//! Times of files under kernel write-back whose length changes while the kernel writes their inodes back.

mod common;

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use adit_core::engine::EngineOptions;
use adit_core::types::{Access, Ino, Timestamp};
use adit_mount::Until;
use adit_testkit::{Asked, Hooked, own_caller};
use adit_volume::volume::{CreateOptions, Durability, OpenOptions};
use adit_volume::{Volume, VolumeStore};
use common::{Mounted, await_that, fuse_usable};
use parking_lot::Mutex;

/// A change of length waits in the store until the sender of its gate is dropped.
type Gate = Mutex<Option<Receiver<()>>>;

fn volume(dir: &std::path::Path) -> Volume {
    let new = CreateOptions {
        capacity_bytes: Some(64 << 20),
        durability: Durability::Fsync,
        owner: own_caller(),
        perm: 0o755,
    };
    let options = OpenOptions { background: false, ..OpenOptions::new(Access::Write) };
    Volume::create(&dir.join("volume"), &new, &options).unwrap()
}

fn mount<H>(store: Hooked<VolumeStore, H>) -> Mounted<Hooked<VolumeStore, H>>
where
    H: Fn(Asked<'_>) + Send + Sync + 'static,
{
    let ttl = Duration::from_secs(3600);
    let engine = EngineOptions {
        attr_ttl: ttl,
        entry_ttl: ttl,
        negative_ttl: ttl,
        kernel_writeback: true,
        ..EngineOptions::default()
    };
    Mounted::with(store, engine, Until::default())
}

/// Has the kernel send what was written, and keep its times to itself.
fn send_pages(file: &File) {
    let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: a plain system call on a descriptor that is open.
    assert_eq!(unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, all) }, 0);
}

/// The kernel sends the times of a write while a change of length with newer ones is under way, and never sends these again.
#[test]
fn times_of_a_write_do_not_undo_those_of_a_later_change_of_length() {
    if !fuse_usable("times of a change of length") {
        return;
    }
    let (at_store, arrived) = channel();
    let gate: &'static Gate = Box::leak(Box::default());
    let dir = tempfile::tempdir().unwrap();
    let volume = volume(dir.path());
    let mounted = mount(Hooked::new(volume.live().unwrap(), move |asked| {
        let Asked::Set(_, set) = asked else { return };
        if set.size.is_none() {
            return;
        }
        if let Some(released) = gate.lock().take() {
            at_store.send(()).unwrap();
            // Ends when the gate's other end is dropped.
            let _ = released.recv();
        }
    }));
    let path = mounted.path("f");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(b"written", 0).unwrap();
    file.sync_all().unwrap();
    past_a_tick();
    file.write_all_at(b"again", 0).unwrap();
    send_pages(&file);
    past_a_tick();
    let before = kept(&mounted, &file);

    let (release, released) = channel::<()>();
    *gate.lock() = Some(released);
    std::thread::scope(|scope| {
        let cutting = scope.spawn(|| file.set_len(3));
        arrived.recv().unwrap();
        let asked = set_requests(&mounted);
        let syncing = scope.spawn(|| rustix::fs::syncfs(File::open(mounted.root()).unwrap()));
        await_that("the kernel writes the inode back", || set_requests(&mounted) > asked);
        drop(release);
        cutting.join().unwrap().unwrap();
        syncing.join().unwrap().unwrap();
    });
    let meta = file.metadata().unwrap();
    let shown = [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()];
    assert_ne!(kept(&mounted, &file), before);
    assert_eq!(kept(&mounted, &file), shown);

    // What is set by somebody counts, also if it is earlier.
    file.set_len(2).unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    file.set_modified(long_ago).unwrap();
    assert_eq!(kept(&mounted, &file)[..2], [1000, 0]);
    drop(file);
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), long_ago);
    mounted.end();
    volume.close().unwrap();
}

/// Requests of the kernel that set attributes.
fn set_requests<S>(mounted: &Mounted<S>) -> u64 {
    mounted.handle.requests_by_kind().iter().find(|(kind, _)| *kind == "setattr").map_or(0, |(_, count)| *count)
}

/// Modification and change time that the store has, in seconds and nanoseconds.
fn kept<S>(mounted: &Mounted<S>, file: &File) -> [i64; 4] {
    let (attr, _) = mounted.engine.getattr(Ino(file.metadata().unwrap().ino()), None).unwrap();
    let [Timestamp { secs: m, nanos: mn }, Timestamp { secs: c, nanos: cn }] = [attr.mtime, attr.ctime];
    [m, mn.into(), c, cn.into()]
}

/// The kernel's clock of files ticks every few milliseconds: waits until it did.
fn past_a_tick() {
    let start = Timestamp::of_tick();
    await_that("a tick", || Timestamp::of_tick() != start);
}
