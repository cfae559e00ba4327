//! Manifests, mounted: their content comes from a store when it is read, and a volume takes what is changed.

mod common;
#[path = "common/manifests.rs"]
mod manifests;
#[path = "common/mounts.rs"]
mod mounts;

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use common::{eventually, is_root, left_out, pattern, run};
use manifests::Job;
use mounts::OrdinaryUser;

/// Longer than a block of the cache.
const LARGE_LEN: usize = (5 << 20) + 3;

/// A job in v2025. `None` where mounts are impossible; under CI that is a failure.
fn job() -> Option<Job> {
    let job = Job::new(&["mnt", "mnt2"])?;
    let at = |name: &str| job.path("work").join(name);
    fs::create_dir_all(at("sub/empty")).unwrap();
    for (name, content) in [("a", b"one".to_vec()), ("sub/tool", b"#!/bin/sh\n".to_vec()), ("zero", vec![])] {
        job.write(name, &content);
    }
    job.write("large", &pattern(LARGE_LEN));
    fs::set_permissions(at("sub/tool"), PermissionsExt::from_mode(0o755)).unwrap();
    symlink("sub/tool", at("link")).unwrap();
    for name in ["a", "sub/tool", "zero", "large"] {
        let time = SystemTime::UNIX_EPOCH + Duration::from_micros(1_600_000_000_123_456);
        File::options().write(true).open(at(name)).unwrap().set_modified(time).unwrap();
    }
    job.snapshot("job", "v2025");
    Some(job)
}

#[test]
fn a_manifest_is_mounted_and_its_content_is_fetched_when_it_is_read() {
    let Some(w) = job() else { return };
    w.mount(&[]).expect(0);
    let listed = w.run(&["mounts", "--json"]).expect(0).json();
    let mnt = w.bench.str("mnt");
    let own =
        listed.as_array().unwrap().iter().find(|mount| mount["mountpoint"] == mnt.as_str()).expect("it is listed");
    assert_eq!((&own["kind"], &own["read_only"]), (&"manifest".into(), &true.into()));
    // Nothing is fetched for what a manifest knows.
    let tool = w.at("sub/tool").metadata().unwrap();
    assert_eq!((tool.len(), tool.mode() & 0o777, tool.mtime_nsec()), (10, 0o755, 123_456_000));
    assert_eq!(fs::read_link(w.at("link")).unwrap(), PathBuf::from("sub/tool"));
    assert!(fs::read_dir(w.at("sub/empty")).unwrap().next().is_none());
    assert_eq!(w.at("none").metadata().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(w.stats()["fetches"], 0);
    assert_eq!(w.state("large"), "remote");
    // A few bytes cost a block, not the object.
    let large = File::open(w.at("large")).unwrap();
    let mut few = [0; 100];
    large.read_exact_at(&mut few, 3 << 20).unwrap();
    assert_eq!(few, pattern(LARGE_LEN)[3 << 20..][..100]);
    drop(large);
    let fetched = w.stats()["fetched_bytes"].as_u64().unwrap();
    assert!(fetched <= 1 << 20, "{fetched}");
    assert!(fs::read(w.at("large")).unwrap() == pattern(LARGE_LEN));
    for name in ["a", "sub/tool", "zero", "link"] {
        assert_eq!(fs::read(w.at(name)).unwrap(), fs::read(w.bench.path("work").join(name)).unwrap(), "{name}");
    }
    eventually("all of it is cached", || w.state("large") == "cached");
    for refused in [fs::write(w.at("a"), "x"), fs::create_dir(w.at("d")), fs::remove_file(w.at("a"))] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    }
    w.run(&["umount", "mnt"]).expect(0);
    // Another mount finds what this one fetched.
    fs::remove_dir_all(w.bench.path("store/Data")).unwrap();
    w.mount(&[]).expect(0).says("no folder Data");
    assert!(fs::read(w.at("large")).unwrap() == pattern(LARGE_LEN));
    assert_eq!(w.stats()["fetches"], 0);
    w.run(&["umount", "mnt"]).expect(0);
}

