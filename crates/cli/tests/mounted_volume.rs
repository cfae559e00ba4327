//! Mounted volumes: one process for all mounts of one file, what a kill costs, how full it gets.

mod common;
#[path = "common/mounts.rs"]
mod mounts;
#[path = "common/volumes.rs"]
mod volumes;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Child;

use common::{Bench, Start, eventually, facts, make_tree, pattern};
use mounts::{SmallDisk, is_root, is_running, mount_line};
use serde_json::Value;
use volumes::{Boxed, POINTS, read};

#[test]
fn what_is_written_is_there_after_the_next_mount() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    make_tree(&b.at("tree"));
    let copied =
        std::process::Command::new("cp").arg("-a").arg(b.at("tree")).arg(b.at("mnt")).start_and_wait().unwrap();
    assert!(copied.success());
    let f = b.at("mnt/f");
    fs::write(&f, "text").unwrap();
    fs::hard_link(&f, b.at("mnt/g")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, b.at("mnt/fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    fs::set_permissions(&f, fs::Permissions::from_mode(0o4711)).unwrap();
    rustix::fs::setxattr(&f, "user.x", b"1", rustix::fs::XattrFlags::CREATE).unwrap();
    // As long as the kernel takes one.
    let long: Vec<u8> = (0..64 << 10).map(|n: u32| (n / 7) as u8).collect();
    rustix::fs::setxattr(&f, "user.long", &long, rustix::fs::XattrFlags::CREATE).unwrap();
    let longer = rustix::fs::setxattr(&f, "user.longer", &[0; (64 << 10) + 1], rustix::fs::XattrFlags::CREATE);
    assert_eq!(longer, Err(rustix::io::Errno::TOOBIG));
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
    let mut found = vec![0; 64 << 10];
    assert_eq!(rustix::fs::getxattr(&f, "user.long", &mut found[..]).unwrap(), found.len());
    assert_eq!(found, long);
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
fn a_volume_is_the_same_under_all_names_of_its_file() {
    let Some(b) = Boxed::new() else { return };
    b.of("snapshot create", "box", &["s"]).expect(0);
    fs::hard_link(b.at("box"), b.at("linked")).unwrap();
    b.mount("mnt", &[]).expect(0);
    fs::write(b.at("mnt/f"), "text").unwrap();
    let mnt = b.at("mnt").canonicalize().unwrap().display().to_string();
    let of_linked = |args: &[&str]| b.bench.run([&["mount", "linked"], args].concat());
    of_linked(&["mnt2"]).expect(7).says(&format!("is mounted on {mnt}"));
    b.of("volume check", "linked", &[]).expect(7).says(&mnt);
    assert_eq!(b.of("cat", "linked", &["/f"]).expect(0).text(), "text");
    of_linked(&["mnt2", "--snapshot", "s"]).expect(0);
    b.pid();
    b.umount("mnt2");
    // It has moved, and something else has come to its place.
    assert_eq!(b.bench.mounts()[0]["file_missing"], false);
    fs::rename(b.at("box"), b.at("moved")).unwrap();
    let told = |missing: bool| {
        assert_eq!(b.bench.mounts()[0]["file_missing"], missing);
        assert_eq!(b.of("status", "mnt", &["--json"]).expect(0).json()["file_missing"], missing);
        let text = b.bench.run(["mounts"]).expect(0).text();
        let line = format!("{} was moved or removed", b.at("").canonicalize().unwrap().join("box").display());
        assert_eq!(text.contains(&line), missing, "{text}");
    };
    told(true);
    assert_eq!(b.of("cat", "moved", &["/f"]).expect(0).text(), "text");
    b.bench.run(["volume", "init", "box"]).expect(0);
    told(true);
    assert_eq!(b.of("ls", "box", &[]).expect(0).text(), "");
    assert_eq!(b.of("snapshot list", "box", &[]).expect(0).text(), "");
    b.mount("mnt2", &[]).expect(0);
    fs::write(b.at("mnt2/other"), "other").unwrap();
    b.umount("mnt2");
    b.bench.run(["umount", &b.bench.str("mnt")]).expect(0).says("is not there any more: if it was moved");
    for file in ["box", "moved"] {
        b.of("volume check", file, &[]).expect(0);
    }
    assert_eq!(b.of("ls", "moved", &[]).expect(0).text(), "f\n");
}

#[test]
fn a_mountpoint_that_is_no_text_is_told_with_its_bytes() {
    let Some(b) = Boxed::new() else { return };
    let point = b.at("").canonicalize().unwrap().join(OsStr::from_bytes(b"odd\xff"));
    fs::create_dir(&point).unwrap();
    // Taken off also if the test fails.
    let _mounted = SmallDisk(point.clone());
    b.bench.run([OsStr::new("mount"), b.at("box").as_os_str(), point.as_os_str()]).expect(0);
    let mounts = b.bench.mounts();
    let status = b.bench.run([OsStr::new("status"), point.as_os_str(), OsStr::new("--json")]).expect(0).json();
    for told in [&mounts[0], &status] {
        let raw = told["mountpoint_raw"].as_array().expect("bytes").iter().map(|byte| byte.as_u64().unwrap() as u8);
        assert!(raw.eq(point.as_os_str().as_bytes().iter().copied()), "{told}");
    }
    b.bench.run([OsStr::new("umount"), point.as_os_str()]).expect(0);
    b.mount("mnt", &[]).expect(0);
    assert_eq!(b.bench.mounts()[0].get("mountpoint_raw"), None, "only where the text is not all");
    b.umount("mnt");
}

#[test]
fn a_volume_whose_path_is_no_text_is_told_with_its_bytes() {
    let Some(b) = Boxed::new() else { return };
    let file = b.at("").canonicalize().unwrap().join(OsStr::from_bytes(b"odd\xff"));
    fs::rename(b.at("box"), &file).unwrap();
    b.bench.run([OsStr::new("mount"), file.as_os_str(), b.at("mnt").as_os_str()]).expect(0);
    let mounts = b.bench.mounts();
    assert_eq!(mounts[0]["file_missing"], false, "{}", mounts[0]);
    let status = b.bench.run(["status", "mnt", "--json"]).expect(0).json();
    for told in [&mounts[0], &status] {
        let raw = told["source_raw"].as_array().expect("bytes").iter().map(|byte| byte.as_u64().unwrap() as u8);
        assert!(raw.eq(file.as_os_str().as_bytes().iter().copied()), "{told}");
    }
    // Named by its mountpoint, too.
    b.of("snapshot create", "mnt", &["s"]).expect(0);
    b.of("volume gc", "mnt", &[]).expect(0);
    b.umount("mnt");
    fs::rename(&file, b.at("box")).unwrap();
}

/// A check needs the file alone: what is named instead of it is told, with what to do.
#[test]
fn a_mountpoint_is_told_to_be_no_volume_to_check() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    let file = b.at("").canonicalize().unwrap().join("box");
    let says = format!("a mountpoint of {}", file.display());
    let advice = format!("adit volume check {}", file.display());
    b.of("volume check", "mnt", &[]).expect(7).says(&says).says(&advice);
    b.bench.run(["vault", "check", "mnt"]).expect(10).says("a mountpoint of a volume");
    b.umount("mnt");
}

#[test]
fn a_volume_that_is_mounted_to_be_read_takes_no_snapshot() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &["--read-only"]).expect(0);
    let mnt = b.at("").canonicalize().unwrap().join("mnt");
    for x in ["mnt", "box"] {
        b.of("snapshot create", x, &["s"]).expect(1).says(&format!("adit umount {}", mnt.display()));
    }
    b.umount("mnt");
}

