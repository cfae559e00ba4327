//! Faults of another filesystem in a database, each of which a probe showed there. None is one here.

#[path = "support/mod.rs"]
mod base;
#[path = "support/volume.rs"]
mod support;

use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use adit_core::ErrorKind;
use adit_core::types::{Access, Caller, Kind};
use adit_testkit::crash::{CrashPlan, CrashWorld, Mode, crash_everywhere};
use adit_testkit::{Rng, scaled};
use adit_volume::fs::OpenFlags;
use adit_volume::volume::{CreateOptions, Durability, OpenOptions};
use adit_volume::{Fs, FsOptions, Volume};

use support::{check, fresh};

#[test]
fn a_rename_replaces_what_is_there() {
    let (_place, volume, fs) = fresh();
    fs.write("/a", b"new").unwrap();
    fs.write("/b", b"old, and longer").unwrap();
    fs.rename("/a", "/b").unwrap();
    assert_eq!(fs.read("/b").unwrap(), b"new");
    assert!(!fs.exists("/a").unwrap());
    check(&volume);
}

#[test]
fn a_directory_does_not_move_into_itself() {
    let (_place, _, fs) = fresh();
    fs.mkdir_all("/a/b/c", 0o755).unwrap();
    for to in ["/a/a", "/a/b/a", "/a/b/c/a"] {
        assert_eq!(fs.rename("/a", to).unwrap_err().kind(), ErrorKind::InvalidInput, "{to}");
    }
    assert_eq!(fs.stat("/a/b/c").unwrap().kind, Kind::Directory);
}

#[test]
fn a_directory_stays_one_when_its_permissions_change() {
    let (_place, _, fs) = fresh();
    fs.mkdir("/a", 0o755).unwrap();
    fs.write("/a/f", b"1").unwrap();
    fs.chmod("/a", 0o700).unwrap();
    let attr = fs.stat("/a").unwrap();
    assert_eq!((attr.kind, attr.perm), (Kind::Directory, 0o700));
    assert_eq!(fs.read("/a/f").unwrap(), b"1");
}

#[test]
fn a_file_that_gets_longer_keeps_what_it_has() {
    let (_place, _, fs) = fresh();
    for content in [&b"small"[..], &[7; 100_000]] {
        fs.write("/f", content).unwrap();
        let len = content.len() as u64 + 5000;
        fs.truncate("/f", len).unwrap();
        let read = fs.read("/f").unwrap();
        assert_eq!(read.len() as u64, len);
        assert_eq!(&read[..content.len()], content);
        assert!(read[content.len()..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn appending_goes_to_the_end() {
    let (_place, _, fs) = fresh();
    fs.write("/f", b"one ").unwrap();
    let flags = OpenFlags { append: true, ..OpenFlags::default() };
    let files = [fs.open_with("/f", &flags).unwrap(), fs.open_with("/f", &flags).unwrap()];
    (&files[0]).write_all(b"two ").unwrap();
    (&files[1]).write_all(b"three").unwrap();
    assert_eq!(fs.read("/f").unwrap(), b"one two three");
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(move || {
                (0..100).for_each(|_| {
                    (&*file).write_all(b"0123456789").unwrap();
                })
            });
        }
    });
    assert_eq!(fs.stat("/f").unwrap().size, 13 + 2000);
}

#[test]
fn writing_changes_the_time() {
    let (_place, _, fs) = fresh();
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    for len in [3, 10_000] {
        let file = fs.create("/f").unwrap();
        fs.set_times("/f", old, old).unwrap();
        assert_eq!(fs.stat("/f").unwrap().mtime, old.into());
        file.write_at(0, &vec![1; len]).unwrap();
        let attr = fs.stat("/f").unwrap();
        assert!(attr.mtime.secs > 1_000_000 && attr.atime == old.into());
    }
}

#[test]
fn a_copy_has_the_content() {
    let (_place, volume, fs) = fresh();
    let content: Vec<u8> = (0..3_000_000_u32).map(|i| (i / 7) as u8).collect();
    fs.write("/f", &content).unwrap();
    fs.chmod("/f", 0o640).unwrap();
    assert_eq!(fs.copy("/f", "/g").unwrap(), content.len() as u64);
    assert!(fs.read("/g").unwrap() == content);
    assert_eq!(fs.stat("/g").unwrap().perm, 0o640);
    assert_eq!(fs.copy("/f", "/f").unwrap_err().kind(), ErrorKind::InvalidInput);
    // Over a longer one, and with holes.
    fs.write("/h", b"begin").unwrap();
    fs.write_range("/h", 40 << 20, b"end").unwrap();
    fs.copy("/h", "/g").unwrap();
    assert_eq!(fs.stat("/g").unwrap().blocks, fs.stat("/h").unwrap().blocks);
    assert_eq!(fs.read_range("/g", (40 << 20) - 2, 10).unwrap(), b"\0\0end");
    check(&volume);
}

#[test]
fn paths_lead_through_links_to_directories() {
    let (_place, _, fs) = fresh();
    fs.mkdir_all("/real/below", 0o755).unwrap();
    fs.write("/real/below/f", b"1").unwrap();
    fs.symlink("real", "/relative").unwrap();
    fs.symlink("/real/below", "/absolute").unwrap();
    fs.symlink("../relative/below/../below", "/real/up").unwrap();
    for path in ["/relative/below/f", "/absolute/f", "/real/up/f", "/absolute/../below/f"] {
        assert_eq!(fs.read(path).unwrap(), b"1", "{path}");
    }
    fs.write("/absolute/new", b"2").unwrap();
    assert_eq!(fs.read("/real/below/new").unwrap(), b"2");
}

#[test]
fn creating_at_once_loses_nothing() {
    let (_place, volume, fs) = fresh();
    fs.mkdir("/dir", 0o755).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let fs = &fs;
            scope.spawn(move || (0..50).for_each(|i| fs.write(format!("/dir/{thread}-{i}"), b"x").unwrap()));
        }
    });
    assert_eq!(fs.read_dir("/dir").unwrap().count(), 200);
    assert_eq!(fs.stat("/dir").unwrap().size, 200);
    check(&volume);
}