/// Numbers and times of a mount are made up: two that come in turn have the same ones for other files.
#[test]
fn hashes_of_one_mount_are_not_those_of_the_next() {
    let Some(w) = job() else { return };
    let hash_of = |manifest: &str| {
        let told: serde_json::Value = serde_json::from_slice(&fs::read(w.bench.path(manifest)).unwrap()).unwrap();
        let files = told["files"].as_array().or(told["paths"].as_array()).unwrap().clone();
        files.iter().find(|file| file["path"] == "a" || file["name"] == "a").unwrap()["hash"].clone()
    };
    let snapshot = |known: u64| {
        let line = ["manifest", "snapshot", "mnt", "-o", "now", "--cache-dir", "cache", "--json"];
        assert_eq!(w.run(&line).expect(0).json()["known_files"], known);
        hash_of("now")
    };
    w.mount(&[]).expect(0);
    let first = snapshot(0);
    w.run(&["index", "build", "mnt", "-o", "index", "--hash"]).expect(0);
    w.run(&["umount", "mnt"]).expect(0);
    let path = w.bench.path("work/a");
    let time = path.metadata().unwrap().modified().unwrap();
    w.write("a", b"eno");
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    w.snapshot("job", "v2025");
    w.mount(&[]).expect(0);
    assert_eq!(fs::read(w.at("a")).unwrap(), b"eno");
    let second = snapshot(0);
    assert_ne!(first, second);
    w.run(&["index", "update", "index"]).expect(0);
    let found = w.run(&["index", "find", "index", "a", "--json"]).expect(0).text();
    assert!(found.contains(second.as_str().unwrap()), "{found}");
    w.run(&["umount", "mnt"]).expect(0);
}

/// Nothing of it changes, so the kernel believes for a day what it was told once.
#[test]
fn what_was_listed_once_is_listed_without_a_request() {
    let Some(w) = job() else { return };
    w.mount(&[]).expect(0);
    let status = w.run(&["status", "mnt", "--json"]).expect(0).json();
    for timeout in ["attr_timeout_secs", "entry_timeout_secs", "negative_timeout_secs"] {
        assert_eq!(status[timeout].as_f64(), Some(24.0 * 3600.0), "{timeout}");
    }
    let list = || {
        let mut ls = w.bench.command_of("ls");
        ls.arg("-lR").arg(w.at(""));
        run(ls, b"").expect(0).text()
    };
    let first = list();
    assert!(first.contains("tool") && first.contains("large"), "{first}");
    let before = w.stats()["requests"].clone();
    assert_eq!(list(), first);
    assert_eq!(w.stats()["requests"], before);
    w.run(&["umount", "mnt"]).expect(0);
}

/// What is in the cache in blocks of one length serves who asks in another, or is fetched again.
#[test]
fn mounts_with_blocks_of_several_lengths_share_a_cache() {
    let Some(w) = job() else { return };
    let large = pattern(LARGE_LEN);
    for (block, most) in [("64K", 64 << 10), ("2M", 2 << 20), ("8M", LARGE_LEN), ("128K", LARGE_LEN), ("1M", 0)] {
        w.mount(&["--cache-block", block, "--memory", "1G"]).expect(0);
        let file = File::open(w.at("large")).unwrap();
        let mut few = [0; 100];
        file.read_exact_at(&mut few, 4 << 20).unwrap();
        assert_eq!(few, large[4 << 20..][..100], "{block}");
        let fetched = w.stats()["fetched_bytes"].as_u64().unwrap();
        assert!(fetched <= most as u64, "{block}: {fetched}");
        if most == LARGE_LEN {
            assert!(fs::read(w.at("large")).unwrap() == large, "{block}");
            eventually("all of it is cached", || w.state("large") == "cached");
        }
        drop(file);
        w.run(&["umount", "mnt"]).expect(0);
    }
    w.mount(&["--cache-block", "3M"]).expect(2).says("a power of two");
    // Objects of one block are fetched into memory, many at a time.
    w.mount(&["--cache-block", "4M"]).expect(2).says("--cache-block and --memory").says("--memory 512.0 MiB");
}

