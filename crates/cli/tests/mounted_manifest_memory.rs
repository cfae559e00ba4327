//! A mount of a manifest stays within `--memory`, whatever comes over the network, and however many wait for it.

mod common;
#[path = "common/mounts.rs"]
mod mounts;
#[path = "common/s3.rs"]
mod s3;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use adit_testkit::Rng;
use adit_testkit::objects::HttpFault;
use common::pattern;
use mounts::{Points, status};
use s3::{Bucket, STORE};

const MIB: u64 = 1 << 20;

/// A mount of the manifest `job` of a bucket with so much memory.
fn mount(b: &Bucket, memory: u64, more: &[&str]) {
    let memory = format!("{memory}M");
    let line = ["mount", "job", "mnt", "--cas", STORE, "--cache-dir", "cache", "--memory", &memory];
    b.run(&[&line[..], more].concat()).expect(0);
}

/// Checks what the process of the mount took at most, beside the program itself.
fn expect_within(points: &Points, memory: u64, when: &str) {
    let pid = points.pid();
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
        expect_within(&b.points, memory, &format!("{more:?}"));
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
    // Of one block each with 2M: they are fetched as a whole.
    for (memory, more) in [(96, &[][..]), (128, &["--writable"]), (256, &["--cache-block", "2M"])] {
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
        expect_within(&b.points, memory, &format!("{more:?}"));
        b.run(&["umount", "mnt"]).expect(0);
    }
}

/// What is known of an object in the cache is a few bits for each of its blocks, and what was read of it lies on the disk.
#[test]
fn a_file_of_many_gigabytes_takes_no_more_than_a_short_one() {
    const LEN: u64 = 20 << 30;
    const MEMORY: u64 = 64;
    let Some(points) = Points::new(&["mnt"]) else { return };
    // Nobody comes to its end, so nobody compares it with a hash that is made up.
    let hash = format!("{:032x}", 20);
    fs::create_dir_all(points.bench.path("store/Data")).unwrap();
    let object = File::create(points.bench.path("store/Data").join(format!("{hash}.xxh128"))).unwrap();
    object.set_len(LEN).unwrap();
    let marks = [0, LEN / 2];
    marks.iter().for_each(|at| object.write_all_at(&at.to_le_bytes(), *at).unwrap());
    let entry = format!(r#"{{"hash":"{hash}","mtime":1700000000000000,"path":"large","size":{LEN}}}"#);
    let manifest =
        format!(r#"{{"hashAlg":"xxh128","manifestVersion":"2023-03-03","paths":[{entry}],"totalSize":{LEN}}}"#);
    fs::write(points.bench.path("job"), manifest).unwrap();
    let memory = format!("{MEMORY}M");
    let line = ["mount", "job", "mnt", "--cas", "store", "--cache-dir", "cache", "--cache-size", "128M"];
    points.bench.run([&line[..], &["--memory", &memory]].concat()).expect(0);
    let file = File::open(points.bench.path("mnt/large")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), LEN);
    let (mut rng, mut page) = (Rng::new(20), [1; 4096]);
    for _ in 0..adit_testkit::scaled(400) {
        // Not the last one, for who reads that has all of it compared.
        file.read_exact_at(&mut page, rng.below(LEN / 4096 - 1) * 4096 + 8).unwrap();
    }
    for at in marks {
        file.read_exact_at(&mut page, at).unwrap();
        assert!(page[..8] == at.to_le_bytes() && page[8..].iter().all(|byte| *byte == 0), "at {at}");
    }
    let mut part = vec![1; 1 << 20];
    for n in 1..=300 {
        file.read_exact_at(&mut part, LEN / 4 + (n << 20)).unwrap();
        assert!(part.iter().all(|byte| *byte == 0));
    }
    drop(file);
    expect_within(&points, MEMORY, "20 GiB");
    points.bench.run(["umount", "mnt"]).expect(0);
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
    expect_within(&b.points, memory, "a commit");
    b.run(&["umount", "mnt"]).expect(0);
}
