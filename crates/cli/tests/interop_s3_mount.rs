//! Manifests and their content in S3: brought there, mounted from there.
//!
//! `cargo xtask test --only interop` runs it on versitygw.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;

use adit_servers::S3Server;
use common::{Ran, left_out, pattern, run};
use mounts::Points;

/// The Python with the official packages, and so with a client of S3.
const ENV_PYTHON: &str = "ADIT_DEADLINE_PYTHON";
const STORE: &str = "s3://attachments/Queue";

struct World {
    points: Points,
    server: S3Server,
}

impl World {
    fn new() -> Option<World> {
        let points = Points::new(&["mnt"])?;
        let server = S3Server::of_environment(&points.bench.path("server"))?;
        server.create_bucket("attachments").unwrap();
        let work = points.bench.path("work");
        fs::create_dir_all(work.join("sub")).unwrap();
        fs::write(work.join("a"), "one").unwrap();
        fs::write(work.join("sub/large"), pattern(20 << 20)).unwrap();
        Some(World { points, server })
    }

    fn command(&self) -> Command {
        let mut command = self.points.bench.command();
        command.envs(self.server.variables());
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.command();
        command.args(args);
        run(command, b"")
    }

    fn snapshot(&self) {
        let args = ["--format", "v2025", "--cas", STORE, "--cache-dir", "hashes"];
        self.run(&[&["manifest", "snapshot", "work", "-o", "job"], &args[..]].concat()).expect(0);
    }

    /// Puts a file of the bench into the bucket.
    fn put(&self, file: &str, key: &str) -> bool {
        let Some(python) = std::env::var_os(ENV_PYTHON) else {
            left_out(&format!("{ENV_PYTHON} is not set"));
            return false;
        };
        let mut command = Command::new(python);
        command.envs(self.server.variables()).env("HOME", self.points.bench.dir.path());
        let script = "import boto3, sys; boto3.client('s3').upload_file(sys.argv[1], 'attachments', sys.argv[2])";
        command.args(["-c", script, &self.points.bench.str(file), key]);
        run(command, b"").expect(0);
        true
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.points.bench.path("mnt").join(name)
    }
}

#[test]
fn content_comes_from_s3_and_what_was_sent_is_not_sent_again() {
    let Some(w) = World::new() else { return };
    w.snapshot();
    let place = ["--root", "work", "--cas", STORE];
    let again = w.run(&[&["manifest", "upload", "job"], &place[..], &["--json"]].concat()).expect(0).json();
    assert_eq!((&again["stored"], &again["present"]), (&0.into(), &2.into()));
    w.run(&["mount", "job", "mnt", "--cas", STORE, "--cache-dir", "cache"]).expect(0);
    assert_eq!(fs::read(w.at("a")).unwrap(), b"one");
    assert!(fs::read(w.at("sub/large")).unwrap() == pattern(20 << 20));
    w.run(&["umount", "mnt"]).expect(0);
    assert_eq!(w.run(&["cat", "job", "/a", "--cas", STORE, "--cache-dir", "other"]).expect(0).text(), "one");
    // What cannot work is refused when it is mounted.
    w.run(&["mount", "job", "mnt", "--cas", "s3://no-such-bucket/Queue"]).expect(1).says("no-such-bucket");
    let nobody = ["--endpoint-url", "http://127.0.0.1:9", "--request-timeout", "1s"];
    w.run(&[&["mount", "job", "mnt", "--cas", STORE], &nobody[..]].concat()).expect(9).says("Connection refused");
}

#[test]
fn a_manifest_in_the_store_itself_is_mounted_by_its_url() {
    let Some(w) = World::new() else { return };
    w.snapshot();
    if !w.put("job", "Queue/Manifests/farm/queue/job") {
        return;
    }
    let url = format!("{STORE}/Manifests/farm/queue/job");
    let cache = ["--cache-dir", "cache"];
    w.run(&[&["mount", url.as_str(), "mnt"], &cache[..]].concat()).expect(0);
    assert_eq!(fs::read(w.at("a")).unwrap(), b"one");
    w.run(&["umount", "mnt"]).expect(0);
    // With a volume on top, which the file on this machine finds as well: it is the same manifest.
    w.run(&[&["mount", url.as_str(), "mnt", "--writable"], &cache[..]].concat()).expect(0);
    fs::write(w.at("a"), "two").unwrap();
    w.run(&["umount", "mnt"]).expect(0);
    w.run(&[&["mount", "job", "mnt", "--writable", "--cas", STORE], &cache[..]].concat()).expect(0);
    assert_eq!(fs::read(w.at("a")).unwrap(), b"two");
    w.run(&["umount", "mnt"]).expect(0);
    w.run(&[&["ls", url.as_str(), "/sub"], &cache[..]].concat()).expect(0).says("");
    w.run(&[&["mount", "s3://attachments/Queue/Manifests/none", "mnt"], &cache[..]].concat()).expect(1).says("none");
    w.run(&["mount", "s3://attachments", "mnt"]).expect(2).says("Manifests");
}

#[test]
fn a_server_that_is_killed_and_restarted_under_readers_gives_no_wrong_byte() {
    let Some(mut w) = World::new() else { return };
    // What another server holds in memory is gone with it.
    if w.server.kind() != adit_servers::Kind::Versitygw {
        return;
    }
    w.snapshot();
    let place = ["--cas", STORE, "--cache-dir", "cache", "--request-timeout", "1s", "--connect-timeout", "1s"];
    let mut mount = w.command();
    mount.env("AWS_MAX_ATTEMPTS", "2").args(["mount", "job", "mnt"]).args(place);
    run(mount, b"").expect(0);
    let (large, right) = (fs::File::open(w.at("sub/large")).unwrap(), pattern(20 << 20));
    let mut failed = 0;
    // Each part is read while the server goes down, while it is down, or when it is back.
    for (round, at) in (0..20_usize).map(|n| (n, (n * 7 % 20) << 20)).collect::<Vec<_>>() {
        match round % 5 {
            2 => w.server.kill(),
            4 => w.server.restart().unwrap(),
            _ => {}
        }
        let mut part = vec![0; 1 << 20];
        match large.read_exact_at(&mut part, at as u64) {
            Ok(()) => assert!(part == right[at..][..part.len()]),
            Err(e) => {
                assert!(matches!(e.raw_os_error(), Some(libc::EIO | libc::ETIMEDOUT)), "{e}");
                failed += 1;
            }
        }
    }
    assert!(failed > 0, "nobody noticed");
    drop(large);
    assert!(fs::read(w.at("sub/large")).unwrap() == right);
    w.run(&["umount", "mnt"]).expect(0);
}
