//! Mounted volumes: one process for all mounts of one file, what a kill costs, how full it gets.

mod common;
#[path = "common/mounts.rs"]
mod mounts;
#[path = "common/volumes.rs"]
mod volumes;

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Child;

use common::{Bench, eventually, facts, make_tree, pattern};
use mounts::{is_running, mount_line};
use serde_json::Value;
use volumes::{Boxed, POINTS, read};

#[test]
fn what_is_written_is_there_after_the_next_mount() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    make_tree(&b.at("tree"));
    let copied = std::process::Command::new("cp").arg("-a").arg(b.at("tree")).arg(b.at("mnt")).status().unwrap();
    assert!(copied.success());
    let f = b.at("mnt/f");
    fs::write(&f, "text").unwrap();
    fs::hard_link(&f, b.at("mnt/g")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, b.at("mnt/fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    fs::set_permissions(&f, fs::Permissions::from_mode(0o4711)).unwrap();
    rustix::fs::setxattr(&f, "user.x", b"1", rustix::fs::XattrFlags::CREATE).unwrap();
    // A hole of a terabyte costs nothing.
    File::create(b.at("mnt/hole")).unwrap().write_all_at(b"x", 1 << 40).unwrap();
    let mounts = b.bench.mounts();
    assert_eq!((&mounts[0]["kind"], &mounts[0]["branch"]), (&Value::from("volume"), &Value::from("main")));
    assert_eq!(mounts[0]["read_only"], false);
    b.umount("mnt");
    b.mount("mnt", &[]).expect(0);
    assert_eq!(facts(&b.at("tree")), facts(&b.at("mnt/tree")));
    let meta = fs::metadata(b.at("mnt/g")).unwrap();
    assert_eq!((meta.nlink(), meta.mode() & 0o7777, read(&f).as_str()), (2, 0o4711, "text"));
    assert_eq!(meta.ino(), fs::metadata(&f).unwrap().ino());
    let hole = fs::metadata(b.at("mnt/hole")).unwrap();
    assert_eq!((hole.len(), hole.blocks()), ((1 << 40) + 1, 8));
    assert!(fs::metadata(b.at("box")).unwrap().blocks() * 512 < 64 << 20);
    let mut value = [0; 8];
    assert_eq!(rustix::fs::getxattr(&f, "user.x", &mut value[..]).unwrap(), 1);
    b.umount("mnt");
    b.expect_sound();
}

#[test]
fn one_process_has_the_file() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    fs::write(b.at("mnt/f"), "text").unwrap();
    let mnt = b.at("mnt").canonicalize().unwrap().display().to_string();
    // The same branch a second time. Verbs on the file go through the process (tests/mounted_verbs.rs).
    b.mount("mnt2", &[]).expect(7).says(&mnt);
    b.mount("mnt2", &["--foreground", "--snapshot", "s"]).expect(7).says("--foreground");
    b.of("volume check", "box", &[]).expect(7).says(&mnt);
    // A process that has no mount is kept out by the lock.
    let other = Bench::bare();
    other.run(["ls", &b.bench.str("box")]).expect(7).says("another process");
    b.of("volume info", "box", &[]).expect(0);
    b.umount("mnt");
    b.bench.run(["cat", &b.bench.str("box"), "/f"]).expect(0);
}

#[test]
fn further_mounts_join_the_process() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    fs::write(b.at("mnt/f"), "one").unwrap();
    b.of("snapshot create", "mnt", &["s"]).expect(0);
    b.of("clone create", "mnt", &["s", "branch"]).expect(0);
    fs::write(b.at("mnt/f"), "two").unwrap();
    b.mount("mnt2", &["--snapshot", "s"]).expect(0);
    b.mount("mnt3", &["--branch", "branch", "--memory", "64M"]).expect(0);
    let pid = b.pid();
    fs::write(b.at("mnt3/f"), "three").unwrap();
    let contents = || ["mnt/f", "mnt2/f", "mnt3/f"].map(|path| read(&b.at(path)));
    assert_eq!(contents(), ["two", "one", "three"]);
    assert_eq!(fs::write(b.at("mnt2/f"), "no").unwrap_err().raw_os_error(), Some(libc::EROFS));
    let parts = b.bench.mounts();
    assert_eq!(parts.iter().filter(|m| m["snapshot"] == "s" && m["read_only"] == true).count(), 1);
    assert_eq!(parts.iter().filter(|m| m["branch"] == "branch").count(), 1);

    // They share one budget of memory, whatever a further one asks for.
    let stats = POINTS.map(|point| b.of("stats", point, &["--json"]).expect(0).json());
    let sum: u64 = stats.iter().map(|stats| stats["used_bytes"].as_u64().unwrap()).sum();
    let all = stats.iter().map(|stats| (&stats["budget_bytes"], stats["used_by_all_bytes"].as_u64().unwrap()));
    assert!(all.into_iter().all(|(budget, used)| *budget == stats[0]["budget_bytes"] && used == sum), "{stats:?}");

    // What is mounted is not deleted.
    b.of("snapshot delete", "box", &["s", "-y"]).expect(7);
    b.of("clone delete", "box", &["branch", "-y"]).expect(7).says("mnt3");
    b.of("snapshot create", "mnt2", &["t"]).expect(2).says("--branch");

    // They end one by one, and the process with the last.
    b.umount("mnt");
    assert_eq!(b.pid(), pid);
    assert_eq!((read(&b.at("mnt2/f")), read(&b.at("mnt3/f"))), ("one".to_owned(), "three".to_owned()));
    b.mount("mnt", &[]).expect(0);
    assert_eq!((b.pid(), read(&b.at("mnt/f"))), (pid, "two".to_owned()));
    b.umount("mnt3");
    b.umount("mnt");
    b.of("clone delete", "mnt2", &["branch", "-y"]).expect(0);
    b.umount("mnt2");
    b.expect_sound();
    b.bench.run(["cat", &b.bench.str("box"), "/f"]).expect(0);
}

