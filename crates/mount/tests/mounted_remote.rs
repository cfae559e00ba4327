//! A store whose content comes over a network: who reads what does not come is in nobody's way.

mod common;

use std::fs;
use std::num::NonZero;
use std::os::unix::fs::FileExt;

use adit_core::engine::EngineOptions;
use adit_manifest::cache::CacheOptions;
use adit_manifest::store::ManifestStore;
use adit_mount::{MountOptions, Until};
use adit_testkit::objects::{ObjectCall, ObjectFault, ObjectFaults};
use common::{Mounted, fuse_usable, manifest};

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
        let cached =
            rustix::fs::open(mounted.path(&last), rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECT, 0.into());
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