#[test]
fn a_volume_that_an_error_made_read_only_is_told() {
    let Some(b) = Boxed::new() else { return };
    // Its file lies in another volume, whose process is killed: so all that is written to it fails.
    b.mount("mnt2", &[]).expect(0);
    let below = b.pid();
    let file = b.bench.str("mnt2/v");
    b.bench.run(["volume", "init", &file, "--capacity", "64M"]).expect(0);
    b.bench.run(["mount", &file, "mnt"]).expect(0);
    let status = || b.bench.run(["status", "mnt", "--json"]).expect(0).json();
    assert_eq!((&status()["read_only"], &status()["read_only_because"]), (&false.into(), &Value::Null));
    // SAFETY: a plain system call; the process is one that this test started.
    assert_eq!(unsafe { libc::kill(below, libc::SIGKILL) }, 0);
    eventually("the server below is gone", || !is_running(below));
    // The page cache of the dead mount may take the first record; a sync goes to its server.
    let failed = File::create(b.at("mnt/x")).and_then(|file| file.sync_all()).unwrap_err();
    assert!([Some(libc::EIO), Some(libc::EROFS)].contains(&failed.raw_os_error()), "{failed}");
    assert_eq!(File::create(b.at("mnt/y")).unwrap_err().raw_os_error(), Some(libc::EROFS));
    let mounts = b.bench.mounts();
    let point = Value::from(b.bench.str("mnt"));
    let listed = mounts.iter().find(|mount| mount["mountpoint"] == point).expect("it is listed");
    for told in [&status(), listed] {
        assert_eq!(told["read_only"], true);
        assert!(told["read_only_because"].as_str().unwrap().contains("reopen it to go on"), "{told}");
    }
    // Its file cannot be named: that lies on a dead mount.
    let refused = b.bench.run(["snapshot", "create", "mnt", "s"]).expect(1).says("reopen it to go on").stderr;
    assert!(!refused.contains("read-only filesystem"), "{refused}");
    let text = b.bench.run(["mounts"]).expect(0).text();
    assert!(text.contains("read-only, process") && text.contains("  read-only: "), "{text}");
    // What could not be written is not told as written.
    assert_ne!(b.bench.run(["umount", "mnt"]).code, Some(0));
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
            command.start().unwrap()
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
    b.bench.await_detached();
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

/// Its process lives, and has the volume: what is asked of that works, or says why not.
#[test]
fn a_volume_whose_mount_was_detached_is_asked_all_the_same() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    fs::write(b.at("mnt/f"), "one").unwrap();
    b.of("snapshot create", "box", &["before"]).expect(0);
    let mut open = File::options().write(true).open(b.at("mnt/f")).unwrap();
    open.write_all(b"two").unwrap();
    b.bench.run(["umount", "--lazy", "mnt"]).expect(0);
    b.bench.await_detached();
    // What was written is in the snapshot, though the kernel has it, and the mount no place any more.
    b.of("snapshot create", "box", &["after"]).expect(0);
    let found = b.of("snapshot diff", "box", &["before", "after", "--json"]).expect(0).json();
    assert_eq!((&found[0]["path"], &found[0]["change"]), (&Value::from("/f"), &Value::from("changed")), "{found}");
    assert_eq!(b.of("snapshot list", "box", &["--json"]).expect(0).json().as_array().unwrap().len(), 2);
    b.of("clone create", "box", &["before", "branch"]).expect(0);
    b.of("clone list", "box", &[]).expect(0);
    b.of("volume info", "box", &[]).expect(0);
    b.of("volume gc", "box", &[]).expect(0);
    b.of("volume resize", "box", &["2G"]).expect(0);
    for line in [vec!["snapshot restore", "before", "-y"], vec!["volume check"], vec!["volume check", "--repair", "-y"]]
    {
        b.of(line[0], "box", &line[1..]).expect(7).says("was detached and is still ending").says("kill ");
    }
    b.of("snapshot delete", "box", &["before", "-y"]).expect(0);
    b.of("clone delete", "box", &["branch", "-y"]).expect(0);
    // Another mount has come to its place: its end is not that one's.
    let other = b.bench.str("other");
    b.bench.run(["volume", "init", &other, "--capacity", "1G"]).expect(0);
    b.bench.run(["mount", &other, &b.bench.str("mnt")]).expect(0);
    fs::write(b.at("mnt/g"), "other").unwrap();
    let of_box = |mount: &&Value| mount["state"] == "detached";
    let pid = b.bench.mounts().iter().find(of_box).expect("it lives")["pid"].as_i64().unwrap() as i32;
    // SAFETY: a plain system call; the process is one that this test started.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
    drop(open);
    eventually("it has ended", || !is_running(pid));
    assert_eq!(read(&b.at("mnt/g")), "other");
    b.umount("mnt");
    b.mount("mnt", &["--snapshot", "after"]).expect(0);
    assert_eq!(read(&b.at("mnt/f")), "two");
    b.umount("mnt");
    b.expect_sound();
}