#[test]
fn a_damaged_or_missing_object_is_an_error_and_never_wrong_bytes() {
    let Some(w) = job() else { return };
    let object = w.object_of(3);
    fs::write(&object, "eno").unwrap();
    w.mount(&["--strict"]).expect(0);
    assert_eq!(fs::read(w.at("a")).unwrap_err().raw_os_error(), Some(libc::EIO));
    // In strict mode no byte of a large one comes before all of it was compared.
    let large = w.object_of(LARGE_LEN);
    let mut content = pattern(LARGE_LEN);
    *content.last_mut().unwrap() ^= 1;
    fs::write(&large, &content).unwrap();
    let mut byte = [0];
    let refused = File::open(w.at("large")).unwrap().read_at(&mut byte, 0);
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EIO));
    w.run(&["cat", "mnt", "/a"]).expect(4);
    // The other files are as they were, and so are the bad ones when the store is mended.
    assert_eq!(fs::read(w.at("sub/tool")).unwrap(), b"#!/bin/sh\n");
    w.run(&["umount", "mnt"]).expect(0);
    // Without a mount it is as strict by itself, and leaves no copy.
    w.run(&["cat", "job", "/a", "--cas", "store", "--cache-dir", "other"]).expect(4).says("/a");
    w.run(&["get", "job", "/large", "got", "--cas", "store", "--cache-dir", "other"]).expect(4).says("/large");
    assert!(!w.bench.path("got").exists());
    let snapshot = ["manifest", "snapshot", "job", "-o", "new", "--cas", "store", "--cache-dir", "other", "--json"];
    let told = w.run(&snapshot).expect(4).says("/large").json();
    let mut failed: Vec<_> = told["failures"].as_array().unwrap().iter().map(|one| one["path"].as_str()).collect();
    failed.sort();
    assert_eq!(failed, [Some("/a"), Some("/large")], "{told}");
    assert!(!w.bench.path("new").exists());
    fs::remove_file(&object).unwrap();
    let missing = w.run(&["cat", "job", "/a", "--cas", "store", "--cache-dir", "cache"]).expect(1);
    missing.says("Data/").says("/a");
    w.snapshot("job", "v2025");
    fs::write(&large, pattern(LARGE_LEN)).unwrap();
    w.mount(&["-o", "strict"]).expect(0);
    assert_eq!(fs::read(w.at("a")).unwrap(), b"one");
    assert!(fs::read(w.at("large")).unwrap() == pattern(LARGE_LEN));
    w.run(&["umount", "mnt"]).expect(0);
}

/// A copy of a file whose object is wrong does not end well, wherever it is wrong, strict or not.
#[test]
fn who_reads_a_wrong_file_to_its_end_hears_of_it() {
    let Some(w) = job() else { return };
    let object = w.object_of(LARGE_LEN);
    for (at, how) in [(100, &[][..]), (LARGE_LEN - 10, &[]), (100, &["--writable"])] {
        let mut wrong = pattern(LARGE_LEN);
        wrong[at] ^= 1;
        fs::write(&object, &wrong).unwrap();
        let _ = fs::remove_dir_all(w.bench.path("cache/objects"));
        w.mount(how).expect(0);
        for _ in 0..3 {
            let copied = fs::copy(w.at("large"), w.bench.path("copy"));
            assert_eq!(copied.unwrap_err().raw_os_error(), Some(libc::EIO), "byte {at} is wrong");
        }
        w.run(&["umount", "mnt"]).expect(0);
    }
}

#[test]
fn what_was_read_of_a_wrong_object_is_not_kept() {
    what_was_read_is_dropped(&[]);
}

#[test]
fn what_was_read_of_a_wrong_object_is_not_kept_by_a_writable_mount() {
    what_was_read_is_dropped(&["--writable"]);
}

