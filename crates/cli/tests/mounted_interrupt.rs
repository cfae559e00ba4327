//! Commands that are told to end while the network stands still: they do, long before the time-outs.

mod common;
#[path = "common/mounts.rs"]
mod mounts;
#[path = "common/s3.rs"]
mod s3;

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use adit_testkit::objects::HttpFault;
use common::{Killed, Start, eventually, pattern};
use s3::{Bucket, STORE};

/// No answer is waited for this long, and no test as long as that.
const REQUEST_TIMEOUT: &str = "600s";
/// Long enough for a loaded machine, and far below the time-out.
const HANGS_AFTER: Duration = Duration::from_secs(60);
/// More than one part.
const LARGE_LEN: usize = (17 << 20) + 5;

/// Starts a command on `b`, waits until a request with `method` on a key with `key` is on its way, and sends it `signal`. It has to die of that.
fn interrupt(b: &Bucket, args: &[&str], (method, key): (&str, &str), signal: i32) {
    let mut command: Command = b.command_of(env!("CARGO_BIN_EXE_adit"));
    command.args(args).args(["--request-timeout", REQUEST_TIMEOUT]).stdout(Stdio::null()).stderr(Stdio::piped());
    b.server.clear_log();
    let mut child = Killed(command.start().unwrap());
    let mut stderr = child.0.stderr.take().unwrap();
    // Read all the time, so that nothing that is said holds it up.
    let said = std::thread::spawn(move || {
        let mut said = String::new();
        stderr.read_to_string(&mut said).map(|_| said)
    });
    b.server.wait_for_request(method, key);
    // SAFETY: a signal to our own child, which nobody has waited for yet.
    assert_eq!(unsafe { libc::kill(child.0.id() as i32, signal) }, 0);
    let deadline = Instant::now() + HANGS_AFTER * adit_testkit::scaled(1) as u32;
    let status = loop {
        if let Some(status) = child.0.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "it waits for the network: {args:?}");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.signal(), Some(signal), "{args:?}");
    let said = said.join().unwrap().unwrap();
    assert_eq!(said.matches("adit: interrupted: ").count(), 1, "{args:?}: {said}");
}

#[test]
fn an_upload_ends_and_gives_its_parts_up() {
    let Some(b) = Bucket::new(&[]) else { return };
    b.write("small", b"small");
    b.run(&["manifest", "snapshot", "work", "-o", "job", "--cache-dir", "hashes"]).expect(0);
    let upload = ["manifest", "upload", "job", "--root", "work", "--cas", STORE];
    b.server.add(HttpFault::Stall, "PUT", "Data/", 0, u64::MAX);
    interrupt(&b, &upload, ("PUT", "Data/"), libc::SIGINT);
    b.server.wait_until_left();
    b.server.clear();
    b.server.add(HttpFault::Stall, "HEAD", "Data/", 0, u64::MAX);
    interrupt(&b, &upload, ("HEAD", "Data/"), libc::SIGTERM);
    // Of what goes in parts, the store is told to forget them.
    fs::remove_file(b.path("work/small")).unwrap();
    b.write("large", &pattern(LARGE_LEN));
    let snapshot = ["manifest", "snapshot", "work", "-o", "job", "--cas", STORE, "--cache-dir", "hashes"];
    b.server.clear();
    b.server.add(HttpFault::Stall, "PUT", "Data/", 1, u64::MAX);
    interrupt(&b, &snapshot, ("PUT", "Data/"), libc::SIGINT);
    assert_eq!(b.server.open_uploads(), 0, "{:?}", b.server.log());
    // And all of it comes, when it does.
    b.server.clear();
    b.run(&snapshot).expect(0);
}

#[test]
fn a_download_and_a_verification_end() {
    let Some(b) = Bucket::new(&[]) else { return };
    b.write("small", &pattern(3000));
    b.write("large", &pattern(LARGE_LEN));
    b.snapshot("job", "v2025");
    for signal in [libc::SIGINT, libc::SIGTERM] {
        b.server.add(HttpFault::Stall, "GET", "Data/", 1, u64::MAX);
        interrupt(&b, &["manifest", "verify", "job", "--cas", STORE], ("GET", "Data/"), signal);
        b.server.wait_until_left();
        let download = ["manifest", "download", "job", "dest", "--cas", STORE, "--cache-dir", "cache"];
        interrupt(&b, &download, ("GET", "Data/"), signal);
        b.server.wait_until_left();
        b.server.clear();
        b.run(&download).expect(0);
        assert!(fs::read(b.path("dest/large")).unwrap() == pattern(LARGE_LEN));
        fs::remove_dir_all(b.path("dest")).unwrap();
    }
}

