//! Objects on a real folder, and on one that loses power.

use std::os::unix::fs::MetadataExt;

use adit_testkit::crash::{CrashPlan, CrashWorld, Mode, crash_everywhere};
use adit_testkit::{Rng, seeds};

use super::*;
use crate::HostDirectory;

fn on_host() -> (tempfile::TempDir, ExtentFolder) {
    let dir = tempfile::tempdir().unwrap();
    let host = Arc::new(HostDirectory::open(dir.path()).unwrap());
    let folder = ExtentFolder::create(host, "v", 0o640, b"mine").unwrap();
    (dir, folder)
}

#[test]
fn objects_are_made_read_listed_and_removed() {
    let (dir, folder) = on_host();
    let mut buf = [1; 8];
    assert_eq!(folder.read_at(7, 0, &mut buf).unwrap_err().kind(), io::ErrorKind::NotFound);
    for object in [7, 1023, 1024, u32::MAX] {
        folder.write_at(object, 2, &object.to_le_bytes()).unwrap();
    }
    folder.sync().unwrap();
    assert_eq!(folder.read_at(1024, 0, &mut buf).unwrap(), 6);
    assert_eq!(buf[..6], [0, 0, 0, 4, 0, 0]);
    // What is not ours is left alone.
    std::fs::write(dir.path().join("v/000000/notes"), b"").unwrap();
    std::fs::write(dir.path().join("v/00000f"), b"").unwrap();
    let mut all = folder.list().unwrap();
    all.sort_unstable();
    assert_eq!(all, [7, 1023, 1024, u32::MAX]);
    folder.remove(1023).unwrap();
    folder.remove(1023).unwrap();
    assert_eq!(folder.read_at(1023, 0, &mut buf).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(folder.list().unwrap().len(), 3);
    let mode = |path: &str| dir.path().join(path).metadata().unwrap().mode() & 0o777;
    assert_eq!((mode("v/000000/00000007"), mode("v/000000"), mode("v")), (0o640, 0o750, 0o750));
}

#[test]
fn punching_keeps_the_length_and_asks_for_no_object() {
    let (_dir, folder) = on_host();
    folder.write_at(1, 0, &[7; 8192]).unwrap();
    match folder.punch(1, 0, 4096) {
        Ok(()) => {
            let mut buf = [1; 8192];
            assert_eq!(folder.read_at(1, 0, &mut buf).unwrap(), 8192);
            assert!(buf[..4096].iter().all(|b| *b == 0) && buf[4096..].iter().all(|b| *b == 7));
        }
        Err(e) => assert_eq!(e.kind(), io::ErrorKind::Unsupported),
    }
    folder.punch(2, 0, 4096).unwrap();
    assert_eq!(folder.list().unwrap(), [1]);
}

#[test]
fn it_belongs_to_one_at_a_time_and_says_to_whom() {
    let (dir, folder) = on_host();
    let other = |access| {
        let host = Arc::new(HostDirectory::open(dir.path()).unwrap());
        ExtentFolder::open(host, "v", access).unwrap()
    };
    assert!(folder.try_lock(true).unwrap());
    assert!(!other(Access::Write).try_lock(true).unwrap());
    assert!(!other(Access::Read).try_lock(false).unwrap());
    folder.write_label(0, b"ours").unwrap();
    drop(folder);
    let (a, b) = (other(Access::Read), other(Access::Read));
    assert!(a.try_lock(false).unwrap() && b.try_lock(false).unwrap());
    assert_eq!(a.label().unwrap(), b"ours");
    let host: Arc<dyn HostDir> = Arc::new(HostDirectory::open(dir.path()).unwrap());
    let taken = ExtentFolder::create(host.clone(), "v", 0o600, b"").err().unwrap();
    assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
    let missing = ExtentFolder::open(host, "w", Access::Read).err().unwrap();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
}

#[test]
fn many_objects_need_few_open_files() {
    let (_dir, folder) = on_host();
    for object in 0..1000 {
        folder.write_at(object, 0, &object.to_le_bytes()).unwrap();
    }
    let mut buf = [0; 4];
    for object in 0..1000 {
        assert_eq!(folder.read_at(object, 0, &mut buf).unwrap(), 4);
        assert_eq!(u32::from_le_bytes(buf), object);
    }
    let state = folder.state.lock();
    assert!(state.open.len() <= OPEN_MAX && state.unsynced.len() <= OPEN_MAX);
}

/// What a sync covered is there after a power cut, with its name, whoever made the directory and the object.
#[test]
fn what_was_synced_outlives_a_power_cut() {
    for seed in seeds(2) {
        for mode in [Mode::Journalled, Mode::Adversarial] {
            let mut rng = Rng::new(seed);
            let world = CrashWorld::new(mode);
            let host: Arc<dyn HostDir> = Arc::new(world.dir("data"));
            drop(ExtentFolder::create(host, "v", 0o600, b"mine").unwrap());
            let work = |world: &CrashWorld| {
                let mut safe = 0;
                for round in 0..3 {
                    // Anew each time, as after a kill: what the last one left unsynced is in the host's cache alone.
                    let host: Arc<dyn HostDir> = Arc::new(world.dir("data"));
                    let Ok(folder) = ExtentFolder::open(host, "v", Access::Write) else { return safe };
                    let wrote = (0..4_u32).all(|n| folder.write_at(n * 700, round * 4, b"data").is_ok());
                    if !wrote {
                        return safe;
                    }
                    if round != 1 {
                        match folder.sync() {
                            Ok(()) => safe = round + 1,
                            Err(_) => return safe,
                        }
                    }
                }
                safe
            };
            let plan = CrashPlan { points_max: 40, randoms: 3 };
            crash_everywhere(&world, &plan, &mut rng, work, |safe, point, left| {
                let folder = ExtentFolder::open(Arc::new(left.dir("data")), "v", Access::Read).unwrap();
                assert_eq!(folder.label().unwrap(), b"mine");
                // In the last round but one nothing was synced that the last one does not write again.
                let rounds: &[u64] = if *safe == 3 { &[0, 2] } else { &[0][..(*safe).min(1) as usize] };
                for (object, round) in (0..4).flat_map(|n| rounds.iter().map(move |round| (n * 700, *round))) {
                    let mut buf = [0; 4];
                    let read = folder.read_at(object, round * 4, &mut buf);
                    let place = format!("{mode:?}, {point:?}, object {object}, ADIT_TEST_SEED={seed}");
                    assert_eq!((read.unwrap_or_else(|e| panic!("{place}: {e}")), &buf), (4, b"data"), "{place}");
                }
            });
        }
    }
}