fn what_was_read_is_dropped(how: &[&str]) {
    let Some(w) = job() else { return };
    let object = w.object_of(LARGE_LEN);
    let (mut wrong, right) = (pattern(LARGE_LEN), pattern(LARGE_LEN));
    wrong[0] ^= 1;
    fs::write(&object, &wrong).unwrap();
    // Not strict: it shows only when the last byte is there. Nobody reads on after that.
    w.mount(how).expect(0);
    if how.contains(&"--writable") {
        // Whose own mount, of the same process, hears of such objects too while it is there, and takes nothing along when it ends.
        w.run(&["manifest", "commit", "mnt", "--dry-run"]).expect(0);
    }
    let large = File::open(w.at("large")).unwrap();
    let mut bytes = vec![0; LARGE_LEN];
    let _ = large.read_exact_at(&mut bytes, 0);
    eventually("it is found out", || w.stats()["objects_quarantined"].as_u64() > Some(0));
    fs::write(&object, &right).unwrap();
    // Asked for once more in vain, it is not asked for again for half a minute.
    let until = Instant::now() + Duration::from_secs(60);
    while !large.read_exact_at(&mut bytes, 0).is_ok_and(|()| bytes == right) {
        assert!(Instant::now() < until, "the file that is open stays wrong");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(fs::read(w.at("large")).unwrap() == right);
    drop(large);
    w.run(&["umount", "mnt"]).expect(0);
}

/// Somebody maps a file and changes a byte of a page, of which the kernel has what it was given before anybody could know that it is wrong.
#[test]
fn what_is_changed_through_a_mapping_is_verified_first() {
    let Some(w) = job() else { return };
    let (object, right) = (w.object_of(LARGE_LEN), pattern(LARGE_LEN));
    let mut wrong = right.clone();
    wrong[100] ^= 1;
    fs::write(&object, &wrong).unwrap();
    w.mount(&["--writable"]).expect(0);
    let reader = File::open(w.at("large")).unwrap();
    let mut page = [0; 4096];
    reader.read_exact_at(&mut page, 0).unwrap();
    assert_eq!(page[..], wrong[..4096]);
    fs::write(&object, &right).unwrap();
    let writer = File::options().read(true).write(true).open(w.at("large")).unwrap();
    // SAFETY: the kernel chooses the place; one byte of it is written, and it is unmapped at once.
    unsafe {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let map = libc::mmap(std::ptr::null_mut(), 4096, prot, flags, std::os::fd::AsRawFd::as_raw_fd(&writer), 0);
        assert_ne!(map, libc::MAP_FAILED);
        map.cast::<u8>().write_volatile(b'h');
        assert_eq!(libc::munmap(map, 4096), 0);
    }
    writer.sync_all().unwrap();
    drop((reader, writer));
    w.run(&["umount", "mnt"]).expect(0);
    let mut expected = right;
    expected[0] = b'h';
    w.mount(&["--writable"]).expect(0);
    assert!(fs::read(w.at("large")).unwrap() == expected);
    w.run(&["umount", "mnt"]).expect(0);
}

/// Of a long file a few bytes are changed before all of it was compared. If it was wrong, the commit says so, and nothing is stored under a
/// hash of wrong bytes.
#[test]
fn what_was_changed_before_it_was_compared_is_compared_by_the_commit() {
    let Some(w) = job() else { return };
    let (object, right) = (w.object_of(LARGE_LEN), pattern(LARGE_LEN));
    let before = w.objects().len();
    let mut wrong = right.clone();
    wrong[100] ^= 1;
    fs::write(&object, &wrong).unwrap();
    w.mount(&["--writable", "--verify-first", "0"]).expect(0);
    let change = || {
        let file = File::options().read(true).write(true).open(w.at("large")).unwrap();
        file.write_all_at(b"hello", 0).unwrap();
        file.sync_all().unwrap();
    };
    change();
    assert_eq!((w.state("large").as_str(), w.stats()["fetched_bytes"].as_u64()), ("modified", Some(1 << 20)));
    let commit = || w.run(&["manifest", "commit", "mnt"]);
    // As long as the store is wrong, and when it is right again: what was written into is not what the store has.
    for content in [&wrong, &right] {
        fs::write(&object, content).unwrap();
        commit().expect(4).says("large");
        assert_eq!((w.state("large").as_str(), w.objects().len()), ("error", before));
        assert!(!w.path("store/Manifests").exists());
        // Nobody is given what is known to be wrong.
        if content == &right {
            assert_eq!(fs::read(w.at("large")).unwrap_err().raw_os_error(), Some(libc::EIO));
        }
    }
    let mut expected = right;
    expected[..5].copy_from_slice(b"hello");
    fs::write(w.at("large"), &expected).unwrap();
    commit().expect(0);
    w.object_of(LARGE_LEN);
    let name = format!("{:032x}.xxh128", xxhash_rust::xxh3::xxh3_128(&expected));
    assert!(fs::read(w.path("store/Data").join(name)).unwrap() == expected);
    assert_eq!(w.state("large"), "uploaded");
    w.run(&["umount", "mnt"]).expect(0);
}

/// A long file is cut to less than a block: that costs a block of it.
#[test]
fn what_is_cut_off_of_a_long_file_is_not_fetched() {
    let Some(w) = job() else { return };
    w.mount(&["--writable", "--verify-first", "0"]).expect(0);
    File::options().write(true).open(w.at("large")).unwrap().set_len(100).unwrap();
    assert_eq!(w.stats()["fetched_bytes"], 1 << 20);
    assert_eq!(fs::read(w.at("large")).unwrap(), pattern(LARGE_LEN)[..100]);
    w.run(&["manifest", "commit", "mnt", "-o", "changes"]).expect(0);
    let name = format!("{:032x}.xxh128", xxhash_rust::xxh3::xxh3_128(&pattern(LARGE_LEN)[..100]));
    assert_eq!(fs::read(w.path("store/Data").join(name)).unwrap(), pattern(LARGE_LEN)[..100]);
    assert_eq!(w.stats()["fetched_bytes"], LARGE_LEN, "the commit needs right bytes, and nothing comes twice");
    w.run(&["umount", "mnt"]).expect(0);
}

/// Whether the kernel (6.9) can read files by itself.
fn kernel_reads_by_itself() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    let can = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 9);
    if !can {
        left_out("the kernel is too old for passthrough");
    }
    can
}

