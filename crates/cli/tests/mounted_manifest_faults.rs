//! Mounted manifests over an object store that fails in every way that a network has: a reader gets right bytes or an error, in time, and
//! the mount recovers by itself.
//!
//! What is promised of an object that has other bytes than its hash says is in `docs/semantics.md`; that such a mount recovers too, which
//! takes half a minute, is in `mounted_manifest`.

mod common;
#[path = "common/mounts.rs"]
mod mounts;
#[path = "common/s3.rs"]
mod s3;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adit_testkit::objects::HttpFault;
use common::{Ran, eventually, pattern};
use s3::{Bucket, STORE};

/// No read may take longer than this, whatever the store does: many times what the time-outs of these mounts allow, and far less than a
/// hang.
const IN_TIME: Duration = Duration::from_secs(60);
/// One block of the cache, and several.
const SMALL_LEN: usize = 20_000;
const LARGE_LEN: usize = (2 << 20) + 9;

fn key_of(content: &[u8]) -> String {
    format!("{:032x}.xxh128", xxhash_rust::xxh3::xxh3_128(content))
}

/// Content of its own for each name.
fn content(name: &str, len: usize) -> Vec<u8> {
    let mut content = pattern(len);
    content[..name.len()].copy_from_slice(name.as_bytes());
    content
}

fn mount(b: &Bucket, mountpoint: &str, cache: &str, more: &[&str]) -> Ran {
    let mut command = b.command_of(env!("CARGO_BIN_EXE_adit"));
    // Few tries: what is tried again is told in the store's own tests.
    command.env("AWS_MAX_ATTEMPTS", "2").args(["mount", "job", mountpoint, "--cas", STORE, "--cache-dir", cache]);
    command.args(["--request-timeout", "700ms", "--connect-timeout", "700ms"]).args(more);
    common::run(command, b"")
}

/// A store that does not give what was asked for is an error of input or output, or says that it refused or took too long.
fn is_clear(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EIO | libc::ETIMEDOUT | libc::EACCES))
}

