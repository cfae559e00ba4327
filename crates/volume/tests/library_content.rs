//! Content through the library, beside what others do to it: appending, replacing, and handles while a restore goes on.

#[path = "support/volume.rs"]
mod support;

use std::io::{Seek, Write};

use adit_core::ErrorKind;
use adit_testkit::scaled;
use adit_volume::fs::OpenFlags;
use adit_volume::{Fs, FsOptions};

use support::{Place, check, fresh};

#[test]
fn appending_overwrites_nothing_that_others_make_longer() {
    let (_place, volume, fs) = fresh();
    fs.write("/f", b"").unwrap();
    let flags = OpenFlags { append: true, ..OpenFlags::default() };
    let file = fs.open_with("/f", &flags).unwrap();
    let each = scaled(400);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..each).for_each(|_| (&file).write_all(b"appended").unwrap()));
        for _ in 0..each {
            fs.transact(|t| {
                let end = t.stat("/f")?.size;
                t.write("/f", end, b"together")
            })
            .unwrap();
        }
    });
    let bytes = fs.read("/f").unwrap();
    let count = |what: &[u8]| bytes.chunks(8).filter(|part| *part == what).count();
    assert_eq!((count(b"appended"), count(b"together")), (each, each));
    // And begins where it was cut.
    fs.truncate("/f", 0).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..each).for_each(|_| (&file).write_all(b"appended").unwrap()));
        for _ in 0..each {
            fs.truncate("/f", 0).unwrap();
        }
    });
    assert!(fs.read("/f").unwrap().chunks(8).all(|part| part == b"appended"));
    check(&volume);
}

#[test]
fn much_is_appended_as_well() {
    let (_place, volume, fs) = fresh();
    fs.write("/f", b"first").unwrap();
    let flags = OpenFlags { append: true, ..OpenFlags::default() };
    let file = fs.open_with("/f", &flags).unwrap();
    let much: Vec<u8> = (0..(17 << 20) + 3).map(|i: u32| (i % 251) as u8).collect();
    (&file).write_all(&much).unwrap();
    (&file).write_all(b"").unwrap();
    file.write_at(0, b"last").unwrap();
    assert!(fs.read("/f").unwrap() == [b"first", &much[..], b"last"].concat());
    // Its position is behind it.
    assert_eq!((&file).stream_position().unwrap(), 5 + much.len() as u64);
    let most = i64::MAX as u64;
    fs.truncate("/f", most - 2).unwrap();
    assert_eq!(file.write_at(0, b"too much").unwrap_err().kind(), ErrorKind::FileTooLarge);
    assert_eq!(file.len().unwrap(), most - 2);
    check(&volume);
}

#[test]
fn a_large_file_in_many_pieces_is_replaced_by_a_small_one() {
    // As much as one batch could not take away: its log segments are of 256 KiB.
    const CAPACITY_BYTES: u64 = 64 << 20;
    const PIECES: u64 = 11_000;
    let (_place, volume) = Place::with(CAPACITY_BYTES);
    let fs = Fs::live(&volume, FsOptions::default()).unwrap();
    for bytes in [&b"new"[..], &[7; 1 << 20]] {
        let file = fs.create("/f").unwrap();
        (0..PIECES).for_each(|piece| file.write_at(piece << 20, b"old").unwrap());
        fs.write("/f", bytes).unwrap();
        assert!(fs.read("/f").unwrap() == bytes);
        assert_eq!(fs.stat("/f").unwrap().blocks, 8 * bytes.len().div_ceil(4096) as u64);
        // What was there before shows nowhere.
        fs.truncate("/f", PIECES << 20).unwrap();
        assert_eq!(file.next_data(bytes.len().next_multiple_of(4096) as u64).unwrap(), None);
        check(&volume);
    }
}

#[test]
fn files_that_are_in_no_snapshot_outlive_the_restore_of_a_path_only() {
    let (_place, volume, fs) = fresh();
    fs.mkdir("/dir", 0o755).unwrap();
    fs.write("/dir/f", b"before").unwrap();
    fs.create_snapshot("s").unwrap();
    let there = fs.open("/dir/f").unwrap();
    let both = OpenFlags { write: true, create: true, ..OpenFlags::default() };
    let new = fs.open_with("/dir/new", &both).unwrap();
    new.write_at(0, b"new").unwrap();
    fs.restore("s", "/dir").unwrap();
    assert!(!fs.exists("/dir/new").unwrap());
    new.write_at(3, b"er").unwrap();
    assert_eq!(new.read_range(0, 10).unwrap(), b"newer");
    check(&volume);
    let newer = fs.open_with("/dir/newer", &both).unwrap();
    newer.write_at(0, b"newer").unwrap();
    fs.write("/dir/f", b"again").unwrap();
    fs.restore("s", "/").unwrap();
    let kind = |result: adit_core::Result<Vec<u8>>| result.map_err(|e| e.kind());
    for gone in [&new, &newer] {
        assert_eq!(kind(gone.read_range(0, 10)), Err(ErrorKind::Stale));
        assert_eq!(gone.write_at(0, b"x").unwrap_err().kind(), ErrorKind::Stale);
    }
    // What is in the snapshot stays what it is.
    assert_eq!(kind(there.read_range(0, 10)), Ok(b"before".to_vec()));
    drop((there, new, newer));
    check(&volume);
}