#[test]
fn what_is_verified_is_read_by_the_kernel_unless_that_is_off() {
    let Some(w) = job() else { return };
    if !is_root("passthrough") || !kernel_reads_by_itself() {
        return;
    }
    let stats = || w.run(&["stats", "mnt", "--json"]).expect(0).json();
    let opens = || stats()["passthrough_opens"].as_u64().unwrap();
    let read = || assert!(fs::read(w.at("large")).unwrap() == pattern(LARGE_LEN));
    w.mount(&[]).expect(0);
    read();
    // It is verified in the background.
    eventually("the kernel reads it", || {
        read();
        opens() > 0
    });
    w.run(&["umount", "mnt"]).expect(0);
    // A later mount compares it first with what the former one noted.
    w.mount(&[]).expect(0);
    eventually("the kernel reads it again", || {
        read();
        opens() > 0
    });
    let asked = stats()["requests"]["read"].as_u64();
    read();
    assert_eq!(stats()["requests"]["read"].as_u64(), asked);
    w.run(&["umount", "mnt"]).expect(0);
    w.mount(&["-o", "passthrough=off"]).expect(0);
    (0..3).for_each(|_| read());
    assert_eq!(opens(), 0);
    w.run(&["umount", "mnt"]).expect(0);
    w.mount(&["-o", "passthrough=perhaps"]).expect(2);
    // One that is written to does without.
    w.mount(&["--writable"]).expect(0);
    (0..3).for_each(|_| read());
    assert_eq!(opens(), 0);
    w.run(&["umount", "mnt"]).expect(0);
}

/// The kernel refuses it to whoever has no privilege, and nobody notices.
#[test]
fn without_privilege_every_file_is_read_all_the_same() {
    let Some(user) = OrdinaryUser::new() else { return };
    let script = "mkdir work store && head -c 5000000 /dev/urandom > work/large
        ./adit manifest snapshot work -o job --format v2025 --cas store --cache-dir cache
        ./adit mount job mnt --cas store --cache-dir cache
        trap './adit umount --no-flush --yes mnt 2>/dev/null || true' EXIT
        for turn in 1 2 3 4 5; do cmp work/large mnt/large; sleep 0.1; done
        ./adit stats mnt --json > told && grep -q '\"passthrough_opens\": *0' told
        ./adit umount mnt";
    user.run(script).expect(0);
}