#[test]
fn a_commit_ends_and_the_next_one_does_it_all() {
    let Some(b) = Bucket::new(&["mnt"]) else { return };
    b.write("small", &pattern(3000));
    b.snapshot("job", "v2025");
    b.run(&["mount", "job", "mnt", "--cas", STORE, "--cache-dir", "cache", "--writable"]).expect(0);
    fs::write(b.path("mnt/new"), pattern(LARGE_LEN)).unwrap();
    b.server.add(HttpFault::Stall, "PUT", "Data/", 1, u64::MAX);
    interrupt(&b, &["manifest", "commit", "mnt"], ("PUT", "Data/"), libc::SIGINT);
    assert_eq!(b.server.open_uploads(), 0, "{:?}", b.server.log());
    b.server.clear();
    // When all of the data is there, the manifest is what is waited for.
    b.server.add(HttpFault::Stall, "PUT", "Manifests/", 0, u64::MAX);
    interrupt(&b, &["manifest", "commit", "mnt"], ("PUT", "Manifests/"), libc::SIGTERM);
    b.server.clear();
    b.run(&["manifest", "commit", "mnt"]).expect(0);
    b.run(&["umount", "mnt"]).expect(0);
}

/// The process is killed at any part: the next run sends what is not there yet, and a run that has no use for what was left has the store forget it.
#[test]
fn an_upload_that_is_killed_goes_on_and_leaves_nothing() {
    let Some(b) = Bucket::new(&[]) else { return };
    b.write("large", &pattern(LARGE_LEN));
    b.run(&["manifest", "snapshot", "work", "-o", "job", "--cache-dir", "hashes"]).expect(0);
    let upload = ["manifest", "upload", "job", "--root", "work", "--cas", STORE];
    // Parts of 8 MiB: three.
    for sent in [1, 2] {
        b.server.add(HttpFault::Stall, "PUT", "Data/", sent, u64::MAX);
        kill(&b, &upload, sent);
        b.server.clear();
        assert_eq!(b.server.open_uploads(), 1);
        b.server.clear_log();
        b.run(&upload).expect(0).says("1 object stored");
        assert_eq!(b.server.open_uploads(), 0);
        let puts = b.server.log().iter().filter(|request| request.method == "PUT").count();
        assert_eq!(puts as u64, 3 - sent);
        let key = format!("Queue/Data/{:032x}.xxh128", xxhash_rust::xxh3::xxh3_128(&pattern(LARGE_LEN)));
        assert!(b.server.bytes(&key).as_deref() == Some(&pattern(LARGE_LEN)[..]));
        assert!(b.server.remove(&key));
    }
    b.server.add(HttpFault::Stall, "PUT", "Data/", 1, u64::MAX);
    kill(&b, &upload, 1);
    b.server.clear();
    fs::remove_file(b.path("work/large")).unwrap();
    b.write("small", b"small");
    b.run(&["manifest", "snapshot", "work", "-o", "other", "--cache-dir", "hashes"]).expect(0);
    b.run(&["manifest", "upload", "other", "--root", "work", "--cas", STORE]).expect(0);
    assert_eq!(b.server.open_uploads(), 0);
}

/// Kills a command when so many parts are noted.
fn kill(b: &Bucket, args: &[&str], parts: u64) {
    let mut command: Command = b.command_of(env!("CARGO_BIN_EXE_adit"));
    command.args(args).args(["--request-timeout", REQUEST_TIMEOUT]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = Killed(command.start().unwrap());
    let noted = || {
        let notes = fs::read_dir(b.path(".cache/adit/uploads")).into_iter().flatten().flatten();
        let lines = |path: std::path::PathBuf| fs::read_to_string(path).map_or(0, |text| text.lines().count());
        // Four lines are about the upload.
        notes.map(|note| lines(note.path()).saturating_sub(4)).sum::<usize>() as u64
    };
    eventually("the parts are noted", || noted() == parts);
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    // Others were on their way: they count for the one that was killed.
    b.server.wait_until_left();
}
