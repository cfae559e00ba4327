//! What an earlier implementation of such mounts got wrong, each as a test through a mount: its fault is named first.
//!
//! Faults that other tests show the absence of: the cache directory was ignored at the next mount
//! (`mounted_manifest::a_manifest_is_mounted_and_its_content_is_fetched_when_it_is_read` and
//! `what_is_changed_on_a_writable_one_is_found_again`); no hash was ever verified (`mounted_manifest::a_damaged_or_missing_object_…`,
//! and with every fault of a network in `mounted_manifest_faults`).

mod common;
#[path = "common/manifests.rs"]
mod manifests;
#[path = "common/mounts.rs"]
mod mounts;
#[path = "common/s3.rs"]
mod s3;

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use common::{Ran, pattern};
use manifests::Job;
use s3::{Bucket, STORE};

/// The chunk of the beta of 2025.
const CHUNK_LEN: u64 = 256 << 20;
/// The xxh128 of a chunk of zeros.
const ZEROS_HASH: &str = "e7e6e2cfd0fb193c998e510addb2da2d";
/// Longer than some blocks of the cache.
const LARGE_LEN: usize = (5 << 20) + 3;
const BLOCK_LEN: u64 = 1 << 20;

/// A job with files of these contents. `None` where mounts are impossible; under CI that is a failure.
fn with(files: &[(&str, &[u8])]) -> Option<Job> {
    let job = Job::new(&["mnt"])?;
    files.iter().for_each(|(name, content)| job.write(name, content));
    job.snapshot("job", "v2025");
    Some(job)
}

fn mount(job: &Job, more: &[&str]) -> Ran {
    job.mount(&[&["--writable"], more].concat())
}

fn remount(job: &Job) {
    job.umount();
    mount(job, &[]).expect(0);
}

fn writable(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

fn read_at(file: &File, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    let read = file.read_at(&mut bytes, offset).unwrap();
    bytes.truncate(read);
    bytes
}

/// Reads past 256 MiB of a chunked file returned 0 bytes; one byte written into its second chunk materialised a truncated file.
#[test]
fn a_chunked_file_is_read_and_written_past_its_first_chunk() {
    let Some(w) = Job::new(&["mnt"]) else { return };
    let rest = pattern(3 << 20);
    let hash = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&rest));
    let data = w.path("store/Data");
    fs::create_dir(&data).unwrap();
    File::create(data.join(format!("{ZEROS_HASH}.xxh128"))).unwrap().set_len(CHUNK_LEN).unwrap();
    fs::write(data.join(format!("{hash}.xxh128")), &rest).unwrap();
    let len = CHUNK_LEN + rest.len() as u64;
    let manifest = serde_json::json!({
        "dirs": [], "files": [{"chunkhashes": [ZEROS_HASH, hash], "mtime": 1_700_000_000_000_000_u64, "path": "f", "size": len}],
        "hashAlg": "xxh128", "specificationVersion": "relative-manifest-snapshot-beta-2025-12", "totalSize": len,
    });
    fs::write(w.path("job"), manifest.to_string()).unwrap();
    mount(&w, &[]).expect(0);
    let file = writable(&w.at("f"));
    let crossing = |file: &File| read_at(file, CHUNK_LEN - 10, 30);
    let mut expected = [&[0; 10], &rest[..20]].concat();
    assert_eq!(crossing(&file), expected);
    let mut end = vec![0; 100];
    file.read_exact_at(&mut end, len - 100).unwrap();
    assert_eq!(end, rest[rest.len() - 100..]);

    file.write_all_at(b"!", CHUNK_LEN + 5).unwrap();
    expected[15] = b'!';
    let mut changed = rest.clone();
    changed[5] = b'!';
    let check = |file: &File| {
        assert_eq!(file.metadata().unwrap().len(), len);
        assert_eq!(crossing(file), expected);
        assert!(read_at(file, CHUNK_LEN, rest.len()) == changed);
        assert_eq!(read_at(file, 1000, 5), [0; 5]);
    };
    check(&file);
    drop(file);
    w.umount();
    // What was not changed is not in the volume.
    let upper = fs::read_dir(w.path("cache/overlays")).unwrap().next().unwrap().unwrap();
    assert!(upper.metadata().unwrap().blocks() * 512 < 8 << 20, "{}", upper.metadata().unwrap().blocks());
    mount(&w, &[]).expect(0);
    check(&writable(&w.at("f")));
    w.umount();
}