#[test]
fn what_is_changed_on_a_writable_one_is_found_again() {
    let Some(w) = job() else { return };
    w.mount(&["--writable"]).expect(0).says("volume created");
    // As an editor saves, and in place.
    fs::write(w.at("a.tmp"), "edited").unwrap();
    fs::rename(w.at("a.tmp"), w.at("a")).unwrap();
    File::options().write(true).open(w.at("large")).unwrap().write_all_at(b"here", 4 << 20).unwrap();
    fs::set_permissions(w.at("zero"), PermissionsExt::from_mode(0o755)).unwrap();
    fs::remove_file(w.at("sub/tool")).unwrap();
    fs::remove_dir(w.at("sub/empty")).unwrap();
    fs::remove_dir(w.at("sub")).unwrap();
    fs::create_dir(w.at("new")).unwrap();
    File::create(w.at("new/f")).unwrap().write_all(b"f").unwrap();
    let mut large = pattern(LARGE_LEN);
    large[4 << 20..][..4].copy_from_slice(b"here");
    let check = || {
        assert_eq!(fs::read(w.at("a")).unwrap(), b"edited");
        assert!(fs::read(w.at("large")).unwrap() == large);
        assert_eq!(w.at("zero").metadata().unwrap().mode() & 0o777, 0o755);
        assert!(!w.at("sub").exists() && w.at("new/f").exists());
    };
    check();
    let changed = w.run(&["diff", "mnt"]).expect(0).text();
    assert!(changed.contains("/new/f") && changed.contains("/sub"), "{changed}");
    w.kill();
    w.mount(&["--writable"]).expect(0);
    check();
    w.run(&["umount", "mnt"]).expect(0);
    // A copy of the manifest is the same one; read-only it is as it was made.
    fs::copy(w.bench.path("job"), w.bench.path("copy")).unwrap();
    let place = ["--cas", "store", "--cache-dir", "cache"];
    w.run(&[&["mount", "copy", "mnt", "--writable"], &place[..]].concat()).expect(0).says("goes on with the changes");
    check();
    w.mount(&["--writable"]).expect(7);
    w.run(&[&["mount", "job", "mnt2"], &place[..]].concat()).expect(0);
    assert_eq!(fs::read(w.bench.path("mnt2/a")).unwrap(), b"one");
    w.run(&["umount", "mnt", "mnt2"]).expect(0);
    // The volume of one manifest is not put on another one.
    fs::write(w.bench.path("work/a"), "two").unwrap();
    w.snapshot("other", "v2025");
    w.run(&[&["mount", "job", "mnt", "--upper", "up"], &place[..]].concat()).expect(0);
    w.run(&["umount", "mnt"]).expect(0);
    w.run(&[&["mount", "other", "mnt", "--upper", "up"], &place[..]].concat()).expect(1).says("it holds changes of");
}

