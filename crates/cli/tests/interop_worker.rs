//! A session of a worker of AWS Deadline Cloud, driven by the official library: it mounts a job's inputs with the installed folder, finds
//! what a task wrote, uploads it, mounts the next step on top, and ends all of it.
//!
//! `cargo xtask test --only interop` runs it on versitygw.

mod common;
#[path = "common/mounts.rs"]
mod mounts;
#[path = "../../manifest/tests/support/official.rs"]
mod official;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use adit_servers::S3Server;
use common::{is_root, pattern};
use mounts::{Points, force_off, mount_line};
use official::{Official, Queue, Task};

const QUEUE: Queue<'static> = Queue { bucket: "attachments", root: "DeadlineCloud", farm: "farm-1", queue: "queue-1" };
/// Some blocks of the cache.
const LARGE_LEN: usize = (9 << 20) + 11;

/// Takes away what a failed test left mounted.
struct Unmounted(PathBuf);

impl Drop for Unmounted {
    fn drop(&mut self) {
        let roots = fs::read_dir(&self.0).into_iter().flatten().flatten();
        roots.map(|entry| entry.path()).for_each(|path| force_off(&path));
    }
}

/// A worker's agent hands out credentials by a process that a profile names; nothing else of its environment reaches the mount.
fn profile(dir: &Path, server: &S3Server) -> BTreeMap<&'static str, String> {
    let hand_out = dir.join("hand-out");
    let credentials = format!(
        r#"{{"Version": 1, "AccessKeyId": "{}", "SecretAccessKey": "{}"}}"#,
        adit_servers::ACCESS_KEY,
        adit_servers::SECRET_KEY
    );
    fs::write(&hand_out, format!("#!/bin/sh\necho '{credentials}'\n")).unwrap();
    fs::set_permissions(&hand_out, PermissionsExt::from_mode(0o755)).unwrap();
    let config = dir.join("config");
    fs::write(&config, format!("[profile queue]\ncredential_process = {}\n", hand_out.display())).unwrap();
    BTreeMap::from([
        ("AWS_PROFILE", "queue".to_owned()),
        ("AWS_CONFIG_FILE", config.display().to_string()),
        ("AWS_ENDPOINT_URL", server.endpoint()),
        ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        ("NO_PROXY", "127.0.0.1".to_owned()),
    ])
}

#[test]
fn a_session_of_the_official_library_mounts_uploads_and_ends() {
    if !is_root("the official library mounts as another user") {
        return;
    }
    let Some(points) = Points::new(&[]) else { return };
    let bench = &points.bench;
    let Some(server) = S3Server::of_environment(&bench.path("server")) else { return };
    server.create_bucket(QUEUE.bucket).unwrap();
    bench.run(["worker", "install", "vfs"]).expect(0);
    let vfs = bench.path("vfs");
    let Some(mut official) = Official::start_with(bench.dir.path(), Some(&server), &[("DEADLINE_VFS_PATH", &vfs)])
    else {
        return;
    };
    let inputs = bench.path("project");
    for (name, content) in [
        ("scene/large.bin", pattern(LARGE_LEN)),
        ("scene/日本 ü.txt", b"names in every script".to_vec()),
        ("out/kept.exr", b"rendered before".to_vec()),
        ("out/again.exr", b"to be rendered again".to_vec()),
    ] {
        fs::create_dir_all(inputs.join(name).parent().unwrap()).unwrap();
        fs::write(inputs.join(name), content).unwrap();
    }
    let attachments = official.submit_inputs(QUEUE, &inputs);
    let session = bench.path("session-1");
    let unmounted = Unmounted(session.clone());
    let variables = profile(bench.dir.path(), &server);

    // The first step.
    let roots = official.session_inputs(QUEUE, ("job-1", &attachments), &session, &variables, &[]);
    let log = || fs::read_to_string(session.join(".vfs_logs/vfs_log.txt")).unwrap_or_default();
    let roots = roots.unwrap_or_else(|refused| panic!("{refused:?}: {}", log()));
    let [(_, root)] = &roots.iter().collect::<Vec<_>>()[..] else { panic!("{roots:?}") };
    assert!(mount_line(root).is_some(), "{root:?} is not mounted");
    assert!(fs::read(root.join("scene/large.bin")).unwrap() == pattern(LARGE_LEN));
    assert_eq!(fs::read(root.join("scene/日本 ü.txt")).unwrap(), b"names in every script");
    // As programs render: beside, and renamed; in place; and into new folders.
    fs::create_dir(root.join("out/deep")).unwrap();
    fs::write(root.join("out/deep/.tmp"), pattern(300_000)).unwrap();
    fs::rename(root.join("out/deep/.tmp"), root.join("out/deep/new.exr")).unwrap();
    fs::File::options().append(true).open(root.join("out/again.exr")).unwrap().write_all(b", and was").unwrap();
    fs::write(root.join("scratch"), "no output").unwrap();
    let task = Task { job: "job-1", step: "step-1", task: "task-1", action: "sessionaction-1-0" };
    official.session_outputs(QUEUE, task, &attachments, &session);

    // It found exactly what was written below `out`, and every byte of it is in the store.
    let found = official.outputs(QUEUE, "job-1", Some("step-1"), None);
    let manifests: Vec<&String> = found.values().flatten().collect();
    let [text] = manifests[..] else { panic!("{found:?}") };
    let manifest: serde_json::Value = serde_json::from_str(text).unwrap();
    let paths: Vec<&str> =
        manifest["paths"].as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["out/again.exr", "out/deep/new.exr"]);
    let to = bench.path("downloaded");
    let asset_root = found.keys().next().unwrap().clone();
    official.download_outputs(QUEUE, "job-1", &[(&asset_root, &to)]).unwrap();
    assert_eq!(fs::read(to.join("out/again.exr")).unwrap(), b"to be rendered again, and was");
    assert!(fs::read(to.join("out/deep/new.exr")).unwrap() == pattern(300_000));

    // A step that depends on it, in the same session: the mount is ended and made again with more in its manifest.
    official.session_inputs(QUEUE, ("job-1", &attachments), &session, &variables, &["step-1"]).unwrap();
    assert!(mount_line(root).is_some());
    assert_eq!(fs::read(root.join("out/again.exr")).unwrap(), b"to be rendered again, and was");
    assert!(fs::read(root.join("out/deep/new.exr")).unwrap() == pattern(300_000));
    fs::write(root.join("out/last"), "x").unwrap();
    let task = Task { step: "step-2", task: "task-2", action: "sessionaction-2-0", ..task };
    official.session_outputs(QUEUE, task, &attachments, &session);
    let found = official.outputs(QUEUE, "job-1", Some("step-2"), None);
    assert!(found.values().flatten().all(|text| text.contains("out/last") && !text.contains("again")), "{found:?}");

    official.session_end(&session).unwrap();
    assert!(mount_line(root).is_none());
    assert!(log().contains("is mounted on"), "{}", log());
    // Nothing holds on to the folder, which the worker removes now.
    drop(unmounted);
    fs::remove_dir_all(&session).unwrap();
}