/// A check reads a volume beside an overlay that reads a snapshot of it, unless a process has it open to be changed.
#[test]
fn a_check_beside_an_overlay_on_a_snapshot_looks_at_everything() {
    let Some(b) = Boxed::new() else { return };
    fs::write(b.at("big"), pattern(1 << 20)).unwrap();
    b.bench.run(["put", "box", "big", "/big"]).expect(0);
    b.of("snapshot create", "box", &["s"]).expect(0);
    let overlay = ["--snapshot", "s", "--upper", "upper"];
    b.mount("mnt", &overlay).expect(0);
    let told = b.of("volume check", "box", &[]).expect(0).text();
    assert!(told.contains("2 inodes (1.0 MiB of content read): no problems"), "{told}");
    b.umount("mnt");
    // The process that has it goes on for the overlay alone. Nobody is told of the place through which that reads.
    b.mount("mnt2", &[]).expect(0);
    b.mount("mnt", &overlay).expect(0);
    b.umount("mnt2");
    let told = b.of("volume check", "box", &[]).expect(7).says("an overlay reads a snapshot of it").stderr;
    assert!(told.contains(b.at("mnt").to_str().unwrap()) && !told.contains("private"), "{told}");
    b.umount("mnt");
    let mut bytes = fs::read(b.at("box")).unwrap();
    let sought = &pattern(1 << 20)[40_960..41_024];
    let at = bytes.windows(sought.len()).position(|window| window == sought).expect("content is not transformed");
    bytes[at] ^= 1;
    fs::write(b.at("box"), bytes).unwrap();
    b.mount("mnt", &overlay).expect(0);
    assert!(b.of("volume check", "box", &[]).expect(5).text().contains("/big"));
    b.umount("mnt");
}