#[test]
fn verbs_work_on_a_manifest_without_a_mount() {
    let Some(w) = job() else { return };
    let place = ["--cas", "store", "--cache-dir", "cache"];
    let run = |args: &[&str]| w.run(&[args, &place[..]].concat());
    assert_eq!(run(&["ls", "job", "/"]).expect(0).text(), "a\nlarge\nlink\nsub\nzero\n");
    assert_eq!(run(&["cat", "job", "/link"]).expect(0).text(), "#!/bin/sh\n");
    run(&["get", "job", "/", "copy"]).expect(0);
    for name in ["a", "large", "sub/tool", "zero"] {
        let (copy, work) = (w.bench.path("copy").join(name), w.bench.path("work").join(name));
        assert!(fs::read(&copy).unwrap() == fs::read(&work).unwrap(), "{name}");
        assert_eq!(copy.metadata().unwrap().mtime(), work.metadata().unwrap().mtime(), "{name}");
    }
    for line in [&["put", "job", "work/a", "/x"][..], &["rm", "-y", "job", "/a"], &["mkdir", "job", "/d"]] {
        run(line).expect(10).says("a manifest does not change");
    }
    // What no mount can be of.
    w.run(&["mount", "job", "mnt"]).expect(2).says("--cas");
    // What they fetched, and where from.
    assert!(w.run(&["manifest", "verify", "--cache-dir", "cache"]).expect(0).text().ends_with("no problems\n"));
    assert!(w.run(&["manifest", "verify", "job", "--cas", "store"]).expect(0).text().starts_with("4 objects"));
    fs::write(w.object_of(3), "eno").unwrap();
    fs::remove_file(w.object_of(LARGE_LEN)).unwrap();
    let found = w.run(&["manifest", "verify", "job", "--cas", "store", "--json"]).expect(5).json();
    let paths: Vec<&str> = found["problems"].as_array().unwrap().iter().map(|p| p["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/a", "/large"]);
    w.run(&["manifest", "verify", "job"]).expect(2).says("--cas");
    w.run(&["manifest", "verify", "--cache-dir", "nowhere"]).expect(1).says("nowhere");
    assert!(!w.bench.path("nowhere").exists());
    w.run(&["mount", "job", "mnt", "--cas="]).expect(2).says("empty");
    w.snapshot("job", "v2025");
    run(&["mount", "job", "mnt", "--snapshot", "s"]).expect(2);
    run(&["mount", "job", "mnt", "-o", "rw"]).expect(2).says("to be read");
    w.run(&["mount", "job", "mnt", "--cas", "none", "--cache-dir", "empty cache"]).expect(1).says("none");
    w.run(&["manifest", "snapshot", "work", "-o", "d", "--parent", "job", "--cache-dir", "hashes"]).expect(0);
    run(&["mount", "d", "mnt"]).expect(10).says("a diff");
    fs::write(w.bench.path("bad"), r#"{"hashAlg":"xxh128","manifestVersion":"2023-03-03","paths":[{"hash":"x"}]}"#)
        .unwrap();
    run(&["mount", "bad", "mnt"]).expect(4).says("bad");
    assert_eq!(w.bench.mounts().len(), 0);
}

/// What is in a cache is its user's alone, so another one has another part of the directory. A folder that it may not write to is refused, with
/// what to do.
#[test]
fn each_user_has_a_part_of_the_cache_directory() {
    let Some(user) = OrdinaryUser::new() else { return };
    let prepare = "mkdir work store root shared closed; chmod 1777 shared; echo content > work/f
        ./adit manifest snapshot work -o job --cas store --cache-dir hashes
        ./adit mount job root --cas store --cache-dir shared; cat root/f; ./adit umount root
        chmod -R a+rX store job";
    let script = "if ./adit mount job mnt --cas store --cache-dir closed; then exit 3; fi
        ./adit mount job mnt --cas store --cache-dir shared --writable; cat mnt/f; echo new > mnt/new
        ./adit status mnt --json; ./adit umount mnt
        ./adit mount job mnt --cas store --cache-dir shared --writable; cat mnt/new; ./adit umount mnt
        ls shared/uid-65534; stat -c %a shared/uid-65534";
    let ran = run(user.command(prepare, script), b"").expect(0);
    let text = ran.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.iter().filter(|line| **line == "content").count(), 2, "{text}");
    assert!(text.contains("/shared/uid-65534\"") && lines.contains(&"new"), "{text}");
    assert_eq!(lines[lines.len() - 4..], ["indexes", "objects", "overlays", "700"].map(|line| line), "{text}");
    ran.says("another user's; the cache directory is").says("/closed belongs to the user with the number 0");
}

/// The index that a mount answers from is mapped. What is cut off it is an error of what was there, and not the end of the mount.
#[test]
fn an_index_that_is_cut_below_a_mount_is_an_error_and_the_mount_lives_on() {
    let Some(job) = Job::new(&["mnt"]) else { return };
    let name = |dir, file| format!("folder{dir:03}/a_file_with_a_rather_long_name_{file:05}");
    for (dir, file) in (0..30).flat_map(|dir| (0..60).map(move |file| (dir, file))) {
        job.write(&name(dir, file), b"x");
    }
    job.snapshot("job", "v2025");
    let segment = || {
        let found = fs::read_dir(job.path("cache/indexes")).into_iter().flatten().flatten();
        found.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|e| e == "segment"))
    };
    // One that was just written is read anew each time.
    common::eventually("the index is kept", || {
        job.mount(&[]).expect(0);
        segment().is_some() || {
            job.umount();
            false
        }
    });
    assert_eq!(fs::read_dir(job.at("folder007")).unwrap().count(), 60);
    fs::File::options().write(true).open(segment().unwrap()).unwrap().set_len(8192).unwrap();
    let asked = (0..30).map(|dir| job.at(&name(dir, 31)).metadata().map(|meta| meta.len()));
    let errors: Vec<_> = asked.filter_map(|answer| answer.map(|len| assert_eq!(len, 1)).err()).collect();
    assert!(!errors.is_empty() && errors.iter().all(|e| e.raw_os_error() == Some(libc::EIO)), "{errors:?}");
    job.run(&["status", "mnt"]).expect(0);
    let log = fs::read_to_string(job.path("state/adit/log")).unwrap();
    assert!(log.contains("build the index again") || log.contains("read index"), "{log}");
    job.umount();
}
