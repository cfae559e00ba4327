//! `adit manifest commit` that is killed, cut off, or meets a store that fails: started again it finishes, sends nothing twice, and
//! there is never a manifest without its data.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::fs;
use std::ops::Deref;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use adit_testkit::objects::{FaultyS3, HttpFault, RequestLog};
use adit_testkit::{Rng, scaled, seeds};
use common::{Ran, Start, eventually, pattern, run};
use mounts::Points;

/// Files that are changed: more than are stored at a time.
const FILES: usize = 24;
/// One of them is stored in parts.
const LARGE_LEN: usize = (20 << 20) + 5;

/// A writable mount of a manifest in a store that can fail, with some changes.
struct World {
    points: Points,
    server: FaultyS3,
    /// Keys of the objects that a commit needs.
    needed: Vec<String>,
}

impl Deref for World {
    type Target = Points;

    fn deref(&self) -> &Points {
        &self.points
    }
}

fn content(number: usize) -> Vec<u8> {
    let mut content = if number == 0 { pattern(LARGE_LEN) } else { pattern(40_000) };
    content[0] = number as u8;
    content
}

impl World {
    /// `None` where mounts are impossible; under CI that is a failure.
    fn new() -> Option<World> {
        let points = Points::new(&["mnt"])?;
        let server = FaultyS3::start().unwrap();
        fs::create_dir(points.bench.path("work")).unwrap();
        fs::write(points.bench.path("work/a"), "one").unwrap();
        fs::write(points.bench.path("work/gone"), "gone").unwrap();
        let needed = (0..FILES)
            .map(|number| format!("Queue/Data/{:032x}.xxh128", xxhash_rust::xxh3::xxh3_128(&content(number))));
        let world = World { needed: needed.collect(), points, server };
        let made = ["--format", "v2025", "--cas", &world.store(), "--cache-dir", "hashes"];
        world.run(&[&["manifest", "snapshot", "work", "-o", "job"], &made[..]].concat()).expect(0);
        world.mount();
        for number in 0..FILES {
            fs::write(world.at(&format!("f{number}")), content(number)).unwrap();
        }
        fs::remove_file(world.at("gone")).unwrap();
        Some(world)
    }

    fn store(&self) -> String {
        format!("s3://{}/Queue", self.server.bucket())
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.bench.command();
        command.env("AWS_ACCESS_KEY_ID", "access").env("AWS_SECRET_ACCESS_KEY", "secret");
        command.env("AWS_EC2_METADATA_DISABLED", "true").env("AWS_ENDPOINT_URL", self.server.endpoint());
        command.args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        run(self.command(args), b"")
    }

    fn mount(&self) {
        self.run(&["mount", "job", "mnt", "--writable", "--cas", &self.store(), "--cache-dir", "cache"]).expect(0);
    }

    fn at(&self, name: &str) -> PathBuf {
        self.bench.path("mnt").join(name)
    }

    /// A commit that is to be interfered with. The store is given up after a second.
    fn begun(&self) -> std::process::Child {
        let mut command = self.command(&COMMIT);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command.start().unwrap()
    }

    fn commit(&self) -> Ran {
        self.run(&COMMIT)
    }

    fn present(&self) -> Vec<&String> {
        self.needed.iter().filter(|key| self.server.bytes(key).is_some()).collect()
    }

    /// Checks what is there after a commit has ended somehow that began with `before`.
    fn check(&self, before: &[&String], when: &str) {
        if self.server.bytes(MANIFEST).is_some() {
            assert_eq!(self.present().len(), FILES, "{when}: a manifest without its data");
        }
        for request in self.server.log() {
            // Of a process that was killed when the store had just put the parts together, the next one has the upload forgotten, and not the object.
            let forgets = request.method == "DELETE" && request.query.contains("uploadId=");
            let again = before.contains(&&request.key) && request.method != "HEAD" && !forgets;
            assert!(!again, "{when}: {} of what was there: {}", request.method, request.key);
        }
        self.server.clear_log();
    }

