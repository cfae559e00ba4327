//! Snapshots of mounted volumes: what they hold, and the folder that they show in.

mod common;
#[path = "common/mounts.rs"]
mod mounts;
#[path = "common/volumes.rs"]
mod volumes;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};

use adit_core::store::{NewNode, Store};
use adit_core::types::{Access, FileName, Ino};
use adit_volume::volume::OpenOptions;
use common::{facts, make_tree, pattern};
use volumes::{Boxed, POINTS, errno, read, shell};

#[test]
fn a_snapshot_holds_every_write_that_returned() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    // Neither synced nor closed: most of it is in the kernel only.
    let content = pattern(24 << 20);
    let mut open = Vec::new();
    for n in 0..4 {
        let mut file = File::create(b.at(&format!("mnt/{n}"))).unwrap();
        file.write_all(&content).unwrap();
        open.push(file);
    }
    let made = b.of("snapshot create", "mnt", &["s", "--json"]).expect(0).json();
    assert!(made["flush_secs"].as_f64().unwrap() > 0.0);
    for file in &open {
        file.write_all_at(b"later", 1 << 20).unwrap();
        file.set_len(2 << 20).unwrap();
    }
    b.mount("mnt2", &["--snapshot", "s"]).expect(0);
    for n in 0..4 {
        assert!(fs::read(b.at(&format!("mnt2/{n}"))).unwrap() == content, "{n}");
    }
    drop(open);
    let found = b.of("snapshot diff", "mnt", &["s", "--json"]).expect(0).json();
    assert_eq!(found.as_array().unwrap().len(), 4);
    // What was open goes on as if nothing had happened.
    let changed = fs::read(b.at("mnt/0")).unwrap();
    assert!(changed.len() == 2 << 20 && changed[1 << 20..].starts_with(b"later"));
    b.umount("mnt");
    b.umount("mnt2");
    b.expect_sound();
}

#[test]
fn snapshots_show_in_a_hidden_folder() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    make_tree(&b.at("mnt/tree"));
    fs::write(b.at("mnt/f"), "one").unwrap();
    let hidden = b.at("mnt/.snapshots");
    // What the kernel is told before there is any must not stay.
    assert!(!hidden.join("s").exists());
    assert_eq!(shell("ls -a .snapshots", &b.at("mnt")), ".\n..\n");
    b.of("snapshot create", "mnt", &["s"]).expect(0);
    fs::write(b.at("mnt/f"), "two").unwrap();
    assert_eq!(shell("ls -A; ls -A .snapshots; cat .snapshots/s/f", &b.at("mnt")), "f\ntree\ns\none");

    // As the tree was, to every program: a copy, a comparison, no number and no device shared.
    shell(
        "D='diff -r --no-dereference'; $D tree .snapshots/s/tree; cp -a .snapshots/s/tree ../copy; $D tree ../copy",
        &b.at("mnt"),
    );
    assert_eq!(facts(&b.at("mnt/tree")), facts(&hidden.join("s/tree")));
    let numbers = shell("find . .snapshots/s -printf '%D %i\\n' | sort", &b.at("mnt"));
    let numbers: Vec<&str> = numbers.lines().collect();
    let devices: std::collections::BTreeSet<_> = numbers.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(devices.len(), 1);
    assert!(numbers.windows(2).all(|pair| pair[0] != pair[1]), "{numbers:?}");
    let ino = fs::metadata(hidden.join("s/f")).unwrap().ino();
    let found = shell(&format!("find . .snapshots -inum {ino}"), &b.at("mnt"));
    assert_eq!(found, ".snapshots/s/f\n");

    // Nothing of it changes.
    assert_eq!(errno(fs::write(hidden.join("s/f"), "no")), Some(libc::EROFS));
    assert_eq!(errno(fs::write(hidden.join("x"), "no")), Some(libc::EROFS));
    assert_eq!(errno(fs::remove_file(hidden.join("s/f"))), Some(libc::EROFS));
    assert_eq!(errno(fs::create_dir(&hidden)), Some(libc::EEXIST));
    assert_eq!(errno(fs::remove_dir(&hidden)), Some(libc::EPERM));
    assert_eq!(errno(fs::rename(hidden.join("s/f"), b.at("mnt/g"))), Some(libc::EXDEV));
    assert_eq!(errno(fs::hard_link(hidden.join("s/f"), b.at("mnt/g"))), Some(libc::EXDEV));

    // They outlive a mount, and show in every branch; a mount of one shows none.
    b.of("clone create", "mnt", &["s", "branch"]).expect(0);
    b.umount("mnt");
    b.mount("mnt", &[]).expect(0);
    b.mount("mnt2", &["--branch", "branch"]).expect(0);
    b.mount("mnt3", &["--snapshot", "s"]).expect(0);
    assert_eq!((read(&hidden.join("s/f")), read(&b.at("mnt2/.snapshots/s/f"))), ("one".to_owned(), "one".to_owned()));
    assert!(!b.at("mnt3/.snapshots").exists());
    POINTS.iter().for_each(|point| b.umount(point));
    b.expect_sound();
}