#[test]
fn mounts_that_begin_at_once_find_each_other() {
    let Some(b) = Boxed::new() else { return };
    b.of("snapshot create", "box", &["s"]).expect(0);
    b.of("clone create", "box", &["s", "x"]).expect(0);
    let parts: [&[&str]; 3] = [&[], &["--snapshot", "s"], &["--branch", "x"]];
    let begun: Vec<Child> = POINTS
        .iter()
        .zip(parts)
        .map(|(point, part)| {
            let mut command = b.bench.command();
            command.arg("mount").arg(b.at("box")).arg(b.at(point)).args(part);
            command.spawn().unwrap()
        })
        .collect();
    for mut child in begun {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(b.bench.mounts().len(), 3);
    let pid = b.pid();
    // A signal ends all of them.
    // SAFETY: a plain system call; the process is one that this test started.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
    eventually("all are unmounted", || POINTS.iter().all(|p| mount_line(&b.at(p)).is_none()));
    eventually("the file is free", || b.of("volume check", "box", &[]).code == Some(0));
}

#[test]
fn a_kill_loses_nothing_that_was_closed() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    for round in 0..3 {
        let dir = b.at(&format!("mnt/{round}"));
        fs::create_dir(&dir).unwrap();
        for n in 0..50 {
            fs::write(dir.join(n.to_string()), pattern(1 + n * 700)).unwrap();
        }
        fs::rename(dir.join("0"), dir.join("renamed")).unwrap();
        let unfinished = File::create(dir.join("unfinished")).unwrap();
        b.kill();
        drop(unfinished);
        b.mount("mnt", &[]).expect(0);
        for n in 1..50 {
            assert!(fs::read(dir.join(n.to_string())).unwrap() == pattern(1 + n * 700), "{round} {n}");
        }
        assert_eq!(fs::read(dir.join("renamed")).unwrap(), pattern(1));
        assert!(!dir.join("0").exists());
    }
    b.umount("mnt");
    b.expect_sound();
}

/// Between its detachment and its end the mountpoint is an ordinary folder: nobody is told to work there.
#[test]
fn a_detached_mount_is_no_place_to_work_in() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    let open = File::create(b.at("mnt/f")).unwrap();
    b.bench.run(["umount", "--lazy", "mnt"]).expect(0);
    let file = b.bench.str("box");
    for line in [vec!["ls", &file], vec!["put", &file, "/etc/hostname", "/h"], vec!["mount", &file, "mnt2"]] {
        let ran = b.bench.run(&line).expect(7).says("was detached and is still ending").says("stays in that folder");
        assert!(!ran.stderr.contains("work in"), "{line:?}: {}", ran.stderr);
    }
    drop(open);
    eventually("it has ended", || b.bench.mounts().is_empty());
    b.mount("mnt", &[]).expect(0);
    b.umount("mnt");
}

