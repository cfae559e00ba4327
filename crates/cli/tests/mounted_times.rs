//! Times of files under kernel write-back: what a program saw while the kernel kept them is what the store has afterwards.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use adit_testkit::scaled;
use common::Bench;
use mounts::force_off;

/// No test takes longer, unless a mount hangs.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Files of each kind: enough that some are changed within one tick of the kernel's clock, and some over its end.
const FILES: usize = 60;

/// Runs `test` with a folder `mnt` to mount on, which is free again afterwards whatever happens. Nothing where mounts are
/// impossible; under CI that is a failure.
fn with_mountpoint(test: impl FnOnce(&Bench)) {
    if let Err(e) = OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "/dev/fuse: {e}");
        eprintln!("left out: /dev/fuse: {e}");
        return;
    }
    let bench = Bench::bare();
    let point = bench.path("mnt");
    fs::create_dir(&point).unwrap();
    let (done, ended) = channel::<()>();
    let watched = point.clone();
    let watchdog = std::thread::spawn(move || {
        if ended.recv_timeout(TEST_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            eprintln!("watchdog: it hangs");
        }
        force_off(&watched);
    });
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&bench)));
    drop(done);
    watchdog.join().unwrap();
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

/// Modification and change time of each file below `dir`, to the nanosecond.
fn times(dir: &Path) -> Vec<(String, [i64; 4])> {
    let mut all: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let meta = entry.metadata().unwrap();
            let times = [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()];
            (entry.file_name().into_string().unwrap(), times)
        })
        .collect();
    all.sort();
    all
}

