//! The file of a volume fails behind a real mount: what is not known to be safe is never said to be, to nobody.

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use adit_core::engine::EngineOptions;
use adit_core::types::Access;
use adit_mount::Until;
use adit_testkit::crash::{CrashWorld, Mode};
use adit_testkit::faults::{CallClass, Fault, Faults};
use adit_testkit::own_caller;
use adit_volume::volume::{CreateOptions, Durability, OpenOptions as VolumeOptions};
use adit_volume::{Volume, VolumeStore};
use common::{Mounted, fuse_usable};

/// Nothing is synced but what is asked for.
fn options() -> VolumeOptions {
    VolumeOptions { background: false, ..VolumeOptions::new(Access::Write) }
}

struct World {
    world: CrashWorld,
    faults: Faults,
}

impl World {
    fn new() -> World {
        let world = World { world: CrashWorld::new(Mode::Kill), faults: Faults::new() };
        let new = CreateOptions {
            capacity_bytes: Some(64 << 20),
            durability: Durability::Fsync,
            owner: own_caller(),
            perm: 0o755,
        };
        Volume::create_in(world.file(), "volume", &new, &options()).expect("made").close().expect("closed");
        world
    }

    fn file(&self) -> Arc<dyn adit_core::media::BlockFile> {
        let file = self.world.dir("host").block_file(Path::new("volume")).expect("a file");
        Arc::new(self.faults.wrap_block(Arc::new(file)))
    }

    fn volume(&self) -> Volume {
        Volume::open_in(self.file(), "volume", &options()).expect("opened")
    }
}

fn mount(volume: &Volume, kernel_writeback: bool) -> Mounted<VolumeStore> {
    let ttl = Duration::from_secs(3600);
    let engine = EngineOptions {
        attr_ttl: ttl,
        entry_ttl: ttl,
        negative_ttl: ttl,
        kernel_writeback,
        ..EngineOptions::default()
    };
    Mounted::with(volume.live().expect("the branch"), engine, Until::default())
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

#[test]
fn a_failed_sync_is_heard_by_every_handle_and_never_made_up_for() {
    if !fuse_usable("a failed sync of a volume") {
        return;
    }
    for kernel_writeback in [false, true] {
        let world = World::new();
        let volume = world.volume();
        let mut mounted = mount(&volume, kernel_writeback);
        let open = |name: &str| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).open(mounted.path(name)).expect(name)
        };
        // Two handles of one file, one of another, one to read, and one of a file with nothing to be synced.
        let handles: [File; 5] = [
            open("one"),
            open("one"),
            open("other"),
            File::open(mounted.path("one")).expect("to read"),
            open("synced"),
        ];
        let [first, .., synced] = &handles;
        (&*synced).write_all(b"safe").expect("written");
        synced.sync_all().expect("nothing fails yet");
        (&handles[0]).write_all(b"one").expect("written");
        (&handles[2]).write_all(b"other").expect("written");
        world.faults.arm(Fault::IO, &[CallClass::Sync], 0, 1);
        let context = format!("write-back: {kernel_writeback}");
        assert_eq!(errno(first.sync_all()), Some(libc::EIO), "{context}");
        assert_eq!(world.faults.fired().len(), 1, "{context}");
        // The file could be synced again, and would say nothing of what was lost: it is not asked.
        for (at, handle) in handles.iter().enumerate().chain(handles.iter().enumerate()) {
            let told = errno(handle.sync_all());
            // What only the kernel has is refused by now.
            let refused = kernel_writeback && told == Some(libc::EROFS);
            assert!(refused || told == Some(libc::EIO), "{context}: handle {at}: {told:?}");
        }
        let late = File::open(mounted.path("synced")).expect("it can be read");
        assert_eq!(errno(late.sync_data()), Some(libc::EIO), "{context}: opened later");
        assert_eq!(errno(File::open(mounted.root()).expect("opened").sync_all()), Some(libc::EIO), "{context}");
        assert_eq!(errno(fs::create_dir(mounted.path("dir"))), Some(libc::EROFS), "{context}");
        assert_eq!(fs::read(mounted.path("one")).expect("read"), b"one", "{context}");
        drop((handles, late));
        mounted.unmount();
        assert!(mounted.outcome().is_err(), "{context}: who unmounts hears of it as well");
        drop(mounted);
        drop(volume);
        // The host had what the volume wrote in its memory, and nobody pulled the plug.
        let volume = world.volume();
        let mounted = mount(&volume, kernel_writeback);
        let other = if kernel_writeback { "" } else { "other" };
        for (name, content) in [("one", "one"), ("other", other), ("synced", "safe")] {
            assert_eq!(fs::read_to_string(mounted.path(name)).expect(name), content, "{context}");
        }
        fs::write(mounted.path("new"), "new").expect("it takes changes again");
        mounted.end();
    }
}
