//! Full disks and full volumes, as verbs tell them.

mod common;
#[path = "common/manifests.rs"]
mod manifests;
#[path = "common/mounts.rs"]
mod mounts;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use common::{Bench, Start, pattern};
use manifests::Job;
use mounts::{Mounts, SmallDisk, is_root};

/// A small disk, which goes with the test.
struct Disk(PathBuf);

impl Disk {
    fn new(bench: &Bench, name: &str, mib: u32) -> Disk {
        let at = bench.path(name);
        fs::create_dir(&at).unwrap();
        let size = format!("size={mib}M");
        let mut mount = std::process::Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", &size, "adit-test"]).arg(&at).start_and_wait().unwrap();
        assert!(mounted.success());
        Disk(at)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).start_and_wait();
    }
}

#[test]
fn what_is_full_is_named() {
    if !is_root("a disk of its own") {
        return;
    }
    let bench = Bench::new();
    let disk = Disk::new(&bench, "disk", 32);
    fs::write(bench.path("big"), pattern(40 << 20)).unwrap();
    // The host's disk, under a volume that has room.
    bench.run(["volume", "init", "disk/box"]).expect(0);
    let at = bench.path("disk/box").canonicalize().unwrap();
    bench.run(["put", "disk/box", "big", "/"]).expect(8).says(&format!("the disk with {} is full", at.display()));
    fs::remove_file(&at).unwrap();
    // The volume, on a disk that has room.
    bench.run(["volume", "init", "disk/small", "--capacity", "8M"]).expect(0);
    bench.run(["put", "disk/small", "big", "/"]).expect(8).says("the volume is full").says("adit volume resize");
    fs::remove_file(bench.path("disk/small")).unwrap();
    // Where a copy goes.
    bench.run(["volume", "init", "box"]).expect(0);
    bench.run(["put", "box", "big", "/"]).expect(0);
    bench.run(["get", "box", "/big", "disk"]).expect(8).says("the disk with disk is full");
    assert_eq!(fs::read_dir(&disk.0).unwrap().count(), 0, "nothing unfinished stays");
    fs::create_dir(bench.path("folder")).unwrap();
    fs::write(bench.path("folder/f"), "").unwrap();
    bench.run(["manifest", "snapshot", "folder", "-o", "/dev/full"]).expect(8).says("and try again");
    // A vault on a full disk.
    bench.run(["vault", "init", "disk/vault", "--password-file", "password"]).expect(0);
    let full = bench.run(["put", "disk/vault", "big", "/", "--password-file", "password"]).expect(8);
    full.says("the disk with").says("disk/vault is full");
    // The data folder of a volume whose file has room.
    bench.run(["volume", "init", "apart", "--data", "disk/data"]).expect(0);
    bench.run(["put", "apart", "big", "/"]).expect(8).says("the disk with").says("disk/data/");
}

/// What was fetched can be fetched again, and what is written has only this disk: the cache makes way for it, however fast it comes.
#[test]
fn what_was_fetched_makes_way_for_what_is_written() {
    const FILE_LEN: usize = 8 << 20;
    if !is_root("a disk of its own") {
        return;
    }
    let Some(job) = Job::new(&["mnt"]) else { return };
    let disk = SmallDisk::mount(job.path("cache"), "96m");
    for n in 0..11u8 {
        let mut content = pattern(FILE_LEN);
        content[0] = n;
        job.write(&format!("file{n}"), &content);
    }
    job.snapshot("job", "v2023");
    let read_all = || {
        for n in 0..11u8 {
            let read = fs::read(job.at(&format!("file{n}"))).unwrap();
            assert!(read.len() == FILE_LEN && read[0] == n);
        }
    };
    let write = |name: &str| {
        let mut file = File::create(job.at(name)).unwrap();
        for _ in 0..30 {
            file.write_all(&pattern(1 << 20)).unwrap();
        }
        file.sync_all().unwrap();
        drop(file);
        assert_eq!(fs::metadata(job.at(name)).unwrap().len(), 30 << 20);
    };
    job.mount(&["--writable"]).expect(0);
    read_all();
    let status = job.run(&["status", "mnt", "--json"]).expect(0).json();
    assert_eq!(status["cache_keep_free_bytes"].as_u64(), Some(24 << 20), "{status}");
    assert!(status["cache_used_bytes"].as_u64() > Some(30 << 20), "it is a cache all the same: {status}");
    write("first");
    read_all();
    job.umount();
    job.mount(&["--writable"]).expect(0);
    read_all();
    write("second");
    let stat = rustix::fs::statvfs(&disk.0).unwrap();
    assert!(stat.f_bavail < stat.f_blocks, "it is this disk");
    for name in ["first", "second"] {
        assert!(fs::read(job.at(name)).unwrap().chunks(1 << 20).all(|piece| piece == pattern(1 << 20)), "{name}");
    }
    job.umount();
}