/// Makes and changes files in the ways in which the kernel keeps their times.
fn change_files(dir: &Path) {
    let past_a_tick = || std::thread::sleep(Duration::from_millis(11));
    let past_a_tick_of_some = |n: usize| {
        if n.is_multiple_of(20) {
            past_a_tick()
        }
    };
    let content = vec![7; 9000];
    for n in 0..FILES {
        let path = |kind: &str| dir.join(format!("{kind} {n}"));
        fs::write(path("made"), &content[..n * 150]).unwrap();
        let mut late = File::create(path("written later")).unwrap();
        past_a_tick_of_some(n);
        late.write_all(&content).unwrap();
        drop(late);
        fs::write(path("written twice"), &content).unwrap();
        let again = OpenOptions::new().write(true).open(path("written twice")).unwrap();
        again.write_all_at(b"again", 5000).unwrap();
        drop(again);
        fs::write(path("private"), &content).unwrap();
        fs::set_permissions(path("private"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(path("cut"), &content).unwrap();
        OpenOptions::new().write(true).open(path("cut")).unwrap().set_len(100).unwrap();
        fs::write(path("cut to what it is"), &content).unwrap();
        past_a_tick_of_some(n);
        let what_it_is =
            std::ffi::CString::new(path("cut to what it is").into_os_string().into_encoded_bytes()).unwrap();
        // SAFETY: a plain system call with a string that ends.
        assert_eq!(unsafe { libc::truncate(what_it_is.as_ptr(), content.len() as i64) }, 0);
        fs::write(path("punched"), &content).unwrap();
        let punched = OpenOptions::new().write(true).open(path("punched")).unwrap();
        past_a_tick_of_some(n);
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: a plain system call on a descriptor that is open.
        assert_eq!(unsafe { libc::fallocate(punched.as_raw_fd(), punch, 0, 4096) }, 0);
        let direct = OpenOptions::new().write(true).create_new(true).custom_flags(libc::O_DIRECT).open(path("direct"));
        let direct = direct.unwrap();
        past_a_tick_of_some(n);
        let pages = vec![0_u8; 12 << 10];
        let aligned = pages.as_ptr().align_offset(4096);
        direct.write_all_at(&pages[aligned..aligned + 4096], 0).unwrap();
        fs::write(path("old name"), &content).unwrap();
        fs::rename(path("old name"), path("renamed")).unwrap();
        fs::write(path("one of two names"), &content).unwrap();
        fs::hard_link(path("one of two names"), path("other of two names")).unwrap();
        let long = File::create(path("allocated")).unwrap();
        long.write_all_at(b"1", 0).unwrap();
        // SAFETY: a plain system call on a descriptor that is open.
        assert_eq!(unsafe { libc::fallocate(long.as_raw_fd(), libc::FALLOC_FL_ZERO_RANGE, 1, 70_000) }, 0);
        fs::copy(path("made"), path("copied")).unwrap();
    }
    let shared = File::options().read(true).write(true).create_new(true).open(dir.join("mapped")).unwrap();
    shared.set_len(8192).unwrap();
    past_a_tick();
    // SAFETY: a mapping of its own, of a file that is as long, written within its length and unmapped once.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            8192,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            shared.as_raw_fd(),
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        at.cast::<u8>().add(5000).write_volatile(1);
        assert_eq!(libc::msync(at, 8192, libc::MS_SYNC), 0);
        assert_eq!(libc::munmap(at, 8192), 0);
    }
}

fn expect_same(before: &[(String, [i64; 4])], after: &[(String, [i64; 4])]) {
    let differ: Vec<_> = before.iter().zip(after).filter(|(before, after)| before != after).collect();
    assert!(differ.is_empty(), "{} of {}, as {:?}", differ.len(), before.len(), differ.first());
    assert_eq!(before.len(), after.len());
}

#[test]
fn mounted_times_are_the_same_after_a_remount() {
    with_mountpoint(|bench| {
        bench.run(["volume", "init", &bench.str("box")]).expect(0);
        bench.run(["mount", &bench.str("box"), &bench.str("mnt")]).expect(0);
        change_files(&bench.path("mnt"));
        let before = times(&bench.path("mnt"));
        bench.run(["umount", "mnt"]).expect(0);
        bench.run(["mount", &bench.str("box"), &bench.str("mnt")]).expect(0);
        expect_same(&before, &times(&bench.path("mnt")));
        bench.run(["umount", "mnt"]).expect(0);
    });
}

#[test]
fn mounted_times_of_an_overlay_are_the_same_after_a_remount() {
    with_mountpoint(|bench| {
        fs::create_dir(bench.path("lower")).unwrap();
        for n in 0..FILES {
            fs::write(bench.path("lower").join(format!("below {n}")), vec![3; 100 * n]).unwrap();
        }
        let mount =
            || bench.run(["mount", &bench.str("lower"), &bench.str("mnt"), "--upper", &bench.str("up")]).expect(0);
        mount();
        change_files(&bench.path("mnt"));
        for n in 0..FILES {
            let below = OpenOptions::new().append(true).open(bench.path("mnt").join(format!("below {n}")));
            below.unwrap().write_all(b"more").unwrap();
        }
        let before = times(&bench.path("mnt"));
        bench.run(["umount", "mnt"]).expect(0);
        mount();
        expect_same(&before, &times(&bench.path("mnt")));
        bench.run(["umount", "mnt"]).expect(0);
    });
}

/// Folders of the lower are copied up when something in them is changed, which nobody sees.
#[test]
fn mounted_times_of_folders_of_an_overlay_are_the_same_after_a_remount() {
    with_mountpoint(|bench| {
        let lower = bench.path("lower");
        for n in 0..4 {
            fs::create_dir_all(lower.join(format!("{n}/below"))).unwrap();
            for file in ["one", "two", "three", "four"] {
                fs::write(lower.join(format!("{n}/below/{file}")), "below").unwrap();
            }
            fs::hard_link(lower.join(format!("{n}/below/one")), lower.join(format!("{n}/below/other"))).unwrap();
        }
        let mount =
            || bench.run(["mount", &bench.str("lower"), &bench.str("mnt"), "--upper", &bench.str("up")]).expect(0);
        mount();
        let mnt = bench.path("mnt");
        let all = || {
            let mut all = times(&mnt);
            for n in 0..4 {
                for dir in [format!("{n}"), format!("{n}/below")] {
                    all.extend(
                        times(&mnt.join(&dir)).into_iter().map(|(name, times)| (format!("{dir}/{name}"), times)),
                    );
                }
            }
            all
        };
        let untouched = all();
        std::thread::sleep(Duration::from_millis(12));
        OpenOptions::new().append(true).open(mnt.join("0/below/one")).unwrap().write_all(b"more").unwrap();
        fs::set_permissions(mnt.join("1/below/two"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::remove_file(mnt.join("2/below/three")).unwrap();
        fs::rename(mnt.join("3/below/four"), mnt.join("3/below/renamed")).unwrap();
        let before = all();
        let is_alike = |name: &str| {
            let of = |all: &[(String, [i64; 4])]| all.iter().find(|(at, _)| at == name).unwrap().1;
            of(&before) == of(&untouched)
        };
        // As on any file system: who changes a file changes no folder.
        for name in ["0", "0/below", "1", "1/below", "1/below/one", "2", "2/below/four", "3", "3/below/two"] {
            assert!(is_alike(name), "{name}");
        }
        for name in ["0/below/one", "0/below/other", "1/below/two", "2/below", "3/below"] {
            assert!(!is_alike(name), "{name}");
        }
        bench.run(["umount", "mnt"]).expect(0);
        mount();
        expect_same(&before, &all());
        bench.run(["umount", "mnt"]).expect(0);
    });
}

/// Where filesystems of the host have times that are finer than a tick, the kernel's times of files are never behind these.
#[test]
fn mounted_times_go_on_whoever_gives_them() {
    with_mountpoint(|bench| {
        bench.run(["volume", "init", &bench.str("box")]).expect(0);
        bench.run(["mount", &bench.str("box"), &bench.str("mnt")]).expect(0);
        let (point, beside) = (bench.path("mnt"), bench.path("beside"));
        let modified = |path: &Path| {
            let meta = fs::symlink_metadata(path).unwrap();
            (meta.mtime(), meta.mtime_nsec())
        };
        let mut backwards = Vec::new();
        for n in 0..scaled(300) {
            // As another program does on the host, which looks at what it wrote.
            fs::write(&beside, "x").unwrap();
            fs::metadata(&beside).unwrap();
            fs::write(&beside, "y").unwrap();
            let path = |what: &str| point.join(format!("{what} {n}"));
            let mut last = (0, 0);
            for what in ["file", "folder", "link", "empty", "later"] {
                let path = path(what);
                match what {
                    "folder" => fs::create_dir(&path).unwrap(),
                    "link" => std::os::unix::fs::symlink("x", &path).unwrap(),
                    "empty" => drop(File::create(&path).unwrap()),
                    _ => fs::write(&path, "x").unwrap(),
                }
                let time = modified(&path);
                if time < last {
                    backwards.push((n, what, last, time));
                }
                last = time;
            }
        }
        assert!(backwards.is_empty(), "{} times, as {:?}", backwards.len(), backwards[0]);
        bench.run(["umount", "mnt"]).expect(0);
    });
}

/// The kernel sends its times also in the middle of a copy, and afterwards sends none that it takes to be the same. They are finer than a
/// tick where somebody looks at files of the host meanwhile, so those of the store's own clock are others.
#[test]
fn mounted_times_of_copies_are_the_same_where_everything_is_synced_meanwhile() {
    with_mountpoint(|bench| {
        bench.run(["volume", "init", &bench.str("box")]).expect(0);
        bench.run(["mount", &bench.str("box"), &bench.str("mnt")]).expect(0);
        let (point, beside) = (bench.path("mnt"), bench.path("beside"));
        fs::write(point.join("source"), vec![7; 60_000]).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mount = File::open(&point).unwrap();
                while !over.load(Relaxed) {
                    rustix::fs::syncfs(&mount).unwrap();
                    fs::write(&beside, "a time of its own").unwrap();
                    fs::metadata(&beside).unwrap();
                }
            });
            for n in 0..scaled(2000) {
                fs::copy(point.join("source"), point.join(format!("copy {n}"))).unwrap();
            }
            over.store(true, Relaxed);
        });
        let before = times(&point);
        bench.run(["umount", "mnt"]).expect(0);
        bench.run(["mount", &bench.str("box"), &bench.str("mnt")]).expect(0);
        expect_same(&before, &times(&point));
        bench.run(["umount", "mnt"]).expect(0);
    });
}