/// `rmdir` of a directory with new files destroyed them, even when it failed; a deleted manifest file could not be created again.
#[test]
fn a_directory_is_removed_only_when_it_is_empty_and_names_can_come_back() {
    let Some(w) = with(&[("d/a", b"one"), ("d/b", b"two")]) else { return };
    mount(&w, &[]).expect(0);
    let refused = || assert_eq!(fs::remove_dir(w.at("d")).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    fs::write(w.at("d/new"), "new").unwrap();
    refused();
    assert_eq!(fs::read(w.at("d/new")).unwrap(), b"new");
    assert_eq!(fs::read(w.at("d/a")).unwrap(), b"one");
    fs::remove_file(w.at("d/a")).unwrap();
    fs::remove_file(w.at("d/b")).unwrap();
    // Nothing but the new file is left.
    refused();
    assert_eq!(fs::read(w.at("d/new")).unwrap(), b"new");
    assert_eq!(fs::read(w.at("d/a")).unwrap_err().kind(), ErrorKind::NotFound);

    let mut again = File::options().write(true).create_new(true).open(w.at("d/a")).unwrap();
    again.write_all(b"another").unwrap();
    drop(again);
    remount(&w);
    assert_eq!(fs::read(w.at("d/a")).unwrap(), b"another");
    assert!(!w.at("d/b").exists());
    fs::remove_file(w.at("d/a")).unwrap();
    fs::remove_file(w.at("d/new")).unwrap();
    fs::remove_dir(w.at("d")).unwrap();
    // A directory of the same name shows nothing of what was there.
    fs::create_dir(w.at("d")).unwrap();
    remount(&w);
    assert!(fs::read_dir(w.at("d")).unwrap().next().is_none());
    w.umount();
}

/// `mv` gave ENOSYS; `chmod +x` returned 0 and did nothing.
#[test]
fn files_and_directories_are_renamed_and_made_executable() {
    let large = pattern(LARGE_LEN);
    let Some(w) = with(&[("d/large", &large), ("d/sub/small", b"small"), ("tool", b"#!/bin/sh\necho ran\n")]) else {
        return;
    };
    mount(&w, &[]).expect(0);
    fs::rename(w.at("d/sub"), w.at("moved")).unwrap();
    fs::rename(w.at("d/large"), w.at("moved/larger")).unwrap();
    fs::rename(w.at("tool"), w.at("d/small")).unwrap();
    fs::set_permissions(w.at("d/small"), PermissionsExt::from_mode(0o755)).unwrap();
    let check = || {
        assert!(!w.at("d/sub").exists() && !w.at("d/large").exists() && !w.at("tool").exists());
        assert_eq!(fs::read(w.at("moved/small")).unwrap(), b"small");
        assert!(fs::read(w.at("moved/larger")).unwrap() == large);
        assert_eq!(w.at("d/small").metadata().unwrap().mode() & 0o777, 0o755);
    };
    check();
    let ran = common::run(w.bench.command_of(w.at("d/small").to_str().unwrap()), b"").expect(0);
    assert_eq!(ran.text(), "ran\n");
    remount(&w);
    check();
    w.umount();
}

/// A file that was made shorter and longer again showed its old bytes; dirty blocks that were evicted came back as the original.
#[test]
fn what_was_cut_off_or_overwritten_does_not_come_back() {
    const LEN: usize = 40 << 20;
    let content = pattern(LEN);
    let Some(w) = with(&[("cut", &content[..LARGE_LEN]), ("large", &content)]) else { return };
    // Far less than is changed, in memory and on the disk.
    mount(&w, &["--memory", "24M", "--cache-size", "4M"]).expect(0);
    let cut = writable(&w.at("cut"));
    assert_eq!(read_at(&cut, 4 << 20, 10), content[4 << 20..][..10]);
    cut.set_len(10).unwrap();
    cut.set_len(LARGE_LEN as u64).unwrap();
    let mut shown = vec![0; LARGE_LEN];
    shown[..10].copy_from_slice(&content[..10]);
    assert!(read_at(&cut, 0, LARGE_LEN) == shown);

    let large = writable(&w.at("large"));
    let mut expected = content.clone();
    for at in (0..LEN).step_by(8192) {
        large.write_all_at(&[0x5a; 4096], at as u64).unwrap();
        expected[at..][..4096].fill(0x5a);
    }
    large.sync_all().unwrap();
    let drop_pages = |file: &File| rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    for file in [&cut, &large] {
        drop_pages(file);
    }
    assert!(read_at(&cut, 0, LARGE_LEN) == shown);
    let read_all = |mut file: &File| {
        let mut found = Vec::with_capacity(LEN);
        file.read_to_end(&mut found).unwrap();
        found
    };
    assert!(read_all(&large) == expected);
    drop((cut, large));
    w.kill();
    mount(&w, &[]).expect(0);
    assert!(fs::read(w.at("cut")).unwrap() == shown);
    assert!(fs::read(w.at("large")).unwrap() == expected);
    w.umount();
}

/// Writable mode fetched a whole object for each request of 128 KiB: a file of 100 MB took 210 GETs and 21 GB.
#[test]
fn a_writable_mount_fetches_each_byte_once() {
    const LEN: u64 = 24 << 20;
    let Some(b) = Bucket::new(&["mnt"]) else { return };
    let content = pattern(LEN as usize);
    b.write("large", &content);
    b.snapshot("job", "v2025");
    b.run(&["mount", "job", "mnt", "--cas", STORE, "--cache-dir", "cache", "--writable"]).expect(0);
    b.server.clear_log();
    let file = writable(&b.path("mnt/large"));
    // A change of whole blocks costs nothing, one in the middle of a block that block of the cache.
    file.write_all_at(&[b'?'; 4096], 4096).unwrap();
    file.sync_all().unwrap();
    assert_eq!(b.server.bytes_sent(), 0);
    file.write_all_at(b"!", LEN / 2).unwrap();
    file.sync_all().unwrap();
    assert_eq!(b.server.bytes_sent(), BLOCK_LEN);
    let mut expected = content;
    expected[4096..8192].fill(b'?');
    expected[LEN as usize / 2] = b'!';
    let mut found = Vec::new();
    let mut part = vec![0; 128 << 10];
    loop {
        match file.read_at(&mut part, found.len() as u64).unwrap() {
            0 => break,
            read => found.extend_from_slice(&part[..read]),
        }
    }
    assert!(found == expected);
    drop(file);
    let (bytes, requests) = (b.server.bytes_sent(), b.server.log().len() as u64);
    assert!(bytes <= LEN + BLOCK_LEN, "{bytes} bytes were fetched of {LEN}");
    assert!(requests <= LEN / BLOCK_LEN + 2, "{requests} requests");
    b.run(&["umount", "mnt"]).expect(0);
}

/// The address space grew to 80 GB over 310 tiny files that were written.
#[test]
fn many_small_files_take_no_address_space() {
    const FILES: usize = 310;
    /// Threads have stacks, and allocators reserve for each: some gigabytes, with nothing in them.
    const MOST_BYTES: u64 = 8 << 30;
    let contents: Vec<Vec<u8>> = (0..FILES).map(|n| vec![n as u8; 1 + n % 7]).collect();
    let names: Vec<String> = (0..FILES).map(|n| format!("f{n}")).collect();
    let files: Vec<(&str, &[u8])> = names.iter().map(String::as_str).zip(contents.iter().map(Vec::as_slice)).collect();
    let Some(w) = with(&files) else { return };
    mount(&w, &[]).expect(0);
    for (n, name) in names.iter().enumerate() {
        assert_eq!(fs::read(w.at(name)).unwrap(), contents[n]);
        let file = writable(&w.at(name));
        file.write_all_at(b"changed", 3).unwrap();
        assert_eq!(read_at(&file, 3, 7), b"changed");
    }
    let pid = w.bench.mounts()[0]["pid"].as_u64().unwrap();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).unwrap();
    let peak_kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak_kib << 10 < MOST_BYTES, "{peak}");
    w.umount();
}