/// Mounted or not: what has that name goes first, and when it is gone the snapshots show.
#[test]
fn an_own_entry_with_the_name_of_the_hidden_folder_goes_first() {
    let Some(b) = Boxed::new() else { return };
    // A restore brings back what nobody could make.
    b.mount("mnt", &[]).expect(0);
    let hidden = b.at("mnt/.snapshots");
    b.umount("mnt");
    {
        let volume = adit_volume::Volume::open(&b.at("box"), &OpenOptions::new(Access::Write)).unwrap();
        let store = volume.live().unwrap();
        let new = NewNode { perm: 0o755, umask: 0, caller: adit_core::path::this_process() };
        store.mkdir(Ino::ROOT, FileName::new(b".snapshots").unwrap(), &new).unwrap();
        drop(store);
        volume.close().unwrap();
    }
    b.of("snapshot create", "box", &["own"]).expect(0);
    assert_eq!(b.of("ls", "box", &["/.snapshots"]).expect(0).text(), "");
    assert_eq!(b.of("ls", "box", &[]).expect(0).text(), ".snapshots\n");
    b.mount("mnt", &[]).expect(0);
    let listed = || shell("ls -A .snapshots", &b.at("mnt"));
    assert_eq!(listed(), "");
    fs::write(hidden.join("f"), "mine").unwrap();
    fs::remove_file(hidden.join("f")).unwrap();
    fs::remove_dir(&hidden).unwrap();
    assert_eq!(listed(), "own\n");
    b.of("snapshot restore", "mnt", &["own", "-y"]).expect(0);
    assert_eq!(listed(), "");
    fs::rename(&hidden, b.at("mnt/moved")).unwrap();
    assert_eq!(listed(), "own\n");
    assert_eq!(errno(fs::create_dir(&hidden)), Some(libc::EEXIST));
    b.umount("mnt");
    assert_eq!(b.of("ls", "box", &["/.snapshots"]).expect(0).text(), "own\n");
    b.expect_sound();
}

#[test]
fn snapshots_come_and_go_in_the_hidden_folder() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    let hidden = b.at("mnt/.snapshots");
    let mut file = File::create(b.at("mnt/f")).unwrap();
    for n in 0..5 {
        // Not synced, and not closed: only the kernel has it.
        file.write_all(format!("{n}\n").as_bytes()).unwrap();
        let name = format!("s{n}");
        assert!(!hidden.join(&name).exists());
        b.of("snapshot create", "mnt", &[&name]).expect(0);
        assert_eq!(read(&hidden.join(&name).join("f")).lines().count(), n + 1);
        assert_eq!(shell("ls .snapshots | wc -l", &b.at("mnt")).trim(), (n + 1).to_string());
    }
    // One that is looked at goes; one of which a file is open stays.
    let open = File::open(hidden.join("s1/f")).unwrap();
    b.of("snapshot delete", "mnt", &["s1", "-y"]).expect(7).says(".snapshots/s1");
    let folder = File::open(hidden.join("s0")).unwrap();
    b.of("snapshot delete", "mnt", &["s0", "-y"]).expect(0);
    assert!(!hidden.join("s0").exists());
    let in_it = rustix::fs::openat(&folder, "f", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
    assert_eq!(in_it.err(), Some(rustix::io::Errno::STALE));
    drop(open);
    b.of("snapshot delete", "mnt", &["s1", "-y"]).expect(0);
    assert_eq!(shell("ls .snapshots", &b.at("mnt")), "s2\ns3\ns4\n");
    // The name of one that is gone is free.
    b.of("snapshot create", "mnt", &["s0"]).expect(0);
    assert_eq!(read(&hidden.join("s0/f")).lines().count(), 5);
    drop((file, folder));
    b.umount("mnt");
    b.expect_sound();
}