    /// Commits until the end, and checks that all is there.
    fn finish(&self, when: &str) {
        let before = self.present();
        self.server.clear_log();
        self.commit().expect(0);
        self.check(&before, when);
        assert_eq!(self.present().len(), FILES, "{when}");
        let text = self.server.bytes(MANIFEST).expect("the manifest");
        let text = String::from_utf8_lossy(&text);
        assert!(text.contains(r#""deleted":true,"path":"gone""#), "{text}");
        self.server.clear_log();
        self.commit().expect(0).says("nothing is written");
        let log = self.server.log();
        assert!(log.iter().all(|request| matches!(&*request.method, "HEAD" | "GET")), "{when}: {log:?}");
    }

    fn no_snapshot_stays(&self) {
        eventually("the snapshot of the commit is gone", || {
            self.run(&["snapshot", "list", "mnt", "--json"]).expect(0).json().as_array().is_some_and(Vec::is_empty)
        });
    }
}

const MANIFEST: &str = "Queue/Manifests/edits/n";
/// In the same place each time, also where it changed in between.
const COMMIT: [&str; 12] = [
    "manifest",
    "commit",
    "mnt",
    "--manifest-prefix",
    "edits",
    "--manifest-name",
    "n",
    "--replace",
    "--request-timeout",
    "1s",
    // Less than a mount may hang before the watchdog ends it.
    "--store-timeout",
    "6s",
];

fn signal(child: &std::process::Child, signal: i32) {
    // SAFETY: a plain system call; the process is one that this test started and has not waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

#[test]
fn a_commit_that_is_killed_goes_on_where_it_was() {
    for seed in seeds(1) {
        let Some(w) = World::new() else { return };
        let mut rng = Rng::new(seed);
        w.server.add(HttpFault::Delay(Duration::from_millis(40)), "PUT", "", 0, u64::MAX);
        for round in 0..scaled(6) {
            let when = format!("ADIT_TEST_SEED={seed}, round {round}");
            let before = w.present();
            w.server.clear_log();
            let mut child = w.begun();
            std::thread::sleep(Duration::from_millis(rng.below(700)));
            let by = [libc::SIGKILL, libc::SIGINT, libc::SIGTERM][round % 3];
            signal(&child, by);
            let status = child.wait().unwrap();
            // It may have been done already.
            assert!(status.success() || status.signal() == Some(by), "{when}: {status}");
            w.check(&before, &when);
        }
        w.server.clear();
        w.finish(&format!("ADIT_TEST_SEED={seed}"));
        w.no_snapshot_stays();
    }
}

/// What a store has of a large object that is not stored to its end takes room there, and shows in no listing.
#[test]
fn a_signal_leaves_no_parts_of_an_object() {
    let Some(w) = World::new() else { return };
    // Many more parts than are on their way at a time.
    let long = pattern(100 << 20);
    fs::write(w.at("long"), &long).unwrap();
    let key = format!("Queue/Data/{:032x}.xxh128", xxhash_rust::xxh3::xxh3_128(&long));
    w.server.add(HttpFault::Delay(Duration::from_millis(600)), "PUT", &key, 0, u64::MAX);
    for by in [libc::SIGINT, libc::SIGTERM] {
        w.server.clear_log();
        let mut child = w.begun();
        let is_part = |request: &RequestLog| request.method == "PUT" && request.key == key;
        eventually("a part is on its way", || w.server.log().iter().any(is_part));
        signal(&child, by);
        assert_eq!(child.wait().unwrap().signal(), Some(by));
        assert_eq!((w.server.bytes(&key), w.server.open_uploads()), (None, 0));
    }
    w.server.clear();
    w.finish("after signals");
    assert!(w.server.bytes(&key).is_some());
}

#[test]
fn a_mount_that_is_killed_under_a_commit_is_committed_after_the_next() {
    let Some(w) = World::new() else { return };
    let mut rng = Rng::new(seeds(1).next().unwrap_or(1));
    let held = scaled(3);
    for round in 0..=held {
        let before = w.present();
        w.server.clear_log();
        if round == held {
            w.server.add(HttpFault::Hold, "PUT", "Data", 0, u64::MAX);
        } else {
            w.server.add(HttpFault::Delay(Duration::from_millis(40)), "PUT", "", 0, u64::MAX);
        }
        // What it has read is in the kernel's memory, and may be all that it needs.
        fs::write(w.at("f1"), content(1)).unwrap();
        let child = w.begun();
        if round == held {
            w.server.wait_for_requests(1);
        } else {
            std::thread::sleep(Duration::from_millis(rng.below(400)));
        }
        w.kill_and_leave();
        w.server.release();
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        if !ended.status.success() {
            let (code, what) = match said.contains("mnt: not a mount") {
                true => (6, "mnt: not a mount"),
                false => (1, "mnt: the process of the mount ended"),
            };
            assert_eq!(ended.status.code(), Some(code), "{said}");
            assert!(said.contains(what), "{said}");
            assert!(said.contains("adit umount"), "{said}");
        }
        w.check(&before, &said);
        assert_eq!(ended.status.success(), w.server.bytes(MANIFEST).is_some(), "{said}");
        w.server.clear();
        w.run(&["umount", "mnt"]);
        w.mount();
        // What the killed one left went before the mount was there.
        let left = w.run(&["snapshot", "list", "mnt", "--json"]).expect(0).json();
        assert_eq!(left.as_array().map(Vec::len), Some(0), "{left}");
        if ended.status.success() {
            break;
        }
    }
    w.server.clear();
    w.finish("mounted again");
}

#[test]
fn without_a_network_a_commit_fails_and_goes_on_when_it_is_back() {
    let Some(w) = World::new() else { return };
    w.server.add(HttpFault::Hold, "PUT", "Data", 4, u64::MAX);
    let child = w.begun();
    w.server.wait_for_requests(2);
    w.server.go_down();
    w.server.release();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(9), "{said}");
    assert!(said.contains("not sent again"), "{said}");
    assert!(w.server.bytes(MANIFEST).is_none());
    // Nothing is known to be there any more, but for who asks.
    w.commit().expect(9);
    w.server.come_back();
    w.server.clear();
    w.finish("back");
    w.no_snapshot_stays();
}

#[test]
fn each_request_may_fail_and_no_manifest_comes_before_its_data() {
    let refused = HttpFault::Status(403, "AccessDenied");
    // That of a look may mean that the object is missing.
    let looks = HttpFault::Status(405, "MethodNotAllowed");
    for (method, fault) in [("HEAD", looks), ("PUT", refused.clone()), ("POST", refused)] {
        let Some(w) = World::new() else { return };
        let mut failed = 0;
        for number in 0..2 * FILES as u64 {
            let before = w.present();
            w.server.clear();
            w.server.clear_log();
            w.server.add(fault.clone(), method, "Data", number, 1);
            let ran = w.commit();
            let when = format!("{method} {number}");
            w.check(&before, &when);
            if ran.code == Some(0) {
                break;
            }
            failed += 1;
            assert!(w.server.bytes(MANIFEST).is_none(), "{when}: {}", ran.stderr);
        }
        assert!(failed > 0, "{method}");
        w.server.clear();
        w.finish(method);
    }
}

/// Whoever asks while the data is on its way hears so.
#[test]
fn what_a_commit_is_at_is_uploading() {
    let Some(w) = World::new() else { return };
    let state = |name: &str| {
        let told = w.run(&["status", "mnt", name, "--json"]).expect(0).json();
        let state = told[0]["state"].as_str().unwrap().to_owned();
        let mut by_attribute = [0; 32];
        let len = rustix::fs::getxattr(w.at(name), c"user.adit.state", &mut by_attribute[..]).unwrap();
        assert_eq!(by_attribute[..len], *state.as_bytes(), "{name}");
        state
    };
    assert_eq!([state("f0"), state("f1"), state("a")], ["modified", "modified", "remote"]);
    w.server.clear_log();
    w.server.add(HttpFault::Hold, "PUT", "Data/", 0, u64::MAX);
    let mut commit = w.command(&["manifest", "commit", "mnt", "--manifest-prefix", "edits", "--manifest-name", "n"]);
    let commit = commit.stdout(Stdio::null()).stderr(Stdio::piped()).start().unwrap();
    w.server.wait_for_request("PUT", "Data/");
    assert_eq!([state("f0"), state("f1"), state("a")], ["uploading", "uploading", "remote"]);
    // What is changed meanwhile is for the next one.
    fs::write(w.at("f2"), "changed again").unwrap();
    assert_eq!(state("f2"), "modified");
    w.server.release();
    let ended = commit.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!([state("f0"), state("f1"), state("f2")], ["uploaded", "uploaded", "modified"]);
}

/// Of two commits at once, the one that began first ends last, and knows less: what the other one brought stays told.
#[test]
fn what_overlapping_commits_brought_is_told_as_uploaded() {
    let Some(w) = World::new() else { return };
    let commit =
        |name: &'static str| ["manifest", "commit", "mnt", "--manifest-prefix", "edits", "--manifest-name", name];
    w.server.add(HttpFault::Hold, "PUT", "Data", 0, 1);
    let mut first = w.command(&commit("first"));
    first.stdout(Stdio::null()).stderr(Stdio::piped());
    let first = first.start().unwrap();
    w.server.wait_for_requests(1);
    fs::write(w.at("late"), "late").unwrap();
    fs::write(w.at("f2"), "changed again").unwrap();
    w.run(&commit("second")).expect(0);
    w.server.release();
    let ended = first.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let state = |name: &str| {
        let told = w.run(&["status", "mnt", name, "--json"]).expect(0).json();
        told[0]["state"].as_str().unwrap().to_owned()
    };
    for name in ["f1", "f2", "f3", "late"] {
        assert_eq!(state(name), "uploaded", "{name}");
    }
}

#[test]
fn a_manifest_that_is_refused_is_not_there_and_one_whose_answer_is_lost_is() {
    let Some(w) = World::new() else { return };
    w.finish("first");
    fs::write(w.at("f1"), "other").unwrap();
    let was = w.server.bytes(MANIFEST);
    w.server.add(HttpFault::Status(403, "AccessDenied"), "PUT", MANIFEST, 0, 1);
    w.commit().expect(1).says(MANIFEST);
    assert!(w.server.bytes(MANIFEST) == was);
    w.server.add(HttpFault::DoneAndClose, "PUT", MANIFEST, 0, 1);
    w.commit().expect(0);
    assert!(w.server.bytes(MANIFEST) != was);
    // Where nothing may be replaced, it is known as its own, too.
    w.server.add(HttpFault::DoneAndClose, "PUT", "Manifests/", 0, 1);
    w.run(&["manifest", "commit", "mnt", "--manifest-prefix", "other", "--manifest-name", "n"]).expect(0);
    assert!(w.server.bytes("Queue/Manifests/other/n") == w.server.bytes(MANIFEST));
}