/// The official tools remember for 30 days what is in the store: an object that a rule of the bucket had deleted was missing at the render.
#[test]
fn what_was_deleted_from_the_store_is_sent_again() {
    let Some(w) = with(&[("kept", b"kept"), ("deleted", b"gone from the store")]) else { return };
    let upload = || {
        let line = ["manifest", "upload", "job", "--root", "work", "--cas", "store", "--json"];
        let told = w.bench.run(line).expect(0).json();
        (told["stored"].as_u64().unwrap(), told["present"].as_u64().unwrap())
    };
    assert_eq!(upload(), (0, 2));
    let object = w.object_of(b"gone from the store".len());
    fs::remove_file(&object).unwrap();
    assert_eq!(upload(), (1, 1));
    assert_eq!(fs::read(&object).unwrap(), b"gone from the store");
}

/// The key of the cache was folded to 64 bits; nothing was ever uploaded; a hostile `..` wrote outside the root.
#[test]
fn keys_are_whole_changes_reach_the_store_and_hostile_paths_are_refused() {
    let large = pattern(LARGE_LEN);
    let Some(w) = with(&[("small", b"content"), ("large", &large), ("d/x", b"x")]) else { return };
    mount(&w, &[]).expect(0);
    assert!(fs::read(w.at("large")).unwrap() == large);
    assert_eq!(fs::read(w.at("small")).unwrap(), b"content");
    let cached: Vec<String> = fs::read_dir(w.path("cache/objects/objects"))
        .unwrap()
        .flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap())
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for content in [&large[..], b"content"] {
        let name = format!("{:032x}-{}.", xxhash_rust::xxh3::xxh3_128(content), content.len());
        assert!(cached.iter().any(|file| file.starts_with(&name)), "{name} in {cached:?}");
    }

    // What was changed goes to the store, and is what others see.
    fs::write(w.at("small"), "edited").unwrap();
    writable(&w.at("large")).write_all_at(b"edited", 3 << 20).unwrap();
    fs::remove_file(w.at("d/x")).unwrap();
    let place = ["--cas", "store", "--cache-dir", "others"];
    let line = ["manifest", "snapshot", "mnt", "-o", "edited", "--format", "v2025"];
    w.bench.run([&line[..], &place[..]].concat()).expect(0);
    w.umount();
    w.bench.run([&["get", "edited", "/", "copy"], &place[..]].concat()).expect(0);
    let mut edited = large.clone();
    edited[3 << 20..][..6].copy_from_slice(b"edited");
    assert!(fs::read(w.path("copy/large")).unwrap() == edited);
    assert_eq!(fs::read(w.path("copy/small")).unwrap(), b"edited");
    assert!(w.path("copy/d").is_dir() && !w.path("copy/d/x").exists());

    let hash = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(b"content"));
    for path in ["../out", "d/../../out", "/out", "d/./out", "d//out"] {
        let manifest = serde_json::json!({
            "hashAlg": "xxh128", "manifestVersion": "2023-03-03", "totalSize": 7,
            "paths": [{"hash": hash, "mtime": 1, "path": path, "size": 7}],
        });
        fs::write(w.path("job"), manifest.to_string()).unwrap();
        mount(&w, &[]).expect(4).says("job");
        fs::create_dir_all(w.path("into/deep")).unwrap();
        w.bench.run([&["get", "job", "/", "into/deep"], &place[..]].concat()).expect(4);
        assert_eq!(fs::read_dir(w.path("into")).unwrap().count(), 1, "{path}");
        assert_eq!(fs::read_dir(w.path("into/deep")).unwrap().count(), 0, "{path}");
        assert!(!Path::new("/out").exists());
    }
}
