//! A commit of a task's output in S3 is what the official packages look for and download; what is ended leaves nothing in a bucket.
//!
//! `cargo xtask test --only interop` runs it on versitygw.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use adit_servers::{Kind, S3Server};
use common::{Ran, Start, eventually, left_out, pattern, run};
use mounts::Points;
use serde_json::{Value, json};

/// The Python with the official packages.
const ENV_PYTHON: &str = "ADIT_DEADLINE_PYTHON";
const STORE: &str = "s3://attachments/DeadlineCloud";
const TASK: &str = "farm-1/queue-1/job-1/step-1/task-1";

struct World {
    points: Points,
    server: S3Server,
}

impl World {
    fn new() -> Option<World> {
        let points = Points::new(&["mnt"])?;
        let server = S3Server::of_environment(&points.bench.path("server"))?;
        server.create_bucket("attachments").unwrap();
        fs::create_dir_all(points.bench.path("work/sub")).unwrap();
        fs::write(points.bench.path("work/scene"), "scene").unwrap();
        fs::write(points.bench.path("work/sub/gone"), "gone").unwrap();
        Some(World { points, server })
    }

    fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.points.bench.command();
        command.envs(self.server.variables()).args(args);
        run(command, b"")
    }

    /// What the official packages answer to a request.
    fn official(&self, request: Value) -> Option<Value> {
        let Some(python) = std::env::var_os(ENV_PYTHON) else {
            left_out(&format!("{ENV_PYTHON} is not set"));
            return None;
        };
        let mut command = Command::new(python);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifest/tests/oracle/official.py")).arg("serve");
        command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path))).envs(self.server.variables());
        command.env("HOME", self.points.bench.dir.path()).env("LC_ALL", "C.UTF-8");
        command.env("DEADLINE_CLOUD_TELEMETRY_OPT_OUT", "true").current_dir(self.points.bench.dir.path());
        let answer = run(command, format!("{request}\n").as_bytes()).expect(0).json();
        assert_eq!(answer["ok"], true, "{request}: {answer}");
        Some(answer["value"].clone())
    }
}

/// The parts of objects that a commit or an upload was sending when it was ended.
#[test]
fn a_signal_leaves_no_parts_in_the_bucket() {
    let Some(w) = World::new() else { return };
    if w.server.kind() != Kind::Versitygw {
        return;
    }
    for n in 0..4 {
        let mut content = pattern(96 << 20);
        content[0] = n;
        fs::write(w.points.bench.path(&format!("work/f{n}")), content).unwrap();
    }
    w.run(&["manifest", "snapshot", "work", "-o", "job", "--cache-dir", "cache"]).expect(0);
    // Where versitygw keeps them.
    let parts = || -> Vec<PathBuf> {
        let (mut found, mut todo) = (Vec::new(), vec![w.server.data().join("attachments/.sgwtmp/multipart")]);
        while let Some(dir) = todo.pop() {
            for path in fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
                if path.is_dir() { todo.push(path) } else { found.push(path) }
            }
        }
        found
    };
    for by in [libc::SIGINT, libc::SIGTERM] {
        let mut command = w.points.bench.command();
        command.envs(w.server.variables()).args(["manifest", "upload", "job", "--root", "work", "--cas", STORE]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).start().unwrap();
        eventually("parts are there", || !parts().is_empty());
        // SAFETY: a plain system call; the process is one that this test started and has not waited for.
        assert_eq!(unsafe { libc::kill(child.id() as i32, by) }, 0);
        assert_eq!(child.wait().unwrap().signal(), Some(by));
        eventually("no part is left", || parts().is_empty());
    }
    w.run(&["manifest", "upload", "job", "--root", "work", "--cas", STORE]).expect(0);
    assert_eq!(parts(), [] as [PathBuf; 0]);
    w.run(&["manifest", "verify", "job", "--cas", STORE]).expect(0);
}

#[test]
fn the_official_download_finds_what_was_committed_as_the_output_of_a_task() {
    let Some(w) = World::new() else { return };
    let place = ["--cas", STORE, "--cache-dir", "cache"];
    w.run(&[&["manifest", "snapshot", "work", "-o", "job"], &place[..]].concat()).expect(0);
    w.run(&[&["mount", "job", "mnt", "--writable"], &place[..]].concat()).expect(0);
    let at = |name: &str| w.points.bench.path("mnt").join(name);
    fs::create_dir_all(at("renders/日本")).unwrap();
    let commit = |action: &str| {
        let to = ["--task-output", TASK, "--session-action", action, "--asset-root", "/projects/ü", "--json"];
        w.run(&[&["manifest", "commit", "mnt"], &to[..]].concat()).expect(0).json()
    };
    // A first try of the task, and a second one: the last is what counts.
    fs::write(at("renders/日本/0001.exr"), "first").unwrap();
    commit("sessionaction-1-0");
    fs::write(at("renders/日本/0001.exr"), pattern(20 << 20)).unwrap();
    fs::write(at("scene"), "scene, edited").unwrap();
    fs::remove_file(at("sub/gone")).unwrap();
    let told = commit("sessionaction-1-1");
    assert_eq!((&told["kind"], &told["lost"]["deletions"]), (&"output".into(), &1.into()), "{told}");
    assert_eq!(told["uploaded"]["stored"], 2);
    assert_eq!(commit("sessionaction-1-1")["manifests"][0]["written"], false);
    let to = w.points.bench.path("downloaded");
    let request = json!({
        "cmd": "download_outputs",
        "bucket": "attachments",
        "root": "DeadlineCloud",
        "farm": "farm-1",
        "queue": "queue-1",
        "job": "job-1",
        "to": {"/projects/ü": to},
    });
    if let Some(paths) = w.official(request) {
        // They come as the bytes of UTF-8, in hexadecimal digits.
        let hex = |path: &str| -> String { path.bytes().map(|byte| format!("{byte:02x}")).collect() };
        assert_eq!(paths, json!([hex("renders/日本/0001.exr"), hex("scene")]));
        assert!(fs::read(to.join("renders/日本/0001.exr")).unwrap() == pattern(20 << 20));
        assert_eq!(fs::read_to_string(to.join("scene")).unwrap(), "scene, edited");
    }
    w.run(&["umount", "mnt"]).expect(0);
}
