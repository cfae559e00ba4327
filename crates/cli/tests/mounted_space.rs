//! Full disks and full volumes, as verbs tell them.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::fs;
use std::path::PathBuf;

use common::{Bench, Start, pattern};
use mounts::is_root;

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
}
