//! Mounts of a volume whose data folder was moved by itself.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use common::pattern;
use mounts::Mounts;

#[test]
fn a_mount_is_told_where_a_moved_folder_is() {
    let Some(m) = Mounts::volume(&["--capacity", "256M", "--data", "data"]) else { return };
    m.mount(&[]).expect(0);
    fs::write(m.at("big"), pattern(1 << 20)).unwrap();
    m.umount();
    let rename = |from: &str, to: &str| fs::rename(m.bench.path(from), m.bench.path(to)).unwrap();
    rename("data", "moved");
    m.mount(&[]).expect(1).says("is not there").says("--data DIR");
    fs::create_dir(m.bench.path("empty")).unwrap();
    m.mount(&["--data", "empty"]).expect(1).says("no data of the volume");
    // To read, which the volume does not remember.
    m.mount(&["--data", "moved", "--read-only"]).expect(0);
    assert_eq!(fs::read(m.at("big")).unwrap(), pattern(1 << 20));
    m.bench.run(["ls", "box"]).expect(0);
    m.bench.run(["ls", "box", "--data", "moved"]).expect(0);
    m.bench.run(["volume", "info", "mnt", "--data", "moved"]).expect(0);
    m.bench.run(["ls", "box", "--data", "empty"]).expect(7).says("its data folder is").says("moved");
    m.bench.run(["snapshot", "list", "mnt", "--data", "empty"]).expect(7);
    m.umount();
    m.mount(&[]).expect(1);
    // To write.
    m.mount(&["--data", "moved"]).expect(0);
    fs::write(m.at("later"), pattern(100_000)).unwrap();
    m.remount(&[]);
    assert_eq!(fs::read(m.at("later")).unwrap(), pattern(100_000));
    m.umount();
    // In the words of mount(8), from another folder.
    rename("moved", "again");
    m.mount(&["-o", "data=again"]).expect(0);
    m.remount(&[]);
    assert_eq!(fs::read(m.at("big")).unwrap(), pattern(1 << 20));
    m.umount();
    // The file from before the folder was changed last.
    fs::copy(m.bench.path("box"), m.bench.path("old")).unwrap();
    m.mount(&[]).expect(0);
    m.umount();
    rename("again", "last");
    m.bench.run(["mount", "old", "mnt", "--data", "last"]).expect(1).says("has changed since");
    m.mount(&["--data", "last"]).expect(0);
    m.umount();
    // One whose name is not text, and one that looks the same.
    let named = OsStr::from_bytes(b"\xff");
    fs::rename(m.bench.path("last"), m.bench.dir.path().join(named)).unwrap();
    fs::create_dir(m.bench.path("\u{fffd}")).unwrap();
    let with_data = |line: &[&str], data: &OsStr| {
        m.bench.run(line.iter().map(OsStr::new).chain([OsStr::new("--data"), data]).collect::<Vec<_>>())
    };
    with_data(&["mount", "box", "mnt"], named).expect(0);
    with_data(&["ls", "box"], named).expect(0);
    with_data(&["ls", "box"], OsStr::new("\u{fffd}")).expect(7);
    let info = m.bench.run(["volume", "info", "box", "--json"]).expect(0).json();
    assert!(info["data_dir_raw"].as_array().unwrap().contains(&255.into()), "{info}");
    assert!(info["allocated_bytes"].as_u64().unwrap() > 1 << 20, "{info}");
    m.bench.run(["volume", "info", "box"]).expect(0);
    m.umount();
    m.expect_sound();
}

#[test]
fn an_overlay_is_told_where_the_data_of_the_volume_below_is() {
    let Some(m) = Mounts::volume(&["--capacity", "256M", "--data", "data"]) else { return };
    fs::write(m.bench.path("big"), pattern(1 << 20)).unwrap();
    m.bench.run(["put", "box", "big", "/big"]).expect(0);
    m.bench.run(["snapshot", "create", "box", "s"]).expect(0);
    fs::rename(m.bench.path("data"), m.bench.path("moved")).unwrap();
    let overlay = |more: &[&str]| m.mount(&[&["--snapshot", "s", "--upper", "up"], more].concat());
    overlay(&[]).expect(1).says("--data DIR");
    overlay(&["--data", "moved"]).expect(0);
    assert_eq!(fs::read(m.at("big")).unwrap(), pattern(1 << 20));
    fs::write(m.at("new"), "new").unwrap();
    m.umount();
    overlay(&["--data", "moved"]).expect(0);
    assert_eq!(fs::read(m.at("new")).unwrap(), b"new");
    m.umount();
    // What is below may also be a folder, which has none.
    m.bench.run(["mount", "empty", "mnt", "--upper", "up", "--data", "moved"]).expect(1);
    fs::create_dir(m.bench.path("empty")).unwrap();
    m.bench.run(["mount", "empty", "mnt", "--upper", "up", "--data", "moved"]).expect(2).says("volume check");
}