#[test]
fn a_close_after_the_kill_fails() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    // So that the kernel knows already which requests this server does without.
    fs::write(b.at("mnt/before"), b"1").unwrap();
    let pid = b.pid();
    let clean = File::open(b.at("mnt/before")).unwrap();
    let mut dirty = File::create(b.at("mnt/dirty")).unwrap();
    dirty.write_all(&pattern(5000)).unwrap();
    // What the kernel was to hand over while nobody was there is dropped without a word, and the file is no longer dirty.
    let mut dropped = File::create(b.at("mnt/dropped")).unwrap();
    dropped.write_all(&pattern(5000)).unwrap();
    // SAFETY: a plain system call; the process is one that this test started.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    eventually("the server is gone", || !is_running(pid));
    // SAFETY: a plain system call on an open descriptor; that it fails is nothing new.
    let _ = unsafe { libc::sync_file_range(dropped.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
    for (name, file) in [("dirty", dirty), ("dropped", dropped), ("clean", clean)] {
        // SAFETY: a plain system call with a descriptor that nobody else has.
        let closed = unsafe { libc::close(file.into_raw_fd()) };
        assert_eq!(closed, -1, "{name}");
    }
    b.umount("mnt");
}

#[test]
fn with_durability_sync_a_kill_loses_nothing_that_was_written() {
    let Some(b) = Boxed::new() else { return };
    let of_itself = b.bench.str("synced");
    b.bench.run(["volume", "init", &of_itself, "--capacity", "1G", "--durability", "sync"]).expect(0);
    let (asked, mnt) = (b.bench.str("box"), b.bench.str("mnt"));
    for line in [vec![&*asked, &*mnt, "--durability", "sync"], vec![&*of_itself, &*mnt]] {
        let mount = || b.bench.run(["mount"].iter().chain(&line)).expect(0);
        mount();
        // Known beforehand, so that the kill comes right after the last write.
        let pid = b.pid();
        let mut file = File::create(b.at("mnt/f")).unwrap();
        for piece in pattern(300_000).chunks(7777) {
            file.write_all(piece).unwrap();
        }
        // SAFETY: a plain system call; the process is one that this test started.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        drop(file);
        eventually("the server is gone", || !is_running(pid));
        b.umount("mnt");
        mount();
        assert!(fs::read(b.at("mnt/f")).unwrap() == pattern(300_000), "{line:?}");
        b.umount("mnt");
    }
}

#[test]
fn a_mount_to_read_leaves_the_file_as_it_is() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    fs::write(b.at("mnt/f"), "text").unwrap();
    b.of("snapshot create", "mnt", &["s"]).expect(0);
    b.umount("mnt");
    let before = fs::read(b.at("box")).unwrap();
    b.mount("mnt", &["--read-only"]).expect(0);
    assert_eq!(read(&b.at("mnt/f")), "text");
    assert_eq!(fs::write(b.at("mnt/g"), "no").unwrap_err().raw_os_error(), Some(libc::EROFS));
    b.mount("mnt2", &["--snapshot", "s"]).expect(0);
    b.umount("mnt");
    b.mount("mnt", &[]).expect(7).says("--read-only");
    b.umount("mnt2");
    assert!(before == fs::read(b.at("box")).unwrap());
    b.mount("mnt", &[]).expect(0);
    b.umount("mnt");
}

#[test]
fn a_full_volume_can_be_emptied_through_its_mount() {
    let Some(b) = Boxed::with("32M") else { return };
    b.mount("mnt", &[]).expect(0);
    let full = (0..32).find_map(|n| {
        let mut file = File::create(b.at(&format!("mnt/{n}"))).ok()?;
        let written = file.write_all(&pattern(2 << 20)).and_then(|()| file.sync_all());
        written.err()
    });
    assert_eq!(full.expect("it gets full").raw_os_error(), Some(libc::ENOSPC));
    let space = rustix::fs::statvfs(b.at("mnt")).unwrap();
    assert!(space.f_bavail * space.f_frsize < 4 << 20, "{} blocks", space.f_bavail);
    for n in 0..4 {
        fs::remove_file(b.at(&format!("mnt/{n}"))).unwrap();
    }
    fs::write(b.at("mnt/again"), pattern(2 << 20)).unwrap();
    b.umount("mnt");
    b.expect_sound();
}

#[test]
fn a_volume_is_resized() {
    let Some(b) = Boxed::new() else { return };
    let capacity = |x: &str| b.of("volume info", x, &["--json"]).expect(0).json()["capacity_bytes"].as_u64().unwrap();
    let total = || {
        let space = rustix::fs::statvfs(b.at("mnt")).unwrap();
        space.f_blocks * space.f_frsize
    };
    b.mount("mnt", &[]).expect(0);
    let before = total();
    fs::write(b.at("mnt/f"), pattern(96 << 20)).unwrap();
    b.of("volume resize", "mnt", &["2G"]).expect(0);
    assert_eq!(capacity("box"), 2 << 30);
    assert!(total() > before + (900 << 20), "{}", total());
    // Not below what it holds, and nothing has changed then.
    b.of("volume resize", "mnt", &["64M"]).expect(8).says("volume gc");
    b.of("volume resize", "mnt", &["1"]).expect(2);
    assert_eq!(capacity("box"), 2 << 30);
    b.of("volume resize", "mnt", &["256M"]).expect(0);
    assert!(total() <= 256 << 20, "{}", total());
    assert_eq!(fs::read(b.at("mnt/f")).unwrap(), pattern(96 << 20));
    b.umount("mnt");
    b.expect_sound();
    b.of("volume resize", "box", &["512M"]).expect(0);
    assert_eq!(capacity("box"), 512 << 20);
    b.expect_sound();
}
