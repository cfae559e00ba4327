//! A manifest whose content lies on a server on WebDAV: mounted, changed, sent back, and brought to somebody else.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::fs;

use adit_testkit::objects::{FaultyWebDav, HttpFault, WebDavHabits};
use common::{Ran, pattern, run};
use mounts::Points;

/// Longer than what is sent at once, and than a block, in bytes.
const LARGE_LEN: usize = (9 << 20) + 5;
/// `Basic` of `me:secret`.
const WHO: &str = "Basic bWU6c2VjcmV0";

/// Mountpoints, and a server that wants to know who asks.
struct World {
    points: Points,
    server: FaultyWebDav,
}

impl World {
    /// `None` where mounts are impossible; under CI that is a failure.
    fn new(points: &[&str]) -> Option<World> {
        let world = World { points: Points::new(points)?, server: FaultyWebDav::start().unwrap() };
        world.server.set_habits(WebDavHabits { authorization: Some(WHO), ..WebDavHabits::default() });
        fs::create_dir(world.points.bench.path("work")).unwrap();
        fs::write(world.points.bench.path("work/small"), "one").unwrap();
        fs::write(world.points.bench.path("work/large"), pattern(LARGE_LEN)).unwrap();
        fs::write(world.points.bench.path("password"), "secret\n").unwrap();
        Some(world)
    }

    /// With the user in the variables, as a worker has it.
    fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.points.bench.command();
        command.env("ADIT_WEBDAV_USER", "me").env("ADIT_WEBDAV_PASSWORD", "secret").args(args);
        run(command, b"")
    }

    /// Without.
    fn run_as_nobody(&self, args: &[&str]) -> Ran {
        run(
            {
                let mut command = self.points.bench.command();
                command.args(args);
                command
            },
            b"",
        )
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.points.bench.path(name)).unwrap()
    }
}

#[test]
fn a_manifest_on_webdav_is_mounted_changed_and_sent_back() {
    let Some(w) = World::new(&["mnt", "again"]) else { return };
    let cas = w.server.url();
    w.run(&["manifest", "snapshot", "work", "-o", "job", "--format", "v2025", "--cache-dir", "hashes"]).expect(0);
    w.run(&["manifest", "upload", "job", "--root", "work", "--cas", &cas, "--manifest-prefix", "jobs"]).expect(0);
    let stored = w.server.files().into_iter().find_map(|path| Some(path.strip_prefix("root/Manifests/")?.to_owned()));
    let url = format!("{cas}/Manifests/{}", stored.expect("the manifest is stored, too"));

    // At its URL, with the user as options of the mount: those of a manifest reach the process that makes its index, too.
    w.run_as_nobody(&["mount", &url, "mnt", "--cache-dir", "cache"]).expect(1).says("401");
    let who = format!("writable,webdav_user=me,webdav_password_file={}", w.points.bench.str("password"));
    w.run_as_nobody(&["mount", &url, "mnt", "--cache-dir", "cache", "-o", &who]).expect(0);
    assert_eq!(w.read("mnt/small"), b"one");
    assert_eq!(w.read("mnt/large"), pattern(LARGE_LEN));

    fs::write(w.points.bench.path("mnt/new"), pattern(70_000)).unwrap();
    fs::remove_file(w.points.bench.path("mnt/small")).unwrap();
    let commit = ["manifest", "commit", "mnt", "-o", "changes", "--manifest-prefix", "edits", "--manifest-name", "n"];
    // The mount tells how its store is reached.
    w.run_as_nobody(&commit).expect(0);
    assert!(w.server.bytes("root/Manifests/edits/n").is_some(), "{:?}", w.server.files());
    w.run(&["umount", "mnt"]).expect(0);

    w.run(&["manifest", "download", "job", "changes", "copy", "--cas", &cas, "--cache-dir", "hashes"]).expect(0);
    assert_eq!((w.read("copy/new"), w.read("copy/large")), (pattern(70_000), pattern(LARGE_LEN)));
    assert!(!w.points.bench.path("copy/small").exists());
    w.run(&["manifest", "verify", "changes", "--cas", &cas, "--cache-dir", "hashes"]).expect(0);
    assert!(w.server.files().iter().all(|path| !path.contains(".adit-")), "{:?}", w.server.files());

    w.run(&["mount", "job", "again", "--cas", &cas, "--cache-dir", "another"]).expect(0);
    assert_eq!(w.read("again/large"), pattern(LARGE_LEN));
}

#[test]
fn a_server_that_fails_for_a_while_is_waited_for() {
    let Some(w) = World::new(&["mnt"]) else { return };
    let cas = w.server.url();
    w.run(&["manifest", "snapshot", "work", "-o", "job", "--cas", &cas, "--cache-dir", "hashes"]).expect(0);
    w.run(&["mount", "job", "mnt", "--cas", &cas, "--cache-dir", "cache"]).expect(0);
    w.server.add(HttpFault::BreakBody(1000), "GET", "Data/", 0, 2);
    w.server.add(HttpFault::Status(503, ""), "GET", "Data/", 0, 2);
    assert_eq!(w.read("mnt/large"), pattern(LARGE_LEN));
    assert_eq!(w.read("mnt/small"), b"one");
}

/// A server that refuses from now on: its answer is in the log and in `status`.
#[test]
fn what_a_server_on_webdav_refuses_is_told() {
    let Some(w) = World::new(&["mnt"]) else { return };
    let cas = w.server.url();
    w.run(&["manifest", "snapshot", "work", "-o", "job", "--cas", &cas, "--cache-dir", "hashes"]).expect(0);
    w.run(&["mount", "job", "mnt", "--cas", &cas, "--cache-dir", "cache", "--log-file", "log"]).expect(0);
    assert_eq!(w.read("mnt/small"), b"one");
    w.server.set_habits(WebDavHabits { authorization: Some("Basic bm9ib2R5"), ..WebDavHabits::default() });
    let refused = || fs::read(w.points.bench.path("mnt/large")).unwrap_err().raw_os_error();
    assert_eq!((refused(), refused()), (Some(libc::EACCES), Some(libc::EACCES)));
    let told = w.run(&["status", "mnt", "--json"]).expect(0).json();
    let errors = told["errors"].as_array().unwrap();
    let is_it = |met: &serde_json::Value| met["error"].as_str().is_some_and(|text| text.contains("answers 401"));
    assert!(errors.iter().any(|met| is_it(met) && met["count"].as_u64() >= Some(2)), "{told}");
    assert!(fs::read_to_string(w.points.bench.path("log")).unwrap().contains("answers 401"));
    w.run(&["umount", "mnt"]).expect(0);
}
