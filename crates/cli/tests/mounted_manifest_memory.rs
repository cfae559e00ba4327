//! A mount of a manifest stays within `--memory`, whatever comes over the network, and however many wait for it.

mod common;
#[path = "common/mounts.rs"]
mod mounts;
#[path = "common/s3.rs"]
mod s3;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use adit_testkit::objects::HttpFault;
use common::pattern;
use mounts::status;
use s3::{Bucket, STORE};

const MIB: u64 = 1 << 20;

/// A mount of the manifest `job` of a bucket with so much memory.
fn mount(b: &Bucket, memory: u64, more: &[&str]) {
    let memory = format!("{memory}M");
    let line = ["mount", "job", "mnt", "--cas", STORE, "--cache-dir", "cache", "--memory", &memory];
    b.run(&[&line[..], more].concat()).expect(0);
}

/// Checks what the process of the mount took at most, beside the program itself.
fn expect_within(b: &Bucket, memory: u64, when: &str) {
    let pid = b.points.pid();
    let peak = status(pid, "VmHWM") - status(pid, "RssFile");
    println!("{when}: {} MiB of {memory}", peak / MIB);
    assert!(peak <= memory * MIB, "{when}: {peak} bytes of {memory} MiB");
}

#[test]
fn a_large_file_that_comes_over_the_network_takes_little() {
    let Some(b) = Bucket::new(&["mnt"]) else { return };
    let len = 160 << 20;
    b.write("large", &pattern(len));
    b.snapshot("job", "v2023");
    for (memory, more) in [(96, &[][..]), (64, &["--strict"]), (96, &["--writable"]), (64, &["--cache-size", "32M"])] {
        let _ = fs::remove_dir_all(b.path("cache/objects"));
        mount(&b, memory, more);
        let mut file = File::options().read(true).write(more == ["--writable"]).open(b.path("mnt/large")).unwrap();
        let (mut read, mut part) = (0, vec![0; 1 << 20]);
        while read < len {
            let count = file.read(&mut part).unwrap();
            assert!(count > 0);
            read += count;
        }
        drop(file);
        expect_within(&b, memory, &format!("{more:?}"));
        b.run(&["umount", "mnt"]).expect(0);
    }
}

/// Each waits with a buffer of its own, and then all of them are answered at once.
#[test]
fn many_who_wait_for_the_network_take_no_more_than_they_may() {
    let Some(b) = Bucket::new(&["mnt"]) else { return };
    let content = pattern(2 << 20);
    let files = 64;
    for n in 0..files {
        let mut one = content.clone();
        one[0] = n as u8;
        b.write(&format!("f{n}"), &one);
    }
    b.snapshot("job", "v2025");
    for (memory, more) in [(96, &[][..]), (128, &["--writable"])] {
        let _ = fs::remove_dir_all(b.path("cache/objects"));
        mount(&b, memory, more);
        b.server.add(HttpFault::Hold, "GET", "Data", 0, u64::MAX);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..files)
                .map(|n| {
                    let path = b.path(&format!("mnt/f{n}"));
                    let content = &content;
                    scope.spawn(move || {
                        // Past the kernel's pages, so that one request asks for all of it.
                        let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
                        let mut all = vec![0; content.len()];
                        file.read_exact_at(&mut all, 0).unwrap();
                        assert!(all[0] == n as u8 && all[1..] == content[1..]);
                    })
                })
                .collect();
            b.server.wait_for_requests(4);
            b.server.clear();
            b.server.release();
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
        expect_within(&b, memory, &format!("{more:?}"));
        b.run(&["umount", "mnt"]).expect(0);
    }
}

/// The list of what was changed has a line for each file, and nobody has all of them at once.
#[test]
fn a_commit_of_many_changes_takes_little_of_the_mount() {
    let Some(b) = Bucket::new(&["mnt"]) else { return };
    b.write("a", b"one");
    b.snapshot("job", "v2025");
    let memory = 96;
    mount(&b, memory, &["--writable"]);
    let name = "n".repeat(200);
    for dir in 0..20 {
        fs::create_dir(b.path(&format!("mnt/{dir}"))).unwrap();
        for n in 0..adit_testkit::scaled(500) {
            File::create(b.path(&format!("mnt/{dir}/{name}{n}"))).unwrap().write_all(b"x").unwrap();
        }
    }
    b.run(&["manifest", "commit", "mnt", "--dry-run"]).expect(0);
    expect_within(&b, memory, "a commit");
    b.run(&["umount", "mnt"]).expect(0);
}