/// So it is for the volume itself, when others have taken all that was left free of the disk.
#[test]
fn what_was_fetched_makes_way_for_a_new_volume() {
    if !is_root("a disk of its own") {
        return;
    }
    let Some(job) = Job::new(&["mnt"]) else { return };
    let disk = SmallDisk::mount(job.path("cache"), "96m");
    job.write("file", &pattern(60 << 20));
    job.snapshot("job", "v2023");
    job.mount(&[]).expect(0);
    assert_eq!(fs::read(job.at("file")).unwrap().len(), 60 << 20);
    job.umount();
    let mut ballast = File::create(disk.0.join("ballast")).unwrap();
    while ballast.write(&[1; 4096]).is_ok_and(|written| written > 0) {}
    job.mount(&["--writable"]).expect(0);
    fs::write(job.at("new"), pattern(1 << 20)).unwrap();
    assert!(fs::read(job.at("new")).unwrap() == pattern(1 << 20));
    job.umount();
}

/// Writes 1 MiB after the other until that is refused: how many MiB were taken, at most `most`, and what the last write said.
fn fill(path: &Path, most: usize) -> (usize, Option<std::io::ErrorKind>) {
    let mut file = File::options().append(true).create(true).open(path).unwrap();
    let piece = pattern(1 << 20);
    let refused = (0..most).find_map(|taken| file.write_all(&piece).err().map(|e| (taken, Some(e.kind()))));
    refused.unwrap_or((most, None))
}

/// The kernel buffers what is written, and hears all the same in time that there is no room for it.
fn expect_a_write_to_be_refused(m: &Mounts, room_mib: usize) {
    const EXCESS_MIB: usize = 64;
    let full = Some(std::io::ErrorKind::StorageFull);
    let (taken, refused) = fill(&m.at("full"), room_mib + EXCESS_MIB + 1);
    assert!(refused == full && taken <= room_mib + EXCESS_MIB, "{taken} MiB, {refused:?}");
    // Looking works as ever, and so does removing; then there is room again.
    assert!(fs::metadata(m.at("full")).unwrap().is_file() && fs::read(m.at("full")).unwrap().len() > 1 << 20);
    fs::remove_file(m.at("full")).unwrap();
    let is_taken = || fs::write(m.at("again"), pattern(4 << 20)).is_ok();
    common::eventually("what was removed is room for others", is_taken);
    assert_eq!(fs::read(m.at("again")).unwrap(), pattern(4 << 20));
}