#[test]
fn permissions_stay_while_a_handle_writes() {
    let (_place, _, fs) = fresh();
    let file = fs.create("/f").unwrap();
    file.write_at(0, b"1").unwrap();
    fs.chmod("/f", 0o600).unwrap();
    file.write_at(1, &[2; 9000]).unwrap();
    file.sync().unwrap();
    assert_eq!((fs.stat("/f").unwrap().perm, file.metadata().unwrap().perm), (0o600, 0o600));
}

#[test]
fn an_open_file_that_was_removed_leaves_nothing() {
    let (_place, volume, fs) = fresh();
    let free = fs.statfs().unwrap().blocks_free;
    let file = fs.create("/f").unwrap();
    file.write_at(0, &[1; 100_000]).unwrap();
    fs.remove("/f").unwrap();
    file.write_at(50_000, &[2; 100_000]).unwrap();
    assert_eq!(file.read_range(49_999, 2).unwrap(), [1, 2]);
    assert!(!fs.exists("/f").unwrap() && fs.read_dir("/").unwrap().next().is_none());
    drop(file);
    volume.sync().unwrap();
    assert_eq!(fs.statfs().unwrap().blocks_free, free);
    check(&volume);
}

#[test]
fn reading_at_an_offset_leaves_the_position() {
    let (_place, _, fs) = fresh();
    fs.write("/f", b"0123456789").unwrap();
    let mut file = fs.open("/f").unwrap();
    let mut buf = [0; 4];
    file.read_exact(&mut buf).unwrap();
    assert_eq!(file.read_at(8, &mut buf).unwrap(), 2, "short");
    assert_eq!(file.read_at(100, &mut buf).unwrap(), 0);
    file.read_exact(&mut buf).unwrap();
    assert_eq!(&buf, b"4567");
    assert_eq!(file.seek(SeekFrom::End(-1)).unwrap(), 9);
    assert!(file.seek(SeekFrom::Current(-10)).is_err());
    let mut rest = Vec::new();
    file.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"9");
}

#[test]
fn the_size_is_right_after_emptying() {
    let (_place, _, fs) = fresh();
    fs.write("/f", &[1; 50_000]).unwrap();
    assert_eq!(fs.stat("/f").unwrap().size, 50_000);
    let file = fs.create("/f").unwrap();
    assert_eq!((fs.stat("/f").unwrap().size, file.len().unwrap()), (0, 0));
    file.write_at(0, b"12").unwrap();
    assert_eq!(fs.stat("/f").unwrap().size, 2);
}

#[test]
fn one_byte_far_out_makes_a_small_file() {
    let (place, volume, fs) = fresh();
    fs.create("/f").unwrap().write_at(1 << 40, b"x").unwrap();
    assert_eq!(fs.stat("/f").unwrap().size, (1 << 40) + 1);
    assert_eq!(fs.stat("/f").unwrap().blocks, 8);
    drop(fs);
    volume.close().unwrap();
    use std::os::unix::fs::MetadataExt;
    let taken = std::fs::metadata(&place.path).unwrap().blocks() * 512;
    assert!(taken < 16 << 20, "{taken}");
}