/// Each fault is on its own objects, all at once, so that the whole table costs the time of one. Two mounts read them: one is strict, one
/// is not, and writable. Meanwhile names and what the store does give are served. Afterwards everything is right.
#[test]
fn each_fault_of_a_store_gives_right_bytes_or_an_error_in_time() {
    let Some(b) = Bucket::new(&["mnt", "mnt2"]) else { return };
    let forever = u64::MAX;
    // The fault, how often it happens, and whether a reader may see nothing of it but the time that it takes.
    let faults = [
        ("slow", HttpFault::Delay(Duration::from_millis(200)), forever, true),
        ("status-500", HttpFault::Status(500, "InternalError"), forever, false),
        ("status-503", HttpFault::Status(503, "SlowDown"), forever, false),
        ("status-503-once", HttpFault::Status(503, "SlowDown"), 1, true),
        ("status-404", HttpFault::Status(404, "NoSuchKey"), forever, false),
        ("status-403", HttpFault::Status(403, "AccessDenied"), forever, false),
        ("dropped", HttpFault::Close, forever, false),
        ("dropped-once", HttpFault::Close, 1, true),
        ("silent", HttpFault::Stall, forever, false),
        ("broken", HttpFault::BreakBody(100), forever, false),
        ("broken-once", HttpFault::BreakBody(1000), 1, true),
        ("stuck", HttpFault::StallBody(100), forever, false),
        ("ranges-ignored", HttpFault::IgnoreRange, forever, false),
        ("range-moved", HttpFault::WrongRange, forever, false),
        ("truncated", HttpFault::Shorten(100), forever, false),
        ("corrupt", HttpFault::FlipBit, forever, false),
        ("other-tag", HttpFault::WrongTag, forever, true),
        ("nonsense", HttpFault::Nonsense, forever, false),
    ];
    for (name, ..) in &faults {
        b.write(&format!("small/{name}"), &content(name, SMALL_LEN));
        b.write(&format!("large/{name}"), &content(name, LARGE_LEN));
    }
    b.write("fine", &content("fine", LARGE_LEN));
    b.snapshot("job", "v2025");
    mount(&b, "mnt", "cache", &["--strict"]).expect(0);
    mount(&b, "mnt2", "cache2", &["--writable"]).expect(0);
    for (name, fault, times, _) in &faults {
        for len in [SMALL_LEN, LARGE_LEN] {
            b.server.add(fault.clone(), "GET", &key_of(&content(name, len)), 0, *times);
        }
    }
    let places = [
        ("mnt", "small", SMALL_LEN),
        ("mnt", "large", LARGE_LEN),
        ("mnt2", "small", SMALL_LEN),
        ("mnt2", "large", LARGE_LEN),
    ];
    std::thread::scope(|scope| {
        for (mountpoint, folder, len) in places {
            for (name, _, _, is_harmless) in &faults {
                let path = b.path(mountpoint).join(folder).join(name);
                scope.spawn(move || {
                    let begun = Instant::now();
                    let read = fs::read(&path);
                    let took = begun.elapsed();
                    let shown = path.display();
                    assert!(took < IN_TIME, "{shown}: {took:?}");
                    // Who is not strict may see bytes of an object of several blocks before the last one tells that they are wrong.
                    let may_be_wrong = *name == "corrupt" && mountpoint == "mnt2" && folder == "large";
                    // Where the range is the whole object nothing is wrong with it.
                    let may_be_right = *is_harmless || *name == "ranges-ignored";
                    match read {
                        Ok(bytes) => {
                            assert!(bytes == content(name, len) || may_be_wrong, "{shown}: wrong bytes");
                            assert!(may_be_right || may_be_wrong, "{shown}: nothing came of the fault");
                        }
                        Err(e) => assert!(is_clear(&e) && !is_harmless, "{shown}: {e}"),
                    }
                });
            }
        }
        // While all of these wait.
        for mountpoint in ["mnt", "mnt2"] {
            assert_eq!(fs::read_dir(b.path(mountpoint).join("large")).unwrap().count(), faults.len());
            assert!(fs::read(b.path(mountpoint).join("fine")).unwrap() == content("fine", LARGE_LEN));
        }
    });
    b.server.clear();
    for (mountpoint, folder, len) in places {
        for (name, ..) in faults.iter().filter(|(name, ..)| *name != "corrupt") {
            let path = b.path(mountpoint).join(folder).join(name);
            assert!(fs::read(&path).unwrap() == content(name, len), "{}", path.display());
        }
    }
    b.run(&["umount", "mnt", "mnt2"]).expect(0);
}