#[test]
fn a_program_that_writes_for_ever_is_refused_by_a_full_volume() {
    let Some(m) = Mounts::volume(&["--capacity", "64M"]) else { return };
    m.mount(&[]).expect(0);
    expect_a_write_to_be_refused(&m, 64);
    // A file that was open when there was room.
    let mut file = File::create(m.at("open")).unwrap();
    file.write_all(b"begun").unwrap();
    let (taken, refused) = fill(&m.at("full"), 200);
    assert!(refused.is_some(), "{taken}");
    let ends = (0..200).find_map(|_| file.write_all(&pattern(1 << 20)).err());
    assert_eq!(ends.map(|e| e.kind()), Some(std::io::ErrorKind::StorageFull));
    drop(file);
    fs::remove_file(m.at("full")).unwrap();
    fs::remove_file(m.at("open")).unwrap();
    m.umount();
    m.expect_sound();
}

#[test]
fn a_program_that_writes_for_ever_is_refused_by_a_full_disk_below_a_volume_with_room() {
    if !is_root("a disk of its own") {
        return;
    }
    let Some(m) = Mounts::volume(&[]) else { return };
    let disk = SmallDisk::mount(m.bench.path("disk"), "96m");
    fs::rename(m.bench.path("box"), disk.0.join("box")).unwrap_or_else(|_| {
        fs::copy(m.bench.path("box"), disk.0.join("box")).unwrap();
        fs::remove_file(m.bench.path("box")).unwrap();
    });
    std::os::unix::fs::symlink(disk.0.join("box"), m.bench.path("box")).unwrap();
    m.mount(&[]).expect(0);
    expect_a_write_to_be_refused(&m, 96);
    m.umount();
    m.expect_sound();
}

/// The answer of `statvfs` for a place: bytes that can be written, and those in all.
fn room(path: &Path) -> (u64, u64) {
    let stat = rustix::fs::statvfs(path).unwrap();
    assert_eq!(stat.f_bfree.min(stat.f_bavail), stat.f_bavail);
    (stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize)
}

/// Free is what can be written now, for each store whose disk has less than the store itself would take.
#[test]
fn no_store_tells_more_room_than_its_disk_has() {
    if !is_root("a disk of its own") {
        return;
    }
    let Some(m) = Mounts::volume(&[]) else { return };
    let disk = SmallDisk::mount(m.bench.path("disk"), "64m");
    let bench = &m.bench;
    bench.run(["volume", "init", "disk/box", "--capacity", "1G"]).expect(0);
    bench.run(["volume", "init", "apart", "--capacity", "1G", "--data", "disk/data"]).expect(0);
    bench.run(["vault", "init", "disk/vault", "--password-file", "password"]).expect(0);
    fs::create_dir(bench.path("lower")).unwrap();
    for source in [
        &["disk/box"][..],
        &["apart"],
        &["disk/vault", "--password-file", "password"],
        &["lower", "--upper", "disk/upper"],
    ] {
        let mount = [&["mount"], source, &["mnt"]].concat();
        bench.run(mount).expect(0);
        let at = bench.path("mnt");
        let (free, all) = room(&at);
        let (host, _) = room(&disk.0);
        assert!(free <= host + (1 << 20) && free > host / 2, "{source:?}: {free} of {host}");
        assert!(all < 256 << 20, "{source:?}: {all} in all, of which what the store keeps for itself");
        let (taken, refused) = fill(&at.join("full"), 200);
        assert!(refused.is_some() && taken > 30, "{source:?}: {taken} MiB, {refused:?}");
        // A vault is as full as its disk, of which less is left than the write that was refused.
        let left_max = if source[0] == "disk/vault" { (1 << 20) - 1 } else { 0 };
        assert!(room(&at).0 <= left_max, "{source:?}: after it was full: {}", room(&at).0);
        fs::remove_file(at.join("full")).unwrap();
        common::eventually("what was removed is free again", || room(&at).0 > 20 << 20);
        fs::write(at.join("small"), pattern(4 << 20)).unwrap();
        common::eventually("as much as the disk has", || {
            let (free, host) = (room(&at).0, room(&disk.0).0);
            free <= host && free + (8 << 20) > host
        });
        bench.run(["umount", "mnt"]).expect(0);
        fs::remove_file(disk.0.join("upper")).ok();
    }
}