#[test]
fn a_snapshot_keeps_nobody_waiting_and_outlives_the_process() {
    let (place, volume, fs) = fresh();
    fs.write("/f", b"before").unwrap();
    fs.create_snapshot("s").unwrap();
    let old = fs.open_snapshot("s").unwrap();
    // With the snapshot open, and one of its files.
    let file = old.open("/f").unwrap();
    fs.write("/f", b"after").unwrap();
    assert_eq!((fs.read("/f").unwrap(), old.read("/f").unwrap()), (b"after".to_vec(), b"before".to_vec()));
    assert_eq!(old.write("/f", b"x").unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(fs.delete_snapshot("s").unwrap_err().kind(), ErrorKind::Busy);
    drop((file, old, fs));
    volume.close().unwrap();
    drop(volume);
    let volume = place.open();
    let fs = Fs::live(&volume, FsOptions::default()).unwrap();
    assert_eq!(fs.snapshots().iter().filter(|info| !info.is_branch).count(), 1);
    assert_eq!(fs.open_snapshot("s").unwrap().read("/f").unwrap(), b"before");
    fs.delete_snapshot("s").unwrap();
    assert!(fs.open_snapshot("s").is_err());
    check(&volume);
}

#[test]
fn restoring_works_with_all_of_it_open() {
    let (_place, volume, fs) = fresh();
    fs.mkdir("/dir", 0o755).unwrap();
    fs.write("/dir/f", b"before").unwrap();
    fs.write("/other", b"1").unwrap();
    fs.create_snapshot("s").unwrap();
    let old = fs.open_snapshot("s").unwrap();
    let file = fs.open("/dir/f").unwrap();
    fs.write("/dir/f", b"after").unwrap();
    fs.write("/dir/new", b"new").unwrap();
    fs.write("/other", b"2").unwrap();
    fs.restore("s", "/dir").unwrap();
    assert_eq!(fs.read("/dir/f").unwrap(), b"before");
    assert!(!fs.exists("/dir/new").unwrap());
    assert_eq!(fs.read("/other").unwrap(), b"2");
    fs.restore("s", "/").unwrap();
    assert_eq!(fs.read("/other").unwrap(), b"1");
    assert_eq!(old.read("/other").unwrap(), b"1");
    drop((file, old));
    check(&volume);
}

#[test]
fn links_in_a_circle_end() {
    let (_place, _, fs) = fresh();
    fs.symlink("b", "/a").unwrap();
    fs.symlink("a", "/b").unwrap();
    fs.symlink("self/x", "/self").unwrap();
    for path in ["/a", "/a/x", "/self", "/self/y"] {
        assert_eq!(fs.stat(path).unwrap_err().kind(), ErrorKind::Loop, "{path}");
        assert_eq!(fs.write(path, b"x").unwrap_err().kind(), ErrorKind::Loop, "{path}");
    }
    assert_eq!(fs.lstat("/a").unwrap().kind, Kind::Symlink);
    let error = fs.stat("/a").unwrap_err();
    assert!(error.to_string().contains("/a"), "{error}");
    fs.remove("/a").unwrap();
}

/// A file that is written as a whole is there as a whole, or not, wherever a crash comes.
#[test]
fn a_crash_leaves_no_halves() {
    for mode in [Mode::Kill, Mode::Adversarial] {
        let world = CrashWorld::new(mode);
        let (content, other) = ([7; 9000], [8; 200]);
        let options = OpenOptions { background: false, ..OpenOptions::new(Access::Write) };
        let new = CreateOptions {
            capacity_bytes: Some(8 << 20),
            durability: Durability::Fsync,
            owner: Caller { uid: 0, gid: 0 },
            perm: 0o755,
        };
        Volume::create_in(base::file(&world), "volume", &new, &options).unwrap().close().unwrap();
        world.settle();
        let plan = CrashPlan { points_max: scaled(40), randoms: 2 };
        crash_everywhere(
            &world,
            &plan,
            &mut Rng::new(1),
            |world| {
                let volume = Volume::open_in(base::file(world), "volume", &options)?;
                let fs = Fs::live(&Arc::new(volume), FsOptions::default())?;
                fs.write("/f", &content)?;
                fs.write("/f", &other)?;
                fs.transact(|t| {
                    t.mkdir("/dir", 0o755)?;
                    t.write_file("/dir/g", &content)?;
                    t.rename("/f", "/dir/f")
                })?;
                fs.sync()
            },
            |_, point, left| {
                let volume = Volume::open_in(base::file(&left), "volume", &options).unwrap();
                let fs = Fs::live(&Arc::new(volume), FsOptions::default()).unwrap();
                if fs.exists("/dir").unwrap() {
                    assert_eq!(fs.read("/dir/g").unwrap(), content, "{point:?}");
                    assert_eq!(fs.read("/dir/f").unwrap(), other, "{point:?}");
                    assert!(!fs.exists("/f").unwrap(), "{point:?}");
                } else if fs.exists("/f").unwrap() {
                    let read = fs.read("/f").unwrap();
                    assert!(read == content || read == other, "{point:?}: {} bytes", read.len());
                }
            },
        );
    }
}