/// The server goes down and comes back, again and again, while cold files are read: no reader sees a wrong byte or waits without an end,
/// and each file is right once the server stays.
#[test]
fn a_server_that_is_killed_and_restarted_under_load_costs_errors_only() {
    const FILES: usize = 40;
    let Some(b) = Bucket::new(&["mnt"]) else { return };
    let name = |n: usize| format!("file-{n:03}");
    for n in 0..FILES {
        b.write(&name(n), &content(&name(n), LARGE_LEN));
    }
    b.snapshot("job", "v2025");
    mount(&b, "mnt", "cache", &[]).expect(0);
    // So that there is something left to be fetched whenever the server goes.
    b.server.add(HttpFault::Delay(Duration::from_millis(20)), "GET", "Queue/Data/", 0, u64::MAX);
    let (stop, right, failed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let (b, stop, right, failed) = (&b, &stop, &right, &failed);
            scope.spawn(move || {
                let mut at = reader;
                while !stop.load(Ordering::Relaxed) {
                    let name = name(at % FILES);
                    let begun = Instant::now();
                    match fs::read(b.path("mnt").join(&name)) {
                        Ok(bytes) => {
                            assert!(bytes == content(&name, LARGE_LEN), "{name}");
                            right.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(e) => {
                            assert!(is_clear(&e), "{name}: {e}");
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    assert!(begun.elapsed() < IN_TIME, "{name}");
                    at += 1;
                }
            });
        }
        for round in 1..=3 {
            let (before, cold) = (right.load(Ordering::Relaxed), failed.load(Ordering::Relaxed));
            eventually("files are read", || right.load(Ordering::Relaxed) > before);
            b.server.go_down();
            // What is cached is read on; of the rest somebody meets the end, unless nothing is left to be fetched.
            let all_cached = || right.load(Ordering::Relaxed) > before + 3 * FILES as u64;
            eventually("the end is met", || failed.load(Ordering::Relaxed) > cold || all_cached());
            b.server.come_back();
            eventually(&format!("it is well after round {round}"), || {
                fs::read(b.path("mnt").join(name(FILES - round))).is_ok()
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(failed.load(Ordering::Relaxed) > 0, "nobody noticed");
    for n in 0..FILES {
        assert!(fs::read(b.path("mnt").join(name(n))).unwrap() == content(&name(n), LARGE_LEN));
    }
    b.run(&["umount", "mnt"]).expect(0);
}

/// A refusal is an errno that says nothing: the words of the store are in the log and in `status`, and repeated ones are counted.
#[test]
fn refused_reads_are_in_the_log_and_in_status_with_the_words_of_the_store() {
    let Some(b) = Bucket::new(&["mnt"]) else { return };
    let refusals = [
        ("denied", HttpFault::Status(403, "AccessDenied"), libc::EACCES),
        ("skewed", HttpFault::Status(403, "RequestTimeTooSkewed"), libc::EACCES),
        ("expired", HttpFault::Status(400, "ExpiredToken"), libc::EACCES),
        ("broken", HttpFault::Status(500, "InternalError"), libc::EIO),
    ];
    for (name, ..) in &refusals {
        b.write(name, &content(name, SMALL_LEN));
    }
    b.write("fine", &content("fine", SMALL_LEN));
    b.snapshot("job", "v2025");
    let log = b.path("log");
    mount(&b, "mnt", "cache", &["--log-file", log.to_str().unwrap()]).expect(0);
    let status = || b.run(&["status", "mnt", "--json"]).expect(0).json();
    assert_eq!(fs::read(b.path("mnt/fine")).unwrap(), content("fine", SMALL_LEN));
    assert_eq!(status()["errors"], serde_json::json!([]));
    for (name, fault, errno) in refusals {
        let HttpFault::Status(_, code) = fault else { unreachable!("all are") };
        let key = key_of(&content(name, SMALL_LEN));
        b.server.add(fault, "GET", &key, 0, u64::MAX);
        let read = || fs::read(b.path("mnt").join(name)).unwrap_err().raw_os_error();
        assert_eq!(read(), Some(errno), "{name}");
        let of_it = |text: &str| text.contains(code) && text.contains(&key);
        let lines = || fs::read_to_string(&log).unwrap().lines().filter(|line| of_it(line)).count();
        eventually("it is in the log", || lines() > 0);
        let counted = || {
            let errors = status()["errors"].as_array().unwrap().clone();
            let found = errors.iter().find(|met| of_it(met["error"].as_str().unwrap()));
            found.unwrap_or_else(|| panic!("{name}: {errors:?}"))["count"].as_u64().unwrap()
        };
        let (count, lines_before) = (counted(), lines());
        if name == "denied" {
            for _ in 0..5 {
                read();
            }
            assert!(counted() >= count + 5, "each is counted");
            assert!(lines() <= lines_before + 1, "and not told again each time");
            let shown = b.run(&["status", "mnt"]).expect(0).text();
            assert!(shown.contains("AccessDenied") && shown.contains(" times): "), "{shown}");
        }
    }
    assert!(status()["warnings"].as_u64().unwrap() >= 4);
    b.run(&["umount", "mnt"]).expect(0);
}

#[test]
fn a_manifest_with_a_url_is_verified_in_its_store() {
    let Some(b) = Bucket::new(&[]) else { return };
    b.write("one", &content("one", SMALL_LEN));
    b.snapshot("job", "v2025");
    b.run(&["manifest", "upload", "job", "--root", "work", "--cas", STORE, "--manifest-prefix", "jobs"]).expect(0);
    let url = format!("{STORE}/Manifests/jobs/job");
    b.run(&["manifest", "verify", &url]).expect(0);
    b.run(&["manifest", "verify", &url, "--repair"]).expect(2).says("in the cache directory");
    b.run(&["manifest", "verify", "job"]).expect(2).says("--cas");
    b.server.add(HttpFault::FlipBit, "GET", &key_of(&content("one", SMALL_LEN)), 0, u64::MAX);
    let told = b.run(&["manifest", "verify", &url]).expect(5).text();
    assert!(told.contains("/one"), "{told}");
}

/// Credentials that run out are read again, from where they came; if there are no others, reads fail in time, and go on once there are.
#[test]
fn credentials_that_expire_are_renewed_beneath_a_mount() {
    let Some(b) = Bucket::new(&["mnt"]) else { return };
    for name in ["one", "two", "three"] {
        b.write(name, &content(name, SMALL_LEN));
    }
    b.snapshot("job", "v2025");
    let hand_out = |key: &str| {
        let text = format!("[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n");
        // A file is replaced as a whole by whoever renews it.
        fs::write(b.path("aws-new"), text).unwrap();
        fs::rename(b.path("aws-new"), b.path("aws-credentials")).unwrap();
    };
    hand_out("access");
    let mut command = b.command_of(env!("CARGO_BIN_EXE_adit"));
    command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    command.args(["mount", "job", "mnt", "--cas", STORE, "--cache-dir", "cache", "--request-timeout", "700ms"]);
    common::run(command, b"").expect(0);
    let read = |name: &str| fs::read(b.path("mnt").join(name));
    assert!(read("one").unwrap() == content("one", SMALL_LEN));

    b.server.expire_key("access");
    b.server.accept_key("renewed");
    hand_out("renewed");
    assert!(read("two").unwrap() == content("two", SMALL_LEN), "nobody noticed that they were renewed");

    b.server.expire_key("renewed");
    let begun = Instant::now();
    assert_eq!(read("three").unwrap_err().raw_os_error(), Some(libc::EACCES));
    assert!(begun.elapsed() < IN_TIME);
    assert!(read("one").unwrap() == content("one", SMALL_LEN), "what is cached needs none");
    b.server.accept_key("third");
    hand_out("third");
    eventually("it is well again", || read("three").is_ok_and(|bytes| bytes == content("three", SMALL_LEN)));
    b.run(&["umount", "mnt"]).expect(0);
}

/// A store that cannot be reached keeps nobody from a mount: what is cached is read, the rest fails in time, and comes when the store is back.
/// One that refuses is told at the mount.
#[test]
fn without_its_store_a_manifest_is_mounted_and_what_is_cached_is_read() {
    let Some(b) = Bucket::new(&["mnt", "mnt2"]) else { return };
    for name in ["one", "two"] {
        b.write(name, &content(name, SMALL_LEN));
    }
    b.snapshot("job", "v2025");
    b.run(&["manifest", "upload", "job", "--root", "work", "--cas", STORE, "--manifest-prefix", "P"]).expect(0);
    let url = format!("{STORE}/Manifests/P/job");
    let by_url = || {
        let mut command = b.command_of(env!("CARGO_BIN_EXE_adit"));
        command.env("AWS_MAX_ATTEMPTS", "2").args(["mount", &url, "mnt2", "--cache-dir", "cache"]);
        command.args(["--request-timeout", "700ms", "--connect-timeout", "700ms"]);
        common::run(command, b"")
    };
    let read = |mountpoint: &str, name: &str| fs::read(b.path(mountpoint).join(name));
    mount(&b, "mnt", "cache", &[]).expect(0);
    by_url().expect(0);
    assert!(read("mnt", "one").unwrap() == content("one", SMALL_LEN));
    b.run(&["umount", "mnt", "mnt2"]).expect(0);

    b.server.go_down();
    let all_the_same = "it is mounted all the same";
    mount(&b, "mnt", "cache", &[]).expect(0).says(all_the_same);
    by_url().expect(0).says("it is taken for what it was").says(all_the_same);
    for mountpoint in ["mnt", "mnt2"] {
        assert!(read(mountpoint, "one").unwrap() == content("one", SMALL_LEN), "{mountpoint}");
        assert!(is_clear(&read(mountpoint, "two").unwrap_err()), "{mountpoint}");
        let status = b.run(&["status", mountpoint, "--json"]).expect(0).json();
        assert_eq!((status["cas"].as_str(), status["strict"].as_bool()), (Some(STORE), Some(false)), "{status}");
        assert_eq!(status["cache_dir"].as_str(), Some(&*b.points.bench.str("cache")));
        assert!(status["cache_used_bytes"].as_u64() >= Some(SMALL_LEN as u64), "{status}");
    }
    b.run(&["umount", "mnt", "mnt2"]).expect(0);
    mount(&b, "mnt", "cache", &["--writable"]).expect(0).says(all_the_same);
    fs::write(b.path("mnt/new"), "new").unwrap();
    b.server.come_back();
    eventually("it is well again", || read("mnt", "two").is_ok_and(|bytes| bytes == content("two", SMALL_LEN)));
    let status = b.run(&["status", "mnt", "--json"]).expect(0).json();
    assert_eq!((status["cas"].as_str(), status["kind"].as_str()), (Some(STORE), Some("overlay")), "{status}");
    b.run(&["umount", "mnt"]).expect(0);

    // Without anything to be read it is refused; what answers, and refuses, is a mistake of the command line.
    b.server.go_down();
    mount(&b, "mnt", "empty", &[]).expect(9).says(STORE);
    // A writable one leaves no volume that would look like changes to the next try.
    for _ in 0..2 {
        mount(&b, "mnt", "empty", &["--writable"]).expect(9).says(STORE);
        mount(&b, "mnt", "empty", &["--upper", "up"]).expect(9).says(STORE);
        assert!(!b.path("empty/overlays").exists() && !b.path("up").exists());
    }
    b.server.come_back();
    // Whoever has the credentials is away: that is no refusal either.
    let role = "[profile farm]\nrole_arn = arn:aws:iam::123456789012:role/a\nsource_profile = keys\nservices = away\n";
    let away = "[services away]\nsts =\n  endpoint_url = http://127.0.0.1:1\n";
    let keys = "[profile keys]\naws_access_key_id = access\naws_secret_access_key = secret\n";
    fs::write(b.path("aws-config"), format!("{role}{away}{keys}")).unwrap();
    mount(&b, "mnt", "empty", &["--profile", "farm"]).expect(9).says("has the credentials does not answer");
    mount(&b, "mnt", "cache", &["--profile", "farm"]).expect(0).says(all_the_same);
    assert!(read("mnt", "one").unwrap() == content("one", SMALL_LEN));
    b.run(&["umount", "mnt"]).expect(0);
    b.run(&["mount", "job", "mnt", "--cas", "s3://another/Queue", "--cache-dir", "cache"]).expect(1).says("bucket");
    // Of a prefix without any object another one was meant, or nothing is there yet.
    let wrong = format!("{STORE}/Deta");
    let ran = b.run(&["mount", "job", "mnt", "--cas", &wrong, "--cache-dir", "cache"]);
    ran.expect(0).says("there is no object below Data/").says(all_the_same);
    b.run(&["umount", "mnt"]).expect(0);
    b.server.expire_key("access");
    b.run(&["mount", "job", "mnt", "--cas", STORE, "--cache-dir", "cache"]).expect(1).says("credentials");
}

/// The same of a store in a folder, on a disk that is not there.
#[test]
fn without_its_folder_a_manifest_is_mounted_and_what_is_cached_is_read() {
    let Some(b) = Bucket::new(&["mnt"]) else { return };
    for name in ["one", "two"] {
        b.write(name, &content(name, SMALL_LEN));
    }
    fs::create_dir(b.path("store")).unwrap();
    b.run(&["manifest", "snapshot", "work", "-o", "job", "--cas", "store", "--cache-dir", "hashes"]).expect(0);
    let mount = || b.run(&["mount", "job", "mnt", "--cas", "store", "--cache-dir", "cache"]);
    let read = |name: &str| fs::read(b.path("mnt").join(name));
    mount().expect(0);
    assert!(read("one").unwrap() == content("one", SMALL_LEN));
    b.run(&["umount", "mnt"]).expect(0);
    fs::rename(b.path("store"), b.path("away")).unwrap();
    mount().expect(0).says("there is no such folder").says("it is mounted all the same");
    assert!(read("one").unwrap() == content("one", SMALL_LEN));
    assert_eq!(read("two").unwrap_err().raw_os_error(), Some(libc::EIO));
    fs::rename(b.path("away"), b.path("store")).unwrap();
    eventually("it is well again", || read("two").is_ok_and(|bytes| bytes == content("two", SMALL_LEN)));
    b.run(&["umount", "mnt"]).expect(0);
}

/// A change that needs what cannot be fetched fails and changes nothing; one that needs nothing of it is done. Afterwards everything works.
#[test]
fn a_change_of_what_cannot_be_fetched_fails_and_changes_nothing() {
    let Some(b) = Bucket::new(&["mnt"]) else { return };
    let files = [("small", SMALL_LEN), ("tiny", 100), ("large", LARGE_LEN), ("whole", LARGE_LEN), ("cut", LARGE_LEN)];
    for (name, len) in files {
        b.write(name, &content(name, len));
    }
    b.snapshot("job", "v2025");
    mount(&b, "mnt", "cache", &["--writable"]).expect(0);
    let at = |name: &str| -> PathBuf { b.path("mnt").join(name) };
    let open = |path: &Path| File::options().read(true).write(true).open(path).unwrap();
    b.server.add(HttpFault::Status(500, "InternalError"), "GET", "Queue/Data/", 0, u64::MAX);
    for (name, offset) in [("small", 10), ("tiny", 10), ("large", 4097), ("large", LARGE_LEN as u64 - 5)] {
        let file = open(&at(name));
        let failed = file.write_all_at(b"!", offset).and_then(|()| file.sync_all());
        assert!(failed.as_ref().is_err_and(is_clear), "{name} at {offset}: {failed:?}");
    }
    // A whole block needs nothing of what was there.
    let whole = open(&at("whole"));
    whole.write_all_at(&[7; 4096], 1 << 20).unwrap();
    whole.sync_all().unwrap();
    // What is cut off needs none either; at most the block in which the end lies.
    let cut = fs::metadata(at("cut")).unwrap().len();
    let was_cut = open(&at("cut")).set_len(5000);
    assert!(was_cut.as_ref().map_or_else(is_clear, |()| true), "{was_cut:?}");
    let expected_cut = if was_cut.is_ok() { 5000 } else { cut };
    // Names, and new files, are nobody's content.
    fs::rename(at("large"), at("renamed")).unwrap();
    fs::write(at("new"), "new").unwrap();
    let marked = fs::set_permissions(at("tiny"), PermissionsExt::from_mode(0o755));
    assert!(marked.as_ref().map_or_else(is_clear, |()| true), "{marked:?}");
    for (name, len) in
        [("small", SMALL_LEN as u64), ("tiny", 100), ("renamed", LARGE_LEN as u64), ("cut", expected_cut)]
    {
        assert_eq!(fs::metadata(at(name)).unwrap().len(), len, "{name}");
    }

    b.server.clear();
    let mut whole_now = content("whole", LARGE_LEN);
    whole_now[1 << 20..][..4096].fill(7);
    let check = |renamed: &[u8]| {
        assert!(fs::read(at("small")).unwrap() == content("small", SMALL_LEN));
        assert!(fs::read(at("tiny")).unwrap() == content("tiny", 100));
        assert!(fs::read(at("renamed")).unwrap() == renamed);
        assert!(fs::read(at("whole")).unwrap() == whole_now);
        assert!(fs::read(at("cut")).unwrap() == content("cut", LARGE_LEN)[..expected_cut as usize]);
        assert_eq!(fs::read(at("new")).unwrap(), b"new");
    };
    check(&content("large", LARGE_LEN));
    // The same change is possible now.
    let file = open(&at("renamed"));
    file.write_all_at(b"!", 4097).unwrap();
    file.sync_all().unwrap();
    drop((file, whole));
    let mut changed = content("large", LARGE_LEN);
    changed[4097] = b'!';
    check(&changed);
    b.run(&["umount", "mnt"]).expect(0);
    mount(&b, "mnt", "cache", &["--writable"]).expect(0);
    check(&changed);
    b.run(&["umount", "mnt"]).expect(0);
}