#[test]
fn a_close_after_the_kill_fails() {
    for options in [&[][..], &["--durability", "sync"]] {
        let Some(b) = Boxed::new() else { return };
        b.mount("mnt", options).expect(0);
        // So that the kernel knows already which requests this server does without.
        fs::write(b.at("mnt/before"), b"1").unwrap();
        let pid = b.pid();
        let clean = File::open(b.at("mnt/before")).unwrap();
        let written = |name: &str| {
            let mut file = File::create(b.at("mnt").join(name)).unwrap();
            file.write_all(&pattern(5000)).unwrap();
            file
        };
        let (dirty, dropped) = (written("dirty"), written("dropped"));
        // SAFETY: a plain system call; the process is one that this test started.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        eventually("the server is gone", || !is_running(pid));
        // What the kernel is to hand over while nobody is there is dropped without a word, and the file is no longer dirty.
        // SAFETY: a plain system call on an open descriptor; that it fails is nothing new.
        let _ = unsafe { libc::sync_file_range(dropped.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
        let closed = |file: File| {
            // SAFETY: a plain system call with a descriptor that nobody else has.
            unsafe { libc::close(file.into_raw_fd()) }
        };
        assert_eq!((closed(dirty), closed(dropped)), (-1, -1), "{options:?}");
        // With `sync`, the kernel does not ask for handles that only read.
        assert!(closed(clean) == -1 || !options.is_empty());
        b.umount("mnt");
    }
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

/// Small files, which are kept with the metadata.
#[test]
fn a_volume_full_of_small_files_has_room_once_these_are_removed() {
    let Some(b) = Boxed::with("8M") else { return };
    b.mount("mnt", &[]).expect(0);
    let available = || {
        let space = rustix::fs::statvfs(b.at("mnt")).unwrap();
        space.f_bavail * space.f_frsize
    };
    let empty = available();
    fs::create_dir(b.at("mnt/dir")).unwrap();
    let full = (0..20_000).find_map(|n| match File::create(b.at(&format!("mnt/dir/{n}"))) {
        // What the kernel finds no room for later makes no difference.
        Ok(mut file) => file.write_all(&pattern(1500)).err().filter(|_| false),
        Err(e) => Some(e),
    });
    assert_eq!(full.expect("it gets full").raw_os_error(), Some(libc::ENOSPC));
    fs::remove_dir_all(b.at("mnt/dir")).unwrap();
    // Nobody asks for room.
    eventually("room comes back", || available() >= empty / 2);
    let mut file = File::create(b.at("mnt/large")).unwrap();
    file.write_all(&pattern(3 << 20)).and_then(|()| file.sync_all()).unwrap();
    drop(file);
    b.umount("mnt");
    b.expect_sound();
}

/// The disk that the volume lies on is full, long before the volume is.
#[test]
fn a_full_disk_below_is_told_and_the_volume_can_be_emptied() {
    let Some(b) = Boxed::new() else { return };
    if !is_root("a small disk") {
        return;
    }
    let disk = SmallDisk::mount(b.at("disk"), "24m");
    let on_disk = disk.0.join("volume").to_str().unwrap().to_owned();
    b.bench.run(["volume", "init", &on_disk, "--capacity", "1G"]).expect(0);
    let mount = || b.bench.run(["mount", &on_disk, &b.bench.str("mnt")]).expect(0);
    let fill = |name: &str| {
        let written = |n: u32| {
            let mut file = File::create(b.at(&format!("mnt/{name}{n}")))?;
            file.write_all(&pattern(300 << 10)).and_then(|()| file.sync_all())
        };
        let e = (0..200).find_map(|n| written(n).err()).expect("it gets full");
        assert_eq!(e.raw_os_error(), Some(libc::ENOSPC));
        let names = (0..20_000).find_map(|n| File::create(b.at(&format!("mnt/{name}-name-{n}"))).err());
        assert!(names.is_none_or(|e| e.raw_os_error() == Some(libc::ENOSPC)));
    };
    let remove = |numbers: Range<u32>| {
        numbers.for_each(|n| fs::remove_file(b.at(&format!("mnt/a{n}"))).unwrap());
    };
    mount();
    fs::write(b.at("mnt/kept"), pattern(1 << 20)).unwrap();
    fill("a");
    remove(0..8);
    fs::write(b.at("mnt/again"), pattern(500 << 10)).unwrap();
    File::open(b.at("mnt/again")).unwrap().sync_all().unwrap();
    fill("b");
    b.umount("mnt");
    let filler = File::create(disk.0.join("filler")).unwrap();
    while (&filler).write_all(&[1; 4096]).is_ok() {}
    mount();
    assert!(fs::read(b.at("mnt/kept")).unwrap() == pattern(1 << 20));
    remove(8..16);
    fs::write(b.at("mnt/later"), pattern(500 << 10)).unwrap();
    File::open(b.at("mnt/later")).unwrap().sync_all().unwrap();
    b.umount("mnt");
    b.bench.run(["volume", "check", &on_disk]).expect(0);
    b.bench.run(["rm", "--yes", &on_disk, "/again"]).expect(0);
    b.bench.run(["volume", "check", &on_disk]).expect(0);
}

/// What the kernel could not hand over is gone for readers as well, and not only after the next mount.
fn expect_only_what_is_stored(b: &Boxed, volume: &str) {
    const WRITTEN_BYTES: usize = 48 << 20;
    let mount = || b.bench.run(["mount", volume, &b.bench.str("mnt")]).expect(0);
    mount();
    let paths = ["mnt/old", "mnt/new"].map(|path| b.at(path));
    fs::write(&paths[0], pattern(8 << 20)).unwrap();
    File::open(&paths[0]).unwrap().sync_all().unwrap();
    for path in &paths {
        let mut file = File::options().write(true).create(true).truncate(false).open(path).unwrap();
        file.write_all(&vec![b'n'; WRITTEN_BYTES]).unwrap();
        let reader = File::open(path).unwrap();
        let descriptor = file.into_raw_fd();
        // SAFETY: a plain system call with a descriptor that nobody else has.
        assert_eq!(unsafe { libc::close(descriptor) }, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOSPC));
        // Whoever had it open, too. Behind what is stored there are zeros for him: its length is the kernel's.
        let stored = |at: usize| {
            let mut bytes = vec![0; 1 << 20];
            let len = reader.read_at(&mut bytes, at as u64).unwrap();
            bytes[..len].iter().all(|byte| *byte == b'n')
        };
        eventually("what is not stored is not shown", || !(0..WRITTEN_BYTES).step_by(1 << 20).all(stored));
    }
    // The kernel hears of it after the close.
    let len = |path: &std::path::PathBuf| fs::metadata(path).unwrap().len();
    eventually("the lengths are those that are stored", || paths.iter().all(|path| len(path) < WRITTEN_BYTES as u64));
    let shown = || paths.each_ref().map(|path| fs::read(path).unwrap());
    let before = shown();
    assert!(before.iter().all(|content| content.len() < WRITTEN_BYTES));
    b.umount("mnt");
    mount();
    assert!(before == shown());
    b.umount("mnt");
    b.bench.run(["volume", "check", volume]).expect(0);
}

#[test]
fn what_could_not_be_stored_is_not_shown() {
    let Some(b) = Boxed::with("32M") else { return };
    expect_only_what_is_stored(&b, &b.bench.str("box"));
}

#[test]
fn what_found_no_room_on_the_host_is_not_shown() {
    let Some(b) = Boxed::new() else { return };
    if !is_root("a small disk") {
        return;
    }
    let disk = SmallDisk::mount(b.at("disk"), "32m");
    let volume = disk.0.join("volume").to_str().unwrap().to_owned();
    b.bench.run(["volume", "init", &volume, "--capacity", "1G"]).expect(0);
    expect_only_what_is_stored(&b, &volume);
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
    let refused = b.of("volume resize", "mnt", &["64M"]).expect(8).says("volume gc").stderr;
    assert_eq!(refused.lines().count(), 2, "one hint: {refused}");
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
